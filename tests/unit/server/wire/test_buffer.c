/*
 * test_buffer.c - text that grows, strings of JSON, shortest numbers.
 */
#include "wire/buffer.h"

#include "check.h"

#include <float.h>
#include <math.h>

TEST(grows_and_stays_terminated)
{
    struct buffer buffer;
    buffer_init(&buffer);
    for (int i = 0; i < 1000; i++)
        buffer_printf(&buffer, "%04d,", i);
    CHECK_INT(buffer.bytes, 5000);
    CHECK_INT(strlen(buffer.text), 5000);
    CHECK(memcmp(buffer.text + 4995, "0999,", 6) == 0);
    buffer_fini(&buffer);
    CHECK(buffer.text == NULL);
}

TEST(prints_more_than_its_small_space)
{
    struct buffer buffer;
    char wide[2000];
    memset(wide, 'x', sizeof wide - 1);
    wide[sizeof wide - 1] = '\0';
    buffer_init(&buffer);
    buffer_printf(&buffer, "<%s>", wide);
    CHECK_INT(buffer.bytes, sizeof wide + 1);
    CHECK(buffer.text[0] == '<' && buffer.text[sizeof wide] == '>');
    buffer_fini(&buffer);
}

TEST(fixed_memory_fails_and_keeps_failing)
{
    char memory[8];
    struct buffer buffer;
    buffer_init_fixed(&buffer, memory, sizeof memory);
    buffer_text(&buffer, "1234567"); /* with its NUL just fits */
    CHECK(!buffer.has_failed);
    buffer_text(&buffer, "8");
    CHECK(buffer.has_failed);
    CHECK_TEXT(buffer.text, "1234567");
    buffer_text(&buffer, "");
    CHECK(buffer.has_failed);
    buffer_fini(&buffer); /* must not free memory */
}

TEST(writes_integers_and_dims)
{
    static const int64_t dims[] = {0, 7, INT64_MAX};
    struct buffer buffer;
    buffer_init(&buffer);
    buffer_unsigned(&buffer, 0);
    buffer_text(&buffer, " ");
    buffer_unsigned(&buffer, UINT64_MAX);
    buffer_dims(&buffer, dims, 3);
    buffer_dims(&buffer, dims, 0);
    CHECK_TEXT(buffer.text,
               "0 18446744073709551615[0,7,9223372036854775807][]");
    buffer_fini(&buffer);
}

static void check_string(const char *text, const char *expected)
{
    struct buffer buffer;
    buffer_init(&buffer);
    buffer_json_string(&buffer, text);
    CHECK_TEXT(buffer.text, expected);
    buffer_fini(&buffer);
}

TEST(json_strings_are_escaped)
{
    check_string("", "\"\"");
    check_string("plain", "\"plain\"");
    check_string("a\"b\\c", "\"a\\\"b\\\\c\"");
    check_string("\n\x01\x1f", "\"\\u000a\\u0001\\u001f\"");
    check_string("\xC3\xA9\xF0\x9F\x98\x80", "\"\xC3\xA9\xF0\x9F\x98\x80\"");
}

TEST(json_strings_are_utf8_whatever_comes_in)
{
    check_string("a\xFFz", "\"a\\ufffdz\"");
    check_string("\xC3", "\"\\ufffd\"");                       /* cut short */
    check_string("\xC0\xAF", "\"\\ufffd\\ufffd\"");            /* overlong */
    check_string("\xED\xA0\x80", "\"\\ufffd\\ufffd\\ufffd\""); /* surrogate */
}

static void check_double(double value, const char *expected)
{
    struct buffer buffer;
    buffer_init(&buffer);
    buffer_double(&buffer, value);
    CHECK_TEXT(buffer.text, expected);
    buffer_fini(&buffer);
}

TEST(doubles_are_the_shortest_that_read_back)
{
    check_double(0, "0");
    check_double(-0.0, "-0");
    check_double(0.1, "0.1");
    check_double(500000, "500000");
    check_double(1.0 / 3, "0.3333333333333333");
    check_double(DBL_MAX, "1.7976931348623157e+308");
    check_double((double)NAN, "NaN");
    check_double((double)INFINITY, "Infinity");
    check_double(-(double)INFINITY, "-Infinity");
}

TEST(floats_read_back_bit_for_bit)
{
    uint32_t bits = 0x12345678;
    for (int i = 0; i < check_cases(20000); i++) {
        float value, back;
        uint32_t back_bits;
        struct buffer buffer;
        bits = bits * 1664525u + 1013904223u;
        memcpy(&value, &bits, sizeof value);
        if (!isfinite(value))
            continue;
        buffer_init(&buffer);
        buffer_float(&buffer, value);
        back = strtof(buffer.text, NULL);
        memcpy(&back_bits, &back, sizeof back_bits);
        if (back_bits != bits)
            CHECK_FAIL("%s is not %a", buffer.text, (double)value);
        buffer_fini(&buffer);
    }
}

TEST(floats_are_short)
{
    struct buffer buffer;
    buffer_init(&buffer);
    buffer_float(&buffer, 0.1f);
    buffer_text(&buffer, " ");
    buffer_float(&buffer, 16777216.0f);
    CHECK_TEXT(buffer.text, "0.1 16777216");
    buffer_fini(&buffer);
}
