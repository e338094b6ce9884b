/*
 * handle_meta.c - documents about the server and its operators.
 */
#include "http/call.h"
#include "http/handlers.h"
#include "http/request.h"
#include "wire/kserve_settings.h"
#include "wire/openapi.h"

#include <string.h>

/* The model that the path names, with its version; false: there is none. */
static bool model_of_path(const struct models *models,
                          const struct route_match *match, struct model *out)
{
    const char *version = match->second;
    return (version[0] == '\0' || strcmp(version, "1") == 0) &&
           models_find(models, match->capture, out);
}

enum roped_status find_model(struct request *request, struct model *out)
{
    const char *version = request->match.second;
    if (model_of_path(request->service->models, &request->match, out))
        return ROPED_OK;
    return roped_fail(&request->answer.error, ROPED_NO_OPERATOR,
                      "Request for unknown model: '%s'%s%s is not found",
                      request->match.capture, version[0] ? " version " : "",
                      version);
}

static const char *backend_name(const struct service *service)
{
    return exec_backend(service->exec)->name;
}

struct reply handle_openapi(struct request *request)
{
    struct buffer buffer;
    reply_begin_text(&request->answer, &buffer);
    openapi_write(&buffer, request->service->version,
                  gate_is_guarded(&request->service->gate));
    return reply_json(&buffer);
}

struct reply handle_describe_all(struct request *request)
{
    struct buffer buffer;
    reply_begin_text(&request->answer, &buffer);
    describe_write_ops(&buffer);
    return reply_json(&buffer);
}

struct reply handle_describe(struct request *request)
{
    struct buffer buffer;
    const struct roped_op *op = roped_op_find(request->match.capture);
    if (!op) {
        struct roped_error err;
        (void)call_no_operator(request->match.capture, &err);
        return reply_status(&request->answer, &err);
    }
    reply_begin_text(&request->answer, &buffer);
    describe_write_op(&buffer, op);
    return reply_json(&buffer);
}

struct reply handle_server(struct request *request)
{
    struct buffer buffer;
    reply_begin_text(&request->answer, &buffer);
    kserve_write_server(&buffer, request->service->config->server_name,
                        request->service->version,
                        request->service->config->allow_client_shm);
    return reply_json(&buffer);
}

struct reply handle_model(struct request *request)
{
    struct buffer buffer;
    struct model model;
    if (find_model(request, &model))
        return reply_status(&request->answer, &request->answer.error);
    reply_begin_text(&request->answer, &buffer);
    kserve_write_model(&buffer, &model, backend_name(request->service));
    return reply_json(&buffer);
}

struct reply handle_model_ready(struct request *request)
{
    struct buffer buffer;
    struct model model;
    if (find_model(request, &model))
        return reply_status(&request->answer, &request->answer.error);
    reply_begin_text(&request->answer, &buffer);
    buffer_printf(&buffer, "{\"name\":\"%s\",\"ready\":true}", model.name);
    return reply_json(&buffer);
}

struct reply handle_config(struct request *request)
{
    struct buffer buffer;
    struct model model;
    if (find_model(request, &model))
        return reply_status(&request->answer, &request->answer.error);
    reply_begin_text(&request->answer, &buffer);
    kserve_write_config(&buffer, &model, backend_name(request->service));
    return reply_json(&buffer);
}

struct reply handle_stats(struct request *request)
{
    struct roped_error err;
    struct buffer buffer;
    struct model model;
    struct kserve_statistics statistics;
    const struct service *service = request->service;
    const char *name = model.name;
    if (!model_of_path(service->models, &request->match, &model)) {
        roped_fail(&err, ROPED_NO_OPERATOR,
                   "requested model '%s' is not available",
                   request->match.capture);
        return reply_status(&request->answer, &err);
    }
    metrics_statistics(service->metrics,
                       models_index(service->models, model.op), &statistics);
    reply_begin_text(&request->answer, &buffer);
    kserve_write_statistics(&buffer, &name, &statistics, 1);
    return reply_json(&buffer);
}

struct reply handle_stats_all(struct request *request)
{
    struct buffer buffer;
    struct kserve_statistics statistics[MODELS_MAX];
    const char *names[MODELS_MAX];
    const struct models *models = request->service->models;
    for (int i = 0; i < models->n; i++) {
        names[i] = models->op[i]->name;
        metrics_statistics(request->service->metrics, i, &statistics[i]);
    }
    reply_begin_text(&request->answer, &buffer);
    kserve_write_statistics(&buffer, names, statistics, models->n);
    return reply_json(&buffer);
}

struct reply handle_index(struct request *request)
{
    struct roped_error err;
    struct buffer buffer;
    if (kserve_check_index(body_text(&request->body),
                           (size_t)request->body.received, &err))
        return reply_status(&request->answer, &err);
    reply_begin_text(&request->answer, &buffer);
    kserve_write_index(&buffer, request->service->models);
    return reply_json(&buffer);
}
