/*
 * sound.h - a call that an operator takes, made from its descriptor alone: the
 * inputs that must be there and what its statements ask for beside them, in the
 * shapes of a form, with values as they are to be held.
 */
#ifndef ROPED_TESTS_HTTP_SOUND_H
#define ROPED_TESTS_HTTP_SOUND_H

#include "http/harness.h"

#include <roped/op.h>

struct sound {
    const struct roped_op *op;
    int form;
    struct roped_call call; /* its parameters and inputs, for conditions */
    struct tensor_file file;
    char query[256];
};

/* What floats and indexes are, unless a descriptor asks for other values. */
enum { SOUND_FLOATS = 4096 };
extern float sound_floats[SOUND_FLOATS];
extern int64_t sound_zeros[64];

struct sound sound_make(const struct roped_op *op, int form);
struct sound sound_of(const struct roped_op *op); /* of the first form */

/* Adds one input with the shape of the form. */
void sound_add_input(struct sound *sound, int input);

struct roped_shape_pattern sound_pattern(const struct sound *sound, int input);
bool sound_has_dim(const struct sound *sound, int input, const char *symbol);

#endif
