/*
 * test_descriptors.c - standard descriptors that are closed or full, and files
 * that are none or never end, at start and at SIGHUP.
 */
#include "check.h"
#include "http/process.h"
#include "load/certificates.h"

#include <sys/stat.h>

/* ---------------------------------------------------- standard descriptors */

static void close_standard(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        close(fd);
}

/* What a descriptor of the daemon is open on. */
static const char *link_of(int fd)
{
    static char target[256];
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)server.pid, fd);
    ssize_t n = readlink(path, target, sizeof target - 1);
    target[n > 0 ? n : 0] = '\0';
    return target;
}

TEST(closed_descriptors_are_no_sockets)
{
    start_unheard(close_standard);
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        CHECK_TEXT(link_of(fd), "/dev/null");
    for (int i = 0; i < 100; i++)
        CHECK(call_ones(&server, 4, 8));
    CHECK(server_stop(&server));
}

static const char *output; /* a file, or NULL: standard output is closed */

static void redirect_output(void)
{
    close(STDOUT_FILENO);
    if (output && open(output, O_WRONLY) != STDOUT_FILENO)
        _exit(126);
}

TEST(an_answer_that_cannot_be_written_is_a_failure)
{
    static const char *const names[] = {"--help", "--version", "--check-config",
                                        "--sample-config"};
    char text[4096];
    for (int i = 0; i < 8; i++) {
        const char *const flags[] = {names[i % 4], NULL};
        int fd;
        output = i < 4 ? "/dev/full" : NULL;
        before_exec = redirect_output;
        pid_t pid = spawn(flags, &fd);
        before_exec = NULL;
        int code = read_to_end(pid, fd, text, sizeof text);
        const char *why =
            output ? "No space left on device" : "Bad file descriptor";
        if (code != EXIT_FAILURE ||
            !strstr(text, "roped: cannot write standard output: ") ||
            !strstr(text, why))
            CHECK_FAIL("%s into %s ended with %d and '%s'", flags[0],
                       output ? output : "nothing", code, text);
    }
}

/* ------------------------------------------------------------------- files */

static char folder[32];

/* Files that are none; each is made under its name in the folder. */
static const struct bad_file {
    const char *name, *target, *why;
} bad_files[] = {{"zero", "/dev/zero", "it goes on after 4194304 bytes"},
                 {"sparse", NULL, "it goes on after 4194304 bytes"},
                 {"folder", "/", "Is a directory"},
                 {"gone", "/nowhere/none", "No such file or directory"},
                 {"fifo", NULL, "it has not ended within 5 s"}};
enum { N_BAD_FILES = sizeof bad_files / sizeof *bad_files };

static const char *in_folder(const char *name)
{
    static char paths[8][64];
    static int n;
    char *path = paths[n++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static void make_bad_files(void)
{
    snprintf(folder, sizeof folder, "/tmp/roped_files_XXXXXX");
    CHECK(mkdtemp(folder) != NULL);
    for (int i = 0; i < N_BAD_FILES; i++)
        if (bad_files[i].target)
            CHECK_INT(
                symlink(bad_files[i].target, in_folder(bad_files[i].name)), 0);
    CHECK_INT(mkfifo(in_folder("fifo"), 0600), 0);
    int fd = open(in_folder("sparse"), O_WRONLY | O_CREAT, 0600);
    CHECK_INT(ftruncate(fd, (off_t)1 << 40), 0);
    close(fd);
}

static void remove_bad_files(void)
{
    for (int i = 0; i < N_BAD_FILES; i++)
        unlink(in_folder(bad_files[i].name));
    rmdir(folder);
}

/* Each setting of a file beside those that it needs. */
static const struct file_key {
    const char *key, *said;
    bool is_pair; /* the certificate's pair is given, but for this one */
} file_keys[] = {{"--config", "configuration file", false},
                 {"--bearer_token_file", "bearer_token_file", false},
                 {"--tls_cert_file", "tls_cert_file", true},
                 {"--tls_key_file", "tls_key_file", true},
                 {"--tls_client_ca_file", "tls_client_ca_file", true}};
enum { N_FILE_KEYS = sizeof file_keys / sizeof *file_keys };

static struct certificates certificates;

static pid_t start_with(const struct file_key *key, const char *path, int *said)
{
    char cert[64], secret[64];
    snprintf(cert, sizeof cert, "%s/server.pem", certificates.folder);
    snprintf(secret, sizeof secret, "%s/server.key", certificates.folder);
    bool is_cert = strcmp(key->said, "tls_cert_file") == 0;
    bool is_secret = strcmp(key->said, "tls_key_file") == 0;
    const char *flags[] = {
        "--listen",
        "127.0.0.1:0",
        "--backend",
        "cpu",
        "--pool_bytes",
        "1m",
        key->key,
        path,
        key->is_pair ? is_cert ? "--tls_key_file" : "--tls_cert_file" : NULL,
        is_cert ? secret : cert,
        is_cert || is_secret ? NULL : "--tls_key_file",
        secret,
        NULL};
    return spawn(flags, said);
}

/* Every key with this file at once: they wait together. */
static void expect_refused_start(const struct bad_file *bad)
{
    char text[4096], part[192];
    int said[N_FILE_KEYS];
    pid_t pid[N_FILE_KEYS];
    double since = now_seconds();
    for (int i = 0; i < N_FILE_KEYS; i++)
        pid[i] = start_with(&file_keys[i], in_folder(bad->name), &said[i]);
    for (int i = 0; i < N_FILE_KEYS; i++) {
        int code = read_to_end(pid[i], said[i], text, sizeof text);
        snprintf(part, sizeof part, "cannot read %s '%s': %s",
                 file_keys[i].said, in_folder(bad->name), bad->why);
        if (code != (i == 0 ? 2 : EXIT_FAILURE) || !strstr(text, part))
            CHECK_FAIL("%s %s: ended with %d, and not '%s', but '%s'",
                       file_keys[i].key, bad->name, code, part, text);
    }
    CHECK(now_seconds() - since < 20);
}

TEST(a_file_that_is_none_ends_a_start_with_a_reason)
{
    if (!certificates_make(&certificates))
        return;
    make_bad_files();
    for (int i = 0; i < N_BAD_FILES; i++)
        expect_refused_start(&bad_files[i]);
    remove_bad_files();
    certificates_remove(&certificates);
}

static void write_token(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    CHECK_INT(write(fd, "sesame\n", 7), 7);
    close(fd);
}

static void expect_code_with_token(int code)
{
    static const char *const headers[] = {"Authorization: Bearer sesame", NULL};
    expect_code(ask(&server, "GET", "/v1", NULL, 0, headers), code, "",
                "a token");
}

TEST(a_reload_of_a_file_that_is_none_keeps_what_was)
{
    char token[64];
    make_bad_files();
    snprintf(token, sizeof token, "%s", in_folder("token"));
    write_token(token);
    start("--bearer_token_file", token);
    for (int i = 0; i < N_BAD_FILES; i++) {
        CHECK_INT(unlink(token), 0);
        CHECK_INT(symlink(in_folder(bad_files[i].name), token), 0);
        kill(server.pid, SIGHUP);
        await_line("event=signal name=HUP ");
        expect_code_with_token(200); /* meanwhile */
        CHECK_CONTAINS(await_line("event=reload"), bad_files[i].why);
        expect_code_with_token(200);
    }
    unlink(token);
    write_token(token);
    kill(server.pid, SIGHUP);
    CHECK_CONTAINS(await_line("event=reload"), "files are read again");
    unlink(token);
    stop();
    remove_bad_files();
}

int main(void)
{
    alarm(STUCK_SECONDS);
    check_run();
    return check_done();
}
