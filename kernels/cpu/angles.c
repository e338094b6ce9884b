/*
 * angles.c - cos and sin of a token: from a table, from the request, or
 * computed; and the tables themselves.
 */
#include "cpu/cpu_internal.h"

#include <string.h>

struct cpu_angles cpu_angles_of(const struct roped_call *call,
                                const struct rope_rotary *planned,
                                int positions_port,
                                const struct roped_queue *queue)
{
    struct cpu_angles angles = {
        .rotary = rope_rotary_bind(call, planned, positions_port),
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

static void fill_from(const struct cpu_angles *angles, enum roped_dtype dtype,
                      const void *c_base, int64_t c_at, const void *s_base,
                      int64_t s_at, int64_t n, float *c, float *s)
{
    size_t bytes = roped_dtype_bytes(dtype);
    angles->rows->widen(
        dtype, c, (const unsigned char *)c_base + (size_t)c_at * bytes, n);
    angles->rows->widen(
        dtype, s, (const unsigned char *)s_base + (size_t)s_at * bytes, n);
    if (angles->rotary.sin_sign < 0)
        angles->rows->scale(s, -1, n);
}

static void fill_position(const struct cpu_angles *angles, int64_t position,
                          int64_t first, int64_t n, float *c, float *s)
{
    const struct rope_rotary *rotary = &angles->rotary;
    int64_t row = position * 2 * rotary->n_pairs + first;
    int64_t sines = row + rotary->n_pairs;
    if (rotary->angle_source == ROPE_ANGLES_CACHE) {
        fill_from(angles, (enum roped_dtype)rotary->angle_dtype,
                  rotary->angle[0], row, rotary->angle[0], sines, n, c, s);
        return;
    }
    if (angles->table) {
        fill_from(angles, ROPED_F32, angles->table, row, angles->table, sines,
                  n, c, s);
        return;
    }
    struct roped_angles part = angles->derived;
    if (part.precision == ROPED_ANGLE_F64)
        part.frequency.f64 += first;
    else
        part.frequency.f32 += first;
    angles->rows->angles(c, s, (double)position, &part, rotary->sin_sign, n);
}

void cpu_angles_fill(const struct cpu_angles *angles, int64_t token,
                     int64_t first, int64_t n, float *c, float *s)
{
    const struct rope_rotary *rotary = &angles->rotary;
    if (rotary->angle_source == ROPE_ANGLES_PAIR) {
        int64_t at = token * rotary->n_pairs + first;
        fill_from(angles, (enum roped_dtype)rotary->angle_dtype,
                  rotary->angle[0], at, rotary->angle[1], at, n, c, s);
        return;
    }
    if (rotary->n_axes == 1) {
        fill_position(angles, position_of(rotary, token, 0), first, n, c, s);
        return;
    }
    const uint8_t *axis_of = rotary->axis_of + first;
    for (int64_t i = 0; i < n;) { /* runs of pairs that share a row */
        int64_t run = 1;
        while (i + run < n && axis_of[i + run] == axis_of[i])
            run++;
        fill_position(angles, position_of(rotary, token, axis_of[i]), first + i,
                      run, c + i, s + i);
        i += run;
    }
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
