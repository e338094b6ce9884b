// shifted.cuh - vectors of 16 bytes at any address of an element. One is read as the two aligned
// packets of 16 bytes that cover it, and shifted into place: the second packet is the first of the
// next lane's vector, and comes from a cache. It is written as an aligned packet, too, of which the
// lane before has the other part; what no neighbour has is written by elements.
//
// Nothing is read before the aligned 16 bytes that a tensor's first element lies in, nor behind its
// last element: a vector that the end of its row or of its tensor cuts is read by elements.
#pragma once

#include "cuda/device/vector.cuh"

#include <type_traits>

// Where the last whole packet of 16 bytes ends of a tensor of so many bytes.
__host__ __device__ static inline const char *whole_end(const void *from, int64_t bytes)
{
    uintptr_t end = (uintptr_t)from + (uintptr_t)bytes;
    return reinterpret_cast<const char *>(end & ~(uintptr_t)15);
}

// Zeros where it is not wanted.
__device__ __forceinline__ uint4 load_16_if(bool is_wanted, const void *from)
{
    uint4 raw = make_uint4(0, 0, 0, 0);
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.s32 p, %5, 0;\n\t"
                 "@p ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n\t}"
                 : "+r"(raw.x), "+r"(raw.y), "+r"(raw.z), "+r"(raw.w)
                 : "l"(__cvta_generic_to_global(from)), "r"((int)is_wanted));
    return raw;
}

// So many bytes at from, two at a time; zeros behind them. Out of line: few vectors are loaded so.
static __device__ __noinline__ uint4 load_pieces(const char *from, int bytes)
{
    uint32_t word[4] = {};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        uint16_t half = 0;
        if (2 * i < bytes)
            asm volatile("ld.global.u16 %0, [%1];"
                         : "=h"(half)
                         : "l"(__cvta_generic_to_global(from + 2 * i)));
        word[i / 2] |= (uint32_t)half << (i % 2 * 16);
    }
    return make_uint4(word[0], word[1], word[2], word[3]);
}

// Units first to last - 1 of the vector at from; zeros for the others. Out of line, as above.
template <int kUnit>
__device__ __noinline__ uint4 load_part(const char *from, int first, int last)
{
    uint32_t word[4] = {};
#pragma unroll
    for (int i = 0; i < 16 / kUnit; i++) {
        uint32_t unit = 0;
        if (i >= first && i < last) {
            const auto at = __cvta_generic_to_global(from + i * kUnit);
            if constexpr (kUnit == 4)
                asm volatile("ld.global.u32 %0, [%1];" : "=r"(unit) : "l"(at));
            else
                asm volatile("ld.global.u16 %0, [%1];" : "=r"(unit) : "l"(at));
        }
        word[i * kUnit / 4] |= unit << (i * kUnit % 4 * 8);
    }
    return make_uint4(word[0], word[1], word[2], word[3]);
}

// Stores them.
template <int kUnit>
__device__ __noinline__ void store_part(char *to, int first, int last, uint4 raw)
{
    using unit = std::conditional_t<kUnit == 4, uint32_t, uint16_t>;
    const uint32_t word[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 16 / kUnit; i++)
        if (i >= first && i < last)
            reinterpret_cast<unit *>(to)[i] = (unit)(word[i * kUnit / 4] >> (i * kUnit % 4 * 8));
}

// The 16 bytes from byte off of packet a on, to which b is the next; units of kUnit (2 or 4) bytes.
template <int kUnit>
__device__ __forceinline__ uint4 shift_packets(const uint4 &a, const uint4 &b, int off)
{
    bool by_8 = off & 8, by_4 = off & 4;
    uint32_t far[6] = {by_8 ? a.z : a.x, by_8 ? a.w : a.y, by_8 ? b.x : a.z,
                       by_8 ? b.y : a.w, by_8 ? b.z : b.x, by_8 ? b.w : b.y};
    uint32_t near[5], word[4];
#pragma unroll
    for (int i = 0; i < 5; i++)
        near[i] = by_4 ? far[i + 1] : far[i];
#pragma unroll
    for (int i = 0; i < 4; i++)
        word[i] = kUnit == 4 ? near[i] : __funnelshift_r(near[i], near[i + 1], off * 8 & 16);
    return make_uint4(word[0], word[1], word[2], word[3]);
}

// A vector of elements of kUnit (2 or 4) bytes, of which so many bytes are wanted: 16, or those
// before the end of a row; none where that is 0 or below. end: whole_end of its tensor.
template <int kUnit>
struct shifted_vector {
    const char *from;
    int bytes;
    bool is_plain; // it is whole, and in whole packets
    uint4 first, second;

    __device__ __forceinline__ void start(const void *at, int n_bytes, const char *end)
    {
        from = static_cast<const char *>(at);
        bytes = n_bytes;
        is_plain = bytes >= 16 && from + 16 <= end;
        int off = (int)((uintptr_t)from & 15);
        first = load_16_if(is_plain, from - off);
        second = load_16_if(is_plain && off > 0, from - off + 16);
    }
    // Once its packets are there; zeros behind what is wanted.
    __device__ __forceinline__ uint4 finish() const
    {
        uint4 vector = shift_packets<kUnit>(first, second, (int)((uintptr_t)from & 15));
        if (!is_plain)
            vector = load_pieces(from, bytes);
        return vector;
    }
};

// Zeros behind the first n units of a vector.
template <int kUnit, int kWords>
__device__ __forceinline__ void keep_units(uint32_t (&word)[kWords], int n)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int units = n - i * 4 / kUnit; // of the word and behind it
        if (kUnit == 2 && units == 1)
            word[i] &= 0xFFFF;
        word[i] = units > 0 ? word[i] : 0;
    }
}

// A vector from byte at of packets in shared memory on, of which n units count: 16 bytes if it is
// whole. By words: neighbours' are no further apart than the banks have time for.
template <int kUnit>
__device__ __forceinline__ uint4 get_staged(const uint4 *stage, int at, int n, bool is_whole)
{
    const uint32_t *from = reinterpret_cast<const uint32_t *>(stage) + at / 4;
    uint32_t word[5] = {from[0], from[1], from[2], from[3]};
    if constexpr (kUnit == 2) {
        word[4] = from[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            word[i] = __funnelshift_r(word[i], word[i + 1], 8 * (at & 2));
    }
    if (!is_whole)
        keep_units<kUnit>(word, n);
    return make_uint4(word[0], word[1], word[2], word[3]);
}

// Words, a power of two of them, that are turned by off bytes: byte j is at (j + off) % 4 kWords.
template <int kUnit, int kWords>
__device__ __forceinline__ void turn_words(const uint32_t (&word)[kWords], int off,
                                           uint32_t (&turned)[kWords])
{
    uint32_t part[kWords];
    memcpy(part, word, sizeof part);
#pragma unroll
    for (int by = kWords / 2; by > 0; by /= 2) {
        uint32_t before[kWords];
        memcpy(before, part, sizeof before);
#pragma unroll
        for (int i = 0; i < kWords; i++)
            part[i] = off & 4 * by ? before[(i + kWords - by) % kWords] : before[i];
    }
#pragma unroll
    for (int i = 0; i < kWords; i++)
        turned[i] = kUnit == 4
                        ? part[i]
                        : __funnelshift_l(part[(i + kWords - 1) % kWords], part[i], 8 * (off & 3));
}

// Words of a packet, in one access.
template <int kWords>
__device__ __forceinline__ void store_words(char *to, const uint32_t (&word)[kWords])
{
    if constexpr (kWords == 4)
        *reinterpret_cast<uint4 *>(to) = make_uint4(word[0], word[1], word[2], word[3]);
    else if constexpr (kWords == 2)
        *reinterpret_cast<uint2 *>(to) = make_uint2(word[0], word[1]);
    else
        *reinterpret_cast<uint32_t *>(to) = word[0];
}

// Stores the first n_units of the units of kVecs vectors, each of which is one, two or four words;
// none where that is 0 or below. All lanes of a warp take part. has_left: the lane before has the
// vectors before, whole; has_right: the lane behind has those behind, if there are any.
template <typename Unit, int kVecs = 1, int kAll>
__device__ __forceinline__ void store_shifted(char *to, int64_t n_units, bool has_left,
                                              bool has_right, const uint32_t (&word)[kAll])
{
    constexpr int kWords = kAll / kVecs, kBytes = 4 * kWords, kUnits = kBytes / (int)sizeof(Unit);
    int off = (int)((uintptr_t)to & (kBytes - 1));
    int head = (kBytes - off) / (int)sizeof(Unit); // units before the next packet
    uint32_t turned[kVecs][kWords];
#pragma unroll
    for (int v = 0; v < kVecs; v++) {
        uint32_t one[kWords];
        memcpy(one, word + v * kWords, sizeof one);
        turn_words<(int)sizeof(Unit)>(one, off, turned[v]);
    }
    // of the units, those that are in no packet: from the end of one packet to that of the next
    const unsigned all = n_units >= kVecs * kUnits ? (1u << kVecs * kUnits) - 1
                         : n_units > 0             ? (1u << n_units) - 1
                                                   : 0;
    const unsigned heads = (1u << head) - 1;
    unsigned mine = all;
#pragma unroll
    for (int v = 0; v <= kVecs; v++) {
        const bool is_first = v == 0, is_next = v == kVecs;
        const bool is_whole = n_units - v * kUnits >= head &&
                              (is_first ? has_left || off == 0 : !is_next || has_right);
        const unsigned before =
            is_first ? 0 : heads << (v - 1) * kUnits | ((1u << (v - 1) * kUnits) - 1);
        const unsigned until = is_next ? ~0u : heads << v * kUnits | ((1u << v * kUnits) - 1);
        if (is_whole)
            mine &= before | ~until;
        if (is_next)
            break;
        uint32_t packet[kWords];
#pragma unroll
        for (int i = 0; i < kWords; i++) {
            const uint32_t left =
                is_first ? __shfl_up_sync(0xFFFFFFFFu, turned[kVecs - 1][i], 1) : turned[v - 1][i];
            int n_left = off - 4 * i; // bytes of the word that are the left vector's
            uint32_t mask = n_left <= 0 ? 0 : n_left >= 4 ? 0xFFFFFFFFu : (1u << (8 * n_left)) - 1;
            packet[i] = (turned[v][i] & ~mask) | (left & mask);
        }
        if (is_whole)
            store_words(to - off + v * kBytes, packet);
    }
    if (mine == 0)
        return;
#pragma unroll
    for (int i = 0; i < kVecs * kUnits; i++) {
        int at = i * (int)sizeof(Unit);
        if (mine >> i & 1)
            reinterpret_cast<Unit *>(to)[i] = (Unit)(word[at / 4] >> (at % 4 * 8));
    }
}
