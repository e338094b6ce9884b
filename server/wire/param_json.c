/*
 * param_json.c - JSON values as operator parameters. JSON has one kind of
 * number: a whole one is handed over as an integer, which every kind of
 * parameter that takes numbers accepts.
 */
#include "wire/param_json.h"

#include "wire/json.h"

#include <cjson/cJSON.h>
#include <stdio.h>

enum { LIST_BYTES = 128, INTEGER_BYTES = 24 };

static bool is_integer(const struct cJSON *node, int64_t *out)
{
    double value = cJSON_IsNumber(node) ? node->valuedouble : 0.5;
    if (!(value > -0x1p53 && value < 0x1p53))
        return false;
    *out = (int64_t)value;
    return (double)*out == value;
}

/* "16,24,24"; false where an item is no integer or there are too many. */
static bool write_list(const struct cJSON *array, char list[LIST_BYTES])
{
    const struct cJSON *item;
    size_t at = 0;
    int64_t value;
    list[0] = '\0';
    cJSON_ArrayForEach(item, array)
    {
        if (!is_integer(item, &value) || at + INTEGER_BYTES > LIST_BYTES)
            return false;
        at += (size_t)snprintf(list + at, LIST_BYTES - at, "%s%lld",
                               at ? "," : "", (long long)value);
    }
    return true;
}

enum roped_status param_json_set(struct roped_call *call, const char *name,
                                 const struct cJSON *node,
                                 struct roped_error *err)
{
    struct roped_value value = {.kind = ROPED_VALUE_TEXT};
    char list[LIST_BYTES];
    if (cJSON_IsString(node)) {
        value.text = node->valuestring;
    } else if (cJSON_IsBool(node)) {
        value.kind = ROPED_VALUE_BOOL;
        value.integer = cJSON_IsTrue(node);
    } else if (cJSON_IsNumber(node)) {
        value.kind = is_integer(node, &value.integer) ? ROPED_VALUE_INT
                                                      : ROPED_VALUE_FLOAT;
        value.number = node->valuedouble;
    } else if (cJSON_IsArray(node) && write_list(node, list)) {
        value.text = list;
    } else {
        return roped_fail(err, ROPED_INVALID,
                          "parameter '%.64s': %s, expected a string, number, "
                          "boolean or a short list of integers",
                          name,
                          cJSON_IsArray(node)    ? "an array of other things"
                          : cJSON_IsObject(node) ? "an object"
                                                 : "null");
    }
    return roped_call_set_param(call, name, &value, err);
}
