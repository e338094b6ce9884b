/*
 * kserve.c - v2 inference requests and answers.
 *
 * Of the protocol's request parameters, 'timeout' is for the caller,
 * 'priority' is accepted and ignored; sequences and classification are refused
 * by name; every other parameter is the operator's.
 */
#include "wire/kserve.h"

#include "wire/json.h"
#include "wire/kserve_data.h"
#include "wire/kserve_region.h"
#include "wire/kserve_tensor.h"
#include "wire/param_json.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

enum { PLACE_ALIGNMENT = 16 }; /* of JSON tensors in their memory */

/* A request that is being read. */
struct reading {
    struct roped_call *call;
    unsigned char *binary; /* what follows the JSON; may be NULL */
    uint64_t binary_bytes;
    struct kserve_request *out;
};

static const char *model_of(const struct roped_call *call)
{
    return call->op->name;
}

/* Bytes that a JSON tensor takes of the memory for all of them. */
static uint64_t place_bytes(const struct roped_tensor *tensor)
{
    uint64_t bytes = (uint64_t)roped_tensor_bytes(tensor);
    return (bytes + PLACE_ALIGNMENT - 1) / PLACE_ALIGNMENT * PLACE_ALIGNMENT;
}

/* ------------------------------------------------------------- parameters */

/* A member of params that says yes or no; absent is no. */
static enum roped_status read_flag(const struct cJSON *params, const char *name,
                                   bool *out, struct roped_error *err)
{
    char found[64];
    const struct cJSON *node = json_member(params, name);
    *out = cJSON_IsTrue(node);
    if (!node || cJSON_IsBool(node))
        return ROPED_OK;
    return roped_fail(err, ROPED_INVALID,
                      "Unable to parse '%s': %s, expected true or false", name,
                      json_text(node, found, sizeof found));
}

/* The 'parameters' of owner into *out, NULL where it has none. */
static enum roped_status find_params(const struct cJSON *owner,
                                     const struct cJSON **out,
                                     struct roped_error *err)
{
    char found[64];
    *out = json_member(owner, "parameters");
    if (!*out || cJSON_IsObject(*out))
        return ROPED_OK;
    return roped_fail(err, ROPED_INVALID,
                      "Unable to parse 'parameters': %s, expected an object",
                      json_text(*out, found, sizeof found));
}

static enum roped_status read_table(const struct cJSON *node,
                                    struct kserve_request *out,
                                    struct roped_error *err)
{
    char found[64];
    if (!cJSON_IsString(node) || node->valuestring[0] == '\0' ||
        strlen(node->valuestring) >= sizeof out->table)
        return roped_fail(err, ROPED_INVALID,
                          "parameter 'table': %s, expected the name of a table",
                          json_text(node, found, sizeof found));
    memcpy(out->table, node->valuestring, strlen(node->valuestring) + 1);
    return ROPED_OK;
}

/* 'timeout' or 'priority'. */
static enum roped_status read_count(const struct cJSON *node, uint64_t *out,
                                    struct roped_error *err)
{
    char found[64];
    if (json_is_size(node, out))
        return ROPED_OK;
    return roped_fail(err, ROPED_INVALID,
                      "parameter '%s': %s, expected an integer of 0 or more",
                      node->string, json_text(node, found, sizeof found));
}

static enum roped_status read_param(struct reading *reading,
                                    const struct cJSON *node,
                                    struct roped_error *err)
{
    const char *name = node->string;
    uint64_t priority;
    if (strcmp(name, "binary_data_output") == 0)
        return ROPED_OK; /* read already: it is the default of the outputs */
    if (strcmp(name, "timeout") == 0)
        return read_count(node, &reading->out->timeout_us, err);
    if (strcmp(name, "priority") == 0)
        return read_count(node, &priority, err);
    if (strcmp(name, "table") == 0)
        return read_table(node, reading->out, err);
    if (strncmp(name, "sequence_", 9) == 0)
        return roped_fail(err, ROPED_INVALID,
                          "parameter '%.64s' is not supported: calls are "
                          "independent of each other",
                          name);
    if (strncmp(name, "triton_", 7) == 0)
        return roped_fail(err, ROPED_INVALID,
                          "parameter '%.64s' is not supported: names with "
                          "'triton_' are reserved",
                          name);
    return param_json_set(reading->call, name, node, err);
}

static enum roped_status read_params(struct reading *reading,
                                     const struct cJSON *tree,
                                     struct roped_error *err)
{
    const struct cJSON *node, *params;
    enum roped_status status = find_params(tree, &params, err);
    if (!status)
        status = read_flag(params, "binary_data_output",
                           &reading->out->binary_output, err);
    cJSON_ArrayForEach(node, params)
    {
        if (!status)
            status = read_param(reading, node, err);
    }
    return status;
}

/* ----------------------------------------------------------------- inputs */

/* Checks the values; they are converted once there is memory for them. */
static enum roped_status place_json(struct reading *reading,
                                    const struct cJSON *data, int port,
                                    const struct roped_tensor *tensor,
                                    struct roped_error *err)
{
    const char *name = reading->call->op->in[port].name;
    if (tensor->dtype == ROPED_F16 || tensor->dtype == ROPED_BF16)
        return roped_fail(err, ROPED_INVALID,
                          "receiving %s data via JSON is not supported for "
                          "input '%s'. Please use the binary data format "
                          "(binary_data_size)",
                          roped_dtype_v2_name(tensor->dtype), name);
    enum roped_status status = kserve_read_values(tensor, name, data, err);
    if (status)
        return status;
    /* no overflow: the JSON holds every one of the elements */
    reading->out->in_json[port] = true;
    reading->out->json_tensor_bytes += place_bytes(tensor);
    return ROPED_OK;
}

static enum roped_status place_binary(struct reading *reading,
                                      const struct cJSON *size, int port,
                                      struct roped_tensor *tensor,
                                      struct roped_error *err)
{
    const char *name = reading->call->op->in[port].name;
    const char *model = model_of(reading->call);
    struct kserve_request *out = reading->out;
    uint64_t bytes, left = reading->binary_bytes - out->binary_bytes;
    uint64_t expected = (uint64_t)roped_tensor_bytes(tensor);
    if (!json_is_size(size, &bytes))
        return roped_fail(err, ROPED_INVALID,
                          "Unable to parse 'binary_data_size' of input '%s'",
                          name);
    if (bytes != expected)
        return roped_fail(err, ROPED_INVALID,
                          "input byte size mismatch for input '%s' for model "
                          "'%s'. Expected %llu, got %llu",
                          name, model, (unsigned long long)expected,
                          (unsigned long long)bytes);
    if (bytes > left)
        return roped_fail(err, ROPED_INVALID,
                          "unexpected size for input '%s', expecting %llu "
                          "additional bytes for model '%s'",
                          name, (unsigned long long)(bytes - left), model);
    if (reading->binary)
        tensor->data = reading->binary + out->binary_bytes;
    out->binary_bytes += bytes;
    return ROPED_OK;
}

/* Where an input's values are: in exactly one of three places. */
static enum roped_status place_input(struct reading *reading,
                                     const struct cJSON *node, int port,
                                     struct roped_tensor *tensor,
                                     struct roped_error *err)
{
    const char *name = reading->call->op->in[port].name;
    const struct cJSON *data = json_member(node, "data"), *params;
    struct region_ref *ref = NULL;
    enum roped_status status = find_params(node, &params, err);
    if (!status)
        status = kserve_read_region(reading->call->op, false, port, params,
                                    &reading->out->regions, &ref, err);
    if (status)
        return status;
    const struct cJSON *size = json_member(params, "binary_data_size");
    if (!!size + !!data + !!ref != 1)
        return roped_fail(err, ROPED_INVALID,
                          "Input must set only one of the following fields: "
                          "'data', 'binary_data_size' in 'parameters', "
                          "'shared_memory_region' in 'parameters'. But input "
                          "'%s' has %s",
                          name, size || data ? "several" : "none");
    if (ref)
        return kserve_check_region_input(reading->call->op, tensor, ref, err);
    return data ? place_json(reading, data, port, tensor, err)
                : place_binary(reading, size, port, tensor, err);
}

static enum roped_status read_input(struct reading *reading,
                                    const struct cJSON *node,
                                    struct roped_error *err)
{
    struct roped_call *call = reading->call;
    const struct cJSON *name = json_member(node, "name");
    struct roped_tensor tensor = {.data = NULL};
    if (!cJSON_IsObject(node) || !cJSON_IsString(name))
        return roped_fail(err, ROPED_INVALID,
                          "Unable to parse 'inputs': an input has no 'name'");
    int port = roped_op_input(call->op, name->valuestring);
    if (port < 0)
        return roped_fail(err, ROPED_INVALID,
                          "unexpected inference input '%.64s' for model '%s'",
                          name->valuestring, model_of(call));
    if (roped_tensor_given(&call->in[port]))
        return roped_fail(err, ROPED_INVALID,
                          "input '%s' already exists in request",
                          name->valuestring);
    enum roped_status status =
        kserve_read_tensor(call, port, node, &tensor, err);
    if (!status)
        status = place_input(reading, node, port, &tensor, err);
    if (!status)
        status = roped_call_bind(call, name->valuestring, &tensor, err);
    return status;
}

/* The phrase that v2 clients know, with every name that is missing. */
static enum roped_status check_required(const struct roped_call *call,
                                        struct roped_error *err)
{
    const struct roped_op *op = call->op;
    char got[128] = "", missing[128] = "", count[64];
    size_t got_at = 0, missing_at = 0;
    int n_got = 0, n_required = 0, n_missing = 0, n = roped_op_inputs(op);
    for (int i = 0; i < n; i++) {
        bool is_given = roped_tensor_given(&call->in[i]);
        bool is_required = !(op->in[i].flags & ROPED_OPTIONAL);
        n_required += is_required;
        n_got += is_given;
        if (is_given && got_at < sizeof got)
            got_at +=
                (size_t)snprintf(got + got_at, sizeof got - got_at, "%s'%s'",
                                 got_at ? "," : "", op->in[i].name);
        if (is_given || !is_required)
            continue;
        n_missing++;
        if (missing_at < sizeof missing)
            missing_at += (size_t)snprintf(
                missing + missing_at, sizeof missing - missing_at, "%s'%s'",
                missing_at ? "," : "", op->in[i].name);
    }
    if (n_missing == 0)
        return ROPED_OK;
    if (n_required == n)
        snprintf(count, sizeof count, "%d inputs", n);
    else
        snprintf(count, sizeof count, "number of inputs between %d and %d",
                 n_required, n);
    return roped_fail(err, ROPED_INVALID,
                      "expected %s but got %d inputs for model '%s'. Got "
                      "input(s) [%s], but missing required input(s) [%s]. "
                      "Please provide all required input(s).",
                      count, n_got, op->name, got, missing);
}

/* ---------------------------------------------------------------- outputs */

static enum roped_status read_output(struct reading *reading,
                                     const struct cJSON *node,
                                     struct roped_error *err)
{
    const struct roped_call *call = reading->call;
    struct kserve_request *out = reading->out;
    const struct cJSON *name = json_member(node, "name"), *params;
    if (!cJSON_IsString(name))
        return roped_fail(err, ROPED_INVALID,
                          "Unable to parse 'outputs': an output has no 'name'");
    int port = roped_op_output(call->op, name->valuestring);
    if (port < 0)
        return roped_fail(err, ROPED_INVALID,
                          "unexpected inference output '%.64s' for model '%s'",
                          name->valuestring, model_of(call));
    for (int i = 0; i < out->n_outputs; i++)
        if (out->output[i].port == port)
            return roped_fail(err, ROPED_INVALID,
                              "output '%s' already exists in request",
                              name->valuestring);
    struct region_ref *ref;
    enum roped_status status = find_params(node, &params, err);
    if (!status)
        status = kserve_read_region(call->op, true, port, params, &out->regions,
                                    &ref, err);
    if (!status && json_member(params, "classification"))
        status = roped_fail(err, ROPED_INVALID,
                            "output '%s': classification is not supported",
                            name->valuestring);
    if (!status)
        status = read_flag(params, "binary_data",
                           &out->output[out->n_outputs].is_binary, err);
    out->output[out->n_outputs++].port = port;
    return status;
}

/* Echoed as it is, so it must fit; "" is what a client sends for none. */
static enum roped_status read_id(const struct cJSON *node,
                                 struct kserve_request *out,
                                 struct roped_error *err)
{
    char found[64];
    if (!node || cJSON_IsNull(node))
        return ROPED_OK;
    if (!cJSON_IsString(node))
        return roped_fail(err, ROPED_INVALID,
                          "Unable to parse 'id': %s, expected a string",
                          json_text(node, found, sizeof found));
    size_t bytes = strlen(node->valuestring);
    if (bytes >= sizeof out->id)
        return roped_fail(err, ROPED_INVALID,
                          "Unable to parse 'id': %zu bytes, expected at most "
                          "%zu",
                          bytes, sizeof out->id - 1);
    memcpy(out->id, node->valuestring, bytes + 1);
    return ROPED_OK;
}

static enum roped_status read_outputs(struct reading *reading,
                                      const struct cJSON *outputs,
                                      struct roped_error *err)
{
    const struct cJSON *node;
    if (outputs && !cJSON_IsArray(outputs) && !cJSON_IsNull(outputs))
        return roped_fail(err, ROPED_INVALID,
                          "Unable to parse 'outputs': expected an array");
    cJSON_ArrayForEach(node, outputs)
    {
        enum roped_status status = read_output(reading, node, err);
        if (status)
            return status;
    }
    return ROPED_OK;
}

static enum roped_status read_tree(struct reading *reading,
                                   const struct cJSON *tree,
                                   struct roped_error *err)
{
    const struct cJSON *node, *inputs = json_member(tree, "inputs");
    if (!cJSON_IsArray(inputs))
        return roped_fail(err, ROPED_INVALID,
                          "Unable to parse 'inputs': expected an array");
    enum roped_status status =
        read_id(json_member(tree, "id"), reading->out, err);
    if (!status)
        status = read_params(reading, tree, err);
    cJSON_ArrayForEach(node, inputs)
    {
        if (!status)
            status = read_input(reading, node, err);
    }
    if (!status)
        status = read_outputs(reading, json_member(tree, "outputs"), err);
    if (!status)
        status = check_required(reading->call, err);
    uint64_t left = reading->binary_bytes - reading->out->binary_bytes;
    if (!status && left > 0)
        status = roped_fail(err, ROPED_INVALID,
                            "unexpected additional input data for model '%s': "
                            "%llu bytes are left over",
                            model_of(reading->call), (unsigned long long)left);
    return status;
}

enum roped_status kserve_read_request(struct roped_call *call, const char *json,
                                      size_t json_bytes, void *binary,
                                      uint64_t binary_bytes,
                                      struct kserve_request *out,
                                      struct roped_error *err)
{
    struct reading reading = {call, binary, binary_bytes, out};
    const struct cJSON *tree;
    memset(out, 0, offsetof(struct kserve_request, regions));
    out->regions.n = 0;
    enum roped_status status = json_parse_v2(json, json_bytes, &tree, err);
    if (status)
        return status;
    status = read_tree(&reading, tree, err);
    json_free(tree);
    return status;
}

/* ----------------------------------------------------------- JSON tensors */

static enum roped_status store_tensors(struct roped_call *call,
                                       const struct cJSON *inputs,
                                       const struct kserve_request *request,
                                       unsigned char *memory,
                                       struct roped_error *err)
{
    const struct cJSON *node;
    cJSON_ArrayForEach(node, inputs)
    {
        const char *name = json_member(node, "name")->valuestring;
        int port = roped_op_input(call->op, name);
        struct roped_tensor *tensor = &call->in[port];
        if (!request->in_json[port])
            continue;
        tensor->data = memory;
        memory += place_bytes(tensor);
        enum roped_status status =
            kserve_read_values(tensor, name, json_member(node, "data"), err);
        if (status)
            return status;
    }
    return ROPED_OK;
}

enum roped_status kserve_read_json_tensors(struct roped_call *call,
                                           const char *json, size_t json_bytes,
                                           const struct kserve_request *request,
                                           void *memory,
                                           struct roped_error *err)
{
    const struct cJSON *tree;
    enum roped_status status = json_parse_v2(json, json_bytes, &tree, err);
    if (status)
        return status;
    status =
        store_tensors(call, json_member(tree, "inputs"), request, memory, err);
    json_free(tree);
    return status;
}

/* ---------------------------------------------------------------- answers */

static bool is_kept(const struct kserve_request *request, int port)
{
    return request->kept >> port & 1;
}

enum roped_status kserve_check_outputs(const struct roped_call *call,
                                       struct kserve_request *request,
                                       struct roped_error *err)
{
    bool is_default = request->n_outputs == 0;
    for (int i = 0; i < call->n_out && is_default; i++) {
        if (!roped_tensor_given(&call->out[i]))
            continue;
        request->output[request->n_outputs].port = i;
        request->output[request->n_outputs++].is_binary =
            request->binary_output;
    }
    for (int i = 0; i < request->n_outputs; i++) {
        int port = request->output[i].port;
        const char *name = call->op->out[port].name;
        const char *needed = call->op->out[port].requires_;
        enum roped_dtype dtype = call->out[port].dtype;
        if (!roped_tensor_given(&call->out[port]))
            return roped_fail(
                err, ROPED_INVALID,
                "unexpected inference output '%s' for model '%s': it needs "
                "%s '%s'",
                name, model_of(call),
                roped_op_input(call->op, needed) < 0 ? "parameter" : "input",
                needed);
        if (is_kept(request, port)) {
            enum roped_status status =
                is_default ? ROPED_OK
                           : kserve_check_region_output(call, port,
                                                        &request->regions, err);
            if (status)
                return status;
            continue;
        }
        if (!request->output[i].is_binary &&
            (dtype == ROPED_F16 || dtype == ROPED_BF16))
            return roped_fail(err, ROPED_INVALID,
                              "sending %s data via JSON is not supported for "
                              "output '%s'. Please set 'binary_data': true or "
                              "'binary_data_output': true",
                              roped_dtype_v2_name(dtype), name);
    }
    return ROPED_OK;
}

bool kserve_is_binary_answer(const struct kserve_request *request)
{
    for (int i = 0; i < request->n_outputs; i++)
        if (!request->output[i].is_binary &&
            !is_kept(request, request->output[i].port))
            return false;
    return true;
}

static bool is_fp8(enum roped_dtype dtype)
{
    return ROPED_SET(dtype) & ROPED_FP8S;
}

/* An output that is in a region has neither data nor parameters. */
static void write_output(struct buffer *buffer, const struct roped_call *call,
                         const struct kserve_request *request, int port,
                         bool is_binary)
{
    const struct roped_tensor *tensor = &call->out[port];
    buffer_text(buffer, "{\"name\":");
    buffer_json_string(buffer, call->op->out[port].name);
    buffer_text(buffer, ",\"datatype\":\"");
    buffer_text(buffer, roped_dtype_v2_name(tensor->dtype));
    buffer_text(buffer, "\",\"shape\":");
    buffer_dims(buffer, tensor->dims, tensor->rank);
    if (is_kept(request, port)) {
        buffer_text(buffer, "}");
        return;
    }
    if (!is_binary) {
        buffer_text(buffer, ",\"data\":");
        kserve_write_values(buffer, tensor);
    } else {
        buffer_text(buffer, ",\"parameters\":{\"binary_data_size\":");
        buffer_unsigned(buffer, (uint64_t)roped_tensor_bytes(tensor));
        if (is_fp8(tensor->dtype))
            buffer_printf(buffer, ",\"content_datatype\":\"%s\"",
                          roped_dtype_name(tensor->dtype));
        buffer_text(buffer, "}");
    }
    buffer_text(buffer, "}");
}

/* "parameters" of the answer: what the UINT8 of an output really is. */
static void write_hints(struct buffer *buffer, const struct roped_call *call,
                        const struct kserve_request *request)
{
    bool has_any = false;
    for (int i = 0; i < request->n_outputs; i++) {
        int port = request->output[i].port;
        if (!is_fp8(call->out[port].dtype))
            continue;
        buffer_text(buffer, has_any ? "," : ",\"parameters\":{");
        buffer_printf(buffer, "\"content_datatype.%s\":\"%s\"",
                      call->op->out[port].name,
                      roped_dtype_name(call->out[port].dtype));
        has_any = true;
    }
    if (has_any)
        buffer_text(buffer, "}");
}

enum roped_status kserve_write_response(struct buffer *buffer,
                                        const struct roped_call *call,
                                        const struct kserve_request *request,
                                        uint64_t offset[ROPED_MAX_OUTPUTS],
                                        uint64_t *binary_bytes,
                                        struct roped_error *err)
{
    uint64_t at = 0;
    buffer_text(buffer, "{");
    if (request->id[0]) {
        buffer_text(buffer, "\"id\":");
        buffer_json_string(buffer, request->id);
        buffer_text(buffer, ",");
    }
    buffer_text(buffer, "\"model_name\":\"");
    buffer_text(buffer, model_of(call));
    buffer_text(buffer, "\",\"model_version\":\"1\"");
    write_hints(buffer, call, request);
    buffer_text(buffer, ",\"outputs\":[");
    for (int i = 0; i < request->n_outputs; i++) {
        int port = request->output[i].port;
        bool is_binary =
            request->output[i].is_binary && !is_kept(request, port);
        offset[port] = at;
        buffer_text(buffer, i ? "," : "");
        write_output(buffer, call, request, port, is_binary);
        at += is_binary ? (uint64_t)roped_tensor_bytes(&call->out[port]) : 0;
    }
    buffer_text(buffer, "]}");
    *binary_bytes = at;
    if (buffer->has_failed)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for the answer");
    return ROPED_OK;
}
