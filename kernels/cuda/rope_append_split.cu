// rope_append_split.cu - rope_append where a cache is not simply of the type of q and of k's cells:
// FP8 caches beside q that keeps its type, and MLA's one cache, of either type, whose cells take v
// and then k; and where v has another step than k.
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
    int32_t tile_tokens;
    struct append_map map;
    struct row_stream v;
    cell_class cells; // for the launch
};

// As those of rope_append.
enum { SPLIT_THREADS = 192, SPLIT_MIN_BLOCKS = 6 };

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
struct split_rows {
    struct row {
        const char *from;
        int head;
    };
    const split_args &args;

    __device__ __forceinline__ row row_of(uint32_t token, int head) const
    {
        bool is_k = head >= args.rotate.q_heads;
        uint32_t token_bytes = is_k ? args.rotate.token_bytes[1] : args.rotate.token_bytes[0];
        const char *from = is_k ? args.rotate.from[1] : args.rotate.from[0];
        return {from + (uint64_t)token * token_bytes + (int64_t)head * args.rotate.head_bytes,
                head};
    }
    __device__ __forceinline__ unit_place place_of(const row &, const unit_place &place, int) const
    {
        return place;
    }
    __device__ __forceinline__ void finish(const row &row, uint32_t token, int64_t cell,
                                           const unit_place &place,
                                           const angle_values<rotate_unit<T, kUnit>::kPairs> &angle,
                                           const unit_words<T, kUnit> &words, bool is_kept) const
    {
        split_sink<T> sink = {nullptr, nullptr, args};
        char *from = const_cast<char *>(row.from);
        bool is_k = row.head >= args.rotate.q_heads;
        if (!is_k || (!kCommon && args.returns_k))
            sink.to = from + (is_k ? args.to[1] : args.to[0]);
        if (is_k && cell >= 0)
            sink.cell = args.k.first + (cell + row.head * args.map.head_step) * args.k.cell_bytes;
        if (is_kept)
            keep_unit<T, kUnit>(sink, row.from, token, row.head, place, words);
        else
            finish_unit<T, kUnit>(sink, row.from, token, row.head, place, angle, words);
    }
};

// ------------------------------------------------------------------------------------ kernels

template <typename T, int kUnit, int kAngles, int kRows, cell_class kCells>
__global__ void __launch_bounds__(SPLIT_THREADS, SPLIT_MIN_BLOCKS)
    rope_append_split_kernel(const __grid_constant__ struct split_args args)
{
    let_next_start();
    if (blockIdx.x >= args.rotate_columns) {
        stream_place place(args.rotate_columns);
        constexpr cell_class kVCells = kCells == kCellsOnLine ? kCellsOnLine : kCellsAny;
        write_rows<T, false, kVCells>(args.v, args.map, args.tile_tokens, cache_format{args.k.kind},
                                      place.tile, place);
        return;
    }
    split_rows<T, kUnit, kCells != kCellsAny> rows = {args};
    append_block<T, kUnit, kAngles, kRows, kCells>(args.rotate, args.map, rows, blockIdx.x);
}

template <cell_class kCells>
struct split_family {
    template <typename T, int kUnit, int kAngles, int kRows>
    static constexpr kernel_fn<split_args> *kernel =
        rope_append_split_kernel<T, kUnit, kAngles, kRows, kCells>;
};

// ------------------------------------------------------------------------------------ launchers

// Cut as rope_append is, with v in blocks of its own: both shares of the work decide how small a
// block is.
template <typename T, int kUnit>
static enum roped_status launch_units(struct split_args *args, struct roped_queue *queue,
                                      struct roped_error *err)
{
    const struct rotate_args *rotate = &args->rotate;
    int n_processors = queue->n_multiprocessors;
    int64_t n_units = units_of(rotate);
    int64_t vectors = (int64_t)args->v.n_tokens * args->v.token_units.by;
    int kind = angle_kind_of(&rotate->angles, rotate_unit<T, kUnit>::kPairs);
    bool is_scalar = kUnit == kUnitScalar || kind == kAnglesAny;
    int waves = kind == kAnglesTable ? ROTATE_TABLE_WAVES : ROTATE_WAVES;
    bool is_many = rotate_rows(n_units + vectors, waves, n_processors) > 1;
    int rows = is_many && !is_scalar && rotate->n_heads >= ROTATE_ROWS ? ROTATE_ROWS : 1;
    args->tile_tokens = n_units + vectors > (int64_t)n_processors * 1024 ? kTileVectors : 1;
    int64_t n_threads = ceil_div(n_units, rows) + ceil_div(vectors, args->tile_tokens);
    int threads = is_many ? SPLIT_THREADS : block_threads(n_threads, n_processors, SPLIT_THREADS);
    struct rotate_shape shape = shape_with_streams(rotate, rows, threads, SPLIT_THREADS);
    int64_t tiles = cut_rows(&args->v, args->tile_tokens,
                             (int64_t)shape.block.x * shape.block.y * shape.block.z);
    int64_t tile_columns = ceil_div(tiles, (int64_t)shape.grid.y * shape.grid.z);
    args->rotate_columns = (uint32_t)shape.n_columns;
    bool is_common = is_common_rotation(rotate, kind) && !args->returns_k;
    cell_class cells = is_common ? args->cells : kCellsAny;
    auto *kernel = append_kernel_of<split_family, T, kUnit>(kind, shape.rows, cells);
    return launch_heads(args, kernel, &shape, tile_columns, queue, err);
}

template <typename T>
static enum roped_status launch_type(struct split_args *args, int64_t head_dim,
                                     struct roped_queue *queue, struct roped_error *err)
{
    bool has_vectors = can_use_vectors(&args->rotate, head_dim, kVecOf<T>) &&
                       args->to[0] % 16 == 0 && args->to[1] % 16 == 0 &&
                       cells_take_vectors<T>(&args->k);
    use_vectors(&args->v, kVecOf<T>, cached_bytes<T>(&args->k));
    return with_units(&args->rotate, has_vectors, kVecOf<T>, [&](auto unit) {
        return launch_units<T, decltype(unit)::value>(args, queue, err);
    });
}

static struct split_args args_of(const struct roped_call *call, const struct rope_append_plan *plan)
{
    const struct rope_plan *rope = &plan->rope;
    const struct roped_tensor *q = &call->in[ROPE_APPEND_Q], *k = &call->in[ROPE_APPEND_K];
    const int64_t heads[2] = {rope->q_heads, rope->k_heads};
    struct split_args args = {};
    struct rotate_args *rotate = &args.rotate;
    rotate->angles = angle_args_of(call, &rope->rotary, plan->append.positions_port);
    set_rotate_tensors(rotate, q, heads, rope->head_dim);
    rotate->rotary_offset = (int32_t)rope->rotary_offset;
    args.map = append_map_of(call, &plan->append);
    args.cells = cell_class_of(args.map, plan->append.n_places);
    args.returns_k = roped_tensor_given(&call->out[ROPE_APPEND_K_OUT]);
    args.to[0] = bytes_between(q->data, call->out[ROPE_APPEND_Q_OUT].data);
    args.to[1] = bytes_between(k->data, call->out[ROPE_APPEND_K_OUT].data);
    args.k = k_cells_of(call, plan);
    args.v = v_rows_of(call, plan);
    return args;
}

bool is_split_append(const struct roped_call *call, const struct rope_append_plan *plan)
{
    return plan->v.output == plan->k.output ||
           plan->cache_dtype != (int32_t)call->in[ROPE_APPEND_Q].dtype ||
           call->in[ROPE_APPEND_V].step != call->in[ROPE_APPEND_K].step;
}

enum roped_status launch_split_append(const struct roped_call *call,
                                      const struct rope_append_plan *plan,
                                      struct roped_queue *queue, struct roped_error *err)
{
    struct split_args args = args_of(call, plan);
    return with_float_type(call->in[ROPE_APPEND_Q].dtype, [&](auto tag) {
        return launch_type<typename decltype(tag)::type>(&args, plan->rope.head_dim, queue, err);
    });
}
