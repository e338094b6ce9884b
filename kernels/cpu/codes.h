/*
 * codes.h - values that share a scale to codes, and back: what quantize,
 * dequantize and whatever else makes codes share on the CPU.
 */
#ifndef ROPED_CPU_CODES_H
#define ROPED_CPU_CODES_H

#include "cpu/cpu_internal.h"
#include "cpu/quantize_rows.h"
#include "ops/quantize.h"

enum { CPU_MOST_TILES = CPU_BLOCK / 16 }; /* of a block */

/* Where the scale of a tile is, and what those of n tiles are as numbers, at
 * most CPU_MOST_TILES; those of the rows below come behind a row's last. */
int64_t code_scale_at(const struct code_tiles *tiles, int64_t strip,
                      int64_t tile);
void code_scale_values(const struct cpu_rows *rows, enum code_scale kind,
                       const struct code_tiles *tiles, const void *scales,
                       int64_t strip, int64_t tile, int64_t n, float *value);

/* The same of scales that are bytes, as they are. */
void code_scale_bytes(const struct code_tiles *tiles, const void *scales,
                      int64_t strip, int64_t tile, int64_t n, uint8_t *code);

/* Does NaN count for a scale? */
bool code_counts_nan(const struct code_rule *rule);

/* Where the scales of tiles beside each other go; those of the rows below come
 * behind a row's last. */
struct code_scales {
    const struct code_tiles *tiles;
    void *data;
    int64_t strip, first; /* of the tiles */
};

/* Writes the scales of n tiles, at most CPU_MOST_TILES, whose values are up to
 * magnitudes of these bits, and says by what they are divided, and what those
 * are that have a byte. divisor: of E4M3 it may be NULL. */
void code_scales_store(const struct cpu_rows *rows,
                       const struct code_rule *rule, const int32_t *largest,
                       int64_t n, const struct code_scales *to, float *divisor,
                       uint8_t *code);

/* What values are divided by of n scales of E4M3, at most CPU_MOST_TILES: Inf
 * where that is 0, as all values become 0 then. */
void code_divisors(const struct cpu_rows *rows, const uint8_t *code, int64_t n,
                   float *divisor);

/* Where values come from: elements [first, first + n) of a row, at most
 * CPU_BLOCK, into room for n rounded up to CPU_LANES. */
struct code_source {
    void (*load)(const void *of, int64_t row, int64_t first, int64_t n,
                 float *to);
    const void *of;
    const struct roped_tensor *x; /* (optional) whose rows they are */
    int64_t first;                /* row that x begins with */
    /* (optional) the same as odd_words makes of them; n: whole groups of 32 */
    void (*load_words)(const void *of, int64_t row, int64_t first, int64_t n,
                       uint16_t *to);
};

/* Computes a call whose outputs are those of quantize. */
void code_quantize(const struct quantize_plan *plan,
                   const struct code_source *source,
                   const struct roped_call *call, struct roped_queue *queue);

/* Scales are known for the calls of a thread that have a target. */
void code_forget_scales(struct cpu_nibble_tables *tables);

/* Makes codes of rows [begin, end) on this thread, by scales that are given or
 * those of rows or of their groups. */
struct code_target {
    const struct quantize_plan *plan;
    const struct roped_tensor *y, *scales;
    bool is_streamed;
};
void code_quantize_rows(const struct cpu_rows *rows,
                        const struct code_target *to,
                        const struct code_source *source, int64_t begin,
                        int64_t end, struct cpu_nibble_tables *tables);

/* Zeros where scales are beyond rows and tiles. */
void code_clear_padding(const struct code_tiles *tiles,
                        const struct roped_tensor *scales);

#endif
