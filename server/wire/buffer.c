/*
 * buffer.c - growing text, and numbers in their shortest form.
 */
#include "wire/buffer.h"

#include "wire/utf8.h"

#include <roped/number.h>

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *grow_heap(struct buffer *buffer, size_t capacity)
{
    return realloc(buffer->text, capacity);
}

void buffer_init(struct buffer *buffer)
{
    *buffer = (struct buffer){.grow = grow_heap};
}

void buffer_init_fixed(struct buffer *buffer, char *memory, size_t capacity)
{
    *buffer = (struct buffer){.text = memory, .capacity = capacity};
}

void buffer_init_grow(struct buffer *buffer, char *memory, size_t capacity,
                      buffer_grow_fn *grow, void *context)
{
    *buffer = (struct buffer){
        .text = memory, .capacity = capacity, .grow = grow, .context = context};
}

void buffer_fini(struct buffer *buffer)
{
    if (buffer->grow == grow_heap)
        free(buffer->text);
    memset(buffer, 0, sizeof *buffer);
}

/* Makes room for bytes more and a NUL. */
static bool reserve(struct buffer *buffer, size_t bytes)
{
    size_t wanted = buffer->bytes + bytes + 1;
    if (buffer->has_failed || wanted <= buffer->capacity)
        return !buffer->has_failed;
    size_t capacity = buffer->capacity ? buffer->capacity : 1024;
    while (capacity < wanted)
        capacity *= 2;
    char *text = buffer->grow ? buffer->grow(buffer, capacity) : NULL;
    if (!text) {
        buffer->has_failed = true;
        return false;
    }
    buffer->text = text;
    buffer->capacity = capacity;
    return true;
}

void buffer_append(struct buffer *buffer, const char *text, size_t bytes)
{
    if (!reserve(buffer, bytes))
        return;
    memcpy(buffer->text + buffer->bytes, text, bytes);
    buffer->bytes += bytes;
    buffer->text[buffer->bytes] = '\0';
}

void buffer_printf(struct buffer *buffer, const char *format, ...)
{
    char small[512];
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int length = roped_vprint(small, sizeof small, format, arguments);
    va_end(arguments);
    if (length < 0) {
        buffer->has_failed = true;
    } else if ((size_t)length < sizeof small) {
        buffer_append(buffer, small, (size_t)length);
    } else if (reserve(buffer, (size_t)length)) {
        roped_vprint(buffer->text + buffer->bytes, (size_t)length + 1, format,
                     again);
        buffer->bytes += (size_t)length;
    }
    va_end(again);
}

void buffer_unsigned(struct buffer *buffer, uint64_t value)
{
    char digits[20];
    size_t at = sizeof digits;
    do {
        digits[--at] = (char)('0' + value % 10);
        value /= 10;
    } while (value > 0);
    buffer_append(buffer, digits + at, sizeof digits - at);
}

void buffer_dims(struct buffer *buffer, const int64_t *dims, int rank)
{
    buffer_append(buffer, "[", 1);
    for (int i = 0; i < rank; i++) {
        if (i > 0)
            buffer_append(buffer, ",", 1);
        buffer_unsigned(buffer, (uint64_t)dims[i]);
    }
    buffer_append(buffer, "]", 1);
}

/* What one character of a JSON string becomes, in escape, or NULL: itself. */
static const char *escape_of(unsigned char c, size_t sequence, char escape[8])
{
    if (sequence == 0) /* not UTF-8: a name cut short, or bytes of a path */
        return "\\ufffd";
    if (c != '"' && c != '\\' && c >= 0x20)
        return NULL;
    if (c < 0x20)
        snprintf(escape, 8, "\\u%04x", (unsigned)c);
    else
        snprintf(escape, 8, "\\%c", c);
    return escape;
}

void buffer_json_string(struct buffer *buffer, const char *text)
{
    char space[8];
    size_t left = strlen(text), plain = 0; /* bytes not appended yet */
    buffer_append(buffer, "\"", 1);
    while (left > 0) {
        const unsigned char *at = (const unsigned char *)text + plain;
        size_t sequence = utf8_sequence(at, left);
        const char *escape = escape_of(*at, sequence, space);
        size_t bytes = sequence ? sequence : 1;
        left -= bytes;
        if (!escape) {
            plain += bytes;
            continue;
        }
        buffer_append(buffer, text, plain);
        buffer_text(buffer, escape);
        text += plain + bytes;
        plain = 0;
    }
    buffer_append(buffer, text, plain);
    buffer_append(buffer, "\"", 1);
}

/* NaN and Infinity as v2 clients read them; true if value was one. */
static bool write_special(struct buffer *buffer, double value)
{
    if (isnan(value))
        buffer_text(buffer, "NaN");
    else if (isinf(value))
        buffer_text(buffer, value < 0 ? "-Infinity" : "Infinity");
    else
        return false;
    return true;
}

void buffer_double(struct buffer *buffer, double value)
{
    char text[40];
    if (write_special(buffer, value))
        return;
    for (int digits = 15; digits <= 17; digits++) {
        roped_print(text, sizeof text, "%.*g", digits, value);
        if (roped_read_number(text, NULL) == value)
            break;
    }
    buffer_text(buffer, text);
}

void buffer_float(struct buffer *buffer, float value)
{
    char text[40];
    if (write_special(buffer, (double)value))
        return;
    for (int digits = 6; digits <= 9; digits++) {
        roped_print(text, sizeof text, "%.*g", digits, (double)value);
        if ((float)roped_read_number(text, NULL) == value)
            break;
    }
    buffer_text(buffer, text);
}
