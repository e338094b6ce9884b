/*
 * test_program_refusals.c - what is wrong with a program is said before
 * anything runs, in a sentence that names the step, its operator and the tensor
 * as far as there are any: of documents by PUT, and in the same words by a run
 * of a document that comes along; of tensors by the run.
 */
#include "check.h"
#include "http/harness.h"
#include "http/service.h"

enum { ROWS = 4, WIDTH = 8 };
static const int64_t shape[2] = {ROWS, WIDTH};
static struct server server;

/* ----------------------------------------------------------------- helpers */

/* Appends text with ' in the place of ", as the cases are written. */
static void append(char *out, size_t size, const char *text)
{
    size_t at = strlen(out);
    for (; *text && at < size - 1; text++)
        out[at++] = *text == '\'' ? '"' : *text;
    out[at] = '\0';
}

/* A file of no tensors whose __metadata__ has the document. */
static unsigned char *given(const char *document, size_t *bytes)
{
    size_t size = 2 * strlen(document) + 64;
    char *text = calloc(1, size + sizeof(uint64_t));
    char *at = text + sizeof(uint64_t);
    at = stpcpy(at, "{\"__metadata__\":{\"program\":\"");
    for (; *document; document++) {
        if (*document == '"')
            *at++ = '\\';
        *at++ = *document;
    }
    at = stpcpy(at, "\"}}");
    uint64_t header = (uint64_t)(at - text) - sizeof header;
    memcpy(text, &header, sizeof header);
    *bytes = (size_t)(at - text);
    return (unsigned char *)text;
}

static void put_held(void)
{
    float ones[ROWS * WIDTH];
    struct tensor_file file = {0};
    for (int i = 0; i < ROWS * WIDTH; i++)
        ones[i] = 1;
    file_add(&file, "held", ROPED_F32, 2, shape, ones);
    struct answer answer = ask_file(&server, "PUT", "/v1/regions/held", &file);
    CHECK(answer.code == 200 || answer.code == 201);
    answer_free(&answer);
}

/* Steps before the one that is refused write to the region: have they run? */
static void expect_untouched(const char *what)
{
    struct answer answer = get(&server, "/v1/regions/held");
    if (!are_ones(&answer, ROWS * WIDTH))
        CHECK_FAIL("%s: the region has changed", what);
    answer_free(&answer);
}

/* --------------------------------------------------------------- documents */

#define NORM(from, to)                                                         \
    "{'op': 'rmsnorm', 'in': {'x': '" from "'}, 'out': {'y': '" to "'}}"
#define X(steps) "{'inputs': ['x'], 'steps': [" steps "]}"
#define WRITES   NORM("x", "@held")

/* With these a name is too long. */
#define EIGHT(letter) letter letter letter letter letter letter letter letter
#define LETTERS_128   EIGHT(EIGHT("mm"))

static const struct {
    const char *what, *document;
    int code;
    const char *sentence;
} documents[] = {
    {"unknown operator", X(WRITES ", {'op': 'rmsnrm'}"), 404,
     "step 2: no operator 'rmsnrm'"},
    {"unknown tensor",
     X(WRITES ", {'op': 'rmsnorm', 'in': {'x': 'x', 'z': 'x'}}"), 400,
     "step 2 (rmsnorm): unknown tensor 'z'"},
    {"unknown output",
     X(WRITES ", {'op': 'rmsnorm', 'in': {'x': 'x'}, 'out': {'z': 'h'}}"), 400,
     "step 2 (rmsnorm): unknown output 'z'"},
    {"unknown parameter",
     X(WRITES ", {'op': 'rmsnorm', 'in': {'x': 'x'}, 'params': {'epz': 1}}"),
     400, "step 2 (rmsnorm): unknown parameter 'epz'"},
    {"missing tensor", X(WRITES ", {'op': 'add_rmsnorm', 'in': {'x': 'x'}}"),
     400, "step 2 (add_rmsnorm): missing tensor 'residual'"},
    {"unknown name", X(WRITES ", " NORM("g", "h")), 400,
     "step 2 (rmsnorm): tensor 'x': unknown name 'g'"},
    {"a name made twice", X(NORM("x", "h") ", " NORM("x", "h")), 400,
     "step 2 (rmsnorm): output 'y': 'h' is made by step 1 (rmsnorm) already"},
    {"an input made again", X(WRITES ", " NORM("x", "x")), 400,
     "step 2 (rmsnorm): output 'y': 'x' is an input of the program already"},
    {"used before it is made", X(NORM("h", "g") ", " NORM("x", "h")), 400,
     "step 2 (rmsnorm): output 'y': 'h' is made here, but step 1 (rmsnorm) "
     "uses it as 'x' before"},
    {"a cycle of names", X(WRITES ", " NORM("h", "g") ", " NORM("g", "h")), 400,
     "step 3 (rmsnorm): output 'y': 'h' is made here, but step 2 (rmsnorm) "
     "uses it as 'x' before"},
    {"a step that is its own input", X(WRITES ", " NORM("h", "h")), 400,
     "step 2 (rmsnorm): output 'y': 'h' is made here, but step 2 (rmsnorm) "
     "uses it as 'x' before"},
    {"an output that nobody made",
     "{'inputs': ['x'], 'steps': [" WRITES "], 'outputs': ['h']}", 400,
     "output 'h': no step makes it"},
    {"index values from a step",
     X(NORM("x", "p") ", {'op': 'rope', 'in': {'q': 'x', 'positions': 'p'}, "
                      "'out': {'q': 'o'}}"),
     400,
     "step 2 (rope): tensor 'positions': 'p' is made by step 1 (rmsnorm), "
     "expected an input of the program or a region"},
    {"a cycle that a region makes: index values that a step before writes",
     X(WRITES ", {'op': 'rope', 'in': {'q': 'x', 'positions': '@held'}, "
              "'out': {'q': 'o'}}"),
     400,
     "step 2 (rope): tensor 'positions': step 1 (rmsnorm) writes to '@held', "
     "expected memory that no step before writes to"},
    {"shapes that are declared, in step 200",
     "{'inputs': [{'name': 'h0', 'dtype': 'F32', 'shape': [4, 8]}, {'name': "
     "'r', 'dtype': 'F32', 'shape': [5, 8]}], 'steps': [{'repeat': 199, "
     "'steps': [" NORM("h{i}", "h{i+1}") "]}, {'op': 'add_rmsnorm', 'in': "
                                         "{'x': 'h199', 'residual': 'r'}}]}",
     400,
     "step 200 (add_rmsnorm): tensor 'residual': leading dims [5], expected "
     "[4]"},
    {"one step over the limit",
     X("{'repeat': 1024, 'steps': [" NORM("x", "h{i}") "]}, {'op': 'rope', "
                                                       "'in': {'q': 'x'}}"),
     413, "step 1025 (rope): more than 1024 steps"},
    {"more rounds than steps",
     X("{'repeat': 1025, 'steps': [" NORM("x", "h{i}") "]}"), 400,
     "step 1: 'repeat': 1025, expected 1 to 1024 rounds"},
    {"a member twice", "{'inputs': ['x'], 'steps': [], 'steps': []}", 400,
     "a program: member 'steps' is given twice"},
    {"an operator twice", X("{'op': 'rmsnorm', 'op': 'rope'}"), 400,
     "step 1: member 'op' is given twice"},
    {"a tensor twice", X("{'op': 'rmsnorm', 'in': {'x': 'x', 'x': 'x'}}"), 400,
     "step 1 (rmsnorm): tensor 'x' is given twice"},
    {"a parameter twice",
     X("{'op': 'rmsnorm', 'in': {'x': 'x'}, 'params': {'eps': 1, 'eps': 2}}"),
     400, "step 1 (rmsnorm): parameter 'eps' is given twice"},
    {"twice what no program has", "{'inputs': [], 'steps': []}{'a':1,'a':2}",
     400, "failed to parse the JSON document"},
    {"an input twice", "{'inputs': ['x', 'x'], 'steps': [" WRITES "]}", 400,
     "'x' is an input of the program already"},
    {"an output twice",
     "{'inputs': ['x'], 'steps': [" NORM("x", "h") "], 'outputs': ['h', "
                                                   "'h']}",
     400, "output 'h' is given twice"},
    {"fp8, an option of calls",
     "{'inputs': ['x'], 'parameters': {'fp8': 1}, 'steps': [" WRITES "]}", 400,
     "parameter 'fp8': the name of an option of calls"},
    {"table", "{'parameters': {'table': 1}, 'steps': []}", 400,
     "parameter 'table': the name of an option of calls"},
    {"timing", "{'parameters': {'timing': 1}, 'steps': []}", 400,
     "parameter 'timing': the name of an option of calls"},
    {"warm", "{'parameters': {'warm': 1}, 'steps': []}", 400,
     "parameter 'warm': the name of an option of calls"},
    {"timeout, an option of v2", "{'parameters': {'timeout': 1}, 'steps': []}",
     400, "parameter 'timeout': the name of an option of calls"},
    {"from.x", "{'parameters': {'from.x': 1}, 'steps': []}", 400,
     "parameter 'from.x': the name of an option of calls, or with a '.'"},
    {"a name that is too long", X(NORM("x", "first_" LETTERS_128 "_last")), 400,
     "step 1 (rmsnorm): tensor 'y': name 'first_mmmm"},
};

TEST(documents_are_refused)
{
    enum { N = sizeof documents / sizeof *documents };
    put_held();
    for (int i = 0; i < N; i++) {
        const char *what = documents[i].what;
        char text[1024] = "", sentence[256] = "";
        size_t bytes;
        append(text, sizeof text, documents[i].document);
        snprintf(sentence, sizeof sentence, "%s", documents[i].sentence);
        unsigned char *body = given(text, &bytes);
        expect_code(
            ask(&server, "PUT", "/v1/programs/bad", text, strlen(text), NULL),
            documents[i].code, sentence, what);
        if (!strstr(what, "declared")) /* a run has tensors of its own */
            expect_code(ask(&server, "POST", "/v1/programs", body, bytes, NULL),
                        documents[i].code, sentence, what);
        expect_untouched(what);
        free(body);
    }
    expect_code(get(&server, "/v1/programs"), 200, "{\"programs\":[]}",
                "none of them was kept");
}

static struct answer put(const char *name, const char *document,
                         const char *if_match)
{
    char path[64], text[1024] = "";
    const char *headers[] = {if_match, NULL};
    snprintf(path, sizeof path, "/v1/programs/%s", name);
    append(text, sizeof text, document);
    return ask(&server, "PUT", path, text, strlen(text),
               if_match ? headers : NULL);
}

TEST(names_sizes_and_etags_are_refused)
{
    enum { BYTES = (1 << 20) + 1 };
    char *large = malloc(BYTES);
    memset(large, ' ', BYTES);
    expect_code(
        ask(&server, "PUT", "/v1/programs/large", large, BYTES, NULL), 413,
        "exceeds the maximum allowed 1048576 (1 MiB for a document)", "large");
    free(large);
    expect_code(put("rope", X(NORM("x", "h")), NULL), 400,
                "program 'rope': an operator has this name", "an operator's");
    expect_code(put("pinned", X(NORM("x", "h")), "If-Match: \"0\""), 412,
                "program 'pinned' does not exist", "If-Match of none");
    expect_code(put("pinned", X(NORM("x", "h")), NULL), 201, "", "pinned");
    expect_code(put("pinned", X(NORM("x", "g")), "If-Match: \"0\""), 412,
                "program 'pinned': its ETag is", "If-Match");
    expect_code(get(&server, "/v1/programs/pinned"), 200, "\"h\"",
                "it is as it was");
    expect_code(ask(&server, "DELETE", "/v1/programs/pinned", NULL, 0, NULL),
                200, "", "delete");
}

/* "...%s..." with the ETag in its place, as a header. */
static void condition(char *header, size_t bytes, const char *name,
                      const char *list, const char *etag)
{
    const char *at = strstr(list, "%s");
    snprintf(header, bytes, "%s: %.*s%s%s", name,
             at ? (int)(at - list) : (int)strlen(list), list, at ? etag : "",
             at ? at + 2 : "");
}

/* As RFC 9110 has it: a weak one is the program's to If-None-Match alone. */
TEST(conditions_take_lists)
{
    static const char path[] = "/v1/programs/listed";
    static const struct {
        const char *list; /* %s: the program's */
        bool matches, is_weak;
    } cases[] = {{"%s", true},          {"\"0\", %s", true},
                 {"%s,\"0\"", true},    {"\"a, b\" ,\t%s , ", true},
                 {"W/\"0\", %s", true}, {"0, %s", true},
                 {"*", true},           {"\"0\", \"1\"", false},
                 {"W/%s", false, true}, {"\"0\", W/%s", false, true},
                 {"\"0, %s", false},    {"x%s", false},
                 {"W/W/%s", false},     {",", false}};
    char etag[32], header[128];
    struct answer answer = put("listed", X(NORM("x", "h")), NULL);
    snprintf(etag, sizeof etag, "%s", answer_header(&answer, "ETag"));
    answer_free(&answer);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool matches = cases[i].matches, is_known = matches || cases[i].is_weak;
        const char *headers[] = {header, NULL};
        condition(header, sizeof header, "If-Match", cases[i].list, etag);
        expect_code(put("listed", X(NORM("x", "h")), header),
                    matches ? 200 : 412, "", header);
        expect_code(ask(&server, "GET", path, NULL, 0, headers),
                    matches ? 200 : 412, matches ? "\"h\"" : "", header);
        condition(header, sizeof header, "If-None-Match", cases[i].list, etag);
        expect_code(put("listed", X(NORM("x", "h")), header),
                    is_known ? 412 : 200, is_known ? "expected none of" : "",
                    header);
        answer = ask(&server, "GET", path, NULL, 0, headers);
        CHECK(strcmp(answer_header(&answer, "ETag"), etag) == 0);
        CHECK((answer.bytes == 0) == is_known);
        expect_code(answer, is_known ? 304 : 200, "", header);
        expect_code(ask(&server, "DELETE", path, NULL, 0, headers),
                    is_known ? 412 : 200, "", header);
        expect_code(put("listed", X(NORM("x", "h")), "If-None-Match: *"),
                    is_known ? 412 : 201, "", "made, not replaced");
    }
    expect_code(ask(&server, "POST", path, "", 0,
                    (const char *[]){"If-None-Match: *", NULL}),
                412, "expected none of * (If-None-Match)", "a run");
    expect_code(ask(&server, "DELETE", path, NULL, 0, NULL), 200, "", "delete");
}

/* -------------------------------------------------------------------- runs */

#define REPEAT(n, steps) "{'repeat': " #n ", 'steps': [" steps "]}"
#define LAST                                                                   \
    "{'op': 'add_rmsnorm', 'in': {'x': 'h198', 'residual': 'r'}, 'out': "      \
    "{'y': 'y'}}"
#define LONG                                                                   \
    "{'inputs': ['h0', 'r'], 'steps': [" NORM("h0", "@held") ", " REPEAT(      \
        198, NORM("h{i}", "h{i+1}")) ", " LAST "], 'outputs': ['y']}"

static const struct {
    const char *what, *document, *query;
    const char *name; /* of the second tensor */
    enum roped_dtype dtype;
    int64_t rows;
    const char *sentence;
} runs[] = {
    {"shapes that do not fit, in step 200", LONG, "", "r", ROPED_F32, ROWS + 1,
     "step 200 (add_rmsnorm): tensor 'residual': leading dims [5], expected "
     "[4]"},
    {"a type that does not, in step 200", LONG, "", "r", ROPED_I64, ROWS,
     "step 200 (add_rmsnorm): tensor 'residual': I64, expected F32, BF16 or "
     "F16"},
    {"a tensor that is not the program's", LONG, "", "q", ROPED_F32, ROWS,
     "unknown tensor 'q': the program takes h0, r"},
    {"a parameter that is not", LONG, "?eps=1", "r", ROPED_F32, ROWS,
     "unknown parameter 'eps': the program has none of that name"},
    {"a parameter's value, in step 2",
     "{'inputs': ['h0', 'r'], 'parameters': {'e': null}, 'steps': [" NORM(
         "h0", "@held") ", {'op': 'rmsnorm', 'in': {'x': 'r'}, 'params': "
                        "{'eps': '$e'}}]}",
     "?e=-1", "r", ROPED_F32, ROWS,
     "step 2 (rmsnorm): parameter 'eps': -1, expected 0"},
    {"a parameter that is not given, in step 2",
     "{'inputs': ['h0', 'r'], 'parameters': {'e': null}, 'steps': [" NORM(
         "h0", "@held") ", {'op': 'rmsnorm', 'in': {'x': 'r'}, 'params': "
                        "{'eps': '$e'}}]}",
     "", "r", ROPED_F32, ROWS,
     "step 2 (rmsnorm): parameter 'e' of the program is not given"},
    {"a place behind the end of its region",
     "{'inputs': ['h0', 'r'], 'steps': [" NORM("h0", "@held") ", " NORM(
         "r", "@held:64") "]}",
     "", "r", ROPED_F32, ROWS,
     "step 2 (rmsnorm): tensor 'y': 128 bytes at offset 64 of '@held', which "
     "has 128"},
    {"a step that writes over what it reads: a region's cycle",
     "{'inputs': ['h0', 'r'], 'steps': [" NORM(
         "h0", "@held") ", {'op': "
                        "'rmsnorm', 'in': {'x': {'name': '@held', 'shape': [2, "
                        "8]}}, 'out': "
                        "{'y': '@held:32'}}, " NORM("r", "h") "]}",
     "", "r", ROPED_F32, ROWS,
     "step 2 (rmsnorm): output 'y': bytes 32 to 96 of its region overlap input "
     "'x' at 0 to 64"},
};

TEST(tensors_are_refused_before_any_step_runs)
{
    enum { N = sizeof runs / sizeof *runs };
    int64_t x[(ROWS + 1) * WIDTH] = {0};
    put_held();
    for (int i = 0; i < N; i++) {
        char path[64];
        const int64_t dims[2] = {runs[i].rows, WIDTH};
        struct tensor_file file = {0};
        snprintf(path, sizeof path, "/v1/programs/tried%s", runs[i].query);
        expect_code(put("tried", runs[i].document, NULL), i ? 200 : 201, "",
                    runs[i].what);
        file_add(&file, "h0", ROPED_F32, 2, shape, x);
        file_add(&file, runs[i].name, runs[i].dtype, 2, dims, x);
        expect_code(ask_file(&server, "POST", path, &file), 400,
                    runs[i].sentence, runs[i].what);
        expect_untouched(runs[i].what);
    }
}

TEST(a_region_that_is_not_there_is_named_with_its_step)
{
    struct tensor_file file = {0};
    int64_t x[ROWS * WIDTH] = {0};
    file_add(&file, "x", ROPED_F32, 2, shape, x);
    expect_code(put("lacks",
                    "{'inputs': ['x'], 'steps': [" NORM("x", "h") ", " NORM(
                        "h", "@lacking") ", " NORM("h", "@lacking") "]}",
                    NULL),
                201, "", "put");
    expect_code(ask_file(&server, "POST", "/v1/programs/lacks", &file), 404,
                "step 2 (rmsnorm): no region named 'lacking'", "run");
}

int main(void)
{
    server_start(&server, (const char *[]){NULL});
    check_run();
    CHECK(server_stop(&server));
    return check_done();
}
