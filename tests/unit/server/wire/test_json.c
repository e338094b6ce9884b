/*
 * test_json.c - what is JSON and what is not, to the letter of RFC 8259.
 */
#include "wire/json.h"

#include "check.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <roped/status.h>
#include <time.h>

#define PREFIX "failed to parse the request JSON buffer: "

static enum roped_status parse(const char *text, size_t bytes,
                               struct roped_error *err)
{
    const struct cJSON *tree = NULL;
    /* no NUL behind: a read past the end is seen by the sanitizer */
    char *copy = malloc(bytes ? bytes : 1);
    memcpy(copy, text, bytes);
    enum roped_status status = json_parse(copy, bytes, &tree, err);
    free(copy);
    if ((status == ROPED_OK) != (tree != NULL))
        CHECK_FAIL("status %d with tree %p", (int)status, (void *)tree);
    json_free(tree);
    return status;
}

static void accept(const char *text)
{
    struct roped_error err;
    if (parse(text, strlen(text), &err))
        CHECK_FAIL("%s refused: %s", text, err.text);
}

static void refuse_bytes(const char *text, size_t bytes, const char *why)
{
    struct roped_error err = {0};
    if (parse(text, bytes, &err) != ROPED_INVALID) {
        CHECK_FAIL("%s not refused as invalid", text);
        return;
    }
    CHECK_CONTAINS(err.text, PREFIX);
    CHECK_CONTAINS(err.text, why);
}

static void refuse(const char *text, const char *why)
{
    refuse_bytes(text, strlen(text), why);
}

TEST(accepts_what_is_json)
{
    /* the ends of each length of UTF-8, and of what surrogates leave */
    static const char utf8[] =
        "\"\xC2\x80\xE0\xA0\x80\xED\x9F\xBF\xEE\x80\x80\xF0\x90\x80\x80"
        "\xF4\x8F\xBF\xBF\x7F\"";
    static const char *const texts[] = {"{}",
                                        "[]",
                                        "0",
                                        "-0",
                                        "1.5e+10",
                                        "1E-3",
                                        "true",
                                        "false",
                                        "null",
                                        "\"\"",
                                        " \t\r\n[ 1 , {\"a\" : [ ] } ] \n",
                                        "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\"",
                                        "\"\\ud83d\\ude00\"",
                                        "{\"a\":1,\"A\":2}",
                                        "123456789012345678901234567890"};
    accept(utf8);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        accept(texts[i]);
}

TEST(refuses_broken_structure)
{
    refuse("", "empty at 0");
    refuse("  ", "unexpected end at 2");
    refuse("[1,]", "invalid value at 3");
    refuse("[1", "at 2");
    refuse("[1 2]", "expected ',' or a closing bracket at 3");
    refuse("{\"a\"}", "expected ':' at 4");
    refuse("{\"a\":1,}", "expected a name at 7");
    refuse("{a:1}", "expected a name at 1");
    refuse("{\"a\":1]", "at 6");
    refuse("[]x", "something follows the value at 2");
    refuse("[] []", "something follows");
    refuse("tru", "invalid value");
    refuse("nul", "invalid value");
    refuse("'a'", "invalid value at 0");
    refuse("/**/1", "invalid value");
    refuse("\xEF\xBB\xBF{}", "invalid value at 0"); /* byte order mark */
    refuse_bytes("{}\0", 3, "something follows");
    refuse_bytes("[\0]", 3, "invalid");
}

TEST(refuses_numbers_that_cjson_takes)
{
    refuse("[01]", "leading zero at 2");
    refuse("[-01]", "leading zero");
    refuse("[5.]", "invalid number at 3");
    refuse("[.5]", "invalid value");
    refuse("[+1]", "invalid value");
    refuse("[1e]", "invalid number");
    refuse("[-]", "invalid number");
    refuse("[0x10]", "at 2");
    refuse("[1.2.3]", "at 4");
    refuse("[0.10000000000000000000000000000000000000000000000000000000000001]",
           "over 63 characters");
}

TEST(nan_is_no_json)
{
    refuse("[NaN]", "NaN and Infinity are no JSON at 1");
    refuse("[Infinity]", "no JSON");
    refuse("[-Infinity]", "no JSON");
}

static const struct cJSON *parse_v2(const char *text, struct roped_error *err)
{
    const struct cJSON *tree = NULL;
    size_t bytes = strlen(text);
    char *copy = malloc(bytes);
    memcpy(copy, text, bytes);
    enum roped_status status = json_parse_v2(copy, bytes, &tree, err);
    free(copy);
    CHECK_INT(status, tree ? ROPED_OK : ROPED_INVALID);
    return tree;
}

TEST(nan_is_a_number_for_those_who_ask)
{
    /* strings that look like it, escapes and quotes stay what they are */
    static const char text[] =
        "{\"I\":[NaN,Infinity,-Infinity,-1, NaN ],\"N\\\"NaN\":\"NaN\","
        "\"\\\\\":[[Infinity]],\"-Infinity\":\"\\u00ff\\u00fe\"}";
    struct roped_error err;
    double value;
    const struct cJSON *tree = parse_v2(text, &err);
    const struct cJSON *list = json_member(tree, "I");
    CHECK_INT(cJSON_GetArraySize(list), 5);
    CHECK(json_is_number(cJSON_GetArrayItem(list, 0), &value) && isnan(value));
    CHECK(json_is_number(cJSON_GetArrayItem(list, 1), &value) && isinf(value) &&
          value > 0);
    CHECK(json_is_number(cJSON_GetArrayItem(list, 2), &value) && isinf(value) &&
          value < 0);
    CHECK(json_is_number(cJSON_GetArrayItem(list, 3), &value));
    CHECK_DOUBLE(value, -1.0, 0);
    CHECK(json_is_number(cJSON_GetArrayItem(list, 4), &value) && isnan(value));
    CHECK_TEXT(json_member(tree, "N\"NaN")->valuestring, "NaN");
    CHECK_TEXT(json_member(tree, "-Infinity")->valuestring, "\u00ff\u00fe");
    list = json_member(tree, "\\")->child;
    CHECK(json_is_number(list->child, &value) && isinf(value));
    json_free(tree);
}

TEST(infinity_is_not_a_number_that_is_too_large)
{
    struct roped_error err;
    double value;
    const struct cJSON *tree = parse_v2("[1e999,-1e999,\"NaN\",null]", &err);
    for (int i = 0; i < 4; i++)
        CHECK(!json_is_number(cJSON_GetArrayItem(tree, i), &value));
    CHECK(!json_is_number(NULL, &value));
    json_free(tree);
}

TEST(v2_may_nest_to_100)
{
    char text[256];
    struct roped_error err;
    for (int depth = 16; depth <= 101; depth += depth < 100 ? 84 : 1) {
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        text[2 * depth] = '\0';
        const struct cJSON *tree = parse_v2(text, &err);
        CHECK_INT(tree != NULL, depth <= 100);
        json_free(tree);
    }
    CHECK_CONTAINS(err.text, PREFIX "JSON nesting depth exceeds maximum "
                                    "allowed limit (100) at 100");
}

TEST(nan_is_spelled_one_way)
{
    static const char *const wrong[] = {
        "[nan]",       "[Nan]",  "[-NaN]", "[+Infinity]", "[Inf]",  "[-Inf]",
        "[Infinity1]", "[NaN1]", "[N",     "[-I",         "{NaN:1}"};
    struct roped_error err;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const struct cJSON *tree = parse_v2(wrong[i], &err);
        if (tree)
            CHECK_FAIL("%s accepted", wrong[i]);
        json_free(tree);
    }
}

TEST(refuses_bad_strings)
{
    refuse("\"abc", "unterminated string at 4");
    refuse("\"a\nb\"", "control character in a string at 2");
    refuse("\"\\x\"", "invalid escape");
    refuse("\"\\u12g4\"", "invalid \\u escape");
    refuse("\"\\u12", "invalid \\u escape");
    refuse("\"\\", "invalid escape");
    refuse("\"\\u0000\"", "NUL in a string");
    refuse("\"\\ud83d\"", "lone surrogate");
    refuse("\"\\ud83dx\"", "lone surrogate");
    refuse("\"\\ud83d\\n\"", "lone surrogate");
    refuse("\"\\ud83d\\u0041\"", "lone surrogate");
    refuse("\"\\ude00\"", "lone surrogate");
    refuse("\"\\ud83d\\", "lone surrogate");
    refuse_bytes("\"\\\0\"", 4, "invalid escape");
}

TEST(refuses_what_is_not_utf8)
{
    static const char *const bad[] = {"\x80",
                                      "\xC0\xAF",
                                      "\xC1\xBF",
                                      "\xC3",
                                      "\xE0\x9F\xBF",
                                      "\xE2\x82",
                                      "\xED\xA0\x80",
                                      "\xF0\x8F\xBF\xBF",
                                      "\xF4\x90\x80\x80",
                                      "\xF5\x80\x80\x80",
                                      "\xFF"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[16];
        snprintf(text, sizeof text, "\"%s\"", bad[i]);
        refuse(text, "invalid UTF-8 at 1");
    }
}

TEST(refuses_control_characters_in_names)
{
    accept("{\"a\":\"\\n\"}");
    refuse("{\"a\\n\":1}", "control character in a name");
    refuse("{\"a\\u001f\":1}", "control character in a name");
    refuse("{\"a\\u007f\":1}", "control character in a name");
    refuse("{\"a\x7F\":1}", "control character in a name");
    refuse("{\"a\\u0000\":1}", "NUL");
}

TEST(refuses_duplicate_names_however_written)
{
    refuse("{\"a\":1,\"a\":2}", "duplicate name 'a'");
    refuse("[[{\"x\":{\"b\":1,\"c\":2,\"\\u0062\":3}}]]", "duplicate name 'b'");
    accept("{\"a\":{\"a\":1},\"b\":{\"a\":1}}");
}

/* An object of n members; the last has the name of that at copied, or -1. */
static char *wide_object(int n, int copied, size_t *bytes)
{
    char *text = malloc((size_t)n * 16 + 16), *at = text;
    *at++ = '{';
    for (int i = 0; i < n; i++)
        at += snprintf(at, 16, "%s\"%x\":0", i ? "," : "",
                       copied >= 0 && i == n - 1 ? copied : i);
    *at++ = '}';
    *bytes = (size_t)(at - text);
    return text;
}

TEST(finds_duplicates_among_many_in_little_time)
{
    struct roped_error err;
    size_t bytes;
    for (int n = 15; n <= 18; n++) {
        char *text = wide_object(n, -1, &bytes);
        CHECK_OK(parse(text, bytes, &err), &err);
        free(text);
        for (int copied = 0; copied < n - 1; copied++) {
            char why[32];
            snprintf(why, sizeof why, "duplicate name '%x'", copied);
            text = wide_object(n, copied, &bytes);
            refuse_bytes(text, bytes, why);
            free(text);
        }
    }
    char *text = wide_object(100000, 99998, &bytes);
    clock_t start = clock();
    refuse_bytes(text, bytes, "duplicate name '1869e'");
    /* all pairs would be 5e9 comparisons: half a minute and more */
    CHECK(clock() - start < 5 * CLOCKS_PER_SEC);
    free(text);
}

TEST(bounds_the_nesting)
{
    char text[64];
    for (int depth = 16; depth <= 17; depth++) {
        memset(text, '[', (size_t)depth);
        text[depth] = '1';
        memset(text + depth + 1, ']', (size_t)depth);
        text[2 * depth + 1] = '\0';
        if (depth == 16)
            accept(text);
        else
            refuse(text, "nested over 16 deep at 16");
    }
    /* siblings do not add up */
    accept("[[],[],[],[],[],[],[],[],[],[],[],[],[],[],[],[],[],[],[],[]]");
}

TEST(notes_numbers_that_are_not_sizes)
{
    static const struct {
        const char *text;
        size_t at;
    } cases[] = {{"[0,12,9007199254740991]", JSON_NOWHERE},
                 {"[\"1.5\",{\"-1\":2}]", JSON_NOWHERE},
                 {"[1,2.0]", 3},
                 {"[1,2e0,3.0]", 3},
                 {"[-0]", 1},
                 {"{\"a\":-1}", 5}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct roped_error err;
        const struct cJSON *tree;
        size_t at;
        CHECK_OK(json_parse_sizes(cases[i].text, strlen(cases[i].text), &tree,
                                  &at, &err),
                 &err);
        CHECK_INT(at, cases[i].at);
        json_free(tree);
    }
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
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct roped_error err;
        const struct cJSON *tree;
        uint64_t size = 0;
        CHECK_OK(json_parse(cases[i].text, strlen(cases[i].text), &tree, &err),
                 &err);
        CHECK_INT(json_is_size(tree, &size), cases[i].size >= 0);
        if (cases[i].size >= 0)
            CHECK_INT(size, cases[i].size);
        json_free(tree);
    }
    uint64_t size;
    CHECK(!json_is_size(NULL, &size));
}

TEST(members_are_found_by_exact_name)
{
    static const char text[] = "{\"Name\":1,\"name\":\"x\",\"list\":[1]}";
    struct roped_error err;
    const struct cJSON *tree;
    char found[64];
    CHECK_OK(json_parse(text, strlen(text), &tree, &err), &err);
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
}

/* The same nodes as cJSON's own parser makes, links and all. */
static void check_same(const struct cJSON *a, const struct cJSON *b)
{
    const struct cJSON *last = NULL;
    for (; a && b; last = a, a = a->next, b = b->next) {
        CHECK_INT(a->type, b->type);
        CHECK_INT(a->valueint, b->valueint);
        CHECK(memcmp(&a->valuedouble, &b->valuedouble, sizeof(double)) == 0);
        CHECK(!a->string == !b->string && !a->valuestring == !b->valuestring);
        if (a->string)
            CHECK_TEXT(a->string, b->string);
        if (a->valuestring)
            CHECK_TEXT(a->valuestring, b->valuestring);
        if (last)
            CHECK(a->prev == last);
        check_same(a->child, b->child);
        if (a->child)
            CHECK(a->child->prev->next == NULL);
    }
    CHECK(!a && !b);
}

TEST(the_tree_is_the_one_that_cjson_builds)
{
    static const char *const texts[] = {
        "0",
        "-0",
        "7",
        "123456789012345",
        "1234567890123456",
        "9007199254740993",
        "18446744073709551616",
        "2147483647",
        "2147483648",
        "-2147483649",
        "0.1",
        "-12.5e-3",
        "1E+2",
        "1e999",
        "-1e999",
        "5e-324",
        "true",
        " false ",
        "null",
        "\"\"",
        "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"",
        "\"\\u0041\\u00e9\\u20aC\\ud83d\\uDE00.\"",
        "\"\xC3\xA9 \xF0\x9F\x98\x80\"",
        "[]",
        "{}",
        " [ 1 , [ ] , { } , \"a\" ] ",
        "{\"a\":{\"b\":[1,2,3],\"\\u0063\":null},\"d\" : true , \"\":-1}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct roped_error err = {.text = ""};
        const struct cJSON *tree;
        struct cJSON *theirs = cJSON_Parse(texts[i]);
        CHECK_OK(json_parse(texts[i], strlen(texts[i]), &tree, &err), &err);
        check_same(tree, theirs);
        json_free(tree);
        cJSON_Delete(theirs);
    }
}

int main(void)
{
    RUN(the_tree_is_the_one_that_cjson_builds);
    RUN(accepts_what_is_json);
    RUN(refuses_broken_structure);
    RUN(refuses_numbers_that_cjson_takes);
    RUN(nan_is_no_json);
    RUN(nan_is_a_number_for_those_who_ask);
    RUN(infinity_is_not_a_number_that_is_too_large);
    RUN(v2_may_nest_to_100);
    RUN(nan_is_spelled_one_way);
    RUN(refuses_bad_strings);
    RUN(refuses_what_is_not_utf8);
    RUN(refuses_control_characters_in_names);
    RUN(refuses_duplicate_names_however_written);
    RUN(finds_duplicates_among_many_in_little_time);
    RUN(bounds_the_nesting);
    RUN(notes_numbers_that_are_not_sizes);
    RUN(sizes_are_integers_to_2_53);
    RUN(members_are_found_by_exact_name);
    return check_done();
}
