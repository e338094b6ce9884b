/*
 * kserve_data.c - numbers in JSON to tensor values and back.
 *
 * Values are stored as the wire has them, little-endian, like the binary
 * tensors that nobody converts: roped's hosts are little-endian.
 */
#include "wire/kserve_data.h"

#include <math.h>
#include <string.h>

/* The integers of a type that a JSON number holds exactly; false: not one. */
static bool integer_range(enum roped_dtype dtype, double *least, double *most)
{
    unsigned bits = 8 * (unsigned)roped_dtype_bytes(dtype);
    switch (dtype) {
    case ROPED_BOOL:
        *least = 0;
        *most = 1;
        return true;
    case ROPED_U8:
    case ROPED_U16:
    case ROPED_U32:
    case ROPED_U64:
        *least = 0;
        *most = bits == 64 ? 0x1p53 : (double)((1ull << bits) - 1);
        return true;
    case ROPED_I8:
    case ROPED_I16:
    case ROPED_I32:
    case ROPED_I64:
        *most = bits == 64 ? 0x1p53 : (double)((1ull << (bits - 1)) - 1);
        *least = bits == 64 ? -0x1p53 : -*most - 1;
        return true;
    default:
        return false;
    }
}

/* Stores value at at, unless that is NULL; false where it does not fit. */
static bool store_number(enum roped_dtype dtype, double value, void *at)
{
    double least, most;
    if (dtype == ROPED_F32 || dtype == ROPED_F64) {
        bool is_single = dtype == ROPED_F32;
        /* a number that rounds to more than FLT_MAX does not fit */
        if (is_single && fabs(value) >= 0x1.ffffffp127)
            return false;
        float narrow = (float)(is_single ? value : 0);
        if (at)
            memcpy(at, is_single ? (void *)&narrow : (void *)&value,
                   roped_dtype_bytes(dtype));
        return true;
    }
    if (!integer_range(dtype, &least, &most) || value != floor(value) ||
        value < least || value > most)
        return false;
    int64_t wide = (int64_t)value;
    if (at)
        memcpy(at, &wide, roped_dtype_bytes(dtype));
    return true;
}

struct reading {
    const struct roped_tensor *tensor;
    const char *name;
    int64_t n_elements;
    int64_t n; /* values read so far */
};

static enum roped_status read_value(struct reading *reading,
                                    struct json_reader *json,
                                    struct roped_error *err)
{
    char found[64];
    enum roped_dtype dtype = reading->tensor->dtype;
    unsigned char *at = reading->tensor->data;
    const struct json_reader item = *json;
    double value;
    if (reading->n == reading->n_elements)
        return roped_fail(err, ROPED_BAD_SHAPE,
                          "Shape does not match true shape of 'data' field of "
                          "input '%s': more than %lld values",
                          reading->name, (long long)reading->n_elements);
    if (json_nan(json))
        return roped_fail(err, ROPED_BAD_VALUE,
                          "tensor '%s': value %s at index %lld is not valid "
                          "JSON: send the tensor binary (binary_data_size)",
                          reading->name, json_nan(json), (long long)reading->n);
    if (at)
        at += (size_t)reading->n * roped_dtype_bytes(dtype);
    if (!json_read_number(json, &value) || isinf(value) ||
        !store_number(dtype, value, at))
        return roped_fail(err, ROPED_BAD_VALUE,
                          "tensor '%s': value %s at index %lld, expected a "
                          "number of type %s",
                          reading->name,
                          json_describe(&item, found, sizeof found),
                          (long long)reading->n, roped_dtype_v2_name(dtype));
    reading->n++;
    return ROPED_OK;
}

static enum roped_status read_array(struct reading *reading,
                                    struct json_reader *json,
                                    struct roped_error *err)
{
    enum roped_status status = ROPED_OK;
    json_open(json);
    while (!status && json_next(json))
        status = json_kind(json) == JSON_ARRAY ? read_array(reading, json, err)
                                               : read_value(reading, json, err);
    return status;
}

enum roped_status kserve_read_values(const struct roped_tensor *tensor,
                                     const char *name, struct json_reader *data,
                                     struct roped_error *err)
{
    char found[64];
    struct reading reading = {.tensor = tensor, .name = name};
    reading.n_elements = roped_tensor_elements(tensor);
    if (json_kind(data) != JSON_ARRAY)
        return roped_fail(err, ROPED_INVALID,
                          "tensor '%s': 'data' is %s, expected an array", name,
                          json_describe(data, found, sizeof found));
    enum roped_status status = read_array(&reading, data, err);
    if (!status && reading.n != reading.n_elements)
        status = roped_fail(err, ROPED_BAD_SHAPE,
                            "Shape does not match true shape of 'data' field "
                            "of input '%s': %lld values, expected %lld",
                            name, (long long)reading.n,
                            (long long)reading.n_elements);
    return status;
}

/* ---------------------------------------------------------------- writing */

static void write_integer(struct buffer *buffer, enum roped_dtype dtype,
                          const void *at)
{
    double least, most;
    size_t bytes = roped_dtype_bytes(dtype);
    uint64_t bits = 0;
    memcpy(&bits, at, bytes);
    if (!integer_range(dtype, &least, &most) || least == 0) {
        buffer_unsigned(buffer, bits);
        return;
    }
    unsigned shift = 64 - 8 * (unsigned)bytes; /* spread the sign */
    buffer_printf(buffer, "%lld",
                  (long long)((int64_t)(bits << shift) >> shift));
}

/* Writes a value of F32 or F64; returns it. */
static double write_float(struct buffer *buffer, enum roped_dtype dtype,
                          const void *at)
{
    float narrow;
    double wide;
    if (dtype == ROPED_F32) {
        memcpy(&narrow, at, sizeof narrow);
        buffer_float(buffer, narrow);
        return (double)narrow;
    }
    memcpy(&wide, at, sizeof wide);
    buffer_double(buffer, wide);
    return wide;
}

enum roped_status kserve_write_values(struct buffer *buffer,
                                      const struct roped_tensor *tensor,
                                      const char *name, struct roped_error *err)
{
    int64_t n = roped_tensor_elements(tensor);
    size_t bytes = roped_dtype_bytes(tensor->dtype);
    const unsigned char *at = tensor->data;
    double value = 0;
    buffer_append(buffer, "[", 1);
    for (int64_t i = 0; i < n; i++, at += bytes) {
        if (i)
            buffer_append(buffer, ",", 1);
        if (tensor->dtype == ROPED_F32 || tensor->dtype == ROPED_F64)
            value = write_float(buffer, tensor->dtype, at);
        else
            write_integer(buffer, tensor->dtype, at); /* FP8: its codes */
        if (!isfinite(value))
            return roped_fail(err, ROPED_INVALID,
                              "output '%s': element %lld is %s, which JSON "
                              "cannot say: ask for it with binary_data",
                              name, (long long)i,
                              isnan(value) ? "NaN"
                              : value < 0  ? "-Infinity"
                                           : "Infinity");
    }
    buffer_append(buffer, "]", 1);
    return ROPED_OK;
}
