/*
 * test_servers_request.c - which requests libroped_client may send twice, and
 * which ones need what stays on a server, as their paths say it.
 */
#include "roped_servers.h"

#include "check.h"

static struct servers_request post(const char *path)
{
    return servers_request_make("POST", path);
}

TEST(calls_that_write_into_no_region_may_run_twice)
{
    CHECK(post("/v1/rmsnorm?eps=1e-5").is_safe);
    CHECK(post("/v1/rmsnorm?from.x=a").is_safe);
    CHECK(!post("/v1/rmsnorm?from.x=a&into.y=b").is_safe);
    CHECK(!post("/v1/rope_append?from.k_cache=a").is_safe); /* updated */
    CHECK(!post("/v1/later?from.x=a").is_safe);             /* not known here */
    CHECK(post("/v1/rmsnorm?table=into.x").is_safe);
}

/* The server decodes names of parameters before it reads them. */
TEST(a_name_may_be_percent_encoded)
{
    static const char *const into[] = {"into%2Ey", "into%2ey", "%69nto.y",
                                       "%69%6E%74%6F%2E%79"};
    for (size_t i = 0; i < sizeof into / sizeof *into; i++) {
        char path[64];
        snprintf(path, sizeof path, "/v1/rmsnorm?eps=1&%s=r", into[i]);
        CHECK(!post(path).is_safe);
        CHECK(post(path).is_kept);
    }
    CHECK(!post("/v1/rope_append?from%2Ek_cache=a").is_safe);
    CHECK(post("/v1/rmsnorm?from%2Ex=a").is_kept);
    CHECK(post("/v1/rope?t%61ble=mine").is_kept);
    CHECK(post("/v1/rmsnorm?eps=1%").is_safe); /* nothing to decode */
    CHECK(!post("/v1/rmsnorm?eps=1%2").is_kept);
}

/* Paths too. */
TEST(what_stays_on_a_server_is_found_in_any_spelling)
{
    static const char *const kept[] = {"/v1/regions/a",   "/v1/region%73",
                                       "/v1/%72egions/a", "/v1/tables/a",
                                       "/v1/t%61bles",    "/v1/programs",
                                       "/v1/programs/a",  "/v1/pr%6Fgrams/a"};
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        CHECK(servers_request_make("GET", kept[i]).is_kept);
        CHECK(!post(kept[i]).is_safe);
    }
    CHECK(post("/v2/systemsharedmemory/region/a/register").is_kept);
    CHECK(post("/v2/cudashared%6Demory/unregister").is_kept);
    CHECK(!post("/v1/rope%5Fappend?from.k_cache=a").is_safe);
    CHECK(post("/v1/rmsn%6Frm?from.x=a").is_safe);
    CHECK(!post("/v1/rmsnorm").is_kept);
}

/* Its document, which the path does not say, may have regions for outputs. */
TEST(a_program_does_not_run_twice)
{
    CHECK(!post("/v1/programs/decode").is_safe);
    CHECK(!post("/v1/programs").is_safe);
    CHECK(!post("/v1/programs?eps=1").is_safe);
}
