/*
 * servers.h - the servers of a run, as child processes on free ports of
 * 127.0.0.1; they die with the benchmark.
 */
#ifndef ROPED_TESTS_BENCH_HTTP_SERVERS_H
#define ROPED_TESTS_BENCH_HTTP_SERVERS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { ANY_CPU = -1 };

struct server {
    pid_t pid; /* 0: not running */
    uint16_t port;
    char files[64]; /* prefix of its files in /tmp */
};

/* The reference: this program again, as raw_server.h. Exits on failure. */
void server_raw(struct server *server, int cpu);

/* The daemon. flags ends with NULL; NULL is none. Exits on failure. */
void server_roped(struct server *server, const char *binary,
                  const char *backend, const char *const *flags, int cpu);

/* nginx with one worker, 'return 200' to everything; false: not installed.
 * folder: over TLS, with server.pem and server.key of it, and GET /files/...
 * sends what is there; NULL: plain, and nothing of the kind. */
bool server_nginx(struct server *server, const char *folder, int cpu);

void server_stop(struct server *server);

/* Resident memory of its process. */
uint64_t server_rss_bytes(const struct server *server);

/* CPU time that its process has taken, in seconds. */
double server_cpu_seconds(const struct server *server);

/* Runs the calling thread on one CPU, or on all again. */
void pin_self(int cpu);

/* CPUs for a server and for its clients, ANY_CPU where there is only one. */
void pick_cpus(int *servers, int *clients);

#endif
