/*
 * command_run.c - run: one call, from files to files.
 */
#include "file_call.h"

#include <stdlib.h>

/* Not into a file on standard output. */
static void report(const struct ropectl *ctl, const struct file_call *call,
                   const struct roped_client_result *result)
{
    cJSON *document = cJSON_CreateObject();
    cJSON *outputs = cJSON_AddArrayToObject(document, "outputs");
    for (int i = 0; i < result->n_tensors; i++)
        add_tensor(outputs, &(struct roped_client_tensor){result->name[i],
                                                          result->tensor[i]});
    add_timing(document, "timing_ms", &result->timing, 1);
    write_document(ctl, file_call_uses_stdout(call) ? stderr : stdout,
                   document);
}

int command_run(const struct ropectl *ctl, int argc, char **argv)
{
    static struct file_call call = {.command = "run"};
    struct roped_client_result result = {.n_tensors = 0};
    int code = file_call_read(&call, argc, argv);
    if (!code)
        code = file_call_send(ctl, &call, &result);
    if (!code) {
        report(ctl, &call, &result);
        code = file_call_write(&call, &result) ? EXIT_SUCCESS : EXIT_FAILURE;
    }
    roped_client_result_free(&result);
    file_call_close(&call);
    return code;
}
