// norm_codes_row.cuh - norms into codes (norm_codes.cuh) of one row for each group of threads: of
// few rows, and of sums.
//
// What few rows wait for is a chain that begins behind wait_for_previous: loads, instructions, and
// lines of code and of parameters that nobody has read yet. So addresses are computed and
// parameters are read before; what most calls do follows without jumps, and what hardly any call
// asks for is called; and the exchanges of the sum have gains and the stores of x + residual
// between them.
#pragma once

#include "cuda/norm_launch.cuh"
#include "cuda/quantize_packets.cuh"

struct norm_codes_args {
    struct norm_args norm;
    quantize_args codes;
};

// A thread's squares of vectors first, first + step, ...
template <typename Acc, int kVectors, int kVec>
__device__ __forceinline__ Acc squares_of(const float (&z)[kVectors][kVec], int first, int step)
{
    square_sums<Acc> squares;
#pragma unroll
    for (int v = first; v < kVectors; v += step)
        squares.add(z[v]);
    return squares.total();
}

// Of values in registers. A thread of a block that has four vectors does the work of two
// (device/reduce.cuh).
template <typename Acc, int kVectors, int kVec>
__device__ __forceinline__ Acc sum_squares(const float (&z)[kVectors][kVec], Acc *shared,
                                           int threads)
{
    if (kVectors == 4 && threads > 32) {
        const Acc share[2] = {squares_of<Acc>(z, 0, 2), squares_of<Acc>(z, 1, 2)};
        return sum_in_group(share, shared, threads);
    }
    return sum_in_group(squares_of<Acc>(z, 0, 1), shared, threads);
}

// The same sum, which few rows wait for: every thread adds what all warps have left, in places of
// which those of warps that are not there are zeros, instead of one exchange after another.
template <int kVectors, int kVec, int kPlaces, typename F>
__device__ __forceinline__ float sum_squares_now(const float (&z)[kVectors][kVec],
                                                 float (&shared)[kPlaces], int threads,
                                                 const F &meanwhile)
{
    constexpr int kLanes = kVectors == 4 ? 16 : 32; // whose sum has a place
    float sum;
    if (kVectors == 4 && threads > 32) {
        const bool is_upper = threadIdx.x & 16;
        const float share[2] = {squares_of<float>(z, 0, 2), squares_of<float>(z, 1, 2)};
        sum = (is_upper ? share[1] : share[0]) + exchange(is_upper ? share[0] : share[1], 16);
        sum = sum_in_warp<16>(sum, meanwhile);
    } else {
        sum = squares_of<float>(z, 0, 1);
        int i = 0;
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2) {
            const float other = exchange(sum, distance);
            meanwhile(i++, kExchanges<32>);
            sum = distance < threads ? sum + other : sum;
        }
        if (kVectors == 4 || threads <= 32)
            return sum;
    }
    if (threadIdx.x % kLanes == 0)
        shared[threadIdx.x / 32 + (threadIdx.x % 32 > 0 ? threads / 32 : 0)] = sum;
    __syncthreads();
    return sum_tree<kPlaces>(shared);
}

// ------------------------------------------------------------------------------------ what is rare

// All vectors of a thread. By value: a function that is called has no registers of its caller.
template <int kVectors, int kVec>
struct row_floats {
    float of[kVectors][kVec];
};

template <typename T, int kVectors, int kVec>
__device__ __noinline__ row_floats<kVectors, kVec> rounded(row_floats<kVectors, kVec> x)
{
#pragma unroll
    for (int v = 0; v < kVectors; v++)
        unpack<T>(pack<T>(x.of[v]), x.of[v]);
    return x;
}

// Of weights of another type than x. Of a vector that is not there: another's.
template <typename T, int kVectors, int kVec>
__device__ __noinline__ row_floats<kVectors, kVec> other_gains(const norm_args &args, int threads)
{
    row_floats<kVectors, kVec> gain;
#pragma unroll
    for (int v = 0; v < kVectors; v++) {
        const int vector = min(v * threads + (int)threadIdx.x, args.n_vectors - 1);
        const char *from = static_cast<const char *>(args.weight);
        started_weights<T, kWeightOther>(
            args, from,
            start_weight<T, kWeightOther, false>(from + vector * weight_bytes<T, kWeightOther>),
            vector, gain.of[v]);
        add_bias(args, gain.of[v]);
    }
    return gain;
}

// Of sums that are more than x + residual: what unpack_sum makes of a vector, of all of them.
template <typename K, int kVectors>
__device__ __noinline__ row_floats<kVectors, K::kVec> terms_of(const norm_args &args,
                                                               raw_row<K, kVectors> raw)
{
    using T = typename K::T;
    row_floats<kVectors, K::kVec> z;
    const auto round = [&] {
        if (sizeof(T) == 2 && args.rounds_sum)
#pragma unroll
            for (int v = 0; v < kVectors; v++)
                unpack<T>(pack<T>(z.of[v]), z.of[v]);
    };
    const auto add = [&](const uint4(&term)[kVectors]) {
#pragma unroll
        for (int v = 0; v < kVectors; v++) {
            float other[K::kVec];
            unpack<T>(term[v], other);
#pragma unroll
            for (int i = 0; i < K::kVec; i++)
                z.of[v][i] = __fadd_rn(z.of[v][i], other[i]);
        }
        round();
    };
#pragma unroll
    for (int v = 0; v < kVectors; v++) {
        unpack<T>(raw.x[v], z.of[v]);
        scale_term(args.x_scale, z.of[v]);
    }
    round();
    if (args.addend && !args.residual_first)
        add(raw.addend);
    add(raw.residual);
    if (args.addend && args.residual_first)
        add(raw.addend);
    return z;
}

// The sum once more.
template <int kVectors, int kVec>
__device__ __noinline__ float exact_scale_of_values(const norm_args &args, int threads,
                                                    row_floats<kVectors, kVec> z)
{
    __shared__ double partial[32];
    return exact_scale(args, sum_squares(z.of, partial, threads));
}

// ------------------------------------------------------------------------------------ kernel

// What is normalised, of all vectors.
template <typename K, int kVectors>
__device__ __forceinline__ row_floats<kVectors, K::kVec> values_of(const norm_args &args,
                                                                   const raw_row<K, kVectors> &raw)
{
    using T = typename K::T;
    if constexpr (K::kAdds)
        if (args.x_scale != 1.0f || args.addend)
            return terms_of(args, raw);
    row_floats<kVectors, K::kVec> z;
#pragma unroll
    for (int v = 0; v < kVectors; v++)
        unpack<T>(raw.x[v], z.of[v]);
    if constexpr (K::kAdds) {
#pragma unroll
        for (int v = 0; v < kVectors; v++) {
            float residual[K::kVec];
            unpack<T>(raw.residual[v], residual);
#pragma unroll
            for (int i = 0; i < K::kVec; i++)
                z.of[v][i] += residual[i];
        }
        if (sizeof(T) == 2 && args.rounds_sum)
            return rounded<T>(z);
    }
    return z;
}

// A thread's part of a row: vectors thread, thread + threads, ... with all addresses, which are
// computed before wait_for_previous. kOfRow: with a scale of the row; else of groups, or a given
// one.
template <typename K, int kVectors, int kScale, bool kOfRow>
struct codes_place {
    using T = typename K::T;
    static constexpr int kVec = K::kVec;
    // lanes beside each other make the scales of different vectors (make_group_scales)
    static constexpr int kLeast = kLeastLanes<kScale, kVec>, kMakers = kMakersOf<kLeast, kVectors>;
    const int threads, thread, step; // elements to the next vector
    int left, started; // vectors to the row's end, of x and of weights that x's type has
    bool is_writer;
    row_source<K> source;
    const char *weights;
    char *sums, *to, *scale_to[kVectors / kMakers];
    int code_step;

    __device__ __forceinline__ codes_place(const norm_args &norm, const quantize_args &codes,
                                           int64_t row)
        : threads(blockDim.x), thread(threadIdx.x), step(threads * kVec),
          source(norm, row * norm.x_pitch + thread * kVec,
                 K::kAdds ? row * norm.residual_pitch + thread * kVec : 0,
                 K::kAdds ? row * norm.addend_pitch + thread * kVec : 0)
    {
        const int first = thread * kVec, to_weight = norm.n_vectors - thread;
        left = compute_now(row < norm.n_rows ? to_weight : 0);
        started = compute_now(norm.weight_kind == kWeightSame ? to_weight : 0);
        // of several blocks that read a row each writes what its share of the warps has read
        const unsigned n_warps = threads / 32;
        is_writer = compute_now(
            (int)(thread / 32 * gridDim.y - blockIdx.y * n_warps < n_warps || threads < 32));
        source.find_now();
        weights = compute_now(static_cast<const char *>(norm.weight) + 16 * thread);
        sums = nullptr;
        if constexpr (K::kAdds)
            sums = as_global(static_cast<T *>(norm.residual_out) + row * norm.residual_out_pitch +
                             first);
        to = as_global(codes.y + row * codes.y_stride + (first >> codes.y_shift));
        code_step = compute_now(step >> codes.y_shift);
        if (!kOfRow && !finds_scales<kScale>(codes))
            return;
        const int shift = group_shift_of<kScale, kVec>(codes);
#pragma unroll
        for (int v = 0; v < kVectors; v += kMakers) {
            const int vector = kOfRow ? 0 : (v + thread % kMakers) * threads + thread;
            const int64_t at = scale_at(codes.scales, row, vector >> shift);
            scale_to[v / kMakers] = as_global(static_cast<char *>(codes.scales.data) +
                                              (kScale == CODE_SCALE_F32 ? 4 * at : at));
        }
    }
    __device__ __forceinline__ bool has(int v) const
    {
        return v * threads < left;
    }
    __device__ __forceinline__ void load(raw_row<K, kVectors> &raw, uint4 (&weight)[kVectors]) const
    {
#pragma unroll
        for (int v = 0; v < kVectors; v++) {
            clear<K>(raw, v);
            if (has(v))
                load_into<K, true>(raw, v, source, v * step, kVec);
        }
#pragma unroll
        for (int v = 0; v < kVectors; v++) {
            weight[v] = no_weight<T>();
            if (v * threads < started)
                weight[v] = load_16(weights + v * threads * 16);
        }
    }
    // One task for each vector, i, i + n, ... of them: a sum's store, and gains.
    __device__ __forceinline__ void prepare(const norm_args &norm, int i, int n,
                                            const row_floats<kVectors, kVec> &z,
                                            const uint4 (&weight)[kVectors],
                                            row_floats<kVectors, kVec> &gain) const
    {
        for (int v = i; v < kVectors; v += n) {
            if constexpr (K::kAdds)
                if (has(v) && is_writer)
                    store_vector<T, true>(reinterpret_cast<T *>(sums) + v * step, kVec, z.of[v]);
            unpack<T>(weight[v], gain.of[v]);
            add_bias(norm, gain.of[v]);
#pragma unroll
            for (float &value : gain.of[v])
                value = compute_now(value);
        }
    }
    // The scales of vectors of the row's or of groups, of their largest values, found and stored.
    __device__ __forceinline__ void find_scales(const quantize_args &codes, const code_rule &rule,
                                                float (&largest)[kVectors],
                                                code_divisor (&divisor)[kVectors]) const
    {
        const auto store = [&](int part, const code_scale_made &made) {
            store_scale(rule, {scale_to[part], 0, 0, 0}, 0, made);
        };
        if constexpr (kOfRow) {
            __shared__ float partial[32];
#pragma unroll
            for (int v = 1; v < kVectors; v++)
                largest[0] = fmaxf(largest[0], largest[v]);
            const float of_row = without_nan(rule, largest[0]);
            const code_scale_made made =
                make_scale(rule, largest_in_group(of_row, partial, threads));
            if (thread == 0 && left > 0 && is_writer)
                store(0, made);
#pragma unroll
            for (int v = 0; v < kVectors; v++)
                divisor[v] = made.divisor;
        } else if (!finds_scales<kScale>(codes)) {
#pragma unroll
            for (int v = 0; v < kVectors; v++)
                divisor[v] = known_scale(codes);
        } else {
            int lanes = 1 << group_shift_of<kScale, kVec>(codes);
            // a group that is all of a row, of 32 elements of float32, has two vectors in each lane
            if (kScale == CODE_SCALE_E8M0 && kVec == 4 && kVectors == 2 && threads < lanes) {
                largest[0] = largest[1] = larger_of(rule, largest[0], largest[1]);
                lanes = threads;
            }
            __syncwarp();
            make_group_scales<kLeast>(rule, largest, lanes, divisor,
                                      [&](int v, const code_scale_made &made) {
                                          if (has(v))
                                              store(kVectors == kMakers ? 0 : v / kMakers, made);
                                      });
        }
    }
    // Codes of values that are divided, where scales are numbers.
    template <int kElement>
    __device__ __forceinline__ void store_as(code_rule rule, float (&y)[kVectors][kVec],
                                             const code_divisor (&divisor)[kVectors]) const
    {
        rule.element = kElement;
#pragma unroll
        for (int v = 0; v < kVectors; v++) {
            uint8_t *at = reinterpret_cast<uint8_t *>(to) + v * code_step;
            if (!has(v))
                continue;
            if constexpr (kScale == CODE_SCALE_F32)
                store_fp8(at, byte_codes_of(rule, y[v]));
            else
                store_codes(rule, at, y[v], divisor[v]);
        }
    }
    // One choice of a format for all vectors, the last one that of most calls.
    __device__ __forceinline__ void store_all(const code_rule &rule, float (&y)[kVectors][kVec],
                                              const code_divisor (&divisor)[kVectors]) const
    {
        if constexpr (kScale == CODE_SCALE_F32)
#pragma unroll
            for (int v = 0; v < kVectors; v++)
                divide_codes(rule, y[v], divisor[v]);
        if (kScale == CODE_SCALE_F32 && rule.element == CODE_E4M3)
            store_as<CODE_E4M3>(rule, y, divisor);
        else if (kScale == CODE_SCALE_F32 && rule.element == CODE_E5M2)
            store_as<CODE_E5M2>(rule, y, divisor);
        else if (kScale == CODE_SCALE_F32)
            store_as<CODE_I8>(rule, y, divisor);
        else if (kScale == CODE_SCALE_E4M3 || rule.element == CODE_E2M1)
            store_as<CODE_E2M1>(rule, y, divisor);
        else
            store_as<CODE_E4M3>(rule, y, divisor);
    }
};

// From what is normalised to the result, of all vectors.
template <typename T, int kVectors, int kVec>
__device__ __forceinline__ void finish_row(const norm_args &norm, float scale,
                                           const row_floats<kVectors, kVec> &gain,
                                           row_floats<kVectors, kVec> &z)
{
    constexpr bool kMayRound = sizeof(T) == 2;
#pragma unroll
    for (int v = 0; v < kVectors; v++)
        multiply(z.of[v], scale);
    if (kMayRound && norm.rounds_product)
        z = rounded<T>(z);
#pragma unroll
    for (int v = 0; v < kVectors; v++)
#pragma unroll
        for (int i = 0; i < kVec; i++)
            z.of[v][i] *= gain.of[v][i];
    if (kMayRound && norm.rounds_result)
        z = rounded<T>(z);
}

// Rows in the registers of a part of a warp, or of a block. Of a single row blockIdx.y's share of
// the warps writes what it has read, as in device/norm.cuh.
template <typename K, int kVectors, int kScale, bool kOfRow>
static __global__ void __launch_bounds__(kMostThreads, kVectors <= 2 ? 2 : 1)
    norm_codes_row_kernel(const __grid_constant__ norm_codes_args args)
{
    using T = typename K::T;
    constexpr int kVec = K::kVec;
    constexpr int kPlaces = kVectors <= 2 ? 16 : 32; // of sums of kMostThreads, or twice as many
    __shared__ __align__(16) float partial[kPlaces];
    const norm_args &norm = args.norm;
    code_rule rule = rule_of<kScale>(args.codes);
    const codes_place<K, kVectors, kScale, kOfRow> place(norm, args.codes, row_of_block());
    const int threads = place.threads, thread = place.thread;
    if (thread < kPlaces && thread >= threads / 32 * (kVectors / 2))
        partial[thread] = 0.0f;
    rule.element = compute_now(rule.element);
    finish_before_wait(place.source.x, place.weights, place.left, place.started, place.code_step,
                       rule.element);
    wait_for_previous();
    raw_row<K, kVectors> raw;
    uint4 weight[kVectors];
    place.load(raw, weight);
    let_next_start();
    row_floats<kVectors, kVec> z = values_of(norm, raw), gain;
#pragma unroll
    for (int v = 0; v < kVectors; v++)
#pragma unroll
        for (float &value : z.of[v])
            value = compute_now(value);
    const float sum = sum_squares_now(
        z.of, partial, threads, [&](int i, int n) { place.prepare(norm, i, n, z, weight, gain); });
    const float mean = fmaf(sum, norm.inverse_hidden, norm.eps);
    float scale = inverse_root(mean);
    const bool is_done = is_good(sum, mean);
    if (!(threads < 32 ? __all_sync(0xFFFFFFFFu, is_done) : is_done)) {
        const float exact = exact_scale_of_values(norm, threads, z);
        scale = is_done ? scale : exact;
    }
    if (norm.weight_kind > kWeightSame)
        gain = other_gains<T, kVectors, kVec>(norm, threads);
    if (!kOfRow && !place.is_writer)
        return;
    finish_row<T>(norm, scale, gain, z);
    float largest[kVectors];
    code_divisor divisor[kVectors];
#pragma unroll
    for (int v = 0; v < kVectors; v++)
        largest[v] = largest_magnitude(rule, z.of[v]); // of what is not there: 0, as its z
    place.find_scales(args.codes, rule, largest, divisor);
    if (place.is_writer)
        place.store_all(rule, z.of, divisor);
}
