/*
 * rotary_case.c - random positions and angles for rotary operators.
 */
#include "kernel/rotary_case.h"

#include "kernel/runner.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct roped_tensor case_tensor(struct random_source *source,
                                enum roped_dtype dtype, int rank,
                                const int64_t *dims, double scale)
{
    struct roped_tensor tensor = {.dtype = dtype, .rank = rank};
    for (int i = 0; i < rank; i++)
        tensor.dims[i] = dims[i];
    tensor.data = runner_alloc((size_t)roped_tensor_bytes(&tensor));
    if (ROPED_SET(dtype) & ROPED_FLOATS)
        random_fill(source, &tensor, scale, true);
    return tensor;
}

static void stop(const char *what, const struct roped_error *err)
{
    fprintf(stderr, "%s was refused: %s\n", what, err->text);
    exit(EXIT_FAILURE);
}

struct roped_tensor case_repeat(const struct roped_tensor *few, int64_t n)
{
    struct roped_tensor out = *few;
    size_t few_bytes = (size_t)roped_tensor_bytes(few);
    out.dims[0] = n;
    size_t bytes = (size_t)roped_tensor_bytes(&out);
    out.data = runner_alloc(bytes);
    for (size_t at = 0; at < bytes; at += few_bytes)
        memcpy((char *)out.data + at, few->data,
               bytes - at < few_bytes ? bytes - at : few_bytes);
    return out;
}

int64_t case_wrong_row(const struct roped_tensor *many,
                       const struct roped_tensor *few)
{
    size_t row = (size_t)(roped_tensor_bytes(few) / few->dims[0]);
    for (int64_t i = 0; i < many->dims[0]; i++)
        if (memcmp((char *)many->data + (size_t)i * row,
                   (char *)few->data + (size_t)(i % few->dims[0]) * row,
                   row) != 0)
            return i;
    return -1;
}

void case_bind(struct roped_call *call, const char *name,
               const struct roped_tensor *tensor)
{
    struct roped_error err;
    if (roped_call_bind(call, name, tensor, &err))
        stop(name, &err);
}

void case_param(struct roped_call *call, const char *name, const char *text)
{
    struct roped_error err;
    if (roped_call_set_text(call, name, text, &err))
        stop(name, &err);
}

void case_params(struct roped_call *call, const char *params)
{
    char text[256], *next = text;
    snprintf(text, sizeof text, "%s", params ? params : "");
    while (*next) {
        char *name = next, *value = strchr(name, '=');
        next += strcspn(next, "&");
        if (*next)
            *next++ = '\0';
        *value = '\0';
        case_param(call, name, value + 1);
    }
}

void case_scale(struct roped_call *call, struct random_source *source,
                const char *name, const char *text, bool is_tensor)
{
    int64_t one = 1;
    if (!is_tensor) {
        case_param(call, name, text);
        return;
    }
    struct roped_tensor tensor = case_tensor(source, ROPED_F32, 1, &one, 1);
    *(float *)tensor.data = strtof(text, NULL);
    case_bind(call, name, &tensor);
}

void case_set_int(const struct roped_tensor *tensor, int64_t i, int64_t value)
{
    if (tensor->dtype == ROPED_I32)
        ((int32_t *)tensor->data)[i] = (int32_t)value;
    else
        ((int64_t *)tensor->data)[i] = value;
}

/* How many sections take turns before others; left is what equal ones leave. */
static int choose_turns(struct random_source *source,
                        const struct rotary_case *c, int n_axes, int64_t left)
{
    if (c->positions != CASE_MROPE || random_once_in(source, 2))
        return 0;
    int turns = (int)random_int(source, 2, n_axes);
    return turns == n_axes && left ? 0 : turns;
}

/* The first section, or behind those that take turns the last, has what the
 * others leave. */
static void set_sections(struct roped_call *call, struct random_source *source,
                         const struct rotary_case *c, int n_axes)
{
    char section[64], axes[64], number[16];
    long long each = (long long)(c->n_pairs / n_axes);
    long long left = (long long)c->n_pairs - n_axes * each;
    int turns = choose_turns(source, c, n_axes, left);
    int section_at =
        snprintf(section, sizeof section, "%lld", each + (turns ? 0 : left));
    int axes_at = snprintf(axes, sizeof axes, "%d", n_axes - 1);
    for (int i = 1; i < n_axes; i++) {
        section_at +=
            snprintf(section + section_at, sizeof section - (size_t)section_at,
                     ",%lld", each + (turns && i == n_axes - 1 ? left : 0));
        axes_at += snprintf(axes + axes_at, sizeof axes - (size_t)axes_at,
                            ",%d", (int)random_int(source, 0, n_axes - 1));
    }
    case_param(call, "mrope_section", section);
    if (random_once_in(source, 2))
        case_param(call, "mrope_axes", axes);
    if (c->positions == CASE_MROPE_INTERLEAVED)
        case_param(call, "mrope_interleaved", "true");
    snprintf(number, sizeof number, "%d", turns);
    if (turns)
        case_param(call, "mrope_turns", number);
}

static void bind_positions(struct roped_call *call,
                           struct random_source *source,
                           const struct rotary_case *c)
{
    bool is_mrope = c->positions >= CASE_MROPE;
    enum roped_dtype dtype = c->positions == CASE_I64 ? ROPED_I64 : ROPED_I32;
    int64_t dims[2] = {random_int(source, 2, ROPED_MAX_AXES), c->n_tokens};
    struct roped_tensor tensor = case_tensor(source, dtype, is_mrope ? 2 : 1,
                                             is_mrope ? dims : dims + 1, 0);
    int64_t n = roped_tensor_elements(&tensor);
    for (int64_t i = 0; i < n; i++)
        case_set_int(&tensor, i, random_int(source, 0, c->largest_position));
    if (n)
        case_set_int(&tensor, n - 1, c->largest_position);
    for (int64_t i = 0; i < c->n_tokens && c->padding_in; i++)
        if (random_once_in(source, c->padding_in))
            for (int64_t row = 0; row < n / c->n_tokens; row++)
                case_set_int(&tensor, row * c->n_tokens + i, -1);
    case_bind(call, "positions", &tensor);
    if (is_mrope)
        set_sections(call, source, c, (int)dims[0]);
}

static void bind_ragged(struct roped_call *call, struct random_source *source,
                        const struct rotary_case *c)
{
    enum roped_dtype dtype =
        c->positions == CASE_RAGGED_I64 ? ROPED_I64 : ROPED_I32;
    int64_t b = random_int(source, 1, 7);
    int64_t b1 = b + 1, at = 0;
    struct roped_tensor indptr = case_tensor(source, dtype, 1, &b1, 0);
    struct roped_tensor offsets = case_tensor(source, dtype, 1, &b, 0);
    case_set_int(&indptr, 0, 0);
    for (int64_t j = 0; j < b; j++) {
        int64_t left = c->n_tokens - at;
        int64_t rows = j == b - 1 ? left : random_int(source, 0, left);
        at += rows;
        case_set_int(&indptr, j + 1, at);
        int64_t room = c->largest_position + 1 - rows;
        case_set_int(&offsets, j, random_int(source, 0, room > 0 ? room : 0));
    }
    case_bind(call, "indptr", &indptr);
    case_bind(call, "offsets", &offsets);
}

/* Scaling variants whose parameters fit any case. */
static void set_scaling(struct roped_call *call, struct random_source *source,
                        const struct rotary_case *c)
{
    switch (random_int(source, 0, 6)) {
    case 0:
        case_param(call, "theta", "500000");
        case_param(call, "scaling", "llama3");
        case_param(call, "factor", "8");
        case_param(call, "low_freq_factor", "1");
        case_param(call, "high_freq_factor", "4");
        case_param(call, "original_max_position", "8192");
        break;
    case 1:
        case_param(call, "scaling", "yarn");
        case_param(call, "factor", "4");
        case_param(call, "original_max_position", "4096");
        break;
    case 2:
        case_param(call, "scaling", "linear");
        case_param(call, "factor", "2.5");
        break;
    case 3:
        if (c->n_pairs > 1) {
            case_param(call, "scaling", "dynamic");
            case_param(call, "factor", "2");
            case_param(call, "max_position", "1000");
        }
        break;
    case 4:
        case_param(call, "scaling", "deepseek_yarn");
        case_param(call, "factor", "40");
        case_param(call, "original_max_position", "4096");
        case_param(call, "mscale", "0.7");
        break;
    case 5:
        if (c->positions == CASE_MROPE)
            case_param(call, "scaling", "axial");
        break;
    default:
        break;
    }
}

static void bind_cache(struct roped_call *call, struct random_source *source,
                       const struct rotary_case *c)
{
    static const enum roped_dtype types[] = {ROPED_F32, ROPED_F16, ROPED_BF16};
    int64_t dims[2] = {c->largest_position + 1 + random_int(source, 0, 3),
                       2 * c->n_pairs};
    struct roped_tensor cache =
        case_tensor(source, types[c->angles - CASE_CACHE_F32], 2, dims, 0.5);
    case_bind(call, "cos_sin_cache", &cache);
}

static void bind_pair(struct roped_call *call, struct random_source *source,
                      const struct rotary_case *c)
{
    int64_t dims[2] = {c->n_tokens, c->n_pairs};
    enum roped_dtype dtype = c->angles == CASE_PAIR_T ? c->dtype : ROPED_F32;
    struct roped_tensor cos = case_tensor(source, dtype, 2, dims, 0.5);
    struct roped_tensor sin = case_tensor(source, dtype, 2, dims, 0.5);
    case_bind(call, "cos", &cos);
    case_bind(call, "sin", &sin);
}

enum case_positions case_positions_beside(enum case_angles angles,
                                          enum case_positions positions)
{
    bool has_rows = positions >= CASE_MROPE;
    return has_rows && angles >= CASE_PAIR ? CASE_I32 : positions;
}

void case_strides(struct random_source *source, struct runner_options *options)
{
    static const int64_t gaps[] = {0, 1, 3, 8, 16, 72, 4096};
    options->has_strides = random_once_in(source, 3);
    options->gap = (int)random_pick(source, gaps, 7);
    options->is_fused = random_once_in(source, 2);
    options->packs_outputs = random_once_in(source, 2);
}

void case_bind_angles(struct roped_call *call, struct random_source *source,
                      const struct rotary_case *c)
{
    if (c->angles == CASE_PAIR || c->angles == CASE_PAIR_T) {
        bind_pair(call, source, c);
        return;
    }
    if (c->positions == CASE_RAGGED_I32 || c->positions == CASE_RAGGED_I64) {
        bind_ragged(call, source, c);
    } else if (c->positions == CASE_IMPLICIT) {
        char text[32];
        int64_t offset = c->largest_position + 1 - c->n_tokens;
        snprintf(text, sizeof text, "%lld", (long long)offset);
        case_param(call, "offset", offset > 0 ? text : "0");
    } else {
        bind_positions(call, source, c);
    }
    if (c->angles >= CASE_CACHE_F32) {
        bind_cache(call, source, c);
        return;
    }
    set_scaling(call, source, c);
    if (c->angles == CASE_COMPUTED_F64)
        case_param(call, "angle_precision", "f64");
    if (c->angles != CASE_TABLE)
        case_param(call, "angles", "compute");
}

void case_free(struct roped_call *call)
{
    for (int i = 0; i < ROPED_MAX_INPUTS; i++) {
        free(call->in[i].data);
        call->in[i].data = NULL;
    }
}
