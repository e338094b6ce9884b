/*
 * curl_client.c - libcurl's easy interface.
 */
#include "bench/http/curl_client.h"

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

static void set_options(struct curl_client *client, const char *url,
                        const void *body, size_t bytes)
{
    CURL *curl = client->curl;
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, client->headers);
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, body);
    curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)bytes);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, collect);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, client);
    curl_easy_setopt(curl, CURLOPT_UPLOAD_BUFFERSIZE, (long)UPLOAD_BYTES);
    curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, (long)READ_BYTES);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_NOPROXY, "*");
    curl_easy_setopt(curl, CURLOPT_TIMEOUT, (long)PATIENCE_SECONDS);
}

struct curl_client *curl_client_open(uint16_t port, const char *path,
                                     const char *header, const void *body,
                                     size_t bytes)
{
    char url[512];
    struct curl_client *client = calloc(1, sizeof *client);
    if (!client)
        return NULL;
    snprintf(url, sizeof url, "http://127.0.0.1:%u%s", (unsigned)port, path);
    client->curl = curl_easy_init();
    client->headers = curl_slist_append(NULL, "Expect:");
    if (header)
        client->headers = curl_slist_append(client->headers, header);
    if (!client->curl || !client->headers) {
        curl_client_close(client);
        return NULL;
    }
    set_options(client, url, body, bytes);
    return client;
}

void curl_client_close(struct curl_client *client)
{
    if (!client)
        return;
    curl_easy_cleanup(client->curl);
    curl_slist_free_all(client->headers);
    free(client);
}

bool curl_client_exchange(struct curl_client *client, unsigned char *into,
                          size_t room)
{
    long code = 0;
    client->into = into;
    client->room = into ? room : 0;
    client->at = 0;
    if (curl_easy_perform(client->curl) != CURLE_OK)
        return false;
    curl_easy_getinfo(client->curl, CURLINFO_RESPONSE_CODE, &code);
    return code == 200;
}
