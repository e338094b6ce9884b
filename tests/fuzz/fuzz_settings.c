/*
 * fuzz_settings.c - any bytes as the body of v2's requests about settings and
 * the repository. Promises: a body is accepted or refused with a reason, and
 * log settings that were accepted are those that are told afterwards.
 */
#include "fuzz.h"

#include "wire/kserve_settings.h"

static bool is_answered(enum roped_status status, const struct roped_error *err)
{
    FUZZ_PROMISE(!status || is_refusal(status));
    FUZZ_PROMISE(status == ROPED_OK || err->text[0]);
    return status == ROPED_OK;
}

/* What GET says of a level sets it, whatever the level was. */
static void check_told(enum kserve_log_level level)
{
    struct buffer buffer;
    buffer_init(&buffer);
    kserve_write_log_settings(&buffer, level);
    FUZZ_PROMISE(!buffer.has_failed);
    for (int i = KSERVE_LOG_ERROR; i <= KSERVE_LOG_VERBOSE; i++) {
        enum kserve_log_level again = (enum kserve_log_level)i;
        struct roped_error err;
        FUZZ_PROMISE(
            !kserve_read_log_settings(buffer.text, buffer.bytes, &again, &err));
        FUZZ_PROMISE(again == level);
    }
    buffer_fini(&buffer);
}

static void read_log(const char *json, size_t bytes, enum kserve_log_level from)
{
    struct roped_error err = {.text = ""};
    enum kserve_log_level level = from, again;
    enum roped_status status =
        kserve_read_log_settings(json, bytes, &level, &err);
    FUZZ_PROMISE(level >= KSERVE_LOG_ERROR && level <= KSERVE_LOG_VERBOSE);
    if (!is_answered(status, &err)) {
        FUZZ_PROMISE(level == from);
        return;
    }
    again = level;
    FUZZ_PROMISE(!kserve_read_log_settings(json, bytes, &again, &err));
    FUZZ_PROMISE(again == level);
    check_told(level);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t bytes)
{
    const char *json = (const char *)input;
    struct roped_error err = {.text = ""};
    for (int i = KSERVE_LOG_ERROR; i <= KSERVE_LOG_VERBOSE; i++)
        read_log(json, bytes, (enum kserve_log_level)i);
    is_answered(kserve_check_trace_settings(json, bytes, &err), &err);
    is_answered(kserve_check_index(json, bytes, &err), &err);
    is_answered(kserve_check_load("rope", json, bytes, &err), &err);
    return 0;
}
