// vector.cuh - 16 bytes of memory as a register value, and the elements in it. A load moves 16
// bytes or one element; everything between is arithmetic on float.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <stdint.h>

// 16 and 8 bytes, and a float. Volatile: a load starts where it stands in the source, before what
// waits for the loads above it. Not by the read-only path (ld.global.nc, __ldg): an in-place call
// writes the same memory from the same kernel, and the assembler takes memory that is only read for
// unchanging and moves such loads in front of wait_for_previous (stream.cuh). No hint for L1:
// no_allocate costs a tenth of the bandwidth of large work.
__device__ __forceinline__ uint4 load_16(const void *from)
{
    uint4 raw;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w)
                 : "l"(__cvta_generic_to_global(from)));
    return raw;
}

// The same from lines that leave L2 last: those that a kernel writes leave before, in their order,
// and memory moves 3 to 4 % more of what does not fit L2. A smaller kernel would find less of what
// the one before it wrote, and making the policy takes 0.05 us.
__device__ __forceinline__ uint4 load_16_to_keep(const void *from)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    uint4 raw;
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("ld.global.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w)
                 : "l"(__cvta_generic_to_global(from)), "l"(policy));
    return raw;
#else
    return load_16(from);
#endif
}

// The same by a policy that a kernel makes once: inside of a branch it would make it again for each
// load, of six instructions.
__device__ __forceinline__ uint64_t policy_to_keep()
{
    uint64_t policy = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
#endif
    return policy;
}

template <bool kKeeps>
__device__ __forceinline__ uint4 load_16_by(uint64_t policy, const void *from)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    if constexpr (kKeeps) {
        uint4 raw;
        asm volatile("ld.global.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                     : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w)
                     : "l"(__cvta_generic_to_global(from)), "l"(policy));
        return raw;
    }
#endif
    return load_16(from);
}

__device__ __forceinline__ uint2 load_8(const void *from)
{
    uint2 raw;
    asm volatile("ld.global.v2.u32 {%0, %1}, [%2];"
                 : "=r"(raw.x), "=r"(raw.y)
                 : "l"(__cvta_generic_to_global(from)));
    return raw;
}

__device__ __forceinline__ void prefetch_to_l2(const void *from)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(from)));
}

__device__ __forceinline__ float load_float(const float *from)
{
    float x;
    asm volatile("ld.global.f32 %0, [%1];" : "=f"(x) : "l"(__cvta_generic_to_global(from)));
    return x;
}

template <typename T>
struct element;

template <>
struct element<float> {
    static __device__ __forceinline__ float to_float(float x)
    {
        return x;
    }
    static __device__ __forceinline__ float from_float(float x)
    {
        return x;
    }
};

template <>
struct element<__half> {
    static __device__ __forceinline__ float to_float(__half x)
    {
        return __half2float(x);
    }
    static __device__ __forceinline__ __half from_float(float x)
    {
        return __float2half_rn(x);
    }
    static __device__ __forceinline__ float2 to_float2(uint32_t pair)
    {
        __half2 value;
        memcpy(&value, &pair, sizeof value);
        return __half22float2(value);
    }
    static __device__ __forceinline__ float2 to_float2_again(uint32_t pair)
    {
        return to_float2(pair);
    }
    static __device__ __forceinline__ uint32_t from_float2(float a, float b)
    {
        __half2 value = __floats2half2_rn(a, b);
        uint32_t pair;
        memcpy(&pair, &value, sizeof pair);
        return pair;
    }
};

template <>
struct element<__nv_bfloat16> {
    static __device__ __forceinline__ float to_float(__nv_bfloat16 x)
    {
        return __bfloat162float(x);
    }
    static __device__ __forceinline__ __nv_bfloat16 from_float(float x)
    {
        return __float2bfloat16_rn(x);
    }
    // a bfloat16 is the upper half of a float
    static __device__ __forceinline__ float2 to_float2(uint32_t pair)
    {
        return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000u));
    }
    // the same in instructions that the compiler does not know to be the same
    static __device__ __forceinline__ float2 to_float2_again(uint32_t pair)
    {
        return make_float2(__uint_as_float(__byte_perm(pair, 0, 0x1044)),
                           __uint_as_float(__byte_perm(pair, 0, 0x3244)));
    }
    static __device__ __forceinline__ uint32_t from_float2(float a, float b)
    {
        __nv_bfloat162 value = __floats2bfloat162_rn(a, b);
        uint32_t pair;
        memcpy(&pair, &value, sizeof pair);
        return pair;
    }
};

// In one access: of words that it has in registers anyhow the compiler may make four.
__device__ __forceinline__ void store_16(void *to, const uint4 &raw)
{
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)),
                 "r"(raw.x), "r"(raw.y), "r"(raw.z), "r"(raw.w)
                 : "memory");
}

// Elements of 16 bytes.
template <typename T>
constexpr int kVecOf = 16 / (int)sizeof(T);

// kAgain: for values that were unpacked before. The compiler would keep the floats of then, in
// twice the registers, and fewer warps would find room on a multiprocessor.
template <typename T, bool kAgain = false>
__device__ __forceinline__ void unpack(const uint4 &raw, float (&x)[kVecOf<T>])
{
    const uint32_t word[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if constexpr (sizeof(T) == 4) {
            x[i] = __uint_as_float(word[i]);
        } else {
            float2 pair =
                kAgain ? element<T>::to_float2_again(word[i]) : element<T>::to_float2(word[i]);
            x[2 * i] = pair.x;
            x[2 * i + 1] = pair.y;
        }
    }
}

template <typename T>
__device__ __forceinline__ void unpack(const uint2 &raw, float (&x)[kVecOf<T> / 2])
{
    float both[kVecOf<T>];
    unpack<T>(make_uint4(raw.x, raw.y, 0, 0), both);
#pragma unroll
    for (int i = 0; i < kVecOf<T> / 2; i++)
        x[i] = both[i];
}

template <typename T>
__device__ __forceinline__ void unpack(const T &raw, float (&x)[1])
{
    x[0] = element<T>::to_float(raw);
}

// Elements of T in a word of 16 or 8 bytes, or one.
template <typename T, typename Word>
constexpr int kElementsOf = (int)(sizeof(Word) / sizeof(T));

template <typename T>
__device__ __forceinline__ uint4 pack(const float (&x)[kVecOf<T>])
{
    uint32_t word[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if constexpr (sizeof(T) == 4)
            word[i] = __float_as_uint(x[i]);
        else
            word[i] = element<T>::from_float2(x[2 * i], x[2 * i + 1]);
    }
    return make_uint4(word[0], word[1], word[2], word[3]);
}

// Rounds n floats, 16 or 8 bytes or one element, and stores them in one access.
template <typename T, int n>
__device__ __forceinline__ void store_floats(T *to, const float (&x)[n])
{
    constexpr int kBytes = n * (int)sizeof(T);
    static_assert(n == 1 || kBytes == 16 || kBytes == 8, "one access");
    if constexpr (n == 1) {
        *to = element<T>::from_float(x[0]);
    } else if constexpr (kBytes == 16) {
        *reinterpret_cast<uint4 *>(to) = pack<T>(x);
    } else if constexpr (sizeof(T) == 4) {
        *reinterpret_cast<float2 *>(to) = make_float2(x[0], x[1]);
    } else {
        *reinterpret_cast<uint2 *>(to) =
            make_uint2(element<T>::from_float2(x[0], x[1]), element<T>::from_float2(x[2], x[3]));
    }
}

// n floats in the widest accesses that n allows; from is aligned to them.
template <int n>
__device__ __forceinline__ void load_floats(const float *from, float (&x)[n])
{
    if constexpr (n % 4 == 0) {
#pragma unroll
        for (int i = 0; i < n; i += 4) {
            uint4 raw = load_16(from + i);
            x[i] = __uint_as_float(raw.x);
            x[i + 1] = __uint_as_float(raw.y);
            x[i + 2] = __uint_as_float(raw.z);
            x[i + 3] = __uint_as_float(raw.w);
        }
    } else if constexpr (n % 2 == 0) {
#pragma unroll
        for (int i = 0; i < n; i += 2) {
            uint2 raw = load_8(from + i);
            x[i] = __uint_as_float(raw.x);
            x[i + 1] = __uint_as_float(raw.y);
        }
    } else {
#pragma unroll
        for (int i = 0; i < n; i++)
            x[i] = load_float(from + i);
    }
}
