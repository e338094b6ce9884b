/*
 * log_json.c - one pass over a line, a member for each pair.
 */
#include "log_json.h"

#include <stdbool.h>
#include <string.h>

/* Where it goes, and what is left: 'full' where something did not fit. */
struct writer {
    char *at, *end;
    bool is_full;
};

static void put(struct writer *writer, const char *text, size_t bytes)
{
    writer->is_full |= (size_t)(writer->end - writer->at) < bytes;
    if (writer->is_full)
        return;
    memcpy(writer->at, text, bytes);
    writer->at += bytes;
}

static size_t digits(const char *text)
{
    return strspn(text, "0123456789");
}

/* As JSON has it: no zero before other digits, digits on both sides of a point.
 * It has no exponents here. */
static bool is_number(const char *text, size_t bytes)
{
    const char *at = text + (*text == '-');
    size_t n = digits(at);
    bool is_right = n > 0 && (n == 1 || *at != '0');
    at += n;
    if (*at == '.') {
        n = digits(at + 1);
        is_right &= n > 0;
        at += 1 + n;
    }
    return is_right && at == text + bytes;
}

static bool is_word(const char *text, size_t bytes, const char *word)
{
    return strlen(word) == bytes && memcmp(text, word, bytes) == 0;
}

/* Bytes of a quoted value, its quotes included; the last is missing where the
 * line was cut. */
static size_t quoted_bytes(const char *text)
{
    size_t n = 1;
    while (text[n] && text[n] != '"')
        n += text[n] == '\\' && text[n + 1] ? 2 : 1;
    return n + (text[n] == '"');
}

/* What log_quote wrote, between new quotes. */
static void put_string(struct writer *writer, const char *text, size_t bytes)
{
    put(writer, "\"", 1);
    for (size_t i = 0; i < bytes; i++) {
        bool is_escape = text[i] == '\\';
        if (is_escape && i + 3 < bytes && text[i + 1] == 'x') {
            put(writer, "\\u00", 4);
            put(writer, text + i + 2, 2);
            i += 3;
        } else if (is_escape && i + 1 < bytes && strchr("\"\\", text[i + 1])) {
            put(writer, text + i++, 2);
        } else if (!is_escape && text[i] != '"') {
            put(writer, text + i, 1);
        }
    }
    put(writer, "\"", 1);
}

/* A value at text; returns its bytes. */
static size_t put_value(struct writer *writer, const char *text)
{
    bool is_quoted = *text == '"';
    size_t bytes = is_quoted ? quoted_bytes(text) : strcspn(text, " ");
    if (is_quoted) {
        bool is_closed = bytes > 1 && text[bytes - 1] == '"';
        put_string(writer, text + 1, bytes - 1 - is_closed);
    } else if (is_number(text, bytes) || is_word(text, bytes, "true") ||
               is_word(text, bytes, "false")) {
        put(writer, text, bytes);
    } else {
        put_string(writer, text, bytes);
    }
    return bytes;
}

size_t log_json(const char *line, char *out, size_t out_bytes)
{
    struct writer writer = {out, out + out_bytes - 1, false};
    put(&writer, "{", 1);
    while (*(line += strspn(line, " "))) {
        char *start = writer.at;
        size_t key = strcspn(line, "= ");
        if (start > out + 1)
            put(&writer, ",", 1);
        put_string(&writer, line, key);
        put(&writer, ":", 1);
        line += key + (line[key] == '=');
        line += put_value(&writer, line);
        if (writer.is_full)
            writer.at = start;
        writer.is_full = false;
    }
    *writer.at++ = '}'; /* its place was kept */
    return (size_t)(writer.at - out);
}
