// norm_pair_staged.cuh - the norms of norm_pair.cuh of rows that registers do not hold: too wide,
// or of widths or at addresses that 16 bytes do not divide, or with weights of another type; but
// many rows that lie beside each other have norm_packets.cuh.
//
// A row of x, and of the second tensor, waits in shared memory for its sum: the packets of 16 bytes
// that cover it, all of them on their way at once, of which vectors are shifted into place. What
// shared memory has no room for is read where it is used, from the L2 cache if it was not needed
// before. Of a few wide rows each has several blocks, a cluster, as in norm_staged.cuh.
#pragma once

#include "cuda/device/norm_pair.cuh"
#include "cuda/device/norm_staged.cuh"
#include "cuda/device/stage.cuh"

constexpr int kMostStagedThreads = 640; // of a block, two of which find room

// Packets that cover so many vectors.
template <bool kIsAligned>
__host__ __device__ static inline int staged_packets(int vectors)
{
    return kIsAligned ? vectors : vectors + 1;
}

// Both tensors, and what they make; or x alone, whose place that takes.
constexpr int kStagedWithZ = 3, kStagedAsZ = 4;

// What takes a vector's place has as many bytes where it is of float32.
template <typename K, bool kIsAligned>
constexpr bool kMayStageAsZ = (K::kPair == GATE_THEN_NORM) && kIsAligned && (K::kVec == 4);

// As many times that is what waits, if it is so many tensors.
template <typename K, bool kIsAligned>
__host__ __device__ static inline int staged_areas(int n_staged)
{
    if (kMayStageAsZ<K, kIsAligned> && n_staged == kStagedAsZ)
        return 1;
    return n_staged < kStagedWithZ ? n_staged : kIsAligned ? 2 : 2 + K::kVec / 4;
}

// A thread's part of a row: vectors first, first + step, ... are fetched and written by it. The sum
// is that of n_shares threads: of as many as there are, of twice as many, of which each then has
// two shares, or of the first ones. Of a row's blocks each has the vectors of so many shares.
template <typename K, bool kIsAligned>
struct staged_pair {
    using T = typename K::T;
    static constexpr int kVec = K::kVec, kSize = (int)sizeof(T);
    // what is normalised, if it is not x: as floats, where it takes the place of what it was made
    // from if no neighbour has a part of that
    static constexpr bool kMakesZ = K::kPair == GATE_THEN_NORM;
    static constexpr int kPacketsOfZ = kVec / 4;
    const pair_args &args;
    row_exchange &blocks;
    pair_place place;
    row_source<K> source;
    uint4 *stage; // packets of x, as far as the block fetches them; the second tensor's follow
    int packets;  // of either tensor
    int n_staged; // tensors that are
    int end;      // vectors of the row, 0 where there is none
    int first, step;
    bool is_last; // of the block's neighbours, where others have those behind

    __device__ __forceinline__ staged_pair(const pair_args &pair, row_exchange &of_row)
        : args(pair), blocks(of_row), place(pair, row_of_block()),
          source(place.source<K>(pair.norm, 0)),
          n_staged(kMayStageAsZ<K, kIsAligned> && pair.norm.is_staged == kStagedAsZ
                       ? 1
                       : pair.norm.is_staged),
          first(blockIdx.y * pair.of_block + threadIdx.x), step(pair.step)
    {
        int share = threadIdx.x; // of the block
        for (; share >= args.of_block; share -= args.of_block)
            first += args.norm.n_shares - args.of_block;
        is_last = gridDim.y > 1 && share + 1 == args.of_block;
        const int n_vectors = (int)((args.norm.hidden + kVec - 1) / kVec);
        end = row_of_block() < args.norm.n_rows ? n_vectors : 0;
        packets = staged_packets<kIsAligned>(n_vectors);
        stage =
            staged_rows + threadIdx.y * staged_areas<K, kIsAligned>(pair.norm.is_staged) * packets;
    }
    // Elements of the row from a vector on, as far as the next one's end.
    __device__ __forceinline__ int left(int vector) const
    {
        if (kIsAligned)
            return vector < end ? kVec : 0;
        return vector < end ? (int)min((int64_t)2 * kVec, args.norm.hidden - (int64_t)vector * kVec)
                            : 0;
    }
    // The packets that the thread's vectors begin in, and that which the block's last one ends in.
    __device__ __forceinline__ void fetch_row(uint4 *to, const char *from, const char *whole) const
    {
        const int off = kIsAligned ? 0 : (int)((uintptr_t)from & 15);
        const int bytes = off + (int)args.norm.hidden * kSize;
        from -= off;
#pragma unroll 1
        for (int vector = first; vector < end; vector += step) {
            const int at = vector * 16;
            fetch_packet(to + vector, from + at, bytes - at, whole);
            if (!kIsAligned && (is_last || vector == end - 1))
                fetch_packet(to + vector + 1, from + at + 16, bytes - at - 16, whole);
        }
    }
    // So many bytes of it are the row's, or all.
    static __device__ __forceinline__ void fetch_packet(uint4 *to, const char *from, int bytes,
                                                        const char *whole)
    {
        if (kIsAligned || (bytes > 0 && from + 16 <= whole))
            copy_16<false>(to, from, true, 0);
        else if (bytes > 0)
            *to = load_pieces(from, bytes);
    }
    // To the L2 cache, by lines.
    __device__ __forceinline__ void prefetch_row(const char *from) const
    {
#pragma unroll 1
        for (int vector = first; first % 8 == 0 && vector < end; vector += step)
            prefetch_to_l2(from + (int64_t)vector * 16);
    }
    __device__ __forceinline__ void fetch() const
    {
        if (n_staged > 0)
            fetch_row(stage, source.x, args.norm.x_end);
        if (K::kAdds && n_staged > 1)
            fetch_row(stage + packets, source.residual, args.norm.residual_end);
        end_stage();
        if (K::kAdds && n_staged == 1)
            prefetch_row(source.residual);
#pragma unroll 1
        for (int vector = first; vector < end; vector += step)
            prefetch_weights<kVec>(args.norm, place.weights(args), vector);
        wait_for_stage(1);
        __syncthreads(); // packets are those of other threads, too
    }
    // A vector of the i-th tensor.
    __device__ __forceinline__ uint4 get(int i, const char *from, const char *whole,
                                         int vector) const
    {
        const int n = left(vector);
        if (kIsAligned)
            return i < n_staged ? stage[i * packets + vector]
                                : load_16(from + (int64_t)vector * 16);
        if (i < n_staged)
            return get_staged<kSize>(stage + i * packets + vector, (int)((uintptr_t)from & 15), n,
                                     n >= kVec);
        shifted_vector<kSize> shifted;
        shifted.start(from + (int64_t)vector * 16, min(16, n * kSize), whole);
        return shifted.finish();
    }
    __device__ __forceinline__ uint4 get_x(int vector) const
    {
        return get(0, source.x, args.norm.x_end, vector);
    }
    __device__ __forceinline__ void get(int vector, raw_row<K, 1> &raw) const
    {
        raw.x[0] = get_x(vector);
        if constexpr (K::kAdds)
            raw.residual[0] = get(1, source.residual, args.norm.residual_end, vector);
    }
    __device__ __forceinline__ bool keeps_z() const
    {
        return kMakesZ && args.norm.is_staged >= kStagedWithZ;
    }
    __device__ __forceinline__ uint4 *z_of(int vector) const
    {
        return stage + (kIsAligned ? 0 : 2 * packets) + vector;
    }
    // A share of the squares, read for the first time or once more.
    template <typename Acc, bool kIsFirst>
    __device__ __forceinline__ Acc share_of_squares(int share) const
    {
        const int n_shares = args.norm.n_shares;
        square_sums<Acc> sums;
#pragma unroll 1
        for (int vector = share; share < n_shares && vector < end; vector += n_shares) {
            float z[kVec];
            if (!kIsFirst && keeps_z()) {
                get_packets<T, kPacketsOfZ>(z_of(vector), packets, z);
            } else {
                raw_row<K, 1> raw;
                if constexpr (kMakesZ)
                    get(vector, raw);
                else
                    raw.x[0] = get_x(vector);
                unpack_pair(args, raw, 0, z);
                if (kIsFirst && keeps_z())
                    put_packets<T, kPacketsOfZ>(z_of(vector), packets, z);
            }
            sums.add(z);
        }
        return sums.total();
    }
    template <typename Acc, bool kIsFirst>
    __device__ __forceinline__ Acc sum_of_squares(Acc *partial,
                                                  cluster_values<Acc, 32> &of_row) const
    {
        const int n_shares = args.norm.n_shares;
        Acc sum[2] = {};
#pragma unroll 1
        for (int i = first; i < 2 * step && (i == first || i < n_shares); i += step) {
            sum[0] = sum[1];
            sum[1] = share_of_squares<Acc, kIsFirst>(i);
        }
        if (gridDim.y > 1) {
            const Acc of_warp = sum_in_warp<32>(sum[1]);
            if (first < n_shares)
                of_row.send_of_warp(of_warp, args.of_block / 32);
            if (kMakesZ)
                __syncthreads(); // z is other threads', too
            of_row.wait();
            __syncwarp();
            return sum_leaves(of_row.of_warp, n_shares / 32);
        }
        return n_shares > step ? sum_in_group(sum, partial, step)
                               : sum_in_group(sum[1], partial, n_shares);
    }
    __device__ __forceinline__ row_scale find_scale() const
    {
        __shared__ float partial[32];
        __shared__ double exact_partial[32];
        return scale_by(
            args.norm, step < 32, [&] { return sum_of_squares<float, true>(partial, blocks.sum); },
            [&] { return sum_of_squares<double, false>(exact_partial, blocks.exact); });
    }
    __device__ __forceinline__ void finish(int vector, const raw_row<K, 1> &raw,
                                           const row_scale &scale, float (&y)[kVec]) const
    {
        float gain[kVec], other[kVec];
        if (keeps_z())
            get_packets<T, kPacketsOfZ>(z_of(vector), packets, y);
        else
            unpack_pair(args, raw, 0, y);
        gains_at<T, kIsAligned>(args.norm, place.weights(args), 1.0f, vector, gain);
        add_bias(args.norm, gain);
        unpack_second<K>(args, raw.residual[0], other);
        finish_pair<K>(args, gain, scale, other, y);
    }
    // All lanes of a warp take part. What is not staged is asked for before any of it is used.
    __device__ __forceinline__ void write(const row_scale &scale) const
    {
        constexpr int kBatch = kIsAligned && K::kPair == NORM_THEN_ADD ? 2 : 1;
        T *to = static_cast<T *>(args.norm.y) + place.row * args.norm.y_pitch + place.column;
#pragma unroll 1
        for (int i = first; __any_sync(0xFFFFFFFFu, i < end); i += kBatch * step) {
            raw_row<K, 1> raw[kBatch];
#pragma unroll
            for (int v = 0; v < kBatch; v++)
                if (i + v * step < end && !keeps_z())
                    get(i + v * step, raw[v]);
#pragma unroll
            for (int v = 0; v < kBatch; v++) {
                const int vector = i + v * step;
                float y[kVec] = {};
                if (vector < end)
                    finish(vector, raw[v], scale, y);
                put_vector<T, kIsAligned>(to + (int64_t)vector * kVec, step, first, left(vector),
                                          y);
            }
        }
    }
};

template <typename K, bool kIsAligned>
__global__ void __launch_bounds__(kMostStagedThreads, 2)
    pair_staged_kernel(const __grid_constant__ struct pair_args args)
{
    __shared__ row_exchange blocks;
    blocks.begin(args.of_block / 32);
    const staged_pair<K, kIsAligned> row(args, blocks);
    row.fetch();
    row.write(rounded_scale<K>(args, row.find_scale()));
}
