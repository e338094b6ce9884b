/*
 * client_file.c - safetensors files in memory: written from tensors, and read
 * as views.
 */
#include "client_file.h"

#include "printable.h"
#include "wire/safetensors.h"

#include <roped/program.h>

#include <stdlib.h>
#include <string.h>

static enum roped_status no_memory(struct roped_error *err, const char *what)
{
    return roped_fail(err, ROPED_NO_MEMORY, "no memory for %s", what);
}

enum roped_status roped_client_write(const struct roped_client_tensor *tensors,
                                     int n_tensors, void **file,
                                     size_t *file_bytes,
                                     struct roped_error *err)
{
    struct safetensors_output outputs[ROPED_PROGRAM_INPUTS];
    struct buffer header;
    uint64_t data_bytes;
    if (n_tensors > ROPED_PROGRAM_INPUTS)
        return roped_fail(err, ROPED_INVALID, "%d tensors, expected at most %d",
                          n_tensors, ROPED_PROGRAM_INPUTS);
    for (int i = 0; i < n_tensors; i++)
        outputs[i] =
            (struct safetensors_output){tensors[i].name, &tensors[i].tensor, 0};
    buffer_init(&header);
    enum roped_status status = safetensors_write_header(
        &header, outputs, n_tensors, NULL, 0, false, &data_bytes, err);
    char *all = status ? NULL : malloc(header.bytes + data_bytes);
    if (!status && !all)
        status = no_memory(err, "a file of the tensors");
    if (!status) {
        memcpy(all, header.text, header.bytes);
        for (int i = 0; i < n_tensors; i++) {
            size_t bytes = (size_t)roped_tensor_bytes(&tensors[i].tensor);
            if (bytes)
                memcpy(all + header.bytes + outputs[i].offset,
                       tensors[i].tensor.data, bytes);
        }
        *file = all;
        *file_bytes = header.bytes + data_bytes;
    }
    buffer_fini(&header);
    return status;
}

/* What is called with each tensor of a file, which starts at file. */
struct reading {
    unsigned char *data;
    struct roped_client_result *result;
    struct roped_client_tensor *tensors; /* with a name behind each */
    char (*names)[ROPED_NAME_BYTES];
    int n_tensors;
};

static enum roped_status read_file(void *file, size_t bytes,
                                   safetensors_entry_fn *entry,
                                   struct reading *reading,
                                   struct roped_error *err)
{
    size_t header_bytes;
    enum roped_status status =
        safetensors_header_bytes(file, bytes, &header_bytes, err);
    if (status)
        return status;
    reading->data = (unsigned char *)file + header_bytes;
    return printable_error(
        safetensors_read(file, header_bytes, bytes, entry, NULL, reading, err),
        err);
}

static enum roped_status count_tensor(void *context,
                                      const struct safetensors_entry *entry,
                                      struct roped_error *err)
{
    struct reading *reading = context;
    (void)entry;
    (void)err;
    reading->n_tensors++;
    return ROPED_OK;
}

static enum roped_status read_tensor(void *context,
                                     const struct safetensors_entry *entry,
                                     struct roped_error *err)
{
    struct reading *reading = context;
    int i = reading->n_tensors++;
    (void)err;
    memcpy(reading->names[i], entry->name, sizeof entry->name);
    reading->tensors[i] =
        (struct roped_client_tensor){reading->names[i], entry->tensor};
    reading->tensors[i].tensor.data = reading->data + entry->begin;
    return ROPED_OK;
}

enum roped_status roped_client_read(void *file, size_t file_bytes,
                                    struct roped_client_tensor **tensors,
                                    int *n_tensors, struct roped_error *err)
{
    struct reading reading = {.n_tensors = 0};
    enum roped_status status =
        read_file(file, file_bytes, count_tensor, &reading, err);
    if (status)
        return status;
    size_t n = (size_t)reading.n_tensors;
    reading.tensors =
        malloc(n * (sizeof *reading.tensors + ROPED_NAME_BYTES) + 1);
    if (!reading.tensors)
        return no_memory(err, "the names of the tensors");
    reading.names = (void *)(reading.tensors + n);
    reading.n_tensors = 0;
    status = read_file(file, file_bytes, read_tensor, &reading, err);
    if (status) {
        free(reading.tensors);
        return status;
    }
    *tensors = reading.tensors;
    *n_tensors = reading.n_tensors;
    return ROPED_OK;
}

static enum roped_status read_output(void *context,
                                     const struct safetensors_entry *entry,
                                     struct roped_error *err)
{
    struct reading *reading = context;
    struct roped_client_result *result = reading->result;
    if (result->n_tensors == ROPED_CLIENT_TENSORS)
        return roped_fail(err, ROPED_INTERNAL, "the answer has over %d tensors",
                          ROPED_CLIENT_TENSORS);
    int i = result->n_tensors++;
    memcpy(result->name[i], entry->name, sizeof entry->name);
    result->tensor[i] = entry->tensor;
    result->tensor[i].data = reading->data + entry->begin;
    return ROPED_OK;
}

enum roped_status client_file_read(void *file, size_t bytes,
                                   struct roped_client_result *result,
                                   struct roped_error *err)
{
    struct reading reading = {.result = result};
    return read_file(file, bytes, read_output, &reading, err);
}
