// norm_launch.cuh - launch shapes of the norm operators: how many threads take a row, how many
// rows they take, which kernel. Host code but for the constants that a kernel is compiled with.
#pragma once

#include "cuda/staged_launch.cuh"
#include "ops/rmsnorm.h"

#include <type_traits>

// Rows that a block takes in turn at most, as measured for rows of 512 and of 2,048 vectors. What
// is not divided by a scale has more rows in flight by more blocks, each of which leaves with its
// row.
template <typename K>
constexpr int most_rows(int threads, bool is_wide)
{
    if (K::kSink == kToFloats)
        return 1;
    if (is_wide)
        return INT_MAX;
    if (threads != 256 || !K::kAdds)
        return 4;
    return K::kSink < kToFp8PerRow ? 1 : 2;
}

// kThreads threads per row, kVectors vectors per thread. A row in registers and its weights are at
// most 32 and 32 floats, where a block may have them (1,024 threads may not). kShares: as how many
// threads each of them sums (device/reduce.cuh). kHasStrides: rows of x, and of y, may be further
// apart than they are long.
// kAny: as many whole warps as a row needs, kRowThreads at most, and more than half of them.
template <typename K, int kRowThreads, int kRowVectors, weight_class kClass, bool kLoops,
          int kRowShares = 1, bool kHasStrides = false, bool kAny = (kRowThreads >= 512)>
struct norm_config {
    static constexpr weight_class kWeight = kClass;
    static constexpr int kThreads = kRowThreads;
    static constexpr int kVectors = kRowVectors;
    static constexpr bool kAnyWarps = kAny;
    static constexpr int kShares = kRowShares;
    static constexpr bool kStrides = kHasStrides;
    static constexpr bool kKeeps = false; // what it reads in L2 (device/vector.cuh)
    static constexpr int kPartials = (kThreads * kShares + 31) / 32; // of a row's sum
    static constexpr bool kTakesRows = kLoops; // else the kernel has half the instructions to fetch
    static constexpr bool kIsShort = !kTakesRows && kVectors <= 2; // leaves registers over
    static constexpr bool kIsBlock = kThreads > 32;
    static constexpr bool kSharesWarp = kThreads < 32;
    static constexpr bool kMayPart = kIsBlock && !kTakesRows; // several blocks to a row
    static constexpr int kBlock = kIsBlock ? kThreads : kNormThreads;
    static constexpr int kGroups = kBlock / kThreads;
    static constexpr bool kIsWide = kThreads >= 512 && kVectors > 2;
    static constexpr bool kIsHalf = kShares > 1 && kThreads == 128; // of a small block,
    static constexpr bool kIsHalved = kIsHalf && kLoops;            // which takes rows in turn
    // what fits beside the row: the next one, weights as they come, and as floats
    static constexpr bool kIsFull =
        kThreads == 512 && !kIsWide && (K::kAdds || K::kSink != kToFloats);
    static constexpr int kMostRows = kThreads == 256 && kVectors > 2
                                         ? 1
                                         : most_rows<K>(kThreads, kIsWide);
    static constexpr bool kMayLoop =
        kIsBlock && kThreads <= 512 && !kIsFull && kVectors < 8 && kMostRows > 1;
    static constexpr bool kHasNext = kIsWide && kLoops;
    static constexpr bool kStartsWeight = !kIsWide || kLoops;
    static constexpr bool kReadiesGains =
        kHasNext || kIsHalved ||
        (kIsBlock && (!kLoops || K::kSink != kToFloats) && kVectors <= 2 && kThreads < 512);
    // the row itself as floats, unpacked once, where a thread has few or may have 128 registers
    static constexpr bool kHoldsFloats =
        K::kHasTerms || (kHasNext && K::kSink != kToFp8) || kIsHalved || (kIsShort && kIsBlock);
    // Blocks per multiprocessor that registers leave room for. Half of its threads hide the barrier
    // of each other; a sum's two rows, and the widest rows with the next one, need the registers.
    static constexpr int kMinBlocks = kIsHalf && !kLoops ? (K::kAdds ? 5 : 8)
                                      : kIsHalved || (kBlock == 256 && !K::kAdds)    ? 4
                                      : kThreads == 512 && !kHasNext && kVectors < 8 ? 2
                                                                                     : 1;
    // Threads that registers are shared out among, kMinBlocks times: with 56 of them three rows of
    // 9 to 12 warps find room, not two. Sums would spill.
    static constexpr int kBound = !K::kAdds && kIsWide && kShares == 2 && !kLoops ? 576 : kBlock;
    static __device__ __forceinline__ int threads()
    {
        return kAnyWarps ? blockDim.x : kThreads;
    }
};

template <typename C>
static dim3 block_of(const struct norm_args *args)
{
    return C::kAnyWarps ? threads_of_row<C::kThreads * C::kShares, C::kVectors / C::kShares>(
                              args->n_vectors) /
                              C::kShares
                        : C::kBlock;
}

// C, but for the lines that its loads keep.
template <typename C>
struct keeping : C {
    static constexpr bool kKeeps = true;
};

// Rows that a group takes in turn, so that weights are read less often and all but the first load
// overlap a sum. Narrow rows fill the machine with groups that take one row each: loading ahead
// gains nothing. Blocks of one row take up to kMostRows, but every multiprocessor keeps 16 to take
// in turn; of the widest rows it holds one block, which stays for all of its rows.
template <typename C>
static int64_t rows_per_group(int64_t n_blocks, int n_multiprocessors)
{
    if (!C::kMayLoop)
        return 1;
    if (C::kIsWide)
        return n_blocks < 8 * (int64_t)n_multiprocessors ? 1
                                                         : blocks_of(n_blocks, n_multiprocessors);
    int64_t enough = (int64_t)n_multiprocessors * 16;
    int64_t rows = (n_blocks + enough / 2) / enough;
    return rows < 1 ? 1 : rows > C::kMostRows ? C::kMostRows : rows;
}

// Do a and b, of so many bytes, share memory? NULL shares none.
static inline bool do_overlap(const void *a, int64_t a_bytes, const void *b, int64_t b_bytes)
{
    uintptr_t a_at = (uintptr_t)a, b_at = (uintptr_t)b;
    return a && b && a_at < b_at + (uintptr_t)b_bytes && b_at < a_at + (uintptr_t)a_bytes;
}

// Blocks of a row. A row by itself waits for what one multiprocessor reads and writes: four blocks
// (two of FP8) read all of it, find the same sum, and write a part each. Eight rows gained nothing
// by it, fewer than that were not tried. Not where an output takes the place of an input that
// others still have to read.
template <typename K>
static int parts_of_row(const struct norm_args *args, int threads)
{
    int64_t bytes = args->hidden * (int64_t)sizeof(typename K::T);
    int64_t y_bytes = K::kSink == kToFloats ? bytes : args->hidden;
    int most = K::kSink == kToFloats ? 4 : 2;
    if (args->n_rows > 1)
        return 1;
    for (const void *input : {args->x, args->residual, args->addend})
        if (do_overlap(args->y, y_bytes, input, bytes) ||
            do_overlap(args->residual_out, bytes, input, bytes))
            return 1;
    return threads / 32 < most ? threads / 32 : most; // whole warps
}

// Rounding before the result is rare, and would be a copy of all that follows the sum: kernels of
// its own, which the other calls have no instructions of.
template <typename K, typename C>
static kernel_fn<norm_args> *norm_kernel_of(const struct norm_args *args)
{
    constexpr bool kMayRound = sizeof(typename K::T) == 2;
    return args->rounds_product ? norm_kernel<K, C, kMayRound> : norm_kernel<K, C, false>;
}

// What a call reads and writes.
template <typename K>
static int64_t moved_bytes(const struct norm_args *args)
{
    constexpr int64_t kBytes = sizeof(typename K::T);
    constexpr int64_t kOfElement = (K::kHasTerms ? 4
                                    : K::kAdds   ? 3
                                                 : 1) *
                                       kBytes +
                                   (K::kSink == kToFloats ? kBytes : 1);
    return args->n_rows * args->hidden * kOfElement;
}

// The same, with lines that stay in L2 where a call passes it, and becomes floats by one rounding.
template <typename K, typename C>
static kernel_fn<norm_args> *large_kernel_of(const struct norm_args *args,
                                             const struct roped_queue *queue)
{
    if constexpr (K::kSink == kToFloats)
        if (passes_l2(moved_bytes<K>(args), queue) && !args->rounds_product)
            return norm_kernel<K, keeping<C>, false>;
    return norm_kernel_of<K, C>(args);
}

// Many wide rows of one input: a thread has eight vectors, those of two or four threads that the
// sum is of, and weights behind the sum. So few threads, with so many registers, that two or three
// rows are at work on a multiprocessor: one comes while another is summed, and a third is written.
template <typename K, int kRowShares, int kMostThreads, int kBlocks>
struct eights_config
    : norm_config<K, 1024 / kRowShares, 8, kWeightInKind, false, kRowShares, false, true> {
    static constexpr bool kStartsWeight = false;
    static constexpr int kBound = kMostThreads, kMinBlocks = kBlocks;
    static constexpr int kRegisters = (64 << 10) / (kMostThreads * kBlocks) / 8 * 8;
};

// launch(config, threads) of such rows. Codes of narrower ones have kernels of their own.
template <typename K, typename F>
static auto with_eights(int64_t vectors, const F &launch)
{
    const int threads = threads_of_eights(vectors);
    if constexpr (K::kSink == kToFloats)
        if (vectors <= kMostVectors / 2)
            return launch(eights_config<K, 4, 256, 3>{}, threads);
    if (threads <= 448)
        return launch(eights_config<K, 2, 448, 2>{}, threads);
    return launch(eights_config<K, 2, 512, 2>{}, threads);
}

// Are rows so many that this pays, or do all of them find room at once? Between that the last ones
// would come alone.
template <typename K>
static bool takes_eights(const struct norm_args *args, bool is_aligned,
                         const struct roped_queue *queue)
{
    const int64_t vectors = vectors_of<K>(args);
    constexpr int kRoomOfFew = K::kSink == kToFloats ? 1 : 2;
    if (K::kAdds || !is_aligned || !is_packed(args) || args->weight_kind > kWeightSame ||
        !has_many_rows(args, queue, kRoomOfFew) || !threads_of_eights(vectors) ||
        (K::kSink != kToFloats && (args->rounds_product || vectors <= kMostVectors / 2)))
        return false;
    return with_eights<K>(vectors, [&](auto config, int threads) {
        const int64_t at_once = (64 << 10) / (config.kRegisters * threads);
        const int64_t enough = config.kShares == 4 ? 48 : 15;
        return args->n_rows <= at_once * queue->n_multiprocessors ||
               args->n_rows >= enough * queue->n_multiprocessors;
    });
}

template <typename K>
static enum roped_status launch_eights(struct norm_args *args, struct roped_queue *queue,
                                       struct roped_error *err)
{
    args->n_vectors = (int32_t)vectors_of<K>(args);
    return with_eights<K>(args->n_vectors, [&](auto config, int threads) {
        using C = decltype(config);
        kernel_fn<norm_args> *kernel = norm_kernel<K, C, false>; // takes_eights: codes round once
        if constexpr (K::kSink == kToFloats)
            kernel = large_kernel_of<K, C>(args, queue);
        return start(queue, kernel, dim3((unsigned)threads), args->n_rows, dim3(), *args, err);
    });
}

// One row for each group, and of a single one several blocks.
template <typename K, typename C>
static enum roped_status launch_single(const struct norm_args *args, struct roped_queue *queue,
                                       struct roped_error *err)
{
    const dim3 block = block_of<C>(args);
    int parts = C::kMayPart ? parts_of_row<K>(args, (int)block.x) : 1;
    return start(queue, norm_kernel_of<K, C>(args), block, blocks_of(args->n_rows, C::kGroups),
                 dim3(1, parts), *args, err);
}

// A row for each block, with lines that stay in L2.
template <typename K, typename C>
static enum roped_status launch_kept(const struct norm_args *args, struct roped_queue *queue,
                                     struct roped_error *err)
{
    return start(queue, norm_kernel<K, C, false>, block_of<C>(args), args->n_rows, dim3(), *args,
                 err);
}

// Are rows so many that half of the threads of a small block should take each, with twice the
// vectors? Then twice as many find room on a multiprocessor, whose barriers hide each other, and
// what a row costs beside its elements is shared out. Of one input that pays from two rows of more
// than 256 vectors on; a sum whose vectors all threads have gains nothing. Codes of so many rows
// that blocks take them in turn are faster so.
template <typename K, int kThreads>
static bool has_halves(const struct norm_args *args, int64_t turns, const struct roped_queue *queue)
{
    constexpr bool kIsFloat = sizeof(typename K::T) == 4;
    const int64_t each = args->n_rows / queue->n_multiprocessors;
    if (K::kSink != kToFloats)
        return kThreads == 256 && each >= 2 && turns == 1;
    if (kThreads == 128)
        return each >= (K::kAdds || kIsFloat ? 16 : 2);
    return K::kAdds ? each >= 16 && 8 * args->n_vectors <= 7 * 2 * kThreads : args->n_rows > 1;
}

// A row for each block.
template <typename K, typename C>
static enum roped_status launch_halves(const struct norm_args *args, struct roped_queue *queue,
                                       struct roped_error *err)
{
    return start(queue, large_kernel_of<K, C>(args, queue), block_of<C>(args), args->n_rows, dim3(),
                 *args, err);
}

// C, with weights behind the sum, and registers for so many rows on a multiprocessor.
template <typename C, int kRows>
struct weights_behind : C {
    static constexpr bool kStartsWeight = false;
    static constexpr int kMinBlocks = kRows;
};

// Of many rows: half of the threads, with twice the vectors, where all of them would be a
// multiprocessor's only block.
template <typename Few, typename Half>
using gathered = std::conditional_t<Few::kThreads == 1024 && Few::kVectors == 2, Half, Few>;

// Vectors of rows that halves of 1,024 threads have, of which four or three blocks find room on a
// multiprocessor, with 56 registers.
constexpr int kMostOfFour = 1152, kMostOfThree = 1536;

// Many rows whose scales are their own are bound by instructions: half of the threads, with twice
// the vectors, share out what a row costs beside its elements. They also keep up with memory where
// sums that pass L2 are divided by a given scale, and where many rows of one input have more than
// 512 vectors: three blocks of them or more find room on a multiprocessor. Rows of more than 1,024
// vectors into codes are taken in turn where that keeps more of them on their way than a row for
// each block does: of one input, but for those of which four find room, and of sums that fit L2,
// but for wide ones and for scales that are a row's own.
template <typename K, int kThreads, int kVectors, weight_class kClass,
          bool kAny = (kThreads >= 512)>
static enum roped_status launch_config(struct norm_args *args, struct roped_queue *queue,
                                       struct roped_error *err)
{
    constexpr bool kHalves = kThreads == 256 && K::kSink >= kToFp8PerRow;
    constexpr bool kHalvesLarge = kThreads == 256 && K::kAdds && K::kSink == kToFp8;
    constexpr bool kHalvesMany = kThreads == 512 && !K::kAdds;
    constexpr bool kIsSmall = (kThreads == 128 || kThreads == 256) && kVectors == 2;
    constexpr bool kIsWideCodes = kThreads == 1024 && kVectors == 2 && K::kSink != kToFloats;
    constexpr bool kIsSumIntoCodes = kThreads == 512 && K::kAdds && K::kSink != kToFloats;
    constexpr bool kIsSum = kThreads == 256 && K::kAdds && K::kSink == kToFloats;
    constexpr bool kMayHalve = kIsSmall &&
                               !(K::kAdds && kThreads == 256 && sizeof(typename K::T) == 4) &&
                               !(K::kSink != kToFloats && (kThreads == 128 || kHalvesLarge));
    using all = norm_config<K, kThreads, kVectors, kClass, false, 1, false, kAny>;
    using half_of = norm_config<K, kThreads / 2, kVectors * 2, kClass, false, 2, false, kAny>;
    using one = std::conditional_t<kHalvesMany, half_of, gathered<all, half_of>>;
    // a largest value is exchanged once more
    constexpr bool kHasFew =
        !std::is_same_v<all, one> && (kThreads == 512 || K::kSink != kToFp8PerRow);
    constexpr bool kTakesTurns =
        one::kMayLoop && !(kIsWideCodes && K::kAdds && K::kSink == kToFp8PerRow);
    using whole = norm_config<K, one::kThreads, one::kVectors, kClass, kTakesTurns, one::kShares,
                              false, kAny>;
    using halved = norm_config<K, kThreads / 2, kVectors * 2, kClass, true, 2>;
    using many = std::conditional_t<kHalves, halved, whole>;
    using large = std::conditional_t<kHalvesLarge, halved, many>;
    constexpr int kRoomOfFew = kThreads == 1024 && K::kSink == kToFloats ? 1 : 2;
    args->n_vectors = (int32_t)(args->hidden / K::kVec);
    if constexpr (kHasFew)
        if (!has_many_rows(args, queue, kRoomOfFew))
            return launch_single<K, all>(args, queue, err);
    int64_t n_blocks = blocks_of(args->n_rows, one::kGroups);
    int64_t rows = rows_per_group<one>(n_blocks, queue->n_multiprocessors);
    const bool keeps = passes_l2(moved_bytes<K>(args), queue) && !args->rounds_product;
    if constexpr (kIsWideCodes && !K::kAdds)
        if (K::kSink != kToFp8PerGroup && args->n_vectors <= kMostOfFour)
            return launch_single<K, one>(args, queue, err);
    if constexpr (kIsWideCodes && K::kAdds) {
        if (keeps)
            return launch_kept<K, keeping<one>>(args, queue, err);
        if (K::kSink == kToFp8PerRow || args->n_vectors > kMostOfThree)
            return launch_single<K, one>(args, queue, err);
    }
    if constexpr (kIsSumIntoCodes)
        if (keeps && (K::kSink != kToFp8 || 8 * args->n_vectors <= 7 * 2 * kThreads))
            return launch_kept<K, keeping<weights_behind<half_of, 3>>>(args, queue, err);
    if constexpr (kMayHalve)
        if (has_halves<K, kThreads>(args, rows, queue))
            return launch_halves<K, half_of>(args, queue, err);
    // of small blocks only sums come here in so many rows; norms of one input into FP8 write too
    // little to gain by what they keep
    constexpr bool kMayKeep = K::kSink == kToFloats ? !kIsSmall || kIsSum
                                                    : K::kAdds && !kIsWideCodes &&
                                                          !(kIsSumIntoCodes && K::kSink != kToFp8);
    if constexpr (kMayKeep)
        if (keeps) {
            const int64_t turns = kHalvesLarge ? 1 : rows; // one was measured to be faster
            return start(queue, norm_kernel<K, keeping<large>, false>, block_of<large>(args),
                         blocks_of(n_blocks, turns), dim3(), *args, err);
        }
    const bool has_int8 = args->rounds_product ? kHasInt8<K, many, true> : kHasInt8<K, many, false>;
    if (rows > 1 && (has_int8 || !(args->codes & kCodesAreInt8)))
        return start(queue, norm_kernel_of<K, many>(args), block_of<many>(args),
                     blocks_of(n_blocks, rows), dim3(), *args, err);
    return launch_single<K, one>(args, queue, err);
}

// Rows that are slices of wider ones, as the latents of MLA are. One row per group.
template <typename K, int kThreads, int kVectors>
static enum roped_status launch_strided(struct norm_args *args, struct roped_queue *queue,
                                        struct roped_error *err)
{
    using C = norm_config<K, kThreads, kVectors, kWeightInKind, false, 1, true>;
    args->n_vectors = (int32_t)(args->hidden / K::kVec);
    return start(queue, norm_kernel<K, C, false>, block_of<C>(args),
                 blocks_of(args->n_rows, C::kGroups), dim3(1, 1), *args, err);
}

// Weights of another type than x have kernels of their own for the plain norm; elsewhere they take
// the kernel that knows every type, whose rows wait in shared memory. So do sums of rows with
// strides.
template <typename K, int kThreads, int kVectors>
static enum roped_status launch_held_rows(struct norm_args *args, bool is_aligned,
                                          struct roped_queue *queue, struct roped_error *err)
{
    const bool is_in_kind = args->weight_kind <= kWeightSame;
    const bool is_plain = is_aligned && is_packed(args);
    // of one input by 512 threads, or 1,024: their number in a register costs 8 % of the time
    constexpr bool kMayBeFull =
        kThreads >= 512 && kVectors == 2 && K::kSink == kToFloats && !K::kAdds;
    if constexpr (kMayBeFull)
        if (is_plain && is_in_kind &&
            threads_of_row<kThreads, kVectors>(vectors_of<K>(args)) == kThreads)
            return launch_config<K, kThreads, kVectors, kWeightInKind, false>(args, queue, err);
    if (is_plain && is_in_kind)
        return launch_config<K, kThreads, kVectors, kWeightInKind>(args, queue, err);
    if constexpr (K::kSink == kToFloats && !K::kAdds)
        if (is_plain)
            return launch_config<K, kThreads, kVectors, kWeightOther>(args, queue, err);
    if constexpr (!K::kAdds)
        if (is_aligned && !is_packed(args) && is_in_kind && !args->rounds_product)
            return launch_strided<K, kThreads, kVectors>(args, queue, err);
    return launch_staged<K>(args, is_aligned, staged_threads<K, kThreads, kVectors>(args), queue,
                            err);
}

// Threads of a row, and vectors of each.
template <int kRowThreads, int kRowVectors>
struct row_shape {
    static constexpr int kThreads = kRowThreads, kVectors = kRowVectors;
};

// launch(row_shape) for rows of so many vectors of 16 bytes, at most kMostVectors: two to four
// loads in flight per thread, and a block as small as that allows, for its barrier is what a single
// row waits for. 4,096 of bfloat16 are 512 vectors: 256 threads with two each.
template <typename F>
static enum roped_status with_row_shape(int64_t vectors, const F &launch)
{
    if (vectors <= 8)
        return launch(row_shape<4, 2>{});
    if (vectors <= 16)
        return launch(row_shape<8, 2>{});
    if (vectors <= 32)
        return launch(row_shape<16, 2>{});
    if (vectors <= 64)
        return launch(row_shape<32, 2>{});
    if (vectors <= 128)
        return launch(row_shape<32, 4>{});
    if (vectors <= 256)
        return launch(row_shape<128, 2>{});
    if (vectors <= 512)
        return launch(row_shape<256, 2>{});
    if (vectors <= 1024)
        return launch(row_shape<512, 2>{});
    if (vectors <= 2048)
        return launch(row_shape<1024, 2>{});
    return launch(row_shape<1024, 4>{});
}

// Threads of a row of any width that registers do not hold.
template <typename K>
static int staged_threads(const struct norm_args *args)
{
    int threads = wide_threads(vectors_of<K>(args));
    if (vectors_of<K>(args) <= kMostVectors)
        with_row_shape(vectors_of<K>(args), [&](auto shape) {
            threads = staged_threads<K, shape.kThreads, shape.kVectors>(args);
            return ROPED_OK;
        });
    return threads;
}

// Do rows that 16 bytes do not divide, with one scale each, become codes in quarters, or wait in
// shared memory by packets (device/packet_row.cuh)?
template <typename K>
static bool has_codes_apart(const struct norm_args *args, bool is_aligned, bool finds,
                            const struct roped_queue *queue)
{
    const int threads = staged_threads<K>(args);
    return !is_aligned && (parts_of_codes<K>(args, threads, queue) > 0 ||
                           bytes_of_packets<K>(args, threads, queue, finds) > 0);
}

// Sums of terms, of which registers hold what models have: rows of up to 2,048 vectors, and no
// codes. What is held takes registers, so a group takes one row.
template <typename K, int kThreads, int kVectors>
static enum roped_status launch_terms(struct norm_args *args, bool is_aligned,
                                      struct roped_queue *queue, struct roped_error *err)
{
    if constexpr (K::kSink == kToFloats && kThreads * kVectors <= 2048 && !K::kIsAny) {
        using few = norm_config<K, kThreads, kVectors, kWeightInKind, false>;
        using many =
            gathered<few, norm_config<K, kThreads / 2, kVectors * 2, kWeightInKind, false, 2>>;
        args->n_vectors = (int32_t)(args->hidden / K::kVec);
        if (is_aligned && args->weight_kind <= kWeightSame && is_packed(args)) {
            if (passes_l2(moved_bytes<K>(args), queue))
                return launch_single<K, keeping<many>>(args, queue, err);
            if (has_many_rows(args, queue))
                return launch_single<K, many>(args, queue, err);
            return launch_single<K, few>(args, queue, err);
        }
    }
    return launch_staged<K>(args, is_aligned, staged_threads<K, kThreads, kVectors>(args), queue,
                            err);
}

template <typename K, int kThreads, int kVectors>
static enum roped_status launch_rows(struct norm_args *args, bool is_aligned,
                                     struct roped_queue *queue, struct roped_error *err)
{
    if constexpr (K::kHasTerms)
        return launch_terms<K, kThreads, kVectors>(args, is_aligned, queue, err);
    else
        return launch_held_rows<K, kThreads, kVectors>(args, is_aligned, queue, err);
}

template <typename K>
static enum roped_status launch_norm(struct norm_args *args, bool is_aligned,
                                     struct roped_queue *queue, struct roped_error *err)
{
    const int64_t vectors = vectors_of<K>(args);
    if constexpr (!K::kAdds)
        if (takes_eights<K>(args, is_aligned, queue))
            return launch_eights<K>(args, queue, err);
    if constexpr (K::kSink == kToFloats && !K::kAdds) {
        if (has_many_rows(args, queue, 1) && set_places_in_turn<K>(args, is_aligned, queue))
            return launch_in_turn<K>(norm_turns_kernel<K>, *args, args, queue, err);
    }
    if (vectors <= kMostVectors)
        return with_row_shape(vectors, [&](auto shape) {
            return launch_rows<K, shape.kThreads, shape.kVectors>(args, is_aligned, queue, err);
        });
    args->sums_in_double = vectors > kMostFloatVectors;
    return launch_staged<K>(args, is_aligned, wide_threads(vectors), queue, err);
}

// Is a sum more than x + residual?
static inline bool has_terms(const struct norm_args *args)
{
    return args->x_scale != 1 || args->addend;
}

// And more than what models have most often?
static inline bool is_any(const struct norm_args *args)
{
    return args->residual_scale != 1 || args->addend_scale != 1 || args->sum_scale != 1 ||
           args->residual_is_float;
}

// From x, or from a sum: rounded or not, kernels of their own, so that neither has the other's
// instructions. A sum of float is the one that is stored. FP8 of any more: norm_codes.cuh.
template <typename T, bool kAdds, norm_sink kTo>
static enum roped_status launch_source(struct norm_args *args, bool is_aligned, bool rounds_sum,
                                       struct roped_queue *queue, struct roped_error *err)
{
    if constexpr (kAdds && kTo == kToFloats)
        if (is_any(args))
            return launch_norm<norm_kind<T, kFromAny, kTo>>(args, is_aligned, queue, err);
    if constexpr (kAdds)
        if (has_terms(args))
            return launch_norm<norm_kind<T, kFromTerms, kTo>>(args, is_aligned, queue, err);
    if constexpr (kAdds && sizeof(T) == 2)
        if (rounds_sum)
            return launch_norm<norm_kind<T, kFromRoundedSum, kTo>>(args, is_aligned, queue, err);
    constexpr norm_source kFrom = kAdds ? kFromSum : kFromX;
    return launch_norm<norm_kind<T, kFrom, kTo>>(args, is_aligned, queue, err);
}

static inline int weight_kind_of(int weight, int x)
{
    if (weight == ROPED_NO_DTYPE)
        return kWeightNone;
    if (weight == x)
        return kWeightSame;
    if (weight == ROPED_F32)
        return kWeightFloat;
    return weight == ROPED_F16 ? kWeightHalf : kWeightBf16;
}

// Of a single row it does not matter.
static inline int64_t pitch_of(const struct rmsnorm_plan *plan, const struct roped_tensor *tensor)
{
    return plan->n_rows > 1 ? row_stride(tensor, plan->hidden) : plan->hidden;
}

// What every norm operator's arguments have; x's pointers and those of further results are left to
// the operator.
static inline struct norm_args norm_args_of(const struct rmsnorm_plan *plan,
                                            const struct roped_tensor *x,
                                            const struct roped_tensor *weight,
                                            const struct roped_tensor *y)
{
    struct norm_args args = {};
    args.x = x->data;
    args.x_end = whole_end(x->data, roped_tensor_span(x));
    args.weight = weight->data;
    args.y = y->data;
    args.n_rows = plan->n_rows;
    args.hidden = plan->hidden;
    args.x_pitch = args.residual_pitch = args.residual_out_pitch = pitch_of(plan, x);
    args.addend_pitch = args.x_pitch;
    args.x_scale = args.residual_scale = args.addend_scale = args.sum_scale = 1;
    args.heads = 1;
    args.y_pitch = pitch_of(plan, y);
    args.eps = plan->eps;
    args.weight_bias = plan->weight_bias;
    args.exact_inverse_hidden = 1.0 / (double)plan->hidden;
    args.inverse_hidden = (float)args.exact_inverse_hidden;
    args.weight_kind = weight_kind_of(plan->weight_dtype, x->dtype);
    args.rounds_product = plan->rounding != RMSNORM_ROUND_ONCE && x->dtype != ROPED_F32;
    return args;
}

// Rows of x are heads, so many of one of its tensor's, each with weights of its own.
static inline void set_heads(struct norm_args *args, int64_t heads, const struct roped_tensor *x,
                             const struct roped_tensor *y)
{
    const int64_t width = args->hidden * heads;
    const bool is_one = args->n_rows <= heads;
    args->heads = heads;
    args->x_pitch = is_one ? width : row_stride(x, width);
    args->y_pitch = is_one ? width : row_stride(y, width);
    args->residual_pitch = args->residual_out_pitch = args->addend_pitch = args->x_pitch;
}

// What is added to x, and where the sum goes.
static inline void set_residual(struct norm_args *args, const struct rmsnorm_plan *plan,
                                const struct roped_tensor *x, const struct roped_tensor *residual,
                                const struct roped_tensor *residual_out)
{
    args->residual = residual->data;
    args->residual_end = whole_end(residual->data, roped_tensor_span(residual));
    args->residual_pitch = pitch_of(plan, residual);
    args->residual_is_float = residual->dtype != x->dtype;
    args->residual_out = residual_out->data;
    args->residual_out_pitch = pitch_of(plan, residual_out);
}

// launch(plan, in, out) of a norm of sums: of its call, or of each head of all rows in turn, which
// the kernels of rows with strides take. Few models have such heads, and those have few.
template <typename F>
static enum roped_status for_each_head(const struct roped_call *call, const F &launch)
{
    const auto *of = reinterpret_cast<const struct heads_norm_plan *>(call->plan);
    if (of->heads == 1)
        return launch(&of->norm, call->in, call->out);
    struct rmsnorm_plan plan = of->norm;
    plan.n_rows /= of->heads;
    enum roped_status status = ROPED_OK;
    for (int64_t head = 0; head < of->heads && !status; head++) {
        struct roped_tensor in[ROPED_MAX_INPUTS], out[ROPED_MAX_OUTPUTS];
        for (int i = 0; i < call->n_in; i++)
            in[i] = norm_head_of(&call->in[i], head, of->heads);
        for (int i = 0; i < call->n_out; i++)
            out[i] = norm_head_of(&call->out[i], head, of->heads);
        status = launch(&plan, in, out);
    }
    return status;
}

// What makes a sum more than that; addend may be absent.
static inline void set_terms(struct norm_args *args, const struct rmsnorm_plan *plan,
                             const struct roped_tensor *addend)
{
    args->x_scale = plan->x_scale;
    args->residual_scale = plan->residual_scale;
    args->addend_scale = plan->addend_scale;
    args->sum_scale = plan->sum_scale;
    args->rounds_sum = plan->rounds_sum;
    args->residual_first = plan->sum_order == RMSNORM_RESIDUAL_FIRST;
    if (!roped_tensor_given(addend))
        return;
    args->addend = addend->data;
    args->addend_end = whole_end(addend->data, roped_tensor_span(addend));
    args->addend_pitch = pitch_of(plan, addend);
}

// What a centred norm adds in the end. It says of which type weights are where there are none.
static inline void set_bias(struct norm_args *args, const struct roped_tensor *x,
                            const struct roped_tensor *bias)
{
    args->bias = bias->data;
    if (!args->weight)
        args->weight_kind = weight_kind_of(bias->dtype, x->dtype);
}

// Can rows be moved in vectors of 16 bytes? y_bytes is what such a vector becomes in y. Pointers
// that an operator does not have are NULL, and aligned.
template <typename T>
static bool has_vectors(const struct norm_args *args, uintptr_t y_bytes)
{
    return are_vectors<T>({args->hidden, args->x_pitch, args->y_pitch, args->residual_pitch,
                           args->residual_out_pitch, args->addend_pitch}) &&
           are_aligned({args->x, args->weight, args->bias, args->residual, args->residual_out,
                        args->addend}) &&
           is_aligned(args->y, y_bytes);
}
