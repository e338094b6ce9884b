/*
 * region_refs.h - which tensors a request says are in regions, in either of
 * the two wires' words. /v1 says it in the query string:
 *     from.<input>=<region>[:offset]    into.<output>=<region>[:offset]
 *     shape.<input>=4,64                dtype.<input>=BF16
 *     stride.<input>=6144               into_stride.<output>=6144
 * where shape and dtype are what the region does not say itself, and a stride
 * is elements from one token, or row, to the next.
 */
#ifndef ROPED_WIRE_REGION_REFS_H
#define ROPED_WIRE_REGION_REFS_H

#include "wire/signature.h"

#include <stdbool.h>
#include <stdint.h>

struct region_ref {
    bool is_output;
    int port;
    char region[ROPED_NAME_BYTES]; /* "": not said yet */
    uint64_t offset;
    uint64_t bytes;             /* v2's shared_memory_byte_size; v1: 0 */
    bool has_stride;            /* tensor's stride */
    bool has_shape;             /* v1: tensor's rank and dims */
    struct roped_tensor tensor; /* what was said; data NULL */
};

struct region_refs {
    int n;
    struct region_ref ref[SIGNATURE_INPUTS + SIGNATURE_OUTPUTS];
};

/* The reference of a port, new and empty where there was none. */
struct region_ref *region_refs_of(struct region_refs *refs, bool is_output,
                                  int port);

/*
 * Reads a parameter of a query string. *is_region is false, and nothing is
 * done, where its name is none of those above.
 */
ROPED_MUST_CHECK enum roped_status
region_refs_read(struct region_refs *refs, const struct signature *signature,
                 const char *name, const char *value, bool *is_region,
                 struct roped_error *err);

/* ROPED_BAD_PARAMETER where something is said of a tensor, and no region. */
ROPED_MUST_CHECK enum roped_status
region_refs_check(const struct region_ref *ref, const char *tensor,
                  struct roped_error *err);

/* The tensor of an input: what was not said of it its region says, whose tensor
 * this is: its type, and at its start its shape. */
ROPED_MUST_CHECK enum roped_status
region_refs_describe(const struct region_ref *ref, const char *tensor,
                     const char *region, const struct roped_tensor *its,
                     struct roped_tensor *out, struct roped_error *err);

/* "4,64" as dims of tensor, name being the parameter's. "" is a scalar. */
ROPED_MUST_CHECK enum roped_status
region_refs_read_shape(const char *name, const char *value,
                       struct roped_tensor *tensor, struct roped_error *err);

#endif
