/*
 * runner_main.c - main of a test that runs on the backend that its argument
 * names.
 */
#include "check.h"
#include "kernel/runner.h"

int runner_main(struct runner *runner, int argc, char **argv)
{
    if (!runner_open(runner, argc > 1 ? argv[1] : "cpu"))
        return CHECK_SKIP;
    check_run();
    runner_close(runner);
    return check_done();
}
