/*
 * timing_cpu.c - timing on the CPU backend, and the threaded copy that is its
 * limit: the same number of threads, each with one contiguous part.
 */
#include "bench/timing_internal.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_THREADS = 256, SMALL_BYTES = 256 << 10 };

double timing_clock_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

struct part {
    const unsigned char *from;
    unsigned char *to;
    size_t bytes;
};

static void *copy_part(void *context)
{
    const struct part *part = context;
    memcpy(part->to, part->from, part->bytes);
    return NULL;
}

void timing_cpu_copy(void *to, const void *from, size_t bytes, int n_threads)
{
    pthread_t thread[MAX_THREADS];
    struct part part[MAX_THREADS];
    int n = n_threads < MAX_THREADS ? n_threads : MAX_THREADS;
    int n_started = 0;
    if (bytes < SMALL_BYTES || n < 1)
        n = 1;
    size_t step = (bytes / (size_t)n + 63) / 64 * 64;
    for (int i = n - 1; i >= 0; i--) { /* the first part is ours */
        size_t at = (size_t)i * step < bytes ? (size_t)i * step : bytes;
        part[i].from = (const unsigned char *)from + at;
        part[i].to = (unsigned char *)to + at;
        part[i].bytes = i == n - 1 || bytes - at < step ? bytes - at : step;
        if (i > 0 &&
            pthread_create(&thread[n_started], NULL, copy_part, &part[i]) == 0)
            n_started++;
        else
            copy_part(&part[i]);
    }
    for (int i = 0; i < n_started; i++)
        pthread_join(thread[i], NULL);
}

size_t timing_cpu_cache_bytes(void)
{
    long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
    return bytes > 0 ? (size_t)bytes : (size_t)32 << 20;
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
        double start = timing_clock_seconds();
        for (int j = 0; j < n_launches && !status; j++) {
            status = work(context, set, queue, err);
            set = (set + 1) % n_sets;
        }
        if (i >= 0)
            sample[i] = (timing_clock_seconds() - start) / n_launches;
    }
    if (!status)
        timing_median(sample, TIMING_REPLAYS, seconds, spread);
    return status;
}
