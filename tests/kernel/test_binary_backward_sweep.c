/*
 * test_binary_backward_sweep.c - binary_backward on one backend (argument:
 * cpu or cuda) against float64: every function and type, broadcasting on
 * either side and on both, ranks 0 to 8, empty dims, misaligned memory, long
 * sums; the same bits from run to run and whatever the number of threads.
 */
#include "check.h"
#include "kernel/random.h"
#include "kernel/reference.h"
#include "kernel/rotary_case.h"
#include "kernel/runner.h"

#include "ops/binary_backward.h"

#include <roped/numeric.h>

#include <math.h>

static struct runner runner;
static struct random_source source = {41};

static const char *const functions[] = {"add", "sub", "mul", "div"};
static const enum roped_dtype types[] = {ROPED_F32, ROPED_F16, ROPED_BF16};

struct shape {
    int rank;
    int64_t dims[ROPED_MAX_RANK];
};

struct binary_case {
    struct shape a, b;
    enum binary_function function;
    enum roped_dtype dtype;
    bool omits_values; /* a_shape and b_shape instead */
    bool is_positive;  /* sums without cancellation */
    struct runner_options options;
};

/* A call and the memory of its inputs. */
struct binary_call {
    struct roped_call call;
    struct roped_tensor g, a, b;
};

/* ------------------------------------------------------------------ cases */

static struct shape broadcast(const struct shape *a, const struct shape *b)
{
    struct shape out = {.rank = a->rank > b->rank ? a->rank : b->rank};
    for (int i = 0; i < out.rank; i++) {
        int in_a = i - (out.rank - a->rank), in_b = i - (out.rank - b->rank);
        int64_t of_a = in_a < 0 ? 1 : a->dims[in_a];
        int64_t of_b = in_b < 0 ? 1 : b->dims[in_b];
        out.dims[i] = of_a == 1 ? of_b : of_a;
    }
    return out;
}

static float value_at(const struct roped_tensor *tensor, int64_t i)
{
    return (float)reference_value(tensor, i);
}

static void set_value(const struct roped_tensor *tensor, int64_t i, float value)
{
    if (tensor->dtype == ROPED_F32)
        ((float *)tensor->data)[i] = value;
    else if (tensor->dtype == ROPED_F16)
        ((uint16_t *)tensor->data)[i] = roped_float_to_f16(value);
    else
        ((uint16_t *)tensor->data)[i] = roped_float_to_bf16(value);
}

/* Values of a division stay away from 0: quotients of subnormals have few
 * bits, and the tests of special values divide by zero. */
static struct roped_tensor make(const struct binary_case *c,
                                const struct shape *shape, int input)
{
    bool is_divisor = input == BINARY_B && c->function == BINARY_DIV;
    bool is_divided = input == BINARY_A && c->function == BINARY_DIV;
    struct roped_tensor tensor = {.dtype = c->dtype, .rank = shape->rank};
    memcpy(tensor.dims, shape->dims, sizeof tensor.dims);
    tensor.data = runner_alloc((size_t)roped_tensor_bytes(&tensor));
    random_fill(&source, &tensor, 1, !is_divided && !is_divisor);
    for (int64_t i = 0; i < roped_tensor_elements(&tensor); i++) {
        float x = value_at(&tensor, i);
        if (is_divisor)
            x = copysignf(0.5f + fabsf(x), x);
        if (c->is_positive)
            x = fabsf(x);
        set_value(&tensor, i, x);
    }
    return tensor;
}

static const char *shape_param(const struct shape *shape, char *text,
                               size_t bytes)
{
    size_t at = 0;
    text[0] = '\0';
    for (int i = 0; i < shape->rank; i++)
        at += (size_t)snprintf(text + at, bytes - at, "%s%lld", i ? "," : "",
                               (long long)shape->dims[i]);
    return text;
}

static void build(struct binary_call *built, const struct binary_case *c)
{
    struct roped_error err;
    char text[128];
    struct roped_call *call = &built->call;
    struct shape whole = broadcast(&c->a, &c->b);
    built->g = make(c, &whole, BINARY_GRAD_OUTPUT);
    built->a = make(c, &c->a, BINARY_A);
    built->b = make(c, &c->b, BINARY_B);
    roped_call_init(call, roped_op_find("binary_backward"));
    CHECK_OK(roped_call_bind(call, "grad_output", &built->g, &err), &err);
    CHECK_OK(
        roped_call_set_text(call, "function", functions[c->function], &err),
        &err);
    if (c->omits_values) {
        shape_param(&c->a, text, sizeof text);
        CHECK_OK(roped_call_set_text(call, "a_shape", text, &err), &err);
        shape_param(&c->b, text, sizeof text);
        CHECK_OK(roped_call_set_text(call, "b_shape", text, &err), &err);
    } else {
        CHECK_OK(roped_call_bind(call, "a", &built->a, &err), &err);
        CHECK_OK(roped_call_bind(call, "b", &built->b, &err), &err);
    }
    CHECK_OK(roped_call_resolve(call, &err), &err);
}

static void release(struct binary_call *built)
{
    runner_free_outputs(&built->call);
    free(built->g.data);
    free(built->a.data);
    free(built->b.data);
}

static void run_case(const struct binary_case *c)
{
    static struct binary_call built;
    struct roped_error err;
    struct reference_judge judge = {0};
    char a[128], b[128];
    int failures = check_failures;
    if (!check_takes_case())
        return;
    build(&built, c);
    if (check_failures == failures)
        CHECK_OK(runner_run(&runner, &built.call, &c->options, &err), &err);
    if (check_failures == failures)
        reference_judge(&built.call, &judge);
    if (judge.n_wrong || check_failures != failures)
        CHECK_FAIL(
            "%s %s a [%s] b [%s] misaligned %d omitted %d: %lld of "
            "%lld wrong: %s",
            functions[c->function], roped_dtype_name(c->dtype),
            shape_param(&c->a, a, sizeof a), shape_param(&c->b, b, sizeof b),
            c->options.misalign_elements, c->omits_values,
            (long long)judge.n_wrong, (long long)judge.n_checked, judge.first);
    release(&built);
}

/* ------------------------------------------------------------------ tests */

/* A random dim: mostly small, at times 1, rarely 0 or wide. */
static int64_t random_size(int64_t room)
{
    static const int64_t sizes[] = {1,  2,  2,  3,  3,   4,   5,   7,    8,   9,
                                    16, 17, 31, 64, 100, 129, 256, 1000, 4100};
    int64_t size = random_pick(&source, sizes, sizeof sizes / sizeof *sizes);
    if (random_once_in(&source, 60))
        return 0;
    return size <= room ? size : 1 + size % 2;
}

/* Drops some of the leading ones. */
static void trim(struct shape *shape)
{
    while (shape->rank > 0 && shape->dims[0] == 1 &&
           random_once_in(&source, 2)) {
        shape->rank--;
        memmove(shape->dims, shape->dims + 1,
                (size_t)shape->rank * sizeof *shape->dims);
    }
}

static struct binary_case random_case(void)
{
    struct binary_case c = {
        .function = (enum binary_function)random_int(&source, 0, 3),
        .dtype = types[random_int(&source, 0, 2)],
        .is_positive = random_once_in(&source, 3),
        .options = {.misalign_elements = (int)random_int(&source, 0, 1)}};
    int rank = (int)random_int(&source, 0, ROPED_MAX_RANK);
    int64_t room = random_once_in(&source, 8) ? 200000 : 8000;
    int kind = (int)random_int(&source, 0, 3); /* 3: a new one for each dim */
    c.omits_values = c.function <= BINARY_SUB && random_once_in(&source, 2);
    c.a.rank = c.b.rank = rank;
    for (int i = rank - 1; i >= 0; i--) {
        int64_t size = random_size(room);
        int of = kind < 3 && random_once_in(&source, 2)
                     ? kind
                     : (int)random_int(&source, 0, kind < 3 ? 1 : 2);
        c.a.dims[i] = of == 1 && kind != 2 ? 1 : size;
        c.b.dims[i] = of == 2 || (of == 1 && kind == 2) ? 1 : size;
        room /= size > 0 ? size : 1;
    }
    trim(&c.a);
    trim(&c.b);
    return c;
}

TEST(random_shapes_are_within_tolerance)
{
    int n = check_cases(4000);
    for (int i = 0; i < n; i++) {
        struct binary_case c = random_case();
        run_case(&c);
    }
}

/* Shapes of b beside a: each way in which a launch can be cut. */
static const struct {
    struct shape a, b;
} pairs[] = {
    /* one operand broadcast: rows, columns, both, middles, all */
    {{2, {512, 384}}, {1, {384}}},
    {{2, {3, 40000}}, {1, {40000}}},
    {{2, {20000, 3}}, {1, {3}}},
    {{2, {5000, 40}}, {1, {40}}},
    {{2, {9001, 20}}, {1, {20}}},
    {{2, {700, 256}}, {2, {700, 1}}},
    {{2, {33, 4096}}, {2, {33, 1}}},
    {{2, {7, 10007}}, {2, {7, 1}}},
    {{2, {30000, 4}}, {2, {30000, 1}}},
    {{2, {20001, 7}}, {2, {20001, 1}}},
    {{2, {2, 100000}}, {2, {2, 1}}},
    {{3, {16, 32, 256}}, {3, {1, 32, 1}}},
    {{3, {300, 3, 32}}, {3, {1, 3, 1}}},
    {{3, {4000, 2, 2}}, {3, {1, 2, 1}}},
    {{3, {5, 999, 40}}, {3, {5, 1, 40}}},
    {{3, {64, 40, 64}}, {3, {64, 1, 64}}},
    {{3, {600, 9, 17}}, {3, {600, 1, 17}}},
    {{4, {20, 6, 30, 32}}, {4, {1, 6, 1, 32}}},
    {{4, {100, 3, 2, 64}}, {4, {1, 3, 1, 64}}},
    {{4, {3, 50, 4, 128}}, {4, {3, 1, 4, 1}}},
    {{4, {9, 40, 5, 12}}, {4, {9, 1, 5, 1}}},
    {{1, {200000}}, {0, {0}}},
    {{1, {65537}}, {1, {1}}},
    {{1, {262144}}, {1, {262144}}},
    {{1, {10007}}, {1, {10007}}},
    {{5, {8, 3, 16, 4, 32}}, {5, {8, 1, 16, 1, 32}}},
    {{5, {8, 3, 16, 4, 32}}, {5, {1, 3, 1, 4, 1}}},
    {{6, {6, 5, 4, 6, 5, 8}}, {6, {6, 1, 4, 1, 5, 1}}},
    {{8, {2, 3, 4, 3, 2, 5, 3, 8}}, {8, {2, 1, 4, 1, 2, 1, 3, 1}}},
    {{8, {3, 2, 4, 3, 2, 3, 5, 4}}, {8, {1, 2, 1, 3, 1, 3, 1, 4}}},
    /* both broadcast */
    {{2, {300, 1}}, {2, {1, 500}}},
    {{2, {3, 1}}, {2, {1, 50000}}},
    {{2, {50000, 1}}, {1, {3}}},
    {{3, {40, 1, 64}}, {3, {1, 60, 64}}},
    {{3, {1, 70, 32}}, {3, {50, 1, 32}}},
    {{4, {12, 1, 16, 1}}, {4, {1, 13, 1, 33}}},
    {{4, {1, 13, 16, 33}}, {4, {12, 1, 16, 33}}},
    {{3, {64, 1, 1}}, {3, {1, 32, 100}}},
    {{8, {3, 1, 4, 1, 3, 1, 2, 1}}, {8, {1, 5, 1, 3, 1, 6, 1, 7}}},
    {{8, {3, 1, 4, 2, 3, 1, 2, 8}}, {8, {1, 5, 4, 1, 1, 6, 2, 1}}},
};

TEST(every_way_to_cut_a_launch_is_within_tolerance)
{
    bool is_quick = getenv("ROPED_TEST_QUICK") != NULL;
    for (unsigned i = 0; i < sizeof pairs / sizeof *pairs; i++)
        for (int variant = 0; variant < 24; variant++) {
            struct binary_case c = {
                .a = variant & 1 ? pairs[i].b : pairs[i].a,
                .b = variant & 1 ? pairs[i].a : pairs[i].b,
                .function = (enum binary_function)(variant / 2 % 4),
                .dtype = types[variant / 8 % 3],
                .is_positive = (variant + (int)i) % 3 == 0,
                .options = {.misalign_elements = (variant / 2 + (int)i) % 2}};
            if (!is_quick || (variant + (int)i) % 12 == 0)
                run_case(&c);
        }
}

/* Long sums, of one sign: an error that grows with the length would show. */
TEST(long_sums_stay_within_tolerance)
{
    static const struct {
        struct shape a, b;
    } shapes[] = {
        {{1, {3000000}}, {0, {0}}},
        {{2, {500000, 5}}, {1, {5}}},
        {{2, {40000, 64}}, {1, {64}}},
        {{2, {3, 1000000}}, {2, {3, 1}}},
        {{3, {2000, 16, 64}}, {3, {1, 16, 1}}},
        {{2, {1000000, 1}}, {2, {1, 2}}},
        {{2, {3, 700001}}, {2, {3, 1}}}, /* no two rows aligned alike */
        {{2, {30, 40001}}, {1, {40001}}},
    };
    bool is_quick = getenv("ROPED_TEST_QUICK") != NULL;
    for (unsigned i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int t = 0; t < 3; t++) {
            if (is_quick && t != (int)i % 3)
                continue;
            struct binary_case c = {.a = shapes[i].a,
                                    .b = shapes[i].b,
                                    .function = BINARY_ADD,
                                    .dtype = types[t],
                                    .is_positive = true,
                                    .omits_values = t == 1,
                                    .options = {.misalign_elements = t == 2}};
            if (c.dtype == ROPED_F16) /* the sums pass its range */
                c.function = BINARY_SUB;
            run_case(&c);
        }
}

TEST(gradients_of_nothing_are_zeros)
{
    static const struct {
        struct shape a, b;
    } shapes[] = {
        {{1, {0}}, {0, {0}}},         {{2, {0, 5}}, {1, {5}}},
        {{2, {3, 0}}, {2, {3, 1}}},   {{2, {0, 4}}, {2, {0, 4}}},
        {{2, {1, 0}}, {2, {600, 1}}}, {{3, {2, 0, 3}}, {3, {1, 1, 3}}},
    };
    for (unsigned i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int variant = 0; variant < 12; variant++) {
            struct binary_case c = {.a = shapes[i].a,
                                    .b = shapes[i].b,
                                    .function =
                                        (enum binary_function)(variant % 4),
                                    .dtype = types[variant / 4]};
            run_case(&c);
        }
}

/* ------------------------------------------------------------------- bits */

static void expect_same_bits(const struct binary_call *x,
                             const struct binary_call *y, const char *what)
{
    for (int i = BINARY_GRAD_A; i <= BINARY_GRAD_B; i++) {
        const void *first = x->call.out[i].data, *second = y->call.out[i].data;
        if (first && second &&
            memcmp(first, second,
                   (size_t)roped_tensor_bytes(&x->call.out[i])) != 0)
            CHECK_FAIL("%s: other bits in %s", what,
                       i == BINARY_GRAD_A ? "grad_a" : "grad_b");
    }
}

/* Runs the same inputs on two runners, or twice on one; the second time at
 * addresses that are this much further off. */
static void run_twice(const struct binary_case *c, struct runner *first,
                      struct runner *second, int misalign, const char *what)
{
    struct runner_options moved = {.misalign_elements =
                                       c->options.misalign_elements + misalign};
    static struct binary_call x, y;
    struct roped_error err;
    build(&x, c);
    y = x;
    CHECK_OK(runner_run(first, &x.call, &c->options, &err), &err);
    CHECK_OK(runner_run(second, &y.call, &moved, &err), &err);
    expect_same_bits(&x, &y, what);
    runner_free_outputs(&y.call);
    release(&x);
}

TEST(the_same_call_gives_the_same_bits)
{
    for (unsigned i = 0; i < sizeof pairs / sizeof *pairs; i++)
        for (int t = 0; t < 3; t++) {
            struct binary_case c = {.a = pairs[i].a,
                                    .b = pairs[i].b,
                                    .function = BINARY_MUL,
                                    .dtype = types[t],
                                    .options = {.misalign_elements = t == 2}};
            run_twice(&c, &runner, &runner, 0, "a second run");
        }
}

TEST(bits_do_not_depend_on_threads_and_addresses)
{
    static const struct {
        struct shape a, b;
    } shapes[] = {
        {{1, {700000}}, {0, {0}}},
        {{2, {3000, 200}}, {1, {200}}},
        {{2, {3000, 200}}, {2, {3000, 1}}},
        {{3, {50, 60, 100}}, {3, {1, 60, 1}}},
        {{2, {900, 1}}, {2, {1, 700}}},
    };
    if (!runner.api->is_host)
        return;
    for (int n_threads = 1; n_threads <= 5; n_threads += 4) {
        struct runner other = {.api = runner.api};
        struct roped_backend_options options = {.n_threads = n_threads};
        struct roped_error err;
        CHECK_OK(other.api->open(&options, &other.backend, &err), &err);
        CHECK_OK(other.api->queue_open(other.backend, &other.queue, &err),
                 &err);
        for (unsigned i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            struct binary_case c = {.a = shapes[i].a,
                                    .b = shapes[i].b,
                                    .function = BINARY_MUL,
                                    .dtype = ROPED_F32};
            run_twice(&c, &runner, &other, n_threads == 5,
                      "other threads and addresses");
        }
        runner_close(&other);
    }
}

/* ---------------------------------------------------------- special values */

/* One call of rank 1 on given values, b broadcast where n_b is 1. */
static void run_values(enum binary_function function, const float *g,
                       const float *a, const float *b, int64_t n, int64_t n_b,
                       float *grad_a, float *grad_b)
{
    static struct roped_call call;
    struct roped_error err;
    struct runner_options options = {0};
    struct roped_tensor of_g = {ROPED_F32, 1, {n}, (void *)(uintptr_t)g};
    struct roped_tensor of_a = {ROPED_F32, 1, {n}, (void *)(uintptr_t)a};
    struct roped_tensor of_b = {ROPED_F32, 1, {n_b}, (void *)(uintptr_t)b};
    roped_call_init(&call, roped_op_find("binary_backward"));
    CHECK_OK(roped_call_set_text(&call, "function", functions[function], &err),
             &err);
    CHECK_OK(roped_call_bind(&call, "grad_output", &of_g, &err), &err);
    CHECK_OK(roped_call_bind(&call, "a", &of_a, &err), &err);
    CHECK_OK(roped_call_bind(&call, "b", &of_b, &err), &err);
    CHECK_OK(roped_call_resolve(&call, &err), &err);
    CHECK_OK(runner_run(&runner, &call, &options, &err), &err);
    if (call.out[BINARY_GRAD_A].data && call.out[BINARY_GRAD_B].data) {
        memcpy(grad_a, call.out[BINARY_GRAD_A].data, (size_t)n * sizeof *g);
        memcpy(grad_b, call.out[BINARY_GRAD_B].data, (size_t)n_b * sizeof *g);
    }
    runner_free_outputs(&call);
}

/* Gradients of what is not broadcast, of so many rows that there are kernels of
 * their own for them. */
TEST(rows_have_the_bits_that_they_have_among_few)
{
    for (int i = 0; i < 6; i++) {
        static struct binary_call few, many;
        struct roped_error err = {.text = ""};
        struct binary_case c = {.a = {2, {61, 1016}},
                                .b = {2, {61, 1016}},
                                .function = i % 2 ? BINARY_DIV : BINARY_MUL,
                                .dtype = types[i / 2]};
        build(&few, &c);
        many = few;
        int64_t n = runner_many_bytes(&runner) * c.a.dims[0] /
                    roped_call_bytes(&few.call);
        many.call.in[BINARY_GRAD_OUTPUT] = many.g = case_repeat(&few.g, n);
        many.call.in[BINARY_A] = many.a = case_repeat(&few.a, n);
        many.call.in[BINARY_B] = many.b = case_repeat(&few.b, n);
        CHECK_OK(roped_call_resolve(&many.call, &err), &err);
        CHECK_OK(runner_run(&runner, &few.call, &c.options, &err), &err);
        CHECK_OK(runner_run(&runner, &many.call, &c.options, &err), &err);
        for (int out = 0; out < 2 && !check_failures; out++)
            CHECK_INT(case_wrong_row(&many.call.out[out], &few.call.out[out]),
                      -1);
        release(&few);
        release(&many);
    }
}

TEST(division_by_zero_is_that_of_ieee)
{
    static const float g[] = {1, -1, 0, 2}, a[] = {3, 3, 3, 0};
    static const float b[] = {0, -0.0f, 0, 0};
    float grad_a[4] = {0}, grad_b[4] = {0};
    run_values(BINARY_DIV, g, a, b, 4, 4, grad_a, grad_b);
    CHECK(grad_a[0] == INFINITY && grad_a[1] == INFINITY);
    CHECK(isnan(grad_a[2]) && grad_a[3] == INFINITY);
    CHECK(grad_b[0] == -INFINITY && grad_b[1] == INFINITY);
    CHECK(isnan(grad_b[2]) && isnan(grad_b[3]));
}

/* b * b is infinite or zero here, a / b / b is neither. */
TEST(division_keeps_its_range)
{
    static const float g[] = {1, 2, 1, 0x1p-40f},
                       a[] = {0x1p100f, -0x1p90f, 0x1p-100f, 0x1p-120f};
    static const float b[] = {0x1p80f, 0x1p70f, -0x1p-80f, 0x1p-90f};
    float grad_a[4] = {0}, grad_b[4] = {0};
    run_values(BINARY_DIV, g, a, b, 4, 4, grad_a, grad_b);
    for (int i = 0; i < 4; i++) {
        double exact =
            -(double)g[i] * ((double)a[i] / (double)b[i] / (double)b[i]);
        CHECK_DOUBLE((double)grad_b[i] / exact, 1, 1e-6);
        CHECK_DOUBLE((double)grad_a[i] * (double)b[i] / (double)g[i], 1, 1e-6);
    }
}

TEST(non_finite_values_stay_in_their_sums)
{
    enum { N = 5000 };
    static float g[N], a[N], grad_a[N];
    float b = 2, grad_b = 0;
    for (int i = 0; i < N; i++)
        g[i] = a[i] = 1;
    g[3000] = INFINITY;
    run_values(BINARY_MUL, g, a, &b, N, 1, grad_a, &grad_b);
    CHECK(grad_b == INFINITY && grad_a[3000] == INFINITY && grad_a[2999] == 2);
    g[4000] = NAN;
    run_values(BINARY_MUL, g, a, &b, N, 1, grad_a, &grad_b);
    CHECK(isnan(grad_b) && isnan(grad_a[4000]) && grad_a[4001] == 2);
}

int main(int argc, char **argv)
{
    return runner_main(&runner, argc, argv);
}
