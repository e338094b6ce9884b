/*
 * metrics.h - counters and histograms of the daemon, and their exposition.
 *
 * Fixed arrays of atomics, indexed by closed label sets (model, status,
 * transport, phase): counting is a few relaxed additions, no lock, no string.
 * Gauges are read from their owners at scrape time through metrics_gauges.
 */
#ifndef ROPED_METRICS_H
#define ROPED_METRICS_H

#include "exec/executor.h"
#include "wire/kserve_meta.h"
#include "wire/models.h"

#include <roped/op.h>
#include <roped/status.h>

#include <stdint.h>

struct metrics;

enum metrics_transport { METRICS_V1, METRICS_V2, METRICS_TRANSPORTS };

enum phase {
#define BODY_PHASE(id, name, meaning)       PHASE_##id,
#define PHASE(id, name, statistic, meaning) PHASE_##id,
#include "phase.def"
    N_PHASES
};

/* One finished call, successful or not. */
struct metrics_call {
    int op; /* models_index, or metrics_programs */
    enum roped_status status;
    enum metrics_transport transport;
    uint64_t total_ns; /* headers seen to answer queued */
    uint64_t phase_ns[N_PHASES];
    uint64_t request_bytes, response_bytes;
};

/* What counts as the operator of every program's runs: a client's names are no
 * labels. */
static inline int metrics_programs(const struct models *models)
{
    return models->n;
}

/* models must outlive the metrics. */
ROPED_MUST_CHECK enum roped_status metrics_new(const struct models *models,
                                               struct metrics **out,
                                               struct roped_error *err);
void metrics_free(struct metrics *metrics);

void metrics_count_call(struct metrics *metrics,
                        const struct metrics_call *call);

/* Any HTTP answer, by status code; and refusals before an operator ran. */
void metrics_count_response(struct metrics *metrics, int http_code);

/* What the exposition shows besides the counters. */
struct metrics_gauges {
    struct executor *exec;
    struct memory_usage memory; /* before the text took its own */
    const char *version;
    int n_connections;
    uint64_t connection_bytes;   /* of their buffers */
    uint64_t start_time_seconds; /* Unix time */
    uint64_t n_restarts;
};

/* Names of the series that are wanted, such as x_sum of a histogram x; n 0: all
 * of them. A name that there is not has no series. */
enum { METRICS_NAMES = 128 };
struct metrics_names {
    int n;
    const char *name[METRICS_NAMES];
};

/* Text format 0.0.4, one HELP and TYPE per family. An operator has series from
 * its first call on. */
void metrics_write(struct metrics *metrics, const struct metrics_gauges *gauges,
                   const struct metrics_names *names, struct buffer *buffer);

/* Totals of one model for the v2 statistics. */
void metrics_statistics(struct metrics *metrics, int op,
                        struct kserve_statistics *out);

#endif
