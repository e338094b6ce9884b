/*
 * main.c - roped: reads the settings, opens a backend, serves, drains. The one
 * file that names backends.
 */
#include "config.h"
#include "exec/executor.h"
#include "http/daemon.h"
#include "log.h"
#include "metrics.h"

#include <errno.h>
#include <netdb.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static uint64_t after_ns(double seconds)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec +
           (uint64_t)(seconds * 1e9);
}

static int fail(const char *event, const struct roped_error *err)
{
    char quoted[2 * ROPED_ERROR_BYTES];
    log_line(LOG_ERROR, event, "error=\"%s\"",
             log_quote(err->text, quoted, sizeof quoted));
    return EXIT_FAILURE;
}

/* ---------------------------------------------------------------- backend */

static enum roped_status choose_backend(const struct config *config,
                                        const struct roped_backend_api **out,
                                        struct roped_error *err)
{
    struct roped_error why = {.text = "built without the CUDA backend"};
    int n_devices = 0;
    *out = &roped_backend_cpu;
    if (strcmp(config->backend, "cpu") == 0)
        return ROPED_OK;
#ifdef ROPED_HAS_CUDA
    n_devices = roped_backend_cuda.device_count(&why);
    if (n_devices > config->device) {
        *out = &roped_backend_cuda;
        return ROPED_OK;
    }
    if (n_devices > 0)
        roped_fail(&why, ROPED_INVALID, "device is %lld, but there are %d",
                   (long long)config->device, n_devices);
#endif
    if (strcmp(config->backend, "cuda") == 0 || n_devices > 0)
        return roped_fail(err, ROPED_DEVICE, "no usable GPU: %s", why.text);
    char quoted[2 * ROPED_ERROR_BYTES];
    log_line(LOG_INFO, "backend", "name=cpu reason=\"no usable GPU: %s\"",
             log_quote(why.text, quoted, sizeof quoted));
    return ROPED_OK;
}

static enum roped_status open_executor(const struct config *config,
                                       struct executor **out,
                                       struct roped_error *err)
{
    const struct roped_backend_api *api;
    struct roped_backend_options backend = {
        .device = (int)config->device, .n_threads = (int)config->cpu_threads};
    struct exec_options options = {.n_lanes = (int)config->lanes,
                                   .queue_depth = (int)config->queue_depth,
                                   .pool_bytes = config->pool_bytes,
                                   .host_bytes = config->host_bytes,
                                   .device_bytes = config->device_bytes,
                                   .table_budget_bytes =
                                       config->table_budget_bytes,
                                   .table_bytes = config->table_bytes,
                                   .region_bytes = config->region_memory,
                                   .inline_bytes = config->inline_bytes,
                                   .mapped_bytes = config->mapped_bytes};
    enum roped_status status = choose_backend(config, &api, err);
    if (!status)
        status = exec_open(api, &backend, &options, out, err);
    return status;
}

/* ----------------------------------------------------------------- notify */

/* Tells the service manager, if there is one: one datagram, no library. */
static void notify(const char *state)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = path ? strlen(path) : 0;
    if (length == 0 || length >= sizeof address.sun_path)
        return;
    memcpy(address.sun_path, path, length);
    if (address.sun_path[0] == '@')
        address.sun_path[0] = '\0'; /* abstract */
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    socklen_t bytes =
        (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
    if (sendto(fd, state, strlen(state), MSG_NOSIGNAL,
               (struct sockaddr *)&address, bytes) < 0)
        log_line(LOG_WARN, "notify", "error=\"%s\"", strerror(errno));
    close(fd);
}

static enum roped_status write_port(const char *path, uint16_t port,
                                    struct roped_error *err)
{
    char temporary[CONFIG_TEXT_BYTES + 8];
    if (!path[0])
        return ROPED_OK;
    snprintf(temporary, sizeof temporary, "%s.new", path);
    FILE *file = fopen(temporary, "we");
    bool is_written = file && fprintf(file, "%u\n", port) > 0;
    is_written = file && fclose(file) == 0 && is_written;
    /* renamed whole: a reader never sees half of it */
    if (!is_written || rename(temporary, path) != 0)
        return roped_fail(err, ROPED_INVALID, "cannot write port_file '%s': %s",
                          path, strerror(errno));
    return ROPED_OK;
}

/* ------------------------------------------------------------------ serve */

enum { ANSWER_SECONDS = 1 }; /* for the answers of calls that were cut */

/* Waits for SIGTERM or SIGINT for at most seconds (below 0: for ever);
 * returns the signal, or 0. */
static int wait_for_signal(const sigset_t *signals, double seconds)
{
    struct timespec limit = {(time_t)seconds,
                             (long)((seconds - (double)(time_t)seconds) * 1e9)};
    for (;;) {
        int signal_number = seconds < 0 ? sigwaitinfo(signals, NULL)
                                        : sigtimedwait(signals, NULL, &limit);
        if (signal_number > 0)
            return signal_number;
        if (errno == EAGAIN)
            return 0;
    }
}

/* Until every request has its answer, for at most so long, or until a signal
 * (signals NULL: none) says that it is enough. */
static void wait_for_requests(struct daemon *daemon, const sigset_t *signals,
                              double seconds)
{
    enum { PAUSE_MS = 10 };
    uint64_t until_ns = after_ns(seconds);
    while (daemon_requests(daemon) > 0 && after_ns(0) < until_ns) {
        if (!signals)
            usleep(PAUSE_MS * 1000);
        else if (wait_for_signal(signals, PAUSE_MS * 1e-3))
            return;
    }
}

struct service {
    struct models models;
    struct executor *exec;
    struct metrics *metrics;
    struct daemon *daemon;
    uint16_t port;
};

static enum roped_status open_service(const struct config *config,
                                      struct service *service,
                                      struct roped_error *err)
{
    enum roped_status status = roped_op_check_table(err);
    models_init(&service->models, config->demo_models);
    if (!status)
        status = open_executor(config, &service->exec, err);
    if (!status)
        status = metrics_new(&service->models, &service->metrics, err);
    struct daemon_options options = {config, service->exec, service->metrics,
                                     &service->models, ROPED_VERSION};
    if (!status)
        status = daemon_start(&options, &service->daemon, &service->port, err);
    if (!status)
        status = write_port(config->port_file, service->port, err);
    return status;
}

static void close_service(struct service *service)
{
    if (service->exec) /* nothing may run when the connections go */
        exec_drain(service->exec, after_ns(0));
    if (service->daemon)
        wait_for_requests(service->daemon, NULL, ANSWER_SECONDS);
    daemon_stop(service->daemon);
    metrics_free(service->metrics);
    exec_close(service->exec);
}

/* SIGTERM to the last answer: not ready, but serving, while balancers notice;
 * then no new work; then what is under way, each for its configured time. A
 * second signal cuts it short. */
static void drain(struct service *service, const struct config *config,
                  const sigset_t *signals)
{
    notify("STOPPING=1");
    daemon_set_draining(service->daemon);
    bool is_hurried = config->drain_delay_seconds > 0 &&
                      wait_for_signal(signals, config->drain_delay_seconds);
    log_line(LOG_INFO, "draining", "requests=%d hurried=%s",
             daemon_requests(service->daemon), is_hurried ? "true" : "false");
    daemon_quiesce(service->daemon);
    if (!is_hurried)
        wait_for_requests(service->daemon, signals,
                          config->drain_timeout_seconds);
}

static void log_listening(const struct config *config,
                          const struct service *service)
{
    struct roped_device_info device;
    char name[2 * sizeof device.name], detail[2 * sizeof device.detail];
    exec_device_info(service->exec, &device);
    log_line(LOG_INFO, "listening",
             "address=%s port=%u backend=%s device=\"%s\" detail=\"%s\" "
             "lanes=%lld pool_bytes=%llu version=%s",
             config->listen, service->port, exec_backend(service->exec)->name,
             log_quote(device.name, name, sizeof name),
             log_quote(device.detail, detail, sizeof detail),
             (long long)config->lanes, (unsigned long long)config->pool_bytes,
             ROPED_VERSION);
}

static int serve(const struct config *config, const sigset_t *signals)
{
    struct roped_error err = {.text = ""};
    struct service service = {0};
    if (open_service(config, &service, &err)) {
        close_service(&service);
        return fail("start", &err);
    }
    log_listening(config, &service);
    notify("READY=1");
    int signal_number = wait_for_signal(signals, -1);
    log_line(LOG_INFO, "signal", "number=%d", signal_number);
    drain(&service, config, signals);
    close_service(&service);
    log_line(LOG_INFO, "stopped", "version=%s", ROPED_VERSION);
    return EXIT_SUCCESS;
}

/* ------------------------------------------------------------ healthcheck */

static bool ask_ready(int fd, const char *host)
{
    char text[512];
    int length = snprintf(text, sizeof text,
                          "GET /v2/health/ready HTTP/1.1\r\nHost: %s\r\n"
                          "Connection: close\r\n\r\n",
                          host);
    if (send(fd, text, (size_t)length, MSG_NOSIGNAL) != length)
        return false;
    ssize_t n = recv(fd, text, sizeof text - 1, MSG_WAITALL);
    text[n > 0 ? n : 0] = '\0';
    return strncmp(text, "HTTP/1.1 200", 12) == 0;
}

/* Exit 0 where the daemon at the configured address is ready. */
static int healthcheck(const struct config *config)
{
    char host[CONFIG_TEXT_BYTES];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    struct timeval limit = {5, 0};
    snprintf(host, sizeof host, "%s", config->listen);
    char *colon = strrchr(host, ':');
    if (!colon)
        return EXIT_FAILURE;
    *colon = '\0';
    char *name = host;
    if (name[0] == '[') {
        name++;
        name[strcspn(name, "]")] = '\0';
    }
    bool is_any =
        !name[0] || strcmp(name, "0.0.0.0") == 0 || strcmp(name, "::") == 0;
    if (getaddrinfo(is_any ? "localhost" : name, colon + 1, &hints, &found))
        return EXIT_FAILURE;
    bool is_ready = false;
    for (struct addrinfo *a = found; a && !is_ready; a = a->ai_next) {
        int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, 0);
        if (fd < 0)
            continue;
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
        is_ready =
            connect(fd, a->ai_addr, a->ai_addrlen) == 0 && ask_ready(fd, name);
        close(fd);
    }
    freeaddrinfo(found);
    return is_ready ? EXIT_SUCCESS : EXIT_FAILURE;
}

int main(int argc, char **argv)
{
    static struct config config;
    struct roped_error err = {.text = ""};
    enum config_action action;
    sigset_t signals;
    if (config_load(&config, argc, argv, &action, &err)) {
        fprintf(stderr, "roped: %s\n", err.text);
        return 2;
    }
    switch (action) {
    case CONFIG_HELP:
        config_write_help(stdout);
        return EXIT_SUCCESS;
    case CONFIG_VERSION:
        puts("roped " ROPED_VERSION);
        return EXIT_SUCCESS;
    case CONFIG_CHECK:
        config_write(&config, stdout);
        return EXIT_SUCCESS;
    case CONFIG_SAMPLE:
        config_write_sample(stdout);
        return EXIT_SUCCESS;
    case CONFIG_HEALTHCHECK:
        return healthcheck(&config);
    case CONFIG_RUN:
        break;
    }
    log_set_level(log_level_from_text(config.log_level));
    signal(SIGPIPE, SIG_IGN);
    /* before any thread starts, so that all of them inherit the mask */
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    return serve(&config, &signals);
}
