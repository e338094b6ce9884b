// norm_gradient.cuh - the kernels of gradients of norms, and how they are started; for
// rmsnorm_backward and layer_norm_backward.
//
// A block takes every n-th row, n the number of blocks. Rows come to shared memory while those
// before them are summed; grad_x is written, and what the columns' sums have of the row is added
// in registers for 16 rows, then in shared memory, or of rows that have no registers for themselves
// in registers to the end. Then a block leaves its sums as partial ones, which a second kernel adds
// in the order of the blocks; a single block writes the results.
//
// Vectors of 16 bytes go round the threads of a row, which are as many whole warps as it needs.
// Rows of up to 1,024 vectors, or of float32 2,048, are in registers while they are summed and
// written, most of them by norm_gradient_turns.cuh; others in shared memory beside their gains, up
// to 2,048 vectors, or 3,072 of 16 bits without a mean; others are read again. Where columns' sums
// would be more than what is read, each row has a block of its own, a few wide ones a cluster, and
// columns are read again; such kernels also have rows that are wider, and those that 16 bytes do
// not divide (norm_gradient_only.cuh). Of these many come in packets (norm_gradient_packets.cuh and
// norm_gradient_wide.cuh), and a few in single elements (norm_gradient_elements.cuh).
//
// The number of blocks, and what each of their threads adds, follow from the shape, and from
// whether 16 bytes divide addresses and rows: the same bits from run to run and from device to
// device. grad_x has the same at any address.
#pragma once

extern "C" {
#include "ops/rmsnorm.h"
}

#include "cuda/norm_gradient_elements.cuh"
#include "cuda/norm_gradient_narrow.cuh"
#include "cuda/norm_gradient_tiny.cuh"
#include "cuda/norm_gradient_turns.cuh"
#include "cuda/norm_gradient_wide.cuh"

// ------------------------------------------------------------------------------------ kernels

// grad_residual of a vector.
template <typename C>
__device__ __forceinline__ void load_residual(const norm_gradient_args &args, int64_t row,
                                              int64_t column, float (&residual)[C::kVec])
{
    using T = typename C::T;
    const T *from = static_cast<const T *>(args.grad_residual);
    uint4 raw = {};
    if (from)
        raw = load_raw<C>(from + row * args.grad_residual_pitch + column,
                          counted<C>(args, row, column));
    unpack<T>(raw, residual);
}

// grad_x of a row, and what it adds to the columns' sums.
template <typename C>
__device__ __forceinline__ void
write_row(const norm_gradient_args &args, const row_in_hand<C> &row, const row_factors &of,
          const uint4 (&residual)[C::kVectors], column_sums<C> &sums)
{
    using T = typename C::T;
    T *to = static_cast<T *>(args.grad_x) + row.row * args.grad_x_pitch;
    row.for_each([&](int v, int64_t column, int n, auto &x, auto &g, auto &w) {
        float made[C::kVec];
        if constexpr (C::kHasHalves)
            load_residual<C>(args, row.row, column, made);
        else
            unpack<T>(residual[v], made);
        descend<C>(of, x, g, w, made);
        store_row<C>(to + column, n, made);
        if (n > 0)
            sums.add(v, g, x);
    });
}

template <typename C>
__device__ __forceinline__ void load_residual(const norm_gradient_args &args,
                                              const gradient_place<C> &place, int64_t row,
                                              uint4 (&residual)[C::kVectors])
{
    using T = typename C::T;
    const T *from = static_cast<const T *>(args.grad_residual);
#pragma unroll
    for (int v = 0; v < C::kVectors; v++) {
        int column = place.column(v);
        residual[v] = make_uint4(0, 0, 0, 0);
        if (from)
            residual[v] = load_raw<C>(from + row * args.grad_residual_pitch + column,
                                      counted<C>(args, row, column));
    }
}

template <typename C>
__device__ __forceinline__ void prefetch_residual(const norm_gradient_args &args,
                                                  const gradient_place<C> &place, int64_t row)
{
    using T = typename C::T;
    const T *from = static_cast<const T *>(args.grad_residual);
#pragma unroll
    for (int v = 0; from && v < C::kVectors; v++)
        if (counted<C>(args, row, place.column(v)) > 0)
            prefetch_to_l2(from + row * args.grad_residual_pitch + place.column(v));
}

// To shared memory, where nobody else reads them.
template <typename C>
__device__ __forceinline__ void stage_own_gains(const norm_gradient_args &args,
                                                const gradient_place<C> &place,
                                                const row_in_hand<C> &row)
{
    float w[C::kVectors][C::kVec];
    load_own_gains<C>(args, place, w);
#pragma unroll
    for (int v = 0; v < C::kVectors; v++)
#pragma unroll
        for (int i = 0; i < C::kVec; i += 4)
            row.gain(v, i) = make_float4(w[v][i], w[v][i + 1], w[v][i + 2], w[v][i + 3]);
}

template <typename C>
static __global__ void __launch_bounds__(C::kBlock, C::kMinBlocks)
    norm_gradient_kernel(const __grid_constant__ struct norm_gradient_args args)
{
    extern __shared__ uint4 memory[]; // the ring, then sums, or gains
    __shared__ gradient_exchange<C> exchange;
    let_next_start();
    const gradient_place<C> place;
    const row_ring<C> ring{args, place, memory, args.n_stages ? policy_of(args.keeps) : 0};
    float *all = args.partial + blockIdx.x * args.n_sums * args.sum_pitch;
    if (args.sums_in_shared)
        all = reinterpret_cast<float *>(ring.slot(args.n_stages, 0, 0) - threadIdx.x) +
              place.group * args.n_sums * args.sum_pitch;
    column_sums<C> sums{args, place, all};
    float w[C::kHolds ? C::kVectors : 1][C::kVec];
    exchange.clear();
    wait_for_previous();
    for (int i = 0; i < args.n_stages; i++)
        ring.fetch(place.row(i), i);
    row_in_hand<C> row{ring, w};
    if (C::kHolds && !args.n_stages) {
        row.row = place.row(0);
        row.hold(); // its loads begin before those of the gains
    }
    if constexpr (C::kHolds) {
        load_own_gains<C>(args, place, w);
    } else {
        row.gains = reinterpret_cast<float4 *>(ring.slot(args.n_stages, 0, 0) - threadIdx.x);
        stage_own_gains<C>(args, place, row);
    }
    for (int64_t turn = 0; place.row(turn) - place.group < args.n_rows; turn++) {
        uint4 residual[C::kVectors];
        row.row = place.row(turn);
        if constexpr (C::kHasHalves)
            prefetch_residual<C>(args, place, row.row);
        else
            load_residual<C>(args, place, row.row, residual);
        if (!C::kHolds || args.n_stages)
            wait_for_stage(args.n_stages);
        if (args.n_stages || turn > 0)
            row.hold();
        if (C::kHolds && args.n_stages)
            ring.fetch(place.row(turn + args.n_stages), row.stage);
        const row_factors of = find_factors<C>(row, row.again(), exchange, (int)(turn % 2));
        row.forget();
        write_row(args, row, of, residual, sums);
        if (!C::kHolds)
            ring.fetch(place.row(turn + args.n_stages), row.stage);
        if (++row.stage == args.n_stages)
            row.stage = 0;
        bool is_last = place.row(turn + 1) - place.group >= args.n_rows;
        if (C::kHolds && args.n_sums &&
            (turn % kRowsInRegisters == kRowsInRegisters - 1 || is_last))
            sums.put_down(turn < kRowsInRegisters, is_last);
    }
    if (!C::kHolds && args.n_sums)
        sums.put_down(true, true);
    if (C::kGroups > 1 && args.n_sums)
        add_groups<C>(args, all - place.group * args.n_sums * args.sum_pitch);
}

// ------------------------------------------------------------------------------------ launch

// Of a thread's vectors in x and grad_y of a row, and of the gains that are not in registers.
template <typename C>
constexpr int64_t kStageBytes = 2 * C::kVectors * 16;
template <typename C>
constexpr int64_t kGainBytes = C::kHolds ? 0 : C::kVectors *C::kVec *(int64_t)sizeof(float);

// Is there room for one row, and its gains?
template <typename C>
static bool has_room(int64_t threads, const struct roped_queue *queue)
{
    return room_of_block<C>(1, queue) >= (kStageBytes<C> + kGainBytes<C>)*threads;
}

// What of it the ring gets, and the sums or the gains. Returns bytes.
template <typename C>
static int64_t share_memory(struct norm_gradient_args *args, int threads, int64_t turns,
                            const struct roped_queue *queue)
{
    const int64_t room = room_of_block<C>(blocks_at_once<C>(threads), queue);
    const int64_t stage = kStageBytes<C> * threads;
    const bool sums = C::kHolds && args->n_sums && (C::kGroups > 1 || turns > kRowsInRegisters);
    int64_t bytes = sums ? C::kGroups * args->n_sums * args->sum_pitch * (int64_t)sizeof(float) : 0;
    args->sums_in_shared = sums && bytes <= room;
    bytes = args->sums_in_shared ? bytes : kGainBytes<C> * threads;
    if (turns > 1 || !C::kHolds) {
        int64_t stages = (room - bytes) / stage;
        stages = stages < turns ? stages : turns;
        args->n_stages = (int32_t)(stages < kMostStages ? stages : kMostStages);
    }
    return bytes + args->n_stages * stage;
}

// The sum of a row is that of so many threads, which follows from its width alone: whole warps, of
// two or four vectors for each thread where norm_gradient_kernel has such rows, and else as many as
// there may be, two shares for each where they are half as many.
static inline int64_t shares_of(int64_t vectors, bool is_whole)
{
    const int64_t least = vectors > 512 ? 64 : 32;
    if (is_whole && vectors <= 2048)
        return 32 * blocks_of(vectors, vectors <= 1024 ? 64 : 128);
    return least * blocks_of(vectors, least * blocks_of(vectors, 1024));
}

template <typename C>
static enum roped_status launch_rows(struct norm_gradient_args args, struct roped_queue *queue,
                                     struct roped_error *err)
{
    const int64_t vectors = args.sum_pitch / C::kVec;
    const int threads =
        C::kGroups > 1 ? C::kBlock : (int)shares_of(vectors, true) / (C::kHasHalves ? 2 : 1);
    const int64_t n_groups = blocks_of(args.n_rows, C::kGroups);
    const int64_t n_blocks = gradient_blocks(&args, n_groups, blocks_at_once<C>(threads));
    const int64_t turns = n_blocks ? blocks_of(n_groups, n_blocks) : 0;
    const int64_t bytes = share_memory<C>(&args, threads, turns, queue);
    return start_blocks(norm_gradient_kernel<C>, args, threads, n_blocks, bytes, queue, err);
}

// A block's next row is so many rows further.
template <typename C>
static void set_steps(struct norm_gradient_args *args, int64_t rows)
{
    const int64_t bytes = rows * (int64_t)sizeof(typename C::T);
    args->steps[0] = args->x_pitch * bytes;
    args->steps[1] = args->grad_y_pitch * bytes;
    args->steps[2] = args->grad_residual_pitch * bytes;
    args->steps[3] = args->grad_x_pitch * bytes;
}

// Rows of up to 32 vectors, of which a block takes several in turn. Those whose blocks have one
// turn have the other kernel, and so have calls that round. Full lanes of 16 wait for memory where
// there is no mean.
template <typename C>
static enum roped_status launch_lanes(struct norm_gradient_args args, struct roped_queue *queue,
                                      struct roped_error *err)
{
    if constexpr (!C::kRounds) {
        const int64_t n_groups = blocks_of(args.n_rows, C::kGroups);
        const int64_t n_blocks = gradient_blocks(&args, n_groups, blocks_at_once<C>(C::kBlock));
        const int64_t turns = n_blocks ? blocks_of(n_groups, n_blocks) : 0;
        const bool waits = !C::kCentres && args.sum_pitch == 16 * C::kVec;
        struct norm_gradient_args staged = args;
        const int64_t bytes = share_memory<C>(&staged, C::kBlock, turns, queue);
        set_steps<C>(&staged, n_blocks * C::kGroups);
        if (staged.n_stages >= 2 && args.n_rows <= INT_MAX / 2 && !waits)
            return start_blocks(lanes_norm_gradient_kernel<C>, staged, C::kBlock, n_blocks, bytes,
                                queue, err);
    }
    return launch_rows<C>(args, queue, err);
}

// Rows of up to 256 vectors are read again if both tensors are no more than that: then L2 still has
// them, and of grad_x as much as comes beside.
constexpr int64_t kReadAgain = 18 << 20;

// Aligned rows that wait in shared memory while they are summed and written.
static inline bool waits_in_shared(int64_t vectors)
{
    return vectors > 1024 && vectors <= 2048;
}

// Is it less to read x and grad_y again for the columns' sums than to write partial ones and to
// read those? Each row has a block of its own then. By traffic alone that would be so of 4 n_sums /
// element_bytes rows for each block that there is at once. Narrow rows gain further, for partial
// sums fill half of a sector with each store; those that two or three blocks of a multiprocessor
// hold in registers gain less, and so do those that wait in shared memory.
static inline bool reads_again(const struct norm_gradient_args &args, int64_t vectors,
                               int64_t at_once, int64_t element_bytes)
{
    const int64_t most = most_blocks(&args, at_once);
    const int64_t turns =
        (vectors <= 512 || waits_in_shared(vectors) ? 2 : 4) * args.n_sums / element_bytes;
    if (args.n_rows == 1 || args.n_rows <= most || !args.n_sums)
        return args.n_rows == 1 || args.n_rows <= most;
    return vectors <= 256 ? 2 * args.n_rows * args.hidden * element_bytes <= kReadAgain
                          : args.n_rows <= turns * most;
}

// Blocks of rows of any width: a thread has one vector at a time.
static inline int64_t any_at_once(int64_t shares)
{
    return blocks_at_once(shares / 2);
}

static inline int64_t gain_bytes(const struct norm_gradient_args &args)
{
    const int64_t bytes = args.hidden * (args.weight_dtype == ROPED_F32 ? 4 : 2);
    return args.weight && is_aligned(args.weight, 16) ? blocks_of(bytes, 16) * 16 : 0;
}

// What of so many bytes waits in shared memory: a row, and its gains. Returns bytes.
static inline int64_t stage_row(struct norm_gradient_args *args, int64_t of_row, int64_t room,
                                int64_t room_of_gains)
{
    const int64_t gains = gain_bytes(*args);
    args->n_staged = of_row > room ? 0 : gains && of_row + gains <= room_of_gains ? 3 : 2;
    return args->n_staged ? of_row + (args->n_staged == 3) * gains : 0;
}

// Blocks of aligned rows that share them, a block for each multiprocessor; or 0.
template <typename T, bool kCentres, bool kRounds>
static int64_t blocks_in_turn(const struct norm_gradient_args &args)
{
    const int64_t vectors = args.sum_pitch / kVecOf<T>;
    if (vectors > 2048)
        return args.hidden == args.sum_pitch ? blocks_of_packets<T, kCentres, kRounds>(args) : 0;
    return !waits_in_shared(vectors) || reads_again(args, vectors, 1, sizeof(T))
               ? 0
               : gradient_blocks(&args, args.n_rows, 1);
}

// Rows of any width, at any address. Where columns' sums are more than the row, or there are few
// rows, each has a block of its own, of half of the threads where there is room for another. Rows
// that would be read by packets, had they all the same place in one, or by blocks that have no room
// for one, share blocks as those do.
template <typename T, bool kCentres, bool kRounds, bool kIsAligned>
static enum roped_status launch_any(struct norm_gradient_args args, struct roped_queue *queue,
                                    struct roped_error *err)
{
    using C = gradient_config<T, kCentres, kRounds, kIsAligned, 1024, 1, true>;
    const int64_t vectors = args.sum_pitch / C::kVec;
    const int64_t shares = shares_of(vectors, args.hidden == args.sum_pitch);
    const int64_t of_row = 2 * (vectors + !kIsAligned) * 16, at_once = any_at_once(shares);
    const int64_t of_sums = args.n_sums * args.sum_pitch * (int64_t)sizeof(float);
    const int64_t of_packets = kIsAligned ? blocks_in_turn<T, kCentres, kRounds>(args)
                                          : blocks_of_packets<T, kCentres, kRounds>(args);
    const bool is_many = args.n_rows > kMultiprocessors;
    // without room beside their two sums, rows would be read again for each pass over them
    const bool is_left_out = kCentres && of_row + of_sums > room_of_block<C>(1, queue);
    args.n_shares = (int32_t)shares;
    if (args.n_rows <= 1 || !args.n_sums || args.hidden > kMostFloatSum ||
        (vectors > 512 && !of_packets &&
         (!kIsAligned || of_sums > of_row || reads_again(args, vectors, at_once, sizeof(T)) ||
          (is_left_out && args.n_rows <= 3 * kMultiprocessors)))) {
        const int64_t two = room_of_block<C>(2, queue), one = room_of_block<C>(1, queue);
        const bool halves = is_many && of_row <= two && shares > 512 && shares % 64 == 0;
        const int64_t bytes = stage_row(&args, of_row, one, is_many ? two : one);
        return start_apart<C>(any_norm_gradient_kernel<C>, args, halves ? shares / 2 : shares,
                              bytes, queue, err);
    }
    const int64_t n_blocks = of_packets ? of_packets : gradient_blocks(&args, args.n_rows, at_once);
    const int64_t room = room_of_block<C>(at_once, queue);
    args.sums_in_shared = n_blocks < args.n_rows && of_sums <= room;
    const int64_t left = room - args.sums_in_shared * of_sums;
    const int64_t bytes = stage_row(&args, of_row, left, left);
    args.sums_behind = (int32_t)(bytes / 16);
    return start_blocks(any_norm_gradient_kernel<C>, args, (int)shares, n_blocks,
                        bytes + args.sums_in_shared * of_sums, queue, err);
}

// Do such rows wait for memory, not for instructions? Without a mean and what is added to grad_x
// they do where a block of 16 bits has more than 480 threads, and then the other kernel, which asks
// for a row as soon as the one before has left its place, is faster; so it is by 288 to 480 threads
// of float32.
template <typename C>
static bool waits_for_memory(const struct norm_gradient_args &args, int64_t vectors)
{
    if (args.grad_residual)
        return false;
    return sizeof(typename C::T) == 2 ? vectors > 960 && args.n_rows > 16 * kMultiprocessors
                                      : vectors > 512 && vectors <= 960;
}

template <typename C>
static enum roped_status launch_turns(struct norm_gradient_args args, struct roped_queue *queue,
                                      struct roped_error *err)
{
    using R = rows_in_turn<C>;
    const int64_t vectors = args.sum_pitch / C::kVec;
    if constexpr (!C::kCentres && !C::kRounds && C::kHolds)
        if (waits_for_memory<C>(args, vectors))
            return launch_rows<C>(args, queue, err);
    const int threads = (int)shares_of(vectors, true);
    struct norm_gradient_args staged = args;
    const int64_t n_blocks = gradient_blocks(&args, args.n_rows, blocks_at_once<C>(threads));
    const int64_t turns = n_blocks ? blocks_of(args.n_rows, n_blocks) : 0;
    int64_t bytes = share_memory<R>(&staged, threads, turns, queue);
    if (!C::kHolds) {
        const int64_t stage = kStageBytes<C> * threads;
        int64_t stages = room_of_block<R>(1, queue) / stage;
        stages = stages < turns ? stages : turns;
        staged.n_stages = (int32_t)(stages < kMostStages ? stages : kMostStages);
        bytes = staged.n_stages * stage;
    }
    set_steps<C>(&staged, n_blocks);
    if (staged.n_stages < 2 || n_blocks < 2 ||
        args.n_rows > INT_MAX / 2) // rows that are read again
        return launch_any<typename C::T, C::kCentres, C::kRounds, true>(args, queue, err);
    return start_blocks(turns_norm_gradient_kernel<R>, staged, threads, n_blocks, bytes, queue,
                        err);
}

// Cuts a row of so many shares into as many blocks, a cluster, as it takes for two on each
// multiprocessor, of two warps or more. Returns threads of each.
static inline int64_t cut_row(struct norm_gradient_args *args, int64_t shares)
{
    int64_t parts = 2;
    while (shares / parts > 256 ||
           (parts < 8 && shares / (2 * parts) >= 64 && parts * args->n_rows <= kMultiprocessors))
        parts *= 2;
    const int64_t warps = shares / 32, of_part = blocks_of(warps, parts);
    args->n_parts = (int32_t)blocks_of(warps, of_part);
    return 32 * of_part;
}

// Are there so few rows of more than 1,024 vectors that clusters have them? Each has two
// multiprocessors, and some are in no whole cluster. Of a block's width those with a mean are
// fewer.
template <bool kCentres>
static bool has_wide_parts(const struct norm_gradient_args &args, int64_t vectors,
                           const struct roped_queue *queue)
{
    const int64_t most = kMultiprocessors * (kCentres && vectors <= 2048 ? 4 : 7) / 8;
    return queue->can_overlap && vectors > 1024 && vectors <= 4096 && 2 * args.n_rows <= most;
}

// Rows of 1,025 to 4,096 vectors in registers, a block for each, or a cluster.
template <typename T, bool kCentres, bool kRounds>
static enum roped_status start_wide(struct norm_gradient_args args, int64_t vectors,
                                    struct roped_queue *queue, struct roped_error *err)
{
    using C = gradient_config<T, kCentres, kRounds, true, 1024, 4, true, true>;
    const int64_t shares = shares_of(vectors, true);
    args.n_shares = (int32_t)shares;
    const bool is_cut = has_wide_parts<kCentres>(args, vectors, queue);
    return start_only<C>(args, is_cut ? cut_row(&args, shares) : shares, queue, err);
}

// Wider float32 rows, if each part has a multiprocessor for itself: in shared memory.
static inline bool has_any_parts(const struct norm_gradient_args &args, int64_t vectors,
                                 const struct roped_queue *queue)
{
    return queue->can_overlap && vectors > 512 && 8 * args.n_rows <= kMultiprocessors &&
           args.hidden <= kMostFloatSum;
}

template <bool kCentres>
static enum roped_status start_any_parts(struct norm_gradient_args args, struct roped_queue *queue,
                                         struct roped_error *err)
{
    using C = gradient_config<float, kCentres, false, false, 1024, 1, true, true>;
    const int64_t vectors = args.sum_pitch / C::kVec;
    const int64_t shares = shares_of(vectors, args.hidden == args.sum_pitch);
    const int64_t threads = cut_row(&args, shares);
    args.n_shares = (int32_t)shares;
    args.n_packets = (int32_t)(blocks_of(vectors, shares) * (threads + 1));
    const int64_t bytes = 2 * 16 * (int64_t)args.n_packets;
    args.n_staged = bytes <= room_of_block<C>(1, queue) ? 2 : 0;
    return start_apart<C>(any_norm_gradient_kernel<C>, args, threads, args.n_staged ? bytes : 0,
                          queue, err);
}

template <typename T, bool kCentres, bool kRounds>
static enum roped_status launch_aligned(const struct norm_gradient_args &args,
                                        struct roped_queue *queue, struct roped_error *err)
{
    const int64_t vectors = args.sum_pitch / kVecOf<T>, threads = shares_of(vectors, true);
    const bool shares_block = vectors <= 32 && args.n_rows > 1,
               is_many = args.n_rows > kMultiprocessors;
    if (has_wide_parts<kCentres>(args, vectors, queue))
        return start_wide<T, kCentres, kRounds>(args, vectors, queue, err);
    if constexpr (sizeof(T) == 4)
        if (vectors > 4096 && has_elements<T>(args, vectors, kFewElementRows, queue))
            return launch_elements<T, kCentres, kRounds>(args, threads, queue, err);
    if constexpr (sizeof(T) == 4)
        if (vectors > 4096 && has_any_parts(args, vectors, queue))
            return start_any_parts<kCentres>(args, queue, err);
    if constexpr (!kRounds && sizeof(T) == 4)
        if (vectors > 2048 && has_packets<T, kCentres, kRounds>(args, queue))
            return launch_wide_packets<T, kCentres, kRounds>(args, threads, queue, err);
    if constexpr (!kCentres && sizeof(T) == 2) {
        using C = gradient_config<T, kCentres, kRounds, true, 512, 6>;
        if (vectors > 2048 && vectors <= 3072 && args.n_sums &&
            !reads_again(args, vectors, 1, sizeof(T)) && has_room<C>(threads / 2, queue))
            return launch_rows<C>(args, queue, err);
    }
    if (vectors > 2048)
        return launch_any<T, kCentres, kRounds, true>(args, queue, err);
    if (!shares_block && reads_again(args, vectors, blocks_at_once(threads), sizeof(T))) {
        if (!is_many && vectors > 32 && vectors <= 384)
            return start_only<gradient_config<T, kCentres, kRounds, true, 512, 1, true>>(
                args, 2 * threads, queue, err);
        if (vectors <= 64)
            return start_only<gradient_config<T, kCentres, kRounds, true, 32, 2, true>>(
                args, threads, queue, err);
        if (vectors <= 256)
            return start_only<gradient_config<T, kCentres, kRounds, true, 128, 2, true>>(
                args, threads, queue, err);
        if (is_many && vectors > 512)
            return launch_any<T, kCentres, kRounds, true>(args, queue, err);
        if (vectors > 1024)
            return start_wide<T, kCentres, kRounds>(args, vectors, queue, err);
        return start_only<gradient_config<T, kCentres, kRounds, true, 512, 2, true>>(args, threads,
                                                                                     queue, err);
    }
    if (vectors <= 16)
        return launch_lanes<gradient_config<T, kCentres, kRounds, true, 16, 1>>(args, queue, err);
    if (vectors <= 32)
        return launch_lanes<gradient_config<T, kCentres, kRounds, true, 32, 1>>(args, queue, err);
    if (vectors <= 1024)
        return launch_turns<gradient_config<T, kCentres, kRounds, true, 512, 2>>(args, queue, err);
    using C = gradient_config<T, kCentres, kRounds, true, 512, 4>;
    if (!has_room<C>(threads, queue))
        return launch_any<T, kCentres, kRounds, true>(args, queue, err);
    if constexpr (sizeof(T) == 4)
        return launch_turns<C>(args, queue, err);
    return launch_rows<C>(args, queue, err);
}

// Rows that 16 bytes do not divide, or that begin anywhere: a few are the work of clusters, and
// others of which each has a multiprocessor are in registers.
template <typename T, bool kCentres, bool kRounds>
static enum roped_status launch_shifted(const struct norm_gradient_args &args,
                                        struct roped_queue *queue, struct roped_error *err)
{
    const int64_t vectors = args.sum_pitch / kVecOf<T>;
    const int64_t shares = shares_of(vectors, args.hidden == args.sum_pitch);
    if (has_narrow<T>(args))
        return launch_narrow<T, kCentres, kRounds>(args, queue, err);
    if (has_packets<T, kCentres, kRounds>(args, queue)) {
        if constexpr (!kRounds || !kCentres)
            if (vectors >= kPacketVectors)
                return launch_wide_packets<T, kCentres, kRounds>(args, shares, queue, err);
        return launch_packets<T, kCentres, kRounds>(args, queue, err);
    }
    if (blocks_of_packets<T, kCentres, kRounds>(args)) // whose sums are those of such blocks
        return launch_any<T, kCentres, kRounds, false>(args, queue, err);
    if constexpr (!kRounds)
        if (is_tiny(args, vectors))
            return launch_tiny<T, kCentres>(args, queue, err);
    const bool fits_registers = vectors > 512 && vectors <= 2 * shares;
    if (has_elements<T>(args, vectors,
                        fits_registers && sizeof(T) == 2 ? kFewElementRows : kMostElementRows,
                        queue))
        return launch_elements<T, kCentres, kRounds>(args, shares, queue, err);
    if constexpr (sizeof(T) == 4)
        if (has_any_parts(args, vectors, queue))
            return start_any_parts<kCentres>(args, queue, err);
    if (fits_registers && args.n_rows <= kMultiprocessors)
        return start_only<gradient_config<T, kCentres, kRounds, false, 1024, 2, true>>(args, shares,
                                                                                       queue, err);
    return launch_any<T, kCentres, kRounds, false>(args, queue, err);
}

template <typename T, bool kCentres, bool kRounds>
static enum roped_status launch_gradient_of(const struct norm_gradient_args &args,
                                            struct roped_queue *queue, struct roped_error *err)
{
    bool is_aligned = are_aligned({args.grad_y, args.x, args.weight, args.grad_residual,
                                   args.grad_x, args.sum_to[0], args.sum_to[1]}) &&
                      are_vectors<T>({args.hidden, args.grad_y_pitch, args.x_pitch,
                                      args.grad_residual_pitch, args.grad_x_pitch});
    if (is_aligned)
        return launch_aligned<T, kCentres, kRounds>(args, queue, err);
    return launch_shifted<T, kCentres, kRounds>(args, queue, err);
}

// The call's tensors; biases and their gradients, which a norm that is not centred does not have,
// are NULL there.
struct norm_gradient_tensors {
    const struct roped_tensor *grad_y, *x, *weight, *bias, *grad_residual;
    const struct roped_tensor *grad_x, *grad_weight, *grad_bias;
};

static inline void add_sum(struct norm_gradient_args *args, int of,
                           const struct roped_tensor *operand, const struct roped_tensor *gradient)
{
    args->sum_place[of] = -1;
    if (!operand || !roped_tensor_given(operand))
        return;
    args->sum_place[of] = args->n_sums;
    args->sum_dtype = gradient->dtype;
    args->sum_to[args->n_sums++] = gradient->data;
}

static inline struct norm_gradient_args
norm_gradient_args_of(const struct rmsnorm_plan *plan, const struct norm_gradient_tensors *of,
                      int64_t per_vector)
{
    auto pitch = [&](const struct roped_tensor *tensor) {
        return plan->n_rows > 1 ? row_stride(tensor, plan->hidden) : plan->hidden;
    };
    struct norm_gradient_args args = {};
    args.n_parts = 1;
    args.grad_y = of->grad_y->data;
    args.x = of->x->data;
    args.weight = of->weight->data;
    args.grad_residual = of->grad_residual->data;
    args.grad_x = of->grad_x->data;
    args.n_rows = plan->n_rows;
    args.hidden = plan->hidden;
    args.sum_pitch = (plan->hidden + per_vector - 1) / per_vector * per_vector;
    args.grad_y_pitch = pitch(of->grad_y);
    args.x_pitch = pitch(of->x);
    args.grad_residual_pitch = pitch(of->grad_residual);
    args.grad_x_pitch = pitch(of->grad_x);
    args.eps = plan->eps;
    args.weight_bias = plan->weight_bias;
    args.inverse_hidden = (float)(1.0 / (double)plan->hidden);
    args.weight_dtype = plan->weight_dtype;
    auto end_of_rows = [&](const void *data, int64_t to_next) {
        const int64_t elements = (plan->n_rows - 1) * to_next + plan->hidden;
        return whole_end(data, elements * (int64_t)roped_dtype_bytes(of->x->dtype));
    };
    args.x_end = end_of_rows(args.x, args.x_pitch);
    args.grad_y_end = end_of_rows(args.grad_y, args.grad_y_pitch);
    args.grad_residual_end = end_of_rows(args.grad_residual, args.grad_residual_pitch);
    add_sum(&args, 0, of->weight, of->grad_weight);
    add_sum(&args, 1, of->bias, of->grad_bias);
    return args;
}

template <bool kCentres>
static enum roped_status launch_norm_gradient(const struct roped_call *call,
                                              const struct norm_gradient_tensors &of,
                                              struct roped_queue *queue, struct roped_error *err)
{
    const struct rmsnorm_plan *plan = (const struct rmsnorm_plan *)call->plan;
    return with_float_type(of.x->dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        struct norm_gradient_args args = norm_gradient_args_of(plan, &of, kVecOf<T>);
        args.keeps = passes_l2(roped_call_bytes(call), queue);
        if constexpr (sizeof(T) == 2)
            if (plan->rounding != RMSNORM_ROUND_ONCE)
                return launch_gradient_of<T, kCentres, true>(args, queue, err);
        return launch_gradient_of<T, kCentres, false>(args, queue, err);
    });
}
