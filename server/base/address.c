/*
 * address.c - socket addresses from text and to text.
 */
#include "address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

/* getaddrinfo takes none, signs, and what is too large modulo 65,536. */
static bool is_port(const char *text)
{
    size_t n = strspn(text, "0123456789");
    return n > 0 && n <= 5 && !text[n] && strtol(text, NULL, 10) <= UINT16_MAX;
}

static const char unix_prefix[] = "unix:";

static enum roped_status parse_path(const char *key, const char *text,
                                    struct sockaddr_storage *out,
                                    socklen_t *bytes, struct roped_error *err)
{
    struct sockaddr_un *address = (void *)out;
    const char *path = text + sizeof unix_prefix - 1;
    if (path[0] != '/' || strlen(path) >= sizeof address->sun_path)
        return roped_fail(err, ROPED_INVALID,
                          "%s is '%s', expected unix:/path of at most %zu "
                          "bytes",
                          key, text, sizeof address->sun_path - 1);
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(address->sun_path, path, strlen(path) + 1);
    *bytes = sizeof *address;
    return ROPED_OK;
}

enum roped_status address_parse(const char *key, const char *text,
                                struct sockaddr_storage *out, socklen_t *bytes,
                                struct roped_error *err)
{
    char host[128];
    if (strncmp(text, unix_prefix, sizeof unix_prefix - 1) == 0)
        return parse_path(key, text, out, bytes, err);
    const char *colon = strrchr(text, ':');
    struct addrinfo *found;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    size_t length = colon ? (size_t)(colon - text) : 0;
    if (!colon || length >= sizeof host)
        return roped_fail(err, ROPED_INVALID,
                          "%s is '%s', expected address:port", key, text);
    if (!is_port(colon + 1))
        return roped_fail(err, ROPED_INVALID,
                          "%s is '%s', expected address:port with a port "
                          "of 0 to 65535",
                          key, text);
    bool is_bracketed = length > 1 && text[0] == '[' && text[length - 1] == ']';
    snprintf(host, sizeof host, "%.*s", (int)length - 2 * is_bracketed,
             text + is_bracketed);
    if (strcmp(host, "localhost") == 0) /* /etc/hosts may say ::1, or lack */
        memcpy(host, "127.0.0.1", sizeof "127.0.0.1");
    int code = getaddrinfo(host[0] ? host : NULL, colon + 1, &hints, &found);
    if (code != 0)
        return roped_fail(err, ROPED_INVALID,
                          "%s is '%s', expected address:port: %s", key, text,
                          gai_strerror(code));
    memcpy(out, found->ai_addr, found->ai_addrlen);
    *bytes = found->ai_addrlen;
    freeaddrinfo(found);
    return ROPED_OK;
}

bool address_is_loopback(const struct sockaddr *address)
{
    const struct sockaddr_in *v4 = (const void *)address;
    const struct in6_addr *v6 =
        &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
    if (address->sa_family == AF_INET)
        return ntohl(v4->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
    return address->sa_family == AF_UNIX ||
           (address->sa_family == AF_INET6 &&
            (IN6_IS_ADDR_LOOPBACK(v6) ||
             (IN6_IS_ADDR_V4MAPPED(v6) && v6->s6_addr[12] == IN_LOOPBACKNET)));
}

void address_to_ask(struct sockaddr *address)
{
    struct sockaddr_in *v4 = (void *)address;
    struct sockaddr_in6 *v6 = (void *)address;
    if (address->sa_family == AF_INET && v4->sin_addr.s_addr == INADDR_ANY)
        v4->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    else if (address->sa_family == AF_INET6 &&
             IN6_IS_ADDR_UNSPECIFIED(&v6->sin6_addr))
        v6->sin6_addr = in6addr_loopback;
}

static void unix_text(const struct sockaddr_un *address, size_t bytes,
                      char out[ADDRESS_TEXT_BYTES])
{
    const size_t before = offsetof(struct sockaddr_un, sun_path);
    const char *path = address->sun_path;
    size_t n = bytes > before ? bytes - before : 0;
    n = n < sizeof address->sun_path ? n : sizeof address->sun_path;
    bool is_abstract = n > 1 && path[0] == '\0' && path[1] != '\0';
    snprintf(out, ADDRESS_TEXT_BYTES, "%s%s%.*s", unix_prefix,
             is_abstract ? "@" : "", (int)(n - is_abstract),
             path + is_abstract);
}

const char *address_text(const struct sockaddr *address, socklen_t bytes,
                         char out[ADDRESS_TEXT_BYTES])
{
    const struct sockaddr_in *v4 = (const void *)address;
    const struct sockaddr_in6 *v6 = (const void *)address;
    bool is_v6 = address->sa_family == AF_INET6;
    if (address->sa_family == AF_UNIX) {
        unix_text((const void *)address, bytes, out);
        return out;
    }
    char host[INET6_ADDRSTRLEN] = "";
    inet_ntop(address->sa_family,
              is_v6 ? (const void *)&v6->sin6_addr : &v4->sin_addr, host,
              sizeof host);
    snprintf(out, ADDRESS_TEXT_BYTES, is_v6 ? "[%s]:%u" : "%s:%u", host,
             ntohs(is_v6 ? v6->sin6_port : v4->sin_port));
    return out;
}
