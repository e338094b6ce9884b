/*
 * handle_meta.c - documents about the server and its operators.
 */
#include "http/daemon_internal.h"
#include "http/handlers.h"
#include "http/reply.h"
#include "wire/openapi.h"

#include <string.h>

/* The model of the path; NULL with the 404 that v2 clients match on queued. */
static const struct roped_op *find_model(struct request *request)
{
    struct roped_error err;
    const struct roped_op *op = roped_op_find(request->match.capture);
    const char *version = request->match.second;
    if (op && (version[0] == '\0' || strcmp(version, "1") == 0))
        return op;
    if (op)
        roped_fail(&err, ROPED_NOT_FOUND,
                   "Request for unknown model: '%s' version %s is not found",
                   op->name, version);
    else
        roped_fail(&err, ROPED_NOT_FOUND,
                   "Request for unknown model: '%s' is not found",
                   request->match.capture);
    reply_status(request, &err);
    return NULL;
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
    const struct roped_op *op = find_model(request);
    if (!op)
        return;
    buffer_init(&buffer);
    kserve_write_model(&buffer, op, backend_name(request));
    reply_json(request, &buffer);
}

void handle_model_ready(struct request *request)
{
    struct buffer buffer;
    const struct roped_op *op = find_model(request);
    if (!op)
        return;
    buffer_init(&buffer);
    buffer_printf(&buffer, "{\"name\":\"%s\",\"ready\":true}", op->name);
    reply_json(request, &buffer);
}

void handle_config(struct request *request)
{
    struct buffer buffer;
    const struct roped_op *op = find_model(request);
    if (!op)
        return;
    buffer_init(&buffer);
    kserve_write_config(&buffer, op, backend_name(request));
    reply_json(request, &buffer);
}

static void reply_statistics(struct request *request,
                             const struct roped_op *const *ops, int n_ops)
{
    struct buffer buffer;
    struct kserve_statistics statistics[ROPED_OP_COUNT];
    for (int i = 0; i < n_ops; i++)
        metrics_statistics(request->daemon->metrics, roped_op_index(ops[i]),
                           &statistics[i]);
    buffer_init(&buffer);
    kserve_write_statistics(&buffer, ops, statistics, n_ops);
    reply_json(request, &buffer);
}

void handle_stats(struct request *request)
{
    const struct roped_op *op = find_model(request);
    if (op)
        reply_statistics(request, &op, 1);
}

void handle_stats_all(struct request *request)
{
    const struct roped_op *ops[ROPED_OP_COUNT];
    for (int i = 0; i < ROPED_OP_COUNT; i++)
        ops[i] = roped_op_at(i);
    reply_statistics(request, ops, ROPED_OP_COUNT);
}

void handle_index(struct request *request)
{
    struct buffer buffer;
    buffer_init(&buffer);
    kserve_write_index(&buffer);
    reply_json(request, &buffer);
}
