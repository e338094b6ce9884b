/*
 * load.c - the clients' loop.
 */
#include "attack/load.h"

#include "http/service.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SEND_PIECE = 256 << 10, READ_PIECE = 256 << 10 };

struct client {
    int fd; /* -1: none */
    int next;
    const struct bytes *request; /* under way, or NULL */
    size_t sent;
    double began;
    bool is_over;
    struct bytes in;
    size_t expected; /* bytes of the answer, once its headers are there */
    struct found_answer answer;
};

struct loop {
    const struct load *load;
    struct load_result *result;
    struct client *client;
    int epoll, n_busy;
    double until;
};

static void watch(const struct loop *loop, struct client *client,
                  uint32_t events, int operation)
{
    struct epoll_event event = {.events = events, .data = {.ptr = client}};
    epoll_ctl(loop->epoll, operation, client->fd, &event);
}

static void drop_connection(struct client *client)
{
    if (client->fd >= 0)
        close(client->fd);
    client->fd = -1;
}

static void note(struct loop *loop, const char *what, const char *detail)
{
    if (!loop->result->why[0])
        snprintf(loop->result->why, LOAD_WHY_BYTES, "%s %.60s", what, detail);
}

/* Is there more to do, by the clock and whoever started this? */
static bool goes_on(const struct loop *loop)
{
    return now_seconds() < loop->until && !atomic_load(&loop->result->is_over);
}

static void end_client(struct loop *loop, struct client *client)
{
    drop_connection(client);
    client->request = NULL;
    client->is_over = true;
    loop->n_busy--;
}

/* A connection; connect() on loopback ends at once or fails. */
static bool open_connection(struct loop *loop, struct client *client)
{
    for (int tries = 0; client->fd < 0; tries++) {
        client->fd = attack_connect(loop->load->port);
        if (client->fd >= 0)
            break;
        loop->result->n_unconnected++;
        if (loop->load->ends_refused || tries == 100 || !goes_on(loop))
            return false;
        pause_seconds(0.01);
    }
    fcntl(client->fd, F_SETFL, O_NONBLOCK);
    watch(loop, client, EPOLLOUT, EPOLL_CTL_ADD);
    return true;
}

/* The next request, over the open connection if there is one. */
static void begin(struct loop *loop, struct client *client)
{
    bool is_open = client->fd >= 0;
    if (client->began > 0)
        pause_seconds(loop->load->pause_seconds);
    if (!goes_on(loop) || !open_connection(loop, client)) {
        end_client(loop, client);
        return;
    }
    client->request =
        &loop->load->request[client->next++ % loop->load->n_requests];
    client->sent = client->in.n = client->expected = 0;
    client->began = now_seconds();
    loop->result->n_sent++;
    if (is_open)
        watch(loop, client, EPOLLOUT, EPOLL_CTL_MOD);
}

static void lose(struct loop *loop, struct client *client, const char *what,
                 const char *detail)
{
    loop->result->n_lost++;
    note(loop, what, detail);
    drop_connection(client);
    begin(loop, client);
}

static void count_answer(struct loop *loop, const struct client *client)
{
    struct load_result *result = loop->result;
    const struct found_answer *answer = &client->answer;
    char retry[16];
    if (answer->code == 200) {
        result->n_ok++;
        if (result->n_samples < LOAD_SAMPLES)
            result->sample[result->n_samples++] = now_seconds() - client->began;
    } else if (answer->code == 503 &&
               found_header(answer, "Retry-After", retry, sizeof retry)) {
        result->n_refused++;
    } else {
        result->n_wrong++;
        note(loop, "wrong answer:", answer->head);
    }
}

/* Is the answer whole? Looks at its headers only once. */
static enum found look(struct client *client)
{
    if (client->expected && client->in.n < client->expected)
        return FOUND_PART;
    enum found found =
        find_answer(client->in.start, client->in.n, false, &client->answer);
    char length[24];
    if (found == FOUND_PART && client->answer.body &&
        found_header(&client->answer, "Content-Length", length, sizeof length))
        client->expected =
            client->answer.head_bytes + strtoull(length, NULL, 10);
    return found;
}

static void finish(struct loop *loop, struct client *client)
{
    count_answer(loop, client);
    if (client->answer.closes)
        drop_connection(client);
    begin(loop, client);
}

static void receive(struct loop *loop, struct client *client)
{
    static char piece[READ_PIECE];
    ssize_t n = recv(client->fd, piece, sizeof piece, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        lose(loop, client,
             client->in.n ? "closed amid the answer" : "closed unanswered",
             n < 0 ? strerror(errno) : "");
        return;
    }
    bytes_add(&client->in, piece, (size_t)n);
    enum found found = look(client);
    if (found == FOUND_WHOLE && client->answer.code < 200)
        client->in.n = 0;
    else if (found == FOUND_WHOLE)
        finish(loop, client);
    else if (found == FOUND_MALFORMED)
        lose(loop, client, "malformed", client->answer.flaw);
}

static void transmit(struct loop *loop, struct client *client)
{
    size_t left = client->request->n - client->sent;
    ssize_t n = send(client->fd, client->request->start + client->sent,
                     left < SEND_PIECE ? left : SEND_PIECE, MSG_NOSIGNAL);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        lose(loop, client, "cut off while it sent:", strerror(errno));
        return;
    }
    client->sent += (size_t)n;
    if (client->sent == client->request->n)
        watch(loop, client, EPOLLIN, EPOLL_CTL_MOD);
}

static void turn(struct loop *loop, struct client *client)
{
    if (!client->request)
        return;
    if (client->sent < client->request->n)
        transmit(loop, client);
    else
        receive(loop, client);
}

/* Those whose answer never came. */
static void give_up(struct loop *loop)
{
    for (int i = 0; i < loop->load->n_clients; i++) {
        struct client *client = &loop->client[i];
        if (client->is_over || !client->request)
            continue;
        loop->result->n_lost++;
        note(loop, "no answer in time", "");
    }
}

static void run(const struct load *load, struct load_result *result)
{
    enum { AT_ONCE = 64 };
    struct epoll_event event[AT_ONCE];
    struct loop loop = {
        .load = load,
        .result = result,
        .client = calloc((size_t)load->n_clients, sizeof *loop.client),
        .epoll = epoll_create1(EPOLL_CLOEXEC),
        .n_busy = load->n_clients,
        .until = now_seconds() + load->seconds};
    for (int i = 0; i < load->n_clients; i++) {
        loop.client[i].fd = -1;
        loop.client[i].next = i;
        begin(&loop, &loop.client[i]);
    }
    double last = loop.until + load->patience_seconds;
    while (loop.n_busy > 0 && now_seconds() < last) {
        int n = epoll_wait(loop.epoll, event, AT_ONCE, 100);
        for (int i = 0; i < n; i++)
            turn(&loop, event[i].data.ptr);
    }
    give_up(&loop);
}

struct load_child load_start(const struct load *load)
{
    struct load_child child = {
        .result = mmap(NULL, sizeof(struct load_result), PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS, -1, 0)};
    fflush(NULL);
    child.pid = child.result == MAP_FAILED ? -1 : fork();
    if (child.pid < 0) {
        fprintf(stderr, "load: %s\n", strerror(errno));
        exit(EXIT_FAILURE);
    }
    if (child.pid > 0)
        return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    run(load, child.result);
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
    munmap(child->result, sizeof *child->result);
}

void load_print(const char *name, struct load_result *result, double seconds)
{
    size_t n = result->n_samples;
    double *sample = result->sample;
    printf("%s: sent %lld (%.0f/s), 200 %lld, 503 %lld, wrong %lld, lost %lld; "
           "ms p50 %.2f p99 %.2f max %.1f%s%s\n",
           name, (long long)result->n_sent, (double)result->n_sent / seconds,
           (long long)result->n_ok, (long long)result->n_refused,
           (long long)result->n_wrong, (long long)result->n_lost,
           percentile(sample, n, 0.5) * 1e3, percentile(sample, n, 0.99) * 1e3,
           percentile(sample, n, 1) * 1e3, result->why[0] ? "; first: " : "",
           result->why);
    fflush(stdout);
}
