/*
 * handle_shared_memory.c - v2's registration of clients' own memory. Phrases
 * and codes are Triton's, which clients and their tests match on: among them
 * that unregistering what is not there is no error.
 */
#include "http/handlers.h"
#include "http/request.h"
#include "wire/kserve_region.h"

#include <stdio.h>
#include <string.h>

/* The one region that a path names; the others have only a kind. */
static const char *name_of(const struct request *request)
{
    return request->match.capture[0] ? request->match.capture : NULL;
}

static struct regions *regions_of(const struct request *request)
{
    return exec_regions(request->service->exec);
}

/* Which memory a path is about. */
static enum region_kind kind_of(const struct route *route)
{
    return strncmp(route->path, "/v2/cuda", 8) == 0 ? REGION_CUDA
                                                    : REGION_SYSTEM;
}

static bool is_allowed(const struct service *service)
{
    return service->config->allow_client_shm;
}

static struct reply reply_disabled(struct answer *answer)
{
    roped_fail(&answer->error, ROPED_UNSUPPORTED,
               "Client shared memory is disabled: start the server with "
               "--allow-client-shm");
    return reply_status(answer, &answer->error);
}

/* ----------------------------------------------------------------- status */

struct listing {
    struct buffer *buffer;
    enum region_kind kind;
    const char *name; /* only this one, or NULL: all */
    int n;
};

static void list_region(void *context, const struct region_info *info)
{
    struct listing *listing = context;
    struct buffer *buffer = listing->buffer;
    if (info->kind != listing->kind ||
        (listing->name && strcmp(listing->name, info->name) != 0))
        return;
    buffer_text(buffer, listing->n++ ? ",{\"name\":" : "{\"name\":");
    buffer_json_string(buffer, info->name);
    if (info->kind == REGION_SYSTEM) {
        buffer_text(buffer, ",\"key\":");
        buffer_json_string(buffer, info->key);
        buffer_printf(buffer, ",\"offset\":%llu",
                      (unsigned long long)info->offset);
    } else {
        buffer_printf(buffer, ",\"device_id\":%d", info->device_id);
    }
    buffer_printf(buffer, ",\"byte_size\":%llu}",
                  (unsigned long long)info->bytes);
}

struct reply handle_memory_status(struct request *request)
{
    struct buffer buffer;
    enum region_kind kind = kind_of(request->match.route);
    struct listing listing = {&buffer, kind, name_of(request), 0};
    reply_begin_text(&request->answer, &buffer);
    buffer_text(&buffer, "[");
    regions_each(regions_of(request), request->caller.tenant, list_region,
                 &listing);
    buffer_text(&buffer, "]");
    if (!listing.name || listing.n > 0 || !is_allowed(request->service))
        return reply_json(&buffer);
    struct roped_error err;
    if (!lost_check(regions_lost(regions_of(request)), request->caller.tenant,
                    listing.name, &err))
        roped_fail(&err, ROPED_NO_REGION,
                   "Unable to find %s shared memory region: '%s'",
                   region_kind_name(kind), listing.name);
    return reply_status(&request->answer, &err);
}

/* --------------------------------------------------------------- register */

static enum roped_status check_key(const char *prefix, const char *sent,
                                   struct region_info *info,
                                   struct roped_error *err)
{
    /* Triton's own; clients' tests expect that nobody may have it */
    static const char reserved[] = "triton_python_backend_shm_region_";
    if (client_memory_key(sent, info->key) &&
        strncmp(info->key + 1, reserved, sizeof reserved - 1) != 0 &&
        strncmp(info->key + 1, prefix, strlen(prefix)) == 0)
        return ROPED_OK;
    return roped_fail(err, ROPED_INVALID,
                      "cannot register shared memory region '%s' - invalid shm "
                      "key '%.64s'%s%s%s",
                      info->name, sent, prefix[0] ? ", expected '" : "", prefix,
                      prefix[0] ? "' at its start (shm_key_prefix)" : "");
}

static enum roped_status read_system(const struct service *service,
                                     const struct body *body,
                                     struct region_info *info,
                                     struct roped_error *err)
{
    struct kserve_system_memory sent;
    enum roped_status status = kserve_read_system_memory(
        body_text(body), (size_t)body->received, &sent, err);
    if (status)
        return status;
    info->offset = sent.offset;
    info->bytes = sent.bytes;
    return check_key(service->config->shm_key_prefix, sent.key, info, err);
}

/* "0, 1": the device_ids that clients may send. */
static void list_devices(struct executor *exec, char *out, size_t bytes)
{
    size_t at = 0;
    struct exec_device_usage usage;
    out[0] = '\0';
    for (int i = 0; i < exec_n_devices(exec) && at < bytes; i++) {
        exec_device_usage(exec, i, &usage);
        if (exec_find_device(exec, (uint64_t)usage.index) == i)
            at += (size_t)snprintf(out + at, bytes - at, "%s%d", i ? ", " : "",
                                   usage.index);
    }
}

static enum roped_status find_device(struct executor *exec, uint64_t id,
                                     struct region_info *info,
                                     struct roped_error *err)
{
    char known[128];
    info->device = exec_find_device(exec, id);
    if (info->device >= 0) {
        info->device_id = (int)id;
        return ROPED_OK;
    }
    list_devices(exec, known, sizeof known);
    return roped_fail(err, ROPED_INVALID,
                      "failed to register shared memory region '%s': invalid "
                      "args: device_id is %llu, expected %s",
                      info->name, (unsigned long long)id, known);
}

static enum roped_status read_cuda(const struct service *service,
                                   const struct body *body,
                                   struct region_info *info,
                                   struct roped_error *err)
{
    struct kserve_cuda_memory sent;
    enum roped_status status = kserve_read_cuda_memory(
        body_text(body), (size_t)body->received, &sent, err);
    if (status)
        return status;
    memcpy(info->handle, sent.handle, sizeof info->handle);
    info->bytes = sent.bytes;
    return find_device(service->exec, sent.device, info, err);
}

struct reply handle_memory_register(struct request *request)
{
    const struct service *service = request->service;
    struct region_info info = {.tenant = request->caller.tenant};
    struct roped_error *err = &request->answer.error;
    struct region **region = &request->transfer.region;
    bool is_cuda = kind_of(request->match.route) == REGION_CUDA;
    if (!is_allowed(service))
        return reply_disabled(&request->answer);
    memcpy(info.name, request->match.capture, sizeof info.name);
    enum roped_status status =
        is_cuda ? read_cuda(service, &request->body, &info, err)
                : read_system(service, &request->body, &info, err);
    if (!status)
        status = is_cuda
                     ? regions_import(regions_of(request), &info, region, err)
                     : regions_map(regions_of(request), &info, region, err);
    if (!status)
        status = regions_publish(regions_of(request), *region, NULL, err);
    return status ? reply_status(&request->answer, err) : reply_empty();
}

/* ------------------------------------------------------------- unregister */

/* Clients ask for that of CUDA memory also where no GPU is. */
struct reply handle_memory_unregister(struct request *request)
{
    if (!is_allowed(request->service))
        return reply_disabled(&request->answer);
    regions_unregister(regions_of(request), request->caller.tenant,
                       kind_of(request->match.route), name_of(request));
    return reply_empty();
}
