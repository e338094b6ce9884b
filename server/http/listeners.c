/*
 * listeners.c - opening and closing the sockets that clients connect to.
 */
#include "http/listeners.h"

#include "address.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum {
    BACKLOG = 1024,
    FIRST_PASSED = 3, /* SD_LISTEN_FDS_START */
    FLAGS_AT = 13,    /* the byte of a TCP header that holds its flags */
};

bool listener_is_local(const struct listener *listener)
{
    return listener->address.ss_family == AF_UNIX;
}

uint16_t listener_port(const struct listener *listener)
{
    const struct sockaddr_in *v4 = (const void *)&listener->address;
    const struct sockaddr_in6 *v6 = (const void *)&listener->address;
    if (listener->address.ss_family == AF_INET6)
        return ntohs(v6->sin6_port);
    return listener_is_local(listener) ? 0 : ntohs(v4->sin_port);
}

static const char *path_of(const struct listener *listener)
{
    return ((const struct sockaddr_un *)(const void *)&listener->address)
        ->sun_path;
}

/* What it is bound to: the port that it has got. */
static enum roped_status read_address(struct listener *listener,
                                      struct roped_error *err)
{
    socklen_t bytes = sizeof listener->address;
    if (getsockname(listener->fd, (struct sockaddr *)&listener->address,
                    &bytes) == 0)
        return ROPED_OK;
    return roped_fail(err, ROPED_INTERNAL,
                      "cannot read the port that was bound: %s",
                      strerror(errno));
}

/* What to do about it: an address in use is what people meet who start a second
 * daemon. */
static enum roped_status fail_to_listen(const struct listener *listener,
                                        struct roped_error *err)
{
    const char *reason = strerror(errno), *place = listener->text;
    const char *advice = NULL, *value = NULL; /* with the setting between */
    if (errno == EADDRINUSE && listener_is_local(listener)) {
        advice = "if that is a socket, a daemon answers there: stop it, or "
                 "choose another path with";
        value = " unix:/path";
    } else if (errno == EADDRINUSE) {
        advice = "'ss -ltnp' shows which program has the port: stop it, or "
                 "choose another with";
        value = " address:port (port 0 picks one)";
    } else if (errno == EADDRNOTAVAIL) {
        advice = "'ip address' shows those of this machine: choose one with";
        value = ", or [::] for all";
    }
    if (!advice)
        return roped_fail(err, ROPED_INVALID, "cannot listen on %s: %s", place,
                          reason);
    return roped_fail(err, ROPED_INVALID, "cannot listen on %s: %s; %s --%s%s",
                      place, reason, advice, listener->setting, value);
}

/* ------------------------------------------------------------ Unix sockets */

/* A socket's file outlives a daemon that was killed: nobody answers there. */
static void remove_stale(const struct listener *listener, socklen_t bytes)
{
    struct stat file;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool is_stale =
        fd >= 0 && stat(path_of(listener), &file) == 0 &&
        S_ISSOCK(file.st_mode) &&
        connect(fd, (const struct sockaddr *)&listener->address, bytes) != 0 &&
        errno == ECONNREFUSED;
    if (fd >= 0)
        close(fd);
    if (is_stale)
        (void)unlink(path_of(listener));
}

/* Who may connect is who may write the file. */
static enum roped_status give_to(const struct config *config, const char *path,
                                 struct roped_error *err)
{
    char *end;
    const char *name = config->socket_group;
    mode_t mode = (mode_t)strtoul(config->socket_mode, &end, 8);
    if (*end || end == config->socket_mode || mode > 0777)
        return roped_fail(err, ROPED_INVALID,
                          "socket_mode is '%s', expected 0 to 0777",
                          config->socket_mode);
    const struct group *group = name[0] ? getgrnam(name) : NULL;
    if (name[0] && !group)
        return roped_fail(err, ROPED_INVALID,
                          "socket_group is '%s', expected a group", name);
    if ((!group || chown(path, (uid_t)-1, group->gr_gid) == 0) &&
        chmod(path, mode) == 0)
        return ROPED_OK;
    return roped_fail(err, ROPED_INVALID,
                      "cannot give '%s' to socket_group and socket_mode: %s",
                      path, strerror(errno));
}

static enum roped_status bind_path(const struct config *config,
                                   struct listener *listener, socklen_t bytes,
                                   struct roped_error *err)
{
    struct stat file;
    remove_stale(listener, bytes);
    mode_t old = umask(0777); /* nobody, until it is known who */
    int code =
        bind(listener->fd, (const struct sockaddr *)&listener->address, bytes);
    umask(old);
    if (code != 0)
        return fail_to_listen(listener, err);
    if (stat(path_of(listener), &file) == 0) {
        listener->device = file.st_dev;
        listener->inode = file.st_ino;
    }
    return give_to(config, path_of(listener), err);
}

/* Where the file is still ours: another daemon may have taken the path. */
static void remove_path(struct listener *listener)
{
    struct stat file;
    if (listener->inode && stat(path_of(listener), &file) == 0 &&
        file.st_dev == listener->device && file.st_ino == listener->inode)
        (void)unlink(path_of(listener));
    listener->inode = 0;
}

/* ----------------------------------------------------------------- opening */

/* What all places are opened with. */
struct opening {
    const struct config *config;
    struct handover *handover;
    struct roped_error *err;
};

static enum roped_status bind_port(const struct listener *listener,
                                   socklen_t bytes, struct roped_error *err)
{
    int on = 1, off = 0;
    setsockopt(listener->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (listener->address.ss_family == AF_INET6)
        setsockopt(listener->fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(listener->fd, (const struct sockaddr *)&listener->address,
             bytes) == 0)
        return ROPED_OK;
    return fail_to_listen(listener, err);
}

static enum roped_status open_new(const struct config *config,
                                  struct listener *out, struct roped_error *err)
{
    socklen_t bytes;
    enum roped_status status =
        address_parse(out->setting, out->text, &out->address, &bytes, err);
    if (status)
        return status;
    out->fd = socket(out->address.ss_family,
                     SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (out->fd < 0)
        return roped_fail(err, ROPED_INTERNAL, "no socket: %s",
                          strerror(errno));
    status = listener_is_local(out) ? bind_path(config, out, bytes, err)
                                    : bind_port(out, bytes, err);
    if (!status && listen(out->fd, BACKLOG) != 0)
        status = fail_to_listen(out, err);
    return status ? status : read_address(out, err);
}

/* The one that was handed over, or a new one. */
static enum roped_status open_one(const struct opening *opening,
                                  const char *key, const char *text,
                                  struct listener *out)
{
    struct handover_socket *handed =
        handover_take(opening->handover, key, text);
    *out = (struct listener){.fd = -1, .setting = key};
    snprintf(out->text, sizeof out->text, "%s", text);
    if (!handed)
        return open_new(opening->config, out, opening->err);
    out->fd = handed->fd;
    out->device = (dev_t)handed->device;
    out->inode = (ino_t)handed->inode;
    handed->fd = -1;
    return read_address(out, opening->err);
}

static enum roped_status add(const struct opening *opening, const char *key,
                             const char *text, struct listeners *out)
{
    if (out->n == MOST_LISTENERS)
        return roped_fail(opening->err, ROPED_INVALID,
                          "%s has '%s', expected at most %d places", key, text,
                          MOST_LISTENERS - 1);
    return open_one(opening, key, text, &out->item[out->n++]);
}

static enum roped_status open_list(const struct opening *opening,
                                   struct listeners *out)
{
    char item[CONFIG_TEXT_BYTES];
    const char *list = opening->config->listen;
    enum roped_status status = ROPED_OK;
    while (!status && config_next(&list, item))
        status = add(opening, "listen", item, out);
    if (!status && out->n == 0)
        return roped_fail(opening->err, ROPED_INVALID,
                          "listen is '%s', expected address:port or unix:/path",
                          opening->config->listen);
    return status;
}

/* How many the service manager has left open for this very process. */
static int count_passed(void)
{
    const char *pid = getenv("LISTEN_PID"), *n = getenv("LISTEN_FDS");
    if (!pid || !n || strtol(pid, NULL, 10) != (long)getpid())
        return 0;
    long count = strtol(n, NULL, 10);
    return count > 0 && count < MOST_LISTENERS ? (int)count : 0;
}

static enum roped_status take_passed(int n, struct listeners *out,
                                     struct roped_error *err)
{
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < n && !status; i++) {
        int fd = FIRST_PASSED + i, listens = 0;
        socklen_t bytes = sizeof listens;
        out->item[out->n] = (struct listener){.fd = fd, .is_passed = true};
        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) != 0 ||
            !listens || fcntl(fd, F_SETFL, O_NONBLOCK) != 0 ||
            fcntl(fd, F_SETFD, FD_CLOEXEC) != 0)
            return roped_fail(err, ROPED_INVALID,
                              "LISTEN_FDS is %d, and descriptor %d is no "
                              "socket that listens",
                              n, fd);
        status = read_address(&out->item[out->n++], err);
    }
    return status;
}

enum roped_status listeners_open(const struct config *config,
                                 struct handover *handover,
                                 struct listeners *out, struct roped_error *err)
{
    const struct opening opening = {config, handover, err};
    int n_passed = count_passed();
    out->n = 0;
    enum roped_status status = n_passed > 0 ? take_passed(n_passed, out, err)
                                            : open_list(&opening, out);
    if (!status && config->admin_listen[0]) {
        status = add(&opening, "admin_listen", config->admin_listen, out);
        out->item[out->n - 1].is_admin = true;
    }
    if (status)
        listeners_close(out);
    return status;
}

/* ----------------------------------------------------------------- closing */

/* Closing a listening socket resets the connections in its backlog, and one
 * may come between the last accept and close. So the kernel drops every SYN
 * from here on: a client sends it again a second later, and is refused then. */
static void drop_every_syn(int fd)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_B | BPF_ABS, FLAGS_AT),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, TH_SYN, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, 0),          /* drop */
        BPF_STMT(BPF_RET | BPF_K, UINT32_MAX), /* keep all of it */
    };
    struct sock_fprog program = {.len = sizeof code / sizeof *code,
                                 .filter = code};
    /* without it clients that come in the last moment are reset */
    (void)setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program,
                     sizeof program);
}

void listener_let_nobody_in(struct listener *listener)
{
    if (listener->is_passed) /* whoever comes now is the next daemon's */
        return;
    if (listener_is_local(listener))
        remove_path(listener);
    else
        drop_every_syn(listener->fd);
}

static void hand_over(const struct listener *listener, struct handover *out)
{
    struct handover_socket *socket = &out->socket[out->n_sockets];
    (void)fcntl(listener->fd, F_SETFD, 0);
    if (listener->is_passed) /* its number says what it is */
        return;
    out->n_sockets++;
    *socket = (struct handover_socket){.fd = listener->fd,
                                       .device = (uint64_t)listener->device,
                                       .inode = (uint64_t)listener->inode};
    snprintf(socket->key, sizeof socket->key, "%s",
             listener->is_admin ? "admin_listen" : "listen");
    snprintf(socket->text, sizeof socket->text, "%s", listener->text);
}

void listeners_hand_over(const struct listeners *listeners,
                         struct handover *out)
{
    _Static_assert((int)MOST_LISTENERS == (int)HANDOVER_SOCKETS,
                   "all of them fit");
    out->n_sockets = 0;
    for (int i = 0; i < listeners->n; i++)
        hand_over(&listeners->item[i], out);
}

void listeners_close(struct listeners *listeners)
{
    for (int i = 0; i < listeners->n; i++) {
        remove_path(&listeners->item[i]);
        if (listeners->item[i].fd >= 0)
            close(listeners->item[i].fd);
    }
    listeners->n = 0;
}
