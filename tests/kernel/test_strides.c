/*
 * test_strides.c - tensors with a stride on one backend (argument: cpu or
 * cuda): the bits of the packed call, for every operator that takes strides,
 * whether tensors are slices of one row or lie apart, in place or not, at
 * strides that 16 bytes divide and at others; what is between tokens keeps its
 * bits. The sweeps judge the same strides against float64.
 */
#include "check.h"
#include "kernel/append_case.h"
#include "kernel/norm_case.h"
#include "kernel/parts_case.h"

static struct runner runner;
static struct random_source source = {53};

static const struct runner_options layouts[] = {
    {.gap = 0},
    {.gap = 8},
    {.gap = 2048},
    {.gap = 1, .misalign_elements = 1},
    {.gap = 13, .misalign_elements = 1},
    {.gap = 64, .packs_outputs = true},
    {.gap = 5, .packs_outputs = true, .misalign_elements = 1},
    {.gap = 0, .is_fused = true},
    {.gap = 512, .is_fused = true},
    {.gap = 3, .is_fused = true, .misalign_elements = 1},
    {.gap = 64, .is_fused = true, .packs_outputs = true},
};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

/* The outputs of a call, one behind another; the caller frees them. */
static unsigned char *outputs_of(const struct roped_call *call, size_t *bytes)
{
    *bytes = 0;
    for (int i = 0; i < call->n_out; i++)
        *bytes += (size_t)roped_tensor_bytes(&call->out[i]) *
                  (size_t)roped_tensor_given(&call->out[i]);
    unsigned char *all = runner_alloc(*bytes), *to = all;
    for (int i = 0; i < call->n_out; i++) {
        const struct roped_tensor *out = &call->out[i];
        size_t n =
            roped_tensor_given(out) ? (size_t)roped_tensor_bytes(out) : 0;
        if (n)
            memcpy(to, out->data, n);
        to += n;
    }
    return all;
}

static unsigned char *run(struct roped_call *call,
                          const struct runner_options *options, size_t *bytes)
{
    struct roped_error err = {.text = ""};
    unsigned char *all = NULL;
    char text[160];
    enum roped_status status = runner_run(&runner, call, options, &err);
    if (status)
        CHECK_FAIL("%s %s: %s", call->op->name,
                   runner_options_text(options, text, sizeof text), err.text);
    else
        all = outputs_of(call, bytes);
    runner_free_outputs(call);
    return all;
}

/* Misaligned tensors take other kernels than aligned ones: the packed call is
 * misaligned as well. */
static void compare(struct roped_call *call, const struct runner_options *base,
                    const char *what)
{
    char text[160];
    for (int i = 0; i < LAYOUTS; i++) {
        struct runner_options packed = *base, strided = layouts[i];
        size_t packed_bytes, bytes;
        packed.misalign_elements = strided.misalign_elements;
        strided.has_strides = true;
        strided.in_place = base->in_place;
        strided.use_table = base->use_table;
        unsigned char *expected = run(call, &packed, &packed_bytes);
        unsigned char *found = run(call, &strided, &bytes);
        if (expected && found && memcmp(expected, found, bytes) != 0)
            CHECK_FAIL("%s %s %s: other bits than packed", call->op->name, what,
                       runner_options_text(&strided, text, sizeof text));
        free(expected);
        free(found);
    }
}

static void compare_resolved(struct roped_call *call,
                             const struct runner_options *base,
                             const char *what)
{
    struct roped_error err = {.text = ""};
    CHECK_OK(roped_call_resolve(call, &err), &err);
    compare(call, base, what);
    case_free(call);
}

TEST(heads_have_the_bits_of_packed_ones)
{
    static const char *const ops[] = {"rope", "qk_rmsnorm_rope", "rope_append",
                                      "qk_rmsnorm_rope_append"};
    static struct roped_call call;
    char text[320];
    for (int i = 0; i < 2 * check_cases(200); i++) {
        const char *op = ops[i % 4];
        struct append_case c = append_case_random(&source, op);
        struct runner_options base = c.options;
        if (i % 8 == 2 && c.heads.form == HEADS)
            c.heads.hk = 0; /* MLA */
        base.has_strides = false;
        append_case_build(&call, &source, op, &c);
        compare_resolved(&call, &base,
                         heads_case_text(&c.heads, text, sizeof text));
    }
}

TEST(quantized_parts_have_the_bits_of_packed_ones)
{
    static struct roped_call call;
    char text[400];
    for (int i = 0; i < check_cases(200); i++) {
        struct parts_case c = parts_case_random(&source);
        struct runner_options base = c.options;
        base.has_strides = false;
        roped_call_init(&call, roped_op_find("rope_quantize"));
        parts_case_build(&call, &source, &c);
        compare_resolved(&call, &base, parts_case_text(&c, text, sizeof text));
    }
}

/* Any width: kernels are chosen by it. */
TEST(norms_have_the_bits_of_packed_ones)
{
    static const struct {
        const char *op, *params;
    } kinds[] = {{"rmsnorm", NULL},
                 {"rmsnorm", "rounding=hf"},
                 {"add_rmsnorm", NULL},
                 {"add_rmsnorm", "sum_rounding=type"},
                 {"add_rmsnorm", "sum_rounding=type&rounding=hf"},
                 {"layer_norm", NULL},
                 {"layer_norm", "rounding=type"},
                 {"add_layer_norm", NULL},
                 {"add_layer_norm", "sum_rounding=type&rounding=type"},
                 {"rmsnorm_quantize", "dequant_scale=0.5"},
                 {"rmsnorm_quantize", "dynamic=true"},
                 {"rmsnorm_quantize", "dynamic=true&group_size=64"},
                 {"add_rmsnorm_quantize", "dequant_scale=0.5"},
                 {"add_rmsnorm_quantize", "dynamic=true"},
                 {"add_rmsnorm_quantize", "dynamic=true&group_size=128"},
                 {"add_rmsnorm_quantize", "dequant_scale=2&sum_rounding=type"},
                 {"add_rmsnorm_quantize",
                  "dynamic=true&group_size=128&sum_rounding=type"}};
    enum { N_KINDS = sizeof kinds / sizeof *kinds };
    static const int64_t widths[] = {64,    128,  192,  256,  512,  576,
                                     1536,  2048, 4096, 7168, 8192, 16384,
                                     32768, 100,  1025, 40000};
    static const int64_t rows[] = {0, 1, 2, 7, 33};
    static struct roped_call call;
    for (int i = 0; i < check_cases(N_KINDS * 16 * 3); i++) {
        struct norm_case c = {.op = kinds[i % N_KINDS].op,
                              .params = kinds[i % N_KINDS].params,
                              .x = norm_type_pairs[i / (N_KINDS * 16) % 3][0],
                              .rows = random_pick(&source, rows, 5),
                              .hidden = widths[i / N_KINDS % 16],
                              .scale = 1,
                              .options.in_place = random_once_in(&source, 2)};
        if (i % 4)
            c.weight = c.x;
        if (c.params && strstr(c.params, "group") && c.hidden % 128)
            c.hidden = 640;
        norm_case_build(&call, &source, &c);
        compare(&call, &c.options, c.op);
        case_free(&call);
    }
}

TEST(activations_have_the_bits_of_packed_ones)
{
    static const int64_t widths[] = {64, 100, 1025, 4096, 14336};
    static struct roped_call call;
    for (int i = 0; i < check_cases(60); i++) {
        struct norm_case c = {.op = "act_and_mul",
                              .without = "x",
                              .x = norm_type_pairs[i % 3][0],
                              .rows = random_int(&source, 0, 33),
                              .hidden = random_pick(&source, widths, 5),
                              .scale = 1};
        norm_case_build(&call, &source, &c);
        compare(&call, &c.options, c.op);
        case_free(&call);
    }
}

int main(int argc, char **argv)
{
    return runner_main(&runner, argc, argv);
}
