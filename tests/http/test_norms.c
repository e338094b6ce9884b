/*
 * test_norms.c - the norm operators through the daemon: an output that is
 * there for some parameters only, and whose shape and type follow from others;
 * and what their rules refuse.
 */
#include "check.h"
#include "http/harness.h"

#include <roped/numeric.h>

#include <cjson/cJSON.h>

static struct server server;
static float ones[2 * 3 * 128];

static struct answer post(const char *op, const struct tensor_file *in,
                          const char *query)
{
    char path[256];
    size_t bytes;
    unsigned char *body = file_write(in, &bytes);
    snprintf(path, sizeof path, "/v1/%s?%s", op, query);
    struct answer answer = ask(&server, "POST", path, body, bytes, NULL);
    free(body);
    return answer;
}

/* x of [2, 3, 128] ones, through /v1. */
static struct tensor_file ask_v1(const char *query)
{
    static const int64_t dims[3] = {2, 3, 128};
    struct tensor_file in = {0}, out = {0};
    file_add(&in, "x", ROPED_F32, 3, dims, ones);
    struct answer answer = post("rmsnorm_quantize", &in, query);
    if (answer.code != 200 ||
        !file_read(&out, answer.body, answer.bytes, NULL, NULL))
        CHECK_FAIL("%s: %d %.300s", query, answer.code, answer.body);
    answer_free(&answer);
    return out;
}

static void expect_codes(struct tensor_file *file, enum roped_dtype dtype,
                         uint8_t code)
{
    const struct roped_tensor *y = file_find(file, "y");
    CHECK(y != NULL);
    if (!y)
        return;
    CHECK_INT(y->dtype, dtype);
    CHECK_INT(y->rank, 3);
    CHECK_INT(y->dims[2], 128);
    for (int i = 0; i < 2 * 3 * 128; i++)
        if (((const uint8_t *)y->data)[i] != code) {
            CHECK_FAIL("code %d is %#x, expected %#x", i,
                       ((const uint8_t *)y->data)[i], code);
            return;
        }
}

static void expect_scales(struct tensor_file *file, int64_t n_groups,
                          double scale)
{
    const struct roped_tensor *scales = file_find(file, "scales");
    CHECK(scales != NULL);
    if (!scales)
        return;
    CHECK_INT(scales->dtype, ROPED_F32);
    CHECK_INT(scales->rank, n_groups ? 2 : 1);
    CHECK_INT(scales->dims[0], 6);
    if (n_groups)
        CHECK_INT(scales->dims[1], n_groups);
    for (int64_t i = 0; i < roped_tensor_elements(scales); i++)
        CHECK_DOUBLE((double)((const float *)scales->data)[i], scale,
                     1e-6 * scale);
}

TEST(a_given_scale_makes_codes_alone)
{
    struct tensor_file file = ask_v1("dequant_scale=0.5&eps=0");
    CHECK_INT(file.n, 1);
    expect_codes(&file, ROPED_F8_E4M3, roped_float_to_e4m3(2));
    file_free(&file);
    file = ask_v1("output_dtype=e5m2&eps=0&fp8=u8");
    CHECK_INT(file.n, 1);
    expect_codes(&file, ROPED_U8, roped_float_to_e5m2(1));
    file_free(&file);
}

TEST(dynamic_scales_are_returned_per_row_or_per_group)
{
    struct tensor_file file = ask_v1("dynamic=true&eps=0");
    expect_codes(&file, ROPED_F8_E4M3, roped_float_to_e4m3(448));
    expect_scales(&file, 0, 1 / 448.0);
    file_free(&file);
    file = ask_v1("dynamic=true&eps=0&group_size=64&output_dtype=e5m2");
    expect_codes(&file, ROPED_F8_E5M2, roped_float_to_e5m2(57344));
    expect_scales(&file, 2, 1 / 57344.0);
    file_free(&file);
    file = ask_v1("dynamic=true&eps=0&group_size=128&scale_ub=0.5");
    expect_codes(&file, ROPED_F8_E4M3, roped_float_to_e4m3(448));
    expect_scales(&file, 1, 0.5 / 448);
    file_free(&file);
    file = ask_v1("dynamic=false&eps=0");
    CHECK_INT(file.n, 1);
    file_free(&file);
}

/* ------------------------------------------------------------------- /v2 */

static cJSON *ask_v2(const char *parameters, int code)
{
    char json[512];
    snprintf(json, sizeof json,
             "{\"parameters\":{%s},\"inputs\":[{\"name\":\"x\",\"datatype\":"
             "\"FP32\",\"shape\":[2,2],\"data\":[1,-1,2,2]}]}",
             parameters);
    struct answer answer =
        ask(&server, "POST", "/v2/models/rmsnorm_quantize/infer", json,
            strlen(json), NULL);
    CHECK_INT(answer.code, code);
    cJSON *tree = cJSON_Parse(answer.body);
    CHECK(tree != NULL);
    answer_free(&answer);
    return tree;
}

static const cJSON *output(const cJSON *tree, int index, const char *name)
{
    const cJSON *item = cJSON_GetArrayItem(
        cJSON_GetObjectItemCaseSensitive(tree, "outputs"), index);
    const cJSON *found = cJSON_GetObjectItemCaseSensitive(item, "name");
    CHECK_TEXT(cJSON_GetStringValue(found), name);
    return item;
}

static double number(const cJSON *item, const char *list, int index)
{
    const cJSON *value =
        cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(item, list), index);
    CHECK(cJSON_IsNumber(value));
    return value ? value->valuedouble : 0;
}

TEST(v2_has_the_same_outputs)
{
    cJSON *tree = ask_v2("\"eps\":0", 200);
    CHECK_INT(
        cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(tree, "outputs")),
        1);
    const cJSON *y = output(tree, 0, "y");
    CHECK_TEXT(
        cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(y, "datatype")),
        "UINT8");
    CHECK_INT(number(y, "data", 1), roped_float_to_e4m3(-1));
    cJSON_Delete(tree);
    tree = ask_v2("\"eps\":0,\"dynamic\":true", 200);
    y = output(tree, 0, "y");
    CHECK_INT(number(y, "data", 1), roped_float_to_e4m3(-448));
    const cJSON *scales = output(tree, 1, "scales");
    CHECK_TEXT(cJSON_GetStringValue(
                   cJSON_GetObjectItemCaseSensitive(scales, "datatype")),
               "FP32");
    CHECK_INT(number(scales, "shape", 0), 2);
    CHECK_DOUBLE(number(scales, "data", 1), 1 / 448.0, 1e-8);
    cJSON_Delete(tree);
}

TEST(v2_says_what_an_output_needs)
{
    static const char json[] =
        "{\"inputs\":[{\"name\":\"x\",\"datatype\":\"FP32\",\"shape\":[1,2],"
        "\"data\":[1,2]}],\"outputs\":[{\"name\":\"scales\"}]}";
    struct answer answer =
        ask(&server, "POST", "/v2/models/rmsnorm_quantize/infer", json,
            strlen(json), NULL);
    CHECK_INT(answer.code, 400);
    CHECK_CONTAINS(answer.body, "'scales' for model 'rmsnorm_quantize': it "
                                "needs parameter 'dynamic'");
    answer_free(&answer);
}

/* ------------------------------------------------------------------ rules */

/* code 200, or 400 with a message that contains culprit. */
static void expect(const char *op, const struct tensor_file *in,
                   const char *query, int code, const char *culprit)
{
    struct answer answer = post(op, in, query);
    if (answer.code != code || (code != 200 && !strstr(answer.body, culprit)))
        CHECK_FAIL("%s?%s: answered %d %.300s, expected %d naming '%s'", op,
                   query, answer.code, answer.body, code, culprit);
    answer_free(&answer);
}

static void add(struct tensor_file *file, const char *name,
                enum roped_dtype dtype, int rank, int64_t a, int64_t b)
{
    int64_t dims[2] = {a, b};
    file_add(file, name, dtype, rank, dims, ones);
}

static void expect_sum(enum roped_dtype dtype, int rank, int64_t a, int64_t b,
                       int code, const char *culprit)
{
    struct tensor_file in = {0};
    add(&in, "x", ROPED_F32, 2, 3, 8);
    add(&in, "residual", dtype, rank, a, b);
    expect("add_rmsnorm", &in, "", code, culprit);
}

TEST(rules_of_add_rmsnorm_are_kept)
{
    struct tensor_file in = {0};
    expect_sum(ROPED_F32, 2, 3, 8, 200, "");
    expect_sum(ROPED_BF16, 2, 3, 8, 400,
               "'residual': BF16, expected F32 beside 'x' of F32");
    expect_sum(ROPED_F32, 2, 2, 8, 400, "'residual': leading dims [2]");
    expect_sum(ROPED_F32, 1, 8, 0, 400, "'residual': leading dims []");
    expect_sum(ROPED_F32, 2, 3, 9, 400, "'residual': dim 1 is 9, expected h");
    add(&in, "x", ROPED_F32, 2, 0, 8);
    expect("add_rmsnorm", &in, "", 400, "missing tensor 'residual'");
    add(&in, "residual", ROPED_F32, 2, 0, 8);
    expect("add_rmsnorm", &in, "", 200, "");
    in.n = 0;
    add(&in, "x", ROPED_F32, 2, 3, 0);
    add(&in, "residual", ROPED_F32, 2, 3, 0);
    expect("add_rmsnorm", &in, "", 400, "'x': dim 1 is 0");
}

TEST(rules_of_rmsnorm_quantize_are_kept)
{
    static const char *const refused[][2] = {
        {"dynamic=true&dequant_scale=1",
         "'dequant_scale' is given, expected dynamic=false"},
        {"scale_ub=1", "'scale_ub'"},
        {"group_size=64", "'group_size'"},
        {"dynamic=true&group_size=64",
         "'group_size': 64, expected a divisor of h = 8 (set by 'x')"},
        {"dynamic=true&group_size=4", "expected 16, 32, 64, 128 or 0"},
        {"dynamic=true&scale_layout=transposed", "'scale_layout'"},
        {"dequant_scale=0", "'dequant_scale'"},
        {"dequant_scale=1e-60", "'dequant_scale'"}, /* 0 in float32 */
        {"dequant_scale=-1", "'dequant_scale'"},
        {"dynamic=true&scale_ub=nan", "'scale_ub'"},
        {"dynamic=true&scale_ub=-1e39", "'scale_ub'"},
        {"dynamic=2", "'dynamic'"},
        {"output_dtype=e4m3fnuz", "'output_dtype'"},
        {"output_dtype=mxfp8", "'output_dtype' is given, expected dynamic=true "
                               "with it"},
        {"output_dtype=mxfp8&dynamic=true",
         "'x': dim 1 is 8, expected a multiple of 32"},
        {"output_dtype=nvfp4&dynamic=true",
         "'x': dim 1 is 8, expected a multiple of 16"},
        {"output_dtype=mxfp4&dynamic=true&group_size=64",
         "'group_size' is given, expected group_size=0,32 with it"},
        {"output_dtype=nvfp4&dynamic=true&group_size=32",
         "'group_size' is given, expected group_size=0,16 with it"},
        {"dynamic=true&scale_layout=swizzled",
         "'scale_layout' is given, expected output_dtype=mxfp8,mxfp4,nvfp4"},
        {"output_dtype=int8&dynamic=true&scale_rounding=floor",
         "'scale_rounding' is given, expected output_dtype=mxfp8,mxfp4"},
        {"scale_rounding=power_of_two",
         "'scale_rounding' is given, expected dynamic=true"},
        {"output_dtype=int8&global_scale=2",
         "'global_scale' is given, expected output_dtype=nvfp4"},
        {"output_dtype=nvfp4&dynamic=true&scale_ub=2", "'scale_ub' is given"},
        {"output_dtype=int8&dynamic=true&infinity=nan", "'infinity' is given"}};
    struct tensor_file in = {0};
    add(&in, "x", ROPED_F32, 1, 8, 0);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        expect("rmsnorm_quantize", &in, refused[i][0], 400, refused[i][1]);
    expect("rmsnorm_quantize", &in, "dynamic=true&scale_ub=0.001", 200, "");
    expect("rmsnorm_quantize", &in, "dynamic=true&scale_ub=-1", 200, "");
    expect("rmsnorm_quantize", &in, "dynamic=true&group_size=0", 200, "");
    expect("rmsnorm_quantize", &in, "dynamic=false&dequant_scale=1e-44", 200,
           "");
    expect("rmsnorm_quantize", &in, "output_dtype=int8&dequant_scale=2", 200,
           "");
    expect("rmsnorm_quantize", &in,
           "output_dtype=e5m2&dynamic=true&scale_rounding=power_of_two", 200,
           "");
    add(&in, "weight", ROPED_F32, 1, 9, 0);
    expect("rmsnorm_quantize", &in, "", 400,
           "'weight': dim 0 is 9, expected h = 8");
}

/* The rules of both of its parts. */
TEST(rules_of_add_rmsnorm_quantize_are_kept)
{
    struct tensor_file in = {0};
    add(&in, "x", ROPED_F32, 2, 3, 32);
    expect("add_rmsnorm_quantize", &in, "", 400, "missing tensor 'residual'");
    add(&in, "residual", ROPED_F32, 2, 3, 32);
    expect("add_rmsnorm_quantize", &in, "", 200, "");
    expect("add_rmsnorm_quantize", &in, "dynamic=true&group_size=16", 200, "");
    expect("add_rmsnorm_quantize", &in,
           "output_dtype=nvfp4&dynamic=true&global_scale=2", 200, "");
    expect("add_rmsnorm_quantize", &in, "dynamic=true&group_size=64", 400,
           "'group_size': 64, expected a divisor of h = 32 (set by 'x')");
    expect("add_rmsnorm_quantize", &in, "group_size=16", 400, "'group_size'");
    expect("add_rmsnorm_quantize", &in, "dynamic=true&dequant_scale=1", 400,
           "'dequant_scale' is given, expected dynamic=false");
    add(&in, "weight", ROPED_F32, 1, 31, 0);
    expect("add_rmsnorm_quantize", &in, "", 400,
           "'weight': dim 0 is 31, expected h = 32");
    in.n = 0;
    add(&in, "x", ROPED_F32, 2, 3, 32);
    add(&in, "residual", ROPED_BF16, 2, 3, 32);
    expect("add_rmsnorm_quantize", &in, "", 400,
           "'residual': BF16, expected F32 beside 'x' of F32");
    in.n = 0;
    add(&in, "x", ROPED_F32, 2, 0, 32);
    add(&in, "residual", ROPED_F32, 2, 0, 32);
    expect("add_rmsnorm_quantize", &in, "dynamic=true&scale_layout=columns_4",
           200, "");
}

int main(void)
{
    for (int i = 0; i < 2 * 3 * 128; i++)
        ones[i] = 1;
    server_start(&server, NULL);
    check_run();
    CHECK(server_stop(&server));
    return check_done();
}
