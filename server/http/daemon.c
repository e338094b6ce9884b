/*
 * daemon.c - the server as a whole: its sockets, its parts, their order.
 */
#include "http/daemon.h"

#include "address.h"
#include "http/acceptor.h"
#include "http/program_folder.h"
#include "http/shared.h"
#include "http/tls.h"
#include "http/transport.h"
#include "log.h"

#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

enum {
    SPARE_FILES = 64,      /* descriptors besides connections */
    ADMIN_CONNECTIONS = 32 /* of admin_listen, besides max_connections */
};

/* Who serves a listener: it needs TLS or not, or has a thread to itself. */
enum { PLAIN, SECURE, ADMIN, N_TRANSPORTS };

struct daemon {
    struct service service;
    struct tls *tls; /* NULL: plain HTTP */
    struct transport transport[N_TRANSPORTS];
    struct acceptor acceptor;
};

/* Is whoever reaches it on this host? */
static bool is_private(const struct listeners *listeners)
{
    for (int i = 0; i < listeners->n; i++)
        if (!address_is_loopback(
                (const struct sockaddr *)&listeners->item[i].address))
            return false;
    return true;
}

static void log_listener(const struct listener *listener)
{
    char text[ADDRESS_TEXT_BYTES], quoted[2 * ADDRESS_TEXT_BYTES];
    address_text((const struct sockaddr *)&listener->address,
                 sizeof listener->address, text);
    log_line(LOG_INFO, "socket", "address=\"%s\" tls=%s admin=%s passed=%s",
             log_quote(text, quoted, sizeof quoted),
             listener->transport->tls ? "true" : "false",
             listener->is_admin ? "true" : "false",
             listener->is_passed ? "true" : "false");
}

/* Listens everywhere, and says who serves whom. *port: the first that has one;
 * 0: none. */
static enum roped_status listen_on(struct daemon *daemon,
                                   struct handover *handover, uint16_t *port,
                                   struct roped_error *err)
{
    struct service *service = &daemon->service;
    struct listeners *listeners = &daemon->acceptor.listeners;
    enum roped_status status =
        listeners_open(service->config, handover, listeners, err);
    *port = 0;
    for (int i = 0; i < listeners->n; i++) {
        struct listener *listener = &listeners->item[i];
        listener->transport =
            &daemon->transport[listener->is_admin ? ADMIN
                               : daemon->tls && !listener_is_local(listener)
                                   ? SECURE
                                   : PLAIN];
        if (*port == 0)
            *port = listener_port(listener);
    }
    service->origins.is_private =
        is_private(listeners) && !gate_is_guarded(&service->gate);
    return status;
}

/* Those that a listener needs. */
static enum roped_status start_transports(struct daemon *daemon,
                                          struct roped_error *err)
{
    const struct listeners *listeners = &daemon->acceptor.listeners;
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < N_TRANSPORTS; i++)
        daemon->transport[i] =
            (struct transport){.service = &daemon->service,
                               .tls = i == SECURE ? daemon->tls : NULL,
                               .is_admin = i == ADMIN};
    for (int i = 0; i < listeners->n && !status; i++) {
        struct transport *transport = listeners->item[i].transport;
        if (!transport->mhd)
            status = transport_start(transport, err);
        log_listener(&listeners->item[i]);
    }
    return status;
}

static void raise_file_limit(int64_t connections)
{
    struct rlimit limit;
    rlim_t wanted = (rlim_t)connections + ADMIN_CONNECTIONS + SPARE_FILES;
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
    service->n_restarts = options->handover->n_restarts;
    service->start_time_seconds = (uint64_t)time(NULL);
    service->origins.allowed_origins = config->allowed_origins;
    service->origins.allowed_hosts = config->allowed_hosts;
    peers_init(&service->peers, (int)config->max_connections,
               ADMIN_CONNECTIONS);
}

static void end_gone(void *exec)
{
    exec_end_gone(exec);
}

static enum roped_status start_peers(struct service *service,
                                     struct roped_error *err)
{
    const struct peers_options options = {
        .least_rate = (double)service->config->min_body_rate,
        .grace_seconds = service->config->body_grace_seconds,
        .on_gone = end_gone,
        .context = service->exec};
    return peers_start(&service->peers, &options, err);
}

static enum roped_status start_parts(struct daemon *daemon,
                                     struct handover *handover, uint16_t *port,
                                     struct roped_error *err)
{
    struct service *service = &daemon->service;
    enum roped_status status =
        gate_open(&service->gate, service->config->bearer_token_file,
                  exec_tenants(service->exec), err);
    if (!status)
        status =
            program_folder_load(service->config->programs, service->exec, err);
    if (!status)
        status = tls_open(service->config, &daemon->tls, err);
    if (!status)
        status = listen_on(daemon, handover, port, err);
    if (!status)
        status = start_transports(daemon, err);
    if (!status)
        status = start_peers(service, err);
    return status ? status : acceptor_start(&daemon->acceptor, err);
}

enum roped_status daemon_start(const struct daemon_options *options,
                               struct daemon **out, uint16_t *port,
                               struct roped_error *err)
{
    struct daemon *daemon = calloc(1, sizeof *daemon);
    if (!daemon)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for the server");
    init_service(&daemon->service, options);
    raise_file_limit(options->config->max_connections);
    enum roped_status status =
        start_parts(daemon, options->handover, port, err);
    if (status)
        daemon_stop(daemon);
    else
        *out = daemon;
    return status;
}

void daemon_set_draining(struct daemon *daemon)
{
    atomic_store(&daemon->service.is_draining, true);
}

/* Names that are new get what they would have got at the start, and before
 * their tokens are in force. */
static enum roped_status reload_tokens(struct service *service,
                                       struct roped_error *err)
{
    struct gate_set *set;
    enum roped_status status = gate_read(&service->gate, &set, err);
    if (status)
        return status;
    status = program_folder_load(service->config->programs, service->exec, err);
    if (status)
        gate_drop(set);
    else
        gate_use(&service->gate, set);
    return status;
}

enum roped_status daemon_reload(struct daemon *daemon, struct roped_error *err)
{
    struct service *service = &daemon->service;
    struct roped_error other;
    enum roped_status status = gate_is_guarded(&service->gate)
                                   ? reload_tokens(service, err)
                                   : ROPED_OK;
    /* certificates all the same; the first that failed is told */
    enum roped_status tls =
        daemon->tls ? tls_reload(daemon->tls, status ? &other : err) : ROPED_OK;
    return status ? status : tls;
}

void daemon_close_listener(struct daemon *daemon)
{
    acceptor_stop(&daemon->acceptor);
}

void daemon_leave_listener(struct daemon *daemon)
{
    acceptor_leave(&daemon->acceptor);
}

void daemon_hand_over(const struct daemon *daemon, struct handover *out)
{
    listeners_hand_over(&daemon->acceptor.listeners, out);
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
    for (int i = 0; i < N_TRANSPORTS; i++)
        transport_stop(&daemon->transport[i]);
    tls_close(daemon->tls);
    peers_stop(&daemon->service.peers);
    peers_fini(&daemon->service.peers);
    gate_close(&daemon->service.gate);
    free(daemon);
}
