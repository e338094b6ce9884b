/*
 * tensor_file.c - tensors from files, into files, and in a few words.
 */
#include "tensor_file.h"

#include "npy.h"
#include "ropectl.h"
#include "tensor_value.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_VALUES = 4 };

static bool ends_in(const char *path, const char *end)
{
    size_t bytes = strlen(path), end_bytes = strlen(end);
    return bytes >= end_bytes && strcmp(path + bytes - end_bytes, end) == 0;
}

bool is_npy_path(const char *path)
{
    return ends_in(path, ".npy");
}

bool is_numpy_path(const char *path)
{
    return is_npy_path(path) || ends_in(path, ".npz");
}

/* ------------------------------------------------------------------ reading */

/* "x" of "folder/x.npy" */
static void name_after(char name[ROPED_NAME_BYTES], const char *path)
{
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    int length = (int)strlen(base) - (is_npy_path(path) ? 4 : 0);
    snprintf(name, ROPED_NAME_BYTES, "%.*s", length, base);
}

static enum roped_status read_npy(struct tensor_file *file, const char *path,
                                  struct roped_error *err)
{
    file->is_npy = true;
    file->n_tensors = 1;
    file->tensors = must_have(calloc(1, sizeof *file->tensors));
    file->tensors->name = file->name;
    name_after(file->name, path);
    return npy_read(file->bytes, file->n_bytes, &file->tensors->tensor, err);
}

static enum roped_status read_npz(struct tensor_file *file,
                                  struct roped_error *err)
{
    enum roped_status status =
        npz_read(file->bytes, file->n_bytes, &file->npz, err);
    free(file->bytes); /* arrays are copies */
    file->bytes = NULL;
    file->n_tensors = file->npz.n;
    file->tensors =
        must_have(calloc((size_t)file->n_tensors + 1, sizeof *file->tensors));
    for (int i = 0; i < file->n_tensors; i++)
        file->tensors[i] = (struct roped_client_tensor){
            file->npz.array[i].name, file->npz.array[i].tensor};
    return status;
}

/* The first bytes are not those that the name promises. */
static enum roped_status wrong_magic(const struct tensor_file *file,
                                     const char *expected,
                                     struct roped_error *err)
{
    char found[3 * 6 + 1] = "", *at = found;
    for (size_t i = 0; i < 6 && i < file->n_bytes; i++, at += strlen(at))
        snprintf(at, 4, "%s%02x", i ? " " : "", file->bytes[i]);
    return roped_fail(err, ROPED_INVALID, "begins with '%s', expected %s",
                      found, expected);
}

static enum roped_status read_format(struct tensor_file *file, const char *path,
                                     struct roped_error *err)
{
    if (npy_is(file->bytes, file->n_bytes))
        return read_npy(file, path, err);
    if (npz_is(file->bytes, file->n_bytes))
        return read_npz(file, err);
    if (is_npy_path(path))
        return wrong_magic(file, "'93 4e 55 4d 50 59' (.npy)", err);
    if (is_numpy_path(path))
        return wrong_magic(file, "'50 4b 03 04' (.npz)", err);
    file->is_safetensors = true;
    return roped_client_read(file->bytes, file->n_bytes, &file->tensors,
                             &file->n_tensors, err);
}

bool is_region_path(const char *path)
{
    return path[0] == '@';
}

bool tensor_file_open(struct tensor_file *file, const char *path,
                      const char *name)
{
    struct roped_error err;
    memset(file, 0, sizeof *file);
    file->bytes = read_input(path, &file->n_bytes);
    if (!file->bytes)
        return false;
    enum roped_status status = read_format(file, path, &err);
    if (!status && name && file->n_tensors != 1)
        status =
            roped_fail(&err, ROPED_INVALID, "%d tensors, expected one, '%s'",
                       file->n_tensors, name);
    if (status) {
        fail_text("'%s': %s", path, err.text);
        return false;
    }
    if (name)
        file->tensors->name = name;
    return true;
}

int tensor_file_get(const struct ropectl *ctl, struct tensor_file *file,
                    const char *path)
{
    struct roped_error err;
    void *answer;
    if (!is_region_path(path))
        return tensor_file_open(file, path, NULL) ? EXIT_SUCCESS : EXIT_FAILURE;
    memset(file, 0, sizeof *file);
    char *route = path_to("/v1/regions/", path + 1);
    if (!route)
        return EXIT_USAGE;
    int code =
        ask(ctl, &(struct request){"GET", route}, &answer, &file->n_bytes);
    free(route);
    if (code)
        return code;
    file->bytes = answer;
    file->is_safetensors = true;
    if (!roped_client_read(file->bytes, file->n_bytes, &file->tensors,
                           &file->n_tensors, &err))
        return EXIT_SUCCESS;
    return fail_text("region '%s' is plain bytes, or no tensor: %s", path + 1,
                     err.text);
}

void tensor_file_close(struct tensor_file *file)
{
    npz_free(&file->npz);
    free(file->tensors);
    free(file->bytes);
    memset(file, 0, sizeof *file);
}

/* ------------------------------------------------------------------ writing */

static bool cannot_write(const char *path, const struct roped_error *err)
{
    fail_text("cannot write '%s': %s", path, err->text);
    return false;
}

/* A name without an ending is a safetensors file, too. */
static bool is_known_ending(const char *path)
{
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path,
               *dot = strrchr(base, '.');
    if (!dot || dot == base || is_numpy_path(path) ||
        strcmp(dot, ".safetensors") == 0)
        return true;
    fail_text("cannot write '%s': no format is called '%s', expected "
              ".safetensors (or no ending), .npz or .npy",
              path, dot);
    return false;
}

bool can_write(const char *path)
{
    return is_known_ending(path) && can_write_file(path);
}

bool can_write_tensors(const char *path,
                       const struct roped_client_tensor *tensors, int n_tensors)
{
    struct roped_error err;
    char header[NPY_HEADER_BYTES];
    size_t header_bytes;
    if (!can_write(path))
        return false;
    if (is_npy_path(path) && n_tensors != 1) {
        fail_text("cannot write '%s': %d outputs, and .npy has one: say which "
                  "with -o NAME=%s",
                  path, n_tensors, path);
        return false;
    }
    for (int i = 0; i < n_tensors && is_numpy_path(path); i++)
        if (npy_write_header(tensors[i].name, &tensors[i].tensor, header,
                             &header_bytes, &err))
            return cannot_write(path, &err);
    return true;
}

static bool write_npy(const char *path,
                      const struct roped_client_tensor *tensor)
{
    struct roped_error err;
    char header[NPY_HEADER_BYTES];
    size_t header_bytes;
    if (npy_write_header(tensor->name, &tensor->tensor, header, &header_bytes,
                         &err))
        return cannot_write(path, &err);
    return write_output(path, header, header_bytes, tensor->tensor.data,
                        (size_t)roped_tensor_bytes(&tensor->tensor));
}

bool write_tensors(const char *path, const struct roped_client_tensor *tensors,
                   int n_tensors)
{
    struct roped_error err;
    void *file;
    size_t bytes;
    if (!can_write_tensors(path, tensors, n_tensors))
        return false;
    if (is_npy_path(path))
        return write_npy(path, tensors);
    if (is_numpy_path(path)
            ? npz_write(tensors, n_tensors, &file, &bytes, &err)
            : roped_client_write(tensors, n_tensors, &file, &bytes, &err))
        return cannot_write(path, &err);
    bool is_written = write_output(path, "", 0, file, bytes);
    free(file);
    return is_written;
}

/* ------------------------------------------------------------- a few words */

void add_tensor(cJSON *array, const struct roped_client_tensor *tensor)
{
    const struct roped_tensor *t = &tensor->tensor;
    int64_t n = roped_tensor_elements(t);
    cJSON *object = add_row(array);
    cJSON_AddStringToObject(object, "name", tensor->name);
    cJSON_AddStringToObject(object, "dtype", roped_dtype_name(t->dtype));
    cJSON *shape = cJSON_AddArrayToObject(object, "shape");
    for (int i = 0; i < t->rank; i++)
        cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)t->dims[i]));
    cJSON *first = cJSON_AddArrayToObject(object, "first_values");
    for (int64_t i = 0; i < n && i < FIRST_VALUES; i++)
        cJSON_AddItemToArray(first, cJSON_CreateNumber(tensor_value(t, i)));
}
