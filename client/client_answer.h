/*
 * client_answer.h - an answer under way: what libcurl hands over is kept within
 * bounds.
 */
#ifndef ROPED_CLIENT_ANSWER_H
#define ROPED_CLIENT_ANSWER_H

#include "roped_client.h"
#include "roped_servers.h"

#include <curl/curl.h>
#include <stdbool.h>

/* What is taken of one answer beside its body: all heads, trailers included;
 * and of a refusal, in which a sentence is looked for. */
enum { MAX_HEAD_BYTES = 128 << 10, MAX_REFUSAL_BYTES = 64 << 10 };

/* Why no more of an answer is taken. */
enum stop {
    STOP_NOT,
    STOP_NO_MEMORY,
    STOP_LARGE,
    STOP_LARGE_HEAD,
    STOP_ENOUGH /* of a refusal: it is not an error */
};

/* An answer under way. */
struct incoming {
    CURL *curl;
    char *body;
    size_t bytes, capacity, head_bytes;
    bool has_head; /* the whole of it */
    int n_sent;    /* how often the request went out */
    uint64_t max_bytes;
    struct roped_client_timing timing;
    enum stop stop;
};

/* What curl calls with bytes of the body, and with each line of the head. */
size_t answer_on_body(char *data, size_t size, size_t n, void *context);
size_t answer_on_header(char *data, size_t size, size_t n, void *context);

/* What curl calls before it sends a request that may not run twice: it would
 * send it again itself, where a connection that it had kept ends. */
int answer_on_send(void *context, char *to, char *from, int to_port,
                   int from_port);

long answer_code(CURL *curl);
bool answer_is_refusal(long code);

/* By the code of a refusal, where it is one of this HTTP status; without, as
 * from a proxy, the first that has it. */
enum roped_status answer_status(long http, const char *code);

/* What became of a request that failed: whether it may be sent again. */
enum fate answer_fate(const struct incoming *in, CURLcode code, long http,
                      enum roped_status status);

#endif
