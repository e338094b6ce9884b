/*
 * shared.h - what all requests of one server share.
 */
#ifndef ROPED_HTTP_SHARED_H
#define ROPED_HTTP_SHARED_H

#include "config.h"
#include "exec/executor.h"
#include "http/gate.h"
#include "http/origin.h"
#include "http/peers.h"
#include "metrics.h"
#include "wire/models.h"

#include <stdatomic.h>

struct service {
    const struct config *config;
    struct executor *exec;
    struct metrics *metrics;
    const struct models *models;
    const char *version;
    uint64_t start_time_seconds;
    uint64_t n_restarts;
    struct gate gate;
    struct origin_rules origins;
    struct peers peers;
    bool is_lax; /* the library does not frame requests strictly: what follows
                    a chunked body is not read */
    atomic_bool is_draining; /* not ready, answers carry Connection: close */
};

#endif
