// dequantize.cu - dequantize on CUDA: a packet of codes per thread, which share a scale, or one
// code where addresses, strides or h leave no packets.

extern "C" {
#include "ops/dequantize.h"
}

#include "cuda/device/codes.cuh"
#include "cuda/device/quotient.cuh"
#include "cuda/device/stream.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/dispatch.cuh"

constexpr int kThreads = 256;
constexpr int kPacket = 8; // codes, of which 16 bytes of 16-bit values become

struct dequantize_args {
    const uint8_t *x;
    code_scales scales; // data NULL: dequant_scale
    void *y;
    int64_t x_stride, y_stride;
    int64_t first_row;  // of a launch
    uint32_t packets;   // of a row
    uint32_t n_packets; // of all rows of a launch
    divisor_of_index to_row;
    int32_t row_shift, column_shift; // tiles have 2^row_shift rows, 2^column_shift columns
    float dequant_scale, global_scale;
    int32_t element, scale;
    int32_t x_shift; // a byte has 2^x_shift codes
};

// n codes: 8 or 4 bytes, or one byte, which is two codes of e2m1.
template <int n>
__device__ __forceinline__ void load_codes(int element_kind, const uint8_t *from,
                                           uint32_t (&word)[(n + 3) / 4])
{
    static_assert(n == kPacket || n <= 2, "one access");
    if constexpr (n <= 2) {
        word[0] = *from;
    } else if (element_kind == CODE_E2M1) {
        word[0] = __float_as_uint(load_float(reinterpret_cast<const float *>(from)));
    } else {
        uint2 raw = load_8(from);
        word[0] = raw.x;
        word[1] = raw.y;
    }
}

template <typename T, int n>
__device__ __forceinline__ void store_values(T *to, const float (&x)[n])
{
    constexpr int kVec = n < kPacket ? 1 : kVecOf<T>;
#pragma unroll
    for (int at = 0; at < n; at += kVec) {
        float part[kVec];
#pragma unroll
        for (int i = 0; i < kVec; i++)
            part[i] = x[at + i];
        store_floats(to + at, part);
    }
}

template <typename T, int n>
static __global__ void __launch_bounds__(kThreads)
    dequantize_kernel(const __grid_constant__ dequantize_args args)
{
    let_next_start();
    uint32_t i = blockIdx.x * kThreads + threadIdx.x;
    uint32_t row_here = quotient(i, args.to_row);
    int64_t row = args.first_row + row_here;
    int64_t column = (int64_t)(i - row_here * args.packets) * n;
    const uint8_t *from = args.x + row * args.x_stride + (column >> args.x_shift);
    int64_t at = scale_at(args.scales, row >> args.row_shift, column >> args.column_shift);
    T *to = static_cast<T *>(args.y) + row * args.y_stride + column;
    wait_for_previous();
    if (i >= args.n_packets)
        return;
    uint32_t word[(n + 3) / 4];
    load_codes<n>(args.element, from, word);
    float x[n], scale = args.dequant_scale;
    if (args.scales.data)
        scale = scale_value(args.scale, args.scales, at);
    if (args.scale == CODE_SCALE_E4M3)
        scale /= args.global_scale;
    expand(args.element, word, x);
#pragma unroll
    for (float &value : x)
        value *= scale;
    store_values(to, x);
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
    const int64_t most = kMostPackets / packets;
    args.packets = (uint32_t)packets;
    args.to_row = index_divisor(packets);
    enum roped_status status = ROPED_OK;
    for (int64_t row = 0; row < tiles->n_rows && !status; row += most) {
        const int64_t rows = tiles->n_rows - row < most ? tiles->n_rows - row : most;
        args.first_row = row;
        args.n_packets = (uint32_t)(rows * packets);
        status = start(queue, dequantize_kernel<T, n>, dim3(kThreads),
                       (args.n_packets + (int64_t)kThreads - 1) / kThreads, dim3(1), args, err);
    }
    return status;
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
    bool has = tiles->width % kPacket == 0 && is_aligned(args.x, kPacket) && is_aligned(args.y, 16);
    return has &&
           (tiles->n_rows == 1 || (args.x_stride % kPacket == 0 && args.y_stride % kVecOf<T> == 0));
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
        return has_packets<T>(args, tiles) ? launch<T, kPacket>(args, tiles, queue, err)
               : args.x_shift              ? launch<T, 2>(args, tiles, queue, err)
                                           : launch<T, 1>(args, tiles, queue, err);
    });
}
