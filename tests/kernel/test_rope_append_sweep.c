/*
 * test_rope_append_sweep.c - rope_append on one backend (argument: cpu or
 * cuda) against float64: slots and pages in any order, tokens without a place,
 * every form and angle source, caches of q's type and FP8, MLA's one cache,
 * misaligned memory; what no token addresses keeps its bits, NaN payloads and
 * all. Slots that must be refused leave everything as it was.
 */
#include "check.h"
#include "kernel/append_case.h"

#include "ops/rope_append.h"

static struct runner runner;
static struct random_source source = {31};

static const enum roped_dtype types[] = {ROPED_F32, ROPED_F16, ROPED_BF16};
static const enum roped_dtype caches[] = {ROPED_NO_DTYPE, ROPED_F8_E4M3,
                                          ROPED_F8_E5M2};

static void run_case(const struct append_case *c)
{
    static struct roped_call call;
    if (!check_takes_case())
        return;
    append_case_build(&call, &source, "rope_append", c);
    append_case_run(&call, &runner, c);
}

TEST(random_cases_are_within_tolerance)
{
    for (int i = 0; i < check_cases(1500); i++) {
        struct append_case c = append_case_random(&source);
        run_case(&c);
    }
}

/* MLA of any width: one cache takes v, then k. */
TEST(random_mla_cases_are_within_tolerance)
{
    static const int64_t latent[] = {0, 1, 7, 16, 33, 64, 96, 128, 512};
    for (int i = 0; i < check_cases(500); i++) {
        struct append_case c = append_case_random(&source);
        if (c.heads.form != HEADS)
            continue;
        c.heads.hk = 0;
        c.p = random_pick(&source, latent, 9);
        c.is_hnd = false;
        run_case(&c);
    }
}

/* n, hq, hk, d, r, p: a case of a model. */
static struct append_case model_case(const int64_t *shape, int type, int gptj)
{
    struct append_case c = {
        .heads = {.hq = shape[1],
                  .hk = shape[2],
                  .d = shape[3],
                  .r = shape[4],
                  .is_gptj = gptj,
                  .rotary = {.positions = CASE_I64,
                             .angles =
                                 (type + gptj) % 2 ? CASE_TABLE : CASE_COMPUTED,
                             .dtype = types[type],
                             .n_tokens = shape[0],
                             .n_pairs = shape[4] / 2,
                             .largest_position = 131071}},
        .p = shape[5],
        .page_size = 16,
        .none_in = 9,
        .is_wide = type == 0,
        .returns_k = gptj,
        .scale_k = "0.5",
        .scale_v = "3"};
    if (shape[0] > 500 || c.heads.rotary.angles == CASE_TABLE)
        c.heads.rotary.largest_position = 8191;
    c.options.use_table = c.heads.rotary.angles == CASE_TABLE;
    return c;
}

/* Decode and prefill of models. */
TEST(model_shapes_are_within_tolerance)
{
    static const int64_t shapes[][6] = {
        {1, 32, 8, 128, 128},     {8, 32, 8, 128, 128},
        {128, 32, 8, 128, 128},   {700, 8, 2, 128, 128},
        {129, 4, 1, 64, 64},      {65, 8, 8, 256, 64},
        {33, 8, 2, 512, 512},     {17, 16, 16, 80, 80},
        {1, 128, 0, 64, 64, 512}, {40, 128, 0, 64, 64, 512},
        {700, 8, 0, 64, 64, 512}, {19, 40, 0, 32, 32, 256}};
    for (unsigned i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int t = 0; t < 3; t++)
            for (int gptj = 0; gptj < 2; gptj++)
                for (int cache = 0; cache < 3; cache++) {
                    struct append_case c = model_case(shapes[i], t, gptj);
                    c.cache = caches[cache];
                    c.places = (enum append_places)((i + (unsigned)cache) %
                                                    PLACES_KINDS);
                    c.is_hnd = (gptj + cache) % 2 && shapes[i][2];
                    run_case(&c);
                }
}

/* A call of three tokens and eight slots whose slots are these. */
static void build_slots(struct roped_call *call, const int64_t *slots)
{
    struct append_case c = {.heads = {.hq = 2,
                                      .hk = 1,
                                      .d = 8,
                                      .r = 8,
                                      .rotary = {.dtype = ROPED_F32,
                                                 .n_tokens = 3,
                                                 .n_pairs = 4,
                                                 .largest_position = 9}},
                            .page_size = 2,
                            .is_wide = true};
    append_case_build(call, &source, "rope_append", &c);
    memcpy(call->in[ROPE_APPEND_SLOTS].data, slots, 3 * sizeof *slots);
}

static void expect_refusal(const int64_t *slots, const char *why)
{
    static struct roped_call call;
    struct roped_error err = {.text = ""};
    struct runner_options options = {0};
    build_slots(&call, slots);
    CHECK_OK(roped_call_resolve(&call, &err), &err);
    CHECK_INT(runner_run(&runner, &call, &options, &err), ROPED_BAD_VALUE);
    CHECK_CONTAINS(err.text, why);
    runner_free_outputs(&call);
    case_free(&call);
}

TEST(slots_outside_the_cache_and_shared_ones_are_refused)
{
    expect_refusal((int64_t[]){0, 8, 1}, "slot 8 at index 1");
    expect_refusal((int64_t[]){0, 1, -2}, "slot -2 at index 2");
    expect_refusal((int64_t[]){INT64_MAX, 1, 2}, "at index 0");
    expect_refusal((int64_t[]){5, 1, 5},
                   "slot 5 at index 2 is that of index 0");
}

/* None of these is a twin of another. */
TEST(tokens_without_a_slot_share_nothing)
{
    static struct roped_call call;
    struct roped_error err = {.text = ""};
    struct runner_options options = {0};
    struct reference_judge judge = {0};
    build_slots(&call, (int64_t[]){-1, -1, 7});
    CHECK_OK(roped_call_resolve(&call, &err), &err);
    CHECK_OK(runner_run(&runner, &call, &options, &err), &err);
    reference_judge(&call, &judge);
    CHECK_INT(judge.n_wrong, 0);
    runner_free_outputs(&call);
    case_free(&call);
}

/* In-process, with index tensors on the device: nothing is checked, and the
 * launch finds the places itself. */
TEST(places_on_the_device_are_found_there)
{
    static struct roped_call call;
    for (int i = 0; i < 16 * PLACES_KINDS; i++) {
        struct append_case c = {.heads = {.hq = 4,
                                          .hk = 2,
                                          .d = 64,
                                          .r = 64,
                                          .rotary = {.positions = CASE_I32,
                                                     .dtype = ROPED_BF16,
                                                     .n_tokens = 50,
                                                     .n_pairs = 32,
                                                     .largest_position = 99}},
                                .places = (enum append_places)(i / 16),
                                .page_size = i / 8 % 2 ? 4 : 5,
                                .none_in = 5,
                                .is_wide = i % 2,
                                .is_hnd = i / 2 % 2,
                                .cache =
                                    i / 4 % 2 ? ROPED_F8_E4M3 : ROPED_NO_DTYPE};
        append_case_build(&call, &source, "rope_append", &c);
        call.host_values = false;
        call.largest_position = 99;
        append_case_run(&call, &runner, &c);
    }
}

int main(int argc, char **argv)
{
    if (!runner_open(&runner, argc > 1 ? argv[1] : "cpu"))
        return CHECK_SKIP;
    check_run();
    runner_close(&runner);
    return check_done();
}
