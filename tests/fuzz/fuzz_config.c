/*
 * fuzz_config.c - any bytes as a configuration file, and its lines as flags.
 * Promises: the text is taken or refused with a reason, and what --check-config
 * writes of a file that was taken is a file that says the same.
 */
#include "fuzz.h"

#include "config.h"

#include <string.h>
#include <sys/mman.h>

enum { MAX_FLAGS = 64 };

static bool load(struct config *config, int n, char **flags)
{
    struct roped_error err = {.text = ""};
    enum config_action action;
    memset(config, 0, sizeof *config);
    enum roped_status status = config_load(config, n, flags, &action, &err);
    FUZZ_PROMISE(!status || is_refusal(status));
    FUZZ_PROMISE(status == ROPED_OK || err.text[0]);
    FUZZ_PROMISE(action >= CONFIG_RUN && action <= CONFIG_HEALTHCHECK);
    return status == ROPED_OK;
}

/* A file of these bytes alone, in memory. */
static FILE *open_file(const void *data, size_t bytes)
{
    int fd = memfd_create("roped.conf", MFD_CLOEXEC);
    FILE *file = fd >= 0 ? fdopen(fd, "w+") : NULL;
    FUZZ_PROMISE(file != NULL);
    FUZZ_PROMISE(fwrite(data, 1, bytes, file) == bytes);
    FUZZ_PROMISE(fflush(file) == 0);
    return file;
}

static void write_text(const struct config *config, char **text, size_t *bytes)
{
    FILE *out = open_memstream(text, bytes);
    FUZZ_PROMISE(out != NULL);
    config_write(config, out);
    FUZZ_PROMISE(fclose(out) == 0);
}

static bool load_file(struct config *config, FILE *file)
{
    char program[] = "roped", flag[] = "--config", path[64];
    char *flags[] = {program, flag, path, NULL};
    snprintf(path, sizeof path, "/proc/self/fd/%d", fileno(file));
    return load(config, 3, flags);
}

static void read_as_file(const uint8_t *input, size_t bytes)
{
    static struct config config;
    FILE *file = open_file(input, bytes);
    if (load_file(&config, file)) {
        char *text, *again;
        size_t text_bytes, again_bytes;
        write_text(&config, &text, &text_bytes);
        FILE *written = open_file(text, text_bytes);
        FUZZ_PROMISE(load_file(&config, written));
        write_text(&config, &again, &again_bytes);
        FUZZ_PROMISE(text_bytes == again_bytes &&
                     memcmp(text, again, text_bytes) == 0);
        fclose(written);
        free(text);
        free(again);
    }
    fclose(file);
}

/* Each line is an argument. Without '/', so that --config names nothing that
 * blocks. */
static void read_as_flags(const uint8_t *input, size_t bytes)
{
    static struct config config;
    char program[] = "roped", *flags[MAX_FLAGS + 1] = {program};
    char *text = malloc(bytes + 1), *at = text;
    int n = 1;
    FUZZ_PROMISE(text != NULL);
    memcpy(text, input, bytes);
    text[bytes] = '\0';
    while (at && n < MAX_FLAGS) {
        flags[n++] = at;
        at = strchr(at, '\n');
        if (at)
            *at++ = '\0';
    }
    (void)load(&config, n, flags);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t bytes)
{
    read_as_file(input, bytes);
    if (!memchr(input, '/', bytes))
        read_as_flags(input, bytes);
    return 0;
}
