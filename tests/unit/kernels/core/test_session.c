/*
 * test_session.c - the plain functions over calls, on the CPU backend, linked
 * with the shared library and nothing else of roped.
 */
#include "check.h"

#include <roped/library.h>
#include <roped/session.h>

#include <math.h>

static struct roped_session *session;
static struct roped_error err;

static struct roped_work *new_work(const char *op)
{
    struct roped_work *work = NULL;
    CHECK_OK(roped_work_new(session, op, &work, &err), &err);
    return work;
}

TEST(library_names_its_backends)
{
    CHECK(roped_kernels_version()[0] != '\0');
    CHECK_TEXT(roped_kernels_backend("cpu")->name, "cpu");
    CHECK(!roped_kernels_backend("abacus"));
}

TEST(open_refuses_what_is_not_there)
{
    struct roped_session *none = NULL;
    int stream;
    CHECK_INT(roped_session_open("abacus", 0, NULL, &none, &err),
              ROPED_UNSUPPORTED);
    CHECK_CONTAINS(err.text, "'abacus'");
    CHECK_INT(roped_session_open("cpu", 0, &stream, &none, &err),
              ROPED_INVALID);
    CHECK_CONTAINS(err.text, "stream");
    CHECK(!none);
}

TEST(rmsnorm_from_start_to_end)
{
    float x[2][4] = {{1, 2, 3, 4}, {-4, 0, 0, 0}}, y[2][4] = {{0}};
    const char *dtype = "";
    int64_t dims[8] = {0}, shape[2] = {2, 4};
    struct roped_work *work = new_work("rmsnorm");
    CHECK_OK(roped_work_param(work, "eps", "0.5", &err), &err);
    CHECK_OK(roped_work_input(work, "x", "F32", 2, shape, x, &err), &err);
    CHECK_INT(roped_work_output_shape(work, "y", &dtype, dims), -1);
    CHECK_OK(roped_work_prepare(work, &err), &err);
    CHECK_INT(roped_work_output_shape(work, "y", &dtype, dims), 2);
    CHECK_TEXT(dtype, "F32");
    CHECK_INT(dims[0], 2);
    CHECK_INT(dims[1], 4);
    CHECK_INT(roped_work_launch(work, &err), ROPED_INVALID);
    CHECK_TEXT(err.text, "output 'y': no data");
    CHECK_OK(roped_work_output(work, "y", y, &err), &err);
    CHECK_OK(roped_work_launch(work, &err), &err);
    CHECK_OK(roped_session_wait(session, &err), &err);
    for (int i = 0; i < 4; i++) {
        CHECK_DOUBLE(y[0][i], x[0][i] / sqrt(7.5 + 0.5), 1e-6);
        CHECK_DOUBLE(y[1][i], x[1][i] / sqrt(4 + 0.5), 1e-6);
    }
    roped_work_free(work);
}

/* The very place of x is one; a row further is none, and neither is weight's.
 */
TEST(outputs_overlap_nothing)
{
    float x[4][4] = {{1, 2, 3, 4}, {2, 2, 2, 2}}, weight[4] = {1, 1, 1, 1};
    const struct {
        void *place;
        const char *why; /* NULL: it is right */
    } cases[] = {
        {x[1], "output 'y': its memory overlaps that of input 'x', expected a "
               "place of its own, or the very place of 'x'"},
        {x[0] + 1, "overlaps that of input 'x'"},
        {weight, "overlaps that of input 'weight'"},
        {x[2], NULL},
        {x[0], NULL},
    };
    int64_t shape[2] = {2, 4};
    struct roped_work *work = new_work("rmsnorm");
    CHECK_OK(roped_work_input(work, "x", "F32", 2, shape, x, &err), &err);
    CHECK_OK(
        roped_work_input(work, "weight", "F32", 1, shape + 1, weight, &err),
        &err);
    CHECK_OK(roped_work_prepare(work, &err), &err);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK_OK(roped_work_output(work, "y", cases[i].place, &err), &err);
        if (!cases[i].why) {
            CHECK_OK(roped_work_launch(work, &err), &err);
            continue;
        }
        CHECK_INT(roped_work_launch(work, &err), ROPED_INVALID);
        CHECK_CONTAINS(err.text, cases[i].why);
        CHECK_DOUBLE(x[0][0], 1, 0);
    }
    roped_work_free(work);
}

/* One head of two at these positions, rotated in place. */
static enum roped_status rotate(struct roped_work *work, float *q, int64_t n,
                                int64_t *positions)
{
    int64_t shape[3] = {n, 1, 2};
    CHECK_OK(roped_work_input(work, "q", "F32", 3, shape, q, &err), &err);
    CHECK_OK(roped_work_input(work, "positions", "I64", 1, &n, positions, &err),
             &err);
    enum roped_status status = roped_work_prepare(work, &err);
    if (!status)
        status = roped_work_output(work, "q", q, &err);
    return status ? status : roped_work_launch(work, &err);
}

TEST(rope_with_and_without_a_table)
{
    static const char *const angles[] = {"table", "compute"};
    int64_t positions[3] = {0, 1, 5000};
    for (int i = 0; i < 2; i++) {
        float q[3][2] = {{1, 0}, {1, 0}, {0, 1}};
        struct roped_work *work = new_work("rope");
        CHECK_OK(roped_work_param(work, "angles", angles[i], &err), &err);
        CHECK_OK(rotate(work, q[0], 3, positions), &err);
        CHECK_DOUBLE(q[0][0], 1, 0);
        CHECK_DOUBLE(q[1][0], cos(1), 1e-6);
        CHECK_DOUBLE(q[1][1], sin(1), 1e-6);
        CHECK_DOUBLE(q[2][0], -sin(5000), 1e-6);
        CHECK_DOUBLE(q[2][1], cos(5000), 1e-6);
        roped_work_free(work);
    }
}

/* A work whose positions changed is prepared again, and larger ones fit. */
TEST(prepare_again_follows_the_positions)
{
    int64_t position = 1;
    float q[2] = {1, 0};
    struct roped_work *work = new_work("rope");
    CHECK_OK(roped_work_param(work, "angles", "table", &err), &err);
    CHECK_OK(rotate(work, q, 1, &position), &err);
    CHECK_DOUBLE(q[0], cos(1), 1e-6);
    position = 4000;
    CHECK_OK(roped_work_prepare(work, &err), &err);
    CHECK_INT(roped_work_launch(work, &err), ROPED_INVALID);
    CHECK_OK(roped_work_output(work, "q", q, &err), &err);
    CHECK_OK(roped_work_launch(work, &err), &err);
    CHECK_DOUBLE(q[0], cos(4001), 1e-6);
    position = -2;
    CHECK_INT(roped_work_prepare(work, &err), ROPED_BAD_VALUE);
    CHECK_CONTAINS(err.text, "positions");
    CHECK_INT(roped_work_launch(work, &err), ROPED_INVALID);
    CHECK_CONTAINS(err.text, "not prepared");
    roped_work_free(work);
}

/* Two layers of one work; positions that move must be checked again. */
TEST(moved_inputs_are_the_ones_read)
{
    int64_t positions[2] = {1, 2};
    float q[2] = {1, 0}, other[2] = {0, 1}, out[2];
    struct roped_work *work = new_work("rope");
    CHECK_OK(rotate(work, q, 1, positions), &err);
    CHECK_OK(roped_work_move_input(work, "q", other, &err), &err);
    CHECK_OK(roped_work_output(work, "q", out, &err), &err);
    CHECK_OK(roped_work_launch(work, &err), &err);
    CHECK_DOUBLE(out[0], -sin(1), 1e-6);
    CHECK_DOUBLE(q[0], cos(1), 1e-6);
    CHECK_DOUBLE(other[1], 1, 0);
    CHECK_INT(roped_work_move_input(work, "k", other, &err), ROPED_INVALID);
    CHECK_CONTAINS(err.text, "'k'");
    CHECK_INT(roped_work_move_input(work, "q", NULL, &err), ROPED_INVALID);
    CHECK_CONTAINS(err.text, "no data");
    CHECK_OK(roped_work_move_input(work, "positions", positions + 1, &err),
             &err);
    CHECK_INT(roped_work_launch(work, &err), ROPED_INVALID);
    CHECK_OK(roped_work_prepare(work, &err), &err);
    CHECK_OK(roped_work_output(work, "q", out, &err), &err);
    CHECK_OK(roped_work_launch(work, &err), &err);
    CHECK_DOUBLE(out[0], -sin(2), 1e-6);
    roped_work_free(work);
}

TEST(refusals_name_the_culprit)
{
    float x[4] = {0};
    int64_t shape[9] = {1, 4, 1, 1, 1, 1, 1, 1, 1};
    struct roped_work *work = NULL;
    CHECK_INT(roped_work_new(session, "rmsnrm", &work, &err),
              ROPED_NO_OPERATOR);
    CHECK_CONTAINS(err.text, "'rmsnrm'");
    work = new_work("rmsnorm");
    CHECK_INT(roped_work_param(work, "epsilon", "1", &err), ROPED_UNKNOWN_NAME);
    CHECK_CONTAINS(err.text, "'epsilon'");
    CHECK_INT(roped_work_input(work, "x", "float32", 2, shape, x, &err),
              ROPED_BAD_TYPE);
    CHECK_CONTAINS(err.text, "'float32'");
    CHECK_INT(roped_work_input(work, "x", "F32", 9, shape, x, &err),
              ROPED_BAD_SHAPE);
    CHECK_CONTAINS(err.text, "rank 9");
    CHECK_INT(roped_work_prepare(work, &err), ROPED_INVALID);
    CHECK_TEXT(err.text, "missing tensor 'x'");
    CHECK_OK(roped_work_input(work, "x", "F32", 2, shape, NULL, &err), &err);
    CHECK_INT(roped_work_prepare(work, &err), ROPED_INVALID);
    CHECK_TEXT(err.text, "tensor 'x': no data");
    CHECK_INT(roped_work_output(work, "y", x, &err), ROPED_INVALID);
    CHECK_CONTAINS(err.text, "not prepared");
    roped_work_free(work);
    roped_work_free(NULL);
}

/* The cache of rope_append is its own output. */
TEST(updated_caches_stay_where_they_are)
{
    float q[2] = {1, 0}, k[2] = {0, 1}, v[2] = {7, 8}, out[2][2] = {{0}};
    float k_cache[3][2] = {{0}}, v_cache[3][2] = {{0}};
    int64_t slot = 1, position = 2;
    int64_t one = 1, heads[3] = {1, 1, 2}, cache[3] = {3, 1, 2};
    struct roped_work *work = new_work("rope_append");
    CHECK_OK(roped_work_input(work, "q", "F32", 3, heads, q, &err), &err);
    CHECK_OK(roped_work_input(work, "k", "F32", 3, heads, k, &err), &err);
    CHECK_OK(roped_work_input(work, "v", "F32", 3, heads, v, &err), &err);
    CHECK_OK(
        roped_work_input(work, "positions", "I64", 1, &one, &position, &err),
        &err);
    CHECK_OK(roped_work_input(work, "slots", "I64", 1, &one, &slot, &err),
             &err);
    CHECK_OK(roped_work_input(work, "k_cache", "F32", 3, cache, k_cache, &err),
             &err);
    CHECK_OK(roped_work_input(work, "v_cache", "F32", 3, cache, v_cache, &err),
             &err);
    CHECK_OK(roped_work_prepare(work, &err), &err);
    CHECK_OK(roped_work_output(work, "q", out[0], &err), &err);
    CHECK_OK(roped_work_launch(work, &err), &err);
    CHECK_DOUBLE(out[0][0], cos(2), 1e-6);
    CHECK_DOUBLE(k_cache[1][0], -sin(2), 1e-6);
    CHECK_DOUBLE(v_cache[1][1], 8, 0);
    CHECK_DOUBLE(v_cache[0][1] + v_cache[2][1], 0, 0);
    float moved[3][2] = {{0}};
    CHECK_OK(roped_work_move_input(work, "v_cache", moved, &err), &err);
    CHECK_OK(roped_work_launch(work, &err), &err);
    CHECK_DOUBLE(moved[1][1], 8, 0);
    roped_work_free(work);
}

/* A head of four at one position, whose address is new each time. */
static enum roped_status turn(struct roped_work *work, int64_t position,
                              float out[4])
{
    float q[4] = {1, 0, 0, 0};
    int q_port = 0, positions_port = 2, q_out = 10;
    void *data[12] = {0};
    data[q_port] = q;
    data[positions_port] = &position;
    data[q_out] = out;
    return roped_work_launch_on(work, data, &err);
}

static struct roped_work *new_turn(void)
{
    int64_t position = 0, one = 1, heads[3] = {1, 1, 4};
    float q[4];
    struct roped_work *work = new_work("rope");
    CHECK_OK(roped_work_input(work, "q", "F32", 3, heads, q, &err), &err);
    CHECK_OK(
        roped_work_input(work, "positions", "I64", 1, &one, &position, &err),
        &err);
    return work;
}

TEST(launch_on_checks_index_values_each_time)
{
    float out[4];
    struct roped_work *work = new_turn();
    for (int i = 1; i < 4; i++) {
        CHECK_OK(turn(work, i, out), &err);
        CHECK_DOUBLE(out[0], cos(i), 1e-6);
    }
    CHECK_INT(turn(work, -2, out), ROPED_BAD_VALUE);
    CHECK_CONTAINS(err.text, "'positions'");
    CHECK_OK(turn(work, 7, out), &err);
    CHECK_DOUBLE(out[2], sin(7), 1e-6);
    CHECK_INT(turn(work, 7, NULL), ROPED_INVALID);
    CHECK_TEXT(err.text, "output 'q': no data");
    roped_work_free(work);
}

TEST(launch_on_trusts_where_it_may)
{
    float out[4];
    struct roped_work *work = new_turn();
    roped_work_trust(work);
    CHECK_OK(turn(work, 3, out), &err);
    CHECK_DOUBLE(out[0], cos(3), 1e-6);
    CHECK_OK(turn(work, -1, out), &err); /* nobody looks */
    CHECK_DOUBLE(out[0], cos(1), 1e-6);
    CHECK_DOUBLE(out[2], -sin(1), 1e-6);
    roped_work_free(work);
    work = new_turn(); /* frequencies that follow the largest position */
    roped_work_trust(work);
    CHECK_OK(roped_work_param(work, "scaling", "dynamic", &err), &err);
    CHECK_OK(roped_work_param(work, "factor", "2", &err), &err);
    CHECK_OK(roped_work_param(work, "max_position", "8", &err), &err);
    CHECK_OK(turn(work, 3, out), &err);
    CHECK_INT(turn(work, -2, out), ROPED_BAD_VALUE);
    roped_work_free(work);
}

/* Heads of two rotated where they are, in rows of seven. */
TEST(slices_of_rows_are_rotated_in_place)
{
    float rows[3][7] = {
        {1, 0, 0, 1, 5, 6, 7}, {1, 0, 0, 1, 5, 6, 7}, {1, 0, 0, 1, 5, 6, 7}};
    int64_t positions[3] = {0, 1, 2}, n = 3, shape[3] = {3, 1, 2};
    struct roped_work *work = new_work("rope");
    CHECK_OK(roped_work_input(work, "q", "F32", 3, shape, rows[0], &err), &err);
    CHECK_OK(roped_work_input(work, "k", "F32", 3, shape, rows[0] + 2, &err),
             &err);
    CHECK_OK(roped_work_input(work, "positions", "I64", 1, &n, positions, &err),
             &err);
    CHECK_OK(roped_work_input_stride(work, "q", 7, &err), &err);
    CHECK_OK(roped_work_input_stride(work, "k", 7, &err), &err);
    CHECK_OK(roped_work_prepare(work, &err), &err);
    CHECK_OK(roped_work_output(work, "q", rows[0], &err), &err);
    CHECK_OK(roped_work_output(work, "k", rows[0] + 2, &err), &err);
    CHECK_OK(roped_work_launch(work, &err), &err);
    for (int i = 0; i < 3; i++) {
        CHECK_DOUBLE(rows[i][0], cos(i), 1e-6);
        CHECK_DOUBLE(rows[i][1], sin(i), 1e-6);
        CHECK_DOUBLE(rows[i][2], -sin(i), 1e-6);
        CHECK_DOUBLE(rows[i][3], cos(i), 1e-6);
        CHECK_DOUBLE(rows[i][4], 5, 0);
        CHECK_DOUBLE(rows[i][6], 7, 0);
    }
    roped_work_free(work);
}

/* An output of its own is packed, or has the stride that it is given. */
TEST(outputs_have_steps_of_their_own)
{
    float x[2][3] = {{3, -3, 9}, {0.5f, 0.5f, 9}}, packed[4] = {0};
    float apart[2][5] = {{0}};
    int64_t shape[2] = {2, 2};
    void *all[] = {x, NULL, packed};
    struct roped_work *work = new_work("rmsnorm");
    CHECK_OK(roped_work_input(work, "x", "F32", 2, shape, x, &err), &err);
    CHECK_OK(roped_work_input_stride(work, "x", 3, &err), &err);
    CHECK_OK(roped_work_launch_on(work, all, &err), &err);
    CHECK_DOUBLE(packed[1], -1, 1e-5);
    CHECK_DOUBLE(packed[2], 1, 1e-5);
    CHECK_OK(roped_work_output_stride(work, "y", 5, &err), &err);
    all[2] = apart;
    CHECK_OK(roped_work_launch_on(work, all, &err), &err);
    CHECK_DOUBLE(apart[0][1], -1, 1e-5);
    CHECK_DOUBLE(apart[0][2], 0, 0);
    CHECK_DOUBLE(apart[1][1], 1, 1e-5);
    all[2] = x; /* its input's */
    CHECK_OK(roped_work_launch_on(work, all, &err), &err);
    CHECK_DOUBLE(x[1][1], 1, 1e-5);
    CHECK_DOUBLE(x[0][2], 9, 0);
    CHECK_INT(roped_work_output_stride(work, "y", 1, &err), ROPED_OK);
    all[2] = apart;
    CHECK_INT(roped_work_launch_on(work, all, &err), ROPED_BAD_SHAPE);
    CHECK_CONTAINS(err.text, "tensor 'y': stride 1, expected at least 2");
    CHECK_INT(roped_work_output_stride(work, "z", 5, &err), ROPED_INVALID);
    CHECK_CONTAINS(err.text, "output 'z'");
    CHECK_INT(roped_work_input_stride(work, "weight", 5, &err), ROPED_INVALID);
    CHECK_CONTAINS(err.text, "tensor 'weight'");
    CHECK_OK(roped_work_input_stride(work, "x", 1, &err), &err);
    CHECK_INT(roped_work_prepare(work, &err), ROPED_BAD_SHAPE);
    CHECK_CONTAINS(err.text, "tensor 'x': stride 1, expected at least 2");
    roped_work_free(work);
}

int main(void)
{
    if (roped_session_open("cpu", 0, NULL, &session, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return EXIT_FAILURE;
    }
    check_run();
    roped_session_close(session);
    return check_done();
}
