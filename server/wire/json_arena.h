/*
 * json_arena.h - where the trees of requests are built: a fixed block per
 * thread instead of an allocation per node.
 *
 * Between open and seal, nodes and strings come out of the calling thread's
 * block, one behind the other, and from the heap where that is full. The block
 * starts over once every tree in it has been freed. A tree is therefore freed
 * by the thread that built it. cJSON, which frees what is on the heap, has the
 * same two functions as its global hooks.
 */
#ifndef ROPED_WIRE_JSON_ARENA_H
#define ROPED_WIRE_JSON_ARENA_H

#include <stddef.h>

struct cJSON;

/* Enough for a v2 request of a dozen tensors, or a file of thirty. */
enum { JSON_ARENA_BYTES = 32 << 10 };

/* From here to the seal one tree is built on this thread. */
void json_arena_open(void);

/* Memory for a part of it, 16-byte aligned, or NULL; and back, where a tree
 * comes to nothing. */
void *json_arena_take(size_t bytes);
void json_arena_give(void *pointer);

/* The tree is built; NULL: it could not be, and nothing of it is left. */
void json_arena_seal(const struct cJSON *tree);

/* Frees a sealed tree; NULL is none. */
void json_arena_delete(struct cJSON *tree);

/* What this thread's trees take of its block now. */
size_t json_arena_used(void);

#endif
