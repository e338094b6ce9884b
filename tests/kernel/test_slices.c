/*
 * test_slices.c - a call cut by rows gives the bits of the whole call: random
 * calls of every operator that can be cut, in slices of random lengths, packed
 * and with strides, on the CPU backend; and calls that cannot be cut say so.
 */
#include "check.h"
#include "kernel/heads_case.h"
#include "kernel/norm_case.h"
#include "kernel/runner.h"

static struct runner runner;
static struct random_source source = {77};

/* The outputs of a call, one behind another. */
static size_t gather(const struct roped_call *call, unsigned char *to)
{
    size_t at = 0;
    for (int i = 0; i < call->n_out; i++) {
        const struct roped_tensor *out = &call->out[i];
        size_t bytes =
            roped_tensor_given(out) ? (size_t)roped_tensor_bytes(out) : 0;
        if (to && bytes)
            memcpy(to + at, out->data, bytes);
        at += bytes;
    }
    return at;
}

static void spoil(const struct roped_call *call)
{
    for (int i = 0; i < call->n_out; i++)
        if (roped_tensor_given(&call->out[i]) && call->out[i].data)
            memset(call->out[i].data, 0xA5,
                   (size_t)roped_tensor_bytes(&call->out[i]));
}

static enum roped_status run_slice(const struct roped_call *call, int64_t begin,
                                   int64_t end, struct roped_error *err)
{
    static struct roped_call slice;
    enum roped_status status = roped_call_slice(call, begin, end, &slice, err);
    if (status)
        return status;
    slice.aux = runner_alloc(roped_call_aux_bytes(&slice) + 1);
    status = roped_call_plan(&slice, err);
    if (!status)
        status = runner.api->launch(runner.queue, &slice, err);
    free(slice.aux);
    return status;
}

/* Runs a planned call in slices; its outputs have been spoilt. */
static void run_slices(const struct roped_call *call)
{
    struct roped_error err = {.text = ""};
    int64_t rows = roped_call_rows(call);
    for (int64_t begin = 0, end; begin < rows; begin = end) {
        end = begin + random_int(&source, 1, rows - begin);
        CHECK_OK(run_slice(call, begin, end, &err), &err);
    }
}

static size_t stride_bytes(const struct roped_tensor *tensor)
{
    int64_t stride =
        tensor->stride ? tensor->stride : roped_tensor_token(tensor);
    return (size_t)stride * roped_dtype_bytes(tensor->dtype);
}

/* Token by token, to a tensor of the same shape with a stride of its own. */
static void copy_tokens(const struct roped_tensor *to,
                        const struct roped_tensor *from)
{
    size_t bytes =
        (size_t)roped_tensor_token(from) * roped_dtype_bytes(from->dtype);
    for (size_t i = 0; i < (size_t)roped_tensor_tokens(from) && bytes; i++)
        memcpy((char *)to->data + i * stride_bytes(to),
               (const char *)from->data + i * stride_bytes(from), bytes);
}

/* The same tensor with a stride, in new memory, where its port may have one. */
static void spread(const struct roped_port *port, struct roped_tensor *tensor)
{
    const struct roped_tensor packed = *tensor;
    if (!roped_tensor_given(tensor) || !(port->flags & ROPED_STRIDED))
        return;
    tensor->stride = roped_tensor_token(tensor) + random_int(&source, 0, 40);
    tensor->data = runner_alloc((size_t)roped_tensor_span(tensor) + 1);
    copy_tokens(tensor, &packed);
}

/* Slices of a call whose tensors have strides; the outputs become call's. */
static void run_slices_with_strides(const struct roped_call *call)
{
    static struct roped_call strided;
    strided = *call;
    for (int i = 0; i < call->n_in; i++)
        spread(&call->op->in[i], &strided.in[i]);
    for (int i = 0; i < call->n_out; i++)
        spread(&call->op->out[i], &strided.out[i]);
    run_slices(&strided);
    for (int i = 0; i < call->n_in; i++)
        if (strided.in[i].stride)
            free(strided.in[i].data);
    for (int i = 0; i < call->n_out; i++)
        if (strided.out[i].stride) {
            copy_tokens(&call->out[i], &strided.out[i]);
            free(strided.out[i].data);
        }
}

/* call is resolved. */
static void compare(struct roped_call *call, const char *text)
{
    struct runner_options options = {.in_place = false};
    struct roped_error err = {.text = ""};
    CHECK_OK(runner_run(&runner, call, &options, &err), &err);
    size_t bytes = gather(call, NULL);
    unsigned char *whole = runner_alloc(bytes + 1);
    unsigned char *cut = runner_alloc(bytes + 1);
    gather(call, whole);
    for (int has_strides = 0; has_strides < 2; has_strides++) {
        spoil(call);
        if (has_strides)
            run_slices_with_strides(call);
        else
            run_slices(call);
        gather(call, cut);
        if (memcmp(whole, cut, bytes) != 0)
            CHECK_FAIL("%s, strides %d: slices differ from the whole", text,
                       has_strides);
    }
    free(whole);
    free(cut);
    runner_free_outputs(call);
}

TEST(slices_of_rope_are_the_whole)
{
    static struct roped_call call;
    struct roped_error err = {.text = ""};
    char text[320];
    int n_cut = 0;
    for (int i = 0; i < check_cases(600); i++) {
        struct heads_case c = heads_case_random(&source, 0);
        bool can_be_cut = c.form != BATCHES && c.rotary.n_tokens > 0 &&
                          (c.rotary.positions < CASE_RAGGED_I32 ||
                           c.rotary.angles >= CASE_PAIR);
        if (c.rotary.angles == CASE_TABLE)
            c.rotary.angles = CASE_COMPUTED;
        heads_case_build(&call, &source, "rope", &c);
        CHECK_OK(roped_call_resolve(&call, &err), &err);
        CHECK_INT(roped_call_rows(&call), can_be_cut ? c.rotary.n_tokens : 0);
        if (can_be_cut)
            compare(&call, heads_case_text(&c, text, sizeof text));
        n_cut += can_be_cut;
        case_free(&call);
    }
    CHECK(n_cut > check_cases(600) / 10);
}

TEST(slices_of_norms_are_the_whole)
{
    static const struct {
        const char *op, *params;
    } kinds[] = {{"rmsnorm", NULL},
                 {"rmsnorm", "weight_bias=1"},
                 {"add_rmsnorm", NULL},
                 {"add_rmsnorm", "sum_rounding=type"},
                 {"layer_norm", "weight_bias=1"},
                 {"add_layer_norm", NULL},
                 {"add_layer_norm", "sum_rounding=type"},
                 {"rmsnorm_quantize", "dequant_scale=0.5"},
                 {"rmsnorm_quantize", "dynamic=true"},
                 {"rmsnorm_quantize", "dynamic=true&group_size=64"},
                 {"rmsnorm_quantize", "dynamic=true&scale_layout=rows_2d"},
                 {"add_rmsnorm_quantize", "dequant_scale=0.5"},
                 {"add_rmsnorm_quantize", "dynamic=true&group_size=32"},
                 {"add_rmsnorm_quantize", "dynamic=true&sum_rounding=type"}};
    static struct roped_call call;
    for (int i = 0; i < check_cases(200); i++) {
        unsigned kind = (unsigned)i % (sizeof kinds / sizeof *kinds);
        unsigned types = (unsigned)random_int(&source, 0, NORM_TYPE_PAIRS - 1);
        struct norm_case c = {.op = kinds[kind].op,
                              .params = kinds[kind].params,
                              .x = norm_type_pairs[types][0],
                              .weight = norm_type_pairs[types][1],
                              .rows = random_int(&source, 1, 40),
                              .hidden = 64 * random_int(&source, 1, 20),
                              .scale = 1};
        norm_case_build(&call, &source, &c);
        CHECK_INT(roped_call_rows(&call), c.rows);
        compare(&call, c.op);
        case_free(&call);
    }
}

TEST(slices_of_activations_are_the_whole)
{
    static struct roped_call call;
    for (int i = 0; i < check_cases(30); i++) {
        struct norm_case c = {.op = "act_and_mul",
                              .without = "x",
                              .x = norm_type_pairs[i % 3][0],
                              .rows = random_int(&source, 1, 40),
                              .hidden = random_int(&source, 1, 3000),
                              .scale = 1};
        norm_case_build(&call, &source, &c);
        CHECK_INT(roped_call_rows(&call), c.rows);
        compare(&call, c.op);
        case_free(&call);
    }
}

/* Scales whose rows are columns are no piece of memory of some rows. */
TEST(norms_with_scales_in_columns_stay_in_one_piece)
{
    static const char *const params[] = {
        "dynamic=true&group_size=32&scale_layout=columns",
        "dynamic=true&scale_layout=columns_4"};
    static struct roped_call call;
    for (int i = 0; i < 2; i++) {
        struct norm_case c = {.op = "rmsnorm_quantize",
                              .params = params[i],
                              .x = ROPED_F32,
                              .rows = 9,
                              .hidden = 64};
        norm_case_build(&call, &source, &c);
        CHECK_INT(roped_call_rows(&call), 0);
        case_free(&call);
    }
}

/* A cache that is updated, sums over everything: one piece. */
TEST(other_operators_stay_in_one_piece)
{
    static const char *const whole[] = {"rope_append", "rope_quantize_append",
                                        "binary_backward"};
    for (int i = 0; i < 3; i++)
        CHECK(roped_op_find(whole[i])->rows == NULL);
}

int main(void)
{
    if (!runner_open(&runner, "cpu"))
        return CHECK_SKIP;
    check_run();
    runner_close(&runner);
    return check_done();
}
