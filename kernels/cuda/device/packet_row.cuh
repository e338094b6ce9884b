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

// Weights or biases of a row, which begin elsewhere in their packets than the row does.
template <typename T>
struct packet_weights {
    const char *from;  // what belongs to the row's first packet; NULL: absent, all of them
    const char *whole; // whole_end of all
    float absent;

    __device__ __forceinline__ packet_weights(const void *weights, int64_t hidden, int first,
                                              float none)
        : from(nullptr), whole(nullptr), absent(none)
    {
        if (weights) {
            from = static_cast<const char *>(weights) - first * (int)sizeof(T);
            whole = whole_end(weights, hidden * (int64_t)sizeof(T));
        }
    }
    // Those of a packet's elements of the row, which has so many before them.
    __device__ __forceinline__ void prefetch(int packet, int first) const
    {
        const char *at = from + packet * 16 + first * (int)sizeof(T);
        if (from)
            asm volatile("prefetch.global.L1 [%0];" ::"l"(__cvta_generic_to_global(at)));
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
    float *stage;

    __device__ __forceinline__ packet_row(const norm_args &args, const row_source<K> &source)
        : norm(args), vectors((int)((args.hidden + kVec - 1) / kVec)),
          stage(reinterpret_cast<float *>(staged_rows))
    {
        const int off = (int)((uintptr_t)source.x & 15);
        first = off / kSize;
        last = first + (int)args.hidden;
        x = compute_now(source.x - off);
        second = x;
        if constexpr (K::kAdds)
            second = compute_now(source.residual - off);
    }
    __device__ __forceinline__ int plane() const
    {
        return vectors + 1;
    }
    __device__ __forceinline__ bool is_cut(int packet) const
    {
        return packet * kVec < first || packet * kVec + kVec > last;
    }
    // Packets from one on, a block's threads apart; zeros where the row has none. Behind whole a
    // tensor has less than a packet, which is there only once they are mended: a branch between
    // loads would have them wait for each other.
    template <int n>
    __device__ __forceinline__ void load(const char *from, const char *whole, int packet,
                                         uint4 (&raw)[n]) const
    {
        from += packet * 16;
#pragma unroll
        for (int v = 0; v < n; v++) {
            const int at = packet + v * (int)blockDim.x;
            raw[v] = load_16_if(at * kVec < last && from + 16 <= whole, from);
            from += 16 * blockDim.x;
        }
    }
    template <int n>
    __device__ __forceinline__ void mend(const char *from, const char *whole, int packet,
                                         uint4 (&raw)[n]) const
    {
        if (from + (last * kSize & ~15) + 16 <= whole)
            return;
#pragma unroll
        for (int v = 0; v < n; v++) {
            const int at = packet + v * (int)blockDim.x;
            if (at * kVec < last && from + at * 16 + 16 > whole)
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
#pragma unroll 1
        for (int packet = threadIdx.x; packet <= vectors; packet += kBatch * blockDim.x) {
            uint4 raw[kBatch], raw_second[kSumsBoth ? kBatch : 1];
            load(x, norm.x_end, packet, raw);
            if constexpr (kSumsBoth)
                load(second, norm.residual_end, packet, raw_second);
            mend(x, norm.x_end, packet, raw);
            if constexpr (kSumsBoth)
                mend(second, norm.residual_end, packet, raw_second);
#pragma unroll
            for (int v = 0; v < kBatch; v++) {
                const int at = packet + v * (int)blockDim.x;
                if (at >= vectors)
                    break;
                for (const packet_weights<T> &of : weights)
                    of.prefetch(at, first);
                if constexpr (kNeedsLater)
                    asm volatile("prefetch.global.L2 [%0];" ::"l"(
                        __cvta_generic_to_global(second + at * 16)));
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
#pragma unroll
                for (int i = 0; i < kVec; i++)
                    stage[i * plane() + at] = z[i];
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
        const float *from[kVec];
#pragma unroll
        for (int i = 0; i < kVec; i++)
            from[i] = stage + (first + i) % kVec * plane() + (first + i) / kVec;
#pragma unroll 2
        for (int v = of_thread; v < end; v += norm.n_shares) {
            float z[kVec];
#pragma unroll
            for (int i = 0; i < kVec; i++)
                z[i] = from[i][v];
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
#pragma unroll 1
        for (int packet = threadIdx.x; packet * kVec < last; packet += kResults * blockDim.x) {
            shifted_vector<kSize> part[kResults][n];
            uint4 raw_second[kResults];
            if constexpr (kNeedsLater)
                load(second, norm.residual_end, packet, raw_second);
#pragma unroll
            for (int v = 0; v < kResults; v++) {
                const int at = packet + v * (int)blockDim.x;
#pragma unroll
                for (int i = 0; i < n; i++)
                    part[v][i].start(weights[i].from + at * 16,
                                     weights[i].from && !is_cut(at) ? 16 : 0, weights[i].whole);
            }
            if constexpr (kNeedsLater)
                mend(second, norm.residual_end, packet, raw_second);
#pragma unroll
            for (int v = 0; v < kResults; v++) {
                const int at = packet + v * (int)blockDim.x;
                float y[kVec], gain[n][kVec], other[kVec] = {};
                if (at * kVec >= last)
                    break;
#pragma unroll
                for (int i = 0; i < n; i++)
                    get_gains(weights[i], part[v][i], at, gain[i]);
#pragma unroll
                for (int i = 0; i < kVec; i++)
                    y[i] = stage[i * plane() + at];
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
    // To where they waited, for others to find them; what is no row's element is 0.
    __device__ __forceinline__ void put_back(int packet, float (&y)[kVec]) const
    {
#pragma unroll
        for (int i = 0; i < kVec; i++) {
            if (is_cut(packet) && (packet * kVec + i < first || packet * kVec + i >= last))
                y[i] = 0.0f;
            stage[i * plane() + packet] = y[i];
        }
    }
    // f(vector, x, from, to) of vectors that begin as many elements before the row's first as they
    // are told: of each of them elements from, ... to - 1 are the row's.
    template <typename F>
    __device__ __forceinline__ void for_each_from(int before, const F &f) const
    {
        const int begin = first - before + kVec;
        const float *from[kVec];
#pragma unroll
        for (int i = 0; i < kVec; i++)
            from[i] = stage + (begin + i) % kVec * plane() + (begin + i) / kVec - 1;
#pragma unroll 1
        for (int v = threadIdx.x; v * kVec < before + (int)norm.hidden; v += blockDim.x) {
            const int start = max(0, before - v * kVec);
            const int end = min(kVec, before + (int)norm.hidden - v * kVec);
            float y[kVec];
#pragma unroll
            for (int i = 0; i < kVec; i++)
                y[i] = i >= start && i < end ? from[i][v] : 0.0f;
            f(v, y, start, end);
        }
    }

  private:
    // Of a packet that is cut, or the last of its tensor, by elements.
    __device__ __forceinline__ void get_gains(const packet_weights<T> &weights,
                                              const shifted_vector<kSize> &part, int packet,
                                              float (&gain)[kVec]) const
    {
        uint4 raw = no_weight<T>();
        if (weights.from)
            raw = part.finish(first - packet * kVec, last - packet * kVec);
        unpack<T>(raw, gain);
        if (!weights.from)
#pragma unroll
            for (float &value : gain)
                value = weights.absent;
    }
};
