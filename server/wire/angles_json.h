/*
 * angles_json.h - rotary tables on the wire: PUT /v1/tables/{name} takes
 * roped's own parameter names, or a Hugging Face config.json as it is.
 */
#ifndef ROPED_WIRE_ANGLES_JSON_H
#define ROPED_WIRE_ANGLES_JSON_H

#include "wire/buffer.h"

#include <roped/op.h>

enum { ANGLES_JSON_MAX_SETS = 8 };

/* An angle set that owns its name and factor lists (heap). */
struct angles_json_set {
    char name[ROPED_NAME_BYTES];
    struct roped_angle_set set;
    float *factors; /* short then long, or NULL */
};

/*
 * Reads one body into one set, or, for a config with per-layer-type
 * dictionaries, into one per type named "name.full_attention" and so on.
 * A config is told from parameters by 'rope_parameters', 'rope_scaling',
 * 'rope_theta', 'hidden_size' or 'model_type'. An unknown member of the plain
 * form is refused by name; an unknown rope_type is refused by name.
 */
ROPED_MUST_CHECK enum roped_status
angles_json_read(const char *name, const char *json, size_t json_bytes,
                 struct angles_json_set out[ANGLES_JSON_MAX_SETS], int *n_out,
                 struct roped_error *err);
void angles_json_fini(struct angles_json_set *set);

/* One table as JSON: its parameters, rotary_dim, rows, resident bytes. */
void angles_json_write(struct buffer *buffer, const struct roped_angle_set *set,
                       uint64_t resident_bytes);

#endif
