/*
 * session_internal.h - what works and runs of programs know of a session.
 */
#ifndef ROPED_CORE_SESSION_INTERNAL_H
#define ROPED_CORE_SESSION_INTERNAL_H

#include <roped/backend.h>

struct roped_session {
    const struct roped_backend_api *api;
    struct roped_backend *backend;
    struct roped_queue *queue;
};

#endif
