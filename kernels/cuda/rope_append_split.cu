// rope_append_split.cu - rope_append where a cache is not simply of the type of q and of k's cells:
// FP8 caches beside q that keeps its type, and MLA's one cache, of either type, whose cells take v
// and then k; and where v has another stride than k.
//
// The grid has two kinds of blocks, as that of rope_quantize_append: the first columns rotate q and
// k (device/append.cuh), the others write v as rows of a cache (device/fp8_stream.cuh). Every byte
// is read once and written once.
#include "cuda/rope_append.cuh"

struct split_args {
    struct rotate_args rotate; // of q and k
    uint32_t rotate_columns;   // blocks of grid.x that rotate
    int32_t returns_k;         // bool
    int64_t to[2];             // bytes from q, and from k, to their outputs
    struct k_cells k;
    int32_t tile_vectors; // tokens, per thread of a tile
    struct append_map map;
    struct row_stream v;
    cell_class cells; // for the launch
};

// Writes a head to its output, as q, or to a cell, and to its output too where k is returned.
template <typename T>
struct split_sink {
    static constexpr bool kMaySkip = false;
    char *to;   // of the type of q; NULL: nowhere
    char *cell; // NULL: nowhere
    const split_args &args;

    __device__ __forceinline__ char *head(const char *, uint32_t, int) const
    {
        return nullptr;
    }
    template <int n>
    __device__ __forceinline__ void rotated(char *, int, int at, const float (&x)[n]) const
    {
        if (to)
            store_floats(reinterpret_cast<T *>(as_global(to)) + at, x);
        if (cell)
            cache_format{args.k.kind}.store<T>(as_global(cell), at, x, args.k.scale);
    }
    template <typename, typename Word>
    __device__ __forceinline__ void rest(char *, int, int at, const Word &word) const
    {
        if (to)
            *reinterpret_cast<Word *>(reinterpret_cast<T *>(as_global(to)) + at) = word;
        if (cell)
            rest_in_cell(at, word);
    }
    template <typename Word>
    __device__ __forceinline__ void rest_in_cell(int at, const Word &word) const
    {
        float x[kElementsOf<T, Word>];
        unpack<T>(word, x);
        if (args.k.kind == kCacheAsIs)
            *reinterpret_cast<Word *>(reinterpret_cast<T *>(as_global(cell)) + at) = word;
        else
            cache_format{args.k.kind}.store<T>(as_global(cell), at, x, args.k.scale);
    }
};

// The heads of q and k. Common calls return no k.
template <typename T, int kUnit, bool kCommon>
struct split_rows : qk_rows<split_args> {
    __device__ __forceinline__ void finish(const qk_rows<split_args>::row &row, uint32_t token,
                                           int64_t cell, const unit_place &place,
                                           const angle_values<rotate_unit<T, kUnit>::kPairs> &angle,
                                           const unit_words<T, kUnit> &words, bool is_kept) const
    {
        split_sink<T> sink = {nullptr, nullptr, args};
        char *from = const_cast<char *>(row.from);
        bool is_k = row.head >= args.rotate.q_heads;
        if (!is_k || (!kCommon && args.returns_k))
            sink.to = from + (is_k ? args.to[1] : args.to[0]);
        if (is_k && cell >= 0)
            sink.cell = args.k.first + (cell + row.head * args.map.head_stride) * args.k.cell_bytes;
        write_unit_of<T, kUnit>(sink, row.from, token, row.head, place, angle, words, is_kept);
    }
};

template <cell_class kCells>
struct split_kernels : append_form {
    using args = split_args;
    static constexpr bool kHasStreams = true;

    template <typename T, int kUnit, int kAngles, int kRows>
    static __device__ __forceinline__ void rotate(const split_args &args)
    {
        split_rows<T, kUnit, kCells != kCellsAny> rows = {{args}};
        append_block<T, kUnit, kAngles, kRows, kCells>(args.rotate, args.map, rows, blockIdx.x);
    }
    template <typename T>
    static __device__ __forceinline__ void write_streams(const split_args &args)
    {
        stream_place place(args.rotate_columns);
        constexpr cell_class kVCells = kCells == kCellsOnLine ? kCellsOnLine : kCellsAny;
        write_rows<T, false, kVCells>(args.v, args.map, args.tile_vectors,
                                      cache_format{args.k.kind}, place.tile, place);
    }
};

// Cut as rope_append is, with v in blocks of its own.
struct split_form : split_kernels<kCellsAny> {
    static constexpr int kTileFrom = 1024;

    static void set(split_args *args, const struct roped_call *call)
    {
        set_places(args, call);
        args->k = k_cells_of(call);
        args->v = rows_from(call, ROPE_APPEND_V);
    }
    template <typename T>
    static bool use_vectors(split_args *args, const struct roped_queue *)
    {
        ::use_vectors(&args->v, kVecOf<T>, cached_bytes<T>(&args->k));
        return args->to[0] % 16 == 0 && args->to[1] % 16 == 0 && cells_take_vectors<T>(&args->k);
    }
    static int64_t vectors(const split_args *args, int)
    {
        return (int64_t)args->v.n_tokens * args->v.token_units.by;
    }
    static int64_t cut(split_args *args, int64_t threads, int)
    {
        return cut_rows(&args->v, args->tile_vectors, threads);
    }
    template <typename T, int kUnit, int kMany>
    static kernel_fn<split_args> *kernel(const split_args *args, int kind, int rows)
    {
        return append_kernel_of<::split_kernels, T, kUnit, kMany>(args, kind, rows);
    }
};

bool is_split_append(const struct roped_call *call)
{
    const struct heads_part *k = &heads_plan_of(call)->part[1], *v = &heads_plan_of(call)->part[2];
    return v->cache == k->cache || k->cell_dtype != (int32_t)call->in[k->from].dtype ||
           call->in[v->from].stride != call->in[k->from].stride;
}

enum roped_status launch_split_append(const struct roped_call *call, struct roped_queue *queue,
                                      struct roped_error *err)
{
    return launch_form<split_form>(call, queue, err);
}
