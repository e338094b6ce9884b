/*
 * fuzz_safetensors.c - any bytes as a body of /v1. Promises: nothing is read
 * outside, what is accepted covers the data exactly, and can be written and
 * read again.
 */
#include "fuzz.h"
#include "of_call.h"

#include "wire/safetensors.h"
#include "wire/v1.h"

#include <string.h>

enum { MAX_SEEN = 64 };

struct seen {
    int n;
    uint64_t bytes, data_bytes;
    struct safetensors_entry entry[MAX_SEEN];
};

static enum roped_status see(void *context,
                             const struct safetensors_entry *entry,
                             struct roped_error *err)
{
    struct seen *seen = context;
    FUZZ_PROMISE(entry->begin <= entry->end);
    FUZZ_PROMISE(entry->end - entry->begin ==
                 (uint64_t)roped_tensor_bytes(&entry->tensor));
    FUZZ_PROMISE(strlen(entry->name) < sizeof entry->name);
    if (seen->n == MAX_SEEN)
        return roped_fail(err, ROPED_TOO_LARGE, "more than this test keeps");
    seen->entry[seen->n++] = *entry;
    seen->bytes += entry->end - entry->begin;
    return ROPED_OK;
}

static void write_again(const struct seen *seen)
{
    struct safetensors_output outputs[MAX_SEEN];
    struct seen again = {.n = 0};
    struct roped_error err;
    struct buffer buffer;
    uint64_t data_bytes;
    for (int i = 0; i < seen->n; i++)
        outputs[i] = (struct safetensors_output){seen->entry[i].name,
                                                 &seen->entry[i].tensor, 0};
    buffer_init(&buffer);
    FUZZ_PROMISE(!safetensors_write_header(&buffer, outputs, seen->n, NULL, 0,
                                           false, &data_bytes, &err));
    FUZZ_PROMISE(data_bytes == seen->bytes);
    FUZZ_PROMISE(!safetensors_read(buffer.text, buffer.bytes,
                                   buffer.bytes + data_bytes, see, NULL, &again,
                                   &err));
    FUZZ_PROMISE(again.n == seen->n);
    for (int i = 0; i < seen->n; i++)
        FUZZ_PROMISE(strcmp(seen->entry[i].name, again.entry[i].name) == 0);
    buffer_fini(&buffer);
}

static void call_with(const char *op, const uint8_t *input, size_t header_bytes,
                      uint64_t total_bytes)
{
    struct roped_error err;
    struct roped_call call;
    roped_call_init(&call, roped_op_find(op));
    if (v1_read_request(OF_CALL(&call), input, header_bytes, total_bytes, NULL,
                        &err) ||
        roped_call_resolve(&call, &err))
        FUZZ_PROMISE(err.status != ROPED_INTERNAL);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t bytes)
{
    struct seen seen = {.n = 0};
    struct roped_error err;
    size_t header_bytes;
    if (bytes < SAFETENSORS_PREFIX_BYTES ||
        safetensors_header_bytes(input, bytes, &header_bytes, &err))
        return 0;
    enum roped_status status =
        safetensors_read(input, header_bytes, bytes, see, NULL, &seen, &err);
    FUZZ_PROMISE(!status || is_refusal(status) || status == ROPED_TOO_LARGE);
    if (status == ROPED_OK) {
        FUZZ_PROMISE(seen.bytes == bytes - header_bytes);
        write_again(&seen);
    }
    call_with("rope", input, header_bytes, bytes);
    call_with("rope_quantize", input, header_bytes, bytes);
    call_with("rmsnorm", input, header_bytes, bytes);
    return 0;
}
