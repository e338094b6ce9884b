/*
 * npy.c - the header of a .npy file: magic, version, length, and a Python
 * dictionary of three entries, which may stand in any order.
 */
#include "npy.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { MAGIC_BYTES = 6, V1_PREFIX = 10, V2_PREFIX = 12, ALIGNMENT = 64 };
static const char magic[] = "\x93NUMPY";

/* numpy's spelling without the order of bytes. */
static const struct {
    enum roped_dtype dtype;
    const char *name;
} types[] = {{ROPED_BOOL, "b1"}, {ROPED_U8, "u1"},  {ROPED_I8, "i1"},
             {ROPED_I16, "i2"},  {ROPED_U16, "u2"}, {ROPED_F16, "f2"},
             {ROPED_I32, "i4"},  {ROPED_U32, "u4"}, {ROPED_F32, "f4"},
             {ROPED_I64, "i8"},  {ROPED_U64, "u8"}, {ROPED_F64, "f8"}};

bool npy_is(const void *file, size_t bytes)
{
    return bytes >= MAGIC_BYTES && memcmp(file, magic, MAGIC_BYTES) == 0;
}

/* A dictionary being read; text[bytes] ends it. */
struct reader {
    const char *at, *end;
};

static void skip_spaces(struct reader *in)
{
    while (in->at < in->end && (*in->at == ' ' || *in->at == '\n'))
        in->at++;
}

static bool take(struct reader *in, char c)
{
    skip_spaces(in);
    if (in->at == in->end || *in->at != c)
        return false;
    in->at++;
    return true;
}

static bool take_word(struct reader *in, const char *word)
{
    size_t bytes = strlen(word);
    skip_spaces(in);
    if ((size_t)(in->end - in->at) < bytes || memcmp(in->at, word, bytes) != 0)
        return false;
    in->at += bytes;
    return true;
}

/* 'text', without escapes. */
static bool take_string(struct reader *in, char *out, size_t out_bytes)
{
    size_t n = 0;
    if (!take(in, '\''))
        return false;
    while (in->at < in->end && *in->at != '\'' && n + 1 < out_bytes)
        out[n++] = *in->at++;
    out[n] = '\0';
    return take(in, '\'');
}

static bool take_size(struct reader *in, int64_t *out)
{
    const char *start;
    int64_t size = 0;
    skip_spaces(in);
    for (start = in->at; in->at < in->end && *in->at >= '0' && *in->at <= '9';
         in->at++) {
        if (size > (INT64_MAX - 9) / 10)
            return false;
        size = size * 10 + (*in->at - '0');
    }
    *out = size;
    return in->at > start;
}

/* (), (7,) or (7, 32); rank is over ROPED_MAX_RANK where there are more. */
static bool take_shape(struct reader *in, struct roped_tensor *tensor)
{
    int64_t size;
    tensor->rank = 0;
    if (!take(in, '('))
        return false;
    while (!take(in, ')')) {
        if (tensor->rank > ROPED_MAX_RANK || !take_size(in, &size))
            return false;
        if (tensor->rank < ROPED_MAX_RANK)
            tensor->dims[tensor->rank] = size;
        tensor->rank++;
        if (!take(in, ','))
            return take(in, ')');
    }
    return true;
}

struct header {
    char type[32];
    bool has_shape, has_order, is_fortran;
    struct roped_tensor tensor;
};

static bool take_entry(struct reader *in, struct header *header)
{
    char key[32];
    if (!take_string(in, key, sizeof key) || !take(in, ':'))
        return false;
    if (strcmp(key, "descr") == 0 && !header->type[0])
        return take_string(in, header->type, sizeof header->type);
    if (strcmp(key, "shape") == 0 && !header->has_shape)
        return header->has_shape = take_shape(in, &header->tensor);
    if (strcmp(key, "fortran_order") == 0 && !header->has_order) {
        header->has_order = true;
        header->is_fortran = take_word(in, "True");
        return header->is_fortran || take_word(in, "False");
    }
    return false;
}

static bool take_header(struct reader *in, struct header *header)
{
    if (!take(in, '{'))
        return false;
    while (!take(in, '}')) {
        if (!take_entry(in, header))
            return false;
        if (!take(in, ',')) {
            if (!take(in, '}'))
                return false;
            break;
        }
    }
    skip_spaces(in);
    return in->at == in->end && header->type[0] && header->has_shape &&
           header->has_order;
}

static enum roped_status read_type(struct header *header,
                                   struct roped_error *err)
{
    const char *type = header->type;
    if (type[0] == '<' || type[0] == '|')
        for (size_t i = 0; i < sizeof types / sizeof *types; i++)
            if (strcmp(type + 1, types[i].name) == 0)
                header->tensor.dtype = types[i].dtype;
    if (header->tensor.dtype != ROPED_NO_DTYPE)
        return ROPED_OK;
    if (type[0] == '>')
        return roped_fail(err, ROPED_UNSUPPORTED,
                          ".npy: type '%s' is big-endian, expected "
                          "little-endian",
                          type);
    if (type[1] == 'V')
        return roped_fail(err, ROPED_UNSUPPORTED,
                          ".npy: type '%s', as BF16 and FP8 of ml_dtypes are "
                          "saved: numpy has no such type, use a safetensors "
                          "file, or save x.view('u%c') and name its type with "
                          "--dtype.NAME",
                          type, type[2] == '1' ? '1' : '2');
    return roped_fail(err, ROPED_UNSUPPORTED,
                      ".npy: type '%s'%s, expected a number of 1 to 8 bytes",
                      type, type[1] == 'O' ? " (Python objects)" : "");
}

static enum roped_status check_data(const struct header *header, size_t bytes,
                                    struct roped_error *err)
{
    int64_t n_elements, n_bytes;
    if (header->tensor.rank > ROPED_MAX_RANK)
        return roped_fail(err, ROPED_UNSUPPORTED,
                          ".npy: over %d dims, expected at most %d",
                          ROPED_MAX_RANK, ROPED_MAX_RANK);
    if (header->is_fortran && header->tensor.rank > 1)
        return roped_fail(err, ROPED_UNSUPPORTED,
                          ".npy: Fortran order, expected C order: save "
                          "numpy.ascontiguousarray(x)");
    enum roped_status status =
        roped_tensor_size(&header->tensor, ".npy", &n_elements, &n_bytes, err);
    if (!status && (uint64_t)n_bytes != bytes)
        status = roped_fail(err, ROPED_INVALID,
                            ".npy: %zu bytes of data, expected %" PRId64, bytes,
                            n_bytes);
    return status;
}

/* Where the dictionary is. */
static enum roped_status find_header(const unsigned char *file, size_t bytes,
                                     size_t *begin, size_t *end,
                                     struct roped_error *err)
{
    if (!npy_is(file, bytes))
        return roped_fail(err, ROPED_INVALID,
                          ".npy: does not begin with '93 4e 55 4d 50 59'");
    if (bytes < V1_PREFIX || (file[6] > 1 && bytes < V2_PREFIX))
        return roped_fail(err, ROPED_INVALID,
                          ".npy: cut off: %zu bytes, expected more than %d",
                          bytes, V2_PREFIX);
    if ((file[6] != 1 && file[6] != 2) || file[7] != 0)
        return roped_fail(err, ROPED_UNSUPPORTED,
                          ".npy: version %d.%d, expected 1.0 or 2.0", file[6],
                          file[7]);
    size_t length = (size_t)file[8] | (size_t)file[9] << 8;
    if (file[6] == 2)
        length |= (size_t)file[10] << 16 | (size_t)file[11] << 24;
    *begin = file[6] == 1 ? V1_PREFIX : V2_PREFIX;
    *end = *begin + length;
    if (length > bytes - *begin)
        return roped_fail(err, ROPED_INVALID,
                          ".npy: header of %zu bytes in a file of %zu", length,
                          bytes);
    return ROPED_OK;
}

/* Bytes of a header that a message can show. */
static int header_excerpt(const struct reader *in)
{
    int n = 0;
    while (in->at + n < in->end && n < 80 && in->at[n] >= ' ' &&
           in->at[n] <= '~')
        n++;
    return n;
}

enum roped_status npy_read(void *file, size_t bytes,
                           struct roped_tensor *tensor, struct roped_error *err)
{
    size_t begin = 0, end = 0;
    struct header header = {.has_shape = false};
    enum roped_status status = find_header(file, bytes, &begin, &end, err);
    if (status)
        return status;
    struct reader in = {(const char *)file + begin, (const char *)file + end},
                  whole = in;
    if (!take_header(&in, &header))
        return roped_fail(err, ROPED_INVALID,
                          ".npy: header is \"%.*s\", expected a dictionary of "
                          "'descr', 'fortran_order' and 'shape'",
                          header_excerpt(&whole), whole.at);
    status = read_type(&header, err);
    if (!status)
        status = check_data(&header, bytes - end, err);
    if (status)
        return status;
    *tensor = header.tensor;
    tensor->data = (char *)file + end;
    return ROPED_OK;
}

static const char *type_name(enum roped_dtype dtype)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].dtype == dtype)
            return types[i].name;
    return NULL;
}

enum roped_status npy_write_header(const char *name,
                                   const struct roped_tensor *tensor,
                                   char header[NPY_HEADER_BYTES],
                                   size_t *header_bytes,
                                   struct roped_error *err)
{
    const char *type = type_name(tensor->dtype);
    if (!type)
        return roped_fail(
            err, ROPED_UNSUPPORTED,
            "tensor '%s' is %s, and numpy has no such type: write a "
            "safetensors file, or its bits with --%s",
            name, roped_dtype_name(tensor->dtype),
            tensor->dtype == ROPED_BF16 ? "bf16 u16" : "fp8 u8");
    char *at = header + V1_PREFIX, *end = header + NPY_HEADER_BYTES;
    at += snprintf(at, (size_t)(end - at),
                   "{'descr': '%c%s', 'fortran_order': False, 'shape': (",
                   type[1] == '1' ? '|' : '<', type);
    for (int i = 0; i < tensor->rank; i++)
        at += snprintf(at, (size_t)(end - at), "%s%" PRId64, i ? ", " : "",
                       tensor->dims[i]);
    at += snprintf(at, (size_t)(end - at), "%s), }",
                   tensor->rank == 1 ? "," : "");
    while ((at - header + 1) % ALIGNMENT)
        *at++ = ' ';
    *at++ = '\n';
    size_t length = (size_t)(at - header) - V1_PREFIX;
    memcpy(header, magic, MAGIC_BYTES);
    memcpy(header + MAGIC_BYTES,
           (char[]){1, 0, (char)(length & 255), (char)(length >> 8)}, 4);
    *header_bytes = V1_PREFIX + length;
    return ROPED_OK;
}
