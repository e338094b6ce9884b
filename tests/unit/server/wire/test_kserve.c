/*
 * test_kserve.c - v2 requests and answers: what is read, the phrases that
 * clients match on, and what is written.
 */
#include "wire/kserve.h"

#include "check.h"
#include "of_call.h"
#include "refusal.h"
#include "wire/json.h"

#include <cjson/cJSON.h>
#include <math.h>

#define Q_BINARY                                                               \
    "{\"name\":\"q\",\"shape\":[2,1,4],\"datatype\":\"BF16\","                 \
    "\"parameters\":{\"binary_data_size\":16}}"
#define Q_JSON                                                                 \
    "{\"name\":\"q\",\"shape\":[1,1,4],\"datatype\":\"FP32\","                 \
    "\"data\":[1,2.5,-3,4e2]}"

/* Without a NUL behind: a read past the end is seen by the sanitizer. */
static char *exact_copy(const char *text, size_t bytes)
{
    char *copy = malloc(bytes ? bytes : 1);
    memcpy(copy, text, bytes);
    return copy;
}

static enum roped_status read_into(struct roped_call *call, const char *op,
                                   const char *json, void *binary,
                                   uint64_t binary_bytes,
                                   struct kserve_request *request,
                                   struct roped_error *err)
{
    size_t bytes = strlen(json);
    char *exact = exact_copy(json, bytes);
    err->text[0] = '\0';
    roped_call_init(call, roped_op_find(op));
    const struct kserve_body body = {exact, bytes, binary, binary_bytes};
    enum roped_status status =
        kserve_read_request(OF_CALL(call), &body, request, err);
    free(exact);
    return status;
}

static void refuse_as(const char *op, const char *json, uint64_t binary_bytes,
                      enum roped_status expected, const char *why)
{
    struct kserve_request request;
    struct roped_call call;
    struct roped_error err;
    enum roped_status status =
        read_into(&call, op, json, NULL, binary_bytes, &request, &err);
    if (!is_expected(status, expected))
        CHECK_FAIL("%s: status %d, expected %d (%s)", json, (int)status,
                   (int)expected, err.text);
    else
        CHECK_CONTAINS(err.text, why);
}

static void refuse(const char *json, uint64_t binary_bytes, const char *why)
{
    refuse_as("rope", json, binary_bytes, ROPED_INVALID, why);
}

/* Rope with these request parameters. */
static void refuse_params(const char *params, const char *why)
{
    char json[512];
    snprintf(json, sizeof json, "{\"inputs\":[%s],\"parameters\":%s}", Q_BINARY,
             params);
    refuse(json, 16, why);
}

/* ---------------------------------------------------------------- reading */

TEST(reads_binary_tensors_at_any_offset)
{
    static const char json[] =
        "{\"id\":\"call-7\",\"inputs\":[{\"name\":\"positions\",\"shape\":[2],"
        "\"datatype\":\"INT32\",\"parameters\":{\"binary_data_size\":8}}"
        "," Q_BINARY "],\"outputs\":[{\"name\":\"q\",\"parameters\":{"
        "\"binary_data\":true}}]}";
    unsigned char binary[25];
    struct kserve_request request;
    struct roped_call call;
    struct roped_error err;
    CHECK_OK(read_into(&call, "rope", json, binary + 1, 24, &request, &err),
             &err);
    CHECK_TEXT(request.id, "call-7");
    CHECK_INT(request.binary_bytes, 24);
    CHECK_INT(request.json_tensor_bytes, 0);
    CHECK(call.in[roped_op_input(call.op, "positions")].data == binary + 1);
    CHECK(call.in[roped_op_input(call.op, "q")].data == binary + 9);
    CHECK_INT(call.in[roped_op_input(call.op, "q")].dtype, ROPED_BF16);
    CHECK_INT(request.n_outputs, 1);
    CHECK(request.output[0].is_binary);
    CHECK_OK(roped_call_resolve(&call, &err), &err);
    CHECK_OK(kserve_check_outputs(OF_CALL(&call), &request, &err), &err);
    CHECK(kserve_is_binary_answer(&request));
}

TEST(timeout_is_kept_priority_is_not)
{
    struct kserve_request request;
    struct roped_call call;
    struct roped_error err;
    CHECK_OK(read_into(&call, "rope",
                       "{\"parameters\":{\"timeout\":2500000,\"priority\":1},"
                       "\"inputs\":[" Q_BINARY "]}",
                       NULL, 16, &request, &err),
             &err);
    CHECK_INT(request.timeout_us, 2500000);
    refuse_params("{\"timeout\":-1}", "parameter 'timeout': -1, expected an");
    refuse_params("{\"timeout\":1.5}", "parameter 'timeout': 1.5");
    refuse_params("{\"timeout\":\"1\"}", "parameter 'timeout': '1'");
    refuse_params("{\"timeout\":NaN}", "parameter 'timeout': nan");
    refuse_params("{\"priority\":\"high\"}", "parameter 'priority': 'high'");
}

TEST(an_empty_tensor_is_a_tensor)
{
    struct kserve_request request;
    struct roped_call call;
    struct roped_error err;
    CHECK_OK(read_into(&call, "rope",
                       "{\"inputs\":[{\"name\":\"q\",\"shape\":[0,1,4],"
                       "\"datatype\":\"FP32\",\"parameters\":{"
                       "\"binary_data_size\":0}}]}",
                       NULL, 0, &request, &err),
             &err);
    CHECK_OK(read_into(&call, "rope",
                       "{\"inputs\":[{\"name\":\"q\",\"shape\":[0,1,4],"
                       "\"datatype\":\"FP32\",\"data\":[]}]}",
                       NULL, 0, &request, &err),
             &err);
    CHECK(request.data_at[0] > 0);
    CHECK_INT(request.json_tensor_bytes, 0);
}

TEST(parameters_reach_the_operator)
{
    struct kserve_request request;
    struct roped_call call;
    struct roped_error err;
    CHECK_OK(read_into(&call, "rope",
                       "{\"id\":\"\",\"inputs\":[" Q_BINARY "],\"parameters\":{"
                       "\"theta\":500000,\"factor\":2.5,\"style\":\"gptj\","
                       "\"inverse\":true,\"offset\":7,\"scaling\":\"linear\","
                       "\"mrope_section\":[1,1,0],\"table\":\"llama\","
                       "\"timeout\":1000,\"priority\":1,"
                       "\"binary_data_output\":true}}",
                       NULL, 16, &request, &err),
             &err);
    CHECK_TEXT(request.id, "");
    CHECK_TEXT(request.table, "llama");
    CHECK(request.binary_output);
    const struct roped_angle_params *angles = roped_call_angles(&call);
    CHECK_DOUBLE(angles->theta, 500000, 0);
    CHECK_DOUBLE(angles->factor, 2.5, 0);
    CHECK_INT(angles->scaling, ROPED_SCALING_LINEAR);
    CHECK_INT(angles->mrope_section.count, 3);
    CHECK_INT(angles->mrope_section.value[1], 1);
    CHECK(roped_call_gave(&call, "inverse"));
    CHECK(roped_call_gave(&call, "offset"));
    CHECK(roped_call_gave(&call, "style"));
    CHECK(!roped_call_gave(&call, "rotary_dim"));
}

TEST(shapes_are_lists)
{
    struct kserve_request request;
    struct roped_call call;
    struct roped_error err;
    CHECK_OK(read_into(&call, "binary_backward",
                       "{\"inputs\":[{\"name\":\"grad_output\",\"shape\":"
                       "[2,2],\"datatype\":\"FP32\",\"data\":[1,2,3,4]}],"
                       "\"parameters\":{\"a_shape\":[2,1],\"b_shape\":[]}}",
                       NULL, 0, &request, &err),
             &err);
    CHECK_INT(roped_call_resolve(&call, &err), ROPED_BAD_SHAPE);
    CHECK_CONTAINS(err.text, "expected [2, 1]");
    CHECK_OK(read_into(&call, "binary_backward",
                       "{\"inputs\":[{\"name\":\"grad_output\",\"shape\":"
                       "[2,2],\"datatype\":\"FP32\",\"data\":[1,2,3,4]}],"
                       "\"parameters\":{\"a_shape\":[2,2],\"b_shape\":[]}}",
                       NULL, 0, &request, &err),
             &err);
    CHECK_OK(roped_call_resolve(&call, &err), &err);
    CHECK_INT(call.out[1].rank, 0);
}

TEST(refuses_bad_parameters_by_name)
{
    refuse_params("[1]", "Unable to parse 'parameters': an array");
    refuse_params("\"x\"", "Unable to parse 'parameters': 'x'");
    refuse_params("{\"thet\":1}",
                  "unknown parameter 'thet': rope has none of that name; did "
                  "you mean 'theta'?");
    refuse_params("{\"theta\":0}", "parameter 'theta': 0, expected above 0");
    refuse_params("{\"theta\":1e999}", "parameter 'theta'");
    refuse_params("{\"theta\":null}", "parameter 'theta': null");
    refuse_params("{\"theta\":{}}", "parameter 'theta': an object");
    refuse_params("{\"theta\":true}", "parameter 'theta': true");
    refuse_params("{\"offset\":1.5}", "parameter 'offset': 1.5");
    refuse_params("{\"style\":1}", "parameter 'style': 1");
    refuse_params("{\"style\":\"x\"}", "parameter 'style': 'x'");
    refuse_params("{\"mrope_section\":[1.5,2]}", "parameter 'mrope_section'");
    refuse_params("{\"mrope_section\":[1,2,3,4,5]}",
                  "parameter 'mrope_section'");
    refuse_params("{\"mrope_section\":[1,[2]]}", "parameter 'mrope_section'");
    refuse_params("{\"table\":7}", "parameter 'table': 7");
    refuse_params("{\"table\":\"\"}", "parameter 'table'");
    refuse_params("{\"sequence_id\":1}", "'sequence_id' is not supported");
    refuse_params("{\"sequence_start\":true}", "is not supported");
    refuse_params("{\"triton_final\":1}", "'triton_final' is not supported");
    refuse_params("{\"binary_data_output\":1}",
                  "Unable to parse 'binary_data_output': 1");
}

TEST(refuses_malformed_requests)
{
    refuse("", 0, "failed to parse the request JSON buffer: ");
    refuse("{\"inputs\":", 0, "failed to parse the request JSON buffer: ");
    refuse("[]", 0, "Unable to parse 'inputs'");
    refuse("{}", 0, "Unable to parse 'inputs'");
    refuse("{\"inputs\":{}}", 0, "Unable to parse 'inputs'");
    refuse("{\"inputs\":[1]}", 0, "Unable to parse 'inputs'");
    refuse("{\"inputs\":[{\"name\":5}]}", 0, "Unable to parse 'inputs'");
    refuse("{\"id\":5,\"inputs\":[" Q_BINARY "]}", 16,
           "Unable to parse 'id': 5");
    refuse("{\"inputs\":[" Q_BINARY "],\"outputs\":{\"q\":{\"name\":\"q\"}}}",
           16, "Unable to parse 'outputs'");
    refuse("{\"inputs\":[" Q_BINARY "],\"outputs\":[5]}", 16,
           "Unable to parse 'outputs'");
    refuse("{\"inputs\":[{\"name\":\"q\",\"shape\":[1],\"datatype\":\"FP32\","
           "\"parameters\":[]}]}",
           0, "Unable to parse 'parameters'");
}

TEST(the_id_is_echoed_whole_or_refused)
{
    struct kserve_request request;
    struct roped_call call;
    struct roped_error err;
    for (int length = 127; length <= 128; length++) {
        char id[130], json[512];
        memset(id, 'i', (size_t)length);
        id[length] = '\0';
        snprintf(json, sizeof json, "{\"id\":\"%s\",\"inputs\":[%s]}", id,
                 Q_BINARY);
        if (length == 128) {
            refuse(json, 16, "'id': 128 bytes, expected at most 127");
            continue;
        }
        CHECK_OK(read_into(&call, "rope", json, NULL, 16, &request, &err),
                 &err);
        CHECK_TEXT(request.id, id);
    }
}

TEST(phrases_about_inputs)
{
    refuse("{\"inputs\":[{\"name\":\"X\",\"shape\":[1],\"datatype\":\"FP32\","
           "\"data\":[1]}]}",
           0,
           "unexpected inference input 'X' for model 'rope', expected q, k, "
           "positions, indptr, offsets, cos_sin_cache, cos, sin");
    for (int i = 0; i < roped_op_count(); i++) { /* all, or whole names */
        const struct roped_op *op = roped_op_at(i);
        refuse_as(op->name,
                  "{\"inputs\":[{\"name\":\"X\",\"shape\":[1],\"datatype\":"
                  "\"FP32\",\"data\":[1]}]}",
                  0, ROPED_UNKNOWN_NAME, op->in[roped_op_inputs(op) - 1].name);
    }
    refuse("{\"inputs\":[" Q_JSON "," Q_JSON "]}", 0,
           "input 'q' already exists in request");
    refuse("{\"inputs\":[{\"name\":\"q\",\"shape\":[1],\"datatype\":\"INT32\","
           "\"data\":[1]}]}",
           0,
           "inference input 'q' data-type is 'INT32', but model 'rope' "
           "expects 'FP32, BF16, FP16'");
    refuse("{\"inputs\":[{\"name\":\"q\",\"shape\":[1],\"datatype\":\"F32\","
           "\"data\":[1]}]}",
           0, "invalid datatype for input q");
    refuse("{\"inputs\":[{\"name\":\"q\",\"shape\":[1],\"data\":[1]}]}", 0,
           "Unable to parse 'datatype' of input 'q'");
    refuse("{\"inputs\":[{\"name\":\"q\",\"datatype\":\"FP32\",\"data\":[1]}]}",
           0, "Unable to parse 'shape' of input 'q'");
    refuse("{\"inputs\":[{\"name\":\"q\",\"shape\":[1,-4],\"datatype\":"
           "\"FP32\",\"data\":[1]}]}",
           0, "tensor 'q': dim 1 is -4, expected an integer of 0 or more");
    refuse("{\"inputs\":[{\"name\":\"q\",\"shape\":[4294967296,4294967296],"
           "\"datatype\":\"FP32\",\"data\":[1]}]}",
           0, "causes total element count to exceed maximum size of");
    refuse("{\"inputs\":[{\"name\":\"q\",\"shape\":[2147483648,2147483648],"
           "\"datatype\":\"FP32\",\"data\":[1]}]}",
           0, "byte size overflow for input");
    refuse("{\"inputs\":[{\"name\":\"q\",\"shape\":[1,1,1,1,1,1,1,1,1],"
           "\"datatype\":\"FP32\",\"data\":[1]}]}",
           0, "rank 9, expected at most 8");
}

TEST(phrases_about_missing_inputs)
{
    refuse("{\"inputs\":[]}", 0,
           "expected number of inputs between 1 and 10 but got 0 inputs for "
           "model 'rope'. Got input(s) [], but missing required input(s) "
           "['q']. Please provide all required input(s).");
    refuse_as("rope_quantize",
              "{\"inputs\":[{\"name\":\"q_nope\",\"shape\":[1,1,2],"
              "\"datatype\":\"BF16\",\"parameters\":{\"binary_data_size\":4}}"
              "]}",
              4, ROPED_INVALID,
              "Got input(s) ['q_nope'], but missing required input(s) "
              "['q_rope','k_rope']. Please");
}

TEST(phrases_about_bytes)
{
    refuse("{\"inputs\":[{\"name\":\"q\",\"shape\":[2,1,4],\"datatype\":"
           "\"BF16\",\"parameters\":{\"binary_data_size\":17}}]}",
           17,
           "input byte size mismatch for input 'q' for model 'rope'. "
           "Expected 16, got 17");
    refuse("{\"inputs\":[" Q_BINARY "]}", 10,
           "unexpected size for input 'q', expecting 6 additional bytes for "
           "model 'rope'");
    refuse("{\"inputs\":[" Q_BINARY "]}", 17,
           "unexpected additional input data for model 'rope'");
    refuse("{\"inputs\":[{\"name\":\"q\",\"shape\":[2,1,4],\"datatype\":"
           "\"BF16\",\"parameters\":{\"binary_data_size\":\"16\"}}]}",
           16, "Unable to parse 'binary_data_size' of input 'q'");
    refuse("{\"inputs\":[{\"name\":\"q\",\"shape\":[2,1,4],\"datatype\":"
           "\"BF16\"}]}",
           16, "Input must set only one of the following fields: ");
    refuse("{\"inputs\":[{\"name\":\"q\",\"shape\":[1],\"datatype\":\"FP32\","
           "\"data\":[1],\"parameters\":{\"binary_data_size\":4}}]}",
           4, "Input must set only one of the following fields: ");
}

TEST(phrases_about_json_values)
{
    refuse("{\"inputs\":[{\"name\":\"q\",\"shape\":[1],\"datatype\":\"FP16\","
           "\"data\":[1]}]}",
           0, "receiving FP16 data via JSON is not supported");
    refuse("{\"inputs\":[{\"name\":\"q\",\"shape\":[1],\"datatype\":\"BF16\","
           "\"data\":[1]}]}",
           0, "receiving BF16 data via JSON is not supported");
    refuse("{\"inputs\":[{\"name\":\"q\",\"shape\":[3],\"datatype\":\"FP32\","
           "\"data\":[1,2]}]}",
           0,
           "Shape does not match true shape of 'data' field of input 'q': 2 "
           "values, expected 3");
    refuse("{\"inputs\":[{\"name\":\"q\",\"shape\":[3],\"datatype\":\"FP32\","
           "\"data\":[[1,2],[3,4]]}]}",
           0,
           "Shape does not match true shape of 'data' field of input 'q': more "
           "than 3 values");
    refuse("{\"inputs\":[{\"name\":\"q\",\"shape\":[1],\"datatype\":\"FP32\","
           "\"data\":5}]}",
           0, "tensor 'q': 'data' is 5, expected an array");
    refuse("{\"inputs\":[{\"name\":\"q\",\"shape\":[1],\"datatype\":\"FP32\","
           "\"data\":{\"a\":1}}]}",
           0, "tensor 'q': 'data' is an object, expected an array");
    refuse("{\"inputs\":[{\"name\":\"q\",\"shape\":[1],\"datatype\":\"FP32\","
           "\"data\":[\"1\"]}]}",
           0, "tensor 'q': value '1' at index 0, expected a number of type");
    refuse("{\"inputs\":[{\"name\":\"q\",\"shape\":[2],\"datatype\":\"FP32\","
           "\"data\":[1,1e39]}]}",
           0, "value 1e+39 at index 1, expected a number of type FP32");
    refuse("{\"inputs\":[{\"name\":\"positions\",\"shape\":[2],\"datatype\":"
           "\"INT32\",\"data\":[0,2147483648]}]}",
           0, "value 2147483648 at index 1, expected a number of type INT32");
    refuse("{\"inputs\":[{\"name\":\"positions\",\"shape\":[1],\"datatype\":"
           "\"INT64\",\"data\":[0.5]}]}",
           0, "value 0.5 at index 0, expected a number of type INT64");
}

TEST(nan_is_no_json)
{
    refuse("{\"inputs\":[{\"data\":[[NaN]],\"name\":\"q\",\"shape\":[1],"
           "\"datatype\":\"FP32\"}]}",
           0,
           "tensor 'q': value NaN at index 0 is not valid JSON: send the "
           "tensor binary (binary_data_size)");
    refuse_params("{\"theta\":NaN}", "parameter 'theta': nan");
    refuse("{\"inputs\":[" Q_BINARY "],\"x\":[NaN]}", 16,
           "failed to parse the request JSON buffer: NaN and Infinity are not "
           "valid JSON at ");
    refuse("{\"inputs\":[{\"name\":\"q\",\"shape\":[2,1,4],\"datatype\":"
           "\"BF16\",\"y\":-Infinity,\"parameters\":{\"binary_data_size\":16}}"
           "]}",
           16, "NaN and Infinity are not valid JSON at ");
}

TEST(members_may_come_in_any_order)
{
    static const char json[] =
        "{\"outputs\":[{\"parameters\":{\"binary_data\":true},\"name\":\"q\"}],"
        "\"inputs\":[{\"data\":[1,2],\"x\":{\"name\":\"k\"},\"shape\":[1,1,2],"
        "\"datatype\":\"FP32\",\"n\\u0061me\":\"q\"}],\"x\":[{}],\"id\":\"7\","
        "\"parameters\":{\"theta\":3}}";
    float values[2];
    struct kserve_request request;
    struct roped_call call;
    struct roped_error err;
    CHECK_OK(read_into(&call, "rope", json, NULL, 0, &request, &err), &err);
    CHECK_TEXT(request.id, "7");
    CHECK_INT(request.n_outputs, 1);
    CHECK(request.output[0].is_binary);
    CHECK_INT(request.json_tensor_bytes, 16);
    CHECK_OK(kserve_read_json_tensors(OF_CALL(&call), json, strlen(json),
                                      &request, values, &err),
             &err);
    CHECK_DOUBLE(values[1], 2, 0);
}

TEST(what_is_missing_makes_it_no_json)
{
    static const char json[] =
        "{\"id\":\"7\",\"parameters\":{\"theta\":1e3,\"mrope_section\":[1,1,0]}"
        ","
        "\"inputs\":[" Q_JSON "," Q_BINARY "],\"x\":null}";
    for (size_t n = 0; n + 1 < sizeof json; n++) {
        char start[sizeof json];
        memcpy(start, json, n);
        start[n] = '\0';
        refuse(start, 16, "failed to parse the request JSON buffer: ");
    }
    refuse("{\"parameters\":}}", 0, "JSON buffer: invalid value at 14");
    refuse("{\"inputs\":]}", 0, "JSON buffer: invalid value at 10");
    refuse("{\"outputs\":,\"id\":1}", 0, "JSON buffer: invalid value at 11");
    refuse("{\"inputs\":[}]}", 0, "JSON buffer: invalid value at 11");
    refuse("{\"inputs\":[{\"parameters\":}]}", 0,
           "JSON buffer: invalid value at 25");
}

TEST(long_texts_are_no_parameters)
{
    char text[300], params[400];
    memset(text, '1', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    snprintf(params, sizeof params, "{\"theta\":\"%s\"}", text);
    refuse_params(params, "parameter 'theta': a text of 299 bytes, expected at "
                          "most 255");
    snprintf(params, sizeof params, "{\"%s\":1}", text);
    refuse_params(params, "unknown parameter '1111");
    snprintf(params, sizeof params, "{\"table\":\"%s\"}", text);
    refuse_params(params, "parameter 'table': '1111");
}

TEST(huge_json_shapes_ask_for_no_memory)
{
    /* four of 2^62 bytes would add up to 0 */
    refuse("{\"inputs\":[{\"name\":\"q\",\"shape\":[1073741824,1073741824,1],"
           "\"datatype\":\"FP32\",\"data\":[1]},{\"name\":\"k\",\"shape\":["
           "1073741824,1073741824,1],\"datatype\":\"FP32\",\"data\":[1]}]}",
           0, "1 values, expected 1152921504606846976");
}

TEST(phrases_about_outputs)
{
    refuse("{\"inputs\":[" Q_BINARY "],\"outputs\":[{\"name\":\"z\"}]}", 16,
           "unexpected inference output 'z' for model 'rope'");
    refuse("{\"inputs\":[" Q_BINARY "],\"outputs\":[{\"name\":\"q\"},{\"name\":"
           "\"q\"}]}",
           16, "output 'q' already exists in request");
    refuse("{\"inputs\":[" Q_BINARY "],\"outputs\":[{\"name\":\"q\","
           "\"parameters\":{\"classification\":3}}]}",
           16, "classification is not supported");
    refuse("{\"inputs\":[" Q_BINARY "],\"outputs\":[{\"name\":\"q\","
           "\"parameters\":{\"binary_data\":1}}]}",
           16, "Unable to parse 'binary_data'");
}

/* ----------------------------------------------------------- JSON tensors */

TEST(json_tensors_are_converted)
{
    static const char json[] =
        "{\"inputs\":[" Q_JSON ",{\"name\":\"k\",\"shape\":[1,2,4],"
        "\"datatype\":\"FP32\",\"data\":[[[1,2,3,4],[5,6,7,8]]]},"
        "{\"name\":\"positions\",\"shape\":[1],\"datatype\":\"INT64\",\"data\":"
        "[-9007199254740991]}]}";
    static const float q[] = {1, 2.5F, -3, 400};
    struct kserve_request request;
    struct roped_call call;
    struct roped_error err;
    CHECK_OK(read_into(&call, "rope", json, NULL, 0, &request, &err), &err);
    CHECK_INT(request.json_tensor_bytes, 16 + 32 + 16);
    unsigned char *memory = malloc((size_t)request.json_tensor_bytes);
    CHECK_OK(kserve_read_json_tensors(OF_CALL(&call), json, strlen(json),
                                      &request, memory, &err),
             &err);
    CHECK(call.in[0].data == memory);
    for (int i = 0; i < 4; i++)
        CHECK_DOUBLE(((const float *)call.in[0].data)[i], q[i], 0);
    CHECK_INT(((const float *)call.in[1].data)[7], 8);
    int64_t position;
    memcpy(&position, call.in[roped_op_input(call.op, "positions")].data,
           sizeof position);
    CHECK_INT(position, -9007199254740991);
    free(memory);
}

/* ---------------------------------------------------------------- answers */

/* Resolves a call that json asks for; its outputs are checked. */
static void prepare(struct roped_call *call, const char *op, const char *json,
                    uint64_t binary_bytes, struct kserve_request *request)
{
    struct roped_error err;
    CHECK_OK(read_into(call, op, json, NULL, binary_bytes, request, &err),
             &err);
    CHECK_OK(roped_call_resolve(call, &err), &err);
    CHECK_OK(kserve_check_outputs(OF_CALL(call), request, &err), &err);
}

static void check_response(struct roped_call *call,
                           const struct kserve_request *request,
                           uint64_t binary_bytes, const char *expected)
{
    uint64_t offset[SIGNATURE_OUTPUTS], found = 0;
    struct roped_error err;
    struct buffer buffer;
    buffer_init(&buffer);
    CHECK_OK(kserve_write_response(&buffer, OF_CALL(call), request, offset,
                                   &found, &err),
             &err);
    CHECK_TEXT(buffer.text, expected);
    CHECK_INT(found, binary_bytes);
    buffer_fini(&buffer);
}

TEST(binary_answers)
{
    struct kserve_request request;
    struct roped_call call;
    prepare(&call, "rope",
            "{\"id\":\"a\\\"b\",\"inputs\":[" Q_BINARY
            "],\"parameters\":{\"binary_data_output\":true}}",
            16, &request);
    check_response(&call, &request, 16,
                   "{\"id\":\"a\\\"b\",\"model_name\":\"rope\","
                   "\"model_version\":\"1\",\"outputs\":[{\"name\":\"q\","
                   "\"datatype\":\"BF16\",\"shape\":[2,1,4],\"parameters\":{"
                   "\"binary_data_size\":16}}]}");
}

TEST(outputs_come_in_the_order_asked_for)
{
    struct kserve_request request;
    struct roped_call call;
    prepare(&call, "rope",
            "{\"inputs\":[" Q_BINARY ",{\"name\":\"k\",\"shape\":[2,2,4],"
            "\"datatype\":\"BF16\",\"parameters\":{\"binary_data_size\":32}}],"
            "\"outputs\":[{\"name\":\"k\",\"parameters\":{\"binary_data\":true}"
            "},{\"name\":\"q\",\"parameters\":{\"binary_data\":true}}]}",
            48, &request);
    uint64_t offset[SIGNATURE_OUTPUTS], bytes;
    struct roped_error err;
    struct buffer buffer;
    buffer_init(&buffer);
    CHECK_OK(kserve_write_response(&buffer, OF_CALL(&call), &request, offset,
                                   &bytes, &err),
             &err);
    CHECK_INT(offset[roped_op_output(call.op, "k")], 0);
    CHECK_INT(offset[roped_op_output(call.op, "q")], 32);
    CHECK(strstr(buffer.text, "\"k\"") < strstr(buffer.text, "\"q\""));
    buffer_fini(&buffer);
}

TEST(json_answers_hold_the_values)
{
    float values[] = {1, -0.0f, 0.5f, -3e38f};
    struct kserve_request request;
    struct roped_call call;
    prepare(&call, "rope", "{\"inputs\":[" Q_JSON "]}", 0, &request);
    CHECK(!kserve_is_binary_answer(&request));
    call.out[0].data = values;
    check_response(&call, &request, 0,
                   "{\"model_name\":\"rope\",\"model_version\":\"1\","
                   "\"outputs\":[{\"name\":\"q\",\"datatype\":\"FP32\","
                   "\"shape\":[1,1,4],\"data\":[1,-0,0.5,-3e+38]}]}");
}

TEST(json_answers_cannot_hold_nan)
{
    float values[] = {1, 2, 3, (float)NAN};
    uint64_t offset[SIGNATURE_OUTPUTS], bytes;
    struct kserve_request request;
    struct roped_call call;
    struct roped_error err = {0};
    struct buffer buffer;
    prepare(&call, "rope", "{\"inputs\":[" Q_JSON "]}", 0, &request);
    call.out[0].data = values;
    buffer_init(&buffer);
    CHECK_INT(kserve_write_response(&buffer, OF_CALL(&call), &request, offset,
                                    &bytes, &err),
              ROPED_INVALID);
    CHECK_TEXT(err.text, "output 'q': element 3 is NaN, which JSON cannot say: "
                         "ask for it with binary_data");
    buffer_fini(&buffer);
}

#define QUANTIZE_INPUTS                                                        \
    "\"inputs\":[{\"name\":\"q_rope\",\"shape\":[1,1,2],\"datatype\":"         \
    "\"BF16\","                                                                \
    "\"parameters\":{\"binary_data_size\":4}},{\"name\":\"k_rope\",\"shape\":" \
    "[1,2],\"datatype\":\"BF16\",\"parameters\":{\"binary_data_size\":4}}]"

TEST(fp8_is_uint8_with_a_hint)
{
    unsigned char codes[] = {0, 255};
    struct kserve_request request;
    struct roped_call call;
    prepare(&call, "rope_quantize",
            "{" QUANTIZE_INPUTS ",\"parameters\":{\"output_dtype\":\"e5m2\"},"
            "\"outputs\":[{\"name\":\"q_rope\"},{\"name\":\"k_rope\","
            "\"parameters\":{\"binary_data\":true}}]}",
            8, &request);
    CHECK(!kserve_is_binary_answer(&request));
    call.out[roped_op_output(call.op, "q_rope")].data = codes;
    check_response(
        &call, &request, 2,
        "{\"model_name\":\"rope_quantize\",\"model_version\":\"1\","
        "\"parameters\":{\"content_datatype.q_rope\":\"F8_E5M2\","
        "\"content_datatype.k_rope\":\"F8_E5M2\"},\"outputs\":[{\"name\":"
        "\"q_rope\",\"datatype\":\"UINT8\",\"shape\":[1,1,2],\"data\":[0,255]},"
        "{\"name\":\"k_rope\",\"datatype\":\"UINT8\",\"shape\":[1,2],"
        "\"parameters\":{\"binary_data_size\":2,\"content_datatype\":"
        "\"F8_E5M2\"}}]}");
}

static void refuse_outputs(const char *json, uint64_t binary_bytes,
                           const char *why)
{
    struct kserve_request request;
    struct roped_call call;
    struct roped_error err;
    CHECK_OK(read_into(&call, "rope", json, NULL, binary_bytes, &request, &err),
             &err);
    CHECK_OK(roped_call_resolve(&call, &err), &err);
    CHECK_INT(kserve_check_outputs(OF_CALL(&call), &request, &err),
              ROPED_INVALID);
    CHECK_CONTAINS(err.text, why);
}

TEST(outputs_that_cannot_be_are_refused)
{
    refuse_outputs("{\"inputs\":[" Q_BINARY "]}", 16,
                   "sending BF16 data via JSON is not supported for output "
                   "'q'. Please set 'binary_data'");
    refuse_outputs("{\"inputs\":[" Q_BINARY "],\"outputs\":[{\"name\":\"q\"}],"
                   "\"parameters\":{\"binary_data_output\":true}}",
                   16, "sending BF16 data via JSON");
    refuse_outputs("{\"inputs\":[" Q_JSON "],\"outputs\":[{\"name\":\"k\"}]}",
                   0,
                   "unexpected inference output 'k' for model 'rope': it "
                   "needs input 'k'");
}

TEST(an_answer_that_does_not_fit_is_an_error)
{
    char memory[64];
    uint64_t offset[SIGNATURE_OUTPUTS], bytes;
    struct kserve_request request;
    struct roped_call call;
    struct roped_error err;
    struct buffer buffer;
    prepare(&call, "rope",
            "{\"inputs\":[" Q_BINARY
            "],\"parameters\":{\"binary_data_output\":true}}",
            16, &request);
    buffer_init_fixed(&buffer, memory, sizeof memory);
    CHECK_INT(kserve_write_response(&buffer, OF_CALL(&call), &request, offset,
                                    &bytes, &err),
              ROPED_NO_MEMORY);
}
