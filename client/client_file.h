/*
 * client_file.h - what the client library reads of an answer.
 */
#ifndef ROPED_CLIENT_CLIENT_FILE_H
#define ROPED_CLIENT_CLIENT_FILE_H

#include "roped_client.h"

/* The tensors of a safetensors file as outputs, views into it. */
ROPED_MUST_CHECK enum roped_status
client_file_read(void *file, size_t bytes, struct roped_client_result *result,
                 struct roped_error *err);

#endif
