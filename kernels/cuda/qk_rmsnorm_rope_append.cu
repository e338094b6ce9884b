// qk_rmsnorm_rope_append.cu - qk_rmsnorm_rope_append on a CUDA device: the kernels of
// qk_rmsnorm_rope (device/qk_norm.cuh), whose heads of k go to the cells of a cache, with further
// blocks in the grid that write v as rows of its cache (device/fp8_stream.cuh). Every byte is read
// once and written once.
//
// The blocks of v come first. Of large calls they are spread among the others: they only move
// bytes, which fills the time in which the others compute.
#include "cuda/qk_norm_launch.cuh"
#include "cuda/rope_append.cuh"
#include "ops/rope_append.h"

// Columns of the grid that write v: every 2^shift-th, from the first on, until there are n.
struct v_columns {
    uint32_t n;
    int32_t shift;

    __device__ __forceinline__ uint32_t index() const // of this one, if it is one
    {
        return blockIdx.x >> shift;
    }
    __device__ __forceinline__ bool is_here() const
    {
        return index() < n && index() << shift == blockIdx.x;
    }
    __device__ __forceinline__ uint32_t before() const // this one
    {
        return min((blockIdx.x + (1u << shift) - 1) >> shift, n);
    }
};

struct qk_append_args : qk_args {
    struct v_columns v_columns;
    int32_t returns_k; // bool
    int32_t is_large;  // bool; for more_columns
    int32_t tile_tokens;
    struct k_cells k;
    struct append_map map;
    struct row_stream v;
    cell_class cells; // for the launch
};

// The blocks that do not normalise; false in those that do.
template <typename T, bool kVectors, cell_class kCells>
__device__ __forceinline__ bool write_v(const qk_append_args &args, const cache_format &format)
{
    if (!args.v_columns.is_here())
        return false;
    let_next_start();
    stream_place place(blockIdx.x - args.v_columns.index());
    write_rows<T, kVectors, kCells>(args.v, args.map, args.tile_tokens, format, place.tile, place);
    return true;
}

// Columns of blocks, of Outputs that append.
struct append_columns {
    using args = qk_append_args;
    static constexpr bool kAppends = true;
    static __device__ __forceinline__ uint32_t column(const qk_append_args &args)
    {
        return blockIdx.x - args.v_columns.before();
    }
};

// A head that goes to one place. kKind: enum cache_kind; memory that is no cache is as the first.
template <typename T, int kKind>
struct placed_head {
    char *to;
    float scale;

    template <int n>
    __device__ __forceinline__ void store(int at, const float (&x)[n]) const
    {
        cache_format{kKind}.store<T>(to, at, x, scale);
    }
};

// q to its output, k to its cell, and to an output too where it is returned.
struct append_outputs : append_columns, qk_form {
    using any = append_outputs;

    template <typename T>
    struct append_head {
        T *kept;    // of the type of q; NULL: nowhere
        char *cell; // NULL: nowhere
        const qk_append_args &args;

        template <int n>
        __device__ __forceinline__ void store(int at, const float (&x)[n]) const
        {
            if (kept)
                store_floats(reinterpret_cast<T *>(as_global(kept)) + at, x);
            if (cell)
                cache_format{args.k.kind}.store<T>(as_global(cell), at, x, args.k.scale);
        }
    };
    template <typename T>
    struct run {
        char *to, *cell;
        __device__ __forceinline__ run(const qk_append_args &args, int64_t first, int head,
                                       bool is_k, const char *from, int at)
            : to(nullptr), cell(nullptr)
        {
            if (!is_k || args.returns_k)
                to = output_of<char>(args, from, is_k);
            if (is_k && first >= 0)
                cell = args.k.first + (first + head * args.map.head_stride) * args.k.cell_bytes +
                       at * cache_format{args.k.kind}.bytes<T>();
        }
        __device__ __forceinline__ append_head<T> head(const qk_append_args &args, int r) const
        {
            char *kept = to ? to + r * (int64_t)args.rotate.head_bytes : nullptr;
            char *place = cell ? cell + r * args.map.head_stride * args.k.cell_bytes : nullptr;
            return {reinterpret_cast<T *>(kept), place, args};
        }
        template <typename F>
        __device__ __forceinline__ void with_heads(const qk_append_args &args, const F &write) const
        {
            write([&](int r) { return head(args, r); });
        }
    };
    static __device__ __forceinline__ int64_t place(const qk_append_args &args, uint32_t token,
                                                    bool is_wanted)
    {
        return is_wanted ? cell_of(args.map, token) : -1;
    }
    template <typename T>
    static __device__ __forceinline__ bool write_values(const qk_append_args &args)
    {
        return write_v<T, false, kCellsAny>(args, cache_format{args.k.kind});
    }

    // host; walks later than qk_rmsnorm_rope: v's blocks fill a multiprocessor too
    static constexpr int kWalkFrom = 2048;
    template <typename F>
    static void with_common(const qk_append_args *args, const F &take);
    template <typename T>
    static bool use_vectors(qk_append_args *args, const struct roped_queue *queue)
    {
        ::use_vectors(&args->v, kVecOf<T>, cached_bytes<T>(&args->k));
        int64_t units = (int64_t)args->v.n_tokens * args->v.token_units.by;
        args->tile_tokens = units > (int64_t)queue->n_multiprocessors * 512 ? kTileVectors : 1;
        args->is_large = units > (int64_t)queue->n_multiprocessors * 4096;
        return heads_take_vectors(args) && cells_take_vectors<T>(&args->k);
    }
    static void set(qk_append_args *args, const struct roped_call *call);
    static int64_t more_columns(qk_append_args *args, int64_t columns, int64_t threads,
                                int64_t height)
    {
        int64_t n = ceil_div(cut_rows(&args->v, args->tile_tokens, threads), height);
        args->v_columns.n = (uint32_t)n;
        while (args->is_large && n << (args->v_columns.shift + 1) <= columns + n)
            args->v_columns.shift++;
        return n;
    }
};

// Of common calls: a head goes to one place, v is vectors, and what the caches hold is known, so
// that nothing is asked between two stores.
template <int kKind, cell_class kCells>
struct common_append : append_columns {
    using any = append_outputs;

    template <typename T>
    struct run {
        char *to;
        int64_t stride; // bytes from a head to the next
        bool exists, is_k;
        __device__ __forceinline__ run(const qk_append_args &args, int64_t cell, int head,
                                       bool head_is_k, const char *from, int at)
            : exists(!head_is_k || cell >= 0), is_k(head_is_k)
        {
            int64_t head_stride = args.map.head_stride;
            to = is_k ? args.k.first + (cell + head * head_stride) * args.k.cell_bytes +
                            at * cache_format{kKind}.bytes<T>()
                      : output_of<char>(args, from, false);
            to = as_global(to);
            stride = is_k ? head_stride * args.k.cell_bytes : args.rotate.head_bytes;
        }
        template <typename F>
        __device__ __forceinline__ void with_heads(const qk_append_args &args, const F &write) const
        {
            if (!exists)
                return;
            if (kKind != kCacheAsIs && is_k)
                write([&](int r) { return placed_head<T, kKind>{to + r * stride, args.k.scale}; });
            else
                write([&](int r) { return placed_head<T, kCacheAsIs>{to + r * stride, 1.0f}; });
        }
    };
    static __device__ __forceinline__ int64_t place(const qk_append_args &args, uint32_t token,
                                                    bool is_wanted)
    {
        return is_wanted ? cell_of<kCells>(args.map, token) : -1;
    }
    template <typename T>
    static __device__ __forceinline__ bool write_values(const qk_append_args &args)
    {
        return write_v<T, true, kCells>(args, cache_format{kKind});
    }
};

template <cell_class kCells, typename F>
static void with_cells(const qk_append_args *args, const F &take)
{
    if (args->cells != kCells || args->returns_k || !args->v.has_vectors)
        return;
    if (args->k.kind == kCacheAsIs)
        take(type_tag<common_append<kCacheAsIs, kCells>>{});
    if (args->k.kind == kCacheE4M3)
        take(type_tag<common_append<kCacheE4M3, kCells>>{});
}

template <typename F>
void append_outputs::with_common(const qk_append_args *args, const F &take)
{
    with_cells<kCellsFound>(args, take);
    with_cells<kCellsOnLine>(args, take);
}

void append_outputs::set(qk_append_args *args, const struct roped_call *call)
{
    set_qk_args(args, call);
    set_places(args, call);
    args->k = k_cells_of(call);
    args->v = rows_from(call, ROPE_APPEND_V);
}

extern "C" enum roped_status roped_cuda_qk_rmsnorm_rope_append(const struct roped_call *call,
                                                               struct roped_queue *queue,
                                                               struct roped_error *err)
{
    return launch_rotary<append_outputs>(call, queue, err);
}
