/*
 * program_json.c - documents of programs. What is wrong with the names, tensors
 * and parameters of steps roped_program_step and its kin say; here it is the
 * shape of the document.
 */
#include "wire/program_json.h"

#include "wire/json.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 128, VALUE_BYTES = 4096, NO_ROUND = -1 };

/* A document while it is read. */
struct reading {
    struct roped_program *program;
    int64_t round; /* of a repeat, or NO_ROUND */
    struct roped_error *err;
};

enum roped_status program_json_check_name(const char *name,
                                          struct roped_error *err)
{
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_.-");
    if (name[0] < 'a' || name[0] > 'z' || name[n] || n >= ROPED_NAME_BYTES)
        return roped_fail(err, ROPED_INVALID,
                          "program '%.64s': expected a small letter, then "
                          "small letters, digits, '_', '.' and '-', at most %d "
                          "in all",
                          name, ROPED_NAME_BYTES - 1);
    if (roped_op_find(name))
        return roped_fail(err, ROPED_INVALID,
                          "program '%s': an operator has this name", name);
    if (strcmp(name, "stats") == 0) /* a program is a v2 model */
        return roped_fail(err, ROPED_INVALID,
                          "program '%s': GET /v2/models/stats is the "
                          "statistics of all models",
                          name);
    return ROPED_OK;
}

/* ------------------------------------------------------------------- words */

static enum roped_status wrong(const struct reading *reading, const char *what,
                               const cJSON *found, const char *expected)
{
    char text[64];
    return roped_fail(reading->err, ROPED_INVALID, "%s: %s, expected %s", what,
                      json_text(found, text, sizeof text), expected);
}

/* Members that an object has beside those of a list, which NULL ends. */
static enum roped_status check_members(const struct reading *reading,
                                       const char *what, const cJSON *object,
                                       const char *const *names)
{
    char expected[160] = "";
    for (size_t i = 0, at = 0; names[i] && at < sizeof expected; i++)
        at += (size_t)snprintf(expected + at, sizeof expected - at, "%s%s",
                               i ? ", " : "", names[i]);
    if (!cJSON_IsObject(object))
        return wrong(reading, what, object, "an object");
    for (const cJSON *member = object->child; member; member = member->next) {
        size_t i = 0;
        while (names[i] && strcmp(names[i], member->string) != 0)
            i++;
        if (!names[i])
            return roped_fail(reading->err, ROPED_INVALID,
                              "%s: unknown member '%.64s', expected %s", what,
                              member->string, expected);
        if (json_member(object, member->string) != member)
            return roped_fail(reading->err, ROPED_INVALID,
                              "%s: member '%.64s' is given twice", what,
                              member->string);
    }
    return ROPED_OK;
}

/* "step 3", the one that is read now. */
static const char *step_text(const struct reading *reading, char *text,
                             size_t bytes)
{
    snprintf(text, bytes, "step %d", roped_program_steps(reading->program) + 1);
    return text;
}

/* A name of a repeat: "h{i+1}" in the round 3 is "h4". */
static enum roped_status expand(const struct reading *reading, const char *text,
                                char out[NAME_BYTES])
{
    static const struct {
        const char *text;
        int add;
    } forms[] = {{"{i}", 0}, {"{i+1}", 1}, {"{i-1}", -1}};
    const char *start = text;
    size_t at = 0;
    while (*text && at < NAME_BYTES - 1) {
        size_t form = 0;
        while (form < 3 &&
               (reading->round == NO_ROUND ||
                strncmp(text, forms[form].text, strlen(forms[form].text)) != 0))
            form++;
        if (form == 3) {
            out[at++] = *text++;
            continue;
        }
        at += (size_t)snprintf(out + at, NAME_BYTES - at, "%lld",
                               (long long)reading->round + forms[form].add);
        text += strlen(forms[form].text);
    }
    if (*text || at >= NAME_BYTES)
        return roped_fail(reading->err, ROPED_INVALID,
                          "name '%.64s...': longer than %d bytes", start,
                          NAME_BYTES - 1);
    out[at] = '\0';
    return ROPED_OK;
}

/* ------------------------------------------------------- types and shapes */

static enum roped_status read_dtype(const struct reading *reading,
                                    const char *name, const cJSON *node,
                                    enum roped_dtype *out)
{
    char what[NAME_BYTES + 32];
    if (!node)
        return ROPED_OK;
    if (cJSON_IsString(node))
        *out =
            roped_dtype_from_name(node->valuestring, strlen(node->valuestring));
    if (*out)
        return ROPED_OK;
    snprintf(what, sizeof what, "'dtype' of '%.64s'", name);
    return wrong(reading, what, node,
                 "a type as safetensors spells it, like F32 or BF16");
}

/* symbol NULL: sizes alone. */
static enum roped_status read_shape(const struct reading *reading,
                                    const char *name, const cJSON *node,
                                    int *rank, int64_t *dims,
                                    char (*symbol)[16])
{
    char what[NAME_BYTES + 32];
    snprintf(what, sizeof what, "'shape' of '%.64s'", name);
    if (!cJSON_IsArray(node))
        return wrong(reading, what, node, "an array of dims");
    *rank = 0;
    for (const cJSON *dim = node->child; dim; dim = dim->next) {
        uint64_t size;
        bool is_size = json_is_size(dim, &size);
        bool is_symbol = symbol && cJSON_IsString(dim) && dim->valuestring[0] &&
                         strlen(dim->valuestring) < sizeof *symbol;
        if (*rank == ROPED_MAX_RANK)
            return roped_fail(reading->err, ROPED_BAD_SHAPE,
                              "%s: more than %d dims", what, ROPED_MAX_RANK);
        if (!is_size && !is_symbol)
            return wrong(reading, what, dim,
                         symbol ? "a size, or its name of at most 15 letters"
                                : "a size");
        if (is_symbol)
            snprintf(symbol[*rank], sizeof *symbol, "%s", dim->valuestring);
        dims[(*rank)++] = is_symbol ? 0 : (int64_t)size;
    }
    return ROPED_OK;
}

/* ------------------------------------------------------ inputs, parameters */

/* The wire says these about any call, or about where a tensor is. */
static bool is_option(const char *name)
{
    static const char *const options[] = {
        "fp8",   "table", "tenant",  "timing",   "device",
        "trace", "warm",  "timeout", "priority", "binary_data_output"};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        if (strcmp(name, options[i]) == 0)
            return true;
    return strchr(name, '.') != NULL;
}

/* A parameter's value as text; "" with is_null. */
static enum roped_status read_value(const struct reading *reading,
                                    const char *name, const cJSON *node,
                                    char text[VALUE_BYTES])
{
    char what[NAME_BYTES + 32];
    struct buffer buffer;
    buffer_init_fixed(&buffer, text, VALUE_BYTES);
    text[0] = '\0';
    bool is_good = true;
    if (cJSON_IsString(node))
        buffer_text(&buffer, node->valuestring);
    else if (cJSON_IsBool(node))
        buffer_text(&buffer, cJSON_IsTrue(node) ? "true" : "false");
    else if (cJSON_IsNumber(node))
        buffer_double(&buffer, node->valuedouble);
    else if (cJSON_IsArray(node))
        for (const cJSON *item = node->child; item; item = item->next) {
            is_good &= cJSON_IsNumber(item) != 0;
            buffer_text(&buffer, item == node->child ? "" : ",");
            buffer_double(&buffer, item->valuedouble);
        }
    else
        is_good = false;
    if (is_good && !buffer.has_failed)
        return ROPED_OK;
    snprintf(what, sizeof what, "parameter '%.64s'", name);
    if (buffer.has_failed)
        return roped_fail(reading->err, ROPED_BAD_PARAMETER,
                          "%s: its value is longer than %d bytes", what,
                          VALUE_BYTES - 1);
    return wrong(reading, what, node,
                 "a string, a number, true, false or an array of numbers");
}

static enum roped_status read_parameters(struct reading *reading,
                                         const cJSON *node)
{
    char value[VALUE_BYTES];
    enum roped_status status = ROPED_OK;
    if (node && !cJSON_IsObject(node))
        return wrong(reading, "'parameters'", node, "an object");
    for (const cJSON *member = node ? node->child : NULL; member && !status;
         member = member->next) {
        if (is_option(member->string))
            return roped_fail(reading->err, ROPED_INVALID,
                              "parameter '%.64s': the name of an option of "
                              "calls, or with a '.', expected another name",
                              member->string);
        bool has_default = !cJSON_IsNull(member);
        if (has_default)
            status = read_value(reading, member->string, member, value);
        if (!status)
            status =
                roped_program_param(reading->program, member->string,
                                    has_default ? value : NULL, reading->err);
    }
    return status;
}

static enum roped_status check_tensor_name(const struct reading *reading,
                                           const char *name)
{
    if (strcmp(name, "__metadata__") != 0)
        return ROPED_OK;
    return roped_fail(reading->err, ROPED_INVALID,
                      "tensor '%s': a name that safetensors files keep for "
                      "themselves",
                      name);
}

static enum roped_status read_input(struct reading *reading, const cJSON *node)
{
    static const char *const members[] = {"name", "dtype", "shape", NULL};
    struct roped_declared declared = {.dtype = ROPED_NO_DTYPE};
    enum roped_status status = ROPED_OK;
    const cJSON *name = node, *shape = NULL;
    if (cJSON_IsObject(node)) {
        status = check_members(reading, "an input", node, members);
        name = json_member(node, "name");
        shape = json_member(node, "shape");
    }
    if (!status && !cJSON_IsString(name))
        return wrong(reading, "an input", name,
                     "its name, or an object with 'name'");
    if (!status)
        status = check_tensor_name(reading, name->valuestring);
    if (!status)
        status = read_dtype(reading, name->valuestring,
                            json_member(node, "dtype"), &declared.dtype);
    declared.has_shape = shape != NULL;
    if (!status && shape)
        status = read_shape(reading, name->valuestring, shape, &declared.rank,
                            declared.dims, declared.symbol);
    return status ? status
                  : roped_program_input(reading->program, name->valuestring,
                                        &declared, reading->err);
}

static enum roped_status read_inputs(struct reading *reading, const cJSON *node)
{
    enum roped_status status = ROPED_OK;
    if (node && !cJSON_IsArray(node))
        return wrong(reading, "'inputs'", node, "an array of names");
    for (const cJSON *item = node ? node->child : NULL; item && !status;
         item = item->next)
        status = read_input(reading, item);
    return status;
}

static enum roped_status read_outputs(struct reading *reading,
                                      const cJSON *node)
{
    enum roped_status status = ROPED_OK;
    if (node && !cJSON_IsArray(node))
        return wrong(reading, "'outputs'", node, "an array of names");
    for (const cJSON *item = node ? node->child : NULL; item && !status;
         item = item->next) {
        if (!cJSON_IsString(item))
            return wrong(reading, "an output", item, "a name");
        status = check_tensor_name(reading, item->valuestring);
        if (!status)
            status = roped_program_output(reading->program, item->valuestring,
                                          reading->err);
    }
    return status;
}

/* ------------------------------------------------------------------- steps */

/* A tensor of a step: its name, and maybe what it is. */
struct tensor_text {
    char name[NAME_BYTES];
    bool has_view;
    struct roped_view view;
};

static enum roped_status read_tensor(const struct reading *reading,
                                     const cJSON *node, struct tensor_text *out)
{
    static const char *const members[] = {"name", "dtype", "shape", "stride",
                                          NULL};
    const cJSON *name = node;
    uint64_t stride = 0;
    enum roped_status status = ROPED_OK;
    out->view = (struct roped_view){.dtype = ROPED_NO_DTYPE};
    out->has_view = cJSON_IsObject(node);
    if (out->has_view) {
        status = check_members(reading, node->string, node, members);
        name = json_member(node, "name");
    }
    if (!status && !cJSON_IsString(name))
        return wrong(reading, node->string, name,
                     "a name, '@region', or an object with 'name'");
    if (!status)
        status = expand(reading, name->valuestring, out->name);
    if (status || !out->has_view)
        return status;
    const cJSON *shape = json_member(node, "shape");
    const cJSON *strides = json_member(node, "stride");
    status = read_dtype(reading, node->string, json_member(node, "dtype"),
                        &out->view.dtype);
    if (!status && shape)
        status = read_shape(reading, node->string, shape, &out->view.rank,
                            out->view.dims, NULL);
    out->view.has_shape = shape != NULL;
    if (!status && strides && (!json_is_size(strides, &stride) || stride == 0))
        return wrong(reading, "'stride'", strides,
                     "elements from one token to the next, above 0");
    out->view.stride = (int64_t)stride;
    return status;
}

static enum roped_status read_tensors(struct reading *reading,
                                      const cJSON *node, bool is_output)
{
    struct tensor_text tensor;
    char what[48];
    struct roped_error said;
    enum roped_status status = ROPED_OK;
    if (node && !cJSON_IsObject(node)) {
        snprintf(what, sizeof what, "step %d: '%s'",
                 roped_program_steps(reading->program),
                 is_output ? "out" : "in");
        return wrong(reading, what, node, "an object of names");
    }
    for (const cJSON *member = node ? node->child : NULL; member && !status;
         member = member->next) {
        status = read_tensor(reading, member, &tensor);
        if (status) { /* the library says where its own errors are */
            said = *reading->err;
            return roped_program_blame(
                reading->program, roped_program_steps(reading->program) - 1,
                roped_fail(reading->err, status, "tensor '%.64s': %s",
                           member->string, said.text),
                reading->err);
        }
        status = (is_output ? roped_step_out : roped_step_in)(
            reading->program, member->string, tensor.name,
            tensor.has_view ? &tensor.view : NULL, reading->err);
    }
    return status;
}

static enum roped_status read_params(struct reading *reading, const cJSON *node)
{
    char value[VALUE_BYTES], table[NAME_BYTES];
    int step = roped_program_steps(reading->program) - 1;
    enum roped_status status = ROPED_OK;
    if (node && !cJSON_IsObject(node)) {
        status = wrong(reading, "'params'", node, "an object");
        return roped_program_blame(reading->program, step, status,
                                   reading->err);
    }
    for (const cJSON *member = node ? node->child : NULL; member && !status;
         member = member->next) {
        bool is_table = strcmp(member->string, "table") == 0;
        status = read_value(reading, member->string, member, value);
        if (!status && is_table)
            status = expand(reading, value, table);
        if (status)
            return roped_program_blame(reading->program, step, status,
                                       reading->err);
        status = is_table
                     ? roped_step_table(reading->program, table, reading->err)
                     : roped_step_param(reading->program, member->string, value,
                                        reading->err);
    }
    return status;
}

static enum roped_status read_step(struct reading *reading, const cJSON *node)
{
    static const char *const members[] = {"op", "in", "out", "params", NULL};
    char what[32];
    enum roped_status status = check_members(
        reading, step_text(reading, what, sizeof what), node, members);
    const cJSON *op = json_member(node, "op");
    if (status)
        return status;
    if (!cJSON_IsString(op)) {
        snprintf(what + strlen(what), sizeof what - strlen(what), ": 'op'");
        return wrong(reading, what, op, "the name of an operator");
    }
    status =
        roped_program_step(reading->program, op->valuestring, reading->err);
    if (!status)
        status = read_params(reading, json_member(node, "params"));
    if (!status)
        status = read_tensors(reading, json_member(node, "in"), false);
    if (!status)
        status = read_tensors(reading, json_member(node, "out"), true);
    return status;
}

static enum roped_status read_repeat(struct reading *reading, const cJSON *node)
{
    static const char *const members[] = {"repeat", "steps", NULL};
    const cJSON *steps = json_member(node, "steps");
    const cJSON *repeat = json_member(node, "repeat");
    char what[48];
    uint64_t n = 0;
    (void)step_text(reading, what, sizeof what);
    enum roped_status status = check_members(reading, what, node, members);
    snprintf(what + strlen(what), sizeof what - strlen(what), ": 'repeat'");
    if (!status &&
        (!json_is_size(repeat, &n) || n == 0 || n > ROPED_PROGRAM_STEPS))
        return wrong(reading, what, repeat, "1 to 1024 rounds");
    if (!status && !cJSON_IsArray(steps))
        return wrong(reading, what, steps, "an array 'steps' beside it");
    for (uint64_t i = 0; i < n && !status; i++) {
        reading->round = (int64_t)i;
        for (const cJSON *step = steps->child; step && !status;
             step = step->next)
            status = read_step(reading, step);
    }
    reading->round = NO_ROUND;
    return status;
}

static enum roped_status read_steps(struct reading *reading, const cJSON *node)
{
    enum roped_status status = ROPED_OK;
    if (!cJSON_IsArray(node))
        return wrong(reading, "'steps'", node, "an array of steps");
    for (const cJSON *step = node->child; step && !status; step = step->next)
        status = json_member(step, "repeat") ? read_repeat(reading, step)
                                             : read_step(reading, step);
    return status;
}

static enum roped_status read_document(struct reading *reading,
                                       const cJSON *tree)
{
    static const char *const members[] = {"inputs", "steps", "outputs",
                                          "parameters", NULL};
    enum roped_status status =
        check_members(reading, "a program", tree, members);
    if (!status)
        status = read_parameters(reading, json_member(tree, "parameters"));
    if (!status)
        status = read_inputs(reading, json_member(tree, "inputs"));
    if (!status)
        status = read_steps(reading, json_member(tree, "steps"));
    if (!status)
        status = read_outputs(reading, json_member(tree, "outputs"));
    return status ? status : roped_program_end(reading->program, reading->err);
}

static enum roped_status read_tree(const cJSON *tree,
                                   struct roped_program **out,
                                   struct roped_error *err)
{
    struct reading reading = {.round = NO_ROUND, .err = err};
    enum roped_status status = roped_program_new(&reading.program, err);
    if (!status)
        status = read_document(&reading, tree);
    if (status) {
        roped_program_free(reading.program);
        return status;
    }
    *out = reading.program;
    return ROPED_OK;
}

/* JSON knows no steps: where a name stands twice, the document is read as far
 * as there, for the sentence that names its step. */
static enum roped_status find_twice(const char *text, size_t bytes,
                                    struct roped_error *err)
{
    struct roped_program *program = NULL;
    struct roped_error said;
    cJSON *tree = strstr(err->text, "duplicate name")
                      ? cJSON_ParseWithLength(text, bytes)
                      : NULL;
    if (tree && read_tree(tree, &program, &said))
        *err = said;
    roped_program_free(program);
    cJSON_Delete(tree);
    return err->status;
}

enum roped_status program_json_read(const char *text, size_t bytes,
                                    struct roped_program **out,
                                    struct roped_error *err)
{
    const cJSON *tree = NULL;
    if (json_parse(text, bytes, &tree, err))
        return find_twice(text, bytes, err);
    enum roped_status status = read_tree(tree, out, err);
    json_free(tree);
    return status;
}

/* ------------------------------------------------------------------- write */

static void write_input(struct buffer *buffer,
                        const struct roped_program *program, int input)
{
    const struct roped_declared *declared =
        roped_program_declared(program, input);
    buffer_text(buffer, input ? ",{\"name\":" : "{\"name\":");
    buffer_json_string(buffer, roped_program_input_name(program, input));
    if (declared->dtype)
        buffer_printf(buffer, ",\"dtype\":\"%s\"",
                      roped_dtype_name(declared->dtype));
    if (declared->has_shape)
        buffer_text(buffer, ",\"shape\":[");
    for (int i = 0; i < declared->rank; i++) {
        buffer_text(buffer, i ? "," : "");
        if (declared->symbol[i][0])
            buffer_json_string(buffer, declared->symbol[i]);
        else
            buffer_unsigned(buffer, (uint64_t)declared->dims[i]);
    }
    buffer_text(buffer, declared->has_shape ? "]}" : "}");
}

void program_json_write(struct buffer *buffer,
                        const struct roped_program *program)
{
    buffer_printf(buffer, "\"steps\":%d,\"inputs\":[",
                  roped_program_steps(program));
    for (int i = 0; i < roped_program_inputs(program); i++)
        write_input(buffer, program, i);
    buffer_text(buffer, "],\"outputs\":[");
    for (int i = 0; i < roped_program_outputs(program); i++) {
        buffer_text(buffer, i ? "," : "");
        buffer_json_string(buffer, roped_program_output_name(program, i));
    }
    buffer_text(buffer, "],\"parameters\":{");
    for (int i = 0; i < roped_program_params(program); i++) {
        const char *otherwise = roped_program_param_default(program, i);
        buffer_text(buffer, i ? "," : "");
        buffer_json_string(buffer, roped_program_param_name(program, i));
        buffer_text(buffer, ":");
        if (otherwise)
            buffer_json_string(buffer, otherwise);
        else
            buffer_text(buffer, "null");
    }
    buffer_text(buffer, "},\"regions\":[");
    for (int i = 0; i < roped_program_places(program); i++) {
        buffer_text(buffer, i ? "," : "");
        buffer_json_string(buffer, roped_program_place_name(program, i));
    }
    buffer_text(buffer, "]");
}
