/*
 * test_devices.c - several devices in one executor: which one a job runs on,
 * what each has of its own, and what they share.
 */
#include "check.h"
#include "exec/placement.h"
#include "unit/server/exec/work.h"

#include <pthread.h>
#include <sched.h>

enum { N_DEVICES = 3, ROW = HIDDEN * (int)sizeof(float) };

static struct roped_error err;
static struct executor *exec;

/* Devices 0, 5 and 5 of the backend. */
static void open_devices(int n_devices, int n_lanes)
{
    static const int indices[N_DEVICES] = {0, 5, 5};
    struct exec_options options = work_options(n_lanes, 64);
    options.devices = indices;
    options.n_devices = n_devices;
    exec = work_open(&options);
}

static void submit(struct work *work)
{
    CHECK_OK(exec_submit(exec, &work->job, &err), &err);
}

static int n_busy(int device)
{
    struct exec_device_usage usage;
    exec_device_usage(exec, device, &usage);
    return usage.n_busy_lanes;
}

static int n_jobs(int device)
{
    struct exec_device_usage usage;
    exec_device_usage(exec, device, &usage);
    return (int)usage.jobs;
}

static void give(struct region *region)
{
    regions_give(exec_regions(exec), region);
}

/* Waits until all work has ended and its lanes are free. */
static void wait_all(struct work *work, int n)
{
    for (int i = 0; i < n; i++) {
        CHECK(work_wait(&work[i]));
        CHECK_OK(work[i].job.status, &work[i].job.error);
    }
    work_wait_idle(exec);
}

/* ---------------------------------------------------------------- routing */

TEST(every_device_has_lanes_of_its_own)
{
    static struct work work[4];
    struct exec_usage usage;
    open_devices(3, 1);
    CHECK_INT(exec_n_devices(exec), 3);
    fake_hold();
    for (int i = 0; i < 4; i++) {
        work_make(&work[i], 8);
        submit(&work[i]);
    }
    exec_usage(exec, &usage);
    CHECK_INT(usage.n_lanes, 3);
    CHECK_INT(usage.n_busy_lanes, 3);
    CHECK_INT(usage.n_waiting, 1);
    for (int i = 0; i < 3; i++)
        CHECK_INT(n_busy(i), 1);
    fake_let_go();
    wait_all(work, 4);
    CHECK_INT(n_jobs(0) + n_jobs(1) + n_jobs(2), 4);
    for (int i = 0; i < 4; i++)
        CHECK(work_is_right(&work[i]));
    work_close(exec);
}

/* One call of 16 rows moves more than three of 4 together. */
TEST(a_job_goes_where_the_fewest_bytes_move)
{
    static struct work work[6];
    open_devices(2, 4);
    fake_hold();
    work_make(&work[0], 16);
    submit(&work[0]);
    for (int i = 1; i < 5; i++) {
        work_make(&work[i], 4);
        submit(&work[i]);
    }
    CHECK_INT(n_busy(0), 1);
    CHECK_INT(n_busy(1), 4);
    /* no lane of the second is idle: the first has it */
    work_make(&work[5], 1);
    submit(&work[5]);
    CHECK_INT(n_busy(0), 2);
    fake_let_go();
    wait_all(work, 6);
    CHECK_INT(n_jobs(0), 2);
    CHECK_INT(n_jobs(1), 4);
    work_close(exec);
}

TEST(small_jobs_run_inline_on_any_device)
{
    static struct work slow, work;
    open_devices(2, 1);
    fake_hold();
    work_make(&slow, 8);
    submit(&slow);
    CHECK_INT(n_busy(0), 1);
    CHECK(work_wait_launches(1));
    fake_pass();
    work_make(&work, 4);
    CHECK(exec_run_inline(exec, &work.job));
    CHECK(work_is_right(&work));
    CHECK_INT(n_jobs(1), 1);
    fake_let_go();
    wait_all(&slow, 1);
    /* a tie: the first has it */
    work_make(&work, 4);
    CHECK(exec_run_inline(exec, &work.job));
    CHECK_INT(n_jobs(1), 1);
    work_close(exec);
}

/* ---------------------------------------------------------------- regions */

/* A call whose output is in a region runs where that is, and waits for that
 * device alone; who can run anywhere overtakes it. */
TEST(a_job_runs_where_its_region_is)
{
    static struct work bound[3], any;
    open_devices(2, 1);
    struct region *y = work_region(exec, "y", 8 * ROW, 1);
    CHECK_INT(region_info(y)->device, 1);
    for (int i = 0; i < 3; i++) {
        work_make(&bound[i], 8);
        bound[i].job.out[0] = (struct exec_place){y, 0};
        CHECK_OK(placement_check(&bound[i].job, exec_regions(exec), &err),
                 &err);
        placement_measure(&bound[i].job, false);
        CHECK_INT(bound[i].job.device, 1);
    }
    CHECK(exec_run_inline(exec, &bound[0].job));
    CHECK_INT(n_jobs(0), 0);
    CHECK_INT(n_jobs(1), 1);
    memcpy(bound[0].y, region_data(y), 8 * ROW);
    CHECK(work_is_right(&bound[0]));
    fake_hold();
    submit(&bound[1]);
    submit(&bound[2]);
    CHECK(!exec_run_inline(exec, &bound[0].job)); /* its device is busy */
    work_make(&any, 4);
    submit(&any);
    CHECK_INT(n_busy(0), 1);
    CHECK_INT(n_busy(1), 1);
    fake_let_go();
    wait_all(&any, 1);
    wait_all(&bound[1], 2);
    CHECK_INT(n_jobs(0), 1);
    CHECK_INT(n_jobs(1), 3);
    give(y);
    work_close(exec);
}

TEST(bound_jobs_expire_and_drain_like_others)
{
    static struct work work[4];
    open_devices(2, 1);
    struct region *y = work_region(exec, "y", 8 * ROW, 1);
    fake_hold();
    for (int i = 0; i < 4; i++) {
        work_make(&work[i], 8);
        work[i].job.out[0] = (struct exec_place){y, 0};
        if (i == 1)
            work[i].job.deadline_ns = after_ms(20);
        submit(&work[i]);
    }
    CHECK(work_wait(&work[1]));
    CHECK_INT(work[1].job.status, ROPED_DEADLINE);
    CHECK_INT(atomic_load(&work[0].n_done), 0);
    CHECK(work_wait_launches(1));
    pthread_t thread = work_let_go_after(&work[3]);
    exec_drain(exec, after_ms(10));
    pthread_join(thread, NULL);
    CHECK_INT(work[0].job.status, ROPED_OK);
    CHECK_INT(work[2].job.status, ROPED_CANCELED);
    CHECK_INT(work[3].job.status, ROPED_CANCELED);
    give(y);
    work_close(exec);
}

TEST(a_fetch_that_fails_ends_the_call_alone)
{
    static struct work work;
    open_devices(2, 1);
    struct region *x = work_region(exec, "there", 8 * ROW, 1);
    struct region *y = work_region(exec, "here", 8 * ROW, 0);
    for (int fails = 1; fails >= 0; fails--) {
        work_make(&work, 8);
        memcpy(region_data(x), work.x, 8 * ROW);
        work.job.in[0].region = x;
        work.job.out[0].region = y;
        CHECK_OK(placement_check(&work.job, exec_regions(exec), &err), &err);
        if (fails)
            CHECK(exec_run_inline(exec, &work.job)); /* makes the arena */
        work_make(&work, 8);
        work.job.in[0].region = x;
        work.job.out[0].region = y;
        atomic_store(&fake_fail_at, fails);
        CHECK(exec_run_inline(exec, &work.job));
        CHECK_INT(work.job.status, fails ? ROPED_DEVICE : ROPED_OK);
    }
    memcpy(work.y, region_data(y), 8 * ROW);
    CHECK(work_is_right(&work));
    give(x);
    give(y);
    work_close(exec);
}

/* ------------------------------------------------------- where regions are */

enum { BUDGET = 1 << 20 }; /* region_bytes of each device */

static struct region *make_for(struct tenant *tenant, uint64_t bytes,
                               int device)
{
    struct region_info info = {
        .name = "r", .tenant = tenant, .bytes = bytes, .device = device};
    struct region *region = NULL;
    CHECK_OK(regions_create(exec_regions(exec), &info, &region, &err), &err);
    return region;
}

static int place_for(struct tenant *tenant, uint64_t bytes, int device,
                     struct region **out)
{
    *out = make_for(tenant, bytes, device);
    return region_info(*out)->device;
}

TEST(the_regions_of_one_owner_are_together_as_long_as_they_fit)
{
    struct region *of_a[5], *of_b[3];
    struct tenant *a, *b;
    open_devices(3, 1);
    CHECK_OK(tenants_get(exec_tenants(exec), "a", &a, &err), &err);
    CHECK_OK(tenants_get(exec_tenants(exec), "b", &b, &err), &err);
    CHECK_INT(place_for(a, BUDGET / 4, REGION_ANY_DEVICE, &of_a[0]), 0);
    CHECK_INT(place_for(a, BUDGET / 2, REGION_ANY_DEVICE, &of_a[1]), 0);
    /* another's are where most room is, and stay there */
    CHECK_INT(place_for(b, 64, REGION_ANY_DEVICE, &of_b[0]), 1);
    CHECK_INT(place_for(b, BUDGET / 2, REGION_ANY_DEVICE, &of_b[1]), 1);
    CHECK_INT(place_for(b, BUDGET / 4, REGION_ANY_DEVICE, &of_b[2]), 1);
    /* what does not fit there is where most room is; what fits follows most */
    CHECK_INT(place_for(a, BUDGET / 2, REGION_ANY_DEVICE, &of_a[2]), 2);
    CHECK_INT(place_for(a, BUDGET / 4, REGION_ANY_DEVICE, &of_a[3]), 0);
    /* the first is full now: the second most */
    CHECK_INT(place_for(a, 64, REGION_ANY_DEVICE, &of_a[4]), 2);
    give(of_a[0]);
    give(of_a[1]);
    give(of_a[3]);
    CHECK_INT(place_for(a, 64, REGION_ANY_DEVICE, &of_a[0]), 2);
    for (int i = 0; i < 3; i++)
        give(of_b[i]);
    give(of_a[0]);
    give(of_a[2]);
    give(of_a[4]);
    for (int i = 0; i < 3; i++) {
        CHECK_INT((int)a->device_bytes[i], 0);
        CHECK_INT((int)b->device_bytes[i], 0);
    }
    work_close(exec);
}

TEST(whoever_names_a_device_or_spreads_gets_that)
{
    struct region *made[4];
    open_devices(3, 1);
    struct tenant *tenant = tenants_nameless(exec_tenants(exec));
    CHECK_INT(place_for(tenant, 64, 2, &made[0]), 2);
    CHECK_INT(place_for(tenant, 64, REGION_ANY_DEVICE, &made[1]), 2);
    CHECK_INT(place_for(tenant, 64, REGION_SPREAD, &made[2]), 0);
    CHECK_INT(place_for(tenant, 64, REGION_SPREAD, &made[3]), 1);
    for (int i = 0; i < 4; i++)
        give(made[i]);
    work_close(exec);
}

TEST(a_region_stays_where_it_was)
{
    struct region *made[3];
    open_devices(2, 1);
    struct tenant *tenant = tenants_nameless(exec_tenants(exec));
    CHECK_INT(place_for(tenant, 64, 1, &made[0]), 1);
    region_set_written(made[0]);
    CHECK_OK(regions_publish(exec_regions(exec), made[0], NULL, &err), &err);
    made[1] = work_region(exec, "other", BUDGET / 2, 0);
    CHECK_INT(place_for(tenant, 128, REGION_ANY_DEVICE, &made[2]), 1);
    give(made[2]);
    CHECK_INT(place_for(tenant, BUDGET / 2, REGION_ANY_DEVICE, &made[2]), 1);
    for (int i = 0; i < 3; i++)
        give(made[i]);
    work_close(exec);
}

/* A client's own device memory counts: what it makes beside is there too. */
TEST(regions_go_where_a_clients_memory_is)
{
    struct region *own, *made;
    open_devices(2, 1);
    struct tenant *tenant = tenants_nameless(exec_tenants(exec));
    struct region_info info = {
        .name = "own", .tenant = tenant, .bytes = 64, .device = 1};
    CHECK_OK(regions_import(exec_regions(exec), &info, &own, &err), &err);
    CHECK_INT(place_for(tenant, 64, REGION_ANY_DEVICE, &made), 1);
    give(made);
    give(own);
    CHECK_INT(place_for(tenant, 64, REGION_ANY_DEVICE, &made), 0);
    give(made);
    work_close(exec);
}

/* Whose memory it is, where there is none left. */
TEST(a_full_device_is_named_with_what_is_held_of_it)
{
    struct region_info info = {.name = "w", .bytes = 5000, .device = 1};
    struct region *made, *refused;
    static struct work work;
    open_devices(2, 1);
    info.tenant = tenants_nameless(exec_tenants(exec));
    made = make_for(info.tenant, 4000, 1);
    work_make(&work, 8);
    struct region *y = work_region(exec, "y", 8 * ROW, 1);
    work.job.out[0].region = y;
    CHECK(exec_run_inline(exec, &work.job)); /* has an arena then: 1 MiB */
    atomic_store(&fake_device_bytes, 4500);
    CHECK_INT(regions_create(exec_regions(exec), &info, &refused, &err),
              ROPED_NO_MEMORY);
    CHECK_TEXT(err.text, "region 'w': device 1: 5000 bytes wanted: the fake "
                         "device is full; of its memory this daemon holds 6048 "
                         "bytes for regions, 1048576 for calls and 0 for "
                         "tables");
    give(made);
    give(y);
    work_close(exec);
}

TEST(a_region_is_made_where_most_room_is)
{
    enum { HALF = 1 << 19 }; /* of region_bytes of each device */
    struct region *made[4];
    struct region_info large = {
        .name = "large", .bytes = HALF + 1, .device = REGION_ANY_DEVICE};
    struct region *refused;
    open_devices(2, 1);
    large.tenant = tenants_nameless(exec_tenants(exec));
    for (int i = 0; i < 4; i++)
        made[i] =
            work_region(exec, "r", i == 0 ? HALF / 2 : HALF / 4, REGION_SPREAD);
    CHECK_INT(region_info(made[0])->device, 0);
    CHECK_INT(region_info(made[1])->device, 1);
    CHECK_INT(region_info(made[2])->device, 1);
    CHECK_INT((int)regions_device_bytes(exec_regions(exec), 0) +
                  (int)regions_device_bytes(exec_regions(exec), 1),
              HALF / 2 + 3 * HALF / 4);
    large.bytes = 2 * HALF; /* fits neither beside these */
    CHECK_INT(regions_create(exec_regions(exec), &large, &refused, &err),
              ROPED_BUSY);
    large.bytes++;
    CHECK_INT(regions_create(exec_regions(exec), &large, &refused, &err),
              ROPED_TOO_LARGE);
    large.device = 2;
    CHECK_INT(regions_create(exec_regions(exec), &large, &refused, &err),
              ROPED_INVALID);
    CHECK_CONTAINS(err.text, "device 2, expected 0 <= device < 2");
    for (int i = 0; i < 4; i++)
        give(made[i]);
    CHECK_INT((int)regions_device_bytes(exec_regions(exec), 1), 0);
    work_close(exec);
}

/* ----------------------------------------------------------- what is shared */

/* rope with a table, one token at position 0: its output is its input. */
static void make_rope(struct work *work)
{
    struct roped_tensor q = {ROPED_F32, 3, {1, 1, HIDDEN}, work->x};
    work_make(work, 1);
    roped_call_init(&work->job.call, roped_op_find("rope"));
    CHECK_OK(roped_call_bind(&work->job.call, "q", &q, &err), &err);
    CHECK_OK(roped_call_set_text(&work->job.call, "angles", "table", &err),
             &err);
    CHECK_OK(roped_call_resolve(&work->job.call, &err), &err);
    work->job.call.out[0].data = work->y;
}

TEST(every_device_builds_the_tables_that_it_uses)
{
    static struct work slow, work;
    struct tables_usage usage;
    open_devices(2, 1);
    make_rope(&work);
    CHECK(exec_run_inline(exec, &work.job));
    CHECK_OK(work.job.status, &work.job.error);
    fake_hold();
    work_make(&slow, 8);
    submit(&slow); /* the first device is busy now */
    CHECK(work_wait_launches(2));
    fake_pass();
    for (int i = 0; i < 2; i++) {
        make_rope(&work);
        CHECK(exec_run_inline(exec, &work.job));
        CHECK_INT(n_jobs(1), 1 + i);
    }
    fake_let_go();
    wait_all(&slow, 1);
    tables_usage(exec_tables(exec), &usage);
    CHECK_INT(usage.builds, 2);
    CHECK_INT(usage.n_resident, 2);
    CHECK_INT(usage.hits, 1);
    CHECK_INT(usage.budget_bytes, 2 << 20);
    work_close(exec);
}

TEST(one_sick_device_makes_the_executor_unhealthy)
{
    struct exec_device_usage usage;
    open_devices(2, 1);
    CHECK(exec_is_healthy(exec));
    atomic_store(&fake_dead_index, 5);
    CHECK(!exec_is_healthy(exec));
    exec_device_usage(exec, 0, &usage);
    CHECK(usage.is_healthy);
    CHECK_INT(usage.index, 0);
    exec_device_usage(exec, 1, &usage);
    CHECK(!usage.is_healthy);
    CHECK_INT(usage.index, 5);
    work_close(exec);
}

TEST(an_index_is_found_at_the_first_device_that_has_it)
{
    open_devices(3, 1);
    CHECK_INT(exec_find_device(exec, 0), 0);
    CHECK_INT(exec_find_device(exec, 5), 1);
    CHECK_INT(exec_find_device(exec, 2), -1);
    CHECK_INT(exec_find_device(exec, UINT64_MAX), -1);
    work_close(exec);
}

/* -------------------------------------------------------------------- load */

enum { N_CLIENTS = 8, N_ROUNDS = 150 };

struct client {
    pthread_t thread;
    unsigned seed;
    struct region *region; /* NULL: none */
    int n_right, n_wrong;
    struct work work;
};

/* Jobs of any size, inline or not; every second client is bound to a device
 * by a region of its own. */
static void *run_client(void *context)
{
    struct client *client = context;
    struct work *work = &client->work;
    struct roped_error refusal;
    for (int i = 0; i < N_ROUNDS; i++) {
        client->seed = client->seed * 1103515245 + 12345;
        work_make(work, 1 + (int)(client->seed >> 16) % MAX_ROWS);
        if (client->region)
            work->job.out[0] = (struct exec_place){client->region, 0};
        bool is_inline =
            client->seed >> 24 & 1 && exec_run_inline(exec, &work->job);
        if (!is_inline && exec_submit(exec, &work->job, &refusal)) {
            client->n_wrong++;
            continue;
        }
        while (atomic_load(&work->n_done) == 0)
            sched_yield();
        if (client->region)
            memcpy(work->y, region_data(client->region),
                   (size_t)work->rows * ROW);
        bool is_right = work->job.status == ROPED_OK && work_is_right(work);
        *(is_right ? &client->n_right : &client->n_wrong) += 1;
    }
    return NULL;
}

TEST(many_clients_on_several_devices_get_each_their_own_answer)
{
    static struct client clients[N_CLIENTS];
    open_devices(3, 2);
    for (int i = 0; i < N_CLIENTS; i++) {
        clients[i].seed = (unsigned)i;
        clients[i].region =
            i % 2 ? work_region(exec, "own", MAX_ROWS * ROW, i % 3) : NULL;
    }
    for (int i = 0; i < N_CLIENTS; i++)
        pthread_create(&clients[i].thread, NULL, run_client, &clients[i]);
    for (int i = 0; i < N_CLIENTS; i++) {
        pthread_join(clients[i].thread, NULL);
        CHECK_INT(clients[i].n_wrong, 0);
        CHECK_INT(clients[i].n_right, N_ROUNDS);
        give(clients[i].region);
    }
    exec_drain(exec, after_ms(1000));
    CHECK_INT(n_jobs(0) + n_jobs(1) + n_jobs(2), N_CLIENTS * N_ROUNDS);
    for (int i = 0; i < 3; i++)
        CHECK(n_jobs(i) >= N_ROUNDS); /* of who is bound there */
    work_close(exec);
}
