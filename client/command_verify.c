/*
 * command_verify.c - verify: a call on the server and on the CPU of this
 * machine, and how far they are apart.
 *
 * What the server keeps is fetched first: regions that the call reads, because
 * it may change them, and its table. Caches that it changed are fetched again.
 */
#include "compare.h"
#include "file_call.h"
#include "local_call.h"

#include "wire/angles_json.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_FETCHED = 2 * ROPED_MAX_INPUTS };

struct verify {
    const struct ropectl *ctl;
    struct file_call call;
    struct angles_json_set table; /* of --table */
    bool has_table;
    void *fetched[MAX_FETCHED]; /* regions, safetensors files */
    int n_fetched;
    struct local_call local, terms;
    struct roped_client_result result;
};

/* ------------------------------------------------- what the server remembers
 */

/* The tensor of a region, a view into memory that verify keeps. Exit code. */
static int fetch_region(struct verify *verify, const char *region,
                        struct roped_tensor *out)
{
    struct roped_error err;
    struct roped_client_tensor *tensors;
    void *answer;
    size_t bytes;
    int n;
    if (strchr(region, ':'))
        return usage("verify",
                     "region '%s' has an offset, expected a whole one", region);
    char *path = path_to("/v1/regions/", region);
    if (!path)
        return EXIT_USAGE;
    int code =
        ask(verify->ctl, &(struct request){"GET", path}, &answer, &bytes);
    free(path);
    if (code)
        return code;
    verify->fetched[verify->n_fetched++] = answer;
    if (roped_client_read(answer, bytes, &tensors, &n, &err))
        return fail_text("region '%s' is plain bytes, expected a tensor",
                         region);
    if (n > 0)
        *out = tensors->tensor;
    free(tensors);
    return n == 1 ? EXIT_SUCCESS
                  : fail_text("region '%s' has %d tensors, expected one",
                              region, n);
}

/* Binds the inputs that are in regions. */
static int bind_regions(struct verify *verify)
{
    struct file_call *call = &verify->call;
    struct roped_error err;
    for (int i = 0; i < call->n_regions; i++) {
        struct roped_tensor tensor = {.rank = 0};
        int code = fetch_region(verify, call->region[i].region, &tensor);
        if (code)
            return code;
        if (roped_call_bind(&call->call, call->region[i].name, &tensor, &err))
            return fail(&err);
    }
    return EXIT_SUCCESS;
}

/* The answer's members that a table is made from; a width or a count of rows
 * that was not stated is 0. */
static char *table_parameters(cJSON *document)
{
    static const char *const others[] = {"name", "resident_bytes", "owner",
                                         "tenant"},
                             *const unstated[] = {"rows", "head_dim",
                                                  "rotary_dim"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        cJSON_DeleteItemFromObjectCaseSensitive(document, others[i]);
    for (size_t i = 0; i < sizeof unstated / sizeof *unstated; i++)
        if (cJSON_GetNumberValue(
                cJSON_GetObjectItemCaseSensitive(document, unstated[i])) == 0)
            cJSON_DeleteItemFromObjectCaseSensitive(document, unstated[i]);
    return must_have(cJSON_PrintUnformatted(document));
}

static int fetch_table(struct verify *verify, const char *name)
{
    struct angles_json_set sets[ANGLES_JSON_MAX_SETS];
    struct roped_error err;
    void *answer;
    size_t bytes;
    int n;
    char *path = path_to("/v1/tables/", name);
    if (!path)
        return EXIT_USAGE;
    int code =
        ask(verify->ctl, &(struct request){"GET", path}, &answer, &bytes);
    free(path);
    if (code)
        return code;
    cJSON *document = read_document(verify->ctl, answer, bytes);
    free(answer);
    if (!document)
        return EXIT_SERVER;
    char *text = table_parameters(document);
    cJSON_Delete(document);
    enum roped_status status =
        angles_json_read(name, NULL, text, strlen(text), sets, &n, &err);
    free(text);
    if (status)
        return fail(&err);
    verify->table = sets[0]; /* plain parameters are one set */
    while (n > 1)
        angles_json_fini(&sets[--n]);
    verify->table.set.name = verify->table.name;
    verify->has_table = true;
    if (roped_call_use_angles(&verify->call.call, &verify->table.set, &err))
        return fail(&err);
    return EXIT_SUCCESS;
}

/* ------------------------------------------------------------------ sums */

/* Operators whose outputs are sums, which are measured by their terms. */
static bool makes_sums(const struct roped_op *op)
{
    return strcmp(op->name, "binary_backward") == 0;
}

/* Clears the sign of every element of a float tensor. */
static void make_magnitudes(struct roped_tensor *tensor)
{
    size_t width = roped_dtype_bytes(tensor->dtype);
    int64_t n = roped_tensor_elements(tensor);
    unsigned char *last = (unsigned char *)tensor->data + width - 1;
    for (int64_t i = 0; i < n; i++, last += width)
        *last &= 0x7f;
}

/* A sum's terms are products and quotients of inputs, so what the operator
 * makes of their magnitudes is the sum of the terms', but for its sign. */
static enum roped_status sum_terms(struct verify *verify,
                                   struct roped_error *err)
{
    struct roped_call call = verify->local.call;
    if (!makes_sums(call.op))
        return ROPED_OK;
    for (int i = 0; i < call.n_in; i++)
        if (roped_tensor_given(&call.in[i]))
            make_magnitudes(&call.in[i]); /* copies: nobody needs them again */
    for (int i = 0; i < call.n_out; i++)
        call.out[i].data = NULL;
    return local_call_run(&verify->terms, &call, err);
}

static const struct roped_tensor *terms_of(const struct verify *verify,
                                           int output)
{
    return makes_sums(verify->call.op) ? &verify->terms.call.out[output] : NULL;
}

/* ------------------------------------------------------------------- report */

static void add_index(cJSON *row, const struct roped_tensor *tensor, int64_t i)
{
    int64_t index[ROPED_MAX_RANK];
    for (int d = tensor->rank - 1; d >= 0; d--) {
        index[d] = i % tensor->dims[d];
        i /= tensor->dims[d];
    }
    cJSON *array = cJSON_AddArrayToObject(row, "index");
    for (int d = 0; d < tensor->rank; d++)
        cJSON_AddItemToArray(array, cJSON_CreateNumber((double)index[d]));
}

static void add_comparison(cJSON *outputs, const char *name,
                           const struct roped_tensor *expected,
                           const struct comparison *found)
{
    cJSON *row = add_row(outputs);
    cJSON_AddStringToObject(row, "name", name);
    cJSON_AddStringToObject(row, "dtype", roped_dtype_name(expected->dtype));
    cJSON *shape = cJSON_AddArrayToObject(row, "shape");
    for (int i = 0; i < expected->rank; i++)
        cJSON_AddItemToArray(shape,
                             cJSON_CreateNumber((double)expected->dims[i]));
    cJSON_AddNumberToObject(row, "differing", (double)found->n_differing);
    cJSON_AddNumberToObject(row, "difference", found->difference);
    cJSON_AddNumberToObject(row, "tolerance", found->tolerance);
    if (found->worst >= 0) {
        add_index(row, expected, found->worst);
        cJSON_AddNumberToObject(row, "got", found->got);
        cJSON_AddNumberToObject(row, "expected", found->expected);
    }
    cJSON_AddBoolToObject(row, "within", found->is_within);
}

/* The server's tensor of an output: sent, or updated in its region. */
static int find_output(struct verify *verify, int output,
                       struct roped_tensor *out)
{
    const struct file_call *call = &verify->call;
    const char *name = call->op->out[output].name;
    const struct roped_tensor *sent =
        roped_client_output(&verify->result, name);
    if (sent) {
        *out = *sent;
        return EXIT_SUCCESS;
    }
    for (int i = 0; i < call->n_regions; i++) {
        int input = roped_op_input(call->op, call->region[i].name);
        if (input >= 0 && roped_op_updates(call->op, input) == output)
            return fetch_region(verify, call->region[i].region, out);
    }
    fail_text("output '%s': the server sent none", name);
    return EXIT_SERVER;
}

static bool is_alike(const struct roped_tensor *a, const struct roped_tensor *b)
{
    return a->rank == b->rank &&
           roped_dtype_bytes(a->dtype) == roped_dtype_bytes(b->dtype) &&
           memcmp(a->dims, b->dims, (size_t)a->rank * sizeof *a->dims) == 0;
}

/* Adds the row of an output; exit code. */
static int compare_output(struct verify *verify, int output, cJSON *outputs)
{
    char found[128], wanted[128];
    const char *name = verify->call.op->out[output].name;
    const struct roped_tensor *expected = &verify->local.call.out[output];
    struct roped_tensor got = {.rank = 0};
    int code = find_output(verify, output, &got);
    if (code)
        return code;
    if (!is_alike(&got, expected)) {
        fail_text("output '%s': the server's is %s %s, expected %s %s", name,
                  roped_dtype_name(got.dtype),
                  roped_shape_text(got.dims, got.rank, found, sizeof found),
                  roped_dtype_name(expected->dtype),
                  roped_shape_text(expected->dims, expected->rank, wanted,
                                   sizeof wanted));
        return EXIT_DIFFERS;
    }
    struct comparison comparison =
        compare_tensors(&got, expected, terms_of(verify, output));
    add_comparison(outputs, name, expected, &comparison);
    return comparison.is_within ? EXIT_SUCCESS : EXIT_DIFFERS;
}

/* Compares every output and prints what was found; the first exit code. */
static int report(struct verify *verify)
{
    cJSON *document = cJSON_CreateObject();
    cJSON *outputs = cJSON_AddArrayToObject(document, "outputs");
    int code = EXIT_SUCCESS;
    for (int i = 0; i < verify->local.call.n_out; i++) {
        if (!roped_tensor_given(&verify->local.call.out[i]))
            continue;
        int one = compare_output(verify, i, outputs);
        code = code ? code : one;
    }
    cJSON_AddBoolToObject(document, "within", code == EXIT_SUCCESS);
    write_document(verify->ctl,
                   file_call_uses_stdout(&verify->call) ? stderr : stdout,
                   document);
    return code;
}

/* ------------------------------------------------------------------ command */

static int run(struct verify *verify)
{
    struct file_call *call = &verify->call;
    struct roped_error err;
    int code = bind_regions(verify);
    if (!code && call->table)
        code = fetch_table(verify, call->table);
    if (!code && local_call_run(&verify->local, &call->call, &err))
        code = fail(&err);
    if (!code && sum_terms(verify, &err))
        code = fail(&err);
    if (!code)
        code = file_call_send(verify->ctl, call, &verify->result);
    if (!code)
        code = report(verify);
    if ((code == EXIT_SUCCESS || code == EXIT_DIFFERS) &&
        !file_call_write(call, &verify->result))
        code = EXIT_FAILURE;
    return code;
}

int command_verify(const struct ropectl *ctl, int argc, char **argv)
{
    static struct verify verify = {.call.command = "verify"};
    verify.ctl = ctl;
    int code = file_call_read(&verify.call, argc, argv);
    if (!code && verify.call.has_into)
        code = usage("verify", "'--into.NAME' leaves an output on the server, "
                               "expected outputs that come back");
    if (!code)
        code = run(&verify);
    roped_client_result_free(&verify.result);
    local_call_free(&verify.local);
    local_call_free(&verify.terms);
    while (verify.n_fetched > 0)
        free(verify.fetched[--verify.n_fetched]);
    if (verify.has_table)
        angles_json_fini(&verify.table);
    file_call_close(&verify.call);
    return code;
}
