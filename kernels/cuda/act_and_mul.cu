// act_and_mul.cu - act_and_mul on CUDA: 16 bytes of y per thread, from 16 bytes of gate and 16 of
// up, or from 32 of pairs; shifted where addresses, strides or h leave no such packets, and one
// element where those are pairs or few.
#include "cuda/act_packets.cuh"

struct act_args {
    struct act_operands of;
    void *y;
    int64_t y_stride; // elements to the next row
    struct act_rows rows;
    struct act_rule rule;
    struct xielu xielu;
    int32_t steps; // bool, of xielu
};

// gelu_fast of Hugging Face, each step of which is rounded.
template <typename T>
__device__ __forceinline__ float gelu_fast_in_steps(float x)
{
    float square = rounded<T>(rounded<T>(__fmul_rn(0.044715f, x)) * x);
    float z = rounded<T>(rounded<T>(__fmul_rn(0x1.988454p-1f, x)) * rounded<T>(1.0f + square));
    float t = rounded<T>(tanhf(z));
    return rounded<T>(rounded<T>(0.5f * x) * rounded<T>(1.0f + t));
}

// The terms do not take each other's digits. NaN stays.
__device__ __forceinline__ float xielu_once(float x, const struct xielu &by)
{
    float e = expm1f(x > by.eps ? by.eps : x);
    float below = fmaf(by.alpha_n, e, (by.slope - by.alpha_n) * x);
    return x > 0.0f ? x * fmaf(by.alpha_p, x, by.slope) : below;
}

// XIELUActivation of Hugging Face, whose numbers are of type T, too.
template <typename T>
__device__ __forceinline__ float xielu_in_steps(float x, const struct xielu &by)
{
    float eps = rounded<T>(by.eps), line = rounded<T>(__fmul_rn(rounded<T>(by.slope), x));
    float square = rounded<T>(rounded<T>(__fmul_rn(rounded<T>(by.alpha_p), x)) * x);
    float e = rounded<T>(expm1f(x > eps ? eps : x));
    float below = rounded<T>(rounded<T>(e - x) * rounded<T>(by.alpha_n));
    return rounded<T>((x > 0.0f ? square : below) + line);
}

template <typename T>
__device__ __forceinline__ float activate_rarely(const act_args &args, float x)
{
    if (args.rule.activation == ACT_GELU_FAST)
        return gelu_fast_in_steps<T>(x);
    return args.steps ? xielu_in_steps<T>(x, args.xielu) : xielu_once(x, args.xielu);
}

// Gates become results, of what hardly any call asks for.
template <typename T, int n>
__device__ __forceinline__ void act_rarely(const act_args &args, bool has_up, float (&gate)[n],
                                           const float (&up)[n])
{
    const float limit = args.rule.limit;
#pragma unroll
    for (int j = 0; j < n; j++) {
        float x = gate[j] > limit ? limit : gate[j], factor = up[j] > limit ? limit : up[j];
        gate[j] = activate_rarely<T>(args, x);
        if (has_up)
            gate[j] *= factor < -limit ? -limit : factor;
    }
}

// What becomes of a gate and an up: kernels of their own for what is rare.
enum act_kind {
    kActOnce,
    kActInSteps, // rounding=steps
    kActRarely   // gelu_fast by its steps, and xielu, which has no up
};

template <typename T, bool kIsPairs, act_access kAccess, act_kind kKind>
static __global__ void __launch_bounds__(kActThreads)
    act_kernel(const __grid_constant__ struct act_args args)
{
    constexpr int kVec = kActVec<T, kAccess>;
    let_next_start();
    const act_place<kVec> place(args.rows);
    const act_addresses<T, kIsPairs, kVec> at(args.of, place);
    T *to = static_cast<T *>(args.y) + place.row * args.y_stride + place.column;
    if (kAccess != kActShifted && place.left == 0)
        return;
    finish_before_wait(at.gate, at.up, to);
    wait_for_previous();
    float gate[kVec], up[kVec] = {};
    load_operands<T, kIsPairs, kAccess, kVec>(args.of, at, place.n(), gate, up);
    const bool has_up = kIsPairs || args.of.up;
    if constexpr (kKind == kActRarely)
        act_rarely<T>(args, has_up, gate, up);
    else
        act_of<T, kKind == kActInSteps>(args.rule, has_up, gate, up);
    store_packet<T, kAccess, kVec>(to, place, gate);
}

template <typename T, bool kIsPairs, act_access kAccess>
static kernel_fn<act_args> *kernel_of(const struct act_and_mul_plan *plan)
{
    constexpr bool kMayStep = sizeof(T) == 2, kMayBeRare = !kIsPairs || kMayStep;
    if constexpr (kMayBeRare)
        if (plan->activation == ACT_XIELU || plan->activation == ACT_GELU_FAST)
            return act_kernel<T, kIsPairs, kAccess, kActRarely>;
    if constexpr (kMayStep)
        if (plan->steps)
            return act_kernel<T, kIsPairs, kAccess, kActInSteps>;
    return act_kernel<T, kIsPairs, kAccess, kActOnce>;
}

template <typename T>
static enum roped_status launch(struct act_args args, const struct roped_call *call,
                                struct roped_queue *queue, struct roped_error *err)
{
    const struct act_and_mul_plan *plan = (const struct act_and_mul_plan *)call->plan;
    args.of = act_operands_of<T>(plan, &call->in[ACT_AND_MUL_X], &call->in[ACT_AND_MUL_GATE],
                                 &call->in[ACT_AND_MUL_UP]);
    bool has = has_packets<T>(plan, args.of) && has_packets<T>(plan, args.y, args.y_stride);
    return with_access(access_of<T>(call, has, queue), [&](auto access) {
        kernel_fn<act_args> *kernel = plan->interleaved ? kernel_of<T, true, access>(plan)
                                                        : kernel_of<T, false, access>(plan);
        auto moved = [&](int64_t row) {
            struct act_args further = args;
            further.of = act_moved<T>(args.of, row);
            further.y = static_cast<T *>(args.y) + row * args.y_stride;
            return further;
        };
        return launch_rows<kActVec<T, access>>(queue, kernel, plan, "y", moved, err);
    });
}

extern "C" enum roped_status roped_cuda_act_and_mul(const struct roped_call *call,
                                                    struct roped_queue *queue,
                                                    struct roped_error *err)
{
    const struct act_and_mul_plan *plan = (const struct act_and_mul_plan *)call->plan;
    const struct roped_tensor *y = &call->out[ACT_AND_MUL_Y];
    if (plan->n_rows == 0)
        return ROPED_OK;
    struct act_args args = {};
    args.y = y->data;
    args.y_stride = row_stride(y, plan->width);
    args.rule = act_rule_of(plan);
    args.xielu = plan->xielu;
    args.steps = plan->steps;
    return with_float_type(y->dtype, [&](auto tag) {
        return launch<typename decltype(tag)::type>(args, call, queue, err);
    });
}
