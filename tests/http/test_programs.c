/*
 * test_programs.c - programs over HTTP: made, read, matched and forgotten; runs
 * that give the bits of separate calls, with tensors in bodies and in regions;
 * and what is refused, before a byte of a region has changed.
 */
#include "check.h"
#include "http/harness.h"
#include "http/service.h"

#include <pthread.h>
#include <stdatomic.h>

enum { ROWS = 4, WIDTH = 64, SLOTS = 8 };
static const int64_t shape[2] = {ROWS, WIDTH};
static struct server server;

/* ----------------------------------------------------------------- helpers */

static void fill(float *to, int n, int seed)
{
    for (int i = 0; i < n; i++)
        to[i] = (float)((i * 37 + seed * 11) % 97) / 31 - 1.5f;
}

static struct answer put_document(const char *name, const char *document)
{
    char path[128];
    snprintf(path, sizeof path, "/v1/programs/%s", name);
    return ask(&server, "PUT", path, document, strlen(document), NULL);
}

static void put_program(const char *name, const char *document)
{
    expect_code(put_document(name, document), 201, name, name);
}

/* The only tensor of an answer, copied; the caller frees it. */
static void *only(struct answer answer, size_t bytes, const char *what)
{
    struct tensor_file file = {0};
    void *data = calloc(1, bytes);
    if (answer.code != 200 ||
        !file_read(&file, answer.body, answer.bytes, NULL, NULL))
        CHECK_FAIL("%s: answered %d %.300s", what, answer.code, answer.body);
    else if (file.n != 1 ||
             (size_t)roped_tensor_bytes(&file.tensor[0]) != bytes)
        CHECK_FAIL("%s: %d tensors, expected one of %zu bytes", what, file.n,
                   bytes);
    else
        memcpy(data, file.tensor[0].data, bytes);
    file_free(&file);
    answer_free(&answer);
    return data;
}

static void *region(const char *name, size_t bytes)
{
    char path[128];
    snprintf(path, sizeof path, "/v1/regions/%s", name);
    return only(get(&server, path), bytes, name);
}

static struct tensor_file one_file(float *x)
{
    struct tensor_file file = {0};
    file_add(&file, "x", ROPED_F32, 2, shape, x);
    return file;
}

/* ------------------------------------------------------------------- names */

static const char two_norms[] =
    "{\"inputs\": [\"x\"], \"parameters\": {\"e\": 0.5},"
    " \"steps\": ["
    "{\"op\": \"rmsnorm\", \"in\": {\"x\": \"x\"}, \"out\": {\"y\": \"h\"},"
    " \"params\": {\"eps\": \"$e\"}},"
    "{\"op\": \"rmsnorm\", \"in\": {\"x\": \"h\"}, \"out\": {\"y\": \"g\"},"
    " \"params\": {\"eps\": 0.25}}],"
    " \"outputs\": [\"g\"]}";

TEST(a_program_is_made_listed_read_and_forgotten)
{
    put_program("two", two_norms);
    expect_code(put_document("two", two_norms), 200, "\"steps\":2", "again");
    expect_code(get(&server, "/v1/programs"), 200,
                "\"inputs\":[{\"name\":\"x\"}],\"outputs\":[\"g\"],"
                "\"parameters\":{\"e\":\"0.5\"},\"regions\":[]",
                "list");
    struct answer answer = get(&server, "/v1/programs/two");
    CHECK_TEXT(answer.body, two_norms);
    CHECK(answer_header(&answer, "ETag") != NULL);
    answer_free(&answer);
    expect_metric(&server, "roped_programs", 1);
    expect_code(ask(&server, "DELETE", "/v1/programs/two", NULL, 0, NULL), 200,
                "{}", "delete");
    expect_code(get(&server, "/v1/programs/two"), 404,
                "program 'two' does not exist; PUT /v1/programs/two makes it",
                "gone");
    expect_code(ask(&server, "DELETE", "/v1/programs/two", NULL, 0, NULL), 404,
                "no_program", "delete again");
    expect_code(ask(&server, "POST", "/v1/programs/two", NULL, 0, NULL), 404,
                "no_program", "run");
}

TEST(an_etag_pins_a_program)
{
    char matching[64];
    const char *headers[] = {matching, NULL};
    const char *other[] = {"If-Match: \"0000000000000000\"", NULL};
    float x[ROWS * WIDTH];
    size_t bytes;
    fill(x, ROWS * WIDTH, 1);
    struct tensor_file file = one_file(x);
    unsigned char *body = file_write(&file, &bytes);
    struct answer answer = put_document("pinned", two_norms);
    snprintf(matching, sizeof matching, "If-Match: %s",
             answer_header(&answer, "ETag"));
    answer_free(&answer);
    expect_code(ask(&server, "POST", "/v1/programs/pinned", body, bytes, other),
                412, "expected \\\"0000000000000000\\\" (If-Match)", "run");
    answer = ask(&server, "POST", "/v1/programs/pinned", body, bytes, headers);
    CHECK_INT(answer.code, 200);
    CHECK_CONTAINS(matching, answer_header(&answer, "ETag"));
    answer_free(&answer);
    expect_code(ask(&server, "PUT", "/v1/programs/pinned", two_norms,
                    strlen(two_norms), other),
                412, "mismatch", "put");
    expect_code(ask(&server, "PUT", "/v1/programs/none", two_norms,
                    strlen(two_norms), headers),
                412, "does not exist", "put what is not there");
    expect_code(ask(&server, "DELETE", "/v1/programs/pinned", NULL, 0, other),
                412, "mismatch", "delete");
    expect_code(ask(&server, "DELETE", "/v1/programs/pinned", NULL, 0, headers),
                200, "", "delete");
    free(body);
}

TEST(documents_are_refused_with_their_step)
{
    static const struct {
        const char *document;
        int code;
        const char *part;
    } cases[] = {
        {"[]", 400, "a program: an array, expected an object"},
        {"{\"steps\": [], \"step\": 1}", 400,
         "unknown member 'step', expected inputs, steps, outputs, parameters"},
        {"{\"steps\": [], \"steps\": []}", 400, "steps"},
        {"{\"steps\": []}", 400, "a program without steps"},
        {"{\"steps\": [{\"op\": \"nothing\"}]}", 404,
         "step 1: no operator 'nothing'"},
        {"{\"steps\": [{\"op\": \"rmsnorm\", \"output\": {}}]}", 400,
         "step 1: unknown member 'output', expected op, in, out, params"},
        {"{\"steps\": [{\"op\": \"rmsnorm\", \"in\": {\"x\": 1}}]}", 400,
         "step 1 (rmsnorm): tensor 'x': x: 1, expected a name, '@region', or "
         "an object with 'name'"},
        {"{\"steps\": [{\"op\": \"rmsnorm\", \"in\": {\"x\": \"h\"}}]}", 400,
         "step 1 (rmsnorm): tensor 'x': unknown name 'h'"},
        {"{\"inputs\": [\"x\"], \"steps\": [{\"op\": \"rmsnorm\", \"in\": "
         "{\"x\": \"x\"}, \"params\": {\"eps\": \"$f\"}}]}",
         400,
         "step 1 (rmsnorm): parameter 'eps': '$f', but the program has no "
         "parameter of that name"},
        {"{\"parameters\": {\"fp8\": 1}, \"steps\": []}", 400,
         "parameter 'fp8': the name of an option of calls"},
        {"{\"parameters\": {\"a.b\": 1}, \"steps\": []}", 400,
         "parameter 'a.b': the name of an option of calls, or with a '.'"},
        {"{\"inputs\": [\"__metadata__\"], \"steps\": []}", 400,
         "a name that safetensors files keep for themselves"},
        {"{\"inputs\": [\"x\"], \"steps\": [{\"repeat\": 0, \"steps\": []}]}",
         400, "step 1: 'repeat': 0, expected 1 to 1024 rounds"},
        {"{\"inputs\": [\"h0\"], \"steps\": [{\"repeat\": 1024, \"steps\": ["
         "{\"op\": \"rmsnorm\", \"in\": {\"x\": \"h{i}\"}, \"out\": {\"y\": "
         "\"h{i+1}\"}}]}, {\"op\": \"rmsnorm\", \"in\": {\"x\": \"h0\"}}]}",
         413, "more than 1024 steps"},
        {"{\"inputs\": [{\"name\": \"x\", \"dtype\": \"F32\", \"shape\": [2, "
         "8]}, {\"name\": \"r\", \"dtype\": \"F32\", \"shape\": [3, 8]}], "
         "\"steps\": [{\"op\": \"add_rmsnorm\", \"in\": {\"x\": \"x\", "
         "\"residual\": \"r\"}, \"out\": {\"y\": \"y\"}}]}",
         400, "step 1 (add_rmsnorm): tensor 'residual': "},
        {"{\"inputs\": [\"x\"], \"steps\": [{\"op\": \"rmsnorm\", \"in\": "
         "{\"x\": \"x\"}, \"out\": {\"y\": {\"name\": \"y\", \"shape\": "
         "[1]}}}]}",
         400, "output 'y': dtype, shape or stride beside 'y'"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_code(put_document("bad", cases[i].document), cases[i].code,
                    cases[i].part, cases[i].document);
    expect_code(put_document("rmsnorm", two_norms), 400,
                "an operator has this name", "an operator's name");
    expect_code(put_document("Two", two_norms), 400, "expected a small letter",
                "a capital");
    char *large = malloc((2 << 20) + 1);
    memset(large, ' ', 2 << 20);
    large[2 << 20] = '\0';
    expect_code(put_document("large", large), 413, "too_large", "2 MiB");
    free(large);
    expect_code(get(&server, "/v1/programs"), 200, "{\"programs\":[]}", "none");
}

/* -------------------------------------------------------------------- runs */

TEST(a_run_gives_the_bits_of_calls)
{
    enum { BYTES = ROWS * WIDTH * sizeof(float) };
    float x[ROWS * WIDTH];
    fill(x, ROWS * WIDTH, 1);
    struct tensor_file file = one_file(x);
    put_program("two", two_norms);
    float *h = only(ask_file(&server, "POST", "/v1/rmsnorm?eps=0.125", &file),
                    BYTES, "step 1");
    struct tensor_file second = one_file(h);
    float *g = only(ask_file(&server, "POST", "/v1/rmsnorm?eps=0.25", &second),
                    BYTES, "step 2");
    float *y =
        only(ask_file(&server, "POST", "/v1/programs/two?e=0.125", &file),
             BYTES, "the program");
    CHECK(memcmp(g, y, BYTES) == 0);
    expect_code(ask_file(&server, "POST", "/v1/programs/two?f=1", &file), 400,
                "unknown parameter 'f'", "parameter");
    expect_code(ask_file(&server, "POST", "/v1/programs/two?e=-1", &file), 400,
                "step 1 (rmsnorm): parameter 'eps': -1", "value");
    expect_code(ask(&server, "POST", "/v1/programs/two", NULL, 0, NULL), 400,
                "missing tensor 'x'", "nothing sent");
    expect_code(ask_file(&server, "POST", "/v1/programs/two?from.z=r", &file),
                400, "unknown tensor 'z', the program takes x", "region");
    snprintf(file.name[0], sizeof file.name[0], "z");
    expect_code(ask_file(&server, "POST", "/v1/programs/two", &file), 400,
                "unknown tensor 'z': the program takes x", "tensor");
    expect_metric(&server,
                  "roped_requests_total{op=\"program\",status=\"ok\","
                  "transport=\"v1\"}",
                  2);
    free(h);
    free(g);
    free(y);
}

/* note_metadata: the text of one entry. */
static void note_times(void *context, const char *name, const char *value)
{
    if (strcmp(name, "step_us") == 0)
        snprintf(context, 64, "%s", value);
}

/* Made, repeated or missed, on the first device. */
static double recordings(void)
{
    return metric(&server, "roped_program_captures_total{device=\"0\"}") +
           metric(&server, "roped_program_replays_total{device=\"0\"}") +
           metric(&server, "roped_program_fallbacks_total{device=\"0\"}");
}

TEST(steps_are_timed_one_by_one)
{
    float x[ROWS * WIDTH];
    fill(x, ROWS * WIDTH, 1);
    struct tensor_file file = one_file(x), made = {0};
    put_program("timed", two_norms);
    for (int i = 0; i < 4; i++) { /* between runs that may be repeated */
        char times[64] = "";
        char *end = NULL;
        float *plain =
            only(ask_file(&server, "POST", "/v1/programs/timed", &file),
                 sizeof x, "plain");
        double before = recordings();
        struct answer answer =
            ask_file(&server, "POST", "/v1/programs/timed?timing=steps", &file);
        CHECK(file_read(&made, answer.body, answer.bytes, note_times, times));
        CHECK(memcmp(plain, made.tensor[0].data, sizeof x) == 0);
        CHECK_DOUBLE(recordings(), before, 0);
        CHECK(strtod(times, &end) > 0 && *end == ',');
        CHECK(strtod(end + 1, &end) > 0 && *end == '\0');
        file_free(&made);
        answer_free(&answer);
        free(plain);
    }
    expect_code(
        ask_file(&server, "POST", "/v1/programs/timed?timing=all", &file), 400,
        "parameter 'timing': 'all', expected steps", "value");
    expect_code(ask_file(&server, "POST",
                         "/v1/programs/timed?timing=steps&timing=steps", &file),
                400, "parameter 'timing' is given twice", "twice");
    expect_code(ask_file(&server, "POST", "/v1/rmsnorm?timing=steps", &file),
                400, "unknown parameter 'timing'", "a call");
}

TEST(inputs_and_outputs_are_bound_to_regions)
{
    enum { BYTES = ROWS * WIDTH * sizeof(float) };
    float x[ROWS * WIDTH], zero[2 * ROWS * WIDTH] = {0};
    const int64_t both[2] = {2 * ROWS, WIDTH};
    fill(x, ROWS * WIDTH, 2);
    struct tensor_file file = one_file(x);
    store_region(&server, "in", ROPED_F32, 2, shape, x);
    store_region(&server, "out", ROPED_F32, 2, both, zero);
    float *y = only(ask_file(&server, "POST", "/v1/programs/two", &file), BYTES,
                    "body");
    expect_code(ask(&server, "POST",
                    "/v1/programs/two?from.x=in&into.g=out:1024", NULL, 0,
                    NULL),
                200, "", "regions");
    float *out = region("out", 2 * BYTES);
    CHECK(memcmp(out + ROWS * WIDTH, y, BYTES) == 0 && out[0] == 0);
    expect_code(ask(&server, "POST",
                    "/v1/programs/two?from.x=in&into.g=out:1028", NULL, 0,
                    NULL),
                400, "out", "too far");
    expect_code(ask(&server, "POST", "/v1/programs/two?from.x=in&into.g=out:2",
                    NULL, 0, NULL),
                400, "expected a multiple of 4", "misaligned");
    expect_code(
        ask(&server, "POST", "/v1/programs/two?from.x=none", NULL, 0, NULL),
        404, "no_region", "no region");
    free(y);
    free(out);
}

static const char decode[] =
    "{\"inputs\": [\"x\", \"positions\", \"slots\"],"
    " \"steps\": ["
    "{\"op\": \"add_rmsnorm\","
    " \"in\": {\"x\": \"x\", \"residual\": \"@hidden\", \"weight\": \"@w\"},"
    " \"out\": {\"y\": \"@qkv\", \"residual\": \"@hidden\"}},"
    "{\"op\": \"rope_append\","
    " \"in\": {\"q\": {\"name\": \"@qkv\", \"shape\": [4, 1, 16], \"stride\": "
    "64},"
    " \"k\": {\"name\": \"@qkv:64\", \"shape\": [4, 1, 16], \"dtype\": \"F32\","
    " \"stride\": 64},"
    " \"v\": {\"name\": \"@qkv:128\", \"shape\": [4, 1, 16], \"stride\": 64},"
    " \"k_cache\": \"@keys\", \"v_cache\": \"@values\","
    " \"slots\": \"slots\", \"positions\": \"positions\"},"
    " \"params\": {\"angles\": \"compute\"},"
    " \"out\": {\"q\": \"q\"}}],"
    " \"outputs\": [\"q\"]}";

enum { HEAD = 16, CACHE = SLOTS * HEAD };

static void put_decode_regions(void)
{
    static float hidden[ROWS * WIDTH], w[WIDTH], qkv[ROWS * WIDTH],
        cache[CACHE];
    const int64_t width[1] = {WIDTH}, cells[3] = {SLOTS, 1, HEAD};
    fill(hidden, ROWS * WIDTH, 5);
    fill(w, WIDTH, 6);
    store_region(&server, "hidden", ROPED_F32, 2, shape, hidden);
    store_region(&server, "w", ROPED_F32, 1, width, w);
    store_region(&server, "qkv", ROPED_F32, 2, shape, qkv);
    store_region(&server, "keys", ROPED_F32, 3, cells, cache);
    store_region(&server, "values", ROPED_F32, 3, cells, cache);
}

static struct tensor_file decode_file(float *x, int64_t *positions,
                                      int64_t *slots)
{
    const int64_t tokens[1] = {ROWS};
    struct tensor_file file = one_file(x);
    file_add(&file, "positions", ROPED_I64, 1, tokens, positions);
    file_add(&file, "slots", ROPED_I64, 1, tokens, slots);
    return file;
}

/* What the regions of the loop hold after it. */
static void read_decode(float *out)
{
    static const char *const names[] = {"hidden", "keys", "values"};
    static const size_t sizes[] = {ROWS * WIDTH, CACHE, CACHE};
    for (int i = 0; i < 3; i++) {
        float *data = region(names[i], sizes[i] * sizeof *data);
        memcpy(out, data, sizes[i] * sizeof *data);
        out += sizes[i];
        free(data);
    }
}

/* One step of the loop by separate calls. */
static float *decode_by_calls(float *x, int64_t *positions, int64_t *slots)
{
    const int64_t tokens[1] = {ROWS};
    struct tensor_file first = one_file(x), second = {0};
    expect_code(ask_file(&server, "POST",
                         "/v1/add_rmsnorm?from.residual=hidden&"
                         "from.weight=w&into.y=qkv&"
                         "into.residual=hidden",
                         &first),
                200, "", "step 1");
    file_add(&second, "positions", ROPED_I64, 1, tokens, positions);
    file_add(&second, "slots", ROPED_I64, 1, tokens, slots);
    return only(
        ask_file(&server, "POST",
                 "/v1/rope_append?angles=compute&from.q=qkv&shape.q=4,1,16&"
                 "stride.q=64&from.k=qkv:64&shape.k=4,1,16&stride.k=64&"
                 "from.v=qkv:128&shape.v=4,1,16&stride.v=64&"
                 "from.k_cache=keys&from.v_cache=values",
                 &second),
        ROWS * HEAD * sizeof(float), "step 2");
}

TEST(a_decode_loop_gives_the_bits_of_calls)
{
    enum { ROUNDS = 5, STATE = ROWS * WIDTH + 2 * CACHE };
    static float expected[STATE], found[STATE], x[ROWS * WIDTH];
    float *q[ROUNDS];
    put_program("decode", decode);
    for (int way = 0; way < 2; way++) {
        put_decode_regions();
        for (int i = 0; i < ROUNDS; i++) {
            int64_t positions[ROWS] = {i, i + 100, 7, i * 1000},
                    slots[ROWS] = {i % SLOTS, (i + 1) % SLOTS, -1,
                                   (i + 3) % SLOTS};
            fill(x, ROWS * WIDTH, i);
            struct tensor_file file = decode_file(x, positions, slots);
            float *made = way == 0
                              ? decode_by_calls(x, positions, slots)
                              : only(ask_file(&server, "POST",
                                              "/v1/programs/decode", &file),
                                     ROWS * HEAD * sizeof(float), "decode");
            if (way == 1) {
                CHECK(memcmp(made, q[i], ROWS * HEAD * sizeof *made) == 0);
                free(q[i]);
            }
            q[i] = made;
        }
        read_decode(way == 0 ? expected : found);
        for (int i = 0; i < ROUNDS && way == 1; i++)
            free(q[i]);
    }
    CHECK(memcmp(expected, found, sizeof found) == 0);
}

TEST(what_is_refused_has_changed_nothing)
{
    static float before[ROWS * WIDTH + 2 * CACHE],
        after[ROWS * WIDTH + 2 * CACHE];
    float x[ROWS * WIDTH];
    int64_t positions[ROWS] = {1, 2, 3, 4}, slots[ROWS] = {0, 1, SLOTS, 2};
    fill(x, ROWS * WIDTH, 9);
    struct tensor_file file = decode_file(x, positions, slots);
    read_decode(before);
    expect_code(ask_file(&server, "POST", "/v1/programs/decode", &file), 400,
                "step 2 (rope_append): tensor 'slots': slot 8 at index 2",
                "a slot that is none");
    expect_code(ask(&server, "DELETE", "/v1/regions/values", NULL, 0, NULL),
                200, "", "delete");
    slots[2] = 3;
    expect_code(ask_file(&server, "POST", "/v1/programs/decode", &file), 404,
                "values", "a region that is gone");
    float cache[CACHE] = {0};
    const int64_t cells[3] = {SLOTS, 1, HEAD};
    memcpy(cache, before + ROWS * WIDTH + CACHE, sizeof cache);
    store_region(&server, "values", ROPED_F32, 3, cells, cache);
    read_decode(after);
    CHECK(memcmp(before, after, sizeof before) == 0);
}

TEST(an_updated_tensor_of_the_body_comes_back)
{
    const char *document =
        "{\"inputs\": [\"q\", \"c\", \"d\", \"s\"], \"steps\": [{\"op\": "
        "\"rope_append\", \"in\": {\"q\": \"q\", \"k\": \"q\", \"v\": \"q\", "
        "\"k_cache\": \"c\", \"v_cache\": \"d\", \"slots\": \"s\"}, \"out\": "
        "{\"v_cache\": \"d1\"}}], \"outputs\": [\"d1\"]}";
    float q[2 * HEAD], c[CACHE] = {0}, d[CACHE];
    int64_t slots[2] = {5, 1};
    const int64_t heads[3] = {2, 1, HEAD}, cells[3] = {SLOTS, 1, HEAD},
                  tokens[1] = {2};
    struct tensor_file file = {0};
    fill(q, 2 * HEAD, 3);
    fill(d, CACHE, 4);
    file_add(&file, "q", ROPED_F32, 3, heads, q);
    file_add(&file, "c", ROPED_F32, 3, cells, c);
    file_add(&file, "d", ROPED_F32, 3, cells, d);
    file_add(&file, "s", ROPED_I64, 1, tokens, slots);
    put_program("update", document);
    float *out = only(ask_file(&server, "POST", "/v1/programs/update", &file),
                      sizeof d, "update");
    memcpy(d + 5 * HEAD, q, HEAD * sizeof *q);
    memcpy(d + HEAD, q + HEAD, HEAD * sizeof *q);
    CHECK(memcmp(d, out, sizeof d) == 0);
    free(out);
    store_region(&server, "d", ROPED_F32, 3, cells, d); /* there it stays */
    file.n--;
    file.n--;
    file_add(&file, "s", ROPED_I64, 1, tokens, slots);
    struct answer answer =
        ask_file(&server, "POST", "/v1/programs/update?from.d=d", &file);
    struct tensor_file none = {0};
    CHECK_INT(answer.code, 200);
    CHECK(file_read(&none, answer.body, answer.bytes, NULL, NULL));
    CHECK_INT(none.n, 0);
    file_free(&none);
    answer_free(&answer);
}

TEST(index_values_come_out_of_regions)
{
    const char *document =
        "{\"inputs\": [\"q\", \"p\"], \"steps\": [{\"op\": \"rope\", \"in\": "
        "{\"q\": \"q\", \"positions\": \"p\"}, \"params\": {\"angles\": "
        "\"compute\"}, \"out\": {\"q\": \"a\"}}, {\"op\": \"rope\", \"in\": "
        "{\"q\": \"a\", \"positions\": \"@p\"}, \"params\": {\"angles\": "
        "\"compute\"}, \"out\": {\"q\": \"b\"}}], \"outputs\": [\"b\"]}";
    float q[2 * HEAD];
    int64_t positions[2] = {5, 1};
    const int64_t heads[3] = {2, 1, HEAD}, tokens[1] = {2};
    struct tensor_file file = {0};
    fill(q, 2 * HEAD, 3);
    file_add(&file, "q", ROPED_F32, 3, heads, q);
    store_region(&server, "p", ROPED_I64, 1, tokens, positions);
    put_program("twice", document);
    file_add(&file, "p", ROPED_I64, 1, tokens, positions);
    float *expected =
        only(ask_file(&server, "POST", "/v1/programs/twice", &file), sizeof q,
             "body");
    file.n--;
    float *found =
        only(ask_file(&server, "POST", "/v1/programs/twice?from.p=p", &file),
             sizeof q, "region");
    CHECK(memcmp(expected, found, sizeof q) == 0);
    free(expected);
    free(found);
    expect_code(put_document("twice",
                             "{\"inputs\": [\"q\", \"p\"], \"steps\": "
                             "[{\"op\": \"rmsnorm\", \"in\": {\"x\": \"q\"}, "
                             "\"out\": {\"y\": \"@p\"}}, {\"op\": \"rope\", "
                             "\"in\": {\"q\": \"q\", \"positions\": \"p\"}}]}"),
                200, "", "put");
    expect_code(
        ask_file(&server, "POST", "/v1/programs/twice?from.p=p", &file), 400,
        "step 1 (rmsnorm): tensor 'y': 128 bytes at offset 0 of '@p', which "
        "has 16",
        "too large for @p");
    int64_t more[2 * HEAD] = {0}, many[1] = {2 * HEAD};
    store_region(&server, "p", ROPED_I64, 1, many, more);
    expect_code(ask_file(&server, "POST",
                         "/v1/programs/twice?from.p=p&shape.p=2&dtype.p=I64",
                         &file),
                400,
                "step 2 (rope): tensor 'positions': step 1 (rmsnorm) writes to "
                "the region that it is in",
                "written before");
}

TEST(a_document_comes_with_its_inputs)
{
    enum { BYTES = ROWS * WIDTH * sizeof(float) };
    float x[ROWS * WIDTH];
    char header[2048], text[1024];
    fill(x, ROWS * WIDTH, 1);
    struct tensor_file file = one_file(x);
    size_t at = 0;
    for (const char *from = two_norms; *from; from++) {
        if (*from == '"')
            text[at++] = '\\';
        text[at++] = *from;
    }
    text[at] = '\0';
    snprintf(header, sizeof header,
             "{\"__metadata__\":{\"program\":\"%s\"},\"x\":{\"dtype\":\"F32\","
             "\"shape\":[%d,%d],\"data_offsets\":[0,%zu]}}",
             text, ROWS, WIDTH, (size_t)BYTES);
    uint64_t length = strlen(header);
    unsigned char *body = malloc(8 + length + BYTES);
    memcpy(body, &length, 8);
    memcpy(body + 8, header, length);
    memcpy(body + 8 + length, x, BYTES);
    float *expected = only(ask_file(&server, "POST", "/v1/programs/two", &file),
                           BYTES, "named");
    float *found = only(
        ask(&server, "POST", "/v1/programs", body, 8 + length + BYTES, NULL),
        BYTES, "given");
    CHECK(memcmp(expected, found, BYTES) == 0);
    expect_code(ask_file(&server, "POST", "/v1/programs", &file), 400,
                "no program: expected its document", "none");
    free(expected);
    free(found);
    free(body);
}

TEST(named_tables_give_the_angles)
{
    const char *document =
        "{\"inputs\": [\"q\"], \"parameters\": {\"t\": \"mine\"}, \"steps\": "
        "[{\"repeat\": 2, \"steps\": [{\"op\": \"rope\", \"in\": {\"q\": "
        "\"q\"}, \"out\": {\"q\": \"o{i}\"}, \"params\": {\"table\": "
        "\"$t\"}}]}],"
        " \"outputs\": [\"o1\"]}";
    float q[2 * HEAD];
    const int64_t heads[3] = {2, 1, HEAD};
    struct tensor_file file = {0};
    fill(q, 2 * HEAD, 3);
    file_add(&file, "q", ROPED_F32, 3, heads, q);
    put_program("tabled", document);
    expect_code(ask_file(&server, "POST", "/v1/programs/tabled", &file), 404,
                "table 'mine' does not exist", "no table");
    expect_code(
        ask(&server, "PUT", "/v1/tables/mine", "{\"theta\":500}", 13, NULL),
        201, "", "table");
    float *expected =
        only(ask_file(&server, "POST", "/v1/rope?table=mine", &file), sizeof q,
             "call");
    float *found = only(ask_file(&server, "POST", "/v1/programs/tabled", &file),
                        sizeof q, "program");
    CHECK(memcmp(expected, found, sizeof q) == 0);
    free(expected);
    free(found);
}

/* ------------------------------------------------------------------ threads */

enum { THREADS = 16, RUNS = 40 };

static const char weighted[] =
    "{\"inputs\": [\"x\"], \"steps\": ["
    "{\"op\": \"rmsnorm\", \"in\": {\"x\": \"x\", \"weight\": \"@w\"},"
    " \"out\": {\"y\": \"h\"}},"
    "{\"op\": \"add_rmsnorm\", \"in\": {\"x\": \"h\", \"residual\": \"x\"},"
    " \"out\": {\"y\": \"y\"}}], \"outputs\": [\"y\"]}";

struct runner {
    pthread_t thread;
    float x[ROWS * WIDTH];
    float expected[2][ROWS * WIDTH]; /* with the one weight, with the other */
    int n_wrong;
};

static atomic_bool is_over;

static void put_weight(int which)
{
    static float w[2][WIDTH];
    const int64_t width[1] = {WIDTH};
    fill(w[0], WIDTH, 20);
    fill(w[1], WIDTH, 21);
    store_region(&server, "w", ROPED_F32, 1, width, w[which]);
}

static void *replace_weight(void *context)
{
    (void)context;
    for (int i = 0; !atomic_load(&is_over); i++)
        put_weight(i % 2);
    return NULL;
}

static void *run_often(void *context)
{
    struct runner *runner = context;
    struct tensor_file file = one_file(runner->x);
    for (int i = 0; i < RUNS; i++) {
        float *y =
            only(ask_file(&server, "POST", "/v1/programs/weighted", &file),
                 sizeof runner->x, "weighted");
        runner->n_wrong +=
            memcmp(y, runner->expected[0], sizeof runner->x) != 0 &&
            memcmp(y, runner->expected[1], sizeof runner->x) != 0;
        free(y);
    }
    return NULL;
}

/* Values differ per thread; the region that all read is replaced meanwhile. */
TEST(threads_run_one_program_while_its_region_is_replaced)
{
    static struct runner runners[THREADS];
    pthread_t replacer;
    put_program("weighted", weighted);
    for (int which = 0; which < 2; which++) {
        put_weight(which);
        for (int i = 0; i < THREADS; i++) {
            fill(runners[i].x, ROWS * WIDTH, 30 + i);
            struct tensor_file file = one_file(runners[i].x);
            float *y =
                only(ask_file(&server, "POST", "/v1/programs/weighted", &file),
                     sizeof runners[i].x, "weighted");
            memcpy(runners[i].expected[which], y, sizeof runners[i].x);
            free(y);
        }
    }
    atomic_store(&is_over, false);
    CHECK(!pthread_create(&replacer, NULL, replace_weight, NULL));
    for (int i = 0; i < THREADS; i++)
        CHECK(
            !pthread_create(&runners[i].thread, NULL, run_often, &runners[i]));
    for (int i = 0; i < THREADS; i++) {
        CHECK(!pthread_join(runners[i].thread, NULL));
        CHECK_INT(runners[i].n_wrong, 0);
    }
    atomic_store(&is_over, true);
    CHECK(!pthread_join(replacer, NULL));
}

int main(void)
{
    server_start(&server, (const char *[]){NULL});
    check_run();
    CHECK(server_stop(&server));
    return check_done();
}
