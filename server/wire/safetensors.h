/*
 * safetensors.h - the body of /v1: 8 bytes u64 LE header length N, N bytes of
 * JSON, data. Stricter than the reference reader wherever two parsers could
 * disagree: first byte '{', no duplicate names, no control characters in
 * names, at most 1,024 tensors, N at most 1 MiB, rank at most 8.
 */
#ifndef ROPED_WIRE_SAFETENSORS_H
#define ROPED_WIRE_SAFETENSORS_H

#include "wire/buffer.h"

#include <roped/op.h>

#include <stddef.h>
#include <stdint.h>

enum {
    SAFETENSORS_PREFIX_BYTES = 8,
    SAFETENSORS_MAX_HEADER_BYTES = 1 << 20,
    SAFETENSORS_MAX_TENSORS = 1024,
    SAFETENSORS_DATA_ALIGNMENT = 64
};

struct safetensors_entry {
    char name[ROPED_NAME_BYTES];
    struct roped_tensor tensor; /* data NULL */
    uint64_t begin, end;        /* bytes from the start of the data */
};

/* Called per tensor in file order, while the header is being read: what it said
 * holds once safetensors_read has returned ROPED_OK. A failure stops the
 * reading. */
typedef enum roped_status
safetensors_entry_fn(void *context, const struct safetensors_entry *entry,
                     struct roped_error *err);

/* Called per string of __metadata__; name and value live for the call. */
typedef enum roped_status safetensors_metadata_fn(void *context,
                                                  const char *name,
                                                  const char *value,
                                                  struct roped_error *err);

/*
 * Bytes of prefix + JSON, from the first 8 bytes of a body of total_bytes.
 * ROPED_INVALID where that length is impossible.
 */
ROPED_MUST_CHECK enum roped_status
safetensors_header_bytes(const void *prefix, uint64_t total_bytes,
                         size_t *header_bytes, struct roped_error *err);

/* What a body that is no such file looks like by the first of its bytes, at
 * most 8: .npy; .npz and .pt, which are zip archives; ... */
enum safetensors_other {
    SAFETENSORS_UNKNOWN,
    SAFETENSORS_JSON,
    SAFETENSORS_NPY,
    SAFETENSORS_ZIP,
    SAFETENSORS_GZIP,
    SAFETENSORS_TEXT
};
enum safetensors_other safetensors_mistaken(const void *prefix, size_t bytes);

/*
 * Reads the header (prefix + JSON, header_bytes of them) of a body of
 * total_bytes; the data need not be there. entry may be NULL, and metadata;
 * without the latter nothing is allocated. Over 1,280 names in JSON objects
 * that are open at once are refused.
 */
ROPED_MUST_CHECK enum roped_status
safetensors_read(const void *header, size_t header_bytes, uint64_t total_bytes,
                 safetensors_entry_fn *entry, safetensors_metadata_fn *metadata,
                 void *context, struct roped_error *err);

/* A tensor to be written. fp8_as_u8 in the writer turns FP8 names into U8. */
struct safetensors_output {
    const char *name;
    const struct roped_tensor *tensor;
    uint64_t offset; /* set by safetensors_layout: from the start of the data */
};

/*
 * Lays n outputs out in the given order, packed, no padding (the format has
 * none), and appends prefix + JSON to buffer, padded with spaces so that data
 * starts at a multiple of 64 from the start of the file. metadata: n_metadata
 * pairs of name and value. Returns the data bytes.
 */
ROPED_MUST_CHECK enum roped_status safetensors_write_header(
    struct buffer *buffer, struct safetensors_output *outputs, int n_outputs,
    const char *const (*metadata)[2], int n_metadata, bool fp8_as_u8,
    uint64_t *data_bytes, struct roped_error *err);

#endif
