/*
 * test_programs_in_process.c - random programs through libroped_kernels.so: the
 * outputs and places of a run have the bits that separate calls give.
 *   test_programs_in_process [PROGRAMS] [SEED]
 */
#include "calls/random_program.h"
#include "check.h"

#include <roped/program.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct roped_session *session;
static struct roped_error err;
static struct random_program made;
static int64_t n_steps, n_joined; /* inputs that a step before made */

static bool is_ok(enum roped_status status, uint64_t seed)
{
    if (status)
        CHECK_FAIL("seed %" PRIu64 ": %s", seed, err.text);
    return !status;
}

static enum roped_status define_step(struct roped_program *program,
                                     const struct random_step *step)
{
    const struct roped_op *op = step->call.op;
    enum roped_status status = roped_program_step(program, op->name, &err);
    for (int i = 0; i < roped_op_params(op) && !status; i++)
        if (step->call.has_param[i])
            status = roped_step_param(program, op->param[i].name,
                                      step->call.param[i], &err);
    for (int i = 0; i < step->n_in && !status; i++) {
        const struct random_value *value = &made.value[step->in[i].value];
        n_joined += value->kind == VALUE_MADE;
        status = roped_step_in(program, op->in[step->in[i].port].name,
                               value->name, NULL, &err);
    }
    for (int i = 0; i < step->n_out && !status; i++)
        status =
            roped_step_out(program, op->out[step->out[i].port].name,
                           made.value[step->out[i].value].name, NULL, &err);
    return status;
}

static enum roped_status define(struct roped_program **out)
{
    enum roped_status status = roped_program_new(out, &err);
    for (int i = 0; i < made.n_values && !status; i++)
        if (made.value[i].kind == VALUE_INPUT)
            status = roped_program_input(*out, made.value[i].name, NULL, &err);
    for (int i = 0; i < made.n_steps && !status; i++)
        status = define_step(*out, &made.step[i]);
    for (int i = 0; i < made.n_values && !status; i++)
        if (made.value[i].is_output)
            status = roped_program_output(*out, made.value[i].name, &err);
    return status ? status : roped_program_end(*out, &err);
}

/* What the run gets of each value, and leaves there: exactly as many bytes, so
 * that a sanitizer sees the first beyond. */
static unsigned char *memory[RANDOM_VALUES];

static enum roped_status bind(struct roped_run *run)
{
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < made.n_values && !status; i++) {
        const struct random_value *value = &made.value[i];
        const struct roped_tensor *tensor = &value->tensor;
        memory[i] = malloc(value->bytes ? value->bytes : 1);
        if (value->before)
            memcpy(memory[i], value->before, value->bytes);
        else
            memset(memory[i], 0x5A, value->bytes);
        if (value->kind == VALUE_INPUT)
            status = roped_run_input(
                run, value->name, roped_dtype_name(tensor->dtype), tensor->rank,
                tensor->dims, 0, memory[i], &err);
        else if (value->kind == VALUE_PLACE)
            status = roped_run_place(
                run, value->name + 1, roped_dtype_name(tensor->dtype),
                tensor->rank, tensor->dims, memory[i], value->bytes, &err);
    }
    return status;
}

/* An output that is an updated input is in the memory of that. */
static enum roped_status place(struct roped_run *run, int value)
{
    enum roped_status status =
        roped_run_output(run, made.value[value].name, memory[value], &err);
    if (status != ROPED_INVALID ||
        !strstr(err.text, "an input that was updated"))
        return status;
    free(memory[value]);
    memory[value] = NULL;
    return ROPED_OK;
}

static void compare(uint64_t seed)
{
    for (int i = 0; i < made.n_values; i++) {
        const struct random_value *value = &made.value[i];
        bool is_seen =
            value->kind == VALUE_PLACE || (value->is_output && memory[i]);
        if (is_seen && memcmp(memory[i], value->after, value->bytes) != 0)
            CHECK_FAIL("seed %" PRIu64 ": '%s' of a program of %d steps has "
                       "other bits than separate calls give",
                       seed, value->name, made.n_steps);
    }
}

static void run(struct roped_program *program, uint64_t seed)
{
    struct roped_run *run = NULL;
    bool is_good = is_ok(roped_run_new(session, program, &run, &err), seed) &&
                   is_ok(bind(run), seed) &&
                   is_ok(roped_run_prepare(run, &err), seed);
    for (int i = 0; i < made.n_values && is_good; i++)
        if (made.value[i].is_output)
            is_good = is_ok(place(run, i), seed);
    if (is_good && is_ok(roped_run_launch(run, &err), seed) &&
        is_ok(roped_session_wait(session, &err), seed))
        compare(seed);
    roped_run_free(run);
    for (int i = 0; i < made.n_values; i++) {
        free(memory[i]);
        memory[i] = NULL;
    }
}

static void check_program(uint64_t seed)
{
    struct random_source source = {seed};
    struct roped_program *program = NULL;
    random_program_make(&made, session, ROPED_PROGRAM_INPUTS, &source);
    n_steps += made.n_steps;
    if (is_ok(define(&program), seed))
        run(program, seed);
    roped_program_free(program);
    random_program_free(&made);
}

int main(int argc, char **argv)
{
    int64_t n = argc > 1 ? strtoll(argv[1], NULL, 10) : check_calls(300);
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    session = random_program_open("cpu");
    for (int64_t i = 0; i < n && check_failures < 10; i++)
        check_program(seed + (uint64_t)i);
    random_program_close(session);
    printf("%" PRId64 " programs, %" PRId64 " steps, %" PRId64
           " inputs that a step before made\n",
           n, n_steps, n_joined);
    CHECK(n < 100 || n_joined > n_steps / 8);
    return check_done();
}
