/*
 * handle_regions.c - /v1/regions: list, make, read back, forget.
 */
#include "http/handlers.h"
#include "http/request.h"

static struct regions *regions_of(const struct request *request)
{
    return exec_regions(request->service->exec);
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
    transfer_write_info(listing->buffer, listing->sees, info);
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
    reply_begin_text(&request->answer, &buffer);
    buffer_printf(
        &buffer, "{\"region_memory\":%llu,\"used\":%llu,\"regions\":[",
        (unsigned long long)usage.budget_bytes, (unsigned long long)used);
    regions_each(regions_of(request), sees, list_region, &listing);
    buffer_text(&buffer, "]}");
    return reply_json(&buffer);
}

struct reply handle_region_put(struct request *request)
{
    return transfer_put(&request->transfer);
}

struct reply handle_region_get(struct request *request)
{
    return transfer_get(&request->transfer);
}

struct reply handle_region_delete(struct request *request)
{
    struct buffer buffer;
    struct roped_error err;
    if (regions_remove(regions_of(request), request->caller.tenant,
                       request->match.capture, &err))
        return reply_status(&request->answer, &err);
    reply_begin_text(&request->answer, &buffer);
    buffer_text(&buffer, "{}");
    return reply_json(&buffer);
}
