/*
 * accept.c - weights of media types (RFC 9110, 12.5.1): of the ranges that a
 * type is in, the narrowest says how much it is wanted.
 */
#include "http/accept.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* How narrow a range is that the type is in; 0: it is in none of it. */
static int narrowness(const char *range, size_t bytes, const char *type)
{
    size_t family = strcspn(type, "/") + 1;
    if (bytes == strlen(type) && strncasecmp(range, type, bytes) == 0)
        return 3;
    if (bytes == family + 1 && range[family] == '*' &&
        strncasecmp(range, type, family) == 0)
        return 2;
    return bytes == 3 && strncmp(range, "*/*", 3) == 0;
}

/* The parameter q of a range, from 0 to 1; without one 1. */
static double weight_of(const char *range, size_t bytes)
{
    for (size_t i = 1; i + 1 < bytes; i++)
        if ((range[i] == 'q' || range[i] == 'Q') && range[i + 1] == '=' &&
            strchr("; \t", range[i - 1])) {
            double weight = strtod(range + i + 2, NULL);
            return weight >= 0 && weight <= 1 ? weight : 0;
        }
    return 1;
}

static double wants(const char *accept, const char *type)
{
    int narrowest = 0;
    double weight = 0;
    while (*accept) {
        accept += strspn(accept, " \t,");
        size_t bytes = strcspn(accept, ",");
        int narrow = narrowness(accept, strcspn(accept, ";, \t"), type);
        if (narrow > narrowest) {
            narrowest = narrow;
            weight = weight_of(accept, bytes);
        }
        accept += bytes;
    }
    return weight;
}

bool accept_prefers_html(const char *accept)
{
    if (!accept)
        return false;
    double html = wants(accept, "text/html");
    return html > wants(accept, "text/plain") &&
           html > wants(accept, "application/json");
}
