// rope.cu - rope on a CUDA device.
//
//     neox   y[i] = x[i] cos - x[i + r/2] sin     y[i + r/2] = x[i + r/2] cos + x[i] sin
//     gptj   the same for the neighbours 2i and 2i + 1
//
// One pass: every byte of q and k is read once and written once; device/rotate.cuh has the mapping
// of threads to pairs. The angles of a token (8 r bytes of a table, or 4 r bytes of frequencies
// that stay in the cache) are read once per thread and serve all heads that it walks.
#include "cuda/device/stream.cuh"
#include "cuda/rotate_launch.cuh"

struct rope_args {
    struct rotate_args rotate;
    void *to[2];
};

// Writes rotated values in the type of the input, and the rest bit for bit.
template <typename T, int kUnit>
struct same_type_sink {
    using unit = rotate_unit<T, kUnit>;
    void *const (&to)[2];

    __device__ __forceinline__ void rest(bool is_k, int64_t at,
                                         const typename unit::word &word) const
    {
        T *out = static_cast<T *>(is_k ? to[1] : to[0]) + at;
        *reinterpret_cast<typename unit::word *>(out) = word;
    }
    __device__ __forceinline__ void rotated(bool is_k, int64_t at,
                                            const float (&x)[unit::kVec]) const
    {
        if constexpr (unit::kIsScalar)
            rest(is_k, at, element<T>::from_float(x[0]));
        else
            rest(is_k, at, pack<T>(x));
    }
};

// ------------------------------------------------------------------------------------ kernels

template <typename T, int kUnit, int kAngles, int kRows, bool kIsOneHead>
__global__ void __launch_bounds__(ROTATE_THREADS, ROTATE_MIN_BLOCKS)
    rope_kernel(const __grid_constant__ struct rope_args args)
{
    enter_stream();
    same_type_sink<T, kUnit> sink = {args.to};
    rotate_block<T, kUnit, kAngles, kRows, kIsOneHead>(args.rotate, sink, blockIdx.x);
}

// ------------------------------------------------------------------------------------ launchers

// One launch, cut so that small work reaches every multiprocessor (one row per thread, blocks
// down to 64 threads) and large work keeps eight loads per thread in flight.
template <int kUnit>
static struct rotate_shape choose_shape(const struct rotate_args *rotate, int units,
                                        bool is_one_head, const struct roped_queue *queue)
{
    int n_multiprocessors = queue->n_multiprocessors;
    int64_t n_heads = rotate->heads[0] + rotate->heads[1];
    int64_t n_tokens = rotate->angles.rotary.n_tokens;
    int rows = is_one_head ? rows_per_thread(1, units, n_tokens, 4, n_multiprocessors)
                           : rows_per_thread(n_tokens, units, n_heads, kRotateRows<kUnit>,
                                             n_multiprocessors);
    int64_t n_threads = units * ceil_div(n_tokens * n_heads, rows);
    int threads = block_threads(n_threads, n_multiprocessors);
    if (is_one_head)
        return shape_tokens(n_tokens, units, rows, threads);
    return shape_heads(n_tokens, units, n_heads, rows, threads);
}

template <typename T, int kUnit, int kAngles>
static kernel_fn<rope_args> *kernel_of(bool is_one_head, int rows)
{
    constexpr int kMany = kRotateRows<kUnit>;
    if (is_one_head)
        return rope_kernel<T, kUnit, kAngles, 4, true>;
    if (rows == 1) // decode: less code to fetch
        return rope_kernel<T, kUnit, kAngles, 1, false>;
    return rope_kernel<T, kUnit, kAngles, kMany, false>;
}

template <typename T, int kUnit>
static enum roped_status launch_units(struct rope_args *args, struct roped_queue *queue,
                                      struct roped_error *err)
{
    using unit = rotate_unit<T, kUnit>;
    struct rotate_args *rotate = &args->rotate;
    int kind = kUnit == kUnitScalar ? kAnglesAny : angle_kind_of(&rotate->angles, unit::kPairs);
    int units = rotate->rotating_units + (int)ceil_div(rotate->rest_vectors, unit::kVectors);
    // a thread that walks tokens finds a position for each: not by searching sequences
    bool is_one_head = rotate->heads[0] + rotate->heads[1] == 1 && kind != kAnglesAny &&
                       !is_ragged(&rotate->angles.rotary);
    struct rotate_shape shape = choose_shape<kUnit>(rotate, units, is_one_head, queue);
    kernel_fn<rope_args> *kernel = rope_kernel<T, kUnit, kAnglesAny, kRotateRows<kUnit>, false>;
    rotate->token_rows = shape.rows;
    if constexpr (kUnit != kUnitScalar) {
        if (kind == kAnglesTable)
            kernel = kernel_of<T, kUnit, kAnglesTable>(is_one_head, shape.rows);
        else if (kind == kAnglesComputed)
            kernel = kernel_of<T, kUnit, kAnglesComputed>(is_one_head, shape.rows);
    }
    return start(queue, kernel, shape.block, shape.n_columns, shape.grid, *args, err);
}

template <typename T>
static enum roped_status launch_type(struct rope_args *args, struct roped_queue *queue,
                                     struct roped_error *err)
{
    struct rotate_args *rotate = &args->rotate;
    const struct rope_rotary *rotary = &rotate->angles.rotary;
    bool has_vectors =
        can_use_vectors(rotary, rotate->head_dim, rotate->rotary_offset, kVecOf<T>) &&
        is_aligned(rotate->from[0], 16) && is_aligned(rotate->from[1], 16) &&
        is_aligned(args->to[0], 16) && is_aligned(args->to[1], 16);
    int64_t rest = rotate->rest_vectors;
    if (!has_vectors) {
        rotate->rotating_units = (int32_t)rotary->n_pairs;
        return launch_units<T, kUnitScalar>(args, queue, err);
    }
    rotate->rest_vectors = (int32_t)(rest / kVecOf<T>);
    if (rotary->style == ROPE_GPTJ) {
        rotate->rotating_units = (int32_t)(2 * rotary->n_pairs / kVecOf<T>);
        return launch_units<T, kUnitGptj>(args, queue, err);
    }
    rotate->rotating_units = (int32_t)(rotary->n_pairs / kVecOf<T>);
    return launch_units<T, kUnitNeox>(args, queue, err);
}

// rest_vectors starts as a count of elements; launch_type knows the width of a vector.
static struct rope_args args_of(const struct roped_call *call)
{
    const struct rope_plan *plan = reinterpret_cast<const struct rope_plan *>(call->plan);
    struct rope_args args = {};
    args.rotate.angles = angle_args_of(call, &plan->rotary, ROPE_POSITIONS);
    args.rotate.from[0] = call->in[ROPE_Q].data;
    args.rotate.from[1] = call->in[ROPE_K].data;
    args.to[0] = call->out[ROPE_Q_OUT].data;
    args.to[1] = call->out[ROPE_K_OUT].data;
    args.rotate.heads[0] = plan->q_heads;
    args.rotate.heads[1] = plan->k_heads;
    args.rotate.head_dim = (int32_t)plan->head_dim;
    args.rotate.rotary_offset = (int32_t)plan->rotary_offset;
    // without k both pointers are NULL and equal
    if (args.rotate.from[0] != args.to[0] || args.rotate.from[1] != args.to[1])
        args.rotate.rest_vectors = (int32_t)(plan->head_dim - 2 * plan->rotary.n_pairs);
    return args;
}

extern "C" enum roped_status roped_cuda_rope(const struct roped_call *call,
                                             struct roped_queue *queue, struct roped_error *err)
{
    const struct rope_plan *plan = reinterpret_cast<const struct rope_plan *>(call->plan);
    enum roped_status status = check_head_width("q", plan->head_dim, err);
    if (status || plan->rotary.n_tokens == 0 || plan->q_heads + plan->k_heads == 0)
        return status;
    struct rope_args args = args_of(call);
    return with_float_type(call->in[ROPE_Q].dtype, [&](auto tag) {
        return launch_type<typename decltype(tag)::type>(&args, queue, err);
    });
}
