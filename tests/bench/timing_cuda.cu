// timing_cuda.cu - timing by graph replays, and the one-pass copy that is the
// limit of every operator: 16-byte loads, four in flight per thread.
#include "bench/timing_internal.h"

#include <cuda_runtime.h>

#include <stdio.h>
#include <stdlib.h>

static enum roped_status fail(cudaError_t code, const char *what,
                              struct roped_error *err)
{
    cudaGetLastError();
    return roped_fail(err, ROPED_DEVICE, "%s: %s", what,
                      cudaGetErrorName(code));
}

#define TRY(call)                                                              \
    do {                                                                       \
        cudaError_t code_ = (call);                                            \
        if (code_ != cudaSuccess)                                              \
            return fail(code_, #call, err);                                    \
    } while (0)

// Every block copies tiles of 4 * blockDim vectors.
__global__ void copy_kernel(uint4 *__restrict__ to,
                            const uint4 *__restrict__ from, size_t n)
{
    size_t tile = (size_t)blockIdx.x * (4 * blockDim.x) + threadIdx.x;
    uint4 value[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (tile + i * blockDim.x < n)
            value[i] = from[tile + i * blockDim.x];
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (tile + i * blockDim.x < n)
            to[tile + i * blockDim.x] = value[i];
}

void *timing_cuda_stream_new(void)
{
    cudaStream_t stream;
    if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) !=
        cudaSuccess) {
        fprintf(stderr, "bench_ops: no CUDA stream\n");
        exit(EXIT_FAILURE);
    }
    return stream;
}

void timing_cuda_stream_free(void *stream)
{
    cudaStreamDestroy((cudaStream_t)stream);
}

size_t timing_cuda_cache_bytes(void)
{
    int bytes = 0;
    cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, 0);
    return (size_t)bytes;
}

enum roped_status timing_cuda_copy(void *to, const void *from, size_t bytes,
                                   void *stream, struct roped_error *err)
{
    size_t n = (bytes + 15) / 16;
    // few vectors: small blocks, so that every multiprocessor has one
    unsigned threads = n < 132 * 1024 ? 128 : 256;
    unsigned blocks = (unsigned)((n + 4 * threads - 1) / (4 * threads));
    if (n < 132 * 128 * 4) {
        threads = 64;
        blocks = (unsigned)((n + 4 * threads - 1) / (4 * threads));
    }
    copy_kernel<<<blocks, threads, 0, (cudaStream_t)stream>>>(
        (uint4 *)to, (const uint4 *)from, n);
    TRY(cudaGetLastError());
    return ROPED_OK;
}

static enum roped_status replay(cudaGraphExec_t graph, cudaStream_t stream,
                                int n_launches, double *sample,
                                struct roped_error *err)
{
    cudaEvent_t start, end;
    TRY(cudaEventCreate(&start));
    TRY(cudaEventCreate(&end));
    for (int i = -3; i < TIMING_REPLAYS; i++) {
        float milliseconds = 0;
        TRY(cudaEventRecord(start, stream));
        TRY(cudaGraphLaunch(graph, stream));
        TRY(cudaEventRecord(end, stream));
        TRY(cudaStreamSynchronize(stream));
        TRY(cudaEventElapsedTime(&milliseconds, start, end));
        if (i >= 0)
            sample[i] = (double)milliseconds * 1e-3 / n_launches;
    }
    cudaEventDestroy(start);
    cudaEventDestroy(end);
    return ROPED_OK;
}

enum roped_status timing_cuda_measure(struct roped_queue *queue, void *stream,
                                      timing_work_fn *work, void *context,
                                      int n_sets, int n_launches,
                                      double *seconds, double *spread,
                                      struct roped_error *err)
{
    cudaStream_t on = (cudaStream_t)stream;
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    double sample[TIMING_REPLAYS];
    enum roped_status status =
        work(context, 0, queue, err); // loads the module outside the capture
    if (status)
        return status;
    TRY(cudaStreamSynchronize(on));
    TRY(cudaStreamBeginCapture(on, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < n_launches && !status; i++)
        status = work(context, i % n_sets, queue, err);
    cudaError_t code = cudaStreamEndCapture(on, &graph);
    if (status)
        return status;
    TRY(code);
    TRY(cudaGraphInstantiate(&executable, graph, 0));
    status = replay(executable, on, n_launches, sample, err);
    if (!status)
        timing_median(sample, TIMING_REPLAYS, seconds, spread);
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
    return status;
}
