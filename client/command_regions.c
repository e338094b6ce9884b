/*
 * command_regions.c - regions: memory that stays on the server.
 */
#include "ropectl.h"
#include "tensor_file.h"

#include <stdlib.h>
#include <string.h>

/* The answer is a safetensors file, which may become one for numpy, or plain
 * bytes, whose file may have any name. */
static bool write_region(const char *file, void *answer, size_t bytes)
{
    struct roped_error err;
    struct roped_client_tensor *tensors;
    int n;
    if (roped_client_read(answer, bytes, &tensors, &n, &err)) {
        if (!is_numpy_path(file))
            return write_output(file, "", 0, answer, bytes);
        fail_text("cannot write '%s': the region is plain bytes, or no tensor: "
                  "%s",
                  file, err.text);
        return false;
    }
    bool is_written =
        is_numpy_path(file)
            ? write_tensors(file, tensors, n)
            : can_write(file) && write_output(file, "", 0, answer, bytes);
    free(tensors);
    return is_written;
}

/* NAME FILE: writes what the server keeps there into a file. */
static int get(const struct ropectl *ctl, const char *path, int argc,
               char **argv)
{
    const char *file = argv[1];
    void *answer;
    size_t bytes;
    (void)argc;
    int code = ask(ctl, &(struct request){"GET", path}, &answer, &bytes);
    if (code)
        return code;
    bool is_written = write_region(file, answer, bytes);
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

/* The path with the arguments "--name value" from 'first' on as its query, to
 * be freed; NULL after saying what is wrong. */
static char *path_with(const char *path, int first, int argc, char **argv,
                       const char *expected)
{
    struct option option = {.value = NULL};
    char *query = NULL, *whole = NULL;
    for (int at = first; at < argc; at++)
        if (read_option(argc, argv, &at, &option) && option.value)
            query_add(&query, option.name, option.value);
        else {
            usage("regions", "'%s', %s", argv[at], expected);
            free(query);
            return NULL;
        }
    if (asprintf(&whole, "%s%s%s", path, query ? "?" : "", query ? query : "") <
        0)
        whole = NULL;
    free(query);
    return must_have(whole);
}

/* NAME FILE, and options. */
static int put(const struct ropectl *ctl, const char *path, int argc,
               char **argv)
{
    char *whole = path_with(path, 2, argc, argv,
                            "expected --device N or --device spread");
    int code = whole ? put_region(ctl, whole, argv[0], argv[1]) : EXIT_USAGE;
    free(whole);
    return code;
}

/* NAME, and options: a region of zeros, as large as they say. */
static int zeros(const struct ropectl *ctl, const char *path, int argc,
                 char **argv)
{
    static const char expected[] = "expected --bytes N, or --dtype TYPE and "
                                   "--shape N,N";
    if (argc == 1)
        return usage("regions", "no size, %s", expected);
    char *whole = path_with(path, 1, argc, argv, expected);
    int code = whole ? print_answer(ctl, &(struct request){"PUT", whole, "", 0})
                     : EXIT_USAGE;
    free(whole);
    return code;
}

static int list(const struct ropectl *ctl, const char *path, int argc,
                char **argv)
{
    (void)path;
    return verb_get(ctl, "/v1/regions", argc, argv);
}

static const struct verb verbs[] = {{"list", "", false, list},
                                    {"put", "NAME FILE", true, put},
                                    {"zeros", "NAME", true, zeros},
                                    {"get", "NAME FILE", false, get},
                                    {"delete", "NAME", false, verb_delete},
                                    {NULL}};

int command_regions(const struct ropectl *ctl, int argc, char **argv)
{
    return run_verb(ctl, "regions", "/v1/regions/", verbs, argc, argv);
}
