/*
 * test_openapi.c - the OpenAPI document: strict JSON, every operator and
 * parameter in it, nothing in it twice. With a path as argument, writes the
 * document there, for validators.
 */
#include "wire/openapi.h"

#include "check.h"
#include "wire/json.h"

#include <cjson/cJSON.h>
#include <roped/op.h>

static const struct cJSON *document; /* of a server that asks for tokens */
static const struct cJSON *open_document;

static const struct cJSON *operation(const char *path, const char *method)
{
    return json_member(json_member(json_member(document, "paths"), path),
                       method);
}

static const struct cJSON *parameter(const struct cJSON *post, const char *name)
{
    const struct cJSON *item;
    cJSON_ArrayForEach(item, json_member(post, "parameters"))
    {
        if (strcmp(json_member(item, "name")->valuestring, name) == 0)
            return item;
    }
    return NULL;
}

TEST(is_version_3_1)
{
    const struct cJSON *info = json_member(document, "info");
    CHECK_TEXT(json_member(document, "openapi")->valuestring, "3.1.0");
    CHECK_TEXT(json_member(info, "version")->valuestring, "1.2.3");
    CHECK_TEXT(json_member(info, "title")->valuestring, "roped");
}

static void check_parameter(const struct cJSON *post, const char *name)
{
    const struct cJSON *param = parameter(post, name);
    if (!param) {
        CHECK_FAIL("no parameter '%s'", name);
        return;
    }
    CHECK_TEXT(json_member(param, "in")->valuestring, "query");
    CHECK(cJSON_IsObject(json_member(param, "schema")));
}

TEST(every_operator_has_its_path_and_parameters)
{
    for (int i = 0; i < roped_op_count(); i++) {
        const struct roped_op *op = roped_op_at(i);
        char path[128];
        snprintf(path, sizeof path, "/v1/%s", op->name);
        CHECK(operation(path, "get") != NULL);
        const struct cJSON *post = operation(path, "post");
        CHECK_TEXT(json_member(post, "summary")->valuestring, op->summary);
        for (int p = 0; p < roped_op_params(op); p++)
            check_parameter(post, op->param[p].name);
        CHECK((parameter(post, "table") != NULL) ==
              (op->angles_offset != ROPED_NO_ANGLES));
        CHECK(parameter(post, "fp8") != NULL);
        snprintf(path, sizeof path, "from.%s", op->in[0].name);
        check_parameter(post, path);
        snprintf(path, sizeof path, "into.%s", op->out[0].name);
        check_parameter(post, path);
        CHECK_INT(cJSON_GetArraySize(json_member(post, "x-roped-inputs")),
                  roped_op_inputs(op));
    }
}

TEST(schemas_have_ranges_defaults_and_choices)
{
    const struct cJSON *post = operation("/v1/rope", "post");
    const struct cJSON *theta = json_member(parameter(post, "theta"), "schema");
    CHECK_TEXT(json_member(theta, "type")->valuestring, "number");
    CHECK_DOUBLE(json_member(theta, "default")->valuedouble, 10000, 0);
    CHECK_DOUBLE(json_member(theta, "exclusiveMinimum")->valuedouble, 0, 0);
    CHECK(!json_member(theta, "maximum"));
    const struct cJSON *eps = json_member(
        parameter(operation("/v1/rmsnorm", "post"), "eps"), "schema");
    CHECK_TEXT(json_member(eps, "format")->valuestring, "float");
    const struct cJSON *axes =
        json_member(parameter(post, "mrope_axes"), "schema");
    CHECK_TEXT(json_member(axes, "pattern")->valuestring,
               "^([0-3](,[0-3]){0,3})$");
    const struct cJSON *style = json_member(parameter(post, "style"), "schema");
    CHECK_INT(cJSON_GetArraySize(json_member(style, "enum")), 2);
    CHECK_TEXT(json_member(style, "default")->valuestring, "neox");
    const struct cJSON *offset =
        json_member(parameter(post, "offset"), "schema");
    CHECK_TEXT(json_member(offset, "type")->valuestring, "integer");
    CHECK_DOUBLE(json_member(offset, "maximum")->valuedouble, (1 << 24) - 1, 0);
}

TEST(regions_and_tables_are_names)
{
    const struct cJSON *post = operation("/v1/rope", "post");
    const struct cJSON *from = json_member(parameter(post, "from.q"), "schema");
    CHECK_TEXT(json_member(from, "pattern")->valuestring,
               "^[^:\\u0000-\\u001f\\u007f]{1,63}(:[0-9]{1,18})?$");
    CHECK(cJSON_Compare(from, json_member(parameter(post, "into.k"), "schema"),
                        true));
    CHECK(parameter(post, "stride.q") && parameter(post, "into_stride.k"));
    CHECK(!parameter(post, "stride.positions"));
    const struct cJSON *table = json_member(parameter(post, "table"), "schema");
    CHECK_TEXT(json_member(table, "pattern")->valuestring,
               "^(?!\\.{1,2}$)[A-Za-z0-9._-]{1,63}$");
}

TEST(operators_answer_with_every_code)
{
    static const char *const codes[] = {"200", "400", "404",
                                        "410", "413", "503"};
    const struct cJSON *post = operation("/v1/rmsnorm", "post");
    const struct cJSON *body = json_member(post, "requestBody");
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        CHECK(json_member(json_member(post, "responses"), codes[i]) != NULL);
    CHECK(json_member(json_member(body, "content"),
                      "application/x-safetensors") != NULL);
}

static void check_identity(const char *method, const char *path, const char *id,
                           const char *tag)
{
    const struct cJSON *found = operation(path, method);
    CHECK_TEXT(json_member(found, "operationId")->valuestring, id);
    CHECK_TEXT(json_member(found, "tags")->child->valuestring, tag);
}

TEST(operations_have_the_names_of_functions)
{
    const struct cJSON *servers = json_member(document, "servers");
    CHECK_TEXT(json_member(servers->child, "url")->valuestring, "/");
    check_identity("post", "/v1/rmsnorm", "rmsnorm", "operators");
    check_identity("get", "/v1/rmsnorm", "describe_rmsnorm", "operators");
    check_identity("put", "/v1/tables/{name}", "put_table", "tables");
    check_identity("delete", "/v1/regions/{name}", "delete_region", "regions");
    check_identity("post", "/v2/models/{model}/infer", "model_infer", "models");
    check_identity("get", "/v2/cudasharedmemory/status", "list_cuda_memory",
                   "shared memory");
    check_identity("get", "/metrics", "metrics", "server");
}

static const char *name_pattern(const char *path)
{
    const struct cJSON *item = json_member(
        json_member(json_member(document, "paths"), path), "parameters");
    return json_member(json_member(item->child, "schema"), "pattern")
        ->valuestring;
}

TEST(names_in_paths_say_what_they_are_made_of)
{
    CHECK_TEXT(name_pattern("/v1/regions/{name}"),
               "^(?!\\.{1,2}$)[A-Za-z0-9._-]{1,63}$");
    CHECK_TEXT(name_pattern("/v2/models/{model}"),
               "^[^/\\u0000-\\u001f\\u007f]+$");
}

TEST(the_other_routes_are_there)
{
    static const char *const routes[][2] = {
        {"/", "get"},
        {"/v1", "get"},
        {"/v1/tables", "get"},
        {"/v1/tables/{name}", "get"},
        {"/v1/tables/{name}", "put"},
        {"/v1/tables/{name}", "delete"},
        {"/v1/regions", "get"},
        {"/v1/regions/{name}", "get"},
        {"/v1/regions/{name}", "put"},
        {"/v1/regions/{name}", "delete"},
        {"/v2", "get"},
        {"/v2/health/live", "get"},
        {"/v2/health/ready", "get"},
        {"/v2/models/{model}", "get"},
        {"/v2/models/{model}/infer", "post"},
        {"/v2/models/stats", "get"},
        {"/v2/models/{model}/versions/{version}/infer", "post"},
        {"/v2/models/{model}/trace/setting", "post"},
        {"/v2/logging", "get"},
        {"/v2/logging", "post"},
        {"/v2/repository/index", "post"},
        {"/v2/repository/models/{model}/load", "post"},
        {"/v2/systemsharedmemory/status", "get"},
        {"/v2/systemsharedmemory/unregister", "post"},
        {"/v2/cudasharedmemory/region/{name}/register", "post"},
        {"/v2/cudasharedmemory/region/{name}/status", "get"},
        {"/metrics", "get"},
        {"/openapi.json", "get"}};
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        const struct cJSON *found = operation(routes[i][0], routes[i][1]);
        if (!found || !json_member(found, "responses"))
            CHECK_FAIL("no %s of %s", routes[i][1], routes[i][0]);
    }
}

/* Every "$ref" in node and below points at a member of components. */
static void check_references(const struct cJSON *node)
{
    static const char prefix[] = "#/components/";
    for (; node; node = node->next) {
        check_references(node->child);
        if (!node->string || strcmp(node->string, "$ref") != 0)
            continue;
        char path[128];
        const struct cJSON *at = json_member(document, "components");
        CHECK(strncmp(node->valuestring, prefix, sizeof prefix - 1) == 0);
        snprintf(path, sizeof path, "%s",
                 node->valuestring + sizeof prefix - 1);
        char *slash = strchr(path, '/');
        CHECK(slash != NULL);
        *slash = '\0';
        if (!json_member(json_member(at, path), slash + 1))
            CHECK_FAIL("%s points nowhere", node->valuestring);
    }
}

TEST(references_point_at_something)
{
    check_references(document);
}

TEST(path_parameters_are_those_of_the_path)
{
    const struct cJSON *path =
        json_member(json_member(document, "paths"),
                    "/v2/models/{model}/versions/{version}");
    const struct cJSON *params = json_member(path, "parameters");
    CHECK_INT(cJSON_GetArraySize(params), 2);
    CHECK_TEXT(json_member(params->child, "name")->valuestring, "model");
    CHECK_TEXT(json_member(params->child->next, "name")->valuestring,
               "version");
}

/* scope NULL: whoever asks gets it. */
static void check_security(const char *method, const char *path,
                           const char *scope)
{
    const struct cJSON *found = operation(path, method);
    const struct cJSON *security = json_member(found, "security");
    const struct cJSON *answers = json_member(found, "responses");
    const struct cJSON *scopes = json_member(security->child, "bearer");
    CHECK(cJSON_IsArray(security));
    CHECK_INT(cJSON_GetArraySize(security), scope ? 1 : 0);
    CHECK_INT(scopes ? cJSON_GetArraySize(scopes) : 0, scope && scope[0]);
    if (scope && scope[0])
        CHECK_TEXT(scopes->child->valuestring, scope);
    CHECK((json_member(answers, "401") != NULL) == (scope != NULL));
    CHECK((json_member(answers, "403") != NULL) == (scope && scope[0]));
}

TEST(operations_name_their_scope_and_its_refusals)
{
    const struct cJSON *parts = json_member(document, "components");
    const struct cJSON *bearer =
        json_member(json_member(parts, "securitySchemes"), "bearer");
    CHECK_TEXT(json_member(bearer, "type")->valuestring, "http");
    CHECK_TEXT(json_member(bearer, "scheme")->valuestring, "bearer");
    check_security("get", "/v2/health/live", NULL);
    check_security("get", "/v1", "");
    check_security("get", "/v1/rope", "");
    check_security("post", "/v1/rope", "call");
    check_security("get", "/v2/logging", "admin");
    check_security("post", "/v2/logging", "admin");
    check_security("get", "/metrics", "metrics");
    check_security("put", "/v1/regions/{name}", "regions");
}

/* The parameters of a path, of a document. */
static const struct cJSON *parameters_of(const struct cJSON *tree,
                                         const char *path)
{
    return json_member(json_member(json_member(tree, "paths"), path),
                       "parameters");
}

TEST(paths_with_names_say_whose)
{
    const struct cJSON *one = parameters_of(document, "/v1/regions/{name}");
    const struct cJSON *all = parameters_of(document, "/v1/regions");
    CHECK_INT(cJSON_GetArraySize(one), 2);
    CHECK_TEXT(json_member(one->child->next, "name")->valuestring, "tenant");
    CHECK_INT(cJSON_GetArraySize(all), 1);
    CHECK_TEXT(json_member(all->child, "in")->valuestring, "query");
    CHECK(!parameters_of(open_document, "/v1/regions"));
    CHECK_INT(
        cJSON_GetArraySize(parameters_of(open_document, "/v1/regions/{name}")),
        1);
}

/* Also below: no part of a server that asks for no token speaks of them. */
static void check_open(const struct cJSON *node)
{
    for (; node; node = node->next) {
        check_open(node->child);
        if (node->string && (strncmp(node->string, "security", 8) == 0 ||
                             strcmp(node->string, "401") == 0 ||
                             strcmp(node->string, "403") == 0))
            CHECK_FAIL("an open server has '%s'", node->string);
    }
}

TEST(an_open_server_asks_for_nothing)
{
    CHECK(json_member(open_document, "paths") != NULL);
    check_open(open_document);
}

static const struct cJSON *parse(struct buffer *buffer, bool is_guarded)
{
    const struct cJSON *tree = NULL;
    struct roped_error err = {.text = "no memory"};
    buffer_init(buffer);
    openapi_write(buffer, "1.2.3", is_guarded);
    /* strict: a duplicate path or parameter member is an error */
    if (!buffer->has_failed &&
        json_parse(buffer->text, buffer->bytes, &tree, &err) == ROPED_OK)
        return tree;
    fprintf(stderr, "not JSON: %s\n", err.text);
    exit(EXIT_FAILURE);
}

int main(int n_arguments, char **arguments)
{
    struct buffer buffer, open_buffer;
    document = parse(&buffer, true);
    open_document = parse(&open_buffer, false);
    if (n_arguments > 1) {
        FILE *file = fopen(arguments[1], "w");
        if (!file || fwrite(buffer.text, 1, buffer.bytes, file) != buffer.bytes)
            perror(arguments[1]);
        if (file)
            fclose(file);
    }
    check_run();
    json_free(document);
    json_free(open_document);
    buffer_fini(&buffer);
    buffer_fini(&open_buffer);
    return check_done();
}
