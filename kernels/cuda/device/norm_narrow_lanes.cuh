// norm_narrow_lanes.cuh - norms of narrow rows (norm_narrow.cuh) of more than 16 vectors: a warp
// has a row, or a block of several warps has, and takes rows in turn.
//
// Such a row was bound by what its vectors cost beside their elements: to be shifted into place,
// twice, and cut at its end. Here four lanes have a vector, each the elements of one of the four
// sums of squares.cuh, as in norm_quarters.cuh. A row comes to shared memory and leaves it in
// packets of 16 bytes. Elements move one by one between there and registers, and no two lanes meet
// in a bank.
//
// Rows of a warp, or block, are so far apart that weights are the same for all of them, and a
// multiple of eight rows, too: so all begin at the same byte of a packet, and what follows from
// that is found once. The next one is on its way while a row is summed: to where that one was, once
// all lanes have it, or of a block, which would have to wait for that, to another place.
//
// The order of sums is that of norm.cuh, or of norm_centred.cuh: a row has eight threads there for
// each share of a lane here, which has elements of two of them, of four, or of sixteen. A warp of a
// block has what one has there.
#pragma once

#include "cuda/device/norm_narrow.cuh"
#include "cuda/device/norm_quarters.cuh"

// A row is up to so many slots of eight vectors, of which four lanes have one each. The first half
// of them are whole. kOfBlock: a row has several warps, each of so many slots.
template <typename K, int kRowSlots, bool kCentre, bool kOfBlock = false>
struct lanes_config {
    static constexpr bool kIsBlock = kOfBlock;
    static constexpr int kSlots = kRowSlots;
    // of a block of several rows: the last turn of smaller ones leaves fewer places idle
    static constexpr int kMostWarps = kSlots >= 6 ? 4 : 8;
    static constexpr int kShares = kSlots <= 4 ? 2 : kSlots <= 16 ? 4 : 16; // of the row's sum
    static constexpr bool kIsCentred = kCentre;
    static constexpr int kTensors = K::kAdds ? 4 : 2; // that have a span
    static constexpr int kSpans = kIsBlock ? kTensors * 3 / 2 : kTensors;
    static constexpr int kElements = kSlots * K::kVec / 4; // of a lane
    // what elements and their weights take, and the rest
    static constexpr int kRegisters = kElements * (kCentre ? 3 : 2) + (K::kAdds ? 44 : 32);
    static constexpr int kMinBlocks = kRegisters <= 64 ? 4 : kRegisters <= 80 ? 3 : 2;
};

// ------------------------------------------------------------------------------------ spans

// A row in a tensor, and its packets in shared memory, of which a thread has every 32nd, or as many
// apart as the row has threads.
template <typename T, int kSlots, bool kIsBlock>
struct row_span {
    static constexpr int kUnits = 16 / (int)sizeof(T), kNoEdge = INT_MIN;
    static constexpr int kEach = (kSlots * 8 + 1 + 31) / 32; // packets of a lane, at most
    char *at;                                                // its first one
    char *stage;                                             // the same in shared memory
    int off, end; // bytes from the row's first packet to the row, and to its end
    int edge;     // from the thread's first packet to an element that no whole packet has

    __device__ __forceinline__ row_span(const void *tensor, int64_t row, int hidden, uint4 *to)
    {
        const T *from = static_cast<const T *>(tensor) + row * hidden;
        const int lane = threadIdx.x; // or thread
        off = (int)((uintptr_t)from & 15);
        end = off + hidden * (int)sizeof(T);
        at = reinterpret_cast<char *>(const_cast<T *>(from)) - off + 16 * lane;
        stage = reinterpret_cast<char *>(to + lane);
        const bool is_tail = lane >= kUnits;
        const int of_row = (is_tail ? end & ~15 : off) + lane % kUnits * (int)sizeof(T);
        const bool is_there = is_tail ? of_row < end : off > 0 && of_row < 16;
        edge = lane < 2 * kUnits && is_there ? of_row - 16 * lane : kNoEdge;
    }
    // From a packet of the thread to the next.
    static __device__ __forceinline__ int step()
    {
        return 16 * (kIsBlock ? (int)blockDim.x : 32);
    }
    // Where its packet j ends.
    static __device__ __forceinline__ int end_of(int j)
    {
        return ((int)threadIdx.x + 1) * 16 + j * step();
    }
    // is_last: behind the row may be no memory.
    __device__ __forceinline__ void fetch(bool is_last) const
    {
        if (!is_last) {
#pragma unroll
            for (int j = 0; j < kEach; j++)
                if (end_of(j) < end + 16)
                    copy_16<false>(reinterpret_cast<uint4 *>(stage + j * step()), at + j * step(),
                                   true, 0);
        } else {
#pragma unroll 1
            for (int j = 0; end_of(j) < end + 16; j++)
                *reinterpret_cast<uint4 *>(stage + j * step()) =
                    load_pieces(at + j * step(), end + 16 - end_of(j));
        }
    }
    __device__ __forceinline__ void store() const
    {
#pragma unroll
        for (int j = 0; j < kEach; j++)
            if (end_of(j) >= off + 16 && end_of(j) <= end)
                *reinterpret_cast<uint4 *>(at + j * step()) =
                    *reinterpret_cast<const uint4 *>(stage + j * step());
        if (edge != kNoEdge)
            *reinterpret_cast<T *>(at + edge) = *reinterpret_cast<const T *>(stage + edge);
    }
    // An element of the row in shared memory.
    __device__ __forceinline__ T *element(int i) const
    {
        return reinterpret_cast<T *>(stage - 16 * (int)threadIdx.x + off) + i;
    }
};

// ------------------------------------------------------------------------------------ rows

// A lane's elements of a row: every fourth one of a vector of each slot.
template <typename K, typename C>
struct lane_elements {
    using T = typename K::T;
    static constexpr int kEach = K::kVec / 4; // of a vector
    int first, left; // element of the row, and elements from there to its end
    int further;     // so many behind their place among a warp's are those of the second half

    __device__ __forceinline__ explicit lane_elements(const norm_args &args)
    {
        const int warp = C::kIsBlock ? (int)threadIdx.x / 32 : 0, lane = (int)threadIdx.x % 32;
        first = (warp * 32 + lane / 4) * K::kVec + lane % 4;
        left = (int)args.hidden - first;
        further = C::kIsBlock ? ((int)blockDim.x - 32) * K::kVec : 0;
    }
    // From the first one to the i-th.
    __device__ __forceinline__ int behind(int i) const
    {
        return i / kEach * 8 * K::kVec + i % kEach * 4 + (i < C::kElements / 2 ? 0 : further);
    }
    __device__ __forceinline__ bool has(int i) const
    {
        return i < C::kElements / 2 || behind(i) < left;
    }
    // Those of memory, or of shared memory; absent where there are none.
    __device__ __forceinline__ void get(const T *from, float absent, float (&x)[C::kElements]) const
    {
#pragma unroll
        for (int i = 0; i < C::kElements; i++)
            x[i] = has(i) ? element<T>::to_float(from[behind(i)]) : absent;
    }
    template <typename To>
    __device__ __forceinline__ void put(To *to, const float (&x)[C::kElements]) const
    {
#pragma unroll
        for (int i = 0; i < C::kElements; i++)
            if (has(i))
                to[behind(i)] = element<To>::from_float(x[i]);
    }
    // Weights, or biases, of a row's head.
    __device__ __forceinline__ void get_weights(const norm_args &args, const void *from, int row,
                                                float absent, float (&x)[C::kElements]) const
    {
        const int head = (int)((uint32_t)row % (uint32_t)args.heads);
#pragma unroll
        for (float &one : x)
            one = absent;
        if (from)
            get(static_cast<const T *>(from) + head * (int)args.hidden + first, absent, x);
    }
};

// The sum of a row by its lanes' shares, in the order of norm.cuh: share i of four lanes is that of
// thread 8 i + lane / 4 there. Of more threads than a warp has, those of each warp come first.
template <typename Acc, int n>
__device__ __forceinline__ Acc sum_of_lanes(Acc (&share)[n])
{
    constexpr int kOfWarp = n < 4 ? n : 4;
    Acc of_warp[n / kOfWarp];
#pragma unroll
    for (Acc &of_vectors : share) {
        of_vectors += exchange(of_vectors, 1);
        of_vectors += exchange(of_vectors, 2);
    }
#pragma unroll
    for (int warp = 0; warp < n / kOfWarp; warp++) {
        Acc *mine = share + warp * kOfWarp;
#pragma unroll
        for (int half = kOfWarp / 2; half > 0; half /= 2)
#pragma unroll
            for (int i = 0; i < half; i++)
                mine[i] += mine[i + half];
#pragma unroll
        for (int distance = 16; distance >= 4; distance /= 2)
            mine[0] += exchange(mine[0], distance);
        of_warp[warp] = mine[0];
    }
    return sum_tree<n / kOfWarp>(of_warp);
}

// add(share, i) of a lane's elements, of each share in turn. What is rare has loops: it would take
// the registers of what is not.
template <typename Sum, typename K, typename C, typename F>
__device__ __forceinline__ Sum sum_elements(const lane_elements<K, C> &, const F &add)
{
    constexpr int kEach = K::kVec / 4;
    constexpr int kAtOnce = std::is_same_v<Sum, float> || std::is_same_v<Sum, two_sums<float>>
                                ? (C::kSlots + C::kShares - 1) / C::kShares
                                : 1;
    Sum share[C::kShares] = {};
#pragma unroll
    for (int i = 0; i < C::kShares; i++)
#pragma unroll kAtOnce
        for (int slot = i; slot < C::kSlots; slot += C::kShares)
#pragma unroll
            for (int j = 0; j < kEach; j++)
                add(share[i], slot * kEach + j);
    return sum_of_lanes(share);
}

// Of elements value(i), zeros where there are none. n: those of the row that the warp has.
template <typename Acc, typename K, typename C, typename F>
__device__ __forceinline__ row_scale centre_elements(const norm_args &args,
                                                     const lane_elements<K, C> &mine, int n,
                                                     Acc inverse, bool &is_done, const F &value)
{
    const Acc sum = sum_elements<Acc>(mine, [&](Acc &share, int i) { share += (Acc)value(i); });
    warp_sums<Acc> warp;
    warp.n = (float)n;
    warp.mean = (float)(sum * inverse);
    warp.about = sum_elements<two_sums<Acc>>(mine, [&](two_sums<Acc> &share, int i) {
        const Acc off = mine.has(i) ? (Acc)value(i) - (Acc)warp.mean : (Acc)0;
        share.first += off;
        share.second = fma(off, off, share.second);
    });
    if constexpr (C::kIsBlock) {
        __shared__ warp_sums<Acc> together[32];
        const row_threads<true> group{(int)blockDim.x, (int)threadIdx.x};
        warp.about = sums_of_block(group, warp, together, warp.mean);
    }
    return scale_about(args, warp.mean, warp.about, is_done);
}

template <typename Acc, typename K, typename C, typename F>
__device__ __forceinline__ Acc squares_of(const lane_elements<K, C> &mine, const F &value)
{
    const Acc sum = sum_elements<Acc>(
        mine, [&](Acc &share, int i) { share = fma((Acc)value(i), (Acc)value(i), share); });
    if constexpr (C::kIsBlock) {
        __shared__ Acc of_warp[8];
        if (threadIdx.x % 32 == 0)
            of_warp[threadIdx.x / 32] = sum;
        __syncthreads();
        return sum_leaves(of_warp, (int)blockDim.x / 32);
    } else {
        return sum;
    }
}

// What there is to divide by. In double where float32 has lost too much: of the same elements in
// shared memory, where those of results will be.
template <typename K, typename C>
__device__ __forceinline__ row_scale scale_of_elements(const norm_args &args,
                                                       const lane_elements<K, C> &mine,
                                                       const float (&z)[C::kElements],
                                                       int n_of_warp, float inverse, void *room)
{
    using kept = std::conditional_t<K::kAdds, float, typename K::T>;
    kept *const all = static_cast<kept *>(room) + mine.first;
    const auto held = [&](int i) { return z[i]; };
    const auto again = [&](int i) {
        return mine.has(i) ? element<kept>::to_float(all[mine.behind(i)]) : 0.0f;
    };
    bool is_done;
    row_scale scale = {};
    if constexpr (C::kIsCentred) {
        scale = centre_elements<float>(args, mine, n_of_warp, inverse, is_done, held);
    } else {
        const float sum = squares_of<float>(mine, held);
        const float mean = fmaf(sum, args.inverse_hidden, args.eps);
        is_done = is_good(sum, mean);
        scale.scale = inverse_root(mean);
    }
    if (is_done)
        return scale;
    mine.put(all, z); // a lane reads its own
    if constexpr (C::kIsCentred)
        scale = centre_elements<double>(args, mine, n_of_warp, inverse_of<double>(n_of_warp),
                                        is_done, again);
    else
        scale.scale = exact_scale(args, squares_of<double>(mine, again));
    return scale;
}

// ------------------------------------------------------------------------------------ kernel

// Of those that have a row.
template <typename C>
__device__ __forceinline__ void wait_for_each_other()
{
    if constexpr (C::kIsBlock)
        __syncthreads();
    else
        __syncwarp();
}

// A row for each of a block's warps, or for all of them, in turn.
template <typename K, typename C>
__global__ void __launch_bounds__(256, C::kMinBlocks)
    norm_lanes_kernel(const __grid_constant__ struct norm_args args)
{
    using T = typename K::T;
    using span = row_span<T, C::kSlots, C::kIsBlock>;
    constexpr int n = C::kElements;
    const int hidden = (int)args.hidden, n_rows = (int)args.n_rows;
    const int step = (int)(gridDim.x * blockDim.y);
    const int packets = packets_of_span(hidden * (int)sizeof(T));
    const int64_t bytes_apart = (int64_t)step * hidden * (int)sizeof(T);
    int row = (int)(blockIdx.x * blockDim.y + threadIdx.y);
    uint4 *const stage = narrow_spans + threadIdx.y * C::kSpans * packets;
    uint4 *const results = stage + C::kTensors / 2 * packets;
    const lane_elements<K, C> mine(args);
    int n_of_warp = hidden;
    if constexpr (C::kIsBlock)
        n_of_warp =
            row_threads<true>{(int)blockDim.x, (int)threadIdx.x}.held_of<2>(hidden, K::kVec);
    const float inverse = inverse_of<float>(n_of_warp);
    let_next_start();
    wait_for_previous();
    if (row >= n_rows)
        return; // a warp, or a block
    span x(args.x, row, hidden, stage), y(args.y, row, hidden, results);
    span residual(args.residual, row, hidden, stage + packets);
    span sum(args.residual_out, row, hidden, results + packets);
    const auto fetch = [&] {
        x.fetch(row == n_rows - 1);
        if constexpr (K::kAdds)
            residual.fetch(row == n_rows - 1);
        end_stage();
    };
    int apart = C::kTensors * packets * 16; // from a row's place to the next one's
    const auto fetch_next = [&] {
        row = n_rows - row > step ? row + step : n_rows;
        x.at += bytes_apart, residual.at += bytes_apart;
        if constexpr (C::kIsBlock) {
            x.stage += apart, residual.stage += apart;
            apart = -apart;
        }
        if (row < n_rows)
            fetch();
    };
    fetch();
    float gain[n], bias[C::kIsCentred ? n : 1];
    mine.get_weights(args, args.weight, row, 1.0f, gain);
    add_bias(args, gain);
    if constexpr (C::kIsCentred)
        mine.get_weights(args, args.bias, row, 0.0f, bias);
    for (;;) {
        float z[n], other[n];
        wait_for_stage(1);
        wait_for_each_other<C>();
        mine.get(x.element(mine.first), 0.0f, z);
        if constexpr (K::kAdds)
            mine.get(residual.element(mine.first), 0.0f, other);
        if constexpr (!C::kIsBlock)
            __syncwarp(); // all lanes have what they need of it
        take_elements<K>(args, z, other);
        fetch_next();
        const row_scale scale = scale_of_elements(args, mine, z, n_of_warp, inverse, results);
        if constexpr (K::kAdds)
            mine.put(sum.element(mine.first), z);
        if constexpr (C::kIsCentred)
            finish_any<part_kind<K, n>>(args, gain, bias, scale, z);
        else
            finish_elements<K>(args, gain, scale, other, z);
        mine.put(y.element(mine.first), z);
        wait_for_each_other<C>();
        y.store();
        if constexpr (K::kAdds)
            sum.store();
        if (row >= n_rows)
            return;
        y.at += bytes_apart, sum.at += bytes_apart;
    }
}
