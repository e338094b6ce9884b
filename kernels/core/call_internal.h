/*
 * call_internal.h - what the files that make up a call share.
 */
#ifndef ROPED_CORE_CALL_INTERNAL_H
#define ROPED_CORE_CALL_INTERNAL_H

#include <roped/op.h>

/* Writes every parameter's default into call->params. */
void call_default_params(struct roped_call *call);

#endif
