// packet_row.cuh - a row of a norm that begins equally far behind a multiple of 16 bytes in every
// tensor, as rows of any width do that lie beside each other.
//
// Memory is read and written in the packets of 16 bytes that it has, and nothing but weights is
// shifted into place: only the packets at a row's two ends are cut. What the order of a sum takes
// for a vector begins inside of a packet, so a row waits in shared memory for its sum, as floats:
// element i of every packet in plane i, where neighbours have neighbouring places, whatever element
// a vector begins with.
//
// A result may take the place of an input: a thread writes only the packets that it has read, and
// of those at the ends only what is its row's.
#pragma once

#include "cuda/device/norm_quarters.cuh"

constexpr int kPacketThreads = 1024; // of a block, at most
// Registers of a thread: of one tensor four rows of 320 threads find room on a multiprocessor, and
// what is loaded of two at once needs more.
template <bool kSumsBoth>
constexpr int kPacketRegisters = kSumsBoth ? 64 : 48;

// A float in shared memory, by an address of 32 bits: of a pointer the compiler finds an element's
// place from its number, twice as many instructions.
__device__ __forceinline__ float load_shared(uint32_t at)
{
    float x;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(at));
    return x;
}

__device__ __forceinline__ void store_shared(uint32_t at, float x)
{
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(x) : "memory");
}

// Weights of a vector from element begin of a row on, which may be before its first, and zeros
// where the row has none; one by one and out of line, for few vectors have them so, or few calls.
template <typename T>
static __device__ __noinline__ vector_gains<T> load_weights_of(const char *weights, int kind,
                                                               int begin, int hidden)
{
    vector_gains<T> gains;
#pragma unroll
    for (int i = 0; i < kVecOf<T>; i++) {
        const int at = begin + i;
        uint32_t raw = 0;
        if (at >= 0 && at < hidden)
            raw = has_float_weights<T>(kind) ? load_element<4>(weights + 4 * at)
                                             : load_element<2>(weights + 2 * at);
        gains.of[i] = weight_of<T>(kind, raw);
    }
    return gains;
}

// Weights or biases of a row, which begin elsewhere in their packets than the row does: as far
// behind one for all packets of the row, if they have its type. Packets are counted by those of the
// row.
template <typename T>
struct packet_weights {
    static constexpr int kSize = (int)sizeof(T), kVec = kVecOf<T>;
    const char *weights; // NULL: absent
    int kind;
    const char *from; // the packet that those of the row's first one begin in
    int off;          // bytes from there
    int first, last;  // elements of the row
    int whole;        // those before it can be read by packets
    uint32_t absent;  // all of them, packed

    __device__ __forceinline__ packet_weights(const norm_args &args, const void *of_row,
                                              int row_first, int row_last, float none)
        : weights(static_cast<const char *>(of_row)), kind(args.weight_kind), from(weights), off(0),
          first(row_first), last(row_last), whole(INT_MIN)
    {
        const float all[kVec] = {none, none};
        absent = pack<T>(all).x;
        if (weights && kind <= kWeightSame) {
            const char *at = weights - first * kSize;
            off = (int)((uintptr_t)at & 15);
            from = at - off;
            whole = min(last, (int)(whole_end(at, (int64_t)last * kSize) - at) / kSize);
        }
        from = compute_now(from);
    }
    __device__ __forceinline__ void prefetch(int packet) const
    {
        if (whole > 0)
            asm volatile(
                "prefetch.global.L1 [%0];" ::"l"(__cvta_generic_to_global(from + packet * 16)));
    }
    // Of a packet that the row has whole.
    __device__ __forceinline__ bool has_packets(int packet) const
    {
        return packet * kVec >= first && packet * kVec + kVec <= whole;
    }
    __device__ __forceinline__ void start(int packet, uint4 (&raw)[2]) const
    {
        const char *at = from + packet * 16;
        raw[0] = load_16_if(has_packets(packet), at);
        raw[1] = load_16_if(has_packets(packet) && off > 0, at + 16);
    }
    __device__ __forceinline__ void finish(int packet, const uint4 (&raw)[2],
                                           float (&gain)[kVec]) const
    {
        if (weights && !has_packets(packet)) {
            const vector_gains<T> gains =
                load_weights_of<T>(weights, kind, packet * kVec - first, last - first);
            memcpy(gain, gains.of, sizeof gain);
            return;
        }
        uint4 all = make_uint4(absent, absent, absent, absent);
        if (weights)
            all = shift_packets<kSize>(raw[0], raw[1], off);
        unpack<T>(all, gain);
    }
};

// kSumsBoth: the second tensor is needed for the sum; else for the result, or there is none.
template <typename K, bool kSumsBoth>
struct packet_row {
    using T = typename K::T;
    static constexpr int kVec = K::kVec, kSize = (int)sizeof(T);
    static constexpr bool kIsWhole = false, kMayBranch = true; // the last vector may be cut
    static constexpr int kBatch = 4; // packets of a tensor that are loaded at once
    static constexpr bool kNeedsLater = K::kAdds && !kSumsBoth;
    const norm_args &norm;
    int first, last; // elements, counted from the first packet's: the row's, and those behind it
    int vectors;     // of the row; it has one place more in a plane
    const char *x, *second; // the first packet
    uint32_t stage, pitch;  // in shared memory; bytes from a plane to the next

    __device__ __forceinline__ packet_row(const norm_args &args, const row_source<K> &source)
        : norm(args), vectors((int)((args.hidden + kVec - 1) / kVec)),
          stage(compute_now(shared_address(staged_rows))), pitch(compute_now(4 * (vectors + 1)))
    {
        const int off = (int)((uintptr_t)source.x & 15);
        first = off / kSize;
        last = first + (int)args.hidden;
        x = compute_now(source.x - off);
        second = x;
        if constexpr (K::kAdds)
            second = compute_now(source.residual - off);
    }
    // Where element i of a packet waits: the same for all threads, plus 4 for each packet.
    __device__ __forceinline__ uint32_t plane(int i) const
    {
        return stage + i * pitch;
    }
    // The same of elements that are counted on from element i of the first packet.
    __device__ __forceinline__ uint32_t plane_from(int i) const
    {
        return plane(i % kVec) + 4 * (i / kVec);
    }
    __device__ __forceinline__ void get(int packet, float (&z)[kVec]) const
    {
#pragma unroll
        for (int i = 0; i < kVec; i++)
            z[i] = load_shared(plane(i) + 4 * packet);
    }
    __device__ __forceinline__ void put(int packet, const float (&z)[kVec]) const
    {
#pragma unroll
        for (int i = 0; i < kVec; i++)
            store_shared(plane(i) + 4 * packet, z[i]);
    }
    __device__ __forceinline__ bool is_cut(int packet) const
    {
        return packet * kVec < first || packet * kVec + kVec > last;
    }
    // Packets of a tensor that can be read whole. Of the last one a tensor may have less.
    __device__ __forceinline__ int whole_packets(const char *from, const char *whole) const
    {
        return (int)min((int64_t)(last + kVec - 1) / kVec, (whole - from) / 16);
    }
    // Packets from one on, a block's threads apart; zeros where the row has none. What the tensor
    // has less of is there only once it is mended: a branch between loads would have them wait for
    // each other.
    template <int n>
    __device__ __forceinline__ void load(const char *from, int whole, int packet,
                                         uint4 (&raw)[n]) const
    {
#pragma unroll
        for (int v = 0; v < n; v++) {
            const int at = packet + v * (int)blockDim.x;
            raw[v] = load_16_if(at < whole, from + at * 16);
        }
    }
    template <int n>
    __device__ __forceinline__ void mend(const char *from, int whole, int packet,
                                         uint4 (&raw)[n]) const
    {
        if (whole * kVec >= last)
            return;
#pragma unroll
        for (int v = 0; v < n; v++) {
            const int at = packet + v * (int)blockDim.x;
            if (at >= whole && at * kVec < last)
                raw[v] = load_pieces(from + at * 16, (last - at * kVec) * kSize);
        }
    }
    __device__ __forceinline__ void store(T *to, int packet, const float (&y)[kVec]) const
    {
        to += packet * kVec;
        if (!is_cut(packet)) {
            store_16(to, pack<T>(y));
            return;
        }
        store_part<kSize>(reinterpret_cast<char *>(to), first - packet * kVec, last - packet * kVec,
                          pack<T>(y));
    }
    // From memory to shared memory. make(z, other) makes what is normalised of both tensors'
    // elements; it is stored at sums, where that is not NULL.
    template <int n, typename F>
    __device__ __forceinline__ void take(const packet_weights<T> (&weights)[n], T *sums,
                                         const F &make) const
    {
        const int whole = whole_packets(x, norm.x_end);
        const int whole_second = kSumsBoth ? whole_packets(second, norm.residual_end) : 0;
#pragma unroll 1
        for (int packet = threadIdx.x; packet <= vectors; packet += kBatch * blockDim.x) {
            uint4 raw[kBatch], raw_second[kSumsBoth ? kBatch : 1];
            load(x, whole, packet, raw);
            if constexpr (kSumsBoth)
                load(second, whole_second, packet, raw_second);
            mend(x, whole, packet, raw);
            if constexpr (kSumsBoth)
                mend(second, whole_second, packet, raw_second);
#pragma unroll
            for (int v = 0; v < kBatch; v++) {
                const int at = packet + v * (int)blockDim.x;
                if (at >= vectors)
                    break;
                for (const packet_weights<T> &of : weights)
                    of.prefetch(at);
                if constexpr (kNeedsLater)
                    prefetch_to_l2(second + at * 16);
            }
#pragma unroll
            for (int v = 0; v < kBatch; v++) {
                const int at = packet + v * (int)blockDim.x;
                float z[kVec], other[kVec] = {};
                if (at > vectors)
                    break;
                unpack<T>(raw[v], z);
                if constexpr (kSumsBoth) {
                    unpack<T>(raw_second[v], other);
                    make(z, other);
                }
                if (sums && at * kVec < last)
                    store(sums, at, z);
                if (at * kVec + kVec > last) {
#pragma unroll
                    for (int i = 0; i < kVec; i++)
                        z[i] = at * kVec + i < last ? z[i] : 0.0f;
                }
                put(at, z);
            }
        }
        __syncthreads();
    }
    // f(z, elements left of the row) of the vectors of a thread's share, of n_shares.
    template <typename F>
    __device__ __forceinline__ void for_each(int share, const F &f) const
    {
        const int of_thread = threadIdx.x + share * blockDim.x;
        const int end = of_thread < norm.n_shares ? vectors : 0;
        uint32_t from[kVec];
#pragma unroll
        for (int i = 0; i < kVec; i++)
            from[i] = plane_from(first + i);
#pragma unroll 2
        for (int v = of_thread; v < end; v += norm.n_shares) {
            float z[kVec];
#pragma unroll
            for (int i = 0; i < kVec; i++)
                z[i] = load_shared(from[i] + 4 * v);
            f(z, last - first - v * kVec);
        }
    }
    // finish(gains, other, y) makes results of what waits, and put(packet, y) takes those of a
    // packet; gains are those of all weights. Registers hold those of two.
    template <int n, typename F, typename G>
    __device__ __forceinline__ void finish_each(const packet_weights<T> (&weights)[n],
                                                const F &finish, const G &put) const
    {
        constexpr int kResults = n == 1 ? 2 : 1;
        const int whole = kNeedsLater ? whole_packets(second, norm.residual_end) : 0;
#pragma unroll 1
        for (int packet = threadIdx.x; packet * kVec < last; packet += kResults * blockDim.x) {
            uint4 raw[kResults][n][2], raw_second[kResults];
            if constexpr (kNeedsLater)
                load(second, whole, packet, raw_second);
#pragma unroll
            for (int v = 0; v < kResults; v++)
#pragma unroll
                for (int i = 0; i < n; i++)
                    weights[i].start(packet + v * (int)blockDim.x, raw[v][i]);
            if constexpr (kNeedsLater)
                mend(second, whole, packet, raw_second);
#pragma unroll
            for (int v = 0; v < kResults; v++) {
                const int at = packet + v * (int)blockDim.x;
                float y[kVec], gain[n][kVec], other[kVec] = {};
                if (at * kVec >= last)
                    break;
#pragma unroll
                for (int i = 0; i < n; i++)
                    weights[i].finish(at, raw[v][i], gain[i]);
                get(at, y);
                if constexpr (kNeedsLater)
                    unpack<T>(raw_second[v], other);
                finish(gain, other, y);
                put(at, y);
            }
        }
    }
    // The same, to memory.
    template <int n, typename F>
    __device__ __forceinline__ void write(const packet_weights<T> (&weights)[n], T *to,
                                          const F &finish) const
    {
        finish_each(weights, finish, [&](int packet, const auto &y) { store(to, packet, y); });
    }
    // To where they waited; what is no row's element is 0.
    __device__ __forceinline__ void put_back(int packet, float (&y)[kVec]) const
    {
#pragma unroll
        for (int i = 0; i < kVec; i++)
            if (is_cut(packet) && (packet * kVec + i < first || packet * kVec + i >= last))
                y[i] = 0.0f;
        put(packet, y);
    }
    // f(packet, y) of what a thread has put back.
    template <typename F>
    __device__ __forceinline__ void for_each_packet(const F &f) const
    {
#pragma unroll 2
        for (int packet = threadIdx.x; packet * kVec < last; packet += blockDim.x) {
            float y[kVec];
            get(packet, y);
            f(packet, y);
        }
    }
};
