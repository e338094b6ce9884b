/*
 * fault_crash.cu - an error that costs a process its GPUs: a kernel that writes
 * where no memory is.
 */
#include "cuda/cuda_internal.h"

namespace
{
__global__ void write_nowhere(int *where)
{
    *where = 1;
}
} // namespace

extern "C" void fault_crash(struct roped_queue *queue)
{
    write_nowhere<<<1, 1, 0, queue->stream>>>(reinterpret_cast<int *>(4096));
}
