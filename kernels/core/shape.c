/*
 * shape.c - the language of shapes: alternatives, dims and their steps. The
 * grammar is at struct roped_port.
 */
#include "core/call_internal.h"
#include "core/name.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum roped_status bad_pattern(const struct roped_port *port,
                                     const char *why, struct roped_error *err)
{
    return roped_fail(err, ROPED_INTERNAL, "port '%s': shape '%s' %s",
                      port->name, port->shape, why);
}

/* ------------------------------------------------------------------ parsing */

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
}

static bool is_sign(char c)
{
    return c == '*' || c == '+' || c == '/' || c == '^';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Copies the word at *text and moves *text behind it; false: none, too long. */
static bool read_word(const char **text, char *word, size_t bytes)
{
    size_t length = 0;
    for (; is_word(**text); (*text)++) {
        if (length + 1 >= bytes)
            return false;
        word[length++] = **text;
    }
    word[length] = '\0';
    return length > 0;
}

/* Reads digits at *text and moves *text behind them. */
static int64_t read_size(const char **text)
{
    int64_t size = 0;
    for (; is_digit(**text); (*text)++)
        size = size * 10 + (**text - '0');
    return size;
}

/* Reads "*d", "+1", "/group_size", "//group_size" or "^4". */
static bool read_step(const char **text, struct roped_dim_pattern *dim)
{
    if (dim->n_steps == ROPED_MAX_STEPS)
        return false;
    struct roped_dim_step *step = &dim->step[dim->n_steps++];
    step->sign = *(*text)++;
    step->is_kept = step->sign == '/' && **text == '/';
    *text += step->is_kept;
    step->name[0] = '\0';
    step->number = 0;
    if (!is_digit(**text))
        return read_word(text, step->name, sizeof step->name);
    step->number = read_size(text);
    return step->number > 0 && !is_word(**text);
}

/* Reads one dim at *text into *dim and moves *text behind it. */
static bool read_dim(const char **text, struct roped_dim_pattern *dim)
{
    const char *at = *text;
    dim->is_pack = at[0] == '.' && at[1] == '.' && at[2] == '.';
    dim->n_steps = 0;
    dim->name[0] = '\0';
    dim->size = 0;
    bool is_number = is_digit(*at);
    if (dim->is_pack)
        at += 3;
    else
        dim->size = read_size(&at);
    bool is_named = read_word(&at, dim->name, sizeof dim->name);
    if (is_named && is_number) { /* "2h" */
        dim->step[dim->n_steps++] =
            (struct roped_dim_step){.sign = '*', .number = dim->size};
        dim->size = 0;
    }
    bool is_sound = is_named || (is_number && !is_word(*at));
    while (is_named && !dim->is_pack && is_sound && is_sign(*at))
        is_sound = read_step(&at, dim);
    *text = at;
    return is_sound && (*at == ' ' || *at == '|' || *at == '\0');
}

static const char *nth_alternative(const char *shape, int n)
{
    for (; n > 0 && shape; n--) {
        shape = strchr(shape, '|');
        shape = shape ? shape + 1 : NULL;
    }
    return shape;
}

/* The dims at text, up to the next alternative. */
static enum roped_status read_dims(const struct roped_port *port,
                                   const char *text,
                                   struct roped_shape_pattern *out,
                                   struct roped_error *err)
{
    out->count = 0;
    if (text && *text == '[') {
        text = strchr(text, ']');
        text = text ? text + 1 : NULL;
    }
    if (!text)
        return bad_pattern(port, "has no such alternative", err);
    for (;;) {
        while (*text == ' ')
            text++;
        if (*text == '\0' || *text == '|')
            return ROPED_OK;
        if (out->count == ROPED_MAX_RANK)
            return bad_pattern(port, "has too many dims", err);
        if (!read_dim(&text, &out->dim[out->count++]))
            return bad_pattern(port, "has a bad dim", err);
    }
}

bool roped_port_is_guarded(const struct roped_port *port)
{
    return port->shape[0] == '[';
}

int roped_port_alternatives(const struct roped_port *port)
{
    int n = 1;
    for (const char *at = strchr(port->shape, '|'); at;
         at = strchr(at + 1, '|'))
        n++;
    return n;
}

enum roped_status roped_port_pattern(const struct roped_port *port, int form,
                                     struct roped_shape_pattern *out,
                                     struct roped_error *err)
{
    bool is_one = !strchr(port->shape, '|');
    return read_dims(port,
                     is_one ? port->shape : nth_alternative(port->shape, form),
                     out, err);
}

bool shape_fits(const struct roped_shape_pattern *pattern, int rank)
{
    int n_packs = 0;
    for (int i = 0; i < pattern->count; i++)
        n_packs += pattern->dim[i].is_pack;
    return n_packs ? rank >= pattern->count - n_packs : rank == pattern->count;
}

const char *roped_dim_text(const struct roped_dim_pattern *dim, char *text,
                           size_t text_bytes)
{
    const struct roped_dim_step *step = dim->step;
    bool is_multiple = dim->n_steps && step->sign == '*' && step->number;
    size_t at = 0;
    if (!dim->name[0] || is_multiple)
        at = (size_t)snprintf(
            text, text_bytes, "%lld",
            (long long)(is_multiple ? step->number : dim->size));
    if (at < text_bytes)
        at += (size_t)snprintf(text + at, text_bytes - at, "%s%s",
                               dim->is_pack ? "..." : "", dim->name);
    for (int i = is_multiple; i < dim->n_steps && at < text_bytes; i++) {
        char number[24];
        step = &dim->step[i];
        snprintf(number, sizeof number, "%lld", (long long)step->number);
        at += (size_t)snprintf(text + at, text_bytes - at, "%c%s%s", step->sign,
                               step->is_kept ? "/" : "",
                               step->number ? number : step->name);
    }
    return text;
}

/* --------------------------------------------------------------- conditions */

const char *roped_port_condition(const struct roped_port *port, int alternative)
{
    const char *text = nth_alternative(port->shape, alternative);
    return text && *text == '[' ? text + 1 : "";
}

/* How many characters stand before the first of these, or before the end; the
 * words of conditions are shorter than strcspn's preparations. */
static size_t count_before(const char *text, const char *ends)
{
    size_t n = 0;
    while (text[n] && text[n] != ends[0] && text[n] != ends[1] &&
           text[n] != ends[2])
        n++;
    return n;
}

bool roped_condition_next(const char **text, struct roped_condition *out)
{
    const char *at = *text;
    while (*at == ' ')
        at++;
    if (!read_word(&at, out->name, sizeof out->name))
        return false;
    out->values = *at == '=' ? at + 1 : NULL;
    *text = at + count_before(at, " ]");
    return true;
}

bool roped_condition_value(const char **values, char *value, size_t value_bytes)
{
    size_t length = count_before(*values, ", ]");
    if (length == 0 || length >= value_bytes)
        return false;
    memcpy(value, *values, length);
    value[length] = '\0';
    *values += length;
    *values += **values == ',';
    return true;
}

/* Does a stored parameter have this value, as a query would say it? */
static bool param_is(const struct roped_call *call, int index,
                     const char *value)
{
    const struct roped_param *param = &call->op->param[index];
    const void *stored = call->params + param->offset;
    int64_t integer;
    int32_t narrow;
    if (param->kind == ROPED_PARAM_INT) {
        memcpy(&integer, stored, sizeof integer);
        return integer == strtoll(value, NULL, 10);
    }
    memcpy(&narrow, stored, sizeof narrow);
    if (param->kind == ROPED_PARAM_BOOL)
        return narrow == (strcmp(value, "true") == 0);
    int choice = param_choice(param, value);
    return choice >= 0 && narrow == (param->kind == ROPED_PARAM_DTYPE
                                         ? (int32_t)param_dtype(param, choice)
                                         : choice);
}

static bool item_holds(const struct roped_call *call,
                       const struct roped_condition *item)
{
    const char *form = call->op->form[call->form].name;
    const char *values = item->values;
    char value[ROPED_NAME_BYTES];
    if (!values) {
        int input = roped_op_input(call->op, item->name);
        return input >= 0 && roped_tensor_given(&call->in[input]);
    }
    bool is_form = name_is(item->name, "form");
    int param = is_form ? -1 : roped_op_param(call->op, item->name);
    while (roped_condition_value(&values, value, sizeof value))
        if (is_form ? form && name_is(form, value)
                    : param >= 0 && param_is(call, param, value))
            return true;
    return false;
}

bool shape_guard_holds(const struct roped_call *call, const char *text)
{
    return *text != '[' || roped_condition_holds(call, text + 1);
}

bool roped_condition_holds(const struct roped_call *call, const char *text)
{
    struct roped_condition item;
    while (roped_condition_next(&text, &item))
        if (!item_holds(call, &item))
            return false;
    return true;
}

int shape_leader(const struct roped_call *call, const struct roped_port *port)
{
    for (int i = 0; i < call->n_in && roped_port_is_guarded(port); i++)
        if (roped_tensor_given(&call->in[i]) &&
            name_is(call->op->in[i].shape, port->shape))
            return i;
    return -1;
}

enum roped_status roped_call_pattern(const struct roped_call *call,
                                     const struct roped_port *port, int rank,
                                     struct roped_shape_pattern *out,
                                     struct roped_error *err)
{
    const char *first = NULL, *text = port->shape;
    if (!roped_port_is_guarded(port))
        return roped_port_pattern(port, call->form, out, err);
    int leader = shape_leader(call, port);
    rank = leader < 0 ? rank : call->in[leader].rank;
    for (; text; text = nth_alternative(text, 1)) {
        if (!shape_guard_holds(call, text))
            continue;
        first = first ? first : text;
        enum roped_status status = read_dims(port, text, out, err);
        if (status || rank < 0 || shape_fits(out, rank))
            return status;
    }
    return read_dims(port, first, out,
                     err); /* whose rank is said to be wrong */
}

/* ------------------------------------------------------------------ values */

static bool skip(const char **text, const char *words)
{
    size_t length = strlen(words);
    if (strncmp(*text, words, length) != 0)
        return false;
    *text += length;
    return true;
}

/* "slots|pages*pagesize" */
static bool read_below(const char **text, struct roped_holds *out)
{
    do
        if (out->n_below == 2 || !read_dim(text, &out->below[out->n_below++]))
            return false;
    while (skip(text, "|"));
    return true;
}

static bool read_holds(const char *text, struct roped_holds *out)
{
    if (strcmp(text, "numbers above 0") == 0) {
        out->kind = ROPED_HOLDS_NUMBERS;
        return true;
    }
    if (!read_word(&text, out->noun, sizeof out->noun))
        return false;
    if (strcmp(out->noun, "starts") == 0) {
        out->kind = ROPED_HOLDS_STARTS;
        out->is_within = skip(&text, " within ");
        if (!out->is_within && !skip(&text, " to "))
            return false;
    } else if (skip(&text, " < ")) {
        out->kind = ROPED_HOLDS_INDEXES;
    } else {
        return *text == '\0';
    }
    if (!read_below(&text, out))
        return false;
    out->may_be_none = skip(&text, " or -1");
    if (skip(&text, " up to ") &&
        !read_word(&text, out->up_to, sizeof out->up_to))
        return false;
    if (skip(&text, " for ") &&
        !read_word(&text, out->reader, sizeof out->reader))
        return false;
    return *text == '\0';
}

enum roped_status roped_port_holds(const struct roped_port *port,
                                   struct roped_holds *out,
                                   struct roped_error *err)
{
    out->kind = ROPED_HOLDS_ANYTHING;
    out->noun[0] = out->up_to[0] = out->reader[0] = '\0';
    out->may_be_none = out->is_within = false;
    out->n_below = 0;
    if (!port->holds || read_holds(port->holds, out))
        return ROPED_OK;
    return roped_fail(err, ROPED_INTERNAL, "port '%s': holds '%s'", port->name,
                      port->holds);
}

/* -------------------------------------------------------------------- sizes */

static struct roped_dim_size wrong(enum roped_dim_state state, int step,
                                   int64_t size, int64_t number)
{
    return (struct roped_dim_size){state, size, number, step};
}

/* What a step is taken with; false: it is not known. What a sum has and the
 * call has not counts 0. */
static bool operand_of(const struct roped_dim_step *step,
                       roped_size_fn *size_of, const void *context,
                       int64_t *number)
{
    *number = step->number;
    if (step->number || size_of(context, step->name, number))
        return true;
    *number = 0;
    return step->sign == '+';
}

struct roped_dim_size roped_dim_evaluate(const struct roped_dim_pattern *dim,
                                         roped_size_fn *size_of,
                                         const void *context)
{
    int64_t size = dim->size, number;
    if (dim->name[0] && !size_of(context, dim->name, &size))
        return wrong(ROPED_DIM_UNKNOWN, -1, 0, 0);
    for (int i = 0; i < dim->n_steps; i++) {
        const struct roped_dim_step *step = &dim->step[i];
        bool is_too_large = false;
        if (!operand_of(step, size_of, context, &number))
            return wrong(ROPED_DIM_UNKNOWN, i, size, 0);
        if (step->sign == '+') {
            is_too_large = __builtin_add_overflow(size, number, &size);
        } else if (step->sign == '*') {
            is_too_large = __builtin_mul_overflow(size, number, &size);
        } else if (number <= 0) {
            if (step->sign == '^')
                return wrong(ROPED_DIM_UNKNOWN, i, size, number);
            if (!step->is_kept)
                return wrong(ROPED_DIM_NONE, i, size, number);
            size = 1;
        } else if (step->sign == '/') {
            if (size % number)
                return wrong(ROPED_DIM_UNEVEN, i, size, number);
            size /= number;
        } else {
            int64_t less = (number - size % number) % number;
            is_too_large = __builtin_add_overflow(size, less, &size);
        }
        if (is_too_large)
            return wrong(ROPED_DIM_TOO_LARGE, i, 0, 0);
    }
    return (struct roped_dim_size){ROPED_DIM_SIZED, size, 0, 0};
}

struct roped_dim_size roped_dim_solve(const struct roped_dim_pattern *dim,
                                      int64_t size, roped_size_fn *size_of,
                                      const void *context)
{
    int64_t number;
    for (int i = dim->n_steps - 1; i >= 0; i--) {
        const struct roped_dim_step *step = &dim->step[i];
        if (step->sign == '^')
            return wrong(ROPED_DIM_ONE_WAY, i, size, 0);
        if (!operand_of(step, size_of, context, &number))
            return wrong(ROPED_DIM_UNKNOWN, i, size, 0);
        if (step->sign == '+') {
            size -= number;
            if (size < 0)
                return wrong(ROPED_DIM_TOO_LARGE, i, size, number);
        } else if (number <= 0) {
            return wrong(ROPED_DIM_UNKNOWN, i, size, number);
        } else if (step->sign == '*') {
            if (size % number)
                return wrong(ROPED_DIM_UNEVEN, i, size, number);
            size /= number;
        } else if (__builtin_mul_overflow(size, number, &size)) {
            return wrong(ROPED_DIM_TOO_LARGE, i, 0, 0);
        }
    }
    return (struct roped_dim_size){ROPED_DIM_SIZED, size, 0, 0};
}
