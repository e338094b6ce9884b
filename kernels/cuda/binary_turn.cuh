// binary_turn.cuh - both gradients of a binary function in one pass, where every row of one operand
// has one element of the other, and a row is one turn of its threads: each asks for all that it has
// of the row at once, and has nothing to walk.
//
// A row has as many threads as it has packets of 16 bytes, or a half or a quarter of them: a power
// of two up to 16, which share a warp with other rows, or any number of warps. Packets lie at
// multiples of 16 bytes wherever rows begin, as in binary_sweep.cuh, so at the ends of an odd row a
// thread uses a part of one. Odd rows of small calls are single elements instead of packets. A
// thread adds what it has, a warp its lanes, and the first warp of a row what the others have: the
// order follows from the shape alone.
#pragma once

#include "cuda/binary_elements.cuh"
#include "cuda/binary_sweep_launch.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/places.cuh"

struct turn_args {
    const void *g, *x, *y; // x is the full operand
    void *grad_x, *grad_y;
    int64_t n, n_rows; // elements of g, and its rows
    uint32_t width;
    uint32_t lanes; // threads of a row
    uint32_t rows;  // of a block
    divisor_of_index by_lanes;
    int32_t has_values;
    struct binary_ones one;
};

constexpr int kTurnThreads = 768; // of a block, at most

// What a kernel's registers are bounded by: 80 leave room for that many threads, and 64, in which
// one packet and products find room, for more.
template <int kKind, int kPackets>
constexpr int kTurnBound = kPackets == 1 || kKind == kBinaryMul ? 1024 : kTurnThreads;

template <typename T>
constexpr int kMostTurnElements = sizeof(T) == 4 ? 4 : 2; // of a thread

// What a thread has of a row: vectors of kVec elements, a step apart. kIsWhole: they divide rows.
template <typename T, int kVec, bool kIsWhole>
struct turn_place {
    int64_t row;
    int column;   // its first element, before the row where rows begin anywhere in a packet
    int step;     // elements to the next vector
    int left;     // of the row from the first element on, or 0
    int64_t rest; // of the tensor
    const T *g, *x, *y;
    T *grad_x, *grad_y;

    __device__ __forceinline__ explicit turn_place(const turn_args &args)
    {
        const uint32_t row_of_block = quotient(threadIdx.x, args.by_lanes);
        const uint32_t lane = threadIdx.x - row_of_block * args.lanes;
        row = (int64_t)blockIdx.x * args.rows + row_of_block;
        const int64_t first = row * args.width;
        column = (int)lane * kVec - (kIsWhole ? 0 : (int)first & (kVec - 1));
        step = (int)args.lanes * kVec;
        left = row < args.n_rows ? (int)args.width - column : 0;
        rest = args.n - first - column;
        g = static_cast<const T *>(args.g) + first + column;
        x = static_cast<const T *>(args.x) + first + column;
        y = static_cast<const T *>(args.y) + row;
        grad_x = static_cast<T *>(args.grad_x) + first + column;
        grad_y = static_cast<T *>(args.grad_y) + row;
    }

    __device__ __forceinline__ void wait() const
    {
        finish_before_wait(g, x, y, left);
        wait_for_previous();
    }

    // Adds what the threads of a row have, and stores it.
    __device__ __forceinline__ void finish(const turn_args &args, float part) const
    {
        __shared__ float shared[kTurnThreads / 32];
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2)
            if (distance < (int)args.lanes)
                part += __shfl_xor_sync(0xFFFFFFFFu, part, distance);
        if (args.lanes > 32) {
            const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
            if (lane == 0)
                shared[warp] = part;
            __syncthreads();
            part = lane < args.lanes / 32 && warp + lane < kTurnThreads / 32 ? shared[warp + lane]
                                                                             : 0.0f;
            part = sum_in_warp<32>(part);
        }
        if (column <= 0 && row < args.n_rows) // the first one
            *grad_y = element<T>::from_float(part);
    }
};

// kPackets: of a thread. kIsWhole: 16 bytes divide rows.
template <typename T, int kKind, int kPackets, bool kIsWhole>
__global__ void __launch_bounds__(kTurnBound<kKind, kPackets>)
    turn_kernel(const __grid_constant__ struct turn_args args)
{
    constexpr int kVec = kVecOf<T>;
    let_next_start();
    const turn_place<T, kVec, kIsWhole> at(args);
    at.wait();
    uint4 raw_g[kPackets] = {}, raw_x[kPackets] = {};
    T of_row = element<T>::from_float(1.0f);
#pragma unroll
    for (int i = 0; i < kPackets; i++) {
        const int place = i * at.step;
        if (place >= at.left || (!kIsWhole && place + kVec > at.rest))
            continue;
        raw_g[i] = load_16(at.g + place);
        raw_x[i] = load_16(at.x + place);
    }
    if (at.left > 0)
        of_row = *at.y;
    if (!kIsWhole) {
#pragma unroll
        for (int i = 0; i < kPackets; i++) { // the tensor's last packet
            const int place = i * at.step, bytes = (int)(at.rest - place) * (int)sizeof(T);
            if (place >= at.left || place + kVec <= at.rest)
                continue;
            raw_g[i] = load_pieces(reinterpret_cast<const char *>(at.g + place), bytes);
            raw_x[i] = load_pieces(reinterpret_cast<const char *>(at.x + place), bytes);
        }
    }
    kept_elements<T, kKind, 1> kept;
    kept.y[0] = args.has_values ? element<T>::to_float(of_row) : args.one.y;
    kept.begin(kKind);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kPackets; i++) {
        float x[kVec], of_x[kVec], of_y[kVec];
        const int place = i * at.step;
        if (place >= at.left)
            continue;
        unpack<T>(raw_x[i], x);
#pragma unroll
        for (int j = 0; j < kVec; j++)
            x[j] = args.has_values ? x[j] : args.one.x;
        packet_terms<T, kKind>(kKind, raw_g[i], raw_x[i], false, x, kept, of_x, of_y);
        const int low = i == 0 ? max(-at.column, 0) : 0, high = min(at.left - place, kVec);
        if (kIsWhole || (low == 0 && high == kVec)) {
            store_16(at.grad_x + place, pack<T>(of_x));
        } else {
#pragma unroll
            for (int j = 0; j < kVec; j++)
                if (low <= j && j < high)
                    at.grad_x[place + j] = element<T>::from_float(of_x[j]);
            keep_part(low, high, of_y);
        }
        sum += add_packet(of_y);
    }
    at.finish(args, sum);
}

// kElements: of a thread.
template <typename T, int kKind, int kElements>
__global__ void __launch_bounds__(kTurnThreads)
    turn_elements_kernel(const __grid_constant__ struct turn_args args)
{
    let_next_start();
    const turn_place<T, 1, true> at(args);
    at.wait();
    T g[kElements] = {}, x[kElements] = {}, of_row = element<T>::from_float(1.0f);
#pragma unroll
    for (int i = 0; i < kElements; i++) {
        if (i * at.step >= at.left)
            continue;
        g[i] = at.g[i * at.step];
        x[i] = at.x[i * at.step];
    }
    if (at.left > 0)
        of_row = *at.y;
    kept_elements<T, kKind, 1> kept;
    kept.y[0] = args.has_values ? element<T>::to_float(of_row) : args.one.y;
    kept.begin(kKind);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kElements; i++) {
        float of_x, of_y;
        if (i * at.step >= at.left)
            continue;
        kept_terms<T, kKind, 1>(kKind, element<T>::to_float(g[i]),
                                args.has_values ? element<T>::to_float(x[i]) : args.one.x, kept, 0,
                                of_x, of_y);
        at.grad_x[i * at.step] = element<T>::from_float(of_x);
        sum += of_y;
    }
    at.finish(args, sum);
}

// ------------------------------------------------------------------------------------ host

// How rows take one turn; without threads they do not.
struct turn_layout {
    int64_t n_rows, width;
    bool is_of_elements, is_whole;
    int vectors;        // of a thread: packets or elements
    int lanes, threads; // of a row and of a block
};

// The threads of a row where each has so many of its vectors: a power of two up to 16, or warps.
static inline int64_t lanes_of_turn(int64_t vectors, int of_thread)
{
    const int64_t lanes = blocks_of(vectors, of_thread);
    return lanes > 16 ? blocks_of(lanes, 32) * 32 : power_of_two(lanes, 16);
}

// Registers of a thread with so many packets, as far as they decide how many rows find room.
template <typename T>
static inline int registers_of_turn(int kind, int packets)
{
    const bool divides = kind != kBinaryMul, is_long = divides && std::is_same_v<T, __nv_bfloat16>;
    return packets == 1   ? (is_long ? 56 : 32)
           : packets == 2 ? (is_long ? 72 : 48)
                          : (divides ? 80 : 64);
}

// Packets of a thread: the fewest with which all rows find room at once. Of whole rows of products,
// those with which a row is a warp's, which meets no barrier. Many rows have two, or four where a
// thread divides them or they would be more than half of a block. Of odd rows only long ones that
// are divided have four, and bfloat16 sooner, of which four take hardly more registers than two.
template <typename T>
static int packets_of_turn(int64_t n_rows, int64_t packets, int kind, bool is_whole)
{
    constexpr int kRegisters = 64 << 10; // of a multiprocessor
    const bool prefers_warps = is_whole && kind == kBinaryMul && packets <= 4 * 32;
    for (int n = 1; n == 1 || (n <= 4 && packets > 16); n *= 2) {
        const int64_t lanes = lanes_of_turn(packets, n);
        const int64_t rows = kRegisters / registers_of_turn<T>(kind, n) / lanes;
        if (lanes <= (prefers_warps ? 32 : kTurnThreads) && n_rows <= kMultiprocessors * rows)
            return n;
    }
    if (packets <= 4)
        return 1;
    const int64_t most_of_two = kind == kBinaryMul                 ? 1024
                                : is_whole                         ? 16
                                : std::is_same_v<T, __nv_bfloat16> ? 256
                                                                   : 512;
    return packets > most_of_two ? 4 : 2;
}

// Is the gradient of one side an element for each row, and has a block room for a row? Odd rows of
// small calls are elements.
template <typename T>
static struct turn_layout lay_out_turn(const struct binary_plan *plan, int32_t sum_side,
                                       const struct sum_args &sum)
{
    constexpr int kVec = kVecOf<T>;
    struct turn_layout turn = {};
    if (plan->rank == 0 || plan->rank > 2 || keeps_columns(plan, sum_side))
        return turn;
    turn.width = inner_dim(plan, 0);
    turn.n_rows = inner_dim(plan, 1);
    turn.is_whole = turn.width % kVec == 0;
    const bool has_packets = are_aligned({sum.g, sum.x, sum.grad_x});
    int64_t vectors = packets_of_row<T>(turn.width);
    turn.is_of_elements = plan->n <= kMostElements && !(has_packets && turn.is_whole) &&
                          turn.width <= kMostTurnElements<T> * kTurnThreads;
    if (turn.is_of_elements) {
        vectors = turn.width;
        turn.vectors = 1;
        while (lanes_of_turn(vectors, turn.vectors) > kTurnThreads)
            turn.vectors *= 2;
    } else {
        turn.vectors = packets_of_turn<T>(turn.n_rows, vectors, sum.kind, turn.is_whole);
    }
    turn.lanes = (int)lanes_of_turn(vectors, turn.vectors);
    if (turn.lanes > kTurnThreads || !(has_packets || turn.is_of_elements))
        return turn;
    const int64_t most = turn.vectors == 1 && turn.lanes >= 32 ? 256 : 128;
    const int64_t wanted = clamp(turn.n_rows * turn.lanes / kMultiprocessors, 64, most);
    const int64_t step = turn.lanes < 32 ? 32 : turn.lanes; // whole rows and whole warps
    turn.threads = (int)clamp(wanted / step * step, step, kTurnThreads);
    return turn;
}

template <typename T, int kKind>
static kernel_fn<turn_args> *turn_kernel_of(const struct turn_layout &turn)
{
    const int n = turn.vectors;
    if (turn.is_of_elements)
        return n == 1   ? turn_elements_kernel<T, kKind, 1>
               : n == 2 ? turn_elements_kernel<T, kKind, 2>
                        : turn_elements_kernel<T, kKind, kMostTurnElements<T>>;
    if (turn.is_whole)
        return n == 1   ? turn_kernel<T, kKind, 1, true>
               : n == 2 ? turn_kernel<T, kKind, 2, true>
                        : turn_kernel<T, kKind, 4, true>;
    return n == 1   ? turn_kernel<T, kKind, 1, false>
           : n == 2 ? turn_kernel<T, kKind, 2, false>
                    : turn_kernel<T, kKind, 4, false>;
}

template <typename T>
static enum roped_status launch_turn(const struct turn_layout &turn, const struct sum_args &sum,
                                     struct roped_queue *queue, struct roped_error *err)
{
    turn_args args = {};
    name_operands(sum, &args);
    args.n = sum.n;
    args.n_rows = turn.n_rows;
    args.width = (uint32_t)turn.width;
    args.lanes = (uint32_t)turn.lanes;
    args.rows = (uint32_t)(turn.threads / turn.lanes);
    args.by_lanes = index_divisor(args.lanes);
    return start(queue,
                 sum.kind == kBinaryMul     ? turn_kernel_of<T, kBinaryMul>(turn)
                 : sum.kind == kBinaryOverY ? turn_kernel_of<T, kBinaryOverY>(turn)
                                            : turn_kernel_of<T, kBinaryOverX>(turn),
                 dim3((unsigned)turn.threads),
                 filled_blocks(blocks_of(args.n_rows, args.rows), kMultiprocessors), dim3(), args,
                 err);
}
