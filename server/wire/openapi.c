/*
 * openapi.c - the OpenAPI document: the operators' part from the table, the
 * rest from a list of routes.
 */
#include "wire/openapi.h"

#include "wire/kserve_meta.h"

#include <roped/op.h>

#include <float.h>
#include <stdio.h>
#include <string.h>

#define BINARY "{\"schema\":{\"type\":\"string\",\"format\":\"binary\"}}"
#define SAFETENSORS_CONTENT                                                    \
    "\"content\":{\"application/x-safetensors\":" BINARY "}"
/* What is sent may be called anything; generators know the second name. */
#define SAFETENSORS_BODY                                                       \
    "\"content\":{\"application/x-safetensors\":" BINARY                       \
    ",\"application/octet-stream\":" BINARY "}"
#define JSON_CONTENT                                                           \
    "\"content\":{\"application/json\":{\"schema\":{\"type\":\"object\"}}}"

/* Numbers with commas between them; those below ten one digit each. */
static void write_ints(struct buffer *buffer, const struct roped_param *param)
{
    char number[16] = "[0-9]+";
    if (param->max > 0 && param->max < 10)
        snprintf(number, sizeof number, "[%d-%d]", (int)param->min,
                 (int)param->max);
    buffer_printf(
        buffer, "{\"type\":\"string\",\"pattern\":\"^(%s(,%s){0,%d})%s$\"",
        number, number, roped_param_ints(param) - 1, param->shape ? "?" : "");
}

/* The schema of a parameter in a query string. */
static void write_schema(struct buffer *buffer, const struct roped_param *param)
{
    switch (param->kind) {
    case ROPED_PARAM_FLOAT:
        buffer_text(buffer, "{\"type\":\"number\"");
        if (param->max == FLT_MAX)
            buffer_text(buffer, ",\"format\":\"float\"");
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
        write_ints(buffer, param);
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

/* What an operation is called in a generated client, and the group it is in:
 * by the first of these that its path begins with. */
static void write_identity(struct buffer *buffer, const char *path,
                           const char *verb, const char *id)
{
    static const struct {
        const char *path, *tag;
    } tags[] = {{"/v1/tables", "tables"},
                {"/v1/regions", "regions"},
                {"/v1/devices", "server"},
                {"/v1", "operators"},
                {"/v2/systemsharedmemory", "shared memory"},
                {"/v2/cudasharedmemory", "shared memory"},
                {"/v2/models/", "models"},
                {"/v2/repository", "models"},
                {"", "server"}};
    size_t i = 0;
    while (strncmp(path, tags[i].path, strlen(tags[i].path)) != 0)
        i++;
    buffer_printf(buffer, "\"operationId\":\"%s%s\",\"tags\":[\"%s\"],", verb,
                  id, tags[i].tag);
}

/* "responses" of an operator but the closing bracket: the success object and
 * the failures. */
static void write_answers(struct buffer *buffer, const char *success)
{
    static const char *const failures[] = {"400", "404", "410", "413", "503"};
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

/* Names that this server gives out: of tables and regions. */
#define NAME_PATTERN "^(?!\\\\.{1,2}$)[A-Za-z0-9._-]{1,63}$"

/* Where tensors may be instead of in the body and in the answer. */
static void write_places(struct buffer *buffer, const struct roped_op *op)
{
    static const char place[] =
        "{\"type\":\"string\",\"pattern\":"
        "\"^[^:\\\\u0000-\\\\u001f\\\\u007f]{1,63}(:[0-9]{1,18})?$\"}}";
    char name[ROPED_NAME_BYTES + 8];
    for (int i = 0; i < roped_op_inputs(op); i++) {
        snprintf(name, sizeof name, "from.%s", op->in[i].name);
        write_query_parameter(buffer, ",", name,
                              "region[:offset] that this input is in; shape. "
                              "and dtype. with the input's name say what the "
                              "region does not");
        buffer_text(buffer, place);
    }
    for (int i = 0; i < roped_op_outputs(op); i++) {
        snprintf(name, sizeof name, "into.%s", op->out[i].name);
        write_query_parameter(buffer, ",", name,
                              "region[:offset] that gets this output, which "
                              "is not sent then");
        buffer_text(buffer, place);
    }
}

/* How far apart the tokens of tensors in regions are. */
static void write_strides(struct buffer *buffer, const char *prefix,
                          const struct roped_port *ports, int n)
{
    char name[ROPED_NAME_BYTES + 16];
    for (int i = 0; i < n; i++) {
        if (!(ports[i].flags & ROPED_STRIDED))
            continue;
        snprintf(name, sizeof name, "%s.%s", prefix, ports[i].name);
        write_query_parameter(buffer, ",", name,
                              "elements from one token, or row, to the next "
                              "of this tensor in a region; absent: packed, or "
                              "as the input whose place an output takes");
        buffer_text(buffer, "{\"type\":\"integer\",\"minimum\":1}}");
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
        buffer_text(buffer,
                    "{\"type\":\"string\",\"pattern\":\"" NAME_PATTERN "\"}}");
        separator = ",";
    }
    write_query_parameter(buffer, separator, "fp8",
                          "u8: name FP8 outputs U8, for readers without FP8");
    buffer_text(buffer, "{\"type\":\"string\",\"enum\":[\"native\",\"u8\"],"
                        "\"default\":\"native\"}}");
    write_places(buffer, op);
    write_strides(buffer, "stride", op->in, roped_op_inputs(op));
    write_strides(buffer, "into_stride", op->out, roped_op_outputs(op));
    buffer_text(buffer, "]");
}

static void write_op_get(struct buffer *buffer, const struct roped_op *op,
                         const char *path, openapi_scope_fn *scope_of)
{
    buffer_printf(buffer, "\"get\":{\"summary\":\"what %s takes and returns\",",
                  op->name);
    write_identity(buffer, path, "describe_", op->name);
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
    write_identity(buffer, path, "", op->name);
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
                        "file\"," SAFETENSORS_BODY "},\"x-roped-inputs\":");
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
    const char *method, *id, *summary;
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

#define TEXT_CONTENT                                                           \
    "\"content\":{\"text/plain\":{\"schema\":{\"type\":\"string\"}}}"
#define INDEX_CONTENT                                                          \
    "\"content\":{\"text/plain\":{\"schema\":{\"type\":\"string\"}},"          \
    "\"text/html\":{\"schema\":{\"type\":\"string\"}}}"
#define SCHEMA_OF(name)                                                        \
    "{\"schema\":{\"$ref\":\"#/components/schemas/" name "\"}}"
#define CONTENT_OF(name)                                                       \
    "\"content\":{\"application/json\":" SCHEMA_OF(name) "}"
#define INFER_CONTENT(name)                                                    \
    "\"content\":{\"application/json\":" SCHEMA_OF(                            \
        name) ",\"application/octet-stream\":" BINARY "}"

#define REGION_CONTENT                                                         \
    "\"content\":{\"application/x-safetensors\":" BINARY                       \
    ",\"application/octet-stream\":" BINARY "}"

/* clang-format off */
static const struct route routes[] = {
    {"/", NULL, {{"get", "index", "where to look; for browsers a page that shows what the daemon does", "200", INDEX_CONTENT}}},
    {"/v1", NULL, {{"get", "list_operators", "the operators", "200", CONTENT_OF("Operators")}}},
    {"/v1/tables", NULL, {{"get", "list_tables", "the named rotary tables", "200", CONTENT_OF("Tables")}}},
    {"/v1/tables/{name}", "name", {
        {"get", "get_table", "one named table", "200", CONTENT_OF("Table")},
        {"put", "put_table", "make or replace a table: rope parameters, or a Hugging Face config.json", "2XX", CONTENT_OF("Tables"), CONTENT_OF("Table")},
        {"delete", "delete_table", "forget a table", "200", JSON_CONTENT}}},
    {"/v1/devices", NULL, {{"get", "list_devices", "the devices that calls run on, and what each has done", "200", CONTENT_OF("Devices")}}},
    {"/v1/regions", NULL, {{"get", "list_regions", "the regions: memory that stays on the server", "200", CONTENT_OF("Regions")}}},
    {"/v1/regions/{name}", "name", {
        {"get", "get_region", "what is in a region: a safetensors file where it is a tensor, else its bytes", "200", REGION_CONTENT},
        {"put", "put_region", "make or replace a region: one tensor, or zeros", "2XX", CONTENT_OF("Region"), SAFETENSORS_BODY, true},
        {"delete", "delete_region", "forget a region; calls that use it finish with it", "200", JSON_CONTENT}}},
    {"/v2", NULL, {{"get", "server_metadata", "server metadata (KServe v2)", "200", CONTENT_OF("Server")}}},
    {"/v2/health/live", NULL, {{"get", "server_live", "the process answers", "200", CONTENT_OF("Live")}}},
    {"/v2/health/ready", NULL, {{"get", "server_ready", "the server takes calls", "200", CONTENT_OF("Ready")}}},
    {"/v2/models/stats", NULL, {{"get", "all_statistics", "statistics of every model", "200", CONTENT_OF("Statistics")}}},
    {"/v2/models/{model}", "model", {{"get", "model_metadata", "model metadata", "200", CONTENT_OF("Model")}}},
    {"/v2/models/{model}/ready", "model", {{"get", "model_ready", "the model takes calls", "200", CONTENT_OF("ModelReady")}}},
    {"/v2/models/{model}/config", "model", {{"get", "model_config", "model configuration", "200", CONTENT_OF("Config")}}},
    {"/v2/models/{model}/stats", "model", {{"get", "model_statistics", "statistics of one model", "200", CONTENT_OF("Statistics")}}},
    {"/v2/models/{model}/infer", "model", {{"post", "model_infer", "inference: JSON, then binary tensors", "200", INFER_CONTENT("InferResponse"), INFER_CONTENT("InferRequest")}}},
    {"/v2/models/{model}/versions/{version}", "model,version", {{"get", "version_metadata", "model metadata", "200", CONTENT_OF("Model")}}},
    {"/v2/models/{model}/versions/{version}/ready", "model,version", {{"get", "version_ready", "the model takes calls", "200", CONTENT_OF("ModelReady")}}},
    {"/v2/models/{model}/versions/{version}/config", "model,version", {{"get", "version_config", "model configuration", "200", CONTENT_OF("Config")}}},
    {"/v2/models/{model}/versions/{version}/stats", "model,version", {{"get", "version_statistics", "statistics of one model", "200", CONTENT_OF("Statistics")}}},
    {"/v2/models/{model}/versions/{version}/infer", "model,version", {{"post", "version_infer", "inference: JSON, then binary tensors", "200", INFER_CONTENT("InferResponse"), INFER_CONTENT("InferRequest")}}},
    {"/v2/models/{model}/trace/setting", "model", {
        {"get", "get_model_trace", "trace settings: off", "200", CONTENT_OF("TraceSettings")},
        {"post", "set_model_trace", "refused, unless it changes nothing", "200", CONTENT_OF("TraceSettings"), CONTENT_OF("TraceSettings"), true}}},
    {"/v2/trace/setting", NULL, {
        {"get", "get_trace", "trace settings: off", "200", CONTENT_OF("TraceSettings")},
        {"post", "set_trace", "refused, unless it changes nothing", "200", CONTENT_OF("TraceSettings"), CONTENT_OF("TraceSettings"), true}}},
    {"/v2/logging", NULL, {
        {"get", "get_logging", "log settings", "200", CONTENT_OF("LogSettings")},
        {"post", "set_logging", "change how much is logged", "200", CONTENT_OF("LogSettings"), CONTENT_OF("LogSettings"), true}}},
    {"/v2/repository/index", NULL, {{"post", "repository_index", "the models and their state", "200", CONTENT_OF("Index"), CONTENT_OF("IndexRequest"), true}}},
    {"/v2/repository/models/{model}/load", "model", {{"post", "load_model", "the model is there: models are built in", "200", NULL, JSON_CONTENT, true}}},
    {"/v2/repository/models/{model}/unload", "model", {{"post", "unload_model", "refused: models are built in", "400", CONTENT_OF("Error")}}},
    {"/v2/systemsharedmemory/status", NULL, {{"get", "list_system_memory", "the system regions of clients", "200", CONTENT_OF("SharedMemory")}}},
    {"/v2/systemsharedmemory/unregister", NULL, {{"post", "unregister_all_system_memory", "forget every system region", "200", NULL}}},
    {"/v2/systemsharedmemory/region/{name}/status", "name", {{"get", "get_system_memory", "one system region", "200", CONTENT_OF("SharedMemory")}}},
    {"/v2/systemsharedmemory/region/{name}/register", "name", {{"post", "register_system_memory", "make memory of a client a region", "200", NULL, CONTENT_OF("SystemMemory")}}},
    {"/v2/systemsharedmemory/region/{name}/unregister", "name", {{"post", "unregister_system_memory", "forget one system region", "200", NULL}}},
    {"/v2/cudasharedmemory/status", NULL, {{"get", "list_cuda_memory", "the cuda regions of clients", "200", CONTENT_OF("SharedMemory")}}},
    {"/v2/cudasharedmemory/unregister", NULL, {{"post", "unregister_all_cuda_memory", "forget every cuda region", "200", NULL}}},
    {"/v2/cudasharedmemory/region/{name}/status", "name", {{"get", "get_cuda_memory", "one cuda region", "200", CONTENT_OF("SharedMemory")}}},
    {"/v2/cudasharedmemory/region/{name}/register", "name", {{"post", "register_cuda_memory", "make memory of a client a region", "200", NULL, CONTENT_OF("CudaMemory")}}},
    {"/v2/cudasharedmemory/region/{name}/unregister", "name", {{"post", "unregister_cuda_memory", "forget one cuda region", "200", NULL}}},
    {"/metrics", NULL, {{"get", "metrics", "Prometheus text format 0.0.4", "200", TEXT_CONTENT}}},
    {"/openapi.json", NULL, {{"get", "openapi", "this document", "200", JSON_CONTENT}}},
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
    buffer_text(buffer, "{\"type\":\"string\",\"enum\":[");
    for (int dtype = ROPED_NO_DTYPE + 1; dtype < ROPED_DTYPE_COUNT; dtype++)
        buffer_printf(buffer, "%s\"%s\"", dtype > ROPED_NO_DTYPE + 1 ? "," : "",
                      roped_dtype_name((enum roped_dtype)dtype));
    buffer_text(buffer, "]}}");
    write_query_parameter(buffer, ",", "shape",
                          "no body: dims of the zeros, like 4096,128");
    buffer_text(buffer, "{\"type\":\"string\",\"pattern\":"
                        "\"^([0-9]+(,[0-9]+)*)?$\"}}");
    write_query_parameter(buffer, ",", "device",
                          "number of the device that has it, or spread: the "
                          "one with the most room; else beside the owner's "
                          "other regions, as long as it fits there");
    buffer_text(buffer, "{\"type\":\"string\",\"pattern\":"
                        "\"^([0-9]+|spread)$\"}}],");
}

/* What the body of a table may leave open. */
static void write_table_query(struct buffer *buffer)
{
    buffer_text(buffer, "\"parameters\":[");
    write_query_parameter(buffer, "", "style",
                          "which elements of a head pair, where a call does "
                          "not say it; else the body's, else its model's");
    buffer_text(buffer,
                "{\"type\":\"string\",\"enum\":[\"neox\",\"gptj\"]}}],");
}

/* What of the metrics is wanted. */
static void write_metrics_query(struct buffer *buffer)
{
    buffer_text(buffer, "\"parameters\":[");
    write_query_parameter(buffer, "", "name[]",
                          "name of a series that is wanted, such as "
                          "roped_requests_total; may stand more than once; "
                          "else all are");
    buffer_text(buffer, "{\"type\":\"array\",\"items\":{"
                        "\"type\":\"string\"}}}],");
}

static void write_operation(struct buffer *buffer, const char *path,
                            const struct operation *operation,
                            openapi_scope_fn *scope_of)
{
    bool is_infer = operation->body && strstr(operation->body, "InferRequest");
    bool is_region = operation->body && strstr(operation->body, "safetensors");
    buffer_printf(buffer, "\"%s\":{\"summary\":\"%s\",", operation->method,
                  operation->summary);
    write_identity(buffer, path, "", operation->id);
    write_security(buffer, operation->method, path, scope_of);
    if (is_infer)
        write_json_length(buffer);
    if (is_region)
        write_region_query(buffer);
    if (operation->body && strstr(operation->body, "/Table"))
        write_table_query(buffer);
    if (strcmp(path, "/metrics") == 0)
        write_metrics_query(buffer);
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

/* What a name in a path may be made of; memory of clients has any name. */
static const char *name_pattern(const char *path, const char *name)
{
    if (strncmp(name, "version", 7) == 0)
        return "^1$";
    return strncmp(path, "/v1/", 4) == 0
               ? NAME_PATTERN
               : "^[^/\\\\u0000-\\\\u001f\\\\u007f]+$";
}

static void write_path_parameters(struct buffer *buffer, const char *path,
                                  const char *names)
{
    const char *separator = "";
    while (*names) {
        size_t length = strcspn(names, ",");
        buffer_printf(buffer,
                      "%s{\"name\":\"%.*s\",\"in\":\"path\",\"required\":true,"
                      "\"schema\":{\"type\":\"string\",\"pattern\":\"%s\"}}",
                      separator, (int)length, names, name_pattern(path, names));
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
        write_path_parameters(buffer, route->path, route->parameters);
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
    buffer_text(buffer, "{\"openapi\":\"3.1.0\",\"servers\":[{\"url\":\"/"
                        "\"}],\"info\":{\"title\":\"roped\","
                        "\"summary\":\"transformer kernels as a service\","
                        "\"description\":\"In JSON that is sent, names have no "
                        "control characters, and strings no NUL.\","
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
