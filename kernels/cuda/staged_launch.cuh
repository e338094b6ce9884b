// staged_launch.cuh - launch shapes of norms whose rows wait in shared memory: one by one, a few as
// clusters (device/norm_staged.cuh), or many in turn (device/norm_turns.cuh). Host code.
#pragma once

#include "cuda/device/norm_turns.cuh"
#include "cuda/device/norm_words.cuh"
#include "cuda/narrow_launch.cuh"

#include <algorithm>

constexpr int kNormThreads = 256;       // per block where groups are smaller
constexpr int kMostHelpedThreads = 640; // of a block of a cluster, those that only write with them

// Bytes of shared memory that a block has beside rows, whichever of the kernels below it is of:
// tests/calls/test_launches.c looks whether it is enough.
constexpr int64_t kBesideRows = 2304;

// Of a row, the last one not always whole.
template <typename K>
static int64_t vectors_of(const struct norm_args *args)
{
    return (args->hidden + K::kVec - 1) / K::kVec;
}

// Threads of a row of so many vectors: of more than 512 it has a block of whole warps to itself, of
// which up to half would idle where the width is no power of two: an even number of warps, so that
// half of them may do the work of all.
template <int kThreads, int kVectors>
static int threads_of_row(int64_t vectors)
{
    return kThreads < 512 ? kThreads : (int)blocks_of(vectors, 64 * kVectors) * 64;
}

constexpr int64_t kMostVectors = 4096;                  // of a row that registers hold
constexpr int64_t kMostFloatVectors = 4 * kMostVectors; // whose squares float32 adds up

// Threads of a row of more than 2,048 vectors, and of one that registers do not hold: two blocks of
// 640 find room on a multiprocessor, as two rows of up to 112 KiB do in its shared memory.
static inline int wide_threads(int64_t vectors)
{
    if (vectors <= kMostVectors)
        return threads_of_row<1024, 4>(vectors);
    return vectors <= 7168 ? 640 : 1024;
}

// Threads with eight vectors each of a row of more than 1,536 vectors, which have the shares of two
// or four, or 0 where there are no such threads.
static inline int threads_of_eights(int64_t vectors)
{
    if (vectors <= kMostVectors * 3 / 8 || vectors > kMostVectors)
        return 0;
    if (vectors > kMostVectors / 2)
        return threads_of_row<1024, 4>(vectors) / 2;
    const int shares = threads_of_row<1024, 2>(vectors);
    return shares % 128 == 0 ? shares / 4 : 0;
}

// More than a row or two for each multiprocessor: then threads and registers are to be shared out
// well, before that every thread has as little to do as there are threads for. room_of_few: rows of
// so many threads that a multiprocessor has room for; if that is one, a second waits for it to end.
static inline bool has_many_rows(const struct norm_args *args, const struct roped_queue *queue,
                                 int room_of_few = 2)
{
    return args->n_rows > room_of_few * (int64_t)queue->n_multiprocessors;
}

// Of a kernel whose rows registers do not hold: those of the one that holds such a row, where there
// is one. Where there is none, more threads have more loads in flight.
template <typename K, int kThreads, int kVectors>
static int staged_threads(const struct norm_args *args)
{
    if (args->hidden % K::kVec)
        return kThreads * kVectors > 2048 ? kThreads : kThreads < 512 ? kThreads : 512;
    return threads_of_row<kThreads, kVectors>(vectors_of<K>(args));
}

// A block whose rows have so many threads each: sum_in_group wants rows of more than a warp to have
// one to themselves.
static inline dim3 block_of_rows(int threads)
{
    return dim3(threads, threads > 32 ? 1 : kNormThreads / threads);
}

// Threads count a row's elements, or its vectors, in a register.
static inline enum roped_status check_width(const struct norm_args *args, int64_t most,
                                            struct roped_error *err)
{
    if (args->hidden <= most)
        return ROPED_OK;
    return roped_fail(err, ROPED_TOO_LARGE,
                      "tensor 'x': rows of %lld elements, expected at most %lld on this device",
                      (long long)args->hidden, (long long)most);
}

// Rows that registers do not hold, so many of them in a block: what it has of shared memory, in
// bytes, or none where they are read again.
template <typename K>
static enum roped_status stage_rows(struct norm_args *args, int rows,
                                    const struct roped_queue *queue, int64_t *bytes,
                                    struct roped_error *err)
{
    const int64_t needed = 16 * kStagedPackets<K> * vectors_of<K>(args) * rows;
    enum roped_status status = check_width(args, (int64_t)(INT_MAX / 2) * K::kVec, err);
    if (status)
        return status;
    args->is_staged = needed + kBesideRows <= queue->shared_bytes;
    args->by_elements = is_small<typename K::T>(args->n_rows * args->hidden, queue);
    *bytes = args->is_staged ? needed : 0;
    return ROPED_OK;
}

// Blocks of a row of so many threads, a cluster, as long as all multiprocessors are not busy: of
// four warps or more each.
static inline int staged_parts(const struct norm_args *args, int threads,
                               const struct roped_queue *queue)
{
    int parts = 1;
    while (queue->can_overlap && parts < 8 && threads % (2 * parts * 32) == 0 &&
           threads / (2 * parts) >= 128 && 2 * parts * args->n_rows <= queue->n_multiprocessors)
        parts *= 2;
    return parts;
}

// Of one of so many blocks whose threads have a quarter of a share each: whole warps of shares, or
// of threads where that is all.
static inline int quarter_threads(int n_shares, int parts)
{
    if (n_shares < 32)
        return (int)blocks_of(4 * n_shares, 32) * 32;
    return (int)blocks_of(n_shares, 32 * parts) * 128;
}

// Blocks of a row whose vectors four threads have each (device/norm_quarters.cuh), as many as it
// takes for two warps of each scheduler, where a multiprocessor has at most so many of the threads;
// else 0.
template <typename K>
static int quarter_parts(const struct norm_args *args, int n_shares, int64_t most_threads,
                         const struct roped_queue *queue, int most_vectors = kQuarterVectors)
{
    const int64_t threads = quarter_threads(n_shares, 1) * args->n_rows;
    int parts = 1;
    if (vectors_of<K>(args) > most_vectors * (int64_t)n_shares ||
        threads > most_threads * queue->n_multiprocessors)
        return 0;
    while (queue->can_overlap && parts < 8 && quarter_threads(n_shares, parts) > 256 &&
           (quarter_threads(n_shares, parts) > kQuarterThreads ||
            2 * parts * args->n_rows <= queue->n_multiprocessors))
        parts *= 2;
    return quarter_threads(n_shares, parts) <= kQuarterThreads ? parts : 0;
}

// Has a share of the sum more vectors than a share of a row that registers hold?
template <typename K>
static bool has_wide_shares(const struct norm_args *args, int n_shares)
{
    return sizeof(typename K::T) == 4 && vectors_of<K>(args) > kQuarterVectors * (int64_t)n_shares;
}

// The same of norms without a mean. Kernels of float32 have half of the registers, and so has that
// of one bfloat16 input. Wide rows, where they are few.
template <typename K>
static int staged_quarter_parts(const struct norm_args *args, int n_shares, bool is_of_warp,
                                const struct roped_queue *queue)
{
    constexpr bool kIsLight = !K::kAdds && std::is_same_v<typename K::T, __nv_bfloat16>;
    const int turns = kIsLight && !is_of_warp ? 2 : 1;
    const int64_t at_once = kQuarterThreads * (sizeof(typename K::T) == 4 ? 2 : 1);
    if (is_of_warp && !K::kAdds && args->n_rows > 16 * (int64_t)queue->n_multiprocessors)
        return 0; // the warp moves less then
    if (!has_wide_shares<K>(args, n_shares))
        return quarter_parts<K>(args, n_shares, turns * at_once, queue);
    if (staged_parts(args, n_shares, queue) <= 2)
        return 0;
    return quarter_parts<K>(args, n_shares, at_once, queue, kWideQuarterVectors);
}

// The same of rows that become codes with one scale each, in one turn: packets are faster than two.
template <typename K>
static int parts_of_codes(const struct norm_args *args, int n_shares,
                          const struct roped_queue *queue)
{
    const int64_t threads = quarter_threads(n_shares, 1) * args->n_rows;
    if (args->addend || has_wide_shares<K>(args, n_shares) ||
        threads > kQuarterThreads * (int64_t)queue->n_multiprocessors)
        return 0;
    return staged_quarter_parts<K>(args, n_shares, n_shares <= 32, queue);
}

// args: norm's, or norm is a part of them.
template <typename Args>
static enum roped_status launch_quarters(kernel_fn<Args> *kernel, const Args &args,
                                         struct norm_args *norm, int n_shares, int parts,
                                         struct roped_queue *queue, struct roped_error *err)
{
    norm->n_vectors = n_shares;
    return start(queue, kernel, dim3((unsigned)quarter_threads(n_shares, parts)), norm->n_rows,
                 dim3(1, parts), args, err, 0, parts > 1);
}

template <typename K, typename Args>
static enum roped_status launch_norm_quarters(const Args &args, struct norm_args *norm,
                                              int n_shares, int parts, struct roped_queue *queue,
                                              struct roped_error *err)
{
    kernel_fn<Args> *kernel = norm_quarters_kernel<K, Args>;
    if constexpr (sizeof(typename K::T) == 4)
        if (has_wide_shares<K>(norm, n_shares))
            kernel = norm_quarters_kernel<K, Args, kWideQuarterVectors>;
    return launch_quarters(kernel, args, norm, n_shares, parts, queue, err);
}

// Does a row begin equally far behind a multiple of 16 bytes in all tensors, or all but codes?
template <typename K>
static bool begin_alike(const struct norm_args *args)
{
    const bool is_alone = K::kSink != kToFloats;
    const auto is_alike = [&](const void *tensor, int64_t pitch) {
        return ((uintptr_t)tensor - (uintptr_t)args->x) % 16 == 0 &&
               are_vectors<typename K::T>({pitch - args->x_pitch});
    };
    return (is_alone || is_alike(args->y, args->y_pitch)) &&
           (!args->residual || is_alike(args->residual, args->residual_pitch)) &&
           (!args->residual_out || is_alike(args->residual_out, args->residual_out_pitch));
}

// Vectors of a row of one warp from which packets are faster where its scale is made of it: by 98
// vectors they take 1.14 of the time, by 126 0.82. With a given scale they gain nothing there.
constexpr int64_t kLeastFoundVectors = 112;

// Shared memory of a row that waits there as floats (device/packet_row.cuh), or 0 where it does
// not: rows of more than a warp, or wide ones of a warp whose scales are found, and no sums of more
// than two.
template <typename K>
static int64_t bytes_of_packets(const struct norm_args *args, int n_shares,
                                const struct roped_queue *queue, bool finds = false)
{
    const int64_t vectors = vectors_of<K>(args);
    const int64_t bytes = (vectors + 1) * K::kVec * (int64_t)sizeof(float);
    const bool is_narrow = n_shares <= 32 && !(finds && vectors >= kLeastFoundVectors);
    if (is_narrow || args->addend || !begin_alike<K>(args) ||
        bytes + kBesideRows > queue->shared_bytes)
        return 0;
    return bytes;
}

// As few packets for a thread, four at most, as all threads that multiprocessors hold at once
// allow, and two shares of the sum at most. Many rows have most_of_many threads at most, or 512 if
// they would have more than four packets each then, too.
template <typename K, typename Args>
static enum roped_status launch_packets(kernel_fn<Args> *kernel, const Args &args,
                                        struct norm_args *norm, int n_shares, int64_t bytes,
                                        struct roped_queue *queue, struct roped_error *err,
                                        int most_of_many = 512)
{
    const int64_t least = blocks_of(n_shares, 64) * 32, vectors = vectors_of<K>(norm);
    const int64_t places = (int64_t)kPacketThreads * queue->n_multiprocessors;
    int64_t threads, each = 1;
    for (;; each *= 2) {
        threads = std::max(least, blocks_of(vectors, 32 * each) * 32);
        if (each == 4 || (threads <= kPacketThreads && threads * norm->n_rows <= places))
            break;
    }
    if (norm->n_rows > queue->n_multiprocessors) {
        if (threads > most_of_many)
            threads = 512;
    } else {
        threads = std::min<int64_t>(threads, kPacketThreads);
        if (threads > 512) // of two shares there would be more warps than a sum has places
            threads = std::max<int64_t>(threads, n_shares);
    }
    norm->n_shares = n_shares;
    return start(queue, kernel, dim3((unsigned)threads), norm->n_rows, dim3(), args, err, bytes);
}

// Have multiprocessors no room for all rows, two vectors in each thread, in so many turns?
static inline bool has_turns(const struct norm_args *args, int64_t vectors, double turns,
                             const struct roped_queue *queue)
{
    return (double)(args->n_rows * vectors) > turns * 2048 * queue->n_multiprocessors;
}

// Elements of a word that begins every row and its weights, which are the same for all: two of 16
// bits, or one. 0: rows have fewer shares, or are too few to fill multiprocessors with a block
// each.
template <typename K>
static int word_of_rows(const struct norm_args *args, int n_shares, const struct roped_queue *queue,
                        int least_shares = 64)
{
    if (n_shares < least_shares || n_shares > 512 || args->addend ||
        args->weight_kind > kWeightSame || args->n_rows < 2 * (int64_t)queue->n_multiprocessors)
        return 0;
    const uintptr_t all = (uintptr_t)args->x | (uintptr_t)args->y | (uintptr_t)args->weight |
                          (uintptr_t)args->residual | (uintptr_t)args->residual_out |
                          (uintptr_t)args->bias;
    const int64_t pitches = args->hidden | args->x_pitch | args->y_pitch | args->residual_pitch |
                            args->residual_out_pitch;
    return sizeof(typename K::T) == 2 && all % 4 == 0 && pitches % 2 == 0 ? 2 : 1;
}

// Vectors of a row, at most, that words of one element move, for they are twice as many loads.
constexpr int64_t kMostOddVectors = 256;

// Does a kernel of norms without a mean have words of float32? Of one input they gain nothing.
template <typename K>
constexpr bool kHasWords = K::kAdds || sizeof(typename K::T) == 2;

// Words of a norm without a mean, or 0 where packets that wait in shared memory are faster: wide
// rows, but where they are few, and sums, which go to memory as well, from half that width on. Rows
// of one warp of two tensors of 16 bits have words of two elements, and of one where both tensors
// are needed for the sum and rows are many; else quarters of vectors are faster.
template <typename K, typename Args>
static int word_unit(const struct norm_args *args, int n_shares, const struct roped_queue *queue)
{
    constexpr bool kIsHalf = sizeof(typename K::T) == 2;
    constexpr bool kStoresSum = K::kAdds && std::is_same_v<Args, norm_args>;
    const int64_t vectors = vectors_of<K>(args);
    const int least = kIsHalf && K::kAdds ? 32 : 64;
    const int unit = kHasWords<K> ? word_of_rows<K>(args, n_shares, queue, least) : 0;
    if (n_shares == 32)
        return unit == 2 || (is_sum_of_both<K, Args> && has_many_rows(args, queue, 16)) ? unit : 0;
    if (!unit || vectors > 2 * n_shares)
        return 0;
    if (unit == 2 && !has_turns(args, vectors, 2, queue))
        return unit;
    const int64_t most = kIsHalf && (unit == 1 || kStoresSum) ? kMostOddVectors : 512;
    return vectors <= most && n_shares <= 256 ? unit : 0;
}

template <typename K, typename Args>
static enum roped_status launch_words(const Args &args, struct norm_args *norm, int n_shares,
                                      int unit, struct roped_queue *queue, struct roped_error *err)
{
    kernel_fn<Args> *kernel = norm_words_kernel<K, Args, 1>;
    if constexpr (sizeof(typename K::T) == 2)
        if (unit == 2)
            kernel = norm_words_kernel<K, Args, 2>;
    int shares = 2; // of a thread
    if constexpr (sizeof(typename K::T) == 2 && K::kAdds)
        if (vectors_of<K>(norm) > 2 * n_shares) { // those of a warp
            shares = 1;
            kernel = norm_words_kernel<K, Args, 2, 1>;
            if constexpr (is_sum_of_both<K, Args>)
                if (unit == 1)
                    kernel = norm_words_kernel<K, Args, 1, 1>;
        }
    norm->n_shares = n_shares;
    return start(queue, kernel, dim3((unsigned)(n_shares * 4 / unit / shares)), norm->n_rows,
                 dim3(), args, err);
}

// Does a block take each of many rows of one input by elements (device/norm_narrow_lanes.cuh)? They
// are wider than those that a warp takes, and where words of two elements move them, those are
// faster.
template <typename K>
static bool has_lanes_of_blocks(const struct norm_args *args, int n_shares,
                                const struct roped_queue *queue)
{
    return !K::kAdds && n_shares <= 256 && has_rows_beside<K>(args, 2 * n_shares) &&
           word_of_rows<K>(args, n_shares, queue) == 1;
}

template <typename K>
static enum roped_status launch_staged(struct norm_args *args, bool is_aligned, int threads,
                                       struct roped_queue *queue, struct roped_error *err)
{
    if constexpr (K::kSink == kToFloats && !K::kHasTerms) {
        const bool is_narrow = !is_aligned && has_narrow_rows<K, false>(args);
        const bool is_of_warp = is_narrow && threads <= 32;
        const int parts = is_aligned && !has_wide_shares<K>(args, threads)
                              ? 0
                              : staged_quarter_parts<K>(args, threads, is_of_warp, queue);
        if (parts)
            return launch_norm_quarters<K>(*args, args, threads, parts, queue, err);
        if (is_narrow)
            return launch_narrow<K, false>(*args, queue, err);
        if constexpr (!K::kAdds)
            if (!is_aligned && has_lanes_of_blocks<K>(args, threads, queue))
                return launch_lanes_of_blocks<K, false>(*args, threads, queue, err);
        if constexpr (kHasWords<K>)
            if (const int unit = is_aligned ? 0 : word_unit<K, norm_args>(args, threads, queue))
                return launch_words<K>(*args, args, threads, unit, queue, err);
        if (K::kAdds && !is_aligned && threads == 32)
            return launch_norm_quarters<K>(*args, args, threads, 1, queue, err);
        if (const int64_t bytes = is_aligned ? 0 : bytes_of_packets<K>(args, threads, queue))
            return launch_packets<K>(norm_packets_kernel<K, norm_args>, *args, args, threads, bytes,
                                     queue, err, kMostPacketThreads<K::kAdds>);
    }
    const int parts = staged_parts(args, threads, queue);
    int of_block = threads / parts;
    args->n_shares = threads;
    if (kMayHelp<K, true> && is_aligned && parts > 1) {
        const int turns = (int)blocks_of(vectors_of<K>(args), threads);
        of_block *= std::min(turns, kMostHelpedThreads / of_block);
    }
    const dim3 block = block_of_rows(of_block);
    int64_t bytes;
    enum roped_status status = stage_rows<K>(args, block.y, queue, &bytes, err);
    if (status)
        return status;
    kernel_fn<norm_args> *kernel =
        is_aligned ? norm_staged_kernel<K, true> : norm_staged_kernel<K, false>;
    return start(queue, kernel, block, blocks_of(args->n_rows, block.y), dim3(1, parts), *args, err,
                 bytes, parts > 1);
}

// Places of a thread for vectors of rows in turn (device/norm_turns.cuh), which args then say: one
// less than two rows need, or as many as there is room for, beside gains where that leaves more
// than one row needs. 0 where rows are narrow, or have no room.
template <typename K>
static int set_places_in_turn(struct norm_args *args, bool is_aligned,
                              const struct roped_queue *queue)
{
    constexpr int64_t kTensors = K::kAdds ? 2 : 1;
    const int64_t vectors = vectors_of<K>(args), threads = wide_threads(vectors);
    const int64_t of_row = blocks_of(vectors, threads);
    const int64_t all = (queue->shared_bytes - kOwnShared) / (16 * threads);
    int64_t room = (all - of_row) / kTensors;
    args->is_staged = room > of_row;
    if (K::kAdds && !args->is_staged)
        room = all / kTensors;
    const int64_t most = args->n_rows > queue->n_multiprocessors ? 2 * of_row - 1 : of_row;
    args->n_places = 0;
    if (is_aligned && args->weight_kind <= kWeightSame && !args->addend &&
        (!K::kAdds || args->residual_pitch == args->x_pitch) && vectors > kMostVectors / 2 &&
        room > (K::kAdds ? of_row - 1 : of_row))
        args->n_places = (int)std::min(room, most);
    return args->n_places;
}

// Are there so few wide rows that a cluster of four blocks or more has each? It loads them at once,
// which takes less time than turns do, whose blocks hold a row each. Those of eight are still
// faster where another kind of codes than FP8 has scales of rows.
constexpr int kFastParts = 4, kFastPartsOfCodes = 8;

template <typename K>
static bool has_few_wide_rows(const struct norm_args *args, int fast_parts,
                              const struct roped_queue *queue)
{
    const int threads = wide_threads(vectors_of<K>(args));
    return staged_parts(args, threads, queue) >= fast_parts;
}

// Do aligned rows of one input become FP8 in turns, as they become other codes? Those that
// registers hold, too, where they are many.
template <typename K>
static bool takes_turns(struct norm_args *args, bool is_aligned, const struct roped_queue *queue)
{
    const bool is_wide = vectors_of<K>(args) > kMostVectors;
    return (is_wide ? !has_few_wide_rows<K>(args, kFastParts, queue)
                    : has_many_rows(args, queue)) &&
           set_places_in_turn<K>(args, is_aligned, queue) > 0;
}

// A block for each multiprocessor, or for each row.
template <typename K, typename Args>
static enum roped_status launch_in_turn(kernel_fn<Args> *kernel, const Args &args,
                                        struct norm_args *norm, struct roped_queue *queue,
                                        struct roped_error *err)
{
    const int64_t threads = wide_threads(vectors_of<K>(norm));
    const int64_t places = norm->n_places * (K::kAdds ? 2 : 1) +
                           (norm->is_staged ? blocks_of(vectors_of<K>(norm), threads) : 0);
    norm->n_vectors = (int32_t)vectors_of<K>(norm);
    return start(queue, kernel, dim3((unsigned)threads),
                 std::min<int64_t>(norm->n_rows, queue->n_multiprocessors), dim3(), args, err,
                 16 * threads * places);
}
