/*
 * v1.c - calls as safetensors files.
 */
#include "wire/v1.h"

#include "wire/safetensors.h"

#include <string.h>

bool v1_is_name(const char *name)
{
    return strcmp(name, ".") != 0 && strcmp(name, "..") != 0 &&
           name[strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                             "abcdefghijklmnopqrstuvwxyz0123456789._-")] ==
               '\0';
}

struct binding {
    const struct signature *signature;
    unsigned char *data;
};

static enum roped_status bind_entry(void *context,
                                    const struct safetensors_entry *entry,
                                    struct roped_error *err)
{
    struct binding *binding = context;
    struct roped_tensor tensor = entry->tensor;
    tensor.data = binding->data ? binding->data + entry->begin : NULL;
    return signature_bind(binding->signature, entry->name, &tensor, err);
}

enum roped_status v1_read_request(const struct signature *signature,
                                  const void *header, size_t header_bytes,
                                  uint64_t total_bytes, void *data,
                                  struct roped_error *err)
{
    struct binding binding = {signature, data};
    return safetensors_read(header, header_bytes, total_bytes, bind_entry, NULL,
                            &binding, err);
}

/*
 * Widest elements first, as the reference writer does: each output then begins
 * at a multiple of its element size, which backends ask for.
 */
static int list_outputs(const struct signature *signature, uint64_t kept,
                        struct roped_tensor tensors[SIGNATURE_OUTPUTS],
                        struct safetensors_output outputs[SIGNATURE_OUTPUTS],
                        int index[SIGNATURE_OUTPUTS])
{
    int n = 0, n_all = signature_count(signature, true);
    for (int i = 0; i < n_all; i++)
        if (!signature_output(signature, i, &tensors[i]))
            kept |= UINT64_C(1) << i;
    for (size_t width = sizeof(int64_t); width > 0; width /= 2)
        for (int i = 0; i < n_all; i++) {
            if (kept >> i & 1 || roped_dtype_bytes(tensors[i].dtype) != width)
                continue;
            index[n] = i;
            outputs[n++] = (struct safetensors_output){
                signature_tensor(signature, true, i), &tensors[i], 0};
        }
    return n;
}

enum roped_status v1_write_response_header(struct buffer *buffer,
                                           const struct signature *signature,
                                           struct v1_wanted wanted,
                                           uint64_t offset[SIGNATURE_OUTPUTS],
                                           uint64_t *data_bytes,
                                           struct roped_error *err)
{
    struct roped_tensor tensors[SIGNATURE_OUTPUTS];
    struct safetensors_output outputs[SIGNATURE_OUTPUTS];
    int index[SIGNATURE_OUTPUTS];
    int n = list_outputs(signature, wanted.kept, tensors, outputs, index);
    const char *const metadata[][2] = {
        {signature->op ? "op" : "program", signature->name},
        {"step_us", wanted.step_us}};
    int first = signature->name[0] ? 0 : 1, end = wanted.step_us ? 2 : 1;
    enum roped_status status = safetensors_write_header(
        buffer, outputs, n, metadata + first, end - first, wanted.fp8_as_u8,
        data_bytes, err);
    for (int i = 0; i < n && !status; i++)
        offset[index[i]] = outputs[i].offset;
    return status;
}
