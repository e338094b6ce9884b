/*
 * nearest.h - which of several words was meant by one that is none of them:
 * offer each, then ask. Another library's name for it comes first ("epsilon" is
 * "eps"). Else a word is near where at most a third of its letters, or
 * one, but not all, are changed, added, left out, or swapped with the next one;
 * nothing is suggested from farther away.
 */
#ifndef ROPED_NEAREST_H
#define ROPED_NEAREST_H

#include <roped/status.h>

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { ROPED_NEAREST_BYTES = 64 };

/* Starts as {.word = what was given}; word is not owned. */
struct roped_nearest {
    const char *word;
    char found[ROPED_NEAREST_BYTES]; /* the nearest so far, or "" */
    int distance;
};

/* known stands for the word if it is nearer than those before it. */
ROPED_API void roped_nearest_offer(struct roped_nearest *nearest,
                                   const char *known);

/* "; did you mean 'rope'?" in text, or "" where nothing is near. */
ROPED_API const char *roped_nearest_text(const struct roped_nearest *nearest,
                                         char *text, size_t text_bytes);

#ifdef __cplusplus
}
#endif

#endif
