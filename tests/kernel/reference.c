/*
 * reference.c - the operators in float64, and how far a result may be off.
 */
#include "kernel/reference_rotary.h"

#include <roped/numeric.h>

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

double reference_value(const struct roped_tensor *tensor, int64_t i)
{
    switch (tensor->dtype) {
    case ROPED_F32:
        return (double)((const float *)tensor->data)[i];
    case ROPED_F16:
        return (double)roped_f16_to_float(((const uint16_t *)tensor->data)[i]);
    case ROPED_BF16:
        return (double)roped_bf16_to_float(((const uint16_t *)tensor->data)[i]);
    case ROPED_F8_E4M3:
        return (double)roped_e4m3_to_float(((const uint8_t *)tensor->data)[i]);
    case ROPED_F8_E5M2:
        return (double)roped_e5m2_to_float(((const uint8_t *)tensor->data)[i]);
    case ROPED_U8:
    case ROPED_I8:
        return (double)((const uint8_t *)tensor->data)[i]; /* of codes */
    default:
        abort();
    }
}

int64_t reference_index(const struct roped_tensor *tensor, int64_t i)
{
    if (tensor->dtype == ROPED_I32)
        return ((const int32_t *)tensor->data)[i];
    return ((const int64_t *)tensor->data)[i];
}

/* ---------------------------------------------------------------- judging */

/* Mantissa bits and smallest exponent of a type. */
static void format_of(enum roped_dtype dtype, int *mantissa, int *min_exponent,
                      double *max)
{
    *max = INFINITY;
    switch (dtype) {
    case ROPED_F16:
        *mantissa = 10, *min_exponent = -14;
        break;
    case ROPED_BF16:
        *mantissa = 7, *min_exponent = -126;
        break;
    case ROPED_F8_E4M3:
        *mantissa = 3, *min_exponent = -6, *max = 448;
        break;
    case ROPED_F8_E5M2:
        *mantissa = 2, *min_exponent = -14, *max = 57344;
        break;
    default:
        *mantissa = 23, *min_exponent = -126;
    }
}

/* Distance between neighbours of the format at x. */
static double unit_at(double x, int mantissa, int min_exponent)
{
    int exponent;
    if (x == 0 || !isfinite(x))
        return ldexp(1, min_exponent - mantissa);
    frexp(x, &exponent);
    exponent -= 1;
    if (exponent < min_exponent)
        exponent = min_exponent;
    return ldexp(1, exponent - mantissa);
}

static double round_to(double x, int mantissa, int min_exponent, double max)
{
    double unit = unit_at(x, mantissa, min_exponent);
    double rounded = nearbyint(x / unit) * unit;
    if (fabs(rounded) > max)
        rounded = copysign(max, x);
    return rounded;
}

void judge_value(struct reference_judge *judge, double found, double exact,
                 double allowed, const char *what, int64_t i)
{
    judge->n_checked++;
    double error = fabs(found - exact);
    bool is_right = isnan(exact)   ? isnan(found)
                    : isinf(exact) ? found == exact
                                   : error <= allowed;
    if (isfinite(exact) && allowed > 0 && error / allowed > judge->worst)
        judge->worst = error / allowed;
    if (is_right)
        return;
    if (judge->n_wrong++ == 0)
        snprintf(judge->first, sizeof judge->first,
                 "%s element %lld is %.9g, expected %.9g within %.3g", what,
                 (long long)i, found, exact, allowed);
}

void judge_bits(struct reference_judge *judge, bool is_right, int64_t i,
                const char *what)
{
    judge_value(judge, is_right ? 0 : 1, 0, 0, what, i);
}

double reference_unit(double x, enum roped_dtype dtype)
{
    int mantissa, min_exponent;
    double max;
    format_of(dtype, &mantissa, &min_exponent, &max);
    return unit_at(x, mantissa, min_exponent);
}

double reference_round(double x, enum roped_dtype dtype)
{
    int mantissa, min_exponent;
    double max;
    format_of(dtype, &mantissa, &min_exponent, &max);
    return round_to(x, mantissa, min_exponent, max);
}

double reference_lost(double a, double b)
{
    double lost = 0x1p-149 * (fabs(a) + fabs(b));
    return isfinite(lost) ? lost : 0;
}

double reference_round_float(double x, enum roped_dtype dtype)
{
    double rounded = reference_round(x, dtype);
    double largest = dtype == ROPED_F16 ? 65504 : 0x1.FEp127;
    if (dtype == ROPED_F32)
        return x;
    return fabs(rounded) > largest ? copysign(INFINITY, x) : rounded;
}

void judge_float(struct reference_judge *judge, const struct roped_tensor *out,
                 int64_t i, double exact, double scale, const char *what)
{
    int mantissa, min_exponent;
    double max;
    format_of(out->dtype, &mantissa, &min_exponent, &max);
    double found = reference_value(out, i);
    /* a term beyond float32 is Inf there, and a sum with it Inf or NaN */
    if (!isnan(exact) && 2 * scale > (double)FLT_MAX && !isfinite(found)) {
        judge->n_checked++;
        return;
    }
    if (out->dtype == ROPED_F32) {
        judge_value(judge, found, exact, 1e-6 * scale + 0x1p-149, what, i);
        return;
    }
    double rounded = round_to(exact, mantissa, min_exponent, INFINITY);
    double largest = out->dtype == ROPED_F16 ? 65504 : 0x1.FEp127;
    if (fabs(rounded) > largest && isfinite(exact))
        rounded = copysign(INFINITY, exact);
    /* what is left of terms that cancel may be beyond the type, or not */
    const double slack = 1e-6 * scale;
    const double unit = unit_at(fabs(exact) + slack, mantissa, min_exponent);
    if (isinf(rounded) && isfinite(found) &&
        fabs(exact) - slack < largest * 1.001) {
        judge_value(judge, found, exact,
                    unit_at(largest, mantissa, min_exponent) + slack, what, i);
        return;
    }
    if (isinf(found) && isfinite(exact) &&
        copysign(1, found) * exact + slack > largest) {
        judge->n_checked++;
        return;
    }
    judge_value(judge, found, rounded, unit + slack, what, i);
}

void judge_fp8(struct reference_judge *judge, const struct roped_tensor *out,
               int64_t i, double exact, double scale, const char *what)
{
    int mantissa, min_exponent;
    double max;
    uint8_t code = ((const uint8_t *)out->data)[i];
    format_of(out->dtype, &mantissa, &min_exponent, &max);
    if (isnan(exact)) {
        judge_value(judge, code == 0x7F ? 0 : 1, 0, 0, what, i);
        return;
    }
    double found = reference_value(out, i);
    double clamped = fabs(exact) > max ? copysign(max, exact) : exact;
    double rounded = round_to(clamped, mantissa, min_exponent, max);
    if (found == rounded) {
        /* a difference that cancels has float32's sign, as one below it has */
        bool same_zero = found != 0 || fabs(exact) <= 1e-6 * scale + 0x1p-140 ||
                         signbit(exact) == ((code & 0x80) != 0);
        judge_value(judge, same_zero ? found : NAN, rounded, 0, what, i);
        return;
    }
    /* a difference that cancels may be several codes off */
    double off = 1e-6 * fmax(scale, fabs(exact));
    bool is_near =
        found >= round_to(clamped - off, mantissa, min_exponent, max) &&
        found <= round_to(clamped + off, mantissa, min_exponent, max);
    judge_value(judge, is_near ? rounded : found, rounded, 0, what, i);
}

/* --------------------------------------------------------------- rotation */

/* Row of positions that a pair follows. */
static int64_t axis_of(const struct angle_view *view, int64_t pair)
{
    const struct roped_ints *section = &view->params->mrope_section;
    const struct roped_ints *axes = &view->params->mrope_axes;
    int64_t found = 0, end = 0;
    for (int s = 0; s < section->count; s++) {
        int64_t first = end;
        end += section->value[s];
        int64_t turns = view->params->mrope_turns;
        bool is_in = view->params->mrope_interleaved
                         ? pair % section->count == s &&
                               pair < section->count * section->value[s]
                     : s < turns
                         ? pair % turns == s && pair < turns * section->value[s]
                         : pair >= first && pair < end;
        found = is_in ? s : found;
    }
    return axes->count ? axes->value[found] : found;
}

static int64_t position_of(const struct angle_view *view, int64_t token,
                           int64_t pair)
{
    if (roped_tensor_given(view->positions)) {
        int64_t row = view->positions->rank == 2 ? axis_of(view, pair) : 0;
        return reference_index(view->positions, row * view->n_tokens + token);
    }
    if (roped_tensor_given(view->indptr)) {
        int64_t j = 0;
        while (reference_index(view->indptr, j + 1) <= token)
            j++;
        return reference_index(view->offsets, j) + token -
               reference_index(view->indptr, j);
    }
    return view->offset + token % view->tokens_per_sequence;
}

void angle_of(const struct angle_view *view, int64_t token, int64_t pair,
              double *c, double *s)
{
    if (roped_tensor_given(view->cos)) {
        *c = reference_value(view->cos, token * view->n_pairs + pair);
        *s = reference_value(view->sin, token * view->n_pairs + pair);
    } else if (roped_tensor_given(view->cache)) {
        int64_t row = position_of(view, token, pair) * 2 * view->n_pairs;
        *c = reference_value(view->cache, row + pair);
        *s = reference_value(view->cache, row + view->n_pairs + pair);
    } else {
        int64_t position = position_of(view, token, pair);
        double angle;
        if (view->angles.precision == ROPED_ANGLE_F64)
            angle = (double)position * view->angles.frequency.f64[pair];
        else
            angle =
                (double)((float)position * view->angles.frequency.f32[pair]);
        *c = cos(angle) * (double)view->angles.attention_factor;
        *s = sin(angle) * (double)view->angles.attention_factor;
        if (fabs(*s) < 0x1p-150) /* it is 0 in float32 */
            *s = 0;
    }
    *s *= view->sign;
}

_Static_assert(ROPE_N_STYLES == 2, "pair_places");

void pair_places(int64_t style, int64_t first, int64_t n_pairs, int64_t pair,
                 int64_t *a, int64_t *b)
{
    if (style == ROPE_NEOX) {
        *a = first + pair;
        *b = *a + n_pairs;
    } else {
        *a = first + 2 * pair;
        *b = *a + 1;
    }
}

bool find_row(const struct head_rows *rows, int64_t token, int64_t head,
              int64_t *from, int64_t *to)
{
    *from = *to = (token * rows->heads + head) * rows->width;
    if (rows->place)
        *to = rows->place(rows->context, token, head);
    return *to >= 0;
}

void judge_one(struct reference_judge *judge, const struct head_rows *rows,
               int64_t i, double exact, double scale)
{
    /* a term beyond float32 is Inf there, and Inf - Inf no number */
    if (rows->is_fp8 && 2 * scale > (double)FLT_MAX &&
        isnan(reference_value(rows->out, i)))
        judge->n_checked++;
    else if (rows->is_fp8) /* off by a step of float32, where it is subnormal */
        judge_fp8(judge, rows->out, i, exact * rows->scale,
                  (scale + 0x1p-149 / 1e-6) * rows->scale, rows->name);
    else
        judge_float(judge, rows->out, i, exact, scale, rows->name);
}

void judge_copied(struct reference_judge *judge, const struct head_rows *rows,
                  int64_t from, int64_t to)
{
    size_t bytes = roped_dtype_bytes(rows->in->dtype);
    if (rows->is_fp8) {
        double x = reference_value(rows->in, from);
        judge_fp8(judge, rows->out, to, (double)(float)(x * rows->scale), 0,
                  rows->name);
        return;
    }
    judge_bits(judge,
               memcmp((unsigned char *)rows->in->data + (size_t)from * bytes,
                      (unsigned char *)rows->out->data + (size_t)to * bytes,
                      bytes) == 0,
               to, rows->name);
}

bool is_padding(const struct angle_view *view, int64_t token)
{
    return roped_tensor_given(view->positions) &&
           reference_index(view->positions, token) == -1;
}

static void judge_rotated_row(struct reference_judge *judge,
                              const struct angle_view *view,
                              const struct head_rows *rows, int64_t token,
                              int64_t from, int64_t to)
{
    int64_t n_pairs = is_padding(view, token) ? 0 : view->n_pairs;
    for (int64_t i = 0; i < rows->width; i++)
        if (i < rows->first || i >= rows->first + 2 * n_pairs)
            judge_copied(judge, rows, from + i, to + i);
    for (int64_t pair = 0; pair < n_pairs; pair++) {
        int64_t ia, ib;
        double c, s;
        pair_places(rows->style, rows->first, view->n_pairs, pair, &ia, &ib);
        angle_of(view, token, pair, &c, &s);
        double a = reference_value(rows->in, from + ia);
        double b = reference_value(rows->in, from + ib);
        double scale = fmax(fabs(a), fabs(b)) * fmax(fabs(c), fabs(s));
        judge_one(judge, rows, to + ia, a * c - b * s, scale);
        judge_one(judge, rows, to + ib, b * c + a * s, scale);
    }
}

void judge_rotated_rows(struct reference_judge *judge,
                        const struct angle_view *view,
                        const struct head_rows *rows)
{
    int64_t from, to;
    for (int64_t token = 0; token < view->n_tokens; token++)
        for (int64_t head = 0; head < rows->heads; head++)
            if (find_row(rows, token, head, &from, &to))
                judge_rotated_row(judge, view, rows, token, from, to);
}

void judge_copied_rows(struct reference_judge *judge, int64_t n_tokens,
                       const struct head_rows *rows)
{
    int64_t from, to;
    for (int64_t token = 0; token < n_tokens; token++)
        for (int64_t head = 0; head < rows->heads; head++)
            if (find_row(rows, token, head, &from, &to))
                for (int64_t i = 0; i < rows->width; i++)
                    judge_copied(judge, rows, from + i, to + i);
}

void view_heads(struct angle_view *view, const struct roped_call *call)
{
    const struct rope_params *params = (const void *)call->params;
    const struct roped_tensor *q = &call->in[ROPE_Q];
    const struct roped_tensor *angles =
        &call->in[roped_op_input(call->op, "positions")];
    bool is_bsd = params->layout == ROPE_LAYOUT_BSD;
    int64_t width = q->rank == 3 ? q->dims[2] : params->head_dim;
    *view = (struct angle_view){.params = roped_call_angles(call),
                                .positions = &angles[0],
                                .indptr = &angles[1],
                                .offsets = &angles[2],
                                .cache = &angles[3],
                                .cos = &angles[4],
                                .sin = &angles[5],
                                .angles = call->table.angles,
                                .offset = params->offset,
                                .sign = params->inverse ? -1 : 1};
    view->n_pairs = roped_angles_pairs(
        view->params, params->rotary_dim ? params->rotary_dim : width, width);
    view->n_tokens = is_bsd ? q->dims[0] * q->dims[1] : q->dims[0];
    view->tokens_per_sequence = is_bsd ? q->dims[1] : view->n_tokens;
}

void reference_judge(const struct roped_call *call,
                     struct reference_judge *judge)
{
    static void (*const references[])(const struct roped_call *call,
                                      struct reference_judge *judge) = {
#define ROPED_OP(id) [ROPED_OP_ID_##id] = reference_##id,
#include <roped/ops.def>
#undef ROPED_OP
    };
    references[roped_op_index(call->op)](call, judge);
}
