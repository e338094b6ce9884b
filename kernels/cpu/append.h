/*
 * append.h - the loop over tokens that rope_append shares with the operator
 * that normalises first.
 */
#ifndef ROPED_CPU_APPEND_H
#define ROPED_CPU_APPEND_H

#include "cpu/head_norm.h"
#include "ops/rope_append.h"

void cpu_append(const struct roped_call *call, struct roped_queue *queue,
                const struct rope_append_plan *plan,
                const struct cpu_head_norm *norm);

#endif
