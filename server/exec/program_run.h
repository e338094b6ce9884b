/*
 * program_run.h - one run of a program: its chain, the regions and tables that
 * it uses, and where the caller has its inputs and outputs.
 *
 *     program_run_init    in host memory of the caller's
 *     ...                 the caller fills in regions, tables and tensors
 *     program_run_check   after roped_chain_resolve: may they be where they
 * are? program_run_measure what the job costs, and the device that it needs
 *     lane_program        runs it (lane_program.h)
 *
 * PLACES. What the document calls "@name" is in the memory of a device, so that
 * every step finds it there. Memory of the host is for inputs and outputs: they
 * are copied before the first step and after the last. All memory of devices
 * that one program uses is one device's.
 */
#ifndef ROPED_EXEC_PROGRAM_RUN_H
#define ROPED_EXEC_PROGRAM_RUN_H

#include "exec/placement.h"
#include "exec/programs.h"
#include "exec/resident.h"
#include "exec/tables.h"

struct exec_job;

struct program_run {
    struct program *program; /* not owned */
    struct roped_chain *chain;
    struct exec_place in[ROPED_PROGRAM_INPUTS], out[ROPED_PROGRAM_OUTPUTS];
    void *in_data[ROPED_PROGRAM_INPUTS]; /* without a region: in host memory */
    void *out_data[ROPED_PROGRAM_OUTPUTS];
    void *values;         /* program_run_value_bytes of host memory */
    uint64_t *step_ns;    /* where to say how long each step took; or NULL */
    bool is_pinned;       /* in_data, out_data, values: in pinned blocks */
    int device;           /* that has the regions, or REGION_ANY_DEVICE */
    uint64_t value_bytes; /* of index values in regions */
    uint64_t host_bytes;  /* that are copied, or read over the link */

    /* what its places were before, not held: whose, and when */
    const struct tenant *known_by;
    uint64_t known_at; /* regions_generation; 0: not known */

    /* behind it; not owned */
    struct region **place;          /* of each place */
    struct region **known;          /* the same, of the run before */
    struct table_entry **table;     /* of each table */
    struct resident_table **rotary; /* of each step, while it runs */
};

/* Bytes of a run, and a new one in them, without regions. */
size_t program_run_bytes(const struct program *program);
struct program_run *program_run_init(void *memory, struct program *program);

/* A run that has ended, for another one of its program: as a new one, but that
 * its chain knows what it was resolved to. */
void program_run_again(struct program_run *run);

/* Takes the tenant's regions of all places. What it took where it failed
 * program_run_fini gives back. */
ROPED_MUST_CHECK enum roped_status
program_run_take_places(struct program_run *run, struct regions *regions,
                        const struct tenant *tenant, struct roped_error *err);

/* Gives back what it holds of regions and tables. */
void program_run_fini(struct program_run *run, struct regions *regions,
                      struct tables *tables);

/* Tells the chain of a region: an input's, a place's or an output's. */
struct roped_area program_run_area(const struct exec_place *place);

/*
 * ROPED_INVALID names tensor and region where an input's or output's bytes are
 * not all inside its region, or it does not begin at a multiple of its element
 * size; where a place is in memory of the host; or where the regions are in the
 * memory of different devices. Outputs that are in the memory of an updated
 * input need none.
 */
ROPED_MUST_CHECK enum roped_status program_run_check(struct program_run *run,
                                                     struct roped_error *err);

/* Does output i stay in a region? Else it is sent. */
bool program_run_keeps(const struct program_run *run, int output);

/* As placement_measure, and placement_check_memory. */
void program_run_measure(struct exec_job *job, bool is_host);
ROPED_MUST_CHECK enum roped_status
program_run_check_memory(const struct program_run *run,
                         struct roped_error *err);

#endif
