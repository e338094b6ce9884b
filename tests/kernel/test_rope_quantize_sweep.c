/*
 * test_rope_quantize_sweep.c - rope_quantize on one backend (argument: cpu or
 * cuda) against float64: MLA, GQA and MHA shapes, both FP8 types, both styles,
 * scales that saturate, NaN, Inf and -0 in the non-rotary parts.
 */
#include "check.h"
#include "kernel/reference.h"
#include "kernel/rotary_case.h"
#include "kernel/runner.h"

#include "ops/rope_quantize.h"

#include <math.h>

static struct runner runner;
static struct random_source source = {13};

struct quantize_case {
    struct rotary_case rotary;
    int64_t hq, hk, r, p; /* hk 0: MLA form */
    double scale;         /* of the values */
    const char *scale_q, *scale_k;
    bool is_tensor; /* scales are tensors */
    bool is_gptj, is_e5m2, has_non_finite;
    struct runner_options options;
};

static void bind_part(struct roped_call *call, const struct quantize_case *c,
                      const char *name, int64_t heads, int64_t width)
{
    int64_t dims[3] = {c->rotary.n_tokens, heads, width};
    int rank = 3;
    if (heads == 0) {
        dims[1] = width;
        rank = 2;
    }
    struct roped_tensor tensor =
        case_tensor(&source, c->rotary.dtype, rank, dims, c->scale);
    int64_t n = roped_tensor_elements(&tensor);
    if (c->has_non_finite && c->rotary.dtype == ROPED_F32 && n > 3) {
        ((float *)tensor.data)[0] = NAN;
        ((float *)tensor.data)[1] = -INFINITY;
        ((float *)tensor.data)[n - 1] = -NAN;
        ((float *)tensor.data)[n - 2] = INFINITY;
    } else if (c->has_non_finite && n > 3) {
        ((uint16_t *)tensor.data)[0] = 0x7FFF; /* NaN in both types */
        ((uint16_t *)tensor.data)[n - 1] = 0xFFFF;
    }
    case_bind(call, name, &tensor);
}

static void build_call(struct roped_call *call, const struct quantize_case *c)
{
    struct quantize_case rotary_part = *c;
    rotary_part.has_non_finite = false; /* NaN times a pair is NaN twice */
    roped_call_init(call, roped_op_find("rope_quantize"));
    bind_part(call, &rotary_part, "q_rope", c->hq, c->r);
    bind_part(call, &rotary_part, "k_rope", c->hk, c->r);
    if (c->p) {
        bind_part(call, c, "q_nope", c->hq, c->p);
        bind_part(call, c, "k_nope", c->hk, c->p);
    }
    case_scale(call, &source, "scale_q", c->scale_q, c->is_tensor);
    case_scale(call, &source, "scale_k", c->scale_k, c->is_tensor);
    if (c->is_gptj)
        case_param(call, "style", "gptj");
    if (c->is_e5m2)
        case_param(call, "output_dtype", "e5m2");
    case_bind_angles(call, &source, &c->rotary);
}

static void run_case(const struct quantize_case *c)
{
    static struct roped_call call;
    struct roped_error err = {.text = ""};
    struct reference_judge judge = {0};
    if (!check_takes_case())
        return;
    build_call(&call, c);
    enum roped_status status = roped_call_resolve(&call, &err);
    if (!status)
        status = runner_run(&runner, &call, &c->options, &err);
    if (!status)
        reference_judge(&call, &judge);
    if (status || judge.n_wrong)
        CHECK_FAIL("%s n %lld hq %lld hk %lld r %lld p %lld gptj %d e5m2 %d "
                   "scale %g misaligned %d positions %d angles %d: %s; "
                   "%lld of %lld wrong: %s",
                   roped_dtype_name(c->rotary.dtype),
                   (long long)c->rotary.n_tokens, (long long)c->hq,
                   (long long)c->hk, (long long)c->r, (long long)c->p,
                   c->is_gptj, c->is_e5m2, c->scale,
                   c->options.misalign_elements, c->rotary.positions,
                   c->rotary.angles, err.text, (long long)judge.n_wrong,
                   (long long)judge.n_checked, judge.first);
    runner_free_outputs(&call);
    case_free(&call);
}

static const enum roped_dtype types[] = {ROPED_F16, ROPED_BF16, ROPED_F32};

TEST(shapes_of_models_are_correctly_rounded)
{
    static const int64_t shapes[][4] = {
        /* hq, hk, r, p */
        {128, 0, 64, 512},  {64, 0, 128, 256}, {32, 0, 32, 96}, {32, 8, 64, 64},
        {64, 16, 128, 128}, {24, 6, 32, 96},   {32, 8, 128, 0}, {64, 8, 64, 0},
        {16, 16, 128, 128}, {8, 8, 32, 96}};
    static const int64_t tokens[] = {1, 19, 67};
    for (int i = 0; i < 10; i++)
        for (int t = 0; t < 3; t++)
            for (int gptj = 0; gptj < 2; gptj++)
                for (int e5m2 = 0; e5m2 < 2; e5m2++) {
                    struct quantize_case c = {
                        .hq = shapes[i][0],
                        .hk = shapes[i][1],
                        .r = shapes[i][2],
                        .p = shapes[i][3],
                        .scale = 1,
                        .scale_q = "0.75",
                        .scale_k = "3",
                        .is_gptj = gptj,
                        .is_e5m2 = e5m2,
                        .rotary = {.positions = CASE_I32,
                                   .angles = (enum case_angles)((i + t + gptj) %
                                                                CASE_CACHE_F16),
                                   .dtype = types[t],
                                   .n_tokens = tokens[(i + t) % 3],
                                   .n_pairs = shapes[i][2] / 2,
                                   .largest_position = 4000}};
                    c.options.use_table = c.rotary.angles == CASE_TABLE;
                    run_case(&c);
                }
}

TEST(random_cases_are_correctly_rounded)
{
    static const int64_t widths[] = {2,  6,  16, 30,  40, 48,
                                     64, 80, 96, 112, 128};
    static const int64_t nope[] = {0, 1, 7, 16, 33, 64, 96, 128, 200, 512};
    static const int64_t tokens[] = {0, 1, 2, 5, 19, 64};
    static const double scales[] = {0.001, 1, 100, 40000};
    for (int i = 0; i < check_cases(800); i++) {
        struct quantize_case c = {
            .hq = random_int(&source, 1, 9),
            .hk = random_int(&source, 0, 4),
            .r = random_pick(&source, widths, 11),
            .p = random_pick(&source, nope, 10),
            .scale = scales[random_int(&source, 0, 3)],
            .scale_q = random_once_in(&source, 2) ? "1" : "0.0371",
            .scale_k = random_once_in(&source, 2) ? "2" : "17.3",
            .is_tensor = random_once_in(&source, 2),
            .is_gptj = random_once_in(&source, 2),
            .is_e5m2 = random_once_in(&source, 2),
            .has_non_finite = random_once_in(&source, 3),
            .rotary = {.positions = (enum case_positions)random_int(
                           &source, 0, CASE_POSITIONS - 1),
                       .angles = (enum case_angles)random_int(&source, 0,
                                                              CASE_ANGLES - 1),
                       .dtype = types[random_int(&source, 0, 2)],
                       .n_tokens = random_pick(&source, tokens, 6),
                       .padding_in = random_once_in(&source, 4) ? 3 : 0}};
        c.rotary.n_pairs = c.r / 2;
        c.rotary.largest_position = c.rotary.n_tokens + 100;
        c.rotary.positions =
            case_positions_beside(c.rotary.angles, c.rotary.positions);
        c.options.use_table = c.rotary.angles == CASE_TABLE;
        c.options.misalign_elements = random_once_in(&source, 4) ? 1 : 0;
        run_case(&c);
    }
}

int main(int argc, char **argv)
{
    if (!runner_open(&runner, argc > 1 ? argv[1] : "cpu"))
        return CHECK_SKIP;
    RUN(shapes_of_models_are_correctly_rounded);
    RUN(random_cases_are_correctly_rounded);
    runner_close(&runner);
    return check_done();
}
