/*
 * reply.c - replies: documents, refusals, work that comes first, compression.
 */
#include "http/reply.h"

#include "wire/deflate.h"

#include <string.h>

void answer_init(struct answer *answer, struct memory_pool *pool)
{
    memset(answer, 0, offsetof(struct answer, pending));
    answer->pool = pool;
    answer->errand.lane = NULL; /* the rest is cleared where there is one */
    answer->error.status = ROPED_OK;
    answer->error.text[0] = '\0';
}

int reply_code(enum roped_status status)
{
    static const int codes[ROPED_STATUS_COUNT] = {
#define X(id, token, http, meaning) [ROPED_##id] = http,
        ROPED_STATUS_MAP(X)
#undef X
    };
    return codes[status];
}

struct reply reply_bytes(int code, const char *type, const void *data,
                         size_t bytes)
{
    return (struct reply){
        .code = code, .type = type, .data = data, .bytes = bytes};
}

struct reply reply_empty(void)
{
    return reply_bytes(200, "application/json", "", 0);
}

struct reply reply_after(struct exec_job *job, reply_then_fn *then,
                         void *context)
{
    return (struct reply){.job = job, .then = then, .context = context};
}

struct reply reply_errand(struct answer *answer,
                          enum roped_status (*task)(struct exec_job *job),
                          uint64_t bytes, reply_then_fn *then, void *context)
{
    struct exec_job *job = &answer->errand;
    exec_job_init(job);
    job->work = EXEC_TASK;
    job->task = task;
    job->task_bytes = bytes;
    job->context = context;
    return reply_after(job, then, context);
}

/* ------------------------------------------------------------------- text */

/* buffer_grow_fn: from the request's own text to a block of the pool, which
 * counts against host_bytes like all that a request holds. */
static char *grow_text(struct buffer *buffer, size_t capacity)
{
    struct answer *answer = buffer->context;
    struct memory_block *block = &answer->text;
    struct roped_error err;
    size_t used = block->start ? buffer->bytes : 0;
    if (memory_extend(answer->pool, block, used, capacity, capacity, &err))
        return NULL;
    if (used == 0)
        memcpy(block->start, buffer->text, buffer->bytes);
    return (char *)block->start;
}

void reply_begin_text(struct answer *answer, struct buffer *buffer)
{
    memory_give(answer->pool, &answer->text);
    buffer_init_grow(buffer, answer->scratch, sizeof answer->scratch, grow_text,
                     answer);
}

struct reply reply_text(int code, const char *type, const struct buffer *buffer)
{
    if (buffer->has_failed) { /* even without memory a client gets a reason */
        static const char reason[] =
            "{\"error\":\"no memory for the answer (host_bytes)\","
            "\"code\":\"no_memory\"}";
        return reply_bytes(reply_code(ROPED_NO_MEMORY), "application/json",
                           reason, sizeof reason - 1);
    }
    return reply_bytes(code, type, buffer->text, buffer->bytes);
}

struct reply reply_json(const struct buffer *buffer)
{
    return reply_text(200, "application/json", buffer);
}

struct reply reply_status(struct answer *answer, const struct roped_error *err)
{
    struct buffer buffer;
    if (err != &answer->error)
        answer->error = *err;
    reply_begin_text(answer, &buffer);
    buffer_text(&buffer, "{\"error\":");
    buffer_json_string(&buffer, err->text);
    buffer_printf(&buffer, ",\"code\":\"%s\"}",
                  roped_status_token(err->status));
    return reply_text(reply_code(err->status), "application/json", &buffer);
}

/* ------------------------------------------------------------- compression */

enum { LEAST_DEFLATED = 1 << 10, MOST_DEFLATED = 64 << 20 };

bool reply_may_pack(const struct answer *answer)
{
    return deflate_accepted(answer->accepted) != DEFLATE_NONE;
}

static enum deflate_format format_of(const struct answer *answer,
                                     const struct reply *reply)
{
    if (reply->code != 200 || reply->encoding ||
        reply->bytes < LEAST_DEFLATED || reply->bytes > MOST_DEFLATED)
        return DEFLATE_NONE;
    return deflate_accepted(answer->accepted);
}

/* An errand: answer->pending, smaller. It stays as it is where there is no
 * memory for that or nothing to be gained. */
static enum roped_status deflate_pending(struct exec_job *job)
{
    struct answer *answer = job->context;
    struct reply *reply = &answer->pending;
    enum deflate_format format = format_of(answer, reply);
    struct memory_block *packed = &answer->packed;
    struct roped_error err;
    if (memory_take(answer->pool, reply->bytes, packed, &err))
        return ROPED_OK;
    size_t bytes = deflate_bytes(format, reply->data, reply->bytes,
                                 packed->start, reply->bytes - 1);
    if (bytes == 0) {
        memory_give(answer->pool, packed);
        return ROPED_OK;
    }
    reply->data = packed->start;
    reply->bytes = bytes;
    reply->encoding = deflate_name(format);
    return ROPED_OK;
}

/* Also where it could not be compressed in time. */
static struct reply take_packed(void *context)
{
    const struct answer *answer = context;
    struct reply reply = answer->pending;
    if (!reply.encoding)
        reply.encoding = deflate_name(DEFLATE_NONE); /* not once more */
    return reply;
}

struct reply reply_pack(struct answer *answer, const struct reply *reply)
{
    if (format_of(answer, reply) == DEFLATE_NONE)
        return *reply;
    answer->pending = *reply;
    return reply_errand(answer, deflate_pending, reply->bytes * REPLY_TEXT_WORK,
                        take_packed, answer);
}
