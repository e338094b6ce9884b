// norm_centred_turns.cuh - centred norms of many narrow rows of one input, of which a warp takes
// several in turn: of up to 128 vectors of 16 bytes, at addresses that 16 bytes divide.
//
// What such a row costs beside its elements is most of it where a warp begins and ends with it: its
// place, the parameters, weights, and memory, which it first waits for and then leaves alone. Here
// a warp, or a part of one, finds all but the row's address once, and asks for the next row as soon
// as the present one has left the registers that it came to. Weights and biases wait in shared
// memory, for registers have no room for them.
#pragma once

#include "cuda/device/norm_centred.cuh"
#include "cuda/device/stage.cuh"

// So many vectors of a thread, which are those of two shares where a warp has more than 96.
template <typename K, int kRowVectors>
struct turning_config
    : centred_config<K, kRowVectors, kRowVectors <= 3, true, true, kRowVectors <= 3 ? 1 : 2> {
    static constexpr bool kStartsWeights = true;
    static constexpr int kRegisters = kRowVectors == 2 ? 64 : kRowVectors == 3 ? 72 : 96;
};

// blockDim.x threads a row, blockDim.y rows of a block at once.
template <typename K, typename C>
__global__ void __maxnreg__(C::kRegisters)
    centred_turns_kernel(const __grid_constant__ struct norm_args args)
{
    using T = typename K::T;
    constexpr int kVectors = C::kVectors, kShares = C::kShares, kSize = sizeof(T);
    __shared__ uint4 gains_of[kVectors][2][32]; // weights and biases, of a row's threads
    const row_threads<C::kIsBlock, kShares> group{kShares == 1 ? (int)blockDim.x : args.n_shares,
                                                  (int)threadIdx.x};
    const int in_warp = threadIdx.y % (32 / blockDim.x);
    const int64_t at_once = blockDim.y, first_row = at_once * blockIdx.x * max(args.n_turns, 1);
    const int64_t step = args.n_turns ? at_once : at_once * gridDim.x;
    const int64_t end =
        args.n_turns ? min(args.n_rows, first_row + at_once * args.n_turns) : args.n_rows;
    const int first = group.thread * K::kVec, left = (int)args.hidden - first;
    const int n = group.template held_of<kVectors / kShares>((int)args.hidden, K::kVec);
    const uint64_t policy = policy_of(args.keeps);
    centred_place<kShares> place;
    place.row = first_row + threadIdx.y;
    place.step = group.threads * K::kVec;
    const char *from =
        static_cast<const char *>(args.x) + (place.row * args.x_pitch + first) * (int64_t)kSize;
    T *to = static_cast<T *>(args.y) + place.row * args.y_pitch + first;
    centred_gains<K, C> gains(args, args.weight, 1.0f), biases(args, args.bias, 0.0f);
    raw_row<K, kVectors> raw;
    const auto find_left = [&](bool is_there) {
        place.left = is_there ? left : 0;
        place.left_next = place.left - (int)blockDim.x * K::kVec;
    };
    const auto load = [&] {
        find_left(place.row < end);
#pragma unroll
        for (int v = 0; v < kVectors; v++) {
            clear<K>(raw, v);
            if (place.left_at(v) > 0)
                raw.x[v] = load_16_by<true>(policy, from + place.at(v, K::kVec) * kSize);
        }
    };
    find_left(true);
    finish_before_wait(from, to, n, gains.weights, biases.weights);
    wait_for_previous();
    let_next_start();
#pragma unroll
    for (int v = 0; v < kVectors && threadIdx.y == 0; v++) {
        gains.start(v, first + place.at(v, K::kVec), place, policy);
        biases.start(v, first + place.at(v, K::kVec), place, policy);
        gains_of[v][0][threadIdx.x] = gains.started[v];
        gains_of[v][1][threadIdx.x] = biases.started[v];
    }
    const uint32_t at_gains = shared_address(&gains_of[0][0][threadIdx.x]);
    load();
    __syncthreads();
    while (place.row - in_warp < end) {
        const centred_place<kShares> here = place;
        row_values<K, C> values;
        bool is_done;
        values.take(args, raw);
        place.row += step;
        from += step * args.x_pitch * kSize;
        load();
        const held_row<K, C> held{values, here};
        const row_scale scale = centre<float>(args, held, group, n, is_done);
        if (!__all_sync(0xFFFFFFFFu, is_done)) {
            call_centre_rest<K>(args, here.row, end, group, (int)step);
            return;
        }
#pragma unroll
        for (int v = 0; v < kVectors; v++) {
            const uint32_t at = at_gains + v * (int)sizeof gains_of[0];
            float y[K::kVec], gain[K::kVec], bias[K::kVec];
            values.template get<true>(v, y);
            unpack<T>(load_shared_16(at), gain);
            unpack<T>(load_shared_16(at + (int)sizeof gains_of[0][0]), bias);
            add_bias(args, gain);
            finish_any<K>(args, gain, bias, scale, y);
            put_vector<T, true>(to + here.at(v, K::kVec), group.threads, group.thread,
                                here.left_at(v), y);
        }
        to += step * args.y_pitch;
    }
}
