/*
 * test_compare.c - what `bench_ops compare` refuses and what it lets pass, on
 * files that this test writes.
 */
#include "bench/compare.h"
#include "check.h"

#include <unistd.h>

static char old_path[] = "/tmp/roped_compare_old_XXXXXX";
static char new_path[] = "/tmp/roped_compare_new_XXXXXX";

/* What the last comparison wrote. */
static char *table, *errors;

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    if (!file || fputs(text, file) < 0 || fclose(file) != 0) {
        perror(path);
        exit(EXIT_FAILURE);
    }
}

static int compare(const char *old_text, const char *new_text)
{
    size_t table_bytes, error_bytes;
    free(table);
    free(errors);
    write_file(old_path, old_text);
    write_file(new_path, new_text);
    FILE *table_file = open_memstream(&table, &table_bytes);
    FILE *error_file = open_memstream(&errors, &error_bytes);
    int verdict = compare_files(old_path, new_path, table_file, error_file);
    fclose(table_file);
    fclose(error_file);
    return verdict;
}

/* A line as bench_ops prints it. */
#define LINE(row, backend, us, copy_us, spread, copy_spread)                   \
    "{\"row\":\"" row "\",\"backend\":\"" backend "\",\"us\":" us              \
    ",\"copy_us\":" copy_us                                                    \
    ",\"share\":0.5000,\"goal\":0.80,\"spread\":" spread                       \
    ",\"copy_spread\":" copy_spread ",\"bytes\":4096,\"bits_differ\":0}\n"
#define QUIET(us, copy_us) LINE("rope", "cpu", us, copy_us, "0.0000", "0.0000")

TEST(regression_is_refused)
{
    CHECK_INT(compare(QUIET("10.0", "8.0"), QUIET("10.3", "8.0")), 1);
    CHECK_CONTAINS(table, "SLOWER");
    CHECK_CONTAINS(table, "1.030");
    CHECK_CONTAINS(table, "1 rows compared, 1 slower, 0 gone, 0 new");
    CHECK_TEXT(errors, "");
}

TEST(two_percent_and_faster_pass)
{
    CHECK_INT(compare(QUIET("10.0", "8.0"), QUIET("10.19", "8.0")), 0);
    CHECK_INT(compare(QUIET("10.0", "8.0"), QUIET("5.0", "8.0")), 0);
    CHECK(!strstr(table, "SLOWER"));
}

/* A slower machine is slower at copying too. */
TEST(time_is_relative_to_the_copy)
{
    CHECK_INT(compare(QUIET("10.0", "8.0"), QUIET("20.0", "16.0")), 0);
    CHECK_INT(compare(QUIET("10.0", "8.0"), QUIET("10.0", "7.0")), 1);
}

/* 0.03 and 0.04 on one side, nothing on the other: 3 x 0.05 + 0.02. */
TEST(noise_is_added_in_quadrature)
{
    const char *noisy = LINE("rope", "cpu", "10.0", "8.0", "0.0300", "0.0400");
    CHECK_INT(compare(noisy, QUIET("11.69", "8.0")), 0);
    CHECK_INT(compare(noisy, QUIET("11.71", "8.0")), 1);
    CHECK_CONTAINS(table, "+-5.0%");
}

/* Median 10 (not the 14), and (14 - 9.9) / 10 of noise. */
TEST(several_runs_are_their_median)
{
    const char *three =
        QUIET("10.0", "8.0") QUIET("14.0", "8.0") QUIET("9.9", "8.0");
    CHECK_INT(compare(three, QUIET("22.4", "8.0")), 0);
    CHECK_INT(compare(three, QUIET("22.6", "8.0")), 1);
    CHECK_CONTAINS(table, "+-41.0%");
    CHECK_INT(compare(QUIET("10.0", "8.0") QUIET("10.1", "8.0"),
                      QUIET("11.0", "8.0") QUIET("11.1", "8.0")),
              1);
    CHECK_CONTAINS(table, "1 rows compared");
}

TEST(rows_of_one_side_are_reported)
{
    const char *rope = QUIET("10.0", "8.0");
    CHECK_INT(compare(QUIET("10.0", "8.0")
                          LINE("norm", "cpu", "1.0", "1.0", "0.0", "0.0"),
                      rope),
              0);
    CHECK_CONTAINS(table, "gone");
    CHECK_CONTAINS(table, "1 rows compared, 0 slower, 1 gone, 0 new");
    CHECK_INT(compare(rope, QUIET("10.0", "8.0") LINE("rope", "cuda", "99.0",
                                                      "1.0", "0.0", "0.0")),
              0);
    CHECK_CONTAINS(table, "1 rows compared, 0 slower, 0 gone, 1 new");
}

TEST(malformed_lines_are_named)
{
    const char *good = QUIET("10.0", "8.0");
    CHECK_INT(compare(good, QUIET("10.0", "8.0") "{\"row\":\"rope\"}\n"), 2);
    CHECK_CONTAINS(errors, new_path);
    CHECK_CONTAINS(errors, "line 2: expected \"backend\"");
    CHECK_INT(compare(QUIET("\"ten\"", "8.0"), good), 2);
    CHECK_CONTAINS(errors, "line 1: expected \"us\", a number");
    CHECK_INT(compare(good, QUIET("10.0", "0.0")), 2);
    CHECK_CONTAINS(errors, "expected \"copy_us\" above 0");
    CHECK_INT(compare(good, QUIET("1e999", "8.0")), 2);
    CHECK_CONTAINS(errors, "expected \"us\" above 0");
    CHECK_INT(compare(good, QUIET("nan", "8.0")), 2);
    CHECK_CONTAINS(errors, "line 1: expected \"row\"");
    CHECK_INT(compare(good, LINE("rope", "cpu", "10.0", "8.0", "-1", "0.0000")),
              2);
    CHECK_CONTAINS(errors, "\"spread\"");
    CHECK_INT(compare(good, "\n"), 2);
    CHECK_CONTAINS(errors, "line 1: expected \"row\"");
    CHECK_INT(compare(good, ""), 2);
    CHECK_CONTAINS(errors, "line 1: expected \"row\"");
}

TEST(cut_and_empty_files_are_refused)
{
    const char *good = QUIET("10.0", "8.0");
    char cut[256];
    for (size_t length = 0; length < strlen(good); length++) {
        snprintf(cut, sizeof cut, "%.*s", (int)length, good);
        CHECK_INT(compare(good, cut), 2);
        CHECK_CONTAINS(errors, "line 1: expected \"");
    }
    CHECK_INT(compare(good, good), 0);
}

TEST(nothing_in_common_is_an_error)
{
    CHECK_INT(compare(QUIET("10.0", "8.0"),
                      LINE("rope", "cuda", "1.0", "1.0", "0.0", "0.0")),
              2);
    CHECK_CONTAINS(errors, "no row is in both");
    CHECK_INT(compare_files("/nowhere/at/all", new_path, stdout, stderr), 2);
}

int main(void)
{
    int old_file = mkstemp(old_path), new_file = mkstemp(new_path);
    if (old_file < 0 || new_file < 0) {
        perror("mkstemp");
        return EXIT_FAILURE;
    }
    close(old_file);
    close(new_file);
    check_run();
    unlink(old_path);
    unlink(new_path);
    free(table);
    free(errors);
    return check_done();
}
