/*
 * test_client_memory.c - shared memory of clients: keys, sizes, and clients
 * that take it away, also in the middle of a call.
 */
#include "exec/client_memory.h"

#include "check.h"
#include "exec/guard.h"
#include "exec/placement.h"
#include "shared_memory.h"
#include "unit/server/exec/work.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, BYTES = 3 * PAGE };

static struct roped_error err;
static struct executor *exec;
static char key[SHARED_KEY_BYTES];
static int fd;

/* What a client does: a file of BYTES, counting. */
static void make_shared(void)
{
    unsigned char bytes[BYTES];
    fd = shared_memory_make(key, 0);
    for (int i = 0; i < BYTES; i++)
        bytes[i] = (unsigned char)(i * 31 >> 3);
    CHECK(pwrite(fd, bytes, BYTES, 0) == BYTES);
}

static void drop_shared(void)
{
    close(fd);
    shm_unlink(key);
}

static enum roped_status open_at(uint64_t offset, uint64_t bytes,
                                 struct client_memory *out)
{
    const struct client_range range = {"r", key, offset, bytes};
    return client_memory_open(&fake_api, NULL, &range, out, &err);
}

/* ------------------------------------------------------------------ memory */

TEST(keys_have_one_slash)
{
    char out[CLIENT_KEY_BYTES], long_key[300];
    memset(long_key, 'k', sizeof long_key);
    long_key[CLIENT_KEY_BYTES - 2] = '\0';
    CHECK(client_memory_key("/a", out));
    CHECK_TEXT(out, "/a");
    CHECK(client_memory_key("a.b", out));
    CHECK_TEXT(out, "/a.b");
    CHECK(client_memory_key("///a", out));
    CHECK_TEXT(out, "/a");
    CHECK(client_memory_key(long_key, out));
    CHECK_INT(strlen(out), CLIENT_KEY_BYTES - 1);
    long_key[CLIENT_KEY_BYTES - 2] = 'k';
    long_key[CLIENT_KEY_BYTES - 1] = '\0';
    static const char *const bad[] = {"",    "/",  "///",       "a/b",
                                      "/a/", "..", "/../etc/x", "."};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK(!client_memory_key(bad[i], out));
    CHECK(!client_memory_key(long_key, out));
}

TEST(memory_is_mapped_at_any_offset)
{
    static const uint64_t offsets[] = {0, 1, 64, PAGE - 1, PAGE, 2 * PAGE + 7};
    make_shared();
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++) {
        struct client_memory memory;
        uint64_t offset = offsets[i], bytes = BYTES - offset;
        unsigned char byte;
        CHECK_OK(open_at(offset, bytes, &memory), &err);
        CHECK_OK(client_memory_check(&memory, "r", &err), &err);
        for (uint64_t j = 0; j < bytes; j++)
            if (memory.data[j] != (unsigned char)((offset + j) * 31 >> 3))
                CHECK_FAIL("byte %d is another", (int)j);
        memory.data[0] = 0xAB; /* the client sees it */
        CHECK(pread(fd, &byte, 1, (off_t)offset) == 1 && byte == 0xAB);
        memory.data[0] = (unsigned char)(offset * 31 >> 3);
        client_memory_close(&fake_api, NULL, &memory);
    }
    drop_shared();
}

TEST(what_is_not_there_is_not_mapped)
{
    static const struct {
        uint64_t offset, bytes;
        const char *part;
    } cases[] = {{0, BYTES + 1,
                  "offset + byte_size is 12289, expected at most "
                  "12288, the size of the shared memory"},
                 {1, BYTES, "invalid args"},
                 {BYTES, 1, "invalid args"},
                 {0, 0, "invalid args: byte_size is 0"},
                 {UINT64_MAX, 2, "overflows"},
                 {2, UINT64_MAX - 1, "overflows"},
                 {1, INT64_MAX, "overflows"},
                 {INT64_MAX - PAGE, PAGE, "invalid args"}};
    struct client_memory memory;
    make_shared();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK_INT(open_at(cases[i].offset, cases[i].bytes, &memory),
                  ROPED_INVALID);
        CHECK_CONTAINS(err.text,
                       "failed to register shared memory region 'r': ");
        CHECK_CONTAINS(err.text, cases[i].part);
    }
    drop_shared();
    CHECK_INT(open_at(0, 1, &memory), ROPED_INVALID);
    CHECK_CONTAINS(err.text, "Unable to open shared memory region: '/roped");
}

TEST(a_fifo_is_no_shared_memory)
{
    struct client_memory memory;
    char path[96];
    snprintf(key, sizeof key, "/roped_test_%d", (int)getpid());
    snprintf(path, sizeof path, "/dev/shm%s", key);
    unlink(path);
    if (mkfifo(path, 0600) != 0)
        return; /* no /dev/shm: shm_open is elsewhere */
    CHECK_INT(open_at(0, 1, &memory), ROPED_INVALID);
    CHECK_CONTAINS(err.text, "does not name shared memory");
    unlink(path);
}

TEST(a_client_that_truncates_is_noticed)
{
    struct client_memory memory;
    make_shared();
    CHECK_OK(open_at(PAGE, PAGE, &memory), &err);
    CHECK(ftruncate(fd, 2 * PAGE) == 0); /* what is left is enough */
    CHECK_OK(client_memory_check(&memory, "r", &err), &err);
    CHECK(ftruncate(fd, 2 * PAGE - 1) == 0);
    CHECK_INT(client_memory_check(&memory, "r", &err), ROPED_INVALID);
    CHECK_CONTAINS(err.text, "region 'r': its client has truncated it below "
                             "the 8192 bytes");
    client_memory_close(&fake_api, NULL, &memory);
    drop_shared();
}

/* A fault in between: zeros, for good, and the guard says so. */
TEST(a_fault_becomes_zeros_and_a_broken_guard)
{
    struct client_memory memory;
    make_shared();
    CHECK_OK(open_at(0, BYTES, &memory), &err);
    CHECK(ftruncate(fd, PAGE) == 0);
    volatile unsigned char *data = memory.data;
    CHECK_INT(data[PAGE + 5], 0);
    data[2 * PAGE] = 1; /* no second fault */
    CHECK(guard_is_broken(memory.guard));
    CHECK(ftruncate(fd, BYTES) == 0); /* too late */
    CHECK_INT(client_memory_check(&memory, "r", &err), ROPED_INVALID);
    client_memory_close(&fake_api, NULL, &memory);
    CHECK_OK(open_at(0, BYTES, &memory), &err); /* registered again: well */
    CHECK(!guard_is_broken(memory.guard));
    client_memory_close(&fake_api, NULL, &memory);
    drop_shared();
}

TEST(there_is_a_most_of_guards)
{
    static struct client_memory all[GUARD_MAX];
    struct client_memory one_more;
    make_shared();
    for (int i = 0; i < GUARD_MAX; i++)
        CHECK_OK(open_at(0, 1, &all[i]), &err);
    CHECK_INT(open_at(0, 1, &one_more), ROPED_BUSY);
    CHECK_CONTAINS(err.text, "256 are registered");
    client_memory_close(&fake_api, NULL, &all[7]);
    CHECK_OK(open_at(0, 1, &all[7]), &err);
    for (int i = 0; i < GUARD_MAX; i++)
        client_memory_close(&fake_api, NULL, &all[i]);
    drop_shared();
}

/* A fault that is nobody's must end the process, as it would have. */
TEST(another_fault_is_as_deadly_as_before)
{
    int status;
    make_shared();
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        struct client_memory memory;
        if (!freopen("/dev/null", "w", stderr) || /* sanitizers report */
            open_at(0, PAGE, &memory))
            _exit(0);
        volatile unsigned char *own =
            mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 2 * PAGE);
        if (ftruncate(fd, PAGE) != 0)
            _exit(0);
        _exit(own[0] == 0 ? 0 : 0); /* not reached */
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(!WIFEXITED(status) || WEXITSTATUS(status) != 0);
    drop_shared();
}

/* -------------------------------------------------------------------- jobs */

enum { ROW = HIDDEN * (int)sizeof(float), ROWS = 16 };

static struct work work;

static struct tenant *nameless(void)
{
    return tenants_nameless(exec_tenants(exec));
}

/* Registers the file as region "r" from offset on. */
static struct region *map_region(uint64_t offset, uint64_t bytes)
{
    struct region_info info = {
        .tenant = nameless(), .offset = offset, .bytes = bytes};
    struct region *region = NULL;
    snprintf(info.name, sizeof info.name, "r");
    snprintf(info.key, sizeof info.key, "%s", key);
    CHECK_OK(regions_map(exec_regions(exec), &info, &region, &err), &err);
    return region;
}

static enum roped_status run(void)
{
    CHECK_OK(placement_check(&work.job, exec_regions(exec), &err), &err);
    CHECK_OK(exec_submit(exec, &work.job, &err), &err);
    CHECK(work_wait(&work));
    return work.job.status;
}

static void close_executor(void)
{
    exec_drain(exec, after_ms(20000));
    exec_close(exec);
}

static void open_executor(const struct roped_backend_api *api)
{
    struct exec_options options = work_options(1, 8);
    struct roped_backend_options backend = {.n_threads = 1};
    fake_reset();
    CHECK_OK(exec_open(api, &backend, &options, &exec, &err), &err);
}

/* In place on the CPU, by copies on a device, at any offset. */
TEST(calls_use_shared_memory)
{
    const struct roped_backend_api *const apis[] = {&roped_backend_cpu,
                                                    &fake_api};
    for (size_t a = 0; a < 2; a++)
        for (uint64_t offset = 0; offset < 3; offset++) {
            make_shared();
            open_executor(apis[a]);
            struct region *region = map_region(1, BYTES - 1);
            CHECK(!region_is_device(region));
            work_make(&work, ROWS);
            memcpy(region_data(region) + offset, work.x, ROWS * ROW);
            work.job.in[0] = (struct exec_place){region, offset};
            work.job.out[0] =
                (struct exec_place){region, 2 * PAGE - 1 - offset};
            CHECK_INT(run(), ROPED_OK);
            CHECK_INT(atomic_load(&fake_n_copies), a == 0 ? 0 : 2);
            /* as the client sees it */
            CHECK(pread(fd, work.y, ROWS * ROW, (off_t)(2 * PAGE - offset)) ==
                  ROWS * ROW);
            CHECK(work_is_right(&work));
            regions_give(exec_regions(exec), region);
            close_executor();
            drop_shared();
        }
}

/* Slices of rows, next to those that another call may write meanwhile: only
 * the slices come back from a device. */
TEST(calls_use_slices_of_rows_in_shared_memory)
{
    const struct roped_backend_api *const apis[] = {&roped_backend_cpu,
                                                    &fake_api};
    enum { N = 4, STEP = 100, STEP_BYTES = STEP * (int)sizeof(float) };
    for (size_t i = 0; i < 6; i++) {
        make_shared();
        open_executor(apis[i % 2]);
        struct region *region = map_region(0, BYTES);
        unsigned char *at = region_data(region) + i / 2; /* misaligned, too */
        work_make(&work, N);
        memset(region_data(region), 9, BYTES);
        for (int row = 0; row < N; row++)
            memcpy(at + row * STEP_BYTES, work.x + row * HIDDEN, ROW);
        work.job.in[0] = work.job.out[0] =
            (struct exec_place){region, i / 2, 0};
        work.job.call.in[0].stride = STEP;
        CHECK_INT(run(), ROPED_OK);
        for (int row = 0; row < N; row++) {
            memcpy(work.y + row * HIDDEN, at + row * STEP_BYTES, ROW);
            memset(at + row * STEP_BYTES, 9, ROW);
        }
        CHECK(work_is_right(&work));
        for (int byte = 0; byte < BYTES; byte++)
            if (region_data(region)[byte] != 9)
                CHECK_FAIL("byte %d beside the slices changed", byte);
        regions_give(exec_regions(exec), region);
        close_executor();
        drop_shared();
    }
}

TEST(a_truncated_region_is_refused_before_its_use)
{
    make_shared();
    open_executor(&fake_api);
    struct region *region = map_region(0, BYTES);
    work_make(&work, 1);
    work.job.in[0].region = region;
    CHECK(ftruncate(fd, 0) == 0);
    CHECK_INT(run(), ROPED_INVALID);
    CHECK_CONTAINS(work.job.error.text, "truncated");
    CHECK_INT(atomic_load(&fake_n_launches), 0);
    regions_give(exec_regions(exec), region);
    close_executor();
    drop_shared();
}

/* The client truncates between the check and the use. */
static enum roped_status truncate_and_launch(const struct roped_call *call,
                                             struct roped_queue *queue,
                                             struct roped_error *why)
{
    CHECK(ftruncate(fd, 0) == 0);
    return roped_backend_cpu.launch(queue, call, why);
}

static struct roped_backend_api host_api; /* the fake one, in place */

TEST(a_region_truncated_under_a_kernel_fails_its_call_alone)
{
    make_shared();
    host_api = fake_api;
    host_api.is_host = true;
    open_executor(&host_api);
    struct region *region = map_region(0, BYTES);
    work_make(&work, ROWS);
    work.job.in[0].region = region;
    fake_kernel = truncate_and_launch;
    CHECK_INT(run(), ROPED_INVALID);
    CHECK_CONTAINS(work.job.error.text, "truncated");
    fake_kernel = NULL;
    CHECK(ftruncate(fd, BYTES) == 0);
    work_make(&work, ROWS);
    work.job.in[0].region = region;
    CHECK_INT(run(), ROPED_INVALID); /* what it had is gone */
    regions_give(exec_regions(exec), region);
    work_make(&work, ROWS);
    CHECK_INT(run(), ROPED_OK);
    CHECK(work_is_right(&work));
    close_executor();
    drop_shared();
}

/* ------------------------------------------------------------------- names */

static enum roped_status publish(struct region *region)
{
    enum roped_status status =
        regions_publish(exec_regions(exec), region, NULL, &err);
    regions_give(exec_regions(exec), region);
    return status;
}

static enum roped_status take(void)
{
    struct region *region;
    enum roped_status status =
        regions_take(exec_regions(exec), nameless(), "r", &region, &err);
    regions_give(exec_regions(exec), region);
    return status;
}

static struct region *make_resident(void)
{
    struct region_info info = {.tenant = nameless(), .name = "r", .bytes = 8};
    struct region *region;
    CHECK_OK(regions_create(exec_regions(exec), &info, &region, &err), &err);
    region_set_written(region);
    return region;
}

TEST(all_kinds_share_their_names)
{
    struct regions *regions;
    make_shared();
    open_executor(&fake_api);
    regions = exec_regions(exec);
    CHECK_OK(publish(map_region(0, 8)), &err);
    CHECK_INT(publish(map_region(0, 8)), ROPED_INVALID);
    CHECK_CONTAINS(err.text, "shared memory region 'r' already in manager");
    CHECK_INT(publish(make_resident()), ROPED_INVALID);
    CHECK_CONTAINS(err.text, "already in manager: it is a system region");
    CHECK_INT(regions_remove(regions, nameless(), "r", &err), ROPED_INVALID);
    CHECK_CONTAINS(err.text, "unregister it");
    regions_unregister(regions, nameless(), REGION_RESIDENT,
                       "r"); /* another kind */
    regions_unregister(regions, nameless(), REGION_SYSTEM, "q"); /* not there */
    CHECK_OK(take(), &err);
    regions_unregister(regions, nameless(), REGION_SYSTEM, "r");
    CHECK_INT(take(), ROPED_NO_REGION);
    CHECK_OK(publish(make_resident()), &err);
    CHECK_INT(publish(map_region(0, 8)), ROPED_INVALID);
    CHECK_CONTAINS(err.text, "it is a resident region");
    regions_unregister(regions, nameless(), REGION_SYSTEM,
                       NULL); /* all of the kind */
    CHECK_OK(take(), &err);
    close_executor();
    drop_shared();
}

TEST(an_unregistered_region_stays_mapped_while_it_is_used)
{
    struct region *region;
    struct regions_usage usage;
    make_shared();
    open_executor(&fake_api);
    CHECK_OK(publish(map_region(0, BYTES)), &err);
    CHECK_OK(regions_take(exec_regions(exec), nameless(), "r", &region, &err),
             &err);
    regions_unregister(exec_regions(exec), nameless(), REGION_SYSTEM, NULL);
    CHECK_INT(region_data(region)[BYTES - 1],
              (unsigned char)((BYTES - 1) * 31 >> 3));
    regions_usage(exec_regions(exec), &usage);
    CHECK_INT(usage.n[REGION_SYSTEM], 0);
    CHECK_INT(usage.bytes[REGION_SYSTEM], BYTES);
    regions_give(exec_regions(exec), region);
    regions_usage(exec_regions(exec), &usage);
    CHECK_INT(usage.bytes[REGION_SYSTEM], 0);
    close_executor();
    drop_shared();
}

/* ------------------------------------------------ another process's device */

static enum roped_status import(unsigned char first, uint64_t bytes,
                                struct region **out)
{
    struct region_info info = {.tenant = nameless(),
                               .name = "r",
                               .bytes = bytes,
                               .handle = {first},
                               .device = 0};
    return regions_import(exec_regions(exec), &info, out, &err);
}

TEST(device_memory_of_others_is_used_where_it_is)
{
    struct region *region;
    open_executor(&fake_api);
    CHECK_OK(import(1, FAKE_FOREIGN_BYTES, &region), &err);
    CHECK(region_is_device(region));
    CHECK_INT(region_info(region)->kind, REGION_CUDA);
    work_make(&work, 2);
    memcpy(region_data(region), work.x, 2 * ROW);
    work.job.in[0].region = region;
    work.job.out[0] = (struct exec_place){region, 2 * ROW};
    atomic_store(&fake_n_copies, 0);
    CHECK_INT(run(), ROPED_OK);
    CHECK_INT(atomic_load(&fake_n_copies), 0);
    memcpy(work.y, region_data(region) + 2 * ROW, 2 * ROW);
    CHECK(work_is_right(&work));
    regions_give(exec_regions(exec), region);
    close_executor();
    CHECK_INT(atomic_load(&fake_n_live), 0);
}

TEST(handles_that_are_none_are_refused)
{
    struct region *region;
    struct regions_usage usage;
    open_executor(&fake_api);
    CHECK_INT(import(0xFF, 64, &region), ROPED_INVALID);
    CHECK_TEXT(err.text, "failed to register shared memory region 'r': invalid "
                         "args: no such handle");
    CHECK(!region);
    CHECK_INT(import(1, FAKE_FOREIGN_BYTES + 1, &region), ROPED_INVALID);
    CHECK_CONTAINS(err.text, "byte_size is 4097, expected 1 to 4096");
    CHECK_INT(import(1, 0, &region), ROPED_INVALID);
    regions_usage(exec_regions(exec), &usage);
    CHECK_INT(usage.bytes[REGION_CUDA], 0);
    close_executor();
    CHECK_INT(atomic_load(&fake_n_live), 0);
    open_executor(&roped_backend_cpu);
    CHECK_INT(import(1, 64, &region), ROPED_UNSUPPORTED);
    CHECK_CONTAINS(err.text, "GPUs not supported by the cpu backend");
    close_executor();
}
