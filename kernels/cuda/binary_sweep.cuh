// binary_sweep.cuh - sums of a gradient's terms by packets of 16 bytes, whatever the width of the
// innermost dim. The gradient has, by its innermost dim,
//
//     columns   an element for each column; a step is a row of them, a packet for each lane
//     rows      none; a step is a packet of a row
//
// and any dims that it keeps around them. Its terms lie in one dim more: in rows side by side
// (columns), or in rows of which each is some packets (rows), so many times.
//
// Packets lie at multiples of 16 bytes of memory, wherever rows begin: of a packet in which a row
// begins or ends a thread uses and stores a part. A thread of columns takes rows that begin at the
// same place of a packet, so it has the same columns in each. Those of threads that take other rows
// are shifted by some elements: the block adds them in shared memory, and of its lanes one more
// than it writes sums of has columns that were shifted out of the others. Of an operand that is
// broadcast, too, rows begin elsewhere in a packet: a thread shifts what two of its packets have.
#pragma once

#include "cuda/binary_sums.cuh"
#include "cuda/device/shifted.cuh"

enum sweep_mode {
    kSweepOne,     // x is not broadcast: its gradient is written on the way
    kSweepBoth,    // x is broadcast, too, and has a gradient of its own
    kSweepShifted, // the same, and rows may begin anywhere in a packet
    kSweepCross    // each row has one value of x: its gradient is summed on the way
};

__host__ __device__ constexpr bool is_of_both(int mode)
{
    return mode == kSweepBoth || mode == kSweepShifted;
}

constexpr int kRowSumThreads = 512; // at most, where a block has a row
constexpr int kSweepUnroll = 4;     // steps per iteration: eight loads of 16 bytes in flight

struct sweep_args {
    struct sum_args sum;
    struct walk_args walk;
    int64_t width;      // elements of the innermost dim
    int64_t packets;    // that cover it, wherever it begins
    int32_t is_shifted; // bool: rows may begin anywhere in a packet
    int32_t has_gaps;   // bool: packets are more than the dim's elements
    // rows
    int32_t row_step_bits; // lanes of a row: a power of two
    // columns
    struct divisor_of_index by_packets; // where is_small
    int64_t n_lanes;                    // packets of all kept elements
    uint32_t lanes, step_lanes;         // of a block
    uint32_t own_lanes;                 // of which it writes sums: one less where is_shifted
    int32_t y_is_packed;                // bool: 16 bytes of y and grad_y in one access
    int32_t x_is_one;                   // bool: x has one value along a row
    int64_t n_x;                        // elements of x
    int32_t most_threads;               // of a block of rows
    // cross
    uint32_t row_lanes;       // of a row's panel, side by side: a power of two
    uint32_t n_panels;        // warps over the columns of one kept element
    int64_t n_parts;          // of a row's sum: panels, for each kept element that x has not
    uint32_t panels_of_group; // of these a block adds the sums of rows, and then those of groups
    uint32_t n_groups;
    float *row_partial;    // [parts][rows], which are the elements of x
    uint32_t *row_counter; // [kept elements][segments][counters_of_rows]: how many are there; or
                           // none, where a kernel of its own adds the parts
};

// What an iteration has loaded.
template <typename T>
struct sweep_packets {
    uint4 g[kSweepUnroll], x[kSweepUnroll];
    T one_x[kSweepUnroll];      // of the row
    int64_t at[kSweepUnroll];   // negative: no step
    int32_t x_at[kSweepUnroll]; // of shifted x, or a cross
};

// Elements low to high of a packet; 1 in place of others, by which a quotient is quickly divided.
template <typename T>
__device__ __forceinline__ uint4 load_each(const T *from, int low, int high)
{
    T part[kVecOf<T>];
#pragma unroll
    for (int j = 0; j < kVecOf<T>; j++)
        part[j] = low <= j && j < high ? from[j] : element<T>::from_float(1.0f);
    uint4 packed;
    memcpy(&packed, part, sizeof packed);
    return packed;
}

// Out of line: few packets are loaded so.
template <typename T>
static __device__ __noinline__ uint4 load_between(const T *from, int low, int high)
{
    return load_each(from, low, high);
}

// Does x have rows that begin elsewhere in a packet than those of grad_output do?
template <int kMode>
__device__ __forceinline__ bool shifts_x(const sweep_args &args)
{
    return kMode == kSweepShifted && args.is_shifted && !args.x_is_one;
}

// Starts the loads of step i, if there is one; x_at is its place in an operand with strides of its
// own. Elements low to high are wanted: of a shifted x by elements where these have four bytes, by
// the first of two packets else (shift_x). The last packet of a tensor may have fewer elements than
// 16 bytes: see load_end.
template <typename T, int kMode>
__device__ __forceinline__ void start_step(const sweep_args &args, int64_t x_at, int low, int high,
                                           int i, sweep_packets<T> &packets)
{
    constexpr int kVec = kVecOf<T>;
    const sum_args &sum = args.sum;
    const int64_t at = packets.at[i];
    const T *x = static_cast<const T *>(sum.x);
    const bool x_is_one = kMode == kSweepCross || (is_of_both(kMode) && args.x_is_one);
    if (kMode == kSweepCross)
        packets.x_at[i] = (int32_t)x_at;
    if (x_is_one && at >= 0)
        packets.one_x[i] = x[x_at];
    if (shifts_x<kMode>(args) && sizeof(T) == 4) {
        if (at >= 0)
            packets.x[i] = load_each(x + x_at, low, high);
    } else if (shifts_x<kMode>(args)) {
        const int off = (int)x_at & (kVec - 1);
        const int64_t first = x_at - off;
        packets.x_at[i] = (int32_t)x_at;
        packets.x[i] =
            load_16_if(at >= 0 && low < kVec - off && first + kVec <= args.n_x, x + first);
    }
    if ((uint64_t)at > (uint64_t)(sum.n - kVec))
        return;
    packets.g[i] = load_16(static_cast<const T *>(sum.g) + at);
    if (!x_is_one && !shifts_x<kMode>(args))
        packets.x[i] = load_16(x + (kMode == kSweepOne ? at : x_at));
}

// Loads what there is of the tensor's last packet, where a thread has it and it is not whole.
template <typename T, int kMode>
__device__ __forceinline__ void load_end(const sweep_args &args, sweep_packets<T> &packets)
{
    const sum_args &sum = args.sum;
    int64_t end = -1;
    if (!args.is_shifted)
        return;
#pragma unroll
    for (int i = 0; i < kSweepUnroll; i++)
        end = packets.at[i] > sum.n - kVecOf<T> ? packets.at[i] : end;
    if (end < 0)
        return;
    const int64_t from = end * (int64_t)sizeof(T);
    const int bytes = (int)((sum.n - end) * (int64_t)sizeof(T));
    const uint4 g = load_pieces(static_cast<const char *>(sum.g) + from, bytes);
    uint4 x = g;
    if (kMode == kSweepOne)
        x = load_pieces(static_cast<const char *>(sum.x) + from, bytes);
#pragma unroll
    for (int i = 0; i < kSweepUnroll; i++) {
        if (packets.at[i] != end)
            continue;
        packets.g[i] = g;
        if (kMode == kSweepOne)
            packets.x[i] = x;
    }
}

// Elements low to high of x from x_at on, once their first packet is there. The second one comes
// from L1, for it is the first one of a thread beside this one. Where one of them has no wanted
// element, the other takes its place: zeros would be divisors, which take long.
template <typename T>
__device__ __forceinline__ uint4 shift_x(const sweep_args &args, uint4 first, int32_t x_at, int low,
                                         int high)
{
    constexpr int kVec = kVecOf<T>;
    const T *x = static_cast<const T *>(args.sum.x);
    const int off = x_at & (kVec - 1);
    const bool has_second = min(high, kVec) > kVec - off;
    if (x_at - off + (has_second ? 2 : 1) * kVec > args.n_x)
        return load_between(x + x_at, low, high);
    if (!has_second)
        return shift_packets<(int)sizeof(T)>(first, first, off * (int)sizeof(T));
    const uint4 second = load_16(x + x_at - off + kVec);
    return shift_packets<(int)sizeof(T)>(low < kVec - off ? first : second, second,
                                         off * (int)sizeof(T));
}

// The terms of step i, of which elements low to high are wanted, once its packets are there.
template <typename T, int kKind, int kMode, int kSums>
__device__ __forceinline__ void finish_step(const sweep_args &args, int i, int low, int high,
                                            sweep_packets<T> &packets,
                                            const kept_elements<T, kKind, kSums> &y,
                                            float (&of_x)[kVecOf<T>], float (&of_y)[kVecOf<T>])
{
    constexpr int kVec = kVecOf<T>;
    const sum_args &sum = args.sum;
    const bool x_is_one = kMode == kSweepCross || (is_of_both(kMode) && args.x_is_one);
    float x[kVec], one_x = sum.one.x;
    if (shifts_x<kMode>(args) && sizeof(T) == 2)
        packets.x[i] = shift_x<T>(args, packets.x[i], packets.x_at[i], low, high);
    unpack<T>(packets.x[i], x);
    if (x_is_one && sum.has_values)
        one_x = element<T>::to_float(packets.one_x[i]);
#pragma unroll
    for (int j = 0; j < kVec; j++)
        x[j] = x_is_one || !sum.has_values ? one_x : x[j];
    packet_terms<T, kKind>(sum.kind, packets.g[i], packets.x[i], x_is_one, x, y, of_x, of_y);
}

// Stores elements low to high of the gradient of x.
template <typename T>
__device__ __forceinline__ void store_step(const sweep_args &args, int64_t at, int low, int high,
                                           const float (&of_x)[kVecOf<T>])
{
    T *to = static_cast<T *>(args.sum.grad_x) + at;
    if (low <= 0 && high >= kVecOf<T>)
        packet<T, kVecOf<T>>::store(to, of_x);
    else
        store_part<T>(to, pack<T>(of_x), low, high);
}

// Zeros in place of terms that are not low to high of their packet.
template <int kVec>
__device__ __forceinline__ void keep_part(int low, int high, float (&term)[kVec])
{
    if (low <= 0 && high >= kVec)
        return;
#pragma unroll
    for (int j = 0; j < kVec; j++)
        term[j] = low <= j && j < high ? term[j] : 0.0f;
}

template <int kVec>
__device__ __forceinline__ float add_packet(float (&term)[kVec])
{
#pragma unroll
    for (int half = kVec / 2; half > 0; half /= 2)
#pragma unroll
        for (int j = 0; j < half; j++)
            term[j] += term[j + half];
    return term[0];
}

// ------------------------------------------------------------------------------------ rows

template <typename T, int kKind, int kMode>
__device__ __forceinline__ double sweep_row(const sweep_args &args, sum_walk walk, int64_t kept)
{
    constexpr int kVec = kVecOf<T>;
    double sum = 0;
    for (; walk.n_left > 0; walk.n_left -= kSweepUnroll) {
        sweep_packets<T> packets;
        int low[kSweepUnroll], high[kSweepUnroll]; // elements that are of the row
        float terms[kVec] = {};
#pragma unroll
        for (int i = 0; i < kSweepUnroll; i++) {
            const int off =
                kMode != kSweepBoth && args.is_shifted ? (int)walk.at.g & (kVec - 1) : 0;
            const int64_t column = walk.inner * kVec - off;
            low[i] = walk.inner == 0 ? off : 0;
            high[i] = (int)min(args.width - column, (int64_t)kVec);
            packets.at[i] = i < walk.n_left && high[i] > 0 ? walk.at.g + column : -1;
            start_step<T, kMode>(args, walk.at.x + column, low[i], high[i], i, packets);
            advance<kMode != kSweepOne>(args.walk, walk);
        }
        const T of_row = static_cast<const T *>(args.sum.y)[kept]; // behind the others
        kept_elements<T, kKind, 1> y;
        y.y[0] = args.sum.has_values ? element<T>::to_float(of_row) : args.sum.one.y;
        y.begin(args.sum.kind);
        if (kMode != kSweepBoth)
            load_end<T, kMode>(args, packets);
#pragma unroll
        for (int i = 0; i < kSweepUnroll; i++) {
            float of_x[kVec], of_y[kVec];
            if (packets.at[i] < 0)
                continue;
            finish_step<T, kKind, kMode>(args, i, low[i], high[i], packets, y, of_x, of_y);
            if (kMode == kSweepOne)
                store_step<T>(args, packets.at[i], low[i], high[i], of_x);
            if (kMode != kSweepBoth)
                keep_part(low[i], high[i], of_y);
#pragma unroll
            for (int j = 0; j < kVec; j++)
                terms[j] += of_y[j];
        }
        sum += (double)add_packet(terms);
    }
    return sum;
}

template <typename T, int kKind, int kMode>
__device__ __forceinline__ void sweep_rows_of(const sweep_args &args, const sum_block &block)
{
    const int step_bits = args.row_step_bits, step_lanes = 1 << step_bits;
    const int step_lane = threadIdx.x & (step_lanes - 1);
    const int64_t kept = block.group * (blockDim.x >> step_bits) + (threadIdx.x >> step_bits);
    sum_offsets at = kept_offsets(args.sum, kept);
    const int64_t begin = begin_segment(args.sum, block.segment, at);
    const int64_t end = min(begin + args.sum.steps_per_segment, args.sum.n_steps);
    sum_walk walk = walk_from(args.sum, args.walk, at, begin + step_lane,
                              kept < args.sum.n_kept ? end : 0, step_lanes);
    finish_before_wait(static_cast<const T *>(args.sum.g) + walk.at.g, walk.n_left);
    wait_for_previous();
    double sum = sweep_row<T, kKind, kMode>(args, walk, kept);
    finish_lanes<T, kMode == kSweepOne ? kRowSumThreads : kSumThreads>(args.sum, {0, step_bits},
                                                                       block, kept, sum);
}

// 768 threads: 80 registers, so that three blocks of 256 find room.
template <typename T, int kKind, int kMode>
__global__ void __launch_bounds__(sizeof(T) == 4 && kKind != kBinaryOverX ? 768 : kRowSumThreads)
    sweep_rows_kernel(const __grid_constant__ struct sweep_args args)
{
    let_next_start();
    sweep_rows_of<T, kKind, kMode>(args, {blockIdx.x, blockIdx.y});
}

// ------------------------------------------------------------------------------------ columns

struct column_place {
    sum_block block;
    uint32_t lane, step_lane;
    int64_t at_y;  // first of the thread's columns in y and its gradient, before them where off
    int off;       // of the packet's elements, those before the row where it is the first
    int low, high; // those of the row; of a cross those of which this block sums
    bool is_inside;
    bool stores;       // else the next block has the packet, too; of a cross any sums of rows
    int32_t part;      // the first of a cross' sums that have this part
    int64_t step, end; // the first step, and that behind the segment
};

// The part that a kept element's panel has of sums of rows: elements that x has, too, share one.
static __device__ __noinline__ int64_t part_of(const sweep_args &args, int64_t kept, uint32_t panel)
{
    const sum_args &sum = args.sum;
    int64_t part = panel, stride = args.n_panels;
    for (int i = sum.n_kept_dims - 1; i >= 0; i--) {
        const sum_dim &dim = sum.dim[i];
        const int64_t outer = quotient_of(kept, dim.size, dim.by, sum.is_small);
        if (dim.x == 0) {
            part += (kept - outer * dim.size) * stride;
            stride *= dim.size;
        }
        kept = outer;
    }
    return part;
}

template <typename T, int kMode>
__device__ __forceinline__ column_place column_place_of(const sweep_args &args,
                                                        const sum_block &block, sum_walk &walk)
{
    constexpr int kVec = kVecOf<T>;
    const uint32_t lanes = args.lanes;
    column_place place;
    place.block = block;
    place.step_lane = threadIdx.x / lanes;
    place.lane = threadIdx.x - place.step_lane * lanes;
    const int64_t lane = block.group * args.own_lanes + place.lane;
    const int64_t kept = quotient_of(lane, args.packets, args.by_packets, args.sum.is_small);
    const int64_t packet = lane - kept * args.packets;
    sum_offsets at = kept_offsets(args.sum, kept);
    const int64_t begin = begin_segment(args.sum, block.segment, at);
    place.step = begin + place.step_lane;
    place.end = min(begin + args.sum.steps_per_segment, args.sum.n_steps);
    walk = walk_from(args.sum, args.walk, at, place.step, place.end, args.step_lanes);
    place.off = args.is_shifted ? (int)walk.at.g & (kVec - 1) : 0;
    const int64_t column = packet * kVec - place.off;
    place.is_inside =
        lane < args.n_lanes && place.step_lane < args.step_lanes && column < args.width;
    place.at_y = place.is_inside ? kept * args.width + column : 0;
    walk.at.g += column;
    walk.at.x += args.x_is_one ? 0 : column;
    walk.n_left = place.is_inside ? walk.n_left : 0;
    place.stores = kMode == kSweepCross ? lane < args.n_lanes : place.lane < args.own_lanes;
    const int64_t first = packet - place.lane, behind = first + args.own_lanes;
    const bool is_cut = kMode == kSweepCross && args.own_lanes < args.lanes;
    place.part = 0;
    if (kMode == kSweepCross && args.n_parts > 1)
        place.part =
            (int32_t)(part_of(args, kept, (uint32_t)packet / (is_cut ? args.own_lanes : 32)) *
                      args.n_x);
    const int64_t low = is_cut && first > 0 ? first * kVec : 0;
    const int64_t high = is_cut ? min(behind * kVec, args.width) : args.width;
    place.low = (int)max(low - column, (int64_t)0);
    place.high = (int)min(high - column, (int64_t)kVec);
    return place;
}

// The sum of each of four rows over the lanes of a warp: that of row lane / 8.
__device__ __forceinline__ float add_four_rows(const float (&row)[kSweepUnroll])
{
    static_assert(kSweepUnroll == 4, "two halves, twice");
    const unsigned lane = threadIdx.x % 32;
    const bool is_upper = lane & 16, is_odd = lane & 8;
    float two[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float mine = is_upper ? row[2 + i] : row[i], other = is_upper ? row[i] : row[2 + i];
        two[i] = mine + __shfl_xor_sync(0xFFFFFFFFu, other, 16);
    }
    float sum = is_odd ? two[1] : two[0];
    sum += __shfl_xor_sync(0xFFFFFFFFu, is_odd ? two[0] : two[1], 8);
#pragma unroll
    for (int distance = 4; distance > 0; distance /= 2)
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, distance);
    return sum;
}

// The sum of each of four rows over their lanes: the first of these has all.
__device__ __forceinline__ void add_narrow_rows(uint32_t lanes, float (&row)[kSweepUnroll])
{
#pragma unroll 1
    for (uint32_t distance = lanes / 2; distance > 0; distance /= 2)
#pragma unroll
        for (int i = 0; i < kSweepUnroll; i++)
            row[i] += __shfl_xor_sync(0xFFFFFFFFu, row[i], distance);
}

// Of a row that is so many steps on, where there are n_left.
template <typename T>
__device__ __forceinline__ void store_row(const sweep_args &args, const column_place &place,
                                          uint32_t step, int32_t n_left, int32_t at, float sum)
{
    if (!place.stores || (int32_t)step >= n_left)
        return;
    if (args.n_parts == 1)
        static_cast<T *>(args.sum.grad_x)[at] = element<T>::from_float(sum);
    else
        args.row_partial[place.part + at] = sum;
}

// What the lanes of a warp have of four rows each.
template <typename T>
__device__ __forceinline__ void store_rows(const sweep_args &args, const column_place &place,
                                           int32_t n_left, const int32_t (&at)[kSweepUnroll],
                                           float (&row)[kSweepUnroll])
{
    if (args.row_lanes == 32) {
        const float sum = add_four_rows(row);
        const int i = threadIdx.x % 32 / 8;
        const int32_t of_two[2] = {i & 1 ? at[1] : at[0], i & 1 ? at[3] : at[2]};
        if (threadIdx.x % 8 == 0)
            store_row<T>(args, place, i * args.step_lanes, n_left, i & 2 ? of_two[1] : of_two[0],
                         sum);
        return;
    }
    add_narrow_rows(args.row_lanes, row);
    if (threadIdx.x % args.row_lanes > 0)
        return;
#pragma unroll
    for (int i = 0; i < kSweepUnroll; i++)
        store_row<T>(args, place, i * args.step_lanes, n_left, at[i], row[i]);
}

template <typename T, int kKind, int kMode>
__device__ __forceinline__ void sweep_columns(const sweep_args &args, const column_place &place,
                                              sum_walk walk, double (&sum)[kVecOf<T>])
{
    constexpr int kVec = kVecOf<T>;
    const T *from = static_cast<const T *>(args.sum.y) + place.at_y;
    // all lanes of a warp exchange what they have of the rows of a cross: they go on together
    const int32_t ahead = (int32_t)(place.step_lane - threadIdx.x / 32 * 32 / args.lanes);
    int32_t n_rows = kMode == kSweepCross ? (int32_t)(place.end - place.step) : 0;
    uint4 packed = make_uint4(0, 0, 0, 0); // of y
    for (bool is_first = true; kMode == kSweepCross ? n_rows + ahead > 0 : walk.n_left > 0;
         is_first = false) {
        sweep_packets<T> packets;
        kept_elements<T, kKind, kVec> y;
        float terms[kVec] = {}, row[kSweepUnroll] = {};
#pragma unroll
        for (int i = 0; i < kSweepUnroll; i++) {
            packets.at[i] = i < walk.n_left ? walk.at.g : -1;
            start_step<T, kMode>(args, walk.at.x, place.low, place.high, i, packets);
            advance<kMode != kSweepOne>(args.walk, walk);
        }
        if (kMode != kSweepCross || is_first) // behind the others
            packed = args.y_is_packed ? load_16(from) : load_between(from, place.low, place.high);
        unpack<T>(packed, y.y);
        if (!args.sum.has_values)
#pragma unroll
            for (int j = 0; j < kVec; j++)
                y.y[j] = args.sum.one.y;
        y.begin(args.sum.kind);
        if (kMode != kSweepBoth)
            load_end<T, kMode>(args, packets);
#pragma unroll
        for (int i = 0; i < kSweepUnroll; i++) {
            float of_x[kVec], of_y[kVec];
            if (packets.at[i] < 0)
                continue;
            finish_step<T, kKind, kMode>(args, i, place.low, place.high, packets, y, of_x, of_y);
#pragma unroll
            for (int j = 0; j < kVec; j++)
                terms[j] += of_y[j];
            if (kMode == kSweepOne && place.stores)
                store_step<T>(args, packets.at[i], place.low, place.high, of_x);
            if (kMode == kSweepCross) {
                keep_part(place.low, place.high, of_x);
                row[i] = add_packet(of_x);
            }
        }
#pragma unroll
        for (int j = 0; j < kVec; j++)
            sum[j] += (double)terms[j];
        walk.n_left -= kSweepUnroll;
        if (kMode == kSweepCross)
            store_rows<T>(args, place, n_rows, packets.x_at, row);
        n_rows -= (int32_t)(kSweepUnroll * args.step_lanes);
    }
}

// Writes the sum of one of the block's columns, counted from the first packet's first.
template <typename T>
__device__ __forceinline__ void store_column(const sweep_args &args, int64_t group, uint32_t column,
                                             double sum)
{
    constexpr int kVec = kVecOf<T>;
    const int64_t lane = group * args.own_lanes + column / kVec;
    int64_t at = lane * kVec + column % kVec;
    if (lane >= args.n_lanes)
        return;
    if (args.has_gaps) {
        const int64_t kept = quotient_of(lane, args.packets, args.by_packets, args.sum.is_small);
        at -= kept * args.packets * kVec;
        if (at >= args.width)
            return;
        at += kept * args.width;
    }
    static_cast<T *>(args.sum.grad_y)[at] = element<T>::from_float((float)sum);
}

// The sums of a thread that has all terms of its columns, as far as they are of its row: all rows
// begin at the same place of a packet.
template <typename T>
__device__ __forceinline__ void store_own(const sweep_args &args, const column_place &place,
                                          const double (&sum)[kVecOf<T>])
{
    constexpr int kVec = kVecOf<T>;
    float value[kVec];
#pragma unroll
    for (int j = 0; j < kVec; j++)
        value[j] = (float)sum[j];
    T *to = static_cast<T *>(args.sum.grad_y) + place.at_y;
    if (args.y_is_packed) {
        packet<T, kVec>::store(to, value);
        return;
    }
#pragma unroll
    for (int j = 0; j < kVec; j++)
        if (place.low <= j && j < place.high)
            to[j] = element<T>::from_float(value[j]);
}

// One for each group of panels, and one for all groups.
__host__ __device__ constexpr uint32_t counters_of_rows(uint32_t n_groups)
{
    return n_groups > 1 ? n_groups + 1 : 1;
}

// What the panels of the block's rows have summed, where it is the last one of its group of panels,
// and then what the groups have, which is where the first panel of each was. By all threads: of a
// few rows there may be a thousand panels, of which a thread asks for many at once.
template <typename T>
__device__ __forceinline__ void finish_rows(const sweep_args &args, const sum_block &block,
                                            double (&shared)[kSumThreads])
{
    if (args.row_counter == nullptr)
        return;
    const uint32_t kept = (uint32_t)block.group / args.n_panels;
    const uint32_t panel = (uint32_t)block.group - kept * args.n_panels;
    const uint32_t group = panel / args.panels_of_group;
    uint32_t *counter = args.row_counter + (kept * args.sum.n_segments + block.segment) *
                                               counters_of_rows(args.n_groups);
    const int64_t begin = block.segment * args.sum.steps_per_segment;
    const int64_t end = min(begin + args.sum.steps_per_segment, args.sum.n_steps);
    const int64_t n_rows = args.n_x;
    const int64_t first = kept * args.sum.n_steps + begin;
    const uint32_t n = (uint32_t)(end - begin);
    float *from = args.row_partial + first + group * args.panels_of_group * n_rows;
    T *to = static_cast<T *>(args.sum.grad_x) + first;
    int64_t stride = n_rows; // to the next panel or group
    uint32_t n_parts = min(args.panels_of_group, args.n_panels - group * args.panels_of_group);
    counter += group;
#pragma unroll 1
    for (bool is_last = args.n_groups == 1;; is_last = true) {
        if (!comes_last(counter, n_parts))
            return;
        const auto value = [&](uint32_t part, uint32_t row) {
            return __ldcg(from + part * stride + row);
        };
        const auto store = [&](uint32_t row, double sum) {
            if (is_last)
                to[row] = element<T>::from_float((float)sum);
            else
                from[row] = (float)sum;
        };
        if (n_parts / max(kSumThreads / n, 1u) > (args.n_groups > 1 ? 8 : 32))
            add_rows<32>(n, n_parts, shared, value, store);
        else
            add_rows<8>(n, n_parts, shared, value, store);
        if (is_last)
            return;
        counter += args.n_groups - group;
        from -= group * stride * args.panels_of_group;
        stride *= args.panels_of_group;
        n_parts = args.n_groups;
    }
}

template <typename T, bool kAddsRows>
__device__ __forceinline__ void finish_columns(const sweep_args &args, const column_place &place,
                                               const double (&sum)[kVecOf<T>])
{
    // of one element after the other, so that neither writes nor reads meet in a bank
    constexpr int kVec = kVecOf<T>, kStride = kSumThreads + 32 / kVec;
    __shared__ alignas(16) float kept[kVec * kStride];
    __shared__ uint8_t off[kSumThreads];
    __shared__ double shared[kSumThreads];
    const uint32_t lanes = args.lanes, n_columns = args.own_lanes * kVec;
    const uint32_t n_segments = args.sum.n_segments;
    const sum_block &block = place.block;
    float *partial = args.sum.partial + block.group * n_segments * n_columns;
    if (args.step_lanes == 1 && n_segments == 1) {
        if (place.is_inside && place.stores)
            store_own<T>(args, place, sum);
        return;
    }
#pragma unroll
    for (int j = 0; j < kVec; j++)
        kept[j * kStride + threadIdx.x] = (float)sum[j];
    off[threadIdx.x] = (uint8_t)place.off;
    __syncthreads();
    add_rows<8>(
        n_columns, args.step_lanes, shared,
        [&](uint32_t row, uint32_t column) {
            const uint32_t thread = row * lanes + column / kVec;
            const uint32_t element = column % kVec + off[thread];
            return kept[element % kVec * kStride + thread + element / kVec];
        },
        [&](uint32_t column, double total) {
            if (n_segments == 1)
                store_column<T>(args, block.group, column, total);
            else
                partial[(int64_t)block.segment * n_columns + column] = (float)total;
        });
    if (kAddsRows)
        finish_rows<T>(args, block, shared);
    if (n_segments == 1 || !comes_last(args.sum.counter + block.group, n_segments))
        return;
    add_partial(partial, n_columns, n_segments, kept);
    for (uint32_t column = threadIdx.x; column < n_columns; column += blockDim.x)
        store_column<T>(args, block.group, column, kept[column]);
}

template <typename T, int kKind, int kMode>
__device__ __forceinline__ void sweep_columns_of(const sweep_args &args, const sum_block &block)
{
    sum_walk walk;
    const column_place place = column_place_of<T, kMode>(args, block, walk);
    finish_before_wait(static_cast<const T *>(args.sum.g) + walk.at.g, walk.n_left);
    wait_for_previous();
    double sum[kVecOf<T>] = {};
    sweep_columns<T, kKind, kMode>(args, place, walk, sum);
    finish_columns<T, kMode == kSweepCross && kKind == kBinaryMul>(args, place, sum);
}

template <typename T, int kKind, int kMode>
__global__ void __launch_bounds__(kSumThreads, sizeof(T) == 4 && kMode != kSweepOne ? 3 : 2)
    sweep_columns_kernel(const __grid_constant__ struct sweep_args args)
{
    let_next_start();
    sweep_columns_of<T, kKind, kMode>(args, {blockIdx.x, blockIdx.y});
}
