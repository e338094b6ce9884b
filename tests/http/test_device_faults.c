/*
 * test_device_faults.c - each kind of call of the device fails, each in its
 * turn, once or for good, in a workload that has every moment of a daemon's
 * life.
 *
 * Whatever fails, a request is answered within five seconds: 200, or 4xx or 5xx
 * with a sentence. One may be cut where the daemon executes itself, in all of
 * that. After an error that passes the next call is right and nothing is kept.
 * After one that sticks the daemon is not ready at once, is another process
 * within five seconds, and says of its old region and table that they are lost.
 * In its start it ends with 1 and a sentence.
 *
 * ROPED_TEST_QUICK: the first call of a kind, the second and some later, and
 * not each.
 */
#include "check.h"
#include "http/recover.h"
#include "shared_memory.h"

#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N_WORKERS = 4, MOST_N = 400 };

static const double patience_seconds = 5;

static const char *const kinds[] = {
    "device_count", "open",       "host_alloc",  "host_lock", "device_alloc",
    "foreign_open", "queue_open", "upload",      "download",  "clear",
    "launch",       "wait",       "build_table", "mark",      "fetch",
    "record",       "record_end", "replay"};
static const char *const ways[] = {"passing", "sticky"};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

/* Of all workers. */
static struct results {
    atomic_int next; /* kind and way */
    atomic_int n_faults, n_ends, n_recoveries;
    atomic_int n_requests, n_2xx, n_4xx, n_5xx, n_cut;
    _Atomic double slowest_recovery, slowest_answer, longest_ready;
} * results;

static struct server server;
static char trying[64]; /* the fault, for what is said of it */
static char shm_key[SHARED_KEY_BYTES];
static bool takes_all;

static void keep_most(_Atomic double *most, double value)
{
    double before = atomic_load(most);
    while (value > before &&
           !atomic_compare_exchange_weak(most, &before, value))
        ;
}

/* --------------------------------------------------------------- workload */

enum body {
    NOTHING,
    SMALL,
    LARGE,
    ROPE,
    TABLE,
    SYSTEM,
    FOREIGN,
    PROGRAM,
    N_BODIES
};
static struct {
    void *start;
    size_t bytes;
} bodies[N_BODIES];

static const struct step {
    const char *method, *path;
    enum body body;
} steps[] = {
    {"PUT", "/v1/tables/plan", TABLE},
    {"PUT", "/v1/regions/zeros?dtype=F32&shape=2,8", NOTHING},
    {"PUT", "/v1/regions/x", SMALL},
    {"GET", "/v1/regions/x", NOTHING},
    {"POST", "/v1/rmsnorm?eps=0", SMALL},
    {"POST", "/v1/rmsnorm?eps=0", LARGE},
    {"POST", "/v1/rmsnorm?eps=0&from.x=x&into.y=zeros", NOTHING},
    {"PUT", "/v1/regions/there?dtype=F32&shape=2,8&device=1", NOTHING},
    {"POST", "/v1/rmsnorm?eps=0&from.x=x&into.y=there", NOTHING},
    {"POST", "/v1/rope?table=plan", ROPE},
    {"PUT", "/v1/programs/two", PROGRAM},
    {"POST", "/v1/programs/two", SMALL}, /* and so often that it repeats */
    {"POST", "/v1/programs/two", SMALL},
    {"POST", "/v1/programs/two", SMALL},
    {"POST", "/v1/programs/two", SMALL},
    {"POST", "/v1/programs/two", SMALL},
    {"POST", "/v1/programs/two", SMALL},
    {"DELETE", "/v1/programs/two", NOTHING},
    {"POST", "/v2/systemsharedmemory/region/s/register", SYSTEM},
    {"POST", "/v2/systemsharedmemory/region/s/unregister", NOTHING},
    {"POST", "/v2/cudasharedmemory/region/f/register", FOREIGN},
    {"POST", "/v2/cudasharedmemory/region/f/unregister", NOTHING},
    {"GET", "/metrics", NOTHING},
    {"DELETE", "/v1/regions/x", NOTHING},
    {"DELETE", "/v1/regions/zeros", NOTHING},
    {"DELETE", "/v1/regions/there", NOTHING},
    {"DELETE", "/v1/tables/plan", NOTHING},
};
enum { N_STEPS = sizeof steps / sizeof *steps };

static void *rope_body(size_t *bytes)
{
    enum { ROWS = 8, HEADS = 2, DIM = 128 };
    static float q[ROWS * HEADS * DIM];
    static int64_t positions[ROWS];
    struct tensor_file file = {0};
    const int64_t dims[] = {ROWS, HEADS, DIM};
    for (int i = 0; i < ROWS; i++)
        positions[i] = i;
    file_add(&file, "q", ROPED_F32, 3, dims, q);
    file_add(&file, "positions", ROPED_I64, 1, dims, positions);
    return file_write(&file, bytes);
}

static void set_text(enum body body, const char *text)
{
    bodies[body].start = strdup(text);
    bodies[body].bytes = strlen(text);
}

static void make_bodies(void)
{
    char text[256];
    bodies[SMALL].start = ones(2, 8, &bodies[SMALL].bytes);
    bodies[LARGE].start = ones(256, 1024, &bodies[LARGE].bytes);
    bodies[ROPE].start = rope_body(&bodies[ROPE].bytes);
    set_text(TABLE, recover_table);
    set_text(PROGRAM, "{\"inputs\":[\"x\"],\"steps\":["
                      "{\"op\":\"rmsnorm\",\"in\":{\"x\":\"x\"},"
                      "\"out\":{\"y\":\"h\"}},"
                      "{\"op\":\"rmsnorm\",\"in\":{\"x\":\"h\"},"
                      "\"out\":{\"y\":\"y\"}}],\"outputs\":[\"y\"]}");
    snprintf(text, sizeof text,
             "{\"key\":\"%s\",\"offset\":0,\"byte_size\":4096}", shm_key);
    set_text(SYSTEM, text);
    /* 64 bytes of zeros */
    snprintf(text, sizeof text,
             "{\"raw_handle\":{\"b64\":\"%.86s==\"},\"device_id\":0,"
             "\"byte_size\":64}",
             "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
             "AAAAAAAAAAAAAAAAAAAAAA");
    set_text(FOREIGN, text);
}

/* Makes the request, whose answer is counted and must be one. Its code. */
static int request(const struct step *step)
{
    double start = now_seconds();
    struct answer answer =
        ask(&server, step->method, step->path, bodies[step->body].start,
            bodies[step->body].bytes, NULL);
    double seconds = now_seconds() - start;
    int code = answer.code;
    bool is_cut = code <= 0, is_good = code >= 200 && code < 300;
    atomic_fetch_add(&results->n_requests, 1);
    atomic_fetch_add(is_cut       ? &results->n_cut
                     : is_good    ? &results->n_2xx
                     : code < 500 ? &results->n_4xx
                                  : &results->n_5xx,
                     1);
    keep_most(&results->slowest_answer, seconds);
    if (seconds > patience_seconds)
        CHECK_FAIL("%s: %s %s took %.1f s", trying, step->method, step->path,
                   seconds);
    if (!is_cut && !is_good && !strstr(answer.body, "\"error\":\""))
        CHECK_FAIL("%s: %s %s answered %d without a sentence: %.200s", trying,
                   step->method, step->path, code, answer.body);
    answer_free(&answer);
    return code;
}

static int n_wrong_steps(void)
{
    int n = 0;
    for (int i = 0; i < N_STEPS; i++) {
        int code = request(&steps[i]);
        n += code < 200 || code >= 300;
    }
    return n;
}

static void expect_right_steps(const char *when)
{
    for (int i = 0; i < N_STEPS; i++) {
        int code = request(&steps[i]);
        if (code < 200 || code >= 300)
            CHECK_FAIL("%s: %s, %s %s answered %d", trying, when,
                       steps[i].method, steps[i].path, code);
    }
    CHECK(call_ones(&server, 3, 8));
}

/* ------------------------------------------------------------------- leaks */

static const char *const gauges[] = {
    "roped_pool_bytes{state=\"used\"} ",
    "roped_lent_bytes ",
    "roped_inflight_requests ",
    "roped_tables_named ",
    "roped_regions{kind=\"resident\"} ",
    "roped_regions{kind=\"system\"} ",
    "roped_regions{kind=\"cuda\"} ",
    "roped_region_bytes{kind=\"resident\"} ",
    "roped_region_bytes{kind=\"system\"} ",
    "roped_region_bytes{kind=\"cuda\"} ",
    "roped_device_region_bytes{device=\"0\"} "};
enum { N_GAUGES = sizeof gauges / sizeof *gauges };

static double clean[N_GAUGES]; /* behind a workload without a fault */

static void read_gauges(double out[N_GAUGES])
{
    for (int i = 0; i < N_GAUGES; i++)
        out[i] = metric(&server, gauges[i]);
}

static void expect_clean(void)
{
    for (int i = 0; i < N_GAUGES; i++) {
        for (int j = 0; j < 100 && metric(&server, gauges[i]) != clean[i]; j++)
            pause_seconds(0.01);
        double found = metric(&server, gauges[i]);
        if (found != clean[i])
            CHECK_FAIL("%s: %sis %g, expected %g", trying, gauges[i], found,
                       clean[i]);
    }
}

/* ------------------------------------------------------------------- cases */

static bool start(const char *fault)
{
    const char *const flags[] = {"--allow-client-shm",
                                 "--devices",
                                 "0,0",
                                 "--stage-bytes",
                                 "64k",
                                 "--stage-chunk-bytes",
                                 "16k",
                                 "--drain-idle-seconds",
                                 "0",
                                 "--pool-bytes",
                                 "1m",
                                 "--lanes",
                                 "2",
                                 NULL};
    int status = 0;
    setenv("ROPED_TEST_FAULT", fault, 1);
    bool is_up = server_try_start(&server, flags, &status);
    unsetenv("ROPED_TEST_FAULT");
    if (is_up)
        return true;
    atomic_fetch_add(&results->n_ends, 1);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != EXIT_FAILURE ||
        !server_log_says(&server, "level=error event=start error=") ||
        !server_log_says(&server, "injected fault"))
        CHECK_FAIL("%s: the start ended with status %d", trying, status);
    unlink(server.log);
    return false;
}

/* What a process that is lost had, in an instant of its own. */
static const struct step old_region = {"PUT", "/v1/regions/old?bytes=64",
                                       NOTHING},
                         old_table = {"PUT", "/v1/tables/old", TABLE};

/* Not ready as soon as an answer has told of the fault; ready again in time. */
static void await_recovery(double fault_seconds)
{
    static const struct step ready = {"GET", "/v2/health/ready", NOTHING};
    bool was_off = false;
    double now = now_seconds();
    while (now - fault_seconds < patience_seconds) {
        struct answer answer =
            ask(&server, ready.method, ready.path, NULL, 0, NULL);
        int code = answer.code;
        answer_free(&answer);
        now = now_seconds();
        bool is_new = server_log_says(&server, "event=restarted");
        if (code == 200 && is_new)
            break;
        if (code != 200 && !was_off)
            keep_most(&results->longest_ready, now - fault_seconds);
        was_off |= code != 200;
        if (code == 200 && now - fault_seconds > 1)
            CHECK_FAIL("%s: ready %.2f s after the fault", trying,
                       now - fault_seconds);
        pause_seconds(0.002);
    }
    double seconds = recover_seconds(&server, patience_seconds);
    now = now_seconds() - fault_seconds;
    keep_most(&results->slowest_recovery, now);
    if (seconds > patience_seconds || now > patience_seconds)
        CHECK_FAIL("%s: no right answer %.1f s after it", trying, now);
    atomic_fetch_add(&results->n_recoveries, 1);
}

static void expect_lost(bool had_region, bool had_table)
{
    static const struct step get_region = {"GET", "/v1/regions/old", NOTHING},
                             get_table = {"GET", "/v1/tables/old", NOTHING};
    CHECK_INT(request(&get_region), had_region ? 410 : 404);
    CHECK_INT(request(&get_table), had_table ? 410 : 404);
    CHECK_INT(request(&old_region), 201);
    CHECK_INT(request(&old_table), 201);
    CHECK_INT(request(&get_region), 200);
    CHECK_INT(request(&get_table), 200);
}

static bool has_fault(void)
{
    return server_log_says(&server, "event=fault kind=");
}

/* The seconds at which the workload met the fault, or 0: it did not. */
static double run_into_fault(void)
{
    double seconds = 0;
    for (int i = 0; i < 2 * N_STEPS; i++) {
        (void)request(&steps[i % N_STEPS]);
        if (seconds == 0 && has_fault())
            seconds = now_seconds();
    }
    return seconds;
}

/* False: the workload has no such call. */
static bool try_fault(const char *kind, int n, const char *way)
{
    bool is_sticky = strcmp(way, "sticky") == 0;
    snprintf(trying, sizeof trying, "%s %d %s", kind, n, way);
    if (!start(trying)) {
        atomic_fetch_add(&results->n_faults, 1);
        return true;
    }
    bool had_region = request(&old_region) == 201;
    bool had_table = request(&old_table) == 201;
    double early_seconds = has_fault() ? now_seconds() : 0;
    double seconds = run_into_fault();
    if (early_seconds > 0)
        seconds = early_seconds;
    if (seconds == 0) {
        CHECK(server_stop(&server));
        return false;
    }
    if (is_sticky) {
        await_recovery(seconds);
        if (early_seconds == 0)
            expect_lost(had_region, had_table);
    }
    (void)n_wrong_steps(); /* what a failed DELETE or PUT has left */
    expect_right_steps("afterwards");
    if (!is_sticky) {
        static const struct step drop_region = {"DELETE", "/v1/regions/old",
                                                NOTHING},
                                 drop_table = {"DELETE", "/v1/tables/old",
                                               NOTHING};
        (void)request(&drop_region);
        (void)request(&drop_table);
        expect_clean();
    }
    CHECK(server_stop(&server));
    atomic_fetch_add(&results->n_faults, 1);
    return true;
}

/* Until the workload has no such call. */
static void try_kind(const char *kind, const char *way)
{
    for (int n = 1; n < MOST_N; n = takes_all ? n + 1 : n + 1 + n * 2 / 3)
        if (!try_fault(kind, n, way))
            return;
}

static int work(void)
{
    for (;;) {
        int i = atomic_fetch_add(&results->next, 1);
        if (i >= 2 * N_KINDS)
            return check_failures ? EXIT_FAILURE : EXIT_SUCCESS;
        try_kind(kinds[i / 2], ways[i % 2]);
    }
}

/* ------------------------------------------------------------------- whole */

TEST(a_workload_without_a_fault_is_right)
{
    snprintf(trying, sizeof trying, "launch %d passing", 1 << 20);
    if (!start(trying))
        return;
    expect_right_steps("without a fault");
    expect_right_steps("once more");
    read_gauges(clean);
    CHECK(server_stop(&server));
}

TEST(each_call_of_a_device_fails_in_its_turn)
{
    pid_t worker[N_WORKERS];
    int status;
    fflush(NULL);
    for (int i = 0; i < N_WORKERS; i++) {
        worker[i] = fork();
        if (worker[i] == 0)
            _exit(work());
    }
    for (int i = 0; i < N_WORKERS; i++) {
        CHECK(waitpid(worker[i], &status, 0) == worker[i]);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SUCCESS);
    }
    printf("%d calls made to fail in %d kinds: %d ended a start, %d a process "
           "that came back\n",
           results->n_faults, N_KINDS, results->n_ends, results->n_recoveries);
    printf("%d requests: %d 2xx, %d 4xx, %d 5xx, %d cut; slowest answer %.2f "
           "s\n",
           results->n_requests, results->n_2xx, results->n_4xx, results->n_5xx,
           results->n_cut, (double)results->slowest_answer);
    printf("not ready %.3f s after a fault at the latest; right again %.2f s "
           "after it\n",
           (double)results->longest_ready, (double)results->slowest_recovery);
    CHECK(results->n_recoveries > N_KINDS);
    CHECK(results->n_cut <= results->n_recoveries);
}

int main(void)
{
    takes_all = !getenv("ROPED_TEST_QUICK");
    results = mmap(NULL, sizeof *results, PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(results != MAP_FAILED);
    close(shared_memory_make(shm_key, 4096));
    make_bodies();
    check_run();
    shm_unlink(shm_key);
    for (int i = 0; i < N_BODIES; i++)
        free(bodies[i].start);
    return check_done();
}
