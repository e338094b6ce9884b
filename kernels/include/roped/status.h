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

/*
 * value, code on the wire, status of HTTP, meaning. The one list of what can
 * go wrong: every refusal of the daemon is {"error": its sentence, "code": its
 * code}. Codes are there to stay, and new ones come at the end. A client
 * whose answer has no code takes the first row with its HTTP status.
 */
#define ROPED_STATUS_MAP(X)                                                    \
    X(OK, "ok", 200, "success")                                                \
    X(INVALID, "invalid", 400, "wrong in a way that has no code of its own")   \
    X(NOT_FOUND, "not_found", 404, "nothing has this name")                    \
    X(TOO_LARGE, "too_large", 413, "larger than a configured limit")           \
    X(UNSUPPORTED, "unsupported", 501, "understood, but not offered")          \
    X(BUSY, "busy", 503, "every place is taken now, try again")                \
    X(NO_MEMORY, "no_memory", 503, "not enough host or device memory")         \
    X(DEADLINE, "deadline", 503, "took longer than allowed")                   \
    X(CANCELED, "canceled", 503, "given up by its client or by shutdown")      \
    X(INTERNAL, "internal", 500, "a defect in roped")                          \
    X(DEVICE, "device", 500, "the device or its driver failed")                \
    X(REGION_LOST, "region_lost", 410, "this region went with its device")     \
    X(NO_OPERATOR, "no_operator", 404, "no operator or model has this name")   \
    X(NO_TABLE, "no_table", 404, "no table has this name")                     \
    X(NO_REGION, "no_region", 404, "no region has this name")                  \
    X(NO_ROUTE, "no_route", 404, "the server has no such path")                \
    X(WRONG_METHOD, "wrong_method", 405, "the path has other methods")         \
    X(WRONG_ENCODING, "wrong_encoding", 415, "body compressed in another way") \
    X(NO_TOKEN, "no_token", 401, "no token came, or none that is known")       \
    X(FORBIDDEN, "forbidden", 403, "not with this token, or from this page")   \
    X(WRONG_HOST, "wrong_host", 421, "Host names another server")              \
    X(DRAINING, "draining", 503, "shutting down or starting anew, try again")  \
    X(TABLE_LOST, "table_lost", 410, "this table went with its device")        \
    X(BAD_SHAPE, "bad_shape", 400, "a tensor's rank or dims do not fit")       \
    X(BAD_TYPE, "bad_type", 400, "a tensor is of a type that is not taken")    \
    X(BAD_VALUE, "bad_value", 400, "a tensor holds a value that is not taken") \
    X(BAD_PARAMETER, "bad_parameter", 400, "a parameter's value does not fit") \
    X(BAD_CONFIG, "bad_config", 400, "a config.json that makes no table")      \
    X(UNKNOWN_NAME, "unknown_name", 400, "no tensor or parameter named so")    \
    X(NO_PROGRAM, "no_program", 404, "no program has this name")               \
    X(PROGRAM_LOST, "program_lost", 410, "this program went with its device")  \
    X(MISMATCH, "mismatch", 412, "an ETag is not the one that If-Match wants")

enum roped_status {
#define X(id, token, http, meaning) ROPED_##id,
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

/* The code ("busy") of a status; static memory. */
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
