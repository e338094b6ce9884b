/*
 * hostile.h - a server that answers as no server should, for those who ask it:
 * http://127.0.0.1:PORT/BEHAVIOUR is the URL of one way to misbehave.
 */
#ifndef ROPED_TESTS_ATTACK_HOSTILE_H
#define ROPED_TESTS_ATTACK_HOSTILE_H

/* What a client may ask for, and cannot get where a behaviour says so. What is
 * not said may end either way, but in time and with printable words. */
enum hostile_fails {
    HOSTILE_CALL = 1,     /* an operator's answer, a safetensors file */
    HOSTILE_DOCUMENT = 2, /* a JSON object */
    HOSTILE_METRICS = 4,  /* health, and text */
    HOSTILE_REGION = 8,   /* any bytes */
    HOSTILE_ALL = 15
};

struct hostile_behaviour;

/* Behaviour i, or NULL behind the last. */
const struct hostile_behaviour *hostile_at(int i);
const char *hostile_name(const struct hostile_behaviour *behaviour);
unsigned hostile_fails(const struct hostile_behaviour *behaviour);

/* Starts it on threads of this process; its port. Ends the test where it
 * cannot. */
int hostile_start(void);

#endif
