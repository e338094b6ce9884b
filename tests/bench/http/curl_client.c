/*
 * curl_client.c - libcurl's easy interface.
 */
#include "bench/http/curl_client.h"

#include "bench/http/calls.h"

#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { UPLOAD_BYTES = 2 << 20, READ_BYTES = 512 << 10, PATIENCE_SECONDS = 60 };

struct curl_client {
    CURL *curl;
    struct curl_slist *headers;
    unsigned char *into;
    size_t room, at;
};

static size_t collect(char *data, size_t size, size_t n, void *context)
{
    struct curl_client *client = context;
    size_t bytes = size * n;
    if (client->at + bytes <= client->room)
        memcpy(client->into + client->at, data, bytes);
    client->at += bytes;
    return bytes;
}

/* "POST /path HTTP/1.1": the first two words. */
static void set_target(CURL *curl, uint16_t port, const char *ca_file,
                       const struct http_request *request)
{
    char url[256], method[16], path[128];
    if (sscanf(request->head, "%15s %127s", method, path) != 2)
        return;
    snprintf(url, sizeof url, "%s://127.0.0.1:%u%s", ca_file ? "https" : "http",
             (unsigned)port, path);
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, method);
    curl_easy_setopt(curl, CURLOPT_CAINFO, ca_file);
    if (request->body) {
        curl_easy_setopt(curl, CURLOPT_POSTFIELDS, request->body);
        curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE,
                         (curl_off_t)request->body_bytes);
    }
}

struct curl_client *curl_client_open(uint16_t port, const char *ca_file,
                                     const struct http_request *request)
{
    struct curl_client *client = calloc(1, sizeof *client);
    CURL *curl = client ? curl_easy_init() : NULL;
    if (!curl) {
        fprintf(stderr, "bench_http: no memory for libcurl\n");
        exit(EXIT_FAILURE);
    }
    client->curl = curl;
    client->headers = curl_slist_append(NULL, "Expect:");
    client->headers = curl_slist_append(client->headers, CALL_ECHO_HEADER);
    set_target(curl, port, ca_file, request);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, client->headers);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, collect);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, client);
    curl_easy_setopt(curl, CURLOPT_UPLOAD_BUFFERSIZE, (long)UPLOAD_BYTES);
    curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, (long)READ_BYTES);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_NOPROXY, "*");
    curl_easy_setopt(curl, CURLOPT_TIMEOUT, (long)PATIENCE_SECONDS);
    return client;
}

void curl_client_close(struct curl_client *client)
{
    curl_easy_cleanup(client->curl);
    curl_slist_free_all(client->headers);
    free(client);
}

long curl_client_exchange(struct curl_client *client, unsigned char *into,
                          size_t room)
{
    long code = 0;
    client->into = into;
    client->room = room;
    client->at = 0;
    if (curl_easy_perform(client->curl) != CURLE_OK)
        return 0;
    curl_easy_getinfo(client->curl, CURLINFO_RESPONSE_CODE, &code);
    return code;
}
