/*
 * pool.h - the threads of the CPU backend: a loop over rows, cut into pieces
 * that any thread may take. One loop owns the threads at a time; a loop that
 * finds them busy runs on its caller's thread alone, so concurrent calls never
 * wait for each other.
 */
#ifndef ROPED_CPU_POOL_H
#define ROPED_CPU_POOL_H

#include <roped/status.h>

#include <stdint.h>

struct pool;

/* Works on rows [begin, end). */
typedef void pool_loop_fn(void *context, int64_t begin, int64_t end);

/* Starts n_threads - 1 workers: the caller of a loop is the last thread. */
ROPED_MUST_CHECK enum roped_status pool_open(int n_threads, struct pool **out,
                                             struct roped_error *err);
void pool_close(struct pool *pool);
int pool_threads(const struct pool *pool);

/*
 * Runs loop over [0, n), each piece at least rows_per_piece rows; returns
 * when all of it is done. bytes is what the whole loop moves: small loops are
 * not worth waking anybody.
 */
void pool_for(struct pool *pool, int64_t n, int64_t bytes, pool_loop_fn *loop,
              void *context);

#endif
