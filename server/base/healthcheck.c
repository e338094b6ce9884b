/*
 * healthcheck.c - asks a daemon whether it is ready, without a library.
 */
#include "healthcheck.h"

#include "address.h"
#include "io.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HEALTHCHECK_SECONDS = 5, MOST_TRIES = 100 /* of what is interrupted */ };

/* Until it has all of them, or the sender closes. */
static ssize_t receive(int fd, char *to, size_t bytes)
{
    size_t at = 0;
    for (int i = 0; i < MOST_TRIES && at < bytes; i++) {
        ssize_t n = recv(fd, to + at, bytes - at, 0);
        if (n == 0 || (n < 0 && errno != EINTR))
            return n == 0 ? (ssize_t)at : -1;
        at += n > 0 ? (size_t)n : 0;
    }
    return (ssize_t)at;
}

/* An interrupted one goes on by itself: asking again waits for it. */
static bool is_connected(int fd, const struct sockaddr *address,
                         socklen_t bytes)
{
    int code = -1;
    for (int i = 0; i < MOST_TRIES && code != 0; i++) {
        code = connect(fd, address, bytes);
        if (code != 0 && errno != EINTR)
            return errno == EISCONN;
    }
    return code == 0;
}

static enum roped_status read_ready(int fd, const char *host,
                                    struct roped_error *err)
{
    char text[512];
    int length = snprintf(text, sizeof text,
                          "GET /v2/health/ready HTTP/1.1\r\nHost: %s\r\n"
                          "Connection: close\r\n\r\n",
                          strchr(host, '/') ? "localhost" : host);
    ssize_t n = -1;
    if (io_write(fd, text, (size_t)length))
        n = receive(fd, text, sizeof text - 1);
    if (n < 0)
        return roped_fail(err, ROPED_INTERNAL, "%s did not answer: %s", host,
                          strerror(errno == EAGAIN ? ETIMEDOUT : errno));
    text[n] = '\0';
    if (strncmp(text, "HTTP/1.1 ", 9) != 0)
        return roped_fail(err, ROPED_INTERNAL,
                          "%s closed the connection without an HTTP answer",
                          host);
    long code = strtol(text + 9, NULL, 10);
    if (code == 200)
        return ROPED_OK;
    return roped_fail(err, ROPED_INTERNAL,
                      "GET /v2/health/ready at %s answered %ld, expected 200",
                      host, code);
}

static enum roped_status ask_ready(const struct sockaddr *address,
                                   socklen_t bytes, struct roped_error *err)
{
    struct timeval limit = {HEALTHCHECK_SECONDS, 0};
    char host[ADDRESS_TEXT_BYTES];
    address_text(address, host);
    int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return roped_fail(err, ROPED_INTERNAL, "no socket: %s",
                          strerror(errno));
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    enum roped_status status =
        is_connected(fd, address, bytes)
            ? read_ready(fd, host, err)
            : roped_fail(err, ROPED_INTERNAL, "cannot connect to %s: %s", host,
                         strerror(errno == EINPROGRESS ? ETIMEDOUT : errno));
    close(fd);
    return status;
}

static bool is_path(const char *item)
{
    return strncmp(item, "unix:", 5) == 0;
}

/* Where to ask whether it is ready: admin_listen, or a Unix socket, or the
 * first place, if that speaks no TLS. */
static enum roped_status find_place(const struct config *config,
                                    char out[CONFIG_TEXT_BYTES],
                                    struct roped_error *err)
{
    char item[CONFIG_TEXT_BYTES];
    const char *list = config->listen;
    snprintf(out, CONFIG_TEXT_BYTES, "%s", config->admin_listen);
    while (!config->admin_listen[0] && config_next(&list, item))
        if (!out[0] || (is_path(item) && !is_path(out)))
            memcpy(out, item, sizeof item);
    if (config->admin_listen[0] || is_path(out) || !config->tls_cert_file[0])
        return ROPED_OK;
    return roped_fail(err, ROPED_INVALID,
                      "--healthcheck speaks no TLS: set admin_listen, or a "
                      "unix: place in listen");
}

/* No name is resolved for a wildcard: a container may lack /etc/hosts. */
int healthcheck(const struct config *config)
{
    struct sockaddr_storage address;
    struct sockaddr *asked = (struct sockaddr *)&address;
    char place[CONFIG_TEXT_BYTES];
    socklen_t bytes;
    struct roped_error err;
    signal(SIGPIPE, SIG_IGN);
    enum roped_status status = find_place(config, place, &err);
    if (!status)
        status =
            address_parse(config->admin_listen[0] ? "admin_listen" : "listen",
                          place, &address, &bytes, &err);
    if (!status) {
        address_to_ask(asked);
        status = ask_ready(asked, bytes, &err);
    }
    if (status)
        fprintf(stderr, "roped: %s\n", err.text);
    return status ? EXIT_FAILURE : EXIT_SUCCESS;
}
