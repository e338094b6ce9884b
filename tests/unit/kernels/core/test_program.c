/*
 * test_program.c - programs in process, on the CPU backend: what a definition
 * is refused for, where the tensors of a run lie, and that the steps of a
 * program give the bits of separate calls.
 */
#include "check.h"

#include <roped/program.h>
#include <roped/session.h>

#include <string.h>

static struct roped_session *session;
static struct roped_error err;

/* ---------------------------------------------------------- programs as text
 */

/* Sets or names one "name=value" of a step. */
static enum roped_status read_pair(struct roped_program *program, int part,
                                   char *pair)
{
    char *value = strchr(pair, '=');
    *value++ = '\0';
    if (part == 0)
        return strcmp(pair, "table") == 0
                   ? roped_step_table(program, value, &err)
                   : roped_step_param(program, pair, value, &err);
    return part == 1 ? roped_step_in(program, pair, value, NULL, &err)
                     : roped_step_out(program, pair, value, NULL, &err);
}

/* "OP PARAM=VALUE... | IN=NAME... | OUT=NAME..." */
static enum roped_status read_step(struct roped_program *program, char *line)
{
    char *rest = NULL, *word = strtok_r(line, " ", &rest);
    enum roped_status status = roped_program_step(program, word, &err);
    int part = 0;
    while (!status && (word = strtok_r(NULL, " ", &rest)))
        if (strcmp(word, "|") == 0)
            part++;
        else
            status = read_pair(program, part, word);
    return status;
}

/* Lines "in NAME", "param NAME[=VALUE]", "out NAME", and steps. */
static enum roped_status define(const char *text, struct roped_program **out)
{
    char *copy = strdup(text), *rest = NULL;
    enum roped_status status = roped_program_new(out, &err);
    for (char *line = strtok_r(copy, "\n", &rest); line && !status;
         line = strtok_r(NULL, "\n", &rest)) {
        if (strncmp(line, "in ", 3) == 0) {
            status = roped_program_input(*out, line + 3, NULL, &err);
        } else if (strncmp(line, "out ", 4) == 0) {
            status = roped_program_output(*out, line + 4, &err);
        } else if (strncmp(line, "param ", 6) == 0) {
            char *value = strchr(line, '=');
            if (value)
                *value++ = '\0';
            status = roped_program_param(*out, line + 6, value, &err);
        } else {
            status = read_step(*out, line);
        }
    }
    free(copy);
    return status ? status : roped_program_end(*out, &err);
}

static struct roped_program *defined(const char *text)
{
    struct roped_program *program = NULL;
    CHECK_OK(define(text, &program), &err);
    return program;
}

static void refused(const char *text, enum roped_status status,
                    const char *sentence)
{
    struct roped_program *program = NULL;
    CHECK_INT(define(text, &program), status);
    CHECK_TEXT(err.text, sentence);
    roped_program_free(program);
}

/* -------------------------------------------------------------- definitions */

#define APPEND                                                                 \
    "rope_append | q=q k=k v=v k_cache=kc v_cache=vc slots=s positions=p | "

TEST(names_are_made_once_and_before_they_are_used)
{
    refused("in x\nrmsnorm | x=x | y=x", ROPED_INVALID,
            "step 1 (rmsnorm): output 'y': 'x' is an input of the program "
            "already");
    refused("in x\nrmsnorm | x=x | y=h\nrmsnorm | x=x | y=h", ROPED_INVALID,
            "step 2 (rmsnorm): output 'y': 'h' is made by step 1 (rmsnorm) "
            "already, "
            "expected a name of its own");
    refused("in x\nrmsnorm | x=h | y=g\nrmsnorm | x=x | y=h", ROPED_INVALID,
            "step 2 (rmsnorm): output 'y': 'h' is made here, but step 1 "
            "(rmsnorm) uses it as 'x' before");
    refused("in x\nrmsnorm | x=x | y=h\nrmsnorm | x=g | y=i",
            ROPED_UNKNOWN_NAME,
            "step 2 (rmsnorm): tensor 'x': unknown name 'g', expected an input "
            "of the program, what a step before makes, or @region");
    refused("in x\nin x", ROPED_INVALID,
            "'x' is an input of the program already");
    refused("in x\nin z\nrmsnorm | x=x | y=h", ROPED_INVALID,
            "input 'z': no step uses it");
}

TEST(outputs_are_what_steps_make)
{
    refused("in x\nrmsnorm | x=x | y=h\nout g", ROPED_UNKNOWN_NAME,
            "output 'g': no step makes it");
    refused("in x\nrmsnorm | x=x | y=h\nout x", ROPED_INVALID,
            "output 'x': an input of the program, expected what a step makes");
    refused("in x\nrmsnorm | x=x | y=h\nout h\nout h", ROPED_INVALID,
            "output 'h' is given twice");
}

TEST(steps_name_what_their_operator_has)
{
    refused("in x\nnorm | x=x | y=h", ROPED_NO_OPERATOR,
            "step 1: no operator 'norm'");
    refused("in x\nrmsnorm | z=x | y=h", ROPED_UNKNOWN_NAME,
            "step 1 (rmsnorm): unknown tensor 'z': rmsnorm takes x, weight");
    refused("in x\nrmsnorm | x=x | z=h", ROPED_UNKNOWN_NAME,
            "step 1 (rmsnorm): unknown output 'z': rmsnorm returns y");
    refused(
        "in x\nrmsnorm eps=-1 | x=x | y=h", ROPED_BAD_PARAMETER,
        "step 1 (rmsnorm): parameter 'eps': -1, expected 0 to 3.40282347e+38");
    refused("in x\nrmsnorm eps=$e | x=x | y=h", ROPED_UNKNOWN_NAME,
            "step 1 (rmsnorm): parameter 'eps': '$e', but the program has no "
            "parameter of that name");
    refused("in x\nparam e=1\nrmsnorm eps=$e eps=2 | x=x | y=h",
            ROPED_BAD_PARAMETER,
            "step 1 (rmsnorm): parameter 'eps' is given twice");
    refused("in x\nrmsnorm table=t | x=x | y=h", ROPED_UNKNOWN_NAME,
            "step 1 (rmsnorm): unknown parameter 'table': rmsnorm takes no "
            "angles");
    refused("in x\nrmsnorm | x=x x=x | y=h", ROPED_INVALID,
            "step 1 (rmsnorm): tensor 'x' is given twice");
    refused("in x\nadd_rmsnorm | x=x | y=h", ROPED_INVALID,
            "step 1 (add_rmsnorm): missing tensor 'residual'");
    refused("", ROPED_INVALID,
            "a program without steps, expected at least one");
}

TEST(what_is_updated_goes_on_under_another_name)
{
    const char *start = "in q\nin k\nin v\nin kc\nin vc\nin s\nin p\n";
    char text[1024];
    snprintf(text, sizeof text,
             "%s" APPEND "k_cache=kc1 v_cache=vc1\nrmsnorm | x=kc | y=h",
             start);
    refused(text, ROPED_INVALID,
            "step 2 (rmsnorm): tensor 'x': step 1 (rope_append) has updated "
            "'kc', which is since then called kc1");
    snprintf(text, sizeof text, "%s" APPEND "q=o\nrmsnorm | x=kc | y=h", start);
    refused(text, ROPED_INVALID,
            "step 2 (rmsnorm): tensor 'x': step 1 (rope_append) has updated "
            "'kc' and gives the result no name");
    refused("in q\nin k\nin v\nin s\nin c\n"
            "rope_append | q=q k=k v=v k_cache=c v_cache=c slots=s | q=o",
            ROPED_INVALID,
            "step 1 (rope_append): tensor 'v_cache': 'c' is 'k_cache' too, and "
            "one of them is updated, expected values of their own");
    snprintf(text, sizeof text, "%s" APPEND "k_cache=@kc", start);
    refused(text, ROPED_INVALID,
            "step 1 (rope_append): output 'k_cache': '@kc', expected a name "
            "that is no place: it is updated in the memory of its input");
    refused("in q\nin k\nin v\nin s\nrope_append | q=q k=k v=v k_cache=@c:64 "
            "v_cache=@d slots=s | k_cache=@c",
            ROPED_INVALID,
            "step 1 (rope_append): output 'k_cache': '@c', expected @c:64: it "
            "is updated in the memory of its input");
    snprintf(text, sizeof text, "%s" APPEND "k_cache=kc1\nout kc1", start);
    roped_program_free(defined(text));
}

TEST(index_values_are_known_before_any_step)
{
    refused("in x\nrmsnorm | x=x | y=p\nrope | q=x positions=p | q=o",
            ROPED_INVALID,
            "step 2 (rope): tensor 'positions': 'p' is made by step 1 "
            "(rmsnorm), expected an input of the program or a region: its "
            "values are read before any step runs");
    refused("in x\nrmsnorm | x=x | y=@p\nrope | q=x positions=@p | q=o",
            ROPED_INVALID,
            "step 2 (rope): tensor 'positions': step 1 (rmsnorm) writes to "
            "'@p', expected memory that no step before writes to: its values "
            "are read before any step runs");
}

TEST(limits_hold)
{
    struct roped_program *program = NULL;
    CHECK_OK(roped_program_new(&program, &err), &err);
    CHECK_OK(roped_program_input(program, "x", NULL, &err), &err);
    for (int i = 0; i < ROPED_PROGRAM_STEPS; i++) {
        CHECK_OK(roped_program_step(program, "rmsnorm", &err), &err);
        CHECK_OK(roped_step_in(program, "x", "x", NULL, &err), &err);
    }
    CHECK_INT(roped_program_step(program, "rmsnorm", &err), ROPED_TOO_LARGE);
    CHECK_TEXT(err.text,
               "step 1025 (rmsnorm): more than 1024 steps, the most that a "
               "program may have");
    roped_program_free(program);
}

/* --------------------------------------------------------------------- runs */

enum { ROWS = 3, WIDTH = 64 };
static const int64_t shape[2] = {ROWS, WIDTH};

static void fill(float *to, int n, int seed)
{
    for (int i = 0; i < n; i++)
        to[i] = (float)((i * 37 + seed * 11) % 97) / 31 - 1.5f;
}

static struct roped_run *new_run(const struct roped_program *program)
{
    struct roped_run *run = NULL;
    CHECK_OK(roped_run_new(session, program, &run, &err), &err);
    return run;
}

static void input(struct roped_run *run, const char *name, void *data)
{
    CHECK_OK(roped_run_input(run, name, "F32", 2, shape, 0, data, &err), &err);
}

/* One call of rmsnorm. */
static void norm(const float *x, const char *eps, float *y)
{
    struct roped_work *work = NULL;
    CHECK_OK(roped_work_new(session, "rmsnorm", &work, &err), &err);
    CHECK_OK(roped_work_param(work, "eps", eps, &err), &err);
    CHECK_OK(roped_work_input(work, "x", "F32", 2, shape, (void *)x, &err),
             &err);
    CHECK_OK(roped_work_prepare(work, &err), &err);
    CHECK_OK(roped_work_output(work, "y", y, &err), &err);
    CHECK_OK(roped_work_launch(work, &err), &err);
    roped_work_free(work);
}

TEST(steps_give_the_bits_of_calls)
{
    float x[ROWS * WIDTH], y[ROWS * WIDTH], one[ROWS * WIDTH],
        two[ROWS * WIDTH];
    const char *dtype = "";
    int64_t dims[8] = {0};
    struct roped_program *program =
        defined("param e=0.5\nin x\nrmsnorm eps=$e | x=x | y=h\n"
                "rmsnorm eps=0.25 | x=h | y=g\nout g");
    fill(x, ROWS * WIDTH, 1);
    norm(x, "0.125", one);
    norm(one, "0.25", two);
    struct roped_run *run = new_run(program);
    CHECK_OK(roped_run_param(run, "e", "0.125", &err), &err);
    input(run, "x", x);
    CHECK_INT(roped_run_launch(run, &err), ROPED_INVALID);
    CHECK_OK(roped_run_prepare(run, &err), &err);
    CHECK_INT(roped_run_output_shape(run, "g", &dtype, dims), 2);
    CHECK_TEXT(dtype, "F32");
    CHECK_INT(dims[1], WIDTH);
    CHECK_INT(roped_run_launch(run, &err), ROPED_INVALID);
    CHECK_TEXT(err.text, "output 'g': no data");
    CHECK_OK(roped_run_output(run, "g", y, &err), &err);
    CHECK_OK(roped_run_launch(run, &err), &err);
    CHECK(memcmp(y, two, sizeof y) == 0);

    fill(x, ROWS * WIDTH, 2); /* again, on other values */
    norm(x, "0.125", one);
    norm(one, "0.25", two);
    CHECK_OK(roped_run_launch(run, &err), &err);
    CHECK(memcmp(y, two, sizeof y) == 0);
    roped_run_free(run);
    roped_program_free(program);
}

TEST(places_are_used_in_the_order_of_the_steps)
{
    float x[ROWS * WIDTH], memory[2 * ROWS * WIDTH], expected[ROWS * WIDTH];
    const int64_t both[2] = {2 * ROWS, WIDTH};
    struct roped_program *program =
        defined("in x\nrmsnorm eps=0.5 | x=x | y=@m:768\n"
                "rmsnorm eps=0.25 | x=@m | y=@n");
    float *out = calloc(2 * ROWS * WIDTH, sizeof *out);
    fill(x, ROWS * WIDTH, 1);
    fill(memory, 2 * ROWS * WIDTH, 3);
    norm(x, "0.5", expected);
    struct roped_run *run = new_run(program);
    input(run, "x", x);
    CHECK_INT(roped_run_prepare(run, &err), ROPED_INVALID);
    CHECK_TEXT(err.text, "missing place '@m'");
    CHECK_OK(
        roped_run_place(run, "m", "F32", 2, both, memory, sizeof memory, &err),
        &err);
    CHECK_OK(
        roped_run_place(run, "n", NULL, 0, NULL, out, sizeof memory - 4, &err),
        &err);
    CHECK_INT(roped_run_prepare(run, &err), ROPED_INVALID);
    CHECK_TEXT(err.text, "step 2 (rmsnorm): tensor 'y': 1536 bytes at offset 0 "
                         "of '@n', which has 1532");
    CHECK_OK(roped_run_place(run, "n", NULL, 0, NULL, out, sizeof memory, &err),
             &err);
    CHECK_OK(roped_run_prepare(run, &err), &err);
    CHECK_OK(roped_run_launch(run, &err), &err);
    CHECK(memcmp(memory + ROWS * WIDTH, expected, sizeof expected) == 0);
    norm(expected, "0.25", x); /* what step 2 has made of it */
    CHECK(memcmp(out + ROWS * WIDTH, x, sizeof x) == 0);
    roped_run_free(run);
    roped_program_free(program);
    free(out);
}

TEST(a_step_writes_to_a_place_of_its_own)
{
    float memory[2 * ROWS * WIDTH];
    struct roped_program *program = defined("rmsnorm | x=@m | y=@m:256");
    struct roped_run *run = new_run(program);
    CHECK_OK(
        roped_run_place(run, "m", "F32", 2, shape, memory, sizeof memory, &err),
        &err);
    CHECK_INT(roped_run_prepare(run, &err), ROPED_INVALID);
    CHECK_TEXT(err.text,
               "step 1 (rmsnorm): output 'y': bytes 256 to 1024 of its region "
               "overlap input 'x' at 0 to 768, expected a place of its own");
    roped_run_free(run);
    roped_program_free(program);
    program = defined("rmsnorm | x=@m | y=@m"); /* in place */
    run = new_run(program);
    CHECK_OK(
        roped_run_place(run, "m", "F32", 2, shape, memory, sizeof memory, &err),
        &err);
    CHECK_OK(roped_run_prepare(run, &err), &err);
    roped_run_free(run);
    roped_program_free(program);
}

TEST(shapes_that_do_not_fit_are_refused_with_their_step)
{
    char text[200 * 40] = "in x\nin r\nrmsnorm | x=x | y=h0\n";
    float x[ROWS * WIDTH], r[2 * WIDTH];
    const int64_t other[2] = {2, WIDTH};
    for (int i = 0; i < 198; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text),
                 "rmsnorm | x=h%d | y=h%d\n", i, i + 1);
    snprintf(text + strlen(text), sizeof text - strlen(text),
             "add_rmsnorm | x=h198 residual=r | y=y\nout y");
    struct roped_program *program = defined(text);
    struct roped_run *run = new_run(program);
    input(run, "x", x);
    CHECK_OK(roped_run_input(run, "r", "F32", 2, other, 0, r, &err), &err);
    CHECK_INT(roped_run_prepare(run, &err), ROPED_BAD_SHAPE);
    CHECK_CONTAINS(err.text, "step 200 (add_rmsnorm): tensor 'residual': ");
    roped_run_free(run);
    roped_program_free(program);
}

TEST(an_updated_input_is_updated_where_it_is)
{
    enum { TOKENS = 2, SLOTS = 4, HEAD = 16 };
    float q[TOKENS * HEAD], k[TOKENS * HEAD], v[TOKENS * HEAD],
        out[TOKENS * HEAD], keys[SLOTS * HEAD] = {0},
                                         values[SLOTS * HEAD] = {0};
    int64_t slots[TOKENS] = {2, 0}, positions[TOKENS] = {5, 6};
    const int64_t heads[3] = {TOKENS, 1, HEAD}, cache[3] = {SLOTS, 1, HEAD},
                  tokens[1] = {TOKENS};
    struct roped_program *program =
        defined("in q\nin k\nin v\nin kc\nin vc\nin s\nin p\n" APPEND
                "q=o k_cache=kc1 v_cache=vc1\nout o\nout kc1");
    struct roped_run *run = new_run(program);
    fill(q, TOKENS * HEAD, 1);
    fill(k, TOKENS * HEAD, 2);
    fill(v, TOKENS * HEAD, 3);
    CHECK_OK(roped_run_input(run, "q", "F32", 3, heads, 0, q, &err), &err);
    CHECK_OK(roped_run_input(run, "k", "F32", 3, heads, 0, k, &err), &err);
    CHECK_OK(roped_run_input(run, "v", "F32", 3, heads, 0, v, &err), &err);
    CHECK_OK(roped_run_input(run, "kc", "F32", 3, cache, 0, keys, &err), &err);
    CHECK_OK(roped_run_input(run, "vc", "F32", 3, cache, 0, values, &err),
             &err);
    CHECK_OK(roped_run_input(run, "s", "I64", 1, tokens, 0, slots, &err), &err);
    CHECK_OK(roped_run_input(run, "p", "I64", 1, tokens, 0, positions, &err),
             &err);
    slots[1] = 4;
    CHECK_INT(roped_run_prepare(run, &err), ROPED_BAD_VALUE);
    CHECK_CONTAINS(err.text,
                   "step 1 (rope_append): tensor 'slots': slot 4 at index 1");
    slots[1] = 0;
    CHECK_OK(roped_run_prepare(run, &err), &err);
    CHECK_OK(roped_run_output(run, "o", out, &err), &err);
    CHECK_INT(roped_run_output(run, "kc1", out, &err), ROPED_INVALID);
    CHECK_CONTAINS(err.text, "output 'kc1': an input that was updated");
    CHECK_OK(roped_run_launch(run, &err), &err);
    CHECK(memcmp(values + 2 * HEAD, v, HEAD * sizeof *v) == 0);
    CHECK(memcmp(values, v + HEAD, HEAD * sizeof *v) == 0);
    CHECK(values[HEAD] == 0 && keys[3 * HEAD] == 0 && keys[0] != 0);
    roped_run_free(run);
    roped_program_free(program);
}

TEST(inputs_are_as_declared)
{
    const struct roped_declared declared = {.dtype = ROPED_F32,
                                            .has_shape = true,
                                            .rank = 2,
                                            .dims = {0, WIDTH},
                                            .symbol = {"n"}};
    float x[ROWS * WIDTH];
    const int64_t narrow[2] = {ROWS, WIDTH / 2}, other[2] = {ROWS - 1, WIDTH};
    const struct {
        const char *dtype;
        const int64_t *dims;
        const char *sentence;
    } cases[] = {
        {"BF16", shape, "tensor 'r': BF16, expected F32, as the program says"},
        {"F32", narrow,
         "tensor 'r': dim 1 is 32, expected 64, as the program "
         "says"},
        {"F32", other, "tensor 'r': dim 0 is 2, expected n = 3 (set by 'x')"}};
    struct roped_program *program = NULL;
    CHECK_OK(roped_program_new(&program, &err), &err);
    CHECK_OK(roped_program_input(program, "x", &declared, &err), &err);
    CHECK_OK(roped_program_input(program, "r", &declared, &err), &err);
    CHECK_OK(roped_program_step(program, "add_rmsnorm", &err), &err);
    CHECK_OK(roped_step_in(program, "x", "x", NULL, &err), &err);
    CHECK_OK(roped_step_in(program, "residual", "r", NULL, &err), &err);
    CHECK_OK(roped_program_end(program, &err), &err);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct roped_run *run = new_run(program);
        input(run, "x", x);
        CHECK_OK(roped_run_input(run, "r", cases[i].dtype, 2, cases[i].dims, 0,
                                 x, &err),
                 &err);
        CHECK(roped_run_prepare(run, &err) != ROPED_OK);
        CHECK_TEXT(err.text, cases[i].sentence);
        roped_run_free(run);
    }
    struct roped_run *run = new_run(program);
    input(run, "x", x);
    CHECK_INT(roped_run_prepare(run, &err), ROPED_INVALID);
    CHECK_TEXT(err.text, "missing tensor 'r'");
    roped_run_free(run);
    roped_program_free(program);
}

/* ------------------------------------------------------------------ the arena
 */

/* The chain of a program whose one input is x. */
static struct roped_chain *resolved(const struct roped_program *program)
{
    struct roped_chain *chain =
        roped_chain_init(malloc(roped_chain_bytes(program)), program);
    const struct roped_tensor x = {
        .dtype = ROPED_F32, .rank = 2, .dims = {ROWS, WIDTH}};
    CHECK_OK(roped_chain_input(chain, "x", &x, NULL, &err), &err);
    CHECK_OK(roped_chain_resolve(chain, &err), &err);
    return chain;
}

TEST(intermediates_share_the_arena)
{
    enum { BYTES = ROWS * WIDTH * sizeof(float) };
    char text[1024] = "in x\nrmsnorm | x=x | y=h0\n";
    for (int i = 0; i < 8; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text),
                 "rmsnorm | x=h%d | y=h%d\n", i, i + 1);
    snprintf(text + strlen(text), sizeof text - strlen(text), "out h8");
    struct roped_program *program = defined(text);
    struct roped_chain *chain = resolved(program);
    CHECK_INT(roped_chain_arena_bytes(chain), 2 * BYTES);
    free(chain);
    roped_program_free(program);

    /* no two that live at one time overlap */
    program = defined("in x\nrmsnorm | x=x | y=a\nrmsnorm | x=a | y=b\n"
                      "add_rmsnorm | x=b residual=a | y=c residual=d\n"
                      "rmsnorm | x=c | y=e\nadd_rmsnorm | x=e residual=a | y=f "
                      "residual=g\nadd_rmsnorm | x=f residual=d | y=h\nout h");
    chain = resolved(program);
    for (int i = 0; i < roped_chain_pieces(chain); i++)
        for (int j = 0; j < i; j++) {
            const struct roped_piece *a = roped_chain_piece(chain, i);
            const struct roped_piece *b = roped_chain_piece(chain, j);
            bool is_at_once = a->first <= b->last && b->first <= a->last;
            if (a->kind == ROPED_PIECE_ARENA && b->kind == ROPED_PIECE_ARENA &&
                is_at_once)
                CHECK(a->area.offset + a->bytes <= b->area.offset ||
                      b->area.offset + b->bytes <= a->area.offset);
        }
    CHECK(roped_chain_arena_bytes(chain) < 6 * BYTES);
    free(chain);
    roped_program_free(program);
}

/* ------------------------------------------------------------------ once more
 */

/* What a run is given beside its program. */
struct given {
    const char *eps;
    int64_t rows, stride;
    const void *x_area;
    const void *place_area;
    int64_t place_rows;
};

static enum roped_status give(struct roped_chain *chain,
                              const struct given *given)
{
    const struct roped_area x_area = {given->x_area, 0, 1 << 20};
    const struct roped_area place_area = {given->place_area, 0, 1 << 20};
    const struct roped_tensor x = {.dtype = ROPED_F32,
                                   .rank = 2,
                                   .dims = {given->rows, WIDTH},
                                   .stride = given->stride};
    const struct roped_tensor place = {
        .dtype = ROPED_F32, .rank = 2, .dims = {given->place_rows, WIDTH}};
    enum roped_status status =
        given->eps ? roped_chain_param(chain, "e", given->eps, &err) : ROPED_OK;
    if (!status)
        status = roped_chain_input(chain, "x", &x, &x_area, &err);
    roped_chain_place(chain, 0, &place, &place_area);
    return status ? status : roped_chain_resolve(chain, &err);
}

TEST(a_chain_is_resolved_anew_where_it_is_given_something_else)
{
    static char mark, x_home, place_home, elsewhere;
    struct roped_program *program =
        defined("in x\nparam e=0.5\nadd_rmsnorm eps=$e | x=x residual=@r | "
                "y=h residual=@r\nrmsnorm | x=h | y=g\nout g");
    struct roped_chain *chain =
        roped_chain_init(malloc(roped_chain_bytes(program)), program);
    static const struct given same = {"0.25", 4, 0, &x_home, &place_home, 4};
    struct given others[8];
    for (int i = 0; i < 8; i++)
        others[i] = same;
    others[0].eps = "0.75";
    others[1].eps = NULL;
    others[2].rows = others[2].place_rows = 8;
    others[3].stride = 2 * WIDTH;
    others[4].x_area = &elsewhere;
    others[5].place_area = &elsewhere;
    others[6].eps = "none";
    others[7].place_rows = 8;
    CHECK_OK(give(chain, &same), &err);
    for (int i = 0; i < 8; i++) {
        void **sign = &roped_chain_call(chain, 1)->out[0].data;
        for (int round = 0; round < 2; round++) {
            *sign = &mark; /* which resolve takes away */
            roped_chain_again(chain);
            CHECK_OK(give(chain, &same), &err);
            CHECK(*sign == &mark);
        }
        roped_chain_again(chain);
        bool is_refused = give(chain, &others[i]) != ROPED_OK;
        CHECK(is_refused == (i >= 6));
        CHECK(*sign != &mark || is_refused);
        CHECK(is_refused ||
              roped_chain_call(chain, 1)->out[0].dims[0] == others[i].rows);
        roped_chain_again(chain);
        CHECK_OK(give(chain, &same), &err);
        CHECK(roped_chain_call(chain, 1)->out[0].data == NULL);
        CHECK_INT(roped_chain_call(chain, 1)->out[0].dims[0], 4);
    }
    free(chain);
    roped_program_free(program);
}

int main(void)
{
    if (roped_session_open("cpu", 0, NULL, &session, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    check_run();
    roped_session_close(session);
    return check_done();
}
