/*
 * bench_tensors.c - which inputs a made-up call has, how large they are, and
 * what is in them. Nothing here knows an operator.
 *
 * A symbol's size is what the command line says, or usual[], or, in an input
 * that must be there, FALLBACK. An optional input is sent where each of its
 * symbols has a size from one of these three, and '...packs' that none of them
 * knows are empty. Of alternatives with conditions the shape
 * is the one with the most symbols from the command line. Where the operator
 * does not take all inputs together, the most that it takes are sent, those
 * with a symbol from the command line first: 'w=128' sends cos and sin instead
 * of positions.
 */
#include "bench_tensors.h"

#include <roped/numeric.h>

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { FALLBACK = 4, INDEXES = 4096, MAX_CHOICES = 12 };

/* Words of the field, as a small decode step of an 8B model has them: shapes,
 * as descriptors write them. */
static const struct {
    const char *symbol, *shape;
} usual[] = {{"n", "4"},        {"hq", "32"},       {"hk", "8"},
             {"d", "128"},      {"r", "64"},        {"p", "64"},
             {"h", "4096"},     {"slots", "n^64"},  {"pages", "8"},
             {"requests", "2"}, {"pagesize", "16"}, {"indices", "pages"},
             {"o", "4 128"},    {"a", "...o"},      {"b", "...o"}};

/* -------------------------------------------------------------------- sizes */

/* Calls visit with each dim of each input in each form, until it is true. */
static bool any_dim(const struct roped_op *op, int first_form, int end_form,
                    bool (*visit)(const struct roped_dim_pattern *dim,
                                  void *context),
                    void *context)
{
    struct roped_shape_pattern pattern;
    struct roped_error err;
    for (int i = 0; i < roped_op_inputs(op); i++) {
        bool is_guarded = roped_port_is_guarded(&op->in[i]);
        int n = is_guarded ? roped_port_alternatives(&op->in[i]) : end_form;
        for (int form = is_guarded ? 0 : first_form; form < n; form++) {
            if (roped_port_pattern(&op->in[i], form, &pattern, &err))
                continue;
            for (int j = 0; j < pattern.count; j++)
                if (pattern.dim[j].name[0] && visit(&pattern.dim[j], context))
                    return true;
        }
    }
    return false;
}

/* What bench_size_add looks for, and what there is instead. */
struct search {
    const char *symbol;
    bool is_pack;
    struct roped_nearest nearest;
};

static bool is_sought(const struct roped_dim_pattern *dim, void *context)
{
    struct search *search = context;
    search->is_pack = dim->is_pack;
    if (strcmp(dim->name, search->symbol) == 0)
        return true;
    roped_nearest_offer(&search->nearest, dim->name);
    return false;
}

/* "32" or "8,128" */
static bool read_dims(struct bench_size *size, const char *text)
{
    for (size->rank = 0; size->rank < ROPED_MAX_RANK;) {
        char *end;
        int64_t n = strtoll(text, &end, 10);
        if (end == text || n < 1 || n > INT32_MAX)
            return false;
        size->dims[size->rank++] = n;
        if (*end == '\0')
            return true;
        if (*end != ',')
            return false;
        text = end + 1;
    }
    return false;
}

int bench_size_add(const char *command, struct bench_sizes *sizes,
                   const struct roped_op *op, const char *argument)
{
    char near[128];
    struct bench_size size;
    size_t length = strcspn(argument, "=");
    if (argument[length] != '=' || length == 0 || argument[0] == '-')
        return usage(command, "'%s', expected SYMBOL=SIZE or --NAME VALUE",
                     argument);
    snprintf(size.symbol, sizeof size.symbol, "%.*s", (int)length, argument);
    struct search search = {size.symbol, false, {.word = size.symbol}};
    /* without a copy that is cut off to a symbol there is */
    if (length >= sizeof size.symbol ||
        !any_dim(op, 0, roped_op_forms(op), is_sought, &search))
        return usage(command,
                     "%s has no dimension '%.*s'%s ('ropectl describe "
                     "%s' has them)",
                     op->name, (int)length, argument,
                     roped_nearest_text(&search.nearest, near, sizeof near),
                     op->name);
    if (!read_dims(&size, argument + length + 1) ||
        (size.rank > 1 && !search.is_pack))
        return usage(command, "'%s', expected %s=%s", argument, size.symbol,
                     search.is_pack ? "SIZE,SIZE" : "SIZE, 1 or more");
    if (sizes->n == ROPED_MAX_DIMS)
        return usage(command, "over %d sizes", ROPED_MAX_DIMS);
    sizes->size[sizes->n++] = size;
    return EXIT_SUCCESS;
}

static const struct bench_size *given_size(const struct bench_sizes *sizes,
                                           const char *symbol)
{
    for (int i = sizes->n - 1; i >= 0; i--)
        if (strcmp(sizes->size[i].symbol, symbol) == 0)
            return &sizes->size[i];
    return NULL;
}

/* What usual[] says of a symbol, or of a pack; no dims: nothing. */
static struct roped_shape_pattern usual_shape(const char *symbol, bool is_pack)
{
    struct roped_shape_pattern shape = {.count = 0};
    struct roped_error err;
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++) {
        const struct roped_port port = {.shape = usual[i].shape};
        if (strcmp(usual[i].symbol, symbol) != 0)
            continue;
        if (roped_port_pattern(&port, 0, &shape, &err) ||
            is_pack != (shape.count > 1 || shape.dim[0].is_pack))
            shape.count = 0;
    }
    return shape;
}

/* ------------------------------------------------------------------ tensors */

struct plan {
    const struct roped_op *op;
    const struct bench_sizes *sizes;
    enum roped_dtype dtype;
    int form;
    struct roped_call probe; /* in which every input is given */
    struct roped_call call;  /* the last one that was tried */
    struct roped_client_tensor tensor[ROPED_MAX_INPUTS];
    int worth[ROPED_MAX_INPUTS]; /* 0: must be there; else more is better */
    int n_tensors;
};

/* How many of its symbols the command line says. */
static int count_given(const struct plan *plan,
                       const struct roped_shape_pattern *pattern)
{
    int n = 0;
    for (int i = 0; i < pattern->count; i++)
        n += given_size(plan->sizes, pattern->dim[i].name) != NULL;
    return n;
}

/* The shape of a port, as if every input were there. */
static enum roped_status pattern_of(const struct plan *plan,
                                    const struct roped_port *port,
                                    struct roped_shape_pattern *out,
                                    struct roped_error *err)
{
    struct roped_shape_pattern pattern;
    enum roped_status status = ROPED_OK;
    int n = roped_port_alternatives(port), best = -1;
    if (!roped_port_is_guarded(port))
        return roped_port_pattern(port, plan->form, out, err);
    for (int i = 0; i < n && !status; i++) {
        if (!roped_condition_holds(&plan->probe, roped_port_condition(port, i)))
            continue;
        status = roped_port_pattern(port, i, &pattern, err);
        if (status || count_given(plan, &pattern) <= best)
            continue;
        best = count_given(plan, &pattern);
        *out = pattern;
    }
    return status;
}

/* Does an input that must be there have this symbol? */
static bool is_required(const struct plan *plan, const char *symbol)
{
    struct roped_shape_pattern pattern;
    struct roped_error err;
    for (int i = 0; i < roped_op_inputs(plan->op); i++) {
        const struct roped_port *port = &plan->op->in[i];
        if (!(roped_op_needed(plan->op) & ROPED_INPUT(i)) ||
            pattern_of(plan, port, &pattern, &err))
            continue;
        for (int j = 0; j < pattern.count; j++)
            if (strcmp(pattern.dim[j].name, symbol) == 0)
                return true;
    }
    return false;
}

static bool size_of(const void *context, const char *symbol, int64_t *size);

static int64_t usual_size(const struct plan *plan,
                          const struct roped_dim_pattern *dim)
{
    struct roped_dim_size found = roped_dim_evaluate(dim, size_of, plan);
    return found.state == ROPED_DIM_SIZED ? found.size : 0;
}

/* A symbol's size; false: it has none. */
static bool size_of(const void *context, const char *symbol, int64_t *size)
{
    const struct plan *plan = context;
    const struct bench_size *given = given_size(plan->sizes, symbol);
    const struct roped_shape_pattern shape = usual_shape(symbol, false);
    *size = given                       ? given->dims[0]
            : shape.count               ? usual_size(plan, &shape.dim[0])
            : is_required(plan, symbol) ? FALLBACK
                                        : 0;
    return *size > 0;
}

/* Appends the dims of one symbol: how many there are, or -1 for no size. */
static int dims_of(const struct plan *plan, const struct roped_dim_pattern *dim,
                   int64_t dims[ROPED_MAX_RANK])
{
    const struct bench_size *given = given_size(plan->sizes, dim->name);
    if (dim->is_pack && given) {
        memcpy(dims, given->dims, sizeof given->dims);
        return given->rank;
    }
    if (dim->is_pack) {
        const struct roped_shape_pattern shape = usual_shape(dim->name, true);
        int rank = 0;
        for (int i = 0; i < shape.count; i++)
            rank += dims_of(plan, &shape.dim[i], dims + rank);
        return rank;
    }
    struct roped_dim_size found = roped_dim_evaluate(dim, size_of, plan);
    dims[0] = found.size;
    return found.state == ROPED_DIM_SIZED ? 1 : -1;
}

/* A floating input has the type that was asked for, an index the widest. */
static enum roped_dtype type_of(const struct plan *plan,
                                const struct roped_port *port)
{
    uint32_t set = roped_op_types(plan->op, port);
    if (set & ROPED_SET(plan->dtype))
        return plan->dtype;
    if (set & ROPED_SET(ROPED_I64))
        return ROPED_I64;
    for (int i = 1; i < ROPED_DTYPE_COUNT; i++)
        if (set & ROPED_SET(i))
            return (enum roped_dtype)i;
    return ROPED_NO_DTYPE;
}

/* Adds an input, unless a symbol of it has no size. */
static enum roped_status add_input(struct plan *plan,
                                   const struct roped_port *port,
                                   struct roped_error *err)
{
    struct roped_shape_pattern pattern;
    struct roped_client_tensor *to = &plan->tensor[plan->n_tensors];
    bool is_optional =
        !(roped_op_needed(plan->op) & ROPED_INPUT(port - plan->op->in));
    int n_sized = 0, worth = 1;
    enum roped_status status = pattern_of(plan, port, &pattern, err);
    if (status)
        return status;
    *to = (struct roped_client_tensor){port->name,
                                       {.dtype = type_of(plan, port)}};
    for (int i = 0; i < pattern.count; i++) {
        int64_t dims[ROPED_MAX_RANK];
        int n = dims_of(plan, &pattern.dim[i], dims);
        if (n < 0)
            return ROPED_OK;
        if (to->tensor.rank + n > ROPED_MAX_RANK)
            return roped_fail(err, ROPED_INVALID,
                              "tensor '%s': over %d dims, expected at most %d",
                              port->name, ROPED_MAX_RANK, ROPED_MAX_RANK);
        memcpy(to->tensor.dims + to->tensor.rank, dims,
               (size_t)n * sizeof *dims);
        to->tensor.rank += n;
        n_sized += pattern.dim[i].name[0] ? n : 0;
        if (given_size(plan->sizes, pattern.dim[i].name) &&
            !is_required(plan, pattern.dim[i].name))
            worth = ROPED_MAX_INPUTS;
    }
    plan->worth[plan->n_tensors] = is_optional ? worth : 0;
    if (n_sized || !is_optional)
        plan->n_tensors++;
    return ROPED_OK;
}

static bool has_every_symbol(const struct plan *plan)
{
    for (int i = 0; i < plan->sizes->n; i++) {
        struct search search = {.symbol = plan->sizes->size[i].symbol,
                                .nearest.word = ""};
        if (!any_dim(plan->op, plan->form, plan->form + 1, is_sought, &search))
            return false;
    }
    return true;
}

/* Does the operator take the tensors but for those in the set 'without'? */
static enum roped_status try_without(struct plan *plan,
                                     const struct roped_call *call,
                                     uint32_t without, struct roped_error *err)
{
    enum roped_status status = ROPED_OK;
    int64_t n_elements, n_bytes;
    plan->call = *call;
    for (int i = 0; i < plan->n_tensors && !status; i++) {
        const struct roped_client_tensor *tensor = &plan->tensor[i];
        if (without >> i & 1)
            continue;
        status = roped_tensor_size(&tensor->tensor, tensor->name, &n_elements,
                                   &n_bytes, err);
        if (!status)
            status = roped_call_bind(&plan->call, tensor->name, &tensor->tensor,
                                     err);
    }
    return status ? status : roped_call_resolve(&plan->call, err);
}

/* What a set of optional tensors is worth, or -1 where one of them must be
 * there. */
static int worth_of(const struct plan *plan, uint32_t set)
{
    int worth = 0;
    for (int i = 0; i < plan->n_tensors; i++) {
        if (set >> i & 1 && plan->worth[i] == 0)
            return -1;
        worth += set >> i & 1 ? plan->worth[i] : 0;
    }
    return worth;
}

/* Leaves the tensors out with which the operator does not take the others:
 * those that are worth the least. */
static enum roped_status choose_tensors(struct plan *plan,
                                        const struct roped_call *call,
                                        struct roped_error *err)
{
    struct roped_error later;
    uint32_t best = 0, end = 1u << plan->n_tensors;
    int least = INT_MAX, n_optional = 0, n = 0;
    enum roped_status status = try_without(plan, call, 0, err);
    for (int i = 0; i < plan->n_tensors; i++)
        n_optional += plan->worth[i] > 0;
    if (!status || n_optional > MAX_CHOICES)
        return status;
    for (uint32_t set = 1; set < end; set++) {
        int worth = worth_of(plan, set);
        if (worth < 0 || worth >= least || try_without(plan, call, set, &later))
            continue;
        best = set;
        least = worth;
    }
    if (!best)
        return status;
    for (int i = 0; i < plan->n_tensors; i++)
        if (!(best >> i & 1))
            plan->tensor[n++] = plan->tensor[i];
    plan->n_tensors = n;
    return try_without(plan, call, 0, err);
}

/* Lays out the inputs of a form. */
static enum roped_status plan_form(struct plan *plan,
                                   const struct roped_call *call,
                                   struct roped_error *err)
{
    enum roped_status status = ROPED_OK;
    plan->n_tensors = 0;
    plan->probe = *call;
    plan->probe.form = plan->form;
    for (int i = 0; i < roped_op_inputs(plan->op); i++)
        plan->probe.in[i].dtype = ROPED_U8;
    for (int i = 0; i < roped_op_inputs(plan->op) && !status; i++)
        status = add_input(plan, &plan->op->in[i], err);
    return status ? status : choose_tensors(plan, call, err);
}

/* ------------------------------------------------------------------- values */

/* What the index-th of n values of an index tensor is: they count up from 0, as
 * far as they may, so that they are slots, pages and positions; runs are of one
 * length. */
static int64_t index_of(const struct roped_holds *holds, int64_t below,
                        int64_t i, int64_t n)
{
    if (holds->kind == ROPED_HOLDS_STARTS)
        return n > 1 ? i * below / (n - 1) : 0;
    i %= INDEXES;
    return holds->kind == ROPED_HOLDS_INDEXES && below > 0 ? i % below : i;
}

/* Floats are in [-1, 1), or in [1, 2) where they are to be above 0; FP8 and
 * other bytes are 0. */
static void fill(struct plan *plan, const char *name,
                 const struct roped_tensor *tensor)
{
    unsigned char *to = tensor->data;
    size_t width = roped_dtype_bytes(tensor->dtype);
    int64_t n = roped_tensor_elements(tensor);
    uint32_t state = 12345;
    int which, input = roped_op_input(plan->op, name);
    struct roped_holds holds;
    if (roped_port_holds(&plan->op->in[input], &holds, NULL))
        return; /* the table has passed its check */
    plan->call.in[input].data = to;
    int64_t below = roped_call_below(&plan->call, &holds, &which);
    for (int64_t i = 0; i < n; i++, to += width) {
        state = state * 1664525u + 1013904223u;
        float value = (float)(state >> 8) * 0x1p-23f - 1;
        if (holds.kind == ROPED_HOLDS_NUMBERS)
            value = value / 2 + 1.5f;
        uint16_t code = tensor->dtype == ROPED_F16 ? roped_float_to_f16(value)
                                                   : roped_float_to_bf16(value);
        int64_t index = index_of(&holds, below, i, n);
        if (tensor->dtype == ROPED_F32)
            memcpy(to, &value, sizeof value);
        else if (ROPED_SET(tensor->dtype) & ROPED_FLOATS)
            memcpy(to, &code, sizeof code);
        else if (ROPED_SET(tensor->dtype) & ROPED_INDEXES)
            memcpy(to, &index, width); /* its low half is the 4-byte index */
        else
            memset(to, 0, width);
    }
}

/* Does the operator take these values? */
static enum roped_status check_values(struct plan *plan,
                                      struct roped_error *err)
{
    size_t bytes = roped_call_aux_bytes(&plan->call);
    plan->call.aux =
        must_have(aligned_alloc(64, (bytes / 64 + 1) * (size_t)64));
    enum roped_status status = roped_call_plan(&plan->call, err);
    free(plan->call.aux);
    return status;
}

static enum roped_status write_file(struct plan *plan, void **file,
                                    size_t *file_bytes, struct roped_error *err)
{
    enum roped_status status = ROPED_OK;
    int n = 0;
    for (; n < plan->n_tensors && !status; n++) {
        struct roped_tensor *tensor = &plan->tensor[n].tensor;
        size_t bytes = (size_t)roped_tensor_bytes(tensor);
        tensor->data = malloc(bytes);
        if (tensor->data)
            fill(plan, plan->tensor[n].name, tensor);
        else
            status = roped_fail(err, ROPED_NO_MEMORY,
                                "no memory for the %zu bytes of tensor '%s'",
                                bytes, plan->tensor[n].name);
    }
    if (!status)
        status = check_values(plan, err);
    if (!status)
        status = roped_client_write(plan->tensor, plan->n_tensors, file,
                                    file_bytes, err);
    while (n > 0)
        free(plan->tensor[--n].tensor.data);
    return status;
}

enum roped_status bench_tensors_make(const struct roped_call *call,
                                     enum roped_dtype dtype,
                                     const struct bench_sizes *sizes,
                                     void **file, size_t *file_bytes,
                                     struct roped_error *err)
{
    struct roped_error later; /* what the first form lacks is said */
    static struct plan plan;  /* two calls are large */
    plan = (struct plan){.op = call->op, .sizes = sizes, .dtype = dtype};
    bool is_tried = false;
    enum roped_status status = ROPED_INVALID;
    for (int i = 0; i < roped_op_forms(call->op) && status; i++) {
        plan.form = i;
        if (!has_every_symbol(&plan))
            continue;
        status = plan_form(&plan, call, is_tried ? &later : err);
        is_tried = true;
    }
    if (!is_tried)
        return roped_fail(err, ROPED_INVALID,
                          "no form of %s has all of these dimensions",
                          call->op->name);
    return status ? err->status : write_file(&plan, file, file_bytes, err);
}

bool bench_dtype_read(const char *text, enum roped_dtype *dtype)
{
    static const struct {
        const char *name;
        enum roped_dtype dtype;
    } names[] = {{"f32", ROPED_F32}, {"f16", ROPED_F16}, {"bf16", ROPED_BF16}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcasecmp(text, names[i].name) == 0) {
            *dtype = names[i].dtype;
            return true;
        }
    return false;
}
