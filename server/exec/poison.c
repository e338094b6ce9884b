/*
 * poison.c - see poison.h. An empty file in builds that are not for tests.
 */
#include "exec/poison.h"

#ifdef ROPED_POISON

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(memory, bytes)   ((void)0)
#define ASAN_UNPOISON_MEMORY_REGION(memory, bytes) ((void)0)
#endif

enum { HEAD_BYTES = 64, CHUNK_BYTES = 1 << 20 };

static unsigned char chunk[CHUNK_BYTES];
static bool is_poisoning;

static void fill_chunk(void)
{
    const char *text = getenv("ROPED_POISON");
    is_poisoning = text != NULL;
    if (text)
        memset(chunk, (int)strtol(text, NULL, 0), sizeof chunk);
}

static bool poisons(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill_chunk);
    return is_poisoning;
}

void poison_taken(void *memory, size_t bytes)
{
    ASAN_UNPOISON_MEMORY_REGION(memory, bytes);
    if (bytes && poisons())
        memset(memory, chunk[0], bytes);
}

void poison_given(void *memory, size_t bytes)
{
    poison_taken(memory, bytes);
    if (bytes > HEAD_BYTES)
        ASAN_POISON_MEMORY_REGION((char *)memory + HEAD_BYTES,
                                  bytes - HEAD_BYTES);
}

enum roped_status poison_device(const struct roped_backend_api *api,
                                struct roped_queue *queue, void *memory,
                                uint64_t bytes, struct roped_error *err)
{
    enum roped_status status = ROPED_OK;
    char *to = memory;
    if (!poisons())
        return ROPED_OK;
    for (uint64_t n; bytes > 0 && !status; bytes -= n, to += n) {
        n = bytes < CHUNK_BYTES ? bytes : CHUNK_BYTES;
        status = api->upload(queue, to, chunk, (size_t)n, err);
    }
    return status ? status : api->wait(queue, err);
}

#endif
