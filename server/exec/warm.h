/*
 * warm.h - recordings of a program before its first run.
 */
#ifndef ROPED_EXEC_WARM_H
#define ROPED_EXEC_WARM_H

#include "exec/executor.h"

/*
 * Runs it on every lane of every device until that has recorded it, one lane
 * after the other; each is waited for until the deadline of the errand that
 * this is called in. Nothing where the backend records nothing. ROPED_BUSY: it
 * is done for another program; ROPED_DEADLINE, ROPED_DRAINING: a lane was not
 * to be had.
 */
ROPED_MUST_CHECK enum roped_status exec_warm(struct executor *exec,
                                             const struct exec_job *errand,
                                             struct program_run *run,
                                             struct roped_error *err);

#endif
