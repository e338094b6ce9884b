/*
 * test_accept.c - who gets the page, and who gets text as ever.
 */
#include "check.h"
#include "http/accept.h"

TEST(browsers_prefer_html)
{
    static const char *const browsers[] = {
        "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,"
        "image/webp,image/apng,*/*;q=0.8,application/signed-exchange;v=b3;q="
        "0.7",
        "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
        "text/html",
        "TEXT/HTML",
        "text/*;q=0.5, text/html",
        "text/plain;q=0.2 , text/html ;level=1; Q=0.3",
        "*/*;q=0.1,text/html;q=0.2",
    };
    for (size_t i = 0; i < sizeof browsers / sizeof *browsers; i++)
        if (!accept_prefers_html(browsers[i]))
            CHECK_FAIL("'%s' does not prefer HTML", browsers[i]);
}

TEST(others_do_not)
{
    static const char *const others[] = {
        "*/*", /* curl, requests */
        "text/html, image/gif, image/jpeg, *; q=.2, */*",
        "application/json, text/plain, */*",
        "application/json",
        "text/*",
        "text/html, text/plain",
        "text/html;q=0",
        "text/html;q=0, */*",
        "text/html;q=0.5, application/json",
        "application/json;q=0.9, text/html;q=0.1",
        "text/html;q=nan",
        "text/html;q=-1",
        "text/htmlx, x/text/html",
        "",
        ",;,q=",
    };
    CHECK(!accept_prefers_html(NULL));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (accept_prefers_html(others[i]))
            CHECK_FAIL("'%s' prefers HTML", others[i]);
}
