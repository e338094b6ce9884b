/*
 * curl_client.h - requests through libcurl, as applications send them: no
 * Expect, upload buffer 2 MiB, read buffer 512 KiB.
 */
#ifndef ROPED_TESTS_BENCH_HTTP_CURL_CLIENT_H
#define ROPED_TESTS_BENCH_HTTP_CURL_CLIENT_H

#include "load/client.h"

struct curl_client;

/* The method and path of a request, and the body of it; its other headers are
 * those of the echo. Over TLS where there is a CA's file. Exits without memory.
 */
struct curl_client *curl_client_open(uint16_t port, const char *ca_file,
                                     const struct http_request *request);
void curl_client_close(struct curl_client *client);

/* One exchange; the code of its answer, 0: it failed. */
long curl_client_exchange(struct curl_client *client, unsigned char *into,
                          size_t room);

#endif
