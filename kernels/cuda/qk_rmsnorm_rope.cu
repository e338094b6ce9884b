// qk_rmsnorm_rope.cu - qk_rmsnorm_rope on a CUDA device. Every byte is read once and written once.
#include "cuda/qk_norm_launch.cuh"

// q and k in memory of their own.
struct qk_outputs : plain_outputs, qk_form {
    using args = qk_args;
    static constexpr int kWalkFrom = 256;
    template <typename F>
    static void with_common(const qk_args *, const F &take)
    {
        take(type_tag<qk_outputs>{});
    }
    static int64_t more_columns(const qk_args *, int64_t, int64_t, int64_t)
    {
        return 0;
    }
    static void set(qk_args *args, const struct roped_call *call)
    {
        set_qk_args(args, call);
    }
    template <typename T>
    static bool use_vectors(const qk_args *args, const struct roped_queue *)
    {
        return heads_take_vectors(args);
    }
};

extern "C" enum roped_status roped_cuda_qk_rmsnorm_rope(const struct roped_call *call,
                                                        struct roped_queue *queue,
                                                        struct roped_error *err)
{
    return launch_rotary<qk_outputs>(call, queue, err);
}
