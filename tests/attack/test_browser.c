/*
 * test_browser.c - web pages and the daemon on their visitor's loopback: a page
 * of another site may not use it (Origin), nor may one whose name was made to
 * point to it (Host, DNS rebinding), unless the operator says so.
 */
#include "attack/attack.h"
#include "check.h"
#include "http/service.h"

#include <sys/stat.h>
#include <unistd.h>

static struct server server;

/* What comes back for these header lines, Host among them. */
static struct exchange ask_with(const char *method, const char *target,
                                const char *lines)
{
    struct bytes text = {0};
    bytes_format(&text, "%s %s HTTP/1.1\r\n%s\r\n", method, target, lines);
    struct exchange all = exchange(server.port, text.start, text.n, 1, 5);
    bytes_free(&text);
    return all;
}

static void expect(const char *method, const char *target, const char *lines,
                   int code, const char *part)
{
    struct exchange all = ask_with(method, target, lines);
    if (exchange_code(&all) != code ||
        !bytes_contain(all.in.start, all.in.n, part))
        CHECK_FAIL("%s %s with %.100s: answered %d %.80s, expected %d with "
                   "'%s'",
                   method, target, lines, exchange_code(&all),
                   all.n_answers ? all.answer[0].body : "", code, part);
    exchange_free(&all);
}

/* Header lines with the daemon's port in the place of each %d. */
static const char *with_port(const char *lines)
{
    static char text[512];
    size_t at = 0;
    for (; *lines && at < sizeof text - 16; lines++) {
        if (lines[0] == '%' && lines[1] == 'd')
            at += (size_t)snprintf(text + at, 8, "%d", server.port), lines++;
        else
            text[at++] = *lines;
    }
    text[at] = '\0';
    return text;
}

static const char *const targets[][2] = {
    {"GET", "/v2/health/live"}, {"GET", "/v2/health/ready"},
    {"GET", "/metrics"},        {"GET", "/"},
    {"GET", "/v1/regions"},     {"GET", "/openapi.json"},
    {"GET", "/nothing"},        {"POST", "/v2/systemsharedmemory/unregister"},
    {"POST", "/v1/rmsnorm"},    {"DELETE", "/v1/regions/none"},
};
enum { N_TARGETS = sizeof targets / sizeof *targets };

/* -------------------------------------------------------------------- Host */

TEST(names_of_others_are_421_on_every_route)
{
    server_start(&server, NULL);
    for (int i = 0; i < N_TARGETS; i++)
        expect(targets[i][0], targets[i][1], "Host: attacker.example\r\n", 421,
               "allowed_hosts");
    expect("GET", "/v1", "Host: attacker.example:80\r\n", 421, "allowed_hosts");
    expect("GET", "/v1", "Host: localhost.attacker.example\r\n", 421,
           "allowed_hosts");
    expect("GET", "/v1", "Host: 127.0.0.1.attacker.example\r\n", 421,
           "allowed_hosts");
    CHECK(server_stop(&server));
}

TEST(names_of_the_loopback_pass)
{
    static const char *const good[] = {
        "Host: localhost\r\n",    "Host: localhost:%d\r\n",
        "Host: LOCALHOST:%d\r\n", "Host: 127.0.0.1\r\n",
        "Host: 127.0.0.1:%d\r\n", "Host: [::1]\r\n",
        "Host: [::1]:%d\r\n",
    };
    server_start(&server, NULL);
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        expect("GET", "/v2/health/live", with_port(good[i]), 200, "live");
    CHECK(server_stop(&server));
}

TEST(allowed_hosts_pass)
{
    const char *flags[] = {"--allowed_hosts", "gpu.example, other.example",
                           NULL};
    server_start(&server, flags);
    expect("GET", "/v1", "Host: gpu.example\r\n", 200, "rmsnorm");
    expect("GET", "/v1", with_port("Host: gpu.example:%d\r\n"), 200, "rmsnorm");
    expect("GET", "/v1", "Host: Other.Example\r\n", 200, "rmsnorm");
    expect("GET", "/v1", "Host: localhost\r\n", 200, "rmsnorm");
    expect("GET", "/v1", "Host: gpu.example.attacker.example\r\n", 421,
           "allowed_hosts");
    CHECK(server_stop(&server));
}

/* A page cannot know the token. */
TEST(with_a_token_any_host_passes)
{
    static const char token[] = "0123456789abcdef0123456789abcdef\n";
    char path[] = "/tmp/attack_token_XXXXXX";
    int fd = mkstemp(path);
    const char *flags[] = {"--bearer_token_file", path, NULL};
    CHECK(fd >= 0 && write(fd, token, sizeof token - 1) > 0);
    close(fd);
    server_start(&server, flags);
    expect("GET", "/v1",
           "Host: anything.example\r\n"
           "Authorization: Bearer 0123456789abcdef0123456789abcdef\r\n",
           200, "rmsnorm");
    expect("GET", "/v2/health/live", "Host: anything.example\r\n", 200, "live");
    expect("GET", "/v1", "Host: anything.example\r\n", 401, "error");
    CHECK(server_stop(&server));
    unlink(path);
}

/* ------------------------------------------------------------------ Origin */

TEST(pages_of_others_are_403)
{
    static const char *const foreign[] = {
        "Host: localhost\r\nOrigin: http://attacker.example\r\n",
        "Host: localhost\r\nOrigin: https://localhost.attacker.example\r\n",
        "Host: localhost\r\nOrigin: null\r\n",
        "Host: localhost:%d\r\nOrigin: http://localhost:1\r\n",
        "Host: localhost\r\nOrigin: file://\r\n",
    };
    server_start(&server, NULL);
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        expect("POST", "/v2/systemsharedmemory/unregister",
               with_port(foreign[i]), 403, "allowed_origins");
    for (int i = 0; i < N_TARGETS; i++)
        expect(targets[i][0], targets[i][1], foreign[0], 403,
               "allowed_origins");
    CHECK(server_stop(&server));
}

TEST(own_pages_pass)
{
    server_start(&server, NULL);
    expect("GET", "/v1",
           with_port("Host: 127.0.0.1:%d\r\nOrigin: http://127.0.0.1:%d\r\n"),
           200, "rmsnorm");
    expect("GET", "/v1",
           with_port("Host: localhost:%d\r\nOrigin: http://localhost:%d\r\n"),
           200, "rmsnorm");
    CHECK(server_stop(&server));
}

static void expect_allowed_origin(const char *method, int code)
{
    char value[256];
    struct exchange all =
        ask_with(method, "/v1/rmsnorm",
                 "Host: localhost\r\nOrigin: https://app.example\r\n"
                 "Access-Control-Request-Method: POST\r\n"
                 "Access-Control-Request-Headers: content-type\r\n");
    CHECK_INT(exchange_code(&all), code);
    bool is_there = all.n_answers > 0 &&
                    found_header(&all.answer[0], "Access-Control-Allow-Origin",
                                 value, sizeof value);
    CHECK(is_there);
    if (is_there)
        CHECK_TEXT(value, "https://app.example");
    if (all.n_answers > 0 && strcmp(method, "OPTIONS") == 0) {
        CHECK(found_header(&all.answer[0], "Access-Control-Allow-Methods",
                           value, sizeof value));
        CHECK_CONTAINS(value, "POST");
        CHECK(found_header(&all.answer[0], "Access-Control-Allow-Headers",
                           value, sizeof value));
    }
    exchange_free(&all);
}

TEST(listed_pages_pass_and_are_told_so)
{
    const char *flags[] = {"--allowed_origins",
                           "https://app.example,https://b.example", NULL};
    server_start(&server, flags);
    expect_allowed_origin("GET", 200);
    expect_allowed_origin("OPTIONS", 204);
    expect("GET", "/v1", "Host: localhost\r\nOrigin: https://b.example\r\n",
           200, "rmsnorm");
    expect("OPTIONS", "/v1/rmsnorm",
           "Host: localhost\r\nOrigin: http://app.example\r\n"
           "Access-Control-Request-Method: POST\r\n",
           403, "allowed_origins");
    CHECK(server_stop(&server));
}
