/*
 * run.c - what a run of a program has beside a call.
 */
#include "http/run.h"

#include "http/step_times.h"
#include "wire/program_json.h"
#include "wire/safetensors.h"

#include <string.h>

static struct executor *exec_of(const struct run *run)
{
    return run->call->service->exec;
}

static const struct roped_program *definition_of(const struct run *run)
{
    return run->program->definition;
}

void run_give_regions(struct run *run)
{
    struct executor *exec = exec_of(run);
    if (run->run)
        program_run_fini(run->run, exec_regions(exec), exec_tables(exec));
}

void run_give(struct run *run)
{
    struct programs *programs = exec_programs(exec_of(run));
    run_give_regions(run);
    if (run->run)
        programs_keep_idle(programs, run->program, &run->memory);
    run->run = NULL;
    if (run->program)
        programs_give(programs, run->program);
    run->program = NULL;
}

/* ------------------------------------------------------------------ decode */

/* safetensors_metadata_fn: a document in the file. */
static enum roped_status read_document(void *context, const char *name,
                                       const char *value,
                                       struct roped_error *err)
{
    struct run *run = context;
    struct program_text text = {
        .name = "", .document = value, .document_bytes = strlen(value)};
    struct roped_program *definition = NULL;
    if (strcmp(name, "program") != 0)
        return ROPED_OK;
    enum roped_status status =
        program_json_read(value, text.document_bytes, &definition, err);
    return status ? status
                  : programs_make(&text, definition, &run->program, err);
}

/* The program of a request that names none. */
static enum roped_status find_document(struct run *run)
{
    const struct body *body = run->call->body;
    enum roped_status status = ROPED_OK;
    if (body->length > 0)
        status = safetensors_read(body_bytes(body, 0), body->header_bytes,
                                  body->length, NULL, read_document, run,
                                  run->call->error);
    if (status || run->program)
        return status;
    return roped_fail(run->call->error, ROPED_INVALID,
                      "no program: expected its document as the text 'program' "
                      "of the file's __metadata__, or POST to "
                      "/v1/programs/{name}");
}

static enum roped_status take_memory(struct run *run)
{
    if (programs_take_idle(exec_programs(exec_of(run)), run->program,
                           &run->memory)) {
        run->run = (struct program_run *)(void *)run->memory.start;
        program_run_again(run->run);
        return ROPED_OK;
    }
    enum roped_status status =
        memory_take(exec_memory(exec_of(run)), program_run_bytes(run->program),
                    &run->memory, run->call->error);
    if (!status)
        run->run = program_run_init(run->memory.start, run->program);
    return status;
}

/* From now on the request's tensors are bound to it. */
static void lend_signature(struct run *run)
{
    run->call->signature =
        (struct signature){.name = run->program->name,
                           .program = run->program->definition,
                           .chain = run->run->chain,
                           .in_data = run->run->in_data,
                           .out_data = run->run->out_data};
}

/* ------------------------------------------------------- regions and tables */

/* What the document calls "@name". */
static enum roped_status take_places(struct run *run)
{
    enum roped_status status =
        program_run_take_places(run->run, exec_regions(exec_of(run)),
                                run->call->tenant, run->call->error);
    for (int i = 0; i < (status ? 0 : roped_program_places(definition_of(run)));
         i++) {
        const struct exec_place place = {.region = run->run->place[i]};
        const struct roped_area area = program_run_area(&place);
        roped_chain_place(run->run->chain, i,
                          &region_info(place.region)->tensor, &area);
    }
    return status;
}

static enum roped_status take_tables(struct run *run)
{
    struct tables *tables = exec_tables(exec_of(run));
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < roped_program_tables(definition_of(run)) && !status;
         i++) {
        const char *name =
            roped_chain_table_name(run->run->chain, i, run->call->error);
        if (!name)
            return ROPED_BAD_PARAMETER;
        status = tables_take(tables, run->call->tenant, name,
                             &run->run->table[i], run->call->error);
        if (!status)
            roped_chain_table(run->run->chain, i,
                              tables_set(run->run->table[i]));
    }
    return status;
}

static enum roped_status decode(struct call *call)
{
    struct run *run = call->run;
    enum roped_status status = run->program ? ROPED_OK : find_document(run);
    if (!status)
        status = take_memory(run);
    if (status)
        return status;
    lend_signature(run);
    status = call->protocol->decode(call);
    if (!status && call->has_timing)
        status = step_times_take(call, roped_program_steps(definition_of(run)));
    run->run->step_ns = call->steps.ns;
    if (!status)
        status = take_places(run);
    if (!status)
        status = take_tables(run);
    if (!status)
        status = roped_chain_resolve(run->run->chain, call->error);
    if (!status)
        status = program_run_check(run->run, call->error);
    for (int i = 0;
         i < (status ? 0 : roped_program_outputs(definition_of(run))); i++)
        if (program_run_keeps(run->run, i))
            call->kept |= UINT64_C(1) << i;
    return status;
}

static struct exec_place *place(struct call *call, bool is_output, int index)
{
    struct program_run *run = call->run->run;
    return is_output ? &run->out[index] : &run->in[index];
}

/* Steps may meet in one region. */
static void took(struct call *call, const struct region_ref *ref)
{
    const struct roped_area area =
        program_run_area(place(call, ref->is_output, ref->port));
    struct roped_chain *chain = call->run->run->chain;
    if (ref->is_output)
        roped_chain_into(chain, ref->port, &area, ref->tensor.stride);
    else
        roped_chain_area(chain, ref->port, &area);
}

/* --------------------------------------------------------------------- job */

static uint64_t value_bytes(const struct call *call)
{
    return call->run->run->value_bytes;
}

static void fill_job(struct call *call, bool is_pinned)
{
    struct program_run *run = call->run->run;
    run->values = call->values.start;
    run->is_pinned = is_pinned;
    call->job->work = EXEC_PROGRAM;
    call->job->run = run;
}

static void count(const struct call *call, const struct metrics_call *counted)
{
    if (call->run->program)
        program_count(call->run->program, counted->status, counted->total_ns,
                      &call->job->timing);
}

static const struct call_kind kind_run = {.decode = decode,
                                          .place = place,
                                          .took = took,
                                          .value_bytes = value_bytes,
                                          .fill_job = fill_job,
                                          .count = count};

/* ------------------------------------------------------------------- begin */

struct program_conditions conditions_of(const struct head *head)
{
    return (struct program_conditions){head_value(head, HEADER_IF_MATCH),
                                       head_value(head, HEADER_IF_NONE_MATCH)};
}

enum roped_status run_begin(struct run *run)
{
    struct call *call = run->call;
    const struct program_conditions conditions = conditions_of(call->head);
    call->run = run;
    call->kind = &kind_run;
    if (!call->name[0])
        return ROPED_OK;
    enum roped_status status =
        programs_take(exec_programs(exec_of(run)), call->tenant, call->name,
                      &run->program, call->error);
    if (!status)
        status =
            program_meets(run->program, call->name, &conditions, call->error);
    if (!status)
        memcpy(run->etag, run->program->etag, sizeof run->etag);
    return status;
}

enum roped_status run_begin_model(struct run *run)
{
    struct call *call = run->call;
    const struct roped_error unknown = *call->error;
    if (!models_has_version(call->version))
        return unknown.status;
    enum roped_status status = run_begin(run);
    if (status != ROPED_NO_PROGRAM)
        return status;
    call->run = NULL;
    *call->error = unknown;
    return unknown.status;
}
