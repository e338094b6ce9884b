/*
 * daemon.c - the server around libmicrohttpd: sockets, callbacks, deadlines.
 *
 * DESIGN. A thread accepts connections (acceptor.h); a small pool of threads
 * polls them by epoll; a call that does not finish at once suspends its
 * connection and is resumed by a lane. The library's own timeout is one of
 * inactivity, which a byte now and then defeats, so a reaper thread shuts down
 * connections whose absolute deadline has passed. The reaper and the
 * notification that a connection has closed take the same lock, so that a
 * descriptor is never shut down after its number was reused. Deadlines
 * themselves move without it, several times in a request: one that passes while
 * it is put off may or may not be kept.
 */
#include "http/daemon_internal.h"

#include "log.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    SEND_BUFFER_BYTES = 512 << 10, /* bounds one send(): +20-35 % on large
                                      answers, and others' tail latency */
    BACKLOG = 1024,
    REAP_INTERVAL_MS = 250,
    SPARE_FILES = 64 /* descriptors besides connections */
};

uint64_t daemon_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t daemon_after_ns(double seconds)
{
    struct timespec tick;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &tick);
    return (uint64_t)tick.tv_sec * 1000000000u + (uint64_t)tick.tv_nsec +
           (uint64_t)(seconds * 1e9);
}

/* ------------------------------------------------------------------ peers */

void daemon_set_deadline(struct peer *peer, uint64_t deadline_ns)
{
    if (peer)
        atomic_store_explicit(&peer->deadline_ns, deadline_ns,
                              memory_order_relaxed);
}

static struct peer *open_peer(struct daemon *daemon, int fd)
{
    pthread_mutex_lock(&daemon->peers_lock);
    struct peer *peer = daemon->free_peers;
    if (peer)
        daemon->free_peers = peer->next;
    else
        peer = malloc(sizeof *peer);
    if (peer) {
        *peer = (struct peer){.fd = fd,
                              .deadline_ns = daemon_after_ns(
                                  daemon->config->header_timeout_seconds),
                              .next = daemon->peers};
        if (daemon->peers)
            daemon->peers->previous = peer;
        daemon->peers = peer;
        daemon->n_peers++;
    }
    pthread_mutex_unlock(&daemon->peers_lock);
    return peer;
}

static void close_peer(struct daemon *daemon, struct peer *peer)
{
    pthread_mutex_lock(&daemon->peers_lock);
    if (peer->previous)
        peer->previous->next = peer->next;
    else
        daemon->peers = peer->next;
    if (peer->next)
        peer->next->previous = peer->previous;
    peer->next = daemon->free_peers;
    daemon->free_peers = peer;
    daemon->n_peers--;
    pthread_mutex_unlock(&daemon->peers_lock);
}

static void *reap(void *context)
{
    struct daemon *daemon = context;
    pthread_mutex_lock(&daemon->peers_lock);
    while (!daemon->is_closing) {
        uint64_t now = daemon_now_ns();
        uint64_t next = now + REAP_INTERVAL_MS * 1000000ull;
        struct timespec until = {(time_t)(next / 1000000000u),
                                 (long)(next % 1000000000u)};
        for (struct peer *peer = daemon->peers; peer; peer = peer->next) {
            uint64_t deadline =
                atomic_load_explicit(&peer->deadline_ns, memory_order_relaxed);
            if (deadline == 0 || deadline >= now)
                continue;
            shutdown(peer->fd, SHUT_RDWR);
            daemon_set_deadline(peer, 0);
        }
        pthread_cond_timedwait(&daemon->reap, &daemon->peers_lock, &until);
    }
    pthread_mutex_unlock(&daemon->peers_lock);
    return NULL;
}

/* -------------------------------------------------------------- callbacks */

static void notify_connection(void *context, struct MHD_Connection *connection,
                              void **socket_context,
                              enum MHD_ConnectionNotificationCode code)
{
    struct daemon *daemon = context;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        int send_bytes = SEND_BUFFER_BYTES, on = 1;
        setsockopt(info->connect_fd, SOL_SOCKET, SO_SNDBUF, &send_bytes,
                   sizeof send_bytes);
        setsockopt(info->connect_fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        *socket_context = open_peer(daemon, info->connect_fd);
    } else if (*socket_context) {
        close_peer(daemon, *socket_context);
        *socket_context = NULL;
    }
}

/* Stands for the request of a path that no route may see. */
static char hidden_path;

/* An encoded '/' or NUL would be another path once it is decoded, which the
 * library does before it calls us: a segment would end early, or split. */
static bool hides_path(const char *uri)
{
    for (const char *at = uri; *at && *at != '?'; at++)
        if (*at == '%' &&
            (strncasecmp(at, "%2f", 3) == 0 || strncmp(at, "%00", 3) == 0))
            return true;
    return false;
}

/* Called when a request line has arrived: its headers get their time. What it
 * returns is the request context of the first call of the handler. */
static void *notify_uri(void *context, const char *uri,
                        struct MHD_Connection *connection)
{
    struct daemon *daemon = context;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    if (info && info->socket_context)
        daemon_set_deadline(
            info->socket_context,
            daemon_after_ns(daemon->config->header_timeout_seconds));
    return hides_path(uri) ? &hidden_path : NULL;
}

static void log_request(const struct request *request,
                        enum MHD_RequestTerminationCode code)
{
    char method[40], target[160], id[300];
    if (!request->daemon->config->log_requests)
        return;
    log_line(LOG_INFO, "request",
             "method=\"%s\" route=%s target=\"%s\" code=%d is_whole=%s "
             "bytes=%llu seconds=%.6f id=\"%s\"",
             log_quote(request->method, method, sizeof method),
             request->match.route ? request->match.route->path : "none",
             log_quote(request->match.capture, target, sizeof target),
             request->code,
             code == MHD_REQUEST_TERMINATED_COMPLETED_OK ? "true" : "false",
             (unsigned long long)request->received,
             (double)(daemon_now_ns() - request->started_ns) * 1e-9,
             log_quote(request->id, id, sizeof id));
}

static void notify_completed(void *context, struct MHD_Connection *connection,
                             void **request_context,
                             enum MHD_RequestTerminationCode code)
{
    struct daemon *daemon = context;
    struct request *request = *request_context;
    (void)connection;
    if (!request || *request_context == &hidden_path)
        return; /* the handler was never called */
    log_request(request, code);
    /* the next request line on this connection: idle time, then headers */
    daemon_set_deadline(
        request->peer, daemon_after_ns(daemon->config->idle_timeout_seconds +
                                       daemon->config->header_timeout_seconds));
    request_free(request);
    *request_context = NULL;
}

static mhd_result begin(struct daemon *daemon,
                        struct MHD_Connection *connection, const char *url,
                        const char *method, void **request_context)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct request *request = request_new(daemon, connection, method, url);
    *request_context = NULL;
    if (!request)
        return MHD_NO;
    request->peer = info ? info->socket_context : NULL;
    *request_context = request;
    return request_begin(request);
}

static mhd_result handle_access(void *context,
                                struct MHD_Connection *connection,
                                const char *url, const char *method,
                                const char *version, const char *data,
                                size_t *data_bytes, void **request_context)
{
    struct daemon *daemon = context;
    struct request *request = *request_context;
    (void)version;
    if (*request_context == &hidden_path)
        return begin(daemon, connection, "", method, request_context);
    if (!request)
        return begin(daemon, connection, url, method, request_context);
    if (data) { /* also 0 bytes of it: the body is not over before data is NULL,
                   and no answer may be queued before that */
        mhd_result result =
            *data_bytes > 0 ? request_receive(request, data, *data_bytes)
                            : MHD_YES;
        *data_bytes = 0;
        return result;
    }
    switch ((enum request_state)atomic_load(&request->state)) {
    case REQUEST_RECEIVING:
        return request_finish(request);
    case REQUEST_RUNNING:
        return MHD_YES; /* suspended; nothing to do yet */
    case REQUEST_FINISHED:
        break;
    }
    request->answer(request);
    return request->has_answered ? MHD_YES : MHD_NO;
}

static void log_mhd(void *context, const char *format, va_list arguments)
{
    char text[256], quoted[300];
    (void)context;
    vsnprintf(text, sizeof text, format, arguments);
    text[strcspn(text, "\n")] = '\0';
    log_line(LOG_DEBUG, "http", "message=\"%s\"",
             log_quote(text, quoted, sizeof quoted));
}

/* ------------------------------------------------------------------ start */

/* "127.0.0.1:8000", "[::1]:8000" or ":8000" to an address. */
static enum roped_status parse_listen(const char *text,
                                      struct sockaddr_storage *out,
                                      socklen_t *bytes, struct roped_error *err)
{
    char host[128];
    const char *colon = strrchr(text, ':');
    struct addrinfo *found;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    size_t length = colon ? (size_t)(colon - text) : 0;
    if (!colon || length >= sizeof host)
        return roped_fail(err, ROPED_INVALID,
                          "listen is '%s', expected address:port", text);
    if (length > 1 && text[0] == '[' && text[length - 1] == ']') {
        memcpy(host, text + 1, length - 2);
        host[length - 2] = '\0';
    } else {
        memcpy(host, text, length);
        host[length] = '\0';
    }
    int code = getaddrinfo(host[0] ? host : NULL, colon + 1, &hints, &found);
    if (code != 0)
        return roped_fail(err, ROPED_INVALID,
                          "listen is '%s', expected address:port: %s", text,
                          gai_strerror(code));
    memcpy(out, found->ai_addr, found->ai_addrlen);
    *bytes = found->ai_addrlen;
    freeaddrinfo(found);
    return ROPED_OK;
}

static enum roped_status listen_on(const char *text, int *fd, uint16_t *port,
                                   struct roped_error *err)
{
    struct sockaddr_storage address;
    socklen_t bytes;
    int on = 1, off = 0;
    enum roped_status status = parse_listen(text, &address, &bytes, err);
    if (status)
        return status;
    *fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK,
                 0);
    if (*fd < 0)
        return roped_fail(err, ROPED_INTERNAL, "no socket: %s",
                          strerror(errno));
    setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (address.ss_family == AF_INET6)
        setsockopt(*fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(*fd, (struct sockaddr *)&address, bytes) != 0 ||
        listen(*fd, BACKLOG) != 0) {
        status = roped_fail(err, ROPED_INVALID, "cannot listen on %s: %s", text,
                            strerror(errno));
        close(*fd);
        *fd = -1;
        return status;
    }
    bytes = sizeof address;
    getsockname(*fd, (struct sockaddr *)&address, &bytes);
    *port = ntohs(address.ss_family == AF_INET6
                      ? ((struct sockaddr_in6 *)&address)->sin6_port
                      : ((struct sockaddr_in *)&address)->sin_port);
    return ROPED_OK;
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

static enum roped_status read_token(struct daemon *daemon,
                                    struct roped_error *err)
{
    const char *path = daemon->config->bearer_token_file;
    if (!path[0])
        return ROPED_OK;
    FILE *file = fopen(path, "re");
    if (!file || !fgets(daemon->token, sizeof daemon->token, file))
        daemon->token[0] = '\0';
    if (file)
        fclose(file);
    daemon->token[strcspn(daemon->token, "\r\n")] = '\0';
    if (daemon->token[0])
        return ROPED_OK;
    return roped_fail(err, ROPED_INVALID,
                      "bearer_token_file '%s' holds no token", path);
}

static unsigned n_threads(const struct config *config)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (config->http_threads > 0)
        return (unsigned)config->http_threads;
    return cores < 1 ? 1 : cores > 4 ? 4 : (unsigned)cores;
}

static enum roped_status start_mhd(struct daemon *daemon,
                                   struct roped_error *err)
{
    const struct config *config = daemon->config;
    unsigned threads = n_threads(config);
    struct MHD_OptionItem pool[] = {
        /* a pool of one is refused with a warning */
        {threads > 1 ? MHD_OPTION_THREAD_POOL_SIZE : MHD_OPTION_END,
         (intptr_t)threads, NULL},
        {MHD_OPTION_END, 0, NULL}};
    /* With an increment of all of it the library's buffer for a body grows with
     * each read, from half of the memory to three quarters of it: a body of 41
     * KiB takes two reads of 36 KiB of memory, not three. More memory would be
     * zeroed after each request: 64 KiB cost a small one 4 % of its time. */
    daemon->mhd = MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME |
            MHD_USE_NO_LISTEN_SOCKET | MHD_USE_ITC | MHD_USE_ERROR_LOG,
        0, NULL, NULL, handle_access, daemon, MHD_OPTION_EXTERNAL_LOGGER,
        log_mhd, NULL, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)config->connection_memory_bytes,
        MHD_OPTION_CONNECTION_MEMORY_INCREMENT,
        (size_t)config->connection_memory_bytes, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)config->max_connections, MHD_OPTION_PER_IP_CONNECTION_LIMIT,
        (unsigned)config->max_connections_per_ip, MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)(config->idle_timeout_seconds + 0.5),
        MHD_OPTION_NOTIFY_CONNECTION, notify_connection, daemon,
        MHD_OPTION_NOTIFY_COMPLETED, notify_completed, daemon,
        MHD_OPTION_URI_LOG_CALLBACK, notify_uri, daemon,
        MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_ARRAY, pool,
        MHD_OPTION_END);
    if (!daemon->mhd)
        return roped_fail(err, ROPED_INTERNAL,
                          "the HTTP server did not start: %s", strerror(errno));
    return ROPED_OK;
}

static void init_sync(struct daemon *daemon)
{
    pthread_condattr_t monotonic;
    pthread_mutex_init(&daemon->requests_lock, NULL);
    pthread_mutex_init(&daemon->peers_lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&daemon->reap, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

/* No thread of it is left. */
static void destroy(struct daemon *daemon)
{
    while (daemon->free_requests) {
        struct request *request = daemon->free_requests;
        daemon->free_requests = request->next;
        free(request);
    }
    while (daemon->free_peers) {
        struct peer *peer = daemon->free_peers;
        daemon->free_peers = peer->next;
        free(peer);
    }
    pthread_cond_destroy(&daemon->reap);
    pthread_mutex_destroy(&daemon->peers_lock);
    pthread_mutex_destroy(&daemon->requests_lock);
    free(daemon);
}

enum roped_status daemon_start(const struct daemon_options *options,
                               struct daemon **out, uint16_t *port,
                               struct roped_error *err)
{
    struct daemon *daemon = calloc(1, sizeof *daemon);
    if (!daemon)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for the server");
    daemon->config = options->config;
    daemon->exec = options->exec;
    daemon->metrics = options->metrics;
    daemon->models = options->models;
    daemon->version = options->version;
    daemon->listen_fd = -1;
    daemon->start_time_seconds = (uint64_t)time(NULL);
    init_sync(daemon);
    raise_file_limit(options->config->max_connections);
    enum roped_status status = read_token(daemon, err);
    if (!status)
        status =
            listen_on(options->config->listen, &daemon->listen_fd, port, err);
    if (!status)
        status = start_mhd(daemon, err);
    if (!status) {
        daemon->has_reaper =
            pthread_create(&daemon->reaper, NULL, reap, daemon) == 0;
        if (!daemon->has_reaper)
            status = roped_fail(err, ROPED_NO_MEMORY, "cannot start a thread");
    }
    if (!status)
        status =
            acceptor_start(&daemon->acceptor, daemon, daemon->listen_fd, err);
    if (status)
        daemon_stop(daemon);
    else
        *out = daemon;
    return status;
}

void daemon_set_draining(struct daemon *daemon)
{
    atomic_store(&daemon->is_draining, true);
}

void daemon_quiesce(struct daemon *daemon)
{
    atomic_store(&daemon->is_quiescent, true);
    acceptor_stop(&daemon->acceptor);
}

int daemon_requests(struct daemon *daemon)
{
    pthread_mutex_lock(&daemon->requests_lock);
    int n = daemon->n_requests;
    pthread_mutex_unlock(&daemon->requests_lock);
    return n;
}

void daemon_stop(struct daemon *daemon)
{
    if (!daemon)
        return;
    acceptor_stop(&daemon->acceptor);
    if (daemon->mhd)
        MHD_stop_daemon(daemon->mhd);
    if (daemon->listen_fd >= 0)
        close(daemon->listen_fd);
    if (daemon->has_reaper) {
        pthread_mutex_lock(&daemon->peers_lock);
        daemon->is_closing = true;
        pthread_cond_signal(&daemon->reap);
        pthread_mutex_unlock(&daemon->peers_lock);
        pthread_join(daemon->reaper, NULL);
    }
    destroy(daemon);
}
