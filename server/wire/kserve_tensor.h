/*
 * kserve_tensor.h - what a v2 request says about an input before its values.
 */
#ifndef ROPED_WIRE_KSERVE_TENSOR_H
#define ROPED_WIRE_KSERVE_TENSOR_H

#include "wire/json_reader.h"
#include "wire/signature.h"

/*
 * Reads datatype and shape of an input into an empty tensor, in the
 * phrases that clients match on: a type that the port takes, dims of 0 or
 * more, a size that 63 bits hold.
 */
ROPED_MUST_CHECK enum roped_status
kserve_read_tensor(const struct signature *signature, int port,
                   const struct json_reader *datatype,
                   struct json_reader *shape, struct roped_tensor *tensor,
                   struct roped_error *err);

#endif
