/*
 * test_norms.c - rmsnorm_quantize through the daemon: an output that is there
 * for some parameters only, and whose shape and type follow from others.
 */
#include "check.h"
#include "http/harness.h"

#include <roped/numeric.h>

#include <cjson/cJSON.h>

static struct server server;
static float ones[2 * 3 * 128];

/* x of [2, 3, 128] ones, through /v1. */
static struct tensor_file ask_v1(const char *query)
{
    static const int64_t dims[3] = {2, 3, 128};
    struct tensor_file in = {0}, out = {0};
    char path[256];
    size_t bytes;
    file_add(&in, "x", ROPED_F32, 3, dims, ones);
    unsigned char *body = file_write(&in, &bytes);
    snprintf(path, sizeof path, "/v1/rmsnorm_quantize?%s", query);
    struct answer answer = ask(&server, "POST", path, body, bytes, NULL);
    if (answer.code != 200 ||
        !file_read(&out, answer.body, answer.bytes, NULL, NULL))
        CHECK_FAIL("%s: %d %.300s", query, answer.code, answer.body);
    answer_free(&answer);
    free(body);
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

int main(void)
{
    for (int i = 0; i < 2 * 3 * 128; i++)
        ones[i] = 1;
    server_start(&server, NULL);
    RUN(a_given_scale_makes_codes_alone);
    RUN(dynamic_scales_are_returned_per_row_or_per_group);
    RUN(v2_has_the_same_outputs);
    if (!server_stop(&server))
        check_n_failed++;
    return check_done();
}
