/*
 * test_malformed.c - bodies that are no safetensors file, and v2 requests that
 * are no requests: each must answer the right 4xx with an error that names
 * what is wrong, and leave the daemon in working order.
 */
#include "check.h"
#include "http/harness.h"

static struct server server;
static int n_cases;

static void expect(const struct answer *answer, int code, const char *culprit,
                   const char *what)
{
    n_cases++;
    if (answer->code != code || !answer_code(answer)[0] ||
        !strstr(answer->body, culprit))
        CHECK_FAIL("%s: answered %d %.300s, expected %d and a code, naming "
                   "'%s'",
                   what, answer->code, answer->body, code, culprit);
}

static struct answer post(const void *body, size_t bytes)
{
    return ask(&server, "POST", "/v1/rmsnorm", body, bytes, NULL);
}

/* --------------------------------------------------------- safetensors */

static void post_text(const char *json, size_t data_bytes, const char *culprit)
{
    static unsigned char body[1 << 16];
    size_t n = strlen(json);
    memset(body, 0, sizeof body);
    body[0] = (unsigned char)n;
    body[1] = (unsigned char)(n >> 8);
    /* NOLINTNEXTLINE(bugprone-not-null-terminated-result): counted */
    memcpy(body + 8, json, n);
    struct answer answer = post(body, 8 + n + data_bytes);
    expect(&answer, 400, culprit, json);
    answer_free(&answer);
}

#define X16 "\"x\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]}"

TEST(malformed_safetensors_are_refused)
{
    static const struct {
        const char *json;
        size_t data;
        const char *culprit;
    } cases[] = {
        {"", 0, "header"},
        {"[]", 0, "header"},
        {" {" X16 "}", 16, "header"},
        {"{" X16, 16, "JSON"},
        {"{" X16 "}x", 16, "JSON"},
        {"\xEF\xBB\xBF{" X16 "}", 16, "header"},
        {"{" X16 "," X16 "}", 16, "duplicate"},
        {"{" X16 "}", 15, "15 bytes"},
        {"{" X16 "}", 17, "17 bytes"},
        {"{\"x\":{\"dtype\":\"FP32\",\"shape\":[4],\"data_offsets\":[0,16]}}",
         16, "FP32"},
        {"{\"x\":{\"dtype\":\"f32\",\"shape\":[4],\"data_offsets\":[0,16]}}",
         16, "f32"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[2.0,2],\"data_offsets\":[0,16]}"
         "}",
         16, "digits"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[-2,2],\"data_offsets\":[0,16]}}",
         16, "dim 0 is -2"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[02,2],\"data_offsets\":[0,16]}}",
         16, "zero"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[4,20]}}",
         20, "'x'"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[16,0]}}",
         16, "'x'"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,8]}}",
         8, "span 8 bytes, expected 16"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[9007199254740991,"
         "9007199254740991,9007199254740991],\"data_offsets\":[0,16]}}",
         16, "'x'"},
        {"{\"x\":{\"shape\":[2,2],\"data_offsets\":[0,16]}}", 16, "dtype"},
        {"{\"x\":{\"dtype\":\"F32\",\"data_offsets\":[0,16]}}", 16, "shape"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[2,2]}}", 16, "data_offsets"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0]}}", 16,
         "data_offsets"},
        {"{\"__metadata__\":{\"a\":1}," X16 "}", 16, "__metadata__"},
        {"{\"__metadata__\":{\"a\":\"\\u0000\"}," X16 "}", 16, "NUL"},
        {"{\"__metadata__\":{\"a\":\"\\ud800\"}," X16 "}", 16, "surrogate"},
        {"{\"\xC0\x80\":{}," X16 "}", 16, "UTF-8"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],"
         "\"data_offsets\":[0,4]}}",
         4, "rank"},
        {"{}", 0, "missing tensor 'x'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        post_text(cases[i].json, cases[i].data, cases[i].culprit);
}

TEST(impossible_header_lengths_are_refused)
{
    unsigned char body[64];
    memset(body, 0xFF, sizeof body);
    struct answer answer = post(body, sizeof body);
    expect(&answer, 400, "header length", "length of all ones");
    answer_free(&answer);
    answer = post(body, 7);
    expect(&answer, 400, "header", "seven bytes");
    answer_free(&answer);
    memset(body, 0, sizeof body);
    body[0] = 100;
    answer = post(body, sizeof body);
    expect(&answer, 400, "header length is 100", "header past the end");
    answer_free(&answer);
}

TEST(other_kinds_of_file_are_recognized)
{
    static const struct {
        const char *body;
        size_t bytes; /* 0: of the text */
        const char *call, *region;
    } cases[] = {
        {"{\"inputs\":[{\"name\":\"x\"}]}", 0, "JSON: POST that to /v2/models/",
         "looks like JSON: send"},
        {" \n[[1, 2], [3, 4]]", 0, "JSON: POST that to", "JSON: send"},
        {"{}", 0, "JSON: POST that to", "JSON: send"},
        {"\x93NUMPY\1\0v\0{'descr'", 17, "a .npy file: 'ropectl run'",
         "a .npy file: 'ropectl regions put'"},
        {"PK\3\4\24\0\0\0\10\0", 10, "a zip archive: 'ropectl run'",
         "a zip archive: 'ropectl regions put'"},
        {"\x1f\x8b\10\0\0\0\0\0\0\3", 10, "Content-Encoding: gzip",
         "Content-Encoding: gzip"},
        {"x=1.0&weight=2.0", 0, "looks like text", "looks like text"},
        {"\1\2", 2, "ends before its header", "ends before its header"},
    };
    static const char *const chunked[] = {"Transfer-Encoding: chunked", NULL};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t bytes = cases[i].bytes ? cases[i].bytes : strlen(cases[i].body);
        struct answer answer = post(cases[i].body, bytes);
        expect(&answer, 400, cases[i].call, cases[i].body);
        answer_free(&answer);
        answer =
            ask(&server, "POST", "/v1/rmsnorm", cases[i].body, bytes, chunked);
        expect(&answer, 400, cases[i].call, "chunked");
        answer_free(&answer);
        answer =
            ask(&server, "PUT", "/v1/regions/r", cases[i].body, bytes, NULL);
        expect(&answer, 400, cases[i].region, "region");
        answer_free(&answer);
    }
}

TEST(gzip_whose_first_bytes_could_be_a_length_is_recognized)
{
    static unsigned char body[600000] = {0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 0, 3};
    struct answer answer = post(body, sizeof body);
    expect(&answer, 400, "Content-Encoding: gzip", "a large one");
    answer_free(&answer);
}

/* -------------------------------------------------------------------- v2 */

static void post_v2(const char *json, const char *culprit, int code)
{
    struct answer answer = ask(&server, "POST", "/v2/models/rmsnorm/infer",
                               json, strlen(json), NULL);
    expect(&answer, code, culprit, json);
    answer_free(&answer);
}

#define INPUT(rest) "{\"inputs\":[{\"name\":\"x\"," rest "}]}"

TEST(malformed_v2_requests_are_refused_in_words_that_clients_know)
{
    post_v2("", "failed to parse the request JSON buffer", 400);
    post_v2("{", "failed to parse the request JSON buffer", 400);
    post_v2("{}", "Unable to parse 'inputs'", 400);
    post_v2("{\"inputs\":[]}", "missing required input(s) ['x']", 400);
    post_v2(INPUT("\"datatype\":\"INT32\",\"shape\":[1,2],\"data\":[1,2]"),
            "data-type is 'INT32', but model 'rmsnorm' expects", 400);
    post_v2(INPUT("\"datatype\":\"F\",\"shape\":[1,2],\"data\":[1,2]"),
            "invalid datatype for input x", 400);
    post_v2(INPUT("\"datatype\":\"FP16\",\"shape\":[1,2],\"data\":[1,2]"),
            "binary", 400);
    post_v2(INPUT("\"datatype\":\"FP32\",\"shape\":[1,2],\"data\":[1]"),
            "Shape does not match true shape of 'data'", 400);
    post_v2(INPUT("\"datatype\":\"FP32\",\"shape\":[1,2],\"data\":[1,2,3]"),
            "Shape does not match true shape of 'data'", 400);
    post_v2(INPUT("\"datatype\":\"FP32\",\"shape\":[-1,2],\"data\":[1,2]"),
            "'x': dim 0", 400);
    post_v2(INPUT("\"datatype\":\"FP32\",\"shape\":[1,2]"),
            "Input must set only one of the following fields", 400);
    post_v2(INPUT("\"datatype\":\"FP32\",\"shape\":[1,2],\"parameters\":"
                  "{\"binary_data_size\":4}"),
            "input byte size mismatch for input 'x'", 400);
    post_v2(INPUT("\"datatype\":\"FP32\",\"shape\":[1,2],\"parameters\":"
                  "{\"binary_data_size\":8}"),
            "unexpected size for input 'x'", 400);
    post_v2("{\"inputs\":[{\"name\":\"nope\",\"datatype\":\"FP32\","
            "\"shape\":[1],\"data\":[1]}]}",
            "unexpected inference input 'nope'", 400);
    post_v2("{\"parameters\":{\"epsilon\":1},\"inputs\":[{\"name\":\"x\","
            "\"datatype\":\"FP32\",\"shape\":[1],\"data\":[1]}]}",
            "epsilon", 400);
    post_v2("{\"parameters\":{\"sequence_id\":1},\"inputs\":[]}", "sequence_id",
            400);
    post_v2("{\"outputs\":[{\"name\":\"z\"}],\"inputs\":[{\"name\":\"x\","
            "\"datatype\":\"FP32\",\"shape\":[1],\"data\":[1]}]}",
            "unexpected inference output 'z'", 400);
    post_v2(INPUT("\"datatype\":\"FP32\",\"shape\":[1,2],\"parameters\":"
                  "{\"shared_memory_region\":\"r\","
                  "\"shared_memory_byte_size\":8}"),
            "Unable to find shared memory region: 'r'", 404);
    struct answer answer =
        ask(&server, "POST", "/v2/models/nobody/infer", "{}", 2, NULL);
    expect(&answer, 404, "Request for unknown model: 'nobody' is not found",
           "unknown model");
    answer_free(&answer);
}

int main(void)
{
    server_start(&server, NULL);
    check_run();
    CHECK(server_is_alive(&server));
    CHECK(server_stop(&server));
    printf("%d cases refused as expected\n", n_cases);
    return check_done();
}
