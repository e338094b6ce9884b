// binary_backward.cu - gradients of add, sub, mul and div on a CUDA device.
//
// Everything moves memory, so each case reads grad_output and the operands once. What is reduced
// says which kernel:
//
//     nothing            elementwise_kernel     reads g, a, b, writes both gradients
//     one operand        sweep_*_kernel         reads g and the full operand, writes its gradient,
//                                               and sums the other's terms (binary_sweep.cuh)
//       beside rows      turn_kernel            the same, a row's threads ask for all of it at once
//                                               (binary_turn.cuh)
//       of narrow rows   rows_kernel,           the same, rows that follow each other in memory as
//                        columns_kernel         one (binary_rows.cuh, binary_columns.cuh)
//       of odd columns,  tile_kernel            the same, tiles that follow each other in memory as
//       others around                           one (binary_tiles.cuh)
//       of many odd      few_terms_kernel       the same by single elements: a thread has all terms
//       columns of few                          of its columns (binary_few.cuh)
//       terms
//     both operands      sweep_both_kernel      once per gradient (binary_both.cuh); in one pass
//                                               where a row has one element of a or b
//       each in a dim,   grid_kernel            the same, in one pass: a thread has all of the few
//       one of few                              of its columns (binary_grid.cuh)
//       many odd         few_columns_kernel     each such gradient by single elements: a thread
//       columns of few                          has all terms of its columns (binary_few.cuh)
//       terms
//     few elements,      elements_kernel        one element at a time, both gradients in one
//     odd columns of                            launch (binary_elements.cuh)
//     few terms
//
// The last one also has what no other knows. A sum is cut into segments where its own elements are
// too few to fill the device (binary_sums.cuh). What a thread adds, and in which order, follows
// from the shapes and from whether addresses are multiples of 16 bytes: the same bits from run to
// run and from device to device. Atomic operations only count blocks. A thread adds the terms of an
// iteration in float32, and iterations in double; of a row in one turn all is a tree of float32.
#include "cuda/binary_both.cuh"
#include "cuda/binary_cluster.cuh"
#include "cuda/binary_columns.cuh"
#include "cuda/binary_few.cuh"
#include "cuda/binary_rows.cuh"
#include "cuda/binary_tiles.cuh"
#include "cuda/binary_turn.cuh"

// ------------------------------------------------------------------------------------ elementwise

constexpr int kElementThreads = 256;

// kKeeps: what it reads in L2 (device/vector.cuh). a is x and b is y of device/binary.cuh.
template <typename T, int kVec, int kKind, bool kKeeps>
__device__ __forceinline__ void element_packet(const sum_args &args, int64_t at)
{
    using pack_of = packet<T, kVec>;
    float g[kVec], a[kVec], b[kVec], of_a[kVec], of_b[kVec];
    typename pack_of::raw raw_g, raw_a = {}, raw_b = {};
    raw_g = pack_of::template load<kKeeps>(static_cast<const T *>(args.g) + at);
    if (args.has_values) {
        raw_a = pack_of::template load<kKeeps>(static_cast<const T *>(args.x) + at);
        raw_b = pack_of::template load<kKeeps>(static_cast<const T *>(args.y) + at);
    }
    pack_of::widen(raw_g, g);
    pack_of::widen(raw_a, a);
    pack_of::widen(raw_b, b);
#pragma unroll
    for (int i = 0; i < kVec; i++)
        both_terms<T, kKind>(kKind, g[i], args.has_values ? a[i] : args.one.x,
                             args.has_values ? b[i] : args.one.y, of_a[i], of_b[i]);
    pack_of::store(static_cast<T *>(args.grad_x) + at, of_a);
    pack_of::store(static_cast<T *>(args.grad_y) + at, of_b);
}

// The first threads also take an element each of those that fill no packet.
template <typename T, int kVec, int kKind, bool kKeeps>
__global__ void __launch_bounds__(kElementThreads)
    elementwise_kernel(const __grid_constant__ struct sum_args args)
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

template <typename T, int kKind>
static kernel_fn<sum_args> *element_kernel_of(bool is_packed, bool keeps)
{
    return !is_packed ? elementwise_kernel<T, 1, kKind, false>
           : keeps    ? elementwise_kernel<T, kVecOf<T>, kKind, true>
                      : elementwise_kernel<T, kVecOf<T>, kKind, false>;
}

// Small calls take single elements, too: more threads, each with less to do.
template <typename T>
static enum roped_status launch_elementwise(const struct roped_call *call,
                                            struct roped_queue *queue, struct roped_error *err)
{
    struct sum_args args = {};
    name_tensors(call, BINARY_IN_B, &args);
    bool is_packed =
        are_aligned({args.g, args.x, args.y, args.grad_x, args.grad_y}) && args.n > kMostElements;
    int64_t moved = args.n * (int64_t)sizeof(T) * (args.has_values ? 5 : 3);
    bool keeps = passes_l2(moved, queue);
    return start(queue,
                 args.kind == kBinaryMul ? element_kernel_of<T, kBinaryMul>(is_packed, keeps)
                                         : element_kernel_of<T, kBinaryOverY>(is_packed, keeps),
                 dim3(kElementThreads),
                 blocks_of(args.n, kElementThreads * (is_packed ? kVecOf<T> : 1)), dim3(), args,
                 err);
}

// ------------------------------------------------------------------------------------ launches

// One operand is broadcast: its gradient is summed, and the other's written on the way.
template <typename T>
static enum roped_status launch_one(const struct roped_call *call, int32_t sum_side,
                                    struct roped_queue *queue, struct roped_error *err)
{
    const struct binary_plan *plan = reinterpret_cast<const struct binary_plan *>(call->plan);
    struct sweep_args args = {};
    struct columns_shape columns;
    struct tile_args tiles = {};
    struct cluster_args of_cluster = {};
    name_tensors(call, sum_side, &args.sum);
    const struct cluster_layout cluster = lay_out_cluster<T>(plan, sum_side, args.sum, &of_cluster);
    if (cluster.threads > 0)
        return launch_cluster<T>(cluster, args.sum, &of_cluster, queue, err);
    if (is_of_rows<T>(plan, sum_side, args.sum))
        return launch_rows<T>(plan, args.sum, queue, err);
    const struct turn_layout turn = lay_out_turn<T>(plan, sum_side, args.sum);
    if (turn.threads > 0)
        return launch_turn<T>(turn, args.sum, queue, err);
    if (is_of_few_columns<T>(plan, sum_side))
        return launch_few<T>(call, sum_side, queue, err);
    if (is_of_elements(plan, sum_side))
        return launch_elements<T>(call, sum_side, queue, err);
    if (is_of_columns<T>(plan, sum_side, args.sum, &columns))
        return launch_columns<T>(&columns, args.sum, queue, err);
    if (is_of_tiles<T>(plan, sum_side, args.sum, &tiles))
        return launch_tiles<T>(&tiles, args.sum, queue, err);
    if (!name_sweep<T>(call, sum_side, kSweepOne, &args) ||
        is_of_few_terms(&args, keeps_columns(plan, sum_side)))
        return launch_elements<T>(call, sum_side, queue, err);
    return launch_sweep<T>(&args, keeps_columns(plan, sum_side), queue, err);
}

template <typename T>
static enum roped_status launch(const struct roped_call *call, struct roped_queue *queue,
                                struct roped_error *err)
{
    const struct binary_plan *plan = reinterpret_cast<const struct binary_plan *>(call->plan);
    bool sums_a = is_broadcast(plan, BINARY_IN_A), sums_b = is_broadcast(plan, BINARY_IN_B);
    if (sums_a && sums_b)
        return launch_both<T>(call, queue, err);
    if (sums_a || sums_b)
        return launch_one<T>(call, sums_a ? BINARY_IN_A : BINARY_IN_B, queue, err);
    return launch_elementwise<T>(call, queue, err);
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
