/*
 * no_device.h - a CUDA runtime without a device, in place of NVIDIA's, for what
 * libroped_cuda.a asks of one. Nothing is computed. Every launch is counted and
 * held to what an H200 (sm_90) can do, so that a call whose launch would fail
 * there fails here, whatever the size of its tensors: memory is addresses.
 */
#ifndef ROPED_TESTS_CALLS_NO_DEVICE_H
#define ROPED_TESTS_CALLS_NO_DEVICE_H

#include <stdint.h>

/*
 * Reads what each kernel has, from a line of the file for each:
 *     NAME REGISTERS SHARED_BYTES MOST_THREADS
 * as tests/gpu/launches.sh writes them: static shared memory with what the
 * system takes of a block's, and 0 where a kernel states no bound. Ends the
 * program with a line where one of the kernels is not among them.
 */
void no_device_begin(const char *file);

/* How many kernels there are, and how many of them were launched. */
int no_device_kernels(int *n_launched);

/* Writes "LAUNCHES NAME" of each kernel. */
void no_device_write(const char *file);

/* Addresses that nobody may read or write. */
unsigned char *no_device_addresses(uint64_t bytes);

#endif
