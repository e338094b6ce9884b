/*
 * ipc.c - device memory that another process has exported with
 * cudaIpcGetMemHandle.
 *
 * Handles come from clients, so no failure here says anything about the
 * health of the device: errors are made without the backend.
 */
#include "cuda/check.h"

#include <cuda.h>
#include <stdint.h>
#include <string.h>

_Static_assert(sizeof(cudaIpcMemHandle_t) == ROPED_FOREIGN_HANDLE_BYTES,
               "a handle is as long as clients send it");

typedef CUresult CUDAAPI address_range_fn(CUdeviceptr *base, size_t *bytes, CUdeviceptr address);

/* A function of the driver, which only a machine with a GPU has: the program does not link it. */
static cudaError_t find_address_range(address_range_fn **out)
{
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    void *function = NULL;
#if CUDART_VERSION >= 12050
    cudaError_t code = cudaGetDriverEntryPointByVersion("cuMemGetAddressRange", &function, 12000,
                                                        cudaEnableDefault, &found);
#else
    cudaError_t code =
        cudaGetDriverEntryPoint("cuMemGetAddressRange", &function, cudaEnableDefault, &found);
#endif
    if (code == cudaSuccess && (found != cudaDriverEntryPointSuccess || !function))
        code = cudaErrorSymbolNotFound;
    memcpy(out, &function, sizeof *out);
    return code;
}

/* Bytes from address to the end of its allocation. */
static cudaError_t bytes_behind(void *address, uint64_t *out)
{
    address_range_fn *address_range;
    CUdeviceptr base;
    size_t bytes;
    cudaError_t code = find_address_range(&address_range);
    if (code != cudaSuccess)
        return code;
    if (address_range(&base, &bytes, (CUdeviceptr)(uintptr_t)address) != CUDA_SUCCESS)
        return cudaErrorInvalidValue;
    *out = bytes - ((CUdeviceptr)(uintptr_t)address - base);
    return cudaSuccess;
}

enum roped_status roped_cuda_foreign_open(struct roped_backend *backend, const void *handle,
                                          void **out, uint64_t *bytes, struct roped_error *err)
{
    cudaIpcMemHandle_t copy;
    void *memory;
    memcpy(&copy, handle, sizeof copy);
    CHECK_RETURN(NULL, roped_cuda_use(backend), err);
    CHECK_RETURN(NULL, cudaIpcOpenMemHandle(&memory, copy, cudaIpcMemLazyEnablePeerAccess), err);
    cudaError_t code = bytes_behind(memory, bytes);
    if (code != cudaSuccess) {
        (void)cudaIpcCloseMemHandle(memory);
        return roped_cuda_fail(NULL, code, "cuMemGetAddressRange", err);
    }
    *out = memory;
    return ROPED_OK;
}

void roped_cuda_foreign_close(struct roped_backend *backend, void *memory)
{
    if (memory && roped_cuda_use(backend) == cudaSuccess)
        (void)cudaIpcCloseMemHandle(memory);
    (void)cudaGetLastError();
}
