// norm_gradient_elements.cuh - gradients of norms of a few rows that 16 bytes do not divide, or
// that begin anywhere, by single elements; for norm_gradient.cuh.
//
// Such a call waits for what one thread executes, and most of that would be shifting vectors into
// their places. Here four threads have what one has of vectors, elements that lie as far apart as
// the threads, all of whose loads begin at once. They leave the products that a row's sums are made
// of in shared memory, where one thread of four adds those of whole vectors, in the order in which
// other kernels do. Several blocks take a row, a cluster.
#pragma once

#include "cuda/norm_gradient_only.cuh"

constexpr int kElementTurns = 4;            // vectors of a share: rows of up to 4,096
constexpr int kWideTurns = 8;               // of float32: up to 8,192
constexpr int kMostElementShares = 128;     // of a block
constexpr int64_t kFewElementRows = 24;     // whose blocks each have a multiprocessor
constexpr int64_t kMostElementRows = 48;    // where no other kernel has a row in registers
constexpr int64_t kNarrowElementRows = 100; // of up to 512 vectors

// ------------------------------------------------------------------------------------ elements

// One element as a vector of its own.
template <typename C>
struct element_config : C {
    static constexpr int kVec = 1;
};

// Where the elements of a thread are: kEach of each turn, in which a block's shares have a vector
// each, which lie side by side.
template <typename C>
struct element_place {
    static constexpr int kEach = C::kVec / C::kOfVector;
    int first, hidden;       // column of the thread's first element; columns
    int turn_width, n_turns; // columns of all shares' vectors

    __device__ __forceinline__ explicit element_place(const norm_gradient_args &args)
    {
        const int of_block = (int)blockDim.x * kEach;
        first = compute_now((int)blockIdx.y * of_block + (int)threadIdx.x);
        hidden = (int)args.hidden;
        turn_width = args.n_shares * C::kVec;
        n_turns = args.n_turns;
    }
    // f(turn, i, offset) of all elements that there are: offset columns behind the first.
    template <typename F>
    __device__ __forceinline__ void for_each(const F &f) const
    {
#pragma unroll
        for (int turn = 0; turn < C::kVectors; turn++) {
            if (turn > 0 && turn >= n_turns)
                break;
            const int width = min(hidden - turn * turn_width, turn_width);
#pragma unroll
            for (int i = 0; i < kEach; i++)
                if (first < width - i * (int)blockDim.x)
                    f(turn, i, turn * turn_width + i * (int)blockDim.x);
        }
    }
};

// A thread's elements.
template <typename C, typename X>
struct elements_of {
    X at[C::kVectors][element_place<C>::kEach] = {};

    // Of a row, from the thread's first element on.
    __device__ __forceinline__ void load(const element_place<C> &place, const X *from)
    {
        place.for_each([&](int turn, int i, int offset) { at[turn][i] = load_one(from + offset); });
    }
};

// What a block's shares add up: x, and grad_y times its gain. Vectors of a turn lie side by side,
// so that neither those who write nor those who read meet in a bank.
template <typename C>
struct element_products {
    static constexpr int kVec = C::kVec, kApart = 16 / kVec;
    float2 product[C::kVectors * kVec * (kMostElementShares + kApart)];

    // Of element i of a vector of the block's share in a turn.
    __device__ __forceinline__ float2 &of(int turn, int i, int share)
    {
        const int n_shares = (int)blockDim.x / C::kOfVector;
        return product[(turn * kVec + i) * (n_shares + kApart) + share];
    }
};

// The vectors of a thread's share, where it has one. The gains are in the products.
template <typename C>
struct element_shares {
    const norm_gradient_args &args;
    element_products<C> &products;
    int n_turns;

    template <typename F>
    __device__ __forceinline__ void for_each(const F &f) const
    {
        const int of_block = (int)blockDim.x / C::kOfVector, share = (int)threadIdx.x;
        const int of_row = (int)blockIdx.y * of_block + share;
        if (share >= of_block || of_row >= args.n_shares) // the same in a warp
            return;
        int64_t column = (int64_t)of_row * C::kVec;
#pragma unroll 1
        for (int turn = 0; turn < n_turns; turn++, column += args.n_shares * C::kVec) {
            float x[C::kVec], g[C::kVec], one[C::kVec];
#pragma unroll
            for (int i = 0; i < C::kVec; i++) {
                const float2 of = products.of(turn, i, share);
                x[i] = of.x, g[i] = of.y, one[i] = 1.0f;
            }
            f(0, column, counted<C>(args, 0, column), x, g, one);
        }
    }
};

// ------------------------------------------------------------------------------------ kernel

// function(to), of the columns' sums' type.
template <typename F>
__device__ __forceinline__ void with_sums(const norm_gradient_args &args, void *to,
                                          const F &function)
{
    if (args.sum_dtype == ROPED_F16)
        function(static_cast<__half *>(to));
    else if (args.sum_dtype == ROPED_BF16)
        function(static_cast<__nv_bfloat16 *>(to));
    else
        function(static_cast<float *>(to));
}

// The columns' sums of an only row.
template <typename C>
__device__ __forceinline__ void store_elements(const norm_gradient_args &args, int sum,
                                               const element_place<C> &place,
                                               const elements_of<C, float> &x)
{
    if (args.sum_place[sum] < 0)
        return;
    with_sums(args, args.sum_to[args.sum_place[sum]], [&](auto *to) {
        using W = std::remove_pointer_t<decltype(to)>;
        to += place.first;
        place.for_each([&](int turn, int i, int offset) {
            to[offset] = element<W>::from_float(x.at[turn][i]);
        });
    });
}

// A row for each cluster of blocks.
template <typename C>
static __global__ void __launch_bounds__(kMostElementShares *C::kOfVector, 1)
    elements_norm_gradient_kernel(const __grid_constant__ struct norm_gradient_args args)
{
    using T = typename C::T;
    __shared__ gradient_exchange<C> exchange;
    __shared__ element_products<C> products;
    let_next_start();
    if (gridDim.y > 1)
        exchange.begin();
    const element_place<C> place(args);
    const int64_t row = row_of_block(args);
    const gradient_row<C> of_row(args, row);
    const T *from_x = compute_now(of_row.x + place.first);
    const T *from_g = compute_now(of_row.g + place.first);
    const T *residual = static_cast<const T *>(args.grad_residual);
    elements_of<C, T> x, g, before;
    elements_of<C, float> w;
    wait_for_previous();
    x.load(place, from_x);
    g.load(place, from_g);
    if (residual)
        before.load(place, residual + row * args.grad_residual_pitch + place.first);
    with_weight(args, args.weight, [&](auto *weight) {
        using W = std::remove_cv_t<std::remove_pointer_t<decltype(weight)>>;
        elements_of<C, W> gain;
        if (weight)
            gain.load(place, weight + place.first);
        place.for_each([&](int turn, int i, int) {
            w.at[turn][i] =
                weight ? args.weight_bias + element<W>::to_float(gain.at[turn][i]) : 1.0f;
        });
    });
    const int of_vector = (int)threadIdx.x % C::kVec, share = (int)threadIdx.x / C::kVec;
#pragma unroll
    for (int turn = 0; turn < C::kVectors; turn++) {
        if (turn > 0 && turn >= place.n_turns)
            break;
#pragma unroll
        for (int i = 0; i < place.kEach; i++)
            products.of(turn, of_vector, share + i * (int)blockDim.x / C::kVec) =
                make_float2(element<T>::to_float(x.at[turn][i]),
                            rounded<C>(element<T>::to_float(g.at[turn][i]) * w.at[turn][i]));
    }
    __syncthreads();
    const element_shares<C> shares{args, products, place.n_turns};
    const row_in_memory<C> again{args, row, (int)threadIdx.x, (int)blockDim.x, nullptr};
    const row_factors of = find_factors<C>(shares, again, exchange, 0);
    store_scale(args, row, of);
    T *to = static_cast<T *>(args.grad_x) + row * args.grad_x_pitch + place.first;
    elements_of<C, float> product, gradient;
    place.for_each([&](int turn, int i, int offset) {
        float of_x[1] = {element<T>::to_float(x.at[turn][i])};
        float made[1] = {element<T>::to_float(before.at[turn][i])};
        const float of_g[1] = {element<T>::to_float(g.at[turn][i])}, of_w[1] = {w.at[turn][i]};
        descend<element_config<C>>(of, of_x, of_g, of_w, made);
        to[offset] = element<T>::from_float(made[0]);
        product.at[turn][i] = of_x[0] * of_g[0];
        gradient.at[turn][i] = of_g[0];
    });
    if (args.scales)
        return;
    store_elements(args, 0, place, product);
    if constexpr (C::kCentres)
        store_elements(args, 1, place, gradient);
}

// ------------------------------------------------------------------------------------ launch

// Is each row's sum that of a block or a cluster, and are there so few? More narrow rows than that
// are the work of blocks that take several, and add their columns.
template <typename T>
static bool has_elements(const struct norm_gradient_args &args, int64_t vectors, int64_t most_rows,
                         const struct roped_queue *queue)
{
    return queue->can_overlap && vectors <= 1024 * (sizeof(T) == 4 ? kWideTurns : kElementTurns) &&
           args.n_rows <= (vectors > 512   ? most_rows
                           : vectors > 128 ? kNarrowElementRows
                                           : kMultiprocessors);
}

// Cuts a row of so many shares into as many blocks as leave two warps of shares to each, eight at
// most.
template <typename C>
static enum roped_status start_elements(struct norm_gradient_args args, int64_t shares,
                                        struct roped_queue *queue, struct roped_error *err)
{
    int64_t parts = 1;
    while (parts < 8 && shares / (2 * parts) >= 64)
        parts *= 2;
    const int64_t warps = shares / 32, of_part = blocks_of(warps, parts);
    args.n_shares = (int32_t)shares;
    args.n_turns = (int32_t)blocks_of(args.hidden, shares * C::kVec);
    args.n_parts = (int32_t)blocks_of(warps, of_part);
    return start_apart<C>(elements_norm_gradient_kernel<C>, args, 32 * of_part * C::kOfVector, 0,
                          queue, err);
}

template <typename T, bool kCentres, bool kRounds>
static enum roped_status launch_elements(const struct norm_gradient_args &args, int64_t shares,
                                         struct roped_queue *queue, struct roped_error *err)
{
    const int64_t vectors = args.sum_pitch / kVecOf<T>;
    if constexpr (sizeof(T) == 4)
        if (vectors > 1024 * kElementTurns)
            return start_elements<
                gradient_config<T, kCentres, kRounds, false, 1024, kWideTurns, true, true, true>>(
                args, shares, queue, err);
    return start_elements<
        gradient_config<T, kCentres, kRounds, false, 1024, kElementTurns, true, true, true>>(
        args, shares, queue, err);
}
