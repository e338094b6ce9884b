/*
 * kserve_answer.c - v2 inference answers.
 */
#include "wire/kserve.h"

#include "wire/kserve_data.h"
#include "wire/kserve_region.h"

static bool is_kept(const struct kserve_request *request, int port)
{
    return request->kept >> port & 1;
}

/* Every output that there is, where the client named none. */
static void want_all(const struct signature *signature,
                     struct kserve_request *request)
{
    struct roped_tensor tensor;
    for (int i = 0; i < signature_count(signature, true); i++)
        if (signature_output(signature, i, &tensor))
            request->output[request->n_outputs++] =
                (struct kserve_wanted){i, request->binary_output};
}

/* An operator's, which comes with an input or a parameter. */
static enum roped_status not_made(const struct signature *signature, int port,
                                  struct roped_error *err)
{
    const struct roped_op *op = signature->op;
    const char *needed = op ? op->out[port].requires_ : NULL;
    const char *name = signature_tensor(signature, true, port);
    if (!needed)
        return roped_fail(err, ROPED_INVALID,
                          "unexpected inference output '%s' for model '%s': "
                          "this request does not make it",
                          name, signature->name);
    return roped_fail(err, ROPED_INVALID,
                      "unexpected inference output '%s' for model '%s': it "
                      "needs %s '%s'",
                      name, signature->name,
                      roped_op_input(op, needed) < 0 ? "parameter" : "input",
                      needed);
}

static enum roped_status check_output(const struct signature *signature,
                                      struct kserve_request *request,
                                      const struct kserve_wanted *wanted,
                                      bool is_named, struct roped_error *err)
{
    struct roped_tensor tensor;
    if (!signature_output(signature, wanted->port, &tensor))
        return not_made(signature, wanted->port, err);
    if (is_kept(request, wanted->port))
        return is_named ? kserve_check_region_output(signature, wanted->port,
                                                     &request->regions, err)
                        : ROPED_OK;
    if (!wanted->is_binary &&
        (tensor.dtype == ROPED_F16 || tensor.dtype == ROPED_BF16))
        return roped_fail(err, ROPED_INVALID,
                          "sending %s data via JSON is not supported for "
                          "output '%s'. Please set 'binary_data': true or "
                          "'binary_data_output': true",
                          roped_dtype_v2_name(tensor.dtype),
                          signature_tensor(signature, true, wanted->port));
    return ROPED_OK;
}

enum roped_status kserve_check_outputs(const struct signature *signature,
                                       struct kserve_request *request,
                                       struct roped_error *err)
{
    bool is_named = request->n_outputs > 0;
    enum roped_status status =
        kserve_check_strided_inputs(signature, &request->regions, err);
    if (!is_named)
        want_all(signature, request);
    for (int i = 0; i < request->n_outputs && !status; i++)
        status = check_output(signature, request, &request->output[i], is_named,
                              err);
    return status;
}

bool kserve_is_binary_answer(const struct kserve_request *request)
{
    for (int i = 0; i < request->n_outputs; i++)
        if (!request->output[i].is_binary &&
            !is_kept(request, request->output[i].port))
            return false;
    return true;
}

static bool is_fp8(enum roped_dtype dtype)
{
    return ROPED_SET(dtype) & ROPED_FP8S;
}

/* An output that is in a region has neither data nor parameters. */
static enum roped_status write_output(struct buffer *buffer, const char *name,
                                      const struct roped_tensor *tensor,
                                      bool is_kept_there, bool is_binary,
                                      struct roped_error *err)
{
    enum roped_status status = ROPED_OK;
    buffer_text(buffer, "{\"name\":");
    buffer_json_string(buffer, name);
    buffer_text(buffer, ",\"datatype\":\"");
    buffer_text(buffer, roped_dtype_v2_name(tensor->dtype));
    buffer_text(buffer, "\",\"shape\":");
    buffer_dims(buffer, tensor->dims, tensor->rank);
    if (is_kept_there) {
        buffer_text(buffer, "}");
        return ROPED_OK;
    }
    if (is_binary) {
        buffer_text(buffer, ",\"parameters\":{\"binary_data_size\":");
        buffer_unsigned(buffer, (uint64_t)roped_tensor_bytes(tensor));
        if (is_fp8(tensor->dtype))
            buffer_printf(buffer, ",\"content_datatype\":\"%s\"",
                          roped_dtype_name(tensor->dtype));
        buffer_text(buffer, "}");
    } else {
        buffer_text(buffer, ",\"data\":");
        status = kserve_write_values(buffer, tensor, name, err);
    }
    buffer_text(buffer, "}");
    return status;
}

/* "parameters" of the answer: what the UINT8 of an output really is. */
static void write_hints(struct buffer *buffer,
                        const struct signature *signature,
                        const struct kserve_request *request)
{
    bool has_any = false;
    for (int i = 0; i < request->n_outputs; i++) {
        int port = request->output[i].port;
        struct roped_tensor tensor;
        (void)signature_output(signature, port, &tensor);
        if (!is_fp8(tensor.dtype))
            continue;
        buffer_text(buffer, has_any ? "," : ",\"parameters\":{");
        buffer_printf(buffer, "\"content_datatype.%s\":\"%s\"",
                      signature_tensor(signature, true, port),
                      roped_dtype_name(tensor.dtype));
        has_any = true;
    }
    if (has_any)
        buffer_text(buffer, "}");
}

enum roped_status kserve_write_response(struct buffer *buffer,
                                        const struct signature *signature,
                                        const struct kserve_request *request,
                                        uint64_t offset[SIGNATURE_OUTPUTS],
                                        uint64_t *binary_bytes,
                                        struct roped_error *err)
{
    uint64_t at = 0;
    enum roped_status status = ROPED_OK;
    buffer_text(buffer, "{");
    if (request->id[0]) {
        buffer_text(buffer, "\"id\":");
        buffer_json_string(buffer, request->id);
        buffer_text(buffer, ",");
    }
    buffer_text(buffer, "\"model_name\":\"");
    buffer_text(buffer, signature->name);
    buffer_text(buffer, "\",\"model_version\":\"1\"");
    write_hints(buffer, signature, request);
    buffer_text(buffer, ",\"outputs\":[");
    for (int i = 0; i < request->n_outputs && !status; i++) {
        int port = request->output[i].port;
        bool is_sent = !is_kept(request, port);
        bool is_binary = request->output[i].is_binary && is_sent;
        struct roped_tensor tensor;
        (void)signature_output(signature, port, &tensor);
        offset[port] = at;
        buffer_text(buffer, i ? "," : "");
        status = write_output(buffer, signature_tensor(signature, true, port),
                              &tensor, !is_sent, is_binary, err);
        at += is_binary ? (uint64_t)roped_tensor_bytes(&tensor) : 0;
    }
    buffer_text(buffer, "]}");
    *binary_bytes = at;
    if (!status && buffer->has_failed)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for the answer");
    return status;
}
