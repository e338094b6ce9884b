/*
 * token.c - reads the bearer token and compares it with what a client sent.
 */
#include "token.h"

#include "log.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

static bool is_blank(int c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* The length of the first line between its blanks; out->text holds as much of
 * it as fits. */
static size_t read_line(FILE *file, struct token *out)
{
    size_t n = 0, length = 0;
    int c;
    while ((c = getc(file)) != EOF && c != '\n') {
        if (n == 0 && is_blank(c))
            continue;
        if (n < TOKEN_BYTES - 1)
            out->text[n] = (char)c;
        n++;
        if (!is_blank(c))
            length = n;
    }
    return length;
}

/* A header carries printable ASCII; a space would end the token. */
static enum roped_status check(const char *path, const struct token *token,
                               size_t length, struct roped_error *err)
{
    if (length == 0)
        return roped_fail(err, ROPED_INVALID,
                          "bearer_token_file '%s' holds no token", path);
    if (length > TOKEN_BYTES - 1)
        return roped_fail(err, ROPED_INVALID,
                          "bearer_token_file '%s' holds a token of %zu bytes, "
                          "expected at most %d",
                          path, length, TOKEN_BYTES - 1);
    for (size_t i = 0; i < length; i++)
        if (token->text[i] < 0x21 || token->text[i] > 0x7E)
            return roped_fail(
                err, ROPED_INVALID,
                "bearer_token_file '%s': character %zu of the token is a space "
                "or a control character, or not ASCII",
                path, i + 1);
    return ROPED_OK;
}

static void warn_if_shared(const char *path, FILE *file)
{
    struct stat status;
    char quoted[1024];
    if (fstat(fileno(file), &status) != 0 ||
        (status.st_mode & (S_IRWXG | S_IRWXO)) == 0)
        return;
    log_line(LOG_WARN, "token",
             "message=\"others may use bearer_token_file, expected mode "
             "0600\" path=\"%s\" mode=%04o",
             log_quote(path, quoted, sizeof quoted),
             (unsigned)status.st_mode & 07777);
}

enum roped_status token_read(const char *path, struct token *out,
                             struct roped_error *err)
{
    *out = (struct token){.bytes = 0};
    if (!path[0])
        return ROPED_OK;
    FILE *file = fopen(path, "re");
    if (!file)
        return roped_fail(err, ROPED_INVALID,
                          "cannot read bearer_token_file '%s': %s", path,
                          strerror(errno));
    size_t length = read_line(file, out);
    enum roped_status status =
        ferror(file) ? roped_fail(err, ROPED_INVALID,
                                  "cannot read bearer_token_file '%s': %s",
                                  path, strerror(errno))
                     : check(path, out, length, err);
    if (!status)
        warn_if_shared(path, file);
    fclose(file);
    out->bytes = status ? 0 : length;
    out->text[out->bytes] = '\0';
    return status;
}

/* Looks at every byte of the secret, whatever was sent. */
static bool is_secret(const struct token *token, const char *sent, size_t bytes)
{
    unsigned difference = bytes != token->bytes;
    for (size_t i = 0; i < token->bytes; i++) {
        unsigned char c = i < bytes ? (unsigned char)sent[i] : 0;
        difference |= (unsigned)c ^ (unsigned char)token->text[i];
    }
    return difference == 0;
}

bool token_matches(const struct token *token, const char *header)
{
    static const char scheme[] = "Bearer ";
    if (token->bytes == 0)
        return true;
    if (!header || strncasecmp(header, scheme, sizeof scheme - 1) != 0)
        return false;
    const char *sent = header + sizeof scheme - 1;
    sent += strspn(sent, " ");
    size_t bytes = strlen(sent);
    while (bytes > 0 && is_blank(sent[bytes - 1]))
        bytes--;
    return is_secret(token, sent, bytes);
}
