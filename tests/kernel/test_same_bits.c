/*
 * test_same_bits.c - a call has the same bits however it is computed, on one
 * backend (arguments: cpu or cuda, and an operator; without it all of them):
 * cut by rows, with strides, in place or not,
 * its rows among many. Calls are random ones of every operator, made from the
 * descriptors alone; that the bits are right is for the sweeps to say.
 */
#include "calls/random_call.h"
#include "check.h"
#include "kernel/broadcast.h"
#include "kernel/case.h"
#include "kernel/many_rows.h"
#include "kernel/reference.h"
#include "kernel/runner.h"

static struct runner runner;
static struct random_source source = {53};
static const char *only; /* the operator that is tested, or NULL */

/* The i-th operator where it is tested, else NULL. */
static const struct roped_op *op_at(int i)
{
    const struct roped_op *op = roped_op_at(i);
    return !only || strcmp(only, op->name) == 0 ? op : NULL;
}

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

static void fail(const struct random_call *made,
                 const struct runner_options *options, const char *what)
{
    char call[1024], how[160];
    CHECK_FAIL("%s %s: %s", random_call_text(made, call, sizeof call),
               runner_options_text(options, how, sizeof how), what);
}

/* The outputs of a call, one behind another; the caller frees them. */
static unsigned char *outputs_of(struct random_call *made,
                                 const struct runner_options *options,
                                 size_t *bytes)
{
    struct roped_call *call = &made->call;
    struct roped_error err = {.text = ""};
    if (runner_run(&runner, call, options, &err))
        fail(made, options, err.text);
    *bytes = 0;
    for (int i = 0; i < call->n_out; i++)
        if (call->out[i].data)
            *bytes += (size_t)roped_tensor_bytes(&call->out[i]);
    unsigned char *all = runner_alloc(*bytes), *to = all;
    for (int i = 0; i < call->n_out; i++) {
        const struct roped_tensor *out = &call->out[i];
        size_t n = out->data ? (size_t)roped_tensor_bytes(out) : 0;
        if (n)
            memcpy(to, out->data, n);
        to += n;
    }
    runner_free_outputs(call);
    return all;
}

/* Says which element of which output is the first that differs. */
static void fail_at(const struct random_call *made,
                    const struct runner_options *options,
                    const unsigned char *found, const unsigned char *expected)
{
    const struct roped_call *call = &made->call;
    size_t at = 0;
    int i = 0;
    while (found[at] == expected[at])
        at++;
    for (; i < call->n_out - 1; i++) {
        const struct roped_tensor *out = &call->out[i];
        size_t n =
            roped_tensor_given(out) ? (size_t)roped_tensor_bytes(out) : 0;
        if (at < n)
            break;
        at -= n;
        found += n;
        expected += n;
    }
    char what[160];
    const struct roped_tensor *out = &call->out[i];
    int64_t element = (int64_t)(at / roped_dtype_bytes(out->dtype));
    struct roped_tensor is = *out, was = *out;
    is.data = (void *)(uintptr_t)found;
    was.data = (void *)(uintptr_t)expected;
    snprintf(what, sizeof what,
             "%s element %lld is %.9g, and %.9g packed and whole",
             call->op->out[i].name, (long long)element,
             reference_value(&is, element), reference_value(&was, element));
    fail(made, options, what);
}

static void expect_same(struct random_call *made,
                        const struct runner_options *options,
                        const unsigned char *expected, size_t expected_bytes)
{
    size_t bytes;
    unsigned char *found = outputs_of(made, options, &bytes);
    if (bytes != expected_bytes)
        fail(made, options, "another size than packed and whole");
    else if (memcmp(found, expected, bytes) != 0)
        fail_at(made, options, found, expected);
    free(found);
}

/* Is the table that the call may use, or must, one that fits? */
static bool has_small_table(const struct roped_call *call)
{
    const int64_t most = check_cases(10) == 10 ? 64 << 20 : 1 << 20;
    return random_call_table_bytes(call) < most;
}

static void make(struct random_call *made, const struct roped_op *op,
                 bool is_wide)
{
    const enum random_widths widths = is_wide ? RANDOM_ANY : RANDOM_FEW;
    random_call_make_sound(made, op, widths, &source);
    while (made->call.table.required && !has_small_table(&made->call)) {
        random_call_free(made);
        random_call_make_sound(made, op, widths, &source);
    }
}

/* Where results go and where angles come from, the same in two runs. */
static struct runner_options random_options(const struct random_call *made)
{
    const struct roped_table_use *use = &made->call.table;
    return (struct runner_options){
        .in_place = random_once_in(&source, 2),
        .updates_apart = random_once_in(&source, 4),
        .is_tight = random_once_in(&source, 2),
        .use_table = use->required || (random_once_in(&source, 2) &&
                                       has_small_table(&made->call)),
    };
}

TEST(slices_are_the_whole)
{
    for (int o = 0; o < roped_op_count(); o++) {
        const struct roped_op *op = op_at(o);
        int n = check_calls(150), n_cut = 0;
        for (int i = 0; i < n && op && op->rows; i++) {
            struct random_call made;
            make(&made, op, i % 3 == 0);
            struct runner_options options = random_options(&made);
            struct runner_options cut = layouts[i % LAYOUTS];
            size_t bytes;
            n_cut += roped_call_rows(&made.call) > 0;
            if (roped_call_rows(&made.call) > 0) {
                cut.in_place = options.in_place;
                cut.use_table = options.use_table;
                cut.is_tight = options.is_tight;
                options.misalign_elements = cut.misalign_elements;
                unsigned char *whole = outputs_of(&made, &options, &bytes);
                options.cuts = cut.cuts = &source;
                cut.has_strides = true;
                expect_same(&made, &options, whole, bytes);
                expect_same(&made, &cut, whole, bytes);
                free(whole);
            }
            random_call_free(&made);
        }
        if (op && op->rows && 20 * n_cut < n)
            CHECK_FAIL("%s: %d of %d calls could be cut", op->name, n_cut, n);
    }
}

/* Misaligned tensors take other kernels than aligned ones: so does the packed
 * call. */
static void expect_same_with_strides(struct random_call *made)
{
    struct runner_options packed = random_options(made);
    for (int misalign = 0; misalign < 2; misalign++) {
        size_t bytes;
        packed.misalign_elements = misalign;
        unsigned char *expected = outputs_of(made, &packed, &bytes);
        for (int i = 0; i < LAYOUTS; i++) {
            struct runner_options strided = packed;
            if (layouts[i].misalign_elements != misalign)
                continue;
            strided.has_strides = true;
            strided.gap = layouts[i].gap;
            strided.is_fused = layouts[i].is_fused;
            strided.packs_outputs = layouts[i].packs_outputs;
            expect_same(made, &strided, expected, bytes);
        }
        free(expected);
    }
}

TEST(strides_change_no_bits)
{
    for (int o = 0; o < roped_op_count(); o++) {
        const struct roped_op *op = op_at(o);
        for (int i = 0; i < check_calls(90) && op && op->tokens; i++) {
            struct random_call made;
            make(&made, op, i % 3 > 0);
            expect_same_with_strides(&made);
            random_call_free(&made);
        }
    }
}

/* Of gradients that add what rows have: blocks have the same rows. */
TEST(strides_change_no_sums_of_many_rows)
{
    for (int i = 0; i < check_calls(24); i++) {
        const struct roped_op *op =
            roped_op_find(i % 2 ? "rmsnorm_backward" : "layer_norm_backward");
        struct random_call made;
        if (only && strcmp(only, op->name) != 0)
            continue;
        random_call_make_shaped(&made, op, many_rows_shapes, &source);
        expect_same_with_strides(&made);
        random_call_free(&made);
    }
}

/* Of rows that are many, and begin at any address, a GPU moves words. */
TEST(strides_change_no_bits_of_norms_of_many_rows)
{
    static const char *const norms[] = {"rmsnorm",     "add_rmsnorm",
                                        "rmsnorm_add", "gated_rmsnorm",
                                        "layer_norm",  "add_layer_norm"};
    for (size_t o = 0; o < sizeof norms / sizeof *norms; o++) {
        for (int i = 0; i < check_calls(12); i++) {
            struct random_call made;
            if (only && strcmp(only, norms[o]) != 0)
                continue;
            random_call_make_shaped(&made, roped_op_find(norms[o]),
                                    rows_of_warps_shapes, &source);
            expect_same_with_strides(&made);
            random_call_free(&made);
        }
    }
}

/* Of gradients that blocks add for each other, whichever comes last. */
TEST(sums_of_broadcast_operands_have_the_same_bits)
{
    const struct roped_op *op = roped_op_find("binary_backward");
    for (int i = 0; i < check_calls(240); i++) {
        struct random_call made;
        size_t bytes;
        if (only && strcmp(only, op->name) != 0)
            continue;
        random_call_make_shaped(&made, op, broadcast_shapes, &source);
        struct runner_options options = random_options(&made);
        options.in_place = false;
        unsigned char *expected = outputs_of(&made, &options, &bytes);
        for (int again = 0; again < 3; again++)
            expect_same(&made, &options, expected, bytes);
        free(expected);
        random_call_free(&made);
    }
}

/* Again and again: whoever shares out a row must not read what another has
 * replaced. */
TEST(a_call_in_its_own_place_has_the_same_bits)
{
    for (int o = 0; o < roped_op_count(); o++) {
        const struct roped_op *op = op_at(o);
        for (int i = 0; i < check_calls(40) && op; i++) {
            struct random_call made;
            size_t bytes;
            make(&made, op, i % 4 > 0);
            struct runner_options options = random_options(&made);
            options.in_place = false;
            unsigned char *apart = outputs_of(&made, &options, &bytes);
            options.in_place = true;
            for (int again = 0; again < 4; again++)
                expect_same(&made, &options, apart, bytes);
            free(apart);
            random_call_free(&made);
        }
    }
}

/* Of a backend on the host, which may have any number. An operator whose
 * tensors have no strides has one kernel for all addresses. */
TEST(bits_do_not_depend_on_threads)
{
    const struct runner own = runner;
    for (int n_threads = 1; n_threads <= 5 && own.api->is_host;
         n_threads += 4) {
        struct roped_backend_options options = {.n_threads = n_threads};
        struct runner other = {.api = own.api};
        struct roped_error err = {.text = ""};
        CHECK_OK(own.api->open(&options, &other.backend, &err), &err);
        CHECK_OK(own.api->queue_open(other.backend, &other.queue, &err), &err);
        for (int i = 0; i < check_calls(40) * roped_op_count(); i++) {
            struct random_call made;
            size_t bytes;
            const struct roped_op *op = op_at(i % roped_op_count());
            if (!op)
                continue;
            make(&made, op, true);
            struct runner_options run = random_options(&made);
            unsigned char *expected = outputs_of(&made, &run, &bytes);
            run.misalign_elements = made.op->tokens ? 0 : n_threads;
            runner = other;
            expect_same(&made, &run, expected, bytes);
            runner = own;
            free(expected);
            random_call_free(&made);
        }
        runner_close(&other);
    }
}

/* ------------------------------------------------------------------ many rows
 */

/* The inputs that have rows: slices differ in them. */
static uint32_t inputs_with_rows(const struct roped_call *call)
{
    static struct roped_call one, all;
    struct roped_error err = {.text = ""};
    uint32_t set = 0;
    CHECK_OK(roped_call_slice(call, 0, 1, &one, &err), &err);
    CHECK_OK(roped_call_slice(call, 0, roped_call_rows(call), &all, &err),
             &err);
    for (int i = 0; i < call->n_in; i++)
        if (roped_tensor_given(&call->in[i]) &&
            one.in[i].dims[0] != all.in[i].dims[0])
            set |= ROPED_INPUT(i);
    return set;
}

/* A call of which rows may be repeated: there are some, and none has its
 * position from its place. */
static bool is_repeatable(const struct roped_call *call)
{
    int64_t rows = roped_call_rows(call);
    bool has_places = call->op->angles_offset != ROPED_NO_ANGLES;
    if (rows < 2 || roped_call_bytes(call) / rows < 64)
        return false;
    uint32_t set = inputs_with_rows(call);
    for (int i = 0; i < call->n_in; i++)
        if (set & ROPED_INPUT(i) && call->op->in[i].flags & ROPED_INDEX)
            has_places = false;
    return !has_places;
}

/* few is resolved: the rows of a set of inputs again and again until they are
 * so many bytes, and the bits of each. Other results, sums of rows, may be any.
 */
static void expect_rows_among(struct random_call *made,
                              const struct roped_call *few, int64_t rows,
                              uint32_t set, int64_t bytes,
                              const struct runner_options *options)
{
    static struct roped_call many;
    struct roped_error err = {.text = ""};
    many = *few;
    for (int i = 0; i < few->n_in; i++)
        if (set & ROPED_INPUT(i))
            many.in[i] = case_repeat(&few->in[i],
                                     bytes / (roped_call_bytes(few) / rows));
    CHECK_OK(roped_call_resolve(&many, &err), &err);
    if (runner_run(&runner, &many, options, &err))
        fail(made, options, err.text);
    for (int i = 0; i < few->n_out && !check_failures; i++)
        if (roped_tensor_given(&few->out[i]) &&
            few->out[i].dims[0] != many.out[i].dims[0] &&
            case_wrong_row(&many.out[i], &few->out[i]) >= 0)
            fail(made, options, "other bits among many rows");
    for (int i = 0; i < few->n_in; i++)
        if (set & ROPED_INPUT(i))
            free(many.in[i].data);
    runner_free_outputs(&many);
}

/* So many that a GPU has kernels of their own for them, and a sixteenth of
 * them. */
static void expect_rows_among_many(struct random_call *made)
{
    static struct roped_call few;
    struct roped_error err = {.text = ""};
    struct runner_options options = random_options(made), own = options;
    const int64_t rows = roped_call_rows(&made->call);
    int64_t bytes = runner_many_bytes(&runner);
    /* heads of any address are summed in another order on a GPU */
    if (made->call.op->angles_offset == ROPED_NO_ANGLES)
        own.misalign_elements = random_once_in(&source, 2);
    CHECK_OK(roped_call_slice(&made->call, 0, rows, &few, &err), &err);
    const uint32_t set = inputs_with_rows(&few);
    if (runner_run(&runner, &few, &own, &err))
        fail(made, &own, err.text);
    expect_rows_among(made, &few, rows, set, bytes, &options);
    expect_rows_among(made, &few, rows, set, bytes / 16, &options);
    runner_free_outputs(&few);
}

TEST(rows_have_the_bits_that_they_have_among_few)
{
    for (int o = 0; o < roped_op_count(); o++) {
        const struct roped_op *op = op_at(o);
        for (int i = 0;
             i < check_calls(30) && op && op->rows && !check_failures;) {
            struct random_call made;
            make(&made, op, true);
            if (is_repeatable(&made.call)) {
                if (check_takes_case())
                    expect_rows_among_many(&made);
                i++;
            }
            random_call_free(&made);
        }
    }
}

/* Which kernel a GPU has for a row of a norm follows from its width and from
 * how many rows there are: so many that all are at work at once, a few times as
 * many, or so many that they do not fit L2. */
TEST(rows_of_any_width_have_the_bits_that_they_have_among_few)
{
    static const char *const norms[] = {
        "rmsnorm",          "add_rmsnorm",
        "rmsnorm_add",      "gated_rmsnorm",
        "layer_norm",       "add_layer_norm",
        "rmsnorm_quantize", "add_rmsnorm_quantize",
        "rmsnorm_backward", "layer_norm_backward",
    };
    for (size_t o = 0; o < sizeof norms / sizeof *norms; o++) {
        for (int i = 0; i < check_calls(12); i++) {
            const struct runner_options packed = {0};
            struct random_call made;
            struct roped_error err = {.text = ""};
            if (only && strcmp(only, norms[o]) != 0)
                continue;
            random_call_make_shaped(&made, roped_op_find(norms[o]),
                                    any_width_shapes, &source);
            const int64_t rows = made.call.in[0].dims[0];
            const int64_t bytes = roped_call_bytes(&made.call) / rows;
            uint32_t set = 0;
            for (int in = 0; in < made.call.n_in; in++)
                if (made.call.in[in].rank == 2)
                    set |= ROPED_INPUT(in);
            if (check_takes_case()) {
                if (runner_run(&runner, &made.call, &packed, &err))
                    fail(&made, &packed, err.text);
                if (!runner.api->is_host) {
                    expect_rows_among(&made, &made.call, rows, set,
                                      bytes * random_int(&source, 265, 396),
                                      &packed);
                    expect_rows_among(&made, &made.call, rows, set,
                                      bytes * random_int(&source, 400, 2400),
                                      &packed);
                }
                expect_rows_among(&made, &made.call, rows, set,
                                  runner_many_bytes(&runner), &packed);
                runner_free_outputs(&made.call);
            }
            random_call_free(&made);
        }
    }
}

int main(int argc, char **argv)
{
    only = runner_operator(argc, argv);
    return runner_main(&runner, argc, argv);
}
