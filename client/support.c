/*
 * support.c - what every command of ropectl needs: guessing which operator was
 * meant, files, a connection, a request.
 */
#include "progress.h"
#include "ropectl.h"

#include "wire/json_reader.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const struct roped_op *find_op(const char *name)
{
    char text[128];
    struct roped_nearest nearest = {.word = name};
    const struct roped_op *op = roped_op_find(name);
    for (int i = 0; i < roped_op_count() && !op; i++)
        roped_nearest_offer(&nearest, roped_op_at(i)->name);
    if (!op)
        fail_text("no operator '%s'%s ('ropectl ops' lists all)", name,
                  roped_nearest_text(&nearest, text, sizeof text));
    return op;
}

/* ------------------------------------------------------ files and requests */

/* Bytes of a regular file and one more, so that its end is found without
 * growing; else a first guess. */
static size_t first_capacity(FILE *file)
{
    struct stat about;
    if (fstat(fileno(file), &about) == 0 && S_ISREG(about.st_mode) &&
        about.st_size >= 0)
        return (size_t)about.st_size + 1;
    return 1 << 16;
}

static unsigned char *read_all(FILE *file, size_t *bytes)
{
    size_t capacity = first_capacity(file), n = 0;
    unsigned char *all = malloc(capacity);
    while (all) {
        size_t got = fread(all + n, 1, capacity - n, file);
        n += got;
        if (got == 0)
            break;
        if (n < capacity)
            continue;
        capacity *= 2;
        unsigned char *grown = realloc(all, capacity);
        if (!grown)
            free(all);
        all = grown;
    }
    *bytes = n;
    return all;
}

/* False after saying so: where a region may be, nobody comes here. */
static bool is_file_name(const char *path)
{
    if (path[0] == '@')
        fail_text("'%s': a region cannot stand here, expected a file (./%s is "
                  "one)",
                  path, path);
    return path[0] != '@';
}

unsigned char *read_input(const char *path, size_t *bytes)
{
    if (!is_file_name(path))
        return NULL;
    bool is_stdin = strcmp(path, "-") == 0;
    FILE *file = is_stdin ? stdin : fopen(path, "rbe");
    unsigned char *all = NULL;
    if (!file) {
        fail_text("cannot read '%s': %s", path, strerror(errno));
        return NULL;
    }
    all = read_all(file, bytes);
    if (!all) {
        fail_text("cannot read '%s': no memory for %zu bytes", path, *bytes);
    } else if (ferror(file)) {
        fail_text("cannot read '%s': %s", path, strerror(errno));
        free(all);
        all = NULL;
    }
    if (!is_stdin)
        fclose(file);
    return all;
}

/* The folder of a path, to be freed. */
static char *folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        return must_have(strdup("."));
    return must_have(strndup(path, slash == path ? 1 : (size_t)(slash - path)));
}

bool can_write_file(const char *path)
{
    struct stat about;
    if (!is_file_name(path))
        return false;
    if (strcmp(path, "-") == 0)
        return true;
    int why = 0;
    if (stat(path, &about) == 0) {
        if (S_ISDIR(about.st_mode))
            why = EISDIR;
        else if (access(path, W_OK) != 0)
            why = errno;
    } else {
        char *folder = folder_of(path);
        if (access(folder, W_OK | X_OK) != 0)
            why = errno;
        free(folder);
    }
    if (why)
        fail_text("cannot write '%s': %s", path, strerror(why));
    return !why;
}

bool write_output(const char *path, const char *head, size_t head_bytes,
                  const void *data, size_t bytes)
{
    if (!is_file_name(path))
        return false;
    bool is_stdout = strcmp(path, "-") == 0;
    FILE *file = is_stdout ? stdout : fopen(path, "wbe");
    bool is_written = file && fwrite(head, 1, head_bytes, file) == head_bytes &&
                      fwrite(data, 1, bytes, file) == bytes;
    int why = errno;
    if (file && (is_stdout ? fflush(file) : fclose(file)) != 0 && is_written) {
        is_written = false;
        why = errno;
    }
    if (!is_written)
        fail_text("cannot write '%s': %s", path, strerror(why));
    return is_written;
}

struct roped_client *connect_to(const struct ropectl *ctl)
{
    struct roped_client_options options = ctl->options;
    struct roped_client *client;
    struct roped_error err;
    options.progress = progress_transfer;
    if (roped_client_open(&options, &client, &err) == ROPED_OK) {
        progress_start();
        return client;
    }
    fail(&err);
    return NULL;
}

int failed_request(const struct roped_client *client,
                   const struct roped_error *err)
{
    int answer = roped_client_http_status(client);
    fail(err);
    if (answer == 0)
        return err->status == ROPED_DEADLINE    ? EXIT_TIMEOUT
               : err->status == ROPED_NO_MEMORY ? EXIT_FAILURE
               : err->status == ROPED_TOO_LARGE ? EXIT_FAILURE
                                                : EXIT_UNREACHABLE;
    return (answer >= 400 && answer < 500) || answer == 501 ? EXIT_REFUSED
                                                            : EXIT_SERVER;
}

int ask(const struct ropectl *ctl, const struct request *request, void **answer,
        size_t *answer_bytes)
{
    struct roped_error err;
    struct roped_client *client = connect_to(ctl);
    if (!client)
        return EXIT_FAILURE;
    enum roped_status status = roped_client_request_bytes(
        client, request->method, request->path, request->body, request->bytes,
        answer, answer_bytes, &err);
    progress_end();
    int code = status ? failed_request(client, &err) : EXIT_SUCCESS;
    roped_client_close(client);
    return code;
}

/* --------------------------------------------------------------------- JSON */

/* What cJSON may still take while a server's text is read; else all there is.
 * A byte of text can become 40 of a tree. */
static size_t tree_bytes_left = SIZE_MAX;

/* Members of objects that are open at once: a server has some dozens. */
enum { MAX_OPEN_NAMES = 256 };

/* Documents of our own are small: where there is no memory, nothing goes on. */
static void *tree_memory(size_t bytes)
{
    if (tree_bytes_left == SIZE_MAX)
        return must_have(malloc(bytes));
    if (bytes > tree_bytes_left)
        return NULL;
    tree_bytes_left -= bytes;
    return malloc(bytes);
}

void json_start(void)
{
    cJSON_InitHooks(&(cJSON_Hooks){tree_memory, free});
}

cJSON *read_document(const struct ropectl *ctl, const void *answer,
                     size_t bytes)
{
    struct json_string names[MAX_OPEN_NAMES];
    struct json_reader reader;
    struct roped_error err;
    json_reader_init(&reader, answer, bytes, JSON_DEPTH, names, MAX_OPEN_NAMES);
    if (json_kind(&reader) != JSON_OBJECT || json_check(&reader, &err) ||
        reader.nan != JSON_NOWHERE) {
        fail_text("the answer is no JSON object");
        return NULL;
    }
    tree_bytes_left = ctl->options.max_answer_bytes;
    cJSON *document = cJSON_ParseWithLength(answer, bytes);
    tree_bytes_left = SIZE_MAX;
    if (!document)
        fail_text("the answer's JSON takes over %llu bytes, the limit that "
                  "--max-answer sets",
                  (unsigned long long)ctl->options.max_answer_bytes);
    return document;
}

int print_answer(const struct ropectl *ctl, const struct request *request)
{
    void *answer;
    size_t bytes;
    int code = ask(ctl, request, &answer, &bytes);
    if (code)
        return code;
    cJSON *document = read_document(ctl, answer, bytes);
    free(answer);
    return document ? print_document(ctl, document) : EXIT_SERVER;
}
