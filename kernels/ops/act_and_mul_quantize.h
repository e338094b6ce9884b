/*
 * act_and_mul_quantize.h - ports, parameters and plan of act_and_mul_quantize:
 * what act_and_mul computes, as codes that quantize makes. With rounding=once
 * the codes are those of the float32 product; else of the product rounded to
 * the type of the inputs, which is what the two operators give one after the
 * other, bit for bit.
 */
#ifndef ROPED_OPS_ACT_AND_MUL_QUANTIZE_H
#define ROPED_OPS_ACT_AND_MUL_QUANTIZE_H

#include "ops/act_and_mul.h"
#include "ops/quantize.h"

/* The first inputs are those of act_and_mul, the outputs those of quantize. */
enum { ACT_AND_MUL_QUANTIZE_GLOBAL_SCALE = ACT_AND_MUL_UP + 1 };

struct act_and_mul_quantize_params {
    struct quantize_params quantize;
    struct act_and_mul_params act;
};

struct act_and_mul_quantize_plan {
    struct quantize_plan quantize;
    struct act_and_mul_plan act;
    int32_t rounds_result; /* bool: the product to T before it is divided */
    int32_t reserved;
};

#endif
