/*
 * test_request_log.c - which traceparent headers are taken.
 */
#include "check.h"
#include "http/request_log.h"

static void expect(const char *header, const char *trace_id,
                   const char *parent_id)
{
    struct trace trace;
    trace_read(header, &trace);
    CHECK_TEXT(trace.trace_id, trace_id);
    CHECK_TEXT(trace.parent_id, parent_id);
}

#define TRACE  "4bf92f3577b34da6a3ce929d0e0e4736"
#define PARENT "00f067aa0ba902b7"

TEST(a_well_formed_trace_is_taken)
{
    expect("00-" TRACE "-" PARENT "-01", TRACE, PARENT);
    expect("00-" TRACE "-" PARENT "-00", TRACE, PARENT);
    expect("cc-" TRACE "-" PARENT "-01-what-later-versions-add", TRACE, PARENT);
}

TEST(any_other_is_none)
{
    static const char *const wrong[] = {
        "",
        "00",
        "00-" TRACE "-" PARENT,
        "00-" TRACE "-" PARENT "-0",
        "00-" TRACE "-" PARENT "-01-more",
        "cc-" TRACE "-" PARENT "-01more",
        "ff-" TRACE "-" PARENT "-01",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-" PARENT "-01",
        "00-00000000000000000000000000000000-" PARENT "-01",
        "00-" TRACE "-0000000000000000-01",
        "00_" TRACE "-" PARENT "-01",
        "00-" TRACE "-" PARENT "-0g"};
    expect(NULL, "", "");
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        expect(wrong[i], "", "");
}
