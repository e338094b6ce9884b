/*
 * check.c - the list of tests of a program, and how each of them ended.
 */
#include "check.h"

int check_failures, check_n_passed, check_n_failed;

static struct check_test *first_test;
static struct check_test **next_place = &first_test;

void check_register(struct check_test *test)
{
    *next_place = test;
    next_place = &test->next;
}

void check_run(void)
{
    const int outside = check_failures;
    for (const struct check_test *test = first_test; test; test = test->next) {
        check_failures = 0;
        test->run();
        if (check_failures)
            fprintf(stderr, "FAILED %s\n", test->name);
        *(check_failures ? &check_n_failed : &check_n_passed) += 1;
    }
    check_failures = outside;
}

int check_done(void)
{
    printf("%d passed, %d failed\n", check_n_passed, check_n_failed);
    return check_n_failed || check_failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
