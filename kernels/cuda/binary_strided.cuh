// binary_strided.cuh - one gradient of a binary function, whatever the broadcasting: for shapes in
// which both operands are broadcast, or more than four dims are left.
//
// A thread, or a warp where the innermost dim is summed, adds the terms of one element of the
// gradient over one segment of the summed dims. Offsets advance along the innermost summed dim; an
// index is taken apart by division only where that ends. Reads grad_output once per gradient.
#pragma once

#include "cuda/binary_sums.cuh"
#include "cuda/device/binary.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/device/stream.cuh"

constexpr int kStridedThreads = 256;

// A dim: its size, and elements to the next index in each tensor.
struct strided_dim {
    int64_t size;
    int64_t g, a, b;
};

struct strided_args {
    const void *g, *a, *b;
    void *out;      // the gradient, T, or
    float *partial; // [segments][n_sums]
    int64_t n_sums; // elements of the gradient
    int64_t n_segments;
    int64_t n_terms; // of each
    int64_t terms_per_segment;
    int32_t function;
    int32_t side;
    int32_t lanes;      // 1 or 32 threads per sum
    int32_t has_values; // bool: a and b are read
    int32_t n_kept, n_summed;
    struct strided_dim kept[ROPED_MAX_RANK];   // outermost first
    struct strided_dim summed[ROPED_MAX_RANK]; // the same; never empty
};

struct strided_offset {
    int64_t g, a, b;
};

// Adds the offsets of an index over n dims.
template <typename Index>
__device__ __forceinline__ void add_offsets(const struct strided_dim *dim, int n, Index index,
                                            struct strided_offset &at)
{
    for (int i = n - 1; i >= 0; i--) {
        Index size = (Index)dim[i].size;
        int64_t place = (int64_t)(index % size);
        index /= size;
        at.g += place * dim[i].g;
        at.a += place * dim[i].a;
        at.b += place * dim[i].b;
    }
}

// Index holds every element count of the call.
template <typename T, typename Index>
__global__ void __launch_bounds__(kStridedThreads)
    strided_kernel(const __grid_constant__ struct strided_args args)
{
    let_next_start();
    wait_for_previous();
    int64_t group = ((int64_t)blockIdx.x * kStridedThreads + threadIdx.x) / args.lanes;
    int lane = threadIdx.x % args.lanes;
    const T *g = static_cast<const T *>(args.g);
    const T *a = static_cast<const T *>(args.a), *b = static_cast<const T *>(args.b);
    const struct strided_dim &inner = args.summed[args.n_summed - 1];
    Index sum_index = (Index)(group % args.n_sums);
    int64_t segment = group / args.n_sums;
    double sum = 0;
    if (segment < args.n_segments) {
        struct strided_offset base = {0, 0, 0};
        add_offsets<Index>(args.kept, args.n_kept, sum_index, base);
        int64_t begin = segment * args.terms_per_segment + lane;
        int64_t end = min((segment + 1) * args.terms_per_segment, args.n_terms);
        Index outer = (Index)begin / (Index)inner.size;
        int64_t place = (int64_t)((Index)begin % (Index)inner.size);
        struct strided_offset row = base;
        add_offsets<Index>(args.summed, args.n_summed - 1, outer, row);
        for (int64_t term = begin; term < end; term += args.lanes) {
            float of_a = 0, of_b = 0;
            float of_g = element<T>::to_float(g[row.g + place * inner.g]);
            if (args.has_values) {
                of_a = element<T>::to_float(a[row.a + place * inner.a]);
                of_b = element<T>::to_float(b[row.b + place * inner.b]);
            }
            sum += (double)binary_term(args.function, args.side, of_g, of_a, of_b);
            place += args.lanes;
            if (place >= inner.size) {
                outer += (Index)place / (Index)inner.size;
                place = (int64_t)((Index)place % (Index)inner.size);
                row = base;
                add_offsets<Index>(args.summed, args.n_summed - 1, outer, row);
            }
        }
    }
    if (args.lanes == 32)
        sum = sum_in_warp<32>(sum);
    if (lane != 0 || segment >= args.n_segments)
        return;
    if (args.partial)
        args.partial[segment * args.n_sums + sum_index] = (float)sum;
    else
        static_cast<T *>(args.out)[sum_index] = element<T>::from_float((float)sum);
}

// ------------------------------------------------------------------------------------ host

static inline void split_dims(const struct binary_plan *plan, struct strided_args *args)
{
    struct strided_dim next = {0, 1, 1, 1}; // strides of the dim further in
    struct strided_dim dims[ROPED_MAX_RANK];
    args->n_sums = args->n_terms = 1;
    args->n_kept = args->n_summed = 0;
    for (int i = plan->rank - 1; i >= 0; i--) {
        int64_t size = plan->dim[i].size;
        bool in_a = plan->dim[i].in & BINARY_IN_A, in_b = plan->dim[i].in & BINARY_IN_B;
        dims[i] = {size, next.g, in_a ? next.a : 0, in_b ? next.b : 0};
        next.g *= size;
        next.a *= in_a ? size : 1;
        next.b *= in_b ? size : 1;
    }
    for (int i = 0; i < plan->rank; i++) {
        bool is_kept = plan->dim[i].in & args->side;
        *(is_kept ? &args->n_sums : &args->n_terms) *= dims[i].size;
        if (is_kept)
            args->kept[args->n_kept++] = dims[i];
        else
            args->summed[args->n_summed++] = dims[i];
    }
    if (args->n_summed == 0)
        args->summed[args->n_summed++] = {1, 0, 0, 0};
}

// Where the innermost dim is summed and long enough, a warp reads along it; else neighbours in the
// gradient read neighbours in grad_output.
static inline bool reads_along_sum(const struct binary_plan *plan, int32_t side)
{
    const struct binary_dim *inner = plan->dim + plan->rank - 1;
    return plan->rank > 0 && !(inner->in & side) && inner->size >= 16;
}

template <typename T>
static enum roped_status launch_strided(const struct roped_call *call, int32_t side,
                                        struct roped_queue *queue, struct roped_error *err)
{
    const struct binary_plan *plan = reinterpret_cast<const struct binary_plan *>(call->plan);
    struct strided_args args = {};
    args.g = call->in[BINARY_GRAD_OUTPUT].data;
    args.a = call->in[BINARY_A].data;
    args.b = call->in[BINARY_B].data;
    args.out = call->out[side == BINARY_IN_A ? BINARY_GRAD_A : BINARY_GRAD_B].data;
    args.function = plan->function;
    args.side = side;
    args.has_values = binary_needs_values(plan->function);
    split_dims(plan, &args);
    args.lanes = reads_along_sum(plan, side) ? 32 : 1;
    int64_t sums_per_block = kStridedThreads / args.lanes;
    args.terms_per_segment =
        segment_steps(args.n_terms, ceil_div(args.n_sums, sums_per_block), 8 * args.lanes);
    args.n_segments = ceil_div(args.n_terms, args.terms_per_segment);
    if (args.n_segments > 1) {
        enum roped_status status = roped_cuda_scratch(
            queue, args.n_segments * args.n_sums * (int64_t)sizeof(float), &args.partial, err);
        if (status)
            return status;
    }
    bool is_small = plan->n <= INT32_MAX;
    enum roped_status status =
        start(queue, is_small ? strided_kernel<T, uint32_t> : strided_kernel<T, uint64_t>,
              dim3(kStridedThreads), ceil_div(args.n_sums * args.n_segments, sums_per_block),
              dim3(), args, err);
    if (status || args.n_segments == 1)
        return status;
    return finish_sums<T>(args.partial, args.out, args.n_sums, args.n_segments, queue, err);
}
