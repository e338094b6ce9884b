/*
 * roped_client.c - one curl handle, safetensors each way.
 */
#include "roped_client.h"

#include "wire/safetensors.h"

#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

/* curl's own defaults halve the rate of large bodies */
enum { UPLOAD_BYTES = 2 << 20, DOWNLOAD_BYTES = 512 << 10 };

struct roped_client {
    CURL *curl;
    struct curl_slist *headers;
    char url[512];
    struct roped_client_options options;
};

/* An answer under way. */
struct incoming {
    char *body;
    size_t bytes, capacity;
    struct roped_client_timing timing;
    long retry_after;
    bool has_failed;
};

static enum roped_status add_token(struct roped_client *client,
                                   const char *path, struct roped_error *err)
{
    char token[256] = "", header[320];
    FILE *file = fopen(path, "r");
    if (file && !fgets(token, sizeof token, file))
        token[0] = '\0';
    if (file)
        fclose(file);
    token[strcspn(token, "\r\n")] = '\0';
    if (!token[0])
        return roped_fail(err, ROPED_INVALID, "'%s' holds no token", path);
    snprintf(header, sizeof header, "Authorization: Bearer %s", token);
    client->headers = curl_slist_append(client->headers, header);
    return ROPED_OK;
}

enum roped_status roped_client_open(const struct roped_client_options *options,
                                    struct roped_client **out,
                                    struct roped_error *err)
{
    const char *url = options->url ? options->url : getenv("ROPED_URL");
    struct roped_client *client = calloc(1, sizeof *client);
    enum roped_status status = ROPED_OK;
    if (client)
        client->curl = curl_easy_init();
    if (!client || !client->curl) {
        free(client);
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for a client");
    }
    client->options = *options;
    snprintf(client->url, sizeof client->url, "%s%s",
             url && strstr(url, "://") ? "" : "http://",
             url ? url : "127.0.0.1:8000");
    size_t length = strlen(client->url);
    if (client->url[length - 1] == '/')
        client->url[length - 1] = '\0';
    /* no waiting for permission: what is refused is refused in the answer */
    client->headers = curl_slist_append(NULL, "Expect:");
    client->headers = curl_slist_append(
        client->headers, "Content-Type: application/x-safetensors");
    if (options->token_file)
        status = add_token(client, options->token_file, err);
    if (status) {
        roped_client_close(client);
        return status;
    }
    *out = client;
    return ROPED_OK;
}

void roped_client_close(struct roped_client *client)
{
    if (!client)
        return;
    curl_slist_free_all(client->headers);
    curl_easy_cleanup(client->curl);
    free(client);
}

/* ---------------------------------------------------------------- answers */

static size_t on_body(char *data, size_t size, size_t n, void *context)
{
    struct incoming *in = context;
    size_t bytes = size * n;
    if (in->bytes + bytes + 1 > in->capacity) {
        size_t capacity = 2 * (in->bytes + bytes + 1);
        char *body = realloc(in->body, capacity);
        if (!body) {
            in->has_failed = true;
            return 0;
        }
        in->body = body;
        in->capacity = capacity;
    }
    memcpy(in->body + in->bytes, data, bytes);
    in->bytes += bytes;
    in->body[in->bytes] = '\0';
    return bytes;
}

/* "receive;dur=0.012, queue;dur=..." in milliseconds */
static double stage(const char *text, const char *name)
{
    char key[24];
    snprintf(key, sizeof key, "%s;dur=", name);
    const char *at = strstr(text, key);
    return at ? strtod(at + strlen(key), NULL) * 1e-3 : 0;
}

static size_t on_header(char *data, size_t size, size_t n, void *context)
{
    struct incoming *in = context;
    char line[512];
    snprintf(line, sizeof line, "%.*s", (int)(size * n), data);
    if (strncasecmp(line, "Server-Timing:", 14) == 0) {
        in->timing = (struct roped_client_timing){stage(line, "receive"),
                                                  stage(line, "queue"),
                                                  stage(line, "plan"),
                                                  stage(line, "h2d"),
                                                  stage(line, "kernel"),
                                                  stage(line, "d2h"),
                                                  0};
    } else if (strncasecmp(line, "Retry-After:", 12) == 0) {
        in->retry_after = strtol(line + 12, NULL, 10);
    } else if (strncasecmp(line, "Content-Length:", 15) == 0 && !in->body) {
        size_t bytes = strtoul(line + 15, NULL, 10);
        in->body = malloc(bytes + 1); /* the whole answer in one piece */
        in->capacity = in->body ? bytes + 1 : 0;
        if (in->body)
            in->body[0] = '\0';
    }
    return size * n;
}

static int on_progress(void *context, curl_off_t to_receive,
                       curl_off_t received, curl_off_t to_send, curl_off_t sent)
{
    const struct roped_client *client = context;
    client->options.progress(client->options.progress_context, (uint64_t)sent,
                             (uint64_t)to_send, (uint64_t)received,
                             (uint64_t)to_receive);
    return 0;
}

static enum roped_status status_of(long code)
{
    switch (code) {
    case 404:
        return ROPED_NOT_FOUND;
    case 413:
        return ROPED_TOO_LARGE;
    case 501:
        return ROPED_UNSUPPORTED;
    case 503:
        return ROPED_BUSY;
    default:
        return code >= 500 ? ROPED_INTERNAL : ROPED_INVALID;
    }
}

/* The sentence inside {"error":"..."}, escapes of quotes undone. */
static void error_text(const char *body, char *out, size_t bytes)
{
    const char *at = body ? strstr(body, "\"error\":\"") : NULL;
    size_t n = 0;
    at = at ? at + 9 : body ? body : "no answer";
    for (; *at && *at != '"' && n + 1 < bytes; at++) {
        if (*at == '\\' && at[1])
            at++;
        out[n++] = *at;
    }
    out[n] = '\0';
}

static enum roped_status refused(const struct incoming *in, long code,
                                 struct roped_error *err)
{
    char text[400];
    error_text(in->body, text, sizeof text);
    if (code == 401)
        return roped_fail(err, ROPED_INVALID, "%s: give --token-file FILE",
                          text);
    if (code == 503)
        return roped_fail(err, ROPED_BUSY, "%s: try again in %ld s", text,
                          in->retry_after ? in->retry_after : 1);
    return roped_fail(err, status_of(code), "%s", text);
}

static enum roped_status unreachable(const struct roped_client *client,
                                     CURLcode code, struct roped_error *err)
{
    if (code == CURLE_COULDNT_CONNECT)
        return roped_fail(err, ROPED_NOT_FOUND,
                          "nothing answers at %s: is roped running? start it "
                          "with 'roped', or name another server with --server",
                          client->url);
    if (code == CURLE_OPERATION_TIMEDOUT)
        return roped_fail(err, ROPED_DEADLINE, "%s did not answer in time",
                          client->url);
    return roped_fail(err, ROPED_INTERNAL, "%s: %s", client->url,
                      curl_easy_strerror(code));
}

static double now_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static enum roped_status perform(struct roped_client *client,
                                 const char *method, const char *path,
                                 const void *body, size_t bytes,
                                 struct incoming *in, struct roped_error *err)
{
    CURL *curl = client->curl;
    char *url;
    long code = 0;
    double limit = client->options.timeout_seconds;
    memset(in, 0, sizeof *in);
    if (asprintf(&url, "%s%s", client->url, path) < 0)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for a request");
    curl_easy_reset(curl); /* keeps the connection */
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, method);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, client->headers);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS,
                     (long)((limit > 0 ? limit : 300) * 1000));
    curl_easy_setopt(curl, CURLOPT_UPLOAD_BUFFERSIZE, (long)UPLOAD_BYTES);
    curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, (long)DOWNLOAD_BYTES);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, in);
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, in);
    if (client->options.progress) {
        curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
        curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, on_progress);
        curl_easy_setopt(curl, CURLOPT_XFERINFODATA, client);
    }
    if (body) {
        curl_easy_setopt(curl, CURLOPT_POSTFIELDS, body);
        curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)bytes);
    }
    double start = now_seconds();
    CURLcode result = curl_easy_perform(curl);
    in->timing.wall = now_seconds() - start;
    free(url);
    if (result != CURLE_OK)
        return unreachable(client, result, err);
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &code);
    return code >= 200 && code < 300 ? ROPED_OK : refused(in, code, err);
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
    if (status) {
        free(in.body);
        return status;
    }
    *answer = in.body ? in.body : strdup("");
    *answer_bytes = in.bytes;
    if (!*answer)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for the answer");
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

/* ------------------------------------------------------------------ calls */

struct reading {
    struct roped_client_result *result;
    unsigned char *data;
};

static enum roped_status read_output(void *context,
                                     const struct safetensors_entry *entry,
                                     struct roped_error *err)
{
    struct reading *reading = context;
    struct roped_client_result *result = reading->result;
    if (result->n_tensors == ROPED_CLIENT_TENSORS)
        return roped_fail(err, ROPED_INTERNAL, "over %d outputs",
                          ROPED_CLIENT_TENSORS);
    int i = result->n_tensors++;
    snprintf(result->name[i], sizeof result->name[i], "%s", entry->name);
    result->tensor[i] = entry->tensor;
    result->tensor[i].data = reading->data + entry->begin;
    return ROPED_OK;
}

static enum roped_status read_result(struct incoming *in,
                                     struct roped_client_result *result,
                                     struct roped_error *err)
{
    size_t header_bytes;
    struct reading reading = {result, NULL};
    result->memory = in->body;
    result->bytes = in->bytes;
    result->timing = in->timing;
    enum roped_status status = safetensors_header_bytes(
        in->body ? in->body : "", in->bytes, &header_bytes, err);
    if (status)
        return status;
    reading.data = (unsigned char *)in->body + header_bytes;
    return safetensors_read(in->body, header_bytes, in->bytes, read_output,
                            NULL, &reading, err);
}

enum roped_status roped_client_call_bytes(struct roped_client *client,
                                          const char *op, const char *query,
                                          const void *body, size_t bytes,
                                          struct roped_client_result *result,
                                          struct roped_error *err)
{
    struct incoming in;
    char *path;
    memset(result, 0, sizeof *result);
    if (asprintf(&path, "/v1/%s%s%s", op, query && query[0] ? "?" : "",
                 query ? query : "") < 0)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for a request");
    enum roped_status status =
        perform(client, "POST", path, body, bytes, &in, err);
    free(path);
    if (status) {
        free(in.body);
        return status;
    }
    status = read_result(&in, result, err);
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
    struct safetensors_output outputs[ROPED_CLIENT_TENSORS];
    struct buffer header;
    uint64_t data_bytes;
    if (n_inputs > ROPED_CLIENT_TENSORS)
        return roped_fail(err, ROPED_INVALID, "%d tensors, expected at most %d",
                          n_inputs, ROPED_CLIENT_TENSORS);
    for (int i = 0; i < n_inputs; i++)
        outputs[i] =
            (struct safetensors_output){inputs[i].name, &inputs[i].tensor, 0};
    buffer_init(&header);
    enum roped_status status = safetensors_write_header(
        &header, outputs, n_inputs, NULL, 0, false, &data_bytes, err);
    char *body = status ? NULL : malloc(header.bytes + data_bytes);
    if (!status && !body)
        status = roped_fail(err, ROPED_NO_MEMORY, "no memory for the body");
    if (!status) {
        memcpy(body, header.text, header.bytes);
        for (int i = 0; i < n_inputs; i++)
            memcpy(body + header.bytes + outputs[i].offset,
                   inputs[i].tensor.data,
                   (size_t)roped_tensor_bytes(&inputs[i].tensor));
        status = roped_client_call_bytes(
            client, op, query, body, header.bytes + data_bytes, result, err);
    }
    free(body);
    buffer_fini(&header);
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
