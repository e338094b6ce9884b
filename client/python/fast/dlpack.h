/*
 * dlpack.h - of DLPack's C header, version 1.3, what _fast uses: a view of a
 * tensor, and the table of functions that a library of tensors has as
 * __dlpack_c_exchange_api__ (https://github.com/dmlc/dlpack,
 * include/dlpack/dlpack.h, Apache-2.0). Names are ours, the layout is theirs.
 */
#ifndef ROPED_FAST_DLPACK_H
#define ROPED_FAST_DLPACK_H

#include <stdint.h>

enum { DLPACK_MAJOR = 1 };

enum dlpack_device_type { DLPACK_CPU = 1, DLPACK_CUDA = 2 };

struct dlpack_device {
    int32_t type; /* enum dlpack_device_type, or another library's */
    int32_t index;
};

struct dlpack_dtype {
    uint8_t code, bits;
    uint16_t lanes;
};

/* Of a tensor that somebody else owns; dims and strides are the owner's too. */
struct dlpack_tensor {
    void *data;
    struct dlpack_device device;
    int32_t rank;
    struct dlpack_dtype dtype;
    int64_t *dims, *strides; /* elements */
    uint64_t byte_offset;
};

/* Functions return 0, or another number and set an exception of Python. */
struct dlpack_exchange {
    uint32_t major, minor;
    const struct dlpack_exchange *older; /* the table of an older version */
    void (*managed_tensor_allocator)(void);
    void (*managed_tensor_from_object)(void);
    void (*managed_tensor_to_object)(void);
    int (*view)(void *object, struct dlpack_tensor *out); /* may be NULL */
    int (*current_stream)(int device_type, int32_t index, void **out);
};

#endif
