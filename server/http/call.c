/*
 * call.c - a request that is a call of an operator, in either protocol.
 */
#include "http/call.h"

#include "exec/placement.h"
#include "http/call_regions.h"
#include "http/clock.h"
#include "http/request.h"
#include "wire/demo.h"

#include <roped/nearest.h>

#include <string.h>

enum roped_status call_begin(struct request *request)
{
    const struct protocol *protocol = request->match.route->protocol;
    request->call.protocol = protocol;
    request->call.op = protocol->find_op(request);
    if (!request->call.op)
        return request->error.status;
    roped_call_init(&request->job.call, request->call.op);
    return ROPED_OK;
}

enum roped_status call_no_operator(const struct request *request,
                                   struct roped_error *err)
{
    char near[96];
    struct roped_nearest nearest = {.word = request->match.capture};
    for (int i = 0; i < roped_op_count(); i++)
        roped_nearest_offer(&nearest, roped_op_at(i)->name);
    return roped_fail(err, ROPED_NO_OPERATOR,
                      "no operator '%s'%s GET /v1 lists them", nearest.word,
                      nearest.found[0]
                          ? roped_nearest_text(&nearest, near, sizeof near)
                          : ";");
}

enum roped_status call_use_table(struct request *request, const char *name)
{
    struct exec_job *job = &request->job;
    struct roped_error *err = &request->error;
    if (job->table)
        return roped_fail(err, ROPED_BAD_PARAMETER,
                          "parameter 'table' is given twice");
    enum roped_status status =
        tables_take(exec_tables(request->service->exec), request->caller.tenant,
                    name, &job->table, err);
    if (status)
        return status;
    return roped_call_use_angles(&job->call, tables_set(job->table), err);
}

bool call_sends(const struct request *request, int output)
{
    return roped_tensor_given(&request->job.call.out[output]) &&
           !(request->call.kept >> output & 1);
}

enum roped_status call_decode(struct request *request)
{
    const struct protocol *protocol = request->call.protocol;
    enum roped_status status = protocol->decode(request);
    if (!status)
        status = roped_call_resolve(&request->job.call, &request->error);
    if (!status)
        status = call_check_regions(request);
    request->call.kept = call_kept_outputs(request);
    return status ? status : protocol->check(request);
}

/* ------------------------------------------------------------------ start */

/* The answer's block: header, outputs behind it at a multiple of 64, and what
 * is computed without being sent. */
static enum roped_status place_answer(struct request *request)
{
    uint64_t offset[ROPED_MAX_OUTPUTS] = {0}, sent = 0, all = 0;
    struct roped_call *call = &request->job.call;
    struct buffer header;
    buffer_init_fixed(&header, request->scratch, sizeof request->scratch);
    enum roped_status status = request->call.protocol->write_header(
        request, &header, offset, &sent, &all);
    if (status)
        return status;
    size_t pad =
        (CALL_ALIGNMENT - header.bytes % CALL_ALIGNMENT) % CALL_ALIGNMENT;
    status = memory_take(exec_memory(request->service->exec),
                         pad + header.bytes + (size_t)all, &request->out,
                         &request->error);
    if (status)
        return status;
    request->call.answer_at = pad;
    request->call.answer_bytes = header.bytes + (size_t)sent;
    request->call.answer_json_bytes = header.bytes;
    if (header.bytes)
        memcpy(request->out.start + pad, header.text, header.bytes);
    for (int i = 0; i < call->n_out; i++)
        if (call_sends(request, i))
            call->out[i].data =
                request->out.start + pad + header.bytes + offset[i];
    return ROPED_OK;
}

/* Index values in regions are read out when the job runs, into this. */
static enum roped_status take_values(struct request *request)
{
    uint64_t bytes = request->job.placement.value_bytes;
    if (bytes == 0)
        return ROPED_OK;
    enum roped_status status =
        memory_take(exec_memory(request->service->exec), (size_t)bytes,
                    &request->values, &request->error);
    request->job.values = request->values.start;
    return status;
}

static enum roped_status decode_late(struct request *request)
{
    if (request->body.length > 0)
        return body_is_short(request);
    return call_decode(request);
}

static enum roped_status prepare(struct request *request)
{
    enum roped_status status =
        request->body.is_decoded ? ROPED_OK : decode_late(request);
    if (!status)
        status = request->call.protocol->read_values(request);
    if (!status)
        status = take_values(request);
    return status ? status : place_answer(request);
}

static bool is_pinned(const struct memory_block *block)
{
    return !block->start || block->is_pinned;
}

static reply_fn answer;

struct reply call_start(struct request *request)
{
    struct exec_job *job = &request->job;
    if (prepare(request)) {
        job->status = request->error.status;
        job->error = request->error;
        return answer(request);
    }
    if (demo_is(request->call.op)) {
        job->work = EXEC_TASK;
        job->task = call_run_demo;
        job->task_bytes = (uint64_t)roped_call_bytes(&job->call);
    }
    job->is_pinned = is_pinned(&request->body.block) &&
                     is_pinned(&request->out) && is_pinned(&request->json) &&
                     is_pinned(&request->values);
    return reply_after(job, answer);
}

/* ----------------------------------------------------------------- answer */

static void count(const struct request *request, enum roped_status status,
                  uint64_t response_bytes)
{
    struct metrics_call call = {
        .op = models_index(request->service->models, request->call.op),
        .status = status,
        .transport = request->call.protocol->transport,
        .total_ns = clock_now_ns() - request->started_ns,
        .request_bytes = request->body.received,
        .response_bytes = response_bytes};
    reply_phases(request, call.phase_ns);
    metrics_count_call(request->service->metrics, &call);
}

void call_count_refusal(struct request *request)
{
    count(request, request->error.status, 0);
}

struct reply call_finish(struct request *request, struct reply reply)
{
    enum roped_status status =
        reply.code == 200 ? ROPED_OK : request->error.status;
    /* counted before the client can see the answer and ask for statistics */
    count(request, status, status ? 0 : reply.bytes);
    return reply;
}

static struct reply answer(struct request *request)
{
    const struct exec_job *job = &request->job;
    if (!job->status)
        return request->call.protocol->answer(request);
    return call_finish(request, reply_status(request, &job->error));
}

struct reply call_block(struct request *request, const char *type)
{
    return call_finish(request,
                       reply_bytes(200, type,
                                   request->out.start + request->call.answer_at,
                                   request->call.answer_bytes));
}
