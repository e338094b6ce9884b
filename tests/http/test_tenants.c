/*
 * test_tenants.c - what belongs to whom: regions and tables of one name are
 * unknown to another, their memory too, and quotas hold.
 */
#include "check.h"
#include "http/keys.h"
#include "shared_memory.h"

#include <signal.h>
#include <sys/stat.h>

static const struct key keys[] = {
    {"alice", "call,regions,tables,programs,shm", NULL},
    {"bob", "call,regions,tables,programs,shm", NULL},
    {"carol", "regions,tables,programs", "bytes=1m,names=2"},
    {"root", "admin", NULL},
};
enum { N_KEYS = sizeof keys / sizeof *keys };

static struct server server;

static void start(void)
{
    const char *flags[] = {"--bearer_token_file",
                           keys_file(),
                           "--allow_client_shm",
                           "true",
                           "--region_memory",
                           "8m",
                           NULL};
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
    char what[256];
    snprintf(what, sizeof what, "%s %s of %s", method, path, name);
    expect_code(ask_as(&server, name, method, path, NULL), code, part, what);
}

/* The answer, to be freed with answer_free, is 200 and has no part in it. */
static void expect_without(const char *name, const char *path, const char *part)
{
    struct answer answer = ask_as(&server, name, "GET", path, NULL);
    if (answer.code != 200 || strstr(answer.body, part))
        CHECK_FAIL("GET %s of %s: answered %d %s, expected 200 without '%s'",
                   path, name, answer.code, answer.body, part);
    answer_free(&answer);
}

static void put_table(const char *name, const char *path, int code)
{
    expect_code(ask_as(&server, name, "PUT", path, "{\"theta\":500000}"), code,
                "", path);
}

/* ------------------------------------------------------------------- names */

TEST(a_region_of_another_is_unknown)
{
    start();
    expect_as("alice", "PUT", "/v1/regions/plan?bytes=64", 201, "plan");
    expect_as("bob", "GET", "/v1/regions/plan", 404, "no region named");
    expect_as("bob", "DELETE", "/v1/regions/plan", 404, "no region named");
    expect_without("bob", "/v1/regions", "plan");
    expect_as("bob", "GET", "/v1/regions", 200, "\"used\":0");
    expect_as("alice", "GET", "/v1/regions", 200, "\"used\":64");
    expect_without("alice", "/v1/regions", "tenant");
    expect_as("bob", "PUT", "/v1/regions/plan?bytes=32", 201, "32");
    expect_as("bob", "DELETE", "/v1/regions/plan", 200, "{}");
    struct answer answer =
        ask_as(&server, "alice", "GET", "/v1/regions/plan", NULL);
    CHECK_INT(answer.code, 200);
    CHECK_INT(answer.bytes, 64);
    answer_free(&answer);
    stop();
}

TEST(a_table_of_another_is_unknown)
{
    start();
    put_table("alice", "/v1/tables/plan", 201);
    expect_as("bob", "GET", "/v1/tables/plan", 404, "does not exist");
    expect_as("bob", "DELETE", "/v1/tables/plan", 404, "does not exist");
    expect_without("bob", "/v1/tables", "plan");
    put_table("bob", "/v1/tables/plan", 201);
    put_table("bob", "/v1/tables/plan", 200);
    expect_as("bob", "DELETE", "/v1/tables/plan", 200, "{}");
    expect_as("alice", "GET", "/v1/tables/plan", 200, "500000");
    expect_without("alice", "/v1/tables", "tenant");
    stop();
}

/* What a call of name's with this query is answered. */
static void expect_call(const char *name, const char *path, int code,
                        const char *part)
{
    expect_code(ask_as(&server, name, "POST", path, ""), code, part, path);
}

TEST(a_call_uses_the_names_of_its_caller)
{
    start();
    expect_as("alice", "PUT", "/v1/regions/x?dtype=F32&shape=1,4", 201, "F32");
    expect_as("alice", "PUT", "/v1/regions/y?dtype=F32&shape=1,4", 201, "F32");
    put_table("alice", "/v1/tables/t", 201);
    expect_call("alice", "/v1/rmsnorm?from.x=x&into.y=y", 200, "");
    expect_call("bob", "/v1/rmsnorm?from.x=x", 404, "no region named");
    expect_as("bob", "PUT", "/v1/regions/x?dtype=F32&shape=1,4", 201, "F32");
    expect_call("bob", "/v1/rmsnorm?from.x=x&into.y=y", 404,
                "no region named 'y'");
    expect_call("bob", "/v1/rope?from.q=x&table=t", 404, "table 't'");
    static const char infer[] =
        "{\"inputs\":[{\"name\":\"x\",\"datatype\":\"FP32\",\"shape\":[1,4],"
        "\"parameters\":{\"shared_memory_region\":\"x\","
        "\"shared_memory_byte_size\":16}}],\"outputs\":[{\"name\":\"y\","
        "\"parameters\":{\"shared_memory_region\":\"y\","
        "\"shared_memory_byte_size\":16}}]}";
    const char *path = "/v2/models/rmsnorm/infer";
    expect_code(ask_as(&server, "alice", "POST", path, infer), 200, "", path);
    expect_code(ask_as(&server, "bob", "POST", path, infer), 404,
                "Unable to find shared memory region: 'y'", path);
    stop();
}

TEST(a_program_of_another_is_unknown)
{
    const char *norm = "{\"steps\":[{\"op\":\"rmsnorm\",\"in\":{\"x\":\"@x\"},"
                       "\"out\":{\"y\":\"@y\"}}]}";
    const char *path = "/v1/programs/norm";
    start();
    expect_code(ask_as(&server, "alice", "PUT", path, norm), 201, "", path);
    expect_as("alice", "PUT", "/v1/regions/x?dtype=F32&shape=1,4", 201, "F32");
    expect_as("alice", "PUT", "/v1/regions/y?dtype=F32&shape=1,4", 201, "F32");
    expect_call("alice", path, 200, "");
    expect_as("bob", "GET", path, 404, "no_program");
    expect_as("bob", "DELETE", path, 404, "no_program");
    expect_call("bob", path, 404, "no_program");
    expect_without("bob", "/v1/programs", "norm");
    expect_as("root", "GET", "/v1/programs", 200, "\"tenant\":\"alice\"");
    expect_code(ask_as(&server, "bob", "PUT", path, norm), 201, "", path);
    expect_call("bob", path, 404, "no region named"); /* his own regions */
    expect_as("root", "DELETE", "/v1/programs/norm?tenant=alice", 200, "{}");
    expect_as("alice", "GET", path, 404, "no_program");
    expect_code(ask_as(&server, "carol", "PUT", path, norm), 201, "", path);
    put_table("carol", "/v1/tables/t", 201);
    expect_code(ask_as(&server, "carol", "PUT", "/v1/programs/more", norm), 503,
                "program 'more': 'carol' has 2 regions, tables and programs",
                "quota");
    expect_as("carol", "DELETE", path, 200, "{}");
    expect_code(ask_as(&server, "carol", "PUT", "/v1/programs/more", norm), 201,
                "", "more");
    stop();
}

TEST(registered_memory_of_another_is_unknown)
{
    char key[SHARED_KEY_BYTES], body[128];
    const char *path = "/v2/systemsharedmemory/region/m/register";
    close(shared_memory_make(key, 64));
    snprintf(body, sizeof body, "{\"key\":\"%s\",\"byte_size\":64}", key);
    start();
    expect_code(ask_as(&server, "alice", "POST", path, body), 200, "", path);
    expect_as("alice", "GET", "/v2/systemsharedmemory/status", 200, key);
    expect_without("bob", "/v2/systemsharedmemory/status", key);
    expect_as("bob", "GET", "/v2/systemsharedmemory/region/m/status", 404,
              "Unable to find");
    expect_as("bob", "POST", "/v2/systemsharedmemory/unregister", 200, "");
    expect_as("bob", "POST", "/v2/systemsharedmemory/region/m/unregister", 200,
              "");
    expect_as("root", "POST", "/v2/systemsharedmemory/unregister", 200, "");
    expect_as("alice", "GET", "/v2/systemsharedmemory/region/m/status", 200,
              key);
    expect_as("root", "POST", "/v2/systemsharedmemory/unregister?tenant=alice",
              200, "");
    expect_as("alice", "GET", "/v2/systemsharedmemory/status", 200, "[]");
    stop();
    shm_unlink(key);
}

/* ------------------------------------------------------------------- admin */

TEST(an_admin_sees_all_and_acts_for_one)
{
    start();
    expect_as("alice", "PUT", "/v1/regions/plan?bytes=64", 201, "plan");
    expect_as("bob", "PUT", "/v1/regions/plan?bytes=32", 201, "plan");
    put_table("alice", "/v1/tables/wave", 201);
    expect_as("root", "GET", "/v1/regions", 200,
              "\"used\":96,\"regions\":[{\"name\":\"plan\",\"tenant\":"
              "\"alice\",\"kind\":\"resident\",\"bytes\":64");
    expect_as("root", "GET", "/v1/regions", 200,
              "{\"name\":\"plan\",\"tenant\":\"bob\"");
    expect_as("root", "GET", "/v1/tables", 200,
              "{\"name\":\"wave\",\"tenant\":\"alice\"");
    expect_as("root", "GET", "/v1/regions/plan", 404, "no region named");
    expect_as("root", "GET", "/v1/regions?tenant=bob", 200, "\"used\":32");
    expect_without("root", "/v1/regions?tenant=bob", "alice");
    expect_as("root", "GET", "/v1/tables/wave?tenant=alice", 200, "500000");
    expect_as("root", "PUT", "/v1/regions/plan?tenant=alice&bytes=16", 200,
              "\"bytes\":16");
    expect_as("alice", "GET", "/v1/regions", 200, "\"used\":16");
    expect_as("root", "DELETE", "/v1/regions/plan?tenant=bob", 200, "{}");
    expect_as("root", "DELETE", "/v1/tables/wave?tenant=alice", 200, "{}");
    expect_as("bob", "GET", "/v1/regions", 200, "\"regions\":[]");
    expect_as("alice", "GET", "/v1/tables", 200, "\"tables\":[]");
    expect_as("root", "GET", "/v1/regions?tenant=nobody", 404,
              "nobody is called 'nobody'");
    expect_as("bob", "GET", "/v1/regions/plan?tenant=alice", 403,
              "expected 'admin'");
    expect_as("alice", "GET", "/v1/regions?tenant=alice", 403,
              "expected 'admin'");
    stop();
}

/* Its name is gone from the file; what it has stays, for the admin. */
TEST(what_a_token_has_outlives_it)
{
    start();
    expect_as("alice", "PUT", "/v1/regions/plan?bytes=64", 201, "plan");
    keys_write(keys + 1, N_KEYS - 1);
    kill(server.pid, SIGHUP);
    expect_log(&server, "event=token tokens=3");
    expect_as("alice", "GET", "/v1/regions/plan", 401, "wrong");
    expect_as("root", "GET", "/v1/regions", 200, "\"tenant\":\"alice\"");
    keys_write(keys, N_KEYS);
    kill(server.pid, SIGHUP);
    for (int i = 0; i < 500; i++) {
        struct answer answer =
            ask_as(&server, "alice", "GET", "/v1/regions/plan", NULL);
        bool is_known = answer.code == 200;
        answer_free(&answer);
        if (is_known)
            break;
        pause_seconds(0.01);
    }
    expect_as("alice", "GET", "/v1/regions/plan", 200, "");
    stop();
}

/* Waits for the next line of the log that says so. */
static void reload(const struct key *now, size_t n, const char *part)
{
    keys_write(now, n);
    kill(server.pid, SIGHUP);
    expect_log(&server, part);
}

static void write_program(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    CHECK(file && fputs(text, file) >= 0 && fclose(file) == 0);
}

/* As at a start; and who has something to do with them already is left be. */
TEST(a_new_name_gets_the_programs_of_the_folder)
{
    static const char norm[] =
        "{\"inputs\": [\"x\"], \"steps\": [{\"op\": \"rmsnorm\", \"in\": "
        "{\"x\": \"x\"}, \"out\": {\"y\": \"h\"}}], \"outputs\": [\"h\"]}";
    char folder[] = "/tmp/roped_programs_XXXXXX", path[64];
    const char *flags[] = {"--bearer_token_file", keys_file(), "--programs",
                           folder, NULL};
    CHECK(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/norm.json", folder);
    write_program(path, norm);
    keys_write(keys, 2);
    server_start(&server, flags);
    expect_as("alice", "GET", "/v1/programs/norm", 200, norm);
    expect_as("alice", "DELETE", "/v1/programs/norm", 200, "{}");
    reload(keys, 3, "event=token tokens=3");
    expect_as("carol", "GET", "/v1/programs/norm", 200, norm);
    expect_as("alice", "GET", "/v1/programs/norm", 404, "norm");
    write_program(path, "{\"steps\": []}");
    reload(keys, 4, "event=reload error=\"programs: ");
    expect_as("root", "GET", "/v1/programs/norm", 401, "wrong");
    expect_as("carol", "GET", "/v1/programs/norm", 200, norm);
    write_program(path, norm);
    reload(keys, 4, "event=token tokens=4");
    expect_as("root", "GET", "/v1/programs/norm", 200, norm);
    write_program(keys_file(), "secret-of-somebody-without-a-name\n");
    kill(server.pid, SIGHUP);
    expect_log(&server, "event=token tokens=1");
    expect_as("somebody-without-a-name", "GET", "/v1/programs/norm", 200, norm);
    stop();
    unlink(path);
    rmdir(folder);
}

/* ------------------------------------------------------------------ quotas */

TEST(quotas_hold)
{
    start();
    expect_as("carol", "PUT", "/v1/regions/a?bytes=1048577", 413,
              "region 'a': 1048577 bytes, expected at most the quota of "
              "'carol', 1048576");
    expect_as("carol", "PUT", "/v1/regions/a?bytes=1000000", 201, "a");
    struct answer answer =
        ask_as(&server, "carol", "PUT", "/v1/regions/b?bytes=100000", NULL);
    CHECK(answer_header(&answer, "Retry-After"));
    expect_code(answer, 503, "the 48576 that are left of the quota of 'carol'",
                "more than is left");
    put_table("carol", "/v1/tables/t", 201);
    expect_as(
        "carol", "PUT", "/v1/regions/b?bytes=1", 503,
        "region 'b': 'carol' has 2 regions, tables and programs, expected "
        "fewer than the quota, 2");
    expect_code(
        ask_as(&server, "carol", "PUT", "/v1/tables/u", "{\"theta\":1}"), 503,
        "table 'u': 'carol' has 2 regions, tables and programs, expected "
        "fewer than the quota, 2",
        "u");
    put_table("carol", "/v1/tables/t", 200);
    expect_as("alice", "PUT", "/v1/regions/b?bytes=2000000", 201, "b");
    expect_as("carol", "DELETE", "/v1/regions/a", 200, "{}");
    expect_as("carol", "PUT", "/v1/regions/b?bytes=1048576", 201, "b");
    stop();
}

/* A model whose layers are of two types has two tables. */
TEST(a_quota_takes_all_tables_of_a_model_or_none)
{
    static const char gemma[] =
        "{\"model_type\":\"gemma3_text\",\"head_dim\":256,"
        "\"rope_theta\":%d,\"rope_local_base_freq\":%d,"
        "\"max_position_embeddings\":4096}";
    char first[256], second[256];
    snprintf(first, sizeof first, gemma, 1000000, 10000);
    snprintf(second, sizeof second, gemma, 2000000, 20000);
    start();
    expect_as("carol", "PUT", "/v1/regions/a?bytes=8", 201, "a");
    expect_code(ask_as(&server, "carol", "PUT", "/v1/tables/g", first), 503,
                "table 'g.sliding_attention': 'carol' has 2 regions, tables",
                "one too many");
    expect_as("carol", "GET", "/v1/tables", 200, "{\"tables\":[]}");
    put_table("carol", "/v1/tables/t", 201); /* nothing was claimed for it */
    put_table("carol", "/v1/tables/u", 503);
    expect_as("carol", "DELETE", "/v1/regions/a", 200, "{}");
    put_table("carol", "/v1/tables/g.full_attention", 201);
    expect_code(ask_as(&server, "carol", "PUT", "/v1/tables/g", second), 503,
                "quota", "one is there, and the other is too many");
    expect_as("carol", "GET", "/v1/tables/g.full_attention", 200,
              "\"theta\":500000");
    expect_as("carol", "DELETE", "/v1/tables/t", 200, "{}");
    expect_code(ask_as(&server, "carol", "PUT", "/v1/tables/g", second), 200,
                "\"theta\":20000", "both fit");
    expect_as("carol", "GET", "/v1/tables/g.full_attention", 200,
              "\"theta\":2000000");
    stop();
}

/* ------------------------------------------------------------------ memory */

/* What alice leaves in memory bob does not get, in whichever way he asks. */
TEST(freed_memory_is_never_read_by_another)
{
    enum { ROWS = 256, H = 64 }; /* 64 KiB: from a heap, which is not cleared */
    size_t bytes;
    unsigned char *body = ones(ROWS, H, &bytes);
    const char *alice[] = {"Authorization: Bearer secret-of-alice", NULL};
    start();
    for (int round = 0; round < 3; round++) {
        expect_code(
            ask(&server, "PUT", "/v1/regions/secret", body, bytes, alice), 201,
            "secret", "alice stores");
        expect_as("alice", "DELETE", "/v1/regions/secret", 200, "{}");
        /* half a body, then hung up: the region is never listed */
        char half[512];
        int length = snprintf(
            half, sizeof half,
            "PUT /v1/regions/found HTTP/1.1\r\nHost: localhost\r\n"
            "Authorization: Bearer secret-of-bob\r\nContent-Length: %zu"
            "\r\n\r\n",
            bytes);
        memcpy(half + length, body, 256);
        close(open_raw(&server, half, (size_t)length + 256));
        expect_as("bob", "GET", "/v1/regions/found", 404, "no region named");
        expect_as("bob", "PUT", "/v1/regions/found?bytes=65536", 201, "found");
        struct answer answer =
            ask_as(&server, "bob", "GET", "/v1/regions/found", NULL);
        size_t n_left = 0;
        for (size_t i = 0; i < answer.bytes; i++)
            n_left += answer.body[i] != 0;
        CHECK_INT(answer.code, 200);
        CHECK_INT(answer.bytes, 65536);
        CHECK_INT(n_left, 0);
        answer_free(&answer);
        expect_as("bob", "DELETE", "/v1/regions/found", 200, "{}");
    }
    free(body);
    stop();
}

/* ----------------------------------------------------------------- metrics */

/* The value of a series, as an admin sees it. */
static double metric_of(const char *name)
{
    struct answer answer = ask_as(&server, "root", "GET", "/metrics", NULL);
    char line[128];
    snprintf(line, sizeof line, "\n%s ", name);
    const char *at = strstr(answer.body, line);
    double value = at ? strtod(at + strlen(line), NULL) : -1;
    CHECK(!strstr(answer.body, "secret-of"));
    answer_free(&answer);
    return value;
}

TEST(metrics_sum_tenants_and_count_names)
{
    start();
    expect_as("alice", "PUT", "/v1/regions/a?bytes=64", 201, "a");
    expect_as("bob", "PUT", "/v1/regions/a?bytes=32", 201, "a");
    put_table("bob", "/v1/tables/a", 201);
    expect_as("bob", "GET", "/metrics", 403, "metrics");
    CHECK_DOUBLE(metric_of("roped_regions{kind=\"resident\"}"), 2, 0);
    CHECK_DOUBLE(metric_of("roped_region_bytes{kind=\"resident\"}"), 96, 0);
    CHECK_DOUBLE(metric_of("roped_tables_named"), 1, 0);
    CHECK_DOUBLE(metric_of("roped_token_requests_total{name=\"alice\"}"), 1, 0);
    CHECK_DOUBLE(metric_of("roped_token_requests_total{name=\"bob\"}"), 2, 0);
    CHECK_DOUBLE(metric_of("roped_token_refusals_total{name=\"bob\"}"), 1, 0);
    CHECK_DOUBLE(metric_of("roped_token_requests_total{name=\"carol\"}"), 0, 0);
    stop();
}

/* ---------------------------------------------------- programs of a folder */

static const char *folder(void)
{
    static char path[64];
    snprintf(path, sizeof path, "/tmp/roped_tenants_%d", (int)getpid());
    return path;
}

/* Each name has its own, as if it had PUT it: what one deletes others keep. */
TEST(a_program_of_the_folder_is_everybodys)
{
    char path[128];
    const char *flags[] = {"--bearer_token_file", keys_file(), "--programs",
                           folder(), NULL};
    CHECK(mkdir(folder(), 0700) == 0);
    snprintf(path, sizeof path, "%s/norm.json", folder());
    FILE *file = fopen(path, "w");
    fputs("{\"inputs\": [\"x\"], \"steps\": [{\"op\": \"rmsnorm\", "
          "\"in\": {\"x\": \"x\"}, \"out\": {\"y\": \"h\"}}], "
          "\"outputs\": [\"h\"]}",
          file);
    CHECK(fclose(file) == 0);
    keys_write(keys, N_KEYS);
    server_start(&server, flags);
    for (int i = 0; i < N_KEYS; i++)
        expect_as(keys[i].name, "GET", "/v1/programs/norm", 200, "rmsnorm");
    expect_as("alice", "DELETE", "/v1/programs/norm", 200, "{}");
    expect_as("alice", "GET", "/v1/programs/norm", 404, "does not exist");
    expect_as("bob", "GET", "/v1/programs/norm", 200, "rmsnorm");
    expect_without("root", "/v1/programs", "\"tenant\":\"\"");
    stop();
    unlink(path);
    rmdir(folder());
}
