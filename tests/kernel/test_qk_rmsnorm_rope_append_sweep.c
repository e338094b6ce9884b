/*
 * test_qk_rmsnorm_rope_append_sweep.c - qk_rmsnorm_rope_append on one backend
 * (argument: cpu or cuda) against float64: every form, angle source and weight
 * type, slots and pages, caches of q's type and FP8, heads from 2 elements to
 * wider than a block, misaligned memory, squares beyond float32.
 */
#include "check.h"
#include "kernel/append_case.h"

#include "ops/qk_rmsnorm_rope_append.h"

static struct runner runner;
static struct random_source source = {41};

static const enum roped_dtype types[] = {ROPED_F32, ROPED_F16, ROPED_BF16};
static const enum roped_dtype caches[] = {ROPED_NO_DTYPE, ROPED_F8_E4M3,
                                          ROPED_F8_E5M2};

struct norm_case {
    struct append_case append;
    enum roped_dtype weight; /* ROPED_NO_DTYPE: none */
    bool is_hf, is_gemma;
};

static void build_call(struct roped_call *call, const struct norm_case *c)
{
    static const char *const names[] = {"q_weight", "k_weight"};
    append_case_build(call, &source, "qk_rmsnorm_rope_append", &c->append);
    for (int i = 0; i < 2 && c->weight; i++) {
        struct roped_tensor weight =
            case_tensor(&source, c->weight, 1, &c->append.heads.d, 1);
        case_bind(call, names[i], &weight);
    }
    if (c->is_hf)
        case_param(call, "rounding", "hf");
    if (c->is_gemma)
        case_param(call, "weight_bias", "1");
}

static void run_case(const struct norm_case *c)
{
    static struct roped_call call;
    if (!check_takes_case())
        return;
    build_call(&call, c);
    append_case_run(&call, &runner, &c->append);
}

TEST(random_cases_are_within_tolerance)
{
    for (int i = 0; i < check_cases(1500); i++) {
        struct norm_case c = {.append = append_case_random(&source),
                              .is_hf = random_once_in(&source, 4),
                              .is_gemma = random_once_in(&source, 4)};
        c.weight = heads_case_weight(&source, &c.append.heads);
        run_case(&c);
    }
}

/* n, hq, hk, d, r: a case of a model. */
static struct norm_case model_case(const int64_t *shape, int type, int gptj)
{
    struct norm_case c = {
        .append = {.heads = {.hq = shape[1],
                             .hk = shape[2],
                             .d = shape[3],
                             .r = shape[4],
                             .is_gptj = gptj,
                             .rotary = {.positions = CASE_I64,
                                        .angles = (type + gptj) % 2
                                                      ? CASE_TABLE
                                                      : CASE_COMPUTED,
                                        .dtype = types[type],
                                        .n_tokens = shape[0],
                                        .n_pairs = shape[4] / 2,
                                        .largest_position = 8191}},
                   .page_size = 16,
                   .none_in = 9,
                   .is_wide = type == 0,
                   .returns_k = gptj,
                   .scale_k = "0.5",
                   .scale_v = "3"},
        .weight = types[type]};
    c.append.options.use_table = c.append.heads.rotary.angles == CASE_TABLE;
    c.append.options.in_place = type == 1;
    return c;
}

/* Models with such norms, partial neox and heads beyond a warp and beyond the
 * CPU's block among them. */
TEST(model_shapes_are_within_tolerance)
{
    static const int64_t shapes[][5] = {
        {1, 32, 8, 128, 128},   {4, 32, 8, 128, 128},  {128, 32, 8, 128, 128},
        {600, 16, 4, 128, 128}, {33, 16, 4, 128, 64},  {19, 8, 4, 256, 256},
        {77, 16, 2, 64, 64},    {9, 4, 2, 512, 128},   {5, 7, 1, 80, 80},
        {600, 64, 1, 64, 64},   {3, 3, 1, 1536, 1536}, {3, 3, 1, 4100, 4096}};
    for (unsigned i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int t = 0; t < 3; t++)
            for (int gptj = 0; gptj < 2; gptj++)
                for (unsigned cache = 0; cache < 3; cache++) {
                    struct norm_case c = model_case(shapes[i], t, gptj);
                    c.append.cache = caches[cache];
                    c.append.places =
                        (enum append_places)((i + cache) % PLACES_KINDS);
                    c.append.is_hnd = ((unsigned)gptj + cache) % 2;
                    run_case(&c);
                }
}

/* Heads of one value, so large or small that its square is none. */
TEST(values_whose_squares_leave_float32_normalise)
{
    static const float values[] = {3e38f, 1e-30f};
    static const int64_t widths[] = {30, 64, 128, 512, 1024, 4096};
    static struct roped_call call;
    for (int v = 0; v < 2; v++)
        for (int w = 0; w < 6; w++) {
            struct norm_case c =
                model_case((int64_t[]){2, 1, 1, widths[w], widths[w]}, 0, v);
            build_call(&call, &c);
            for (int i = ROPE_APPEND_Q; i <= ROPE_APPEND_K; i++)
                for (int64_t at = 0; at < 2 * widths[w]; at++)
                    ((float *)call.in[i].data)[at] =
                        at % 3 ? values[v] : -values[v];
            case_param(&call, "eps", "0");
            append_case_run(&call, &runner, &c.append);
        }
}

/* In-process, with index tensors on the device. */
TEST(places_on_the_device_are_found_there)
{
    static struct roped_call call;
    for (int i = 0; i < 16 * PLACES_KINDS; i++) {
        struct norm_case c =
            model_case((int64_t[]){50, 4, 2, 64, 64}, 2, i % 2);
        c.append.places = (enum append_places)(i / 16);
        c.append.page_size = i / 8 % 2 ? 4 : 5;
        c.append.is_hnd = i / 4 % 2;
        c.append.is_wide = i / 2 % 2;
        c.append.cache = caches[i % 3];
        build_call(&call, &c);
        call.host_values = false;
        call.largest_position = c.append.heads.rotary.largest_position;
        append_case_run(&call, &runner, &c.append);
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
