/*
 * test_negative.c - what must be refused, most of it made from the operator
 * table: each case answers the right 4xx with a message that names the
 * culprit, and the daemon lives on.
 */
#include "check.h"
#include "http/harness.h"
#include "http/service.h"
#include "http/sound.h"
#include "wire/buffer.h"

#include <roped/op.h>

#include <math.h>

static struct server server;
static int n_cases;

static float *const floats = sound_floats;
static int64_t *const longs = sound_zeros;
static int64_t counting[64] = {0, 1, 2, 3, 4, 5, 6, 7, 8};

/* ----------------------------------------------------------------- asking */

static void expect(const struct answer *answer, int code, const char *culprit,
                   const char *what)
{
    n_cases++;
    if (answer->code != code || !answer_code(answer)[0] ||
        !strstr(answer->body, culprit))
        CHECK_FAIL("%s: answered %d %.300s, expected %d and a code, naming "
                   "'%s'",
                   what, answer->code, answer->body, code, culprit);
}

static struct answer post_body(const struct sound *sound, const char *extra,
                               const void *body, size_t bytes)
{
    char path[1024];
    snprintf(path, sizeof path, "/v1/%s?%s%s%s", sound->op->name, sound->query,
             sound->query[0] && extra[0] ? "&" : "", extra);
    return ask(&server, "POST", path, body, bytes, NULL);
}

static struct answer post(const struct sound *sound, const char *extra)
{
    size_t bytes;
    unsigned char *body = file_write(&sound->file, &bytes);
    struct answer answer = post_body(sound, extra, body, bytes);
    free(body);
    return answer;
}

static void refuse_as(const char *token, const struct sound *sound,
                      const char *extra, const char *culprit, const char *what)
{
    char text[256];
    struct answer answer = post(sound, extra);
    snprintf(text, sizeof text, "%s: %s %s", sound->op->name, what, extra);
    expect(&answer, 400, culprit, text);
    if (token && strcmp(answer_code(&answer), token) != 0)
        CHECK_FAIL("%s: answered %.300s, expected code %s", text, answer.body,
                   token);
    answer_free(&answer);
}

static void refuse(const struct sound *sound, const char *extra,
                   const char *culprit, const char *what)
{
    refuse_as(NULL, sound, extra, culprit, what);
}

static void accept(const struct sound *sound, const char *extra)
{
    struct answer answer = post(sound, extra);
    if (answer.code != 200)
        CHECK_FAIL("%s %s: answered %d %.300s, expected 200", sound->op->name,
                   extra, answer.code, answer.body);
    answer_free(&answer);
}

/* ------------------------------------------------------ from the table */

TEST(sound_calls_of_every_form_are_accepted)
{
    for (int i = 0; i < roped_op_count(); i++)
        for (int form = 0; form < roped_op_forms(roped_op_at(i)); form++) {
            struct sound sound = sound_make(roped_op_at(i), form);
            accept(&sound, "");
        }
}

TEST(missing_tensors_are_named)
{
    for (int i = 0; i < roped_op_count(); i++) {
        struct sound whole = sound_of(roped_op_at(i));
        for (int j = 0; j < whole.file.n; j++) {
            struct sound sound = whole;
            sound.file.n = 0;
            for (int k = 0; k < whole.file.n; k++)
                if (k != j)
                    file_add(
                        &sound.file, whole.file.name[k],
                        whole.file.tensor[k].dtype, whole.file.tensor[k].rank,
                        whole.file.tensor[k].dims, whole.file.tensor[k].data);
            refuse(&sound, "", whole.file.name[j], "missing");
        }
    }
}

TEST(wrong_ranks_dims_and_types_are_named)
{
    for (int i = 0; i < roped_op_count(); i++) {
        const struct roped_op *op = roped_op_at(i);
        for (int j = 0; j < roped_op_inputs(op); j++) {
            const struct sound whole = sound_of(op);
            struct sound sound = whole;
            const char *name = op->in[j].name;
            int at = 0;
            while (at < sound.file.n && strcmp(sound.file.name[at], name) != 0)
                at++;
            if (at == sound.file.n)
                sound_add_input(&sound, j);
            struct roped_tensor *tensor = &sound.file.tensor[at];
            struct roped_tensor kept = *tensor;
            tensor->dtype = ROPED_BOOL;
            refuse_as("bad_type", &sound, "", name, "dtype");
            *tensor = kept;
            tensor->rank = 7;
            for (int k = 0; k < 7; k++)
                tensor->dims[k] = 1;
            if (!sound_pattern(&whole, j).dim[0].is_pack)
                refuse_as("bad_shape", &sound, "", name, "rank");
        }
    }
}

/* Does another tensor of the call have this dim too? */
static bool is_shared(const struct sound *sound, int input, const char *symbol)
{
    for (int i = 0; i < sound->file.n; i++) {
        int other = roped_op_input(sound->op, sound->file.name[i]);
        if (other != input && sound_has_dim(sound, other, symbol))
            return true;
    }
    return false;
}

/* Every dim that a tensor shares with another, one too large. The message
 * blames one of the two and names the other as the one that set it. */
static void spoil_dims(const struct sound *whole, int input)
{
    const struct roped_shape_pattern pattern = sound_pattern(whole, input);
    const struct roped_port *port = &whole->op->in[input];
    struct sound sound = *whole;
    int at = 0, dim = 0;
    while (at < sound.file.n && strcmp(sound.file.name[at], port->name) != 0)
        at++;
    if (at == sound.file.n)
        sound_add_input(&sound, input);
    for (int i = 0; i < pattern.count; i++) {
        if (pattern.dim[i].is_pack)
            continue;
        if (is_shared(&sound, input, pattern.dim[i].name)) {
            sound.file.tensor[at].dims[dim]++;
            refuse_as("bad_shape", &sound, "", port->name, pattern.dim[i].name);
            sound.file.tensor[at].dims[dim]--;
        }
        dim++;
    }
}

TEST(dims_that_disagree_are_named)
{
    for (int i = 0; i < roped_op_count(); i++) {
        const struct roped_op *op = roped_op_at(i);
        for (int form = 0; form < roped_op_forms(op); form++) {
            struct sound sound = sound_make(op, form);
            for (int j = 0; j < roped_op_inputs(op); j++)
                spoil_dims(&sound, j);
        }
    }
}

TEST(unknown_tensors_are_named)
{
    for (int i = 0; i < roped_op_count(); i++) {
        struct sound sound = sound_of(roped_op_at(i));
        int64_t n = 2;
        file_add(&sound.file, "nonsense", ROPED_F32, 1, &n, floats);
        refuse_as("unknown_name", &sound, "", "nonsense", "unknown tensor");
    }
}

/* A value of the wrong kind, below and above the range, and given twice. */
TEST(parameters_outside_their_range_are_named)
{
    char extra[160];
    for (int i = 0; i < roped_op_count(); i++) {
        const struct roped_op *op = roped_op_at(i);
        struct sound sound = sound_of(op);
        refuse_as("unknown_name", &sound, "nonsense=1", "nonsense",
                  "unknown parameter");
        for (int j = 0; j < roped_op_params(op); j++) {
            const struct roped_param *param = &op->param[j];
            bool is_number = param->kind == ROPED_PARAM_FLOAT ||
                             param->kind == ROPED_PARAM_INT ||
                             param->kind == ROPED_PARAM_INTS;
            snprintf(extra, sizeof extra, "%s=what%%3F", param->name);
            refuse_as("bad_parameter", &sound, extra, param->name, "kind");
            snprintf(extra, sizeof extra, "%s=", param->name);
            if (!param->shape) /* where it is the shape of a scalar */
                refuse_as("bad_parameter", &sound, extra, param->name, "empty");
            if (!is_number || (param->min == 0 && param->max == 0))
                continue;
            snprintf(extra, sizeof extra, "%s=%.17g", param->name,
                     param->min - (fabs(param->min) > 1 ? -param->min : 1));
            if (param->min >= 0)
                refuse_as("bad_parameter", &sound, extra, param->name, "below");
            if (param->flags & ROPED_ABOVE_MIN) {
                snprintf(extra, sizeof extra, "%s=%.17g", param->name,
                         param->min);
                refuse_as("bad_parameter", &sound, extra, param->name,
                          "the bound itself");
            }
            if (param->max < 1e12) {
                snprintf(extra, sizeof extra, "%s=%.0f", param->name,
                         param->max + 1);
                refuse_as("bad_parameter", &sound, extra, param->name, "above");
            }
            snprintf(extra, sizeof extra, "%s=1e999", param->name);
            refuse_as("bad_parameter", &sound, extra, param->name, "infinite");
            snprintf(extra, sizeof extra, "%s=nan", param->name);
            refuse_as("bad_parameter", &sound, extra, param->name, "nan");
            snprintf(extra, sizeof extra, "%s=1&%s=1", param->name,
                     param->name);
            refuse_as("bad_parameter", &sound, extra, param->name, "twice");
        }
    }
}

/* ------------------------------------------------------------- by hand */

static struct sound rope_sound(void)
{
    return sound_of(roped_op_find("rope"));
}

static void add(struct sound *sound, const char *name, enum roped_dtype dtype,
                int rank, int64_t a, int64_t b, void *data)
{
    int64_t dims[2] = {a, b};
    file_add(&sound->file, name, dtype, rank, dims, data);
}

TEST(positions_out_of_range_are_named_with_index_and_value)
{
    static int64_t wrong[3] = {1, -7, 2}, large[3] = {0, 1, 16777216};
    static int64_t row[3] = {0, 5, 1}, rows[9] = {5, 1, 2, -1, 1, 2, 5, 1, 2};
    static int32_t narrow[3] = {2, 1, -3}, wide[3] = {16777217, 0, 1};
    struct sound sound = rope_sound();
    add(&sound, "positions", ROPED_I32, 1, 3, 0, narrow);
    refuse_as("bad_value", &sound, "", "-3 at index 2",
              "negative position of I32");
    sound = rope_sound();
    add(&sound, "positions", ROPED_I32, 1, 3, 0, wide);
    refuse_as("bad_value", &sound, "", "16777217 at index 0",
              "large position of I32");
    sound = rope_sound();
    add(&sound, "positions", ROPED_I64, 1, 3, 0, wrong);
    refuse_as("bad_value", &sound, "", "-7 at index 1", "negative position");
    sound = rope_sound();
    add(&sound, "positions", ROPED_I64, 1, 3, 0, large);
    refuse_as("bad_value", &sound, "", "16777216 at index 2", "large position");
    sound = rope_sound();
    add(&sound, "positions", ROPED_I64, 1, 3, 0, row);
    add(&sound, "cos_sin_cache", ROPED_F32, 2, 5, 8, floats);
    refuse_as("bad_value", &sound, "", "5 at index 1", "row of the cache");
    sound = rope_sound();
    add(&sound, "positions", ROPED_I64, 1, 4, 0, longs);
    refuse(&sound, "", "positions", "position count");
    sound = rope_sound();
    add(&sound, "positions", ROPED_I64, 2, 3, 3, rows);
    refuse(&sound, "mrope_section=2,1,1",
           "position -1 at index 3, but 5 at index 0",
           "part of a padded token");
    rows[0] = rows[6] = -1;
    sound = rope_sound();
    add(&sound, "positions", ROPED_I64, 2, 3, 3, rows);
    accept(&sound, "mrope_section=2,1,1");
    sound = rope_sound();
    refuse(&sound, "offset=16777215", "offset", "implicit position");
}

TEST(exclusive_and_incomplete_inputs_are_named)
{
    struct sound sound = rope_sound();
    add(&sound, "cos", ROPED_F32, 2, 3, 4, floats);
    refuse(&sound, "", "sin", "half a pair");
    add(&sound, "sin", ROPED_F32, 2, 3, 4, floats);
    accept(&sound, "");
    refuse(&sound, "theta=500", "theta", "parameter beside cos");
    add(&sound, "positions", ROPED_I64, 1, 3, 0, longs);
    refuse(&sound, "", "positions", "positions beside cos");
    sound = rope_sound();
    add(&sound, "positions", ROPED_I64, 1, 3, 0, longs);
    refuse(&sound, "offset=1", "offset", "offset beside positions");
    add(&sound, "indptr", ROPED_I64, 1, 2, 0, longs);
    refuse(&sound, "", "offsets", "indptr alone");
}

TEST(malformed_indptr_is_named)
{
    static int64_t starts[3] = {1, 2, 3}, falls[3] = {0, 3, 2};
    static int64_t ends[3] = {0, 1, 2}, zeros[2] = {0, 0};
    int64_t *const cases[] = {starts, falls, ends};
    for (int i = 0; i < 3; i++) {
        struct sound sound = rope_sound();
        add(&sound, "indptr", ROPED_I64, 1, 3, 0, cases[i]);
        add(&sound, "offsets", ROPED_I64, 1, 2, 0, zeros);
        refuse(&sound, "", "indptr", "indptr");
    }
}

TEST(rules_of_rope_are_kept)
{
    struct sound sound = rope_sound();
    refuse(&sound, "rotary_dim=3", "rotary_dim", "odd width");
    refuse(&sound, "rotary_dim=10", "rotary_dim", "width above the head");
    refuse(&sound, "rotary_dim=4&rotary_offset=5", "rotary_offset", "offset");
    refuse(&sound, "head_dim=6", "head_dim", "head_dim beside the shape");
    refuse(&sound, "theta=0", "theta", "theta");
    refuse(&sound, "scaling=linear", "factor", "missing factor");
    refuse(&sound, "scaling=llama3&factor=8", "low_freq_factor", "llama3");
    refuse(&sound,
           "scaling=llama3&factor=8&low_freq_factor=4&high_freq_factor=1"
           "&original_max_position=8192",
           "low_freq_factor", "llama3 bounds");
    refuse(&sound, "scaling=longrope&original_max_position=10", "short_factor",
           "longrope");
    refuse(&sound, "scaling=dynamic&factor=2&max_position=9&rotary_dim=2",
           "rotary_dim", "dynamic of width 2");
    refuse(&sound, "mrope_section=1,1,1", "mrope_section", "sections");
    refuse(&sound, "mrope_section=4", "mrope_section", "one section");
    refuse(&sound, "scaling=axial&mrope_section=2,2", "'positions': rank is 0",
           "axial angles of implicit positions");
    refuse(&sound, "mrope_section=2,2&mrope_axes=0,2", "mrope_axes", "no row");
    refuse(&sound, "scaling=fope", "scaling", "unknown scaling");
    struct answer answer = post(&sound, "table=nowhere");
    expect(&answer, 404, "nowhere", "unknown table");
    answer_free(&answer);
}

TEST(positions_of_several_rows_need_sections)
{
    int64_t dims[3] = {2, 1, 3}, cache[2] = {5, 8}, pair[2] = {3, 4};
    struct sound sound = rope_sound();
    add(&sound, "positions", ROPED_I64, 2, 2, 3, counting);
    refuse(&sound, "", "mrope_section", "rows without sections");
    refuse(&sound, "mrope_section=2,1,1", "expected 3, a row", "other rows");
    add(&sound, "cos_sin_cache", ROPED_F32, 2, cache[0], cache[1], floats);
    refuse(&sound, "", "mrope_section", "rows beside a cache");
    refuse(&sound, "mrope_section=2,1", "sum 3", "sections beside a cache");
    refuse(&sound, "mrope_section=2,2", "'cos_sin_cache'", "past the cache");
    sound = rope_sound();
    add(&sound, "cos", ROPED_F32, 2, pair[0], pair[1], floats);
    add(&sound, "sin", ROPED_F32, 2, pair[0], pair[1], floats);
    refuse(&sound, "mrope_section=2,2", "mrope_section", "beside cos");
    sound = rope_sound();
    file_add(&sound.file, "positions", ROPED_I64, 3, dims, counting);
    refuse(&sound, "mrope_section=2,2", "rank is 3", "rank");
}

TEST(scales_are_numbers_or_tensors)
{
    static float sound_scale[2] = {0.5f, 2}, zero, not_a_number = NAN;
    struct sound sound = sound_of(roped_op_find("rope_quantize"));
    add(&sound, "scale_k", ROPED_F32, 1, 1, 0, sound_scale);
    accept(&sound, "scale_q=2");
    refuse(&sound, "scale_k=2", "'scale_k' are both given", "scale twice");
    struct roped_tensor *scale = &sound.file.tensor[sound.file.n - 1];
    scale->data = &zero;
    refuse(&sound, "", "'scale_k': value 0", "scale of 0");
    scale->data = &not_a_number;
    refuse(&sound, "", "'scale_k': value nan", "scale that is no number");
    scale->data = sound_scale;
    scale->dims[0] = 2;
    refuse(&sound, "", "'scale_k': dim 0 is 2, expected 1", "two scales");
}

TEST(mixed_types_and_forms_are_named)
{
    struct sound sound = rope_sound();
    int64_t dims[3] = {3, 2, 8}, flat[2] = {3, 16};
    file_add(&sound.file, "k", ROPED_BF16, 3, dims, floats);
    refuse(&sound, "", "'k'", "type of k");
    sound = rope_sound();
    file_add(&sound.file, "k", ROPED_F32, 2, flat, floats);
    refuse(&sound, "", "'k'", "form of k");
    sound = sound_of(roped_op_find("rmsnorm"));
    sound.file.tensor[0].dtype = ROPED_BF16;
    int64_t h = 8;
    file_add(&sound.file, "weight", ROPED_F16, 1, &h, floats);
    refuse(&sound, "", "weight", "type of weight");
    sound.file.tensor[1].dtype = ROPED_BF16;
    sound.file.tensor[1].dims[0] = 9;
    refuse(&sound, "", "expected h = 8", "weight length");
    sound = sound_of(roped_op_find("rope_quantize"));
    file_add(&sound.file, "q_nope", ROPED_F32, 3, dims, floats);
    refuse(&sound, "", "nope", "half of the non-rotary parts");
}

static struct sound binary_sound(int64_t rows, int64_t columns)
{
    struct sound sound = {.op = roped_op_find("binary_backward")};
    add(&sound, "grad_output", ROPED_F32, 2, rows, columns, floats);
    return sound;
}

TEST(shapes_that_do_not_broadcast_are_named)
{
    struct sound sound = binary_sound(3, 4);
    accept(&sound, "a_shape=3,4&b_shape=");
    accept(&sound, "a_shape=4&b_shape=3,1");
    refuse(&sound, "a_shape=3,4&b_shape=3", "b_shape': dim 0 is 3, expected 4",
           "innermost dim");
    refuse(&sound, "a_shape=3,4&b_shape=2,4",
           "b_shape': dim 0 is 2, expected 3", "outer dim");
    refuse(&sound, "a_shape=1,4&b_shape=4",
           "'grad_output': shape [3, 4], expected [1, 4]", "no dim that is 3");
    refuse(&sound, "a_shape=2,3,4&b_shape=4",
           "'grad_output': shape [3, 4], expected [2, 3, 4]", "rank");
    refuse(&sound, "a_shape=3,0&b_shape=4", "dim 0 is 4, expected 0", "empty");
    refuse(&sound, "a_shape=3,4", "'b_shape'", "no shape of b");
    refuse(&sound, "a_shape=1,1,1,1,1,1,1,3,4&b_shape=4", "'a_shape'",
           "nine dims");
    refuse(&sound, "a_shape=9007199254740992,9007199254740992&b_shape=1",
           "'a_shape'", "more than 2^63 elements");
    refuse(&sound, "a_shape=3,-4&b_shape=4", "'a_shape': -4", "negative dim");
}

TEST(operands_of_binary_backward_are_held_to_their_shapes)
{
    struct sound sound = binary_sound(3, 4);
    add(&sound, "a", ROPED_F32, 2, 3, 4, floats);
    accept(&sound, "b_shape=4&a_shape=3,4");
    refuse(&sound, "b_shape=4&a_shape=3,1",
           "parameter 'a_shape': shape [3, 1], expected [3, 4] (set by 'a')",
           "a_shape beside another a");
    refuse(&sound, "b_shape=4&function=mul", "'b'", "mul without b");
    refuse(&sound, "b_shape=4&function=div", "'b'", "div without b");
    add(&sound, "b", ROPED_F32, 1, 3, 0, floats);
    refuse(&sound, "function=mul", "'b': dim 0 is 3, expected 4", "b of rows");
    sound.file.tensor[2].dims[0] = 4;
    accept(&sound, "function=mul");
    sound.file.tensor[2].dtype = ROPED_BF16;
    refuse(&sound, "function=mul",
           "'b': BF16, expected F32, the type of 'grad_output'", "type of b");
}

/* ------------------------------------------------------------- broken off */

/* A sound request, cut anywhere, by a client that then hangs up. */
TEST(requests_that_break_off_leave_nothing_behind)
{
    enum { N_CUTS = 25 };
    struct sound sound = rope_sound();
    size_t bytes;
    unsigned char *body = file_write(&sound.file, &bytes);
    struct buffer whole;
    buffer_init(&whole);
    buffer_printf(&whole,
                  "POST /v1/rope HTTP/1.1\r\nHost: localhost\r\n"
                  "Content-Length: %zu\r\n\r\n",
                  bytes);
    buffer_append(&whole, (const char *)body, bytes);
    for (size_t i = 1; i < N_CUTS; i++) {
        struct answer answer =
            ask_raw(&server, whole.text, whole.bytes * i / N_CUTS, 0.02);
        CHECK_INT(answer.code, 0);
        answer_free(&answer);
    }
    expect_metric(&server, "roped_pool_bytes{state=\"used\"}", 0);
    expect_metric(&server, "roped_connections ", 1);
    buffer_fini(&whole);
    free(body);
}

TEST(the_daemon_lives_on)
{
    CHECK(server_is_alive(&server));
    struct sound sound = rope_sound();
    accept(&sound, "");
}

int main(void)
{
    /* who hangs up before the daemon has read what it sent is noticed by its
     * deadline alone */
    const char *flags[] = {"--header_timeout_seconds", "2",
                           "--body_timeout_seconds", "2", NULL};
    server_start(&server, flags);
    check_run();
    CHECK(server_stop(&server));
    printf("%d cases refused or accepted as expected\n", n_cases);
    return check_done();
}
