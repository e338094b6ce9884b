/*
 * curl_client.h - the echo through libcurl, as applications send it: no Expect,
 * upload buffer 2 MiB, read buffer 512 KiB.
 */
#ifndef ROPED_TESTS_BENCH_HTTP_CURL_CLIENT_H
#define ROPED_TESTS_BENCH_HTTP_CURL_CLIENT_H

#include "load/client.h"

struct curl_client;

/* To a port, with the body of a request of call_echo. Exits without memory. */
struct curl_client *curl_client_open(uint16_t port,
                                     const struct http_request *echo);
void curl_client_close(struct curl_client *client);

/* One exchange; false: it failed or was not answered with 200. */
bool curl_client_exchange(struct curl_client *client, unsigned char *into,
                          size_t room);

#endif
