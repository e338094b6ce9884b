/*
 * command.h - ropectl in a folder of its own, against a daemon or against a
 * peer that answers what a test wants. A header, because checks count where
 * they are compiled (check.h).
 */
#ifndef ROPED_TESTS_HTTP_COMMAND_H
#define ROPED_TESTS_HTTP_COMMAND_H

#include "check.h"
#include "http/harness.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <unistd.h>

static struct server command_server;
static char command_folder[] = "/tmp/roped_test_XXXXXX";

/* Makes the folder and starts the daemon; ends both. */
static inline void command_start(void)
{
    if (!mkdtemp(command_folder)) {
        perror(command_folder);
        exit(EXIT_FAILURE);
    }
    server_start(&command_server, NULL);
}

static inline void command_end(void)
{
    char command[64];
    if (!server_stop(&command_server))
        check_n_failed++;
    snprintf(command, sizeof command, "rm -r %s", command_folder);
    CHECK(system(command) == 0);
}

/* Runs ropectl in the folder; output is what it wrote, standard error too. Its
 * exit code, or -1. */
static inline int command_run(const char *arguments, char *output, size_t size)
{
    char command[1024];
    snprintf(command, sizeof command,
             "cd %s && ROPED_URL=%s " ROPED_TEST_ROPECTL " %s 2>&1",
             command_folder, command_server.url, arguments);
    return run_command(command, output, size);
}

/* Fails the test unless it ends with code and output has part. */
static inline void command_expect(const char *arguments, int code,
                                  const char *part)
{
    char output[16384];
    int found = command_run(arguments, output, sizeof output);
    if (found != code || !strstr(output, part))
        CHECK_FAIL("ropectl %s: ended with %d and '%s', expected %d and '%s'",
                   arguments, found, output, code, part);
}

/* A file in the folder. */
static inline void command_file(const char *name, const void *data,
                                size_t bytes)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", command_folder, name);
    FILE *file = fopen(path, "wb");
    CHECK(file && fwrite(data, 1, bytes, file) == bytes);
    if (file)
        fclose(file);
}

struct command_peer {
    int listener;
    const void *answer;
    size_t bytes;
};

/* Takes one request, as long as nothing more comes at once. */
static inline void *command_answer_one(void *context)
{
    const struct command_peer *peer = context;
    char request[1 << 16];
    int socket = accept(peer->listener, NULL, NULL);
    if (peer->answer && read(socket, request, sizeof request) > 0)
        CHECK(write(socket, peer->answer, peer->bytes) == (ssize_t)peer->bytes);
    while (!peer->answer && read(socket, request, sizeof request) > 0)
        continue;
    close(socket);
    return NULL;
}

/* The same against a peer that takes one request and gives these bytes for an
 * answer; answer NULL: none, until ropectl gives up. */
static inline void command_expect_of_bytes(const void *answer, size_t bytes,
                                           const char *arguments, int code,
                                           const char *part)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    struct command_peer peer = {socket(AF_INET, SOCK_STREAM, 0), answer, bytes};
    char command[512];
    pthread_t thread;
    CHECK(bind(peer.listener, (struct sockaddr *)&address, length) == 0 &&
          listen(peer.listener, 1) == 0 &&
          getsockname(peer.listener, (struct sockaddr *)&address, &length) ==
              0);
    CHECK(pthread_create(&thread, NULL, command_answer_one, &peer) == 0);
    snprintf(command, sizeof command, "--server http://127.0.0.1:%d %s",
             ntohs(address.sin_port), arguments);
    command_expect(command, code, part);
    pthread_join(thread, NULL);
    close(peer.listener);
}

static inline void command_expect_of_peer(const char *answer,
                                          const char *arguments, int code,
                                          const char *part)
{
    command_expect_of_bytes(answer, answer ? strlen(answer) : 0, arguments,
                            code, part);
}

#endif
