/*
 * test_ropectl.c - the command line against a daemon: help, wrong usage, and
 * calls through regions from files to files.
 */
#include "check.h"
#include "http/harness.h"
#include "http/service.h"

#include <sys/wait.h>
#include <unistd.h>

static struct server server;
static char folder[] = "/tmp/roped_test_XXXXXX";

/* Runs ropectl in folder; output is what it wrote, standard error too. */
static int ropectl(const char *arguments, char *output, size_t size)
{
    char command[1024];
    snprintf(command, sizeof command,
             "cd %s && ROPED_URL=%s " ROPED_TEST_ROPECTL " %s 2>&1", folder,
             server.url, arguments);
    FILE *pipe = popen(command, "r");
    size_t n = pipe ? fread(output, 1, size - 1, pipe) : 0;
    output[n] = '\0';
    int status = pipe ? pclose(pipe) : -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void expect(const char *arguments, int code, const char *part)
{
    char output[16384];
    int found = ropectl(arguments, output, sizeof output);
    if (found != code || !strstr(output, part))
        CHECK_FAIL("ropectl %s: ended with %d and '%s', expected %d and '%s'",
                   arguments, found, output, code, part);
}

static void write_file(const char *name, const void *data, size_t bytes)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    CHECK(file && fwrite(data, 1, bytes, file) == bytes);
    if (file)
        fclose(file);
}

/* rows x 4 floats of this value. */
static void write_constant(const char *name, const char *tensor, int64_t rows,
                           float value)
{
    int64_t dims[2] = {rows, 4};
    bool is_row = rows == 1;
    float x[16];
    size_t bytes;
    struct tensor_file file = {0};
    for (int i = 0; i < 16; i++)
        x[i] = value;
    file_add(&file, tensor, ROPED_F32, is_row ? 1 : 2, dims + is_row, x);
    unsigned char *body = file_write(&file, &bytes);
    write_file(name, body, bytes);
    free(body);
}

TEST(every_command_has_a_page)
{
    static const char *const commands[] = {"ops",    "describe", "run",
                                           "bench",  "tables",   "regions",
                                           "status", "cat"};
    char arguments[64], part[64];
    expect("", 2, "usage: ropectl [options] COMMAND");
    expect("help", 0, "usage: ropectl [options] COMMAND");
    expect("--help", 0, "exit status: 0 done, 1 failed, 2 wrong usage");
    expect("--version", 0, "ropectl ");
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        snprintf(part, sizeof part, "usage: ropectl %s", commands[i]);
        snprintf(arguments, sizeof arguments, "help %s", commands[i]);
        expect(arguments, 0, part);
        snprintf(arguments, sizeof arguments, "%s --help", commands[i]);
        expect(arguments, 0, part);
        expect("help", 0, commands[i]);
    }
}

TEST(wrong_usage_says_what_is_wrong)
{
    expect("help me", 2, "no command 'me'");
    expect("regoins", 2, "no command 'regoins'; the nearest is 'regions'");
    expect("describe rop", 1, "no operator 'rop'; the nearest is 'rope'");
    expect("describe", 2, "usage: ropectl describe OP");
    expect("run", 2, "no operator");
    expect("run rmsnorm", 2, "no file with the inputs of rmsnorm");
    expect("run rmsnorm x y", 2, "'y' beside 'x', expected one file");
    expect("run rmsnorm -x y", 2, "'-x', expected --NAME=VALUE");
    expect("run rmsnorm none.safetensors", 1,
           "cannot read 'none.safetensors': No such file");
    expect("bench rope --connections 0", 2, "'0' is not understood");
    expect("regions get x", 2, "'get' is no verb with 1 arguments");
    expect("regions zeros x 4,64", 2, "'4,64', expected --bytes=N");
    expect("tables forget", 2, "usage: ropectl tables [list");
    expect("--timeout soon ops", 2, "'soon', expected seconds above 0");
    expect("status --server", 2, "option '--server': '', expected a value");
    expect("status --server http://127.0.0.1:1", 1,
           "could not connect to http://127.0.0.1:1: Connection refused");
}

TEST(calls_use_regions)
{
    write_constant("w.safetensors", "weight", 1, 5);
    write_constant("x.safetensors", "x", 4, 3);
    expect("regions", 0, "\"regions\":[]");
    expect("regions put w w.safetensors", 0, "\"dtype\":\"F32\",\"shape\":[4]");
    expect("regions zeros y --dtype=F32 --shape=4,4", 0, "\"bytes\":64");
    expect("run rmsnorm x.safetensors --eps=0 --from.weight=w -o out", 0,
           "y              F32      [4, 4]             5 5 5 5 ...");
    expect("cat out", 0, "y              F32      [4, 4]");
    expect("run rmsnorm x.safetensors --eps=0 --from.weight=w --into.y=y", 0,
           "receive ");
    expect("regions get y y.safetensors", 0, "");
    expect("cat y.safetensors", 0, " 5 5 5 5 ...");
    /* chained, and nothing is sent; the answer is read from a pipe */
    expect("run rmsnorm --eps=0 --from.x=y", 0, " 1 1 1 1 ...");
    expect("run rmsnorm --eps=0 --from.x=y -o - 2>/dev/null | " //
           ROPED_TEST_ROPECTL " cat -",
           0, " 1 1 1 1 ...");
    expect("regions zeros raw --bytes=40", 0, "\"bytes\":40");
    expect("regions get raw - | wc -c", 0, "40");
    expect("run rmsnorm --from.x=raw", 1, "region 'raw' is plain bytes");
    expect("run rmsnorm --from.x=none", 1,
           "Unable to find shared memory region: 'none'");
    expect("regions list", 0, "\"name\":\"raw\"");
    expect("regions delete raw", 0, "{}");
    expect("regions delete raw", 1, "'raw'");
    expect("regions get raw out", 1, "'raw'");
    expect("regions put 'a b?bytes=1' w.safetensors", 1, "region names");
}

TEST(tables_are_put_listed_and_forgotten)
{
    write_file("rope.json", "{\"theta\":500000,\"head_dim\":128}", 31);
    expect("tables put llama rope.json", 0, "500000");
    expect("tables get llama --timeout=5", 0, "500000");
    expect("tables", 0, "\"llama\"");
    expect("tables delete llama", 0, "");
    expect("tables get llama", 1, "llama");
    expect("status", 0, "rmsnorm ");
    expect("bench rmsnorm h=64 rows=4 --seconds 0.1", 0, "");
}

int main(void)
{
    if (!mkdtemp(folder)) {
        perror(folder);
        return EXIT_FAILURE;
    }
    server_start(&server, NULL);
    RUN(every_command_has_a_page);
    RUN(wrong_usage_says_what_is_wrong);
    RUN(calls_use_regions);
    RUN(tables_are_put_listed_and_forgotten);
    if (!server_stop(&server))
        check_n_failed++;
    static const char *const names[] = {"w.safetensors", "x.safetensors",
                                        "y.safetensors", "out", "rope.json"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    if (rmdir(folder) != 0)
        perror(folder);
    return check_done();
}
