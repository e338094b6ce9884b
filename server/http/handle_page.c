/*
 * handle_page.c - the pages for people: GET / of a browser is what the daemon
 * does now (page.html), GET /docs are its operators, to be tried (docs.html).
 * Each is one static file that asks the JSON routes, as any other client would;
 * so it may be had without a token, and knows nothing until it has sent one.
 */
#include "http/handlers.h"
#include "http/request.h"

#include "docs.inc"
#include "page.inc"

/* Nothing from elsewhere, no script but its own, no other page around it. */
#define POLICY(script, style)                                                  \
    "default-src 'none'; script-src '" script "'; style-src '" style           \
    "'; img-src data:; connect-src 'self'; base-uri 'none'; form-action "      \
    "'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"

static struct reply reply_page(const unsigned char *bytes, size_t n,
                               const char *policy)
{
    struct reply reply = reply_bytes(200, "text/html; charset=utf-8", bytes, n);
    reply.policy = policy;
    return reply;
}

struct reply handle_page(struct request *request)
{
    (void)request;
    return reply_page(page_bytes, sizeof page_bytes,
                      POLICY(page_script, page_style));
}

struct reply handle_docs(struct request *request)
{
    (void)request;
    return reply_page(docs_bytes, sizeof docs_bytes,
                      POLICY(docs_script, docs_style));
}
