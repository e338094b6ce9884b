/*
 * test_config.c - settings from every source, and the committed sample.
 */
#include "check.h"
#include "config.h"

#include <unistd.h>

static struct config config;
static struct roped_error err;
static enum config_action action;

static enum roped_status load(int argc, const char *a, const char *b,
                              const char *c)
{
    char *argv[] = {(char *)(uintptr_t) "roped", (char *)(uintptr_t)a,
                    (char *)(uintptr_t)b, (char *)(uintptr_t)c, NULL};
    return config_load(&config, argc, argv, &action, &err);
}

TEST(defaults_flags_and_units)
{
    CHECK_OK(load(1, NULL, NULL, NULL), &err);
    CHECK_INT(config.lanes, 4);
    CHECK_INT(action, CONFIG_RUN);
    CHECK_OK(load(3, "--max-body-bytes", "3m", NULL), &err);
    CHECK_INT(config.max_body_bytes, 3 << 20);
    CHECK_OK(load(2, "--queue_timeout_seconds=0.25", NULL, NULL), &err);
    CHECK_DOUBLE(config.queue_timeout_seconds, 0.25, 0);
    CHECK_OK(load(2, "--log_requests", NULL, NULL), &err);
    CHECK(config.log_requests);
    CHECK_OK(load(2, "--check-config", NULL, NULL), &err);
    CHECK_INT(action, CONFIG_CHECK);
}

TEST(wrong_settings_name_source_key_and_range)
{
    CHECK_INT(load(3, "--lanes", "0", NULL), ROPED_INVALID);
    CHECK_CONTAINS(err.text, "lanes is '0', expected 1 to 64");
    CHECK_INT(load(3, "--lane", "1", NULL), ROPED_INVALID);
    CHECK_CONTAINS(err.text, "the nearest is 'lanes'");
    CHECK_INT(load(3, "--backend", "tpu", NULL), ROPED_INVALID);
    CHECK_CONTAINS(err.text, "auto|cuda|cpu");
    CHECK_INT(load(2, "--lanes", NULL, NULL), ROPED_INVALID);
}

TEST(flags_win_over_environment_over_file)
{
    char path[64];
    snprintf(path, sizeof path, "/tmp/roped_config_%d", (int)getpid());
    FILE *file = fopen(path, "w");
    fputs("# a comment\nlanes = 7\nqueue_depth = 9 # and another\n", file);
    fclose(file);
    CHECK_OK(load(3, "--config", path, NULL), &err);
    CHECK_INT(config.lanes, 7);
    setenv("ROPED_LANES", "8", 1);
    CHECK_OK(load(3, "--config", path, NULL), &err);
    CHECK_INT(config.lanes, 8);
    CHECK_INT(config.queue_depth, 9);
    CHECK_OK(load(2, "--lanes=9", NULL, NULL), &err);
    CHECK_INT(config.lanes, 9);
    unsetenv("ROPED_LANES");
    file = fopen(path, "w");
    fputs("lanes = 2\nlane = 7\n", file);
    fclose(file);
    CHECK_INT(load(3, "--config", path, NULL), ROPED_INVALID);
    CHECK_CONTAINS(err.text, ":2: key is 'lane'");
    unlink(path);
}

/* 'roped --sample-config > deploy/roped.conf' makes it anew. */
TEST(the_committed_sample_is_what_the_table_says)
{
    static char made[1 << 16], committed[1 << 16];
    FILE *out = fmemopen(made, sizeof made, "w");
    config_write_sample(out);
    fclose(out);
    FILE *file = fopen(ROPED_TEST_SAMPLE, "r");
    CHECK(file != NULL);
    if (!file)
        return;
    committed[fread(committed, 1, sizeof committed - 1, file)] = '\0';
    fclose(file);
    CHECK(strcmp(made, committed) == 0);
}

int main(void)
{
    RUN(defaults_flags_and_units);
    RUN(wrong_settings_name_source_key_and_range);
    RUN(flags_win_over_environment_over_file);
    RUN(the_committed_sample_is_what_the_table_says);
    return check_done();
}
