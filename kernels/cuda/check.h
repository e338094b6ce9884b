/*
 * check.h - the two ways to leave a function after a failed CUDA call: the
 * status and its sentence are made once, here, with the call's own text.
 */
#ifndef ROPED_CUDA_CHECK_H
#define ROPED_CUDA_CHECK_H

#include "cuda/cuda_internal.h"

/* Returns the status of a failed call. */
#define CHECK_RETURN(backend, call, err)                                                           \
    do {                                                                                           \
        cudaError_t code_ = (call);                                                                \
        if (code_ != cudaSuccess)                                                                  \
            return roped_cuda_fail((backend), code_, #call, (err));                                \
    } while (0)

/* Sets the local variable status and goes to label. */
#define CHECK_GOTO(backend, call, err, label)                                                      \
    do {                                                                                           \
        cudaError_t code_ = (call);                                                                \
        if (code_ != cudaSuccess) {                                                                \
            status = roped_cuda_fail((backend), code_, #call, (err));                              \
            goto label;                                                                            \
        }                                                                                          \
    } while (0)

#endif
