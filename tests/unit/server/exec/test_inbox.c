/*
 * test_inbox.c - bodies that are uploaded while they arrive, on a device whose
 * copies take their time: every way in which such a body can end leaves right
 * answers, and all memory free.
 */
#include "check.h"
#include "exec/inbox.h"
#include "unit/server/exec/queued_backend.h"
#include "unit/server/exec/work.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>

enum {
    FIRST = 64, /* where tensors start in a body */
    ROW = HIDDEN * (int)sizeof(float),
    SMALL = 1024, /* larger bodies go through an inbox */
    CHUNK = 1000, /* on purpose no power of two */
    MOST_ROWS = 2048
};

/* A call of rmsnorm whose body arrives in a block of the pool. */
struct arrival {
    struct exec_job job;
    int rows, sign; /* not that of the body before, whose bytes may be there */
    struct memory_block block, out;
    atomic_bool is_done;
};

static struct roped_error err;
static struct executor *exec;

/* ----------------------------------------------------------------- set up */

static struct exec_options inbox_options(int n_lanes)
{
    struct exec_options options = work_options(n_lanes, 64);
    options.pool_bytes = options.host_bytes = 4 << 20;
    options.stage_bytes = SMALL;
    options.stage_chunk_bytes = CHUNK;
    return options;
}

static void open_with(const struct exec_options *options)
{
    struct roped_backend_options backend = {.n_threads = 1};
    queued_reset();
    if (exec_open(&queued_api, &backend, options, &exec, &err)) {
        fprintf(stderr, "test_inbox: %s\n", err.text);
        exit(EXIT_FAILURE);
    }
}

static void open_inboxes(int n_lanes)
{
    struct exec_options options = inbox_options(n_lanes);
    open_with(&options);
}

static uint64_t pool_used(void)
{
    struct memory_usage usage;
    memory_usage(exec_memory(exec), &usage);
    return usage.pool_used_bytes;
}

static void close_inboxes(void)
{
    exec_drain(exec, after_ms(20000));
    CHECK_INT(pool_used(), 0);
    exec_close(exec);
    exec = NULL;
    CHECK_INT(atomic_load(&queued_n_live), 0);
}

static void on_done(struct exec_job *job)
{
    atomic_store(&((struct arrival *)job->owner)->is_done, true);
}

static void make(struct arrival *a, int rows)
{
    static atomic_int n_made;
    size_t bytes = (size_t)rows * ROW;
    struct roped_tensor x = {ROPED_F32, 2, {rows, HIDDEN}, NULL};
    struct roped_error error;
    memset(a, 0, sizeof *a);
    a->rows = rows;
    a->sign = atomic_fetch_add(&n_made, 1) % 2 ? 1 : -1;
    if (memory_take(exec_memory(exec), FIRST + bytes, &a->block, &error) ||
        memory_take(exec_memory(exec), bytes, &a->out, &error))
        CHECK_FAIL("no memory: %s", error.text);
    memset(a->block.start, 0, FIRST + bytes);
    roped_call_init(&a->job.call, roped_op_find("rmsnorm"));
    x.data = a->block.start + FIRST;
    if (roped_call_bind(&a->job.call, "x", &x, &error) ||
        roped_call_resolve(&a->job.call, &error))
        CHECK_FAIL("no call: %s", error.text);
    a->job.call.out[0].data = a->out.start;
    a->job.done = on_done;
    a->job.owner = a;
    a->job.is_pinned = true;
}

static uint64_t body_end(const struct arrival *a)
{
    return FIRST + (uint64_t)a->rows * ROW;
}

static void begin(struct arrival *a)
{
    exec_inbox_open(exec, &a->job, a->block.start, FIRST, body_end(a));
}

/* The body arrives from one place to another, piece by piece. */
static void arrive(struct arrival *a, uint64_t from, uint64_t to,
                   uint64_t piece)
{
    while (from < to) {
        uint64_t end = from + piece < to ? from + piece : to;
        for (uint64_t at = from; at < end; at++) {
            uint64_t i = (at - FIRST) / sizeof(float);
            float value = (float)(i % HIDDEN % 2 ? 3 : -3) * (float)a->sign;
            memcpy(a->block.start + at,
                   (char *)&value + (at - FIRST) % sizeof value, 1);
        }
        exec_inbox_advance(&a->job, end);
        from = end;
    }
}

static void await_done(struct arrival *a)
{
    while (!atomic_load(&a->is_done))
        sched_yield();
}

/* What request_free does. */
static void let_go(struct arrival *a)
{
    exec_inbox_abandon(exec, &a->job, &a->block);
    memory_give(exec_memory(exec), &a->block);
    memory_give(exec_memory(exec), &a->out);
}

static bool is_right(const struct arrival *a)
{
    const float *y = (const float *)(const void *)a->out.start;
    for (int i = 0; i < a->rows * HIDDEN; i++)
        if (fabsf(y[i] * (float)a->sign - (i % HIDDEN % 2 ? 1.0f : -1.0f)) >
            1e-5f)
            return false;
    return true;
}

static enum roped_status run(struct arrival *a)
{
    CHECK_OK(exec_submit(exec, &a->job, &err), &err);
    await_done(a);
    return a->job.status;
}

/* A whole call, in pieces of so many bytes. */
static void call(int rows, uint64_t piece)
{
    struct arrival a;
    make(&a, rows);
    begin(&a);
    arrive(&a, FIRST, body_end(&a), piece);
    CHECK_INT(run(&a), ROPED_OK);
    CHECK(is_right(&a));
    let_go(&a);
    work_wait_idle(exec);
}

static uint64_t early(int device)
{
    struct exec_device_usage usage;
    exec_device_usage(exec, device, &usage);
    return usage.early_bytes;
}

/* --------------------------------------------------------------- the chunks */

TEST(chunks_go_as_they_are_complete_and_nothing_goes_twice)
{
    struct arrival a;
    open_inboxes(1);
    call(10, 100); /* finds no inbox, and leaves one */
    CHECK_INT(early(0), 0);
    make(&a, 10); /* 2,560 bytes: three chunks */
    begin(&a);
    CHECK(a.job.inbox != NULL);
    atomic_store(&queued_n_uploads, 0);
    atomic_store(&queued_uploaded_bytes, 0);
    arrive(&a, FIRST, FIRST + CHUNK - 1, 100);
    CHECK_INT(atomic_load(&queued_n_uploads), 0);
    arrive(&a, FIRST + CHUNK - 1, FIRST + CHUNK, 1);
    CHECK_INT(atomic_load(&queued_n_uploads), 1);
    arrive(&a, FIRST + CHUNK, body_end(&a) - 1, 333);
    CHECK_INT(atomic_load(&queued_n_uploads), 2);
    arrive(&a, body_end(&a) - 1, body_end(&a), 1);
    CHECK_INT(atomic_load(&queued_n_uploads), 3);
    CHECK_INT(run(&a), ROPED_OK);
    CHECK(is_right(&a));
    CHECK(a.job.inbox == NULL);
    CHECK_INT(a.job.placement.port[0].where, IN_INBOX);
    CHECK_INT(atomic_load(&queued_n_uploads), 3);
    CHECK_INT(atomic_load(&queued_uploaded_bytes), 10 * ROW);
    CHECK_INT(early(0), 10 * ROW);
    CHECK(a.job.timing.h2d_ns > 0); /* of the last chunk */
    let_go(&a);
    close_inboxes();
}

TEST(bodies_of_any_size_in_pieces_of_any_size)
{
    static const uint64_t pieces[] = {1,     7,         CHUNK - 1,
                                      CHUNK, CHUNK + 1, 1u << 30};
    open_inboxes(2);
    call(64, 4096);
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++)
        for (int rows = 1; rows <= 64; rows += 7)
            call(rows, pieces[i]);
    CHECK(early(0) > 0);
    close_inboxes();
}

TEST(only_large_bodies_on_a_device_have_an_inbox)
{
    struct arrival a;
    struct exec_options options = inbox_options(1);
    open_with(&options);
    call(SMALL / ROW + 1, 100);
    make(&a, SMALL / ROW);
    begin(&a);
    CHECK(a.job.inbox == NULL); /* SMALL bytes are not more than SMALL */
    let_go(&a);
    make(&a, SMALL / ROW + 1);
    begin(&a);
    CHECK(a.job.inbox != NULL);
    let_go(&a);
    close_inboxes();
    options.stage_bytes = 0;
    open_with(&options);
    call(64, 100);
    call(64, 100);
    CHECK_INT(early(0), 0);
    close_inboxes();
    /* on the host there is nothing to upload */
    struct roped_backend_options backend = {.n_threads = 1};
    options.stage_bytes = SMALL;
    CHECK_OK(exec_open(&roped_backend_cpu, &backend, &options, &exec, &err),
             &err);
    call(64, 100);
    call(64, 100);
    CHECK_INT(early(0), 0);
    close_inboxes();
}

TEST(an_integrated_device_copies_no_call_of_any_size)
{
    atomic_store(&queued_is_integrated, true);
    open_inboxes(1);
    for (int rows = 1; rows <= MOST_ROWS; rows *= 2)
        call(rows, CHUNK);
    CHECK_INT(atomic_load(&queued_n_uploads), 0);
    CHECK_INT(atomic_load(&queued_n_downloads), 0);
    close_inboxes();
    atomic_store(&queued_is_integrated, false);
}

/* ------------------------------------------------------------- its endings */

TEST(a_client_that_goes_away_leaves_its_block_until_the_copies_end)
{
    struct arrival a;
    open_inboxes(1);
    call(64, 100);
    make(&a, 64);
    begin(&a);
    let_go(&a); /* before a byte has come: at once */
    CHECK_INT(pool_used(), 0);
    for (int round = 0; round < 5; round++) {
        make(&a, 64);
        begin(&a);
        CHECK(a.job.inbox != NULL); /* the one inbox has come back */
        atomic_store(&queued_is_held, true);
        arrive(&a, FIRST, FIRST + 5 * CHUNK, 512);
        let_go(&a);
        CHECK(a.block.start == NULL);
        pause_ms(5);
        CHECK(pool_used() > 0);
        atomic_store(&queued_is_held, false);
        work_wait_idle(exec);
        CHECK_INT(pool_used(), 0);
    }
    call(64, 100);
    close_inboxes();
}

/* The lane ends them without running them, and waits for their copies. */
TEST(canceled_and_late_calls_wait_for_their_copies)
{
    struct arrival a;
    open_inboxes(1);
    call(64, 100);
    for (int round = 0; round < 20; round++) {
        make(&a, 64);
        begin(&a);
        CHECK(a.job.inbox != NULL);
        arrive(&a, FIRST, body_end(&a), 4096);
        atomic_store(&a.job.is_canceled, round % 2 == 0);
        a.job.deadline_ns = round % 2 ? 1 : 0;
        CHECK_INT(run(&a), round % 2 ? ROPED_DEADLINE : ROPED_CANCELED);
        memset(a.block.start, 0x5A, FIRST); /* a sanitizer sees a copy */
        memset(a.block.start + FIRST, 0x5A, 64 * (size_t)ROW);
        let_go(&a);
        work_wait_idle(exec);
    }
    call(64, 100);
    close_inboxes();
}

TEST(a_call_that_expires_in_the_queue_still_has_its_inbox)
{
    struct arrival first, late;
    open_inboxes(1);
    call(64, 100);
    call(32, 100);
    make(&first, 64);
    begin(&first);
    CHECK(first.job.inbox != NULL);
    make(&late, 64); /* makes do without: the inbox is in use */
    begin(&late);
    CHECK(late.job.inbox == NULL);
    arrive(&first, FIRST, body_end(&first), 4096);
    atomic_store(&queued_is_held, true);
    arrive(&late, FIRST, body_end(&late), 4096);
    CHECK_OK(exec_submit(exec, &late.job, &err), &err); /* the lane is busy */
    first.job.deadline_ns = after_ms(20);
    CHECK_OK(exec_submit(exec, &first.job, &err), &err);
    await_done(&first);
    CHECK_INT(first.job.status, ROPED_DEADLINE);
    CHECK(first.job.inbox != NULL);
    let_go(&first); /* its wait is behind the other call */
    CHECK(!atomic_load(&late.is_done));
    atomic_store(&queued_is_held, false);
    await_done(&late);
    CHECK(is_right(&late));
    let_go(&late);
    work_wait_idle(exec);
    close_inboxes();
}

static void *release_soon(void *context)
{
    uint64_t *used = context;
    pause_ms(30);
    *used = pool_used();
    atomic_store(&queued_is_held, false);
    return NULL;
}

/* Nothing is refused that waits for copies, and drain waits for it. */
TEST(drain_and_close_wait_for_abandoned_bodies)
{
    struct arrival a[3];
    struct exec_options options = inbox_options(1);
    pthread_t thread;
    options.queue_depth = 1;
    for (int deadline_ms = 0; deadline_ms <= 20000; deadline_ms += 20000) {
        open_with(&options);
        call(64, 100);
        make(&a[0], 64);
        begin(&a[0]);
        make(&a[1], 64);
        begin(&a[1]); /* lacks one, and brings it */
        arrive(&a[1], FIRST, body_end(&a[1]), 4096);
        CHECK_INT(run(&a[1]), ROPED_OK);
        let_go(&a[1]);
        work_wait_idle(exec);
        make(&a[1], 64);
        begin(&a[1]);
        CHECK(a[0].job.inbox && a[1].job.inbox);
        atomic_store(&queued_is_held, true);
        for (int i = 0; i < 2; i++) { /* one waits on the lane, one for it */
            arrive(&a[i], FIRST, FIRST + 3 * CHUNK, 4096);
            let_go(&a[i]);
        }
        uint64_t used = pool_used(), used_later;
        CHECK(used > 0);
        pthread_create(&thread, NULL, release_soon, &used_later);
        exec_drain(exec, after_ms(deadline_ms));
        CHECK_INT(pool_used(), 0);
        pthread_join(thread, NULL);
        CHECK_INT(used_later, used); /* both blocks, as long as it is held */
        make(&a[2], 64);
        CHECK_INT(exec_submit(exec, &a[2].job, &err), ROPED_DRAINING);
        let_go(&a[2]);
        close_inboxes();
    }
    /* let go after the drain, as connections are that the daemon cuts */
    open_with(&options);
    call(64, 100);
    make(&a[0], 64);
    begin(&a[0]);
    arrive(&a[0], FIRST, FIRST + 3 * CHUNK, 4096);
    exec_drain(exec, after_ms(0));
    let_go(&a[0]);
    exec_close(exec);
    CHECK_INT(atomic_load(&queued_n_live), 0);
}

/* ---------------------------------------------------------------- failures */

TEST(a_chunk_that_cannot_start_costs_only_time)
{
    struct arrival a;
    open_inboxes(1);
    call(64, 100);
    for (int at = 1; at <= 5; at++) {
        make(&a, 16); /* five chunks */
        begin(&a);
        atomic_store(&queued_fail_upload, at);
        arrive(&a, FIRST, body_end(&a), 512);
        CHECK_INT(run(&a), ROPED_OK);
        CHECK(is_right(&a));
        let_go(&a);
        work_wait_idle(exec);
        CHECK_INT(early(0), (at * (at - 1) / 2) * CHUNK); /* of those before */
    }
    close_inboxes();
}

TEST(a_copy_that_fails_on_the_device_fails_its_call_alone)
{
    struct exec_usage usage;
    struct arrival a;
    open_inboxes(1);
    call(64, 100);
    atomic_store(&queued_fails_late, true);
    for (int round = 0; round < 4; round++) {
        make(&a, 16);
        begin(&a);
        atomic_store(&queued_fail_upload, 1 + round);
        arrive(&a, FIRST, body_end(&a), 512);
        CHECK_INT(run(&a), ROPED_DEVICE);
        CHECK_CONTAINS(a.job.error.text, "failed at a copy");
        let_go(&a);
        work_wait_idle(exec);
        exec_usage(exec, &usage);
        CHECK_INT(usage.device_errors, round + 1);
        call(16, 512);
    }
    /* nobody is there to hear of it */
    make(&a, 16);
    begin(&a);
    atomic_store(&queued_fail_upload, 1);
    arrive(&a, FIRST, FIRST + 2 * CHUNK, 512);
    let_go(&a);
    work_wait_idle(exec);
    call(16, 512);
    close_inboxes();
}

TEST(without_room_a_body_is_uploaded_when_its_call_runs)
{
    struct exec_options options = inbox_options(1);
    struct arrival a;
    options.device_bytes = 1 << 20; /* a quarter of it for inboxes */
    open_with(&options);
    make(&a, 1100); /* 281,600 bytes: never fits */
    begin(&a);
    CHECK(a.job.inbox == NULL);
    CHECK_INT(a.job.inbox_lacked, 0);
    let_go(&a);
    call(1100, 1 << 16);
    call(200, 1 << 16);
    int n_live = atomic_load(&queued_n_live); /* with one inbox */
    CHECK_INT(early(0), 0);
    call(1100, 1 << 16);
    call(200, 1 << 16);
    CHECK_INT(early(0), 200 * ROW); /* the large ones have left it alone */
    CHECK_INT(atomic_load(&queued_n_live), n_live);
    /* a device that has nothing left, whatever the budget says */
    atomic_store(&queued_device_bytes, 1 << 16);
    call(900, 1 << 16);
    CHECK(atomic_load(&queued_n_live) < n_live); /* it has tried: all freed */
    atomic_store(&queued_device_bytes, 0);
    call(900, 1 << 16);
    call(900, 1 << 16);
    CHECK_INT(early(0), 1100 * ROW);
    close_inboxes();
}

TEST(lanes_take_the_memory_of_idle_inboxes)
{
    struct exec_device_usage usage;
    struct exec_options options = inbox_options(1);
    options.device_bytes = 1 << 20;
    open_with(&options);
    call(900, 1 << 16); /* leaves 230,400 bytes of inbox */
    exec_device_usage(exec, 0, &usage);
    CHECK_INT(usage.arena_bytes, (3 << 18) + inbox_capacity(64 + 900 * ROW));
    call(1900, 1 << 16); /* wants 972,800 bytes */
    exec_device_usage(exec, 0, &usage);
    CHECK_INT(usage.arena_bytes, 0); /* too large to be kept, too */
    call(900, 1 << 16);
    call(900, 1 << 16);
    CHECK_INT(early(0), 900 * ROW);
    close_inboxes();
}

/* ----------------------------------------------------------------- devices */

static void open_two(void)
{
    static const int indices[2] = {0, 1};
    struct exec_options options = inbox_options(1);
    options.devices = indices;
    options.n_devices = 2;
    open_with(&options);
}

/* Its output goes into the region. */
static void call_into(struct region *region, bool has_inbox)
{
    struct arrival a;
    int device = region_info(region)->device;
    make(&a, 64);
    a.job.out[0] = (struct exec_place){region, 0};
    begin(&a);
    CHECK((a.job.inbox != NULL) == has_inbox);
    CHECK(!a.job.inbox || a.job.inbox->device->number == device);
    arrive(&a, FIRST, body_end(&a), 512);
    CHECK_INT(run(&a), ROPED_OK);
    work_wait_idle(exec);
    memcpy(a.out.start, region_data(region), 64 * (size_t)ROW);
    CHECK(is_right(&a));
    let_go(&a);
}

TEST(a_body_goes_to_the_device_of_its_regions)
{
    open_two();
    struct region *region[2] = {work_region(exec, "", 64 * ROW, 0),
                                work_region(exec, "", 64 * ROW, 1)};
    for (int device = 1; device >= 0; device--) {
        call_into(region[device], false); /* the other's is of no use */
        call_into(region[device], true);
        CHECK_INT(early(device), 64 * ROW);
        CHECK_INT(early(1 - device), device == 1 ? 0 : 64 * ROW);
    }
    regions_give(exec_regions(exec), region[0]);
    regions_give(exec_regions(exec), region[1]);
    close_inboxes();
}

TEST(bodies_that_arrive_together_go_to_different_devices)
{
    struct arrival a[3];
    open_two();
    struct region *region[2] = {work_region(exec, "", 64 * ROW, 0),
                                work_region(exec, "", 64 * ROW, 1)};
    call_into(region[0], false); /* so that each has an inbox */
    call_into(region[1], false);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 3; i++) {
            make(&a[i], 64);
            begin(&a[i]);
        }
        CHECK(a[0].job.inbox && a[0].job.inbox->device->number == 0);
        CHECK(a[1].job.inbox && a[1].job.inbox->device->number == 1);
        CHECK(a[2].job.inbox == NULL);
        for (int i = 0; i < 3; i++)
            arrive(&a[i], FIRST, body_end(&a[i]), 512);
        CHECK_INT(run(&a[1]), ROPED_OK);
        CHECK(is_right(&a[1]));
        for (int i = 0; i < 3; i++)
            let_go(&a[i]);
        work_wait_idle(exec);
    }
    for (int round = 0; round < 6; round++) { /* what is gone counts no more */
        make(&a[0], 64);
        begin(&a[0]);
        CHECK(a[0].job.inbox && a[0].job.inbox->device->number == 0);
        if (round % 3 > 0)
            arrive(&a[0], FIRST, body_end(&a[0]), 512);
        if (round % 3 > 1)
            CHECK_INT(run(&a[0]), ROPED_OK);
        let_go(&a[0]);
        work_wait_idle(exec);
    }
    regions_give(exec_regions(exec), region[0]);
    regions_give(exec_regions(exec), region[1]);
    close_inboxes();
}

/* -------------------------------------------------------------------- load */

enum { N_CLIENTS = 6, N_ROUNDS = 120 };

struct client {
    pthread_t thread;
    unsigned seed;
    int n_wrong, n_answers;
    struct arrival a;
};

static unsigned chance(struct client *client, unsigned n)
{
    client->seed = client->seed * 1103515245 + 12345;
    return (client->seed >> 16) % n;
}

/* Bodies of any size; some clients leave midway, some calls are canceled. */
static void *run_client(void *context)
{
    struct client *client = context;
    struct arrival *a = &client->a;
    struct roped_error refusal;
    for (int i = 0; i < check_cases(N_ROUNDS); i++) {
        make(a, 1 + (int)chance(client, 200));
        begin(a);
        uint64_t end = body_end(a);
        bool leaves = chance(client, 4) == 0;
        arrive(a, FIRST,
               leaves ? FIRST + chance(client, 4000) % (end - FIRST) : end,
               1 + chance(client, 5000));
        if (!leaves && !exec_submit(exec, &a->job, &refusal)) {
            atomic_store(&a->job.is_canceled, chance(client, 8) == 0);
            await_done(a);
            bool is_good = a->job.status == ROPED_OK
                               ? is_right(a)
                               : atomic_load(&a->job.is_canceled);
            client->n_wrong += !is_good;
            client->n_answers++;
        }
        let_go(a);
    }
    return NULL;
}

TEST(many_bodies_at_once_get_each_their_own_answer)
{
    static struct client clients[N_CLIENTS];
    static const int indices[2] = {0, 1};
    int n_answers = 0;
    struct exec_options options = inbox_options(2);
    options.devices = indices;
    options.n_devices = 2;
    open_with(&options);
    for (int i = 0; i < N_CLIENTS; i++) {
        clients[i].seed = (unsigned)i;
        pthread_create(&clients[i].thread, NULL, run_client, &clients[i]);
    }
    for (int i = 0; i < N_CLIENTS; i++) {
        pthread_join(clients[i].thread, NULL);
        CHECK_INT(clients[i].n_wrong, 0);
        n_answers += clients[i].n_answers;
    }
    CHECK(n_answers > N_CLIENTS * check_cases(N_ROUNDS) / 2);
    CHECK(early(0) > 0 && early(1) > 0);
    close_inboxes();
}
