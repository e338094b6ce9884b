/*
 * model.h - what ropectl's 'model' knows of a model: its config.json, and its
 * row of model_layers.def.
 */
#ifndef ROPED_CLIENT_MODEL_H
#define ROPED_CLIENT_MODEL_H

#include "ropectl.h"

#include "wire/angles_json.h"

/* Words of model_layers.def. */
enum kind { SAME, HF, BIAS, ONCE, LAYER, PLUS_ONE, N_KINDS };
enum heads { NEVER, ALWAYS, APART, AFTER, OWN_WEIGHTS, NO_ROTATION, UNROTATED };
enum sum { SUM, ADDENDS_FIRST, RESIDUAL_FIRST, STREAMS, OTHER_SUM };
enum mlp { GATED, SINGLE, PAIRS, OTHER_MLP };

/* Norms beside a gate; parameters: NULL, there are none. */
struct gate {
    const char *parameters;
    const char *eps;    /* NULL: as the others */
    const char *width;  /* members whose product is the width of a row */
    const char *groups; /* a member: into how many its columns are cut */
    const char *flag;   /* a member: not true means that there are none */
    const char *after;  /* a member: not true means that the gate is first */
    const char *activation; /* a member; without it that of the MLP */
};

/* What is multiplied in a sum: by a member, one over the root of another, or
 * "", a number of each layer; NULL: it is not. */
struct scales {
    const char *x, *residual, *addend, *sum;
};

struct layers {
    const char *type;
    enum kind kind;
    const char *eps;
    enum heads heads;
    enum sum sum;
    enum mlp mlp;
    const char *activation;
    const char *inner_eps;  /* of norms of another width; NULL: the same */
    const char *index_eps;  /* of an indexer's layer norms; NULL: none */
    const char *heads_flag; /* a member: not true means NEVER */
    bool is_behind;         /* norms of what a block gives are added */
    struct gate gate;
    struct scales scales;
    bool has_end; /* the sum at the end of a layer is another: */
    struct scales end;
    const char *merged;    /* a member: heads of norms that make rows of them */
    const char *outer_eps; /* where there is an outer; NULL: the same */
    bool is_exact;         /* the MLP rounds act(gate) * up alone */
    bool has_bare;         /* norms without a weight round 1 / rms, too */
    const char *experts_limit; /* a member: of the MLPs of experts alone */
    const char *is_one; /* a member: what else it is, the MLP is not known */
    const char *limit, *alpha;   /* members, of the MLP; or NULL */
    const char *behind_eps;      /* where is_behind; NULL: the same */
    const char *norm_activation; /* of MLPs inside norms; NULL: none */
    enum kind outer;             /* of norms outside layers; 0: the same */
    const char *sum_flags;       /* members: none is true means SUM */
    const char *streams;         /* a member: a row has so many; or NULL */
    bool has_gammas;             /* MLPs of shared experts multiply once more */
};

struct model {
    cJSON *tree;
    const cJSON *config; /* of the text model */
    const char *path, *type;
    const struct layers *layers; /* NULL: not known */
    struct roped_error no_table; /* its text: why there is none; or "" */
    struct angles_json_set sets[ANGLES_JSON_MAX_SETS];
    int n_sets;
};

/* The row of a model_type, or NULL. */
const struct layers *model_layers(const char *type);

/* Of the text model: "a.b" is member b of member a, or the b-th of its values.
 */
const cJSON *model_member(const struct model *model, const char *name);

/* A count, or 0 where the file has none. */
int model_count(const struct model *model, const char *name);

/* What tables are called while they are read, before the model is known. */
#define MODEL_BASE "model"

/* "" of the only table, ".full_attention" of one for a kind of layer. */
const char *model_kind(const struct model *model, int table);

/* Are heads of q and k normalised, and when? */
enum heads model_heads(const struct model *model);

/* Parameters of the heads behind those of a table: of their norm, or none. To
 * be freed. */
char *model_heads_parameters(const struct model *model);

/* Adds the rows of a model's layers. */
void model_add_layers(cJSON *document, const struct model *model);

#endif
