/*
 * program_check.h - what can be said of a program before it runs, where its
 * document declares all that a run would bring: types, shapes and parameters.
 */
#ifndef ROPED_WIRE_PROGRAM_CHECK_H
#define ROPED_WIRE_PROGRAM_CHECK_H

#include <roped/program.h>

#include <stdbool.h>

/* Does a run need nothing but the inputs that the document declares? Are all of
 * their dims sizes, too? */
bool program_check_can(const struct roped_program *definition);
bool program_check_is_sized(const struct roped_program *definition);

/*
 * Resolves every step of such a program with sizes, in roped_chain_bytes of the
 * caller's memory. Whatever can be wrong with shapes and types is; the sentence
 * names the step.
 */
ROPED_MUST_CHECK enum roped_status
program_check(const struct roped_program *definition, void *memory,
              struct roped_error *err);

/* The same into a chain of the caller's; and the first input of that whose
 * values are index values, -1: there is none. */
ROPED_MUST_CHECK enum roped_status
program_check_chain(const struct roped_program *definition,
                    struct roped_chain *chain, struct roped_error *err);
int program_check_index(struct roped_chain *chain);

/* The types and shapes of a program's outputs, with -1 for a dim that depends
 * on sizes that have names; memory as above. False: they are not known. */
bool program_check_outputs(const struct roped_program *definition, void *memory,
                           struct roped_tensor outputs[ROPED_PROGRAM_OUTPUTS]);

#endif
