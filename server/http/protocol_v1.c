/*
 * protocol_v1.c - /v1: one safetensors file each way, parameters in the query.
 */
#include "http/call_regions.h"
#include "http/request.h"
#include "wire/v1.h"

#include <string.h>

static const struct roped_op *find_op(struct request *request)
{
    const struct roped_op *op = roped_op_find(request->match.capture);
    if (!op)
        (void)call_no_operator(request, &request->error);
    return op;
}

static enum roped_status set_fp8(struct request *request, const char *value)
{
    if (request->call.has_fp8)
        return roped_fail(&request->error, ROPED_BAD_PARAMETER,
                          "parameter 'fp8' is given twice");
    request->call.has_fp8 = true;
    request->call.fp8_as_u8 = strcmp(value, "u8") == 0;
    if (request->call.fp8_as_u8 || strcmp(value, "native") == 0)
        return ROPED_OK;
    return roped_fail(&request->error, ROPED_BAD_PARAMETER,
                      "parameter 'fp8': '%.32s', expected native or u8", value);
}

static enum roped_status read_parameter(struct request *request,
                                        const struct head_parameter *parameter,
                                        struct region_refs *regions)
{
    bool is_region;
    const char *name = parameter->name, *value = parameter->value;
    /* an encoded NUL would make a text shorter than what was sent */
    if (parameter->has_nul)
        return roped_fail(&request->error, ROPED_BAD_PARAMETER,
                          "parameter '%.32s': NUL in its name or value", name);
    enum roped_status status = region_refs_read(
        regions, request->call.op, name, value, &is_region, &request->error);
    if (status || is_region)
        return status;
    if (strcmp(name, "table") == 0)
        return call_use_table(request, value);
    if (strcmp(name, "fp8") == 0)
        return set_fp8(request, value);
    return roped_call_set_text(&request->job.call, name, value,
                               &request->error);
}

static enum roped_status decode(struct request *request)
{
    const struct body *body = &request->body;
    struct region_refs regions;
    enum roped_status status = ROPED_OK;
    regions.n = 0;
    for (int i = 0; i < request->head.n_parameters && !status; i++)
        status = read_parameter(request, &request->head.parameter[i], &regions);
    if (!status && body->length > 0) /* else all is in regions */
        status = v1_read_request(&request->job.call, body_bytes(request, 0),
                                 body->header_bytes, body->length,
                                 body_bytes(request, body->header_bytes),
                                 &request->error);
    if (!status)
        status = call_take_regions(request, &regions);
    return status ? status : call_bind_regions(request, &regions);
}

static enum roped_status nothing_more(struct request *request)
{
    (void)request;
    return ROPED_OK;
}

static enum roped_status write_header(struct request *request,
                                      struct buffer *header, uint64_t *offset,
                                      uint64_t *sent, uint64_t *all)
{
    const struct v1_wanted wanted = {request->call.kept,
                                     request->call.fp8_as_u8};
    enum roped_status status = v1_write_response_header(
        header, &request->job.call, wanted, offset, sent, &request->error);
    *all = *sent;
    return status;
}

static struct reply answer(struct request *request)
{
    return call_block(request, "application/x-safetensors");
}

const struct protocol protocol_v1 = {.transport = METRICS_V1,
                                     .find_op = find_op,
                                     .decode = decode,
                                     .check = nothing_more,
                                     .read_values = nothing_more,
                                     .write_header = write_header,
                                     .answer = answer};
