// act_and_mul.cu - act_and_mul on CUDA: 16 bytes of y per thread, from 16 bytes of gate and 16 of
// up, or from 32 of pairs; one element where addresses, strides or h leave no such packets.

extern "C" {
#include "ops/act_and_mul.h"
}

#include "cuda/device/activation.cuh"
#include "cuda/device/binary.cuh"
#include "cuda/device/stream.cuh"
#include "cuda/dispatch.cuh"

constexpr int kActThreads = 256;

struct act_args {
    const void *gate;
    const void *up; // NULL: y = act(gate)
    void *y;
    int64_t n_packets;                        // of all rows
    int64_t packets;                          // of a row
    int64_t gate_stride, up_stride, y_stride; // elements to the next row
    float limit, alpha, beta;
    int32_t activation;
    int32_t rounds; // bool
};

// Element 0 of a packet is at column of its row of y; of pairs it is at twice that.
template <typename T, int kVec, bool kIsPairs>
__device__ __forceinline__ void load_operands(const act_args &args, int64_t row, int64_t column,
                                              float (&gate)[kVec], float (&up)[kVec])
{
    using pack_of = packet<T, kVec>;
    const T *gates = static_cast<const T *>(args.gate) + row * args.gate_stride;
    if constexpr (kIsPairs) {
        float first[kVec], second[kVec];
        auto low = pack_of::load(gates + 2 * column);
        auto high = pack_of::load(gates + 2 * column + kVec);
        pack_of::widen(low, first);
        pack_of::widen(high, second);
        if constexpr (kVec == 1) {
            gate[0] = first[0];
            up[0] = second[0];
        } else {
#pragma unroll
            for (int i = 0; i < kVec / 2; i++) {
                gate[i] = first[2 * i];
                up[i] = first[2 * i + 1];
                gate[kVec / 2 + i] = second[2 * i];
                up[kVec / 2 + i] = second[2 * i + 1];
            }
        }
    } else {
        auto of_gate = pack_of::load(gates + column);
        if (args.up) {
            auto of_up =
                pack_of::load(static_cast<const T *>(args.up) + row * args.up_stride + column);
            pack_of::widen(of_up, up);
        }
        pack_of::widen(of_gate, gate);
    }
}

// A beta of 0 is not added: it would make a -0 a +0.
__device__ __forceinline__ float clamped_up(const act_args &args, float up)
{
    float most = up > args.limit ? args.limit : up;
    float both = most < -args.limit ? -args.limit : most;
    return args.beta == 0.0f ? both : both + args.beta;
}

template <typename T, int kVec, bool kIsPairs>
static __global__ void __launch_bounds__(kActThreads)
    act_kernel(const __grid_constant__ struct act_args args)
{
    let_next_start();
    int64_t i = (int64_t)blockIdx.x * kActThreads + threadIdx.x;
    int64_t row = i / args.packets, column = (i - row * args.packets) * kVec;
    wait_for_previous();
    if (i >= args.n_packets)
        return;
    float gate[kVec], up[kVec] = {};
    load_operands<T, kVec, kIsPairs>(args, row, column, gate, up);
#pragma unroll
    for (int j = 0; j < kVec; j++) {
        float x = gate[j] > args.limit ? args.limit : gate[j];
        float y = activate(args.activation, args.alpha, x);
        if (args.rounds)
            y = element<T>::to_float(element<T>::from_float(y));
        gate[j] = kIsPairs || args.up ? y * clamped_up(args, up[j]) : y;
    }
    packet<T, kVec>::store(static_cast<T *>(args.y) + row * args.y_stride + column, gate);
}

static int64_t stride_of(const struct roped_tensor *tensor, int64_t width)
{
    return tensor->stride ? tensor->stride : width;
}

// Addresses and strides; of pairs up is none.
template <typename T>
static void find_operands(const struct roped_call *call, struct act_args *args)
{
    const struct act_and_mul_plan *plan = (const struct act_and_mul_plan *)call->plan;
    const struct roped_tensor *x = &call->in[ACT_AND_MUL_X];
    int64_t h = plan->width;
    if (!roped_tensor_given(x)) {
        const struct roped_tensor *gate = &call->in[ACT_AND_MUL_GATE];
        const struct roped_tensor *up = &call->in[ACT_AND_MUL_UP];
        args->gate = gate->data;
        args->up = up->data;
        args->gate_stride = stride_of(gate, h);
        args->up_stride = stride_of(up, h);
        return;
    }
    args->gate = x->data;
    args->gate_stride = args->up_stride = stride_of(x, plan->gated ? 2 * h : h);
    if (!plan->gated || plan->interleaved)
        return;
    const T *halves = static_cast<const T *>(x->data);
    args->gate = plan->gate_second ? halves + h : halves;
    args->up = plan->gate_second ? halves : halves + h;
}

// Does 16 bytes divide every address that begins a packet?
template <typename T>
static bool has_packets(const struct act_args *args, int64_t h, int64_t n_rows)
{
    int64_t strides[] = {args->gate_stride, args->up ? args->up_stride : 0, args->y_stride};
    bool has = h % kVecOf<T> == 0 && is_aligned(args->gate, 16) && is_aligned(args->up, 16) &&
               is_aligned(args->y, 16);
    for (int64_t stride : strides)
        has = has && (n_rows == 1 || stride % kVecOf<T> == 0);
    return has;
}

template <typename T, int kVec>
static enum roped_status launch(struct act_args *args, const struct act_and_mul_plan *plan,
                                struct roped_queue *queue, struct roped_error *err)
{
    args->packets = plan->width / kVec;
    args->n_packets = args->packets * plan->n_rows;
    kernel_fn<act_args> *kernel =
        plan->interleaved ? act_kernel<T, kVec, true> : act_kernel<T, kVec, false>;
    return start(queue, kernel, dim3(kActThreads),
                 (args->n_packets + kActThreads - 1) / kActThreads, dim3(1), *args, err);
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
    args.y_stride = stride_of(y, plan->width);
    args.limit = plan->limit;
    args.alpha = plan->alpha;
    args.beta = plan->beta;
    args.activation = plan->activation;
    args.rounds = plan->rounds;
    return with_float_type(y->dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        find_operands<T>(call, &args);
        return has_packets<T>(&args, plan->width, plan->n_rows)
                   ? launch<T, kVecOf<T>>(&args, plan, queue, err)
                   : launch<T, 1>(&args, plan, queue, err);
    });
}
