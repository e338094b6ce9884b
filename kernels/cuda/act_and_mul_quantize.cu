// act_and_mul_quantize.cu - act_and_mul_quantize on CUDA: quantize of what act_and_mul computes.
// Given scales, those of a tensor, and groups take the packets of quantize. Rows stay in registers
// until their scale is known, blocks of 128 x 128 and rare rows in shared memory, so memory is read
// once; a row that is too wide for that is computed twice.
#include "cuda/act_packets.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/quantize_packets.cuh"

extern "C" {
#include "ops/act_and_mul_quantize.h"
}

struct coded_args {
    struct act_operands of;
    int32_t interleaved, gated, steps, rounds_result; // bool
    struct act_rule rule;
    quantize_args codes;
    int32_t keeps; // bool: there is shared memory for a tile
};

// The source of products. kIsPlain: of two tensors, and no step is rounded but the activation and
// the product, as hardly any call asks for more.
template <typename Element, bool kIsPlain>
struct products_of {
    using T = Element;
    using args = coded_args;
    static constexpr const char *kName = "y";
    static constexpr bool kMayPair = !kIsPlain;

    struct addresses {
        const T *gate, *up;
    };
    template <int n>
    struct operands {
        typename packet<T, n>::raw gate, up;
    };

    template <int n>
    static __device__ __forceinline__ addresses at(const args &args, int64_t row, int64_t column)
    {
        const T *gate = static_cast<const T *>(args.of.gate) + row * args.of.gate_stride;
        const T *up = static_cast<const T *>(args.of.up) + row * args.of.up_stride;
        if (!kIsPlain && args.interleaved)
            return {gate + 2 * column, gate + 2 * column + n};
        return {gate + column, up + column};
    }
    template <int n>
    static __device__ __forceinline__ operands<n> load(const args &args, const addresses &from)
    {
        operands<n> out = {};
        out.gate = packet<T, n>::load(from.gate);
        if (args.gated)
            out.up = packet<T, n>::load(from.up);
        return out;
    }
    template <int n>
    static __device__ __forceinline__ operands<n> none()
    {
        return {};
    }
    template <int n>
    static __device__ __forceinline__ void values(const args &args, const operands<n> &from,
                                                  float (&x)[n])
    {
        constexpr bool kMayStep = !kIsPlain && sizeof(T) == 2;
        float up[n];
        packet<T, n>::widen(from.gate, x);
        packet<T, n>::widen(from.up, up);
        if (!kIsPlain && args.interleaved) {
            float first[n], second[n];
            memcpy(first, x, sizeof first);
            memcpy(second, up, sizeof second);
            part(first, second, x, up);
        }
        if (kMayStep && args.steps)
            act_of<T, kMayStep>(args.rule, args.gated, x, up);
        else
            act_of<T, false>(args.rule, args.gated, x, up);
        if (args.rounds_result) {
#pragma unroll
            for (int i = 0; i < n; i++)
                x[i] = rounded<T>(x[i]);
        }
    }
};

// ------------------------------------------------------------------------------------ kernels

// Packet i of a tile of so many packets a row: its values, and where its codes are.
template <typename T, int kVec>
struct tile_packet {
    int64_t row, column;

    __device__ __forceinline__ tile_packet(const quantize_args &codes, uint32_t i, uint32_t packets)
    {
        const int64_t strip = blockIdx.x / codes.n_tiles;
        const uint32_t down = i / packets;
        row = strip * codes.tile_rows + down;
        column = (blockIdx.x - strip * codes.n_tiles) * codes.tile_width +
                 (int64_t)(i - down * packets) * kVec;
    }
    __device__ __forceinline__ void values(const coded_args &args, float (&x)[kVec]) const
    {
        using S = products_of<T, false>;
        S::template values<kVec>(
            args, S::template load<kVec>(args, S::template at<kVec>(args, row, column)), x);
    }
    __device__ __forceinline__ uint8_t *code(const quantize_args &codes) const
    {
        return codes.y + row * codes.y_stride + (column >> codes.y_shift);
    }
};

// Vectors at any address, two at a time, of a row of which left elements are behind the first one.
template <typename S, int kVecs, typename T, int n>
__device__ __forceinline__ void load_shifted(const coded_args &args,
                                             const typename S::addresses &from, int left, int step,
                                             typename S::template operands<n> (&raw)[kVecs])
{
    constexpr int kSize = (int)sizeof(T);
    const bool is_pairs = S::kMayPair && args.interleaved;
    const int wide = is_pairs ? 2 : 1; // elements of gate's tensor for each of a row
    const char *end = is_pairs ? args.of.gate_end : args.of.up_end;
#pragma unroll
    for (int v = 0; v < kVecs; v += 2) {
        shifted_vector<kSize> gate[2], up[2];
#pragma unroll
        for (int i = 0; i < 2 && v + i < kVecs; i++) {
            const int at = (v + i) * step, bytes = min(left - at, n) * wide * kSize;
            gate[i].start(from.gate + wide * at, bytes, args.of.gate_end);
            up[i].start(from.up + wide * at, is_pairs ? bytes - 16 : args.gated ? bytes : 0, end);
        }
#pragma unroll
        for (int i = 0; i < 2 && v + i < kVecs; i++)
            raw[v + i] = {gate[i].finish(), up[i].finish()};
    }
}

// A row in the registers of a block of threads, or of a cluster's blocks of a part each; of rows
// that a warp takes, a block has several. kShifts: 16 bytes do not divide rows, or addresses
// (device/shifted.cuh).
template <typename S, int kVecs, bool kShifts>
static __global__ void __launch_bounds__(kMostThreads, kVecs <= 4 ? 2 : 1)
    row_kernel(const __grid_constant__ coded_args args)
{
    using T = typename S::T;
    constexpr int kVec = kVecOf<T>;
    const quantize_args &codes = args.codes;
    const code_rule rule = rule_of<CODE_SCALE_F32>(codes);
    constexpr bool kMayShare = kVecs <= 4; // a block has several rows
    const int64_t row = kMayShare ? (int64_t)blockIdx.x * blockDim.y + threadIdx.y : blockIdx.x;
    const int step = blockDim.x * kVec, first = blockIdx.y * kVecs * step + threadIdx.x * kVec;
    // elements from vector 0 to the row's end, 0 or below: none, or no row
    const int left = !kMayShare || row < codes.n_rows ? (int)codes.width - first : 0;
    __shared__ float shared[32];
    __shared__ cluster_exchange parts;
    typename S::template operands<kVec> raw[kVecs];
    float x[kVecs][kVec], largest = 0.0f;
    let_next_start();
    const auto from = S::template at<kVec>(args, row, first);
    if (gridDim.y > 1)
        parts.begin();
    finish_before_wait(from.gate, from.up, left);
    wait_for_previous();
    if constexpr (kShifts) {
        load_shifted<S, kVecs, T>(args, from, left, step, raw);
    } else {
#pragma unroll
        for (int v = 0; v < kVecs; v++) {
            const int at = S::kMayPair && args.interleaved ? 2 * v * step : v * step;
            raw[v] = S::template none<kVec>();
            if (v * step < left)
                raw[v] = S::template load<kVec>(args, {from.gate + at, from.up + at});
        }
    }
#pragma unroll
    for (int v = 0; v < kVecs; v++) {
        S::template values<kVec>(args, raw[v], x[v]);
        if constexpr (kShifts) {
#pragma unroll
            for (int i = 0; i < kVec; i++)
                x[v][i] = i < left - v * step ? x[v][i] : 0.0f;
        }
        if (v * step < left)
            largest = fmaxf(largest, largest_of(rule, x[v]));
    }
    largest =
        gridDim.y > 1 ? parts.largest_of(largest) : largest_in_group(largest, shared, blockDim.x);
    const code_scale_made scale = make_scale(rule, largest);
    if (threadIdx.x == 0 && blockIdx.y == 0 && left > 0)
        store_scale(rule, codes.scales, scale_at(codes.scales, row, 0), scale);
    const code_divisor divisor = scale.divisor;
    uint8_t *to = codes.y + row * codes.y_stride + first;
#pragma unroll
    for (int v = 0; v < kVecs; v++) {
        if constexpr (kShifts) {
            const int lane = threadIdx.x % 32, n = left - v * step;
            divide_codes(rule, x[v], divisor);
            store_shifted<uint8_t>(reinterpret_cast<char *>(to + v * step), n, lane > 0 && n > 0,
                                   lane < 31, byte_codes_of(rule, x[v]).word);
        } else if (v * step < left) {
            store_codes_of<CODE_SCALE_F32>(rule, to + v * step, x[v], divisor);
        }
    }
}

// A tile for a block of threads: packets of values to codes, n = kVec of them at a time, or one; of
// codes that are two a byte, two then.
template <typename T, int kVec>
static __global__ void __launch_bounds__(kMostThreads)
    kept_kernel(const __grid_constant__ coded_args args)
{
    extern __shared__ float kept[];
    __shared__ float shared[32];
    const quantize_args &codes = args.codes;
    let_next_start();
    wait_for_previous();
    const int64_t strip = blockIdx.x / codes.n_tiles, tile = blockIdx.x - strip * codes.n_tiles;
    const uint32_t rows = (uint32_t)min(codes.tile_rows, codes.n_rows - strip * codes.tile_rows);
    const uint32_t columns = (uint32_t)min(codes.tile_width, codes.width - tile * codes.tile_width);
    const uint32_t packets = columns / kVec, n = rows * packets;
    code_divisor divisor;
    if (codes.finds) {
        float largest = 0.0f;
        for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
            float x[kVec];
            tile_packet<T, kVec>(codes, i, packets).values(args, x);
            largest = fmaxf(largest, largest_of(codes.rule, x));
            for (int j = 0; j < kVec && args.keeps; j++)
                kept[i * kVec + j] = x[j];
        }
        largest = largest_in_group(largest, shared, blockDim.x);
        code_scale_made scale = make_scale(codes.rule, largest);
        if (threadIdx.x == 0)
            store_scale(codes.rule, codes.scales, scale_at(codes.scales, strip, tile), scale);
        divisor = scale.divisor;
        __syncthreads();
    } else {
        divisor = known_scale(codes);
    }
    const bool has_kept = codes.finds && args.keeps;
    if (kVec == 1 && codes.y_shift) {
        for (uint32_t i = threadIdx.x; i < n / 2; i += blockDim.x) {
            const tile_packet<T, 1> first(codes, 2 * i, packets);
            float x[2] = {kept[2 * i], kept[2 * i + 1]};
            store_codes(codes.rule, first.code(codes), x, divisor);
        }
        return;
    }
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
        const tile_packet<T, kVec> packet(codes, i, packets);
        float x[kVec];
        if (has_kept) {
#pragma unroll
            for (int j = 0; j < kVec; j++)
                x[j] = kept[i * kVec + j];
        } else {
            packet.values(args, x);
        }
        store_codes(codes.rule, packet.code(codes), x, divisor);
    }
}

// ------------------------------------------------------------------------------------ launches

// Threads for a tile of so many packets: two or more for each.
static int threads_of(int64_t packets)
{
    int threads = 32;
    while (threads < kMostThreads && threads * 4 <= packets)
        threads *= 2;
    return threads;
}

template <typename T, int kVec>
static enum roped_status launch_tiles(coded_args args, struct roped_queue *queue,
                                      struct roped_error *err)
{
    constexpr int64_t kMost = 64 << 10, kOwn = 2 << 10; // bytes; what a block has besides
    const quantize_args &codes = args.codes;
    const int64_t values = codes.tile_rows * codes.tile_width;
    const int64_t bytes = values * (int64_t)sizeof(float);
    if (values > INT_MAX)
        return roped_fail(err, ROPED_TOO_LARGE,
                          "tensor 'y': rows of %lld elements, expected at most %d on this device",
                          (long long)codes.width, INT_MAX);
    args.keeps = codes.finds && bytes <= kMost && bytes + kOwn <= queue->shared_bytes;
    return start(queue, kept_kernel<T, kVec>, dim3(threads_of(values / kVec)),
                 blocks_of(codes.n_rows, codes.tile_rows) * codes.n_tiles, dim3(1), args, err,
                 args.keeps ? bytes : 0);
}

// Parts of a row that multiprocessors have room for, if there are fewer rows, of two warps or more:
// a warp's activations take longer than a part waits for the others.
static int parts_of_row(int64_t n_rows, int64_t packets, const struct roped_queue *queue)
{
    int parts = 1;
    while (queue->can_overlap && parts < 8 && packets >= 128 * parts &&
           2 * parts * n_rows <= queue->n_multiprocessors)
        parts *= 2;
    return parts;
}

// Packets that a thread has of a row at least. Of a few rows one, for what a row waits for is what
// a thread does; of many as many as let a warp hold a row, up to four: then it needs no barrier.
static int least_packets(int64_t n_rows, int64_t packets, const struct roped_queue *queue)
{
    if (n_rows <= 2 * (int64_t)queue->n_multiprocessors || packets > 4 * 32)
        return 1;
    return packets <= 32 ? 1 : packets <= 64 ? 2 : 4;
}

// As few packets a thread, from those on, as there are threads for.
template <typename S, bool kShifts>
static enum roped_status launch_row(const coded_args &args, struct roped_queue *queue,
                                    struct roped_error *err)
{
    const int64_t whole = blocks_of(args.codes.width, kVecOf<typename S::T>);
    const int parts = parts_of_row(args.codes.n_rows, whole, queue);
    const int64_t packets = blocks_of(whole, parts);
    const int least = least_packets(args.codes.n_rows, packets, queue);
    kernel_fn<coded_args> *kernel = row_kernel<S, 1, kShifts>;
    int vecs = 1;
    for (kernel_fn<coded_args> *next :
         {row_kernel<S, 2, kShifts>, row_kernel<S, 4, kShifts>, row_kernel<S, 8, kShifts>})
        if (vecs < least || packets > vecs * kMostThreads) {
            kernel = next;
            vecs *= 2;
        }
    int64_t threads = blocks_of(blocks_of(packets, vecs), 32) * 32;
    while (!kShifts && threads <= 32 && threads / 2 * vecs >= packets)
        threads /= 2; // a part of a warp; shifting wants whole ones
    const unsigned rows = threads <= 32 && parts == 1 ? kThreads / (unsigned)threads : 1;
    return start(queue, kernel, dim3((unsigned)threads, rows), blocks_of(args.codes.n_rows, rows),
                 dim3(1, parts), args, err, 0, parts > 1);
}

template <typename T, bool kIsPlain>
static enum roped_status launch(const coded_args &args, const struct act_and_mul_plan *plan,
                                struct roped_queue *queue, struct roped_error *err)
{
    using S = products_of<T, kIsPlain>;
    const quantize_args &codes = args.codes;
    const bool is_packed = has_packets<T>(codes) && has_packets<T>(plan, args.of);
    if (codes.is_tensor) {
        enum roped_status status = find_tensor_scale<S>(args, is_packed, queue, err);
        if (status)
            return status;
    }
    if (codes.n_rows == 0)
        return ROPED_OK;
    const bool is_number = codes.finds && codes.rule.scale == CODE_SCALE_F32;
    const bool is_row = is_number && codes.n_tiles == 1 && codes.tile_rows == 1;
    if (is_packed && !is_row && !(is_number && codes.tile_rows > 1))
        return launch_packets<S>(args, queue, err);
    if (is_row && codes.width <= 8 * kMostThreads * kVecOf<T>) {
        if (!is_packed)
            return launch_row<S, true>(args, queue, err);
        if constexpr (kIsPlain)
            return launch_row<S, false>(args, queue, err);
    }
    return is_packed ? launch_tiles<T, kVecOf<T>>(args, queue, err)
                     : launch_tiles<T, 1>(args, queue, err);
}

extern "C" enum roped_status roped_cuda_act_and_mul_quantize(const struct roped_call *call,
                                                             struct roped_queue *queue,
                                                             struct roped_error *err)
{
    const struct act_and_mul_quantize_plan *plan =
        (const struct act_and_mul_quantize_plan *)call->plan;
    const struct roped_tensor *x = &call->in[ACT_AND_MUL_X], *gate = &call->in[ACT_AND_MUL_GATE];
    coded_args args = {};
    args.interleaved = plan->act.interleaved;
    args.gated = plan->act.gated;
    args.steps = plan->act.steps;
    args.rounds_result = plan->rounds_result;
    args.rule = act_rule_of(&plan->act);
    enum roped_status status = begin_codes(&plan->quantize, &call->out[QUANTIZE_Y],
                                           &call->out[QUANTIZE_SCALES], queue, &args.codes, err);
    if (status)
        return status;
    return with_float_type(roped_tensor_given(x) ? x->dtype : gate->dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        args.of = act_operands_of<T>(&plan->act, x, gate, &call->in[ACT_AND_MUL_UP]);
        return args.interleaved || args.steps ? launch<T, false>(args, &plan->act, queue, err)
                                              : launch<T, true>(args, &plan->act, queue, err);
    });
}
