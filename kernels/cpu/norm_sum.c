/*
 * norm_sum.c - a row is added up block by block, each of which stays in the
 * first-level cache.
 */
#include "cpu/norm_sum.h"

#include "cpu/cpu_internal.h"

/* Elements [first, first + n) of a row, at most CPU_BLOCK, and their sum. */
struct block {
    const struct cpu_norm_sum *how;
    int64_t first, n;
    float *z;
};

static void round_sum(const struct block *block)
{
    if (block->how->is_rounded)
        cpu_round(block->how->rows, block->how->dtype, block->z, block->n);
}

static void widen(const struct block *block, float *to, const void *row)
{
    const enum roped_dtype dtype = block->how->dtype;
    block->how->rows->widen(dtype, to,
                            (const unsigned char *)row +
                                (size_t)block->first * roped_dtype_bytes(dtype),
                            block->n);
}

static void add(const struct block *block, const void *row)
{
    float other[CPU_BLOCK];
    widen(block, other, row);
    for (int64_t i = 0; i < block->n; i++)
        block->z[i] += other[i];
}

/* A step is rounded before the next one; the last one as it is stored. */
static void add_up(const struct block *block, const struct cpu_norm_terms *row)
{
    const struct cpu_norm_sum *how = block->how;
    const void *const first =
        how->is_residual_first ? row->residual : row->addend;
    const void *const last =
        how->is_residual_first ? row->addend : row->residual;
    bool is_step = how->x_scale != 1;
    widen(block, block->z, row->x);
    if (is_step)
        how->rows->scale(block->z, how->x_scale, block->n);
    for (int i = 0; i < 2; i++) {
        const void *const term = i == 0 ? first : last;
        if (!term)
            continue;
        if (is_step)
            round_sum(block);
        add(block, term);
        is_step = true;
    }
}

void cpu_norm_sum_row(const struct cpu_norm_sum *how,
                      const struct cpu_norm_terms *row)
{
    const struct cpu_conversion narrow = {.from = ROPED_F32, .to = how->dtype};
    const size_t bytes = roped_dtype_bytes(how->dtype);
    float own[CPU_BLOCK];
    for (int64_t i = 0; i < how->width; i += CPU_BLOCK) {
        const struct block block = {.how = how,
                                    .first = i,
                                    .n = cpu_smaller(how->width - i, CPU_BLOCK),
                                    .z = row->exact ? row->exact + i : own};
        add_up(&block, row);
        how->rows->convert(&narrow, cpu_at(row->sum, i, bytes), block.z,
                           block.n);
    }
}
