/*
 * heap.h - items in the order of a number: the least is first, and any may be
 * taken out. The memory is the items' own; n items take log2(n) steps.
 */
#ifndef ROPED_EXEC_HEAP_H
#define ROPED_EXEC_HEAP_H

#include <stdint.h>

struct heap_node {
    uint64_t key;
    struct heap_node *left, *right, *up;
    int rank; /* nodes on the way to the nearest place without one */
};

/* All zero: empty. Not thread-safe. */
struct heap {
    struct heap_node *first;
};

void heap_push(struct heap *heap, struct heap_node *node, uint64_t key);

/* All nodes, in no order, from the heap's first: the next one, or NULL. */
struct heap_node *heap_walk(struct heap_node *node);

/* The node is in this heap. */
void heap_remove(struct heap *heap, struct heap_node *node);

#endif
