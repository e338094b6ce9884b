// centred_launch.cuh - launch shapes of the centred norm (device/norm_centred.cuh): how many
// threads take a row, with how many vectors each. Host code.
#pragma once

#include "cuda/device/norm_centred.cuh"
#include "cuda/norm_launch.cuh"

static inline bool takes_place_of(const struct roped_tensor *out, const struct roped_tensor *in)
{
    return do_overlap(out->data, roped_tensor_span(out), in->data, roped_tensor_span(in));
}

// Threads of a row, a power of two or whole warps, half of which may do the work of all, and rows
// of a block: where they are narrow, so many that there is a block for each multiprocessor.
template <typename K, typename C>
static enum roped_status launch_centred_rows(kernel_fn<norm_args> *kernel,
                                             const struct norm_args &args, int64_t vectors,
                                             struct roped_queue *queue, struct roped_error *err)
{
    constexpr int kVectors = C::kVectors / C::kShares;
    int64_t wanted = (vectors + kVectors - 1) / kVectors;
    int64_t threads = (wanted + 31) / 32 * 32, rows = 1;
    if (!C::kIsBlock) {
        for (threads = 4; threads < wanted;)
            threads *= 2;
        int64_t enough = args.n_rows / (2 * queue->n_multiprocessors);
        for (rows = 32 / threads; rows < enough && rows * threads < 256;)
            rows *= 2;
    }
    struct norm_args shared = args;
    shared.n_shares = (int32_t)threads;
    if (C::kShares == 2)
        threads = (threads / 32 + 1) / 2 * 32;
    return start(queue, kernel, dim3((unsigned)threads, (unsigned)rows),
                 blocks_of(args.n_rows, rows), dim3(), shared, err);
}

// Many rows of one input are bound by instructions: half of the threads have the shares of all, and
// the same bits. Where multiprocessors have room for all in four turns it gains nothing, and a
// sum's registers have no room for it.
template <typename K, int kVectors, bool kIsNarrow>
static enum roped_status launch_centred_held(const struct norm_args &args, int64_t vectors,
                                             struct roped_queue *queue, struct roped_error *err)
{
    using plain = centred_config<K, kVectors, kIsNarrow, true>;
    constexpr bool kHalves = kVectors == 2 && !kIsNarrow && !K::kAdds && !K::kHasHeads;
    constexpr int kShares = kHalves ? 2 : 1;
    using half = centred_config<K, kVectors * kShares, kIsNarrow, true, false, kShares>;
    using kept = centred_config<K, kVectors * kShares, kIsNarrow, true, true, kShares>;
    using any = centred_config<K, kVectors, kIsNarrow, false>;
    // the policy of what stays in L2 would spill what wide rows of one input hold
    constexpr bool kMayKeep = K::kAdds || kVectors < 4 || sizeof(typename K::T) == 4;
    bool is_plain = has_vectors<typename K::T>(&args, 16) && args.weight_kind <= (int)kWeightSame;
    kernel_fn<norm_args> *of_any;
    if constexpr (K::kHasTerms || K::kHasHeads)
        of_any = centred_terms_kernel<K, any::kIsBlock>;
    else
        of_any = centred_kernel<K, any>;
    if (!is_plain)
        return launch_centred_rows<K, any>(of_any, args, vectors, queue, err);
    if constexpr (kMayKeep)
        if (passes_l2(moved_bytes<K>(&args), queue))
            return launch_centred_rows<K, kept>(centred_kernel<K, kept>, args, vectors, queue, err);
    if (kHalves && args.n_rows * vectors > 8 * 1024 * (int64_t)queue->n_multiprocessors)
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

// Two vectors for each thread; three where they make one warp of two that would idle, and more
// where a block of many warps would have a multiprocessor to itself.
template <typename K>
static enum roped_status launch_kind(const struct norm_args &args, struct roped_queue *queue,
                                     struct roped_error *err)
{
    int64_t vectors = (args.hidden + K::kVec - 1) / K::kVec;
    if constexpr (!K::kHasTerms) {
        using T = typename K::T;
        // of which none comes in turn, so that weights cost each of them
        const bool is_few = !K::kHasHeads && is_small<T>(args.n_rows * args.hidden / 4, queue);
        if (!has_vectors<T>(&args, 16) && !is_few && has_narrow_rows<K, true>(&args))
            return launch_narrow<K, true>(args, queue, err);
    }
    if (vectors <= 64)
        return launch_centred_vectors<K, 2, true>(args, vectors, queue, err);
    if (vectors <= 96)
        return launch_centred_vectors<K, 3, true>(args, vectors, queue, err);
    if (vectors <= 1024)
        return launch_centred_vectors<K, 2, false>(args, vectors, queue, err);
    if (vectors <= 4096)
        return launch_centred_vectors<K, 4, false>(args, vectors, queue, err);
    if constexpr (sizeof(typename K::T) == 4)
        if (vectors <= 8192)
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
