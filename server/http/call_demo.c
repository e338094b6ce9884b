/*
 * call_demo.c - a call of a demo model, which no backend knows: on the host,
 * also with tensors in shared memory of clients.
 */
#include "exec/places.h"
#include "http/call.h"
#include "http/clock.h"
#include "wire/demo.h"

/* Points a tensor that is in a region there. */
static enum roped_status use_region(struct exec_job *job, const char *name,
                                    const struct exec_place *place,
                                    struct roped_tensor *tensor)
{
    if (!place->region)
        return ROPED_OK;
    tensor->data = region_data(place->region) + place->offset;
    if (!region_is_device(place->region))
        return ROPED_OK;
    return roped_fail(&job->error, ROPED_INVALID,
                      "tensor '%s': region '%s' is in device memory, which "
                      "demo models do not use",
                      name, region_info(place->region)->name);
}

enum roped_status call_run_demo(struct exec_job *job)
{
    struct roped_call *call = &job->call;
    uint64_t start_ns = clock_now_ns();
    enum roped_status status = places_check_memory(job, &job->error);
    for (int i = 0; i < call->n_in && !status; i++)
        status =
            use_region(job, call->op->in[i].name, &job->in[i], &call->in[i]);
    for (int i = 0; i < call->n_out && !status; i++)
        status =
            use_region(job, call->op->out[i].name, &job->out[i], &call->out[i]);
    if (status)
        return status;
    demo_run(call);
    job->timing.kernel_ns = clock_now_ns() - start_ns;
    return places_check_memory(job, &job->error);
}
