// rope_quantize_append.cu - rope_quantize_append on a CUDA device: rotate the rotary parts,
// multiply all parts by their scale, round to FP8; q to its outputs, k and v to their cells of the
// paged caches, in one launch.
//
// The grid has two kinds of blocks, as that of rope_quantize. The first columns rotate
// (device/append.cuh). The others convert what does not rotate (device/fp8_stream.cuh): q_nope as
// one stream, k_nope and v as rows of the caches. Every byte is read once and written once.
#include "cuda/fp8_parts.cuh"
#include "cuda/rope_append.cuh"
#include "ops/rope_quantize_append.h"

enum { ROWS_K_NOPE, ROWS_V, ROW_STREAMS };

struct quantize_append_args {
    uint32_t rotate_columns; // blocks of grid.x that rotate
    int32_t is_e5m2;
    float scale[2];
    int32_t tile_vectors; // vectors, or tokens, per thread of a tile, at most kTileVectors
    uint32_t cell_width;  // of the cache of k_rope
    uint32_t token_bytes; // of q_rope's output
    uint8_t *to[2];       // q_rope; the cache of k_rope, less q_heads heads
    struct append_map map;
    struct rotate_args rotate;
    struct fp8_stream q_nope;
    struct row_stream rows[ROW_STREAMS];
};

// ------------------------------------------------------------------------------------ rotation

// Writes FP8; what does not rotate is scaled and rounded all the same.
struct fp8_sink {
    static constexpr bool kMaySkip = true;
    uint8_t *to; // of the head; NULL: nowhere
    float scale;
    bool is_e5m2;

    __device__ __forceinline__ char *head(const char *, uint32_t, int) const
    {
        return reinterpret_cast<char *>(to);
    }
    template <int n>
    __device__ __forceinline__ void rotated(char *, int, int at, const float (&x)[n]) const
    {
        store_fp8(to + at, x, scale, is_e5m2);
    }
    template <typename T, typename Word>
    __device__ __forceinline__ void rest(char *, int, int at, const Word &word) const
    {
        float x[kElementsOf<T, Word>];
        unpack<T>(word, x);
        store_fp8(to + at, x, scale, is_e5m2);
    }
};

// The heads of q_rope and k_rope.
template <typename T, int kUnit>
struct quantize_rows : qk_rows<quantize_append_args> {
    __device__ __forceinline__ void finish(const qk_rows<quantize_append_args>::row &row,
                                           uint32_t token, int64_t cell, const unit_place &place,
                                           const angle_values<rotate_unit<T, kUnit>::kPairs> &angle,
                                           const unit_words<T, kUnit> &words, bool is_kept) const
    {
        fp8_sink sink = {args.to[0], args.scale[0], args.is_e5m2 != 0};
        if (row.head < args.rotate.q_heads) { // a row of FP8 is as many elements as one of T
            sink.to += (uint64_t)token * args.token_bytes +
                       (int64_t)row.head * (args.rotate.head_bytes / (int)sizeof(T));
        } else {
            int64_t index = cell + row.head * args.map.head_stride;
            sink.to = cell < 0 ? nullptr : args.to[1] + index * args.cell_width;
            sink.scale = args.scale[1];
        }
        write_unit_of<T, kUnit>(sink, row.from, token, row.head, place, angle, words, is_kept);
    }
};

template <cell_class kCells>
struct quantize_append_kernels : append_form {
    using args = quantize_append_args;
    static constexpr bool kHasStreams = true;

    template <typename T, int kUnit, int kAngles, int kRows>
    static __device__ __forceinline__ void rotate(const quantize_append_args &args)
    {
        quantize_rows<T, kUnit> rows = {{args}};
        append_block<T, kUnit, kAngles, kRows, kCells>(args.rotate, args.map, rows, blockIdx.x);
    }
    template <typename T>
    static __device__ __forceinline__ void write_streams(const quantize_append_args &args)
    {
        stream_place place(args.rotate_columns);
        int64_t tile = place.tile;
        if (tile < args.q_nope.n_tiles) {
            quantize_tile<T>(args.q_nope, args.tile_vectors, args.is_e5m2, tile, place.thread,
                             place.threads);
            return;
        }
        tile -= args.q_nope.n_tiles;
        bool is_v = tile >= args.rows[ROWS_K_NOPE].n_tiles;
        tile -= is_v ? args.rows[ROWS_K_NOPE].n_tiles : 0;
        write_rows<T, false, kCellsAny>(is_v ? args.rows[ROWS_V] : args.rows[ROWS_K_NOPE], args.map,
                                        args.tile_vectors, fp8_format{args.is_e5m2 != 0}, tile,
                                        place);
    }
};

// Streams take four vectors per thread from half a machine's threads on.
struct quantize_append_form : quantize_append_kernels<kCellsAny> {
    static constexpr int kTableWaves = ROTATE_WAVES, kTileFrom = 1024;
    static constexpr int kWideRows = 2;

    static void set(quantize_append_args *args, const struct roped_call *call)
    {
        const struct heads_plan *plan = heads_plan_of(call);
        const struct heads_part *q = &plan->part[0], *k = &plan->part[1];
        const struct roped_tensor *q_out = &call->out[q->to];
        args->map = append_map_of(call, &plan->append);
        args->cell_width = (uint32_t)cell_bytes_of(call, k);
        args->token_bytes = token_bytes_of(q_out, q->heads * q->width);
        args->to[0] = static_cast<uint8_t *>(q_out->data);
        args->to[1] = less_bytes(static_cast<uint8_t *>(call->out[k->cache].data),
                                 q->heads * args->map.head_stride * args->cell_width);
        args->scale[0] = q->scale;
        args->scale[1] = k->scale;
        args->is_e5m2 = q_out->dtype == ROPED_F8_E5M2;
        args->q_nope = part_stream_of(call, ROPE_QUANTIZE_APPEND_Q_NOPE);
        args->rows[ROWS_K_NOPE] = rows_from(call, ROPE_QUANTIZE_APPEND_K_NOPE);
        args->rows[ROWS_V] = rows_from(call, ROPE_QUANTIZE_APPEND_V);
    }
    template <typename T>
    static bool use_vectors(quantize_append_args *args, const struct roped_queue *)
    {
        constexpr int kVec = kVecOf<T>;
        ::use_vectors(&args->q_nope, kVec);
        for (struct row_stream &rows : args->rows)
            ::use_vectors(&rows, kVec, 1);
        return is_aligned(args->to[0], kVec) && is_aligned(args->to[1], kVec) &&
               args->token_bytes % kVec == 0 && args->cell_width % kVec == 0;
    }
    static int64_t vectors(const quantize_append_args *args, int vector)
    {
        int64_t n = ceil_div(args->q_nope.n_elements, vector);
        for (const struct row_stream &rows : args->rows)
            n += (int64_t)rows.n_tokens * rows.token_units.by;
        return n;
    }
    static int64_t cut(quantize_append_args *args, int64_t threads, int vector)
    {
        int64_t n_tiles = cut_stream(&args->q_nope, threads * args->tile_vectors, vector);
        for (struct row_stream &rows : args->rows)
            n_tiles += cut_rows(&rows, args->tile_vectors, threads);
        return n_tiles;
    }
    // large work writes FP8 by 8 bytes instead of 4: 3 to 6 % less time
    template <typename T>
    static bool is_wide(const quantize_append_args *args, const struct roped_queue *queue)
    {
        return is_large_work(units_of(&args->rotate) + vectors(args, kVecOf<T>), ROTATE_WAVES,
                             queue->n_multiprocessors);
    }
    template <typename T, int kUnit, int kMany>
    static kernel_fn<quantize_append_args> *kernel(const quantize_append_args *args, int kind,
                                                   int rows)
    {
        if constexpr (kUnit != kUnitScalar)
            if (is_common_rotation(&args->rotate, kind) && args->map.kind == APPEND_CELLS)
                return fast_kernel_of<quantize_append_kernels<kCellsFound>, T, kUnit, kMany>(kind,
                                                                                             rows);
        return rotary_kernel_of<quantize_append_kernels<kCellsAny>, T, kUnit, kMany>(kind, rows);
    }
    template <typename T>
    static enum roped_status finish(const struct roped_call *call, struct roped_queue *queue,
                                    struct roped_error *err)
    {
        return launch_parts<T>(call, queue, err);
    }
    static struct rotate_limits limits(const struct heads_plan *plan)
    {
        const struct heads_part *nope = part_from(plan, ROPE_QUANTIZE_APPEND_Q_NOPE);
        struct rotate_limits limits = rotary_form::limits(plan);
        limits.width += nope ? nope->width : 0;
        return limits;
    }
};

extern "C" enum roped_status roped_cuda_rope_quantize_append(const struct roped_call *call,
                                                             struct roped_queue *queue,
                                                             struct roped_error *err)
{
    return launch_rotary<quantize_append_form>(call, queue, err);
}
