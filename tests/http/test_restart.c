/*
 * test_restart.c - a device is lost, and the daemon starts itself anew: where
 * it listens, what it has forgotten, and what becomes of those who come
 * meanwhile. On a GPU (roped_fault_cuda) the fault is a real one.
 */
#include "check.h"
#include "http/keys.h"
#include "http/recover.h"
#include "load/certificates.h"
#include "load/client.h"
#include "shared_memory.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static struct server server;
static char folder[] = "/tmp/roped_test_XXXXXX";
static char socket_path[64],
    place[72]; /* of a Unix socket, and as listen has it */
static struct http_request live;

static struct answer put(const char *path, const char *body)
{
    return ask(&server, "PUT", path, body, body ? strlen(body) : 0, NULL);
}

static struct answer drop(const char *path)
{
    return ask(&server, "DELETE", path, NULL, 0, NULL);
}

static void print_seconds(const char *what, double seconds)
{
    printf("%s: %.2f s from the fault to the next right answer\n", what,
           seconds);
}

TEST(a_lost_device_is_a_new_process_in_its_place)
{
    recover_start(&server, "launch 3 sticky", NULL);
    CHECK(call_ones(&server, 2, 8) && call_ones(&server, 2, 8));
    CHECK_DOUBLE(metric(&server, "roped_restarts_total "), 0, 0);
    double files = metric(&server, "process_open_fds ");
    print_seconds("a small call", recover_from_call(&server));
    CHECK(server_is_alive(&server));
    CHECK(metric(&server, "process_open_fds ") <= files);
    CHECK_DOUBLE(metric(&server, "roped_restarts_total "), 1, 0);
    CHECK(server_log_says(&server, "level=error event=device_lost device=0"));
    CHECK(server_log_says(&server, "event=restarted restarts=1 lost=0"));
    CHECK(call_ones(&server, 64, 1024));
    CHECK(server_stop(&server));
}

static void expect_lost(const char *kind)
{
    char part[64];
    snprintf(part, sizeof part, "%s: lost when device 0 was reset at 20", kind);
    const char *rows[3][3] = {
        {"/v1/regions/kv", "/v1/regions", "\"regions\":[]"},
        {"/v1/tables/plan", "/v1/tables", "\"tables\":[]"},
        {"/v1/programs/norm", "/v1/programs", "\"programs\":[]"}};
    const char *const *row = rows[kind[0] == 't' ? 1 : kind[0] == 'p' ? 2 : 0];
    expect_code(get(&server, row[0]), 410, part, "GET");
    expect_code(get(&server, row[1]), 200, row[2], "the list");
}

TEST(what_was_lost_says_so_until_it_is_made_anew)
{
    const char *norm = "{\"inputs\":[\"x\"],\"steps\":[{\"op\":\"rmsnorm\","
                       "\"in\":{\"x\":\"x\"},\"out\":{\"y\":\"y\"}}],"
                       "\"outputs\":[\"y\"]}";
    recover_start(&server, "launch 1 sticky", NULL);
    expect_code(put("/v1/regions/kv?dtype=F32&shape=2,8", NULL), 201, "",
                "PUT");
    expect_code(put("/v1/regions/old?bytes=64", NULL), 201, "", "PUT");
    expect_code(put("/v1/tables/plan", recover_table), 201, "", "PUT");
    expect_code(put("/v1/tables/old", recover_table), 201, "", "PUT");
    expect_code(put("/v1/programs/norm", norm), 201, "", "PUT");
    (void)recover_from_call(&server);
    expect_lost("region 'kv'");
    expect_lost("table 'plan'");
    expect_lost("program 'norm'");
    expect_code(
        ask(&server, "POST", "/v1/rmsnorm?eps=0&from.x=kv", NULL, 0, NULL), 410,
        "region 'kv': lost when", "a call with a region");
    expect_code(put("/v1/regions/kv?dtype=F32&shape=2,8", NULL), 201, "",
                "PUT again");
    expect_code(put("/v1/tables/plan", recover_table), 201, "", "PUT again");
    expect_code(put("/v1/programs/norm", norm), 201, "", "PUT again");
    expect_code(get(&server, "/v1/regions/kv"), 200, "", "GET again");
    expect_code(get(&server, "/v1/tables/plan"), 200, "", "GET again");
    expect_code(drop("/v1/regions/old"), 200, "", "DELETE of what was lost");
    expect_code(drop("/v1/tables/old"), 200, "", "DELETE of what was lost");
    expect_code(get(&server, "/v1/regions/old"), 404, "", "GET of none");
    expect_code(get(&server, "/v1/tables/old"), 404, "", "GET of none");
    CHECK(server_stop(&server));
}

static void expect_as(const char *name, const char *path, int code)
{
    expect_code(ask_as(&server, name, "GET", path, NULL), code, "", path);
}

TEST(what_was_lost_is_its_tenants_alone)
{
    static const struct key keys[] = {{"alice", "call,regions,tables", NULL},
                                      {"bob", "call,regions,tables", NULL}};
    const char *flags[] = {"--bearer-token-file", keys_file(), NULL};
    keys_write(keys, 2);
    recover_start(&server, "clear 2 sticky", flags);
    expect_code(
        ask_as(&server, "alice", "PUT", "/v1/regions/kv?bytes=64", NULL), 201,
        "", "PUT of alice");
    expect_code(
        ask_as(&server, "alice", "PUT", "/v1/tables/plan", recover_table), 201,
        "", "PUT of alice");
    expect_code(ask_as(&server, "bob", "PUT", "/v1/regions/x?bytes=64", NULL),
                500, "", "PUT into the fault");
    expect_log(&server, "event=restarted restarts=1 lost=2 forgotten=0");
    expect_as("alice", "/v1/regions/kv", 410);
    expect_as("alice", "/v1/tables/plan", 410);
    expect_as("bob", "/v1/regions/kv", 404);
    expect_as("bob", "/v1/tables/plan", 404);
    expect_as("bob", "/v1/regions/x", 404);
    CHECK(server_stop(&server));
    unlink(keys_file());
}

/* The client's memory is still there, and not what the server made of it. */
TEST(memory_of_a_client_is_to_be_registered_again)
{
    const char *const flags[] = {"--allow-client-shm", NULL};
    static const char register_path[] =
        "/v2/systemsharedmemory/region/s/register";
    char key[SHARED_KEY_BYTES], body[128];
    close(shared_memory_make(key, 4096));
    snprintf(body, sizeof body,
             "{\"key\":\"%s\",\"offset\":0,\"byte_size\":4096}", key);
    recover_start(&server, "launch 1 sticky", flags);
    expect_code(ask(&server, "POST", register_path, body, strlen(body), NULL),
                200, "", "register");
    (void)recover_from_call(&server);
    expect_code(get(&server, "/v2/systemsharedmemory/region/s/status"), 410,
                "region 's': lost when device 0 was reset", "status");
    expect_code(get(&server, "/v2/systemsharedmemory/status"), 200, "[]",
                "the list");
    expect_code(ask(&server, "POST", register_path, body, strlen(body), NULL),
                200, "", "register again");
    expect_code(get(&server, "/v2/systemsharedmemory/region/s/status"), 200,
                key, "status");
    CHECK(server_stop(&server));
    shm_unlink(key);
}

/* ------------------------------------------------------------ where it is */

/* The code of one answer; closes fd. 0: there was none. */
static int ask_over(int fd, const struct http_request *request)
{
    struct http_answer answer = {0};
    bool is_answered =
        fd >= 0 && client_exchange(fd, request, NULL, 0, &answer);
    if (fd >= 0)
        close(fd);
    return is_answered ? answer.code : 0;
}

/* The port of the first line of the log that has this in it, or of the last. */
static int port_of(const char *part, bool is_last)
{
    char line[1024];
    int port = 0;
    FILE *file = fopen(server.log, "r");
    while (file && (is_last || !port) && fgets(line, sizeof line, file)) {
        const char *address = strstr(line, "address=\"127.0.0.1:");
        if (address && strstr(line, part))
            port = (int)strtol(strchr(address, ':') + 1, NULL, 10);
    }
    if (file)
        fclose(file);
    return port;
}

TEST(every_place_is_the_same_afterwards)
{
    const char *const flags[] = {"--listen", "127.0.0.1:0",    "--listen",
                                 place,      "--admin-listen", "127.0.0.1:0",
                                 NULL};
    recover_start(&server, "launch 1 sticky", flags);
    int admin = port_of("admin=true", false);
    (void)recover_from_call(&server);
    CHECK_INT(port_of("admin=true", true), admin);
    CHECK_INT(port_of("admin=false", true), server.port);
    CHECK_INT(ask_over(client_connect(admin), &live), 200);
    CHECK_INT(ask_over(client_connect_path(socket_path), &live), 200);
    CHECK(server_stop(&server));
    CHECK(access(socket_path, F_OK) !=
          0); /* its file was its own all the time */
}

TEST(tls_is_there_afterwards)
{
    struct certificates certificates;
    if (certificates_make(&certificates)) {
        setenv("ROPED_TEST_FAULT", "launch 1 sticky", 1);
        server_start_tls(&server, &certificates, NULL);
        unsetenv("ROPED_TEST_FAULT");
        (void)recover_from_call(&server);
        CHECK_INT(port_of("tls=true", true), server.port);
        CHECK(server_stop(&server));
    } else {
        printf("left out: the openssl command made no certificates\n");
    }
    certificates_remove(&certificates);
}

/* As systemd does: the socket is descriptor 3, and the pid is in the
 * environment. The standard descriptors are closed, which is worse. */
static pid_t start_with(int fd)
{
    enum { PASSED = 3 };
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        char own[16];
        const char *program = getenv("ROPED_TEST_BIN");
        const char *arguments[] = {program,     "--backend", "cuda",
                                   "--devices", "0",         NULL};
        snprintf(own, sizeof own, "%d", (int)getpid());
        setenv("LISTEN_PID", own, 1);
        setenv("LISTEN_FDS", "1", 1);
        setenv("ROPED_TEST_FAULT", "launch 1 sticky", 1);
        dup2(fd, PASSED);
        for (int i = STDIN_FILENO; i <= STDERR_FILENO; i++)
            close(i);
        fcntl(PASSED, F_SETFD, 0); /* fd may be 3 itself */
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) == 0)
            execv(program, (char *const *)(uintptr_t)arguments);
        _exit(127);
    }
    return pid;
}

static void expect_null(pid_t pid, int fd)
{
    char path[64], target[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)pid, fd);
    ssize_t n = readlink(path, target, sizeof target - 1);
    target[n > 0 ? n : 0] = '\0';
    CHECK_TEXT(target, "/dev/null");
}

TEST(a_passed_socket_stays_one)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct server passed = {.log = "/dev/null"};
    socklen_t bytes = sizeof address;
    int status = -1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK_INT(bind(fd, (struct sockaddr *)&address, bytes), 0);
    CHECK_INT(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
    CHECK_INT(listen(fd, 16), 0);
    passed.pid = start_with(fd);
    passed.port = ntohs(address.sin_port);
    snprintf(passed.url, sizeof passed.url, "http://127.0.0.1:%d", passed.port);
    CHECK_INT(ask_over(client_connect(passed.port), &live), 200);
    (void)recover_from_call(&passed);
    for (int i = STDIN_FILENO; i <= STDERR_FILENO; i++)
        expect_null(passed.pid, i);
    kill(passed.pid, SIGTERM);
    waitpid(passed.pid, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close(fd);
}

/* One device of the process takes the others along. */
TEST(another_device_is_lost_with_it)
{
    const char *const flags[] = {"--devices", "0,0", NULL};
    recover_start(&server, "launch 1 sticky", flags);
    expect_code(put("/v1/regions/a?bytes=64&device=0", NULL), 201, "", "PUT");
    expect_code(put("/v1/regions/b?bytes=64&device=1", NULL), 201, "", "PUT");
    print_seconds("two devices", recover_from_call(&server));
    expect_code(get(&server, "/v1/regions/a"), 410, "device 0 was", "GET a");
    expect_code(get(&server, "/v1/regions/b"), 410, "device 0 was", "GET b");
    expect_code(put("/v1/regions/b?bytes=64&device=1", NULL), 201, "", "PUT");
    CHECK_DOUBLE(metric(&server, "roped_device_healthy{device=\"1\"} "), 1, 0);
    CHECK(server_stop(&server));
}

/* ---------------------------------------------------------------- signals */

/* A call that meets the fault; the daemon has seen it when this returns. */
static void call_into_fault(void)
{
    size_t bytes;
    unsigned char *body = ones(2, 8, &bytes);
    struct answer answer =
        ask(&server, "POST", "/v1/rmsnorm?eps=0", body, bytes, NULL);
    expect_code(answer, 500, "\"error\"", "a call that meets the fault");
    free(body);
    for (int i = 0; i < 1000 && !server_log_says(&server, "event=device_lost");
         i++)
        pause_seconds(0.001);
}

TEST(a_stop_amid_a_restart_is_a_stop)
{
    recover_start(&server, "launch 1 sticky", NULL);
    call_into_fault();
    CHECK(server_stop(&server));
}

static int await_exit(double limit)
{
    int status = -1;
    double start = now_seconds();
    while (waitpid(server.pid, &status, WNOHANG) == 0)
        if (now_seconds() - start > limit) {
            kill(server.pid, SIGKILL);
            waitpid(server.pid, &status, 0);
            return -1;
        }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(the_sixth_in_five_minutes_ends_it)
{
    enum { MOST_RESTARTS = 5 };
    const char *const flags[] = {"--listen", "127.0.0.1:0", "--listen", place,
                                 NULL};
    recover_start(&server, "launch 1 sticky again", flags);
    for (int i = 0; i <= MOST_RESTARTS; i++) {
        char part[64];
        size_t bytes;
        unsigned char *body = ones(2, 8, &bytes);
        expect_code(
            ask(&server, "POST", "/v1/rmsnorm?eps=0", body, bytes, NULL), 500,
            "\"error\"", "a call that meets the fault");
        free(body);
        snprintf(part, sizeof part, "event=restarted restarts=%d ", i + 1);
        for (int j = 0;
             j < 1000 && i < MOST_RESTARTS && !server_log_says(&server, part);
             j++)
            pause_seconds(0.01);
    }
    CHECK_INT(await_exit(10), EXIT_FAILURE);
    CHECK(server_log_says(&server, "5 restarts within 300 s"));
    CHECK(!server_log_says(&server, "restarts=6 "));
    CHECK(access(socket_path, F_OK) != 0);
    unlink(server.log);
}

/* ------------------------------------------------------------------- load */

static struct load {
    atomic_bool is_over;
    atomic_int n_right, n_refused_calls, n_cut, n_no_connection;
    const struct http_request *call;
} load;

/* A client with a new connection for each call, or with one for all. */
static void *call_on(void *is_new)
{
    int fd = -1;
    while (!atomic_load(&load.is_over)) {
        struct http_answer answer = {0};
        if (fd < 0)
            fd = client_connect(server.port);
        if (fd < 0) {
            atomic_fetch_add(&load.n_no_connection, 1);
            pause_seconds(0.001);
            continue;
        }
        bool is_answered = client_exchange(fd, load.call, NULL, 0, &answer);
        atomic_fetch_add(!is_answered         ? &load.n_cut
                         : answer.code == 200 ? &load.n_right
                                              : &load.n_refused_calls,
                         1);
        if (is_new || !is_answered || answer.closes) {
            close(fd);
            fd = -1;
        }
    }
    if (fd >= 0)
        close(fd);
    return NULL;
}

/* Who connects is let in or waits; one request a client may be cut, at the
 * moment of the exec. */
TEST(clients_who_come_meanwhile_wait)
{
    enum { N_CLIENTS = 8 };
    pthread_t client[N_CLIENTS];
    size_t bytes;
    unsigned char *body = ones(2, 8, &bytes);
    struct http_request call =
        request_make("POST", "/v1/rmsnorm?eps=0", "", body, bytes);
    recover_start(&server, "launch 500 sticky", NULL);
    load.call = &call;
    for (int i = 0; i < N_CLIENTS; i++)
        CHECK_INT(
            pthread_create(&client[i], NULL, call_on, i % 2 ? NULL : &load), 0);
    for (int i = 0; i < 2000 && !server_log_says(&server, "event=restarted");
         i++)
        pause_seconds(0.005);
    int n_before = atomic_load(&load.n_right);
    for (int i = 0; i < 6000 && atomic_load(&load.n_right) < n_before + 500;
         i++)
        pause_seconds(0.005);
    atomic_store(&load.is_over, true);
    for (int i = 0; i < N_CLIENTS; i++)
        pthread_join(client[i], NULL);
    printf("%d clients over a restart: %d right, %d answered 5xx, %d cut, %d "
           "not connected\n",
           N_CLIENTS, load.n_right, load.n_refused_calls, load.n_cut,
           load.n_no_connection);
    CHECK(load.n_right >= n_before + 500);
    CHECK_INT(load.n_no_connection, 0);
    CHECK(load.n_cut <= N_CLIENTS);
    CHECK(server_stop(&server));
    request_free(&call);
}

/* ---------------------------------------------------------- what is handed */

TEST(a_handover_that_is_none_is_a_warning)
{
    static const char *const handed[] = {"x", "0", "999", "-1"};
    for (size_t i = 0; i < sizeof handed / sizeof *handed; i++) {
        setenv("ROPED_HANDOVER", handed[i], 1);
        server_start(&server, NULL);
        unsetenv("ROPED_HANDOVER");
        CHECK(server_log_says(&server, "level=warn event=handover line=1"));
        CHECK(call_ones(&server, 2, 8));
        CHECK(server_stop(&server));
    }
}

int main(void)
{
    live = request_make("GET", "/v2/health/live", "", NULL, 0);
    CHECK(mkdtemp(folder) != NULL);
    snprintf(socket_path, sizeof socket_path, "%s/roped.sock", folder);
    snprintf(place, sizeof place, "unix:%s", socket_path);
    check_run();
    rmdir(folder);
    return check_done();
}
