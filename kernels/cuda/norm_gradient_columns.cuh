// norm_gradient_columns.cuh - the columns' sums of gradients of norms whose blocks take several
// rows each, and how many blocks there are; for norm_gradient.cuh.
#pragma once

#include "cuda/norm_gradient_only.cuh"

constexpr int kRowsInRegisters = 16; // added there, before their sum is added to that of others

// ------------------------------------------------------------------------------------ column sums

// A thread's share of a block's column sums: of some rows in registers, of all in memory, where
// nobody else reads and writes it.
template <typename C>
struct column_sums {
    const norm_gradient_args &args;
    const gradient_place<C> &place;
    float *all; // [n_sums][sum_pitch]
    float some[C::kSumsApart ? 1 : C::kSums][C::kVectors][C::kVec] = {};
    float4 *apart = nullptr; // the second sums, where registers do not have them: a thread's own

    __device__ __forceinline__ float4 &apart_of(int v, int i) const
    {
        return apart[i / 4 * args.n_packets + v * (int)blockDim.x + (int)threadIdx.x];
    }

    __device__ __forceinline__ void add(int v, const float (&g)[C::kVec],
                                        const float (&normal)[C::kVec])
    {
#pragma unroll
        for (int i = 0; i < C::kVec; i++) {
            some[0][v][i] = fmaf(g[i], normal[i], some[0][v][i]);
            if constexpr (C::kCentres && !C::kSumsApart)
                some[1][v][i] += g[i];
        }
        if constexpr (C::kSumsApart)
#pragma unroll
            for (int i = 0; i < C::kVec; i += 4) {
                float4 sum = apart_of(v, i);
                sum.x += g[i], sum.y += g[i + 1], sum.z += g[i + 2], sum.w += g[i + 3];
                apart_of(v, i) = sum;
            }
    }
    // From registers to memory. Of the first and of the last rows.
    __device__ __forceinline__ void put_down(bool is_first, bool is_last)
    {
#pragma unroll
        for (int s = 0; s < C::kSums; s++) {
#pragma unroll
            for (int v = 0; v < C::kVectors; v++) {
                int column = place.column(v);
                if (args.sum_place[s] < 0 || column >= args.sum_pitch)
                    continue;
                if constexpr (C::kSumsApart)
                    if (s == 1) {
                        put_down_vector<C>(args, all, args.sum_place[s], column, is_first, is_last,
                                           [&](int i, float) {
                                               const float4 &of = apart_of(v, i);
                                               return i % 4 == 0   ? of.x
                                                      : i % 4 == 1 ? of.y
                                                      : i % 4 == 2 ? of.z
                                                                   : of.w;
                                           });
                        continue;
                    }
                put_down_vector<C>(args, all, args.sum_place[s], column, is_first,
                                   is_last && C::kGroups == 1, [&](int i, float before) {
                                       return before + some[C::kSumsApart ? 0 : s][v][i];
                                   });
#pragma unroll
                for (float &x : some[C::kSumsApart ? 0 : s][v])
                    x = 0.0f;
            }
        }
    }
};

// Of a thread's columns.
template <typename C>
__device__ __forceinline__ void load_own_gains(const norm_gradient_args &args,
                                               const gradient_place<C> &place,
                                               float (&w)[C::kVectors][C::kVec])
{
    with_weight(args, args.weight, [&](auto *weight) {
#pragma unroll
        for (int v = 0; v < C::kVectors; v++) {
            int column = place.column(v);
            load_gains<C>(args, weight, column, counted<C>(args, 0, column), w[v]);
        }
    });
}

// Of the rows that a block has at once.
template <typename C>
__device__ __forceinline__ void add_groups(const norm_gradient_args &args, const float *all,
                                           int n_groups = C::kGroups)
{
    int64_t n = args.n_sums * args.sum_pitch;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < n; i += C::kBlock) {
        float sum = 0.0f;
#pragma unroll 8
        for (int group = 0; group < n_groups; group++)
            sum += all[group * n + i];
        int64_t place = i / args.sum_pitch, column = i - place * args.sum_pitch;
        if (args.partial)
            args.partial[blockIdx.x * n + i] = sum;
        else if (column < args.hidden)
            store_as(args.sum_dtype, args.sum_to[place], column, sum);
    }
}

constexpr int kSumBatch = 8;

// Where a block's partial sums begin: of packets those of the columns are behind some others.
static __device__ __forceinline__ int place_of_sums(const norm_gradient_args &args, int n,
                                                    int block)
{
    return block * n + ((args.first_column + block * args.column_step) & args.column_mask);
}

// A thread adds every kSumLanes-th partial sum of a column, and a tree the threads. Loads of a
// batch start together.
template <int kSumColumns, int kSumLanes>
static __global__ void __launch_bounds__(kSumColumns *kSumLanes)
    column_sum_kernel(const __grid_constant__ struct norm_gradient_args args)
{
    __shared__ double shared[kSumLanes][kSumColumns];
    let_next_start();
    const int lane = threadIdx.x / kSumColumns, at = threadIdx.x % kSumColumns;
    const int pitch = (int)args.sum_pitch, n = args.n_sums * pitch;
    const int i = (int)blockIdx.x * kSumColumns + at, place = i >= pitch;
    const int column = i - place * pitch;
    const bool has_sum = i < n && column < (int)args.hidden;
    const float *from = args.partial + (has_sum ? i : 0);
    double sum = 0.0;
    wait_for_previous();
    for (int first = lane; first < args.n_partial; first += kSumLanes * kSumBatch) {
        float x[kSumBatch];
#pragma unroll
        for (int j = 0; j < kSumBatch; j++)
            x[j] = load_float(
                from + place_of_sums(args, n, min(first + j * kSumLanes, args.n_partial - 1)));
#pragma unroll
        for (int j = 0; j < kSumBatch; j++)
            sum += first + j * kSumLanes < args.n_partial ? (double)x[j] : 0.0;
    }
    shared[lane][at] = sum;
    for (int half = kSumLanes / 2; half > 0; half /= 2) {
        __syncthreads();
        if (lane < half)
            shared[lane][at] = sum += shared[lane + half][at];
    }
    if (lane == 0 && has_sum)
        store_as(args.sum_dtype, args.sum_to[place], column, (float)sum);
}

// ------------------------------------------------------------------------------------ launch

// Blocks of so many threads that a multiprocessor is to have at once.
static inline int64_t blocks_at_once(int64_t threads)
{
    int64_t blocks = 512 / threads;
    return blocks < 1 ? 1 : blocks < 16 ? blocks : 16;
}
template <typename C>
static int64_t blocks_at_once(int threads)
{
    return C::kGroups > 1 ? C::kMinBlocks : blocks_at_once((int64_t)threads);
}

// How many blocks there may be: as many as are at once, and have room for their partial sums. 0:
// one would have none.
static inline int64_t most_blocks(const struct norm_gradient_args *args, int64_t at_once)
{
    const int64_t bytes = args->n_sums * args->sum_pitch * (int64_t)sizeof(float);
    const int64_t most = kMultiprocessors * at_once;
    return bytes && args->n_rows != 1 && ROPED_CUDA_SCRATCH_BYTES / bytes < most
               ? ROPED_CUDA_SCRATCH_BYTES / bytes
               : most;
}

// And how many there are, a multiple of so many: no more than take as many rows each as the one
// that takes most. That is, of rows in packets; of others where that is two rows, and leaves few
// multiprocessors without a block, for more turns than two gain by a last one that is short.
static inline int64_t gradient_blocks(const struct norm_gradient_args *args, int64_t n_rows,
                                      int64_t at_once, int64_t multiple = 1)
{
    const int64_t most = most_blocks(args, at_once) / multiple * multiple;
    if (n_rows <= most || !most)
        return n_rows < most ? n_rows : most;
    const int64_t turns = blocks_of(n_rows, most);
    const int64_t even = blocks_of(blocks_of(n_rows, turns), multiple) * multiple;
    return multiple > 1 || (turns == 2 && 4 * even >= 3 * kMultiprocessors) ? even : most;
}

// Blocks of 32 columns; or of 8, which are a sector of memory, of more partial sums than a thread
// of 32 has in two batches, if each has a multiprocessor.
static inline enum roped_status sum_columns(const struct norm_gradient_args *args,
                                            struct roped_queue *queue, struct roped_error *err)
{
    constexpr int kFew = 8;
    const int64_t n = args->n_sums * args->sum_pitch;
    const bool is_few = args->n_partial <= kFew * kSumBatch;
    const bool is_narrow = n <= 8 * kMultiprocessors && args->n_partial > 32 * 2 * kSumBatch;
    return start(queue,
                 is_few      ? column_sum_kernel<32, kFew>
                 : is_narrow ? column_sum_kernel<8, 128>
                             : column_sum_kernel<32, 32>,
                 dim3(is_few ? 32 * kFew : 1024), blocks_of(n, is_narrow ? 8 : 32), dim3(1), *args,
                 err);
}

// Blocks of a kernel, and what adds their sums, unless there is one, which has room for its own.
static inline enum roped_status start_blocks(kernel_fn<struct norm_gradient_args> *kernel,
                                             struct norm_gradient_args args, int threads,
                                             int64_t n_blocks, int64_t shared_bytes,
                                             struct roped_queue *queue, struct roped_error *err)
{
    uint32_t *counters;
    enum roped_status status = ROPED_OK;
    const bool is_result = n_blocks == 1 && (args.n_rows == 1 || args.sums_in_shared);
    args.n_partial = (int32_t)n_blocks;
    if (args.n_sums && !is_result)
        status = roped_cuda_scratch(
            queue, n_blocks * args.n_sums * args.sum_pitch * (int64_t)sizeof(float), 1,
            &args.partial, &counters, err);
    if (!status && n_blocks > 0)
        status = start(queue, kernel, dim3(threads), n_blocks, dim3(1), args, err, shared_bytes);
    return status || !args.partial ? status : sum_columns(&args, queue, err);
}

// Bytes of a multiprocessor's shared memory for the rings and sums of one of its blocks.
template <typename C>
static int64_t room_of_block(int64_t blocks, const struct roped_queue *queue)
{
    const int64_t of_block = 1024 + (int64_t)sizeof(gradient_exchange<C>); // whatever it does
    return queue->shared_bytes / blocks - of_block;
}
