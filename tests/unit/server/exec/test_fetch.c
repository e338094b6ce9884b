/*
 * test_fetch.c - calls that read regions of several devices, on two devices and
 * on eight whose queues are threads: what is elsewhere is copied, what is
 * written is where it was, and nothing is used once it is gone.
 */
#include "check.h"
#include "exec/placement.h"
#include "unit/server/exec/queued_backend.h"
#include "unit/server/exec/work.h"

#include <math.h>

enum { ROWS = 8, ROW = HIDDEN * (int)sizeof(float), MOST_DEVICES = 8 };

static struct roped_error err;
static struct executor *exec;
static int n_devices; /* of those tests that are run with any number */

static void open_with(struct exec_options *options)
{
    static const int indices[MOST_DEVICES] = {0, 1, 0, 1, 0, 1, 0, 1};
    struct roped_backend_options backend = {.n_threads = 1};
    options->devices = indices;
    options->n_devices = n_devices;
    queued_reset();
    if (exec_open(&queued_api, &backend, options, &exec, &err)) {
        fprintf(stderr, "test_fetch: %s\n", err.text);
        exit(EXIT_FAILURE);
    }
}

static void open_exec(void)
{
    struct exec_options options = work_options(1, 64);
    open_with(&options);
}

static void close_exec(void)
{
    exec_drain(exec, after_ms(20000));
    exec_close(exec);
    CHECK_INT(atomic_load(&queued_n_live), 0);
}

static void give(struct region *region)
{
    regions_give(exec_regions(exec), region);
}

static enum roped_status check(struct work *work)
{
    return placement_check(&work->job, exec_regions(exec), &err);
}

static enum roped_status run(struct work *work)
{
    CHECK_OK(exec_submit(exec, &work->job, &err), &err);
    CHECK(work_wait(work));
    return work->job.status;
}

static uint64_t n_fetched(int device)
{
    struct exec_device_usage usage;
    exec_device_usage(exec, device, &usage);
    return usage.fetched_bytes;
}

static int n_jobs(int device)
{
    struct exec_device_usage usage;
    exec_device_usage(exec, device, &usage);
    return (int)usage.jobs;
}

/* With a weight of ones, which leaves the answer as it is. */
static void make(struct work *work, float *weight)
{
    struct roped_tensor tensor = {ROPED_F32, 1, {HIDDEN}, weight};
    work_make(work, ROWS);
    for (int i = 0; i < HIDDEN; i++)
        weight[i] = 1;
    CHECK_OK(roped_call_bind(&work->job.call, "weight", &tensor, &err), &err);
    CHECK_OK(roped_call_resolve(&work->job.call, &err), &err);
    work->job.call.out[0].data = work->y;
}

/* A region that holds these bytes. */
static struct region *hold(const void *bytes, size_t n, int device)
{
    struct region *region = work_region(exec, "r", n, device);
    memcpy(region_data(region), bytes, n);
    return region;
}

static bool is_right(struct work *work, const struct region *y)
{
    if (y)
        memcpy(work->y, region_data(y), ROWS * ROW);
    return work_is_right(work);
}

/* ------------------------------------------------------------------- reads */

/* Each tensor on each device, or with the caller. */
static void run_placed(int x_at, int weight_at, int y_at)
{
    static struct work work;
    static float weight[HIDDEN];
    struct region *x = NULL, *w = NULL, *y = NULL;
    make(&work, weight);
    if (x_at >= 0)
        work.job.in[0].region = x = hold(work.x, ROWS * ROW, x_at);
    if (weight_at >= 0)
        work.job.in[1].region = w = hold(weight, ROW, weight_at);
    if (y_at >= 0)
        work.job.out[0].region = y = work_region(exec, "y", ROWS * ROW, y_at);
    int device = y_at >= 0 ? y_at : x_at >= 0 ? x_at : weight_at;
    int elsewhere = (x_at >= 0 && x_at != device ? ROWS * ROW : 0) +
                    (weight_at >= 0 && weight_at != device ? ROW : 0);
    CHECK_OK(check(&work), &err);
    placement_measure(&work.job, false);
    CHECK_INT(work.job.device, device);
    int at = device < 0 ? 0 : device, jobs = n_jobs(at);
    uint64_t before = n_fetched(at);
    long long copied = atomic_load(&queued_fetched_bytes);
    CHECK_INT(run(&work), ROPED_OK);
    CHECK(is_right(&work, y));
    if (device >= 0)
        CHECK_INT(n_jobs(at), jobs + 1);
    CHECK_INT(n_fetched(at) - before, elsewhere);
    CHECK_INT(atomic_load(&queued_fetched_bytes) - copied, elsewhere);
    CHECK(elsewhere == 0 || work.job.timing.h2d_ns > 0);
    give(x);
    give(w);
    give(y);
}

TEST(what_is_read_may_be_on_any_device)
{
    open_exec();
    for (int x_at = -1; x_at < n_devices; x_at++)
        for (int weight_at = -1; weight_at < n_devices; weight_at++)
            for (int y_at = -1; y_at < n_devices; y_at++)
                run_placed(x_at, weight_at, y_at);
    close_exec();
}

/* Rows of a wider region, and one tensor of it twice. */
TEST(what_is_elsewhere_may_have_a_step_and_an_offset)
{
    enum { WIDE = 160 };
    static struct work work;
    static float wide[ROWS * WIDE];
    open_exec();
    work_make(&work, ROWS);
    for (int i = 0; i < ROWS; i++)
        memcpy(wide + 8 + i * WIDE, work.x + i * HIDDEN, ROW);
    struct region *x = hold(wide, sizeof wide, n_devices - 1);
    struct region *y = work_region(exec, "y", ROWS * ROW, 0);
    work.job.in[0] = (struct exec_place){x, 32, 0};
    work.job.call.in[0].stride = WIDE;
    work.job.out[0].region = y;
    CHECK_OK(check(&work), &err);
    CHECK_INT(run(&work), ROPED_OK);
    CHECK(is_right(&work, y));
    give(x);
    give(y);
    close_exec();
}

/* Values that the host checks: out of a region of any device. */
TEST(index_values_may_be_on_any_device)
{
    enum { TOKENS = 4, WIDTH = 16 };
    static const int64_t good[TOKENS] = {0, 5, 2, 3}, bad[TOKENS] = {0, -5};
    static float q[TOKENS * WIDTH], out[2][TOKENS * WIDTH];
    static int64_t values[TOKENS * 2]; /* a stride of 64 bytes */
    static struct work work;
    open_exec();
    for (int i = 0; i < TOKENS * WIDTH; i++)
        q[i] = (float)(i % 5) - 2;
    for (int i = 0; i < 3; i++) { /* beside q, elsewhere, and not valid */
        struct roped_tensor tensor = {ROPED_F32, 3, {TOKENS, 1, WIDTH}, q};
        struct roped_tensor positions = {ROPED_I64, 1, {TOKENS}, NULL};
        struct region *y = work_region(exec, "y", sizeof q, 0);
        struct region *p =
            hold(i == 2 ? bad : good, sizeof good, i == 0 ? 0 : n_devices - 1);
        struct roped_call *call = &work.job.call;
        work_make(&work, 1);
        roped_call_init(call, roped_op_find("rope"));
        CHECK_OK(roped_call_bind(call, "q", &tensor, &err), &err);
        CHECK_OK(roped_call_bind(call, "positions", &positions, &err), &err);
        CHECK_OK(roped_call_resolve(call, &err), &err);
        work.job.in[roped_op_input(call->op, "positions")].region = p;
        work.job.out[0].region = y;
        work.job.values = values;
        CHECK_OK(check(&work), &err);
        CHECK_INT(run(&work), i == 2 ? ROPED_BAD_VALUE : ROPED_OK);
        if (i < 2)
            memcpy(out[i], region_data(y), sizeof q);
        else
            CHECK_CONTAINS(work.job.error.text, "-5");
        CHECK_INT(n_fetched(0), i * (int)sizeof good);
        give(y);
        give(p);
    }
    CHECK(memcmp(out[0], out[1], sizeof q) == 0);
    CHECK(memcmp(out[0], q, sizeof q) != 0);
    close_exec();
}

/* ------------------------------------------------------------------ writes */

static void make_add(struct work *work, float *residual)
{
    struct roped_tensor x = {ROPED_F32, 2, {ROWS, HIDDEN}, work->x};
    struct roped_tensor r = {ROPED_F32, 2, {ROWS, HIDDEN}, residual};
    struct roped_call *call = &work->job.call;
    work_make(work, ROWS);
    roped_call_init(call, roped_op_find("add_rmsnorm"));
    CHECK_OK(roped_call_bind(call, "x", &x, &err), &err);
    CHECK_OK(roped_call_bind(call, "residual", &r, &err), &err);
    CHECK_OK(roped_call_resolve(call, &err), &err);
}

TEST(what_is_written_is_on_one_device)
{
    static struct work work;
    static float residual[ROWS * HIDDEN];
    char part[64];
    open_exec();
    make_add(&work, residual);
    int last = n_devices - 1;
    struct region *x = hold(work.x, ROWS * ROW, last);
    struct region *here = work_region(exec, "here", 2 * ROWS * ROW, 0);
    struct region *there = work_region(exec, "there", ROWS * ROW, last);
    work.job.in[0].region = x;
    work.job.out[0].region = here;
    work.job.out[1].region = there;
    CHECK_INT(check(&work), ROPED_INVALID);
    CHECK_CONTAINS(err.text, "written to region 'there' of device ");
    CHECK_CONTAINS(err.text, "to region 'here' of device 0");
    snprintf(part, sizeof part, "of device %d, but", last);
    CHECK_CONTAINS(err.text, part);
    CHECK_CONTAINS(err.text, "expected one device for all that a call writes");
    work.job.out[1] = (struct exec_place){here, ROWS * ROW, 0};
    CHECK_OK(check(&work), &err);
    placement_measure(&work.job, false);
    CHECK_INT(work.job.device, 0);
    give(x);
    give(here);
    give(there);
    close_exec();
}

/* An input in whose place the output is stays there; the other one comes. */
TEST(a_call_in_place_runs_where_that_is)
{
    static struct work work;
    static float residual[ROWS * HIDDEN];
    open_exec();
    make_add(&work, residual);
    struct region *x = hold(work.x, ROWS * ROW, n_devices - 1);
    struct region *r = hold(residual, ROWS * ROW, 0);
    const struct roped_op *op = work.job.call.op;
    int sum = roped_op_output(op, "residual");
    work.job.in[0].region = x;
    work.job.in[roped_op_input(op, "residual")].region = r;
    work.job.out[sum].region = r;
    work.job.call.out[1 - sum].data = work.y;
    CHECK_OK(check(&work), &err);
    CHECK_INT(run(&work), ROPED_OK);
    CHECK_INT(n_fetched(0), ROWS * ROW);
    CHECK(work_is_right(&work));
    CHECK(memcmp(region_data(r), work.x, ROWS * ROW) == 0);
    give(x);
    give(r);
    close_exec();
}

/* ------------------------------------------------------------------ memory */

/* It is forgotten, and another has its name and perhaps its place, while the
 * copy is still to come. */
TEST(a_region_that_is_forgotten_is_copied_first)
{
    static struct work work;
    static float weight[HIDDEN], zeros[ROWS * HIDDEN];
    open_exec();
    make(&work, weight);
    struct region *x = hold(work.x, ROWS * ROW, n_devices - 1), *later;
    struct region *y = work_region(exec, "y", ROWS * ROW, 0);
    struct regions *regions = exec_regions(exec);
    region_set_written(x);
    CHECK_OK(regions_publish(regions, x, NULL, &err), &err);
    work.job.in[0].region = x; /* the job's own reference is the caller's */
    work.job.out[0].region = y;
    CHECK_OK(check(&work), &err);
    atomic_store(&queued_is_held, true);
    CHECK_OK(exec_submit(exec, &work.job, &err), &err);
    CHECK_OK(regions_remove(regions, region_info(x)->tenant, "r", &err), &err);
    later = hold(zeros, ROWS * ROW, n_devices - 1);
    CHECK(region_data(later) != region_data(x));
    atomic_store(&queued_is_held, false);
    CHECK(work_wait(&work));
    CHECK_INT(work.job.status, ROPED_OK);
    CHECK(is_right(&work, y));
    give(x);
    give(y);
    give(later);
    CHECK_INT((int)regions_device_bytes(regions, n_devices - 1), 0);
    close_exec();
}

/* Copies are in the arena of the lane, whose memory is bounded. */
TEST(copies_are_within_the_memory_of_calls)
{
    static struct work work;
    static float weight[HIDDEN];
    struct exec_options options = work_options(1, 64);
    options.device_bytes = ROWS * ROW; /* no room for the weight beside x */
    open_with(&options);
    make(&work, weight);
    struct region *x = hold(work.x, ROWS * ROW, n_devices - 1);
    struct region *w = hold(weight, ROW, n_devices - 1);
    struct region *y = work_region(exec, "y", ROWS * ROW, 0);
    work.job.in[0].region = x;
    work.job.in[1].region = w;
    work.job.out[0].region = y;
    CHECK_INT(run(&work), ROPED_TOO_LARGE);
    CHECK_CONTAINS(work.job.error.text,
                   "2304 bytes of device memory, copies of regions of other "
                   "devices included, expected at most 2048 (device_bytes)");
    make(&work, weight);
    work.job.in[1].region = w;
    work.job.out[0].region = x; /* there it is fine */
    work.job.in[0].region = x;
    CHECK_INT(run(&work), ROPED_OK);
    CHECK(is_right(&work, x));
    give(x);
    give(w);
    give(y);
    close_exec();
}

/* ------------------------------------------------------------------- large */

/* One value in each row, so that the norm of any is a sign. */
enum { WIDE = 1024, LARGE = 7001 };

static float *constant_rows(bool are_zero)
{
    float *rows = malloc((size_t)LARGE * WIDE * sizeof *rows);
    for (int i = 0; i < LARGE * WIDE && rows; i++)
        rows[i] = are_zero       ? 0
                  : i / WIDE % 2 ? (float)(i / WIDE + 1)
                                 : (float)(-i / WIDE - 1);
    if (!rows)
        exit(EXIT_FAILURE);
    return rows;
}

static int count_wrong(const float *y)
{
    int n = 0;
    for (int i = 0; i < LARGE * WIDE; i++) {
        float expected = (float)(i % WIDE) * (i / WIDE % 2 ? 1.0f : -1.0f);
        n += !(fabsf(y[i] - expected) <= 1e-3f);
    }
    return n;
}

/* In slices, bound to a device by what it writes there: the weight comes once
 * for each queue of the lane. */
TEST(a_call_in_slices_reads_what_is_elsewhere)
{
    static float weight[WIDE];
    static struct work work;
    const uint64_t bytes = (uint64_t)LARGE * WIDE * sizeof(float);
    float *x = constant_rows(false), *residual = constant_rows(true);
    float *y = constant_rows(true);
    struct roped_tensor in[] = {{ROPED_F32, 2, {LARGE, WIDE}, x},
                                {ROPED_F32, 2, {LARGE, WIDE}, residual},
                                {ROPED_F32, 1, {WIDE}, weight}};
    struct roped_call *call = &work.job.call;
    struct exec_options options = work_options(1, 8);
    options.device_bytes = options.region_bytes = 64 << 20;
    open_with(&options);
    for (int i = 0; i < WIDE; i++)
        weight[i] = (float)i;
    struct region *there = hold(weight, sizeof weight, n_devices - 1);
    struct region *sum = work_region(exec, "sum", bytes, 0);
    work_make(&work, 1);
    roped_call_init(call, roped_op_find("add_rmsnorm"));
    CHECK_OK(roped_call_bind(call, "x", &in[0], &err), &err);
    CHECK_OK(roped_call_bind(call, "residual", &in[1], &err), &err);
    CHECK_OK(roped_call_bind(call, "weight", &in[2], &err), &err);
    CHECK_OK(roped_call_resolve(call, &err), &err);
    call->out[roped_op_output(call->op, "y")].data = y;
    work.job.out[roped_op_output(call->op, "residual")].region = sum;
    work.job.in[roped_op_input(call->op, "weight")].region = there;
    CHECK_OK(check(&work), &err);
    CHECK_INT(run(&work), ROPED_OK);
    CHECK_INT(count_wrong(y), 0);
    CHECK(memcmp(region_data(sum), x, bytes) == 0);
    CHECK_INT(n_fetched(0), 3 * sizeof weight);
    give(there);
    give(sum);
    free(x);
    free(y);
    free(residual);
    close_exec();
}

int main(void)
{
    static const int counts[] = {2, MOST_DEVICES};
    for (int i = 0; i < 2; i++) {
        n_devices = counts[i];
        check_run();
    }
    return check_done();
}
