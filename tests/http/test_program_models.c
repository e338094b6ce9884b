/*
 * test_program_models.c - programs as v2 models: what is said of them before
 * they run, runs with tensors in every place that v2 has, and what is refused.
 * tests/interop asks the same with a client of others.
 */
#include "check.h"
#include "http/harness.h"
#include "http/service.h"

enum { ROWS = 2, WIDTH = 8, LONG_ROWS = 1024 };
static struct server server;

static struct answer post(const char *path, const char *body)
{
    return ask(&server, "POST", path, body, strlen(body), NULL);
}

static void put_program(const char *name, const char *document)
{
    char path[128];
    snprintf(path, sizeof path, "/v1/programs/%s", name);
    struct answer answer =
        ask(&server, "PUT", path, document, strlen(document), NULL);
    if (answer.code != 200 && answer.code != 201)
        CHECK_FAIL("%s: %d %.300s", name, answer.code, answer.body);
    answer_free(&answer);
}

static void delete_program(const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "/v1/programs/%s", name);
    expect_code(ask(&server, "DELETE", path, NULL, 0, NULL), 200, "{}", name);
}

#define NORM(in, out, params)                                                  \
    "{\"op\": \"rmsnorm\", \"in\": {\"x\": \"" in                              \
    "\"}, \"out\": {\"y\": \"" out "\"}, \"params\": " params "}"

static const char two_norms[] =
    "{\"inputs\": [\"x\"], \"parameters\": {\"e\": 0.5}, \"steps\": [" NORM(
        "x", "h",
        "{\"eps\": \"$e\"}") "," NORM("h", "g",
                                      "{\"eps\": 0.25}") "], \"outputs\": "
                                                         "[\"h\", \"g\"]}";

static const char declared[] =
    "{\"inputs\": [{\"name\": \"x\", \"dtype\": \"BF16\", \"shape\": [\"n\", "
    "8]}], \"steps\": [" NORM("x", "h", "{}") "], \"outputs\": [\"h\"]}";

#define X_HEAD   "{\"name\":\"x\",\"shape\":[2,8],\"datatype\":\"FP32\""
#define X_VALUES ",\"data\":[0.5,1,1.5,2,2.5,3,3.5,4,-1,-2,-3,-4,-5,-6,-7,-8]}"
#define X        X_HEAD X_VALUES

/* ------------------------------------------------------------- description */

TEST(a_model_is_described_as_far_as_its_document_says)
{
    put_program("norms", two_norms);
    put_program("typed", declared);
    expect_code(get(&server, "/v2/models/norms"), 200,
                "{\"name\":\"norms\",\"versions\":[\"1\"],\"platform\":\"roped",
                "metadata");
    expect_code(get(&server, "/v2/models/norms"), 200,
                "\"inputs\":[{\"name\":\"x\",\"datatype\":\"FP32\",\"shape\":"
                "[-1,-1],",
                "any shape");
    expect_code(get(&server, "/v2/models/norms/versions/1"), 200,
                "\"outputs\":[{\"name\":\"h\",\"datatype\":\"FP32\",\"shape\":"
                "[-1,-1],",
                "of its version");
    expect_code(get(&server, "/v2/models/typed"), 200,
                "\"inputs\":[{\"name\":\"x\",\"datatype\":\"BF16\",\"shape\":"
                "[-1,8],\"parameters\":{\"datatypes\":\"BF16\",\"shape\":\"n "
                "8\",",
                "what it declares");
    expect_code(get(&server, "/v2/models/typed"), 200,
                "\"outputs\":[{\"name\":\"h\",\"datatype\":\"BF16\",\"shape\":"
                "[-1,8],\"parameters\":{\"datatypes\":\"BF16\",\"shape\":\"? "
                "8\"",
                "what follows from it");
    expect_code(get(&server, "/v2/models/typed/config"), 200,
                "\"max_batch_size\":0,\"input\":[{\"name\":\"x\",\"data_type\":"
                "\"TYPE_BF16\",\"dims\":[-1,8],\"optional\":false}],\"output\":"
                "[{\"name\":\"h\",\"data_type\":\"TYPE_BF16\",\"dims\":[-1,8]}",
                "config");
    expect_code(get(&server, "/v2/models/norms/ready"), 200,
                "{\"name\":\"norms\",\"ready\":true}", "ready");
    expect_code(post("/v2/repository/index", ""), 200,
                "{\"name\":\"norms\",\"version\":\"1\",\"state\":\"READY\","
                "\"reason\":\"\"},{\"name\":\"typed\",",
                "index");
    expect_code(post("/v2/repository/models/norms/load", ""), 200, "", "load");
    expect_code(get(&server, "/v2/models/norms/trace/setting"), 200, "OFF",
                "trace");
    delete_program("norms");
    delete_program("typed");
    expect_code(get(&server, "/v2/models/norms"), 404,
                "Request for unknown model: 'norms' is not found", "gone");
    expect_code(get(&server, "/v2/models/norms/stats"), 404,
                "requested model 'norms' is not available", "stats of none");
    expect_code(post("/v2/models/norms/infer", "{\"inputs\":[" X "]}"), 404,
                "Request for unknown model: 'norms' is not found", "infer");
}

/* --------------------------------------------------------------------- runs */

/* What is between "data":[ and ] in an answer, of the output of this name. */
static void data_of(struct answer answer, const char *name, char *out,
                    size_t bytes)
{
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"name\":\"%s\"", name);
    const char *at = answer.code == 200 ? strstr(answer.body, quoted) : NULL;
    const char *data = at ? strstr(at, "\"data\":[") : NULL;
    const char *end = data ? strchr(data, ']') : NULL;
    snprintf(out, bytes, "%.*s", end ? (int)(end - data) : 0, data ? data : "");
    if (!end)
        CHECK_FAIL("%s: answered %d %.300s", name, answer.code, answer.body);
    answer_free(&answer);
}

/* The values of y of a call of rmsnorm, as text. */
static void norm(const char *values, const char *eps, char *out, size_t bytes)
{
    char body[1024];
    snprintf(body, sizeof body,
             "{\"inputs\":[" X_HEAD ",%s]}],\"parameters\":{\"eps\":%s}}",
             values, eps);
    data_of(post("/v2/models/rmsnorm/infer", body), "y", out, bytes);
}

TEST(a_run_gives_the_bits_of_calls)
{
    char h[512], g[512], got[512];
    put_program("norms", two_norms);
    norm("\"data\":[0.5,1,1.5,2,2.5,3,3.5,4,-1,-2,-3,-4,-5,-6,-7,-8", "0.125",
         h, sizeof h);
    norm(h, "0.25", g, sizeof g);
    const char *both =
        "{\"id\":\"7\",\"inputs\":[" X "],\"parameters\":{\"e\":0.125}}";
    data_of(post("/v2/models/norms/infer", both), "h", got, sizeof got);
    CHECK_TEXT(got, h);
    data_of(post("/v2/models/norms/versions/1/infer", both), "g", got,
            sizeof got);
    CHECK_TEXT(got, g);
    expect_code(post("/v2/models/norms/infer", both), 200,
                "{\"id\":\"7\",\"model_name\":\"norms\",\"model_version\":"
                "\"1\",\"outputs\":[{\"name\":\"h\",",
                "its name");
    const char *one = "{\"inputs\":[" X
                      "],\"outputs\":[{\"name\":\"g\"}],\"parameters\":{\"e\":"
                      "\"0.125\",\"timeout\":1000000,\"priority\":1}}";
    data_of(post("/v2/models/norms/infer", one), "g", got, sizeof got);
    CHECK_TEXT(got, g);
    delete_program("norms");
}

/* "x" binary, what is wanted back binary, after this JSON; both g's rows. */
TEST(binary_tensors_and_raw_bodies)
{
    static const char json[] =
        "{\"inputs\":[" X_HEAD ",\"parameters\":{\"binary_data_size\":64}}],"
        "\"outputs\":[{\"name\":\"g\",\"parameters\":{"
        "\"binary_data\":true}}]}";
    static const char raw[] =
        "{\"inputs\": [{\"name\": \"x\", \"dtype\": \"F32\", \"shape\": "
        "[\"n\", 8]}], \"steps\": [" NORM("x", "h", "{}") "], \"outputs\": "
                                                          "[\"h\"]}";
    char header[80], body[sizeof json + 64];
    const char *headers[] = {header, NULL};
    const char *raw_header[] = {"Inference-Header-Content-Length: 0", NULL};
    float ones[ROWS * WIDTH];
    for (int i = 0; i < ROWS * WIDTH; i++)
        ones[i] = 3;
    put_program("norms", two_norms);
    put_program("raw", raw);
    snprintf(header, sizeof header, "Inference-Header-Content-Length: %zu",
             sizeof json - 1);
    memcpy(body, json, sizeof json - 1);
    memcpy(body + sizeof json - 1, ones, sizeof ones);
    struct answer answer = ask(&server, "POST", "/v2/models/norms/infer", body,
                               sizeof json - 1 + sizeof ones, headers);
    CHECK_INT(answer.code, 200);
    CHECK_CONTAINS(answer.body, "\"binary_data_size\":64");
    CHECK(answer_header(&answer, "Inference-Header-Content-Length") != NULL);
    CHECK(answer_header(&answer, "Server-Timing") != NULL);
    CHECK(answer_header(&answer, "ETag") != NULL);
    answer_free(&answer);
    answer = ask(&server, "POST", "/v2/models/raw/infer", ones, sizeof ones,
                 raw_header);
    CHECK_INT(answer.code, 200);
    CHECK_CONTAINS(answer.body, "\"shape\":[2,8]");
    float y;
    memcpy(&y, answer.body + answer.bytes - sizeof y, sizeof y);
    CHECK_DOUBLE(y, 1, 1e-4);
    answer_free(&answer);
    expect_code(
        ask(&server, "POST", "/v2/models/raw/infer", ones, 12, raw_header), 400,
        "Expected a multiple of 32, got 12", "raw");
    delete_program("norms");
    delete_program("raw");
}

/* A step updates its input, which has come as JSON and goes back as JSON. */
TEST(an_updated_tensor_comes_back)
{
    static const char updating[] =
        "{\"inputs\": [\"x\", \"r\"], \"steps\": [{\"op\": \"add_rmsnorm\", "
        "\"in\": {\"x\": \"x\", \"residual\": \"r\"}, \"out\": {\"y\": \"y\", "
        "\"residual\": \"s\"}}], \"outputs\": [\"s\", \"y\"]}";
    put_program("adds", updating);
    const char *body =
        "{\"inputs\":[{\"name\":\"x\",\"shape\":[1,4],\"datatype\":\"FP32\","
        "\"data\":[1,2,3,4]},{\"name\":\"r\",\"shape\":[1,4],\"datatype\":"
        "\"FP32\",\"data\":[10,20,30,40]}]}";
    expect_code(post("/v2/models/adds/infer", body), 200,
                "{\"name\":\"s\",\"datatype\":\"FP32\",\"shape\":[1,4],"
                "\"data\":[11,22,33,44]}",
                "sum");
    delete_program("adds");
}

/* So many values are written on a lane, when the run has ended. */
TEST(a_long_answer_of_a_program_that_is_gone)
{
    size_t room = 1 << 20, at = 0;
    char *body = malloc(room);
    at += (size_t)snprintf(
        body, room,
        "{\"inputs\":[{\"name\":\"x\",\"shape\":[%d,8],\"datatype\":\"FP32\","
        "\"data\":[",
        LONG_ROWS);
    for (int i = 0; i < LONG_ROWS * WIDTH; i++)
        at += (size_t)snprintf(body + at, room - at, "%s3", i ? "," : "");
    snprintf(body + at, room - at, "]}]}");
    for (int i = 0; i < 20; i++) {
        put_program("norms", two_norms);
        struct answer answer = post("/v2/models/norms/infer", body);
        CHECK_INT(answer.code, 200);
        CHECK_CONTAINS(answer.body, "\"shape\":[1024,8]");
        answer_free(&answer);
        delete_program("norms");
    }
    free(body);
}

TEST(tensors_are_in_regions)
{
    int64_t dims[2] = {ROWS, WIDTH};
    float threes[ROWS * WIDTH];
    struct tensor_file file = {0};
    for (int i = 0; i < ROWS * WIDTH; i++)
        threes[i] = 3;
    put_program("norms", two_norms);
    store_region(&server, "in", ROPED_F32, 2, dims, threes);
    store_region(&server, "out", ROPED_F32, 2, dims, threes);
#define PLACE(name, bytes)                                                     \
    "\"parameters\":{\"shared_memory_region\":\"" name                         \
    "\",\"shared_memory_byte_size\":" bytes "}"
    expect_code(post("/v2/models/norms/infer",
                     "{\"inputs\":[" X_HEAD "," PLACE(
                         "in", "64") "}],"
                                     "\"outputs\":[{\"name\":\"g\"," PLACE(
                                         "out", "64") "}]}"),
                200,
                "\"outputs\":[{\"name\":\"g\",\"datatype\":\"FP32\",\"shape\":"
                "[2,8]}]",
                "both");
    struct answer answer = get(&server, "/v1/regions/out");
    CHECK(file_read(&file, answer.body, answer.bytes, NULL, NULL));
    CHECK_DOUBLE(((float *)file.tensor[0].data)[15], 0.87, 0.05);
    file_free(&file);
    answer_free(&answer);
    expect_code(post("/v2/models/norms/infer",
                     "{\"inputs\":[" X_HEAD "," PLACE("none", "64") "}]}"),
                404, "Unable to find shared memory region: 'none'", "none");
    expect_code(post("/v2/models/norms/infer",
                     "{\"inputs\":[" X_HEAD "," PLACE("in", "60") "}]}"),
                400, "input byte size mismatch for input 'x' for model 'norms'",
                "bytes");
    expect_code(post("/v2/models/norms/infer",
                     "{\"inputs\":[" X "],\"outputs\":[{\"name\":\"g\"," PLACE(
                         "out", "63") "}]}"),
                400, "should be at least 64 bytes", "no room");
    delete_program("norms");
}

/* --------------------------------------------------------------- refusals */

TEST(what_is_wrong_is_said_as_of_a_model)
{
    static const struct {
        const char *inputs, *more, *why;
    } wrong[] = {
        {"", "",
         "expected 1 inputs but got 0 inputs for model 'norms'. Got input(s) "
         "[], but missing required input(s) ['x']"},
        {X "," X, "", "input 'x' already exists in request"},
        {"{\"name\":\"y\",\"shape\":[1],\"datatype\":\"FP32\",\"data\":[1]}",
         "", "unexpected inference input 'y' for model 'norms', expected x"},
        {X, ",\"outputs\":[{\"name\":\"x\"}]",
         "unexpected inference output 'x' for model 'norms'"},
        {X, ",\"parameters\":{\"eps\":1}", "unknown parameter 'eps'"},
        {X, ",\"parameters\":{\"e\":{}}", "parameter 'e': an object"},
        {X, ",\"parameters\":{\"e\":\"much\"}", "step 1 (rmsnorm): "},
        {X, ",\"parameters\":{\"table\":\"t\"}", "parameter 'table': "},
        {X, ",\"parameters\":{\"sequence_id\":1}", "'sequence_id' is not"},
        {"{\"name\":\"x\",\"shape\":[2],\"datatype\":\"INT64\",\"data\":[1,2]}",
         "", "step 1 (rmsnorm): "},
        {X_HEAD ",\"parameters\":{\"binary_data_size\":64}}", "",
         "unexpected size for input 'x', expecting 64 additional bytes for "
         "model 'norms'"}};
    put_program("norms", two_norms);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char body[1024];
        snprintf(body, sizeof body, "{\"inputs\":[%s]%s}", wrong[i].inputs,
                 wrong[i].more);
        expect_code(post("/v2/models/norms/infer", body), 400, wrong[i].why,
                    wrong[i].why);
    }
    put_program("typed", declared);
    expect_code(post("/v2/models/typed/infer", "{\"inputs\":[" X "]}"), 400,
                "inference input 'x' data-type is 'FP32', but model 'typed' "
                "expects 'BF16'",
                "type");
    const char *other[] = {"If-Match: \"0000000000000000\"", NULL};
    const char *body = "{\"inputs\":[" X "]}";
    expect_code(ask(&server, "POST", "/v2/models/norms/infer", body,
                    strlen(body), other),
                412, "(If-Match)", "pinned");
    expect_code(post("/v2/models/norms/versions/2/infer", body), 404,
                "Request for unknown model: 'norms' version 2 is not found",
                "version");
    expect_code(get(&server, "/v2/models/norms/versions/2"), 404,
                "Request for unknown model: 'norms' version 2 is not found",
                "version");
    delete_program("norms");
    delete_program("typed");
}

TEST(runs_are_counted_since_the_put)
{
    put_program("norms", two_norms);
    expect_code(post("/v2/models/norms/infer", "{\"inputs\":[" X "]}"), 200, "",
                "run");
    expect_code(post("/v2/models/norms/infer", "{\"inputs\":[]}"), 400, "",
                "wrong");
    expect_code(ask(&server, "POST", "/v1/programs/norms", NULL, 0, NULL), 400,
                "", "wrong in v1");
    struct answer answer = get(&server, "/v2/models/norms/stats");
    CHECK_INT(answer.code, 200);
    CHECK_CONTAINS(answer.body, "{\"model_stats\":[{\"name\":\"norms\","
                                "\"version\":\"1\",\"last_inference\":1");
    CHECK_CONTAINS(answer.body, "\"inference_count\":1,\"execution_count\":1");
    CHECK_CONTAINS(answer.body, "\"success\":{\"count\":1,");
    CHECK_CONTAINS(answer.body, "\"fail\":{\"count\":2,");
    CHECK_CONTAINS(answer.body, "\"compute_infer\":{\"count\":1,");
    answer_free(&answer);
    expect_code(get(&server, "/v2/models/stats"), 200,
                ",{\"name\":\"norms\",\"version\":\"1\",\"last_inference\":1",
                "all");
    put_program("norms", two_norms);
    expect_code(get(&server, "/v2/models/norms/stats"), 200,
                "\"last_inference\":0,\"inference_count\":0", "put again");
    delete_program("norms");
}

TEST(a_name_is_that_of_one_model)
{
    const char *flags[] = {"--demo_models", "true", NULL};
    struct server demo;
    server_start(&demo, flags);
    expect_code(ask(&demo, "PUT", "/v1/programs/simple", two_norms,
                    strlen(two_norms), NULL),
                400, "program 'simple': a model of the server", "demo");
    CHECK(server_stop(&demo));
    expect_code(ask(&server, "PUT", "/v1/programs/stats", two_norms,
                    strlen(two_norms), NULL),
                400, "program 'stats': GET /v2/models/stats", "stats");
}

int main(void)
{
    server_start(&server, (const char *[]){NULL});
    check_run();
    CHECK(server_stop(&server));
    return check_done();
}
