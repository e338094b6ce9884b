/*
 * curl_client.h - the same request through libcurl, as applications send it:
 * no Expect, upload buffer 2 MiB, read buffer 512 KiB.
 */
#ifndef ROPED_TESTS_BENCH_HTTP_CURL_CLIENT_H
#define ROPED_TESTS_BENCH_HTTP_CURL_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct curl_client;

/* NULL without memory. header: one line without an end, or NULL. */
struct curl_client *curl_client_open(uint16_t port, const char *path,
                                     const char *header, const void *body,
                                     size_t bytes);
void curl_client_close(struct curl_client *client);

/* One exchange; false: it failed or was not answered with 200. */
bool curl_client_exchange(struct curl_client *client, unsigned char *into,
                          size_t room);

#endif
