/*
 * test_tables.c - named sets and resident tables: sharing, growing, eviction.
 */
#include "check.h"
#include "exec/tables.h"
#include "unit/server/exec/fake_backend.h"

static struct roped_error err;
static struct roped_backend *backend;
static struct roped_queue *queue;
static struct tables *tables;

static void open_all(size_t budget_bytes, size_t table_bytes)
{
    struct roped_backend_options options = {.n_threads = 1};
    fake_reset();
    CHECK_OK(fake_api.open(&options, &backend, &err), &err);
    CHECK_OK(fake_api.queue_open(backend, &queue, &err), &err);
    CHECK_OK(tables_open(&fake_api, backend, budget_bytes, table_bytes, &tables,
                         &err),
             &err);
}

static void close_all(void)
{
    tables_close(tables);
    fake_api.queue_close(queue);
    fake_api.close(backend);
    CHECK_INT(atomic_load(&fake_n_live), 0);
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
    CHECK_OK(tables_use(tables, queue, &first, &a, &err), &err);
    CHECK_OK(tables_use(tables, queue, &second, &b, &err), &err);
    CHECK(a == b && first.data && first.data == second.data);
    CHECK_DOUBLE((double)first.data[0], 1, 0); /* cos 0 */
    tables_usage(tables, &usage);
    CHECK_INT(usage.builds, 1);
    CHECK_INT(usage.hits, 1);
    tables_unuse(tables, a);
    tables_unuse(tables, b);
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
    CHECK_OK(tables_use(tables, queue, &small, &a, &err), &err);
    CHECK_OK(tables_use(tables, queue, &large, &b, &err), &err);
    CHECK(a != b && small.data[0] == 1);
    tables_usage(tables, &usage);
    CHECK_INT(usage.n_resident, 1);
    tables_unuse(tables, a);
    tables_unuse(tables, b);
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
        CHECK_OK(tables_use(tables, queue, &use, &table, &err), &err);
        CHECK(use.data != NULL);
        tables_unuse(tables, table);
    }
    tables_usage(tables, &usage);
    CHECK_INT(usage.n_resident, 2);
    CHECK_INT(usage.evictions, 3);
    close_all();
}

TEST(what_does_not_fit_is_computed_or_refused)
{
    float frequency[4];
    struct resident_table *table;
    open_all(1 << 20, 200 << 10);
    struct roped_table_use use = wish(frequency, 1, 100000);
    CHECK_OK(tables_use(tables, queue, &use, &table, &err), &err);
    CHECK(!use.data && !table);
    use.required = true;
    CHECK_INT(tables_use(tables, queue, &use, &table, &err), ROPED_TOO_LARGE);
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
            tables_use(tables, queue, &use, &table, &err);
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
    CHECK_OK(tables_put(tables, &set, &replaced, &err), &err);
    CHECK(!replaced);
    CHECK_OK(tables_take(tables, "a", &entry, &err), &err);
    set.rows = 8;
    CHECK_OK(tables_put(tables, &set, &replaced, &err), &err);
    CHECK(replaced);
    CHECK_INT(tables_set(entry)->rows, 7);
    CHECK_OK(tables_delete(tables, "a", &err), &err);
    CHECK_TEXT(tables_set(entry)->name, "a");
    tables_give(tables, entry);
    CHECK_INT(tables_take(tables, "a", &entry, &err), ROPED_NOT_FOUND);
    CHECK_INT(tables_delete(tables, "a", &err), ROPED_NOT_FOUND);
    close_all();
}

int main(void)
{
    RUN(a_table_is_built_once_and_shared);
    RUN(more_rows_replace_a_table_that_others_still_use);
    RUN(the_oldest_unused_table_makes_room);
    RUN(what_does_not_fit_is_computed_or_refused);
    RUN(a_build_that_fails_leaves_nothing_behind);
    RUN(named_sets_outlive_their_deletion);
    return check_done();
}
