/*
 * given.c - which inputs and parameters go together: the statements of a
 * descriptor, held against a call and written for people.
 */
#include "core/call_internal.h"

#include <stdarg.h>
#include <stdio.h>

static const char *name_of(const struct roped_op *op, uint32_t set)
{
    return op->in[__builtin_ctz(set)].name;
}

static const char *last_of(const struct roped_op *op, uint32_t set)
{
    return op->in[31 - __builtin_clz(set)].name;
}

static uint32_t inputs_of(const struct roped_call *call)
{
    uint32_t set = 0;
    for (int i = 0; i < call->n_in; i++)
        set |= roped_tensor_given(&call->in[i]) ? ROPED_INPUT(i) : 0;
    return set;
}

bool roped_given_holds(const struct roped_call *call,
                       const struct roped_given *given, uint32_t inputs)
{
    return (given->with & ~inputs) == 0 && (given->without & inputs) == 0 &&
           (!given->with_param || roped_call_gave(call, given->with_param)) &&
           (!given->when || roped_condition_holds(call, given->when));
}

/* ------------------------------------------------------------------- check */

static enum roped_status both_given(const struct roped_call *call, uint32_t a,
                                    uint32_t b, struct roped_error *err)
{
    return roped_fail(err, ROPED_INVALID,
                      "tensors '%s' and '%s' are both given, expected one",
                      name_of(call->op, a), name_of(call->op, b));
}

/* "form mla", that of the call, or a condition as it is. */
static const char *when_text(const struct roped_call *call, const char *when,
                             char *text, size_t bytes)
{
    if (when && strncmp(when, "form=", 5) == 0)
        snprintf(text, bytes, "form %s", call->op->form[call->form].name);
    else
        snprintf(text, bytes, "%s", when ? when : "");
    return text;
}

static enum roped_status missing(const struct roped_call *call,
                                 const struct roped_given *given,
                                 uint32_t inputs, uint32_t lacking,
                                 struct roped_error *err)
{
    const struct roped_op *op = call->op;
    uint32_t needy = (given->with | given->together) & inputs;
    char when[96];
    if (needy)
        return roped_fail(err, ROPED_INVALID,
                          "missing tensor '%s': '%s' is given and needs it",
                          name_of(op, lacking), last_of(op, needy));
    if (given->without)
        return roped_fail(err, ROPED_INVALID, "missing tensor '%s' or '%s'",
                          name_of(op, lacking), name_of(op, given->without));
    return roped_fail(err, ROPED_INVALID, "missing tensor '%s'%s%s%s",
                      name_of(op, lacking), given->when ? ": " : "",
                      when_text(call, given->when, when, sizeof when),
                      given->when ? " needs it" : "");
}

static enum roped_status unwanted(const struct roped_call *call,
                                  const struct roped_given *given,
                                  uint32_t found, struct roped_error *err)
{
    char when[96];
    if (given->with_param)
        return roped_fail(err, ROPED_BAD_PARAMETER,
                          "parameter '%s' and tensor '%s' are both given, "
                          "expected one",
                          given->with_param, name_of(call->op, found));
    if (given->with)
        return both_given(call, given->with, found, err);
    return roped_fail(err, ROPED_INVALID, "tensor '%s': not with %s",
                      name_of(call->op, found),
                      when_text(call, given->when, when, sizeof when));
}

/* A statement that may be violated; what is cheap to see is seen first. */
static enum roped_status check_one(const struct roped_call *call,
                                   const struct roped_given *given,
                                   uint32_t inputs, struct roped_error *err)
{
    uint32_t lacking = given->all & ~inputs, found = given->none & inputs;
    uint32_t rivals = given->one_of & inputs;
    if (given->together & inputs)
        lacking |= given->together & ~inputs;
    bool has_rivals = (rivals & (rivals - 1)) != 0;
    if ((!lacking && !found && !has_rivals && !given->needs) ||
        !roped_given_holds(call, given, inputs))
        return ROPED_OK;
    if (lacking)
        return missing(call, given, inputs, lacking, err);
    if (found)
        return unwanted(call, given, found, err);
    if (has_rivals)
        return both_given(call, rivals, rivals & (rivals - 1), err);
    if (roped_condition_holds(call, given->needs))
        return ROPED_OK;
    return roped_fail(err, ROPED_BAD_PARAMETER,
                      "parameter '%s' is given, expected %s with it",
                      given->with_param, given->needs);
}

static bool is_about_form(const struct roped_given *given)
{
    return !given->with_param &&
           !(given->with | given->together | given->one_of);
}

enum roped_status given_check_form(const struct roped_call *call,
                                   struct roped_error *err)
{
    const struct roped_op *op = call->op;
    uint32_t inputs = inputs_of(call);
    int n = roped_op_givens(op);
    for (int i = 0; i < n; i++) {
        uint32_t lacking = op->given[i].all & ~inputs;
        if (lacking && is_about_form(&op->given[i]) &&
            roped_given_holds(call, &op->given[i], inputs))
            return missing(call, &op->given[i], inputs, lacking, err);
    }
    return ROPED_OK;
}

enum roped_status given_check(const struct roped_call *call,
                              struct roped_error *err)
{
    const struct roped_op *op = call->op;
    uint32_t inputs = inputs_of(call);
    int n = roped_op_givens(op);
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < n && !status; i++)
        status = check_one(call, &op->given[i], inputs, err);
    for (uint64_t left = call->given; left && !status; left &= left - 1) {
        const char *name = op->param[__builtin_ctzll(left)].name;
        int input = roped_op_input(op, name);
        if (input >= 0 && inputs & ROPED_INPUT(input))
            status = roped_fail(err, ROPED_BAD_PARAMETER,
                                "parameter and tensor '%s' are both given, "
                                "expected one",
                                name);
    }
    return status;
}

/* -------------------------------------------------------------- for people */

struct text {
    char *text;
    size_t at, bytes;
};

static void add(struct text *to, const char *format, ...) ROPED_PRINTF(2, 3);

static void add(struct text *to, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(to->text + to->at, to->bytes - to->at, format, args);
    va_end(args);
    to->at += n > 0 ? (size_t)n : 0;
    if (to->at >= to->bytes) {
        to->at = to->bytes - 1;
        snprintf(to->text + to->bytes - 4, 4, "...");
    }
}

/* "positions, indptr and cos" */
static void add_names(struct text *to, const struct roped_op *op, uint32_t set,
                      const char *last)
{
    for (const char *before = ""; set; set &= set - 1) {
        add(to, "%s%s", before, name_of(op, set));
        before = (set & (set - 1)) & ((set & (set - 1)) - 1) ? ", " : last;
    }
}

/* "form=mla" as "in form mla", "dynamic=true" as it is. */
static void add_condition(struct text *to, const char *when)
{
    bool is_form = strncmp(when, "form=", 5) == 0;
    add(to, "%s%s", is_form ? "form " : "", is_form ? when + 5 : when);
}

static void add_given(struct text *to, const struct roped_op *op,
                      const struct roped_given *given)
{
    add(to, "%s", to->at ? "; " : "");
    if (given->when) {
        add_condition(to, given->when);
        add(to, ": ");
    }
    if (given->together)
        add_names(to, op, given->together, " with ");
    if (given->one_of) {
        add(to, "at most one of ");
        add_names(to, op, given->one_of, " and ");
    }
    if (given->with_param)
        add(to, "%s only with%s", given->with_param, given->none ? "out " : "");
    else if (given->with)
        add_names(to, op, given->with, " with ");
    if (given->without) {
        add_names(to, op, given->without, " and ");
        add(to, ", or ");
    } else if (given->all) {
        add(to, "%s", given->with ? " needs " : "");
    }
    if (given->all)
        add_names(to, op, given->all, " and ");
    if (given->none) {
        add(to, "%s",
            given->with_param ? ""
            : given->with     ? " not with "
                              : "no ");
        add_names(to, op, given->none, " or ");
    }
    if (given->needs)
        add(to, " %s", given->needs);
}

/* "cos has the type of q or F32" */
static void add_type(struct text *to, const struct roped_op *op, int index)
{
    const struct roped_type *type = &op->type[index];
    const char *before = "", *other = NULL;
    char set[96];
    if (!type->beside)
        return;
    add(to, "%s", to->at ? "; " : "");
    for (int i = 0; i < roped_op_inputs(op); i++)
        if (strcmp(op->in[i].type, type->name) == 0) {
            add(to, "%s%s", before, op->in[i].name);
            before = ", ";
        } else if (!other && strcmp(op->in[i].type, type->beside) == 0) {
            other = op->in[i].name;
        }
    for (int i = 0; i < roped_op_params(op) && !other; i++)
        if (op->param[i].type && strcmp(op->param[i].type, type->beside) == 0)
            other = op->param[i].name;
    if (!other)
        other = op->type[op_type(op, type->beside)].by;
    add(to, " of the type of %s", other ? other : type->beside);
    if (type->also)
        add(to, ", or %s", roped_dtype_set_text(type->also, set, sizeof set));
    if (type->any_beside)
        add(to, ", or any beside %s",
            roped_dtype_set_text(type->any_beside, set, sizeof set));
}

const char *roped_op_rule_text(const struct roped_op *op, char *text,
                               size_t text_bytes)
{
    struct text to = {text, 0, text_bytes};
    text[0] = '\0';
    for (int i = 0; i < roped_op_givens(op); i++)
        add_given(&to, op, &op->given[i]);
    for (int i = 0; i < ROPED_MAX_TYPES && op->type[i].name; i++)
        add_type(&to, op, i);
    if (op->rule_doc)
        add(&to, "%s%s", to.at ? "; " : "", op->rule_doc);
    return text;
}
