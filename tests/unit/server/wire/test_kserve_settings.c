/*
 * test_kserve_settings.c - the log level behind v2's switches, a trace that
 * stays off, models that are loaded already.
 */
#include "wire/kserve_settings.h"

#include "check.h"
#include "refusal.h"

static void check_log(enum kserve_log_level from, const char *json,
                      enum kserve_log_level to)
{
    struct roped_error err;
    enum kserve_log_level level = from;
    CHECK_OK(kserve_read_log_settings(json, strlen(json), &level, &err), &err);
    if (level != to)
        CHECK_FAIL("%s: level %d, expected %d", json, (int)level, (int)to);
}

static void refuse_log(enum kserve_log_level from, const char *json,
                       const char *why)
{
    struct roped_error err = {.text = ""};
    enum kserve_log_level level = from;
    CHECK(
        is_refusal(kserve_read_log_settings(json, strlen(json), &level, &err)));
    CHECK_CONTAINS(err.text, why);
    CHECK_INT(level, from);
}

TEST(log_switches_are_rungs_of_a_ladder)
{
    check_log(KSERVE_LOG_INFO, "", KSERVE_LOG_INFO);
    check_log(KSERVE_LOG_INFO, "{}", KSERVE_LOG_INFO);
    check_log(KSERVE_LOG_INFO, "{\"log_verbose_level\":3}", KSERVE_LOG_VERBOSE);
    check_log(KSERVE_LOG_VERBOSE, "{\"log_verbose_level\":0}", KSERVE_LOG_INFO);
    check_log(KSERVE_LOG_INFO, "{\"log_info\":false}", KSERVE_LOG_WARNING);
    check_log(KSERVE_LOG_INFO, "{\"log_warning\":false,\"log_info\":false}",
              KSERVE_LOG_ERROR);
    check_log(KSERVE_LOG_ERROR, "{\"log_info\":true,\"log_warning\":true}",
              KSERVE_LOG_INFO);
    check_log(
        KSERVE_LOG_INFO,
        "{\"log_error\":true,\"log_format\":\"default\",\"log_file\":\"\"}",
        KSERVE_LOG_INFO);
}

TEST(log_settings_that_cannot_be)
{
    refuse_log(KSERVE_LOG_INFO, "{\"log_warning\":false}", "contradict");
    refuse_log(KSERVE_LOG_VERBOSE, "{\"log_info\":false}", "contradict");
    refuse_log(KSERVE_LOG_ERROR, "{\"log_error\":false}", "always logged");
    refuse_log(KSERVE_LOG_INFO, "{\"log_info\":1}",
               "setting 'log_info': 1, expected true or false");
    refuse_log(KSERVE_LOG_INFO, "{\"log_verbose_level\":-1}",
               "setting 'log_verbose_level': -1, expected an integer");
    refuse_log(KSERVE_LOG_INFO, "{\"log_verbose_level\":null}", "null");
    refuse_log(KSERVE_LOG_INFO, "{\"log_format\":\"ISO8601\"}", "'default'");
    refuse_log(KSERVE_LOG_INFO, "{\"log_file\":\"/tmp/x\"}", "standard error");
    refuse_log(KSERVE_LOG_INFO, "{\"log_level\":1}",
               "unknown setting 'log_level'");
    refuse_log(KSERVE_LOG_INFO, "{\"log_inf\":true}",
               "unknown setting 'log_inf'; did you mean 'log_info'?");
    refuse_log(KSERVE_LOG_INFO, "[]", "expected an object");
    refuse_log(KSERVE_LOG_INFO, "{", "failed to parse the request JSON buffer");
}

static void check_written(enum kserve_log_level level, const char *expected)
{
    struct buffer buffer;
    struct roped_error err;
    enum kserve_log_level same = level;
    buffer_init(&buffer);
    kserve_write_log_settings(&buffer, level);
    CHECK_CONTAINS(buffer.text, expected);
    CHECK_OK(kserve_read_log_settings(buffer.text, buffer.bytes, &same, &err),
             &err);
    CHECK_INT(same, level);
    buffer_fini(&buffer);
}

TEST(log_settings_are_read_as_they_are_written)
{
    check_written(KSERVE_LOG_ERROR,
                  "\"log_info\":false,\"log_warning\":false,");
    check_written(KSERVE_LOG_WARNING,
                  "\"log_info\":false,\"log_warning\":true,");
    check_written(KSERVE_LOG_INFO, "\"log_verbose_level\":0");
    check_written(KSERVE_LOG_VERBOSE, "\"log_verbose_level\":1");
}

static void check_trace(const char *json, enum roped_status expected)
{
    struct roped_error err = {.text = ""};
    enum roped_status status =
        kserve_check_trace_settings(json, strlen(json), &err);
    if (status != expected)
        CHECK_FAIL("%s: status %d, expected %d (%s)", json, (int)status,
                   (int)expected, err.text);
}

TEST(trace_stays_off)
{
    struct buffer buffer;
    buffer_init(&buffer);
    kserve_write_trace_settings(&buffer);
    CHECK_CONTAINS(buffer.text, "\"trace_level\":[\"OFF\"]");
    check_trace(buffer.text, ROPED_OK);
    buffer_fini(&buffer);
    check_trace("", ROPED_OK);
    check_trace("{}", ROPED_OK);
    check_trace("{\"trace_level\":null,\"trace_rate\":null}", ROPED_OK);
    check_trace("{\"trace_level\":\"OFF\"}", ROPED_OK);
    check_trace("{\"trace_level\":[\"TIMESTAMPS\"]}", ROPED_INVALID);
    check_trace("{\"trace_level\":[\"OFF\",\"TENSORS\"]}", ROPED_INVALID);
    check_trace("{\"trace_level\":[]}", ROPED_INVALID);
    check_trace("{\"trace_rate\":1000}", ROPED_INVALID);
    check_trace("{\"trace_rate\":\"1\"}", ROPED_INVALID);
    check_trace("{\"unknown\":\"1\"}", ROPED_INVALID);
    check_trace("{\"trace_rate\":{\"a\":1}}", ROPED_INVALID);
    check_trace("\"OFF\"", ROPED_INVALID);
    check_trace("{", ROPED_INVALID);
}

static void check_load(const char *json, enum roped_status expected)
{
    struct roped_error err = {.text = ""};
    CHECK_INT(kserve_check_load("rope", json, strlen(json), &err), expected);
}

TEST(a_load_brings_nothing)
{
    check_load("", ROPED_OK);
    check_load("{}", ROPED_OK);
    check_load("{\"parameters\":{}}", ROPED_OK);
    check_load("{\"parameters\":null}", ROPED_OK);
    check_load("{\"parameters\":{\"config\":\"{}\"}}", ROPED_INVALID);
    check_load("{\"parameters\":1}", ROPED_INVALID);
    check_load("[]", ROPED_INVALID);
}

TEST(an_index_may_ask_for_ready_models)
{
    static const char *const right[] = {"", "{}", "{\"ready\":true}",
                                        "{\"ready\":false}"};
    static const char *const wrong[] = {"{\"ready\":1}", "{\"ready\":null}",
                                        "[]", "{\"ready\":[[true]]}", "{"};
    struct roped_error err;
    for (size_t i = 0; i < sizeof right / sizeof *right; i++)
        CHECK_OK(kserve_check_index(right[i], strlen(right[i]), &err), &err);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        CHECK_INT(kserve_check_index(wrong[i], strlen(wrong[i]), &err),
                  ROPED_INVALID);
}
