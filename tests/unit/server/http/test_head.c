/*
 * test_head.c - what the start of a request says, and what it may not say.
 */
#include "check.h"
#include "http/head.h"

static struct head make_head(const char *target, const char *path)
{
    struct head head = {.method = "GET"};
    head_set_target(&head, target);
    head_set_path(&head, path);
    return head;
}

static void add(struct head *head, const char *name, const char *value)
{
    head_add_header(head, name, strlen(name), value, strlen(value));
}

TEST(an_encoded_slash_or_nul_hides_the_path)
{
    struct head head = make_head("/v1/a%2Fb", "/v1/a/b");
    CHECK_TEXT(head.path, "");
    head = make_head("/v1/a%00", "/v1/a");
    CHECK_TEXT(head.path, "");
    head = make_head("/v1/a?x=%2f", "/v1/a");
    CHECK_TEXT(head.path, "/v1/a");
}

TEST(an_absolute_target_names_its_host)
{
    struct head head = make_head("http://h:80/v1?a=1", "http://h:80/v1");
    CHECK_TEXT(head.path, "/v1");
    CHECK_TEXT(head_authority(&head), "h:80");
    add(&head, "Host", "other");
    CHECK_TEXT(head_authority(&head), "h:80");
    head = make_head("HTTPS://h", "HTTPS://h");
    CHECK_TEXT(head.path, "/");
    head = make_head("http:///v1", "http:///v1");
    CHECK(head.fault != NULL);
    head = make_head("/http://h/v1", "/http://h/v1");
    CHECK_TEXT(head.path, "/http://h/v1");
}

/* Every way to frame a body, and what is refused of it. */
TEST(framing_is_what_the_rfc_says)
{
    static const struct {
        const char *name[3], *value[3];
        enum roped_status status;
        uint64_t length;
        bool is_chunked;
        const char *text;
    } cases[] = {
        {{"Accept"}, {"x"}, ROPED_OK, 0, false, ""},
        {{"Content-Length"}, {"0"}, ROPED_OK, 0, false, ""},
        {{"content-length"}, {"17"}, ROPED_OK, 17, false, ""},
        {{"Transfer-Encoding"}, {"Chunked"}, ROPED_OK, 0, true, ""},
        {{"Content-Length"}, {"-1"}, ROPED_INVALID, 0, false, "'-1'"},
        {{"Content-Length"}, {"+1"}, ROPED_INVALID, 0, false, "'+1'"},
        {{"Content-Length"}, {""}, ROPED_INVALID, 0, false, "''"},
        {{"Content-Length"}, {"1, 1"}, ROPED_INVALID, 0, false, "'1, 1'"},
        {{"Content-Length"},
         {"99999999999999999999"},
         ROPED_INVALID,
         0,
         false,
         "9999"},
        {{"Content-Length", "Content-Length"},
         {"1", "1"},
         ROPED_INVALID,
         0,
         false,
         "more than one of"},
        {{"Content-Length", "Transfer-Encoding"},
         {"1", "chunked"},
         ROPED_INVALID,
         0,
         false,
         "more than one of"},
        {{"Transfer-Encoding"}, {"gzip"}, ROPED_UNSUPPORTED, 0, false, "gzip"},
        {{"Host", "Host"}, {"a", "b"}, ROPED_INVALID, 0, false, "Host"},
        {{"Content-Encoding", "content-encoding"},
         {"gzip", "br"},
         ROPED_INVALID,
         0,
         false,
         "more than one Content-Encoding"},
        {{"Inference-Header-Content-Length", "Inference-Header-Content-Length"},
         {"78", "0"},
         ROPED_INVALID,
         0,
         false,
         "more than one Inference-Header-Content-Length"},
        {{"Content-Length5"}, {""}, ROPED_INVALID, 0, false, "begins like"},
        {{"Transfer-Encoding-X"}, {""}, ROPED_INVALID, 0, false, "begins like"},
        {{"Host "}, {"a"}, ROPED_INVALID, 0, false, "invalid character"},
        {{""}, {"a"}, ROPED_INVALID, 0, false, "invalid character"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct head head = make_head("/", "/");
        struct framing framing;
        struct roped_error err = {.text = ""};
        for (int j = 0; j < 3 && cases[i].name[j]; j++)
            add(&head, cases[i].name[j], cases[i].value[j]);
        if (head_framing(&head, &framing, &err) != cases[i].status ||
            !strstr(err.text, cases[i].text))
            CHECK_FAIL("%s: '%s', expected '%s'", cases[i].name[0], err.text,
                       cases[i].text);
        if (cases[i].status)
            continue;
        CHECK_INT(framing.content_length, cases[i].length);
        CHECK_INT(framing.is_chunked, cases[i].is_chunked);
    }
}

TEST(what_holds_a_nul_is_known)
{
    struct head head = make_head("/", "/");
    struct framing framing;
    struct roped_error err;
    head_add_parameter(&head, "a", 1, "b", 1);
    head_add_parameter(&head, "a", 1, "b\0c", 3);
    head_add_parameter(&head, "a\0c", 3, NULL, 0);
    CHECK(!head.parameter[0].has_nul && head.parameter[1].has_nul &&
          head.parameter[2].has_nul);
    CHECK_TEXT(head.parameter[2].value, "");
    head_add_header(&head, "X", 1, "a\0b", 3);
    CHECK_INT(head_framing(&head, &framing, &err), ROPED_INVALID);
    CHECK_TEXT(err.text, "NUL in header value");
}

TEST(there_is_a_bound_to_parameters)
{
    struct head head = make_head("/", "/");
    struct framing framing;
    struct roped_error err;
    for (int i = 0; i < HEAD_PARAMETERS; i++)
        head_add_parameter(&head, "a", 1, "b", 1);
    CHECK_INT(head_framing(&head, &framing, &err), ROPED_OK);
    head_add_parameter(&head, "a", 1, "b", 1);
    CHECK_INT(head_framing(&head, &framing, &err), ROPED_INVALID);
}
