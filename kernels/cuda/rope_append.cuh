// rope_append.cuh - what rope_append does where k and v become something else in the cache: FP8, or
// the two parts of MLA's one cell.
#pragma once

#include "cuda/cuda_internal.h"
#include "ops/rope_append.h"

bool is_split_append(const struct roped_call *call, const struct rope_append_plan *plan);

enum roped_status launch_split_append(const struct roped_call *call,
                                      const struct rope_append_plan *plan,
                                      struct roped_queue *queue, struct roped_error *err);
