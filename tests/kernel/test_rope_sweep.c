/*
 * test_rope_sweep.c - the operators that rotate heads of q and k, on one
 * backend (argument: cpu or cuda) against float64: random shapes over every
 * type, style, form, position mode and angle source, with odd widths, no
 * tokens, misaligned memory, outputs in place; norms with every type of weight
 * and squares beyond float32; caches of either type at slots and pages, where
 * what no token addresses keeps its bits, NaN payloads and all; and accuracy at
 * a million positions. Slots that must be refused leave everything as it was.
 */
#include "check.h"
#include "kernel/append_case.h"

#include "ops/rope_append.h"

#include <math.h>

static struct runner runner;
static struct random_source source = {11};

static const enum roped_dtype types[] = {ROPED_F32, ROPED_F16, ROPED_BF16};
static const enum roped_dtype caches[] = {ROPED_NO_DTYPE, ROPED_F8_E4M3,
                                          ROPED_F8_E5M2};

/* Those that append come last, those that normalise second in each half. */
static const char *const ops[] = {"rope", "qk_rmsnorm_rope", "rope_append",
                                  "qk_rmsnorm_rope_append"};
enum { ROPE, NORM, APPEND, NORM_APPEND, OPS };

static void run_case(const char *op, const struct append_case *c)
{
    static struct roped_call call;
    if (!check_takes_case())
        return;
    append_case_build(&call, &source, op, c);
    append_case_run(&call, &runner, c);
}

TEST(random_cases_are_within_tolerance)
{
    for (int op = 0; op < OPS; op++)
        for (int i = 0; i < check_cases(1500); i++) {
            struct append_case c = append_case_random(&source, ops[op]);
            run_case(ops[op], &c);
        }
}

/* MLA of any width: one cache takes v, then k. */
TEST(random_mla_cases_are_within_tolerance)
{
    static const int64_t latent[] = {0, 1, 7, 16, 33, 64, 96, 128, 512};
    for (int i = 0; i < check_cases(500); i++) {
        struct append_case c = append_case_random(&source, "rope_append");
        if (c.heads.form != HEADS)
            continue;
        c.heads.hk = 0;
        c.p = random_pick(&source, latent, 9);
        c.is_hnd = false;
        run_case("rope_append", &c);
    }
}

/* ------------------------------------------------------------------ shapes */

/* Heads of q and k of this many tokens, with a norm and caches for operators
 * that have them. */
struct shape {
    int64_t n, hq, hk, d, r, p;
};

static struct append_case case_of(struct shape shape, enum roped_dtype dtype,
                                  enum case_angles angles)
{
    struct append_case c = {.heads = {.hq = shape.hq,
                                      .hk = shape.hk,
                                      .d = shape.d,
                                      .r = shape.r,
                                      .rotary = {.positions = CASE_I64,
                                                 .angles = angles,
                                                 .dtype = dtype,
                                                 .n_tokens = shape.n,
                                                 .n_pairs = shape.r / 2,
                                                 .largest_position = 8191}},
                            .p = shape.p,
                            .page_size = 16,
                            .none_in = 9,
                            .is_wide = dtype == ROPED_F32,
                            .scale_k = "0.5",
                            .scale_v = "3",
                            .weight = dtype,
                            .options = {.use_table = angles == CASE_TABLE}};
    if (angles == CASE_COMPUTED && shape.n <= 500)
        c.heads.rotary.largest_position = 131071;
    return c;
}

/* One shape with every operator, type and style. */
static void run_shape(const char *op, struct shape shape, int index)
{
    for (int t = 0; t < 3; t++)
        for (int i = 0; i < 4; i++) {
            struct append_case c =
                case_of(shape, types[t], i / 2 ? CASE_TABLE : CASE_COMPUTED);
            c.heads.is_gptj = i % 2;
            c.options.in_place = t == 1;
            c.returns_k = (i + index) % 2;
            c.cache = caches[(i + t) % 3];
            c.places = (enum append_places)((i + index) % PLACES_KINDS);
            c.is_hnd = shape.hk && (i / 2 + t) % 2;
            if (shape.n < 1000 || t == 2) /* float64 is slow */
                run_case(op, &c);
        }
}

/* Decode and prefill of models: wide heads, many heads, many tokens, partial
 * rotations; beyond a warp, and beyond the CPU's block of 2,048 elements. */
TEST(model_shapes_are_within_tolerance)
{
    static const struct shape shapes[] = {
        {1, 32, 8, 128, 128, 0},    {4, 32, 8, 128, 128, 0},
        {128, 32, 8, 128, 128, 0},  {1000, 32, 8, 128, 128, 0},
        {600, 16, 4, 128, 128, 0},  {515, 1, 0, 512, 512, 0},
        {700, 1, 0, 1024, 1024, 0}, {257, 128, 1, 64, 64, 0},
        {300, 8, 8, 80, 80, 0},     {333, 16, 2, 256, 64, 0},
        {33, 16, 4, 128, 32, 0},    {19, 8, 4, 256, 256, 0},
        {77, 16, 2, 64, 64, 0},     {9, 4, 2, 512, 128, 0},
        {33, 8, 2, 512, 512, 0},    {5, 7, 1, 80, 80, 0},
        {600, 128, 1, 64, 64, 0},   {17, 16, 16, 80, 80, 0},
        {3, 3, 1, 1536, 1536, 0},   {3, 3, 1, 2048, 2048, 0},
        {3, 3, 1, 2056, 64, 0},     {3, 3, 1, 4098, 4098, 0},
        {3, 3, 1, 4100, 4096, 0},   {3, 3, 1, 8192, 8192, 0}};
    for (unsigned i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int op = 0; op < OPS; op++)
            if (shapes[i].hk || op < APPEND)
                run_shape(ops[op], shapes[i], (int)i);
}

TEST(mla_shapes_are_within_tolerance)
{
    static const struct shape shapes[] = {{1, 128, 0, 64, 64, 512},
                                          {40, 128, 0, 64, 64, 512},
                                          {700, 8, 0, 64, 64, 512},
                                          {19, 40, 0, 32, 32, 256}};
    for (int i = 0; i < 4; i++)
        run_shape("rope_append", shapes[i], i);
}

/* ------------------------------------------------------------------ angles */

/* Every pairing of position mode and angle source, at a plain shape. */
TEST(every_position_mode_works_with_every_angle_source)
{
    for (int p = 0; p < CASE_POSITIONS; p++)
        for (int a = 0; a < CASE_ANGLES; a++)
            for (int t = 0; t < 3; t++)
                for (int gptj = 0; gptj < 2; gptj++) {
                    struct append_case c = case_of(
                        (struct shape){37, 4, 2, 128, 128, 0}, types[t], a);
                    if (case_positions_beside(a, p) != (enum case_positions)p)
                        continue;
                    c.heads.is_gptj = gptj;
                    c.heads.rotary.positions = p;
                    c.heads.rotary.largest_position = 700;
                    for (int op = 0; op < OPS; op++)
                        run_case(ops[op], &c);
                }
}

/* F32 within 1e-6 of float64 given the same angles, table and computed. */
TEST(angles_are_accurate_at_a_million_positions)
{
    static const int64_t largest[] = {131071, 1048575};
    struct append_case c;
    for (int i = 0; i < 2; i++)
        for (int a = CASE_COMPUTED; a <= CASE_TABLE; a++) {
            c = case_of((struct shape){400, 2, 1, 64, 64, 0}, ROPED_F32, a);
            c.heads.rotary.largest_position = largest[i];
            run_case("rope", &c);
        }
    c = case_of((struct shape){1000, 2, 0, 64, 64, 0}, ROPED_F32,
                CASE_COMPUTED);
    c.heads.rotary.largest_position = (1 << 24) - 1;
    run_case("rope", &c);
    c.heads.rotary.angles = CASE_COMPUTED_F64;
    run_case("rope", &c);
}

/* Fills q and k with any bits, NaN payloads among them. */
static void fill_with_bits(struct roped_call *call)
{
    for (int i = ROPE_Q; i <= ROPE_K; i++)
        for (int64_t at = 0; at < roped_tensor_bytes(&call->in[i]); at++)
            ((unsigned char *)call->in[i].data)[at] =
                (unsigned char)random_bits(&source);
}

/* All tokens have position -1. */
TEST(padded_tokens_keep_their_bits)
{
    static struct roped_call call;
    for (int i = 0; i < 3 * 2 * 2 * 4; i++) {
        int64_t d = i / 6 % 2 ? 128 : 1024;
        struct append_case c =
            case_of((struct shape){5, i / 12 % 2 ? 4 : 1, i / 12 % 2, d,
                                   d == 128 ? 64 : d, 0},
                    types[i % 3], CASE_TABLE);
        c.heads.first = d == 128 ? 16 : 0;
        c.heads.is_gptj = i / 3 % 2;
        c.heads.rotary.largest_position = 99;
        c.heads.rotary.padding_in = 1;
        c.options = (struct runner_options){.misalign_elements = i / 24};
        c.returns_k = true;
        for (int op = 0; op < (c.heads.hk ? OPS : APPEND); op++) {
            append_case_build(&call, &source, ops[op], &c);
            fill_with_bits(&call);
            append_case_run(&call, &runner, &c);
        }
    }
}

/* ------------------------------------------------------------------- norms */

/* Heads of one value, so large or small that its square is none, still
 * normalise. */
TEST(values_whose_squares_leave_float32_normalise)
{
    static const float values[] = {3e38f, 1e-30f};
    static const int64_t widths[] = {30, 64, 128, 512, 1024, 4096};
    static struct roped_call call;
    for (int i = 0; i < 2 * 2 * 6; i++) {
        const int64_t d = widths[i / 4];
        const float value = values[i % 2];
        struct append_case c =
            case_of((struct shape){2, 1, 1, d, d, 0}, ROPED_F32, CASE_COMPUTED);
        append_case_build(&call, &source, ops[i / 2 % 2 ? NORM : NORM_APPEND],
                          &c);
        for (int port = ROPE_Q; port <= ROPE_K; port++)
            for (int64_t at = 0; at < 2 * d; at++)
                ((float *)call.in[port].data)[at] = at % 3 ? value : -value;
        case_param(&call, "eps", "0");
        append_case_run(&call, &runner, &c);
    }
}

/* A head with a NaN is NaN; its neighbours keep their bits. */
TEST(nan_stays_in_its_head)
{
    static struct roped_call call;
    struct roped_error err;
    struct runner_options options = {0};
    struct roped_tensor q = {.dtype = ROPED_F32, .rank = 3, .dims = {2, 3, 64}};
    float *x = runner_alloc((size_t)roped_tensor_bytes(&q));
    for (int i = 0; i < 2 * 3 * 64; i++)
        x[i] = (float)(i % 7) - 3;
    x[64 + 5] = NAN;
    q.data = x;
    roped_call_init(&call, roped_op_find("qk_rmsnorm_rope"));
    case_bind(&call, "q", &q);
    CHECK_OK(roped_call_resolve(&call, &err), &err);
    CHECK_OK(runner_run(&runner, &call, &options, &err), &err);
    const float *y = call.out[ROPE_Q_OUT].data;
    for (int i = 0; y && i < 2 * 3 * 64; i++)
        if ((isnan(y[i]) != 0) != (i / 64 == 1)) {
            CHECK_FAIL("element %d is %g", i, (double)y[i]);
            break;
        }
    runner_free_outputs(&call);
    case_free(&call);
}

/* ------------------------------------------------------------------ places */

/* A call of three tokens and eight slots whose slots are these. */
static struct append_case build_slots(struct roped_call *call,
                                      const int64_t *slots)
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
    return c;
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
    struct append_case c = build_slots(&call, (int64_t[]){-1, -1, 7});
    append_case_run(&call, &runner, &c);
}

/* In-process, with index tensors on the device: nothing is checked, and the
 * launch finds the places itself. */
TEST(places_on_the_device_are_found_there)
{
    static struct roped_call call;
    for (int i = 0; i < 2 * 16 * PLACES_KINDS; i++) {
        struct append_case c = case_of((struct shape){50, 4, 2, 64, 64, 0},
                                       ROPED_BF16, CASE_COMPUTED);
        c.places = (enum append_places)(i / 32);
        c.page_size = i / 8 % 2 ? 4 : 5;
        c.none_in = 5;
        c.is_wide = i % 2;
        c.is_hnd = i / 2 % 2;
        c.cache = i / 4 % 2 ? caches[1 + i / 8 % 2] : ROPED_NO_DTYPE;
        c.returns_k = i / 16 % 2 && i % 3 == 0;
        append_case_build(&call, &source,
                          ops[i / 16 % 2 ? NORM_APPEND : APPEND], &c);
        call.host_values = false;
        call.largest_position = c.heads.rotary.largest_position;
        append_case_run(&call, &runner, &c);
    }
}

int main(int argc, char **argv)
{
    return runner_main(&runner, argc, argv);
}
