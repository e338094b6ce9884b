/*
 * test_lane.c - where the tensors of a job are while it runs: arenas and
 * their common budget, page-locked memory in place, any alignment, resident
 * rotary tables.
 */
#include "check.h"
#include "unit/server/exec/work.h"

#include <math.h>

static struct roped_error err;

/* Submits and waits; the status it ended with. */
static enum roped_status run(struct executor *exec, struct work *work)
{
    CHECK_OK(exec_submit(exec, &work->job, &err), &err);
    CHECK(work_wait(work));
    return work->job.status;
}

static uint64_t arena_bytes(struct executor *exec)
{
    struct exec_usage usage;
    exec_usage(exec, &usage);
    return usage.device_arena_bytes;
}

/* ----------------------------------------------------------------- arenas */

/* One call of 16 rows fills the device, and two of 8 fit side by side: none
 * may be refused for what an idle lane keeps. */
TEST(lanes_share_the_device_without_starving_each_other)
{
    static struct work large, small[2];
    struct exec_options options = work_options(2, 8);
    options.device_bytes = 2 * 16 * HIDDEN * sizeof(float);
    struct executor *exec = work_open(&options);
    for (int round = 0; round < 10; round++) {
        work_make(&large, 16);
        CHECK_INT(run(exec, &large), ROPED_OK);
        CHECK(work_is_right(&large));
        work_wait_idle(exec);
        CHECK(arena_bytes(exec) <= options.device_bytes / 2);
        int n_launches = atomic_load(&fake_n_launches);
        fake_hold(); /* both lanes at once */
        for (int i = 0; i < 2; i++) {
            work_make(&small[i], 8);
            CHECK_OK(exec_submit(exec, &small[i].job, &err), &err);
        }
        CHECK(work_wait_launches(n_launches + 2));
        fake_let_go();
        for (int i = 0; i < 2; i++) {
            CHECK(work_wait(&small[i]));
            CHECK_OK(small[i].job.status, &small[i].job.error);
            CHECK(work_is_right(&small[i]));
        }
        work_wait_idle(exec);
    }
    work_close(exec);
}

TEST(a_call_larger_than_the_device_is_refused_alone)
{
    static struct work work;
    struct exec_options options = work_options(1, 8);
    options.device_bytes = 2 * 8 * HIDDEN * sizeof(float);
    struct executor *exec = work_open(&options);
    work_make(&work, 9);
    CHECK_INT(run(exec, &work), ROPED_TOO_LARGE);
    CHECK_CONTAINS(work.job.error.text, "device_bytes");
    CHECK_CONTAINS(work.job.error.text, "4096");
    work_make(&work, 8);
    CHECK_INT(run(exec, &work), ROPED_OK);
    CHECK(work_is_right(&work));
    work_close(exec);
}

TEST(a_device_out_of_memory_refuses_and_recovers)
{
    static struct work work;
    struct exec_options options = work_options(1, 8);
    struct executor *exec = work_open(&options);
    atomic_store(&fake_device_bytes, 100);
    work_make(&work, 8);
    CHECK_INT(run(exec, &work), ROPED_NO_MEMORY);
    CHECK_CONTAINS(work.job.error.text, "full");
    CHECK_INT(arena_bytes(exec), 0);
    atomic_store(&fake_device_bytes, 0);
    work_make(&work, 8);
    CHECK_INT(run(exec, &work), ROPED_OK);
    CHECK(work_is_right(&work));
    work_close(exec);
}

/* -------------------------------------------------------------- placement */

/* Points a job's tensors into a pool block, off bytes past alignment. */
static void use_block(struct work *work, const struct memory_block *block,
                      size_t off)
{
    size_t bytes = (size_t)roped_tensor_bytes(&work->job.call.in[0]);
    memcpy(block->start + off, work->x, bytes);
    work->job.call.in[0].data = block->start + off;
    work->job.call.out[0].data = block->start + 65536 + off;
    work->job.is_pinned = block->is_pinned;
}

static void read_block(struct work *work)
{
    memcpy(work->y, work->job.call.out[0].data,
           (size_t)roped_tensor_bytes(&work->job.call.out[0]));
}

TEST(page_locked_memory_is_used_in_place_up_to_a_size)
{
    static struct work work;
    static const struct {
        int rows;
        size_t off;
        bool is_pinned;
        int n_copies;
    } cases[] = {{8, 0, true, 0}, {8, 16, true, 0},
                 {8, 4, true, 2}, /* kernels want 16 bytes */
                 {8, 1, true, 2}, /* or any byte, where the device copies */
                 {9, 0, true, 2}, /* larger than mapped_bytes */
                 {8, 0, false, 2}};
    struct exec_options options = work_options(1, 8);
    struct memory_block block;
    options.mapped_bytes = 2 * 8 * HIDDEN * sizeof(float);
    struct executor *exec = work_open(&options);
    CHECK_OK(memory_take(exec_memory(exec), 1 << 18, &block, &err), &err);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        work_make(&work, cases[i].rows);
        use_block(&work, &block, cases[i].off);
        if (!cases[i].is_pinned)
            work.job.is_pinned = false;
        atomic_store(&fake_n_copies, 0);
        CHECK_INT(run(exec, &work), ROPED_OK);
        CHECK_INT(atomic_load(&fake_n_copies), cases[i].n_copies);
        CHECK_INT(work.job.placement.port[0].where,
                  cases[i].n_copies ? IN_ARENA : IN_HOST);
        read_block(&work);
        CHECK(work_is_right(&work));
    }
    memory_give(exec_memory(exec), &block);
    work_close(exec);
}

/* The real CPU backend works in place, but never at a wrong address. */
TEST(the_cpu_takes_tensors_at_any_address)
{
    static struct work work;
    struct exec_options options = work_options(1, 8);
    struct roped_backend_options backend = {.n_threads = 1};
    struct executor *exec;
    struct memory_block block;
    CHECK_OK(exec_open(&roped_backend_cpu, &backend, &options, &exec, &err),
             &err);
    CHECK_OK(memory_take(exec_memory(exec), 1 << 18, &block, &err), &err);
    for (size_t off = 0; off < 8; off++) {
        work_make(&work, 8);
        use_block(&work, &block, off);
        CHECK_INT(run(exec, &work), ROPED_OK);
        read_block(&work);
        CHECK(work_is_right(&work));
        CHECK((arena_bytes(exec) > 0) == (off > 0));
    }
    memory_give(exec_memory(exec), &block);
    exec_drain(exec, after_ms(1000));
    exec_close(exec);
}

TEST(an_empty_tensor_is_no_work)
{
    static struct work work;
    struct exec_options options = work_options(1, 8);
    struct executor *exec = work_open(&options);
    work_make(&work, 0);
    work.job.call.in[0].data = NULL;
    work.job.call.out[0].data = NULL;
    CHECK_INT(run(exec, &work), ROPED_OK);
    CHECK_INT(atomic_load(&fake_n_copies), 0);
    work_close(exec);
}

/* ----------------------------------------------------------------- tables */

enum { TOKENS = 5, HEADS = 2, HEAD_DIM = 32 };

struct rotation {
    struct work work; /* its done and its wait */
    float q[TOKENS * HEADS * HEAD_DIM], out[TOKENS * HEADS * HEAD_DIM];
    unsigned char positions[1 + TOKENS * sizeof(int64_t)];
};

/* A rope of TOKENS tokens whose positions are at an odd address. */
static void make_rotation(struct rotation *rotation, int64_t first,
                          const char *mode)
{
    struct roped_call *call = &rotation->work.job.call;
    struct roped_tensor q = {
        ROPED_F32, 3, {TOKENS, HEADS, HEAD_DIM}, rotation->q};
    struct roped_tensor positions = {
        ROPED_I64, 1, {TOKENS}, rotation->positions + 1};
    work_make(&rotation->work, 1);
    for (int i = 0; i < TOKENS * HEADS * HEAD_DIM; i++)
        rotation->q[i] = (float)(i % 7) - 3;
    for (int64_t i = 0; i < TOKENS; i++) {
        int64_t position = first + i;
        memcpy(rotation->positions + 1 + (size_t)i * sizeof position, &position,
               sizeof position);
    }
    roped_call_init(call, roped_op_find("rope"));
    CHECK_OK(roped_call_set_text(call, "angles", mode, &err), &err);
    CHECK_OK(roped_call_bind(call, "q", &q, &err), &err);
    CHECK_OK(roped_call_bind(call, "positions", &positions, &err), &err);
    CHECK_OK(roped_call_resolve(call, &err), &err);
    call->out[0].data = rotation->out;
}

TEST(a_resident_table_serves_calls_and_changes_nothing)
{
    static struct rotation with, without;
    struct tables_usage usage;
    struct exec_options options = work_options(2, 8);
    struct executor *exec = work_open(&options);
    for (int i = 0; i < 20; i++) {
        make_rotation(&with, 100 * i, "table");
        make_rotation(&without, 100 * i, "compute");
        CHECK_INT(run(exec, &with.work), ROPED_OK);
        CHECK_INT(run(exec, &without.work), ROPED_OK);
        for (int j = 0; j < TOKENS * HEADS * HEAD_DIM; j++)
            CHECK_DOUBLE((double)with.out[j], (double)without.out[j], 2e-6);
    }
    CHECK(with.out[0] != with.q[0]);
    tables_usage(exec_tables(exec), &usage);
    CHECK_INT(usage.builds, 1);
    CHECK_INT(usage.hits, 19);
    work_close(exec);
}

TEST(a_call_beyond_the_largest_table_computes_or_says_why)
{
    static struct rotation rotation;
    struct tables_usage usage;
    struct exec_options options = work_options(1, 8);
    struct executor *exec = work_open(&options); /* 8,192 rows of 128 bytes */
    make_rotation(&rotation, 100000, "auto");
    CHECK_INT(run(exec, &rotation.work), ROPED_OK);
    make_rotation(&rotation, 100000, "table");
    CHECK_INT(run(exec, &rotation.work), ROPED_TOO_LARGE);
    CHECK_CONTAINS(rotation.work.job.error.text, "table_bytes");
    CHECK_CONTAINS(rotation.work.job.error.text, "100005");
    tables_usage(exec_tables(exec), &usage);
    CHECK_INT(usage.builds, 0);
    work_close(exec);
}

/* A value that plan refuses never reaches the device. */
TEST(a_bad_position_ends_its_call_alone)
{
    static struct rotation rotation;
    struct exec_options options = work_options(1, 8);
    struct executor *exec = work_open(&options);
    make_rotation(&rotation, -3, "auto");
    CHECK_INT(run(exec, &rotation.work), ROPED_BAD_VALUE);
    CHECK_CONTAINS(rotation.work.job.error.text, "positions");
    CHECK_INT(atomic_load(&fake_n_launches), 0);
    make_rotation(&rotation, 3, "auto");
    CHECK_INT(run(exec, &rotation.work), ROPED_OK);
    work_close(exec);
}
