/*
 * job.c - from a handler to the executor and back.
 */
#include "http/job.h"

#include "http/daemon_internal.h"

#include <sys/socket.h>

static void release(struct request *request, struct exec_place *place)
{
    regions_give(exec_regions(request->daemon->exec), place->region);
    place->region = NULL;
}

void job_release_regions(struct request *request)
{
    struct exec_job *job = &request->job;
    if (!request->op) /* there is no call */
        return;
    for (int i = 0; i < job->call.n_in; i++)
        if (job->in[i].region)
            release(request, &job->in[i]);
    for (int i = 0; i < job->call.n_out; i++)
        if (job->out[i].region)
            release(request, &job->out[i]);
}

/* Runs on a lane's thread, or on ours where the job ran inline. */
static void job_done(struct exec_job *job)
{
    struct request *request = job->owner;
    struct MHD_Connection *connection = request->connection;
    /* not when the answer is sent: a slow reader would keep them alive */
    job_release_regions(request);
    int state = atomic_exchange(&request->state, REQUEST_FINISHED);
    if (state == REQUEST_RUNNING) /* suspended: after this it is not ours */
        MHD_resume_connection(connection);
}

/* Has the client hung up while its call waited? One that only closed its
 * sending side looks the same and is taken for gone. */
static bool is_gone(struct exec_job *job)
{
    struct request *request = job->owner;
    char byte;
    return request->peer &&
           recv(request->peer->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

/* The server's longest wait for a lane, or the v2 client's own if shorter. */
static uint64_t deadline_of(const struct request *request)
{
    double seconds = request->daemon->config->queue_timeout_seconds;
    double asked = (double)request->v2.timeout_us * 1e-6;
    seconds = asked > 0 && asked < seconds ? asked : seconds;
    return request->received_ns + (uint64_t)(seconds * 1e9);
}

void job_run(struct request *request, route_handler_fn *answer)
{
    struct exec_job *job = &request->job;
    struct daemon *daemon = request->daemon;
    request->answer = answer;
    job->done = job_done;
    job->owner = request;
    job->deadline_ns = deadline_of(request);
    if (exec_run_inline(daemon->exec, job)) {
        answer(request);
        return;
    }
    job->is_gone = is_gone; /* its last byte has only just come, till now */
    /* suspend first, publish second: the other order loses the wake-up */
    atomic_store(&request->state, REQUEST_RUNNING);
    MHD_suspend_connection(request->connection);
    if (exec_submit(daemon->exec, job, &job->error)) {
        job->status = job->error.status;
        job_done(job);
    }
}
