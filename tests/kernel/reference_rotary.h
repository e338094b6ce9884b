/*
 * reference_rotary.h - what the references of rotary operators share: angles
 * of a call in float64, rows of heads, and caches that rows are put into.
 */
#ifndef ROPED_TESTS_REFERENCE_ROTARY_H
#define ROPED_TESTS_REFERENCE_ROTARY_H

#include "kernel/reference_internal.h"

#include "ops/rmsnorm.h"
#include "ops/rope.h"

/* What a rotary operator's tensors and parameters say about angles. */
struct angle_view {
    const struct roped_angle_params *params;
    const struct roped_tensor *positions, *indptr, *offsets;
    const struct roped_tensor *cache, *cos, *sin;
    struct roped_angles angles;
    int64_t n_pairs;
    int64_t n_tokens, tokens_per_sequence, offset;
    double sign;
};

/* Of a call with q, or its rotary part, as its first input. */
void view_heads(struct angle_view *view, const struct roped_call *call);

/* Has a token position -1? It stays as it is then. */
bool is_padding(const struct angle_view *view, int64_t token);

void angle_of(const struct angle_view *view, int64_t token, int64_t pair,
              double *c, double *s);

/* Elements of a head that are pair. */
void pair_places(int64_t style, int64_t first, int64_t n_pairs, int64_t pair,
                 int64_t *a, int64_t *b);

/* Rows of heads of in, rotated to out. */
struct head_rows {
    const struct roped_tensor *in, *out;
    int64_t heads, width; /* of one row */
    int64_t first, style; /* first rotated element */
    double scale;         /* multiplied after the rotation */
    bool is_fp8;
    const char *name;
    /* Where (token, head) is in out, its first element; NULL: where it is in
     * in. -1: nowhere, not judged. */
    int64_t (*place)(const void *context, int64_t token, int64_t head);
    const void *context;
};

void judge_rotated_rows(struct reference_judge *judge,
                        const struct angle_view *view,
                        const struct head_rows *rows);

/* Weights of heads of q and k, and how they are normalised. */
struct norm_view {
    const struct roped_tensor *weight; /* of q, then k */
    const struct rmsnorm_params *params;
};

/* The same for heads that are normalised first; which: 0 q, 1 k. */
void judge_normal_rows(struct reference_judge *judge,
                       const struct angle_view *view,
                       const struct head_rows *rows,
                       const struct norm_view *norm, int which);

/* First element of (token, head) in in and in out; false: not in out. */
bool find_row(const struct head_rows *rows, int64_t token, int64_t head,
              int64_t *from, int64_t *to);

/* An element of out against its value before the scale. */
void judge_one(struct reference_judge *judge, const struct head_rows *rows,
               int64_t i, double exact, double scale);

/* An element that does not: as it was, or scaled to FP8. */
void judge_copied(struct reference_judge *judge, const struct head_rows *rows,
                  int64_t from, int64_t to);

/* Rows that do not rotate: copied bit for bit, or scaled to FP8. */
void judge_copied_rows(struct reference_judge *judge, int64_t n_tokens,
                       const struct head_rows *rows);

#endif
