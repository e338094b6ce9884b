/*
 * refusal.h - a status that says the request is wrong, whichever code it has.
 */
#ifndef ROPED_TESTS_REFUSAL_H
#define ROPED_TESTS_REFUSAL_H

#include <roped/status.h>

#include <stdbool.h>

static inline bool is_refusal(enum roped_status status)
{
    static const int https[] = {
#define X(id, token, http, meaning) http,
        ROPED_STATUS_MAP(X)
#undef X
    };
    return https[status] == 400;
}

/* Is it what is expected, where ROPED_INVALID stands for any refusal? */
static inline bool is_expected(enum roped_status status,
                               enum roped_status expected)
{
    return expected == ROPED_INVALID ? is_refusal(status) : status == expected;
}

#endif
