/*
 * test_ropectl.c - the command line against a daemon: help, wrong usage, and
 * calls through regions from files to files.
 */
#include "check.h"
#include "http/command.h"
#include "http/harness.h"
#include "http/service.h"

#include <roped/op.h>

#include <cjson/cJSON.h>
#include <unistd.h>

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
    command_file(name, body, bytes);
    free(body);
}

TEST(every_command_has_a_page)
{
    static const char *const commands[] = {
        "ops",    "describe", "run", "verify", "bench",  "tables", "regions",
        "status", "top",      "cat", "token",  "sample", "model",  "program"};
    char arguments[64], part[64];
    command_expect("", 2, "usage: ropectl [options] COMMAND");
    command_expect("help", 0, "usage: ropectl [options] COMMAND");
    command_expect("--help", 0, "exit status:\n  0  done\n");
    command_expect("--version", 0, "ropectl ");
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        snprintf(part, sizeof part, "usage: ropectl %s", commands[i]);
        snprintf(arguments, sizeof arguments, "help %s", commands[i]);
        command_expect(arguments, 0, part);
        snprintf(arguments, sizeof arguments, "%s --help", commands[i]);
        command_expect(arguments, 0, part);
        command_expect("help", 0, commands[i]);
    }
}

TEST(wrong_usage_says_what_is_wrong)
{
    command_expect("help me", 2, "no command 'me' (");
    command_expect("tap", 2, "no command 'tap'; did you mean 'top'?");
    command_expect("nosuch", 2, "no command 'nosuch' (");
    command_expect("pot", 2, "no command 'pot' (");
    command_expect("regoins", 2,
                   "no command 'regoins'; did you mean 'regions'?");
    command_expect("describe rop", 2,
                   "no operator 'rop'; did you mean 'rope'?");
    command_expect("describe nosuch", 2, "no operator 'nosuch' (");
    command_expect("describe", 2, "usage: ropectl describe OP");
    command_expect("ops all", 2, "no arguments, found 'all'");
    command_expect("cat", 2, "0 arguments, expected one file");
    command_expect("run", 2, "no operator");
    command_expect("run nosuch x", 2, "no operator 'nosuch' (");
    command_expect("run rmsnorm", 2, "no file with the inputs of rmsnorm");
    command_expect("run rmsnorm y=x.npy", 2, "rmsnorm has no input 'y'");
    command_expect("run rmsnorm wieght=x.npy", 2, "did you mean 'weight'?");
    command_expect("run rmsnorm x.npy -o x=y.npy", 2,
                   "rmsnorm has no output 'x'");
    command_expect("run rmsnorm x.npy -o", 2, "'-o' has no file");
    command_expect("run rmsnorm -x y", 2, "'-x', expected --NAME VALUE");
    command_expect("run rmsnorm x --esp 1", 2,
                   "rmsnorm has no parameter 'esp'; did you mean 'eps'?");
    command_expect("run rmsnorm x --tabel t", 2, "did you mean 'table'?");
    command_expect("run rmsnorm x --epsilon 1", 2, "did you mean 'eps'?");
    command_expect("run rms_norm x", 2, "did you mean 'rmsnorm'?");
    command_expect("bench rmsnorm --conections 1", 2,
                   "did you mean 'connections'?");
    command_expect("bench rmsnorm --sever x", 2, "did you mean 'server'?");
    command_expect("status --url http://127.0.0.1:1", 4, "127.0.0.1:1");
    command_expect("run rmsnorm x --eps", 2, "parameter 'eps' has no value");
    command_expect("run rmsnorm x --eps=-1", 2, "eps");
    command_expect("run rmsnorm none.safetensors", 1,
                   "cannot read 'none.safetensors': No such file");
    command_expect("regions get x", 2,
                   "'get' has no FILE, expected 'get NAME FILE'");
    command_expect("regions get", 2, "'get' has no NAME");
    command_expect("regions put x --device 0", 2, "'put' has no FILE");
    command_expect("regions zeros --bytes 4", 2, "'zeros' has no NAME");
    command_expect("regions get x y z", 2,
                   "'z' is a word too many, expected 'get NAME FILE'");
    command_expect("regions list x", 2,
                   "'x' is a word too many, expected 'list'");
    command_expect("regions gte x y", 2, "no verb 'gte'; did you mean 'get'?");
    command_expect("program put x", 2, "'put' has no FILE");
    command_expect("program describe", 2, "'describe' has no NAME");
    command_expect("program delete x y", 2, "'y' is a word too many");
    command_expect("tables put x", 2, "'put' has no FILE");
    command_expect("tables get x y", 2, "'y' is a word too many");
    command_expect("regions zeros x 4,64", 2, "'4,64', expected --bytes N");
    command_expect("regions zeros x", 2, "no size, expected --bytes N");
    command_expect("regions put x w.safetensors 1", 2,
                   "'1', expected --device N");
    command_expect("regions put x w.safetensors --device", 2,
                   "'--device', expected --device N");
    command_expect("regions get '' x.safetensors", 2, "'' cannot be a name");
    command_expect("regions get .. x.safetensors", 2, "'..' cannot be a name");
    command_expect("cat x.safetensors", 1, "No such file");
    command_expect("regions delete .", 2, "'.' cannot be a name");
    command_expect("regions delete", 2, "'delete' has no NAME");
    command_expect("cat @", 2, "'' cannot be a name");
    command_expect("tables get ''", 2, "'' cannot be a name");
    command_expect("tables get", 2, "'get' has no NAME");
    command_expect("program get ''", 2, "'' cannot be a name");
    command_expect("program run '' x", 2, "'' cannot be a name");
    command_expect("program run", 2, "'run' has no NAME");
    command_expect("tables forget", 2, "usage: ropectl tables [list");
    command_expect("--timeout soon ops", 2, "'soon', expected seconds above 0");
    command_expect("--max-answer 5x ops", 2, "'5x', expected bytes above 0");
    command_expect("--max-answer 0 ops", 2, "'0', expected bytes above 0");
    command_expect("--max-answer -1 ops", 2, "'-1', expected bytes above 0");
    command_expect("--max-answer 1kk ops", 2, "'1kk', expected bytes above 0");
    command_expect("--max-answer 20000t ops", 2, "expected bytes above 0");
    command_expect("--max-answer 2g ops", 0, "rmsnorm");
    command_expect("--max-answer 10 tables list", 1,
                   "the answer is over 10 bytes, the limit that max-answer");
    command_expect("--output xml ops", 2, "'xml', expected table or json");
    command_expect("status --server", 2,
                   "option '--server': '', expected a URL");
    command_expect(
        "status --server http://127.0.0.1:1", 4,
        "could not connect to http://127.0.0.1:1: Connection refused");
    command_expect("status --token-file none", 1,
                   "cannot read a token from 'none': No such file");
}

/* Cuts a line of output off; returns what stands behind label in it. */
static char *value_of(char *output, const char *label)
{
    char *at = strstr(output, label);
    if (!at) {
        CHECK_FAIL("'%s' lacks '%s'", output, label);
        exit(EXIT_FAILURE);
    }
    at += strlen(label);
    at[strcspn(at, "\n")] = '\0';
    return at;
}

TEST(a_new_token_opens_what_its_line_says)
{
    char output[1024], arguments[256], path[64];
    struct server other;
    CHECK_INT(
        command_run("token new alice --scopes metrics,regions --quota=names=3",
                    output, sizeof output),
        0);
    char *line = value_of(output, "line   ");
    CHECK_CONTAINS(line, "alice sha256:");
    CHECK_CONTAINS(line, " metrics,regions names=3");
    command_file("tokens", line, strlen(line));
    char *token = value_of(output, "token  ");
    CHECK(!strstr(line, token));
    command_file("token", token, strlen(token));
    snprintf(path, sizeof path, "%s/tokens", command_folder);
    const char *flags[] = {"--bearer_token_file", path, NULL};
    server_start(&other, flags);
    snprintf(arguments, sizeof arguments,
             "--server %s --token-file token regions", other.url);
    command_expect(arguments, 0, "regions        none");
    snprintf(arguments, sizeof arguments,
             "--server %s --token-file token tables", other.url);
    command_expect(
        arguments, 3,
        "token 'alice' has scopes regions, metrics, expected 'tables'");
    CHECK(server_stop(&other));
    unlink(path);
    snprintf(path, sizeof path, "%s/token", command_folder);
    unlink(path);
}

TEST(no_two_tokens_are_alike)
{
    char first[1024], second[1024];
    CHECK_INT(command_run("--output json token new a", first, sizeof first), 0);
    CHECK_INT(command_run("--output json token new a", second, sizeof second),
              0);
    CHECK_CONTAINS(first, "{\"token\":\"roped_");
    CHECK_CONTAINS(first, "\"line\":\"a sha256:");
    CHECK(strcmp(first, second) != 0);
    command_expect("token", 2, "no verb, expected 'new NAME'");
    command_expect("token new", 2, "'new' has no NAME");
    command_expect("token old a", 2, "no verb 'old'");
    command_expect("token new a/b", 2, "expected a name of 1 to 63 letters");
    command_expect("token new a --scopes all", 2,
                   "expected scopes out of call,");
    command_expect("token new a --quota 1g", 2,
                   "expected a quota like bytes=1g");
    command_expect("token new a --scope call", 2,
                   "no option '--scope'; did you mean 'scopes'?");
    command_expect("token new a b", 2, "'b' is no option with a value");
}

TEST(bench_refuses_what_it_does_not_know)
{
    command_expect("bench rmsnorm rws=100", 2,
                   "rmsnorm has no dimension 'rws'; did you mean 'rows'?");
    command_expect("bench rmsnorm hq=100", 2, "rmsnorm has no dimension 'hq'");
    command_expect("bench rmsnorm rows=0", 2, "'rows=0', expected rows=SIZE");
    command_expect("bench rmsnorm h=4,4", 2, "'h=4,4', expected h=SIZE");
    command_expect("bench rmsnorm rows", 2, "'rows', expected SYMBOL=SIZE");
    command_expect("bench rope --connections 0", 2, "'0', expected 1 to 256");
    command_expect("bench rope --dtype i32", 2,
                   "'i32', expected f32, f16 or bf16");
    command_expect("bench rope --thata 1", 2, "did you mean 'theta'?");
    command_expect("bench rope n=4 --rotary_dim 7", 2, "rotary_dim");
    command_expect("bench rope hq=4 bs=2", 2, "no form of rope has all");
}

TEST(calls_use_regions)
{
    write_constant("w.safetensors", "weight", 1, 5);
    write_constant("x.safetensors", "x", 4, 3);
    command_expect("regions", 0, "regions        none");
    command_expect("regions put w w.safetensors", 0,
                   "\ndtype   F32\nshape   [4]\n");
    command_expect("regions zeros y --dtype=F32 --shape=4,4", 0,
                   "\nbytes   64\n");
    command_expect("run rmsnorm x.safetensors --eps=0 --from.weight=w -o out",
                   0, "\n  y     F32    [4,4]  [5,5,5,5]\ntiming_ms  receive ");
    command_expect("cat out", 0, "\ny     F32    [4,4]");
    command_expect(
        "run rmsnorm x.safetensors --eps=0 --from.weight=w --into.y=y", 0,
        "receive ");
    command_expect("regions get y y.pt", 1,
                   "no format is called '.pt', expected .safetensors");
    command_expect("regions get y y.safetensors", 0, "");
    command_expect("cat y.safetensors", 0, " [5,5,5,5]");
    /* chained, and nothing is sent; the answer is read from a pipe */
    command_expect("run rmsnorm --eps=0 --from.x=y", 0, " [1,1,1,1]");
    command_expect("run rmsnorm --eps=0 --from.x=y -o - 2>/dev/null | " //
                   ROPED_TEST_ROPECTL " cat -",
                   0, " [1,1,1,1]");
    command_expect("regions zeros raw --bytes=40", 0, "\nbytes   40\n");
    command_expect("regions get raw - | wc -c", 0, "40");
    command_expect("regions get raw raw.bin", 0, "40");
    command_expect("run rmsnorm --from.x=raw", 3,
                   "region 'raw' is plain bytes");
    command_expect("run rmsnorm --from.x=none", 3, "no region named 'none'");
    command_expect("regions list", 0, "\n  raw   resident     40");
    command_expect("regions delete raw", 0, "");
    command_expect("regions delete raw", 3, "'raw'");
    command_expect("regions get raw out", 3, "'raw'");
    command_expect("regions put 'a b?bytes=1' w.safetensors", 3,
                   "region names");
}

/* In the place of a file, and where none is. */
TEST(at_signs_are_regions)
{
    write_constant("weight.safetensors", "weight", 1, 5);
    write_constant("x.safetensors", "x", 4, 3);
    command_expect("regions put weight weight.safetensors --device=0", 0,
                   "\ndevice  0\n");
    command_expect("regions put weight weight.safetensors --device 7", 3,
                   "device");
    command_expect("regions zeros y --dtype=F32 --shape=4,4", 0, "y");
    command_expect("cat @weight", 0, "\nweight  F32    [4]    [5,5,5,5]");
    command_expect("cat @nosuch", 3, "no region named 'nosuch'");
    command_expect("run rmsnorm x.safetensors @weight --eps=0 -o out", 0,
                   " [5,5,5,5]");
    command_expect("run rmsnorm x.safetensors weight=@weight:0 -o @y", 0,
                   "receive ");
    command_expect("cat @y", 0, " [5,5,5,5]");
    command_expect("verify rmsnorm x=@y @weight --eps=0", 0, "within  yes");
    command_expect("run rmsnorm @y", 2, "rmsnorm has no input 'y'");
    command_expect("run rmsnorm x=@y -o @x", 2, "rmsnorm has no output 'x'");
    command_expect("run rmsnorm x=@ -o out", 3, "region");
    command_expect("regions put copy @weight", 0, "\nshape   [4]\n");
    command_expect("cat @copy", 0, " [5,5,5,5]");
    command_expect("tables put t @weight", 1, "a region cannot stand here");
    command_expect("regions get y @copy", 1, "a region cannot stand here");
    command_expect("cat ./@weight", 1, "No such file");
}

/* What is made is accepted, and right. */
TEST(sample_makes_a_file_for_every_operator)
{
    static const char *const calls[] = {
        "rope n=16 -o in.npz",
        "rope n=16 hq=4 hk=2 --dtype bf16 -o in.safetensors",
        "rope bs=2 s=8 --layout bsd -o in.safetensors",
        "rope b=3 n=16 -o in.safetensors",
        "rope_append n=100 -o in.safetensors",
        "rope_append n=8 pages=4 pagesize=16 indices=4 -o in.safetensors",
        "rope_quantize_append n=64 -o in.safetensors",
        "binary_backward --function mul -o in.safetensors"};
    char arguments[256], output[4096];
    for (int i = 0; i < roped_op_count(); i++) {
        snprintf(arguments, sizeof arguments, "sample %s -o in.safetensors",
                 roped_op_at(i)->name);
        command_expect(arguments, 0, "\nnext  ropectl run ");
        snprintf(arguments, sizeof arguments, "verify %s in.safetensors",
                 roped_op_at(i)->name);
        command_expect(arguments, 0, "within  yes");
    }
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        const char *file = strstr(calls[i], "in."), *flags = "";
        snprintf(arguments, sizeof arguments, "sample %s", calls[i]);
        command_expect(arguments, 0, "first_values");
        if (strstr(calls[i], " --layout"))
            flags = "--layout bsd";
        else if (strstr(calls[i], " --function"))
            flags = "--function mul";
        snprintf(arguments, sizeof arguments, "verify %.*s %s %s",
                 (int)strcspn(calls[i], " "), calls[i], file, flags);
        command_expect(arguments, 0, "within  yes");
    }
    command_expect("sample rmsnorm h=8 -o - 2>/dev/null | " ROPED_TEST_ROPECTL
                   " cat -",
                   0, "weight");
    CHECK_INT(command_run(
                  "sample rope n=16 -o a.safetensors >b && " ROPED_TEST_ROPECTL
                  " cat a.safetensors | grep positions",
                  output, sizeof output),
              0);
    CHECK_CONTAINS(output, "I64    [16]         [0,1,2,3]");
    CHECK_INT(command_run("sample rope_append --without k_cache,v_cache -o s",
                          output, sizeof output),
              0);
    CHECK(strstr(output, "slots") && !strstr(output, "cache"));
    command_expect("sample rope --without q,z -o s", 2,
                   "option '--without': 'q,z', expected inputs of the");
    command_expect("sample rope", 2, "'-o' has no file");
    command_expect("sample rope -o", 2, "'-o' has no file");
    command_expect("sample rope m=4 -o x", 2, "rope has no dimension 'm'");
    command_expect("sample rope --thetta 4 -o x", 2, "did you mean 'theta'?");
    command_expect("sample rope -o @x", 1, "a region cannot stand here");
    command_expect("sample rope n=4 -o x.npy", 1, "say which");
    command_expect("sample rope_append n=100 slots=64 -o x", 2, "slots");
}

TEST(tables_are_put_listed_and_forgotten)
{
    command_file("rope.json", "{\"theta\":500000,\"head_dim\":128}", 31);
    command_expect("tables put llama rope.json", 0, "500000");
    command_expect("tables get llama --timeout=5", 0, "500000");
    command_expect("tables", 0, "\nllama  500000  none");
    command_expect("tables delete llama", 0, "");
    command_expect("tables get llama", 3, "table 'llama' does not exist");
    command_expect("status", 0, "rmsnorm ");
}

TEST(programs_are_put_described_run_and_forgotten)
{
    static const char document[] =
        "{\"inputs\":[{\"name\":\"x\",\"dtype\":\"F32\",\"shape\":[\"n\",4]}],"
        "\"parameters\":{\"e\":0},\"steps\":[{\"op\":\"rmsnorm\",\"in\":{\"x\":"
        "\"x\"},\"out\":{\"y\":\"h\"},\"params\":{\"eps\":\"$e\"}},{\"op\":"
        "\"rmsnorm\",\"in\":{\"x\":\"h\"},\"out\":{\"y\":\"y\"}}],\"outputs\":"
        "[\"y\"]}";
    command_file("norms.json", document, sizeof document - 1);
    write_constant("x8.safetensors", "x", 3, 3);
    command_expect("program put norms norms.json", 0, "norms");
    command_expect("program list", 0, "norms");
    command_expect("program describe norms --output json", 0, "\"n\"");
    command_expect("program get norms --output json", 0, "\"op\"");
    command_expect("program run norms x8.safetensors --e 0 -o y.safetensors", 0,
                   "y ");
    command_expect("cat y.safetensors", 0, "F32");
    command_expect("program run norms x8.safetensors --f 1", 3,
                   "unknown parameter 'f'");
    command_expect("regions put xs x8.safetensors", 0, "xs");
    command_expect("program run norms x=@xs -o y.npy", 0, "y ");
    command_expect("program run norms x=@none", 3, "none");
    command_expect("program run norms x=@xs --timing steps --output json", 0,
                   "\"step_us\":[");
    command_expect("program bench norms x8.safetensors --e 0 --seconds 0.2 "
                   "--connections 2 --output json",
                   0, "\"program\":\"norms\"");
    command_expect("program bench norms x=@xs --seconds 0.1 --output json", 0,
                   "\"connections\":1");
    command_expect("program bench norms --seconds 0.1", 3,
                   "missing tensor 'x'");
    command_expect("program bench norms x=@xs --connections 0", 2, "1 to 256");
    command_expect("program bench nothing x=@xs --seconds 0.1", 3,
                   "program 'nothing' does not exist");
    command_expect("program run norms", 3, "missing tensor 'x'");
    command_expect("program put rope norms.json", 3, "an operator has this");
    command_expect("program forget norms", 2, "usage: ropectl program [list");
    command_expect("program delete norms", 0, "");
    command_expect("program describe norms", 3,
                   "program 'norms' does not exist");
    command_expect("program get norms", 3, "program 'norms' does not exist");
}

TEST(bench_makes_the_tensors_of_every_operator)
{
    static const char *const calls[] = {
        "rmsnorm h=64 rows=4",
        "rmsnorm h=64 rows=2,3 --dtype f32",
        "add_rmsnorm h=64",
        "rmsnorm_quantize --dynamic true",
        "rope n=8 --theta 500000",
        "rope w=128 n=2 --dtype=F16",
        "rope bs=2 s=8 --layout bsd",
        "rope b=2 n=8", /* indptr and offsets */
        "qk_rmsnorm_rope",
        "rope_append slots=16",
        "rope_append pages=4 pagesize=16 indices=4 requests=4",
        "qk_rmsnorm_rope_append slots=16",
        "rope_quantize",
        "rope_quantize_append requests=4 pages=4 pagesize=16",
        "binary_backward o=4,8 a=8 b=4,8 --function mul"};
    char arguments[256], output[4096];
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        snprintf(arguments, sizeof arguments, "bench %s --seconds 0.01",
                 calls[i]);
        if (command_run(arguments, output, sizeof output) != 0)
            CHECK_FAIL("ropectl %s: %s", arguments, output);
    }
    command_expect(
        "bench rmsnorm rows=3 h=8 --dtype f32 --seconds 0.01 --output json", 0,
        "\"operator\":\"rmsnorm\"");
    command_expect(
        "bench rmsnorm rows=3 h=8 --dtype f32 --seconds 0.01 --output json", 0,
        "\"bytes_in\":256,"); /* header 128, x 96, weight 32 */
}

/* The whole standard output is one document; its part is there too. */
static void expect_json(const char *arguments, const char *part)
{
    char command[512], output[65536];
    const char *end = NULL;
    snprintf(command, sizeof command, "%s --output json", arguments);
    int code = command_run(command, output, sizeof output);
    cJSON *tree = cJSON_ParseWithOpts(output, &end, false);
    if (code != 0 || !tree || strcmp(end, "\n") != 0 || !strstr(output, part))
        CHECK_FAIL("ropectl %s: ended with %d and '%s', expected one document "
                   "with '%s'",
                   command, code, output, part);
    cJSON_Delete(tree);
}

TEST(every_command_prints_json)
{
    write_constant("w.safetensors", "weight", 1, 5);
    write_constant("x.safetensors", "x", 4, 3);
    expect_json("ops", "{\"name\":\"rmsnorm\",\"summary\":\"");
    for (int i = 0; i < roped_op_count(); i++) {
        char arguments[96];
        snprintf(arguments, sizeof arguments, "describe %s",
                 roped_op_at(i)->name);
        expect_json(arguments, roped_op_at(i)->summary);
    }
    expect_json("describe rmsnorm", "\"name\":\"eps\",\"kind\":\"float\"");
    expect_json("describe rmsnorm", "\"in_place\":\"x\"");
    expect_json("run rmsnorm x.safetensors",
                "{\"name\":\"y\",\"dtype\":\"F32\",\"shape\":[4,4]");
    expect_json("cat w.safetensors", "\"first_values\":[5,5,5,5]");
    expect_json("status", "\"ready\":true,\"build\":{\"version\":");
    expect_json("tables", "\"tables\":[");
    expect_json("regions", "\"regions\":[");
    expect_json("regions put w w.safetensors", "\"dtype\":\"F32\"");
    expect_json("regions get w out", "{\"file\":\"out\",\"bytes\":");
    expect_json("regions delete w", "{}");
}

/* The members of a command's document, which scripts read. */
static void expect_names(const char *arguments, const char *names)
{
    char command[512], output[65536], found[512] = "";
    snprintf(command, sizeof command, "%s --output json", arguments);
    command_run(command, output, sizeof output);
    cJSON *document = cJSON_Parse(output);
    const cJSON *member;
    cJSON_ArrayForEach(member, document)
    {
        size_t n = strlen(found);
        snprintf(found + n, sizeof found - n, "%s%s", n ? " " : "",
                 member->string);
    }
    if (strcmp(found, names) != 0)
        CHECK_FAIL("ropectl %s: '%s', expected '%s'", command, found, names);
    cJSON_Delete(document);
}

TEST(names_stay)
{
    write_constant("x.safetensors", "x", 4, 3);
    write_constant("w.safetensors", "weight", 1, 5);
    expect_names("ops", "operators");
    expect_names("describe rope", "name since summary forms inputs outputs "
                                  "parameters rule");
    expect_names("run rmsnorm x.safetensors", "outputs timing_ms");
    expect_names("verify rmsnorm x.safetensors", "outputs within");
    expect_names("bench rmsnorm --seconds 0.01",
                 "operator calls connections bytes_in bytes_out latency_ms "
                 "calls_per_second bytes_per_second mean_ms");
    expect_names("tables", "tables");
    expect_names("regions", "region_memory used regions");
    expect_names("regions put w w.safetensors",
                 "name kind bytes device tensor dtype shape");
    expect_names("regions get w out", "file bytes");
    expect_names("regions delete w", "");
    expect_names("status", "ready build devices waiting_calls pool_used_bytes "
                           "pool_bytes table_bytes region_bytes operators");
    expect_names("top --count 1 --interval 0.1",
                 "look server per_second load memory regions devices "
                 "operators");
    expect_names("cat x.safetensors", "tensors");
    expect_names("token new a", "token line");
}

/* Everything that a table shows is in the document too. */
TEST(tables_have_what_json_has)
{
    char output[65536];
    cJSON *document;
    const cJSON *member;
    CHECK_INT(command_run("status --output json", output, sizeof output), 0);
    document = cJSON_Parse(output);
    CHECK(document && cJSON_GetArraySize(document) > 5);
    CHECK_INT(command_run("status --output table", output, sizeof output), 0);
    cJSON_ArrayForEach(member, document) CHECK_CONTAINS(output, member->string);
    cJSON_Delete(document);
    CHECK(!strchr(output, '\033')); /* a pipe gets no colours */
}

TEST(every_exit_code_says_what_happened)
{
    command_expect("ops", 0, "rmsnorm");
    command_expect("cat none", 1, "cannot read 'none'");
    command_expect_of_peer("HTTP/1.1 503 No\r\nContent-Length: 20\r\n\r\n"
                           "{\"error\":\"draining\"}",
                           "status --output json", 1,
                           "{\"ready\":false,\"reason\":\"draining\"}");
    command_expect("tables forget", 2, "usage: ropectl tables");
    command_expect("tables get none", 3, "table 'none' does not exist");
    command_expect("tables --server http://127.0.0.1:1", 4,
                   "could not connect");
    command_expect_of_peer("", "tables", 4, "http://127.0.0.1:");
    command_expect_of_peer("HTTP/1.1 503 Busy\r\nContent-Length: 16\r\n\r\n"
                           "{\"error\":\"busy\"}",
                           "tables", 5, "ropectl: busy");
    command_expect_of_peer("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
                           "tables", 5, "the answer is no JSON object");
    command_expect_of_peer(NULL, "tables --timeout 0.2", 6, "timed out after");
}

/* A file of this machine is no request. */
TEST(what_is_wrong_with_a_file_is_said_of_the_file)
{
    command_file("cut.json", "{\"model_type\":", 14);
    command_file("cut.safetensors", "\4\0\0\0\0\0\0\0{\"x\"", 12);
    command_expect("model cut.json", 1,
                   "'cut.json': failed to parse the JSON document: ");
    command_expect("tables put t cut.json", 3,
                   "failed to parse the JSON document: ");
    command_expect("cat cut.safetensors", 1,
                   "'cut.safetensors': failed to parse the JSON of the "
                   "safetensors header");
}

TEST(https_to_a_plain_port_says_so)
{
    char arguments[256];
    if (strncmp(command_server.url, "http:", 5) != 0)
        return; /* ROPED_TEST_TLS */
    snprintf(arguments, sizeof arguments, "status --url https%s",
             command_server.url + 4);
    command_expect(arguments, 4, "speaks plain HTTP: begin with http://");
}

TEST(an_answer_that_cannot_be_written_is_a_failure)
{
    static const char *const commands[] = {
        "--version", "help",          "help run",
        "ops",       "describe rope", "tables",
        "status",    "top --count 1", "token new alice"};
    char arguments[128];
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        snprintf(arguments, sizeof arguments,
                 "%s 2>&1 >/dev/full #", /* no more of the line */
                 commands[i]);
        command_expect(arguments, 1, "cannot write standard output");
        snprintf(arguments, sizeof arguments, "%s 2>&1 >&- #", commands[i]);
        command_expect(arguments, 1, "cannot write standard output");
    }
}

int main(void)
{
    command_start();
    check_run();
    command_end();
    return check_done();
}
