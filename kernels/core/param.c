/*
 * param.c - parameters of a call: parsed by their kind, checked against their
 * range, stored in the operator's own struct.
 */
#include "core/call_internal.h"

#include <roped/nearest.h>
#include <roped/number.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void store(struct roped_call *call, const struct roped_param *param,
                  const void *value, size_t bytes)
{
    memcpy(call->params + param->offset, value, bytes);
}

static void store_int32(struct roped_call *call,
                        const struct roped_param *param, int32_t value)
{
    store(call, param, &value, sizeof value);
}

/* "e4m3" is F8_E4M3. */
enum roped_dtype param_dtype(const struct roped_param *param, int index)
{
    char text[16], name[20] = "F8_";
    roped_param_choice(param, index, text, sizeof text);
    for (size_t i = 0; text[i] && i < 16; i++)
        name[3 + i] = (char)(text[i] >= 'a' ? text[i] - 'a' + 'A' : text[i]);
    enum roped_dtype dtype = roped_dtype_from_name(name, strlen(name));
    return dtype ? dtype : roped_dtype_from_name(name + 3, strlen(name + 3));
}

int param_choice(const struct roped_param *param, const char *value)
{
    size_t length = strlen(value), n;
    const char *at = param->choices;
    for (int i = 0; at; i++) {
        n = strcspn(at, "|");
        if (n == length && memcmp(at, value, n) == 0)
            return i;
        at = at[n] ? at + n + 1 : NULL;
    }
    return -1;
}

bool param_takes(const struct roped_param *param, const char *value)
{
    if (param->kind == ROPED_PARAM_BOOL)
        return strcmp(value, "true") == 0 || strcmp(value, "false") == 0;
    if (param->kind == ROPED_PARAM_INT)
        return value[0] && strspn(value, "0123456789") == strlen(value);
    return param_choice(param, value) >= 0;
}

enum roped_dtype type_of_choice(const struct roped_type *type, int index)
{
    const char *at = type->of;
    for (; index > 0 && at; index--) {
        at = strchr(at, '|');
        at = at ? at + 1 : NULL;
    }
    return at ? roped_dtype_from_name(at, strcspn(at, "|")) : ROPED_NO_DTYPE;
}

void call_default_params(struct roped_call *call)
{
    const struct roped_op *op = call->op;
    for (int i = 0; i < call->n_params; i++) {
        const struct roped_param *param = &op->param[i];
        bool is_unset = param->flags & ROPED_NO_DEFAULT;
        double number = is_unset ? ROPED_UNSET_FLOAT : param->init;
        int64_t integer = is_unset ? ROPED_UNSET_INT : (int64_t)param->init;
        switch (param->kind) {
        case ROPED_PARAM_FLOAT:
            store(call, param, &number, sizeof number);
            break;
        case ROPED_PARAM_INT:
            store(call, param, &integer, sizeof integer);
            break;
        case ROPED_PARAM_BOOL:
        case ROPED_PARAM_CHOICE:
            store_int32(call, param, (int32_t)param->init);
            break;
        case ROPED_PARAM_DTYPE:
            store_int32(call, param,
                        (int32_t)param_dtype(param, (int)param->init));
            break;
        case ROPED_PARAM_INTS:
            break; /* count 0: the struct starts as zeros */
        }
    }
}

static bool is_in_range(const struct roped_param *param, double value)
{
    if (param->min == 0 && param->max == 0)
        return !(param->flags & ROPED_ABOVE_MIN) || value > 0;
    if (param->flags & ROPED_ABOVE_MIN ? value <= param->min
                                       : value < param->min)
        return false;
    return value <= param->max;
}

static const char *range_text(const struct roped_param *param, char *text,
                              size_t bytes)
{
    if (param->min == 0 && param->max == 0)
        snprintf(text, bytes, "a finite number%s",
                 param->flags & ROPED_ABOVE_MIN ? " above 0" : "");
    else if (param->flags & ROPED_ABOVE_MIN)
        roped_print(text, bytes, "above %.9g and at most %.9g", param->min,
                    param->max);
    else
        roped_print(text, bytes, "%.9g to %.9g", param->min, param->max);
    return text;
}

static enum roped_status out_of_range(const struct roped_param *param,
                                      double value, struct roped_error *err)
{
    char range[96];
    return roped_fail(err, ROPED_BAD_PARAMETER,
                      "parameter '%s': %.9g, expected %s", param->name, value,
                      range_text(param, range, sizeof range));
}

static enum roped_status wrong_kind(const struct roped_param *param,
                                    const struct roped_value *value,
                                    const char *expected,
                                    struct roped_error *err)
{
    switch (value->kind) {
    case ROPED_VALUE_TEXT:
        return roped_fail(err, ROPED_BAD_PARAMETER,
                          "parameter '%s': '%.64s', expected %s", param->name,
                          value->text, expected);
    case ROPED_VALUE_BOOL:
        return roped_fail(err, ROPED_BAD_PARAMETER,
                          "parameter '%s': %s, expected %s", param->name,
                          value->integer ? "true" : "false", expected);
    case ROPED_VALUE_INT:
        return roped_fail(err, ROPED_BAD_PARAMETER,
                          "parameter '%s': %lld, expected %s", param->name,
                          (long long)value->integer, expected);
    case ROPED_VALUE_FLOAT:
        break;
    }
    return roped_fail(err, ROPED_BAD_PARAMETER,
                      "parameter '%s': %.9g, expected %s", param->name,
                      value->number, expected);
}

/* Decimal notation only: the reader alone takes hex, inf and nan. */
static bool parse_double(const char *text, double *out)
{
    char *end;
    if (!text[0] || text[strspn(text, "0123456789+-.eE")])
        return false;
    *out = roped_read_number(text, &end);
    return *end == '\0' && isfinite(*out);
}

static bool parse_int(const char *text, char **end, int64_t *out)
{
    errno = 0;
    if (text[0] != '-' && (text[0] < '0' || text[0] > '9'))
        return false;
    long long value = strtoll(text, end, 10);
    *out = value;
    return *end != text && errno == 0;
}

static enum roped_status set_float(struct roped_call *call,
                                   const struct roped_param *param,
                                   const struct roped_value *value,
                                   struct roped_error *err)
{
    double number = value->number;
    if (value->kind == ROPED_VALUE_INT)
        number = (double)value->integer;
    else if (value->kind == ROPED_VALUE_BOOL ||
             (value->kind == ROPED_VALUE_TEXT &&
              !parse_double(value->text, &number)))
        return wrong_kind(param, value, "a finite number", err);
    if (!isfinite(number) || !is_in_range(param, number))
        return out_of_range(param, number, err);
    store(call, param, &number, sizeof number);
    return ROPED_OK;
}

static enum roped_status set_int(struct roped_call *call,
                                 const struct roped_param *param,
                                 const struct roped_value *value,
                                 struct roped_error *err)
{
    int64_t integer = value->integer;
    char *end = NULL;
    bool is_int = value->kind == ROPED_VALUE_INT;
    if (value->kind == ROPED_VALUE_TEXT)
        is_int = parse_int(value->text, &end, &integer) && *end == '\0';
    if (!is_int)
        return wrong_kind(param, value, "an integer", err);
    if (!is_in_range(param, (double)integer))
        return out_of_range(param, (double)integer, err);
    store(call, param, &integer, sizeof integer);
    return ROPED_OK;
}

static enum roped_status set_bool(struct roped_call *call,
                                  const struct roped_param *param,
                                  const struct roped_value *value,
                                  struct roped_error *err)
{
    int32_t is_true = value->integer != 0;
    if (value->kind == ROPED_VALUE_TEXT) {
        is_true =
            strcmp(value->text, "true") == 0 || strcmp(value->text, "1") == 0;
        if (!is_true && strcmp(value->text, "false") != 0 &&
            strcmp(value->text, "0") != 0)
            return wrong_kind(param, value, "true or false", err);
    } else if (value->kind == ROPED_VALUE_FLOAT ||
               (value->kind == ROPED_VALUE_INT && value->integer != 0 &&
                value->integer != 1)) {
        return wrong_kind(param, value, "true or false", err);
    }
    store_int32(call, param, is_true);
    return ROPED_OK;
}

static enum roped_status set_choice(struct roped_call *call,
                                    const struct roped_param *param,
                                    const struct roped_value *value,
                                    struct roped_error *err)
{
    char expected[160];
    int i =
        value->kind == ROPED_VALUE_TEXT ? param_choice(param, value->text) : -1;
    if (i >= 0) {
        store_int32(call, param,
                    param->kind == ROPED_PARAM_DTYPE
                        ? (int32_t)param_dtype(param, i)
                        : (int32_t)i);
        return ROPED_OK;
    }
    snprintf(expected, sizeof expected, "one of %s", param->choices);
    return wrong_kind(param, value, expected, err);
}

static enum roped_status set_ints(struct roped_call *call,
                                  const struct roped_param *param,
                                  const struct roped_value *value,
                                  struct roped_error *err)
{
    struct roped_ints ints = {0};
    char expected[48];
    int most = roped_param_ints(param);
    snprintf(expected, sizeof expected, "up to %d integers, as 16,24,24", most);
    if (value->kind == ROPED_VALUE_INT) {
        ints.count = 1;
        ints.value[0] = value->integer;
    } else if (value->kind != ROPED_VALUE_TEXT) {
        return wrong_kind(param, value, expected, err);
    } else {
        const char *at = value->text;
        bool is_scalar = param->shape && *at == '\0';
        while (!is_scalar) {
            char *end;
            if (ints.count == most ||
                !parse_int(at, &end, &ints.value[ints.count++]) ||
                (*end != ',' && *end != '\0'))
                return wrong_kind(param, value, expected, err);
            if (*end == '\0')
                break;
            at = end + 1;
        }
    }
    for (int i = 0; i < ints.count; i++)
        if (!is_in_range(param, (double)ints.value[i]))
            return out_of_range(param, (double)ints.value[i], err);
    store(call, param, &ints, sizeof ints);
    return ROPED_OK;
}

static enum roped_status unknown_param(const struct roped_op *op,
                                       const char *name,
                                       struct roped_error *err)
{
    char near[96];
    struct roped_nearest nearest = {.word = name};
    for (int i = 0; i < roped_op_params(op); i++)
        roped_nearest_offer(&nearest, op->param[i].name);
    if (op->angles_offset != ROPED_NO_ANGLES)
        roped_nearest_offer(&nearest, "table");
    return roped_fail(err, ROPED_UNKNOWN_NAME,
                      "unknown parameter '%.64s': %s has none of that name%s",
                      name, op->name,
                      roped_nearest_text(&nearest, near, sizeof near));
}

enum roped_status roped_call_set_param(struct roped_call *call,
                                       const char *name,
                                       const struct roped_value *value,
                                       struct roped_error *err)
{
    int index = roped_op_param(call->op, name);
    if (index < 0)
        return unknown_param(call->op, name, err);
    const struct roped_param *param = &call->op->param[index];
    if (call->given & (1ull << index))
        return roped_fail(err, ROPED_BAD_PARAMETER,
                          "parameter '%s' is given twice", param->name);
    enum roped_status status = ROPED_INTERNAL;
    switch (param->kind) {
    case ROPED_PARAM_FLOAT:
        status = set_float(call, param, value, err);
        break;
    case ROPED_PARAM_INT:
        status = set_int(call, param, value, err);
        break;
    case ROPED_PARAM_BOOL:
        status = set_bool(call, param, value, err);
        break;
    case ROPED_PARAM_CHOICE:
    case ROPED_PARAM_DTYPE:
        status = set_choice(call, param, value, err);
        break;
    case ROPED_PARAM_INTS:
        status = set_ints(call, param, value, err);
        break;
    }
    if (!status)
        call->given |= 1ull << index;
    return status;
}

enum roped_status roped_call_set_text(struct roped_call *call, const char *name,
                                      const char *text, struct roped_error *err)
{
    struct roped_value value = {.kind = ROPED_VALUE_TEXT, .text = text};
    return roped_call_set_param(call, name, &value, err);
}

bool roped_call_gave(const struct roped_call *call, const char *param)
{
    int index = roped_op_param(call->op, param);
    return index >= 0 && (call->given & (1ull << index));
}
