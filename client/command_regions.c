/*
 * command_regions.c - regions: memory that stays on the server.
 */
#include "ropectl.h"
#include "tensor_file.h"

#include <stdlib.h>
#include <string.h>

/* Writes an answer that is a safetensors file of one tensor for numpy. */
static bool write_for_numpy(const char *file, void *answer, size_t bytes)
{
    struct roped_error err;
    struct roped_client_tensor *tensors;
    int n;
    if (roped_client_read(answer, bytes, &tensors, &n, &err)) {
        fail_text("cannot write '%s': the region is plain bytes, or no tensor: "
                  "%s",
                  file, err.text);
        return false;
    }
    bool is_written = write_tensors(file, tensors, n);
    free(tensors);
    return is_written;
}

/* Writes what the server keeps there into a file. */
static int get_region(const struct ropectl *ctl, const char *path,
                      const char *file)
{
    void *answer;
    size_t bytes;
    int code = ask(ctl, &(struct request){"GET", path}, &answer, &bytes);
    if (code)
        return code;
    bool is_written = is_numpy_path(file)
                          ? write_for_numpy(file, answer, bytes)
                          : write_output(file, "", 0, answer, bytes);
    free(answer);
    if (!is_written)
        return EXIT_FAILURE;
    if (strcmp(file, "-") == 0)
        return EXIT_SUCCESS;
    cJSON *document = cJSON_CreateObject();
    cJSON_AddStringToObject(document, "file", file);
    cJSON_AddNumberToObject(document, "bytes", (double)bytes);
    return print_document(ctl, document);
}

/* The file's own bytes, or its array as a tensor of the region's name. */
static int put_tensor(const struct ropectl *ctl, const char *path,
                      const char *name, struct tensor_file *file)
{
    struct roped_error err;
    void *body;
    size_t bytes;
    if (file->is_safetensors)
        return print_answer(
            ctl, &(struct request){"PUT", path, file->bytes, file->n_bytes});
    file->tensors->name = name;
    if (roped_client_write(file->tensors, 1, &body, &bytes, &err))
        return fail(&err);
    int code = print_answer(ctl, &(struct request){"PUT", path, body, bytes});
    free(body);
    return code;
}

static int put_region(const struct ropectl *ctl, const char *path,
                      const char *name, const char *file)
{
    struct tensor_file tensors;
    int code = tensor_file_get(ctl, &tensors, file);
    bool is_one = tensors.is_safetensors || tensors.n_tensors == 1;
    if (!code && !is_one)
        code = fail_text("'%s': %d tensors, expected one", file,
                         tensors.n_tensors);
    if (!code)
        code = put_tensor(ctl, path, name, &tensors);
    tensor_file_close(&tensors);
    return code;
}

/* The path with the arguments "--name value" from 'first' on as its query. */
static int add_query(char **path, int first, int argc, char **argv,
                     const char *expected)
{
    struct option option = {.value = NULL};
    char *query = NULL, *whole = NULL;
    int code = EXIT_SUCCESS;
    for (int at = first; at < argc && !code; at++)
        if (read_option(argc, argv, &at, &option) && option.value)
            query_add(&query, option.name, option.value);
        else
            code = usage("regions", "'%s', %s", argv[at], expected);
    if (!code && query) {
        if (asprintf(&whole, "%s?%s", *path, query) < 0)
            whole = NULL;
        free(*path);
        *path = must_have(whole);
    }
    free(query);
    return code;
}

/* A region of zeros, as large as the arguments say. */
static int make_zeros(const struct ropectl *ctl, char **path, int argc,
                      char **argv)
{
    static const char expected[] = "expected --bytes N, or --dtype TYPE and "
                                   "--shape N,N";
    if (argc == 3)
        return usage("regions", "no size, %s", expected);
    int code = add_query(path, 3, argc, argv, expected);
    return code ? code
                : print_answer(ctl, &(struct request){"PUT", *path, "", 0});
}

int command_regions(const struct ropectl *ctl, int argc, char **argv)
{
    const char *verb = argc > 1 ? argv[1] : "list";
    int code;
    if (argc <= 2 && strcmp(verb, "list") == 0)
        return print_answer(ctl, &(struct request){"GET", "/v1/regions"});
    if (argc <= 2)
        return usage("regions", "unknown verb '%s' with 0 arguments", verb);
    char *path = path_to("/v1/regions/", argv[2]);
    if (!path)
        return EXIT_USAGE;
    if (argc >= 4 && strcmp(verb, "put") == 0) {
        code = add_query(&path, 4, argc, argv,
                         "expected --device N or --device spread");
        code = code ? code : put_region(ctl, path, argv[2], argv[3]);
    } else if (argc >= 3 && strcmp(verb, "zeros") == 0)
        code = make_zeros(ctl, &path, argc, argv);
    else if (argc == 4 && strcmp(verb, "get") == 0)
        code = get_region(ctl, path, argv[3]);
    else if (argc == 3 && strcmp(verb, "delete") == 0)
        code = print_answer(ctl, &(struct request){"DELETE", path});
    else
        code = usage("regions", "unknown verb '%s' with %d arguments", verb,
                     argc - 2);
    free(path);
    return code;
}
