/*
 * tokens.c - reads the file of tokens, and finds the one that a client sent.
 *
 * DESIGN. Kept and compared are hashes alone, so that the memory of the daemon
 * holds no secret for longer than its file is read. Whoever watches how long a
 * comparison takes learns something of a hash at most, and of that no token
 * follows. Still, every hash is compared to its last byte.
 */
#include "tokens.h"

#include "config.h"
#include "io.h"
#include "log.h"

#include <ctype.h>
#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

/* A file that is being read. */
struct reading {
    const char *path;
    char *rest; /* of the file, behind the line */
    const char *end;
    int line;
    char *text;    /* of the line, without blanks around it */
    size_t length; /* of it, any NUL included */
    struct tokens *tokens;
    size_t capacity;
    struct roped_error *err;
};

/* ----------------------------------------------------------------- scopes */

static const char *const scope_names[N_SCOPES] = {
    [SCOPE_UNSET] = "",
#define ROUTE_SCOPE(id, name, meaning) [SCOPE_##id] = name,
#define SCOPE(id, name, meaning)       [SCOPE_##id] = name,
#include "scope.def"
};

/* Those that a token may have. */
static const enum scope token_scopes[] = {
#define SCOPE(id, name, meaning) SCOPE_##id,
#include "scope.def"
};
enum { N_TOKEN_SCOPES = sizeof token_scopes / sizeof *token_scopes };

const char *scope_name(enum scope scope)
{
    return scope_names[scope];
}

const char *scopes_text(unsigned scopes, char *out, size_t out_bytes)
{
    size_t at = 0;
    out[0] = '\0';
    for (int i = 0; i < N_TOKEN_SCOPES && at < out_bytes; i++)
        if (scopes >> token_scopes[i] & 1)
            at +=
                (size_t)snprintf(out + at, out_bytes - at, "%s%s",
                                 at ? ", " : "", scope_names[token_scopes[i]]);
    return out;
}

bool scopes_allow(unsigned scopes, enum scope scope)
{
    return scope == SCOPE_OPEN || scope == SCOPE_ANY ||
           (scopes & (1u << scope | 1u << SCOPE_ADMIN));
}

/* ------------------------------------------------------------------ lines */

static bool is_blank(int c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* The next line between its blanks; false at the end of the file. */
static bool read_line(struct reading *reading)
{
    char *start = reading->rest;
    if (start == reading->end)
        return false;
    char *feed = memchr(start, '\n', (size_t)(reading->end - start));
    char *end = feed ? feed : start + (reading->end - start);
    reading->rest = feed ? feed + 1 : end;
    while (start < end && is_blank(*start))
        start++;
    while (end > start && is_blank(end[-1]))
        end--;
    *end = '\0';
    reading->text = start;
    reading->length = (size_t)(end - start);
    reading->line++;
    return true;
}

static enum roped_status refuse(struct reading *reading, const char *why)
{
    return roped_fail(reading->err, ROPED_INVALID,
                      "bearer_token_file '%s' line %d: %s", reading->path,
                      reading->line, why);
}

static enum roped_status no_memory(struct reading *reading)
{
    return roped_fail(reading->err, ROPED_NO_MEMORY,
                      "no memory for the tokens of '%s'", reading->path);
}

static enum roped_status add(struct reading *reading, const struct token *token)
{
    size_t n = reading->tokens ? reading->tokens->n : 0;
    if (n == reading->capacity) {
        size_t capacity = n ? 2 * n : 4;
        struct tokens *grown = realloc(
            reading->tokens, sizeof *grown + capacity * sizeof(struct token));
        if (!grown)
            return no_memory(reading);
        reading->tokens = grown;
        reading->capacity = capacity;
    }
    reading->tokens->token[n] = *token;
    reading->tokens->n = n + 1;
    return ROPED_OK;
}

bool token_hash(const char *text, size_t bytes,
                unsigned char out[TOKEN_HASH_BYTES])
{
    return gnutls_hash_fast(GNUTLS_DIG_SHA256, text, bytes, out) == 0;
}

/* -------------------------------------------------------- a token and no more
 */

/* A header carries printable ASCII; a space would end the token. */
static enum roped_status check_plain(struct reading *reading)
{
    size_t length = reading->length;
    if (length > TOKEN_BYTES - 1)
        return roped_fail(reading->err, ROPED_INVALID,
                          "bearer_token_file '%s' holds a token of %zu bytes, "
                          "expected at most %d",
                          reading->path, length, TOKEN_BYTES - 1);
    for (size_t i = 0; i < length; i++)
        if (reading->text[i] < 0x21 || reading->text[i] > 0x7E)
            return roped_fail(
                reading->err, ROPED_INVALID,
                "bearer_token_file '%s': character %zu of the token is a "
                "control character, or not ASCII",
                reading->path, i + 1);
    return ROPED_OK;
}

static enum roped_status read_plain(struct reading *reading)
{
    struct token token = {.scopes = 1u << SCOPE_ADMIN,
                          .most_bytes = UINT64_MAX,
                          .most_names = UINT64_MAX};
    enum roped_status status = check_plain(reading);
    if (status)
        return status;
    if (!token_hash(reading->text, reading->length, token.hash))
        return no_memory(reading);
    return add(reading, &token);
}

/* ------------------------------------------------------------ named tokens */

enum { NAME_COLUMN, HASH_COLUMN, SCOPES_COLUMN, QUOTA_COLUMN, N_COLUMNS };

/* Cuts the line at its blanks; how many columns, N_COLUMNS + 1 for too many. */
static int split(char *text, char *column[N_COLUMNS])
{
    static const char blanks[] = " \t\r";
    int n = 0;
    for (text += strspn(text, blanks); *text; text += strspn(text, blanks)) {
        if (n == N_COLUMNS)
            return n + 1;
        column[n++] = text;
        text += strcspn(text, blanks);
        if (*text)
            *text++ = '\0';
    }
    return n;
}

static bool read_name(const char *text, struct token *out)
{
    size_t length = strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                 "abcdefghijklmnopqrstuvwxyz0123456789._-");
    if (text[length] || length >= sizeof out->name)
        return false;
    memcpy(out->name, text, length + 1);
    return true;
}

static int hex_digit(char c)
{
    static const char digits[] = "0123456789abcdef";
    const char *at = c ? strchr(digits, tolower((unsigned char)c)) : NULL;
    return at ? (int)(at - digits) : -1;
}

static bool read_hash(const char *text, struct token *out)
{
    static const char prefix[] = "sha256:";
    if (strncmp(text, prefix, sizeof prefix - 1) != 0)
        return false;
    text += sizeof prefix - 1;
    for (size_t i = 0; i < TOKEN_HASH_BYTES; i++) {
        int high = hex_digit(text[2 * i]);
        int low = high < 0 ? -1 : hex_digit(text[2 * i + 1]);
        if (low < 0)
            return false;
        out->hash[i] = (unsigned char)(high << 4 | low);
    }
    return text[2 * TOKEN_HASH_BYTES] == '\0';
}

static bool read_scopes(char *text, struct token *out)
{
    char *word;
    while ((word = strsep(&text, ","))) {
        int i = 0;
        while (i < N_TOKEN_SCOPES &&
               strcmp(word, scope_names[token_scopes[i]]) != 0)
            i++;
        if (i == N_TOKEN_SCOPES)
            return false;
        out->scopes |= 1u << token_scopes[i];
    }
    return true;
}

static bool read_limit(const char *text, bool has_unit, uint64_t *out)
{
    double value;
    if (*out != UINT64_MAX || !config_parse_number(text, has_unit, &value) ||
        value > 0x1p53 || value != (double)(uint64_t)value)
        return false;
    *out = (uint64_t)value;
    return true;
}

static bool read_quota(char *text, struct token *out)
{
    char *word;
    bool is_right = true;
    if (strcmp(text, "-") == 0)
        return true;
    while (is_right && (word = strsep(&text, ","))) {
        bool is_bytes = strncmp(word, "bytes=", 6) == 0;
        is_right = (is_bytes || strncmp(word, "names=", 6) == 0) &&
                   read_limit(word + 6, is_bytes,
                              is_bytes ? &out->most_bytes : &out->most_names);
    }
    return is_right;
}

/* Beside the tokens of the lines before. */
static enum roped_status check_unique(struct reading *reading,
                                      const struct token *token)
{
    size_t n = reading->tokens ? reading->tokens->n : 0;
    if (n == TOKENS_MAX)
        return refuse(reading, "more than 1024 tokens");
    for (size_t i = 0; i < n; i++) {
        const struct token *other = &reading->tokens->token[i];
        if (memcmp(other->hash, token->hash, sizeof token->hash) == 0)
            return refuse(reading, "the hash of a line before");
        if (strcmp(other->name, token->name) == 0 &&
            (other->most_bytes != token->most_bytes ||
             other->most_names != token->most_names))
            return refuse(reading, "another quota than on the line before of "
                                   "that name");
    }
    return ROPED_OK;
}

static enum roped_status expect(const char *what, struct roped_error *err)
{
    return roped_fail(err, ROPED_INVALID, "expected %s", what);
}

enum roped_status token_read_line(char *text, struct token *out,
                                  struct roped_error *err)
{
    char *column[N_COLUMNS] = {NULL}, known[128];
    int n = split(text, column);
    *out = (struct token){.most_bytes = UINT64_MAX, .most_names = UINT64_MAX};
    if (n <= SCOPES_COLUMN || n > N_COLUMNS)
        return expect("'name sha256:HEX scopes [quota]'", err);
    if (!read_name(column[NAME_COLUMN], out))
        return expect("a name of 1 to 63 letters, digits, '.', '_' or '-'",
                      err);
    if (!read_hash(column[HASH_COLUMN], out))
        return expect("'sha256:' and 64 hexadecimal digits behind the name",
                      err);
    if (!read_scopes(column[SCOPES_COLUMN], out))
        return roped_fail(err, ROPED_INVALID,
                          "expected scopes out of %s, with ',' between them",
                          scopes_text(~0u, known, sizeof known));
    if (n > QUOTA_COLUMN && !read_quota(column[QUOTA_COLUMN], out))
        return expect("a quota like bytes=1g,names=100, or '-'", err);
    return ROPED_OK;
}

static enum roped_status read_named(struct reading *reading)
{
    struct token token;
    struct roped_error why;
    if (reading->length == 0 || reading->text[0] == '#')
        return ROPED_OK;
    if (reading->length != strlen(reading->text))
        return refuse(reading, "a NUL in it");
    if (token_read_line(reading->text, &token, &why))
        return refuse(reading, why.text);
    enum roped_status status = check_unique(reading, &token);
    return status ? status : add(reading, &token);
}

/* ------------------------------------------------------------------- file */

/* What a file with a token alone starts with is one word. */
static bool is_plain(const struct reading *reading)
{
    return reading->length > 0 && reading->text[0] != '#' &&
           !strpbrk(reading->text, " \t\r");
}

static enum roped_status read_all(struct reading *reading)
{
    enum roped_status status = ROPED_OK;
    bool has_line = read_line(reading);
    if (has_line && is_plain(reading))
        return read_plain(reading);
    for (; has_line && !status; has_line = read_line(reading))
        status = read_named(reading);
    if (!status && !reading->tokens)
        return roped_fail(reading->err, ROPED_INVALID,
                          "bearer_token_file '%s' holds no token",
                          reading->path);
    return status;
}

static void warn_if_shared(const char *path, mode_t mode)
{
    char quoted[1024];
    if ((mode & (S_IRWXG | S_IRWXO)) == 0)
        return;
    log_line(LOG_WARN, "token",
             "message=\"others may use bearer_token_file, expected mode "
             "0600\" path=\"%s\" mode=%04o",
             log_quote(path, quoted, sizeof quoted), (unsigned)mode & 07777);
}

enum roped_status tokens_read(const char *path, struct tokens **out,
                              struct roped_error *err)
{
    struct io_file file;
    struct reading reading = {.path = path, .err = err};
    *out = NULL;
    enum roped_status status =
        io_read_file("bearer_token_file", path, &file, err);
    if (!status) {
        reading.rest = file.text;
        reading.end = file.text + file.bytes;
        status = read_all(&reading);
    }
    if (!status)
        warn_if_shared(path, file.mode);
    io_free_file(&file);
    if (status)
        free(reading.tokens);
    else
        *out = reading.tokens;
    return status;
}

/* ------------------------------------------------------------------- find */

/* What stands behind "Bearer "; NULL: the header is another. */
static const char *sent_token(const char *header, size_t *bytes)
{
    static const char scheme[] = "Bearer ";
    if (strncasecmp(header, scheme, sizeof scheme - 1) != 0)
        return NULL;
    const char *sent = header + sizeof scheme - 1;
    sent += strspn(sent, " ");
    *bytes = strlen(sent);
    while (*bytes > 0 && is_blank(sent[*bytes - 1]))
        --*bytes;
    return sent;
}

/* Looks at every byte, whatever they are. */
static bool is_same(const unsigned char *a, const unsigned char *b)
{
    unsigned difference = 0;
    for (size_t i = 0; i < TOKEN_HASH_BYTES; i++)
        difference |= (unsigned)a[i] ^ b[i];
    return difference == 0;
}

const struct token *tokens_find(const struct tokens *tokens, const char *header,
                                const char **why)
{
    unsigned char sent_hash[TOKEN_HASH_BYTES];
    const struct token *found = NULL;
    size_t bytes = 0;
    const char *sent = header ? sent_token(header, &bytes) : NULL;
    *why = sent ? "wrong bearer token"
                : "missing bearer token, expected 'Authorization: Bearer ...'";
    if (!sent || !token_hash(sent, bytes, sent_hash))
        return NULL;
    for (size_t i = 0; i < tokens->n; i++)
        if (is_same(tokens->token[i].hash, sent_hash))
            found = &tokens->token[i]; /* and on, to the last */
    return found;
}
