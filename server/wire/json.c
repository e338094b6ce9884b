/*
 * json.c - cJSON behind the strict check.
 */
#include "wire/json.h"

#include "wire/json_reader.h"

#include <roped/number.h>

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>

enum { LEAST_MEMBER = 4 }; /* bytes: "":0 */

/* Strict JSON without NaN? names has room for room of them. */
static enum roped_status check(const char *text, size_t bytes, bool is_document,
                               struct json_string *names, size_t room,
                               struct roped_error *err)
{
    struct json_reader reader;
    json_reader_init(&reader, text, bytes, JSON_DEPTH, names, room);
    if (is_document)
        reader.subject = "the JSON document";
    enum roped_status status = json_check(&reader, err);
    if (!status && reader.nan != JSON_NOWHERE)
        status = json_refuse_nan(&reader, err);
    return status;
}

static enum roped_status parse(const char *text, size_t bytes, bool is_document,
                               const struct cJSON **out,
                               struct roped_error *err)
{
    size_t room = bytes / LEAST_MEMBER + JSON_DEPTH;
    struct json_string *names = malloc(room * sizeof *names);
    enum roped_status status = ROPED_OK;
    *out = NULL;
    if (names)
        status = check(text, bytes, is_document, names, room, err);
    if (names && !status)
        *out = cJSON_ParseWithLength(text, bytes);
    free(names);
    if (!status && !*out)
        status = roped_fail(err, ROPED_NO_MEMORY,
                            "no memory for %zu bytes of JSON", bytes);
    return status;
}

enum roped_status json_parse(const char *text, size_t bytes,
                             const struct cJSON **out, struct roped_error *err)
{
    return parse(text, bytes, true, out, err);
}

enum roped_status json_parse_request(const char *text, size_t bytes,
                                     const struct cJSON **out,
                                     struct roped_error *err)
{
    return parse(text, bytes, false, out, err);
}

void json_free(const struct cJSON *tree)
{
    cJSON_Delete((struct cJSON *)tree);
}

const struct cJSON *json_member(const struct cJSON *object, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

bool json_is_size(const struct cJSON *node, uint64_t *out)
{
    if (!cJSON_IsNumber(node) || !(node->valuedouble >= 0) ||
        node->valuedouble > 9007199254740991.0)
        return false;
    *out = (uint64_t)node->valuedouble;
    return (double)*out == node->valuedouble;
}

const char *json_text(const struct cJSON *node, char *text, size_t text_bytes)
{
    if (cJSON_IsNumber(node))
        roped_print(text, text_bytes, "%.15g", node->valuedouble);
    else if (cJSON_IsString(node))
        snprintf(text, text_bytes, "'%.32s'", node->valuestring);
    else
        snprintf(text, text_bytes, "%s",
                 !node                  ? "nothing"
                 : cJSON_IsNull(node)   ? "null"
                 : cJSON_IsTrue(node)   ? "true"
                 : cJSON_IsFalse(node)  ? "false"
                 : cJSON_IsObject(node) ? "an object"
                                        : "an array");
    return text;
}
