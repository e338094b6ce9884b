// norm_narrow.cuh - norms of rows of up to 16 vectors, a part of a warp each, where norm.cuh and
// norm_centred.cuh would load them by elements: rows beside each other whose width 16 bytes do not
// divide, and heads with weights of their own. Rows by the hundred thousand are bound by what each
// costs beside its bytes. Wider ones that a warp takes: norm_narrow_lanes.cuh.
//
// A warp's rows are one span of memory, whatever their width: it comes to shared memory and leaves
// it in whole packets of 16 bytes, of which only the first and the last are cut. A row's threads
// find their vectors there, shifted into place.
//
// A warp takes spans in turn, so far apart that weights, which are loaded by elements, are the same
// for all of them. The next one is on its way while a row is summed.
//
// Threads, vectors and the order of sums are those of norm.cuh, or of norm_centred.cuh.
#pragma once

#include "cuda/device/norm.cuh"
#include "cuda/device/norm_centred.cuh"
#include "cuda/device/stage.cuh"

extern __shared__ uint4 narrow_spans[]; // of a block's warps

template <typename K, bool kCentre>
struct narrow_config {
    static constexpr int kVectors = 2, kShares = 1; // of a thread
    static constexpr bool kIsCentred = kCentre;
    static constexpr bool kIsPlain = false;
    static constexpr bool kHoldsFloats = true;
    static constexpr int kMinBlocks = 4, kMostWarps = 8;
    static constexpr int kTensors = K::kAdds ? 4 : 2; // that have a span in a stage
};

// ------------------------------------------------------------------------------------ spans

// Packets that cover so many bytes at any address of an element, and the one behind them, which
// shifting reads.
__host__ __device__ static inline int packets_of_span(int64_t bytes)
{
    return (int)((bytes + 14) / 16 + 2);
}

__device__ __forceinline__ int lane_of_block()
{
    return (threadIdx.y * blockDim.x + threadIdx.x) % 32;
}

// A warp's rows in a tensor, whose elements have kUnit bytes. In shared memory byte i of it is
// where it is in its packet in memory. All lanes take part.
template <int kUnit>
struct warp_span {
    static constexpr int kUnits = 16 / kUnit; // of a packet
    char *first;                              // the packet that it begins in
    int off, end;                             // bytes of it, from there on

    __device__ __forceinline__ warp_span(const void *at, int bytes)
    {
        off = (int)((uintptr_t)at & 15);
        first = static_cast<char *>(const_cast<void *>(at)) - off;
        end = off + bytes;
    }
    // whole: whole_end of the tensor.
    __device__ __forceinline__ void fetch(uint4 *stage, const char *whole) const
    {
        for (int i = lane_of_block() * 16; i < end; i += 32 * 16) {
            if (first + i + 16 <= whole)
                copy_16<false>(stage + i / 16, first + i, true, 0);
            else
                stage[i / 16] = load_pieces(first + i, end - i);
        }
    }
    // What is cut at either end is stored by elements, a lane each.
    __device__ __forceinline__ void store(const uint4 *stage) const
    {
        using unit = std::conditional_t<kUnit == 4, uint32_t, uint16_t>;
        const int lane = lane_of_block(), last = end & ~15;
        for (int i = lane * 16; i < last; i += 32 * 16)
            if (i >= off)
                *reinterpret_cast<uint4 *>(first + i) = stage[i / 16];
        const bool is_tail = lane >= kUnits;
        const int at = (is_tail ? last : off) + lane % kUnits * kUnit;
        const bool is_cut = is_tail ? last > 0 || off == 0 : off > 0;
        if (lane < 2 * kUnits && is_cut && at < end && (is_tail || at < 16))
            *reinterpret_cast<unit *>(first + at) =
                *reinterpret_cast<const unit *>(reinterpret_cast<const char *>(stage) + at);
    }
};

// The other way of get_staged (shifted.cuh): the first and the last word may be a neighbour's, too.
template <int kUnit>
__device__ __forceinline__ void put_staged(uint4 *stage, int at, int n, bool is_whole,
                                           const uint4 &raw)
{
    const uint32_t word[5] = {raw.x, raw.y, raw.z, raw.w, 0};
    uint32_t *to = reinterpret_cast<uint32_t *>(stage) + at / 4;
    uint16_t *half = reinterpret_cast<uint16_t *>(to);
    if constexpr (kUnit == 4) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (is_whole || i < n)
                to[i] = word[i];
        return;
    }
    const int before = at / 2 & 1, end = before + (is_whole ? 8 : min(n, 8)); // from the first word
    uint32_t cut = before ? raw.w >> 16 : 0;
    if (before)
        half[1] = (uint16_t)raw.x;
    else if (end > 1)
        to[0] = raw.x;
    else
        cut = raw.x;
#pragma unroll
    for (int i = 1; i < 4; i++) {
        const uint32_t turned = __funnelshift_l(word[i - 1], word[i], 16 * before);
        if (is_whole || 2 * i + 2 <= end)
            to[i] = turned;
        else if (end == 2 * i + 1)
            cut = turned;
    }
    if (end & 1)
        half[end - 1] = (uint16_t)cut;
}

// ------------------------------------------------------------------------------------ rows

// A warp's rows of a turn, and a thread's part of one: vectors thread, thread + threads, ...
template <typename K, typename C>
struct narrow_rows {
    using T = typename K::T;
    static constexpr int kVec = K::kVec, kSize = (int)sizeof(T), kVectors = C::kVectors;
    const norm_args &args;
    row_threads<false> group;
    int first;    // row of the warp
    int of_first; // elements from there to vector 0 of the thread
    uint4 *stage; // of x; those of the other tensors follow
    int packets;  // of a stage

    __device__ __forceinline__ explicit narrow_rows(const norm_args &norm)
        : args(norm), group{(int)blockDim.x, (int)threadIdx.x}
    {
        const int warp = (threadIdx.y * blockDim.x + threadIdx.x) / 32, rows = 32 / group.threads;
        first = (int)(blockIdx.x * blockDim.y) + warp * rows;
        of_first = (int)(threadIdx.y % rows * args.hidden) + group.thread * kVec;
        packets = packets_of_span(rows * args.hidden * kSize);
        stage = narrow_spans + warp * C::kTensors * packets;
    }
    __device__ __forceinline__ int row() const
    {
        return first + threadIdx.y % (32 / group.threads);
    }
    // Rows from one turn to the next.
    __device__ __forceinline__ int step() const
    {
        return (int)(gridDim.x * blockDim.y);
    }
    __device__ __forceinline__ bool has_next() const
    {
        return step() < (int)args.n_rows - first;
    }
    // Elements from vector v to the row's end, 0 or below: there is none.
    __device__ __forceinline__ int left(int v) const
    {
        return row() < args.n_rows ? (int)args.hidden - (v * group.threads + group.thread) * kVec
                                   : 0;
    }
    // The warp's rows of a turn.
    __device__ __forceinline__ warp_span<kSize> span(const void *from, int row) const
    {
        const int rows = min(32 / group.threads, (int)args.n_rows - row);
        return {static_cast<const T *>(from) + row * args.hidden, rows * (int)args.hidden * kSize};
    }
    // Byte of vector v in the stage of a tensor.
    __device__ __forceinline__ int staged_at(const void *from, int v) const
    {
        const int off = ((int)(uintptr_t)from + first * (int)args.hidden * kSize) & 15;
        return off + (of_first + v * group.threads * kVec) * kSize;
    }
    __device__ __forceinline__ void fetch(int row) const
    {
        span(args.x, row).fetch(stage, args.x_end);
        if constexpr (K::kAdds)
            span(args.residual, row).fetch(stage + packets, args.residual_end);
        end_stage();
    }
    // What was fetched, once all lanes have what they need of it.
    __device__ __forceinline__ void get(raw_row<K, kVectors> &raw) const
    {
        wait_for_stage(1);
        __syncwarp();
#pragma unroll
        for (int v = 0; v < kVectors; v++) {
            clear<K>(raw, v);
            if (left(v) <= 0)
                continue;
            raw.x[v] = get_staged<kSize>(stage, staged_at(args.x, v), left(v), is_whole(v));
            if constexpr (K::kAdds)
                raw.residual[v] = get_staged<kSize>(stage + packets, staged_at(args.residual, v),
                                                    left(v), is_whole(v));
        }
        __syncwarp();
    }
    // Every thread's vector v.
    __device__ __forceinline__ bool is_whole(int v) const
    {
        return (v + 1) * group.threads * kVec <= (int)args.hidden;
    }
    // A vector of a result, the i-th.
    __device__ __forceinline__ void put(int i, const void *to, int v, const float (&z)[kVec]) const
    {
        if (left(v) > 0)
            put_staged<kSize>(stage + (C::kTensors / 2 + i) * packets, staged_at(to, v), left(v),
                              is_whole(v), pack<T>(z));
    }
    __device__ __forceinline__ void store() const
    {
        __syncwarp();
        span(args.y, first).store(stage + C::kTensors / 2 * packets);
        if constexpr (K::kAdds)
            span(args.residual_out, first).store(stage + (C::kTensors / 2 + 1) * packets);
    }
    // Weights of the row's head are the same in every turn. Loads start together.
    __device__ __forceinline__ void start_weights(const void *from,
                                                  shifted_vector<kSize> (&vector)[kVectors]) const
    {
        const int width = (int)(args.heads * args.hidden);
        const int head = (int)((uint32_t)row() % (uint32_t)args.heads);
        const T *weights = static_cast<const T *>(from);
        const char *end = whole_end(weights, (int64_t)width * kSize);
#pragma unroll
        for (int v = 0; v < kVectors; v++) {
            const int at = head * (int)args.hidden + (v * group.threads + group.thread) * kVec;
            const int bytes = from && left(v) > 0 ? min(16, (width - at) * kSize) : 0;
            vector[v].start(weights + at, bytes, end);
        }
    }
    __device__ __forceinline__ void finish_weights(const void *from, float absent,
                                                   const shifted_vector<kSize> (&vector)[kVectors],
                                                   uint4 (&weights)[kVectors]) const
    {
        float all[kVec];
#pragma unroll
        for (float &one : all)
            one = absent;
#pragma unroll
        for (int v = 0; v < kVectors; v++)
            weights[v] = from ? vector[v].finish() : pack<T>(all);
    }
};

// ------------------------------------------------------------------------------------ kernels

template <typename Acc, typename Values>
__device__ __forceinline__ Acc narrow_sum(const Values &values, int threads)
{
    square_sums<Acc> squares;
#pragma unroll
    for (int v = 0; v < Values::kVectors; v++)
        squares.add(values.z[v]);
    return sum_in_group(squares.total(), static_cast<Acc *>(nullptr), threads);
}

// Several rows may share a warp, and all of its lanes take part in a sum.
template <typename Values>
__device__ __forceinline__ row_scale narrow_scale(const norm_args &args, const Values &values,
                                                  int threads)
{
    const float sum = narrow_sum<float>(values, threads);
    const float mean = fmaf(sum, args.inverse_hidden, args.eps);
    const bool is_done = is_good(sum, mean);
    float scale = inverse_root(mean);
    if (!__all_sync(0xFFFFFFFFu, is_done)) {
        const float exact = exact_scale(args, narrow_sum<double>(values, threads));
        scale = is_done ? scale : exact;
    }
    return {scale};
}

// blockDim.x threads a row, blockDim.y rows a block. The rows of a turn are a multiple of the heads
// behind those of the turn before.
template <typename K, typename C>
__global__ void __launch_bounds__(256, C::kMinBlocks)
    norm_narrow_kernel(const __grid_constant__ struct norm_args args)
{
    using T = typename K::T;
    constexpr int kVectors = C::kVectors;
    constexpr bool kMayRound = sizeof(T) == 2;
    narrow_rows<K, C> rows(args);
    const int n = rows.group.held_by_warp(args.hidden, K::kVec);
    uint4 gains[kVectors], biases[C::kIsCentred ? kVectors : 1];
    let_next_start();
    wait_for_previous();
    if (rows.first >= args.n_rows)
        return; // a warp
    rows.fetch(rows.first);
    shifted_vector<sizeof(T)> of_gain[kVectors], of_bias[kVectors];
    rows.start_weights(args.weight, of_gain);
    if constexpr (C::kIsCentred) {
        rows.start_weights(args.bias, of_bias);
        rows.finish_weights(args.bias, 0.0f, of_bias, biases);
    }
    rows.finish_weights(args.weight, 1.0f, of_gain, gains);
    for (;;) {
        raw_row<K, kVectors> raw;
        row_values<K, C> values;
        row_scale scale;
        rows.get(raw);
        if (rows.has_next())
            rows.fetch(rows.first + rows.step());
        values.take(args, raw);
        if constexpr (C::kIsCentred) {
            bool is_done;
            const centred_place<1> place{0, rows.left(0), 0, rows.group.threads * K::kVec};
            const held_row<K, C> held{values, place};
            scale = centre<float>(args, held, rows.group, n, is_done);
            if (!__all_sync(0xFFFFFFFFu, is_done)) {
                call_centre_rest<K>(args, rows.row(), args.n_rows, rows.group, rows.step());
                return;
            }
        } else {
            scale = narrow_scale(args, values, rows.group.threads);
        }
#pragma unroll
        for (int v = 0; v < kVectors; v++) {
            float y[K::kVec], gain[K::kVec];
            values.template get<false>(v, y);
            if constexpr (K::kAdds)
                rows.put(1, args.residual_out, v, y);
            unpack<T>(gains[v], gain);
            add_bias(args, gain);
            if constexpr (C::kIsCentred) {
                float bias[K::kVec];
                unpack<T>(biases[v], bias);
                finish_any<K>(args, gain, bias, scale, y);
            } else if (kMayRound && args.rounds_product) {
                finish_vector<K, kMayRound>(args, gain, scale, y);
            } else {
                finish_vector<K, false>(args, gain, scale, y);
            }
            rows.put(0, args.y, v, y);
        }
        rows.store();
        if (!rows.has_next())
            return;
        rows.first += rows.step();
    }
}
