/*
 * head.c - the start of a request: which headers count, and its framing.
 */
#include "http/head.h"

#include <string.h>
#include <strings.h>

static const struct {
    const char *name;
    size_t length;
} names[N_HEADERS] = {
/* clang-format off */
#define KNOWN(name) {name, sizeof name - 1}
    /* clang-format on */
    [HEADER_ACCEPT] = KNOWN("Accept"),
    [HEADER_ACCEPT_ENCODING] = KNOWN("Accept-Encoding"),
    [HEADER_AUTHORIZATION] = KNOWN("Authorization"),
    [HEADER_CONTENT_ENCODING] = KNOWN("Content-Encoding"),
    [HEADER_CONTENT_LENGTH] = KNOWN("Content-Length"),
    [HEADER_CONTENT_TYPE] = KNOWN("Content-Type"),
    [HEADER_EXPECT] = KNOWN("Expect"),
    [HEADER_HOST] = KNOWN("Host"),
    [HEADER_IF_MATCH] = KNOWN("If-Match"),
    [HEADER_IF_NONE_MATCH] = KNOWN("If-None-Match"),
    [HEADER_INFERENCE_LENGTH] = KNOWN("Inference-Header-Content-Length"),
    [HEADER_ORIGIN] = KNOWN("Origin"),
    [HEADER_REQUEST_HEADERS] = KNOWN("Access-Control-Request-Headers"),
    [HEADER_REQUEST_METHOD] = KNOWN("Access-Control-Request-Method"),
    [HEADER_TRACEPARENT] = KNOWN("traceparent"),
    [HEADER_TRANSFER_ENCODING] = KNOWN("Transfer-Encoding"),
    [HEADER_X_REQUEST_ID] = KNOWN("X-Request-Id")
#undef KNOWN
};

/* ----------------------------------------------------------------- target */

/* An encoded '/' or NUL would be another path once it is decoded, which the
 * library does before it calls us: a segment would end early, or split. */
static bool hides_path(const char *target)
{
    if (!strchr(target, '%')) /* as nearly all */
        return false;
    for (const char *at = target; *at && *at != '?'; at++)
        if (*at == '%' &&
            (strncasecmp(at, "%2f", 3) == 0 || strncmp(at, "%00", 3) == 0))
            return true;
    return false;
}

/* Length of "http://host:port" at the start of a target; 0: it has none. */
static size_t absolute_bytes(const char *target)
{
    if (*target == '/') /* as nearly all are */
        return 0;
    size_t scheme = strncasecmp(target, "http://", 7) == 0    ? 7
                    : strncasecmp(target, "https://", 8) == 0 ? 8
                                                              : 0;
    return scheme ? scheme + strcspn(target + scheme, "/?") : 0;
}

/* Without the spaces around it, which some libraries leave. */
static void set_authority(struct head *head, const char *text, size_t bytes)
{
    while (bytes > 0 && strchr(" \t", *text)) {
        text++;
        bytes--;
    }
    while (bytes > 0 && strchr(" \t", text[bytes - 1]))
        bytes--;
    if (bytes >= sizeof head->authority) {
        head->fault = "host of more than 263 bytes";
        return;
    }
    memcpy(head->authority, text, bytes);
    head->authority[bytes] = '\0';
}

void head_set_target(struct head *head, const char *target)
{
    size_t bytes = absolute_bytes(target);
    const char *host = bytes ? strstr(target, "://") + 3 : NULL;
    size_t host_bytes = bytes ? (size_t)(target + bytes - host) : 0;
    if (bytes && host_bytes == 0)
        head->fault = "no host in request target";
    else if (bytes)
        set_authority(head, host, host_bytes);
    head->path = hides_path(target + bytes) ? NULL : "/";
}

void head_set_path(struct head *head, const char *path)
{
    size_t bytes = absolute_bytes(path);
    if (!head->path) /* hidden */
        head->path = "";
    else
        head->path = path[bytes] || !bytes ? path + bytes : "/";
}

/* ---------------------------------------------------------------- headers */

bool head_is_of(const uint64_t set[2], const char *text, size_t bytes)
{
    uint64_t is_in = 1;
    for (size_t i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)text[i];
        is_in &= c < 128 ? set[c / 64] >> c % 64 : 0;
    }
    return is_in;
}

/* The characters of a header name. Whitespace before the colon, or a line
 * folded into the name by the library, could hide a Content-Length. */
static bool is_token(const char *name, size_t bytes)
{
    /* letters, digits and !#$%&'*+-.^_`|~ */
    static const uint64_t token[2] = {0x3ff6cfa00000000u, 0x57ffffffc7fffffeu};
    return bytes > 0 && head_is_of(token, name, bytes);
}

/* The name of a header that frames the body, and something behind it: a folded
 * line looks so to a parser that joins it to the name. */
static bool resembles_framing(const char *name, size_t bytes)
{
    static const enum header_name framing[] = {HEADER_CONTENT_LENGTH,
                                               HEADER_TRANSFER_ENCODING};
    for (size_t i = 0; i < sizeof framing / sizeof *framing; i++)
        if (bytes > names[framing[i]].length &&
            strncasecmp(name, names[framing[i]].name,
                        names[framing[i]].length) == 0)
            return true;
    return false;
}

/* An enum header_name, or N_HEADERS. */
static int find(const char *name, size_t bytes)
{
    int i = 0;
    while (i < N_HEADERS && !(names[i].length == bytes &&
                              strncasecmp(names[i].name, name, bytes) == 0))
        i++;
    return i;
}

void head_add_header(struct head *head, const char *name, size_t name_bytes,
                     const char *value, size_t value_bytes)
{
    int i = find(name, name_bytes);
    if (!is_token(name, name_bytes))
        head->fault = "invalid character in header name";
    else if (resembles_framing(name, name_bytes))
        head->fault = "header name begins like one that frames the body";
    else if (value && memchr(value, '\0', value_bytes))
        head->fault = "NUL in header value";
    if (i == N_HEADERS)
        return;
    if (head->n_known[i] == 0)
        head->known[i] = value ? value : "";
    if (i == HEADER_HOST && !head->authority[0])
        set_authority(head, head->known[i], strlen(head->known[i]));
    if (head->n_known[i] < UINT8_MAX)
        head->n_known[i]++;
}

void head_add_parameter(struct head *head, const char *name, size_t name_bytes,
                        const char *value, size_t value_bytes)
{
    if (head->n_parameters == HEAD_PARAMETERS) {
        head->fault = "more than 128 query parameters";
        return;
    }
    head->parameter[head->n_parameters++] = (struct head_parameter){
        .name = name,
        .value = value ? value : "",
        .has_nul = memchr(name, '\0', name_bytes) ||
                   (value && memchr(value, '\0', value_bytes))};
}

const char *head_value(const struct head *head, enum header_name name)
{
    return head->known[name];
}

const char *head_authority(const struct head *head)
{
    return head->authority;
}

/* ---------------------------------------------------------------- framing */

bool head_parse_length(const char *text, uint64_t *out)
{
    uint64_t value = 0;
    if (!*text)
        return false;
    for (; *text; text++) {
        if (*text < '0' || *text > '9' || value > (INT64_MAX - 9) / 10)
            return false;
        value = value * 10 + (uint64_t)(*text - '0');
    }
    *out = value;
    return true;
}

/* Those that say what the bytes of a request mean: of two, a proxy may take
 * the other. */
static enum roped_status check_single(const struct head *head,
                                      struct roped_error *err)
{
    static const enum header_name single[] = {
        HEADER_HOST, HEADER_CONTENT_ENCODING, HEADER_INFERENCE_LENGTH};
    for (size_t i = 0; i < sizeof single / sizeof *single; i++)
        if (head->n_known[single[i]] > 1)
            return roped_fail(err, ROPED_INVALID, "more than one %s",
                              names[single[i]].name);
    return ROPED_OK;
}

enum roped_status head_framing(const struct head *head, struct framing *out,
                               struct roped_error *err)
{
    const char *length = head->known[HEADER_CONTENT_LENGTH];
    const char *encoding = head->known[HEADER_TRANSFER_ENCODING];
    *out = (struct framing){.has_length = length, .is_chunked = encoding};
    if (head->fault)
        return roped_fail(err, ROPED_INVALID, "%s", head->fault);
    if (head->n_known[HEADER_CONTENT_LENGTH] +
            head->n_known[HEADER_TRANSFER_ENCODING] >
        1)
        return roped_fail(
            err, ROPED_INVALID,
            "more than one of Content-Length and Transfer-Encoding");
    if (check_single(head, err))
        return err->status;
    if (length && !head_parse_length(length, &out->content_length))
        return roped_fail(err, ROPED_INVALID, "invalid Content-Length: '%.32s'",
                          length);
    if (encoding && strcasecmp(encoding, "chunked") != 0)
        return roped_fail(err, ROPED_UNSUPPORTED,
                          "unsupported Transfer-Encoding: '%.32s', expected "
                          "chunked",
                          encoding);
    return ROPED_OK;
}
