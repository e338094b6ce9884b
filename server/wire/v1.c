/*
 * v1.c - calls as safetensors files.
 */
#include "wire/v1.h"

#include "wire/safetensors.h"

struct binding {
    struct roped_call *call;
    unsigned char *data;
};

static enum roped_status bind_entry(void *context,
                                    const struct safetensors_entry *entry,
                                    struct roped_error *err)
{
    struct binding *binding = context;
    struct roped_tensor tensor = entry->tensor;
    tensor.data = binding->data ? binding->data + entry->begin : NULL;
    return roped_call_bind(binding->call, entry->name, &tensor, err);
}

enum roped_status v1_read_request(struct roped_call *call, const void *header,
                                  size_t header_bytes, uint64_t total_bytes,
                                  void *data, struct roped_error *err)
{
    struct binding binding = {call, data};
    return safetensors_read(header, header_bytes, total_bytes, bind_entry, NULL,
                            &binding, err);
}

/*
 * Widest elements first, as the reference writer does: each output then begins
 * at a multiple of its element size, which backends ask for.
 */
static int list_outputs(const struct roped_call *call, uint32_t kept,
                        struct safetensors_output outputs[ROPED_MAX_OUTPUTS],
                        int port[ROPED_MAX_OUTPUTS])
{
    int n = 0;
    for (size_t width = sizeof(int64_t); width > 0; width /= 2)
        for (int i = 0; i < call->n_out; i++) {
            if (!roped_tensor_given(&call->out[i]) || kept >> i & 1 ||
                roped_dtype_bytes(call->out[i].dtype) != width)
                continue;
            port[n] = i;
            outputs[n++] = (struct safetensors_output){call->op->out[i].name,
                                                       &call->out[i], 0};
        }
    return n;
}

enum roped_status v1_write_response_header(struct buffer *buffer,
                                           const struct roped_call *call,
                                           struct v1_wanted wanted,
                                           uint64_t offset[ROPED_MAX_OUTPUTS],
                                           uint64_t *data_bytes,
                                           struct roped_error *err)
{
    struct safetensors_output outputs[ROPED_MAX_OUTPUTS];
    int port[ROPED_MAX_OUTPUTS];
    int n = list_outputs(call, wanted.kept, outputs, port);
    const char *const metadata[][2] = {{"op", call->op->name}};
    enum roped_status status = safetensors_write_header(
        buffer, outputs, n, metadata, 1, wanted.fp8_as_u8, data_bytes, err);
    for (int i = 0; i < n && !status; i++)
        offset[port[i]] = outputs[i].offset;
    return status;
}
