// pair_launch.cuh - launch shapes of the norms beside a second tensor (device/norm_pair.cuh). Host
// code but for what a kernel is compiled with.
#pragma once

#include "cuda/device/norm_pair_narrow.cuh"
#include "cuda/device/norm_pair_staged.cuh"
#include "cuda/norm_launch.cuh"

#include <algorithm>
#include <numeric>

// As a norm has them, but for what has no place in its kernel. kIsSmall: rows of a warp in blocks
// of four, so that registers are shared out among 20 or 24 warps, not 16.
template <typename K, int kRowThreads, int kRowVectors, bool kKeep, int kRowShares = 1,
          bool kIsSmall = false>
struct pair_config : norm_config<K, kRowThreads, kRowVectors, kWeightInKind, false, kRowShares,
                                 false, (kRowThreads * kRowShares >= 512)> {
    static constexpr bool kKeeps = kKeep, kIsSecondLate = false;
    static constexpr int kBlock = kIsSmall ? 128 : pair_config::norm_config::kBlock;
    static constexpr int kGroups = kBlock / kRowThreads;
    static constexpr int kBound = kBlock; // threads of a block, at most
    // 64 registers, where a row's vectors and their weights need no more, or where two halves of a
    // block find room beside each other; 80 for twice as many vectors, and 96 for four of a warp
    static constexpr bool kIsHalf = kRowShares == 2 && kRowThreads == 512;
    // where lines are kept, and no gate needs registers, weights may come behind the sum
    static constexpr bool kIsLate =
        kKeep && kRowShares == 2 && kRowThreads == 256 && K::kPair == NORM_THEN_ADD;
    static constexpr bool kStartsWeight = pair_config::norm_config::kStartsWeight && !kIsLate;
    static constexpr int kMinBlocks =
        kRowShares == 2 && kRowThreads <= 256 && !kIsLate ? 768 / pair_config::kBlock
        : kRowVectors == 2 || kIsHalf || kIsLate          ? 1024 / pair_config::kBlock
        : kIsSmall                                        ? 9 - kRowVectors
                                                          : 1;
};

// C, of rows for which 576 threads are enough, as 18,432 of 16 bits: with 56 registers two of them
// find room on a multiprocessor.
template <typename C>
struct beside_another : C {
    static constexpr int kBound = 576, kMinBlocks = 2;
};

// C, with registers for so many rows of so many threads on a multiprocessor, of which one comes
// while others are summed and written: a second tensor that is not normalised has none of them.
template <typename C, norm_pair kPair, int kMostThreads, int kRows>
struct beside_others : C {
    static constexpr bool kStartsWeight = false, kIsSecondLate = kPair != GATE_THEN_NORM;
    static constexpr int kBound = kMostThreads, kMinBlocks = kRows;
};

// Rows that wait in shared memory, so many of them in a block: of both tensors, of which many rows
// leave room for two blocks on a multiprocessor, or of x alone. A gate is needed for the sum, and
// so is what it makes of x for the result: in float32 that may take the place of x, while the gate
// does not wait, where many rows leave room for two blocks only so. Returns the block's bytes.
template <typename K, bool kIsAligned>
static int64_t stage_pair(struct norm_args *norm, int rows, const struct roped_queue *queue)
{
    constexpr bool kMakesZ = K::kPair == GATE_THEN_NORM;
    const int64_t bytes = 16 * rows * (int64_t)staged_packets<kIsAligned>((int)vectors_of<K>(norm));
    const int64_t all = queue->shared_bytes - kOwnShared;
    const int64_t half = queue->shared_bytes / 2 - kOwnShared;
    const bool finds_two = has_many_rows(norm, queue, 1) && bytes <= half;
    if (kMayStageAsZ<K, kIsAligned> && finds_two && 2 * bytes > half) {
        norm->is_staged = kStagedAsZ;
        return bytes;
    }
    const int64_t room = !kMakesZ && finds_two ? half : all;
    norm->is_staged = kMakesZ ? kStagedWithZ : K::kAdds ? 2 : 1;
    while (norm->is_staged > 0 && staged_areas<K, kIsAligned>(norm->is_staged) * bytes > room)
        norm->is_staged--;
    return staged_areas<K, kIsAligned>(norm->is_staged) * bytes;
}

// Does a row have two blocks, where rows that have one each would leave the last turn to a few?
// Half of a turn is what those take then. Both blocks make ready what a gate of 16 bits in front of
// the norm gives, which costs more.
template <typename K, bool kIsAligned>
static bool takes_halves(const struct norm_args *args, int n_shares,
                         const struct roped_queue *queue)
{
    constexpr bool kIsGate = K::kPair == GATE_THEN_NORM && sizeof(typename K::T) == 2;
    if (!kIsAligned || kIsGate || !queue->can_overlap || n_shares <= 512 || n_shares % 64 ||
        !has_many_rows(args, queue, 1))
        return false;
    struct norm_args staged = *args;
    const int64_t bytes = stage_pair<K, kIsAligned>(&staged, 1, queue);
    const int64_t room = 2 * (bytes + kOwnShared) <= queue->shared_bytes ? 2 : 1;
    const int64_t places = room * queue->n_multiprocessors;
    return 100 * blocks_of(2 * args->n_rows, places) <= 85 * 2 * blocks_of(args->n_rows, places);
}

// Rows for each multiprocessor from which spans of a warp's rows are faster: of 15 they take up to
// 1.5 of the time of quarters of vectors, of 30 0.7.
constexpr int64_t kLeastNarrowPairs = 30;

// Many narrow rows that 16 bytes do not divide, of one group.
template <typename K>
static bool takes_narrow_pairs(const struct pair_args *args, const struct roped_queue *queue)
{
    struct norm_args norm = args->norm;
    norm.heads = 1;
    return args->n_groups == 1 && norm.n_rows > kLeastNarrowPairs * queue->n_multiprocessors &&
           has_rows_beside<K>(&norm, 16);
}

// Of 16 bits 64 registers spill some: 80, where three blocks have room for four.
template <typename K>
struct narrow_pair_config : narrow_config<K, false> {
    static constexpr int kMinBlocks =
        sizeof(typename K::T) == 2 ? 3 : narrow_config<K, false>::kMinBlocks;
};

template <typename K>
static enum roped_status launch_narrow_pairs(struct pair_args *args, struct roped_queue *queue,
                                             struct roped_error *err)
{
    using C = narrow_pair_config<K>;
    struct norm_args *norm = &args->norm;
    norm->heads = 1;
    const int threads = vectors_of<K>(norm) > 8 ? 8 : 4, of_warp = 32 / threads;
    const int64_t enough = norm->n_rows / (2 * queue->n_multiprocessors);
    const int64_t span = packets_of_span(of_warp * norm->hidden * (int64_t)sizeof(typename K::T));
    const int64_t bytes = 16 * C::kTensors * span; // of a warp
    int warps = 1;
    while (warps < C::kMostWarps && warps * of_warp < enough &&
           2 * warps * bytes + kOwnShared <= queue->shared_bytes)
        warps *= 2;
    const int rows = warps * of_warp;
    const int64_t places = (int64_t)queue->n_multiprocessors * C::kMinBlocks * 8 / warps;
    // rows of a turn are a multiple of eight, so that their packets begin where those before did
    const int64_t blocks =
        blocks_in_turn(blocks_of(norm->n_rows, rows), places, 8 / std::gcd(8, rows));
    return start(queue, pair_narrow_kernel<K, C>, dim3((unsigned)threads, (unsigned)rows), blocks,
                 dim3(), *args, err, warps * bytes);
}

// The sum is that of so many threads, n_shares. Rows have half of them where that is too many for
// two blocks. Of a few rows each has a thread for every vector, or, where it is wide, several
// blocks.
template <typename K, bool kIsAligned>
static enum roped_status launch_pair_staged(struct pair_args *args, int n_shares,
                                            struct roped_queue *queue, struct roped_error *err)
{
    struct norm_args *norm = &args->norm;
    const bool may_be_few = !kIsAligned || has_wide_shares<K>(norm, n_shares);
    if (const int few = may_be_few ? staged_quarter_parts<K>(norm, n_shares, false, queue) : 0)
        return launch_norm_quarters<K>(*args, norm, n_shares, few, queue, err);
    const int parts = takes_halves<K, kIsAligned>(norm, n_shares, queue) ? 2
                      : n_shares > 512 ? staged_parts(norm, n_shares, queue)
                                       : 1;
    if constexpr (!kIsAligned && kHasWords<K>)
        if (const int unit = word_unit<K, pair_args>(norm, n_shares, queue))
            return launch_words<K>(*args, norm, n_shares, unit, queue, err);
    // to shift vectors of rows of a warp, or of half of one, takes longer than all else, and so it
    // does of a quarter of one where rows are not many
    const bool has_some = norm->n_rows <= 64 * (int64_t)queue->n_multiprocessors;
    const int least = sizeof(typename K::T) == 2 && has_some ? 8 : 16;
    if (!kIsAligned && K::kAdds && n_shares >= least && n_shares <= 32)
        return launch_norm_quarters<K>(*args, norm, n_shares, 1, queue, err);
    if (!kIsAligned)
        if (const int64_t bytes = bytes_of_packets<K>(norm, n_shares, queue))
            return launch_packets<K>(norm_packets_kernel<K, pair_args>, *args, norm, n_shares,
                                     bytes, queue, err,
                                     kMostPacketThreads<is_sum_of_both<K, pair_args>>);
    const int64_t enough = blocks_of(vectors_of<K>(norm), 32) * 32;
    int threads = n_shares / parts;
    if (parts == 1 && n_shares > kMostStagedThreads)
        threads = n_shares / 2;
    else if (parts == 1 && n_shares > 32 && !has_many_rows(norm, queue))
        threads = (int)std::min(enough, (int64_t)kMostStagedThreads);
    norm->n_shares = n_shares;
    args->of_block = args->step = threads;
    if (parts > 1) { // others help those that sum
        const int64_t turns = blocks_of(vectors_of<K>(norm), n_shares);
        const int helped = (int)std::min(turns, (int64_t)kMostStagedThreads / threads);
        threads *= helped;
        args->step = helped * n_shares;
    }
    const dim3 block = block_of_rows(threads);
    enum roped_status status = check_width(norm, INT_MAX / 2, err);
    if (status)
        return status;
    const int64_t bytes = stage_pair<K, kIsAligned>(norm, (int)block.y, queue);
    return start(queue, pair_staged_kernel<K, kIsAligned>, block, blocks_of(norm->n_rows, block.y),
                 dim3(1, parts), *args, err, bytes, parts > 1);
}

template <typename K, typename C>
static enum roped_status launch_pair_config(const struct pair_args *args, int parts,
                                            struct roped_queue *queue, struct roped_error *err)
{
    return start(queue, pair_kernel<K, C>, block_of<C>(&args->norm),
                 blocks_of(args->norm.n_rows, C::kGroups), dim3(1, parts), *args, err);
}

// Are there so few rows that blocks of so many threads that sum a row, and of one for each vector
// that is written, are all at work at once? A row by itself has several.
template <typename K>
static bool has_few_rows(const struct norm_args *args, int threads, const struct roped_queue *queue,
                         dim3 *block, dim3 *grid)
{
    const int64_t warps = blocks_of(vectors_of<K>(args), 32);
    const int parts = parts_of_row<K>(args, (int)warps * 32);
    const int64_t all = threads + blocks_of(warps, parts) * 32;
    *grid = dim3(1, parts);
    *block = dim3((unsigned)all);
    return all <= 1024 && args->n_rows <= 1024 / all * queue->n_multiprocessors;
}

// Have blocks of eight rows, two for each multiprocessor, room for all of them, and few places
// left? Smaller blocks, of which more find room, would come to where the launch before is done
// first, and the others would idle.
static inline bool fills_a_turn(const struct norm_args *args, const struct roped_queue *queue)
{
    const int64_t chips = queue->n_multiprocessors;
    return args->n_rows > 12 * chips && args->n_rows <= 16 * chips;
}

constexpr int kMostOfEights = 2816; // vectors of a row that half of 704 threads have

// Do three rows of up to 1,536 vectors find room on a multiprocessor (beside_others), or two of
// 2,305 to 2,816, and does that pay? Of few rows the last ones would come alone: what that costs, a
// gate's wider rows regain. A gate behind the norm is unpacked and activated in front of the stores
// then, which narrower rows of float16 and float32 wait for.
template <typename K>
static bool finds_more_room(const struct norm_args *args, const struct roped_queue *queue)
{
    const int64_t vectors = args->n_vectors, each = args->n_rows / queue->n_multiprocessors;
    if (vectors > kMostOfThree)
        return vectors > 4 * 576 && vectors <= kMostOfEights &&
               (K::kPair == NORM_THEN_GATE ? has_many_rows(args, queue, 1) : each >= 12);
    if (K::kPair == GATE_THEN_NORM)
        return each >= 8;
    if (vectors > 1280)
        return has_many_rows(args, queue);
    return K::kPair == NORM_THEN_GATE && std::is_same_v<typename K::T, __nv_bfloat16> && each >= 8;
}

// Many rows beside a gate of 16 bits are bound by instructions: half of the threads share out what
// a row costs beside its elements. A row of a warp, or of a small block whose threads all have
// vectors, gains nothing. What a call reads and writes must not be found in L2 for its
// loads to be kept there; rows of less than a block are too narrow for that to be worth kernels of
// their own.
template <typename K, int kThreads, int kVectors>
static enum roped_status launch_pair_rows(struct pair_args *args, struct roped_queue *queue,
                                          struct roped_error *err)
{
    constexpr bool kHasGate = K::kPair == GATE_THEN_NORM || K::kPair == NORM_THEN_GATE;
    constexpr bool kHalves =
        kVectors == 2 && (kThreads == 1024 || (kThreads >= (kHasGate ? 128 : 512) && K::kAdds &&
                                               sizeof(typename K::T) == 2));
    // so many rows of a gate as do not fit L2 have a kernel that keeps nothing
    constexpr bool kIsGate = kThreads == 512 && kHalves && K::kPair == NORM_THEN_GATE;
    constexpr bool kMayKeep = kThreads >= 128 && !kIsGate;
    constexpr int kShares = kHalves ? 2 : 1, kRoomOfFew = kThreads == 1024 ? 1 : 2;
    constexpr bool kIsOfWarp = kThreads == 32 && kVectors > 2;
    constexpr bool kMaySplit = kThreads == 512 || (kHasGate && kThreads >= 128 && kThreads < 512);
    constexpr bool kHasFew = K::kPair != GATE_THEN_NORM && (kIsOfWarp || kMaySplit);
    using many = pair_config<K, kThreads / kShares, kVectors * kShares, false, kShares, kIsOfWarp>;
    using few = pair_config<K, kThreads, kIsOfWarp ? 4 : kVectors, false>;
    using kept = pair_config<K, kThreads / kShares, kVectors * kShares, true, kShares>;
    using of_more = std::conditional_t<
        kVectors == 2, beside_others<many, K::kPair, 384, 3>,
        beside_others<pair_config<K, 512, 8, false, 2>, K::kPair, kMostOfEights / 8, 2>>;
    struct norm_args *norm = &args->norm;
    const int64_t bytes =
        (K::kAdds ? 3 : 2) * norm->n_rows * norm->hidden * (int64_t)sizeof(typename K::T);
    norm->n_vectors = (int32_t)(norm->hidden / K::kVec);
    // three rows of 288 threads with eight vectors each find room; so many pass L2, and lines are
    // kept
    if constexpr (kThreads * kVectors == 4096 && K::kAdds && K::kPair != GATE_THEN_NORM &&
                  sizeof(typename K::T) == 2) {
        using eights = pair_config<K, 512, 8, true, 2>;
        if (norm->n_rows >= 8 * (int64_t)queue->n_multiprocessors && norm->n_vectors <= 4 * 576)
            return launch_pair_config<K, beside_others<eights, K::kPair, 288, 3>>(args, 1, queue,
                                                                                  err);
    }
    if constexpr (kThreads * kVectors == 4096)
        if (has_many_rows(norm, queue, kRoomOfFew) && norm->n_vectors <= 4 * 576)
            return passes_l2(bytes, queue)
                       ? launch_pair_config<K, beside_another<kept>>(args, 1, queue, err)
                       : launch_pair_config<K, beside_another<many>>(args, 1, queue, err);
    if constexpr (kThreads == 1024 && K::kAdds && (kVectors == 2 || K::kPair != GATE_THEN_NORM))
        if (finds_more_room<K>(norm, queue))
            return launch_pair_config<K, of_more>(args, 1, queue, err);
    if constexpr (kIsGate)
        if (norm->n_rows >= 8 * (int64_t)queue->n_multiprocessors)
            return launch_pair_config<K, beside_others<many, K::kPair, 256, 4>>(args, 1, queue,
                                                                                err);
    if constexpr (kMayKeep)
        if (passes_l2(bytes, queue))
            return launch_pair_config<K, kept>(args, 1, queue, err);
    // but not where a few of all threads would idle and blocks are small
    const bool is_full = kThreads <= 256 && 8 * norm->n_vectors >= 7 * kThreads * kVectors;
    const bool is_many = has_many_rows(norm, queue, kRoomOfFew);
    if constexpr (kHasFew) {
        dim3 block, grid;
        norm->n_shares = threads_of_row<kThreads, kVectors>(norm->n_vectors);
        if (((kIsOfWarp && !is_many) || norm->n_rows == 1) &&
            has_few_rows<K>(norm, norm->n_shares, queue, &block, &grid))
            return start(queue, pair_few_kernel<K>, block, norm->n_rows, grid, *args, err);
    }
    if (kIsOfWarp ? !fills_a_turn(norm, queue) : is_many && !(kHalves && is_full))
        return launch_pair_config<K, many>(args, 1, queue, err);
    const int parts = few::kMayPart ? parts_of_row<K>(norm, (int)block_of<few>(norm).x) : 1;
    return launch_pair_config<K, few>(args, parts, queue, err);
}

template <typename K>
static enum roped_status launch_pair_kind(struct pair_args *args, struct roped_queue *queue,
                                          struct roped_error *err)
{
    struct norm_args *norm = &args->norm;
    const bool is_aligned = has_vectors<typename K::T>(norm, 16);
    const int64_t vectors = vectors_of<K>(norm);
    auto launch_staged = [&](int threads) {
        return is_aligned ? launch_pair_staged<K, true>(args, threads, queue, err)
                          : launch_pair_staged<K, false>(args, threads, queue, err);
    };
    if constexpr (K::kAdds)
        if (!is_aligned && takes_narrow_pairs<K>(args, queue))
            return launch_narrow_pairs<K>(args, queue, err);
    if (vectors > kMostVectors) {
        norm->sums_in_double = vectors > kMostFloatVectors;
        return launch_staged(wide_threads(vectors));
    }
    const auto launch_rows = [&](auto shape) {
        constexpr int kThreads = shape.kThreads, kVectors = shape.kVectors;
        if (is_aligned && norm->weight_kind <= kWeightSame)
            return launch_pair_rows<K, kThreads, kVectors>(args, queue, err);
        return launch_staged(staged_threads<K, kThreads, kVectors>(norm));
    };
    if (vectors > 64 && vectors <= 96) // a warp that has four would idle
        return launch_rows(row_shape<32, 3>{});
    return with_row_shape(vectors, launch_rows);
}

static inline int64_t pair_pitch(const struct norm_pair_plan *plan,
                                 const struct roped_tensor *tensor)
{
    int64_t width = plan->n_groups * plan->norm.hidden;
    return plan->norm.n_rows > plan->n_groups ? row_stride(tensor, width) : width;
}

static inline int weight_bytes_of(const struct norm_pair_plan *plan)
{
    return plan->norm.weight_dtype == ROPED_NO_DTYPE
               ? 0
               : (int)roped_dtype_bytes((enum roped_dtype)plan->norm.weight_dtype);
}

// So many rows of the tensors at a time that their groups can be counted in a register.
template <norm_pair kPair>
static enum roped_status
launch_pair(const struct norm_pair_plan *plan, const struct roped_tensor *x,
            const struct roped_tensor *second, const struct roped_tensor *weight,
            const struct roped_tensor *out, struct roped_queue *queue, struct roped_error *err)
{
    const int64_t most = kMostPackets / plan->n_groups;
    struct pair_args args = {};
    if (most == 0)
        return roped_fail(err, ROPED_TOO_LARGE,
                          "call: %lld groups in a row, expected at most %lld on this device",
                          (long long)plan->n_groups, (long long)kMostPackets);
    args.norm = norm_args_of(&plan->norm, x, weight, out);
    args.norm.x_pitch = pair_pitch(plan, x);
    args.norm.y_pitch = pair_pitch(plan, out);
    args.norm.residual_pitch = args.norm.x_pitch;
    if (kPair != NORM_ALONE) {
        args.norm.residual = second->data;
        args.norm.residual_end = whole_end(second->data, roped_tensor_span(second));
        args.norm.residual_pitch = pair_pitch(plan, second);
    }
    args.norm.residual_out_pitch = args.norm.y_pitch; // no such tensor
    args.n_groups = (uint32_t)plan->n_groups;
    args.to_row = index_divisor(plan->n_groups);
    args.weight_bytes = weight_bytes_of(plan);
    args.activation = plan->activation;
    args.rounds_norm = plan->rounds_norm;
    args.rounds_scale = plan->rounds_scale;
    return with_float_type(x->dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        enum roped_status status = ROPED_OK;
        const int64_t n_rows = plan->norm.n_rows / plan->n_groups;
        for (int64_t row = 0; row < n_rows && !status; row += most) {
            struct pair_args part = args;
            part.norm.n_rows = (n_rows - row < most ? n_rows - row : most) * plan->n_groups;
            part.norm.x = static_cast<const T *>(args.norm.x) + row * args.norm.x_pitch;
            part.norm.y = static_cast<T *>(args.norm.y) + row * args.norm.y_pitch;
            if (kPair != NORM_ALONE)
                part.norm.residual =
                    static_cast<const T *>(args.norm.residual) + row * args.norm.residual_pitch;
            status = launch_pair_kind<pair_kind<T, kPair>>(&part, queue, err);
        }
        return status;
    });
}
