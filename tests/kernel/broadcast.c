/*
 * broadcast.c - every way in which two shapes broadcast.
 */
#include "kernel/broadcast.h"

#include "ops/binary_backward.h"

#include <stdio.h>
#include <string.h>

struct shape {
    int rank;
    int64_t dims[ROPED_MAX_RANK];
};

/* Shapes of b beside a: each way in which a launch can be cut. */
static const struct shapes {
    struct shape a, b;
} pairs[] = {
    /* one operand broadcast: rows, columns, both, middles, all */
    {{2, {512, 384}}, {1, {384}}},
    {{2, {3, 40000}}, {1, {40000}}},
    {{2, {20000, 3}}, {1, {3}}},
    {{2, {5000, 40}}, {1, {40}}},
    {{2, {9001, 20}}, {1, {20}}},
    {{2, {700, 256}}, {2, {700, 1}}},
    {{2, {33, 4096}}, {2, {33, 1}}},
    {{2, {7, 10007}}, {2, {7, 1}}},
    {{2, {30000, 4}}, {2, {30000, 1}}},
    {{2, {20001, 7}}, {2, {20001, 1}}},
    {{2, {2, 100000}}, {2, {2, 1}}},
    {{3, {16, 32, 256}}, {3, {1, 32, 1}}},
    {{3, {300, 3, 32}}, {3, {1, 3, 1}}},
    {{3, {4000, 2, 2}}, {3, {1, 2, 1}}},
    {{3, {5, 999, 40}}, {3, {5, 1, 40}}},
    {{3, {64, 40, 64}}, {3, {64, 1, 64}}},
    {{3, {600, 9, 17}}, {3, {600, 1, 17}}},
    {{3, {3000, 5, 64}}, {3, {3000, 1, 64}}}, /* a thread's own */
    {{2, {12, 120000}}, {1, {120000}}},
    {{4, {20, 6, 30, 32}}, {4, {1, 6, 1, 32}}},
    {{4, {100, 3, 2, 64}}, {4, {1, 3, 1, 64}}},
    {{4, {3, 50, 4, 128}}, {4, {3, 1, 4, 1}}},
    {{4, {9, 40, 5, 12}}, {4, {9, 1, 5, 1}}},
    {{1, {200000}}, {0, {0}}},
    {{1, {65537}}, {1, {1}}},
    {{1, {262144}}, {1, {262144}}},
    {{1, {10007}}, {1, {10007}}},
    {{5, {8, 3, 16, 4, 32}}, {5, {8, 1, 16, 1, 32}}},
    {{5, {8, 3, 16, 4, 32}}, {5, {1, 3, 1, 4, 1}}},
    {{6, {6, 5, 4, 6, 5, 8}}, {6, {6, 1, 4, 1, 5, 1}}},
    {{8, {2, 3, 4, 3, 2, 5, 3, 8}}, {8, {2, 1, 4, 1, 2, 1, 3, 1}}},
    {{8, {3, 2, 4, 3, 2, 3, 5, 4}}, {8, {1, 2, 1, 3, 1, 3, 1, 4}}},
    /* both broadcast */
    {{2, {300, 1}}, {2, {1, 500}}},
    {{2, {3, 1}}, {2, {1, 50000}}},
    {{2, {50000, 1}}, {1, {3}}},
    {{3, {40, 1, 64}}, {3, {1, 60, 64}}},
    {{3, {1, 70, 32}}, {3, {50, 1, 32}}},
    {{4, {12, 1, 16, 1}}, {4, {1, 13, 1, 33}}},
    {{4, {1, 13, 16, 33}}, {4, {12, 1, 16, 33}}},
    {{3, {64, 1, 1}}, {3, {1, 32, 100}}},
    {{3, {8, 64, 1}}, {3, {8, 1, 1024}}}, /* in one launch, */
    {{4, {2000, 4, 1, 8}}, {4, {1, 4, 5, 8}}},
    {{2, {4, 1}}, {2, {1, 300000}}},
    {{3, {64, 1, 256}}, {3, {1, 128, 256}}}, /* in two, */
    {{2, {300, 1}}, {2, {1, 4096}}},         /* in one pass */
    {{3, {5, 128, 1}}, {3, {5, 1, 2000}}},
    {{4, {1, 90, 16, 1}}, {4, {3, 1, 16, 512}}}, /* with parts apart, */
    {{3, {560, 488, 1}}, {3, {1, 488, 8}}},      /* of narrow rows, */
    {{5, {2, 60, 40, 60, 1}}, {5, {1, 1, 40, 1, 8}}},
    {{3, {320, 150, 1}}, {3, {1, 150, 45}}}, /* of odd ones, */
    {{3, {1, 1000, 32}}, {3, {70, 1000, 1}}},
    {{6, {8, 5, 20, 4, 30, 1}}, {6, {1, 5, 1, 4, 1, 24}}}, /* of runs */
    {{5, {1, 2, 97, 13, 1}}, {5, {12, 2, 1, 13, 73}}},     /* odd rows */
    {{3, {1, 500, 77}}, {3, {40, 1, 77}}},
    {{3, {8, 9000, 1}}, {3, {1, 9000, 130}}}, /* which a thread has all of */
    {{5, {1, 56, 40, 5, 64}},
     {5, {4, 56, 40, 1, 64}}},               /* few in a thread, of columns */
    {{3, {1200, 1, 500}}, {3, {1, 7, 500}}}, /* in segments */
    {{4, {400, 1, 3, 62}}, {4, {400, 40, 1, 62}}},  /* by elements */
    {{4, {5, 144, 31, 1}}, {4, {1, 144, 31, 130}}}, /* of few terms */
    {{4, {5, 200, 8, 1}}, {4, {1, 200, 8, 602}}},
    {{3, {40001, 1, 28}}, {3, {1, 2, 1}}},
    {{5, {1, 16, 1, 16, 1}}, {5, {7, 1, 40, 1, 33}}},
    {{8, {3, 1, 4, 1, 3, 1, 2, 1}}, {8, {1, 5, 1, 3, 1, 6, 1, 7}}},
    {{8, {3, 1, 4, 2, 3, 1, 2, 8}}, {8, {1, 5, 4, 1, 1, 6, 2, 1}}},
    /* long sums: an error that grows with the length would show */
    {{1, {3000000}}, {0, {0}}},
    {{2, {500000, 5}}, {1, {5}}},
    {{3, {40000, 5, 7}}, {2, {5, 1}}},             /* runs of columns */
    {{3, {2401, 55, 9}}, {3, {2401, 1, 9}}},       /* tiles of odd columns, */
    {{3, {1201, 3, 333}}, {3, {1201, 1, 333}}},    /* of wide ones, */
    {{4, {3001, 30, 3, 5}}, {4, {3001, 1, 3, 1}}}, /* of runs, */
    {{4, {2001, 24, 12, 2}},
     {4, {2001, 1, 12, 1}}},           /* whose rows are packets */
    {{2, {6, 100000}}, {1, {100000}}}, /* quotients of few terms */
    {{3, {22000, 19, 8}}, {2, {19, 1}}},
    {{3, {40000, 3, 33}}, {2, {3, 1}}},
    {{3, {20, 2000, 30}}, {3, {20, 1, 30}}}, /* and rows around them */
    {{4, {7, 8000, 6, 2}}, {4, {7, 1, 6, 1}}},
    {{4, {3000, 12, 3, 22}}, {4, {1, 12, 1, 22}}}, /* and runs that lie apart */
    {{4, {140, 40, 9, 50}}, {4, {1, 40, 1, 50}}},
    {{5, {2, 12000, 4, 3, 9}}, {5, {2, 1, 4, 1, 9}}},
    {{5, {3000, 5, 4, 7, 6}}, {5, {1, 5, 1, 7, 1}}},
    {{3, {340, 368, 28}}, {3, {1, 368, 1}}}, /* runs in panels */
    {{3, {300, 1000, 6}}, {3, {1, 1000, 1}}},
    {{3, {440, 1000, 8}}, {3, {1, 1000, 1}}},
    {{4, {40, 8, 37, 131}}, {4, {1, 8, 1, 131}}}, /* a dim in segments */
    {{5, {20, 7, 5, 9, 333}}, {5, {1, 7, 1, 9, 1}}},
    {{2, {40000, 64}}, {1, {64}}},
    {{2, {3, 1000000}}, {2, {3, 1}}},
    {{3, {2000, 16, 64}}, {3, {1, 16, 1}}},
    {{2, {1000000, 1}}, {2, {1, 2}}},
    {{2, {3, 700001}}, {2, {3, 1}}}, /* no two rows aligned alike */
    {{2, {30, 40001}}, {1, {40001}}},
    {{2, {184, 8907}}, {1, {8907}}}, /* in narrow blocks */
    {{2, {12, 15504}}, {1, {15504}}},
    {{2, {60, 1600}}, {1, {1600}}},
    {{2, {7, 70001}}, {1, {70001}}}, /* few terms of many odd columns */
    {{3, {3, 9, 100003}}, {3, {3, 1, 100003}}},
    {{2, {2, 600003}}, {1, {600003}}},
    /* of one to four waves of a GPU's blocks */
    {{2, {400, 2070}}, {2, {400, 1}}},
    {{2, {104, 15696}}, {1, {15696}}},
    {{3, {64, 1, 2000}}, {3, {1, 8, 2000}}},
    {{3, {16, 153, 1240}}, {3, {16, 1, 1240}}},
    {{2, {54788, 1}}, {1, {16}}},
    {{2, {40, 1}}, {2, {1, 70000}}}, /* sums of rows in groups */
    {{2, {6480, 24}}, {2, {6480, 1}}},
    /* of nothing: zeros */
    {{1, {0}}, {0, {0}}},
    {{2, {0, 5}}, {1, {5}}},
    {{2, {3, 0}}, {2, {3, 1}}},
    {{2, {0, 4}}, {2, {0, 4}}},
    {{2, {1, 0}}, {2, {600, 1}}},
    {{3, {2, 0, 3}}, {3, {1, 1, 3}}},
};
enum { PAIRS = sizeof pairs / sizeof *pairs };

/* A random dim: mostly small, at times 1, rarely 0 or wide. */
static int64_t random_size(struct random_source *source, int64_t room)
{
    static const int64_t sizes[] = {1,  2,  2,  3,  3,   4,   5,   7,    8,   9,
                                    16, 17, 31, 64, 100, 129, 256, 1000, 4100};
    int64_t size = random_pick(source, sizes, sizeof sizes / sizeof *sizes);
    if (random_once_in(source, 60))
        return 0;
    return size <= room ? size : 1 + size % 2;
}

/* Drops some of the leading ones. */
static void trim(struct random_source *source, struct shape *shape)
{
    while (shape->rank > 0 && shape->dims[0] == 1 &&
           random_once_in(source, 2)) {
        shape->rank--;
        memmove(shape->dims, shape->dims + 1,
                (size_t)shape->rank * sizeof *shape->dims);
    }
}

static struct shapes random_shapes(struct random_source *source)
{
    int rank = (int)random_int(source, 0, ROPED_MAX_RANK);
    struct shapes out = {.a = {.rank = rank}, .b = {.rank = rank}};
    int64_t room = random_once_in(source, 8) ? 200000 : 8000;
    int kind = (int)random_int(source, 0, 3); /* 3: a new one for each dim */
    for (int i = rank - 1; i >= 0; i--) {
        int64_t size = random_size(source, room);
        int of = kind < 3 && random_once_in(source, 2)
                     ? kind
                     : (int)random_int(source, 0, kind < 3 ? 1 : 2);
        out.a.dims[i] = of == 1 && kind != 2 ? 1 : size;
        out.b.dims[i] = of == 2 || (of == 1 && kind == 2) ? 1 : size;
        room /= size > 0 ? size : 1;
    }
    trim(source, &out.a);
    trim(source, &out.b);
    return out;
}

/* Narrow columns of many rows, at times in runs that share an element, or with
 * rows around them. */
static struct shapes random_columns(struct random_source *source)
{
    int64_t kept = random_once_in(source, 2) ? 1 : random_int(source, 2, 20);
    int64_t run = random_once_in(source, 2) ? 1 : random_int(source, 2, 36);
    int64_t columns = random_int(source, 2, 256 / run);
    int64_t n = (int64_t)450000 << random_int(source, 0, 3);
    int64_t rows = n / (kept * columns * run) / 8 * 8 + 8;
    return (struct shapes){{4, {kept, rows, columns, run}},
                           {4, {kept, 1, columns, 1}}};
}

static struct shape whole_of(const struct shape *a, const struct shape *b)
{
    struct shape out = {.rank = a->rank > b->rank ? a->rank : b->rank};
    for (int i = 0; i < out.rank; i++) {
        int in_a = i - (out.rank - a->rank), in_b = i - (out.rank - b->rank);
        int64_t of_a = in_a < 0 ? 1 : a->dims[in_a];
        int64_t of_b = in_b < 0 ? 1 : b->dims[in_b];
        out.dims[i] = of_a == 1 ? of_b : of_a;
    }
    return out;
}

static void give(struct random_call *made, int input, const struct shape *shape,
                 enum roped_dtype dtype)
{
    made->in[input] =
        (struct roped_tensor){.dtype = dtype, .rank = shape->rank};
    memcpy(made->in[input].dims, shape->dims, sizeof shape->dims);
}

static void say(struct random_call *made, const char *name,
                const struct shape *shape)
{
    int param = roped_op_param(made->op, name);
    size_t at = 0;
    made->has_param[param] = true;
    for (int i = 0; i < shape->rank; i++)
        at +=
            (size_t)snprintf(made->param[param] + at, RANDOM_CALL_TEXT - at,
                             "%s%lld", i ? "," : "", (long long)shape->dims[i]);
}

void broadcast_shapes(struct random_call *made, struct random_source *source)
{
    static const enum roped_dtype types[] = {ROPED_F32, ROPED_F16, ROPED_BF16};
    static const char *const functions[] = {"add", "sub", "mul", "div"};
    static unsigned next;
    struct shapes shapes = next % 3 == 0 ? pairs[next / 3 % PAIRS]
                           : random_once_in(source, 16) ? random_columns(source)
                                                        : random_shapes(source);
    enum roped_dtype dtype = types[random_int(source, 0, 2)];
    int function = (int)random_int(source, 0, 3);
    int param = roped_op_param(made->op, "function");
    next++;
    if (random_once_in(source, 2))
        shapes = (struct shapes){.a = shapes.b, .b = shapes.a};
    struct shape whole = whole_of(&shapes.a, &shapes.b);
    give(made, BINARY_GRAD_OUTPUT, &whole, dtype);
    made->has_param[param] = true;
    snprintf(made->param[param], RANDOM_CALL_TEXT, "%s", functions[function]);
    if (function < 2 && random_once_in(source, 2)) {
        say(made, "a_shape", &shapes.a);
        say(made, "b_shape", &shapes.b);
    } else {
        give(made, BINARY_A, &shapes.a, dtype);
        give(made, BINARY_B, &shapes.b, dtype);
    }
}
