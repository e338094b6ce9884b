/*
 * test_calls.c - random calls over HTTP: /v1 and v2, tensors in the body and in
 * regions with offsets and strides, outputs in the answer and in regions. Each
 * call goes to two daemons. In builds with ROPED_POISON memory that nobody
 * wrote holds 0xA5 in one of them and 0x5A in the other: answers and regions
 * must be the same bytes. Whether a call is accepted is as the library says.
 *   test_calls [CALLS] [SEED]
 */
#include "calls/request.h"
#include "check.h"

#include <inttypes.h>

enum { DAEMONS = 2 };

static struct server server[DAEMONS];
static struct random_call_counts counts;
static int64_t n_calls, first_seed;

/* ------------------------------------------------------------------ checks */

static void report(const struct random_call *made, const struct manner *manner,
                   int64_t seed, const struct answer *answer, const char *what)
{
    char text[1024];
    CHECK_FAIL("%s: seed %" PRId64 ", %s%s%s: %s: answered %d %.300s, the "
               "library says: %s",
               what, seed, manner->is_v2 ? "v2" : "v1",
               manner->is_v2 && manner->is_json ? ", JSON" : "",
               manner->region_bytes ? ", a region" : "",
               random_call_text(made, text, sizeof text), answer->code,
               answer->code == 200 ? "" : answer->body,
               made->status ? made->err.text : "accepted");
}

/* The tensors of an answer: behind what says how long each phase took. */
static bool is_same_answer(const struct answer *a, const struct answer *b)
{
    return a->code == b->code && a->bytes == b->bytes &&
           memcmp(a->body, b->body, a->bytes) == 0;
}

static void check_region(const struct random_call *made,
                         const struct manner *manner, int64_t seed)
{
    struct tensor_file file[DAEMONS];
    struct answer answer[DAEMONS];
    unsigned char *content[DAEMONS];
    for (int i = 0; i < DAEMONS; i++) {
        answer[i] = ask(&server[i], "GET", "/v1/regions/made", NULL, 0, NULL);
        if (!file_read(&file[i], answer[i].body, answer[i].bytes, NULL, NULL)) {
            report(made, manner, seed, &answer[i], "the region is gone");
            return;
        }
        content[i] = file[i].tensor[0].data;
    }
    if (memcmp(content[0], content[1], manner->region_bytes) != 0)
        report(made, manner, seed, &answer[0],
               "what a region holds depends on memory that nobody wrote");
    for (size_t at = 0; at < manner->region_bytes; at++) {
        bool is_of_a_tensor = false;
        for (int i = 0; i < ROPED_MAX_INPUTS; i++)
            is_of_a_tensor |= at - manner->in[i].at < manner->in[i].span;
        for (int i = 0; i < ROPED_MAX_OUTPUTS; i++)
            is_of_a_tensor |= at - manner->out[i].at < manner->out[i].span;
        if (is_of_a_tensor || content[0][at] == BETWEEN)
            continue;
        report(made, manner, seed, &answer[0],
               "a byte of a region outside of every tensor was written");
        break;
    }
    for (int i = 0; i < DAEMONS; i++) {
        file_free(&file[i]);
        answer_free(&answer[i]);
    }
}

static void check_answers(const struct random_call *made,
                          const struct manner *manner, int64_t seed,
                          const struct answer *answer)
{
    if (!request_is_answered(made, answer))
        report(made, manner, seed, answer, "not what the library says");
    else if (!is_same_answer(&answer[0], &answer[1]))
        report(made, manner, seed, answer,
               "the answer depends on memory that nobody wrote");
    if (answer->code != 200 && !strstr(answer->body, "\"error\""))
        report(made, manner, seed, answer, "refused without a word");
    if (manner->region_bytes && answer->code == 200)
        check_region(made, manner, seed);
}

static void post(const struct random_call *made, const struct manner *manner,
                 int64_t seed)
{
    struct request request;
    struct answer answer[DAEMONS];
    request_write(made, manner, &request);
    for (int i = 0; i < DAEMONS; i++) {
        if (manner->region_bytes)
            request_put_region(made, manner, &server[i]);
        answer[i] = ask(&server[i], "POST", request.path.text,
                        request.body.text, request.body.bytes, request.headers);
    }
    check_answers(made, manner, seed, answer);
    for (int i = 0; i < DAEMONS; i++)
        answer_free(&answer[i]);
    request_end(&request);
}

static void check_call(const struct roped_op *op, int64_t seed)
{
    struct random_source source = {(uint64_t)seed};
    struct random_call made;
    random_call_make(&made, op, &source);
    random_call_count(&counts, op, !made.status);
    if (!made.status && random_once_in(&source, 6))
        random_call_spoil(&made, &source);
    struct manner manner = request_manner(&made, "made", &source);
    if (request_is_whole(&made))
        post(&made, &manner, seed);
    random_call_free(&made);
}

TEST(calls_are_refused_or_computed)
{
    for (int64_t i = 0; i < n_calls && check_failures < 20; i++)
        check_call(roped_op_at((int)(i % roped_op_count())), first_seed + i);
}

TEST(one_in_five_is_accepted)
{
    if (n_calls >= 100 * roped_op_count())
        CHECK(random_call_report(&counts));
}

TEST(daemons_live_and_end)
{
    for (int i = 0; i < DAEMONS; i++) {
        CHECK(server_is_alive(&server[i]));
        CHECK(server_stop(&server[i]));
    }
}

int main(int argc, char **argv)
{
    static const char *const poison[DAEMONS] = {"0xA5", "0x5A"};
    n_calls = argc > 1 ? strtoll(argv[1], NULL, 10) : check_cases(3300);
    first_seed = argc > 2 ? strtoll(argv[2], NULL, 10) : 1;
    for (int i = 0; i < DAEMONS; i++) {
        setenv("ROPED_POISON", poison[i], 1);
        server_start(&server[i], NULL);
    }
    check_run();
    return check_done();
}
