/*
 * openapi.c - the OpenAPI document: the operators' part from the table, the
 * rest from a list of routes.
 */
#include "wire/openapi.h"

#include "wire/kserve_meta.h"

#include <roped/op.h>

#include <stdio.h>

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

/* "responses" of an operator: the success object and the failures. */
static void write_answers(struct buffer *buffer, const char *success)
{
    static const char *const failures[] = {"400", "404", "413", "503"};
    buffer_printf(buffer, "\"responses\":{\"200\":%s", success);
    for (size_t i = 0; i < sizeof failures / sizeof *failures; i++)
        buffer_printf(buffer,
                      ",\"%s\":{\"$ref\":\"#/components/responses/Error\"}",
                      failures[i]);
    buffer_text(buffer, "}");
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

static void write_op(struct buffer *buffer, const struct roped_op *op,
                     const char *separator)
{
    buffer_printf(buffer,
                  "%s\"/v1/%s\":{\"get\":{\"summary\":\"what %s takes and "
                  "returns\",",
                  separator, op->name, op->name);
    write_answers(
        buffer,
        "{\"description\":\"tensors, parameters and rules\"," JSON_CONTENT "}");
    buffer_text(buffer, "},\"post\":{\"summary\":");
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
    buffer_text(buffer, "}}");
}

/* ----------------------------------------------------------- other routes */

enum body { NO_BODY, JSON_BODY, TENSOR_BODY, INFER_BODY };

struct operation {
    const char *method, *summary, *code, *content;
    enum body body;
};

enum { MAX_OPERATIONS = 3 };

/* A path, the name of its parameter or NULL, and what can be done there. */
struct route {
    const char *path, *parameter;
    struct operation operation[MAX_OPERATIONS];
};

#define TEXT_CONTENT "\"content\":{\"text/plain\":{}}"
#define INFER_CONTENT                                                          \
    "\"content\":{\"application/json\":{},\"application/octet-stream\":{}}"

#define REGION_CONTENT                                                         \
    "\"content\":{\"application/x-safetensors\":{},\"application/octet-"       \
    "stream\":{}}"

/* clang-format off */
static const struct route routes[] = {
    {"/", NULL, {{"get", "where to look", "200", TEXT_CONTENT}}},
    {"/v1", NULL, {{"get", "the operators", "200", JSON_CONTENT}}},
    {"/v1/tables", NULL, {{"get", "the named rotary tables", "200", JSON_CONTENT}}},
    {"/v1/tables/{name}", "name", {
        {"get", "one named table", "200", JSON_CONTENT},
        {"put", "make or replace a table: rope parameters, or a Hugging Face config.json", "2XX", JSON_CONTENT, JSON_BODY},
        {"delete", "forget a table", "200", JSON_CONTENT}}},
    {"/v1/regions", NULL, {{"get", "the regions: memory that stays on the server", "200", JSON_CONTENT}}},
    {"/v1/regions/{name}", "name", {
        {"get", "what is in a region: a safetensors file where it is a tensor, else its bytes", "200", REGION_CONTENT},
        {"put", "make or replace a region: one tensor, or zeros", "2XX", JSON_CONTENT, TENSOR_BODY},
        {"delete", "forget a region; calls that use it finish with it", "200", JSON_CONTENT}}},
    {"/v2", NULL, {{"get", "server metadata (KServe v2)", "200", JSON_CONTENT}}},
    {"/v2/health/live", NULL, {{"get", "the process answers", "200", JSON_CONTENT}}},
    {"/v2/health/ready", NULL, {{"get", "the server takes calls", "200", JSON_CONTENT}}},
    {"/v2/models/stats", NULL, {{"get", "statistics of every model", "200", JSON_CONTENT}}},
    {"/v2/models/{model}", "model", {{"get", "model metadata", "200", JSON_CONTENT}}},
    {"/v2/models/{model}/ready", "model", {{"get", "the model takes calls", "200", JSON_CONTENT}}},
    {"/v2/models/{model}/config", "model", {{"get", "model configuration", "200", JSON_CONTENT}}},
    {"/v2/models/{model}/stats", "model", {{"get", "statistics of one model", "200", JSON_CONTENT}}},
    {"/v2/models/{model}/infer", "model", {{"post", "inference: JSON, then binary tensors", "200", INFER_CONTENT, INFER_BODY}}},
    {"/v2/repository/index", NULL, {{"post", "the models and their state", "200", JSON_CONTENT}}},
    {"/v2/systemsharedmemory/status", NULL, {{"get", "the system regions of clients", "200", JSON_CONTENT}}},
    {"/v2/systemsharedmemory/unregister", NULL, {{"post", "forget every system region", "200", JSON_CONTENT}}},
    {"/v2/systemsharedmemory/region/{name}/status", "name", {{"get", "one system region", "200", JSON_CONTENT}}},
    {"/v2/systemsharedmemory/region/{name}/register", "name", {{"post", "make memory of a client a region", "200", JSON_CONTENT, JSON_BODY}}},
    {"/v2/systemsharedmemory/region/{name}/unregister", "name", {{"post", "forget one system region", "200", JSON_CONTENT}}},
    {"/v2/cudasharedmemory/status", NULL, {{"get", "the cuda regions of clients", "200", JSON_CONTENT}}},
    {"/v2/cudasharedmemory/unregister", NULL, {{"post", "forget every cuda region", "200", JSON_CONTENT}}},
    {"/v2/cudasharedmemory/region/{name}/status", "name", {{"get", "one cuda region", "200", JSON_CONTENT}}},
    {"/v2/cudasharedmemory/region/{name}/register", "name", {{"post", "make memory of a client a region", "200", JSON_CONTENT, JSON_BODY}}},
    {"/v2/cudasharedmemory/region/{name}/unregister", "name", {{"post", "forget one cuda region", "200", JSON_CONTENT}}},
    {"/metrics", NULL, {{"get", "Prometheus text format 0.0.4", "200", TEXT_CONTENT}}},
    {"/openapi.json", NULL, {{"get", "this document", "200", JSON_CONTENT}}},
};
/* clang-format on */

static void write_operation(struct buffer *buffer,
                            const struct operation *operation)
{
    buffer_printf(buffer, "\"%s\":{\"summary\":\"%s\",", operation->method,
                  operation->summary);
    switch (operation->body) {
    case NO_BODY:
        break;
    case JSON_BODY:
        buffer_text(buffer,
                    "\"requestBody\":{\"required\":true," JSON_CONTENT "},");
        break;
    case TENSOR_BODY:
        buffer_text(buffer, "\"parameters\":[");
        write_query_parameter(buffer, "", "bytes",
                              "no body: this many zeros, plain bytes");
        buffer_text(buffer, "{\"type\":\"integer\",\"minimum\":0}}");
        write_query_parameter(buffer, ",", "dtype",
                              "no body: zeros of this type, like BF16");
        buffer_text(buffer, "{\"type\":\"string\"}}");
        write_query_parameter(buffer, ",", "shape",
                              "no body: dims of the zeros, like 4096,128");
        buffer_text(buffer,
                    "{\"type\":\"string\"}}],\"requestBody\":{"
                    "\"required\":false,\"description\":\"a "
                    "safetensors file of one tensor\"," SAFETENSORS_CONTENT
                    "},");
        break;
    case INFER_BODY:
        buffer_text(buffer,
                    "\"parameters\":[{\"name\":\"Inference-Header-Content-"
                    "Length\",\"in\":\"header\",\"description\":\"bytes of the "
                    "JSON, where binary tensors follow it\",\"schema\":{"
                    "\"type\":\"integer\",\"minimum\":0}}],\"requestBody\":{"
                    "\"required\":true," INFER_CONTENT "},");
        break;
    }
    buffer_printf(buffer, "\"responses\":{\"%s\":{\"description\":\"%s\",%s}",
                  operation->code, operation->summary, operation->content);
    buffer_text(buffer, ",\"default\":{\"$ref\":"
                        "\"#/components/responses/Error\"}}}");
}

static void write_route(struct buffer *buffer, const struct route *route)
{
    buffer_printf(buffer, ",\"%s\":{", route->path);
    if (route->parameter)
        buffer_printf(buffer,
                      "\"parameters\":[{\"name\":\"%s\",\"in\":\"path\","
                      "\"required\":true,\"schema\":{\"type\":\"string\"}}],",
                      route->parameter);
    for (int i = 0; i < MAX_OPERATIONS && route->operation[i].method; i++) {
        buffer_text(buffer, i ? "," : "");
        write_operation(buffer, &route->operation[i]);
    }
    buffer_text(buffer, "}");
}

void openapi_write(struct buffer *buffer, const char *version)
{
    buffer_text(buffer, "{\"openapi\":\"3.1.0\",\"info\":{\"title\":\"roped\","
                        "\"summary\":\"transformer kernels as a service\","
                        "\"license\":{\"name\":\"Apache-2.0\","
                        "\"identifier\":\"Apache-2.0\"},\"version\":");
    buffer_json_string(buffer, version);
    buffer_text(buffer,
                "},\"components\":{\"responses\":{\"Error\":{\"description\":"
                "\"what was found, what was expected\",\"content\":{"
                "\"application/json\":{\"schema\":{\"type\":\"object\","
                "\"required\":[\"error\"],\"properties\":{\"error\":{"
                "\"type\":\"string\"}}}}}}}},\"paths\":{");
    for (int i = 0; i < roped_op_count(); i++)
        write_op(buffer, roped_op_at(i), i ? "," : "");
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++)
        write_route(buffer, &routes[i]);
    buffer_text(buffer, "}}");
}
