/*
 * test_rope_sweep.c - rope on one backend (argument: cpu or cuda) against
 * float64: random shapes over every type, style, form, position mode and
 * angle source, with odd widths, no tokens, misaligned memory, outputs in
 * place; and accuracy at a million positions.
 */
#include "check.h"
#include "kernel/reference.h"
#include "kernel/rotary_case.h"
#include "kernel/runner.h"

#include "ops/rope.h"

static struct runner runner;
static struct random_source source = {11};

struct rope_case {
    struct rotary_case rotary;
    int64_t hq, hk, d, r, first; /* first: rotary_offset */
    enum { HEADS, PACKED, BATCHES } form;
    bool is_gptj, is_inverse;
    struct runner_options options;
};

static void set_int_param(struct roped_call *call, const char *name,
                          int64_t value)
{
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)value);
    case_param(call, name, text);
}

static void bind_heads(struct roped_call *call, const struct rope_case *c,
                       const char *name, int64_t heads)
{
    int64_t n = c->rotary.n_tokens;
    int64_t dims[3] = {n, heads, c->d};
    int rank = 3;
    if (c->form == PACKED) {
        dims[1] = heads * c->d;
        rank = 2;
    } else if (c->form == BATCHES) {
        dims[0] = n ? 3 : 0; /* n is a multiple of 3 here */
        dims[1] = n ? n / 3 : 5;
    }
    struct roped_tensor tensor =
        case_tensor(&source, c->rotary.dtype, rank, dims, 2);
    case_bind(call, name, &tensor);
}

static void build_call(struct roped_call *call, const struct rope_case *c)
{
    roped_call_init(call, roped_op_find("rope"));
    bind_heads(call, c, "q", c->hq);
    if (c->hk)
        bind_heads(call, c, "k", c->hk);
    if (c->form == PACKED)
        set_int_param(call, "head_dim", c->d);
    if (c->form == BATCHES)
        case_param(call, "layout", "bsd");
    if (c->r != c->d)
        set_int_param(call, "rotary_dim", c->r);
    if (c->first)
        set_int_param(call, "rotary_offset", c->first);
    if (c->is_gptj)
        case_param(call, "style", "gptj");
    if (c->is_inverse)
        case_param(call, "inverse", "true");
    case_bind_angles(call, &source, &c->rotary);
}

static void describe_case(const struct rope_case *c, char *text, size_t bytes)
{
    snprintf(text, bytes,
             "%s n %lld hq %lld hk %lld d %lld r %lld first %lld form %d "
             "gptj %d inverse %d positions %d angles %d largest %lld "
             "misaligned %d in place %d",
             roped_dtype_name(c->rotary.dtype), (long long)c->rotary.n_tokens,
             (long long)c->hq, (long long)c->hk, (long long)c->d,
             (long long)c->r, (long long)c->first, c->form, c->is_gptj,
             c->is_inverse, c->rotary.positions, c->rotary.angles,
             (long long)c->rotary.largest_position,
             c->options.misalign_elements, c->options.in_place);
}

static void run_case(const struct rope_case *c)
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
    if (status || judge.n_wrong) {
        describe_case(c, text, sizeof text);
        CHECK_FAIL("%s: %s; %lld of %lld wrong: %s", text, err.text,
                   (long long)judge.n_wrong, (long long)judge.n_checked,
                   judge.first);
    }
    runner_free_outputs(&call);
    case_free(&call);
}

static const enum roped_dtype types[] = {ROPED_F32, ROPED_F16, ROPED_BF16};

static struct rope_case random_case(void)
{
    static const int64_t tokens[] = {0, 1, 2, 3, 6, 15, 33, 63, 129};
    static const int64_t widths[] = {2,   4,   6,   16,  30,  40,  48,
                                     64,  72,  80,  96,  100, 112, 128,
                                     160, 192, 256, 320, 512, 1024};
    static const int64_t heads[] = {1, 2, 3, 5, 8, 32};
    static const int64_t key_heads[] = {0, 0, 1, 2, 8};
    struct rope_case c = {.d = random_pick(&source, widths, 20),
                          .hq = random_pick(&source, heads, 6),
                          .hk = random_pick(&source, key_heads, 5)};
    c.form = (int)random_int(&source, 0, 5) > 3 ? BATCHES : HEADS;
    if (c.form == HEADS && random_once_in(&source, 4))
        c.form = PACKED;
    if (c.form == BATCHES)
        c.hq = 1, c.hk = c.hk ? 1 : 0;
    c.r = c.d;
    if (random_once_in(&source, 3))
        c.r = 2 * random_int(&source, 1, c.d / 2);
    if (c.r < c.d && random_once_in(&source, 3))
        c.first = random_int(&source, 0, c.d - c.r);
    c.is_gptj = random_once_in(&source, 2);
    c.is_inverse = random_once_in(&source, 5);
    c.rotary.dtype = types[random_int(&source, 0, 2)];
    c.rotary.n_tokens = random_pick(&source, tokens, 9);
    if (c.form == BATCHES)
        c.rotary.n_tokens -= c.rotary.n_tokens % 3;
    c.rotary.n_pairs = c.r / 2;
    c.rotary.largest_position =
        random_once_in(&source, 3) ? 5000 : c.rotary.n_tokens + 40;
    c.rotary.positions = (enum case_positions)random_int(&source, 0, 6);
    c.rotary.angles = (enum case_angles)random_int(&source, 0, 7);
    if (c.form == BATCHES)
        c.rotary.positions %= CASE_RAGGED_I32;
    if (c.rotary.positions >= CASE_MROPE && c.rotary.angles > CASE_TABLE)
        c.rotary.positions = CASE_I64; /* sections belong to parameters */
    if (c.rotary.positions >= CASE_MROPE && c.rotary.n_pairs < 3)
        c.rotary.positions = CASE_I32;
    c.options.use_table = c.rotary.angles == CASE_TABLE;
    c.options.in_place = random_once_in(&source, 3);
    c.options.misalign_elements = random_once_in(&source, 4) ? 1 : 0;
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
TEST(every_position_mode_works_with_every_angle_source)
{
    for (int p = 0; p < CASE_POSITIONS; p++)
        for (int a = 0; a < CASE_ANGLES; a++)
            for (int t = 0; t < 3; t++)
                for (int gptj = 0; gptj < 2; gptj++) {
                    if (p >= CASE_MROPE && a > CASE_TABLE)
                        continue;
                    struct rope_case c = {
                        .hq = 4,
                        .hk = 2,
                        .d = 128,
                        .r = 128,
                        .is_gptj = gptj,
                        .rotary = {.positions = p,
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
                        .hq = shapes[i][1],
                        .hk = shapes[i][2],
                        .d = shapes[i][3],
                        .r = shapes[i][4],
                        .is_gptj = gptj,
                        .rotary = {.positions = CASE_I32,
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
            struct rope_case c = {.hq = 2,
                                  .hk = 1,
                                  .d = 64,
                                  .r = 64,
                                  .rotary = {.positions = CASE_I64,
                                             .angles = a,
                                             .dtype = ROPED_F32,
                                             .n_tokens = 400,
                                             .n_pairs = 32,
                                             .largest_position = largest[i]},
                                  .options = {.use_table = a == CASE_TABLE}};
            run_case(&c);
        }
    struct rope_case last = {.hq = 2,
                             .d = 64,
                             .r = 64,
                             .rotary = {.positions = CASE_I32,
                                        .angles = CASE_COMPUTED,
                                        .dtype = ROPED_F32,
                                        .n_tokens = 1000,
                                        .n_pairs = 32,
                                        .largest_position = (1 << 24) - 1}};
    run_case(&last);
    last.rotary.angles = CASE_COMPUTED_F64;
    run_case(&last);
}

TEST(the_same_call_gives_the_same_bits)
{
    static struct roped_call call;
    struct roped_error err;
    struct rope_case c = {.hq = 8,
                          .hk = 2,
                          .d = 128,
                          .r = 128,
                          .rotary = {.positions = CASE_I32,
                                     .angles = CASE_COMPUTED,
                                     .dtype = ROPED_BF16,
                                     .n_tokens = 500,
                                     .n_pairs = 64,
                                     .largest_position = 100000}};
    build_call(&call, &c);
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
    RUN(random_cases_are_within_tolerance);
    RUN(every_position_mode_works_with_every_angle_source);
    RUN(model_shapes_are_within_tolerance);
    RUN(angles_are_accurate_at_a_million_positions);
    RUN(the_same_call_gives_the_same_bits);
    runner_close(&runner);
    return check_done();
}
