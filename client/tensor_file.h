/*
 * tensor_file.h - files of tensors: safetensors; .npz; or .npy, which has one
 * tensor without a name. Read by what they begin with, written by their name's
 * end.
 */
#ifndef ROPED_CLIENT_TENSOR_FILE_H
#define ROPED_CLIENT_TENSOR_FILE_H

#include "npz.h"
#include "ropectl.h"

#include <cjson/cJSON.h>
#include <stdbool.h>

struct tensor_file {
    unsigned char *bytes;
    size_t n_bytes;
    struct npz npz; /* of a .npz file, whose tensors are copies */
    bool is_npy, is_safetensors;
    char name[ROPED_NAME_BYTES];         /* of the tensor of a .npy file */
    struct roped_client_tensor *tensors; /* views into bytes or npz */
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

/* The same where path may be "@REGION", which is fetched from the server. */
int tensor_file_get(const struct ropectl *ctl, struct tensor_file *file,
                    const char *path);

/* Is it "@REGION"? "./@x" is a file. */
bool is_region_path(const char *path);

/* Has such a file one tensor alone? Does it hold numpy's types alone? */
bool is_npy_path(const char *path);
bool is_numpy_path(const char *path);

/* Can a file be written there, and does its name end in a format? False after
 * saying why not. The second one knows what will be written; there data may be
 * NULL. */
bool can_write(const char *path);
bool can_write_tensors(const char *path,
                       const struct roped_client_tensor *tensors,
                       int n_tensors);

/* Writes tensors into a file; false after saying why not. */
bool write_tensors(const char *path, const struct roped_client_tensor *tensors,
                   int n_tensors);

/* A row of a document: name, type, shape, first values. */
void add_tensor(cJSON *array, const struct roped_client_tensor *tensor);

#endif
