// rope_append.cu - rope_append on a CUDA device: q rotated to its output, k rotated to its slot of
// the cache (and to an output where that is asked for), v copied to its slot, in one launch.
//
// A token's heads of q, k and v are one row of heads that threads share as in rope
// (device/rotate.cuh): a value head is 16-byte units that do not rotate. A thread finds the
// token's slot and angles once for all heads that it walks. Every byte is read once and written
// once.
#include "cuda/rope_append.cuh"

struct append_args {
    struct rotate_args rotate; // n_heads: of q, k and v
    const char *v;             // less the heads of q and k; its tokens are as far apart as k's
    int32_t k_end;             // heads of q and k
    int32_t returns_k;         // bool
    int64_t to[2];             // bytes from q, and from k, to their outputs
    char *cache[2];            // of k and v, less the heads before
    struct append_map map;
    cell_class cells; // for the launch
};

// Writes a head to up to two places, or to one.
template <typename T, int kPlaces>
struct append_sink {
    static constexpr bool kMaySkip = false;
    char *to[kPlaces]; // NULL: not there

    __device__ __forceinline__ char *head(const char *, uint32_t, int) const
    {
        return nullptr;
    }
    template <int n>
    __device__ __forceinline__ void rotated(char *, int, int at, const float (&x)[n]) const
    {
#pragma unroll
        for (int i = 0; i < kPlaces; i++)
            if (to[i])
                store_floats(reinterpret_cast<T *>(as_global(to[i])) + at, x);
    }
    template <typename, typename Word>
    __device__ __forceinline__ void rest(char *, int, int at, const Word &word) const
    {
#pragma unroll
        for (int i = 0; i < kPlaces; i++)
            if (to[i])
                *reinterpret_cast<Word *>(reinterpret_cast<T *>(as_global(to[i])) + at) = word;
    }
};

// The heads of q, k and v. Common calls return no k.
template <typename T, int kUnit, bool kCommon>
struct append_rows {
    using sink = append_sink<T, kCommon ? 1 : 2>;
    struct row {
        const char *from;
        int head;
        bool is_v;
    };
    const append_args &args;

    __device__ __forceinline__ row row_of(uint32_t token, int head) const
    {
        const rotate_args &rotate = args.rotate;
        row out = {rotate.from[0], head, head >= args.k_end};
        uint32_t token_bytes = rotate.token_bytes[0];
        if (head >= rotate.q_heads) {
            out.from = rotate.from[1];
            token_bytes = rotate.token_bytes[1];
        }
        if (out.is_v)
            out.from = args.v;
        out.from += (uint64_t)token * token_bytes + (int64_t)head * rotate.head_bytes;
        return out;
    }

    // Of a value head 16 bytes, wherever they are; scalar units are elements either way.
    __device__ __forceinline__ unit_place place_of(const row &row, const unit_place &place,
                                                   int unit) const
    {
        unit_place out = place;
        if (kUnit != kUnitScalar && row.is_v) {
            out.rotates = false;
            out.at = unit * kVecOf<T>;
            out.second = out.at + kVecOf<T> / 2;
        }
        return out;
    }

    __device__ __forceinline__ sink sink_of(const row &row, int64_t cell) const
    {
        sink out = {};
        char *from = const_cast<char *>(row.from);
        if (row.head < args.rotate.q_heads) {
            out.to[0] = from + args.to[0];
            return out;
        }
        if (cell >= 0)
            out.to[0] = (row.is_v ? args.cache[1] : args.cache[0]) +
                        (cell + row.head * args.map.head_stride) * args.rotate.head_bytes;
        if constexpr (!kCommon)
            if (args.returns_k && !row.is_v)
                out.to[1] = from + args.to[1];
        return out;
    }

    __device__ __forceinline__ void finish(const row &row, uint32_t token, int64_t cell,
                                           const unit_place &place,
                                           const angle_values<rotate_unit<T, kUnit>::kPairs> &angle,
                                           const unit_words<T, kUnit> &words, bool is_kept) const
    {
        sink to = sink_of(row, cell);
        if (!row.is_v && is_kept) {
            keep_unit<T, kUnit>(to, row.from, token, row.head, place, words);
        } else if (!row.is_v) {
            finish_unit<T, kUnit>(to, row.from, token, row.head, place, angle, words);
        } else if constexpr (kUnit == kUnitScalar) {
            to.template rest<T>(nullptr, 0, place.at, words.a);
            if (place.rotates) // it would, in q and k: two elements
                to.template rest<T>(nullptr, 0, place.second, words.b);
        } else {
            to.template rest<T>(nullptr, 0, place.at, words.word[0]);
        }
    }
};

template <cell_class kCells>
struct append_kernels : append_form {
    using args = append_args;
    template <typename T, int kUnit, int kAngles, int kRows>
    static __device__ __forceinline__ void rotate(const append_args &args)
    {
        append_rows<T, kUnit, kCells != kCellsAny> rows = {args};
        append_block<T, kUnit, kAngles, kRows, kCells>(args.rotate, args.map, rows, blockIdx.x);
    }
};

// Cut as rope is. v stands behind k among the heads.
struct plain_append_form : append_kernels<kCellsAny> {
    static void set(append_args *args, const struct roped_call *call)
    {
        const struct roped_tensor *in = call->in, *out = call->out;
        struct rotate_args *rotate = &args->rotate;
        set_places(args, call);
        args->k_end = rotate->n_heads;
        rotate->n_heads += rotate->n_heads - rotate->q_heads;
        int64_t head_bytes = rotate->head_bytes;
        int64_t stride_bytes = args->map.head_stride * head_bytes;
        args->v =
            less_bytes(static_cast<const char *>(in[ROPE_APPEND_V].data), args->k_end * head_bytes);
        args->cache[0] = less_bytes(static_cast<char *>(out[ROPE_APPEND_K_CACHE_OUT].data),
                                    rotate->q_heads * stride_bytes);
        args->cache[1] = less_bytes(static_cast<char *>(out[ROPE_APPEND_V_CACHE_OUT].data),
                                    args->k_end * stride_bytes);
    }
    template <typename T>
    static bool use_vectors(const append_args *args, const struct roped_queue *)
    {
        return is_aligned(args->v, 16) && is_aligned(args->cache[0], 16) &&
               is_aligned(args->cache[1], 16) && args->to[0] % 16 == 0 && args->to[1] % 16 == 0;
    }
    template <typename T, int kUnit, int kMany>
    static kernel_fn<append_args> *kernel(const append_args *args, int kind, int rows)
    {
        return append_kernel_of<::append_kernels, T, kUnit, kMany>(args, kind, rows);
    }
    static struct rotate_limits limits(const struct heads_plan *plan)
    {
        const struct heads_part *k = &plan->part[1], *v = &plan->part[2];
        return {plan->part[0].heads + k->heads + v->heads, k->width + v->width};
    }
};

extern "C" enum roped_status roped_cuda_rope_append(const struct roped_call *call,
                                                    struct roped_queue *queue,
                                                    struct roped_error *err)
{
    return with_limits<plain_append_form>(call, queue, err, [&](const struct roped_call *settled) {
        return is_split_append(settled) ? launch_split_append(settled, queue, err)
                                        : launch_form<plain_append_form>(settled, queue, err);
    });
}
