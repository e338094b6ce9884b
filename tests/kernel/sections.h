/*
 * sections.h - positions on several axes, for any operator with angles. Chance
 * alone hardly ever makes sections whose sum is that of the pairs.
 */
#ifndef ROPED_TESTS_SECTIONS_H
#define ROPED_TESTS_SECTIONS_H

#include "calls/random_call.h"

/* Gives a sound call with positions a row of them for each of its sections,
 * which take turns, or are interleaved, or share axes; unless it is refused. */
void sections_add(struct random_call *made, struct random_source *source);

#endif
