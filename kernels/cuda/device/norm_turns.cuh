// norm_turns.cuh - norms of wide rows, of one input or, into codes, of sums, which a block for each
// multiprocessor takes in turn.
//
// Registers hold one such row for a multiprocessor, or none, so memory would wait while it is
// summed and written. Here rows have places in shared memory, more than one row needs: a thread
// copies what it reads itself (cp.async), and where it has read a vector for the last time, one
// that is further on begins to come. Gains are loaded once, and stay there too, unless a row of a
// sum needs their places.
#pragma once

#include "cuda/device/norm_quarters.cuh"
#include "cuda/device/stage.cuh"

// A thread's part of the rows: vectors thread, thread + threads, ... of each, n of them, or one
// less where the row ends before. They are summed in the order of norm_staged.cuh. Places are bytes
// of shared memory; that of a vector is followed by that of the residual's.
template <typename K>
struct turning_rows {
    using T = typename K::T;
    static constexpr int kVec = K::kVec, kTensors = K::kAdds ? 2 : 1;
    const norm_args &args;
    const int threads, thread;
    const int n, step; // bytes from a vector to the next, in memory
    const int left;    // vectors from the first one to the row's end
    int64_t row;
    uint32_t first;     // place of the row's first vector
    const uint32_t end; // of all places; gains are behind them
    // of the vector that comes next
    const char *from;
    int to_fetch;      // of its row: as n
    int rows_to_fetch; // its row among them

    __device__ __forceinline__ explicit turning_rows(const norm_args &norm)
        : args(norm), threads(blockDim.x), thread(threadIdx.x),
          n((norm.n_vectors + threads - 1) / threads), step(16 * threads),
          left(norm.n_vectors - thread), row(blockIdx.x),
          first(compute_now(shared_address(staged_rows + thread))),
          end(compute_now(first + norm.n_places * kTensors * step)),
          from(static_cast<const char *>(norm.x) + row * row_bytes() + 16 * thread), to_fetch(n),
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
        place += vectors * kTensors * step;
        return place < end ? place : place - args.n_places * kTensors * step;
    }
    // The vector that comes next, or zeros, to a place that nobody reads any more. A stage ends
    // with a row.
    __device__ __forceinline__ void fetch(uint32_t place)
    {
        const bool is_there = rows_to_fetch > 0 && (n - to_fetch) * threads < left;
        copy_16<false>(place, from, is_there, 0);
        if constexpr (K::kAdds) // whose rows are as far apart
            copy_16<false>(place + step,
                           from + (static_cast<const char *>(args.residual) -
                                   static_cast<const char *>(args.x)),
                           is_there, 0);
        from += step;
        if (--to_fetch > 0)
            return;
        end_stage();
        from += gridDim.x * row_bytes() - n * step;
        rows_to_fetch--;
        to_fetch = n;
    }
    __device__ __forceinline__ void start()
    {
        const T *weights = static_cast<const T *>(args.weight);
        for (int v = 0; v < n && has_gains(); v++) {
            const int vector = v * threads + thread;
            if (args.weight)
                copy_16<false>(end + v * step, weights + vector * kVec, vector < args.n_vectors, 0);
            else
                staged_rows[args.n_places * kTensors * threads + vector] = no_weight<T>();
        }
        for (uint32_t place = first; place < end; place += kTensors * step)
            fetch(place);
    }
    // Do gains wait, too?
    __device__ __forceinline__ bool has_gains() const
    {
        return !K::kAdds || args.is_staged;
    }
    // What is normalised of the vector of a place.
    __device__ __forceinline__ void get(uint32_t place, float (&z)[kVec]) const
    {
        unpack<T>(load_shared_16(place), z);
        if constexpr (K::kAdds) {
            float other[kVec];
            unpack<T>(load_shared_16(place + step), other);
            take_elements<K>(args, z, other);
        }
    }
    __device__ __forceinline__ void get_gain(uint32_t place, int vector, float (&gain)[kVec]) const
    {
        uint4 raw = no_weight<T>();
        if (has_gains())
            raw = load_shared_16(place);
        else if (args.weight && vector < args.n_vectors)
            raw = load_16(static_cast<const T *>(args.weight) + vector * kVec);
        unpack<T>(raw, gain);
        add_bias(args, gain);
    }
    __device__ __forceinline__ void go_on()
    {
        row += gridDim.x;
        first = place_behind(first, n);
    }
    template <typename Acc>
    __device__ __forceinline__ Acc squares() const
    {
        square_sums<Acc> sums;
        uint32_t place = first;
#pragma unroll(4 / kTensors)
        for (int v = 0; v < n; v++) {
            float z[kVec];
            get(place, z);
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
        const int turn = rows_to_fetch & 1; // one has come since the row before
        const float sum = sum_in_group(squares<float>(), partial[turn], threads);
        const float mean = fmaf(sum, args.inverse_hidden, args.eps);
        if (is_good(sum, mean))
            return {inverse_root(mean)};
        return {exact_scale(args, sum_in_group(squares<double>(), exact_partial, threads))};
    }
    // f(v, results) of vectors v, v + 1, ... kBatch at a time. What is behind the row's end is 0,
    // or NaN in a row of NaN. kIsLast: nobody reads the row again, and sums are stored.
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
                get(place, y[i]);
                get_gain(of_gain, (v + i) * threads + thread, gain);
                if (kIsLast)
                    fetch(place);
                if (kIsLast && K::kAdds && (v + i) * threads < left)
                    store_vector<T, true>(static_cast<T *>(args.residual_out) +
                                              row * args.residual_out_pitch +
                                              ((v + i) * threads + thread) * kVec,
                                          kVec, y[i]);
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
