/*
 * handle_programs.c - /v1/programs: list, read, make, warm, forget.
 */
#include "exec/warm.h"
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

/* Of the program that the request holds: its document, or 304. */
static struct reply show(struct request *request)
{
    struct buffer buffer;
    struct roped_error err;
    const struct program *program = request->run.program;
    struct program_conditions conditions = conditions_of(&request->head);
    bool is_known = program_is_known(program, &conditions);
    conditions.if_none_match = NULL; /* 304, not 412 */
    if (program_meets(program, program->name, &conditions, &err))
        return reply_status(&request->answer, &err);
    reply_begin_text(&request->answer, &buffer);
    buffer_append(&buffer, program->document, program->document_bytes);
    struct reply reply = reply_json(&buffer);
    if (is_known && reply.code == 200) /* of which headers alone are sent */
        reply.code = 304;
    return reply;
}

struct reply handle_program_get(struct request *request)
{
    if (take(request))
        return reply_status(&request->answer, &request->answer.error);
    struct reply reply = show(request);
    programs_give(programs_of(request), request->run.program);
    request->run.program = NULL;
    return reply;
}

/* -------------------------------------------------------------------- make */

/* What a run would be given that is not in the document. */
static enum roped_status refuse_warm(const char *what, const char *name,
                                     struct roped_error *err)
{
    return roped_fail(err, ROPED_INVALID,
                      "parameter 'warm': %s%s, expected inputs that say dtype "
                      "and shape, in sizes, and hold no index values, "
                      "parameters with defaults, and neither regions nor "
                      "tables",
                      what, name);
}

/* Whatever can be wrong with shapes and types is, where the document says all
 * of them. */
static enum roped_status check_declared(struct request *request,
                                        const struct roped_program *definition,
                                        bool is_warm, struct roped_error *err)
{
    struct memory_pool *pool = exec_memory(request->service->exec);
    struct memory_block block;
    if (!program_check_is_sized(definition))
        return is_warm
                   ? refuse_warm("the document leaves something open", "", err)
                   : ROPED_OK;
    enum roped_status status =
        memory_take(pool, roped_chain_bytes(definition), &block, err);
    if (status)
        return status;
    struct roped_chain *chain = roped_chain_init(block.start, definition);
    status = program_check_chain(definition, chain, err);
    int index = status || !is_warm ? -1 : program_check_index(chain);
    if (index >= 0)
        status = refuse_warm("index values are in input ",
                             roped_program_input_name(definition, index), err);
    memory_give(pool, &block);
    return status;
}

static enum roped_status read_query(const struct request *request,
                                    bool *is_warm, struct roped_error *err)
{
    const struct head *head = &request->head;
    bool is_guarded = gate_is_guarded(&request->service->gate);
    for (int i = 0; i < head->n_parameters; i++) {
        const char *name = head->parameter[i].name;
        const char *value = head->parameter[i].value;
        bool is_known = strcmp(name, "warm") == 0;
        if (is_known && strcmp(value, "0") != 0 && strcmp(value, "1") != 0)
            return roped_fail(err, ROPED_BAD_PARAMETER,
                              "parameter 'warm': '%.32s', expected 0 or 1",
                              value);
        if (is_known)
            *is_warm = value[0] == '1';
        else if (strcmp(name, "tenant") != 0 || !is_guarded)
            return roped_fail(err, ROPED_BAD_PARAMETER,
                              "parameter '%.32s' of a program's PUT: expected "
                              "warm or none",
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
                             bool *is_warm, struct roped_error *err)
{
    const char *name = request->match.capture;
    const struct program_text text = {
        .name = name,
        .document = body_text(&request->body),
        .document_bytes = (size_t)request->body.received,
        .conditions = conditions_of(&request->head)};
    struct roped_program *definition = NULL;
    enum roped_status status = check_name(request, err);
    if (!status)
        status = read_query(request, is_warm, err);
    if (!status)
        status = program_json_read(text.document, text.document_bytes,
                                   &definition, err);
    if (status)
        return status;
    status = check_declared(request, definition, *is_warm, err);
    if (status) {
        roped_program_free(definition);
        return status;
    }
    return programs_put(programs_of(request), request->caller.tenant, &text,
                        definition, replaced, err);
}

/* What it has become. */
static struct reply describe(struct request *request)
{
    struct buffer buffer;
    reply_begin_text(&request->answer, &buffer);
    write_info(&buffer, request->run.program, request->caller.tenant);
    return reply_text(request->run.put_code, "application/json", &buffer);
}

/* -------------------------------------------------------------------- warm */

static uint64_t round_up(uint64_t bytes)
{
    return (bytes + CALL_ALIGNMENT - 1) / CALL_ALIGNMENT * CALL_ALIGNMENT;
}

/* Gives every input and output of the run its part of a block at start, which
 * is NULL as long as only their bytes are asked for. */
static uint64_t place_tensors(struct program_run *run, unsigned char *start)
{
    const struct roped_program *definition = run->program->definition;
    uint64_t at = 0;
    for (int i = 0; i < roped_program_inputs(definition); i++) {
        run->in_data[i] = start ? start + at : NULL;
        at += round_up((uint64_t)roped_tensor_bytes(
            roped_chain_input_tensor(run->chain, i)));
    }
    for (int i = 0; i < roped_program_outputs(definition); i++) {
        run->out_data[i] = start ? start + at : NULL;
        at += round_up((uint64_t)roped_tensor_bytes(
            roped_chain_output_tensor(run->chain, i, NULL)));
    }
    return at;
}

/* A run with zeros, as the document says them. */
static enum roped_status prepare_warm(struct request *request,
                                      struct roped_error *err)
{
    struct memory_pool *pool = exec_memory(request->service->exec);
    struct run *run = &request->run;
    struct memory_block *block = &request->call.out;
    enum roped_status status =
        memory_take(pool, program_run_bytes(run->program), &run->memory, err);
    if (status)
        return status;
    run->run = program_run_init(run->memory.start, run->program);
    status =
        program_check_chain(run->program->definition, run->run->chain, err);
    if (!status)
        status = program_run_check(run->run, err);
    if (!status)
        status = memory_take(pool, (size_t)place_tensors(run->run, NULL) + 1,
                             block, err);
    if (status)
        return status;
    memset(block->start, 0, (size_t)place_tensors(run->run, block->start));
    run->run->is_pinned = block->is_pinned;
    return ROPED_OK;
}

/* An errand. */
static enum roped_status warm(struct exec_job *job)
{
    struct request *request = job->context;
    struct roped_error said;
    enum roped_status status = prepare_warm(request, &said);
    if (!status)
        status =
            exec_warm(request->service->exec, job, request->run.run, &said);
    return status ? roped_fail(&job->error, status,
                               "program '%s' is stored, and not warm: %s",
                               request->run.program->name, said.text)
                  : ROPED_OK;
}

static struct reply reply_warmed(void *context)
{
    struct request *request = context;
    const struct exec_job *errand = &request->answer.errand;
    return errand->status ? reply_status(&request->answer, &errand->error)
                          : describe(request);
}

/* Answers with what it has become. */
struct reply handle_program_put(struct request *request)
{
    struct roped_error err;
    struct exec_job *errand = &request->answer.errand;
    bool replaced = false, is_warm = false;
    if (put(request, &replaced, &is_warm, &err))
        return reply_status(&request->answer, &err);
    if (take(request)) /* somebody has deleted it since */
        return reply_status(&request->answer, &request->answer.error);
    request->run.put_code = replaced ? 200 : 201;
    if (!is_warm)
        return describe(request);
    if (!errand->lane) /* else this is the errand, of a long document */
        return reply_errand(&request->answer, warm, UINT64_MAX, reply_warmed,
                            request);
    return warm(errand) ? reply_status(&request->answer, &errand->error)
                        : describe(request);
}

struct reply handle_program_delete(struct request *request)
{
    struct buffer buffer;
    struct roped_error err;
    const struct program_conditions conditions = conditions_of(&request->head);
    if (programs_delete(programs_of(request), request->caller.tenant,
                        request->match.capture, &conditions, &err))
        return reply_status(&request->answer, &err);
    reply_begin_text(&request->answer, &buffer);
    buffer_text(&buffer, "{}");
    return reply_json(&buffer);
}
