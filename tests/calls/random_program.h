/*
 * random_program.h - programs made from random calls, and what each of their
 * tensors is afterwards, by separate calls in process.
 *
 * A step is a random call (random_call.h), often of the shapes of the step
 * before, so that what steps made fits what later ones take. Its inputs are
 * what steps have made, inputs of the program, or places; what it makes goes on
 * under a name, into a place, or nowhere.
 */
#ifndef ROPED_TESTS_CALLS_RANDOM_PROGRAM_H
#define ROPED_TESTS_CALLS_RANDOM_PROGRAM_H

#include "calls/random_call.h"

#include <roped/program.h>
#include <roped/session.h>

enum { RANDOM_VALUES = 512, RANDOM_STEPS = 40, RANDOM_REFS = 16 };

enum random_value_kind { VALUE_INPUT, VALUE_MADE, VALUE_PLACE };

/* A value or place of a program. */
struct random_value {
    enum random_value_kind kind;
    char name[16];              /* of a place with '@' */
    struct roped_tensor tensor; /* data NULL */
    size_t bytes;
    unsigned char *before; /* what the caller gives; of a MADE one NULL */
    unsigned char *after;  /* what it is in the end */
    bool is_used_up, is_output, is_index;
};

struct random_step {
    struct random_call call;
    int n_in, n_out;
    struct {
        int port, value;
    } in[ROPED_MAX_INPUTS], out[ROPED_MAX_OUTPUTS];
};

struct random_program {
    int n_values, n_steps, n_inputs, n_outputs, most;
    struct random_value value[RANDOM_VALUES];
    struct random_step step[RANDOM_STEPS];
};

/* A session of the CPU or of a GPU for the separate calls; NULL: there is no
 * such device. One at a time, which all programs below are of. */
struct roped_session *random_program_open(const char *backend);
void random_program_close(struct roped_session *session);

/* Makes one of so many inputs and outputs at most, and runs its steps by
 * separate calls; their angles are computed, unless the call says more. Free
 * it. */
void random_program_make(struct random_program *made,
                         struct roped_session *session, int most,
                         struct random_source *source);
void random_program_free(struct random_program *made);

#endif
