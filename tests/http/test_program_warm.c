/*
 * test_program_warm.c - PUT ?warm=1: every lane has recorded the program when
 * the answer comes, or the refusal says what it lacks for that.
 */
#include "check.h"
#include "http/harness.h"
#include "http/service.h"

#include <pthread.h>

enum { ROWS = 4, WIDTH = 64 };
static struct server server;

#define NORM(in, out)                                                          \
    "{\"op\": \"rmsnorm\", \"in\": {\"x\": \"" in "\"}, \"out\": {\"y\": "     \
    "\"" out "\"}}"
#define STEPS                                                                  \
    "\"steps\": [" NORM("x", "h") ", " NORM("h", "y") "], \"outputs\": "       \
                                                      "[\"y\"]}"

static const char sized[] = "{\"inputs\": [{\"name\": \"x\", \"dtype\": "
                            "\"F32\", \"shape\": [4, 64]}], " STEPS;

static struct answer put(const char *query, const char *document)
{
    char path[64];
    snprintf(path, sizeof path, "/v1/programs/warm%s", query);
    return ask(&server, "PUT", path, document, strlen(document), NULL);
}

static struct answer run(void)
{
    const int64_t shape[2] = {ROWS, WIDTH};
    float x[ROWS * WIDTH];
    struct tensor_file file = {0};
    for (int i = 0; i < ROWS * WIDTH; i++)
        x[i] = 3;
    file_add(&file, "x", ROPED_F32, 2, shape, x);
    return ask_file(&server, "POST", "/v1/programs/warm", &file);
}

TEST(every_lane_has_recorded_it_before_the_first_run)
{
    double lanes = metric_sum(&server, "roped_lanes{");
    expect_code(put("?warm=1", sized), 201, "\"name\":\"warm\"", "put");
    bool is_recorded = metric_sum(&server, "roped_program_captures_total{") > 0;
    if (is_recorded)
        CHECK_DOUBLE(metric_sum(&server, "roped_program_captures_total{"),
                     lanes, 0);
    double captures = metric_sum(&server, "roped_program_captures_total{");
    double replays = metric_sum(&server, "roped_program_replays_total{");
    for (int i = 0; i < 8; i++) {
        struct answer answer = run();
        CHECK(are_ones(&answer, ROWS * WIDTH));
        answer_free(&answer);
    }
    if (is_recorded) {
        CHECK_DOUBLE(metric_sum(&server, "roped_program_captures_total{"),
                     captures, 0);
        CHECK_DOUBLE(metric_sum(&server, "roped_program_replays_total{"),
                     replays + 8, 0);
        CHECK_DOUBLE(metric_sum(&server, "roped_program_fallbacks_total{"), 0,
                     0);
    }
    expect_code(put("?warm=1", sized), 200, "\"name\":\"warm\"", "again");
    expect_code(put("?warm=0", sized), 200, "\"name\":\"warm\"", "not");
}

/* A document that is read on a lane, which then warms itself too. */
TEST(a_long_document_is_warmed_where_it_is_read)
{
    enum { BYTES = 900000 };
    char *document = malloc(BYTES + sizeof sized);
    memset(document, ' ', BYTES);
    memcpy(document + BYTES, sized, sizeof sized);
    double lanes = metric_sum(&server, "roped_lanes{");
    double before = metric_sum(&server, "roped_program_replays_total{");
    struct answer answer = put("?warm=1", document);
    CHECK_INT(answer.code, 200);
    answer_free(&answer);
    if (metric_sum(&server, "roped_program_captures_total{") >
        0) /* its launches are those recorded above */
        CHECK_DOUBLE(metric_sum(&server, "roped_program_replays_total{"),
                     before + 2 * lanes, 0);
    answer = run();
    CHECK(are_ones(&answer, ROWS * WIDTH));
    answer_free(&answer);
    free(document);
}

/* ------------------------------------------------------------ at one time */

enum { WARMERS = 3, RUNNERS = 3, PUTS = 8, RUNS = 60 };

static void *put_often(void *context)
{
    char path[64];
    snprintf(path, sizeof path, "/v1/programs/warm%d?warm=1", *(int *)context);
    for (int i = 0; i < PUTS; i++) {
        struct answer answer =
            ask(&server, "PUT", path, sized, strlen(sized), NULL);
        if (answer.code != 503)
            CHECK(answer.code == 200 || answer.code == 201);
        else
            CHECK_CONTAINS(answer.body,
                           "is stored, and not warm: another program is being "
                           "warmed just now");
        answer_free(&answer);
    }
    return NULL;
}

static void *run_often(void *context)
{
    (void)context;
    for (int i = 0; i < RUNS; i++) {
        struct answer answer = run();
        CHECK(are_ones(&answer, ROWS * WIDTH));
        answer_free(&answer);
    }
    return NULL;
}

TEST(runs_go_on_while_others_are_warmed)
{
    pthread_t thread[WARMERS + RUNNERS];
    int number[WARMERS];
    for (int i = 0; i < WARMERS; i++) {
        number[i] = i;
        CHECK(!pthread_create(&thread[i], NULL, put_often, &number[i]));
    }
    for (int i = WARMERS; i < WARMERS + RUNNERS; i++)
        CHECK(!pthread_create(&thread[i], NULL, run_often, NULL));
    for (int i = 0; i < WARMERS + RUNNERS; i++)
        CHECK(!pthread_join(thread[i], NULL));
}

TEST(what_a_run_would_bring_is_refused)
{
    static const struct {
        const char *what, *document;
    } wrong[] = {
        {"no shape", "{\"inputs\": [\"x\"], " STEPS},
        {"a size that has a name", "{\"inputs\": [{\"name\": \"x\", \"dtype\": "
                                   "\"F32\", \"shape\": [\"n\", 64]}], " STEPS},
        {"a parameter without a default",
         "{\"parameters\": {\"e\": null}, \"inputs\": [{\"name\": \"x\", "
         "\"dtype\": \"F32\", \"shape\": [4, 64]}], " STEPS},
        {"a region", "{\"inputs\": [{\"name\": \"x\", \"dtype\": \"F32\", "
                     "\"shape\": [4, 64]}], \"steps\": [" NORM("x", "@r") "]}"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        expect_code(put("?warm=1", wrong[i].document), 400,
                    "parameter 'warm': the document leaves something open, "
                    "expected inputs that say dtype and shape",
                    wrong[i].what);
    expect_code(put("?warm=1",
                    "{\"inputs\": [{\"name\": \"q\", \"dtype\": \"F32\", "
                    "\"shape\": [4, 1, 64]}, {\"name\": \"p\", \"dtype\": "
                    "\"I64\", \"shape\": [4]}], \"steps\": [{\"op\": \"rope\", "
                    "\"in\": {\"q\": \"q\", \"positions\": \"p\"}, \"out\": "
                    "{\"q\": \"y\"}}], \"outputs\": [\"y\"]}"),
                400, "parameter 'warm': index values are in input p, expected",
                "positions");
    expect_code(put("?warm=yes", sized), 400,
                "parameter 'warm': 'yes', expected 0 or 1", "value");
    expect_code(put("?hot=1", sized), 400,
                "parameter 'hot' of a program's PUT: expected warm or none",
                "name");
}

int main(void)
{
    server_start(&server, (const char *[]){NULL});
    check_run();
    CHECK(server_stop(&server));
    return check_done();
}
