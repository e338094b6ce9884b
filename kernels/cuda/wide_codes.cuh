// wide_codes.cuh - launch shapes of a few wide rows of float32 that become codes, by four threads
// for each vector (norm_codes_any.cuh). Host code.
#pragma once

#include "cuda/staged_launch.cuh"

// Of a thread, at most: rows of 28,672 elements have twelve.
constexpr int kWideCodeVectors = 12;

// Blocks of a row, or 0. Of four, each of which may take a multiprocessor, clusters find room at
// once while three quarters of the multiprocessors are enough; 32 rows would take two turns.
template <typename K>
static int wide_parts_of_codes(const struct norm_args *args, const struct roped_queue *queue)
{
    const int64_t vectors = vectors_of<K>(args);
    if (sizeof(typename K::T) != 4 || vectors <= kMostVectors || args->addend ||
        4 * 4 * args->n_rows > 3 * (int64_t)queue->n_multiprocessors)
        return 0;
    return quarter_parts<K>(args, wide_threads(vectors), 2 * kQuarterThreads, queue,
                            kWideCodeVectors);
}
