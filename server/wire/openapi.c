/*
 * openapi.c - the OpenAPI document: the operators' part from the table, the
 * rest from a list of routes.
 */
#include "wire/openapi.h"

#include "wire/kserve_meta.h"

#include <roped/op.h>

#include <stdio.h>
#include <string.h>

#define SAFETENSORS_CONTENT                                                    \
    "\"content\":{\"application/x-safetensors\":{\"schema\":{\"type\":"        \
    "\"string\",\"format\":\"binary\"}}}"
#define JSON_CONTENT "\"content\":{\"application/json\":{}}"

/* The schema of a parameter in a query string. */
static void write_schema(struct buffer *buffer, const struct roped_param *param)
{
    switch (param->kind) {
    case ROPED_PARAM_FLOAT:
        buffer_text(buffer, "{\"type\":\"number\"");
        break;
    case ROPED_PARAM_INT:
        buffer_text(buffer, "{\"type\":\"integer\"");
        break;
    case ROPED_PARAM_BOOL:
        buffer_text(buffer, "{\"type\":\"boolean\"");
        break;
    case ROPED_PARAM_CHOICE:
    case ROPED_PARAM_DTYPE:
        buffer_text(buffer, "{\"type\":\"string\",\"enum\":");
        describe_write_choices(buffer, param);
        break;
    case ROPED_PARAM_INTS:
        buffer_printf(buffer,
                      "{\"type\":\"string\",\"pattern\":"
                      "\"^([0-9]+(,[0-9]+){0,%d})%s$\"",
                      roped_param_ints(param) - 1, param->shape ? "?" : "");
        break;
    }
    describe_write_default(buffer, param);
    describe_write_bounds(buffer, param, "minimum", "exclusiveMinimum",
                          "maximum");
    buffer_text(buffer, "}");
}

/* "security" of an operation, with a comma behind it. */
static void write_security(struct buffer *buffer, const char *method,
                           const char *path, openapi_scope_fn *scope_of)
{
    const char *scope = scope_of ? scope_of(method, path) : NULL;
    if (!scope_of)
        return;
    if (!scope)
        buffer_text(buffer, "\"security\":[],");
    else
        buffer_printf(buffer, "\"security\":[{\"bearer\":[%s%s%s]}],",
                      scope[0] ? "\"" : "", scope, scope[0] ? "\"" : "");
}

/* Its answers to whoever may not have it, with a comma before each. */
static void write_refusals(struct buffer *buffer, const char *method,
                           const char *path, openapi_scope_fn *scope_of)
{
    const char *scope = scope_of ? scope_of(method, path) : NULL;
    if (scope)
        buffer_text(buffer, ",\"401\":{\"$ref\":"
                            "\"#/components/responses/Unauthorized\"}");
    if (scope && scope[0])
        buffer_text(buffer, ",\"403\":{\"$ref\":"
                            "\"#/components/responses/Forbidden\"}");
}

/* "responses" of an operator but the closing bracket: the success object and
 * the failures. */
static void write_answers(struct buffer *buffer, const char *success)
{
    static const char *const failures[] = {"400", "404", "413", "503"};
    buffer_printf(buffer, "\"responses\":{\"200\":%s", success);
    for (size_t i = 0; i < sizeof failures / sizeof *failures; i++)
        buffer_printf(buffer,
                      ",\"%s\":{\"$ref\":\"#/components/responses/Error\"}",
                      failures[i]);
}

/* All of a query parameter but its schema and closing bracket. */
static void write_query_parameter(struct buffer *buffer, const char *separator,
                                  const char *name, const char *doc)
{
    buffer_printf(buffer,
                  "%s{\"name\":\"%s\",\"in\":\"query\",\"description\":",
                  separator, name);
    buffer_json_string(buffer, doc);
    buffer_text(buffer, ",\"schema\":");
}

/* Where tensors may be instead of in the body and in the answer. */
static void write_places(struct buffer *buffer, const struct roped_op *op)
{
    static const char string[] = "{\"type\":\"string\"}}";
    char name[ROPED_NAME_BYTES + 8];
    for (int i = 0; i < roped_op_inputs(op); i++) {
        snprintf(name, sizeof name, "from.%s", op->in[i].name);
        write_query_parameter(buffer, ",", name,
                              "region[:offset] that this input is in; shape. "
                              "and dtype. with the input's name say what the "
                              "region does not");
        buffer_text(buffer, string);
    }
    for (int i = 0; i < roped_op_outputs(op); i++) {
        snprintf(name, sizeof name, "into.%s", op->out[i].name);
        write_query_parameter(buffer, ",", name,
                              "region[:offset] that gets this output, which "
                              "is not sent then");
        buffer_text(buffer, string);
    }
}

static void write_query(struct buffer *buffer, const struct roped_op *op)
{
    buffer_text(buffer, ",\"parameters\":[");
    for (int i = 0; i < roped_op_params(op); i++) {
        write_query_parameter(buffer, i ? "," : "", op->param[i].name,
                              op->param[i].doc);
        write_schema(buffer, &op->param[i]);
        buffer_text(buffer, "}");
    }
    const char *separator = roped_op_params(op) ? "," : "";
    if (op->angles_offset != ROPED_NO_ANGLES) {
        write_query_parameter(buffer, separator, "table",
                              "angles of this named table");
        buffer_text(buffer, "{\"type\":\"string\"}}");
        separator = ",";
    }
    write_query_parameter(buffer, separator, "fp8",
                          "u8: name FP8 outputs U8, for readers without FP8");
    buffer_text(buffer, "{\"type\":\"string\",\"enum\":[\"native\",\"u8\"],"
                        "\"default\":\"native\"}}");
    write_places(buffer, op);
    buffer_text(buffer, "]");
}

static void write_op_get(struct buffer *buffer, const struct roped_op *op,
                         const char *path, openapi_scope_fn *scope_of)
{
    buffer_printf(buffer, "\"get\":{\"summary\":\"what %s takes and returns\",",
                  op->name);
    write_security(buffer, "get", path, scope_of);
    write_answers(
        buffer,
        "{\"description\":\"tensors, parameters and rules\"," JSON_CONTENT "}");
    write_refusals(buffer, "get", path, scope_of);
    buffer_text(buffer, "}}");
}

static void write_op(struct buffer *buffer, const struct roped_op *op,
                     const char *separator, openapi_scope_fn *scope_of)
{
    char path[ROPED_NAME_BYTES + 8];
    snprintf(path, sizeof path, "/v1/%s", op->name);
    buffer_printf(buffer, "%s\"%s\":{", separator, path);
    write_op_get(buffer, op, path, scope_of);
    buffer_text(buffer, ",\"post\":{");
    write_security(buffer, "post", path, scope_of);
    buffer_text(buffer, "\"summary\":");
    buffer_json_string(buffer, op->summary);
    if (op->rule_doc) {
        buffer_text(buffer, ",\"description\":");
        buffer_json_string(buffer, op->rule_doc);
    }
    write_query(buffer, op);
    buffer_text(buffer, ",\"requestBody\":{\"required\":true,"
                        "\"description\":\"the inputs, one safetensors "
                        "file\"," SAFETENSORS_CONTENT "},\"x-roped-inputs\":");
    describe_write_ports(buffer, op, true);
    buffer_text(buffer, ",\"x-roped-outputs\":");
    describe_write_ports(buffer, op, false);
    buffer_text(buffer, ",");
    write_answers(buffer, "{\"description\":\"the outputs, one safetensors "
                          "file\"," SAFETENSORS_CONTENT "}");
    write_refusals(buffer, "post", path, scope_of);
    buffer_text(buffer, "}}}");
}

/* ----------------------------------------------------------- other routes */

struct operation {
    const char *method, *summary;
    const char *code, *content; /* of success; content NULL: no body */
    const char *body;           /* content of the request, or NULL */
    bool may_lack_body;
};

enum { MAX_OPERATIONS = 3 };

/* A path, the names of its parameters ("model,version") or NULL, and what can
 * be done there. */
struct route {
    const char *path, *parameters;
    struct operation operation[MAX_OPERATIONS];
};

#define TEXT_CONTENT "\"content\":{\"text/plain\":{}}"
#define SCHEMA_OF(name)                                                        \
    "{\"schema\":{\"$ref\":\"#/components/schemas/" name "\"}}"
#define CONTENT_OF(name)                                                       \
    "\"content\":{\"application/json\":" SCHEMA_OF(name) "}"
#define INFER_CONTENT(name)                                                    \
    "\"content\":{\"application/json\":" SCHEMA_OF(                            \
        name) ",\"application/octet-stream\":{}}"

#define REGION_CONTENT                                                         \
    "\"content\":{\"application/x-safetensors\":{},\"application/octet-"       \
    "stream\":{}}"

/* clang-format off */
static const struct route routes[] = {
    {"/", NULL, {{"get", "where to look", "200", TEXT_CONTENT}}},
    {"/v1", NULL, {{"get", "the operators", "200", CONTENT_OF("Operators")}}},
    {"/v1/tables", NULL, {{"get", "the named rotary tables", "200", CONTENT_OF("Tables")}}},
    {"/v1/tables/{name}", "name", {
        {"get", "one named table", "200", CONTENT_OF("Table")},
        {"put", "make or replace a table: rope parameters, or a Hugging Face config.json", "2XX", CONTENT_OF("Tables"), CONTENT_OF("Table")},
        {"delete", "forget a table", "200", JSON_CONTENT}}},
    {"/v1/devices", NULL, {{"get", "the devices that calls run on, and what each has done", "200", CONTENT_OF("Devices")}}},
    {"/v1/regions", NULL, {{"get", "the regions: memory that stays on the server", "200", CONTENT_OF("Regions")}}},
    {"/v1/regions/{name}", "name", {
        {"get", "what is in a region: a safetensors file where it is a tensor, else its bytes", "200", REGION_CONTENT},
        {"put", "make or replace a region: one tensor, or zeros", "2XX", CONTENT_OF("Region"), SAFETENSORS_CONTENT, true},
        {"delete", "forget a region; calls that use it finish with it", "200", JSON_CONTENT}}},
    {"/v2", NULL, {{"get", "server metadata (KServe v2)", "200", CONTENT_OF("Server")}}},
    {"/v2/health/live", NULL, {{"get", "the process answers", "200", CONTENT_OF("Live")}}},
    {"/v2/health/ready", NULL, {{"get", "the server takes calls", "200", CONTENT_OF("Ready")}}},
    {"/v2/models/stats", NULL, {{"get", "statistics of every model", "200", CONTENT_OF("Statistics")}}},
    {"/v2/models/{model}", "model", {{"get", "model metadata", "200", CONTENT_OF("Model")}}},
    {"/v2/models/{model}/ready", "model", {{"get", "the model takes calls", "200", CONTENT_OF("ModelReady")}}},
    {"/v2/models/{model}/config", "model", {{"get", "model configuration", "200", CONTENT_OF("Config")}}},
    {"/v2/models/{model}/stats", "model", {{"get", "statistics of one model", "200", CONTENT_OF("Statistics")}}},
    {"/v2/models/{model}/infer", "model", {{"post", "inference: JSON, then binary tensors", "200", INFER_CONTENT("InferResponse"), INFER_CONTENT("InferRequest")}}},
    {"/v2/models/{model}/versions/{version}", "model,version", {{"get", "model metadata", "200", CONTENT_OF("Model")}}},
    {"/v2/models/{model}/versions/{version}/ready", "model,version", {{"get", "the model takes calls", "200", CONTENT_OF("ModelReady")}}},
    {"/v2/models/{model}/versions/{version}/config", "model,version", {{"get", "model configuration", "200", CONTENT_OF("Config")}}},
    {"/v2/models/{model}/versions/{version}/stats", "model,version", {{"get", "statistics of one model", "200", CONTENT_OF("Statistics")}}},
    {"/v2/models/{model}/versions/{version}/infer", "model,version", {{"post", "inference: JSON, then binary tensors", "200", INFER_CONTENT("InferResponse"), INFER_CONTENT("InferRequest")}}},
    {"/v2/models/{model}/trace/setting", "model", {
        {"get", "trace settings: off", "200", CONTENT_OF("TraceSettings")},
        {"post", "refused, unless it changes nothing", "200", CONTENT_OF("TraceSettings"), CONTENT_OF("TraceSettings"), true}}},
    {"/v2/trace/setting", NULL, {
        {"get", "trace settings: off", "200", CONTENT_OF("TraceSettings")},
        {"post", "refused, unless it changes nothing", "200", CONTENT_OF("TraceSettings"), CONTENT_OF("TraceSettings"), true}}},
    {"/v2/logging", NULL, {
        {"get", "log settings", "200", CONTENT_OF("LogSettings")},
        {"post", "change how much is logged", "200", CONTENT_OF("LogSettings"), CONTENT_OF("LogSettings"), true}}},
    {"/v2/repository/index", NULL, {{"post", "the models and their state", "200", CONTENT_OF("Index"), CONTENT_OF("IndexRequest"), true}}},
    {"/v2/repository/models/{model}/load", "model", {{"post", "the model is there: models are built in", "200", NULL, JSON_CONTENT, true}}},
    {"/v2/repository/models/{model}/unload", "model", {{"post", "refused: models are built in", "400", CONTENT_OF("Error")}}},
    {"/v2/systemsharedmemory/status", NULL, {{"get", "the system regions of clients", "200", CONTENT_OF("SharedMemory")}}},
    {"/v2/systemsharedmemory/unregister", NULL, {{"post", "forget every system region", "200", NULL}}},
    {"/v2/systemsharedmemory/region/{name}/status", "name", {{"get", "one system region", "200", CONTENT_OF("SharedMemory")}}},
    {"/v2/systemsharedmemory/region/{name}/register", "name", {{"post", "make memory of a client a region", "200", NULL, CONTENT_OF("SystemMemory")}}},
    {"/v2/systemsharedmemory/region/{name}/unregister", "name", {{"post", "forget one system region", "200", NULL}}},
    {"/v2/cudasharedmemory/status", NULL, {{"get", "the cuda regions of clients", "200", CONTENT_OF("SharedMemory")}}},
    {"/v2/cudasharedmemory/unregister", NULL, {{"post", "forget every cuda region", "200", NULL}}},
    {"/v2/cudasharedmemory/region/{name}/status", "name", {{"get", "one cuda region", "200", CONTENT_OF("SharedMemory")}}},
    {"/v2/cudasharedmemory/region/{name}/register", "name", {{"post", "make memory of a client a region", "200", NULL, CONTENT_OF("CudaMemory")}}},
    {"/v2/cudasharedmemory/region/{name}/unregister", "name", {{"post", "forget one cuda region", "200", NULL}}},
    {"/metrics", NULL, {{"get", "Prometheus text format 0.0.4", "200", TEXT_CONTENT}}},
    {"/openapi.json", NULL, {{"get", "this document", "200", JSON_CONTENT}}},
};
/* clang-format on */

/* v2: how much of the body is JSON. */
static void write_json_length(struct buffer *buffer)
{
    buffer_text(buffer,
                "\"parameters\":[{\"name\":\"Inference-Header-Content-Length"
                "\",\"in\":\"header\",\"description\":\"bytes of the JSON, "
                "where binary tensors follow it; 0: the body is the one input"
                "\",\"schema\":{\"type\":\"integer\",\"minimum\":0}}],");
}

/* What a region without a body is made of. */
static void write_region_query(struct buffer *buffer)
{
    buffer_text(buffer, "\"parameters\":[");
    write_query_parameter(buffer, "", "bytes",
                          "no body: this many zeros, plain bytes");
    buffer_text(buffer, "{\"type\":\"integer\",\"minimum\":0}}");
    write_query_parameter(buffer, ",", "dtype",
                          "no body: zeros of this type, like BF16");
    buffer_text(buffer, "{\"type\":\"string\"}}");
    write_query_parameter(buffer, ",", "shape",
                          "no body: dims of the zeros, like 4096,128");
    buffer_text(buffer, "{\"type\":\"string\"}}");
    write_query_parameter(buffer, ",", "device",
                          "number of the device that has it; else the one with "
                          "the most room");
    buffer_text(buffer, "{\"type\":\"integer\",\"minimum\":0}}],");
}

static void write_operation(struct buffer *buffer, const char *path,
                            const struct operation *operation,
                            openapi_scope_fn *scope_of)
{
    bool is_infer = operation->body && strstr(operation->body, "octet-stream");
    bool is_region = operation->body && strstr(operation->body, "safetensors");
    buffer_printf(buffer, "\"%s\":{\"summary\":\"%s\",", operation->method,
                  operation->summary);
    write_security(buffer, operation->method, path, scope_of);
    if (is_infer)
        write_json_length(buffer);
    if (is_region)
        write_region_query(buffer);
    if (operation->body)
        buffer_printf(buffer, "\"requestBody\":{\"required\":%s,%s},",
                      operation->may_lack_body ? "false" : "true",
                      operation->body);
    buffer_printf(buffer, "\"responses\":{\"%s\":{\"description\":\"%s\"%s%s}",
                  operation->code, operation->summary,
                  operation->content ? "," : "",
                  operation->content ? operation->content : "");
    write_refusals(buffer, operation->method, path, scope_of);
    buffer_text(buffer, ",\"default\":{\"$ref\":"
                        "\"#/components/responses/Error\"}}}");
}

static void write_path_parameters(struct buffer *buffer, const char *names)
{
    const char *separator = "";
    while (*names) {
        size_t length = strcspn(names, ",");
        buffer_printf(buffer,
                      "%s{\"name\":\"%.*s\",\"in\":\"path\",\"required\":true,"
                      "\"schema\":{\"type\":\"string\"}}",
                      separator, (int)length, names);
        names += length + (names[length] == ',');
        separator = ",";
    }
}

/* Do its operations use names that belong to somebody? */
static bool has_owner(const struct route *route, openapi_scope_fn *scope_of)
{
    const char *scope =
        scope_of ? scope_of(route->operation[0].method, route->path) : NULL;
    return scope && (strcmp(scope, "regions") == 0 ||
                     strcmp(scope, "tables") == 0 || strcmp(scope, "shm") == 0);
}

/* Those of all operations of a path. */
static void write_parameters(struct buffer *buffer, const struct route *route,
                             bool has_tenant)
{
    buffer_text(buffer, "\"parameters\":[");
    if (route->parameters)
        write_path_parameters(buffer, route->parameters);
    if (has_tenant) {
        write_query_parameter(buffer, route->parameters ? "," : "", "tenant",
                              "with scope admin: whose names are meant");
        buffer_text(buffer, "{\"type\":\"string\"}}");
    }
    buffer_text(buffer, "],");
}

static void write_route(struct buffer *buffer, const struct route *route,
                        openapi_scope_fn *scope_of)
{
    bool has_tenant = has_owner(route, scope_of);
    buffer_printf(buffer, ",\"%s\":{", route->path);
    if (route->parameters || has_tenant)
        write_parameters(buffer, route, has_tenant);
    for (int i = 0; i < MAX_OPERATIONS && route->operation[i].method; i++) {
        buffer_text(buffer, i ? "," : "");
        write_operation(buffer, route->path, &route->operation[i], scope_of);
    }
    buffer_text(buffer, "}");
}

/* A failure that operations refer to; headers: "" or more of it. */
static void write_response(struct buffer *buffer, const char *name,
                           const char *text, const char *headers)
{
    buffer_printf(buffer,
                  "\"%s\":{\"description\":\"%s\"%s," CONTENT_OF("Error") "}",
                  name, text, headers);
}

static void write_components(struct buffer *buffer, openapi_scope_fn *scope_of)
{
    buffer_text(buffer, "\"components\":{\"responses\":{");
    write_response(buffer, "Error", "what was found, what was expected", "");
    if (scope_of) {
        buffer_text(buffer, ",");
        write_response(buffer, "Unauthorized", "no token, or a wrong one",
                       ",\"headers\":{\"WWW-Authenticate\":{\"schema\":{"
                       "\"const\":\"Bearer\"}}}");
        buffer_text(buffer, ",");
        write_response(buffer, "Forbidden",
                       "the token lacks the scope that the error names", "");
        buffer_text(buffer, "},\"securitySchemes\":{\"bearer\":{\"type\":"
                            "\"http\",\"scheme\":\"bearer\",\"description\":"
                            "\"a token of the operator of the server; each "
                            "operation names the scope that it must have\"}");
    }
    buffer_text(buffer, "},");
    openapi_write_schemas(buffer);
    buffer_text(buffer, "},");
}

void openapi_write(struct buffer *buffer, const char *version,
                   openapi_scope_fn *scope_of)
{
    buffer_text(buffer, "{\"openapi\":\"3.1.0\",\"info\":{\"title\":\"roped\","
                        "\"summary\":\"transformer kernels as a service\","
                        "\"license\":{\"name\":\"Apache-2.0\","
                        "\"identifier\":\"Apache-2.0\"},\"version\":");
    buffer_json_string(buffer, version);
    buffer_text(buffer, "},");
    write_components(buffer, scope_of);
    buffer_text(buffer, "\"paths\":{");
    for (int i = 0; i < roped_op_count(); i++)
        write_op(buffer, roped_op_at(i), i ? "," : "", scope_of);
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++)
        write_route(buffer, &routes[i], scope_of);
    buffer_text(buffer, "}}");
}
