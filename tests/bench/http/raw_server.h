/*
 * raw_server.h - the reference server: what the loopback allows an HTTP server
 * to be. One thread, epoll, 64 KiB per recv straight into the final buffer,
 * SO_SNDBUF of 512 KiB, no checks that a real server needs.
 */
#ifndef ROPED_TESTS_BENCH_HTTP_RAW_SERVER_H
#define ROPED_TESTS_BENCH_HTTP_RAW_SERVER_H

/*
 * Listens on a free port of 127.0.0.1, writes it in decimal and a newline to
 * standard output, and answers every request with its own body until it is
 * killed. Returns only on failure.
 */
int raw_server_main(void);

#endif
