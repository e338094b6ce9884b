/*
 * json_arena.c - the memory of trees.
 */
#include "wire/json_arena.h"

#include <cjson/cJSON.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

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

/* One tree, whose root comes first. */
struct block {
    size_t used;
    int n_users;       /* of its tree; 0: it may go */
    bool has_spilled;  /* some of it went to the heap */
    bool is_v2;        /* how its text was read */
    size_t odd_number; /* of that text */
    size_t text_bytes; /* 0: not kept */
    char text[JSON_KEPT_BYTES];
    _Alignas(ALIGNMENT) unsigned char memory[JSON_ARENA_BYTES];
};

struct arena {
    struct block block[JSON_ARENA_BLOCKS];
    int next;           /* the block that has waited longest for a new tree */
    struct block *open; /* where a tree is being built; NULL: on the heap */
};

/* Made when a thread builds its first tree, freed when the thread ends. */
static _Thread_local struct arena *arena;
static pthread_key_t at_thread_exit;

static bool is_inside(const struct block *block, const void *pointer)
{
    const unsigned char *at = pointer;
    return at >= block->memory && at < block->memory + sizeof block->memory;
}

void *json_arena_take(size_t bytes)
{
    struct block *block = arena ? arena->open : NULL;
    if (!block)
        return malloc(bytes);
    size_t left = sizeof block->memory - block->used;
    if (bytes > left) {
        block->has_spilled = true;
        return malloc(bytes);
    }
    unsigned char *at = block->memory + block->used;
    size_t taken = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    block->used += taken < left ? taken : left;
    SHOW(at, bytes);
    return at;
}

void json_arena_give(void *pointer)
{
    for (int i = 0; i < JSON_ARENA_BLOCKS && arena; i++)
        if (is_inside(&arena->block[i], pointer))
            return;
    free(pointer);
}

static void hook(void)
{
    cJSON_InitHooks(&(cJSON_Hooks){json_arena_take, json_arena_give});
    (void)pthread_key_create(&at_thread_exit, free);
}

static void make_arena(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, hook);
    arena = calloc(1, sizeof *arena);
    (void)pthread_setspecific(at_thread_exit, arena);
    for (int i = 0; i < JSON_ARENA_BLOCKS && arena; i++)
        HIDE(arena->block[i].memory, JSON_ARENA_BYTES);
}

void json_arena_open(void)
{
    if (!arena)
        make_arena();
    for (int i = 0; i < JSON_ARENA_BLOCKS && arena; i++) {
        struct block *block = &arena->block[arena->next];
        arena->next = (arena->next + 1) % JSON_ARENA_BLOCKS;
        if (block->n_users > 0)
            continue;
        block->used = block->text_bytes = 0;
        block->has_spilled = false;
        arena->open = block;
        return;
    }
}

void json_arena_seal(const struct cJSON *tree)
{
    if (!arena || !arena->open)
        return;
    arena->open->n_users = tree != NULL;
    arena->open = NULL;
}

/* The block of a sealed tree; NULL: all of it is on the heap. */
static struct block *block_of(const struct cJSON *tree)
{
    for (int i = 0; i < JSON_ARENA_BLOCKS && arena; i++)
        if ((const unsigned char *)tree == arena->block[i].memory)
            return &arena->block[i];
    return NULL;
}

void json_arena_delete(const struct cJSON *tree)
{
    struct block *block = block_of(tree);
    if (!tree || (block && --block->n_users > 0))
        return;
    if (!block || block->has_spilled)
        cJSON_Delete((struct cJSON *)tree);
    if (block)
        HIDE(block->memory, sizeof block->memory);
}

void json_arena_keep(const struct cJSON *tree,
                     const struct json_reading *reading)
{
    struct block *block = block_of(tree);
    if (!block || block->has_spilled || reading->bytes > sizeof block->text)
        return;
    memcpy(block->text, reading->text, reading->bytes);
    block->text_bytes = reading->bytes;
    block->is_v2 = reading->is_v2;
    block->odd_number = reading->odd_number;
}

const struct cJSON *json_arena_find(struct json_reading *reading)
{
    for (int i = 0; i < JSON_ARENA_BLOCKS && arena; i++) {
        struct block *block = &arena->block[i];
        if (block->text_bytes == 0 || block->text_bytes != reading->bytes ||
            block->is_v2 != reading->is_v2 ||
            memcmp(block->text, reading->text, reading->bytes) != 0)
            continue;
        SHOW(block->memory, block->used);
        block->n_users++;
        reading->odd_number = block->odd_number;
        return (const struct cJSON *)block->memory;
    }
    return NULL;
}

size_t json_arena_used(void)
{
    size_t used = 0;
    for (int i = 0; i < JSON_ARENA_BLOCKS && arena; i++)
        if (arena->block[i].n_users > 0)
            used += arena->block[i].used;
    return used;
}
