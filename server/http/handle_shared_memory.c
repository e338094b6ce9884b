/*
 * handle_shared_memory.c - v2's registration of clients' own memory. Phrases
 * and codes are Triton's, which clients and their tests match on: among them
 * that unregistering what is not there is no error.
 */
#include "http/daemon_internal.h"
#include "http/handlers.h"
#include "http/job.h"
#include "http/reply.h"
#include "wire/kserve_region.h"

#include <string.h>

/* The one region that a path names; the others have only a kind. */
static const char *name_of(const struct request *request)
{
    return request->match.capture[0] ? request->match.capture : NULL;
}

static struct regions *regions_of(const struct request *request)
{
    return exec_regions(request->daemon->exec);
}

/* False, with the refusal queued, where clients may not register memory. */
static bool is_allowed(struct request *request)
{
    if (request->daemon->config->allow_client_shm)
        return true;
    reply_error(request, MHD_HTTP_NOT_IMPLEMENTED,
                "Client shared memory is disabled: start the server with "
                "--allow-client-shm");
    return false;
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
        buffer_printf(buffer, ",\"device_id\":%d", info->device);
    }
    buffer_printf(buffer, ",\"byte_size\":%llu}",
                  (unsigned long long)info->bytes);
}

static void reply_list(struct request *request, enum region_kind kind)
{
    struct buffer buffer;
    struct listing listing = {&buffer, kind, name_of(request), 0};
    buffer_init(&buffer);
    buffer_text(&buffer, "[");
    regions_each(regions_of(request), list_region, &listing);
    buffer_text(&buffer, "]");
    if (!listing.name || listing.n > 0 ||
        !request->daemon->config->allow_client_shm) {
        reply_json(request, &buffer);
        return;
    }
    struct roped_error err;
    buffer_fini(&buffer);
    roped_fail(&err, ROPED_NOT_FOUND,
               "Unable to find %s shared memory region: '%s'",
               region_kind_name(kind), listing.name);
    reply_status(request, &err);
}

void handle_system_status(struct request *request)
{
    reply_list(request, REGION_SYSTEM);
}

void handle_cuda_status(struct request *request)
{
    reply_list(request, REGION_CUDA);
}

/* --------------------------------------------------------------- register */

static enum roped_status check_key(const struct request *request,
                                   const char *sent, struct region_info *info,
                                   struct roped_error *err)
{
    /* Triton's own; clients' tests expect that nobody may have it */
    static const char reserved[] = "triton_python_backend_shm_region_";
    const char *prefix = request->daemon->config->shm_key_prefix;
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

static enum roped_status read_system(struct request *request,
                                     struct region_info *info,
                                     struct roped_error *err)
{
    struct kserve_system_memory sent;
    memcpy(info->name, request->match.capture, sizeof info->name);
    enum roped_status status =
        kserve_read_system_memory((const char *)request->body.start,
                                  (size_t)request->received, &sent, err);
    if (status)
        return status;
    info->offset = sent.offset;
    info->bytes = sent.bytes;
    return check_key(request, sent.key, info, err);
}

/* On a lane's thread: page-locking much memory takes its time. */
static enum roped_status register_system(struct exec_job *job)
{
    struct request *request = job->owner;
    struct region_info info = {.bytes = 0};
    enum roped_status status = read_system(request, &info, &job->error);
    if (!status)
        status = regions_map(regions_of(request), &info, &request->region,
                             &job->error);
    if (!status)
        status = regions_publish(regions_of(request), request->region, NULL,
                                 &job->error);
    return status;
}

static enum roped_status read_cuda(struct request *request,
                                   struct region_info *info,
                                   struct roped_error *err)
{
    struct kserve_cuda_memory sent;
    int64_t device = request->daemon->config->device;
    memcpy(info->name, request->match.capture, sizeof info->name);
    enum roped_status status =
        kserve_read_cuda_memory((const char *)request->body.start,
                                (size_t)request->received, &sent, err);
    if (status)
        return status;
    if (sent.device != (uint64_t)device)
        return roped_fail(err, ROPED_INVALID,
                          "failed to register shared memory region '%s': "
                          "invalid args: device_id is %llu, expected %lld",
                          info->name, (unsigned long long)sent.device,
                          (long long)device);
    memcpy(info->handle, sent.handle, sizeof info->handle);
    info->device = (int)device;
    info->bytes = sent.bytes;
    return ROPED_OK;
}

static enum roped_status register_cuda(struct exec_job *job)
{
    struct request *request = job->owner;
    struct region_info info = {.bytes = 0};
    enum roped_status status = read_cuda(request, &info, &job->error);
    if (!status)
        status = regions_import(regions_of(request), &info, &request->region,
                                &job->error);
    if (!status)
        status = regions_publish(regions_of(request), request->region, NULL,
                                 &job->error);
    return status;
}

static void answer_register(struct request *request)
{
    if (request->job.status)
        reply_status(request, &request->job.error);
    else
        reply_empty(request);
}

static void run_register(struct request *request,
                         enum roped_status (*task)(struct exec_job *job))
{
    if (!is_allowed(request))
        return;
    request->job.work = EXEC_TASK;
    request->job.task = task;
    job_run(request, answer_register);
}

void handle_system_register(struct request *request)
{
    run_register(request, register_system);
}

void handle_cuda_register(struct request *request)
{
    run_register(request, register_cuda);
}

/* ------------------------------------------------------------- unregister */

static void unregister(struct request *request, enum region_kind kind)
{
    if (!is_allowed(request))
        return;
    regions_unregister(regions_of(request), kind, name_of(request));
    reply_empty(request);
}

void handle_system_unregister(struct request *request)
{
    unregister(request, REGION_SYSTEM);
}

/* Clients ask for it also where no GPU is. */
void handle_cuda_unregister(struct request *request)
{
    unregister(request, REGION_CUDA);
}
