/*
 * handle_meta.c - documents about the server, its operators and programs.
 */
#include "http/call.h"
#include "http/handlers.h"
#include "http/request.h"
#include "wire/kserve_settings.h"
#include "wire/openapi.h"
#include "wire/program_check.h"

#include <string.h>

/* The model that the path names, with its version: an operator, or a program,
 * which the request holds; ROPED_NO_PROGRAM for neither. */
static enum roped_status find(struct request *request, struct model *out,
                              struct roped_error *err)
{
    const char *name = request->match.capture;
    struct run *run = &request->run;
    enum roped_status status = ROPED_NO_PROGRAM;
    if (models_has_version(request->match.second) &&
        models_find(request->service->models, name, out))
        return ROPED_OK;
    if (models_has_version(request->match.second))
        status =
            programs_take(exec_programs(request->service->exec),
                          request->caller.tenant, name, &run->program, err);
    if (status)
        return status;
    memcpy(run->etag, run->program->etag, sizeof run->etag);
    model_of_program(out, run->program->name, run->program->definition);
    return ROPED_OK;
}

enum roped_status find_model(struct request *request, struct model *out)
{
    const char *version = request->match.second;
    struct roped_error *err = &request->answer.error;
    enum roped_status status = find(request, out, err);
    if (status != ROPED_NO_PROGRAM)
        return status;
    return roped_fail(err, ROPED_NO_OPERATOR,
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

typedef void write_model_fn(struct buffer *buffer, const struct model *model,
                            const char *backend);

/* With what is known of a program's outputs before it runs. */
static struct reply reply_model(struct request *request, write_model_fn *write)
{
    struct memory_pool *pool = exec_memory(request->service->exec);
    struct roped_tensor outputs[ROPED_PROGRAM_OUTPUTS];
    struct memory_block memory = {.bytes = 0};
    struct roped_error *err = &request->answer.error;
    struct buffer buffer;
    struct model model;
    enum roped_status status = find_model(request, &model);
    const struct roped_program *program =
        status ? NULL : model.signature.program;
    if (program)
        status = memory_take(pool, roped_chain_bytes(program), &memory, err);
    if (status)
        return reply_status(&request->answer, err);
    if (program && program_check_outputs(program, memory.start, outputs))
        model.signature.outputs = outputs;
    reply_begin_text(&request->answer, &buffer);
    write(&buffer, &model, backend_name(request->service));
    memory_give(pool, &memory);
    return reply_json(&buffer);
}

struct reply handle_model(struct request *request)
{
    return reply_model(request, kserve_write_model);
}

struct reply handle_config(struct request *request)
{
    return reply_model(request, kserve_write_config);
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

/* ------------------------------------------------------ statistics and lists
 */

/* As models have them, whose clock begins when the body does. */
static void statistics_of(struct program *program,
                          struct kserve_statistics *out)
{
    struct program_statistics s;
    program_statistics(program, &s);
    *out = (struct kserve_statistics){.last_inference_ms = s.last_ms,
                                      .success_count = s.n_succeeded,
                                      .success_ns = s.succeeded_ns,
                                      .fail_count = s.n_failed,
                                      .fail_ns = s.failed_ns,
                                      .execution_count = s.n_succeeded};
#define PHASE(id, name, statistic, meaning)                                    \
    out->statistic += s.timing.name##_ns;
#include "phase.def"
}

struct reply handle_stats(struct request *request)
{
    struct roped_error err;
    struct buffer buffer;
    struct model model;
    struct kserve_statistics statistics;
    const struct service *service = request->service;
    enum roped_status status = find(request, &model, &err);
    if (status == ROPED_NO_PROGRAM)
        roped_fail(&err, ROPED_NO_OPERATOR,
                   "requested model '%s' is not available",
                   request->match.capture);
    if (status)
        return reply_status(&request->answer, &err);
    if (request->run.program)
        statistics_of(request->run.program, &statistics);
    else
        metrics_statistics(service->metrics,
                           models_index(service->models, model.signature.op),
                           &statistics);
    reply_begin_text(&request->answer, &buffer);
    buffer_text(&buffer, "{\"model_stats\":[");
    kserve_write_statistics(&buffer, model.name, &statistics);
    buffer_text(&buffer, "]}");
    return reply_json(&buffer);
}

/* Behind the operators' entries, of which there are some. */
static void list_statistics(void *context, struct program *program)
{
    struct kserve_statistics statistics;
    statistics_of(program, &statistics);
    buffer_text(context, ",");
    kserve_write_statistics(context, program->name, &statistics);
}

static void list_program(void *context, struct program *program)
{
    buffer_text(context, ",");
    kserve_write_index_entry(context, program->name);
}

struct reply handle_stats_all(struct request *request)
{
    struct buffer buffer;
    struct kserve_statistics statistics;
    const struct models *models = request->service->models;
    reply_begin_text(&request->answer, &buffer);
    buffer_text(&buffer, "{\"model_stats\":[");
    for (int i = 0; i < models->n; i++) {
        metrics_statistics(request->service->metrics, i, &statistics);
        buffer_text(&buffer, i ? "," : "");
        kserve_write_statistics(&buffer, models->op[i]->name, &statistics);
    }
    programs_each(exec_programs(request->service->exec), request->caller.tenant,
                  list_statistics, &buffer);
    buffer_text(&buffer, "]}");
    return reply_json(&buffer);
}

struct reply handle_index(struct request *request)
{
    struct roped_error err;
    struct buffer buffer;
    const struct models *models = request->service->models;
    if (kserve_check_index(body_text(&request->body),
                           (size_t)request->body.received, &err))
        return reply_status(&request->answer, &err);
    reply_begin_text(&request->answer, &buffer);
    buffer_text(&buffer, "[");
    for (int i = 0; i < models->n; i++) {
        buffer_text(&buffer, i ? "," : "");
        kserve_write_index_entry(&buffer, models->op[i]->name);
    }
    programs_each(exec_programs(request->service->exec), request->caller.tenant,
                  list_program, &buffer);
    buffer_text(&buffer, "]");
    return reply_json(&buffer);
}
