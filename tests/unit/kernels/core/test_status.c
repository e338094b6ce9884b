/*
 * test_status.c - errors: written once, cut where they do not fit.
 */
#include "check.h"

#include <roped/status.h>

TEST(fail_fills_the_error_and_returns_its_status)
{
    struct roped_error err;
    CHECK_INT(roped_fail(&err, ROPED_BUSY, "%d of %d", 3, 4), ROPED_BUSY);
    CHECK_INT(err.status, ROPED_BUSY);
    CHECK_TEXT(err.text, "3 of 4");
}

TEST(fail_takes_no_error)
{
    CHECK_INT(roped_fail(NULL, ROPED_INVALID, "x"), ROPED_INVALID);
}

TEST(long_texts_end_in_dots)
{
    struct roped_error err;
    char text[2 * ROPED_ERROR_BYTES];
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    (void)roped_fail(&err, ROPED_INVALID, "%s", text);
    CHECK_INT(strlen(err.text), ROPED_ERROR_BYTES - 1);
    CHECK_TEXT(err.text + ROPED_ERROR_BYTES - 4, "...");
}

TEST(every_status_has_a_token_and_a_meaning)
{
    for (int i = 0; i < ROPED_STATUS_COUNT; i++) {
        CHECK(strlen(roped_status_token((enum roped_status)i)) > 1);
        CHECK(strlen(roped_status_meaning((enum roped_status)i)) > 1);
    }
    CHECK_TEXT(roped_status_token(ROPED_NO_MEMORY), "no_memory");
}
