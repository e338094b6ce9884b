// quantize_packets.cuh - what the kernels of quantize and of operators that quantize what they
// compute share: packets of values to codes by scales that are there, or of groups whose packets
// are in lanes of one warp; the scale of a whole tensor; and their launches.
//
// A source S says where values come from:
//
//     S::T, S::kName       their type, and the tensor that an error names
//     S::args              what its kernels get: its own, and codes, a quantize_args
//     S::at<n>(args, row, column)     the addresses of a packet of n values
//     S::load<n>(args, addresses), S::none<n>()    a packet as it is kept
//     S::values<n>(args, packet, x)                its values
//     S::finish_before_wait(args, addresses)       stream.cuh; and of what the call asks S for
//     S::kIsCheap          do values take hardly any time?
//     S::kIsRare           does hardly any call ask for them?
//     S::shifted           a packet at any address (device/shifted.cuh), of whose values left are
//                          in the row: start(args, addresses, left), and finish()
//
// of which tiles in registers (quantize_tiles.cuh) want more:
//
//     S::operands<n>       a packet as it is kept
//     S::moved(args, addresses, n)    n values further in a row
//     S::values<n, kCalls>(args, packet, x)     kCalls: what hardly any call asks for is called
//     S::values_again(packet, x)      of a cheap source: when they become codes, instead of waiting
//                          for their scale
//     S::kShiftsPackets    do packets of one known scale take shifted_packet_kernel, and not tiles?
//     S::kHasWords         are rows of them, at any address, loaded one by one? By
//                          load_apart(args, addresses, apart, left, packets of a value each)
//     S::kPacketsOfPart    that pay for a block of a row, beside the exchange with others
#pragma once

extern "C" {
#include "ops/quantize.h"
}

#include "cuda/device/codes.cuh"
#include "cuda/device/quotient.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/device/stream.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/places.cuh"

constexpr int kThreads = 256;
constexpr int kLeastThreads = 64; // of a block of packets
constexpr int kMostThreads = 512; // for a row, so that two find room on a multiprocessor
constexpr int kSide = CODES_BLOCK_SIDE;

struct quantize_args {
    uint8_t *y;
    code_scales scales;
    int64_t n_rows, width, y_stride;
    int64_t n_tiles, tile_rows, tile_width;
    int64_t first_row;  // of a launch of packets
    uint32_t packets;   // of a row; the last one may be half of one
    uint32_t n_packets; // of all rows of a launch
    divisor_of_index to_row;
    int32_t tile_shift;  // a tile has 2^tile_shift packets of a row
    int32_t y_shift;     // a byte has 2^y_shift codes
    float dequant_scale; // where nothing is found
    code_rule rule;
    code_store store;  // of a launch of packets
    int32_t finds;     // bool: tiles have dynamic scales
    int32_t is_tensor; // bool: scales[0] is everybody's
};

// A scale that is there before the kernel starts.
__device__ __forceinline__ code_divisor known_scale(const quantize_args &args)
{
    float scale =
        args.is_tensor
            ? finished(args.rule, load_float(static_cast<const float *>(args.scales.data)))
            : args.dequant_scale;
    return code_divisor_of(scale);
}

// The rule of a launch, whose scales a kernel is compiled for: those of float32 are those of codes
// of 8 bits, of E8M0 those of MX, of E4M3 those of NVFP4. What other formats do would take the
// registers and the time of every one.
template <int kScale>
__device__ __forceinline__ code_rule rule_of(const quantize_args &args)
{
    code_rule rule = args.rule;
    rule.scale = kScale;
    if (kScale == CODE_SCALE_F32 && rule.element > CODE_I8)
        __builtin_unreachable();
    if (kScale == CODE_SCALE_E8M0 && rule.element != CODE_E4M3)
        rule.element = CODE_E2M1;
    if (kScale == CODE_SCALE_E4M3) {
        rule.element = CODE_E2M1;
        rule.largest = 6.0f;
    }
    return rule;
}

// store_codes, where a kernel's scales say that codes of float32 scales have 8 bits.
template <int kScale, int n>
__device__ __forceinline__ void store_codes_of(const code_rule &rule, uint8_t *to, float (&x)[n],
                                               const code_divisor &by,
                                               code_store how = kStoresWhole)
{
    if constexpr (kScale == CODE_SCALE_F32) {
        divide_codes(rule, x, by);
        store_fp8(to, byte_codes_of(rule, x), how);
    } else {
        store_codes(rule, to, x, by, how);
    }
}

// Scales of float32 may be given, others are always found.
template <int kScale>
__device__ __forceinline__ bool finds_scales(const quantize_args &args)
{
    return kScale != CODE_SCALE_F32 || args.finds;
}

template <int n>
constexpr int kLog2 = 1 + kLog2<n / 2>;
template <>
constexpr int kLog2<1> = 0;

// A group has 2^shift packets of n elements: known to the kernel, or of the call.
template <int kScale, int n>
__device__ __forceinline__ int group_shift_of(const quantize_args &args)
{
    constexpr int kShift = kLog2<(kScale == CODE_SCALE_E8M0 ? 32 : 16) / n>;
    return kScale == CODE_SCALE_F32 ? args.tile_shift : kShift;
}

// What a lane of so many has found, to all of them. Of an MX scale it is a factor alone; NVFP4's
// scales all have one, and no second part.
template <int kLanes>
__device__ __forceinline__ code_divisor from_lane(const code_rule &rule, const code_divisor &mine,
                                                  int lane)
{
    const auto of_lane = [&](float x) { return __shfl_sync(0xFFFFFFFFu, x, lane, kLanes); };
    if (rule.scale == CODE_SCALE_E8M0)
        return {of_lane(mine.factor), 1.0f, 0.0f};
    if (rule.scale == CODE_SCALE_E4M3)
        return {rule.global_scale, of_lane(mine.high), 0.0f};
    return {of_lane(mine.factor), of_lane(mine.high), of_lane(mine.low)};
}

// The larger values of half as many packets: lanes whose number has the bit take over the second of
// every two, and the lanes beside them the first.
template <int n>
__device__ __forceinline__ void take_half(const code_rule &rule, int bit, float (&largest)[n],
                                          float (&half)[n / 2])
{
    const bool takes_second = threadIdx.x & bit;
#pragma unroll
    for (int i = 0; i < n / 2; i++) {
        const float mine = takes_second ? largest[2 * i + 1] : largest[2 * i];
        half[i] = larger_of(rule, mine,
                            exchange(takes_second ? largest[2 * i] : largest[2 * i + 1], bit));
    }
}

// Lanes of a group whose lanes have a packet of n elements each, at least.
template <int kScale, int n>
constexpr int kLeastLanes = (kScale == CODE_SCALE_E8M0 ? 32 : 16) / n;

// How many lanes of a group make a scale each, of those of n packets.
template <int kLeast, int n>
constexpr int kMakersOf = kLeast >= 4 ? n : 2;

// Scales of groups of so many lanes, kLeast at least, that have n packets each, of whose values
// largest are a lane's. While lanes find the largest of all, each takes over a part of the packets,
// so nobody makes a scale that another one makes. Lanes that come first store theirs by
// store(packet, scale), and all get them.
template <int kLeast, int n, typename F>
__device__ __forceinline__ void make_group_scales(const code_rule &rule, float (&largest)[n],
                                                  int lanes, code_divisor (&divisor)[n],
                                                  const F &store)
{
    static_assert(kLeast >= 2 && (n == 2 || n == 4), "packets to share among lanes");
    constexpr int kMakers = kMakersOf<kLeast, n>, kOwn = n / kMakers;
    float half[n / 2], own[kOwn];
    take_half(rule, 1, largest, half);
    if constexpr (kMakers == 4) {
        take_half(rule, 2, half, own);
    } else {
#pragma unroll
        for (int i = 0; i < kOwn; i++)
            own[i] = half[i];
    }
    for (int distance = kMakers; distance < lanes; distance *= 2)
#pragma unroll
        for (int i = 0; i < kOwn; i++)
            own[i] = larger_of(rule, own[i], exchange(own[i], distance));
    const int lane = (int)threadIdx.x & (lanes - 1);
    code_scale_made made[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; i++) {
        made[i] = make_scale(rule, without_nan(rule, own[i]));
        if (lane < kMakers)
            store(i * kMakers + lane, made[i]);
    }
#pragma unroll
    for (int v = 0; v < n; v++)
        divisor[v] = from_lane<kMakers>(rule, made[v / kMakers].divisor, v % kMakers);
}

// ------------------------------------------------------------------------------------ kernels

// Blocks of packets that find room on a multiprocessor: by 32 registers, or 40.
template <typename S, int kVectors>
constexpr int kBlocksOfPackets = kVectors == 1 || (sizeof(typename S::T) == 4 && !S::kIsCheap) ? 8
                                                                                               : 6;

// Packets of given scales, of tensors and of groups, which are in lanes of one warp or in one lane:
// a thread has two that are beside each other, as no group is narrower, or one where a call is so
// small that it waits for what a thread executes.
template <typename S, int kScale, int kVectors>
static __global__ void __launch_bounds__(kThreads, (kBlocksOfPackets<S, kVectors>))
    packet_kernel(const __grid_constant__ typename S::args args)
{
    constexpr int kVec = kVecOf<typename S::T>, n = kVectors * kVec;
    // before the wait where a block more than there are places is what such a call waits for
    constexpr bool kIsLate = !S::kIsCheap || kScale == CODE_SCALE_F32;
    const quantize_args &codes = args.codes;
    const code_rule rule = rule_of<kScale>(codes);
    if (!kIsLate)
        let_next_start();
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t row = quotient(i, codes.to_row), packet = i - row * codes.packets;
    bool is_inside = i < codes.n_packets;
    int64_t column = (int64_t)packet * n, place = codes.first_row + row;
    const bool is_whole = kVectors == 1 || column + kVec < codes.width;
    const auto from = S::template at<kVec>(args, place, column);
    const auto second = S::template at<kVec>(args, place, column + kVec);
    S::finish_before_wait(args, from);
    wait_for_previous();
    if (kIsLate)
        let_next_start();
    const auto raw = is_inside ? S::template load<kVec>(args, from) : S::template none<kVec>();
    auto other = S::template none<kVec>();
    if (kVectors == 2 && is_inside && is_whole)
        other = S::template load<kVec>(args, second);
    float x[n], half[kVec];
    code_divisor divisor;
    S::template values<kVec>(args, raw, half);
#pragma unroll
    for (int j = 0; j < kVec; j++)
        x[j] = half[j];
    if constexpr (kVectors == 2) {
        S::template values<kVec>(args, other, half);
#pragma unroll
        for (int j = 0; j < kVec; j++)
            x[kVec + j] = half[j];
    }
    if (finds_scales<kScale>(codes)) {
        float largest = largest_of(rule, x);
        const int shift = group_shift_of<kScale, n>(codes), lanes = 1 << shift;
        for (int distance = lanes / 2; distance > 0; distance /= 2)
            largest = fmaxf(largest, exchange(largest, distance));
        code_scale_made scale = make_scale(rule, largest);
        if (is_inside && threadIdx.x % lanes == 0)
            store_scale(rule, codes.scales, scale_at(codes.scales, place, packet >> shift), scale);
        divisor = scale.divisor;
    } else {
        divisor = known_scale(codes);
    }
    if (is_inside)
        store_codes_of<kScale>(rule, codes.y + place * codes.y_stride + (column >> codes.y_shift),
                               x, divisor, is_whole ? codes.store : kStoresFirst);
}

// Codes of a vector of which elements first to last - 1 are wanted, one by one.
template <int n>
__device__ __forceinline__ void store_codes_between(uint8_t *to, int first, int last,
                                                    const fp8_codes<n> &codes)
{
#pragma unroll
    for (int j = 0; j < n; j++)
        if (j >= first && j < last)
            to[j] = byte_of(codes, j);
}

// Packets of one known scale, of rows that 16 bytes do not divide. Their codes begin anywhere, and
// are stored one by one. Of small calls, which wait for what a thread executes, a packet is one
// value.
template <typename S, int kVec>
static __global__ void __launch_bounds__(kThreads)
    shifted_packet_kernel(const __grid_constant__ typename S::args args)
{
    const quantize_args &codes = args.codes;
    if (kVec == 1)
        let_next_start();
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    const uint32_t row = quotient(i, codes.to_row), packet = i - row * codes.packets;
    const int64_t column = (int64_t)packet * kVec, place = codes.first_row + row;
    const int left = (int)min(codes.width - column, (int64_t)kVec);
    const auto from = S::template at<kVec>(args, place, column);
    uint8_t *const to = codes.y + place * codes.y_stride + column;
    if (i >= codes.n_packets)
        return;
    S::finish_before_wait(args, from);
    wait_for_previous();
    if (kVec != 1)
        let_next_start();
    float x[kVec];
    if constexpr (kVec == 1) {
        S::template values<1, true>(args, S::template load<1>(args, from), x);
    } else {
        typename S::shifted raw;
        raw.start(args, from, left);
        S::template values<kVec>(args, raw.finish(), x);
    }
    divide_codes(codes.rule, x, known_scale(codes));
    const fp8_codes<kVec> code = byte_codes_of(codes.rule, x);
    store_codes_between(to, 0, left, code);
}

// Values behind the end of a row do not count: an activation of 0 may be something.
template <int n>
__device__ __forceinline__ void clear_behind(int left, float (&x)[n], int apart = 1)
{
#pragma unroll
    for (int i = 0; i < n; i++)
        x[i] = i * apart < left ? x[i] : 0.0f;
}

// The same before its beginning.
template <int n>
__device__ __forceinline__ void clear_around(int first, int left, float (&x)[n])
{
#pragma unroll
    for (int i = 0; i < n; i++)
        x[i] = i >= first && i < left ? x[i] : 0.0f;
}

// The largest raw scale of all rows in scales[0], which is 0 before. Positive floats have the order
// of their bits.
template <typename S, bool kShifts>
static __global__ void __launch_bounds__(kThreads)
    tensor_kernel(const __grid_constant__ typename S::args args)
{
    constexpr int kVec = kVecOf<typename S::T>;
    __shared__ float shared[32];
    const quantize_args &codes = args.codes;
    let_next_start();
    wait_for_previous();
    float largest = 0.0f;
    for (uint32_t i = blockIdx.x * kThreads + threadIdx.x; i < codes.n_packets;
         i += gridDim.x * kThreads) {
        const uint32_t row = quotient(i, codes.to_row);
        const int64_t column = (int64_t)(i - row * codes.packets) * kVec;
        const auto from = S::template at<kVec>(args, codes.first_row + row, column);
        float x[kVec];
        if constexpr (kShifts) {
            const int left = (int)min(codes.width - column, (int64_t)kVec);
            typename S::shifted packet;
            packet.start(args, from, left);
            S::template values<kVec>(args, packet.finish(), x);
            clear_behind(left, x);
        } else {
            S::template values<kVec>(args, S::template load<kVec>(args, from), x);
        }
        largest = fmaxf(largest, largest_of(codes.rule, x));
    }
    largest = largest_in_group(largest, shared, kThreads);
    if (threadIdx.x == 0)
        atomicMax(static_cast<unsigned *>(codes.scales.data),
                  __float_as_uint(raw_scale_of(codes.rule, largest)));
}

// scales[0] as the call returns it.
static __global__ void finish_kernel(const __grid_constant__ quantize_args args)
{
    let_next_start();
    wait_for_previous();
    float *scale = static_cast<float *>(args.scales.data);
    *scale = finished(args.rule, *scale);
}

// ------------------------------------------------------------------------------------ launches

// Are so many codes at one place of every row, from its start, aligned to all of them?
static inline bool are_codes_aligned(const quantize_args &codes, int n)
{
    const int bytes = n >> codes.y_shift;
    return is_aligned(codes.y, bytes) && (codes.n_rows == 1 || codes.y_stride % bytes == 0);
}

// Can packets of codes be stored, and begin where a packet of values does?
template <typename T>
static bool has_packets(const quantize_args &codes)
{
    return codes.width % kVecOf<T> == 0 && are_codes_aligned(codes, kVecOf<T>);
}

// Threads of a block of packets.
static inline int threads_of_packets(int64_t packets, int64_t chips)
{
    int threads = kThreads;
    while (threads > kLeastThreads && leaves_places(blocks_of(packets, threads), chips))
        threads /= 2;
    return threads;
}

// A thread for each packet of n elements, in at most so many blocks where those walk; of so many
// rows a launch that their packets can be counted in a register.
template <typename S, int n>
static enum roped_status launch_packets(typename S::args args, kernel_fn<typename S::args> *kernel,
                                        int64_t most_blocks, struct roped_queue *queue,
                                        struct roped_error *err)
{
    quantize_args &codes = args.codes;
    const int64_t packets = blocks_of(codes.width, n), n_rows = codes.n_rows;
    if (packets > kMostPackets)
        return roped_fail(
            err, ROPED_TOO_LARGE,
            "tensor '%s': rows of %lld elements, expected at most %lld on this device", S::kName,
            (long long)codes.width, (long long)(kMostPackets * n));
    const int64_t most = kMostPackets / packets;
    codes.packets = (uint32_t)packets;
    codes.to_row = index_divisor(packets);
    codes.store = are_codes_aligned(codes, n) ? kStoresWhole : kStoresHalves;
    while (codes.finds && n << codes.tile_shift < codes.tile_width)
        codes.tile_shift++;
    enum roped_status status = ROPED_OK;
    int64_t row = 0;
    do { // a tensor without rows has a scale too
        codes.first_row = row;
        codes.n_rows = n_rows - row < most ? n_rows - row : most;
        codes.n_packets = (uint32_t)(codes.n_rows * packets);
        const int64_t chips = queue->n_multiprocessors;
        const bool walks = most_blocks < INT_MAX;
        const int threads = walks ? kThreads : threads_of_packets(codes.n_packets, chips);
        int64_t blocks = clamp(blocks_of(codes.n_packets, threads), 1, most_blocks);
        blocks = walks ? blocks : evened_blocks(blocks, chips);
        status = start(queue, kernel, dim3((unsigned)threads), blocks, dim3(1), args, err);
        row += most;
    } while (row < n_rows && !status);
    return status;
}

// Have packets scales that are there, or those of groups?
static bool are_packets(const quantize_args &codes)
{
    return !codes.finds || (codes.tile_rows == 1 && codes.tile_width <= kSide);
}

// Of values that take long a thread has one packet, as long as each of 256 threads of every
// multiprocessor would have no more than these.
constexpr int64_t kMostSinglePackets = 12;

// The kernel for the scales of a launch.
template <typename S>
static enum roped_status launch_packets(const typename S::args &args, struct roped_queue *queue,
                                        struct roped_error *err)
{
    constexpr int kVec = kVecOf<typename S::T>;
    const quantize_args &codes = args.codes;
    const int scale = codes.rule.scale;
    const int64_t packets = codes.n_rows * blocks_of(codes.width, kVec);
    if constexpr (!S::kIsCheap)
        if (scale == CODE_SCALE_F32 &&
            packets <= kMostSinglePackets * kThreads * queue->n_multiprocessors)
            return launch_packets<S, kVec>(args, packet_kernel<S, CODE_SCALE_F32, 1>, INT_MAX,
                                           queue, err);
    kernel_fn<typename S::args> *kernel =
        scale == CODE_SCALE_E8M0   ? packet_kernel<S, CODE_SCALE_E8M0, 2>
        : scale == CODE_SCALE_E4M3 ? packet_kernel<S, CODE_SCALE_E4M3, 2>
                                   : packet_kernel<S, CODE_SCALE_F32, 2>;
    return launch_packets<S, 2 * kVec>(args, kernel, INT_MAX, queue, err);
}

template <typename S, int kVec = kVecOf<typename S::T>>
static enum roped_status launch_shifted_packets(const typename S::args &args,
                                                struct roped_queue *queue, struct roped_error *err)
{
    return launch_packets<S, kVec>(args, shifted_packet_kernel<S, kVec>, INT_MAX, queue, err);
}

template <typename S>
static enum roped_status find_tensor_scale(const typename S::args &args, bool is_packed,
                                           struct roped_queue *queue, struct roped_error *err)
{
    constexpr int64_t kMostBlocks = 2048;
    CHECK_RETURN(queue->backend,
                 cudaMemsetAsync(args.codes.scales.data, 0, sizeof(float), queue->stream), err);
    kernel_fn<typename S::args> *kernel = tensor_kernel<S, true>;
    if constexpr (!S::kIsRare)
        kernel = is_packed ? tensor_kernel<S, false> : kernel;
    enum roped_status status =
        launch_packets<S, kVecOf<typename S::T>>(args, kernel, kMostBlocks, queue, err);
    return status ? status : start(queue, finish_kernel, dim3(1), 1, dim3(1), args.codes, err);
}

static enum roped_status clear_padding(const struct code_tiles *tiles,
                                       const struct roped_tensor *scales, struct roped_queue *queue,
                                       struct roped_error *err)
{
    const size_t bytes = (size_t)tiles->scale_bytes;
    char *end = static_cast<char *>(scales->data) + (size_t)tiles->n_rows * bytes;
    if (tiles->is_swizzled && (tiles->n_rows % 128 || tiles->n_tiles % 4))
        CHECK_RETURN(
            queue->backend,
            cudaMemsetAsync(scales->data, 0, (size_t)roped_tensor_bytes(scales), queue->stream),
            err);
    if (tiles->n_padding > 0)
        CHECK_RETURN(queue->backend,
                     cudaMemset2DAsync(end, (size_t)tiles->scale_tile * bytes, 0,
                                       (size_t)tiles->n_padding * bytes, (size_t)tiles->n_tiles,
                                       queue->stream),
                     err);
    return ROPED_OK;
}

// What every source's codes are, and zeros where scales are beyond rows and groups.
static enum roped_status begin_codes(const struct quantize_plan *plan, const struct roped_tensor *y,
                                     const struct roped_tensor *scales, struct roped_queue *queue,
                                     quantize_args *codes, struct roped_error *err)
{
    const struct code_tiles *tiles = &plan->tiles;
    codes->y = static_cast<uint8_t *>(y->data);
    codes->scales = code_scales_of(*tiles, scales->data);
    codes->n_rows = tiles->n_rows;
    codes->width = tiles->width;
    codes->y_shift = plan->rule.element == CODE_E2M1;
    codes->y_stride = row_stride(y, tiles->width >> codes->y_shift);
    codes->n_tiles = tiles->n_tiles;
    codes->tile_rows = tiles->tile_rows;
    codes->tile_width = tiles->tile_width;
    codes->dequant_scale = plan->dequant_scale;
    codes->rule = plan->rule;
    codes->finds = plan->dynamic && !plan->is_tensor;
    codes->is_tensor = plan->is_tensor;
    return !plan->dynamic ? ROPED_OK : clear_padding(tiles, scales, queue, err);
}
