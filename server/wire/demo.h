/*
 * demo.h - the models of the protocol's own quick start, for clients, examples
 * and benchmarks that expect them: "simple", which adds and subtracts, and
 * "identity_fp32". Described like operators, computed right here, served under
 * /v2 alone and only with demo_models.
 */
#ifndef ROPED_WIRE_DEMO_H
#define ROPED_WIRE_DEMO_H

#include <roped/op.h>

enum { DEMO_COUNT = 2 };

/* The index-th, 0 .. DEMO_COUNT - 1; static memory. */
const struct roped_op *demo_at(int index);

bool demo_is(const struct roped_op *op);

/* Of its config: the first dim of every tensor is a batch of at most so many;
 * 0 where it has none, as all operators. */
int demo_max_batch(const struct roped_op *op);

/* Computes a resolved call of a demo; data in host memory, at any address. */
void demo_run(struct roped_call *call);

#endif
