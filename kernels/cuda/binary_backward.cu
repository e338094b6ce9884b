// binary_backward.cu - gradients of add, sub, mul and div on a CUDA device.
//
// Everything moves memory, so each case reads grad_output and the operands once:
//
//     no broadcasting      elementwise_kernel   reads g, a, b, writes both gradients
//     one operand          sweep_kernel         reads g and the full operand, writes its gradient,
//                                               and sums the other's terms (binary_sweep.cuh)
//     both operands, or    strided_kernel       once per gradient (binary_strided.cuh)
//     more dims than a
//     sweep walks
//
// add and sub read g alone. A sum is cut into segments where its own elements are too few to fill
// the device (binary_sums.cuh). What a thread adds, and in which order, follows from the shapes and
// from whether 16 bytes divide rows and addresses: the same bits from run to run and from device to
// device. Atomic operations only count blocks. A thread adds the terms of an iteration in float32,
// and iterations in double.
#include "cuda/binary_strided.cuh"
#include "cuda/binary_sweep.cuh"

// ------------------------------------------------------------------------------------ elementwise

constexpr int kElementThreads = 256;

// a is x and b is y of device/binary.cuh.
struct element_args {
    const void *g, *a, *b;
    void *grad_a, *grad_b;
    int64_t n;
    int32_t kind;
    struct binary_signs sign;
};

// kKeeps: what it reads in L2 (device/vector.cuh)
template <typename T, int kVec, int kKind, bool kKeeps>
__device__ __forceinline__ void element_packet(const element_args &args, int64_t at)
{
    using pack_of = packet<T, kVec>;
    float g[kVec], a[kVec] = {}, b[kVec] = {}, of_a[kVec], of_b[kVec];
    typename pack_of::raw raw_g, raw_a, raw_b;
    raw_g = pack_of::template load<kKeeps>(static_cast<const T *>(args.g) + at);
    if (kKind == kBinaryAny ? args.kind != kBinaryLinear : kKind != kBinaryLinear) {
        raw_a = pack_of::template load<kKeeps>(static_cast<const T *>(args.a) + at);
        raw_b = pack_of::template load<kKeeps>(static_cast<const T *>(args.b) + at);
        pack_of::widen(raw_a, a);
        pack_of::widen(raw_b, b);
    }
    pack_of::widen(raw_g, g);
#pragma unroll
    for (int i = 0; i < kVec; i++)
        both_terms<kKind>(args.kind, g[i], a[i], b[i], args.sign, of_a[i], of_b[i]);
    pack_of::store(static_cast<T *>(args.grad_a) + at, of_a);
    pack_of::store(static_cast<T *>(args.grad_b) + at, of_b);
}

// The first threads also take an element each of those that fill no packet.
template <typename T, int kVec, int kKind, bool kKeeps>
__global__ void __launch_bounds__(kElementThreads)
    elementwise_kernel(const __grid_constant__ struct element_args args)
{
    let_next_start();
    wait_for_previous();
    int64_t i = (int64_t)blockIdx.x * kElementThreads + threadIdx.x, n_packets = args.n / kVec;
    int64_t rest = n_packets * kVec + i;
    if (i < n_packets)
        element_packet<T, kVec, kKind, kKeeps>(args, i * kVec);
    if (kVec > 1 && rest < args.n)
        element_packet<T, 1, kKind, false>(args, rest);
}

template <typename T>
static kernel_fn<element_args> *element_kernel_of(int kind, bool keeps)
{
    if (kind == kBinaryMul)
        return keeps ? elementwise_kernel<T, kVecOf<T>, kBinaryMul, true>
                     : elementwise_kernel<T, kVecOf<T>, kBinaryMul, false>;
    if (kind == kBinaryOverY)
        return keeps ? elementwise_kernel<T, kVecOf<T>, kBinaryOverY, true>
                     : elementwise_kernel<T, kVecOf<T>, kBinaryOverY, false>;
    return keeps ? elementwise_kernel<T, kVecOf<T>, kBinaryLinear, true>
                 : elementwise_kernel<T, kVecOf<T>, kBinaryLinear, false>;
}

template <typename T>
static enum roped_status launch_elementwise(const struct roped_call *call,
                                            struct roped_queue *queue, struct roped_error *err)
{
    const struct binary_plan *plan = reinterpret_cast<const struct binary_plan *>(call->plan);
    struct sum_args named = {};
    struct element_args args = {};
    name_tensors(call, BINARY_IN_B, &named);
    args.g = named.g;
    args.a = named.x;
    args.b = named.y;
    args.grad_a = call->out[BINARY_GRAD_A].data;
    args.grad_b = named.grad_y;
    args.n = plan->n;
    args.kind = named.kind;
    args.sign = named.sign;
    bool is_packed = named.y_is_packed && is_aligned(args.g, 16) && is_aligned(args.a, 16) &&
                     is_aligned(args.grad_a, 16);
    int64_t moved = args.n * (int64_t)sizeof(T) * (args.kind == kBinaryLinear ? 3 : 5);
    kernel_fn<element_args> *kernel = is_packed
                                          ? element_kernel_of<T>(args.kind, passes_l2(moved, queue))
                                          : elementwise_kernel<T, 1, kBinaryAny, false>;
    return start(queue, kernel, dim3(kElementThreads),
                 ceil_div(args.n, kElementThreads * (is_packed ? kVecOf<T> : 1)), dim3(), args,
                 err);
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
    int32_t sum_side = sums_a ? BINARY_IN_A : BINARY_IN_B;
    if (sums_a != sums_b && is_of_sweep(plan, sum_side))
        return launch_sweep<T>(call, sum_side, queue, err);
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
