/*
 * certificates.c - one shell script.
 */
#include "load/certificates.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* sign NAME KEY WHEN USE: openssl 3.0 has dates in the past as negative days
 * alone, 3.4 as dates alone */
static const char script[] =
    "cd %s && exec 2>log && set -e\n"
    "ec='ec -pkeyopt ec_paramgen_curve:P-256'\n"
    "sign() {\n"
    "  openssl req -newkey $2 -nodes -keyout $1.key -out $1.csr -subj /CN=$1\n"
    "  printf 'subjectAltName=DNS:localhost,IP:127.0.0.1\\n"
    "extendedKeyUsage=%%s\\n' $4 >$1.ext\n"
    "  openssl x509 -req -in $1.csr -CA ca.pem -CAkey ca.key -CAcreateserial "
    "$3 -extfile $1.ext -out $1.pem\n"
    "}\n"
    "openssl req -x509 -newkey $ec -nodes -keyout ca.key -out ca.pem -days 9 "
    "-subj /CN=ca\n"
    "now='-days 9' past='-not_before 20200101000000Z -not_after "
    "20200102000000Z'\n"
    "openssl x509 -help 2>&1 | grep -q not_before || past='-days -1'\n"
    "sign server \"$ec\" \"$now\" serverAuth\n"
    "sign other \"$ec\" \"$now\" serverAuth\n"
    "sign rsa rsa:2048 \"$now\" serverAuth\n"
    "sign expired \"$ec\" \"$past\" serverAuth\n"
    "sign client \"$ec\" \"$now\" clientAuth\n"
    "openssl req -x509 -newkey $ec -nodes -keyout stranger.key -out "
    "stranger.pem -days 9 -subj /CN=stranger\n";

static bool run(const char *command)
{
    return system(command) == 0;
}

bool certificates_make(struct certificates *out)
{
    char command[sizeof script + sizeof out->folder];
    if (!run("command -v openssl >/dev/null"))
        return false;
    snprintf(out->folder, sizeof out->folder, "/tmp/roped_tls_XXXXXX");
    if (mkdtemp(out->folder)) {
        snprintf(command, sizeof command, script, out->folder);
        if (run(command))
            return true;
    }
    fprintf(stderr, "certificates: openssl failed; see %s/log\n", out->folder);
    exit(EXIT_FAILURE);
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
