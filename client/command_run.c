/*
 * command_run.c - run: one call, from a file to a file; cat: look into one.
 */
#include "progress.h"
#include "query.h"
#include "ropectl.h"
#include "wire/safetensors.h"
#include "wire/v1.h"

#include <roped/numeric.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double value_at(const struct roped_tensor *tensor, int64_t i)
{
    const unsigned char *at = (const unsigned char *)tensor->data +
                              (size_t)i * roped_dtype_bytes(tensor->dtype);
    float f;
    uint16_t code;
    int32_t i32;
    int64_t i64;
    switch (tensor->dtype) {
    case ROPED_F32:
        memcpy(&f, at, sizeof f);
        return (double)f;
    case ROPED_F16:
    case ROPED_BF16:
        memcpy(&code, at, sizeof code);
        return (double)(tensor->dtype == ROPED_F16 ? roped_f16_to_float(code)
                                                   : roped_bf16_to_float(code));
    case ROPED_F8_E4M3:
        return (double)roped_e4m3_to_float(*at);
    case ROPED_F8_E5M2:
        return (double)roped_e5m2_to_float(*at);
    case ROPED_I32:
        memcpy(&i32, at, sizeof i32);
        return i32;
    case ROPED_I64:
        memcpy(&i64, at, sizeof i64);
        return (double)i64;
    default:
        return *at;
    }
}

static void print_tensor(FILE *out, const char *name,
                         const struct roped_tensor *tensor)
{
    char shape[128];
    int64_t n = roped_tensor_elements(tensor);
    fprintf(out, "%-14s %-8s %-18s", name, roped_dtype_name(tensor->dtype),
            roped_shape_text(tensor->dims, tensor->rank, shape, sizeof shape));
    for (int64_t i = 0; i < n && i < 4; i++)
        fprintf(out, " %.6g", value_at(tensor, i));
    fputs(n > 4 ? " ...\n" : "\n", out);
}

static void print_timing(FILE *out, const struct roped_client_timing *t)
{
    fprintf(out,
            "receive %.3f, queue %.3f, plan %.3f, h2d %.3f, kernel %.3f, d2h "
            "%.3f; wall %.3f ms\n",
            t->receive * 1e3, t->queue * 1e3, t->plan * 1e3, t->h2d * 1e3,
            t->kernel * 1e3, t->d2h * 1e3, t->wall * 1e3);
}

/* Would the server take it? Found out before anything is sent. */
static enum roped_status check_locally(const struct roped_op *op,
                                       unsigned char *body, size_t bytes,
                                       struct roped_error *err)
{
    static struct roped_call call;
    size_t header_bytes;
    enum roped_status status =
        safetensors_header_bytes(body, bytes, &header_bytes, err);
    roped_call_init(&call, op);
    return status ? status
                  : v1_read_request(&call, body, header_bytes, bytes,
                                    body + header_bytes, err);
}

struct run {
    const char *op, *input, *output;
    bool has_regions; /* some input is in one */
    struct buffer query;
};

/* EXIT_SUCCESS, or the exit code after saying what is wrong. */
static int read_arguments(struct run *run, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "-o") == 0 && i + 1 < argc)
            run->output = argv[++i];
        else if (query_add(&run->query, argv[i]))
            run->has_regions |= strncmp(argv[i], "--from.", 7) == 0;
        else if (argv[i][0] == '-' && argv[i][1])
            return usage("run", "'%s', expected --NAME=VALUE or -o FILE",
                         argv[i]);
        else if (!run->op)
            run->op = argv[i];
        else if (!run->input)
            run->input = argv[i];
        else
            return usage("run", "'%s' beside '%s', expected one file", argv[i],
                         run->input);
    }
    if (!run->op)
        return usage("run", "no operator: 'ropectl ops' lists them");
    if (!run->input && !run->has_regions)
        return usage("run", "no file with the inputs of %s", run->op);
    return EXIT_SUCCESS;
}

/* Where to say what came back: not into the file on standard output. */
static FILE *report_of(const struct run *run)
{
    return run->output && strcmp(run->output, "-") == 0 ? stderr : stdout;
}

static int call(const struct ropectl *ctl, struct run *run, const void *body,
                size_t bytes)
{
    struct ropectl with_progress = *ctl;
    struct progress progress;
    struct roped_client_result result;
    struct roped_error err;
    with_progress.options.progress = progress_transfer;
    with_progress.options.progress_context = &progress;
    struct roped_client *client = connect_to(&with_progress);
    if (!client)
        return EXIT_FAILURE;
    progress_start(&progress);
    enum roped_status status = roped_client_call_bytes(
        client, run->op, run->query.text, body, bytes, &result, &err);
    progress_end(&progress);
    int code = EXIT_SUCCESS;
    if (status) {
        code = fail(&err);
    } else {
        for (int i = 0; i < result.n_tensors; i++)
            print_tensor(report_of(run), result.name[i], &result.tensor[i]);
        print_timing(report_of(run), &result.timing);
        if (run->output &&
            !write_output(run->output, result.memory, result.bytes))
            code = EXIT_FAILURE;
        roped_client_result_free(&result);
    }
    roped_client_close(client);
    return code;
}

int command_run(const struct ropectl *ctl, int argc, char **argv)
{
    struct run run = {.op = NULL};
    struct roped_error err;
    size_t bytes = 0;
    buffer_init(&run.query);
    int code = read_arguments(&run, argc, argv);
    const struct roped_op *op = code ? NULL : find_op(run.op);
    unsigned char *body =
        op && run.input ? read_input(run.input, &bytes) : NULL;
    if (!code && (!op || (run.input && !body)))
        code = EXIT_FAILURE;
    if (!code && body && check_locally(op, body, bytes, &err))
        code = fail(&err);
    if (!code)
        code = call(ctl, &run, body ? (void *)body : "", bytes);
    free(body);
    buffer_fini(&run.query);
    return code;
}

static enum roped_status print_entry(void *context,
                                     const struct safetensors_entry *entry,
                                     struct roped_error *err)
{
    struct roped_tensor tensor = entry->tensor;
    (void)err;
    tensor.data = (unsigned char *)context + entry->begin;
    print_tensor(stdout, entry->name, &tensor);
    return ROPED_OK;
}

int command_cat(const struct ropectl *ctl, int argc, char **argv)
{
    size_t bytes, header_bytes;
    struct roped_error err;
    (void)ctl;
    if (argc != 2)
        return usage("cat", "%d files, expected one", argc - 1);
    unsigned char *body = read_input(argv[1], &bytes);
    if (!body)
        return EXIT_FAILURE;
    enum roped_status status =
        safetensors_header_bytes(body, bytes, &header_bytes, &err);
    if (!status)
        status = safetensors_read(body, header_bytes, bytes, print_entry, NULL,
                                  body + header_bytes, &err);
    free(body);
    return status ? fail(&err) : EXIT_SUCCESS;
}
