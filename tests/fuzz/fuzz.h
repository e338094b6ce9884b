/*
 * fuzz.h - one input of a fuzz target. A broken promise of the code under test
 * ends the process, which is what libFuzzer and the replay take for a finding.
 */
#ifndef ROPED_FUZZ_H
#define ROPED_FUZZ_H

#include "refusal.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name for it */
int LLVMFuzzerTestOneInput(const uint8_t *input, size_t bytes);

#define FUZZ_PROMISE(condition)                                                \
    do {                                                                       \
        if (!(condition)) {                                                    \
            fprintf(stderr, "%s:%d: broken: %s\n", __FILE__, __LINE__,         \
                    #condition);                                               \
            abort();                                                           \
        }                                                                      \
    } while (0)

#endif
