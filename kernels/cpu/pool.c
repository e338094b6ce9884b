/*
 * pool.c - worker threads that share one loop.
 *
 * DESIGN. 'owner' is held by the loop in progress. It publishes the loop under
 * 'lock', adds one to 'generation' and wakes the workers; each takes pieces
 * from the atomic 'next' until none is left. The owner takes part, then waits
 * until no worker is inside. A worker that wakes late finds no piece and goes
 * back to sleep; 'n_inside' keeps the loop's context alive until it has left.
 */
#include "cpu/pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

/* Waking a thread costs about what moving this many bytes does. */
enum { MIN_PARALLEL_BYTES = 256 << 10, PIECES_PER_THREAD = 4 };

struct pool {
    int n_workers;
    pthread_t *worker;
    pthread_mutex_t owner;

    pthread_mutex_t lock; /* guards the following */
    pthread_cond_t work, left;
    uint64_t generation;
    int n_inside;
    bool is_closing;
    pool_loop_fn *loop; /* NULL: nothing to join */
    void *context;
    int64_t n, piece;

    atomic_int_least64_t next;
};

static void take_pieces(struct pool *pool, pool_loop_fn *loop, void *context,
                        int64_t n, int64_t piece)
{
    for (;;) {
        int64_t begin = atomic_fetch_add(&pool->next, piece);
        if (begin >= n)
            return;
        loop(context, begin, begin + piece < n ? begin + piece : n);
    }
}

static void *run_worker(void *context)
{
    struct pool *pool = context;
    uint64_t seen = 0;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (!pool->is_closing && (pool->generation == seen || !pool->loop)) {
            seen = pool->generation;
            pthread_cond_wait(&pool->work, &pool->lock);
        }
        if (pool->is_closing)
            break;
        seen = pool->generation;
        pool_loop_fn *loop = pool->loop;
        void *loop_context = pool->context;
        int64_t n = pool->n, piece = pool->piece;
        pool->n_inside++;
        pthread_mutex_unlock(&pool->lock);
        take_pieces(pool, loop, loop_context, n, piece);
        pthread_mutex_lock(&pool->lock);
        if (--pool->n_inside == 0)
            pthread_cond_signal(&pool->left);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

enum roped_status pool_open(int n_threads, struct pool **out,
                            struct roped_error *err)
{
    struct pool *pool = calloc(1, sizeof *pool);
    pthread_t *worker = calloc((size_t)n_threads, sizeof *worker);
    if (!pool || !worker) {
        free(pool);
        free(worker);
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for %d threads",
                          n_threads);
    }
    pool->worker = worker;
    pthread_mutex_init(&pool->owner, NULL);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    pthread_cond_init(&pool->left, NULL);
    /* fewer threads than asked for is slower, not wrong */
    for (int i = 0; i < n_threads - 1; i++)
        if (pthread_create(&worker[pool->n_workers], NULL, run_worker, pool) ==
            0)
            pool->n_workers++;
    *out = pool;
    return ROPED_OK;
}

void pool_close(struct pool *pool)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->is_closing = true;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < pool->n_workers; i++)
        pthread_join(pool->worker[i], NULL);
    pthread_cond_destroy(&pool->work);
    pthread_cond_destroy(&pool->left);
    pthread_mutex_destroy(&pool->lock);
    pthread_mutex_destroy(&pool->owner);
    free(pool->worker);
    free(pool);
}

int pool_threads(const struct pool *pool)
{
    return pool->n_workers + 1;
}

void pool_for(struct pool *pool, int64_t n, int64_t bytes, pool_loop_fn *loop,
              void *context)
{
    if (n == 0)
        return;
    if (bytes < MIN_PARALLEL_BYTES || pool->n_workers == 0 || n == 1 ||
        pthread_mutex_trylock(&pool->owner) != 0) {
        loop(context, 0, n);
        return;
    }
    int64_t pieces = (int64_t)pool_threads(pool) * PIECES_PER_THREAD;
    int64_t piece = (n + pieces - 1) / pieces;
    pthread_mutex_lock(&pool->lock);
    pool->loop = loop;
    pool->context = context;
    pool->n = n;
    pool->piece = piece;
    atomic_store(&pool->next, 0);
    pool->generation++;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    take_pieces(pool, loop, context, n, piece);
    pthread_mutex_lock(&pool->lock);
    pool->loop = NULL; /* late wakers stay out */
    while (pool->n_inside > 0)
        pthread_cond_wait(&pool->left, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
    pthread_mutex_unlock(&pool->owner);
}
