/*
 * heads.c - the heads of one token, rotated or as they are.
 */
#include "cpu/heads.h"

static void rotate_block(const struct cpu_angles *angles,
                         const struct cpu_heads *heads, void *to,
                         const void *from, int64_t token, int64_t first,
                         struct cpu_pair_block *block)
{
    int64_t n = cpu_smaller(heads->n_pairs - first, CPU_PAIRS);
    if (block->token != token || block->first != first)
        cpu_angles_fill(angles, token, first, n, block->c, block->s);
    block->token = token;
    block->first = first;
    angles->rows->rotate(heads, to, from, first, n, block->c, block->s);
}

void cpu_heads_rotate(const struct cpu_angles *angles,
                      const struct cpu_heads *heads, float eps, void *to,
                      const void *from, int64_t token,
                      struct cpu_pair_block *block)
{
    size_t from_bytes = roped_dtype_bytes(heads->from);
    size_t to_bytes = roped_dtype_bytes(heads->to);
    struct cpu_heads part = *heads;
    float s[CPU_ROWS];
    for (int64_t head = 0; head < heads->n_heads; head += part.n_heads) {
        void *x = cpu_at((void *)from, head * heads->from_pitch, from_bytes);
        void *y = cpu_at(to, head * heads->to_pitch, to_bytes);
        part.n_heads = heads->n_heads - head;
        if (heads->weight) {
            part.n_heads = cpu_smaller(part.n_heads, CPU_ROWS);
            part.s = s;
            angles->rows->inverse_rms(heads->from, x, NULL, part.n_heads,
                                      heads->width, eps, s);
        }
        for (int64_t first = 0; first < heads->n_pairs; first += CPU_PAIRS)
            rotate_block(angles, &part, y, x, token, first, block);
    }
}

void cpu_heads_copy(const struct cpu_angles *angles,
                    const struct cpu_heads *heads, void *to, const void *from)
{
    bool is_one =
        heads->from_pitch == heads->width && heads->to_pitch == heads->width;
    int64_t n_rows = is_one && heads->n_heads ? 1 : heads->n_heads;
    int64_t width = is_one ? heads->n_heads * heads->width : heads->width;
    for (int64_t i = 0; i < n_rows; i++)
        angles->rows->convert(
            heads->to,
            cpu_at(to, i * heads->to_pitch, roped_dtype_bytes(heads->to)),
            heads->from,
            cpu_at((void *)from, i * heads->from_pitch,
                   roped_dtype_bytes(heads->from)),
            heads->scale, width, heads->is_streamed);
}
