/*
 * test_json.c - trees of documents: the check comes first, cJSON builds what
 * passed it.
 */
#include "wire/json.h"

#include "check.h"

#include <cjson/cJSON.h>

static const struct cJSON *parse(const char *text)
{
    struct roped_error err = {0};
    const struct cJSON *tree = NULL;
    CHECK_OK(json_parse(text, strlen(text), &tree, &err), &err);
    return tree;
}

static void refuse(const char *text, const char *why)
{
    struct roped_error err = {0};
    const struct cJSON *tree;
    CHECK_INT(json_parse(text, strlen(text), &tree, &err), ROPED_INVALID);
    CHECK_CONTAINS(err.text, "failed to parse the JSON document: ");
    CHECK_CONTAINS(err.text, why);
}

TEST(what_cjson_alone_would_take_is_refused)
{
    refuse("", "it is empty at 0");
    refuse("{\"a\":1,\"a\":2}", "duplicate name 'a'");
    refuse("[01]", "leading zero at 2");
    refuse("[\"\x01\"]", "control character in a string at 2");
    refuse("{} {}", "something follows the value at 3");
    refuse("[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]", "nested over 16 deep at 16");
    refuse("[NaN]", "NaN and Infinity are not valid JSON at 1");
    refuse("[-Infinity]", "NaN and Infinity are not valid JSON at 1");
}

TEST(sizes_are_integers_to_2_53)
{
    static const struct {
        const char *text;
        int64_t size; /* -1: none */
    } cases[] = {{"0", 0},
                 {"4096", 4096},
                 {"9007199254740991", 9007199254740991},
                 {"9007199254740992", -1},
                 {"1e999", -1},
                 {"-1", -1},
                 {"1.5", -1},
                 {"\"1\"", -1},
                 {"null", -1},
                 {"[1]", -1}};
    uint64_t size = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct cJSON *tree = parse(cases[i].text);
        CHECK_INT(json_is_size(tree, &size), cases[i].size >= 0);
        if (cases[i].size >= 0)
            CHECK_INT(size, cases[i].size);
        json_free(tree);
    }
    CHECK(!json_is_size(NULL, &size));
}

TEST(members_are_found_by_exact_name)
{
    const struct cJSON *tree =
        parse("{\"Name\":1,\"name\":\"x\",\"list\":[1]}");
    char found[64];
    CHECK_TEXT(json_text(json_member(tree, "name"), found, sizeof found),
               "'x'");
    CHECK_TEXT(json_text(json_member(tree, "Name"), found, sizeof found), "1");
    CHECK_TEXT(json_text(json_member(tree, "list"), found, sizeof found),
               "an array");
    CHECK(!json_member(tree, "NAME"));
    CHECK(!json_member(json_member(tree, "list"), "name"));
    CHECK(!json_member(NULL, "name"));
    CHECK_TEXT(json_text(NULL, found, sizeof found), "nothing");
    json_free(tree);
    json_free(NULL);
}
