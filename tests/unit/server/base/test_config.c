/*
 * test_config.c - settings from every source, and the committed sample.
 */
#include "check.h"
#include "config.h"

#include <ctype.h>
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
    CHECK_INT(config.lanes, 0);
    CHECK(config_lanes(&config) >= 4);
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

TEST(lanes_follow_http_threads)
{
    CHECK_OK(load(3, "--http-threads", "16", NULL), &err);
    CHECK_INT(config_http_threads(&config), 16);
    CHECK_INT(config_lanes(&config), 16);
    CHECK_OK(load(3, "--http-threads", "1", NULL), &err);
    CHECK_INT(config_lanes(&config), 4);
    CHECK_OK(load(3, "--http-threads=16", "--lanes=3", NULL), &err);
    CHECK_INT(config_lanes(&config), 3);
    CHECK_OK(load(1, NULL, NULL, NULL), &err);
    CHECK(config_http_threads(&config) >= 1);
}

TEST(wrong_settings_name_source_key_and_range)
{
    CHECK_INT(load(3, "--queue_depth", "0", NULL), ROPED_INVALID);
    CHECK_CONTAINS(err.text, "queue_depth is '0', expected 1 to 65536 (calls)");
    CHECK_INT(load(3, "--lane", "1", NULL), ROPED_INVALID);
    CHECK_CONTAINS(err.text, "; did you mean 'lanes'?");
    CHECK_INT(load(3, "--backend", "tpu", NULL), ROPED_INVALID);
    CHECK_CONTAINS(err.text, "auto|cuda|cpu");
    CHECK_INT(load(2, "--lanes", NULL, NULL), ROPED_INVALID);
}

/* Every kind of value, written in every way that is wrong for it. */
TEST(values_that_are_no_values_are_refused)
{
    static const struct {
        const char *flag, *expected;
    } wrong[] = {{"--lanes=", "expected 0 to 64"},
                 {"--lanes=4x", "lanes is '4x'"},
                 {"--lanes=-1", "lanes is '-1'"},
                 {"--lanes= 4", "lanes is ' 4'"},
                 {"--lanes=2.5", "lanes is '2.5'"},
                 {"--lanes=4k", "lanes is '4k'"},
                 {"--lanes=65", "expected 0 to 64"},
                 {"--lanes=1e999", "lanes is '1e999'"},
                 {"--pool_bytes=1q", "pool_bytes is '1q'"},
                 {"--pool_bytes=1mm", "pool_bytes is '1mm'"},
                 {"--pool_bytes=1023k", "expected 1048576 to"},
                 {"--pool_bytes=2t", "expected 1048576 to"},
                 {"--drain_delay_seconds=nan", "drain_delay_seconds is 'nan'"},
                 {"--drain_delay_seconds=1s", "drain_delay_seconds is '1s'"},
                 {"--log_requests=maybe", "expected true or false"},
                 {"--log_level=loud", "error|warn|info|debug"},
                 {"--backend=au", "auto|cuda|cpu"},
                 {"--backend=auto|cuda", "auto|cuda|cpu"},
                 {"-lanes=4", "argument is '-lanes=4'"},
                 {"lanes", "expected --key value"},
                 {"--", "key is '', expected a key of --help"},
                 {"--poolbytes=2m", "; did you mean 'pool_bytes'?"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        CHECK_INT(load(2, wrong[i].flag, NULL, NULL), ROPED_INVALID);
        CHECK_CONTAINS(err.text, wrong[i].expected);
        CHECK_CONTAINS(err.text, "command line: ");
    }
}

TEST(devices_are_a_list_or_one_or_all)
{
    int device[CONFIG_MAX_DEVICES], n;
    static const char *const wrong[] = {
        "--devices=0,",
        "--devices=,0",
        "--devices=0 1",
        "--devices=-1",
        "--devices=64",
        "--devices=a",
        "--device=0,1",
        "--device=64",
        "--devices=0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16"};
    CHECK_OK(load(1, NULL, NULL, NULL), &err);
    CHECK_OK(config_devices(&config, device, &n, &err), &err);
    CHECK_INT(n, 0);
    CHECK_OK(load(2, "--device=3", NULL, NULL), &err);
    CHECK_OK(config_devices(&config, device, &n, &err), &err);
    CHECK(n == 1 && device[0] == 3);
    CHECK_OK(load(2, "--devices=2,0,2", NULL, NULL), &err);
    CHECK_OK(config_devices(&config, device, &n, &err), &err);
    CHECK(n == 3 && device[0] == 2 && device[1] == 0 && device[2] == 2);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        CHECK_INT(load(2, wrong[i], NULL, NULL), ROPED_INVALID);
        CHECK_CONTAINS(err.text, "expected");
        CHECK_CONTAINS(err.text, strchr(wrong[i], '=') + 1);
    }
    CHECK_INT(load(3, "--device=1", "--devices=0", NULL), ROPED_INVALID);
    CHECK_CONTAINS(err.text, "devices is '0' and device is '1'");
}

TEST(a_list_grows_within_one_source)
{
    char item[CONFIG_TEXT_BYTES];
    setenv("ROPED_LISTEN", "127.0.0.1:1, unix:/a", 1);
    CHECK_OK(load(1, NULL, NULL, NULL), &err);
    const char *list = config.listen;
    CHECK_TEXT(list, "127.0.0.1:1, unix:/a");
    CHECK(config_next(&list, item));
    CHECK_TEXT(item, "127.0.0.1:1");
    CHECK(config_next(&list, item));
    CHECK_TEXT(item, "unix:/a");
    CHECK(!config_next(&list, item));
    CHECK_OK(load(3, "--listen=:2", "--listen=unix:/b", NULL), &err);
    CHECK_TEXT(config.listen, ":2,unix:/b");
    unsetenv("ROPED_LISTEN");
}

TEST(a_flag_without_its_value_is_refused)
{
    CHECK_INT(load(2, "--config", NULL, NULL), ROPED_INVALID);
    CHECK_CONTAINS(err.text, "--config needs a value");
    /* the next flag is no value */
    CHECK_INT(load(3, "--listen", "--log_requests", NULL), ROPED_INVALID);
    CHECK_CONTAINS(err.text, "--listen needs a value");
    CHECK_OK(load(3, "--log_requests", "--lanes=3", NULL), &err);
    CHECK(config.log_requests && config.lanes == 3);
    CHECK_OK(load(3, "--log_requests", "off", NULL), &err);
    CHECK(!config.log_requests);
}

TEST(printing_needs_no_right_settings)
{
    setenv("ROPED_LANES", "none", 1);
    CHECK_OK(load(3, "--lane", "--help", NULL), &err);
    CHECK_INT(action, CONFIG_HELP);
    CHECK_OK(load(2, "--version", NULL, NULL), &err);
    CHECK_INT(action, CONFIG_VERSION);
    CHECK_INT(load(2, "--check-config", NULL, NULL), ROPED_INVALID);
    CHECK_CONTAINS(err.text, "environment: lanes is 'none'");
    unsetenv("ROPED_LANES");
}

/* Loads what is in text as a configuration file. */
static enum roped_status load_file(const char *text)
{
    char path[64];
    snprintf(path, sizeof path, "/tmp/roped_config_%d", (int)getpid());
    FILE *file = fopen(path, "w");
    CHECK(file != NULL);
    if (!file)
        return ROPED_INTERNAL;
    fputs(text, file);
    fclose(file);
    enum roped_status status = load(3, "--config", path, NULL);
    unlink(path);
    return status;
}

TEST(files_have_comments_space_and_line_numbers)
{
    static char line[2000];
    CHECK_OK(load_file(""), &err);
    CHECK_OK(load_file("\n  # a\n\tpool-bytes=\t2M \r\nlanes = 5 # b"), &err);
    CHECK_INT(config.pool_bytes, 2 << 20);
    CHECK_INT(config.lanes, 5);
    CHECK_INT(load_file("\n\nlanes 5\n"), ROPED_INVALID);
    CHECK_CONTAINS(err.text, ":3: line is 'lanes 5', expected key = value");
    CHECK_INT(load_file("lanes = 500\n"), ROPED_INVALID);
    CHECK_CONTAINS(err.text, ":1: lanes is '500', expected 0 to 64");
    memset(line, 'x', sizeof line - 1);
    CHECK_INT(load_file(line), ROPED_INVALID);
    CHECK_CONTAINS(err.text, ":1: line is 'xxx");
    CHECK_INT(load(2, "--config=/nowhere/roped.conf", NULL, NULL),
              ROPED_INVALID);
    CHECK_CONTAINS(err.text, "'/nowhere/roped.conf'");
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

/* "  --lanes (0; calls, 0 to 64)" */
TEST(every_range_in_the_help_has_a_unit)
{
    static char made[1 << 16];
    FILE *out = fmemopen(made, sizeof made, "w");
    config_write_help(out);
    fclose(out);
    int n_ranges = 0;
    char *rest = made;
    for (char *line; (line = strsep(&rest, "\n"));) {
        const char *range = strstr(line, "; ");
        if (strncmp(line, "  --", 4) != 0 || !range || !strstr(range, " to "))
            continue;
        n_ranges++;
        CHECK(isalpha((unsigned char)range[2]));
    }
    CHECK(n_ranges >= 29);
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

/* What a daemon says of its settings is a file that makes the same ones. */
TEST(settings_in_force_read_back_the_same)
{
    static char written[1 << 14];
    static struct config first;
    CHECK_OK(load(4, "--pool_bytes=1048577", "--queue_timeout_seconds=0.001",
                  "--backend=cpu"),
             &err);
    first = config;
    FILE *out = fmemopen(written, sizeof written, "w");
    config_write(&config, out);
    fclose(out);
    CHECK_OK(load_file(written), &err);
    CHECK_INT(config.pool_bytes, 1048577);
    CHECK(memcmp(&config, &first, sizeof config) == 0);
}

/* The sample with its keys uncommented is all defaults. */
TEST(the_sample_says_the_defaults)
{
    static char made[1 << 16];
    static struct config first;
    CHECK_OK(load(1, NULL, NULL, NULL), &err);
    first = config;
    FILE *out = fmemopen(made, sizeof made, "w");
    config_write_sample(out);
    fclose(out);
    int n_keys = 0;
    for (char *at = made; (at = strstr(at, "\n#")); at++)
        if (at[2] != ' ') {
            at[1] = ' ';
            n_keys++;
        }
    CHECK(n_keys > 20);
    CHECK_OK(load_file(made), &err);
    CHECK(memcmp(&config, &first, sizeof config) == 0);
}
