/*
 * test_kserve_region.c - v2 requests whose tensors are in regions, and their
 * answers.
 */
#include "wire/kserve_region.h"

#include "check.h"
#include "of_call.h"
#include "refusal.h"
#include "wire/kserve.h"

#define Q_BINARY                                                               \
    "{\"name\":\"q\",\"shape\":[2,1,4],\"datatype\":\"BF16\","                 \
    "\"parameters\":{\"binary_data_size\":16}}"

static enum roped_status read_into(struct roped_call *call, const char *json,
                                   void *binary, uint64_t binary_bytes,
                                   struct kserve_request *request,
                                   struct roped_error *err)
{
    err->text[0] = '\0';
    roped_call_init(call, roped_op_find("rope"));
    const struct kserve_body body = {json, strlen(json), binary, binary_bytes};
    return kserve_read_request(OF_CALL(call), &body, request, err);
}

static void refuse_as(const char *json, uint64_t binary_bytes,
                      enum roped_status expected, const char *why)
{
    struct kserve_request request;
    struct roped_call call;
    struct roped_error err;
    enum roped_status status =
        read_into(&call, json, NULL, binary_bytes, &request, &err);
    CHECK(is_expected(status, expected));
    CHECK_CONTAINS(err.text, why);
}

static void refuse(const char *json, uint64_t binary_bytes, const char *why)
{
    refuse_as(json, binary_bytes, ROPED_INVALID, why);
}

/* An input of region r, params being the rest of its parameters. */
#define IN_REGION(params)                                                      \
    "{\"name\":\"q\",\"shape\":[2,1,4],\"datatype\":\"BF16\","                 \
    "\"parameters\":{\"shared_memory_region\":" params "}}"
#define REQUEST_IN_REGION(params) "{\"inputs\":[" IN_REGION(params) "]}"

TEST(tensors_may_be_in_regions)
{
    struct kserve_request request;
    struct roped_call call;
    struct roped_error err;
    const char *json = "{\"inputs\":[" IN_REGION(
        "\"r\",\"shared_memory_byte_size\":16,"
        "\"shared_memory_offset\":48") "],"
                                       "\"outputs\":[{\"name\":\"q\","
                                       "\"parameters\":{"
                                       "\"shared_memory_region\":\"out\","
                                       "\"shared_memory_byte_size\":99}}]}";
    CHECK_OK(read_into(&call, json, NULL, 0, &request, &err), &err);
    CHECK_INT(request.regions.n, 2);
    const struct region_ref *in = &request.regions.ref[0];
    const struct region_ref *out = &request.regions.ref[1];
    CHECK(!in->is_output && out->is_output);
    CHECK_TEXT(in->region, "r");
    CHECK_INT(in->offset, 48);
    CHECK_INT(in->bytes, 16);
    CHECK_TEXT(out->region, "out");
    CHECK_INT(out->offset, 0);
    CHECK_INT(out->bytes, 99);
    CHECK_INT(call.in[0].rank, 3);
    CHECK(!call.in[0].data);
}

TEST(tensors_in_regions_may_have_strides)
{
    struct kserve_request request;
    struct roped_call call;
    struct roped_error err;
    const char *json = "{\"inputs\":[" IN_REGION(
        "\"r\",\"shared_memory_byte_size\":48,"
        "\"stride\":20") "],"
                         "\"outputs\":[{\"name\":\"q\","
                         "\"parameters\":{"
                         "\"shared_memory_region\":\"out\","
                         "\"shared_memory_byte_size\":99,"
                         "\"stride\":30}}]}";
    CHECK_OK(read_into(&call, json, NULL, 0, &request, &err), &err);
    CHECK_INT(call.in[0].stride, 20);
    CHECK_INT(request.regions.ref[1].tensor.stride, 30);
    CHECK_OK(roped_call_resolve(&call, &err), &err);
    CHECK_OK(
        kserve_check_strided_inputs(OF_CALL(&call), &request.regions, &err),
        &err);
    request.regions.ref[0].bytes = 47;
    CHECK_INT(
        kserve_check_strided_inputs(OF_CALL(&call), &request.regions, &err),
        ROPED_INVALID);
    CHECK_CONTAINS(err.text,
                   "input 'q' (47 bytes) should be at least 48 bytes");
    refuse(REQUEST_IN_REGION("\"r\",\"shared_memory_byte_size\":48,"
                             "\"stride\":0"),
           0,
           "Unable to parse 'stride' of input 'q': 0, expected elements from "
           "one token to the next, above 0");
    refuse(REQUEST_IN_REGION("\"r\",\"shared_memory_byte_size\":48,"
                             "\"stride\":\"wide\""),
           0, "Unable to parse 'stride' of input 'q'");
    refuse("{\"inputs\":[{\"name\":\"q\",\"shape\":[2,1,4],\"datatype\":"
           "\"FP32\",\"parameters\":{\"stride\":8},\"data\":[1,2,3,4,5,6,7,"
           "8]}]}",
           0,
           "input 'q': 'stride' is given, but not 'shared_memory_region': "
           "tensors in a message are packed");
}

TEST(regions_are_described_in_full)
{
    refuse(REQUEST_IN_REGION("7"), 0,
           "Unable to parse 'shared_memory_region' "
           "of input 'q': 7, expected a string");
    refuse(REQUEST_IN_REGION("\"r\""), 0,
           "Unable to parse 'shared_memory_byte_size' of input 'q': absent");
    refuse(REQUEST_IN_REGION("\"r\",\"shared_memory_byte_size\":-1"), 0,
           "Unable to parse 'shared_memory_byte_size' of input 'q': -1");
    refuse(REQUEST_IN_REGION("\"r\",\"shared_memory_byte_size\":17"), 0,
           "input byte size mismatch for input 'q' for model 'rope'. Expected "
           "16, got 17");
    refuse(REQUEST_IN_REGION("\"r\",\"shared_memory_byte_size\":16,"
                             "\"shared_memory_offset\":1.5"),
           0, "Unable to parse 'shared_memory_offset' of input 'q': 1.5");
    refuse(REQUEST_IN_REGION("\"r\",\"shared_memory_byte_size\":16,"
                             "\"shared_memory_offset\":18446744073709551584"),
           0, "Integer overflow detected: byte_size ");
    refuse(REQUEST_IN_REGION("\"r\",\"shared_memory_byte_size\":16,"
                             "\"binary_data_size\":16"),
           16, "Input must set only one of the following fields");
    refuse_as(REQUEST_IN_REGION("\"\",\"shared_memory_byte_size\":16"), 0,
              ROPED_NO_REGION, "Unable to find shared memory region: ''");
    refuse("{\"inputs\":[" Q_BINARY "],\"outputs\":[{\"name\":\"q\","
           "\"parameters\":{\"shared_memory_region\":\"out\"}}]}",
           16,
           "Unable to parse 'shared_memory_byte_size' of output 'q': absent");
}

/* Resolves a request whose output goes to a region of so many bytes. */
static enum roped_status check_room_of(uint64_t bytes,
                                       struct kserve_request *request,
                                       struct roped_call *call,
                                       struct roped_error *err)
{
    static unsigned char binary[16];
    char json[512];
    snprintf(json, sizeof json,
             "{\"inputs\":[" Q_BINARY "],\"outputs\":[{\"name\":\"q\","
             "\"parameters\":{\"shared_memory_region\":\"out\","
             "\"shared_memory_byte_size\":%llu}}]}",
             (unsigned long long)bytes);
    CHECK_OK(read_into(call, json, binary, 16, request, err), err);
    CHECK_OK(roped_call_resolve(call, err), err);
    request->kept = 1;
    return kserve_check_outputs(OF_CALL(call), request, err);
}

TEST(outputs_in_regions_need_room_and_are_not_sent)
{
    struct kserve_request request;
    struct roped_call call;
    struct roped_error err;
    struct buffer buffer;
    uint64_t offset[SIGNATURE_OUTPUTS], binary_bytes = 9;
    CHECK_INT(check_room_of(15, &request, &call, &err), ROPED_INVALID);
    CHECK_TEXT(err.text,
               "shared memory size specified with the request for output 'q' "
               "(15 bytes) should be at least 16 bytes to hold the results");
    CHECK_OK(check_room_of(16, &request, &call, &err), &err);
    CHECK_OK(check_room_of(1000, &request, &call, &err), &err);
    CHECK(kserve_is_binary_answer(&request));
    buffer_init(&buffer);
    CHECK_OK(kserve_write_response(&buffer, OF_CALL(&call), &request, offset,
                                   &binary_bytes, &err),
             &err);
    CHECK_INT(binary_bytes, 0);
    CHECK_CONTAINS(buffer.text,
                   "\"outputs\":[{\"name\":\"q\",\"datatype\":\"BF16\","
                   "\"shape\":[2,1,4]}]}");
    buffer_fini(&buffer);
}

static enum roped_status read_system(const char *json,
                                     struct kserve_system_memory *out,
                                     struct roped_error *err)
{
    return kserve_read_system_memory(json, strlen(json), out, err);
}

TEST(system_memory_is_registered_by_key_offset_and_size)
{
    struct kserve_system_memory sent;
    struct roped_error err;
    CHECK_OK(read_system("{\"key\":\"/a\",\"offset\":8,\"byte_size\":64}",
                         &sent, &err),
             &err);
    CHECK_TEXT(sent.key, "/a");
    CHECK_INT(sent.offset, 8);
    CHECK_INT(sent.bytes, 64);
    CHECK_OK(read_system("{\"byte_size\":64,\"key\":\"a\"}", &sent, &err),
             &err);
    CHECK_INT(sent.offset, 0);
}

TEST(registrations_that_say_too_little_are_refused)
{
    static const char *const cases[][2] = {
        {"", "failed to parse the request JSON buffer"},
        {"[1]", "Unable to parse 'key': absent"},
        {"{\"byte_size\":64}", "Unable to parse 'key': absent"},
        {"{\"key\":7,\"byte_size\":64}", "Unable to parse 'key': 7"},
        {"{\"key\":\"a\"}", "Unable to parse 'byte_size': absent"},
        {"{\"key\":\"a\",\"byte_size\":\"64\"}",
         "Unable to parse 'byte_size': '64'"},
        {"{\"key\":\"a\",\"byte_size\":-64}",
         "Unable to parse 'byte_size': -64"},
        {"{\"key\":\"a\",\"byte_size\":64,\"offset\":0.5}",
         "Unable to parse 'offset': 0.5"}};
    struct kserve_system_memory sent;
    struct roped_error err;
    char json[400];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK_INT(read_system(cases[i][0], &sent, &err), ROPED_INVALID);
        CHECK_CONTAINS(err.text, cases[i][1]);
    }
    snprintf(json, sizeof json, "{\"byte_size\":1,\"key\":\"%0300d\"}", 0);
    CHECK_INT(read_system(json, &sent, &err), ROPED_INVALID);
    CHECK_CONTAINS(err.text, "300 bytes, expected at most 255");
}

/* An updated input in a region keeps its output there: who lists that output
 * says so too, and who lists none has the others sent. */
TEST(an_updated_output_is_not_sent)
{
    static unsigned char binary[16];
    struct kserve_request request;
    struct roped_call call;
    struct roped_error err;
    CHECK_OK(read_into(&call,
                       "{\"inputs\":[" Q_BINARY "],\"outputs\":[{\"name\":"
                       "\"q\",\"parameters\":{\"binary_data\":true}}]}",
                       binary, 16, &request, &err),
             &err);
    CHECK_OK(roped_call_resolve(&call, &err), &err);
    request.kept = 1;
    CHECK_INT(kserve_check_outputs(OF_CALL(&call), &request, &err),
              ROPED_INVALID);
    CHECK_CONTAINS(err.text, "output 'q': its input is updated in a region");
    CHECK_OK(read_into(&call, "{\"inputs\":[" Q_BINARY "]}", binary, 16,
                       &request, &err),
             &err);
    CHECK_OK(roped_call_resolve(&call, &err), &err);
    request.kept = 1;
    CHECK_OK(kserve_check_outputs(OF_CALL(&call), &request, &err), &err);
    CHECK(kserve_is_binary_answer(&request));
}

/* ------------------------------------------------------------ CUDA handles */

/* 64 bytes 0, 1, 2, ... */
#define HANDLE                                                                 \
    "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vMDEyMzQ1" \
    "Njc4OTo7PD0+Pw"

static enum roped_status read_cuda(const char *base64,
                                   struct kserve_cuda_memory *out,
                                   struct roped_error *err)
{
    char json[400];
    int bytes = snprintf(json, sizeof json,
                         "{\"raw_handle\":{\"b64\":\"%s\"},\"device_id\":3,"
                         "\"byte_size\":64}",
                         base64);
    return kserve_read_cuda_memory(json, (size_t)bytes, out, err);
}

TEST(a_handle_is_64_bytes_of_base64)
{
    static const char *const good[] = {HANDLE "==", HANDLE, HANDLE "==\\n"};
    struct kserve_cuda_memory sent;
    struct roped_error err;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        memset(&sent, 0xEE, sizeof sent);
        CHECK_OK(read_cuda(good[i], &sent, &err), &err);
        for (int j = 0; j < 64; j++)
            CHECK_INT(sent.handle[j], j);
        CHECK_INT(sent.device, 3);
        CHECK_INT(sent.bytes, 64);
    }
}

TEST(what_is_no_handle_is_refused)
{
    static const char *const bad[] = {"",          "AAAA",     HANDLE "AA==",
                                      HANDLE "A=", "*" HANDLE, "AAEC AwQF",
                                      HANDLE "==A"};
    static const char *const others[][2] = {
        {"{\"device_id\":0,\"byte_size\":64}", "'raw_handle' must be"},
        {"{\"raw_handle\":\"" HANDLE "\",\"device_id\":0,\"byte_size\":64}",
         "'raw_handle' must be"},
        {"{\"raw_handle\":{\"b64\":7},\"device_id\":0,\"byte_size\":64}",
         "'raw_handle' must be"},
        {"{\"raw_handle\":{\"b64\":\"" HANDLE "\"},\"byte_size\":64}",
         "Unable to parse 'device_id'"},
        {"{\"raw_handle\":{\"b64\":\"" HANDLE "\"},\"device_id\":0}",
         "Unable to parse 'byte_size'"},
        {"{", "failed to parse the request JSON buffer"}};
    struct kserve_cuda_memory sent;
    struct roped_error err;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK_INT(read_cuda(bad[i], &sent, &err), ROPED_INVALID);
        CHECK_TEXT(err.text, "'raw_handle' must be a valid base64 encoded "
                             "cudaIpcMemHandle_t");
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        CHECK_INT(kserve_read_cuda_memory(others[i][0], strlen(others[i][0]),
                                          &sent, &err),
                  ROPED_INVALID);
        CHECK_CONTAINS(err.text, others[i][1]);
    }
}
