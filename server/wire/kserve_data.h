/*
 * kserve_data.h - tensors of a v2 message whose values are in the JSON.
 */
#ifndef ROPED_WIRE_KSERVE_DATA_H
#define ROPED_WIRE_KSERVE_DATA_H

#include "wire/buffer.h"
#include "wire/json_reader.h"

#include <roped/tensor.h>

/*
 * Reads data, an array nested or flat in row-major order, into tensor->data;
 * with NULL there, only checks that every value could be. ROPED_BAD_SHAPE where
 * their number is not that of the shape, ROPED_BAD_VALUE where one does not fit
 * the type; NaN and Infinity, which JSON does not have, fit none.
 */
ROPED_MUST_CHECK enum roped_status
kserve_read_values(const struct roped_tensor *tensor, const char *name,
                   struct json_reader *data, struct roped_error *err);

/*
 * Appends the values of output name as one flat array. ROPED_INVALID where one
 * is NaN or infinite. FP16 and BF16 have no form in JSON: the caller has
 * refused them.
 */
ROPED_MUST_CHECK enum roped_status
kserve_write_values(struct buffer *buffer, const struct roped_tensor *tensor,
                    const char *name, struct roped_error *err);

#endif
