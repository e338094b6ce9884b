/*
 * program_json.h - the document of a program: JSON to a definition, and what a
 * definition is, as JSON.
 *
 *     { "inputs":     ["x", {"name": "p", "dtype": "I64", "shape": ["n"]}],
 *       "parameters": {"eps": 1e-5, "codes": null},
 *       "steps":      [{"op": "rmsnorm", "in": {"x": "x"}, "out": {"y": "h"},
 *                       "params": {"eps": "$eps"}},
 *                      {"repeat": 64, "steps": [...]}],
 *       "outputs":    ["h"] }
 *
 * A tensor of a step is a name, "@region", "@region:offset", or an object with
 * "name" and, of a region, "dtype", "shape" and "stride". In the steps of a
 * repeat "{i}", "{i+1}" and "{i-1}" in names stand for the number of the round,
 * from 0.
 */
#ifndef ROPED_WIRE_PROGRAM_JSON_H
#define ROPED_WIRE_PROGRAM_JSON_H

#include "wire/buffer.h"

#include <roped/program.h>

/* Is this what programs are called? ROPED_INVALID for operators' names too. */
ROPED_MUST_CHECK enum roped_status
program_json_check_name(const char *name, struct roped_error *err);

/* A definition that is ended, to be freed with roped_program_free. */
ROPED_MUST_CHECK enum roped_status program_json_read(const char *text,
                                                     size_t bytes,
                                                     struct roped_program **out,
                                                     struct roped_error *err);

/* Appends members of an object: "steps":2,"inputs":[...],"outputs":[...],
 * "parameters":{...},"regions":[...]. */
void program_json_write(struct buffer *buffer,
                        const struct roped_program *program);

#endif
