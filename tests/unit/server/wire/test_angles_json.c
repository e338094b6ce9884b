/*
 * test_angles_json.c - rotary tables in roped's own names: what is read, what
 * is refused and with which words, what is written back.
 */
#include "wire/angles_json.h"

#include "check.h"
#include "refusal.h"
#include "wire/json.h"

#include <cjson/cJSON.h>
#include <math.h>

static enum roped_status read_table(const char *json,
                                    struct angles_json_set *sets, int *n,
                                    struct roped_error *err)
{
    err->text[0] = '\0';
    return angles_json_read("t", NULL, json, strlen(json), sets, n, err);
}

static void refuse(const char *json, const char *why)
{
    struct angles_json_set sets[ANGLES_JSON_MAX_SETS];
    struct roped_error err;
    int n;
    if (!is_refusal(read_table(json, sets, &n, &err)))
        CHECK_FAIL("%s: not refused as invalid (%s)", json, err.text);
    else
        CHECK_CONTAINS(err.text, why);
}

TEST(a_table_of_theta_alone_is_plain_rope)
{
    struct angles_json_set sets[ANGLES_JSON_MAX_SETS];
    struct roped_error err;
    int n = 0;
    CHECK_OK(read_table("{\"theta\":10000}", sets, &n, &err), &err);
    CHECK_INT(n, 1);
    CHECK_TEXT(sets[0].set.name, "t");
    CHECK_DOUBLE(sets[0].set.params.theta, 10000, 0);
    CHECK_INT(sets[0].set.params.scaling, ROPED_SCALING_NONE);
    CHECK_INT(sets[0].set.params.truncate, 1);
    CHECK(isnan(sets[0].set.params.factor));
    CHECK(sets[0].set.params.max_position == ROPED_UNSET_INT);
    CHECK_INT(sets[0].set.rotary_dim, 0);
    CHECK_INT(sets[0].set.rows, 0);
    angles_json_fini(&sets[0]);
}

TEST(every_name_is_read)
{
    static const char json[] =
        "{\"theta\":500000,\"scaling\":\"yarn\",\"factor\":4.5,"
        "\"beta_fast\":30,\"beta_slow\":2,\"mscale\":0.7,"
        "\"mscale_all_dim\":0.8,\"attention_factor\":1.1,\"truncate\":false,"
        "\"max_position\":4096,\"original_max_position\":1024,"
        "\"mrope_section\":[4,2,2],\"mrope_interleaved\":true,"
        "\"angle_precision\":\"f64\",\"style\":\"gptj\",\"head_dim\":32,"
        "\"rotary_dim\":16,"
        "\"rows\":100}";
    struct angles_json_set sets[ANGLES_JSON_MAX_SETS];
    struct roped_error err;
    int n;
    CHECK_OK(read_table(json, sets, &n, &err), &err);
    const struct roped_angle_set *set = &sets[0].set;
    CHECK_DOUBLE(set->params.theta, 500000, 0);
    CHECK_INT(set->params.scaling, ROPED_SCALING_YARN);
    CHECK_DOUBLE(set->params.factor, 4.5, 0);
    CHECK_DOUBLE(set->params.beta_fast, 30, 0);
    CHECK_DOUBLE(set->params.beta_slow, 2, 0);
    CHECK_DOUBLE(set->params.mscale, 0.7, 0);
    CHECK_DOUBLE(set->params.mscale_all_dim, 0.8, 0);
    CHECK_DOUBLE(set->params.attention_factor, 1.1, 0);
    CHECK_INT(set->params.truncate, 0);
    CHECK_INT(set->params.max_position, 4096);
    CHECK_INT(set->params.original_max_position, 1024);
    CHECK_INT(set->params.mrope_section.count, 3);
    CHECK_INT(set->params.mrope_section.value[0], 4);
    CHECK_INT(set->params.mrope_interleaved, 1);
    CHECK_INT(set->params.angle_precision, ROPED_ANGLE_F64);
    CHECK_INT(set->style, 1);
    CHECK_INT(set->head_dim, 32);
    CHECK_INT(set->rotary_dim, 16);
    CHECK_INT(set->rows, 100);
    angles_json_fini(&sets[0]);
}

static int64_t rows_of(const char *json)
{
    struct angles_json_set sets[ANGLES_JSON_MAX_SETS];
    struct roped_error err;
    int n;
    CHECK_OK(read_table(json, sets, &n, &err), &err);
    int64_t rows = sets[0].set.rows;
    angles_json_fini(&sets[0]);
    return rows;
}

TEST(rows_default_to_what_the_model_can_reach)
{
    CHECK_INT(rows_of("{\"max_position\":4096}"), 4096);
    CHECK_INT(rows_of("{\"max_position\":4096,\"rows\":8}"), 8);
    CHECK_INT(rows_of("{\"scaling\":\"yarn\",\"factor\":4,\"max_position\":"
                      "32768,\"original_max_position\":32768}"),
              131072);
    CHECK_INT(rows_of("{\"scaling\":\"yarn\",\"factor\":40,\"max_position\":"
                      "163840,\"original_max_position\":4096}"),
              163840);
    CHECK_INT(rows_of("{\"scaling\":\"linear\",\"factor\":2.5,"
                      "\"max_position\":1001}"),
              2503);
    CHECK_INT(rows_of("{\"scaling\":\"linear\",\"factor\":1e9,"
                      "\"max_position\":4096}"),
              1 << 24);
    CHECK_INT(rows_of("{\"scaling\":\"linear\",\"factor\":2}"), 0);
}

TEST(factor_lists_are_kept)
{
    struct angles_json_set sets[ANGLES_JSON_MAX_SETS];
    struct roped_error err;
    int n;
    CHECK_OK(read_table("{\"scaling\":\"longrope\",\"max_position\":64,"
                        "\"original_max_position\":16,\"rotary_dim\":4,"
                        "\"short_factor\":[1,1.5],\"long_factor\":[2,4]}",
                        sets, &n, &err),
             &err);
    const struct roped_longrope_factors *factors = &sets[0].set.factors;
    CHECK_INT(factors->count, 2);
    CHECK_DOUBLE(factors->short_factor[1], 1.5, 0);
    CHECK_DOUBLE(factors->long_factor[1], 4, 0);
    angles_json_fini(&sets[0]);
    CHECK(sets[0].factors == NULL);
}

TEST(refuses_by_name)
{
    refuse("[]", "a table is a JSON object");
    refuse("{}", "a table of nothing, expected parameters such as 'theta'");
    refuse("{", "failed to parse the JSON document: ");
    refuse("{\"thet\":1}",
           "unknown parameter 'thet' of a table; did you mean 'theta'?");
    refuse("{\"style\":\"half\"}", "parameter 'style': 'half', expected one");
    refuse("{\"mrope_section\":[1,2],\"mrope_turns\":2}",
           "'mrope_section': 1 and 2, expected equal counts");
    refuse("{\"offset\":1}", "unknown parameter 'offset' of a table");
    refuse("{\"angles\":\"table\"}", "unknown parameter 'angles' of a table");
    refuse("{\"theta\":-1}", "parameter 'theta': -1, expected above 0");
    refuse("{\"theta\":\"x\"}", "parameter 'theta': 'x'");
    refuse("{\"theta\":null}", "parameter 'theta': null");
    refuse("{\"scaling\":\"su\"}", "parameter 'scaling': 'su', expected one");
    refuse("{\"rows\":0}", "parameter 'rows': 0, expected an integer of 1");
    refuse("{\"rows\":16777217}", "parameter 'rows': 16777217");
    refuse("{\"rows\":1.5}", "parameter 'rows': 1.5");
    refuse("{\"max_position\":0}", "parameter 'max_position': 0");
}

TEST(refuses_widths_that_disagree)
{
    refuse("{\"rotary_dim\":7}", "parameter 'rotary_dim': 7, expected an even");
    refuse("{\"head_dim\":5}", "parameter 'rotary_dim': 5, expected an even");
    refuse("{\"head_dim\":64,\"rotary_dim\":80}",
           "parameter 'rotary_dim': 80, expected at most head_dim = 64");
    refuse("{\"mrope_section\":[3]}",
           "parameter 'mrope_section': 1 count, expected 2 to 4");
    refuse("{\"mrope_section\":[1,2],\"mrope_axes\":[0,1,2]}",
           "parameter 'mrope_axes': 3 rows, expected 2");
    refuse("{\"mrope_section\":[1,2],\"mrope_axes\":[1,2]}",
           "parameter 'mrope_axes': row 2, expected 0 to 1");
    refuse("{\"mrope_section\":[1,2,3],\"rotary_dim\":16}",
           "parameter 'mrope_section': sum 6, expected rotary_dim/2 = 8");
    refuse("{\"scaling\":\"longrope\",\"original_max_position\":4,"
           "\"rotary_dim\":8,\"short_factor\":[1,1],\"long_factor\":[1,1]}",
           "parameter 'short_factor': 2 numbers, expected rotary_dim/2 = 4");
}

TEST(refuses_what_its_variant_misses)
{
    refuse("{\"scaling\":\"linear\"}", "missing parameter 'factor'");
    refuse("{\"scaling\":\"dynamic\",\"factor\":2}",
           "missing parameter 'max_position'");
    refuse("{\"scaling\":\"yarn\",\"factor\":2}",
           "missing parameter 'original_max_position'");
    refuse("{\"scaling\":\"llama3\",\"factor\":2}", "missing parameter");
    refuse("{\"scaling\":\"longrope\",\"original_max_position\":4}",
           "short_factor");
}

TEST(refuses_bad_factor_lists)
{
    refuse("{\"short_factor\":[1]}", "1 and 0 numbers, expected two lists");
    refuse("{\"short_factor\":[1],\"long_factor\":[1,2]}", "1 and 2 numbers");
    refuse("{\"short_factor\":[],\"long_factor\":[]}", "0 and 0 numbers");
    refuse("{\"short_factor\":2,\"long_factor\":[1]}", "two lists");
    refuse("{\"short_factor\":[1,0],\"long_factor\":[1,2]}",
           "parameter 'short_factor': 0 at index 1");
    refuse("{\"short_factor\":[1,2],\"long_factor\":[1,1e39]}",
           "parameter 'long_factor': 1e+39 at index 1");
    refuse("{\"short_factor\":[1,2],\"long_factor\":[\"1\",2]}",
           "parameter 'long_factor': '1' at index 0");
}

TEST(names_are_bounded)
{
    struct angles_json_set sets[ANGLES_JSON_MAX_SETS];
    struct roped_error err;
    char name[ROPED_NAME_BYTES + 1];
    int n;
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    CHECK_INT(
        angles_json_read(name, "neox", "{\"rows\":1}", 10, sets, &n, &err),
        ROPED_INVALID);
    CHECK_CONTAINS(err.text, "found 64");
    CHECK_INT(n, 0);
    CHECK_OK(
        angles_json_read(name + 1, "neox", "{\"rows\":1}", 10, sets, &n, &err),
        &err);
    CHECK_TEXT(sets[0].set.name, name + 1);
    angles_json_fini(&sets[0]);
    CHECK_INT(angles_json_read("", "neox", "{\"rows\":1}", 10, sets, &n, &err),
              ROPED_INVALID);
}

static void check_written(const char *json, const char *expected)
{
    struct angles_json_set sets[ANGLES_JSON_MAX_SETS];
    struct roped_error err;
    struct buffer buffer;
    const struct cJSON *tree;
    int n;
    CHECK_OK(read_table(json, sets, &n, &err), &err);
    buffer_init(&buffer);
    angles_json_write(&buffer, &sets[0].set, "", 77);
    CHECK_TEXT(buffer.text, expected);
    CHECK_OK(json_parse(buffer.text, buffer.bytes, &tree, &err), &err);
    json_free(tree);
    buffer_fini(&buffer);
    angles_json_fini(&sets[0]);
}

TEST(writes_whose_it_is)
{
    struct angles_json_set sets[ANGLES_JSON_MAX_SETS];
    struct roped_error err;
    struct buffer buffer;
    int n;
    CHECK_OK(read_table("{\"theta\":10000}", sets, &n, &err), &err);
    buffer_init(&buffer);
    angles_json_write(&buffer, &sets[0].set, "alice", 0);
    CHECK_CONTAINS(buffer.text, "{\"name\":\"t\",\"tenant\":\"alice\",");
    buffer_fini(&buffer);
    angles_json_fini(&sets[0]);
}

TEST(writes_what_is_not_default)
{
    check_written(
        "{\"theta\":10000}",
        "{\"name\":\"t\",\"theta\":10000,\"scaling\":\"none\","
        "\"style\":\"neox\",\"head_dim\":0,\"rotary_dim\":0,\"rows\":0,"
        "\"resident_bytes\":77}");
    check_written(
        "{\"theta\":0.1,\"scaling\":\"longrope\",\"max_position\":64,"
        "\"original_max_position\":16,\"longrope\":\"long\",\"truncate\":false,"
        "\"mrope_section\":[1,1,0],\"style\":\"gptj\",\"head_dim\":4,"
        "\"short_factor\":[1,0.1],"
        "\"long_factor\":[2,4]}",
        "{\"name\":\"t\",\"theta\":0.1,\"scaling\":\"longrope\",\"truncate\":"
        "false,\"max_position\":64,\"original_max_position\":16,"
        "\"longrope\":\"long\",\"mrope_section\":[1,1,0],"
        "\"style\":\"gptj\",\"short_factor\":[1,0.1],"
        "\"long_factor\":[2,4],\"head_dim\":4,\"rotary_dim\":4,"
        "\"rows\":64,\"resident_bytes\":77}");
}
