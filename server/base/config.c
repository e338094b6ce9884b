/*
 * config.c - settings from config.def: one row per key, and one parser per
 * kind that serves file, environment and flags alike.
 */
#include "config.h"

#include "io.h"

#include <roped/nearest.h>

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_THREADS = 32, LEAST_LANES = 4 /* by default */ };

enum kind { TEXT, LIST, COUNT, BYTES, SECONDS, BOOL, CHOICE };

struct row {
    const char *key;
    enum kind kind;
    size_t offset;
    const char *init_text; /* TEXT, LIST, CHOICE */
    double init, min, max;
    const char *unit; /* of numbers, which COUNT, BYTES and SECONDS are */
    const char *choices;
    const char *help;
};

static const char backend_choices[] = "auto"
#define BACKEND(name, title)    "|" #name
#define NO_BACKEND(name, title) BACKEND(name, title)
#include <roped/backends.def>
    ;

/* clang-format off */
static const struct row rows[] = {
#define CONFIG_TEXT(id, init_, help_) {#id, TEXT, offsetof(struct config, id), .init_text = init_, .help = help_},
#define CONFIG_LIST(id, init_, help_) {#id, LIST, offsetof(struct config, id), .init_text = init_, .help = help_},
#define CONFIG_COUNT(id, unit_, init_, min_, max_, help_) {#id, COUNT, offsetof(struct config, id), .unit = unit_, .init = init_, .min = min_, .max = max_, .help = help_},
#define CONFIG_BYTES(id, unit_, init_, min_, max_, help_) {#id, BYTES, offsetof(struct config, id), .unit = unit_, .init = (double)(init_), .min = (double)(min_), .max = (double)(max_), .help = help_},
#define CONFIG_SECONDS(id, init_, min_, max_, help_) {#id, SECONDS, offsetof(struct config, id), .unit = "seconds", .init = init_, .min = min_, .max = max_, .help = help_},
#define CONFIG_BOOL(id, init_, help_) {#id, BOOL, offsetof(struct config, id), .init = init_, .help = help_},
#define CONFIG_CHOICE(id, init_, choices_, help_) {#id, CHOICE, offsetof(struct config, id), .init_text = init_, .choices = choices_, .help = help_},
#include "config.def"
};
/* clang-format on */

enum { N_ROWS = sizeof rows / sizeof *rows };

/* Where values come from: "command line", "environment", "x.conf", line 3 */
struct source {
    const char *name;
    int line;            /* 0: none */
    bool has_it[N_ROWS]; /* of a list: the next one is added to it */
};

static enum roped_status refuse(const struct source *source, const char *key,
                                const char *value, const char *expected,
                                struct roped_error *err)
{
    char where[160];
    if (source->line)
        snprintf(where, sizeof where, "%.140s:%d", source->name, source->line);
    else
        snprintf(where, sizeof where, "%.140s", source->name);
    return roped_fail(err, ROPED_INVALID, "%s: %s is '%.64s', expected %s",
                      where, key, value, expected);
}

/* ----------------------------------------------------------------- values */

bool config_parse_number(const char *text, bool has_unit, double *out)
{
    char *end;
    if (!isdigit((unsigned char)text[0]))
        return false;
    errno = 0;
    *out = strtod(text, &end);
    int unit = tolower((unsigned char)*end);
    if (has_unit && unit && strchr("kmgt", unit)) {
        *out *= ldexp(1, 10 * (unit == 'k'   ? 1
                               : unit == 'm' ? 2
                               : unit == 'g' ? 3
                                             : 4));
        end++;
    }
    return *end == '\0' && errno == 0 && isfinite(*out);
}

static bool is_choice(const char *choices, const char *text)
{
    size_t length = strlen(text);
    while (*choices) {
        size_t n = strcspn(choices, "|");
        if (n == length && memcmp(choices, text, n) == 0)
            return true;
        choices += n + (choices[n] == '|');
    }
    return false;
}

static enum roped_status set_number(struct config *config,
                                    const struct row *row,
                                    const struct source *source,
                                    const char *text, struct roped_error *err)
{
    char *at = (char *)config + row->offset;
    char expected[96];
    double value;
    bool is_whole = row->kind != SECONDS;
    snprintf(expected, sizeof expected, "%.15g to %.15g (%s%s)", row->min,
             row->max, row->unit, row->kind == BYTES ? "; k, m, g, t" : "");
    if (!config_parse_number(text, row->kind == BYTES, &value) ||
        value < row->min || value > row->max ||
        (is_whole && value != floor(value)))
        return refuse(source, row->key, text, expected, err);
    if (row->kind == COUNT)
        *(int64_t *)(void *)at = (int64_t)value;
    else if (row->kind == BYTES)
        *(uint64_t *)(void *)at = (uint64_t)value;
    else
        *(double *)(void *)at = value;
    return ROPED_OK;
}

/* The first one of a source replaces what others said, further ones add. */
static enum roped_status set_list(struct config *config, const struct row *row,
                                  struct source *source, const char *text,
                                  struct roped_error *err)
{
    char *at = (char *)config + row->offset;
    bool *has_it = &source->has_it[row - rows];
    size_t used = *has_it ? strlen(at) : 0;
    if (strlen(text) >= CONFIG_TEXT_BYTES ||
        used + strlen(text) + 1 >= CONFIG_LIST_BYTES)
        return refuse(source, row->key, text,
                      "at most 255 characters, and 1022 of all together", err);
    snprintf(at + used, CONFIG_LIST_BYTES - used, "%s%s", used ? "," : "",
             text);
    *has_it = true;
    return ROPED_OK;
}

static enum roped_status set_value(struct config *config, const struct row *row,
                                   struct source *source, const char *text,
                                   struct roped_error *err)
{
    char *at = (char *)config + row->offset;
    bool is_true;
    switch (row->kind) {
    case COUNT:
    case BYTES:
    case SECONDS:
        return set_number(config, row, source, text, err);
    case BOOL:
        is_true = is_choice("true|1|yes|on", text);
        if (!is_true && !is_choice("false|0|no|off", text))
            return refuse(source, row->key, text, "true or false", err);
        *(bool *)(void *)at = is_true;
        return ROPED_OK;
    case LIST:
        return set_list(config, row, source, text, err);
    case CHOICE:
        if (!is_choice(row->choices, text))
            return refuse(source, row->key, text, row->choices, err);
        break;
    case TEXT:
        if (strlen(text) >= CONFIG_TEXT_BYTES)
            return refuse(source, row->key, text, "at most 255 characters",
                          err);
        break;
    }
    snprintf(at, CONFIG_TEXT_BYTES, "%s", text);
    return ROPED_OK;
}

static void set_defaults(struct config *config)
{
    memset(config, 0, sizeof *config);
    for (int i = 0; i < N_ROWS; i++) {
        char *at = (char *)config + rows[i].offset;
        switch (rows[i].kind) {
        case TEXT:
        case LIST:
        case CHOICE:
            snprintf(at, CONFIG_TEXT_BYTES, "%s", rows[i].init_text);
            break;
        case COUNT:
            *(int64_t *)(void *)at = (int64_t)rows[i].init;
            break;
        case BYTES:
            *(uint64_t *)(void *)at = (uint64_t)rows[i].init;
            break;
        case SECONDS:
            *(double *)(void *)at = rows[i].init;
            break;
        case BOOL:
            *(bool *)(void *)at = rows[i].init != 0;
            break;
        }
    }
}

/* ------------------------------------------------------------------- keys */

/* '-' and '_' are the same. */
static bool same_key(const char *key, const char *text, size_t length)
{
    if (strlen(key) != length)
        return false;
    for (size_t i = 0; i < length; i++)
        if (key[i] != (text[i] == '-' ? '_' : text[i]))
            return false;
    return true;
}

static const struct row *find_row(const char *text, size_t length)
{
    for (int i = 0; i < N_ROWS; i++)
        if (same_key(rows[i].key, text, length))
            return &rows[i];
    return NULL;
}

static enum roped_status unknown_key(const struct source *source,
                                     const char *text, struct roped_error *err)
{
    char word[ROPED_NEAREST_BYTES], near[96], expected[128];
    struct roped_nearest nearest = {.word = word};
    snprintf(word, sizeof word, "%.*s", (int)strcspn(text, "="), text);
    for (int i = 0; i < N_ROWS; i++)
        roped_nearest_offer(&nearest, rows[i].key);
    snprintf(expected, sizeof expected, "a key of --help%s",
             roped_nearest_text(&nearest, near, sizeof near));
    return refuse(source, "key", text, expected, err);
}

/* ---------------------------------------------------------------- sources */

static char *trim(char *text)
{
    while (isspace((unsigned char)*text))
        text++;
    char *end = text + strlen(text);
    while (end > text && isspace((unsigned char)end[-1]))
        *--end = '\0';
    return text;
}

/* One line of a file, which it changes: a setting, a comment, or nothing. */
static enum roped_status read_line(struct config *config, char *line,
                                   struct source *source,
                                   struct roped_error *err)
{
    line[strcspn(line, "#")] = '\0';
    char *key = trim(line), *equals = strchr(key, '=');
    if (!*key)
        return ROPED_OK;
    if (!equals)
        return refuse(source, "line", key, "key = value", err);
    *equals = '\0';
    const char *value = trim(equals + 1);
    key = trim(key);
    const struct row *row = find_row(key, strlen(key));
    return row ? set_value(config, row, source, value, err)
               : unknown_key(source, key, err);
}

enum { MOST_LINE = 1022 }; /* characters */

static enum roped_status read_file(struct config *config, const char *path,
                                   struct roped_error *err)
{
    struct io_file file;
    struct source source = {.name = path};
    enum roped_status status =
        io_read_file("configuration file", path, &file, err);
    char *line = file.text, *end = line ? line + file.bytes : line;
    while (!status && line < end) {
        char *feed = memchr(line, '\n', (size_t)(end - line));
        size_t length = feed ? (size_t)(feed - line) : (size_t)(end - line);
        line[length] = '\0';
        source.line++;
        status = length != strlen(line)
                     ? refuse(&source, "line", line, "no NUL", err)
                 : length > MOST_LINE ? refuse(&source, "line", line,
                                               "at most 1022 characters", err)
                                      : read_line(config, line, &source, err);
        line = feed ? feed + 1 : end;
    }
    io_free_file(&file);
    return status;
}

static enum roped_status read_environment(struct config *config,
                                          struct roped_error *err)
{
    struct source source = {.name = "environment"};
    for (int i = 0; i < N_ROWS; i++) {
        char name[80] = "ROPED_";
        for (size_t j = 0; rows[i].key[j] && j < 64; j++) {
            name[6 + j] = (char)toupper((unsigned char)rows[i].key[j]);
            name[7 + j] = '\0';
        }
        const char *value = getenv(name);
        if (!value)
            continue;
        enum roped_status status =
            set_value(config, &rows[i], &source, value, err);
        if (status)
            return status;
    }
    return ROPED_OK;
}

static const struct {
    const char *flag;
    enum config_action action;
} actions[] = {{"--help", CONFIG_HELP},
               {"-h", CONFIG_HELP},
               {"--version", CONFIG_VERSION},
               {"--check-config", CONFIG_CHECK},
               {"--sample-config", CONFIG_SAMPLE},
               {"--healthcheck", CONFIG_HEALTHCHECK}};

static bool read_action(const char *argument, enum config_action *action)
{
    for (size_t i = 0; i < sizeof actions / sizeof *actions; i++)
        if (strcmp(argument, actions[i].flag) == 0) {
            *action = actions[i].action;
            return true;
        }
    return false;
}

/* One flag at argv[i]; returns how many arguments it took, 0 on failure. */
static int read_flag(struct config *config, struct source *source, int argc,
                     char **argv, int i, struct roped_error *err)
{
    if (strncmp(argv[i], "--", 2) != 0) {
        (void)refuse(source, "argument", argv[i], "--key value", err);
        return 0;
    }
    const char *text = argv[i] + 2;
    size_t length = strcspn(text, "=");
    const struct row *row = find_row(text, length);
    if (!row) {
        (void)unknown_key(source, text, err);
        return 0;
    }
    const char *value = text[length] == '=' ? text + length + 1 : NULL;
    int used = 1;
    bool next_is_value = i + 1 < argc && strncmp(argv[i + 1], "--", 2) != 0;
    if (!value && row->kind == BOOL && !next_is_value) {
        value = "true";
    } else if (!value && next_is_value) {
        value = argv[i + 1];
        used = 2;
    } else if (!value) {
        (void)roped_fail(err, ROPED_INVALID, "command line: --%s needs a value",
                         row->key);
        return 0;
    }
    return set_value(config, row, source, value, err) ? 0 : used;
}

/* The last --config, else ROPED_CONFIG, else *path is NULL. */
static enum roped_status find_file(int argc, char **argv, const char **path,
                                   struct roped_error *err)
{
    *path = getenv("ROPED_CONFIG");
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--config=", 9) == 0)
            *path = argv[i] + 9;
        else if (strcmp(argv[i], "--config") != 0)
            continue;
        else if (i + 1 < argc && strncmp(argv[i + 1], "--", 2) != 0)
            *path = argv[++i];
        else
            return roped_fail(err, ROPED_INVALID,
                              "command line: --config needs a value");
    }
    return ROPED_OK;
}

/* What needs no settings, so that a wrong one does not stand in its way. */
static bool asks_to_print(int argc, char **argv, enum config_action *action)
{
    for (int i = 1; i < argc; i++)
        if (read_action(argv[i], action) &&
            (*action == CONFIG_HELP || *action == CONFIG_VERSION ||
             *action == CONFIG_SAMPLE))
            return true;
    *action = CONFIG_RUN;
    return false;
}

enum roped_status config_load(struct config *config, int argc, char **argv,
                              enum config_action *action,
                              struct roped_error *err)
{
    const char *path;
    struct source source = {.name = "command line"};
    set_defaults(config);
    if (asks_to_print(argc, argv, action))
        return ROPED_OK;
    enum roped_status status = find_file(argc, argv, &path, err);
    if (!status && path && path[0])
        status = read_file(config, path, err);
    if (!status)
        status = read_environment(config, err);
    for (int i = 1; i < argc && !status;) {
        if (strcmp(argv[i], "--config") == 0) {
            i += 2;
        } else if (strncmp(argv[i], "--config=", 9) == 0 ||
                   read_action(argv[i], action)) {
            i++;
        } else {
            int used = read_flag(config, &source, argc, argv, i, err);
            if (used == 0)
                return err ? err->status : ROPED_INVALID;
            i += used;
        }
    }
    int devices[CONFIG_MAX_DEVICES], n;
    return status ? status : config_devices(config, devices, &n, err);
}

bool config_next(const char **list, char item[CONFIG_TEXT_BYTES])
{
    *list += strspn(*list, ", \t");
    size_t bytes = strcspn(*list, ", \t");
    snprintf(item, CONFIG_TEXT_BYTES, "%.*s", (int)bytes, *list);
    *list += bytes;
    return bytes > 0;
}

/* ---------------------------------------------------------------- devices */

enum { MAX_DEVICE_INDEX = 63 };

/* Reads "0,1": digits alone between the commas. */
static bool parse_devices(const char *text, int out[CONFIG_MAX_DEVICES], int *n)
{
    *n = 0;
    for (;;) {
        char *end;
        if (!isdigit((unsigned char)*text) || *n == CONFIG_MAX_DEVICES)
            return false;
        long index = strtol(text, &end, 10);
        if (index > MAX_DEVICE_INDEX)
            return false;
        out[(*n)++] = (int)index;
        if (*end == '\0')
            return true;
        if (*end != ',')
            return false;
        text = end + 1;
    }
}

enum roped_status config_devices(const struct config *config,
                                 int out[CONFIG_MAX_DEVICES], int *n,
                                 struct roped_error *err)
{
    bool is_one = config->devices[0] == '\0';
    const char *text = is_one ? config->device : config->devices;
    *n = 0;
    if (!is_one && config->device[0])
        return roped_fail(err, ROPED_INVALID,
                          "devices is '%.64s' and device is '%.64s', expected "
                          "one of the two",
                          config->devices, config->device);
    if (!text[0])
        return ROPED_OK;
    if (parse_devices(text, out, n) && (!is_one || *n == 1))
        return ROPED_OK;
    if (is_one)
        return roped_fail(err, ROPED_INVALID,
                          "device is '%.64s', expected 0 to %d", text,
                          MAX_DEVICE_INDEX);
    return roped_fail(err, ROPED_INVALID,
                      "devices is '%.64s', expected 1 to %d indices of 0 to %d "
                      "with commas between them",
                      text, CONFIG_MAX_DEVICES, MAX_DEVICE_INDEX);
}

/* ---------------------------------------------------------------- defaults */

int config_http_threads(const struct config *config)
{
    cpu_set_t ours;
    if (config->http_threads > 0)
        return (int)config->http_threads;
    int cores =
        sched_getaffinity(0, sizeof ours, &ours) == 0 ? CPU_COUNT(&ours) : 1;
    return cores > MOST_THREADS ? MOST_THREADS : cores;
}

int config_lanes(const struct config *config)
{
    int threads = config_http_threads(config);
    if (config->lanes > 0)
        return (int)config->lanes;
    return threads < LEAST_LANES ? LEAST_LANES : threads;
}

/* ---------------------------------------------------------------- writing */

static void write_bytes(FILE *out, double value)
{
    static const char units[] = "tgmk";
    for (int i = 0; i < 4; i++) {
        double unit = ldexp(1, 10 * (4 - i));
        if (value >= unit && value == unit * floor(value / unit)) {
            fprintf(out, "%.0f%c", value / unit, units[i]);
            return;
        }
    }
    fprintf(out, "%.0f", value);
}

static void write_default(FILE *out, const struct row *row)
{
    switch (row->kind) {
    case TEXT:
    case LIST:
    case CHOICE:
        fputs(row->init_text, out);
        break;
    case BOOL:
        fputs(row->init != 0 ? "true" : "false", out);
        break;
    case BYTES:
        write_bytes(out, row->init);
        break;
    case COUNT:
    case SECONDS:
        fprintf(out, "%.15g", row->init);
        break;
    }
}

/* "; bytes, 1m to 1t": what a key may be, or nothing for free text. */
static void write_range(FILE *out, const char *lead, const struct row *row)
{
    switch (row->kind) {
    case TEXT:
        return;
    case LIST:
        fprintf(out, "%sa list: commas, or several times", lead);
        return;
    case CHOICE:
        fprintf(out, "%s%s", lead, row->choices);
        return;
    case BOOL:
        fprintf(out, "%strue|false", lead);
        return;
    case BYTES:
        fprintf(out, "%s%s, ", lead, row->unit);
        write_bytes(out, row->min);
        fputs(" to ", out);
        write_bytes(out, row->max);
        return;
    case COUNT:
    case SECONDS:
        fprintf(out, "%s%s, %.15g to %.15g", lead, row->unit, row->min,
                row->max);
        return;
    }
}

void config_write_help(FILE *out)
{
    fputs("usage: roped [--config FILE] [--key value ...]\n"
          "       roped --check-config | --sample-config | --healthcheck | "
          "--version | --help\n"
          "\n"
          "FILE (or ROPED_CONFIG) has lines 'key = value'. Keys, also as\n"
          "ROPED_<KEY> in the environment; the command line wins over the\n"
          "environment, which wins over the file:\n",
          out);
    for (int i = 0; i < N_ROWS; i++) {
        fprintf(out, "  --%s (", rows[i].key);
        write_default(out, &rows[i]);
        write_range(out, "; ", &rows[i]);
        fprintf(out, ")\n      %s\n", rows[i].help);
    }
}

void config_write_sample(FILE *out)
{
    fputs("# roped.conf - every key with its default. Flags win over the\n"
          "# environment (ROPED_<KEY>), which wins over this file. Bytes may "
          "end\n"
          "# in k, m, g or t (powers of 1024). A '#' starts a comment.\n",
          out);
    for (int i = 0; i < N_ROWS; i++) {
        bool has_default = rows[i].kind != TEXT || rows[i].init_text[0];
        fprintf(out, "\n# %s\n", rows[i].help);
        write_range(out, "# ", &rows[i]);
        if (rows[i].kind != TEXT)
            fputc('\n', out);
        fprintf(out, "#%s =%s", rows[i].key, has_default ? " " : "");
        write_default(out, &rows[i]);
        fputc('\n', out);
    }
}

void config_write(const struct config *config, FILE *out)
{
    for (int i = 0; i < N_ROWS; i++) {
        const char *at = (const char *)config + rows[i].offset;
        fprintf(out, "%s = ", rows[i].key);
        switch (rows[i].kind) {
        case TEXT:
        case LIST:
        case CHOICE:
            fputs(at, out);
            break;
        case BOOL:
            fputs(*(const bool *)(const void *)at ? "true" : "false", out);
            break;
        case COUNT:
            fprintf(out, "%lld", (long long)*(const int64_t *)(const void *)at);
            break;
        case BYTES:
            write_bytes(out, (double)*(const uint64_t *)(const void *)at);
            break;
        case SECONDS:
            fprintf(out, "%.15g", *(const double *)(const void *)at);
            break;
        }
        fputc('\n', out);
    }
}
