/*
 * bench.h - one run of bench_http: its options, its sections.
 */
#ifndef ROPED_TESTS_BENCH_HTTP_BENCH_H
#define ROPED_TESTS_BENCH_HTTP_BENCH_H

#include "bench/http/calls.h"
#include "bench/http/duel.h"
#include "bench/http/report.h"
#include "bench/http/servers.h"

enum { KIB = 1 << 10, MIB = 1 << 20 };

struct bench {
    const char *binary, *backend;
    const char *before;  /* another daemon to compare with, or NULL */
    const char *devices; /* several, of section_scale, or NULL */
    bool is_quick, is_strict;
    uint64_t most_bytes; /* larger bodies are left out */
    struct duel_plan plan;
    struct report report;
    int n_failed; /* exchanges that were not answered with 200 */
};

/* Bodies that go through the echo and through operators, and at how many
 * connections; and the settings of a daemon that takes them. */
struct body_load {
    size_t bytes;
    int c;
};
enum { N_BODY_LOADS = 14 };
extern const struct body_load bench_loads[N_BODY_LOADS];
extern const char *const bench_flags[];

/* Bodies of 1 KiB to 1 GiB through the echo and through operators. */
void section_echo(struct bench *bench);
void section_calls(struct bench *bench);

/* 4 tokens and 64 MiB in memory that stays on the server or is shared. */
void section_regions(struct bench *bench);

/* 1 KiB at c = 1, 8 and 64, server and clients on a CPU each. */
void section_small(struct bench *bench);

/* The same over TLS, and 64 MiB each way, beside nginx with TLS. */
void section_tls(struct bench *bench);

/* Small calls over a Unix socket beside loopback. */
void section_unix(struct bench *bench);

/* A small call beside the same behind HAProxy and behind nginx. */
void section_proxy(struct bench *bench);

/* CPU time of small requests, beside another daemon's or the raw server's. */
void section_cost(struct bench *bench);

/* Rates of small calls and of 1 MiB as HTTP threads grow. */
void section_cores(struct bench *bench);

/* Idle and dripping clients, big bodies beside small ones, refusals. */
void section_crowd(struct bench *bench);

/* 64 MiB that are uploaded while they arrive, beside a daemon that waits. */
void section_stage(struct bench *bench);

/* Calls on several devices (--devices), beside a daemon with one of them. */
void section_scale(struct bench *bench);

/* Programs beside the separate calls that they stand for. */
void section_programs(struct bench *bench);

/* All kinds of calls beside another build of the daemon (--before). */
void section_versions(struct bench *bench);

/* Is there memory for bodies of this size, and are they wanted? Says why not
 * on a line. copies: of a body, in all processes together. */
bool bench_has_room(const struct bench *bench, uint64_t bytes, int copies);

/* "64 MiB" */
const char *bench_size_text(uint64_t bytes, char text[32]);

/* One request to set something up; the run ends where it is refused. Its answer
 * is put into the room (NULL: none). */
void bench_must_ask(const struct server *server,
                    const struct http_request *request, char *into,
                    size_t room);
void bench_must(const struct server *server, const char *method,
                const char *path, const char *body, char *into, size_t room);

/* Fills in times, rate, phases and what went wrong of a contender at c = 1 or
 * under load, and reports the row. Bytes are those of its request, twice. */
void bench_report(struct bench *bench, struct row *row,
                  struct contender *contender);

#endif
