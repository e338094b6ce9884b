/*
 * tensor_value.c - elements of every type as numbers.
 */
#include "tensor_value.h"

#include <roped/numeric.h>

#include <string.h>

/* value of type C at 'at', which has no alignment */
#define READ(C)                                                                \
    do {                                                                       \
        C value_;                                                              \
        memcpy(&value_, at, sizeof value_);                                    \
        return (double)value_;                                                 \
    } while (0)

double tensor_value(const struct roped_tensor *tensor, int64_t i)
{
    const unsigned char *at = (const unsigned char *)tensor->data +
                              (size_t)i * roped_dtype_bytes(tensor->dtype);
    uint16_t code = 0;
    memcpy(&code, at, roped_dtype_bytes(tensor->dtype) > 1 ? sizeof code : 1);
    switch (tensor->dtype) {
    case ROPED_F64:
        READ(double);
    case ROPED_F32:
        READ(float);
    case ROPED_F16:
        return (double)roped_f16_to_float(code);
    case ROPED_BF16:
        return (double)roped_bf16_to_float(code);
    case ROPED_F8_E4M3:
        return (double)roped_e4m3_to_float(*at);
    case ROPED_F8_E5M2:
        return (double)roped_e5m2_to_float(*at);
    case ROPED_I8:
        READ(int8_t);
    case ROPED_I16:
        READ(int16_t);
    case ROPED_U16:
        READ(uint16_t);
    case ROPED_I32:
        READ(int32_t);
    case ROPED_U32:
        READ(uint32_t);
    case ROPED_I64:
        READ(int64_t);
    case ROPED_U64:
        READ(uint64_t);
    default:
        return *at;
    }
}
