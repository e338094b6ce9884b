/*
 * cuda_internal.h - what the files of the CUDA backend share: the queue that a
 * launch gets, and how a CUDA error becomes a status. Read by C and CUDA C++.
 */
#ifndef ROPED_CUDA_INTERNAL_H
#define ROPED_CUDA_INTERNAL_H

#include <roped/backend.h>

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Owner thread only, but for the backend's health, which is atomic. */
struct roped_queue {
    struct roped_backend *backend;
    int device;
    int n_multiprocessors; /* launch sizes follow it */
    int l2_bytes;
    int shared_bytes; /* of a multiprocessor */
    int can_overlap;  /* bool: has programmatic dependent launch */
    cudaStream_t stream;
    int owns_stream;                   /* bool: false for a caller's stream */
    cudaEvent_t mark[ROPED_MAX_MARKS]; /* made at first use */
    void *scratch;                     /* device memory, made at first use */
};

/*
 * Turns a failed CUDA call into a status and a sentence that starts with what,
 * clears the thread's last error, and marks the backend (which may be NULL)
 * unhealthy where only a new process can go on.
 */
enum roped_status roped_cuda_fail(struct roped_backend *backend, cudaError_t code, const char *what,
                                  struct roped_error *err);

/* Makes the backend's device the calling thread's. */
cudaError_t roped_cuda_use(struct roped_backend *backend);

/* ipc.c: foreign_open and foreign_close of the backend. */
enum roped_status roped_cuda_foreign_open(struct roped_backend *backend, const void *handle,
                                          void **out, uint64_t *bytes, struct roped_error *err);
void roped_cuda_foreign_close(struct roped_backend *backend, void *memory);

/* recording.c: the same of the backend. */
enum roped_status roped_cuda_record(struct roped_queue *queue, struct roped_error *err);
enum roped_status roped_cuda_record_end(struct roped_queue *queue, struct roped_recording **out,
                                        struct roped_error *err);
enum roped_status roped_cuda_replay(struct roped_queue *queue, struct roped_recording *recording,
                                    struct roped_error *err);
void roped_cuda_recording_free(struct roped_queue *queue, struct roped_recording *recording);

/* One launch function per operator: roped_cuda_rope, ... */
#define ROPED_OP(id) extern roped_launch_fn roped_cuda_##id;
#include <roped/ops.def>
#undef ROPED_OP

/*
 * Device memory in which the blocks of one launch hand partial results on, and
 * counters that every launch finds at zero and leaves so. Both are the queue's
 * own and stay where they are until queue_close, so launches may be captured
 * into graphs; those of one queue share them. Launches are cut so that they
 * never need more than there is, which is enough for two sums of 18,432 columns
 * by each multiprocessor of an H100.
 */
enum { ROPED_CUDA_SCRATCH_BYTES = 20 << 20, ROPED_CUDA_COUNTERS = 16 << 10 };
enum roped_status roped_cuda_scratch(struct roped_queue *queue, int64_t bytes, int64_t n_counters,
                                     float **out, uint32_t **counters, struct roped_error *err);

enum roped_status roped_cuda_build_table(struct roped_queue *queue,
                                         const struct roped_angles *angles, int64_t first_row,
                                         int64_t rows, float *device, struct roped_error *err);

/* cudaSuccess where this build has code that the current device runs. */
cudaError_t roped_cuda_probe(void);

#ifdef __cplusplus
}
#endif

#endif
