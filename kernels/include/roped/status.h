/*
 * status.h - the one result type of roped, and the text that goes with it.
 *
 * Every function that can fail returns enum roped_status and writes its
 * sentence into the caller's struct roped_error, once, at the deepest place
 * that knows the names. Message grammar: what - found - expected - why:
 *     tensor 'weight': dim 0 is 2048, expected h = 4096 (set by 'x')
 * Lower case, no full stop, no pointers, no file names.
 */
#ifndef ROPED_STATUS_H
#define ROPED_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

/* value, wire token, meaning. HTTP codes live in server/http/reply.c only. */
#define ROPED_STATUS_MAP(X)                                                    \
    X(OK, "ok", "success")                                                     \
    X(INVALID, "invalid", "the request itself is wrong")                       \
    X(NOT_FOUND, "not_found", "no such operator, table or region")             \
    X(TOO_LARGE, "too_large", "larger than a configured limit")                \
    X(UNSUPPORTED, "unsupported", "understood, but not offered")               \
    X(BUSY, "busy", "every place is taken now, try again")                     \
    X(NO_MEMORY, "no_memory", "not enough host or device memory")              \
    X(DEADLINE, "deadline", "took longer than allowed")                        \
    X(CANCELED, "canceled", "given up by its client or by shutdown")           \
    X(DEVICE, "device", "the device or its driver failed")                     \
    X(INTERNAL, "internal", "a defect in roped")

enum roped_status {
#define X(id, token, meaning) ROPED_##id,
    ROPED_STATUS_MAP(X)
#undef X
        ROPED_STATUS_COUNT
};

enum { ROPED_ERROR_BYTES = 512 };

/* Owned by the top caller, never overwritten on the way up. */
struct roped_error {
    enum roped_status status;
    char text[ROPED_ERROR_BYTES];
};

#if defined(__GNUC__)
#define ROPED_MUST_CHECK        __attribute__((warn_unused_result))
#define ROPED_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define ROPED_API               __attribute__((visibility("default")))
#else
#define ROPED_MUST_CHECK
#define ROPED_PRINTF(fmt, args)
#define ROPED_API
#endif

/* The wire token ("busy") of a status; static memory. */
ROPED_API const char *roped_status_token(enum roped_status status);

/* One sentence for a status; static memory. */
ROPED_API const char *roped_status_meaning(enum roped_status status);

/*
 * Fills *err (which may be NULL) and returns status, so that a failure is one
 * line: return roped_fail(err, ROPED_INVALID, "...", ...). Text that does not
 * fit ends in "...".
 */
ROPED_API enum roped_status roped_fail(struct roped_error *err,
                                       enum roped_status status,
                                       const char *format, ...)
    ROPED_PRINTF(3, 4);

#ifdef __cplusplus
}
#endif

#endif
