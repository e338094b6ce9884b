/*
 * test_memory.c - resident memory of a daemon that many threads make tables and
 * regions in: it is what these take and what has been used of the pool, not
 * what they once took; and /metrics says where it is.
 */
#include "check.h"
#include "http/harness.h"
#include "http/service.h"

#include <pthread.h>

/* Sanitizers keep memory of their own. */
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { IS_SANITIZED = 1 };
#else
enum { IS_SANITIZED = 0 };
#endif

enum { N_THREADS = 8, N_NAMES = 8, MIB = 1 << 20 };
static struct server server;

static uint64_t next(uint64_t *random)
{
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    return *random >> 33;
}

static void expect_made(struct answer answer, const char *what)
{
    if (answer.code / 100 != 2)
        CHECK_FAIL("%s: answered %d %.200s", what, answer.code, answer.body);
    answer_free(&answer);
}

/* Of angles that no other call has: 1 to 8 MiB. */
static void build_table(uint64_t *random)
{
    int64_t q_dims[3] = {1, 1, next(random) % 2 ? 128 : 64}, n = 1;
    int64_t position = (int64_t)(next(random) % 16384);
    float q[128] = {0};
    char path[96];
    size_t bytes;
    struct tensor_file file = {0};
    file_add(&file, "q", ROPED_F32, 3, q_dims, q);
    file_add(&file, "positions", ROPED_I64, 1, &n, &position);
    unsigned char *body = file_write(&file, &bytes);
    snprintf(path, sizeof path, "/v1/rope?angles=table&theta=%llu.%llu",
             (unsigned long long)(next(random) + 2),
             (unsigned long long)next(random));
    expect_made(ask(&server, "POST", path, body, bytes, NULL), path);
    free(body);
}

/* Made, replaced or deleted; 64 KiB to 8 MiB. */
static void change_region(int thread, uint64_t *random)
{
    char path[96];
    int length = snprintf(path, sizeof path, "/v1/regions/r%d.%d", thread,
                          (int)(next(random) % N_NAMES));
    if (next(random) % 4 == 0) {
        struct answer answer = ask(&server, "DELETE", path, NULL, 0, NULL);
        CHECK(answer.code / 100 == 2 || answer.code == 404);
        answer_free(&answer);
        return;
    }
    uint64_t most = (uint64_t)(64 << 10) << next(random) % 8;
    snprintf(path + length, sizeof path - (size_t)length, "?bytes=%llu",
             (unsigned long long)(most - next(random) % (most / 2)));
    expect_made(ask(&server, "PUT", path, NULL, 0, NULL), path);
}

static void *churn(void *context)
{
    int thread = (int)(intptr_t)context;
    uint64_t random = (uint64_t)thread + 1;
    for (int i = 0; i < check_cases(2000 / N_THREADS); i++) {
        build_table(&random);
        change_region(thread, &random);
    }
    return NULL;
}

static void run_threads(void *(*run)(void *))
{
    pthread_t thread[N_THREADS];
    for (int i = 0; i < N_THREADS; i++)
        pthread_create(&thread[i], NULL, run, (void *)(intptr_t)i);
    for (int i = 0; i < N_THREADS; i++)
        pthread_join(thread[i], NULL);
}

/* ------------------------------------------------------- where memory is */

struct where {
    double resident, pool, tables, regions, others;
};

static struct where look(void)
{
    return (struct where){
        .resident = metric(&server, "process_resident_memory_bytes "),
        .pool = metric(&server, "roped_pool_resident_bytes "),
        .tables = metric(&server, "roped_tables_resident_bytes "),
        .regions = metric(&server, "roped_region_bytes{kind=\"resident\"} "),
        .others = metric(&server, "roped_mapped_bytes ") +
                  metric(&server, "roped_device_scratch_bytes{device=\"0\"} ") +
                  metric(&server, "roped_connection_bytes ") +
                  metric(&server, "roped_resident_file_bytes ") +
                  metric(&server, "process_heap_bytes ")};
}

static double held(const struct where *where)
{
    return where->pool + where->tables + where->regions;
}

static void print(const char *when, const struct where *where)
{
    printf("%s: %.0f MiB resident; pool %.0f, tables %.0f, regions %.0f, "
           "others %.0f\n",
           when, where->resident / MIB, where->pool / MIB, where->tables / MIB,
           where->regions / MIB, where->others / MIB);
    fflush(stdout);
}

/* And what the process takes beside that. */
static void expect_no_more_than_held(const char *when, double beside_bytes)
{
    struct where where = look();
    print(when, &where);
    if (IS_SANITIZED)
        return;
    if (where.resident > held(&where) + beside_bytes)
        CHECK_FAIL("%s: %.0f bytes are resident, expected at most %.0f", when,
                   where.resident, held(&where) + beside_bytes);
    if (held(&where) + where.others < 0.9 * where.resident)
        CHECK_FAIL("%s: /metrics explains %.0f of %.0f resident bytes", when,
                   held(&where) + where.others, where.resident);
}

static void delete_regions(void)
{
    char path[96];
    for (int i = 0; i < N_THREADS * N_NAMES; i++) {
        snprintf(path, sizeof path, "/v1/regions/r%d.%d", i / N_NAMES,
                 i % N_NAMES);
        struct answer answer = ask(&server, "DELETE", path, NULL, 0, NULL);
        answer_free(&answer);
    }
}

TEST(tables_and_regions_of_many_threads_leave_nothing_behind)
{
    const char *flags[] = {"--pool_bytes", "64m", "--table_budget_bytes",
                           "192m", NULL};
    server_start(&server, flags);
    run_threads(churn);
    expect_no_more_than_held("after the changes", 64.0 * MIB);
    double before = metric(&server, "process_resident_memory_bytes ");
    double regions = metric(&server, "roped_region_bytes{kind=\"resident\"} ");
    delete_regions();
    pause_seconds(1);
    expect_no_more_than_held("without regions", 64.0 * MIB);
    double after = metric(&server, "process_resident_memory_bytes ");
    if (!IS_SANITIZED && after > before - 0.9 * regions)
        CHECK_FAIL("%.0f bytes are resident, and were %.0f with %.0f bytes of "
                   "regions",
                   after, before, regions);
    CHECK(server_stop(&server));
}

static int n_documents; /* of each thread */

/* A config.json of half a million values, whose tree has 35 MiB. */
static void *put_documents(void *context)
{
    static const char before[] = "{\"model_type\":\"llama\",\"head_dim\":128,"
                                 "\"rope_theta\":5e5,\"x\":[1";
    enum { N_VALUES = 520000, AT = sizeof before - 1 };
    const size_t bytes = AT + 2 * N_VALUES + 2;
    char *body = malloc(bytes), path[64];
    memcpy(body, before, AT);
    for (size_t i = AT; i < bytes - 2; i += 2)
        memcpy(body + i, ",1", 2);
    memcpy(body + bytes - 2, "]}", 2);
    snprintf(path, sizeof path, "/v1/tables/t%d", (int)(intptr_t)context);
    for (int i = 0; i < n_documents; i++)
        expect_made(ask(&server, "PUT", path, body, bytes, NULL), path);
    free(body);
    return NULL;
}

static void expect_nothing_of_documents(int n)
{
    n_documents = n;
    run_threads(put_documents);
    pause_seconds(3);
    for (int i = 0; i < 40 && look().resident > 40.0 * MIB; i++)
        pause_seconds(0.25); /* a machine that has more to do */
    expect_no_more_than_held("after the documents", 40.0 * MIB);
}

/* Of few, too: many more take the place of what is left of the first. */
TEST(documents_of_many_values_leave_nothing_behind)
{
    const char *flags[] = {"--pool_bytes",
                           "64m",
                           "--http_threads",
                           "8",
                           "--lanes",
                           "8",
                           "--keep_seconds",
                           "1",
                           NULL};
    server_start(&server, flags);
    expect_nothing_of_documents(2);
    expect_nothing_of_documents(check_cases(20));
    CHECK(server_stop(&server));
}

/* rope_append of n tokens of one head of two elements, in order. */
static unsigned char *many_tokens(int64_t n, size_t *bytes)
{
    static const char *const heads[] = {"q", "k", "v", "k_cache", "v_cache"};
    const int64_t dims[3] = {n, 1, 2};
    float *zeros = calloc((size_t)n * 2, sizeof *zeros);
    int64_t *slots = calloc((size_t)n, sizeof *slots);
    struct tensor_file file = {0};
    for (int64_t i = 0; i < n; i++)
        slots[i] = i;
    for (int i = 0; i < 5; i++)
        file_add(&file, heads[i], ROPED_F32, 3, dims, zeros);
    file_add(&file, "slots", ROPED_I64, 1, &n, slots);
    unsigned char *body = file_write(&file, bytes);
    free(slots);
    free(zeros);
    return body;
}

/* Plans need memory for each token, which no budget counts. */
TEST(what_lanes_need_for_many_tokens_does_not_stay)
{
    enum { N_TOKENS = 400000, KEPT_BYTES = 4 * MIB };
    static const char scratch[] = "roped_device_scratch_bytes{device=\"0\"} ";
    const char *flags[] = {"--lanes", "1", NULL};
    size_t bytes;
    unsigned char *body = many_tokens(N_TOKENS, &bytes);
    server_start(&server, flags);
    for (int i = 0; i < 4; i++)
        expect_made(ask(&server, "POST", "/v1/rope_append", body, bytes, NULL),
                    "rope_append");
    double kept = metric(&server, scratch);
    CHECK(kept >= 0);
    for (int i = 0; i < 100 && kept > KEPT_BYTES; i++) {
        pause_seconds(0.01); /* a moment after the answer */
        kept = metric(&server, scratch);
    }
    if (kept > KEPT_BYTES)
        CHECK_FAIL("lanes keep %.0f bytes, expected at most %d", kept,
                   KEPT_BYTES);
    free(body);
    CHECK(server_stop(&server));
}

int main(void)
{
    setbuf(stdout, NULL);
    check_run();
    return check_done();
}
