/*
 * restart.h - the daemon starts itself anew in its place.
 *
 * WHY. After an illegal access every CUDA call of a process fails, on all of
 * its devices, and nothing but a new process ends that. So the daemon executes
 * its own program: supervisors see the same process go on, and clients who come
 * meanwhile wait in the backlog of sockets that stay open.
 *
 * WHAT IS LOST. Connections, which are cut once their calls are answered;
 * regions and tables, whose names the next process answers with 410; counters.
 */
#ifndef ROPED_RESTART_H
#define ROPED_RESTART_H

#include "exec/executor.h"
#include "handover.h"
#include "http/daemon.h"

#include <roped/status.h>

/* What goes, and how this process came to be. */
struct restart {
    struct executor *exec;
    struct daemon *daemon;
    const struct handover *before;
    char **arguments;
};

/*
 * A device is lost: refuses calls, lets those that run end, and executes the
 * program again. Returns only where that fails, or has been done too often:
 * the caller ends the process then, and closes nothing of the device. Other
 * signals than the main thread's wait until then.
 */
void restart_process(const struct restart *restart, int device,
                     const struct roped_error *why);

/* Tells the executor which names were lost by the processes before. */
void restart_note_lost(struct executor *exec, const struct handover *before);

#endif
