/*
 * call.c - a request that is a call or a run, in either protocol.
 */
#include "http/call.h"

#include "exec/placement.h"
#include "http/call_demo.h"
#include "http/clock.h"
#include "wire/demo.h"

#include <roped/nearest.h>

#include <string.h>

/* ------------------------------------------------------------- an operator's
 */

/* Bit i: output i stays in a region. */
static uint64_t kept_outputs(const struct exec_job *job)
{
    uint64_t kept = 0;
    for (int i = 0; i < job->call.n_out; i++)
        if (job->out[i].region)
            kept |= UINT64_C(1) << i;
    return kept;
}

static enum roped_status decode(struct call *call)
{
    struct exec_job *job = call->job;
    enum roped_status status = call->protocol->decode(call);
    if (!status)
        status = roped_call_resolve(&job->call, call->error);
    if (!status) /* may they be where they are? */
        status = placement_check(job, exec_regions(call->service->exec),
                                 call->error);
    call->kept = kept_outputs(job);
    return status;
}

static struct exec_place *place(struct call *call, bool is_output, int index)
{
    return is_output ? &call->job->out[index] : &call->job->in[index];
}

static void took(struct call *call, const struct region_ref *ref)
{
    (void)call;
    (void)ref;
}

static uint64_t value_bytes(const struct call *call)
{
    return call->job->placement.value_bytes;
}

static void fill_job(struct call *call, bool is_pinned)
{
    struct exec_job *job = call->job;
    job->values = call->values.start;
    job->is_pinned = is_pinned;
    if (!demo_is(call->op))
        return;
    job->work = EXEC_TASK;
    job->task = call_run_demo;
    job->task_bytes = (uint64_t)roped_call_bytes(&job->call);
}

static void count_nothing_more(const struct call *call,
                               const struct metrics_call *counted)
{
    (void)call;
    (void)counted;
}

static const struct call_kind kind_call = {.decode = decode,
                                           .place = place,
                                           .took = took,
                                           .value_bytes = value_bytes,
                                           .fill_job = fill_job,
                                           .count = count_nothing_more};

enum roped_status call_begin(struct call *call)
{
    call->op = call->protocol->find_op(call);
    if (!call->op)
        return call->error->status;
    call->kind = &kind_call;
    roped_call_init(&call->job->call, call->op);
    call->signature = signature_of_call(&call->job->call);
    return ROPED_OK;
}

void call_give_regions(struct call *call)
{
    struct regions *regions = exec_regions(call->service->exec);
    struct exec_job *job = call->job;
    for (int i = 0; i < job->call.n_in; i++) {
        regions_give(regions, job->in[i].region);
        job->in[i].region = NULL;
    }
    for (int i = 0; i < job->call.n_out; i++) {
        regions_give(regions, job->out[i].region);
        job->out[i] = (struct exec_place){.region = NULL};
    }
}

enum roped_status call_no_operator(const char *name, struct roped_error *err)
{
    char near[96];
    struct roped_nearest nearest = {.word = name};
    for (int i = 0; i < roped_op_count(); i++)
        roped_nearest_offer(&nearest, roped_op_at(i)->name);
    return roped_fail(err, ROPED_NO_OPERATOR,
                      "no operator '%s'%s GET /v1 lists them", nearest.word,
                      nearest.found[0]
                          ? roped_nearest_text(&nearest, near, sizeof near)
                          : ";");
}

enum roped_status call_use_table(struct call *call, const char *name)
{
    struct exec_job *job = call->job;
    struct roped_error *err = call->error;
    if (job->table)
        return roped_fail(err, ROPED_BAD_PARAMETER,
                          "parameter 'table' is given twice");
    enum roped_status status = tables_take(
        exec_tables(call->service->exec), call->tenant, name, &job->table, err);
    if (status)
        return status;
    return roped_call_use_angles(&job->call, tables_set(job->table), err);
}

bool call_sends(const struct call *call, int output)
{
    struct roped_tensor tensor;
    return !(call->kept >> output & 1) &&
           signature_output(&call->signature, output, &tensor);
}

enum roped_status call_decode(struct call *call)
{
    enum roped_status status = call->kind->decode(call);
    return status ? status : call->protocol->check(call);
}

void call_open_inbox(struct call *call)
{
    const struct body *body = call->body;
    if (call->op && body->block.is_pinned && !demo_is(call->op))
        exec_inbox_open(call->service->exec, call->job, body->block.start,
                        body->at + body->header_bytes, body->at + body->length);
}

/* ------------------------------------------------------------------ start */

/* The answer's block: header, outputs behind it at a multiple of 64, and what
 * is computed without being sent. */
static enum roped_status place_answer(struct call *call)
{
    uint64_t offset[SIGNATURE_OUTPUTS], sent = 0, all = 0;
    struct buffer header;
    reply_begin_text(call->answer, &header);
    enum roped_status status =
        call->protocol->write_header(call, &header, offset, &sent, &all);
    if (status)
        return status;
    size_t pad =
        (CALL_ALIGNMENT - header.bytes % CALL_ALIGNMENT) % CALL_ALIGNMENT;
    status =
        memory_take(exec_memory(call->service->exec),
                    pad + header.bytes + (size_t)all, &call->out, call->error);
    if (status)
        return status;
    call->answer_at = pad;
    call->answer_bytes = header.bytes + (size_t)sent;
    call->answer_json_bytes = header.bytes;
    if (header.bytes)
        memcpy(call->out.start + pad, header.text, header.bytes);
    for (int i = 0; i < signature_count(&call->signature, true); i++)
        if (call_sends(call, i))
            signature_place(&call->signature, i,
                            call->out.start + pad + header.bytes + offset[i]);
    return ROPED_OK;
}

/* Index values in regions are read out when the job runs, into this. */
static enum roped_status take_values(struct call *call)
{
    uint64_t bytes = call->kind->value_bytes(call);
    if (bytes == 0)
        return ROPED_OK;
    return memory_take(exec_memory(call->service->exec), (size_t)bytes,
                       &call->values, call->error);
}

static enum roped_status decode_late(struct call *call)
{
    if (call->body->length > 0)
        return body_is_short(call->body, call->error);
    return call_decode(call);
}

static enum roped_status prepare(struct call *call)
{
    enum roped_status status =
        call->body->is_decoded ? ROPED_OK : decode_late(call);
    if (!status)
        status = call->protocol->read_values(call);
    if (!status)
        status = take_values(call);
    return status ? status : place_answer(call);
}

static bool is_pinned(const struct memory_block *block)
{
    return !block->start || block->is_pinned;
}

static reply_then_fn answer;

struct reply call_start(struct call *call)
{
    struct exec_job *job = call->job;
    if (prepare(call)) {
        job->status = call->error->status;
        job->error = *call->error;
        return answer(call);
    }
    call->kind->fill_job(
        call, is_pinned(&call->body->block) && is_pinned(&call->out) &&
                  is_pinned(&call->json) && is_pinned(&call->values));
    return reply_after(job, answer, call);
}

/* ----------------------------------------------------------------- answer */

void call_phases(const struct call *call, uint64_t ns[N_PHASES])
{
    ns[PHASE_RECEIVE] = call->body->received_ns - call->body->first_byte_ns;
#define PHASE(id, name, statistic, meaning)                                    \
    ns[PHASE_##id] = call->job->timing.name##_ns;
#include "phase.def"
}

static void count(const struct call *call, enum roped_status status,
                  uint64_t response_bytes)
{
    struct metrics_call counted = {
        .op = call->run ? metrics_programs(call->service->models)
                        : models_index(call->service->models, call->op),
        .status = status,
        .transport = call->protocol->transport,
        .total_ns = clock_now_ns() - call->body->started_ns,
        .request_bytes = call->body->received,
        .response_bytes = response_bytes};
    call_phases(call, counted.phase_ns);
    metrics_count_call(call->service->metrics, &counted);
    call->kind->count(call, &counted);
}

void call_count_refusal(const struct call *call)
{
    count(call, call->error->status, 0);
}

struct reply call_finish(const struct call *call, struct reply reply)
{
    enum roped_status status =
        reply.code == 200 ? ROPED_OK : call->error->status;
    /* counted before the client can see the answer and ask for statistics */
    count(call, status, status ? 0 : reply.bytes);
    return reply;
}

static struct reply answer(void *context)
{
    struct call *call = context;
    const struct exec_job *job = call->job;
    if (!job->status)
        return call->protocol->answer(call);
    return call_finish(call, reply_status(call->answer, &job->error));
}

struct reply call_block(const struct call *call, const char *type)
{
    return call_finish(call,
                       reply_bytes(200, type, call->out.start + call->answer_at,
                                   call->answer_bytes));
}
