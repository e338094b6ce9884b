// binary_cluster.cuh - both gradients of a binary function in one pass, of small calls in which one
// operand is broadcast: the terms of a sum are those of up to eight blocks, a cluster, and each
// thread asks for all that it has of them at once.
//
// Such a call takes as long as its waits. Parts in memory, a counter and a last block are three of
// them behind the first loads; here each warp sends what it has summed to the first block of the
// cluster, and that one adds it. Which terms a thread has, and the order of sums, follow from the
// shape and from whether addresses are multiples of 16 bytes. Chips without clusters leave the same
// parts in memory, and the last block adds them in the same order.
#pragma once

#include "cuda/binary_sums.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/device/last_block.cuh"
#include "cuda/device/reduce.cuh"

constexpr int kMostOfCluster = 8;          // blocks
constexpr int kClusterRowThreads = 1024;   // at most, of sums over rows
constexpr int kClusterColumnThreads = 256; // of columns

struct cluster_args {
    const void *g, *x, *y; // x is the full operand
    void *grad_x, *grad_y;
    float *partial;    // without clusters: [groups][values of a group]
    uint32_t *counter; // [groups]
    // All in elements of one access: packets, or elements.
    uint32_t n_kept, n_terms;
    divisor_of_index by_kept, by_run; // kept ones, and terms, that lie in a line
    uint32_t kept_turn, run_turn;     // what the end of such a line adds to a place
    uint32_t kept, term;              // from one to the next in it
    int32_t column_bits;              // of the columns of a warp that adds
    int32_t has_values;
    struct binary_ones one;
};

// What warps of a cluster leave for its first block.
template <int kMost>
struct cluster_sums {
    cluster_values<float, kMost> values;

    // Before wait_for_previous. n: values of each warp.
    __device__ __forceinline__ void begin(unsigned n)
    {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        if (gridDim.y > 1)
            values.begin(n * (blockDim.x / 32));
#endif
    }
    // To a place of the first block.
    template <int n>
    __device__ __forceinline__ void send(const cluster_args &args, unsigned to, const float (&x)[n])
    {
        if (gridDim.y == 1) {
#pragma unroll
            for (int i = 0; i < n; i++)
                values.of_warp[to + i] = x[i];
            return;
        }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        uint32_t remote, remote_barrier;
        asm("mapa.shared::cluster.u32 %0, %1, 0;"
            : "=r"(remote)
            : "r"(shared_address(&values.of_warp[to])));
        asm("mapa.shared::cluster.u32 %0, %1, 0;"
            : "=r"(remote_barrier)
            : "r"(shared_address(&values.barrier)));
        if constexpr (n == 1)
            asm volatile(
                "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(
                    remote),
                "r"(__float_as_uint(x[0])), "r"(remote_barrier)
                : "memory");
        else
            asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, "
                         "%2}, [%3];" ::"r"(remote),
                         "r"(__float_as_uint(x[0])), "r"(__float_as_uint(x[1])), "r"(remote_barrier)
                         : "memory");
#else
#pragma unroll
        for (int i = 0; i < n; i++)
            args.partial[(int64_t)blockIdx.x * kMost + to + i] = x[i];
#endif
    }
    // By all threads: is all there, and is this the block that adds it? Threads of the first
    // n_threads that call it wait.
    __device__ __forceinline__ bool has_come(const cluster_args &args, unsigned n_threads, int n)
    {
        if (gridDim.y == 1) {
            __syncthreads();
            return threadIdx.x < n_threads;
        }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        if (blockIdx.y != 0 || threadIdx.x >= n_threads)
            return false;
        values.wait();
#else
        if (!comes_last(args.counter + blockIdx.x, gridDim.y))
            return false;
        for (int i = threadIdx.x; i < n; i += blockDim.x) // past L1, which may have older lines
            values.of_warp[i] = __ldcg(args.partial + (int64_t)blockIdx.x * kMost + i);
        __syncthreads();
        if (threadIdx.x >= n_threads)
            return false;
#endif
        return true;
    }
};

__device__ __forceinline__ uint32_t kept_place(const cluster_args &args, uint32_t kept)
{
    return kept * args.kept + quotient(kept, args.by_kept) * args.kept_turn;
}

__device__ __forceinline__ uint32_t term_place(const cluster_args &args, uint32_t term)
{
    return term * args.term + quotient(term, args.by_run) * args.run_turn;
}

// An address that is computed here, in front of the wait.
template <typename T>
__device__ __forceinline__ const T *ready_address(const T *at)
{
    return reinterpret_cast<const T *>(compute_now(reinterpret_cast<const char *>(at)));
}

// The terms of a packet that is there, and the gradient of x stored.
template <typename T, int kKind, int kVec, int kSums>
__device__ __forceinline__ void
cluster_terms(const cluster_args &args, T *grad_x, const typename packet<T, kVec>::raw &raw_g,
              const typename packet<T, kVec>::raw &raw_x, const kept_elements<T, kKind, kSums> &y,
              float (&of_y)[kVec])
{
    using pack_of = packet<T, kVec>;
    float x[kVec], of_x[kVec];
    pack_of::widen(raw_x, x);
#pragma unroll
    for (int j = 0; j < kVec; j++)
        x[j] = args.has_values ? x[j] : args.one.x;
    if constexpr (kVec == 1)
        kept_terms<T, kKind>(kKind, element<T>::to_float(raw_g), x[0], y, 0, of_x[0], of_y[0]);
    else
        packet_terms<T, kKind>(kKind, raw_g, raw_x, false, x, y, of_x, of_y);
    pack_of::store(grad_x, of_x);
}

// ------------------------------------------------------------------------------------ rows

// A cluster has one sum, of runs of packets. kSteps: packets of a thread.
template <typename T, int kKind, int kVec, int kSteps>
__global__ void __launch_bounds__(kClusterRowThreads)
    cluster_rows_kernel(const __grid_constant__ struct cluster_args args)
{
    using pack_of = packet<T, kVec>;
    constexpr int kMost = kMostOfCluster * kClusterRowThreads / 32;
    __shared__ cluster_sums<kMost> sums;
    let_next_start();
    sums.begin(1);
    const uint32_t first = blockIdx.y * blockDim.x + threadIdx.x;
    const uint32_t step = gridDim.y * blockDim.x, kept = kept_place(args, blockIdx.x);
    const T *g[kSteps], *x[kSteps];
    T *grad_x[kSteps];
#pragma unroll
    for (int i = 0; i < kSteps; i++) {
        const uint32_t at = (kept + term_place(args, first + i * step)) * kVec;
        g[i] = ready_address(static_cast<const T *>(args.g) + at);
        x[i] = ready_address(static_cast<const T *>(args.x) + at);
        grad_x[i] = static_cast<T *>(args.grad_x) + at;
        finish_addresses(g[i], x[i]);
    }
    const T *from_y = ready_address(static_cast<const T *>(args.y) + blockIdx.x);
    finish_addresses(from_y);
    wait_for_previous();
    typename pack_of::raw raw_g[kSteps] = {}, raw_x[kSteps] = {};
#pragma unroll
    for (int i = 0; i < kSteps; i++)
        if (first + i * step < args.n_terms) {
            raw_g[i] = pack_of::load(g[i]);
            raw_x[i] = pack_of::load(x[i]);
        }
    const T of_sum = *from_y;
    kept_elements<T, kKind, 1> y;
    y.y[0] = args.has_values ? element<T>::to_float(of_sum) : args.one.y;
    y.begin(kKind);
    float sum[1] = {};
#pragma unroll
    for (int i = 0; i < kSteps; i++) {
        float term[kVec];
        if (first + i * step >= args.n_terms)
            break;
        cluster_terms<T, kKind, kVec>(args, grad_x[i], raw_g[i], raw_x[i], y, term);
#pragma unroll
        for (int half = kVec / 2; half > 0; half /= 2)
#pragma unroll
            for (int j = 0; j < half; j++)
                term[j] += term[j + half];
        sum[0] += term[0];
    }
    sum[0] = sum_in_warp<32>(sum[0]);
    const unsigned n_warps = blockDim.x / 32;
    if (threadIdx.x % 32 == 0)
        sums.send(args, blockIdx.y * n_warps + threadIdx.x / 32, sum);
    if (!sums.has_come(args, 32, (int)(gridDim.y * n_warps)))
        return;
    float total = 0;
#pragma unroll
    for (unsigned i = 0; i < kMost; i += 32)
        total +=
            i + threadIdx.x < gridDim.y * n_warps ? sums.values.of_warp[i + threadIdx.x] : 0.0f;
    total = sum_in_warp<32>(total);
    if (threadIdx.x == 0)
        static_cast<T *>(args.grad_y)[blockIdx.x] = element<T>::from_float(total);
}

// ------------------------------------------------------------------------------------ columns

// Lanes of a row side by side: 128 bytes of packets, or a warp of elements.
template <int kVec>
constexpr int kColumnLanes = kVec == 1 ? 32 : 8;

// Adds what the lanes of a warp with the same columns have, and leaves each lane a part of these
// columns: a lane keeps a half of what it has at each exchange, and gives the other half away.
template <int kVec>
__device__ __forceinline__ void share_columns(float (&sum)[kVec])
{
    if constexpr (kVec > 1) {
        int n = kVec;
#pragma unroll
        for (int distance = 16; distance >= kColumnLanes<kVec>; distance /= 2) {
            const bool is_upper = threadIdx.x & distance;
            n /= 2;
#pragma unroll
            for (int j = 0; j < kVec / 2; j++) {
                if (j >= n)
                    break;
                const float kept = is_upper ? sum[n + j] : sum[j];
                sum[j] =
                    kept + __shfl_xor_sync(0xFFFFFFFFu, is_upper ? sum[j] : sum[n + j], distance);
            }
        }
    }
}

// A cluster has the columns of some lanes. kSteps: rows of a thread.
template <typename T, int kKind, int kVec, int kSteps>
__global__ void __launch_bounds__(kClusterColumnThreads)
    cluster_columns_kernel(const __grid_constant__ struct cluster_args args)
{
    using pack_of = packet<T, kVec>;
    constexpr int kLanes = kColumnLanes<kVec>, kColumns = kLanes * kVec;
    constexpr unsigned kWarps = kClusterColumnThreads / 32;
    constexpr int kSlot = kColumns + kColumns / kWarps; // no two of its lanes in a bank
    constexpr int kOwn = kColumns / 32;                 // columns that a lane sends
    __shared__ cluster_sums<kMostOfCluster * kWarps * kSlot> sums;
    let_next_start();
    sums.begin(kColumns);
    const uint32_t lane = threadIdx.x % kLanes;
    const uint32_t column = blockIdx.x * kLanes + lane;
    const uint32_t first = blockIdx.y * (blockDim.x / kLanes) + threadIdx.x / kLanes;
    const uint32_t step = gridDim.y * (blockDim.x / kLanes);
    const uint32_t kept = kept_place(args, column);
    const uint32_t n = column < args.n_kept ? args.n_terms : 0;
    const T *g[kSteps], *x[kSteps];
    T *grad_x[kSteps];
#pragma unroll
    for (int i = 0; i < kSteps; i++) {
        const uint32_t at = (kept + term_place(args, first + i * step)) * kVec;
        g[i] = ready_address(static_cast<const T *>(args.g) + at);
        x[i] = ready_address(static_cast<const T *>(args.x) + at);
        grad_x[i] = static_cast<T *>(args.grad_x) + at;
        finish_addresses(g[i], x[i]);
    }
    const T *from_y = ready_address(static_cast<const T *>(args.y) + column * kVec);
    finish_addresses(from_y);
    wait_for_previous();
    typename pack_of::raw raw_g[kSteps] = {}, raw_x[kSteps] = {}, raw_y = {};
#pragma unroll
    for (int i = 0; i < kSteps; i++)
        if (first + i * step < n) {
            raw_g[i] = pack_of::load(g[i]);
            raw_x[i] = pack_of::load(x[i]);
        }
    if (args.has_values && first < n)
        raw_y = pack_of::load(from_y);
    kept_elements<T, kKind, kVec> y;
    pack_of::widen(raw_y, y.y);
#pragma unroll
    for (int j = 0; j < kVec; j++)
        y.y[j] = args.has_values ? y.y[j] : args.one.y;
    y.begin(kKind);
    float sum[kVec] = {};
#pragma unroll
    for (int i = 0; i < kSteps; i++) {
        float term[kVec];
        if (first + i * step >= n)
            break;
        cluster_terms<T, kKind, kVec>(args, grad_x[i], raw_g[i], raw_x[i], y, term);
#pragma unroll
        for (int j = 0; j < kVec; j++)
            sum[j] += term[j];
    }
    share_columns<kVec>(sum);
    float own[kOwn];
#pragma unroll
    for (int j = 0; j < kOwn; j++)
        own[j] = sum[j];
    // lanes 16 apart have halves of a packet, those 8 apart halves of these
    const uint32_t part = kVec == 1 ? 0 : (threadIdx.x / 16 % 2) * 2 + threadIdx.x / 8 % 2;
    const uint32_t n_warps = blockDim.x / 32, slot = blockIdx.y * n_warps + threadIdx.x / 32;
    sums.send(args, slot * kSlot + lane * kVec + part * kOwn, own);
    const uint32_t n_slots = gridDim.y * n_warps;
    if (!sums.has_come(args, kClusterColumnThreads, (int)(n_slots * kSlot)))
        return;
    // a warp adds columns side by side, and lanes with the same one a part of the slots each
    const int bits = args.column_bits;
    const uint32_t of_warp = threadIdx.x & ((1 << bits) - 1), part_lane = threadIdx.x % 32 >> bits;
    const uint32_t of_block = (threadIdx.x / 32 << bits) + of_warp;
    const float *from = sums.values.of_warp + of_block;
    float total = 0;
#pragma unroll 4
    for (uint32_t i = part_lane; i < n_slots; i += 32 >> bits)
        total += from[i * kSlot];
    for (int distance = 16; distance >> bits > 0; distance /= 2)
        total += __shfl_xor_sync(0xFFFFFFFFu, total, distance);
    const uint32_t to = blockIdx.x * kColumns + of_block;
    if (part_lane == 0 && to < args.n_kept * kVec)
        static_cast<T *>(args.grad_y)[to] = element<T>::from_float(total);
}

// ------------------------------------------------------------------------------------ host

// How a call is cut over clusters; without threads it is not.
struct cluster_layout {
    bool is_columns, is_packed;
    int steps;           // of a thread
    int threads, blocks; // of a block, and of a cluster
    int64_t groups;
    int column_bits;
    int64_t of_group; // values in memory, where there are no clusters
};

// Terms of a sum over columns, at least, and elements of a call, at most.
constexpr int64_t kLeastClusterTerms = 4;
constexpr int64_t kMostClusterElements = 12 * kMultiprocessors * 1024;

// Does the innermost kept dim or summed dim, and one around it, have all of a gradient's?
static inline bool name_cluster(const struct sum_args &sum, bool is_columns, int vec,
                                struct cluster_args *args)
{
    const int n_kept = sum.n_kept_dims, n_summed = sum.n_dims - sum.n_kept_dims;
    if (n_kept > 2 || n_summed > 2 || n_summed < 1 || sum.n >= INT_MAX / 2)
        return false;
    const auto line_of = [&](int first, int n, bool is_inner, uint32_t *one, uint32_t *turn,
                             divisor_of_index *by) {
        const int of_line = is_inner ? vec : 1; // packets of the innermost dim
        const struct sum_dim inner = n > 0 ? sum.dim[first + n - 1] : sum_dim{1, {}, 1, 1};
        const int64_t size = inner.size / of_line, stride = is_inner ? 1 : inner.g / vec;
        *one = (uint32_t)stride;
        *by = index_divisor(size);
        *turn = n > 1 ? (uint32_t)(sum.dim[first].g / vec - size * stride) : 0;
        if (n < 2)
            *by = index_divisor(INT_MAX);
    };
    line_of(0, n_kept, is_columns, &args->kept, &args->kept_turn, &args->by_kept);
    line_of(n_kept, n_summed, !is_columns, &args->term, &args->run_turn, &args->by_run);
    args->n_kept = (uint32_t)(sum.n_kept / (is_columns ? vec : 1));
    args->n_terms = (uint32_t)(sum.n_steps / (is_columns ? 1 : vec));
    return true;
}

// is_plain: of rows of one dim, whose kernels (binary_turn.cuh) wait hardly longer where there are
// many of them, or narrow ones.
static inline struct cluster_layout lay_out_cluster_rows(int64_t n_sums, int64_t n_terms,
                                                         bool is_packed, bool is_plain)
{
    const int64_t places = kMultiprocessors * 1024; // threads at once
    const int64_t least_packed = is_plain ? 512 : 32, least_odd = is_plain ? 2048 : 16;
    const int64_t most_sums = is_plain ? 32 : 2048;
    struct cluster_layout layout = {};
    if (n_terms < (is_packed ? least_packed : least_odd) || n_sums > most_sums)
        return layout;
    const int fewest = is_packed ? (n_sums * n_terms > places ? 2 : 1) : 4;
    const int most_steps = is_packed ? 2 : 4;
    // the smallest blocks, of few packets for each thread, that have room
    for (int64_t most_threads = 512, steps = fewest; most_threads <= kClusterRowThreads;) {
        const int64_t threads = blocks_of(n_terms, steps);
        int blocks = 1;
        while (2 * blocks <= kMostOfCluster &&
               (blocks_of(threads, blocks) > most_threads ||
                (blocks_of(threads, blocks) > 64 && n_sums * blocks < kMultiprocessors)))
            blocks *= 2;
        layout.threads = (int)blocks_of(blocks_of(threads, blocks), 32) * 32;
        layout.steps = (int)steps;
        layout.blocks = blocks;
        layout.groups = n_sums;
        layout.of_group = kMostOfCluster * kClusterRowThreads / 32;
        if (layout.threads <= most_threads)
            return layout;
        if (steps < most_steps)
            steps *= 2;
        else
            most_threads *= 2;
    }
    return {};
}

// Blocks of 256 threads, or of fewer where a sum has not so many terms. No more of them than it
// takes: a thread that has four packets' terms asks for all of them at once.
static inline struct cluster_layout lay_out_cluster_columns(int64_t n_lanes, int64_t n_terms,
                                                            int vec)
{
    const int lanes = vec == 1 ? 32 : 8, most_steps = vec == 1 ? 8 : 4, few = vec == 1 ? 2 : 1;
    const int threads = power_of_two(n_terms * lanes, kClusterColumnThreads);
    const int64_t groups = blocks_of(n_lanes, lanes);
    struct cluster_layout layout = {};
    layout.is_columns = true;
    layout.threads = threads < 64 ? 64 : threads;
    layout.groups = groups;
    const int64_t of_block = layout.threads / lanes;
    int64_t blocks = 1;
    while (2 * blocks <= kMostOfCluster && n_terms > blocks * of_block * most_steps)
        blocks *= 2;
    const int64_t steps = blocks_of(n_terms, blocks * of_block);
    if (n_terms < kLeastClusterTerms || steps > most_steps ||
        groups * blocks > 8 * kMultiprocessors)
        return {};
    layout.steps = steps <= few ? few : most_steps;
    layout.blocks = (int)blocks;
    const int columns = lanes * vec, warps = kClusterColumnThreads / 32;
    layout.column_bits = bits_of(columns / (layout.threads / 32));
    layout.of_group = kMostOfCluster * warps * (columns + columns / warps);
    return layout;
}

template <typename T>
static struct cluster_layout lay_out_cluster(const struct binary_plan *plan, int32_t sum_side,
                                             const struct sum_args &tensors,
                                             struct cluster_args *args)
{
    constexpr int64_t kMostOfSingle = kMultiprocessors * 1024;
    struct sum_args sum = tensors;
    struct cluster_layout layout = {};
    const bool is_columns = keeps_columns(plan, sum_side);
    const bool divides = plan->function == BINARY_DIV && sizeof(T) == 4;
    bool is_packed = inner_dim(plan, 0) % kVecOf<T> == 0 &&
                     are_aligned({sum.g, sum.x, sum.grad_x, is_columns ? sum.y : nullptr});
    if (is_columns && divides && plan->n <= kMostOfSingle)
        is_packed = false;
    const int vec = is_packed ? kVecOf<T> : 1;
    name_dims(plan, sum_side, 0, &sum);
    if (plan->rank == 0 || plan->n > kMostClusterElements ||
        !name_cluster(sum, is_columns, vec, args))
        return layout;
    const bool is_plain = sum.n_kept_dims <= 1 && sum.n_dims - sum.n_kept_dims <= 1;
    layout = is_columns ? lay_out_cluster_columns(args->n_kept, args->n_terms, vec)
                        : lay_out_cluster_rows(args->n_kept, args->n_terms, is_packed, is_plain);
    layout.is_packed = is_packed;
    return layout;
}

template <typename T, int kKind>
static kernel_fn<cluster_args> *cluster_kernel_of(const struct cluster_layout &layout)
{
    constexpr int kVec = kVecOf<T>;
    if (layout.is_columns && layout.is_packed)
        return layout.steps == 1 ? cluster_columns_kernel<T, kKind, kVec, 1>
                                 : cluster_columns_kernel<T, kKind, kVec, 4>;
    if (layout.is_columns)
        return layout.steps == 2 ? cluster_columns_kernel<T, kKind, 1, 2>
                                 : cluster_columns_kernel<T, kKind, 1, 8>;
    if (layout.is_packed)
        return layout.steps == 1 ? cluster_rows_kernel<T, kKind, kVec, 1>
                                 : cluster_rows_kernel<T, kKind, kVec, 2>;
    return cluster_rows_kernel<T, kKind, 1, 4>;
}

template <typename T>
static enum roped_status launch_cluster(const struct cluster_layout &layout,
                                        const struct sum_args &sum, struct cluster_args *args,
                                        struct roped_queue *queue, struct roped_error *err)
{
    name_operands(sum, args);
    args->column_bits = layout.column_bits;
    if (!queue->can_overlap) {
        const int64_t n_partial = layout.groups * layout.of_group;
        enum roped_status status =
            roped_cuda_scratch(queue, n_partial * (int64_t)sizeof(float), layout.groups,
                               &args->partial, &args->counter, err);
        if (status)
            return status;
    }
    return start(queue,
                 sum.kind == kBinaryMul     ? cluster_kernel_of<T, kBinaryMul>(layout)
                 : sum.kind == kBinaryOverY ? cluster_kernel_of<T, kBinaryOverY>(layout)
                                            : cluster_kernel_of<T, kBinaryOverX>(layout),
                 dim3((unsigned)layout.threads), layout.groups, dim3(1, (unsigned)layout.blocks),
                 *args, err, 0, layout.blocks > 1);
}
