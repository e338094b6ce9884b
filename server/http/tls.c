/*
 * tls.c - credentials of sessions, their bytes, and who waits for them.
 *
 * HANDSHAKES. In its epoll mode the library calls a handshake that waits for
 * its client again and again, for as long as the client likes. So whoever finds
 * nothing to read there is suspended, and a thread with an epoll descriptor of
 * its own resumes it when bytes come. After the handshake the library waits
 * itself.
 *
 * BYTES. GnuTLS reads the five bytes of a record's head, then the record. Each
 * read takes a few bytes more than it asked for, so that the next head, or all
 * of a small record, costs no call of its own.
 *
 * THREADS. A link belongs to its connection's thread. While it waits it is on a
 * list, and the other thread's, which alone takes it off; at the end, when that
 * thread has ended, that of whoever stops the daemon.
 */
#include "http/tls.h"

#include "io.h"
#include "log.h"

#include <errno.h>
#include <gnutls/x509.h>
#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { AHEAD_BYTES = 512, N_EVENTS = 64, DROP_BYTES = 1 << 20 };

const char tls_priorities[] =
    "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2:-KX-ALL:+ECDHE-ECDSA:"
    "+ECDHE-RSA:-CIPHER-ALL:+AES-256-GCM:+AES-128-GCM:+CHACHA20-POLY1305:"
    "-MAC-ALL:+AEAD:-SIGN-RSA-SHA1:-SIGN-ECDSA-SHA1";

/* What a session is opened with. */
struct credentials {
    atomic_int n_users;
    gnutls_certificate_credentials_t pair;
    gnutls_datum_t ticket_key; /* of its own: old tickets end with it */
    bool wants_client;
};

struct tls_link {
    struct tls *tls;
    struct MHD_Connection *connection;
    struct credentials *credentials;
    int fd;
    bool has_begun, is_shaken; /* a byte has come; the handshake is over */
    bool is_refused;           /* its client's certificate, in the log */
    bool is_watched;           /* the epoll descriptor knows fd */
    struct tls_link *previous, *next; /* under lock, while it waits */
    size_t ahead_at, ahead_end;
    unsigned char ahead[AHEAD_BYTES];
};

struct tls {
    const struct config *config;
    pthread_mutex_t lock; /* guards these three */
    struct credentials *current;
    struct tls_link *waiting;
    bool is_closing;
    int epoll_fd, stop_fd; /* readable: stop */
    bool has_thread;
    pthread_t thread;
};

/* ------------------------------------------------------------ credentials */

static void give_credentials(struct credentials *credentials)
{
    if (!credentials || atomic_fetch_sub(&credentials->n_users, 1) > 1)
        return;
    if (credentials->pair)
        gnutls_certificate_free_credentials(credentials->pair);
    if (credentials->ticket_key.data) {
        gnutls_memset(credentials->ticket_key.data, 0,
                      credentials->ticket_key.size);
        gnutls_free(credentials->ticket_key.data);
    }
    free(credentials);
}

static struct credentials *take_credentials(struct tls *tls)
{
    pthread_mutex_lock(&tls->lock);
    struct credentials *credentials = tls->current;
    atomic_fetch_add(&credentials->n_users, 1);
    pthread_mutex_unlock(&tls->lock);
    return credentials;
}

/* "2026-11-20T12:00:00Z" */
static void write_time(time_t time, char out[32])
{
    struct tm utc;
    gmtime_r(&time, &utc);
    strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", &utc);
}

/* Is it in force now? Says in the log until when. */
static enum roped_status check_dates(const char *path,
                                     const gnutls_x509_crt_t certificate,
                                     struct roped_error *err)
{
    char from[32], until[32], quoted[2 * CONFIG_TEXT_BYTES];
    time_t start = gnutls_x509_crt_get_activation_time(certificate);
    time_t end = gnutls_x509_crt_get_expiration_time(certificate);
    time_t now = time(NULL);
    write_time(start, from);
    write_time(end, until);
    if (now > end)
        return roped_fail(err, ROPED_INVALID,
                          "tls_cert_file '%s' expired at %s", path, until);
    if (now < start)
        return roped_fail(err, ROPED_INVALID,
                          "tls_cert_file '%s' is not valid before %s", path,
                          from);
    log_line(LOG_INFO, "tls", "certificate=\"%s\" expires=%s",
             log_quote(path, quoted, sizeof quoted), until);
    return ROPED_OK;
}

/* The first certificate of the file is the daemon's own. */
static enum roped_status check_certificate(const char *path,
                                           const gnutls_datum_t *text,
                                           struct roped_error *err)
{
    gnutls_x509_crt_t *list;
    unsigned n = 0;
    int code =
        gnutls_x509_crt_list_import2(&list, &n, text, GNUTLS_X509_FMT_PEM, 0);
    if (code < 0)
        return roped_fail(err, ROPED_INVALID,
                          "tls_cert_file '%s' holds no PEM certificate: %s",
                          path, gnutls_strerror(code));
    enum roped_status status = check_dates(path, list[0], err);
    for (unsigned i = 0; i < n; i++)
        gnutls_x509_crt_deinit(list[i]);
    gnutls_free(list);
    return status;
}

static gnutls_datum_t datum_of(const struct io_file *file)
{
    return (gnutls_datum_t){(unsigned char *)file->text, (unsigned)file->bytes};
}

static enum roped_status set_pair(const struct config *config,
                                  struct credentials *credentials,
                                  struct roped_error *err)
{
    struct io_file certificate_file, key_file = {.text = NULL};
    const char *path = config->tls_cert_file;
    enum roped_status status =
        io_read_file("tls_cert_file", path, &certificate_file, err);
    if (!status)
        status =
            io_read_file("tls_key_file", config->tls_key_file, &key_file, err);
    const gnutls_datum_t certificate = datum_of(&certificate_file),
                         key = datum_of(&key_file);
    if (!status)
        status = check_certificate(path, &certificate, err);
    int code = status ? 0
                      : gnutls_certificate_set_x509_key_mem2(
                            credentials->pair, &certificate, &key,
                            GNUTLS_X509_FMT_PEM, NULL, 0);
    if (code < 0)
        status = roped_fail(err, ROPED_INVALID,
                            "tls_key_file '%s' does not hold the PEM key of "
                            "tls_cert_file '%s': %s",
                            config->tls_key_file, path, gnutls_strerror(code));
    io_free_file(&certificate_file);
    io_free_file(&key_file);
    return status;
}

static void log_refusal(struct tls_link *link, const char *reason)
{
    char quoted[300];
    link->is_refused = true;
    log_line(LOG_WARN, "refused", "by=tls_client_ca_file error=\"%s\"",
             log_quote(reason, quoted, sizeof quoted));
}

/* One line for a client whose certificate is not taken. It is told as well, if
 * it still listens, which the library does not do. */
static int refuse_client(gnutls_session_t session, const char *reason)
{
    log_refusal(gnutls_transport_get_ptr(session), reason);
    (void)gnutls_alert_send(session, GNUTLS_AL_FATAL, GNUTLS_A_BAD_CERTIFICATE);
    return GNUTLS_E_CERTIFICATE_ERROR;
}

static int verify_client(gnutls_session_t session)
{
    char purpose[] = GNUTLS_KP_TLS_WWW_CLIENT;
    gnutls_typed_vdata_st data = {GNUTLS_DT_KEY_PURPOSE_OID, (void *)purpose,
                                  0};
    gnutls_datum_t text = {.size = 0};
    unsigned problems = 0;
    int code = gnutls_certificate_verify_peers(session, &data, 1, &problems);
    if (code < 0)
        return refuse_client(session, gnutls_strerror(code));
    if (problems == 0)
        return 0;
    (void)gnutls_certificate_verification_status_print(
        problems, GNUTLS_CRT_X509, &text, 0);
    code = refuse_client(session, text.data ? (char *)text.data : "unknown");
    gnutls_free(text.data);
    return code;
}

static enum roped_status set_client_ca(const char *path,
                                       struct credentials *credentials,
                                       struct roped_error *err)
{
    struct io_file file;
    if (!path[0])
        return ROPED_OK;
    enum roped_status status =
        io_read_file("tls_client_ca_file", path, &file, err);
    const gnutls_datum_t text = datum_of(&file);
    int n = status ? 0
                   : gnutls_certificate_set_x509_trust_mem(
                         credentials->pair, &text, GNUTLS_X509_FMT_PEM);
    io_free_file(&file);
    if (status)
        return status;
    if (n <= 0)
        return roped_fail(err, ROPED_INVALID,
                          "tls_client_ca_file '%s' holds no PEM certificate: "
                          "%s",
                          path, n < 0 ? gnutls_strerror(n) : "none found");
    credentials->wants_client = true;
    gnutls_certificate_set_verify_function(credentials->pair, verify_client);
    return ROPED_OK;
}

static enum roped_status load(const struct config *config,
                              struct credentials **out, struct roped_error *err)
{
    struct credentials *credentials = calloc(1, sizeof *credentials);
    if (!credentials)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for TLS");
    atomic_init(&credentials->n_users, 1);
    int code = gnutls_certificate_allocate_credentials(&credentials->pair);
    if (code >= 0)
        code = gnutls_session_ticket_key_generate(&credentials->ticket_key);
    enum roped_status status =
        code < 0 ? roped_fail(err, ROPED_INTERNAL, "cannot set up TLS: %s",
                              gnutls_strerror(code))
                 : set_pair(config, credentials, err);
    if (!status)
        status = set_client_ca(config->tls_client_ca_file, credentials, err);
    if (status)
        give_credentials(credentials);
    else
        *out = credentials;
    return status;
}

enum roped_status tls_reload(struct tls *tls, struct roped_error *err)
{
    struct credentials *fresh, *old;
    enum roped_status status = load(tls->config, &fresh, err);
    if (status)
        return status;
    pthread_mutex_lock(&tls->lock);
    old = tls->current;
    tls->current = fresh;
    pthread_mutex_unlock(&tls->lock);
    give_credentials(old);
    return ROPED_OK;
}

int tls_no_certificate(gnutls_session_t session,
                       const struct gnutls_cert_retr_st *info,
                       gnutls_pcert_st **certificates, unsigned *n_certificates,
                       gnutls_ocsp_data_st **status, unsigned *n_status,
                       gnutls_privkey_t *key, unsigned *flags)
{
    (void)session, (void)info, (void)certificates, (void)n_certificates;
    (void)status, (void)n_status, (void)key, (void)flags;
    return -1;
}

/* ---------------------------------------------------------------- waiting */

/* Under lock: takes it off the list. */
static void stop_waiting(struct tls_link *link)
{
    if (link->previous)
        link->previous->next = link->next;
    else
        link->tls->waiting = link->next;
    if (link->next)
        link->next->previous = link->previous;
    link->previous = link->next = NULL;
}

static bool watch(struct tls_link *link)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | EPOLLONESHOT,
                                .data.ptr = link};
    int what = link->is_watched ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    link->is_watched = true;
    return epoll_ctl(link->tls->epoll_fd, what, link->fd, &event) == 0;
}

/* In a handshake there is nothing to read. False: do not wait for it. */
static bool wait_for_bytes(struct tls_link *link)
{
    struct tls *tls = link->tls;
    struct MHD_Connection *connection = link->connection;
    /* suspend first, publish second: then it is the other thread's */
    MHD_suspend_connection(connection);
    pthread_mutex_lock(&tls->lock);
    bool waits = !tls->is_closing;
    if (waits) {
        link->next = tls->waiting;
        if (link->next)
            link->next->previous = link;
        tls->waiting = link;
        waits = watch(link);
        if (!waits)
            stop_waiting(link);
    }
    pthread_mutex_unlock(&tls->lock);
    if (!waits)
        MHD_resume_connection(connection);
    return waits;
}

/* Its bytes have come, or it has to end: the connection's thread goes on. */
static void wake(struct tls *tls, struct tls_link *link)
{
    struct MHD_Connection *connection = link->connection;
    pthread_mutex_lock(&tls->lock);
    stop_waiting(link);
    pthread_mutex_unlock(&tls->lock);
    MHD_resume_connection(connection);
}

static void *run(void *context)
{
    struct tls *tls = context;
    struct epoll_event events[N_EVENTS];
    for (;;) {
        int n = epoll_wait(tls->epoll_fd, events, N_EVENTS, -1);
        for (int i = 0; i < n; i++) {
            if (!events[i].data.ptr)
                return NULL;
            wake(tls, events[i].data.ptr);
        }
    }
}

void tls_end_handshakes(struct tls *tls)
{
    pthread_mutex_lock(&tls->lock);
    tls->is_closing = true; /* from here on the list only gets shorter */
    pthread_mutex_unlock(&tls->lock);
    if (tls->has_thread) {
        io_wake(tls->stop_fd);
        pthread_join(tls->thread, NULL);
        tls->has_thread = false;
    }
    while (tls->waiting)
        wake(tls, tls->waiting);
}

/* ------------------------------------------------------------------ bytes */

#define PLAIN_BODY "{\"error\":\"this port speaks TLS: begin with https://\"}"
_Static_assert(sizeof PLAIN_BODY - 1 == 53, "the Content-Length below");

/* Somebody speaks HTTP to this port: says so, unencrypted, and hangs up. */
static void answer_plain(const struct tls_link *link)
{
    static const char answer[] =
        "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\n"
        "Content-Length: 53\r\nConnection: close\r\n\r\n" PLAIN_BODY;
    /* What is not read would turn the answer into a reset. TCP drops so many
     * bytes in one call, which waits for none: who goes on sending takes no
     * more time than this. */
    (void)recv(link->fd, NULL, DROP_BYTES, MSG_DONTWAIT | MSG_TRUNC);
    (void)send(link->fd, answer, sizeof answer - 1,
               MSG_DONTWAIT | MSG_NOSIGNAL);
}

static ssize_t receive(struct tls_link *link, unsigned char *data, size_t bytes)
{
    struct iovec part[] = {{data, bytes}, {link->ahead, AHEAD_BYTES}};
    ssize_t n = readv(link->fd, part, 2);
    link->ahead_at = link->ahead_end = 0;
    if (n <= (ssize_t)bytes)
        return n;
    link->ahead_end = (size_t)n - bytes;
    return (ssize_t)bytes;
}

static ssize_t take_ahead(struct tls_link *link, void *data, size_t bytes)
{
    size_t n = link->ahead_end - link->ahead_at;
    n = n < bytes ? n : bytes;
    memcpy(data, link->ahead + link->ahead_at, n);
    link->ahead_at += n;
    return (ssize_t)n;
}

/* gnutls_pull_func */
static ssize_t pull(gnutls_transport_ptr_t context, void *data, size_t bytes)
{
    struct tls_link *link = context;
    if (link->ahead_at < link->ahead_end)
        return take_ahead(link, data, bytes);
    ssize_t n = receive(link, data, bytes);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) &&
        !link->is_shaken) {
        bool waits = wait_for_bytes(link);
        errno = waits ? EAGAIN : ECONNRESET;
    } else if (n > 0 && !link->has_begun) {
        unsigned char first = *(unsigned char *)data;
        link->has_begun = true;
        if (first >= 'A' && first <= 'Z') { /* of a method, not of a record */
            answer_plain(link);
            return 0;
        }
    }
    return n;
}

/* gnutls_handshake_hook_func: the client's Finished is the last it sends. */
static int note_finished(gnutls_session_t session, unsigned type, unsigned when,
                         unsigned is_incoming, const gnutls_datum_t *message)
{
    struct tls_link *link = gnutls_transport_get_ptr(session);
    (void)type, (void)when, (void)message;
    link->is_shaken |= is_incoming != 0;
    return 0;
}

/* ------------------------------------------------------------------ links */

static void set_up_session(gnutls_session_t session, struct tls_link *link)
{
    const struct credentials *credentials = link->credentials;
    gnutls_transport_set_ptr2(session, link,
                              (gnutls_transport_ptr_t)(intptr_t)link->fd);
    gnutls_transport_set_pull_function(session, pull);
    gnutls_handshake_set_hook_function(session, GNUTLS_HANDSHAKE_FINISHED,
                                       GNUTLS_HOOK_POST, note_finished);
    (void)gnutls_credentials_set(session, GNUTLS_CRD_CERTIFICATE,
                                 credentials->pair);
    (void)gnutls_session_ticket_enable_server(session,
                                              &credentials->ticket_key);
    if (credentials->wants_client)
        gnutls_certificate_server_set_request(session, GNUTLS_CERT_REQUIRE);
}

struct tls_link *tls_link_open(struct tls *tls,
                               struct MHD_Connection *connection, int fd)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_GNUTLS_SESSION);
    struct tls_link *link = info ? malloc(sizeof *link) : NULL;
    if (!link)
        return NULL;
    memset(link, 0, offsetof(struct tls_link, ahead));
    link->tls = tls;
    link->connection = connection;
    link->fd = fd;
    link->credentials = take_credentials(tls);
    set_up_session(info->tls_session, link);
    return link;
}

void tls_link_close(struct tls_link *link)
{
    if (!link)
        return;
    if (link->is_watched)
        (void)epoll_ctl(link->tls->epoll_fd, EPOLL_CTL_DEL, link->fd, NULL);
    if (link->credentials->wants_client && link->has_begun &&
        !link->is_shaken && !link->is_refused)
        log_refusal(link, "the client showed no certificate, or broke off");
    give_credentials(link->credentials);
    free(link);
}

/* ------------------------------------------------------------------ start */

static enum roped_status check_settings(const struct config *config,
                                        struct roped_error *err)
{
    const char *set = config->tls_cert_file[0]  ? "tls_cert_file"
                      : config->tls_key_file[0] ? "tls_key_file"
                                                : "tls_client_ca_file";
    const char *missing =
        config->tls_cert_file[0] ? "tls_key_file" : "tls_cert_file";
    if (config->tls_cert_file[0] && config->tls_key_file[0])
        return ROPED_OK;
    return roped_fail(err, ROPED_INVALID, "%s is set, and %s is not", set,
                      missing);
}

static enum roped_status start(struct tls *tls, struct roped_error *err)
{
    struct epoll_event stop = {.events = EPOLLIN};
    tls->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    tls->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (tls->epoll_fd < 0 || tls->stop_fd < 0 ||
        epoll_ctl(tls->epoll_fd, EPOLL_CTL_ADD, tls->stop_fd, &stop) != 0)
        return roped_fail(err, ROPED_INTERNAL,
                          "cannot wait for TLS handshakes: %s",
                          strerror(errno));
    tls->has_thread = pthread_create(&tls->thread, NULL, run, tls) == 0;
    return tls->has_thread
               ? ROPED_OK
               : roped_fail(err, ROPED_NO_MEMORY,
                            "cannot start the thread that waits for TLS "
                            "handshakes");
}

enum roped_status tls_open(const struct config *config, struct tls **out,
                           struct roped_error *err)
{
    *out = NULL;
    if (!config->tls_cert_file[0] && !config->tls_key_file[0] &&
        !config->tls_client_ca_file[0])
        return ROPED_OK;
    enum roped_status status = check_settings(config, err);
    if (status)
        return status;
    struct tls *tls = calloc(1, sizeof *tls);
    if (!tls)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for TLS");
    tls->config = config;
    tls->epoll_fd = tls->stop_fd = -1;
    pthread_mutex_init(&tls->lock, NULL);
    status = load(config, &tls->current, err);
    if (!status)
        status = start(tls, err);
    if (status)
        tls_close(tls);
    else
        *out = tls;
    return status;
}

void tls_close(struct tls *tls)
{
    if (!tls)
        return;
    tls_end_handshakes(tls);
    if (tls->stop_fd >= 0)
        close(tls->stop_fd);
    if (tls->epoll_fd >= 0)
        close(tls->epoll_fd);
    give_credentials(tls->current);
    pthread_mutex_destroy(&tls->lock);
    free(tls);
}
