// norm_codes.cuh - norms into codes of any format, by the packets of quantize: kernels and their
// launches. Codes of 8 bits whose scales are float32 have kernels of their own (device/norm.cuh),
// but for sums of terms, and for rows that wait in shared memory or are the work of quarters.
//
// Threads own a row as they do there, as many of them with as many vectors each, so the sum has the
// same order and the same bits. Here their number is one of the call: a kernel is compiled for a
// type, for two or four vectors of a thread, for a kind of scale and for one row or several in
// turn, but serves every width, strides, and weights of any type. A row stays in registers until
// its codes are written. Rows of more than 2,048 vectors take turns (device/norm_turns.cuh).
// Others, and those that 16 bytes do not divide: norm_codes_any.cuh.
#pragma once

#include "cuda/device/norm_turns.cuh"
#include "cuda/norm_codes_any.cuh"
#include "cuda/wide_codes.cuh"
#include "ops/rmsnorm_quantize.h"

// Where a row comes from: sums are sums of terms, or any. As with FP8, it is known only at run time
// whether the result is rounded, which no other sink has instructions for.
template <typename T, norm_source kFrom>
using coded_norm = norm_kind<T, kFrom, kToFp8>;

// ------------------------------------------------------------------------------------ kernels

// A thread's part of a row: vectors thread, thread + threads, ...
template <typename K, int kVectors>
struct coded_row {
    static constexpr int kVec = K::kVec;
    int threads, thread;
    int left; // vectors from the thread's first one to the row's end; 0 or below: none, or no row
    int64_t row;

    __device__ __forceinline__ coded_row(const norm_args &args, int64_t row_number)
        : threads(blockDim.x), thread(threadIdx.x), row(row_number)
    {
        left = row < args.n_rows ? args.n_vectors - thread : 0;
    }
    __device__ __forceinline__ bool has(int v) const
    {
        return v * threads < left;
    }
    __device__ __forceinline__ int vector(int v) const
    {
        return v * threads + thread;
    }
    // So many vectors: the next one is the first.
    __device__ __forceinline__ void skip(int vectors)
    {
        thread += vectors * threads;
        left -= vectors * threads;
    }
    // Addresses are found once, and not for every vector.
    __device__ __forceinline__ void load(const norm_args &args, raw_row<K, kVectors> &raw) const
    {
        row_source<K> source = source_of_row<K, true>(args, row);
        source.find_now();
#pragma unroll
        for (int v = 0; v < kVectors; v++) {
            clear<K>(raw, v);
            if (has(v))
                load_into<K, true>(raw, v, source, (int64_t)vector(v) * kVec, kVec);
        }
    }
};

// 1 / sqrt(mean + eps) of values in registers, as scale_of of device/norm.cuh finds it. Rows that a
// block takes in turn have two places for their sums in turn: nobody writes one before all threads
// are past the sum that stood there.
template <typename K, int kVectors>
__device__ __forceinline__ float scale_of_values(const norm_args &args, int threads, int turn,
                                                 const float (&z)[kVectors][K::kVec])
{
    __shared__ float partial[2][32];
    __shared__ double exact_partial[2][32];
    const float sum = sum_squares(z, partial[turn % 2], threads);
    const float mean = fmaf(sum, args.inverse_hidden, args.eps);
    const float scale = inverse_root(mean);
    const bool is_done = is_good(sum, mean);
    if (threads < 32 ? __all_sync(0xFFFFFFFFu, is_done) : is_done)
        return scale;
    const double exact_sum = sum_squares(z, exact_partial[turn % 2], threads);
    return is_done ? scale : exact_scale(args, exact_sum);
}

// Gains of a vector by weights that were started or, of another type than x, are read here.
template <typename K>
__device__ __forceinline__ void find_gains(const norm_args &args, const uint4 &started,
                                           bool is_there, int vector, float (&gain)[K::kVec])
{
    using T = typename K::T;
    unpack<T>(started, gain);
    if (args.weight_kind > kWeightSame && is_there)
        any_weights<T, true>(args, args.weight, 1.0f, vector, gain);
    add_bias(args, gain);
}

// Makes and stores the scale of a row, of the largest value that a thread has found: a number, of
// which NaN is none.
template <typename K, int kVectors>
__device__ __forceinline__ code_divisor find_row_scale(const quantize_args &codes,
                                                       const code_rule &rule,
                                                       const coded_row<K, kVectors> &part,
                                                       float largest)
{
    __shared__ float partial[32];
    const code_scale_made scale =
        make_scale(rule, largest_in_group(largest, partial, part.threads));
    if (part.thread == 0 && part.has(0))
        store_scale(rule, codes.scales, scale_at(codes.scales, part.row, 0), scale);
    return scale.divisor;
}

// Makes and stores the scales of a row's groups, whose vectors are in lanes of one warp beside each
// other: a row of several groups has at least as many threads as a group has vectors. A vector that
// is not there has no group that is, or zeros there.
template <int kScale, typename K, int kVectors>
__device__ __forceinline__ void find_group_scales(const quantize_args &codes, const code_rule &rule,
                                                  const coded_row<K, kVectors> &part,
                                                  const float (&y)[kVectors][K::kVec],
                                                  code_divisor (&divisor)[kVectors])
{
    float largest[kVectors];
#pragma unroll
    for (int v = 0; v < kVectors; v++)
        largest[v] = largest_magnitude(rule, y[v]);
    const int shift = group_shift_of<kScale, K::kVec>(codes);
    const int64_t of_row = scales_of_strip(codes.scales, part.row);
    make_group_scales<kLeastLanes<kScale, K::kVec>>(
        rule, largest, 1 << shift, divisor, [&](int v, const code_scale_made &scale) {
            if (part.has(v))
                store_scale(rule, codes.scales,
                            of_row + scale_of_tile(codes.scales, part.vector(v) >> shift), scale);
        });
}

// The results of a thread's vectors.
template <typename K, bool kRounds, int kVectors>
__device__ __forceinline__ void finish_all(const norm_args &args,
                                           const float (&gain)[kVectors][K::kVec], float scale,
                                           float (&y)[kVectors][K::kVec])
{
#pragma unroll
    for (int v = 0; v < kVectors; v++)
        finish_vector<K, kRounds>(args, gain[v], {scale}, y[v]);
}

// Stores codes of a thread's vectors, so many bytes apart. Those of E2M1 take the most
// instructions: they are made of all vectors together, so that none waits for the one before it.
// Where scales are numbers there are none, and must be no instructions for them (store_codes_of):
// between those for bytes they made int8 take 1.6 times as long.
template <int kScale, typename K, int kVectors>
__device__ __forceinline__ void store_all(const code_rule &rule, const coded_row<K, kVectors> &part,
                                          uint8_t *to, int to_next, float (&y)[kVectors][K::kVec],
                                          const code_divisor (&divisor)[kVectors])
{
    if (kScale != CODE_SCALE_F32 && rule.element == CODE_E2M1) {
        fp8_codes<K::kVec / 2> code[kVectors];
#pragma unroll
        for (int v = 0; v < kVectors; v++)
            code[v] = e2m1_codes_of(rule, y[v], divisor[v]);
#pragma unroll
        for (int v = 0; v < kVectors; v++)
            if (part.has(v))
                store_fp8(to + v * to_next, code[v]);
        return;
    }
#pragma unroll
    for (int v = 0; v < kVectors; v++)
        if (part.has(v))
            store_codes_of<kScale>(rule, to + v * to_next, y[v], divisor[v]);
}

// Rows of one input in the registers of a block, which takes several in turn: it finds gains once,
// and the next row is on its way while one is scaled. Others: norm_codes_row.cuh. Scales are those
// of groups that MX and NVFP4 have.
template <typename K, int kVectors, int kScale>
static __global__ void __launch_bounds__(kMostThreads, kVectors <= 2 ? 2 : 1)
    norm_codes_kernel(const __grid_constant__ norm_codes_args args)
{
    using T = typename K::T;
    constexpr int kVec = K::kVec;
    constexpr bool kMayRound = sizeof(T) == 2;
    const norm_args &norm = args.norm;
    const quantize_args &codes = args.codes;
    const code_rule rule = rule_of<kScale>(codes);
    const bool starts_weight = norm.weight_kind == kWeightSame;
    const int64_t step = (int64_t)gridDim.x * blockDim.y;
    raw_row<K, kVectors> raw;
    uint4 weight[kVectors];
    float gain[kVectors][kVec];
    let_next_start();
    wait_for_previous();
    int64_t row = row_of_block();
    coded_row<K, kVectors>(norm, row).load(norm, raw);
    const coded_row<K, kVectors> any(norm, 0);
#pragma unroll
    for (int v = 0; v < kVectors; v++) {
        weight[v] = no_weight<T>();
        if (starts_weight && any.has(v))
            weight[v] = load_16(static_cast<const T *>(norm.weight) + any.vector(v) * kVec);
    }
#pragma unroll
    for (int v = 0; v < kVectors; v++)
        find_gains<K>(norm, weight[v], any.has(v), any.vector(v), gain[v]);
#pragma unroll 1
    for (int turn = 0; turn == 0 || row < norm.n_rows; turn++) {
        const coded_row<K, kVectors> part(norm, row);
        float y[kVectors][kVec];
        code_divisor divisor[kVectors];
#pragma unroll
        for (int v = 0; v < kVectors; v++)
            unpack_sum<K>(norm, raw, v, y[v]);
        const auto start_next = [&] { coded_row<K, kVectors>(norm, row + step).load(norm, raw); };
        // Of MX a row is unpacked once, and the next one has its place. What divides for its scales
        // is slower so; there it is unpacked again, and of NVFP4 the next one comes behind that.
        if (kScale == CODE_SCALE_E8M0)
#pragma unroll
            for (int v = 0; v < kVectors; v++)
#pragma unroll
                for (float &value : y[v])
                    value = compute_now(value);
        if (kScale != CODE_SCALE_E4M3)
            start_next();
        const float scale = scale_of_values<K>(norm, part.threads, turn, y);
        if (kMayRound && norm.rounds_product)
            finish_all<K, kMayRound>(norm, gain, scale, y);
        else
            finish_all<K, false>(norm, gain, scale, y);
        if (kScale == CODE_SCALE_E4M3)
            start_next();
        find_group_scales<kScale>(codes, rule, part, y, divisor);
        const int to_next = part.threads * kVec >> codes.y_shift;
        uint8_t *to = codes.y + row * codes.y_stride + (part.thread * kVec >> codes.y_shift);
        store_all<kScale>(rule, part, to, to_next, y, divisor);
        row += step;
    }
}

// Wide rows (device/norm_turns.cuh). kOfRow: with scales of rows, for which results are made twice.
template <typename K, int kScale, bool kOfRow>
static __global__ void __launch_bounds__(1024)
    norm_codes_turns_kernel(const __grid_constant__ norm_codes_args args)
{
    constexpr int kVec = K::kVec;
    constexpr int kBatch = K::kAdds ? 2 : 16 / kVec; // vectors at a time, as registers allow
    const quantize_args &codes = args.codes;
    const code_rule rule = rule_of<kScale>(codes);
    turning_rows<K> rows(args.norm);
    let_next_start();
    wait_for_previous();
    rows.start();
    const int to_next = rows.threads * kVec >> codes.y_shift;
    for (; rows.row < args.norm.n_rows; rows.go_on()) {
        const row_scale scale = rows.find_scale();
        coded_row<K, kBatch> part(args.norm, rows.row);
        uint8_t *to = codes.y + rows.row * codes.y_stride + (rows.thread * kVec >> codes.y_shift);
        code_divisor of_row = {};
        if constexpr (kOfRow) {
            float largest = 0.0f;
            rows.template for_each<false, 1>(scale, [&](int v, auto &y) {
                if (v * rows.threads < rows.left)
                    largest = fmaxf(largest, largest_magnitude(rule, y[0]));
            });
            of_row = find_row_scale(codes, rule, part, largest);
        } else if (!finds_scales<kScale>(codes)) {
            of_row = known_scale(codes);
        }
        rows.template for_each<true, kBatch>(scale, [&](int, auto &y) {
            code_divisor divisor[kBatch];
#pragma unroll
            for (int i = 0; i < kBatch; i++)
                divisor[i] = of_row;
            if (!kOfRow && finds_scales<kScale>(codes))
                find_group_scales<kScale>(codes, rule, part, y, divisor);
            store_all<kScale>(rule, part, to, to_next, y, divisor);
            part.skip(kBatch);
            to += kBatch * to_next;
        });
    }
}

// ------------------------------------------------------------------------------------ launches

// kernel_of(scale, of_row): compiled for the scales of a call.
template <typename F>
static kernel_fn<norm_codes_args> *kernel_of_scales(const quantize_args &codes, const F &kernel_of)
{
    switch (codes.rule.scale) {
    case CODE_SCALE_E8M0:
        return kernel_of(std::integral_constant<int, CODE_SCALE_E8M0>{}, std::false_type{});
    case CODE_SCALE_E4M3:
        return kernel_of(std::integral_constant<int, CODE_SCALE_E4M3>{}, std::false_type{});
    default:
        if (codes.finds && codes.n_tiles == 1)
            return kernel_of(std::integral_constant<int, CODE_SCALE_F32>{}, std::true_type{});
        return kernel_of(std::integral_constant<int, CODE_SCALE_F32>{}, std::false_type{});
    }
}

template <typename K, int kVectors, bool kLoops = false>
static kernel_fn<norm_codes_args> *codes_kernel_of(const quantize_args &codes)
{
    return kernel_of_scales(codes, [](auto scale, auto of_row) -> kernel_fn<norm_codes_args> * {
        if constexpr (scale.value == CODE_SCALE_F32 && !K::kAdds)
            return nullptr; // not kept (launch_codes)
        else if constexpr (kLoops)
            return norm_codes_kernel<K, kVectors, scale.value>;
        else
            return norm_codes_row_kernel<K, kVectors, scale.value, of_row.value>;
    });
}

// Wide rows in turn.
template <typename K>
static kernel_fn<norm_codes_args> *turns_kernel_of(const quantize_args &codes)
{
    return kernel_of_scales(codes, [](auto scale, auto of_row) -> kernel_fn<norm_codes_args> * {
        return norm_codes_turns_kernel<K, scale.value, of_row.value>;
    });
}

// Rows of one input that a block of them takes in turn, where every multiprocessor has 16 of them
// or more: sums wait for memory, whatever their rows' order.
template <typename K>
static int64_t rows_in_turn(int64_t n_rows, int n_multiprocessors)
{
    constexpr int64_t kMost = 8;
    const int64_t turns = n_rows / (16 * (int64_t)n_multiprocessors);
    return K::kAdds || turns < 1 ? 1 : turns < kMost ? turns : kMost;
}

// Do rows that registers hold wait in shared memory all the same? Sums of more than two terms that
// are wide and many: four vectors leave a thread's registers no room for what it adds.
template <typename K>
static bool has_terms_apart(const struct norm_args *args, const struct roped_queue *queue)
{
    return K::kAdds && has_terms(args) && vectors_of<K>(args) > 1024 &&
           has_many_rows(args, queue, 1);
}

// Of a few wide rows with scales of rows, or of 32 elements, which of float32 a warp has, or of 16.
template <typename K>
static kernel_fn<norm_codes_args> *wide_quarters_kernel_of(const quantize_args &codes)
{
    constexpr int kMost = kMostWideVectors<typename K::T>;
    return codes.rule.scale == CODE_SCALE_F32 ? norm_codes_quarters_kernel<K, kMost>
                                              : norm_codes_quarters_kernel<K, kMost, true>;
}

// As many threads as the norm alone would have.
template <typename K>
static enum roped_status launch_codes(norm_codes_args args, struct roped_queue *queue,
                                      struct roped_error *err)
{
    using T = typename K::T;
    norm_args &norm = args.norm;
    const int64_t vectors = vectors_of<K>(&norm);
    int threads = wide_threads(vectors), kept = 0; // vectors of a thread, where it keeps them
    norm.sums_in_double = vectors > kMostFloatVectors;
    if (vectors <= kMostVectors) {
        enum roped_status status = with_row_shape(vectors, [&](auto shape) {
            threads = staged_threads<K, shape.kThreads, shape.kVectors>(&norm);
            kept = shape.kThreads * shape.kVectors <= 2048 ? shape.kVectors : 0;
            return ROPED_OK;
        });
        if (status)
            return status;
    }
    const bool is_aligned = has_vectors<T>(&norm, 1) && has_packets<T>(args.codes);
    norm.n_vectors = (int32_t)(norm.hidden / K::kVec);
    while (args.codes.n_tiles > 1 && K::kVec << args.codes.tile_shift < args.codes.tile_width)
        args.codes.tile_shift++;
    const bool is_of_row =
        args.codes.rule.scale == CODE_SCALE_F32 && (args.codes.n_tiles == 1 || !args.codes.finds);
    if constexpr (!K::kIsAny) {
        // of 16 elements of float32 a warp would have two
        const bool may_be_wide = is_of_row || args.codes.rule.scale == CODE_SCALE_E8M0 ||
                                 (sizeof(T) == 2 && args.codes.rule.scale == CODE_SCALE_E4M3);
        if (const int parts = may_be_wide ? wide_parts_of_codes<K>(&norm, queue) : 0)
            return launch_quarters(wide_quarters_kernel_of<K>(args.codes), args, &args.norm,
                                   threads, parts, queue, err);
    }
    if constexpr (!K::kIsAny)
        if (const int parts =
                !is_aligned && is_of_row ? parts_of_codes<K>(&norm, threads, queue) : 0)
            return launch_quarters(norm_codes_quarters_kernel<K>, args, &args.norm, threads, parts,
                                   queue, err);
    if constexpr (!K::kIsAny)
        if (!(is_of_row && has_few_wide_rows<K>(&norm, kFastPartsOfCodes, queue)) &&
            set_places_in_turn<K>(&norm, is_aligned, queue))
            return launch_in_turn<K>(turns_kernel_of<K>(args.codes), args, &args.norm, queue, err);
    // of one input the norm's own kernels have codes by float32 scales where they hold the row
    const bool is_elsewhere = !K::kAdds && args.codes.rule.scale == CODE_SCALE_F32;
    if (K::kIsAny || !is_aligned || is_elsewhere || has_terms_apart<K>(&norm, queue))
        kept = 0;
    const bool is_block = kept > 0 && threads >= 128;
    const int64_t turns = is_block ? rows_in_turn<K>(norm.n_rows, queue->n_multiprocessors) : 1;
    if (kept == 2 && (threads > kMostThreads || turns > 1)) { // the same sum (sum_squares)
        threads /= 2;
        kept = 4;
    }
    const int parts = kept == 0  ? staged_parts(&norm, threads, queue)
                      : is_block ? parts_of_row<K>(&norm, threads)
                                 : 1;
    if constexpr (!K::kIsAny) {
        const bool may_wait = !is_aligned && is_of_row;
        const bool finds = args.codes.finds;
        if (const int64_t row = may_wait ? bytes_of_packets<K>(&norm, threads, queue, finds) : 0)
            return launch_packets<K>(finds ? norm_codes_packets_kernel<K, true>
                                           : norm_codes_packets_kernel<K, false>,
                                     args, &args.norm, threads, row, queue, err);
    }
    const dim3 block = block_of_rows(kept == 0 ? threads / parts : threads);
    kernel_fn<norm_codes_args> *kernel =
        is_aligned ? norm_codes_staged_kernel<K, true> : norm_codes_staged_kernel<K, false>;
    if constexpr (!K::kIsAny)
        kernel = kept == 2   ? codes_kernel_of<K, 2>(args.codes)
                 : kept == 4 ? codes_kernel_of<K, 4>(args.codes)
                             : kernel;
    if constexpr (!K::kIsAny && !K::kAdds)
        kernel = turns > 1 ? codes_kernel_of<K, 4, true>(args.codes) : kernel;
    int64_t bytes = 0;
    enum roped_status status = ROPED_OK;
    norm.n_shares = threads;
    if (kept == 0)
        status = stage_rows<K>(&norm, block.y, queue, &bytes, err);
    if (status)
        return status;
    return start(queue, kernel, block, blocks_of(norm.n_rows, block.y * turns), dim3(1, parts),
                 args, err, bytes, kept == 0 && parts > 1);
}

template <bool kAdds>
static enum roped_status launch_norm_codes(const struct norm_args &norm,
                                           const struct roped_call *call,
                                           const struct roped_tensor *scales,
                                           struct roped_queue *queue, struct roped_error *err)
{
    const struct rmsnorm_quantize_plan *plan =
        reinterpret_cast<const struct rmsnorm_quantize_plan *>(call->plan);
    const struct roped_tensor *x = &call->in[RMSNORM_QUANTIZE_X];
    norm_codes_args args = {norm, {}};
    args.norm.y = call->out[RMSNORM_QUANTIZE_Y].data; // rows may have half of the bytes
    args.norm.y_pitch = norm.hidden;
    args.norm.rounds_result = plan->norm.rounding == RMSNORM_ROUND_TYPE;
    args.norm.divisor = divisor_of(plan->quantize.dequant_scale);
    enum roped_status status = begin_codes(&plan->quantize, &call->out[RMSNORM_QUANTIZE_Y], scales,
                                           queue, &args.codes, err);
    if (status)
        return status;
    return with_float_type(x->dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        if constexpr (kAdds)
            if (is_any(&norm))
                return launch_codes<coded_norm<T, kFromAny>>(args, queue, err);
        return launch_codes<coded_norm<T, kAdds ? kFromTerms : kFromX>>(args, queue, err);
    });
}
