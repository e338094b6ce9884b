// norm_codes_any.cuh - norms into codes (norm_codes.cuh) of rows that registers of a block do not
// hold, or that 16 bytes do not divide. They wait in shared memory (device/norm_staged.cuh). Of
// those that have one scale each, a few are the work of four threads for each vector
// (device/norm_quarters.cuh), as a few wide ones are, and others wait as packets
// (device/packet_row.cuh).
#pragma once

#include "cuda/device/norm_quarters.cuh"
#include "cuda/norm_codes_row.cuh"

// Stores the codes of a vector, as far as its row goes: of one that is not aligned, n elements are
// left, which may be the next vector's, too.
template <typename K, bool kIsAligned>
__device__ __forceinline__ void store_staged(const quantize_args &codes, int64_t row, int vector,
                                             int n, const code_divisor &divisor,
                                             float (&y)[K::kVec])
{
    constexpr int kVec = K::kVec;
    uint8_t *to = codes.y + row * codes.y_stride + ((int64_t)vector * kVec >> codes.y_shift);
    if constexpr (kIsAligned) {
        if (n > 0)
            store_codes(codes.rule, to, y, divisor);
    } else {
        alignas(8) uint8_t code[kVec];
        store_codes(codes.rule, code, y, divisor);
#pragma unroll
        for (int byte = 0; byte < kVec; byte++)
            if (byte << codes.y_shift < min(n, kVec))
                to[byte] = code[byte];
    }
}

// Tile by tile, each by as many threads as it has vectors, or all that the row has. What a thread
// normalises once, where it has one vector of a tile, stays in registers until the scale is known.
template <typename K, bool kIsAligned>
static __global__ void __launch_bounds__(1024)
    norm_codes_staged_kernel(const __grid_constant__ norm_codes_args args)
{
    __shared__ row_exchange blocks;
    constexpr int kVec = K::kVec;
    const quantize_args &codes = args.codes;
    blocks.begin();
    const staged_row<K, kIsAligned> row(args.norm, blocks);
    const int threads = row.threads, thread = row.thread;
    const row_scale scale = row.find_scale();
    float z[kVec] = {}, y[kVec] = {};
    const auto take = [&](int vector, int n) { // the elements behind a row's end are 0
        if (n > 0)
            row.finish(vector, scale, z, y);
#pragma unroll
        for (int i = 0; i < kVec; i++)
            y[i] = i < n ? y[i] : 0.0f;
    };
    // Sums are stored here, where nobody reads their row again.
    const auto write = [&](int vector, int n, const code_divisor &divisor) {
        row.store_sum_of(vector, n, z);
        store_staged<K, kIsAligned>(codes, row.row, vector, n, divisor, y);
    };
    if (!codes.finds) {
        row.for_each(thread, row.end, threads, [&](int vector, int n) {
            take(vector, n);
            write(vector, n, known_scale(codes));
        });
        return;
    }
    __syncwarp(); // a tile's vectors may be other threads'
    const int tile_vectors = 1 << codes.tile_shift;
    const int lanes = codes.n_tiles == 1 ? threads : min(tile_vectors, threads);
    const bool is_kept = codes.n_tiles > 1 && lanes == tile_vectors;
    for (int64_t turn = 0; turn < codes.n_tiles; turn += threads / lanes) {
        const int tile = (int)turn + thread / lanes;
        const int begin = codes.n_tiles > 1 ? tile << codes.tile_shift : 0;
        const int first = begin + thread % lanes;
        const int last = codes.n_tiles > 1 ? min(row.end, begin + tile_vectors) : row.end;
        float largest = 0;
        // where there is nothing to do, every lane of a warp takes part all the same
        row.for_each(first, last, lanes, [&](int vector, int n) {
            take(vector, n);
            largest = fmaxf(largest, largest_of(codes.rule, y));
        });
        largest = codes.n_tiles == 1 ? row.largest_of_row(largest)
                                     : largest_in_group(largest, nullptr, lanes);
        const code_scale_made made = make_scale(codes.rule, largest);
        if (thread % lanes == 0 && first < last)
            store_scale(codes.rule, codes.scales, scale_at(codes.scales, row.row, tile), made);
        row.for_each(first, last, lanes, [&](int vector, int n) {
            if (!is_kept)
                take(vector, n);
            write(vector, n, made.divisor);
        });
    }
}

// Of the scale that was given.
__device__ __forceinline__ code_divisor given_divisor(const norm_args &args)
{
    return {args.divisor.first, args.divisor.high, args.divisor.low};
}

// Codes first to last - 1 of a packet. Out of line: few packets are stored so.
template <int n>
static __device__ __noinline__ void store_some(uint8_t *to, int first, int last, fp8_codes<n> code)
{
#pragma unroll
    for (int i = 0; i < n; i++)
        if (i >= first && i < last)
            to[i] = byte_of(code, i);
}

// Many rows at addresses that 16 bytes do not divide, each of which has one scale. A row of codes
// that lies beside others begins as far behind a multiple of a packet's codes as its elements do
// behind that packet; elsewhere codes are stored one by one. kOfRow: results wait where the row did
// until their scale is made. Else it was given.
template <typename K, bool kOfRow>
static __global__ void __maxnreg__((kPacketRegisters<K::kAdds>))
    norm_codes_packets_kernel(const __grid_constant__ norm_codes_args args)
{
    using T = typename K::T;
    constexpr int kVec = K::kVec;
    __shared__ float partial[32], largest_partial[32];
    __shared__ double exact_partial[32];
    const norm_args &norm = args.norm;
    const quantize_args &codes = args.codes;
    const code_rule rule = rule_of<CODE_SCALE_F32>(codes);
    const int64_t of_block = blockIdx.x;
    const packet_row<K, K::kAdds> row(norm, source_of_row<K, true>(norm, of_block));
    const packet_weights<T> weights[1] = {{norm, norm.weight, row.first, row.last, 1.0f}};
    uint8_t *const to = codes.y + of_block * codes.y_stride - row.first;
    T *sums = nullptr;
    if constexpr (K::kAdds)
        sums = static_cast<T *>(norm.residual_out) + of_block * norm.residual_out_pitch - row.first;
    let_next_start();
    wait_for_previous();
    row.take(weights, sums, [&](auto &z, auto &other) { take_elements<K>(norm, z, other); });
    const row_scale scale = scale_by(
        norm, false, [&] { return sum_of_squares(row, partial); },
        [&] { return sum_of_squares(row, exact_partial); });
    const auto store = [&](int packet, auto &y, const code_divisor &divisor) {
        uint8_t *const at = to + packet * kVec;
        divide_codes(rule, y, divisor);
        const fp8_codes<kVec> code = byte_codes_of(rule, y);
        if (!row.is_cut(packet) && (uintptr_t)at % kVec == 0)
            store_fp8(at, code);
        else
            store_some(at, row.first - packet * kVec, row.last - packet * kVec, code);
    };
    float largest = 0.0f;
    row.finish_each(
        weights,
        [&](auto &gain, auto &other, auto &y) {
            add_bias(norm, gain[0]);
            finish_elements<K>(norm, gain[0], scale, other, y);
        },
        [&](int packet, auto &y) {
            if constexpr (kOfRow) {
                row.put_back(packet, y);
                largest = fmaxf(largest, largest_magnitude(rule, y));
            } else {
                store(packet, y, given_divisor(norm));
            }
        });
    if constexpr (kOfRow) {
        largest = largest_in_group(largest, largest_partial, (int)blockDim.x);
        const code_scale_made made = make_scale(rule, largest);
        if (threadIdx.x == 0)
            store_scale(rule, codes.scales, scale_at(codes.scales, of_block, 0), made);
        row.for_each_packet([&](int packet, auto &y) { store(packet, y, made.divisor); });
    }
}

// The scale of a group whose elements so many lanes have, half a warp at most, or a warp: the
// largest magnitude of a lane is largest. Of magnitudes, NaN among them, the largest has the most
// of bits. To all lanes; a group's first stores it.
template <bool kIsWarp>
__device__ __forceinline__ code_divisor find_lanes_scale(const quantize_args &codes,
                                                         const code_rule &rule, int lanes,
                                                         int group, bool is_there, float largest)
{
    uint32_t bits = __float_as_uint(largest);
    if constexpr (kIsWarp)
        bits = __reduce_max_sync(0xFFFFFFFFu, bits);
    else
#pragma unroll
        for (int distance = 8; distance > 0; distance /= 2) {
            const uint32_t other = exchange(bits, distance);
            if (distance < lanes)
                bits = max(bits, other);
        }
    const code_scale_made made = make_scale(rule, without_nan(rule, __uint_as_float(bits)));
    if ((threadIdx.x & (lanes - 1)) == 0 && is_there)
        store_scale(rule, codes.scales, scale_at(codes.scales, blockIdx.x, group), made);
    return made.divisor;
}

// A few rows that 16 bytes do not divide, or wide ones: four threads have a vector
// (device/norm_quarters.cuh), and their results in registers until the scale is known. kOfGroups:
// of 32 elements of float32, which are a warp's, or of 16 or 32 of 16 bits, of which it has
// several; else of a row.
template <typename K, int kVectors = kQuarterVectors, bool kOfGroups = false>
static __global__ void __launch_bounds__(kQuarterThreads)
    norm_codes_quarters_kernel(const __grid_constant__ norm_codes_args args)
{
    constexpr int kEach = K::kVec / 4;
    __shared__ cluster_values<float, 8 * kQuarterThreads / 32> largest_of_blocks;
    __shared__ float partial[32];
    const quantize_args &codes = args.codes;
    code_rule rule = codes.rule;
    if constexpr (!kOfGroups)
        rule = rule_of<CODE_SCALE_F32>(codes);
    else if constexpr (kEach == 1)
        rule = rule_of<CODE_SCALE_E8M0>(codes);
    else if (rule.scale == CODE_SCALE_F32)
        __builtin_unreachable();
    rule.element = compute_now(rule.element);
    const quarters<K> mine(args.norm);
    uint8_t *to = codes.y + blockIdx.x * codes.y_stride + (mine.first >> codes.y_shift);
    float y[kVectors][kEach] = {}, largest = 0.0f;
    if (gridDim.y > 1 && !kOfGroups)
        largest_of_blocks.prepare();
    finish_before_wait(to, rule.element);
    normalise_quarters<K, kVectors>(args.norm, [&](auto &, auto &, int v, auto &made) {
#pragma unroll
        for (int i = 0; i < kEach; i++) {
            y[v][i] = made[i];
            largest = fmaxf(largest, mine.has(v, i) ? fabsf(made[i]) : 0.0f);
        }
    });
    if constexpr (kOfGroups) {
        const int shift = codes.tile_shift; // vectors of a group
        const bool is_e8m0 = kEach == 1 || rule.scale == CODE_SCALE_E8M0;
#pragma unroll
        for (int v = 0; v < kVectors; v++) {
            uint32_t bits = 0;
#pragma unroll
            for (int i = 0; i < kEach; i++)
                if (mine.has(v, i)) // no other scale than E8M0 knows NaN
                    bits = max(bits, __float_as_uint(is_e8m0 ? fabsf(y[v][i])
                                                             : fmaxf(fabsf(y[v][i]), 0.0f)));
            const code_divisor of_group =
                find_lanes_scale<kEach == 1>(codes, rule, kEach == 1 ? 32 : 4 << shift,
                                             (mine.first + v * mine.step) / K::kVec >> shift,
                                             mine.has(v), __uint_as_float(bits));
#pragma unroll
            for (int i = 0; i < kEach; i++) {
                float pair[2] = {y[v][i], exchange(y[v][i], 1)};
                uint8_t code;
                if (rule.element == CODE_E2M1) {
                    code = byte_of(e2m1_codes_of(rule, pair, of_group), 0);
                } else {
                    divide_codes(rule, pair, of_group);
                    code = byte_of(fp8_codes_of<false>(pair), 0);
                }
                if (mine.has(v, i) && !(threadIdx.x & codes.y_shift))
                    to[4 * i >> codes.y_shift] = code;
            }
            to += (uint32_t)mine.step >> codes.y_shift;
        }
        return;
    }
    code_divisor divisor = given_divisor(args.norm);
    if (codes.finds) {
        largest = gridDim.y > 1 ? largest_of_blocks.largest_of(largest)
                                : largest_in_group(largest, partial, (int)blockDim.x);
        const code_scale_made made = make_scale(rule, largest);
        if (threadIdx.x == 0 && blockIdx.y == 0)
            store_scale(rule, codes.scales, scale_at(codes.scales, blockIdx.x, 0), made);
        divisor = made.divisor;
    }
#pragma unroll
    for (int v = 0; v < kVectors; v++) {
        if (!mine.has(v))
            break;
        divide_codes(rule, y[v], divisor);
        const fp8_codes<kEach> code = byte_codes_of(rule, y[v]);
#pragma unroll
        for (int i = 0; i < kEach; i++)
            if (mine.has(v, i))
                to[4 * i] = byte_of(code, i);
        to += (uint32_t)mine.step;
    }
}
