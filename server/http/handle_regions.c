/*
 * handle_regions.c - /v1/regions: list, make, read back, forget.
 *
 * A PUT takes its memory when its header is there, stores when its body is,
 * and is found under its name only then: whoever uses a region of that name
 * meanwhile has the one before.
 */
#include "http/handlers.h"
#include "http/request.h"
#include "wire/region_refs.h"
#include "wire/safetensors.h"

#include <limits.h>
#include <string.h>

static struct regions *regions_of(const struct request *request)
{
    return exec_regions(request->service->exec);
}

/* ------------------------------------------------------------------- list */

/* sees: for whom; everyone is told whose it is. */
static void write_region(struct buffer *buffer, const struct tenant *sees,
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

struct listing {
    struct buffer *buffer;
    const struct tenant *sees;
    int n;
};

static void list_region(void *context, const struct region_info *info)
{
    struct listing *listing = context;
    buffer_text(listing->buffer, listing->n++ ? "," : "");
    write_region(listing->buffer, listing->sees, info);
}

struct reply handle_regions(struct request *request)
{
    struct buffer buffer;
    const struct tenant *sees = request->caller.sees;
    struct listing listing = {&buffer, sees, 0};
    struct regions_usage usage;
    regions_usage(regions_of(request), &usage);
    uint64_t used = sees == &tenant_everyone ? usage.bytes[REGION_RESIDENT]
                                             : atomic_load(&sees->bytes);
    reply_begin_text(request, &buffer);
    buffer_printf(
        &buffer, "{\"region_memory\":%llu,\"used\":%llu,\"regions\":[",
        (unsigned long long)usage.budget_bytes, (unsigned long long)used);
    regions_each(regions_of(request), sees, list_region, &listing);
    buffer_text(&buffer, "]}");
    return reply_json(request, &buffer);
}

/* What is sent in front of the contents; plain bytes have nothing there. */
static enum roped_status write_head(struct request *request,
                                    const struct region_info *info,
                                    struct buffer *head)
{
    struct safetensors_output output = {info->tensor_name, &info->tensor, 0};
    uint64_t data_bytes;
    buffer_init_fixed(head, request->scratch, sizeof request->scratch);
    if (!roped_tensor_given(&info->tensor))
        return ROPED_OK;
    return safetensors_write_header(head, &output, 1, NULL, 0, false,
                                    &data_bytes, &request->error);
}

/* ---------------------------------------------------------- put: what is it */

/* A region under construction, from the query and from the body. */
struct reading {
    struct request *request;
    struct region_info info;
    bool has_bytes, has_shape, has_device;
    int n_tensors;
};

/* Also no name that is a folder in a path. */
static bool is_region_name(const char *name)
{
    return strcmp(name, ".") != 0 && strcmp(name, "..") != 0 &&
           name[strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                             "abcdefghijklmnopqrstuvwxyz0123456789._-")] ==
               '\0';
}

static enum roped_status read_param(struct reading *reading, const char *name,
                                    const char *value)
{
    struct region_info *info = &reading->info;
    struct roped_error *err = &reading->request->error;
    uint64_t device;
    if (strcmp(name, "tenant") == 0 &&
        gate_is_guarded(&reading->request->service->gate))
        return ROPED_OK; /* the caller's, see gate.h */
    if (strcmp(name, "device") == 0 && !reading->has_device &&
        region_refs_read_size(value, &device)) {
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
        region_refs_read_size(value, &info->bytes)) {
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
    const struct head *head = &reading->request->head;
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < head->n_parameters && !status; i++) {
        const struct head_parameter *parameter = &head->parameter[i];
        status = parameter->has_nul
                     ? roped_fail(&reading->request->error, ROPED_BAD_PARAMETER,
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
    const struct body *body = &reading->request->body;
    struct roped_error *err = &reading->request->error;
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
    struct roped_error *err = &reading->request->error;
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

enum roped_status region_decode(struct request *request)
{
    struct reading reading = {.request = request,
                              .info.tenant = request->caller.tenant,
                              .info.device = REGION_ANY_DEVICE};
    if (!is_region_name(request->match.capture))
        return roped_fail(&request->error, ROPED_INVALID,
                          "region names are letters, digits, '.', '_' and '-', "
                          "and not '.' or '..'");
    memcpy(reading.info.name, request->match.capture, sizeof reading.info.name);
    enum roped_status status = read_query(&reading);
    if (!status)
        status = request->body.length > 0 ? read_body(&reading)
                                          : read_size(&reading);
    struct buffer head;
    if (!status)
        status = write_head(request, &reading.info, &head);
    if (!status)
        status = regions_create(regions_of(request), &reading.info,
                                &request->region, &request->error);
    if (!status)
        region_set_head(request->region, head.text, head.bytes);
    return status;
}

/* ------------------------------------------------------------- put: the job */

static struct reply answer_put(struct request *request)
{
    struct buffer buffer;
    struct roped_error err = request->job.error;
    bool replaced = false;
    enum roped_status status = request->job.status;
    if (!status)
        status = regions_publish(regions_of(request), request->region,
                                 &replaced, &err);
    if (status)
        return reply_status(request, &err);
    reply_begin_text(request, &buffer);
    write_region(&buffer, request->caller.tenant, region_info(request->region));
    return reply_text(request, replaced ? 200 : 201, "application/json",
                      &buffer);
}

struct reply handle_region_put(struct request *request)
{
    const struct body *body = &request->body;
    struct exec_job *job = &request->job;
    bool is_empty = body->length == 0;
    if (!body->is_decoded && !is_empty)
        (void)body_is_short(request);
    if (!body->is_decoded && (!is_empty || region_decode(request)))
        return reply_status(request, &request->error);
    job->work = is_empty ? EXEC_CLEAR : EXEC_STORE;
    job->transfer.region = request->region;
    job->transfer.bytes = region_info(request->region)->bytes;
    if (!is_empty)
        job->transfer.host = body->block.start + body->at + body->header_bytes;
    return reply_after(job, answer_put);
}

/* -------------------------------------------------------------------- get */

static struct reply reply_region(const struct request *request,
                                 const void *bytes, size_t n)
{
    bool is_tensor = roped_tensor_given(&region_info(request->region)->tensor);
    return reply_bytes(200,
                       is_tensor ? "application/x-safetensors"
                                 : "application/octet-stream",
                       bytes, n);
}

static struct reply answer_get(struct request *request)
{
    if (request->job.status)
        return reply_status(request, &request->job.error);
    return reply_region(request, request->out.start,
                        request->call.answer_bytes);
}

static enum roped_status take_region(struct request *request)
{
    enum roped_status status =
        regions_take(regions_of(request), request->caller.tenant,
                     request->match.capture, &request->region, &request->error);
    if (status || region_info(request->region)->kind == REGION_RESIDENT)
        return status;
    return roped_fail(&request->error, ROPED_INVALID,
                      "region '%s' is memory of a client, expected a region "
                      "made by PUT",
                      request->match.capture);
}

/* What has to be copied first, and where to. */
static enum roped_status prepare_load(struct request *request)
{
    struct buffer head;
    const struct region_info *info = region_info(request->region);
    enum roped_status status = write_head(request, info, &head);
    if (!status)
        status = memory_take(exec_memory(request->service->exec),
                             head.bytes + (size_t)info->bytes, &request->out,
                             &request->error);
    if (status)
        return status;
    memcpy(request->out.start, head.text, head.bytes);
    request->call.answer_bytes = head.bytes + (size_t)info->bytes;
    request->job.work = EXEC_LOAD;
    request->job.transfer = (struct exec_transfer){
        request->region, request->out.start + head.bytes, info->bytes};
    return ROPED_OK;
}

struct reply handle_region_get(struct request *request)
{
    size_t bytes;
    if (take_region(request))
        return reply_status(request, &request->error);
    const void *whole = region_whole(request->region, &bytes);
    if (whole && !reply_may_pack(request))
        return reply_region(request, whole, bytes);
    if (prepare_load(request))
        return reply_status(request, &request->error);
    return reply_after(&request->job, answer_get);
}

/* ----------------------------------------------------------------- delete */

struct reply handle_region_delete(struct request *request)
{
    struct buffer buffer;
    struct roped_error err;
    if (regions_remove(regions_of(request), request->caller.tenant,
                       request->match.capture, &err))
        return reply_status(request, &err);
    reply_begin_text(request, &buffer);
    buffer_text(&buffer, "{}");
    return reply_json(request, &buffer);
}
