/*
 * test_peers.c - deadlines of connections, and which of them goes first.
 */
#include "check.h"
#include "http/clock.h"
#include "http/peers.h"

#include <poll.h>
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
    peers_init(&pairs->peers);
    for (int i = 0; i < N; i++) {
        int fd[2] = {-1, -1};
        CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fd) == 0);
        pairs->ours[i] = fd[0];
        pairs->theirs[i] = fd[1];
        pairs->peer[i] = peers_add(&pairs->peers, fd[0], 0);
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

TEST(a_deadline_that_has_passed_cuts_the_connection)
{
    struct pairs pairs;
    struct roped_error err;
    open_pairs(&pairs);
    CHECK_INT(peers_start(&pairs.peers, 0, 0, &err), ROPED_OK);
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
    struct roped_error err;
    char byte;
    open_pairs(&pairs);
    CHECK(send(pairs.theirs[0], "G", 1, 0) == 1);
    CHECK(send(pairs.theirs[1], "G", 1, 0) == 1);
    peer_set_sending(pairs.peer[1]); /* it does not read its answer */
    for (int i = 0; i < N; i++)
        peer_set_deadline(pairs.peer[i], 1);
    CHECK_INT(peers_start(&pairs.peers, 0, 3600, &err), ROPED_OK);
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
    CHECK(peers_evict(&pairs.peers));
    CHECK(is_cut(&pairs, 1, 0) && !is_cut(&pairs, 0, 0));
    CHECK(peers_evict(&pairs.peers));
    CHECK(is_cut(&pairs, 0, 0) && !is_cut(&pairs, 2, 0));
    CHECK(!peers_evict(&pairs.peers));
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

TEST(who_has_left_is_seen_behind_what_it_sent)
{
    struct pairs pairs;
    open_pairs(&pairs);
    CHECK_INT(send(pairs.theirs[0], "goodbye", 7, 0), 7);
    CHECK(!peer_has_left(pairs.peer[0]));
    shutdown(pairs.theirs[0], SHUT_WR);
    CHECK(peer_has_left(pairs.peer[0]));
    CHECK(!peer_has_left(pairs.peer[1]));
    close_pairs(&pairs);
}

int main(void)
{
    RUN(a_deadline_that_has_passed_cuts_the_connection);
    RUN(a_deadline_waits_for_what_the_daemon_has_not_read);
    RUN(the_connection_that_was_idle_longest_is_evicted);
    RUN(busy_is_a_request_or_a_byte_of_one);
    RUN(who_has_left_is_seen_behind_what_it_sent);
    return check_done();
}
