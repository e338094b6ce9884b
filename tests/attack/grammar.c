/*
 * grammar.c - attack_grammar: valid and broken requests of every route against
 * one daemon, many connections at once, until the time is over. Whatever is
 * sent, the daemon lives, every answer is well formed, none is another
 * request's, and no connection outlives its deadlines. A finding is printed
 * with what makes it again.
 *   --seconds N, --minutes N   how long (20 s)
 *   --threads N                of the client (4)
 *   --seed S                   of all connections (1; 0: from the clock)
 *   --replay N                 that connection alone
 */
#include "attack/grammar.h"
#include "check.h"
#include "http/service.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

/* The daemon's deadlines are of 1 s each; what is left is for a slow machine.
 */
static const char *const flags[] = {"--header_timeout_seconds",
                                    "3",
                                    "--idle_timeout_seconds",
                                    "1",
                                    "--body_timeout_seconds",
                                    "3",
                                    "--max_body_bytes",
                                    "1m",
                                    "--host_bytes",
                                    "512m",
                                    "--region_memory",
                                    "256m",
                                    "--inline_bytes",
                                    "4k",
                                    "--demo_models",
                                    "true",
                                    "--allow_client_shm",
                                    "true",
                                    NULL};
enum { AT_ONCE = 24, RECENT = 64, MOST_THREADS = 32, N_CODES = 600 };
static const double hang_seconds = 15; /* after the last byte was sent */
static const double quiet_seconds = 0.03;
static const double late_seconds = 0.5; /* half of the least deadline */

struct connection {
    struct plan plan;
    bool is_used;
    int fd, next_cut;
    size_t sent;
    double send_after, sent_at, heard_at; /* sent_at: all of it, or 0 */
    double stepped_at;
    bool was_late; /* this program, by more than late_seconds */
    struct bytes in;
    bool is_ended, is_reset; /* by the server */
};

struct worker {
    pthread_t thread;
    struct connection at[AT_ONCE];
    uint64_t recent[RECENT], n;
};

static struct server server;
static uint64_t seed;
static atomic_bool is_over, is_dead;
static atomic_ullong next_number, n_valid, n_requests;
static atomic_uint n_answers[N_CODES];
static atomic_int n_findings;
static pthread_mutex_t print_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---------------------------------------------------------------- findings */

static void print_escaped(const char *name, const struct bytes *bytes,
                          size_t most)
{
    fprintf(stderr, "%s, %zu bytes: \"", name, bytes->n);
    for (size_t i = 0; i < bytes->n && i < most; i++) {
        unsigned char c = (unsigned char)bytes->start[i];
        if (c == '\r')
            fputs("\\r", stderr);
        else if (c == '\n')
            fputs("\\n\"\n    \"", stderr);
        else if (c == '"' || c == '\\')
            fprintf(stderr, "\\%c", c);
        else if (c < 0x20 || c > 0x7E)
            fprintf(stderr, "\\%03o", c);
        else
            fputc(c, stderr);
    }
    fputs(bytes->n > most ? "\"...\n" : "\"\n", stderr);
}

/* A daemon that has just died resets every connection: those are no findings
 * of their own. */
static bool has_died(void)
{
    for (int i = 0; i < 300 && !process_is_gone(server.pid); i++)
        pause_seconds(0.01);
    if (process_is_gone(server.pid))
        atomic_store(&is_dead, true);
    return atomic_load(&is_dead);
}

static void report(const struct connection *at, const char *what,
                   const char *detail)
{
    const struct plan *plan = &at->plan;
    pthread_mutex_lock(&print_lock);
    if (!atomic_load(&is_over) && !has_died()) {
        fprintf(stderr,
                "FINDING: %s %s\n--seed %llu --replay %llu (%s, %d requests, "
                "ending %d, %d cuts, %zu sent%s)\n",
                what, detail, (unsigned long long)seed,
                (unsigned long long)plan->number,
                plan->is_valid ? "valid" : "broken", plan->n_requests,
                (int)plan->ending, plan->n_cuts, at->sent,
                at->is_reset   ? ", reset"
                : at->is_ended ? ", ended"
                               : "");
        print_escaped("sent", &plan->wire, 8000);
        print_escaped("received", &at->in, 3000);
        atomic_fetch_add(&n_findings, 1);
    }
    atomic_store(&is_over, true);
    pthread_mutex_unlock(&print_lock);
}

/* ----------------------------------------------------------------- answers */

/* NULL, or what is wrong with an answer's body by its type. */
static const char *flaw_of_body(const struct found_answer *answer)
{
    char type[64] = "", encoding[16];
    if (answer->body_bytes == 0 ||
        found_header(answer, "Transfer-Encoding", encoding, sizeof encoding) ||
        !found_header(answer, "Content-Type", type, sizeof type) ||
        strcmp(type, "application/json") != 0)
        return NULL;
    /* v2 writes NaN and Infinity, as its clients read them */
    if (bytes_contain(answer->body, answer->body_bytes, "NaN") ||
        bytes_contain(answer->body, answer->body_bytes, "Infinity"))
        return NULL;
    cJSON *json = cJSON_ParseWithLength(answer->body, answer->body_bytes);
    bool has_reason = (cJSON_IsString(cJSON_GetObjectItem(json, "error")) &&
                       cJSON_IsString(cJSON_GetObjectItem(json, "code"))) ||
                      cJSON_GetObjectItem(json, "ready");
    const char *flaw = !json ? "body is no JSON"
                       : answer->code >= 400 && !has_reason
                           ? "error without a text and a code"
                           : NULL;
    cJSON_Delete(json);
    return flaw;
}

/* Which request's id the answer carries: its number, -1 for none, -2 for one
 * that this connection never sent. */
static int index_of(const struct connection *at,
                    const struct found_answer *answer)
{
    char tag[48], found[256];
    if (!found_header(answer, "X-Request-Id", found, sizeof found))
        return -1;
    for (int i = 0; i < at->plan.n_requests; i++) {
        plan_tag(tag, sizeof tag, at->plan.number, i);
        if (strcmp(found, tag) == 0)
            return i;
    }
    return bytes_contain(at->plan.wire.start, at->sent, found) ? -1 : -2;
}

/* ------------------------------------------------------------ the verdicts */

/* The i-th answer of a connection whose requests are valid. */
static const char *flaw_of_valid(const struct connection *at, int i,
                                 const struct found_answer *answer)
{
    if (i >= at->plan.n_requests)
        return "an answer to no request";
    const struct kind *kind = at->plan.kind[i];
    if (index_of(at, answer) != i)
        return "another request's answer";
    if (answer->code != kind->code && answer->code != kind->other_code)
        return "another code";
    if (strcmp(kind->method, "HEAD") != 0 &&
        !bytes_contain(answer->body, answer->body_bytes, kind->part))
        return "another body";
    return flaw_of_body(answer);
}

/* May the connection end with the i-th answer? Errors may end one, and so may
 * chunks, whose faults the server cannot all see. */
static bool may_close(const struct connection *at, int i,
                      const struct found_answer *answer)
{
    return answer->closes && (answer->code >= 400 || at->plan.is_chunked[i]);
}

/* Who is late himself meets the daemon's deadlines. Bytes that stand behind
 * chunks are not read then: they reset the connection, and with it what the
 * client has not read of earlier answers. */
static bool may_be_reset(const struct connection *at)
{
    if (at->was_late)
        return true;
    for (int i = 0; i < at->plan.n_requests - 1; i++)
        if (at->plan.is_chunked[i])
            return at->is_reset;
    return false;
}

/* Whole answers of a valid connection; *is_done: no more are due. NULL or a
 * flaw. */
static const char *judge_valid(const struct connection *at, bool *is_done)
{
    struct found_answer answer;
    size_t from = 0;
    int i = 0;
    *is_done = false;
    while (from < at->in.n) {
        bool is_head = i < at->plan.n_requests &&
                       strcmp(at->plan.kind[i]->method, "HEAD") == 0;
        enum found found =
            find_answer(at->in.start + from, at->in.n - from, is_head, &answer);
        if (found == FOUND_MALFORMED)
            return answer.flaw;
        if (found == FOUND_PART)
            return at->is_ended && !may_be_reset(at) ? "an answer broken off"
                                                     : NULL;
        from += answer.head_bytes + answer.body_bytes;
        if (answer.code < 200)
            continue;
        const char *flaw = flaw_of_valid(at, i, &answer);
        if (flaw)
            return flaw;
        *is_done = may_close(at, i, &answer) || ++i == at->plan.n_requests;
    }
    return at->is_ended && !*is_done && !may_be_reset(at)
               ? "a request without an answer"
               : NULL;
}

/* Broken requests may have turned into HEAD, or out of it. */
static enum found find_any(const struct connection *at, size_t from,
                           struct found_answer *answer)
{
    const char *data = at->in.start + from;
    size_t n = at->in.n - from;
    enum found found = find_answer(data, n, true, answer);
    const char *behind = data + answer->head_bytes;
    size_t left = n - answer->head_bytes;
    bool is_head =
        left == 0 || memcmp(behind, "HTTP/", left < 5 ? left : 5) == 0;
    if (found != FOUND_WHOLE ||
        (is_head && bytes_contain(at->plan.wire.start, at->sent, "HEAD")))
        return found;
    return find_answer(data, n, false, answer);
}

/* The same of a connection with broken requests: answers are well formed, not
 * too many, and in the order of their requests. */
static const char *judge_broken(const struct connection *at, bool *is_done)
{
    struct found_answer answer;
    size_t from = 0;
    int n = 0, last = -1;
    *is_done = false;
    while (from < at->in.n) {
        enum found found = find_any(at, from, &answer);
        if (found == FOUND_MALFORMED)
            return answer.flaw;
        if (found == FOUND_PART)
            return at->is_ended && !at->is_reset ? "an answer broken off"
                                                 : NULL;
        from += answer.head_bytes + answer.body_bytes;
        if (answer.code < 200)
            continue;
        int index = index_of(at, &answer);
        if (index == -2 || (index >= 0 && index <= last))
            return "another request's answer";
        last = index >= 0 ? index : last;
        if (flaw_of_body(&answer))
            return flaw_of_body(&answer);
        if (++n > at->plan.n_requests + at->plan.n_extra)
            return "more answers than requests";
    }
    *is_done = n >= at->plan.n_requests;
    return NULL;
}

static const char *judge(const struct connection *at, bool *is_done)
{
    return at->plan.is_valid ? judge_valid(at, is_done)
                             : judge_broken(at, is_done);
}

/* ------------------------------------------------------------- connections */

static void finish(struct connection *at, bool resets)
{
    struct linger at_once = {1, 0};
    if (resets)
        setsockopt(at->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close(at->fd);
    plan_free(&at->plan);
    bytes_free(&at->in);
    at->is_used = false;
}

static bool begin(struct connection *at, uint64_t number)
{
    memset(at, 0, sizeof *at);
    at->stepped_at = now_seconds();
    at->fd = client_connect(server.port);
    if (at->fd < 0)
        return false;
    fcntl(at->fd, F_SETFL, O_NONBLOCK);
    plan_make(&at->plan, seed, number);
    bytes_add(&at->in, "", 0);
    at->is_used = true;
    atomic_fetch_add(&n_requests, (unsigned)at->plan.n_requests);
    atomic_fetch_add(&n_valid, at->plan.is_valid);
    return true;
}

/* What is to be sent before the next pause, or the end. */
static size_t send_until(const struct connection *at)
{
    size_t until =
        at->plan.ending == END_RESET ? at->plan.end_at : at->plan.wire.n;
    if (at->next_cut < at->plan.n_cuts && at->plan.cut[at->next_cut] < until)
        until = at->plan.cut[at->next_cut];
    return until;
}

static void note_all_sent(struct connection *at, double now)
{
    at->sent_at = at->heard_at = now;
    if (at->plan.ending == END_HALF)
        shutdown(at->fd, SHUT_WR);
}

static void send_more(struct connection *at, double now)
{
    if (at->sent_at > 0 || now < at->send_after)
        return;
    size_t until = send_until(at);
    ssize_t n = 0;
    if (until > at->sent)
        n = send(at->fd, at->plan.wire.start + at->sent, until - at->sent,
                 MSG_NOSIGNAL);
    if (n < 0 && errno == EAGAIN)
        return;
    if (n < 0) { /* refused and closed: what came is read below */
        at->is_reset = true;
        note_all_sent(at, now);
        return;
    }
    at->sent += (size_t)n;
    if (at->sent < until)
        return;
    if (at->next_cut < at->plan.n_cuts &&
        at->plan.cut[at->next_cut] == at->sent)
        at->send_after = now + at->plan.pause_seconds[at->next_cut++];
    else
        note_all_sent(at, now);
}

static void receive_more(struct connection *at, double now)
{
    static _Thread_local char piece[1 << 16];
    ssize_t n;
    while ((n = recv(at->fd, piece, sizeof piece, 0)) > 0) {
        bytes_add(&at->in, piece, (size_t)n);
        at->heard_at = now;
    }
    if (n == 0 || errno != EAGAIN) {
        at->is_ended = true;
        at->is_reset |= n < 0;
    }
}

/* By their codes, to see that requests come far. */
static void count(const struct connection *at)
{
    for (const char *c = at->in.start; (c = strstr(c, "HTTP/1.")) != NULL;
         c += 9) {
        long code = strtol(c + 8, NULL, 10);
        if (code >= 100 && code < N_CODES)
            atomic_fetch_add(&n_answers[code], 1);
    }
}

static void print_counts(double seconds)
{
    printf("%llu connections, %llu of them valid, %llu requests in %.1f s; "
           "answers:",
           (unsigned long long)atomic_load(&next_number),
           (unsigned long long)atomic_load(&n_valid),
           (unsigned long long)atomic_load(&n_requests), seconds);
    for (int i = 0; i < N_CODES; i++)
        if (atomic_load(&n_answers[i]))
            printf(" %d: %u", i, atomic_load(&n_answers[i]));
    putchar('\n');
    fflush(stdout);
}

/* One step; false once the connection is over. */
static bool step(struct connection *at)
{
    double now = now_seconds();
    bool is_done, is_sent;
    at->was_late |= now - at->stepped_at > late_seconds;
    at->stepped_at = now;
    send_more(at, now);
    receive_more(at, now);
    is_sent = at->sent_at > 0;
    if (is_sent && at->plan.ending == END_RESET) {
        finish(at, true);
        return false;
    }
    const char *flaw = judge(at, &is_done);
    if (!flaw && is_sent && now - at->sent_at > hang_seconds && !at->is_ended)
        flaw = is_done ? "an idle connection outlives its deadline"
                       : "a request hangs";
    if (flaw)
        report(at, flaw, "");
    bool is_quiet =
        is_sent && !at->plan.is_valid && now - at->heard_at > quiet_seconds;
    bool is_left =
        at->plan.ending == END_SOON && is_sent && (is_done || is_quiet);
    if (!flaw && !at->is_ended && !is_left)
        return true;
    count(at);
    finish(at, false);
    return false;
}

static void *work(void *context)
{
    struct worker *worker = context;
    struct pollfd wait[AT_ONCE];
    while (!atomic_load(&is_over) && !atomic_load(&is_dead)) {
        for (int i = 0; i < AT_ONCE; i++) {
            struct connection *at = &worker->at[i];
            if (!at->is_used) {
                uint64_t number = atomic_fetch_add(&next_number, 1);
                worker->recent[worker->n++ % RECENT] = number;
                if (!begin(at, number))
                    pause_seconds(0.01); /* main looks whether it lives */
            }
            if (at->is_used)
                step(at);
            wait[i] = (struct pollfd){at->is_used ? at->fd : -1, POLLIN, 0};
        }
        poll(wait, AT_ONCE, 2);
    }
    for (int i = 0; i < AT_ONCE; i++)
        if (worker->at[i].is_used)
            finish(&worker->at[i], true);
    return NULL;
}

/* ------------------------------------------------------------- the program */

static void start(void)
{
    server_start(&server, flags);
    grammar_prepare(&server);
    atomic_store(&is_over, false);
    atomic_store(&is_dead, false);
}

/* One connection by itself; false where it has a finding or kills. */
static bool replay(uint64_t number, bool is_printed)
{
    struct connection at;
    int before = atomic_load(&n_findings);
    if (!begin(&at, number))
        return false;
    if (is_printed)
        print_escaped("sent", &at.plan.wire, SIZE_MAX);
    while (step(&at))
        pause_seconds(0.001);
    for (int i = 0; i < 20 && !process_is_gone(server.pid); i++)
        pause_seconds(0.001);
    return atomic_load(&n_findings) == before && !process_is_gone(server.pid);
}

/* Asks those that were under way one by one, for the one that kills. */
static void find_killer(const struct worker *worker, int n_workers)
{
    start();
    for (int i = 0; i < n_workers; i++)
        for (int j = 0; j < RECENT; j++) {
            uint64_t number = worker[i].recent[j];
            if (j >= (int)worker[i].n || replay(number, false) ||
                !process_is_gone(server.pid))
                continue;
            struct plan plan;
            plan_make(&plan, seed, number);
            fprintf(stderr,
                    "FINDING: the daemon dies of --seed %llu --replay "
                    "%llu, alone\n",
                    (unsigned long long)seed, (unsigned long long)number);
            print_escaped("sent", &plan.wire, 8000);
            server_stop(&server);
            return;
        }
    fprintf(stderr, "FINDING: the daemon died, of no connection alone\n");
    server_stop(&server);
}

/* Watches the daemon until the time is over. */
static void watch(double seconds)
{
    double start_seconds = now_seconds();
    int n_unanswered = 0;
    while (!atomic_load(&is_over) && !atomic_load(&is_dead) &&
           now_seconds() - start_seconds < seconds) {
        pause_seconds(0.2);
        if (process_is_gone(server.pid))
            atomic_store(&is_dead, true);
        else if (attack_get(server.port, "/v2/health/live", 5) == 200)
            n_unanswered = 0;
        else if (++n_unanswered == 2 && !has_died()) {
            fprintf(stderr, "FINDING: health is not answered\n");
            atomic_fetch_add(&n_findings, 1);
            atomic_store(&is_over, true);
        }
    }
    atomic_store(&is_over, true);
}

static int run(double seconds, int n_threads)
{
    static struct worker worker[MOST_THREADS];
    double start_seconds = now_seconds();
    start();
    for (int i = 0; i < n_threads; i++)
        pthread_create(&worker[i].thread, NULL, work, &worker[i]);
    watch(seconds);
    for (int i = 0; i < n_threads; i++)
        pthread_join(worker[i].thread, NULL);
    print_counts(now_seconds() - start_seconds);
    bool is_clean = server_stop(&server);
    if (atomic_load(&is_dead))
        find_killer(worker, n_threads);
    return is_clean && atomic_load(&n_findings) == 0 ? EXIT_SUCCESS
                                                     : EXIT_FAILURE;
}

int main(int argc, char **argv)
{
    double minutes = argument(argc, argv, "--minutes", 0);
    double seconds = argument(argc, argv, "--seconds", 20);
    double number = argument(argc, argv, "--replay", -1);
    int n_threads = (int)argument(argc, argv, "--threads", 4);
    seed = (uint64_t)argument(argc, argv, "--seed", 1);
    if (seed == 0)
        seed = (uint64_t)time(NULL);
    n_threads = n_threads < MOST_THREADS ? n_threads : MOST_THREADS;
    grammar_init();
    printf("seed %llu\n", (unsigned long long)seed);
    if (number < 0)
        return run(minutes > 0 ? minutes * 60 : seconds, n_threads);
    start();
    bool is_good = replay((uint64_t)number, true);
    bool is_clean = server_stop(&server);
    return is_good && is_clean ? EXIT_SUCCESS : EXIT_FAILURE;
}
