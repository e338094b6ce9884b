/*
 * kserve_settings.c - log and trace settings, requests about the
 * repository.
 *
 * v2 has a switch per severity and a number for verbosity; roped has a ladder.
 * Settings that no rung of it has, such as info without warnings, are refused.
 */
#include "wire/kserve_settings.h"

#include "wire/json.h"

#include <roped/nearest.h>

#include <cjson/cJSON.h>
#include <string.h>

static enum roped_status refuse_value(const struct cJSON *node,
                                      const char *expected,
                                      struct roped_error *err)
{
    char found[64];
    return roped_fail(err, ROPED_INVALID, "setting '%.64s': %s, expected %s",
                      node->string, json_text(node, found, sizeof found),
                      expected);
}

/* A tree of the body, which must be an object; *out NULL: no body. */
static enum roped_status parse(const char *json, size_t bytes,
                               const struct cJSON **out,
                               struct roped_error *err)
{
    *out = NULL;
    if (bytes == 0)
        return ROPED_OK;
    enum roped_status status = json_parse_request(json, bytes, out, err);
    if (status || cJSON_IsObject(*out))
        return status;
    json_free(*out);
    *out = NULL;
    return roped_fail(err, ROPED_INVALID,
                      "Unable to parse the settings: expected an object");
}

/* ------------------------------------------------------------------ logging */

void kserve_write_log_settings(struct buffer *buffer,
                               enum kserve_log_level level)
{
    buffer_printf(buffer,
                  "{\"log_file\":\"\",\"log_info\":%s,\"log_warning\":%s,"
                  "\"log_error\":true,\"log_verbose_level\":%d,"
                  "\"log_format\":\"default\"}",
                  level >= KSERVE_LOG_INFO ? "true" : "false",
                  level >= KSERVE_LOG_WARNING ? "true" : "false",
                  level >= KSERVE_LOG_VERBOSE);
}

/* The switches, as they are or as they are asked to be. */
struct switches {
    bool is_on[KSERVE_LOG_VERBOSE + 1];
};

static enum roped_status unknown_setting(const char *name,
                                         struct roped_error *err)
{
    static const char *const known[] = {"log_error",  "log_warning",
                                        "log_info",   "log_verbose_level",
                                        "log_format", "log_file"};
    char near[96];
    struct roped_nearest nearest = {.word = name};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        roped_nearest_offer(&nearest, known[i]);
    return roped_fail(err, ROPED_UNKNOWN_NAME, "unknown setting '%.64s'%s",
                      name, roped_nearest_text(&nearest, near, sizeof near));
}

static enum roped_status read_log_setting(const struct cJSON *node,
                                          struct switches *out,
                                          struct roped_error *err)
{
    static const char *const names[] = {"log_error", "log_warning", "log_info"};
    uint64_t verbosity;
    for (int i = KSERVE_LOG_ERROR; i <= KSERVE_LOG_INFO; i++) {
        if (strcmp(node->string, names[i]) != 0)
            continue;
        out->is_on[i] = cJSON_IsTrue(node);
        return cJSON_IsBool(node) ? ROPED_OK
                                  : refuse_value(node, "true or false", err);
    }
    if (strcmp(node->string, "log_verbose_level") == 0) {
        if (!json_is_size(node, &verbosity))
            return refuse_value(node, "an integer of 0 or more", err);
        out->is_on[KSERVE_LOG_VERBOSE] = verbosity > 0;
        return ROPED_OK;
    }
    if (strcmp(node->string, "log_format") == 0)
        return cJSON_IsString(node) && strcmp(node->valuestring, "default") == 0
                   ? ROPED_OK
                   : refuse_value(node, "'default'", err);
    if (strcmp(node->string, "log_file") == 0)
        return cJSON_IsString(node) && node->valuestring[0] == '\0'
                   ? ROPED_OK
                   : refuse_value(node, "'': lines go to standard error", err);
    return unknown_setting(node->string, err);
}

enum roped_status kserve_read_log_settings(const char *json, size_t bytes,
                                           enum kserve_log_level *level,
                                           struct roped_error *err)
{
    const struct cJSON *node;
    struct switches switches;
    const struct cJSON *tree;
    int top = KSERVE_LOG_ERROR;
    enum roped_status status = parse(json, bytes, &tree, err);
    for (int i = 0; i <= KSERVE_LOG_VERBOSE; i++)
        switches.is_on[i] = i <= (int)*level;
    cJSON_ArrayForEach(node, tree)
    {
        if (!status)
            status = read_log_setting(node, &switches, err);
    }
    json_free(tree);
    for (int i = 0; i <= KSERVE_LOG_VERBOSE; i++)
        top = switches.is_on[i] ? i : top;
    for (int i = 0; i < top && !status; i++)
        if (!switches.is_on[i])
            status = roped_fail(err, ROPED_INVALID,
                                "log settings contradict each other: a level "
                                "includes those that are more severe");
    if (!status && !switches.is_on[KSERVE_LOG_ERROR])
        status = roped_fail(err, ROPED_INVALID,
                            "setting 'log_error': errors are always logged");
    if (!status)
        *level = (enum kserve_log_level)top;
    return status;
}

/* -------------------------------------------------------------------- trace */

void kserve_write_trace_settings(struct buffer *buffer)
{
    buffer_text(buffer, "{\"trace_file\":\"\",\"trace_level\":[\"OFF\"],"
                        "\"trace_rate\":\"1000\",\"trace_count\":\"-1\","
                        "\"log_frequency\":\"0\",\"trace_mode\":\"triton\"}");
}

/* Is this the value that the setting has? null asks for the default. */
static bool is_unchanged(const struct cJSON *node)
{
    static const struct {
        const char *name, *value;
    } settings[] = {{"trace_file", ""},     {"trace_level", "OFF"},
                    {"trace_rate", "1000"}, {"trace_count", "-1"},
                    {"log_frequency", "0"}, {"trace_mode", "triton"}};
    const struct cJSON *value = node;
    if (cJSON_IsNull(node))
        return true;
    if (cJSON_IsArray(node) && cJSON_GetArraySize(node) == 1)
        value = node->child;
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        if (strcmp(node->string, settings[i].name) == 0)
            return cJSON_IsString(value) &&
                   strcmp(value->valuestring, settings[i].value) == 0;
    return false;
}

enum roped_status kserve_check_trace_settings(const char *json, size_t bytes,
                                              struct roped_error *err)
{
    const struct cJSON *node;
    const struct cJSON *tree;
    enum roped_status status = parse(json, bytes, &tree, err);
    cJSON_ArrayForEach(node, tree)
    {
        if (!status && !is_unchanged(node))
            status = roped_fail(err, ROPED_INVALID,
                                "setting '%.64s' cannot be changed: tracing is "
                                "not supported; times of a call are in its "
                                "Server-Timing header, totals in /metrics",
                                node->string);
    }
    json_free(tree);
    return status;
}

/* --------------------------------------------------------------- repository */

enum roped_status kserve_check_index(const char *json, size_t bytes,
                                     struct roped_error *err)
{
    const struct cJSON *tree;
    enum roped_status status = parse(json, bytes, &tree, err);
    const struct cJSON *ready = json_member(tree, "ready");
    if (!status && ready && !cJSON_IsBool(ready))
        status = roped_fail(err, ROPED_INVALID,
                            "Invalid value for 'ready': expected a boolean");
    json_free(tree);
    return status;
}

enum roped_status kserve_check_load(const char *model, const char *json,
                                    size_t bytes, struct roped_error *err)
{
    const struct cJSON *tree;
    enum roped_status status = parse(json, bytes, &tree, err);
    const struct cJSON *params = json_member(tree, "parameters");
    if (!status && params && !cJSON_IsNull(params) &&
        (!cJSON_IsObject(params) || params->child))
        status = roped_fail(err, ROPED_INVALID,
                            "failed to load '%s', it is built in and takes no "
                            "parameters",
                            model);
    json_free(tree);
    return status;
}
