/*
 * test_regions.c - named memory: who finds it, who holds it, how much of it
 * there is.
 */
#include "exec/regions.h"

#include "check.h"
#include "unit/server/exec/fake_backend.h"

#include <pthread.h>

enum { BUDGET = 1 << 20 };

static struct roped_error err;
static struct roped_backend *backend;
static struct regions *regions;
static struct device_memory memory;
static struct tenant tenant = {.most_bytes = UINT64_MAX,
                               .most_names = UINT64_MAX};

static void open_regions(void)
{
    struct roped_backend_options options = {.n_threads = 1};
    fake_reset();
    CHECK_OK(fake_api.open(&options, &backend, &err), &err);
    memory = (struct device_memory){.api = &fake_api, .backend = backend};
    CHECK_OK(regions_open(&(struct device_memory *){&memory}, 1, BUDGET,
                          &regions, &err),
             &err);
}

static void close_regions(void)
{
    regions_close(regions);
    fake_api.close(backend);
    CHECK_INT(atomic_load(&fake_n_live), 0);
}

static enum roped_status create_for(struct tenant *owner, const char *name,
                                    uint64_t bytes, struct region **out)
{
    struct region_info info = {.tenant = owner, .bytes = bytes};
    snprintf(info.name, sizeof info.name, "%s", name);
    enum roped_status status = regions_create(regions, &info, out, &err);
    if (!status)
        region_set_written(*out);
    return status;
}

static enum roped_status create(const char *name, uint64_t bytes,
                                struct region **out)
{
    return create_for(&tenant, name, bytes, out);
}

/* Creates, publishes and lets go. */
static bool put(const char *name, uint64_t bytes)
{
    struct region *region;
    bool replaced = false;
    CHECK_OK(create(name, bytes, &region), &err);
    CHECK_OK(regions_publish(regions, region, &replaced, &err), &err);
    regions_give(regions, region);
    return replaced;
}

static uint64_t held_bytes(void)
{
    struct regions_usage usage;
    regions_usage(regions, &usage);
    return usage.bytes[REGION_RESIDENT];
}

static int n_listed(void)
{
    struct regions_usage usage;
    regions_usage(regions, &usage);
    return usage.n[REGION_RESIDENT];
}

TEST(host_memory_is_sent_in_one_piece_with_its_head)
{
    struct region *region;
    size_t bytes;
    open_regions();
    CHECK_OK(create("r", 3, &region), &err);
    region_set_head(region, "head", 4);
    memcpy(region_data(region), "end", 3);
    const unsigned char *whole = region_whole(region, &bytes);
    CHECK(fake_api.is_host == (whole != NULL));
    CHECK(!whole || (bytes == 7 && memcmp(whole, "headend", 7) == 0));
    regions_give(regions, region);
    close_regions();
}

TEST(a_region_is_found_once_it_is_published)
{
    struct region *region, *found;
    open_regions();
    CHECK_OK(create("a", 1000, &region), &err);
    CHECK_INT(held_bytes(), 1000);
    CHECK_INT(regions_take(regions, &tenant, "a", &found, &err),
              ROPED_NO_REGION);
    CHECK_TEXT(err.text, "no region named 'a'; GET /v1/regions lists them");
    CHECK(!found);
    CHECK_OK(regions_publish(regions, region, NULL, &err), &err);
    CHECK_OK(regions_take(regions, &tenant, "a", &found, &err), &err);
    CHECK(found == region);
    CHECK_TEXT(region_info(found)->name, "a");
    CHECK_INT(region_info(found)->bytes, 1000);
    CHECK_INT(region_info(found)->kind, REGION_RESIDENT);
    CHECK(region_is_device(found));
    CHECK_INT((uintptr_t)region_data(found) % 256, 0);
    regions_give(regions, found);
    regions_give(regions, region);
    regions_give(regions, NULL);
    CHECK_INT(n_listed(), 1);
    close_regions();
}

TEST(a_region_that_is_never_published_goes_with_its_reference)
{
    struct region *region;
    open_regions();
    CHECK_OK(create("a", 1000, &region), &err);
    regions_give(regions, region);
    CHECK_INT(held_bytes(), 0);
    CHECK_INT(atomic_load(&fake_n_live), 0);
    close_regions();
}

TEST(a_removed_region_lives_as_long_as_it_is_held)
{
    struct region *first, *second;
    open_regions();
    put("a", 1000);
    CHECK_OK(regions_take(regions, &tenant, "a", &first, &err), &err);
    second = regions_share(regions, first);
    CHECK_OK(regions_remove(regions, &tenant, "a", &err), &err);
    CHECK_INT(regions_remove(regions, &tenant, "a", &err), ROPED_NO_REGION);
    CHECK_INT(n_listed(), 0);
    memset(region_data(first), 7, 1000); /* a sanitizer would tell */
    regions_give(regions, first);
    CHECK_INT(held_bytes(), 1000);
    CHECK_INT(region_data(second)[999], 7);
    regions_give(regions, second);
    CHECK_INT(held_bytes(), 0);
    CHECK_INT(atomic_load(&fake_n_live), 0);
    close_regions();
}

TEST(a_replaced_region_lives_as_long_as_it_is_held)
{
    struct region *old, *new;
    open_regions();
    CHECK(!put("a", 1000));
    CHECK_OK(regions_take(regions, &tenant, "a", &old, &err), &err);
    CHECK(put("a", 2000));
    CHECK_INT(n_listed(), 1);
    CHECK_INT(held_bytes(), 3000);
    CHECK_OK(regions_take(regions, &tenant, "a", &new, &err), &err);
    CHECK(new != old);
    CHECK_INT(region_info(new)->bytes, 2000);
    CHECK_INT(region_info(old)->bytes, 1000);
    regions_give(regions, old);
    CHECK_INT(held_bytes(), 2000);
    regions_give(regions, new);
    close_regions();
}

/* Without a look at their names, and not once one of them means another. */
TEST(regions_are_taken_again_until_a_name_changes)
{
    struct region *known[2], *held[2];
    open_regions();
    put("a", 1000);
    put("b", 1000);
    for (int change = 0; change < 3; change++) {
        uint64_t generation = regions_generation(regions);
        CHECK_OK(regions_take(regions, &tenant, "a", &known[0], &err), &err);
        CHECK_OK(regions_take(regions, &tenant, "b", &known[1], &err), &err);
        memcpy(held, known, sizeof held);
        regions_give_all(regions, held, 2);
        CHECK(!held[0] && !held[1]);
        CHECK(regions_take_again(regions, known, 2, generation));
        memcpy(held, known, sizeof held);
        if (change == 0)
            put("c", 1000);
        else if (change == 1)
            put("a", 1000);
        else
            CHECK_OK(regions_remove(regions, &tenant, "b", &err), &err);
        CHECK(!regions_take_again(regions, known, 2, generation));
        memset(region_data(held[0]), 1, 1000); /* a sanitizer would tell */
        memset(region_data(held[1]), 1, 1000);
        regions_give_all(regions, held, 2);
    }
    CHECK_INT(held_bytes(), 2000);
    close_regions();
}

TEST(the_budget_is_kept_and_given_back)
{
    struct region *region;
    open_regions();
    CHECK_INT(create("a", BUDGET + 1, &region), ROPED_TOO_LARGE);
    CHECK_CONTAINS(err.text, "region 'a': 1048577 bytes, expected at most "
                             "1048576 (region_memory)");
    CHECK_INT(create("a", UINT64_MAX, &region), ROPED_TOO_LARGE);
    put("a", BUDGET - 100);
    CHECK_INT(create("b", 101, &region), ROPED_BUSY);
    CHECK_CONTAINS(err.text, "region 'b': 101 bytes, expected at most the 100");
    put("b", 100);
    CHECK_INT(held_bytes(), BUDGET);
    CHECK_OK(regions_remove(regions, &tenant, "a", &err), &err);
    put("c", BUDGET - 100);
    put("empty", 0);
    close_regions();
}

TEST(a_full_device_takes_nothing_of_the_budget)
{
    struct region *region;
    open_regions();
    atomic_store(&fake_device_bytes, 10);
    CHECK_INT(create("a", 1000, &region), ROPED_NO_MEMORY);
    CHECK(!region);
    CHECK_INT(held_bytes(), 0);
    close_regions();
}

static void note_name(void *context, const struct region_info *info)
{
    char *names = context;
    snprintf(names + strlen(names), 64 - strlen(names), "%s ", info->name);
}

TEST(regions_are_listed_in_name_order)
{
    char names[64] = "";
    open_regions();
    put("b", 1);
    put("c", 1);
    put("a", 1);
    put("b", 2);
    regions_each(regions, &tenant, note_name, names);
    CHECK_TEXT(names, "a b c ");
    CHECK_OK(regions_remove(regions, &tenant, "c", &err), &err);
    names[0] = '\0';
    regions_each(regions, &tenant, note_name, names);
    CHECK_TEXT(names, "a b ");
    close_regions();
}

TEST(there_is_a_most_of_names)
{
    enum { MOST = 4096 };
    struct region *region;
    char name[16];
    open_regions();
    for (int i = 0; i < MOST; i++) {
        snprintf(name, sizeof name, "r%d", i);
        put(name, 1);
    }
    CHECK_OK(create("one_more", 1, &region), &err);
    CHECK_INT(regions_publish(regions, region, NULL, &err), ROPED_BUSY);
    CHECK_CONTAINS(err.text, "4096 regions");
    regions_give(regions, region);
    CHECK(put("r7", 2)); /* in place of another is no more */
    CHECK_INT(n_listed(), MOST);
    close_regions();
}

TEST(ranges_are_checked_without_overflow)
{
    static const struct {
        uint64_t offset, bytes;
        const char *part; /* NULL: inside */
    } cases[] = {{0, 100, NULL},
                 {100, 0, NULL},
                 {99, 1, NULL},
                 {0, 101, "Invalid offset + byte size for shared memory"},
                 {1, 100, "100 bytes at offset 1, expected both within 100"},
                 {101, 0, "Invalid offset for shared memory region: 'a'"},
                 {UINT64_MAX, 1, "Invalid offset for"},
                 {1, UINT64_MAX, "Invalid offset + byte size for"},
                 {UINT64_MAX, UINT64_MAX, "tensor 'x' takes"}};
    struct region *region;
    open_regions();
    CHECK_OK(create("a", 100, &region), &err);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        enum roped_status status = region_check_range(
            region, "x", cases[i].offset, cases[i].bytes, &err);
        CHECK_INT(status, cases[i].part ? ROPED_INVALID : ROPED_OK);
        if (cases[i].part)
            CHECK_CONTAINS(err.text, cases[i].part);
    }
    regions_give(regions, region);
    close_regions();
}

/* ---------------------------------------------------------------- tenants */

static struct tenant other = {
    .name = "other", .most_bytes = 1000, .most_names = 2};

static enum roped_status put_for(struct tenant *owner, const char *name,
                                 uint64_t bytes)
{
    struct region *region;
    enum roped_status status = create_for(owner, name, bytes, &region);
    if (status)
        return status;
    status = regions_publish(regions, region, NULL, &err);
    regions_give(regions, region);
    return status;
}

TEST(a_region_is_its_tenants_alone)
{
    struct region *found;
    char names[64] = "";
    open_regions();
    CHECK_OK(put_for(&tenant, "a", 1), &err);
    CHECK_INT(regions_take(regions, &other, "a", &found, &err),
              ROPED_NO_REGION);
    CHECK_TEXT(err.text, "no region named 'a'; GET /v1/regions lists them");
    CHECK_INT(regions_remove(regions, &other, "a", &err), ROPED_NO_REGION);
    regions_unregister(regions, &other, REGION_RESIDENT, "a");
    regions_unregister(regions, &other, REGION_RESIDENT, NULL);
    CHECK_OK(put_for(&other, "a", 2), &err);
    CHECK_OK(put_for(&other, "b", 2), &err);
    CHECK_OK(regions_take(regions, &tenant, "a", &found, &err), &err);
    CHECK_INT(region_info(found)->bytes, 1);
    regions_give(regions, found);
    regions_each(regions, &other, note_name, names);
    CHECK_TEXT(names, "a b ");
    names[0] = '\0';
    regions_each(regions, &tenant_everyone, note_name, names);
    CHECK_TEXT(names, "a a b ");
    CHECK_INT(n_listed(), 3); /* in metrics they are one sum */
    CHECK_OK(regions_remove(regions, &tenant, "a", &err), &err);
    CHECK_OK(regions_take(regions, &other, "a", &found, &err), &err);
    CHECK_INT(region_info(found)->bytes, 2);
    regions_give(regions, found);
    regions_unregister(regions, &other, REGION_RESIDENT, NULL);
    CHECK_INT(atomic_load(&other.names), 0);
    CHECK_INT(atomic_load(&other.bytes), 0);
    close_regions();
}

TEST(a_quota_is_kept_and_given_back)
{
    struct region *held;
    open_regions();
    CHECK_INT(put_for(&other, "a", 1001), ROPED_TOO_LARGE);
    CHECK_TEXT(err.text, "region 'a': 1001 bytes, expected at most the quota "
                         "of 'other', 1000");
    CHECK_OK(put_for(&other, "a", 600), &err);
    CHECK_INT(put_for(&other, "b", 401), ROPED_BUSY);
    CHECK_TEXT(err.text, "region 'b': 401 bytes, expected at most the 400 that "
                         "are left of the quota of 'other', 1000; DELETE one");
    CHECK_OK(put_for(&tenant, "b", 5000), &err); /* another's is another's */
    CHECK_OK(put_for(&other, "b", 400), &err);
    CHECK_OK(regions_take(regions, &other, "b", &held, &err), &err);
    CHECK_OK(regions_remove(regions, &other, "b", &err), &err);
    CHECK_INT(put_for(&other, "b", 1), ROPED_BUSY); /* it is still held */
    regions_give(regions, held);
    CHECK_OK(put_for(&other, "b", 1), &err);
    CHECK_INT(put_for(&other, "c", 1), ROPED_BUSY);
    CHECK_TEXT(err.text,
               "region 'c': 'other' has 2 regions, tables and programs, "
               "expected fewer than the quota, 2; DELETE one");
    CHECK_OK(put_for(&other, "b", 2), &err); /* in place of another */
    CHECK_INT(create_for(&other, "d", BUDGET + 1, &held), ROPED_TOO_LARGE);
    CHECK_OK(regions_remove(regions, &other, "a", &err), &err);
    CHECK_OK(regions_remove(regions, &other, "b", &err), &err);
    CHECK_INT(atomic_load(&other.names), 0);
    CHECK_INT(atomic_load(&other.bytes), 0);
    close_regions();
}

/* A device without room gives the quota back too. */
TEST(a_refused_region_takes_nothing_of_the_quota)
{
    struct region *region;
    open_regions();
    put("all", BUDGET);
    CHECK_INT(create_for(&other, "a", 1, &region), ROPED_BUSY);
    CHECK_CONTAINS(err.text, "region_memory");
    CHECK_INT(atomic_load(&other.bytes), 0);
    close_regions();
}

TEST(a_region_that_was_not_written_is_not_listed)
{
    struct region_info info = {.tenant = &tenant, .name = "a", .bytes = 8};
    struct region *region, *found;
    open_regions();
    CHECK_OK(regions_create(regions, &info, &region, &err), &err);
    CHECK_INT(regions_publish(regions, region, NULL, &err), ROPED_INTERNAL);
    CHECK_CONTAINS(err.text, "region 'a' holds what was in its memory before");
    CHECK_INT(regions_take(regions, &tenant, "a", &found, &err),
              ROPED_NO_REGION);
    region_set_written(region);
    CHECK_OK(regions_publish(regions, region, NULL, &err), &err);
    regions_give(regions, region);
    close_regions();
}

/* ---------------------------------------------------------------- threads */

enum { N_THREADS = 4 };

/* Takes a region of three names, looks at it, gives it back. */
static void *use_regions(void *context)
{
    static const char *const names[] = {"a", "b", "c"};
    struct roped_error why;
    intptr_t n_wrong = 0;
    int n = check_cases(4000);
    (void)context;
    for (int i = 0; i < n; i++) {
        struct region *region;
        if (regions_take(regions, &tenant, names[i % 3], &region, &why))
            continue;
        const struct region_info *info = region_info(region);
        n_wrong += region_data(region)[0] != info->name[0] ||
                   region_data(region)[info->bytes - 1] != info->name[0];
        regions_give(regions, region);
    }
    return (void *)n_wrong;
}

/* Replaces and removes them meanwhile; contents are there before the name. */
TEST(regions_come_and_go_under_their_users)
{
    static const char *const names[] = {"a", "b", "c"};
    pthread_t threads[N_THREADS];
    struct region *region;
    void *n_wrong;
    open_regions();
    for (int i = 0; i < N_THREADS; i++)
        pthread_create(&threads[i], NULL, use_regions, NULL);
    int n = check_cases(4000);
    for (int i = 0; i < n; i++) {
        const char *name = names[i % 3];
        uint64_t bytes = 1 + (uint64_t)i % 500;
        CHECK_OK(create(name, bytes, &region), &err);
        memset(region_data(region), name[0], bytes);
        CHECK_OK(regions_publish(regions, region, NULL, &err), &err);
        regions_give(regions, region);
        if (i % 5 == 0)
            CHECK_OK(regions_remove(regions, &tenant, name, &err), &err);
    }
    for (int i = 0; i < N_THREADS; i++) {
        pthread_join(threads[i], &n_wrong);
        CHECK_INT((intptr_t)n_wrong, 0);
    }
    close_regions();
}

static bool note_lost(struct tenant *owner, const char *name, int kind)
{
    struct lost_name lost = {
        .tenant = owner, .kind = kind, .why = "lost at noon"};
    snprintf(lost.name, sizeof lost.name, "%s", name);
    return lost_add(regions_lost(regions), &lost);
}

static void count_lost(void *context, const struct lost_name *name)
{
    (void)name;
    ++*(int *)context;
}

TEST(a_lost_region_says_so_until_it_is_made_anew)
{
    struct region *found;
    int n = 0;
    open_regions();
    CHECK(note_lost(&tenant, "a", REGION_RESIDENT));
    CHECK(note_lost(&tenant, "b", REGION_RESIDENT));
    CHECK(note_lost(&tenant, "s", REGION_SYSTEM));
    CHECK(note_lost(&other, "s", REGION_SYSTEM));
    CHECK_INT(regions_take(regions, &tenant, "a", &found, &err),
              ROPED_REGION_LOST);
    CHECK_TEXT(err.text, "region 'a': lost at noon");
    CHECK_INT(regions_take(regions, &other, "a", &found, &err),
              ROPED_NO_REGION);
    CHECK(!put("a", 64));
    CHECK_OK(regions_take(regions, &tenant, "a", &found, &err), &err);
    regions_give(regions, found);
    CHECK_OK(regions_remove(regions, &tenant, "a", &err), &err);
    CHECK_INT(regions_remove(regions, &tenant, "a", &err), ROPED_NO_REGION);
    CHECK_OK(regions_remove(regions, &tenant, "b", &err), &err);
    CHECK_INT(regions_remove(regions, &tenant, "b", &err), ROPED_NO_REGION);
    regions_unregister(regions, &tenant, REGION_SYSTEM, NULL);
    CHECK_INT(lost_check(regions_lost(regions), &tenant, "s", &err), ROPED_OK);
    CHECK_INT(lost_check(regions_lost(regions), &other, "s", &err),
              ROPED_REGION_LOST);
    regions_unregister(regions, &other, REGION_SYSTEM, "s");
    lost_each(regions_lost(regions), count_lost, &n);
    CHECK_INT(n, 0);
    close_regions();
}

TEST(there_is_a_most_of_lost_names)
{
    char name[16];
    open_regions();
    for (int i = 0; i < LOST_NAMES; i++) {
        snprintf(name, sizeof name, "r%d", i);
        CHECK(note_lost(&tenant, name, REGION_RESIDENT));
    }
    CHECK(!note_lost(&tenant, "one more", REGION_RESIDENT));
    close_regions();
}
