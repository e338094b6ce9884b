/*
 * executor_internal.h - what the files of the executor share: executor.c (its
 * life, admission, expiry), dispatch.c (which lane runs what), staging.c
 * (bodies that are uploaded while they arrive).
 */
#ifndef ROPED_EXEC_EXECUTOR_INTERNAL_H
#define ROPED_EXEC_EXECUTOR_INTERNAL_H

#include "exec/caches.h" /* CACHE_LINE */
#include "exec/device.h"
#include "exec/executor.h"
#include "exec/lane.h"

#include <pthread.h>

/* What stages may take of a device's memory for calls: one part in so many. */
enum { STAGES_SHARE = 4 };

enum { LANE_IDLE, LANE_BUSY };

/* A lane and its thread. Whoever makes it busy has it: that thread, or one that
 * runs a short job itself. */
struct driver {
    _Alignas(CACHE_LINE) atomic_int state;
    atomic_uint_least64_t bytes; /* what the job that runs adds to those of its
                                    station */
    bool has_long;               /* is that a long one? */
    struct executor *exec;
    struct station *station;
    struct lane lane;
    pthread_t thread;
    bool has_thread;
    pthread_cond_t wake;  /* it has a job, or closing */
    struct exec_job *job; /* for its thread to take; guarded by lock */
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
    atomic_uint_least64_t arriving_bytes; /* of bodies with a stage */

    /* guarded by lock */
    struct waiting waiting;
    int n_long;         /* lanes with a long job */
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
    /* changed under lock */
    atomic_int n_queued, n_queued_short;
    atomic_bool is_draining;

    _Alignas(CACHE_LINE) pthread_mutex_t lock; /* guards the following */
    pthread_cond_t idle;    /* nothing waits and nothing runs */
    pthread_cond_t sweep;   /* a job ends before sweep_ns, or closing */
    uint64_t sweep_ns;      /* when the sweeper looks at the queues again */
    struct waiting waiting; /* jobs that can run anywhere */
    struct heap expiring;   /* all that wait and have a deadline */
    int n_ending; /* jobs that left the queue without a lane, done under way */
    bool is_closing;
};

/* ---- dispatch.c */

/* The one place that says where a job runs: see executor.h. Makes a lane there
 * busy; NULL: nowhere yet. Under lock if the job is long. */
struct driver *dispatch_claim(struct executor *exec,
                              const struct exec_job *job);

/* What a device moves now, bodies on their way to it included. */
uint64_t dispatch_bytes(const struct station *station);
int dispatch_n_busy(const struct station *station);

/* The claimed lane has this job now. Under lock if the job is long. */
void dispatch_occupy(struct driver *driver, const struct exec_job *job);

/* Gives a job to a lane, or has it wait if it may; false: neither. Under lock.
 * Afterwards the caller wakes *wakes, if any, with the lock or without. */
bool dispatch_place(struct executor *exec, struct exec_job *job, bool may_wait,
                    struct driver **wakes);
void dispatch_wake(struct driver *driver);

/* Gives back a claimed lane that has no job: what waits runs there. */
void dispatch_release(struct driver *driver);

/* The job waits no longer. Under lock, like the next three. */
void dispatch_remove(struct executor *exec, struct exec_job *job);

/* The job that waits for device, or any (-1), and is next; NULL: none. */
struct exec_job *dispatch_next(struct executor *exec, int device);

/* Has all work ended? And tells who waits for that, if so. */
bool dispatch_is_idle(const struct executor *exec);
void dispatch_tell_idle(struct executor *exec);

/* Runs a job on a lane that dispatch_occupy has got, and frees that. */
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
