/*
 * call_demo.h - calls of demo models, which no backend knows.
 */
#ifndef ROPED_HTTP_CALL_DEMO_H
#define ROPED_HTTP_CALL_DEMO_H

#include "exec/executor.h"

/* A job's task that computes one. */
enum roped_status call_run_demo(struct exec_job *job);

#endif
