// act_and_mul.cu - act_and_mul on CUDA: 16 bytes of y per thread, from 16 bytes of gate and 16 of
// up, or from 32 of pairs; shifted where addresses, strides or h leave no such packets, and one
// element where those are pairs or few.

extern "C" {
#include "ops/act_and_mul.h"
}

#include "cuda/device/activation.cuh"
#include "cuda/device/binary.cuh"
#include "cuda/device/quotient.cuh"
#include "cuda/device/shifted.cuh"
#include "cuda/device/stream.cuh"
#include "cuda/dispatch.cuh"

#include <math.h>
#include <type_traits>

constexpr int kActThreads = 128;

struct act_args {
    const void *gate;
    const void *up; // NULL: y = act(gate)
    void *y;
    uint32_t n_packets; // of all rows
    uint32_t packets;   // of a row, the last one not always whole
    divisor_of_index to_row;
    int64_t gate_stride, up_stride, y_stride; // elements to the next row
    int64_t width;
    const char *gate_end, *up_end; // shifted.cuh
    float limit, alpha, beta;      // a beta of -0 leaves every number as it is
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

// How a packet is moved.
enum act_access {
    kActAligned,
    kActKept,    // the same, and its lines stay in L2 (device/vector.cuh)
    kActShifted, // at any address (device/shifted.cuh); not of pairs
    kActSingle   // a packet is one element
};

template <typename T, act_access kAccess>
constexpr int kActVec = kAccess == kActSingle ? 1 : kVecOf<T>;

// A packet of gate and one of up, of which n elements are wanted. Of pairs both are of gate, with
// half of the elements each.
template <typename T, bool kIsPairs, act_access kAccess, int kVec>
__device__ __forceinline__ void load_operands(const act_args &args, const T *gates, const T *ups,
                                              int n, float (&gate)[kVec], float (&up)[kVec])
{
    bool has_up = kIsPairs || args.up;
    if constexpr (kAccess == kActShifted) {
        shifted_vector<(int)sizeof(T)> of_gate, of_up;
        of_gate.start(gates, n * (int)sizeof(T), args.gate_end);
        of_up.start(ups, has_up ? n * (int)sizeof(T) : 0, args.up_end);
        unpack<T>(of_gate.finish(), gate);
        unpack<T>(of_up.finish(), up);
    } else {
        using pack_of = packet<T, kVec>;
        auto of_gate = pack_of::template load<kAccess == kActKept>(gates);
        if (has_up) {
            auto of_up = pack_of::template load<kAccess == kActKept>(ups);
            pack_of::widen(of_up, up);
        }
        pack_of::widen(of_gate, gate);
    }
    if constexpr (kIsPairs) {
        float first[kVec], second[kVec];
        memcpy(first, gate, sizeof first);
        memcpy(second, up, sizeof second);
        part(first, second, gate, up);
    }
}

template <typename T>
__device__ __forceinline__ void store_any(T *to, int64_t left, int64_t column,
                                          const float (&y)[kVecOf<T>])
{
    using unit = std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>;
    uint4 words = pack<T>(y);
    int lane = threadIdx.x % 32;
    store_shifted<unit>(reinterpret_cast<char *>(to), left, lane > 0 && column > 0, lane < 31,
                        {words.x, words.y, words.z, words.w});
}

template <typename T, bool kIsPairs, act_access kAccess>
static __global__ void __launch_bounds__(kActThreads)
    act_kernel(const __grid_constant__ struct act_args args)
{
    constexpr int kVec = kActVec<T, kAccess>;
    let_next_start();
    uint32_t i = blockIdx.x * kActThreads + threadIdx.x;
    uint32_t row = quotient(i, args.to_row);
    int64_t column = (int64_t)(i - row * args.packets) * kVec;
    const T *gates = static_cast<const T *>(args.gate) + row * args.gate_stride;
    const T *ups = static_cast<const T *>(args.up) + row * args.up_stride;
    T *to = static_cast<T *>(args.y) + row * args.y_stride + column;
    gates += kIsPairs ? 2 * column : column;
    ups = kIsPairs ? gates + kVec : ups + column;
    int64_t left = i < args.n_packets ? args.width - column : 0;
    if (kAccess != kActShifted && left == 0)
        return;
    finish_before_wait(gates, ups, to);
    wait_for_previous();
    float gate[kVec], up[kVec] = {};
    int n = left < kVec ? (int)left : kVec;
    load_operands<T, kIsPairs, kAccess, kVec>(args, gates, ups, n, gate, up);
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
    if constexpr (kAccess == kActShifted)
        store_any(to, left, column, gate);
    else
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

// Where the last whole packet of an operand ends.
template <typename T>
static const char *end_of(const T *from, int64_t stride, const struct act_and_mul_plan *plan)
{
    int64_t last = (plan->n_rows - 1) * stride + plan->width;
    return from ? whole_end(from, last * (int64_t)sizeof(T)) : NULL;
}

// Of at most so many rows that their packets can be counted in a register.
template <typename T, act_access kAccess>
static enum roped_status launch(struct act_args args, const struct act_and_mul_plan *plan,
                                struct roped_queue *queue, struct roped_error *err)
{
    constexpr int kVec = kActVec<T, kAccess>;
    int64_t packets = (plan->width + kVec - 1) / kVec;
    if (packets > kMostPackets)
        return roped_fail(err, ROPED_TOO_LARGE,
                          "tensor 'y': rows of %lld elements, expected at "
                          "most %lld on this device",
                          (long long)plan->width, (long long)(kMostPackets * kVec));
    kernel_fn<act_args> *kernel = act_kernel<T, false, kAccess>;
    if constexpr (kAccess != kActShifted)
        if (plan->interleaved)
            kernel = act_kernel<T, true, kAccess>;
    args.packets = (uint32_t)packets;
    args.to_row = index_divisor(packets);
    const int64_t most = kMostPackets / packets;
    const T *gate = static_cast<const T *>(args.gate), *up = static_cast<const T *>(args.up);
    T *y = static_cast<T *>(args.y);
    args.width = plan->width;
    args.gate_end = end_of(gate, args.gate_stride, plan);
    args.up_end = end_of(up, args.up_stride, plan);
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

// Has every element a thread at once, or nearly? Then it waits for one load, and shifting would
// only be more to do: 2,048 threads are on a multiprocessor, of which those of 16 bits gain sooner.
template <typename T>
static bool is_small(const struct act_and_mul_plan *plan, const struct roped_queue *queue)
{
    const int64_t most = sizeof(T) == 4 ? 2048 : 1536;
    return plan->n_rows * plan->width <= most * queue->n_multiprocessors;
}

template <typename T>
static enum roped_status launch_of_type(struct act_args *args, const struct roped_call *call,
                                        struct roped_queue *queue, struct roped_error *err)
{
    const struct act_and_mul_plan *plan = (const struct act_and_mul_plan *)call->plan;
    find_operands<T>(call, args);
    if (!has_packets<T>(args, plan->width, plan->n_rows))
        return plan->interleaved || is_small<T>(plan, queue)
                   ? launch<T, kActSingle>(*args, plan, queue, err)
                   : launch<T, kActShifted>(*args, plan, queue, err);
    return passes_l2(roped_call_bytes(call), queue)
               ? launch<T, kActKept>(*args, plan, queue, err)
               : launch<T, kActAligned>(*args, plan, queue, err);
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
