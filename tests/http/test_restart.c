/*
 * test_restart.c - a device is lost, and the daemon starts itself anew: where
 * it listens, what it has forgotten, and what becomes of those who come
 * meanwhile. On a GPU (roped_fault_cuda) the fault is a real one.
 */
#include "check.h"
#include "http/recover.h"

#include <signal.h>
#include <unistd.h>

static struct server server;

static struct answer put(const char *path, const char *body)
{
    return ask(&server, "PUT", path, body, body ? strlen(body) : 0, NULL);
}

static struct answer drop(const char *path)
{
    return ask(&server, "DELETE", path, NULL, 0, NULL);
}

static void print_seconds(const char *what, double seconds)
{
    printf("%s: %.2f s from the fault to the next right answer\n", what,
           seconds);
}

TEST(a_lost_device_is_a_new_process_in_its_place)
{
    recover_start(&server, "launch 3 sticky", NULL);
    CHECK(call_ones(&server, 2, 8) && call_ones(&server, 2, 8));
    CHECK_DOUBLE(metric(&server, "roped_restarts_total "), 0, 0);
    print_seconds("a small call", recover_from_call(&server));
    CHECK(server_is_alive(&server));
    CHECK_DOUBLE(metric(&server, "roped_restarts_total "), 1, 0);
    CHECK(server_log_says(&server, "level=error event=device_lost device=0"));
    CHECK(server_log_says(&server, "event=restarted restarts=1 lost=0"));
    CHECK(call_ones(&server, 64, 1024));
    CHECK(server_stop(&server));
}

static void expect_lost(const char *kind)
{
    char part[64];
    snprintf(part, sizeof part, "%s: lost when device 0 was reset at 20", kind);
    bool is_table = kind[0] == 't';
    expect_code(get(&server, is_table ? "/v1/tables/plan" : "/v1/regions/kv"),
                410, part, "GET");
    expect_code(get(&server, is_table ? "/v1/tables" : "/v1/regions"), 200,
                is_table ? "\"tables\":[]" : "\"regions\":[]", "the list");
}

TEST(what_was_lost_says_so_until_it_is_made_anew)
{
    recover_start(&server, "launch 1 sticky", NULL);
    expect_code(put("/v1/regions/kv?dtype=F32&shape=2,8", NULL), 201, "",
                "PUT");
    expect_code(put("/v1/regions/old?bytes=64", NULL), 201, "", "PUT");
    expect_code(put("/v1/tables/plan", recover_table), 201, "", "PUT");
    expect_code(put("/v1/tables/old", recover_table), 201, "", "PUT");
    (void)recover_from_call(&server);
    expect_lost("region 'kv'");
    expect_lost("table 'plan'");
    expect_code(
        ask(&server, "POST", "/v1/rmsnorm?eps=0&from.x=kv", NULL, 0, NULL), 410,
        "region 'kv': lost when", "a call with a region");
    expect_code(put("/v1/regions/kv?dtype=F32&shape=2,8", NULL), 201, "",
                "PUT again");
    expect_code(put("/v1/tables/plan", recover_table), 201, "", "PUT again");
    expect_code(get(&server, "/v1/regions/kv"), 200, "", "GET again");
    expect_code(get(&server, "/v1/tables/plan"), 200, "", "GET again");
    expect_code(drop("/v1/regions/old"), 200, "", "DELETE of what was lost");
    expect_code(drop("/v1/tables/old"), 200, "", "DELETE of what was lost");
    expect_code(get(&server, "/v1/regions/old"), 404, "", "GET of none");
    expect_code(get(&server, "/v1/tables/old"), 404, "", "GET of none");
    CHECK(server_stop(&server));
}

int main(void)
{
    RUN(a_lost_device_is_a_new_process_in_its_place);
    RUN(what_was_lost_says_so_until_it_is_made_anew);
    return check_done();
}
