// norm_centred_words.cuh - the centred norm (norm_centred.cuh) of many rows at addresses that 16
// bytes do not divide, a block each, by words of one element or of two (norm_words.cuh). Heads are
// such rows, where they lie beside each other.
#pragma once

#include "cuda/device/norm_centred.cuh"
#include "cuda/device/norm_words.cuh"

// What the threads of a row tell each other: of each share, in as much shared memory as a launch
// says, and of each warp of shares. Sums about a mean take the places of those that made it, and
// sums in double those of others: small blocks find as much room as their threads do.
template <typename Acc>
struct centred_word_sums {
    float mean_of_warp[16];
    warp_sums<Acc> of_warp[16];
};
constexpr int kCentredWordBytes = (int)sizeof(two_sums<double>); // of a share

// n_shares are whole warps, 512 at most; a thread has share i of its own at as(i). sum_of(i), and
// about(i, mean), are its parts of those sums.
template <typename K, int kThreads, int kShares, typename Acc, typename Sum, typename About>
__device__ __forceinline__ row_scale centre_words(const norm_args &args,
                                                  centred_word_sums<Acc> &sums, const Sum &sum_of,
                                                  const About &about_of, bool &is_done)
{
    const int n_shares = args.n_shares, n_warps = n_shares / 32;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    Acc *const of_share = reinterpret_cast<Acc *>(staged_rows);
    two_sums<Acc> *const about_share = reinterpret_cast<two_sums<Acc> *>(staged_rows);
    const auto as = [&](int i) { return (int)threadIdx.x / kThreads + i * (n_shares / kShares); };
    const auto over_threads = [](auto x) {
#pragma unroll
        for (int distance = 1; distance < kThreads; distance *= 2)
            x += exchange(x, distance);
        return x;
    };
#pragma unroll
    for (int i = 0; i < kShares; i++) {
        const Acc sum = over_threads(sum_of(i));
        if (threadIdx.x % kThreads == 0)
            of_share[as(i)] = sum;
    }
    __syncthreads();
    const row_threads<true> group{n_shares, (int)threadIdx.x};
    warp_sums<Acc> known = {};
    if (warp < n_warps) {
        const int n = group.held_by_warp(args.hidden, K::kVec);
        known.n = (float)n;
        known.mean = (float)(sum_in_warp<32>(of_share[threadIdx.x]) * inverse_of<Acc>(n));
        if (lane == 0)
            sums.mean_of_warp[warp] = known.mean;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kShares; i++) {
        const two_sums<Acc> about = over_threads(about_of(i, sums.mean_of_warp[as(i) / 32]));
        if (threadIdx.x % kThreads == 0)
            about_share[as(i)] = about;
    }
    __syncthreads();
    if (warp < n_warps) {
        known.about = sum_in_warp<32>(about_share[threadIdx.x]);
        if (lane == 0)
            sums.of_warp[warp] = known;
    }
    __syncthreads();
    float mean;
    const two_sums<Acc> about = sums_of_warps<Acc>(
        n_warps, lanes_of_warps(n_warps), [&](int of) -> const auto & { return sums.of_warp[of]; },
        mean);
    return scale_about(args, mean, about, is_done);
}

template <typename K, int kUnit, int kShares, int kSlots>
__global__ void __maxnreg__((kUnit * kSlots * K::kVec / 4 > 8 && (K::kAdds || kSlots > 4) ? 64
                                                                                          : 56))
    centred_words_kernel(const __grid_constant__ struct norm_args args)
{
    using T = typename K::T;
    using words = row_words<K, kUnit, kShares, kSlots>;
    constexpr int n = words::n, kEach = words::kEach, kAtOnce = 4;
    __shared__ centred_word_sums<float> sums;
    __shared__ centred_word_sums<double> exact_sums;
    const int64_t row = blockIdx.x;
    const words mine(args);
    const row_source<K> source = source_of<K>(args, row);
    const int offset = mine.first * (int)sizeof(T);
    const char *x = compute_now(source.x + offset), *second = x;
    if constexpr (K::kAdds)
        second = compute_now(source.residual + offset);
    // heads are rows with weights of their own
    const int64_t of_head = (uint32_t)row % (uint32_t)args.heads * args.hidden * (int64_t)sizeof(T);
    const char *weights = static_cast<const char *>(args.weight);
    const char *biases = static_cast<const char *>(args.bias);
    weights = weights ? weights + of_head : nullptr;
    biases = biases ? biases + of_head : nullptr;
    let_next_start();
    wait_for_previous();
    uint32_t raw[kSlots][kEach], raw_second[K::kAdds ? kSlots : 1][kEach];
    mine.load(x, raw);
    float z[K::kAdds ? kSlots : 1][n];
    if constexpr (K::kAdds) {
        mine.load(second, raw_second);
#pragma unroll
        for (int s = 0; s < kSlots; s++) {
            float other[n];
            words::values(raw[s], z[s]);
            words::values(raw_second[s], other);
            take_elements<K>(args, z[s], other);
            mine.store(static_cast<T *>(args.residual_out) + row * args.residual_out_pitch +
                           mine.first,
                       s, z[s]);
        }
    }
    const auto get = [&](int s, float(&of)[n]) {
        if constexpr (K::kAdds) {
            memcpy(of, z[s], sizeof of);
        } else {
#pragma unroll
            for (uint32_t &word : raw[s])
                word = compute_now(word); // floats would be kept
            words::values(raw[s], of);
        }
    };
    const auto scale_by = [&](auto &all, bool &is_done) {
        using Acc = decltype(all.of_warp[0].about.first);
        const auto sum_of = [&](int i) {
            Acc part[kUnit] = {};
#pragma unroll
            for (int s = i; s < kSlots; s += kShares) {
                float of[n];
                get(s, of);
#pragma unroll
                for (int j = 0; j < n; j++)
                    part[j % kUnit] += (Acc)of[j];
            }
            return kUnit == 2 ? part[0] + part[kUnit - 1] : part[0];
        };
        const auto about_of = [&](int i, float mean) {
            two_sums<Acc> part[kUnit] = {};
#pragma unroll
            for (int s = i; s < kSlots; s += kShares) {
                float of[n];
                get(s, of);
#pragma unroll
                for (int j = 0; j < n; j++) {
                    auto &to = part[j % kUnit];
                    const Acc off = mine.has(s, j / kUnit) ? (Acc)of[j] - (Acc)mean : (Acc)0;
                    to.first += off;
                    to.second = fma(off, off, to.second);
                }
            }
            if constexpr (kUnit == 2)
                part[0] += part[1];
            return part[0];
        };
        return centre_words<K, words::kThreads, kShares>(args, all, sum_of, about_of, is_done);
    };
    bool is_done;
    row_scale scale = scale_by(sums, is_done);
    if (!is_done)
        scale = scale_by(exact_sums, is_done);
    T *const to = static_cast<T *>(args.y) + row_at<K>(args, row, args.y_pitch) + mine.first;
#pragma unroll
    for (int base = 0; base < kSlots; base += kAtOnce) {
        uint32_t raw_weight[kAtOnce][kEach], raw_bias[kAtOnce][kEach];
        row_words<K, kUnit, kShares, kAtOnce> there(args);
        there.left -= base * mine.step;
        const int further = offset + base * mine.step * (int)sizeof(T);
        if (weights)
            there.load(weights + further, raw_weight);
        if (biases)
            there.load(biases + further, raw_bias);
#pragma unroll
        for (int s = 0; s < kAtOnce; s++) {
            float gain[n], bias[n], y[n];
            if (!mine.has(base + s))
                break;
#pragma unroll
            for (int j = 0; j < n; j++) {
                gain[j] = 1.0f;
                bias[j] = 0.0f;
            }
            if (weights)
                words::values(raw_weight[s], gain);
            if (biases)
                words::values(raw_bias[s], bias);
#pragma unroll
            for (float &of : gain)
                of += args.weight_bias;
            get(base + s, y);
            finish_any<part_kind<K, n>>(args, gain, bias, scale, y);
            mine.store(to, base + s, y);
        }
    }
}
