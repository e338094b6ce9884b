/*
 * cuda_stream.h - calls on a CUDA stream of the caller: for programs that use
 * libroped_kernels in their own process, with their own device memory.
 */
#ifndef ROPED_CUDA_STREAM_H
#define ROPED_CUDA_STREAM_H

#include <roped/backend.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * A queue over stream (a cudaStream_t of the backend's device, which must
 * outlive the queue; NULL is the legacy default stream). launch enqueues and
 * returns, also while the stream is being captured into a graph; the launches
 * of a queue share its memory for partial results, so a graph must be replayed
 * before the queue is closed and not beside other launches of it. Close it with
 * queue_close, which leaves the stream alone. Only where the CUDA backend is
 * built in.
 */
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_cuda_queue_wrap(struct roped_backend *backend, void *stream,
                      struct roped_queue **out, struct roped_error *err);

#ifdef __cplusplus
}
#endif

#endif
