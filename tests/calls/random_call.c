/*
 * random_call.c - calls as chance has them, and what the library says of them.
 */
#include "calls/random_call.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_MENDED = 200 };

static int one_of(struct random_source *source, int n)
{
    return (int)random_int(source, 0, n - 1);
}

/* ------------------------------------------------------------------- sizes */

/* 0 and 1, sizes with and without a vector's multiple, and some that take
 * several blocks or warps. */
static int64_t random_size(struct random_source *source)
{
    static const int64_t sizes[] = {10, 12, 16, 17, 24,  32,
                                    33, 48, 64, 65, 128, 300};
    if (random_once_in(source, 40))
        return 0;
    if (random_once_in(source, 100))
        return random_int(source, 1000, 9000);
    return random_once_in(source, 3)
               ? random_pick(source, sizes, sizeof sizes / sizeof *sizes)
               : random_int(source, 1, 9);
}

/* Is this word in a list of them, "d r"? */
static bool lists(const char *list, const char *word)
{
    size_t length = strlen(word);
    const char *at = list && length ? strstr(list, word) : NULL;
    while (at && ((at != list && at[-1] != ' ') ||
                  (at[length] != ' ' && at[length] != '\0')))
        at = strstr(at + 1, word);
    return at != NULL;
}

/* A hidden size or head of more than a few elements. */
static int64_t random_width(enum random_widths of, struct random_source *source)
{
    static const int64_t widths[] = {64,   128,   192,   256,  512,  576,
                                     1024, 1536,  2048,  4096, 5120, 7168,
                                     8192, 16384, 32768, 100,  1025, 40000};
    static const int64_t beyond[] = {2056,  5125,   8200,  16392,
                                     65544, 131072, 262147};
    if (of == RANDOM_ANY && random_once_in(source, 3))
        return 8 * random_magnitude(source, 11) + random_once_in(source, 4);
    if (random_once_in(source, 8))
        return random_pick(source, beyond, sizeof beyond / sizeof *beyond);
    return random_pick(source, widths, sizeof widths / sizeof *widths);
}

/* The shape of an input, where conditions choose it by what the call has now.
 */
static enum roped_status pattern_of(const struct random_call *made, int input,
                                    struct roped_shape_pattern *out)
{
    static _Thread_local struct roped_call call; /* test_soak has threads */
    const struct roped_port *port = &made->op->in[input];
    if (!roped_port_is_guarded(port))
        return roped_port_pattern(port, made->form, out, NULL);
    roped_call_init(&call, made->op);
    call.form = made->form;
    for (int i = 0; i < call.n_params; i++)
        if (made->has_param[i] &&
            roped_call_set_text(&call, made->op->param[i].name, made->param[i],
                                NULL))
            continue; /* which is the refusal that comes */
    memcpy(call.in, made->in, sizeof call.in);
    return roped_call_pattern(&call, port, -1, out, NULL);
}

/* The size of this symbol in an input that has it already, or what a parameter
 * says. */
static bool known_size(const void *context, const char *symbol, int64_t *size)
{
    const struct random_call *made = context;
    struct roped_shape_pattern pattern;
    for (int i = 0; i < roped_op_inputs(made->op); i++) {
        const struct roped_tensor *tensor = &made->in[i];
        if (!roped_tensor_given(tensor) || pattern_of(made, i, &pattern) ||
            pattern.count != tensor->rank)
            continue;
        for (int at = 0; at < pattern.count; at++) {
            if (pattern.dim[at].is_pack ||
                strcmp(pattern.dim[at].name, symbol) != 0)
                continue;
            struct roped_dim_size found = roped_dim_solve(
                &pattern.dim[at], tensor->dims[at], known_size, made);
            *size = found.size;
            if (found.state == ROPED_DIM_SIZED)
                return true;
        }
    }
    for (int i = 0; i < roped_op_params(made->op); i++) {
        const struct roped_param *param = &made->op->param[i];
        if (param->kind != ROPED_PARAM_INT || !made->has_param[i] ||
            (strcmp(param->name, symbol) != 0 &&
             (!param->shape || strcmp(param->shape, symbol) != 0)))
            continue;
        *size = strtoll(made->param[i], NULL, 10);
        return *size > 0;
    }
    return false;
}

/* A symbol has its size, or chance's. */
struct sizes {
    const struct random_call *made;
    int64_t random;
};

static bool any_size(const void *context, const char *symbol, int64_t *size)
{
    const struct sizes *sizes = context;
    if (!known_size(sizes->made, symbol, size))
        *size = sizes->random;
    return true;
}

/* Of a dim that is no pack. One that is a sum or a quotient of what is not
 * there yet is of any size. */
static int64_t size_of(const struct random_call *made,
                       const struct roped_dim_pattern *dim,
                       struct random_source *source)
{
    bool is_width =
        made->widths != RANDOM_FEW && lists(made->op->widths, dim->name);
    struct sizes sizes = {made, is_width ? random_width(made->widths, source)
                                         : random_size(source)};
    struct roped_dim_size found = roped_dim_evaluate(dim, any_size, &sizes);
    return found.state == ROPED_DIM_SIZED ? found.size : sizes.random;
}

/* The dims of a pack, where an input has it already; else of its own. */
static int pack_of(const struct random_call *made, const char *name,
                   int64_t *dims, struct random_source *source)
{
    struct roped_shape_pattern pattern;
    int rank = one_of(source, 4);
    for (int i = 0; i < roped_op_inputs(made->op); i++) {
        const struct roped_tensor *tensor = &made->in[i];
        if (!roped_tensor_given(tensor) || random_once_in(source, 8) ||
            pattern_of(made, i, &pattern) || !pattern.dim[0].is_pack ||
            strcmp(pattern.dim[0].name, name) != 0 ||
            tensor->rank < pattern.count - 1)
            continue;
        rank = tensor->rank - (pattern.count - 1);
        memcpy(dims, tensor->dims, (size_t)rank * sizeof *dims);
        return rank;
    }
    for (int i = 0; i < rank; i++)
        dims[i] = random_size(source);
    return rank;
}

void random_call_dims(struct random_call *made, int input,
                      struct random_source *source)
{
    struct roped_shape_pattern pattern;
    struct roped_tensor *tensor = &made->in[input];
    enum roped_dtype dtype = tensor->dtype;
    free(tensor->data);
    tensor->data = NULL;
    tensor->rank = 0;
    tensor->dtype = ROPED_NO_DTYPE; /* it says no size while it gets its own */
    if (pattern_of(made, input, &pattern))
        pattern.count = 0;
    for (int i = 0; i < pattern.count; i++) {
        const struct roped_dim_pattern *dim = &pattern.dim[i];
        int64_t *to = tensor->dims + tensor->rank;
        if (dim->is_pack) {
            tensor->rank += pack_of(made, dim->name, to, source);
        } else {
            *to = size_of(made, dim, source);
            tensor->rank++;
        }
    }
    tensor->dtype = dtype;
}

/* ------------------------------------------------------------------ inputs */

/* The variable's type, where an input has it already; or one of its set. */
static enum roped_dtype type_of(const struct random_call *made, int input,
                                struct random_source *source)
{
    const struct roped_op *op = made->op;
    uint32_t set = roped_op_types(op, &op->in[input]);
    int n = __builtin_popcount(set), nth = one_of(source, n);
    for (int i = 0; i < roped_op_inputs(op); i++)
        if (roped_tensor_given(&made->in[i]) &&
            strcmp(op->in[i].type, op->in[input].type) == 0)
            return made->in[i].dtype;
    for (int dtype = 1; dtype < ROPED_DTYPE_COUNT; dtype++)
        if (set & ROPED_SET(dtype) && nth-- == 0)
            return (enum roped_dtype)dtype;
    return ROPED_F32;
}

void random_call_give(struct random_call *made, int input,
                      struct random_source *source)
{
    if (roped_tensor_given(&made->in[input]))
        return;
    enum roped_dtype dtype = type_of(made, input, source);
    random_call_dims(made, input, source);
    made->in[input].dtype = dtype;
}

void random_call_drop(struct random_call *made, int input)
{
    free(made->in[input].data);
    made->in[input] = (struct roped_tensor){ROPED_NO_DTYPE};
}

/* -------------------------------------------------------------- parameters */

static double random_edge(const struct roped_param *param,
                          struct random_source *source)
{
    static const double numbers[] = {0, 1, -1, 2, 0.5, 8, 64, 1e-6, 10000, 1e9};
    switch (one_of(source, 6)) {
    case 0:
        return param->min;
    case 1:
        return param->max;
    case 2:
        return param->init;
    default:
        return numbers[one_of(source, sizeof numbers / sizeof *numbers)];
    }
}

static void write_ints(const struct roped_param *param, char *text,
                       struct random_source *source)
{
    size_t at = 0;
    int n = one_of(source, roped_param_ints(param)) + 1;
    for (int i = 0; i < n; i++)
        at += (size_t)snprintf(text + at, RANDOM_CALL_TEXT - at, "%s%lld",
                               i ? "," : "",
                               (long long)random_int(source, 0, 16));
}

void random_call_param(struct random_call *made, int index,
                       struct random_source *source)
{
    const struct roped_param *param = &made->op->param[index];
    char *text = made->param[index];
    made->has_param[index] = true;
    if (param->kind == ROPED_PARAM_CHOICE || param->kind == ROPED_PARAM_DTYPE) {
        int n = one_of(source, roped_param_choices(param));
        char choice[RANDOM_CALL_TEXT];
        snprintf(text, RANDOM_CALL_TEXT, "%s",
                 roped_param_choice(param, n, choice, sizeof choice));
    } else if (param->kind == ROPED_PARAM_BOOL) {
        snprintf(text, RANDOM_CALL_TEXT, "%s",
                 one_of(source, 2) ? "true" : "false");
    } else if (param->kind == ROPED_PARAM_INTS) {
        write_ints(param, text, source);
    } else if (param->kind == ROPED_PARAM_INT) {
        double edge = random_edge(param, source);
        snprintf(text, RANDOM_CALL_TEXT, "%.0f", fmin(fmax(edge, -1e15), 1e15));
    } else {
        snprintf(text, RANDOM_CALL_TEXT, "%.9g", random_edge(param, source));
        /* '+' is a space in a query */
        for (char *plus = strchr(text, '+'); plus; plus = strchr(text, '+'))
            memmove(plus, plus + 1, strlen(plus));
    }
}

/* What asks for the form, if a parameter does. */
static void ask_for_form(struct random_call *made)
{
    const struct roped_form *form = &made->op->form[made->form];
    int index =
        form->name && form->param ? roped_op_param(made->op, form->param) : -1;
    char choice[RANDOM_CALL_TEXT];
    if (index < 0)
        return;
    made->has_param[index] = true;
    snprintf(made->param[index], RANDOM_CALL_TEXT, "%s",
             roped_param_choice(&made->op->param[index], form->value, choice,
                                sizeof choice));
}

/* ------------------------------------------------------------------ values */

int64_t random_call_value(const struct roped_tensor *tensor, int64_t at)
{
    if (tensor->dtype == ROPED_I64)
        return ((const int64_t *)tensor->data)[at];
    return ((const int32_t *)tensor->data)[at];
}

void random_call_set(const struct roped_tensor *tensor, int64_t at,
                     int64_t value)
{
    if (tensor->dtype == ROPED_I64)
        ((int64_t *)tensor->data)[at] = value;
    else
        ((int32_t *)tensor->data)[at] = (int32_t)value;
}

static void fill_starts(const struct roped_tensor *tensor, int64_t all,
                        struct random_source *source)
{
    int64_t n = roped_tensor_elements(tensor), end = 0;
    for (int64_t i = 0; i < n; i++) {
        random_call_set(tensor, i, i == n - 1 && n > 1 ? all : end);
        end += random_int(source, 0, (all - end) / 2);
    }
}

/* Ends of ranges of indexes: of those that are few, of tables of angles, of
 * what float32 tells apart. */
static int64_t random_largest(int64_t below, struct random_source *source)
{
    static const int64_t most[] = {63, 63, 63, 8191, 131071, 1048575, 1 << 24};
    int64_t largest = random_pick(source, most, sizeof most / sizeof *most);
    return largest < below ? largest : below - 1;
}

/* What an index tensor holds, to begin with: starts, as they must be; some
 * below what the call says, or places of their own; small numbers where the
 * operator says no more. Where that may be, some tokens have none, in every
 * row. */
static void fill_indexes(const struct random_call *made, int input,
                         struct random_source *source)
{
    const struct roped_tensor *tensor = &made->in[input];
    struct roped_holds holds;
    int64_t n = roped_tensor_elements(tensor);
    int which;
    if (roped_port_holds(&made->op->in[input], &holds, NULL))
        holds.kind = ROPED_HOLDS_ANYTHING;
    int64_t below = roped_call_below(&made->call, &holds, &which);
    bool is_any = random_once_in(source, 2) && below > 0;
    int64_t largest = is_any ? random_largest(below, source) : 0;
    int none_in = holds.may_be_none && random_once_in(source, 4) ? 3 : 0;
    int64_t tokens = tensor->rank ? tensor->dims[tensor->rank - 1] : 1;
    if (holds.kind == ROPED_HOLDS_STARTS) {
        fill_starts(tensor, below, source);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        random_call_set(tensor, i, is_any ? random_int(source, 0, largest) : i);
    for (int64_t token = 0; token < tokens && none_in; token++)
        if (random_once_in(source, none_in))
            for (int64_t i = token; i < n; i += tokens)
                random_call_set(tensor, i, -1);
}

static void fill(const struct random_call *made, int input,
                 struct random_source *source)
{
    const struct roped_port *port = &made->op->in[input];
    const struct roped_tensor *tensor = &made->in[input];
    int64_t n = roped_tensor_elements(tensor);
    bool is_float = ROPED_SET(tensor->dtype) & ROPED_FLOATS;
    unsigned char *bytes = tensor->data;
    if (ROPED_SET(tensor->dtype) & ROPED_INDEXES)
        fill_indexes(made, input, source);
    else if (is_float)
        random_fill(source, tensor, 1, true);
    for (int64_t i = 0; i < n && is_float && port->flags & ROPED_INDEX; i++)
        ((float *)tensor->data)[i] = fabsf(((float *)tensor->data)[i]) + 0.5f;
    for (int64_t i = 0; i < n && roped_dtype_bytes(tensor->dtype) == 1; i++)
        bytes[i] = (unsigned char)random_bits(source);
}

/* Memory for what has none; false where the call is too large to try. */
static bool fill_inputs(struct random_call *made, struct random_source *source)
{
    if (roped_call_bytes(&made->call) > made->most_bytes)
        return false;
    for (int i = 0; i < roped_op_inputs(made->op); i++) {
        struct roped_tensor *tensor = &made->in[i];
        if (!roped_tensor_given(tensor) || tensor->data)
            continue;
        tensor->data = malloc((size_t)roped_tensor_bytes(tensor));
        if (!tensor->data)
            abort();
        fill(made, i, source);
    }
    return true;
}

/* ---------------------------------------------------------------- judgment */

static enum roped_status state(struct random_call *made)
{
    struct roped_call *call = &made->call;
    enum roped_status status = ROPED_OK;
    roped_call_init(call, made->op);
    for (int i = 0; i < call->n_params && !status; i++)
        if (made->has_param[i])
            status = roped_call_set_text(call, made->op->param[i].name,
                                         made->param[i], &made->err);
    for (int i = 0; i < call->n_in && !status; i++)
        if (roped_tensor_given(&made->in[i]))
            status = roped_call_bind(call, made->op->in[i].name, &made->in[i],
                                     &made->err);
    return status ? status : roped_call_resolve(call, &made->err);
}

/* Are the values of the inputs there, those that plan reads? */
static bool has_values(const struct random_call *made)
{
    for (int i = 0; i < made->call.n_in; i++)
        if (roped_tensor_given(&made->in[i]) && !made->in[i].data &&
            made->op->in[i].flags & ROPED_INDEX)
            return false;
    return true;
}

static void plan(struct random_call *made)
{
    size_t bytes = roped_call_aux_bytes(&made->call);
    made->call.aux = aligned_alloc(64, (bytes + 64) / 64 * 64);
    if (!made->call.aux)
        abort();
    made->status = roped_call_plan(&made->call, &made->err);
    free(made->call.aux);
    made->call.aux = NULL;
}

void random_call_judge(struct random_call *made)
{
    made->err.text[0] = '\0';
    made->status = state(made);
    if (!made->status && has_values(made))
        plan(made);
}

/* ------------------------------------------------------------------ making */

static void begin(struct random_call *made, struct random_source *source)
{
    const struct roped_op *op = made->op;
    made->form = one_of(source, roped_op_forms(op));
    ask_for_form(made);
    for (int i = 0; i < roped_op_inputs(op); i++)
        if (!(op->in[i].flags & ROPED_OPTIONAL) || random_once_in(source, 3))
            random_call_give(made, i, source);
    while (!random_once_in(source, 3) && roped_op_params(op) > 0)
        random_call_param(made, one_of(source, roped_op_params(op)), source);
}

static bool judge_values(struct random_call *made, struct random_source *source)
{
    random_call_judge(made);
    if (made->status)
        return true;
    if (!fill_inputs(made, source))
        return false;
    random_call_judge(made);
    return true;
}

static void make(struct random_call *made, const struct roped_op *op,
                 enum random_widths widths, struct random_source *source)
{
    bool is_mended = !random_once_in(source, 10);
    for (;;) {
        memset(made, 0, sizeof *made);
        made->op = op;
        made->widths = widths;
        made->most_bytes =
            widths == RANDOM_FEW ? RANDOM_CALL_BYTES : RANDOM_CALL_WIDE_BYTES;
        begin(made, source);
        bool is_small = judge_values(made, source);
        while (is_small && made->status && is_mended &&
               made->n_mended++ < MOST_MENDED && random_call_mend(made, source))
            is_small = judge_values(made, source);
        if (is_small && (made->status || has_values(made)))
            return;
        random_call_free(made);
    }
}

void random_call_make(struct random_call *made, const struct roped_op *op,
                      struct random_source *source)
{
    make(made, op, RANDOM_FEW, source);
}

void random_call_make_sound(struct random_call *made, const struct roped_op *op,
                            enum random_widths widths,
                            struct random_source *source)
{
    for (;;) {
        make(made, op, widths, source);
        if (!made->status)
            return;
        random_call_free(made);
    }
}

void random_call_make_shaped(struct random_call *made,
                             const struct roped_op *op,
                             random_shapes_fn *shapes,
                             struct random_source *source)
{
    memset(made, 0, sizeof *made);
    made->op = op;
    made->most_bytes = RANDOM_CALL_SHAPED_BYTES;
    shapes(made, source);
    if (judge_values(made, source) && !made->status)
        return;
    fprintf(stderr, "%s: a call of chosen shapes: %s\n", op->name,
            made->err.text);
    abort();
}

/* -------------------------------------------------------------- variations */

/* An input that is there. */
static int random_input(const struct random_call *made,
                        struct random_source *source)
{
    int n = roped_op_inputs(made->op), i = one_of(source, n);
    while (!roped_tensor_given(&made->in[i]))
        i = (i + 1) % n;
    return i;
}

/* Other bytes, as many as its type and shape ask for now; of a tensor that
 * would be too large to send, one of each dim. */
static void refill(struct roped_tensor *tensor, struct random_source *source)
{
    int64_t n_elements, n_bytes;
    if (roped_tensor_size(tensor, "", &n_elements, &n_bytes, NULL) ||
        n_bytes > RANDOM_CALL_BYTES) {
        for (int i = 0; i < tensor->rank; i++)
            tensor->dims[i] = 1;
        n_bytes = (int64_t)roped_dtype_bytes(tensor->dtype);
    }
    unsigned char *bytes = malloc(n_bytes ? (size_t)n_bytes : 1);
    if (!bytes)
        abort();
    free(tensor->data);
    tensor->data = bytes;
    for (int64_t i = 0; i < n_bytes; i++)
        bytes[i] = (unsigned char)random_bits(source);
}

static void spoil_input(struct random_call *made, struct random_source *source)
{
    int input = random_input(made, source);
    struct roped_tensor *tensor = &made->in[input];
    int64_t n = tensor->data ? roped_tensor_elements(tensor) : 0;
    int how = one_of(source, 4);
    if (how == 0) {
        uint32_t set = roped_op_types(made->op, &made->op->in[input]);
        do
            tensor->dtype =
                (enum roped_dtype)(1 + one_of(source, ROPED_DTYPE_COUNT - 1));
        while (!(set & ROPED_SET(tensor->dtype)) && !random_once_in(source, 9));
    } else if (how == 1 && tensor->rank > 0) {
        tensor->dims[one_of(source, tensor->rank)] = random_size(source);
    } else if (how == 2 && ROPED_SET(tensor->dtype) & ROPED_INDEXES && n > 0) {
        static const int64_t values[] = {-2, -1, 0, 1, 1 << 24, INT32_MAX};
        random_call_set(tensor, random_int(source, 0, n - 1),
                        random_pick(source, values, 6));
        return;
    } else {
        random_call_drop(made, input);
        return;
    }
    refill(tensor, source);
}

void random_call_spoil(struct random_call *made, struct random_source *source)
{
    int n_params = roped_op_params(made->op);
    if (n_params > 0 && random_once_in(source, 3))
        random_call_param(made, one_of(source, n_params), source);
    else
        spoil_input(made, source);
    random_call_judge(made);
}

static bool fits_i32(const struct roped_tensor *tensor)
{
    int64_t n = roped_tensor_elements(tensor);
    for (int64_t i = 0; i < n; i++)
        if (random_call_value(tensor, i) !=
            (int32_t)random_call_value(tensor, i))
            return false;
    return true;
}

static void convert_indexes(struct roped_tensor *tensor)
{
    struct roped_tensor to = *tensor;
    int64_t n = roped_tensor_elements(tensor);
    to.dtype = tensor->dtype == ROPED_I32 ? ROPED_I64 : ROPED_I32;
    to.data = malloc((size_t)roped_tensor_bytes(&to));
    if (!to.data)
        abort();
    for (int64_t i = 0; i < n; i++)
        random_call_set(&to, i, random_call_value(tensor, i));
    free(tensor->data);
    *tensor = to;
}

bool random_call_widen(struct random_call *made, struct random_source *source)
{
    const struct roped_op *op = made->op;
    const char *type = op->in[random_input(made, source)].type;
    bool is_changed = false;
    for (int i = 0; i < roped_op_inputs(op); i++) {
        struct roped_tensor *tensor = &made->in[i];
        if (!roped_tensor_given(tensor) || strcmp(op->in[i].type, type) != 0)
            continue;
        if (roped_op_types(op, &op->in[i]) != ROPED_INDEXES ||
            !fits_i32(tensor))
            return false;
    }
    for (int i = 0; i < roped_op_inputs(op); i++)
        if (roped_tensor_given(&made->in[i]) &&
            strcmp(op->in[i].type, type) == 0) {
            convert_indexes(&made->in[i]);
            is_changed = true;
        }
    random_call_judge(made);
    return is_changed;
}

bool random_call_updates(const struct roped_op *op, int output)
{
    int input = roped_op_shared(op, output);
    return input >= 0 && roped_op_updates(op, input) == output;
}

/* ------------------------------------------------------------------ report */

const char *random_call_text(const struct random_call *made, char *text,
                             size_t bytes)
{
    size_t at = (size_t)snprintf(text, bytes, "%s?", made->op->name);
    for (int i = 0; i < roped_op_params(made->op) && at < bytes; i++)
        if (made->has_param[i])
            at += (size_t)snprintf(text + at, bytes - at, "%s=%s&",
                                   made->op->param[i].name, made->param[i]);
    for (int i = 0; i < roped_op_inputs(made->op) && at < bytes; i++) {
        char shape[128];
        const struct roped_tensor *tensor = &made->in[i];
        if (roped_tensor_given(tensor))
            at += (size_t)snprintf(text + at, bytes - at, " %s %s %s",
                                   made->op->in[i].name,
                                   roped_dtype_name(tensor->dtype),
                                   roped_shape_text(tensor->dims, tensor->rank,
                                                    shape, sizeof shape));
    }
    return text;
}

void random_call_free(struct random_call *made)
{
    for (int i = 0; i < ROPED_MAX_INPUTS; i++) {
        free(made->in[i].data);
        made->in[i].data = NULL;
    }
}

void random_call_count(struct random_call_counts *counts,
                       const struct roped_op *op, bool is_accepted)
{
    counts->made[roped_op_index(op)]++;
    counts->accepted[roped_op_index(op)] += is_accepted;
}

bool random_call_report(const struct random_call_counts *counts)
{
    bool is_enough = true;
    for (int i = 0; i < roped_op_count(); i++) {
        int64_t made = counts->made[i], accepted = counts->accepted[i];
        printf("%-24s %7" PRId64 " calls, %7" PRId64 " accepted, %3.0f %%\n",
               roped_op_at(i)->name, made, accepted,
               100.0 * (double)accepted / (double)(made ? made : 1));
        if (5 * accepted < made) {
            printf("%s: fewer than one call in five was accepted\n",
                   roped_op_at(i)->name);
            is_enough = false;
        }
    }
    return is_enough;
}
