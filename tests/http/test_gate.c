/*
 * test_gate.c - tokens with names: what each may have, how the file is read
 * again, and what the document of the routes says of them.
 */
#include "check.h"
#include "http/keys.h"

#include <cjson/cJSON.h>
#include <signal.h>

static const struct key keys[] = {
    {"caller", "call", NULL},
    {"keeper", "regions,tables", NULL},
    {"root", "admin", NULL},
};
enum { N_KEYS = sizeof keys / sizeof *keys };

static struct server server;

static void start(void)
{
    const char *flags[] = {"--bearer_token_file", keys_file(), NULL};
    keys_write(keys, N_KEYS);
    server_start(&server, flags);
}

static void stop(void)
{
    CHECK(server_stop(&server));
    unlink(keys_file());
}

static void expect_as(const char *name, const char *method, const char *path,
                      int code, const char *part)
{
    expect_code(ask_as(&server, name, method, path, NULL), code, part, path);
}

TEST(a_token_opens_what_it_has_the_scope_of)
{
    start();
    expect_as("caller", "GET", "/v1", 200, "rope");
    expect_as("keeper", "GET", "/v1", 200, "rope");
    expect_as("keeper", "GET", "/v1/regions", 200, "regions");
    expect_as("root", "GET", "/v1/regions", 200, "regions");
    expect_as("root", "GET", "/v2/logging", 200, "log_info");
    expect_as(NULL, "GET", "/v2/health/ready", 200, "true");
    expect_as("nobody", "GET", "/v2/health/ready", 200, "true");
    stop();
}

TEST(a_known_token_without_the_scope_is_403)
{
    start();
    struct answer answer =
        ask_as(&server, "caller", "GET", "/v1/regions", NULL);
    CHECK(!answer_header(&answer, "WWW-Authenticate"));
    expect_code(answer, 403,
                "token 'caller' has scopes call, expected 'regions'",
                "another scope");
    expect_as("keeper", "GET", "/metrics", 403,
              "token 'keeper' has scopes regions, tables, expected 'metrics'");
    expect_as("keeper", "POST", "/v1/rmsnorm", 403, "expected 'call'");
    expect_as("caller", "POST", "/v2/logging", 403, "expected 'admin'");
    /* what is not there is no secret of those who have a token */
    expect_as("caller", "GET", "/none", 404, "no route");
    expect_as("caller", "PATCH", "/v1/regions", 405, "expected");
    stop();
}

TEST(no_token_and_an_unknown_one_are_401)
{
    start();
    static const char *const paths[] = {"/v1", "/none", "/metrics",
                                        "/v1/regions", "/openapi.json"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        struct answer answer = ask_as(&server, NULL, "GET", paths[i], NULL);
        CHECK_TEXT(answer_header(&answer, "WWW-Authenticate"), "Bearer");
        expect_code(answer, 401, "missing bearer token", paths[i]);
        answer = ask_as(&server, "nobody", "GET", paths[i], NULL);
        CHECK_TEXT(answer_header(&answer, "WWW-Authenticate"), "Bearer");
        expect_code(answer, 401, "wrong bearer token", paths[i]);
    }
    stop();
}

/* --------------------------------------------------------------------- log */

TEST(the_line_of_a_request_has_the_name)
{
    const char *flags[] = {"--bearer_token_file", keys_file(), "--log_requests",
                           "true", NULL};
    keys_write(keys, N_KEYS);
    server_start(&server, flags);
    expect_as("keeper", "GET", "/v1/regions", 200, "regions");
    expect_log(&server, "name=\"keeper\"");
    CHECK(!log_has(&server, "name=\"\""));
    expect_as(NULL, "GET", "/v1", 401, "missing");
    expect_log(&server, "name=\"\"");
    CHECK(!log_has(&server, "secret"));
    stop();
}

/* Parts of lines: other pairs may stand between them. */
TEST(a_refused_access_is_a_line_in_the_log)
{
    const char *page[] = {"Origin: http://attacker.example", NULL};
    start();
    expect_as(NULL, "GET", "/v1/tables/secret-plan", 401, "missing");
    expect_log(&server, "level=warn event=refused code=401 error=\"missing "
                        "bearer token");
    expect_log(&server, "client=\"127.0.0.1:");
    expect_log(&server, " method=\"GET\" route=/v1/tables/* id=\"\"");
    CHECK(!log_has(&server, "name=\"caller\""));
    expect_as("nobody", "GET", "/none", 401, "wrong");
    expect_log(&server, "code=401 error=\"wrong bearer token\"");
    expect_log(&server, "route=none");
    expect_as("caller", "DELETE", "/v1/regions/r", 403, "regions");
    expect_log(&server, "code=403 error=\"token 'caller' has scopes call, "
                        "expected 'regions'\"");
    expect_log(&server, "method=\"DELETE\" route=/v1/regions/* ");
    expect_log(&server, "name=\"caller\"");
    expect_code(ask(&server, "GET", "/v1", NULL, 0, page), 403, "origin",
                "a page of another site");
    expect_log(&server, "method=\"GET\" route=/v1 ");
    CHECK(!log_has(&server, "secret"));
    stop();
}

/* ------------------------------------------------------------------ reload */

static void reload(void)
{
    kill(server.pid, SIGHUP);
}

TEST(the_file_is_read_again)
{
    static const struct key others[] = {{"caller", "call,regions", NULL},
                                        {"late", "metrics", NULL}};
    start();
    expect_as("late", "GET", "/metrics", 401, "wrong");
    expect_as("caller", "GET", "/v1/regions", 403, "regions");
    keys_write(others, 2);
    reload();
    expect_log(&server, "event=token tokens=2");
    expect_as("late", "GET", "/metrics", 200, "roped_build_info");
    expect_as("caller", "GET", "/v1/regions", 200, "regions");
    expect_as("root", "GET", "/v1", 401, "wrong");
    stop();
}

TEST(a_broken_file_leaves_the_tokens_before_in_force)
{
    start();
    FILE *file = fopen(keys_file(), "a");
    fputs("# half a line\nsomebody sha256:00\n", file);
    fclose(file);
    reload();
    expect_log(&server, "level=error event=reload error=\"bearer_token_file");
    expect_log(&server, "line 5: expected 'name sha256:HEX scopes [quota]'");
    expect_as("caller", "GET", "/v1", 200, "rope");
    CHECK_INT(unlink(keys_file()), 0);
    reload();
    expect_log(&server, "No such file");
    expect_as("caller", "GET", "/v1", 200, "rope");
    stop();
}

/* A daemon that was started open stays so: its Host check depends on it. */
TEST(without_a_file_nothing_is_reloaded)
{
    server_start(&server, NULL);
    reload();
    expect_log(&server, "event=signal name=HUP");
    expect_as(NULL, "GET", "/v1", 200, "rope");
    CHECK(server_stop(&server));
}

/* ---------------------------------------------------------------- document */

static const cJSON *security_of(const cJSON *document, const char *path,
                                const char *method)
{
    const cJSON *paths = cJSON_GetObjectItem(document, "paths");
    const cJSON *found =
        cJSON_GetObjectItem(cJSON_GetObjectItem(paths, path), method);
    return cJSON_GetObjectItem(found, "security");
}

TEST(the_document_names_the_scopes_of_the_routes)
{
    start();
    struct answer answer =
        ask_as(&server, "caller", "GET", "/openapi.json", NULL);
    cJSON *document = cJSON_Parse(answer.body);
    const cJSON *regions = security_of(document, "/v1/regions/{name}", "put");
    const cJSON *infer = security_of(
        document, "/v2/models/{model}/versions/{version}/infer", "post");
    CHECK_TEXT(cJSON_GetStringValue(regions->child->child->child), "regions");
    CHECK_TEXT(cJSON_GetStringValue(infer->child->child->child), "call");
    CHECK_INT(
        cJSON_GetArraySize(security_of(document, "/v2/health/live", "get")), 0);
    CHECK_INT(cJSON_GetArraySize(security_of(document, "/v1", "get")), 1);
    cJSON_Delete(document);
    answer_free(&answer);
    stop();
}
