/*
 * kserve_meta.h - what v2 clients read about server and models; everything
 * about a model derives from its signature.
 */
#ifndef ROPED_WIRE_KSERVE_META_H
#define ROPED_WIRE_KSERVE_META_H

#include "wire/buffer.h"
#include "wire/models.h"

#include <roped/op.h>

#include <stdbool.h>

/* GET /v2; has_shared_memory: clients may register theirs. */
void kserve_write_server(struct buffer *buffer, const char *server_name,
                         const char *version, bool has_shared_memory);

/* GET /v2/models/{m}; backend is "cpu" or "cuda" (platform "roped_cuda"). */
void kserve_write_model(struct buffer *buffer, const struct model *model,
                        const char *backend);

/* GET /v2/models/{m}/config */
void kserve_write_config(struct buffer *buffer, const struct model *model,
                         const char *backend);

/* One of the array that answers POST /v2/repository/index. */
void kserve_write_index_entry(struct buffer *buffer, const char *name);

/* Nanosecond totals since start of one model, for the statistics. */
struct kserve_statistics {
    uint64_t last_inference_ms; /* Unix time, 0: none yet */
    uint64_t success_count, success_ns;
    uint64_t fail_count, fail_ns;
    uint64_t execution_count;
    uint64_t queue_ns, compute_input_ns, compute_infer_ns, compute_output_ns;
};

/* One of the array "model_stats": GET /v2/models/{m}/stats, /v2/models/stats */
void kserve_write_statistics(struct buffer *buffer, const char *name,
                             const struct kserve_statistics *s);

/* One operator for people and tools: GET /v1/{op}; everything the descriptor
 * says. And the list of names and summaries: GET /v1. */
void describe_write_op(struct buffer *buffer, const struct roped_op *op);
void describe_write_ops(struct buffer *buffer);

/* Parts of that which the OpenAPI document has too: 'before' and what a call
 * must keep to, nothing where that is nothing; the tensors as an array;
 * ',"default":' of a parameter that has one; its bounds as members of the
 * given names, none where the type's own range is the bound; its choices. */
void describe_write_rule(struct buffer *buffer, const struct roped_op *op,
                         const char *before);
void describe_write_ports(struct buffer *buffer, const struct roped_op *op,
                          bool is_input);
void describe_write_default(struct buffer *buffer,
                            const struct roped_param *param);
void describe_write_bounds(struct buffer *buffer,
                           const struct roped_param *param,
                           const char *least_name, const char *above_name,
                           const char *most_name);
void describe_write_choices(struct buffer *buffer,
                            const struct roped_param *param);

#endif
