/*
 * param_json.c - JSON values as operator parameters. JSON has one kind of
 * number: a whole one is handed over as an integer, which every kind of
 * parameter that takes numbers accepts.
 */
#include "wire/param_json.h"

#include "wire/json.h"

#include <cjson/cJSON.h>
#include <stdio.h>

enum { TEXT_BYTES = 256, LIST_BYTES = 128, INTEGER_BYTES = 24 };

static bool is_integer(double value, int64_t *out)
{
    if (!(value > -0x1p53 && value < 0x1p53))
        return false;
    *out = (int64_t)value;
    return (double)*out == value;
}

static struct roped_value of_number(double number)
{
    struct roped_value value = {.number = number};
    value.kind = is_integer(number, &value.integer) ? ROPED_VALUE_INT
                                                    : ROPED_VALUE_FLOAT;
    return value;
}

/* "16,24,24" so far. */
struct list {
    char text[LIST_BYTES];
    size_t bytes;
};

/* False where number is no integer or there are too many. */
static bool append(struct list *list, double number)
{
    int64_t value;
    if (!is_integer(number, &value) || list->bytes + INTEGER_BYTES > LIST_BYTES)
        return false;
    list->bytes +=
        (size_t)snprintf(list->text + list->bytes, INTEGER_BYTES, "%s%lld",
                         list->bytes ? "," : "", (long long)value);
    return true;
}

static enum roped_status refuse(const char *name, const char *found,
                                struct roped_error *err)
{
    return roped_fail(err, ROPED_BAD_PARAMETER,
                      "parameter '%.64s': %s, expected a string, number, "
                      "boolean or a short list of integers",
                      name, found);
}

/* --------------------------------------------------------------- from trees */

static bool write_list(const struct cJSON *array, struct list *list)
{
    const struct cJSON *item;
    cJSON_ArrayForEach(item, array)
    {
        if (!cJSON_IsNumber(item) || !append(list, item->valuedouble))
            return false;
    }
    return true;
}

enum roped_status param_json_set(struct roped_call *call, const char *name,
                                 const struct cJSON *node,
                                 struct roped_error *err)
{
    struct roped_value value = {.kind = ROPED_VALUE_TEXT};
    struct list list = {.text = ""};
    if (cJSON_IsString(node)) {
        value.text = node->valuestring;
    } else if (cJSON_IsBool(node)) {
        value.kind = ROPED_VALUE_BOOL;
        value.integer = cJSON_IsTrue(node);
    } else if (cJSON_IsNumber(node)) {
        value = of_number(node->valuedouble);
    } else if (cJSON_IsArray(node) && write_list(node, &list)) {
        value.text = list.text;
    } else {
        return refuse(name,
                      cJSON_IsArray(node)    ? "an array of other things"
                      : cJSON_IsObject(node) ? "an object"
                                             : "null",
                      err);
    }
    return roped_call_set_param(call, name, &value, err);
}

/* ------------------------------------------------------------- from readers */

static bool read_list(struct json_reader *reader, struct list *list)
{
    double number;
    json_open(reader);
    while (json_next(reader))
        if (!json_read_number(reader, &number) || !append(list, number))
            return false;
    return !reader->why;
}

/* A text as long as this is no value of any parameter. */
static enum roped_status check_text(const char *name, size_t bytes,
                                    struct roped_error *err)
{
    if (bytes < TEXT_BYTES)
        return ROPED_OK;
    return roped_fail(err, ROPED_BAD_PARAMETER,
                      "parameter '%.64s': a text of %zu bytes, expected at "
                      "most %d",
                      name, bytes, TEXT_BYTES - 1);
}

enum roped_status param_json_read(struct roped_call *call, const char *name,
                                  struct json_reader *reader,
                                  struct roped_error *err)
{
    struct roped_value value = {.kind = ROPED_VALUE_TEXT};
    struct list list = {.text = ""};
    char text[TEXT_BYTES];
    enum json_kind kind = json_kind(reader);
    struct json_string string;
    double number;
    if (json_read_string(reader, &string)) {
        size_t bytes = json_copy(&string, text, sizeof text);
        enum roped_status status = check_text(name, bytes, err);
        if (status)
            return status;
        value.text = text;
    } else if (kind == JSON_TRUE || kind == JSON_FALSE) {
        json_skip(reader);
        value.kind = ROPED_VALUE_BOOL;
        value.integer = kind == JSON_TRUE;
    } else if (json_read_number(reader, &number)) {
        value = of_number(number);
    } else if (kind == JSON_ARRAY && read_list(reader, &list)) {
        value.text = list.text;
    } else {
        return refuse(name,
                      kind == JSON_ARRAY    ? "an array of other things"
                      : kind == JSON_OBJECT ? "an object"
                                            : "null",
                      err);
    }
    return roped_call_set_param(call, name, &value, err);
}
