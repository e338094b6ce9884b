/*
 * param_json.c - JSON values as operator parameters. JSON has one kind of
 * number: a whole one is handed over as an integer, which every kind of
 * parameter that takes numbers accepts.
 */
#include "wire/param_json.h"

#include "wire/json.h"

#include <roped/number.h>

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

/* What reader is at; text and list are for the value's. */
static enum roped_status read_value(const char *name,
                                    struct json_reader *reader,
                                    char text[TEXT_BYTES], struct list *list,
                                    struct roped_value *value,
                                    struct roped_error *err)
{
    enum json_kind kind = json_kind(reader);
    struct json_string string;
    double number;
    value->kind = ROPED_VALUE_TEXT;
    value->text = text;
    if (json_read_string(reader, &string))
        return check_text(name, json_copy(&string, text, TEXT_BYTES), err);
    if (kind == JSON_TRUE || kind == JSON_FALSE) {
        json_skip(reader);
        value->kind = ROPED_VALUE_BOOL;
        value->integer = kind == JSON_TRUE;
    } else if (json_read_number(reader, &number)) {
        *value = of_number(number);
    } else if (kind == JSON_ARRAY && read_list(reader, list)) {
        value->text = list->text;
    } else {
        return refuse(name,
                      kind == JSON_ARRAY    ? "an array of other things"
                      : kind == JSON_OBJECT ? "an object"
                                            : "null",
                      err);
    }
    return ROPED_OK;
}

/* As a query string spells it; NULL: there is no room left. */
static const char *spell(const struct roped_value *value,
                         struct param_texts *texts)
{
    char *text = texts->text + texts->bytes;
    size_t room = sizeof texts->text - texts->bytes;
    int n = value->kind == ROPED_VALUE_INT
                ? snprintf(text, room, "%lld", (long long)value->integer)
            : value->kind == ROPED_VALUE_FLOAT
                ? roped_print(text, room, "%.17g", value->number)
            : value->kind == ROPED_VALUE_BOOL
                ? snprintf(text, room, "%s", value->integer ? "true" : "false")
                : snprintf(text, room, "%s", value->text);
    if (n < 0 || (size_t)n >= room)
        return NULL;
    texts->bytes += (size_t)n + 1;
    return text;
}

enum roped_status param_json_read(const struct signature *signature,
                                  const char *name, struct json_reader *reader,
                                  struct param_texts *texts,
                                  struct roped_error *err)
{
    struct roped_value value = {.kind = ROPED_VALUE_TEXT};
    struct list list = {.text = ""};
    char text[TEXT_BYTES];
    enum roped_status status =
        read_value(name, reader, text, &list, &value, err);
    if (status)
        return status;
    if (signature->call)
        return roped_call_set_param(signature->call, name, &value, err);
    const char *spelt = spell(&value, texts);
    if (spelt)
        return signature_set_text(signature, name, spelt, err);
    return roped_fail(err, ROPED_BAD_PARAMETER,
                      "parameter '%.64s': the texts of all parameters take "
                      "over %d bytes, expected at most so many",
                      name, PARAM_TEXTS_BYTES);
}
