/*
 * test_address.c - addresses of the setting 'listen': to a socket's, and what
 * that says of who can reach it.
 */
#include "address.h"
#include "check.h"

#include <stddef.h>
#include <sys/un.h>

static struct roped_error err;
static struct sockaddr_storage address;
static socklen_t bytes;

static struct sockaddr *parse(const char *text)
{
    memset(&address, 0, sizeof address);
    if (address_parse("listen", text, &address, &bytes, &err))
        CHECK_FAIL("'%s': %s", text, err.text);
    return (struct sockaddr *)&address;
}

static void expect(const char *text, const char *expected)
{
    char found[ADDRESS_TEXT_BYTES];
    struct sockaddr *parsed = parse(text);
    CHECK_TEXT(address_text(parsed, bytes, found), expected);
}

static void expect_refusal(const char *text, const char *part)
{
    err.text[0] = '\0';
    CHECK_INT(address_parse("listen", text, &address, &bytes, &err),
              ROPED_INVALID);
    CHECK_CONTAINS(err.text, part);
    CHECK_CONTAINS(err.text, text);
}

TEST(addresses_are_read_and_written)
{
    expect("127.0.0.1:8000", "127.0.0.1:8000");
    expect("0.0.0.0:0", "0.0.0.0:0");
    expect("[::1]:8000", "[::1]:8000");
    expect("[::]:65535", "[::]:65535");
    expect("::1:80", "[::1]:80");
    expect("[fe80::1%1]:80", "[fe80::1]:80");
    expect("localhost:80", "127.0.0.1:80"); /* whatever /etc/hosts says */
    expect("unix:/run/roped.sock", "unix:/run/roped.sock");
    CHECK_INT(parse("127.0.0.1:1")->sa_family, AF_INET);
    CHECK_INT(parse("[::1]:1")->sa_family, AF_INET6);
    CHECK(bytes > 16 && bytes <= sizeof address);
}

TEST(what_is_no_address_is_refused)
{
    char text[300];
    expect_refusal("unix:", "expected unix:/path of at most 107 bytes");
    expect_refusal("unix:run/roped.sock", "expected unix:/path");
    snprintf(text, sizeof text, "unix:/%0107d", 0);
    expect_refusal(text, "at most 107 bytes");
    expect_refusal("", "expected address:port");
    expect_refusal("8000", "expected address:port");
    expect_refusal("127.0.0.1", "expected address:port");
    expect_refusal("[::1]", "port of 0 to 65535");
    expect_refusal("300.0.0.1:80", "expected address:port: ");
    expect_refusal("[127.0.0.1:80", "expected address:port: ");
    expect_refusal("127.0.0.1:", "port of 0 to 65535");
    expect_refusal("127.0.0.1:65536", "port of 0 to 65535");
    expect_refusal("127.0.0.1:-1", "port of 0 to 65535");
    expect_refusal("127.0.0.1:+1", "port of 0 to 65535");
    expect_refusal("127.0.0.1: 1", "port of 0 to 65535");
    expect_refusal("127.0.0.1:http", "port of 0 to 65535");
    expect_refusal("127.0.0.1:4294967376", "port of 0 to 65535");
    memset(text, 'a', sizeof text);
    memcpy(text + 200, ":80", 4);
    expect_refusal(text, "expected address:port");
}

TEST(loopback_is_this_host_alone)
{
    CHECK(address_is_loopback(parse("127.0.0.1:80")));
    CHECK(address_is_loopback(parse("127.255.0.9:80")));
    CHECK(address_is_loopback(parse("[::1]:80")));
    CHECK(address_is_loopback(parse("[::ffff:127.0.0.2]:80")));
    CHECK(address_is_loopback(parse("unix:/x")));
    CHECK(!address_is_loopback(parse("0.0.0.0:80")));
    CHECK(!address_is_loopback(parse("[::]:80")));
    CHECK(!address_is_loopback(parse(":80")));
    CHECK(!address_is_loopback(parse("126.255.255.255:80")));
    CHECK(!address_is_loopback(parse("128.0.0.1:80")));
    CHECK(!address_is_loopback(parse("1.0.0.127:80")));
    CHECK(!address_is_loopback(parse("[::2]:80")));
    CHECK(!address_is_loopback(parse("[::ffff:10.0.0.1]:80")));
    CHECK(!address_is_loopback(parse("[fe80::1]:80")));
    address.ss_family = AF_PACKET;
    CHECK(!address_is_loopback((struct sockaddr *)&address));
}

static void expect_asked(const char *text, const char *expected)
{
    char found[ADDRESS_TEXT_BYTES];
    struct sockaddr *asked = parse(text);
    address_to_ask(asked);
    CHECK_TEXT(address_text(asked, bytes, found), expected);
}

TEST(a_wildcard_is_asked_at_its_loopback)
{
    expect_asked("0.0.0.0:80", "127.0.0.1:80");
    expect_asked("[::]:80", "[::1]:80");
    expect_asked("127.0.0.2:80", "127.0.0.2:80");
    expect_asked("192.0.2.1:80", "192.0.2.1:80");
    expect_asked("[2001:db8::1]:80", "[2001:db8::1]:80");
    struct sockaddr *asked =
        parse(":80"); /* of the family that it listens on */
    address_to_ask(asked);
    CHECK(address_is_loopback(asked));
}

/* n bytes of a name, in memory that held something else. */
static void expect_name(const char *name, size_t n, const char *expected)
{
    char found[ADDRESS_TEXT_BYTES];
    struct sockaddr_un local;
    memset(&local, 'x', sizeof local);
    local.sun_family = AF_UNIX;
    memcpy(local.sun_path, name, n);
    const size_t before = offsetof(struct sockaddr_un, sun_path);
    CHECK_TEXT(address_text((const struct sockaddr *)&local,
                            (socklen_t)(before + n), found),
               expected);
}

TEST(a_unix_socket_has_the_name_that_the_kernel_gave_and_no_more)
{
    char longest[sizeof((struct sockaddr_un *)NULL)->sun_path + 6] = "unix:";
    memset(longest + 5, 'p', sizeof longest - 6);
    longest[sizeof longest - 1] = '\0';
    expect_name("", 0, "unix:");
    expect_name("/run/a", 6, "unix:/run/a");
    expect_name("/run/a\0b", 8, "unix:/run/a");
    expect_name("\0a", 2, "unix:@a");
    expect_name("\0", 1, "unix:");
    expect_name(longest + 5, sizeof longest - 6, longest);
}
