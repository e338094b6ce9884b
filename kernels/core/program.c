/*
 * program.c - the definition of a program: steps, who makes and who uses each
 * name, and all that is wrong with them whatever tensors a run has.
 */
#include "core/program_internal.h"

#include "core/name.h"

#include <roped/number.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum roped_status no_memory(struct roped_error *err)
{
    return roped_fail(err, ROPED_NO_MEMORY, "no memory for a program");
}

enum roped_status roped_program_new(struct roped_program **out,
                                    struct roped_error *err)
{
    struct roped_program *program = calloc(1, sizeof *program);
    if (!program)
        return no_memory(err);
    for (int i = 0; i < PROGRAM_BUCKETS; i++)
        program->bucket[i] = -1;
    *out = program;
    return ROPED_OK;
}

void roped_program_free(struct roped_program *program)
{
    if (!program)
        return;
    for (int i = 0; i < program->refs.n; i++)
        free(program->refs.at[i].view);
    for (int i = 0; i < program->settings.n; i++)
        free(program->settings.at[i].text);
    for (int i = 0; i < program->tables.n; i++)
        free(program->tables.at[i]);
    for (int i = 0; i < program->n_params; i++)
        free(program->param[i].otherwise);
    free(program->steps.at);
    free(program->refs.at);
    free(program->settings.at);
    free(program->names.at);
    free(program->places.at);
    free(program->tables.at);
    free(program);
}

enum roped_status roped_program_blame(const struct roped_program *program,
                                      int step, enum roped_status status,
                                      struct roped_error *err)
{
    struct roped_error said;
    if (!status || !err)
        return status;
    said = *err;
    return roped_fail(err, status, "step %d (%s): %s", step + 1,
                      program->steps.at[step].op->name, said.text);
}

/* ------------------------------------------------------ inputs, parameters */

static const char *op_name(const struct roped_program *program, int step)
{
    return program->steps.at[step].op->name;
}

/* output: the tensor of a step that would make it, or NULL: an input of the
 * program would be it. */
static enum roped_status made_twice(const struct roped_program *program,
                                    const struct program_name *name,
                                    const char *output, struct roped_error *err)
{
    char where[ROPED_NAME_BYTES + sizeof "output '': "] = "";
    if (output)
        snprintf(where, sizeof where, "output '%s': ", output);
    if (name->kind == NAME_INPUT)
        return roped_fail(err, ROPED_INVALID,
                          "%s'%s' is an input of the program already", where,
                          name->text);
    return roped_fail(
        err, ROPED_INVALID,
        "%s'%s' is made by step %d (%s) already, expected a name of "
        "its own",
        where, name->text, name->index + 1, op_name(program, name->index));
}

static enum roped_status too_many(const char *what, int most,
                                  struct roped_error *err)
{
    return roped_fail(err, ROPED_TOO_LARGE,
                      "more than %d %s, the most that a program may have", most,
                      what);
}

enum roped_status roped_program_param(struct roped_program *program,
                                      const char *name, const char *otherwise,
                                      struct roped_error *err)
{
    struct program_param *param = &program->param[program->n_params];
    enum roped_status status = program_check_name("parameter", name, err);
    if (status)
        return status;
    if (roped_program_find_param(program, name) >= 0)
        return roped_fail(err, ROPED_INVALID, "parameter '%s' is given twice",
                          name);
    if (program->n_params == ROPED_PROGRAM_PARAMS)
        return too_many("parameters", ROPED_PROGRAM_PARAMS, err);
    snprintf(param->name, sizeof param->name, "%s", name);
    param->otherwise = otherwise ? strdup(otherwise) : NULL;
    if (otherwise && !param->otherwise)
        return no_memory(err);
    program->n_params++;
    return ROPED_OK;
}

enum roped_status roped_program_input(struct roped_program *program,
                                      const char *name,
                                      const struct roped_declared *declared,
                                      struct roped_error *err)
{
    enum roped_status status = program_check_name("input", name, err);
    if (status)
        return status;
    int known = program_find(program, name, false);
    if (known >= 0)
        return made_twice(program, &program->names.at[known], NULL, err);
    if (program->n_inputs == ROPED_PROGRAM_INPUTS)
        return too_many("inputs", ROPED_PROGRAM_INPUTS, err);
    int at = program_add_name(program, name, NAME_INPUT);
    if (at < 0)
        return no_memory(err);
    program->names.at[at].index = program->n_inputs;
    if (declared)
        program->declared[program->n_inputs] = *declared;
    program->input[program->n_inputs++] = at;
    return ROPED_OK;
}

/* ------------------------------------------------------------------- steps */

int program_updated(const struct roped_op *op, int output)
{
    int n = roped_op_inputs(op);
    for (int i = 0; i < n; i++)
        if (op->in[i].flags & ROPED_UPDATED &&
            roped_op_updates(op, i) == output)
            return i;
    return -1;
}

static struct program_step *last_step(struct roped_program *program)
{
    return &program->steps.at[program->steps.n - 1];
}

/* The step's tensor, or NULL. */
static struct program_ref *find_ref(const struct roped_program *program,
                                    const struct program_step *step,
                                    bool is_output, int port)
{
    for (int i = 0; i < step->n_refs; i++) {
        struct program_ref *ref = &program->refs.at[step->first_ref + i];
        if (ref->is_output == is_output && ref->port == port)
            return ref;
    }
    return NULL;
}

static enum roped_status add_ref(struct roped_program *program, int name,
                                 int port, bool is_output, uint64_t offset,
                                 const struct roped_view *view,
                                 struct roped_error *err)
{
    struct program_ref *ref = PROGRAM_GROW(program->refs);
    if (!ref)
        return no_memory(err);
    ref->name = name;
    ref->port = port;
    ref->is_output = is_output;
    ref->offset = offset;
    last_step(program)->n_refs++;
    if (!view)
        return ROPED_OK;
    ref->view = malloc(sizeof *ref->view);
    if (!ref->view)
        return no_memory(err);
    *ref->view = *view;
    return ROPED_OK;
}

static enum roped_status blame_last(const struct roped_program *program,
                                    enum roped_status status,
                                    struct roped_error *err)
{
    return roped_program_blame(program, program->steps.n - 1, status, err);
}

/* The last step has what it must have, and outputs that nobody named are made
 * and forgotten. What is updated has a place. */
static enum roped_status end_step(struct roped_program *program,
                                  struct roped_error *err)
{
    enum roped_status status = ROPED_OK;
    if (program->steps.n == 0)
        return ROPED_OK;
    const struct roped_op *op = last_step(program)->op;
    int n_in = roped_op_inputs(op), n_out = roped_op_outputs(op);
    for (int i = 0; i < n_in; i++)
        if (!(op->in[i].flags & ROPED_OPTIONAL) &&
            !find_ref(program, last_step(program), false, i))
            return blame_last(program,
                              roped_fail(err, ROPED_INVALID,
                                         "missing tensor '%s'", op->in[i].name),
                              err);
    for (int i = 0; i < n_out && !status; i++)
        if (!find_ref(program, last_step(program), true, i) &&
            program_updated(op, i) < 0)
            status = add_ref(program, -1, i, true, 0, NULL, err);
    return status;
}

enum roped_status roped_program_step(struct roped_program *program,
                                     const char *op, struct roped_error *err)
{
    const struct roped_op *found = roped_op_find(op);
    enum roped_status status = end_step(program, err);
    if (status)
        return status;
    if (!found)
        return roped_fail(err, ROPED_NO_OPERATOR,
                          "step %d: no operator '%.64s'", program->steps.n + 1,
                          op);
    if (program->steps.n == ROPED_PROGRAM_STEPS)
        return roped_fail(err, ROPED_TOO_LARGE,
                          "step %d (%s): more than %d steps, the most that a "
                          "program may have",
                          program->steps.n + 1, op, ROPED_PROGRAM_STEPS);
    struct program_step *step = PROGRAM_GROW(program->steps);
    if (!step)
        return no_memory(err);
    step->op = found;
    step->first_ref = program->refs.n;
    step->first_setting = program->settings.n;
    step->table = -1;
    roped_call_init(&program->scratch, found);
    return ROPED_OK;
}

static enum roped_status no_param(const struct roped_program *program,
                                  const char *name, const char *text,
                                  struct roped_error *err)
{
    (void)program;
    return roped_fail(err, ROPED_UNKNOWN_NAME,
                      "parameter '%.64s': '%.64s', but the program has no "
                      "parameter of that name",
                      name, text);
}

static enum roped_status set(struct roped_program *program, const char *name,
                             const char *text, struct roped_error *err)
{
    struct roped_call *call = &program->scratch;
    int param =
        text[0] == '$' ? roped_program_find_param(program, text + 1) : -1;
    enum roped_status status = ROPED_OK;
    if (text[0] == '$' && param < 0)
        return no_param(program, name, text, err);
    const struct program_step *step = last_step(program);
    for (int i = 0; i < step->n_settings; i++)
        if (name_is(program->settings.at[step->first_setting + i].name, name))
            return roped_fail(err, ROPED_BAD_PARAMETER,
                              "parameter '%.64s' is given twice", name);
    if (param < 0)
        status = roped_call_set_text(call, name, text, err);
    else if (roped_op_param(call->op, name) < 0) /* for its words */
        status = roped_call_set_text(call, name, "", err);
    if (status)
        return status;
    struct program_setting *setting = PROGRAM_GROW(program->settings);
    if (!setting)
        return no_memory(err);
    snprintf(setting->name, sizeof setting->name, "%s", name);
    setting->param = param;
    setting->text = param < 0 ? strdup(text) : NULL;
    last_step(program)->n_settings++;
    return param < 0 && !setting->text ? no_memory(err) : ROPED_OK;
}

enum roped_status roped_step_param(struct roped_program *program,
                                   const char *name, const char *text,
                                   struct roped_error *err)
{
    return blame_last(program, set(program, name, text, err), err);
}

static enum roped_status set_table(struct roped_program *program,
                                   const char *table, struct roped_error *err)
{
    struct program_step *step = last_step(program);
    static const struct roped_angle_set none;
    enum roped_status status =
        roped_call_use_angles(&program->scratch, &none, err);
    if (status)
        return status;
    if (table[0] == '$' && roped_program_find_param(program, table + 1) < 0)
        return no_param(program, "table", table, err);
    for (int i = 0; i < program->tables.n && step->table < 0; i++)
        if (name_is(program->tables.at[i], table))
            step->table = i;
    if (step->table >= 0)
        return ROPED_OK;
    char **added = PROGRAM_GROW(program->tables);
    if (!added || !(*added = strdup(table)))
        return no_memory(err);
    step->table = program->tables.n - 1;
    return ROPED_OK;
}

enum roped_status roped_step_table(struct roped_program *program,
                                   const char *table, struct roped_error *err)
{
    return blame_last(program, set_table(program, table, err), err);
}

/* ------------------------------------------------------------- its tensors */

/* "name" or "name:offset", without '@': the place, new where it was not known.
 */
static enum roped_status use_place(struct roped_program *program,
                                   const char *tensor, const char *text,
                                   int *name, uint64_t *offset,
                                   struct roped_error *err)
{
    char place[ROPED_NAME_BYTES];
    const char *colon = strrchr(text, ':');
    size_t length = colon ? (size_t)(colon - text) : strlen(text);
    *offset = 0;
    if (length == 0 || length >= sizeof place ||
        (colon && !roped_read_size(colon + 1, offset)))
        return roped_fail(err, ROPED_INVALID,
                          "tensor '%s': '@%.80s', expected @name or "
                          "@name:offset with an offset in bytes",
                          tensor, text);
    memcpy(place, text, length);
    place[length] = '\0';
    *name = program_find(program, place, true);
    if (*name >= 0)
        return ROPED_OK;
    int *added = PROGRAM_GROW(program->places);
    *name = added ? program_add_name(program, place, NAME_PLACE) : -1;
    if (*name < 0)
        return no_memory(err);
    *added = *name;
    program->names.at[*name].index = program->places.n - 1;
    return ROPED_OK;
}

/* May the step's port be this value? */
static enum roped_status check_value(const struct roped_program *program,
                                     const struct program_name *name,
                                     const struct roped_port *port,
                                     struct roped_error *err)
{
    int step = program->steps.n - 1;
    const struct roped_op *op = program->steps.at[step].op;
    if (name->updater == step || (name->updater < 0 && name->user == step &&
                                  port->flags & ROPED_UPDATED))
        return roped_fail(err, ROPED_INVALID,
                          "tensor '%s': '%s' is '%s' too, and one of them is "
                          "updated, expected values of their own",
                          port->name, name->text, op->in[name->user_port].name);
    if (name->updater >= 0)
        return roped_fail(
            err, ROPED_INVALID,
            "tensor '%s': step %d (%s) has updated '%s'%s%s", port->name,
            name->updater + 1, op_name(program, name->updater), name->text,
            name->became < 0 ? " and gives the result no name"
                             : ", which is since then called ",
            name->became < 0 ? "" : program->names.at[name->became].text);
    if (port->flags & ROPED_INDEX && name->kind == NAME_MADE)
        return roped_fail(err, ROPED_INVALID,
                          "tensor '%s': '%s' is made by step %d (%s), expected "
                          "an input of the program or a region: its values are "
                          "read before any step runs",
                          port->name, name->text, name->index + 1,
                          op_name(program, name->index));
    return ROPED_OK;
}

static enum roped_status use_value(struct roped_program *program,
                                   const char *text,
                                   const struct roped_port *port, int *name,
                                   struct roped_error *err)
{
    enum roped_status status = program_check_name(port->name, text, err);
    if (status)
        return status;
    *name = program_find(program, text, false);
    if (*name >= 0 && program->names.at[*name].kind != NAME_UNKNOWN)
        return check_value(program, &program->names.at[*name], port, err);
    if (*name < 0)
        *name = program_add_name(program, text, NAME_UNKNOWN);
    return *name < 0 ? no_memory(err) : ROPED_OK;
}

/* A place that a step has written to holds no index values of a later one. */
static enum roped_status check_index_place(const struct roped_program *program,
                                           const struct program_name *name,
                                           const struct roped_port *port,
                                           struct roped_error *err)
{
    if (!(port->flags & ROPED_INDEX) || name->writer < 0 ||
        name->writer == program->steps.n - 1)
        return ROPED_OK;
    return roped_fail(err, ROPED_INVALID,
                      "tensor '%s': step %d (%s) writes to '@%s', expected "
                      "memory that no step before writes to: its values are "
                      "read before any step runs",
                      port->name, name->writer + 1,
                      op_name(program, name->writer), name->text);
}

static enum roped_status no_tensor(const struct roped_op *op, bool is_output,
                                   const char *tensor, struct roped_error *err)
{
    char names[256] = "";
    size_t at = 0;
    int n = is_output ? roped_op_outputs(op) : roped_op_inputs(op);
    for (int i = 0; i < n && at < sizeof names; i++)
        at += (size_t)snprintf(names + at, sizeof names - at, "%s%s",
                               i ? ", " : "",
                               is_output ? op->out[i].name : op->in[i].name);
    return roped_fail(err, ROPED_UNKNOWN_NAME, "unknown %s '%.64s': %s %s %s",
                      is_output ? "output" : "tensor", tensor, op->name,
                      is_output ? "returns" : "takes", names);
}

static enum roped_status step_in(struct roped_program *program,
                                 const char *tensor, const char *text,
                                 const struct roped_view *view,
                                 struct roped_error *err)
{
    int step = program->steps.n - 1, name = -1;
    const struct roped_op *op = last_step(program)->op;
    int port = roped_op_input(op, tensor);
    uint64_t offset = 0;
    if (port < 0)
        return no_tensor(op, false, tensor, err);
    if (find_ref(program, last_step(program), false, port))
        return roped_fail(err, ROPED_INVALID, "tensor '%s' is given twice",
                          tensor);
    enum roped_status status =
        text[0] == '@'
            ? use_place(program, tensor, text + 1, &name, &offset, err)
            : use_value(program, text, &op->in[port], &name, err);
    if (status)
        return status;
    struct program_name *found = &program->names.at[name];
    if (found->kind == NAME_PLACE)
        status = check_index_place(program, found, &op->in[port], err);
    else if (view)
        status = roped_fail(err, ROPED_INVALID,
                            "tensor '%s': dtype, shape or stride beside '%s', "
                            "expected them beside @name alone",
                            tensor, text);
    if (status)
        return status;
    if (found->kind != NAME_UNKNOWN || found->user < 0) {
        found->user = step; /* of an unknown one the first is told */
        found->user_port = port;
    }
    if (op->in[port].flags & ROPED_UPDATED) {
        if (found->kind == NAME_PLACE)
            found->writer = step;
        else
            found->updater = step;
    }
    return add_ref(program, name, port, false, offset, view, err);
}

enum roped_status roped_step_in(struct roped_program *program,
                                const char *tensor, const char *name,
                                const struct roped_view *view,
                                struct roped_error *err)
{
    return blame_last(program, step_in(program, tensor, name, view, err), err);
}

/* The output is what updating that input has made of it. */
static enum roped_status check_update(const struct roped_program *program,
                                      const struct roped_port *out,
                                      const struct program_ref *in,
                                      const char *text, struct roped_error *err)
{
    char place[ROPED_NAME_BYTES + 24];
    if (!in)
        return roped_fail(err, ROPED_INVALID,
                          "output '%s': '%.64s', but there is no input '%s', "
                          "which it would be after the step",
                          out->name, text, out->name);
    const struct program_name *name = &program->names.at[in->name];
    if (name->kind != NAME_PLACE && text[0] != '@')
        return ROPED_OK;
    snprintf(place, sizeof place, in->offset ? "@%s:%llu" : "@%s", name->text,
             (unsigned long long)in->offset);
    if (name->kind == NAME_PLACE && name_is(place, text))
        return ROPED_OK;
    return roped_fail(err, ROPED_INVALID,
                      "output '%s': '%.80s', expected %s%s: it is updated in "
                      "the memory of its input",
                      out->name, text,
                      name->kind == NAME_PLACE ? "" : "a name that is no place",
                      name->kind == NAME_PLACE ? place : "");
}

static enum roped_status make_value(struct roped_program *program,
                                    const char *text, int port, int *name,
                                    struct roped_error *err)
{
    int step = program->steps.n - 1;
    enum roped_status status = program_check_name("output", text, err);
    if (status)
        return status;
    *name = program_find(program, text, false);
    const struct program_name *known =
        *name < 0 ? NULL : &program->names.at[*name];
    if (known && known->kind != NAME_UNKNOWN)
        return made_twice(program, known,
                          last_step(program)->op->out[port].name, err);
    if (known) {
        const struct roped_op *op = program->steps.at[known->user].op;
        return roped_fail(err, ROPED_INVALID,
                          "output '%s': '%s' is made here, but step %d (%s) "
                          "uses it as '%s' before",
                          last_step(program)->op->out[port].name, text,
                          known->user + 1, op->name,
                          op->in[known->user_port].name);
    }
    *name = program_add_name(program, text, NAME_MADE);
    if (*name < 0)
        return no_memory(err);
    program->names.at[*name].index = step;
    program->names.at[*name].port = port;
    return ROPED_OK;
}

static enum roped_status step_out(struct roped_program *program,
                                  const char *tensor, const char *text,
                                  const struct roped_view *view,
                                  struct roped_error *err)
{
    const struct roped_op *op = last_step(program)->op;
    int port = roped_op_output(op, tensor), name = -1;
    uint64_t offset = 0;
    if (port < 0)
        return no_tensor(op, true, tensor, err);
    if (find_ref(program, last_step(program), true, port))
        return roped_fail(err, ROPED_INVALID, "output '%s' is given twice",
                          tensor);
    int updated = program_updated(op, port);
    const struct program_ref *in =
        updated < 0 ? NULL
                    : find_ref(program, last_step(program), false, updated);
    enum roped_status status =
        updated < 0 ? ROPED_OK
                    : check_update(program, &op->out[port], in, text, err);
    if (status)
        return status;
    if (view && (text[0] != '@' || view->dtype || view->has_shape))
        return roped_fail(err, ROPED_INVALID,
                          "output '%s': dtype, shape or stride beside '%.64s', "
                          "expected a stride alone, and beside @name",
                          tensor, text);
    int came_from = in ? in->name : -1; /* in may move */
    status = text[0] == '@'
                 ? use_place(program, tensor, text + 1, &name, &offset, err)
                 : make_value(program, text, port, &name, err);
    if (status)
        return status;
    if (program->names.at[name].kind == NAME_PLACE)
        program->names.at[name].writer = program->steps.n - 1;
    else if (came_from >= 0)
        program->names.at[came_from].became = name;
    return add_ref(program, name, port, true, offset, view, err);
}

enum roped_status roped_step_out(struct roped_program *program,
                                 const char *tensor, const char *name,
                                 const struct roped_view *view,
                                 struct roped_error *err)
{
    return blame_last(program, step_out(program, tensor, name, view, err), err);
}

/* --------------------------------------------------------------------- end */

enum roped_status roped_program_output(struct roped_program *program,
                                       const char *name,
                                       struct roped_error *err)
{
    int at = program_find(program, name, false);
    struct program_name *found = at < 0 ? NULL : &program->names.at[at];
    if (!found || found->kind == NAME_UNKNOWN)
        return roped_fail(err, ROPED_UNKNOWN_NAME,
                          "output '%.64s': no step makes it", name);
    if (found->kind == NAME_INPUT)
        return roped_fail(err, ROPED_INVALID,
                          "output '%s': an input of the program, expected what "
                          "a step makes",
                          name);
    if (found->output >= 0)
        return roped_fail(err, ROPED_INVALID, "output '%s' is given twice",
                          name);
    if (found->updater >= 0)
        return roped_fail(err, ROPED_INVALID,
                          "output '%s': step %d (%s) updates it, expected the "
                          "name that it has afterwards",
                          name, found->updater + 1,
                          op_name(program, found->updater));
    if (program->n_outputs == ROPED_PROGRAM_OUTPUTS)
        return too_many("outputs", ROPED_PROGRAM_OUTPUTS, err);
    found->output = program->n_outputs;
    program->output[program->n_outputs++] = at;
    return ROPED_OK;
}

enum roped_status roped_program_end(struct roped_program *program,
                                    struct roped_error *err)
{
    enum roped_status status = end_step(program, err);
    if (status)
        return status;
    if (program->steps.n == 0)
        return roped_fail(err, ROPED_INVALID,
                          "a program without steps, expected at least one");
    for (int i = 0; i < program->names.n; i++) {
        const struct program_name *name = &program->names.at[i];
        if (name->kind == NAME_INPUT && name->user < 0)
            return roped_fail(err, ROPED_INVALID, "input '%s': no step uses it",
                              name->text);
        if (name->kind != NAME_UNKNOWN)
            continue;
        return roped_program_blame(
            program, name->user,
            roped_fail(
                err, ROPED_UNKNOWN_NAME,
                "tensor '%s': unknown name '%s', expected an input of "
                "the program, what a step before makes, or @region",
                program->steps.at[name->user].op->in[name->user_port].name,
                name->text),
            err);
    }
    return ROPED_OK;
}
