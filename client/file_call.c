/*
 * file_call.c - the arguments of a call, its inputs out of files, the call, its
 * outputs into files.
 */
#include "file_call.h"

#include "progress.h"

#include <stdlib.h>
#include <string.h>

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

static int unknown_tensor(const struct file_call *call, const char *name,
                          bool is_output)
{
    const struct roped_op *op = call->op;
    char text[128];
    struct roped_nearest nearest = {.word = name};
    int n = is_output ? roped_op_outputs(op) : roped_op_inputs(op);
    for (int i = 0; i < n; i++)
        roped_nearest_offer(&nearest,
                            is_output ? op->out[i].name : op->in[i].name);
    return usage(call->command, "%s has no %s '%s'%s", op->name,
                 is_output ? "output" : "input", name,
                 roped_nearest_text(&nearest, text, sizeof text));
}

static bool set_bf16(void *target, const char *text)
{
    ((struct file_call *)target)->has_bits = true;
    return strcmp(text, "u16") == 0;
}

static const struct option_row options[] = {{"bf16", set_bf16, "u16"}, {NULL}};

/* What 'verify' must find again. */
static int keep_use(struct file_call *call, const struct option *option)
{
    struct region_use *use = &call->region[call->n_regions];
    if (strcmp(option->name, "table") == 0)
        call->table = option->value;
    if (strcmp(option->name, "fp8") == 0)
        call->is_fp8_u8 = strcmp(option->value, "u8") == 0;
    if (strncmp(option->name, "into.", 5) == 0) {
        int output = roped_op_output(call->op, option->name + 5);
        call->has_into = true;
        if (output >= 0)
            call->is_kept[output] = true;
    }
    if (strncmp(option->name, "from.", 5) != 0)
        return EXIT_SUCCESS;
    if (call->n_regions == ROPED_MAX_INPUTS)
        return usage(call->command, "over %d regions", ROPED_MAX_INPUTS);
    snprintf(use->name, sizeof use->name, "%.*s", ROPED_NAME_BYTES - 1,
             option->name + 5);
    use->region = option->value;
    call->n_regions++;
    return EXIT_SUCCESS;
}

/* A type is that of bits in a file, or of a region: files say which. */
static int keep_type(struct file_call *call, const struct option *option)
{
    struct type_use *use = &call->type[call->n_types];
    if (!option->value)
        return usage(call->command, "parameter '%s' has no value",
                     option->name);
    if (call->n_types == ROPED_MAX_INPUTS)
        return usage(call->command, "over %d types", ROPED_MAX_INPUTS);
    snprintf(use->name, sizeof use->name, "%.*s", ROPED_NAME_BYTES - 1,
             option->name + 6);
    use->type = option->value;
    call->n_types++;
    return EXIT_SUCCESS;
}

/* One of the options above, or a parameter of the operator. */
static int take_argument(struct file_call *call, const struct option *option)
{
    int code = take_option(call->command, options, option, call);
    if (code >= 0)
        return code;
    if (strncmp(option->name, "dtype.", 6) == 0)
        return keep_type(call, option);
    code = add_parameter(call->command, options, &call->call, option,
                         &call->query);
    return code ? code : keep_use(call, option);
}

/* NAME=@REGION[:OFFSET] is --from.NAME, or --into.NAME. Without a name the
 * tensor is called like the region. */
static int add_region(struct file_call *call, const struct place *place,
                      bool is_output)
{
    struct option option = {.value = place->path + 1};
    struct place named = *place;
    if (!named.name[0])
        snprintf(named.name, sizeof named.name, "%.*s",
                 (int)strcspn(option.value, ":"), option.value);
    if ((is_output ? roped_op_output(call->op, named.name)
                   : roped_op_input(call->op, named.name)) < 0)
        return unknown_tensor(call, named.name, is_output);
    snprintf(option.name, sizeof option.name, "%s.%s",
             is_output ? "into" : "from", named.name);
    return take_argument(call, &option);
}

static int add_output(struct file_call *call, const char *argument)
{
    struct place *place = &call->output[call->n_outputs];
    if (!argument)
        return usage(call->command, "'-o' has no file");
    if (call->n_outputs == ROPED_MAX_OUTPUTS)
        return usage(call->command, "over %d files for outputs",
                     ROPED_MAX_OUTPUTS);
    read_place(place, argument);
    if (is_region_path(place->path))
        return add_region(call, place, true);
    call->n_outputs++;
    if (place->name[0] && roped_op_output(call->op, place->name) < 0)
        return unknown_tensor(call, place->name, true);
    return EXIT_SUCCESS;
}

static int add_input(struct file_call *call, const char *argument)
{
    struct place *place = &call->input[call->n_inputs];
    if (call->n_inputs == ROPED_MAX_INPUTS)
        return usage(call->command, "over %d files of inputs",
                     ROPED_MAX_INPUTS);
    read_place(place, argument);
    if (is_region_path(place->path))
        return add_region(call, place, false);
    call->n_inputs++;
    if (place->name[0] && roped_op_input(call->op, place->name) < 0)
        return unknown_tensor(call, place->name, false);
    return EXIT_SUCCESS;
}

static int read_argument(struct file_call *call, int argc, char **argv, int *at)
{
    struct option option;
    if (strcmp(argv[*at], "-o") == 0)
        return add_output(call, *at + 1 < argc ? argv[++*at] : NULL);
    if (read_option(argc, argv, at, &option))
        return take_argument(call, &option);
    if (argv[*at][0] == '-' && argv[*at][1])
        return usage(call->command, "'%s', expected --NAME VALUE or -o FILE",
                     argv[*at]);
    return add_input(call, argv[*at]);
}

/* EXIT_SUCCESS, or the exit code after saying what is wrong. */
static int read_arguments(struct file_call *call, int argc, char **argv)
{
    if (argc < 2 || argv[1][0] == '-')
        return usage(call->command, "no operator: 'ropectl ops' lists them");
    call->op = find_op(argv[1]);
    if (!call->op)
        return EXIT_USAGE;
    roped_call_init(&call->call, call->op);
    for (int at = 2; at < argc; at++) {
        int code = read_argument(call, argc, argv, &at);
        if (code)
            return code;
    }
    if (call->n_inputs == 0 && call->n_regions == 0)
        return usage(call->command, "no file with the inputs of %s",
                     call->op->name);
    return EXIT_SUCCESS;
}

/* ------------------------------------------------------------------ inputs */

/* Names the bits of a numpy array as --dtype.NAME says: U16 as BF16, U8 as
 * FP8. */
static enum roped_status name_type(struct file_call *call,
                                   struct roped_client_tensor *tensor,
                                   struct roped_error *err)
{
    for (int i = 0; i < call->n_types; i++) {
        struct type_use *use = &call->type[i];
        enum roped_dtype dtype =
            roped_dtype_from_name(use->type, strlen(use->type));
        if (strcmp(use->name, tensor->name) != 0)
            continue;
        enum roped_dtype bits =
            roped_dtype_bytes(dtype) == 1 ? ROPED_U8 : ROPED_U16;
        if (dtype != ROPED_BF16 && dtype != ROPED_F8_E4M3 &&
            dtype != ROPED_F8_E5M2)
            return roped_fail(err, ROPED_INVALID,
                              "tensor '%s': --dtype.%s is %s, expected BF16, "
                              "F8_E4M3 or F8_E5M2 of a numpy array",
                              tensor->name, use->name, use->type);
        if (tensor->tensor.dtype != bits)
            return roped_fail(err, ROPED_INVALID,
                              "tensor '%s' is %s, expected %s, the bits of %s",
                              tensor->name,
                              roped_dtype_name(tensor->tensor.dtype),
                              roped_dtype_name(bits), use->type);
        tensor->tensor.dtype = dtype;
        use->is_used = true;
    }
    return ROPED_OK;
}

/* Binds what a file has: false after saying what is wrong. */
static bool bind_file(struct file_call *call, const struct place *place,
                      const struct tensor_file *file)
{
    struct roped_error err;
    bool may_be_misnamed = file->is_npy && !place->name[0];
    for (int i = 0; i < file->n_tensors; i++) {
        struct roped_client_tensor *tensor = &file->tensors[i];
        enum roped_status status =
            file->is_safetensors ? ROPED_OK : name_type(call, tensor, &err);
        if (!status)
            status = roped_call_bind(&call->call, tensor->name, &tensor->tensor,
                                     &err);
        if (status) {
            fail_text("'%s': %s%s", place->path, err.text,
                      may_be_misnamed ? "; NAME=FILE.npy says which input it is"
                                      : "");
            return false;
        }
    }
    return true;
}

/* Types of what is in no file are for the server. */
static void send_types(struct file_call *call)
{
    char name[ROPED_NAME_BYTES + 8];
    for (int i = 0; i < call->n_types; i++) {
        snprintf(name, sizeof name, "dtype.%s", call->type[i].name);
        if (!call->type[i].is_used)
            query_add(&call->query, name, call->type[i].type);
    }
}

/* Reads every file and checks all that can be checked without the server. */
static bool read_inputs(struct file_call *call)
{
    struct roped_error err;
    for (int i = 0; i < call->n_inputs; i++) {
        const struct place *place = &call->input[i];
        if (!tensor_file_open(&call->file[i], place->path,
                              place->name[0] ? place->name : NULL) ||
            !bind_file(call, place, &call->file[i]))
            return false;
    }
    send_types(call);
    if (call->n_regions == 0 && !call->table &&
        roped_call_resolve(&call->call, &err)) {
        fail(&err);
        return false;
    }
    return true;
}

/* The body of the call, to be freed unless it is the only file's own. */
static unsigned char *make_body(const struct file_call *call, size_t *bytes)
{
    struct roped_client_tensor tensor[ROPED_CLIENT_TENSORS];
    struct roped_error err;
    void *body;
    int n = 0;
    for (int i = 0; i < call->n_inputs; i++)
        for (int j = 0; j < call->file[i].n_tensors; j++)
            tensor[n++] =
                call->file[i].tensors[j]; /* each is bound: they fit */
    if (!roped_client_write(tensor, n, &body, bytes, &err))
        return body;
    fail(&err);
    return NULL;
}

/* ------------------------------------------------- outputs, before the call */

/* Those that will come back, without data. False where this cannot be known:
 * an input is in a region. */
static bool foresee(const struct file_call *call,
                    struct roped_client_tensor *tensors, int *n)
{
    static struct roped_call copy; /* angles of a table change no output */
    struct roped_error err;
    copy = call->call;
    *n = 0;
    if (call->n_regions > 0 || roped_call_resolve(&copy, &err))
        return false;
    for (int i = 0; i < copy.n_out; i++) {
        struct roped_tensor *tensor = &copy.out[i];
        if (!roped_tensor_given(tensor) || call->is_kept[i])
            continue;
        if (call->is_fp8_u8 && (ROPED_SET(tensor->dtype) & ROPED_FP8S))
            tensor->dtype = ROPED_U8;
        if (call->has_bits && tensor->dtype == ROPED_BF16)
            tensor->dtype = ROPED_U16;
        tensors[(*n)++] =
            (struct roped_client_tensor){call->op->out[i].name, *tensor};
    }
    return true;
}

/* The tensor of this name, or -1 after saying that there is none. */
static int find_output(const struct place *place,
                       const struct roped_client_tensor *tensors, int n)
{
    for (int i = 0; i < n; i++)
        if (strcmp(tensors[i].name, place->name) == 0)
            return i;
    fail_text("cannot write '%s': no '%s' comes back", place->path,
              place->name);
    return -1;
}

/* What can be written does not need a call to be found out. */
static bool check_outputs(const struct file_call *call)
{
    struct roped_client_tensor tensors[ROPED_MAX_OUTPUTS];
    int n;
    bool is_foreseen = foresee(call, tensors, &n);
    for (int i = 0; i < call->n_outputs; i++) {
        const struct place *place = &call->output[i];
        if (!is_foreseen) {
            if (!can_write(place->path))
                return false;
            continue;
        }
        int at = place->name[0] ? find_output(place, tensors, n) : 0;
        if (at < 0 || !can_write_tensors(place->path, &tensors[at],
                                         place->name[0] ? 1 : n))
            return false;
    }
    return true;
}

/* ----------------------------------------------------------------- outputs */

static struct roped_client_tensor
output_at(const struct roped_client_result *result, int i)
{
    return (struct roped_client_tensor){result->name[i], result->tensor[i]};
}

static bool write_place(const struct file_call *call, const struct place *place,
                        const struct roped_client_result *result)
{
    struct roped_client_tensor tensors[ROPED_CLIENT_TENSORS];
    if (!place->name[0] && !is_numpy_path(place->path) && !call->has_bits)
        return write_output(place->path, "", 0, result->memory, result->bytes);
    for (int i = 0; i < result->n_tensors; i++)
        tensors[i] = output_at(result, i);
    if (!place->name[0])
        return write_tensors(place->path, tensors, result->n_tensors);
    int i = find_output(place, tensors, result->n_tensors);
    return i >= 0 && write_tensors(place->path, &tensors[i], 1);
}

/* BF16 outputs are named U16, which numpy has. */
static void name_bits(struct roped_client_result *result)
{
    for (int i = 0; i < result->n_tensors; i++)
        if (result->tensor[i].dtype == ROPED_BF16)
            result->tensor[i].dtype = ROPED_U16;
}

bool file_call_write(const struct file_call *call,
                     const struct roped_client_result *result)
{
    bool is_written = true;
    for (int i = 0; i < call->n_outputs && is_written; i++)
        is_written = write_place(call, &call->output[i], result);
    return is_written;
}

bool file_call_uses_stdout(const struct file_call *call)
{
    for (int i = 0; i < call->n_outputs; i++)
        if (strcmp(call->output[i].path, "-") == 0)
            return true;
    return false;
}

/* -------------------------------------------------------------------- call */

int file_call_read(struct file_call *call, int argc, char **argv)
{
    int code = read_arguments(call, argc, argv);
    return code || (read_inputs(call) && check_outputs(call)) ? code
                                                              : EXIT_FAILURE;
}

void file_call_close(struct file_call *call)
{
    for (int i = 0; i < call->n_inputs; i++)
        tensor_file_close(&call->file[i]);
    free(call->query);
}

static int send_body(const struct ropectl *ctl, const struct file_call *call,
                     const void *body, size_t bytes,
                     struct roped_client_result *result)
{
    struct roped_error err;
    struct roped_client *client = connect_to(ctl);
    if (!client)
        return EXIT_FAILURE;
    enum roped_status status = roped_client_call_bytes(
        client, call->op->name, call->query, body, bytes, result, &err);
    progress_end();
    int code = status ? failed_request(client, &err) : EXIT_SUCCESS;
    roped_client_close(client);
    if (!code && call->has_bits)
        name_bits(result);
    return code;
}

/* A single safetensors file goes as it is, any other inputs as a new one. */
int file_call_send(const struct ropectl *ctl, const struct file_call *call,
                   struct roped_client_result *result)
{
    bool is_as_it_is = call->n_inputs == 1 && call->file[0].is_safetensors &&
                       !call->input[0].name[0];
    size_t bytes = call->file[0].n_bytes;
    if (call->n_inputs == 0)
        return send_body(ctl, call, "", 0, result);
    unsigned char *body =
        is_as_it_is ? call->file[0].bytes : make_body(call, &bytes);
    int code = body ? send_body(ctl, call, body, bytes, result) : EXIT_FAILURE;
    if (!is_as_it_is)
        free(body);
    return code;
}
