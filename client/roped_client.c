/*
 * roped_client.c - one curl handle, safetensors each way. What a server sends
 * is bounded here: its heads, its answers, its words, its time.
 */
#include "roped_client.h"

#include "client_answer.h"
#include "client_file.h"
#include "printable.h"
#include "roped_servers.h"

#include <cjson/cJSON.h>
#include <curl/curl.h>
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* curl's own defaults halve the rate of large bodies */
enum { UPLOAD_BYTES = 2 << 20, DOWNLOAD_BYTES = 512 << 10 };

static const char default_url[] = "http://127.0.0.1:8000";
static const double default_timeout_seconds = 300, most_seconds = 1e9,
                    probe_seconds = 2;
static const uint64_t default_max_answer_bytes = 1 << 30,
                      most_answer_bytes = (uint64_t)1 << 62;

/* Lists of headers, by what a request is. */
enum { HEADERS_SAFE = 1, HEADERS_KEPT = 2, N_HEADERS = 4 };

struct roped_client {
    CURL *curl;
    struct curl_slist *headers[N_HEADERS];
    char *url;          /* as it was given, without a slash at its end */
    const char *socket; /* of "unix:/path" the path, else NULL */
    char *ca_file, *cert_file, *key_file; /* or NULL */
    bool has_token;
    int http_status; /* of the last answer; 0: there was none */
    double timeout_seconds;
    uint64_t max_answer_bytes;
    void (*progress)(void *context, uint64_t sent, uint64_t to_send,
                     uint64_t received, uint64_t to_receive);
    void *progress_context;
    char problem[CURL_ERROR_SIZE]; /* curl's, of the last request */
    struct roped_client **all;     /* of a list of servers, one each; or NULL */
    struct servers servers;
};

/* ---------------------------------------------------------------- clients */

static pthread_once_t curl_once = PTHREAD_ONCE_INIT;
static CURLcode curl_state;

/* Never undone: other code of the process may use curl as well. */
static void start_curl(void)
{
    curl_state = curl_global_init(CURL_GLOBAL_DEFAULT);
}

static enum roped_status no_memory(struct roped_error *err, const char *what)
{
    return roped_fail(err, ROPED_NO_MEMORY, "no memory for %s", what);
}

/* To the lists of requests that are all of what, or of every request: 0. */
static enum roped_status add_header(struct roped_client *client, int what,
                                    const char *header, struct roped_error *err)
{
    for (int i = 0; i < N_HEADERS; i++) {
        struct curl_slist **list = &client->headers[i];
        struct curl_slist *headers =
            (i & what) == what ? curl_slist_append(*list, header) : *list;
        if (!headers && (i & what) == what)
            return no_memory(err, "a header");
        *list = headers;
    }
    return ROPED_OK;
}

static enum roped_status add_name(struct roped_client *client, const char *name,
                                  struct roped_error *err)
{
    char header[256];
    for (const char *at = name; *at; at++)
        if (*at < ' ' || *at > '~')
            name = "";
    if (!name[strspn(name, " ")] || strlen(name) > 200)
        return roped_fail(err, ROPED_INVALID,
                          "the client's name is empty, too long or not in "
                          "printable ASCII, which a header can carry");
    snprintf(header, sizeof header, "X-Roped-Client: %s", name);
    return add_header(client, HEADERS_KEPT, header, err);
}

/* The first line of a file, to be freed. */
static enum roped_status read_line(const char *path, char **line,
                                   struct roped_error *err)
{
    size_t capacity = 0;
    FILE *file = fopen(path, "re");
    *line = NULL;
    errno = file ? 0 : errno;
    ssize_t bytes = file ? getline(line, &capacity, file) : -1;
    int why = errno;
    if (file)
        fclose(file);
    if (bytes > 0)
        (*line)[strcspn(*line, "\r\n")] = '\0';
    if (bytes > 0 && (*line)[0])
        return ROPED_OK;
    free(*line);
    return roped_fail(err, ROPED_INVALID, "cannot read a token from '%s': %s",
                      path, why ? strerror(why) : "its first line is empty");
}

static enum roped_status add_token(struct roped_client *client,
                                   const char *path, struct roped_error *err)
{
    char *token, *header;
    enum roped_status status = read_line(path, &token, err);
    if (status)
        return status;
    int length = asprintf(&header, "Authorization: Bearer %s", token);
    free(token);
    if (length < 0)
        return no_memory(err, "a header");
    status = add_header(client, 0, header, err);
    client->has_token = !status;
    free(header);
    return status;
}

static enum roped_status set_url(struct roped_client *client, const char *url,
                                 struct roped_error *err)
{
    bool is_path = strncmp(url, "unix:", 5) == 0;
    if (asprintf(&client->url, "%s%s",
                 is_path || strstr(url, "://") ? "" : "http://", url) < 0) {
        client->url = NULL;
        return no_memory(err, "a URL");
    }
    if (is_path)
        client->socket = client->url + 5;
    size_t length = strlen(client->url);
    if (client->url[length - 1] == '/')
        client->url[length - 1] = '\0';
    return ROPED_OK;
}

/* Copies an option that may be NULL. */
static enum roped_status keep(char **to, const char *from,
                              struct roped_error *err)
{
    *to = from ? strdup(from) : NULL;
    return from && !*to ? no_memory(err, "a client") : ROPED_OK;
}

static enum roped_status keep_files(struct roped_client *client,
                                    const struct roped_client_options *options,
                                    struct roped_error *err)
{
    enum roped_status status = keep(&client->ca_file, options->ca_file, err);
    if (!status)
        status = keep(&client->cert_file, options->cert_file, err);
    return status ? status : keep(&client->key_file, options->key_file, err);
}

static enum roped_status set_up(struct roped_client *client,
                                const struct roped_client_options *options,
                                struct roped_error *err)
{
    pthread_once(&curl_once, start_curl);
    if (curl_state != CURLE_OK)
        return roped_fail(err, ROPED_INTERNAL, "cannot start libcurl: %s",
                          curl_easy_strerror(curl_state));
    double seconds = options->timeout_seconds;
    client->timeout_seconds =
        fmin(seconds > 0 ? seconds : default_timeout_seconds, most_seconds);
    client->max_answer_bytes = options->max_answer_bytes
                                   ? options->max_answer_bytes
                                   : default_max_answer_bytes;
    if (client->max_answer_bytes > most_answer_bytes)
        client->max_answer_bytes = most_answer_bytes;
    client->progress = options->progress;
    client->progress_context = options->progress_context;
    client->curl = curl_easy_init();
    if (!client->curl)
        return no_memory(err, "a connection");
    enum roped_status status = set_url(client, options->url, err);
    if (!status)
        status = keep_files(client, options, err);
    if (!status) /* what is refused is refused in the answer: no waiting */
        status = add_header(client, 0, "Expect:", err);
    if (!status)
        status = add_header(client, 0,
                            "Content-Type: application/x-safetensors", err);
    if (!status)
        status = add_header(client, HEADERS_SAFE, "X-Roped-Retry: safe", err);
    if (!status && options->name)
        status = add_name(client, options->name, err);
    if (!status && options->token_file)
        status = add_token(client, options->token_file, err);
    return status;
}

/* A client for each of the addresses between commas, which are changed. */
static enum roped_status open_all(struct roped_client *client, char *urls,
                                  const struct roped_client_options *options,
                                  struct roped_error *err)
{
    const char *url[SERVERS_MOST] = {0};
    int n = 0;
    client->all = calloc(SERVERS_MOST, sizeof *client->all);
    if (!client->all)
        return no_memory(err, "a client");
    for (char *rest, *at = strtok_r(urls, ", ", &rest); at;
         at = strtok_r(NULL, ", ", &rest), n++) {
        struct roped_client_options one = *options;
        one.url = at;
        if (n == SERVERS_MOST)
            return roped_fail(err, ROPED_INVALID,
                              "over %d addresses of servers", n);
        enum roped_status status =
            roped_client_open(&one, &client->all[n], err);
        if (status)
            return status;
        url[n] = client->all[n]->url;
        client->servers.n = n + 1;
    }
    if (n == 0)
        return roped_fail(err, ROPED_INVALID, "no address between commas");
    servers_init(&client->servers, url, n, options->name ? options->name : "");
    return ROPED_OK;
}

static enum roped_status open_list(struct roped_client *client,
                                   const struct roped_client_options *options,
                                   struct roped_error *err)
{
    char *urls = strdup(options->url);
    client->url = strdup(options->url);
    enum roped_status status = urls && client->url
                                   ? open_all(client, urls, options, err)
                                   : no_memory(err, "a client");
    free(urls);
    return status;
}

enum roped_status roped_client_open(const struct roped_client_options *given,
                                    struct roped_client **out,
                                    struct roped_error *err)
{
    struct roped_client_options options = *given;
    struct roped_client *client = calloc(1, sizeof *client);
    if (!client)
        return no_memory(err, "a client");
    if (!options.url)
        options.url = getenv("ROPED_URL");
    if (!options.url || !options.url[0])
        options.url = default_url;
    enum roped_status status = strchr(options.url, ',')
                                   ? open_list(client, &options, err)
                                   : set_up(client, &options, err);
    if (status)
        roped_client_close(client);
    else
        *out = client;
    return status;
}

void roped_client_close(struct roped_client *client)
{
    if (!client)
        return;
    for (int i = 0; client->all && i < SERVERS_MOST; i++)
        roped_client_close(client->all[i]);
    free(client->all);
    for (int i = 0; i < N_HEADERS; i++)
        curl_slist_free_all(client->headers[i]);
    curl_easy_cleanup(client->curl);
    free(client->url);
    free(client->ca_file);
    free(client->cert_file);
    free(client->key_file);
    free(client);
}

static int on_progress(void *context, curl_off_t to_receive,
                       curl_off_t received, curl_off_t to_send, curl_off_t sent)
{
    const struct roped_client *client = context;
    client->progress(client->progress_context, (uint64_t)sent,
                     (uint64_t)to_send, (uint64_t)received,
                     (uint64_t)to_receive);
    return 0;
}

/* --------------------------------------------------------------- failures */

/* The sentence of {"error": "...", "code": "..."}, and its status; anything
 * else did not come from roped, but from a proxy, or from another server. */
static enum roped_status read_refusal(const struct roped_client *client,
                                      const struct incoming *in, long code,
                                      char *out, size_t bytes)
{
    const char *body = in->body ? in->body : "";
    cJSON *tree = cJSON_ParseWithLength(body, in->bytes);
    const char *text =
        cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(tree, "error"));
    int shown = (int)strcspn(body, "\r\n");
    if (text)
        snprintf(out, bytes, "%s", text);
    else if (shown)
        snprintf(out, bytes, "%s answered %ld: %.*s", client->url, code,
                 shown < 200 ? shown : 200, body);
    else
        snprintf(out, bytes, "%s answered %ld without a reason", client->url,
                 code);
    enum roped_status status = answer_status(
        code,
        cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(tree, "code")));
    cJSON_Delete(tree);
    return status;
}

static enum roped_status refused(const struct roped_client *client,
                                 const struct incoming *in, long code,
                                 struct roped_error *err)
{
    char text[ROPED_ERROR_BYTES - 64];
    curl_off_t seconds = 0;
    enum roped_status status =
        read_refusal(client, in, code, text, sizeof text);
    curl_easy_getinfo(client->curl, CURLINFO_RETRY_AFTER, &seconds);
    if (code == 401)
        return roped_fail(err, status, "%s (%s)", text,
                          client->has_token ? "the token file has another"
                                            : "no token file is given");
    if (seconds > 0)
        return roped_fail(err, status, "%s: try again in %ld s", text,
                          (long)seconds);
    return roped_fail(err, status, "%s", text);
}

/* An answer that is not taken, or of which libcurl takes no more. */
static enum roped_status refuse_answer(const struct roped_client *client,
                                       const struct incoming *in, CURLcode code,
                                       struct roped_error *err)
{
    curl_off_t first_us = 0;
    curl_easy_getinfo(client->curl, CURLINFO_STARTTRANSFER_TIME_T, &first_us);
    if (in->stop == STOP_LARGE)
        return roped_fail(err, ROPED_TOO_LARGE,
                          "%s: the answer is over %llu bytes, the limit that "
                          "max-answer sets",
                          client->url,
                          (unsigned long long)client->max_answer_bytes);
    if (in->stop == STOP_LARGE_HEAD)
        return roped_fail(err, ROPED_INTERNAL,
                          "%s: the head of the answer is over %d bytes",
                          client->url, MAX_HEAD_BYTES);
    if (in->stop == STOP_NO_MEMORY)
        return roped_fail(err, ROPED_NO_MEMORY,
                          "%s: no memory for the answer, %zu bytes so far",
                          client->url, in->bytes);
    if (code == CURLE_OK)
        return roped_fail(err, ROPED_INTERNAL,
                          "%s: the answer ended within its head", client->url);
    if (code == CURLE_OUT_OF_MEMORY && first_us > 0) /* its words for both */
        return roped_fail(err, ROPED_INTERNAL,
                          "%s: a line in the head of the answer is too long, "
                          "or there is no memory for it",
                          client->url);
    return ROPED_OK;
}

/* Why a request got no answer: ours, or the system's reason, or curl's. */
static enum roped_status unanswered(const struct roped_client *client,
                                    const struct incoming *in, CURLcode code,
                                    struct roped_error *err)
{
    long why = 0;
    const char *reason =
        client->problem[0] ? client->problem : curl_easy_strerror(code);
    enum roped_status status = refuse_answer(client, in, code, err);
    if (status)
        return status;
    curl_easy_getinfo(client->curl, CURLINFO_OS_ERRNO, &why);
    if (code == CURLE_OUT_OF_MEMORY)
        return roped_fail(err, ROPED_NO_MEMORY, "%s: no memory for a request",
                          client->url);
    if (code == CURLE_OPERATION_TIMEDOUT)
        return roped_fail(err, ROPED_DEADLINE, "%s: %s", client->url, reason);
    if (code == CURLE_ABORTED_BY_CALLBACK && in->n_sent > 1)
        return roped_fail(err, ROPED_INTERNAL,
                          "%s: the connection ended without an answer: the "
                          "request may have run",
                          client->url);
    if (code == CURLE_COULDNT_CONNECT)
        return roped_fail(err, ROPED_NOT_FOUND, "could not connect to %s: %s",
                          client->url, why ? strerror((int)why) : reason);
    if (code == CURLE_SSL_CONNECT_ERROR && !strstr(reason, "alert"))
        return roped_fail(err, ROPED_INTERNAL,
                          "%s: no TLS began there (%s); a daemon without "
                          "tls_cert_file speaks plain HTTP: begin with http://",
                          client->url, reason);
    return roped_fail(err, ROPED_INTERNAL, "%s: %s", client->url, reason);
}

/* --------------------------------------------------------------- requests */

/* Has an idle connection something to read? It is closed, or holds an answer
 * that nobody asked for. */
static bool is_spoiled(CURL *curl)
{
    curl_socket_t fd = CURL_SOCKET_BAD;
    curl_easy_getinfo(curl, CURLINFO_ACTIVESOCKET, &fd);
    return fd != CURL_SOCKET_BAD &&
           poll(&(struct pollfd){fd, POLLIN, 0}, 1, 0) > 0;
}

/* What every request has; the connection is kept. */
static void set_common(struct roped_client *client,
                       const struct servers_request *request,
                       struct incoming *in)
{
    int what = (request->is_safe ? HEADERS_SAFE : 0) |
               (request->is_kept ? HEADERS_KEPT : 0);
    CURL *curl = client->curl;
    bool is_new = is_spoiled(curl);
    curl_easy_reset(curl);
    curl_easy_setopt(curl, CURLOPT_FRESH_CONNECT, (long)is_new);
    curl_easy_setopt(curl, CURLOPT_MAXCONNECTS, 1L);
    curl_easy_setopt(curl, CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1);
    client->problem[0] = '\0';
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, client->problem);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, client->headers[what]);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS,
                     (long)ceil(client->timeout_seconds * 1000));
    curl_easy_setopt(curl, CURLOPT_UPLOAD_BUFFERSIZE, (long)UPLOAD_BYTES);
    curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, (long)DOWNLOAD_BYTES);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, answer_on_body);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, in);
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, answer_on_header);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, in);
    if (!request->is_safe) {
        curl_easy_setopt(curl, CURLOPT_PREREQFUNCTION, answer_on_send);
        curl_easy_setopt(curl, CURLOPT_PREREQDATA, in);
    }
    if (client->progress) {
        curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
        curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, on_progress);
        curl_easy_setopt(curl, CURLOPT_XFERINFODATA, client);
    }
}

/* Of the options that curl copies, each can run out of memory. */
static CURLcode set_way(const struct roped_client *client)
{
    CURLcode code = CURLE_OK;
    if (client->socket)
        code = curl_easy_setopt(client->curl, CURLOPT_UNIX_SOCKET_PATH,
                                client->socket);
    if (code == CURLE_OK && client->ca_file)
        code = curl_easy_setopt(client->curl, CURLOPT_CAINFO, client->ca_file);
    if (code == CURLE_OK && client->cert_file)
        code =
            curl_easy_setopt(client->curl, CURLOPT_SSLCERT, client->cert_file);
    if (code == CURLE_OK && client->key_file)
        code = curl_easy_setopt(client->curl, CURLOPT_SSLKEY, client->key_file);
    return code;
}

static CURLcode set_request(const struct roped_client *client, const char *url,
                            const char *method, const void *body, size_t bytes)
{
    CURL *curl = client->curl;
    CURLcode code = set_way(client);
    if (code == CURLE_OK)
        code = curl_easy_setopt(curl, CURLOPT_URL, url);
    if (code == CURLE_OK)
        code = curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, method);
    if (code == CURLE_OK && body)
        code = curl_easy_setopt(curl, CURLOPT_POSTFIELDS, body);
    if (code == CURLE_OK && body)
        code = curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE,
                                (curl_off_t)bytes);
    return code;
}

struct sent {
    struct roped_client *client;
    const void *body;
    size_t bytes;
    struct incoming *in;
    double deadline; /* 0: none yet */
};

/* One exchange with one server. */
static enum roped_status exchange(struct roped_client *client,
                                  const struct servers_request *request,
                                  const struct sent *sent, enum fate *fate,
                                  struct roped_error *err)
{
    char *url;
    struct incoming *in = sent->in;
    *in = (struct incoming){.curl = client->curl,
                            .max_bytes = client->max_answer_bytes};
    client->http_status = 0;
    if (asprintf(&url, "%s%s",
                 client->socket ? "http://localhost" : client->url,
                 request->path) < 0)
        return no_memory(err, "a URL");
    set_common(client, request, in);
    CURLcode result =
        set_request(client, url, request->method, sent->body, sent->bytes);
    double start = servers_now();
    if (sent->deadline > 0)
        curl_easy_setopt(client->curl, CURLOPT_TIMEOUT_MS,
                         (long)ceil(fmax(sent->deadline - start, 1e-3) * 1000));
    if (result == CURLE_OK)
        result = curl_easy_perform(client->curl);
    in->timing.wall = servers_now() - start;
    free(url);
    long code = answer_code(client->curl);
    enum roped_status status = ROPED_OK;
    bool is_answered =
        (result == CURLE_OK && in->has_head) || in->stop == STOP_ENOUGH;
    client->http_status = is_answered ? (int)code : 0;
    if (!is_answered)
        status = unanswered(client, in, result, err);
    else if (answer_is_refusal(code))
        status = refused(client, in, code, err);
    *fate = answer_fate(in, result, code, status);
    if (status)
        free(in->body);
    return printable_error(status, err);
}

/* servers_attempt_fn. A server has 2 s to say whether it is ready. */
static enum roped_status attempt(void *context, int i,
                                 const struct servers_request *request,
                                 enum fate *fate, struct roped_error *err)
{
    static const struct servers_request probe = {
        .method = "GET", .path = "/v2/health/ready", .is_safe = true};
    struct sent *sent = context;
    struct roped_client *client = sent->client->all[i];
    enum roped_status status;
    if (request) {
        status = exchange(client, request, sent, fate, err);
    } else {
        struct incoming in;
        struct sent asked = {
            .in = &in,
            .deadline = fmin(sent->deadline, servers_now() + probe_seconds)};
        status = exchange(client, &probe, &asked, fate, err);
        if (!status)
            free(in.body);
        if (client->http_status)
            *fate = FATE_REFUSED; /* it is there */
    }
    sent->client->http_status = client->http_status;
    return status;
}

static enum roped_status perform(struct roped_client *client,
                                 const char *method, const char *path,
                                 const void *body, size_t bytes,
                                 struct incoming *in, struct roped_error *err)
{
    struct servers_request request = servers_request_make(method, path);
    struct sent sent = {client, body, bytes, in, 0};
    enum fate fate;
    if (!client->all)
        return exchange(client, &request, &sent, &fate, err);
    sent.deadline = servers_now() + client->all[0]->timeout_seconds;
    return servers_send(&client->servers, &request, attempt, &sent, err);
}

enum roped_status roped_client_request_bytes(struct roped_client *client,
                                             const char *method,
                                             const char *path, const void *body,
                                             size_t bytes, void **answer,
                                             size_t *answer_bytes,
                                             struct roped_error *err)
{
    struct incoming in;
    enum roped_status status =
        perform(client, method, path, body, bytes, &in, err);
    if (status)
        return status;
    void *found = in.body ? in.body : strdup("");
    if (!found)
        return no_memory(err, "the answer");
    *answer = found;
    *answer_bytes = in.bytes;
    return ROPED_OK;
}

enum roped_status roped_client_request(struct roped_client *client,
                                       const char *method, const char *path,
                                       const void *body, size_t bytes,
                                       char **text, struct roped_error *err)
{
    void *answer;
    size_t answer_bytes;
    enum roped_status status = roped_client_request_bytes(
        client, method, path, body, bytes, &answer, &answer_bytes, err);
    if (!status)
        *text = answer;
    return status;
}

int roped_client_http_status(const struct roped_client *client)
{
    return client->http_status;
}

/* ------------------------------------------------------------------ calls */

enum roped_status roped_client_call_bytes(struct roped_client *client,
                                          const char *op, const char *query,
                                          const void *body, size_t bytes,
                                          struct roped_client_result *result,
                                          struct roped_error *err)
{
    struct incoming in;
    struct roped_error why;
    char *path;
    memset(result, 0, sizeof *result);
    if (asprintf(&path, "/v1/%s%s%s", op, query && query[0] ? "?" : "",
                 query ? query : "") < 0)
        return no_memory(err, "a URL");
    enum roped_status status =
        perform(client, "POST", path, body, bytes, &in, err);
    free(path);
    if (status)
        return status;
    result->memory = in.body;
    result->bytes = in.bytes;
    result->timing = in.timing;
    status = client_file_read(in.body ? in.body : (char[1]){0}, in.bytes,
                              result, &why);
    if (status)
        status = roped_fail(err, status, "%s: in the answer: %s", client->url,
                            why.text);
    if (status)
        roped_client_result_free(result);
    return status;
}

enum roped_status roped_client_call(struct roped_client *client, const char *op,
                                    const char *query,
                                    const struct roped_client_tensor *inputs,
                                    int n_inputs,
                                    struct roped_client_result *result,
                                    struct roped_error *err)
{
    void *body;
    size_t bytes;
    memset(result, 0, sizeof *result);
    enum roped_status status =
        roped_client_write(inputs, n_inputs, &body, &bytes, err);
    if (status)
        return status;
    status =
        roped_client_call_bytes(client, op, query, body, bytes, result, err);
    free(body);
    return status;
}

const struct roped_tensor *
roped_client_output(const struct roped_client_result *result, const char *name)
{
    for (int i = 0; i < result->n_tensors; i++)
        if (strcmp(result->name[i], name) == 0)
            return &result->tensor[i];
    return NULL;
}

void roped_client_result_free(struct roped_client_result *result)
{
    free(result->memory);
    memset(result, 0, sizeof *result);
}
