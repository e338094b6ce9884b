// qk_rmsnorm_rope.cu - qk_rmsnorm_rope on a CUDA device. Every byte is read once and written once.
#include "cuda/qk_norm_launch.cuh"
#include "ops/qk_rmsnorm_rope.h"

// q and k in memory of their own.
struct qk_outputs : plain_outputs {
    static constexpr int kWalkFrom = 256;
    template <typename F>
    static void with_common(const qk_args *, const F &take)
    {
        take(type_tag<qk_outputs>{});
    }
    template <typename T>
    static bool use_vectors(const qk_args *, const struct roped_queue *)
    {
        return true;
    }
    static int64_t more_columns(const qk_args *, int64_t, int64_t, int64_t)
    {
        return 0;
    }
};

static struct qk_args args_of(const struct roped_call *call)
{
    const struct qk_rmsnorm_rope_plan *plan =
        reinterpret_cast<const struct qk_rmsnorm_rope_plan *>(call->plan);
    struct qk_args args = {};
    set_qk_args(&args, call, &plan->rope, &plan->norm, QK_RMSNORM_ROPE_Q_WEIGHT,
                QK_RMSNORM_ROPE_POSITIONS);
    for (int i = 0; i < 2; i++) // q, k
        args.to[i] = (int64_t)((uintptr_t)call->out[QK_RMSNORM_ROPE_Q_OUT + i].data -
                               (uintptr_t)call->in[QK_RMSNORM_ROPE_Q + i].data);
    return args;
}

extern "C" enum roped_status roped_cuda_qk_rmsnorm_rope(const struct roped_call *call,
                                                        struct roped_queue *queue,
                                                        struct roped_error *err)
{
    const struct qk_rmsnorm_rope_plan *plan =
        reinterpret_cast<const struct qk_rmsnorm_rope_plan *>(call->plan);
    const struct rope_plan *rope = &plan->rope;
    int64_t n_heads = rope->q_heads + rope->k_heads;
    enum roped_status status =
        check_rotate_limits(call, "q", rope->rotary.n_tokens, n_heads, rope->head_dim, err);
    if (status || rope->rotary.n_tokens == 0 || n_heads == 0)
        return status;
    return with_one_step(call, queue, err, [&](const struct roped_call *settled) {
        struct qk_args args = args_of(settled);
        return with_float_type(call->in[QK_RMSNORM_ROPE_Q].dtype, [&](auto tag) {
            return launch_type<qk_outputs, typename decltype(tag)::type>(&args, rope->head_dim,
                                                                         queue, err);
        });
    });
}
