/*
 * token.h - the secret that requests must carry as 'Authorization: Bearer'.
 */
#ifndef ROPED_TOKEN_H
#define ROPED_TOKEN_H

#include <roped/status.h>

#include <stdbool.h>
#include <stddef.h>

enum { TOKEN_BYTES = 4097 };

struct token {
    char text[TOKEN_BYTES]; /* NUL-terminated */
    size_t bytes;           /* 0: no token is wanted */
};

/*
 * Reads the first line of the file, without spaces, tabs and CR around it; path
 * "" wants no token. ROPED_INVALID names the file and what is wrong with it: it
 * cannot be read, it holds no token, a token longer than TOKEN_BYTES - 1, or
 * one that no header could carry. No error holds any of the token. A file that
 * others than its owner may use is a warning in the log.
 */
ROPED_MUST_CHECK enum roped_status
token_read(const char *path, struct token *out, struct roped_error *err);

/*
 * Does the value of an Authorization header (NULL: there was none) carry the
 * token? True for any where none is wanted. How long it takes does not depend
 * on where the two differ.
 */
bool token_matches(const struct token *token, const char *header);

#endif
