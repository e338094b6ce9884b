// fp8_stream.cuh - elements that only become FP8: x * scale, rounded. As one stream, written as it
// is read, or as the rows of a token, each of which goes to a place of its own; such rows may also
// stay what they are.
//
// Consecutive lanes take consecutive vectors of 16 bytes, so that loads (512 bytes a warp) and
// stores (256, or 128 from float32) are whole sectors. Wider stores, by exchanging codes between
// lanes, gained nothing. What a thread computes before wait_for_previous costs nothing while the
// kernel before still runs: all addresses but those that a loaded cell decides.
#pragma once

#include "cuda/device/append.cuh"
#include "cuda/device/fp8.cuh"

constexpr int kTileVectors = 4; // loads in flight per thread of a stream

struct fp8_stream {
    const void *from;
    uint8_t *to;
    int64_t n_elements;
    int64_t n_tiles;
    float scale;
    int32_t has_vectors; // bool: from and to are aligned to a vector
};

struct divisor {
    uint32_t by;
    int32_t shift; // log2 of it; -1: it is no power of two
    double inverse;
};

static inline struct divisor divisor_by(int64_t by)
{
    int shift = 0;
    while ((int64_t)1 << shift < by)
        shift++;
    return {(uint32_t)by, (int64_t)1 << shift == by ? shift : -1, 1.0 / (double)by};
}

// Rows of a cache: units are vectors, or elements without alignment.
struct row_stream {
    const void *from;
    uint8_t *to; // the first element of a row in cell 0
    uint32_t n_tokens;
    uint32_t token_bytes; // from one to the next, where they come from
    uint32_t cell_bytes;
    int64_t n_items; // a unit of tile_vectors neighbouring tokens each
    int64_t n_tiles;
    struct divisor token_units; // of all its rows
    struct divisor row_units;
    float scale;
    int32_t has_vectors;
};

// A thread of a block that has a tile of the streams: the columns of the grid behind those that
// rotate. A block has more threads than a vector has elements.
struct stream_place {
    int thread, threads;
    int64_t tile;

    __device__ __forceinline__ explicit stream_place(uint32_t first_column)
    {
        thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
        threads = blockDim.x * blockDim.y * blockDim.z;
        tile = blockIdx.x - first_column;
        tile = (tile * gridDim.y + blockIdx.y) * gridDim.z + blockIdx.z;
    }
};

// ------------------------------------------------------------------------------------ streams

template <typename T>
__device__ __forceinline__ void quantize_element(const fp8_stream &stream, bool is_e5m2, int64_t i)
{
    float x[1] = {element<T>::to_float(static_cast<const T *>(stream.from)[i])};
    store_fp8(stream.to + i, x, stream.scale, is_e5m2);
}

template <typename T>
__device__ __forceinline__ void quantize_elements(const fp8_stream &stream, int tile_vectors,
                                                  bool is_e5m2, int64_t tile, int thread,
                                                  int threads)
{
    int64_t size = (int64_t)threads * tile_vectors * kVecOf<T>;
    int64_t end = min((tile + 1) * size, stream.n_elements);
    wait_for_previous();
    for (int64_t i = tile * size + thread; i < end; i += threads)
        quantize_element<T>(stream, is_e5m2, i);
}

// One tile: tile_vectors vectors per thread. The elements after the last whole vector belong to
// the last tile, where each of them has a thread.
template <typename T>
__device__ __forceinline__ void quantize_tile(const fp8_stream &stream, int tile_vectors,
                                              bool is_e5m2, int64_t tile, int thread, int threads)
{
    constexpr int kVec = kVecOf<T>;
    if (!stream.has_vectors) {
        quantize_elements<T>(stream, tile_vectors, is_e5m2, tile, thread, threads);
        return;
    }
    int64_t first = tile * threads * tile_vectors + thread;
    int64_t n_vectors = stream.n_elements / kVec;
    int n = (int)min(n_vectors - first, (int64_t)threads * tile_vectors); // may be below 0
    const char *from = static_cast<const char *>(stream.from) + first * 16;
    uint8_t *to = stream.to + first * kVec;
    from = compute_now(from);
    n = compute_now(n);
    wait_for_previous();
    uint4 raw[kTileVectors];
#pragma unroll
    for (int i = 0; i < kTileVectors; i++)
        if (i < tile_vectors && i * threads < n)
            raw[i] = load_16(from + i * threads * 16);
#pragma unroll
    for (int i = 0; i < kTileVectors; i++) {
        if (i >= tile_vectors || i * threads >= n)
            continue;
        float x[kVec];
        unpack<T>(raw[i], x);
        store_fp8(to + i * threads * kVec, x, stream.scale, is_e5m2);
    }
    int64_t left = n_vectors * kVec + thread;
    if (tile == stream.n_tiles - 1 && left < stream.n_elements)
        quantize_element<T>(stream, is_e5m2, left);
}

// ------------------------------------------------------------------------------------ quotients

// a / b. Widths and numbers of heads are nearly always powers of two; for others twenty
// instructions below 2^32; beyond, the quotient from a product in double is off by one at most,
// where a 64-bit division would be a call.
__device__ __forceinline__ int64_t quotient(int64_t a, const divisor &b)
{
    if (b.shift >= 0)
        return a >> b.shift;
    if (a >> 32 == 0)
        return (uint32_t)a / b.by;
    int64_t q = (int64_t)((double)a * b.inverse), rest = a - q * b.by;
    return rest < 0 ? q - 1 : rest >= b.by ? q + 1 : q;
}

__device__ __forceinline__ uint32_t quotient(uint32_t a, const divisor &b)
{
    return b.shift >= 0 ? a >> b.shift : a / b.by;
}

// ------------------------------------------------------------------------------------ rows

// One unit as it came from memory.
template <typename T, int kWidth>
struct row_unit {
    uint4 raw;
    __device__ __forceinline__ void keep(uint8_t *to) const
    {
        *reinterpret_cast<uint4 *>(to) = raw;
    }
    __device__ __forceinline__ void load(const char *from)
    {
        raw = load_16(from);
    }
    __device__ __forceinline__ void get(float (&x)[kWidth]) const
    {
        unpack<T>(raw, x);
    }
};
template <typename T>
struct row_unit<T, 1> {
    T value;
    __device__ __forceinline__ void keep(uint8_t *to) const
    {
        *reinterpret_cast<T *>(to) = value;
    }
    __device__ __forceinline__ void load(const char *from)
    {
        value = *reinterpret_cast<const T *>(from);
    }
    __device__ __forceinline__ void get(float (&x)[1]) const
    {
        x[0] = element<T>::to_float(value);
    }
};

// What a cache takes. FP8 alone:
struct fp8_format {
    bool is_e5m2;

    template <typename T>
    __device__ __forceinline__ int bytes() const
    {
        return 1;
    }
    template <typename T, int kWidth>
    __device__ __forceinline__ void write(uint8_t *to, const row_unit<T, kWidth> &unit,
                                          float scale) const
    {
        float x[kWidth];
        unit.get(x);
        store_fp8(to, x, scale, is_e5m2);
    }
};

// FP8, or what came in.
enum cache_kind { kCacheAsIs, kCacheE4M3, kCacheE5M2 };

struct cache_format {
    int kind; // the same for a whole launch: its branches never diverge

    template <typename T>
    __device__ __forceinline__ int bytes() const
    {
        return kind == kCacheAsIs ? (int)sizeof(T) : 1;
    }
    template <typename T, int kWidth>
    __device__ __forceinline__ void write(uint8_t *to, const row_unit<T, kWidth> &unit,
                                          float scale) const
    {
        if (kind == kCacheAsIs)
            unit.keep(to);
        else
            fp8_format{kind == kCacheE5M2}.write<T, kWidth>(to, unit, scale);
    }
    // n elements that were computed, from element at of a row on
    template <typename T, int n>
    __device__ __forceinline__ void store(char *row, int at, const float (&x)[n], float scale) const
    {
        if (kind == kCacheAsIs)
            store_floats(reinterpret_cast<T *>(row) + at, x);
        else
            store_fp8(reinterpret_cast<uint8_t *>(row) + at, x, scale, kind == kCacheE5M2);
    }
};

// One tile of rows: a thread has the same unit of tile_tokens neighbouring tokens, so that it finds
// the unit's head and column once, and each token's cell by a load that those of the data hide.
template <typename T, int kWidth, cell_class kCells, typename Format>
__device__ __forceinline__ void write_row_tile(const row_stream &rows, const append_map &map,
                                               int tile_tokens, const Format &format, int64_t item)
{
    constexpr int kUnitBytes = kWidth * (int)sizeof(T);
    int64_t token_bytes = rows.token_bytes;
    int64_t group = quotient(item, rows.token_units);
    uint32_t unit = (uint32_t)(item - group * rows.token_units.by);
    uint32_t head = quotient(unit, rows.row_units);
    uint32_t column = (unit - head * rows.row_units.by) * kWidth;
    uint32_t token = (uint32_t)group * tile_tokens;
    int n = item < rows.n_items ? (int)min(rows.n_tokens - token, (uint32_t)tile_tokens) : 0;
    const char *from =
        static_cast<const char *>(rows.from) + token * token_bytes + (int64_t)unit * kUnitBytes;
    uint8_t *to =
        rows.to + head * map.head_stride * rows.cell_bytes + column * format.template bytes<T>();
    from = compute_now(from);
    n = compute_now(n);
    wait_for_previous();
    row_unit<T, kWidth> units[kTileVectors];
    int64_t cell[kTileVectors];
#pragma unroll
    for (int i = 0; i < kTileVectors; i++)
        if (i < n)
            units[i].load(from + i * token_bytes);
#pragma unroll
    for (int i = 0; i < kTileVectors; i++)
        cell[i] = i < n ? cell_of<kCells>(map, token + i) : -1;
#pragma unroll
    for (int i = 0; i < kTileVectors; i++) {
        if (cell[i] < 0)
            continue;
        format.template write<T, kWidth>(to + cell[i] * rows.cell_bytes, units[i], rows.scale);
    }
}

// The same for rows that have no vectors. Out of line: few do, and calls of few tokens wait for the
// instructions that they fetch.
template <typename T, typename Format>
static __device__ __noinline__ void write_elements(const row_stream &rows, const append_map &map,
                                                   int tile_tokens, const Format &format,
                                                   int64_t item)
{
    write_row_tile<T, 1, kCellsAny>(rows, map, tile_tokens, format, item);
}

// A block's tile of rows. kVectors: they have vectors.
template <typename T, bool kVectors, cell_class kCells, typename Format>
__device__ __forceinline__ void write_rows(const row_stream &rows, const append_map &map,
                                           int tile_tokens, const Format &format, int64_t tile,
                                           const stream_place &place)
{
    if (tile >= rows.n_tiles)
        return;
    int64_t item = tile * place.threads + place.thread;
    if (kVectors || rows.has_vectors)
        write_row_tile<T, kVecOf<T>, kCells>(rows, map, tile_tokens, format, item);
    else
        write_elements<T>(rows, map, tile_tokens, format, item);
}

// Host: heads rows of width elements per token, to the place of the first in cell 0; units are
// elements.
static inline struct row_stream row_stream_of(const struct roped_tensor *from, void *to,
                                              int64_t n_tokens, int64_t heads, int64_t width,
                                              int64_t cell_bytes, float scale)
{
    struct row_stream rows = {};
    if (heads * width == 0)
        return rows;
    int64_t stride = from->stride ? from->stride : heads * width;
    rows.from = from->data;
    rows.to = static_cast<uint8_t *>(to);
    rows.n_tokens = (uint32_t)n_tokens;
    rows.token_bytes = (uint32_t)(stride * (int64_t)roped_dtype_bytes(from->dtype));
    rows.cell_bytes = (uint32_t)cell_bytes;
    rows.token_units = divisor_by(heads * width);
    rows.row_units = divisor_by(width);
    rows.scale = scale;
    return rows;
}

// Host: rows of elements become rows of vectors where every row and every cell allows it;
// element_bytes is that of the cache.
static inline void use_vectors(struct row_stream *rows, int vector, int element_bytes)
{
    uint32_t width = rows->row_units.by, by = (uint32_t)vector;
    uint32_t bytes = by * (uint32_t)element_bytes;
    rows->has_vectors = (uintptr_t)rows->from % 16 == 0 && (uintptr_t)rows->to % bytes == 0 &&
                        width % by == 0 && rows->token_bytes % 16 == 0 &&
                        rows->cell_bytes % bytes == 0;
    if (rows->has_vectors) {
        rows->row_units = divisor_by(width / by);
        rows->token_units = divisor_by(rows->token_units.by / by);
    }
}

// Host: cuts rows into tiles of a block's threads, each with tile_tokens tokens; how many.
static inline int64_t cut_rows(struct row_stream *rows, int tile_tokens, int64_t threads)
{
    int64_t groups = ((int64_t)rows->n_tokens + tile_tokens - 1) / tile_tokens;
    rows->n_items = groups * rows->token_units.by;
    rows->n_tiles = (rows->n_items + threads - 1) / threads;
    return rows->n_tiles;
}
