/*
 * test_recordings.c - runs of programs that repeat a recording, on a device
 * that records calls by value: the bits are those of separate calls, what
 * differs from run to run is not in the recording, and none is repeated whose
 * memory is gone.
 */
#include "check.h"
#include "exec/program_run.h"
#include "unit/server/exec/queued_backend.h"
#include "unit/server/exec/work.h"

#include <stdlib.h>
#include <string.h>

enum { TOKENS = 2, HEAD = 16, WIDTH = 3 * HEAD, CELLS = 64, ROWS = 8192 };
enum { MAPPED = 1 << 20, IN_ORDER = 0 };

static struct roped_error err;
static struct executor *exec;
static struct program *program;

static void insist(enum roped_status status)
{
    if (!status)
        return;
    fprintf(stderr, "test_recordings: %s\n", err.text);
    exit(EXIT_FAILURE);
}

/* ------------------------------------------------------------- the program */

static struct roped_view view(int rank, int64_t a, int64_t b, int64_t c,
                              int64_t stride)
{
    return (struct roped_view){.dtype = ROPED_F32,
                               .has_shape = true,
                               .rank = rank,
                               .dims = {a, b, c},
                               .stride = stride};
}

static void in(struct roped_program *made, const char *tensor, const char *name,
               struct roped_view its)
{
    insist(roped_step_in(made, tensor, name, its.rank ? &its : NULL, &err));
}

static void out(struct roped_program *made, const char *tensor,
                const char *name)
{
    insist(roped_step_out(made, tensor, name, NULL, &err));
}

/* A layer of a decode loop: add, normalise, rotate, append, and once more a
 * norm, so that there is an intermediate too. */
static struct roped_program *define(void)
{
    static const char *const inputs[] = {"x", "positions", "slots"};
    const struct roped_view none = {.rank = 0};
    const struct roped_view rows = view(2, TOKENS, WIDTH, 0, 0),
                            heads = view(3, TOKENS, 1, HEAD, WIDTH),
                            cells = view(3, CELLS, 1, HEAD, 0),
                            weight = view(1, WIDTH, 0, 0, 0);
    struct roped_program *made;
    insist(roped_program_new(&made, &err));
    for (int i = 0; i < 3; i++)
        insist(roped_program_input(made, inputs[i], NULL, &err));
    insist(roped_program_step(made, "add_rmsnorm", &err));
    in(made, "x", "x", none);
    in(made, "residual", "@hidden", rows);
    in(made, "weight", "@weight", weight);
    out(made, "y", "@qkv");
    out(made, "residual", "@hidden");
    insist(roped_program_step(made, "rope_append", &err));
    insist(roped_step_param(made, "angles", "table", &err));
    in(made, "q", "@qkv", heads);
    in(made, "k", "@qkv:64", heads);
    in(made, "v", "@qkv:128", heads);
    in(made, "k_cache", "@keys", cells);
    in(made, "v_cache", "@values", cells);
    in(made, "slots", "slots", none);
    in(made, "positions", "positions", none);
    out(made, "q", "rotated");
    insist(roped_program_step(made, "rmsnorm", &err));
    in(made, "x", "rotated", none);
    out(made, "y", "q");
    insist(roped_program_output(made, "q", &err));
    insist(roped_program_end(made, &err));
    return made;
}

/* Places in the order in which the program names them. */
enum { HIDDEN_ROWS, WEIGHT, QKV, KEYS, VALUES, N_PLACES };
static const int64_t n_floats[N_PLACES] = {TOKENS * WIDTH, WIDTH, TOKENS *WIDTH,
                                           CELLS *HEAD, CELLS *HEAD};

static void open_exec(int n_lanes, uint64_t mapped_bytes)
{
    struct roped_backend_options backend = {.n_threads = 1};
    struct exec_options options = work_options(n_lanes, 64);
    const struct program_text text = {.name = "loop", .document = "loop"};
    options.mapped_bytes = mapped_bytes;
    options.region_bytes = 8 << 20;
    options.table_budget_bytes = options.table_bytes = 8 << 20;
    queued_reset();
    insist(exec_open(&queued_api, &backend, &options, &exec, &err));
    insist(programs_make(&text, define(), &program, &err));
}

static void close_exec(void)
{
    programs_give(exec_programs(exec), program);
    exec_drain(exec, after_ms(20000));
    exec_close(exec);
    CHECK_INT(atomic_load(&queued_n_live), 0);
}

static struct exec_device_usage usage(void)
{
    struct exec_device_usage found;
    exec_device_usage(exec, 0, &found);
    return found;
}

/* ------------------------------------------------------------- its sessions */

/* Regions of a loop, and what separate calls make of the same memory. */
struct session {
    struct region *region[N_PLACES];
    float *mirror[N_PLACES];
};

static void fill(float *to, int64_t n, uint32_t seed)
{
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        to[i] = (float)(int32_t)seed / 1e9f;
    }
}

/* The place is in other memory now, and holds what it did. */
static void move_place(struct session *session, int place)
{
    size_t bytes = (size_t)n_floats[place] * sizeof(float);
    regions_give(exec_regions(exec), session->region[place]);
    session->region[place] = work_region(exec, "place", bytes, 0);
    memcpy(region_data(session->region[place]), session->mirror[place], bytes);
}

static void open_session(struct session *session, uint32_t seed)
{
    for (int i = 0; i < N_PLACES; i++) {
        session->region[i] = NULL;
        session->mirror[i] = malloc((size_t)n_floats[i] * sizeof(float));
        fill(session->mirror[i], n_floats[i], seed + (uint32_t)i);
        move_place(session, i);
    }
}

static void close_session(struct session *session)
{
    for (int i = 0; i < N_PLACES; i++) {
        size_t bytes = (size_t)n_floats[i] * sizeof(float);
        CHECK(memcmp(region_data(session->region[i]), session->mirror[i],
                     bytes) == 0);
        regions_give(exec_regions(exec), session->region[i]);
        free(session->mirror[i]);
    }
}

/* What a step takes: memory of its own each time, so that a sanitizer sees who
 * uses it afterwards. */
struct values {
    float *x, *q;
    int64_t *positions, *slots;
};

static struct values values_of(int step, int64_t position)
{
    struct values made = {malloc(TOKENS * WIDTH * sizeof(float)),
                          malloc(TOKENS * HEAD * sizeof(float)),
                          malloc(TOKENS * sizeof(int64_t)),
                          malloc(TOKENS * sizeof(int64_t))};
    fill(made.x, TOKENS * WIDTH, (uint32_t)step * 7);
    for (int i = 0; i < TOKENS; i++) {
        made.positions[i] = position + 3 * i;
        made.slots[i] = (step + 5 * i) % CELLS;
    }
    return made;
}

static void free_values(struct values *values)
{
    free(values->x);
    free(values->q);
    free(values->positions);
    free(values->slots);
}

/* -------------------------------------------------------- by separate calls */

static float *table; /* of all rows, of the CPU backend */

static void bind(struct roped_call *call, const char *name,
                 enum roped_dtype dtype, struct roped_view its, void *data)
{
    struct roped_tensor tensor = {
        .dtype = dtype, .rank = its.rank, .stride = its.stride, .data = data};
    memcpy(tensor.dims, its.dims, sizeof tensor.dims);
    insist(roped_call_bind(call, name, &tensor, &err));
}

static void launch(struct roped_call *call)
{
    static _Thread_local unsigned char aux[1 << 14];
    struct roped_backend_options options = {.n_threads = 1};
    struct roped_backend *backend;
    struct roped_queue *queue;
    call->aux = aux;
    insist(roped_call_plan(call, &err));
    insist(roped_backend_cpu.open(&options, &backend, &err));
    insist(roped_backend_cpu.queue_open(backend, &queue, &err));
    if (call->table.wanted && !table) {
        table = malloc(ROWS * HEAD * sizeof *table);
        insist(roped_backend_cpu.build_table(queue, &call->table.angles, 0,
                                             ROWS, table, &err));
    }
    call->table.data = call->table.wanted ? table : NULL;
    insist(roped_backend_cpu.launch(queue, call, &err));
    insist(roped_backend_cpu.wait(queue, &err));
    roped_backend_cpu.queue_close(queue);
    roped_backend_cpu.close(backend);
}

static void by_calls(struct session *session, const struct values *values,
                     float *q)
{
    float **at = session->mirror;
    struct roped_call call;
    roped_call_init(&call, roped_op_find("add_rmsnorm"));
    bind(&call, "x", ROPED_F32, view(2, TOKENS, WIDTH, 0, 0), values->x);
    bind(&call, "residual", ROPED_F32, view(2, TOKENS, WIDTH, 0, 0),
         at[HIDDEN_ROWS]);
    bind(&call, "weight", ROPED_F32, view(1, WIDTH, 0, 0, 0), at[WEIGHT]);
    insist(roped_call_resolve(&call, &err));
    call.out[0].data = at[QKV];
    call.out[1].data = at[HIDDEN_ROWS];
    launch(&call);
    roped_call_init(&call, roped_op_find("rope_append"));
    insist(roped_call_set_text(&call, "angles", "table", &err));
    bind(&call, "q", ROPED_F32, view(3, TOKENS, 1, HEAD, WIDTH), at[QKV]);
    bind(&call, "k", ROPED_F32, view(3, TOKENS, 1, HEAD, WIDTH),
         at[QKV] + HEAD);
    bind(&call, "v", ROPED_F32, view(3, TOKENS, 1, HEAD, WIDTH),
         at[QKV] + 2 * HEAD);
    bind(&call, "k_cache", ROPED_F32, view(3, CELLS, 1, HEAD, 0), at[KEYS]);
    bind(&call, "v_cache", ROPED_F32, view(3, CELLS, 1, HEAD, 0), at[VALUES]);
    bind(&call, "slots", ROPED_I64, view(1, TOKENS, 0, 0, 0), values->slots);
    bind(&call, "positions", ROPED_I64, view(1, TOKENS, 0, 0, 0),
         values->positions);
    insist(roped_call_resolve(&call, &err));
    call.out[0].data = q;
    for (int i = 0; i < call.n_in; i++)
        if (call.op->in[i].flags & ROPED_UPDATED)
            call.out[roped_op_updates(call.op, i)].data = call.in[i].data;
    launch(&call);
    roped_call_init(&call, roped_op_find("rmsnorm"));
    bind(&call, "x", ROPED_F32, view(3, TOKENS, 1, HEAD, 0), q);
    insist(roped_call_resolve(&call, &err));
    call.out[0].data = q;
    launch(&call);
}

/* -------------------------------------------------------------- by the program
 */

static void on_done(struct exec_job *job)
{
    atomic_store((atomic_bool *)job->owner, true);
}

static void give_input(struct program_run *run, const char *name,
                       struct roped_tensor tensor)
{
    run->in_data[roped_program_find_input(program->definition, name)] =
        tensor.data;
    insist(roped_chain_input(run->chain, name, &tensor, NULL, &err));
}

/* In memory of a run before, mostly. */
static struct program_run *new_run(struct memory_block *block)
{
    if (programs_take_idle(exec_programs(exec), program, block)) {
        struct program_run *run = (void *)block->start;
        program_run_again(run);
        return run;
    }
    insist(memory_take(exec_memory(exec), program_run_bytes(program), block,
                       &err));
    return program_run_init(block->start, program);
}

static void end_run(struct program_run *run, struct memory_block *block)
{
    program_run_fini(run, exec_regions(exec), exec_tables(exec));
    programs_keep_idle(exec_programs(exec), program, block);
    memory_give(exec_memory(exec), block);
}

static struct program_run *prepared(struct session *session,
                                    struct values *values,
                                    struct memory_block *block)
{
    struct program_run *run = new_run(block);
    give_input(run, "x",
               (struct roped_tensor){.dtype = ROPED_F32,
                                     .rank = 2,
                                     .dims = {TOKENS, WIDTH},
                                     .data = values->x});
    give_input(run, "positions",
               (struct roped_tensor){.dtype = ROPED_I64,
                                     .rank = 1,
                                     .dims = {TOKENS},
                                     .data = values->positions});
    give_input(run, "slots",
               (struct roped_tensor){.dtype = ROPED_I64,
                                     .rank = 1,
                                     .dims = {TOKENS},
                                     .data = values->slots});
    for (int i = 0; i < N_PLACES; i++) {
        struct exec_place place = {.region = session->region[i]};
        const struct roped_area area = program_run_area(&place);
        run->place[i] = regions_share(exec_regions(exec), session->region[i]);
        roped_chain_place(run->chain, i,
                          &region_info(session->region[i])->tensor, &area);
    }
    insist(roped_chain_resolve(run->chain, &err));
    insist(program_run_check(run, &err));
    run->out_data[0] = values->q;
    run->is_pinned = true;
    return run;
}

/* One step both ways; is it right? */
static bool step(struct session *session, int number, int64_t position)
{
    struct exec_job *job = malloc(sizeof *job);
    struct values values = values_of(number, position);
    struct memory_block block;
    float expected[TOKENS * HEAD];
    atomic_bool is_done = false;
    exec_job_init(job);
    job->work = EXEC_PROGRAM;
    job->run = prepared(session, &values, &block);
    job->done = on_done;
    job->owner = &is_done;
    if (!exec_run_inline(exec, job))
        insist(exec_submit(exec, job, &err));
    while (!atomic_load(&is_done))
        pause_ms(1);
    CHECK_OK(job->status, &job->error);
    by_calls(session, &values, expected);
    bool is_right = memcmp(expected, values.q, sizeof expected) == 0;
    end_run(job->run, &block);
    free(job);
    free_values(&values);
    return is_right;
}

/* Steps from a position on; how many were wrong. */
static int loop(struct session *session, int n, int64_t position)
{
    int n_wrong = 0;
    for (int i = 0; i < n; i++)
        n_wrong += !step(session, i, position + i);
    return n_wrong;
}

/* ------------------------------------------------------------------- tests */

/* From 3,600 on the table is too short after 493 steps. */
static void check_loop(uint64_t mapped_bytes)
{
    struct session session;
    open_exec(1, mapped_bytes);
    open_session(&session, 1);
    CHECK_INT(loop(&session, 1000, 3600), 0);
    CHECK_INT(usage().captures, 2);
    CHECK_INT(usage().replays, 997);
    CHECK_INT(usage().fallbacks, 0);
    CHECK((mapped_bytes == 0) == (atomic_load(&queued_n_uploads) > 0));
    close_session(&session);
    close_exec();
}

TEST(a_decode_loop_is_recorded_once_and_when_its_table_grows)
{
    check_loop(MAPPED);
}

TEST(what_is_copied_to_the_device_is_at_the_same_place_each_time)
{
    check_loop(IN_ORDER);
}

TEST(regions_that_were_replaced_are_not_repeated)
{
    struct session session;
    open_exec(1, MAPPED);
    open_session(&session, 2);
    for (int round = 0; round < 25; round++) {
        CHECK_INT(loop(&session, 5, 10 * round), 0);
        move_place(&session, round % N_PLACES);
    }
    CHECK_INT(usage().captures + usage().replays + usage().fallbacks, 124);
    CHECK(usage().captures > 0 && usage().captures <= 25);
    CHECK(usage().fallbacks < 25);
    close_session(&session);
    close_exec();
}

/* A call of so many rows, which the lane needs a larger arena for. */
static void run_large(int rows)
{
    struct exec_job *job = malloc(sizeof *job);
    size_t bytes = (size_t)rows * HIDDEN * sizeof(float);
    struct roped_tensor x = {ROPED_F32, 2, {rows, HIDDEN}, calloc(1, bytes)};
    atomic_bool is_done = false;
    exec_job_init(job);
    roped_call_init(&job->call, roped_op_find("rmsnorm"));
    insist(roped_call_bind(&job->call, "x", &x, &err));
    insist(roped_call_resolve(&job->call, &err));
    job->call.out[0].data = malloc(bytes);
    job->done = on_done;
    job->owner = &is_done;
    insist(exec_submit(exec, job, &err));
    while (!atomic_load(&is_done))
        pause_ms(1);
    CHECK_OK(job->status, &job->error);
    free(job->call.out[0].data);
    free(x.data);
    free(job);
}

/* Intermediates and copies move with an arena that grows. */
TEST(an_arena_that_has_moved_is_not_repeated)
{
    struct session session;
    open_exec(1, IN_ORDER);
    open_session(&session, 3);
    CHECK_INT(loop(&session, 5, 0), 0);
    CHECK_INT(usage().captures, 1);
    for (int round = 1; round <= 2; round++) {
        run_large(round * 3072);
        CHECK_INT(loop(&session, 5, 100 * round), 0);
        CHECK_INT(usage().captures, 1 + round);
        CHECK_INT(usage().fallbacks, round);
    }
    close_session(&session);
    close_exec();
}

/* More sessions than a lane keeps recordings: the oldest go, and a lane whose
 * runs are always of another kind does not record all the time. */
TEST(recordings_are_bounded)
{
    enum { SESSIONS = 300, ROUNDS = 12 };
    static struct session session[SESSIONS];
    open_exec(1, MAPPED);
    for (int i = 0; i < SESSIONS; i++)
        open_session(&session[i], (uint32_t)i);
    int n_live = atomic_load(&queued_n_live);
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < SESSIONS; i++)
            CHECK(step(&session[i], round, round));
    CHECK(atomic_load(&queued_n_live) > n_live);
    CHECK(atomic_load(&queued_n_live) <= n_live + 256 + 2);
    CHECK(usage().captures < SESSIONS * ROUNDS / 4);
    CHECK(usage().fallbacks > 0);
    for (int i = 0; i < SESSIONS; i++)
        close_session(&session[i]);
    close_exec();
}

TEST(what_cannot_be_recorded_is_launched_in_order)
{
    struct session session;
    open_exec(1, MAPPED);
    open_session(&session, 4);
    atomic_store(&queued_cannot_record, true);
    CHECK_INT(loop(&session, 20, 0), 0);
    CHECK_INT(usage().captures, 0);
    CHECK_INT(usage().fallbacks, 19);
    atomic_store(&queued_cannot_record, false);
    CHECK_INT(loop(&session, 20, 0), 0);
    CHECK_INT(usage().captures, 1);
    close_session(&session);
    close_exec();
}

enum { THREADS = 3, THREAD_STEPS = 150 };

static void *run_loop(void *context)
{
    CHECK_INT(loop(context, THREAD_STEPS, 0), 0);
    return NULL;
}

TEST(each_lane_records_once)
{
    static struct session session[THREADS], first;
    pthread_t thread[THREADS];
    open_exec(THREADS, MAPPED);
    open_session(&first, 9);
    CHECK(step(&first, 0, 0)); /* builds the table */
    for (int i = 0; i < THREADS; i++) {
        open_session(&session[i], 20 + (uint32_t)i);
        insist(pthread_create(&thread[i], NULL, run_loop, &session[i]) == 0
                   ? ROPED_OK
                   : ROPED_NO_MEMORY);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    CHECK_INT(usage().captures, THREADS);
    CHECK_INT(usage().replays, THREADS * (THREAD_STEPS - 2));
    CHECK_INT(usage().fallbacks, 0);
    for (int i = 0; i < THREADS; i++)
        close_session(&session[i]);
    close_session(&first);
    close_exec();
    free(table);
    table = NULL;
}
