/*
 * job.h - runs a request's job: on this thread where it is small and a lane is
 * idle, else on a lane while the connection is suspended.
 */
#ifndef ROPED_HTTP_JOB_H
#define ROPED_HTTP_JOB_H

#include "http/request.h"

/*
 * The last thing that a handler does: request->job is ready but for who gets
 * told. answer queues the reply, on the connection's thread, however the job
 * ended; before it every region that the job held is given back.
 */
void job_run(struct request *request, route_handler_fn *answer);

/* Gives back the regions of a job that has ended, or will never start. */
void job_release_regions(struct request *request);

#endif
