/*
 * test_matrix.c - every route of the table asked without a token, with a wrong
 * one, with a token of each scope, and by another tenant: the answer that each
 * must get, printed as a table.
 *
 * What a route answers to those who may have it says an open daemon that has
 * what they have. Another tenant must get, to the byte, what a daemon answers
 * that has nothing.
 */
#include "check.h"
#include "http/keys.h"
#include "http/route.h"
#include "shared_memory.h"

static const struct key keys[] = {
    {"call", "call", NULL},
    {"regions", "regions", NULL},
    {"tables", "tables", NULL},
    {"programs", "programs", NULL},
    {"shm", "shm", NULL},
    {"metrics", "metrics", NULL},
    {"admin", "admin", NULL},
    {"other", "call,regions,tables,programs,shm,metrics", NULL},
};
enum { N_KEYS = sizeof keys / sizeof *keys };

/* Who asks: a column. */
static const struct asker {
    const char *title, *name; /* name NULL: no token */
    unsigned scopes;
} askers[] = {
    {"none", NULL, 0},
    {"wrong", "nobody", 0},
    {"call", "call", 1u << SCOPE_CALL},
    {"regions", "regions", 1u << SCOPE_REGIONS},
    {"tables", "tables", 1u << SCOPE_TABLES},
    {"programs", "programs", 1u << SCOPE_PROGRAMS},
    {"shm", "shm", 1u << SCOPE_SHM},
    {"metrics", "metrics", 1u << SCOPE_METRICS},
    {"admin", "admin", 1u << SCOPE_ADMIN},
    {"other", "other",
     1u << SCOPE_CALL | 1u << SCOPE_REGIONS | 1u << SCOPE_TABLES |
         1u << SCOPE_PROGRAMS | 1u << SCOPE_SHM | 1u << SCOPE_METRICS},
};
enum { N_ASKERS = sizeof askers / sizeof *askers };

static struct server guarded, open_server;
static char shared_key[SHARED_KEY_BYTES], registration[128];
static unsigned char *tensors;
static size_t tensor_bytes;

/* A request of a route. */
struct query {
    const char *method;
    char path[160];
    const void *body;
    size_t bytes;
    bool is_page;
};

/* ---------------------------------------------------------------- requests */

/* What stands for '*' in a pattern that begins so. */
static const char *name_for(const char *pattern, int which)
{
    if (which > 0)
        return "1"; /* a model's version */
    if (strstr(pattern, "sharedmemory"))
        return "shared";
    return strncmp(pattern, "/v1/regions/", 12) == 0 ||
                   strncmp(pattern, "/v1/tables/", 11) == 0 ||
                   strncmp(pattern, "/v1/programs/", 13) == 0
               ? "mine"
               : "rmsnorm";
}

static const char program[] =
    "{\"inputs\":[\"x\"],\"steps\":[{\"op\":\"rmsnorm\",\"in\":{\"x\":\"x\"},"
    "\"out\":{\"y\":\"y\"}}],\"outputs\":[\"y\"]}";

static const char *document_for(const struct route *route)
{
    if (strstr(route->path, "systemsharedmemory"))
        return registration;
    if (strstr(route->path, "/programs/"))
        return program;
    return strstr(route->path, "/tables/") ? "{\"theta\":5000}" : "{}";
}

static void set_body(const struct route *route, struct query *out)
{
    static const char infer[] =
        "{\"inputs\":[{\"name\":\"x\",\"datatype\":\"FP32\",\"shape\":[1,2],"
        "\"data\":[3,4]}]}";
    bool is_post = strcmp(route->method, "POST") == 0;
    const char *text = is_post ? "" : NULL;
    if (route->body == BODY_JSON)
        text = document_for(route);
    if (route->body == BODY_V2)
        text = infer;
    out->body = text;
    out->bytes = text ? strlen(text) : 0;
    if (route->body == BODY_V1 || route->body == BODY_PROGRAM) {
        out->body = tensors;
        out->bytes = tensor_bytes;
    }
}

static struct query query_of(const struct route *route)
{
    struct query query = {.method = route->method,
                          .is_page = route->kind == ROUTE_PAGE};
    size_t at = 0;
    int n_names = 0;
    for (const char *from = route->path; *from; from++)
        at += (size_t)(*from == '*'
                           ? snprintf(query.path + at, sizeof query.path - at,
                                      "%s", name_for(route->path, n_names++))
                           : snprintf(query.path + at, sizeof query.path - at,
                                      "%c", *from));
    if (route->body == BODY_TENSOR)
        snprintf(query.path + at, sizeof query.path - at, "?bytes=64");
    set_body(route, &query);
    return query;
}

static struct answer ask_query(const struct server *server, const char *name,
                               const struct query *query)
{
    char token[128];
    const char *accept = query->is_page ? "Accept: text/html" : "Accept: */*";
    const char *headers[] = {accept, name ? token : NULL, NULL};
    snprintf(token, sizeof token, "Authorization: Bearer secret-of-%s",
             name ? name : "");
    return ask(server, query->method, query->path, query->body, query->bytes,
               headers);
}

static void change(const struct server *server, const char *name,
                   const char *method, const char *path, const char *body)
{
    struct answer answer = ask_as(server, name, method, path, body);
    answer_free(&answer);
}

/* Gives a caller a region, a table and registered memory, as far as it may
 * have them; and takes them away. */
static void furnish(const struct server *server, const char *name)
{
    change(server, name, "PUT", "/v1/regions/mine?bytes=64", NULL);
    change(server, name, "PUT", "/v1/tables/mine", "{\"theta\":5000}");
    change(server, name, "PUT", "/v1/programs/mine", program);
    change(server, name, "POST",
           "/v2/systemsharedmemory/region/shared/register", registration);
}

static void clear(const struct server *server, const char *name)
{
    change(server, name, "DELETE", "/v1/regions/mine", NULL);
    change(server, name, "DELETE", "/v1/tables/mine", NULL);
    change(server, name, "DELETE", "/v1/programs/mine", NULL);
    change(server, name, "POST", "/v2/systemsharedmemory/unregister", "");
}

/* ------------------------------------------------------------------- cells */

/* Registering what is there already is refused: that route starts empty. */
static void prepare(const struct server *server, const char *name,
                    const struct query *query)
{
    clear(server, name);
    if (!strstr(query->path, "/register"))
        furnish(server, name);
}

/* What an open daemon answers, with names or without. */
static struct answer oracle(const struct query *query, bool has_names)
{
    if (has_names)
        prepare(&open_server, NULL, query);
    else
        clear(&open_server, NULL);
    return ask_query(&open_server, NULL, query);
}

static int expected_code(const struct asker *asker, enum scope scope,
                         const struct query *query)
{
    bool is_other = strcmp(asker->title, "other") == 0;
    if (scope != SCOPE_OPEN && asker->scopes == 0)
        return 401;
    if (!scopes_allow(asker->scopes, scope))
        return 403;
    /* a program is found by its maker, whoever may run it */
    bool may_have = !strstr(query->path, "/v1/programs/") ||
                    scopes_allow(asker->scopes, SCOPE_PROGRAMS);
    struct answer answer = oracle(query, !is_other && may_have);
    int code = answer.code;
    answer_free(&answer);
    return code;
}

/* The names that others have are not in what a tenant without any gets. */
static void check_body(const struct query *query, const struct answer *answer)
{
    struct answer empty = oracle(query, false);
    if (strcmp(answer->body, empty.body) != 0)
        CHECK_FAIL("%s %s answers another tenant '%s', expected '%s'",
                   query->method, query->path, answer->body, empty.body);
    answer_free(&empty);
}

static bool has_names(enum scope scope)
{
    return scope == SCOPE_REGIONS || scope == SCOPE_TABLES ||
           scope == SCOPE_PROGRAMS || scope == SCOPE_SHM;
}

static void check_cell(const struct asker *asker, enum scope scope,
                       const struct query *query)
{
    bool is_other = strcmp(asker->title, "other") == 0;
    int expected = expected_code(asker, scope, query);
    if (is_other)
        clear(&guarded, "other");
    else
        prepare(&guarded, asker->name, query);
    struct answer answer = ask_query(&guarded, asker->name, query);
    if (answer.code != expected)
        CHECK_FAIL("%s %s with token '%s': answered %d %.100s, expected %d",
                   query->method, query->path, asker->title, answer.code,
                   answer.body, expected);
    if (answer.code == 403)
        CHECK_CONTAINS(answer.body, scope_name(scope));
    if (is_other && has_names(scope))
        check_body(query, &answer);
    printf(" %7d", answer.code);
    answer_free(&answer);
}

static void check_row(const char *pattern, enum scope scope,
                      const struct query *query)
{
    /* those whose names the other must not see */
    for (int i = 0; i < N_KEYS - 1 && has_names(scope); i++)
        furnish(&guarded, keys[i].name);
    printf("%-6s %-46s %-7s", query->method, pattern, scope_name(scope));
    for (int i = 0; i < N_ASKERS; i++)
        check_cell(&askers[i], scope, query);
    printf("\n");
}

static void print_head(void)
{
    printf("%-6s %-46s %-7s", "", "route", "scope");
    for (int i = 0; i < N_ASKERS; i++)
        printf(" %7s", askers[i].title);
    printf("\n");
}

TEST(every_route_answers_everybody_as_it_must)
{
    static const struct query unknown = {.method = "GET", .path = "/none"};
    print_head();
    for (int i = 0; i < route_count(); i++) {
        const struct route *route = route_at(i);
        struct query query = query_of(route);
        check_row(route->path, route->scope, &query);
    }
    check_row("(no route)", SCOPE_ANY, &unknown);
}

/* ------------------------------------------------------------------- start */

static void start(void)
{
    const char *flags[] = {"--allow_client_shm", "true", NULL, NULL, NULL};
    close(shared_memory_make(shared_key, 64));
    snprintf(registration, sizeof registration,
             "{\"key\":\"%s\",\"byte_size\":64}", shared_key);
    tensors = ones(1, 4, &tensor_bytes);
    keys_write(keys, N_KEYS);
    server_start(&open_server, flags);
    flags[2] = "--bearer_token_file";
    flags[3] = keys_file();
    server_start(&guarded, flags);
}

static void stop(void)
{
    CHECK(server_stop(&guarded));
    CHECK(server_stop(&open_server));
    unlink(keys_file());
    shm_unlink(shared_key);
    free(tensors);
}

int main(void)
{
    start();
    check_run();
    stop();
    return check_done();
}
