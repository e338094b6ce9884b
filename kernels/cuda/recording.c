/*
 * recording.c - launches that repeat, as graphs of CUDA. The launches of one
 * queue are a chain, whose programmatic edges are recorded with it.
 *
 * The capture is one of this thread: others may allocate meanwhile. An error in
 * it breaks the capture and nothing else, which its end says.
 */
#include "cuda/check.h"

#include <stdlib.h>

struct roped_recording {
    cudaGraphExec_t graph;
};

enum roped_status roped_cuda_record(struct roped_queue *queue, struct roped_error *err)
{
    CHECK_RETURN(queue->backend, roped_cuda_use(queue->backend), err);
    CHECK_RETURN(queue->backend,
                 cudaStreamBeginCapture(queue->stream, cudaStreamCaptureModeThreadLocal), err);
    return ROPED_OK;
}

static enum roped_status instantiate(struct roped_queue *queue, cudaGraph_t graph,
                                     struct roped_recording **out, struct roped_error *err)
{
    struct roped_recording *recording = calloc(1, sizeof *recording);
    if (!recording)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for a recording");
    cudaError_t code = cudaGraphInstantiate(&recording->graph, graph, 0);
    if (code == cudaSuccess) /* or the first replay would do it */
        code = cudaGraphUpload(recording->graph, queue->stream);
    if (code == cudaSuccess) {
        *out = recording;
        return ROPED_OK;
    }
    enum roped_status status = roped_cuda_fail(queue->backend, code, "cudaGraphInstantiate", err);
    roped_cuda_recording_free(queue, recording);
    return status;
}

enum roped_status roped_cuda_record_end(struct roped_queue *queue, struct roped_recording **out,
                                        struct roped_error *err)
{
    cudaGraph_t graph = NULL;
    CHECK_RETURN(queue->backend, roped_cuda_use(queue->backend), err);
    cudaError_t code = cudaStreamEndCapture(queue->stream, &graph);
    enum roped_status status = ROPED_OK;
    if (code != cudaSuccess)
        status = roped_cuda_fail(queue->backend, code, "cudaStreamEndCapture", err);
    else if (out)
        status = instantiate(queue, graph, out, err);
    if (graph)
        (void)cudaGraphDestroy(graph);
    (void)cudaGetLastError();
    return status;
}

enum roped_status roped_cuda_replay(struct roped_queue *queue, struct roped_recording *recording,
                                    struct roped_error *err)
{
    CHECK_RETURN(queue->backend, roped_cuda_use(queue->backend), err);
    CHECK_RETURN(queue->backend, cudaGraphLaunch(recording->graph, queue->stream), err);
    return ROPED_OK;
}

void roped_cuda_recording_free(struct roped_queue *queue, struct roped_recording *recording)
{
    if (recording->graph && roped_cuda_use(queue->backend) == cudaSuccess)
        (void)cudaGraphExecDestroy(recording->graph);
    (void)cudaGetLastError();
    free(recording);
}
