/*
 * command_sample.c - sample: a file of inputs that an operator takes, so that
 * somebody who has none can make a call.
 */
#include "bench_tensors.h"
#include "tensor_file.h"

#include <stdlib.h>
#include <string.h>

struct sample {
    struct roped_call call; /* its parameters */
    enum roped_dtype dtype;
    const char *path, *without; /* without: NULL, or names with commas */
    char *query;
    struct bench_sizes sizes;
};

static bool set_dtype(void *target, const char *text)
{
    return bench_dtype_read(text, &((struct sample *)target)->dtype);
}

/* Steps over the next of names; false: there is none. */
static bool next_name(const char **names, char name[ROPED_NAME_BYTES])
{
    size_t bytes = strcspn(*names, ",");
    snprintf(name, ROPED_NAME_BYTES, "%.*s", (int)bytes, *names);
    *names += bytes + ((*names)[bytes] == ',');
    return bytes > 0;
}

static bool set_without(void *target, const char *text)
{
    struct sample *sample = target;
    char name[ROPED_NAME_BYTES];
    sample->without = text;
    while (next_name(&text, name))
        if (roped_op_input(sample->call.op, name) < 0)
            return false;
    return text[0] == '\0';
}

static const struct option_row options[] = {
    {"dtype", set_dtype, "f32, f16 or bf16"},
    {"without", set_without, "inputs of the operator, with commas"},
    {NULL}};

/* One of the options above, or a parameter of the operator. */
static int take_argument(struct sample *sample, const struct option *option)
{
    int code = take_option("sample", options, option, sample);
    return code >= 0 ? code
                     : add_parameter("sample", options, &sample->call, option,
                                     &sample->query);
}

/* EXIT_SUCCESS, or the exit code after saying what is wrong. */
static int read_arguments(struct sample *sample, int argc, char **argv)
{
    struct option option;
    int code = EXIT_SUCCESS;
    if (argc < 2 || argv[1][0] == '-')
        return usage("sample", "no operator: 'ropectl ops' lists them");
    const struct roped_op *op = find_op(argv[1]);
    if (!op)
        return EXIT_USAGE;
    roped_call_init(&sample->call, op);
    for (int at = 2; at < argc && !code; at++) {
        if (strcmp(argv[at], "-o") == 0 && at + 1 == argc)
            code = usage("sample", "'-o' has no file");
        else if (strcmp(argv[at], "-o") == 0)
            sample->path = argv[++at];
        else if (read_option(argc, argv, &at, &option))
            code = take_argument(sample, &option);
        else
            code = bench_size_add("sample", &sample->sizes, op, argv[at]);
    }
    return code || sample->path ? code : usage("sample", "'-o' has no file");
}

/* What is in it, and how to send it; where the file goes to standard output,
 * on standard error. */
static void report(const struct ropectl *ctl, const struct sample *sample,
                   const struct roped_client_tensor *tensors, int n)
{
    char *next;
    bool is_stdout = strcmp(sample->path, "-") == 0;
    cJSON *document = cJSON_CreateObject();
    cJSON *array = cJSON_AddArrayToObject(document, "tensors");
    for (int i = 0; i < n; i++)
        add_tensor(array, &tensors[i]);
    if (asprintf(&next, "ropectl run %s %s -o out.safetensors",
                 sample->call.op->name, sample->path) < 0)
        next = NULL;
    if (!is_stdout && !sample->query && !sample->without)
        cJSON_AddStringToObject(document, "next", must_have(next));
    free(next);
    write_document(ctl, is_stdout ? stderr : stdout, document);
}

/* How many are left of n, without those that are to be left out. */
static int leave_out(const struct sample *sample,
                     struct roped_client_tensor *tensors, int n)
{
    int n_left = 0;
    for (int i = 0; i < n; i++) {
        const char *names = sample->without ? sample->without : "";
        char name[ROPED_NAME_BYTES];
        bool is_wanted = true;
        while (next_name(&names, name))
            is_wanted &= strcmp(name, tensors[i].name) != 0;
        if (is_wanted)
            tensors[n_left++] = tensors[i];
    }
    return n_left;
}

/* Writes the file in the format that its name says. */
static int write_sample(const struct ropectl *ctl, const struct sample *sample,
                        void *file, size_t bytes)
{
    struct roped_client_tensor *tensors;
    struct roped_error err;
    int n;
    if (roped_client_read(file, bytes, &tensors, &n, &err))
        return fail(&err);
    n = leave_out(sample, tensors, n);
    bool is_written = write_tensors(sample->path, tensors, n);
    if (is_written)
        report(ctl, sample, tensors, n);
    free(tensors);
    return is_written ? EXIT_SUCCESS : EXIT_FAILURE;
}

int command_sample(const struct ropectl *ctl, int argc, char **argv)
{
    static struct sample sample = {.dtype = ROPED_F32};
    struct roped_error err;
    void *file = NULL;
    size_t bytes;
    int code = read_arguments(&sample, argc, argv);
    if (!code && bench_tensors_make(&sample.call, sample.dtype, &sample.sizes,
                                    &file, &bytes, &err))
        code = usage("sample", "%s", err.text);
    if (!code)
        code = write_sample(ctl, &sample, file, bytes);
    free(file);
    free(sample.query);
    return code;
}
