/*
 * test_request.c - requests from their head to their reply, with the CPU
 * backend behind them and no socket.
 */
#include "check.h"
#include "http/headers.h"

#include <semaphore.h>

static struct config config;
static struct models models;

static struct service *open_service(void)
{
    static struct service service;
    char name[] = "test", *argv[] = {name, NULL};
    enum config_action action;
    struct roped_error err = {.text = ""};
    struct roped_backend_options backend = {.n_threads = 1};
    CHECK_INT(config_load(&config, 1, argv, &action, &err), ROPED_OK);
    config.compress_answers = true;
    struct exec_options options = {.n_lanes = 2,
                                   .queue_depth = 4,
                                   .pool_bytes = 16 << 20,
                                   .host_bytes = 64 << 20,
                                   .device_bytes = 1 << 20,
                                   .region_bytes = 1 << 20,
                                   .inline_bytes = config.inline_bytes};
    memset(&service, 0, sizeof service);
    models_init(&models, true);
    service.config = &config;
    service.models = &models;
    service.version = "test";
    service.origins.allowed_origins = config.allowed_origins;
    service.origins.allowed_hosts = config.allowed_hosts;
    service.origins.is_private = true;
    peers_init(&service.peers, 1, 1);
    CHECK_INT(
        exec_open(&roped_backend_cpu, &backend, &options, &service.exec, &err),
        ROPED_OK);
    CHECK_OK(gate_open(&service.gate, "", exec_tenants(service.exec), &err),
             &err);
    CHECK_INT(metrics_new(&models, &service.metrics, &err), ROPED_OK);
    return &service;
}

/* Nothing that a request has taken may be left. */
static void close_service(struct service *service)
{
    struct memory_usage usage;
    struct exec_usage exec;
    exec_usage(service->exec, &exec);
    CHECK_INT(exec.n_waiting, 0);
    exec_drain(service->exec, UINT64_MAX);
    memory_usage(exec_memory(service->exec), &usage);
    CHECK_INT(usage.pool_used_bytes, 0);
    CHECK_INT(usage.lent_bytes, 0);
    exec_close(service->exec);
    metrics_free(service->metrics);
    peers_fini(&service->peers);
}

/* One exchange: what is asked, and what comes of it. */
struct exchange {
    const char *method, *target, *body;
    size_t bytes;
    const char *header[4][2]; /* names and values */
    size_t piece;             /* the body comes in such pieces; 0: whole */

    struct request *request;
    struct reply reply;
    bool is_early; /* answered before its body */
    int n_jobs, n_lane_jobs;
    char headers[4096];
};

static sem_t ended;

static void job_done(struct exec_job *job)
{
    request_job_ended(job->owner, job);
    sem_post(&ended);
}

/* What transport.c does with a reply that is not one yet. */
static void run_job(struct exchange *exchange, struct exec_job *job)
{
    struct request *request = exchange->request;
    job->owner = request;
    job->deadline_ns = 0;
    job->is_continued = exchange->n_jobs++ > 0;
    job->done = job_done;
    if (!exec_run_inline(request->service->exec, job)) {
        exchange->n_lane_jobs++;
        CHECK_INT(exec_submit(request->service->exec, job, &job->error),
                  ROPED_OK);
    }
    while (sem_wait(&ended) != 0)
        ;
}

static void collect_header(void *context, const char *name, const char *value)
{
    struct exchange *exchange = context;
    size_t at = strlen(exchange->headers);
    snprintf(exchange->headers + at, sizeof exchange->headers - at, "%s: %s\n",
             name, value);
}

static void add_parameters(struct head *head, char *query)
{
    for (char *at; (at = strsep(&query, "&"));) {
        char *value = strchr(at, '=');
        if (value)
            *value++ = '\0';
        head_add_parameter(head, at, strlen(at), value,
                           value ? strlen(value) : 0);
    }
}

static void exchange_run(struct service *service, struct exchange *exchange)
{
    static char target[512];
    struct request *request = malloc(sizeof *request);
    exchange->request = request;
    request_init(request, service);
    snprintf(target, sizeof target, "%s", exchange->target);
    head_set_target(&request->head, target);
    char *query = strchr(target, '?');
    if (query)
        *query++ = '\0';
    request->head.method = exchange->method;
    head_set_path(&request->head, target);
    for (int i = 0; i < 4 && exchange->header[i][0]; i++)
        head_add_header(&request->head, exchange->header[i][0],
                        strlen(exchange->header[i][0]), exchange->header[i][1],
                        strlen(exchange->header[i][1]));
    if (query)
        add_parameters(&request->head, query);
    exchange->is_early = !request_begin(request);
    size_t piece = exchange->piece ? exchange->piece : exchange->bytes;
    for (size_t at = 0; at < exchange->bytes && !exchange->is_early;
         at += piece) {
        size_t left = exchange->bytes - at;
        CHECK(request_receive(request, exchange->body + at,
                              left < piece ? left : piece));
    }
    exchange->reply = request_end(request);
    while (exchange->reply.code == 0) {
        run_job(exchange, exchange->reply.job);
        exchange->reply = request_resume(request);
    }
    reply_headers(request, &exchange->reply, collect_header, exchange);
}

static void exchange_end(struct exchange *exchange)
{
    request_fini(exchange->request);
    free(exchange->request);
}

static bool has_text(const struct exchange *exchange, const char *part)
{
    return memmem(exchange->reply.data, exchange->reply.bytes, part,
                  strlen(part)) != NULL;
}

static void expect(struct service *service, struct exchange exchange, int code,
                   const char *part)
{
    exchange_run(service, &exchange);
    if (exchange.reply.code != code || !has_text(&exchange, part))
        CHECK_FAIL("%s %s: %d %.*s, expected %d with '%s'", exchange.method,
                   exchange.target, exchange.reply.code,
                   (int)exchange.reply.bytes, (const char *)exchange.reply.data,
                   code, part);
    exchange_end(&exchange);
}

/* Phases of Server-Timing, as far as they are written as they should be. */
static int count_phases(const char *headers)
{
    double ms[N_PHASES];
    const char *at = strstr(headers, "Server-Timing: ");
    return at ? sscanf(at,
                       "Server-Timing: receive;dur=%lf, queue;dur=%lf, "
                       "plan;dur=%lf, h2d;dur=%lf, kernel;dur=%lf, "
                       "d2h;dur=%lf\n",
                       &ms[0], &ms[1], &ms[2], &ms[3], &ms[4], &ms[5])
              : 0;
}

/* A header of a body of so many bytes. */
#define LENGTH(text)                                                           \
    {                                                                          \
        "Content-Length", text                                                 \
    }

TEST(every_answer_is_returned)
{
    struct service *service = open_service();
    expect(service, (struct exchange){"GET", "/v2/health/live"}, 200, "true");
    expect(service, (struct exchange){"HEAD", "/metrics"}, 200, "roped_");
    expect(service, (struct exchange){"GET", "/nothing"}, 404, "no route");
    expect(service, (struct exchange){"PATCH", "/v1/rope"}, 405, "expected");
    expect(service, (struct exchange){"GET", "/v1/regions/.."}, 404, "'..'");
    expect(service, (struct exchange){"PUT", "/v1/regions/..?bytes=64"}, 400,
           "region names");
    expect(service, (struct exchange){"PUT", "/v1/regions/r?bytes=64"}, 201,
           "\"bytes\":64");
    expect(service, (struct exchange){"GET", "/v1/regions/r"}, 200, "");
    expect(service, (struct exchange){"DELETE", "/v1/regions/r"}, 200, "{}");
    expect(service,
           (struct exchange){
               "GET", "/v1/tables/"
                      "0123456789012345678901234567890123456789012345678901234"
                      "567890123456789"},
           400, "longer than 63");
    close_service(service);
}

TEST(refusals_wait_for_the_body_unless_it_must_not_come)
{
    struct service *service = open_service();
    struct exchange drained = {"POST", "/v1/nobody", "abc", 3, {LENGTH("3")}};
    exchange_run(service, &drained);
    CHECK(!drained.is_early);
    CHECK_INT(drained.reply.code, 404);
    CHECK(!strstr(drained.headers, "Connection: close"));
    exchange_end(&drained);
    struct exchange asked = {"POST",
                             "/v1/nobody",
                             "abc",
                             3,
                             {LENGTH("3"), {"Expect", "100-continue"}}};
    exchange_run(service, &asked);
    CHECK(asked.is_early);
    CHECK_INT(asked.reply.code, 404);
    exchange_end(&asked);
    struct exchange smuggled = {
        "POST",
        "/v1/rmsnorm",
        "abc",
        3,
        {LENGTH("3"), {"Transfer-Encoding", "chunked"}}};
    exchange_run(service, &smuggled);
    CHECK(smuggled.is_early);
    CHECK_INT(smuggled.reply.code, 400);
    CHECK(strstr(smuggled.headers, "Connection: close"));
    exchange_end(&smuggled);
    close_service(service);
}

static const char v2_values[] =
    "{\"inputs\":[{\"name\":\"x\",\"shape\":[2,2],\"datatype\":\"FP32\","
    "\"data\":[[3,4],[1,1]]}]}";

TEST(a_body_may_come_in_any_pieces)
{
    struct service *service = open_service();
    char length[8];
    snprintf(length, sizeof length, "%zu", sizeof v2_values - 1);
    for (size_t piece = 1; piece < sizeof v2_values; piece += 7) {
        struct exchange exchange = {"POST",
                                    "/v2/models/rmsnorm/infer",
                                    v2_values,
                                    sizeof v2_values - 1,
                                    {LENGTH(length)}};
        exchange.piece = piece;
        exchange_run(service, &exchange);
        CHECK_INT(exchange.reply.code, 200);
        CHECK(has_text(&exchange, "1.1313"));
        CHECK_INT(count_phases(exchange.headers), N_PHASES);
        exchange_end(&exchange);
    }
    close_service(service);
}

/* A raw v2 tensor of n floats to identity_fp32, the answer as JSON or not. */
static void run_identity(struct service *service, struct exchange *exchange,
                         size_t n, bool is_json)
{
    char json[256], length[24], header_length[24];
    int head = snprintf(json, sizeof json,
                        "{\"inputs\":[{\"name\":\"INPUT0\",\"shape\":[%zu],"
                        "\"datatype\":\"FP32\",\"parameters\":"
                        "{\"binary_data_size\":%zu}}],\"outputs\":[{\"name\":"
                        "\"OUTPUT0\",\"parameters\":{\"binary_data\":%s}}]}",
                        n, 4 * n, is_json ? "false" : "true");
    size_t bytes = (size_t)head + 4 * n;
    char *body = calloc(1, bytes);
    memcpy(body, json, (size_t)head);
    snprintf(length, sizeof length, "%zu", bytes);
    snprintf(header_length, sizeof header_length, "%d", head);
    *exchange = (struct exchange){
        "POST",
        "/v2/models/identity_fp32/infer",
        body,
        bytes,
        {LENGTH(length), {"Inference-Header-Content-Length", header_length}},
        .piece = 20000};
    exchange_run(service, exchange);
    free(body);
}

TEST(much_text_is_written_on_a_lane)
{
    struct service *service = open_service();
    struct exchange exchange;
    run_identity(service, &exchange, 100000, false);
    CHECK_INT(exchange.reply.code, 200);
    CHECK_INT(exchange.n_lane_jobs, 0);
    exchange_end(&exchange);
    run_identity(service, &exchange, 100000, true);
    CHECK_INT(exchange.reply.code, 200);
    CHECK_INT(exchange.n_lane_jobs, 1);
    CHECK(exchange.reply.bytes > 200000);
    exchange_end(&exchange);
    run_identity(service, &exchange, 100, true);
    CHECK_INT(exchange.n_lane_jobs, 0);
    exchange_end(&exchange);
    close_service(service);
}

TEST(text_counts_against_the_memory_of_requests)
{
    struct service *service = open_service();
    struct exchange exchange;
    struct memory_usage before, after;
    memory_usage(exec_memory(service->exec), &before);
    run_identity(service, &exchange, 500000, true);
    memory_usage(exec_memory(service->exec), &after);
    CHECK(after.pool_used_bytes + after.mapped_bytes >=
          before.pool_used_bytes + exchange.reply.bytes);
    /* and nothing else is held while it is sent */
    CHECK(after.pool_used_bytes <= 4 * exchange.reply.bytes);
    exchange_end(&exchange);
    close_service(service);
}

TEST(an_announced_body_holds_nothing)
{
    struct service *service = open_service();
    struct memory_usage usage;
    struct request *request = malloc(sizeof *request);
    request_init(request, service);
    head_set_target(&request->head, "/v1/rmsnorm");
    request->head.method = "POST";
    head_set_path(&request->head, "/v1/rmsnorm");
    head_add_header(&request->head, "Content-Length", 14, "60000000", 8);
    CHECK(request_begin(request));
    memory_usage(exec_memory(service->exec), &usage);
    CHECK_INT(usage.pool_used_bytes, 0);
    CHECK(request_receive(request, "\xff\x01", 2));
    memory_usage(exec_memory(service->exec), &usage);
    CHECK(usage.pool_used_bytes <= 64 << 10);
    request_fini(request);
    free(request);
    close_service(service);
}

TEST(answers_are_compressed_on_a_lane)
{
    struct service *service = open_service();
    struct exchange exchange = {
        "GET", "/openapi.json", NULL, 0, {{"Accept-Encoding", "gzip"}}};
    exchange_run(service, &exchange);
    CHECK_INT(exchange.reply.code, 200);
    CHECK(strstr(exchange.headers, "Content-Encoding: gzip"));
    CHECK_INT(*(const unsigned char *)exchange.reply.data, 0x1F);
    CHECK_INT(exchange.n_lane_jobs, 1);
    exchange_end(&exchange);
    close_service(service);
}

int main(void)
{
    sem_init(&ended, 0, 0);
    check_run();
    return check_done();
}
