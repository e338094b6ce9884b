/*
 * kserve.h - KServe v2 inference with the binary tensor extension: JSON, then
 * the bytes of the binary tensors in array order, packed, at any offset.
 * Phrases of errors are those that existing clients match on.
 *
 * Request parameters are the model's, but for binary_data_output, table and
 * timeout, which end up in struct kserve_request; priority, which is accepted
 * and ignored: short calls run first; and sequence_* and triton_*, which are
 * refused.
 */
#ifndef ROPED_WIRE_KSERVE_H
#define ROPED_WIRE_KSERVE_H

#include "wire/buffer.h"
#include "wire/param_json.h"
#include "wire/region_refs.h"

#include <stdbool.h>

enum { KSERVE_ID_BYTES = 128 };

struct kserve_request {
    char id[KSERVE_ID_BYTES];     /* "" : absent */
    char table[ROPED_NAME_BYTES]; /* request parameter 'table', or "" */
    uint64_t timeout_us;          /* longest wait for a lane; 0: the server's */
    bool binary_output;           /* binary_data_output of the request */
    int n_outputs;                /* 0: all, in the model's order */
    uint64_t kept; /* bit i: output i stays in a region and is not sent */
    uint64_t binary_bytes;            /* used after the JSON */
    uint64_t json_tensor_bytes;       /* memory that JSON tensors ask for */
    size_t data_at[SIGNATURE_INPUTS]; /* offset in the JSON of an input's
                                       * values; 0: they are elsewhere */

    /* a new request does not clear these */
    struct region_refs regions; /* tensors in regions */
    struct kserve_wanted {
        int port; /* index of an output */
        bool is_binary;
    } output[SIGNATURE_OUTPUTS];
    struct param_texts texts;
};

/* What a request has behind its head. */
struct kserve_body {
    const char *json;
    size_t json_bytes;
    unsigned char *binary; /* behind the JSON; NULL: not known yet */
    uint64_t binary_bytes;
};

/*
 * Reads the JSON part: sets parameters, binds inputs (the data of binary
 * inputs is at binary + their offset), and notes what is wanted
 * back and what is in regions. Values in the JSON are checked; NaN and
 * Infinity, which some clients write there, are refused, and so are over 128
 * names in JSON objects that are open at once. Allocates nothing. Does not
 * resolve.
 */
ROPED_MUST_CHECK enum roped_status
kserve_read_request(const struct signature *signature,
                    const struct kserve_body *body, struct kserve_request *out,
                    struct roped_error *err);

/*
 * The same for a request without JSON ("raw binary"): the body is the one
 * input that the model needs, of the datatype and shape of its metadata,
 * with at most one variable dim, which follows from bytes. Every output comes
 * back binary.
 */
ROPED_MUST_CHECK enum roped_status
kserve_read_raw(const struct signature *signature, void *data, uint64_t bytes,
                struct kserve_request *out, struct roped_error *err);

/*
 * Converts the values of JSON tensors, all of which have been checked, into
 * memory (request->json_tensor_bytes of it, each 16-byte aligned) and points
 * the inputs' data at them. json is the same text again.
 */
ROPED_MUST_CHECK enum roped_status
kserve_read_json_tensors(const struct signature *signature, const char *json,
                         size_t json_bytes,
                         const struct kserve_request *request, void *memory,
                         struct roped_error *err);

/*
 * After resolve: do the requested outputs exist in this call, and fit the
 * bytes given for them? Fills request->output with the default where the
 * client named none. The caller has set request->kept.
 */
ROPED_MUST_CHECK enum roped_status
kserve_check_outputs(const struct signature *signature,
                     struct kserve_request *request, struct roped_error *err);

/* True where every wanted output is binary or in a region: the JSON can be
 * written before the results exist. */
bool kserve_is_binary_answer(const struct kserve_request *request);

/*
 * Appends the answer's JSON. Values of outputs that are wanted as JSON are
 * read from the outputs' data (host). offset[i] gets every binary output's
 * place after the JSON; binary_bytes their sum. model_version is "1".
 * ROPED_INVALID where a value is NaN or infinite, which JSON cannot say.
 */
ROPED_MUST_CHECK enum roped_status
kserve_write_response(struct buffer *buffer, const struct signature *signature,
                      const struct kserve_request *request,
                      uint64_t offset[SIGNATURE_OUTPUTS],
                      uint64_t *binary_bytes, struct roped_error *err);

#endif
