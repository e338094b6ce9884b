/*
 * runner_main.c - main of a test that runs on the backend that its argument
 * names.
 */
#include "check.h"
#include "kernel/runner.h"

const char *runner_operator(int argc, char **argv)
{
    if (argc <= 2)
        return NULL;
    if (!roped_op_find(argv[2])) {
        fprintf(stderr, "%s: no operator '%s'\n", argv[0], argv[2]);
        exit(EXIT_FAILURE);
    }
    return argv[2];
}

int runner_main(struct runner *runner, int argc, char **argv)
{
    if (!runner_open(runner, argc > 1 ? argv[1] : "cpu"))
        return CHECK_SKIP;
    check_run();
    runner_close(runner);
    return check_done();
}
