// quotient.cuh - the row of a packet, without a division: what threads of kernels that have a
// packet each would spend most instructions on.
#pragma once

#include <limits.h>
#include <stdint.h>

constexpr int64_t kMostPackets = INT_MAX; // of a launch

// n / divisor by a multiplication, for n below 2^31 (Granlund and Montgomery 1994, figure 4.1).
struct divisor_of_index {
    uint32_t magic, shift;
};

static inline divisor_of_index index_divisor(int64_t divisor)
{
    uint32_t shift = 0;
    while ((int64_t)1 << shift < divisor)
        shift++;
    uint64_t over = ((uint64_t)1 << shift) - (uint64_t)divisor;
    return {(uint32_t)((over << 32) / (uint64_t)divisor + 1), shift};
}

__device__ __forceinline__ uint32_t quotient(uint32_t n, const divisor_of_index &by)
{
    return (__umulhi(n, by.magic) + n) >> by.shift;
}
