/*
 * safetensors.c - the container's rules, every bound checked.
 */
#include "wire/safetensors.h"

#include "wire/json.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

enum { FEW_TENSORS = 12 }; /* of a call: no allocation for them */

#define ALL_DTYPES ((ROPED_SET(ROPED_DTYPE_COUNT) - 1) & ~ROPED_SET(0))

enum roped_status safetensors_header_bytes(const void *prefix,
                                           uint64_t total_bytes,
                                           size_t *header_bytes,
                                           struct roped_error *err)
{
    uint64_t n = 0;
    if (total_bytes < SAFETENSORS_PREFIX_BYTES)
        return roped_fail(err, ROPED_INVALID,
                          "safetensors: body of %llu bytes, expected at least "
                          "8 for the header length",
                          (unsigned long long)total_bytes);
    for (int i = SAFETENSORS_PREFIX_BYTES - 1; i >= 0; i--)
        n = n << 8 | ((const unsigned char *)prefix)[i];
    if (n > SAFETENSORS_MAX_HEADER_BYTES)
        return roped_fail(err, ROPED_INVALID,
                          "safetensors: header length is %llu, expected at "
                          "most %d",
                          (unsigned long long)n, SAFETENSORS_MAX_HEADER_BYTES);
    if (n > total_bytes - SAFETENSORS_PREFIX_BYTES)
        return roped_fail(
            err, ROPED_INVALID,
            "safetensors: header length is %llu, but only %llu "
            "bytes follow",
            (unsigned long long)n,
            (unsigned long long)(total_bytes - SAFETENSORS_PREFIX_BYTES));
    *header_bytes = SAFETENSORS_PREFIX_BYTES + (size_t)n;
    return ROPED_OK;
}

static enum roped_status read_shape(const struct cJSON *node,
                                    struct safetensors_entry *entry,
                                    struct roped_error *err)
{
    char found[64];
    const struct cJSON *dim;
    if (!cJSON_IsArray(node))
        return roped_fail(err, ROPED_INVALID,
                          "tensor '%s': shape is %s, expected an array of dims",
                          entry->name, json_text(node, found, sizeof found));
    if (cJSON_GetArraySize(node) > ROPED_MAX_RANK)
        return roped_fail(
            err, ROPED_INVALID, "tensor '%s': rank %d, expected at most %d",
            entry->name, cJSON_GetArraySize(node), ROPED_MAX_RANK);
    cJSON_ArrayForEach(dim, node)
    {
        uint64_t size;
        if (!json_is_size(dim, &size))
            return roped_fail(err, ROPED_INVALID,
                              "tensor '%s': dim %d is %s, expected an integer "
                              "of 0 or more",
                              entry->name, entry->tensor.rank,
                              json_text(dim, found, sizeof found));
        entry->tensor.dims[entry->tensor.rank++] = (int64_t)size;
    }
    return ROPED_OK;
}

static enum roped_status read_dtype(const struct cJSON *node,
                                    struct safetensors_entry *entry,
                                    struct roped_error *err)
{
    char found[64], expected[160];
    if (cJSON_IsString(node))
        entry->tensor.dtype =
            roped_dtype_from_name(node->valuestring, strlen(node->valuestring));
    if (entry->tensor.dtype)
        return ROPED_OK;
    return roped_fail(
        err, ROPED_INVALID, "tensor '%s': dtype is %s, expected %s",
        entry->name, json_text(node, found, sizeof found),
        roped_dtype_set_text(ALL_DTYPES, expected, sizeof expected));
}

static enum roped_status read_offsets(const struct cJSON *node,
                                      struct safetensors_entry *entry,
                                      struct roped_error *err)
{
    int64_t n_elements, n_bytes;
    if (!cJSON_IsArray(node) || cJSON_GetArraySize(node) != 2 ||
        !json_is_size(node->child, &entry->begin) ||
        !json_is_size(node->child->next, &entry->end) ||
        entry->begin > entry->end)
        return roped_fail(err, ROPED_INVALID,
                          "tensor '%s': data_offsets are not [begin, end] with "
                          "0 <= begin <= end",
                          entry->name);
    enum roped_status status = roped_tensor_size(&entry->tensor, entry->name,
                                                 &n_elements, &n_bytes, err);
    if (!status && entry->end - entry->begin != (uint64_t)n_bytes)
        status = roped_fail(
            err, ROPED_INVALID,
            "tensor '%s': data_offsets span %llu bytes, expected %lld for its "
            "shape and dtype",
            entry->name, (unsigned long long)(entry->end - entry->begin),
            (long long)n_bytes);
    return status;
}

static enum roped_status read_entry(const struct cJSON *node,
                                    struct safetensors_entry *entry,
                                    struct roped_error *err)
{
    size_t name_bytes = strlen(node->string);
    memset(entry, 0, sizeof *entry);
    if (name_bytes >= sizeof entry->name)
        return roped_fail(err, ROPED_INVALID,
                          "tensor '%.48s...': name of %zu bytes, expected at "
                          "most %zu",
                          node->string, name_bytes, sizeof entry->name - 1);
    memcpy(entry->name, node->string, name_bytes);
    if (!cJSON_IsObject(node))
        return roped_fail(err, ROPED_INVALID,
                          "tensor '%s': expected an object with dtype, shape "
                          "and data_offsets",
                          entry->name);
    enum roped_status status =
        read_dtype(json_member(node, "dtype"), entry, err);
    if (!status)
        status = read_shape(json_member(node, "shape"), entry, err);
    if (!status)
        status = read_offsets(json_member(node, "data_offsets"), entry, err);
    return status;
}

static int compare_begin(const void *a, const void *b)
{
    const struct safetensors_entry *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

/* Covered without holes or overlaps, from 0 to the end of the data. */
static enum roped_status check_coverage(struct safetensors_entry *sorted, int n,
                                        uint64_t data_bytes,
                                        struct roped_error *err)
{
    uint64_t at = 0;
    qsort(sorted, (size_t)n, sizeof *sorted, compare_begin);
    for (int i = 0; i < n; i++) {
        if (sorted[i].begin != at)
            return roped_fail(err, ROPED_INVALID,
                              "tensor '%s': data begins at %llu, expected %llu "
                              "(no holes, no overlaps)",
                              sorted[i].name,
                              (unsigned long long)sorted[i].begin,
                              (unsigned long long)at);
        at = sorted[i].end;
    }
    if (at != data_bytes)
        return roped_fail(err, ROPED_INVALID,
                          "safetensors: tensors end at byte %llu of the data, "
                          "but %llu bytes were sent",
                          (unsigned long long)at,
                          (unsigned long long)data_bytes);
    return ROPED_OK;
}

static enum roped_status read_metadata(const struct cJSON *node,
                                       safetensors_metadata_fn *metadata,
                                       void *context, struct roped_error *err)
{
    const struct cJSON *entry;
    if (cJSON_IsNull(node))
        return ROPED_OK;
    if (!cJSON_IsObject(node))
        return roped_fail(err, ROPED_INVALID,
                          "safetensors: __metadata__ is no object of strings");
    cJSON_ArrayForEach(entry, node)
    {
        if (!cJSON_IsString(entry))
            return roped_fail(err, ROPED_INVALID,
                              "safetensors: __metadata__ '%.64s' is no string",
                              entry->string);
        if (!metadata)
            continue;
        enum roped_status status =
            metadata(context, entry->string, entry->valuestring, err);
        if (status)
            return status;
    }
    return ROPED_OK;
}

/* Whom a reading tells what it finds. */
struct visitor {
    safetensors_entry_fn *entry;
    safetensors_metadata_fn *metadata;
    void *context;
};

/* entries has room for every member of tree, or for MAX_TENSORS. */
static enum roped_status visit(const struct cJSON *tree, uint64_t data_bytes,
                               struct safetensors_entry *entries,
                               const struct visitor *visitor,
                               struct roped_error *err)
{
    enum roped_status status = ROPED_OK;
    const struct cJSON *node;
    int n = 0;
    cJSON_ArrayForEach(node, tree)
    {
        if (strcmp(node->string, "__metadata__") == 0)
            status =
                read_metadata(node, visitor->metadata, visitor->context, err);
        else if (n == SAFETENSORS_MAX_TENSORS)
            status = roped_fail(err, ROPED_INVALID,
                                "safetensors: over %d tensors, expected at "
                                "most that many",
                                SAFETENSORS_MAX_TENSORS);
        else
            status = read_entry(node, &entries[n++], err);
        if (status)
            return status;
    }
    for (int i = 0; i < n && !status; i++)
        status = visitor->entry(visitor->context, &entries[i], err);
    return status ? status : check_coverage(entries, n, data_bytes, err);
}

static enum roped_status read_tree(const struct cJSON *tree,
                                   uint64_t data_bytes,
                                   const struct visitor *visitor,
                                   struct roped_error *err)
{
    struct safetensors_entry few[FEW_TENSORS];
    size_t n = (size_t)cJSON_GetArraySize(tree);
    if (n <= FEW_TENSORS)
        return visit(tree, data_bytes, few, visitor, err);
    size_t room = n < SAFETENSORS_MAX_TENSORS ? n : SAFETENSORS_MAX_TENSORS;
    struct safetensors_entry *entries = calloc(room, sizeof *entries);
    if (!entries)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for %zu tensors", n);
    enum roped_status status = visit(tree, data_bytes, entries, visitor, err);
    free(entries);
    return status;
}

enum roped_status safetensors_read(const void *header, size_t header_bytes,
                                   uint64_t total_bytes,
                                   safetensors_entry_fn *entry,
                                   safetensors_metadata_fn *metadata,
                                   void *context, struct roped_error *err)
{
    const char *json = (const char *)header + SAFETENSORS_PREFIX_BYTES;
    size_t bytes = header_bytes - SAFETENSORS_PREFIX_BYTES, odd_number;
    const struct visitor visitor = {entry, metadata, context};
    const struct cJSON *tree;
    if (bytes == 0 || json[0] != '{')
        return roped_fail(err, ROPED_INVALID,
                          "safetensors: header does not start with '{'");
    enum roped_status status =
        json_parse_sizes(json, bytes, &tree, &odd_number, err);
    if (status)
        return status;
    status = read_tree(tree, total_bytes - header_bytes, &visitor, err);
    if (!status && odd_number != JSON_NOWHERE)
        status = roped_fail(err, ROPED_INVALID,
                            "safetensors: the number at byte %zu of the JSON "
                            "is not written in digits alone",
                            odd_number);
    json_free(tree);
    return status;
}

/* ---------------------------------------------------------------- writing */

static const char *written_name(enum roped_dtype dtype, bool fp8_as_u8)
{
    bool is_fp8 = ROPED_SET(dtype) & ROPED_FP8S;
    return roped_dtype_name(is_fp8 && fp8_as_u8 ? ROPED_U8 : dtype);
}

static void write_entry(struct buffer *buffer,
                        const struct safetensors_output *output, bool fp8_as_u8)
{
    const struct roped_tensor *tensor = output->tensor;
    buffer_json_string(buffer, output->name);
    buffer_text(buffer, ":{\"dtype\":\"");
    buffer_text(buffer, written_name(tensor->dtype, fp8_as_u8));
    buffer_text(buffer, "\",\"shape\":");
    buffer_dims(buffer, tensor->dims, tensor->rank);
    buffer_text(buffer, ",\"data_offsets\":[");
    buffer_unsigned(buffer, output->offset);
    buffer_append(buffer, ",", 1);
    buffer_unsigned(buffer,
                    output->offset + (uint64_t)roped_tensor_bytes(tensor));
    buffer_text(buffer, "]}");
}

static const char spaces[] = "                                "
                             "                                ";
_Static_assert(sizeof spaces > SAFETENSORS_DATA_ALIGNMENT,
               "padding is cut from a constant");

enum roped_status safetensors_write_header(
    struct buffer *buffer, struct safetensors_output *outputs, int n_outputs,
    const char *const (*metadata)[2], int n_metadata, bool fp8_as_u8,
    uint64_t *data_bytes, struct roped_error *err)
{
    size_t start = buffer->bytes;
    uint64_t at = 0;
    buffer_append(buffer, "\0\0\0\0\0\0\0\0", SAFETENSORS_PREFIX_BYTES);
    buffer_text(buffer, "{");
    if (n_metadata > 0)
        buffer_text(buffer, "\"__metadata__\":{");
    for (int i = 0; i < n_metadata; i++) {
        buffer_text(buffer, i ? "," : "");
        buffer_json_string(buffer, metadata[i][0]);
        buffer_text(buffer, ":");
        buffer_json_string(buffer, metadata[i][1]);
    }
    if (n_metadata > 0)
        buffer_text(buffer, "}");
    for (int i = 0; i < n_outputs; i++) {
        outputs[i].offset = at;
        if (i > 0 || n_metadata > 0)
            buffer_text(buffer, ",");
        write_entry(buffer, &outputs[i], fp8_as_u8);
        at += (uint64_t)roped_tensor_bytes(outputs[i].tensor);
    }
    buffer_text(buffer, "}");
    size_t past = (buffer->bytes - start) % SAFETENSORS_DATA_ALIGNMENT;
    if (past > 0)
        buffer_append(buffer, spaces, SAFETENSORS_DATA_ALIGNMENT - past);
    if (buffer->has_failed)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for the answer");
    uint64_t n = buffer->bytes - start - SAFETENSORS_PREFIX_BYTES;
    for (int i = 0; i < SAFETENSORS_PREFIX_BYTES; i++)
        buffer->text[start + (size_t)i] = (char)(n >> (8 * i));
    *data_bytes = at;
    return ROPED_OK;
}
