/*
 * status.c - statuses as words, and the one way to report a failure.
 */
#include <roped/number.h>

#include <stdarg.h>
#include <string.h>

static const struct {
    const char *token, *meaning;
} statuses[ROPED_STATUS_COUNT] = {
#define X(id, token, http, meaning) [ROPED_##id] = {token, meaning},
    ROPED_STATUS_MAP(X)
#undef X
};

const char *roped_status_token(enum roped_status status)
{
    return statuses[status].token;
}

const char *roped_status_meaning(enum roped_status status)
{
    return statuses[status].meaning;
}

enum roped_status roped_fail(struct roped_error *err, enum roped_status status,
                             const char *format, ...)
{
    va_list arguments;
    if (!err)
        return status;
    err->status = status;
    va_start(arguments, format);
    int length = roped_vprint(err->text, sizeof err->text, format, arguments);
    va_end(arguments);
    if (length >= (int)sizeof err->text)
        memcpy(err->text + sizeof err->text - 4, "...", 4);
    return status;
}
