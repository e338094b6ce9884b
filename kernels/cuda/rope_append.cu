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

// Six blocks on a multiprocessor: 56 registers, where nothing spills yet. With 60 of them, five
// blocks find room, and large work takes 2 % longer.
enum { APPEND_THREADS = 192, APPEND_MIN_BLOCKS = 6 };

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
                        (cell + row.head * args.map.head_step) * args.rotate.head_bytes;
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

template <typename T, int kUnit, int kAngles, int kRows, cell_class kCells>
__global__ void __launch_bounds__(APPEND_THREADS, APPEND_MIN_BLOCKS)
    rope_append_kernel(const __grid_constant__ struct append_args args)
{
    let_next_start();
    append_rows<T, kUnit, kCells != kCellsAny> rows = {args};
    append_block<T, kUnit, kAngles, kRows, kCells>(args.rotate, args.map, rows, blockIdx.x);
}

template <cell_class kCells>
struct append_family {
    template <typename T, int kUnit, int kAngles, int kRows>
    static constexpr kernel_fn<append_args> *kernel =
        rope_append_kernel<T, kUnit, kAngles, kRows, kCells>;
};

// ------------------------------------------------------------------------------------ launchers

// Cut as rope is.
template <typename T, int kUnit>
static enum roped_status launch_units(struct append_args *args, struct roped_queue *queue,
                                      struct roped_error *err)
{
    const struct rotate_args *rotate = &args->rotate;
    int64_t n_units = units_of(rotate);
    int kind = angle_kind_of(&rotate->angles, rotate_unit<T, kUnit>::kPairs);
    bool is_scalar = kUnit == kUnitScalar || kind == kAnglesAny;
    int waves = kind == kAnglesTable ? ROTATE_TABLE_WAVES : ROTATE_WAVES;
    int rows = is_scalar || rotate->n_heads < ROTATE_ROWS
                   ? 1
                   : rotate_rows(n_units, waves, queue->n_multiprocessors);
    int threads = block_threads(ceil_div(n_units, rows), queue->n_multiprocessors, APPEND_THREADS);
    struct rotate_shape shape = rotate_shape_of(rotate, rows, threads, APPEND_THREADS);
    bool is_common = is_common_rotation(rotate, kind) && !args->returns_k;
    cell_class cells = is_common ? args->cells : kCellsAny;
    auto *kernel = append_kernel_of<append_family, T, kUnit>(kind, rows, cells);
    return launch_heads(args, kernel, &shape, 0, queue, err);
}

template <typename T>
static enum roped_status launch_type(struct append_args *args, int64_t head_dim,
                                     struct roped_queue *queue, struct roped_error *err)
{
    bool has_vectors = can_use_vectors(&args->rotate, head_dim, kVecOf<T>) &&
                       is_aligned(args->v, 16) && is_aligned(args->cache[0], 16) &&
                       is_aligned(args->cache[1], 16) && args->to[0] % 16 == 0 &&
                       args->to[1] % 16 == 0;
    return with_units(&args->rotate, has_vectors, kVecOf<T>, [&](auto unit) {
        return launch_units<T, decltype(unit)::value>(args, queue, err);
    });
}

// base less n heads, so that the head's number among all heads finds it.
static char *less_heads(const void *base, int64_t n_bytes)
{
    return reinterpret_cast<char *>((uintptr_t)base - (uintptr_t)n_bytes);
}

static struct append_args args_of(const struct roped_call *call)
{
    const struct rope_append_plan *plan =
        reinterpret_cast<const struct rope_append_plan *>(call->plan);
    const struct rope_plan *rope = &plan->rope;
    const struct roped_tensor *in = call->in, *out = call->out;
    const int64_t heads[2] = {rope->q_heads, rope->k_heads};
    struct append_args args = {};
    struct rotate_args *rotate = &args.rotate;
    rotate->angles = angle_args_of(call, &rope->rotary, ROPE_APPEND_POSITIONS);
    set_rotate_tensors(rotate, &in[ROPE_APPEND_Q], heads, rope->head_dim);
    args.map = append_map_of(call, &plan->append);
    args.cells = cell_class_of(args.map, plan->append.n_places);
    args.k_end = rotate->n_heads;
    rotate->n_heads += rotate->n_heads - rotate->q_heads;
    rotate->rotary_offset = (int32_t)rope->rotary_offset;
    int64_t head_bytes = rotate->head_bytes;
    int64_t step_bytes = args.map.head_step * head_bytes;
    args.v = less_heads(in[ROPE_APPEND_V].data, args.k_end * head_bytes);
    args.cache[0] = less_heads(out[ROPE_APPEND_K_CACHE_OUT].data, heads[0] * step_bytes);
    args.cache[1] = less_heads(out[ROPE_APPEND_V_CACHE_OUT].data, args.k_end * step_bytes);
    args.returns_k = roped_tensor_given(&out[ROPE_APPEND_K_OUT]);
    args.to[0] = bytes_between(in[ROPE_APPEND_Q].data, out[ROPE_APPEND_Q_OUT].data);
    args.to[1] = bytes_between(in[ROPE_APPEND_K].data, out[ROPE_APPEND_K_OUT].data);
    return args;
}

extern "C" enum roped_status roped_cuda_rope_append(const struct roped_call *call,
                                                    struct roped_queue *queue,
                                                    struct roped_error *err)
{
    const struct rope_append_plan *append =
        reinterpret_cast<const struct rope_append_plan *>(call->plan);
    const struct rope_plan *plan = &append->rope;
    int64_t n_heads = plan->q_heads + 2 * plan->k_heads;
    int64_t width = plan->head_dim + append->v_dim; // of a cell at most
    enum roped_status status =
        check_rotate_limits(call, "q", plan->rotary.n_tokens, n_heads, width, err);
    if (status || plan->rotary.n_tokens == 0 || n_heads == 0)
        return status;
    return with_one_step(call, queue, err, [&](const struct roped_call *settled) {
        if (is_split_append(settled, append))
            return launch_split_append(settled, append, queue, err);
        struct append_args args = args_of(settled);
        return with_float_type(call->in[ROPE_APPEND_Q].dtype, [&](auto tag) {
            return launch_type<typename decltype(tag)::type>(&args, plan->head_dim, queue, err);
        });
    });
}
