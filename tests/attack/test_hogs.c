/*
 * test_hogs.c - 128 clients ask for a million values as JSON, with requests of
 * less than 300 bytes, and read them slowly, not at all, or fast, and ask
 * again: health answers within 50 ms at p99 all the while, and the daemon's
 * memory stays within what its host_bytes say.
 *   --seconds N   how long for each (5)
 */
#include "attack/attack.h"
#include "check.h"
#include "http/service.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { N_HOGS = 128, ROWS = 1000, ROW = 1000 };
static const double most_ms = 50; /* p99 of health */
static const double probe_seconds = 20e-3;
static const size_t host_bytes = 256u << 20, beside_bytes = 64u << 20;
static double seconds;
static struct server server;
static atomic_bool is_over;

enum appetite { NOTHING, SLOWLY, EVERYTHING };

/* ---------------------------------------------------------------- the hogs */

static const char request[] =
    "POST /v2/models/rmsnorm/infer HTTP/1.1\r\nHost: localhost\r\n"
    "Content-Length: 141\r\n\r\n"
    "{\"inputs\":[{\"name\":\"x\",\"shape\":[1000,1000],\"datatype\":\"FP32\","
    "\"parameters\":{\"shared_memory_region\":\"big\","
    "\"shared_memory_byte_size\":4000000}}]}";

static int open_hog(int epoll)
{
    struct epoll_event event = {.events = EPOLLIN};
    event.data.fd = open_raw(&server, request, sizeof request - 1);
    fcntl(event.data.fd, F_SETFL, O_NONBLOCK);
    epoll_ctl(epoll, EPOLL_CTL_ADD, event.data.fd, &event);
    return event.data.fd;
}

struct hogs {
    enum appetite appetite;
    int64_t n_bytes, n_answers;
};

/* One more bite. The last byte of an answer's JSON, or of a refusal's, is the
 * only } that a piece can end with: the hog asks again. */
static void feed(struct hogs *hogs, int epoll, int fd)
{
    enum { PIECE = 64 << 10, SIP = 4 << 10 };
    static char piece[PIECE];
    ssize_t n = recv(fd, piece, hogs->appetite == SLOWLY ? SIP : PIECE, 0);
    if (n == 0 || (n < 0 && errno != EAGAIN))
        epoll_ctl(epoll, EPOLL_CTL_DEL, fd, NULL);
    if (n <= 0)
        return;
    hogs->n_bytes += n;
    if (piece[n - 1] != '}')
        return;
    hogs->n_answers++;
    send(fd, request, sizeof request - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* All of them in one thread. */
static void *run_hogs(void *context)
{
    struct hogs *hogs = context;
    struct epoll_event event[N_HOGS];
    int fd[N_HOGS], epoll = epoll_create1(0);
    for (int i = 0; i < N_HOGS; i++)
        fd[i] = open_hog(epoll);
    while (!atomic_load(&is_over)) {
        pause_seconds(hogs->appetite == EVERYTHING ? 0.02 : 0.05);
        if (hogs->appetite == NOTHING)
            continue;
        int n = epoll_wait(epoll, event, N_HOGS, 0);
        for (int i = 0; i < n; i++)
            feed(hogs, epoll, event[i].data.fd);
    }
    for (int i = 0; i < N_HOGS; i++)
        close(fd[i]);
    close(epoll);
    return NULL;
}

/* ----------------------------------------------------------------- figures */

struct figures {
    struct samples took;
    size_t n_missed, most_memory, allowed;
};

/* Health over one connection, asked every 20 ms; one that does not answer in
 * 10 s counts as that. */
static void probe(struct figures *figures)
{
    double start = now_seconds();
    while (now_seconds() - start < seconds) {
        double before = now_seconds();
        figures->n_missed +=
            attack_get(server.port, "/v2/health/live", 10) != 200;
        double took = now_seconds() - before;
        stats_add(&figures->took, took);
        if (took < probe_seconds)
            pause_seconds(probe_seconds - took);
    }
}

static void *watch_memory(void *context)
{
    struct figures *figures = context;
    while (!atomic_load(&is_over)) {
        size_t now = process_memory(server.pid);
        if (now > figures->most_memory)
            figures->most_memory = now;
        pause_seconds(50e-3);
    }
    return NULL;
}

/* ------------------------------------------------------------------- tests */

/* Values of many digits each. */
static void put_region(void)
{
    int64_t dims[2] = {ROWS, ROW};
    struct tensor_file file = {0};
    float *x = malloc(sizeof *x * ROWS * ROW);
    size_t bytes;
    for (int i = 0; i < ROWS * ROW; i++)
        x[i] = (float)sin(i * 0.7) * 1.2345678f;
    file_add(&file, "x", ROPED_F32, 2, dims, x);
    unsigned char *body = file_write(&file, &bytes);
    expect_code(ask(&server, "PUT", "/v1/regions/big", body, bytes, NULL), 201,
                "big", "region");
    free(body);
    free(x);
}

/* The attack is one: such a request alone is answered. */
static void expect_values(void)
{
    int fd = open_raw(&server, request, sizeof request - 1);
    struct exchange all = exchange_read(fd, 1, 30);
    CHECK_INT(exchange_code(&all), 200);
    CHECK(all.in.n > 5u << 20);
    printf("one answer: %.1f MB for %zu bytes\n", (double)all.in.n / 1e6,
           sizeof request - 1);
    exchange_free(&all);
    close(fd);
}

static void judge(struct figures *figures, const struct hogs *hogs,
                  const char *name)
{
    double p99_ms = stats_quantile(&figures->took, 0.99) * 1e3;
    printf("%s: health p50 %.1f p99 %.1f max %.0f ms of %zu, %zu unanswered; "
           "most memory %.0f MiB; hogs read %.0f MB, %lld answers\n",
           name, stats_quantile(&figures->took, 0.5) * 1e3, p99_ms,
           stats_quantile(&figures->took, 1) * 1e3, figures->took.n,
           figures->n_missed, (double)figures->most_memory / (1 << 20),
           (double)hogs->n_bytes / 1e6, (long long)hogs->n_answers);
    fflush(stdout);
    CHECK_INT(figures->n_missed, 0);
    if (ATTACK_IS_SANITIZED)
        return;
    if (p99_ms > most_ms)
        CHECK_FAIL("%s: p99 of health is %.1f ms, expected at most %g", name,
                   p99_ms, most_ms);
    if (figures->most_memory > figures->allowed)
        CHECK_FAIL("%s: resident memory was %.0f MiB, expected at most %zu",
                   name, (double)figures->most_memory / (1 << 20),
                   figures->allowed >> 20);
}

static void beside_hogs(enum appetite appetite, const char *name)
{
    /* what the hogs leave behind would be answered for half a minute */
    const char *flags[] = {"--host_bytes",
                           "256m",
                           "--pool_bytes",
                           "64m",
                           "--drain_timeout_seconds",
                           "1",
                           NULL};
    struct figures figures = {.n_missed = 0};
    struct hogs hogs = {.appetite = appetite};
    pthread_t thread, watcher;
    server_start(&server, flags);
    figures.allowed = host_bytes + beside_bytes;
    const char *backend = getenv("ROPED_TEST_BACKEND");
    if (backend &&
        strcmp(backend, "cuda") ==
            0) /* a context takes memory of its own before any request */
        figures.allowed += process_memory(server.pid);
    put_region();
    expect_values();
    atomic_store(&is_over, false);
    pthread_create(&watcher, NULL, watch_memory, &figures);
    pthread_create(&thread, NULL, run_hogs, &hogs);
    probe(&figures);
    atomic_store(&is_over, true);
    pthread_join(thread, NULL);
    pthread_join(watcher, NULL);
    judge(&figures, &hogs, name);
    stats_free(&figures.took);
    CHECK(server_is_alive(&server));
    CHECK(server_stop(&server));
}

TEST(hogs_that_do_not_read_hold_nobody_up)
{
    beside_hogs(NOTHING, "128 that do not read");
}

TEST(hogs_that_read_slowly_hold_nobody_up)
{
    beside_hogs(SLOWLY, "128 that read slowly");
}

TEST(hogs_that_read_hold_nobody_up)
{
    beside_hogs(EVERYTHING, "128 that read");
}

int main(int argc, char **argv)
{
    seconds = argument_seconds(argc, argv, 5);
    check_run();
    return check_done();
}
