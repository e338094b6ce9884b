/*
 * mend.c - what a refusal says was expected, done.
 *
 * The grammar of messages (roped/status.h) is all that is known here: what,
 * found, expected. A message names tensors and parameters in quotes.
 */
#include "calls/random_call.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NAMES = 8, MAX_INTS = 16 };

/* What a message names, in its order. */
struct named {
    int n;
    bool is_param[MAX_NAMES];
    int index[MAX_NAMES];
};

static int one_of(struct random_source *source, int n)
{
    return (int)random_int(source, 0, n - 1);
}

static bool says(const char *text, const char *part)
{
    return strstr(text, part) != NULL;
}

static void add_name(const struct random_call *made, const char *name,
                     struct named *named)
{
    int input = roped_op_input(made->op, name);
    int param = roped_op_param(made->op, name);
    if (named->n == MAX_NAMES || (input < 0 && param < 0))
        return;
    /* a scale may be either: whichever is there */
    bool is_param = input < 0 || (param >= 0 && made->has_param[param]);
    named->is_param[named->n] = is_param;
    named->index[named->n++] = is_param ? param : input;
}

static struct named names_in(const struct random_call *made)
{
    struct named named = {0};
    char name[ROPED_NAME_BYTES];
    const char *at = made->err.text;
    while ((at = strchr(at, '\''))) {
        size_t n = strcspn(++at, "'");
        if (n < sizeof name) {
            snprintf(name, sizeof name, "%.*s", (int)n, at);
            add_name(made, name, &named);
        }
        at += n + (at[n] != '\0');
    }
    return named;
}

static bool is_there(const struct random_call *made, const struct named *named,
                     int i)
{
    return named->is_param[i] ? made->has_param[named->index[i]]
                              : roped_tensor_given(&made->in[named->index[i]]);
}

static bool is_droppable(const struct random_call *made,
                         const struct named *named, int i)
{
    return is_there(made, named, i) &&
           (named->is_param[i] ||
            made->op->in[named->index[i]].flags & ROPED_OPTIONAL);
}

static void drop(struct random_call *made, const struct named *named, int i)
{
    if (named->is_param[i])
        made->has_param[named->index[i]] = false;
    else
        random_call_drop(made, named->index[i]);
}

/* Drops one of the names, a random one, if any may go. */
static bool drop_one(struct random_call *made, const struct named *named,
                     struct random_source *source)
{
    int first = named->n ? one_of(source, named->n) : 0;
    for (int i = 0; i < named->n; i++) {
        int at = (first + i) % named->n;
        if (!is_droppable(made, named, at))
            continue;
        drop(made, named, at);
        return true;
    }
    return false;
}

/* "missing tensor 'sin': 'cos' is given and needs it": gives the first that is
 * not there, or takes the one that needs it. */
static bool mend_missing(struct random_call *made, const struct named *named,
                         struct random_source *source)
{
    if (strncmp(made->err.text, "missing ", 8) != 0)
        return false;
    if (random_once_in(source, 4) && drop_one(made, named, source))
        return true;
    int n_missing = 0;
    while (n_missing < named->n && !is_there(made, named, n_missing))
        n_missing++;
    if (n_missing == 0)
        return false;
    int at = one_of(source, n_missing);
    if (named->is_param[at])
        random_call_param(made, named->index[at], source);
    else
        random_call_give(made, named->index[at], source);
    return true;
}

static bool mend_too_many(struct random_call *made, const struct named *named,
                          struct random_source *source)
{
    const char *text = made->err.text;
    if (says(text, ": not with ") && named->n && is_droppable(made, named, 0)) {
        drop(made, named, 0);
        return true;
    }
    return (says(text, "both given") || says(text, "is given")) &&
           drop_one(made, named, source);
}

/* Integers that stand in a text, up to end (NULL: all). */
static int ints_in(const char *text, const char *end, int64_t *ints)
{
    int n = 0;
    while (*text && text != end && n < MAX_INTS) {
        bool is_sign = *text == '-' && isdigit((unsigned char)text[1]);
        if (!is_sign && !isdigit((unsigned char)*text)) {
            text++;
            continue;
        }
        char *after;
        ints[n++] = strtoll(text, &after, 10);
        text = after;
    }
    return n;
}

static const char *expected_in(const char *text)
{
    const char *at = strstr(text, "expected ");
    return at ? at + strlen("expected ") : "";
}

/* "'scale_ub' is given, expected dynamic=true with it": gives it that, or one
 * of more values, as often as mend_too_many takes what asks for it. */
static bool mend_needed(struct random_call *made, struct random_source *source)
{
    const char *expected = expected_in(made->err.text);
    size_t length = strcspn(expected, "= ");
    char name[ROPED_NAME_BYTES], value[ROPED_NAME_BYTES];
    if (!says(made->err.text, "is given, expected ") ||
        expected[length] != '=' || length >= sizeof name ||
        random_once_in(source, 2))
        return false;
    snprintf(name, sizeof name, "%.*s", (int)length, expected);
    int param = roped_op_param(made->op, name), n = 0;
    const char *values = expected + length + 1;
    while (param >= 0 && roped_condition_value(&values, value, sizeof value)) {
        if (!random_once_in(source, ++n))
            continue;
        made->has_param[param] = true;
        snprintf(made->param[param], RANDOM_CALL_TEXT, "%s", value);
    }
    return n > 0;
}

static void set_dim(struct roped_tensor *tensor, int dim, int64_t size)
{
    if (dim < 0 || dim >= tensor->rank || size < 0)
        return;
    tensor->dims[dim] = size;
    free(tensor->data);
    tensor->data = NULL;
}

/* "tensor 'k': dim 1 is 3, expected hk = 4" */
static bool mend_dim(struct random_call *made, const struct named *named,
                     struct random_source *source)
{
    const char *text = made->err.text, *expected = expected_in(text);
    const char *dim = strstr(text, "dim ");
    int64_t ints[MAX_INTS];
    if (!dim || named->n == 0 || named->is_param[0])
        return false;
    const char *equals = strchr(expected, '=');
    int n = ints_in(equals ? equals : expected, strchr(expected, '('), ints);
    int64_t size = n > 0 ? ints[0] : random_int(source, 1, 8);
    for (int i = 1; i < n && equals && says(equals, " + "); i++)
        size += ints[i];
    if (says(expected, "multiple"))
        size *= random_int(source, 1, 3);
    if (says(expected, "above 0"))
        size = random_int(source, 1, 8);
    set_dim(&made->in[named->index[0]], (int)strtol(dim + 4, NULL, 10), size);
    return true;
}

/* The words of the grammar for what index tensors hold. */
static bool is_about_value(const char *text)
{
    static const char *const words[] = {": value ", ": position ", ": slot ",
                                        ": page ", ": request "};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (says(text, words[i]))
            return true;
    return false;
}

/* "expected 0 <= slot < 9", "expected 3 to n = 8", "expected n = 8": the least
 * and the largest value; false: no value will do. */
static bool read_range(const char *expected, int64_t *least, int64_t *most)
{
    int64_t ints[MAX_INTS];
    const char *below = strstr(expected, " < ");
    int n = ints_in(expected, NULL, ints);
    *least = n > 0 ? ints[0] : -1;
    *most = n > 0 ? ints[0] : 63;
    if (below && ints_in(below, NULL, ints) > 0)
        *most = ints[0] - 1;
    else if (n > 1 && says(expected, " to "))
        *most = ints[1];
    return *most >= *least && !(below && *most < 0 && *least == 0);
}

/* The value, and all others of its tensor that are outside of the range. */
static void set_values(const struct roped_tensor *tensor, int64_t index,
                       int64_t least, int64_t most, bool is_range,
                       struct random_source *source)
{
    int64_t n = is_range ? roped_tensor_elements(tensor) : 0;
    random_call_set(tensor, index, random_int(source, least, most));
    for (int64_t i = 0; i < n; i++)
        if (random_call_value(tensor, i) < least ||
            random_call_value(tensor, i) > most)
            random_call_set(tensor, i, random_int(source, least, most));
}

/* What another index tensor has for the same token becomes -1: there is
 * nothing that this one could have. */
static void set_another(struct random_call *made, int input, int64_t index,
                        struct random_source *source)
{
    int n = roped_op_inputs(made->op), first = one_of(source, n);
    for (int i = 0; i < n; i++) {
        int other = (first + i) % n;
        const struct roped_tensor *tensor = &made->in[other];
        if (other != input && ROPED_SET(tensor->dtype) & ROPED_INDEXES &&
            tensor->data && index < roped_tensor_elements(tensor)) {
            random_call_set(tensor, index, -1);
            return;
        }
    }
}

static bool mend_value(struct random_call *made, const struct named *named,
                       struct random_source *source)
{
    const char *text = made->err.text, *at = strstr(text, "at index ");
    const char *expected = expected_in(text);
    int64_t least, most;
    if (!at || !is_about_value(text) || named->n == 0 || named->is_param[0] ||
        (random_once_in(source, 8) && drop_one(made, named, source)))
        return at && is_about_value(text);
    const struct roped_tensor *tensor = &made->in[named->index[0]];
    int64_t index = strtoll(at + strlen("at index "), NULL, 10);
    if (!tensor->data || index < 0 || index >= roped_tensor_elements(tensor))
        return false;
    if (tensor->dtype == ROPED_F32)
        ((float *)tensor->data)[index] = 1;
    else if (read_range(expected, &least, &most))
        set_values(tensor, index, least, most, says(expected, " < "), source);
    else
        set_another(made, named->index[0], index, source);
    return true;
}

/* "expected F32 or BF16": one of the types that are named. */
static bool mend_type(struct random_call *made, const struct named *named,
                      struct random_source *source)
{
    const char *expected = expected_in(made->err.text);
    enum roped_dtype found[ROPED_DTYPE_COUNT];
    int n = 0;
    if (named->n == 0 || named->is_param[0])
        return false;
    while (*expected) {
        size_t length = strcspn(expected, " ,'");
        enum roped_dtype dtype = roped_dtype_from_name(expected, length);
        if (dtype != ROPED_NO_DTYPE && n < ROPED_DTYPE_COUNT)
            found[n++] = dtype;
        expected += length + (expected[length] != '\0');
    }
    struct roped_tensor *tensor = &made->in[named->index[0]];
    if (n == 0 || !roped_tensor_given(tensor))
        return false;
    tensor->dtype = found[one_of(source, n)];
    free(tensor->data);
    tensor->data = NULL;
    return true;
}

/* The integers of "[2, 3]", or as many sizes as "[n, hk, d]" has words. */
static int read_shape(const char *text, int64_t *dims,
                      struct random_source *source)
{
    int rank = 0;
    for (text++; *text && *text != ']' && rank < ROPED_MAX_RANK; rank++) {
        text += strspn(text, " ,");
        bool is_number = isdigit((unsigned char)*text);
        if (*text == ']')
            break;
        dims[rank] =
            is_number ? strtoll(text, NULL, 10) : random_int(source, 1, 8);
        text += strcspn(text, ",]");
    }
    return rank;
}

/* "shape [2, 3], expected [2, 4]", "leading dims [2], expected [3]", "rank 3,
 * expected [slots, hk, d], [pages, ...] or [...]" */
static bool mend_shape(struct random_call *made, const struct named *named,
                       struct random_source *source)
{
    const char *text = made->err.text;
    const char *shape = strchr(expected_in(text), '[');
    struct roped_shape_pattern pattern;
    int64_t dims[2 * ROPED_MAX_RANK];
    if (named->n == 0 || named->is_param[0] ||
        !(says(text, "shape") || says(text, "rank") || says(text, "dims")))
        return false;
    int input = named->index[0];
    struct roped_tensor *tensor = &made->in[input];
    made->form = made->call.form;
    if (!shape || says(text, "rank of") ||
        roped_port_pattern(&made->op->in[input], made->form, &pattern, NULL)) {
        random_call_dims(made, input, source);
        return true;
    }
    while (one_of(source, 2) && strchr(shape + 1, '['))
        shape = strchr(shape + 1, '[');
    int rank = read_shape(shape, dims, source), n_last = 0;
    if (says(text, "leading dims"))
        n_last = tensor->rank < pattern.count - 1 ? 0 : pattern.count - 1;
    memcpy(dims + rank, tensor->dims + tensor->rank - n_last,
           (size_t)n_last * sizeof *dims);
    tensor->rank = rank + n_last < ROPED_MAX_RANK ? rank + n_last : rank;
    memcpy(tensor->dims, dims, (size_t)tensor->rank * sizeof *dims);
    free(tensor->data);
    tensor->data = NULL;
    return true;
}

/* A value that is none of the edges: what was expected, or below it. */
static void set_param(struct random_call *made, int param,
                      struct random_source *source)
{
    const char *expected = expected_in(made->err.text);
    int64_t ints[MAX_INTS];
    int n = ints_in(expected, NULL, ints);
    int64_t value = n > 0 ? ints[one_of(source, n)] : random_int(source, 1, 8);
    if (says(expected, "even"))
        value = 2 * random_int(source, 1, 16);
    else if (says(expected, "at most") && n > 0 && ints[0] >= 0)
        value = random_int(source, 0, ints[0] / 2) * 2;
    made->has_param[param] = true;
    snprintf(made->param[param], sizeof made->param[param], "%lld",
             (long long)value);
}

/* A parameter goes, or has the value that was expected, or another; one that
 * is not there at all follows from a size. */
static bool mend_param(struct random_call *made, const struct named *named,
                       struct random_source *source)
{
    int param = named->index[0];
    if (named->n == 0 || !named->is_param[0])
        return false;
    if (made->has_param[param] && one_of(source, 2)) {
        made->has_param[param] = false;
    } else if (!made->has_param[param] && one_of(source, 2)) {
        random_call_dims(made, 0, source);
    } else if (random_once_in(source, 4)) {
        return drop_one(made, named, source);
    } else if (made->op->param[param].kind == ROPED_PARAM_INT ||
               made->op->param[param].kind == ROPED_PARAM_FLOAT) {
        set_param(made, param, source);
    } else {
        random_call_param(made, param, source);
    }
    return true;
}

bool random_call_mend(struct random_call *made, struct random_source *source)
{
    const struct named named = names_in(made);
    if (mend_missing(made, &named, source) ||
        mend_value(made, &named, source) || mend_dim(made, &named, source) ||
        mend_needed(made, source) || mend_too_many(made, &named, source) ||
        mend_shape(made, &named, source) || mend_type(made, &named, source) ||
        mend_param(made, &named, source))
        return true;
    return drop_one(made, &named, source);
}
