/*
 * kserve_region.c - tensors of a v2 message that are in regions.
 */
#include "wire/kserve_region.h"

#include "wire/json.h"

#include <cjson/cJSON.h>
#include <string.h>

/* Whose parameters they are, for messages. */
struct owner {
    const char *kind, *name;
};

static enum roped_status read_size(const struct owner *owner, const char *key,
                                   struct json_reader *size, uint64_t *out,
                                   struct roped_error *err)
{
    char found[64];
    double number = 0;
    if (json_read_size(size, out))
        return ROPED_OK;
    if (json_kind(size) == JSON_NOTHING)
        return roped_fail(err, ROPED_INVALID,
                          "Unable to parse '%s' of %s '%s': absent, expected "
                          "bytes",
                          key, owner->kind, owner->name);
    json_describe(size, found, sizeof found);
    if (json_read_number(size, &number) && number > 0x1p53)
        return roped_fail(err, ROPED_INVALID,
                          "Integer overflow detected: byte_size or offset, "
                          "'%s' of %s '%s' is %s, expected less than 2^53",
                          key, owner->kind, owner->name, found);
    return roped_fail(err, ROPED_INVALID,
                      "Unable to parse '%s' of %s '%s': %s, expected bytes",
                      key, owner->kind, owner->name, found);
}

static enum roped_status read_name(const struct owner *owner,
                                   struct json_reader *name,
                                   struct region_ref *ref,
                                   struct roped_error *err)
{
    char found[65];
    struct json_string string;
    if (!json_read_string(name, &string))
        return roped_fail(err, ROPED_INVALID,
                          "Unable to parse 'shared_memory_region' of %s '%s': "
                          "%s, expected a string",
                          owner->kind, owner->name,
                          json_describe(name, found, sizeof found));
    size_t length = json_copy(&string, ref->region, sizeof ref->region);
    if (length > 0 && length < sizeof ref->region)
        return ROPED_OK;
    json_copy(&string, found, sizeof found);
    return roped_fail(err, ROPED_NO_REGION,
                      "Unable to find shared memory region: '%s'", found);
}

/* Elements from one token to the next; 0 is no stride. */
static enum roped_status read_stride(const struct owner *owner,
                                     struct json_reader *stride,
                                     struct region_ref *ref,
                                     struct roped_error *err)
{
    char found[64];
    uint64_t value = 0;
    bool is_size = json_read_size(stride, &value);
    if (!is_size || value == 0)
        return roped_fail(err, ROPED_INVALID,
                          "Unable to parse 'stride' of %s '%s': %s, expected "
                          "elements from one token to the next, above 0",
                          owner->kind, owner->name,
                          is_size ? "0"
                                  : json_describe(stride, found, sizeof found));
    ref->has_stride = true;
    ref->tensor.stride = (int64_t)value;
    return ROPED_OK;
}

enum roped_status
kserve_read_region(const struct signature *signature, bool is_output, int port,
                   struct json_reader param[KSERVE_REGION_PARAMS],
                   struct region_refs *refs, struct roped_error *err)
{
    const struct owner owner = {is_output ? "output" : "input",
                                signature_tensor(signature, is_output, port)};
    bool has_stride = json_kind(&param[KSERVE_STRIDE]) != JSON_NOTHING;
    if (json_kind(&param[KSERVE_REGION]) == JSON_NOTHING) {
        if (!has_stride)
            return ROPED_OK;
        return roped_fail(err, ROPED_INVALID,
                          "%s '%s': 'stride' is given, but not "
                          "'shared_memory_region': tensors in a message are "
                          "packed",
                          owner.kind, owner.name);
    }
    struct region_ref *ref = region_refs_of(refs, is_output, port);
    enum roped_status status =
        read_name(&owner, &param[KSERVE_REGION], ref, err);
    if (!status)
        status = read_size(&owner, "shared_memory_byte_size",
                           &param[KSERVE_BYTE_SIZE], &ref->bytes, err);
    if (!status && json_kind(&param[KSERVE_OFFSET]) != JSON_NOTHING)
        status = read_size(&owner, "shared_memory_offset",
                           &param[KSERVE_OFFSET], &ref->offset, err);
    if (!status && has_stride)
        status = read_stride(&owner, &param[KSERVE_STRIDE], ref, err);
    return status;
}

enum roped_status kserve_check_region_input(const struct signature *signature,
                                            const struct roped_tensor *tensor,
                                            const struct region_ref *ref,
                                            struct roped_error *err)
{
    uint64_t expected = (uint64_t)roped_tensor_bytes(tensor);
    if (ref->bytes == expected || ref->has_stride)
        return ROPED_OK;
    return roped_fail(err, ROPED_BAD_SHAPE,
                      "input byte size mismatch for input '%s' for model "
                      "'%s'. Expected %llu, got %llu",
                      signature_tensor(signature, false, ref->port),
                      signature->name, (unsigned long long)expected,
                      (unsigned long long)ref->bytes);
}

enum roped_status kserve_check_strided_inputs(const struct signature *signature,
                                              const struct region_refs *refs,
                                              struct roped_error *err)
{
    for (int i = 0; i < refs->n; i++) {
        const struct region_ref *ref = &refs->ref[i];
        if (ref->is_output || !ref->has_stride)
            continue;
        uint64_t expected =
            (uint64_t)roped_tensor_span(signature_input(signature, ref->port));
        if (ref->bytes < expected)
            return roped_fail(err, ROPED_INVALID,
                              "shared memory size specified with the request "
                              "for input '%s' (%llu bytes) should be at least "
                              "%llu bytes, from its first token to its last",
                              signature_tensor(signature, false, ref->port),
                              (unsigned long long)ref->bytes,
                              (unsigned long long)expected);
    }
    return ROPED_OK;
}

enum roped_status kserve_check_region_output(const struct signature *signature,
                                             int port, struct region_refs *refs,
                                             struct roped_error *err)
{
    const struct region_ref *ref = region_refs_of(refs, true, port);
    const char *name = signature_tensor(signature, true, port);
    struct roped_tensor tensor;
    (void)signature_output(signature, port, &tensor);
    uint64_t expected = (uint64_t)roped_tensor_span(&tensor);
    if (!ref->region[0])
        return roped_fail(err, ROPED_INVALID,
                          "output '%s': its input is updated in a region, "
                          "expected shared_memory_region to name it here too",
                          name);
    if (ref->bytes >= expected)
        return ROPED_OK;
    return roped_fail(err, ROPED_INVALID,
                      "shared memory size specified with the request for "
                      "output '%s' (%llu bytes) should be at least %llu bytes "
                      "to hold the results",
                      name, (unsigned long long)ref->bytes,
                      (unsigned long long)expected);
}

/* ------------------------------------------------------------ registrations */

static enum roped_status member_size(const struct cJSON *tree, const char *key,
                                     bool is_required, uint64_t *out,
                                     struct roped_error *err)
{
    char found[64];
    const struct cJSON *node = json_member(tree, key);
    *out = 0;
    if ((!node && !is_required) || json_is_size(node, out))
        return ROPED_OK;
    return roped_fail(err, ROPED_INVALID,
                      "Unable to parse '%s': %s, expected "
                      "a number of 0 to 2^53 - 1",
                      key,
                      node ? json_text(node, found, sizeof found) : "absent");
}

static enum roped_status read_key(const struct cJSON *tree, char *out,
                                  size_t out_bytes, struct roped_error *err)
{
    char found[64];
    const struct cJSON *node = json_member(tree, "key");
    if (!cJSON_IsString(node))
        return roped_fail(
            err, ROPED_INVALID, "Unable to parse 'key': %s, expected a string",
            node ? json_text(node, found, sizeof found) : "absent");
    size_t length = strlen(node->valuestring);
    if (length >= out_bytes)
        return roped_fail(err, ROPED_INVALID,
                          "Unable to parse 'key': %zu bytes, expected at most "
                          "%zu",
                          length, out_bytes - 1);
    memcpy(out, node->valuestring, length + 1);
    return ROPED_OK;
}

enum roped_status kserve_read_system_memory(const char *json, size_t bytes,
                                            struct kserve_system_memory *out,
                                            struct roped_error *err)
{
    const struct cJSON *tree;
    enum roped_status status = json_parse_request(json, bytes, &tree, err);
    if (status)
        return status;
    status = read_key(tree, out->key, sizeof out->key, err);
    if (!status)
        status = member_size(tree, "offset", false, &out->offset, err);
    if (!status)
        status = member_size(tree, "byte_size", true, &out->bytes, err);
    json_free(tree);
    return status;
}

/* 0 to 63, or -1. */
static int base64_digit(char c)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                 "abcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c ? strchr(digits, c) : NULL;
    return at ? (int)(at - digits) : -1;
}

/* Exactly out_bytes, with or without padding; some encoders break lines. */
static bool read_base64(const char *text, unsigned char *out, size_t out_bytes)
{
    unsigned bits = 0;
    int n_bits = 0;
    size_t n = 0;
    for (; *text && *text != '='; text++) {
        int digit = base64_digit(*text);
        if (*text == '\n' || *text == '\r')
            continue;
        if (digit < 0)
            return false;
        bits = (bits << 6 | (unsigned)digit) & 0xFFFF;
        n_bits += 6;
        if (n_bits < 8)
            continue;
        n_bits -= 8;
        if (n == out_bytes)
            return false;
        out[n++] = (unsigned char)(bits >> n_bits);
    }
    text += strspn(text, "=\r\n");
    return *text == '\0' && n == out_bytes && n_bits < 6;
}

static enum roped_status read_handle(const struct cJSON *tree,
                                     unsigned char handle[64],
                                     struct roped_error *err)
{
    const struct cJSON *text =
        json_member(json_member(tree, "raw_handle"), "b64");
    if (cJSON_IsString(text) && read_base64(text->valuestring, handle, 64))
        return ROPED_OK;
    return roped_fail(err, ROPED_INVALID,
                      "'raw_handle' must be a valid base64 encoded "
                      "cudaIpcMemHandle_t");
}

enum roped_status kserve_read_cuda_memory(const char *json, size_t bytes,
                                          struct kserve_cuda_memory *out,
                                          struct roped_error *err)
{
    const struct cJSON *tree;
    enum roped_status status = json_parse_request(json, bytes, &tree, err);
    if (status)
        return status;
    status = read_handle(tree, out->handle, err);
    if (!status)
        status = member_size(tree, "device_id", true, &out->device, err);
    if (!status)
        status = member_size(tree, "byte_size", true, &out->bytes, err);
    json_free(tree);
    return status;
}
