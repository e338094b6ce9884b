/*
 * cpu_internal.h - what the files of the CPU backend share: the open backend,
 * and the angle row of a token.
 */
#ifndef ROPED_CPU_INTERNAL_H
#define ROPED_CPU_INTERNAL_H

#include "cpu/pool.h"
#include "cpu/rows.h"
#include "ops/rope.h"

#include <roped/backend.h>

struct roped_backend {
    struct pool *pool;
    const struct cpu_rows *rows;
    int64_t large_bytes; /* of a call: cpu_is_large */
};

struct roped_queue {
    struct roped_backend *backend;
    double mark_seconds[ROPED_MAX_MARKS];
    void *scratch; /* what cpu_scratch gave last; NULL until asked for */
    size_t scratch_bytes;
};

/*
 * Memory at a multiple of 256, whose contents are undefined; cpu_free gives it
 * back, NULL is ignored. From 256 KiB up the system has it back then, but for
 * the last few below 2 MiB, which cpu_free_kept gives back. From 2 MiB up it
 * begins with a huge page, where there are any.
 */
ROPED_MUST_CHECK enum roped_status cpu_alloc(size_t bytes, void **out,
                                             struct roped_error *err);
void cpu_free(void *memory);
void cpu_free_kept(void);

/* One launch function per operator: roped_cpu_rope, ... */
#define ROPED_OP(id) extern roped_launch_fn roped_cpu_##id;
#include <roped/ops.def>
#undef ROPED_OP

/*
 * Memory for a launch to keep partial results in, the queue's own: valid until
 * the next call for the same queue. It grows and stays until queue_close.
 */
ROPED_MUST_CHECK enum roped_status cpu_scratch(struct roped_queue *queue,
                                               size_t bytes, void **out,
                                               struct roped_error *err);

enum roped_status cpu_build_table(struct roped_queue *queue,
                                  const struct roped_angles *angles,
                                  int64_t first_row, int64_t rows,
                                  float *device, struct roped_error *err);

/* Where a loop over tokens finds cos and sin, pair block by pair block. */
struct cpu_angles {
    struct rope_rotary rotary; /* bound */
    struct roped_angles derived;
    const float *table; /* or NULL */
    const struct cpu_rows *rows;
};

struct cpu_angles cpu_angles_of(const struct roped_call *call,
                                const struct rope_rotary *planned,
                                const struct roped_queue *queue);

/* Fills c and s with the angles of at most CPU_BLOCK pairs of a token, sign and
 * attention factor inside. */
void cpu_angles_fill(const struct cpu_angles *angles, int64_t token,
                     const struct cpu_pairs *pairs);

/* Is a token one that stays as it is? */
bool cpu_is_padding(const struct cpu_angles *angles, int64_t token);

/* Will the bytes of a call have left the cache before anybody reads them? */
bool cpu_is_large(const struct roped_queue *queue, int64_t bytes);

/*
 * Runs loop over [0, n) on the backend's threads, and makes what it streams
 * visible. bytes is what the whole loop moves.
 */
void cpu_for(struct roped_queue *queue, int64_t bytes, int64_t n,
             pool_loop_fn *loop, void *context);

/* Into how many segments n rows are cut, where each has memory of its own in
 * the scratch: enough for the threads to share, at most n. */
int64_t cpu_segments(const struct roped_queue *queue, int64_t n);

static inline int64_t cpu_smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Elements from a token of so many to the next. */
static inline int64_t cpu_stride(const struct roped_tensor *tensor,
                                 int64_t token)
{
    return tensor->stride ? tensor->stride : token;
}

/* Zeros behind the n floats of a block, up to a multiple of CPU_LANES. */
static inline void cpu_pad(float *x, int64_t n)
{
    for (; n % CPU_LANES > 0; n++)
        x[n] = 0;
}

/* n / by, rounded up. */
static inline int64_t cpu_ceil_div(int64_t n, int64_t by)
{
    return (n + by - 1) / by;
}

/* An element of so many bytes; NULL of a tensor without memory, which has
 * none. */
static inline void *cpu_at(void *base, int64_t element, size_t bytes)
{
    return base ? (unsigned char *)base + (size_t)element * bytes : NULL;
}

#endif
