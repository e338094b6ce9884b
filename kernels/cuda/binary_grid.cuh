// binary_grid.cuh - both gradients of a binary function whose operands are both broadcast, in one
// pass, where each has a dim that the other lacks, and both have the innermost one: one of the two
// dims is of few elements, the other one of many.
//
// A thread has some columns, in registers what the operand of few has there, and its sums. It takes
// one of the many after the other: their sums over the few are its own, too. grad_output is read
// once, and nothing is exchanged but the sums of few where the many are cut into segments.
#pragma once

#include "cuda/binary_parts.cuh"

struct grid_strides {
    int64_t g, many, few; // elements to the next index
};

struct grid_args {
    const void *g, *many, *few; // operands
    void *grad_many, *grad_few;
    float *partial; // [segments][elements of few], or none
    int64_t n_of_few, n_lanes;
    uint32_t packets, n_inner;
    divisor_of_index to_packets, to_inner;
    struct grid_strides outer, inner; // of the kept dims around what is summed, and inside of it
    int64_t g_of_many, many_of_many, g_of_few, few_of_few;
    int32_t n_many, n_few, many_of_segment;
    int32_t kind, has_values, is_packed; // threads have whole packets: chooses the kernel
    struct binary_ones one;              // x of few, y of many
};

constexpr int kGridThreads = 256;

// Threads have whole packets of columns, 64 bytes of grad_output for each of the many, where few
// are so few and rows are whole packets; else halves. Quotients of 16-bit types are always halves,
// for whole ones spilled.
constexpr int kFewOfPackets = 4, kMostOfFew = 8;

template <typename T>
static constexpr bool has_packets(bool is_mul)
{
    return is_mul || sizeof(T) == 4;
}

// Elements of a thread's columns.
template <typename T, int kFew>
struct grid_packet {
    static constexpr int kVec = 64 / kFew / (int)sizeof(T);
    uint4 raw;

    __device__ __forceinline__ void load(const T *from)
    {
        if (kVec * sizeof(T) == 16) {
            raw = load_16(from);
        } else {
            const uint2 half = load_8(from);
            raw = make_uint4(half.x, half.y, 0, 0);
        }
    }
    __device__ __forceinline__ void get(float (&x)[kVec]) const
    {
        float all[kVecOf<T>];
        unpack<T>(raw, all);
#pragma unroll
        for (int j = 0; j < kVec; j++)
            x[j] = all[j];
    }
    static __device__ __forceinline__ void store(T *to, const float (&x)[kVec])
    {
        float all[kVecOf<T>] = {};
#pragma unroll
        for (int j = 0; j < kVec; j++)
            all[j] = x[j];
        const uint4 packed = pack<T>(all);
        if (kVec * sizeof(T) == 16)
            store_16(to, packed);
        else
            *reinterpret_cast<uint2 *>(to) = make_uint2(packed.x, packed.y);
    }
};

template <typename T, int kKind, int kFew>
__global__ void __launch_bounds__(kGridThreads, 2)
    grid_kernel(const __grid_constant__ struct grid_args args)
{
    using packet_of = grid_packet<T, kFew>;
    constexpr int kVec = packet_of::kVec;
    let_next_start();
    const uint32_t lane = blockIdx.x * kGridThreads + threadIdx.x;
    if (lane >= args.n_lanes)
        return;
    const uint32_t kept = quotient(lane, args.to_packets), outer = quotient(kept, args.to_inner);
    const uint32_t inner = kept - outer * args.n_inner;
    const int64_t column = (int64_t)(lane - kept * args.packets) * kVec;
    const int32_t begin = (int32_t)blockIdx.y * args.many_of_segment;
    const int32_t n = min(args.many_of_segment, args.n_many - begin);
    const int64_t of_few = outer * args.outer.few + inner * args.inner.few + column;
    const int64_t of_many =
        outer * args.outer.many + inner * args.inner.many + column + begin * args.many_of_many;
    const T *g = static_cast<const T *>(args.g) + outer * args.outer.g + inner * args.inner.g +
                 column + begin * args.g_of_many;
    const T *many = static_cast<const T *>(args.many) + of_many;
    T *grad_many = static_cast<T *>(args.grad_many) + of_many;
    packet_of few[kFew], next_g[kFew], next_many;
    float sum[kFew][kVec] = {};
    const auto start_loads = [&] {
        next_many.load(many);
#pragma unroll
        for (int s = 0; s < kFew; s++)
            if (s < args.n_few)
                next_g[s].load(g + s * args.g_of_few);
        g += args.g_of_many;
        many += args.many_of_many;
    };
    wait_for_previous();
    start_loads();
#pragma unroll
    for (int s = 0; s < kFew; s++)
        if (s < args.n_few)
            few[s].load(static_cast<const T *>(args.few) + of_few + s * args.few_of_few);
#pragma unroll 1
    for (int i = 0; i < n; i++) {
        packet_of of_g[kFew];
        kept_elements<T, kKind, kVec> kept_many;
        float total[kVec] = {};
        next_many.get(kept_many.y);
#pragma unroll
        for (int s = 0; s < kFew; s++)
            of_g[s] = next_g[s];
        if (i + 1 < n)
            start_loads();
#pragma unroll
        for (int j = 0; j < kVec; j++)
            kept_many.y[j] = args.has_values ? kept_many.y[j] : args.one.y;
        kept_many.begin(args.kind);
#pragma unroll
        for (int s = 0; s < kFew; s++) {
            float of[kVec], with[kVec];
            if (s >= args.n_few)
                break;
            of_g[s].get(of);
            few[s].get(with);
#pragma unroll
            for (int j = 0; j < kVec; j++) {
                float term, of_total;
                kept_terms<T, kKind>(args.kind, of[j], args.has_values ? with[j] : args.one.x,
                                     kept_many, j, term, of_total);
                sum[s][j] += term;
                total[j] += of_total;
            }
        }
        packet_of::store(grad_many, total);
        grad_many += args.many_of_many;
    }
#pragma unroll
    for (int s = 0; s < kFew; s++) {
        const int64_t at = of_few + s * args.few_of_few;
        if (s >= args.n_few)
            break;
        if (args.partial == nullptr) {
            packet_of::store(static_cast<T *>(args.grad_few) + at, sum[s]);
            continue;
        }
        float *partial = args.partial + blockIdx.y * args.n_of_few + at;
#pragma unroll
        for (int j = 0; j < kVec; j += 2)
            *reinterpret_cast<float2 *>(partial + j) = make_float2(sum[s][j], sum[s][j + 1]);
    }
}

// ------------------------------------------------------------------------------------ host

// Are both operands broadcast in one dim each, inside of which and around which there is at most
// one that both have, and one innermost? Names the pass, whose blocks are a wave, or several where
// a thread would add too many in float32. Few elements are faster by each gradient's own blocks.
template <typename T>
static bool name_grid(const struct roped_call *call, struct grid_args *args)
{
    constexpr int32_t kBoth = BINARY_IN_A | BINARY_IN_B;
    constexpr int64_t kAtOnce = 2 * kMultiprocessors, kLeastAdded = 8, kMostAdded = 64,
                      kLeast = 1 << 20;
    const struct binary_plan *plan = reinterpret_cast<const struct binary_plan *>(call->plan);
    int place[2], n_own = 0; // of the dims that one operand has
    for (int i = 0; i < plan->rank; i++)
        if (plan->dim[i].in != kBoth && n_own++ < 2)
            place[n_own - 1] = i;
    if (n_own != 2 || plan->dim[place[0]].in == plan->dim[place[1]].in || plan->n < kLeast ||
        place[1] != plan->rank - 2)
        return false;
    const bool first_is_many = plan->dim[place[0]].size >= plan->dim[place[1]].size;
    const struct binary_dim *many = &plan->dim[place[!first_is_many]];
    const struct binary_dim *few = &plan->dim[place[first_is_many]];
    const int64_t width = inner_dim(plan, 0);
    args->is_packed = few->size <= kFewOfPackets && width % kVecOf<T> == 0 &&
                      has_packets<T>(plan->function != BINARY_DIV);
    const int64_t vec = args->is_packed ? kVecOf<T> : kVecOf<T> / 2;
    if (few->size > kMostOfFew || many->size > INT32_MAX || width % vec != 0)
        return false;
    struct sum_args sum = {};
    name_tensors(call, many->in, &sum);
    if (!are_aligned({sum.g, sum.x, sum.y, sum.grad_x, sum.grad_y}))
        return false;
    const int64_t n_inner = place[1] - place[0] == 2 ? plan->dim[place[0] + 1].size : 1;
    const int64_t n_outer = place[0] == 1 ? plan->dim[0].size : 1;
    const int64_t many_inside = first_is_many ? 1 : many->size,
                  few_inside = first_is_many ? few->size : 1;
    const int64_t n_kept = n_inner * width;
    args->n_lanes = n_outer * n_inner * (width / vec);
    if (args->n_lanes > INT32_MAX)
        return false;
    // [outer][first][inner][second][width]
    const int64_t second = plan->dim[place[1]].size * width;
    args->inner = {second, many_inside * width, few_inside * width};
    args->outer = {n_inner * second * plan->dim[place[0]].size, n_kept * many->size,
                   n_kept * few->size};
    args->g_of_many = first_is_many ? n_inner * second : width;
    args->g_of_few = first_is_many ? width : n_inner * second;
    args->many_of_many = first_is_many ? n_kept : width;
    args->few_of_few = first_is_many ? width : n_kept;
    args->n_many = (int32_t)many->size;
    args->n_few = (int32_t)few->size;
    args->n_inner = (uint32_t)n_inner;
    args->packets = (uint32_t)(width / vec);
    args->n_of_few = n_outer * n_kept * few->size;
    const int64_t groups = blocks_of(args->n_lanes, kGridThreads);
    const int64_t of_wave = clamp(kAtOnce / groups, 1, many->size);
    const int64_t waves = blocks_of(blocks_of(many->size, kMostAdded), of_wave);
    args->many_of_segment = (int32_t)clamp(blocks_of(many->size, of_wave * waves),
                                           std::min(kLeastAdded, many->size), many->size);
    const int64_t n_segments = blocks_of(many->size, args->many_of_segment);
    if (groups * n_segments < kMultiprocessors / 2 || n_segments > UINT16_MAX ||
        (n_segments > 1 &&
         args->n_of_few * n_segments > ROPED_CUDA_SCRATCH_BYTES / (int64_t)sizeof(float)))
        return false;
    args->g = sum.g;
    args->many = sum.y;
    args->few = sum.x;
    args->grad_many = sum.grad_y;
    args->grad_few = sum.grad_x;
    args->kind = sum.kind;
    args->has_values = sum.has_values;
    args->one = sum.one;
    args->to_packets = index_divisor(args->packets);
    args->to_inner = index_divisor(args->n_inner);
    return true;
}

template <typename T, int kKind>
static kernel_fn<grid_args> *grid_kernel_of(bool is_packed)
{
    constexpr int kFew = has_packets<T>(kKind == kBinaryMul) ? kFewOfPackets : kMostOfFew;
    return is_packed ? grid_kernel<T, kKind, kFew> : grid_kernel<T, kKind, kMostOfFew>;
}

template <typename T>
static enum roped_status launch_grid(struct grid_args *args, struct roped_queue *queue,
                                     struct roped_error *err)
{
    const int64_t n_segments = blocks_of(args->n_many, args->many_of_segment);
    uint32_t *counter;
    enum roped_status status = ROPED_OK;
    if (n_segments > 1)
        status = roped_cuda_scratch(queue, n_segments * args->n_of_few * (int64_t)sizeof(float), 0,
                                    &args->partial, &counter, err);
    if (!status)
        status = start(queue,
                       args->kind == kBinaryMul ? grid_kernel_of<T, kBinaryMul>(args->is_packed)
                                                : grid_kernel_of<T, kBinaryOver>(args->is_packed),
                       dim3(kGridThreads), blocks_of(args->n_lanes, kGridThreads),
                       dim3(1, (unsigned)n_segments), *args, err);
    if (status || n_segments == 1)
        return status;
    return start_parts<T>(args->partial, args->grad_few, args->n_of_few, n_segments, queue, err);
}
