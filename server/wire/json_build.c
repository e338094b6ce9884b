/*
 * json_build.c - from checked text to cJSON's nodes.
 *
 * cJSON's own parser takes three quarters of the time that a small call's JSON
 * takes: it looks up the locale for each number, measures each string twice,
 * and checks what has been checked. Nothing is checked in here: the text ends
 * where it should, and is nested no deeper than the check allows.
 */
#include "wire/json_build.h"

#include "wire/json_arena.h"
#include "wire/utf8.h"

#include <cjson/cJSON.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
    NUMBER_BYTES = 64, /* more than the check lets through */
    EXACT_DIGITS = 15  /* integers that a double holds without rounding */
};

static void skip_space(const char **at, const char *end)
{
    while (*at < end &&
           (**at == ' ' || **at == '\n' || **at == '\t' || **at == '\r'))
        ++*at;
}

/* ----------------------------------------------------------------- strings */

static unsigned read_hex4(const char *at)
{
    unsigned code = 0;
    for (int i = 0; i < 4; i++) {
        unsigned c = (unsigned char)at[i];
        code = code * 16 + (c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    return code;
}

/* Writes what an escape stands for, from the letter behind its '\' on; moves
 * *at behind it. */
static char *unescape(const char **at, char *to)
{
    static const char letters[] = "bfnrt", controls[] = "\b\f\n\r\t";
    char c = *(*at)++;
    const char *letter = strchr(letters, c);
    if (c != 'u') {
        *to++ = letter ? controls[letter - letters] : c;
        return to;
    }
    unsigned code = read_hex4(*at);
    *at += 4;
    if (code >= 0xD800 && code < 0xDC00) {
        code =
            0x10000 + ((code - 0xD800) << 10) + (read_hex4(*at + 2) - 0xDC00);
        *at += 6;
    }
    return utf8_write(code, to);
}

/* The string that starts at *at, without its quotes and escapes; NULL: no
 * memory. An escape is never shorter than what it stands for. */
static char *read_string(const char **at)
{
    const char *start = ++*at, *end = start;
    bool has_escapes = false;
    for (; *end != '"'; end++)
        if (*end == '\\') {
            has_escapes = true;
            end++;
        }
    *at = end + 1;
    size_t bytes = (size_t)(end - start);
    char *text = json_arena_take(bytes + 1), *to = text;
    if (!text)
        return NULL;
    if (!has_escapes) {
        memcpy(text, start, bytes);
        text[bytes] = '\0';
        return text;
    }
    while (start < end) {
        char c = *start++;
        if (c == '\\')
            to = unescape(&start, to);
        else
            *to++ = c;
    }
    *to = '\0';
    return text;
}

/* ----------------------------------------------------------------- numbers */

static bool is_in_number(char c)
{
    return (c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' ||
           c == 'e' || c == 'E';
}

static double spelled_out(const char **at, bool is_negative)
{
    bool is_nan = **at == 'N';
    *at += is_nan ? strlen("NaN") : strlen("Infinity");
    return is_nan ? (double)NAN
                  : (is_negative ? -(double)INFINITY : (double)INFINITY);
}

/* Digits alone are a size or an offset, nearly always. */
static double read_double(const char **at, const char *end)
{
    char copy[NUMBER_BYTES];
    size_t bytes = 0;
    uint64_t value = 0;
    bool is_plain = true;
    for (; *at < end && is_in_number(**at); bytes++, ++*at) {
        copy[bytes] = **at;
        is_plain &= copy[bytes] >= '0' && copy[bytes] <= '9';
        value = value * 10 + (uint64_t)(copy[bytes] - '0');
    }
    if (is_plain && bytes <= EXACT_DIGITS)
        return (double)value;
    copy[bytes] = '\0';
    return strtod(copy, NULL);
}

static void read_number(const char **at, const char *end, struct cJSON *node)
{
    bool is_negative = **at == '-';
    char first = (*at)[is_negative];
    node->type = cJSON_Number;
    if (first == 'N' || first == 'I') {
        *at += is_negative;
        node->valuedouble = spelled_out(at, is_negative);
        node->valueint = JSON_SPELLED_OUT;
        return;
    }
    node->valuedouble = read_double(at, end);
    node->valueint = node->valuedouble >= INT_MAX ? INT_MAX
                     : node->valuedouble <= (double)INT_MIN
                         ? INT_MIN
                         : (int)node->valuedouble;
}

/* ------------------------------------------------------------------- values */

static struct cJSON *read_value(const char **at, const char *end);

/* Appends a child; as in cJSON, the first one's prev is the last. */
static void append(struct cJSON *parent, struct cJSON *child)
{
    struct cJSON *first = parent->child;
    if (!first) {
        parent->child = child;
        child->prev = child;
        return;
    }
    child->prev = first->prev;
    first->prev->next = child;
    first->prev = child;
}

/* The items of an array, or the members of an object, from its bracket on. */
static bool read_items(const char **at, const char *end, struct cJSON *node)
{
    bool is_object = *(*at)++ == '{';
    node->type = is_object ? cJSON_Object : cJSON_Array;
    skip_space(at, end);
    while (**at != ']' && **at != '}') {
        char *name = NULL;
        if (is_object) {
            name = read_string(at);
            if (!name)
                return false;
            skip_space(at, end);
            ++*at; /* ':' */
        }
        struct cJSON *child = read_value(at, end);
        if (!child) {
            json_arena_give(name);
            return false;
        }
        child->string = name;
        append(node, child);
        if (**at == ',')
            ++*at;
        skip_space(at, end);
    }
    ++*at;
    return true;
}

/* Everything but numbers, arrays and objects. */
static bool read_word(const char **at, struct cJSON *node)
{
    switch (**at) {
    case '"':
        node->type = cJSON_String;
        node->valuestring = read_string(at);
        return node->valuestring != NULL;
    case 't':
        node->type = cJSON_True;
        node->valueint = 1; /* as cJSON has it */
        *at += strlen("true");
        return true;
    case 'f':
        node->type = cJSON_False;
        *at += strlen("false");
        return true;
    default:
        node->type = cJSON_NULL;
        *at += strlen("null");
        return true;
    }
}

/* One value with the spaces around it. */
static struct cJSON *read_value(const char **at, const char *end)
{
    bool is_good = true;
    struct cJSON *node = json_arena_take(sizeof *node);
    if (!node)
        return NULL;
    memset(node, 0, sizeof *node);
    skip_space(at, end);
    switch (**at) {
    case '{':
    case '[':
        is_good = read_items(at, end, node);
        break;
    case '"':
    case 't':
    case 'f':
    case 'n':
        is_good = read_word(at, node);
        break;
    default:
        read_number(at, end, node);
    }
    skip_space(at, end);
    if (is_good)
        return node;
    cJSON_Delete(node); /* with what has been appended to it */
    return NULL;
}

struct cJSON *json_build(const char *text, size_t bytes)
{
    return read_value(&text, text + bytes);
}
