/*
 * test_rope_sweep.c - rope on one backend (argument: cpu or cuda) against
 * float64: random shapes over every type, style, form, position mode and
 * angle source, with odd widths, no tokens, misaligned memory, outputs in
 * place; and accuracy at a million positions.
 */
#include "check.h"
#include "kernel/heads_case.h"
#include "kernel/reference.h"
#include "kernel/runner.h"

#include "ops/rope.h"

static struct runner runner;
static struct random_source source = {11};

struct rope_case {
    struct heads_case heads;
    struct runner_options options;
};

static void run_case(const struct rope_case *c)
{
    static struct roped_call call;
    struct roped_error err = {.text = ""};
    struct reference_judge judge = {0};
    char text[320], how[160];
    if (!check_takes_case())
        return;
    heads_case_build(&call, &source, "rope", &c->heads);
    enum roped_status status = roped_call_resolve(&call, &err);
    if (!status)
        status = runner_run(&runner, &call, &c->options, &err);
    if (!status)
        reference_judge(&call, &judge);
    if (status || judge.n_wrong) {
        CHECK_FAIL("%s %s: %s; %lld of %lld wrong: %s",
                   heads_case_text(&c->heads, text, sizeof text),
                   runner_options_text(&c->options, how, sizeof how), err.text,
                   (long long)judge.n_wrong, (long long)judge.n_checked,
                   judge.first);
    }
    runner_free_outputs(&call);
    case_free(&call);
}

static const enum roped_dtype types[] = {ROPED_F32, ROPED_F16, ROPED_BF16};

static struct rope_case random_case(void)
{
    struct rope_case c = {.heads = heads_case_random(&source, 0)};
    c.options.use_table = c.heads.rotary.angles == CASE_TABLE;
    c.options.in_place = random_once_in(&source, 3);
    c.options.misalign_elements = random_once_in(&source, 4) ? 1 : 0;
    case_steps(&source, &c.options);
    return c;
}

TEST(random_cases_are_within_tolerance)
{
    for (int i = 0; i < check_cases(1500); i++) {
        struct rope_case c = random_case();
        run_case(&c);
    }
}

/* Every pairing of position mode and angle source, at a plain shape. */
/* Tokens of position -1 and of any bits, NaN payloads among them. */
static void run_padded(const char *op, struct heads_case *heads,
                       const struct runner_options *options)
{
    static struct roped_call call;
    struct roped_error err = {.text = ""};
    struct reference_judge judge = {0};
    heads->rotary.padding_in = 1; /* all of them */
    heads_case_build(&call, &source, op, heads);
    for (int i = ROPE_Q; i <= ROPE_K; i++)
        for (int64_t at = 0; at < roped_tensor_bytes(&call.in[i]); at++)
            ((unsigned char *)call.in[i].data)[at] =
                (unsigned char)random_bits(&source);
    CHECK_OK(roped_call_resolve(&call, &err), &err);
    CHECK_OK(runner_run(&runner, &call, options, &err), &err);
    reference_judge(&call, &judge);
    if (judge.n_wrong)
        CHECK_FAIL("%s %s: %s", op, roped_dtype_name(heads->rotary.dtype),
                   judge.first);
    runner_free_outputs(&call);
    case_free(&call);
}

TEST(padded_tokens_keep_their_bits)
{
    static const char *const ops[] = {"rope", "qk_rmsnorm_rope"};
    for (int i = 0; i < 3 * 2 * 2 * 4; i++) {
        struct heads_case heads = {.hq = i / 12 % 2 ? 4 : 1,
                                   .hk = i / 12 % 2,
                                   .d = i / 6 % 2 ? 128 : 1024,
                                   .r = i / 6 % 2 ? 64 : 1024,
                                   .first = i / 6 % 2 ? 16 : 0,
                                   .is_gptj = i / 3 % 2,
                                   .rotary = {.positions = CASE_I64,
                                              .angles = CASE_TABLE,
                                              .dtype = types[i % 3],
                                              .n_tokens = 5,
                                              .largest_position = 99}};
        struct runner_options options = {.misalign_elements = i / 24};
        heads.rotary.n_pairs = heads.r / 2;
        for (int op = 0; op < 2; op++)
            run_padded(ops[op], &heads, &options);
    }
}

TEST(every_position_mode_works_with_every_angle_source)
{
    for (int p = 0; p < CASE_POSITIONS; p++)
        for (int a = 0; a < CASE_ANGLES; a++)
            for (int t = 0; t < 3; t++)
                for (int gptj = 0; gptj < 2; gptj++) {
                    if (case_positions_beside(a, p) != (enum case_positions)p)
                        continue;
                    struct rope_case c = {
                        .heads.hq = 4,
                        .heads.hk = 2,
                        .heads.d = 128,
                        .heads.r = 128,
                        .heads.is_gptj = gptj,
                        .heads.rotary = {.positions = p,
                                         .angles = a,
                                         .dtype = types[t],
                                         .n_tokens = 37,
                                         .n_pairs = 64,
                                         .largest_position = 700},
                        .options = {.use_table = a == CASE_TABLE}};
                    run_case(&c);
                }
}

/* The shapes of models: wide heads, many heads, many tokens. */
TEST(model_shapes_are_within_tolerance)
{
    static const int64_t shapes[][5] = {
        /* n, hq, hk, d, r */
        {1, 32, 8, 128, 128},    {4, 32, 8, 128, 128},  {128, 32, 8, 128, 128},
        {1000, 32, 8, 128, 128}, {515, 1, 0, 512, 512}, {700, 1, 0, 1024, 1024},
        {257, 128, 1, 64, 64},   {300, 8, 8, 80, 80},   {333, 16, 2, 256, 64}};
    for (int i = 0; i < 9; i++)
        for (int t = 0; t < 3; t++)
            for (int gptj = 0; gptj < 2; gptj++)
                for (int a = CASE_COMPUTED; a <= CASE_TABLE; a++) {
                    struct rope_case c = {
                        .heads.hq = shapes[i][1],
                        .heads.hk = shapes[i][2],
                        .heads.d = shapes[i][3],
                        .heads.r = shapes[i][4],
                        .heads.is_gptj = gptj,
                        .heads.rotary = {.positions = CASE_I32,
                                         .angles = a,
                                         .dtype = types[t],
                                         .n_tokens = shapes[i][0],
                                         .n_pairs = shapes[i][4] / 2,
                                         .largest_position = 8191},
                        .options = {.use_table = a == CASE_TABLE,
                                    .in_place = t == 1}};
                    if (shapes[i][0] >= 1000 && (t != 2 || a == 1))
                        continue; /* float64 is slow: one large type */
                    run_case(&c);
                }
}

/* F32 within 1e-6 of float64 given the same angles, table and computed. */
TEST(angles_are_accurate_at_a_million_positions)
{
    static const int64_t largest[] = {131071, 1048575};
    for (int i = 0; i < 2; i++)
        for (int a = CASE_COMPUTED; a <= CASE_TABLE; a++) {
            struct rope_case c = {
                .heads.hq = 2,
                .heads.hk = 1,
                .heads.d = 64,
                .heads.r = 64,
                .heads.rotary = {.positions = CASE_I64,
                                 .angles = a,
                                 .dtype = ROPED_F32,
                                 .n_tokens = 400,
                                 .n_pairs = 32,
                                 .largest_position = largest[i]},
                .options = {.use_table = a == CASE_TABLE}};
            run_case(&c);
        }
    struct rope_case last = {
        .heads.hq = 2,
        .heads.d = 64,
        .heads.r = 64,
        .heads.rotary = {.positions = CASE_I32,
                         .angles = CASE_COMPUTED,
                         .dtype = ROPED_F32,
                         .n_tokens = 1000,
                         .n_pairs = 32,
                         .largest_position = (1 << 24) - 1}};
    run_case(&last);
    last.heads.rotary.angles = CASE_COMPUTED_F64;
    run_case(&last);
}

TEST(the_same_call_gives_the_same_bits)
{
    static struct roped_call call;
    struct roped_error err;
    struct rope_case c = {.heads.hq = 8,
                          .heads.hk = 2,
                          .heads.d = 128,
                          .heads.r = 128,
                          .heads.rotary = {.positions = CASE_I32,
                                           .angles = CASE_COMPUTED,
                                           .dtype = ROPED_BF16,
                                           .n_tokens = 500,
                                           .n_pairs = 64,
                                           .largest_position = 100000}};
    heads_case_build(&call, &source, "rope", &c.heads);
    CHECK_OK(roped_call_resolve(&call, &err), &err);
    unsigned char *first = NULL;
    for (int i = 0; i < 3; i++) {
        CHECK_OK(runner_run(&runner, &call, &c.options, &err), &err);
        if (!call.out[ROPE_Q_OUT].data)
            break;
        size_t bytes = (size_t)roped_tensor_bytes(&call.out[ROPE_Q_OUT]);
        if (!first) {
            first = runner_alloc(bytes);
            memcpy(first, call.out[ROPE_Q_OUT].data, bytes);
        }
        CHECK(memcmp(first, call.out[ROPE_Q_OUT].data, bytes) == 0);
        runner_free_outputs(&call);
    }
    free(first);
    case_free(&call);
}

int main(int argc, char **argv)
{
    if (!runner_open(&runner, argc > 1 ? argv[1] : "cpu"))
        return CHECK_SKIP;
    check_run();
    runner_close(&runner);
    return check_done();
}
