/*
 * test_plan_bytes.c - what index tensors hold is not in the bytes of a plan: a
 * step of a program has the same plan at every position, page and slot, so that
 * its recording serves them all. Two things are: whether there are positions of
 * -1, and values of ports that say so (ROPED_PLANNED).
 *   test_plan_bytes [CALLS] [SEED]
 */
#include "calls/random_call.h"
#include "check.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static struct random_call made;

static bool is_index(const struct random_call *call, int input)
{
    return roped_tensor_given(&call->in[input]) &&
           (call->in[input].dtype == ROPED_I32 ||
            call->in[input].dtype == ROPED_I64) &&
           call->op->in[input].flags & ROPED_INDEX &&
           !(call->op->in[input].flags & ROPED_PLANNED);
}

/* One value becomes another one, or stays where the call would be refused. */
static bool change_one(int input, struct random_source *source)
{
    const struct roped_tensor *tensor = &made.in[input];
    int64_t n = roped_tensor_elements(tensor);
    if (n == 0)
        return false;
    int64_t at = random_int(source, 0, n - 1);
    int64_t before = random_call_value(tensor, at);
    int64_t after = random_int(source, 0, random_once_in(source, 2) ? 9 : 4000);
    if (before < 0 || after == before)
        return false;
    random_call_set(tensor, at, after);
    random_call_judge(&made);
    if (!made.status)
        return true;
    random_call_set(tensor, at, before);
    random_call_judge(&made);
    return false;
}

/* Changes what it can of the call's index tensors; how many values. */
static int change(struct random_source *source)
{
    int n_changed = 0;
    for (int i = 0; i < roped_op_inputs(made.op); i++)
        for (int tries = 0; is_index(&made, i) && tries < 8; tries++)
            n_changed += change_one(i, source);
    return n_changed;
}

/* Frequencies that depend on positions come with their factor of attention. */
static bool is_of_positions(void)
{
    return made.op->angles_offset != ROPED_NO_ANGLES &&
           roped_angles_depend_on_position(roped_call_angles(&made.call));
}

static int compare(const struct roped_op *op, uint64_t seed)
{
    unsigned char plan[ROPED_PLAN_BYTES];
    struct random_source source = {seed};
    random_call_make_sound(&made, op, RANDOM_FEW, &source);
    memcpy(plan, made.call.plan, sizeof plan);
    int n_changed = is_of_positions() ? 0 : change(&source);
    if (memcmp(plan, made.call.plan, sizeof plan) != 0)
        CHECK_FAIL("%s, seed %" PRIu64 ": %d other values, and other bytes in "
                   "its plan",
                   op->name, seed, n_changed);
    random_call_free(&made);
    return n_changed;
}

static bool takes_indexes(const struct roped_op *op)
{
    for (int i = 0; i < roped_op_inputs(op); i++)
        if (op->in[i].flags & ROPED_INDEX &&
            roped_op_types(op, &op->in[i]) & ROPED_INDEXES)
            return true;
    return false;
}

int main(int argc, char **argv)
{
    int n_calls = argc > 1 ? (int)strtol(argv[1], NULL, 10) : check_calls(400);
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    for (int i = 0; i < roped_op_count(); i++) {
        const struct roped_op *op = roped_op_at(i);
        int n_changed = 0;
        if (!takes_indexes(op))
            continue;
        for (int j = 0; j < n_calls; j++)
            n_changed += compare(op, seed + (uint64_t)j);
        if (n_changed < n_calls / 8)
            CHECK_FAIL("%s: %d values changed in %d calls", op->name, n_changed,
                       n_calls);
    }
    return check_done();
}
