/*
 * handle_health.c - is it alive, does it take calls, what does it count.
 */
#include "http/daemon_internal.h"
#include "http/handlers.h"
#include "http/reply.h"

void handle_root(struct request *request)
{
    struct buffer buffer;
    buffer_init(&buffer);
    buffer_printf(&buffer,
                  "roped %s: POST /v1/{operator}; GET /v1, /openapi.json, "
                  "/metrics, /v2\n",
                  request->daemon->version);
    reply_buffer(request, MHD_HTTP_OK, "text/plain; charset=utf-8", &buffer);
}

void handle_live(struct request *request)
{
    struct buffer buffer;
    bool is_live = exec_is_healthy(request->daemon->exec);
    buffer_init(&buffer);
    buffer_printf(&buffer, "{\"live\":%s}", is_live ? "true" : "false");
    reply_buffer(request, is_live ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE,
                 "application/json", &buffer);
}

void handle_ready(struct request *request)
{
    struct buffer buffer;
    bool is_ready = exec_is_healthy(request->daemon->exec) &&
                    !atomic_load(&request->daemon->is_draining);
    buffer_init(&buffer);
    buffer_printf(&buffer, "{\"ready\":%s}", is_ready ? "true" : "false");
    reply_buffer(request, is_ready ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE,
                 "application/json", &buffer);
}

void handle_metrics(struct request *request)
{
    struct buffer buffer;
    struct daemon *daemon = request->daemon;
    struct metrics_gauges gauges = {.exec = daemon->exec,
                                    .version = daemon->version,
                                    .start_time_seconds =
                                        daemon->start_time_seconds};
    pthread_mutex_lock(&daemon->peers_lock);
    gauges.n_connections = daemon->n_peers;
    pthread_mutex_unlock(&daemon->peers_lock);
    buffer_init(&buffer);
    metrics_write(daemon->metrics, &gauges, &buffer);
    reply_buffer(request, MHD_HTTP_OK,
                 "text/plain; version=0.0.4; charset=utf-8", &buffer);
}
