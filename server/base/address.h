/*
 * address.h - socket addresses as the settings write them, and what they mean:
 * who can reach a daemon that listens there.
 */
#ifndef ROPED_ADDRESS_H
#define ROPED_ADDRESS_H

#include <roped/status.h>

#include <stdbool.h>
#include <sys/socket.h>

enum { ADDRESS_TEXT_BYTES = 120 };

/*
 * "127.0.0.1:8000", "localhost:8000" which is the same, "[::1]:8000",
 * "name:8000" (the first of its addresses), ":8000" for every address of the
 * host, or "unix:/run/x.sock".
 * ROPED_INVALID quotes the text, and the setting (key) that it is of.
 */
ROPED_MUST_CHECK enum roped_status
address_parse(const char *key, const char *text, struct sockaddr_storage *out,
              socklen_t *bytes, struct roped_error *err);

/* Can it be reached from this host alone? 127.0.0.0/8, also as
 * ::ffff:127.x.y.z, ::1, and Unix sockets. */
bool address_is_loopback(const struct sockaddr *address);

/* Where a client on this host asks a daemon that listens at the address: the
 * loopback of its family for 0.0.0.0 and ::, else there. */
void address_to_ask(struct sockaddr *address);

/*
 * "127.0.0.1:8000" or "[::1]:8000", as in a Host header: without the scope of a
 * link-local address; or "unix:/run/x.sock", "unix:@x" for a name that is in no
 * file system, "unix:" for a socket that has no name, as those of most clients.
 * bytes says how much of the address there is, as the kernel did. The bytes of
 * a name are whoever's who bound it. Returns out.
 */
const char *address_text(const struct sockaddr *address, socklen_t bytes,
                         char out[ADDRESS_TEXT_BYTES]);

#endif
