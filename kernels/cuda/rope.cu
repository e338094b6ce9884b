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

// Writes rotated values in the type of the input, and the rest bit for bit. kStrides: outputs whose
// tokens are not as far apart as those of their inputs, such as packed ones of slices of a row.
template <typename T, bool kStrides>
struct same_type_sink {
    static constexpr bool kMaySkip = false;
    const rope_args &args;

    __device__ __forceinline__ char *head(const char *from, uint32_t token, int head) const
    {
        bool is_q = head < args.rotate.q_heads;
        char *to = const_cast<char *>(from) + (is_q ? args.to[0] : args.to[1]);
        if constexpr (kStrides)
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

template <bool kStrides>
struct rope_kernels : rotary_form {
    using args = rope_args;
    template <typename T, int kUnit, int kAngles, int kRows>
    static __device__ __forceinline__ void rotate(const rope_args &args)
    {
        same_type_sink<T, kStrides> sink = {args};
        rotate_block<T, kUnit, kAngles, kRows>(args.rotate, sink, blockIdx.x);
    }
};

static bool has_strides(const rope_args *args)
{
    return args->more[0] != 0 || args->more[1] != 0;
}

// 2 bytes moved per byte of q and k. Outputs with strides of their own are rarer than large: they
// have no kernels for four rows.
struct rope_form : rope_kernels<false> {
    static constexpr int kTableWaves = ROTATE_TABLE_WAVES;
    static constexpr bool kHasStrides = true;
    static constexpr int kWideRows = 1;

    static void set(rope_args *args, const struct roped_call *call)
    {
        const struct heads_part *part = heads_plan_of(call)->part;
        struct rotate_args *rotate = &args->rotate;
        for (int i = 0; i < heads_plan_of(call)->n_parts; i++) { // q, k
            args->to[i] = bytes_to_output(call, i);
            args->more[i] =
                (int64_t)token_bytes_of(&call->out[part[i].to], part[i].heads * part[i].width) -
                rotate->token_bytes[i];
        }
        if (args->to[0] == 0 && args->to[1] == 0)
            rotate->rest_units = 0;
    }
    template <typename T>
    static bool use_vectors(const rope_args *args, const struct roped_queue *)
    {
        return args->to[0] % 16 == 0 && args->to[1] % 16 == 0 && args->more[0] % 16 == 0 &&
               args->more[1] % 16 == 0;
    }
    // one wide head: nobody shares a token's angles, and whole cache lines per warp are faster
    template <typename T>
    static bool is_wide(const rope_args *args, const struct roped_queue *)
    {
        return args->rotate.n_heads == 1;
    }
    static bool walks(const rope_args *args)
    {
        return !has_strides(args);
    }
    template <typename T, int kUnit, int kMany>
    static kernel_fn<rope_args> *kernel(const rope_args *args, int kind, int rows)
    {
        return has_strides(args)
                   ? rotary_kernel_of<rope_kernels<true>, T, kUnit, 1>(kind, 1)
                   : rotary_kernel_of<rope_kernels<false>, T, kUnit, kMany>(kind, rows);
    }
};

extern "C" enum roped_status roped_cuda_rope(const struct roped_call *call,
                                             struct roped_queue *queue, struct roped_error *err)
{
    return launch_rotary<rope_form>(call, queue, err);
}
