/*
 * test_rows.c - every row of bench_ops is a call that its operator takes: those
 * of the table, and of the sweep by some seeds.
 */
#include "bench/rows.h"
#include "bench/sweep.h"
#include "check.h"

static void resolve(void *context, const struct bench_row *row)
{
    static struct roped_call call;
    int *n = context;
    bench_resolve(&call, row);
    ++*n;
}

TEST(every_row_is_a_call)
{
    int n = 0;
    for (int i = 0; i < bench_n_rows; i++)
        resolve(&n, &bench_rows[i]);
    for (uint64_t seed = 1; seed <= 50; seed++) {
        sweep_models(seed, 0, resolve, &n);
        sweep_backward(seed, 0, resolve, &n);
    }
    CHECK(n > 50 * 1000);
}
