/*
 * section_versions.c - the daemon beside another build of it (--before), both
 * as they are by default: times at one connection, rates at many. 1.02 is 2 %
 * slower than before.
 */
#include "bench/http/bench.h"

#include <stdio.h>

static const struct {
    const char *name;
    struct http_request (*make)(size_t size);
    size_t size; /* bytes, or tokens */
    int c;
} kinds[] = {{"GET /v2/health/live", call_live, 0, 1},
             {"echo 1 KiB", call_echo, KIB, 1},
             {"echo 64 KiB", call_echo, 64 * KIB, 1},
             {"echo 1 MiB", call_echo, MIB, 1},
             {"echo 16 MiB", call_echo, 16 * MIB, 1},
             {"echo 64 MiB", call_echo, 64 * MIB, 1},
             {"echo 256 MiB", call_echo, 256 * MIB, 1},
             {"rmsnorm 1 KiB", call_rmsnorm, KIB, 1},
             {"rmsnorm 1 MiB", call_rmsnorm, MIB, 1},
             {"rope 4 tokens", call_rope, 4, 1},
             {"rope 64 MiB", call_rope, 64 * MIB / CALL_ROPE_TOKEN_BYTES, 1},
             {"echo 1 KiB", call_echo, KIB, 64},
             {"echo 64 KiB", call_echo, 64 * KIB, 64},
             {"echo 1 MiB", call_echo, MIB, 64},
             {"rmsnorm 1 KiB", call_rmsnorm, KIB, 64},
             {"rmsnorm 1 MiB", call_rmsnorm, MIB, 64},
             {"rope 4 tokens", call_rope, 4, 8},
             {"rope 4 tokens", call_rope, 4, 64}};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

/* How many times as long as before, and by how many calls. */
static double judge(struct contender side[2], int c)
{
    double now = c > 1 ? duel_rate_of(&side[0]) : duel_median_us(&side[0]);
    double before = c > 1 ? duel_rate_of(&side[1]) : duel_median_us(&side[1]);
    if (now <= 0 || before <= 0)
        return 0;
    return c > 1 ? before / now : now / before;
}

static void compare(struct bench *bench, const struct server server[2],
                    int kind)
{
    int c = kinds[kind].c;
    struct row row = {.unit = "x before", .is_ceiling = true, .must = 1.02};
    struct contender side[2];
    struct http_request request = kinds[kind].make(kinds[kind].size);
    bool has_room = bench_has_room(bench, request.body_bytes, 3 * c + 3);
    request_free(&request);
    if (!has_room)
        return;
    for (int i = 0; i < 2; i++)
        side[i] =
            (struct contender){.server = &server[i],
                               .request = kinds[kind].make(kinds[kind].size)};
    if (c > 1)
        duel_rate(side, 2, &bench->plan, c);
    else
        duel_latency(side, 2, &bench->plan);
    row.value = judge(side, c);
    snprintf(row.name, sizeof row.name, "%s, c=%d", kinds[kind].name, c);
    bench_report(bench, &row, &side[0]);
    duel_free(side, 2);
}

void section_versions(struct bench *bench)
{
    struct server server[2];
    if (!bench->before)
        return;
    server_roped(&server[0], bench->binary, bench->backend, bench_flags,
                 ANY_CPU);
    server_roped(&server[1], bench->before, bench->backend, bench_flags,
                 ANY_CPU);
    report_title(&bench->report, "Calls beside those of another build");
    for (int i = 0; i < N_KINDS; i++)
        compare(bench, server, i);
    server_stop(&server[1]);
    server_stop(&server[0]);
}
