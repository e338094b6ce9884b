/*
 * sound.c - see sound.h.
 */
#include "http/sound.h"

#include "check.h"

float sound_floats[SOUND_FLOATS];
int64_t sound_zeros[64];

struct roped_shape_pattern sound_pattern(const struct sound *sound, int input)
{
    struct roped_shape_pattern pattern = {.count = 0};
    struct roped_error err;
    CHECK_OK(roped_call_pattern(&sound->call, &sound->op->in[input], -1,
                                &pattern, &err),
             &err);
    return pattern;
}

bool sound_has_dim(const struct sound *sound, int input, const char *symbol)
{
    const struct roped_shape_pattern pattern = sound_pattern(sound, input);
    for (int i = 0; i < pattern.count; i++)
        if (strcmp(pattern.dim[i].name, symbol) == 0)
            return true;
    return false;
}

/* Does an input of the call have this dim, or a parameter say it? */
static bool is_known(const struct sound *sound, const char *symbol)
{
    for (int i = 0; i < roped_op_inputs(sound->op); i++)
        if (roped_tensor_given(&sound->call.in[i]) &&
            sound_has_dim(sound, i, symbol))
            return true;
    for (int i = 0; i < roped_op_params(sound->op); i++)
        if (sound->op->param[i].shape &&
            strcmp(sound->op->param[i].shape, symbol) == 0)
            return true;
    return false;
}

/* Widths are 8, a dim that has the size of another has that one's, and there
 * are 3 of everything else in the call. */
static bool size_of(const void *context, const char *symbol, int64_t *size)
{
    const struct sound *sound = context;
    const struct roped_op *op = sound->op;
    for (int i = 0; i < roped_op_params(op); i++) {
        const struct roped_param *param = &op->param[i];
        if (param->shape && param->otherwise &&
            strcmp(param->shape, symbol) == 0)
            return size_of(sound, param->otherwise, size);
    }
    *size = 3;
    for (const char *at = op->widths; at; at = strchr(at, ' ')) {
        at += *at == ' ';
        size_t length = strcspn(at, " ");
        if (strlen(symbol) == length && strncmp(at, symbol, length) == 0)
            *size = 8;
    }
    return is_known(sound, symbol);
}

/* Any float and index type will do, and the first FP8 type. */
static enum roped_dtype type_of(const struct roped_op *op,
                                const struct roped_port *port)
{
    uint32_t types = roped_op_types(op, port);
    if (types & ROPED_FLOATS)
        return ROPED_F32;
    if (types & ROPED_SET(ROPED_I64))
        return ROPED_I64;
    return types & ROPED_INDEXES ? ROPED_I32 : ROPED_F8_E4M3;
}

/* -1 where that is allowed; else 0, which is below everything and where every
 * run starts, ends of runs excepted. */
static void *values_of(const struct sound *sound, const struct roped_port *port,
                       enum roped_dtype dtype, int64_t n)
{
    static int64_t none[64], ends[64];
    struct roped_error err;
    struct roped_holds holds;
    int64_t below = 0;
    CHECK_OK(roped_port_holds(port, &holds, &err), &err);
    for (int i = 0; i < 64; i++)
        none[i] = -1;
    if (holds.kind == ROPED_HOLDS_NUMBERS)
        return sound_floats + 16; /* 2 */
    if (holds.may_be_none)
        return none;
    if (holds.kind == ROPED_HOLDS_STARTS && !holds.is_within) {
        for (int i = 0; i < holds.n_below && !below; i++)
            below = roped_dim_evaluate(&holds.below[i], size_of, sound).size;
        memset(ends, 0, sizeof ends);
        ends[n - 1] = below;
        return ends;
    }
    return ROPED_SET(dtype) & ROPED_INDEXES ? (void *)sound_zeros
                                            : (void *)sound_floats;
}

/* Adds one input with the shape of the sound's form. */
void sound_add_input(struct sound *sound, int input)
{
    const struct roped_port *port = &sound->op->in[input];
    enum roped_dtype dtype = type_of(sound->op, port);
    sound->call.in[input].dtype = dtype;
    const struct roped_shape_pattern pattern = sound_pattern(sound, input);
    int64_t dims[ROPED_MAX_RANK];
    int rank = 0;
    for (int i = 0; i < pattern.count; i++)
        if (!pattern.dim[i].is_pack)
            dims[rank++] =
                roped_dim_evaluate(&pattern.dim[i], size_of, sound).size;
    file_add(&sound->file, port->name, dtype, rank, dims,
             values_of(sound, port, dtype, rank ? dims[0] : 1));
}

/* Is an optional input the only tensor that says an output's shape? */
static bool shapes_an_output(const struct sound *sound, int input)
{
    for (int i = 0; i < roped_op_params(sound->op); i++) {
        const struct roped_param *param = &sound->op->param[i];
        if (param->kind == ROPED_PARAM_INTS && param->shape &&
            sound_has_dim(sound, input, param->shape))
            return true;
    }
    return false;
}

/* Which inputs the operator asks for: those that must be there, and what its
 * statements ask for beside them. Where a statement is content with another
 * input, that one comes. */
static uint32_t wanted_inputs(struct sound *sound)
{
    const struct roped_op *op = sound->op;
    uint32_t wanted = 0, before;
    for (int i = 0; i < roped_op_inputs(op); i++)
        if (!(op->in[i].flags & ROPED_OPTIONAL) || shapes_an_output(sound, i))
            wanted |= ROPED_INPUT(i);
    do {
        before = wanted;
        for (int i = 0; i < roped_op_givens(op); i++) {
            const struct roped_given *given = &op->given[i];
            uint32_t asked = given->all;
            asked |= given->together & wanted ? given->together : 0;
            if ((asked & ~wanted) == 0 ||
                !roped_given_holds(&sound->call, given, wanted))
                continue;
            wanted |= given->without ? given->without & -given->without : asked;
        }
    } while (wanted != before);
    return wanted;
}

static void set(struct sound *sound, const char *name, const char *value)
{
    struct roped_error err;
    size_t at = strlen(sound->query);
    snprintf(sound->query + at, sizeof sound->query - at, "%s%s=%s",
             at ? "&" : "", name, value);
    CHECK_OK(roped_call_set_text(&sound->call, name, value, &err), &err);
}

/* Parameters without which a dim of the form has no size, as head_dim where
 * heads are packed. */
static void state_factors(struct sound *sound, const char *symbol)
{
    for (int i = 0; i < roped_op_params(sound->op); i++) {
        const struct roped_param *param = &sound->op->param[i];
        char text[32];
        int64_t size;
        if (!param->shape || strcmp(param->shape, symbol) != 0 ||
            roped_call_gave(&sound->call, param->name))
            continue;
        size_of(sound, symbol, &size);
        snprintf(text, sizeof text, "%lld", (long long)size);
        set(sound, param->name, text);
    }
}

struct sound sound_make(const struct roped_op *op, int form)
{
    struct sound sound = {.op = op, .form = form};
    for (int i = 0; i < SOUND_FLOATS; i++)
        sound_floats[i] = (float)(i % 17) * 0.25f - 2;
    const struct roped_form *described = &op->form[form];
    char choice[32];
    roped_call_init(&sound.call, op);
    sound.call.form = form;
    if (described->name && described->param)
        set(&sound, described->param,
            roped_param_choice(&op->param[roped_op_param(op, described->param)],
                               described->value, choice, sizeof choice));
    uint32_t wanted = wanted_inputs(&sound);
    for (int i = 0; i < roped_op_inputs(op); i++)
        if (wanted & ROPED_INPUT(i))
            sound.call.in[i].dtype = type_of(op, &op->in[i]);
    for (int i = 0; i < roped_op_inputs(op); i++) {
        if (!(wanted & ROPED_INPUT(i)))
            continue;
        const struct roped_shape_pattern pattern = sound_pattern(&sound, i);
        for (int j = 0; j < pattern.count; j++)
            for (int k = 0; k < pattern.dim[j].n_steps; k++)
                if (pattern.dim[j].step[k].sign == '*')
                    state_factors(&sound, pattern.dim[j].step[k].name);
        sound_add_input(&sound, i);
    }
    return sound;
}

struct sound sound_of(const struct roped_op *op)
{
    return sound_make(op, 0);
}
