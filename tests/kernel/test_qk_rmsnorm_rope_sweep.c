/*
 * test_qk_rmsnorm_rope_sweep.c - qk_rmsnorm_rope on one backend (argument: cpu
 * or cuda) against float64: every form, style, angle source and weight type,
 * heads from 2 elements to wider than a block, widths that no vector divides,
 * misaligned memory, outputs in place, squares beyond float32.
 */
#include "check.h"
#include "kernel/heads_case.h"
#include "kernel/reference.h"
#include "kernel/runner.h"

#include "ops/qk_rmsnorm_rope.h"

#include <math.h>

static struct runner runner;
static struct random_source source = {29};

static const enum roped_dtype types[] = {ROPED_F32, ROPED_F16, ROPED_BF16};

struct norm_case {
    struct heads_case heads;
    enum roped_dtype weight; /* ROPED_NO_DTYPE: none */
    bool is_hf, is_gemma;
    struct runner_options options;
};

static void bind_weight(struct roped_call *call, const struct norm_case *c,
                        const char *name)
{
    struct roped_tensor weight =
        case_tensor(&source, c->weight, 1, &c->heads.d, 1);
    case_bind(call, name, &weight);
}

static void build_call(struct roped_call *call, const struct norm_case *c)
{
    heads_case_build(call, &source, "qk_rmsnorm_rope", &c->heads);
    if (c->weight)
        bind_weight(call, c, "q_weight");
    if (c->weight && c->heads.hk)
        bind_weight(call, c, "k_weight");
    if (c->is_hf)
        case_param(call, "rounding", "hf");
    if (c->is_gemma)
        case_param(call, "weight_bias", "1");
}

static void run_case(const struct norm_case *c)
{
    static struct roped_call call;
    struct roped_error err = {.text = ""};
    struct reference_judge judge = {0};
    char text[320], how[160];
    if (!check_takes_case())
        return;
    build_call(&call, c);
    enum roped_status status = roped_call_resolve(&call, &err);
    if (!status)
        status = runner_run(&runner, &call, &c->options, &err);
    if (!status)
        reference_judge(&call, &judge);
    if (status || judge.n_wrong)
        CHECK_FAIL("%s weight %d hf %d gemma %d %s: %s; %lld of %lld wrong: %s",
                   heads_case_text(&c->heads, text, sizeof text), c->weight,
                   c->is_hf, c->is_gemma,
                   runner_options_text(&c->options, how, sizeof how), err.text,
                   (long long)judge.n_wrong, (long long)judge.n_checked,
                   judge.first);
    runner_free_outputs(&call);
    case_free(&call);
}

TEST(random_cases_are_within_tolerance)
{
    for (int i = 0; i < check_cases(1500); i++) {
        struct norm_case c = {.heads = heads_case_random(&source, 0),
                              .is_hf = random_once_in(&source, 4),
                              .is_gemma = random_once_in(&source, 4)};
        c.weight = heads_case_weight(&source, &c.heads);
        c.options.use_table = c.heads.rotary.angles == CASE_TABLE;
        c.options.in_place = random_once_in(&source, 3);
        c.options.misalign_elements = random_once_in(&source, 4) ? 1 : 0;
        case_steps(&source, &c.options);
        run_case(&c);
    }
}

/* The peers' shapes, partial neox among them: n, hq, hk, d, r. */
TEST(model_shapes_are_within_tolerance)
{
    static const int64_t shapes[][5] = {
        {1, 32, 8, 128, 128},   {4, 32, 8, 128, 128}, {128, 32, 8, 128, 128},
        {600, 16, 4, 128, 128}, {33, 16, 4, 128, 64}, {33, 16, 4, 128, 32},
        {19, 8, 4, 256, 256},   {19, 8, 4, 256, 64},  {77, 16, 2, 64, 64},
        {9, 4, 2, 512, 512},    {9, 4, 2, 512, 128},  {5, 7, 1, 80, 80},
        {600, 128, 1, 64, 64}};
    for (unsigned i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int t = 0; t < 3; t++)
            for (int gptj = 0; gptj < 2; gptj++) {
                struct norm_case c = {
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
                                         .largest_position = 8191}},
                    .weight = types[t]};
                c.options.use_table = c.heads.rotary.angles == CASE_TABLE;
                c.options.in_place = t == 1;
                run_case(&c);
            }
}

/* Beyond a warp, and beyond the CPU's block of 2,048 elements. */
TEST(wide_heads_are_within_tolerance)
{
    static const int64_t widths[][2] = {{1536, 1536}, {2048, 2048},
                                        {2056, 64},   {4098, 4098},
                                        {4100, 4096}, {8192, 8192}};
    for (int i = 0; i < 6; i++)
        for (int t = 0; t < 3; t++)
            for (int gptj = 0; gptj < 2; gptj++) {
                struct norm_case c = {
                    .heads = {.hq = 3,
                              .hk = 1,
                              .d = widths[i][0],
                              .r = widths[i][1],
                              .is_gptj = gptj,
                              .rotary = {.positions = CASE_I32,
                                         .angles = CASE_COMPUTED,
                                         .dtype = types[t],
                                         .n_tokens = 3,
                                         .n_pairs = widths[i][1] / 2,
                                         .largest_position = 99}},
                    .weight = types[t],
                    .options = {.in_place = gptj}};
                c.heads.first = (widths[i][0] - widths[i][1]) / 4 * 2;
                run_case(&c);
            }
}

/* A call of one head, all of whose values are +- value. */
static float *run_values(struct roped_call *call, int64_t d, float value)
{
    struct roped_error err;
    struct runner_options options = {0};
    struct roped_tensor q = {.dtype = ROPED_F32, .rank = 3, .dims = {1, 2, d}};
    float *x = runner_alloc((size_t)roped_tensor_bytes(&q));
    for (int64_t i = 0; i < 2 * d; i++)
        x[i] = i % 3 ? value : -value;
    q.data = x;
    roped_call_init(call, roped_op_find("qk_rmsnorm_rope"));
    case_bind(call, "q", &q); /* position 0: no rotation */
    case_param(call, "eps", "0");
    CHECK_OK(roped_call_resolve(call, &err), &err);
    CHECK_OK(runner_run(&runner, call, &options, &err), &err);
    return call->out[QK_RMSNORM_ROPE_Q_OUT].data;
}

/* Squares beyond float32's range, both ways, still normalise. */
TEST(values_whose_squares_leave_float32_normalise)
{
    static const float values[] = {3e38f, 1e-30f};
    static const int64_t widths[] = {30, 64, 128, 512, 1024, 4096};
    static struct roped_call call;
    for (int v = 0; v < 2; v++)
        for (int w = 0; w < 6; w++) {
            const float *y = run_values(&call, widths[w], values[v]);
            for (int64_t i = 0; y && i < 2 * widths[w]; i++)
                if (!(fabsf(y[i] - (i % 3 ? 1.0f : -1.0f)) < 1e-5f)) {
                    CHECK_FAIL("%g, width %lld: y[%lld] is %g",
                               (double)values[v], (long long)widths[w],
                               (long long)i, (double)y[i]);
                    break;
                }
            runner_free_outputs(&call);
            case_free(&call);
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
    const float *y = call.out[QK_RMSNORM_ROPE_Q_OUT].data;
    for (int i = 0; y && i < 2 * 3 * 64; i++)
        if ((isnan(y[i]) != 0) != (i / 64 == 1)) {
            CHECK_FAIL("element %d is %g", i, (double)y[i]);
            break;
        }
    runner_free_outputs(&call);
    case_free(&call);
}

/* The bits of a token do not depend on how many tokens came with it. */
TEST(bits_of_a_token_do_not_depend_on_the_other_tokens)
{
    static const int64_t widths[] = {30, 64, 128, 256, 1024, 2048};
    enum { N = 301, HEADS_OF_Q = 5 };
    static struct roped_call call;
    for (int w = 0; w < 6; w++)
        for (int t = 0; t < 3; t++) {
            struct roped_error err;
            struct runner_options options = {0};
            int64_t dims[3] = {N, HEADS_OF_Q, widths[w]};
            struct roped_tensor q = case_tensor(&source, types[t], 3, dims, 1);
            size_t row = (size_t)roped_tensor_bytes(&q) / N;
            unsigned char *last = runner_alloc(row);
            for (int one = 0; one < 2; one++) {
                struct roped_tensor part = q;
                roped_call_init(&call, roped_op_find("qk_rmsnorm_rope"));
                if (one) {
                    part.dims[0] = 1;
                    part.data = (unsigned char *)q.data + (N - 1) * row;
                    case_int_param(&call, "offset", N - 1);
                }
                case_param(&call, "angles", "compute");
                case_bind(&call, "q", &part);
                CHECK_OK(roped_call_resolve(&call, &err), &err);
                CHECK_OK(runner_run(&runner, &call, &options, &err), &err);
                unsigned char *y = call.out[QK_RMSNORM_ROPE_Q_OUT].data;
                if (y && one)
                    CHECK(memcmp(y, last, row) == 0);
                else if (y)
                    memcpy(last, y + (N - 1) * row, row);
                runner_free_outputs(&call);
            }
            free(last);
            free(q.data);
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
