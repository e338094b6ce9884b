/*
 * buffer.h - a growing text buffer for what the server writes: JSON,
 * exposition text. Growth failure sticks: check once, at the end.
 */
#ifndef ROPED_WIRE_BUFFER_H
#define ROPED_WIRE_BUFFER_H

#include <roped/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct buffer;

/* Memory for capacity bytes with the buffer's text in it; NULL: there is none,
 * and the text stays where it is. */
typedef char *buffer_grow_fn(struct buffer *buffer, size_t capacity);

struct buffer {
    char *text; /* NUL-terminated; NULL when empty */
    size_t bytes;
    size_t capacity;
    buffer_grow_fn *grow; /* NULL: it does not grow */
    void *context;        /* grow's */
    bool has_failed;      /* an append did not fit or could not be allocated */
};

/* Empty heap buffer, which buffer_fini frees; empty buffer over memory of the
 * caller; the same, which grows into other memory of the caller. */
void buffer_init(struct buffer *buffer);
void buffer_init_fixed(struct buffer *buffer, char *memory, size_t capacity);
void buffer_init_grow(struct buffer *buffer, char *memory, size_t capacity,
                      buffer_grow_fn *grow, void *context);
void buffer_fini(struct buffer *buffer);

void buffer_append(struct buffer *buffer, const char *text, size_t bytes);

static inline void buffer_text(struct buffer *buffer, const char *text)
{
    buffer_append(buffer, text, strlen(text)); /* of a constant, mostly */
}

void buffer_printf(struct buffer *buffer, const char *format, ...)
    ROPED_PRINTF(2, 3);

/* Digits; on the way of every answer, where printf takes too long. */
void buffer_unsigned(struct buffer *buffer, uint64_t value);

/* A list of dims: "[7,32,128]". */
void buffer_dims(struct buffer *buffer, const int64_t *dims, int rank);

/* A JSON string with quotes and escapes; what is not UTF-8 becomes U+FFFD. */
void buffer_json_string(struct buffer *buffer, const char *text);

/* The shortest decimal that reads back as the same double / float;
 * NaN, Infinity and -Infinity as bare tokens. */
void buffer_double(struct buffer *buffer, double value);
void buffer_float(struct buffer *buffer, float value);

#endif
