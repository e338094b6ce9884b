/*
 * placement.h - where the tensors of a call are.
 *
 * The caller says which are in regions (struct exec_place). From that a list of
 * the call's tensors is made, once, inputs first (struct placement); rules,
 * the cost of the job, index values, copies and launch walk it. What is not
 * known before a device runs the call is filled in there: where each tensor is
 * meanwhile.
 *
 *     placement_check    (for callers) completes and checks what is in regions
 *     placement_measure  the job's cost, and the device that it needs
 *     placement_settle   where each tensor is on a device
 *     placement_enter    the call's data pointers are the device's ...
 *     placement_leave    ... and the caller's again
 */
#ifndef ROPED_EXEC_PLACEMENT_H
#define ROPED_EXEC_PLACEMENT_H

#include "exec/regions.h"

#include <roped/op.h>

struct device;
struct exec_job;

/* Where a tensor of a call is; region NULL: in host memory, at its data. */
struct exec_place {
    struct region *region; /* not owned */
    uint64_t offset;
    int64_t stride; /* of an output, as the caller said it; 0: it did not */
};

/* Where the device has a tensor. The first two are where the caller has it:
 * nothing is copied. */
enum where {
    IN_HOST,   /* host memory that the device uses: a CPU, or page-locked */
    IN_REGION, /* a region in the device's memory */
    IN_INBOX,  /* an inbox, with the body, uploaded while that arrived */
    IN_ARENA,  /* the lane's arena */
    IN_OUTPUT  /* an updated input: wherever its output is */
};

/* One tensor of a call. */
struct placed {
    const struct roped_port *port;
    struct roped_tensor *tensor; /* of the call: data is where it is now */
    struct exec_place *place;    /* of the job */
    struct placed *pair; /* of an updated input: its output; of that: the
                            input; else NULL */
    uint64_t bytes;      /* of its elements */
    uint64_t span; /* from the first to behind the last: more, with a stride */
    bool is_output;
    bool is_value; /* in a region, and the host checks its values */

    /* by placement_settle */
    enum where where;
    bool is_elsewhere; /* an input in a region of another device */
    bool is_copied;    /* there before the launch, or back after it */
    void *home;        /* where the caller has it */
    void *address;     /* where the device has it, by placement_enter */
};

/* All tensors that a call has, and outputs that it does not make though they
 * have a region. */
struct placement {
    int n_in, n; /* 0: not made yet */
    bool has_regions;
    uint64_t value_bytes; /* host memory that index values in regions need */

    /* by placement_settle */
    bool uses_inbox, has_copies, has_elsewhere;
    uint64_t arena_bytes; /* what the call needs of the lane's arena */
    uint64_t aux_bytes;   /* of these, at their end: the call's aux */

    struct placed port[ROPED_MAX_INPUTS + ROPED_MAX_OUTPUTS];
};

/*
 * Completes and checks the places of a resolved call. An updated input in a
 * region makes that the place of its output; each then has a reference. An
 * output in a region has the stride that the caller said, or that of the input
 * whose place it takes. ROPED_INVALID names tensor and region where
 *  - a tensor's bytes are not all inside its region, with the Triton phrase;
 *  - a tensor in device memory (or what is that on a GPU) does not start at a
 *    multiple of its element size;
 *  - what is written overlaps what else the call reads or writes, other than
 *    an output in the very place of the input whose memory it may share, or
 *    tokens of one stride that lie between each other;
 *  - an output that takes its input's place has another stride;
 *  - the output of an updated input is in another region or place than it;
 *  - the call writes in the memory of different devices.
 */
ROPED_MUST_CHECK enum roped_status placement_check(struct exec_job *job,
                                                   struct regions *regions,
                                                   struct roped_error *err);

/* Makes the list, of a resolved call. */
void placement_make(struct exec_job *job);

/* Inputs whose values the host checks are copied out of their region when the
 * job runs, into job->values: how many bytes of that does one take? */
size_t placement_value_stride(const struct placed *input);

/* Before the job uses its regions and after: is their memory still there? */
ROPED_MUST_CHECK enum roped_status
placement_check_memory(const struct exec_job *job, struct roped_error *err);

/* Where a tensor in a region is; and is that the memory of a device, and not of
 * this one? */
void *placement_region_data(const struct placed *p);
bool placement_is_elsewhere(const struct placed *p, int device);

/*
 * Fills bytes, work_bytes and device of a job: what it moves (an updated tensor
 * in a region counts nothing, and a task says itself), how long that takes, in
 * bytes that the CPU backend moves meanwhile, and the device where it runs: the
 * one whose memory it writes, or else reads most of. On a device that is not
 * the host a byte of page-locked memory, or of another device's, is half of
 * one, and a byte in a region of that device a 128th. The one place that says
 * so, with what was measured, is in placement.c.
 */
void placement_measure(struct exec_job *job, bool is_host);

/* The work of a device that is not the host: so many bytes over its link, and
 * in its own memory. */
uint64_t placement_work_bytes(uint64_t host_bytes, uint64_t device_bytes,
                              bool is_pinned);

/* Says where the tensors are while the call, with so many bytes of aux, runs on
 * a device: an input in a region of another is copied to the arena. Their data
 * is where the caller has them, and read if the host checks it. */
void placement_settle(struct exec_job *job, const struct device *device,
                      uint64_t aux_bytes);

/* Points the call at the device's memory, arena included, and back. */
void placement_enter(struct exec_job *job, unsigned char *arena);
void placement_leave(struct exec_job *job);

#endif
