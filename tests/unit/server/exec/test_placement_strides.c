/*
 * test_placement_strides.c - jobs on slices of wider rows in regions: used
 * where they are, and refused where they overlap.
 */
#include "check.h"
#include "refusal.h"
#include "unit/server/exec/work.h"

enum { ROW = HIDDEN * (int)sizeof(float), ROWS = 4 };

static struct roped_error err;
static struct executor *exec;
static struct work work;

static void open_executor(void)
{
    struct exec_options options = work_options(1, 8);
    exec = work_open(&options);
}

static enum roped_status check(void)
{
    return placement_check(&work.job, exec_regions(exec), &err);
}

enum { WIDE = 160, WIDE_ROW = WIDE * (int)sizeof(float) };

/* Slices of wider rows, in place: what is beside them stays. */
TEST(a_call_works_in_slices_of_rows)
{
    open_executor();
    struct region *region = work_region(exec, "a", ROWS * WIDE_ROW, 0);
    work_make(&work, ROWS);
    unsigned char *memory = region_data(region);
    memset(memory, 9, ROWS * WIDE_ROW);
    for (int i = 0; i < ROWS; i++)
        memcpy(memory + 32 + i * WIDE_ROW, work.x + i * HIDDEN, ROW);
    work.job.in[0] = work.job.out[0] = (struct exec_place){region, 32, 0};
    work.job.call.in[0].stride = WIDE;
    CHECK_OK(check(), &err);
    CHECK_INT(work.job.call.out[0].stride, WIDE); /* its input's */
    placement_measure(&work.job, true);
    CHECK_INT(work.job.work_bytes, 2 * ROWS * ROW);
    CHECK_OK(exec_submit(exec, &work.job, &err), &err);
    CHECK(work_wait(&work));
    CHECK_INT(work.job.status, ROPED_OK);
    CHECK_INT(atomic_load(&fake_n_copies), 0);
    for (int i = 0; i < ROWS; i++) {
        memcpy(work.y + i * HIDDEN, memory + 32 + i * WIDE_ROW, ROW);
        memset(memory + 32 + i * WIDE_ROW, 9, ROW);
    }
    CHECK(work_is_right(&work));
    for (int i = 0; i < ROWS * WIDE_ROW; i++)
        if (memory[i] != 9)
            CHECK_FAIL("byte %d beside the slices changed", i);
    regions_give(exec_regions(exec), region);
    work_close(exec);
}

TEST(slices_of_rows_lie_side_by_side)
{
    static const struct {
        uint64_t in_at, out_at;
        int64_t in_step, out_stride;
        const char *part; /* NULL: allowed */
    } cases[] = {
        {0, ROW, WIDE, WIDE, NULL},
        {ROW, 0, WIDE, WIDE, NULL},
        {WIDE_ROW - ROW, 0, WIDE, WIDE, NULL},
        {0, 0, WIDE, 0, NULL},
        {0, 0, WIDE, WIDE, NULL},
        {0, 0, WIDE, WIDE + 1,
         "output 'y': stride 161 in the place of its input, expected that "
         "one's stride, 160"},
        {0, ROW - 4, WIDE, WIDE, "overlap input 'x' at 0 to 2176"},
        {ROW - 4, 0, WIDE, WIDE, "overlap input 'x' at 252 to 2428"},
        {0, ROW, WIDE, WIDE - 1, "overlap input 'x'"},
        {0, ROW, WIDE, 0, "overlap input 'x'"},
        {0, WIDE_ROW, WIDE, HIDDEN - 1,
         "tensor 'y': stride 63, expected at least 64"},
        {WIDE_ROW - ROW + 4, 0, WIDE, WIDE,
         "tensor 'x' takes 2176 bytes at offset 388, expected both within "
         "2560 bytes"},
        {0, WIDE_ROW - ROW + 4, 0, WIDE, "tensor 'y' takes 2176 bytes"}};
    open_executor();
    struct region *region = work_region(exec, "a", ROWS * WIDE_ROW, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        work_make(&work, ROWS);
        work.job.in[0] = (struct exec_place){region, cases[i].in_at, 0};
        work.job.out[0] =
            (struct exec_place){region, cases[i].out_at, cases[i].out_stride};
        work.job.call.in[0].stride = cases[i].in_step;
        CHECK(is_expected(check(), cases[i].part ? ROPED_INVALID : ROPED_OK));
        if (cases[i].part)
            CHECK_CONTAINS(err.text, cases[i].part);
    }
    regions_give(exec_regions(exec), region);
    work_close(exec);
}
