/*
 * json_arena.c - the memory of trees.
 */
#include "wire/json_arena.h"

#include <cjson/cJSON.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

/* Under AddressSanitizer what is not in use cannot be touched, as on a heap. */
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#define HIDE(start, bytes) ASAN_POISON_MEMORY_REGION(start, bytes)
#define SHOW(start, bytes) ASAN_UNPOISON_MEMORY_REGION(start, bytes)
#else
#define HIDE(start, bytes) ((void)(start), (void)(bytes))
#define SHOW(start, bytes) ((void)(start), (void)(bytes))
#endif

enum { ALIGNMENT = 16 };

struct arena {
    size_t used;
    int n_trees;      /* sealed and not deleted */
    bool is_open;     /* a tree is being built */
    bool has_spilled; /* since it was last empty, some of it went to the heap */
    _Alignas(ALIGNMENT) unsigned char block[JSON_ARENA_BYTES];
};

static _Thread_local struct arena arena;

static bool is_inside(const void *pointer)
{
    const unsigned char *at = pointer;
    return at >= arena.block && at < arena.block + sizeof arena.block;
}

void *json_arena_take(size_t bytes)
{
    if (!arena.is_open)
        return malloc(bytes);
    size_t left = sizeof arena.block - arena.used;
    if (bytes > left) {
        arena.has_spilled = true;
        return malloc(bytes);
    }
    unsigned char *at = arena.block + arena.used;
    size_t taken = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    arena.used += taken < left ? taken : left;
    SHOW(at, bytes);
    return at;
}

void json_arena_give(void *pointer)
{
    if (!is_inside(pointer))
        free(pointer);
}

/* The next thread may have other variables where this one's block was. */
static pthread_key_t at_thread_exit;
static void show_block(void *block)
{
    SHOW(block, JSON_ARENA_BYTES);
}

static void hook(void)
{
    cJSON_InitHooks(&(cJSON_Hooks){json_arena_take, json_arena_give});
    (void)pthread_key_create(&at_thread_exit, show_block);
}

static void start_over(void)
{
    arena.used = 0;
    arena.has_spilled = false;
    HIDE(arena.block, sizeof arena.block);
}

void json_arena_open(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, hook);
    (void)pthread_setspecific(at_thread_exit, arena.block);
    if (arena.n_trees == 0)
        start_over();
    arena.is_open = true;
}

void json_arena_seal(const struct cJSON *tree)
{
    arena.is_open = false;
    arena.n_trees += tree != NULL;
}

void json_arena_delete(struct cJSON *tree)
{
    if (!tree)
        return;
    if (arena.has_spilled)
        cJSON_Delete(tree);
    arena.n_trees--;
    if (arena.n_trees == 0)
        start_over();
}

size_t json_arena_used(void)
{
    return arena.used;
}
