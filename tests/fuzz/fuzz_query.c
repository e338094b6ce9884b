/*
 * fuzz_query.c - any lines 'name=value' as the query string of a /v1 call of
 * every operator: a byte for the operator, then the lines. Promises: nothing is
 * read outside, no parameter is taken twice, places are those of the operator,
 * and a call of what was taken resolves or is refused with a reason.
 */
#include "fuzz.h"

#include "wire/region_refs.h"

#include <string.h>

enum { MAX_LINE_BYTES = 512 };

struct query {
    const struct roped_op *op;
    struct region_refs refs;
    struct roped_call call;
};

static bool is_taken(enum roped_status status, const struct roped_error *err)
{
    FUZZ_PROMISE(!status || is_refusal(status));
    FUZZ_PROMISE(status == ROPED_OK || err->text[0]);
    FUZZ_PROMISE(status == ROPED_OK || strlen(err->text) < sizeof err->text);
    return status == ROPED_OK;
}

static bool take(struct query *query, const char *name, const char *value)
{
    const struct signature signature = signature_of_op(query->op);
    struct roped_error err = {.text = ""};
    bool is_region = true;
    if (!is_taken(region_refs_read(&query->refs, &signature, name, value,
                                   &is_region, &err),
                  &err)) {
        FUZZ_PROMISE(is_region);
        return false;
    }
    return is_region ||
           is_taken(roped_call_set_text(&query->call, name, value, &err), &err);
}

/* The first line that is refused ends it, as it does a request. */
static bool take_lines(struct query *query, const char *text, size_t bytes)
{
    const char *end = text + bytes;
    while (text < end) {
        char line[MAX_LINE_BYTES];
        const char *newline = memchr(text, '\n', (size_t)(end - text));
        size_t length = (size_t)((newline ? newline : end) - text);
        if (length >= sizeof line)
            return false;
        memcpy(line, text, length);
        line[length] = '\0';
        text += length + 1;
        char *value = line + strcspn(line, "=");
        if (*value)
            *value++ = '\0';
        if (!take(query, line, value))
            return false;
        FUZZ_PROMISE(!take(query, line, value)); /* twice */
    }
    return true;
}

static void check_ref(const struct roped_op *op, const struct region_ref *ref)
{
    FUZZ_PROMISE(ref->port >= 0);
    FUZZ_PROMISE(ref->port <
                 (ref->is_output ? roped_op_outputs(op) : roped_op_inputs(op)));
    FUZZ_PROMISE(memchr(ref->region, '\0', sizeof ref->region) != NULL);
    FUZZ_PROMISE(ref->offset <= INT64_MAX);
    FUZZ_PROMISE(ref->tensor.rank >= 0 && ref->tensor.rank <= ROPED_MAX_RANK);
    FUZZ_PROMISE(!ref->tensor.data);
    for (int i = 0; i < ref->tensor.rank; i++)
        FUZZ_PROMISE(ref->tensor.dims[i] >= 0);
}

/* Regions that are described are the call's inputs. */
static void resolve(struct query *query)
{
    struct roped_error err = {.text = ""};
    FUZZ_PROMISE(query->refs.n <= ROPED_MAX_INPUTS + ROPED_MAX_OUTPUTS);
    for (int i = 0; i < query->refs.n; i++) {
        const struct region_ref *ref = &query->refs.ref[i];
        check_ref(query->op, ref);
        if (ref->is_output || !ref->has_shape || !ref->tensor.dtype)
            continue;
        if (!is_taken(roped_call_bind(&query->call,
                                      query->op->in[ref->port].name,
                                      &ref->tensor, &err),
                      &err))
            return;
    }
    if (is_taken(roped_call_resolve(&query->call, &err), &err))
        for (int i = 0; i < query->call.n_out; i++)
            FUZZ_PROMISE(roped_tensor_bytes(&query->call.out[i]) >= 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t bytes)
{
    static struct query query;
    if (bytes < 1)
        return 0;
    query.op = roped_op_at(input[0] % roped_op_count());
    query.refs.n = 0;
    roped_call_init(&query.call, query.op);
    if (take_lines(&query, (const char *)input + 1, bytes - 1))
        resolve(&query);
    return 0;
}
