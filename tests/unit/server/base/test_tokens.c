/*
 * test_tokens.c - bearer tokens: what their file may hold, what is refused and
 * in which words, which headers carry one, and what it allows.
 */
#include "check.h"
#include "tokens.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static struct roped_error err;
static struct tokens *tokens;
static char path[] = "/tmp/roped_token_XXXXXX";

static void write_file(const void *data, size_t bytes, mode_t mode)
{
    unlink(path); /* its mode may keep its owner out */
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    CHECK(fd >= 0 && write(fd, data, bytes) == (ssize_t)bytes);
    CHECK_INT(fchmod(fd, mode), 0);
    close(fd);
}

static enum roped_status read_text(const char *text)
{
    write_file(text, strlen(text), 0600);
    err.text[0] = '\0';
    free(tokens);
    return tokens_read(path, &tokens, &err);
}

/* tokens_read, and what it wrote into the log. */
static const char *read_log(mode_t mode)
{
    static char text[2048];
    int ends[2];
    write_file("secret", 6, mode);
    CHECK_INT(pipe(ends), 0);
    int real_stderr = dup(STDERR_FILENO);
    dup2(ends[1], STDERR_FILENO);
    close(ends[1]);
    free(tokens);
    enum roped_status status = tokens_read(path, &tokens, &err);
    dup2(real_stderr, STDERR_FILENO);
    close(real_stderr);
    ssize_t n = read(ends[0], text, sizeof text - 1);
    text[n > 0 ? n : 0] = '\0';
    close(ends[0]);
    CHECK_INT(status, ROPED_OK);
    return text;
}

#define HEX_SECRET                                                             \
    "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"
#define HEX_OTHER                                                              \
    "d9298a10d1b0735837dc4bd85dac641b0f3cef27a47e5d53a54f2f3f5b2fcffa"
#define HEX_THIRD                                                              \
    "b1e99324505bd32da0e1f85dcf5e19a09db0481e8a15f62c41eb320304a8e927"

/* The token that a header carries, or NULL. */
static const struct token *find(const char *header)
{
    const char *why = NULL;
    const struct token *found = tokens_find(tokens, header, &why);
    CHECK(why != NULL);
    return found;
}

static bool carries(const char *text)
{
    char header[2 * TOKEN_BYTES];
    snprintf(header, sizeof header, "Bearer %s", text);
    return find(header) != NULL;
}

/* A file of one token, which opens everything. */
static void expect_token(const char *text, const char *expected)
{
    CHECK_OK(read_text(text), &err);
    CHECK_INT(tokens->n, 1);
    CHECK_TEXT(tokens->token[0].name, "");
    CHECK(scopes_allow(tokens->token[0].scopes, SCOPE_ADMIN));
    CHECK(tokens->token[0].most_bytes == UINT64_MAX);
    CHECK(carries(expected));
}

/* Refused with part in its words, the path too, and nothing of what is in the
 * file. */
static void expect_refusal(const char *text, const char *part)
{
    CHECK_INT(read_text(text), ROPED_INVALID);
    CHECK_CONTAINS(err.text, part);
    CHECK_CONTAINS(err.text, path);
    CHECK(strstr(err.text, "abc") == NULL);
    CHECK(strstr(err.text, "zorro") == NULL);
    CHECK(tokens == NULL);
}

TEST(the_first_line_is_the_token)
{
    expect_token("abc", "abc");
    expect_token("abc\n", "abc");
    expect_token("abc\r\nsecond line\n", "abc");
    expect_token(" \tabc \t\r\n", "abc");
    expect_token("!~-._+/=", "!~-._+/=");
    expect_token("sha256:" HEX_SECRET, "sha256:" HEX_SECRET);
}

TEST(a_file_that_holds_none_is_refused)
{
    expect_refusal("", "holds no token");
    expect_refusal(" \t\r\n\n", "holds no token");
    expect_refusal("# abc\n\n#abc", "holds no token");
    expect_refusal("\nabc\n", "line 2: expected 'name sha256:HEX scopes "
                              "[quota]'");
}

TEST(a_file_that_cannot_be_read_says_why)
{
    CHECK_INT(tokens_read("/tmp/roped/none", &tokens, &err), ROPED_INVALID);
    CHECK_CONTAINS(err.text, "'/tmp/roped/none'");
    CHECK_CONTAINS(err.text, strerror(ENOENT));
    CHECK_INT(tokens_read("/tmp", &tokens, &err), ROPED_INVALID);
    CHECK_CONTAINS(err.text, "'/tmp'");
    CHECK_CONTAINS(err.text, strerror(EISDIR));
    CHECK(tokens == NULL);
}

TEST(a_long_token_is_whole_or_refused)
{
    static char text[TOKEN_BYTES + 2];
    memset(text, 'a', TOKEN_BYTES - 1);
    expect_token(text, text); /* 4096 */
    text[255] = 'b';
    char first[256];
    snprintf(first, sizeof first, "%.255s", text);
    CHECK_OK(read_text(text), &err);
    CHECK(!carries(first)); /* its first 255 are no key */
    CHECK(carries(text));
    text[TOKEN_BYTES - 1] = 'a';
    expect_refusal(text, "a token of 4097 bytes, expected at most 4096");
    text[TOKEN_BYTES - 1] = ' '; /* is not of the token */
    CHECK_OK(read_text(text), &err);
}

TEST(characters_that_no_header_carries_are_refused)
{
    expect_refusal("ab c", "line 1: expected 'name sha256:HEX");
    expect_refusal("a\tb", "line 1: expected 'name sha256:HEX");
    expect_refusal("a\x01", "character 2 of the token");
    expect_refusal("\x7f", "character 1 of the token");
    expect_refusal("\xef\xbb\xbf"
                   "abc",
                   "character 1 of the token"); /* a byte order mark */
    write_file("a\0b", 3, 0600);
    CHECK_INT(tokens_read(path, &tokens, &err), ROPED_INVALID);
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

/* ------------------------------------------------------------------- names */

TEST(a_line_is_a_name_a_hash_scopes_and_a_quota)
{
    CHECK_OK(read_text("# who may do what\n"
                       "\n"
                       "alice sha256:" HEX_SECRET " call,regions "
                       "bytes=1g,names=100\r\n"
                       "  b.o-b_2\tsha256:" HEX_OTHER "  metrics  -\n"
                       "carol sha256:" HEX_THIRD " admin names=3"),
             &err);
    CHECK_INT(tokens->n, 3);
    const struct token *alice = find("Bearer secret");
    CHECK_TEXT(alice->name, "alice");
    CHECK_INT(alice->scopes, 1u << SCOPE_CALL | 1u << SCOPE_REGIONS);
    CHECK_INT(alice->most_bytes, 1 << 30);
    CHECK_INT(alice->most_names, 100);
    CHECK_TEXT(find("Bearer other")->name, "b.o-b_2");
    CHECK(find("Bearer other")->most_bytes == UINT64_MAX);
    CHECK_TEXT(find("Bearer third")->name, "carol");
    CHECK_INT(find("Bearer third")->most_names, 3);
    CHECK(find("Bearer third")->most_bytes == UINT64_MAX);
    CHECK(!find("Bearer alice"));
    CHECK(!find("Bearer sha256:" HEX_SECRET));
    CHECK(!find("Bearer " HEX_SECRET)); /* who reads the file has no key */
}

TEST(a_name_may_have_several_tokens)
{
    CHECK_OK(read_text("a sha256:" HEX_SECRET " call bytes=1k\n"
                       "a sha256:" HEX_OTHER " regions bytes=1k\n"),
             &err);
    CHECK(!scopes_allow(find("Bearer secret")->scopes, SCOPE_REGIONS));
    CHECK(scopes_allow(find("Bearer other")->scopes, SCOPE_REGIONS));
    expect_refusal("a sha256:" HEX_SECRET " call bytes=1k\n"
                   "b sha256:" HEX_THIRD " call\n"
                   "a sha256:" HEX_OTHER " regions bytes=2k\n",
                   "line 3: another quota than");
}

TEST(broken_lines_are_refused_with_their_number)
{
#define LINE_1 "alice sha256:" HEX_SECRET " call\n"
    expect_refusal(LINE_1 "zorro\n", "line 2: expected 'name sha256:HEX");
    expect_refusal(LINE_1 "zorro sha256:" HEX_OTHER, "line 2: expected 'name");
    expect_refusal(LINE_1 "zorro sha256:" HEX_OTHER " call - -",
                   "line 2: expected 'name");
    expect_refusal(LINE_1 "\n#\nzo/rro sha256:" HEX_OTHER " call",
                   "line 4: expected a name");
    expect_refusal(LINE_1 "a12345678901234567890123456789012345678901234567890"
                          "1234567890123 sha256:" HEX_OTHER " call",
                   "line 2: expected a name of 1 to 63");
    expect_refusal(LINE_1 "zorro sha265:" HEX_OTHER " call",
                   "line 2: expected 'sha256:' and 64");
    expect_refusal(LINE_1 "zorro sha256:" HEX_OTHER "0 call",
                   "expected 'sha256:'");
    expect_refusal(LINE_1 "zorro sha256:0123 call", "expected 'sha256:'");
    expect_refusal(LINE_1 "zorro sha256: call", "expected 'sha256:'");
    expect_refusal(LINE_1 "zorro abc call", "expected 'sha256:'");
    expect_refusal(LINE_1 "zorro sha256:" HEX_OTHER " zorro",
                   "line 2: expected scopes out of call, regions, tables, "
                   "programs, shm, metrics, admin, with ',' between them");
    expect_refusal(LINE_1 "zorro sha256:" HEX_OTHER " call,",
                   "expected scopes");
    expect_refusal(LINE_1 "zorro sha256:" HEX_OTHER " none", "expected scopes");
    expect_refusal(LINE_1 "zorro sha256:" HEX_OTHER " any", "expected scopes");
    expect_refusal(LINE_1 "zorro sha256:" HEX_OTHER " call bytes",
                   "line 2: expected a quota like bytes=1g");
    expect_refusal(LINE_1 "zorro sha256:" HEX_OTHER " call bytes=-1",
                   "expected a quota");
    expect_refusal(LINE_1 "zorro sha256:" HEX_OTHER " call bytes=1.5",
                   "expected a quota");
    expect_refusal(LINE_1 "zorro sha256:" HEX_OTHER " call names=1k",
                   "expected a quota");
    expect_refusal(LINE_1 "zorro sha256:" HEX_OTHER " call bytes=1,bytes=2",
                   "expected a quota");
    expect_refusal(LINE_1 "zorro sha256:" HEX_OTHER " call bytes=99999999t",
                   "expected a quota");
    expect_refusal(LINE_1 "zorro sha256:" HEX_SECRET " call",
                   "line 2: the hash of a line before");
#undef LINE_1
}

TEST(there_is_a_most_of_tokens)
{
    static char text[(TOKENS_MAX + 1) * 96];
    size_t at = 0;
    for (int i = 0; i <= TOKENS_MAX; i++) {
        if (i == TOKENS_MAX) {
            CHECK_OK(read_text(text), &err);
            CHECK_INT(tokens->n, TOKENS_MAX);
        }
        at += (size_t)snprintf(text + at, sizeof text - at,
                               "t%d sha256:%064x call\n", i, i);
    }
    expect_refusal(text, "line 1025: more than 1024 tokens");
}

TEST(scopes_open_routes)
{
    char text[128];
    unsigned call = 1u << SCOPE_CALL, admin = 1u << SCOPE_ADMIN;
    CHECK(scopes_allow(0, SCOPE_OPEN));
    CHECK(scopes_allow(0, SCOPE_ANY));
    CHECK(!scopes_allow(0, SCOPE_CALL));
    CHECK(scopes_allow(call, SCOPE_CALL));
    CHECK(!scopes_allow(call, SCOPE_REGIONS));
    CHECK(!scopes_allow(call, SCOPE_ADMIN));
    for (int scope = SCOPE_OPEN; scope < N_SCOPES; scope++)
        CHECK(scopes_allow(admin, (enum scope)scope));
    CHECK_TEXT(scopes_text(call | 1u << SCOPE_SHM, text, sizeof text),
               "call, shm");
    CHECK_TEXT(scopes_text(0, text, sizeof text), "");
    CHECK_TEXT(scope_name(SCOPE_METRICS), "metrics");
}

/* ----------------------------------------------------------------- headers */

TEST(headers_that_carry_the_token)
{
    CHECK_OK(read_text("secret"), &err);
    CHECK(find("Bearer secret"));
    CHECK(find("bearer secret"));
    CHECK(find("BEARER   secret"));
    CHECK(find("Bearer secret  "));
    CHECK(find("Bearer secret\t"));
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
    const char *why;
    CHECK_OK(read_text("secret"), &err);
    CHECK(!find(NULL));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (find(wrong[i]))
            CHECK_FAIL("'%s' carries the token", wrong[i]);
    CHECK(!tokens_find(tokens, NULL, &why));
    CHECK_CONTAINS(why, "missing bearer token");
    CHECK(!tokens_find(tokens, "Basic YTpi", &why));
    CHECK_CONTAINS(why, "missing bearer token");
    CHECK(!tokens_find(tokens, "Bearer secres", &why));
    CHECK_TEXT(why, "wrong bearer token");
}

int main(void)
{
    int fd = mkstemp(path);
    if (fd < 0)
        return EXIT_FAILURE;
    close(fd);
    check_run();
    free(tokens);
    unlink(path);
    return check_done();
}
