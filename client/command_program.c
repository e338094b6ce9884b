/*
 * command_program.c - program: chains of operators on the server, and runs of
 * them, from files to files.
 */
#include "ropectl.h"
#include "tensor_file.h"
#include "wire/safetensors.h"

#include <roped/number.h>
#include <roped/program.h>

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------ list, describe
 */

static int describe(const struct ropectl *ctl, const char *path, int argc,
                    char **argv)
{
    const char *name = argv[0];
    void *answer;
    size_t bytes;
    (void)path; /* it has the document */
    (void)argc;
    int code =
        ask(ctl, &(struct request){"GET", "/v1/programs"}, &answer, &bytes);
    if (code)
        return code;
    cJSON *document = read_document(ctl, answer, bytes), *row = NULL;
    free(answer);
    if (!document)
        return EXIT_FAILURE;
    cJSON *rows = cJSON_GetObjectItemCaseSensitive(document, "programs");
    cJSON_ArrayForEach(row, rows)
    {
        const char *found =
            cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(row, "name"));
        if (found && strcmp(found, name) == 0)
            break;
    }
    if (row)
        row = cJSON_DetachItemViaPointer(rows, row);
    cJSON_Delete(document);
    if (row)
        return print_document(ctl, row);
    fail_text("program '%s' does not exist; 'ropectl program put %s FILE' "
              "makes it",
              name, name);
    return EXIT_REFUSED;
}

static int put(const struct ropectl *ctl, const char *path, int argc,
               char **argv)
{
    size_t bytes;
    unsigned char *body = read_input(argv[1], &bytes);
    (void)argc;
    if (!body)
        return EXIT_FAILURE;
    int code = print_answer(ctl, &(struct request){"PUT", path, body, bytes});
    free(body);
    return code;
}

/* --------------------------------------------------------------------- run */

struct program_run {
    bool is_bench;
    struct bench_load load; /* is_bench: what its options say */
    char *query;
    const char *output; /* -o, or NULL */
    int n_files, n_tensors;
    struct tensor_file file[ROPED_PROGRAM_INPUTS];
    struct roped_client_tensor tensor[ROPED_PROGRAM_INPUTS];
};

/* "NAME=@REGION[:OFFSET]" is --from.NAME; "[NAME=]FILE" has inputs. */
static int add_input(struct program_run *run, const char *argument)
{
    char name[ROPED_NAME_BYTES], option[ROPED_NAME_BYTES + 8];
    size_t length = strcspn(argument, "=/.");
    bool is_named = argument[length] == '=' && length < sizeof name;
    const char *path = is_named ? argument + length + 1 : argument;
    snprintf(name, sizeof name, "%.*s", is_named ? (int)length : 0, argument);
    if (is_region_path(path)) {
        if (!is_named)
            return usage("program", "'%s', expected NAME=%s", argument, path);
        snprintf(option, sizeof option, "from.%s", name);
        query_add(&run->query, option, path + 1);
        return EXIT_SUCCESS;
    }
    if (run->n_files == ROPED_PROGRAM_INPUTS)
        return usage("program", "over %d files of inputs",
                     ROPED_PROGRAM_INPUTS);
    struct tensor_file *file = &run->file[run->n_files++];
    if (!tensor_file_open(file, path, is_named ? name : NULL))
        return EXIT_FAILURE;
    for (int i = 0; i < file->n_tensors; i++) {
        if (run->n_tensors == ROPED_PROGRAM_INPUTS)
            return fail_text("over %d tensors", ROPED_PROGRAM_INPUTS);
        run->tensor[run->n_tensors++] = file->tensors[i];
    }
    return EXIT_SUCCESS;
}

static const struct option_row bench_options[] = {
    {"seconds", bench_set_seconds, "a time above 0"},
    {"connections", bench_set_connections, "1 to 256"},
    {NULL}};

/* A parameter of the program; of a bench, one of the options above. */
static int add_option(struct program_run *run, const struct option *option)
{
    int code = run->is_bench
                   ? take_option("program", bench_options, option, &run->load)
                   : -1;
    if (code >= 0)
        return code;
    if (!option->value)
        return usage("program", "parameter '%s' has no value", option->name);
    query_add(&run->query, option->name, option->value);
    return EXIT_SUCCESS;
}

static int read_arguments(struct program_run *run, int argc, char **argv)
{
    struct option option;
    int code = EXIT_SUCCESS;
    for (int at = 0; at < argc && !code; at++) {
        bool is_output = !run->is_bench && strcmp(argv[at], "-o") == 0;
        if (is_output && at + 1 == argc)
            code = usage("program", "'-o' has no file");
        else if (is_output)
            run->output = argv[++at];
        else if (!read_option(argc, argv, &at, &option))
            code = argv[at][0] == '-' && argv[at][1]
                       ? usage("program",
                               "'%s', expected --NAME VALUE or -o "
                               "FILE",
                               argv[at])
                       : add_input(run, argv[at]);
        else
            code = add_option(run, &option);
    }
    return code;
}

/* safetensors_metadata_fn: the times that --timing steps asks for. */
static enum roped_status add_times(void *context, const char *name,
                                   const char *value, struct roped_error *err)
{
    cJSON *times = NULL;
    (void)err;
    if (strcmp(name, "step_us") == 0)
        times = cJSON_AddArrayToObject(context, name);
    while (times && *value) {
        char *end;
        cJSON_AddItemToArray(
            times, cJSON_CreateNumber(roped_read_number(value, &end)));
        value = *end == ',' ? end + 1 : "";
    }
    return ROPED_OK;
}

static enum roped_status read_times(const void *answer, size_t bytes,
                                    cJSON *document, struct roped_error *err)
{
    size_t header_bytes;
    enum roped_status status =
        safetensors_header_bytes(answer, bytes, &header_bytes, err);
    return status ? status
                  : safetensors_read(answer, header_bytes, bytes, NULL,
                                     add_times, document, err);
}

/* What came back: into a file, or in words. */
static int report(const struct ropectl *ctl, const struct program_run *run,
                  void *answer, size_t bytes)
{
    struct roped_client_tensor *tensors;
    struct roped_error err;
    int n;
    if (roped_client_read(answer, bytes, &tensors, &n, &err))
        return fail(&err);
    bool is_written =
        !run->output || (is_numpy_path(run->output)
                             ? write_tensors(run->output, tensors, n)
                             : write_output(run->output, "", 0, answer, bytes));
    int code = is_written ? EXIT_SUCCESS : EXIT_FAILURE;
    if (is_written && (!run->output || strcmp(run->output, "-") != 0)) {
        cJSON *document = cJSON_CreateObject();
        cJSON *outputs = cJSON_AddArrayToObject(document, "outputs");
        for (int i = 0; i < n; i++)
            add_tensor(outputs, &tensors[i]);
        if (read_times(answer, bytes, document, &err))
            code = fail(&err);
        if (!code)
            code = print_document(ctl, document);
        else
            cJSON_Delete(document);
    }
    free(tensors);
    return code;
}

static int send_run(const struct ropectl *ctl, const struct program_run *run,
                    const char *path)
{
    struct roped_error err;
    void *body = NULL, *answer;
    char *whole = NULL;
    size_t bytes = 0, answer_bytes;
    if (run->n_tensors > 0 &&
        roped_client_write(run->tensor, run->n_tensors, &body, &bytes, &err))
        return fail(&err);
    if (run->is_bench) {
        struct bench_load load = run->load;
        load.op = path + strlen("/v1/");
        load.query = run->query;
        load.body = body ? body : "";
        load.bytes = bytes;
        int code = bench_run(ctl, &load);
        free(body);
        return code;
    }
    if (asprintf(&whole, "%s%s%s", path, run->query ? "?" : "",
                 run->query ? run->query : "") < 0)
        whole = NULL;
    int code = ask(
        ctl,
        &(struct request){"POST", must_have(whole), body ? body : "", bytes},
        &answer, &answer_bytes);
    free(whole);
    free(body);
    if (code)
        return code;
    code = report(ctl, run, answer, answer_bytes);
    free(answer);
    return code;
}

/* NAME, and what read_arguments reads; run has what it starts with. */
static int run_with(const struct ropectl *ctl, struct program_run *run,
                    const char *path, int argc, char **argv)
{
    int code = read_arguments(run, argc - 1, argv + 1);
    if (!code && run->output && !can_write(run->output))
        code = EXIT_FAILURE;
    if (!code)
        code = send_run(ctl, run, path);
    for (int i = 0; i < run->n_files; i++)
        tensor_file_close(&run->file[i]);
    free(run->query);
    return code;
}

static int run_once(const struct ropectl *ctl, const char *path, int argc,
                    char **argv)
{
    static struct program_run run;
    return run_with(ctl, &run, path, argc, argv);
}

static int bench(const struct ropectl *ctl, const char *path, int argc,
                 char **argv)
{
    static struct program_run run = {.is_bench = true};
    run.load = (struct bench_load){
        .kind = "program", .name = argv[0], .seconds = 3, .n_connections = 1};
    return run_with(ctl, &run, path, argc, argv);
}

static int list(const struct ropectl *ctl, const char *path, int argc,
                char **argv)
{
    (void)path;
    return verb_get(ctl, "/v1/programs", argc, argv);
}

static const struct verb verbs[] = {{"list", "", false, list},
                                    {"put", "NAME FILE", false, put},
                                    {"run", "NAME", true, run_once},
                                    {"bench", "NAME", true, bench},
                                    {"describe", "NAME", false, describe},
                                    {"get", "NAME", false, verb_get},
                                    {"delete", "NAME", false, verb_delete},
                                    {NULL}};

int command_program(const struct ropectl *ctl, int argc, char **argv)
{
    return run_verb(ctl, "program", "/v1/programs/", verbs, argc, argv);
}
