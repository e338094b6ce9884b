/*
 * executor_internal.h - what the files of the executor share: executor.c (its
 * life, admission, expiry), dispatch.c (which lane runs what), staging.c
 * (bodies that are uploaded while they arrive).
 */
#ifndef ROPED_EXEC_EXECUTOR_INTERNAL_H
#define ROPED_EXEC_EXECUTOR_INTERNAL_H

#include "exec/device.h"
#include "exec/executor.h"
#include "exec/lane.h"

#include <pthread.h>

/* What stages may take of a device's memory for calls: one part in so many. */
enum { STAGES_SHARE = 4 };

enum lane_state { LANE_IDLE, LANE_BUSY };

struct driver {
    struct executor *exec;
    struct station *station;
    struct lane lane;
    pthread_t thread;
    bool has_thread;
    pthread_cond_t wake; /* it has a job, or closing */

    /* guarded by lock */
    enum lane_state state;
    struct exec_job *job; /* for its thread to take */
    uint64_t bytes;       /* what the job that runs adds to its station's */
    bool has_long;        /* is that a long one? */
};

/* Jobs that wait, by when they came and their handicap. */
struct waiting {
    struct heap shorts, longs;
};

/* A device, its lanes, and the jobs that can run there only. */
struct station {
    struct device device;
    struct executor *exec;
    struct driver *driver; /* n_drivers of them */
    int n_drivers;

    /* guarded by lock */
    struct waiting waiting;
    int n_busy, n_long; /* lanes; of them: with a long job */
    uint64_t bytes;     /* of the jobs that run, and of bodies that arrive */
    struct stage *idle; /* stages without a body */
    int n_stages;
};

struct executor {
    const struct roped_backend_api *api;
    struct memory_pool *memory;
    struct tables *tables;
    struct regions *regions;
    struct exec_options options;
    int n_stations;
    struct station *station;
    struct resident **resident; /* of each station, for the tables */
    pthread_t sweeper; /* ends jobs whose deadline passes while they wait */
    bool has_sweeper;

    pthread_mutex_t lock;   /* guards the following */
    pthread_cond_t idle;    /* nothing waits and nothing runs */
    pthread_cond_t sweep;   /* a job ends before sweep_ns, or closing */
    uint64_t sweep_ns;      /* when the sweeper looks at the queues again */
    struct waiting waiting; /* jobs that can run anywhere */
    struct heap expiring;   /* all that wait and have a deadline */
    int n_queued, n_busy;
    int n_ending; /* jobs that left the queue without a lane, done under way */
    bool is_draining, is_closing;
};

/* ---- dispatch.c */

/* The one place that says where a job runs: see executor.h. NULL: nowhere yet.
 * Where a lane is idle no job waits that it could run: whoever frees a lane
 * gives it the next one. Under lock, as the next five. */
struct driver *dispatch_choose(struct executor *exec,
                               const struct exec_job *job);

/* The lane has this job now; and its own thread runs it, once dispatch_wake has
 * been called, with the lock or without. */
void dispatch_occupy(struct driver *driver, const struct exec_job *job);
void dispatch_hand(struct driver *driver, struct exec_job *job);
void dispatch_wake(struct driver *driver);

/* The job waits; and waits no longer. */
void dispatch_push(struct executor *exec, struct exec_job *job);
void dispatch_remove(struct executor *exec, struct exec_job *job);

/* The job that waits for device, or any (-1), and is next; NULL: none. */
struct exec_job *dispatch_next(struct executor *exec, int device);

/* Tells who waits for the end of all work, if this is it. Under lock. */
void dispatch_tell_idle(struct executor *exec);

/* Runs a job on a lane that dispatch_occupy has taken, and frees that. */
void dispatch_run(struct driver *driver, struct exec_job *job);

/* A lane's thread. */
void *dispatch_thread(void *driver);

/* device.reclaim of a station. */
void dispatch_reclaim(void *station);

/* Fills what the executor owns of a job. */
void dispatch_start(const struct executor *exec, struct exec_job *job);

/* ---- staging.c */

/* Takes the stage off a job that a lane has ended. */
void staging_finish(struct executor *exec, struct exec_job *job);

/* What its station counts of a job already, as a body that arrives: until its
 * stage is taken off. */
uint64_t staging_bytes(const struct exec_job *job);

/* After a call has run here: makes the stage that its body of so many bytes
 * lacked, if there is room. Takes its time. */
void staging_grow(struct station *station, uint64_t bytes);

/* Frees the stages without a body. */
void staging_free_idle(struct station *station);

#endif
