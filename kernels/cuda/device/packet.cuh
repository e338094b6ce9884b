// packet.cuh - the memory accesses of kernels that move a packet per thread: 16 bytes where
// everything is aligned to them, else one element.
#pragma once

#include "cuda/device/vector.cuh"

template <typename T, int kVec>
struct packet {
    static_assert(kVec == kVecOf<T>, "16 bytes");
    using raw = uint4;
    template <bool kKeeps = false>
    static __device__ __forceinline__ raw load(const T *from)
    {
        return kKeeps ? load_16_to_keep(from) : load_16(from);
    }
    static __device__ __forceinline__ void widen(const raw &from, float (&x)[kVec])
    {
        unpack<T>(from, x);
    }
    static __device__ __forceinline__ void store(T *to, const float (&x)[kVec])
    {
        *reinterpret_cast<uint4 *>(to) = pack<T>(x);
    }
};

template <typename T>
struct packet<T, 1> {
    using raw = T;
    template <bool kKeeps = false>
    static __device__ __forceinline__ raw load(const T *from)
    {
        return *from;
    }
    static __device__ __forceinline__ void widen(const raw &from, float (&x)[1])
    {
        x[0] = element<T>::to_float(from);
    }
    static __device__ __forceinline__ void store(T *to, const float (&x)[1])
    {
        *to = element<T>::from_float(x[0]);
    }
};
