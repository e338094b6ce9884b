// act_and_mul.cu - act_and_mul on CUDA: 16 bytes of y per thread, from 16 bytes of gate and 16 of
// up, or from 32 of pairs; one element where addresses, strides or h leave no such packets.

extern "C" {
#include "ops/act_and_mul.h"
}

#include "cuda/device/activation.cuh"
#include "cuda/device/binary.cuh"
#include "cuda/device/quotient.cuh"
#include "cuda/device/stream.cuh"
#include "cuda/dispatch.cuh"

#include <math.h>

constexpr int kActThreads = 128;

struct act_args {
    const void *gate;
    const void *up; // NULL: y = act(gate)
    void *y;
    uint32_t n_packets; // of all rows
    uint32_t packets;   // of a row
    divisor_of_index to_row;
    int64_t gate_stride, up_stride, y_stride; // elements to the next row
    float limit, alpha, beta;                 // a beta of -0 leaves every number as it is
    int32_t activation;
    int32_t limits, rounds; // bool
};

// The even elements of two packets, and the odd ones.
template <int kVec>
__device__ __forceinline__ void part(const float (&first)[kVec], const float (&second)[kVec],
                                     float (&even)[kVec], float (&odd)[kVec])
{
#pragma unroll
    for (int i = 0; i < kVec; i++) {
        even[i] = 2 * i < kVec ? first[2 * i % kVec] : second[2 * i % kVec];
        odd[i] = 2 * i + 1 < kVec ? first[(2 * i + 1) % kVec] : second[(2 * i + 1) % kVec];
    }
}

// Element 0 of a packet is at column of its row of y; of pairs it is at twice that.
template <typename T, int kVec, bool kIsPairs, bool kKeeps>
__device__ __forceinline__ void load_operands(const act_args &args, const T *gates, const T *ups,
                                              float (&gate)[kVec], float (&up)[kVec])
{
    using pack_of = packet<T, kVec>;
    auto of_gate = pack_of::template load<kKeeps>(gates);
    if (kIsPairs || args.up) {
        auto of_up = pack_of::template load<kKeeps>(ups);
        pack_of::widen(of_up, up);
    }
    pack_of::widen(of_gate, gate);
    if constexpr (kIsPairs) {
        float first[kVec], second[kVec];
        memcpy(first, gate, sizeof first);
        memcpy(second, up, sizeof second);
        part(first, second, gate, up);
    }
}

template <typename T, int kVec, bool kIsPairs, bool kKeeps>
static __global__ void __launch_bounds__(kActThreads)
    act_kernel(const __grid_constant__ struct act_args args)
{
    let_next_start();
    uint32_t i = blockIdx.x * kActThreads + threadIdx.x;
    uint32_t row = quotient(i, args.to_row);
    int64_t column = (int64_t)(i - row * args.packets) * kVec;
    const T *gates = static_cast<const T *>(args.gate) + row * args.gate_stride;
    const T *ups = static_cast<const T *>(args.up) + row * args.up_stride;
    T *to = static_cast<T *>(args.y) + row * args.y_stride + column;
    gates += kIsPairs ? 2 * column : column;
    ups = kIsPairs ? gates + kVec : ups + column;
    if (i >= args.n_packets)
        return;
    finish_before_wait(gates, ups, to);
    wait_for_previous();
    float gate[kVec], up[kVec] = {};
    load_operands<T, kVec, kIsPairs, kKeeps>(args, gates, ups, gate, up);
    if (args.limits) {
#pragma unroll
        for (int j = 0; j < kVec; j++) {
            gate[j] = gate[j] > args.limit ? args.limit : gate[j];
            up[j] = up[j] > args.limit ? args.limit : up[j];
            up[j] = up[j] < -args.limit ? -args.limit : up[j];
        }
    }
    activate(args.activation, args.alpha, gate);
    if (args.rounds) {
#pragma unroll
        for (int j = 0; j < kVec; j++)
            gate[j] = element<T>::to_float(element<T>::from_float(gate[j]));
    }
    if (kIsPairs || args.up) {
#pragma unroll
        for (int j = 0; j < kVec; j++)
            gate[j] *= up[j] + args.beta;
    }
    packet<T, kVec>::store(to, gate);
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

// Of at most so many rows that their packets can be counted in a register.
template <typename T, int kVec, bool kKeeps>
static enum roped_status launch(struct act_args args, const struct act_and_mul_plan *plan,
                                struct roped_queue *queue, struct roped_error *err)
{
    int64_t packets = plan->width / kVec;
    if (packets > kMostPackets)
        return roped_fail(err, ROPED_TOO_LARGE,
                          "tensor 'y': rows of %lld elements, expected at "
                          "most %lld on this device",
                          (long long)plan->width, (long long)(kMostPackets * kVec));
    kernel_fn<act_args> *kernel =
        plan->interleaved ? act_kernel<T, kVec, true, kKeeps> : act_kernel<T, kVec, false, kKeeps>;
    args.packets = (uint32_t)packets;
    args.to_row = index_divisor(packets);
    const int64_t most = kMostPackets / packets;
    const T *gate = static_cast<const T *>(args.gate), *up = static_cast<const T *>(args.up);
    T *y = static_cast<T *>(args.y);
    enum roped_status status = ROPED_OK;
    for (int64_t row = 0; row < plan->n_rows && !status; row += most) {
        int64_t rows = plan->n_rows - row < most ? plan->n_rows - row : most;
        args.gate = gate + row * args.gate_stride;
        args.up = up ? up + row * args.up_stride : NULL;
        args.y = y + row * args.y_stride;
        args.n_packets = (uint32_t)(rows * packets);
        status = start(queue, kernel, dim3(kActThreads),
                       (rows * packets + kActThreads - 1) / kActThreads, dim3(1), args, err);
    }
    return status;
}

template <typename T>
static enum roped_status launch_of_type(struct act_args *args, const struct roped_call *call,
                                        struct roped_queue *queue, struct roped_error *err)
{
    const struct act_and_mul_plan *plan = (const struct act_and_mul_plan *)call->plan;
    find_operands<T>(call, args);
    if (!has_packets<T>(args, plan->width, plan->n_rows))
        return launch<T, 1, false>(*args, plan, queue, err);
    return passes_l2(roped_call_bytes(call), queue)
               ? launch<T, kVecOf<T>, true>(*args, plan, queue, err)
               : launch<T, kVecOf<T>, false>(*args, plan, queue, err);
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
    args.limits = plan->limit < INFINITY;
    args.alpha = plan->alpha;
    args.beta = plan->beta == 0 ? -0.0f : plan->beta;
    args.activation = plan->activation;
    args.rounds = plan->rounds;
    return with_float_type(y->dtype, [&](auto tag) {
        return launch_of_type<typename decltype(tag)::type>(&args, call, queue, err);
    });
}
