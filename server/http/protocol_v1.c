/*
 * protocol_v1.c - /v1: one safetensors file each way, parameters in the query.
 */
#include "http/call_regions.h"
#include "http/step_times.h"
#include "wire/v1.h"

#include <string.h>

static const struct roped_op *find_op(struct call *call)
{
    const struct roped_op *op = roped_op_find(call->name);
    if (!op)
        (void)call_no_operator(call->name, call->error);
    return op;
}

static enum roped_status set_fp8(struct call *call, const char *value)
{
    if (call->has_fp8)
        return roped_fail(call->error, ROPED_BAD_PARAMETER,
                          "parameter 'fp8' is given twice");
    call->has_fp8 = true;
    call->fp8_as_u8 = strcmp(value, "u8") == 0;
    if (call->fp8_as_u8 || strcmp(value, "native") == 0)
        return ROPED_OK;
    return roped_fail(call->error, ROPED_BAD_PARAMETER,
                      "parameter 'fp8': '%.32s', expected native or u8", value);
}

static enum roped_status set_timing(struct call *call, const char *value)
{
    if (call->has_timing)
        return roped_fail(call->error, ROPED_BAD_PARAMETER,
                          "parameter 'timing' is given twice");
    call->has_timing = true;
    if (strcmp(value, "steps") == 0)
        return ROPED_OK;
    return roped_fail(call->error, ROPED_BAD_PARAMETER,
                      "parameter 'timing': '%.32s', expected steps", value);
}

static enum roped_status read_parameter(struct call *call,
                                        const struct head_parameter *parameter,
                                        struct region_refs *regions)
{
    bool is_region;
    const char *name = parameter->name, *value = parameter->value;
    /* an encoded NUL would make a text shorter than what was sent */
    if (parameter->has_nul)
        return roped_fail(call->error, ROPED_BAD_PARAMETER,
                          "parameter '%.32s': NUL in its name or value", name);
    enum roped_status status = region_refs_read(regions, &call->signature, name,
                                                value, &is_region, call->error);
    if (status || is_region)
        return status;
    if (call->op && strcmp(name, "table") == 0)
        return call_use_table(call, value);
    if (strcmp(name, "fp8") == 0)
        return set_fp8(call, value);
    if (call->run && strcmp(name, "timing") == 0)
        return set_timing(call, value);
    return signature_set_text(&call->signature, name, value, call->error);
}

static enum roped_status decode(struct call *call)
{
    const struct body *body = call->body;
    struct region_refs regions;
    enum roped_status status = ROPED_OK;
    regions.n = 0;
    for (int i = 0; i < call->head->n_parameters && !status; i++)
        status = read_parameter(call, &call->head->parameter[i], &regions);
    if (!status && body->length > 0) /* else all is in regions */
        status = v1_read_request(&call->signature, body_bytes(call->body, 0),
                                 body->header_bytes, body->length,
                                 body_bytes(call->body, body->header_bytes),
                                 call->error);
    if (!status)
        status = call_take_regions(call, &regions);
    return status ? status : call_bind_regions(call, &regions);
}

static enum roped_status nothing_more(struct call *call)
{
    (void)call;
    return ROPED_OK;
}

static enum roped_status write_header(struct call *call, struct buffer *header,
                                      uint64_t *offset, uint64_t *sent,
                                      uint64_t *all)
{
    const struct v1_wanted wanted = {call->kept, call->fp8_as_u8,
                                     step_times_text(call)};
    enum roped_status status = v1_write_response_header(
        header, &call->signature, wanted, offset, sent, call->error);
    *all = *sent;
    return status;
}

static struct reply answer(struct call *call)
{
    step_times_fill(call);
    return call_block(call, "application/x-safetensors");
}

const struct protocol protocol_v1 = {.transport = METRICS_V1,
                                     .find_op = find_op,
                                     .decode = decode,
                                     .check = nothing_more,
                                     .read_values = nothing_more,
                                     .write_header = write_header,
                                     .answer = answer};
