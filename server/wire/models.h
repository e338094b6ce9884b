/*
 * models.h - what is served as v2 models: every operator, where wanted the
 * demos, and the programs, which are not in this list. A model's index is its
 * place here; an operator's is the same as in the operator table.
 *
 * "rope:q,k" is rope with these inputs alone, and so is "rope:required,k".
 * Benchmarks send every input and ask for every output that the metadata has,
 * and of rope's, some exclude each other.
 */
#ifndef ROPED_WIRE_MODELS_H
#define ROPED_WIRE_MODELS_H

#include "wire/demo.h"
#include "wire/signature.h"

enum { MODELS_MAX = ROPED_OP_COUNT + DEMO_COUNT };

struct models {
    int n;
    const struct roped_op *op[MODELS_MAX];
};

struct model {
    struct signature signature;
    bool is_whole;   /* the operator or program as it is, not a part of it */
    uint32_t inputs; /* bit i: it has the operator's input i */
    char name[ROPED_NAME_BYTES];
};

/* What a program is as a model. */
void model_of_program(struct model *model, const char *name,
                      const struct roped_program *program);

void models_init(struct models *models, bool has_demos);

/* The operator or part of one of this name; false: there is none. */
bool models_find(const struct models *models, const char *name,
                 struct model *out);

/* "1", the only version of each, or "" for none. */
bool models_has_version(const char *version);

/* The place of op, which is one of them. */
int models_index(const struct models *models, const struct roped_op *op);

/* Is the operator's input or output part of the model? In a part of an operator
 * outputs go with the input they need, or with a parameter's default. */
bool model_has_input(const struct model *model, int port);
bool model_has_output(const struct model *model, int port);

#endif
