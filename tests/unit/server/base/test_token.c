/*
 * test_token.c - the bearer token: what a file may hold, what is refused and
 * in which words, and which headers carry it.
 */
#include "check.h"
#include "token.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static struct roped_error err;
static struct token token;
static char path[] = "/tmp/roped_token_XXXXXX";

static void write_file(const void *data, size_t bytes, mode_t mode)
{
    int fd = open(path, O_WRONLY | O_TRUNC);
    CHECK(fd >= 0 && write(fd, data, bytes) == (ssize_t)bytes);
    CHECK_INT(fchmod(fd, mode), 0);
    close(fd);
}

static enum roped_status read_text(const char *text)
{
    write_file(text, strlen(text), 0600);
    memset(&token, 'x', sizeof token);
    err.text[0] = '\0';
    return token_read(path, &token, &err);
}

/* token_read, and what it wrote into the log. */
static const char *read_log(mode_t mode)
{
    static char text[2048];
    int ends[2];
    write_file("secret", 6, mode);
    CHECK_INT(pipe(ends), 0);
    int real_stderr = dup(STDERR_FILENO);
    dup2(ends[1], STDERR_FILENO);
    close(ends[1]);
    enum roped_status status = token_read(path, &token, &err);
    dup2(real_stderr, STDERR_FILENO);
    close(real_stderr);
    ssize_t n = read(ends[0], text, sizeof text - 1);
    text[n > 0 ? n : 0] = '\0';
    close(ends[0]);
    CHECK_INT(status, ROPED_OK);
    return text;
}

static void expect_token(const char *text, const char *expected)
{
    CHECK_OK(read_text(text), &err);
    CHECK_TEXT(token.text, expected);
    CHECK_INT(token.bytes, strlen(expected));
}

/* Refused with part in its words, the path too, and nothing of the token. */
static void expect_refusal(const char *text, const char *part)
{
    CHECK_INT(read_text(text), ROPED_INVALID);
    CHECK_CONTAINS(err.text, part);
    CHECK_CONTAINS(err.text, path);
    CHECK(strstr(err.text, "abc") == NULL);
    CHECK_INT(token.bytes, 0);
    CHECK_TEXT(token.text, "");
}

TEST(no_path_wants_no_token)
{
    memset(&token, 'x', sizeof token);
    CHECK_OK(token_read("", &token, &err), &err);
    CHECK_INT(token.bytes, 0);
    CHECK(token_matches(&token, NULL));
    CHECK(token_matches(&token, "Basic YTpi"));
}

TEST(the_first_line_is_the_token)
{
    expect_token("abc", "abc");
    expect_token("abc\n", "abc");
    expect_token("abc\r\nsecond line\n", "abc");
    expect_token(" \tabc \t\r\n", "abc");
    expect_token("!~-._+/=", "!~-._+/=");
}

TEST(a_file_that_holds_none_is_refused)
{
    expect_refusal("", "holds no token");
    expect_refusal("\nabc\n", "holds no token");
    expect_refusal(" \t\r\nabc", "holds no token");
}

TEST(a_file_that_cannot_be_read_says_why)
{
    CHECK_INT(token_read("/tmp/roped/none", &token, &err), ROPED_INVALID);
    CHECK_CONTAINS(err.text, "'/tmp/roped/none'");
    CHECK_CONTAINS(err.text, strerror(ENOENT));
    CHECK_INT(token_read("/tmp", &token, &err), ROPED_INVALID);
    CHECK_CONTAINS(err.text, "'/tmp'");
    CHECK_CONTAINS(err.text, strerror(EISDIR));
    CHECK_INT(token.bytes, 0);
}

TEST(a_long_token_is_whole_or_refused)
{
    static char text[TOKEN_BYTES + 2];
    memset(text, 'a', TOKEN_BYTES - 1);
    expect_token(text, text); /* 4096 */
    text[255] = 'b';
    char header[sizeof text + 8];
    snprintf(header, sizeof header, "Bearer %.255s", text);
    CHECK_OK(read_text(text), &err);
    CHECK(!token_matches(&token, header)); /* its first 255 are no key */
    snprintf(header, sizeof header, "Bearer %s", text);
    CHECK(token_matches(&token, header));
    text[TOKEN_BYTES - 1] = 'a';
    expect_refusal(text, "a token of 4097 bytes, expected at most 4096");
    text[TOKEN_BYTES - 1] = ' '; /* is not of the token */
    CHECK_OK(read_text(text), &err);
}

TEST(characters_that_no_header_carries_are_refused)
{
    expect_refusal("ab c", "character 3 of the token");
    expect_refusal("a\tb", "character 2 of the token");
    expect_refusal("a\x01", "character 2 of the token");
    expect_refusal("\x7f", "character 1 of the token");
    expect_refusal("\xef\xbb\xbf"
                   "abc",
                   "character 1 of the token"); /* a byte order mark */
    write_file("a\0b", 3, 0600);
    CHECK_INT(token_read(path, &token, &err), ROPED_INVALID);
    CHECK_CONTAINS(err.text, "character 2 of the token");
}

TEST(a_file_that_others_may_use_is_a_warning)
{
    CHECK_TEXT(read_log(0600), "");
    CHECK_TEXT(read_log(0400), "");
    const char *line = read_log(0644);
    CHECK_CONTAINS(line, "level=warn event=token");
    CHECK_CONTAINS(line, "mode=0644");
    CHECK_CONTAINS(line, path);
    CHECK(strstr(line, "secret") == NULL);
    CHECK_CONTAINS(read_log(0640), "mode=0640");
    CHECK_CONTAINS(read_log(0602), "mode=0602");
}

TEST(headers_that_carry_the_token)
{
    CHECK_OK(read_text("secret"), &err);
    CHECK(token_matches(&token, "Bearer secret"));
    CHECK(token_matches(&token, "bearer secret"));
    CHECK(token_matches(&token, "BEARER   secret"));
    CHECK(token_matches(&token, "Bearer secret  "));
    CHECK(token_matches(&token, "Bearer secret\t"));
}

TEST(headers_that_do_not)
{
    static const char *const wrong[] = {"",
                                        "Bearer",
                                        "Bearer ",
                                        "Bearer    ",
                                        "secret",
                                        "Bearersecret",
                                        "Basic secret",
                                        "Bearer secre",
                                        "Bearer ecret",
                                        "Bearer secrett",
                                        "Bearer Secret",
                                        "Bearer sec ret",
                                        "Bearer secret secret",
                                        "Bearer secretx",
                                        "Bearer xsecret",
                                        " Bearer secret",
                                        "Bearer\tsecret",
                                        "Bearer secres"};
    CHECK_OK(read_text("secret"), &err);
    CHECK(!token_matches(&token, NULL));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (token_matches(&token, wrong[i]))
            CHECK_FAIL("'%s' carries the token", wrong[i]);
}

int main(void)
{
    int fd = mkstemp(path);
    if (fd < 0)
        return EXIT_FAILURE;
    close(fd);
    RUN(no_path_wants_no_token);
    RUN(the_first_line_is_the_token);
    RUN(a_file_that_holds_none_is_refused);
    RUN(a_file_that_cannot_be_read_says_why);
    RUN(a_long_token_is_whole_or_refused);
    RUN(characters_that_no_header_carries_are_refused);
    RUN(a_file_that_others_may_use_is_a_warning);
    RUN(headers_that_carry_the_token);
    RUN(headers_that_do_not);
    unlink(path);
    return check_done();
}
