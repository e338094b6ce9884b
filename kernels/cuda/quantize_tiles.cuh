// quantize_tiles.cuh - values of any source (quantize_packets.cuh) that stay in registers until
// their scale is known: a row for a block of threads, or for a cluster's blocks of a part each, or
// 128 x 128 values for a block. Rows of 16 bits that 16 bytes do not divide take the same kernels
// when their scale is given, for shifting wants lanes beside each other.
#pragma once

#include "cuda/device/cluster.cuh"
#include "cuda/device/shifted.cuh"
#include "cuda/quantize_packets.cuh"

constexpr int64_t kThreadsOfChip = 2048;
constexpr int kMostVecs = 4;  // packets of a thread, of a row
constexpr int kMostParts = 8; // of a row that has a scale of its own

// Packets of a thread, of 128 x 128 values, each so many rows below the one before.
template <typename T>
constexpr int kBlockVecs = kSide *kSide / kVecOf<T> / kMostThreads;

// Has any lane of the warp something? What is shifted, all of them take part in.
__device__ __forceinline__ bool warp_has(int left)
{
    return __any_sync(0xFFFFFFFFu, left > 0);
}

// How a tile's packets are moved.
enum tile_access {
    kTileWhole,
    kTileShifted, // at any address (device/shifted.cuh)
    // as memory has them: a row begins equally far behind a packet of values and one of codes, and
    // cuts its first and its last one. Of cheap sources.
    kTileCut,
    // rows at any address, value by value, as lanes have them side by side: nothing is shifted, and
    // a packet's values are kLanes apart. Of S::kHasWords
    kTileWords
};

constexpr int kLanes = 32;

// Packets at addresses at(v), of which left_of(v) values are in the row. kShifts: any addresses,
// two packets at a time, for which there are registers.
template <typename S, tile_access kAccess, int n, typename Raw, typename At, typename Left>
__device__ __forceinline__ void load_packets(const typename S::args &args, const At &at,
                                             const Left &left_of, Raw (&raw)[n])
{
    if constexpr (kAccess == kTileShifted) {
#pragma unroll
        for (int v = 0; v < n; v += 2) {
            typename S::shifted packet[2];
#pragma unroll
            for (int i = 0; i < 2 && v + i < n; i++)
                packet[i].start(args, at(v + i), left_of(v + i));
#pragma unroll
            for (int i = 0; i < 2 && v + i < n; i++) {
                raw[v + i] = S::template none<kVecOf<typename S::T>>();
                if (warp_has(left_of(v + i)))
                    raw[v + i] = packet[i].finish();
            }
        }
    } else if constexpr (kAccess == kTileWords) {
#pragma unroll
        for (int v = 0; v < n; v++)
            S::load_apart(args, at(v), kLanes, left_of(v), raw[v]);
    } else {
#pragma unroll
        for (int v = 0; v < n; v++) {
            raw[v] = S::template none<kVecOf<typename S::T>>();
            if (left_of(v) > 0)
                raw[v] = S::template load<kVecOf<typename S::T>>(args, at(v));
        }
    }
}

// Packets from one on, as memory has them, step values apart, of a row that ends left values behind
// the first. What the tensor has no whole packet of is mended once all have come: a branch between
// loads would have them wait for each other.
template <typename T, int n>
__device__ __forceinline__ void load_cut_packets(const T *from, int left, int step, const char *end,
                                                 uint4 (&raw)[n])
{
    constexpr int kVec = kVecOf<T>, kSize = (int)sizeof(T);
    const int64_t bytes = end - reinterpret_cast<const char *>(from);
    const int whole = (int)min(max(bytes / kSize, (int64_t)0), (int64_t)INT_MAX); // values
    const int reach = min(left + kVec - 1, whole);
#pragma unroll
    for (int v = 0; v < n; v++)
        raw[v] = load_16_if(v * step + kVec <= reach, from + v * step);
    if (whole >= left)
        return;
#pragma unroll 1
    for (int v = 0; v < n; v++)
        if (v * step < left && v * step + kVec > whole) {
            const uint4 part = load_pieces(reinterpret_cast<const char *>(from + v * step),
                                           (left - v * step) * kSize);
#pragma unroll
            for (int i = 0; i < n; i++)
                raw[i] = i == v ? part : raw[i];
        }
}

// Does a kernel of tiles find their scales? Where packets can be shifted, no tile has a known one.
template <typename S, bool kIsBlock, tile_access kAccess>
__device__ __forceinline__ int tile_finds(const quantize_args &codes)
{
    return kAccess == kTileCut || kAccess == kTileWords ||
                   (kAccess == kTileShifted && (S::kShiftsPackets || kIsBlock))
               ? 1
               : codes.finds;
}

// A tile in registers: kIsBlock, or a row, or its part; of rows that a warp takes, a block has
// several. A thread has one packet of a few
// rows, which wait for code: what hardly any call asks for is called then.
template <typename S, int kVecs, bool kIsBlock, tile_access kAccess>
static __global__ void __launch_bounds__((kAccess == kTileCut ? 1 : 2) * kMostThreads,
                                         (kAccess != kTileCut          ? 0
                                          : sizeof(typename S::T) == 4 ? 3
                                                                       : 2))
    tile_kernel(const __grid_constant__ typename S::args args)
{
    constexpr int kVec = kVecOf<typename S::T>, kAcross = kSide / kVec;
    constexpr bool kShifts = kAccess == kTileShifted, kIsCut = kAccess == kTileCut;
    constexpr bool kHasWords = kAccess == kTileWords;
    const quantize_args &codes = args.codes;
    const code_rule rule = rule_of<CODE_SCALE_F32>(codes);
    __shared__ float shared[32];
    __shared__ cluster_exchange parts;
    constexpr int kMostAtOnce = S::kIsCheap ? kVecs : kShifts || kHasWords ? 2 : kMostVecs;
    constexpr int kAtOnce = kVecs < kMostAtOnce ? kVecs : kMostAtOnce; // packets loaded
    constexpr bool kCalls = kVecs == 1 || (kIsBlock && S::kIsRare);
    using operands = std::conditional_t<kHasWords, typename S::template operands<1>[kVec],
                                        typename S::template operands<kVec>>;
    operands raw[kAtOnce];
    float kept[S::kIsCheap ? 1 : kVecs][kVec], largest = 0.0f;
    int64_t row, column;
    int left, step; // values to the row's end, 0 or below: none; from a packet to the next, or rows
    if constexpr (kIsBlock) {
        const int64_t strip = blockIdx.x / codes.n_tiles;
        row = strip * kSide + threadIdx.x / kAcross;
        column = (blockIdx.x - strip * codes.n_tiles) * kSide + threadIdx.x % kAcross * kVec;
        left = (int)min(codes.width - column, (int64_t)kSide);
        step = kMostThreads / kAcross;
    } else {
        row = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
        step = blockDim.x * kVec;
        column = (int)blockIdx.y * kVecs * step + (int)threadIdx.x * kVec;
        if constexpr (kHasWords)
            column -= (int)threadIdx.x % kLanes * (kVec - 1);
        if constexpr (kIsCut)
            column -= (int)((uintptr_t)S::template at<kVec>(args, row, 0) & 15) /
                      (int)sizeof(typename S::T);
        left = row < codes.n_rows ? (int)(codes.width - column) : 0;
    }
    const auto from = S::template at<kVec>(args, row, column);
    const auto at = [&](int v) {
        if constexpr (kIsBlock)
            return S::template at<kVec>(args, row + v * step, column);
        else
            return S::moved(args, from, v * step);
    };
    const auto left_of = [&](int v) {
        return !kIsBlock ? left - v * step : row + v * step < codes.n_rows ? left : 0;
    };
    const auto first_of = [&](int v) { return -(int)column - v * step; }; // where a row is cut
    const auto has = [&](int v) { return kShifts ? warp_has(left_of(v)) : left_of(v) > 0; };
    char *to = as_global(codes.y + row * codes.y_stride + column);
    char *scale_to = as_global(static_cast<float *>(codes.scales.data) +
                               (kIsBlock ? blockIdx.x : row * codes.scales.row));
    const int64_t to_step = kIsBlock ? step * codes.y_stride : step;
    let_next_start();
    if (!kIsBlock && gridDim.y > 1 && tile_finds<S, kIsBlock, kAccess>(codes))
        parts.begin();
    S::finish_before_wait(args, from);
    finish_before_wait(to, scale_to, left, codes.finds, __float_as_int(rule.largest));
    wait_for_previous();
#pragma unroll
    for (int base = 0; base < kVecs; base += kAtOnce) {
        if constexpr (kIsCut)
            load_cut_packets(from, left, step, args.x_end, raw);
        else
            load_packets<S, kAccess>(
                args, [&](int v) { return at(base + v); }, [&](int v) { return left_of(base + v); },
                raw);
#pragma unroll
        for (int v = base; v < base + kAtOnce; v++) {
            float(&x)[kVec] = kept[S::kIsCheap ? 0 : v];
            if (kVecs > 1 && !has(v))
                continue;
            S::template values<kVec, kCalls>(args, raw[v - base], x);
            if constexpr (kShifts && !S::kIsCheap)
                clear_behind(left_of(v), x);
            if constexpr (kHasWords)
                clear_behind(left_of(v), x, kLanes);
            if constexpr (kIsCut)
                if (first_of(v) > 0 || left_of(v) < kVec)
                    clear_around(first_of(v), left_of(v), x);
            const float of_packet = largest_of(rule, x);
            if (kVecs > 1 || left_of(v) > 0)
                largest = fmaxf(largest, of_packet);
        }
    }
    code_divisor divisor;
    if (tile_finds<S, kIsBlock, kAccess>(codes)) {
        largest = kIsBlock || gridDim.y == 1 ? largest_in_group(largest, shared, blockDim.x)
                                             : parts.largest_of(largest);
        const code_scale_made scale = make_scale(rule, largest);
        if (threadIdx.x == 0 && blockIdx.y == 0 && left > 0)
            store_scale(rule, {scale_to, 0, 0, 0}, 0, scale);
        divisor = scale.divisor;
    } else {
        divisor = known_scale(codes);
    }
    const int lanes = kIsBlock ? kAcross : min((int)blockDim.x, 32); // of a row, in a warp
    const int lane = (int)threadIdx.x % lanes;
#pragma unroll
    for (int v = 0; v < kVecs; v++) {
        float(&x)[kVec] = kept[S::kIsCheap ? 0 : v];
        uint8_t *code = reinterpret_cast<uint8_t *>(to) + v * to_step;
        if (!has(v))
            continue;
        if constexpr (S::kIsCheap)
            S::values_again(raw[v], x);
        if constexpr (kIsCut) {
            divide_codes(rule, x, divisor);
            const fp8_codes<kVec> packed = byte_codes_of(rule, x);
            if (first_of(v) <= 0 && left_of(v) >= kVec)
                store_fp8(code, packed);
            else
                store_codes_between(code, first_of(v), left_of(v), packed);
        } else if constexpr (kHasWords) {
            divide_codes(rule, x, divisor);
            const fp8_codes<kVec> packed = byte_codes_of(rule, x);
#pragma unroll
            for (int i = 0; i < kVec; i++)
                if (i * kLanes < left_of(v))
                    code[i * kLanes] = byte_of(packed, i);
        } else if constexpr (kShifts) {
            divide_codes(rule, x, divisor);
            store_shifted<uint8_t>(reinterpret_cast<char *>(code), left_of(v), lane > 0,
                                   lane < lanes - 1, byte_codes_of(rule, x).word);
        } else {
            store_codes_of<CODE_SCALE_F32>(rule, code, x, divisor);
        }
    }
}

// What is no such tile, element by element and twice: groups at addresses that leave no packets,
// and rows that are too wide.
template <typename S>
static __global__ void __launch_bounds__(kThreads)
    element_kernel(const __grid_constant__ typename S::args args)
{
    __shared__ float shared[32];
    const quantize_args &codes = args.codes;
    let_next_start();
    wait_for_previous();
    const int64_t row = blockIdx.x / codes.n_tiles, tile = blockIdx.x - row * codes.n_tiles;
    const int64_t first = tile * codes.tile_width;
    const int64_t n = min(codes.tile_width, codes.width - first);
    const auto value = [&](int64_t i) {
        float x[1];
        const auto from = S::template at<1>(args, row, first + i);
        S::template values<1, true>(args, S::template load<1>(args, from), x);
        return x[0];
    };
    code_divisor divisor;
    if (codes.finds) {
        float largest = 0.0f;
        for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
            const float x[1] = {value(i)};
            largest = fmaxf(largest, largest_of(codes.rule, x));
        }
        largest = largest_in_group(largest, shared, blockDim.x);
        const code_scale_made scale = make_scale(codes.rule, largest);
        if (threadIdx.x == 0)
            store_scale(codes.rule, codes.scales, scale_at(codes.scales, row, tile), scale);
        divisor = scale.divisor;
    } else {
        divisor = known_scale(codes);
    }
    uint8_t *to = codes.y + row * codes.y_stride + (first >> codes.y_shift);
    for (int64_t i = threadIdx.x; i < n >> codes.y_shift; i += blockDim.x) {
        if (codes.y_shift) {
            float x[2] = {value(2 * i), value(2 * i + 1)};
            store_codes(codes.rule, to + i, x, divisor);
        } else {
            float x[1] = {value(i)};
            store_codes(codes.rule, to + i, x, divisor);
        }
    }
}

// ------------------------------------------------------------------------------------ launches

// Packets of rows that blocks of a cluster hold, or a block of twice the threads.
static int64_t most_packets(const struct roped_queue *queue)
{
    return (int64_t)kMostVecs * kMostThreads * (queue->can_overlap ? kMostParts : 2);
}

// Blocks for a row. Of a few rows as many as multiprocessors have room for, each of so many packets
// at least, for what a row waits for is what a thread does; or two for each multiprocessor, if then
// a thread has one packet. Of many rows as few as hold it. With a scale that is there they need no
// cluster, and may be any number: blocks of half of the threads, where of few large ones some
// multiprocessors would have one more than others.
static int64_t parts_of_row(const quantize_args &codes, int64_t packets, int64_t least,
                            const struct roped_queue *queue)
{
    const int64_t chips = queue->n_multiprocessors;
    if (codes.finds && !queue->can_overlap)
        return 1;
    least = codes.finds ? least : 32;
    int64_t parts = blocks_of(packets, kMostVecs * kMostThreads);
    for (; 2 * parts <= kMostParts; parts *= 2) {
        const int64_t blocks = 2 * parts * codes.n_rows;
        const bool is_spread = packets >= 2 * least * parts && blocks <= chips;
        if (!is_spread && (packets <= kMostThreads * parts || blocks > 2 * chips))
            break;
    }
    const int64_t n_packets = codes.n_rows * packets, at_once = chips * kThreadsOfChip;
    const int half = kMostThreads / 2;
    if (!codes.finds && leaves_places(parts * codes.n_rows, chips) && packets > parts * half &&
        n_packets <= 2 * at_once)
        parts = blocks_of(packets, (n_packets <= at_once ? 1 : 2) * half);
    return parts;
}

// A row for a block, or a warp, or a part of one. A thread has as few packets as a block, and
// multiprocessors, have threads for; but of many rows a warp has each that it can hold, which needs
// no barrier then. Of up to four rows for each multiprocessor it has half as wide ones, for these
// wait for what a thread does. Words of 16 bits, twice as many loads as those of float32, are for
// one packet of a thread: of rows that fill a warp's lanes, and not of those that one warp has with
// two packets of each, or of many wide ones.
template <typename S, tile_access kAccess>
static enum roped_status launch_row(const typename S::args &args, struct roped_queue *queue,
                                    struct roped_error *err)
{
    const quantize_args &codes = args.codes;
    constexpr int kVec = kVecOf<typename S::T>;
    const int64_t whole = blocks_of(codes.width + (kAccess == kTileCut ? kVec - 1 : 0), kVec);
    const int64_t parts = parts_of_row(codes, whole, S::kPacketsOfPart, queue);
    const int64_t packets = blocks_of(whole, parts);
    const int64_t chips = queue->n_multiprocessors;
    const bool is_many = codes.n_rows > 2 * chips;
    const int of_lane = (S::kIsCheap ? kMostVecs : 2) / (codes.n_rows > 4 * chips ? 1 : 2);
    const bool is_of_warp = packets <= 32 * of_lane;
    kernel_fn<typename S::args> *kernel = tile_kernel<S, 1, false, kAccess>;
    int vecs = 1;
    for (kernel_fn<typename S::args> *next :
         {tile_kernel<S, 2, false, kAccess>, tile_kernel<S, 4, false, kAccess>})
        if (packets > vecs * kMostThreads ||
            (is_many && packets > vecs * 32 &&
             (is_of_warp || codes.n_rows * packets * parts > vecs * chips * kThreadsOfChip))) {
            kernel = next;
            vecs *= 2;
        }
    if constexpr (kAccess == kTileShifted && S::kHasWords)
        if (packets > 16 && vecs * packets <= 2 * kMostThreads && (vecs == 1 || !is_of_warp)) {
            kernel = tile_kernel<S, 1, false, kTileWords>;
            vecs = 1;
        }
    int64_t threads = blocks_of(packets, 32 * vecs) * 32;
    while (kAccess != kTileWords && threads <= 32 && threads / 2 * vecs >= packets)
        threads /= 2;
    const unsigned rows = threads <= 32 && parts == 1 ? kThreads / (unsigned)threads : 1;
    int64_t blocks = blocks_of(codes.n_rows, rows);
    if (parts == 1)
        blocks = filled_blocks(blocks, chips);
    return start(queue, kernel, dim3((unsigned)threads, rows), blocks, dim3(1, (unsigned)parts),
                 args, err, 0, parts > 1 && codes.finds);
}

template <typename S, tile_access kAccess>
static enum roped_status launch_tiles(const typename S::args &args, struct roped_queue *queue,
                                      struct roped_error *err)
{
    constexpr bool kTakesWords =
        kAccess == kTileShifted && S::kHasWords && sizeof(typename S::T) == 4;
    constexpr tile_access kOfRow = kTakesWords ? kTileWords : kAccess;
    const quantize_args &codes = args.codes;
    if (codes.finds && codes.tile_rows > 1)
        return start(queue, tile_kernel<S, kBlockVecs<typename S::T>, true, kAccess>,
                     dim3(kMostThreads), blocks_of(codes.n_rows, kSide) * codes.n_tiles, dim3(1),
                     args, err);
    return launch_row<S, kOfRow>(args, queue, err);
}

// Do registers hold a call's tiles, packets of so many values: rows, or blocks of 128 x 128?
static bool are_held(const quantize_args &codes, int n, const struct roped_queue *queue)
{
    if (codes.rule.scale != CODE_SCALE_F32)
        return false;
    if (codes.finds)
        return codes.tile_rows > 1 ||
               (codes.n_tiles == 1 && blocks_of(codes.width, n) <= most_packets(queue));
    return codes.width <= INT_MAX / 2;
}

template <typename S>
static enum roped_status launch_elements(const typename S::args &args, struct roped_queue *queue,
                                         struct roped_error *err)
{
    return start(queue, element_kernel<S>, dim3(args.codes.tile_width <= kSide ? 32 : kThreads),
                 args.codes.n_rows * args.codes.n_tiles, dim3(1), args, err);
}
