/*
 * test_json_reader.c - what is JSON and what is not, to the letter of RFC 8259,
 * and what is read of it.
 */
#include "wire/json_reader.h"

#include "check.h"

#include <math.h>
#include <time.h>

#define PREFIX "failed to parse the request JSON buffer: "

enum { MAX_NAMES = 100001 };
static struct json_string names[MAX_NAMES];

/* Checks a copy without a NUL behind: a read past the end is seen by the
 * sanitizer. The reader is of use for its notes alone. */
static enum roped_status check(struct json_reader *reader, const char *text,
                               size_t bytes, int max_depth,
                               struct roped_error *err)
{
    char *copy = malloc(bytes ? bytes : 1);
    memcpy(copy, text, bytes);
    json_reader_init(reader, copy, bytes, max_depth, names, MAX_NAMES);
    enum roped_status status = json_check(reader, err);
    free(copy);
    return status;
}

static enum roped_status parse(const char *text, size_t bytes,
                               struct roped_error *err)
{
    struct json_reader reader;
    return check(&reader, text, bytes, JSON_DEPTH, err);
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

TEST(nan_is_noted)
{
    static const struct {
        const char *text;
        size_t at;
    } cases[] = {{"[0]", JSON_NOWHERE},
                 {"{\"NaN\":\"Infinity\"}", JSON_NOWHERE},
                 {"[NaN]", 1},
                 {"[0,Infinity,NaN]", 3},
                 {"{\"a\":-Infinity }", 5},
                 {" NaN ", 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct json_reader reader;
        struct roped_error err;
        CHECK_OK(check(&reader, cases[i].text, strlen(cases[i].text),
                       JSON_DEPTH, &err),
                 &err);
        CHECK_INT(reader.nan, cases[i].at);
        if (cases[i].at == JSON_NOWHERE)
            continue;
        char why[112];
        snprintf(why, sizeof why,
                 PREFIX "NaN and Infinity are not valid JSON at %zu",
                 cases[i].at);
        CHECK_INT(json_refuse_nan(&reader, &err), ROPED_INVALID);
        CHECK_TEXT(err.text, why);
    }
}

TEST(v2_may_nest_to_100)
{
    char text[256];
    struct json_reader reader;
    struct roped_error err;
    for (int depth = 16; depth <= 101; depth += depth < 100 ? 84 : 1) {
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        CHECK_INT(check(&reader, text, 2 * (size_t)depth, JSON_V2_DEPTH, &err),
                  depth <= 100 ? ROPED_OK : ROPED_INVALID);
    }
    CHECK_CONTAINS(err.text, PREFIX "JSON nesting depth exceeds maximum "
                                    "allowed limit (100) at 100");
}

TEST(nan_is_spelled_one_way)
{
    static const char *const wrong[] = {
        "[nan]",       "[Nan]",  "[-NaN]", "[+Infinity]", "[Inf]",  "[-Inf]",
        "[Infinity1]", "[NaN1]", "[N",     "[-I",         "{NaN:1}"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        refuse(wrong[i], " at ");
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
    refuse("{\"a\":1,\"a\":2}", "duplicate name 'a' at 7");
    refuse("{\"\":1,\"\":2}", "duplicate name '' at 6");
    refuse("{\"\\ud83d\\ude00\":1,\"\xF0\x9F\x98\x80\":2}",
           "duplicate name '\xF0\x9F\x98\x80' at 18");
    refuse("{\"a\\/b\":1,\"a/b\":2}", "duplicate name 'a/b'");
    refuse("[[{\"x\":{\"b\":1,\"c\":2,\"\\u0062\":3}}]]", "duplicate name 'b'");
    accept("{\"a\":{\"a\":1},\"b\":{\"a\":1}}");
    accept("{\"a\":1,\"ab\":2,\"\\u0061b\\u0063\":3}");
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

TEST(bounds_the_names)
{
    /* an object's mark, its names, and those of the object inside */
    static const char text[] = "{\"a\":[{\"b\":1,\"c\":2},{\"b\":3}],\"d\":4}";
    struct json_reader reader;
    struct roped_error err;
    for (size_t room = 0; room <= 5; room++) {
        json_reader_init(&reader, text, strlen(text), JSON_DEPTH, names, room);
        CHECK_INT(json_check(&reader, &err),
                  room < 5 ? ROPED_INVALID : ROPED_OK);
        if (room < 5)
            CHECK_CONTAINS(err.text,
                           PREFIX "too many names in the objects that are open "
                                  "at ");
    }
    json_reader_init(&reader, text, strlen(text), JSON_DEPTH, NULL, 0);
    CHECK(json_skip(&reader) && reader.at == reader.end);
}

/* Ends a reading of this text that has failed at its first item. */
static enum roped_status end_early(const char *text, struct roped_error *err)
{
    struct json_reader reader;
    uint64_t size;
    json_reader_init(&reader, text, strlen(text), JSON_DEPTH, names, MAX_NAMES);
    CHECK(json_open(&reader) && json_next(&reader));
    CHECK(json_read_size(&reader, &size));
    return json_end(&reader, roped_fail(err, ROPED_NOT_FOUND, "nothing"), err);
}

TEST(a_wrong_text_is_refused_for_that_first)
{
    static const char *const texts[] = {"[1],", "[1", "[1,", "[1,2}", "[1,01]"};
    struct roped_error err;
    CHECK_INT(end_early("[1,2]", &err), ROPED_NOT_FOUND);
    CHECK_TEXT(err.text, "nothing");
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        CHECK_INT(end_early(texts[i], &err), ROPED_INVALID);
        CHECK_CONTAINS(err.text, PREFIX);
    }
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
        struct json_reader reader;
        struct roped_error err;
        CHECK_OK(check(&reader, cases[i].text, strlen(cases[i].text),
                       JSON_DEPTH, &err),
                 &err);
        CHECK_INT(reader.odd_number, cases[i].at);
    }
}

/* ---------------------------------------------------------------- reading */

/* A reader before the value of text, which has been checked. */
static struct json_reader at_value(const char *text)
{
    struct json_reader reader;
    struct roped_error err;
    json_reader_init(&reader, text, strlen(text), JSON_DEPTH, names, MAX_NAMES);
    CHECK_OK(json_check(&reader, &err), &err);
    return reader;
}

TEST(sizes_are_integers_to_2_53)
{
    static const struct {
        const char *text;
        int64_t size; /* -1: none */
    } cases[] = {{"0", 0},
                 {"4096", 4096},
                 {"4e3", 4000},
                 {"9007199254740991", 9007199254740991},
                 {"9007199254740992", -1},
                 {"1e999", -1},
                 {"NaN", -1},
                 {"-1", -1},
                 {"1.5", -1},
                 {"\"1\"", -1},
                 {"null", -1},
                 {"[1]", -1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct json_reader reader = at_value(cases[i].text);
        const unsigned char *at = reader.at;
        uint64_t size = 0;
        CHECK_INT(json_read_size(&reader, &size), cases[i].size >= 0);
        if (cases[i].size >= 0)
            CHECK_INT(size, cases[i].size);
        CHECK((reader.at == at) == (cases[i].size < 0));
    }
}

TEST(numbers_are_the_nearest_doubles)
{
    static const struct {
        const char *text;
        double value;
    } cases[] = {{"0", 0},
                 {"7", 7},
                 {"-12.5e-3", -12.5e-3},
                 {"1E+2", 100},
                 {"123456789012345", 123456789012345},
                 {"1234567890123456", 1234567890123456},
                 {"9007199254740993", 9007199254740992.0},
                 {"18446744073709551616", 0x1p64},
                 {"-7.25", -7.25},
                 {"0.1", 0.1},
                 {"0.0000000000001", 1e-13},
                 {"12345678.123456", 12345678.123456},
                 {"1234567.12345678", 1234567.12345678},
                 {"99999999999999.9", 99999999999999.9},
                 {"0.30000000000000004", 0.30000000000000004},
                 {"5e-324", 5e-324},
                 {"1e999", (double)INFINITY},
                 {"-1e999", -(double)INFINITY},
                 {"-Infinity", -(double)INFINITY}};
    double value;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct json_reader reader = at_value(cases[i].text);
        CHECK(json_read_number(&reader, &value) && value == cases[i].value);
        CHECK(reader.at == reader.end);
    }
    struct json_reader reader = at_value("-0");
    CHECK(json_read_number(&reader, &value) && value == 0 && signbit(value));
    reader = at_value("NaN");
    CHECK(json_read_number(&reader, &value) && isnan(value));
    reader = at_value("\"1\"");
    CHECK(!json_read_number(&reader, &value));
}

TEST(nan_is_told_from_what_is_too_large)
{
    struct json_reader reader = at_value("NaN");
    CHECK_TEXT(json_nan(&reader), "NaN");
    reader = at_value("Infinity");
    CHECK_TEXT(json_nan(&reader), "Infinity");
    reader = at_value("-Infinity");
    CHECK_TEXT(json_nan(&reader), "-Infinity");
    static const char *const others[] = {"1e999", "-1", "\"NaN\"", "null"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        reader = at_value(others[i]);
        CHECK(json_nan(&reader) == NULL);
    }
}

TEST(strings_lose_their_escapes)
{
    static const struct {
        const char *text, *said;
    } cases[] = {{"\"\"", ""},
                 {"\"abc\"", "abc"},
                 {"\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\/\b\f\n\r\t"},
                 {"\"\\u0041\\u00e9\\u20aC\\ud83d\\uDE00.\"",
                  "A\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80."},
                 {"\"\xC3\xA9\"", "\xC3\xA9"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct json_reader reader = at_value(cases[i].text);
        struct json_string string;
        char said[64], longer[65];
        CHECK(json_read_string(&reader, &string));
        CHECK_INT(json_copy(&string, said, sizeof said), strlen(cases[i].said));
        CHECK_TEXT(said, cases[i].said);
        CHECK(json_equals(&string, cases[i].said));
        snprintf(longer, sizeof longer, "%sx", cases[i].said);
        CHECK(!json_equals(&string, longer));
        longer[strlen(cases[i].said) / 2] = '\0';
        CHECK(json_equals(&string, longer) == (cases[i].said[0] == '\0'));
    }
}

TEST(a_copy_is_cut_where_room_ends)
{
    static const char *const texts[] = {"\"abcdef\"", "\"\\u0061bcdef\""};
    for (int i = 0; i < 2; i++) {
        struct json_reader reader = at_value(texts[i]);
        struct json_string string;
        char said[7];
        CHECK(json_read_string(&reader, &string));
        CHECK_INT(json_copy(&string, said, 4), 6);
        CHECK_TEXT(said, "abc");
        CHECK_INT(json_copy(&string, said, 6), 6);
        CHECK_TEXT(said, "abcde");
        CHECK_INT(json_copy(&string, said, 7), 6);
        CHECK_TEXT(said, "abcdef");
    }
}

TEST(items_and_members_come_in_order)
{
    struct json_reader reader =
        at_value(" [ 1 , [ ] , {\"a\" : [2] , \"b\":{}} , \"c\" ] ");
    struct json_string name;
    uint64_t size;
    CHECK(json_open(&reader) && json_next(&reader));
    CHECK(json_read_size(&reader, &size) && size == 1);
    CHECK(json_next(&reader) && json_kind(&reader) == JSON_ARRAY);
    CHECK(json_open(&reader) && !json_next(&reader));
    CHECK(json_next(&reader) && json_kind(&reader) == JSON_OBJECT);
    CHECK(json_open(&reader) && json_next_name(&reader, &name));
    CHECK(json_equals(&name, "a") && json_open(&reader));
    CHECK(json_next(&reader) && json_read_size(&reader, &size) && size == 2);
    CHECK(!json_next(&reader) && json_next_name(&reader, &name));
    CHECK(json_equals(&name, "b") && json_skip(&reader));
    CHECK(!json_next_name(&reader, &name));
    CHECK(json_next(&reader) && json_read_string(&reader, &name));
    CHECK(json_equals(&name, "c") && !json_next(&reader) && !reader.why);
    CHECK_INT(reader.depth, 0);
    struct roped_error err;
    CHECK_OK(json_end(&reader, ROPED_OK, &err), &err);
}

TEST(nothing_follows_what_cannot_be_entered)
{
    static const char text[] = "{\"a\":}}";
    struct json_reader reader;
    struct json_string name;
    struct roped_error err;
    json_reader_init(&reader, text, strlen(text), JSON_DEPTH, names, MAX_NAMES);
    CHECK(json_open(&reader) && json_next_name(&reader, &name));
    CHECK_INT(json_kind(&reader), JSON_NOTHING);
    CHECK(!json_open(&reader) && !json_next_name(&reader, &name));
    CHECK_INT(reader.depth, 1);
    CHECK_INT(json_end(&reader, ROPED_OK, &err), ROPED_INVALID);
    CHECK_TEXT(err.text, PREFIX "invalid value at 5");
}

TEST(members_are_found_by_exact_name)
{
    static const char *const wanted[] = {"name", "list", "NAME"};
    struct json_reader reader =
        at_value("{\"Name\":1,\"n\\u0061me\":\"x\",\"list\":[1],\"o\":{}}");
    struct json_reader member[3];
    char found[64];
    json_find(&reader, wanted, 3, member);
    CHECK(reader.at == reader.end);
    CHECK_TEXT(json_describe(&member[0], found, sizeof found), "'x'");
    CHECK_TEXT(json_describe(&member[1], found, sizeof found), "an array");
    CHECK_INT(json_offset(&member[1]), 33);
    CHECK_TEXT(json_describe(&member[2], found, sizeof found), "nothing");
    json_find(&member[1], wanted, 1, &member[2]);
    CHECK_INT(json_kind(&member[2]), JSON_NOTHING);
}

TEST(a_member_that_is_not_there_has_no_value)
{
    static const char text[] = "{\"a\":1}";
    const char *const wanted[] = {"b"};
    struct json_reader reader, member;
    double number;
    uint64_t size;
    json_reader_init(&reader, text, sizeof text - 1, 4, NULL, 0);
    json_find(&reader, wanted, 1, &member);
    CHECK(!json_read_size(&member, &size));
    CHECK(!json_read_number(&member, &number));
    CHECK_INT(json_kind(&member), JSON_NOTHING);
}

TEST(values_are_described_for_messages)
{
    static const struct {
        const char *text, *described;
    } cases[] = {{"-3", "-3"},
                 {"1e999", "inf"},
                 {"NaN", "nan"},
                 {"0.25", "0.25"},
                 {"\"a\\u0062c\"", "'abc'"},
                 {"\"0123456789012345678901234567890123456789\"",
                  "'01234567890123456789012345678901'"},
                 {"true", "true"},
                 {"false", "false"},
                 {"null", "null"},
                 {"[1]", "an array"},
                 {"{}", "an object"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct json_reader reader = at_value(cases[i].text);
        char found[64];
        CHECK_TEXT(json_describe(&reader, found, sizeof found),
                   cases[i].described);
    }
}
