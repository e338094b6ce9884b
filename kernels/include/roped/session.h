/*
 * session.h - operators through functions of plain arguments, for programs in
 * languages that would rather not fill in C structs. What it does, op.h and
 * backend.h do; C programs can call those. In libroped_kernels.so only.
 *
 *     roped_session_open    a device and one stream of it
 *     roped_work_new        one call of one operator
 *     roped_work_param,     what it works on, in any order: device memory of
 *     roped_work_input      the caller (host memory on the CPU backend)
 *     roped_work_prepare    checks everything; shapes of outputs are known now
 *     roped_work_output     where each output goes
 *     roped_work_launch     enqueues the call; as often as wanted, also on
 *                           other memory: roped_work_move_input, _output
 *     roped_work_launch_on  prepare, outputs and launch in one call, for
 *                           languages in which each call costs
 *     roped_session_wait    until everything enqueued is done
 *
 * And the same for a whole program (program.h), which a run of it needs:
 *
 *     roped_run_new         a run of a program
 *     roped_run_param, _input, _place
 *     roped_run_prepare, _output, _launch, _free
 *
 * THREADS: one thread at a time may use a session, its works and its runs;
 * roped_work_free may be called from any thread.
 * MEMORY: tensors stay the caller's and must live as long as launches use them.
 * Sessions and works are freed by their own functions, works first.
 */
#ifndef ROPED_SESSION_H
#define ROPED_SESSION_H

#include <roped/status.h>

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct roped_session;
struct roped_work;
struct roped_run;
struct roped_program;

/*
 * Opens device number device of a backend, "cpu" or "cuda". stream: for
 * CUDA a cudaStream_t of that device which outlives the session (NULL: the
 * legacy default stream), on which everything is enqueued; for the CPU NULL.
 * The CPU's threads are as many as OMP_NUM_THREADS says, else one per core.
 * ROPED_UNSUPPORTED where the library was built without the backend,
 * ROPED_DEVICE where there is no usable device.
 */
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_session_open(const char *backend, int device, void *stream,
                   struct roped_session **out, struct roped_error *err);

/* Graphs that captured launches of the session must not be replayed after. */
ROPED_API void roped_session_close(struct roped_session *session);

ROPED_API ROPED_MUST_CHECK enum roped_status
roped_session_wait(struct roped_session *session, struct roped_error *err);

/* A call of the operator of this name; ROPED_NO_OPERATOR. */
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_work_new(struct roped_session *session, const char *op,
               struct roped_work **out, struct roped_error *err);

/* NULL is fine. Launches of the work must have finished, and graphs that
 * captured one must not be replayed after. */
ROPED_API void roped_work_free(struct roped_work *work);

/* Sets a parameter from text, as in a query string: "theta", "500000". */
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_work_param(struct roped_work *work, const char *name, const char *text,
                 struct roped_error *err);

/*
 * Binds an input: packed, row-major, dims[rank] elements of the type that
 * safetensors calls dtype ("F32", "BF16", "I64", ...), aligned to its element
 * size. Names, types and shapes are those of `ropectl describe OP`.
 */
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_work_input(struct roped_work *work, const char *name, const char *dtype,
                 int rank, const int64_t *dims, void *data,
                 struct roped_error *err);

/*
 * Says that a bound input's tokens (rows of a norm) are stride elements apart,
 * as slices of wider rows are; 0: packed. What is in a token stays packed.
 * Where the operator wants it packed, prepare refuses it.
 */
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_work_input_stride(struct roped_work *work, const char *name,
                        int64_t stride, struct roped_error *err);

/*
 * Gives a bound input other memory of the same type, shape and stride. A
 * prepared work stays prepared, so that one serves many layers with the same
 * positions; after an index tensor has moved it must be prepared again.
 */
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_work_move_input(struct roped_work *work, const char *name, void *data,
                      struct roped_error *err);

/*
 * Checks the call and computes what its launches need: frequencies, and a
 * cos/sin table in device memory where the operator wants one. The values of
 * index tensors (positions, slots, ...) are checked here, on the host: where
 * data is device memory, they are copied from it first, after what the stream
 * already holds. It waits for the stream, so it cannot be part of a capture.
 * Launches trust these values: who changes an index tensor prepares again, and
 * sets the outputs again.
 */
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_work_prepare(struct roped_work *work, struct roped_error *err);

/*
 * Type and shape of an output of a prepared work. Returns its rank, -1 where
 * the call does not make that output or is not prepared. dtype (static memory)
 * may be NULL; dims has room for 8.
 */
ROPED_API int roped_work_output_shape(const struct roped_work *work,
                                      const char *name, const char **dtype,
                                      int64_t *dims);

/*
 * Where an output goes, after prepare: memory of its own, or that of the input
 * that the operator says it may share. An updated cache needs none: it is
 * written where it is.
 */
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_work_output(struct roped_work *work, const char *name, void *data,
                  struct roped_error *err);

/*
 * Sets the stride of an output that has memory of its own, at any time. An
 * output in the memory of its input has the input's stride.
 */
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_work_output_stride(struct roped_work *work, const char *name,
                         int64_t stride, struct roped_error *err);

/* Enqueues a prepared work, all of whose outputs have a place: memory of its
 * own, or, where the operator says so (in_place), the very memory of an input;
 * ROPED_INVALID names what an output overlaps otherwise. Allowed while
 * the session's stream is captured into a graph. The CPU is done on return. */
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_work_launch(struct roped_work *work, struct roped_error *err);

/*
 * From now on launches trust what index tensors hold, so these may change and
 * move without preparing again, and nothing waits for the stream. A value out
 * of range is the caller's fault, as in any CUDA library. Angles are then
 * computed, not taken from a table. It has no effect on calls that need the
 * values: those with factor lists, and those whose frequencies depend on the
 * largest position (scaling dynamic and longrope).
 */
ROPED_API void roped_work_trust(struct roped_work *work);

/*
 * Launches on other memory: data has a pointer for each input and then each
 * output, in the order of `ropectl describe`, NULL for those that the call does
 * not have and for updated outputs. Prepares the work if it has not been
 * prepared, and again at each call unless index tensors are trusted. Makes no
 * cos/sin table unless angles=table asks for one.
 */
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_work_launch_on(struct roped_work *work, void *const *data,
                     struct roped_error *err);

/* ---------------------------------------------------------------- programs */

/* A run of a program that was ended, and outlives it. */
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_run_new(struct roped_session *session,
              const struct roped_program *program, struct roped_run **out,
              struct roped_error *err);

/* As roped_work_free. */
ROPED_API void roped_run_free(struct roped_run *run);

/* A parameter of the program. All that a run is given comes before prepare, and
 * is given once. */
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_run_param(struct roped_run *run, const char *name, const char *text,
                struct roped_error *err);

/* An input of the program, as roped_work_input; stride as in
 * roped_work_input_stride, 0: packed. One that a step updates is updated here.
 */
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_run_input(struct roped_run *run, const char *name, const char *dtype,
                int rank, const int64_t *dims, int64_t stride, void *data,
                struct roped_error *err);

/* As roped_work_move_input. */
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_run_move_input(struct roped_run *run, const char *name, void *data,
                     struct roped_error *err);

/* The memory that steps call "@name", and how many bytes it has; dtype NULL:
 * the steps say what is in it. */
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_run_place(struct roped_run *run, const char *name, const char *dtype,
                int rank, const int64_t *dims, void *data, uint64_t bytes,
                struct roped_error *err);

/* As roped_work_trust; before prepare. */
ROPED_API void roped_run_trust(struct roped_run *run);

/* As roped_work_prepare, for every step: waits for the stream, and is no part
 * of a capture. Named tables are the daemon's; a run has none. */
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_run_prepare(struct roped_run *run, struct roped_error *err);

/* As roped_work_output_shape, for an output of the program. */
ROPED_API int roped_run_output_shape(const struct roped_run *run,
                                     const char *name, const char **dtype,
                                     int64_t *dims);

/* Where an output of the program goes, after prepare. One that is an updated
 * input is there, and needs none. */
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_run_output(struct roped_run *run, const char *name, void *data,
                 struct roped_error *err);

/* Enqueues every step, as often as wanted; also in a capture. */
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_run_launch(struct roped_run *run, struct roped_error *err);

#ifdef __cplusplus
}
#endif

#endif
