// binary_tiles.cuh - both gradients of a binary function in one pass, whose sums are over the rows
// of a tile: tensors are [tiles][rows][columns], and so many columns beside each other may share a
// sum. Rows are too short, or begin at too many places of a packet, to be read by packets of their
// own.
//
// Tiles follow each other in memory: a block takes packets of 16 bytes from the first one to the
// last one of several tiles, into shared memory, whatever the width. There threads have a column
// each, or several threads one, and put the gradient of x where grad_output was.
#pragma once

#include "cuda/binary_rows.cuh"

#include <numeric>

struct tile_args {
    const void *g, *x, *y; // x is the full operand
    void *grad_x, *grad_y;
    int64_t n_tiles;
    uint32_t tiles; // of a block
    uint32_t size, rows, width;
    uint32_t run;       // columns of a sum
    uint32_t n_columns; // of a block's tiles
    uint32_t parts;     // threads of a column
    divisor_of_index to_columns, to_width, to_run;
    int32_t kind;
    int32_t has_values;
    struct binary_ones one;
};

constexpr int kTileThreads = 256;
constexpr int kTilePackets = 4; // of a thread, of each tensor, at most

template <typename T>
constexpr int kMostOfTiles = (kTilePackets * kTileThreads) * kVecOf<T>;

// The sum of a thread's rows of a column, beside what it writes of x.
template <typename T, int kKind>
__device__ __forceinline__ float sum_tile_rows(const tile_args &args, uint32_t part, float y, T *g,
                                               const T *x)
{
    constexpr int kAhead = 4; // rows whose elements are asked for at once
    double sum = 0;
    for (uint32_t row = part; row < args.rows; row += kAhead * args.parts) {
        T of_g[kAhead] = {}, of_x[kAhead] = {};
        float terms = 0;
#pragma unroll
        for (int i = 0; i < kAhead; i++) {
            const uint32_t at = (row + i * args.parts) * args.width;
            if (row + i * args.parts >= args.rows)
                continue;
            of_g[i] = g[at];
            of_x[i] = x[at];
        }
#pragma unroll
        for (int i = 0; i < kAhead; i++) {
            float of_full, term;
            if (row + i * args.parts >= args.rows)
                continue;
            both_terms<T, kKind>(args.kind, element<T>::to_float(of_g[i]),
                                 args.has_values ? element<T>::to_float(of_x[i]) : args.one.x, y,
                                 of_full, term);
            g[(row + i * args.parts) * args.width] = element<T>::from_float(of_full);
            terms += term;
        }
        sum += (double)terms;
    }
    return (float)sum;
}

template <typename T, int kKind>
__global__ void __launch_bounds__(kTileThreads, 4)
    tile_kernel(const __grid_constant__ struct tile_args args)
{
    constexpr int kVec = kVecOf<T>;
    __shared__ alignas(16) T of_g[kMostOfTiles<T>];
    __shared__ alignas(16) T of_x[kMostOfTiles<T>];
    __shared__ float sums[kTileThreads];
    let_next_start();
    const int64_t first_tile = (int64_t)blockIdx.x * args.tiles, first = first_tile * args.size;
    const uint32_t n_tiles = (uint32_t)min((int64_t)args.tiles, args.n_tiles - first_tile);
    const uint32_t inner = args.width / args.run, n_columns = n_tiles * args.width;
    const int n = (int)(n_tiles * args.size);
    const int rest = n / kVec * kVec + (int)threadIdx.x; // of the tensor's last packet
    const T *g = static_cast<const T *>(args.g) + first;
    const T *x = static_cast<const T *>(args.x) + first;
    const uint32_t part = quotient(threadIdx.x, args.to_columns);
    const T *y = static_cast<const T *>(args.y) + first_tile * inner;
    T *grad_y = static_cast<T *>(args.grad_y) + first_tile * inner;
    uint32_t column = part < args.parts ? threadIdx.x - part * args.n_columns : n_columns;
    wait_for_previous();
    uint4 raw_g[kTilePackets], raw_x[kTilePackets] = {};
#pragma unroll
    for (int i = 0; i < kTilePackets; i++) {
        const int at = (i * kTileThreads + (int)threadIdx.x) * kVec;
        if (at + kVec > n)
            continue;
        raw_g[i] = load_16(g + at);
        if (args.has_values)
            raw_x[i] = load_16(x + at);
    }
    if (rest < n) {
        of_g[rest] = g[rest];
        of_x[rest] = x[rest];
    }
    T of_y = element<T>::from_float(1.0f);
    if (column < n_columns)
        of_y = y[quotient(column, args.to_run)];
#pragma unroll
    for (int i = 0; i < kTilePackets; i++) {
        const int at = (i * kTileThreads + (int)threadIdx.x) * kVec;
        if (at + kVec > n)
            continue;
        *reinterpret_cast<uint4 *>(of_g + at) = raw_g[i];
        *reinterpret_cast<uint4 *>(of_x + at) = raw_x[i];
    }
    __syncthreads();
    while (column < n_columns) {
        const uint32_t tile = quotient(column, args.to_width), next = column + kTileThreads;
        const uint32_t at = tile * args.size + column - tile * args.width;
        const float one = args.has_values ? element<T>::to_float(of_y) : args.one.y;
        if (next < n_columns) // asked for before it is needed
            of_y = y[quotient(next, args.to_run)];
        const float sum = sum_tile_rows<T, kKind>(args, part, one, of_g + at, of_x + at);
        if (args.parts * args.run == 1)
            grad_y[column] = element<T>::from_float(sum);
        else
            sums[threadIdx.x] = sum;
        column = next;
    }
    __syncthreads();
    T *grad_x = static_cast<T *>(args.grad_x) + first;
#pragma unroll
    for (int i = 0; i < kTilePackets; i++) {
        const int at = (i * kTileThreads + (int)threadIdx.x) * kVec;
        if (at + kVec <= n)
            store_16(grad_x + at, *reinterpret_cast<const uint4 *>(of_g + at));
    }
    if (rest < n)
        grad_x[rest] = of_g[rest];
    if (args.parts * args.run == 1 || threadIdx.x >= n_tiles * inner)
        return;
    double sum = 0;
    for (uint32_t i = 0; i < args.parts; i++)
        for (uint32_t j = 0; j < args.run; j++)
            sum += (double)sums[i * args.n_columns + threadIdx.x * args.run + j];
    grad_y[threadIdx.x] = element<T>::from_float((float)sum);
}

// ------------------------------------------------------------------------------------ host

// Is the gradient of that form, with rows or runs of no whole packets, which others read faster,
// and are tiles small enough for a block, and so many that each multiprocessor has one? Lays them
// out: as many tiles as fill half of the room for them, or whole packets. Few elements are faster
// one by one.
template <typename T>
static bool is_of_tiles(const struct binary_plan *plan, int32_t sum_side,
                        const struct sum_args &sum, struct tile_args *args)
{
    constexpr int64_t kVec = kVecOf<T>, kMost = kMostOfTiles<T>;
    constexpr int64_t kLeastBlocks = 2 * kMultiprocessors, kFew = 1 << 20;
    if (plan->rank < 3 || plan->rank > 4 || !(plan->dim[0].in & sum_side) || plan->n < kFew ||
        inner_dim(plan, 0) % kVec == 0 || !are_aligned({sum.g, sum.x, sum.grad_x}))
        return false;
    const int64_t inner = plan->dim[2].size, run = plan->rank == 4 ? plan->dim[3].size : 1;
    const int64_t width = inner * run, size = plan->dim[1].size * width;
    const int64_t unit = kVec / std::gcd(size, kVec);
    if (unit * size > kMost || (run > 1 && unit * width > kTileThreads))
        return false;
    int64_t tiles = kMost / 2 / size / unit * unit;
    if (tiles * width > kTileThreads && (run > 1 || tiles * width < 3 * kTileThreads))
        tiles = kTileThreads / width / unit * unit; // a column for each thread
    tiles = std::min(tiles, plan->dim[0].size / kLeastBlocks / unit * unit);
    tiles = std::max(tiles, unit);
    args->n_tiles = plan->dim[0].size;
    args->tiles = (uint32_t)tiles;
    args->size = (uint32_t)size;
    args->rows = (uint32_t)plan->dim[1].size;
    args->width = (uint32_t)width;
    args->run = (uint32_t)run;
    args->n_columns = (uint32_t)(tiles * width);
    args->parts = (uint32_t)clamp(kTileThreads / args->n_columns, 1, args->rows);
    return args->n_tiles / tiles >= kMultiprocessors;
}

template <typename T>
static enum roped_status launch_tiles(struct tile_args *args, const struct sum_args &sum,
                                      struct roped_queue *queue, struct roped_error *err)
{
    name_operands(sum, args);
    args->kind = sum.kind;
    args->to_columns = index_divisor(args->n_columns);
    args->to_width = index_divisor(args->width);
    args->to_run = index_divisor(args->run);
    return start(queue,
                 sum.kind == kBinaryMul ? tile_kernel<T, kBinaryMul> : tile_kernel<T, kBinaryOver>,
                 dim3(kTileThreads), blocks_of(args->n_tiles, args->tiles), dim3(), *args, err);
}
