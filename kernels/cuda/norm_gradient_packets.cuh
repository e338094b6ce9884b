// norm_gradient_packets.cuh - gradients of norms of many rows that 16 bytes do not divide, in the
// packets of 16 bytes that memory has; for norm_gradient.cuh.
//
// Rows that lie beside each other begin equally far behind a packet in x, grad_y, grad_x and
// grad_residual, and so does every eighth row (every fourth of float32) as the first: a block takes
// rows that all begin at the same place in a packet. Then a thread has the same columns of each: it
// knows their gains, and adds what they have in registers. Nothing is shifted but what a row's sum
// takes, for it is that of vectors which begin with the row, as in the other kernels.
//
// A thread has up to two packets of a row here, and two vectors, in registers;
// norm_gradient_wide.cuh has wider rows.
#pragma once

#include "cuda/norm_gradient_columns.cuh"

// ------------------------------------------------------------------------------------ a row

// The rows of a block on their way to shared memory, a packet more than they have vectors.
template <typename C>
struct packet_ring {
    using T = typename C::T;
    const norm_gradient_args &args;
    uint4 *memory;
    uint64_t policy;
    int first, last; // elements, counted from the first packet's: the row's, and those behind it

    __device__ __forceinline__ packet_ring(const norm_gradient_args &norm, uint4 *to)
        : args(norm), memory(to), policy(policy_of(norm.keeps))
    {
        const gradient_row<C> of(args, blockIdx.x);
        first = (int)((uintptr_t)of.x & 15) / (int)sizeof(T);
        last = first + (int)args.hidden;
    }
    // The v-th packet of a thread, or its v-th vector.
    __device__ __forceinline__ int packet(int v) const
    {
        return v * (int)blockDim.x + (int)threadIdx.x;
    }
    __device__ __forceinline__ int n_packets() const
    {
        return C::kIsWide ? args.n_packets : C::kVectors * (int)blockDim.x + 1;
    }
    __device__ __forceinline__ uint4 *slot(int stage, int which, int packet) const
    {
        return memory + (stage * 2 + which) * n_packets() + packet;
    }
    // Elements up to which packets of a row are whole: behind the last row may be no memory.
    __device__ __forceinline__ int whole(int64_t row) const
    {
        return row + 1 < args.n_rows ? last + C::kVec - 1 : last;
    }
    __device__ __forceinline__ bool is_whole(int64_t row, int packet) const
    {
        return (packet + 1) * C::kVec <= whole(row);
    }
    // What there is of a packet behind which there may be no memory.
    __device__ __forceinline__ uint4 end_of(const T *from, int packet) const
    {
        return load_pieces(reinterpret_cast<const char *>(from + packet * C::kVec),
                           (last - packet * C::kVec) * (int)sizeof(T));
    }
    __device__ __forceinline__ void fetch(int64_t row, int stage) const
    {
        const gradient_row<C> of(args, row);
        const T *x = of.x - first, *g = of.g - first;
        if (row + 1 < args.n_rows) { // whose last packet is whole: there is memory behind it
            const T *own_x = compute_now(x + packet(0) * C::kVec);
            const T *own_g = compute_now(g + packet(0) * C::kVec);
#pragma unroll
            for (int v = 0; v < C::kVectors; v++) {
                const int at = packet(v), behind = (at - packet(0)) * C::kVec;
                if (at * C::kVec >= last)
                    continue;
                copy_16<true>(slot(stage, 0, at), own_x + behind, true, policy);
                copy_16<true>(slot(stage, 1, at), own_g + behind, true, policy);
            }
        } else if (row < args.n_rows) {
#pragma unroll 1
            for (int v = 0; v < C::kVectors; v++) {
                const int at = packet(v);
                if (at * C::kVec >= last)
                    continue;
                *slot(stage, 0, at) = end_of(x, at);
                *slot(stage, 1, at) = end_of(g, at);
            }
        }
        end_stage();
    }
    // What the row's order has as a vector, with zeros behind the row.
    __device__ __forceinline__ uint4 vector(int stage, int which, int vector) const
    {
        constexpr int kSize = (int)sizeof(T);
        const uint32_t at = shared_address(slot(stage, which, vector));
        const int left = (int)args.hidden - vector * C::kVec;
        uint4 raw =
            shift_packets<kSize>(load_shared_16(at), load_shared_16(at + 16), first * kSize);
        if (left < C::kVec) {
            uint32_t word[4] = {raw.x, raw.y, raw.z, raw.w};
            keep_units<kSize>(word, left);
            raw = make_uint4(word[0], word[1], word[2], word[3]);
        }
        return raw;
    }
    // A thread's packets of another tensor's row.
    __device__ __forceinline__ void load(const T *from, int64_t row,
                                         uint4 (&raw)[C::kVectors]) const
    {
        from -= first;
#pragma unroll
        for (int v = 0; v < C::kVectors; v++) {
            const int at = packet(v);
            raw[v] = load_16_if(is_whole(row, at), from + at * C::kVec);
            if (!is_whole(row, at) && at * C::kVec < last)
                raw[v] = end_of(from, at);
        }
    }
    // Is all of a packet the row's?
    __device__ __forceinline__ bool is_own(int packet) const
    {
        return packet * C::kVec >= first && (packet + 1) * C::kVec <= last;
    }
    // What the row has of a packet.
    __device__ __forceinline__ void store_own(T *to, int packet, const uint4 &y) const
    {
        store_part<(int)sizeof(T)>(reinterpret_cast<char *>(to - first + packet * C::kVec),
                                   first - packet * C::kVec, last - packet * C::kVec, y);
    }
};

// The vectors of a thread, in the order of the row's sum.
template <typename C>
struct packet_vectors {
    using T = typename C::T;
    const packet_ring<C> &ring;
    const float *gains; // of the row's columns
    uint4 x[C::kVectors], g[C::kVectors];

    // One of them.
    struct nth_vector {
        const packet_vectors &of;
        int v;

        template <typename F>
        __device__ __forceinline__ void for_each(const F &f) const
        {
            const int column = of.ring.packet(v) * C::kVec;
            const int left = (int)of.ring.args.hidden - column;
            float of_x[C::kVec], of_g[C::kVec], w[C::kVec];
            if (left <= 0)
                return;
            unpack<T>(of.x[v], of_x);
            unpack<T>(of.g[v], of_g);
#pragma unroll
            for (int i = 0; i < C::kVec; i += 4) {
                const float4 gain = *reinterpret_cast<const float4 *>(of.gains + column + i);
                w[i] = gain.x, w[i + 1] = gain.y, w[i + 2] = gain.z, w[i + 3] = gain.w;
            }
            f(v, column, min(left, C::kVec), of_x, of_g, w);
        }
    };
    __device__ __forceinline__ nth_vector nth(int v) const
    {
        return {*this, v};
    }
    __device__ __forceinline__ void hold(int stage)
    {
#pragma unroll
        for (int v = 0; v < C::kVectors; v++) {
            x[v] = ring.vector(stage, 0, ring.packet(v));
            g[v] = ring.vector(stage, 1, ring.packet(v));
        }
    }
};

// ------------------------------------------------------------------------------------ kernel

// The gains of all columns, to shared memory as floats, of which the first kVec are no column's.
template <typename C>
__device__ __forceinline__ void stage_gains(const norm_gradient_args &args,
                                            const packet_ring<C> &ring, float *gains)
{
    if (threadIdx.x < C::kVec)
        gains[threadIdx.x] = 0.0f;
    with_weight(args, args.weight, [&](auto *weight) {
#pragma unroll 1
        for (int v = 0; v < C::kVectors; v++) {
            const int column = ring.packet(v) * C::kVec;
            float w[C::kVec];
            load_gains<C>(args, weight, column, counted<C>(args, 0, column), w);
#pragma unroll
            for (int i = 0; i < C::kVec; i += 4)
                *reinterpret_cast<float4 *>(gains + C::kVec + column + i) =
                    make_float4(w[i], w[i + 1], w[i + 2], w[i + 3]);
        }
    });
    __syncthreads();
}

// grad_x of a row, and what it adds to the columns' sums, by packets.
template <typename C>
__device__ __forceinline__ void
write_packets(const packet_ring<C> &ring, int64_t row, int stage, const row_factors &of,
              const uint4 (&residual)[C::kVectors], const float (&w)[C::kVectors][C::kVec],
              column_sums<C> &sums)
{
    using T = typename C::T;
    T *to = static_cast<T *>(ring.args.grad_x) + row * ring.args.grad_x_pitch;
    uint4 end = {};
    int cut = -1; // its last packet that is not whole: those of all lanes are stored at once
#pragma unroll
    for (int v = 0; v < C::kVectors; v++) {
        const int at = ring.packet(v);
        float x[C::kVec], g[C::kVec], made[C::kVec];
        if (at * C::kVec >= ring.last)
            continue;
        unpack<T>(*ring.slot(stage, 0, at), x);
        unpack<T>(*ring.slot(stage, 1, at), g);
        unpack<T>(residual[v], made);
        descend<C>(of, x, g, w[v], made);
        if (ring.is_own(at)) {
            store_16(to - ring.first + at * C::kVec, pack<T>(made));
        } else {
            if (cut >= 0)
                ring.store_own(to, cut, end);
            cut = at;
            end = pack<T>(made);
        }
        sums.add(v, g, x);
    }
    if (cut >= 0)
        ring.store_own(to, cut, end);
}

template <typename C>
static __global__ void __launch_bounds__(C::kBlock, C::kMinBlocks)
    packets_norm_gradient_kernel(const __grid_constant__ struct norm_gradient_args args)
{
    using T = typename C::T;
    extern __shared__ uint4 memory[]; // gains, then the ring
    __shared__ gradient_exchange<C> exchange;
    let_next_start();
    float *gains = reinterpret_cast<float *>(memory);
    const gradient_place<C> place;
    const int threads = (int)blockDim.x;
    const packet_ring<C> ring(args, memory + (C::kVectors * threads + 1) * C::kVec / 4);
    column_sums<C> sums{args, place, nullptr};
    packet_vectors<C> vectors{ring, gains + C::kVec};
    float w[C::kVectors][C::kVec];
    wait_for_previous();
    for (int i = 0; i < args.n_stages; i++)
        ring.fetch(place.row(i), i);
    stage_gains(args, ring, gains);
#pragma unroll
    for (int v = 0; v < C::kVectors; v++)
#pragma unroll
        for (int i = 0; i < C::kVec; i++)
            w[v][i] = gains[C::kVec - ring.first + ring.packet(v) * C::kVec + i];
    const T *from = static_cast<const T *>(args.grad_residual);
    int stage = 0;
    for (int64_t turn = 0; place.row(turn) < args.n_rows; turn++) {
        const int64_t row = place.row(turn);
        uint4 residual[C::kVectors] = {};
        if (from)
            ring.load(from + row * args.grad_residual_pitch, row, residual);
        wait_for_stage(args.n_stages);
        __syncthreads(); // vectors have what neighbours have copied
        vectors.hold(stage);
        const row_in_memory<C> again{args, row, (int)threadIdx.x, threads, nullptr};
        const row_factors of = find_factors<C>(vectors, again, exchange, (int)(turn % 2));
        write_packets(ring, row, stage, of, residual, w, sums);
        ring.fetch(place.row(turn + args.n_stages), stage);
        if (++stage == args.n_stages)
            stage = 0;
    }
    sums.put_down(true, true);
}

// ------------------------------------------------------------------------------------ launch

static inline int64_t threads_of_packets(int64_t vectors)
{
    return 32 * blocks_of(vectors + 1, 64);
}

// Vectors of rows in packets here, fewer than that, and columns of any: as many sums as the
// registers of a multiprocessor hold beside what a row takes, and as half of the threads hold with
// less of a row at a time.
constexpr int64_t kPacketVectors = 1024, kPacketColumns = 16 << 10, kWideFloatColumns = 20 << 10,
                  kWidestColumns = 24 << 10;

// Bytes of shared memory for a row in packets, its gains, and the sums that no registers have.
constexpr int64_t kPacketRoom = 219 << 10;

// Columns of float32 rows of which shared memory has two, so that two rows for each multiprocessor
// all have a block of their own at once. Of those with a mean, packets would have two sums as well,
// and so have 16-bit rows that are widest, one of them in shared memory.
constexpr int64_t kPairColumns = 13 << 10;
constexpr int64_t kFewColumns = 2304; // of rows of which each has a multiprocessor, more than that

// Columns of rows in packets, fewer than that. Calls that round have no wide ones with a mean. Rows
// of whole vectors have other kernels up to 2,048 vectors; wider ones gain by packets whatever they
// are if they have a mean, and else those of which shared memory has two at a time.
template <typename T, bool kCentres, bool kRounds>
static int64_t columns_of_packets(bool is_whole_vectors)
{
    if (is_whole_vectors)
        return kRounds ? 0 : kCentres ? kPacketColumns : 10241;
    if (kRounds && kCentres)
        return kPacketVectors * kVecOf<T>;
    return sizeof(T) == 4 && kCentres ? kPacketColumns : kWidestColumns;
}

// May gains be in shared memory as they are in memory?
template <typename T>
static bool has_short_weight(const struct norm_gradient_args &args)
{
    return sizeof(T) == 2 && args.weight && args.weight_dtype == kDtypeOf<T>;
}

// Float32 rows that leave no room for their gains, which are read where they are used.
template <typename T, bool kCentres>
static bool has_far_gains(const struct norm_gradient_args &args)
{
    return sizeof(T) == 4 && !kCentres && (args.sum_pitch + kVecOf<T>)*12 > kPacketRoom &&
           (!args.weight || args.weight_dtype == ROPED_F32);
}

// What a row takes of it, at least: of 16-bit rows that are widest sums are there if there are two
// for each column.
template <typename T, bool kCentres>
static int64_t bytes_of_row(const struct norm_gradient_args &args)
{
    const bool is_widest = sizeof(T) == 2 && args.sum_pitch >= kPacketColumns;
    const int64_t gain = has_far_gains<T, kCentres>(args)         ? 0
                         : is_widest && has_short_weight<T>(args) ? 2
                                                                  : 4;
    return (args.sum_pitch + kVecOf<T>)*(2 * (int64_t)sizeof(T) + gain +
                                         (is_widest && kCentres ? 4 : 0));
}

// Blocks of so few rows that each might have one, of so many at once; or 0, where others are
// faster: of rows that each have a multiprocessor clusters have the first ones. Two sums for each
// column and block are as much as a row, so that blocks of more rows have two.
template <typename T, bool kCentres, bool kRounds>
static int64_t blocks_of_few(const struct norm_gradient_args &args, int64_t vectors,
                             int64_t at_once)
{
    constexpr int64_t kVec = kVecOf<T>;
    if (sizeof(T) == 4 && !kCentres && args.sum_pitch >= kPacketColumns)
        return 2 * args.n_rows > kMultiprocessors * 7 / 8 // others are the work of clusters
                   ? gradient_blocks(&args, args.n_rows, at_once, kVec)
                   : 0;
    if (args.n_rows <= kMultiprocessors) {
        // without a second sum threads have a row of up to 2,048 vectors in registers
        constexpr bool kIsSlow = sizeof(T) == 2 && kCentres;
        const int64_t least = kIsSlow ? kPacketVectors : 513;
        const bool has_others = kRounds || args.n_rows <= (kIsSlow ? 24 : 48) ||
                                args.hidden == args.sum_pitch || args.sum_pitch <= kFewColumns;
        return has_others || (vectors >= least && vectors <= 2048) ||
                       args.n_rows > most_blocks(&args, 1)
                   ? 0
                   : args.n_rows;
    }
    if (vectors > 512)
        return 0;
    if (kCentres && args.n_rows > 2 * kMultiprocessors) {
        const int64_t pairs = blocks_of(blocks_of(args.n_rows, 2), kVec) * kVec;
        const int64_t most = most_blocks(&args, at_once) / kVec * kVec;
        return pairs < most ? pairs : most;
    }
    return sizeof(T) == 2 && vectors > 256 ? gradient_blocks(&args, args.n_rows, at_once, kVec) : 0;
}

// The blocks of rows that are so many, and such that packets pay. They follow from the shape alone,
// and so do the columns' sums, which each block adds one row after another:
// any_norm_gradient_kernel has as many blocks for such rows that begin elsewhere. 0: for other
// shapes.
template <typename T, bool kCentres, bool kRounds>
static int64_t blocks_of_packets(const struct norm_gradient_args &args)
{
    constexpr int64_t kVec = kVecOf<T>;
    const int64_t vectors = args.sum_pitch / kVec;
    const int64_t at_once = blocks_at_once(threads_of_packets(vectors));
    const bool is_whole = args.hidden == args.sum_pitch;
    if (kCentres && args.n_rows <= 2 * kMultiprocessors &&
        (is_whole ? args.sum_pitch <= kPairColumns : args.sum_pitch >= kPacketColumns))
        return 0;
    if (!args.n_sums || args.hidden < kVec || (is_whole && vectors <= 2048) ||
        args.sum_pitch >= columns_of_packets<T, kCentres, kRounds>(is_whole) ||
        bytes_of_row<T, kCentres>(args) > kPacketRoom)
        return 0;
    return args.n_rows <= kMultiprocessors * at_once
               ? blocks_of_few<T, kCentres, kRounds>(args, vectors, at_once)
               : gradient_blocks(&args, args.n_rows, at_once, kVec);
}

// Of so many packets of rows, with the gains of one, and sums that no registers have.
template <typename C>
static int64_t packet_bytes(int64_t n_packets, int64_t n_stages)
{
    const int64_t gain = C::kHasFarGains     ? 0
                         : C::kHasShortGains ? sizeof(typename C::T)
                                             : sizeof(float);
    return n_packets *
           (2 * n_stages * 16 + C::kVec * (gain + (C::kSumsApart ? (int64_t)sizeof(float) : 0)));
}

// Rows on their way that a block of several at once has room for.
template <typename C>
static int64_t packet_stages(int64_t n_packets, int64_t at_once, const struct roped_queue *queue)
{
    const int64_t room = room_of_block<C>(at_once, queue) - packet_bytes<C>(n_packets, 0);
    return room / (2 * 16 * n_packets);
}

// Do they begin equally far behind a packet in all tensors, and does shared memory hold one?
template <typename T, bool kCentres, bool kRounds>
static bool has_packets(const struct norm_gradient_args &args, const struct roped_queue *queue)
{
    constexpr int64_t kVec = kVecOf<T>;
    auto is_like_x = [&](const void *data, int64_t pitch) {
        return !data || (((uintptr_t)data ^ (uintptr_t)args.x) % 16 == 0 &&
                         (pitch - args.x_pitch) % kVec == 0);
    };
    return blocks_of_packets<T, kCentres, kRounds>(args) &&
           is_like_x(args.grad_y, args.grad_y_pitch) && is_like_x(args.grad_x, args.grad_x_pitch) &&
           is_like_x(args.grad_residual, args.grad_residual_pitch) &&
           bytes_of_row<T, kCentres>(args) + 8192 <= queue->shared_bytes;
}

// Starts a kernel with so many rows of such packets on their way as there is room for.
template <typename C>
static enum roped_status
start_packets(kernel_fn<struct norm_gradient_args> *kernel, struct norm_gradient_args args,
              int threads, int64_t n_packets, struct roped_queue *queue, struct roped_error *err)
{
    using T = typename C::T;
    constexpr int64_t kVec = C::kVec;
    const int64_t n_blocks = blocks_of_packets<T, C::kCentres, C::kRounds>(args);
    args.n_packets = (int32_t)n_packets;
    args.sum_pitch += kVec;
    args.first_column = (int32_t)((uintptr_t)args.x % 16 / sizeof(T));
    args.column_step = (int32_t)(args.x_pitch % kVec);
    args.column_mask = kVec - 1;
    args.n_stages = (int32_t)clamp(
        packet_stages<C>(n_packets, blocks_at_once((int64_t)threads), queue), 1, kMostStages);
    return start_blocks(kernel, args, threads, n_blocks, packet_bytes<C>(n_packets, args.n_stages),
                        queue, err);
}

// The sum of a row is that of a vector for each share, as of other rows that do not end with a
// whole one.
template <typename T, bool kCentres, bool kRounds>
static enum roped_status launch_packets(struct norm_gradient_args args, struct roped_queue *queue,
                                        struct roped_error *err)
{
    using C = gradient_config<T, kCentres, kRounds, false, 512, 2>;
    const int threads = (int)threads_of_packets(args.sum_pitch / C::kVec);
    args.n_shares = 2 * threads;
    return start_packets<C>(packets_norm_gradient_kernel<C>, args, threads, args.n_shares + 1,
                            queue, err);
}
