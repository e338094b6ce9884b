/*
 * test_origin.c - which pages may use the daemon, and under which names.
 */
#include "check.h"
#include "http/origin.h"
#include "http/reply.h"

struct asked {
    const char *host, *origin;
    int code; /* 0: allowed */
    const char *key;
};

static void check(const struct origin_rules *rules, const struct asked *asked,
                  int n)
{
    for (int i = 0; i < n; i++) {
        struct head head = {.method = "GET", .path = "/"};
        struct roped_error err = {.text = ""};
        if (asked[i].host)
            head_add_header(&head, "Host", 4, asked[i].host,
                            strlen(asked[i].host));
        head.known[HEADER_ORIGIN] = asked[i].origin;
        enum roped_status status = origin_check(rules, &head, &err);
        int code = status ? reply_code(status) : 0;
        if (code != asked[i].code || !strstr(err.text, asked[i].key))
            CHECK_FAIL("Host %s Origin %s: %d '%s', expected %d", asked[i].host,
                       asked[i].origin, code, err.text, asked[i].code);
    }
}

TEST(a_private_daemon_is_asked_by_its_own_name)
{
    const struct origin_rules rules = {.allowed_origins = "",
                                       .allowed_hosts = "gpu.example, b:81",
                                       .is_private = true};
    static const struct asked asked[] = {
        {NULL, NULL, 0, ""},
        {"localhost", NULL, 0, ""},
        {" \tlocalhost\t", NULL, 0, ""},
        {"LOCALHOST:8000", NULL, 0, ""},
        {"127.0.0.1:8000", NULL, 0, ""},
        {"127.9.9.9", NULL, 0, ""},
        {"[::1]:8000", NULL, 0, ""},
        {"gpu.example:8000", NULL, 0, ""},
        {"b:81", NULL, 0, ""},
        {"b:82", NULL, 421, "allowed_hosts"},
        {"attacker.example", NULL, 421, "allowed_hosts"},
        {"127.0.0.1.attacker.example", NULL, 421, "allowed_hosts"},
        {"localhost.attacker.example", NULL, 421, "allowed_hosts"},
        {"128.0.0.1", NULL, 421, "allowed_hosts"},
        {"[::2]", NULL, 421, "allowed_hosts"},
        {"a b", NULL, 400, "invalid Host"},
        {"localhost/x", NULL, 400, "invalid Host"},
    };
    check(&rules, asked, sizeof asked / sizeof *asked);
}

TEST(others_answer_to_any_name)
{
    const struct origin_rules rules = {.allowed_origins = "",
                                       .allowed_hosts = ""};
    static const struct asked asked[] = {
        {"attacker.example", NULL, 0, ""},
        {"attacker.example", "http://attacker.example", 0, ""},
        {"a b", NULL, 400, "invalid Host"},
    };
    check(&rules, asked, sizeof asked / sizeof *asked);
}

TEST(a_page_of_another_host_is_refused_unless_listed)
{
    const struct origin_rules rules = {
        .allowed_origins = "https://a.example,http://b.example:81",
        .allowed_hosts = "",
        .is_private = true};
    static const struct asked asked[] = {
        {"localhost:8000", "http://localhost:8000", 0, ""},
        {"localhost:8000", "https://a.example", 0, ""},
        {"localhost:8000", "http://b.example:81", 0, ""},
        {"localhost:8000", "http://b.example", 403, "allowed_origins"},
        {"localhost:8000", "http://localhost:8001", 403, "allowed_origins"},
        {"localhost:8000", "http://a.example", 403, "allowed_origins"},
        {"localhost:8000", "null", 403, "allowed_origins"},
        {"localhost:8000", "", 403, "allowed_origins"},
        {"localhost:8000", "http://xlocalhost:8000", 403, "allowed_origins"},
        {"evil.example", "https://a.example", 421, "allowed_hosts"},
    };
    check(&rules, asked, sizeof asked / sizeof *asked);
}

TEST(a_browser_may_ask_first)
{
    const struct origin_rules rules = {.allowed_origins = "*",
                                       .allowed_hosts = ""};
    struct head head = {.method = "OPTIONS", .path = "/"};
    CHECK(!origin_is_preflight(&rules, &head));
    head.known[HEADER_REQUEST_METHOD] = "PUT";
    CHECK(!origin_is_preflight(&rules, &head));
    head.known[HEADER_ORIGIN] = "https://any.example";
    CHECK(origin_is_preflight(&rules, &head));
    CHECK_TEXT(origin_allowed(&rules, &head), "https://any.example");
    head.method = "GET";
    CHECK(!origin_is_preflight(&rules, &head));
}
