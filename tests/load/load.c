/*
 * load.c - the clients' loop. A client is in epoll for one thing at a time: it
 * reads once all of its request is sent. Nothing is kept of a body, and of an
 * answer only its head.
 */
#include "load/load.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { HEAD_BYTES = 2048, SEND_PIECE = 256 << 10, BATCH = 64, TURN_MS = 100 };

struct client {
    int fd; /* -1: none */
    uint32_t events;
    int next;
    const struct http_request *request; /* under way, or NULL */
    size_t sent;
    double began;
    char head[HEAD_BYTES]; /* the part of an answer's head that has arrived */
    size_t head_bytes;
    bool is_in_body;
    uint64_t left; /* of the answer's body */
    struct http_answer answer;
};

struct loop {
    const struct load *load;
    struct load_result *result;
    struct client *client;
    int epoll, n_busy;
    double timed_from, until;
};

static void watch(const struct loop *loop, struct client *client,
                  uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = client};
    if (client->events != events)
        epoll_ctl(loop->epoll, client->events ? EPOLL_CTL_MOD : EPOLL_CTL_ADD,
                  client->fd, &event);
    client->events = events;
}

static bool is_sent(const struct client *client)
{
    const struct http_request *request = client->request;
    return client->sent == request->head_bytes + request->body_bytes;
}

static void drop_connection(struct client *client)
{
    if (client->fd >= 0)
        close(client->fd);
    client->fd = -1;
    client->events = 0;
}

static void note(const struct loop *loop, const char *what, const char *detail)
{
    if (!loop->result->why[0])
        snprintf(loop->result->why, LOAD_WHY_BYTES, "%s %.60s", what, detail);
}

/* The connection is gone: the client is to begin again. */
static void lose(const struct loop *loop, struct client *client,
                 const char *what, const char *detail)
{
    loop->result->n_lost++;
    note(loop, what, detail);
    drop_connection(client);
}

/* Is there more to do, by the clock and whoever started this? */
static bool goes_on(const struct loop *loop)
{
    return now_seconds() < loop->until && !atomic_load(&loop->result->is_over);
}

/* A connection; connect() on loopback ends at once or fails. */
static bool open_connection(const struct loop *loop, struct client *client)
{
    for (int tries = 0; client->fd < 0; tries++) {
        client->fd = client_open(loop->load->port);
        if (client->fd >= 0)
            break;
        loop->result->n_unconnected++;
        if (loop->load->ends_refused || tries == 100 || !goes_on(loop))
            return false;
        pause_seconds(0.01);
    }
    fcntl(client->fd, F_SETFL, O_NONBLOCK);
    return true;
}

/* Sends a piece, for others have their turn; false: the request is lost. */
static bool transmit(const struct loop *loop, struct client *client)
{
    const struct http_request *request = client->request;
    ssize_t n = request_send(client->fd, request, client->sent, SEND_PIECE);
    if (n <= 0 && errno != EAGAIN) {
        lose(loop, client, "cut off while it sent:", strerror(errno));
        return false;
    }
    client->sent += n > 0 ? (size_t)n : 0;
    watch(loop, client, is_sent(client) ? EPOLLIN : EPOLLOUT);
    return true;
}

/* Takes the next request; false: this client is done. */
static bool take_request(struct loop *loop, struct client *client)
{
    const struct load *load = loop->load;
    if (client->began > 0 && load->pause_seconds > 0)
        pause_seconds(load->pause_seconds);
    if (!goes_on(loop) || !open_connection(loop, client))
        return false;
    client->request = &load->request[client->next % load->n_requests];
    client->next += !load->keeps_request;
    client->sent = client->head_bytes = 0;
    client->is_in_body = false;
    client->began = now_seconds();
    loop->result->n_sent++;
    return true;
}

static void begin(struct loop *loop, struct client *client)
{
    do {
        if (!take_request(loop, client)) {
            drop_connection(client);
            client->request = NULL;
            loop->n_busy--;
            return;
        }
    } while (!transmit(loop, client));
}

static void count_answer(const struct loop *loop, const struct client *client)
{
    struct load_result *result = loop->result;
    const struct http_answer *answer = &client->answer;
    double now = now_seconds();
    if (answer->code == 503 && answer->has_a_retry) {
        result->n_refused++;
    } else if (answer->code != 200) {
        result->n_wrong++;
        note(loop, "wrong answer:", client->head);
    } else {
        result->n_ok++;
        if (now < loop->timed_from)
            return;
        result->n_timed++;
        stats_add(&result->latency, now - client->began);
    }
}

/* Bytes of an answer; false: it is none. */
static bool take_bytes(struct client *client, const char *bytes, size_t n)
{
    if (!client->is_in_body) {
        size_t kept = client->head_bytes, room = HEAD_BYTES - 1 - kept;
        size_t more = n < room ? n : room;
        memcpy(client->head + kept, bytes, more);
        client->head_bytes += more;
        client->head[client->head_bytes] = '\0';
        size_t head =
            client_read_head(client->head, client->head_bytes, &client->answer);
        if (head == 0)
            return more < room;
        if (head == SIZE_MAX)
            return false;
        client->is_in_body = true;
        client->left = client->answer.bytes;
        n -= head - kept; /* what is behind the head */
    }
    if (n > client->left)
        return false;
    client->left -= n;
    return true;
}

static void receive(struct loop *loop, struct client *client)
{
    static char piece[CLIENT_PIECE_BYTES];
    ssize_t n = recv(client->fd, piece, sizeof piece, 0);
    if (n < 0 && errno == EAGAIN)
        return;
    if (n <= 0) {
        lose(loop, client,
             client->head_bytes ? "closed amid the answer"
                                : "closed unanswered",
             n < 0 ? strerror(errno) : "");
    } else if (!take_bytes(client, piece, (size_t)n)) {
        lose(loop, client, "malformed:", client->head);
    } else if (client->is_in_body && client->left == 0) {
        count_answer(loop, client);
        if (client->answer.closes)
            drop_connection(client);
    } else {
        return;
    }
    begin(loop, client);
}

static void turn(struct loop *loop, struct client *client)
{
    if (is_sent(client))
        receive(loop, client);
    else if (!transmit(loop, client))
        begin(loop, client);
}

static void drive(struct loop *loop)
{
    struct epoll_event event[BATCH];
    double last = loop->until + loop->load->patience_seconds;
    for (int i = 0; i < loop->load->n_clients; i++) {
        loop->client[i].fd = -1;
        loop->client[i].next = i;
        begin(loop, &loop->client[i]);
    }
    while (loop->n_busy > 0 && now_seconds() < last) {
        int n = epoll_wait(loop->epoll, event, BATCH, TURN_MS);
        for (int i = 0; i < n; i++)
            turn(loop, event[i].data.ptr);
    }
    loop->result->seconds = now_seconds() - loop->timed_from;
    for (int i = 0; i < loop->load->n_clients; i++)
        if (loop->client[i].request)
            lose(loop, &loop->client[i], "no answer in time", "");
}

void load_run(const struct load *load, struct load_result *result)
{
    double timed_from = now_seconds() + load->warm_up_seconds;
    struct loop loop = {
        .load = load,
        .result = result,
        .client = calloc((size_t)load->n_clients, sizeof *loop.client),
        .epoll = epoll_create1(EPOLL_CLOEXEC),
        .n_busy = load->n_clients,
        .timed_from = timed_from,
        .until = timed_from + load->seconds};
    if (!loop.client || loop.epoll < 0) {
        fprintf(stderr, "load: %s\n", strerror(errno));
        exit(EXIT_FAILURE);
    }
    drive(&loop);
    close(loop.epoll);
    free(loop.client);
}

/* ------------------------------------------------- in a process of its own */

/* The samples have their place behind the rest of the result. */
enum { SHARED_BYTES = STATS_MOST_SAMPLES * sizeof(double) };
enum { MOST_PROCESSES = 16, CORES_PER_PROCESS = 2 };

struct load_child load_start(const struct load *load)
{
    struct load_child child = {
        .result = mmap(NULL, sizeof *child.result + SHARED_BYTES,
                       PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)};
    fflush(NULL);
    child.pid = child.result == MAP_FAILED ? -1 : fork();
    if (child.pid < 0) {
        fprintf(stderr, "load: %s\n", strerror(errno));
        exit(EXIT_FAILURE);
    }
    if (child.pid > 0)
        return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    child.result->latency = (struct samples){
        .value = (double *)(child.result + 1), .room = STATS_MOST_SAMPLES};
    load_run(load, child.result);
    _exit(EXIT_SUCCESS);
}

void load_wait(struct load_child *child)
{
    int status = -1;
    if (child->pid <= 0)
        return;
    waitpid(child->pid, &status, 0);
    child->pid = 0;
    if (status == 0)
        return;
    fprintf(stderr, "load: the clients ended with status %d\n", status);
    exit(EXIT_FAILURE);
}

void load_free(struct load_child *child)
{
    load_wait(child);
    munmap(child->result, sizeof *child->result + SHARED_BYTES);
}

static int usable_cores(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

static void add_result(struct load_result *all, const struct load_result *part)
{
    for (size_t i = 0; i < part->latency.n; i++)
        stats_add(&all->latency, part->latency.value[i]);
    all->n_sent += part->n_sent;
    all->n_ok += part->n_ok;
    all->n_refused += part->n_refused;
    all->n_wrong += part->n_wrong;
    all->n_lost += part->n_lost;
    all->n_unconnected += part->n_unconnected;
    all->n_timed += part->n_timed;
    if (!all->why[0])
        memcpy(all->why, part->why, sizeof all->why);
}

void load_run_spread(const struct load *load, struct load_result *result)
{
    struct load_child child[MOST_PROCESSES];
    struct load part = *load;
    double rate = 0;
    int n = usable_cores() / CORES_PER_PROCESS;
    n = n > MOST_PROCESSES ? MOST_PROCESSES : n;
    n = n > load->n_clients ? load->n_clients : n;
    if (n <= 1) {
        load_run(load, result);
        return;
    }
    for (int i = 0; i < n; i++) {
        part.n_clients =
            load->n_clients * (i + 1) / n - load->n_clients * i / n;
        child[i] = load_start(&part);
    }
    for (int i = 0; i < n; i++) {
        load_wait(&child[i]);
        add_result(result, child[i].result);
        if (child[i].result->n_timed > 0)
            rate += (double)child[i].result->n_timed / child[i].result->seconds;
        load_free(&child[i]);
    }
    result->seconds = rate > 0 ? (double)result->n_timed / rate : 0;
}

void load_print(const char *name, struct load_result *result, double seconds)
{
    struct samples *latency = &result->latency;
    printf("%s: sent %lld (%.0f/s), 200 %lld, 503 %lld, wrong %lld, lost %lld; "
           "ms p50 %.2f p99 %.2f max %.1f%s%s\n",
           name, (long long)result->n_sent, (double)result->n_sent / seconds,
           (long long)result->n_ok, (long long)result->n_refused,
           (long long)result->n_wrong, (long long)result->n_lost,
           stats_quantile(latency, 0.5) * 1e3,
           stats_quantile(latency, 0.99) * 1e3,
           stats_quantile(latency, 1) * 1e3, result->why[0] ? "; first: " : "",
           result->why);
    fflush(stdout);
}
