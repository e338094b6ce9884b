/*
 * harness.c - starts, asks and stops the daemon under test.
 */
#include "http/harness.h"

#include "check.h"

#include "load/certificates.h"
#include "load/client.h"
#include "wire/safetensors.h"

#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static void die(const char *what)
{
    fprintf(stderr, "harness: %s: %s\n", what, strerror(errno));
    exit(EXIT_FAILURE);
}

/* ----------------------------------------------------------------- server */

static const char *backend_name(void)
{
    const char *name = getenv("ROPED_TEST_BACKEND");
    return name ? name : "cpu";
}

const char *server_devices(void)
{
    const char *devices = getenv("ROPED_TEST_DEVICES");
    return devices ? devices : "0";
}

int server_n_devices(void)
{
    int n = 1;
    for (const char *at = server_devices(); *at; at++)
        n += *at == ',';
    return n;
}

static void run_daemon(const struct server *server, const char *port_file,
                       const char *const *flags)
{
    enum { MAX_ARGUMENTS = 64 };
    char pair[2][64];
    const char *program = getenv("ROPED_TEST_BIN");
    const char *arguments[MAX_ARGUMENTS] = {program ? program
                                                    : ROPED_TEST_DAEMON,
                                            "--port-file",
                                            port_file,
                                            "--backend",
                                            backend_name(),
                                            "--devices",
                                            server_devices()};
    int n = 7;
    setenv("ROPED_LISTEN", "127.0.0.1:0", 1); /* a flag takes its place */
    if (server->tls) {
        snprintf(pair[0], sizeof pair[0], "%s/server.pem", server->tls->folder);
        snprintf(pair[1], sizeof pair[1], "%s/server.key", server->tls->folder);
        arguments[n++] = "--tls-cert-file";
        arguments[n++] = pair[0];
        arguments[n++] = "--tls-key-file";
        arguments[n++] = pair[1];
    }
    for (; flags && *flags && n < MAX_ARGUMENTS - 1; flags++)
        arguments[n++] = *flags;
    int fd = open(server->log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    /* a test that is killed takes its daemon along */
    if (fd < 0 || prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
        _exit(126);
    dup2(fd, STDERR_FILENO);
    execv(arguments[0], (char *const *)(uintptr_t)arguments);
    _exit(127);
}

static void print_log(const struct server *server)
{
    char line[1024];
    FILE *file = fopen(server->log, "r");
    while (file && fgets(line, sizeof line, file))
        fputs(line, stderr);
    if (file)
        fclose(file);
}

bool server_log_says(const struct server *server, const char *part)
{
    char line[1024];
    bool found = false;
    FILE *file = fopen(server->log, "r");
    while (file && !found && fgets(line, sizeof line, file))
        found = strstr(line, part) != NULL;
    if (file)
        fclose(file);
    return found;
}

int server_port_of(const struct server *server, const char *part)
{
    char line[1024];
    int port = 0;
    FILE *file = fopen(server->log, "r");
    while (file && fgets(line, sizeof line, file)) {
        const char *address = strstr(line, "address=\"127.0.0.1:");
        if (address && strstr(line, part))
            port = (int)strtol(strchr(address, ':') + 1, NULL, 10);
    }
    if (file)
        fclose(file);
    return port;
}

/* 0 until the daemon has written it. */
static int read_port(const char *port_file)
{
    char text[16] = "";
    FILE *file = fopen(port_file, "r");
    if (!file)
        return 0;
    bool is_read = fgets(text, sizeof text, file) != NULL;
    fclose(file);
    return is_read ? (int)strtol(text, NULL, 10) : 0;
}

/* False: it has ended, with this status. */
static bool await_port(struct server *server, const char *port_file,
                       int *status)
{
    for (int i = 0; i < 6000; i++) {
        server->port = read_port(port_file);
        if (server->port > 0)
            return true;
        if (waitpid(server->pid, status, WNOHANG) == server->pid)
            return false;
        pause_seconds(0.01);
    }
    print_log(server);
    fprintf(stderr, "harness: the daemon did not start in a minute\n");
    exit(EXIT_FAILURE);
}

static void give_up(const struct server *server, int status)
{
    if (server_log_says(server, "no usable GPU")) {
        printf("skipped: no usable GPU for backend %s\n", backend_name());
        exit(77);
    }
    print_log(server);
    fprintf(stderr, "harness: the daemon ended with %d\n", status);
    exit(EXIT_FAILURE);
}

static struct certificates own_certificates;

static void remove_own(void)
{
    certificates_remove(&own_certificates);
}

/* Those of ROPED_TEST_TLS, made once; NULL: it is not set. */
static const struct certificates *find_own(void)
{
    if (!getenv("ROPED_TEST_TLS") || own_certificates.folder[0])
        return own_certificates.folder[0] ? &own_certificates : NULL;
    if (!certificates_make(&own_certificates)) {
        printf("skipped: no openssl\n");
        exit(77);
    }
    atexit(remove_own);
    return &own_certificates;
}

void server_start(struct server *server, const char *const *flags)
{
    server_start_tls(server, find_own(), flags);
}

static bool try_start(struct server *server,
                      const struct certificates *certificates,
                      const char *const *flags, int *status)
{
    static int n_started;
    char port_file[64];
    server->tls = certificates;
    server->client = NULL;
    snprintf(port_file, sizeof port_file, "/tmp/roped_test_%d_%d.port",
             (int)getpid(), n_started);
    snprintf(server->log, sizeof server->log, "/tmp/roped_test_%d_%d.log",
             (int)getpid(), n_started++);
    unlink(port_file);
    fflush(NULL);
    server->pid = fork();
    if (server->pid < 0)
        die("fork");
    if (server->pid == 0)
        run_daemon(server, port_file, flags);
    bool is_up = await_port(server, port_file, status);
    unlink(port_file);
    snprintf(server->url, sizeof server->url, "%s://127.0.0.1:%d",
             certificates ? "https" : "http", server->port);
    return is_up;
}

void server_start_tls(struct server *server,
                      const struct certificates *certificates,
                      const char *const *flags)
{
    int status;
    if (!try_start(server, certificates, flags, &status))
        give_up(server, status);
}

bool server_try_start(struct server *server, const char *const *flags,
                      int *status)
{
    return try_start(server, find_own(), flags, status);
}

static pthread_key_t handle_key;

static void close_handle(void *handle)
{
    curl_easy_cleanup(handle);
}

static void make_handle_key(void)
{
    curl_global_init(CURL_GLOBAL_ALL);
    pthread_key_create(&handle_key, close_handle);
}

/* This thread's handle, and with it its connection; closed when it ends. */
static CURL *own_handle(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_handle_key);
    CURL *handle = pthread_getspecific(handle_key);
    if (!handle) {
        handle = curl_easy_init();
        pthread_setspecific(handle_key, handle);
    }
    curl_easy_reset(handle);
    return handle;
}

/*
 * A daemon that is told to stop waits for connections that are open, about a
 * second for one that is idle: ours is closed before.
 */
static void drop_own_handle(void)
{
    CURL *handle = own_handle();
    pthread_setspecific(handle_key, NULL);
    close_handle(handle);
}

bool server_stop(struct server *server)
{
    int status = -1;
    drop_own_handle();
    kill(server->pid, SIGTERM);
    for (int i = 0; i < 6000; i++) {
        if (waitpid(server->pid, &status, WNOHANG) == server->pid)
            break;
        if (i == 5999)
            kill(server->pid, SIGKILL);
        pause_seconds(0.01);
    }
    bool is_clean = WIFEXITED(status) && WEXITSTATUS(status) == 0 &&
                    !server_log_says(server, "Sanitizer") &&
                    !server_log_says(server, "runtime error");
    if (!is_clean) {
        fprintf(stderr, "harness: the daemon ended with status %d; its log:\n",
                status);
        print_log(server);
    }
    unlink(server->log);
    return is_clean;
}

bool server_is_alive(const struct server *server)
{
    struct answer answer =
        ask(server, "GET", "/v2/health/ready", NULL, 0, NULL);
    bool is_alive = answer.code == 200;
    answer_free(&answer);
    return is_alive;
}

/* --------------------------------------------------------------- requests */

void answer_free(struct answer *answer)
{
    free(answer->body);
    free(answer->headers);
    memset(answer, 0, sizeof *answer);
}

const char *answer_header(const struct answer *answer, const char *name)
{
    static _Thread_local char value[512];
    size_t length = strlen(name);
    for (const char *line = answer->headers; line && *line;) {
        if (strncasecmp(line, name, length) == 0 && line[length] == ':') {
            line += length + 1;
            line += strspn(line, " ");
            snprintf(value, sizeof value, "%.*s", (int)strcspn(line, "\r\n"),
                     line);
            return value;
        }
        line = strchr(line, '\n');
        line = line ? line + 1 : NULL;
    }
    return NULL;
}

struct text {
    char *start;
    size_t bytes, capacity;
};

static size_t collect(char *data, size_t size, size_t n, void *context)
{
    struct text *text = context;
    size_t bytes = size * n;
    if (text->bytes + bytes + 1 > text->capacity) {
        text->capacity = 2 * (text->bytes + bytes + 1);
        text->start = realloc(text->start, text->capacity);
        if (!text->start)
            die("memory");
    }
    memcpy(text->start + text->bytes, data, bytes);
    text->bytes += bytes;
    text->start[text->bytes] = '\0';
    return bytes;
}

/* Whom to believe, and whose certificate to show. */
static void set_tls(CURL *curl, const struct server *server)
{
    char path[64];
    snprintf(path, sizeof path, "%s/ca.pem", server->tls->folder);
    curl_easy_setopt(curl, CURLOPT_CAINFO, path);
    if (!server->client)
        return;
    snprintf(path, sizeof path, "%s/%s.pem", server->tls->folder,
             server->client);
    curl_easy_setopt(curl, CURLOPT_SSLCERT, path);
    snprintf(path, sizeof path, "%s/%s.key", server->tls->folder,
             server->client);
    curl_easy_setopt(curl, CURLOPT_SSLKEY, path);
}

const char *answer_code(const struct answer *answer)
{
    static const struct {
        const char *end;
        int code;
        const char *token;
    } known[] = {
#define X(id, token, http, meaning) {",\"code\":\"" token "\"}", http, token},
        ROPED_STATUS_MAP(X)
#undef X
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        size_t length = strlen(known[i].end);
        if (known[i].code == answer->code && answer->bytes >= length &&
            strcmp(answer->body + answer->bytes - length, known[i].end) == 0)
            return known[i].token;
    }
    return "";
}

/* Whoever answers {"error": ...} says with which code. */
static void check_refusal(const char *method, const char *path,
                          const struct answer *answer)
{
    static const char start[] = "{\"error\":";
    if (answer->code >= 400 &&
        strncmp(answer->body, start, sizeof start - 1) == 0 &&
        !answer_code(answer)[0])
        CHECK_FAIL("%s %.100s: answered %d %.300s, expected a code of it",
                   method, path, answer->code, answer->body);
}

struct answer ask(const struct server *server, const char *method,
                  const char *path, const void *body, size_t bytes,
                  const char *const *headers)
{
    CURL *curl = own_handle();
    char url[2048];
    struct text content = {0}, head = {0};
    struct answer answer = {0};
    struct curl_slist *list = curl_slist_append(NULL, "Expect:");
    long code = 0;
    for (; headers && *headers; headers++)
        list = curl_slist_append(list, *headers);
    snprintf(url, sizeof url, "%s%s", server->url, path);
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, method);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, list);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, collect);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &content);
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, collect);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, &head);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT, 120L);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    if (server->tls)
        set_tls(curl, server);
    if (strcmp(method, "HEAD") == 0)
        curl_easy_setopt(curl, CURLOPT_NOBODY, 1L);
    if (body) {
        curl_easy_setopt(curl, CURLOPT_POSTFIELDS, body);
        curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)bytes);
    }
    collect("", 0, 0, &content);
    collect("", 0, 0, &head);
    CURLcode outcome = curl_easy_perform(curl);
    if (outcome == CURLE_OK)
        curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &code);
    curl_slist_free_all(list);
    answer.code = outcome == CURLE_PARTIAL_FILE ? ANSWER_BROKEN_OFF : (int)code;
    answer.body = content.start;
    answer.bytes = content.bytes;
    answer.headers = head.start;
    check_refusal(method, path, &answer);
    return answer;
}

int open_raw(const struct server *server, const void *bytes, size_t n_bytes)
{
    int fd = client_connect(server->port);
    if (fd < 0)
        die("connect");
    /* a server that refuses may close while we send: read all the same */
    for (size_t at = 0; at < n_bytes;) {
        ssize_t n =
            send(fd, (const char *)bytes + at, n_bytes - at, MSG_NOSIGNAL);
        if (n <= 0)
            break;
        at += (size_t)n;
    }
    return fd;
}

struct answer ask_raw(const struct server *server, const void *bytes,
                      size_t n_bytes, double timeout_seconds)
{
    struct answer answer = {0};
    struct text all = {0};
    char chunk[4096];
    struct timeval limit = {
        (time_t)timeout_seconds,
        (suseconds_t)((timeout_seconds - (double)(time_t)timeout_seconds) *
                      1e6)};
    int fd = open_raw(server, bytes, n_bytes);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    collect("", 0, 0, &all);
    for (ssize_t n; (n = recv(fd, chunk, sizeof chunk, 0)) > 0;)
        collect(chunk, 1, (size_t)n, &all);
    close(fd);
    char *end = strstr(all.start, "\r\n\r\n");
    if (strncmp(all.start, "HTTP/1.1 ", 9) == 0)
        answer.code = (int)strtol(all.start + 9, NULL, 10);
    answer.headers = all.start;
    answer.body = strdup(end ? end + 4 : "");
    answer.bytes = strlen(answer.body);
    return answer;
}

int run_command(const char *command, char *output, size_t size)
{
    FILE *pipe = popen(command, "r");
    size_t n = pipe ? fread(output, 1, size - 1, pipe) : 0;
    output[n] = '\0';
    int status = pipe ? pclose(pipe) : -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* ------------------------------------------------------------ safetensors */

void file_add(struct tensor_file *file, const char *name,
              enum roped_dtype dtype, int rank, const int64_t *dims, void *data)
{
    struct roped_tensor *tensor = &file->tensor[file->n];
    snprintf(file->name[file->n++], sizeof file->name[0], "%s", name);
    memset(tensor, 0, sizeof *tensor);
    tensor->dtype = dtype;
    tensor->rank = rank;
    for (int i = 0; i < rank; i++)
        tensor->dims[i] = dims[i];
    tensor->data = data;
}

unsigned char *file_write(const struct tensor_file *file, size_t *bytes)
{
    struct safetensors_output outputs[FILE_TENSORS];
    struct buffer header;
    struct roped_error err;
    uint64_t data_bytes;
    buffer_init(&header);
    for (int i = 0; i < file->n; i++)
        outputs[i] =
            (struct safetensors_output){file->name[i], &file->tensor[i], 0};
    if (safetensors_write_header(&header, outputs, file->n, NULL, 0, false,
                                 &data_bytes, &err))
        die(err.text);
    unsigned char *all = malloc(header.bytes + data_bytes + 1);
    if (!all)
        die("memory");
    memcpy(all, header.text, header.bytes);
    for (int i = 0; i < file->n; i++)
        if (file->tensor[i].data)
            memcpy(all + header.bytes + outputs[i].offset, file->tensor[i].data,
                   (size_t)roped_tensor_bytes(&file->tensor[i]));
    *bytes = header.bytes + data_bytes;
    buffer_fini(&header);
    return all;
}

struct answer ask_file(const struct server *server, const char *method,
                       const char *path, const struct tensor_file *file)
{
    size_t bytes;
    unsigned char *body = file_write(file, &bytes);
    struct answer answer = ask(server, method, path, body, bytes, NULL);
    free(body);
    return answer;
}

struct reading {
    struct tensor_file *file;
    void (*metadata)(void *context, const char *name, const char *value);
    void *context;
};

static enum roped_status read_entry(void *context,
                                    const struct safetensors_entry *entry,
                                    struct roped_error *err)
{
    struct reading *reading = context;
    if (reading->file->n == FILE_TENSORS)
        return roped_fail(err, ROPED_INVALID, "too many tensors for a test");
    file_add(reading->file, entry->name, entry->tensor.dtype,
             entry->tensor.rank, entry->tensor.dims,
             reading->file->memory + entry->begin);
    return ROPED_OK;
}

static enum roped_status read_metadata(void *context, const char *name,
                                       const char *value,
                                       struct roped_error *err)
{
    struct reading *reading = context;
    (void)err;
    if (reading->metadata)
        reading->metadata(reading->context, name, value);
    return ROPED_OK;
}

bool file_read(struct tensor_file *file, const void *bytes, size_t n_bytes,
               void (*metadata)(void *context, const char *name,
                                const char *value),
               void *context)
{
    struct reading reading = {file, metadata, context};
    struct roped_error err;
    size_t header_bytes;
    memset(file, 0, sizeof *file);
    if (n_bytes < 8 ||
        safetensors_header_bytes(bytes, n_bytes, &header_bytes, &err))
        return false;
    file->memory = malloc(n_bytes - header_bytes + 1);
    if (!file->memory)
        die("memory");
    memcpy(file->memory, (const char *)bytes + header_bytes,
           n_bytes - header_bytes);
    if (safetensors_read(bytes, header_bytes, n_bytes, read_entry,
                         read_metadata, &reading, &err) == ROPED_OK)
        return true;
    fprintf(stderr, "harness: %s\n", err.text);
    file_free(file);
    return false;
}

void file_free(struct tensor_file *file)
{
    free(file->memory);
    memset(file, 0, sizeof *file);
}

const struct roped_tensor *file_find(const struct tensor_file *file,
                                     const char *name)
{
    for (int i = 0; i < file->n; i++)
        if (strcmp(file->name[i], name) == 0)
            return &file->tensor[i];
    return NULL;
}
