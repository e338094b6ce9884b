/*
 * program_names.c - the names of a program, and what it consists of.
 */
#include "core/program_internal.h"

#include "core/name.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *program_grow(void **at, int *n, int *room, size_t bytes)
{
    if (*n == *room) {
        int more = *room ? 2 * *room : 8;
        void *grown = realloc(*at, (size_t)more * bytes);
        if (!grown)
            return NULL;
        *at = grown;
        *room = more;
    }
    return memset((char *)*at + (size_t)(*n)++ * bytes, 0, bytes);
}

/* ------------------------------------------------------------------- names */

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

/* Is this what values are called? Tensors of the wire, and parts of names in a
 * query, have these names too. */
static bool is_name(const char *text)
{
    size_t n = strspn(text, "abcdefghijklmnopqrstuvwxyz_.-0123456789"
                            "ABCDEFGHIJKLMNOPQRSTUVWXYZ");
    return is_letter(text[0]) && n < ROPED_NAME_BYTES && text[n] == '\0';
}

enum roped_status program_check_name(const char *what, const char *text,
                                     struct roped_error *err)
{
    if (is_name(text))
        return ROPED_OK;
    return roped_fail(err, ROPED_INVALID,
                      "%s '%.64s': expected a letter or '_', then letters, "
                      "digits, '_', '.' and '-', at most %d in all",
                      what, text, ROPED_NAME_BYTES - 1);
}

static int bucket_of(const char *text, bool is_place)
{
    uint32_t hash = is_place ? 5381 : 2166136261u;
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 16777619u;
    return (int)(hash % PROGRAM_BUCKETS);
}

int program_find(const struct roped_program *program, const char *text,
                 bool is_place)
{
    int at = program->bucket[bucket_of(text, is_place)];
    while (at >= 0) {
        const struct program_name *name = &program->names.at[at];
        if ((name->kind == NAME_PLACE) == is_place && name_is(name->text, text))
            return at;
        at = name->next;
    }
    return -1;
}

int program_add_name(struct roped_program *program, const char *text,
                     enum program_name_kind kind)
{
    struct program_name *name = PROGRAM_GROW(program->names);
    if (!name)
        return -1;
    int *bucket = &program->bucket[bucket_of(text, kind == NAME_PLACE)];
    snprintf(name->text, sizeof name->text, "%s", text);
    name->kind = kind;
    name->next = *bucket;
    name->user = name->updater = name->became = name->writer = -1;
    name->output = -1;
    *bucket = program->names.n - 1;
    return *bucket;
}

/* --------------------------------------------------------------- questions */

int roped_program_steps(const struct roped_program *program)
{
    return program->steps.n;
}

int roped_program_inputs(const struct roped_program *program)
{
    return program->n_inputs;
}

int roped_program_outputs(const struct roped_program *program)
{
    return program->n_outputs;
}

int roped_program_params(const struct roped_program *program)
{
    return program->n_params;
}

int roped_program_places(const struct roped_program *program)
{
    return program->places.n;
}

int roped_program_tables(const struct roped_program *program)
{
    return program->tables.n;
}

const struct roped_op *roped_program_op(const struct roped_program *program,
                                        int step)
{
    return program->steps.at[step].op;
}

const char *roped_program_input_name(const struct roped_program *program,
                                     int input)
{
    return program->names.at[program->input[input]].text;
}

const char *roped_program_output_name(const struct roped_program *program,
                                      int output)
{
    return program->names.at[program->output[output]].text;
}

const char *roped_program_param_name(const struct roped_program *program,
                                     int param)
{
    return program->param[param].name;
}

const char *roped_program_param_default(const struct roped_program *program,
                                        int param)
{
    return program->param[param].otherwise;
}

const char *roped_program_place_name(const struct roped_program *program,
                                     int place)
{
    return program->names.at[program->places.at[place]].text;
}

int roped_program_place_step(const struct roped_program *program, int place)
{
    int step = 0;
    for (; step < program->steps.n; step++) {
        const struct program_step *of = &program->steps.at[step];
        for (int i = of->first_ref; i < of->first_ref + of->n_refs; i++)
            if (program->refs.at[i].name == program->places.at[place])
                return step;
    }
    return step - 1;
}

const struct roped_declared *
roped_program_declared(const struct roped_program *program, int input)
{
    return &program->declared[input];
}

const struct roped_port *
roped_program_input_port(const struct roped_program *program, int input,
                         const struct roped_op **op)
{
    const struct program_name *name = &program->names.at[program->input[input]];
    *op = program->steps.at[name->user].op;
    return &(*op)->in[name->user_port];
}

const struct roped_port *
roped_program_output_port(const struct roped_program *program, int output,
                          const struct roped_op **op)
{
    const struct program_name *name =
        &program->names.at[program->output[output]];
    *op = program->steps.at[name->index].op;
    return &(*op)->out[name->port];
}

size_t roped_program_bytes(const struct roped_program *program)
{
    size_t bytes =
        sizeof *program +
        (size_t)program->steps.room * sizeof *program->steps.at +
        (size_t)program->refs.room * sizeof *program->refs.at +
        (size_t)program->settings.room * sizeof *program->settings.at +
        (size_t)program->names.room * sizeof *program->names.at;
    for (int i = 0; i < program->refs.n; i++)
        bytes += program->refs.at[i].view ? sizeof(struct roped_view) : 0;
    for (int i = 0; i < program->settings.n; i++)
        bytes += program->settings.at[i].text
                     ? strlen(program->settings.at[i].text) + 1
                     : 0;
    return bytes;
}

int roped_program_find_input(const struct roped_program *program,
                             const char *name)
{
    int at = program_find(program, name, false);
    return at >= 0 && program->names.at[at].kind == NAME_INPUT
               ? program->names.at[at].index
               : -1;
}

int roped_program_find_output(const struct roped_program *program,
                              const char *name)
{
    int at = program_find(program, name, false);
    return at >= 0 ? program->names.at[at].output : -1;
}

int roped_program_find_param(const struct roped_program *program,
                             const char *name)
{
    for (int i = 0; i < program->n_params; i++)
        if (name_is(program->param[i].name, name))
            return i;
    return -1;
}
