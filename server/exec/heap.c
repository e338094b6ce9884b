/*
 * heap.c - a leftist heap: of the two below a node the left one has the longer
 * way to its nearest empty place, so the way to the right is short everywhere.
 */
#include "exec/heap.h"

#include <stddef.h>

static int rank(const struct heap_node *node)
{
    return node ? node->rank : 0;
}

/* Once what is below a node has changed. */
static void settle(struct heap_node *node)
{
    struct heap_node *left = node->left;
    if (rank(left) < rank(node->right)) {
        node->left = node->right;
        node->right = left;
    }
    node->rank = rank(node->right) + 1;
}

/* As deep as two ways to the right: some 40 steps for a million nodes. */
static struct heap_node *merge(struct heap_node *a, struct heap_node *b)
{
    if (!a || !b)
        return a ? a : b;
    struct heap_node *first = b->key < a->key ? b : a;
    first->right = merge(first->right, first == a ? b : a);
    first->right->up = first;
    settle(first);
    return first;
}

void heap_push(struct heap *heap, struct heap_node *node, uint64_t key)
{
    *node = (struct heap_node){.key = key, .rank = 1};
    heap->first = merge(heap->first, node);
    heap->first->up = NULL;
}

/* Where there is a right one, there is a left one. */
struct heap_node *heap_walk(struct heap_node *node)
{
    if (node->left)
        return node->left;
    while (node->up && (!node->up->right || node->up->right == node))
        node = node->up;
    return node->up ? node->up->right : NULL;
}

void heap_remove(struct heap *heap, struct heap_node *node)
{
    struct heap_node *up = node->up, *below = merge(node->left, node->right);
    if (below)
        below->up = up;
    if (!up)
        heap->first = below;
    else if (up->left == node)
        up->left = below;
    else
        up->right = below;
    while (up) {
        int before = up->rank;
        settle(up);
        up = up->rank == before ? NULL : up->up;
    }
}
