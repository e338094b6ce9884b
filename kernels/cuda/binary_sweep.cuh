// binary_sweep.cuh - both gradients of a binary function in one pass, where one operand is full and
// the other broadcast in at most two dims that are no neighbours.
//
// The collapsed shape is of one of two forms, by its innermost dim:
//
//     columns   [kept, outer sum, kept, rows, columns]   a step is a row of the columns
//     rows      [kept, outer sum, kept, row]             a step is a part of a row, a packet a lane
//
// The steps of a kept element are n_inner of them side by side (rows; parts of a row), outer sum
// times. A thread reads a packet of grad_output and of the full operand in each of its steps,
// writes the full gradient and adds the terms of the other in registers (binary_sums.cuh).
#pragma once

#include "cuda/binary_columns.cuh"

struct sweep_args {
    struct sum_args sum;
    void *grad_x;              // of the full operand
    int64_t n_kept_inner;      // kept = outer kept * n_kept_inner + inner kept
    int64_t kept_stride;       // elements of grad_output to the next kept one,
    int64_t kept_outer_stride; // and more where inner kept ends
    int64_t inner_stride;      // elements to the next step,
    int64_t outer_stride;      // and to the next run of them
    int64_t run;               // elements of a run
    int64_t advance;           // what the thread's next step adds to its element,
    int64_t advance_run;       // and to its place in the run;
    int64_t wrap;              // what the element gains on top where the run has ended
};

// A thread's way through its steps.
struct sweep_walk {
    int64_t at;     // element of grad_output
    int64_t in_run; // of which from the start of the run
    int32_t n_left; // steps: a call whose threads took 2^31 each would not fit any memory
};

__device__ __forceinline__ sweep_walk walk_of(const sweep_args &args, const sum_place &place)
{
    sweep_walk walk;
    int64_t n_inner = args.sum.n_inner;
    int64_t outer = n_inner < args.sum.n_steps ? place.step / n_inner : 0;
    walk.in_run = (place.step - outer * n_inner) * args.inner_stride;
    walk.at = place.kept * args.kept_stride + place.column + outer * args.outer_stride;
    walk.at += walk.in_run;
    if (args.n_kept_inner < args.sum.n_kept)
        walk.at += place.kept / args.n_kept_inner * args.kept_outer_stride;
    walk.n_left = 0;
    if (place.is_inside && place.step < place.end)
        walk.n_left = (int32_t)((place.end - place.step - 1) >> args.sum.step_bits) + 1;
    return walk;
}

__device__ __forceinline__ void advance(const sweep_args &args, sweep_walk &walk)
{
    walk.at += args.advance;
    walk.in_run += args.advance_run;
    if (walk.in_run >= args.run) {
        walk.in_run -= args.run;
        walk.at += args.wrap;
    }
}

constexpr int kSweepUnroll = 4; // steps per iteration: eight loads of 16 bytes in flight

template <typename T, int kVec, int kKind, bool kIsColumns, int kSums>
__device__ __forceinline__ void sweep_steps(const sweep_args &args, const sum_place &place,
                                            sweep_walk walk, double (&sum)[kSums])
{
    using pack_of = packet<T, kVec>;
    const T *g = static_cast<const T *>(args.sum.g), *x = static_cast<const T *>(args.sum.x);
    T *out = static_cast<T *>(args.grad_x);
    int kind = kKind == kBinaryAny ? args.sum.kind : kKind;
    float y[kSums] = {};
    load_y<T>(args.sum, place, y);
    for (; walk.n_left > 0; walk.n_left -= kSweepUnroll) {
        typename pack_of::raw raw_g[kSweepUnroll], raw_x[kSweepUnroll];
        int64_t at[kSweepUnroll]; // negative: no step
        float terms[kVec] = {};
#pragma unroll
        for (int i = 0; i < kSweepUnroll; i++) {
            bool has_work = i < walk.n_left;
            if constexpr (!kIsColumns) // the last part of a row may be shorter
                has_work = has_work && walk.in_run + place.column < args.sum.width;
            at[i] = has_work ? walk.at : -1;
            if (has_work) {
                raw_g[i] = pack_of::load(g + walk.at);
                if (kind != kBinaryLinear)
                    raw_x[i] = pack_of::load(x + walk.at);
            }
            advance(args, walk);
        }
#pragma unroll
        for (int i = 0; i < kSweepUnroll; i++) {
            float of_g[kVec], of_x[kVec] = {}, of_full[kVec], term;
            if (at[i] < 0)
                continue;
            pack_of::widen(raw_g[i], of_g);
            if constexpr (kKind != kBinaryLinear)
                pack_of::widen(raw_x[i], of_x);
#pragma unroll
            for (int j = 0; j < kVec; j++) {
                both_terms<kKind>(kind, of_g[j], of_x[j], y[kSums == kVec ? j : 0], args.sum.sign,
                                  of_full[j], term);
                terms[j] += term;
            }
            pack_of::store(out + at[i], of_full);
        }
        add_iteration(terms, sum);
    }
}

template <typename T, int kVec, int kKind, bool kIsColumns>
__global__ void __launch_bounds__(kSumThreads)
    sweep_kernel(const __grid_constant__ struct sweep_args args)
{
    let_next_start();
    sum_place place = place_of<kVec, kIsColumns>(args.sum);
    sweep_walk walk = walk_of(args, place);
    finish_before_wait(static_cast<const T *>(args.sum.g) + walk.at, walk.n_left);
    wait_for_previous();
    double sum[kIsColumns ? kVec : 1] = {};
    sweep_steps<T, kVec, kKind, kIsColumns>(args, place, walk, sum);
    finish_block<T, kIsColumns>(args.sum, place, sum);
}

// ------------------------------------------------------------------------------------ host

// Size of the i-th dim from the innermost, 1 beyond the outermost.
static inline int64_t inner_dim(const struct binary_plan *plan, int i)
{
    return i < plan->rank ? plan->dim[plan->rank - 1 - i].size : 1;
}

static inline bool is_of_sweep(const struct binary_plan *plan, int32_t sum_side)
{
    return plan->rank <= (keeps_columns(plan, sum_side) ? 5 : 4);
}

// Strides of either form; the grid, whose x is the result.
template <int kVec>
static int64_t lay_out_sweep(struct sweep_args *args, const struct binary_plan *plan,
                             bool is_columns, dim3 *grid)
{
    struct sum_args *sum = &args->sum;
    int first = is_columns ? 2 : 1; // of the dims kept, outer sum, kept
    int64_t width = inner_dim(plan, 0), runs = inner_dim(plan, first + 1);
    args->n_kept_inner = inner_dim(plan, first);
    sum->width = width;
    sum->n_kept = args->n_kept_inner * inner_dim(plan, first + 2);
    sum->n_inner = is_columns ? inner_dim(plan, 1) : 0;
    int64_t n_blocks = lay_out<kVec>(sum, is_columns, runs, grid);
    int64_t step_lanes = 1LL << sum->step_bits;
    args->kept_stride = width * (is_columns ? sum->n_inner : 1);
    args->outer_stride = args->n_kept_inner * args->kept_stride;
    args->kept_outer_stride = (runs - 1) * args->outer_stride;
    args->inner_stride = is_columns ? width : (int64_t)kVec << sum->lane_bits;
    args->run = sum->n_inner * args->inner_stride;
    args->advance_run = step_lanes % sum->n_inner * args->inner_stride;
    args->advance = step_lanes / sum->n_inner * args->outer_stride + args->advance_run;
    args->wrap = args->outer_stride - args->run;
    return n_blocks;
}

template <typename T, bool kIsColumns>
static kernel_fn<sweep_args> *sweep_kernel_of(int kind)
{
    if (kind == kBinaryMul)
        return sweep_kernel<T, kVecOf<T>, kBinaryMul, kIsColumns>;
    if (kind == kBinaryOverY)
        return sweep_kernel<T, kVecOf<T>, kBinaryOverY, kIsColumns>;
    if (kind == kBinaryOverX)
        return sweep_kernel<T, kVecOf<T>, kBinaryOverX, kIsColumns>;
    return sweep_kernel<T, kVecOf<T>, kBinaryLinear, kIsColumns>;
}

template <typename T, int kVec>
static enum roped_status start_sweep(struct sweep_args *args, const struct binary_plan *plan,
                                     bool is_columns, struct roped_queue *queue,
                                     struct roped_error *err)
{
    kernel_fn<sweep_args> *kernel;
    dim3 grid;
    int64_t n_blocks = lay_out_sweep<kVec>(args, plan, is_columns, &grid);
    if constexpr (kVec == 1)
        kernel = is_columns ? sweep_kernel<T, 1, kBinaryAny, true>
                            : sweep_kernel<T, 1, kBinaryAny, false>;
    else
        kernel = is_columns ? sweep_kernel_of<T, true>(args->sum.kind)
                            : sweep_kernel_of<T, false>(args->sum.kind);
    return start_sums<kVec>(queue, kernel, &args->sum, *args, n_blocks, grid, is_columns, err);
}

template <typename T>
static enum roped_status launch_sweep(const struct roped_call *call, int32_t sum_side,
                                      struct roped_queue *queue, struct roped_error *err)
{
    const struct binary_plan *plan = reinterpret_cast<const struct binary_plan *>(call->plan);
    bool is_columns = keeps_columns(plan, sum_side);
    struct sweep_args args = {};
    name_tensors(call, sum_side, &args.sum);
    args.grad_x = call->out[sum_side == BINARY_IN_A ? BINARY_GRAD_B : BINARY_GRAD_A].data;
    bool is_aligned = are_aligned({args.sum.g, args.sum.x, args.grad_x});
    if (is_aligned && is_of_rows<T>(plan, sum_side))
        return launch_rows<T>(plan, args.sum, args.grad_x, queue, err);
    if (is_aligned && is_of_columns<T>(plan, sum_side))
        return launch_columns<T>(plan, args.sum, args.grad_x, queue, err);
    bool is_packed = is_aligned && inner_dim(plan, 0) % kVecOf<T> == 0;
    return is_packed ? start_sweep<T, kVecOf<T>>(&args, plan, is_columns, queue, err)
                     : start_sweep<T, 1>(&args, plan, is_columns, queue, err);
}
