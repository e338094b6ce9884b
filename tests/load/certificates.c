/*
 * certificates.c - one shell script.
 */
#include "load/certificates.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* sign NAME KEY DAYS USE: openssl 3 takes negative days */
static const char script[] =
    "cd %s && exec 2>log && set -e\n"
    "ec='ec -pkeyopt ec_paramgen_curve:P-256'\n"
    "sign() {\n"
    "  openssl req -newkey $2 -nodes -keyout $1.key -out $1.csr -subj /CN=$1\n"
    "  printf 'subjectAltName=DNS:localhost,IP:127.0.0.1\\n"
    "extendedKeyUsage=%%s\\n' $4 >$1.ext\n"
    "  openssl x509 -req -in $1.csr -CA ca.pem -CAkey ca.key -CAcreateserial "
    "-days $3 -extfile $1.ext -out $1.pem\n"
    "}\n"
    "openssl req -x509 -newkey $ec -nodes -keyout ca.key -out ca.pem -days 9 "
    "-subj /CN=ca\n"
    "sign server \"$ec\" 9 serverAuth\n"
    "sign other \"$ec\" 9 serverAuth\n"
    "sign rsa rsa:2048 9 serverAuth\n"
    "sign expired \"$ec\" -1 serverAuth\n"
    "sign client \"$ec\" 9 clientAuth\n"
    "openssl req -x509 -newkey $ec -nodes -keyout stranger.key -out "
    "stranger.pem -days 9 -subj /CN=stranger\n";

static bool run(const char *command)
{
    return system(command) == 0;
}

bool certificates_make(struct certificates *out)
{
    char command[sizeof script + sizeof out->folder];
    snprintf(out->folder, sizeof out->folder, "/tmp/roped_tls_XXXXXX");
    if (!mkdtemp(out->folder))
        return false;
    snprintf(command, sizeof command, script, out->folder);
    return run(command);
}

void certificates_remove(const struct certificates *certificates)
{
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", certificates->folder);
    (void)run(command);
}

bool certificates_replace(const struct certificates *certificates,
                          const char *name, const char *by)
{
    char command[256];
    snprintf(command, sizeof command,
             "cd %s && cp %s.pem %s.pem && cp %s.key %s.key",
             certificates->folder, by, name, by, name);
    return run(command);
}
