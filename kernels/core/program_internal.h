/*
 * program_internal.h - what the files that make up programs share.
 */
#ifndef ROPED_CORE_PROGRAM_INTERNAL_H
#define ROPED_CORE_PROGRAM_INTERNAL_H

#include <roped/program.h>

enum program_name_kind {
    NAME_UNKNOWN, /* used, and nobody has said what it is */
    NAME_INPUT,
    NAME_MADE,
    NAME_PLACE
};

/* A value or a place. Steps count from 0 here, and from 1 in messages; -1:
 * none. */
struct program_name {
    char text[ROPED_NAME_BYTES]; /* of a place without '@' */
    enum program_name_kind kind;
    int index;     /* of the input or place; MADE: of the step */
    int port;      /* MADE: of the step's output */
    int next;      /* in its bucket, -1: the last */
    int user;      /* the last step that uses it, and as what */
    int user_port; /* of that step's operator */
    int updater;   /* step that used it up */
    int became;    /* name that it has since then; -1: none */
    int writer;    /* PLACE: the last step that writes there */
    int output;    /* of the program, -1: it is none */
};

/* A tensor of a step. */
struct program_ref {
    int name; /* -1: made and forgotten */
    int port;
    bool is_output;
    uint64_t offset;         /* in a place */
    struct roped_view *view; /* or NULL */
};

struct program_setting {
    char name[ROPED_NAME_BYTES];
    char *text; /* the program's; NULL: program parameter 'param' */
    int param;
};

struct program_step {
    const struct roped_op *op;
    int first_ref, n_refs;
    int first_setting, n_settings;
    int table; /* of the program's tables, -1: none */
};

struct program_param {
    char name[ROPED_NAME_BYTES];
    char *otherwise; /* or NULL */
};

/* A list that grows. */
#define PROGRAM_LIST(type)                                                     \
    struct {                                                                   \
        type *at;                                                              \
        int n, room;                                                           \
    }

enum { PROGRAM_BUCKETS = 1024 };

struct roped_program {
    PROGRAM_LIST(struct program_step) steps;
    PROGRAM_LIST(struct program_ref) refs;
    PROGRAM_LIST(struct program_setting) settings;
    PROGRAM_LIST(struct program_name) names;
    PROGRAM_LIST(int) places;    /* their names */
    PROGRAM_LIST(char *) tables; /* "name" or "$name" */
    int n_inputs, n_outputs, n_params;
    int input[ROPED_PROGRAM_INPUTS], output[ROPED_PROGRAM_OUTPUTS];
    struct roped_declared declared[ROPED_PROGRAM_INPUTS];
    struct program_param param[ROPED_PROGRAM_PARAMS];
    int bucket[PROGRAM_BUCKETS]; /* first name of each, -1: none */
    struct roped_call scratch;   /* of the last step, for its parameters */
};

/* Room for one more, zeros, which is counted; NULL: no memory. */
void *program_grow(void **at, int *n, int *room, size_t bytes);
#define PROGRAM_GROW(list)                                                     \
    program_grow((void **)&(list).at, &(list).n, &(list).room,                 \
                 sizeof *(list).at)

/* ROPED_INVALID: values are not called so. */
ROPED_MUST_CHECK enum roped_status
program_check_name(const char *what, const char *text, struct roped_error *err);

/* Index of a value or place, or -1; and a new one, -1: no memory. */
int program_find(const struct roped_program *program, const char *text,
                 bool is_place);
int program_add_name(struct roped_program *program, const char *text,
                     enum program_name_kind kind);

/* The step's input that its output updates, -1: none. */
int program_updated(const struct roped_op *op, int output);

#endif
