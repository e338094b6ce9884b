/*
 * certificates.h - a CA of a test's own and what it has signed, made with the
 * openssl command in a folder of /tmp.
 */
#ifndef ROPED_TESTS_LOAD_CERTIFICATES_H
#define ROPED_TESTS_LOAD_CERTIFICATES_H

#include <stdbool.h>

/*
 * In the folder, each as NAME.pem with its key in NAME.key: ca; server and
 * other, of localhost and 127.0.0.1 (EC); rsa, the same; expired; client, for
 * clients; stranger, for clients, signed by nobody.
 */
struct certificates {
    char folder[32];
};

/* False: there is no openssl command here. Exits on failure. */
bool certificates_make(struct certificates *out);
void certificates_remove(const struct certificates *certificates);

/* Copies one pair over another: "server" becomes what "other" is. */
bool certificates_replace(const struct certificates *certificates,
                          const char *name, const char *by);

#endif
