/*
 * of_call.h - a call's signature, where one is read or written on its own.
 */
#ifndef ROPED_TESTS_OF_CALL_H
#define ROPED_TESTS_OF_CALL_H

#include "wire/signature.h"

/* Lives as long as the block that it is in. */
#define OF_CALL(made)                                                          \
    (&(const struct signature){                                                \
        .name = (made)->op->name, .op = (made)->op, .call = (made)})

#endif
