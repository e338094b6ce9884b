/*
 * fuzz_kserve.c - any bytes as a v2 request: a byte for the operator, two for
 * the length of the binary part, then the JSON; and the binary part as a
 * request without JSON. Promises: nothing is read outside, what is accepted is
 * strict JSON, JSON tensors need memory in proportion to it, and the answer is
 * strict JSON.
 */
#include "fuzz.h"
#include "of_call.h"

#include "wire/json_reader.h"
#include "wire/kserve.h"

#include <string.h>

enum { PREFIX_BYTES = 3, MAX_OUTPUT_BYTES = 1 << 16, MAX_NAMES = 1 << 18 };

static void check_json(const char *json, size_t bytes)
{
    static struct json_string names[MAX_NAMES];
    struct json_reader reader;
    struct roped_error err;
    json_reader_init(&reader, json, bytes, JSON_V2_DEPTH, names, MAX_NAMES);
    FUZZ_PROMISE(!json_check(&reader, &err));
    FUZZ_PROMISE(reader.nan == JSON_NOWHERE);
}

static void answer(struct roped_call *call, struct kserve_request *request)
{
    static unsigned char zeros[MAX_OUTPUT_BYTES];
    uint64_t offset[SIGNATURE_OUTPUTS], binary_bytes;
    struct roped_error err;
    struct buffer buffer;
    for (int i = 0; i < ROPED_MAX_OUTPUTS; i++) {
        if (!roped_tensor_given(&call->out[i]))
            continue;
        if (roped_tensor_bytes(&call->out[i]) > MAX_OUTPUT_BYTES)
            return;
        call->out[i].data = zeros;
    }
    buffer_init(&buffer);
    FUZZ_PROMISE(!kserve_write_response(&buffer, OF_CALL(call), request, offset,
                                        &binary_bytes, &err));
    check_json(buffer.text, buffer.bytes);
    FUZZ_PROMISE(!kserve_is_binary_answer(request) || binary_bytes > 0 ||
                 roped_tensor_bytes(&call->out[request->output[0].port]) == 0);
    buffer_fini(&buffer);
}

/* What was accepted once can be stored. */
static void store(struct roped_call *call, const char *json, size_t json_bytes,
                  const struct kserve_request *request)
{
    struct roped_error err;
    FUZZ_PROMISE(request->json_tensor_bytes <=
                 (uint64_t)(json_bytes + ROPED_MAX_INPUTS) * 16);
    unsigned char *memory = malloc((size_t)request->json_tensor_bytes + 1);
    FUZZ_PROMISE(memory != NULL);
    FUZZ_PROMISE(!kserve_read_json_tensors(OF_CALL(call), json, json_bytes,
                                           request, memory, &err));
    free(memory);
}

/* Without JSON, every length is one that fits or that is refused. */
static void read_raw(const struct roped_op *op, uint64_t bytes)
{
    struct kserve_request request;
    struct roped_error err;
    struct roped_call call;
    roped_call_init(&call, op);
    if (kserve_read_raw(OF_CALL(&call), NULL, bytes, &request, &err))
        return;
    for (int i = 0; i < roped_op_inputs(op); i++)
        FUZZ_PROMISE(!roped_tensor_given(&call.in[i]) ||
                     (uint64_t)roped_tensor_bytes(&call.in[i]) == bytes);
    enum roped_status status = roped_call_resolve(&call, &err);
    FUZZ_PROMISE(!status || is_refusal(status));
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t bytes)
{
    struct kserve_request request;
    struct roped_error err = {.status = ROPED_OK};
    struct roped_call call;
    if (bytes < PREFIX_BYTES)
        return 0;
    const char *json = (const char *)input + PREFIX_BYTES;
    size_t json_bytes = bytes - PREFIX_BYTES;
    uint64_t binary_bytes = (uint64_t)input[1] | (uint64_t)input[2] << 8;
    const struct roped_op *op = roped_op_at(input[0] % roped_op_count());
    read_raw(op, binary_bytes);
    roped_call_init(&call, op);
    const struct kserve_body body = {json, json_bytes, NULL, binary_bytes};
    enum roped_status status =
        kserve_read_request(OF_CALL(&call), &body, &request, &err);
    FUZZ_PROMISE(!status || is_refusal(status) || status == ROPED_NO_REGION);
    if (status)
        return 0;
    FUZZ_PROMISE(request.binary_bytes == binary_bytes);
    check_json(json, json_bytes);
    store(&call, json, json_bytes, &request);
    status = roped_call_resolve(&call, &err);
    FUZZ_PROMISE(!status || is_refusal(status));
    if (!status && !kserve_check_outputs(OF_CALL(&call), &request, &err))
        answer(&call, &request);
    return 0;
}
