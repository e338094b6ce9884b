// rmsnorm_backward.cu - gradients of rmsnorm on CUDA.
//
// A block takes every n-th row, n the number of blocks: it reads a row of x and of grad_y once,
// into registers, the next ones while it sums these; writes grad_x; and adds grad_y * n to sums of
// its columns, which stay in registers for 16 rows, then in shared memory. In the end it leaves
// them as partial sums, which a second kernel adds in the order of the blocks. Rows of more than
// 1,024 vectors of 16 bytes are read again, from a cache, and their sums are in memory from the
// start.
//
// The number of blocks, and what each of their threads adds, follow from the shape alone: the same
// bits from run to run, from device to device, and at any address.
extern "C" {
#include "ops/rmsnorm_backward.h"
}

#include "cuda/device/reduce.cuh"
#include "cuda/device/stream.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/dispatch.cuh"

struct rms_gradient_args {
    const void *grad_y, *x, *weight, *grad_residual; // weight, grad_residual: or NULL
    void *grad_x;
    float *partial; // [blocks][hidden], or NULL: no weight
    int64_t n_rows, hidden;
    int64_t grad_y_pitch, x_pitch, grad_residual_pitch, grad_x_pitch; // elements to the next row
    float eps, weight_bias, inverse_hidden;
    int32_t weight_dtype; // enum roped_dtype
    int32_t rounds;       // bool: grad_y * w, and n in grad_weight, to the type of x
};

// A constant, though it is of an H100: the order of the sums may not depend on the device.
constexpr int64_t kGradientMultiprocessors = 132;
constexpr int kRowsInRegisters = 16; // added there, before their sum is added to that of others

// Does float32 hold the sum, and has it lost nothing that matters?
__device__ __forceinline__ bool is_tame(float sum)
{
    return fabsf(sum) >= 0x1p-90f && fabsf(sum) <= 0x1p120f;
}

__device__ __forceinline__ float weight_at(const rms_gradient_args &args, int64_t column)
{
    if (!args.weight)
        return 1.0f;
    if (args.weight_dtype == ROPED_F32)
        return args.weight_bias + static_cast<const float *>(args.weight)[column];
    if (args.weight_dtype == ROPED_F16)
        return args.weight_bias + __half2float(static_cast<const __half *>(args.weight)[column]);
    return args.weight_bias +
           __bfloat162float(static_cast<const __nv_bfloat16 *>(args.weight)[column]);
}

template <typename T>
__device__ __forceinline__ float rounded(bool rounds, float x)
{
    return rounds ? element<T>::to_float(element<T>::from_float(x)) : x;
}

// A vector of a row from column on, zeros behind the row's end.
template <typename T, bool kAligned>
__device__ __forceinline__ void load_vector(const T *row, int64_t column, int64_t hidden,
                                            float (&x)[kVecOf<T>])
{
    constexpr int kVec = kVecOf<T>;
    if constexpr (kAligned) {
        uint4 raw = make_uint4(0, 0, 0, 0);
        if (column < hidden)
            raw = load_16(row + column);
        unpack<T>(raw, x);
    } else {
#pragma unroll
        for (int i = 0; i < kVec; i++)
            x[i] = column + i < hidden ? element<T>::to_float(row[column + i]) : 0.0f;
    }
}

template <typename T, bool kAligned>
__device__ __forceinline__ uint4 load_raw(const T *row, int64_t column, int64_t hidden)
{
    uint4 raw = make_uint4(0, 0, 0, 0);
    if constexpr (kAligned) {
        if (column < hidden)
            raw = load_16(row + column);
    } else {
        float x[kVecOf<T>];
        load_vector<T, false>(row, column, hidden, x);
        raw = pack<T>(x); // the same values
    }
    return raw;
}

template <typename T, bool kAligned>
__device__ __forceinline__ void store_vector(T *row, int64_t column, int64_t hidden,
                                             const float (&x)[kVecOf<T>])
{
    if constexpr (kAligned) {
        if (column < hidden)
            store_floats<T>(row + column, x);
    } else {
#pragma unroll
        for (int i = 0; i < kVecOf<T>; i++)
            if (column + i < hidden)
                row[column + i] = element<T>::from_float(x[i]);
    }
}

// s and k of a row from its sums: grad_x = s * (grad_y * w - n * k), n = x * s.
struct row_factors {
    float s, k;
};

template <typename Acc>
__device__ __forceinline__ row_factors factors_of(const rms_gradient_args &args,
                                                  const two_sums<Acc> &sums)
{
    if constexpr (sizeof(Acc) == 8) {
        double s = 1.0 / sqrt(sums.first / (double)args.hidden + (double)args.eps);
        return {(float)s, (float)(sums.second / (double)args.hidden * s)};
    } else {
        float s = rsqrtf(fmaf(sums.first, args.inverse_hidden, args.eps));
        return {s, sums.second * args.inverse_hidden * s};
    }
}

// The row's factors in every thread. sum(acc, visit) adds what this thread has of both sums.
template <int kThreads, typename F>
__device__ __forceinline__ row_factors find_factors(const rms_gradient_args &args, bool in_double,
                                                    int parity, const F &sum)
{
    __shared__ two_sums<float> shared[2][kThreads / 32];
    __shared__ two_sums<double> shared_double[kThreads / 32];
    if (!in_double) {
        two_sums<float> sums = {0.0f, 0.0f};
        sum(sums);
        sums = sum_in_group<kThreads>(sums, shared[parity]);
        if (is_tame(sums.first) && is_tame(sums.second))
            return factors_of(args, sums);
    }
    two_sums<double> sums = {0.0, 0.0};
    sum(sums);
    __syncthreads();
    return factors_of(args, sum_in_group<kThreads>(sums, shared_double));
}

template <typename T, typename Acc>
__device__ __forceinline__ void add_terms(const rms_gradient_args &args, two_sums<Acc> &sums,
                                          const float (&x)[kVecOf<T>], const float (&g)[kVecOf<T>],
                                          const float (&w)[kVecOf<T>])
{
    two_sums<Acc> part = {0, 0};
#pragma unroll
    for (int i = 0; i < kVecOf<T>; i++) {
        part.first += (Acc)x[i] * (Acc)x[i];
        part.second += (Acc)rounded<T>(args.rounds, g[i] * w[i]) * (Acc)x[i];
    }
    sums += part;
}

// A vector of grad_x; x becomes what grad_weight has of it.
template <typename T>
__device__ __forceinline__ void descend(const rms_gradient_args &args, const row_factors &of,
                                        float (&x)[kVecOf<T>], const float (&g)[kVecOf<T>],
                                        const float (&w)[kVecOf<T>], float (&to)[kVecOf<T>])
{
#pragma unroll
    for (int i = 0; i < kVecOf<T>; i++) {
        float normal = x[i] * of.s;
        to[i] = of.s * fmaf(-normal, of.k, rounded<T>(args.rounds, g[i] * w[i])) + to[i];
        x[i] = g[i] * rounded<T>(args.rounds, normal);
    }
}

// Loads of a row: this thread's vectors.
template <typename T, int kVectors>
struct row_vectors {
    uint4 x[kVectors], g[kVectors];
};

template <typename T, int kThreads, int kVectors, bool kAligned>
__device__ __forceinline__ void load_row(const rms_gradient_args &args, int64_t row,
                                         row_vectors<T, kVectors> &to)
{
    const T *x = static_cast<const T *>(args.x) + row * args.x_pitch;
    const T *g = static_cast<const T *>(args.grad_y) + row * args.grad_y_pitch;
#pragma unroll
    for (int v = 0; v < kVectors; v++) {
        int64_t column = (int64_t)(v * kThreads + threadIdx.x) * kVecOf<T>;
        to.x[v] = load_raw<T, kAligned>(x, column, row < args.n_rows ? args.hidden : 0);
        to.g[v] = load_raw<T, kAligned>(g, column, row < args.n_rows ? args.hidden : 0);
    }
}

template <typename T, int kThreads, int kVectors, bool kAligned>
static __global__ void __launch_bounds__(kThreads)
    rms_gradient_kernel(const __grid_constant__ struct rms_gradient_args args)
{
    constexpr int kVec = kVecOf<T>;
    __shared__ float outer[kVectors * kVec][kThreads];
    let_next_start();
    wait_for_previous();
    float w[kVectors][kVec], inner[kVectors][kVec] = {};
    row_vectors<T, kVectors> now, next;
    load_row<T, kThreads, kVectors, kAligned>(args, blockIdx.x, now);
#pragma unroll
    for (int v = 0; v < kVectors; v++)
#pragma unroll
        for (int i = 0; i < kVec; i++) {
            int64_t column = (int64_t)(v * kThreads + threadIdx.x) * kVec + i;
            w[v][i] = column < args.hidden ? weight_at(args, column) : 0.0f;
            outer[v * kVec + i][threadIdx.x] = 0.0f;
        }
    int turn = 0;
    for (int64_t row = blockIdx.x; row < args.n_rows; row += gridDim.x, turn++) {
        load_row<T, kThreads, kVectors, kAligned>(args, row + gridDim.x, next);
        row_factors of = find_factors<kThreads>(args, false, turn % 2, [&](auto &sums) {
#pragma unroll
            for (int v = 0; v < kVectors; v++) {
                float x[kVec], g[kVec];
                unpack<T>(now.x[v], x);
                unpack<T>(now.g[v], g);
                add_terms<T>(args, sums, x, g, w[v]);
            }
        });
        T *to = static_cast<T *>(args.grad_x) + row * args.grad_x_pitch;
        const T *residual = static_cast<const T *>(args.grad_residual);
#pragma unroll
        for (int v = 0; v < kVectors; v++) {
            int64_t column = (int64_t)(v * kThreads + threadIdx.x) * kVec;
            float x[kVec], g[kVec], made[kVec] = {};
            if (residual)
                load_vector<T, kAligned>(residual + row * args.grad_residual_pitch, column,
                                         args.hidden, made);
            unpack<T>(now.x[v], x);
            unpack<T>(now.g[v], g);
            descend<T>(args, of, x, g, w[v], made);
            store_vector<T, kAligned>(to, column, args.hidden, made);
#pragma unroll
            for (int i = 0; i < kVec; i++)
                inner[v][i] += x[i];
        }
        bool is_last = row + gridDim.x >= args.n_rows;
        if (args.partial && (turn % kRowsInRegisters == kRowsInRegisters - 1 || is_last)) {
#pragma unroll
            for (int v = 0; v < kVectors; v++)
#pragma unroll
                for (int i = 0; i < kVec; i++) {
                    outer[v * kVec + i][threadIdx.x] += inner[v][i];
                    inner[v][i] = 0.0f;
                }
        }
        now = next;
    }
    if (!args.partial)
        return;
    float *partial = args.partial + blockIdx.x * args.hidden;
#pragma unroll
    for (int v = 0; v < kVectors; v++)
#pragma unroll
        for (int i = 0; i < kVec; i++) {
            int64_t column = (int64_t)(v * kThreads + threadIdx.x) * kVec + i;
            if (column < args.hidden)
                partial[column] = outer[v * kVec + i][threadIdx.x];
        }
}

// The widest rows. Only the thread that has a column reads and writes its partial sum.
template <typename T, int kThreads, bool kAligned>
static __global__ void __launch_bounds__(kThreads)
    rms_gradient_wide_kernel(const __grid_constant__ struct rms_gradient_args args)
{
    constexpr int kVec = kVecOf<T>;
    let_next_start();
    wait_for_previous();
    float *partial = args.partial + blockIdx.x * args.hidden;
    for (int64_t row = blockIdx.x; row < args.n_rows; row += gridDim.x) {
        const T *xs = static_cast<const T *>(args.x) + row * args.x_pitch;
        const T *gs = static_cast<const T *>(args.grad_y) + row * args.grad_y_pitch;
        T *to = static_cast<T *>(args.grad_x) + row * args.grad_x_pitch;
        float x[kVec], g[kVec], w[kVec];
        auto load = [&](int64_t column) {
            load_vector<T, kAligned>(xs, column, args.hidden, x);
            load_vector<T, kAligned>(gs, column, args.hidden, g);
#pragma unroll
            for (int i = 0; i < kVec; i++)
                w[i] = column + i < args.hidden ? weight_at(args, column + i) : 0.0f;
        };
        row_factors of = find_factors<kThreads>(args, true, 0, [&](auto &sums) {
            for (int64_t column = threadIdx.x * kVec; column < args.hidden;
                 column += kThreads * kVec) {
                load(column);
                add_terms<T>(args, sums, x, g, w);
            }
        });
        for (int64_t column = threadIdx.x * kVec; column < args.hidden; column += kThreads * kVec) {
            float made[kVec] = {};
            load(column);
            if (args.grad_residual)
                load_vector<T, kAligned>(static_cast<const T *>(args.grad_residual) +
                                             row * args.grad_residual_pitch,
                                         column, args.hidden, made);
            descend<T>(args, of, x, g, w, made);
            store_vector<T, kAligned>(to, column, args.hidden, made);
            for (int i = 0; i < kVec && args.partial && column + i < args.hidden; i++)
                partial[column + i] = row == blockIdx.x ? x[i] : partial[column + i] + x[i];
        }
        __syncthreads(); // shared memory of the next row's sums
    }
}

// ------------------------------------------------------------------------------------ grad_weight

constexpr int kSumColumns = 32, kSumLanes = 8;

struct column_sum_args {
    const float *partial; // [n_partial][hidden]
    void *to;
    int64_t hidden;
    int32_t n_partial;
};

// A thread adds every eighth partial sum of a column, and a tree the threads.
template <typename W>
static __global__ void __launch_bounds__(kSumColumns *kSumLanes)
    column_sum_kernel(const __grid_constant__ struct column_sum_args args)
{
    __shared__ double shared[kSumLanes][kSumColumns];
    let_next_start();
    int lane = threadIdx.x / kSumColumns, place = threadIdx.x % kSumColumns;
    int64_t column = (int64_t)blockIdx.x * kSumColumns + place;
    wait_for_previous();
    double sum = 0.0;
#pragma unroll 8
    for (int i = lane; i < args.n_partial; i += kSumLanes)
        sum += column < args.hidden ? (double)args.partial[i * args.hidden + column] : 0.0;
    shared[lane][place] = sum;
    for (int half = kSumLanes / 2; half > 0; half /= 2) {
        __syncthreads();
        if (lane < half)
            shared[lane][place] = sum += shared[lane + half][place];
    }
    if (lane == 0 && column < args.hidden)
        static_cast<W *>(args.to)[column] = element<W>::from_float((float)sum);
}

// ------------------------------------------------------------------------------------ launch

static int64_t pitch_of(const struct rmsnorm_plan *plan, const struct roped_tensor *tensor)
{
    return tensor->stride && plan->n_rows > 1 ? tensor->stride : plan->hidden;
}

template <typename T>
static bool has_vectors(const struct rms_gradient_args *args)
{
    bool has = is_aligned(args->grad_y, 16) && is_aligned(args->x, 16) &&
               is_aligned(args->grad_residual, 16) && is_aligned(args->grad_x, 16);
    for (int64_t n : {args->hidden, args->grad_y_pitch, args->x_pitch, args->grad_residual_pitch,
                      args->grad_x_pitch})
        has = has && n % kVecOf<T> == 0;
    return has;
}

// Threads of a row and how many blocks of these there are at most: as many as a multiprocessor
// holds at once, and not more than have room for their partial sums.
struct gradient_shape {
    int threads;
    int64_t most_blocks;
};

static inline gradient_shape shape_of(int64_t vectors, int64_t room)
{
    int threads = vectors <= 128 ? 32 : vectors <= 256 ? 128 : vectors <= 512 ? 256 : 512;
    if (vectors > 1024)
        return {1024, room < kGradientMultiprocessors ? room : kGradientMultiprocessors};
    return {threads, kGradientMultiprocessors * (threads == 32 ? 8 : 512 / threads)};
}

template <typename T, bool kAligned>
static kernel_fn<rms_gradient_args> *kernel_of(int64_t vectors)
{
    if (vectors <= 32)
        return rms_gradient_kernel<T, 32, 1, kAligned>;
    if (vectors <= 64)
        return rms_gradient_kernel<T, 32, 2, kAligned>;
    if (vectors <= 128)
        return rms_gradient_kernel<T, 32, 4, kAligned>;
    if (vectors <= 256)
        return rms_gradient_kernel<T, 128, 2, kAligned>;
    if (vectors <= 512)
        return rms_gradient_kernel<T, 256, 2, kAligned>;
    if (vectors <= 1024)
        return rms_gradient_kernel<T, 512, 2, kAligned>;
    return rms_gradient_wide_kernel<T, 1024, kAligned>;
}

template <typename T>
static enum roped_status launch(struct rms_gradient_args args, int64_t n_blocks, int threads,
                                struct roped_queue *queue, struct roped_error *err)
{
    int64_t vectors = (args.hidden + kVecOf<T> - 1) / kVecOf<T>;
    kernel_fn<rms_gradient_args> *kernel =
        has_vectors<T>(&args) ? kernel_of<T, true>(vectors) : kernel_of<T, false>(vectors);
    return start(queue, kernel, dim3(threads), n_blocks, dim3(1), args, err);
}

static enum roped_status sum_columns(const struct rms_gradient_args *args, int64_t n_blocks,
                                     const struct roped_tensor *to, struct roped_queue *queue,
                                     struct roped_error *err)
{
    const struct column_sum_args sum = {args->partial, to->data, args->hidden, (int32_t)n_blocks};
    return with_float_type(to->dtype, [&](auto tag) {
        return start(queue, column_sum_kernel<typename decltype(tag)::type>,
                     dim3(kSumColumns * kSumLanes), (args->hidden + kSumColumns - 1) / kSumColumns,
                     dim3(1), sum, err);
    });
}

static struct rms_gradient_args args_of(const struct roped_call *call)
{
    const struct rmsnorm_plan *plan = (const struct rmsnorm_plan *)call->plan;
    const struct roped_tensor *grad_y = &call->in[RMSNORM_BACKWARD_GRAD_Y];
    const struct roped_tensor *x = &call->in[RMSNORM_BACKWARD_X];
    const struct roped_tensor *residual = &call->in[RMSNORM_BACKWARD_GRAD_RESIDUAL];
    const struct roped_tensor *grad_x = &call->out[RMSNORM_BACKWARD_GRAD_X];
    struct rms_gradient_args args = {};
    args.grad_y = grad_y->data;
    args.x = x->data;
    args.weight = call->in[RMSNORM_BACKWARD_WEIGHT].data;
    args.grad_residual = residual->data;
    args.grad_x = grad_x->data;
    args.n_rows = plan->n_rows;
    args.hidden = plan->hidden;
    args.grad_y_pitch = pitch_of(plan, grad_y);
    args.x_pitch = pitch_of(plan, x);
    args.grad_residual_pitch = pitch_of(plan, residual);
    args.grad_x_pitch = pitch_of(plan, grad_x);
    args.eps = plan->eps;
    args.weight_bias = plan->weight_bias;
    args.inverse_hidden = (float)(1.0 / (double)plan->hidden);
    args.weight_dtype = plan->weight_dtype;
    args.rounds = plan->rounding != RMSNORM_ROUND_ONCE && x->dtype != ROPED_F32;
    return args;
}

extern "C" enum roped_status roped_cuda_rmsnorm_backward(const struct roped_call *call,
                                                         struct roped_queue *queue,
                                                         struct roped_error *err)
{
    const struct roped_tensor *grad_weight = &call->out[RMSNORM_BACKWARD_GRAD_WEIGHT];
    const int dtype = call->in[RMSNORM_BACKWARD_X].dtype;
    struct rms_gradient_args args = args_of(call);
    const int64_t per_vector = 16 / (int64_t)roped_dtype_bytes((enum roped_dtype)dtype);
    const bool sums = roped_tensor_given(&call->in[RMSNORM_BACKWARD_WEIGHT]);
    const int64_t sum_bytes = sums ? args.hidden * (int64_t)sizeof(float) : 0;
    const gradient_shape shape =
        shape_of((args.hidden + per_vector - 1) / per_vector,
                 sum_bytes ? ROPED_CUDA_SCRATCH_BYTES / sum_bytes : kGradientMultiprocessors);
    if (shape.most_blocks == 0)
        return roped_fail(err, ROPED_TOO_LARGE,
                          "tensor 'x': %lld columns, expected at most %lld on a CUDA device",
                          (long long)args.hidden,
                          (long long)(ROPED_CUDA_SCRATCH_BYTES / sizeof(float)));
    const int64_t n_blocks = args.n_rows < shape.most_blocks ? args.n_rows : shape.most_blocks;
    enum roped_status status = ROPED_OK;
    uint32_t *counters;
    if (sums && n_blocks > 0)
        status = roped_cuda_scratch(queue, n_blocks * sum_bytes, 1, &args.partial, &counters, err);
    if (!status && n_blocks > 0)
        status = with_float_type(dtype, [&](auto tag) {
            return launch<typename decltype(tag)::type>(args, n_blocks, shape.threads, queue, err);
        });
    if (!status && sums)
        status = sum_columns(&args, n_blocks, grad_weight, queue, err);
    return status;
}
