/*
 * runner.h - runs one resolved call on a backend the way the daemon does:
 * plan, place in device memory, upload, launch, download; with what a test
 * wants on top: chosen misalignment, guard bands around every tensor and
 * between its tokens, poisoned outputs, in-place outputs, a resident table.
 * Tensors of the host stay packed, whatever strides they have on the device.
 */
#ifndef ROPED_TESTS_RUNNER_H
#define ROPED_TESTS_RUNNER_H

#include "kernel/random.h"

#include <roped/backend.h>

struct runner {
    const struct roped_backend_api *api;
    struct roped_backend *backend;
    struct roped_queue *queue;
};

struct runner_options {
    int misalign_elements; /* device addresses are 256-aligned plus this */
    bool in_place;         /* outputs share the memory of in_place inputs */
    bool use_table;        /* build the table that the plan asks for */
    bool updates_apart;    /* outputs of updated inputs are other memory */
    bool is_tight; /* memory ends with an input: memcheck finds what is read
                      behind it */

    /* (optional) A call that can be cut by rows runs in slices of lengths from
     * here. */
    struct random_source *cuts;

    /* Tensors that may have a stride get one, so many elements above the least:
     * of tensors that do not share memory each has more. */
    bool has_strides;
    int gap;
    bool is_fused;      /* inputs of one type are slices of the same rows */
    bool packs_outputs; /* outputs of their own have no stride */
};

/*
 * Opens a backend by name, "cpu" or "cuda"; returns false with a line on
 * stdout where it is not there (the test then exits 77).
 */
bool runner_open(struct runner *runner, const char *backend);
void runner_close(struct runner *runner);

/* Inputs and outputs of a call of many rows: on a GPU above four times the L2
 * of an H200, beyond which there are kernels of their own. */
int64_t runner_many_bytes(const struct runner *runner);

/* The operator that the argument behind the backend names, NULL where there is
 * none; ends the process where no operator has that name. */
const char *runner_operator(int argc, char **argv);

/* main of a test whose argument is the backend, cpu where there is none. */
int runner_main(struct runner *runner, int argc, char **argv);

/*
 * Plans and runs call: in[].data are host tensors, out[] get host memory
 * (runner_free_outputs). aux stays allocated, so that the call's angles can
 * be read. ROPED_INTERNAL where a guard band was written over or an input
 * that is not in place was changed. An updated input keeps what it was before
 * the call; its output is what became of it.
 */
enum roped_status runner_run(struct runner *runner, struct roped_call *call,
                             const struct runner_options *options,
                             struct roped_error *err);

/* The options in words. */
const char *runner_options_text(const struct runner_options *options,
                                char *text, size_t bytes);

/* Frees out[].data and aux. */
void runner_free_outputs(struct roped_call *call);

/* malloc that a test cannot go on without. */
void *runner_alloc(size_t bytes);

#endif
