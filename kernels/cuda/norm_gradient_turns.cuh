// norm_gradient_turns.cuh - gradients of norms of whole rows of 33 to 1,024 vectors which blocks
// take in turn; for norm_gradient.cuh.
//
// What such rows of 16 bits wait for is instructions: of 50 for an element half were those of
// addresses, of predicates, and of the sums' way through the block. So a thread has one address in
// shared memory, for a warp's vectors of a row lie beside each other, and pointers that go on by
// steps; a quarter of a warp takes over each of a row's four sums, which all go to the block behind
// one barrier, the next row's mean with them; and what was unpacked for the sums is still there
// when grad_x is made of it.
#pragma once

#include "cuda/norm_gradient_columns.cuh"

// ------------------------------------------------------------------------------------ ring

// Rows on their way to shared memory, as those of row_ring.
template <typename C>
struct turns_ring {
    static constexpr int kOfWarp = 32 * 16, kOfStage = 2 * C::kVectors * 16; // bytes, of a thread
    const norm_gradient_args &args;
    const char *x, *g; // what comes next
    int column;
    uint32_t first, end; // its places
    uint64_t policy;

    __device__ __forceinline__ turns_ring(const norm_gradient_args &norm,
                                          const gradient_place<C> &place, uint4 *memory)
        : args(norm), column(place.column(0))
    {
        const gradient_row<C> of(args, place.row(0));
        x = reinterpret_cast<const char *>(of.x + column);
        g = reinterpret_cast<const char *>(of.g + column);
        first = shared_address(memory) + threadIdx.x / 32 * 32 * kOfStage + threadIdx.x % 32 * 16;
        end = compute_now(first + args.n_stages * stage_bytes());
        first = compute_now(first);
        policy = policy_of(args.keeps);
    }
    __device__ __forceinline__ int stage_bytes() const
    {
        return (int)blockDim.x * kOfStage;
    }
    // All threads of a block of one row have all vectors but the last one.
    __device__ __forceinline__ bool has(int v) const
    {
        return (v < C::kVectors - 1 && C::kGroups == 1) ||
               column + v * (int)blockDim.x * C::kVec < (int)args.hidden;
    }
    // Bytes from a thread's first vector to another.
    __device__ __forceinline__ int to(int v) const
    {
        return v * (int)blockDim.x * 16;
    }
    __device__ __forceinline__ uint32_t behind(uint32_t at) const
    {
        at += stage_bytes();
        return at == end ? first : at;
    }
    // Of a block of several rows those that are not there are zeros.
    __device__ __forceinline__ void fetch(uint32_t at, bool is_row)
    {
        if (is_row || C::kGroups > 1) {
#pragma unroll
            for (int v = 0; v < C::kVectors; v++) {
                const bool is_there = has(v) && is_row;
                copy_16<true>(at + v * kOfWarp, x + to(v), is_there, policy);
                copy_16<true>(at + (C::kVectors + v) * kOfWarp, g + to(v), is_there, policy);
            }
            x += args.steps[0];
            g += args.steps[1];
        }
        end_stage();
    }
    __device__ __forceinline__ void load(uint32_t at, int which,
                                         float (&to)[C::kVectors][C::kVec]) const
    {
        uint4 raw[C::kVectors];
#pragma unroll
        for (int v = 0; v < C::kVectors; v++)
            raw[v] = load_shared_16(at + (which * C::kVectors + v) * kOfWarp);
#pragma unroll
        for (int v = 0; v < C::kVectors; v++)
            unpack<typename C::T>(raw[v], to[v]);
    }
};

// ------------------------------------------------------------------------------------ sums

// A thread's share of the sum of x, in the order of share_of_x.
template <typename C>
__device__ __forceinline__ float share_of_floats(const float (&x)[C::kVectors][C::kVec])
{
    float sum = 0;
#pragma unroll
    for (int v = 0; v < C::kVectors; v++) {
        float part = 0;
#pragma unroll
        for (int i = 0; i < C::kVec; i++)
            part += x[v][i];
        sum += part;
    }
    return sum;
}

// Its shares of the others, in the order of share_of_sums. Of x there are distances from the mean.
template <typename C>
__device__ __forceinline__ gradient_sums<C> share_of_floats(const float (&x)[C::kVectors][C::kVec],
                                                            const float (&g)[C::kVectors][C::kVec],
                                                            const float (&w)[C::kVectors][C::kVec])
{
    gradient_sums<C> sums = {};
#pragma unroll
    for (int v = 0; v < C::kVectors; v++) {
        gradient_sums<C> part = {};
#pragma unroll
        for (int i = 0; i < C::kVec; i++)
            add_product(part, x[v][i], rounded<C>(g[v][i] * w[v][i]));
        sums += part;
    }
    return sums;
}

// Lanes of the upper half of so many take over b.
__device__ __forceinline__ float sum_halves(float a, float b, int distance)
{
    const bool is_upper = (threadIdx.x & distance) != 0;
    return (is_upper ? b : a) + exchange(is_upper ? a : b, distance);
}

// The sums of a row on their way through the block, with that of the next row's x: [sum][warp] in
// place of [warp][sum], the last one four times. Each has the tree of sum_over_row.
template <typename C>
struct turns_exchange {
    static constexpr int kOfSum = 4 * C::kWarps; // bytes
    static constexpr int kOfRow = (C::kCentres ? 8 : 2) * kOfSum;
    static_assert(C::kWarps == 16, "two or four leaves for each of eight lanes");
    uint32_t at, from; // where a lane's sum goes to, and what it takes

    __device__ __forceinline__ explicit turns_exchange(const gradient_exchange<C> &shared)
    {
        const int lane = (int)threadIdx.x % 32;
        const int sum = C::kCentres ? lane / 8 + lane % 8 / 4 * 4 : lane / 16;
        at = shared_address(&shared) + sum * kOfSum + threadIdx.x / 32 * 4;
        from = shared_address(&shared) + (C::kCentres ? lane * 8 : lane % 8 * 16);
        at = compute_now(at);
        from = compute_now(from);
    }
    __device__ __forceinline__ void turn()
    {
        at ^= kOfRow;
        from ^= kOfRow;
    }
    __device__ __forceinline__ void store(float x) const
    {
        asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(x) : "memory");
    }
    __device__ __forceinline__ void send(const two_sums<float> &x, float) const
    {
        float mine = sum_halves(x.first, x.second, 16);
#pragma unroll
        for (int distance = 8; distance > 0; distance /= 2)
            mine += exchange(mine, distance);
        if (threadIdx.x % 16 == 0)
            store(mine);
    }
    __device__ __forceinline__ void send(const two_sums<two_sums<float>> &x, float next) const
    {
        float mine = sum_halves(sum_halves(x.first.first, x.second.first, 16),
                                sum_halves(x.first.second, x.second.second, 16), 8);
        next += exchange(next, 16);
        next += exchange(next, 8);
        mine = sum_halves(mine, next, 4);
        mine += exchange(mine, 2);
        mine += exchange(mine, 1);
        if (threadIdx.x % 4 == 0)
            store(mine);
    }
    // Behind the barrier. Of two leaves, in eight lanes.
    template <int kPlace>
    __device__ __forceinline__ float leaves() const
    {
        float x, y;
        asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                     : "=f"(x), "=f"(y)
                     : "r"(from + kPlace * kOfSum)
                     : "memory");
        x += y;
        x += exchange(x, 1);
        x += exchange(x, 2);
        return x + exchange(x, 4);
    }
    __device__ __forceinline__ float receive_x() const
    {
        return leaves<4>();
    }
    static __device__ __forceinline__ float of_lane(float x, int lane)
    {
        return __shfl_sync(0xFFFFFFFFu, x, lane);
    }
    __device__ __forceinline__ void receive(two_sums<float> &x) const
    {
        const uint4 some = load_shared_16(from);
        float sum = (__uint_as_float(some.x) + __uint_as_float(some.y)) +
                    (__uint_as_float(some.z) + __uint_as_float(some.w));
        sum += exchange(sum, 1);
        sum += exchange(sum, 2);
        x = {of_lane(sum, 0), of_lane(sum, 4)};
    }
    __device__ __forceinline__ void receive(two_sums<two_sums<float>> &x) const
    {
        const float sum = leaves<0>();
        x = {{of_lane(sum, 0), of_lane(sum, 8)}, {of_lane(sum, 16), of_lane(sum, 24)}};
    }
};

// ------------------------------------------------------------------------------------ kernel

// Waits until so many of the stages at most are on their way.
__device__ __forceinline__ void wait_until_left(int n)
{
    wait_for_stage(n + 1);
}

template <typename C>
__device__ __forceinline__ void subtract(const turns_ring<C> &ring, float mean,
                                         float (&x)[C::kVectors][C::kVec])
{
#pragma unroll
    for (int v = 0; C::kCentres && v < C::kVectors; v++) {
        const float middle = ring.has(v) ? mean : 0.0f; // zeros stay where there is no vector
#pragma unroll
        for (int i = 0; i < C::kVec; i++)
            x[v][i] -= middle;
    }
}

// What hardly any row needs: its sums in double, and the row once more from memory.
template <typename C>
__device__ __forceinline__ row_factors settle_row(const turns_ring<C> &ring, int64_t row,
                                                  gradient_exchange<C> &exchange,
                                                  const found_factors &found,
                                                  float (&x)[C::kVectors][C::kVec],
                                                  float (&g)[C::kVectors][C::kVec])
{
    using T = typename C::T;
    const norm_gradient_args &args = ring.args;
    const row_in_memory<C> again = {args, row, (int)threadIdx.x, (int)blockDim.x, nullptr};
    const row_factors of = settle<C>(again, exchange, found);
    const gradient_row<C> from(args, row);
#pragma unroll
    for (int v = 0; v < C::kVectors; v++) {
        const int column = (v * (int)blockDim.x + (int)threadIdx.x) * C::kVec;
        unpack<T>(load_raw<C>(from.x + column, ring.has(v)), x[v]);
        unpack<T>(load_raw<C>(from.g + column, ring.has(v)), g[v]);
    }
    subtract<C>(ring, of.mean, x);
    return of;
}

template <typename C, bool kHasResidual>
__device__ __forceinline__ void
write_floats(char *to, const turns_ring<C> &ring, const row_factors &of,
             float (&x)[C::kVectors][C::kVec], const float (&g)[C::kVectors][C::kVec],
             const float (&w)[C::kVectors][C::kVec], const uint4 (&residual)[C::kVectors],
             column_sums<C> &sums)
{
    using T = typename C::T;
    row_factors from_mean = of;
    from_mean.mean = 0.0f;
#pragma unroll
    for (int v = 0; v < C::kVectors; v++) {
        float made[C::kVec] = {};
        if constexpr (kHasResidual)
            unpack<T>(residual[v], made);
        descend<C>(from_mean, x[v], g[v], w[v], made);
        if (ring.has(v))
            store_floats<T>(reinterpret_cast<T *>(to + ring.to(v)), made);
        sums.add(v, g[v], x[v]); // also of columns that are not there
    }
}

template <typename C>
static __global__ void __launch_bounds__(C::kBlock, 1)
    turns_norm_gradient_kernel(const __grid_constant__ struct norm_gradient_args args)
{
    using T = typename C::T;
    constexpr int kAhead = C::kCentres ? 1 : 0; // rows whose mean is known
    extern __shared__ uint4 memory[];           // the ring, then sums
    __shared__ __align__(1024) gradient_exchange<C> exchange;
    let_next_start();
    const gradient_place<C> place;
    turns_ring<C> ring(args, place, memory);
    turns_exchange<C> block(exchange);
    float *all = args.partial + blockIdx.x * args.n_sums * args.sum_pitch;
    if (args.sums_in_shared)
        all = reinterpret_cast<float *>(memory + args.n_stages * ring.stage_bytes() / 16);
    column_sums<C> sums{args, place, all};
    float w[C::kVectors][C::kVec], mean = 0.0f;
    const int n_rows = (int)args.n_rows, step = (int)gridDim.x, ahead = args.n_stages * step;
    const int64_t column = place.column(0);
    char *to = reinterpret_cast<char *>(static_cast<T *>(args.grad_x) +
                                        blockIdx.x * args.grad_x_pitch + column);
    const char *before =
        reinterpret_cast<const char *>(static_cast<const T *>(args.grad_residual) +
                                       blockIdx.x * args.grad_residual_pitch + column);
    int row = (int)blockIdx.x;
    uint32_t at = ring.first;
    exchange.clear();
    wait_for_previous();
    for (int i = 0; i < args.n_stages; i++)
        ring.fetch(at + i * ring.stage_bytes(), row + i * step < n_rows);
    load_own_gains<C>(args, place, w);
    if constexpr (C::kCentres) {
        float x[C::kVectors][C::kVec];
        wait_until_left(args.n_stages - 1);
        ring.load(at, 0, x);
        block.send(gradient_sums<C>{}, share_of_floats<C>(x));
        __syncthreads();
        mean = __fmul_rn(args.inverse_hidden, block.receive_x());
        block.turn();
    }
    for (int turn = 0; row < n_rows; turn++) {
        const uint32_t next = ring.behind(at);
        float x[C::kVectors][C::kVec], g[C::kVectors][C::kVec], of_next = 0.0f;
        uint4 residual[C::kVectors] = {};
        if (args.grad_residual) {
#pragma unroll
            for (int v = 0; v < C::kVectors; v++)
                residual[v] = load_16_if(ring.has(v), before + ring.to(v));
            before += args.steps[2];
        }
        wait_until_left(args.n_stages - 1 - kAhead);
        if constexpr (C::kCentres) {
            ring.load(next, 0, x);
            of_next = share_of_floats<C>(x);
        }
        ring.load(at, 0, x);
        ring.load(at, 1, g);
        ring.fetch(at, row + ahead < n_rows);
        subtract<C>(ring, mean, x);
        gradient_sums<C> of_row = share_of_floats<C>(x, g, w);
        block.send(of_row, of_next);
        __syncthreads();
        block.receive(of_row);
        found_factors found = {};
        found.of = factors_of(args, mean, of_row, found.is_good);
        found.is_zero = dot_of(of_row) == 0.0f;
        row_factors of = found.of;
        if constexpr (C::kCentres)
            mean = __fmul_rn(args.inverse_hidden, block.receive_x());
        block.turn();
        if (!(found.is_good && is_tame(dot_of(of_row))))
            of = settle_row<C>(ring, row, exchange, found, x, g);
        if (args.grad_residual)
            write_floats<C, true>(to, ring, of, x, g, w, residual, sums);
        else
            write_floats<C, false>(to, ring, of, x, g, w, residual, sums);
        to += args.steps[3];
        at = next;
        row += step;
        const bool is_last = row >= n_rows;
        if (!args.n_sums)
            continue;
        if (!C::kHolds && is_last)
            sums.put_down(true, true);
        if (C::kHolds && (turn % kRowsInRegisters == kRowsInRegisters - 1 || is_last))
            sums.put_down(turn < kRowsInRegisters, is_last);
    }
}

// ------------------------------------------------------------------------------------ lanes

// sum_in_warp of several sums, of which each half or quarter of the lanes takes one over.
template <int kLanes>
__device__ __forceinline__ two_sums<float> sum_in_lanes(const two_sums<float> &x)
{
    float mine = sum_halves(x.first, x.second, kLanes / 2);
#pragma unroll
    for (int distance = kLanes / 4; distance > 0; distance /= 2)
        mine += exchange(mine, distance);
    const float other = exchange(mine, kLanes / 2);
    const bool is_upper = (threadIdx.x & (kLanes / 2)) != 0;
    return {is_upper ? other : mine, is_upper ? mine : other};
}
template <int kLanes>
__device__ __forceinline__ two_sums<two_sums<float>>
sum_in_lanes(const two_sums<two_sums<float>> &x)
{
    float mine = sum_halves(sum_halves(x.first.first, x.second.first, kLanes / 2),
                            sum_halves(x.first.second, x.second.second, kLanes / 2), kLanes / 4);
#pragma unroll
    for (int distance = kLanes / 8; distance > 0; distance /= 2)
        mine += exchange(mine, distance);
    auto quarter = [&](int i) { return __shfl_sync(0xFFFFFFFFu, mine, i * kLanes / 4, kLanes); };
    return {{quarter(0), quarter(1)}, {quarter(2), quarter(3)}};
}

// Rows of up to 32 vectors, of which a block has several at once.
template <typename C>
static __global__ void __launch_bounds__(C::kBlock, C::kMinBlocks)
    lanes_norm_gradient_kernel(const __grid_constant__ struct norm_gradient_args args)
{
    using T = typename C::T;
    extern __shared__ uint4 memory[]; // the ring, then sums
    __shared__ gradient_exchange<C> exchange;
    let_next_start();
    const gradient_place<C> place;
    turns_ring<C> ring(args, place, memory);
    float *of_block = args.partial + blockIdx.x * args.n_sums * args.sum_pitch;
    if (args.sums_in_shared)
        of_block = reinterpret_cast<float *>(memory + args.n_stages * ring.stage_bytes() / 16);
    column_sums<C> sums{args, place, of_block + place.group * args.n_sums * args.sum_pitch};
    float w[1][C::kVec];
    const int n_rows = (int)args.n_rows, step = (int)gridDim.x * C::kGroups,
              ahead = args.n_stages * step;
    int row = (int)place.row(0);
    char *to = reinterpret_cast<char *>(static_cast<T *>(args.grad_x) + row * args.grad_x_pitch +
                                        ring.column);
    const char *before = reinterpret_cast<const char *>(
        static_cast<const T *>(args.grad_residual) + row * args.grad_residual_pitch + ring.column);
    uint32_t at = ring.first;
    wait_for_previous();
    for (int i = 0; i < args.n_stages; i++)
        ring.fetch(at + i * ring.stage_bytes(), row + i * step < n_rows);
    load_own_gains<C>(args, place, w);
    for (int turn = 0; row - place.group < n_rows; turn++) {
        const bool is_there = row < n_rows && ring.has(0);
        float x[1][C::kVec], g[1][C::kVec], made[C::kVec], mean = 0.0f;
        uint4 residual = {};
        if (args.grad_residual)
            residual = load_16_if(is_there, before);
        before += args.steps[2];
        wait_for_stage(args.n_stages);
        ring.load(at, 0, x);
        ring.load(at, 1, g);
        ring.fetch(at, row + ahead < n_rows);
        if constexpr (C::kCentres) {
            mean = __fmul_rn(args.inverse_hidden, sum_in_warp<C::kThreads>(share_of_floats<C>(x)));
            subtract<C>(ring, mean, x);
        }
        const gradient_sums<C> of_row = sum_in_lanes<C::kThreads>(share_of_floats<C>(x, g, w));
        found_factors found = {};
        found.of = factors_of(args, mean, of_row, found.is_good);
        found.is_zero = dot_of(of_row) == 0.0f;
        row_factors of = found.of;
        const bool is_done = found.is_good && is_tame(dot_of(of_row));
        if (!__all_sync(0xFFFFFFFFu, is_done)) {
            const row_in_memory<C> again = {args, row, place.lane, place.threads, nullptr};
            const row_factors settled = settle<C>(again, exchange, found);
            if (!is_done) {
                const gradient_row<C> from(args, row);
                of = settled;
                unpack<T>(load_16_if(is_there, from.x + ring.column), x[0]);
                subtract<C>(ring, of.mean, x);
            }
        }
        row_factors from_mean = of;
        from_mean.mean = 0.0f;
        unpack<T>(residual, made);
        descend<C>(from_mean, x[0], g[0], w[0], made);
        if (is_there) {
            store_floats<T>(reinterpret_cast<T *>(to), made);
            sums.add(0, g[0], x[0]);
        }
        to += args.steps[3];
        at = ring.behind(at);
        row += step;
        const bool is_last = row - place.group >= n_rows;
        if (args.n_sums && (turn % kRowsInRegisters == kRowsInRegisters - 1 || is_last))
            sums.put_down(turn < kRowsInRegisters, is_last);
    }
    if (args.n_sums)
        add_groups<C>(args, of_block);
}

// ------------------------------------------------------------------------------------ launch

// The same as a kernel of its own that never has results.
template <typename C>
struct rows_in_turn : C {
    static constexpr bool kLeavesPartial = true;
};
