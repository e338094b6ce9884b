/*
 * run.c - a request that runs a program, over /v1.
 */
#include "http/run.h"

#include "http/clock.h"
#include "wire/program_json.h"
#include "wire/region_refs.h"
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

enum roped_status run_begin(struct run *run)
{
    const struct call *call = run->call;
    const char *if_match = head_value(call->head, HEADER_IF_MATCH);
    run->is_run = true;
    if (!call->name[0])
        return ROPED_OK;
    enum roped_status status =
        programs_take(exec_programs(exec_of(run)), call->tenant, call->name,
                      &run->program, call->error);
    if (!status)
        status = program_check_match(run->program, if_match, call->error);
    if (!status)
        memcpy(run->etag, run->program->etag, sizeof run->etag);
    return status;
}

void run_give(struct run *run)
{
    struct executor *exec = exec_of(run);
    if (run->run)
        program_run_fini(run->run, exec_regions(exec), exec_tables(exec));
    if (run->run)
        programs_keep_idle(exec_programs(exec), run->program, &run->memory);
    run->run = NULL;
    if (run->program)
        programs_give(exec_programs(exec), run->program);
    run->program = NULL;
}

/* ------------------------------------------------------------------ decode */

/* safetensors_entry_fn, and safetensors_metadata_fn: a document in the file. */
static enum roped_status skip_entry(void *context,
                                    const struct safetensors_entry *entry,
                                    struct roped_error *err)
{
    (void)context;
    (void)entry;
    (void)err;
    return ROPED_OK;
}

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
                                  body->length, skip_entry, read_document, run,
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

static enum roped_status set_fp8(struct run *run, const char *value)
{
    struct roped_error *err = run->call->error;
    if (run->has_fp8)
        return roped_fail(err, ROPED_BAD_PARAMETER,
                          "parameter 'fp8' is given twice");
    run->has_fp8 = true;
    run->fp8_as_u8 = strcmp(value, "u8") == 0;
    if (run->fp8_as_u8 || strcmp(value, "native") == 0)
        return ROPED_OK;
    return roped_fail(err, ROPED_BAD_PARAMETER,
                      "parameter 'fp8': '%.32s', expected native or u8", value);
}

static enum roped_status read_parameter(struct run *run,
                                        const struct head_parameter *parameter,
                                        struct region_refs *refs)
{
    bool is_region;
    struct roped_error *err = run->call->error;
    const char *name = parameter->name, *value = parameter->value;
    if (parameter->has_nul)
        return roped_fail(err, ROPED_BAD_PARAMETER,
                          "parameter '%.32s': NUL in its name or value", name);
    enum roped_status status = region_refs_read_program(
        refs, definition_of(run), name, value, &is_region, err);
    if (status || is_region)
        return status;
    return strcmp(name, "fp8") == 0
               ? set_fp8(run, value)
               : roped_chain_param(run->run->chain, name, value, err);
}

/* safetensors_entry_fn: an input in the body. */
static enum roped_status bind_entry(void *context,
                                    const struct safetensors_entry *entry,
                                    struct roped_error *err)
{
    struct run *run = context;
    const struct body *body = run->call->body;
    unsigned char *data = body_bytes(body, body->header_bytes);
    enum roped_status status = roped_chain_input(run->run->chain, entry->name,
                                                 &entry->tensor, NULL, err);
    if (status)
        return status;
    int input = roped_program_find_input(definition_of(run), entry->name);
    run->run->in_data[input] = data ? data + entry->begin : NULL;
    return ROPED_OK;
}

/* ----------------------------------------------------------------- regions */

static const char *tensor_name(const struct run *run,
                               const struct region_ref *ref)
{
    return ref->is_output
               ? roped_program_output_name(definition_of(run), ref->port)
               : roped_program_input_name(definition_of(run), ref->port);
}

/* What the query does not say the region does. */
static enum roped_status bind_input(struct run *run,
                                    const struct region_ref *ref,
                                    const struct roped_area *area)
{
    const struct region_info *info =
        region_info(run->run->in[ref->port].region);
    const char *name = tensor_name(run, ref);
    struct roped_tensor tensor;
    enum roped_status status = region_refs_describe(
        ref, name, info->name, &info->tensor, &tensor, run->call->error);
    return status ? status
                  : roped_chain_input(run->run->chain, name, &tensor, area,
                                      run->call->error);
}

static enum roped_status take_region(struct run *run,
                                     const struct region_ref *ref)
{
    struct exec_place *place =
        ref->is_output ? &run->run->out[ref->port] : &run->run->in[ref->port];
    enum roped_status status =
        region_refs_check(ref, tensor_name(run, ref), run->call->error);
    if (!status)
        status = regions_take(exec_regions(exec_of(run)), run->call->tenant,
                              ref->region, &place->region, run->call->error);
    if (status)
        return status;
    place->offset = ref->offset;
    const struct roped_area area = program_run_area(place);
    if (!ref->is_output)
        return bind_input(run, ref, &area);
    roped_chain_into(run->run->chain, ref->port, &area, ref->tensor.stride);
    return ROPED_OK;
}

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

static enum roped_status read_tensors(struct run *run)
{
    const struct head *head = run->call->head;
    const struct body *body = run->call->body;
    struct region_refs refs;
    enum roped_status status = ROPED_OK;
    refs.n = 0;
    for (int i = 0; i < head->n_parameters && !status; i++)
        status = read_parameter(run, &head->parameter[i], &refs);
    if (!status && body->length > 0) /* else all is in regions */
        status = safetensors_read(body_bytes(body, 0), body->header_bytes,
                                  body->length, bind_entry, NULL, run,
                                  run->call->error);
    for (int i = 0; i < refs.n && !status; i++)
        status = take_region(run, &refs.ref[i]);
    if (!status)
        status = take_places(run);
    return status ? status : take_tables(run);
}

enum roped_status run_decode(struct run *run)
{
    enum roped_status status = run->program ? ROPED_OK : find_document(run);
    if (!status)
        status = take_memory(run);
    if (!status)
        status = read_tensors(run);
    if (!status)
        status = roped_chain_resolve(run->run->chain, run->call->error);
    if (!status)
        status = program_run_check(run->run, run->call->error);
    for (int i = 0;
         i < (status ? 0 : roped_program_outputs(definition_of(run))); i++)
        if (program_run_keeps(run->run, i))
            run->kept |= UINT64_C(1) << i;
    return status;
}

/* ------------------------------------------------------------------- start */

/* Outputs that are sent, widest elements first, as v1.c has them. */
static int list_outputs(const struct run *run,
                        struct safetensors_output *outputs, int *index)
{
    const struct roped_program *definition = definition_of(run);
    int n = 0;
    for (size_t width = sizeof(int64_t); width > 0; width /= 2)
        for (int i = 0; i < roped_program_outputs(definition); i++) {
            const struct roped_tensor *tensor =
                roped_chain_output_tensor(run->run->chain, i, NULL);
            if (run->kept >> i & 1 || roped_dtype_bytes(tensor->dtype) != width)
                continue;
            index[n] = i;
            outputs[n++] = (struct safetensors_output){
                roped_program_output_name(definition, i), tensor, 0};
        }
    return n;
}

/* An output goes there. What is an input that was updated is put there first,
 * and updated in its place. */
static void place_output(struct run *run, int output, unsigned char *data)
{
    struct program_run *of = run->run;
    int at;
    const struct roped_tensor *tensor =
        roped_chain_output_tensor(of->chain, output, &at);
    const struct roped_piece *piece = roped_chain_piece(of->chain, at);
    if (piece->kind != ROPED_PIECE_INPUT) {
        of->out_data[output] = data;
        return;
    }
    size_t bytes = (size_t)roped_tensor_bytes(tensor);
    if (bytes)
        memcpy(data, of->in_data[piece->index], bytes);
    of->in_data[piece->index] = data;
}

static enum roped_status place_answer(struct run *run)
{
    struct safetensors_output outputs[ROPED_PROGRAM_OUTPUTS];
    int index[ROPED_PROGRAM_OUTPUTS], n = list_outputs(run, outputs, index);
    const char *const metadata[][2] = {{"program", run->program->name}};
    struct buffer header;
    uint64_t sent = 0;
    reply_begin_text(run->call->answer, &header);
    enum roped_status status = safetensors_write_header(
        &header, outputs, n, metadata, run->program->name[0] ? 1 : 0,
        run->fp8_as_u8, &sent, run->call->error);
    if (!status && header.has_failed)
        status = roped_fail(run->call->error, ROPED_NO_MEMORY,
                            "no memory for the answer's header");
    if (status)
        return status;
    run->answer_at =
        (CALL_ALIGNMENT - header.bytes % CALL_ALIGNMENT) % CALL_ALIGNMENT;
    run->answer_bytes = header.bytes + (size_t)sent;
    status = memory_take(exec_memory(exec_of(run)),
                         run->answer_at + run->answer_bytes, &run->out,
                         run->call->error);
    if (status)
        return status;
    unsigned char *at = run->out.start + run->answer_at;
    memcpy(at, header.text, header.bytes);
    for (int i = 0; i < n; i++)
        place_output(run, index[i], at + header.bytes + outputs[i].offset);
    return ROPED_OK;
}

static enum roped_status take_values(struct run *run)
{
    uint64_t bytes = run->run->value_bytes;
    enum roped_status status =
        bytes ? memory_take(exec_memory(exec_of(run)), (size_t)bytes,
                            &run->values, run->call->error)
              : ROPED_OK;
    run->run->values = run->values.start;
    return status;
}

static enum roped_status prepare(struct run *run)
{
    const struct body *body = run->call->body;
    enum roped_status status = ROPED_OK;
    if (!body->is_decoded)
        status = body->length > 0 ? body_is_short(body, run->call->error)
                                  : run_decode(run);
    if (!status)
        status = take_values(run);
    return status ? status : place_answer(run);
}

/* ------------------------------------------------------------------ answer */

static void count(const struct run *run, enum roped_status status,
                  uint64_t response_bytes)
{
    const struct call *call = run->call;
    struct metrics_call counted = {
        .op = metrics_programs(call->service->models),
        .status = status,
        .transport = METRICS_V1,
        .total_ns = clock_now_ns() - call->body->started_ns,
        .request_bytes = call->body->received,
        .response_bytes = response_bytes};
    call_phases(call, counted.phase_ns);
    metrics_count_call(call->service->metrics, &counted);
}

void run_count_refusal(const struct run *run)
{
    count(run, run->call->error->status, 0);
}

static struct reply answer(void *context)
{
    struct run *run = context;
    const struct exec_job *job = run->call->job;
    count(run, job->status, job->status ? 0 : run->answer_bytes);
    if (job->status)
        return reply_status(run->call->answer, &job->error);
    return reply_bytes(200, "application/x-safetensors",
                       run->out.start + run->answer_at, run->answer_bytes);
}

static bool is_pinned(const struct memory_block *block)
{
    return !block->start || block->is_pinned;
}

struct reply run_start(struct run *run)
{
    struct exec_job *job = run->call->job;
    if (prepare(run)) {
        job->status = run->call->error->status;
        job->error = *run->call->error;
        return answer(run);
    }
    run->run->is_pinned = is_pinned(&run->call->body->block) &&
                          is_pinned(&run->out) && is_pinned(&run->values);
    job->work = EXEC_PROGRAM;
    job->run = run->run;
    return reply_after(job, answer, run);
}
