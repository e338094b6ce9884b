/*
 * test_program_folder.c - programs that are there from the start: a folder's
 * documents, and what is wrong with one, which --check-config and a start say
 * in the same words.
 */
#include "check.h"
#include "http/process.h"

#include <sys/stat.h>

static const char norm[] =
    "{\"inputs\": [\"x\"], \"steps\": [{\"op\": \"rmsnorm\", \"in\": "
    "{\"x\": \"x\"}, \"out\": {\"y\": \"h\"}}], \"outputs\": [\"h\"]}";

/* ------------------------------------------------------------------ folder */

static const char *folder(void)
{
    static char path[64];
    snprintf(path, sizeof path, "/tmp/roped_programs_%d", (int)getpid());
    return path;
}

static const char *path_of(const char *file)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", folder(), file);
    return path;
}

static void add(const char *file, const char *text, size_t bytes)
{
    mkdir(folder(), 0700);
    FILE *out = fopen(path_of(file), "w");
    CHECK(out && fwrite(text, 1, bytes, out) == bytes);
    if (out)
        CHECK(fclose(out) == 0);
}

static void take_away(const char *file)
{
    CHECK(unlink(path_of(file)) == 0);
}

/* ------------------------------------------------------------------- tests */

TEST(a_document_of_the_folder_is_a_program)
{
    add("norm.json", norm, strlen(norm));
    add("README.md", "no document", 11);
    add(".hidden.json", "no document", 11);
    start("--programs", folder());
    struct answer answer = get(&server, "/v1/programs/norm");
    CHECK_INT(answer.code, 200);
    CHECK_TEXT(answer.body, norm);
    answer_free(&answer);
    expect_metric(&server, "roped_programs", 1);
    size_t bytes;
    unsigned char *body = ones(4, 64, &bytes);
    answer = ask(&server, "POST", "/v1/programs/norm", body, bytes, NULL);
    CHECK(are_ones(&answer, 4 * 64));
    answer_free(&answer);
    free(body);
    expect_code(ask(&server, "DELETE", "/v1/programs/norm", NULL, 0, NULL), 200,
                "{}", "it is deleted as any other");
    stop();
    take_away("norm.json");
    take_away("README.md");
    take_away(".hidden.json");
}

/* The exit code; *text is what was said. */
static int say(const char *last_flag, char *text, size_t size)
{
    const char *flags[] = {"--listen",   "127.0.0.1:0", "--backend", "cpu",
                           "--programs", folder(),      last_flag,   NULL};
    int fd;
    pid_t pid = spawn(flags, &fd);
    return read_to_end(pid, fd, text, size);
}

static void expect_refused(const char *part)
{
    char text[1 << 14];
    CHECK_INT(say(NULL, text, sizeof text), EXIT_FAILURE);
    CHECK_CONTAINS(text, "event=start");
    CHECK_CONTAINS(text, part);
    if (strstr(text, "event=listening"))
        CHECK_FAIL("it has listened: %s", text);
    CHECK_INT(say("--check-config", text, sizeof text), 2);
    CHECK_CONTAINS(text, part);
}

TEST(a_bad_document_stops_the_start)
{
    static const struct {
        const char *file, *document, *part;
    } cases[] = {
        {"bad.json", "{\"steps\": []}", "bad.json': a program without steps"},
        {"bad.json", "[", "bad.json': "},
        {"bad.json",
         "{\"steps\": [{\"op\": \"rmsnorm\", \"in\": {\"x\": \"h\"}}]}",
         "bad.json': step 1 (rmsnorm): tensor 'x': unknown name 'h'"},
        {"bad.json",
         "{\"inputs\": [{\"name\": \"x\", \"dtype\": \"F32\", \"shape\": [2, "
         "8]}, {\"name\": \"r\", \"dtype\": \"F32\", \"shape\": [3, 8]}], "
         "\"steps\": [{\"op\": \"add_rmsnorm\", \"in\": {\"x\": \"x\", "
         "\"residual\": \"r\"}, \"out\": {\"y\": \"y\"}}]}",
         "bad.json': step 1 (add_rmsnorm): tensor 'residual': "},
        {"rope.json", norm, "an operator has this name"},
        {"Norm.json", norm, "expected a small letter"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        add("a.json", norm, strlen(norm)); /* and this one is right */
        add(cases[i].file, cases[i].document, strlen(cases[i].document));
        expect_refused(cases[i].part);
        take_away(cases[i].file);
        take_away("a.json");
    }
}

TEST(a_document_of_the_folder_has_the_limit_of_a_put)
{
    enum { BYTES = (1 << 20) + 1 };
    char *text = malloc(BYTES);
    memset(text, ' ', BYTES);
    memcpy(text, norm, strlen(norm));
    add("large.json", text, BYTES);
    expect_refused("large.json': 1048577 bytes, expected at most 1048576");
    add("large.json", text, BYTES - 1);
    start("--programs", folder());
    expect_metric(&server, "roped_programs", 1);
    stop();
    free(text);
    take_away("large.json");
}

TEST(a_folder_that_is_not_there_stops_the_start)
{
    rmdir(folder());
    expect_refused("cannot read programs '/tmp/roped_programs_");
    expect_refused("No such file or directory");
}

int main(void)
{
    alarm(STUCK_SECONDS);
    check_run();
    rmdir(folder());
    return check_done();
}
