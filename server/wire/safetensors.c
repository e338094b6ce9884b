/*
 * safetensors.c - the container's rules, every bound checked.
 */
#include "wire/safetensors.h"

#include "wire/json_reader.h"

#include <stdlib.h>
#include <string.h>

enum {
    /* in JSON objects that are open at once: tensors, and some to spare */
    MAX_NAMES = SAFETENSORS_MAX_TENSORS + 256
};

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

enum safetensors_other safetensors_mistaken(const void *prefix, size_t bytes)
{
    static const struct {
        const char *start;
        enum safetensors_other what;
    } known[] = {{"\x93NUMPY", SAFETENSORS_NPY},
                 {"PK\x03\x04", SAFETENSORS_ZIP},
                 {"\x1f\x8b", SAFETENSORS_GZIP}};
    const unsigned char *byte = prefix;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        size_t n = strlen(known[i].start);
        if (bytes >= n && memcmp(prefix, known[i].start, n) == 0)
            return known[i].what;
    }
    unsigned char first = 0;
    for (size_t i = 0; i < bytes; i++) {
        bool is_blank = byte[i] == ' ' || (byte[i] >= '\t' && byte[i] <= '\r');
        if (!is_blank && (byte[i] < 0x20 || byte[i] == 0x7F))
            return SAFETENSORS_UNKNOWN;
        first = first || is_blank ? first : byte[i];
    }
    return !first || first == 0xFF        ? SAFETENSORS_UNKNOWN
           : first == '{' || first == '[' ? SAFETENSORS_JSON
                                          : SAFETENSORS_TEXT;
}

static enum roped_status read_shape(struct json_reader *shape,
                                    struct safetensors_entry *entry,
                                    struct roped_error *err)
{
    char found[64];
    struct roped_tensor *tensor = &entry->tensor;
    int rank = 0;
    if (json_kind(shape) != JSON_ARRAY)
        return roped_fail(err, ROPED_BAD_SHAPE,
                          "tensor '%s': shape is %s, expected an array of dims",
                          entry->name,
                          json_describe(shape, found, sizeof found));
    json_open(shape);
    for (; json_next(shape); rank++) {
        uint64_t size;
        if (!json_read_size(shape, &size))
            return roped_fail(err, ROPED_BAD_SHAPE,
                              "tensor '%s': dim %d is %s, expected an integer "
                              "of 0 or more",
                              entry->name, rank,
                              json_describe(shape, found, sizeof found));
        if (rank < ROPED_MAX_RANK)
            tensor->dims[rank] = (int64_t)size;
    }
    if (rank > ROPED_MAX_RANK)
        return roped_fail(err, ROPED_BAD_SHAPE,
                          "tensor '%s': rank %d, expected at most %d",
                          entry->name, rank, ROPED_MAX_RANK);
    tensor->rank = rank;
    return ROPED_OK;
}

static enum roped_status read_dtype(struct json_reader *json,
                                    struct safetensors_entry *entry,
                                    struct roped_error *err)
{
    char name[16], found[64], expected[160];
    const struct json_reader value = *json;
    struct json_string string;
    if (json_read_string(json, &string) &&
        json_copy(&string, name, sizeof name) < sizeof name)
        entry->tensor.dtype = roped_dtype_from_name(name, strlen(name));
    if (entry->tensor.dtype)
        return ROPED_OK;
    return roped_fail(
        err, ROPED_BAD_TYPE, "tensor '%s': dtype is %s, expected %s",
        entry->name, json_describe(&value, found, sizeof found),
        roped_dtype_set_text(ALL_DTYPES, expected, sizeof expected));
}

static bool read_pair(struct json_reader *reader, uint64_t *a, uint64_t *b)
{
    return json_kind(reader) == JSON_ARRAY && json_open(reader) &&
           json_next(reader) && json_read_size(reader, a) &&
           json_next(reader) && json_read_size(reader, b) && !json_next(reader);
}

static enum roped_status read_offsets(struct json_reader *json,
                                      struct safetensors_entry *entry,
                                      struct roped_error *err)
{
    if (read_pair(json, &entry->begin, &entry->end) &&
        entry->begin <= entry->end)
        return ROPED_OK;
    return roped_fail(err, ROPED_INVALID,
                      "tensor '%s': data_offsets are not [begin, end] with "
                      "0 <= begin <= end",
                      entry->name);
}

static enum roped_status check_span(const struct safetensors_entry *entry,
                                    struct roped_error *err)
{
    int64_t n_elements, n_bytes;
    enum roped_status status = roped_tensor_size(&entry->tensor, entry->name,
                                                 &n_elements, &n_bytes, err);
    if (!status && entry->end - entry->begin != (uint64_t)n_bytes)
        status = roped_fail(
            err, ROPED_BAD_SHAPE,
            "tensor '%s': data_offsets span %llu bytes, expected %lld for its "
            "shape and dtype",
            entry->name, (unsigned long long)(entry->end - entry->begin),
            (long long)n_bytes);
    return status;
}

typedef enum roped_status read_fn(struct json_reader *json,
                                  struct safetensors_entry *entry,
                                  struct roped_error *err);

/* The members of a tensor's object, in the order in which they come. */
static enum roped_status read_fields(struct json_reader *json,
                                     struct safetensors_entry *entry,
                                     struct roped_error *err)
{
    static read_fn *const read[] = {read_dtype, read_shape, read_offsets};
    enum { DTYPE, SHAPE, OFFSETS, N_FIELDS };
    struct json_string name;
    bool has[N_FIELDS] = {false};
    enum roped_status status = ROPED_OK;
    json_open(json);
    while (!status && json_next_name(json, &name)) {
        int i = json_equals(&name, "dtype")          ? DTYPE
                : json_equals(&name, "shape")        ? SHAPE
                : json_equals(&name, "data_offsets") ? OFFSETS
                                                     : N_FIELDS;
        if (i == N_FIELDS) {
            json_skip(json);
            continue;
        }
        has[i] = true;
        status = read[i](json, entry, err);
    }
    for (int i = 0; i < N_FIELDS && !status; i++)
        if (!has[i])
            status = read[i](&(struct json_reader){.at = NULL}, entry, err);
    return status;
}

static enum roped_status read_entry(struct json_reader *json,
                                    const struct json_string *name,
                                    struct safetensors_entry *entry,
                                    struct roped_error *err)
{
    memset(entry, 0, sizeof *entry);
    size_t name_bytes = json_copy(name, entry->name, sizeof entry->name);
    if (name_bytes >= sizeof entry->name)
        return roped_fail(err, ROPED_INVALID,
                          "tensor '%.48s...': name of %zu bytes, expected at "
                          "most %zu",
                          entry->name, name_bytes, sizeof entry->name - 1);
    if (json_kind(json) != JSON_OBJECT)
        return roped_fail(err, ROPED_INVALID,
                          "tensor '%s': expected an object with dtype, shape "
                          "and data_offsets",
                          entry->name);
    enum roped_status status = read_fields(json, entry, err);
    return status ? status : check_span(entry, err);
}

/* ------------------------------------------------------------------ header */

/* Where a tensor's data is, and its name in the header. */
struct span {
    uint64_t begin, end;
    const unsigned char *name;
};

/* A header that is being read. */
struct reading {
    struct json_reader json;
    struct json_string names[MAX_NAMES];
    safetensors_entry_fn *entry;
    safetensors_metadata_fn *metadata;
    void *context;
    int n;
    struct span span[SAFETENSORS_MAX_TENSORS]; /* as the data lies */
};

/* Writers list tensors as their data lies: each goes to the end, mostly. */
static void note_span(struct reading *reading,
                      const struct safetensors_entry *entry,
                      const struct json_string *name)
{
    struct span *to = &reading->span[reading->n++];
    for (; to > reading->span; to--) {
        const struct span *before = to - 1;
        if (before->begin < entry->begin ||
            (before->begin == entry->begin && before->end <= entry->end))
            break;
        *to = *before;
    }
    *to = (struct span){entry->begin, entry->end, name->at};
}

static enum roped_status refuse_span(const struct reading *reading,
                                     const struct span *span, uint64_t expected,
                                     struct roped_error *err)
{
    char name[ROPED_NAME_BYTES] = "";
    struct json_reader quote = reading->json;
    struct json_string string;
    quote.at = span->name - 1;
    if (json_read_string(&quote, &string))
        json_copy(&string, name, sizeof name);
    return roped_fail(err, ROPED_INVALID,
                      "tensor '%s': data begins at %llu, expected %llu (no "
                      "holes, no overlaps)",
                      name, (unsigned long long)span->begin,
                      (unsigned long long)expected);
}

/* Covered without holes or overlaps, from 0 to the end of the data. */
static enum roped_status check_coverage(const struct reading *reading,
                                        uint64_t data_bytes,
                                        struct roped_error *err)
{
    uint64_t at = 0;
    int i = 0;
    for (; i < reading->n && reading->span[i].begin == at; i++)
        at = reading->span[i].end;
    if (i < reading->n)
        return refuse_span(reading, &reading->span[i], at, err);
    if (at != data_bytes)
        return roped_fail(err, ROPED_INVALID,
                          "safetensors: tensors end at byte %llu of the data, "
                          "but %llu bytes were sent",
                          (unsigned long long)at,
                          (unsigned long long)data_bytes);
    return ROPED_OK;
}

/* Hands both on without their escapes, in memory for the time of the call. */
static enum roped_status visit_metadata(struct reading *reading,
                                        const struct json_string *name,
                                        const struct json_string *value,
                                        struct roped_error *err)
{
    size_t name_room = name->bytes + 1, value_room = value->bytes + 1;
    char *text = malloc(name_room + value_room);
    if (!text)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for metadata");
    json_copy(name, text, name_room);
    json_copy(value, text + name_room, value_room);
    enum roped_status status =
        reading->metadata(reading->context, text, text + name_room, err);
    free(text);
    return status;
}

static enum roped_status read_metadata(struct reading *reading,
                                       struct roped_error *err)
{
    char start[65];
    struct json_reader *json = &reading->json;
    struct json_string name, value;
    enum roped_status status = ROPED_OK;
    if (json_kind(json) == JSON_NULL) {
        json_skip(json);
        return ROPED_OK;
    }
    if (json_kind(json) != JSON_OBJECT)
        return roped_fail(
            err, ROPED_INVALID,
            "safetensors: __metadata__ is not an object of strings");
    json_open(json);
    while (!status && json_next_name(json, &name)) {
        if (!json_read_string(json, &value)) {
            json_copy(&name, start, sizeof start);
            return roped_fail(err, ROPED_INVALID,
                              "safetensors: __metadata__ '%s' is not a string",
                              start);
        }
        if (reading->metadata)
            status = visit_metadata(reading, &name, &value, err);
    }
    return status;
}

static enum roped_status read_tensor(struct reading *reading,
                                     const struct json_string *name,
                                     struct roped_error *err)
{
    struct safetensors_entry entry;
    if (reading->n == SAFETENSORS_MAX_TENSORS)
        return roped_fail(err, ROPED_INVALID,
                          "safetensors: over %d tensors, expected at most that "
                          "many",
                          SAFETENSORS_MAX_TENSORS);
    enum roped_status status = read_entry(&reading->json, name, &entry, err);
    if (status)
        return status;
    note_span(reading, &entry, name);
    return reading->entry ? reading->entry(reading->context, &entry, err)
                          : ROPED_OK;
}

static enum roped_status read_header(struct reading *reading,
                                     uint64_t data_bytes,
                                     struct roped_error *err)
{
    struct json_string name;
    struct json_reader *json = &reading->json;
    enum roped_status status = ROPED_OK;
    json_open(json);
    while (!status && json_next_name(json, &name))
        status = json_equals(&name, "__metadata__")
                     ? read_metadata(reading, err)
                     : read_tensor(reading, &name, err);
    status = json_end(json, status, err);
    if (!status && json->nan != JSON_NOWHERE)
        status = json_refuse_nan(json, err);
    if (!status)
        status = check_coverage(reading, data_bytes, err);
    if (!status && json->odd_number != JSON_NOWHERE)
        status = roped_fail(err, ROPED_INVALID,
                            "safetensors: the number at byte %zu of the JSON "
                            "is not written in digits alone",
                            json->odd_number);
    return status;
}

enum roped_status safetensors_read(const void *header, size_t header_bytes,
                                   uint64_t total_bytes,
                                   safetensors_entry_fn *entry,
                                   safetensors_metadata_fn *metadata,
                                   void *context, struct roped_error *err)
{
    const char *json = (const char *)header + SAFETENSORS_PREFIX_BYTES;
    size_t bytes = header_bytes - SAFETENSORS_PREFIX_BYTES;
    struct reading reading; /* not zeroed: it is large */
    if (bytes == 0 || json[0] != '{')
        return roped_fail(err, ROPED_INVALID,
                          "safetensors: header does not start with '{'");
    json_reader_init(&reading.json, json, bytes, JSON_DEPTH, reading.names,
                     MAX_NAMES);
    reading.json.subject = "the JSON of the safetensors header";
    reading.entry = entry;
    reading.metadata = metadata;
    reading.context = context;
    reading.n = 0;
    return read_header(&reading, total_bytes - header_bytes, err);
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
