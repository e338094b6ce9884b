/*
 * v1.h - the plain form of a request: POST /v1/{op}, or /v1/programs/{name}, a
 * safetensors file each way, parameters in the query string.
 */
#ifndef ROPED_WIRE_V1_H
#define ROPED_WIRE_V1_H

#include "wire/buffer.h"
#include "wire/signature.h"

/*
 * Binds every tensor of a body whose header is at header. The tensors' data
 * pointers become data + their offset: data is where the body's data section
 * is, or will be once received. Metadata entries are ignored.
 */
ROPED_MUST_CHECK enum roped_status
v1_read_request(const struct signature *signature, const void *header,
                size_t header_bytes, uint64_t total_bytes, void *data,
                struct roped_error *err);

/* May a region or a table be called so? Letters, digits, '.', '_' and '-', and
 * no name that is a folder in a path. */
bool v1_is_name(const char *name);

/* Which outputs an answer has, and as what. */
struct v1_wanted {
    uint64_t kept; /* bit i: output i stays in a region and is not sent */
    bool fp8_as_u8;
    const char *step_us; /* metadata of that name; NULL: none */
};

/*
 * Appends the answer's header for a resolved request to buffer, and sets
 * offset[i] of every output that is made and sent: bytes from the start of the
 * data section, which follows at a multiple of 64.
 */
ROPED_MUST_CHECK enum roped_status v1_write_response_header(
    struct buffer *buffer, const struct signature *signature,
    struct v1_wanted wanted, uint64_t offset[SIGNATURE_OUTPUTS],
    uint64_t *data_bytes, struct roped_error *err);

#endif
