/*
 * test_tenants.c - who owns names, and quotas that many threads take of.
 */
#include "exec/tenants.h"

#include "check.h"

#include <pthread.h>

static struct roped_error err;
static struct tenants *tenants;

TEST(a_tenant_is_made_once_and_found)
{
    struct tenant *a, *again;
    CHECK_OK(tenants_open(&tenants, &err), &err);
    CHECK_INT(tenants_count(tenants), 1);
    CHECK(tenants_find(tenants, "") == tenants_nameless(tenants));
    CHECK(!tenants_find(tenants, "a"));
    CHECK_OK(tenants_get(tenants, "a", &a, &err), &err);
    CHECK_OK(tenants_get(tenants, "a", &again, &err), &err);
    CHECK(a == again && a == tenants_find(tenants, "a"));
    CHECK(a == tenants_at(tenants, 1));
    CHECK_INT(tenants_count(tenants), 2);
    CHECK_TEXT(a->name, "a");
    CHECK(atomic_load(&a->most_bytes) == UINT64_MAX);
    tenants_close(tenants);
}

TEST(there_is_a_most_of_tenants)
{
    struct tenant *tenant;
    char name[16];
    CHECK_OK(tenants_open(&tenants, &err), &err);
    for (int i = 1; i < 4096; i++) {
        snprintf(name, sizeof name, "t%d", i);
        CHECK_OK(tenants_get(tenants, name, &tenant, &err), &err);
    }
    CHECK_INT(tenants_get(tenants, "more", &tenant, &err), ROPED_NO_MEMORY);
    CHECK_CONTAINS(err.text, "tenant 'more', or 4096 there already");
    CHECK_OK(tenants_get(tenants, "t7", &tenant, &err), &err);
    tenants_close(tenants);
}

TEST(everyone_sees_all_and_others_their_own)
{
    struct tenant a = {.name = "a"}, b = {.name = "b"};
    CHECK(tenant_sees(&a, &a));
    CHECK(!tenant_sees(&a, &b));
    CHECK(tenant_sees(&tenant_everyone, &a));
    CHECK(!tenant_sees(&a, &tenant_everyone));
    CHECK(tenant_compare(&a, "x", &b, "x") < 0);
    CHECK(tenant_compare(&b, "w", &a, "x") < 0);
    CHECK_INT(tenant_compare(&b, "x", &b, "x"), 0);
}

TEST(a_quota_that_was_lowered_refuses_until_there_is_room)
{
    struct tenant tenant = {.name = "a", .most_bytes = 10, .most_names = 1};
    CHECK_OK(tenant_take_bytes(&tenant, 10, "r", &err), &err);
    atomic_store(&tenant.most_bytes, 5);
    CHECK_INT(tenant_take_bytes(&tenant, 1, "r", &err), ROPED_BUSY);
    CHECK_CONTAINS(err.text, "at most the 0 that are left");
    CHECK_OK(tenant_take_bytes(&tenant, 0, "r", &err), &err);
    tenant_give_bytes(&tenant, 6);
    CHECK_OK(tenant_take_bytes(&tenant, 1, "r", &err), &err);
}

enum { N_THREADS = 4, MOST = 3 };

/* Takes and gives back, and counts when there were more than may be. */
static void *take_names(void *context)
{
    struct tenant *tenant = context;
    struct roped_error why;
    intptr_t n_wrong = 0;
    int n = check_cases(20000);
    for (int i = 0; i < n; i++) {
        if (tenant_take_name(tenant, "region", "r", &why))
            continue;
        n_wrong += atomic_load(&tenant->names) > MOST;
        tenant_give_name(tenant);
    }
    return (void *)n_wrong;
}

TEST(no_two_threads_take_the_last_name)
{
    struct tenant tenant = {.name = "a", .most_names = MOST};
    pthread_t threads[N_THREADS];
    void *n_wrong;
    for (int i = 0; i < N_THREADS; i++)
        pthread_create(&threads[i], NULL, take_names, &tenant);
    for (int i = 0; i < N_THREADS; i++) {
        pthread_join(threads[i], &n_wrong);
        CHECK_INT((intptr_t)n_wrong, 0);
    }
    CHECK_INT(atomic_load(&tenant.names), 0);
}
