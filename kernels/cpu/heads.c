/*
 * heads.c - the heads of one token, rotated or as they are.
 */
#include "cpu/heads.h"

static void rotate_block(struct cpu_token *token, const struct cpu_heads *heads,
                         void *to, const void *from, int64_t first)
{
    const struct cpu_pairs pairs = {
        first, cpu_smaller(heads->n_pairs - first, CPU_PAIRS), token->c,
        token->s};
    if (token->first != first)
        cpu_angles_fill(token->angles, token->index, &pairs);
    token->first = first;
    token->angles->rows->rotate(heads, to, from, &pairs);
}

void cpu_heads_rotate(struct cpu_token *token, const struct cpu_heads *heads,
                      float eps, void *to, const void *from)
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
            const struct cpu_norm_rows rows = {.n = part.n_heads, .x = x};
            token->angles->rows->inverse_rms(heads->from, heads->width, &rows,
                                             eps, s);
        }
        for (int64_t first = 0; first < heads->n_pairs; first += CPU_PAIRS)
            rotate_block(token, &part, y, x, first);
    }
}

void cpu_heads_copy(const struct cpu_rows *rows, const struct cpu_heads *heads,
                    void *to, const void *from)
{
    const struct cpu_conversion how = {heads->from, heads->to, heads->scale,
                                       heads->is_streamed};
    bool is_one =
        heads->from_pitch == heads->width && heads->to_pitch == heads->width;
    int64_t n_rows = is_one && heads->n_heads ? 1 : heads->n_heads;
    int64_t width = is_one ? heads->n_heads * heads->width : heads->width;
    for (int64_t i = 0; i < n_rows; i++)
        rows->convert(
            &how, cpu_at(to, i * heads->to_pitch, roped_dtype_bytes(how.to)),
            cpu_at((void *)from, i * heads->from_pitch,
                   roped_dtype_bytes(how.from)),
            width);
}
