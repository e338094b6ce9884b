/*
 * json_arena.h - where the trees of requests are built: a fixed block per
 * thread instead of an allocation per node.
 *
 * cJSON asks for memory through global hooks, so what they do depends on state
 * of the calling thread. Between open and seal, its nodes and strings come out
 * of the thread's block, one behind the other, and from the heap where that is
 * full. The block starts over once every tree in it has been freed. A tree is
 * therefore freed by the thread that built it.
 */
#ifndef ROPED_WIRE_JSON_ARENA_H
#define ROPED_WIRE_JSON_ARENA_H

#include <stddef.h>

struct cJSON;

/* Enough for a v2 request of a dozen tensors, or a file of thirty. */
enum { JSON_ARENA_BYTES = 32 << 10 };

/* From here to the seal cJSON builds one tree on this thread. */
void json_arena_open(void);

/* The tree is built; NULL: it could not be, and nothing of it is left. */
void json_arena_seal(const struct cJSON *tree);

/* Frees a sealed tree; NULL is none. */
void json_arena_delete(struct cJSON *tree);

/* What this thread's trees take of its block now. */
size_t json_arena_used(void);

#endif
