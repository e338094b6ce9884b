/*
 * test_kserve_raw.c - v2 requests without JSON.
 */
#include "wire/kserve.h"

#include "check.h"
#include "of_call.h"
#include "refusal.h"

static enum roped_status read_raw(struct roped_call *call, const char *op,
                                  void *data, uint64_t bytes,
                                  struct kserve_request *request,
                                  struct roped_error *err)
{
    err->text[0] = '\0';
    roped_call_init(call, roped_op_find(op));
    return kserve_read_raw(OF_CALL(call), data, bytes, request, err);
}

TEST(a_raw_body_is_the_one_input)
{
    float values[6];
    struct kserve_request request;
    struct roped_call call;
    struct roped_error err;
    CHECK_OK(read_raw(&call, "rmsnorm", values, sizeof values, &request, &err),
             &err);
    CHECK_OK(roped_call_resolve(&call, &err), &err);
    CHECK_INT(call.in[0].dtype, ROPED_F32);
    CHECK_INT(call.in[0].rank, 1);
    CHECK_INT(call.in[0].dims[0], 6);
    CHECK(call.in[0].data == values);
    CHECK_INT(request.binary_bytes, sizeof values);
    CHECK_OK(kserve_check_outputs(OF_CALL(&call), &request, &err), &err);
    CHECK(kserve_is_binary_answer(&request));
}

static void refuse_raw(const char *op, uint64_t bytes, const char *why)
{
    struct kserve_request request;
    struct roped_call call;
    struct roped_error err;
    CHECK(is_refusal(read_raw(&call, op, NULL, bytes, &request, &err)));
    CHECK_CONTAINS(err.text, why);
}

TEST(a_raw_body_that_says_too_little)
{
    refuse_raw("rmsnorm", 7,
               "input byte size mismatch for input 'x' for model "
               "'rmsnorm'. Expected a multiple of 4, got 7");
    refuse_raw("rope", 16,
               "The shape of the raw input 'q' can not be deduced "
               "because there are more than one variable-sized "
               "dimension");
    refuse_raw("rope_quantize", 16,
               "Raw request must only have 1 input (found 1) to be deduced but "
               "got 2 inputs in 'rope_quantize' model configuration");
}
