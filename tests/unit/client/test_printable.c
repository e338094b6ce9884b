/*
 * test_printable.c - what a terminal may be shown; and numbers, whatever the
 * locale.
 */
#include "printable.h"

#include "check.h"
#include "number.h"
#include "unit/client/comma.h"

#include <math.h>

static void expect(const char *text, const char *expected)
{
    char found[256], all[256];
    size_t bytes = strlen(expected);
    CHECK_INT(printable_copy(text, found, sizeof found), bytes);
    CHECK_TEXT(found, expected);
    CHECK_INT(printable_copy(text, NULL, 0), bytes);
    CHECK_INT(printable_copy(expected, all, sizeof all), bytes); /* once more */
    CHECK_TEXT(all, expected);
}

TEST(what_is_printable_stays)
{
    expect("", "");
    expect("tensor 'x': dim 0 is 3, expected \\n", /* both as they are */
           "tensor 'x': dim 0 is 3, expected \\n");
    expect("caf\xc3\xa9 \xe4\xb8\xad\xe6\x96\x87 \xf0\x9f\x98\x80 "
           "\xd7\xa9\xd7\x9c\xd7\x95\xd7\x9d",
           "caf\xc3\xa9 \xe4\xb8\xad\xe6\x96\x87 \xf0\x9f\x98\x80 "
           "\xd7\xa9\xd7\x9c\xd7\x95\xd7\x9d");
    expect("\xc2\xa0|\xef\xbf\xbd", "\xc2\xa0|\xef\xbf\xbd");
}

TEST(what_drives_a_terminal_is_escaped)
{
    expect("\033[31m\r\n\t\b\x7f", "\\u001b[31m\\u000d\\u000a\\u0009\\u0008"
                                   "\\u007f");
    expect("\xc2\x9b"
           "31m\xc2\x80\xc2\x9f",
           "\\u009b31m\\u0080\\u009f");
    expect("\xe2\x80\xae\xe2\x80\xaa\xe2\x81\xa6\xe2\x81\xa9\xe2\x80\x8f",
           "\\u202e\\u202a\\u2066\\u2069\\u200f");
    expect("\xe2\x80\xa8\xef\xbb\xbf", "\\u2028\\ufeff");
    expect("\xf3\xa0\x81\x81", "\\udb40\\udc41"); /* U+E0041, a tag */
}

TEST(what_is_no_utf_8_is_escaped)
{
    expect("\xff", "\\ufffd");
    expect("a\x9b"
           "b",
           "a\\ufffdb");
    expect("\xc3", "\\ufffd");
    expect("\xc0\x9b", "\\ufffd\\ufffd");            /* overlong */
    expect("\xed\xa0\x80", "\\ufffd\\ufffd\\ufffd"); /* a surrogate */
    expect("\xf4\x90\x80\x80", "\\ufffd\\ufffd\\ufffd\\ufffd");
}

TEST(what_does_not_fit_ends_between_characters)
{
    char text[16];
    CHECK_INT(printable_copy("abc\033\xc3\xa9", text, 9), 11);
    CHECK_TEXT(text, "abc");
    CHECK_INT(printable_copy("abc\033\xc3\xa9", text, 10), 11);
    CHECK_TEXT(text, "abc\\u001b");
    CHECK_INT(printable_copy("abc\033\xc3\xa9", text, 11), 11);
    CHECK_TEXT(text, "abc\\u001b");
    CHECK_INT(printable_copy("abc\033\xc3\xa9", text, 12), 11);
    CHECK_TEXT(text, "abc\\u001b\xc3\xa9");
    text[0] = 'x';
    CHECK_INT(printable_copy("a", text, 1), 1);
    CHECK_TEXT(text, "");
}

TEST(an_error_stays_in_its_room)
{
    struct roped_error err = {.status = ROPED_INVALID};
    memset(err.text, '\033', sizeof err.text - 1);
    CHECK_INT(printable_error(ROPED_OK, &err), ROPED_OK);
    CHECK_INT(err.text[0], '\033');
    CHECK_INT(printable_error(ROPED_INVALID, &err), ROPED_INVALID);
    CHECK_INT(strlen(err.text), (sizeof err.text - 4) / 6 * 6 + 3);
    CHECK_TEXT(err.text + strlen(err.text) - 9, "\\u001b...");
    CHECK_INT(printable_error(ROPED_BUSY, NULL), ROPED_BUSY);
}

TEST(numbers_have_a_point_in_every_locale)
{
    char text[32], *end;
    comma_use();
    CHECK(number_read("0.25;", &end) == 0.25);
    CHECK_TEXT(end, ";");
    CHECK(number_read("-1e-3", NULL) == -1e-3);
    CHECK(number_read("1,5", &end) == 1);
    CHECK_TEXT(end, ",5");
    CHECK_INT(number_write(text, sizeof text, "%.5g", 1.5), 3);
    CHECK_TEXT(text, "1.5");
}
