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

/* A tensor that is added, and what it is multiplied by. */
struct term {
    const void *row; /* NULL: there is none */
    enum roped_dtype dtype;
    float scale;
};

static void round_step(const struct block *block, enum roped_dtype dtype,
                       float *z)
{
    if (block->how->plan->rounds_sum && dtype != ROPED_F32)
        block->how->rows->round(dtype, z, block->n);
}

static void load(const struct block *block, const struct term *term, float *to)
{
    const struct cpu_rows *rows = block->how->rows;
    const size_t bytes = roped_dtype_bytes(term->dtype);
    rows->widen(term->dtype, to,
                (const unsigned char *)term->row + (size_t)block->first * bytes,
                block->n);
    if (term->scale == 1)
        return;
    rows->scale(to, term->scale, block->n);
    round_step(block, term->dtype, to);
}

/* Returns the type that the sum has then. */
static enum roped_dtype add(const struct block *block, const struct term *term,
                            enum roped_dtype dtype)
{
    float other[CPU_BLOCK];
    load(block, term, other);
    for (int64_t i = 0; i < block->n; i++)
        block->z[i] += other[i];
    return term->dtype == ROPED_F32 ? ROPED_F32 : dtype;
}

/* A step is rounded before the next one; the last one as it is stored. */
static void add_up(const struct block *block, const struct cpu_norm_terms *row)
{
    const struct cpu_norm_sum *how = block->how;
    const struct rmsnorm_plan *plan = how->plan;
    const struct term x = {row->x, how->dtype, plan->x_scale},
                      residual = {row->residual, how->residual_dtype,
                                  plan->residual_scale},
                      addend = {row->addend, how->dtype, plan->addend_scale};
    const bool is_first = plan->sum_order == RMSNORM_RESIDUAL_FIRST;
    const struct term *const others[] = {is_first ? &residual : &addend,
                                         is_first ? &addend : &residual};
    enum roped_dtype dtype = how->dtype;
    load(block, &x, block->z);
    for (int i = 0; i < 2; i++) {
        if (!others[i]->row)
            continue;
        dtype = add(block, others[i], dtype);
        if ((i == 0 && others[1]->row) || plan->sum_scale != 1)
            round_step(block, dtype, block->z);
    }
    if (plan->sum_scale != 1)
        how->rows->scale(block->z, plan->sum_scale, block->n);
}

/* Elements [first, first + n) of a row of a type. */
static void store(const struct block *block, enum roped_dtype dtype, void *row)
{
    const struct cpu_conversion narrow = {.from = ROPED_F32, .to = dtype};
    block->how->rows->convert(
        &narrow, cpu_at(row, block->first, roped_dtype_bytes(dtype)), block->z,
        block->n);
}

void cpu_norm_sum_row(const struct cpu_norm_sum *how,
                      const struct cpu_norm_terms *row)
{
    const bool keeps_floats = row->kept && how->kept_dtype == ROPED_F32;
    float own[CPU_BLOCK];
    for (int64_t i = 0; i < how->plan->hidden; i += CPU_BLOCK) {
        const struct block block = {
            .how = how,
            .first = i,
            .n = cpu_smaller(how->plan->hidden - i, CPU_BLOCK),
            .z = keeps_floats ? (float *)row->kept + i : own};
        add_up(&block, row);
        store(&block, how->residual_dtype, row->sum);
        if (row->kept && !keeps_floats)
            store(&block, how->kept_dtype, row->kept);
    }
}
