/*
 * client_answer.c - bodies and heads as libcurl hands them over, within bounds.
 */
#include "client_answer.h"

#include "number.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

long answer_code(CURL *curl)
{
    long code = 0;
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &code);
    return code;
}

bool answer_is_refusal(long code)
{
    return code < 200 || code > 299;
}

/* Bytes that the answer said it has; -1: it did not say. */
static curl_off_t announced(const struct incoming *in)
{
    curl_off_t bytes = -1;
    curl_easy_getinfo(in->curl, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &bytes);
    return bytes;
}

/* Room for bytes more and a NUL: for the whole answer, where its length was
 * said and there is memory for it, else twice what is needed now; for max at
 * most, which the bytes are within. */
static bool make_room(struct incoming *in, size_t bytes, uint64_t max)
{
    size_t wanted = in->bytes + bytes + 1;
    char *body = NULL;
    if (wanted <= in->capacity)
        return true;
    curl_off_t length = in->body ? -1 : announced(in);
    size_t capacity = (size_t)length + 1;
    if (length > 0 && (uint64_t)length <= max && capacity >= wanted)
        body = malloc(capacity);
    if (!body) {
        capacity = wanted <= max / 2 ? 2 * wanted : (size_t)max + 1;
        body = realloc(in->body, capacity);
    }
    if (!body)
        return false;
    in->body = body;
    in->capacity = capacity;
    return true;
}

/* Takes what is within the limit. What is left of a refusal is not read. */
size_t answer_on_body(char *data, size_t size, size_t n, void *context)
{
    struct incoming *in = context;
    bool is_refused = answer_is_refusal(answer_code(in->curl));
    uint64_t max = is_refused ? MAX_REFUSAL_BYTES : in->max_bytes;
    size_t came = size * n, bytes = came;
    if (bytes > max - in->bytes)
        bytes = (size_t)(max - in->bytes);
    if (bytes < came || (!is_refused && announced(in) > (curl_off_t)max))
        in->stop = is_refused ? STOP_ENOUGH : STOP_LARGE;
    if (in->stop == STOP_LARGE)
        return 0;
    if (!make_room(in, bytes, max)) {
        in->stop = STOP_NO_MEMORY;
        return 0;
    }
    memcpy(in->body + in->bytes, data, bytes);
    in->bytes += bytes;
    in->body[in->bytes] = '\0';
    return bytes;
}

/* Seconds of a phase in "receive;dur=0.012, queue;dur=...", which has
 * milliseconds; name has ";dur=" behind it. What is no time is 0. */
static double phase_seconds(const char *text, const char *name)
{
    const char *at = strstr(text, name);
    double ms = at ? number_read(at + strlen(name), NULL) : 0;
    return isfinite(ms) && ms > 0 ? ms * 1e-3 : 0;
}

static void read_phases(struct roped_client_timing *timing, const char *line)
{
#define PHASE(id, name, ...) timing->name = phase_seconds(line, #name ";dur=");
#define BODY_PHASE(...)      PHASE(__VA_ARGS__)
#include "phase.def"
}

size_t answer_on_header(char *data, size_t size, size_t n, void *context)
{
    struct incoming *in = context;
    char line[512];
    in->head_bytes += size * n;
    if (in->head_bytes > MAX_HEAD_BYTES) {
        in->stop = STOP_LARGE_HEAD;
        return 0;
    }
    snprintf(line, sizeof line, "%.*s", (int)(size * n), data);
    in->has_head |= line[strspn(line, "\r\n")] == '\0';
    in->has_head &=
        strncmp(line, "HTTP/", 5) != 0; /* an interim one's is not */
    if (strncasecmp(line, "Server-Timing:", 14) == 0)
        read_phases(&in->timing, line);
    return size * n;
}

int answer_on_send(void *context, char *to, char *from, int to_port,
                   int from_port)
{
    struct incoming *in = context;
    (void)to;
    (void)from;
    (void)to_port;
    (void)from_port;
    return in->n_sent++ == 0 ? CURL_PREREQFUNC_OK : CURL_PREREQFUNC_ABORT;
}

enum roped_status answer_status(long http, const char *code)
{
    static const int https[ROPED_STATUS_COUNT] = {
#define X(id, token, http, meaning) [ROPED_##id] = http,
        ROPED_STATUS_MAP(X)
#undef X
    };
    int first = http >= 500 ? ROPED_INTERNAL : ROPED_INVALID, n = 0;
    for (int i = 0; i < ROPED_STATUS_COUNT; i++) {
        if (https[i] != http)
            continue;
        if (code && strcmp(code, roped_status_token(i)) == 0)
            return (enum roped_status)i;
        first = n++ == 0 ? i : first;
    }
    return (enum roped_status)first;
}

enum fate answer_fate(const struct incoming *in, CURLcode code, long http,
                      enum roped_status status)
{
    curl_off_t connected_us = 0;
    curl_easy_getinfo(in->curl, CURLINFO_PRETRANSFER_TIME_T, &connected_us);
    if (in->stop != STOP_NOT && in->stop != STOP_ENOUGH)
        return FATE_FINAL;
    if (code != CURLE_OK && in->stop == STOP_NOT && connected_us == 0 &&
        in->n_sent == 0)
        return FATE_UNREACHED;
    if (code == CURLE_OPERATION_TIMEDOUT || code == CURLE_OUT_OF_MEMORY)
        return FATE_FINAL;
    if (code != CURLE_OK && in->stop == STOP_NOT)
        return FATE_UNKNOWN;
    if (http == 503 && (status == ROPED_BUSY || status == ROPED_DRAINING))
        return FATE_REFUSED;
    bool is_of_proxy = (http >= 502 && http <= 504) ||
                       http == 507; /* Envoy: the body was too large to keep */
    return is_of_proxy ? FATE_UNKNOWN : FATE_FINAL;
}
