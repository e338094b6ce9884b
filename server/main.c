/*
 * main.c - roped: reads the settings, opens a backend, serves, drains, and
 * where a device is lost starts anew. The one file that names backends.
 */
#include "address.h"
#include "config.h"
#include "exec/executor.h"
#include "handover.h"
#include "healthcheck.h"
#include "http/daemon.h"
#include "http/greeting.h"
#include "http/program_folder.h"
#include "io.h"
#include "log.h"
#include "metrics.h"
#include "restart.h"

#include <errno.h>
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

_Static_assert((int)CONFIG_MAX_DEVICES <= (int)TENANT_DEVICES,
               "a tenant may have regions on every device");

/* Where the daemon runs: a backend and its devices. */
struct target {
    const struct roped_backend_api *api;
    int device[CONFIG_MAX_DEVICES];
    int n_devices;
};

/* Are all that were asked for there? None asked for: takes all. */
static enum roped_status use_devices(struct target *target, int n_found,
                                     struct roped_error *err)
{
    for (int i = 0; i < target->n_devices; i++)
        if (target->device[i] >= n_found)
            return roped_fail(err, ROPED_INVALID,
                              "device %d does not exist: backend %s has %d",
                              target->device[i], target->api->name, n_found);
    if (target->n_devices > 0)
        return ROPED_OK;
    while (target->n_devices < n_found &&
           target->n_devices < CONFIG_MAX_DEVICES) {
        target->device[target->n_devices] = target->n_devices;
        target->n_devices++;
    }
    return ROPED_OK;
}

static const struct backend {
    const char *name, *title;
    const struct roped_backend_api *api; /* NULL: not in this build */
} backends[] = {
#define BACKEND(name, title)    {#name, title, &roped_backend_##name},
#define NO_BACKEND(name, title) {#name, title, NULL},
#include <roped/backends.def>
};
enum { N_BACKENDS = sizeof backends / sizeof *backends };

static int count_devices(const struct backend *backend, struct roped_error *why)
{
    if (backend->api)
        return backend->api->device_count(why);
    snprintf(why->text, sizeof why->text, "built without the %s backend",
             backend->title);
    return 0;
}

/* 'auto' has come to the host, past every GPU. */
static void fall_back(struct target *target, const char *why)
{
    char quoted[2 * ROPED_ERROR_BYTES];
    log_line(LOG_INFO, "backend", "name=%s reason=\"no usable GPU: %s\"",
             target->api->name, log_quote(why, quoted, sizeof quoted));
    target->n_devices = 0; /* the list was one of GPUs */
}

/* A process that takes another's place goes on with its backend: 'auto' would
 * take the CPU where the GPU needs another moment. */
static enum roped_status choose_backend(const struct config *config,
                                        const struct handover *before,
                                        struct target *target,
                                        struct roped_error *err)
{
    struct roped_error why = {.text = ""};
    const char *wanted = before->backend[0] ? before->backend : config->backend;
    bool is_auto = strcmp(wanted, "auto") == 0;
    enum roped_status status =
        config_devices(config, target->device, &target->n_devices, err);
    if (status)
        return status;
    for (int i = 0; i < N_BACKENDS; i++) {
        const struct backend *backend = &backends[i];
        if (!is_auto && strcmp(wanted, backend->name) != 0)
            continue;
        int n_found = count_devices(backend, &why);
        if (n_found == 0)
            continue;
        target->api = backend->api;
        if (is_auto && target->api->is_host)
            fall_back(target, why.text);
        return use_devices(target, n_found, err);
    }
    return roped_fail(err, ROPED_DEVICE, "no usable GPU: %s", why.text);
}

static enum roped_status open_executor(const struct config *config,
                                       const struct handover *before,
                                       struct executor **out,
                                       struct roped_error *err)
{
    struct target target;
    enum roped_status status = choose_backend(config, before, &target, err);
    if (status)
        return status;
    struct roped_backend_options backend = {.n_threads =
                                                (int)config->cpu_threads};
    struct exec_options options = {
        .devices = target.device,
        .n_devices = target.n_devices,
        .n_lanes = config_lanes(config),
        .queue_depth = (int)config->queue_depth,
        .pool_bytes = config->pool_bytes,
        .host_bytes = config->host_bytes,
        .keep_ns = (uint64_t)(config->keep_seconds * 1e9),
        .device_bytes = config->device_bytes,
        .table_budget_bytes = config->table_budget_bytes,
        .table_bytes = config->table_bytes,
        .region_bytes = config->region_memory,
        .inline_bytes = config->inline_bytes,
        .mapped_bytes = config->mapped_bytes,
        .stage_bytes = config->stage_bytes,
        .stage_chunk_bytes = config->stage_chunk_bytes};
    return exec_open(target.api, &backend, &options, out, err);
}

/* ----------------------------------------------------------------- notify */

enum { NOTIFY_SECONDS = 1, MOST_TRIES = 100 /* of what is interrupted */ };

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
    struct timeval limit = {NOTIFY_SECONDS, 0}; /* for one that is stuck */
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    ssize_t n = -1;
    for (int i = 0; i < MOST_TRIES && n < 0 && (i == 0 || errno == EINTR); i++)
        n = sendto(fd, state, strlen(state), MSG_NOSIGNAL,
                   (struct sockaddr *)&address, bytes);
    if (n < 0)
        log_line(LOG_WARN, "notify", "error=\"%s\"", strerror(errno));
    close(fd);
}

/* Half the time in which a service manager wants a sign of life, as systemd's
 * WatchdogSec says; 0: none. */
static double watchdog_seconds(void)
{
    const char *limit_us = getenv("WATCHDOG_USEC");
    const char *pid = getenv("WATCHDOG_PID");
    bool is_for_us = limit_us && (!pid || strtol(pid, NULL, 10) == getpid());
    return is_for_us ? strtod(limit_us, NULL) * 0.5e-6 : 0;
}

static enum roped_status write_port(const char *path, uint16_t port,
                                    struct roped_error *err)
{
    char text[16];
    if (!path[0] || port == 0)
        return ROPED_OK;
    int bytes = snprintf(text, sizeof text, "%u\n", port);
    return io_write_file("port_file", path, text, (size_t)bytes, err);
}

/* ------------------------------------------------------------------ serve */

enum { ANSWER_SECONDS = 1 }; /* for the answers of calls that were cut */

/* What the daemon waits for, so that none of them kills it. */
static const struct handled_signal {
    const char *name, *message;
    int number;
} handled_signals[] = {
    {"TERM", "stopping", SIGTERM}, {"INT", "stopping", SIGINT},
    {"QUIT", "stopping", SIGQUIT}, {"HUP", "reloading", SIGHUP},
    {"USR1", "ignored", SIGUSR1},  {"USR2", "ignored", SIGUSR2},
    {"ALRM", "ignored", SIGALRM}};
enum { N_HANDLED_SIGNALS = sizeof handled_signals / sizeof *handled_signals };

/* Before any thread starts, so that all of them inherit the mask. What a write
 * would raise is an error of that write: where the log's reader is gone, and
 * where its file is as long as a limit lets it be. */
static void block_signals(sigset_t *signals)
{
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    sigemptyset(signals);
    for (int i = 0; i < N_HANDLED_SIGNALS; i++)
        sigaddset(signals, handled_signals[i].number);
    pthread_sigmask(SIG_BLOCK, signals, NULL);
}

static void reload(struct daemon *daemon)
{
    struct roped_error err;
    if (daemon_reload(daemon, &err))
        (void)fail("reload", &err); /* and goes on */
    else
        log_line(LOG_INFO, "reload", "message=\"files are read again\"");
}

/* Notes it and does what it asks for; true where that is to stop. */
static bool take_signal(struct daemon *daemon, int number)
{
    int i = 0;
    while (handled_signals[i].number != number)
        i++;
    log_line(LOG_INFO, "signal", "name=%s message=\"%s\"",
             handled_signals[i].name, handled_signals[i].message);
    if (number == SIGHUP)
        reload(daemon);
    return number == SIGTERM || number == SIGINT || number == SIGQUIT;
}

/* Waits for a signal to stop for at most seconds; false: none came. */
static bool wait_for_stop(struct daemon *daemon, const sigset_t *signals,
                          double seconds)
{
    uint64_t until_ns = after_ns(seconds);
    for (;;) {
        uint64_t now_ns = after_ns(0);
        uint64_t left_ns = until_ns > now_ns ? until_ns - now_ns : 0;
        struct timespec limit = {(time_t)(left_ns / 1000000000u),
                                 (long)(left_ns % 1000000000u)};
        int number = sigtimedwait(signals, NULL, &limit);
        if (number > 0 && take_signal(daemon, number))
            return true;
        if (number < 0 && errno == EAGAIN)
            return false;
    }
}

struct process {
    struct models models;
    struct handover before; /* what this process was handed, if anything */
    char **arguments;
    struct executor *exec;
    struct metrics *metrics;
    struct daemon *daemon;
    uint16_t port;
};

static enum roped_status open_parts(const struct config *config,
                                    struct process *process,
                                    struct roped_error *err)
{
    enum roped_status status = roped_op_check_table(err);
    models_init(&process->models, config->demo_models);
    if (!status)
        status = open_executor(config, &process->before, &process->exec, err);
    if (!status)
        status = metrics_new(&process->models, &process->metrics, err);
    struct daemon_options options = {config,           process->exec,
                                     process->metrics, &process->models,
                                     ROPED_VERSION,    &process->before};
    if (!status)
        restart_note_lost(process->exec, &process->before);
    if (!status)
        status = daemon_start(&options, &process->daemon, &process->port, err);
    if (!status)
        status = write_port(config->port_file, process->port, err);
    return status;
}

/* Sockets that were handed over for places that the settings do not name any
 * more are closed. */
static enum roped_status open_all(const struct config *config,
                                  struct process *process,
                                  struct roped_error *err)
{
    enum roped_status status = open_parts(config, process, err);
    handover_close_sockets(&process->before);
    return status;
}

enum { PAUSE_MS = 10 };

/* Closes nothing of a device that is lost, which may hang, nor connections that
 * still wait for their answers, whose end the library takes for an error of
 * ours: false, and the process is to be ended as it is. */
static bool close_all(struct process *process)
{
    uint64_t until_ns = after_ns(ANSWER_SECONDS);
    if (process->exec) /* nothing may run when the connections go */
        exec_drain(process->exec, after_ns(0));
    while (process->daemon && daemon_is_busy(process->daemon)) {
        if (after_ns(0) >= until_ns)
            return false;
        usleep(PAUSE_MS * 1000);
    }
    daemon_stop(process->daemon);
    if (process->exec && !exec_is_healthy(process->exec))
        return false;
    metrics_free(process->metrics);
    exec_close(process->exec);
    handover_free(&process->before);
    return true;
}

/* Until no connection is left, or those that are have been idle for their time
 * or took too much of it, or until a signal says that it is enough. */
static void wait_for_connections(struct daemon *daemon,
                                 const struct config *config,
                                 const sigset_t *signals)
{
    uint64_t idle_ns = after_ns(config->drain_idle_seconds);
    uint64_t until_ns =
        after_ns(config->drain_idle_seconds + config->drain_timeout_seconds);
    while (daemon_connections(daemon) > 0 && after_ns(0) < until_ns) {
        if (after_ns(0) >= idle_ns && !daemon_is_busy(daemon))
            return;
        if (wait_for_stop(daemon, signals, PAUSE_MS * 1e-3))
            return;
    }
}

/* SIGTERM to the last answer: not ready, but serving, while balancers notice;
 * then no new connections, while those that are open are served on and each is
 * closed with its next answer. A second signal cuts it short. */
static void drain(struct process *process, const struct config *config,
                  const sigset_t *signals)
{
    notify("STOPPING=1");
    daemon_set_draining(process->daemon);
    bool is_hurried =
        config->drain_delay_seconds > 0 &&
        wait_for_stop(process->daemon, signals, config->drain_delay_seconds);
    daemon_close_listener(process->daemon);
    log_line(LOG_INFO, "draining", "connections=%d hurried=%s",
             daemon_connections(process->daemon),
             is_hurried ? "true" : "false");
    if (!is_hurried)
        wait_for_connections(process->daemon, config, signals);
}

static void log_devices(const struct process *process)
{
    struct roped_device_info device;
    struct exec_device_usage usage;
    char name[2 * sizeof device.name], detail[2 * sizeof device.detail];
    for (int i = 0; i < exec_n_devices(process->exec); i++) {
        exec_device_info(process->exec, i, &device);
        exec_device_usage(process->exec, i, &usage);
        log_line(LOG_INFO, "device",
                 "number=%d index=%d name=\"%s\" detail=\"%s\" uuid=\"%s\" "
                 "lanes=%d",
                 i, usage.index, log_quote(device.name, name, sizeof name),
                 log_quote(device.detail, detail, sizeof detail), device.uuid,
                 usage.n_lanes);
    }
}

static void log_listening(const struct config *config,
                          const struct process *process)
{
    struct roped_device_info device;
    char name[2 * sizeof device.name], detail[2 * sizeof device.detail];
    exec_device_info(process->exec, 0, &device);
    log_line(LOG_INFO, "listening",
             "address=%s port=%u backend=%s device=\"%s\" detail=\"%s\" "
             "devices=%d lanes=%d pool_bytes=%llu version=%s",
             config->listen, process->port, exec_backend(process->exec)->name,
             log_quote(device.name, name, sizeof name),
             log_quote(device.detail, detail, sizeof detail),
             exec_n_devices(process->exec), config_lanes(config),
             (unsigned long long)config->pool_bytes, ROPED_VERSION);
}

/* The first place of 'listen' that others can reach; false: there is none. */
static bool find_open(const struct config *config, char item[CONFIG_TEXT_BYTES])
{
    struct sockaddr_storage address;
    socklen_t bytes;
    struct roped_error err;
    const char *list = config->listen;
    while (config_next(&list, item))
        if (!address_parse("listen", item, &address, &bytes, &err) &&
            !address_is_loopback((struct sockaddr *)&address))
            return true;
    return false;
}

/* Said before the sockets are there: from then on anybody may use them. */
static void warn_if_open(const struct config *config)
{
    char item[CONFIG_TEXT_BYTES], quoted[2 * CONFIG_TEXT_BYTES];
    bool knows_clients =
        config->bearer_token_file[0] || config->tls_client_ca_file[0];
    if ((knows_clients && config->tls_cert_file[0]) || !find_open(config, item))
        return;
    log_quote(item, quoted, sizeof quoted);
    if (!knows_clients)
        log_line(LOG_WARN, "open",
                 "message=\"anyone who reaches %s may use this daemon: set "
                 "bearer_token_file or tls_client_ca_file, or listen on "
                 "127.0.0.1\"",
                 quoted);
    else
        log_line(LOG_WARN, "open",
                 "message=\"anyone between a client and %s reads its token and "
                 "tensors: set tls_cert_file, or listen on 127.0.0.1\"",
                 quoted);
}

/* Until a signal asks to stop; signs of life come from here, as long as every
 * device says how it is. Where a device is lost the process is another
 * one from then on, or ends. */
static void serve_on(struct process *process, const sigset_t *signals)
{
    static const double watch_seconds = 0.2;
    const double sign_seconds = watchdog_seconds();
    uint64_t sign_ns = after_ns(0);
    const struct restart restart = {process->exec, process->daemon,
                                    &process->before, process->arguments};
    struct roped_error why;
    while (!wait_for_stop(process->daemon, signals, watch_seconds)) {
        int device = exec_lost_device(process->exec, &why);
        if (sign_seconds > 0 && after_ns(0) >= sign_ns) {
            notify("WATCHDOG=1");
            sign_ns = after_ns(sign_seconds);
        }
        if (device < 0)
            continue;
        restart_process(&restart, device, &why);
        daemon_close_listener(process->daemon);
        _exit(EXIT_FAILURE);
    }
}

static int serve(const struct config *config, const sigset_t *signals,
                 char **arguments)
{
    struct roped_error err = {.text = ""};
    struct process process = {.arguments = arguments};
    handover_read(&process.before);
    warn_if_open(config);
    if (open_all(config, &process, &err)) {
        (void)close_all(&process);
        return fail("start", &err);
    }
    log_devices(&process);
    log_listening(config, &process);
    greeting_write(config, process.port, ROPED_VERSION);
    notify("READY=1");
    serve_on(&process, signals);
    drain(&process, config, signals);
    bool is_closed = close_all(&process);
    log_line(LOG_INFO, "stopped", "version=%s", ROPED_VERSION);
    if (!is_closed)
        _exit(EXIT_SUCCESS);
    return EXIT_SUCCESS;
}

/* What was asked for is written; an answer that is lost is a failure. */
static int end_output(void)
{
    if (io_flush_output())
        return EXIT_SUCCESS;
    fprintf(stderr, "roped: cannot write standard output: %s\n",
            strerror(errno));
    return EXIT_FAILURE;
}

static int run(const struct config *config, char **arguments)
{
    sigset_t signals;
    log_set_level(log_level_from_text(config->log_level));
    log_set_json(strcmp(config->log_format, "json") == 0);
    block_signals(&signals);
    return serve(config, &signals, arguments);
}

int main(int argc, char **argv)
{
    static struct config config;
    struct roped_error err = {.text = ""};
    enum config_action action;
    if (!io_open_standard()) {
        fprintf(stderr, "roped: cannot open /dev/null: %s\n", strerror(errno));
        return EXIT_FAILURE;
    }
    if (config_load(&config, argc, argv, &action, &err)) {
        fprintf(stderr, "roped: %s\n", err.text);
        return 2;
    }
    switch (action) {
    case CONFIG_HELP:
        config_write_help(stdout);
        return end_output();
    case CONFIG_VERSION:
        puts("roped " ROPED_VERSION);
        return end_output();
    case CONFIG_CHECK:
        if (program_folder_check(config.programs, &err)) {
            fprintf(stderr, "roped: %s\n", err.text);
            return 2;
        }
        config_write(&config, stdout);
        return end_output();
    case CONFIG_SAMPLE:
        config_write_sample(stdout);
        return end_output();
    case CONFIG_HEALTHCHECK:
        return healthcheck(&config);
    case CONFIG_RUN:
        break;
    }
    return run(&config, argv);
}
