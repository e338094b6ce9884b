/*
 * dispatch.h - the executor inside, and which lane runs what.
 *
 * Files call downwards: executor.c (its life, admission, expiry, who gets an
 * inbox), dispatch.c, lane.c (one job), inbox.c, device.c. A lane that lacks
 * memory asks upwards, through device->reclaim.
 */
#ifndef ROPED_EXEC_DISPATCH_H
#define ROPED_EXEC_DISPATCH_H

#include "exec/device.h"
#include "exec/executor.h"
#include "exec/lane.h"

#include <pthread.h>

struct executor {
    const struct roped_backend_api *api;
    struct memory_pool *memory;
    struct tenants *tenants;
    struct tables *tables;
    struct programs *programs;
    struct regions *regions;
    struct exec_options options;
    int n_devices;
    struct device *device;
    struct resident **resident; /* of each device, for the tables */
    pthread_t sweeper; /* ends jobs whose deadline passes while they wait, and
                          trims memory */
    bool has_sweeper;
    /* changed under lock */
    atomic_int n_waiting, n_waiting_short;
    int n_waiting_again; /* of n_waiting: not the first job of their request */
    atomic_bool is_draining, is_warming;
    _Atomic(const char *) refusal; /* of new jobs; NULL: they are taken */

    _Alignas(CACHE_LINE) pthread_mutex_t lock; /* guards the following */
    pthread_cond_t idle;    /* nothing waits and nothing runs */
    pthread_cond_t sweep;   /* a job ends before sweep_ns, or closing */
    uint64_t sweep_ns;      /* when the sweeper looks at waiting jobs again */
    uint64_t trim_ns;       /* and at kept memory; UINT64_MAX: never */
    struct waiting waiting; /* jobs that can run anywhere */
    struct heap expiring;   /* all that wait and have a deadline */
    int n_ending; /* jobs that ceased to wait without a lane, done under way */
    bool is_closing;
};

/* The one place that says where a job runs: see executor.h. Makes a lane there
 * busy; NULL: nowhere yet. Under lock if the job is long. */
struct lane *dispatch_claim(struct executor *exec, const struct exec_job *job);

/* Makes this lane busy, if it is idle. */
bool dispatch_claim_lane(struct lane *lane);

/* What a device moves now, bodies on their way to it included. */
uint64_t dispatch_bytes(const struct device *device);
int dispatch_n_busy(const struct device *device);

/* The claimed lane has this job now. Under lock if the job is long. */
void dispatch_occupy(struct lane *lane, const struct exec_job *job);

/* Gives a job to a lane, or has it wait if it may; false: neither. Under lock.
 * Afterwards the caller wakes *wakes, if any, with the lock or without. */
bool dispatch_place(struct executor *exec, struct exec_job *job, bool may_wait,
                    struct lane **wakes);
void dispatch_wake(struct lane *lane);

/* Gives back a claimed lane that has no job: what waits runs there. */
void dispatch_release(struct lane *lane);

/* The job waits no longer. Under lock, like the next three. */
void dispatch_remove(struct executor *exec, struct exec_job *job);

/* The job that waits for device, or any (-1), and is next; NULL: none. */
struct exec_job *dispatch_next(struct executor *exec, int device);

/* Has all work ended? And tells who waits for that, if so. */
bool dispatch_is_idle(const struct executor *exec);
void dispatch_tell_idle(struct executor *exec);

/* Runs a job on a lane that dispatch_occupy has got, and frees that. */
void dispatch_run(struct lane *lane, struct exec_job *job);

/* A lane's thread. */
void *dispatch_thread(void *lane);

/* device->reclaim, for a lane that finds the memory of its device claimed. */
void dispatch_reclaim(struct device *device);

/* Fills what the executor owns of a job. */
void dispatch_start(const struct executor *exec, struct exec_job *job);

#endif
