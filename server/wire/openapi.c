/*
 * openapi.c - the OpenAPI document: the operators' part from the table, the
 * rest from a list of routes.
 */
#include "wire/openapi.h"

#include <roped/op.h>

static void write_schema(struct buffer *buffer, const struct roped_param *param)
{
    char choice[32];
    switch (param->kind) {
    case ROPED_PARAM_FLOAT:
        buffer_text(buffer, "{\"type\":\"number\"");
        break;
    case ROPED_PARAM_INT:
        buffer_text(buffer, "{\"type\":\"integer\"");
        break;
    case ROPED_PARAM_BOOL:
        buffer_printf(buffer, "{\"type\":\"boolean\",\"default\":%s",
                      param->init != 0 ? "true" : "false");
        break;
    case ROPED_PARAM_CHOICE:
    case ROPED_PARAM_DTYPE:
        buffer_text(buffer, "{\"type\":\"string\",\"enum\":[");
        for (int i = 0; i < roped_param_choices(param); i++)
            buffer_printf(buffer, "%s\"%s\"", i ? "," : "",
                          roped_param_choice(param, i, choice, sizeof choice));
        buffer_printf(
            buffer, "],\"default\":\"%s\"",
            roped_param_choice(param, (int)param->init, choice, sizeof choice));
        break;
    case ROPED_PARAM_INTS:
        buffer_text(buffer,
                    "{\"type\":\"string\",\"pattern\":\"^[0-9]+(,[0-9]+){0,3}$"
                    "\"");
        break;
    }
    bool is_number =
        param->kind == ROPED_PARAM_FLOAT || param->kind == ROPED_PARAM_INT;
    if (is_number && !(param->flags & ROPED_NO_DEFAULT)) {
        buffer_text(buffer, ",\"default\":");
        buffer_double(buffer, param->init);
    }
    if (is_number && (param->min != 0 || param->max != 0)) {
        buffer_printf(buffer, ",\"%s\":",
                      param->flags & ROPED_ABOVE_MIN ? "exclusiveMinimum"
                                                     : "minimum");
        buffer_double(buffer, param->min);
        buffer_text(buffer, ",\"maximum\":");
        buffer_double(buffer, param->max);
    }
    buffer_text(buffer, "}");
}

static void write_answers(struct buffer *buffer, const char *success)
{
    buffer_printf(buffer, "\"responses\":{\"200\":%s", success);
    static const char *const codes[] = {"400", "404", "413", "503"};
    for (int i = 0; i < 4; i++)
        buffer_printf(buffer,
                      ",\"%s\":{\"$ref\":\"#/components/responses/"
                      "Error\"}",
                      codes[i]);
    buffer_text(buffer, "}");
}

static void write_op(struct buffer *buffer, const struct roped_op *op)
{
    static const char body[] =
        "{\"application/x-safetensors\":{\"schema\":{\"type\":\"string\","
        "\"format\":\"binary\"}}}";
    buffer_printf(buffer, ",\"/v1/%s\":{\"get\":{\"summary\":\"describe %s\",",
                  op->name, op->name);
    write_answers(buffer, "{\"description\":\"tensors, parameters and rules\","
                          "\"content\":{\"application/json\":{}}}");
    buffer_text(buffer, "},\"post\":{\"summary\":");
    buffer_json_string(buffer, op->summary);
    if (op->rule_doc) {
        buffer_text(buffer, ",\"description\":");
        buffer_json_string(buffer, op->rule_doc);
    }
    buffer_text(buffer, ",\"parameters\":[");
    for (int i = 0; i < roped_op_params(op); i++) {
        buffer_printf(buffer,
                      "%s{\"name\":\"%s\",\"in\":\"query\","
                      "\"description\":",
                      i ? "," : "", op->param[i].name);
        buffer_json_string(buffer, op->param[i].doc);
        buffer_text(buffer, ",\"schema\":");
        write_schema(buffer, &op->param[i]);
        buffer_text(buffer, "}");
    }
    if (op->angles_offset != ROPED_NO_ANGLES)
        buffer_text(buffer,
                    ",{\"name\":\"table\",\"in\":\"query\",\"description\":"
                    "\"angles of this named table\",\"schema\":{\"type\":"
                    "\"string\"}}");
    buffer_text(buffer,
                ",{\"name\":\"fp8\",\"in\":\"query\",\"description\":\"u8: "
                "name FP8 outputs U8, for readers without FP8\",\"schema\":{"
                "\"type\":\"string\",\"enum\":[\"native\",\"u8\"],\"default\":"
                "\"native\"}}");
    buffer_printf(
        buffer, "],\"requestBody\":{\"required\":true,\"content\":%s},", body);
    write_answers(buffer,
                  "{\"description\":\"the outputs, one safetensors file\","
                  "\"content\":{\"application/x-safetensors\":{\"schema\":{"
                  "\"type\":\"string\",\"format\":\"binary\"}}}}");
    buffer_text(buffer, "}}");
}

/* The other routes: path, method, summary, path parameter or NULL. */
static const struct {
    const char *path, *method, *summary, *parameter;
} routes[] = {
    {"/v1", "get", "the operators", NULL},
    {"/v1/tables", "get", "the named rotary tables", NULL},
    {"/v2", "get", "server metadata (KServe v2)", NULL},
    {"/v2/health/live", "get", "the process answers", NULL},
    {"/v2/health/ready", "get", "the server takes calls", NULL},
    {"/v2/models/stats", "get", "statistics of every model", NULL},
    {"/v2/models/{model}", "get", "model metadata", "model"},
    {"/v2/models/{model}/ready", "get", "the model takes calls", "model"},
    {"/v2/models/{model}/config", "get", "model configuration", "model"},
    {"/v2/models/{model}/stats", "get", "statistics of one model", "model"},
    {"/v2/models/{model}/infer", "post", "inference: JSON, then binary tensors",
     "model"},
    {"/v2/repository/index", "post", "the models and their state", NULL},
    {"/metrics", "get", "Prometheus text format 0.0.4", NULL},
    {"/openapi.json", "get", "this document", NULL},
};

static void write_path_parameter(struct buffer *buffer, const char *name)
{
    buffer_printf(buffer,
                  "\"parameters\":[{\"name\":\"%s\",\"in\":\"path\","
                  "\"required\":true,\"schema\":{\"type\":\"string\"}}]",
                  name);
}

static void write_tables(struct buffer *buffer)
{
    static const char *const methods[][2] = {
        {"get", "one named table"},
        {"put", "make or replace a table: rope parameters, or a Hugging Face "
                "config.json"},
        {"delete", "forget a table"}};
    buffer_text(buffer, ",\"/v1/tables/{name}\":{");
    write_path_parameter(buffer, "name");
    for (int i = 0; i < 3; i++) {
        buffer_printf(buffer, ",\"%s\":{\"summary\":\"%s\",", methods[i][0],
                      methods[i][1]);
        if (i == 1)
            buffer_text(buffer, "\"requestBody\":{\"required\":true,"
                                "\"content\":{\"application/json\":{}}},");
        write_answers(buffer, "{\"description\":\"done\"}");
        buffer_text(buffer, "}");
    }
    buffer_text(buffer, "}");
}

void openapi_write(struct buffer *buffer, const char *version)
{
    buffer_printf(buffer,
                  "{\"openapi\":\"3.1.0\",\"info\":{\"title\":\"roped\","
                  "\"summary\":\"transformer kernels as a service\","
                  "\"version\":\"%s\",\"license\":{\"name\":\"Apache-2.0\","
                  "\"identifier\":\"Apache-2.0\"}},\"components\":{"
                  "\"responses\":{\"Error\":{\"description\":\"what was found, "
                  "what was expected\",\"content\":{\"application/json\":{"
                  "\"schema\":{\"type\":\"object\",\"required\":[\"error\"],"
                  "\"properties\":{\"error\":{\"type\":\"string\"}}}}}}}},"
                  "\"paths\":{\"/\":{\"get\":{\"summary\":\"where to look\","
                  "\"responses\":{\"200\":{\"description\":\"text\"}}}}",
                  version);
    for (int i = 0; i < roped_op_count(); i++)
        write_op(buffer, roped_op_at(i));
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        buffer_printf(buffer, ",\"%s\":{", routes[i].path);
        if (routes[i].parameter) {
            write_path_parameter(buffer, routes[i].parameter);
            buffer_text(buffer, ",");
        }
        buffer_printf(buffer, "\"%s\":{\"summary\":\"%s\",", routes[i].method,
                      routes[i].summary);
        write_answers(buffer, "{\"description\":\"the document\"}");
        buffer_text(buffer, "}}");
    }
    write_tables(buffer);
    buffer_text(buffer, "}}");
}
