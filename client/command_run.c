/*
 * command_run.c - run: one call, from files to files; cat: look into one.
 */
#include "progress.h"
#include "ropectl.h"
#include "tensor_file.h"

#include <stdlib.h>
#include <string.h>

/* An argument "PATH" or "NAME=PATH", NAME being a tensor of the operator. */
struct place {
    char name[ROPED_NAME_BYTES]; /* "": none */
    const char *path;
};

struct run {
    const struct roped_op *op;
    struct roped_call call; /* what is checked before anything is sent */
    bool has_regions;       /* some input is in one */
    bool has_table;
    bool has_bits; /* --bf16 u16 */
    char *query;
    int n_inputs, n_outputs;
    struct place input[ROPED_MAX_INPUTS], output[ROPED_MAX_OUTPUTS];
    struct tensor_file file[ROPED_MAX_INPUTS]; /* of each input */
};

/* --------------------------------------------------------------- arguments */

/* NAME ends at the first '=', unless that is part of a path. */
static void read_place(struct place *place, const char *argument)
{
    size_t length = strcspn(argument, "=/.");
    place->path = argument;
    place->name[0] = '\0';
    if (argument[length] != '=' || length >= sizeof place->name)
        return;
    snprintf(place->name, sizeof place->name, "%.*s", (int)length, argument);
    place->path = argument + length + 1;
}

static int unknown_tensor(const struct roped_op *op, const char *name,
                          bool is_output)
{
    char text[128];
    struct roped_nearest nearest = {.word = name};
    int n = is_output ? roped_op_outputs(op) : roped_op_inputs(op);
    for (int i = 0; i < n; i++)
        roped_nearest_offer(&nearest,
                            is_output ? op->out[i].name : op->in[i].name);
    return usage("run", "%s has no %s '%s'%s", op->name,
                 is_output ? "output" : "input", name,
                 roped_nearest_text(&nearest, text, sizeof text));
}

static int add_output(struct run *run, const char *argument)
{
    struct place *place = &run->output[run->n_outputs];
    if (!argument)
        return usage("run", "'-o' has no file");
    if (run->n_outputs == ROPED_MAX_OUTPUTS)
        return usage("run", "over %d files for outputs", ROPED_MAX_OUTPUTS);
    read_place(place, argument);
    run->n_outputs++;
    if (place->name[0] && roped_op_output(run->op, place->name) < 0)
        return unknown_tensor(run->op, place->name, true);
    return EXIT_SUCCESS;
}

static int add_input(struct run *run, const char *argument)
{
    struct place *place = &run->input[run->n_inputs];
    if (run->n_inputs == ROPED_MAX_INPUTS)
        return usage("run", "over %d files of inputs", ROPED_MAX_INPUTS);
    read_place(place, argument);
    run->n_inputs++;
    if (place->name[0] && roped_op_input(run->op, place->name) < 0)
        return unknown_tensor(run->op, place->name, false);
    return EXIT_SUCCESS;
}

static bool set_bf16(void *target, const char *text)
{
    ((struct run *)target)->has_bits = true;
    return strcmp(text, "u16") == 0;
}

static const struct option_row options[] = {{"bf16", set_bf16, "u16"}, {NULL}};

/* One of the options above, or a parameter of the operator. */
static int take_argument(struct run *run, const struct option *option)
{
    int code = take_option("run", options, option, run);
    run->has_regions |= strncmp(option->name, "from.", 5) == 0;
    run->has_table |= strcmp(option->name, "table") == 0;
    return code >= 0 ? code
                     : add_parameter("run", &run->call, option, &run->query);
}

static int read_argument(struct run *run, int argc, char **argv, int *at)
{
    struct option option;
    if (strcmp(argv[*at], "-o") == 0)
        return add_output(run, *at + 1 < argc ? argv[++*at] : NULL);
    if (read_option(argc, argv, at, &option))
        return take_argument(run, &option);
    if (argv[*at][0] == '-' && argv[*at][1])
        return usage("run", "'%s', expected --NAME VALUE or -o FILE",
                     argv[*at]);
    return add_input(run, argv[*at]);
}

/* EXIT_SUCCESS, or the exit code after saying what is wrong. */
static int read_arguments(struct run *run, int argc, char **argv)
{
    if (argc < 2 || argv[1][0] == '-')
        return usage("run", "no operator: 'ropectl ops' lists them");
    run->op = find_op(argv[1]);
    if (!run->op)
        return EXIT_USAGE;
    roped_call_init(&run->call, run->op);
    for (int at = 2; at < argc; at++) {
        int code = read_argument(run, argc, argv, &at);
        if (code)
            return code;
    }
    if (run->n_inputs == 0 && !run->has_regions)
        return usage("run", "no file with the inputs of %s", run->op->name);
    return EXIT_SUCCESS;
}

/* ------------------------------------------------------------------ inputs */

/* Binds what a file has: false after saying what is wrong. */
static bool bind_file(struct run *run, const struct place *place,
                      const struct tensor_file *file)
{
    struct roped_error err;
    for (int i = 0; i < file->n_tensors; i++)
        if (roped_call_bind(&run->call, file->tensors[i].name,
                            &file->tensors[i].tensor, &err)) {
            fail_text("'%s': %s%s", place->path, err.text,
                      file->is_npy && !place->name[0]
                          ? "; NAME=FILE.npy says which input it is"
                          : "");
            return false;
        }
    return true;
}

/* Reads every file and checks all that can be checked without the server. */
static bool read_inputs(struct run *run)
{
    struct roped_error err;
    for (int i = 0; i < run->n_inputs; i++) {
        const struct place *place = &run->input[i];
        if (!tensor_file_open(&run->file[i], place->path,
                              place->name[0] ? place->name : NULL) ||
            !bind_file(run, place, &run->file[i]))
            return false;
    }
    if (!run->has_regions && !run->has_table &&
        roped_call_resolve(&run->call, &err)) {
        fail(&err);
        return false;
    }
    return true;
}

/* The body of the call, to be freed unless it is the only file's own. */
static unsigned char *make_body(const struct run *run, size_t *bytes)
{
    struct roped_client_tensor tensor[ROPED_CLIENT_TENSORS];
    struct roped_error err;
    void *body;
    int n = 0;
    for (int i = 0; i < run->n_inputs; i++)
        for (int j = 0; j < run->file[i].n_tensors; j++)
            tensor[n++] = run->file[i].tensors[j]; /* each is bound: they fit */
    if (!roped_client_write(tensor, n, &body, bytes, &err))
        return body;
    fail(&err);
    return NULL;
}

/* ----------------------------------------------------------------- outputs */

static struct roped_client_tensor
output_at(const struct roped_client_result *result, int i)
{
    return (struct roped_client_tensor){result->name[i], result->tensor[i]};
}

/* The output of this name, or -1 after saying that there is none. */
static int output_of(const struct place *place,
                     const struct roped_client_result *result)
{
    for (int i = 0; i < result->n_tensors; i++)
        if (strcmp(result->name[i], place->name) == 0)
            return i;
    fail_text("cannot write '%s': no '%s' came back", place->path, place->name);
    return -1;
}

static bool write_place(const struct run *run, const struct place *place,
                        const struct roped_client_result *result)
{
    struct roped_client_tensor tensors[ROPED_CLIENT_TENSORS];
    if (!place->name[0] && !is_numpy_path(place->path) && !run->has_bits)
        return write_output(place->path, "", 0, result->memory, result->bytes);
    for (int i = 0; i < result->n_tensors; i++)
        tensors[i] = output_at(result, i);
    if (!place->name[0])
        return write_tensors(place->path, tensors, result->n_tensors);
    int i = output_of(place, result);
    return i >= 0 && write_tensors(place->path, &tensors[i], 1);
}

/* BF16 outputs are named U16, which numpy has. */
static void name_bits(struct roped_client_result *result)
{
    for (int i = 0; i < result->n_tensors; i++)
        if (result->tensor[i].dtype == ROPED_BF16)
            result->tensor[i].dtype = ROPED_U16;
}

/* Where to say what came back: not into a file on standard output. */
static FILE *report_of(const struct run *run)
{
    for (int i = 0; i < run->n_outputs; i++)
        if (strcmp(run->output[i].path, "-") == 0)
            return stderr;
    return stdout;
}

static void report(const struct ropectl *ctl, const struct run *run,
                   const struct roped_client_result *result)
{
    cJSON *document = cJSON_CreateObject();
    cJSON *outputs = cJSON_AddArrayToObject(document, "outputs");
    for (int i = 0; i < result->n_tensors; i++) {
        struct roped_client_tensor tensor = output_at(result, i);
        add_tensor(outputs, &tensor);
    }
    add_timing(document, "timing_ms", &result->timing, 1);
    write_document(ctl, report_of(run), document);
}

/* -------------------------------------------------------------------- call */

static int send_call(const struct ropectl *ctl, const struct run *run,
                     const void *body, size_t bytes)
{
    struct roped_client_result result;
    struct roped_error err;
    int code = EXIT_SUCCESS;
    struct roped_client *client = connect_to(ctl);
    if (!client)
        return EXIT_FAILURE;
    enum roped_status status = roped_client_call_bytes(
        client, run->op->name, run->query, body, bytes, &result, &err);
    progress_end();
    if (status)
        code = failed_request(client, &err);
    roped_client_close(client);
    if (code)
        return code;
    if (run->has_bits)
        name_bits(&result);
    report(ctl, run, &result);
    for (int i = 0; i < run->n_outputs && code == EXIT_SUCCESS; i++)
        if (!write_place(run, &run->output[i], &result))
            code = EXIT_FAILURE;
    roped_client_result_free(&result);
    return code;
}

/* Sends a single safetensors file as it is, any other inputs as a new one. */
static int call_with_inputs(const struct ropectl *ctl, const struct run *run)
{
    bool is_as_it_is = run->n_inputs == 1 && run->file[0].is_safetensors &&
                       !run->input[0].name[0];
    size_t bytes = run->file[0].n_bytes;
    if (run->n_inputs == 0)
        return send_call(ctl, run, "", 0);
    unsigned char *body =
        is_as_it_is ? run->file[0].bytes : make_body(run, &bytes);
    int code = body ? send_call(ctl, run, body, bytes) : EXIT_FAILURE;
    if (!is_as_it_is)
        free(body);
    return code;
}

int command_run(const struct ropectl *ctl, int argc, char **argv)
{
    static struct run run;
    int code = read_arguments(&run, argc, argv);
    if (!code)
        code = read_inputs(&run) ? call_with_inputs(ctl, &run) : EXIT_FAILURE;
    for (int i = 0; i < run.n_inputs; i++)
        tensor_file_close(&run.file[i]);
    free(run.query);
    return code;
}

int command_cat(const struct ropectl *ctl, int argc, char **argv)
{
    struct tensor_file file;
    if (argc != 2 || (argv[1][0] == '-' && argv[1][1]))
        return usage("cat", "%d arguments, expected one file", argc - 1);
    bool is_open = tensor_file_open(&file, argv[1], NULL);
    cJSON *document = cJSON_CreateObject();
    cJSON *tensors = cJSON_AddArrayToObject(document, "tensors");
    for (int i = 0; i < file.n_tensors && is_open; i++)
        add_tensor(tensors, &file.tensors[i]);
    tensor_file_close(&file);
    if (is_open)
        return print_document(ctl, document);
    cJSON_Delete(document);
    return EXIT_FAILURE;
}
