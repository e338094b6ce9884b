/*
 * handle_settings.c - what v2 clients may ask to change: log level, traces,
 * which models are loaded.
 */
#include "http/handlers.h"
#include "http/request.h"
#include "log.h"
#include "wire/kserve_settings.h"

_Static_assert((int)KSERVE_LOG_ERROR == (int)LOG_ERROR &&
                   (int)KSERVE_LOG_WARNING == (int)LOG_WARN &&
                   (int)KSERVE_LOG_INFO == (int)LOG_INFO &&
                   (int)KSERVE_LOG_VERBOSE == (int)LOG_DEBUG,
               "the levels of v2 are those of the log");

static struct reply reply_log_settings(struct answer *answer)
{
    struct buffer buffer;
    reply_begin_text(answer, &buffer);
    kserve_write_log_settings(&buffer, (enum kserve_log_level)log_level());
    return reply_json(&buffer);
}

struct reply handle_log_get(struct request *request)
{
    return reply_log_settings(&request->answer);
}

struct reply handle_log_post(struct request *request)
{
    struct roped_error err;
    enum kserve_log_level level = (enum kserve_log_level)log_level();
    if (kserve_read_log_settings(body_text(&request->body),
                                 (size_t)request->body.received, &level, &err))
        return reply_status(&request->answer, &err);
    log_set_level((enum log_level)level);
    log_line(LOG_INFO, "log_level", "level=%s",
             log_level_text((enum log_level)level));
    return reply_log_settings(&request->answer);
}

/* The path names a model or none at all. */
static enum roped_status check_model(struct request *request)
{
    struct model model;
    return request->match.capture[0] ? find_model(request, &model) : ROPED_OK;
}

static struct reply reply_trace_settings(struct answer *answer)
{
    struct buffer buffer;
    reply_begin_text(answer, &buffer);
    kserve_write_trace_settings(&buffer);
    return reply_json(&buffer);
}

struct reply handle_trace_get(struct request *request)
{
    return check_model(request)
               ? reply_status(&request->answer, &request->answer.error)
               : reply_trace_settings(&request->answer);
}

struct reply handle_trace_post(struct request *request)
{
    struct roped_error err;
    if (check_model(request))
        return reply_status(&request->answer, &request->answer.error);
    if (kserve_check_trace_settings(body_text(&request->body),
                                    (size_t)request->body.received, &err))
        return reply_status(&request->answer, &err);
    return reply_trace_settings(&request->answer);
}

/* Models are built in: loading one finds it there, nothing unloads it. */
struct reply handle_load(struct request *request)
{
    struct roped_error err;
    struct model model;
    const char *name = request->match.capture;
    if (find_model(request, &model)) {
        roped_fail(&err, ROPED_INVALID,
                   "failed to load '%s', no such model is built in, and no "
                   "program has this name",
                   name);
        return reply_status(&request->answer, &err);
    }
    if (kserve_check_load(name, body_text(&request->body),
                          (size_t)request->body.received, &err))
        return reply_status(&request->answer, &err);
    return reply_empty();
}

struct reply handle_unload(struct request *request)
{
    struct roped_error err;
    roped_fail(&err, ROPED_INVALID,
               "explicit model load / unload is not allowed: models are built "
               "in, and DELETE /v1/programs/{name} forgets a program");
    return reply_status(&request->answer, &err);
}
