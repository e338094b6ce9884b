// centred_launch.cuh - launch shapes of the centred norm (device/norm_centred.cuh): how many
// threads take a row, with how many vectors each. Host code.
#pragma once

#include "cuda/device/norm_centred_packets.cuh"
#include "cuda/device/norm_centred_quarters.cuh"
#include "cuda/device/norm_centred_turns.cuh"
#include "cuda/device/norm_centred_words.cuh"
#include "cuda/norm_launch.cuh"

static inline bool takes_place_of(const struct roped_tensor *out, const struct roped_tensor *in)
{
    return do_overlap(out->data, roped_tensor_span(out), in->data, roped_tensor_span(in));
}

// Vectors of a row, at most, that is summed in float32 first.
template <typename T>
constexpr int64_t kMostHeldVectors = sizeof(T) == 4 ? 8192 : 4096;

// Vectors of each thread of a row: two; three where they make one warp of two that would idle, and
// more where a block of many warps would have a multiprocessor to itself.
static inline int centred_vectors(int64_t vectors)
{
    if (vectors <= 1024)
        return vectors > 64 && vectors <= 96 ? 3 : 2;
    return vectors <= 4096 ? 4 : 8;
}

// Threads of a row that sum it, a power of two or whole warps.
static inline int centred_shares(int64_t vectors)
{
    const int64_t wanted = blocks_of(vectors, centred_vectors(vectors));
    int threads = 4;
    while (threads < wanted && threads < 32)
        threads *= 2;
    return threads < wanted ? (int)blocks_of(wanted, 32) * 32 : threads;
}

// Blocks of a wide row, a cluster: of four warps or more each, as long as all multiprocessors are
// not busy; of many rows two where one would leave no room for another, which reads while it sums.
static inline int centred_parts(int64_t n_rows, int64_t threads, int registers,
                                const struct roped_queue *queue)
{
    int parts = 1;
    if (!queue->can_overlap)
        return 1;
    while (parts < 8 && threads >= 256 * parts && 2 * parts * n_rows <= queue->n_multiprocessors)
        parts *= 2;
    return parts == 1 && 2 * threads * registers > 64 << 10 ? 2 : parts;
}

// Half of them may do the work of all. Rows of a block, where they are narrow: so many that there
// is a block for each multiprocessor.
template <typename K, typename C>
static enum roped_status launch_centred_rows(kernel_fn<norm_args> *kernel,
                                             const struct norm_args &args, int64_t vectors,
                                             struct roped_queue *queue, struct roped_error *err)
{
    int64_t threads = centred_shares(vectors), rows = 1;
    struct norm_args shared = args;
    shared.n_shares = (int32_t)threads;
    const int parts = C::kMayPart ? centred_parts(args.n_rows, threads, C::kRegisters, queue) : 1;
    if (C::kShares * parts > 1)
        threads = blocks_of(threads, 32 * C::kShares * parts) * 32;
    if (threads <= 32 && (!C::kIsBlock || C::kShares == 2)) {
        int64_t enough = args.n_rows / (2 * queue->n_multiprocessors);
        const int64_t most = threads < 32 ? 256 : 128; // of a block
        for (rows = 32 / threads; rows < enough && rows * threads < most;)
            rows *= 2;
    }
    return start(queue, kernel, dim3((unsigned)threads, (unsigned)rows),
                 blocks_of(args.n_rows, rows), dim3(1, parts), shared, err, 0, parts > 1);
}

// Narrow rows of one input, which warps take in turn: blocks that find room at once, and how often
// they are filled, of rows of up to 128 vectors.
template <typename C>
static int64_t places_of_turns(const struct roped_queue *queue)
{
    return (64 << 10) / (128 * C::kRegisters) * (int64_t)queue->n_multiprocessors;
}

template <typename C>
static int64_t centred_turns(const struct norm_args &args, int64_t vectors,
                             const struct roped_queue *queue)
{
    const int64_t rows = 128 * C::kShares / centred_shares(vectors); // of a block at once
    return blocks_of(args.n_rows, rows) / places_of_turns<C>(queue);
}

// Of more than twelve turns a block takes four, of rows that lie beside each other, and leaves:
// where warps take all turns their rows drift apart, and memory moves 3 to 10 % less of what does
// not fit L2.
template <typename K, typename C>
static enum roped_status launch_centred_turns(const struct norm_args &args, int64_t vectors,
                                              int64_t turns, struct roped_queue *queue,
                                              struct roped_error *err)
{
    struct norm_args shared = args;
    shared.n_shares = centred_shares(vectors);
    shared.keeps = passes_l2(moved_bytes<K>(&args), queue);
    shared.n_turns = turns > 12 ? 4 : 0;
    const unsigned threads = (unsigned)(shared.n_shares / C::kShares), rows = 128 / threads;
    int64_t blocks = blocks_of(args.n_rows, rows);
    if (shared.n_turns)
        blocks = blocks_of(blocks, shared.n_turns);
    else
        blocks = blocks_in_turn(blocks, places_of_turns<C>(queue), 1);
    return start(queue, centred_turns_kernel<K, C>, dim3(threads, rows), blocks, dim3(), shared,
                 err);
}

// Many rows of one input are bound by instructions: half of the threads have the shares of all, and
// the same bits. Where multiprocessors have room for all in four turns it gains nothing, but where
// one warp has all of a row, which then needs no barrier. A sum's registers have no room for it.
template <typename K, int kVectors, bool kIsNarrow>
static enum roped_status launch_centred_held(const struct norm_args &args, int64_t vectors,
                                             struct roped_queue *queue, struct roped_error *err)
{
    constexpr bool kMayPart = kVectors > 2 && !kIsNarrow && !K::kHasHeads && !K::kHasTerms;
    // of one input of 16 bits what it takes to be one of several blocks would spill
    constexpr bool kParts = kMayPart && (K::kAdds || sizeof(typename K::T) == 4);
    using parted = centred_config<K, kVectors, kIsNarrow, true, false, 1, kMayPart>;
    // float32 has registers for three vectors' weights whatever the number of rows
    constexpr bool kHasRoom =
        kVectors == 3 && !K::kAdds && !K::kHasHeads && sizeof(typename K::T) == 4;
    using late = centred_config<K, kVectors, kIsNarrow, true, false, 1, kParts>;
    using plain = std::conditional_t<kHasRoom, with_weights<late>, late>;
    constexpr bool kHalves = kVectors == 2 && !kIsNarrow && !K::kAdds && !K::kHasHeads;
    constexpr int kShares = kHalves ? 2 : 1;
    using half = centred_config<K, kVectors * kShares, kIsNarrow, true, false, kShares, kParts>;
    using late_kept = centred_config<K, kVectors * kShares, kIsNarrow, true, true, kShares, kParts>;
    using kept = std::conditional_t<kHasRoom, with_weights<late_kept>, late_kept>;
    using any = centred_config<K, kVectors, kIsNarrow, false>;
    // float32, which has less to compute, gains nothing
    constexpr bool kMayTurn =
        kVectors <= 3 && !K::kAdds && !K::kHasHeads && sizeof(typename K::T) == 2;
    // the policy of what stays in L2 would spill what wide rows of one input hold
    constexpr bool kMayKeep =
        K::kAdds || (kVectors < 4 && !(kMayTurn && kIsNarrow)) || sizeof(typename K::T) == 4;
    bool is_plain = has_vectors<typename K::T>(&args, 16) && args.weight_kind <= (int)kWeightSame &&
                    (!kMayPart || kVectors <= 4 || queue->can_overlap); // two blocks have registers
    kernel_fn<norm_args> *of_any;
    if constexpr (K::kHasTerms || K::kHasHeads)
        of_any = centred_terms_kernel<K, any::kIsBlock>;
    else
        of_any = centred_kernel<K, any>;
    if (!is_plain)
        return launch_centred_rows<K, any>(of_any, args, vectors, queue, err);
    if constexpr (kMayTurn) {
        using turning = turning_config<K, kIsNarrow ? kVectors : 4>;
        const int64_t turns = vectors <= 128 ? centred_turns<turning>(args, vectors, queue) : 0;
        if (turns >= 3)
            return launch_centred_turns<K, turning>(args, vectors, turns, queue, err);
    }
    if constexpr (kMayTurn && kVectors == 3)
        if (args.n_rows <= 8 * (int64_t)queue->n_multiprocessors)
            return launch_centred_rows<K, with_weights<plain>>(
                centred_kernel<K, with_weights<plain>>, args, vectors, queue, err);
    if constexpr (kMayPart && !kParts)
        if (centred_parts(args.n_rows, centred_shares(vectors), parted::kRegisters, queue) > 1)
            return launch_centred_rows<K, parted>(centred_kernel<K, parted>, args, vectors, queue,
                                                  err);
    if constexpr (kMayKeep)
        if (passes_l2(moved_bytes<K>(&args), queue))
            return launch_centred_rows<K, kept>(centred_kernel<K, kept>, args, vectors, queue, err);
    constexpr double kTurnsOfWarp = sizeof(typename K::T) == 4 ? 0.5 : 1;
    if constexpr (kHalves)
        if (has_turns(&args, vectors, vectors <= 128 ? kTurnsOfWarp : 4, queue))
            return launch_centred_rows<K, half>(centred_kernel<K, half>, args, vectors, queue, err);
    return launch_centred_rows<K, plain>(centred_kernel<K, plain>, args, vectors, queue, err);
}

// Any sum is read again, by as many threads as would hold it.
template <typename K, int kVectors, bool kIsNarrow>
static enum roped_status launch_centred_vectors(const struct norm_args &args, int64_t vectors,
                                                struct roped_queue *queue, struct roped_error *err)
{
    using any = centred_config<K, kVectors, kIsNarrow, false>;
    if constexpr (K::kIsAny)
        return launch_centred_rows<K, any>(centred_terms_kernel<K, any::kIsBlock>, args, vectors,
                                           queue, err);
    else
        return launch_centred_held<K, kVectors, kIsNarrow>(args, vectors, queue, err);
}

// Words of a centred row, or 0 where it is moved otherwise. Of two elements all but sums of more
// than 1,024 vectors; of one element of 16 bits narrow rows; of float32, whose words are as many as
// a packet has elements in any case, rows of one input that find room in four turns: of few for
// each multiprocessor only wide ones, where shifting them for three reads takes longer. by_lanes:
// rows that a block takes by lanes, if words are not of two elements.
template <typename K>
static int centred_unit(const struct norm_args *args, int n_shares, bool by_lanes,
                        const struct roped_queue *queue)
{
    const int64_t vectors = vectors_of<K>(args);
    const int unit = word_of_rows<K>(args, n_shares, queue);
    if (unit == 2)
        return !K::kAdds || vectors <= 2 * n_shares ? unit : 0;
    if (by_lanes)
        return 0;
    if (sizeof(typename K::T) == 2)
        return vectors <= kMostOddVectors ? unit : 0;
    const bool is_few = args->n_rows <= 4 * (int64_t)queue->n_multiprocessors;
    return n_shares >= (is_few ? 257 : 64) && !has_turns(args, vectors, 4, queue) ? unit : 0;
}

template <typename K>
static enum roped_status launch_centred_words(const norm_args &args, struct norm_args *norm,
                                              int n_shares, int unit, struct roped_queue *queue,
                                              struct roped_error *err)
{
    const bool is_wide = vectors_of<K>(norm) > 2 * n_shares;
    kernel_fn<norm_args> *kernel;
    int shares = 2; // of a thread
    if constexpr (sizeof(typename K::T) == 4) {
        shares = 4;
        kernel = is_wide ? centred_words_kernel<K, 1, 4, 16> : centred_words_kernel<K, 1, 4, 8>;
    } else {
        kernel = unit == 1 ? centred_words_kernel<K, 1, 2, 4> : centred_words_kernel<K, 2, 2, 4>;
        if constexpr (!K::kAdds)
            if (is_wide && unit == 2)
                kernel = centred_words_kernel<K, 2, 2, 8>;
    }
    norm->n_shares = n_shares;
    return start(queue, kernel, dim3((unsigned)(n_shares * (4 / unit) / shares)), norm->n_rows,
                 dim3(), args, err, kCentredWordBytes * n_shares);
}

template <typename K>
static enum roped_status launch_kind(const struct norm_args &args, struct roped_queue *queue,
                                     struct roped_error *err)
{
    int64_t vectors = (args.hidden + K::kVec - 1) / K::kVec;
    if constexpr (!K::kHasTerms) {
        using T = typename K::T;
        const int n_shares = centred_shares(vectors);
        // shifting float32 costs less, where a thread has few vectors
        const bool is_wide = vectors > kQuarterVectors * n_shares;
        const int most_threads = sizeof(T) == 4 && !is_wide ? 512 : 1024;
        // of which none comes in turn, so that weights cost each of them
        const bool is_few = !K::kHasHeads && is_small<T>(args.n_rows * args.hidden / 4, queue);
        const bool is_aligned = has_vectors<T>(&args, 16);
        const bool is_plain = is_aligned && args.weight_kind <= (int)kWeightSame;
        struct norm_args few = args;
        // of a share: float32 has up to as many as centred_vectors says
        constexpr int kMost = sizeof(T) == 4 && !K::kHasHeads ? 8 : kQuarterVectors;
        const bool is_held = !is_plain && vectors <= kMostHeldVectors<T>;
        // a lane has one or two elements of a narrow kernel's, and a block of quarters little to do
        const bool is_crowded = !is_few && !is_aligned && has_narrow_rows<K, true>(&args) &&
                                args.hidden <= 64 &&
                                args.n_rows > 11 * (int64_t)queue->n_multiprocessors;
        if (const int parts = is_held && !is_crowded
                                  ? quarter_parts<K>(&args, n_shares, most_threads, queue, kMost)
                                  : 0)
            return launch_quarters(vectors <= 2 * n_shares ? centred_quarters_kernel<K, 2>
                                   : is_wide               ? centred_quarters_kernel<K, kMost>
                                                           : centred_quarters_kernel<K>,
                                   few, &few, n_shares, parts, queue, err);
        if (!is_aligned && !is_few && has_narrow_rows<K, true>(&args))
            return launch_narrow<K, true>(args, queue, err);
        const bool by_lanes =
            !is_aligned && has_rows_of_blocks<K>(&args) && has_turns(&args, vectors, 2, queue);
        // those of float32 sums have no such kernels
        if constexpr (!(K::kAdds && sizeof(T) == 4)) {
            using L = of_rows<K>;
            struct norm_args rows = args;
            if (K::kHasHeads) // beside each other, as rows of one head
                rows.x_pitch = rows.y_pitch = rows.residual_pitch = rows.residual_out_pitch =
                    rows.hidden;
            const bool may_be =
                !is_aligned && (!K::kHasHeads || (is_packed(&args) && n_shares <= 256));
            if (const int unit = may_be ? centred_unit<L>(&rows, n_shares, by_lanes, queue) : 0)
                return launch_centred_words<L>(rows, &rows, n_shares, unit, queue, err);
        }
        if (by_lanes)
            return launch_lanes_of_blocks<K, true>(args, 32 * blocks_of(vectors, 64), queue, err);
        // a narrower row's sums wait for each other longer than for memory
        const bool may_wait = !is_aligned && vectors > 256 && vectors <= kMostHeldVectors<T> &&
                              (K::kAdds || vectors > 1024 || has_turns(&args, vectors, 4, queue));
        if (const int64_t bytes = may_wait ? bytes_of_packets<K>(&args, n_shares, queue) : 0)
            return launch_packets<K>(centred_packets_kernel<K>, few, &few, n_shares, bytes, queue,
                                     err);
    }
    if (vectors <= 64)
        return launch_centred_vectors<K, 2, true>(args, vectors, queue, err);
    if (vectors <= 96)
        return launch_centred_vectors<K, 3, true>(args, vectors, queue, err);
    if (vectors <= 1024)
        return launch_centred_vectors<K, 2, false>(args, vectors, queue, err);
    if (vectors <= 4096)
        return launch_centred_vectors<K, 4, false>(args, vectors, queue, err);
    constexpr int64_t kMost = kMostHeldVectors<typename K::T>;
    if constexpr (kMost > 4096)
        if (vectors <= kMost)
            return launch_centred_vectors<K, 8, false>(args, vectors, queue, err);
    return start(queue, centred_reread_kernel<K>, dim3(1024), args.n_rows, dim3(), args, err);
}

template <typename T, bool kAdds>
static enum roped_status launch_centred(const struct norm_args &args, bool rounds_sum,
                                        struct roped_queue *queue, struct roped_error *err)
{
    if constexpr (kAdds)
        if (is_any(&args))
            return launch_kind<norm_kind<T, kFromAny, kToFloats>>(args, queue, err);
    if constexpr (kAdds)
        if (has_terms(&args))
            return launch_kind<norm_kind<T, kFromTerms, kToFloats>>(args, queue, err);
    if constexpr (kAdds && sizeof(T) == 2)
        if (rounds_sum)
            return launch_kind<norm_kind<T, kFromRoundedSum, kToFloats>>(args, queue, err);
    return launch_kind<norm_kind<T, kAdds ? kFromSum : kFromX, kToFloats>>(args, queue, err);
}
