/*
 * reference_internal.h - what the references of several operators share:
 * judging an element, and the angles of a call in float64.
 */
#ifndef ROPED_TESTS_REFERENCE_INTERNAL_H
#define ROPED_TESTS_REFERENCE_INTERNAL_H

#include "kernel/reference.h"

/* Element i of an I32 or I64 tensor. */
int64_t reference_index(const struct roped_tensor *tensor, int64_t i);

/*
 * Judges one element of a float output. scale is the magnitude that float32
 * arithmetic worked at (the row's largest, the pair's larger): 1e-6 of it is
 * float32's share, one unit of the type the rounding's.
 */
void judge_float(struct reference_judge *judge, const struct roped_tensor *out,
                 int64_t i, double exact, double scale, const char *what);

/*
 * Judges one FP8 code: the correctly rounded one, or its neighbour where the
 * exact value lies within 1e-6 (of scale) of the midpoint between the two.
 */
void judge_fp8(struct reference_judge *judge, const struct roped_tensor *out,
               int64_t i, double exact, double scale, const char *what);

/* Counts an element that must be bit for bit right, and is or is not. */
void judge_bits(struct reference_judge *judge, bool is_right, int64_t i,
                const char *what);

/* x rounded to dtype, and the distance of its neighbours in it. */
double reference_rounded(double x, enum roped_dtype dtype);
double reference_unit(double x, enum roped_dtype dtype);

/* What a rotary operator's tensors and parameters say about angles. */
struct angle_view {
    const struct roped_call *call;
    const struct roped_angle_params *params;
    const struct roped_tensor *positions, *indptr, *offsets;
    const struct roped_tensor *cache, *cos, *sin;
    struct roped_angles angles;
    int64_t n_pairs;
    int64_t n_tokens, tokens_per_sequence, offset;
    double sign;
};

/* first is the operator's 'positions' port; the rest follow rope's order. */
void view_angles(struct angle_view *view, const struct roped_call *call,
                 int first);

/* The same for an operator with rope's q, parameters and forms; *width is the
 * head's. */
void view_heads(struct angle_view *view, const struct roped_call *call,
                int first, int64_t *width);

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

/* Rows that do not rotate: copied bit for bit, or scaled to FP8. */
void judge_copied_rows(struct reference_judge *judge, int64_t n_tokens,
                       const struct head_rows *rows);

/*
 * What an operator that appends to caches leaves where it does not write:
 * every element of out that has not been marked must be that of in.
 */
struct touched {
    const struct roped_tensor *in, *out;
    unsigned char *is_written; /* by element */
};
void touched_init(struct touched *touched, const struct roped_tensor *in,
                  const struct roped_tensor *out);
void touched_mark(struct touched *touched, int64_t first, int64_t n);
/* Judges the rest and frees. */
void touched_finish(struct touched *touched, struct reference_judge *judge,
                    const char *name);

#endif
