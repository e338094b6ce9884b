/*
 * test_rope_append_sweep.c - rope_append on one backend (argument: cpu or
 * cuda) against float64: slots in any order, tokens without a slot, every form
 * and angle source, misaligned memory; what no token addresses keeps its bits,
 * NaN payloads and all. Slots that must be refused leave everything as it was.
 */
#include "check.h"
#include "kernel/heads_case.h"
#include "kernel/reference.h"
#include "kernel/runner.h"

#include "ops/rope_append.h"

static struct runner runner;
static struct random_source source = {31};

static const enum roped_dtype types[] = {ROPED_F32, ROPED_F16, ROPED_BF16};

struct append_case {
    struct heads_case heads;
    int64_t n_slots; /* at least the tokens */
    int none_in;     /* one token in this many has no slot; 0: all have */
    bool is_wide, returns_k;
    struct runner_options options;
};

/* A cache of any bits: NaN, infinities and subnormals among them. */
static void bind_cache(struct roped_call *call, const struct append_case *c,
                       const char *name)
{
    int64_t dims[3] = {c->n_slots, c->heads.hk, c->heads.d};
    struct roped_tensor cache =
        case_tensor(&source, c->heads.rotary.dtype, 3, dims, 1);
    unsigned char *bytes = cache.data;
    for (int64_t i = 0; i < roped_tensor_bytes(&cache); i++)
        bytes[i] = (unsigned char)random_bits(&source);
    case_bind(call, name, &cache);
}

/* Distinct slots in random order: the front of a shuffle. */
static void bind_slots(struct roped_call *call, const struct append_case *c)
{
    int64_t n = c->heads.rotary.n_tokens;
    int64_t *shuffled = runner_alloc((size_t)c->n_slots * sizeof *shuffled);
    struct roped_tensor slots =
        case_tensor(&source, c->is_wide ? ROPED_I64 : ROPED_I32, 1, &n, 0);
    for (int64_t i = 0; i < c->n_slots; i++) {
        int64_t j = random_int(&source, 0, i);
        shuffled[i] = shuffled[j];
        shuffled[j] = i;
    }
    for (int64_t i = 0; i < n; i++) {
        bool has_none = c->none_in && random_once_in(&source, c->none_in);
        int64_t slot = has_none ? -1 : shuffled[i];
        case_set_int(&slots, i, slot);
    }
    free(shuffled);
    case_bind(call, "slots", &slots);
}

static void build_call(struct roped_call *call, const struct append_case *c)
{
    heads_case_build(call, &source, "rope_append", &c->heads);
    heads_case_bind(call, &source, &c->heads, "v", c->heads.hk);
    bind_cache(call, c, "k_cache");
    bind_cache(call, c, "v_cache");
    bind_slots(call, c);
    if (c->returns_k)
        case_param(call, "return_k", "true");
}

static void run_case(const struct append_case *c)
{
    static struct roped_call call;
    struct roped_error err = {.text = ""};
    struct reference_judge judge = {0};
    char text[320];
    build_call(&call, c);
    enum roped_status status = roped_call_resolve(&call, &err);
    if (!status)
        status = runner_run(&runner, &call, &c->options, &err);
    if (!status)
        reference_judge(&call, &judge);
    if (!status &&
        roped_tensor_given(&call.out[ROPE_APPEND_K_OUT]) != c->returns_k)
        CHECK_FAIL("k was%s returned", c->returns_k ? " not" : "");
    if (status || judge.n_wrong)
        CHECK_FAIL("%s slots %lld none in %d wide %d returns k %d misaligned "
                   "%d in place %d apart %d: %s; %lld of %lld wrong: %s",
                   heads_case_text(&c->heads, text, sizeof text),
                   (long long)c->n_slots, c->none_in, c->is_wide, c->returns_k,
                   c->options.misalign_elements, c->options.in_place,
                   c->options.updates_apart, err.text, (long long)judge.n_wrong,
                   (long long)judge.n_checked, judge.first);
    runner_free_outputs(&call);
    case_free(&call);
}

TEST(random_cases_are_within_tolerance)
{
    for (int i = 0; i < check_cases(1000); i++) {
        struct append_case c = {.heads = heads_case_random(&source, 1),
                                .none_in = (int)random_int(&source, 0, 3),
                                .is_wide = random_once_in(&source, 2),
                                .returns_k = random_once_in(&source, 3)};
        c.n_slots = c.heads.rotary.n_tokens + random_int(&source, 0, 9);
        c.options.use_table = c.heads.rotary.angles == CASE_TABLE;
        c.options.in_place = random_once_in(&source, 3);
        c.options.updates_apart = random_once_in(&source, 4);
        c.options.misalign_elements = random_once_in(&source, 4) ? 1 : 0;
        run_case(&c);
    }
}

/* Decode and prefill of models: n, hq, hk, d, r. */
TEST(model_shapes_are_within_tolerance)
{
    static const int64_t shapes[][5] = {
        {1, 32, 8, 128, 128},  {8, 32, 8, 128, 128}, {128, 32, 8, 128, 128},
        {700, 8, 2, 128, 128}, {129, 4, 1, 64, 64},  {65, 8, 8, 256, 64},
        {33, 8, 2, 512, 512},  {17, 16, 16, 80, 80}};
    for (unsigned i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int t = 0; t < 3; t++)
            for (int gptj = 0; gptj < 2; gptj++) {
                struct append_case c = {
                    .heads = {.hq = shapes[i][1],
                              .hk = shapes[i][2],
                              .d = shapes[i][3],
                              .r = shapes[i][4],
                              .is_gptj = gptj,
                              .rotary = {.positions = CASE_I64,
                                         .angles = (t + gptj) % 2
                                                       ? CASE_TABLE
                                                       : CASE_COMPUTED,
                                         .dtype = types[t],
                                         .n_tokens = shapes[i][0],
                                         .n_pairs = shapes[i][4] / 2,
                                         .largest_position = 131071}},
                    .n_slots = shapes[i][0] * 2,
                    .none_in = 9,
                    .is_wide = t == 0,
                    .returns_k = gptj};
                if (shapes[i][0] > 500 || c.heads.rotary.angles == CASE_TABLE)
                    c.heads.rotary.largest_position = 8191;
                c.options.use_table = c.heads.rotary.angles == CASE_TABLE;
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
                            .n_slots = 8,
                            .is_wide = true};
    build_call(call, &c);
    memcpy(call->in[ROPE_APPEND_SLOTS].data, slots, 3 * sizeof *slots);
}

static void expect_refusal(const int64_t *slots, const char *why)
{
    static struct roped_call call;
    struct roped_error err = {.text = ""};
    struct runner_options options = {0};
    build_slots(&call, slots);
    CHECK_OK(roped_call_resolve(&call, &err), &err);
    CHECK_INT(runner_run(&runner, &call, &options, &err), ROPED_INVALID);
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
 * launch finds the slots itself. */
TEST(slots_on_the_device_are_found_there)
{
    static struct roped_call call;
    for (int wide = 0; wide < 2; wide++) {
        struct roped_error err = {.text = ""};
        struct runner_options options = {0};
        struct reference_judge judge = {0};
        struct append_case c = {.heads = {.hq = 4,
                                          .hk = 2,
                                          .d = 64,
                                          .r = 64,
                                          .rotary = {.positions = CASE_I32,
                                                     .dtype = ROPED_BF16,
                                                     .n_tokens = 50,
                                                     .n_pairs = 32,
                                                     .largest_position = 99}},
                                .n_slots = 90,
                                .none_in = 5,
                                .is_wide = wide};
        build_call(&call, &c);
        call.host_values = false;
        call.largest_position = 99;
        CHECK_OK(roped_call_resolve(&call, &err), &err);
        CHECK_OK(runner_run(&runner, &call, &options, &err), &err);
        reference_judge(&call, &judge);
        CHECK_INT(judge.n_wrong, 0);
        runner_free_outputs(&call);
        case_free(&call);
    }
}

int main(int argc, char **argv)
{
    if (!runner_open(&runner, argc > 1 ? argv[1] : "cpu"))
        return CHECK_SKIP;
    RUN(random_cases_are_within_tolerance);
    RUN(model_shapes_are_within_tolerance);
    RUN(slots_outside_the_cache_and_shared_ones_are_refused);
    RUN(tokens_without_a_slot_share_nothing);
    RUN(slots_on_the_device_are_found_there);
    runner_close(&runner);
    return check_done();
}
