/*
 * origin.c - Origin and Host, against browsers that are made to attack.
 */
#include "http/origin.h"

#include <arpa/inet.h>
#include <string.h>
#include <strings.h>

/* Is text one of a list separated by commas and spaces? Letters count alike. */
static bool is_listed(const char *list, const char *text, size_t bytes)
{
    while (*list) {
        list += strspn(list, ", \t");
        size_t item = strcspn(list, ", \t");
        if (item == bytes && strncasecmp(list, text, bytes) == 0)
            return true;
        list += item;
    }
    return false;
}

static bool is_any(const char *list)
{
    return is_listed(list, "*", 1);
}

/* "name:80", "[::1]:80" to the bytes of the name, without brackets. */
static const char *host_of(const char *authority, size_t *bytes)
{
    if (*authority == '[') {
        *bytes = strcspn(authority + 1, "]");
        return authority + 1;
    }
    *bytes = strcspn(authority, ":");
    return authority;
}

static bool is_loopback(const char *host, size_t bytes)
{
    char text[INET6_ADDRSTRLEN];
    struct in_addr v4;
    struct in6_addr v6;
    if (bytes == 9 && (memcmp(host, "127.0.0.1", 9) == 0 ||
                       strncasecmp(host, "localhost", 9) == 0))
        return true;
    if (bytes >= sizeof text)
        return false;
    memcpy(text, host, bytes);
    text[bytes] = '\0';
    if (inet_pton(AF_INET, text, &v4) == 1)
        return ntohl(v4.s_addr) >> 24 == 127;
    return inet_pton(AF_INET6, text, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

/* Letters, digits and what addresses and ports are made of: -._~:[]% */
static bool is_authority(const char *text)
{
    static const uint64_t authority[2] = {0x7ff602000000000u,
                                          0x47fffffeaffffffeu};
    return head_is_of(authority, text, strlen(text));
}

static enum roped_status check_host(const struct origin_rules *rules,
                                    const struct head *head,
                                    struct roped_error *err)
{
    size_t bytes;
    const char *authority = head_authority(head);
    if (!*authority) /* HTTP/1.0: no browser */
        return ROPED_OK;
    if (!is_authority(authority))
        return roped_fail(err, ROPED_INVALID, "invalid Host: '%.64s'",
                          authority);
    const char *host = host_of(authority, &bytes);
    if (!rules->is_private || is_loopback(host, bytes) ||
        is_any(rules->allowed_hosts) ||
        is_listed(rules->allowed_hosts, host, bytes) ||
        is_listed(rules->allowed_hosts, authority, strlen(authority)))
        return ROPED_OK;
    return roped_fail(err, ROPED_WRONG_HOST,
                      "Host is '%.64s', expected localhost or a loopback "
                      "address (allowed_hosts lists others)",
                      authority);
}

/* "http://name:80" is the page of this very host. */
static bool is_own(const char *origin, const char *authority)
{
    const char *host = strstr(origin, "://");
    return host && strcasecmp(host + 3, authority) == 0;
}

const char *origin_allowed(const struct origin_rules *rules,
                           const struct head *head)
{
    const char *origin = head_value(head, HEADER_ORIGIN);
    if (!origin || (!is_any(rules->allowed_origins) &&
                    !is_listed(rules->allowed_origins, origin, strlen(origin))))
        return NULL;
    return origin;
}

enum roped_status origin_check(const struct origin_rules *rules,
                               const struct head *head, struct roped_error *err)
{
    const char *origin = head_value(head, HEADER_ORIGIN);
    enum roped_status status = check_host(rules, head, err);
    if (status || !origin || is_own(origin, head_authority(head)) ||
        origin_allowed(rules, head))
        return status;
    return roped_fail(err, ROPED_FORBIDDEN,
                      "Origin is '%.64s', expected this host's own "
                      "(allowed_origins lists others)",
                      origin);
}

bool origin_is_preflight(const struct origin_rules *rules,
                         const struct head *head)
{
    return strcmp(head->method, "OPTIONS") == 0 &&
           head_value(head, HEADER_REQUEST_METHOD) &&
           origin_allowed(rules, head);
}
