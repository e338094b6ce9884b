/*
 * head.h - what a request says before its body, as plain data: method, path,
 * the headers that decide something, query parameters. The strings are the
 * transport's and live as long as the request.
 */
#ifndef ROPED_HTTP_HEAD_H
#define ROPED_HTTP_HEAD_H

#include <roped/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HEAD_PARAMETERS = 128, HEAD_AUTHORITY_BYTES = 264 };

enum header_name {
    HEADER_ACCEPT,
    HEADER_ACCEPT_ENCODING,
    HEADER_AUTHORIZATION,
    HEADER_CONTENT_ENCODING,
    HEADER_CONTENT_LENGTH,
    HEADER_CONTENT_TYPE,
    HEADER_EXPECT,
    HEADER_HOST,
    HEADER_IF_MATCH,
    HEADER_IF_NONE_MATCH,
    HEADER_INFERENCE_LENGTH, /* Inference-Header-Content-Length */
    HEADER_ORIGIN,
    HEADER_REQUEST_HEADERS, /* Access-Control-Request-Headers */
    HEADER_REQUEST_METHOD,  /* Access-Control-Request-Method */
    HEADER_TRACEPARENT,     /* W3C Trace Context */
    HEADER_TRANSFER_ENCODING,
    HEADER_X_REQUEST_ID,
    N_HEADERS
};

struct head_parameter {
    const char *name, *value; /* decoded; value "" where there is none */
    bool has_nul;             /* one of them holds a NUL, which cuts it short */
};

struct head {
    const char *method;
    const char *path;             /* decoded; "" is no route's */
    const char *known[N_HEADERS]; /* value of the first of each name, or NULL */
    unsigned char n_known[N_HEADERS];     /* how many; 255: or more */
    char authority[HEAD_AUTHORITY_BYTES]; /* of an absolute target */
    const char *fault; /* what is wrong with how it was written, or NULL */

    int n_parameters;
    struct head_parameter parameter[HEAD_PARAMETERS]; /* the last member */
};

/* How the body of a request is delimited. */
struct framing {
    uint64_t content_length; /* 0 where it is not known */
    bool has_length, is_chunked;
};

/* The target of the request line as it came, before the path in it is decoded;
 * and then that, with the authority of an absolute target still in it. An
 * encoded '/' or NUL hides the path: decoded it would be another. */
void head_set_target(struct head *head, const char *target);
void head_set_path(struct head *head, const char *path);

/* Adds a header or a query parameter in the order of the request. */
void head_add_header(struct head *head, const char *name, size_t name_bytes,
                     const char *value, size_t value_bytes);
void head_add_parameter(struct head *head, const char *name, size_t name_bytes,
                        const char *value, size_t value_bytes);

/* Value of a header, or NULL. */
const char *head_value(const struct head *head, enum header_name name);

/* The host that the request is for: of an absolute target, else of the Host
 * header; "" where there is neither. */
const char *head_authority(const struct head *head);

/*
 * Where does the body end? RFC 9112, sections 5 and 6: two lengths, a length
 * beside an encoding, or lines that another server may read differently are how
 * requests are smuggled. ROPED_INVALID: answer 400 and close the connection;
 * ROPED_UNSUPPORTED: 501 and close.
 */
ROPED_MUST_CHECK enum roped_status head_framing(const struct head *head,
                                                struct framing *out,
                                                struct roped_error *err);

/* Is every byte one of a set of ASCII characters, a bit for each? */
bool head_is_of(const uint64_t set[2], const char *text, size_t bytes);

/* Digits alone, up to 2^63 - 1. */
bool head_parse_length(const char *text, uint64_t *out);

#endif
