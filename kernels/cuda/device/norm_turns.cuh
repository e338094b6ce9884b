// norm_turns.cuh - norms of many wide rows of one input, which a block for each multiprocessor
// takes in turn.
//
// Registers hold one such row for a multiprocessor, or none, so memory would wait while it is
// summed and written. Here rows have places in shared memory, more than one row needs: a thread
// copies what it reads itself (cp.async), and where it has read a vector for the last time, one
// that is further on begins to come. Gains are loaded once, and stay there too.
#pragma once

#include "cuda/device/norm_staged.cuh"
#include "cuda/device/stage.cuh"

// A thread's part of the rows: vectors thread, thread + threads, ... of each, n of them, or one
// less where the row ends before. They are summed in the order of norm_staged.cuh. Places are bytes
// of shared memory.
template <typename K>
struct turning_rows {
    using T = typename K::T;
    static constexpr int kVec = K::kVec;
    const norm_args &args;
    const int threads, thread;
    const int n, step; // bytes from a vector to the next
    const int left;    // vectors from the first one to the row's end
    int64_t row;
    uint32_t first;     // place of the row's first vector
    const uint32_t end; // of all places; gains are behind them
    int turn;           // 0 or 1
    // of the vector that comes next
    const char *from;
    int from_left, to_fetch; // of its row: as left, or 0 where there is none; as n
    int rows_to_fetch;       // its row among them

    __device__ __forceinline__ explicit turning_rows(const norm_args &norm)
        : args(norm), threads(blockDim.x), thread(threadIdx.x),
          n((norm.n_vectors + threads - 1) / threads), step(16 * threads),
          left(norm.n_vectors - thread), row(blockIdx.x),
          first(compute_now(shared_address(staged_rows + thread))),
          end(compute_now(first + norm.n_places * step)), turn(0),
          from(static_cast<const char *>(norm.x) + row * row_bytes() + 16 * thread),
          from_left(left), to_fetch(n),
          rows_to_fetch((int)((norm.n_rows - 1 - row) / gridDim.x + 1))
    {
    }
    __device__ __forceinline__ int64_t row_bytes() const
    {
        return args.x_pitch * (int64_t)sizeof(T);
    }
    // The place of the vector behind one, and behind n.
    __device__ __forceinline__ uint32_t place_behind(uint32_t place, int vectors = 1) const
    {
        place += vectors * step;
        return place < end ? place : place - args.n_places * step;
    }
    // The vector that comes next, or zeros, to a place that nobody reads any more. A stage ends
    // with a row.
    __device__ __forceinline__ void fetch(uint32_t place)
    {
        copy_16<false>(place, from, from_left > 0, 0);
        from += step;
        from_left -= threads;
        if (--to_fetch > 0)
            return;
        end_stage();
        from += gridDim.x * row_bytes() - n * step;
        from_left = --rows_to_fetch > 0 ? left : 0;
        to_fetch = n;
    }
    __device__ __forceinline__ void start()
    {
        const T *weights = static_cast<const T *>(args.weight);
        for (int v = 0; v < n; v++) {
            const int vector = v * threads + thread;
            if (args.weight)
                copy_16<false>(end + v * step, weights + vector * kVec, vector < args.n_vectors, 0);
            else
                staged_rows[args.n_places * threads + vector] = no_weight<T>();
        }
        for (uint32_t place = first; place < end; place += step)
            fetch(place);
    }
    __device__ __forceinline__ void go_on()
    {
        row += gridDim.x;
        first = place_behind(first, n);
        turn ^= 1;
    }
    template <typename Acc>
    __device__ __forceinline__ Acc squares() const
    {
        square_sums<Acc> sums;
        uint32_t place = first;
#pragma unroll 4
        for (int v = 0; v < n; v++) {
            float z[kVec];
            unpack<T>(load_shared_16(place), z);
            sums.add(z);
            place = place_behind(place);
        }
        return sums.total();
    }
    // Once the row is there.
    __device__ __forceinline__ row_scale find_scale() const
    {
        __shared__ float partial[2][32];
        __shared__ double exact_partial[32];
        wait_for_stage(1);
        const float sum = sum_in_group(squares<float>(), partial[turn], threads);
        const float mean = fmaf(sum, args.inverse_hidden, args.eps);
        if (is_good(sum, mean))
            return {inverse_root(mean)};
        return {exact_scale(args, sum_in_group(squares<double>(), exact_partial, threads))};
    }
    // f(v, results) of vectors v, v + 1, ... kBatch at a time. What is behind the row's end is 0,
    // or NaN in a row of NaN. kIsLast: nobody reads the row again.
    template <bool kIsLast, int kBatch, typename F>
    __device__ __forceinline__ void for_each(const row_scale &scale, const F &f)
    {
        constexpr bool kMayRound = sizeof(T) == 2;
        uint32_t place = first, of_gain = end;
#pragma unroll 1
        for (int v = 0; v < n; v += kBatch) {
            float y[kBatch][kVec] = {};
#pragma unroll
            for (int i = 0; i < kBatch; i++) {
                float gain[kVec];
                if (kBatch > 1 && v + i >= n)
                    break;
                unpack<T>(load_shared_16(place), y[i]);
                unpack<T>(load_shared_16(of_gain), gain);
                add_bias(args, gain);
                if (kIsLast)
                    fetch(place);
                place = place_behind(place);
                of_gain += step;
                if (kMayRound && args.rounds_product)
                    finish_vector<K, kMayRound>(args, gain, scale, y[i]);
                else
                    finish_vector<K, false>(args, gain, scale, y[i]);
            }
            f(v, y);
        }
    }
};

template <typename K>
__global__ void __launch_bounds__(1024)
    norm_turns_kernel(const __grid_constant__ struct norm_args args)
{
    using T = typename K::T;
    turning_rows<K> rows(args);
    let_next_start();
    wait_for_previous();
    rows.start();
    for (; rows.row < args.n_rows; rows.go_on()) {
        const row_scale scale = rows.find_scale();
        T *to = static_cast<T *>(args.y) + rows.row * args.y_pitch + rows.thread * K::kVec;
        rows.template for_each<true, 1>(scale, [&](int v, auto &y) {
            if (v * rows.threads < rows.left)
                store_vector<T, true>(to, K::kVec, y[0]);
            to += rows.threads * K::kVec;
        });
    }
}
