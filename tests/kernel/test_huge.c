/*
 * test_huge.c - tensors of more than 2^31 elements, where a 32-bit index
 * wraps. Needs about 16 GB of host and 9 GB of device memory, so it is a
 * program of its own: test_huge cpu|cuda. A huge call repeats a small block of
 * rows; its last rows must be the bits that a small call gives for them, and
 * its sums those of the block, as often as it repeats. Steps between tokens are
 * huge as well.
 */
#include "check.h"
#include "kernel/case.h"
#include "kernel/reference_internal.h"
#include "kernel/runner.h"

#include "ops/binary_backward.h"
#include "ops/rmsnorm.h"
#include "ops/rope_quantize_append.h"

#include <math.h>

static struct runner runner;
static struct random_source source = {17};

enum { BLOCK = 64 }; /* rows that repeat */

/* Repeats the first BLOCK rows of a tensor through all of it. */
static struct roped_tensor repeated(enum roped_dtype dtype, int rank,
                                    const int64_t *dims)
{
    int64_t head[3] = {BLOCK, dims[1], rank > 2 ? dims[2] : 1};
    struct roped_tensor block = case_tensor(&source, dtype, rank, head, 1);
    struct roped_tensor all = {.dtype = dtype, .rank = rank};
    memcpy(all.dims, dims, (size_t)rank * sizeof *dims);
    size_t bytes = (size_t)roped_tensor_bytes(&all);
    size_t step = (size_t)roped_tensor_bytes(&block);
    unsigned char *memory = runner_alloc(bytes);
    for (size_t at = 0; at < bytes; at += step)
        memcpy(memory + at, block.data, at + step < bytes ? step : bytes - at);
    free(block.data);
    all.data = memory;
    return all;
}

static void run(struct roped_call *call)
{
    struct roped_error err = {.text = ""};
    struct runner_options options = {0};
    CHECK_OK(roped_call_resolve(call, &err), &err);
    CHECK_OK(runner_run(&runner, call, &options, &err), &err);
}

/* The last n rows of a tensor, as a tensor over the same memory. */
static struct roped_tensor tail(const struct roped_tensor *tensor, int64_t n)
{
    struct roped_tensor part = *tensor;
    size_t row_bytes =
        (size_t)roped_tensor_bytes(tensor) / (size_t)tensor->dims[0];
    part.dims[0] = n;
    part.data = (unsigned char *)tensor->data +
                (size_t)(tensor->dims[0] - n) * row_bytes;
    return part;
}

static void check_same_tail(const struct roped_tensor *all,
                            const struct roped_tensor *few)
{
    if (!all->data || !few->data)
        return;
    struct roped_tensor part = tail(all, few->dims[0]);
    CHECK(memcmp(part.data, few->data, (size_t)roped_tensor_bytes(few)) == 0);
}

TEST(rmsnorm_reaches_past_two_to_the_31)
{
    static struct roped_call all, few;
    int64_t dims[2] = {524290, 4096};
    struct roped_tensor x = repeated(ROPED_BF16, 2, dims);
    struct roped_tensor last = tail(&x, 33);
    roped_call_init(&all, roped_op_find("rmsnorm"));
    case_bind(&all, "x", &x);
    run(&all);
    roped_call_init(&few, roped_op_find("rmsnorm"));
    case_bind(&few, "x", &last);
    run(&few);
    check_same_tail(&all.out[RMSNORM_Y], &few.out[RMSNORM_Y]);
    runner_free_outputs(&all);
    runner_free_outputs(&few);
    free(x.data);
}

static void start_rotary(struct roped_call *call, const char *op,
                         int64_t offset)
{
    char text[32];
    roped_call_init(call, roped_op_find(op));
    snprintf(text, sizeof text, "%lld", (long long)offset);
    case_param(call, "offset", text);
    case_param(call, "angles", "compute");
}

TEST(rope_reaches_past_two_to_the_31)
{
    static struct roped_call all, few;
    int64_t dims[3] = {524290, 32, 128};
    struct roped_tensor q = repeated(ROPED_BF16, 3, dims);
    struct roped_tensor last = tail(&q, 33);
    start_rotary(&all, "rope", 0);
    case_bind(&all, "q", &q);
    run(&all);
    start_rotary(&few, "rope", dims[0] - 33);
    case_bind(&few, "q", &last);
    run(&few);
    check_same_tail(&all.out[ROPE_Q_OUT], &few.out[ROPE_Q_OUT]);
    runner_free_outputs(&all);
    runner_free_outputs(&few);
    free(q.data);
}

TEST(rope_quantize_reaches_past_two_to_the_31)
{
    static struct roped_call all, few;
    int64_t rope[3] = {262150, 128, 64}, k_rope[2] = {262150, 64};
    struct roped_tensor q = repeated(ROPED_BF16, 3, rope);
    struct roped_tensor k = repeated(ROPED_BF16, 2, k_rope);
    struct roped_tensor last_q = tail(&q, 33), last_k = tail(&k, 33);
    start_rotary(&all, "rope_quantize", 0);
    case_bind(&all, "q_rope", &q);
    case_bind(&all, "k_rope", &k);
    run(&all);
    start_rotary(&few, "rope_quantize", rope[0] - 33);
    case_bind(&few, "q_rope", &last_q);
    case_bind(&few, "k_rope", &last_k);
    run(&few);
    check_same_tail(&all.out[ROPE_QUANTIZE_Q_ROPE_OUT],
                    &few.out[ROPE_QUANTIZE_Q_ROPE_OUT]);
    check_same_tail(&all.out[ROPE_QUANTIZE_K_ROPE_OUT],
                    &few.out[ROPE_QUANTIZE_K_ROPE_OUT]);
    runner_free_outputs(&all);
    runner_free_outputs(&few);
    free(q.data);
    free(k.data);
}

/* Sum of a column over rows that repeat, or of one row, and of magnitudes. */
static void column_sum(const struct roped_tensor *g, int64_t column,
                       double sum[2])
{
    int64_t rows = g->dims[0], width = g->dims[1];
    sum[0] = sum[1] = 0;
    for (int64_t row = 0; row < BLOCK; row++) {
        double x = reference_value(g, row * width + column);
        double times = (double)(rows / BLOCK + (row < rows % BLOCK));
        sum[0] += x * times;
        sum[1] += fabs(x) * times;
    }
}

static void row_sum(const struct roped_tensor *g, int64_t row, double sum[2])
{
    sum[0] = sum[1] = 0;
    for (int64_t i = 0; i < g->dims[1]; i++) {
        double x = reference_value(g, row * g->dims[1] + i);
        sum[0] += x;
        sum[1] += fabs(x);
    }
}

/* Runs add on g; a_shape and b_shape are its only other inputs. */
static void run_add(struct roped_call *call, const struct roped_tensor *g,
                    const char *a_shape, const char *b_shape)
{
    roped_call_init(call, roped_op_find("binary_backward"));
    case_bind(call, "grad_output", g);
    case_param(call, "a_shape", a_shape);
    case_param(call, "b_shape", b_shape);
    run(call);
}

static void judge_columns(const struct roped_tensor *g,
                          const struct roped_tensor *gradient,
                          struct reference_judge *judge)
{
    double sum[2];
    for (int64_t i = 0; i < g->dims[1] && gradient->data; i++) {
        column_sum(g, i, sum);
        judge_float(judge, gradient, i, sum[0], sum[1], "columns");
    }
}

TEST(binary_backward_reaches_past_two_to_the_31)
{
    static struct roped_call call;
    struct reference_judge judge = {0};
    int64_t dims[2] = {524290, 4096};
    char rows[48];
    struct roped_tensor g = repeated(ROPED_BF16, 2, dims);
    snprintf(rows, sizeof rows, "%lld,4096", (long long)dims[0]);
    run_add(&call, &g, rows, "4096"); /* one operand broadcast */
    const struct roped_tensor *grad_a = &call.out[BINARY_GRAD_A];
    CHECK(grad_a->data &&
          memcmp(grad_a->data, g.data, (size_t)roped_tensor_bytes(&g)) == 0);
    judge_columns(&g, &call.out[BINARY_GRAD_B], &judge);
    runner_free_outputs(&call);
    snprintf(rows, sizeof rows, "%lld,1", (long long)dims[0]);
    run_add(&call, &g, rows, "4096"); /* both */
    judge_columns(&g, &call.out[BINARY_GRAD_B], &judge);
    for (int64_t row = dims[0] - 33; row < dims[0] && grad_a->data; row++) {
        double sum[2];
        row_sum(&g, row, sum);
        judge_float(&judge, grad_a, row, sum[0], sum[1], "rows");
    }
    CHECK_INT(judge.n_checked, 2 * 4096 + 33);
    if (judge.n_wrong)
        CHECK_FAIL("%lld wrong: %s", (long long)judge.n_wrong, judge.first);
    runner_free_outputs(&call);
    free(g.data);
}

/* Blocks of one gradient by the ten thousand have room for what they leave. */
TEST(both_gradients_of_rows_of_millions_of_odd_columns)
{
    enum { STEP = 997 };
    static struct roped_call call;
    struct reference_judge judge = {0};
    int64_t dims[2] = {BLOCK + 2, 4100003};
    double sum[2];
    char rows[48], columns[48];
    struct roped_tensor g = repeated(ROPED_F16, 2, dims);
    snprintf(rows, sizeof rows, "%lld,1", (long long)dims[0]);
    snprintf(columns, sizeof columns, "%lld", (long long)dims[1]);
    run_add(&call, &g, rows, columns);
    const struct roped_tensor *grad_a = &call.out[BINARY_GRAD_A];
    const struct roped_tensor *grad_b = &call.out[BINARY_GRAD_B];
    for (int64_t i = 0; i < dims[1] && grad_b->data; i += STEP) {
        column_sum(&g, i, sum);
        judge_float(&judge, grad_b, i, sum[0], sum[1], "columns");
    }
    for (int64_t row = 0; row < dims[0] && grad_a->data; row++) {
        row_sum(&g, row, sum);
        judge_float(&judge, grad_a, row, sum[0], sum[1], "rows");
    }
    CHECK_INT(judge.n_checked, dims[1] / STEP + 1 + dims[0]);
    if (judge.n_wrong)
        CHECK_FAIL("%lld wrong: %s", (long long)judge.n_wrong, judge.first);
    runner_free_outputs(&call);
    free(g.data);
}

/* One token per entry of the last page of an MLA cache of this many pages. */
enum { PAGE_SIZE = 256, PAGE_ELEMENTS = PAGE_SIZE * 64 };

static void append_to_last(struct roped_call *call, int64_t pages,
                           const struct roped_tensor *q,
                           const struct roped_tensor *k)
{
    int64_t n = PAGE_SIZE, one = 1, two = 2, dims[3] = {pages, PAGE_SIZE, 64};
    struct roped_tensor cache = case_tensor(&source, ROPED_F8_E4M3, 3, dims, 0);
    struct roped_tensor indices = case_tensor(&source, ROPED_I32, 1, &one, 0);
    struct roped_tensor indptr = case_tensor(&source, ROPED_I32, 1, &two, 0);
    struct roped_tensor requests = case_tensor(&source, ROPED_I32, 1, &n, 0);
    struct roped_tensor places = case_tensor(&source, ROPED_I32, 1, &n, 0);
    memset(cache.data, 0xA5, (size_t)roped_tensor_bytes(&cache));
    ((int32_t *)indices.data)[0] = (int32_t)pages - 1;
    ((int32_t *)indptr.data)[0] = 0;
    ((int32_t *)indptr.data)[1] = 1;
    for (int i = 0; i < PAGE_SIZE; i++) {
        ((int32_t *)requests.data)[i] = 0;
        ((int32_t *)places.data)[i] = i;
    }
    start_rotary(call, "rope_quantize_append", 0);
    case_bind(call, "q_rope", q);
    case_bind(call, "k_rope", k);
    case_bind(call, "kpe_cache", &cache);
    case_bind(call, "page_indices", &indices);
    case_bind(call, "page_indptr", &indptr);
    case_bind(call, "batch_indices", &requests);
    case_bind(call, "kv_positions", &places);
    run(call);
}

TEST(rope_quantize_append_reaches_past_two_to_the_31)
{
    static struct roped_call all, few;
    int64_t q_dims[3] = {PAGE_SIZE, 2, 64}, k_dims[2] = {PAGE_SIZE, 64};
    int64_t pages = ((int64_t)1 << 31) / PAGE_ELEMENTS + 3;
    struct roped_tensor q = case_tensor(&source, ROPED_BF16, 3, q_dims, 1);
    struct roped_tensor k = case_tensor(&source, ROPED_BF16, 2, k_dims, 1);
    append_to_last(&all, pages, &q, &k);
    append_to_last(&few, 1, &q, &k);
    int out = ROPE_QUANTIZE_APPEND_KPE_CACHE_OUT;
    check_same_tail(&all.out[out], &few.out[out]);
    const unsigned char *before = all.out[out].data;
    if (before) /* nothing wrapped to the first page */
        CHECK(before[0] == 0xA5 &&
              memcmp(before, before + 1, PAGE_ELEMENTS) == 0);
    all.in[ROPE_QUANTIZE_APPEND_Q_ROPE].data = NULL; /* shared with few */
    all.in[ROPE_QUANTIZE_APPEND_K_ROPE].data = NULL;
    runner_free_outputs(&all);
    runner_free_outputs(&few);
    case_free(&all);
    case_free(&few);
}

/* The first output, or NULL; the caller frees it. */
static void *first_output(struct roped_call *call,
                          const struct runner_options *options)
{
    struct roped_error err = {.text = ""};
    CHECK_OK(runner_run(&runner, call, options, &err), &err);
    void *data = call->out[0].data;
    call->out[0].data = NULL;
    runner_free_outputs(call);
    return data;
}

/* A few tokens, gigabytes apart: the bits of packed ones. */
TEST(steps_reach_past_two_to_the_32)
{
    static const struct {
        const char *op;
        int n_inputs, rank;
    } kinds[] = {{"rope", 2, 3},
                 {"qk_rmsnorm_rope", 2, 3},
                 {"rmsnorm", 1, 2},
                 {"add_rmsnorm", 2, 2}};
    int64_t heads[3] = {5, 8, 128}, rows[2] = {5, 1024};
    for (int i = 0; i < 8; i++) {
        static struct roped_call call;
        struct roped_error err = {.text = ""};
        int rank = kinds[i / 2].rank;
        struct runner_options packed = {.in_place = i % 2}, strided = packed;
        strided.has_strides = strided.is_fused = strided.packs_outputs = true;
        strided.gap = 700 * 1000 * 1000;
        roped_call_init(&call, roped_op_find(kinds[i / 2].op));
        for (int in = 0; in < kinds[i / 2].n_inputs; in++) {
            struct roped_tensor x = case_tensor(&source, ROPED_BF16, rank,
                                                rank == 3 ? heads : rows, 1);
            case_bind(&call, call.op->in[in].name, &x);
        }
        CHECK_OK(roped_call_resolve(&call, &err), &err);
        void *expected = first_output(&call, &packed);
        void *found = first_output(&call, &strided);
        if (expected && found)
            CHECK(memcmp(expected, found,
                         (size_t)roped_tensor_bytes(&call.out[0])) == 0);
        free(expected);
        free(found);
        case_free(&call);
    }
}

int main(int argc, char **argv)
{
    return runner_main(&runner, argc, argv);
}
