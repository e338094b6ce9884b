// vector.cuh - 16 bytes of memory as a register value, and the elements in it. A load moves 16
// bytes or one element; everything between is arithmetic on float.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <stdint.h>

// 16 bytes that one thread reads once. Volatile, so that these loads start before the dependent ones
// that follow in the source. Not the read-only path: an in-place call writes the same memory from
// the same kernel. No cache hint: L1::no_allocate costs a tenth of the bandwidth of large work.
__device__ __forceinline__ uint4 load_once(const void *from)
{
    uint4 raw;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w)
                 : "l"(__cvta_generic_to_global(from)));
    return raw;
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
    static __device__ __forceinline__ uint32_t from_float2(float a, float b)
    {
        __nv_bfloat162 value = __floats2bfloat162_rn(a, b);
        uint32_t pair;
        memcpy(&pair, &value, sizeof pair);
        return pair;
    }
};

// Elements of 16 bytes.
template <typename T>
constexpr int kVecOf = 16 / (int)sizeof(T);

template <typename T>
__device__ __forceinline__ void unpack(const uint4 &raw, float (&x)[kVecOf<T>])
{
    const uint32_t word[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if constexpr (sizeof(T) == 4) {
            x[i] = __uint_as_float(word[i]);
        } else {
            float2 pair = element<T>::to_float2(word[i]);
            x[2 * i] = pair.x;
            x[2 * i + 1] = pair.y;
        }
    }
}

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

// n floats that many threads read (tables, frequencies): through the read-only cache, in the
// widest accesses that n allows. from is aligned to them.
template <int n>
__device__ __forceinline__ void load_shared_floats(const float *from, float (&x)[n])
{
    if constexpr (n % 4 == 0) {
#pragma unroll
        for (int i = 0; i < n / 4; i++) {
            float4 part = __ldg(reinterpret_cast<const float4 *>(from) + i);
            x[4 * i] = part.x;
            x[4 * i + 1] = part.y;
            x[4 * i + 2] = part.z;
            x[4 * i + 3] = part.w;
        }
    } else if constexpr (n % 2 == 0) {
#pragma unroll
        for (int i = 0; i < n / 2; i++) {
            float2 part = __ldg(reinterpret_cast<const float2 *>(from) + i);
            x[2 * i] = part.x;
            x[2 * i + 1] = part.y;
        }
    } else {
#pragma unroll
        for (int i = 0; i < n; i++)
            x[i] = __ldg(from + i);
    }
}
