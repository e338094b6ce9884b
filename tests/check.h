/*
 * check.h - the whole test framework: checks that print both values and the
 * line and go on, tests that list themselves, and a closing line that counts.
 *
 *     TEST(shape_refuses_mixed_forms) { CHECK_INT(f(3), 9); }
 *
 * is a program: check_main.c has a main for those that need nothing around
 * their tests. Others have one of their own, which calls check_run, as often
 * as it likes, and returns check_done().
 */
#ifndef ROPED_TESTS_CHECK_H
#define ROPED_TESTS_CHECK_H

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHECK_SKIP = 77 };

extern int check_failures; /* in the running test, or outside of all */
extern int check_n_passed, check_n_failed;

struct check_test {
    const char *name;
    void (*run)(void);
    struct check_test *next;
};

/* Adds a test, which must outlive the program, behind those that are there. */
void check_register(struct check_test *test);

/* Runs all tests, in the order in which they stand in the source. */
void check_run(void);

/*
 * Prints how many tests passed and failed; the value that main returns. A check
 * that failed outside of all tests makes it a failure too.
 */
int check_done(void);

#define CHECK_FAIL(...)                                                        \
    do {                                                                       \
        fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);                        \
        fprintf(stderr, __VA_ARGS__);                                          \
        fputc('\n', stderr);                                                   \
        check_failures++;                                                      \
    } while (0)

#define CHECK(condition)                                                       \
    do {                                                                       \
        if (!(condition))                                                      \
            CHECK_FAIL("failed: %s", #condition);                              \
    } while (0)

#define CHECK_INT(found, expected)                                             \
    do {                                                                       \
        int64_t found_ = (int64_t)(found), expected_ = (int64_t)(expected);    \
        if (found_ != expected_)                                               \
            CHECK_FAIL("%s is %" PRId64 ", expected %" PRId64, #found, found_, \
                       expected_);                                             \
    } while (0)

#define CHECK_DOUBLE(found, expected, tolerance)                               \
    do {                                                                       \
        double found_ = (found), expected_ = (expected);                       \
        double off_ = found_ - expected_;                                      \
        if (!(off_ <= (tolerance) && -off_ <= (tolerance)))                    \
            CHECK_FAIL("%s is %.17g, expected %.17g within %g", #found,        \
                       found_, expected_, (double)(tolerance));                \
    } while (0)

#define CHECK_TEXT(found, expected)                                            \
    do {                                                                       \
        const char *found_ = (found), *expected_ = (expected);                 \
        if (!found_ || strcmp(found_, expected_) != 0)                         \
            CHECK_FAIL("%s is '%s', expected '%s'", #found,                    \
                       found_ ? found_ : "(null)", expected_);                 \
    } while (0)

#define CHECK_CONTAINS(found, part)                                            \
    do {                                                                       \
        const char *found_ = (found), *part_ = (part);                         \
        if (!found_ || !strstr(found_, part_))                                 \
            CHECK_FAIL("%s is '%s', expected it to contain '%s'", #found,      \
                       found_ ? found_ : "(null)", part_);                     \
    } while (0)

/* A roped_status that must be ROPED_OK, with its error text if not. */
#define CHECK_OK(call, err)                                                    \
    do {                                                                       \
        if ((call) != ROPED_OK)                                                \
            CHECK_FAIL("%s failed: %s", #call, (err)->text);                   \
    } while (0)

#define TEST(test)                                                             \
    static void test(void);                                                    \
    __attribute__((constructor)) static void test##_register(void)             \
    {                                                                          \
        static struct check_test entry = {.name = #test, .run = test};         \
        check_register(&entry);                                                \
    }                                                                          \
    static void test(void)

/*
 * n random cases, or a tenth where ROPED_TEST_QUICK is set: under tools that
 * instrument every memory access.
 */
static inline int check_cases(int n)
{
    return getenv("ROPED_TEST_QUICK") ? n / 10 : n;
}

/*
 * The same of random calls in process, and half of that where ROPED_TEST_QUICK
 * is above 1: what shows there alone is how threads meet, or what another
 * processor does, and neither depends on much of a call.
 */
static inline int check_calls(int n)
{
    const char *quick = getenv("ROPED_TEST_QUICK");
    bool is_quicker = quick && strtoul(quick, NULL, 10) > 1;
    return is_quicker ? check_cases(n) / 2 : check_cases(n);
}

/*
 * Is a sweep's case among those that run? One in ROPED_TEST_QUICK is, where
 * that is above 1: under an emulator.
 */
static inline bool check_takes_case(void)
{
    static unsigned n;
    const char *quick = getenv("ROPED_TEST_QUICK");
    const unsigned part = quick ? (unsigned)strtoul(quick, NULL, 10) : 1;
    return part <= 1 || n++ % part == 0;
}

#endif
