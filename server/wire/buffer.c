/*
 * buffer.c - growing text, and numbers in their shortest form.
 */
#include "wire/buffer.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void buffer_init(struct buffer *buffer)
{
    memset(buffer, 0, sizeof *buffer);
}

void buffer_init_fixed(struct buffer *buffer, char *memory, size_t capacity)
{
    memset(buffer, 0, sizeof *buffer);
    buffer->text = memory;
    buffer->capacity = capacity;
    buffer->is_fixed = true;
}

void buffer_fini(struct buffer *buffer)
{
    if (!buffer->is_fixed)
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
    char *text = buffer->is_fixed ? NULL : realloc(buffer->text, capacity);
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

void buffer_text(struct buffer *buffer, const char *text)
{
    buffer_append(buffer, text, strlen(text));
}

void buffer_printf(struct buffer *buffer, const char *format, ...)
{
    char small[512];
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int length = vsnprintf(small, sizeof small, format, arguments);
    va_end(arguments);
    if (length < 0) {
        buffer->has_failed = true;
    } else if ((size_t)length < sizeof small) {
        buffer_append(buffer, small, (size_t)length);
    } else if (reserve(buffer, (size_t)length)) {
        vsnprintf(buffer->text + buffer->bytes, (size_t)length + 1, format,
                  again);
        buffer->bytes += (size_t)length;
    }
    va_end(again);
}

void buffer_json_string(struct buffer *buffer, const char *text)
{
    buffer_text(buffer, "\"");
    for (const char *at = text; *at; at++) {
        unsigned char c = (unsigned char)*at;
        if (c == '"' || c == '\\')
            buffer_printf(buffer, "\\%c", c);
        else if (c < 0x20)
            buffer_printf(buffer, "\\u%04x", c);
        else
            buffer_append(buffer, at, 1);
    }
    buffer_text(buffer, "\"");
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
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
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
        snprintf(text, sizeof text, "%.*g", digits, (double)value);
        if (strtof(text, NULL) == value)
            break;
    }
    buffer_text(buffer, text);
}
