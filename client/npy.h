/*
 * npy.h - one array in a file, as numpy.save writes it: versions 1.0 and 2.0,
 * little-endian, C order. numpy has neither BF16 nor FP8, so no file of either
 * is written, and ml_dtypes' stand-ins ('|V2', '|V1') are refused.
 */
#ifndef ROPED_CLIENT_NPY_H
#define ROPED_CLIENT_NPY_H

#include <roped/tensor.h>

#include <stdbool.h>

enum { NPY_HEADER_BYTES = 512 }; /* more than any that is written */

/* Do these bytes begin as a .npy file does? */
bool npy_is(const void *file, size_t bytes);

/* The array as a tensor, a view into file. */
ROPED_MUST_CHECK enum roped_status npy_read(void *file, size_t bytes,
                                            struct roped_tensor *tensor,
                                            struct roped_error *err);

/*
 * Writes what stands before the data of a tensor, a multiple of 64 bytes, into
 * header. name is the tensor's, for the message.
 */
ROPED_MUST_CHECK enum roped_status
npy_write_header(const char *name, const struct roped_tensor *tensor,
                 char header[NPY_HEADER_BYTES], size_t *header_bytes,
                 struct roped_error *err);

#endif
