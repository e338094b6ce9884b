/*
 * local_call.h - a call on the CPU, in this process.
 */
#ifndef ROPED_CLIENT_LOCAL_CALL_H
#define ROPED_CLIENT_LOCAL_CALL_H

#include <roped/op.h>

enum { LOCAL_BLOCKS = ROPED_MAX_INPUTS + ROPED_MAX_OUTPUTS + 2 };

struct local_call {
    struct roped_call call; /* its tensors are copies */
    void *block[LOCAL_BLOCKS];
    int n_blocks;
};

/*
 * Computes a call whose inputs are bound, with data. Its outputs are in
 * local->call.out; an updated input is a copy, too. local_call_free in any
 * case.
 */
ROPED_MUST_CHECK enum roped_status local_call_run(struct local_call *local,
                                                  const struct roped_call *call,
                                                  struct roped_error *err);
void local_call_free(struct local_call *local);

#endif
