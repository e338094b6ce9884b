/*
 * handle_meta.c - documents about the server and its operators.
 */
#include "http/daemon_internal.h"
#include "http/handlers.h"
#include "http/reply.h"
#include "wire/kserve_settings.h"
#include "wire/openapi.h"

#include <string.h>

/* The model that the path names, with its version; false: there is none. */
static bool model_of_path(const struct request *request, struct model *out)
{
    const char *version = request->match.second;
    return (version[0] == '\0' || strcmp(version, "1") == 0) &&
           models_find(request->daemon->models, request->match.capture, out);
}

bool find_model(struct request *request, struct model *out)
{
    struct roped_error err;
    const char *version = request->match.second;
    if (model_of_path(request, out))
        return true;
    roped_fail(&err, ROPED_NOT_FOUND,
               "Request for unknown model: '%s'%s%s is not found",
               request->match.capture, version[0] ? " version " : "", version);
    reply_status(request, &err);
    return false;
}

static const char *backend_name(const struct request *request)
{
    return exec_backend(request->daemon->exec)->name;
}

void handle_openapi(struct request *request)
{
    struct buffer buffer;
    buffer_init(&buffer);
    openapi_write(&buffer, request->daemon->version);
    reply_json(request, &buffer);
}

void handle_describe_all(struct request *request)
{
    struct buffer buffer;
    buffer_init(&buffer);
    describe_write_ops(&buffer);
    reply_json(request, &buffer);
}

void handle_describe(struct request *request)
{
    struct buffer buffer;
    const struct roped_op *op = roped_op_find(request->match.capture);
    if (!op) {
        struct roped_error err;
        roped_fail(&err, ROPED_NOT_FOUND,
                   "no operator '%s'; GET /v1 lists them",
                   request->match.capture);
        reply_status(request, &err);
        return;
    }
    buffer_init(&buffer);
    describe_write_op(&buffer, op);
    reply_json(request, &buffer);
}

void handle_server(struct request *request)
{
    struct buffer buffer;
    buffer_init(&buffer);
    kserve_write_server(&buffer, request->daemon->config->server_name,
                        request->daemon->version,
                        request->daemon->config->allow_client_shm);
    reply_json(request, &buffer);
}

void handle_model(struct request *request)
{
    struct buffer buffer;
    struct model model;
    if (!find_model(request, &model))
        return;
    buffer_init(&buffer);
    kserve_write_model(&buffer, &model, backend_name(request));
    reply_json(request, &buffer);
}

void handle_model_ready(struct request *request)
{
    struct buffer buffer;
    struct model model;
    if (!find_model(request, &model))
        return;
    buffer_init(&buffer);
    buffer_printf(&buffer, "{\"name\":\"%s\",\"ready\":true}", model.name);
    reply_json(request, &buffer);
}

void handle_config(struct request *request)
{
    struct buffer buffer;
    struct model model;
    if (!find_model(request, &model))
        return;
    buffer_init(&buffer);
    kserve_write_config(&buffer, &model, backend_name(request));
    reply_json(request, &buffer);
}

void handle_stats(struct request *request)
{
    struct roped_error err;
    struct buffer buffer;
    struct model model;
    struct kserve_statistics statistics;
    const struct daemon *daemon = request->daemon;
    const char *name = model.name;
    if (!model_of_path(request, &model)) {
        roped_fail(&err, ROPED_NOT_FOUND,
                   "requested model '%s' is not available",
                   request->match.capture);
        reply_status(request, &err);
        return;
    }
    metrics_statistics(daemon->metrics, models_index(daemon->models, model.op),
                       &statistics);
    buffer_init(&buffer);
    kserve_write_statistics(&buffer, &name, &statistics, 1);
    reply_json(request, &buffer);
}

void handle_stats_all(struct request *request)
{
    struct buffer buffer;
    struct kserve_statistics statistics[MODELS_MAX];
    const char *names[MODELS_MAX];
    const struct models *models = request->daemon->models;
    for (int i = 0; i < models->n; i++) {
        names[i] = models->op[i]->name;
        metrics_statistics(request->daemon->metrics, i, &statistics[i]);
    }
    buffer_init(&buffer);
    kserve_write_statistics(&buffer, names, statistics, models->n);
    reply_json(request, &buffer);
}

void handle_index(struct request *request)
{
    struct roped_error err;
    struct buffer buffer;
    if (kserve_check_index((const char *)request->body.start,
                           (size_t)request->received, &err)) {
        reply_status(request, &err);
        return;
    }
    buffer_init(&buffer);
    kserve_write_index(&buffer, request->daemon->models);
    reply_json(request, &buffer);
}
