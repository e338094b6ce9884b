/*
 * test_v1.c - calls as safetensors files: from bytes to a bound call, from a
 * resolved call to the answer's header.
 */
#include "wire/v1.h"

#include "check.h"
#include "of_call.h"
#include "wire/safetensors.h"

/* A request's header for these tensors; returns the data bytes. */
static uint64_t make_request(struct buffer *buffer,
                             struct safetensors_output *tensors, int n)
{
    struct roped_error err;
    uint64_t data_bytes = 0;
    buffer_init(buffer);
    CHECK_OK(safetensors_write_header(buffer, tensors, n, NULL, 0, false,
                                      &data_bytes, &err),
             &err);
    return data_bytes;
}

TEST(binds_every_tensor_to_its_bytes)
{
    struct roped_tensor q = {ROPED_BF16, 3, {2, 4, 8}, NULL};
    struct roped_tensor positions = {ROPED_I64, 1, {2}, NULL};
    struct safetensors_output tensors[] = {{"positions", &positions, 0},
                                           {"q", &q, 0}};
    struct roped_error err;
    struct roped_call call;
    struct buffer file;
    unsigned char data[16 + 128];
    uint64_t data_bytes = make_request(&file, tensors, 2);
    CHECK_INT(data_bytes, sizeof data);
    roped_call_init(&call, roped_op_find("rope"));
    CHECK_OK(v1_read_request(OF_CALL(&call), file.text, file.bytes,
                             file.bytes + data_bytes, data, &err),
             &err);
    int q_port = roped_op_input(call.op, "q");
    int positions_port = roped_op_input(call.op, "positions");
    CHECK(call.in[positions_port].data == data);
    CHECK(call.in[q_port].data == data + 16);
    CHECK_INT(call.in[q_port].dims[1], 4);
    CHECK_OK(roped_call_resolve(&call, &err), &err);
    buffer_fini(&file);
}

TEST(data_may_come_later)
{
    struct roped_tensor q = {ROPED_F32, 3, {1, 1, 2}, NULL};
    struct safetensors_output tensors[] = {{"q", &q, 0}};
    struct roped_error err;
    struct roped_call call;
    struct buffer file;
    uint64_t data_bytes = make_request(&file, tensors, 1);
    roped_call_init(&call, roped_op_find("rope"));
    CHECK_OK(v1_read_request(OF_CALL(&call), file.text, file.bytes,
                             file.bytes + data_bytes, NULL, &err),
             &err);
    CHECK(call.in[0].data == NULL);
    buffer_fini(&file);
}

TEST(refuses_what_the_operator_does_not_take)
{
    struct roped_tensor f32 = {ROPED_F32, 3, {1, 1, 2}, NULL};
    struct roped_tensor u8 = {ROPED_U8, 3, {1, 1, 2}, NULL};
    struct safetensors_output cases[] = {{"Q", &f32, 0}, {"q", &u8, 0}};
    static const enum roped_status codes[] = {ROPED_UNKNOWN_NAME,
                                              ROPED_BAD_TYPE};
    static const char *const whys[] = {
        "unknown tensor 'Q'", "tensor 'q': U8, expected F32, BF16 or F16"};
    for (int i = 0; i < 2; i++) {
        struct roped_error err = {0};
        struct roped_call call;
        struct buffer file;
        uint64_t data_bytes = make_request(&file, &cases[i], 1);
        roped_call_init(&call, roped_op_find("rope"));
        CHECK_INT(v1_read_request(OF_CALL(&call), file.text, file.bytes,
                                  file.bytes + data_bytes, NULL, &err),
                  codes[i]);
        CHECK_CONTAINS(err.text, whys[i]);
        buffer_fini(&file);
    }
}

/* A call of op with q_rope and k_rope or q and k, resolved. */
static void resolve(struct roped_call *call, const char *op, const char *q_name,
                    const char *k_name, enum roped_dtype dtype)
{
    struct roped_error err;
    struct roped_tensor q = {dtype, 3, {3, 5, 6}, NULL};
    struct roped_tensor k = {dtype, 3, {3, 1, 6}, NULL};
    roped_call_init(call, roped_op_find(op));
    CHECK_OK(roped_call_bind(call, q_name, &q, &err), &err);
    if (k_name)
        CHECK_OK(roped_call_bind(call, k_name, &k, &err), &err);
    CHECK_OK(roped_call_resolve(call, &err), &err);
}

static enum roped_status see_entry(void *context,
                                   const struct safetensors_entry *entry,
                                   struct roped_error *err)
{
    struct buffer *seen = context;
    (void)err;
    buffer_printf(seen, "%s %s %d %llu;", entry->name,
                  roped_dtype_name(entry->tensor.dtype), entry->tensor.rank,
                  (unsigned long long)entry->begin);
    return ROPED_OK;
}

static void check_sent(struct roped_call *call, uint64_t kept, bool fp8_as_u8,
                       const char *expected)
{
    uint64_t offset[SIGNATURE_OUTPUTS] = {9, 9, 9, 9}, data_bytes = 0;
    struct roped_error err;
    struct buffer header, seen;
    buffer_init(&header);
    buffer_init(&seen);
    const struct v1_wanted wanted = {kept, fp8_as_u8};
    CHECK_OK(v1_write_response_header(&header, OF_CALL(call), wanted, offset,
                                      &data_bytes, &err),
             &err);
    CHECK_INT(header.bytes % SAFETENSORS_DATA_ALIGNMENT, 0);
    CHECK_CONTAINS(header.text + 8, "\"__metadata__\":{\"op\":\"");
    CHECK_OK(safetensors_read(header.text, header.bytes,
                              header.bytes + data_bytes, see_entry, NULL, &seen,
                              &err),
             &err);
    CHECK_TEXT(seen.text ? seen.text : "", expected);
    for (int i = 0; i < ROPED_MAX_OUTPUTS; i++) {
        char place[32];
        if (!roped_tensor_given(&call->out[i]) || kept >> i & 1)
            continue;
        snprintf(place, sizeof place, " %llu;", (unsigned long long)offset[i]);
        CHECK_CONTAINS(seen.text, place);
    }
    buffer_fini(&seen);
    buffer_fini(&header);
}

static void check_answer(struct roped_call *call, bool fp8_as_u8,
                         const char *expected)
{
    check_sent(call, 0, fp8_as_u8, expected);
}

TEST(answers_hold_the_outputs_that_are_made)
{
    struct roped_call call;
    resolve(&call, "rope", "q", "k", ROPED_F16);
    check_answer(&call, false, "q F16 3 0;k F16 3 180;");
    resolve(&call, "rope", "q", NULL, ROPED_F32);
    check_answer(&call, false, "q F32 3 0;");
}

TEST(fp8_is_native_or_u8)
{
    struct roped_call call;
    resolve(&call, "rope_quantize", "q_rope", "k_rope", ROPED_BF16);
    check_answer(&call, false, "q_rope F8_E4M3 3 0;k_rope F8_E4M3 3 90;");
    check_answer(&call, true, "q_rope U8 3 0;k_rope U8 3 90;");
}

TEST(wider_elements_come_first)
{
    struct roped_call call;
    resolve(&call, "rope", "q", "k", ROPED_F16);
    call.out[0].dtype = ROPED_F8_E4M3; /* as quantized values with scales */
    call.out[1].dtype = ROPED_F32;
    check_answer(&call, false, "k F32 3 0;q F8_E4M3 3 72;");
}

TEST(outputs_in_regions_are_not_sent)
{
    struct roped_call call;
    resolve(&call, "rope", "q", "k", ROPED_F16);
    check_sent(&call, 1, false, "k F16 3 0;");
    check_sent(&call, 2, false, "q F16 3 0;");
    check_sent(&call, 3, false, "");
}
