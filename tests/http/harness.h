/*
 * harness.h - a real daemon under test: started on a free port, asked over
 * HTTP, stopped by SIGTERM; its exit code and its log are checked.
 *
 * Environment: ROPED_TEST_BIN, the daemon to run (default: the one built
 * beside the tests); ROPED_TEST_BACKEND, cpu (default) or cuda;
 * ROPED_TEST_DEVICES, as --devices (default: 0), where a test does not say;
 * ROPED_TEST_GOLDEN, the folder of golden files; ROPED_TEST_TLS, where it is
 * set every daemon has TLS.
 */
#ifndef ROPED_TESTS_HTTP_HARNESS_H
#define ROPED_TESTS_HTTP_HARNESS_H

#include <roped/tensor.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct certificates;

struct server {
    pid_t pid;
    int port;
    char url[64];
    char log[64];                   /* path of its standard error */
    const struct certificates *tls; /* NULL: plain HTTP */
    const char *client;             /* whose certificate asks, or NULL */
};

/*
 * Starts the daemon with extra flags (NULL-terminated). Exits the test with
 * 77 and a line where the asked-for backend has no device.
 */
void server_start(struct server *server, const char *const *flags);

/* The same over TLS, with the pair 'server' of these. */
void server_start_tls(struct server *server,
                      const struct certificates *certificates,
                      const char *const *flags);

/* The same, where it may end in its start: false, with that status. */
bool server_try_start(struct server *server, const char *const *flags,
                      int *status);

/* ROPED_TEST_DEVICES, or else "0"; and how many of them there are. */
const char *server_devices(void);
int server_n_devices(void);

/* Does its log have a line with this in it? */
bool server_log_says(const struct server *server, const char *part);

/* The port of the socket whose line of the log has this in it, as "admin=true";
 * 0: there is none. */
int server_port_of(const struct server *server, const char *part);

/* SIGTERM, then true where it ended with 0 and no sanitizer spoke up. */
bool server_stop(struct server *server);

/* Is it still there and does it answer its health? */
bool server_is_alive(const struct server *server);

/* An answer; body is NUL-terminated, free with answer_free. */
enum { ANSWER_BROKEN_OFF = -1 };
struct answer {
    int code; /* 0: no answer; ANSWER_BROKEN_OFF: less than announced */
    char *body;
    size_t bytes;
    char *headers; /* as received, lower-case names not guaranteed */
};
void answer_free(struct answer *answer);

/* The code of a refusal ("no_region"), where it is one of ROPED_STATUS_MAP and
 * of the answer's HTTP status; else "". ask() checks that each refusal has one.
 */
const char *answer_code(const struct answer *answer);

/* Value of a header of the answer, or NULL; valid until the next call. */
const char *answer_header(const struct answer *answer, const char *name);

/* One request; body NULL: none. headers: "Name: value" strings, NULL-ended,
 * or NULL. Uses one keep-alive connection per thread. */
struct answer ask(const struct server *server, const char *method,
                  const char *path, const void *body, size_t bytes,
                  const char *const *headers);

/* A new connection over which bytes were sent as they are, as far as the
 * server takes them; close it. */
int open_raw(const struct server *server, const void *bytes, size_t n_bytes);

/* Sends bytes as they are over a new connection and reads what comes back
 * until it closes or timeout_seconds pass. */
struct answer ask_raw(const struct server *server, const void *bytes,
                      size_t n_bytes, double timeout_seconds);

/* What a shell command writes, and its exit code; -1: it has none. */
int run_command(const char *command, char *output, size_t size);

/* A safetensors file under construction or read. */
enum { FILE_TENSORS = 24 };
struct tensor_file {
    int n;
    char name[FILE_TENSORS][64];
    struct roped_tensor tensor[FILE_TENSORS];
    unsigned char *memory; /* behind tensors of a file that was read */
};

/* The bytes of a file of these tensors; free them. */
unsigned char *file_write(const struct tensor_file *file, size_t *bytes);
/* Sends them. */
struct answer ask_file(const struct server *server, const char *method,
                       const char *path, const struct tensor_file *file);
void file_add(struct tensor_file *file, const char *name,
              enum roped_dtype dtype, int rank, const int64_t *dims,
              void *data);

/* Reads safetensors bytes (copied); false if they are none. metadata gets
 * name and value of each entry, or is NULL. */
bool file_read(struct tensor_file *file, const void *bytes, size_t n_bytes,
               void (*metadata)(void *context, const char *name,
                                const char *value),
               void *context);
void file_free(struct tensor_file *file);
const struct roped_tensor *file_find(const struct tensor_file *file,
                                     const char *name);

#endif
