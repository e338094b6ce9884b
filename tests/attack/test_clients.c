/*
 * test_clients.c - clients beside servers that lie: every command of ropectl
 * that asks a server, and a program on libroped_client, against each behaviour
 * of hostile.c. Whatever comes back, they end within their time limit and
 * within their memory limit, with a sentence that a terminal may show, and
 * write nothing but the file that was named.
 *
 * With --serve it is the server alone, for clients in other languages: prints
 * its port and then a line "NAME FAILS" for each behaviour, and ends with its
 * standard input.
 */
#include "attack/attack.h"
#include "attack/hostile.h"
#include "check.h"
#include "clock.h"
#include "http/service.h"
#include "roped_client.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const double timeout_seconds = 0.5,
                    slack_seconds = ATTACK_IS_SANITIZED ? 60 : 8;
enum {
    MAX_ANSWER_BYTES = 4 << 20,
    MAX_OUTPUT_BYTES = 5 * MAX_ANSWER_BYTES,
    MAX_RESIDENT_BYTES = 96 << 20
};
static const rlim_t most_memory = (rlim_t)1 << 30; /* so that none is hurt */

static char folder[] = "/tmp/roped_test_XXXXXX";
static int port;

/* ---------------------------------------------------------------- programs */

static const struct program {
    const char *arguments; /* of ropectl; NULL: hostile_client */
    unsigned fails;        /* of which answers it needs one */
    int n_requests;
    const char *output; /* the file that it may write, or NULL */
} programs[] = {
    {NULL, 0, 4, NULL},
    {"run rmsnorm in.safetensors -o 1.safetensors", HOSTILE_CALL, 1,
     "1.safetensors"},
    {"run rmsnorm in.safetensors -o 2.npz", HOSTILE_CALL, 1, "2.npz"},
    {"run rmsnorm in.safetensors -o y=3.npy --output json", HOSTILE_CALL, 1,
     "3.npy"},
    {"verify rmsnorm in.safetensors -o 4.safetensors", HOSTILE_CALL, 1,
     "4.safetensors"},
    {"verify rmsnorm --from.x r", HOSTILE_CALL, 2, NULL},
    {"verify rope q.safetensors --table t", HOSTILE_CALL, 2, NULL},
    {"bench rmsnorm h=4 --seconds 0.1 --connections 2", HOSTILE_CALL, 1, NULL},
    {"regions list", HOSTILE_DOCUMENT, 1, NULL},
    {"regions zeros r --bytes 4 --output json", HOSTILE_DOCUMENT, 1, NULL},
    {"regions get r 5.bin", HOSTILE_REGION, 1, "5.bin"},
    {"regions get r 6.npz", HOSTILE_REGION, 1, "6.npz"},
    {"tables get t --output json", HOSTILE_DOCUMENT, 1, NULL},
    {"status", HOSTILE_METRICS, 2, NULL},
    {"top --count 1 --interval 0.1", HOSTILE_METRICS, 2, NULL},
};
enum { N_PROGRAMS = sizeof programs / sizeof *programs };

/* One of them at work. */
struct run {
    pid_t pid; /* 0: it has ended */
    double seconds;
    int status;
    struct rusage usage;
};

/* The child's side: a folder, a log, limits, and the program. */
static void execute(const struct program *program, const char *url, int i)
{
    char command[512], log[32];
    struct rlimit memory = {most_memory, most_memory};
    snprintf(log, sizeof log, "log.%d", i);
    snprintf(command, sizeof command,
             program->arguments ? "exec " ROPED_TEST_ROPECTL
                                  " --timeout %g --max-answer %d %s"
                                : "exec " ROPED_TEST_HOSTILE_CLIENT " $URL",
             timeout_seconds, MAX_ANSWER_BYTES, program->arguments);
    if (chdir(folder) ||
        dup2(open(log, O_CREAT | O_TRUNC | O_WRONLY, 0600), STDOUT_FILENO) < 0)
        _exit(126);
    dup2(STDOUT_FILENO, STDERR_FILENO);
    setenv("ROPED_URL", url, 1);
    setenv("URL", url, 1);
    if (!ATTACK_IS_SANITIZED)
        setrlimit(RLIMIT_AS, &memory);
    execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    _exit(127);
}

static void start(struct run *run, int i, const char *url)
{
    *run = (struct run){.pid = fork()};
    if (run->pid == 0)
        execute(&programs[i], url, i);
    if (run->pid < 0) {
        perror("fork");
        exit(EXIT_FAILURE);
    }
}

/* Waits for all of them; who overruns its time is killed. */
static void wait_for_all(struct run *runs)
{
    int n_left = N_PROGRAMS;
    double begun = now_seconds();
    while (n_left > 0) {
        usleep(5000);
        for (int i = 0; i < N_PROGRAMS; i++) {
            struct run *run = &runs[i];
            if (run->pid == 0)
                continue;
            run->seconds = now_seconds() - begun;
            if (run->seconds >
                programs[i].n_requests * timeout_seconds + slack_seconds)
                kill(run->pid, SIGKILL);
            if (wait4(run->pid, &run->status, WNOHANG, &run->usage) == 0)
                continue;
            run->pid = 0;
            n_left--;
        }
    }
}

/* ------------------------------------------------------------------ output */

/* Bytes of the character at s that a terminal may show, or 0. What the tests
 * know of Unicode is theirs: no line of the clients' is asked. */
static size_t printable(const unsigned char *s, size_t left)
{
    static const unsigned hidden[][2] = {
        {0, 0x1F},        {0x7F, 0x9F},     {0x200E, 0x200F}, {0x2028, 0x202E},
        {0x2066, 0x2069}, {0xD800, 0xDFFF}, {0xFEFF, 0xFEFF}, {0x110000, ~0U}};
    size_t n = s[0] < 0x80 ? 1 : s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : 4;
    unsigned code = n == 1 ? s[0] : s[0] & (0xFFU >> (n + 1));
    if ((s[0] & 0xC0) == 0x80 || left < n)
        return 0;
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xC0) != 0x80)
            return 0;
        code = code << 6 | (s[i] & 0x3F);
    }
    for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++)
        if (code >= hidden[i][0] && code <= hidden[i][1])
            return 0;
    return n;
}

static void check_printable(const char *who, const struct bytes *output)
{
    const unsigned char *at = (const void *)output->start;
    for (size_t i = 0, n; i < output->n; i += n) {
        n = at[i] == '\n' ? 1 : printable(at + i, output->n - i);
        if (n == 0) {
            CHECK_FAIL("%s: byte %zu of its output is 0x%02x: '%.*s'", who, i,
                       at[i], (int)(i < 60 ? i : 60),
                       output->start + (i < 60 ? 0 : i - 60));
            return;
        }
    }
}

static struct bytes read_log(int i)
{
    struct bytes all = {0};
    char path[64], piece[1 << 16];
    size_t n;
    snprintf(path, sizeof path, "%s/log.%d", folder, i);
    FILE *file = fopen(path, "rbe");
    bytes_text(&all, "");
    while (file && (n = fread(piece, 1, sizeof piece, file)) > 0 &&
           all.n < (size_t)256 << 20)
        bytes_add(&all, piece, n);
    if (file)
        fclose(file);
    return all;
}

/* Only what was there, logs, and the outputs that were named. */
static void check_folder(const char *name)
{
    DIR *dir = opendir(folder);
    struct dirent *entry;
    while (dir && (entry = readdir(dir))) {
        const char *file = entry->d_name;
        bool is_known = file[0] == '.' || strncmp(file, "log.", 4) == 0 ||
                        strcmp(file, "in.safetensors") == 0 ||
                        strcmp(file, "q.safetensors") == 0;
        for (int i = 0; i < N_PROGRAMS; i++)
            is_known |=
                programs[i].output && strcmp(programs[i].output, file) == 0;
        if (!is_known)
            CHECK_FAIL("%s: there is a file '%s'", name, file);
    }
    closedir(dir);
}

/* --------------------------------------------------------------- the checks */

static void check_end(const char *who, const struct program *program,
                      const struct run *run, const struct bytes *output)
{
    double most = program->n_requests * timeout_seconds + slack_seconds;
    double resident = (double)run->usage.ru_maxrss * 1024;
    if (!WIFEXITED(run->status) || WEXITSTATUS(run->status) > 7)
        CHECK_FAIL("%s: ended with status %#x after %.1f s: '%.200s'", who,
                   (unsigned)run->status, run->seconds, output->start);
    if (strstr(output->start, "Sanitizer") ||
        strstr(output->start, "runtime error"))
        CHECK_FAIL("%s: '%.2000s'", who, output->start);
    if (strstr(output->start, "of another request"))
        CHECK_FAIL("%s: '%.2000s'", who, output->start);
    if (run->seconds > most)
        CHECK_FAIL("%s: took %.1f s, expected at most %.1f", who, run->seconds,
                   most);
    if (resident > MAX_RESIDENT_BYTES && !ATTACK_IS_SANITIZED)
        CHECK_FAIL("%s: took %.0f MiB, expected at most %d", who,
                   resident / (1 << 20), MAX_RESIDENT_BYTES >> 20);
    if (output->n > MAX_OUTPUT_BYTES)
        CHECK_FAIL("%s: wrote %zu bytes, expected at most %d", who, output->n,
                   MAX_OUTPUT_BYTES);
}

/* A sentence of ropectl that says why, or what 'status' prints. */
static void check_failure(const char *who, const struct program *program,
                          const struct run *run, const struct bytes *output)
{
    char path[64];
    struct stat about;
    if (WIFEXITED(run->status) && WEXITSTATUS(run->status) == 0)
        CHECK_FAIL("%s: ended with 0: '%.200s'", who, output->start);
    if (!strstr(output->start, "ropectl: ") &&
        !strstr(output->start, "reason  "))
        CHECK_FAIL("%s: says '%.200s', expected a reason", who, output->start);
    snprintf(path, sizeof path, "%s/%s", folder,
             program->output ? program->output : "none");
    if (stat(path, &about) == 0)
        CHECK_FAIL("%s: wrote '%s' of %lld bytes", who, path,
                   (long long)about.st_size);
}

/* Each request that fails has its line, and a sentence. */
static void check_library(const char *who, unsigned fails,
                          const struct bytes *output)
{
    static const struct {
        const char *good;
        unsigned of;
    } answers[] = {{"call: ok: \n", HOSTILE_CALL},
                   {"document: ok: \n", HOSTILE_ALL ^ HOSTILE_DOCUMENT},
                   {"metrics: ok: \n", HOSTILE_METRICS},
                   {"region: ok: \n", HOSTILE_REGION}};
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++)
        if ((fails & answers[i].of) == answers[i].of &&
            strstr(output->start, answers[i].good))
            CHECK_FAIL("%s: '%s'", who, output->start);
    for (const char *at = output->start; (at = strstr(at, ": ")); at++) {
        const char *sentence = strstr(at + 2, ": ");
        if (sentence && sentence[2] == '\n' && strncmp(at, ": ok", 4) != 0)
            CHECK_FAIL("%s: no sentence: '%s'", who, output->start);
        at += strcspn(at, "\n") - 1;
    }
    CHECK(!strstr(output->start, "the timing is none"));
}

static void check_behaviour(const struct hostile_behaviour *behaviour)
{
    struct run runs[N_PROGRAMS];
    char url[128], who[256];
    const char *name = hostile_name(behaviour);
    snprintf(url, sizeof url, "%s://127.0.0.1:%d/%s",
             strncmp(name, "tls_", 4) == 0 ? "https" : "http", port, name);
    for (int i = 0; i < N_PROGRAMS; i++)
        start(&runs[i], i, url);
    wait_for_all(runs);
    for (int i = 0; i < N_PROGRAMS; i++) {
        const struct program *program = &programs[i];
        struct bytes output = read_log(i);
        snprintf(who, sizeof who, "%s: %s", name,
                 program->arguments ? program->arguments : "the program");
        check_end(who, program, &runs[i], &output);
        check_printable(who, &output);
        if (!program->arguments)
            check_library(who, hostile_fails(behaviour), &output);
        else if (hostile_fails(behaviour) & program->fails)
            check_failure(who, program, &runs[i], &output);
        bytes_free(&output);
    }
    check_folder(name);
    for (int i = 0; i < N_PROGRAMS; i++) {
        snprintf(who, sizeof who, "%s/%s", folder, programs[i].output);
        if (programs[i].output)
            unlink(who);
    }
}

/* -------------------------------------------------------------------- main */

static void write_file(const char *name, const struct roped_client_tensor *in)
{
    struct roped_error err;
    char path[64];
    size_t bytes;
    void *body;
    CHECK_OK(roped_client_write(in, 1, &body, &bytes, &err), &err);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wbe");
    CHECK(file && fwrite(body, 1, bytes, file) == bytes && !fclose(file));
    free(body);
}

static void make_folder(void)
{
    float x[256] = {1, 2, 3, 4};
    if (!mkdtemp(folder)) {
        perror(folder);
        exit(EXIT_FAILURE);
    }
    write_file("in.safetensors", &(struct roped_client_tensor){
                                     "x", {ROPED_F32, 2, {1, 4}, .data = x}});
    write_file("q.safetensors",
               &(struct roped_client_tensor){
                   "q", {ROPED_F32, 3, {1, 2, 64}, .data = x}});
}

/* The server alone, until standard input ends. */
static int serve(FILE *out)
{
    const struct hostile_behaviour *behaviour;
    fprintf(out, "%d\n", hostile_start());
    for (int i = 0; (behaviour = hostile_at(i)); i++)
        fprintf(out, "%s %u\n", hostile_name(behaviour),
                hostile_fails(behaviour));
    fclose(out);
    while (getchar() != EOF)
        continue;
    return EXIT_SUCCESS;
}

/* In a process of its own: what it keeps would count as its clients'. */
static pid_t start_server(int *standard_input)
{
    int in[2], out[2];
    pid_t pid = pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC) ? -1 : fork();
    if (pid < 0) {
        perror("a hostile server");
        exit(EXIT_FAILURE);
    }
    if (pid == 0) {
        dup2(in[0], STDIN_FILENO);
        close(in[1]);
        exit(serve(fdopen(out[1], "w")));
    }
    close(in[0]);
    close(out[1]);
    FILE *said = fdopen(out[0], "r");
    CHECK(fscanf(said, "%d", &port) == 1);
    fclose(said);
    *standard_input = in[1];
    return pid;
}

int main(int argc, char **argv)
{
    char command[64];
    const struct hostile_behaviour *behaviour;
    int server_input;
    if (argc > 1 && strcmp(argv[1], "--serve") == 0)
        return serve(stdout);
    signal(SIGPIPE, SIG_IGN);
    pid_t server = start_server(&server_input);
    make_folder();
    for (int i = 0; (behaviour = hostile_at(i)); i++) {
        const char *only = argc > 1 ? argv[1] : hostile_name(behaviour);
        check_failures = 0;
        if (!strstr(hostile_name(behaviour), only) || !check_takes_case())
            continue;
        check_behaviour(behaviour);
        if (check_failures)
            fprintf(stderr, "FAILED %s\n", hostile_name(behaviour));
        *(check_failures ? &check_n_failed : &check_n_passed) += 1;
    }
    close(server_input);
    waitpid(server, NULL, 0);
    snprintf(command, sizeof command, "rm -r %s", folder);
    CHECK(system(command) == 0);
    return check_done();
}
