/*
 * keys.h - named tokens for service tests: 'alice' sends "secret-of-alice".
 * Include it after check.h.
 */
#ifndef ROPED_TESTS_HTTP_KEYS_H
#define ROPED_TESTS_HTTP_KEYS_H

#include "http/service.h"
#include "tokens.h"

#include <unistd.h>

struct key {
    const char *name, *scopes, *quota; /* quota NULL: none */
};

/* Where keys_write puts them. */
static inline const char *keys_file(void)
{
    static char path[64];
    snprintf(path, sizeof path, "/tmp/roped_keys_%d", (int)getpid());
    return path;
}

static inline void keys_write(const struct key *keys, size_t n)
{
    FILE *file = fopen(keys_file(), "w");
    for (size_t i = 0; i < n; i++) {
        char secret[96];
        unsigned char hash[TOKEN_HASH_BYTES];
        int length =
            snprintf(secret, sizeof secret, "secret-of-%s", keys[i].name);
        CHECK(token_hash(secret, (size_t)length, hash));
        fprintf(file, "%s sha256:", keys[i].name);
        for (size_t j = 0; j < sizeof hash; j++)
            fprintf(file, "%02x", hash[j]);
        fprintf(file, " %s %s\n", keys[i].scopes,
                keys[i].quota ? keys[i].quota : "");
    }
    CHECK_INT(fclose(file), 0);
}

/* A request with the token of a name; NULL: without one. */
static inline struct answer ask_as(const struct server *server,
                                   const char *name, const char *method,
                                   const char *path, const char *body)
{
    char header[128];
    const char *headers[] = {header, NULL};
    snprintf(header, sizeof header, "Authorization: Bearer secret-of-%s",
             name ? name : "");
    return ask(server, method, path, body, body ? strlen(body) : 0,
               name ? headers : NULL);
}

static inline bool log_has(const struct server *server, const char *part)
{
    char text[1 << 16];
    FILE *file = fopen(server->log, "r");
    size_t bytes = file ? fread(text, 1, sizeof text - 1, file) : 0;
    text[bytes] = '\0';
    if (file)
        fclose(file);
    return strstr(text, part) != NULL;
}

/* The log has a line with part in it, or will soon. */
static inline void expect_log(const struct server *server, const char *part)
{
    for (int i = 0; i < 500; i++) {
        if (log_has(server, part))
            return;
        pause_seconds(0.01);
    }
    CHECK_FAIL("the log says nothing of '%s'", part);
}

#endif
