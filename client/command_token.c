/*
 * command_token.c - token: makes a bearer token, and the line by which a daemon
 * knows it.
 */
#include "ropectl.h"
#include "tokens.h"

#include <gnutls/crypto.h>
#include <stdlib.h>
#include <string.h>

enum { RANDOM_CHARACTERS = 43, LINE_BYTES = 512 }; /* of 6 bits each: 258 */

/* A token that scanners for secrets can tell. */
struct secret {
    char text[sizeof "roped_" + RANDOM_CHARACTERS];
    char hex[2 * TOKEN_HASH_BYTES + 1]; /* its SHA-256 */
};

static bool make_secret(struct secret *out)
{
    static const char characters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                     "abcdefghijklmnopqrstuvwxyz0123456789-_";
    unsigned char bits[RANDOM_CHARACTERS], hash[TOKEN_HASH_BYTES];
    if (gnutls_rnd(GNUTLS_RND_KEY, bits, sizeof bits) != 0)
        return false;
    char *at = stpcpy(out->text, "roped_");
    for (int i = 0; i < RANDOM_CHARACTERS; i++)
        *at++ = characters[bits[i] % 64];
    *at = '\0';
    if (!token_hash(out->text, strlen(out->text), hash))
        return false;
    for (size_t i = 0; i < sizeof hash; i++)
        snprintf(out->hex + 2 * i, 3, "%02x", hash[i]);
    return true;
}

static int print_token(const struct ropectl *ctl, const struct secret *secret,
                       const char *line)
{
    cJSON *document = cJSON_CreateObject();
    cJSON_AddStringToObject(document, "token", secret->text);
    cJSON_AddStringToObject(document, "line", line);
    return print_document(ctl, document);
}

/* What the token may do, as the daemon's file says it. */
struct rights {
    const char *scopes, *quota;
};

static int new_token(const struct ropectl *ctl, const char *name,
                     const struct rights *rights)
{
    const char *scopes = rights->scopes, *quota = rights->quota;
    char line[LINE_BYTES], copy[LINE_BYTES];
    struct secret secret;
    struct token token;
    struct roped_error err;
    if (!make_secret(&secret))
        return fail_text("no random numbers, or no SHA-256 of them");
    int length =
        snprintf(line, sizeof line, "%s sha256:%s %s%s%s", name, secret.hex,
                 scopes, quota ? " " : "", quota ? quota : "");
    memcpy(copy, line, sizeof copy);
    if (length >= (int)sizeof line)
        return usage("token", "name, scopes and quota are too long");
    if (token_read_line(copy, &token, &err))
        return usage("token", "'%s%s%s%s%s': %s", name, " ", scopes,
                     quota ? " " : "", quota ? quota : "", err.text);
    return print_token(ctl, &secret, line);
}

static bool set_scopes(void *target, const char *text)
{
    ((struct rights *)target)->scopes = text;
    return true;
}

static bool set_quota(void *target, const char *text)
{
    ((struct rights *)target)->quota = text;
    return true;
}

static const struct option_row options[] = {
    {"scopes", set_scopes, "call, regions, ..."},
    {"quota", set_quota, "bytes=1g,names=100"},
    {NULL}};

/* NAME, and options. */
static int make(const struct ropectl *ctl, const char *path, int argc,
                char **argv)
{
    struct rights rights = {.scopes = "call"};
    (void)path;
    int code = take_options("token", options, argc - 1, argv + 1, &rights);
    return code ? code : new_token(ctl, argv[0], &rights);
}

static const struct verb verbs[] = {{"new", "NAME", true, make}, {NULL}};

int command_token(const struct ropectl *ctl, int argc, char **argv)
{
    return run_verb(ctl, "token", NULL, verbs, argc, argv);
}
