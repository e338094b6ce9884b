/*
 * angles.c - cos and sin of a token: from a table, from the request, or
 * computed; and the tables themselves.
 */
#include "cpu/cpu_internal.h"

#include <string.h>

struct cpu_angles cpu_angles_of(const struct roped_call *call,
                                const struct rope_rotary *planned,
                                const struct roped_queue *queue)
{
    struct cpu_angles angles = {.rotary = rope_rotary_bind(call, planned),
                                .table = call->table.data,
                                .rows = queue->backend->rows};
    angles.derived.n_pairs = planned->n_pairs;
    angles.derived.precision = planned->precision;
    angles.derived.attention_factor = planned->attention_factor;
    angles.derived.frequency.f32 = call->aux;
    return angles;
}

static int64_t index_at(const struct rope_rotary *rotary, int which, int64_t i)
{
    if (rotary->positions == ROPE_POSITIONS_I32 ||
        rotary->positions == ROPE_POSITIONS_RAGGED_I32)
        return ((const int32_t *)rotary->index[which])[i];
    return ((const int64_t *)rotary->index[which])[i];
}

/* The sequence of a token: the last j with indptr[j] <= token. */
static int64_t sequence_of(const struct rope_rotary *rotary, int64_t token)
{
    int64_t low = 0, high = rotary->n_sequences;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (index_at(rotary, 0, middle) <= token)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static int64_t position_of(const struct rope_rotary *rotary, int64_t token,
                           int row)
{
    switch ((enum rope_positions)rotary->positions) {
    case ROPE_POSITIONS_NONE:
        break;
    case ROPE_POSITIONS_IMPLICIT:
        return rotary->offset + token % rotary->tokens_per_sequence;
    case ROPE_POSITIONS_I32:
    case ROPE_POSITIONS_I64:
        return index_at(rotary, 0, row * rotary->n_tokens + token);
    case ROPE_POSITIONS_RAGGED_I32:
    case ROPE_POSITIONS_RAGGED_I64: {
        int64_t j = sequence_of(rotary, token);
        return index_at(rotary, 1, j) + token - index_at(rotary, 0, j);
    }
    }
    return token;
}

bool cpu_is_padding(const struct cpu_angles *angles, int64_t token)
{
    return angles->rotary.has_padding &&
           position_of(&angles->rotary, token, 0) < 0;
}

static const void *angle_at(const void *base, enum roped_dtype dtype, int64_t i)
{
    return cpu_at((void *)base, i, roped_dtype_bytes(dtype));
}

/* From a row of cosines and one of sines. */
static void fill_from(const struct cpu_angles *angles, enum roped_dtype dtype,
                      const void *cosines, const void *sines,
                      const struct cpu_pairs *pairs)
{
    angles->rows->widen(dtype, pairs->c, cosines, pairs->n);
    angles->rows->widen(dtype, pairs->s, sines, pairs->n);
    if (angles->rotary.sin_sign < 0)
        angles->rows->scale(pairs->s, -1, pairs->n);
}

static void compute(const struct cpu_angles *angles, int64_t position,
                    const struct cpu_pairs *pairs)
{
    struct roped_angles part = angles->derived;
    if (part.precision == ROPED_ANGLE_F64)
        part.frequency.f64 += pairs->first;
    else
        part.frequency.f32 += pairs->first;
    angles->rows->angles(pairs->c, pairs->s, (double)position, &part,
                         angles->rotary.sin_sign, pairs->n);
}

static void fill_position(const struct cpu_angles *angles, int64_t position,
                          const struct cpu_pairs *pairs)
{
    const struct rope_rotary *rotary = &angles->rotary;
    bool is_cache = rotary->angle_source == ROPE_ANGLES_CACHE;
    enum roped_dtype dtype =
        is_cache ? (enum roped_dtype)rotary->angle_dtype : ROPED_F32;
    const void *table = is_cache ? rotary->angle[0] : angles->table;
    int64_t row = position * 2 * rotary->n_pairs + pairs->first;
    if (table)
        fill_from(angles, dtype, angle_at(table, dtype, row),
                  angle_at(table, dtype, row + rotary->n_pairs), pairs);
    else
        compute(angles, position, pairs);
}

/* Runs of pairs that share a row of positions. */
static void fill_axes(const struct cpu_angles *angles, int64_t token,
                      const struct cpu_pairs *pairs)
{
    const struct rope_rotary *rotary = &angles->rotary;
    const uint8_t *axis_of = rotary->axis_of + pairs->first;
    for (int64_t i = 0; i < pairs->n;) {
        struct cpu_pairs run = {pairs->first + i, 1, pairs->c + i,
                                pairs->s + i};
        while (i + run.n < pairs->n && axis_of[i + run.n] == axis_of[i])
            run.n++;
        fill_position(angles, position_of(rotary, token, axis_of[i]), &run);
        i += run.n;
    }
}

void cpu_angles_fill(const struct cpu_angles *angles, int64_t token,
                     const struct cpu_pairs *pairs)
{
    const struct rope_rotary *rotary = &angles->rotary;
    enum roped_dtype dtype = (enum roped_dtype)rotary->angle_dtype;
    int64_t at = token * rotary->n_pairs + pairs->first;
    if (rotary->angle_source == ROPE_ANGLES_PAIR)
        fill_from(angles, dtype, angle_at(rotary->angle[0], dtype, at),
                  angle_at(rotary->angle[1], dtype, at), pairs);
    else if (rotary->n_axes == 1)
        fill_position(angles, position_of(rotary, token, 0), pairs);
    else
        fill_axes(angles, token, pairs);
}

struct table_loop {
    const struct cpu_rows *rows;
    const struct roped_angles *angles;
    int64_t first_row;
    float *table;
};

static void fill_rows(void *context, int64_t begin, int64_t end)
{
    const struct table_loop *loop = context;
    int64_t n = loop->angles->n_pairs;
    for (int64_t row = begin; row < end; row++) {
        float *c = loop->table + row * 2 * n;
        loop->rows->angles(c, c + n, (double)(loop->first_row + row),
                           loop->angles, 1, n);
    }
}

enum roped_status cpu_build_table(struct roped_queue *queue,
                                  const struct roped_angles *angles,
                                  int64_t first_row, int64_t rows,
                                  float *device, struct roped_error *err)
{
    struct table_loop loop = {queue->backend->rows, angles, first_row, device};
    (void)err;
    /* a sine costs about as much as moving 64 bytes */
    pool_for(queue->backend->pool, rows, rows * angles->n_pairs * 64, fill_rows,
             &loop);
    return ROPED_OK;
}
