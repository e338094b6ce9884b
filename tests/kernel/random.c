/*
 * random.c - repeatable random numbers and tensors for tests.
 */
#include "kernel/random.h"

#include <roped/numeric.h>

#include <stdio.h>
#include <stdlib.h>

static uint64_t other_cases; /* 0: those that every run has */

__attribute__((constructor)) static void read_seed(void)
{
    const char *seed = getenv("ROPED_TEST_SEED");
    if (!seed)
        return;
    other_cases = strtoull(seed, NULL, 10) * 0xD1342543DE82EF95u;
    printf("ROPED_TEST_SEED=%s\n", seed);
}

uint64_t random_bits(struct random_source *source)
{
    uint64_t z = (source->state += 0x9E3779B97F4A7C15u) ^ other_cases;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

int64_t random_int(struct random_source *source, int64_t low, int64_t high)
{
    uint64_t span = (uint64_t)(high - low) + 1;
    return low + (int64_t)(random_bits(source) % span);
}

int64_t random_magnitude(struct random_source *source, int bits)
{
    const int64_t power = (int64_t)1 << random_int(source, 0, bits);
    return random_int(source, power, 2 * power - 1);
}

int64_t random_pick(struct random_source *source, const int64_t *values, int n)
{
    return values[random_int(source, 0, n - 1)];
}

bool random_once_in(struct random_source *source, int n)
{
    return random_int(source, 1, n) == 1;
}

/* Standard normal, by the sum of twelve. */
static double random_normal(struct random_source *source)
{
    double sum = -6;
    for (int i = 0; i < 12; i++)
        sum += (double)(random_bits(source) >> 11) * 0x1p-53;
    return sum;
}

static void store(const struct roped_tensor *tensor, int64_t i, float value)
{
    if (tensor->dtype == ROPED_F32)
        ((float *)tensor->data)[i] = value;
    else if (tensor->dtype == ROPED_F16)
        ((uint16_t *)tensor->data)[i] = roped_float_to_f16(value);
    else
        ((uint16_t *)tensor->data)[i] = roped_float_to_bf16(value);
}

void random_fill(struct random_source *source,
                 const struct roped_tensor *tensor, double scale, bool specials)
{
    static const float special[] = {-0.0f, 0.0f, 0x1p-133f, -0x1p-20f, 0x1p-9f};
    int64_t n = roped_tensor_elements(tensor);
    for (int64_t i = 0; i < n; i++) {
        float value = (float)(random_normal(source) * scale);
        if (specials && random_once_in(source, 50))
            value = special[random_int(source, 0, 4)];
        store(tensor, i, value);
    }
}
