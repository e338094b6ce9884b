/*
 * tensor_file.h - files of tensors: safetensors, or .npy, which has one tensor
 * without a name. Read by what they begin with, written by their name's end.
 */
#ifndef ROPED_CLIENT_TENSOR_FILE_H
#define ROPED_CLIENT_TENSOR_FILE_H

#include "roped_client.h"

#include <cjson/cJSON.h>
#include <stdbool.h>

struct tensor_file {
    unsigned char *bytes;
    size_t n_bytes;
    bool is_npy;
    char name[ROPED_NAME_BYTES];         /* of the tensor of a .npy file */
    struct roped_client_tensor *tensors; /* views into bytes */
    int n_tensors;
};

/*
 * Reads a file ("-": standard input). name, where it is not NULL, is that of
 * its only tensor; else one of .npy is called like its file. False after saying
 * why not. tensor_file_close in any case.
 */
bool tensor_file_open(struct tensor_file *file, const char *path,
                      const char *name);
void tensor_file_close(struct tensor_file *file);

bool is_npy_path(const char *path);

/* Writes one tensor into a file; false after saying why not. */
bool write_tensor(const char *path, const struct roped_client_tensor *tensor);

/* A row of a document: name, type, shape, first values. */
void add_tensor(cJSON *array, const struct roped_client_tensor *tensor);

#endif
