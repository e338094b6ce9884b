/*
 * json_token.c - strings and numbers: where one ends, whether it is right, and
 * what it says.
 */
#include "wire/json_internal.h"
#include "wire/utf8.h"

#include <roped/number.h>

#include <math.h>
#include <string.h>

enum {
    MAX_NUMBER_BYTES = 63,
    EXACT_DIGITS = 15 /* integers that a double holds without rounding */
};

static const unsigned char kind_of[256] = {
    ['{'] = JSON_OBJECT, ['['] = JSON_ARRAY,  ['"'] = JSON_STRING,
    ['t'] = JSON_TRUE,   ['f'] = JSON_FALSE,  ['n'] = JSON_NULL,
    ['-'] = JSON_NUMBER, ['N'] = JSON_NUMBER, ['I'] = JSON_NUMBER,
    ['0'] = JSON_NUMBER, ['1'] = JSON_NUMBER, ['2'] = JSON_NUMBER,
    ['3'] = JSON_NUMBER, ['4'] = JSON_NUMBER, ['5'] = JSON_NUMBER,
    ['6'] = JSON_NUMBER, ['7'] = JSON_NUMBER, ['8'] = JSON_NUMBER,
    ['9'] = JSON_NUMBER};

enum json_kind json_kind(const struct json_reader *reader)
{
    return reader->at && reader->at < reader->end
               ? (enum json_kind)kind_of[*reader->at]
               : JSON_NOTHING;
}

/* ---------------------------------------------------------------- strings */

static unsigned hex_digit(unsigned c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : 16;
}

static bool scan_hex4(struct json_reader *reader, unsigned *out)
{
    *out = 0;
    for (int i = 0; i < 4; i++, reader->at++) {
        int c = json_peek(reader);
        unsigned digit = c < 0 ? 16 : hex_digit((unsigned)c);
        if (digit == 16)
            return json_refuse(reader, "invalid \\u escape");
        *out = *out * 16 + digit;
    }
    return true;
}

/* \uXXXX behind the 'u', a surrogate pair where it is one. */
static bool scan_unicode(struct json_reader *reader, unsigned *code)
{
    unsigned low;
    if (!scan_hex4(reader, code))
        return false;
    if (*code == 0)
        return json_refuse(reader, "NUL in a string");
    if (*code < 0xD800 || *code >= 0xE000)
        return true;
    if (*code >= 0xDC00 || reader->end - reader->at < 2 ||
        reader->at[0] != '\\' || reader->at[1] != 'u')
        return json_refuse(reader, "lone surrogate");
    reader->at += 2;
    if (!scan_hex4(reader, &low))
        return false;
    if (low < 0xDC00 || low >= 0xE000)
        return json_refuse(reader, "lone surrogate");
    *code = 0x10000 + ((*code - 0xD800) << 10) + (low - 0xDC00);
    return true;
}

bool json_scan_escape(struct json_reader *reader, unsigned *code)
{
    static const char letters[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    reader->at++;
    int c = json_peek(reader);
    const char *letter = c > 0 ? strchr(letters, c) : NULL;
    if (!letter && c != 'u')
        return json_refuse(reader, "invalid escape");
    reader->at++;
    if (!letter)
        return scan_unicode(reader, code);
    *code = (unsigned char)meant[letter - letters];
    return true;
}

/* What stands in a string and is neither plain ASCII nor its end. */
static bool scan_special(struct json_reader *reader, bool is_name)
{
    int c = json_peek(reader);
    if (c < 0)
        return json_refuse(reader, "unterminated string");
    if (c < 0x20)
        return json_refuse(reader, "control character in a string");
    unsigned code = (unsigned)c;
    size_t bytes =
        utf8_sequence(reader->at, (size_t)(reader->end - reader->at));
    if (bytes == 0)
        return json_refuse(reader, "invalid UTF-8");
    if (c != '\\')
        reader->at += bytes;
    else if (!json_scan_escape(reader, &code))
        return false;
    return !is_name || (code >= 0x20 && code != 0x7F) ||
           json_refuse(reader, "control character in a name");
}

static bool is_plain(unsigned char c)
{
    return c >= 0x20 && c < 0x7F && c != '"' && c != '\\';
}

/* The first byte that is not plain, eight at a time: the highest bit of a byte
 * of odd is set for it, and wrongly only behind it. */
static const unsigned char *skip_plain(const unsigned char *at,
                                       const unsigned char *end)
{
    const uint64_t ones = UINT64_MAX / 255;
    bool is_little = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__;
    while (is_little && end - at >= 8) {
        uint64_t eight;
        memcpy(&eight, at, 8);
        uint64_t quote = eight ^ ones * '"', slash = eight ^ ones * '\\';
        uint64_t odd = eight | (eight - ones * 0x20) | (eight + ones) |
                       (quote - ones) | (slash - ones);
        odd &= ones * 0x80;
        if (odd)
            return at + __builtin_ctzll(odd) / 8;
        at += 8;
    }
    while (at < end && is_plain(*at))
        at++;
    return at;
}

/* The rest of a string, from what is not plain at at on. */
__attribute__((noinline)) static bool scan_rest(struct json_reader *reader,
                                                bool is_name,
                                                const unsigned char *at,
                                                struct json_string *out)
{
    const unsigned char *end = reader->end;
    while (at == end || *at != '"') {
        reader->at = at;
        out->has_escapes |= at < end && *at == '\\';
        if (!scan_special(reader, is_name))
            return false;
        at = skip_plain(reader->at, end);
    }
    out->bytes = (size_t)(at - out->at);
    reader->at = at + 1;
    return true;
}

bool json_scan_string(struct json_reader *reader, bool is_name,
                      struct json_string *out)
{
    const unsigned char *start = reader->at + 1;
    const unsigned char *at = skip_plain(start, reader->end);
    *out = (struct json_string){.at = start, .bytes = (size_t)(at - start)};
    if (at == reader->end || *at != '"')
        return scan_rest(reader, is_name, at, out);
    reader->at = at + 1;
    return true;
}

/* ---------------------------------------------------------------- numbers */

static bool is_digit(int c)
{
    return c >= '0' && c <= '9';
}

static bool scan_digits(struct json_reader *reader)
{
    const unsigned char *start = reader->at, *at = start;
    while (at < reader->end && is_digit(*at))
        at++;
    reader->at = at;
    return at > start || json_refuse(reader, "invalid number");
}

bool json_scan_word(struct json_reader *reader, const char *word)
{
    size_t length = strlen(word);
    if ((size_t)(reader->end - reader->at) < length ||
        memcmp(reader->at, word, length) != 0)
        return json_refuse(reader, "invalid value");
    reader->at += length;
    return true;
}

/* What clients spell NaN, Infinity and -Infinity; the sign is behind us. */
static bool scan_nan(struct json_reader *reader, const unsigned char *start)
{
    if (reader->nan == JSON_NOWHERE)
        reader->nan = (size_t)(start - reader->start);
    return json_scan_word(reader, *start == 'N' ? "NaN" : "Infinity");
}

/* What may follow the digits of a whole number. */
static bool scan_fraction(struct json_reader *reader)
{
    if (json_peek(reader) == '.') {
        reader->at++;
        if (!scan_digits(reader))
            return false;
    }
    if (json_peek(reader) == 'e' || json_peek(reader) == 'E') {
        reader->at++;
        if (json_peek(reader) == '+' || json_peek(reader) == '-')
            reader->at++;
        return scan_digits(reader);
    }
    return true;
}

bool json_scan_number(struct json_reader *reader)
{
    const unsigned char *start = reader->at;
    reader->at += *start == '-';
    const unsigned char *digits = reader->at;
    if (json_peek(reader) == 'N' || json_peek(reader) == 'I')
        return scan_nan(reader, start);
    if (!scan_digits(reader))
        return false;
    if (*digits == '0' && reader->at - digits > 1) {
        reader->at = digits + 1;
        return json_refuse(reader, "number with a leading zero");
    }
    const unsigned char *whole = reader->at;
    if (!scan_fraction(reader))
        return false;
    if ((digits > start || reader->at > whole) &&
        reader->odd_number == JSON_NOWHERE)
        reader->odd_number = (size_t)(start - reader->start);
    return reader->at - start <= MAX_NUMBER_BYTES ||
           json_refuse(reader, "number of over 63 characters");
}

/* Few digits and a power of ten that are exact have an exact quotient, but for
 * one rounding: what roped_read_number finds too, in more time. */
static double to_double(const unsigned char *at, size_t bytes)
{
    static const double powers[EXACT_DIGITS + 1] = {
        1e0, 1e1, 1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
        1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15};
    char copy[MAX_NUMBER_BYTES + 1];
    const unsigned char *end = at + bytes, *digit = at + (*at == '-');
    const unsigned char *point = NULL;
    uint64_t value = 0;
    if (end - digit <= EXACT_DIGITS)
        for (; digit < end && (is_digit(*digit) || *digit == '.'); digit++) {
            if (*digit == '.')
                point = digit + 1;
            else
                value = value * 10 + (uint64_t)(*digit - '0');
        }
    if (digit == end) {
        double exact = (double)value / powers[point ? end - point : 0];
        return *at == '-' ? -exact : exact;
    }
    memcpy(copy, at, bytes);
    copy[bytes] = '\0';
    return roped_read_number(copy, NULL);
}

bool json_read_number(struct json_reader *reader, double *out)
{
    const unsigned char *start = reader->at;
    if (json_kind(reader) != JSON_NUMBER || !json_scan_number(reader))
        return false;
    *out = to_double(start, (size_t)(reader->at - start));
    return true;
}

/* Up to EXACT_DIGITS digits and nothing else, as nearly all sizes are. */
static bool read_digits(struct json_reader *reader, uint64_t *out)
{
    const unsigned char *start = reader->at, *at = start, *end = reader->end;
    uint64_t value = 0;
    if (!start) /* a member that is not there */
        return false;
    if (end - at > EXACT_DIGITS)
        end = at + EXACT_DIGITS;
    for (unsigned digit; at < end && (digit = *at - (unsigned)'0') < 10; at++)
        value = value * 10 + digit;
    bool has_more =
        at == reader->end || is_digit(*at) || *at == '.' || (*at | 0x20) == 'e';
    if (at == start || has_more || (*start == '0' && at > start + 1))
        return false;
    reader->at = at;
    *out = value;
    return true;
}

bool json_read_size(struct json_reader *reader, uint64_t *out)
{
    const unsigned char *start = reader->at;
    double value = -1;
    if (read_digits(reader, out))
        return true;
    if (json_read_number(reader, &value) && value >= 0 && value < 0x1p53) {
        *out = (uint64_t)value;
        if ((double)*out == value)
            return true;
    }
    reader->at = start;
    return false;
}

const char *json_nan(const struct json_reader *reader)
{
    if (json_kind(reader) != JSON_NUMBER)
        return NULL;
    bool is_negative = *reader->at == '-';
    const unsigned char *at = reader->at + is_negative;
    return at == reader->end ? NULL
           : *at == 'N'      ? "NaN"
           : *at != 'I'      ? NULL
           : is_negative     ? "-Infinity"
                             : "Infinity";
}
