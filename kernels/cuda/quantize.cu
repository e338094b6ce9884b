// quantize.cu - quantize on CUDA. Given scales and groups: 16 bytes of x per thread, a group's
// largest by exchanges between its threads. Rows and blocks of 128 x 128: a block of threads holds
// one in registers and reads memory once. A whole tensor is read once for its scale and again for
// its codes.
#include "cuda/device/packet.cuh"
#include "cuda/quantize_tiles.cuh"

struct rows_args {
    const void *x;
    int64_t x_stride;
    const char *x_end; // shifted.cuh
    quantize_args codes;
};

// The source of rows that are there.
template <typename Element>
struct rows_of {
    using T = Element;
    using args = rows_args;
    static constexpr const char *kName = "x";
    static constexpr bool kIsCheap = true, kIsRare = false;
    // 16 bits gain less than bytes stored one by one cost
    static constexpr bool kShiftsPackets = sizeof(T) == 4, kHasWords = false;
    static constexpr int kPacketsOfPart = kMostThreads;

    template <int n>
    using operands = typename packet<T, n>::raw;

    struct shifted {
        shifted_vector<(int)sizeof(T)> x;

        __device__ __forceinline__ void start(const args &args, const T *from, int left)
        {
            x.start(from, min(left, kVecOf<T>) * (int)sizeof(T), args.x_end);
        }
        __device__ __forceinline__ uint4 finish() const
        {
            return x.finish();
        }
    };

    template <int n>
    static __device__ __forceinline__ const T *at(const args &args, int64_t row, int64_t column)
    {
        return static_cast<const T *>(args.x) + row * args.x_stride + column;
    }
    static __device__ __forceinline__ const T *moved(const args &, const T *from, int elements)
    {
        return from + elements;
    }
    static __device__ __forceinline__ void finish_before_wait(const args &, const T *from)
    {
        ::finish_before_wait(from);
    }
    template <int n>
    static __device__ __forceinline__ operands<n> load(const args &, const T *from)
    {
        return packet<T, n>::load(from);
    }
    template <int n>
    static __device__ __forceinline__ operands<n> none()
    {
        return {};
    }
    template <int n, bool kCalls = false>
    static __device__ __forceinline__ void values(const args &, const operands<n> &raw,
                                                  float (&x)[n])
    {
        packet<T, n>::widen(raw, x);
    }
    template <int n>
    static __device__ __forceinline__ void values_again(const uint4 &raw, float (&x)[n])
    {
        unpack<T, true>(raw, x);
    }
};

// Codes by one known scale of rows that follow each other, as one line of values, which 16 bytes
// need not divide: two packets for each thread, of which the last ones are cut.
template <typename T>
static __global__ void __launch_bounds__(kThreads)
    line_kernel(const __grid_constant__ rows_args args)
{
    using S = rows_of<T>;
    constexpr int kVec = kVecOf<T>, n = 2 * kVec, kSize = (int)sizeof(T);
    const quantize_args &codes = args.codes;
    const code_rule rule = rule_of<CODE_SCALE_F32>(codes);
    const int64_t column = (int64_t)(blockIdx.x * blockDim.x + threadIdx.x) * n;
    const int left = (int)min(codes.width - column, (int64_t)n); // 0 or below: none
    const T *from = S::template at<kVec>(args, 0, column);
    uint8_t *const to = codes.y + column;
    finish_before_wait(from, to);
    wait_for_previous();
    let_next_start();
    uint4 raw[2];
#pragma unroll
    for (int v = 0; v < 2; v++)
        raw[v] = load_16_if(left >= (v + 1) * kVec, from + v * kVec);
    if (left > 0 && left < n) {
        const int cut = left / kVec;
        const uint4 part = load_pieces(reinterpret_cast<const char *>(from + cut * kVec),
                                       (left - cut * kVec) * kSize);
        raw[0] = cut ? raw[0] : part;
        raw[1] = cut ? part : raw[1];
    }
    float x[n], half[kVec];
#pragma unroll
    for (int v = 0; v < 2; v++) {
        unpack<T>(raw[v], half);
#pragma unroll
        for (int j = 0; j < kVec; j++)
            x[v * kVec + j] = half[j];
    }
    divide_codes(rule, x, known_scale(codes));
    const fp8_codes<n> code = byte_codes_of(rule, x);
    if (left >= n)
        store_fp8(to, code, codes.store);
    else if (left > 0)
        store_codes_between(to, 0, left, code);
}

// Are rows one line, whose packets can be counted?
template <typename T>
static bool is_line(const rows_args &args)
{
    constexpr int kVec = kVecOf<T>;
    const quantize_args &codes = args.codes;
    const int64_t width = codes.width;
    return !codes.finds && codes.rule.scale == CODE_SCALE_F32 && is_aligned(args.x, 16) &&
           is_aligned(codes.y, kVec) &&
           (codes.n_rows == 1 || (args.x_stride == width && codes.y_stride == width)) &&
           codes.n_rows * width / (2 * kVec) < kMostPackets;
}

template <typename T>
static enum roped_status launch_line(rows_args args, struct roped_queue *queue,
                                     struct roped_error *err)
{
    args.codes.width *= args.codes.n_rows;
    args.codes.n_rows = 1;
    return launch_packets<rows_of<T>, 2 * kVecOf<T>>(args, line_kernel<T>, INT_MAX, queue, err);
}

// Do rows of codes begin as far behind a packet's as those of values do behind a packet?
template <typename T>
static bool are_cut(const rows_args &args, const struct roped_queue *queue)
{
    constexpr int kVec = kVecOf<T>;
    const quantize_args &codes = args.codes;
    const int64_t most = queue->can_overlap ? most_packets(queue) : kMostVecs * kMostThreads;
    return blocks_of(codes.width + kVec - 1, kVec) <= most &&
           (uintptr_t)args.x / sizeof(T) % kVec == (uintptr_t)codes.y % kVec &&
           (codes.n_rows == 1 || (args.x_stride - codes.y_stride) % kVec == 0);
}

template <typename T>
static enum roped_status launch(const rows_args &args, struct roped_queue *queue,
                                struct roped_error *err)
{
    constexpr int kVec = kVecOf<T>;
    const quantize_args &codes = args.codes;
    const bool is_packed = has_packets<T>(codes) && is_aligned(args.x, 16) &&
                           (codes.n_rows == 1 || args.x_stride % kVec == 0);
    if (codes.is_tensor) {
        enum roped_status status = find_tensor_scale<rows_of<T>>(args, is_packed, queue, err);
        if (status)
            return status;
    }
    if (codes.n_rows == 0)
        return ROPED_OK;
    const bool is_held = are_held(codes, kVec, queue);
    if (is_packed && is_held && codes.finds)
        return launch_tiles<rows_of<T>, kTileWhole>(args, queue, err);
    if (is_packed && are_packets(codes))
        return launch_packets<rows_of<T>>(args, queue, err);
    if (is_line<T>(args))
        return launch_line<T>(args, queue, err);
    if (is_held && codes.finds && codes.tile_rows == 1 && are_cut<T>(args, queue))
        return launch_row<rows_of<T>, kTileCut>(args, queue, err);
    if constexpr (rows_of<T>::kShiftsPackets)
        if (is_held && !codes.finds)
            return launch_shifted_packets<rows_of<T>>(args, queue, err);
    if (is_held)
        return launch_tiles<rows_of<T>, kTileShifted>(args, queue, err);
    return launch_elements<rows_of<T>>(args, queue, err);
}

extern "C" enum roped_status roped_cuda_quantize(const struct roped_call *call,
                                                 struct roped_queue *queue, struct roped_error *err)
{
    const struct quantize_plan *plan = (const struct quantize_plan *)call->plan;
    const struct roped_tensor *x = &call->in[QUANTIZE_X];
    rows_args args = {x->data, row_stride(x, plan->tiles.width), NULL, {}};
    enum roped_status status = begin_codes(plan, &call->out[QUANTIZE_Y],
                                           &call->out[QUANTIZE_SCALES], queue, &args.codes, err);
    if (status)
        return status;
    args.x_end = whole_end(x->data, ((plan->tiles.n_rows - 1) * args.x_stride + plan->tiles.width) *
                                        (int64_t)roped_dtype_bytes(x->dtype));
    return with_float_type(
        x->dtype, [&](auto tag) { return launch<typename decltype(tag)::type>(args, queue, err); });
}
