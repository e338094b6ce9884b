/*
 * test_soak.c - a long run is flat. Threads send random calls to one daemon,
 * others send some first bytes of such requests and leave: with a FIN or a
 * reset, at once or when a part of the answer has come, over TCP and a Unix
 * socket. Every call is answered, and with the load gone the daemon has as many
 * descriptors and threads as before, no more memory than early in the run, and
 * nothing of a client.
 *   test_soak [MINUTES] [SEED]
 */
#include "attack/attack.h"
#include "calls/request.h"
#include "check.h"
#include "http/service.h"

#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

/* In a shorter run tables still grow to what they may have. */
enum { CALLERS = 3, LEAVERS = 3, SPARE_BYTES = 16 << 20, FILLED_SECONDS = 240 };

static struct server server;
static char socket_path[64];
static int64_t first_seed;
static atomic_bool is_over;
static atomic_long n_calls, n_left, n_wrong;

/* ------------------------------------------------------------------ figures */

struct figures {
    double resident_bytes;
    int descriptors, threads;
};

static int count_entries(const char *folder)
{
    char path[64];
    int n = 0;
    snprintf(path, sizeof path, "/proc/%d/%s", (int)server.pid, folder);
    DIR *entries = opendir(path);
    while (entries && readdir(entries))
        n++;
    if (entries)
        closedir(entries);
    return n;
}

static struct figures look(void)
{
    return (struct figures){
        .resident_bytes = metric(&server, "process_resident_memory_bytes"),
        .descriptors = count_entries("fd"),
        .threads = count_entries("task")};
}

static void say(const char *when, const struct figures *now)
{
    printf("%s: %.1f MiB resident, %d descriptors, %d threads; %ld calls, %ld "
           "clients that left\n",
           when, now->resident_bytes / (1 << 20), now->descriptors,
           now->threads, atomic_load(&n_calls), atomic_load(&n_left));
    fflush(stdout);
}

/* --------------------------------------------------------------------- load */

static void make_request(struct random_source *source, const char *region,
                         struct random_call *made, struct manner *manner)
{
    const struct roped_op *op =
        roped_op_at((int)random_int(source, 0, roped_op_count() - 1));
    for (;;) {
        random_call_make(made, op, source);
        *manner = request_manner(made, region, source);
        if (request_is_whole(made))
            return;
        random_call_free(made);
    }
}

static void call_once(struct random_source *source, const char *region)
{
    struct random_call made;
    struct manner manner;
    struct request request;
    make_request(source, region, &made, &manner);
    request_write(&made, &manner, &request);
    if (manner.region_bytes)
        request_put_region(&made, &manner, &server);
    struct answer answer =
        ask(&server, "POST", request.path.text, request.body.text,
            request.body.bytes, request.headers);
    if (!request_is_answered(&made, &answer) &&
        atomic_fetch_add(&n_wrong, 1) < 10) {
        char text[1024];
        fprintf(stderr, "%s: answered %d %.300s\n",
                random_call_text(&made, text, sizeof text), answer.code,
                answer.code == 200 ? "" : answer.body);
    }
    answer_free(&answer);
    request_end(&request);
    random_call_free(&made);
    atomic_fetch_add(&n_calls, 1);
}

static void *call(void *context)
{
    long number = (long)(intptr_t)context;
    struct random_source source = {(uint64_t)(first_seed + number)};
    char region[16], path[64];
    snprintf(region, sizeof region, "soak%ld", number);
    snprintf(path, sizeof path, "/v1/regions/%s", region);
    while (!atomic_load(&is_over)) {
        call_once(&source, region);
        if (random_once_in(&source, 50)) {
            struct answer answer = ask(&server, "DELETE", path, NULL, 0, NULL);
            answer_free(&answer);
        }
    }
    return NULL;
}

/* Some of a request's bytes, maybe all; maybe some of its answer; then gone. */
static void leave_once(struct random_source *source)
{
    struct random_call made;
    struct manner manner;
    struct request request;
    struct bytes all = {0};
    char part[512];
    make_request(source, "none", &made, &manner);
    manner.region_bytes = 0;
    memset(manner.in, 0, sizeof manner.in);
    memset(manner.out, 0, sizeof manner.out);
    request_write(&made, &manner, &request);
    bytes_format(&all,
                 "POST %s HTTP/1.1\r\nHost: localhost\r\n%s%s"
                 "Content-Length: %zu\r\n\r\n",
                 request.path.text, manner.is_v2 ? request.header : "",
                 manner.is_v2 ? "\r\n" : "", request.body.bytes);
    bytes_add(&all, request.body.text, request.body.bytes);
    int fd = random_once_in(source, 2) ? client_connect(server.port)
                                       : client_connect_path(socket_path);
    size_t n = random_once_in(source, 3)
                   ? all.n
                   : (size_t)random_int(source, 0, (int64_t)all.n);
    struct linger reset = {1, 0};
    if (fd >= 0) {
        (void)send(fd, all.start, n, MSG_NOSIGNAL);
        if (n == all.n && random_once_in(source, 2))
            (void)recv(fd, part, sizeof part, 0);
        if (random_once_in(source, 2))
            setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        close(fd);
        atomic_fetch_add(&n_left, 1);
    }
    bytes_free(&all);
    request_end(&request);
    random_call_free(&made);
}

static void *leave(void *context)
{
    struct random_source source = {(uint64_t)first_seed +
                                   (uint64_t)(intptr_t)context * 7919};
    while (!atomic_load(&is_over))
        leave_once(&source);
    return NULL;
}

/* ------------------------------------------------------------------- checks */

/*
 * Tables and regions come and go: what is never given back is the least. At
 * least one look, however long it takes a busy daemon to answer.
 */
static struct figures least_until(double end)
{
    struct figures least = look();
    for (double said = now_seconds(); now_seconds() < end;) {
        pause_seconds(0.5);
        struct figures now = look();
        if (now.resident_bytes < least.resident_bytes)
            least = now;
        if (now_seconds() - said < 60)
            continue;
        said = now_seconds();
        say("now", &now);
    }
    return least;
}

static void run_load(double seconds)
{
    pthread_t thread[CALLERS + LEAVERS];
    for (int i = 0; i < CALLERS + LEAVERS; i++)
        CHECK_INT(pthread_create(&thread[i], NULL, i < CALLERS ? call : leave,
                                 (void *)(intptr_t)i),
                  0);
    double begun = now_seconds();
    least_until(begun + seconds / 3);
    struct figures early = least_until(begun + seconds / 2);
    least_until(begun + seconds * 5 / 6);
    struct figures late = least_until(begun + seconds);
    say("early, at least", &early);
    say("late, at least", &late);
    if (seconds >= FILLED_SECONDS && !ATTACK_IS_SANITIZED)
        CHECK(late.resident_bytes <= early.resident_bytes * 1.01 + SPARE_BYTES);
    CHECK_INT(late.threads, early.threads);
    atomic_store(&is_over, true);
    for (int i = 0; i < CALLERS + LEAVERS; i++)
        pthread_join(thread[i], NULL);
}

static double run_seconds;

TEST(a_long_run_is_flat)
{
    struct figures before = look();
    say("before", &before);
    run_load(run_seconds);
    for (int i = 0; i < CALLERS; i++) {
        char path[64];
        snprintf(path, sizeof path, "/v1/regions/soak%d", i);
        struct answer answer = ask(&server, "DELETE", path, NULL, 0, NULL);
        answer_free(&answer);
    }
    /* that of the request for the figures */
    expect_metric(&server, "roped_connections ", 1);
    expect_metric(&server, "roped_region_bytes{kind=\"resident\"} ", 0);
    expect_metric(&server, "roped_mapped_bytes ",
                  metric(&server, "roped_kept_bytes "));
    struct figures after = look();
    say("after", &after);
    CHECK_INT(after.descriptors, before.descriptors);
    CHECK_INT(after.threads, before.threads);
    CHECK_INT(atomic_load(&n_wrong), 0);
    CHECK(atomic_load(&n_calls) > 0 && atomic_load(&n_left) > 0);
}

TEST(the_daemon_ends)
{
    CHECK(server_is_alive(&server));
    CHECK(server_stop(&server));
}

int main(int argc, char **argv)
{
    char listen[96];
    run_seconds = argc > 1 ? 60 * strtod(argv[1], NULL) : 6;
    first_seed = argc > 2 ? strtoll(argv[2], NULL, 10) : 1;
    snprintf(socket_path, sizeof socket_path, "/tmp/roped_soak_%d.sock",
             (int)getpid());
    snprintf(listen, sizeof listen, "127.0.0.1:0,unix:%s", socket_path);
    server_start(&server, (const char *const[]){"--listen", listen, NULL});
    check_run();
    unlink(socket_path);
    return check_done();
}
