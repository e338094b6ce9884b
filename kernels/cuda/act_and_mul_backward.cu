// act_and_mul_backward.cu - gradients of act_and_mul on CUDA: a packet of each tensor per thread,
// as in act_and_mul.cu; every tensor is read or written once.
extern "C" {
#include "ops/act_and_mul_backward.h"
}

#include "cuda/act_packets.cuh"

#include <math.h>

struct act_gradient_args {
    struct act_operands of, grad;
    void *grad_y;
    int64_t grad_y_stride; // elements to the next row
    const char *grad_y_end;
    struct act_rows rows;
    float limit, alpha;
    float of_up, beta; // up * of_up + beta: 1 where there is no up; a beta of -0 changes no number
    int32_t activation;
    int32_t limits, rounds; // bool
};

// Numbers beyond the limit, or at it, become the limit.
template <int kVec>
__device__ __forceinline__ uint32_t limit_all(float limit, bool is_signed, float (&x)[kVec])
{
    uint32_t beyond = 0;
#pragma unroll
    for (int j = 0; j < kVec; j++) {
        bool is_beyond = (is_signed ? fabsf(x[j]) : x[j]) >= limit;
        x[j] = is_beyond ? is_signed ? copysignf(limit, x[j]) : limit : x[j];
        beyond |= (uint32_t)is_beyond << j;
    }
    return beyond;
}

template <typename T, int kVec>
__device__ __forceinline__ void round_all(float (&x)[kVec])
{
#pragma unroll
    for (int j = 0; j < kVec; j++)
        x[j] = element<T>::to_float(element<T>::from_float(x[j]));
}

// gate becomes its gradient, and up too. What hardly any call asks for is behind branches of all.
template <typename T, int kVec>
__device__ __forceinline__ void descend(const act_gradient_args &args, const float (&g)[kVec],
                                        float (&gate)[kVec], float (&up)[kVec])
{
    uint32_t gates_beyond = 0, ups_beyond = 0;
    float slope[kVec], to_act[kVec], of_all = 0.0f; // NaN where a gradient is, or beyond all
    if (args.limits) {
        gates_beyond = limit_all(args.limit, false, gate);
        ups_beyond = limit_all(args.limit, true, up);
    }
    differentiate(args.activation, args.alpha, gate, slope);
#pragma unroll
    for (int j = 0; j < kVec; j++)
        to_act[j] = g[j] * fmaf(up[j], args.of_up, args.beta);
    if (sizeof(T) == 2 && args.rounds) {
        round_all<T>(to_act);
        round_all<T>(gate);
    }
#pragma unroll
    for (int j = 0; j < kVec; j++) {
        up[j] = g[j] * gate[j];
        gate[j] = to_act[j] * slope[j];
        of_all = fmaf(gate[j], 0.0f, of_all);
    }
    if (of_all != 0.0f) {
#pragma unroll
        for (int j = 0; j < kVec; j++) // anything times a slope of 0 is 0
            gate[j] = isnan(gate[j]) && slope[j] == 0.0f ? 0.0f : gate[j];
    }
    if (args.limits) {
#pragma unroll
        for (int j = 0; j < kVec; j++) {
            gate[j] = gates_beyond >> j & 1 ? 0.0f : gate[j];
            up[j] = ups_beyond >> j & 1 ? 0.0f : up[j];
        }
    }
}

// Blocks that find room on a multiprocessor: by 32 registers, or 48.
template <typename T, act_access kAccess>
constexpr int kBlocksAtOnce = sizeof(T) == 4 && kAccess != kActShifted ? 16 : 10;

template <typename T, bool kIsPairs, act_access kAccess>
static __global__ void __launch_bounds__(kActThreads, (kBlocksAtOnce<T, kAccess>))
    act_gradient_kernel(const __grid_constant__ struct act_gradient_args args)
{
    constexpr int kVec = kActVec<T, kAccess>;
    let_next_start();
    const act_place<kVec> place(args.rows);
    const act_addresses<T, kIsPairs, kVec> at(args.of, place), to(args.grad, place);
    const T *from = static_cast<T *>(args.grad_y) + place.row * args.grad_y_stride + place.column;
    if (kAccess != kActShifted && place.left == 0)
        return;
    if (kAccess == kActSingle) // a small call: what is left of addresses would cost behind the wait
        finish_before_wait(at.gate, at.up, to.gate, to.up, from);
    else
        finish_addresses(at.gate, at.up, to.gate, to.up, from);
    wait_for_previous();
    float g[kVec], gate[kVec], up[kVec] = {};
    if constexpr (kAccess == kActShifted) {
        shifted_vector<(int)sizeof(T)> of_g;
        of_g.start(from, place.n() * (int)sizeof(T), args.grad_y_end);
        load_operands<T, kIsPairs, kAccess, kVec>(args.of, at, place.n(), gate, up);
        unpack<T>(of_g.finish(), g);
    } else {
        auto of_g = load_packet<T, kAccess, kVec>(from, act_policy<kAccess>());
        load_operands<T, kIsPairs, kAccess, kVec>(args.of, at, place.n(), gate, up);
        packet<T, kVec>::widen(of_g, g);
    }
    bool has_up = kIsPairs || args.of.up;
    descend<T>(args, g, gate, up);
    store_operands<T, kIsPairs, kAccess, kVec>(has_up, to, place, gate, up);
}

template <typename T>
static enum roped_status launch(struct act_gradient_args args, const struct roped_call *call,
                                struct roped_queue *queue, struct roped_error *err)
{
    const struct act_and_mul_plan *plan = (const struct act_and_mul_plan *)call->plan;
    args.of = act_operands_of<T>(plan, &call->in[ACT_BACKWARD_X], &call->in[ACT_BACKWARD_GATE],
                                 &call->in[ACT_BACKWARD_UP]);
    args.grad =
        act_operands_of<T>(plan, &call->out[ACT_BACKWARD_GRAD_X],
                           &call->out[ACT_BACKWARD_GRAD_GATE], &call->out[ACT_BACKWARD_GRAD_UP]);
    args.grad_y_end = act_end<T>(args.grad_y, args.grad_y_stride, plan->width, plan);
    bool has = has_packets<T>(plan, args.of) && has_packets<T>(plan, args.grad) &&
               has_packets<T>(plan, args.grad_y, args.grad_y_stride);
    return with_access(access_of<T>(call, has, queue), [&](auto access) {
        kernel_fn<act_gradient_args> *kernel = plan->interleaved
                                                   ? act_gradient_kernel<T, true, access>
                                                   : act_gradient_kernel<T, false, access>;
        auto moved = [&](int64_t row) {
            struct act_gradient_args further = args;
            further.of = act_moved<T>(args.of, row);
            further.grad = act_moved<T>(args.grad, row);
            further.grad_y = static_cast<T *>(args.grad_y) + row * args.grad_y_stride;
            return further;
        };
        return launch_rows<kActVec<T, access>>(queue, kernel, plan, "grad_y", moved, err);
    });
}

extern "C" enum roped_status roped_cuda_act_and_mul_backward(const struct roped_call *call,
                                                             struct roped_queue *queue,
                                                             struct roped_error *err)
{
    const struct act_and_mul_plan *plan = (const struct act_and_mul_plan *)call->plan;
    const struct roped_tensor *grad_y = &call->in[ACT_BACKWARD_GRAD_Y];
    if (plan->n_rows == 0)
        return ROPED_OK;
    struct act_gradient_args args = {};
    args.grad_y = grad_y->data;
    args.grad_y_stride = row_stride(grad_y, plan->width);
    args.limit = plan->limit;
    args.limits = plan->limit < INFINITY;
    args.alpha = plan->alpha;
    args.of_up = plan->gated;
    args.beta = !plan->gated ? 1.0f : plan->beta == 0 ? -0.0f : plan->beta;
    args.activation = plan->activation;
    args.rounds = plan->rounds;
    return with_float_type(grad_y->dtype, [&](auto tag) {
        return launch<typename decltype(tag)::type>(args, call, queue, err);
    });
}
