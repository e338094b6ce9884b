/*
 * rotary.c - positions and angles of rotary operators, from tensors and
 * parameters to one struct rope_rotary.
 */
#include "ops/rotary.h"

#include "core/call_internal.h"

#include <string.h>

/* Ports relative to the operator's 'positions' port, in rope's order. */
enum {
    POSITIONS = ROPE_POSITIONS - ROPE_POSITIONS,
    INDPTR = ROPE_INDPTR - ROPE_POSITIONS,
    OFFSETS = ROPE_OFFSETS - ROPE_POSITIONS,
    CACHE = ROPE_COS_SIN_CACHE - ROPE_POSITIONS,
    COS = ROPE_COS - ROPE_POSITIONS,
    SIN = ROPE_SIN - ROPE_POSITIONS,
    SHORT_FACTOR = ROPE_SHORT_FACTOR - ROPE_POSITIONS,
    LONG_FACTOR = ROPE_LONG_FACTOR - ROPE_POSITIONS
};

/* float32 holds every integer up to here; angles are accurate below it. */
static const int64_t largest_float_position = (1 << 24) - 1;

const char rotary_rule_doc[] =
    "without positions, indptr and cos a token's position is its index in its "
    "sequence plus offset; positions of two dims need mrope_section, the "
    "call's or the table's, and have a row for each section, as the axial "
    "scalings ask; angles come from cos with sin, or cos_sin_cache, or table, "
    "or the angle parameters; a table's style holds where the call gives none; "
    "rotary_dim is even and rotary_offset + rotary_dim fits the head; a "
    "table's head width is the head's";

static const struct roped_tensor *tensor_of(const struct roped_call *call,
                                            const struct rotary_shape *shape,
                                            int port)
{
    return &call->in[shape->first_port + port];
}

static bool has(const struct roped_call *call, const struct rotary_shape *shape,
                int port)
{
    return roped_tensor_given(tensor_of(call, shape, port));
}

/* Rotary width in force: given, the named table's, or the head's. */
static int64_t rotary_width(const struct roped_call *call,
                            const struct rotary_shape *shape)
{
    if (shape->rotary_dim)
        return shape->rotary_dim;
    if (call->angle_set && call->angle_set->rotary_dim)
        return call->angle_set->rotary_dim;
    return shape->head_dim;
}

static bool is_derived(const struct roped_call *call,
                       const struct rotary_shape *shape)
{
    return !has(call, shape, CACHE) && !has(call, shape, COS);
}

static int64_t n_pairs_of(const struct roped_call *call,
                          const struct rotary_shape *shape)
{
    int64_t width = rotary_width(call, shape);
    if (!is_derived(call, shape))
        return width / 2;
    return roped_angles_pairs(roped_call_angles(call), width, shape->head_dim);
}

static const struct roped_angle_params *
own_angles(const struct roped_call *call)
{
    return (const void *)(call->params + call->op->angles_offset);
}

/* Whose sections are in force: the call's, or those of its table. */
static const struct roped_angle_params *
sections_of(const struct roped_call *call)
{
    const struct roped_angle_params *own = own_angles(call);
    return own->mrope_section.count ? own : roped_call_angles(call);
}

static int n_axes_of(const struct roped_call *call,
                     const struct rotary_shape *shape)
{
    const struct roped_tensor *positions = tensor_of(call, shape, POSITIONS);
    return positions->rank == 2 ? (int)positions->dims[0] : 1;
}

/* ------------------------------------------------------------------ rule */

/*
 * May an angle parameter stand beside another source of angles? Sections say
 * which row of positions finds an angle, not what it is.
 */
static bool is_of_call(const struct roped_call *call,
                       const struct rotary_shape *shape, size_t member)
{
    switch (member) {
    case offsetof(struct roped_angle_params, mode):
        return call->angle_set;
    case offsetof(struct roped_angle_params, mrope_section):
    case offsetof(struct roped_angle_params, mrope_axes):
    case offsetof(struct roped_angle_params, mrope_interleaved):
    case offsetof(struct roped_angle_params, mrope_turns):
        return call->angle_set ? !call->angle_set->params.mrope_section.count
                               : has(call, shape, CACHE);
    default:
        return false;
    }
}

/* Angle parameters beside another source of angles are refused by name. */
static enum roped_status check_params(const struct roped_call *call,
                                      const struct rotary_shape *shape,
                                      struct roped_error *err)
{
    const struct roped_op *op = call->op;
    const char *source = call->angle_set           ? "table"
                         : has(call, shape, CACHE) ? "cos_sin_cache"
                         : has(call, shape, COS)   ? "cos"
                                                   : NULL;
    size_t first = op->angles_offset;
    if (call->angle_set &&
        (!is_derived(call, shape) || has(call, shape, SHORT_FACTOR)))
        return roped_fail(err, ROPED_BAD_PARAMETER,
                          "parameter 'table' and tensor '%s' are both given, "
                          "expected one source of angles",
                          has(call, shape, CACHE) ? "cos_sin_cache"
                          : has(call, shape, COS) ? "cos"
                                                  : "short_factor");
    for (int i = 0; i < call->n_params && source; i++) {
        size_t at = op->param[i].offset;
        bool is_angle =
            at >= first && at < first + sizeof(struct roped_angle_params);
        if (!is_angle || !(call->given & (1ull << i)) ||
            is_of_call(call, shape, at - first))
            continue;
        return roped_fail(err, ROPED_BAD_PARAMETER,
                          "parameter '%s' is given, but the angles come from "
                          "'%s'",
                          op->param[i].name, source);
    }
    return ROPED_OK;
}

/*
 * A table of a model's heads rotates those heads, whole or their rotary part
 * alone, alone or behind rotary_offset other elements. With rotary_dim a call
 * says what it rotates itself; proportional frequencies follow from the head.
 */
static bool fits_table(const struct roped_call *call,
                       const struct rotary_shape *shape)
{
    const struct roped_angle_set *set = call->angle_set;
    int64_t behind = shape->head_dim - shape->rotary_offset;
    if (!set || !set->head_dim || shape->head_dim == set->head_dim)
        return true;
    if (set->params.scaling == ROPED_SCALING_PROPORTIONAL)
        return false;
    return shape->rotary_dim || behind == set->head_dim ||
           behind == set->rotary_dim;
}

static enum roped_status check_head(const struct roped_call *call,
                                    const struct rotary_shape *shape,
                                    struct roped_error *err)
{
    const struct roped_angle_set *set = call->angle_set;
    if (fits_table(call, shape))
        return ROPED_OK;
    return roped_fail(err, ROPED_BAD_SHAPE,
                      "tensor '%s': head width %lld, expected %lld, that of "
                      "table '%s' (rotary width %lld)",
                      call->op->in[0].name, (long long)shape->head_dim,
                      (long long)set->head_dim, set->name,
                      (long long)set->rotary_dim);
}

static enum roped_status check_width(const struct roped_call *call,
                                     const struct rotary_shape *shape,
                                     struct roped_error *err)
{
    int64_t r = rotary_width(call, shape);
    const struct roped_angle_set *set = call->angle_set;
    if (set && set->rotary_dim && r != set->rotary_dim)
        return roped_fail(err, ROPED_BAD_PARAMETER,
                          "parameter 'rotary_dim': %lld, expected %lld, that "
                          "of table '%s'",
                          (long long)r, (long long)set->rotary_dim, set->name);
    if (r <= 0 || r % 2)
        return roped_fail(err, ROPED_BAD_PARAMETER,
                          "parameter 'rotary_dim': %lld, expected an even "
                          "number above 0",
                          (long long)r);
    if (r > shape->head_dim)
        return roped_fail(err, ROPED_BAD_PARAMETER,
                          "parameter 'rotary_dim': %lld, expected at most the "
                          "head width %lld",
                          (long long)r, (long long)shape->head_dim);
    int64_t rotated = 2 * n_pairs_of(call, shape);
    if (shape->rotary_offset + rotated > shape->head_dim)
        return roped_fail(err, ROPED_BAD_PARAMETER,
                          "parameter 'rotary_offset': %lld, expected at most "
                          "%lld (head width %lld less %lld rotated elements)",
                          (long long)shape->rotary_offset,
                          (long long)(shape->head_dim - rotated),
                          (long long)shape->head_dim, (long long)rotated);
    return ROPED_OK;
}

static enum roped_status check_rows(const struct roped_call *call,
                                    const struct rotary_shape *shape,
                                    struct roped_error *err)
{
    const struct roped_tensor *positions = tensor_of(call, shape, POSITIONS);
    const struct roped_angle_params *params = sections_of(call);
    int expected = params->mrope_section.count;
    if (positions->rank > 2)
        return roped_fail(err, ROPED_BAD_SHAPE,
                          "tensor 'positions': rank is %d, expected 1, or 2 "
                          "with mrope_section",
                          positions->rank);
    if (positions->rank < 2 && is_derived(call, shape) &&
        roped_angles_are_axial(roped_call_angles(call)))
        return roped_fail(err, ROPED_BAD_SHAPE,
                          "tensor 'positions': rank is %d, expected 2, a row "
                          "for each count of mrope_section, with axial angles",
                          positions->rank);
    if (positions->rank == 2 && expected == 0)
        return roped_fail(err, ROPED_BAD_PARAMETER,
                          "missing parameter 'mrope_section': tensor "
                          "'positions' has %lld rows and needs it",
                          (long long)positions->dims[0]);
    if (positions->rank == 2 && positions->dims[0] != expected)
        return roped_fail(err, ROPED_BAD_SHAPE,
                          "tensor 'positions': dim 0 is %lld, expected %d, a "
                          "row for each count of mrope_section",
                          (long long)positions->dims[0], expected);
    return roped_angles_check_sections(params, n_pairs_of(call, shape), err);
}

enum roped_status rotary_rule(const struct roped_call *call,
                              const struct rotary_shape *shape,
                              struct roped_error *err)
{
    enum roped_status status = check_params(call, shape, err);
    if (!status)
        status = check_head(call, shape, err);
    if (!status)
        status = check_width(call, shape, err);
    if (!status)
        status = check_rows(call, shape, err);
    return status;
}

/* ------------------------------------------------------------------ plan */

/* Of the frequencies; the axis of each pair follows them. */
static size_t frequency_bytes(const struct roped_call *call,
                              const struct rotary_shape *shape)
{
    return is_derived(call, shape)
               ? roped_angles_frequency_bytes(
                     n_pairs_of(call, shape),
                     roped_call_angles(call)->angle_precision)
               : 0;
}

size_t rotary_aux_bytes(const struct roped_call *call,
                        const struct rotary_shape *shape)
{
    size_t axes =
        n_axes_of(call, shape) > 1 ? (size_t)n_pairs_of(call, shape) : 0;
    return frequency_bytes(call, shape) + axes;
}

/* First position that is not allowed, and what allows it no more. */
struct bound {
    int64_t rows; /* positions must be below */
    const char *why, *name;
};

static struct bound position_bound(const struct roped_call *call,
                                   const struct rotary_shape *shape)
{
    struct bound bound = {largest_float_position + 1,
                          "the largest position with accurate angles", ""};
    if (has(call, shape, CACHE)) {
        bound.rows = tensor_of(call, shape, CACHE)->dims[0];
        bound.why = "the rows of ";
        bound.name = "'cos_sin_cache'";
    } else if (call->angle_set && call->angle_set->rows) {
        bound.rows = call->angle_set->rows;
        bound.why = "the rows of table ";
        bound.name = call->angle_set->name;
    }
    return bound;
}

static enum roped_status refuse_position(const char *tensor, int64_t value,
                                         int64_t index,
                                         const struct bound *bound,
                                         struct roped_error *err)
{
    return roped_fail(err, ROPED_BAD_VALUE,
                      "tensor '%s': position %lld at index %lld, expected 0 "
                      "<= position < %lld, %s%s",
                      tensor, (long long)value, (long long)index,
                      (long long)bound->rows, bound->why, bound->name);
}

/* A padded token of [3, n] has none of its three positions. */
static enum roped_status check_padding(const struct roped_tensor *positions,
                                       struct roped_error *err)
{
    int64_t n = positions->dims[positions->rank - 1];
    int64_t n_rows = roped_tensor_elements(positions) / (n ? n : 1);
    for (int64_t i = n; i < n_rows * n; i++)
        if ((call_index_at(positions, i) < 0) !=
            (call_index_at(positions, i % n) < 0))
            return roped_fail(
                err, ROPED_BAD_VALUE,
                "tensor 'positions': position %lld at index "
                "%lld, but %lld at index %lld, expected -1 in "
                "all rows of a token or in none",
                (long long)call_index_at(positions, i), (long long)i,
                (long long)call_index_at(positions, i % n), (long long)(i % n));
    return ROPED_OK;
}

static enum roped_status scan_ragged(const struct roped_tensor *indptr,
                                     const struct roped_tensor *offsets,
                                     const struct bound *bound,
                                     int64_t *largest, struct roped_error *err)
{
    for (int64_t j = 0; j < offsets->dims[0]; j++) {
        int64_t n = call_index_at(indptr, j + 1) - call_index_at(indptr, j),
                offset = call_index_at(offsets, j);
        /* an empty sequence may start anywhere: nothing reads its offset */
        if (offset < 0 || (n > 0 && offset >= bound->rows))
            return refuse_position("offsets", offset, j, bound, err);
        if (n > 0 && offset + n - 1 >= bound->rows)
            return refuse_position("offsets", offset + n - 1, j, bound, err);
        if (n > 0 && offset + n - 1 > *largest)
            *largest = offset + n - 1;
    }
    return ROPED_OK;
}

/* What kind of positions there are; and the largest, -1: not known, or none. */
static enum roped_status plan_positions(const struct roped_call *call,
                                        const struct rotary_shape *shape,
                                        struct rope_rotary *out,
                                        int64_t *largest,
                                        struct roped_error *err)
{
    const struct roped_tensor *positions = tensor_of(call, shape, POSITIONS);
    const struct roped_tensor *indptr = tensor_of(call, shape, INDPTR);
    struct bound bound = position_bound(call, shape);
    *largest = -1;
    out->is_wide = bound.rows - 1 > UINT32_MAX;
    if (has(call, shape, COS)) {
        out->positions = ROPE_POSITIONS_NONE;
        return ROPED_OK;
    }
    if (roped_tensor_given(positions)) {
        out->positions = positions->dtype == ROPED_I32 ? ROPE_POSITIONS_I32
                                                       : ROPE_POSITIONS_I64;
        if (!call->host_values)
            return ROPED_OK;
        *largest = call->held[shape->first_port].largest;
        out->has_padding = call->held[shape->first_port].has_none;
        if (out->has_padding)
            return check_padding(positions, err);
    } else if (roped_tensor_given(indptr)) {
        const struct roped_tensor *offsets = tensor_of(call, shape, OFFSETS);
        int32_t dtype;
        enum roped_status status =
            call_type_of(call, shape->first_port + INDPTR,
                         shape->first_port + OFFSETS, &dtype, err);
        if (status)
            return status;
        out->n_sequences = offsets->dims[0];
        out->positions = dtype == ROPED_I32 ? ROPE_POSITIONS_RAGGED_I32
                                            : ROPE_POSITIONS_RAGGED_I64;
        if (call->host_values)
            return scan_ragged(indptr, offsets, &bound, largest, err);
    } else {
        out->positions = ROPE_POSITIONS_IMPLICIT;
        int64_t last = shape->offset + shape->tokens_per_sequence - 1;
        if (shape->n_tokens > 0 && last >= bound.rows)
            return roped_fail(err, ROPED_BAD_PARAMETER,
                              "parameter 'offset': the last token's position "
                              "is %lld, expected less than %lld, %s%s",
                              (long long)last, (long long)bound.rows, bound.why,
                              bound.name);
        *largest = shape->n_tokens > 0 ? last : -1;
    }
    return ROPED_OK;
}

static enum roped_status plan_frequencies(struct roped_call *call,
                                          const struct rotary_shape *shape,
                                          int64_t largest_position,
                                          struct rope_rotary *out,
                                          struct roped_error *err)
{
    const struct roped_angle_params *params = roped_call_angles(call);
    const struct roped_tensor *lists = tensor_of(call, shape, SHORT_FACTOR);
    struct roped_longrope_factors factors = {0};
    if (call->angle_set) {
        factors = call->angle_set->factors;
    } else if (roped_tensor_given(lists)) {
        factors.short_factor = lists[0].data;
        factors.long_factor = lists[1].data;
        factors.count = lists[0].dims[0];
    }
    enum roped_status status = roped_angles_resolve(
        params, &factors, rotary_width(call, shape), shape->head_dim,
        largest_position, call->aux, &call->table.angles, err);
    if (status)
        return status;
    out->precision = params->angle_precision;
    out->attention_factor = call->table.angles.attention_factor;
    int32_t mode = own_angles(call)->mode;
    call->table.rows = largest_position + 1;
    call->table.wanted = mode != ROPED_ANGLES_COMPUTE && call->table.rows > 0;
    call->table.required = mode == ROPED_ANGLES_TABLE;
    return ROPED_OK;
}

static void plan_axes(const struct roped_call *call,
                      const struct rotary_shape *shape, struct rope_rotary *out)
{
    const struct roped_angle_params *params = sections_of(call);
    out->n_axes = n_axes_of(call, shape);
    if (out->n_axes <= 1)
        return;
    uint8_t *axis_of = (uint8_t *)call->aux + frequency_bytes(call, shape);
    for (int64_t i = 0; i < out->n_pairs; i++) {
        int section = roped_angles_section(params, i);
        axis_of[i] = (uint8_t)(params->mrope_axes.count
                                   ? params->mrope_axes.value[section]
                                   : section);
    }
}

/* Which elements pair: as the call says, else as its table's model has them. */
static int32_t style_of(const struct roped_call *call,
                        const struct rotary_shape *shape)
{
    return call->angle_set && !roped_call_gave(call, "style")
               ? call->angle_set->style
               : shape->style;
}

enum roped_status rotary_plan(struct roped_call *call,
                              const struct rotary_shape *shape,
                              struct rope_rotary *out, struct roped_error *err)
{
    int64_t largest_position;
    memset(out, 0, sizeof *out);
    out->n_tokens = shape->n_tokens;
    out->n_pairs = n_pairs_of(call, shape);
    out->tokens_per_sequence = shape->tokens_per_sequence;
    out->offset = shape->offset;
    out->style = style_of(call, shape);
    out->sin_sign = shape->inverse ? -1 : 1;
    out->attention_factor = 1;
    enum roped_status status =
        plan_positions(call, shape, out, &largest_position, err);
    if (status)
        return status;
    if (largest_position < call->largest_position)
        largest_position = call->largest_position;
    plan_axes(call, shape, out);
    if (is_derived(call, shape)) {
        out->angle_source = ROPE_ANGLES_DERIVED;
        return plan_frequencies(call, shape, largest_position, out, err);
    }
    bool is_cache = has(call, shape, CACHE);
    out->angle_source = is_cache ? ROPE_ANGLES_CACHE : ROPE_ANGLES_PAIR;
    return call_type_of(call, shape->first_port + (is_cache ? CACHE : COS),
                        shape->first_port + (is_cache ? CACHE : SIN),
                        &out->angle_dtype, err);
}

struct rope_rotary rope_rotary_bind(const struct roped_call *call,
                                    const struct rope_rotary *planned)
{
    const struct roped_tensor *in = &call->in[rope_angle_port(call)];
    struct rope_rotary rotary = *planned;
    bool is_ragged = rotary.positions == ROPE_POSITIONS_RAGGED_I32 ||
                     rotary.positions == ROPE_POSITIONS_RAGGED_I64;
    rotary.index[0] = is_ragged ? in[INDPTR].data : in[POSITIONS].data;
    rotary.index[1] = in[OFFSETS].data;
    bool has_frequencies = rotary.angle_source == ROPE_ANGLES_DERIVED;
    if (rotary.n_axes > 1)
        rotary.axis_of =
            (const uint8_t *)call->aux +
            (has_frequencies ? roped_angles_frequency_bytes(rotary.n_pairs,
                                                            rotary.precision)
                             : 0);
    if (rotary.angle_source == ROPE_ANGLES_CACHE) {
        rotary.angle[0] = in[CACHE].data;
    } else {
        rotary.angle[0] = in[COS].data;
        rotary.angle[1] = in[SIN].data;
    }
    return rotary;
}
