/*
 * transfer.c - what goes into a resident region, and what comes out of one.
 */
#include "http/transfer.h"

#include "wire/region_refs.h"
#include "wire/safetensors.h"
#include "wire/v1.h"

#include <roped/number.h>

#include <limits.h>
#include <string.h>

void transfer_write_info(struct buffer *buffer, const struct tenant *sees,
                         const struct region_info *info)
{
    buffer_text(buffer, "{\"name\":");
    buffer_json_string(buffer, info->name);
    if (sees == &tenant_everyone && info->tenant->name[0]) {
        buffer_text(buffer, ",\"tenant\":");
        buffer_json_string(buffer, info->tenant->name);
    }
    buffer_printf(buffer, ",\"kind\":\"%s\",\"bytes\":%llu",
                  region_kind_name(info->kind),
                  (unsigned long long)info->bytes);
    if (info->device != REGION_ANY_DEVICE)
        buffer_printf(buffer, ",\"device\":%d", info->device);
    if (roped_tensor_given(&info->tensor)) {
        buffer_text(buffer, ",\"tensor\":");
        buffer_json_string(buffer, info->tensor_name);
        buffer_printf(buffer, ",\"dtype\":\"%s\",\"shape\":",
                      roped_dtype_name(info->tensor.dtype));
        buffer_dims(buffer, info->tensor.dims, info->tensor.rank);
    }
    buffer_text(buffer, "}");
}

/* What is sent in front of the contents; plain bytes have nothing there. */
static enum roped_status write_head(const struct transfer *transfer,
                                    const struct region_info *info,
                                    struct buffer *head)
{
    struct safetensors_output output = {info->tensor_name, &info->tensor, 0};
    uint64_t data_bytes;
    buffer_init_fixed(head, transfer->answer->scratch, REPLY_TEXT_BYTES);
    if (!roped_tensor_given(&info->tensor))
        return ROPED_OK;
    return safetensors_write_header(head, &output, 1, NULL, 0, false,
                                    &data_bytes, transfer->error);
}

/* ---------------------------------------------------------- put: what is it */

/* A region under construction, from the query and from the body. */
struct reading {
    const struct transfer *transfer;
    struct region_info info;
    bool has_bytes, has_shape, has_device;
    int n_tensors;
};

static enum roped_status read_param(struct reading *reading, const char *name,
                                    const char *value)
{
    struct region_info *info = &reading->info;
    struct roped_error *err = reading->transfer->error;
    uint64_t device;
    if (strcmp(name, "tenant") == 0 && reading->transfer->is_guarded)
        return ROPED_OK; /* the caller's, see gate.h */
    if (strcmp(name, "device") == 0 && !reading->has_device &&
        roped_read_size(value, &device)) {
        reading->has_device = true; /* its range is checked with the claim */
        info->device = device < INT_MAX ? (int)device : INT_MAX;
        return ROPED_OK;
    }
    if (strcmp(name, "device") == 0 && !reading->has_device &&
        strcmp(value, "spread") == 0) {
        reading->has_device = true;
        info->device = REGION_SPREAD;
        return ROPED_OK;
    }
    if (strcmp(name, "bytes") == 0 && !reading->has_bytes &&
        roped_read_size(value, &info->bytes)) {
        reading->has_bytes = true;
        return ROPED_OK;
    }
    if (strcmp(name, "shape") == 0 && !reading->has_shape) {
        reading->has_shape = true;
        return region_refs_read_shape(name, value, &info->tensor, err);
    }
    if (strcmp(name, "dtype") == 0 && !info->tensor.dtype) {
        info->tensor.dtype = roped_dtype_from_name(value, strlen(value));
        if (info->tensor.dtype)
            return ROPED_OK;
    }
    return roped_fail(err, ROPED_BAD_PARAMETER,
                      "parameter '%.32s': '%.32s', expected bytes=N, or dtype "
                      "(like BF16) and shape (like 4096,128), or device=N or "
                      "device=spread, each once",
                      name, value);
}

static enum roped_status read_query(struct reading *reading)
{
    const struct head *head = reading->transfer->head;
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < head->n_parameters && !status; i++) {
        const struct head_parameter *parameter = &head->parameter[i];
        status = parameter->has_nul
                     ? roped_fail(reading->transfer->error, ROPED_BAD_PARAMETER,
                                  "parameter '%.32s': NUL in its name or value",
                                  parameter->name)
                     : read_param(reading, parameter->name, parameter->value);
    }
    return status;
}

static enum roped_status read_entry(void *context,
                                    const struct safetensors_entry *entry,
                                    struct roped_error *err)
{
    struct reading *reading = context;
    if (reading->n_tensors++ > 0)
        return roped_fail(err, ROPED_INVALID,
                          "region '%s': tensor '%s' beside '%s', expected one "
                          "tensor",
                          reading->info.name, entry->name,
                          reading->info.tensor_name);
    reading->info.tensor = entry->tensor;
    reading->info.bytes = entry->end - entry->begin;
    memcpy(reading->info.tensor_name, entry->name, sizeof entry->name);
    return ROPED_OK;
}

static enum roped_status read_body(struct reading *reading)
{
    const struct body *body = reading->transfer->body;
    struct roped_error *err = reading->transfer->error;
    if (reading->has_bytes || reading->has_shape || reading->info.tensor.dtype)
        return roped_fail(err, ROPED_INVALID,
                          "region '%s': a tensor in the body and parameters "
                          "that describe one, expected either",
                          reading->info.name);
    enum roped_status status =
        safetensors_read(body->block.start + body->at, body->header_bytes,
                         body->length, read_entry, NULL, reading, err);
    if (!status && reading->n_tensors == 0)
        status = roped_fail(err, ROPED_INVALID,
                            "region '%s': no tensor in the body, expected one",
                            reading->info.name);
    return status;
}

/* Without a body: zeros, as many as the query says in either way. */
static enum roped_status read_size(struct reading *reading)
{
    struct region_info *info = &reading->info;
    struct roped_error *err = reading->transfer->error;
    bool has_type = info->tensor.dtype != ROPED_NO_DTYPE;
    int64_t n_elements, n_bytes;
    if (reading->has_bytes && !has_type && !reading->has_shape)
        return ROPED_OK;
    if (reading->has_bytes || !has_type || !reading->has_shape)
        return roped_fail(err, ROPED_INVALID,
                          "region '%s': no body, expected parameter 'bytes', "
                          "or 'dtype' and 'shape'",
                          info->name);
    memcpy(info->tensor_name, info->name, sizeof info->name);
    enum roped_status status = roped_tensor_size(&info->tensor, info->name,
                                                 &n_elements, &n_bytes, err);
    info->bytes = status ? 0 : (uint64_t)n_bytes;
    return status;
}

enum roped_status transfer_decode(struct transfer *transfer)
{
    struct reading reading = {.transfer = transfer,
                              .info.tenant = transfer->tenant,
                              .info.device = REGION_ANY_DEVICE};
    if (!v1_is_name(transfer->name))
        return roped_fail(transfer->error, ROPED_INVALID,
                          "region names are letters, digits, '.', '_' and '-', "
                          "and not '.' or '..'");
    memcpy(reading.info.name, transfer->name, sizeof reading.info.name);
    enum roped_status status = read_query(&reading);
    if (!status)
        status = transfer->body->length > 0 ? read_body(&reading)
                                            : read_size(&reading);
    struct buffer head;
    if (!status)
        status = write_head(transfer, &reading.info, &head);
    if (!status)
        status = regions_create(exec_regions(transfer->exec), &reading.info,
                                &transfer->region, transfer->error);
    if (!status)
        region_set_head(transfer->region, head.text, head.bytes);
    return status;
}

/* ------------------------------------------------------------- put: the job */

static struct reply answer_put(void *context)
{
    const struct transfer *transfer = context;
    struct buffer buffer;
    struct roped_error err = transfer->job->error;
    bool replaced = false;
    enum roped_status status = transfer->job->status;
    if (!status)
        status = regions_publish(exec_regions(transfer->exec), transfer->region,
                                 &replaced, &err);
    if (status)
        return reply_status(transfer->answer, &err);
    reply_begin_text(transfer->answer, &buffer);
    transfer_write_info(&buffer, transfer->tenant,
                        region_info(transfer->region));
    return reply_text(replaced ? 200 : 201, "application/json", &buffer);
}

struct reply transfer_put(struct transfer *transfer)
{
    const struct body *body = transfer->body;
    struct exec_job *job = transfer->job;
    bool is_empty = body->length == 0;
    if (!body->is_decoded && !is_empty)
        (void)body_is_short(body, transfer->error);
    if (!body->is_decoded && (!is_empty || transfer_decode(transfer)))
        return reply_status(transfer->answer, transfer->error);
    job->work = is_empty ? EXEC_CLEAR : EXEC_STORE;
    job->transfer.region = transfer->region;
    job->transfer.bytes = region_info(transfer->region)->bytes;
    if (!is_empty)
        job->transfer.host = body_bytes(body, body->header_bytes);
    return reply_after(job, answer_put, transfer);
}

/* -------------------------------------------------------------------- get */

static struct reply reply_region(const struct region *region, const void *bytes,
                                 size_t n)
{
    bool is_tensor = roped_tensor_given(&region_info(region)->tensor);
    return reply_bytes(200,
                       is_tensor ? "application/x-safetensors"
                                 : "application/octet-stream",
                       bytes, n);
}

static struct reply answer_get(void *context)
{
    const struct transfer *transfer = context;
    if (transfer->job->status)
        return reply_status(transfer->answer, &transfer->job->error);
    return reply_region(transfer->region, transfer->out.start,
                        transfer->out_bytes);
}

static enum roped_status take_region(struct transfer *transfer)
{
    enum roped_status status =
        regions_take(exec_regions(transfer->exec), transfer->tenant,
                     transfer->name, &transfer->region, transfer->error);
    if (status || region_info(transfer->region)->kind == REGION_RESIDENT)
        return status;
    return roped_fail(transfer->error, ROPED_INVALID,
                      "region '%s' is memory of a client, expected a region "
                      "made by PUT",
                      transfer->name);
}

/* What has to be copied first, and where to. */
static enum roped_status prepare_load(struct transfer *transfer)
{
    struct buffer head;
    const struct region_info *info = region_info(transfer->region);
    enum roped_status status = write_head(transfer, info, &head);
    transfer->out_bytes = head.bytes + (size_t)info->bytes;
    if (!status)
        status = memory_take(exec_memory(transfer->exec), transfer->out_bytes,
                             &transfer->out, transfer->error);
    if (status)
        return status;
    memcpy(transfer->out.start, head.text, head.bytes);
    transfer->job->work = EXEC_LOAD;
    transfer->job->transfer = (struct exec_transfer){
        transfer->region, transfer->out.start + head.bytes, info->bytes};
    return ROPED_OK;
}

struct reply transfer_get(struct transfer *transfer)
{
    size_t bytes;
    if (take_region(transfer))
        return reply_status(transfer->answer, transfer->error);
    const void *whole = region_whole(transfer->region, &bytes);
    if (whole && !reply_may_pack(transfer->answer))
        return reply_region(transfer->region, whole, bytes);
    if (prepare_load(transfer))
        return reply_status(transfer->answer, transfer->error);
    return reply_after(transfer->job, answer_get, transfer);
}
