// qk_norm_launch.cuh - which kernel of device/qk_norm.cuh a call takes, and how its work is cut
// into blocks. Host code only. Outputs, as the kernels have them, add
//     kWalkFrom                             see heads_per_thread
//     with_common(args, f)                  f(type_tag<those of common calls>), if it is one
//     more_columns(args, columns, threads, height)
//                                           blocks beyond those columns of that height
#pragma once

#include "cuda/device/qk_norm.cuh"
#include "cuda/rotate_launch.cuh"

constexpr int kMostUnits = 4; // of a head, per thread that keeps it in registers

// Bits of the smallest power of two that is not below n.
static inline int bits_of(int64_t n)
{
    int bits = 0;
    while ((int64_t)1 << bits < n)
        bits++;
    return bits;
}

// A group of threads per head, one after another over one-dimensional blocks.
template <typename Outputs>
static enum roped_status start_groups(typename Outputs::args *args,
                                      kernel_fn<typename Outputs::args> *kernel, int threads,
                                      struct roped_queue *queue, struct roped_error *err)
{
    int64_t n_groups = (int64_t)args->rotate.n_tokens * args->rotate.n_heads;
    if (n_groups > UINT32_MAX - kMaxThreads)
        return roped_fail(err, ROPED_TOO_LARGE,
                          "tensor 'q': %lld heads in all, expected at most %lld on a CUDA device",
                          (long long)n_groups, (long long)UINT32_MAX - kMaxThreads);
    args->n_groups = (uint32_t)n_groups;
    int64_t columns = ceil_div(n_groups, threads >> args->lane_bits);
    columns += Outputs::more_columns(args, columns, threads, 1);
    return start(queue, kernel, dim3((unsigned)threads), columns, dim3(), *args, err);
}

// Several units per thread, every source of angles, every type of weight.
template <typename Outputs, typename T, int kUnit>
static enum roped_status launch_units(typename Outputs::args *args, struct roped_queue *queue,
                                      struct roped_error *err)
{
    int64_t units = args->rotate.rotating_units + args->rotate.rest_units;
    args->lane_bits = bits_of(ceil_div(units, kMostUnits));
    return start_groups<Outputs>(args, qk_norm_units_kernel<Outputs, T, kUnit, kMostUnits>,
                                 ROTATE_THREADS, queue, err);
}

// Heads per thread: four, which need angles and weights once, where every multiprocessor had
// kWalkFrom threads with one head each; from there on instructions are what the time goes to.
template <typename Outputs>
static int heads_per_thread(int64_t n_threads, int n_multiprocessors)
{
    return n_threads >= (int64_t)n_multiprocessors * Outputs::kWalkFrom ? kHeadsPerThread : 1;
}

// Blocks of many waves are as large as the kernel allows; of few waves smaller, for the last one's
// sake.
static inline int threads_of(int64_t n_threads, int heads, int n_multiprocessors)
{
    int most = n_threads >= (int64_t)n_multiprocessors * 16384 ? kWalkThreads : 128;
    return block_threads(n_threads / heads, n_multiprocessors, most);
}

template <typename Outputs, typename T, int kUnit, int kAngles, bool kCommon>
static kernel_fn<typename Outputs::args> *walking_kernel(int heads)
{
    return heads == 1 ? qk_norm_kernel<Outputs, T, kUnit, kAngles, 1, kCommon>
                      : qk_norm_kernel<Outputs, T, kUnit, kAngles, kHeadsPerThread, kCommon>;
}

template <typename Outputs, typename T, int kUnit, int kAngles>
static kernel_fn<typename Outputs::args> *kernel_of(const typename Outputs::args *args, int heads)
{
    const struct rotate_args *rotate = &args->rotate;
    kernel_fn<typename Outputs::args> *kernel =
        walking_kernel<Outputs, T, kUnit, kAngles, false>(heads);
    if (is_common_rotation(rotate, kAngles) && rotate->rotating_units == kCommonLanes &&
        args->weight[0] && args->weight[1] && !args->rounds_product)
        Outputs::with_common(args, [&](auto tag) {
            kernel = walking_kernel<typename decltype(tag)::type, T, kUnit, kAngles, true>(heads);
        });
    return kernel;
}

// A thread per unit. Blocks are of whole warps, whose threads add together.
template <typename Outputs, typename T, int kUnit, int kAngles>
static enum roped_status launch_unit(typename Outputs::args *args, struct roped_queue *queue,
                                     struct roped_error *err)
{
    const struct rotate_args *rotate = &args->rotate;
    int64_t lanes = (int64_t)1 << bits_of(rotate->rotating_units + rotate->rest_units);
    int64_t per_warp = 32 / lanes; // runs
    int64_t n_threads = (int64_t)rotate->n_tokens * rotate->n_heads * lanes;
    int heads = heads_per_thread<Outputs>(n_threads, queue->n_multiprocessors);
    int threads = threads_of(n_threads, heads, queue->n_multiprocessors);
    args->q_runs = (int32_t)ceil_div(rotate->q_heads, heads);
    int64_t runs = args->q_runs + ceil_div(rotate->n_heads - rotate->q_heads, heads);
    int64_t grid_y = ceil_div(runs, threads / lanes);
    int64_t y = ceil_div(runs, grid_y);
    int64_t z = at_most(threads / (lanes * y), at_most(rotate->n_tokens, 64)); // threadIdx.z
    if (y % per_warp != 0 && z >= per_warp) {
        z -= z % per_warp;
    } else if (y % per_warp != 0) {
        y = ceil_div(y, per_warp) * per_warp;
        z = 1;
    }
    if (grid_y > ROTATE_MAX_GRID)
        return launch_units<Outputs, T, kUnit>(args, queue, err);
    int64_t columns = ceil_div(rotate->n_tokens, z);
    columns += Outputs::more_columns(args, columns, lanes * y * z, grid_y);
    return start(queue, kernel_of<Outputs, T, kUnit, kAngles>(args, heads),
                 dim3((unsigned)lanes, (unsigned)y, (unsigned)z), columns,
                 dim3(1, (unsigned)grid_y), *args, err);
}

template <typename Outputs, typename T, int kUnit>
static enum roped_status launch_reread(typename Outputs::args *args, struct roped_queue *queue,
                                       struct roped_error *err)
{
    int64_t units = args->rotate.rotating_units + args->rotate.rest_units;
    int64_t lanes = at_most(units, kMaxThreads);
    args->lane_bits = bits_of(lanes);
    int threads = lanes > 32 ? 1 << args->lane_bits : kMaxThreads; // beyond a warp: one group
    return start_groups<Outputs>(args, qk_norm_reread_kernel<Outputs, T, kUnit>, threads, queue,
                                 err);
}

// kUnit holds vectors.
template <typename Outputs, typename T, int kUnit>
static enum roped_status launch_vectors(typename Outputs::args *args, struct roped_queue *queue,
                                        struct roped_error *err)
{
    int kind = angle_kind_of(&args->rotate.angles, rotate_unit<T, kUnit>::kPairs);
    int64_t units = args->rotate.rotating_units + args->rotate.rest_units;
    if (units > kMostUnits * 32)
        return launch_reread<Outputs, T, kUnit>(args, queue, err);
    if (kind == kAnglesAny || !args->weights_in_kind || units > 32)
        return launch_units<Outputs, T, kUnit>(args, queue, err);
    if (kind == kAnglesTable)
        return launch_unit<Outputs, T, kUnit, kAnglesTable>(args, queue, err);
    return launch_unit<Outputs, T, kUnit, kAnglesComputed>(args, queue, err);
}

// What every form with such heads is; its kernels' Outputs are the form itself.
struct qk_form : rotary_form {
    template <typename Form, typename T, int kUnit>
    static enum roped_status launch(typename Form::args *args, struct roped_queue *queue,
                                    struct roped_error *err)
    {
        if constexpr (kUnit == kUnitScalar)
            return launch_reread<Form, T, kUnit>(args, queue, err);
        else
            return launch_vectors<Form, T, kUnit>(args, queue, err);
    }
};

static inline void set_qk_args(struct qk_args *args, const struct roped_call *call)
{
    const struct heads_plan *plan = heads_plan_of(call);
    const struct heads_part *q = &plan->part[0];
    for (int i = 0; i < 2; i++) { // q, k
        args->weight[i] = call->in[q->weight + i].data;
        args->to[i] = bytes_to_output(call, i);
    }
    args->weight_dtype = plan->norm.weight_dtype;
    args->weights_in_kind = plan->norm.weight_dtype == ROPED_NO_DTYPE ||
                            plan->norm.weight_dtype == (int32_t)call->in[q->from].dtype;
    args->rounds_product = plan->norm.rounds_product;
    args->eps = plan->norm.eps;
    args->weight_bias = plan->norm.weight_bias;
    args->exact_inverse_width = 1.0 / (double)q->width;
    args->inverse_width = (float)args->exact_inverse_width;
}

static inline bool heads_take_vectors(const struct qk_args *args)
{
    return args->to[0] % 16 == 0 && args->to[1] % 16 == 0 && is_aligned(args->weight[0], 16) &&
           is_aligned(args->weight[1], 16);
}
