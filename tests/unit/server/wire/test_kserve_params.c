/*
 * test_kserve_params.c - parameters of requests, inputs and outputs that are
 * not the operator's.
 */
#include "wire/kserve.h"

#include "check.h"
#include "of_call.h"

#include <stdio.h>

static struct roped_call call;
static struct roped_error err;

/* A call of rope with these parameters. */
static enum roped_status read_with(const char *request, const char *input,
                                   const char *output)
{
    struct kserve_request out;
    char json[512];
    int bytes = snprintf(
        json, sizeof json,
        "{\"parameters\":{%s},\"inputs\":[{\"name\":\"q\",\"shape\":[1,1,4],"
        "\"datatype\":\"FP32\",\"parameters\":{\"binary_data_size\":16%s}}],"
        "\"outputs\":[{\"name\":\"q\",\"parameters\":{%s}}]}",
        request, input, output);
    err.text[0] = '\0';
    roped_call_init(&call, roped_op_find("rope"));
    const struct kserve_body body = {json, (size_t)bytes, NULL, 16};
    return kserve_read_request(OF_CALL(&call), &body, &out, &err);
}

/* MLServer's clients send them to every server. */
TEST(those_of_other_servers_are_tolerated)
{
    CHECK_OK(read_with("\"headers\":{\"x\":[1]},\"content_type\":\"np\","
                       "\"theta\":3",
                       ",\"content_type\":\"np\"", "\"content_type\":\"np\""),
             &err);
    CHECK_DOUBLE(roped_call_angles(&call)->theta, 3, 0);
}

TEST(unknown_ones_are_refused)
{
    CHECK_INT(read_with("\"contenttype\":\"np\"", "", ""), ROPED_UNKNOWN_NAME);
    CHECK_CONTAINS(err.text, "unknown parameter 'contenttype'");
    CHECK_INT(read_with("", ",\"shared_memory_ofset\":1", ""),
              ROPED_UNKNOWN_NAME);
    CHECK_TEXT(err.text,
               "unknown parameter 'shared_memory_ofset' of an input or output; "
               "did you mean 'shared_memory_offset'?");
    CHECK_INT(read_with("", "", "\"binary_dta\":true"), ROPED_UNKNOWN_NAME);
    CHECK_TEXT(err.text, "unknown parameter 'binary_dta' of an input or "
                         "output; did you mean 'binary_data'?");
}
