// wide_codes.cuh - launch shapes of a few wide rows that become codes, by four threads for each
// vector (norm_codes_any.cuh). Host code.
#pragma once

#include "cuda/staged_launch.cuh"

// Of a thread, at most: rows of 28,672 elements of float32 have twelve.
template <typename T>
constexpr int kMostWideVectors = sizeof(T) == 4 ? 12 : kQuarterVectors;

// Of a row, at least: rows of 16 bits, which have half as many, are wide from 16,392 elements on.
template <typename T>
constexpr int64_t kLeastWideVectors = kMostVectors / (sizeof(T) == 4 ? 1 : 2) + 1;

// Blocks of a row, or 0. Of four, each of which may take a multiprocessor, clusters find room at
// once while three quarters of the multiprocessors are enough; 32 rows would take two turns.
template <typename K>
static int wide_parts_of_codes(const struct norm_args *args, const struct roped_queue *queue)
{
    const int64_t vectors = vectors_of<K>(args);
    if (vectors < kLeastWideVectors<typename K::T> || args->addend ||
        4 * 4 * args->n_rows > 3 * (int64_t)queue->n_multiprocessors)
        return 0;
    return quarter_parts<K>(args, wide_threads(vectors), 2 * kQuarterThreads, queue,
                            kMostWideVectors<typename K::T>);
}
