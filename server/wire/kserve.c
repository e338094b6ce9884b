/*
 * kserve.c - v2 inference requests.
 *
 * Of the protocol's request parameters, 'timeout' is for the caller,
 * 'priority' is accepted and ignored, as are those of a list that clients of
 * other servers send; sequences and classification are refused by name; every
 * other parameter is the model's.
 */
#include "wire/kserve.h"

#include "wire/json_reader.h"
#include "wire/kserve_data.h"
#include "wire/kserve_params.h"
#include "wire/kserve_region.h"
#include "wire/kserve_tensor.h"
#include "wire/param_json.h"

#include <stdio.h>
#include <string.h>

enum {
    PLACE_ALIGNMENT = 16, /* of JSON tensors in their memory */
    NAME_BYTES = 80,      /* of names for messages: longer than any known */
    LIST_BYTES = 128,     /* of several names for messages */
    MAX_NAMES = 128       /* in JSON objects that are open at once */
};

/* A request that is being read. */
struct reading {
    const struct signature *signature;
    const struct kserve_body *body;
    struct kserve_request *out;
};

static const char *input_name(const struct reading *reading, int port)
{
    return signature_tensor(reading->signature, false, port);
}

/* Bytes that a JSON tensor takes of the memory for all of them. */
static uint64_t place_bytes(const struct roped_tensor *tensor)
{
    uint64_t bytes = (uint64_t)roped_tensor_bytes(tensor);
    return (bytes + PLACE_ALIGNMENT - 1) / PLACE_ALIGNMENT * PLACE_ALIGNMENT;
}

/* ------------------------------------------------------------- parameters */

static bool is_present(const struct json_reader *member)
{
    return json_kind(member) != JSON_NOTHING;
}

/* A member that says yes or no; absent is no. */
static enum roped_status read_flag(const struct json_reader *flag,
                                   const char *name, bool *out,
                                   struct roped_error *err)
{
    char found[64];
    enum json_kind kind = json_kind(flag);
    *out = kind == JSON_TRUE;
    if (kind == JSON_TRUE || kind == JSON_FALSE || kind == JSON_NOTHING)
        return ROPED_OK;
    return roped_fail(err, ROPED_INVALID,
                      "Unable to parse '%s': %s, expected true or false", name,
                      json_describe(flag, found, sizeof found));
}

static enum roped_status read_table(struct json_reader *json,
                                    struct kserve_request *out,
                                    struct roped_error *err)
{
    char found[64];
    struct json_reader value = *json;
    struct json_string string;
    if (json_read_string(json, &string)) {
        size_t bytes = json_copy(&string, out->table, sizeof out->table);
        if (bytes > 0 && bytes < sizeof out->table)
            return ROPED_OK;
    }
    return roped_fail(err, ROPED_BAD_PARAMETER,
                      "parameter 'table': %s, expected the name of a table",
                      json_describe(&value, found, sizeof found));
}

/* 'timeout' or 'priority'. */
static enum roped_status read_count(struct json_reader *json, const char *name,
                                    uint64_t *out, struct roped_error *err)
{
    char found[64];
    if (json_read_size(json, out))
        return ROPED_OK;
    return roped_fail(err, ROPED_BAD_PARAMETER,
                      "parameter '%s': %s, expected an integer of 0 or more",
                      name, json_describe(json, found, sizeof found));
}

static enum roped_status read_param(struct reading *reading, const char *name,
                                    struct json_reader *json,
                                    struct roped_error *err)
{
    const struct json_reader value = *json;
    uint64_t priority;
    if (strcmp(name, "binary_data_output") == 0) {
        json_skip(json);
        return read_flag(&value, name, &reading->out->binary_output, err);
    }
    if (strcmp(name, "timeout") == 0)
        return read_count(json, name, &reading->out->timeout_us, err);
    if (strcmp(name, "priority") == 0)
        return read_count(json, name, &priority, err);
    if (strcmp(name, "table") == 0)
        return read_table(json, reading->out, err);
    if (kserve_is_of_another_server(name)) {
        json_skip(json);
        return ROPED_OK;
    }
    if (strncmp(name, "sequence_", 9) == 0)
        return roped_fail(err, ROPED_BAD_PARAMETER,
                          "parameter '%.64s' is not supported: calls are "
                          "independent of each other",
                          name);
    if (strncmp(name, "triton_", 7) == 0)
        return roped_fail(err, ROPED_BAD_PARAMETER,
                          "parameter '%.64s' is not supported: names with "
                          "'triton_' are reserved",
                          name);
    return param_json_read(reading->signature, name, json, &reading->out->texts,
                           err);
}

static enum roped_status read_params(struct reading *reading,
                                     struct json_reader *json,
                                     struct roped_error *err)
{
    char name[NAME_BYTES];
    struct json_string string;
    enum roped_status status = kserve_check_params(json, err);
    if (status)
        return status;
    json_open(json);
    while (!status && json_next_name(json, &string)) {
        json_copy(&string, name, sizeof name);
        status = read_param(reading, name, json, err);
    }
    return status;
}

/* ----------------------------------------------------------------- inputs */

/* Checks the values; they are converted once there is memory for them. */
static enum roped_status place_json(struct reading *reading,
                                    struct json_reader *data, int port,
                                    const struct roped_tensor *tensor,
                                    struct roped_error *err)
{
    const char *name = input_name(reading, port);
    if (tensor->dtype == ROPED_F16 || tensor->dtype == ROPED_BF16)
        return roped_fail(err, ROPED_INVALID,
                          "receiving %s data via JSON is not supported for "
                          "input '%s'. Please use the binary data format "
                          "(binary_data_size)",
                          roped_dtype_v2_name(tensor->dtype), name);
    reading->out->data_at[port] = json_offset(data);
    enum roped_status status = kserve_read_values(tensor, name, data, err);
    if (status)
        return status;
    /* no overflow: the JSON holds every one of the elements */
    reading->out->json_tensor_bytes += place_bytes(tensor);
    return ROPED_OK;
}

static enum roped_status place_binary(struct reading *reading,
                                      struct json_reader *size, int port,
                                      struct roped_tensor *tensor,
                                      struct roped_error *err)
{
    const char *name = input_name(reading, port);
    const char *model = reading->signature->name;
    struct kserve_request *out = reading->out;
    uint64_t bytes, left = reading->body->binary_bytes - out->binary_bytes;
    uint64_t expected = (uint64_t)roped_tensor_bytes(tensor);
    if (!json_read_size(size, &bytes))
        return roped_fail(err, ROPED_INVALID,
                          "Unable to parse 'binary_data_size' of input '%s'",
                          name);
    if (bytes != expected)
        return roped_fail(err, ROPED_BAD_SHAPE,
                          "input byte size mismatch for input '%s' for model "
                          "'%s'. Expected %llu, got %llu",
                          name, model, (unsigned long long)expected,
                          (unsigned long long)bytes);
    if (bytes > left)
        return roped_fail(err, ROPED_BAD_SHAPE,
                          "unexpected size for input '%s', expecting %llu "
                          "additional bytes for model '%s'",
                          name, (unsigned long long)(bytes - left), model);
    if (reading->body->binary)
        tensor->data = reading->body->binary + out->binary_bytes;
    out->binary_bytes += bytes;
    return ROPED_OK;
}

/* Where an input's values are: in exactly one of three places. */
static enum roped_status place_input(struct reading *reading, int port,
                                     struct json_reader *params,
                                     struct json_reader *data,
                                     struct roped_tensor *tensor,
                                     struct roped_error *err)
{
    enum { SIZE = KSERVE_REGION_PARAMS, N_PARAMS };
    static const char *const names[] = {KSERVE_REGION_NAMES,
                                        "binary_data_size"};
    const struct signature *signature = reading->signature;
    struct json_reader param[N_PARAMS];
    struct region_refs *refs = &reading->out->regions;
    enum roped_status status =
        kserve_find_params(params, names, N_PARAMS, param, err);
    if (status)
        return status;
    bool has_size = is_present(&param[SIZE]), has_data = is_present(data);
    bool has_region = is_present(&param[KSERVE_REGION]);
    status = kserve_read_region(signature, false, port, param, refs, err);
    if (status)
        return status;
    if (has_size + has_data + has_region != 1)
        return roped_fail(err, ROPED_INVALID,
                          "Input must set only one of the following fields: "
                          "'data', 'binary_data_size' in 'parameters', "
                          "'shared_memory_region' in 'parameters'. But input "
                          "'%s' has %s",
                          input_name(reading, port),
                          has_size || has_data ? "several" : "none");
    if (has_region) {
        const struct region_ref *ref = region_refs_of(refs, false, port);
        tensor->stride = ref->tensor.stride;
        return kserve_check_region_input(signature, tensor, ref, err);
    }
    return has_data ? place_json(reading, data, port, tensor, err)
                    : place_binary(reading, &param[SIZE], port, tensor, err);
}

/* The name of an input or output; false: it has none. */
static bool read_name(struct json_reader *member, char name[NAME_BYTES])
{
    struct json_string string;
    if (!json_read_string(member, &string))
        return false;
    json_copy(&string, name, NAME_BYTES);
    return true;
}

/* As Triton begins it, and then what there is. */
static enum roped_status unexpected_input(const struct signature *signature,
                                          const char *name,
                                          struct roped_error *err)
{
    char list[ROPED_ERROR_BYTES - 160];
    return roped_fail(err, ROPED_UNKNOWN_NAME,
                      "unexpected inference input '%.64s' for model '%s', "
                      "expected %s",
                      name, signature->name,
                      signature_list(signature, false, list, sizeof list));
}

static enum roped_status read_input(struct reading *reading,
                                    struct json_reader *json,
                                    struct roped_error *err)
{
    enum { NAME, DATATYPE, SHAPE, PARAMS, DATA, N_MEMBERS };
    static const char *const names[] = {"name", "datatype", "shape",
                                        "parameters", "data"};
    struct json_reader member[N_MEMBERS];
    const struct signature *signature = reading->signature;
    struct roped_tensor tensor = {.data = NULL};
    char name[NAME_BYTES];
    json_find(json, names, N_MEMBERS, member);
    if (!read_name(&member[NAME], name))
        return roped_fail(err, ROPED_INVALID,
                          "Unable to parse 'inputs': an input has no 'name'");
    int port = signature_find(signature, false, name);
    if (port < 0)
        return unexpected_input(signature, name, err);
    if (signature_has_input(signature, port))
        return roped_fail(err, ROPED_INVALID,
                          "input '%s' already exists in request", name);
    enum roped_status status = kserve_read_tensor(
        signature, port, &member[DATATYPE], &member[SHAPE], &tensor, err);
    if (!status)
        status = place_input(reading, port, &member[PARAMS], &member[DATA],
                             &tensor, err);
    return status ? status : signature_bind(signature, name, &tensor, err);
}

static enum roped_status read_inputs(struct reading *reading,
                                     struct json_reader *json,
                                     struct roped_error *err)
{
    enum roped_status status = ROPED_OK;
    if (json_kind(json) != JSON_ARRAY)
        return roped_fail(err, ROPED_INVALID,
                          "Unable to parse 'inputs': expected an array");
    json_open(json);
    while (!status && json_next(json))
        status = read_input(reading, json, err);
    return status;
}

/* "'q','k'": the inputs that are given, or else those that are missing; returns
 * their number. */
static int list_inputs(const struct signature *signature, bool are_given,
                       char text[LIST_BYTES])
{
    size_t at = 0;
    int n = 0;
    text[0] = '\0';
    for (int i = 0; i < signature_count(signature, false); i++) {
        if (signature_has_input(signature, i) != are_given ||
            (!are_given && signature_is_optional(signature, i)))
            continue;
        n++;
        if (at < LIST_BYTES)
            at += (size_t)snprintf(text + at, LIST_BYTES - at, "%s'%s'",
                                   at ? "," : "",
                                   signature_tensor(signature, false, i));
    }
    return n;
}

/* The phrase that v2 clients know, with every name that is missing. */
static enum roped_status check_required(const struct signature *signature,
                                        struct roped_error *err)
{
    char got[LIST_BYTES], missing[LIST_BYTES], count[64];
    int n = signature_count(signature, false), n_required = 0;
    if (list_inputs(signature, false, missing) == 0)
        return ROPED_OK;
    for (int i = 0; i < n; i++)
        n_required += !signature_is_optional(signature, i);
    if (n_required == n)
        snprintf(count, sizeof count, "%d inputs", n);
    else
        snprintf(count, sizeof count, "number of inputs between %d and %d",
                 n_required, n);
    int n_got = list_inputs(signature, true, got);
    return roped_fail(err, ROPED_INVALID,
                      "expected %s but got %d inputs for model '%s'. Got "
                      "input(s) [%s], but missing required input(s) [%s]. "
                      "Please provide all required input(s).",
                      count, n_got, signature->name, got, missing);
}

/* ---------------------------------------------------------------- outputs */

static enum roped_status read_output_params(struct reading *reading,
                                            struct json_reader *params,
                                            int port, bool *is_binary,
                                            struct roped_error *err)
{
    enum { BINARY = KSERVE_REGION_PARAMS, CLASSIFICATION, N_PARAMS };
    static const char *const names[] = {KSERVE_REGION_NAMES, "binary_data",
                                        "classification"};
    struct json_reader param[N_PARAMS];
    enum roped_status status =
        kserve_find_params(params, names, N_PARAMS, param, err);
    if (!status)
        status = kserve_read_region(reading->signature, true, port, param,
                                    &reading->out->regions, err);
    if (!status && is_present(&param[CLASSIFICATION]))
        status = roped_fail(err, ROPED_INVALID,
                            "output '%s': classification is not supported",
                            signature_tensor(reading->signature, true, port));
    return status ? status
                  : read_flag(&param[BINARY], "binary_data", is_binary, err);
}

static enum roped_status read_output(struct reading *reading,
                                     struct json_reader *json,
                                     struct roped_error *err)
{
    static const char *const names[] = {"name", "parameters"};
    struct json_reader member[2];
    const struct signature *signature = reading->signature;
    struct kserve_request *out = reading->out;
    char name[NAME_BYTES];
    json_find(json, names, 2, member);
    if (!read_name(&member[0], name))
        return roped_fail(err, ROPED_INVALID,
                          "Unable to parse 'outputs': an output has no 'name'");
    int port = signature_find(signature, true, name);
    if (port < 0)
        return roped_fail(err, ROPED_UNKNOWN_NAME,
                          "unexpected inference output '%.64s' for model '%s'",
                          name, signature->name);
    for (int i = 0; i < out->n_outputs; i++)
        if (out->output[i].port == port)
            return roped_fail(err, ROPED_INVALID,
                              "output '%s' already exists in request", name);
    int i = out->n_outputs++;
    out->output[i].port = port;
    return read_output_params(reading, &member[1], port,
                              &out->output[i].is_binary, err);
}

static enum roped_status read_outputs(struct reading *reading,
                                      struct json_reader *json,
                                      struct roped_error *err)
{
    enum roped_status status = ROPED_OK;
    if (json_kind(json) == JSON_NULL)
        json_skip(json);
    else if (json_kind(json) != JSON_ARRAY)
        status = roped_fail(err, ROPED_INVALID,
                            "Unable to parse 'outputs': expected an array");
    else if (json_open(json))
        while (!status && json_next(json))
            status = read_output(reading, json, err);
    return status;
}

/* ---------------------------------------------------------------- requests */

/* Echoed as it is, so it must fit; "" is what a client sends for none. */
static enum roped_status read_id(struct json_reader *json,
                                 struct kserve_request *out,
                                 struct roped_error *err)
{
    char found[64];
    struct json_string string;
    if (json_kind(json) == JSON_NULL) {
        json_skip(json);
        return ROPED_OK;
    }
    if (!json_read_string(json, &string))
        return roped_fail(err, ROPED_INVALID,
                          "Unable to parse 'id': %s, expected a string",
                          json_describe(json, found, sizeof found));
    size_t bytes = json_copy(&string, out->id, sizeof out->id);
    if (bytes < sizeof out->id)
        return ROPED_OK;
    return roped_fail(err, ROPED_INVALID,
                      "Unable to parse 'id': %zu bytes, expected at most %zu",
                      bytes, sizeof out->id - 1);
}

/* The members of a request, in the order in which they come. */
static enum roped_status read_members(struct reading *reading,
                                      struct json_reader *json,
                                      bool *has_inputs, struct roped_error *err)
{
    enum roped_status status = ROPED_OK;
    struct json_string name;
    *has_inputs = false;
    if (json_kind(json) != JSON_OBJECT) {
        json_skip(json);
        return ROPED_OK;
    }
    json_open(json);
    while (!status && json_next_name(json, &name)) {
        if (json_equals(&name, "inputs")) {
            *has_inputs = true;
            status = read_inputs(reading, json, err);
        } else if (json_equals(&name, "outputs")) {
            status = read_outputs(reading, json, err);
        } else if (json_equals(&name, "parameters")) {
            status = read_params(reading, json, err);
        } else if (json_equals(&name, "id")) {
            status = read_id(json, reading->out, err);
        } else {
            json_skip(json);
        }
    }
    return status;
}

static enum roped_status read_request(struct reading *reading,
                                      struct json_reader *json,
                                      struct roped_error *err)
{
    bool has_inputs;
    enum roped_status status = read_members(reading, json, &has_inputs, err);
    status = json_end(json, status, err);
    if (!status && !has_inputs)
        status = roped_fail(err, ROPED_INVALID,
                            "Unable to parse 'inputs': expected an array");
    if (!status && json->nan != JSON_NOWHERE)
        status = json_refuse_nan(json, err);
    if (!status)
        status = check_required(reading->signature, err);
    uint64_t left = reading->body->binary_bytes - reading->out->binary_bytes;
    if (!status && left > 0)
        status = roped_fail(err, ROPED_INVALID,
                            "unexpected additional input data for model '%s': "
                            "%llu bytes are left over",
                            reading->signature->name, (unsigned long long)left);
    return status;
}

enum roped_status kserve_read_request(const struct signature *signature,
                                      const struct kserve_body *body,
                                      struct kserve_request *out,
                                      struct roped_error *err)
{
    struct reading reading = {signature, body, out};
    struct json_string names[MAX_NAMES];
    struct json_reader reader;
    memset(out, 0, offsetof(struct kserve_request, regions));
    out->regions.n = 0;
    out->texts.bytes = 0;
    json_reader_init(&reader, body->json, body->json_bytes, JSON_V2_DEPTH,
                     names, MAX_NAMES);
    return read_request(&reading, &reader, err);
}

enum roped_status kserve_read_json_tensors(const struct signature *signature,
                                           const char *json, size_t json_bytes,
                                           const struct kserve_request *request,
                                           void *memory,
                                           struct roped_error *err)
{
    unsigned char *to = memory;
    struct json_reader data;
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < signature_count(signature, false) && !status; i++) {
        size_t at = request->data_at[i];
        if (at == 0)
            continue;
        struct roped_tensor tensor = *signature_input(signature, i);
        json_reader_init(&data, json + at, json_bytes - at, JSON_V2_DEPTH, NULL,
                         0);
        tensor.data = to;
        to += place_bytes(&tensor);
        signature_set_data(signature, i, tensor.data);
        status = kserve_read_values(
            &tensor, signature_tensor(signature, false, i), &data, err);
    }
    return status;
}
