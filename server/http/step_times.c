/*
 * step_times.c - "     12.345,      3.200": microseconds of every step.
 */
#include "http/step_times.h"

#include <roped/number.h>

#include <string.h>

enum { TIME_BYTES = 13 }; /* "%12.3f" and a comma, or at the end a NUL */

static void write_times(const struct call *call, char *text)
{
    for (int i = 0; i < call->steps.n; i++) {
        char *at = text + (size_t)i * TIME_BYTES;
        roped_print(at, TIME_BYTES, "%12.3f", (double)call->steps.ns[i] * 1e-3);
        if (i)
            at[-1] = ',';
    }
}

static char *text_of(const struct call *call)
{
    return (char *)(call->steps.ns + call->steps.n);
}

enum roped_status step_times_take(struct call *call, int n)
{
    size_t bytes = (size_t)n * (sizeof *call->steps.ns + TIME_BYTES);
    enum roped_status status = memory_take(exec_memory(call->service->exec),
                                           bytes, &call->times, call->error);
    if (status)
        return status;
    memset(call->times.start, 0, bytes);
    call->steps = (struct step_times){(void *)call->times.start, n};
    write_times(call, text_of(call));
    return ROPED_OK;
}

const char *step_times_text(const struct call *call)
{
    return call->steps.ns ? text_of(call) : NULL;
}

void step_times_fill(const struct call *call)
{
    static const char key[] = "\"step_us\":\"";
    char *header = (char *)call->out.start + call->answer_at;
    char *at = call->steps.ns ? memmem(header, call->answer_json_bytes, key,
                                       sizeof key - 1)
                              : NULL;
    if (!at)
        return;
    write_times(call, text_of(call));
    memcpy(at + sizeof key - 1, text_of(call),
           (size_t)call->steps.n * TIME_BYTES - 1);
}
