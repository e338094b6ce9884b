/*
 * random.h - repeatable random numbers for tests: one 64-bit state, the
 * splitmix64 step. Same seed, same cases, on every machine: with
 * ROPED_TEST_SEED=N in the environment, which is printed, each has others.
 */
#ifndef ROPED_TESTS_RANDOM_H
#define ROPED_TESTS_RANDOM_H

#include <roped/tensor.h>

#include <stdint.h>

struct random_source {
    uint64_t state;
};

uint64_t random_bits(struct random_source *source);

/* Uniform integer in [low, high]. */
int64_t random_int(struct random_source *source, int64_t low, int64_t high);

/* Below 2^(bits + 1), every power of two as often; not 0. */
int64_t random_magnitude(struct random_source *source, int bits);

/* One of n values. */
int64_t random_pick(struct random_source *source, const int64_t *values, int n);

/* True once in n. */
bool random_once_in(struct random_source *source, int n);

/*
 * Fills a tensor's data with normal values times scale in its own type.
 * With specials, about one value in 50 is -0, a subnormal or very small.
 */
void random_fill(struct random_source *source,
                 const struct roped_tensor *tensor, double scale,
                 bool specials);

#endif
