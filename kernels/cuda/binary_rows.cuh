// binary_rows.cuh - both gradients of a binary function in one pass, where every row of one operand
// has one element of the other: many narrow rows, whose width packets do not divide.
//
// The rows of a warp follow each other in memory, so it takes packets of 16 bytes from the first to
// the last, 32 at a time, whatever the width. A row begins and ends in any packet; a packet has
// elements of two rows at most. What lanes have of a row is added by a segmented scan: in every
// step a lane adds what the lane so far before it has, if that is of the same row. What order terms
// are added in follows from the shape alone.
#pragma once

#include "cuda/binary_sweep.cuh"
#include "cuda/device/quotient.cuh"

struct rows_args {
    const void *g, *x, *y; // x is the full operand
    void *grad_x, *grad_y;
    int64_t n_rows;
    uint32_t width;
    uint32_t rows_of_warp; // of as many whole packets
    uint32_t most_packets; // that have elements of one row
    divisor_of_index to_row;
    int32_t has_values;
    struct binary_ones one;
};

// n elements of a packet, or fewer at the end of a tensor; those behind it are another value.
template <typename T, int kVec>
__device__ __forceinline__ uint4 load_elements(const T *from, int n, float behind = 0.0f)
{
    if (n == kVec)
        return load_16(from);
    alignas(16) T part[kVec];
#pragma unroll
    for (int i = 0; i < kVec; i++)
        part[i] = i < n ? from[i] : element<T>::from_float(behind);
    return *reinterpret_cast<const uint4 *>(part);
}

template <typename T, int kVec>
__device__ __forceinline__ void store_elements(T *to, const float (&value)[kVec], int n)
{
    if (n == kVec) {
        packet<T, kVec>::store(to, value);
        return;
    }
#pragma unroll
    for (int i = 0; i < kVec; i++)
        if (i < n)
            to[i] = element<T>::from_float(value[i]);
}

// A lane's packet of a warp's rows.
template <typename T, int kVec>
struct row_packet {
    uint32_t at;  // its first element, from the warp's first
    uint32_t row; // of which that is
    int n;        // elements of the warp's rows: kVec, or fewer at the end
    int left;     // of this row from the first one on, which may be more than n
    typename packet<T, kVec>::raw g, x;
    T y, next_y; // of this row and of the one behind it

    __device__ __forceinline__ void begin(const rows_args &args, int64_t first_row, int64_t first,
                                          uint32_t place, uint32_t end)
    {
        const T *values = static_cast<const T *>(args.y) + first_row;
        at = place;
        n = min(max((int)(end - at), 0), kVec);
        row = quotient(min(at, end - 1), args.to_row);
        left = (int)((row + 1) * args.width - at);
        y = next_y = element<T>::from_float(1.0f);
        g = make_uint4(0, 0, 0, 0);
        x = load_elements<T, kVec>(nullptr, 0, 1.0f); // by which 0 is quickly divided
        if (n == 0)
            return;
        const T *of_g = static_cast<const T *>(args.g) + first + at;
        const T *of_x = static_cast<const T *>(args.x) + first + at;
        g = load_elements<T, kVec>(of_g, n);
        x = load_elements<T, kVec>(of_x, n, 1.0f);
        y = values[row];
        if (left < n)
            next_y = values[row + 1];
    }
};

// Writes the gradient of a packet, and the sums of rows that end in it; carry is what packets
// before base have of the row that is there.
template <typename T, int kVec, int kKind>
__device__ __forceinline__ void finish_packet(const rows_args &args,
                                              const row_packet<T, kVec> &mine, int64_t first_row,
                                              int64_t first, uint32_t base, float &carry)
{
    const int lane = threadIdx.x % 32;
    float x[kVec], of_x[kVec], of_y[kVec], low = 0.0f, high = 0.0f;
    kept_elements<T, kKind, kVec> kept;
    packet<T, kVec>::widen(mine.x, x);
    const float y = args.has_values ? element<T>::to_float(mine.y) : args.one.y;
    const float next_y = args.has_values ? element<T>::to_float(mine.next_y) : args.one.y;
    kept.begin_of_two(kKind, mine.left, y, next_y);
#pragma unroll
    for (int i = 0; i < kVec; i++)
        x[i] = args.has_values ? x[i] : args.one.x;
    packet_terms<T, kKind>(kKind, mine.g, mine.x, false, x, kept, of_x, of_y);
#pragma unroll
    for (int i = 0; i < kVec; i++) {
        const bool is_low = i < mine.left;
        const float term = i < mine.n ? of_y[i] : 0.0f;
        low += is_low ? term : 0.0f;
        high += is_low ? 0.0f : term;
    }
    store_elements<T, kVec>(static_cast<T *>(args.grad_x) + first + mine.at, of_x, mine.n);
    const float before = __shfl_up_sync(0xFFFFFFFFu, high, 1);
    const uint32_t begin = mine.row * args.width; // of the row
    const int first_lane = begin <= base ? 0 : (int)((begin - base + kVec - 1) / kVec);
    float sum = lane > 0 ? low + before : low;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        if (distance >= (int)args.most_packets)
            break;
        const float other = __shfl_up_sync(0xFFFFFFFFu, sum, distance);
        if (lane - distance >= first_lane)
            sum += other;
    }
    const float total = first_lane == 0 ? carry + sum : sum;
    if (mine.n > 0 && mine.left <= mine.n)
        static_cast<T *>(args.grad_y)[first_row + mine.row] = element<T>::from_float(total);
    carry = mine.left > kVec ? total : high;
    carry = __shfl_sync(0xFFFFFFFFu, carry, 31);
}

constexpr int kRowsThreads = 256;

// Blocks of so many threads that find room on a multiprocessor. Quotients take the registers that
// they need (0), but for float16's: few would wait longer.
template <typename T, int kKind>
constexpr int kRowsBlocks = kKind == kBinaryMul || std::is_same_v<T, __half> ? 4 : 0;

template <typename T, int kKind>
__global__ void __launch_bounds__(kRowsThreads, kRowsBlocks<T, kKind>)
    rows_kernel(const __grid_constant__ struct rows_args args)
{
    constexpr int kVec = kVecOf<T>, kAhead = 2; // packets of a lane whose loads are one wait
    const int64_t warp = ((int64_t)blockIdx.x * kRowsThreads + threadIdx.x) / 32;
    const int64_t first_row = warp * args.rows_of_warp, first = first_row * args.width;
    const int64_t n_rows = min((int64_t)args.rows_of_warp, args.n_rows - first_row);
    let_next_start();
    wait_for_previous();
    if (n_rows <= 0)
        return;
    const uint32_t end = (uint32_t)n_rows * args.width, step = 32 * kVec;
    float carry = 0;
    for (uint32_t base = 0; base < end; base += kAhead * step) {
        row_packet<T, kVec> packets[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; i++)
            packets[i].begin(args, first_row, first, base + i * step + threadIdx.x % 32 * kVec,
                             end);
#pragma unroll
        for (int i = 0; i < kAhead; i++)
            if (base + i * step < end)
                finish_packet<T, kVec, kKind>(args, packets[i], first_row, first, base + i * step,
                                              carry);
    }
}

// ------------------------------------------------------------------------------------ host

// Rows of a warp: as many packets as fill its turns best, of up to eight turns, of two rather than
// one, for as many are asked for at once, and of fewer where there would be too few warps.
static inline int64_t rows_of_warp(int64_t n_rows, int64_t width, int vec)
{
    int64_t least = vec; // rows of whole packets
    while (least > 1 && least / 2 * width % vec == 0)
        least /= 2;
    int64_t best = least;
    double best_share = 0;
    for (int turns = 1; turns <= 8; turns++) {
        const int64_t rows = 32 * vec * turns / width / least * least;
        const double share = (double)(rows * width) / (32 * vec * turns);
        if (rows == 0 || share < best_share || (share == best_share && turns > 2))
            continue;
        if (best_share > 0 && n_rows / rows < 16 * kMultiprocessors)
            break;
        best = rows;
        best_share = share;
    }
    return best;
}

// Are there enough rows, and are they odd and narrow? Others take one turn of their threads
// (binary_turn.cuh), and so do those of a few packets more where each element is long.
template <typename T>
static bool is_of_rows(const struct binary_plan *plan, int32_t sum_side, const struct sum_args &sum)
{
    constexpr int kVec = kVecOf<T>;
    if (plan->rank != 2 || keeps_columns(plan, sum_side) ||
        !are_aligned({sum.g, sum.x, sum.grad_x}))
        return false;
    const int64_t most_packets = sizeof(T) == 2 && plan->function != BINARY_DIV ? 6 : 4;
    const int64_t n_rows = plan->dim[0].size, width = plan->dim[1].size;
    return width % kVec != 0 && width >= kVec && width / kVec <= most_packets &&
           n_rows / rows_of_warp(n_rows, width, kVec) >= 8 * kMultiprocessors;
}

template <typename T>
static enum roped_status launch_rows(const struct binary_plan *plan, const struct sum_args &sum,
                                     struct roped_queue *queue, struct roped_error *err)
{
    rows_args args = {};
    name_operands(sum, &args);
    args.n_rows = plan->dim[0].size;
    args.width = (uint32_t)plan->dim[1].size;
    args.rows_of_warp = (uint32_t)rows_of_warp(args.n_rows, args.width, kVecOf<T>);
    args.to_row = index_divisor(args.width);
    args.most_packets = args.width / kVecOf<T> + 2;
    return start(queue,
                 sum.kind == kBinaryMul     ? rows_kernel<T, kBinaryMul>
                 : sum.kind == kBinaryOverY ? rows_kernel<T, kBinaryOverY>
                                            : rows_kernel<T, kBinaryOverX>,
                 dim3(kRowsThreads),
                 blocks_of(args.n_rows, args.rows_of_warp * (kRowsThreads / 32)), dim3(), args,
                 err);
}
