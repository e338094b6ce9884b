/*
 * attack.h - what the tests by attack share: raw connections, answers found in
 * what they brought, and figures of the daemon's process. Nothing here knows
 * more about the daemon than HTTP/1.1 and its flags.
 */
#ifndef ROPED_TESTS_ATTACK_ATTACK_H
#define ROPED_TESTS_ATTACK_ATTACK_H

#include "http/harness.h"
#include "load/load.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Sanitizers make everything slower and larger: there, bounds of time and
 * memory are printed and not checked. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { ATTACK_IS_SANITIZED = 1 };
#else
enum { ATTACK_IS_SANITIZED = 0 };
#endif

/* ------------------------------------------------------------------- bytes */

/* Bytes that grow, with a NUL behind the last; ends the test without memory. */
struct bytes {
    char *start;
    size_t n, capacity;
};
void bytes_add(struct bytes *bytes, const void *data, size_t n);
void bytes_text(struct bytes *bytes, const char *text);
void bytes_format(struct bytes *bytes, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void bytes_free(struct bytes *bytes);
bool bytes_contain(const void *data, size_t n, const char *part);

/* ---------------------------------------------------------------- requests */

/* POST /v1/rmsnorm of rows x h ones; request_free frees its body. */
struct http_request post_ones(int rows, int h);

/* The same, headers and body. */
void request_ones(struct bytes *out, int rows, int h);

/* A request without a body; headers: whole lines, or "". */
void request_plain(struct bytes *out, const char *method, const char *target,
                   const char *headers);

/* ----------------------------------------------------------------- answers */

enum found { FOUND_PART, FOUND_WHOLE, FOUND_MALFORMED };
struct found_answer {
    int code;
    const char *head; /* status line and headers, into the data */
    size_t head_bytes;
    const char *body; /* as on the wire, chunk framing included */
    size_t body_bytes;
    bool closes;      /* it says Connection: close */
    const char *flaw; /* of a malformed one, or NULL */
};

/* The answer at the start of data. is_head: it has no body, whatever it
 * announces. Bytes of a whole one: head_bytes + body_bytes. Headers that
 * libmicrohttpd sends twice with a refusal of its own count as one. */
enum found find_answer(const char *data, size_t n, bool is_head,
                       struct found_answer *out);

/* The value of a header; false where there is none. */
bool found_header(const struct found_answer *answer, const char *name,
                  char *value, size_t value_bytes);

/* ------------------------------------------------------------- connections */

/* Sends as far as the server takes it; false where it did not take all. */
bool attack_send(int fd, const void *data, size_t n);

/* What one connection brought. Interim answers (100) are not counted. */
enum { EXCHANGE_ANSWERS = 8 };
struct exchange {
    struct bytes in;
    int n_answers;
    struct found_answer answer[EXCHANGE_ANSWERS];
    bool is_closed; /* by the server, in time */
    bool is_malformed;
};

/* Reads from fd until n answers are whole, the server closes or seconds pass.
 * Free it with exchange_free; fd stays open. */
struct exchange exchange_read(int fd, int n, double seconds);

/* Over a connection of its own: sends, then reads. */
struct exchange exchange(int port, const void *data, size_t n_bytes,
                         int n_answers, double seconds);
void exchange_free(struct exchange *exchange);

/* Code of the first answer, or 0. */
int exchange_code(const struct exchange *exchange);

/* GET of a path on a connection of its own: its code, or 0 where no whole
 * answer came in seconds. */
int attack_get(int port, const char *path, double seconds);

/* ------------------------------------------------------------------ daemon */

/* Resident memory of a process in bytes, 0 where it is gone. */
size_t process_memory(pid_t pid);

/* The process has ended; it is left for server_stop to wait for. */
bool process_is_gone(pid_t pid);

/* --------------------------------------------------------------- arguments */

/* The number behind --name among the arguments, or the default. */
double argument(int argc, char **argv, const char *name, double otherwise);

/*
 * The number behind --seconds, or the default: for how long something is
 * measured. Where ROPED_TEST_QUICK is set the default is a third, since rates
 * say little under tools that instrument every memory access.
 */
double argument_seconds(int argc, char **argv, double otherwise);

#endif
