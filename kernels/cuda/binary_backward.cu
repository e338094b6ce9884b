// binary_backward.cu - gradients of add, sub, mul and div on a CUDA device.
//
// Everything moves memory, so each case reads grad_output and the operands once:
//
//     no broadcasting      elementwise_kernel   reads g, a, b, writes both gradients
//     one operand          sweep_kernel         reads g and the full operand, writes its gradient,
//                                               and sums the other's terms (binary_sweep.cuh)
//     both operands, or    strided_kernel       once per gradient (binary_strided.cuh)
//     more than four dims
//
// add and sub read g alone. A sum is cut into segments where its own elements are too few to fill
// the device; finish_sums_kernel (binary_sums.cuh) then adds the segments' partial sums. What a
// thread adds, and in which order, follows from the shapes and from whether 16 bytes divide rows
// and addresses: no atomics, the same bits from run to run and from device to device. A thread adds
// the terms of an iteration in float32, and iterations in double.
#include "cuda/binary_strided.cuh"
#include "cuda/binary_sweep.cuh"
#include "cuda/device/binary.cuh"
#include "cuda/device/stream.cuh"
#include "cuda/dispatch.cuh"

// ------------------------------------------------------------------------------------ elementwise

constexpr int kElementThreads = 256;
constexpr int kElementPackets = 1; // per thread and tensor: two take 1 % longer

struct element_args {
    const void *g, *a, *b;
    void *grad_a, *grad_b;
    int64_t n;
    float sign_b; // add and sub: of g in grad_b
};

enum element_kind { kElementLinear, kElementMul, kElementDiv };

template <int kKind, int kVec>
__device__ __forceinline__ void element_terms(const element_args &args, const float (&g)[kVec],
                                              const float (&a)[kVec], const float (&b)[kVec],
                                              float (&of_a)[kVec], float (&of_b)[kVec])
{
#pragma unroll
    for (int i = 0; i < kVec; i++) {
        if constexpr (kKind == kElementLinear) {
            of_a[i] = g[i];
            of_b[i] = g[i] * args.sign_b;
        } else if constexpr (kKind == kElementMul) {
            of_a[i] = g[i] * b[i];
            of_b[i] = g[i] * a[i];
        } else {
            of_a[i] = g[i] / b[i];
            of_b[i] = quotient_term_of_b(g[i], a[i], b[i]);
        }
    }
}

// Elements that fill no packet.
template <typename T, int kKind>
__device__ void element_tail(const element_args &args, int64_t begin)
{
    for (int64_t i = begin; i < args.n; i++) {
        float g[1], a[1] = {0}, b[1] = {0}, of_a[1], of_b[1];
        g[0] = element<T>::to_float(static_cast<const T *>(args.g)[i]);
        if constexpr (kKind != kElementLinear) {
            a[0] = element<T>::to_float(static_cast<const T *>(args.a)[i]);
            b[0] = element<T>::to_float(static_cast<const T *>(args.b)[i]);
        }
        element_terms<kKind, 1>(args, g, a, b, of_a, of_b);
        static_cast<T *>(args.grad_a)[i] = element<T>::from_float(of_a[0]);
        static_cast<T *>(args.grad_b)[i] = element<T>::from_float(of_b[0]);
    }
}

// kKeeps: what it reads in L2 (device/vector.cuh)
template <typename T, int kVec, int kKind, bool kKeeps>
__global__ void __launch_bounds__(kElementThreads)
    elementwise_kernel(const __grid_constant__ struct element_args args)
{
    let_next_start();
    wait_for_previous();
    using pack_of = packet<T, kVec>;
    int64_t n_packets = args.n / kVec;
    int64_t first = (int64_t)blockIdx.x * kElementThreads * kElementPackets + threadIdx.x;
    typename pack_of::raw g[kElementPackets], a[kElementPackets], b[kElementPackets];
#pragma unroll
    for (int i = 0; i < kElementPackets; i++) {
        int64_t at = first + i * kElementThreads;
        if (at >= n_packets)
            continue;
        g[i] = pack_of::template load<kKeeps>(static_cast<const T *>(args.g) + at * kVec);
        if constexpr (kKind != kElementLinear) {
            a[i] = pack_of::template load<kKeeps>(static_cast<const T *>(args.a) + at * kVec);
            b[i] = pack_of::template load<kKeeps>(static_cast<const T *>(args.b) + at * kVec);
        }
    }
#pragma unroll
    for (int i = 0; i < kElementPackets; i++) {
        int64_t at = first + i * kElementThreads;
        float of_g[kVec], value_a[kVec], value_b[kVec], of_a[kVec], of_b[kVec];
        if (at >= n_packets)
            continue;
        pack_of::widen(g[i], of_g);
        if constexpr (kKind != kElementLinear) {
            pack_of::widen(a[i], value_a);
            pack_of::widen(b[i], value_b);
        }
        element_terms<kKind, kVec>(args, of_g, value_a, value_b, of_a, of_b);
        pack_of::store(static_cast<T *>(args.grad_a) + at * kVec, of_a);
        pack_of::store(static_cast<T *>(args.grad_b) + at * kVec, of_b);
    }
    if (kVec > 1 && first == 0)
        element_tail<T, kKind>(args, n_packets * kVec);
}

template <typename T, int kKind>
static enum roped_status start_elementwise(const struct element_args &args,
                                           struct roped_queue *queue, struct roped_error *err)
{
    constexpr int kVec = kVecOf<T>;
    bool has_packets = is_aligned(args.g, 16) && is_aligned(args.a, 16) && is_aligned(args.b, 16) &&
                       is_aligned(args.grad_a, 16) && is_aligned(args.grad_b, 16);
    int64_t n_packets = has_packets ? ceil_div(args.n, kVec) : args.n;
    int64_t moved = args.n * (int64_t)sizeof(T) * (kKind == kElementLinear ? 3 : 5);
    kernel_fn<element_args> *kernel = elementwise_kernel<T, 1, kKind, false>;
    if (has_packets && passes_l2(moved, queue))
        kernel = elementwise_kernel<T, kVec, kKind, true>;
    else if (has_packets)
        kernel = elementwise_kernel<T, kVec, kKind, false>;
    return start(queue, kernel, dim3(kElementThreads),
                 ceil_div(n_packets, kElementThreads * kElementPackets), dim3(), args, err);
}

template <typename T>
static enum roped_status launch_elementwise(const struct roped_call *call,
                                            struct roped_queue *queue, struct roped_error *err)
{
    const struct binary_plan *plan = reinterpret_cast<const struct binary_plan *>(call->plan);
    bool has_values = binary_needs_values(plan->function);
    struct element_args args = {};
    args.g = call->in[BINARY_GRAD_OUTPUT].data;
    args.a = has_values ? call->in[BINARY_A].data : NULL;
    args.b = has_values ? call->in[BINARY_B].data : NULL;
    args.grad_a = call->out[BINARY_GRAD_A].data;
    args.grad_b = call->out[BINARY_GRAD_B].data;
    args.n = plan->n;
    args.sign_b = plan->function == BINARY_SUB ? -1.0f : 1.0f;
    if (plan->function == BINARY_MUL)
        return start_elementwise<T, kElementMul>(args, queue, err);
    if (plan->function == BINARY_DIV)
        return start_elementwise<T, kElementDiv>(args, queue, err);
    return start_elementwise<T, kElementLinear>(args, queue, err);
}

// ------------------------------------------------------------------------------------ launches

static bool is_broadcast(const struct binary_plan *plan, int32_t side)
{
    for (int i = 0; i < plan->rank; i++)
        if (!(plan->dim[i].in & side))
            return true;
    return false;
}

template <typename T>
static enum roped_status launch(const struct roped_call *call, struct roped_queue *queue,
                                struct roped_error *err)
{
    const struct binary_plan *plan = reinterpret_cast<const struct binary_plan *>(call->plan);
    bool sums_a = is_broadcast(plan, BINARY_IN_A), sums_b = is_broadcast(plan, BINARY_IN_B);
    if (!sums_a && !sums_b)
        return launch_elementwise<T>(call, queue, err);
    if (sums_a != sums_b && plan->rank <= 4)
        return launch_sweep<T>(call, sums_a ? BINARY_IN_A : BINARY_IN_B, queue, err);
    enum roped_status status = launch_strided<T>(call, BINARY_IN_A, queue, err);
    return status ? status : launch_strided<T>(call, BINARY_IN_B, queue, err);
}

static enum roped_status clear(const struct roped_tensor *gradient, struct roped_queue *queue,
                               struct roped_error *err)
{
    size_t bytes = (size_t)roped_tensor_bytes(gradient);
    if (bytes > 0)
        CHECK_RETURN(queue->backend, cudaMemsetAsync(gradient->data, 0, bytes, queue->stream), err);
    return ROPED_OK;
}

extern "C" enum roped_status roped_cuda_binary_backward(const struct roped_call *call,
                                                        struct roped_queue *queue,
                                                        struct roped_error *err)
{
    const struct binary_plan *plan = reinterpret_cast<const struct binary_plan *>(call->plan);
    if (plan->n == 0) { // sums of nothing
        enum roped_status status = clear(&call->out[BINARY_GRAD_A], queue, err);
        return status ? status : clear(&call->out[BINARY_GRAD_B], queue, err);
    }
    return with_float_type(call->in[BINARY_GRAD_OUTPUT].dtype, [&](auto tag) {
        return launch<typename decltype(tag)::type>(call, queue, err);
    });
}
