/*
 * transport.c - the callbacks of libmicrohttpd, and its start.
 *
 * The library calls handle_access first when the head of a request is complete,
 * then with each piece of its body (data not NULL, and maybe empty), and last
 * with data NULL. An answer may be given in the first of these calls, after
 * which nothing more is read of the connection, or in the last. A request is
 * suspended while a job of it runs elsewhere; the last call comes again when it
 * is resumed.
 */
#include "http/transport.h"

#include "http/clock.h"
#include "http/headers.h"
#include "http/request.h"
#include "http/request_log.h"
#include "http/tls.h"
#include "log.h"

#include <errno.h>
#include <limits.h>
#include <microhttpd.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
    SEND_BUFFER_BYTES = 512 << 10, /* bounds one send(): +20-35 % on large
                                      answers, and others' tail latency */
    CHUNK_BYTES = 1 << 20,
    KEPT_EXCHANGES = 64, /* of each thread */

    /* acceptor.c keeps max_connections: past its own limit libmicrohttpd 0.9.75
     * leaves a lock taken, and its thread serves nobody any more */
    MOST_CONNECTIONS = INT_MAX
};

/* Clients that read Content-Length into an int end there and then when it is
 * larger than one: such answers go out in chunks. */
static const uint64_t most_with_length = INT32_MAX;

/* MHD_Result came with libmicrohttpd 0.9.71 */
typedef enum MHD_Result mhd_result;

enum exchange_state {
    EXCHANGE_IDLE,
    EXCHANGE_RUNNING, /* suspended: the executor has a job */
    EXCHANGE_FINISHED /* the job has ended, and its reply is not made yet */
};

/* A request and its connection. */
struct exchange {
    struct service *service;
    struct MHD_Connection *connection;
    struct peer *peer;
    const char *target; /* of the request line, as it came */
    size_t target_bytes;
    bool has_head, has_job;
    int code;         /* of its answer; 0: none yet */
    atomic_int state; /* enum exchange_state */
    struct exchange *next;
    struct request request; /* last: 26 KiB, not cleared */
};

/* -------------------------------------------------------------- exchanges */

/* Requests begin and end on the thread of their connection, which keeps a few
 * for the next ones. The transport frees them when its threads have ended. */
struct exchange_cache {
    struct exchange_cache *next;
    struct exchange *first;
    int n;
};
static _Thread_local struct exchange_cache *cache;

static void add_cache(struct transport *transport)
{
    cache = calloc(1, sizeof *cache);
    if (!cache)
        return;
    cache->next = atomic_load(&transport->caches);
    while (
        !atomic_compare_exchange_weak(&transport->caches, &cache->next, cache))
        continue;
}

static void free_cache(struct exchange_cache *old)
{
    while (old->first) {
        struct exchange *exchange = old->first;
        old->first = exchange->next;
        free(exchange);
    }
    free(old);
}

static struct exchange *take_exchange(struct transport *transport)
{
    if (!cache)
        add_cache(transport);
    if (!cache || !cache->first)
        return malloc(sizeof(struct exchange));
    struct exchange *exchange = cache->first;
    cache->first = exchange->next;
    cache->n--;
    return exchange;
}

static void give_exchange(struct exchange *exchange)
{
    request_fini(&exchange->request);
    if (!cache || cache->n == KEPT_EXCHANGES) {
        free(exchange);
        return;
    }
    exchange->next = cache->first;
    cache->first = exchange;
    cache->n++;
}

/* -------------------------------------------------------------- deadlines */

/* When a transfer that began then is too slow: after the grace each byte has
 * its time, and all of them together theirs. */
static uint64_t transfer_deadline_ns(const struct config *config,
                                     uint64_t start_ns, uint64_t bytes)
{
    double seconds = config->body_timeout_seconds;
    double rate = (double)config->min_body_rate;
    double least = config->body_grace_seconds + (double)bytes / rate;
    if (rate > 0 && least < seconds)
        seconds = least;
    return start_ns + (uint64_t)(seconds * 1e9);
}

/* ----------------------------------------------------------------- answer */

static void add_header(void *context, const char *name, const char *value)
{
    /* a header that does not fit in memory is left out: the answer counts */
    (void)MHD_add_response_header(context, name, value);
}

/* MHD_ContentReaderCallback over a reply's bytes. */
static ssize_t read_reply(void *context, uint64_t at, char *out, size_t room)
{
    const struct reply *reply = context;
    size_t left = reply->bytes - (size_t)at;
    if (left == 0)
        return MHD_CONTENT_READER_END_OF_STREAM;
    size_t n = left < room ? left : room;
    memcpy(out, (const char *)reply->data + at, n);
    return (ssize_t)n;
}

/* The bytes are the request's, which lives until they are sent. */
static struct MHD_Response *make_response(struct reply *reply)
{
    if (reply->bytes > most_with_length)
        return MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, CHUNK_BYTES,
                                                 read_reply, reply, NULL);
    return MHD_create_response_from_buffer(
        reply->bytes, (void *)(uintptr_t)reply->data, MHD_RESPMEM_PERSISTENT);
}

static mhd_result send_reply(struct exchange *exchange,
                             const struct reply *reply)
{
    struct request *request = &exchange->request;
    request->answer.pending = *reply; /* where read_reply finds it */
    struct MHD_Response *response = make_response(&request->answer.pending);
    if (!response)
        return MHD_NO;
    reply_headers(request, reply, add_header, response);
    metrics_count_response(exchange->service->metrics, reply->code);
    request_log_refusal(request, reply->code,
                        exchange->peer ? exchange->peer->fd : -1);
    exchange->code = reply->code;
    peer_set_deadline(exchange->peer,
                      transfer_deadline_ns(exchange->service->config,
                                           clock_after_ns(0), reply->bytes));
    peer_set_sending(exchange->peer);
    mhd_result result = MHD_queue_response(exchange->connection,
                                           (unsigned)reply->code, response);
    MHD_destroy_response(response);
    return result;
}

/* ------------------------------------------------------------------- jobs */

static struct exchange *exchange_of(const struct exec_job *job)
{
    char *request = job->owner;
    return (void *)(request - offsetof(struct exchange, request));
}

/* Runs on a lane's thread, or on ours where the job ran inline. */
static void job_done(struct exec_job *job)
{
    struct exchange *exchange = exchange_of(job);
    struct MHD_Connection *connection = exchange->connection;
    request_job_ended(&exchange->request, job);
    int state = atomic_exchange(&exchange->state, EXCHANGE_FINISHED);
    if (state == EXCHANGE_RUNNING) /* suspended: after this it is not ours */
        MHD_resume_connection(connection);
}

/* Has the client hung up while its call waited? */
static bool is_gone(const struct exec_job *job)
{
    const struct exchange *exchange = exchange_of(job);
    return exchange->peer && peer_is_gone(exchange->peer);
}

/*
 * A connection that is resumed is read first, and closed unanswered where its
 * client has ended its sending side by then. Those with a timeout of their own
 * are looked at before they are read: ours is called, and answers. No such
 * timeout ever passes: it is taken back when the request goes on.
 */
static void put_answer_first(struct exchange *exchange, bool is_first)
{
    const unsigned never = 1 << 20; /* seconds; 0: the library's own, none */
    (void)MHD_set_connection_option(exchange->connection,
                                    MHD_CONNECTION_OPTION_TIMEOUT,
                                    is_first ? never : 0);
}

/* True where the job has ended on this thread. Else it has been handed over,
 * and the exchange is not ours any more. */
static bool run(struct exchange *exchange, struct exec_job *job)
{
    struct executor *exec = exchange->service->exec;
    atomic_store(&exchange->state, EXCHANGE_IDLE);
    job->done = job_done;
    job->owner = &exchange->request;
    job->deadline_ns = request_deadline_ns(&exchange->request);
    job->is_continued = exchange->has_job;
    exchange->has_job = true;
    if (exec_run_inline(exec, job))
        return true;
    job->is_gone = is_gone;
    /* suspend first, publish second: the other order loses the wake-up */
    atomic_store(&exchange->state, EXCHANGE_RUNNING);
    put_answer_first(exchange, true);
    MHD_suspend_connection(exchange->connection);
    if (exec_submit(exec, job, &job->error)) {
        job->status = job->error.status;
        job_done(job);
    }
    return false;
}

/* Every reply comes through here: runs the jobs that come before it, and sends
 * it. */
static mhd_result proceed(struct exchange *exchange, struct reply reply)
{
    while (reply.code == 0) {
        if (!run(exchange, reply.job))
            return MHD_YES;
        reply = request_resume(&exchange->request);
    }
    return send_reply(exchange, &reply);
}

/* ------------------------------------------------------------------- head */

/* Before 1.0 the library takes lines that end in LF alone, lines folded into
 * the one before, and NUL, which hides what follows. */
static bool is_lax(void)
{
    return strverscmp(MHD_get_version(), "1.0") < 0;
}

struct head_scan {
    struct head *head;
    const char *end; /* of the line before, with its CR and LF */
    bool is_exact;
};

static mhd_result scan_header(void *context, enum MHD_ValueKind kind,
                              const char *name, size_t name_bytes,
                              const char *value, size_t value_bytes)
{
    struct head_scan *scan = context;
    (void)kind;
    head_add_header(scan->head, name, name_bytes, value, value_bytes);
    scan->is_exact &= name == scan->end && value;
    scan->end = value ? value + value_bytes + 2 : NULL;
    return MHD_YES;
}

static mhd_result scan_parameter(void *context, enum MHD_ValueKind kind,
                                 const char *name, size_t name_bytes,
                                 const char *value, size_t value_bytes)
{
    (void)kind;
    head_add_parameter(context, name, name_bytes, value, value_bytes);
    return MHD_YES;
}

/*
 * The library parses the head where it lies, and its strings stay there. So
 * where each begins and ends says what stood between them, whether or not the
 * library took it: one space in the request line, CR and LF behind each line.
 * One that was folded was copied, one cut short by a NUL ends too early.
 */
static void read_head(struct exchange *exchange, const char *method,
                      const char *path, const char *version)
{
    struct MHD_Connection *connection = exchange->connection;
    struct head *head = &exchange->request.head;
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(
        connection, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    struct head_scan scan = {.head = head,
                             .end = version + strlen(version) + 2};
    scan.is_exact = exchange->target == method + strlen(method) + 1 &&
                    version == exchange->target + exchange->target_bytes + 1;
    head->method = method;
    head_set_path(head, path);
    MHD_get_connection_values_n(connection, MHD_HEADER_KIND, scan_header,
                                &scan);
    MHD_get_connection_values_n(connection, MHD_GET_ARGUMENT_KIND,
                                scan_parameter, head);
    scan.is_exact &= info && scan.end + 2 == method + info->header_size;
    if (exchange->service->is_lax && !scan.is_exact && !head->fault)
        head->fault = "a line of the head is folded, does not end in CR LF, "
                      "or holds a NUL or more spaces than it may";
}

/* -------------------------------------------------------------- callbacks */

static struct peer *peer_of(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

/* A request that the library has dropped without a word, as it does where it
 * has no memory for an error of its own: it ends with its connection. */
static void end_exchange(struct peer *peer)
{
    if (peer->exchange)
        give_exchange(peer->exchange);
    peer->exchange = NULL;
}

/* A connection is served from now on; until its first request line it has the
 * time of headers, in which TLS shakes hands. */
static struct peer *greet(const struct transport *transport,
                          struct MHD_Connection *connection)
{
    struct service *service = transport->service;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    int send_bytes = SEND_BUFFER_BYTES, on = 1, fd = info->connect_fd;
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &send_bytes, sizeof send_bytes);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    struct peer *peer =
        peers_serve(&service->peers, fd,
                    clock_after_ns(service->config->header_timeout_seconds));
    if (peer && transport->tls)
        peer->link = tls_link_open(transport->tls, connection, fd);
    return peer;
}

static void notify_connection(void *context, struct MHD_Connection *connection,
                              void **socket_context,
                              enum MHD_ConnectionNotificationCode code)
{
    const struct transport *transport = context;
    struct peer *peer = *socket_context;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        *socket_context = greet(transport, connection);
    } else if (peer) {
        end_exchange(peer);
        tls_link_close(peer->link);
        peers_remove(&transport->service->peers, peer);
        *socket_context = NULL;
    }
}

/* A request line has arrived: the headers get their time. What it returns is
 * the request context of the handler's calls. */
static void *notify_uri(void *context, const char *uri,
                        struct MHD_Connection *connection)
{
    struct transport *transport = context;
    struct service *service = transport->service;
    struct exchange *exchange = uri ? take_exchange(transport) : NULL;
    if (!exchange)
        return NULL;
    memset(exchange, 0, offsetof(struct exchange, request));
    exchange->service = service;
    exchange->connection = connection;
    exchange->peer = peer_of(connection);
    if (exchange->peer) {
        end_exchange(exchange->peer);
        exchange->peer->exchange = exchange;
    }
    exchange->target = uri;
    exchange->target_bytes = strlen(uri);
    peer_set_idle(exchange->peer, false);
    peer_set_deadline(exchange->peer,
                      clock_after_ns(service->config->header_timeout_seconds));
    request_init(&exchange->request, service);
    exchange->request.is_admin = transport->is_admin;
    head_set_target(&exchange->request.head, uri);
    return exchange;
}

static void notify_completed(void *context, struct MHD_Connection *connection,
                             void **request_context,
                             enum MHD_RequestTerminationCode code)
{
    struct exchange *exchange = *request_context;
    (void)context;
    (void)connection;
    if (!exchange)
        return;
    if (exchange->has_head)
        request_log(&exchange->request, exchange->code,
                    code == MHD_REQUEST_TERMINATED_COMPLETED_OK,
                    exchange->peer ? exchange->peer->fd : -1);
    peer_set_deadline(
        exchange->peer,
        clock_after_ns(exchange->service->config->idle_timeout_seconds));
    peer_set_idle(exchange->peer, true);
    if (exchange->peer)
        exchange->peer->exchange = NULL;
    give_exchange(exchange);
    *request_context = NULL;
}

static mhd_result begin(struct exchange *exchange, const char *method,
                        const char *path, const char *version)
{
    struct request *request = &exchange->request;
    exchange->has_head = true;
    read_head(exchange, method, path, version);
    peer_set_deadline(exchange->peer,
                      transfer_deadline_ns(exchange->service->config,
                                           request->body.started_ns, 0));
    if (request_begin(request))
        return MHD_YES;
    return proceed(exchange, request_end(request));
}

static mhd_result receive(struct exchange *exchange, const char *data,
                          size_t bytes)
{
    struct request *request = &exchange->request;
    bool goes_on = bytes == 0 || request_receive(request, data, bytes);
    peer_set_deadline(exchange->peer,
                      transfer_deadline_ns(exchange->service->config,
                                           request->body.started_ns,
                                           request->body.received));
    return goes_on ? MHD_YES : MHD_NO;
}

/* The body is complete, or the connection has been resumed. */
static mhd_result finish(struct exchange *exchange)
{
    switch ((enum exchange_state)atomic_load(&exchange->state)) {
    case EXCHANGE_RUNNING:
        return MHD_YES; /* suspended; nothing to do yet */
    case EXCHANGE_FINISHED:
        put_answer_first(exchange, false);
        return proceed(exchange, request_resume(&exchange->request));
    case EXCHANGE_IDLE:
        break;
    }
    peer_set_deadline(exchange->peer, 0);
    return proceed(exchange, request_end(&exchange->request));
}

/* What returns MHD_NO ends the connection. A request that has its answer must:
 * the library comes again where it has not taken that, without saying so once
 * it is being stopped. */
static mhd_result handle_access(void *context,
                                struct MHD_Connection *connection,
                                const char *path, const char *method,
                                const char *version, const char *data,
                                size_t *data_bytes, void **request_context)
{
    struct exchange *exchange = *request_context;
    size_t bytes = *data_bytes;
    (void)context;
    (void)connection;
    *data_bytes = 0; /* all of it is taken */
    if (!exchange || exchange->code)
        return MHD_NO;
    if (!exchange->has_head)
        return begin(exchange, method, path, version);
    return data ? receive(exchange, data, bytes) : finish(exchange);
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

/* A failed system call that the library cannot go on from, like epoll_ctl: the
 * daemon ends with a reason, for its supervisor to start it again. */
static void panic(void *context, const char *file, unsigned line,
                  const char *reason)
{
    char text[200], quoted[300];
    (void)context;
    (void)file;
    snprintf(text, sizeof text, "%s", reason ? reason : "");
    text[strcspn(text, "\n")] = '\0';
    log_line(LOG_ERROR, "http", "error=\"libmicrohttpd failed: %s\" line=%u",
             log_quote(text, quoted, sizeof quoted), line);
    _exit(EXIT_FAILURE);
}

/* ------------------------------------------------------------------ start */

/*
 * libmicrohttpd takes up to 128 events at a time, and where it gets 128 it
 * waits for more before it serves them: as many clients that wrote at one
 * moment waited for another to write (all versions up to 1.0.1). It never gets
 * as many from this, which takes the place of the C library's function.
 */
__attribute__((visibility("default"))) int
epoll_wait(int epoll, struct epoll_event *events, int most, int timeout_ms)
{
    return epoll_pwait(epoll, events, most > 1 ? most - 1 : most, timeout_ms,
                       NULL);
}

/*
 * It also wakes its threads with this, and where that was interrupted the
 * answer to a request that was resumed never goes out, and its end is a panic.
 * No signal is to end a write here: the main thread waits for them.
 */
__attribute__((visibility("default"))) ssize_t write(int fd, const void *data,
                                                     size_t bytes)
{
    enum { MOST_TRIES = 1000 };
    const struct iovec piece = {(void *)(uintptr_t)data, bytes};
    ssize_t n = -1;
    for (int i = 0; i < MOST_TRIES && n < 0 && (i == 0 || errno == EINTR); i++)
        n = writev(fd, &piece, 1);
    return n;
}

enum { MOST_OPTIONS = 4 };

/* Those that the library warns of, or refuses, where they mean nothing. */
static void list_options(int threads, bool has_tls,
                         struct MHD_OptionItem out[MOST_OPTIONS])
{
    if (threads > 1)
        *out++ =
            (struct MHD_OptionItem){MHD_OPTION_THREAD_POOL_SIZE, threads, NULL};
    if (has_tls) {
        *out++ = (struct MHD_OptionItem){MHD_OPTION_HTTPS_PRIORITIES, 0,
                                         (void *)(uintptr_t)tls_priorities};
        *out++ = (struct MHD_OptionItem){MHD_OPTION_HTTPS_CERT_CALLBACK2, 0,
                                         (void *)(uintptr_t)tls_no_certificate};
    }
    *out = (struct MHD_OptionItem){MHD_OPTION_END, 0, NULL};
}

enum roped_status transport_start(struct transport *transport,
                                  struct roped_error *err)
{
    struct service *service = transport->service;
    const struct tls *tls = transport->tls;
    const struct config *config = service->config;
    struct MHD_OptionItem options[MOST_OPTIONS];
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME |
                     MHD_USE_NO_LISTEN_SOCKET | MHD_USE_ITC | MHD_USE_ERROR_LOG;
    service->is_lax = is_lax();
    list_options(transport->is_admin ? 1 : config_http_threads(config),
                 tls != NULL, options);
    MHD_set_panic_func(panic, NULL);
    /* With an increment of all of it the library's buffer for a body grows with
     * each read, from half of the memory to three quarters of it: a body of 41
     * KiB takes two reads of 36 KiB of memory, not three. More memory would be
     * zeroed after each request: 64 KiB cost a small one 4 % of its time.
     *
     * No MHD_OPTION_CONNECTION_TIMEOUT: where its thread is late it ends
     * connections whose bytes it has not read yet. peers.c looks for those. */
    transport->mhd = MHD_start_daemon(
        tls ? flags | MHD_USE_TLS : flags, 0, NULL, NULL, handle_access,
        transport, MHD_OPTION_EXTERNAL_LOGGER, log_mhd, NULL,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)config->connection_memory_bytes,
        MHD_OPTION_CONNECTION_MEMORY_INCREMENT,
        (size_t)config->connection_memory_bytes, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)MOST_CONNECTIONS, MHD_OPTION_PER_IP_CONNECTION_LIMIT,
        (unsigned)config->max_connections_per_ip, MHD_OPTION_NOTIFY_CONNECTION,
        notify_connection, transport, MHD_OPTION_NOTIFY_COMPLETED,
        notify_completed, transport, MHD_OPTION_URI_LOG_CALLBACK, notify_uri,
        transport, MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_ARRAY, options,
        MHD_OPTION_END);
    if (!transport->mhd)
        return roped_fail(err, ROPED_INTERNAL,
                          "the HTTP server did not start: %s", strerror(errno));
    return ROPED_OK;
}

void transport_stop(struct transport *transport)
{
    if (!transport->mhd)
        return;
    if (transport->tls)
        tls_end_handshakes(transport->tls);
    MHD_stop_daemon(transport->mhd);
    transport->mhd = NULL;
    struct exchange_cache *next = atomic_exchange(&transport->caches, NULL);
    while (next) {
        struct exchange_cache *old = next;
        next = old->next;
        free_cache(old);
    }
}

void transport_add(struct transport *transport, int fd,
                   const struct sockaddr *address, socklen_t bytes)
{
    /* on failure it has closed fd, and said why in the log */
    if (MHD_add_connection(transport->mhd, fd, address, bytes) != MHD_YES)
        peers_drop(&transport->service->peers, fd);
}
