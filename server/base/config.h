/*
 * config.h - every setting of the daemon, from one table (config.def):
 * defaults < file < environment (ROPED_<KEY>) < flags (--key value).
 */
#ifndef ROPED_CONFIG_H
#define ROPED_CONFIG_H

#include <roped/status.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum {
    CONFIG_TEXT_BYTES = 256,
    CONFIG_LIST_BYTES = 1024,
    CONFIG_MAX_DEVICES = 16
};

struct config {
#define CONFIG_TEXT(id, init, help)                  char id[CONFIG_TEXT_BYTES];
#define CONFIG_LIST(id, init, help)                  char id[CONFIG_LIST_BYTES];
#define CONFIG_COUNT(id, unit, init, min, max, help) int64_t id;
#define CONFIG_BYTES(id, unit, init, min, max, help) uint64_t id;
#define CONFIG_SECONDS(id, init, min, max, help)     double id;
#define CONFIG_BOOL(id, init, help)                  bool id;
#define CONFIG_CHOICE(id, init, choices, help)       char id[CONFIG_TEXT_BYTES];
#include "config.def"
};

/* What the command line asks for besides settings. */
enum config_action {
    CONFIG_RUN,
    CONFIG_HELP,
    CONFIG_VERSION,
    CONFIG_CHECK,      /* --check-config */
    CONFIG_SAMPLE,     /* --sample-config: makes deploy/roped.conf */
    CONFIG_HEALTHCHECK /* --healthcheck: ask a running daemon */
};

/* Reads everything, in order; ROPED_INVALID names key, source and range. */
ROPED_MUST_CHECK enum roped_status config_load(struct config *config, int argc,
                                               char **argv,
                                               enum config_action *action,
                                               struct roped_error *err);

/* A number, all of text; has_unit: k, m, g or t may follow. False: it is none.
 */
bool config_parse_number(const char *text, bool has_unit, double *out);

/* The indices that 'devices' or 'device' lists; 0 of them: all there are. */
ROPED_MUST_CHECK enum roped_status config_devices(const struct config *config,
                                                  int out[CONFIG_MAX_DEVICES],
                                                  int *n,
                                                  struct roped_error *err);

/* How many there are to be: as set, or what fits the cores that the process may
 * run on. A call then finds a lane of its own on whatever thread it comes. */
int config_http_threads(const struct config *config);
int config_lanes(const struct config *config);

/* Takes the next item off a list into item; false: there is none. */
bool config_next(const char **list, char item[CONFIG_TEXT_BYTES]);

/* Every key with unit, default and help: --help, and roped.conf (commented). */
void config_write_help(FILE *out);
void config_write_sample(FILE *out);

/* The settings in force, as a configuration file. */
void config_write(const struct config *config, FILE *out);

#endif
