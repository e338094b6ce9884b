/*
 * tls.h - TLS of connections: certificate, key and CA of clients, which are
 * exchanged while the daemon runs, and handshakes that wait for their client.
 *
 * libmicrohttpd calls GnuTLS; every session gets its credentials here. Those
 * that a reload has replaced live until the last connection that began with
 * them ends.
 */
#ifndef ROPED_HTTP_TLS_H
#define ROPED_HTTP_TLS_H

#include "config.h"

#include <roped/status.h>

#include <gnutls/abstract.h>

struct MHD_Connection;
struct tls;
struct tls_link; /* one connection */

/* TLS 1.2 and 1.3, ephemeral keys and authenticated ciphers alone. */
extern const char tls_priorities[];

/* Reads the files that the settings name and starts the thread; *out is NULL
 * where there is no tls_cert_file. ROPED_INVALID names the file and what is
 * wrong with it; a certificate that has expired is refused. */
ROPED_MUST_CHECK enum roped_status tls_open(const struct config *config,
                                            struct tls **out,
                                            struct roped_error *err);

/* Reads them again: for connections from now on. What was in force stays in
 * force where this fails. */
ROPED_MUST_CHECK enum roped_status tls_reload(struct tls *tls,
                                              struct roped_error *err);

/* Handshakes that wait fail, and none waits from now on: nothing is suspended
 * when the library stops. */
void tls_end_handshakes(struct tls *tls);

void tls_close(struct tls *tls); /* NULL: nothing */

/* A connection has opened: its session gets what is in force. NULL where there
 * is no memory: then its handshake fails. */
struct tls_link *tls_link_open(struct tls *tls,
                               struct MHD_Connection *connection, int fd);

/* It has closed, and its session is gone. NULL: nothing. */
void tls_link_close(struct tls_link *link);

/* What the library asks for a session without credentials: refuses. */
gnutls_certificate_retrieve_function3 tls_no_certificate;

#endif
