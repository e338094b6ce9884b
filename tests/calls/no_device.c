/*
 * no_device.c - see no_device.h. The limits are those of the CUDA C++
 * Programming Guide, "Compute Capabilities", for 9.0.
 */
#include "calls/no_device.h"

#include <cuda_runtime_api.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wmissing-prototypes"
#pragma GCC diagnostic ignored "-Wmissing-declarations"

enum {
    MULTIPROCESSORS = 132,
    CACHE_BYTES = 60 << 20,
    SHARED_BYTES = 228 << 10, /* of a multiprocessor, or of one block of it */
    UNASKED_BYTES = 49 << 10, /* of a block; both with the system's own */
    SYSTEM_BYTES = 1 << 10,
    REGISTERS = 64 << 10, /* of a multiprocessor */
    REGISTER_STEP = 8,    /* a thread's are a multiple of */
    MOST_THREADS = 1024,
    MOST_BLOCKS_YZ = 65535,
    MOST_OF_CLUSTER = 8,
    MOST_KERNELS = 8192,
    NAME_BYTES = 512
};

struct kernel {
    const void *host; /* what the launch names */
    const char *name;
    int n_registers, shared_bytes, most_threads;
    int dynamic_bytes; /* that were asked for */
    long n_launches;
};

static struct kernel kernels[MOST_KERNELS];
static int n_kernels;
static bool is_sorted;
static char fault[NAME_BYTES + 256]; /* what cudaGetErrorString says */

static int by_host(const void *a, const void *b)
{
    const char *x = ((const struct kernel *)a)->host;
    const char *y = ((const struct kernel *)b)->host;
    return x < y ? -1 : x > y;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct kernel *)a)->name,
                  ((const struct kernel *)b)->name);
}

static struct kernel *find(const void *host)
{
    const struct kernel key = {.host = host};
    struct kernel *kernel =
        bsearch(&key, kernels, (size_t)n_kernels, sizeof *kernels, by_host);
    if (!is_sorted || !kernel)
        abort();
    return kernel;
}

/* ------------------------------------------------------------ what is known */

/* Kernels of several objects may have one name, as static ones do. */
static void fill(const struct kernel *known)
{
    struct kernel *at =
        bsearch(known, kernels, (size_t)n_kernels, sizeof *kernels, by_name);
    if (!at)
        return;
    while (at > kernels && by_name(at - 1, known) == 0)
        at--;
    for (; at < kernels + n_kernels && by_name(at, known) == 0; at++) {
        at->n_registers = known->n_registers;
        at->shared_bytes = known->shared_bytes > SYSTEM_BYTES
                               ? known->shared_bytes
                               : SYSTEM_BYTES;
        at->most_threads = known->most_threads;
    }
}

void no_device_begin(const char *file)
{
    char name[NAME_BYTES];
    struct kernel known = {.name = name};
    FILE *lines = fopen(file, "r");
    qsort(kernels, (size_t)n_kernels, sizeof *kernels, by_name);
    while (lines && fscanf(lines, "%511s %d %d %d", name, &known.n_registers,
                           &known.shared_bytes, &known.most_threads) == 4)
        fill(&known);
    if (lines)
        fclose(lines);
    for (int i = 0; i < n_kernels; i++)
        if (kernels[i].n_registers == 0) {
            fprintf(stderr, "%s: nothing of %s\n", file, kernels[i].name);
            exit(EXIT_FAILURE);
        }
    qsort(kernels, (size_t)n_kernels, sizeof *kernels, by_host);
    is_sorted = true;
}

int no_device_kernels(int *n_launched)
{
    *n_launched = 0;
    for (int i = 0; i < n_kernels; i++)
        *n_launched += kernels[i].n_launches > 0;
    return n_kernels;
}

void no_device_write(const char *file)
{
    FILE *lines = fopen(file, "w");
    if (!lines) {
        perror(file);
        exit(EXIT_FAILURE);
    }
    for (int i = 0; i < n_kernels; i++)
        fprintf(lines, "%ld %s\n", kernels[i].n_launches, kernels[i].name);
    fclose(lines);
}

unsigned char *no_device_addresses(uint64_t bytes)
{
    void *start = mmap(NULL, bytes ? bytes : 1, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED)
        abort();
    return start;
}

/* ---------------------------------------------------------------- launches */

static cudaError_t refuse(const struct kernel *kernel, const char *what,
                          long found, long most)
{
    snprintf(fault, sizeof fault, "%s: %ld, expected at most %ld: %s", what,
             found, most, kernel->name);
    return cudaErrorInvalidConfiguration;
}

static cudaError_t check_block(const struct kernel *kernel, dim3 block,
                               long dynamic)
{
    const long threads = (long)block.x * block.y * block.z;
    const long most =
        kernel->most_threads ? kernel->most_threads : MOST_THREADS;
    const long of_thread = (kernel->n_registers + REGISTER_STEP - 1) /
                           REGISTER_STEP * REGISTER_STEP;
    const long registers = of_thread * ((threads + 31) / 32 * 32);
    const long shared = dynamic + kernel->shared_bytes;
    if (threads == 0 || threads > most || block.z > 64)
        return refuse(kernel, "threads of a block", threads, most);
    if (registers > REGISTERS)
        return refuse(kernel, "registers of a block", registers, REGISTERS);
    if (shared > UNASKED_BYTES && dynamic > kernel->dynamic_bytes)
        return refuse(kernel, "dynamic shared memory", dynamic,
                      kernel->dynamic_bytes);
    return cudaSuccess;
}

static cudaError_t check(const void *host, dim3 grid, dim3 block,
                         size_t dynamic, long of_cluster)
{
    struct kernel *kernel = find(host);
    kernel->n_launches++;
    if (grid.x == 0 || grid.x > 0x7fffffff)
        return refuse(kernel, "grid.x", grid.x, 0x7fffffff);
    if (grid.y == 0 || grid.y > MOST_BLOCKS_YZ)
        return refuse(kernel, "grid.y", grid.y, MOST_BLOCKS_YZ);
    if (grid.z == 0 || grid.z > MOST_BLOCKS_YZ)
        return refuse(kernel, "grid.z", grid.z, MOST_BLOCKS_YZ);
    if (of_cluster > MOST_OF_CLUSTER)
        return refuse(kernel, "blocks of a cluster", of_cluster,
                      MOST_OF_CLUSTER);
    return check_block(kernel, block, (long)dynamic);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config,
                                const void *host, void **args)
{
    long of_cluster = 1;
    for (unsigned i = 0; i < config->numAttrs; i++)
        if (config->attrs[i].id == cudaLaunchAttributeClusterDimension)
            of_cluster = (long)config->attrs[i].val.clusterDim.x *
                         config->attrs[i].val.clusterDim.y *
                         config->attrs[i].val.clusterDim.z;
    return check(host, config->gridDim, config->blockDim,
                 config->dynamicSmemBytes, of_cluster);
}

cudaError_t cudaFuncSetAttribute(const void *host, enum cudaFuncAttribute which,
                                 int value)
{
    struct kernel *kernel = find(host);
    if (which != cudaFuncAttributeMaxDynamicSharedMemorySize)
        return cudaSuccess;
    if (value + kernel->shared_bytes > SHARED_BYTES)
        return refuse(kernel, "shared memory of a block",
                      value + kernel->shared_bytes, SHARED_BYTES);
    kernel->dynamic_bytes = value;
    return cudaSuccess;
}

/* <<<...>>> is three calls. */
static struct {
    dim3 grid, block;
    size_t dynamic;
} pushed;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t dynamic,
                                     void *stream)
{
    pushed.grid = grid;
    pushed.block = block;
    pushed.dynamic = dynamic;
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *dynamic,
                                       void *stream)
{
    *grid = pushed.grid;
    *block = pushed.block;
    *dynamic = pushed.dynamic;
    return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host)
{
    memcpy(kernel, &host, sizeof host);
    return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block,
                               void **args, size_t dynamic, cudaStream_t stream)
{
    return check(kernel, grid, block, dynamic, 1);
}

/* ------------------------------------------------------------- registration */

void **__cudaRegisterFatBinary(void *binary)
{
    static void *handle;
    return &handle;
}

void __cudaRegisterFatBinaryEnd(void **handle)
{
}

void __cudaUnregisterFatBinary(void **handle)
{
}

void __cudaRegisterVar(void **handle, char *host, char *device,
                       const char *name, int is_extern, size_t bytes,
                       int is_constant, int is_global)
{
}

void __cudaRegisterFunction(void **handle, const char *host, char *device,
                            const char *name, int most_threads, uint3 *thread,
                            uint3 *block, dim3 *block_dim, dim3 *grid_dim,
                            int *warp_bytes)
{
    if (n_kernels == MOST_KERNELS)
        abort();
    kernels[n_kernels++] = (struct kernel){.host = host, .name = name};
}

/* --------------------------------------------------------------- the device */

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 1;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *found, int device)
{
    memset(found, 0, sizeof *found);
    snprintf(found->name, sizeof found->name, "no H200");
    found->major = 9;
    found->multiProcessorCount = MULTIPROCESSORS;
    found->l2CacheSize = CACHE_BYTES;
    found->sharedMemPerMultiprocessor = SHARED_BYTES;
    found->unifiedAddressing = found->canMapHostMemory = 1;
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **out, size_t bytes)
{
    *out = no_device_addresses(bytes);
    return cudaSuccess;
}

const char *cudaGetErrorName(cudaError_t code)
{
    return "no device";
}

const char *cudaGetErrorString(cudaError_t code)
{
    return fault;
}

/* What nothing here has to do, or fails where a test should ask for it. */
#define WORKS(name, ...)                                                       \
    cudaError_t name(__VA_ARGS__)                                              \
    {                                                                          \
        return cudaSuccess;                                                    \
    }
#define FAILS(name, ...)                                                       \
    cudaError_t name(__VA_ARGS__)                                              \
    {                                                                          \
        return cudaErrorNotSupported;                                          \
    }
WORKS(cudaDriverGetVersion, int *version)
WORKS(cudaFree, void *memory)
WORKS(cudaFuncGetAttributes, struct cudaFuncAttributes *out, const void *host)
WORKS(cudaGetLastError, void)
WORKS(cudaMemcpy2DAsync, void *to, size_t to_pitch, const void *from,
      size_t from_pitch, size_t width, size_t height, enum cudaMemcpyKind kind,
      cudaStream_t stream)
WORKS(cudaMemcpyAsync, void *to, const void *from, size_t bytes,
      enum cudaMemcpyKind kind, cudaStream_t stream)
WORKS(cudaMemset2DAsync, void *to, size_t pitch, int value, size_t width,
      size_t height, cudaStream_t stream)
WORKS(cudaMemsetAsync, void *to, int value, size_t bytes, cudaStream_t stream)
WORKS(cudaSetDevice, int device)
WORKS(cudaStreamCreateWithFlags, cudaStream_t *stream, unsigned flags)
WORKS(cudaStreamDestroy, cudaStream_t stream)
WORKS(cudaStreamQuery, cudaStream_t stream)
WORKS(cudaStreamSynchronize, cudaStream_t stream)
WORKS(cudaThreadExchangeStreamCaptureMode, enum cudaStreamCaptureMode *mode)
WORKS(cudaEventCreate, cudaEvent_t *event)
WORKS(cudaEventDestroy, cudaEvent_t event)
FAILS(cudaDeviceCanAccessPeer, int *can, int device, int peer)
FAILS(cudaDeviceEnablePeerAccess, int peer, unsigned flags)
FAILS(cudaDeviceGetAttribute, int *value, enum cudaDeviceAttr which, int device)
FAILS(cudaEventElapsedTime, float *ms, cudaEvent_t start, cudaEvent_t end)
FAILS(cudaEventRecord, cudaEvent_t event, cudaStream_t stream)
FAILS(cudaFreeHost, void *memory)
FAILS(cudaGetDriverEntryPointByVersion, const char *name, void **function,
      unsigned version, unsigned long long flags,
      enum cudaDriverEntryPointQueryResult *found)
FAILS(cudaGraphDestroy, cudaGraph_t graph)
FAILS(cudaGraphExecDestroy, cudaGraphExec_t graph)
FAILS(cudaGraphInstantiate, cudaGraphExec_t *out, cudaGraph_t graph,
      unsigned long long flags)
FAILS(cudaGraphLaunch, cudaGraphExec_t graph, cudaStream_t stream)
FAILS(cudaGraphUpload, cudaGraphExec_t graph, cudaStream_t stream)
FAILS(cudaHostAlloc, void **out, size_t bytes, unsigned flags)
FAILS(cudaHostRegister, void *memory, size_t bytes, unsigned flags)
FAILS(cudaHostUnregister, void *memory)
FAILS(cudaIpcCloseMemHandle, void *memory)
FAILS(cudaIpcOpenMemHandle, void **out, cudaIpcMemHandle_t handle,
      unsigned flags)
FAILS(cudaMemGetInfo, size_t *left, size_t *all)
FAILS(cudaMemcpyPeerAsync, void *to, int to_device, const void *from,
      int from_device, size_t bytes, cudaStream_t stream)
FAILS(cudaStreamBeginCapture, cudaStream_t stream,
      enum cudaStreamCaptureMode mode)
FAILS(cudaStreamEndCapture, cudaStream_t stream, cudaGraph_t *out)
