/*
 * handle_programs.c - /v1/programs: list, read, make, forget, run.
 */
#include "http/handlers.h"
#include "http/request.h"
#include "wire/program_check.h"
#include "wire/program_json.h"

#include <string.h>

static struct programs *programs_of(const struct request *request)
{
    return exec_programs(request->service->exec);
}

/* -------------------------------------------------------------------- read */

struct listing {
    struct buffer *buffer;
    const struct tenant *sees;
    int n;
};

/* Everyone is told whose it is. */
static void write_info(struct buffer *buffer, const struct program *program,
                       const struct tenant *sees)
{
    buffer_text(buffer, "{\"name\":");
    buffer_json_string(buffer, program->name);
    if (sees == &tenant_everyone) {
        buffer_text(buffer, ",\"tenant\":");
        buffer_json_string(buffer, program->tenant->name);
    }
    buffer_text(buffer, ",\"etag\":");
    buffer_json_string(buffer, program->etag);
    buffer_text(buffer, ",");
    program_json_write(buffer, program->definition);
    buffer_text(buffer, "}");
}

static void list_program(void *context, struct program *program)
{
    struct listing *listing = context;
    buffer_text(listing->buffer, listing->n++ ? "," : "");
    write_info(listing->buffer, program, listing->sees);
}

struct reply handle_programs(struct request *request)
{
    struct buffer buffer;
    struct listing listing = {&buffer, request->caller.sees, 0};
    reply_begin_text(&request->answer, &buffer);
    buffer_text(&buffer, "{\"programs\":[");
    programs_each(programs_of(request), listing.sees, list_program, &listing);
    buffer_text(&buffer, "]}");
    return reply_json(&buffer);
}

/* The program of the path, which the request holds; with its ETag. */
static enum roped_status take(struct request *request)
{
    struct run *run = &request->run;
    enum roped_status status = programs_take(
        programs_of(request), request->caller.tenant, request->match.capture,
        &run->program, &request->answer.error);
    if (!status)
        memcpy(run->etag, run->program->etag, sizeof run->etag);
    return status;
}

struct reply handle_program_get(struct request *request)
{
    struct buffer buffer;
    if (take(request))
        return reply_status(&request->answer, &request->answer.error);
    const struct program *program = request->run.program;
    reply_begin_text(&request->answer, &buffer);
    buffer_append(&buffer, program->document, program->document_bytes);
    programs_give(programs_of(request), request->run.program);
    request->run.program = NULL;
    return reply_json(&buffer);
}

/* -------------------------------------------------------------------- make */

/* Whatever can be wrong with shapes and types is, where the document says all
 * of them. */
static enum roped_status check_declared(struct request *request,
                                        const struct roped_program *definition,
                                        struct roped_error *err)
{
    struct memory_pool *pool = exec_memory(request->service->exec);
    struct memory_block block;
    if (!program_check_is_sized(definition))
        return ROPED_OK;
    enum roped_status status =
        memory_take(pool, roped_chain_bytes(definition), &block, err);
    if (status)
        return status;
    status = program_check(definition, block.start, err);
    memory_give(pool, &block);
    return status;
}

static enum roped_status read_query(const struct request *request,
                                    struct roped_error *err)
{
    const struct head *head = &request->head;
    bool is_guarded = gate_is_guarded(&request->service->gate);
    for (int i = 0; i < head->n_parameters; i++) {
        const char *name = head->parameter[i].name;
        if (strcmp(name, "tenant") != 0 || !is_guarded)
            return roped_fail(err, ROPED_BAD_PARAMETER,
                              "parameter '%.32s' of a program's PUT: expected "
                              "none",
                              name);
    }
    return ROPED_OK;
}

/* A program is a v2 model: its name must be that of no other. */
static enum roped_status check_name(const struct request *request,
                                    struct roped_error *err)
{
    struct model model;
    const char *name = request->match.capture;
    enum roped_status status = program_json_check_name(name, err);
    if (status || !models_find(request->service->models, name, &model))
        return status;
    return roped_fail(err, ROPED_INVALID,
                      "program '%s': a model of the server (demo_models) has "
                      "this name",
                      name);
}

static enum roped_status put(struct request *request, bool *replaced,
                             struct roped_error *err)
{
    const char *name = request->match.capture;
    const struct program_text text = {
        .name = name,
        .document = body_text(&request->body),
        .document_bytes = (size_t)request->body.received,
        .if_match = head_value(&request->head, HEADER_IF_MATCH)};
    struct roped_program *definition = NULL;
    enum roped_status status = check_name(request, err);
    if (!status)
        status = read_query(request, err);
    if (!status)
        status = program_json_read(text.document, text.document_bytes,
                                   &definition, err);
    if (status)
        return status;
    status = check_declared(request, definition, err);
    if (status) {
        roped_program_free(definition);
        return status;
    }
    return programs_put(programs_of(request), request->caller.tenant, &text,
                        definition, replaced, err);
}

/* Answers with what it has become. */
struct reply handle_program_put(struct request *request)
{
    struct buffer buffer;
    struct roped_error err;
    bool replaced = false;
    if (put(request, &replaced, &err))
        return reply_status(&request->answer, &err);
    if (take(request)) /* somebody has deleted it since */
        return reply_status(&request->answer, &request->answer.error);
    reply_begin_text(&request->answer, &buffer);
    write_info(&buffer, request->run.program, request->caller.tenant);
    programs_give(programs_of(request), request->run.program);
    request->run.program = NULL;
    return reply_text(replaced ? 200 : 201, "application/json", &buffer);
}

struct reply handle_program_delete(struct request *request)
{
    struct buffer buffer;
    struct roped_error err;
    if (programs_delete(programs_of(request), request->caller.tenant,
                        request->match.capture,
                        head_value(&request->head, HEADER_IF_MATCH), &err))
        return reply_status(&request->answer, &err);
    reply_begin_text(&request->answer, &buffer);
    buffer_text(&buffer, "{}");
    return reply_json(&buffer);
}
