/*
 * json.c - a strict check of the text, and the tree of what passed it.
 *
 * The check is one pass over the bytes, recursive only in nesting, which it
 * bounds. Duplicate names are looked for in the tree, where escapes are gone.
 */
#include "wire/json.h"

#include "wire/json_arena.h"
#include "wire/json_build.h"
#include "wire/utf8.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_DEPTH = 16,
    MAX_V2_DEPTH = 100, /* the protocol's own */
    MAX_NUMBER_BYTES = 63,
    FEW_MEMBERS = 16 /* up to here comparing all pairs beats sorting */
};

struct scan {
    const unsigned char *text;
    size_t bytes, at;
    int depth;
    bool is_v2;        /* NaN and Infinity are numbers, more may be nested */
    size_t odd_number; /* offset of the first that is not digits alone */
    const char *why;   /* first thing that is wrong */
};

static bool scan_word(struct scan *scan, const char *word);

static bool refuse(struct scan *scan, const char *why)
{
    if (!scan->why)
        scan->why = why;
    return false;
}

static int peek(const struct scan *scan)
{
    return scan->at < scan->bytes ? scan->text[scan->at] : -1;
}

static void skip_space(struct scan *scan)
{
    int c;
    while ((c = peek(scan)) == ' ' || c == '\n' || c == '\t' || c == '\r')
        scan->at++;
}

static bool scan_hex4(struct scan *scan, unsigned *out)
{
    *out = 0;
    for (int i = 0; i < 4; i++, scan->at++) {
        int c = peek(scan);
        unsigned digit = c >= '0' && c <= '9'   ? (unsigned)(c - '0')
                         : c >= 'a' && c <= 'f' ? (unsigned)(c - 'a' + 10)
                         : c >= 'A' && c <= 'F' ? (unsigned)(c - 'A' + 10)
                                                : 16;
        if (digit == 16)
            return refuse(scan, "invalid \\u escape");
        *out = *out * 16 + digit;
    }
    return true;
}

/* \uXXXX behind the 'u', a surrogate pair where it is one. */
static bool scan_unicode(struct scan *scan, bool is_name)
{
    unsigned code, low;
    if (!scan_hex4(scan, &code))
        return false;
    if (code == 0)
        return refuse(scan, "NUL in a string");
    if (is_name && (code < 0x20 || code == 0x7F))
        return refuse(scan, "control character in a name");
    if (code < 0xD800 || code >= 0xE000)
        return true;
    if (code >= 0xDC00 || scan->bytes - scan->at < 2 ||
        scan->text[scan->at] != '\\' || scan->text[scan->at + 1] != 'u')
        return refuse(scan, "lone surrogate");
    scan->at += 2;
    if (!scan_hex4(scan, &low))
        return false;
    return (low >= 0xDC00 && low < 0xE000) || refuse(scan, "lone surrogate");
}

static bool scan_escape(struct scan *scan, bool is_name)
{
    scan->at++;
    switch (peek(scan)) {
    case '"':
    case '\\':
    case '/':
        break;
    case 'b':
    case 'f':
    case 'n':
    case 'r':
    case 't':
        if (is_name)
            return refuse(scan, "control character in a name");
        break;
    case 'u':
        scan->at++;
        return scan_unicode(scan, is_name);
    default:
        return refuse(scan, "invalid escape");
    }
    scan->at++;
    return true;
}

static bool scan_string(struct scan *scan, bool is_name)
{
    scan->at++;
    for (;;) {
        int c = peek(scan);
        if (c < 0)
            return refuse(scan, "unterminated string");
        if (c < 0x20)
            return refuse(scan, "control character in a string");
        if (c == 0x7F && is_name)
            return refuse(scan, "control character in a name");
        if (c == '"') {
            scan->at++;
            return true;
        }
        if (c < 0x80 && c != '\\') {
            scan->at++;
            continue;
        }
        if (c == '\\') {
            if (!scan_escape(scan, is_name))
                return false;
            continue;
        }
        size_t bytes =
            utf8_sequence(scan->text + scan->at, scan->bytes - scan->at);
        if (bytes == 0)
            return refuse(scan, "invalid UTF-8");
        scan->at += bytes;
    }
}

static bool scan_digits(struct scan *scan)
{
    size_t start = scan->at;
    while (peek(scan) >= '0' && peek(scan) <= '9')
        scan->at++;
    return scan->at > start || refuse(scan, "invalid number");
}

/* NaN, Infinity or -Infinity behind its sign. */
static bool scan_nan(struct scan *scan, bool is_negative)
{
    if (!scan->is_v2)
        return refuse(scan, "NaN and Infinity are no JSON");
    return scan_word(scan,
                     is_negative || peek(scan) == 'I' ? "Infinity" : "NaN");
}

static bool scan_number(struct scan *scan)
{
    size_t start = scan->at;
    bool is_odd = peek(scan) == '-';
    if (is_odd)
        scan->at++;
    if (peek(scan) == 'N' || peek(scan) == 'I')
        return scan_nan(scan, is_odd);
    if (peek(scan) == '0')
        scan->at++;
    else if (!scan_digits(scan))
        return false;
    if (peek(scan) >= '0' && peek(scan) <= '9')
        return refuse(scan, "number with a leading zero");
    if (peek(scan) == '.') {
        is_odd = true;
        scan->at++;
        if (!scan_digits(scan))
            return false;
    }
    if (peek(scan) == 'e' || peek(scan) == 'E') {
        is_odd = true;
        scan->at++;
        if (peek(scan) == '+' || peek(scan) == '-')
            scan->at++;
        if (!scan_digits(scan))
            return false;
    }
    if (is_odd && scan->odd_number == JSON_NOWHERE)
        scan->odd_number = start;
    return scan->at - start <= MAX_NUMBER_BYTES ||
           refuse(scan, "number of over 63 characters");
}

static bool starts_number(int c)
{
    return c == '-' || (c >= '0' && c <= '9') || c == 'N' || c == 'I';
}

static bool scan_word(struct scan *scan, const char *word)
{
    size_t length = strlen(word);
    if (scan->bytes - scan->at < length ||
        memcmp(scan->text + scan->at, word, length) != 0)
        return refuse(scan, "invalid value");
    scan->at += length;
    return true;
}

static bool scan_value(struct scan *scan);

static bool scan_name(struct scan *scan)
{
    skip_space(scan);
    if (peek(scan) != '"')
        return refuse(scan, "expected a name");
    if (!scan_string(scan, true))
        return false;
    skip_space(scan);
    if (peek(scan) != ':')
        return refuse(scan, "expected ':'");
    scan->at++;
    return true;
}

/* The members of an object or the items of an array, from its bracket on. */
static bool scan_items(struct scan *scan, int close)
{
    if (++scan->depth > (scan->is_v2 ? MAX_V2_DEPTH : MAX_DEPTH))
        return refuse(scan, scan->is_v2 ? "JSON nesting depth exceeds maximum "
                                          "allowed limit (100)"
                                        : "nested over 16 deep");
    scan->at++;
    skip_space(scan);
    bool is_empty = peek(scan) == close;
    while (!is_empty) {
        if (close == '}' && !scan_name(scan))
            return false;
        if (!scan_value(scan))
            return false;
        if (peek(scan) == close)
            break;
        if (peek(scan) != ',')
            return refuse(scan, "expected ',' or a closing bracket");
        scan->at++;
    }
    scan->at++;
    scan->depth--;
    return true;
}

/* One value with the spaces around it. */
static bool scan_value(struct scan *scan)
{
    bool is_right;
    skip_space(scan);
    switch (peek(scan)) {
    case '{':
        is_right = scan_items(scan, '}');
        break;
    case '[':
        is_right = scan_items(scan, ']');
        break;
    case '"':
        is_right = scan_string(scan, false);
        break;
    case 't':
        is_right = scan_word(scan, "true");
        break;
    case 'f':
        is_right = scan_word(scan, "false");
        break;
    case 'n':
        is_right = scan_word(scan, "null");
        break;
    case -1:
        is_right = refuse(scan, "unexpected end");
        break;
    default:
        is_right = starts_number(peek(scan)) ? scan_number(scan)
                                             : refuse(scan, "invalid value");
    }
    if (is_right)
        skip_space(scan);
    return is_right;
}

/* ------------------------------------------------------- duplicate names */

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* A name that two members of object share, or NULL. */
static const char *pair_duplicate(const struct cJSON *object)
{
    for (const struct cJSON *a = object->child; a; a = a->next)
        for (const struct cJSON *b = a->next; b; b = b->next)
            if (strcmp(a->string, b->string) == 0)
                return a->string;
    return NULL;
}

/* The same for many members, in n log n; false without memory. */
static bool sort_duplicate(const struct cJSON *object, size_t n,
                           const char **found)
{
    const char **names = malloc(n * sizeof *names);
    size_t i = 0;
    if (!names)
        return false;
    for (const struct cJSON *node = object->child; node; node = node->next)
        names[i++] = node->string;
    qsort(names, n, sizeof *names, compare_names);
    for (i = 1; i < n && !*found; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            *found = names[i];
    free(names);
    return true;
}

/* Sets *found to a duplicate name in node or below; false without memory. */
static bool find_duplicate(const struct cJSON *node, const char **found)
{
    for (; node && !*found; node = node->next) {
        if (!node->child)
            continue;
        if (!find_duplicate(node->child, found))
            return false;
        if (*found || !cJSON_IsObject(node))
            continue;
        size_t n = (size_t)cJSON_GetArraySize(node);
        if (n <= FEW_MEMBERS)
            *found = pair_duplicate(node);
        else if (!sort_duplicate(node, n, found))
            return false;
    }
    return true;
}

/* ---------------------------------------------------------------- parsing */

/* The tree of text that has been checked; NULL without memory. */
static const struct cJSON *build(const char *text, size_t bytes)
{
    json_arena_open();
    const struct cJSON *tree = json_build(text, bytes);
    json_arena_seal(tree);
    return tree;
}

static const char prefix[] = "failed to parse the request JSON buffer";

/* Is the text one value? */
static enum roped_status check(struct json_reading *reading,
                               struct roped_error *err)
{
    struct scan scan = {.text = (const unsigned char *)reading->text,
                        .bytes = reading->bytes,
                        .is_v2 = reading->is_v2,
                        .odd_number = JSON_NOWHERE};
    if (scan.bytes == 0)
        return roped_fail(err, ROPED_INVALID, "%s: it is empty at 0", prefix);
    if (!scan_value(&scan))
        return roped_fail(err, ROPED_INVALID, "%s: %s at %zu", prefix, scan.why,
                          scan.at);
    if (scan.at != scan.bytes)
        return roped_fail(err, ROPED_INVALID,
                          "%s: something follows the value at %zu", prefix,
                          scan.at);
    reading->odd_number = scan.odd_number;
    return ROPED_OK;
}

static enum roped_status parse(struct json_reading *reading,
                               const struct cJSON **out,
                               struct roped_error *err)
{
    const char *duplicate = NULL;
    *out = json_arena_find(reading);
    if (*out)
        return ROPED_OK;
    enum roped_status status = check(reading, err);
    if (status)
        return status;
    const struct cJSON *tree = build(reading->text, reading->bytes);
    if (!tree || !find_duplicate(tree, &duplicate)) {
        json_free(tree);
        return roped_fail(err, ROPED_NO_MEMORY,
                          "no memory for %zu bytes of JSON", reading->bytes);
    }
    if (duplicate) {
        roped_fail(err, ROPED_INVALID, "%s: duplicate name '%.64s'", prefix,
                   duplicate);
        json_free(tree);
        return ROPED_INVALID;
    }
    json_arena_keep(tree, reading);
    *out = tree;
    return ROPED_OK;
}

enum roped_status json_parse(const char *text, size_t bytes,
                             const struct cJSON **out, struct roped_error *err)
{
    struct json_reading reading = {.text = text, .bytes = bytes};
    return parse(&reading, out, err);
}

enum roped_status json_parse_v2(const char *text, size_t bytes,
                                const struct cJSON **out,
                                struct roped_error *err)
{
    struct json_reading reading = {.text = text, .bytes = bytes, .is_v2 = true};
    return parse(&reading, out, err);
}

enum roped_status json_parse_sizes(const char *text, size_t bytes,
                                   const struct cJSON **out, size_t *odd_number,
                                   struct roped_error *err)
{
    struct json_reading reading = {
        .text = text, .bytes = bytes, .odd_number = JSON_NOWHERE};
    enum roped_status status = parse(&reading, out, err);
    *odd_number = reading.odd_number;
    return status;
}

void json_free(const struct cJSON *tree)
{
    json_arena_delete(tree);
}

const struct cJSON *json_member(const struct cJSON *object, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

bool json_is_size(const struct cJSON *node, uint64_t *out)
{
    if (!cJSON_IsNumber(node) || !(node->valuedouble >= 0) ||
        node->valuedouble > 9007199254740991.0)
        return false;
    *out = (uint64_t)node->valuedouble;
    return (double)*out == node->valuedouble;
}

bool json_is_number(const struct cJSON *node, double *out)
{
    if (!cJSON_IsNumber(node))
        return false;
    *out = node->valuedouble;
    return !isinf(node->valuedouble) || node->valueint == JSON_SPELLED_OUT;
}

const char *json_text(const struct cJSON *node, char *text, size_t text_bytes)
{
    if (cJSON_IsNumber(node))
        snprintf(text, text_bytes, "%.15g", node->valuedouble);
    else if (cJSON_IsString(node))
        snprintf(text, text_bytes, "'%.32s'", node->valuestring);
    else
        snprintf(text, text_bytes, "%s",
                 !node                  ? "nothing"
                 : cJSON_IsNull(node)   ? "null"
                 : cJSON_IsTrue(node)   ? "true"
                 : cJSON_IsFalse(node)  ? "false"
                 : cJSON_IsObject(node) ? "an object"
                                        : "an array");
    return text;
}
