/*
 * fuzz_json.c - any bytes as JSON. Promises: nothing is read outside; the tree
 * of what is accepted is, node for node, the one that cJSON's own parser makes
 * of it; where NaN may be, it is accepted too.
 */
#include "fuzz.h"

#include "wire/json.h"

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <string.h>

static bool is_same_text(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

static void compare(const struct cJSON *a, const struct cJSON *b)
{
    for (; a && b; a = a->next, b = b->next) {
        FUZZ_PROMISE(a->type == b->type);
        FUZZ_PROMISE(a->valueint == b->valueint);
        FUZZ_PROMISE(memcmp(&a->valuedouble, &b->valuedouble,
                            sizeof a->valuedouble) == 0);
        FUZZ_PROMISE(is_same_text(a->string, b->string));
        FUZZ_PROMISE(is_same_text(a->valuestring, b->valuestring));
        FUZZ_PROMISE(!a->next || a->next->prev == a);
        FUZZ_PROMISE(!a->child || !a->child->prev->next);
        compare(a->child, b->child);
    }
    FUZZ_PROMISE(!a && !b);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t bytes)
{
    struct roped_error err;
    const struct cJSON *tree;
    struct cJSON *theirs;
    const char *text = (const char *)input;
    enum roped_status status = json_parse_v2(text, bytes, &tree, &err);
    FUZZ_PROMISE(status == ROPED_OK || status == ROPED_INVALID);
    bool is_v2 = status == ROPED_OK;
    json_free(tree);
    status = json_parse(text, bytes, &tree, &err);
    FUZZ_PROMISE(status == ROPED_OK || status == ROPED_INVALID);
    if (status)
        return 0;
    FUZZ_PROMISE(is_v2);
    theirs = cJSON_ParseWithLength(text, bytes);
    FUZZ_PROMISE(theirs != NULL);
    compare(tree, theirs);
    json_free(tree);
    FUZZ_PROMISE(json_parse(text, bytes, &tree, &err) == ROPED_OK); /* kept */
    compare(tree, theirs);
    json_free(tree);
    cJSON_Delete(theirs);
    return 0;
}
