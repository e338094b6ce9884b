/*
 * program_check.h - what can be said of a program before it runs, where its
 * document declares all that a run would bring: types, shapes and parameters.
 */
#ifndef ROPED_WIRE_PROGRAM_CHECK_H
#define ROPED_WIRE_PROGRAM_CHECK_H

#include <roped/program.h>

#include <stdbool.h>

/* Does a run need nothing but the inputs that the document declares? */
bool program_check_can(const struct roped_program *definition);

/*
 * Resolves every step of such a program, in roped_chain_bytes of the caller's
 * memory. Whatever can be wrong with shapes and types is; the sentence names
 * the step.
 */
ROPED_MUST_CHECK enum roped_status
program_check(const struct roped_program *definition, void *memory,
              struct roped_error *err);

#endif
