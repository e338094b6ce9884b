// rotate_launch.cuh - how a rotation is cut into blocks: units, heads and tokens over
// (threadIdx.x, y, z) and the grid. Host code only.
#pragma once

#include "cuda/device/rotate.cuh"
#include "cuda/dispatch.cuh"

enum {
    ROTATE_THREADS = 256,      // per block at most
    ROTATE_MIN_BLOCKS = 1,     // per multiprocessor: registers for loads count for more
    ROTATE_MIN_THREADS = 64,   // small work: more blocks, so that more multiprocessors start
    ROTATE_FILL_THREADS = 768, // per multiprocessor, before a thread walks more than one row
    ROTATE_MAX_GRID = 65535,   // of grid.y; heads beyond are walked
    ROTATE_MAX_WIDTH = 1 << 24 // of a head, elements
};

// Rows that a thread walks at most: eight 16-byte loads in flight.
template <int kUnit>
constexpr int kRotateRows = kUnit == kUnitGptj ? 8 : 4;

struct rotate_shape {
    dim3 block;
    dim3 grid;         // x: see n_columns
    int64_t n_columns; // blocks along the tokens
    int rows;          // per thread
};

static inline int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static inline int64_t at_most(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

// Units of 16 bytes need every pointer and every offset inside a row to be a multiple of 16
// bytes. The caller checks the pointers.
static inline bool can_use_vectors(const struct rope_rotary *rotary, int64_t head_dim,
                                   int64_t rotary_offset, int vector)
{
    int64_t half = rotary->style == ROPE_NEOX ? rotary->n_pairs : 2 * rotary->n_pairs;
    return head_dim % vector == 0 && rotary_offset % vector == 0 && half % vector == 0;
}

// Rows that a thread walks: as many as leave every multiprocessor enough threads to hide the
// latency of memory. A decode step of a few tokens gets one row per thread.
static inline int rows_per_thread(int64_t n_tokens, int64_t units, int64_t n_rows, int max_rows,
                                  int n_multiprocessors)
{
    int64_t enough = (int64_t)n_multiprocessors * ROTATE_FILL_THREADS;
    for (int rows = max_rows; rows > 1; rows--)
        if (n_tokens * units * ceil_div(n_rows, rows) >= enough)
            return rows;
    return 1;
}

// The share of lanes in whole warps that have work, in thousandths.
static inline int64_t lanes_used(int64_t x, int64_t y, int64_t z, int64_t grid_y, int64_t n_heads,
                                 int rows)
{
    int64_t lanes = ceil_div(x * y * z, 32) * 32 * grid_y * rows;
    return 1000 * n_heads * x * z / lanes;
}

// Heads of a token over threadIdx.y, and over grid.y where a block has no room for them. Among
// the counts of rows per thread near max_rows, and of tokens per block, the one that wastes the
// fewest lanes: 40 heads of 8 units become 10 lanes of 4 heads, two tokens in five whole warps.
static struct rotate_shape shape_heads(int64_t n_tokens, int units, int64_t n_heads, int max_rows,
                                       int threads)
{
    struct rotate_shape best = {};
    int64_t best_used = -1;
    int x = (int)ceil_div(units, ceil_div(units, ROTATE_THREADS));
    for (int rows = max_rows; rows >= 1 && 2 * rows >= max_rows; rows--) {
        int64_t lanes = ceil_div(n_heads, rows);
        int64_t room = x < threads ? threads / x : 1;
        int64_t grid_y = at_most(ceil_div(lanes, room), ROTATE_MAX_GRID);
        int64_t y = at_most(ceil_div(lanes, grid_y), room);
        int64_t max_z = at_most(at_most(room / y, n_tokens), 64); // threadIdx.z
        for (int64_t z = max_z; z >= 1 && 2 * z >= max_z; z--) {
            int64_t used = lanes_used(x, y, z, grid_y, n_heads, rows);
            if (used <= best_used)
                continue;
            best_used = used;
            best.block = dim3((unsigned)x, (unsigned)y, (unsigned)z);
            best.grid = dim3(1, (unsigned)grid_y, (unsigned)ceil_div(units, x));
            best.n_columns = ceil_div(n_tokens, z);
            best.rows = rows;
        }
    }
    return best;
}

// One head: tokens over threadIdx.z, and several of them per thread.
static struct rotate_shape shape_tokens(int64_t n_tokens, int units, int rows, int threads)
{
    struct rotate_shape shape;
    int64_t x = ceil_div(units, ceil_div(units, ROTATE_THREADS));
    int64_t z = at_most(x < threads ? threads / x : 1, 64);
    shape.block = dim3((unsigned)x, 1, (unsigned)z);
    shape.grid = dim3(1, 1, (unsigned)ceil_div(units, x));
    shape.n_columns = ceil_div(n_tokens, z * rows);
    shape.rows = rows;
    return shape;
}

// The smallest block that gives every multiprocessor one, for work of this many threads.
static inline int block_threads(int64_t n_threads, int n_multiprocessors)
{
    int64_t threads = ceil_div(n_threads, (int64_t)n_multiprocessors * 32) * 32;
    threads = threads < ROTATE_MIN_THREADS ? ROTATE_MIN_THREADS : threads;
    return (int)at_most(threads, ROTATE_THREADS);
}

// Offsets inside a head are 32-bit, and grid.z has room for this many scalar units.
static inline enum roped_status check_head_width(const char *tensor, int64_t width,
                                                 struct roped_error *err)
{
    if (width <= ROTATE_MAX_WIDTH)
        return ROPED_OK;
    return roped_fail(err, ROPED_TOO_LARGE,
                      "tensor '%s': head width %lld, expected at most %d on a CUDA device", tensor,
                      (long long)width, ROTATE_MAX_WIDTH);
}
