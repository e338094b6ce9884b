/*
 * test_program_calls.c - random programs over HTTP, with their places in
 * regions: answers and regions have the bits that separate calls in process
 * give.
 *   test_program_calls [PROGRAMS] [SEED] [cpu|cuda]
 * The last is where separate calls run: on a GPU as the daemon (default cpu).
 */
#include "calls/random_program.h"
#include "check.h"
#include "http/service.h"
#include "wire/buffer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct server server;
static struct roped_session *session;
static struct random_program made;
static int64_t n_steps, n_made, n_run, n_bytes;

enum { RUNS = 6 };

/* ---------------------------------------------------------------- document */

static void write_names(struct buffer *buffer, const char *title,
                        enum random_value_kind kind)
{
    int n = 0;
    buffer_printf(buffer, "\"%s\":[", title);
    for (int i = 0; i < made.n_values; i++) {
        const struct random_value *value = &made.value[i];
        bool is_one =
            kind == VALUE_MADE ? value->is_output : value->kind == kind;
        if (is_one)
            buffer_printf(buffer, "%s\"%s\"", n++ ? "," : "", value->name);
    }
    buffer_text(buffer, "]");
}

static void write_step(struct buffer *buffer, const struct random_step *step)
{
    const struct roped_op *op = step->call.op;
    int n = 0;
    buffer_printf(buffer, "{\"op\":\"%s\",\"params\":{", op->name);
    for (int i = 0; i < roped_op_params(op); i++) {
        if (!step->call.has_param[i])
            continue;
        buffer_printf(buffer, "%s\"%s\":", n++ ? "," : "", op->param[i].name);
        buffer_json_string(buffer, step->call.param[i]);
    }
    buffer_text(buffer, "},\"in\":{");
    for (int i = 0; i < step->n_in; i++)
        buffer_printf(buffer, "%s\"%s\":\"%s\"", i ? "," : "",
                      op->in[step->in[i].port].name,
                      made.value[step->in[i].value].name);
    buffer_text(buffer, "},\"out\":{");
    for (int i = 0; i < step->n_out; i++)
        buffer_printf(buffer, "%s\"%s\":\"%s\"", i ? "," : "",
                      op->out[step->out[i].port].name,
                      made.value[step->out[i].value].name);
    buffer_text(buffer, "}}");
}

static void write_document(struct buffer *buffer)
{
    buffer_text(buffer, "{");
    write_names(buffer, "inputs", VALUE_INPUT);
    buffer_text(buffer, ",\"steps\":[");
    for (int i = 0; i < made.n_steps; i++) {
        buffer_text(buffer, i ? "," : "");
        write_step(buffer, &made.step[i]);
    }
    buffer_text(buffer, "],");
    write_names(buffer, "outputs", VALUE_MADE);
    buffer_text(buffer, "}");
}

static bool put_program(uint64_t seed)
{
    struct buffer document;
    buffer_init(&document);
    write_document(&document);
    struct answer answer = ask(&server, "PUT", "/v1/programs/random",
                               document.text, document.bytes, NULL);
    bool is_good = answer.code == 200 || answer.code == 201;
    if (!is_good)
        CHECK_FAIL("seed %" PRIu64 ": PUT answered %d %.300s", seed,
                   answer.code, answer.body);
    answer_free(&answer);
    buffer_fini(&document);
    return is_good;
}

/* ----------------------------------------------------------------- tensors */

static void put_regions(uint64_t seed)
{
    char path[64];
    for (int i = 0; i < made.n_values; i++) {
        const struct random_value *value = &made.value[i];
        struct tensor_file file = {0};
        if (value->kind != VALUE_PLACE)
            continue;
        snprintf(path, sizeof path, "/v1/regions/%s", value->name + 1);
        file_add(&file, "t", value->tensor.dtype, value->tensor.rank,
                 value->tensor.dims, value->before);
        struct answer answer = ask_file(&server, "PUT", path, &file);
        if (answer.code != 200 && answer.code != 201)
            CHECK_FAIL("seed %" PRIu64 ": %s answered %d %.200s", seed, path,
                       answer.code, answer.body);
        answer_free(&answer);
    }
}

static void compare(const struct random_value *value, const void *found,
                    size_t bytes, uint64_t seed)
{
    n_bytes += (int64_t)bytes;
    if (bytes != value->bytes || (bytes && memcmp(found, value->after, bytes)))
        CHECK_FAIL("seed %" PRIu64 ": '%s' of a program of %d steps has other "
                   "bits than separate calls give",
                   seed, value->name, made.n_steps);
}

static void compare_regions(uint64_t seed)
{
    char path[64];
    for (int i = 0; i < made.n_values; i++) {
        struct tensor_file file = {0};
        if (made.value[i].kind != VALUE_PLACE)
            continue;
        snprintf(path, sizeof path, "/v1/regions/%s", made.value[i].name + 1);
        struct answer answer = get(&server, path);
        if (file_read(&file, answer.body, answer.bytes, NULL, NULL) &&
            file.n == 1)
            compare(&made.value[i], file.tensor[0].data,
                    (size_t)roped_tensor_bytes(&file.tensor[0]), seed);
        else
            CHECK_FAIL("seed %" PRIu64 ": %s has no tensor", seed, path);
        file_free(&file);
        answer_free(&answer);
        answer = ask(&server, "DELETE", path, NULL, 0, NULL);
        answer_free(&answer);
    }
}

/* Those that an input in a region keeps there are not sent. */
static void compare_answer(const struct answer *answer, uint64_t seed)
{
    struct tensor_file file = {0};
    if (!file_read(&file, answer->body, answer->bytes, NULL, NULL)) {
        CHECK_FAIL("seed %" PRIu64 ": no safetensors file came back", seed);
        return;
    }
    CHECK_INT(file.n, made.n_outputs);
    for (int i = 0; i < made.n_values; i++) {
        const struct random_value *value = &made.value[i];
        const struct roped_tensor *tensor = file_find(&file, value->name);
        if (value->is_output && tensor)
            compare(value, tensor->data, (size_t)roped_tensor_bytes(tensor),
                    seed);
    }
    file_free(&file);
}

/* Sends it once; false where it does not run. */
static bool run(struct tensor_file *file, uint64_t seed)
{
    put_regions(seed);
    struct answer answer =
        ask_file(&server, "POST", "/v1/programs/random", file);
    /* angles=table may want a table that is larger than any is made */
    bool is_table = answer.code == 413 && strstr(answer.body, "table") != NULL;
    bool is_good = answer.code == 200;
    if (is_good) {
        compare_answer(&answer, seed);
        compare_regions(seed);
    } else if (!is_table) {
        CHECK_FAIL("seed %" PRIu64 ": answered %d %.300s", seed, answer.code,
                   answer.body);
    }
    answer_free(&answer);
    return is_good;
}

static void check_program(uint64_t seed)
{
    struct random_source source = {seed};
    struct tensor_file file = {0};
    bool is_good = true;
    random_program_make(&made, session, FILE_TENSORS, &source);
    n_steps += made.n_steps;
    for (int i = 0; i < made.n_values; i++)
        if (made.value[i].kind == VALUE_INPUT)
            file_add(&file, made.value[i].name, made.value[i].tensor.dtype,
                     made.value[i].tensor.rank, made.value[i].tensor.dims,
                     made.value[i].before);
    /* the second is recorded, and later ones repeat that, where their
     * regions are in the same memory */
    is_good = put_program(seed);
    for (int i = 0; i < RUNS && is_good; i++)
        is_good = run(&file, seed);
    n_made++;
    n_run += is_good;
    random_program_free(&made);
}

int main(int argc, char **argv)
{
    int64_t n = argc > 1 ? strtoll(argv[1], NULL, 10) : 60;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    session = random_program_open(argc > 3 ? argv[3] : "cpu");
    if (!session) {
        printf("skipped: no device for backend '%s'\n", argv[3]);
        return CHECK_SKIP;
    }
    /* of one lane: runs of one kind meet there */
    server_start(&server, (const char *[]){"--lanes", "1", NULL});
    for (int64_t i = 0; i < n && check_failures < 10; i++)
        if (check_takes_case())
            check_program(seed + (uint64_t)i);
    random_program_close(session);
    double captures =
        metric(&server, "roped_program_captures_total{device=\"0\"}");
    double replays =
        metric(&server, "roped_program_replays_total{device=\"0\"}");
    CHECK(server_stop(&server));
    printf("%" PRId64 " of %" PRId64 " programs ran, %" PRId64
           " steps, %" PRId64
           " bytes compared, %.0f runs recorded, %.0f repeated\n",
           n_run, n_made, n_steps, n_bytes, captures, replays);
    CHECK(captures <= 0 || replays > 0);
    CHECK(n_run * 10 >= n_made * 8);
    return check_done();
}
