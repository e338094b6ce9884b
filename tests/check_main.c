/*
 * check_main.c - main of the tests that have none: they need nothing around
 * them.
 */
#include "check.h"

int main(void)
{
    check_run();
    return check_done();
}
