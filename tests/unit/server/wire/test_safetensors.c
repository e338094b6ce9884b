/*
 * test_safetensors.c - every rule of the container, on files made by hand;
 * what the writer writes, the reader reads.
 */
#include "wire/safetensors.h"

#include "check.h"
#include "refusal.h"

enum { MAX_SEEN = 8 };

/* What a reading has reported. */
struct seen {
    int n, n_metadata;
    struct safetensors_entry entry[MAX_SEEN];
    char metadata[256];
    int fail_at; /* the entry whose callback fails, or -1 */
};

static enum roped_status see_entry(void *context,
                                   const struct safetensors_entry *entry,
                                   struct roped_error *err)
{
    struct seen *seen = context;
    if (seen->n == seen->fail_at)
        return roped_fail(err, ROPED_UNSUPPORTED, "callback says no");
    if (seen->n < MAX_SEEN)
        seen->entry[seen->n] = *entry;
    seen->n++;
    return ROPED_OK;
}

static enum roped_status see_metadata(void *context, const char *name,
                                      const char *value,
                                      struct roped_error *err)
{
    struct seen *seen = context;
    (void)err;
    snprintf(seen->metadata, sizeof seen->metadata, "%s=%s", name, value);
    seen->n_metadata++;
    return ROPED_OK;
}

/* Reads a file of this JSON and data_bytes of data that are not there. */
static enum roped_status read_file(const char *json, uint64_t data_bytes,
                                   struct seen *seen, struct roped_error *err)
{
    size_t json_bytes = strlen(json), header_bytes = 0;
    size_t bytes = SAFETENSORS_PREFIX_BYTES + json_bytes;
    unsigned char *file = calloc(1, bytes); /* nothing behind: sanitizer */
    memset(seen, 0, sizeof *seen);
    seen->fail_at = -1;
    err->text[0] = '\0';
    for (int i = 0; i < 8; i++)
        file[i] = (unsigned char)((uint64_t)json_bytes >> (8 * i));
    for (size_t i = 0; i < json_bytes; i++)
        file[SAFETENSORS_PREFIX_BYTES + i] = (unsigned char)json[i];
    enum roped_status status =
        safetensors_header_bytes(file, bytes + data_bytes, &header_bytes, err);
    if (!status) {
        CHECK_INT(header_bytes, bytes);
        status = safetensors_read(file, header_bytes, bytes + data_bytes,
                                  see_entry, see_metadata, seen, err);
    }
    free(file);
    return status;
}

static void refuse(const char *json, uint64_t data_bytes, const char *why)
{
    struct seen seen;
    struct roped_error err;
    if (!is_refusal(read_file(json, data_bytes, &seen, &err)))
        CHECK_FAIL("%s: not refused as invalid (%s)", json, err.text);
    else
        CHECK_CONTAINS(err.text, why);
}

static void accept(const char *json, uint64_t data_bytes, int n)
{
    struct seen seen;
    struct roped_error err;
    if (read_file(json, data_bytes, &seen, &err))
        CHECK_FAIL("%s: %s", json, err.text);
    CHECK_INT(seen.n, n);
}

/* One tensor 'x' with the given rest of its entry. */
static void refuse_x(const char *entry, uint64_t data_bytes, const char *why)
{
    char json[512];
    snprintf(json, sizeof json, "{\"x\":{%s}}", entry);
    refuse(json, data_bytes, why);
}

TEST(the_header_length_is_bounded)
{
    struct roped_error err;
    size_t header_bytes;
    static const struct {
        unsigned char prefix[8];
        uint64_t total;
        const char *why; /* NULL: accepted */
    } cases[] = {
        {{2}, 10, NULL},
        {{2}, 7, "body of 7 bytes, expected at least 8"},
        {{0}, 0, "body of 0 bytes"},
        {{3}, 10, "header length is 3, but only 2 bytes follow"},
        {{0, 0, 16}, 1 << 21, NULL},
        {{1, 0, 16}, 1 << 21, "header length is 1048577, expected at most"},
        {{255, 255, 255, 255, 255, 255, 255, 255},
         UINT64_MAX,
         "header length is 18446744073709551615"},
        {{0, 0, 0, 0, 0, 0, 0, 128}, 100, "expected at most"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        enum roped_status status = safetensors_header_bytes(
            cases[i].prefix, cases[i].total, &header_bytes, &err);
        CHECK_INT(status, cases[i].why ? ROPED_INVALID : ROPED_OK);
        if (cases[i].why)
            CHECK_CONTAINS(err.text, cases[i].why);
    }
}

TEST(reads_tensors_in_file_order)
{
    struct seen seen;
    struct roped_error err;
    CHECK_OK(read_file("{\"b\":{\"data_offsets\":[4,28],\"shape\":[2,3],"
                       "\"dtype\":\"F32\",\"extra\":{\"a\":[null]}},"
                       "\"__metadata__\":{\"op\":\"rope\"},"
                       "\"a\":{\"dtype\":\"BF16\",\"shape\":[2],"
                       "\"data_offsets\":[0,4]}}  ",
                       28, &seen, &err),
             &err);
    CHECK_INT(seen.n, 2);
    CHECK_TEXT(seen.entry[0].name, "b");
    CHECK_INT(seen.entry[0].tensor.dtype, ROPED_F32);
    CHECK_INT(seen.entry[0].tensor.rank, 2);
    CHECK_INT(seen.entry[0].tensor.dims[1], 3);
    CHECK_INT(seen.entry[0].begin, 4);
    CHECK_INT(seen.entry[0].end, 28);
    CHECK(seen.entry[0].tensor.data == NULL);
    CHECK_TEXT(seen.entry[1].name, "a");
    CHECK_INT(seen.entry[1].tensor.dtype, ROPED_BF16);
    CHECK_INT(seen.n_metadata, 1);
    CHECK_TEXT(seen.metadata, "op=rope");
}

TEST(accepts_edges)
{
    accept("{}", 0, 0);
    accept("{}\n\t ", 0, 0);
    accept("{\"__metadata__\":null}", 0, 0);
    accept("{\"s\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]}}", 8,
           1);
    accept("{\"z\":{\"dtype\":\"F32\",\"shape\":[0,5],\"data_offsets\":[0,0]}}",
           0, 1);
    /* an empty one between two others, and one that starts unaligned */
    accept("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
           "\"e\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[1,1]},"
           "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[1,5]}}",
           5, 3);
    accept("{\"x\":{\"dtype\":\"F8_E4M3\",\"shape\":[0,9007199254740991,"
           "9007199254740991],\"data_offsets\":[0,0]}}",
           0, 1);
    accept("{\"x\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1],"
           "\"data_offsets\":[0,1]}}",
           1, 1);
}

TEST(every_dtype_has_its_name_and_size)
{
    static const struct {
        const char *name;
        int bytes;
    } types[] = {{"BOOL", 1},    {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1},
                 {"F8_E4M3", 1}, {"I16", 2}, {"U16", 2}, {"F16", 2},
                 {"BF16", 2},    {"I32", 4}, {"U32", 4}, {"F32", 4},
                 {"F64", 8},     {"I64", 8}, {"U64", 8}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        char json[128];
        snprintf(json, sizeof json,
                 "{\"x\":{\"dtype\":\"%s\",\"shape\":[3],\"data_offsets\":[0,"
                 "%d]}}",
                 types[i].name, 3 * types[i].bytes);
        accept(json, 3 * (uint64_t)types[i].bytes, 1);
    }
}

TEST(refuses_headers_that_are_no_object)
{
    refuse("", 0, "does not start with '{'");
    refuse("[]", 0, "does not start with '{'");
    refuse(" {}", 0, "does not start with '{'");
    refuse("{} {}", 0, "something follows");
    refuse("{", 0, "failed to parse");
    refuse("{\"x\":1}", 0, "tensor 'x': expected an object");
    refuse("{\"x\":[]}", 0, "tensor 'x': expected an object");
    refuse("{\"x\":null}", 0, "tensor 'x': expected an object");
}

TEST(what_is_missing_makes_it_no_json)
{
    static const char json[] =
        "{\"__metadata__\":{\"a\":\"b\"},\"x\":{\"dtype\":\"F32\",\"y\":true,"
        "\"shape\":[1,2],\"data_offsets\":[0,8]}}";
    accept(json, 8, 1);
    for (size_t n = 1; n + 1 < sizeof json; n++) {
        char start[sizeof json];
        memcpy(start, json, n);
        start[n] = '\0';
        refuse(start, 8,
               "failed to parse the JSON of the safetensors header: ");
    }
    refuse("{\"x\":}}", 0, "safetensors header: invalid value at 5");
    refuse("{\"__metadata__\":}}", 0,
           "safetensors header: invalid value at 16");
    refuse("{\"x\":{\"shape\":}}}", 0,
           "safetensors header: invalid value at 14");
}

TEST(metadata_is_handed_on_whole)
{
    char json[256 + 64], expected[256];
    struct seen seen;
    struct roped_error err;
    memset(expected, 'v', sizeof expected);
    memcpy(expected, "k=", 2);
    expected[sizeof expected - 1] = '\0';
    snprintf(json, sizeof json, "{\"__metadata__\":{\"\\u006b\":\"%s\"}}",
             expected + 2);
    CHECK_OK(read_file(json, 0, &seen, &err), &err);
    CHECK_TEXT(seen.metadata, expected);
}

TEST(refuses_wrong_fields)
{
    refuse_x("\"shape\":[1],\"data_offsets\":[0,4]", 4,
             "tensor 'x': dtype is nothing, expected U64");
    refuse_x("\"dtype\":\"f32\",\"shape\":[1],\"data_offsets\":[0,4]", 4,
             "tensor 'x': dtype is 'f32'");
    refuse_x("\"dtype\":\"F8_E4M3FN\",\"shape\":[1],\"data_offsets\":[0,1]", 1,
             "dtype is 'F8_E4M3FN'");
    refuse_x("\"dtype\":4,\"shape\":[1],\"data_offsets\":[0,4]", 4,
             "dtype is 4");
    refuse_x("\"dtype\":\"F32\",\"data_offsets\":[0,4]", 4,
             "tensor 'x': shape is nothing");
    refuse_x("\"dtype\":\"F32\",\"shape\":1,\"data_offsets\":[0,4]", 4,
             "tensor 'x': shape is 1");
    refuse_x("\"dtype\":\"F32\",\"shape\":[1]", 4, "data_offsets are not");
    refuse_x("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]", 4,
             "data_offsets are not");
    refuse_x("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]", 4,
             "data_offsets are not");
    refuse_x("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]", 4,
             "data_offsets are not");
    refuse_x("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":{\"a\":0,"
             "\"b\":4}",
             4, "data_offsets are not");
    refuse_x("\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],"
             "\"data_offsets\":[0,4]",
             4, "duplicate name 'dtype'");
}

TEST(refuses_wrong_numbers)
{
    refuse_x("\"dtype\":\"F32\",\"shape\":[1,-1],\"data_offsets\":[0,4]", 4,
             "tensor 'x': dim 1 is -1, expected an integer of 0 or more");
    refuse_x("\"dtype\":\"F32\",\"shape\":[1.5],\"data_offsets\":[0,4]", 4,
             "dim 0 is 1.5");
    refuse_x("\"dtype\":\"F32\",\"shape\":[null],\"data_offsets\":[0,4]", 4,
             "dim 0 is null");
    refuse_x("\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]", 4,
             "not written in digits alone");
    refuse_x("\"dtype\":\"F32\",\"shape\":[1e0],\"data_offsets\":[0,4]", 4,
             "not written in digits alone");
    refuse_x("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-0,4]", 4,
             "not written in digits alone");
    refuse_x("\"dtype\":\"F32\",\"shape\":[01],\"data_offsets\":[0,4]", 4,
             "leading zero");
    refuse_x("\"dtype\":\"F32\",\"shape\":[18446744073709551616],"
             "\"data_offsets\":[0,4]",
             4, "dim 0 is");
    refuse_x("\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],"
             "\"data_offsets\":[0,4]",
             4, "tensor 'x': rank 9, expected at most 8");
    refuse_x("\"dtype\":\"U8\",\"shape\":[4294967296,4294967296],"
             "\"data_offsets\":[0,4]",
             4, "exceed maximum size");
    refuse_x("\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,4]", 4,
             "tensor 'x': data_offsets span 4 bytes, expected 12");
}

TEST(refuses_holes_overlaps_and_wrong_ends)
{
    static const char two[] =
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[%d,%d]},"
        "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[%d,%d]}}";
    char json[256];
    snprintf(json, sizeof json, two, 4, 8, 0, 4);
    accept(json, 8, 2);
    refuse(json, 9, "tensors end at byte 8 of the data, but 9 bytes were sent");
    refuse(json, 7, "but 7 bytes were sent");
    snprintf(json, sizeof json, two, 0, 4, 5, 9);
    refuse(json, 9, "tensor 'b': data begins at 5, expected 4");
    snprintf(json, sizeof json, two, 0, 4, 3, 7);
    refuse(json, 7, "tensor 'b': data begins at 3, expected 4");
    snprintf(json, sizeof json, two, 0, 4, 0, 4);
    refuse(json, 4, "data begins at 0, expected 4");
    snprintf(json, sizeof json, two, 1, 5, 5, 9);
    refuse(json, 9, "tensor 'a': data begins at 1, expected 0");
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[2,2]},"
           "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
           4, "tensor 'a': data begins at 2, expected 4");
    refuse("{}", 1, "tensors end at byte 0 of the data, but 1 bytes");
}

TEST(refuses_bad_names_and_metadata)
{
    refuse("{\"x\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
           "\"\\u0078\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]"
           "}}",
           2, "duplicate name 'x'");
    refuse("{\"x\\u0000\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,"
           "1]}}",
           1, "NUL");
    refuse("{\"x\\n\":{}}", 1, "control character in a name");
    refuse("{\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
           "\":{}}",
           0, "name of 64 bytes, expected at most 63");
    refuse("{\"__metadata__\":{},\"__metadata__\":{}}", 0, "duplicate");
    refuse("{\"__metadata__\":{\"a\":\"\",\"a\":\"\"}}", 0,
           "duplicate name 'a'");
    refuse("{\"x\":[NaN]}", 0, "tensor 'x': expected an object");
    refuse("{\"x\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0],"
           "\"y\":NaN}}",
           0, "NaN and Infinity are not valid JSON at 56");
    refuse("{\"__metadata__\":[]}", 0, "__metadata__");
    refuse("{\"__metadata__\":{\"a\":1}}", 0, "__metadata__ 'a'");
}

TEST(bounds_the_number_of_tensors)
{
    for (int n = SAFETENSORS_MAX_TENSORS; n <= SAFETENSORS_MAX_TENSORS + 1;
         n++) {
        struct buffer json;
        buffer_init(&json);
        buffer_text(&json, "{\"__metadata__\":{}");
        for (int i = 0; i < n; i++)
            buffer_printf(&json,
                          ",\"t%d\":{\"dtype\":\"U8\",\"shape\":[0],"
                          "\"data_offsets\":[0,0]}",
                          i);
        buffer_text(&json, "}");
        if (n == SAFETENSORS_MAX_TENSORS)
            accept(json.text, 0, n);
        else
            refuse(json.text, 0, "over 1024 tensors");
        buffer_fini(&json);
    }
}

TEST(a_failing_callback_ends_the_reading)
{
    static const char json[] =
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
        "\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}";
    unsigned char file[256] = {sizeof json - 1};
    struct seen seen = {.fail_at = 1};
    struct roped_error err;
    memcpy(file + 8, json, sizeof json - 1);
    CHECK_INT(safetensors_read(file, 8 + sizeof json - 1, 8 + sizeof json + 1,
                               see_entry, NULL, &seen, &err),
              ROPED_UNSUPPORTED);
    CHECK_TEXT(err.text, "callback says no");
    CHECK_INT(seen.n, 1);
}

TEST(without_a_callback_the_tensors_are_checked_all_the_same)
{
    static const char *const tensors[] = {"{\"dtype\":\"U8\",\"shape\":[1],"
                                          "\"data_offsets\":[0,1]}",
                                          "{\"dtype\":\"U8\",\"shape\":[2],"
                                          "\"data_offsets\":[0,1]}"};
    for (int i = 0; i < 2; i++) {
        unsigned char file[256] = {0};
        struct roped_error err;
        int n = snprintf((char *)file + 8, sizeof file - 8, "{\"a\":%s}",
                         tensors[i]);
        file[0] = (unsigned char)n;
        enum roped_status status = safetensors_read(
            file, 8 + (size_t)n, 9 + (uint64_t)n, NULL, NULL, NULL, &err);
        CHECK_INT(status != ROPED_OK, i);
    }
}

/* ---------------------------------------------------------------- writing */

TEST(what_is_written_can_be_read)
{
    struct roped_tensor q = {ROPED_F8_E4M3, 3, {3, 5, 7}, NULL};
    struct roped_tensor s = {ROPED_F32, 0, {0}, NULL};
    struct safetensors_output outputs[] = {{"q", &q, 0}, {"s", &s, 0}};
    const char *const metadata[][2] = {{"op", "rope \"x\""}};
    struct roped_error err;
    struct buffer buffer;
    uint64_t data_bytes;
    buffer_init(&buffer);
    buffer_text(&buffer, "abc"); /* appends: alignment counts from here */
    CHECK_OK(safetensors_write_header(&buffer, outputs, 2, metadata, 1, false,
                                      &data_bytes, &err),
             &err);
    CHECK_INT(data_bytes, 105 + 4);
    CHECK_INT(outputs[0].offset, 0);
    CHECK_INT(outputs[1].offset, 105);
    size_t bytes = buffer.bytes - 3, header_bytes;
    CHECK_INT(bytes % SAFETENSORS_DATA_ALIGNMENT, 0);
    struct seen seen = {.fail_at = -1};
    CHECK_OK(safetensors_header_bytes(buffer.text + 3, bytes + data_bytes,
                                      &header_bytes, &err),
             &err);
    CHECK_INT(header_bytes, bytes);
    CHECK_OK(safetensors_read(buffer.text + 3, bytes, bytes + data_bytes,
                              see_entry, see_metadata, &seen, &err),
             &err);
    CHECK_INT(seen.n, 2);
    CHECK_TEXT(seen.metadata, "op=rope \"x\"");
    CHECK_INT(seen.entry[0].tensor.dtype, ROPED_F8_E4M3);
    CHECK_INT(seen.entry[0].tensor.dims[2], 7);
    CHECK_INT(seen.entry[1].tensor.rank, 0);
    CHECK_INT(seen.entry[1].begin, 105);
    buffer_fini(&buffer);
}

TEST(fp8_can_be_named_u8)
{
    struct roped_tensor q = {ROPED_F8_E5M2, 1, {4}, NULL};
    struct safetensors_output output = {"q", &q, 0};
    struct roped_error err;
    struct buffer buffer;
    uint64_t data_bytes;
    buffer_init(&buffer);
    CHECK_OK(safetensors_write_header(&buffer, &output, 1, NULL, 0, true,
                                      &data_bytes, &err),
             &err);
    CHECK_CONTAINS(buffer.text + 8, "\"dtype\":\"U8\"");
    buffer_fini(&buffer);
}

TEST(a_buffer_that_is_too_small_is_an_error)
{
    struct roped_tensor q = {ROPED_F32, 1, {4}, NULL};
    struct safetensors_output output = {"q", &q, 0};
    struct roped_error err;
    struct buffer buffer;
    char memory[64];
    uint64_t data_bytes;
    buffer_init_fixed(&buffer, memory, sizeof memory);
    CHECK_INT(safetensors_write_header(&buffer, &output, 1, NULL, 0, false,
                                       &data_bytes, &err),
              ROPED_NO_MEMORY);
}
