/*
 * kserve.c - v2 inference requests and answers.
 *
 * Of the protocol's request parameters, 'timeout' and 'priority' are accepted
 * and ignored; sequences, classification and shared memory are refused by
 * name; every other parameter is the operator's.
 */
#include "wire/kserve.h"

#include "wire/json.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *model_of(const struct roped_call *call)
{
    return call->op->name;
}

/* ------------------------------------------------------------- parameters */

static enum roped_status set_operator_param(struct roped_call *call,
                                            const struct cJSON *node,
                                            struct roped_error *err)
{
    struct roped_value value = {.kind = ROPED_VALUE_FLOAT};
    char list[96] = "";
    size_t at = 0;
    const struct cJSON *item;
    if (cJSON_IsString(node)) {
        value.kind = ROPED_VALUE_TEXT;
        value.text = node->valuestring;
    } else if (cJSON_IsBool(node)) {
        value.kind = ROPED_VALUE_BOOL;
        value.integer = cJSON_IsTrue(node);
    } else if (cJSON_IsNumber(node)) {
        value.number = node->valuedouble;
        if (fabs(value.number) < 0x1p53 &&
            value.number == (double)(int64_t)value.number) {
            value.kind = ROPED_VALUE_INT;
            value.integer = (int64_t)value.number;
        }
    } else if (cJSON_IsArray(node)) { /* a list is what the query spells so */
        cJSON_ArrayForEach(item, node)
        {
            if (!cJSON_IsNumber(item) || at + 24 >= sizeof list)
                return roped_fail(err, ROPED_INVALID,
                                  "parameter '%.64s': expected a short list of "
                                  "integers",
                                  node->string);
            at += (size_t)snprintf(list + at, sizeof list - at, "%s%.0f",
                                   at ? "," : "", item->valuedouble);
        }
        value.kind = ROPED_VALUE_TEXT;
        value.text = list;
    } else {
        return roped_fail(err, ROPED_INVALID,
                          "parameter '%.64s': expected a string, number or "
                          "boolean",
                          node->string);
    }
    return roped_call_set_param(call, node->string, &value, err);
}

static enum roped_status read_param(struct roped_call *call,
                                    const struct cJSON *node,
                                    struct kserve_request *out,
                                    struct roped_error *err)
{
    const char *name = node->string;
    if (strcmp(name, "binary_data_output") == 0) {
        out->binary_output = cJSON_IsTrue(node);
        return ROPED_OK;
    }
    if (strcmp(name, "timeout") == 0 || strcmp(name, "priority") == 0)
        return ROPED_OK;
    if (strcmp(name, "table") == 0) {
        if (!cJSON_IsString(node) ||
            strlen(node->valuestring) >= sizeof out->table)
            return roped_fail(err, ROPED_INVALID,
                              "parameter 'table': expected the name of a "
                              "table");
        memcpy(out->table, node->valuestring, strlen(node->valuestring) + 1);
        return ROPED_OK;
    }
    if (strncmp(name, "sequence_", 9) == 0 || strncmp(name, "triton_", 7) == 0)
        return roped_fail(err, ROPED_INVALID,
                          "parameter '%.64s' is not supported: calls are "
                          "independent of each other",
                          name);
    return set_operator_param(call, node, err);
}

/* ----------------------------------------------------------------- inputs */

static enum roped_status refuse_shared_memory(const struct cJSON *params,
                                              struct roped_error *err)
{
    const struct cJSON *region = json_member(params, "shared_memory_region");
    if (!region)
        return ROPED_OK;
    return roped_fail(err, ROPED_NOT_FOUND,
                      "Unable to find shared memory region: '%.64s'",
                      cJSON_IsString(region) ? region->valuestring : "");
}

static enum roped_status read_shape(const struct cJSON *node, const char *name,
                                    struct roped_tensor *tensor,
                                    struct roped_error *err)
{
    const struct cJSON *dim;
    if (!cJSON_IsArray(node))
        return roped_fail(err, ROPED_INVALID,
                          "Unable to parse 'shape' of input '%s'", name);
    cJSON_ArrayForEach(dim, node)
    {
        uint64_t size;
        if (tensor->rank == ROPED_MAX_RANK)
            return roped_fail(err, ROPED_INVALID,
                              "tensor '%s': rank %d, expected at most %d", name,
                              cJSON_GetArraySize(node), ROPED_MAX_RANK);
        if (!json_is_size(dim, &size))
            return roped_fail(err, ROPED_INVALID,
                              "tensor '%s': dim %d is not an integer of 0 or "
                              "more",
                              name, tensor->rank);
        tensor->dims[tensor->rank++] = (int64_t)size;
    }
    return ROPED_OK;
}

static enum roped_status read_datatype(const struct roped_call *call,
                                       const struct cJSON *node, int port,
                                       struct roped_tensor *tensor,
                                       struct roped_error *err)
{
    char expected[96];
    const char *name = call->op->in[port].name;
    uint32_t types = roped_op_types(call->op, &call->op->in[port]);
    if (!cJSON_IsString(node))
        return roped_fail(err, ROPED_INVALID,
                          "Unable to parse 'datatype' of input '%s'", name);
    tensor->dtype =
        roped_dtype_from_v2_name(node->valuestring, strlen(node->valuestring));
    if (!tensor->dtype)
        return roped_fail(err, ROPED_INVALID, "invalid datatype for input %s",
                          name);
    if (!(types & ROPED_SET(tensor->dtype)))
        return roped_fail(
            err, ROPED_INVALID,
            "inference input '%s' data-type is '%s', but model "
            "'%s' expects '%s'",
            name, node->valuestring, model_of(call),
            roped_dtype_set_text(types, expected, sizeof expected));
    return ROPED_OK;
}

/* Where an input's values are: exactly one of data and binary_data_size. */
static enum roped_status
place_input(struct roped_call *call, const struct cJSON *node, int port,
            struct roped_tensor *tensor, unsigned char *binary,
            uint64_t binary_bytes, struct kserve_request *out,
            struct roped_error *err)
{
    const char *name = call->op->in[port].name;
    const struct cJSON *params = json_member(node, "parameters");
    const struct cJSON *size = json_member(params, "binary_data_size");
    const struct cJSON *data = json_member(node, "data");
    uint64_t bytes;
    int64_t n_elements, n_bytes;
    enum roped_status status = refuse_shared_memory(params, err);
    if (!status)
        status = roped_tensor_size(tensor, name, &n_elements, &n_bytes, err);
    if (status)
        return status;
    if (!size == !data)
        return roped_fail(err, ROPED_INVALID,
                          "Input must set only one of the following fields: "
                          "'data', 'binary_data_size' in 'parameters', "
                          "'shared_memory_region' in 'parameters'. But input "
                          "'%s' has %s",
                          name, size ? "both" : "none");
    if (data) {
        if (tensor->dtype == ROPED_F16 || tensor->dtype == ROPED_BF16)
            return roped_fail(err, ROPED_INVALID,
                              "receiving %s data via JSON is not supported for "
                              "input '%s'. Please use the binary data format "
                              "(binary_data_size)",
                              roped_dtype_v2_name(tensor->dtype), name);
        out->in_json[port] = true;
        out->json_tensor_bytes += ((uint64_t)n_bytes + 15) / 16 * 16;
        return ROPED_OK;
    }
    if (!json_is_size(size, &bytes))
        return roped_fail(err, ROPED_INVALID,
                          "Unable to parse 'binary_data_size' of input '%s'",
                          name);
    if (bytes != (uint64_t)n_bytes)
        return roped_fail(err, ROPED_INVALID,
                          "input byte size mismatch for input '%s' for model "
                          "'%s'. Expected %lld, got %llu",
                          name, model_of(call), (long long)n_bytes,
                          (unsigned long long)bytes);
    if (bytes > binary_bytes - out->binary_bytes)
        return roped_fail(
            err, ROPED_INVALID,
            "unexpected size for input '%s', expecting %llu "
            "additional bytes for model '%s'",
            name,
            (unsigned long long)(bytes - (binary_bytes - out->binary_bytes)),
            model_of(call));
    tensor->data = binary ? binary + out->binary_bytes : NULL;
    out->binary_bytes += bytes;
    return ROPED_OK;
}

static enum roped_status
read_input(struct roped_call *call, const struct cJSON *node,
           unsigned char *binary, uint64_t binary_bytes,
           struct kserve_request *out, struct roped_error *err)
{
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
        read_datatype(call, json_member(node, "datatype"), port, &tensor, err);
    if (!status)
        status = read_shape(json_member(node, "shape"), name->valuestring,
                            &tensor, err);
    if (!status)
        status = place_input(call, node, port, &tensor, binary, binary_bytes,
                             out, err);
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

static enum roped_status read_output(const struct roped_call *call,
                                     const struct cJSON *node,
                                     struct kserve_request *out,
                                     struct roped_error *err)
{
    const struct cJSON *name = json_member(node, "name");
    const struct cJSON *params = json_member(node, "parameters");
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
    if (json_member(params, "classification"))
        return roped_fail(err, ROPED_INVALID,
                          "output '%s': classification is not supported",
                          name->valuestring);
    enum roped_status status = refuse_shared_memory(params, err);
    if (status)
        return status;
    out->output[out->n_outputs].port = port;
    out->output[out->n_outputs++].is_binary =
        cJSON_IsTrue(json_member(params, "binary_data"));
    return ROPED_OK;
}

static enum roped_status read_tree(struct roped_call *call,
                                   const struct cJSON *tree,
                                   unsigned char *binary, uint64_t binary_bytes,
                                   struct kserve_request *out,
                                   struct roped_error *err)
{
    const struct cJSON *node, *id = json_member(tree, "id");
    const struct cJSON *inputs = json_member(tree, "inputs");
    const struct cJSON *outputs = json_member(tree, "outputs");
    enum roped_status status = ROPED_OK;
    if (!cJSON_IsObject(tree) || !cJSON_IsArray(inputs))
        return roped_fail(err, ROPED_INVALID,
                          "Unable to parse 'inputs': expected an array");
    if (cJSON_IsString(id))
        snprintf(out->id, sizeof out->id, "%s", id->valuestring);
    cJSON_ArrayForEach(node, json_member(tree, "parameters"))
    {
        if (!status)
            status = read_param(call, node, out, err);
    }
    cJSON_ArrayForEach(node, inputs)
    {
        if (!status)
            status = read_input(call, node, binary, binary_bytes, out, err);
    }
    cJSON_ArrayForEach(node, outputs)
    {
        if (!status)
            status = read_output(call, node, out, err);
    }
    if (!status && out->binary_bytes != binary_bytes)
        status =
            roped_fail(err, ROPED_INVALID,
                       "unexpected additional input data for model '%s': "
                       "%llu bytes are left over",
                       model_of(call),
                       (unsigned long long)(binary_bytes - out->binary_bytes));
    return status ? status : check_required(call, err);
}

enum roped_status kserve_read_request(struct roped_call *call, const char *json,
                                      size_t json_bytes, void *binary,
                                      uint64_t binary_bytes,
                                      struct kserve_request *out,
                                      struct roped_error *err)
{
    struct cJSON *tree;
    memset(out, 0, sizeof *out);
    enum roped_status status = json_parse(json, json_bytes, &tree, err);
    if (status)
        return status;
    status = read_tree(call, tree, binary, binary_bytes, out, err);
    json_free(tree);
    return status;
}

/* ----------------------------------------------------------- JSON tensors */

static enum roped_status store_number(const struct roped_tensor *tensor,
                                      const char *name, int64_t i, double value,
                                      struct roped_error *err)
{
    unsigned char *at = (unsigned char *)tensor->data +
                        (size_t)i * roped_dtype_bytes(tensor->dtype);
    if (tensor->dtype == ROPED_F32) {
        float narrow = (float)value;
        memcpy(at, &narrow, sizeof narrow);
        return ROPED_OK;
    }
    bool is_i32 = tensor->dtype == ROPED_I32;
    double limit = is_i32 ? 0x1p31 : 0x1p53;
    if (!(ROPED_SET(tensor->dtype) & ROPED_INDEXES) || value != floor(value) ||
        value < -limit || value >= limit)
        return roped_fail(err, ROPED_INVALID,
                          "tensor '%s': value %.17g at index %lld is no %s",
                          name, value, (long long)i,
                          roped_dtype_v2_name(tensor->dtype));
    int64_t wide = (int64_t)value;
    int32_t narrow = (int32_t)(is_i32 ? wide : 0);
    memcpy(at, is_i32 ? (const void *)&narrow : (const void *)&wide,
           roped_dtype_bytes(tensor->dtype));
    return ROPED_OK;
}

/* Nested or flat, row-major. */
static enum roped_status store_values(const struct roped_tensor *tensor,
                                      const char *name,
                                      const struct cJSON *node, int64_t *n,
                                      struct roped_error *err)
{
    const struct cJSON *item;
    enum roped_status status = ROPED_OK;
    cJSON_ArrayForEach(item, node)
    {
        if (status)
            return status;
        if (cJSON_IsArray(item)) {
            status = store_values(tensor, name, item, n, err);
            continue;
        }
        if (*n >= roped_tensor_elements(tensor))
            return roped_fail(err, ROPED_INVALID,
                              "Shape does not match true shape of 'data' field "
                              "of input '%s': more than %lld values",
                              name, (long long)roped_tensor_elements(tensor));
        if (!cJSON_IsNumber(item))
            return roped_fail(err, ROPED_INVALID,
                              "tensor '%s': value at index %lld is no number",
                              name, (long long)*n);
        status = store_number(tensor, name, (*n)++, item->valuedouble, err);
    }
    return status;
}

static enum roped_status store_tensors(struct roped_call *call,
                                       const struct cJSON *tree,
                                       const struct kserve_request *request,
                                       unsigned char *memory,
                                       struct roped_error *err)
{
    const struct cJSON *node;
    cJSON_ArrayForEach(node, json_member(tree, "inputs"))
    {
        const char *name = json_member(node, "name")->valuestring;
        int port = roped_op_input(call->op, name);
        struct roped_tensor *tensor = &call->in[port];
        int64_t n = 0;
        if (!request->in_json[port])
            continue;
        tensor->data = memory;
        memory += ((size_t)roped_tensor_bytes(tensor) + 15) / 16 * 16;
        enum roped_status status =
            store_values(tensor, name, json_member(node, "data"), &n, err);
        if (status)
            return status;
        if (n != roped_tensor_elements(tensor))
            return roped_fail(err, ROPED_INVALID,
                              "Shape does not match true shape of 'data' field "
                              "of input '%s': %lld values, expected %lld",
                              name, (long long)n,
                              (long long)roped_tensor_elements(tensor));
    }
    return ROPED_OK;
}

enum roped_status kserve_read_json_tensors(struct roped_call *call,
                                           const char *json, size_t json_bytes,
                                           const struct kserve_request *request,
                                           void *memory,
                                           struct roped_error *err)
{
    struct cJSON *tree;
    enum roped_status status = json_parse(json, json_bytes, &tree, err);
    if (status)
        return status;
    status = store_tensors(call, tree, request, memory, err);
    json_free(tree);
    return status;
}

/* ---------------------------------------------------------------- answers */

enum roped_status kserve_check_outputs(const struct roped_call *call,
                                       struct kserve_request *request,
                                       struct roped_error *err)
{
    if (request->n_outputs == 0)
        for (int i = 0; i < roped_op_outputs(call->op); i++) {
            if (!roped_tensor_given(&call->out[i]))
                continue;
            request->output[request->n_outputs].port = i;
            request->output[request->n_outputs++].is_binary =
                request->binary_output;
        }
    for (int i = 0; i < request->n_outputs; i++) {
        int port = request->output[i].port;
        const char *name = call->op->out[port].name;
        enum roped_dtype dtype = call->out[port].dtype;
        if (!roped_tensor_given(&call->out[port]))
            return roped_fail(err, ROPED_INVALID,
                              "unexpected inference output '%s' for model "
                              "'%s': it needs input '%s'",
                              name, model_of(call),
                              call->op->out[port].requires_);
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
        if (!request->output[i].is_binary)
            return false;
    return true;
}

static bool is_fp8(enum roped_dtype dtype)
{
    return ROPED_SET(dtype) & ROPED_FP8S;
}

static void write_values(struct buffer *buffer,
                         const struct roped_tensor *tensor)
{
    int64_t n = roped_tensor_elements(tensor);
    buffer_text(buffer, ",\"data\":[");
    for (int64_t i = 0; i < n; i++) {
        const unsigned char *at = (const unsigned char *)tensor->data +
                                  (size_t)i * roped_dtype_bytes(tensor->dtype);
        if (i)
            buffer_text(buffer, ",");
        if (tensor->dtype == ROPED_F32) {
            float value;
            memcpy(&value, at, sizeof value);
            buffer_float(buffer, value);
        } else {
            buffer_printf(buffer, "%u", *at); /* FP8 codes */
        }
    }
    buffer_text(buffer, "]");
}

static void write_output(struct buffer *buffer, const struct roped_call *call,
                         int port, bool is_binary, uint64_t bytes)
{
    const struct roped_tensor *tensor = &call->out[port];
    buffer_text(buffer, "{\"name\":");
    buffer_json_string(buffer, call->op->out[port].name);
    buffer_printf(buffer, ",\"datatype\":\"%s\",\"shape\":[",
                  roped_dtype_v2_name(tensor->dtype));
    for (int i = 0; i < tensor->rank; i++)
        buffer_printf(buffer, "%s%lld", i ? "," : "",
                      (long long)tensor->dims[i]);
    buffer_text(buffer, "]");
    if (!is_binary) {
        write_values(buffer, tensor);
    } else {
        buffer_printf(buffer, ",\"parameters\":{\"binary_data_size\":%llu",
                      (unsigned long long)bytes);
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
    buffer_printf(buffer, "\"model_name\":\"%s\",\"model_version\":\"1\"",
                  model_of(call));
    write_hints(buffer, call, request);
    buffer_text(buffer, ",\"outputs\":[");
    for (int i = 0; i < request->n_outputs; i++) {
        int port = request->output[i].port;
        uint64_t bytes = (uint64_t)roped_tensor_bytes(&call->out[port]);
        offset[port] = at;
        buffer_text(buffer, i ? "," : "");
        write_output(buffer, call, port, request->output[i].is_binary, bytes);
        at += request->output[i].is_binary ? bytes : 0;
    }
    buffer_text(buffer, "]}");
    *binary_bytes = at;
    if (buffer->has_failed)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for the answer");
    return ROPED_OK;
}
