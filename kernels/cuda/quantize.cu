// quantize.cu - quantize on CUDA. Given scales and groups: 16 bytes of x per thread, a group's
// largest by exchanges between its threads. Rows and blocks of 128 x 128: a block of threads holds
// one in registers and reads memory once. A whole tensor is read once for its scale and again for
// its codes. Where addresses, strides or h leave no packets, or a row is too wide for registers,
// a tile is walked twice, element by element.
#include "cuda/quantize_packets.cuh"

struct rows_args {
    const void *x;
    int64_t x_stride;
    quantize_args codes;
};

// The source of rows that are there.
template <typename Element>
struct rows_of {
    using T = Element;
    using args = rows_args;
    static constexpr const char *kName = "x";

    template <int n>
    static __device__ __forceinline__ const T *at(const args &args, int64_t row, int64_t column)
    {
        return static_cast<const T *>(args.x) + row * args.x_stride + column;
    }
    template <int n>
    static __device__ __forceinline__ auto load(const args &, const T *from)
    {
        if constexpr (n == 1)
            return *from;
        else
            return load_16(from);
    }
    template <int n>
    static __device__ __forceinline__ uint4 none()
    {
        return make_uint4(0, 0, 0, 0);
    }
    template <int n, typename Raw>
    static __device__ __forceinline__ void values(const args &, const Raw &raw, float (&x)[n])
    {
        if constexpr (n == 1)
            x[0] = element<T>::to_float(raw);
        else
            unpack<T>(raw, x);
    }
};

// ------------------------------------------------------------------------------------ kernels

// Threads of a row that have so many packets each, at most: the widest rows take all that there
// are.
constexpr int most_threads(int packets)
{
    return packets < 8 ? kMostThreads : 2 * kMostThreads;
}

// A tile in the registers of a block of threads; of rows that a warp takes, a block has several.
// The packets of a thread are as far apart as the block has threads: columns of a row, or rows of a
// block of 128 x 128.
template <typename T, int kVecs, bool kIsBlock>
static __global__ void __launch_bounds__(kIsBlock ? kMostThreads : most_threads(kVecs))
    tile_kernel(const __grid_constant__ rows_args args)
{
    constexpr int kVec = kVecOf<T>, kAcross = kSide / kVec;
    const quantize_args &codes = args.codes;
    const code_rule rule = rule_of<CODE_SCALE_F32>(codes);
    __shared__ float shared[32];
    uint4 raw[kVecs];
    float x[kVec], largest = 0.0f;
    int64_t row, column, tile = 0;
    int left, step; // columns, or rows: to the end from packet 0, and from a packet to the next
    if (kIsBlock) {
        const int64_t strip = blockIdx.x / codes.n_tiles;
        tile = blockIdx.x - strip * codes.n_tiles;
        row = strip * kSide + threadIdx.x / kAcross;
        column = tile * kSide + threadIdx.x % kAcross * kVec;
        left = column < codes.width ? (int)min(codes.n_rows - row, (int64_t)kSide) : 0;
        step = kThreads / kAcross;
    } else {
        row = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
        column = threadIdx.x * kVec;
        left = row < codes.n_rows ? (int)codes.width - (int)column : 0;
        step = blockDim.x * kVec;
    }
    const int64_t x_step = kIsBlock ? step * args.x_stride : step;
    const int64_t y_step = kIsBlock ? step * codes.y_stride : step;
    const T *from = static_cast<const T *>(args.x) + row * args.x_stride + column;
    uint8_t *to = codes.y + row * codes.y_stride + column;
    float *scale_to =
        static_cast<float *>(codes.scales.data) + (kIsBlock ? blockIdx.x : row * codes.scales.row);
    let_next_start();
    finish_before_wait(from, to, scale_to, left);
    wait_for_previous();
#pragma unroll
    for (int v = 0; v < kVecs; v++)
        raw[v] = v * step < left ? load_16(from + v * x_step) : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int v = 0; v < kVecs; v++) {
        unpack<T>(raw[v], x);
        largest = fmaxf(largest, largest_of(rule, x));
    }
    largest = largest_in_group(largest, shared, blockDim.x);
    const code_scale_made scale = make_scale(rule, largest);
    if (threadIdx.x == 0 && left > 0)
        store_scale(rule, {scale_to, 0, 0, 0}, 0, scale);
    const code_divisor divisor = scale.divisor;
#pragma unroll
    for (int v = 0; v < kVecs; v++)
        if (v * step < left) {
            unpack<T, true>(raw[v], x);
            store_codes_of<CODE_SCALE_F32>(rule, to + v * y_step, x, divisor);
        }
}

// Any tile, element by element, twice.
template <typename T>
static __global__ void __launch_bounds__(kThreads)
    element_kernel(const __grid_constant__ rows_args args)
{
    __shared__ float shared[32];
    const quantize_args &codes = args.codes;
    let_next_start();
    wait_for_previous();
    int64_t strip = blockIdx.x / codes.n_tiles, tile = blockIdx.x - strip * codes.n_tiles;
    int64_t first_row = strip * codes.tile_rows, first = tile * codes.tile_width;
    int64_t rows = min(codes.tile_rows, codes.n_rows - first_row);
    int64_t columns = min(codes.tile_width, codes.width - first);
    const T *from = static_cast<const T *>(args.x) + first_row * args.x_stride + first;
    uint8_t *to = codes.y + first_row * codes.y_stride + (first >> codes.y_shift);
    code_divisor divisor;
    if (codes.finds) {
        float largest = 0.0f;
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = threadIdx.x; c < columns; c += blockDim.x) {
                float x[1] = {element<T>::to_float(from[r * args.x_stride + c])};
                largest = fmaxf(largest, largest_of(codes.rule, x));
            }
        largest = largest_in_group(largest, shared, blockDim.x);
        code_scale_made scale = make_scale(codes.rule, largest);
        if (threadIdx.x == 0)
            store_scale(codes.rule, codes.scales, scale_at(codes.scales, strip, tile), scale);
        divisor = scale.divisor;
    } else {
        divisor = known_scale(codes);
    }
    for (int64_t r = 0; r < rows; r++) {
        const T *row = from + r * args.x_stride;
        for (int64_t byte = threadIdx.x; byte < columns >> codes.y_shift; byte += blockDim.x) {
            uint8_t *code = to + r * codes.y_stride + byte;
            if (codes.y_shift) {
                float x[2] = {element<T>::to_float(row[2 * byte]),
                              element<T>::to_float(row[2 * byte + 1])};
                store_codes(codes.rule, code, x, divisor);
            } else {
                float x[1] = {element<T>::to_float(row[byte])};
                store_codes(codes.rule, code, x, divisor);
            }
        }
    }
}

// ------------------------------------------------------------------------------------ launches

// Rows in registers. A warp, or a part of one, takes a narrow one. Of many rows a thread has four
// packets, of a few as few as there are threads for.
template <typename T>
static enum roped_status launch_rows(const rows_args &args, struct roped_queue *queue,
                                     struct roped_error *err)
{
    const int64_t packets = args.codes.width / kVecOf<T>;
    const int64_t most = args.codes.n_rows > 2 * queue->n_multiprocessors ? 4 : 1;
    kernel_fn<rows_args> *kernel = tile_kernel<T, 1, false>;
    int64_t vecs = 1;
    const auto take = [&](int64_t n, kernel_fn<rows_args> *next) {
        if (packets > 32 * vecs && (vecs < most || packets > vecs * kMostThreads)) {
            kernel = next;
            vecs = n;
        }
    };
    take(2, tile_kernel<T, 2, false>);
    take(4, tile_kernel<T, 4, false>);
    take(8, tile_kernel<T, 8, false>);
    int64_t threads = blocks_of(packets, 32 * vecs) * 32;
    while (threads <= 32 && threads / 2 * vecs >= packets)
        threads /= 2;
    const unsigned rows = threads <= 32 ? kThreads / (unsigned)threads : 1;
    return start(queue, kernel, dim3((unsigned)threads, rows), blocks_of(args.codes.n_rows, rows),
                 dim3(1), args, err);
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
    const bool is_number = codes.rule.scale == CODE_SCALE_F32;
    const bool is_row = codes.finds && codes.n_tiles == 1 && codes.tile_rows == 1;
    const bool in_tiles = is_packed && codes.finds && is_number;
    if (in_tiles && codes.tile_rows > 1)
        return start(queue, tile_kernel<T, kSide * kSide / kVec / kThreads, true>, dim3(kThreads),
                     blocks_of(codes.n_rows, kSide) * codes.n_tiles, dim3(1), args, err);
    if (in_tiles && is_row && codes.width <= 8 * most_threads(8) * kVec)
        return launch_rows<T>(args, queue, err);
    if (is_packed && !(is_number && is_row))
        return launch_packets<rows_of<T>>(args, queue, err);
    return start(queue, element_kernel<T>, dim3(codes.tile_width <= kSide ? 32 : kThreads),
                 blocks_of(codes.n_rows, codes.tile_rows) * codes.n_tiles, dim3(1), args, err);
}

extern "C" enum roped_status roped_cuda_quantize(const struct roped_call *call,
                                                 struct roped_queue *queue, struct roped_error *err)
{
    const struct quantize_plan *plan = (const struct quantize_plan *)call->plan;
    const struct roped_tensor *x = &call->in[QUANTIZE_X];
    rows_args args = {x->data, row_stride(x, plan->tiles.width), {}};
    enum roped_status status = begin_codes(plan, &call->out[QUANTIZE_Y],
                                           &call->out[QUANTIZE_SCALES], queue, &args.codes, err);
    if (status)
        return status;
    return with_float_type(
        x->dtype, [&](auto tag) { return launch<typename decltype(tag)::type>(args, queue, err); });
}
