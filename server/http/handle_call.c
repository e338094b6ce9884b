/*
 * handle_call.c - calls of operators and runs of programs, in either protocol.
 */
#include "http/handlers.h"
#include "http/request.h"

struct reply handle_call(struct request *request)
{
    return call_start(&request->call);
}
