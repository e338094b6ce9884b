/*
 * section_programs.c - programs beside the separate calls that they stand for:
 * on one connection, and the steps a second of many. What the steps work on
 * stays on the server; positions and slots are in the bodies.
 */
#include "bench/http/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROWS = 8, LAYERS = 32, ROTATED = 64, ROTATED_TOKENS = 64 };
enum { GOAL_CORES = 16 /* that the goals of rates are for */ };
enum { LAYER_STEPS = 3, DECODE_STEPS = LAYER_STEPS * LAYERS };

/* ------------------------------------------------------------------- setup */

/* A document of the folder programs, under its name. */
static void put_program(const struct server *roped, const char *name)
{
    char path[512], document[4096];
    snprintf(path, sizeof path, ROPED_BENCH_PROGRAMS "/%s.json", name);
    FILE *file = fopen(path, "r");
    if (!file) {
        perror(path);
        exit(EXIT_FAILURE);
    }
    size_t bytes = fread(document, 1, sizeof document - 1, file);
    fclose(file);
    document[bytes] = '\0';
    snprintf(path, sizeof path, "/v1/programs/%s", name);
    bench_must(roped, "PUT", path, document, NULL, 0);
}

/* Of a name, and how many of them: 0: one, without a number. */
static const struct regions {
    const char *name;
    int n;
    struct roped_tensor tensor;
} all_regions[] = {
    {"row", ROWS + 1, {.dtype = ROPED_BF16, .rank = 2, .dims = {1, 4096}}},
    {"x", 0, {.dtype = ROPED_BF16, .rank = 2, .dims = {1, 4096}}},
    {"hidden", 0, {.dtype = ROPED_BF16, .rank = 2, .dims = {1, 4096}}},
    {"norm", 0, {.dtype = ROPED_BF16, .rank = 1, .dims = {4096}}},
    {"qkv", 0, {.dtype = ROPED_BF16, .rank = 2, .dims = {1, 6144}}},
    {"q", 0, {.dtype = ROPED_BF16, .rank = 3, .dims = {1, 32, 128}}},
    {"codes", 0, {.dtype = ROPED_F8_E4M3, .rank = 2, .dims = {1, 4096}}},
    {"scales", 0, {.dtype = ROPED_F32, .rank = 2, .dims = {1, 1}}},
    {"keys", LAYERS, {.dtype = ROPED_BF16, .rank = 3, .dims = {128, 8, 128}}},
    {"values", LAYERS, {.dtype = ROPED_BF16, .rank = 3, .dims = {128, 8, 128}}},
    {"cached", ROTATED, {.dtype = ROPED_BF16, .rank = 3, .dims = {64, 8, 128}}},
};

/* Not of zeros: the squares of such rows are summed twice. */
static void put_regions(const struct server *roped, const struct regions *all)
{
    char name[64];
    for (int i = 0; i == 0 || i < all->n; i++) {
        snprintf(name, sizeof name, all->n > 0 ? "%s%d" : "%s", all->name, i);
        struct http_request request = call_put_region(name, &all->tensor);
        bench_must_ask(roped, &request, NULL, 0);
        request_free(&request);
    }
}

static void prepare(const struct server *roped)
{
    static const char *const names[] = {"one", "eight", "layer", "decode",
                                        "rotate"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        put_program(roped, names[i]);
    for (size_t i = 0; i < sizeof all_regions / sizeof *all_regions; i++)
        put_regions(roped, &all_regions[i]);
}

/* ---------------------------------------------------------------- requests */

static struct http_request run_of(const char *name, int n_tokens,
                                  bool has_slots)
{
    char path[128];
    snprintf(path, sizeof path, "/v1/programs/%s", name);
    return n_tokens > 0 ? call_indexes(path, (size_t)n_tokens, has_slots)
                        : request_make("POST", path, "", NULL, 0);
}

static struct http_request norm_call(void)
{
    return request_make("POST", "/v1/rmsnorm?from.x=row0&into.y=row1", "", NULL,
                        0);
}

/* The three calls that are a layer. */
static struct http_request layer_call(int step)
{
    if (step == 0)
        return request_make("POST",
                            "/v1/add_rmsnorm?from.x=x&from.residual=hidden&"
                            "from.weight=norm&into.y=x&into.residual=hidden",
                            "", NULL, 0);
    if (step == 1)
        return call_indexes(
            "/v1/qk_rmsnorm_rope_append?from.q=qkv&shape.q=1,32,128&"
            "stride.q=6144&from.k=qkv:8192&shape.k=1,8,128&dtype.k=BF16&"
            "stride.k=6144&from.v=qkv:10240&shape.v=1,8,128&dtype.v=BF16&"
            "stride.v=6144&from.k_cache=keys0&from.v_cache=values0&"
            "into.k_cache=keys0&into.v_cache=values0&into.q=q",
            1, true);
    return request_make(
        "POST",
        "/v1/add_rmsnorm_quantize?dynamic=true&from.x=q&shape.x=1,4096&"
        "from.residual=hidden&from.weight=norm&into.y=codes&"
        "into.residual=hidden&into.scales=scales",
        "", NULL, 0);
}

/* ---------------------------------------------------------- one connection */

enum {
    LIVE,
    NORM,
    ONE,
    EIGHT,
    STEP_0,
    STEP_1,
    STEP_2,
    LAYER,
    DECODE,
    ROPE,
    ROTATE,
    N_SIDES
};

/* Goals are those of a GPU: the CPU backend has no graphs. */
static void judge(struct row *row, struct contender *side, int i, bool is_gpu)
{
    double us = duel_median_us(&side[i]), norm = duel_median_us(&side[NORM]);
    double layer = duel_median_us(&side[STEP_0]) +
                   duel_median_us(&side[STEP_1]) +
                   duel_median_us(&side[STEP_2]);
    row->is_ceiling = true;
    if (i == ONE) {
        row->unit = "x the call";
        row->value = us / norm;
        row->must = 1.05;
    } else if (i == EIGHT) {
        row->unit = "us above GET";
        row->value = us - duel_median_us(&side[LIVE]);
        row->must = is_gpu ? 25 : 0;
        row->stretch = is_gpu ? 20 : 0;
        snprintf(row->note, sizeof row->note, "%.2f of 8 calls",
                 us / (ROWS * norm));
    } else if (i == LAYER || i == DECODE) {
        int n = i == DECODE ? LAYERS : 1;
        row->unit = "us a layer";
        row->value = us / n;
        row->must = is_gpu && i == DECODE ? 4 : 0;
        snprintf(row->note, sizeof row->note, "%.2f of %d calls",
                 us / (n * layer), n * LAYER_STEPS);
    } else if (i == ROTATE) {
        row->unit = "of 64 calls";
        row->value = us / (ROTATED * duel_median_us(&side[ROPE]));
        row->must = is_gpu ? 0.06 : 0;
    }
}

static void measure_latency(struct bench *bench, const struct server *roped)
{
    static const char *const names[N_SIDES] = {
        "GET /v2/health/live",        "call: rmsnorm",
        "program one: rmsnorm",       "program eight: 8 rmsnorm",
        "call: add_rmsnorm",          "call: qk_rmsnorm_rope_append",
        "call: add_rmsnorm_quantize", "program layer: these three",
        "program decode: 32 layers",  "call: rope of 64 tokens",
        "program rotate: 64 rope"};
    struct contender side[N_SIDES] = {
        {.request = call_live(0)},
        {.request = norm_call()},
        {.request = run_of("one", 0, false)},
        {.request = run_of("eight", 0, false)},
        {.request = layer_call(0)},
        {.request = layer_call(1)},
        {.request = layer_call(2)},
        {.request = run_of("layer", 1, true)},
        {.request = run_of("decode", 1, true)},
        {.request =
             call_rope_in(ROTATED_TOKENS, "from.q=cached0&into.q=cached0")},
        {.request = run_of("rotate", ROTATED_TOKENS, false)}};
    for (int i = 0; i < N_SIDES; i++)
        side[i].server = roped;
    duel_latency(side, N_SIDES, &bench->plan);
    for (int i = 0; i < N_SIDES; i++) {
        struct row row = {.unit = NULL};
        snprintf(row.name, sizeof row.name, "%s, c=1", names[i]);
        judge(&row, side, i, strcmp(bench->backend, "cuda") == 0);
        bench_report(bench, &row, &side[i]);
    }
    duel_free(side, N_SIDES);
}

/* -------------------------------------------------------- many connections */

/* Steps a second. Runs write to the same regions at once: what is there
 * afterwards nobody asks. */
static void measure_rate(struct bench *bench, const struct server *roped, int c)
{
    enum { CALLS, PROGRAM, LAYERED, N };
    static const int n_steps[N] = {1, ROWS, DECODE_STEPS};
    static const char *const names[N] = {"call: rmsnorm",
                                         "program eight: 8 rmsnorm",
                                         "program decode: 32 layers"};
    bool is_gpu = strcmp(bench->backend, "cuda") == 0;
    bool has_cores = sysconf(_SC_NPROCESSORS_ONLN) >= GOAL_CORES;
    struct contender side[N] = {{.request = norm_call()},
                                {.request = run_of("eight", 0, false)},
                                {.request = run_of("decode", 1, true)}};
    for (int i = 0; i < N; i++)
        side[i].server = roped;
    duel_rate(side, N, &bench->plan, c);
    for (int i = 0; i < N; i++) {
        struct row row = {.unit = "steps/s"};
        snprintf(row.name, sizeof row.name, "%s, c=%d", names[i], c);
        row.value = duel_rate_of(&side[i]) * n_steps[i];
        if (i == PROGRAM && c == 64)
            row.must = !has_cores ? 0 : is_gpu ? 1.4e6 : 2.5e6;
        if (i != CALLS && duel_rate_of(&side[CALLS]) > 0)
            snprintf(row.note, sizeof row.note, "%.1f x separate rmsnorm",
                     row.value / duel_rate_of(&side[CALLS]));
        bench_report(bench, &row, &side[i]);
    }
    duel_free(side, N);
}

/* -------------------------------------------------------------- recordings */

/* The sum over devices of one of their counters. */
static double count_of(const char *page, const char *name)
{
    double sum = 0;
    size_t length = strlen(name);
    for (const char *at = strstr(page, name); at; at = strstr(at + 1, name)) {
        const char *value = strchr(at, ' ');
        bool is_sample = (at == page || at[-1] == '\n') && at[length] == '{';
        sum += is_sample && value ? strtod(value, NULL) : 0;
    }
    return sum;
}

/* How many of all runs above a lane launched step by step though it had
 * recorded their program. A backend without graphs has counted nothing. */
static void report_fallbacks(struct bench *bench, const struct server *roped)
{
    static char page[1 << 20];
    struct row row = {.unit = "% of runs", .is_ceiling = true, .must = 1};
    bench_must(roped, "GET", "/metrics", NULL, page, sizeof page - 1);
    double captures = count_of(page, "roped_program_captures_total");
    double replays = count_of(page, "roped_program_replays_total");
    double fallbacks = count_of(page, "roped_program_fallbacks_total");
    double all = captures + replays + fallbacks;
    if (all == 0)
        return;
    row.value = 100 * fallbacks / all;
    snprintf(row.name, sizeof row.name, "fallbacks");
    snprintf(row.note, sizeof row.note,
             "%.0f, beside %.0f captures and %.0f replays", fallbacks, captures,
             replays);
    report_row(&bench->report, &row);
}

void section_programs(struct bench *bench)
{
    static const int connections[] = {1, 4, 16, 64};
    struct server roped;
    report_title(&bench->report, "Programs beside separate calls");
    server_roped(&roped, bench->binary, bench->backend, NULL, ANY_CPU);
    prepare(&roped);
    measure_latency(bench, &roped);
    for (size_t i = 0; i < sizeof connections / sizeof *connections; i++)
        measure_rate(bench, &roped, connections[i]);
    report_fallbacks(bench, &roped);
    server_stop(&roped);
}
