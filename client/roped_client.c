/*
 * roped_client.c - one curl handle, safetensors each way.
 */
#include "roped_client.h"

#include "wire/safetensors.h"

#include <cjson/cJSON.h>
#include <curl/curl.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

/* curl's own defaults halve the rate of large bodies */
enum { UPLOAD_BYTES = 2 << 20, DOWNLOAD_BYTES = 512 << 10 };

/* A longer answer is not believed before it comes. */
static const curl_off_t most_at_once = (curl_off_t)1 << 38;

static const char default_url[] = "http://127.0.0.1:8000";
static const double default_timeout_seconds = 300;

struct roped_client {
    CURL *curl;
    struct curl_slist *headers;
    char *url;          /* as it was given, without a slash at its end */
    const char *socket; /* of "unix:/path" the path, else NULL */
    char *ca_file, *cert_file, *key_file; /* or NULL */
    bool has_token;
    int http_status; /* of the last answer; 0: there was none */
    double timeout_seconds;
    void (*progress)(void *context, uint64_t sent, uint64_t to_send,
                     uint64_t received, uint64_t to_receive);
    void *progress_context;
    char problem[CURL_ERROR_SIZE]; /* curl's, of the last request */
};

/* An answer under way. */
struct incoming {
    CURL *curl;
    char *body;
    size_t bytes, capacity;
    struct roped_client_timing timing;
    bool has_no_memory;
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

static enum roped_status add_header(struct roped_client *client,
                                    const char *header, struct roped_error *err)
{
    struct curl_slist *headers = curl_slist_append(client->headers, header);
    if (!headers)
        return no_memory(err, "a header");
    client->headers = headers;
    return ROPED_OK;
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
    status = add_header(client, header, err);
    client->has_token = !status;
    free(header);
    return status;
}

static enum roped_status set_url(struct roped_client *client, const char *url,
                                 struct roped_error *err)
{
    if (!url)
        url = getenv("ROPED_URL");
    if (!url || !url[0])
        url = default_url;
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
    client->timeout_seconds = seconds > 0 ? seconds : default_timeout_seconds;
    client->progress = options->progress;
    client->progress_context = options->progress_context;
    client->curl = curl_easy_init();
    if (!client->curl)
        return no_memory(err, "a connection");
    enum roped_status status = set_url(client, options->url, err);
    if (!status)
        status = keep_files(client, options, err);
    if (!status) /* what is refused is refused in the answer: no waiting */
        status = add_header(client, "Expect:", err);
    if (!status)
        status =
            add_header(client, "Content-Type: application/x-safetensors", err);
    if (!status && options->token_file)
        status = add_token(client, options->token_file, err);
    return status;
}

enum roped_status roped_client_open(const struct roped_client_options *options,
                                    struct roped_client **out,
                                    struct roped_error *err)
{
    struct roped_client *client = calloc(1, sizeof *client);
    if (!client)
        return no_memory(err, "a client");
    enum roped_status status = set_up(client, options, err);
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
    curl_slist_free_all(client->headers);
    curl_easy_cleanup(client->curl);
    free(client->url);
    free(client->ca_file);
    free(client->cert_file);
    free(client->key_file);
    free(client);
}

/* ---------------------------------------------------------------- answers */

/* Room for bytes more and a NUL: for the whole answer, where its length was
 * said and there is memory for it, else twice what is needed now. */
static bool make_room(struct incoming *in, size_t bytes)
{
    curl_off_t announced = -1;
    size_t wanted = in->bytes + bytes + 1;
    char *body = NULL;
    if (wanted <= in->capacity)
        return true;
    curl_easy_getinfo(in->curl, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &announced);
    size_t capacity = (size_t)announced + 1;
    if (!in->body && announced > 0 && announced <= most_at_once &&
        capacity >= wanted)
        body = malloc(capacity);
    if (!body) {
        capacity = 2 * wanted;
        body = realloc(in->body, capacity);
    }
    if (!body)
        return false;
    in->body = body;
    in->capacity = capacity;
    return true;
}

static size_t on_body(char *data, size_t size, size_t n, void *context)
{
    struct incoming *in = context;
    size_t bytes = size * n;
    in->has_no_memory = !make_room(in, bytes);
    if (in->has_no_memory)
        return 0;
    memcpy(in->body + in->bytes, data, bytes);
    in->bytes += bytes;
    in->body[in->bytes] = '\0';
    return bytes;
}

/* Seconds of a phase in "receive;dur=0.012, queue;dur=...", which has
 * milliseconds; name has ";dur=" behind it. */
static double phase_seconds(const char *text, const char *name)
{
    const char *at = strstr(text, name);
    return at ? strtod(at + strlen(name), NULL) * 1e-3 : 0;
}

static void read_phases(struct roped_client_timing *timing, const char *line)
{
#define PHASE(id, name, ...) timing->name = phase_seconds(line, #name ";dur=");
#define BODY_PHASE(...)      PHASE(__VA_ARGS__)
#include "phase.def"
}

static size_t on_header(char *data, size_t size, size_t n, void *context)
{
    struct incoming *in = context;
    char line[512];
    snprintf(line, sizeof line, "%.*s", (int)(size * n), data);
    if (strncasecmp(line, "Server-Timing:", 14) == 0)
        read_phases(&in->timing, line);
    return size * n;
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

static enum roped_status status_of(long code)
{
    static const int codes[ROPED_STATUS_COUNT] = {
#define X(id, token, http, meaning) [ROPED_##id] = http,
        ROPED_STATUS_MAP(X)
#undef X
    };
    for (int i = 0; i < ROPED_STATUS_COUNT; i++)
        if (codes[i] == code)
            return (enum roped_status)i;
    return code >= 500 ? ROPED_INTERNAL : ROPED_INVALID;
}

/* The sentence of {"error": "..."}; anything else did not come from roped, but
 * from a proxy, or from another server. */
static void error_text(const struct roped_client *client,
                       const struct incoming *in, long code, char *out,
                       size_t bytes)
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
    cJSON_Delete(tree);
}

static enum roped_status refused(const struct roped_client *client,
                                 const struct incoming *in, long code,
                                 struct roped_error *err)
{
    char text[ROPED_ERROR_BYTES - 64];
    curl_off_t seconds = 0;
    error_text(client, in, code, text, sizeof text);
    curl_easy_getinfo(client->curl, CURLINFO_RETRY_AFTER, &seconds);
    if (code == 401)
        return roped_fail(err, ROPED_INVALID, "%s (%s)", text,
                          client->has_token ? "the token file has another"
                                            : "no token file is given");
    if (seconds > 0)
        return roped_fail(err, status_of(code), "%s: try again in %ld s", text,
                          (long)seconds);
    return roped_fail(err, status_of(code), "%s", text);
}

/* Why a request got no answer: the system's reason, or else curl's. */
static enum roped_status unanswered(const struct roped_client *client,
                                    const struct incoming *in, CURLcode code,
                                    struct roped_error *err)
{
    long why = 0;
    const char *reason =
        client->problem[0] ? client->problem : curl_easy_strerror(code);
    curl_easy_getinfo(client->curl, CURLINFO_OS_ERRNO, &why);
    if (in->has_no_memory || code == CURLE_OUT_OF_MEMORY)
        return roped_fail(err, ROPED_NO_MEMORY,
                          "%s: no memory for the answer, %zu bytes so far",
                          client->url, in->bytes);
    if (code == CURLE_OPERATION_TIMEDOUT)
        return roped_fail(err, ROPED_DEADLINE, "%s: %s", client->url, reason);
    if (code == CURLE_COULDNT_CONNECT)
        return roped_fail(err, ROPED_NOT_FOUND, "could not connect to %s: %s",
                          client->url, why ? strerror((int)why) : reason);
    return roped_fail(err, ROPED_INTERNAL, "%s: %s", client->url, reason);
}

/* --------------------------------------------------------------- requests */

static double now_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* What every request has; the connection is kept. */
static void set_common(struct roped_client *client, struct incoming *in)
{
    CURL *curl = client->curl;
    curl_easy_reset(curl);
    client->problem[0] = '\0';
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, client->problem);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, client->headers);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS,
                     (long)(client->timeout_seconds * 1000));
    curl_easy_setopt(curl, CURLOPT_UPLOAD_BUFFERSIZE, (long)UPLOAD_BYTES);
    curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, (long)DOWNLOAD_BYTES);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, in);
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, in);
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

static enum roped_status perform(struct roped_client *client,
                                 const char *method, const char *path,
                                 const void *body, size_t bytes,
                                 struct incoming *in, struct roped_error *err)
{
    char *url;
    long code = 0;
    *in = (struct incoming){.curl = client->curl};
    client->http_status = 0;
    if (asprintf(&url, "%s%s",
                 client->socket ? "http://localhost" : client->url, path) < 0)
        return no_memory(err, "a URL");
    set_common(client, in);
    CURLcode result = set_request(client, url, method, body, bytes);
    double start = now_seconds();
    if (result == CURLE_OK)
        result = curl_easy_perform(client->curl);
    in->timing.wall = now_seconds() - start;
    free(url);
    curl_easy_getinfo(client->curl, CURLINFO_RESPONSE_CODE, &code);
    enum roped_status status = ROPED_OK;
    client->http_status = result == CURLE_OK ? (int)code : 0;
    if (result != CURLE_OK)
        status = unanswered(client, in, result, err);
    else if (code < 200 || code > 299)
        status = refused(client, in, code, err);
    if (status)
        free(in->body);
    return status;
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

/* ------------------------------------------------------------------ files */

enum roped_status roped_client_write(const struct roped_client_tensor *tensors,
                                     int n_tensors, void **file,
                                     size_t *file_bytes,
                                     struct roped_error *err)
{
    struct safetensors_output outputs[ROPED_CLIENT_TENSORS];
    struct buffer header;
    uint64_t data_bytes;
    if (n_tensors > ROPED_CLIENT_TENSORS)
        return roped_fail(err, ROPED_INVALID, "%d tensors, expected at most %d",
                          n_tensors, ROPED_CLIENT_TENSORS);
    for (int i = 0; i < n_tensors; i++)
        outputs[i] =
            (struct safetensors_output){tensors[i].name, &tensors[i].tensor, 0};
    buffer_init(&header);
    enum roped_status status = safetensors_write_header(
        &header, outputs, n_tensors, NULL, 0, false, &data_bytes, err);
    char *all = status ? NULL : malloc(header.bytes + data_bytes);
    if (!status && !all)
        status = no_memory(err, "a file of the tensors");
    if (!status) {
        memcpy(all, header.text, header.bytes);
        for (int i = 0; i < n_tensors; i++) {
            size_t bytes = (size_t)roped_tensor_bytes(&tensors[i].tensor);
            if (bytes)
                memcpy(all + header.bytes + outputs[i].offset,
                       tensors[i].tensor.data, bytes);
        }
        *file = all;
        *file_bytes = header.bytes + data_bytes;
    }
    buffer_fini(&header);
    return status;
}

/* What is called with each tensor of a file, which starts at file. */
struct reading {
    unsigned char *data;
    struct roped_client_result *result;
    struct roped_client_tensor *tensors; /* with a name behind each */
    char (*names)[ROPED_NAME_BYTES];
    int n_tensors;
};

static enum roped_status read_file(void *file, size_t bytes,
                                   safetensors_entry_fn *entry,
                                   struct reading *reading,
                                   struct roped_error *err)
{
    size_t header_bytes;
    enum roped_status status =
        safetensors_header_bytes(file, bytes, &header_bytes, err);
    if (status)
        return status;
    reading->data = (unsigned char *)file + header_bytes;
    return safetensors_read(file, header_bytes, bytes, entry, NULL, reading,
                            err);
}

static enum roped_status count_tensor(void *context,
                                      const struct safetensors_entry *entry,
                                      struct roped_error *err)
{
    struct reading *reading = context;
    (void)entry;
    (void)err;
    reading->n_tensors++;
    return ROPED_OK;
}

static enum roped_status read_tensor(void *context,
                                     const struct safetensors_entry *entry,
                                     struct roped_error *err)
{
    struct reading *reading = context;
    int i = reading->n_tensors++;
    (void)err;
    memcpy(reading->names[i], entry->name, sizeof entry->name);
    reading->tensors[i] =
        (struct roped_client_tensor){reading->names[i], entry->tensor};
    reading->tensors[i].tensor.data = reading->data + entry->begin;
    return ROPED_OK;
}

enum roped_status roped_client_read(void *file, size_t file_bytes,
                                    struct roped_client_tensor **tensors,
                                    int *n_tensors, struct roped_error *err)
{
    struct reading reading = {.n_tensors = 0};
    enum roped_status status =
        read_file(file, file_bytes, count_tensor, &reading, err);
    if (status)
        return status;
    size_t n = (size_t)reading.n_tensors;
    reading.tensors =
        malloc(n * (sizeof *reading.tensors + ROPED_NAME_BYTES) + 1);
    if (!reading.tensors)
        return no_memory(err, "the names of the tensors");
    reading.names = (void *)(reading.tensors + n);
    reading.n_tensors = 0;
    status = read_file(file, file_bytes, read_tensor, &reading, err);
    if (status) {
        free(reading.tensors);
        return status;
    }
    *tensors = reading.tensors;
    *n_tensors = reading.n_tensors;
    return ROPED_OK;
}

/* ------------------------------------------------------------------ calls */

static enum roped_status read_output(void *context,
                                     const struct safetensors_entry *entry,
                                     struct roped_error *err)
{
    struct reading *reading = context;
    struct roped_client_result *result = reading->result;
    if (result->n_tensors == ROPED_CLIENT_TENSORS)
        return roped_fail(err, ROPED_INTERNAL, "the answer has over %d tensors",
                          ROPED_CLIENT_TENSORS);
    int i = result->n_tensors++;
    memcpy(result->name[i], entry->name, sizeof entry->name);
    result->tensor[i] = entry->tensor;
    result->tensor[i].data = reading->data + entry->begin;
    return ROPED_OK;
}

enum roped_status roped_client_call_bytes(struct roped_client *client,
                                          const char *op, const char *query,
                                          const void *body, size_t bytes,
                                          struct roped_client_result *result,
                                          struct roped_error *err)
{
    struct incoming in;
    struct reading reading = {.result = result};
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
    status = read_file(in.body ? in.body : (char[1]){0}, in.bytes, read_output,
                       &reading, err);
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
