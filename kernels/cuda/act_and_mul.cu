// act_and_mul.cu - act_and_mul on CUDA: 16 bytes of y per thread, from 16 bytes of gate and 16 of
// up, or from 32 of pairs; shifted where addresses, strides or h leave no such packets, and one
// element where those are pairs or few.
#include "cuda/act_packets.cuh"

#include <math.h>

struct act_args {
    struct act_operands of;
    void *y;
    int64_t y_stride; // elements to the next row
    struct act_rows rows;
    float limit, alpha, beta; // a beta of -0 leaves every number as it is
    int32_t activation;
    int32_t limits, rounds; // bool
};

template <typename T>
static __device__ __forceinline__ float rounded(float x)
{
    return element<T>::to_float(element<T>::from_float(x));
}

// gelu_new of Hugging Face, each step of which is rounded.
template <typename T>
static __device__ __forceinline__ float gelu_in_steps(float x)
{
    float cube = rounded<T>(rounded<T>(__fmul_rn(x, x)) * x);
    float z = rounded<T>(__fadd_rn(x, rounded<T>(__fmul_rn(0.044715f, cube))));
    float t = rounded<T>(tanhf(rounded<T>(__fmul_rn(0x1.988454p-1f, z))));
    return rounded<T>(rounded<T>(0.5f * x) * rounded<T>(1.0f + t));
}

// x * sigmoid(alpha * x), the same way.
template <typename T>
static __device__ __forceinline__ float sigmoid_in_steps(float x, float alpha)
{
    return rounded<T>(x * rounded<T>(sigmoid(rounded<T>(__fmul_rn(alpha, x)))));
}

template <typename T, int n>
static __device__ __forceinline__ void activate_in_steps(const act_args &args, float (&gate)[n],
                                                         float (&up)[n])
{
    bool is_gelu = args.activation == ACT_GELU_TANH;
#pragma unroll
    for (int j = 0; j < n; j++) {
        gate[j] = is_gelu ? gelu_in_steps<T>(gate[j]) : sigmoid_in_steps<T>(gate[j], args.alpha);
        up[j] = rounded<T>(up[j] + args.beta);
    }
}

// kSteps: rounding=steps, rare, and a kernel of its own.
template <typename T, bool kIsPairs, act_access kAccess, bool kSteps>
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
    if (args.limits) {
#pragma unroll
        for (int j = 0; j < kVec; j++) {
            gate[j] = gate[j] > args.limit ? args.limit : gate[j];
            up[j] = up[j] > args.limit ? args.limit : up[j];
            up[j] = up[j] < -args.limit ? -args.limit : up[j];
        }
    }
    if constexpr (kSteps)
        activate_in_steps<T>(args, gate, up);
    else
        activate(args.activation, args.alpha, gate);
    if (!kSteps && args.rounds) {
#pragma unroll
        for (int j = 0; j < kVec; j++)
            gate[j] = rounded<T>(gate[j]);
    }
    if (kIsPairs || args.of.up) {
#pragma unroll
        for (int j = 0; j < kVec; j++)
            gate[j] *= kSteps ? up[j] : up[j] + args.beta;
    }
    store_packet<T, kAccess, kVec>(to, place, gate);
}

template <typename T, bool kIsPairs, act_access kAccess>
static kernel_fn<act_args> *kernel_of(const struct act_and_mul_plan *plan)
{
    constexpr bool kMayStep = sizeof(T) == 2;
    return plan->steps ? act_kernel<T, kIsPairs, kAccess, kMayStep>
                       : act_kernel<T, kIsPairs, kAccess, false>;
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
        kernel_fn<act_args> *kernel = kernel_of<T, false, access>(plan);
        if constexpr (access != kActShifted)
            kernel = plan->interleaved ? kernel_of<T, true, access>(plan) : kernel;
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
    args.limit = plan->limit;
    args.limits = plan->limit < INFINITY;
    args.alpha = plan->alpha;
    args.beta = plan->beta == 0 ? -0.0f : plan->beta;
    args.activation = plan->activation;
    args.rounds = plan->rounds;
    return with_float_type(y->dtype, [&](auto tag) {
        return launch<typename decltype(tag)::type>(args, call, queue, err);
    });
}
