/*
 * test_many_rows.c - norms, activations and gradients of several times what a
 * GPU's cache holds, which may have kernels of their own, on one backend
 * (argument: cpu or cuda): each row has the bits that it has among few.
 */
#include "check.h"
#include "kernel/norm_case.h"
#include "kernel/rotary_case.h"

#include <string.h>

enum { FEW_ROWS = 61 };

static struct runner runner;
static struct random_source source = {53};
static int64_t many_bytes; /* inputs and outputs of a call of many rows: on cuda
                              above four times the L2 of an H200 */

static int64_t first_wrong_row(const struct roped_tensor *many,
                               const struct roped_tensor *few)
{
    size_t row = (size_t)(roped_tensor_bytes(few) / few->dims[0]);
    for (int64_t i = 0; i < many->dims[0]; i++)
        if (memcmp((char *)many->data + (size_t)i * row,
                   (char *)few->data + (size_t)(i % FEW_ROWS) * row, row) != 0)
            return i;
    return -1;
}

static void run(struct roped_call *call, const struct norm_case *c)
{
    struct roped_error err = {.text = ""};
    CHECK_OK(runner_run(&runner, call, &c->options, &err), &err);
}

static void free_call(struct roped_call *call)
{
    runner_free_outputs(call);
    case_free(call);
}

static void expect_bits(const struct norm_case *c)
{
    static struct roped_call few, many;
    if (!check_takes_case())
        return;
    norm_case_build(&few, &source, c);
    int64_t rows = many_bytes * FEW_ROWS / roped_call_bytes(&few);
    norm_case_repeat(&many, &few, c, rows);
    run(&few, c);
    run(&many, c);
    for (int i = 0; i < few.n_out && !check_failures; i++) {
        if (!roped_tensor_given(&few.out[i]))
            continue;
        int64_t wrong = first_wrong_row(&many.out[i], &few.out[i]);
        if (wrong >= 0)
            CHECK_FAIL("%s %s %s [%lld, %lld]: row %lld of '%s' differs", c->op,
                       c->params ? c->params : "", roped_dtype_name(c->x),
                       (long long)rows, (long long)c->hidden, (long long)wrong,
                       few.op->out[i].name);
    }
    free_call(&few);
    free_call(&many);
}

TEST(rows_have_the_bits_that_they_have_among_few)
{
    static const struct {
        const char *op, *params;
    } forms[] = {{"rmsnorm", NULL},
                 {"rmsnorm", "weight_bias=1"},
                 {"add_rmsnorm", NULL},
                 {"add_rmsnorm", "sum_rounding=type"},
                 {"add_rmsnorm", "sum_rounding=type&rounding=hf"},
                 {"layer_norm", NULL},
                 {"layer_norm", "rounding=type"},
                 {"add_layer_norm", NULL},
                 {"add_layer_norm", "sum_rounding=type&rounding=type"},
                 {"add_rmsnorm_quantize", "dequant_scale=0.0371"},
                 {"add_rmsnorm_quantize", "dynamic=true"},
                 {"add_rmsnorm_quantize", "dynamic=true&group_size=128"},
                 {"add_rmsnorm_quantize",
                  "dynamic=true&rounding=type&sum_rounding=type"}};
    enum { N_FORMS = sizeof forms / sizeof *forms };
    static const int64_t widths[] = {128,  256,  512,  1024,  1536,
                                     4096, 5120, 8192, 16384, 32768};
    for (int f = 0; f < N_FORMS; f++)
        for (int i = 0; i < 10; i++) {
            const enum roped_dtype *types =
                norm_type_pairs[f ? (i + f) % 3 : i % NORM_TYPE_PAIRS];
            expect_bits(&(struct norm_case){.op = forms[f].op,
                                            .x = types[0],
                                            .weight = types[1],
                                            .rows = FEW_ROWS,
                                            .hidden = widths[i],
                                            .scale = 3,
                                            .params = forms[f].params,
                                            .options = {.in_place = i % 2}});
        }
}

TEST(gradients_have_the_bits_that_they_have_among_few)
{
    static const char *const functions[] = {"function=mul", "function=div"};
    for (int f = 0; f < 2; f++)
        for (int i = 0; i < 3; i++)
            expect_bits(&(struct norm_case){.op = "binary_backward",
                                            .x = norm_type_pairs[i][0],
                                            .rows = FEW_ROWS,
                                            .hidden = 1016,
                                            .scale = 3,
                                            .params = functions[f]});
}

TEST(activations_have_the_bits_that_they_have_among_few)
{
    static const int64_t widths[] = {128, 1016, 4097};
    for (int i = 0; i < 9; i++)
        expect_bits(&(struct norm_case){.op = "act_and_mul",
                                        .without = "x",
                                        .x = norm_type_pairs[i % 3][0],
                                        .rows = FEW_ROWS,
                                        .hidden = widths[i / 3],
                                        .scale = 3});
}

int main(int argc, char **argv)
{
    const char *backend = argc > 1 ? argv[1] : "cpu";
    many_bytes = (int64_t)(strcmp(backend, "cuda") == 0 ? 320 : 4) << 20;
    if (!runner_open(&runner, backend))
        return CHECK_SKIP;
    check_run();
    runner_close(&runner);
    return check_done();
}
