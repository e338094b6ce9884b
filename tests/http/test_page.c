/*
 * test_page.c - GET / of a browser, and GET /docs: who gets these pages, with
 * which headers, and that they ask nobody but the daemon. tests/interop has
 * test_page.py and test_docs.py, which look at them in a browser.
 */
#include "check.h"
#include "http/keys.h"

#include <sys/socket.h>
#include <sys/un.h>

static const char browser[] =
    "Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";

static const char *const pages[] = {"/", "/docs"};
enum { N_PAGES = sizeof pages / sizeof *pages };

static struct answer ask_accepting(const struct server *server,
                                   const char *method, const char *path,
                                   const char *accept)
{
    const char *headers[] = {accept, NULL};
    return ask(server, method, path, NULL, 0, headers);
}

static void check_header(const struct answer *answer, const char *name,
                         const char *expected)
{
    const char *value = answer_header(answer, name);
    if (!value || strcmp(value, expected) != 0)
        CHECK_FAIL("%s is '%s', expected '%s'", name, value ? value : "(none)",
                   expected);
}

static void check_page(const struct answer *answer)
{
    const char *policy = answer_header(answer, "Content-Security-Policy");
    CHECK_INT(answer->code, 200);
    CHECK(policy);
    if (!policy)
        return;
    CHECK_CONTAINS(policy, "default-src 'none'; script-src 'sha256-");
    CHECK_CONTAINS(policy, "; style-src 'sha256-");
    CHECK_CONTAINS(policy, "; connect-src 'self'; ");
    CHECK_CONTAINS(policy, "frame-ancestors 'none'");
    CHECK(!strstr(policy, "unsafe"));
    check_header(answer, "Content-Type", "text/html; charset=utf-8");
    check_header(answer, "X-Content-Type-Options", "nosniff");
    check_header(answer, "Referrer-Policy", "no-referrer");
    check_header(answer, "Cache-Control", "no-cache");
    check_header(answer, "Vary", "Accept");
}

TEST(a_browser_gets_the_pages)
{
    struct server server;
    server_start(&server, NULL);
    for (int i = 0; i < N_PAGES; i++) {
        struct answer page = ask_accepting(&server, "GET", pages[i], browser);
        check_page(&page);
        CHECK(strncmp(page.body, "<!doctype html>", 15) == 0);
        CHECK_CONTAINS(page.body, "</html>");
        CHECK(page.bytes <= 60 << 10);
        struct answer head = ask_accepting(&server, "HEAD", pages[i], browser);
        check_page(&head);
        CHECK_INT(head.bytes, 0);
        CHECK_INT(strtol(answer_header(&head, "Content-Length"), NULL, 10),
                  (long)page.bytes);
        answer_free(&head);
        answer_free(&page);
    }
    CHECK(server_stop(&server));
}

/* Programs get what they always got, and on other routes browsers do too. */
TEST(others_get_text_as_ever)
{
    static const char *const others[] = {"Accept: */*",
                                         "Accept:", "Accept: application/json",
                                         "Accept: text/html, text/plain"};
    struct server server;
    server_start(&server, NULL);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        struct answer answer = ask_accepting(&server, "GET", "/", others[i]);
        check_header(&answer, "Content-Type", "text/plain; charset=utf-8");
        CHECK(!answer_header(&answer, "Content-Security-Policy"));
        expect_code(answer, 200, "POST /v1/{operator}", others[i]);
    }
    struct answer answer = ask_accepting(&server, "GET", "/v1", browser);
    check_header(&answer, "Content-Type", "application/json");
    expect_code(answer, 200, "rmsnorm", "GET /v1 of a browser");
    answer = ask_accepting(&server, "POST", "/", browser);
    check_header(&answer, "Allow", "GET");
    expect_code(answer, 405, "expected GET", "POST /");
    CHECK(server_stop(&server));
}

/* The pages have no secret; what they ask for wants the token. */
TEST(with_tokens_the_pages_are_open_and_nothing_else)
{
    static const struct key keys[] = {{"watcher", "metrics", NULL}};
    struct server server;
    const char *flags[] = {"--bearer_token_file", keys_file(), NULL};
    const char *wrong[] = {browser, "Authorization: Bearer wrong", NULL};
    keys_write(keys, 1);
    server_start(&server, flags);
    for (int i = 0; i < N_PAGES; i++) {
        struct answer page = ask_accepting(&server, "GET", pages[i], browser);
        check_page(&page);
        answer_free(&page);
        page = ask(&server, "GET", pages[i], NULL, 0, wrong);
        check_page(&page);
        answer_free(&page);
    }
    expect_code(get(&server, "/"), 401, "token", "the text without a token");
    expect_code(ask_accepting(&server, "GET", "/metrics", browser), 401,
                "token", "/metrics without a token");
    expect_code(ask_as(&server, "watcher", "GET", "/metrics", NULL), 200,
                "roped_build_info", "/metrics with a token");
    CHECK(server_stop(&server));
    unlink(keys_file());
}

/* They are the same for everybody, and compressed where answers are. */
TEST(the_pages_may_be_compressed)
{
    struct server server;
    const char *flags[] = {"--compress_answers", "true", NULL};
    const char *headers[] = {browser, "Accept-Encoding: gzip", NULL};
    server_start(&server, flags);
    for (int i = 0; i < N_PAGES; i++) {
        struct answer page = ask(&server, "GET", pages[i], NULL, 0, headers);
        CHECK(answer_header(&page, "Content-Security-Policy"));
        check_header(&page, "Content-Encoding", "gzip");
        answer_free(&page);
    }
    CHECK(server_stop(&server));
}

/* No address of another host, no attribute that the policy would stop, and
 * nothing that takes text for HTML. */
TEST(the_pages_name_no_other_host)
{
    static const char *const never[] = {
        "://",       "\"//",      "'//",        "`//",       "(//",
        " style=\"", "onclick=",  "onload=",    "innerHTML", "outerHTML",
        "eval(",     "Function(", "insertAdja", "document.w"};
    struct server server;
    server_start(&server, NULL);
    for (int page = 0; page < N_PAGES; page++) {
        struct answer answer =
            ask_accepting(&server, "GET", pages[page], browser);
        for (size_t i = 0; i < sizeof never / sizeof *never; i++)
            if (strstr(answer.body, never[i]))
                CHECK_FAIL("%s has '%s'", pages[page], never[i]);
        answer_free(&answer);
    }
    CHECK(server_stop(&server));
}

static void check_not_at(const char *path, const char *page)
{
    char text[512] = "", request[256];
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(request, sizeof request,
             "GET %s HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n", page, browser);
    memcpy(address.sun_path, path, strlen(path));
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
    CHECK(send(fd, request, strlen(request), 0) == (ssize_t)strlen(request));
    CHECK(recv(fd, text, sizeof text - 1, 0) > 0);
    close(fd);
    CHECK_CONTAINS(text, "HTTP/1.1 4");
}

TEST(admin_listen_has_no_pages)
{
    struct server server;
    char place[80], path[64];
    snprintf(path, sizeof path, "/tmp/roped_page_%d", (int)getpid());
    snprintf(place, sizeof place, "unix:%s", path);
    const char *flags[] = {"--admin_listen", place, NULL};
    server_start(&server, flags);
    for (int i = 0; i < N_PAGES; i++)
        check_not_at(path, pages[i]);
    CHECK(server_stop(&server));
}
