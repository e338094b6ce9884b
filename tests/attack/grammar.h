/*
 * grammar.h - the connections of the grammar tester: what is sent on the N-th
 * of a seed, in which pieces and with which end, and what an answer to it may
 * be. The same seed and number make the same connection.
 */
#ifndef ROPED_TESTS_ATTACK_GRAMMAR_H
#define ROPED_TESTS_ATTACK_GRAMMAR_H

#include "attack/attack.h"

#include <stdint.h>

enum { PLAN_REQUESTS = 6, PLAN_CUTS = 5 };

/* A valid request and its answer. */
struct kind {
    const char *method, *target;
    int body; /* which of the bodies, see grammar_kinds.c */
    int code, other_code;
    const char *part; /* of the answer's body */
};

enum ending {
    END_SOON,  /* close once the answers are there, or nothing comes any more */
    END_WAIT,  /* until the server closes */
    END_HALF,  /* shut down sending, then wait */
    END_RESET, /* amid or after what is sent */
};

struct plan {
    uint64_t number;
    struct bytes wire;
    bool is_valid; /* every request is, and is to be answered */
    int n_requests;
    int n_extra; /* answers more than that, which broken framing may cause */
    const struct kind *kind[PLAN_REQUESTS];
    bool is_chunked[PLAN_REQUESTS];
    int n_cuts; /* places where it pauses, in order */
    size_t cut[PLAN_CUTS];
    double pause_seconds[PLAN_CUTS];
    enum ending ending;
    size_t end_at; /* of END_RESET: bytes sent until then */
};

/* Makes the bodies, before anything else. */
void grammar_init(void);

/* What valid requests rely on: regions and a table. */
void grammar_prepare(const struct server *server);

/* Free it with plan_free. */
void plan_make(struct plan *plan, uint64_t seed, uint64_t number);
void plan_free(struct plan *plan);

/* The id that the i-th request carries in X-Request-Id. No flipped bit makes
 * another's of it. */
void plan_tag(char *out, size_t out_bytes, uint64_t number, int i);

/* Random numbers of a plan: the same on every machine. */
struct dice {
    uint64_t state;
};
size_t dice_below(struct dice *dice, size_t n); /* 0 where n is 0 */
bool dice_chance(struct dice *dice, int percent);

/* One request in parts, so that each can be broken by itself. */
struct message {
    struct bytes method, target, version, host, headers, framing, body;
    bool is_chunked;
};
void message_free(struct message *message);

/* A valid message of a random kind. name: of the regions it uses. */
const struct kind *message_make(struct message *message, struct dice *dice,
                                const char *name);

#endif
