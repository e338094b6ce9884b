// rope.cu - rope on a CUDA device.
//
//     neox   y[i] = x[i] cos - x[i + r/2] sin     y[i + r/2] = x[i + r/2] cos + x[i] sin
//     gptj   the same for the neighbours 2i and 2i + 1
//
// One pass: every byte of q and k is read once and written once; device/rotate.cuh has the mapping
// of threads to pairs. The angles of a token (8 r bytes of a table, or 4 r bytes of frequencies
// that stay in the cache) are read once per thread and serve all heads that it walks.
#include "cuda/rotate_launch.cuh"

struct rope_args {
    int64_t to[2]; // bytes from an input to its output
    struct rotate_args rotate;
    int64_t more[2]; // bytes that tokens of an output are further apart than those of its input
};

// Writes rotated values in the type of the input, and the rest bit for bit. kSteps: outputs whose
// tokens are not as far apart as those of their inputs, such as packed ones of slices of a row.
template <typename T, bool kSteps>
struct same_type_sink {
    static constexpr bool kMaySkip = false;
    const rope_args &args;

    __device__ __forceinline__ char *head(const char *from, uint32_t token, int head) const
    {
        bool is_q = head < args.rotate.q_heads;
        char *to = const_cast<char *>(from) + (is_q ? args.to[0] : args.to[1]);
        if constexpr (kSteps)
            to += (int64_t)token * (is_q ? args.more[0] : args.more[1]);
        return to;
    }
    template <int n>
    __device__ __forceinline__ void rotated(char *to, int, int at, const float (&x)[n]) const
    {
        store_floats(reinterpret_cast<T *>(to) + at, x);
    }
    template <typename, typename Word>
    __device__ __forceinline__ void rest(char *to, int, int at, const Word &word) const
    {
        *reinterpret_cast<Word *>(reinterpret_cast<T *>(to) + at) = word;
    }
};

// ------------------------------------------------------------------------------------ kernels

template <typename T, int kUnit, int kAngles, int kRows, bool kSteps>
__global__ void __launch_bounds__(ROTATE_THREADS)
    rope_kernel(const __grid_constant__ struct rope_args args)
{
    let_next_start();
    same_type_sink<T, kSteps> sink = {args};
    rotate_block<T, kUnit, kAngles, kRows>(args.rotate, sink, blockIdx.x);
}

template <bool kSteps>
struct rope_family {
    template <typename T, int kUnit, int kAngles, int kRows>
    static constexpr kernel_fn<rope_args> *kernel = rope_kernel<T, kUnit, kAngles, kRows, kSteps>;
};

// ------------------------------------------------------------------------------------ launchers

// 2 bytes moved per byte of q and k. Outputs with steps of their own are rarer than large: they
// have no kernels for four rows.
template <typename T, int kUnit>
static enum roped_status launch_units(struct rope_args *args, struct roped_queue *queue,
                                      struct roped_error *err)
{
    struct rotate_args *rotate = &args->rotate;
    int64_t n_units = units_of(rotate);
    int kind = angle_kind_of(&rotate->angles, rotate_unit<T, kUnit>::kPairs);
    bool is_scalar = kUnit == kUnitScalar || kind == kAnglesAny;
    bool has_steps = args->more[0] != 0 || args->more[1] != 0;
    int waves = kind == kAnglesTable ? ROTATE_TABLE_WAVES : ROTATE_WAVES;
    int rows = is_scalar || has_steps || rotate->n_heads < ROTATE_ROWS
                   ? 1
                   : rotate_rows(n_units, waves, queue->n_multiprocessors);
    int threads = block_threads(ceil_div(n_units, rows), queue->n_multiprocessors);
    struct rotate_shape shape = rotate_shape_of(rotate, rows, threads);
    constexpr int kMany = kUnit == kUnitNeoxWide ? 1 : ROTATE_ROWS;
    auto *kernel = has_steps ? rotate_kernel_of<rope_family<true>, T, kUnit, 1>(kind, 1)
                             : rotate_kernel_of<rope_family<false>, T, kUnit, kMany>(kind, rows);
    return launch_heads(args, kernel, &shape, 0, queue, err);
}

template <typename T>
static enum roped_status launch_type(struct rope_args *args, int64_t head_dim,
                                     struct roped_queue *queue, struct roped_error *err)
{
    struct rotate_args *rotate = &args->rotate;
    bool has_vectors = can_use_vectors(rotate, head_dim, kVecOf<T>) && args->to[0] % 16 == 0 &&
                       args->to[1] % 16 == 0 && args->more[0] % 16 == 0 && args->more[1] % 16 == 0;
    return with_units(rotate, has_vectors, kVecOf<T>, [&](auto unit) {
        constexpr int kUnit = decltype(unit)::value;
        // one wide head: nobody shares a token's angles, and whole cache lines per warp are faster
        if constexpr (kUnit == kUnitNeox)
            if (rotate->n_heads == 1 && rotate->angles.n_pairs % kVecOf<T> == 0) {
                rotate->rotating_units /= 2;
                return launch_units<T, kUnitNeoxWide>(args, queue, err);
            }
        return launch_units<T, kUnit>(args, queue, err);
    });
}

static struct rope_args args_of(const struct roped_call *call)
{
    const struct rope_plan *plan = reinterpret_cast<const struct rope_plan *>(call->plan);
    const int64_t heads[2] = {plan->q_heads, plan->k_heads};
    const struct roped_tensor *q = &call->in[ROPE_Q], *k = &call->in[ROPE_K];
    void *const to[2] = {call->out[ROPE_Q_OUT].data, call->out[ROPE_K_OUT].data};
    struct rope_args args = {};
    struct rotate_args *rotate = &args.rotate;
    rotate->angles = angle_args_of(call, &plan->rotary, ROPE_POSITIONS);
    set_rotate_tensors(rotate, q, heads, plan->head_dim);
    args.to[0] = (int64_t)((uintptr_t)to[0] - (uintptr_t)q->data);
    args.to[1] = (int64_t)((uintptr_t)to[1] - (uintptr_t)k->data);
    for (int i = 0; i < 2; i++) // q, k
        args.more[i] =
            (int64_t)token_bytes_of(&call->out[ROPE_Q_OUT + i], heads[i] * plan->head_dim) -
            rotate->token_bytes[i];
    rotate->rotary_offset = (int32_t)plan->rotary_offset;
    if (q->data == to[0] && k->data == to[1]) // without k both pointers are NULL
        rotate->rest_units = 0;
    return args;
}

extern "C" enum roped_status roped_cuda_rope(const struct roped_call *call,
                                             struct roped_queue *queue, struct roped_error *err)
{
    const struct rope_plan *plan = reinterpret_cast<const struct rope_plan *>(call->plan);
    int64_t n_heads = plan->q_heads + plan->k_heads;
    enum roped_status status =
        check_rotate_limits(call, "q", plan->rotary.n_tokens, n_heads, plan->head_dim, err);
    if (status || plan->rotary.n_tokens == 0 || n_heads == 0)
        return status;
    struct rope_args args = args_of(call);
    return with_float_type(call->in[ROPE_Q].dtype, [&](auto tag) {
        return launch_type<typename decltype(tag)::type>(&args, plan->head_dim, queue, err);
    });
}
