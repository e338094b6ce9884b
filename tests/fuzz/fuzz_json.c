/*
 * fuzz_json.c - any bytes as JSON. Promises: nothing is read outside; what the
 * check accepts, cJSON's own parser accepts, and reading it again finds the
 * same values in the same order; what may nest less may nest more.
 */
#include "fuzz.h"

#include "wire/json_reader.h"

#include <cjson/cJSON.h>
#include <string.h>

enum { MAX_NAMES = 1 << 18 };
static struct json_string names[MAX_NAMES];

static void compare(struct json_reader *reader, const struct cJSON *node);

static void compare_string(const struct json_string *string, const char *text)
{
    static char copy[1 << 20];
    FUZZ_PROMISE(json_equals(string, text));
    FUZZ_PROMISE(json_copy(string, copy, sizeof copy) == strlen(text));
    FUZZ_PROMISE(strcmp(copy, text) == 0);
}

/* Goes on to where item is, or to the end where it is NULL. */
static bool next(struct json_reader *reader, bool is_object,
                 const struct cJSON *item)
{
    struct json_string name;
    if (!is_object)
        return json_next(reader);
    if (!json_next_name(reader, &name))
        return false;
    FUZZ_PROMISE(item != NULL);
    compare_string(&name, item->string);
    return true;
}

static void compare_items(struct json_reader *reader, const struct cJSON *node)
{
    bool is_object = json_kind(reader) == JSON_OBJECT;
    const struct cJSON *item = node->child;
    FUZZ_PROMISE(is_object ? cJSON_IsObject(node) : cJSON_IsArray(node));
    FUZZ_PROMISE(json_open(reader));
    for (; next(reader, is_object, item); item = item->next) {
        FUZZ_PROMISE(item != NULL);
        compare(reader, item);
    }
    FUZZ_PROMISE(item == NULL && !reader->why);
}

static void compare(struct json_reader *reader, const struct cJSON *node)
{
    struct json_reader copy = *reader;
    struct json_string string;
    double number;
    switch (json_kind(reader)) {
    case JSON_OBJECT:
    case JSON_ARRAY:
        compare_items(reader, node);
        FUZZ_PROMISE(json_skip(&copy) && copy.at == reader->at);
        break;
    case JSON_STRING:
        FUZZ_PROMISE(cJSON_IsString(node) && json_read_string(reader, &string));
        compare_string(&string, node->valuestring);
        break;
    case JSON_NUMBER:
        FUZZ_PROMISE(cJSON_IsNumber(node) && json_read_number(reader, &number));
        FUZZ_PROMISE(number == node->valuedouble);
        break;
    default:
        FUZZ_PROMISE(json_kind(reader) == JSON_TRUE    ? cJSON_IsTrue(node)
                     : json_kind(reader) == JSON_FALSE ? cJSON_IsFalse(node)
                                                       : cJSON_IsNull(node));
        FUZZ_PROMISE(json_skip(reader));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t bytes)
{
    struct roped_error err;
    struct json_reader reader, deep;
    const char *text = (const char *)input;
    json_reader_init(&deep, text, bytes, JSON_V2_DEPTH, names, MAX_NAMES);
    json_reader_init(&reader, text, bytes, JSON_DEPTH, names, MAX_NAMES);
    enum roped_status deep_status = json_check(&deep, &err);
    enum roped_status status = json_check(&reader, &err);
    FUZZ_PROMISE(!status || is_refusal(status));
    FUZZ_PROMISE(!deep_status || is_refusal(deep_status));
    if (deep_status || deep.nan != JSON_NOWHERE)
        return 0;
    struct cJSON *theirs = cJSON_ParseWithLength(text, bytes);
    FUZZ_PROMISE(theirs != NULL);
    compare(&deep, theirs);
    cJSON_Delete(theirs);
    return 0;
}
