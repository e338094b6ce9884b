/*
 * kserve_settings.h - log and trace settings as v2 clients read and write
 * them, and requests about the repository. What a client may set is what the
 * daemon can do: how much it logs.
 */
#ifndef ROPED_WIRE_KSERVE_SETTINGS_H
#define ROPED_WIRE_KSERVE_SETTINGS_H

#include "wire/buffer.h"

#include <roped/status.h>

/* How much is logged, from errors alone to everything; each level includes
 * those before it. */
enum kserve_log_level {
    KSERVE_LOG_ERROR,
    KSERVE_LOG_WARNING,
    KSERVE_LOG_INFO,
    KSERVE_LOG_VERBOSE
};

/* GET and answer of POST /v2/logging */
void kserve_write_log_settings(struct buffer *buffer,
                               enum kserve_log_level level);

/*
 * The body of POST /v2/logging, any subset of the settings, "" for none:
 * *level goes from what it is to what is asked for. ROPED_INVALID names a
 * setting that cannot be changed, or two that contradict each other.
 */
ROPED_MUST_CHECK enum roped_status
kserve_read_log_settings(const char *json, size_t bytes,
                         enum kserve_log_level *level, struct roped_error *err);

/* GET and answer of POST /v2/trace/setting: tracing is off. */
void kserve_write_trace_settings(struct buffer *buffer);

/* The body of POST /v2/trace/setting: ROPED_OK where it changes nothing. */
ROPED_MUST_CHECK enum roped_status
kserve_check_trace_settings(const char *json, size_t bytes,
                            struct roped_error *err);

/* The body of POST /v2/repository/index, which asks for models that are ready
 * or for all: ROPED_OK where it is one; all are ready. */
ROPED_MUST_CHECK enum roped_status
kserve_check_index(const char *json, size_t bytes, struct roped_error *err);

/* The body of POST /v2/repository/models/{m}/load: ROPED_OK where it asks for
 * the model as it is, without a configuration or files of the client. */
ROPED_MUST_CHECK enum roped_status kserve_check_load(const char *model,
                                                     const char *json,
                                                     size_t bytes,
                                                     struct roped_error *err);

#endif
