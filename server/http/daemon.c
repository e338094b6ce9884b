/*
 * daemon.c - the server as a whole: its socket, its parts, their order.
 */
#include "http/daemon.h"

#include "address.h"
#include "http/acceptor.h"
#include "http/shared.h"
#include "http/tls.h"
#include "http/transport.h"
#include "log.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { BACKLOG = 1024, SPARE_FILES = 64 /* descriptors besides connections */ };

struct daemon {
    struct service service;
    struct tls *tls; /* NULL: plain HTTP */
    struct transport transport;
    struct acceptor acceptor;
};

/* The port that the socket has got. */
static enum roped_status read_port(int fd, uint16_t *port,
                                   struct roped_error *err)
{
    struct sockaddr_storage address;
    socklen_t bytes = sizeof address;
    if (getsockname(fd, (struct sockaddr *)&address, &bytes) != 0)
        return roped_fail(err, ROPED_INTERNAL,
                          "cannot read the port that was bound: %s",
                          strerror(errno));
    *port = ntohs(address.ss_family == AF_INET6
                      ? ((struct sockaddr_in6 *)&address)->sin6_port
                      : ((struct sockaddr_in *)&address)->sin_port);
    return ROPED_OK;
}

static enum roped_status open_socket(const struct sockaddr_storage *address,
                                     socklen_t bytes, const char *text, int *fd,
                                     struct roped_error *err)
{
    int on = 1, off = 0;
    *fd = socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK,
                 0);
    if (*fd < 0)
        return roped_fail(err, ROPED_INTERNAL, "no socket: %s",
                          strerror(errno));
    setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (address->ss_family == AF_INET6)
        setsockopt(*fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(*fd, (const struct sockaddr *)address, bytes) == 0 &&
        listen(*fd, BACKLOG) == 0)
        return ROPED_OK;
    return roped_fail(err, ROPED_INVALID, "cannot listen on %s: %s", text,
                      strerror(errno));
}

/* Listens, and sees whether that is this host's business alone. */
static enum roped_status listen_on(struct service *service, int *fd,
                                   uint16_t *port, struct roped_error *err)
{
    struct sockaddr_storage address;
    socklen_t bytes;
    const char *text = service->config->listen;
    enum roped_status status = address_parse(text, &address, &bytes, err);
    if (!status)
        status = open_socket(&address, bytes, text, fd, err);
    if (!status)
        status = read_port(*fd, port, err);
    if (!status)
        service->origins.is_private =
            address_is_loopback((const struct sockaddr *)&address) &&
            service->token.bytes == 0;
    return status;
}

static void raise_file_limit(int64_t connections)
{
    struct rlimit limit;
    rlim_t wanted = (rlim_t)connections + SPARE_FILES;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted)
        return;
    limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur < wanted)
        log_line(
            LOG_WARN, "files",
            "message=\"fewer descriptors than max_connections\" limit=%llu",
            (unsigned long long)limit.rlim_cur);
}

static void init_service(struct service *service,
                         const struct daemon_options *options)
{
    const struct config *config = options->config;
    service->config = config;
    service->exec = options->exec;
    service->metrics = options->metrics;
    service->models = options->models;
    service->version = options->version;
    service->start_time_seconds = (uint64_t)time(NULL);
    service->origins.allowed_origins = config->allowed_origins;
    service->origins.allowed_hosts = config->allowed_hosts;
    peers_init(&service->peers);
}

static enum roped_status start_parts(struct daemon *daemon, int *fd,
                                     uint16_t *port, struct roped_error *err)
{
    struct service *service = &daemon->service;
    enum roped_status status =
        token_read(service->config->bearer_token_file, &service->token, err);
    if (!status)
        status = tls_open(service->config, &daemon->tls, err);
    if (!status)
        status = listen_on(service, fd, port, err);
    if (!status)
        status = transport_start(&daemon->transport, service, daemon->tls, err);
    if (!status)
        status =
            peers_start(&service->peers, (double)service->config->min_body_rate,
                        service->config->body_grace_seconds, err);
    return status ? status
                  : acceptor_start(&daemon->acceptor, &daemon->transport, *fd,
                                   err);
}

enum roped_status daemon_start(const struct daemon_options *options,
                               struct daemon **out, uint16_t *port,
                               struct roped_error *err)
{
    struct daemon *daemon = calloc(1, sizeof *daemon);
    int fd = -1;
    if (!daemon)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for the server");
    init_service(&daemon->service, options);
    raise_file_limit(options->config->max_connections);
    enum roped_status status = start_parts(daemon, &fd, port, err);
    if (!status) {
        *out = daemon;
        return ROPED_OK;
    }
    if (fd >= 0)
        close(fd);
    daemon_stop(daemon);
    return status;
}

void daemon_set_draining(struct daemon *daemon)
{
    atomic_store(&daemon->service.is_draining, true);
}

enum roped_status daemon_reload(struct daemon *daemon, struct roped_error *err)
{
    return daemon->tls ? tls_reload(daemon->tls, err) : ROPED_OK;
}

void daemon_close_listener(struct daemon *daemon)
{
    acceptor_stop(&daemon->acceptor);
}

void daemon_refuse_calls(struct daemon *daemon)
{
    atomic_store(&daemon->service.is_quiescent, true);
}

int daemon_connections(struct daemon *daemon)
{
    return peers_count(&daemon->service.peers);
}

bool daemon_is_busy(struct daemon *daemon)
{
    return peers_are_busy(&daemon->service.peers);
}

void daemon_stop(struct daemon *daemon)
{
    if (!daemon)
        return;
    acceptor_stop(&daemon->acceptor);
    transport_stop(&daemon->transport);
    tls_close(daemon->tls);
    peers_stop(&daemon->service.peers);
    peers_fini(&daemon->service.peers);
    free(daemon);
}
