/*
 * call_demo.c - a call of a demo model: on the host, also with tensors in
 * shared memory of clients.
 */
#include "http/call_demo.h"

#include "exec/placement.h"
#include "http/clock.h"
#include "wire/demo.h"

/* Points a tensor that is in a region there. */
static enum roped_status use_region(const struct placed *p,
                                    struct roped_error *err)
{
    const struct region *region = p->place->region;
    if (!region)
        return ROPED_OK;
    p->tensor->data = placement_region_data(p);
    if (!region_is_device(region))
        return ROPED_OK;
    return roped_fail(err, ROPED_INVALID,
                      "tensor '%s': region '%s' is in device memory, which "
                      "demo models do not use",
                      p->port->name, region_info(region)->name);
}

enum roped_status call_run_demo(struct exec_job *job)
{
    const struct placement *all = &job->placement;
    uint64_t start_ns = clock_now_ns();
    enum roped_status status = placement_check_memory(job, &job->error);
    for (int i = 0; i < all->n && !status; i++)
        status = use_region(&all->port[i], &job->error);
    if (status)
        return status;
    demo_run(&job->call);
    job->timing.kernel_ns = clock_now_ns() - start_ns;
    return placement_check_memory(job, &job->error);
}
