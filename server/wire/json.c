/*
 * json.c - a strict check of the text, then cJSON for the tree.
 *
 * The check is one pass over the bytes, recursive only in nesting, which it
 * bounds. Duplicate keys are looked for in the tree, where escapes are gone.
 */
#include "wire/json.h"

#include <cjson/cJSON.h>
#include <string.h>

/* more members than any request needs would make the search for duplicates
 * slow */
enum { MAX_DEPTH = 16, MAX_MEMBERS = 2048 };

struct scan {
    const unsigned char *text;
    size_t bytes, at;
    int depth;
    bool is_unsigned; /* only integers of 0 or more */
    const char *why;  /* first thing that is wrong */
};

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

/* One UTF-8 sequence of at least two bytes; RFC 3629's table. */
static bool scan_utf8(struct scan *scan)
{
    const unsigned char *s = scan->text + scan->at;
    size_t left = scan->bytes - scan->at;
    size_t length = s[0] >= 0xF0 ? 4 : s[0] >= 0xE0 ? 3 : 2;
    if (s[0] < 0xC2 || s[0] > 0xF4 || left < length)
        return refuse(scan, "invalid UTF-8");
    for (size_t i = 1; i < length; i++)
        if ((s[i] & 0xC0) != 0x80)
            return refuse(scan, "invalid UTF-8");
    if ((s[0] == 0xE0 && s[1] < 0xA0) || (s[0] == 0xED && s[1] > 0x9F) ||
        (s[0] == 0xF0 && s[1] < 0x90) || (s[0] == 0xF4 && s[1] > 0x8F))
        return refuse(scan, "invalid UTF-8");
    scan->at += length;
    return true;
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

static bool scan_escape(struct scan *scan)
{
    unsigned code, low;
    scan->at++;
    int c = peek(scan);
    if (c != 'u') {
        if (c < 0 || !strchr("\"\\/bfnrt", c))
            return refuse(scan, "invalid escape");
        scan->at++;
        return true;
    }
    scan->at++;
    if (!scan_hex4(scan, &code))
        return false;
    if (code == 0)
        return refuse(scan, "NUL in a string");
    if (code >= 0xDC00 && code < 0xE000)
        return refuse(scan, "lone surrogate");
    if (code < 0xD800 || code >= 0xDC00)
        return true;
    if (peek(scan) != '\\')
        return refuse(scan, "lone surrogate");
    scan->at++;
    if (peek(scan) != 'u')
        return refuse(scan, "lone surrogate");
    scan->at++;
    if (!scan_hex4(scan, &low))
        return false;
    return (low >= 0xDC00 && low < 0xE000) || refuse(scan, "lone surrogate");
}

static bool scan_string(struct scan *scan)
{
    scan->at++;
    for (;;) {
        int c = peek(scan);
        if (c < 0)
            return refuse(scan, "unterminated string");
        if (c < 0x20)
            return refuse(scan, "control character in a string");
        if (c == '"') {
            scan->at++;
            return true;
        }
        if (c == '\\') {
            if (!scan_escape(scan))
                return false;
        } else if (c >= 0x80) {
            if (!scan_utf8(scan))
                return false;
        } else {
            scan->at++;
        }
    }
}

static bool scan_digits(struct scan *scan)
{
    size_t start = scan->at;
    while (peek(scan) >= '0' && peek(scan) <= '9')
        scan->at++;
    return scan->at > start || refuse(scan, "invalid number");
}

static bool scan_number(struct scan *scan)
{
    if (scan->is_unsigned) {
        size_t start = scan->at;
        if (!scan_digits(scan))
            return false;
        if (scan->at - start > 1 && scan->text[start] == '0')
            return refuse(scan, "number with a leading zero");
        int next = peek(scan);
        return (next != '.' && next != 'e' && next != 'E') ||
               refuse(scan, "expected an integer");
    }
    if (peek(scan) == '-')
        scan->at++;
    if (peek(scan) == '0')
        scan->at++;
    else if (!scan_digits(scan))
        return false;
    if (peek(scan) >= '0' && peek(scan) <= '9')
        return refuse(scan, "number with a leading zero");
    if (peek(scan) == '.') {
        scan->at++;
        if (!scan_digits(scan))
            return false;
    }
    if (peek(scan) == 'e' || peek(scan) == 'E') {
        scan->at++;
        if (peek(scan) == '+' || peek(scan) == '-')
            scan->at++;
        return scan_digits(scan);
    }
    return true;
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

/* The members of an object or the items of an array, after its bracket. */
static bool scan_items(struct scan *scan, int close, bool has_names)
{
    scan->at++;
    skip_space(scan);
    if (peek(scan) == close) {
        scan->at++;
        return true;
    }
    for (;;) {
        if (has_names) {
            skip_space(scan);
            if (peek(scan) != '"')
                return refuse(scan, "expected a name");
            if (!scan_string(scan))
                return false;
            skip_space(scan);
            if (peek(scan) != ':')
                return refuse(scan, "expected ':'");
            scan->at++;
        }
        if (!scan_value(scan))
            return false;
        int c = peek(scan);
        scan->at++;
        if (c == close)
            return true;
        if (c != ',') {
            scan->at--;
            return refuse(scan, "expected ',' or a closing bracket");
        }
    }
}

static bool scan_value(struct scan *scan)
{
    bool is_right;
    skip_space(scan);
    if (++scan->depth > MAX_DEPTH)
        return refuse(scan, "nested too deeply");
    switch (peek(scan)) {
    case '{':
        is_right = scan_items(scan, '}', true);
        break;
    case '[':
        is_right = scan_items(scan, ']', false);
        break;
    case '"':
        is_right = scan_string(scan);
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
        is_right = scan_number(scan);
    }
    scan->depth--;
    skip_space(scan);
    return is_right;
}

/* Objects of requests have a handful of members: comparing pairs is cheap. */
static const char *find_duplicate(const struct cJSON *node)
{
    for (; node; node = node->next) {
        const char *found = node->child ? find_duplicate(node->child) : NULL;
        if (found)
            return found;
        if (!cJSON_IsObject(node))
            continue;
        if (cJSON_GetArraySize(node) > MAX_MEMBERS)
            return "(an object of over 2,048 members)";
        for (const struct cJSON *a = node->child; a; a = a->next)
            for (const struct cJSON *b = a->next; b; b = b->next)
                if (strcmp(a->string, b->string) == 0)
                    return a->string;
    }
    return NULL;
}

static enum roped_status parse(const char *text, size_t bytes, bool is_unsigned,
                               struct cJSON **out, struct roped_error *err)
{
    static const char prefix[] = "failed to parse the request JSON buffer";
    struct scan scan = {.text = (const unsigned char *)text,
                        .bytes = bytes,
                        .is_unsigned = is_unsigned};
    *out = NULL;
    if (bytes == 0)
        return roped_fail(err, ROPED_INVALID, "%s: it is empty at 0", prefix);
    if (!scan_value(&scan))
        return roped_fail(err, ROPED_INVALID, "%s: %s at %zu", prefix, scan.why,
                          scan.at);
    if (scan.at != bytes)
        return roped_fail(err, ROPED_INVALID,
                          "%s: something follows the value at %zu", prefix,
                          scan.at);
    struct cJSON *tree = cJSON_ParseWithLength(text, bytes);
    if (!tree)
        return roped_fail(err, ROPED_NO_MEMORY, "%s: no memory at 0", prefix);
    const char *duplicate = find_duplicate(tree);
    if (duplicate) {
        roped_fail(err, ROPED_INVALID, "%s: duplicate name '%.64s' at 0",
                   prefix, duplicate);
        cJSON_Delete(tree);
        return ROPED_INVALID;
    }
    *out = tree;
    return ROPED_OK;
}

enum roped_status json_parse(const char *text, size_t bytes, struct cJSON **out,
                             struct roped_error *err)
{
    return parse(text, bytes, false, out, err);
}

enum roped_status json_parse_unsigned(const char *text, size_t bytes,
                                      struct cJSON **out,
                                      struct roped_error *err)
{
    return parse(text, bytes, true, out, err);
}

void json_free(struct cJSON *tree)
{
    cJSON_Delete(tree);
}

const struct cJSON *json_member(const struct cJSON *object, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

bool json_is_size(const struct cJSON *node, uint64_t *out)
{
    if (!cJSON_IsNumber(node) || node->valuedouble < 0 ||
        node->valuedouble > 9007199254740991.0)
        return false;
    *out = (uint64_t)node->valuedouble;
    return (double)*out == node->valuedouble;
}
