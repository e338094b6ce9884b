// dequantize.cu - dequantize on CUDA: packets of codes that become 16 bytes, of one scale, or of up
// to three where rows that 16 bytes do not divide follow each other without a gap; or one code
// where addresses or strides leave no packets.

extern "C" {
#include "ops/dequantize.h"
}

#include "cuda/device/codes.cuh"
#include "cuda/device/quotient.cuh"
#include "cuda/device/stream.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/dispatch.cuh"

constexpr int kThreads = 256;

// Of a thread, a block's threads apart, so that neighbours store 16 bytes beside each other: eight
// codes, whatever they become.
template <typename T>
constexpr int kPacketsOfThread = 8 / kVecOf<T>;

// From so many turns on, of all threads that find room, a thread has two: then 16 bytes of codes
// are on their way for it.
constexpr int64_t kEnoughTurns = 4;

struct dequantize_args {
    const uint8_t *x;
    code_scales scales; // data NULL: dequant_scale
    void *y;
    int64_t x_stride, y_stride;
    int64_t first_row;  // of a launch
    uint32_t n_codes;   // of the call, whose rows have no gap between them
    uint32_t width;     // of those rows
    uint32_t packets;   // of a row
    uint32_t n_packets; // of all rows of a launch
    divisor_of_index to_row;
    int32_t row_shift, column_shift; // tiles have 2^row_shift rows, 2^column_shift columns
    float dequant_scale, global_scale;
    int32_t element, scale;
    int32_t x_shift; // a byte has 2^x_shift codes
};

// n codes: as many bytes, or half as many; or one byte, which is two codes of e2m1.
template <int n>
__device__ __forceinline__ void load_codes(int element_kind, const uint8_t *from,
                                           uint32_t (&word)[(n + 3) / 4])
{
    static_assert(n == 8 || n == 4 || n <= 2, "one access");
    const int bytes = n <= 2 ? 1 : element_kind == CODE_E2M1 ? n / 2 : n;
    if (bytes == 8) {
        uint2 raw = load_8(from);
        word[0] = raw.x;
        word[(n + 3) / 4 - 1] = raw.y;
    } else if (bytes == 4) {
        word[0] = __float_as_uint(load_float(reinterpret_cast<const float *>(from)));
    } else {
        word[0] = bytes == 2 ? *reinterpret_cast<const uint16_t *>(from) : *from;
    }
}

// Packet i of a launch: where it is, and what has come of it. So many tiles have codes of it.
template <typename T, int n, int kTiles>
struct code_packet;

template <typename T, int n>
struct code_packet<T, n, 1> {
    const uint8_t *from;
    const char *scale_from;
    T *to;
    bool is_there;
    uint32_t word[(n + 3) / 4];
    uint32_t raw_scale;

    __device__ __forceinline__ void find(const dequantize_args &args, uint32_t i)
    {
        uint32_t row_here = quotient(i, args.to_row);
        int64_t row = args.first_row + row_here;
        int64_t column = (int64_t)(i - row_here * args.packets) * n;
        is_there = i < args.n_packets;
        from = args.x + row * args.x_stride + (column >> args.x_shift);
        to = static_cast<T *>(args.y) + row * args.y_stride + column;
        scale_from = NULL;
        if (args.scales.data)
            scale_from = scale_address(
                args.scale, args.scales,
                scale_at(args.scales, row >> args.row_shift, column >> args.column_shift));
        finish_addresses(from, scale_from);
    }
    __device__ __forceinline__ void load(const dequantize_args &args)
    {
        if (!is_there)
            return;
        load_codes<n>(args.element, from, word);
        if (args.scales.data)
            raw_scale = load_scale(args.scale, scale_from);
    }
    __device__ __forceinline__ void store(const dequantize_args &args) const
    {
        if (!is_there)
            return;
        float x[n], by = args.dequant_scale;
        if (args.scales.data)
            by = scale_of(args.scale, raw_scale);
        if (args.scale == CODE_SCALE_E4M3)
            by /= args.global_scale;
        if constexpr (n == 2) // a byte of two codes
            expand<CODE_E2M1>(word, x);
        else
            expand(args.element, word, x);
#pragma unroll
        for (float &value : x)
            value *= by;
        if constexpr (n > 2) {
            store_floats(to, x);
        } else {
#pragma unroll
            for (int i = 0; i < n; i++)
                to[i] = element<T>::from_float(x[i]);
        }
    }
};

// Packet i of all rows, which follow each other: it may have codes of two of them, which are tiles,
// or of three tiles, for the last tile of a row may be narrower than a packet.
template <typename T, int n, int kTiles>
struct code_packet {
    const uint8_t *from;
    T *to;
    const char *scale_from[kTiles];
    int end[kTiles]; // where each one's codes end here
    int n_codes;     // of all rows from here, n at most
    bool is_whole;   // n
    uint32_t word[(n + 3) / 4];
    uint32_t raw_scale[kTiles];

    __device__ __forceinline__ void find(const dequantize_args &args, uint32_t i)
    {
        const uint32_t first = i * n, last = min(first, args.n_codes - 1);
        int row = (int)quotient(last, args.to_row), column = (int)(last - row * args.width);
        // ptxas 13.0 takes "n_codes == n" for its opposite if n_codes is a minimum and a maximum
        is_whole = first + n <= args.n_codes;
        n_codes = is_whole ? n : first < args.n_codes ? (int)(args.n_codes - first) : 0;
        from = args.x + (first >> args.x_shift);
        to = static_cast<T *>(args.y) + first;
        int n_before = 0;
#pragma unroll
        for (int t = 0; t < kTiles; t++) { // scales of numbers: not swizzled
            const int tile = kTiles > 2 ? column >> args.column_shift : 0, width = (int)args.width;
            const int64_t behind = kTiles > 2 ? (int64_t)(tile + 1) << args.column_shift : width;
            const int next = (int)min(behind, (int64_t)width);
            const uint32_t of_row = (uint32_t)(row >> args.row_shift) * (uint32_t)args.scales.row;
            const uint32_t at = of_row + (uint32_t)tile * (uint32_t)args.scales.tile;
            scale_from[t] = scale_address(args.scale, args.scales, at);
            end[t] = n_before + min(next - column, n);
            n_before = end[t];
            row += next == width;
            column = next == width ? 0 : next;
        }
        finish_addresses(from, to, scale_from[0], scale_from[kTiles - 1]);
    }
    __device__ __forceinline__ void load(const dequantize_args &args)
    {
        if (is_whole) {
            load_codes<n>(args.element, from, word);
        } else {
            memset(word, 0, sizeof word);
#pragma unroll
            for (int i = 0; i < n; i++)
                if (i < n_codes >> args.x_shift)
                    word[i / 4] |= (uint32_t)from[i] << i % 4 * 8;
        }
#pragma unroll
        for (int t = 0; t < kTiles; t++)
            if (args.scales.data && n_codes > (t > 0 ? end[t - 1] : 0))
                raw_scale[t] = load_scale(args.scale, scale_from[t]);
    }
    __device__ __forceinline__ void store(const dequantize_args &args) const
    {
        float x[n], scale[kTiles];
#pragma unroll
        for (int t = 0; t < kTiles; t++)
            scale[t] = args.scales.data ? scale_of(args.scale, raw_scale[t]) : args.dequant_scale;
        expand(args.element, word, x);
#pragma unroll
        for (int i = 0; i < n; i++)
            x[i] *= i < end[0]                  ? scale[0]
                    : i < end[1] || kTiles == 2 ? scale[1]
                                                : scale[kTiles - 1];
        if (is_whole) {
            store_floats(to, x);
            return;
        }
#pragma unroll
        for (int i = 0; i < n; i++)
            if (i < n_codes)
                to[i] = element<T>::from_float(x[i]);
    }
};

template <typename T, int n, int kTiles, int kPackets>
static __global__ void __launch_bounds__(kThreads)
    dequantize_kernel(const __grid_constant__ dequantize_args args)
{
    code_packet<T, n, kTiles> packet[kPackets];
    let_next_start();
#pragma unroll
    for (int p = 0; p < kPackets; p++)
        packet[p].find(args, (blockIdx.x * kPackets + p) * kThreads + threadIdx.x);
    wait_for_previous();
#pragma unroll
    for (auto &one : packet)
        one.load(args);
#pragma unroll
    for (const auto &one : packet)
        one.store(args);
}

// Of so many rows a launch that their packets can be counted in a register.
template <typename T, int n>
static enum roped_status launch(dequantize_args args, const struct code_tiles *tiles,
                                struct roped_queue *queue, struct roped_error *err)
{
    const int64_t packets = tiles->width / n;
    if (packets > kMostPackets)
        return roped_fail(err, ROPED_TOO_LARGE,
                          "tensor 'x': rows of %lld elements, expected at most %lld on this device",
                          (long long)tiles->width, (long long)(kMostPackets * n));
    constexpr int kFew = n > 2 ? kPacketsOfThread<T> : 1, kMany = n > 2 ? 2 : 1;
    const int64_t at_once = 2048 * (int64_t)queue->n_multiprocessors;
    const bool is_large = tiles->n_rows * packets > kEnoughTurns * kMany * at_once;
    const int64_t most = kMostPackets / packets;
    args.packets = (uint32_t)packets;
    args.to_row = index_divisor(packets);
    enum roped_status status = ROPED_OK;
    for (int64_t row = 0; row < tiles->n_rows && !status; row += most) {
        const int64_t rows = tiles->n_rows - row < most ? tiles->n_rows - row : most;
        args.first_row = row;
        args.n_packets = (uint32_t)(rows * packets);
        status = start(
            queue, is_large ? dequantize_kernel<T, n, 1, kMany> : dequantize_kernel<T, n, 1, kFew>,
            dim3(kThreads), blocks_of(args.n_packets, kThreads * (is_large ? kMany : kFew)),
            dim3(1), args, err);
    }
    return status;
}

template <typename T>
static enum roped_status launch_crossing(dequantize_args args, const struct code_tiles *tiles,
                                         struct roped_queue *queue, struct roped_error *err)
{
    constexpr int n = kVecOf<T>, kPackets = kPacketsOfThread<T>;
    args.width = (uint32_t)tiles->width;
    args.n_codes = (uint32_t)(tiles->n_rows * tiles->width);
    args.to_row = index_divisor(tiles->width);
    return start(queue,
                 tiles->n_tiles == 1 ? dequantize_kernel<T, n, 2, kPackets>
                                     : dequantize_kernel<T, n, 3, kPackets>,
                 dim3(kThreads), blocks_of(tiles->n_rows * tiles->width, kThreads * n * kPackets),
                 dim3(1), args, err);
}

// 2^shift is the size of a tile, or no element is beyond it.
static int32_t shift_of(int64_t size)
{
    int32_t shift = 0;
    while ((int64_t)1 << shift < size)
        shift++;
    return shift;
}

template <typename T>
static bool has_packets(const dequantize_args &args, const struct code_tiles *tiles)
{
    constexpr int kVec = kVecOf<T>;
    bool has = tiles->width % kVec == 0 && is_aligned(args.x, kVec) && is_aligned(args.y, 16);
    return has && (tiles->n_rows == 1 || (args.x_stride % kVec == 0 && args.y_stride % kVec == 0));
}

// Are all rows one of packets? Of groups that end within one there would be more tiles than three,
// and elements are counted in a register.
template <typename T>
static bool has_crossing_packets(const dequantize_args &args, const struct code_tiles *tiles)
{
    constexpr int kVec = kVecOf<T>;
    const bool is_dense = tiles->n_rows == 1 || (args.x_stride << args.x_shift == tiles->width &&
                                                 args.y_stride == tiles->width);
    return is_dense && tiles->n_rows > 0 && tiles->tile_width >= kVec && tiles->width >= kVec &&
           is_aligned(args.x, kVec) && is_aligned(args.y, 16) &&
           tiles->n_rows <= kMostPackets / tiles->width;
}

extern "C" enum roped_status roped_cuda_dequantize(const struct roped_call *call,
                                                   struct roped_queue *queue,
                                                   struct roped_error *err)
{
    const struct dequantize_plan *plan = (const struct dequantize_plan *)call->plan;
    const struct roped_tensor *x = &call->in[DEQUANTIZE_X], *y = &call->out[DEQUANTIZE_Y];
    const struct code_tiles *tiles = &plan->tiles;
    dequantize_args args = {};
    args.x = static_cast<const uint8_t *>(x->data);
    args.scales = code_scales_of(*tiles, call->in[DEQUANTIZE_SCALES].data);
    args.x_shift = plan->element == CODE_E2M1;
    args.y = y->data;
    args.x_stride = x->stride ? x->stride : tiles->width >> args.x_shift;
    args.y_stride = y->stride ? y->stride : tiles->width;
    args.row_shift = shift_of(tiles->tile_rows);
    args.column_shift = shift_of(tiles->tile_width);
    args.dequant_scale = plan->dequant_scale;
    args.global_scale = plan->global_scale;
    args.element = plan->element;
    args.scale = plan->scale;
    return with_float_type(y->dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        if (has_packets<T>(args, tiles))
            return launch<T, kVecOf<T>>(args, tiles, queue, err);
        if (has_crossing_packets<T>(args, tiles))
            return launch_crossing<T>(args, tiles, queue, err);
        return args.x_shift ? launch<T, 2>(args, tiles, queue, err)
                            : launch<T, 1>(args, tiles, queue, err);
    });
}
