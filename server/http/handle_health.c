/*
 * handle_health.c - is it alive, does it take calls, what does it count.
 */
#include "http/handlers.h"
#include "http/request.h"

#include <string.h>

struct reply handle_root(struct request *request)
{
    struct buffer buffer;
    reply_begin_text(&request->answer, &buffer);
    buffer_printf(
        &buffer,
        "roped %s: POST /v1/{operator}; GET /v1, /docs, /openapi.json, "
        "/metrics, /v2\n",
        request->service->version);
    return reply_text(200, "text/plain; charset=utf-8", &buffer);
}

struct reply handle_live(struct request *request)
{
    struct buffer buffer;
    bool is_live = exec_is_healthy(request->service->exec);
    reply_begin_text(&request->answer, &buffer);
    buffer_printf(&buffer, "{\"live\":%s}", is_live ? "true" : "false");
    return reply_text(is_live ? 200 : 503, "application/json", &buffer);
}

struct reply handle_ready(struct request *request)
{
    struct buffer buffer;
    bool is_ready = exec_is_healthy(request->service->exec) &&
                    !atomic_load(&request->service->is_draining);
    reply_begin_text(&request->answer, &buffer);
    buffer_printf(&buffer, "{\"ready\":%s}", is_ready ? "true" : "false");
    return reply_text(is_ready ? 200 : 503, "application/json", &buffer);
}

_Static_assert((int)METRICS_NAMES >= (int)HEAD_PARAMETERS,
               "no name of a query is left out");

/* Of the query: name[]=NAME, as other exporters take it. What else is there is
 * a scraper's own. */
static void read_names(const struct head *head, struct metrics_names *names)
{
    names->n = 0;
    for (int i = 0; i < head->n_parameters; i++)
        if (strcmp(head->parameter[i].name, "name[]") == 0)
            names->name[names->n++] = head->parameter[i].value;
}

struct reply handle_metrics(struct request *request)
{
    struct buffer buffer;
    struct metrics_names names;
    struct service *service = request->service;
    int n_connections = peers_count(&service->peers);
    struct metrics_gauges gauges = {
        .exec = service->exec,
        .version = service->version,
        .n_connections = n_connections,
        .connection_bytes =
            (uint64_t)n_connections * service->config->connection_memory_bytes,
        .start_time_seconds = service->start_time_seconds,
        .n_restarts = service->n_restarts};
    memory_usage(exec_memory(service->exec), &gauges.memory);
    read_names(&request->head, &names);
    reply_begin_text(&request->answer, &buffer);
    metrics_write(service->metrics, &gauges, &names, &buffer);
    return reply_text(200, "text/plain; version=0.0.4; charset=utf-8", &buffer);
}
