/*
 * test_tls.c - TLS: what is spoken and what is refused, by Debian's openssl
 * and by libcurl; client certificates; new certificates while connections are
 * open; clients that stop in the middle of a handshake.
 */
#include "check.h"
#include "http/harness.h"
#include "http/service.h"
#include "load/certificates.h"
#include "load/client.h"

#include <curl/curl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_CONNECTIONS = 1000, LONG_SECONDS = 20 };

static struct certificates certificates;
static struct server server;

static void start(const char *const *flags)
{
    server_start_tls(&server, &certificates, flags);
}

/* openssl's client with these arguments; request as printf takes it. */
static int openssl_client(const char *arguments, const char *request,
                          char *output, size_t size)
{
    char command[1024];
    snprintf(command, sizeof command,
             "printf '%s' | timeout %d openssl s_client -connect 127.0.0.1:%d "
             "-CAfile %s/ca.pem -verify_return_error %s 2>&1",
             request, LONG_SECONDS, server.port, certificates.folder,
             arguments);
    return run_command(command, output, size);
}

/* -------------------------------------------------------------- protocols */

static void expect_protocol(const char *flag, const char *expected)
{
    char arguments[128], output[16384];
    snprintf(arguments, sizeof arguments, "%s -cipher 'ALL:@SECLEVEL=0'", flag);
    int code = openssl_client(arguments, "", output, sizeof output);
    bool is_taken = code == 0 && strstr(output, "Verification: OK");
    if (is_taken != (expected != NULL) ||
        (expected && !strstr(output, expected)))
        CHECK_FAIL("openssl s_client %s: ended with %d and %s", arguments, code,
                   output);
}

TEST(nothing_below_tls_1_2_is_spoken)
{
    start(NULL);
    expect_protocol("-tls1", NULL);
    expect_protocol("-tls1_1", NULL);
    expect_protocol("-tls1_2", "Protocol  : TLSv1.2");
    expect_protocol("-tls1_3", "TLSv1.3");
    CHECK(server_stop(&server));
}

/* Of all that openssl knows for 1.2, with a certificate that fits the most. */
TEST(no_weak_cipher_is_spoken)
{
    static const char strong[] = "ECDHE-RSA-AES256-GCM-SHA384\n"
                                 "ECDHE-RSA-CHACHA20-POLY1305\n"
                                 "ECDHE-RSA-AES128-GCM-SHA256\n";
    char command[1024], output[4096];
    CHECK(certificates_replace(&certificates, "kept", "server"));
    CHECK(certificates_replace(&certificates, "server", "rsa"));
    start(NULL);
    snprintf(
        command, sizeof command,
        "for cipher in $(openssl ciphers -s -tls1_2 'ALL:eNULL:@SECLEVEL=0'"
        " | tr : ' '); do openssl s_client -connect 127.0.0.1:%d -tls1_2 "
        "-cipher $cipher:@SECLEVEL=0 </dev/null >/dev/null 2>&1 && "
        "echo $cipher; done",
        server.port);
    (void)run_command(command, output, sizeof output);
    CHECK_TEXT(output, strong);
    CHECK(server_stop(&server));
    CHECK(certificates_replace(&certificates, "server", "kept"));
}

TEST(plain_http_is_told_to_use_tls)
{
    static const char request[] = "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n";
    start(NULL);
    expect_code(ask_raw(&server, request, sizeof request - 1, LONG_SECONDS),
                400, "this port speaks TLS: begin with https://", "plain");
    struct answer answer =
        ask_raw(&server, "\x16\x03\x01junk and more", 16, LONG_SECONDS);
    CHECK_INT(answer.code, 0);
    answer_free(&answer);
    CHECK(server_is_alive(&server));
    CHECK(server_stop(&server));
}

/* It holds no thread of the daemon: the only one serves others meanwhile. */
TEST(a_plain_client_that_goes_on_sending_is_cut_off)
{
    enum { PIECE = 256 << 10, MOST = 64 << 20 };
    const char *const flags[] = {"--http-threads", "1", NULL};
    static char piece[PIECE] = "POST / HTTP/1.1\r\nHost: a\r\n\r\n";
    start(flags);
    int fd = client_open(server.port);
    double before = now_seconds();
    size_t sent = 0;
    for (ssize_t n; sent < MOST; sent += (size_t)n)
        if ((n = send(fd, piece, sizeof piece, MSG_NOSIGNAL)) <= 0)
            break;
    printf("cut off after %.1f MiB and %.0f ms\n", (double)sent / (1 << 20),
           (now_seconds() - before) * 1e3);
    CHECK(sent < MOST);
    CHECK(server_is_alive(&server));
    close(fd);
    CHECK(server_stop(&server));
}

/* What stands between the words of a head is seen through TLS too. */
TEST(a_lax_head_is_refused_over_tls)
{
    static const struct {
        const char *request, *expected;
    } rows[] = {{"GET /v2/health/live HTTP/1.1\\r\\nHost: localhost\\r\\n"
                 "Connection: close\\r\\n\\r\\n",
                 "HTTP/1.1 200"},
                {"GET /v2/health/live HTTP/1.1\\r\\nHost: localhost\\r\\n"
                 "Content-Length:\\r\\n 5\\r\\n\\r\\nhello",
                 "HTTP/1.1 400"},
                {"GET /v2/health/live HTTP/1.1\\nHost: localhost\\n\\n",
                 "HTTP/1.1 400"}};
    char output[16384];
    start(NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        (void)openssl_client("-quiet", rows[i].request, output, sizeof output);
        if (!strstr(output, rows[i].expected))
            CHECK_FAIL("'%s' was answered with %s, expected %s",
                       rows[i].request, output, rows[i].expected);
    }
    CHECK(server_stop(&server));
}

/* ---------------------------------------------------- client certificates */

static void expect_line(const char *part)
{
    for (int i = 0; i < 1000 && !server_log_says(&server, part); i++)
        pause_seconds(0.01);
    if (!server_log_says(&server, part))
        CHECK_FAIL("no line of the log says '%s'", part);
}

static int ask_as(const char *client)
{
    server.client = client;
    struct answer answer = get(&server, "/v2/health/ready");
    int code = answer.code;
    answer_free(&answer);
    server.client = NULL;
    return code;
}

TEST(clients_need_a_certificate_of_the_ca)
{
    char ca[64];
    snprintf(ca, sizeof ca, "%s/ca.pem", certificates.folder);
    const char *const flags[] = {"--tls-client-ca-file", ca, NULL};
    start(flags);
    CHECK_INT(ask_as("client"), 200);
    CHECK_INT(ask_as(NULL), 0);
    expect_line("event=refused by=tls_client_ca_file error=\"the client showed "
                "no certificate, or broke off");
    CHECK_INT(ask_as("stranger"), 0);
    expect_line("event=refused by=tls_client_ca_file error=\"The certificate "
                "is NOT trusted.");
    CHECK_INT(ask_as("server"), 0); /* signed by the CA, but for no client */
    CHECK_INT(ask_as("client"), 200);
    CHECK(server_stop(&server));
}

static void expect_ropectl(const char *options, int code, const char *part)
{
    char command[512], output[8192];
    snprintf(command, sizeof command, "cd %s && %s --server %s %s status 2>&1",
             certificates.folder, ROPED_TEST_ROPECTL, server.url, options);
    int found = run_command(command, output, sizeof output);
    if (found != code || !strstr(output, part))
        CHECK_FAIL("ropectl %s: ended with %d and '%s', expected %d and '%s'",
                   options, found, output, code, part);
}

TEST(ropectl_shows_and_believes_certificates)
{
    char ca[64];
    snprintf(ca, sizeof ca, "%s/ca.pem", certificates.folder);
    const char *const flags[] = {"--tls-client-ca-file", ca, NULL};
    start(flags);
    expect_ropectl("--ca-file ca.pem --cert client.pem --key client.key", 0,
                   "ready");
    expect_ropectl("", 4, "unable to get local issuer certificate");
    expect_ropectl("--ca-file stranger.pem", 4, "certificate");
    expect_ropectl("--ca-file ca.pem", 4, server.url);
    expect_ropectl("--ca-file ca.pem --cert none.pem", 4, "none.pem");
    CHECK(server_stop(&server));
}

/* ----------------------------------------------------------------- reload */

static CURL *connection[MAX_CONNECTIONS];

static size_t drop(char *data, size_t size, size_t n, void *context)
{
    (void)data, (void)context;
    return size * n;
}

/* 200 over the connection that the handle has, or over a new one. */
static bool ask_over(CURL *curl, long expected_connects)
{
    long code = 0, n_connects = -1;
    if (curl_easy_perform(curl) != CURLE_OK)
        return false;
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &code);
    curl_easy_getinfo(curl, CURLINFO_NUM_CONNECTS, &n_connects);
    return code == 200 && n_connects == expected_connects;
}

static CURL *open_connection(void)
{
    char text[128];
    CURL *curl = curl_easy_init();
    snprintf(text, sizeof text, "%s/v2/health/live", server.url);
    curl_easy_setopt(curl, CURLOPT_URL, text);
    snprintf(text, sizeof text, "%s/ca.pem", certificates.folder);
    curl_easy_setopt(curl, CURLOPT_CAINFO, text);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, drop);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT, 60L);
    curl_easy_setopt(curl, CURLOPT_MAXAGE_CONN, 600L);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    return curl;
}

/* Who the daemon says that it is, to a new connection: its subject first. */
static void expect_name(const char *name)
{
    char expected[64];
    struct curl_certinfo *info = NULL;
    CURL *curl = open_connection();
    curl_easy_setopt(curl, CURLOPT_CERTINFO, 1L);
    CHECK(ask_over(curl, 1));
    curl_easy_getinfo(curl, CURLINFO_CERTINFO, &info);
    snprintf(expected, sizeof expected, "Subject:CN = %s", name);
    CHECK_TEXT(info && info->num_of_certs > 0 ? info->certinfo[0]->data : NULL,
               expected);
    curl_easy_cleanup(curl);
}

static void reload_and_await(const char *part)
{
    kill(server.pid, SIGHUP);
    expect_line(part);
}

static atomic_bool is_over;

/* New connections all the while. */
static void *connect_all_the_while(void *context)
{
    int *n_failed = context;
    while (!atomic_load(&is_over)) {
        CURL *curl = open_connection();
        *n_failed += !ask_over(curl, 1);
        curl_easy_cleanup(curl);
    }
    return NULL;
}

/* Minutes pass between two requests where each handshake is emulated. */
TEST(a_thousand_connections_outlive_a_reload)
{
    static const char *const patient[] = {"--idle_timeout_seconds", "600",
                                          NULL};
    const int n_connections = check_cases(MAX_CONNECTIONS);
    int n_lost = 0, n_failed = 0;
    pthread_t thread;
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    start(patient);
    expect_name("server");
    for (int i = 0; i < n_connections; i++) {
        connection[i] = open_connection();
        n_failed += !ask_over(connection[i], 1);
    }
    CHECK_INT(n_failed, 0);
    CHECK_INT(pthread_create(&thread, NULL, connect_all_the_while, &n_failed),
              0);
    CHECK(certificates_replace(&certificates, "kept", "server"));
    CHECK(certificates_replace(&certificates, "server", "other"));
    reload_and_await("event=reload message=");
    expect_name("other");
    for (int i = 0; i < n_connections; i++)
        n_lost += !ask_over(connection[i], 0);
    atomic_store(&is_over, true);
    pthread_join(thread, NULL);
    CHECK_INT(n_lost, 0);
    CHECK_INT(n_failed, 0);
    for (int i = 0; i < n_connections; i++)
        curl_easy_cleanup(connection[i]);
    CHECK(server_stop(&server));
    CHECK(certificates_replace(&certificates, "server", "kept"));
}

TEST(a_bad_pair_leaves_the_old_one_in_force)
{
    char command[128], output[64];
    CHECK(certificates_replace(&certificates, "kept", "server"));
    start(NULL);
    CHECK(certificates_replace(&certificates, "server", "expired"));
    reload_and_await("server.pem' expired at 20");
    snprintf(command, sizeof command, "cp %s/other.key %s/server.key",
             certificates.folder, certificates.folder);
    CHECK(certificates_replace(&certificates, "server", "kept"));
    CHECK_INT(run_command(command, output, sizeof output), 0);
    reload_and_await("server.key' does not hold the PEM key of");
    snprintf(command, sizeof command, "rm %s/server.pem", certificates.folder);
    CHECK_INT(run_command(command, output, sizeof output), 0);
    reload_and_await("server.pem': No such file or directory");
    expect_name("server");
    CHECK(certificates_replace(&certificates, "server", "other"));
    reload_and_await("event=reload message=");
    expect_name("other");
    CHECK(server_stop(&server));
    CHECK(certificates_replace(&certificates, "server", "kept"));
}

/* ------------------------------------------------------------------ start */

static void expect_start(const char *flags, const char *part)
{
    char command[512], output[4096];
    snprintf(command, sizeof command,
             "cd %s && %s --listen 127.0.0.1:0 --backend cpu %s 2>&1",
             certificates.folder, ROPED_TEST_DAEMON, flags);
    int code = run_command(command, output, sizeof output);
    if (code != 1 || !strstr(output, part))
        CHECK_FAIL("%s: ended with %d and %s, expected 1 and '%s'", flags, code,
                   output, part);
}

TEST(files_that_cannot_be_used_stop_the_start)
{
    expect_start("--tls-cert-file server.pem",
                 "tls_cert_file is set, and tls_key_file is not");
    expect_start("--tls-key-file server.key",
                 "tls_key_file is set, and tls_cert_file is not");
    expect_start("--tls-client-ca-file ca.pem",
                 "tls_client_ca_file is set, and tls_cert_file is not");
    expect_start("--tls-cert-file none.pem --tls-key-file server.key",
                 "cannot read tls_cert_file 'none.pem': No such file");
    expect_start("--tls-cert-file server.key --tls-key-file server.key",
                 "tls_cert_file 'server.key' holds no PEM certificate: ");
    expect_start("--tls-cert-file server.pem --tls-key-file other.key",
                 "tls_key_file 'other.key' does not hold the PEM key of "
                 "tls_cert_file 'server.pem': ");
    expect_start("--tls-cert-file expired.pem --tls-key-file expired.key",
                 "tls_cert_file 'expired.pem' expired at 20");
    expect_start("--tls-cert-file server.pem --tls-key-file server.key "
                 "--tls-client-ca-file server.key",
                 "tls_client_ca_file 'server.key' holds no PEM certificate: ");
}

/* ---------------------------------------------------------------- waiting */

static double cpu_seconds(void)
{
    clockid_t clock;
    struct timespec time = {0};
    if (clock_getcpuclockid(server.pid, &clock) == 0)
        clock_gettime(clock, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* The library asks such a connection again and again. */
TEST(a_handshake_that_stands_still_takes_no_time_and_is_cut)
{
    static const char *const flags[] = {"--header-timeout-seconds", "2", NULL};
    /* 200 bytes of a handshake are announced */
    static const char part[] = "\x16\x03\x01\x00\xc8\x01\x00\x00\xc4\x03\x03";
    char byte;
    start(flags);
    int fd = open_raw(&server, part, sizeof part - 1);
    pause_seconds(0.2);
    double before = cpu_seconds();
    pause_seconds(1);
    double spent = cpu_seconds() - before;
    if (spent > 0.05)
        CHECK_FAIL("%.3f s of CPU time in a second of nothing", spent);
    CHECK_INT(recv(fd, &byte, 1, 0), 0);
    close(fd);
    CHECK(server_stop(&server));
}

TEST(a_stop_ends_handshakes)
{
    static const char part[] = "\x16\x03\x01\x00\xc8\x01\x00\x00\xc4\x03\x03";
    int fd[8];
    start(NULL);
    for (int i = 0; i < 8; i++)
        fd[i] = open_raw(&server, part, sizeof part - 1);
    pause_seconds(0.2);
    CHECK(server_stop(&server));
    for (int i = 0; i < 8; i++)
        close(fd[i]);
}

int main(void)
{
    if (!certificates_make(&certificates)) {
        printf("skipped: no openssl\n");
        return CHECK_SKIP;
    }
    curl_global_init(CURL_GLOBAL_ALL);
    check_run();
    certificates_remove(&certificates);
    return check_done();
}
