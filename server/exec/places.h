/*
 * places.h - where the tensors of a job are: which ones are in regions,
 * whether they may be, and what that makes of the job.
 */
#ifndef ROPED_EXEC_PLACES_H
#define ROPED_EXEC_PLACES_H

#include "exec/executor.h"

/*
 * Completes and checks the places of a resolved call. An updated input in a
 * region makes that the place of its output; each then has a reference.
 * ROPED_INVALID names tensor and region where
 *  - a tensor's bytes are not all inside its region, with the Triton phrase;
 *  - a tensor in device memory (or what is that on a GPU) does not start at a
 *    multiple of its element size;
 *  - what is written overlaps what else the call reads or writes, other than
 *    an output in the very place of the input whose memory it may share;
 *  - the output of an updated input is in another region or place than it;
 *  - tensors are in the memory of different devices.
 */
ROPED_MUST_CHECK enum roped_status places_check(struct exec_job *job,
                                                struct regions *regions,
                                                struct roped_error *err);

/*
 * Inputs whose values the host checks are copied out of their region when the
 * job runs, into job->values: is this one of them, where does the next one
 * start, how many bytes do all of them take?
 */
bool places_is_value(const struct exec_job *job, int input);
size_t places_value_stride(const struct roped_tensor *tensor);
uint64_t places_value_bytes(const struct exec_job *job);

/* Before the job uses its regions and after: is their memory still there? */
ROPED_MUST_CHECK enum roped_status
places_check_memory(const struct exec_job *job, struct roped_error *err);

/* Number of the device whose memory a checked job uses, or -1: any will do. */
int places_device(const struct exec_job *job);

/* Bytes that a job moves: an updated tensor in a region counts nothing, and a
 * task says itself. */
uint64_t places_bytes(const struct exec_job *job);

/* How long a job takes on its device, in bytes that the CPU backend moves
 * meanwhile. On a device that is not the host a byte of page-locked memory is
 * half of one, and a byte in a region of that device a 128th. The one place
 * that says so, with what was measured, is in places.c. */
uint64_t places_work(const struct exec_job *job, bool is_host);

#endif
