/*
 * program.h - programs: chains of calls that are checked together and run one
 * after another, with their intermediate tensors in one piece of memory.
 *
 *     roped_program_new      a program; then, in this order, what it takes:
 *     roped_program_param    parameters of its own, and
 *     roped_program_input    inputs,
 *     roped_program_step     and its steps: after each step that one's
 *     roped_step_param,        parameters, and named table,
 *     roped_step_in, _out      the names of what it reads and of what it makes
 *     roped_program_output   which of these names are outputs
 *     roped_program_end      checks what can be checked without tensors
 *
 * A program never changes after roped_program_end, and any number of threads
 * may use it. It is the definition alone: a chain (struct roped_chain) is one
 * run of it, with tensors, as a roped_call is one of an operator:
 *
 *     roped_chain_init       in memory of the caller's, roped_chain_bytes of it
 *     roped_chain_param,     what the run was given, in any order
 *     roped_chain_input, _place, _table, _into
 *     roped_chain_resolve    shapes, types and rules of every step; lays out
 * the arena. Needs no values roped_chain_plan       checks index values,
 * computes what launches need roped_chain_enter      where everything is on the
 * device roped_chain_launch     every step, on one queue, without waiting
 *
 * session.h has the same with plain arguments.
 *
 * NAMES. A name is a value: an input of the program, or what a step made. Each
 * is made once, and before it is used. "@name" is a place: memory that lives
 * longer than the program's run, of which a step uses the part that begins at
 * an offset ("@name:4096"). Steps use a place in the order in which they are
 * written. A value that a step updates (ROPED_UPDATED) is used up by that, and
 * goes on under the name of the step's output, in the same memory.
 *
 * INDEX VALUES (ROPED_INDEX) are read on the host before any step runs. So such
 * a tensor is an input of the program or in a place, never what a step made,
 * nor in a place that a step before has written to.
 *
 * ERRORS name the step, which counts from 1, its operator, and the tensor:
 *     step 3 (rope): tensor 'q': dim 2 is 64, expected ...
 *
 * MEMORY. A program owns copies of all it was told. A chain owns nothing: the
 * program, texts, angle sets and tensors outlive it.
 */
#ifndef ROPED_PROGRAM_H
#define ROPED_PROGRAM_H

#include <roped/backend.h>
#include <roped/op.h>

#ifdef __cplusplus
extern "C" {
#endif

struct roped_program;
struct roped_chain;

enum {
    ROPED_PROGRAM_STEPS = 1024,
    ROPED_PROGRAM_INPUTS = 64,
    ROPED_PROGRAM_OUTPUTS = 64,
    ROPED_PROGRAM_PARAMS = 64
};

/* -------------------------------------------------------------- definition */

/* What a program says of a tensor in a place beside its name; zeros: nothing,
 * so that the place's own tensor says it. */
struct roped_view {
    enum roped_dtype dtype;
    bool has_shape;
    int rank;
    int64_t dims[ROPED_MAX_RANK];
    int64_t stride;
};

/* What a program says of an input: its type, and a shape whose dims are sizes
 * or names of sizes, which are the same in all inputs. */
struct roped_declared {
    enum roped_dtype dtype; /* ROPED_NO_DTYPE: any */
    bool has_shape;
    int rank;
    int64_t dims[ROPED_MAX_RANK];    /* where there is no name */
    char symbol[ROPED_MAX_RANK][16]; /* "": none */
};

ROPED_API ROPED_MUST_CHECK enum roped_status
roped_program_new(struct roped_program **out, struct roped_error *err);

/* NULL is fine. */
ROPED_API void roped_program_free(struct roped_program *program);

/* A parameter of the program, which steps call "$name". otherwise: its value
 * where a run gives none; NULL: a run must give one. */
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_program_param(struct roped_program *program, const char *name,
                    const char *otherwise, struct roped_error *err);

/* declared may be NULL. */
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_program_input(struct roped_program *program, const char *name,
                    const struct roped_declared *declared,
                    struct roped_error *err);

/* The next step; ROPED_NO_OPERATOR. The functions below are about the step that
 * was begun last: its inputs come before its outputs. */
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_program_step(struct roped_program *program, const char *op,
                   struct roped_error *err);

/* Sets a parameter from text, as in a query string, or to a parameter of the
 * program: "$name". */
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_step_param(struct roped_program *program, const char *name,
                 const char *text, struct roped_error *err);

/* The named table that gives the step's angles; "$name" too. */
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_step_table(struct roped_program *program, const char *table,
                 struct roped_error *err);

/*
 * The step's tensor is this value or place. view may be NULL, and says nothing
 * of a value; of an output in a place it says the stride alone. Outputs that
 * are not named are made and forgotten.
 */
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_step_in(struct roped_program *program, const char *tensor,
              const char *name, const struct roped_view *view,
              struct roped_error *err);
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_step_out(struct roped_program *program, const char *tensor,
               const char *name, const struct roped_view *view,
               struct roped_error *err);

/* This value, which a step made, is an output of the program. */
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_program_output(struct roped_program *program, const char *name,
                     struct roped_error *err);

ROPED_API ROPED_MUST_CHECK enum roped_status
roped_program_end(struct roped_program *program, struct roped_error *err);

/* What it consists of. Names live as long as the program; a place's is without
 * '@', and a table's may be "$name". */
ROPED_API int roped_program_steps(const struct roped_program *program);
ROPED_API int roped_program_inputs(const struct roped_program *program);
ROPED_API int roped_program_outputs(const struct roped_program *program);
ROPED_API int roped_program_params(const struct roped_program *program);
ROPED_API int roped_program_places(const struct roped_program *program);
ROPED_API int roped_program_tables(const struct roped_program *program);
ROPED_API const struct roped_op *
roped_program_op(const struct roped_program *program, int step);
ROPED_API const char *
roped_program_input_name(const struct roped_program *program, int input);
ROPED_API const char *
roped_program_output_name(const struct roped_program *program, int output);
ROPED_API const char *
roped_program_param_name(const struct roped_program *program, int param);
ROPED_API const char *
roped_program_param_default(const struct roped_program *program, int param);
ROPED_API const char *
roped_program_place_name(const struct roped_program *program, int place);
/* The first step that uses a place, from 0. */
ROPED_API int roped_program_place_step(const struct roped_program *program,
                                       int place);
ROPED_API const struct roped_declared *
roped_program_declared(const struct roped_program *program, int input);

/* The port of a step that reads an input, the last of several, or that makes an
 * output; and the step's operator. */
ROPED_API const struct roped_port *
roped_program_input_port(const struct roped_program *program, int input,
                         const struct roped_op **op);
ROPED_API const struct roped_port *
roped_program_output_port(const struct roped_program *program, int output,
                          const struct roped_op **op);

/* Memory that it takes, about. */
ROPED_API size_t roped_program_bytes(const struct roped_program *program);

/* Index of an input / output / parameter by name, or -1. */
ROPED_API int roped_program_find_input(const struct roped_program *program,
                                       const char *name);
ROPED_API int roped_program_find_output(const struct roped_program *program,
                                        const char *name);
ROPED_API int roped_program_find_param(const struct roped_program *program,
                                       const char *name);

/* ------------------------------------------------------------------- a run */

/*
 * Memory of the caller's: an area (a region, an allocation) that id tells from
 * others, or NULL where it is of no interest what else is there; and where in
 * it a tensor begins, and how many bytes the area has. Where id is NULL nothing
 * is held to offset and bytes.
 */
struct roped_area {
    const void *id;
    uint64_t offset, bytes;
};

/* Bytes of a chain, at a multiple of 16; and a new one in such memory. */
ROPED_API size_t roped_chain_bytes(const struct roped_program *program);
ROPED_API struct roped_chain *
roped_chain_init(void *memory, const struct roped_program *program);

/*
 * For another run: forgets what it was given, and not what it was resolved to.
 * Where that run gives it the same (data apart) roped_chain_resolve has nothing
 * to do.
 */
ROPED_API void roped_chain_again(struct roped_chain *chain);

/* A parameter of the program; text outlives the chain. */
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_chain_param(struct roped_chain *chain, const char *name, const char *text,
                  struct roped_error *err);

/* The type, shape and stride of an input, by name; its data is not looked at.
 * area NULL: none. */
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_chain_input(struct roped_chain *chain, const char *name,
                  const struct roped_tensor *tensor,
                  const struct roped_area *area, struct roped_error *err);

/* The area of an input, before or after it is told what the tensor is. */
ROPED_API void roped_chain_area(struct roped_chain *chain, int input,
                                const struct roped_area *area);

/* A place: the tensor at its start, or ROPED_NO_DTYPE for plain bytes; its area
 * has offset 0. */
ROPED_API void roped_chain_place(struct roped_chain *chain, int place,
                                 const struct roped_tensor *tensor,
                                 const struct roped_area *area);

/* Where an output goes, and its stride (0: packed, or that of the input which
 * was updated). Only where the caller has a place for it already. */
ROPED_API void roped_chain_into(struct roped_chain *chain, int output,
                                const struct roped_area *area, int64_t stride);

/* The name of a table of this run, whose parameters are set, or NULL with an
 * error; and its angles. */
ROPED_API const char *roped_chain_table_name(const struct roped_chain *chain,
                                             int table,
                                             struct roped_error *err);
ROPED_API void roped_chain_table(struct roped_chain *chain, int table,
                                 const struct roped_angle_set *set);

/* Plan believes what index tensors hold, as roped_call.host_values says. Not
 * for steps whose plan computes with values: they read them all the same. */
ROPED_API void roped_chain_trust(struct roped_chain *chain);

ROPED_API ROPED_MUST_CHECK enum roped_status
roped_chain_resolve(struct roped_chain *chain, struct roped_error *err);

/*
 * A piece of memory that steps use. After resolve the caller says where each
 * of them is that is not in the arena: address, where the device has it, for
 * roped_chain_enter; and host, where its values can be read, for
 * roped_chain_plan, if has_values.
 */
enum roped_piece_kind {
    ROPED_PIECE_INPUT,  /* an input of the program */
    ROPED_PIECE_PLACE,  /* all of a place, from its start */
    ROPED_PIECE_VALUES, /* a copy of index values in a place */
    ROPED_PIECE_OUTPUT, /* an output of the program */
    ROPED_PIECE_ARENA   /* what is neither; address is the chain's own */
};
struct roped_piece {
    enum roped_piece_kind kind;
    int index;              /* of the input, place or output */
    struct roped_area area; /* offset: where it begins; ARENA: in the arena */
    uint64_t bytes;         /* that steps use, from there */
    uint64_t alignment;     /* of its elements */
    bool is_read;           /* it holds something before the first step */
    bool is_written;        /* and something else after the last */
    bool has_values;        /* plan reads them on the host */
    void *host, *address;
    int first, last; /* steps that use it */
    int writer;      /* the first that writes to it, -1: none */
};
ROPED_API int roped_chain_pieces(const struct roped_chain *chain);
ROPED_API struct roped_piece *roped_chain_piece(struct roped_chain *chain,
                                                int piece);

/* An input as it was given; an output, resolved, its data NULL; and the piece
 * where each is, from its start. */
ROPED_API const struct roped_tensor *
roped_chain_input_tensor(const struct roped_chain *chain, int input);
ROPED_API const struct roped_tensor *
roped_chain_output_tensor(const struct roped_chain *chain, int output,
                          int *piece);

/* The call of a step; resolved, and planned after roped_chain_plan. */
ROPED_API struct roped_call *roped_chain_call(struct roped_chain *chain,
                                              int step);

/* Bytes of the arena, 256-byte aligned; of all steps' aux, 64-byte aligned; and
 * those that all steps move. */
ROPED_API uint64_t roped_chain_arena_bytes(const struct roped_chain *chain);
ROPED_API size_t roped_chain_aux_bytes(const struct roped_chain *chain);
ROPED_API uint64_t roped_chain_moved_bytes(const struct roped_chain *chain);

/*
 * Plans one step: aux is host memory for that of all steps. Afterwards
 * roped_chain_call(...)->table says whether it wants a table, which the caller
 * gives as after roped_call_plan.
 */
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_chain_plan(struct roped_chain *chain, int step, void *aux,
                 struct roped_error *err);

/* Points every call at the device's memory: its arena, the copy of aux (or the
 * same memory, where the device reaches it), and the pieces' addresses. */
ROPED_API void roped_chain_enter(struct roped_chain *chain, void *arena,
                                 void *aux);

ROPED_API ROPED_MUST_CHECK enum roped_status
roped_chain_launch(const struct roped_chain *chain,
                   const struct roped_backend_api *api,
                   struct roped_queue *queue, struct roped_error *err);

/*
 * Launches that repeat. After roped_chain_enter: can the values of other runs
 * leave the launches of this chain as they are, so that a backend may record
 * them? And what they depend on besides what is in memory: chains with the same
 * key launch the same. Returns the words of the key, which is written where
 * there is room for all of it. The last word of each step, at its end, is the
 * address of the step's table, or 0.
 */
ROPED_API bool roped_chain_repeats(const struct roped_chain *chain);
ROPED_API size_t roped_chain_key(const struct roped_chain *chain, uint64_t *key,
                                 size_t room);

/* Writes "step 3 (rope): " before the sentence of an error that is about a
 * step, unless status is ROPED_OK; returns status. */
ROPED_API enum roped_status
roped_program_blame(const struct roped_program *program, int step,
                    enum roped_status status, struct roped_error *err);

#ifdef __cplusplus
}
#endif

#endif
