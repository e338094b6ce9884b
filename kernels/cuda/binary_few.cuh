// binary_few.cuh - sums of few terms each, for very many columns whose rows begin anywhere in a
// packet.
//
// A thread has all terms of some columns, which lie as far apart as a block is wide: of a row their
// places are one address, in g, in x and in its gradient, and numbers that instructions have. Lanes
// read single elements side by side, whatever the address. A dim that is kept around the rows is
// another dim of the grid. Where both operands are broadcast a column has a place of its own in x.
#pragma once

#include "cuda/binary_sums.cuh"

constexpr int kFewThreads = 256;
constexpr int kFewTerms = 4; // that are added in float32

// Rows whose loads begin at once.
template <int kColumns>
constexpr int kFewRows = kColumns == 4 ? 4 : 8;

struct few_args {
    struct sum_args sum;
    int64_t width;          // columns of each kept element around them
    int64_t of_row, of_run; // elements to the next row, and to the next kept element's first one
};

// Of one row.
template <typename T, int kColumns>
struct few_elements {
    T of[kColumns];

    // Of so many columns from the thread's first one on.
    __device__ __forceinline__ void load(const T *from, int left)
    {
#pragma unroll
        for (int c = 0; c < kColumns; c++)
            if (c * kFewThreads < left)
                of[c] = from[c * kFewThreads];
    }
    __device__ __forceinline__ void store(T *to, int left) const
    {
#pragma unroll
        for (int c = 0; c < kColumns; c++)
            if (c * kFewThreads < left)
                to[c * kFewThreads] = of[c];
    }
    __device__ __forceinline__ void fill(float x)
    {
#pragma unroll
        for (T &one : of)
            one = element<T>::from_float(x);
    }
};

template <typename T, int kKind, int kColumns>
__global__ void __launch_bounds__(kFewThreads, kColumns == 1 ? 4 : 3)
    few_terms_kernel(const __grid_constant__ struct few_args args)
{
    constexpr int kRows = kFewRows<kColumns>;
    let_next_start();
    const sum_args &sum = args.sum;
    const int64_t column = (int64_t)blockIdx.x * (kFewThreads * kColumns) + threadIdx.x;
    const int left = (int)min(args.width - column, (int64_t)kFewThreads * kColumns);
    const int64_t first = compute_now(blockIdx.y * args.of_run + column);
    const int64_t kept = compute_now(blockIdx.y * args.width + column);
    const T *g = static_cast<const T *>(sum.g) + first, *x = static_cast<const T *>(sum.x) + first;
    T *grad_x = static_cast<T *>(sum.grad_x) + first;
    few_elements<T, kColumns> of_y, result;
    kept_elements<T, kKind, kColumns> y;
    double total[kColumns] = {};
    of_y.fill(sum.one.y);
    wait_for_previous();
    for (int row = 0; row < (int)sum.n_steps; row += kRows) {
        const int n = (int)sum.n_steps - row;
        few_elements<T, kColumns> of_g[kRows], of_x[kRows];
        float terms[kColumns] = {};
#pragma unroll
        for (int i = 0; i < kRows; i++) {
            if (i >= n)
                break;
            of_g[i].load(g + i * args.of_row, left);
            if (sum.has_values)
                of_x[i].load(x + i * args.of_row, left);
            else
                of_x[i].fill(sum.one.x);
        }
        if (row == 0) { // behind the others
            if (sum.has_values)
                of_y.load(static_cast<const T *>(sum.y) + kept, left);
#pragma unroll
            for (int c = 0; c < kColumns; c++)
                y.y[c] = element<T>::to_float(of_y.of[c]);
            y.begin(sum.kind);
        }
#pragma unroll
        for (int i = 0; i < kRows; i++) {
            if (i >= n)
                break;
#pragma unroll
            for (int c = 0; c < kColumns; c++) {
                float of_full, term;
                kept_terms<T, kKind>(sum.kind, element<T>::to_float(of_g[i].of[c]),
                                     element<T>::to_float(of_x[i].of[c]), y, c, of_full, term);
                terms[c] += term;
                result.of[c] = element<T>::from_float(of_full);
            }
            result.store(grad_x + i * args.of_row, left);
            if ((i + 1) % kFewTerms != 0 && i + 1 < n)
                continue;
#pragma unroll
            for (int c = 0; c < kColumns; c++) {
                total[c] += (double)terms[c];
                terms[c] = 0.0f;
            }
        }
        g += kRows * args.of_row;
        x += kRows * args.of_row;
        grad_x += kRows * args.of_row;
    }
#pragma unroll
    for (int c = 0; c < kColumns; c++)
        result.of[c] = element<T>::from_float((float)total[c]);
    result.store(static_cast<T *>(sum.grad_y) + kept, left);
}

// The same of columns of which other columns may be kept around, where x is broadcast, too: its
// gradient is another launch's, and each column has a place of its own in g and in x.
template <typename T, int kKind, int kColumns>
__global__ void __launch_bounds__(kFewThreads, kColumns == 1 ? 4 : 3)
    few_columns_kernel(const __grid_constant__ struct sum_args sum)
{
    constexpr int kRows = kFewRows<kColumns>;
    let_next_start();
    const int64_t column = (int64_t)blockIdx.x * (kFewThreads * kColumns) + threadIdx.x;
    const struct sum_offsets of_row = {sum.dim[sum.n_kept_dims].g, sum.dim[sum.n_kept_dims].x};
    const T *g[kColumns], *x[kColumns];
    T of_y[kColumns];
    kept_elements<T, kKind, kColumns> y;
    double total[kColumns] = {};
#pragma unroll
    for (int c = 0; c < kColumns; c++) {
        const sum_offsets at = kept_offsets(sum, min(column + c * kFewThreads, sum.n_kept - 1));
        g[c] = static_cast<const T *>(sum.g) + at.g;
        x[c] = static_cast<const T *>(sum.x) + at.x;
        of_y[c] = element<T>::from_float(sum.one.y);
        finish_before_wait(g[c], x[c]);
    }
    wait_for_previous();
    for (int row = 0; row < (int)sum.n_steps; row += kRows) {
        T of_g[kRows][kColumns], of_x[kRows][kColumns];
#pragma unroll
        for (int i = 0; i < kRows; i++)
#pragma unroll
            for (int c = 0; c < kColumns; c++) {
                of_g[i][c] = element<T>::from_float(0.0f);
                of_x[i][c] = element<T>::from_float(sum.one.x);
                if (row + i >= (int)sum.n_steps)
                    continue;
                of_g[i][c] = *g[c];
                if (sum.has_values)
                    of_x[i][c] = *x[c];
                g[c] += of_row.g;
                x[c] += of_row.x;
            }
        if (row == 0) { // behind the others
#pragma unroll
            for (int c = 0; c < kColumns; c++) {
                if (sum.has_values)
                    of_y[c] = static_cast<const T *>(
                        sum.y)[min(column + c * kFewThreads, sum.n_kept - 1)];
                y.y[c] = element<T>::to_float(of_y[c]);
            }
            y.begin(sum.kind);
        }
#pragma unroll
        for (int c = 0; c < kColumns; c++) {
            float terms = 0;
#pragma unroll
            for (int i = 0; i < kRows; i++) {
                float of_full, term;
                kept_terms<T, kKind>(sum.kind, element<T>::to_float(of_g[i][c]),
                                     element<T>::to_float(of_x[i][c]), y, c, of_full, term);
                terms += row + i < (int)sum.n_steps ? term : 0.0f;
            }
            total[c] += (double)terms;
        }
    }
#pragma unroll
    for (int c = 0; c < kColumns; c++)
        if (column + c * kFewThreads < sum.n_kept)
            static_cast<T *>(sum.grad_y)[column + c * kFewThreads] =
                element<T>::from_float((float)total[c]);
}

// ------------------------------------------------------------------------------------ host

// A thread adds no more terms than these: beyond them, packets cost less. Twice as many where they
// are products of float32.
constexpr int64_t kMostTerms = 32;
// Of the columns around which a dim is kept: the part of a last block is small beside them.
constexpr int64_t kLeastWidth = 8 * kFewThreads;

// Has the gradient that is summed so many columns that threads with all terms of one or more fill
// the device, and few terms for each? The other gradient is not summed. Quotients of float32, which
// wait for code as long as for memory, come by it where rows are whole packets, too, if there are
// so many more columns than terms.
template <typename T>
static bool is_of_few_columns(const struct binary_plan *plan, int32_t sum_side)
{
    struct sum_args args;
    constexpr int64_t kFewQuotients = 16, kLanesOfQuotient = 6 << 10, kLeastQuotients = 1 << 19;
    const int64_t width = inner_dim(plan, 0);
    const bool is_light = sizeof(T) == 4 && plan->function != BINARY_DIV;
    const int64_t most = kMostTerms * (is_light ? 2 : 1);
    name_dims(plan, sum_side, 0, &args);
    if (sizeof(T) == 4 && plan->function == BINARY_DIV && plan->rank == 2 &&
        keeps_columns(plan, sum_side) && args.n_steps <= kFewQuotients &&
        width >= kLanesOfQuotient * args.n_steps && plan->n >= kLeastQuotients)
        return true;
    return keeps_columns(plan, sum_side) && width % kVecOf<T> != 0 && width >= kLeastWidth &&
           args.n_kept_dims <= 2 && args.n_dims == args.n_kept_dims + 1 && args.n_steps <= most &&
           args.n_kept >= kFillingThreads / 2 && args.n_kept / width <= UINT16_MAX;
}

template <typename T, int kKind>
static kernel_fn<few_args> *few_kernel_of(int columns)
{
    constexpr int kMost = kKind == kBinaryMul ? 4 : 2;
    return columns == 1   ? few_terms_kernel<T, kKind, 1>
           : columns == 2 ? few_terms_kernel<T, kKind, 2>
                          : few_terms_kernel<T, kKind, kMost>;
}

// Where there are more columns than threads fill the device, a thread has two or four.
template <typename T>
static enum roped_status launch_few(const struct roped_call *call, int32_t sum_side,
                                    struct roped_queue *queue, struct roped_error *err)
{
    const struct binary_plan *plan = reinterpret_cast<const struct binary_plan *>(call->plan);
    struct few_args args = {};
    args.width = inner_dim(plan, 0);
    name_tensors(call, sum_side, &args.sum);
    name_dims(plan, sum_side, 0, &args.sum);
    args.of_run = args.sum.dim[0].g;
    args.of_row = args.sum.dim[args.sum.n_kept_dims].g;
    constexpr bool kKnowsKind = sizeof(T) == 2; // whose inverses y keeps
    constexpr int kOverX = kKnowsKind ? kBinaryOverX : kBinaryOver;
    constexpr int kOverY = kKnowsKind ? kBinaryOverY : kBinaryOver;
    const int kind = args.sum.kind;
    const bool is_mul = kind == kBinaryMul;
    const int64_t n_kept = args.sum.n_kept;
    const int columns = n_kept >= 4 * kFillingThreads && is_mul ? 4
                        : n_kept >= 2 * kFillingThreads         ? 2
                                                                : 1;
    return start(queue,
                 is_mul                 ? few_kernel_of<T, kBinaryMul>(columns)
                 : kind == kBinaryOverY ? few_kernel_of<T, kOverY>(columns)
                                        : few_kernel_of<T, kOverX>(columns),
                 dim3(kFewThreads), blocks_of(args.width, kFewThreads * columns),
                 dim3(1, (unsigned)(n_kept / args.width)), args, err);
}

// Has one of two gradients that are summed so many columns that begin anywhere, and one dim of few
// terms? Its threads then shift nothing. Products may be more where threads all but fill the
// device; fewer threads with a hundred terms each would end after a sweep does.
template <typename T>
static bool is_of_odd_columns(const struct binary_plan *plan, int32_t sum_side)
{
    constexpr int64_t kMost = 48, kMostProducts = 128;
    struct sum_args args;
    name_dims(plan, sum_side, 0, &args);
    const bool fills = plan->function != BINARY_DIV && 4 * args.n_kept >= 3 * kFillingThreads;
    return keeps_columns(plan, sum_side) && inner_dim(plan, 0) % kVecOf<T> != 0 &&
           args.n_dims == args.n_kept_dims + 1 && args.n_kept >= kFillingThreads / 2 &&
           args.n_steps <= (fills ? kMostProducts : kMost);
}

template <typename T, int kKind>
static kernel_fn<sum_args> *few_columns_kernel_of(int columns)
{
    constexpr int kMost = kKind == kBinaryMul ? 4 : 1;
    return columns == 1 ? few_columns_kernel<T, kKind, 1> : few_columns_kernel<T, kKind, kMost>;
}

template <typename T>
static enum roped_status launch_few_columns(const struct roped_call *call, int32_t sum_side,
                                            struct roped_queue *queue, struct roped_error *err)
{
    const struct binary_plan *plan = reinterpret_cast<const struct binary_plan *>(call->plan);
    struct sum_args args = {};
    name_tensors(call, sum_side, &args);
    name_dims(plan, sum_side, 0, &args);
    constexpr int kOverX = sizeof(T) == 2 ? kBinaryOverX : kBinaryOver;
    constexpr int kOverY = sizeof(T) == 2 ? kBinaryOverY : kBinaryOver;
    const bool is_mul = args.kind == kBinaryMul;
    const int columns = is_mul && args.n_kept >= 4 * kFillingThreads ? 4 : 1;
    return start(queue,
                 is_mul                      ? few_columns_kernel_of<T, kBinaryMul>(columns)
                 : args.kind == kBinaryOverY ? few_columns_kernel_of<T, kOverY>(columns)
                                             : few_columns_kernel_of<T, kOverX>(columns),
                 dim3(kFewThreads), blocks_of(args.n_kept, kFewThreads * columns), dim3(), args,
                 err);
}
