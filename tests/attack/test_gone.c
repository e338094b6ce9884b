/*
 * test_gone.c - what a client no longer uses is free within a second: its
 * connection, the memory of its body and its answer, the bytes of a region that
 * it was writing, its place in the queue. A table: in every state of a request,
 * over plain HTTP, TLS and a Unix socket, the client closes or resets its
 * connection right behind its last byte, or a while later.
 *
 * Each column of the table is a process with a daemon of its own, whose
 * launches are slow (fault_backend.c).
 */
#include "attack/attack.h"
#include "check.h"
#include "http/service.h"
#include "load/certificates.h"

#include <gnutls/gnutls.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SLOW_MS = 1500, LIMIT_MS = ATTACK_IS_SANITIZED ? 3000 : 1000 };
static const double slow_seconds = SLOW_MS * 1e-3, calm_seconds = 0.25;
static struct certificates certificates;
static bool has_certificates;
static char folder[] = "/tmp/roped_test_XXXXXX";

/* ------------------------------------------------------------- connections */

enum transport { PLAIN, TLS, UNIX, N_TRANSPORTS };
static const char *const transport_name[] = {"plain", "TLS", "Unix"};

struct wire {
    int fd;
    gnutls_session_t session; /* NULL: none */
    gnutls_certificate_credentials_t credentials;
};

/* TLS 1.2 without tickets: all that comes has been read when the handshake is
 * over, so that a close is a FIN and no reset. */
static void shake_hands(struct wire *wire)
{
    gnutls_certificate_allocate_credentials(&wire->credentials);
    gnutls_init(&wire->session, GNUTLS_CLIENT | GNUTLS_NO_SIGNAL);
    gnutls_priority_set_direct(
        wire->session, "NORMAL:-VERS-ALL:+VERS-TLS1.2:%NO_TICKETS", NULL);
    gnutls_credentials_set(wire->session, GNUTLS_CRD_CERTIFICATE,
                           wire->credentials);
    gnutls_transport_set_int(wire->session, wire->fd);
    CHECK_INT(gnutls_handshake(wire->session), GNUTLS_E_SUCCESS);
}

static struct wire wire_open(const struct server *server,
                             enum transport transport, bool shakes)
{
    struct wire wire = {.session = NULL};
    char path[64];
    snprintf(path, sizeof path, "%s/%d", folder, (int)getpid());
    wire.fd = transport == UNIX ? client_connect_path(path)
                                : client_connect(server->port);
    CHECK(wire.fd >= 0);
    if (transport == TLS && shakes)
        shake_hands(&wire);
    return wire;
}

static void wire_send(struct wire *wire, const char *data, size_t n)
{
    for (size_t at = 0; wire->session && at < n;) {
        ssize_t sent = gnutls_record_send(wire->session, data + at, n - at);
        CHECK(sent > 0);
        at += sent > 0 ? (size_t)sent : n;
    }
    if (!wire->session)
        CHECK(attack_send(wire->fd, data, n));
}

static ssize_t wire_read(struct wire *wire, char *data, size_t n)
{
    return wire->session ? gnutls_record_recv(wire->session, data, n)
                         : recv(wire->fd, data, n, 0);
}

static void wire_leave(struct wire *wire, bool resets)
{
    struct linger reset = {1, 0};
    if (resets)
        setsockopt(wire->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    close(wire->fd);
    if (!wire->session)
        return;
    gnutls_deinit(wire->session);
    gnutls_certificate_free_credentials(wire->credentials);
}

/* ------------------------------------------------------------------ states */

enum { ROWS = 256, WIDTH = 256 }; /* 256 KiB */
enum wait { NOTHING, ANSWER, PART, TURN, RUN };

/* What has been sent, and what the client waits for before it leaves. */
static const struct state {
    const char *name, *head;
    int percent;    /* of a tensor's bytes, behind the head */
    enum wait wait; /* TURN: behind another call; RUN: for the end of none */
    bool is_raw;    /* below TLS, whose handshake this is part of */
} states[] = {
    {"silent", "", 0, NOTHING, true},
    {"half a handshake", "\x16\x03\x01\x01\x10\x01\x01", 0, NOTHING, true},
    {"half a request line", "POST /v1/rms", 0, NOTHING, false},
    {"half a header", "POST /v1/rmsnorm HTTP/1.1\r\nHost: lo", 0, NOTHING,
     false},
    {"no body yet",
     "POST /v1/rmsnorm HTTP/1.1\r\nHost: localhost\r\n"
     "Content-Length: 1048576\r\n\r\n",
     0, NOTHING, false},
    {"half a body", "POST /v1/rmsnorm?eps=0", 50, NOTHING, false},
    {"half a region", "PUT /v1/regions/half", 50, NOTHING, false},
    {"half a chunk",
     "POST /v1/rmsnorm HTTP/1.1\r\nHost: localhost\r\n"
     "Transfer-Encoding: chunked\r\n\r\n8000\r\n1234",
     0, NOTHING, false},
    {"all answered", "GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n",
     0, ANSWER, false},
    {"half an answer",
     "GET /v1/regions/large HTTP/1.1\r\nHost: localhost\r\n\r\n", 0, PART,
     false},
    {"running", "POST /v1/rmsnorm?eps=0", 100, RUN, false},
    {"queued", "POST /v1/rmsnorm?eps=0", 100, TURN, false},
};
enum { N_STATES = sizeof states / sizeof *states };

static void say(struct wire *wire, const struct state *state)
{
    struct bytes text = {0};
    size_t n;
    if (state->percent == 0) {
        wire_send(wire, state->head, strlen(state->head));
        return;
    }
    void *tensor = ones(ROWS, WIDTH, &n);
    bytes_format(&text,
                 "%s HTTP/1.1\r\nHost: localhost\r\n"
                 "Content-Length: %zu\r\n\r\n",
                 state->head, n);
    bytes_add(&text, tensor, n * (size_t)state->percent / 100);
    wire_send(wire, text.start, text.n);
    bytes_free(&text);
    free(tensor);
}

/* ----------------------------------------------------------------- figures */

/* What clients hold of the daemon. */
struct figures {
    double connections, memory, regions, calls;
};

static double figure(const struct answer *page, const char *name)
{
    char line[96];
    snprintf(line, sizeof line, "\n%s ", name);
    const char *at = strstr(page->body, line);
    return at ? strtod(at + strlen(line), NULL) : -1;
}

static struct figures look(const struct server *admin)
{
    struct answer page = get(admin, "/metrics");
    struct figures figures = {
        .connections = figure(&page, "roped_connections"),
        .memory = figure(&page, "roped_pool_bytes{state=\"used\"}") +
                  figure(&page, "roped_mapped_bytes") -
                  figure(&page, "roped_kept_bytes") +
                  figure(&page, "roped_lent_bytes"),
        .regions = figure(&page, "roped_region_bytes{kind=\"resident\"}"),
        .calls = figure(&page, "roped_inflight_requests")};
    CHECK(figures.connections > 0 && figures.calls >= 0);
    answer_free(&page);
    return figures;
}

static bool is_free(const struct figures *now, const struct figures *before)
{
    return now->connections <= before->connections &&
           now->memory <= before->memory && now->regions <= before->regions &&
           now->calls <= before->calls;
}

/* ------------------------------------------------------------------- cells */

enum { AT_ONCE, LATER, N_MOMENTS };

struct column {
    enum transport transport;
    bool resets;
    int moment;
    bool is_right;
    int ms[N_STATES]; /* until all was free; -1: it was not */
};

/* A call that has the one lane for a while. */
static struct wire block(const struct server *server,
                         const struct column *column)
{
    struct wire wire = wire_open(server, column->transport, true);
    say(&wire, &states[N_STATES - 2]);
    pause_seconds(0.2);
    return wire;
}

static void wait_to_leave(struct wire *wire, const struct state *state,
                          int moment)
{
    char piece[4096];
    if (state->wait == PART)
        CHECK(wire_read(wire, piece, sizeof piece) > 0);
    if (moment == AT_ONCE)
        return;
    pause_seconds(0.15);
    if (state->wait == ANSWER)
        CHECK(wire_read(wire, piece, sizeof piece) > 0);
}

/* How long what the client asked for may go on without it: what runs is not
 * called back, and over TCP a FIN behind a whole request leaves the answer
 * wanted. */
static double own_seconds(const struct column *column,
                          const struct state *state)
{
    bool is_wanted = column->transport != UNIX && !column->resets;
    if (state->wait == RUN)
        return slow_seconds;
    return state->wait == TURN && is_wanted ? 2 * slow_seconds : 0;
}

/* Waits until all is free, and stays so: what has been sent may not have come
 * yet. Returns the seconds from start until then, or -1 where that is too long;
 * *now is what was found last. */
static double wait_until_free(const struct server *admin, double start,
                              double most, const struct figures *before,
                              struct figures *now)
{
    double since = -1;
    for (;;) {
        double time = now_seconds();
        *now = look(admin);
        if (!is_free(now, before))
            since = -1;
        else if (since < 0)
            since = time;
        if (since >= 0 && time - since >= calm_seconds)
            return since - start;
        if (since < 0 && time - start > most)
            return -1;
        pause_seconds(0.005);
    }
}

static void fill(struct column *column, const struct server *server,
                 const struct server *admin, int i)
{
    const struct state *state = &states[i];
    struct wire blocker = {.fd = -1};
    char answer[512];
    if (state->wait == TURN)
        blocker = block(server, column);
    struct figures before = look(admin), now;
    struct wire wire = wire_open(server, column->transport, !state->is_raw);
    say(&wire, state);
    wait_to_leave(&wire, state, column->moment);
    wire_leave(&wire, column->resets);
    double most = own_seconds(column, state) + LIMIT_MS * 1e-3;
    double took = wait_until_free(admin, now_seconds(), most, &before, &now);
    column->ms[i] = took < 0 ? -1 : (int)(took * 1e3);
    if (took < 0 || took > most)
        CHECK_FAIL("%s, %s: after %.2f s %g connections, %g B of memory, %g "
                   "B of regions, %g calls; expected within %.1f s %g, %g, "
                   "%g, %g",
                   transport_name[column->transport], state->name, took,
                   now.connections, now.memory, now.regions, now.calls, most,
                   before.connections, before.memory, before.regions,
                   before.calls);
    if (blocker.fd < 0)
        return;
    CHECK(wire_read(&blocker, answer, sizeof answer) > 0);
    wire_leave(&blocker, false);
}

static struct server admin_of(const struct server *server)
{
    struct server admin = {.port = server_port_of(server, "admin=true")};
    snprintf(admin.url, sizeof admin.url, "http://127.0.0.1:%d", admin.port);
    return admin;
}

static void start(struct server *server, enum transport transport)
{
    char place[80];
    const char *flags[] = {"--listen",
                           "127.0.0.1:0",
                           "--listen",
                           place,
                           "--admin-listen",
                           "127.0.0.1:0",
                           "--lanes",
                           "1",
                           "--inline-bytes",
                           "0",
                           "--http-threads",
                           "2",
                           "--pool-bytes",
                           "32m",
                           "--host-bytes",
                           "256m",
                           NULL};
    char fault[32];
    snprintf(place, sizeof place, "unix:%s/%d", folder, (int)getpid());
    snprintf(fault, sizeof fault, "launch %d slow", SLOW_MS);
    setenv("ROPED_TEST_FAULT", fault, 1);
    server_start_tls(server, transport == TLS ? &certificates : NULL, flags);
    unsetenv("ROPED_TEST_FAULT");
}

/* In a process of its own: a column from its top to its bottom. */
static void fill_all(struct column *column)
{
    struct server server;
    start(&server, column->transport);
    struct server admin = admin_of(&server);
    expect_code(
        ask(&server, "PUT", "/v1/regions/large?bytes=67108864", NULL, 0, NULL),
        201, "large", "region");
    for (int i = 0; i < N_STATES; i++)
        fill(column, &server, &admin, i);
    CHECK(server_stop(&server));
    column->is_right = check_failures == 0;
}

static int list_columns(struct column *columns)
{
    int n = 0;
    for (int transport = 0; transport < N_TRANSPORTS; transport++)
        for (int resets = 0; resets < (transport == UNIX ? 1 : 2); resets++)
            for (int moment = 0; moment < N_MOMENTS; moment++)
                if (transport != TLS || has_certificates)
                    columns[n++] =
                        (struct column){.transport = (enum transport)transport,
                                        .resets = resets != 0,
                                        .moment = moment};
    return n;
}

static void print(const struct column *columns, int n)
{
    printf("ms until all is free%4s", "");
    for (int i = 0; i < n; i++)
        printf(" %5s %s%s", transport_name[columns[i].transport],
               columns[i].resets ? "RST" : "FIN",
               columns[i].moment == LATER ? "+" : " ");
    printf("\n");
    for (int state = 0; state < N_STATES; state++) {
        printf("%-24s", states[state].name);
        for (int i = 0; i < n; i++)
            printf(" %10d", columns[i].ms[state]);
        printf("\n");
    }
    printf("+: 150 ms behind the last byte\n");
}

TEST(what_a_client_leaves_is_free_within_a_second)
{
    enum { MOST = N_TRANSPORTS * 2 * N_MOMENTS };
    pid_t pid[MOST];
    struct column *columns =
        mmap(NULL, MOST * sizeof *columns, PROT_READ | PROT_WRITE,
             MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(columns != MAP_FAILED);
    int n = list_columns(columns);
    fflush(NULL);
    for (int i = 0; i < n; i++) {
        pid[i] = fork();
        if (pid[i] == 0) {
            fill_all(&columns[i]);
            exit(EXIT_SUCCESS);
        }
    }
    for (int i = 0; i < n; i++) {
        int status = -1;
        waitpid(pid[i], &status, 0);
        if (status != 0 || !columns[i].is_right)
            CHECK_FAIL("the process of column %d ended with %d", i, status);
    }
    print(columns, n);
    munmap(columns, MOST * sizeof *columns);
}

/* ------------------------------------------------------------- half-closed */

/* The code of the answer to a request behind which the client ended its side;
 * *bytes: all that came. */
static int ask_half_closed(const struct server *server,
                           enum transport transport, const struct state *state,
                           size_t *bytes)
{
    static const size_t most = 128 << 20;
    char head[64] = "", piece[16384];
    ssize_t n;
    struct wire wire = wire_open(server, transport, true);
    say(&wire, state);
    shutdown(wire.fd, SHUT_WR);
    *bytes = 0;
    while (*bytes < most && (n = wire_read(&wire, piece, sizeof piece)) > 0) {
        if (*bytes == 0)
            snprintf(head, sizeof head, "%.*s", n < 60 ? (int)n : 60, piece);
        *bytes += (size_t)n;
    }
    wire_leave(&wire, false);
    return strlen(head) > 12 ? (int)strtol(head + 9, NULL, 10) : 0;
}

static void ask_all_half_closed(enum transport transport)
{
    struct server server;
    start(&server, transport);
    expect_code(
        ask(&server, "PUT", "/v1/regions/large?bytes=67108864", NULL, 0, NULL),
        201, "large", "region");
    for (int i = 0; i < N_STATES; i++) {
        const struct state *state = &states[i];
        struct wire blocker = {.fd = -1};
        struct column plain = {.transport = transport};
        char answer[512];
        size_t bytes;
        if (state->wait == NOTHING)
            continue;
        if (state->wait == TURN)
            blocker = block(&server, &plain);
        int code = ask_half_closed(&server, transport, state, &bytes);
        if (code != 200 || (state->wait == PART && bytes < 67108864) ||
            (state->wait > PART && bytes < ROWS * WIDTH * 4))
            CHECK_FAIL("%s, %s: %d and %zu bytes for a client that had closed "
                       "its sending side, expected 200 and all of it",
                       transport_name[transport], state->name, code, bytes);
        if (blocker.fd < 0)
            continue;
        CHECK(wire_read(&blocker, answer, sizeof answer) > 0);
        wire_leave(&blocker, false);
    }
    CHECK(server_stop(&server));
}

static pid_t half_closed[N_TRANSPORTS];

/* Each in a process of its own, beside those of the table. */
static void start_half_closed(void)
{
    fflush(NULL);
    for (int i = 0; i < N_TRANSPORTS; i++) {
        half_closed[i] = fork();
        if (half_closed[i] != 0)
            continue;
        if (i != TLS || has_certificates)
            ask_all_half_closed((enum transport)i);
        exit(check_failures ? EXIT_FAILURE : EXIT_SUCCESS);
    }
}

TEST(who_has_closed_its_sending_side_gets_its_answer)
{
    for (int i = 0; i < N_TRANSPORTS; i++) {
        int status = -1;
        waitpid(half_closed[i], &status, 0);
        CHECK_INT(status, 0);
    }
}

int main(void)
{
    CHECK(mkdtemp(folder) != NULL);
    has_certificates = certificates_make(&certificates);
    if (!has_certificates)
        printf("no openssl: TLS is left out\n");
    start_half_closed();
    check_run();
    certificates_remove(&certificates);
    rmdir(folder);
    return check_done();
}
