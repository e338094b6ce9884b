/*
 * handle_call.c - calls of operators, in either protocol.
 */
#include "http/handlers.h"
#include "http/request.h"

struct reply handle_call(struct request *request)
{
    return call_start(&request->call);
}
