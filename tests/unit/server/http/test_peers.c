/*
 * test_peers.c - deadlines of connections, and which of them goes first.
 */
#include "check.h"
#include "http/clock.h"
#include "http/peers.h"

#include <poll.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { N = 3 };

struct pairs {
    struct peers peers;
    struct peer *peer[N];
    int ours[N], theirs[N];
};

static void open_pairs(struct pairs *pairs)
{
    peers_init(&pairs->peers, N, 1);
    for (int i = 0; i < N; i++) {
        int fd[2] = {-1, -1};
        CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fd) == 0);
        pairs->ours[i] = fd[0];
        pairs->theirs[i] = fd[1];
        CHECK(peers_add(&pairs->peers, fd[0], false));
        pairs->peer[i] = peers_serve(&pairs->peers, fd[0], 0);
        CHECK(pairs->peer[i] != NULL);
    }
}

static void close_pairs(struct pairs *pairs)
{
    for (int i = 0; i < N; i++) {
        peers_remove(&pairs->peers, pairs->peer[i]);
        close(pairs->ours[i]);
        close(pairs->theirs[i]);
    }
    CHECK_INT(peers_count(&pairs->peers), 0);
    peers_fini(&pairs->peers);
}

/* Has the other side seen the end of the connection within a time? */
static bool is_cut(const struct pairs *pairs, int i, int ms)
{
    struct pollfd wait = {pairs->theirs[i], POLLIN, 0};
    char byte;
    return poll(&wait, 1, ms) == 1 &&
           recv(pairs->theirs[i], &byte, 1, MSG_DONTWAIT) == 0;
}

static atomic_int n_told;

static void count_told(void *context)
{
    (void)context;
    atomic_fetch_add(&n_told, 1);
}

static void start(struct peers *peers, double grace_seconds)
{
    const struct peers_options options = {.grace_seconds = grace_seconds,
                                          .on_gone = count_told};
    struct roped_error err;
    atomic_store(&n_told, 0);
    CHECK_OK(peers_start(peers, &options, &err), &err);
}

TEST(a_deadline_that_has_passed_cuts_the_connection)
{
    struct pairs pairs;
    open_pairs(&pairs);
    start(&pairs.peers, 0);
    peer_set_deadline(pairs.peer[1], clock_after_ns(0.01));
    peer_set_deadline(pairs.peer[2], clock_after_ns(3600));
    CHECK(is_cut(&pairs, 1, 10000));
    CHECK(!is_cut(&pairs, 0, 0) && !is_cut(&pairs, 2, 0));
    peers_stop(&pairs.peers);
    close_pairs(&pairs);
}

TEST(a_deadline_waits_for_what_the_daemon_has_not_read)
{
    struct pairs pairs;
    char byte;
    open_pairs(&pairs);
    CHECK(send(pairs.theirs[0], "G", 1, 0) == 1);
    CHECK(send(pairs.theirs[1], "G", 1, 0) == 1);
    peer_set_sending(pairs.peer[1]); /* it does not read its answer */
    for (int i = 0; i < N; i++)
        peer_set_deadline(pairs.peer[i], 1);
    start(&pairs.peers, 3600);
    CHECK(is_cut(&pairs, 1, 10000) && is_cut(&pairs, 2, 10000));
    CHECK(!is_cut(&pairs, 0, 0));
    CHECK(recv(pairs.ours[0], &byte, 1, 0) == 1);
    CHECK(is_cut(&pairs, 0, 10000));
    peers_stop(&pairs.peers);
    close_pairs(&pairs);
}

TEST(the_connection_that_was_idle_longest_is_evicted)
{
    struct pairs pairs;
    open_pairs(&pairs);
    atomic_store(&pairs.peer[0]->idle_since_ns, 30);
    atomic_store(&pairs.peer[1]->idle_since_ns, 20);
    peer_set_idle(pairs.peer[2], false); /* the oldest, but in a request */
    CHECK(peers_evict(&pairs.peers, false));
    CHECK(is_cut(&pairs, 1, 0) && !is_cut(&pairs, 0, 0));
    CHECK(peers_evict(&pairs.peers, false));
    CHECK(is_cut(&pairs, 0, 0) && !is_cut(&pairs, 2, 0));
    CHECK(!peers_evict(&pairs.peers, false));
    CHECK(!peers_evict(&pairs.peers, true));
    close_pairs(&pairs);
}

TEST(busy_is_a_request_or_a_byte_of_one)
{
    struct pairs pairs;
    open_pairs(&pairs);
    CHECK(!peers_are_busy(&pairs.peers));
    peer_set_idle(pairs.peer[1], false);
    CHECK(peers_are_busy(&pairs.peers));
    peer_set_idle(pairs.peer[1], true);
    CHECK(!peers_are_busy(&pairs.peers));
    CHECK(send(pairs.theirs[2], "G", 1, 0) == 1);
    CHECK(peers_are_busy(&pairs.peers));
    close_pairs(&pairs);
}

/* ------------------------------------------------------------- how many */

TEST(what_is_accepted_counts_until_it_is_closed)
{
    struct pairs pairs;
    open_pairs(&pairs);
    start(&pairs.peers, 3600);
    struct pollfd closed = {pairs.peers.closed_fd, POLLIN, 0};
    CHECK(!peers_have_room(&pairs.peers, false));
    CHECK(peers_have_room(&pairs.peers, true)); /* of its own */
    CHECK_INT(poll(&closed, 1, 0), 0);
    peers_remove(&pairs.peers, pairs.peer[1]);
    CHECK(peers_have_room(&pairs.peers, false));
    CHECK(peers_add(&pairs.peers, pairs.ours[1], false));
    CHECK(!peers_have_room(&pairs.peers, false)); /* not served, and counts */
    CHECK_INT(peers_count(&pairs.peers), N);
    peers_drop(&pairs.peers, pairs.ours[1]);
    CHECK_INT(poll(&closed, 1, 0), 1); /* it was awaited */
    peers_heed_closed(&pairs.peers);
    CHECK_INT(poll(&closed, 1, 0), 0);
    CHECK(peers_add(&pairs.peers, pairs.ours[1], false));
    pairs.peer[1] = peers_serve(&pairs.peers, pairs.ours[1], 0);
    peers_stop(&pairs.peers);
    close_pairs(&pairs);
}

/* The library has closed them, and has said nothing. */
TEST(what_is_lost_between_accept_and_service_counts_no_more)
{
    struct pairs pairs;
    int lost[2];
    open_pairs(&pairs);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, lost) == 0);
    CHECK(peers_add(&pairs.peers, lost[0], true));
    CHECK(peers_add(&pairs.peers, lost[0], true)); /* its number came again */
    CHECK_INT(peers_count(&pairs.peers), N + 1);
    close(lost[0]);
    start(&pairs.peers, 3600);
    for (int i = 0; i < 500 && peers_count(&pairs.peers) > N; i++)
        CHECK_INT(poll(NULL, 0, 10), 0);
    CHECK_INT(peers_count(&pairs.peers), N);
    peers_stop(&pairs.peers);
    close(lost[1]);
    close_pairs(&pairs);
}

/* ---------------------------------------------------------- who has left */

/* Is there something to read in some time? */
static bool is_woken(int fd)
{
    struct pollfd wait = {fd, POLLIN, 0};
    return poll(&wait, 1, 10000) == 1;
}

TEST(the_end_behind_the_last_bytes_is_told_again)
{
    struct pairs pairs;
    char bytes[8];
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    open_pairs(&pairs);
    CHECK_INT(epoll_ctl(epoll, EPOLL_CTL_ADD, pairs.ours[0], &event), 0);
    CHECK_INT(send(pairs.theirs[0], "goodbye", 7, 0), 7);
    shutdown(pairs.theirs[0], SHUT_WR);
    CHECK_INT(epoll_wait(epoll, &event, 1, 10000), 1);
    CHECK_INT(epoll_wait(epoll, &event, 1, 0), 0); /* the edge was the last */
    peer_set_idle(pairs.peer[0], false);
    start(&pairs.peers, 3600);
    CHECK_INT(epoll_wait(epoll, &event, 1, 10000), 1);
    CHECK_INT(recv(pairs.ours[0], bytes, sizeof bytes, 0), 7);
    CHECK_INT(epoll_wait(epoll, &event, 1, 10000), 1); /* and again */
    CHECK_INT(recv(pairs.ours[0], bytes, sizeof bytes, 0), 0);
    CHECK(!peer_is_gone(pairs.peer[0])); /* it can be answered */
    CHECK_INT(send(pairs.ours[0], "answer", 6, MSG_NOSIGNAL), 6);
    CHECK(is_woken(pairs.theirs[0]));
    CHECK_INT(atomic_load(&n_told), 0);
    peers_stop(&pairs.peers);
    close(epoll);
    close_pairs(&pairs);
}

TEST(who_is_gone_is_told_while_a_request_is_under_way)
{
    struct pairs pairs;
    open_pairs(&pairs);
    peer_set_idle(pairs.peer[0], false);
    close(pairs.theirs[0]);
    close(pairs.theirs[1]); /* idle: nothing to tell of */
    start(&pairs.peers, 3600);
    for (int i = 0; i < 500 && atomic_load(&n_told) < 2; i++)
        CHECK_INT(poll(NULL, 0, 10), 0);
    CHECK(atomic_load(&n_told) >= 2);
    CHECK(peer_is_gone(pairs.peer[0]) && peer_is_gone(pairs.peer[1]));
    CHECK(!peer_is_gone(pairs.peer[2]));
    peers_stop(&pairs.peers);
    pairs.theirs[0] = pairs.theirs[1] = -1;
    close_pairs(&pairs);
}
