/*
 * tokens.h - the secrets that requests may carry as 'Authorization: Bearer',
 * and what each of them allows.
 *
 * FILE. Either its first line is a token, which allows everything, or each line
 * is one:
 *
 *     name sha256:HEX scopes [quota]
 *     alice sha256:9f86...0f00a08 call,regions,tables bytes=1g,names=100
 *
 * HEX is the SHA-256 of the token; 'ropectl token new' makes a line. Several
 * lines may have one name: whoever sends any of these tokens owns the same
 * regions and tables. Blank lines and those that start with '#' say nothing.
 *
 * MEMORY. A set does not change once it is read. It holds no token.
 */
#ifndef ROPED_TOKENS_H
#define ROPED_TOKENS_H

#include <roped/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    TOKEN_BYTES = 4097, /* NUL included */
    TOKEN_NAME_BYTES = 64,
    TOKEN_HASH_BYTES = 32,
    TOKENS_MAX = 1024
};

enum scope {
    SCOPE_UNSET, /* no route's */
#define ROUTE_SCOPE(id, name, meaning) SCOPE_##id,
#define SCOPE(id, name, meaning)       SCOPE_##id,
#include "scope.def"
    N_SCOPES
};

struct token {
    char name[TOKEN_NAME_BYTES]; /* "": of a file with a token alone */
    unsigned char hash[TOKEN_HASH_BYTES];
    unsigned scopes;                 /* bit i: enum scope i */
    uint64_t most_bytes, most_names; /* UINT64_MAX: no quota */
};

struct tokens {
    size_t n;
    struct token token[]; /* n of them */
};

/* "regions". */
const char *scope_name(enum scope scope);

/* "call, regions": the scopes of a token. Returns out. */
const char *scopes_text(unsigned scopes, char *out, size_t out_bytes);

/* Does a token with these scopes open a route of this scope? */
bool scopes_allow(unsigned scopes, enum scope scope);

/* The SHA-256 of a token. False: the library cannot. */
bool token_hash(const char *text, size_t bytes,
                unsigned char out[TOKEN_HASH_BYTES]);

/* Reads a line of a file of named tokens, and spoils it. ROPED_INVALID says
 * what was expected, and nothing of the line. */
ROPED_MUST_CHECK enum roped_status
token_read_line(char *text, struct token *out, struct roped_error *err);

/*
 * Reads a file of tokens; *out is freed with free(). ROPED_INVALID names the
 * file, the line, and what is wrong with it. No error holds any of what the
 * file holds: it may be a secret. A file that others than its owner may use is
 * a warning in the log.
 */
ROPED_MUST_CHECK enum roped_status
tokens_read(const char *path, struct tokens **out, struct roped_error *err);

/*
 * The token that the value of an Authorization header carries, or NULL, and
 * then *why, which is static, says why not. header NULL: there was none. How
 * long it takes does not depend on which of them it is, nor on where what was
 * sent differs from one.
 */
const struct token *tokens_find(const struct tokens *tokens, const char *header,
                                const char **why);

#endif
