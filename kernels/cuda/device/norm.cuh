// norm.cuh - the one norm of the CUDA backend, for every norm operator:
//
//     y = z * rsqrt(mean(z^2) + eps) * (weight_bias + weight)
//
// where z is x, or x + residual in float32, or that sum as it is stored, and y is stored rounded,
// or divided by a scale and rounded to FP8 or int8. The centred norm, which has z - mean(z) in the
// place of z and adds a bias in the end: norm_centred.cuh.
//
// A group of threads owns a row: part of a warp for narrow rows, a block for wide ones. The row is
// read once, kept in registers, summed, scaled and written. Rows beyond 4,096 vectors of
// 16 bytes, and rows that 16 bytes do not divide, wait in shared memory (norm_staged.cuh).
//
// A row by itself is read by several blocks, each of which finds the same sum and writes a part.
//
// The order of the sum follows from the hidden size alone: element e belongs to vector e / kVec,
// vector v to thread v % threads; a thread adds its own in four sums, in order, then a fixed tree
// adds the threads (where a thread does the work of two, it sums as two). The number of rows, the
// rows per block and the alignment change nothing, so a row's bits do not depend on how it came.
//
// Squares are summed in float32 (in double beyond 16,384 vectors). Where that overflows, or may
// have lost the sum to underflow, the group sums once more in double, as the CPU backend always
// does.
//
// A result may take the place of its input, but not of one that other blocks read: a thread writes
// only the elements that it has read itself; y after the sum's barrier, x + residual before it. How
// many threads and blocks take a row is not decided here: norm_launch.cuh.
#pragma once

#include "cuda/device/norm_row.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/device/squares.cuh"

// ------------------------------------------------------------------------------------ scales

// The largest of most, which is not NaN, and of y. Elements past the end of a row are 0, or NaN in
// a row of NaN: never the largest.
template <int n>
__device__ __forceinline__ float largest_of(float most, const float (&y)[n])
{
    float other = fabsf(y[0]);
#pragma unroll
    for (int i = 1; i < n; i += 2) {
        most = fmaxf(most, fabsf(y[i])); // not a NaN
        if (i + 1 < n)
            other = fmaxf(other, fabsf(y[i + 1]));
    }
    return fmaxf(most, other);
}

__device__ __forceinline__ float scale_for(const norm_args &args, float largest)
{
    largest = fminf(largest, args.scale_ub);
    float scale = fmaxf(divide(largest, args.divisor), args.smallest_scale);
    if (args.codes & (kCodesAreInt8 | kScalesArePowers)) {
        // FP8 has a smallest scale. Below 2^-119 the low part of what divides is not exact; this
        // product is rounded as the quotient is, of every float.
        if (args.codes & kCodesAreInt8)
            scale = fmaxf((float)((double)largest * (1.0 / 127)), 0.0f);
        scale = scale == 0.0f ? 1.0f : scale;
        scale = args.codes & kScalesArePowers ? power_from(scale) : scale;
    }
    return scale;
}

// Found scales leave -128 unused.
template <typename K>
constexpr float kLeastInt8 = K::kSink == kToFp8 ? -128.0f : -127.0f;

// Blocks of 512 threads that take rows in turn, and those that round, have no instructions for
// int8, which cost FP8 1.13 to 1.39 there, with as many registers.
template <typename K, typename C, bool kRounds>
constexpr bool kHasInt8 =
    !(K::kSink == kToFp8PerRow && C::kTakesRows && (kRounds || C::kThreads >= 512));

__device__ __forceinline__ float *scale_of_group(const norm_args &args, int64_t row, int64_t group)
{
    return args.scales + row * args.scale_row + group * args.scale_group;
}

// The largest value of the groups that a thread's vectors belong to, where a group is some
// neighbouring threads of a warp and they have as many groups as each has vectors. At each step
// half of the threads goes on with half of the vectors: with one in the end, whose largest value is
// most[0] and whose number is returned.
template <int kVectors>
__device__ __forceinline__ int share_largest(float (&most)[kVectors], int lane, int group_vectors)
{
    int distance = group_vectors >> 1, mine = 0;
#pragma unroll
    for (int n = kVectors / 2; n > 0; n /= 2) {
        bool is_upper = lane & distance;
        mine += is_upper ? n : 0;
#pragma unroll
        for (int v = 0; v < n; v++) {
            float other = is_upper ? most[v] : most[v + n];
            most[v] = fmaxf(is_upper ? most[v + n] : most[v],
                            __shfl_xor_sync(0xFFFFFFFFu, other, distance));
        }
        distance >>= 1;
    }
#pragma unroll
    for (int d = 16 / kVectors; d > 0; d /= 2, distance >>= 1) // beyond a group: its own
        most[0] = fmaxf(most[0], __shfl_xor_sync(0xFFFFFFFFu, most[0], distance));
    return mine;
}

// The same in every thread, each vector by itself, for rows that nothing overlaps: more exchanges,
// but nobody waits for another thread's scale. From the largest of each vector. Vector v of a
// thread is number v * kThreads + thread of the row, so a group is some neighbouring threads, or
// all of the row's and several v where the row has fewer.
template <int kThreads, int kVectors>
__device__ __forceinline__ void spread_largest(float (&largest)[kVectors], int group_vectors)
{
    static_assert((kVectors & (kVectors - 1)) == 0, "pairs of pairs");
#pragma unroll
    for (int span = 1; span < kVectors; span *= 2)
        if (span * kThreads < group_vectors) {
#pragma unroll
            for (int v = 0; v < kVectors; v++)
                if (!(v & span))
                    largest[v] = largest[v | span] = fmaxf(largest[v], largest[v | span]);
        }
#pragma unroll
    for (int distance = (kThreads < 32 ? kThreads : 32) / 2; distance > 0; distance /= 2)
        if (distance < group_vectors) {
#pragma unroll
            for (int v = 0; v < kVectors; v++)
                largest[v] = fmaxf(largest[v], __shfl_xor_sync(0xFFFFFFFFu, largest[v], distance));
        }
}

// ------------------------------------------------------------------------------------ sums

// A thread's shares of its row's squares. Where it has two, its vectors are of either in turn: the
// sum is that of twice as many threads.
template <typename K, typename C, typename Acc>
__device__ __forceinline__ void share_squares(const row_values<K, C> &values,
                                              Acc (&share)[C::kShares])
{
#pragma unroll
    for (int s = 0; s < C::kShares; s++) {
        square_sums<Acc> sums;
#pragma unroll
        for (int v = s; v < C::kVectors; v += C::kShares) {
            float z[K::kVec];
            values.template get<false>(v, z);
            sums.add(z);
        }
        share[s] = sums.total();
    }
}

// One thread's share of a row's squares, from memory.
template <typename K, bool kStrides, bool kKeeps, typename Acc>
__device__ __forceinline__ Acc read_squares(const norm_args &args, int64_t row, int thread,
                                            int threads)
{
    raw_row<K, 1> raw;
    square_sums<Acc> sums;
    if (row >= args.n_rows)
        return 0;
#pragma unroll 1
    for (int64_t i = thread * K::kVec; i < args.hidden; i += threads * K::kVec) {
        float z[K::kVec];
        load_into<K, true, kKeeps>(raw, 0, source_of_row<K, kStrides>(args, row), i,
                                   args.hidden - i);
        unpack_sum<K>(args, raw, 0, z);
        sums.add(z);
    }
    return sums.total();
}

__device__ __forceinline__ float exact_scale(const norm_args &args, double sum)
{
    return (float)rsqrt(fma(sum, args.exact_inverse_hidden, (double)args.eps));
}

template <typename C>
__device__ __forceinline__ float exact_scale_of(const norm_args &args,
                                                const double (&share)[C::kShares], int turn)
{
    __shared__ double partial[2][C::kPartials];
    clear_missing<C>(partial[turn]);
    return exact_scale(args, sum_in_group<C::kThreads>(share, partial[turn], C::threads() / 32));
}

// The group's sum again, in double. Out of line: few rows need it, and every kernel carries it.
template <typename K, typename C>
__device__ __noinline__ float read_again(const norm_args &args, int64_t row, int thread, int turn)
{
    double share[C::kShares];
#pragma unroll
    for (int s = 0; s < C::kShares; s++)
        share[s] = read_squares<K, C::kStrides, C::kKeeps, double>(
            args, row, thread + s * C::threads(), C::threads() * C::kShares);
    return exact_scale_of<C>(args, share, turn);
}

// The same of x + residual, from registers: the sum has been stored, and may have been in the place
// of either.
template <typename K, typename C>
__device__ __forceinline__ float add_again(const norm_args &args, const row_values<K, C> &values,
                                           int turn)
{
    double share[C::kShares];
    share_squares(values, share);
    return exact_scale_of<C>(args, share, turn);
}

// Out of line, so that the instructions of a row that is good follow each other. By value: a
// function that is called has no registers of its caller.
template <typename K, typename C>
__device__ __noinline__ float call_add_again(const norm_args &args, row_values<K, C> values,
                                             int turn)
{
    return add_again<K, C>(args, values, turn);
}

template <typename K, typename C>
__device__ __forceinline__ float sum_again(const norm_args &args, const row_values<K, C> &values,
                                           int64_t row, int thread, int turn)
{
    if constexpr (!K::kAdds)
        return read_again<K, C>(args, row, thread, turn);
    else if constexpr (C::kVectors <= 2) // more would be passed in memory
        return call_add_again<K, C>(args, values, turn);
    else
        return add_again<K, C>(args, values, turn);
}

// 1 / sqrt(mean + eps), with the same bits in every thread of the group. turn alternates between
// rows, so that a fast warp's next row does not overwrite what a slow one still reads.
template <typename K, typename C, typename F>
__device__ __forceinline__ float scale_of(const norm_args &args, const row_values<K, C> &values,
                                          int64_t row, int thread, int turn, const F &meanwhile)
{
    __shared__ float partial[2][C::kPartials];
    float share[C::kShares];
    share_squares(values, share);
    clear_missing<C>(partial[turn]);
    float sum = sum_in_group<C::kThreads>(share, partial[turn], C::threads() / 32, meanwhile);
    float mean = fmaf(sum, args.inverse_hidden, args.eps);
    float scale = inverse_root(mean);
    bool is_done = is_good(sum, mean);
    // Several groups may share a warp, and all of its lanes take part in a sum. A group whose own
    // sum was good keeps it: its neighbours must not change its bits.
    if (C::kSharesWarp ? __all_sync(0xFFFFFFFFu, is_done) : is_done)
        return scale;
    float exact = sum_again(args, values, row, thread, turn);
    return is_done ? scale : exact;
}

// ------------------------------------------------------------------------------------ kernels

// A thread's part of a row: vectors thread, thread + threads, ...
template <typename K, typename C>
struct row_part {
    static constexpr int kVectors = C::kVectors;
    int64_t row;
    int64_t at; // element of all rows, of y where they have strides: of vector 0
    int thread;
    int to_read;  // vectors from vector 0 to the row's end; 0 or below: none, or no row
    int to_write; // the same; where several blocks read a row, each vector is written by one

    // Elements from one vector to the next.
    static __device__ __forceinline__ int step()
    {
        return C::threads() * K::kVec;
    }
    __device__ __forceinline__ bool reads(int v) const
    {
        return v * C::threads() < to_read;
    }
    __device__ __forceinline__ bool writes(int v) const
    {
        return v * C::threads() < to_write;
    }
    // Of several blocks that read a row each writes what its share of the warps has read. No
    // division: a row by itself would wait for it.
    __device__ __forceinline__ void share_out()
    {
        to_write = to_read;
        if constexpr (C::kMayPart) {
            unsigned warps = C::threads() / 32;
            unsigned from_first = thread / 32 * gridDim.y - blockIdx.y * warps;
            to_write = from_first < warps ? to_read : 0;
        }
    }
    __device__ __forceinline__ void find_now()
    {
        to_read = compute_now(to_read);
        to_write = C::kMayPart ? compute_now(to_write) : to_read;
    }
    // source is that of vector 0
    __device__ __forceinline__ void load(const row_source<K> &source,
                                         raw_row<K, kVectors> &raw) const
    {
#pragma unroll
        for (int v = 0; v < kVectors; v++) {
            clear<K>(raw, v);
            if (reads(v))
                load_into<K, true, C::kKeeps>(raw, v, source, v * step(), K::kVec);
        }
    }
    // Rounded first, where registers last so long: only the store depends on whether the vector
    // exists, so that no branch keeps other work from going on beside it.
    __device__ __forceinline__ void store_sum_of(int v, const norm_args &args,
                                                 const row_values<K, C> &values) const
    {
        using T = typename K::T;
        float z[K::kVec];
        values.template get<false>(v, z);
        uint4 words = pack<T>(z);
        if constexpr (C::kIsShort)
            for (uint32_t *word : {&words.x, &words.y, &words.z, &words.w})
                *word = compute_now(*word);
        if (writes(v))
            *reinterpret_cast<uint4 *>(static_cast<T *>(args.residual_out) + at + v * step()) =
                words;
    }
};

// Gains of a thread's vectors, the same for all rows of its group: weights as they came, or as
// floats before the sum is there, which shortens what follows it.
template <typename K, typename C>
struct row_gains {
    static constexpr bool kReadies = C::kReadiesGains, kStarts = C::kStartsWeight;
    static constexpr int kVectors = C::kVectors;
    const norm_args &args;
    int thread;
    int to_read;      // as of a row; 0 where weights are ones
    const char *from; // weights of vector 0
    uint4 started[kStarts ? kVectors : 1];
    float ready[kReadies ? kVectors : 1][K::kVec];

    __device__ __forceinline__ row_gains(const norm_args &norm, int row_thread)
        : args(norm), thread(row_thread)
    {
        to_read = weights() ? args.n_vectors - thread : 0;
        from = weights() + thread * weight_bytes<typename K::T, C::kWeight>;
    }
    __device__ __forceinline__ const char *weights() const
    {
        return static_cast<const char *>(args.weight);
    }
    __device__ __forceinline__ void find_now()
    {
        to_read = compute_now(to_read);
        from = compute_now(from);
    }
    __device__ __forceinline__ void start()
    {
        using T = typename K::T;
        if constexpr (kStarts) {
#pragma unroll
            for (int v = 0; v < kVectors; v++) {
                started[v] = no_weight<typename K::T>();
                if (v * C::threads() < to_read)
                    started[v] = start_weight<T, C::kWeight, C::kKeeps>(
                        from + v * C::threads() * weight_bytes<T, C::kWeight>);
            }
        }
    }
    __device__ __forceinline__ void make(int v, float (&gain)[K::kVec]) const
    {
        uint4 raw;
        if constexpr (kStarts)
            raw = started[v];
        else
            raw = load(v);
        unpack_weights(v, raw, gain);
    }
    // Of a vector that need not exist: in its place comes the row's last.
    __device__ __forceinline__ uint4 load(int v) const
    {
        using T = typename K::T;
        const int vector = existing(v);
        return to_read ? start_weight<T, C::kWeight, C::kKeeps>(
                             weights() + vector * weight_bytes<T, C::kWeight>)
                       : no_weight<T>();
    }
    __device__ __forceinline__ int existing(int v) const
    {
        return min(v * C::threads() + thread, args.n_vectors - 1);
    }
    __device__ __forceinline__ void unpack_weights(int v, const uint4 &raw,
                                                   float (&gain)[K::kVec]) const
    {
        started_weights<typename K::T, C::kWeight>(args, weights(), raw, existing(v), gain);
        add_bias(args, gain);
    }
    __device__ __forceinline__ void make_ready(int v)
    {
        if constexpr (kReadies) {
            make(v, ready[v]);
#pragma unroll
            for (float &gain : ready[v])
                gain = compute_now(gain);
        }
    }
    __device__ __forceinline__ void get(int v, float (&gain)[K::kVec]) const
    {
        if constexpr (kReadies) {
#pragma unroll
            for (int i = 0; i < K::kVec; i++)
                gain[i] = ready[v][i];
        } else {
            make(v, gain);
        }
    }
};

// A part and its registers, at the point where only the result is missing.
template <typename K, typename C, bool kRounds>
struct row_writer {
    static constexpr int kThreads = C::kThreads, kVectors = C::kVectors;
    // results that are there at once, all or one by one: those of eight vectors of 16 bits would
    // take more registers than two rows on a multiprocessor leave
    static constexpr int kHeld = kVectors * K::kVec > 32 ? 1 : kVectors;
    static constexpr bool kMayBeInt8 = kHasInt8<K, C, kRounds>;
    // vectors whose weights are asked for together where they come behind the sum: one by one, each
    // would wait for the store before it. A sum's registers have room for those of two
    static constexpr bool kIsLate =
        K::kSink == kToFloats && !C::kStartsWeight && C::kWeight != kWeightOther;
    static constexpr int kAtOnce = !kIsLate ? 1 : K::kAdds && kVectors == 4 ? 2 : 4;
    const norm_args &args;
    const row_values<K, C> &values;
    const row_gains<K, C> &gains;
    const row_part<K, C> &part;
    row_scale scale;

    __device__ __forceinline__ void result(int v, float (&y)[K::kVec]) const
    {
        float gain[K::kVec];
        gains.get(v, gain);
        values.template get<true>(v, y);
        finish_vector<K, kRounds>(args, gain, scale, y);
    }
    // Of n vectors from first on. Only the stores depend on whether a vector exists: branches would
    // keep the compiler from working on several at once.
    template <int n>
    __device__ __forceinline__ void write_codes(int first, const shared_divisor (&divisor)[n],
                                                float (&y)[n][K::kVec]) const
    {
        fp8_codes<K::kVec> codes[n];
        divide_all(y, divisor);
        if (kMayBeInt8 && args.codes & kCodesAreInt8) {
#pragma unroll
            for (int v = 0; v < n; v++)
                codes[v] = int8_codes_of(y[v], kLeastInt8<K>);
        } else if (args.codes & kCodesAreE5m2) {
#pragma unroll
            for (int v = 0; v < n; v++)
                codes[v] = fp8_codes_of<true>(y[v]);
        } else {
#pragma unroll
            for (int v = 0; v < n; v++)
                codes[v] = fp8_codes_of<false>(y[v]);
        }
#pragma unroll
        for (int v = 0; v < n; v++)
            if (part.writes(first + v))
                store_fp8(static_cast<uint8_t *>(args.y) + part.at + (first + v) * part.step(),
                          codes[v]);
    }

    __device__ __forceinline__ void write_late() const
    {
#pragma unroll
        for (int first = 0; first < kVectors; first += kAtOnce) {
            uint4 raw[kAtOnce];
#pragma unroll
            for (int i = 0; i < kAtOnce; i++)
                raw[i] = gains.load(first + i);
#pragma unroll
            for (int i = 0; i < kAtOnce; i++) {
                const int v = first + i;
                float gain[K::kVec], y[K::kVec];
                gains.unpack_weights(v, raw[i], gain);
                values.template get<true>(v, y);
                finish_vector<K, kRounds>(args, gain, scale, y);
                if (part.writes(v))
                    store_result<K, true>(args, part.at + v * part.step(), K::kVec, y);
            }
        }
    }
    __device__ __forceinline__ void write_all() const
    {
        if constexpr (kIsLate) {
            write_late();
        } else {
#pragma unroll
            for (int v = 0; v < kVectors; v++) {
                float y[1][K::kVec];
                result(v, y[0]);
                if constexpr (K::kSink == kToFp8)
                    write_codes(v, {args.divisor}, y);
                else if (part.writes(v))
                    store_result<K, true>(args, part.at + v * part.step(), K::kVec, y[0]);
            }
        }
    }
    __device__ __forceinline__ void write_per_row(int turn) const
    {
        __shared__ float partial[2][(kThreads + 31) / 32];
        float y[kHeld][K::kVec], most = 0;
#pragma unroll
        for (int v = 0; v < kVectors; v++) {
            result(v, y[v % kHeld]);
            most = largest_of(most, y[v % kHeld]);
        }
        clear_missing<C>(partial[turn]);
        float row_scale = scale_for(args, largest_in_group<kThreads>(most, partial[turn]));
        if (C::kMayPart && part.to_write <= 0)
            return; // whole warps
        if (part.thread == 0 && part.writes(0))
            args.scales[part.row] = row_scale;
        shared_divisor divisor[kHeld];
#pragma unroll
        for (shared_divisor &of : divisor)
            of = divisor_of(row_scale);
#pragma unroll
        for (int v = 0; v < kVectors; v += kHeld) {
            if constexpr (kHeld == 1)
                result(v, y[0]);
            write_codes(v, divisor, y);
        }
    }
    __device__ __forceinline__ void store_group_scale(int v, float group_scale) const
    {
        int group = (v * C::threads() + part.thread) >> args.group_shift;
        *scale_of_group(args, part.row, group) = group_scale;
    }
    // Each thread finds the scale of one group. A group has as many vectors as a thread, or more.
    __device__ __forceinline__ void write_shared(float (&most)[kVectors],
                                                 float (&y)[kVectors][K::kVec]) const
    {
        constexpr int kVectorBits = kVectors == 4 ? 2 : 1;
        static_assert(1 << kVectorBits == kVectors, "pairs of pairs");
        shared_divisor divisor[kVectors];
        int group_vectors = 1 << args.group_shift;
        int step = group_vectors >> kVectorBits, lane = part.thread % 32;
        int mine = share_largest(most, lane, group_vectors);
        float my_scale = scale_for(args, most[0]);
        if ((lane & (step - 1)) == 0 && part.writes(mine))
            store_group_scale(mine, my_scale);
        int source = lane & ~(group_vectors - step); // the thread that has vector 0's
        shared_divisor my_divisor = divisor_of(my_scale);
        if (__any_sync(0xFFFFFFFFu, my_divisor.first != 1.0f)) {
#pragma unroll
            for (int v = 0; v < kVectors; v++)
                multiply(y[v], __shfl_sync(0xFFFFFFFFu, my_divisor.first, source + v * step));
        }
#pragma unroll
        for (int v = 0; v < kVectors; v++)
            divisor[v] = {1.0f, __shfl_sync(0xFFFFFFFFu, my_divisor.high, source + v * step),
                          __shfl_sync(0xFFFFFFFFu, my_divisor.low, source + v * step)};
        write_codes(0, divisor, y);
    }
    // Each thread finds the scales of n of its vectors, from first on.
    template <int n>
    __device__ __forceinline__ void write_spread(int first, float (&most)[n],
                                                 float (&y)[n][K::kVec]) const
    {
        shared_divisor divisor[n];
        float scales[n];
        int group_vectors = 1 << args.group_shift;
        spread_largest<kThreads>(most, group_vectors);
#pragma unroll
        for (int v = 0; v < n; v++) {
            scales[v] = scale_for(args, most[v]);
            divisor[v] = divisor_of(scales[v]);
        }
        write_codes(first, divisor, y);
#pragma unroll
        for (int v = first; v < first + n; v++)
            if (part.writes(v) && ((v * C::threads() + part.thread) & (group_vectors - 1)) == 0)
                store_group_scale(v, scales[v - first]);
    }
    __device__ __forceinline__ void write_per_group() const
    {
        constexpr int kFewest = 16 / K::kVec; // vectors of the smallest group
#pragma unroll
        for (int first = 0; first < kVectors; first += kHeld) {
            float y[kHeld][K::kVec], most[kHeld];
#pragma unroll
            for (int v = 0; v < kHeld; v++) {
                result(first + v, y[v]);
                most[v] = largest_of(0, y[v]);
            }
            if constexpr (!C::kTakesRows)
                write_spread(first, most, y);
            else if (kFewest >= kVectors || (1 << args.group_shift) >= kVectors)
                write_shared(most, y);
            else
                write_spread(first, most, y);
        }
    }
    __device__ __forceinline__ void finish(int turn) const
    {
        if constexpr (K::kSink == kToFp8PerRow)
            write_per_row(turn);
        else if constexpr (K::kSink == kToFp8PerGroup)
            write_per_group();
        else
            write_all();
    }
};

// All of a row that has been loaded. turn alternates between rows. A row by itself has time between
// the exchanges of its sum: to make its gains ready and to store x + residual.
template <typename K, typename C, bool kRounds>
__device__ __forceinline__ void norm_row(const norm_args &args, row_values<K, C> &values,
                                         row_gains<K, C> &gains, const row_part<K, C> &part,
                                         int turn)
{
    constexpr int kGains = C::kIsShort ? C::kVectors : 0, kSums = K::kAdds ? C::kVectors : 0;
    auto prepare = [&](int i, int n) {
        for (int task = i; task < kGains + kSums; task += n)
            if (task < kGains)
                gains.make_ready(task);
            else
                part.store_sum_of(task - kGains, args, values);
    };
    auto sum = [&](const auto &meanwhile) -> row_scale {
        return {scale_of(args, values, part.row, part.thread, turn, meanwhile)};
    };
    row_scale scale;
    if constexpr (C::kIsShort) {
        scale = sum(prepare);
    } else {
        prepare(0, 1);
        scale = sum(wait_idly{});
    }
    if (C::kMayPart && K::kSink != kToFp8PerRow && part.to_write <= 0)
        return; // whole warps
    row_writer<K, C, kRounds>{args, values, gains, part, scale}.finish(turn);
}

// C: threads per row, vectors per thread and what is loaded ahead; groups below a block's size
// share one. Where a group takes several rows, a grid apart, it loads the next one before it sums
// the present one, so that memory does not wait for the barrier. The next kernel's blocks are let
// in late: those of 64 rows on 64 multiprocessors disturb more than they save; and where a row's
// own scale follows only behind the loads.
template <typename K, typename C, bool kRounds>
__global__ void __launch_bounds__(C::kBound, C::kMinBlocks)
    norm_kernel(const __grid_constant__ struct norm_args args)
{
    row_part<K, C> part;
    raw_row<K, C::kVectors> raw;
    row_values<K, C> values;
    part.thread = threadIdx.x % C::kThreads;
    part.row = (int64_t)blockIdx.x * C::kGroups + threadIdx.x / C::kThreads;
    part.at =
        compute_now(part.row * (C::kStrides ? args.y_pitch : args.hidden) + part.thread * K::kVec);
    int to_read = args.n_vectors - part.thread;
    part.to_read = part.row < args.n_rows ? to_read : 0;
    part.share_out();
    row_gains<K, C> gains(args, part.thread);
    row_source<K> source(args,
                         C::kStrides ? part.row * args.x_pitch + part.thread * K::kVec : part.at);
    if constexpr (!C::kTakesRows) {
        part.find_now();
        gains.find_now();
        source.find_now();
        finish_before_wait(source.x, gains.from, part.to_write, gains.to_read);
    }
    wait_for_previous();
    if constexpr (K::kSink < kToFp8PerRow)
        let_next_start();
    part.load(source, raw);
    gains.start();
    if constexpr (K::kSink >= kToFp8PerRow)
        let_next_start();
    if constexpr (C::kTakesRows) {
#pragma unroll
        for (int v = 0; v < C::kVectors; v++)
            gains.make_ready(v);
        int64_t step = (int64_t)gridDim.x * args.hidden;
        for (int turn = 0;; turn ^= 1) {
            row_part<K, C> next = part;
            next.row += gridDim.x;
            next.at += step;
            next.to_read = next.row < args.n_rows ? to_read : 0;
            values.take(args, raw);
            next.load({args, next.at}, raw);
            norm_row<K, C, kRounds>(args, values, gains, part, turn);
            if (next.row >= args.n_rows)
                break;
            part.row = next.row;
            part.at = next.at;
        }
    } else {
        values.take(args, raw);
        norm_row<K, C, kRounds>(args, values, gains, part, 0);
    }
}
