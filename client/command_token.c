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
    if (!ctl->is_json) {
        printf("token  %s\nline   %s\n", secret->text, line);
        return EXIT_SUCCESS;
    }
    cJSON *document = cJSON_CreateObject();
    cJSON_AddStringToObject(document, "token", secret->text);
    cJSON_AddStringToObject(document, "line", line);
    return print_json(stdout, document);
}

static int new_token(const struct ropectl *ctl, const char *name,
                     const char *scopes, const char *quota)
{
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

int command_token(const struct ropectl *ctl, int argc, char **argv)
{
    const char *scopes = "call", *quota = NULL;
    struct option option;
    if (argc < 3 || strcmp(argv[1], "new") != 0)
        return usage("token", "expected 'new NAME'");
    for (int i = 3; i < argc; i++) {
        if (!read_option(argc, argv, &i, &option) || !option.value)
            return usage("token", "'%s' is no option with a value", argv[i]);
        if (strcmp(option.name, "scopes") == 0)
            scopes = option.value;
        else if (strcmp(option.name, "quota") == 0)
            quota = option.value;
        else
            return usage("token", "no option '--%s'", option.name);
    }
    return new_token(ctl, argv[2], scopes, quota);
}
