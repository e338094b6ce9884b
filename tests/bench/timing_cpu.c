/*
 * timing_cpu.c - timing on the CPU backend, and the threaded copy that is its
 * limit: by the same number of threads, cut in pieces in the same way.
 */
#include "bench/timing_internal.h"

#include "cpu/machine.h"
#include "cpu/pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum { PIECE_BYTES = 16 << 10 };

/* How many threads share the seconds of the clock; 0: wall clock. */
static int cpu_time_threads;

void timing_cpu_use_cpu_time(int n_threads)
{
    cpu_time_threads = n_threads;
}

static double clock_seconds(void)
{
    struct timespec now;
    clock_gettime(cpu_time_threads ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC,
                  &now);
    double seconds = (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
    return cpu_time_threads ? seconds / cpu_time_threads : seconds;
}

struct pool *timing_cpu_pool_new(int n_threads)
{
    struct roped_error err = {.text = ""};
    struct pool *pool;
    if (pool_open(n_threads, &pool, &err)) {
        fprintf(stderr, "bench_ops: %s\n", err.text);
        exit(EXIT_FAILURE);
    }
    return pool;
}

void timing_cpu_pool_free(struct pool *pool)
{
    pool_close(pool);
}

struct copy_loop {
    unsigned char *to;
    const unsigned char *from;
    size_t bytes;
};

static size_t part_of(const struct copy_loop *copy, int64_t begin, int64_t end)
{
    size_t last = (size_t)end * PIECE_BYTES;
    return (last < copy->bytes ? last : copy->bytes) -
           (size_t)begin * PIECE_BYTES;
}

static void copy_pieces(void *context, int64_t begin, int64_t end)
{
    const struct copy_loop *copy = context;
    size_t at = (size_t)begin * PIECE_BYTES;
    memcpy(copy->to + at, copy->from + at, part_of(copy, begin, end));
}

/* memcpy streams too, but from sizes on that differ between its versions. */
static void stream_pieces(void *context, int64_t begin, int64_t end)
{
    const struct copy_loop *copy = context;
    size_t at = (size_t)begin * PIECE_BYTES;
    size_t bytes = part_of(copy, begin, end), i = 0;
#ifdef __SSE2__
    for (; i + 64 <= bytes; i += 64) {
        const __m128i *from = (const void *)(copy->from + at + i);
        __m128i *to = (void *)(copy->to + at + i);
        for (int j = 0; j < 4; j++)
            _mm_stream_si128(to + j, _mm_loadu_si128(from + j));
    }
    _mm_sfence();
#endif
    memcpy(copy->to + at + i, copy->from + at + i, bytes - i);
}

void timing_cpu_copy(struct pool *pool, void *to, const void *from,
                     size_t bytes, bool is_streamed)
{
    struct copy_loop copy = {to, from, bytes};
    pool_for(pool, (int64_t)((bytes + PIECE_BYTES - 1) / PIECE_BYTES),
             2 * (int64_t)bytes, is_streamed ? stream_pieces : copy_pieces,
             &copy);
}

size_t timing_cpu_cache_bytes(void)
{
    return (size_t)machine_cache_bytes();
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void timing_median(double *sample, int n, double *median, double *spread)
{
    qsort(sample, (size_t)n, sizeof *sample, compare_doubles);
    *median = sample[n / 2];
    *spread = (sample[3 * n / 4] - sample[n / 4]) / *median;
}

enum roped_status timing_cpu_measure(struct roped_queue *queue,
                                     timing_work_fn *work, void *context,
                                     int n_sets, int n_launches,
                                     double *seconds, double *spread,
                                     struct roped_error *err)
{
    double sample[TIMING_REPLAYS];
    enum roped_status status = ROPED_OK;
    int set = 0;
    for (int i = -2; i < TIMING_REPLAYS && !status; i++) {
        double start = clock_seconds();
        for (int j = 0; j < n_launches && !status; j++) {
            status = work(context, set, queue, err);
            set = (set + 1) % n_sets;
        }
        if (i >= 0)
            sample[i] = (clock_seconds() - start) / n_launches;
    }
    if (!status)
        timing_median(sample, TIMING_REPLAYS, seconds, spread);
    return status;
}

enum way { WORK, PLAIN, STREAMED, N_WAYS };

/* Seconds of one execution, over n_launches of them from set number set on. */
static enum roped_status time_once(enum way way, struct roped_queue *queue,
                                   timing_work_fn *work, void *context,
                                   struct pool *pool,
                                   const struct timing_copy *copy, int n_sets,
                                   int n_launches, int set, double *seconds,
                                   struct roped_error *err)
{
    enum roped_status status = ROPED_OK;
    double start = clock_seconds();
    for (int i = 0; i < n_launches && !status; i++, set++) {
        int at = set % n_sets;
        if (way == WORK)
            status = work(context, at, queue, err);
        else
            timing_cpu_copy(pool, copy->to[at], copy->from[at], copy->bytes,
                            way == STREAMED);
    }
    *seconds = (clock_seconds() - start) / n_launches;
    return status;
}

enum roped_status timing_cpu_measure_pair(
    struct roped_queue *queue, timing_work_fn *work, void *context,
    struct pool *pool, const struct timing_copy *copy, int n_sets,
    int n_launches, struct timing_pair *out, struct roped_error *err)
{
    double sample[N_WAYS][TIMING_REPLAYS], share[N_WAYS][TIMING_REPLAYS];
    double median[N_WAYS], spread[N_WAYS], ignored;
    enum roped_status status = ROPED_OK;
    for (int i = -2; i < TIMING_REPLAYS && !status; i++)
        for (enum way way = WORK; way < N_WAYS && !status; way++) {
            double seconds;
            status = time_once(way, queue, work, context, pool, copy, n_sets,
                               n_launches, (i + 2) * n_launches, &seconds, err);
            if (i >= 0) {
                sample[way][i] = seconds;
                share[way][i] = seconds / sample[WORK][i];
            }
        }
    if (status)
        return status;
    for (enum way way = WORK; way < N_WAYS; way++)
        timing_median(sample[way], TIMING_REPLAYS, &median[way], &spread[way]);
    enum way best = median[PLAIN] < median[STREAMED] ? PLAIN : STREAMED;
    *out = (struct timing_pair){median[WORK], spread[WORK], median[best],
                                spread[best], 0};
    timing_median(share[best], TIMING_REPLAYS, &out->share, &ignored);
    return ROPED_OK;
}
