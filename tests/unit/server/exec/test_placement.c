/*
 * test_placement.c - jobs whose tensors are in regions: what is refused, what
 * is not copied, what is read once, and inputs that are updated in place.
 */
#include "check.h"
#include "exec/inbox.h"
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

static void give(struct region *region)
{
    regions_give(exec_regions(exec), region);
}

/* The rows of an rmsnorm: 3, -3, 3, ... become 1, -1, 1, ... */
static void fill(struct region *region, uint64_t offset)
{
    memcpy(region_data(region) + offset, work.x, (size_t)work.rows * ROW);
}

static void read_out(struct region *region, uint64_t offset)
{
    memcpy(work.y, region_data(region) + offset, (size_t)work.rows * ROW);
}

static enum roped_status check(void)
{
    return placement_check(&work.job, exec_regions(exec), &err);
}

static uint64_t work_of(struct exec_job *job, bool is_host)
{
    placement_measure(job, is_host);
    return job->work_bytes;
}

static enum roped_status run(struct work *any)
{
    CHECK_OK(exec_submit(exec, &any->job, &err), &err);
    CHECK(work_wait(any));
    return any->job.status;
}

/* ------------------------------------------------------------------ rules */

TEST(what_is_outside_or_overlaps_is_refused)
{
    static const struct {
        uint64_t in_at, out_at;
        const char *part; /* NULL: allowed */
    } cases[] = {
        {0, 0, NULL}, /* in place */
        {4, 4, NULL},
        {0, ROWS * ROW, NULL}, /* side by side */
        {ROWS * ROW, 0, NULL},
        {0, ROW,
         "output 'y': bytes 256 to 1280 of region 'a' overlap input "
         "'x' at 0 to 1024"},
        {ROW, 0, "overlap input 'x' at 256 to 1280"},
        {0, 4, "overlap input 'x'"},
        {1, 0,
         "tensor 'x': offset 1 in region 'a', expected a multiple of 4, "
         "the size of F32"},
        {0, 1023, "tensor 'y': offset 1023"},
        {0, 2 * ROWS * ROW,
         "Invalid offset + byte size for shared memory "
         "region: 'a': tensor 'y' takes 1024 bytes at "
         "offset 2048, expected both within 2048 bytes"},
        {2 * ROWS * ROW + 4, 0, "Invalid offset for shared memory region"},
        {UINT64_MAX - 3, 0, "Invalid offset for shared memory region"}};
    open_executor();
    struct region *region = work_region(exec, "a", 2ull * ROWS * ROW, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        work_make(&work, ROWS);
        work.job.in[0] = (struct exec_place){region, cases[i].in_at};
        work.job.out[0] = (struct exec_place){region, cases[i].out_at};
        CHECK_INT(check(), cases[i].part ? ROPED_INVALID : ROPED_OK);
        if (cases[i].part)
            CHECK_CONTAINS(err.text, cases[i].part);
    }
    give(region);
    work_close(exec);
}

TEST(empty_tensors_overlap_nothing)
{
    open_executor();
    struct region *region = work_region(exec, "a", 64, 0);
    work_make(&work, 0);
    work.job.in[0] = (struct exec_place){region, 64};
    work.job.out[0] = (struct exec_place){region, 32};
    CHECK_OK(check(), &err);
    work.job.in[0].offset = 65;
    CHECK_INT(check(), ROPED_INVALID);
    give(region);
    work_close(exec);
}

TEST(only_the_input_it_may_share_is_shared)
{
    float weight[HIDDEN] = {0};
    struct roped_tensor w = {ROPED_F32, 1, {HIDDEN}, weight};
    open_executor();
    struct region *region = work_region(exec, "a", 4 * ROW, 0);
    work_make(&work, 1);
    CHECK_OK(roped_call_bind(&work.job.call, "weight", &w, &err), &err);
    CHECK_OK(roped_call_resolve(&work.job.call, &err), &err);
    work.job.in[1] = (struct exec_place){region, 0};
    work.job.out[0] = (struct exec_place){region, 0};
    CHECK_INT(check(), ROPED_INVALID);
    CHECK_CONTAINS(err.text, "overlap input 'weight'");
    work.job.in[0] = (struct exec_place){region, 0}; /* both inputs: fine */
    work.job.out[0] = (struct exec_place){region, ROW};
    CHECK_OK(check(), &err);
    give(region);
    work_close(exec);
}

TEST(an_output_that_is_not_made_has_no_place)
{
    float q[HIDDEN] = {0};
    struct roped_tensor tensor = {ROPED_F32, 3, {1, 1, HIDDEN}, q};
    open_executor();
    struct region *region = work_region(exec, "a", 4 * ROW, 0);
    work_make(&work, 1);
    roped_call_init(&work.job.call, roped_op_find("rope"));
    CHECK_OK(roped_call_bind(&work.job.call, "q", &tensor, &err), &err);
    CHECK_OK(roped_call_resolve(&work.job.call, &err), &err);
    work.job.out[1] = (struct exec_place){region, 0};
    CHECK_INT(check(), ROPED_INVALID);
    CHECK_TEXT(err.text, "output 'k' is not made: it needs input 'k'");
    give(region);
    work_close(exec);
}

/* ------------------------------------------------------------------- runs */

/* What is in a region is neither uploaded nor downloaded; the rest is. */
TEST(tensors_in_regions_are_not_copied)
{
    static const struct {
        bool has_in, has_out;
        int n_copies;
    } cases[] = {
        {false, false, 2}, {true, false, 1}, {false, true, 1}, {true, true, 0}};
    open_executor();
    struct region *region = work_region(exec, "a", 2ull * ROWS * ROW, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        work_make(&work, ROWS);
        memset(region_data(region), 0, 2ull * ROWS * ROW);
        if (cases[i].has_in) {
            fill(region, 0);
            work.job.in[0] = (struct exec_place){region, 0};
        }
        if (cases[i].has_out)
            work.job.out[0] = (struct exec_place){region, ROWS * ROW};
        CHECK_OK(check(), &err);
        atomic_store(&fake_n_copies, 0);
        CHECK_INT(run(&work), ROPED_OK);
        CHECK_INT(atomic_load(&fake_n_copies), cases[i].n_copies);
        CHECK_INT(work.job.placement.port[0].where,
                  cases[i].has_in ? IN_REGION : IN_ARENA);
        CHECK_INT(work.job.placement.port[1].where,
                  cases[i].has_out ? IN_REGION : IN_ARENA);
        if (cases[i].has_out)
            read_out(region, ROWS * ROW);
        CHECK(work_is_right(&work));
    }
    give(region);
    work_close(exec);
}

TEST(a_call_works_in_place)
{
    open_executor();
    struct region *region = work_region(exec, "a", 2ull * ROWS * ROW, 0);
    work_make(&work, ROWS);
    memset(region_data(region), 9, 2ull * ROWS * ROW);
    fill(region, ROW);
    work.job.in[0] = work.job.out[0] = (struct exec_place){region, ROW};
    CHECK_OK(check(), &err);
    CHECK_INT(run(&work), ROPED_OK);
    read_out(region, ROW);
    CHECK(work_is_right(&work));
    for (int i = 0; i < ROW; i++) /* and nothing beside it changes */
        if (region_data(region)[i] != 9 ||
            region_data(region)[(1 + ROWS) * ROW + i] != 9)
            CHECK_FAIL("byte %d beside the tensor changed", i);
    give(region);
    work_close(exec);
}

/* The other tensor is small and page-locked: it is used where it is. */
TEST(a_large_region_does_not_send_small_tensors_through_the_arena)
{
    struct exec_options options = work_options(1, 8);
    struct memory_block block;
    options.mapped_bytes = ROWS * ROW;
    exec = work_open(&options);
    CHECK_OK(memory_take(exec_memory(exec), ROWS * ROW, &block, &err), &err);
    struct region *region = work_region(exec, "a", ROWS * ROW, 0);
    work_make(&work, ROWS);
    fill(region, 0);
    work.job.in[0].region = region;
    work.job.call.out[0].data = block.start;
    work.job.is_pinned = true;
    atomic_store(&fake_n_copies, 0);
    CHECK_INT(run(&work), ROPED_OK);
    CHECK_INT(atomic_load(&fake_n_copies), 0);
    memcpy(work.y, block.start, ROWS * ROW);
    CHECK(work_is_right(&work));
    give(region);
    memory_give(exec_memory(exec), &block);
    work_close(exec);
}

TEST(the_cpu_computes_in_regions_too)
{
    struct exec_options options = work_options(1, 8);
    struct roped_backend_options backend = {.n_threads = 1};
    CHECK_OK(exec_open(&roped_backend_cpu, &backend, &options, &exec, &err),
             &err);
    struct region *region = work_region(exec, "a", ROWS * ROW, 0);
    CHECK(!region_is_device(region));
    work_make(&work, ROWS);
    fill(region, 0);
    work.job.in[0].region = work.job.out[0].region = region;
    CHECK_OK(check(), &err);
    CHECK_INT(run(&work), ROPED_OK);
    read_out(region, 0);
    CHECK(work_is_right(&work));
    give(region);
    exec_drain(exec, after_ms(1000));
    exec_close(exec);
}

TEST(a_failing_device_ends_a_call_on_regions)
{
    open_executor();
    struct region *region = work_region(exec, "a", ROWS * ROW, 0);
    for (int at = 1; at <= 2; at++) { /* launch, wait */
        work_make(&work, ROWS);
        fill(region, 0);
        work.job.in[0].region = work.job.out[0].region = region;
        atomic_store(&fake_fail_at, at);
        CHECK_INT(run(&work), ROPED_DEVICE);
    }
    give(region);
    work_close(exec);
}

/* ----------------------------------------------------------- index values */

enum { TOKENS = 4, HEAD_DIM = 16 };

struct rotation {
    struct work work;
    float q[TOKENS * HEAD_DIM], out[TOKENS * HEAD_DIM];
    int64_t values[TOKENS];
};

static void make_rotation(struct rotation *rotation, struct region *positions)
{
    struct roped_call *call = &rotation->work.job.call;
    struct roped_tensor q = {ROPED_F32, 3, {TOKENS, 1, HEAD_DIM}, rotation->q};
    struct roped_tensor p = {ROPED_I64, 1, {TOKENS}, NULL};
    work_make(&rotation->work, 1);
    for (int i = 0; i < TOKENS * HEAD_DIM; i++)
        rotation->q[i] = (float)(i % 5) - 2;
    roped_call_init(call, roped_op_find("rope"));
    CHECK_OK(roped_call_bind(call, "q", &q, &err), &err);
    CHECK_OK(roped_call_bind(call, "positions", &p, &err), &err);
    CHECK_OK(roped_call_resolve(call, &err), &err);
    call->out[0].data = rotation->out;
    for (int i = 0; i < ROPED_MAX_INPUTS; i++)
        if (call->in[i].dtype == ROPED_I64)
            rotation->work.job.in[i].region = positions;
    rotation->work.job.values = rotation->values;
}

static struct region *positions;

/* Another client writes into the region once the host has checked it. */
static enum roped_status change_and_launch(const struct roped_call *call,
                                           struct roped_queue *queue,
                                           struct roped_error *why)
{
    memset(region_data(positions), 0x7F, TOKENS * sizeof(int64_t));
    return roped_backend_cpu.launch(queue, call, why);
}

TEST(index_values_are_checked_and_used_as_they_were_read)
{
    static struct rotation rotation;
    static const int64_t good[TOKENS] = {0, 5, 2, 3}, bad[TOKENS] = {0, -5};
    open_executor();
    positions = work_region(exec, "p", sizeof good, 0);
    memcpy(region_data(positions), good, sizeof good);
    make_rotation(&rotation, positions);
    placement_make(&rotation.work.job);
    CHECK_INT(rotation.work.job.placement.value_bytes, 64);
    fake_kernel = change_and_launch;
    CHECK_INT(run(&rotation.work), ROPED_OK);
    for (int i = 0; i < HEAD_DIM; i++) { /* position 0 changes nothing */
        CHECK_DOUBLE((double)rotation.out[i], (double)rotation.q[i], 0);
        CHECK(rotation.out[HEAD_DIM + i] != rotation.q[HEAD_DIM + i] ||
              rotation.q[HEAD_DIM + i] == 0);
    }
    CHECK_INT(rotation.work.job.placement.port[1].where, IN_ARENA);
    memcpy(region_data(positions), bad, sizeof bad);
    make_rotation(&rotation, positions);
    atomic_store(&fake_n_launches, 0);
    CHECK_INT(run(&rotation.work), ROPED_BAD_VALUE);
    CHECK_CONTAINS(rotation.work.job.error.text, "'positions'");
    CHECK_CONTAINS(rotation.work.job.error.text, "-5");
    CHECK_INT(atomic_load(&fake_n_launches), 0);
    give(positions);
    work_close(exec);
}

/* ---------------------------------------------------------- updated inputs */

static enum roped_status plan_nothing(struct roped_call *call,
                                      struct roped_error *why)
{
    (void)call;
    (void)why;
    return ROPED_OK;
}

/* Writes row into the first slot of cache, and twice row into y. */
static const struct roped_op append = {
    .name = "append",
    .since = "0",
    .summary = "writes one slot of a cache",
    .type = {{"T", ROPED_FLOATS}},
    .in = {{"cache", "T", "slots h", ROPED_UPDATED, .doc = "a cache"},
           {"row", "T", "h", .doc = "a row"}},
    .out = {{"y", "T", "h", .in_place = "row", .doc = "twice the row"},
            {"cache", "T", "slots h", .in_place = "cache", .doc = "updated"}},
    .angles_offset = ROPED_NO_ANGLES,
    .plan = plan_nothing,
};

static enum roped_status append_kernel(const struct roped_call *call,
                                       struct roped_queue *queue,
                                       struct roped_error *why)
{
    const float *row = call->in[1].data;
    float *y = call->out[0].data, *cache = call->out[1].data;
    (void)queue;
    if (call->in[0].data != cache)
        return roped_fail(why, ROPED_INTERNAL, "the cache is in two places");
    for (int64_t i = 0; i < call->in[1].dims[0]; i++) {
        cache[i] = row[i];
        y[i] = 2 * row[i];
    }
    return ROPED_OK;
}

enum { SLOTS = 3 };

struct appending {
    struct work work;
    float cache[SLOTS * HIDDEN], row[HIDDEN], y[HIDDEN];
    float updated[SLOTS * HIDDEN];
};

static void make_appending(struct appending *a)
{
    struct roped_call *call = &a->work.job.call;
    struct roped_tensor cache = {ROPED_F32, 2, {SLOTS, HIDDEN}, a->cache};
    struct roped_tensor row = {ROPED_F32, 1, {HIDDEN}, a->row};
    work_make(&a->work, 1);
    for (int i = 0; i < SLOTS * HIDDEN; i++)
        a->cache[i] = (float)i;
    for (int i = 0; i < HIDDEN; i++)
        a->row[i] = (float)-i;
    roped_call_init(call, &append);
    CHECK_OK(roped_call_bind(call, "cache", &cache, &err), &err);
    CHECK_OK(roped_call_bind(call, "row", &row, &err), &err);
    CHECK_OK(roped_call_resolve(call, &err), &err);
    call->out[0].data = a->y;
    call->out[1].data = a->updated;
    fake_kernel = append_kernel;
}

static bool is_appended(const struct appending *a, const float *cache)
{
    bool is_right = true;
    for (int i = 0; i < SLOTS * HIDDEN; i++)
        is_right &= cache[i] == (i < HIDDEN ? (float)-i : (float)i);
    for (int i = 0; i < HIDDEN; i++)
        is_right &= a->y[i] == (float)(-2 * i);
    return is_right;
}

TEST(a_cache_on_a_device_is_no_work)
{
    static struct appending a;
    uint64_t row = HIDDEN * sizeof(float);
    open_executor();
    struct region *region =
        work_region(exec, "kv", sizeof a.cache + 2048 * row, 0);
    make_appending(&a);
    a.work.job.in[0] = (struct exec_place){region, 0};
    CHECK_OK(placement_check(&a.work.job, exec_regions(exec), &err), &err);
    CHECK_INT(work_of(&a.work.job, true), 2 * row);
    CHECK_INT(work_of(&a.work.job, false), 2 * row);
    give(a.work.job.out[1].region); /* the output's own reference */
    work_make(&work, 2 * ROWS);     /* x on the device, y in the answer */
    work.job.in[0] = (struct exec_place){region, 0};
    CHECK_INT(work_of(&work.job, true), 2 * 2 * ROWS * row);
    CHECK_INT(work_of(&work.job, false),
              2 * ROWS * row + (2 * ROWS * row + 127) / 128);
    give(region);
    work_close(exec);
}

/* What takes a device less time than a CPU may be larger and still be inline,
 * unless the driver has to copy it first. */
TEST(the_bound_for_inline_calls_is_one_of_time)
{
    struct exec_options options = work_options(1, 8);
    work_make(&work, ROWS);
    uint64_t bytes = (uint64_t)roped_call_bytes(&work.job.call);
    CHECK_INT(work_of(&work.job, true), bytes);
    CHECK_INT(work_of(&work.job, false), bytes);
    work.job.is_pinned = true;
    CHECK_INT(work_of(&work.job, true), bytes);
    CHECK_INT(work_of(&work.job, false), bytes / 2);
    for (int is_larger = 0; is_larger < 2; is_larger++) {
        options.inline_bytes = bytes / 2 - (uint64_t)is_larger;
        exec = work_open(&options);
        work_make(&work, ROWS);
        CHECK(!exec_run_inline(exec, &work.job));
        work.job.is_pinned = true;
        CHECK_INT(exec_run_inline(exec, &work.job), !is_larger);
        work_close(exec);
    }
    options.inline_bytes = 0;
    exec = work_open(&options);
    work_make(&work, 1);
    work.job.is_pinned = true;
    CHECK(!exec_run_inline(exec, &work.job));
    work_close(exec);
}

TEST(a_cache_on_the_wire_comes_back_whole)
{
    static struct appending a;
    CHECK_OK(roped_op_check(&append, &err), &err);
    open_executor();
    make_appending(&a);
    CHECK_OK(placement_check(&a.work.job, exec_regions(exec), &err), &err);
    CHECK_INT(run(&a.work), ROPED_OK);
    CHECK_INT(atomic_load(&fake_n_copies), 4); /* two in, two out */
    CHECK_INT(a.work.job.placement.port[0].where, IN_OUTPUT);
    CHECK(is_appended(&a, a.updated));
    CHECK(a.cache[1] == 1); /* the client's is as it was */
    work_close(exec);
}

TEST(a_cache_in_a_region_is_updated_there)
{
    static struct appending a;
    open_executor();
    struct region *region = work_region(exec, "kv", sizeof a.cache + 64, 0);
    make_appending(&a);
    memcpy(region_data(region) + 64, a.cache, sizeof a.cache);
    a.work.job.in[0] = (struct exec_place){region, 64};
    CHECK_OK(placement_check(&a.work.job, exec_regions(exec), &err), &err);
    CHECK(a.work.job.out[1].region == region);
    CHECK_INT(a.work.job.out[1].offset, 64);
    placement_measure(&a.work.job, true);
    CHECK_INT(a.work.job.bytes, 2 * HIDDEN * sizeof(float));
    CHECK_INT(run(&a.work), ROPED_OK);
    CHECK_INT(atomic_load(&fake_n_copies), 2); /* the row and its double */
    CHECK(is_appended(&a, (float *)(void *)(region_data(region) + 64)));
    give(a.work.job.out[1].region); /* the output's own reference */
    give(region);
    work_close(exec);
}

TEST(a_cache_goes_from_the_wire_into_a_region)
{
    static struct appending a;
    open_executor();
    struct region *region = work_region(exec, "kv", sizeof a.cache, 0);
    make_appending(&a);
    memset(region_data(region), 0, sizeof a.cache);
    a.work.job.out[1] = (struct exec_place){region, 0};
    CHECK_OK(placement_check(&a.work.job, exec_regions(exec), &err), &err);
    CHECK_INT(run(&a.work), ROPED_OK);
    CHECK(is_appended(&a, (float *)(void *)region_data(region)));
    give(region);
    work_close(exec);
}

/* Where the cache and its output are, and that they are at one address. */
static void expect_cache(struct appending *a, enum where in, enum where out)
{
    static _Alignas(16) unsigned char arena[2 * sizeof a->cache];
    const struct device device = {.api = &fake_api};
    struct exec_job *job = &a->work.job;
    const struct placed *cache = &job->placement.port[0];
    CHECK_OK(placement_check(job, exec_regions(exec), &err), &err);
    placement_settle(job, &device, 0);
    CHECK_INT(cache->where, in);
    CHECK_INT(cache->pair->where, out);
    placement_enter(job, arena);
    CHECK(job->call.in[0].data == job->call.out[1].data);
    CHECK_INT(cache->is_copied, in == IN_OUTPUT);
    CHECK_INT(cache->pair->is_copied, out != IN_REGION);
    placement_leave(job);
    CHECK(job->call.in[0].data == a->cache);
}

TEST(a_cache_that_has_arrived_takes_its_output_along)
{
    static struct appending a;
    static _Alignas(16) unsigned char memory[sizeof a.cache + 1];
    struct inbox inbox = {.host = (unsigned char *)a.cache,
                          .memory = memory,
                          .sent = sizeof a.cache};
    open_executor();
    struct region *region = work_region(exec, "kv", sizeof a.cache, 0);
    make_appending(&a);
    a.work.job.inbox = &inbox;
    expect_cache(&a, IN_INBOX, IN_INBOX);
    inbox.memory++; /* no float starts there */
    expect_cache(&a, IN_OUTPUT, IN_ARENA);
    inbox.memory--;
    a.work.job.out[1] = (struct exec_place){region, 0};
    expect_cache(&a, IN_OUTPUT, IN_REGION);
    give(region);
    work_close(exec);
}

TEST(small_caches_on_the_wire_are_not_changed_where_they_are)
{
    static struct appending a;
    struct exec_options options = work_options(1, 8);
    options.mapped_bytes = 1 << 20;
    exec = work_open(&options);
    make_appending(&a);
    a.work.job.is_pinned = true;
    CHECK_INT(run(&a.work), ROPED_OK);
    CHECK(is_appended(&a, a.updated));
    CHECK(a.cache[1] == 1);
    work_close(exec);
}

TEST(a_cache_cannot_be_updated_somewhere_else)
{
    static struct appending a;
    open_executor();
    struct region *region = work_region(exec, "kv", 2 * sizeof a.cache, 0);
    make_appending(&a);
    a.work.job.in[0] = (struct exec_place){region, 0};
    a.work.job.out[1] = (struct exec_place){region, sizeof a.cache};
    CHECK_INT(placement_check(&a.work.job, exec_regions(exec), &err),
              ROPED_INVALID);
    CHECK_TEXT(err.text,
               "tensor 'cache': updated at offset 0 of region 'kv', expected "
               "its output there and not at offset 768 of region 'kv'");
    a.work.job.out[1].offset = 0; /* said twice is fine */
    CHECK_OK(placement_check(&a.work.job, exec_regions(exec), &err), &err);
    a.work.job.in[1] = (struct exec_place){region, 256};
    CHECK_INT(placement_check(&a.work.job, exec_regions(exec), &err),
              ROPED_INVALID);
    CHECK_CONTAINS(err.text, "output 'cache'");
    CHECK_CONTAINS(err.text, "overlap input 'row'");
    give(region);
    work_close(exec);
}

/* --------------------------------------------------------------- transfers */

static enum roped_status move(enum exec_work what, struct region *region,
                              void *host, uint64_t bytes)
{
    work_make(&work, 1);
    work.job.work = what;
    work.job.transfer = (struct exec_transfer){region, host, bytes};
    return run(&work);
}

TEST(bytes_move_between_host_and_region)
{
    unsigned char in[500], out[500];
    open_executor();
    struct region *region = work_region(exec, "a", sizeof in, 0);
    for (size_t i = 0; i < sizeof in; i++)
        in[i] = (unsigned char)(i * 7);
    CHECK_INT(move(EXEC_STORE, region, in, sizeof in), ROPED_OK);
    CHECK_INT(move(EXEC_LOAD, region, out, sizeof out), ROPED_OK);
    CHECK(memcmp(in, out, sizeof in) == 0);
    CHECK(work.job.timing.d2h_ns > 0);
    CHECK_INT(move(EXEC_CLEAR, region, NULL, sizeof in), ROPED_OK);
    CHECK_INT(move(EXEC_LOAD, region, out, sizeof out), ROPED_OK);
    for (size_t i = 0; i < sizeof out; i++)
        if (out[i] != 0)
            CHECK_FAIL("byte %zu is %d, expected 0", i, out[i]);
    for (int at = 1; at <= 2; at++) { /* the copy, the wait */
        atomic_store(&fake_fail_at, at);
        CHECK_INT(move(EXEC_STORE, region, in, sizeof in), ROPED_DEVICE);
    }
    work_make(&work, 1);
    work.job.work = EXEC_STORE;
    work.job.transfer = (struct exec_transfer){region, in, sizeof in};
    work_wait_idle(exec);
    CHECK(exec_run_inline(exec, &work.job));
    work_make(&work, 1);
    work.job.work = EXEC_STORE;
    work.job.transfer = (struct exec_transfer){region, in, (1 << 20) + 1};
    CHECK(!exec_run_inline(exec, &work.job)); /* too large for it */
    give(region);
    work_close(exec);
}
