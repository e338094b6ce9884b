/*
 * program_folder.h - programs that are there from the start, so that replicas
 * agree: each NAME.json of a folder is the document of program NAME. What does
 * not end in .json, and what begins with a '.', is no document; a folder that
 * is mounted from elsewhere may have both.
 *
 * Errors name the file: "programs: 'DIR/NAME.json': step 3 (rope): ...". A path
 * of "" is no folder, and nothing is done.
 */
#ifndef ROPED_HTTP_PROGRAM_FOLDER_H
#define ROPED_HTTP_PROGRAM_FOLDER_H

#include "exec/executor.h"

/* Says all that a PUT would say of the documents, without an executor. */
ROPED_MUST_CHECK enum roped_status
program_folder_check(const char *path, struct roped_error *err);

/* Puts them, once for each tenant of a token, or for the nameless one if there
 * is no other, as if each had PUT them: their quotas count. Tenants that
 * got them before are passed over, so that this can be called again when there
 * are new ones: what somebody has deleted or replaced since stays so. */
ROPED_MUST_CHECK enum roped_status program_folder_load(const char *path,
                                                       struct executor *exec,
                                                       struct roped_error *err);

#endif
