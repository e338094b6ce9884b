// norm_gradient_narrow.cuh - gradients of norms of rows of up to 32 vectors that 16 bytes do not
// divide, or that begin anywhere; for norm_gradient.cuh.
//
// A row has as many lanes as vectors, rounded up to a power of two, and a block has many at once,
// whose columns' sums it adds: what such a call waits for is instructions, and lanes without a
// vector cost as much as those which have one. A vector is shifted into place in registers, and the
// next row's is on its way meanwhile.
#pragma once

#include "cuda/norm_gradient_columns.cuh"

constexpr int64_t kMostNarrowVectors = 32;
constexpr int32_t kLeastLanes = 4; // whose blocks have 128 rows at once

// A vector on its way, of which so many bytes are the row's. Packets of its last one are read whole
// where the tensor goes on behind them: by elements each row would wait for its own end.
template <int kUnit>
struct narrow_vector {
    const char *from;
    int bytes;
    bool is_cut; // by the tensor's end
    uint4 first, second;

    __device__ __forceinline__ void start(const void *at, int n_bytes, const char *end)
    {
        from = static_cast<const char *>(at);
        bytes = n_bytes;
        const int off = (int)((uintptr_t)from & 15);
        const bool has_second = off + bytes > 16;
        is_cut = bytes > 0 && from - off + (has_second ? 32 : 16) > end;
        first = load_16_if(bytes > 0 && !is_cut, from - off);
        second = load_16_if(bytes > 0 && !is_cut && has_second, from - off + 16);
    }
    // Zeros behind the row.
    __device__ __forceinline__ uint4 finish() const
    {
        if (is_cut)
            return load_pieces(from, bytes);
        const uint4 raw = shift_packets<kUnit>(first, second, (int)((uintptr_t)from & 15));
        uint32_t word[4] = {raw.x, raw.y, raw.z, raw.w};
        if (bytes < 16)
            keep_units<kUnit>(word, bytes / kUnit);
        return make_uint4(word[0], word[1], word[2], word[3]);
    }
};

// A lane's vector, and that of its next row on its way.
template <typename C>
struct narrow_row : lane_row<C> {
    static constexpr int kSize = (int)sizeof(typename C::T);
    narrow_vector<kSize> next_x, next_g;

    __device__ __forceinline__ void start(int64_t row)
    {
        const gradient_row<C> of(this->args, row);
        const int bytes = counted<C>(this->args, row, this->column) * kSize;
        next_x.start(of.x + this->column, bytes, this->args.x_end);
        next_g.start(of.g + this->column, bytes, this->args.grad_y_end);
    }
    __device__ __forceinline__ void finish()
    {
        this->n = next_x.bytes / kSize;
        this->x = next_x.finish();
        this->g = next_g.finish();
    }
};

template <typename C>
static __global__ void __launch_bounds__(C::kBlock, C::kMinBlocks)
    narrow_norm_gradient_kernel(const __grid_constant__ struct norm_gradient_args args)
{
    using T = typename C::T;
    extern __shared__ float sums_of_groups[];
    __shared__ gradient_exchange<C> exchange;
    let_next_start();
    const gradient_place<C> place(args.n_lanes);
    const int n_groups = C::kBlock / args.n_lanes;
    const int64_t first = (int64_t)blockIdx.x * n_groups, step = (int64_t)gridDim.x * n_groups;
    float *all = sums_of_groups + place.group * args.n_sums * args.sum_pitch;
    column_sums<C> sums{args, place, all};
    const T *residual = static_cast<const T *>(args.grad_residual);
    const int column = place.column(0);
    float w[C::kVec];
    narrow_row<C> row{{args, column, w}};
    wait_for_previous();
    row.start(first + place.group);
    with_weight(args, args.weight, [&](auto *weight) {
        load_gains<C>(args, weight, column, counted<C>(args, 0, column), w);
    });
    int turn = 0;
    for (int64_t of_block = first; of_block < args.n_rows; of_block += step, turn++) {
        const int64_t at = of_block + place.group;
        uint4 before = {};
        float made[C::kVec];
        row.finish();
        row.start(at + step);
        if (residual)
            before = load_any<C>(residual + at * args.grad_residual_pitch + column, row.n,
                                 args.grad_residual_end);
        const row_factors of = find_factors<C>(row, row, exchange, 0);
        unpack<T>(before, made);
        row.for_each([&](int, int, int n, auto &x, auto &g, auto &w) {
            descend<C>(of, x, g, w, made);
            put_vector<T, false>(static_cast<T *>(args.grad_x) + at * args.grad_x_pitch + column,
                                 args.n_lanes, place.lane,
                                 at < args.n_rows ? args.hidden - column : 0, made);
            if (n > 0)
                sums.add(0, g, x);
        });
        const bool is_last = of_block + step >= args.n_rows;
        if (args.n_sums && (turn % kRowsInRegisters == kRowsInRegisters - 1 || is_last))
            sums.put_down(turn < kRowsInRegisters, is_last);
    }
    if (args.n_sums)
        add_groups<C>(args, sums_of_groups, n_groups);
}

// ------------------------------------------------------------------------------------ launch

// Of fewer rows others are faster, which have more threads for each.
template <typename T>
static bool has_narrow(const struct norm_gradient_args &args)
{
    return args.sum_pitch / kVecOf<T> <= kMostNarrowVectors &&
           args.n_rows > (sizeof(T) == 2 ? 56 : kMultiprocessors);
}

template <typename T, bool kCentres, bool kRounds>
static enum roped_status launch_narrow(struct norm_gradient_args args, struct roped_queue *queue,
                                       struct roped_error *err)
{
    using C = gradient_config<T, kCentres, kRounds, false, 32, 1>;
    args.n_lanes = kLeastLanes;
    while (args.n_lanes * C::kVec < args.sum_pitch)
        args.n_lanes *= 2;
    const int64_t n_groups = C::kBlock / args.n_lanes;
    const int64_t n_blocks =
        gradient_blocks(&args, blocks_of(args.n_rows, n_groups), C::kMinBlocks);
    const int64_t bytes = n_groups * args.n_sums * args.sum_pitch * (int64_t)sizeof(float);
    args.sums_in_shared = args.n_sums > 0;
    return start_blocks(narrow_norm_gradient_kernel<C>, args, C::kBlock, n_blocks, bytes, queue,
                        err);
}
