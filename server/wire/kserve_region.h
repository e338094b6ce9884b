/*
 * kserve_region.h - v2's shared memory: the per-tensor parameters of a call
 * that name a region, and the documents that register and list them.
 */
#ifndef ROPED_WIRE_KSERVE_REGION_H
#define ROPED_WIRE_KSERVE_REGION_H

#include "wire/json_reader.h"
#include "wire/region_refs.h"

/* Members of the parameters of an input or requested output, in the order in
 * which json_find has them found; others may follow. */
#define KSERVE_REGION_NAMES                                                    \
    "shared_memory_region", "shared_memory_byte_size", "shared_memory_offset", \
        "stride"
enum {
    KSERVE_REGION,
    KSERVE_BYTE_SIZE,
    KSERVE_OFFSET,
    KSERVE_STRIDE,
    KSERVE_REGION_PARAMS /* their number */
};

/*
 * Notes in refs where these parameters of an input or requested output say that
 * it is in a region; the offset is 0 where it is absent.
 */
ROPED_MUST_CHECK enum roped_status
kserve_read_region(const struct signature *signature, bool is_output, int port,
                   struct json_reader param[KSERVE_REGION_PARAMS],
                   struct region_refs *refs, struct roped_error *err);

/* An input takes exactly the bytes of its shape of a region; with a stride what
 * kserve_check_strided_inputs says of the resolved call. */
ROPED_MUST_CHECK enum roped_status kserve_check_region_input(
    const struct signature *signature, const struct roped_tensor *tensor,
    const struct region_ref *ref, struct roped_error *err);

/* Inputs with a stride take at least the bytes from their first element to
 * their last. */
ROPED_MUST_CHECK enum roped_status
kserve_check_strided_inputs(const struct signature *signature,
                            const struct region_refs *refs,
                            struct roped_error *err);

/* Output port of a resolved call stays in a region, which may give it more
 * bytes than it takes, and not fewer. */
ROPED_MUST_CHECK enum roped_status
kserve_check_region_output(const struct signature *signature, int port,
                           struct region_refs *refs, struct roped_error *err);

/* What a client registers: POST /v2/systemsharedmemory/region/{r}/register. */
struct kserve_system_memory {
    char key[256];
    uint64_t offset, bytes;
};

/* Reads {"key": "/name", "offset": 0, "byte_size": n}; offset is optional. */
ROPED_MUST_CHECK enum roped_status
kserve_read_system_memory(const char *json, size_t bytes,
                          struct kserve_system_memory *out,
                          struct roped_error *err);

/* POST /v2/cudasharedmemory/region/{r}/register */
struct kserve_cuda_memory {
    unsigned char handle[64]; /* a cudaIpcMemHandle_t */
    uint64_t device, bytes;
};

/* Reads {"raw_handle": {"b64": "..."}, "device_id": 0, "byte_size": n}. */
ROPED_MUST_CHECK enum roped_status
kserve_read_cuda_memory(const char *json, size_t bytes,
                        struct kserve_cuda_memory *out,
                        struct roped_error *err);

#endif
