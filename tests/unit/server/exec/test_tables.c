/*
 * test_tables.c - named sets and resident tables: sharing, growing, eviction.
 */
#include "check.h"
#include "exec/tables.h"
#include "unit/server/exec/fake_backend.h"

#include <math.h>
#include <pthread.h>

static struct roped_error err;
static struct roped_backend *backend;
static struct roped_queue *queue;
static struct resident *resident;
static struct device_memory memory;
static struct tables *tables;
static struct tenant tenant = {.most_bytes = UINT64_MAX,
                               .most_names = UINT64_MAX};

static void open_all(size_t budget_bytes, size_t table_bytes)
{
    struct roped_backend_options options = {.n_threads = 1};
    fake_reset();
    CHECK_OK(fake_api.open(&options, &backend, &err), &err);
    CHECK_OK(fake_api.queue_open(backend, &queue, &err), &err);
    memory = (struct device_memory){.api = &fake_api, .backend = backend};
    CHECK_OK(resident_open(&memory, budget_bytes, table_bytes, &resident, &err),
             &err);
    CHECK_OK(tables_open(&resident, 1, &tables, &err), &err);
}

static void close_all(void)
{
    tables_close(tables);
    resident_close(resident);
    fake_api.queue_close(queue);
    fake_api.close(backend);
    CHECK_INT(atomic_load(&fake_n_live), 0);
}

static enum roped_status put(struct tenant *owner,
                             const struct roped_angle_set *set, bool *replaced)
{
    return tables_put(tables, owner, &set, 1, replaced, &err);
}

/* Four pairs: a row is 32 bytes, the smallest table 128 KiB. */
static struct roped_table_use wish(float *frequency, float base, int64_t rows)
{
    struct roped_table_use use = {.wanted = true, .rows = rows};
    for (int i = 0; i < 4; i++)
        frequency[i] = base / (float)(i + 1);
    use.angles.n_pairs = 4;
    use.angles.attention_factor = 1;
    use.angles.frequency.f32 = frequency;
    return use;
}

TEST(a_table_is_built_once_and_shared)
{
    float frequency[4];
    struct resident_table *a, *b;
    struct tables_usage usage;
    open_all(1 << 20, 1 << 20);
    struct roped_table_use first = wish(frequency, 1, 10);
    struct roped_table_use second = wish(frequency, 1, 4000);
    CHECK_OK(resident_use(resident, queue, &first, &a, &err), &err);
    CHECK_OK(resident_use(resident, queue, &second, &b, &err), &err);
    CHECK(a == b && first.data && first.data == second.data);
    CHECK_DOUBLE((double)first.data[0], 1, 0); /* cos 0 */
    tables_usage(tables, &usage);
    CHECK_INT(usage.builds, 1);
    CHECK_INT(usage.hits, 1);
    resident_unuse(resident, a);
    resident_unuse(resident, b);
    close_all();
}

TEST(more_rows_replace_a_table_that_others_still_use)
{
    float frequency[4];
    struct resident_table *a, *b;
    struct tables_usage usage;
    open_all(1 << 20, 1 << 20);
    struct roped_table_use small = wish(frequency, 1, 10);
    struct roped_table_use large = wish(frequency, 1, 5000);
    CHECK_OK(resident_use(resident, queue, &small, &a, &err), &err);
    CHECK_OK(resident_use(resident, queue, &large, &b, &err), &err);
    CHECK(a != b && small.data[0] == 1);
    tables_usage(tables, &usage);
    CHECK_INT(usage.n_resident, 1);
    resident_unuse(resident, a);
    resident_unuse(resident, b);
    close_all();
}

TEST(the_oldest_unused_table_makes_room)
{
    float frequency[4];
    struct resident_table *table;
    struct tables_usage usage;
    open_all(300 << 10, 300 << 10); /* two of the smallest */
    for (int i = 0; i < 5; i++) {
        struct roped_table_use use = wish(frequency, (float)(i + 1), 10);
        CHECK_OK(resident_use(resident, queue, &use, &table, &err), &err);
        CHECK(use.data != NULL);
        resident_unuse(resident, table);
    }
    tables_usage(tables, &usage);
    CHECK_INT(usage.n_resident, 2);
    CHECK_INT(usage.evictions, 3);
    close_all();
}

static enum roped_status (*real_build)(struct roped_queue *queue,
                                       const struct roped_angles *angles,
                                       int64_t first_row, int64_t rows,
                                       float *device, struct roped_error *err);
static uint64_t most_held;

static enum roped_status watched_build(struct roped_queue *on,
                                       const struct roped_angles *angles,
                                       int64_t first_row, int64_t rows,
                                       float *device, struct roped_error *why)
{
    uint64_t held = atomic_load(&memory.held[FOR_TABLES]);
    most_held = held > most_held ? held : most_held;
    return real_build(on, angles, first_row, rows, device, why);
}

TEST(the_evicted_are_freed_before_what_takes_their_place)
{
    enum { BUDGET = 300 << 10 /* two of the smallest */ };
    float frequency[4];
    struct resident_table *table;
    open_all(BUDGET, BUDGET);
    real_build = fake_api.build_table;
    fake_api.build_table = watched_build;
    for (int i = 0; i < 5; i++) {
        struct roped_table_use use = wish(frequency, (float)(i + 1), 10);
        CHECK_OK(resident_use(resident, queue, &use, &table, &err), &err);
        resident_unuse(resident, table);
    }
    fake_api.build_table = real_build;
    CHECK_INT(most_held, 2 * 4096 * 32);
    close_all();
}

TEST(what_does_not_fit_is_computed_or_refused)
{
    float frequency[4];
    struct resident_table *table;
    open_all(1 << 20, 200 << 10);
    struct roped_table_use use = wish(frequency, 1, 100000);
    CHECK_OK(resident_use(resident, queue, &use, &table, &err), &err);
    CHECK(!use.data && !table);
    use.required = true;
    CHECK_INT(resident_use(resident, queue, &use, &table, &err),
              ROPED_TOO_LARGE);
    close_all();
}

TEST(a_build_that_fails_leaves_nothing_behind)
{
    float frequency[4];
    struct resident_table *table;
    struct tables_usage usage;
    for (int at = 1; at <= 3; at++) {
        open_all(1 << 20, 1 << 20);
        struct roped_table_use use = wish(frequency, 1, 10);
        atomic_store(&fake_fail_at, at);
        enum roped_status status =
            resident_use(resident, queue, &use, &table, &err);
        /* without memory the angles are computed; else the call fails */
        CHECK_INT(status, at == 1 ? ROPED_OK : ROPED_DEVICE);
        CHECK(!table && !use.data);
        tables_usage(tables, &usage);
        CHECK_INT(usage.n_resident, 0);
        CHECK_INT(usage.resident_bytes, 0);
        close_all();
    }
}

TEST(named_sets_outlive_their_deletion)
{
    struct roped_angle_set set = {.name = "a", .rows = 7};
    struct table_entry *entry;
    bool replaced;
    open_all(1 << 20, 1 << 20);
    roped_angle_params_init(&set.params);
    CHECK_OK(put(&tenant, &set, &replaced), &err);
    CHECK(!replaced);
    CHECK_OK(tables_take(tables, &tenant, "a", &entry, &err), &err);
    set.rows = 8;
    CHECK_OK(put(&tenant, &set, &replaced), &err);
    CHECK(replaced);
    CHECK_INT(tables_set(entry)->rows, 7);
    CHECK_OK(tables_delete(tables, &tenant, "a", &err), &err);
    CHECK_TEXT(tables_set(entry)->name, "a");
    tables_give(tables, entry);
    CHECK_INT(tables_take(tables, &tenant, "a", &entry, &err), ROPED_NO_TABLE);
    CHECK_INT(tables_delete(tables, &tenant, "a", &err), ROPED_NO_TABLE);
    close_all();
}

/* More rows than any table, up to the largest number, neither hang nor wrap. */
TEST(rows_beyond_every_table_are_computed)
{
    static const int64_t rows[] = {(1 << 24) + 1, INT64_MAX / 2 + 2, INT64_MAX};
    float frequency[4];
    struct resident_table *table;
    open_all((size_t)1 << 40, (size_t)1 << 40);
    for (int i = 0; i < 3; i++) {
        struct roped_table_use use = wish(frequency, 1, rows[i]);
        CHECK_OK(resident_use(resident, queue, &use, &table, &err), &err);
        CHECK(!use.data && !table);
        use.required = true;
        CHECK_INT(resident_use(resident, queue, &use, &table, &err),
                  ROPED_TOO_LARGE);
        CHECK_CONTAINS(err.text, "16777216 rows");
    }
    close_all();
}

/* A table that is in use stays; who insists on another one has to wait. */
TEST(a_table_in_use_is_not_evicted)
{
    float frequency[4];
    struct resident_table *held, *table;
    struct tables_usage usage;
    open_all(200 << 10, 200 << 10); /* one of the smallest */
    struct roped_table_use first = wish(frequency, 1, 10);
    CHECK_OK(resident_use(resident, queue, &first, &held, &err), &err);
    struct roped_table_use second = wish(frequency, 2, 10);
    CHECK_OK(resident_use(resident, queue, &second, &table, &err), &err);
    CHECK(!second.data && !table);
    second.required = true;
    CHECK_INT(resident_use(resident, queue, &second, &table, &err), ROPED_BUSY);
    tables_usage(tables, &usage);
    CHECK_INT(usage.evictions, 0);
    CHECK_DOUBLE((double)first.data[8], cos(1), 1e-6); /* row 1, pair 0 */
    resident_unuse(resident, held);
    CHECK_OK(resident_use(resident, queue, &second, &table, &err), &err);
    CHECK_DOUBLE((double)second.data[8], cos(2), 1e-6);
    resident_unuse(resident, table);
    close_all();
}

TEST(named_sets_are_bounded)
{
    struct roped_angle_set set = {.rows = 7};
    char name[32];
    enum roped_status status = ROPED_OK;
    int n = 0;
    open_all(1 << 20, 1 << 20);
    roped_angle_params_init(&set.params);
    set.name = name;
    for (; n < 100000 && !status; n++) {
        snprintf(name, sizeof name, "t%d", n);
        status = put(&tenant, &set, NULL);
    }
    CHECK_INT(status, ROPED_BUSY);
    CHECK_INT(n, 4096 + 1);
    set.name = "t0"; /* replacing needs no room */
    CHECK_OK(put(&tenant, &set, NULL), &err);
    CHECK_OK(tables_delete(tables, &tenant, "t1", &err), &err);
    set.name = name;
    CHECK_OK(put(&tenant, &set, NULL), &err);
    close_all();
}

TEST(sets_of_one_put_are_stored_together_or_not_at_all)
{
    static struct tenant other = {
        .name = "other", .most_bytes = UINT64_MAX, .most_names = 2};
    struct roped_angle_set sets[] = {
        {.name = "a"}, {.name = "b"}, {.name = "c"}};
    const struct roped_angle_set *all[] = {&sets[0], &sets[1], &sets[2]};
    struct table_entry *entry;
    bool replaced = true;
    open_all(1 << 20, 1 << 20);
    for (int i = 0; i < 3; i++)
        roped_angle_params_init(&sets[i].params);
    CHECK_INT(tables_put(tables, &other, all, 3, &replaced, &err), ROPED_BUSY);
    CHECK(!replaced);
    CHECK_INT(atomic_load(&other.names), 0);
    CHECK_INT(tables_take(tables, &other, "a", &entry, &err), ROPED_NO_TABLE);
    CHECK_OK(put(&other, &sets[2], NULL), &err);
    CHECK_INT(tables_put(tables, &other, all, 3, NULL, &err), ROPED_BUSY);
    CHECK_INT(atomic_load(&other.names), 1);
    CHECK_OK(tables_put(tables, &other, all + 1, 2, &replaced, &err), &err);
    CHECK(replaced);
    CHECK_INT(atomic_load(&other.names), 2);
    close_all();
}

static const char *const in_order[] = {"a", "b", "b.c", "d"};
static int n_visited;

static void visit(void *context, const struct table_info *info)
{
    const float *factors = context;
    const struct roped_angle_set *set = info->set;
    CHECK(info->tenant == &tenant);
    CHECK_TEXT(set->name, n_visited < 4 ? in_order[n_visited] : "");
    CHECK_INT(info->resident_bytes, 0);
    CHECK_INT(set->factors.count, 2);
    CHECK(set->factors.short_factor != factors); /* a copy of its own */
    CHECK_DOUBLE((double)set->factors.short_factor[1], 2, 0);
    CHECK_DOUBLE((double)set->factors.long_factor[0], 3, 0);
    n_visited++;
}

TEST(sets_are_listed_by_name_with_copies_of_their_lists)
{
    static const int made_order[] = {2, 0, 3, 1};
    float factors[4] = {1, 2, 3, 4};
    struct roped_angle_set set = {.factors = {factors, factors + 2, 2}};
    open_all(1 << 20, 1 << 20);
    roped_angle_params_init(&set.params);
    for (int i = 0; i < 4; i++) {
        set.name = in_order[made_order[i]];
        CHECK_OK(put(&tenant, &set, NULL), &err);
    }
    n_visited = 0;
    tables_each(tables, &tenant, visit, factors);
    CHECK_INT(n_visited, 4);
    close_all();
}

/* ------------------------------------------------------------ many threads */

enum { N_THREADS = 4, N_USES = 300 };

struct user {
    pthread_t thread;
    unsigned seed;
    int n_wrong, n_tables;
};

/* Tables of few keys and many lengths, more than fit: shared, grown, evicted
 * while others read them. Row 1 tells whether it is the right one. */
static void *use_tables(void *context)
{
    struct user *user = context;
    struct roped_queue *own;
    struct roped_error failure;
    float frequency[4];
    if (fake_api.queue_open(backend, &own, &failure))
        return NULL;
    for (int i = 0; i < N_USES; i++) {
        struct resident_table *table;
        user->seed = user->seed * 1103515245 + 12345;
        float base = (float)(1 + (user->seed >> 16) % 4);
        struct roped_table_use use =
            wish(frequency, base, 2 + (user->seed >> 8) % 10000);
        if (resident_use(resident, own, &use, &table, &failure)) {
            user->n_wrong++;
            continue;
        }
        if (use.data) {
            user->n_tables++;
            user->n_wrong += fabsf(use.data[8] - cosf(base)) > 1e-5f;
            user->n_wrong += isnan(use.data[8 * use.rows - 1]);
        }
        resident_unuse(resident, table);
    }
    fake_api.queue_close(own);
    return NULL;
}

TEST(threads_share_grow_and_evict_tables)
{
    struct user user[N_THREADS];
    struct tables_usage usage;
    memset(user, 0, sizeof user);
    open_all(700 << 10, 700 << 10);
    for (int i = 0; i < N_THREADS; i++) {
        user[i].seed = (unsigned)i;
        pthread_create(&user[i].thread, NULL, use_tables, &user[i]);
    }
    int n_tables = 0;
    for (int i = 0; i < N_THREADS; i++) {
        pthread_join(user[i].thread, NULL);
        CHECK_INT(user[i].n_wrong, 0);
        n_tables += user[i].n_tables;
    }
    tables_usage(tables, &usage);
    CHECK_INT((int64_t)(usage.hits + usage.builds), n_tables);
    CHECK(usage.evictions > 0);
    CHECK(usage.resident_bytes <= 700 << 10);
    close_all();
}

static void count(void *context, const struct table_info *info)
{
    (void)info;
    ++*(int *)context;
}

TEST(a_table_is_its_tenants_alone)
{
    static struct tenant other = {
        .name = "other", .most_bytes = UINT64_MAX, .most_names = 2};
    struct roped_angle_set set = {.name = "a", .rows = 7};
    struct table_entry *entry;
    bool replaced;
    int n = 0;
    open_all(1 << 20, 1 << 20);
    roped_angle_params_init(&set.params);
    CHECK_OK(put(&tenant, &set, NULL), &err);
    CHECK_INT(tables_take(tables, &other, "a", &entry, &err), ROPED_NO_TABLE);
    CHECK_INT(tables_delete(tables, &other, "a", &err), ROPED_NO_TABLE);
    set.rows = 8;
    CHECK_OK(put(&other, &set, &replaced), &err);
    CHECK(!replaced);
    CHECK_OK(tables_take(tables, &tenant, "a", &entry, &err), &err);
    CHECK_INT(tables_set(entry)->rows, 7);
    tables_give(tables, entry);
    tables_each(tables, &other, count, &n);
    CHECK_INT(n, 1);
    tables_each(tables, &tenant_everyone, count, &n);
    CHECK_INT(n, 3);
    set.name = "b";
    CHECK_OK(put(&other, &set, NULL), &err);
    set.name = "c";
    CHECK_INT(put(&other, &set, NULL), ROPED_BUSY);
    CHECK_TEXT(err.text,
               "table 'c': 'other' has 2 regions, tables and programs, "
               "expected fewer than the quota, 2; DELETE one");
    other.most_names = 1; /* as a file of tokens that is read again may say */
    CHECK_INT(put(&other, &set, NULL), ROPED_BUSY);
    CHECK_CONTAINS(err.text, "'other' has 2 regions, tables and programs, "
                             "expected fewer than the quota, 1");
    set.name = "b"; /* in place of another is no more */
    CHECK_OK(put(&other, &set, &replaced), &err);
    CHECK(replaced);
    CHECK_OK(tables_delete(tables, &other, "a", &err), &err);
    CHECK_OK(tables_delete(tables, &other, "b", &err), &err);
    CHECK_INT(atomic_load(&other.names), 0);
    close_all();
}
