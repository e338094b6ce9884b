/*
 * fuzz_regions.c - any bytes as a registration of shared memory, system and
 * cuda. Promises: sizes and the device are below 2^53, and what was read, when
 * written, is read as the same again.
 */
#include "fuzz.h"

#include "wire/buffer.h"
#include "wire/kserve_region.h"

#include <string.h>

static const uint64_t size_limit = 1ull << 53;

static bool is_accepted(enum roped_status status, const struct roped_error *err)
{
    FUZZ_PROMISE(!status || is_refusal(status));
    FUZZ_PROMISE(status == ROPED_OK || err->text[0]);
    return status == ROPED_OK;
}

static void read_system(const char *json, size_t bytes)
{
    struct kserve_system_memory memory, again;
    struct roped_error err = {.text = ""};
    struct buffer buffer;
    if (!is_accepted(kserve_read_system_memory(json, bytes, &memory, &err),
                     &err))
        return;
    FUZZ_PROMISE(memchr(memory.key, '\0', sizeof memory.key) != NULL);
    FUZZ_PROMISE(memory.offset < size_limit && memory.bytes < size_limit);
    buffer_init(&buffer);
    buffer_text(&buffer, "{\"key\":");
    buffer_json_string(&buffer, memory.key);
    buffer_printf(&buffer, ",\"offset\":%llu,\"byte_size\":%llu}",
                  (unsigned long long)memory.offset,
                  (unsigned long long)memory.bytes);
    FUZZ_PROMISE(
        !kserve_read_system_memory(buffer.text, buffer.bytes, &again, &err));
    FUZZ_PROMISE(strcmp(memory.key, again.key) == 0);
    FUZZ_PROMISE(memory.offset == again.offset && memory.bytes == again.bytes);
    buffer_fini(&buffer);
}

static void write_base64(struct buffer *buffer, const unsigned char *bytes,
                         size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                 "abcdefghijklmnopqrstuvwxyz0123456789+/";
    unsigned bits = 0;
    int n_bits = 0;
    for (size_t i = 0; i < n; i++) {
        bits = (bits << 8 | bytes[i]) & 0xFFFF;
        for (n_bits += 8; n_bits >= 6; n_bits -= 6)
            buffer_append(buffer, &digits[bits >> (n_bits - 6) & 63], 1);
    }
    if (n_bits > 0)
        buffer_append(buffer, &digits[bits << (6 - n_bits) & 63], 1);
}

static void read_cuda(const char *json, size_t bytes)
{
    struct kserve_cuda_memory memory, again;
    struct roped_error err = {.text = ""};
    struct buffer buffer;
    if (!is_accepted(kserve_read_cuda_memory(json, bytes, &memory, &err), &err))
        return;
    FUZZ_PROMISE(memory.device < size_limit && memory.bytes < size_limit);
    buffer_init(&buffer);
    buffer_text(&buffer, "{\"raw_handle\":{\"b64\":\"");
    write_base64(&buffer, memory.handle, sizeof memory.handle);
    buffer_printf(&buffer, "\"},\"device_id\":%llu,\"byte_size\":%llu}",
                  (unsigned long long)memory.device,
                  (unsigned long long)memory.bytes);
    FUZZ_PROMISE(
        !kserve_read_cuda_memory(buffer.text, buffer.bytes, &again, &err));
    FUZZ_PROMISE(!memcmp(memory.handle, again.handle, sizeof memory.handle));
    FUZZ_PROMISE(memory.device == again.device && memory.bytes == again.bytes);
    buffer_fini(&buffer);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t bytes)
{
    read_system((const char *)input, bytes);
    read_cuda((const char *)input, bytes);
    return 0;
}
