/*
 * handle_settings.c - what v2 clients may ask to change: log level, traces,
 * which models are loaded.
 */
#include "http/daemon_internal.h"
#include "http/handlers.h"
#include "http/reply.h"
#include "log.h"
#include "wire/kserve_settings.h"

_Static_assert((int)KSERVE_LOG_ERROR == (int)LOG_ERROR &&
                   (int)KSERVE_LOG_WARNING == (int)LOG_WARN &&
                   (int)KSERVE_LOG_INFO == (int)LOG_INFO &&
                   (int)KSERVE_LOG_VERBOSE == (int)LOG_DEBUG,
               "the levels of v2 are those of the log");

static void reply_log_settings(struct request *request)
{
    struct buffer buffer;
    buffer_init(&buffer);
    kserve_write_log_settings(&buffer, (enum kserve_log_level)log_level());
    reply_json(request, &buffer);
}

void handle_log_get(struct request *request)
{
    reply_log_settings(request);
}

void handle_log_post(struct request *request)
{
    struct roped_error err;
    enum kserve_log_level level = (enum kserve_log_level)log_level();
    if (kserve_read_log_settings((const char *)request->body.start,
                                 (size_t)request->received, &level, &err)) {
        reply_status(request, &err);
        return;
    }
    log_set_level((enum log_level)level);
    log_line(LOG_INFO, "log_level", "level=%s",
             log_level_text((enum log_level)level));
    reply_log_settings(request);
}

/* False with the 404 queued: the path names a model, and there is none. */
static bool check_model(struct request *request)
{
    struct model model;
    return request->match.capture[0] == '\0' || find_model(request, &model);
}

void handle_trace_get(struct request *request)
{
    struct buffer buffer;
    if (!check_model(request))
        return;
    buffer_init(&buffer);
    kserve_write_trace_settings(&buffer);
    reply_json(request, &buffer);
}

void handle_trace_post(struct request *request)
{
    struct roped_error err;
    if (!check_model(request))
        return;
    if (kserve_check_trace_settings((const char *)request->body.start,
                                    (size_t)request->received, &err)) {
        reply_status(request, &err);
        return;
    }
    struct buffer buffer;
    buffer_init(&buffer);
    kserve_write_trace_settings(&buffer);
    reply_json(request, &buffer);
}

/* Models are built in: loading one finds it there, nothing unloads it. */
void handle_load(struct request *request)
{
    struct roped_error err;
    struct model model;
    const char *name = request->match.capture;
    if (!models_find(request->daemon->models, name, &model)) {
        roped_fail(&err, ROPED_INVALID,
                   "failed to load '%s', no such model is built in", name);
        reply_status(request, &err);
        return;
    }
    if (kserve_check_load(name, (const char *)request->body.start,
                          (size_t)request->received, &err)) {
        reply_status(request, &err);
        return;
    }
    reply_empty(request);
}

void handle_unload(struct request *request)
{
    struct roped_error err;
    roped_fail(&err, ROPED_INVALID,
               "explicit model load / unload is not allowed: models are built "
               "in");
    reply_status(request, &err);
}
