/*
 * json_arena.h - where the trees of requests are built and kept: a few fixed
 * blocks per thread instead of an allocation per node.
 *
 * A tree is built in a block of the calling thread that holds none in use, and
 * on the heap where that is full or there is none. It is therefore freed by
 * the thread that built it. cJSON, which frees what is on the heap, has the
 * same two functions as its global hooks.
 *
 * What is freed stays where it is until its block is wanted. Clients send the
 * same text again and again, with other tensors behind it: who asks for the
 * tree of a text that is still there gets that, neither checked nor built
 * again. So a tree is never written to.
 */
#ifndef ROPED_WIRE_JSON_ARENA_H
#define ROPED_WIRE_JSON_ARENA_H

#include <stdbool.h>
#include <stddef.h>

struct cJSON;

enum {
    /* of one tree: a v2 request of a dozen tensors, or a file of thirty */
    JSON_ARENA_BYTES = 32 << 10,
    JSON_ARENA_BLOCKS = 4,
    JSON_KEPT_BYTES = 2 << 10 /* longest text whose tree is kept */
};

/* From here to the seal one tree is built on this thread. */
void json_arena_open(void);

/* Memory for a part of it, 16-byte aligned, or NULL; and back, where a tree
 * comes to nothing. */
void *json_arena_take(size_t bytes);
void json_arena_give(void *pointer);

/* The tree is built; NULL: it could not be, and nothing of it is left. */
void json_arena_seal(const struct cJSON *tree);

/* Frees a sealed tree; NULL is none. */
void json_arena_delete(const struct cJSON *tree);

/* What json.c knows of a text: how it was read, and its odd number. */
struct json_reading {
    const char *text;
    size_t bytes;
    bool is_v2;
    size_t odd_number;
};

/* A sealed tree is right, and stays that of its text where it can be kept. */
void json_arena_keep(const struct cJSON *tree,
                     const struct json_reading *reading);

/* The tree of the same text, read in the same way, which is in use again and
 * sets reading->odd_number; NULL: it is not there. */
const struct cJSON *json_arena_find(struct json_reading *reading);

/* What this thread's trees in use take of its blocks now. */
size_t json_arena_used(void);

#endif
