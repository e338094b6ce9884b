/*
 * openapi.c - the OpenAPI document: the operators' part from their table, the
 * rest from routes.def.
 */
#include "wire/openapi.h"

#include "wire/kserve_meta.h"

#include <roped/op.h>

#include <ctype.h>
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

/* ---------------------------------------------------------------- routes */

#define TEXT_CONTENT                                                           \
    "\"content\":{\"text/plain\":{\"schema\":{\"type\":\"string\"}}}"
#define HTML_CONTENT                                                           \
    "\"content\":{\"text/html\":{\"schema\":{\"type\":\"string\"}}}"
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

/* A row of routes.def. */
struct operation {
    const char *method, *path, *scope;
    const char *names;          /* of the path's parameters, or NULL */
    const char *id, *summary;   /* NULL: it is not listed */
    const char *code, *content; /* of success; content NULL: no body */
    const char *body;           /* content of the request, or NULL */
    bool may_lack_body;
};

static const struct operation operations[] = {
#define UNLISTED_ROUTE(method, path, scope, body, handler, kind)               \
    {#method, path, #scope, NULL},
#define ROUTE(method, path, scope, body, handler, kind, ...)                   \
    {#method, path, #scope, __VA_ARGS__},
#include "routes.def"
};
enum { N_OPERATIONS = sizeof operations / sizeof *operations };

/* What a token must be allowed to do for a route; see write_security. */
static const char *scope_of(const char *method, const char *path,
                            bool is_guarded)
{
    const struct operation *row = operations;
    while (strcmp(row->method, method) != 0 || strcmp(row->path, path) != 0)
        row++;
    return is_guarded ? row->scope : NULL;
}

/* ------------------------------------------------------------- operators */

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

/* A token as it stands in a table, "GET", as the document has it, "get". */
static void write_lower(struct buffer *buffer, const char *text)
{
    for (; *text; text++) {
        char c = (char)tolower((unsigned char)*text);
        buffer_append(buffer, &c, 1);
    }
}

/* "security" of an operation, with a comma behind it. scope: an id of
 * scope.def; NULL: the server asks for no token. */
static void write_security(struct buffer *buffer, const char *scope)
{
    if (!scope)
        return;
    if (strcmp(scope, "OPEN") == 0) {
        buffer_text(buffer, "\"security\":[],");
        return;
    }
    bool is_any = strcmp(scope, "ANY") == 0;
    buffer_text(buffer, "\"security\":[{\"bearer\":[");
    buffer_text(buffer, is_any ? "" : "\"");
    write_lower(buffer, is_any ? "" : scope);
    buffer_text(buffer, is_any ? "]}]," : "\"]}],");
}

/* Its answers to whoever may not have it, with a comma before each. */
static void write_refusals(struct buffer *buffer, const char *scope)
{
    if (!scope || strcmp(scope, "OPEN") == 0)
        return;
    buffer_text(buffer, ",\"401\":{\"$ref\":"
                        "\"#/components/responses/Unauthorized\"}");
    if (strcmp(scope, "ANY") != 0)
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
                {"/v1/programs", "programs"},
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
                         const char *path, bool is_guarded)
{
    const char *scope = scope_of("GET", "/v1/*", is_guarded);
    buffer_printf(buffer, "\"get\":{\"summary\":\"what %s takes and returns\",",
                  op->name);
    write_identity(buffer, path, "describe_", op->name);
    write_security(buffer, scope);
    write_answers(
        buffer,
        "{\"description\":\"tensors, parameters and rules\"," JSON_CONTENT "}");
    write_refusals(buffer, scope);
    buffer_text(buffer, "}}");
}

static void write_op(struct buffer *buffer, const struct roped_op *op,
                     const char *separator, bool is_guarded)
{
    const char *scope = scope_of("POST", "/v1/*", is_guarded);
    char path[ROPED_NAME_BYTES + 8];
    snprintf(path, sizeof path, "/v1/%s", op->name);
    buffer_printf(buffer, "%s\"%s\":{", separator, path);
    write_op_get(buffer, op, path, is_guarded);
    buffer_text(buffer, ",\"post\":{");
    write_identity(buffer, path, "", op->name);
    write_security(buffer, scope);
    buffer_text(buffer, "\"summary\":");
    buffer_json_string(buffer, op->summary);
    describe_write_rule(buffer, op, ",\"description\":");
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
    write_refusals(buffer, scope);
    buffer_text(buffer, "}}}");
}

/* ----------------------------------------------------------- other routes */

/* v2: how much of the body is JSON. */
static void write_json_length(struct buffer *buffer)
{
    buffer_text(buffer,
                "\"parameters\":[{\"name\":\"Inference-Header-Content-Length"
                "\",\"in\":\"header\",\"description\":\"bytes of the JSON, "
                "where binary tensors follow it; 0: the body is the one input"
                "\",\"schema\":{\"type\":\"integer\",\"minimum\":0}}],");
}

static const char programs_path[] = "/v1/programs";

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

static bool is_of_programs(const struct operation *operation)
{
    return strncmp(operation->path, programs_path, sizeof programs_path - 1) ==
           0;
}

/* Parameters and tensors have the names that the document gives them. */
static void write_program_query(struct buffer *buffer,
                                const struct operation *operation)
{
    bool is_run = strcmp(operation->method, "POST") == 0;
    buffer_text(buffer, "\"parameters\":[");
    if (!is_run) {
        write_query_parameter(buffer, "", "warm",
                              "1: where runs are recorded, every lane has "
                              "recorded it before the answer; every input "
                              "says its dtype and shape, and none has index "
                              "values");
        buffer_text(buffer, "{\"type\":\"string\",\"enum\":[\"0\",\"1\"]}}");
    }
    if (is_run) {
        write_query_parameter(buffer, "", "fp8",
                              "how FP8 outputs are called: native, or u8; "
                              "parameters of the program, and from., into. and "
                              "so on of its tensors have their own names");
        buffer_text(buffer, "{\"type\":\"string\",\"enum\":[\"native\","
                            "\"u8\"]}}");
        write_query_parameter(buffer, ",", "timing",
                              "steps: they run one by one, and the file's "
                              "metadata say in step_us how many microseconds "
                              "each took");
        buffer_text(buffer, "{\"type\":\"string\",\"enum\":[\"steps\"]}}");
    }
    buffer_text(buffer, "],");
}

static void write_operation(struct buffer *buffer,
                            const struct operation *operation, bool is_guarded)
{
    const char *body = operation->body ? operation->body : "";
    const char *scope = is_guarded ? operation->scope : NULL;
    buffer_text(buffer, "\"");
    write_lower(buffer, operation->method);
    buffer_printf(buffer, "\":{\"summary\":\"%s\",", operation->summary);
    write_identity(buffer, operation->path, "", operation->id);
    write_security(buffer, scope);
    if (strstr(body, "InferRequest"))
        write_json_length(buffer);
    if (strcmp(operation->path, "/v1/regions/*") == 0 && body[0])
        write_region_query(buffer);
    if (is_of_programs(operation) && body[0])
        write_program_query(buffer, operation);
    if (strstr(body, "/Table"))
        write_table_query(buffer);
    if (strcmp(operation->path, "/metrics") == 0)
        write_metrics_query(buffer);
    if (body[0])
        buffer_printf(buffer, "\"requestBody\":{\"required\":%s,%s},",
                      operation->may_lack_body ? "false" : "true", body);
    buffer_printf(buffer, "\"responses\":{\"%s\":{\"description\":\"%s\"%s%s}",
                  operation->code, operation->summary,
                  operation->content ? "," : "",
                  operation->content ? operation->content : "");
    if (is_of_programs(operation) && operation->names &&
        strcmp(operation->method, "GET") == 0)
        buffer_text(buffer, ",\"304\":{\"description\":\"the client has it, by "
                            "If-None-Match\"}");
    write_refusals(buffer, scope);
    buffer_text(buffer, ",\"default\":{\"$ref\":"
                        "\"#/components/responses/Error\"}}}");
}

/* What a name in a path may be made of; memory of clients has any name. */
static const char *name_pattern(const char *path, const char *name)
{
    if (strncmp(name, "version", 7) == 0)
        return "^1$";
    if (strncmp(path, programs_path, sizeof programs_path - 1) == 0)
        return "^[a-z][a-z0-9_.-]{0,62}$";
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

/* Do the names that a route uses belong to somebody? */
static bool has_owner(const struct operation *route, bool is_guarded)
{
    return is_guarded && (strcmp(route->scope, "REGIONS") == 0 ||
                          strcmp(route->scope, "TABLES") == 0 ||
                          strcmp(route->scope, "SHM") == 0);
}

/* Conditions on the program that there is. */
static void write_condition(struct buffer *buffer, const char *header,
                            const char *meaning)
{
    buffer_printf(
        buffer,
        ",{\"name\":\"%s\",\"in\":\"header\",\"description\":"
        "\"%s\",\"schema\":{\"type\":\"string\",\"pattern\":"
        "\"^(\\\"[0-9a-f]{16}\\\"(, *\\\"[0-9a-f]{16}\\\")*|[*])$\"}}",
        header, meaning);
}

/* Those of all operations of a path. */
static void write_parameters(struct buffer *buffer,
                             const struct operation *route, bool has_tenant)
{
    buffer_text(buffer, "\"parameters\":[");
    if (route->names)
        write_path_parameters(buffer, route->path, route->names);
    if (route->names && is_of_programs(route)) {
        write_condition(buffer, "If-Match",
                        "the ETag that the program must have, several, or *: "
                        "else 412");
        write_condition(buffer, "If-None-Match",
                        "the ETag that the program must not have, several, or "
                        "*: else 412, and 304 for GET");
    }
    if (has_tenant) {
        write_query_parameter(buffer, route->names ? "," : "", "tenant",
                              "with scope admin: whose names are meant");
        buffer_text(buffer, "{\"type\":\"string\"}}");
    }
    buffer_text(buffer, "],");
}

/* "/v1/tables/{name}": each '*' is the next of the names. */
static void write_path(struct buffer *buffer, const struct operation *route)
{
    const char *names = route->names;
    for (const char *at = route->path; *at; at++) {
        if (*at != '*') {
            buffer_append(buffer, at, 1);
            continue;
        }
        size_t length = strcspn(names, ",");
        buffer_printf(buffer, "{%.*s}", (int)length, names);
        names += length + (names[length] == ',');
    }
}

/* A path and all of its operations, of which this is the first; returns the
 * one behind them. */
static const struct operation *write_route(struct buffer *buffer,
                                           const struct operation *first,
                                           bool is_guarded)
{
    const struct operation *operation = first;
    bool has_tenant = has_owner(first, is_guarded);
    buffer_text(buffer, ",\"");
    write_path(buffer, first);
    buffer_text(buffer, "\":{");
    if (first->names || has_tenant)
        write_parameters(buffer, first, has_tenant);
    do {
        buffer_text(buffer, operation > first ? "," : "");
        write_operation(buffer, operation, is_guarded);
        operation++;
    } while (operation < operations + N_OPERATIONS &&
             strcmp(operation->path, first->path) == 0);
    buffer_text(buffer, "}");
    return operation;
}

/* A failure that operations refer to; headers: "" or more of it. */
static void write_response(struct buffer *buffer, const char *name,
                           const char *text, const char *headers)
{
    buffer_printf(buffer,
                  "\"%s\":{\"description\":\"%s\"%s," CONTENT_OF("Error") "}",
                  name, text, headers);
}

static void write_components(struct buffer *buffer, bool is_guarded)
{
    buffer_text(buffer, "\"components\":{\"responses\":{");
    write_response(buffer, "Error", "what was found, what was expected", "");
    if (is_guarded) {
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

void openapi_write(struct buffer *buffer, const char *version, bool is_guarded)
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
    write_components(buffer, is_guarded);
    buffer_text(buffer, "\"paths\":{");
    for (int i = 0; i < roped_op_count(); i++)
        write_op(buffer, roped_op_at(i), i ? "," : "", is_guarded);
    const struct operation *route = operations;
    while (route < operations + N_OPERATIONS)
        route = route->id ? write_route(buffer, route, is_guarded) : route + 1;
    buffer_text(buffer, "}}");
}
