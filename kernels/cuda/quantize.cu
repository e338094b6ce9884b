// quantize.cu - quantize on CUDA. Given scales and groups: 16 bytes of x per thread, a group's
// largest by exchanges between its threads. Rows and blocks of 128 x 128: a block of threads holds
// one in registers and reads memory once. A whole tensor is read once for its scale and again for
// its codes. Where addresses, strides or h leave no packets, or a row is too wide for registers,
// a tile is walked twice, element by element.

extern "C" {
#include "ops/quantize.h"
}

#include "cuda/device/codes.cuh"
#include "cuda/device/quotient.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/device/stream.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/dispatch.cuh"

constexpr int kThreads = 256;
constexpr int kMostThreads = 512; // for a row
constexpr int kSide = CODES_BLOCK_SIDE;

struct quantize_args {
    const void *x;
    uint8_t *y;
    code_scales scales;
    int64_t n_rows, width, x_stride, y_stride;
    int64_t n_tiles, tile_rows, tile_width;
    int64_t first_row;  // of a launch of packets
    uint32_t packets;   // of a row
    uint32_t n_packets; // of all rows of a launch
    divisor_of_index to_row;
    int32_t tile_shift;  // a tile has 2^tile_shift packets of a row
    int32_t y_shift;     // a byte has 2^y_shift codes
    float dequant_scale; // where nothing is found
    code_rule rule;
    int32_t finds;     // bool: tiles have dynamic scales
    int32_t is_tensor; // bool: scales[0] is everybody's
};

// A scale that is there before the kernel starts.
__device__ __forceinline__ code_divisor known_scale(const quantize_args &args)
{
    float scale = args.is_tensor ? finished(args.rule, scale_value(CODE_SCALE_F32, args.scales, 0))
                                 : args.dequant_scale;
    return {1.0f, divisor_of(scale)};
}

// The rule of a launch, whose scales a kernel is compiled for: those of float32 are those of codes
// of 8 bits. What other formats do would take the registers and the time of every one.
template <int kScale>
__device__ __forceinline__ code_rule rule_of(const quantize_args &args)
{
    code_rule rule = args.rule;
    rule.scale = kScale;
    if (kScale == CODE_SCALE_F32 && rule.element > CODE_I8)
        __builtin_unreachable();
    return rule;
}

// ------------------------------------------------------------------------------------ kernels

// Packets of given scales, of tensors and of groups: those of a group are in lanes of one warp.
template <typename T, int kScale>
static __global__ void __launch_bounds__(kThreads)
    packet_kernel(const __grid_constant__ quantize_args args)
{
    constexpr int kVec = kVecOf<T>;
    const code_rule rule = rule_of<kScale>(args);
    let_next_start();
    uint32_t i = blockIdx.x * kThreads + threadIdx.x;
    uint32_t row = quotient(i, args.to_row), packet = i - row * args.packets;
    bool is_inside = i < args.n_packets;
    int64_t column = (int64_t)packet * kVec, place = args.first_row + row;
    const T *from = static_cast<const T *>(args.x) + place * args.x_stride + column;
    wait_for_previous();
    uint4 raw = is_inside ? load_16(from) : make_uint4(0, 0, 0, 0);
    float x[kVec];
    code_divisor divisor;
    unpack<T>(raw, x);
    if (args.finds) {
        float largest = largest_of(rule, x);
        int lanes = 1 << args.tile_shift;
        for (int distance = lanes / 2; distance > 0; distance /= 2)
            largest = fmaxf(largest, exchange(largest, distance));
        code_scale_made scale = make_scale(rule, largest);
        if (is_inside && threadIdx.x % lanes == 0)
            store_scale(rule, args.scales, scale_at(args.scales, place, packet >> args.tile_shift),
                        scale);
        divisor = divisor_of(scale);
    } else {
        divisor = known_scale(args);
    }
    if (is_inside)
        store_codes(rule, args.y + place * args.y_stride + (column >> args.y_shift), x, divisor);
}

// The element at which packet v of a thread begins, or one outside.
template <typename T, bool kIsBlock>
__device__ __forceinline__ bool place_of(const quantize_args &args, int v, int64_t *row,
                                         int64_t *column)
{
    constexpr int kVec = kVecOf<T>;
    int i = v * blockDim.x + threadIdx.x;
    if (kIsBlock) {
        int64_t strip = blockIdx.x / args.n_tiles, tile = blockIdx.x - strip * args.n_tiles;
        *row = strip * kSide + i / (kSide / kVec);
        *column = tile * kSide + i % (kSide / kVec) * kVec;
    } else {
        *row = blockIdx.x;
        *column = (int64_t)i * kVec;
    }
    return *row < args.n_rows && *column < args.width;
}

// A tile in the registers of a block of threads.
template <typename T, int kVecs, bool kIsBlock>
static __global__ void __launch_bounds__(kMostThreads)
    tile_kernel(const __grid_constant__ quantize_args args)
{
    constexpr int kVec = kVecOf<T>;
    const code_rule rule = rule_of<CODE_SCALE_F32>(args);
    __shared__ float shared[32];
    let_next_start();
    wait_for_previous();
    uint4 raw[kVecs];
    int64_t row, column;
#pragma unroll
    for (int v = 0; v < kVecs; v++)
        raw[v] = place_of<T, kIsBlock>(args, v, &row, &column)
                     ? load_16(static_cast<const T *>(args.x) + row * args.x_stride + column)
                     : make_uint4(0, 0, 0, 0);
    float x[kVec], largest = 0.0f;
#pragma unroll
    for (int v = 0; v < kVecs; v++) {
        unpack<T>(raw[v], x);
        largest = fmaxf(largest, largest_of(rule, x));
    }
    largest = largest_in_group(largest, shared, blockDim.x);
    code_scale_made scale = make_scale(rule, largest);
    if (threadIdx.x == 0)
        store_scale(rule, args.scales, kIsBlock ? blockIdx.x : blockIdx.x * args.scales.row, scale);
    code_divisor divisor = divisor_of(scale);
#pragma unroll
    for (int v = 0; v < kVecs; v++) {
        if (!place_of<T, kIsBlock>(args, v, &row, &column))
            continue;
        unpack<T, true>(raw[v], x);
        store_codes(rule, args.y + row * args.y_stride + column, x, divisor);
    }
}

// Any tile, element by element, twice.
template <typename T>
static __global__ void __launch_bounds__(kThreads)
    element_kernel(const __grid_constant__ quantize_args args)
{
    __shared__ float shared[32];
    let_next_start();
    wait_for_previous();
    int64_t strip = blockIdx.x / args.n_tiles, tile = blockIdx.x - strip * args.n_tiles;
    int64_t first_row = strip * args.tile_rows, first = tile * args.tile_width;
    int64_t rows = min(args.tile_rows, args.n_rows - first_row);
    int64_t columns = min(args.tile_width, args.width - first);
    const T *from = static_cast<const T *>(args.x) + first_row * args.x_stride + first;
    uint8_t *to = args.y + first_row * args.y_stride + (first >> args.y_shift);
    code_divisor divisor;
    if (args.finds) {
        float largest = 0.0f;
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = threadIdx.x; c < columns; c += blockDim.x) {
                float x[1] = {element<T>::to_float(from[r * args.x_stride + c])};
                largest = fmaxf(largest, largest_of(args.rule, x));
            }
        largest = largest_in_group(largest, shared, blockDim.x);
        code_scale_made scale = make_scale(args.rule, largest);
        if (threadIdx.x == 0)
            store_scale(args.rule, args.scales, scale_at(args.scales, strip, tile), scale);
        divisor = divisor_of(scale);
    } else {
        divisor = known_scale(args);
    }
    for (int64_t r = 0; r < rows; r++) {
        const T *row = from + r * args.x_stride;
        for (int64_t byte = threadIdx.x; byte < columns >> args.y_shift; byte += blockDim.x) {
            uint8_t *code = to + r * args.y_stride + byte;
            if (args.y_shift) {
                float x[2] = {element<T>::to_float(row[2 * byte]),
                              element<T>::to_float(row[2 * byte + 1])};
                store_codes(args.rule, code, x, divisor);
            } else {
                float x[1] = {element<T>::to_float(row[byte])};
                store_codes(args.rule, code, x, divisor);
            }
        }
    }
}

// The largest raw scale of all rows in scales[0], which is 0 before: packets of kVec elements, or
// single ones. Positive floats have the order of their bits.
template <typename T, int kVec>
static __global__ void __launch_bounds__(kThreads)
    tensor_kernel(const __grid_constant__ quantize_args args)
{
    __shared__ float shared[32];
    let_next_start();
    wait_for_previous();
    float largest = 0.0f;
    for (uint32_t i = blockIdx.x * kThreads + threadIdx.x; i < args.n_packets;
         i += gridDim.x * kThreads) {
        uint32_t row = quotient(i, args.to_row);
        int64_t column = (int64_t)(i - row * args.packets) * kVec;
        const T *from =
            static_cast<const T *>(args.x) + (args.first_row + row) * args.x_stride + column;
        float x[kVec];
        if constexpr (kVec == 1)
            x[0] = element<T>::to_float(*from);
        else
            unpack<T>(load_16(from), x);
        largest = fmaxf(largest, largest_of(args.rule, x));
    }
    largest = largest_in_group(largest, shared, kThreads);
    if (threadIdx.x == 0)
        atomicMax(static_cast<unsigned *>(args.scales.data),
                  __float_as_uint(raw_scale_of(args.rule, largest)));
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

template <typename T>
static bool has_packets(const quantize_args &args)
{
    constexpr int kVec = kVecOf<T>;
    bool has = args.width % kVec == 0 && is_aligned(args.x, 16) &&
               is_aligned(args.y, kVec >> args.y_shift);
    return has && (args.n_rows == 1 ||
                   (args.x_stride % kVec == 0 && args.y_stride % (kVec >> args.y_shift) == 0));
}

static int64_t blocks_of(int64_t n, int64_t threads)
{
    return (n + threads - 1) / threads;
}

// A thread for each packet of kVec elements, in at most so many blocks; of so many rows a launch
// that their packets can be counted in a register.
template <typename T, int kVec>
static enum roped_status launch_packets(quantize_args args, kernel_fn<quantize_args> *kernel,
                                        int64_t most_blocks, struct roped_queue *queue,
                                        struct roped_error *err)
{
    const int64_t packets = args.width / kVec, n_rows = args.n_rows;
    if (packets > kMostPackets)
        return roped_fail(err, ROPED_TOO_LARGE,
                          "tensor 'x': rows of %lld elements, expected at most %lld on this device",
                          (long long)args.width, (long long)(kMostPackets * kVec));
    const int64_t most = kMostPackets / packets;
    args.packets = (uint32_t)packets;
    args.to_row = index_divisor(packets);
    while (args.finds && kVec << args.tile_shift < args.tile_width)
        args.tile_shift++;
    enum roped_status status = ROPED_OK;
    int64_t row = 0;
    do { // a tensor without rows has a scale too
        args.first_row = row;
        args.n_rows = n_rows - row < most ? n_rows - row : most;
        args.n_packets = (uint32_t)(args.n_rows * packets);
        int64_t blocks = blocks_of(args.n_packets, kThreads);
        blocks = blocks < 1 ? 1 : blocks < most_blocks ? blocks : most_blocks;
        status = start(queue, kernel, dim3(kThreads), blocks, dim3(1), args, err);
        row += most;
    } while (row < n_rows && !status);
    return status;
}

template <typename T>
static enum roped_status find_tensor_scale(const quantize_args &args, bool is_packed,
                                           struct roped_queue *queue, struct roped_error *err)
{
    constexpr int64_t kMostBlocks = 2048;
    CHECK_RETURN(queue->backend, cudaMemsetAsync(args.scales.data, 0, sizeof(float), queue->stream),
                 err);
    enum roped_status status =
        is_packed ? launch_packets<T, kVecOf<T>>(args, tensor_kernel<T, kVecOf<T>>, kMostBlocks,
                                                 queue, err)
                  : launch_packets<T, 1>(args, tensor_kernel<T, 1>, kMostBlocks, queue, err);
    return status ? status : start(queue, finish_kernel, dim3(1), 1, dim3(1), args, err);
}

// Rows in registers: as few packets a thread as there are threads for.
template <typename T>
static enum roped_status launch_rows(const quantize_args &args, struct roped_queue *queue,
                                     struct roped_error *err)
{
    const int64_t packets = args.width / kVecOf<T>;
    int threads = 32;
    while (threads < kMostThreads && threads * 4 < packets)
        threads *= 2;
    kernel_fn<quantize_args> *kernel = packets <= threads       ? tile_kernel<T, 1, false>
                                       : packets <= 2 * threads ? tile_kernel<T, 2, false>
                                       : packets <= 4 * threads ? tile_kernel<T, 4, false>
                                                                : tile_kernel<T, 8, false>;
    return start(queue, kernel, dim3(threads), args.n_rows, dim3(1), args, err);
}

template <typename T>
static enum roped_status launch(quantize_args args, struct roped_queue *queue,
                                struct roped_error *err)
{
    constexpr int kVec = kVecOf<T>;
    const bool is_packed = has_packets<T>(args);
    if (args.is_tensor) {
        enum roped_status status = find_tensor_scale<T>(args, is_packed, queue, err);
        if (status)
            return status;
    }
    if (args.n_rows == 0)
        return ROPED_OK;
    const int scale = args.rule.scale;
    const bool is_row = args.finds && args.n_tiles == 1 && args.tile_rows == 1;
    const bool in_tiles = is_packed && args.finds && scale == CODE_SCALE_F32;
    if (in_tiles && args.tile_rows > 1)
        return start(queue, tile_kernel<T, kSide * kSide / kVec / kThreads, true>, dim3(kThreads),
                     blocks_of(args.n_rows, kSide) * args.n_tiles, dim3(1), args, err);
    if (in_tiles && is_row && args.width <= 8 * kMostThreads * kVec)
        return launch_rows<T>(args, queue, err);
    if (is_packed && scale == CODE_SCALE_E8M0)
        return launch_packets<T, kVec>(args, packet_kernel<T, CODE_SCALE_E8M0>, INT_MAX, queue,
                                       err);
    if (is_packed && scale == CODE_SCALE_E4M3)
        return launch_packets<T, kVec>(args, packet_kernel<T, CODE_SCALE_E4M3>, INT_MAX, queue,
                                       err);
    if (is_packed && !is_row)
        return launch_packets<T, kVec>(args, packet_kernel<T, CODE_SCALE_F32>, INT_MAX, queue, err);
    return start(queue, element_kernel<T>, dim3(args.tile_width <= kSide ? 32 : kThreads),
                 blocks_of(args.n_rows, args.tile_rows) * args.n_tiles, dim3(1), args, err);
}

// Zeros where scales are beyond rows and groups.
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

extern "C" enum roped_status roped_cuda_quantize(const struct roped_call *call,
                                                 struct roped_queue *queue, struct roped_error *err)
{
    const struct quantize_plan *plan = (const struct quantize_plan *)call->plan;
    const struct roped_tensor *x = &call->in[QUANTIZE_X], *y = &call->out[QUANTIZE_Y];
    const struct code_tiles *tiles = &plan->tiles;
    quantize_args args = {};
    args.x = x->data;
    args.y = static_cast<uint8_t *>(y->data);
    args.scales = code_scales_of(*tiles, call->out[QUANTIZE_SCALES].data);
    args.n_rows = tiles->n_rows;
    args.width = tiles->width;
    args.y_shift = plan->rule.element == CODE_E2M1;
    args.x_stride = row_stride(x, tiles->width);
    args.y_stride = row_stride(y, tiles->width >> args.y_shift);
    args.n_tiles = tiles->n_tiles;
    args.tile_rows = tiles->tile_rows;
    args.tile_width = tiles->tile_width;
    args.dequant_scale = plan->dequant_scale;
    args.rule = plan->rule;
    args.finds = plan->dynamic && !plan->is_tensor;
    args.is_tensor = plan->is_tensor;
    enum roped_status status = clear_padding(tiles, &call->out[QUANTIZE_SCALES], queue, err);
    if (status)
        return status;
    return with_float_type(
        x->dtype, [&](auto tag) { return launch<typename decltype(tag)::type>(args, queue, err); });
}
