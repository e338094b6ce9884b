// binary_strided.cuh - one gradient of a binary function, whatever the broadcasting: for shapes in
// which both operands are broadcast, or one in more dims than a sweep walks.
//
// As a sweep (binary_sweep.cuh), but a step is found by division over any number of dims, and the
// other operand has strides of its own. Reads grad_output once per gradient.
#pragma once

#include "cuda/binary_sweep.cuh"

// Elements from the first one of grad_output, of x, and of the row.
struct strided_offsets {
    int64_t g, x, row;
};

// A dim: its size, and what the next index adds.
struct strided_dim {
    int64_t size;
    struct strided_offsets next;
};

struct strided_args {
    struct sum_args sum;
    int32_t is_small;                        // bool: every index is below 2^32
    int32_t x_is_one;                        // bool: x has one value along the innermost dim
    int32_t n_kept_dims;                     // but for the innermost dim
    int32_t n_summed_dims;                   // the same
    struct strided_dim kept[ROPED_MAX_RANK]; // outermost first
    struct strided_dim summed[ROPED_MAX_RANK];
};

__device__ __forceinline__ void add_offset(const strided_offsets &next, int64_t index,
                                           strided_offsets &at)
{
    at.g += index * next.g;
    at.x += index * next.x;
    at.row += index * next.row;
}

// Adds the offsets of an index over n dims.
template <typename Index>
__device__ __forceinline__ strided_offsets add_offsets(const struct strided_dim *dim, int n,
                                                       Index index, strided_offsets at)
{
#pragma unroll 1
    for (int i = n - 1; i > 0; i--) {
        Index size = (Index)dim[i].size, outer = index / size;
        int64_t place = (int64_t)(index - outer * size);
        index = outer;
        add_offset(dim[i].next, place, at);
    }
    if (n > 0)
        add_offset(dim[0].next, (int64_t)index, at);
    return at;
}

// Once, for calls of more than 2^31 elements: a division of 64 bits is a hundred instructions.
__device__ __noinline__ strided_offsets add_large_offsets(const struct strided_dim *dim, int n,
                                                          int64_t index, strided_offsets at)
{
    return add_offsets<uint64_t>(dim, n, (uint64_t)index, at);
}

__device__ __forceinline__ strided_offsets find(const strided_args &args,
                                                const struct strided_dim *dim, int n, int64_t index,
                                                strided_offsets at)
{
    return args.is_small ? add_offsets<uint32_t>(dim, n, (uint32_t)index, at)
                         : add_large_offsets(dim, n, index, at);
}

template <int kVec>
constexpr int kStridedUnroll = kVec > 1 ? 4 : 2; // steps per iteration

// Rows: parts of a row are the innermost of the summed dims.
template <typename T, int kVec, bool kIsColumns, int kSums>
__device__ __forceinline__ void strided_steps(const strided_args &args, const sum_place &place,
                                              double (&sum)[kSums])
{
    using pack_of = packet<T, kVec>;
    const T *g = static_cast<const T *>(args.sum.g), *x = static_cast<const T *>(args.sum.x);
    constexpr int kUnroll = kStridedUnroll<kVec>;
    int kind = args.sum.kind, step_lanes = 1 << args.sum.step_bits;
    bool x_is_one = kIsColumns && args.x_is_one;
    float y[kSums] = {};
    if (!place.is_inside)
        return;
    load_y<T>(args.sum, place, y);
    strided_offsets first = {place.column, x_is_one ? 0 : place.column, place.column};
    first = find(args, args.kept, args.n_kept_dims, place.kept, first);
    for (int64_t step = place.step; step < place.end; step += step_lanes * kUnroll) {
        typename pack_of::raw raw_g[kUnroll], raw_x[kUnroll];
        bool has_work[kUnroll];
        float one_x[kUnroll], terms[kVec] = {};
#pragma unroll
        for (int i = 0; i < kUnroll; i++) {
            int64_t index = step + i * step_lanes;
            strided_offsets at = find(args, args.summed, args.n_summed_dims, index, first);
            has_work[i] = index < place.end && at.row < args.sum.width;
            if (!has_work[i])
                continue;
            raw_g[i] = pack_of::load(g + at.g);
            if (kind == kBinaryLinear)
                continue;
            if (x_is_one)
                one_x[i] = element<T>::to_float(x[at.x]);
            else
                raw_x[i] = pack_of::load(x + at.x);
        }
#pragma unroll
        for (int i = 0; i < kUnroll; i++) {
            float of_g[kVec], of_x[kVec];
            if (!has_work[i])
                continue;
            pack_of::widen(raw_g[i], of_g);
            pack_of::widen(raw_x[i], of_x);
#pragma unroll
            for (int j = 0; j < kVec; j++)
                terms[j] += term_of_y(kind, of_g[j], x_is_one ? one_x[i] : of_x[j],
                                      y[kSums == kVec ? j : 0], args.sum.sign);
        }
        add_iteration(terms, sum);
    }
}

template <typename T, int kVec, bool kIsColumns>
__global__ void __launch_bounds__(kSumThreads)
    strided_kernel(const __grid_constant__ struct strided_args args)
{
    let_next_start();
    sum_place place = place_of<kVec, kIsColumns>(args.sum);
    double sum[kIsColumns ? kVec : 1] = {};
    wait_for_previous();
    strided_steps<T, kVec, kIsColumns>(args, place, sum);
    finish_block<T, kIsColumns>(args.sum, place, sum);
}

// ------------------------------------------------------------------------------------ host

// Sorts all dims but the innermost into kept and summed ones. Returns the product of the latter.
static inline int64_t split_dims(const struct binary_plan *plan, int32_t side,
                                 struct strided_args *args)
{
    int64_t g = 1, x = 1, runs = 1;
    int n = plan->rank - 1;
    struct strided_dim kept[ROPED_MAX_RANK], summed[ROPED_MAX_RANK];
    int n_kept = 0, n_summed = 0;
    args->sum.n_kept = 1;
    for (int i = n; i >= 0; i--) {
        int64_t size = plan->dim[i].size;
        bool is_kept = plan->dim[i].in & side, in_x = plan->dim[i].in & ~side;
        struct strided_dim dim = {size, {g, in_x ? x : 0, 0}};
        g *= size;
        x *= in_x ? size : 1;
        if (i == n) {
            args->sum.width = size;
            args->x_is_one = !in_x;
        } else if (is_kept) {
            kept[n_kept++] = dim;
            args->sum.n_kept *= size;
        } else {
            summed[n_summed++] = dim;
            runs *= size;
        }
    }
    args->n_kept_dims = n_kept;
    args->n_summed_dims = n_summed;
    for (int i = 0; i < n_kept; i++)
        args->kept[i] = kept[n_kept - 1 - i];
    for (int i = 0; i < n_summed; i++)
        args->summed[i] = summed[n_summed - 1 - i];
    return runs;
}

template <typename T, int kVec>
static enum roped_status start_strided(struct strided_args *args, bool is_columns, int64_t runs,
                                       struct roped_queue *queue, struct roped_error *err)
{
    dim3 grid;
    int64_t n_blocks = lay_out<kVec>(&args->sum, is_columns, runs, &grid);
    if (!is_columns) {
        int64_t part = (int64_t)kVec << args->sum.lane_bits;
        args->summed[args->n_summed_dims++] = {args->sum.n_inner, {part, part, part}};
    }
    return start_sums<kVec>(
        queue, is_columns ? strided_kernel<T, kVec, true> : strided_kernel<T, kVec, false>,
        &args->sum, *args, n_blocks, grid, is_columns, err);
}

template <typename T>
static enum roped_status launch_strided(const struct roped_call *call, int32_t side,
                                        struct roped_queue *queue, struct roped_error *err)
{
    const struct binary_plan *plan = reinterpret_cast<const struct binary_plan *>(call->plan);
    bool is_columns = keeps_columns(plan, side);
    struct strided_args args = {};
    name_tensors(call, side, &args.sum);
    int64_t runs = split_dims(plan, side, &args);
    args.is_small = plan->n <= INT32_MAX;
    args.sum.n_inner = 1; // of columns: all summed dims are runs
    bool is_packed = args.sum.width % kVecOf<T> == 0 && is_aligned(args.sum.g, 16) &&
                     (args.x_is_one || is_aligned(args.sum.x, 16));
    return is_packed ? start_strided<T, kVecOf<T>>(&args, is_columns, runs, queue, err)
                     : start_strided<T, 1>(&args, is_columns, runs, queue, err);
}
