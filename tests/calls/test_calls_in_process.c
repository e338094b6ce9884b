/*
 * test_calls_in_process.c - random calls through libroped_kernels.so, each
 * once with unwritten memory full of 0xA5 and once of 0x5A: what comes out
 * must be the same, what lies between tokens untouched. Index tensors in their
 * other type give the same bits too, or are refused.
 *   test_calls_in_process [cpu|cuda] [CALLS] [SEED]
 */
#include "calls/random_call.h"
#include "check.h"

#include <roped/library.h>
#include <roped/session.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A tensor in memory of the backend, to the byte: tools that watch memory see
 * the first access outside of it. */
struct placed {
    unsigned char *block, *data;
    size_t block_bytes, span, token, stride; /* bytes */
    size_t n;                                /* tokens */
    int shares;                              /* output: input it is, or -1 */
};

/* How a call is made, the same in all of its runs. */
struct manner {
    bool is_passing, is_trusting; /* launch_on; trust */
    int in_gap[ROPED_MAX_INPUTS], out_gap[ROPED_MAX_OUTPUTS]; /* elements */
    int lead[ROPED_MAX_INPUTS + ROPED_MAX_OUTPUTS];
    bool in_place[ROPED_MAX_OUTPUTS];
};

struct result {
    unsigned char *bytes[ROPED_MAX_OUTPUTS];
    size_t n_bytes[ROPED_MAX_OUTPUTS];
};

static const struct roped_backend_api *api;
static struct roped_backend *backend;
static struct roped_queue *queue;
static struct roped_session *session;
static struct roped_error err;
static struct random_call_counts counts;

static void must(enum roped_status status)
{
    if (!status)
        return;
    fprintf(stderr, "failed: %s\n", err.text);
    exit(EXIT_FAILURE);
}

/* ------------------------------------------------------------------ memory */

static void *backend_alloc(size_t bytes)
{
    void *memory = NULL;
    if (api->is_host)
        memory = malloc(bytes);
    else
        must(api->device_alloc(backend, bytes, &memory, &err));
    if (!memory && bytes)
        abort();
    return memory;
}

static void backend_free(void *memory)
{
    if (api->is_host)
        free(memory);
    else
        api->device_free(backend, memory);
}

static void copy_in(void *to, const void *from, size_t bytes)
{
    must(api->upload(queue, to, from, bytes, &err));
    must(api->wait(queue, &err));
}

static void copy_out(void *to, const void *from, size_t bytes)
{
    must(api->download(queue, to, from, bytes, &err));
    must(api->wait(queue, &err));
}

/* A place for a tensor whose tokens are gap elements further apart than they
 * must be, lead elements behind the start of its block. */
static struct placed place(const struct roped_tensor *tensor, int gap, int lead)
{
    size_t element = roped_dtype_bytes(tensor->dtype);
    struct placed p = {.shares = -1};
    p.n = (size_t)roped_tensor_tokens(tensor);
    p.token = (size_t)roped_tensor_token(tensor) * element;
    p.stride = p.token + (size_t)gap * element;
    if (gap == 0 || p.n == 0) {
        p.n = p.n ? 1 : 0;
        p.token = p.stride = (size_t)roped_tensor_bytes(tensor);
    }
    p.span = p.n ? (p.n - 1) * p.stride + p.token : 0;
    p.block_bytes = (size_t)lead * element + p.span;
    p.block = backend_alloc(p.block_bytes);
    p.data = p.block + (size_t)lead * element;
    return p;
}

/* Fills the block with poison, and its tokens with data, if there is any. */
static void fill_place(const struct placed *p, const void *data, int poison)
{
    unsigned char *image = malloc(p->block_bytes + 1);
    memset(image, poison, p->block_bytes);
    for (size_t i = 0; i < p->n && data; i++)
        memcpy(image + (p->data - p->block) + i * p->stride,
               (const unsigned char *)data + i * p->token, p->token);
    copy_in(p->block, image, p->block_bytes);
    free(image);
}

/* The tokens, packed; false where there is something else between them. */
static bool read_place(const struct placed *p, unsigned char *data, int poison)
{
    unsigned char *image = malloc(p->block_bytes + 1);
    bool is_clean = true;
    copy_out(image, p->block, p->block_bytes);
    for (size_t i = 0; i < p->n; i++) {
        unsigned char *token = image + (p->data - p->block) + i * p->stride;
        memcpy(data + i * p->token, token, p->token);
        memset(token, poison, p->token);
    }
    for (size_t i = 0; i < p->block_bytes && is_clean; i++)
        is_clean = image[i] == (unsigned char)poison;
    free(image);
    return is_clean;
}

/* --------------------------------------------------------------------- run */

static struct manner random_manner(const struct random_call *made,
                                   struct random_source *source)
{
    struct manner manner = {.is_passing = random_once_in(source, 4),
                            .is_trusting = random_once_in(source, 8)};
    bool has_gaps = random_once_in(source, 3);
    for (int i = 0; i < made->call.n_in + made->call.n_out; i++)
        manner.lead[i] = (int)random_int(source, 0, 3);
    for (int i = 0; i < made->call.n_in; i++) {
        const struct roped_tensor *tensor = &made->in[i];
        if (has_gaps && made->op->in[i].flags & ROPED_STRIDED)
            manner.in_gap[i] = (int)random_int(source, 1, 9);
        for (int64_t j = 0; ROPED_SET(tensor->dtype) & ROPED_INDEXES &&
                            j < roped_tensor_elements(tensor);
             j++)
            manner.is_trusting &= random_call_value(tensor, j) >= 0;
    }
    for (int i = 0; i < made->call.n_out; i++) {
        int input = roped_op_shared(made->op, i);
        manner.in_place[i] = input >= 0 && random_once_in(source, 2) &&
                             roped_tensor_given(&made->in[input]);
        if (has_gaps && made->op->out[i].flags & ROPED_STRIDED)
            manner.out_gap[i] = (int)random_int(source, 1, 9);
    }
    return manner;
}

struct run {
    const struct random_call *made;
    const struct manner *manner;
    int poison;
    struct placed in[ROPED_MAX_INPUTS], out[ROPED_MAX_OUTPUTS];
};

static void place_all(struct run *run)
{
    const struct roped_call *call = &run->made->call;
    for (int i = 0; i < call->n_in; i++) {
        if (!roped_tensor_given(&call->in[i]))
            continue;
        run->in[i] =
            place(&call->in[i], run->manner->in_gap[i], run->manner->lead[i]);
        fill_place(&run->in[i], run->made->in[i].data, run->poison);
    }
    for (int i = 0; i < call->n_out; i++) {
        int input = roped_op_shared(call->op, i);
        bool is_updated = random_call_updates(call->op, i);
        if (!roped_tensor_given(&call->out[i]))
            continue;
        if (is_updated || run->manner->in_place[i]) {
            run->out[i] = run->in[input];
            run->out[i].shares = input;
            continue;
        }
        run->out[i] = place(&call->out[i], run->manner->out_gap[i],
                            run->manner->lead[call->n_in + i]);
        fill_place(&run->out[i], NULL, run->poison);
    }
}

static void free_all(struct run *run)
{
    for (int i = 0; i < ROPED_MAX_OUTPUTS; i++)
        if (run->out[i].shares < 0 || !run->out[i].block)
            backend_free(run->out[i].block);
    for (int i = 0; i < ROPED_MAX_INPUTS; i++)
        backend_free(run->in[i].block);
}

static int64_t stride_of(const struct placed *p,
                         const struct roped_tensor *tensor, int gap)
{
    return gap && p->n ? (int64_t)(p->stride / roped_dtype_bytes(tensor->dtype))
                       : 0;
}

static enum roped_status state(const struct run *run, struct roped_work *work)
{
    const struct random_call *made = run->made;
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < made->call.n_params && !status; i++)
        if (made->has_param[i])
            status = roped_work_param(work, made->op->param[i].name,
                                      made->param[i], &err);
    for (int i = 0; i < made->call.n_in && !status; i++) {
        const struct roped_tensor *tensor = &made->in[i];
        const char *name = made->op->in[i].name;
        if (!roped_tensor_given(tensor))
            continue;
        status =
            roped_work_input(work, name, roped_dtype_name(tensor->dtype),
                             tensor->rank, tensor->dims, run->in[i].data, &err);
        if (!status)
            status = roped_work_input_stride(
                work, name,
                stride_of(&run->in[i], tensor, run->manner->in_gap[i]), &err);
    }
    if (run->manner->is_trusting)
        roped_work_trust(work);
    return status;
}

static enum roped_status launch(const struct run *run, struct roped_work *work)
{
    const struct roped_call *call = &run->made->call;
    void *data[ROPED_MAX_INPUTS + ROPED_MAX_OUTPUTS] = {NULL};
    enum roped_status status = ROPED_OK;
    if (!run->manner->is_passing)
        status = roped_work_prepare(work, &err);
    for (int i = 0; i < call->n_out && !status; i++) {
        const char *name = call->op->out[i].name;
        if (!roped_tensor_given(&call->out[i]) ||
            random_call_updates(call->op, i))
            continue;
        if (run->out[i].shares < 0)
            status = roped_work_output_stride(
                work, name,
                stride_of(&run->out[i], &call->out[i], run->manner->out_gap[i]),
                &err);
        if (!status && !run->manner->is_passing)
            status = roped_work_output(work, name, run->out[i].data, &err);
        data[call->n_in + i] = run->out[i].data;
    }
    for (int i = 0; i < call->n_in; i++)
        data[i] = run->in[i].data;
    if (status)
        return status;
    return run->manner->is_passing ? roped_work_launch_on(work, data, &err)
                                   : roped_work_launch(work, &err);
}

static bool read_all(const struct run *run, struct result *result)
{
    const struct roped_call *call = &run->made->call;
    bool is_clean = true;
    for (int i = 0; i < call->n_out; i++) {
        if (!roped_tensor_given(&call->out[i]))
            continue;
        result->n_bytes[i] = (size_t)roped_tensor_bytes(&call->out[i]);
        result->bytes[i] = malloc(result->n_bytes[i] + 1);
        is_clean &= read_place(&run->out[i], result->bytes[i], run->poison);
    }
    return is_clean;
}

/* One run; is_clean: nothing was written between tokens. */
static enum roped_status run_call(const struct random_call *made,
                                  const struct manner *manner, int poison,
                                  struct result *result, bool *is_clean)
{
    struct run run = {.made = made, .manner = manner, .poison = poison};
    struct roped_work *work = NULL;
    place_all(&run);
    must(roped_work_new(session, made->op->name, &work, &err));
    enum roped_status status = state(&run, work);
    if (!status)
        status = launch(&run, work);
    must(roped_session_wait(session, &err));
    if (!status)
        *is_clean = read_all(&run, result);
    roped_work_free(work);
    free_all(&run);
    return status;
}

/* ------------------------------------------------------------------ checks */

static void report(const struct random_call *made, int64_t seed,
                   const char *what)
{
    char text[1024];
    CHECK_FAIL("%s: %s (seed %" PRId64 "); %s", what,
               random_call_text(made, text, sizeof text), seed, err.text);
}

static bool is_same(const struct result *a, const struct result *b)
{
    for (int i = 0; i < ROPED_MAX_OUTPUTS; i++)
        if (a->n_bytes[i] != b->n_bytes[i] ||
            (a->n_bytes[i] && memcmp(a->bytes[i], b->bytes[i], a->n_bytes[i])))
            return false;
    return true;
}

static void free_result(struct result *result)
{
    for (int i = 0; i < ROPED_MAX_OUTPUTS; i++)
        free(result->bytes[i]);
}

/* Runs a call that the library takes; result is the caller's to free. */
static void check_accepted(const struct random_call *made,
                           const struct manner *manner, int64_t seed,
                           struct result *result)
{
    struct result other = {.bytes = {NULL}};
    bool is_clean = true, is_clean_too = true;
    if (run_call(made, manner, 0xA5, result, &is_clean) ||
        run_call(made, manner, 0x5A, &other, &is_clean_too))
        report(made, seed, "a planned call was refused");
    else if (!is_same(result, &other))
        report(made, seed, "outputs depend on memory that nobody wrote");
    if (!is_clean || !is_clean_too)
        report(made, seed, "something was written between tokens");
    free_result(&other);
}

/* The values are the same, so the outputs are, or the types do not go together
 * and that is said. */
static void check_widened(struct random_call *made, const struct manner *manner,
                          int64_t seed, const struct result *expected,
                          struct random_source *source)
{
    struct result found = {.bytes = {NULL}};
    bool is_clean = true;
    if (!random_call_widen(made, source) || made->status)
        return;
    if (run_call(made, manner, 0xA5, &found, &is_clean))
        report(made, seed, "a planned call was refused");
    else if (!is_same(&found, expected))
        report(made, seed, "outputs depend on the type of indexes");
    free_result(&found);
}

/* A call that the library refuses is refused in a session as well. */
static void check_refused(const struct random_call *made, int64_t seed)
{
    struct manner manner = {0};
    struct result result = {.bytes = {NULL}};
    bool is_clean = true;
    enum roped_status expected = made->status;
    struct random_call bare = *made;
    bare.call.n_out = 0; /* has no shapes */
    if (made->err.text[0] == '\0')
        report(made, seed, "refused without a word");
    if (made->status == ROPED_INTERNAL)
        report(made, seed, made->err.text);
    for (int i = 0; i < made->call.n_in; i++) {
        bare.call.in[i] = made->in[i];
        if (!made->in[i].data) /* it was refused unread, and may be huge */
            bare.call.in[i].rank = 0;
    }
    if (run_call(&bare, &manner, 0xA5, &result, &is_clean) != expected)
        report(made, seed, "a session's answer is not the library's");
    free_result(&result);
}

/* With ROPED_TEST_VERBOSE each call is said before it is made: the last line is
 * the call that did not come back. */
static void say(const struct random_call *made, int64_t seed)
{
    char text[1024];
    if (getenv("ROPED_TEST_VERBOSE"))
        fprintf(stderr, "%" PRId64 ": %s\n", seed,
                random_call_text(made, text, sizeof text));
}

/* Tables have up to 64 MiB, as those of sweeps: one of 2^31 positions may want
 * all memory that there is. Under a sanitizer or an emulator a table of a
 * million rows takes as long as a thousand calls, and its rows are filled as
 * those of a small one are. */
static bool is_slow(const struct roped_call *call)
{
    const int64_t most = check_cases(10) < 10 ? 1 << 20 : 64 << 20;
    return random_call_table_bytes(call) > most;
}

static void check_call(const struct roped_op *op, int64_t seed)
{
    struct random_source source = {(uint64_t)seed};
    struct random_call made;
    struct result result = {.bytes = {NULL}};
    random_call_make(&made, op, &source);
    random_call_count(&counts, op, !made.status);
    say(&made, seed);
    if (!made.status && random_once_in(&source, 6))
        random_call_spoil(&made, &source);
    if (made.status) {
        check_refused(&made, seed);
    } else if (!is_slow(&made.call)) {
        struct manner manner = random_manner(&made, &source);
        check_accepted(&made, &manner, seed, &result);
        check_widened(&made, &manner, seed, &result, &source);
    }
    free_result(&result);
    random_call_free(&made);
}

static int64_t n_calls, first_seed;

TEST(calls_are_refused_or_computed)
{
    for (int64_t i = 0; i < n_calls && check_failures < 20; i++)
        check_call(roped_op_at((int)(i % roped_op_count())), first_seed + i);
}

TEST(one_in_five_is_accepted)
{
    if (n_calls >= 200 * roped_op_count())
        CHECK(random_call_report(&counts));
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "cpu";
    const struct roped_backend_options options = {0};
    n_calls = argc > 2 ? strtoll(argv[2], NULL, 10) : check_calls(5500);
    first_seed = argc > 3 ? strtoll(argv[3], NULL, 10) : 1;
    api = roped_kernels_backend(name);
    if (!api || api->device_count(&err) == 0) {
        printf("skipped: no device for backend '%s'\n", name);
        return CHECK_SKIP;
    }
    must(api->open(&options, &backend, &err));
    must(api->queue_open(backend, &queue, &err));
    must(roped_session_open(name, 0, NULL, &session, &err));
    check_run();
    roped_session_close(session);
    api->queue_close(queue);
    api->close(backend);
    return check_done();
}
