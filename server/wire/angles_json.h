/*
 * angles_json.h - rotary tables on the wire: PUT /v1/tables/{name} takes
 * roped's own parameter names, or a Hugging Face config.json as it is.
 */
#ifndef ROPED_WIRE_ANGLES_JSON_H
#define ROPED_WIRE_ANGLES_JSON_H

#include "wire/buffer.h"

#include <roped/op.h>

enum { ANGLES_JSON_MAX_SETS = 8 };

/* An angle set that owns its name and factor lists (heap). set.name points at
 * name: a copy of the struct needs it set anew. */
struct angles_json_set {
    char name[ROPED_NAME_BYTES];
    struct roped_angle_set set;
    float *factors; /* short then long, or NULL */
};

/*
 * Reads one body into one set, or, for a config with per-layer-type
 * dictionaries (or Gemma 3's rope_local_base_freq), into one per type named
 * "name.full_attention" and so on. A config is told from parameters by
 * 'rope_parameters', 'rope_scaling', 'rope_theta', 'hidden_size',
 * 'model_type' or 'text_config'.
 *
 * The plain form has rope's angle parameters (but 'angles', which is a
 * call's), style, head_dim, rotary_dim, rows, short_factor and long_factor;
 * anything else is refused by name. Of a config, its dictionaries of rope must
 * be known to the last member, as must be what else changes angles
 * (config_keys.def); the rest is somebody else's. What cannot be offered, or is
 * not said and has no known default, is refused by name: a table is the
 * model's, or is none. Angles of images stand in a vision_config, which is a
 * body of its own: rows of positions are in the model's order.
 *
 * Which elements pair is the set's style: style, or member 'style' of either
 * form, else that of the config's model_type (config_models.def), else neox.
 * A model_type that is not known needs one of the two: it is not guessed.
 *
 * rows, where it is not given, is what the model can reach: max_position, or
 * the length before scaling times factor where that is more (linear, dynamic,
 * yarn); at most 2^24, beyond which float32 positions are not exact.
 *
 * An object without members is refused: mostly it is what is left of a
 * config.json, and not a wish for every default.
 *
 * On failure there is nothing to free.
 */
ROPED_MUST_CHECK enum roped_status
angles_json_read(const char *name, const char *style, const char *json,
                 size_t json_bytes,
                 struct angles_json_set out[ANGLES_JSON_MAX_SETS], int *n_out,
                 struct roped_error *err);
void angles_json_fini(struct angles_json_set *set);

/* One table as JSON: its name, every parameter that is not at its default,
 * theta, scaling and style always, widths, rows, factor lists, resident bytes;
 * whose it is, unless that is "". */
void angles_json_write(struct buffer *buffer, const struct roped_angle_set *set,
                       const char *tenant, uint64_t resident_bytes);

#endif
