/*
 * greeting.c - lines for people: where the daemon is, and one call that works
 * as it stands there. Not in the log of a service, whose standard error is no
 * terminal.
 */
#include "http/greeting.h"

#include "address.h"
#include "http/route.h"
#include "log.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

/* What curl needs to get there. */
struct way {
    char url[ADDRESS_TEXT_BYTES + 16];
    char options[3 * CONFIG_TEXT_BYTES]; /* each with a space behind it */
};

static void set_port(struct sockaddr *address, uint16_t port)
{
    struct sockaddr_in *v4 = (void *)address;
    struct sockaddr_in6 *v6 = (void *)address;
    if (address->sa_family == AF_INET6)
        v6->sin6_port = htons(port);
    else if (address->sa_family == AF_INET)
        v4->sin_port = htons(port);
}

static void add_option(struct way *way, const char *option, const char *value)
{
    size_t at = strlen(way->options);
    snprintf(way->options + at, sizeof way->options - at, "%s %s ", option,
             value);
}

/* To the first place of 'listen', which the port is of. */
static bool find_way(const struct config *config, uint16_t port,
                     struct way *way)
{
    struct sockaddr_storage storage;
    struct sockaddr *address = (struct sockaddr *)&storage;
    struct roped_error err;
    socklen_t bytes;
    char item[CONFIG_TEXT_BYTES], text[ADDRESS_TEXT_BYTES];
    const char *list = config->listen;
    const char *scheme = config->tls_cert_file[0] ? "https" : "http";
    if (!config_next(&list, item) ||
        address_parse("listen", item, &storage, &bytes, &err))
        return false;
    if (address->sa_family == AF_UNIX) {
        add_option(way, "--unix-socket", item + strlen("unix:"));
        snprintf(way->url, sizeof way->url, "%s://localhost", scheme);
        return true;
    }
    set_port(address, port);
    address_to_ask(address);
    snprintf(way->url, sizeof way->url, "%s://%s", scheme,
             address_text(address, bytes, text));
    return true;
}

/* Where a person sees what there is. */
static const char *page_path(void)
{
    struct route_match match;
    route_find("GET", "/docs", "text/html", &match);
    return match.route ? "/docs" : "/";
}

void greeting_write(const struct config *config, uint16_t port,
                    const char *version)
{
    char text[2000];
    struct way way = {.url = ""};
    if (!find_way(config, port, &way))
        return;
    if (config->tls_cert_file[0])
        add_option(&way, "--cacert", config->tls_cert_file);
    if (config->tls_client_ca_file[0])
        add_option(&way, "--cert", "YOURS.pem --key YOURS.key");
    if (config->bearer_token_file[0])
        add_option(&way, "-H", "\"Authorization: Bearer $ROPED_TOKEN\"");
    int n = snprintf(
        text, sizeof text,
        "\n  roped %s serves %s until Ctrl-C\n"
        "\n"
        "  in a browser  %s%s\n"
        "  in a shell    curl -sS %s%s/v2/models/rmsnorm/infer -d "
        "'{\"inputs\":[{\"name\":\"x\",\"shape\":[1,2],\"datatype\":\"FP32\","
        "\"data\":[3,4]}]}'\n\n",
        version, way.url, way.url, page_path(), way.options, way.url);
    if (n > 0 && n < (int)sizeof text)
        log_for_people(text);
}
