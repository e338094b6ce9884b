/*
 * handle_page.c - GET / of a browser: what the daemon does now, as a page. The
 * page is one static file (page.html) that asks the JSON routes and /metrics,
 * as any other client would; so it may be had without a token, and knows
 * nothing until it has sent one.
 */
#include "http/handlers.h"
#include "http/request.h"

#include "page.inc"

/* Nothing from elsewhere, no script but its own, no other page around it. */
static const char policy[] =
    "default-src 'none'; script-src '" PAGE_SCRIPT "'; style-src '" PAGE_STYLE
    "'; img-src data:; connect-src 'self'; base-uri 'none'; form-action "
    "'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";

struct reply handle_page(struct request *request)
{
    (void)request;
    struct reply reply =
        reply_bytes(200, "text/html; charset=utf-8", page, sizeof page);
    reply.policy = policy;
    return reply;
}
