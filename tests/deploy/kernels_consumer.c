/*
 * kernels_consumer.c - a program of someone else, in C11 and in C++11: it
 * normalises a row in its own process, by the plain functions of session.h.
 */
#include <roped/library.h>
#include <roped/session.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static int refuse(const struct roped_error *err)
{
    fprintf(stderr, "kernels_consumer: %s\n", err->text);
    return EXIT_FAILURE;
}

int main(void)
{
    int64_t dims[2] = {1, 4};
    float x[4] = {3, 3, 3, 3}, y[4] = {0, 0, 0, 0};
    struct roped_session *session;
    struct roped_work *work;
    struct roped_error err;
    if (!roped_kernels_backend("cpu"))
        return EXIT_FAILURE;
    if (roped_session_open("cpu", 0, NULL, &session, &err) ||
        roped_work_new(session, "rmsnorm", &work, &err) ||
        roped_work_input(work, "x", "F32", 2, dims, x, &err) ||
        roped_work_prepare(work, &err) ||
        roped_work_output(work, "y", y, &err) ||
        roped_work_launch(work, &err) || roped_session_wait(session, &err))
        return refuse(&err);
    roped_work_free(work);
    roped_session_close(session);
    printf("%s: %f\n", roped_kernels_version(), (double)y[3]);
    return fabs((double)y[3] - 1) < 1e-6 ? EXIT_SUCCESS : EXIT_FAILURE;
}
