/*
 * test_limits.c - every limit is kept to the unit under a flood from eight
 * processes: connections, those of admin_listen, handshakes, host memory, calls
 * that wait, regions, names and quotas. No look at the gauges ever shows more.
 */
#include "attack/attack.h"
#include "check.h"
#include "http/keys.h"
#include "http/service.h"
#include "load/certificates.h"

#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N_PROCESSES = 8 };
static const double flood_seconds = 1.5;
static struct server server, admin;

static void start(const struct certificates *certificates,
                  const char *const *flags)
{
    server_start_tls(&server, certificates, flags);
    admin = (struct server){.port = server_port_of(&server, "admin=true")};
    snprintf(admin.url, sizeof admin.url, "http://127.0.0.1:%d", admin.port);
}

/* ------------------------------------------------------------------- flood */

typedef void flood_fn(int process, const void *context);

struct flood {
    pid_t pid[N_PROCESSES];
};

/* Each process calls it once; the parent's end is theirs. */
static struct flood flood_start(flood_fn *run, const void *context)
{
    struct flood flood;
    fflush(NULL);
    for (int i = 0; i < N_PROCESSES; i++) {
        flood.pid[i] = fork();
        if (flood.pid[i] != 0)
            continue;
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        run(i, context);
        exit(check_failures ? EXIT_FAILURE : EXIT_SUCCESS);
    }
    return flood;
}

/* ends: they would go on for ever. */
static void flood_wait(const struct flood *flood, bool ends)
{
    for (int i = 0; i < N_PROCESSES; i++) {
        int status = -1;
        if (ends)
            kill(flood->pid[i], SIGKILL);
        waitpid(flood->pid[i], &status, 0);
        if (!ends)
            CHECK_INT(status, 0);
    }
}

/* The most that a sum of gauges shows while the flood lasts; name NULL ends
 * them. */
static double most_of(const struct server *from, double seconds,
                      const char *const *names)
{
    double most = 0, until = now_seconds() + seconds;
    while (now_seconds() < until) {
        struct answer page = ask_as(from, "root", "GET", "/metrics", NULL);
        double sum = 0;
        for (int i = 0; names[i]; i++) {
            const char *at = strstr(page.body, names[i]);
            sum += at ? strtod(at + strlen(names[i]), NULL) : -1e30;
        }
        most = sum > most || sum < 0 ? sum : most;
        answer_free(&page);
        pause_seconds(0.001);
    }
    return most;
}

static double most_connections(const struct server *from)
{
    const char *const names[] = {"\nroped_connections ", NULL};
    return most_of(from, flood_seconds, names);
}

/* ------------------------------------------------------------- connections */

enum { MOST = 64, FOR_ADMIN = 32, HELD = 256 };

struct target {
    int port;
    const char *part; /* what half of the processes send */
};

/* Connects as fast as it goes, and holds what it has got for a while. */
static void connect_for_ever(int process, const void *context)
{
    const struct target *target = context;
    int fd[HELD];
    for (int i = 0; i < HELD; i++)
        fd[i] = -1;
    for (int i = 0;; i = (i + 1) % HELD) {
        if (fd[i] >= 0)
            close(fd[i]);
        fd[i] = client_connect(target->port);
        if (fd[i] >= 0 && process % 2)
            (void)attack_send(fd[i], target->part, strlen(target->part));
    }
}

static void expect_connections(const struct server *from, int port,
                               const char *part, int most)
{
    const struct target target = {port, part};
    struct flood flood = flood_start(connect_for_ever, &target);
    double found = most_connections(from);
    flood_wait(&flood, true);
    printf("%g connections, expected at most %d\n", found, most);
    CHECK(found > 0 && found <= most);
    CHECK(server_is_alive(&server));
    CHECK(server_stop(&server));
}

static const char *const connection_flags[] = {"--max-connections",
                                               "64",
                                               "--admin-listen",
                                               "127.0.0.1:0",
                                               "--header-timeout-seconds",
                                               "0.3",
                                               NULL};

TEST(max_connections_is_kept)
{
    start(NULL, connection_flags);
    expect_connections(&admin, server.port, "GET / HTTP/1.1\r\nHost: a",
                       MOST + 1); /* and the one that asks */
}

static void flood_tls(const char *part)
{
    struct certificates certificates;
    if (certificates_make(&certificates)) {
        start(&certificates, connection_flags);
        expect_connections(&admin, server.port, part, MOST + 1);
    }
    certificates_remove(&certificates);
}

TEST(handshakes_count_as_connections)
{
    flood_tls("\x16\x03\x01\x01\x10\x01\x01");
}

TEST(plain_clients_of_a_tls_port_count_as_connections)
{
    flood_tls("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
}

/* They do not take the places of others either. */
TEST(admin_listen_has_a_limit_of_its_own)
{
    start(NULL, connection_flags);
    expect_connections(&server, admin.port, "GET / HTTP/1.1\r\nHost: a",
                       FOR_ADMIN + 1);
}

/* Seconds that n newcomers take, each of which is answered and stays. */
static double seconds_to_connect(int most)
{
    enum { N = 512 };
    int fd[N], n_answered = 0;
    char limit[16];
    const char *const flags[] = {"--max-connections", limit, NULL};
    struct bytes request = {0};
    snprintf(limit, sizeof limit, "%d", most);
    server_start_tls(&server, NULL, flags);
    request_plain(&request, "GET", "/v2/health/live", "");
    double start_seconds = now_seconds();
    for (int i = 0; i < N; i++) {
        fd[i] = open_raw(&server, request.start, request.n);
        struct exchange all = exchange_read(fd[i], 1, 10);
        n_answered += exchange_code(&all) == 200;
        exchange_free(&all);
    }
    double seconds = now_seconds() - start_seconds;
    CHECK_INT(n_answered, N);
    for (int i = 0; i < N; i++)
        close(fd[i]);
    bytes_free(&request);
    CHECK(server_stop(&server));
    return seconds;
}

TEST(connecting_to_a_full_daemon_is_fast)
{
    double with_room = seconds_to_connect(1024);
    double full = seconds_to_connect(16);
    printf("512 newcomers took %.0f ms where there was room, %.0f where one "
           "that idled had to go for each\n",
           with_room * 1e3, full * 1e3);
    if (!ATTACK_IS_SANITIZED)
        CHECK(full < 4 * with_room + 0.1);
}

/* ------------------------------------------------------------ memory, calls */

/* Bodies of 1 MiB, to and fro, over connections of its own. */
static void call_for_ever(int process, const void *context)
{
    const struct http_request *request = context;
    struct load load = {.port = server.port,
                        .n_clients = 8,
                        .request = request,
                        .n_requests = 1,
                        .seconds = 3600,
                        .patience_seconds = 60};
    struct load_result result = {.n_sent = 0};
    (void)process;
    load_run(&load, &result);
}

static void expect_calls(const struct http_request *request,
                         const char *const *names, double most)
{
    struct flood flood = flood_start(call_for_ever, request);
    double found = most_of(&admin, flood_seconds, names);
    flood_wait(&flood, true);
    printf("%s: %g, expected at most %g\n", names[0] + 1, found, most);
    CHECK(found > 0 && found <= most);
    CHECK(server_is_alive(&server));
    CHECK(server_stop(&server));
}

TEST(host_bytes_are_kept)
{
    const char *const flags[] = {"--pool-bytes",
                                 "8m",
                                 "--host-bytes",
                                 "24m",
                                 "--admin-listen",
                                 "127.0.0.1:0",
                                 "--keep-seconds",
                                 "0.2",
                                 NULL};
    const char *const names[] = {"\nroped_pool_bytes{state=\"used\"} ",
                                 "\nroped_mapped_bytes ", NULL};
    struct http_request request = post_ones(1024, 256);
    start(NULL, flags);
    expect_calls(&request, names, 24 << 20);
    request_free(&request);
}

/* Answers are compressed by a lane too: such a call waits twice. */
TEST(queue_depth_is_kept)
{
    const char *const flags[] = {"--queue-depth",
                                 "4",
                                 "--lanes",
                                 "1",
                                 "--inline-bytes",
                                 "0",
                                 "--compress-answers",
                                 "true",
                                 "--admin-listen",
                                 "127.0.0.1:0",
                                 NULL};
    const char *const names[] = {"\nroped_queue_depth ", NULL};
    size_t bytes;
    void *body = ones(64, 256, &bytes);
    struct http_request request = request_make(
        "POST", "/v1/rmsnorm?eps=0", "Accept-Encoding: gzip\r\n", body, bytes);
    start(NULL, flags);
    expect_calls(&request, names, 4);
    request_free(&request);
}

/* ----------------------------------------------------------------- regions */

enum { REGION_BYTES = 4096, N_NAMES = 32 };

/* Each makes regions or tables of names of its own. */
static void make_names(int process, const void *context)
{
    const char *kind = context;
    bool is_table = strcmp(kind, "tables") == 0;
    for (int i = 0; i < N_NAMES; i++) {
        char path[64];
        snprintf(path, sizeof path, "/v1/%s/n%d_%d%s", kind, process, i,
                 is_table ? "" : "?bytes=4096");
        struct answer answer = ask_as(
            &server, "alice", "PUT", path,
            is_table ? "{\"head_dim\": 128, \"rope_theta\": 10000.0}" : NULL);
        if (answer.code != 201 && answer.code != 503)
            CHECK_FAIL("%s: answered %d %.200s, expected 201 or 503", path,
                       answer.code, answer.body);
        answer_free(&answer);
    }
}

/* How many of them there are in the end: just as many as may be. */
static void expect_names(const char *quota, const char *memory,
                         const char *kind, const char *gauge, double expected)
{
    const struct key keys[] = {{"alice", "regions,tables", quota},
                               {"root", "admin", NULL}};
    const char *const flags[] = {"--bearer-token-file",
                                 keys_file(),
                                 "--region-memory",
                                 memory,
                                 "--admin-listen",
                                 "127.0.0.1:0",
                                 NULL};
    const char *const names[] = {gauge, NULL};
    keys_write(keys, 2);
    start(NULL, flags);
    struct flood flood = flood_start(make_names, kind);
    double most = most_of(&admin, 0.2, names);
    flood_wait(&flood, false);
    double last = most_of(&admin, 0.01, names);
    CHECK(most <= expected);
    CHECK_DOUBLE(last, expected, 0);
    CHECK(server_stop(&server));
    unlink(keys_file());
}

TEST(memory_of_regions_and_quotas_are_kept)
{
    const char *bytes = "\nroped_region_bytes{kind=\"resident\"} ";
    const char *regions = "\nroped_regions{kind=\"resident\"} ";
    expect_names(NULL, "1m", "regions", bytes, 1 << 20);
    expect_names("bytes=200k", "1m", "regions", bytes, 200 << 10);
    expect_names("names=99", "8m", "regions", regions, 99);
    expect_names("names=99", "8m", "tables", "\nroped_tables_named ", 99);
}
