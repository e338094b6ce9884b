/*
 * npz.h - arrays in a file, as numpy.savez and numpy.savez_compressed write
 * them: a zip archive of .npy files, stored or deflated. What is written is
 * stored, and below 4 GiB.
 */
#ifndef ROPED_CLIENT_NPZ_H
#define ROPED_CLIENT_NPZ_H

#include "roped_client.h"

#include <stdbool.h>

struct npz_array {
    char name[ROPED_NAME_BYTES]; /* without .npy */
    unsigned char *npy;          /* the entry's bytes; tensor is a view */
    struct roped_tensor tensor;
};
struct npz {
    int n;
    struct npz_array *array;
};

/* Do these bytes begin as a zip archive does? */
bool npz_is(const void *file, size_t bytes);

/* Every array of an archive, in copies. npz_free in any case. */
ROPED_MUST_CHECK enum roped_status npz_read(const void *file, size_t bytes,
                                            struct npz *npz,
                                            struct roped_error *err);
void npz_free(struct npz *npz);

/* The bytes of an archive of these tensors, to be freed. */
ROPED_MUST_CHECK enum roped_status
npz_write(const struct roped_client_tensor *tensors, int n_tensors, void **file,
          size_t *file_bytes, struct roped_error *err);

#endif
