// norm_gradient_wide.cuh - gradients of norms of many rows of 1,024 vectors and more, in the
// packets of 16 bytes that memory has (norm_gradient_packets.cuh); for norm_gradient.cuh.
//
// Sums of so many columns leave no registers for a row: a thread has several packets of it in
// shared memory, one after another, and several vectors for a share of the row's sum, which it
// shifts where it uses them. With two sums for each column 512 threads have them, and two shares
// each: the more there are, the longer they wait for each other, three times in each row. So they
// have those of rows of up to 24,576 columns of 16 bits, whose sums leave no room for more threads:
// of two for each column one is in shared memory. Gains are there as well, as wide as weights where
// floats leave no room for a row more.
#pragma once

#include "cuda/norm_gradient_packets.cuh"

// ------------------------------------------------------------------------------------ a row

// The same of rows of which a thread has many packets: only one of them may be cut by the row's
// end, so that there is one copy of what that takes.
template <typename C>
struct wide_ring : packet_ring<C> {
    using T = typename C::T;
    using packet_ring<C>::args, packet_ring<C>::first, packet_ring<C>::last;
    using packet_ring<C>::packet, packet_ring<C>::slot, packet_ring<C>::is_whole;
    static constexpr bool kHints = C::kThreads <= 512; // ptxas: stage.cuh

    __device__ __forceinline__ wide_ring(const norm_gradient_args &norm, uint4 *to)
        : packet_ring<C>(norm, to)
    {
    }
    __device__ __forceinline__ void fetch(int64_t row, int stage) const
    {
        if (row < args.n_rows) {
            const gradient_row<C> of(args, row);
            const T *x = of.x - first, *g = of.g - first;
            int cut = -1;
#pragma unroll
            for (int v = 0; v < C::kVectors; v++) {
                const int at = packet(v);
                if (is_whole(row, at)) {
                    copy_16<kHints>(slot(stage, 0, at), x + at * C::kVec, true, this->policy);
                    copy_16<kHints>(slot(stage, 1, at), g + at * C::kVec, true, this->policy);
                } else if (at * C::kVec < last) {
                    cut = at;
                }
            }
            if (cut >= 0) {
                *slot(stage, 0, cut) = this->end_of(x, cut);
                *slot(stage, 1, cut) = this->end_of(g, cut);
            }
        }
        end_stage();
    }
    // A packet of another tensor's row where a thread has no registers for more of them.
    __device__ __forceinline__ uint4 load_late(const T *from, int64_t row, int at) const
    {
        from -= first;
        return is_whole(row, at) ? load_16(from + at * C::kVec) : this->end_of(from, at);
    }
    __device__ __forceinline__ void prefetch(const T *from, int64_t row) const
    {
        from -= first;
#pragma unroll
        for (int v = 0; v < C::kVectors; v++)
            if (is_whole(row, packet(v)))
                prefetch_to_l2(from + packet(v) * C::kVec);
    }
    __device__ __forceinline__ void load(const T *from, int64_t row,
                                         uint4 (&raw)[C::kVectors]) const
    {
        int cut = -1;
        from -= first;
#pragma unroll
        for (int v = 0; v < C::kVectors; v++) {
            const int at = packet(v);
            raw[v] = load_16_if(is_whole(row, at), from + at * C::kVec);
            if (!is_whole(row, at) && at * C::kVec < last)
                cut = at;
        }
        if (cut >= 0) {
            const uint4 end = this->end_of(from, cut);
#pragma unroll
            for (int v = 0; v < C::kVectors; v++)
                raw[v] = packet(v) == cut ? end : raw[v];
        }
    }
};

// The gains of all columns in shared memory, as floats, or short ones as weights of the rows' type:
// element i of every packet in plane i, so that lanes find their packets' or their vectors' without
// a conflict of banks.
template <typename C>
struct packet_gains {
    using T = typename C::T;
    using gain = std::conditional_t<C::kHasShortGains, T, float>;
    const wide_ring<C> &ring;
    gain *planes;

    __device__ __forceinline__ void stage_floats() const
    {
        const norm_gradient_args &args = ring.args;
        with_weight(args, args.weight, [&](auto *weight) {
            using W = std::remove_cv_t<std::remove_pointer_t<decltype(weight)>>;
#pragma unroll 1
            for (int at = threadIdx.x; at < args.n_packets; at += blockDim.x) {
                float w[C::kVec];
#pragma unroll
                for (int i = 0; i < C::kVec; i++) {
                    const int column = at * C::kVec + i - ring.first;
                    const bool is_there = column >= 0 && column < (int)args.hidden;
                    w[i] = !is_there ? 0.0f
                           : weight  ? args.weight_bias + element<W>::to_float(weight[column])
                                     : 1.0f;
                }
#pragma unroll
                for (int i = 0; i < C::kVec; i++)
                    planes[i * args.n_packets + at] = w[i];
            }
        });
    }
    __device__ __forceinline__ void stage_short() const
    {
        const norm_gradient_args &args = ring.args;
        const T *weight = static_cast<const T *>(args.weight);
#pragma unroll 1
        for (int at = threadIdx.x; at < args.n_packets; at += blockDim.x) {
            T w[C::kVec];
#pragma unroll
            for (int i = 0; i < C::kVec; i++) {
                const int column = at * C::kVec + i - ring.first;
                const bool is_there = column >= 0 && column < (int)args.hidden;
                w[i] = is_there ? weight[column] : element<T>::from_float(0.0f);
            }
#pragma unroll
            for (int i = 0; i < C::kVec; i++)
                planes[i * args.n_packets + at] = w[i];
        }
    }
    __device__ __forceinline__ void stage() const
    {
        if constexpr (C::kHasFarGains)
            return;
        else if constexpr (C::kHasShortGains)
            stage_short();
        else
            stage_floats();
        __syncthreads();
    }
    // Of what begins with element first of a packet.
    __device__ __forceinline__ void get(int packet, int first, float (&w)[C::kVec]) const
    {
        const norm_gradient_args &args = ring.args;
#pragma unroll
        for (int i = 0; i < C::kVec; i++) {
            if constexpr (C::kHasFarGains) {
                const float *weight = static_cast<const float *>(args.weight);
                const int column = packet * C::kVec + first + i - ring.first;
                const bool is_there = column >= 0 && column < (int)args.hidden;
                w[i] = is_there ? 1.0f : 0.0f;
                if (is_there && weight)
                    w[i] = args.weight_bias + weight[column];
            } else {
                const gain of =
                    planes[(first + i) % C::kVec * args.n_packets + (first + i) / C::kVec + packet];
                if constexpr (C::kHasShortGains)
                    w[i] = args.weight_bias + element<T>::to_float(of);
                else
                    w[i] = of;
            }
        }
    }
};

// The vectors of a share of the row's sum.
template <typename C>
struct packet_shares {
    using T = typename C::T;
    const norm_gradient_args &args;
    const wide_ring<C> &ring;
    const packet_gains<C> &gains;
    int stage, lane;

    __device__ __forceinline__ packet_shares share(int i) const
    {
        return {args, ring, gains, stage, i};
    }
    template <typename F>
    __device__ __forceinline__ void for_each(const F &f) const
    {
#pragma unroll 1
        for (int vector = lane; vector * C::kVec < (int)args.hidden; vector += args.n_shares) {
            float x[C::kVec], g[C::kVec], w[C::kVec];
            unpack<T>(ring.vector(stage, 0, vector), x);
            unpack<T>(ring.vector(stage, 1, vector), g);
            gains.get(vector, ring.first, w);
            f(0, vector * C::kVec, min((int)args.hidden - vector * C::kVec, C::kVec), x, g, w);
        }
    }
};

// ------------------------------------------------------------------------------------ kernel

// grad_x of a row, and what it adds to the columns' sums, by packets.
template <typename C>
__device__ __forceinline__ void
write_wide_packets(const wide_ring<C> &ring, const packet_gains<C> &gains, int64_t row, int stage,
                   const row_factors &of, const uint4 (&residual)[C::kIsTight ? 1 : C::kVectors],
                   column_sums<C> &sums)
{
    using T = typename C::T;
    const T *before = static_cast<const T *>(ring.args.grad_residual);
    T *to = static_cast<T *>(ring.args.grad_x) + row * ring.args.grad_x_pitch;
    uint4 end = {};
    int cut = -1;
#pragma unroll
    for (int v = 0; v < C::kVectors; v++) {
        const int at = ring.packet(v);
        float x[C::kVec], g[C::kVec], w[C::kVec], made[C::kVec];
        if (at * C::kVec >= ring.last)
            continue;
        unpack<T>(*ring.slot(stage, 0, at), x);
        unpack<T>(*ring.slot(stage, 1, at), g);
        if constexpr (C::kIsTight)
            unpack<T>(before ? ring.load_late(before + row * ring.args.grad_residual_pitch, row, at)
                             : make_uint4(0, 0, 0, 0),
                      made);
        else
            unpack<T>(residual[v], made);
        gains.get(at, 0, w);
        descend<C>(of, x, g, w, made);
        if (ring.is_own(at)) {
            store_16(to - ring.first + at * C::kVec, pack<T>(made));
        } else if (v == 0 && threadIdx.x == 0) {
            ring.store_own(to, 0, pack<T>(made));
        } else {
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
    wide_packets_norm_gradient_kernel(const __grid_constant__ struct norm_gradient_args args)
{
    using T = typename C::T;
    extern __shared__ uint4 memory[]; // gains, sums that no registers have, then the ring
    __shared__ gradient_exchange<C> exchange;
    let_next_start();
    const gradient_place<C> place;
    using gain = typename packet_gains<C>::gain;
    uint4 *behind =
        memory + (C::kHasFarGains ? 0 : args.n_packets * C::kVec / (16 / (int)sizeof(gain)));
    const wide_ring<C> ring(args, behind + (C::kSumsApart ? args.n_packets * C::kVec / 4 : 0));
    const packet_gains<C> gains{ring, reinterpret_cast<gain *>(memory)};
    column_sums<C> sums{args, place, nullptr};
    if constexpr (C::kSumsApart) {
        sums.apart = reinterpret_cast<float4 *>(behind);
#pragma unroll 1
        for (int i = threadIdx.x; i < args.n_packets * C::kVec / 4; i += blockDim.x)
            behind[i] = make_uint4(0, 0, 0, 0);
    }
    packet_shares<C> shares{args, ring, gains, 0, (int)threadIdx.x};
    wait_for_previous();
    for (int i = 0; i < args.n_stages; i++)
        ring.fetch(place.row(i), i);
    gains.stage();
    const T *from = static_cast<const T *>(args.grad_residual);
    for (int64_t turn = 0; place.row(turn) < args.n_rows; turn++) {
        const int64_t row = place.row(turn);
        uint4 residual[C::kIsTight ? 1 : C::kVectors] = {};
        if constexpr (C::kIsTight)
            if (from)
                ring.prefetch(from + row * args.grad_residual_pitch, row);
        wait_for_stage(args.n_stages);
        __syncthreads(); // vectors have what neighbours have copied
        const row_factors of = find_factors<C>(shares, shares, exchange, (int)(turn % 2));
        if constexpr (!C::kIsTight)
            if (from)
                ring.load(from + row * args.grad_residual_pitch, row, residual);
        write_wide_packets(ring, gains, row, shares.stage, of, residual, sums);
        ring.fetch(place.row(turn + args.n_stages), shares.stage);
        if (++shares.stage == args.n_stages)
            shares.stage = 0;
    }
    sums.put_down(true, true);
}

// ------------------------------------------------------------------------------------ launch

// The same with gains in shared memory as they are in memory.
template <typename C>
struct short_gains : C {
    static constexpr bool kHasShortGains = true;
};

// The same with gains in memory.
template <typename C>
struct far_gains : C {
    static constexpr bool kHasFarGains = true;
};

// The sum of a row has so many shares, as of other rows that do not end with a whole vector. Of
// fewer columns than that: threads have registers for the sums of as many.
template <typename T, bool kCentres, bool kRounds, int kThreads, int64_t kColumns>
static enum roped_status start_wide_packets(struct norm_gradient_args args, int64_t shares,
                                            struct roped_queue *queue, struct roped_error *err)
{
    using C = gradient_config<T, kCentres, kRounds, false, kThreads,
                              (int)(kColumns / kThreads / kVecOf<T>)>;
    const int64_t packets = args.sum_pitch / C::kVec + 1;
    const int64_t of_packets = 32 * blocks_of(packets, 32 * C::kVectors);
    const int64_t of_shares = kThreads == 512 ? 32 * blocks_of(shares, 64) : shares;
    const int threads = (int)(of_packets > of_shares ? of_packets : of_shares);
    args.n_shares = (int32_t)shares;
    if constexpr (sizeof(T) == 4 && kColumns == kWidestColumns) {
        using F = far_gains<C>;
        return start_packets<F>(wide_packets_norm_gradient_kernel<F>, args, threads, packets, queue,
                                err);
    } else if constexpr (sizeof(T) == 2 && kColumns == kWidestColumns) {
        using S = short_gains<C>;
        if (has_short_weight<T>(args) &&
            packet_stages<S>(packets, 1, queue) > packet_stages<C>(packets, 1, queue))
            return start_packets<S>(wide_packets_norm_gradient_kernel<S>, args, threads, packets,
                                    queue, err);
    }
    return start_packets<C>(wide_packets_norm_gradient_kernel<C>, args, threads, packets, queue,
                            err);
}

template <typename T, bool kCentres, bool kRounds>
static enum roped_status launch_wide_packets(const struct norm_gradient_args &args, int64_t shares,
                                             struct roped_queue *queue, struct roped_error *err)
{
    const bool is_widest = args.sum_pitch >= kPacketColumns;
    if constexpr (sizeof(T) == 2 || !kCentres)
        if (is_widest && (sizeof(T) == 2 || has_far_gains<T, kCentres>(args)))
            return start_wide_packets<T, kCentres, kRounds, 512, kWidestColumns>(args, shares,
                                                                                 queue, err);
    if constexpr (sizeof(T) == 4 && !kCentres)
        if (is_widest)
            return start_wide_packets<T, kCentres, kRounds, 1024, kWideFloatColumns>(args, shares,
                                                                                     queue, err);
    constexpr int kThreads = kCentres ? 512 : 1024;
    return start_wide_packets<T, kCentres, kRounds, kThreads, kPacketColumns>(args, shares, queue,
                                                                              err);
}
