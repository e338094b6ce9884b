/*
 * handle_devices.c - the devices that calls run on.
 */
#include "http/handlers.h"
#include "http/request.h"

static void write_device(struct buffer *buffer, struct executor *exec,
                         int number)
{
    struct roped_device_info info;
    struct exec_device_usage usage;
    exec_device_info(exec, number, &info);
    exec_device_usage(exec, number, &usage);
    buffer_printf(buffer,
                  "%s{\"device\":%d,\"index\":%d,\"name\":", number ? "," : "",
                  number, usage.index);
    buffer_json_string(buffer, info.name);
    buffer_text(buffer, ",\"detail\":");
    buffer_json_string(buffer, info.detail);
    buffer_text(buffer, ",\"uuid\":");
    buffer_json_string(buffer, info.uuid);
    buffer_printf(buffer,
                  ",\"healthy\":%s,\"memory_bytes\":%llu,\"lanes\":%d,"
                  "\"lanes_busy\":%d,\"arena_bytes\":%llu,"
                  "\"device_bytes\":%llu,\"region_bytes\":%llu,"
                  "\"region_memory\":%llu,\"jobs\":%llu,\"errors\":%llu,"
                  "\"busy_seconds\":",
                  usage.is_healthy ? "true" : "false",
                  (unsigned long long)info.memory_bytes, usage.n_lanes,
                  usage.n_busy_lanes, (unsigned long long)usage.arena_bytes,
                  (unsigned long long)usage.arena_limit_bytes,
                  (unsigned long long)usage.region_bytes,
                  (unsigned long long)usage.region_limit_bytes,
                  (unsigned long long)usage.jobs,
                  (unsigned long long)usage.errors);
    buffer_double(buffer, usage.busy_seconds);
    buffer_text(buffer, "}");
}

struct reply handle_devices(struct request *request)
{
    struct executor *exec = request->service->exec;
    struct buffer buffer;
    reply_begin_text(&request->answer, &buffer);
    buffer_text(&buffer, "{\"backend\":");
    buffer_json_string(&buffer, exec_backend(exec)->name);
    buffer_text(&buffer, ",\"devices\":[");
    for (int i = 0; i < exec_n_devices(exec); i++)
        write_device(&buffer, exec, i);
    buffer_text(&buffer, "]}");
    return reply_json(&buffer);
}
