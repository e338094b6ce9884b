/*
 * op.h - the operator table, and a call on one of its operators.
 *
 * One descriptor per operator says everything that other rooms need: tensors
 * with symbolic shapes and type variables, forms, typed parameters, rules.
 * Request checks, v2 metadata, OpenAPI, help, metric labels, negative tests
 * and bench rows derive from it. What runs on a device is not in here: each
 * backend has its own array of launch functions, made from ops.def.
 *
 * A call goes through four steps:
 *     roped_call_init      names the operator
 *     set_param, bind      what the client sent, in any order
 *     roped_call_resolve   shapes, types, defaults, rules; sizes the outputs.
 *                          Needs no tensor values: runs on a header alone
 *     roped_call_plan      checks index values and computes what the launch
 *                          needs; reads the host data of index tensors
 * after which a backend can launch it. A call owns no memory.
 */
#ifndef ROPED_OP_H
#define ROPED_OP_H

#include <roped/angles.h>
#include <roped/dtype.h>
#include <roped/status.h>
#include <roped/tensor.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    ROPED_MAX_INPUTS = 24,
    ROPED_MAX_OUTPUTS = 8,
    ROPED_MAX_PARAMS = 48,
    ROPED_MAX_TYPES = 12,
    ROPED_MAX_FORMS = 16,
    ROPED_MAX_GIVEN = 32,
    ROPED_MAX_DIMS = 16, /* distinct dim symbols of one operator */
    ROPED_MAX_STEPS = 3, /* of one dim */
    ROPED_PARAMS_BYTES = 512,
    ROPED_PLAN_BYTES = 512,
    ROPED_NAME_BYTES = 64 /* longest tensor or parameter name, with NUL */
};

/* ------------------------------------------------------------ descriptor */

/*
 * ROPED_UPDATED: a call changes some entries of this input and keeps every
 * other one bit for bit, like a KV cache. Its operator has an output of the
 * same name, type and shape with in_place naming the input, and requires_ too
 * where the input is optional. At launch in[].data and out[].data of the pair
 * are the same memory: a kernel writes the entries it must and leaves
 * the others alone. Whoever schedules the call provides that: memory that the
 * server keeps is used where it is, and nothing is sent back; a tensor on the
 * wire is copied to the output's place first and comes back whole. Where the
 * two are different memory, launch itself begins with that copy.
 */
enum {
    ROPED_OPTIONAL = 1, /* input may be absent */
    ROPED_INDEX = 2,    /* values are read on the host by plan */
    ROPED_UPDATED = 4,  /* input that is written in place, see above */
    ROPED_STRIDED = 8,  /* input or output that may have a stride (tensor.h) */
    ROPED_PLANNED = 16  /* index input whose values stand in the plan, which of
                           others has at most whether one is -1: so a plan is
                           the same bytes from one position to the next */
};

/*
 * A type variable: inputs that name it must agree; set is what it may be. If
 * the set has one type, the variable has that type even if no tensor names it.
 * Three further ways to say what it is:
 *     {"Q", ..., .by = "output_dtype", .of = "F8_E4M3|I8|U8"}
 *         the first, second or third choice of that parameter chooses it
 *     {"A", ROPED_FLOATS, .beside = "T", .also = ROPED_SET(ROPED_F32)}
 *         the type of T, or F32
 *     {"W", ROPED_FLOATS, .beside = "T", .also = ROPED_SET(ROPED_F32),
 *      .any_beside = ROPED_SET(ROPED_F32)}
 *         the same, and beside T of F32 anything of its set
 */
struct roped_type {
    const char *name;
    uint32_t set;       /* ROPED_SET() bits */
    const char *by;     /* choice parameter, or NULL */
    const char *of;     /* by: names of types, one for each choice */
    const char *beside; /* type variable, or NULL */
    uint32_t also, any_beside;
};

/*
 * A tensor of an operator. Its shape is dims separated by spaces:
 *     "n hq d"            three symbols, the same in every tensor of a call
 *     "...rows h"         any number of dims, then h
 *     "n 16"              the second dim is 16
 *     "b+1", "2h", "h/2"  one more than b, twice h, half of h
 *     "n hq*d"            the product of two symbols
 *     "n r+p"             their sum; what no tensor of the call has counts 0
 *     "rows h/group_size" h divided by an int parameter; where that is 0 there
 *                         is no such dim
 *     "h//group_size"     the same, but a dim of 1 where it is 0
 *     "rows^4"            rows, rounded up to a multiple of 4
 *     "h^128/128"         h divided by 128, rounded up
 *     "rows^128 h/16^4"   a sixteenth of h, rounded up to a multiple of 4
 * So a dim is a number, or a pack "...name", or a symbol and at most
 * ROPED_MAX_STEPS steps that are taken from left to right, as on a pocket
 * calculator: *, +, /, // and ^, each with a number, a symbol or an int
 * parameter. Divisions must come out even. In an input a symbol that nothing
 * has bound yet follows from the dim by the steps backwards: "h/2" of 8 says
 * that h is 16. There is no way back from ^: such a dim of an input is held to
 * what required inputs before it say.
 *
 * Alternatives are separated by '|'. Either there is one for each form:
 *     "n hq d|n hq*d|bs s d"
 * (a single one serves every form), or each but the last begins with what must
 * hold for it, and the first of these that does hold is the shape:
 *     "[output_dtype=mxfp4,nvfp4] ...rows h/2|...rows h"
 *     "[form=mla slots] slots p+d|[form=mla] pages pagesize p+d|slots hk d"
 *
 * In brackets stand choice, bool or int parameters with the values that will
 * do, form with names of forms, and inputs that must be given. Of an input's
 * alternatives that hold, the first with its rank is the shape; tensors that
 * have the same alternatives have the same one, as the two caches of a call do.
 * The last one may have a condition too where each form has one that asks for
 * it alone.
 *
 * What the values of a ROPED_INDEX input are is said in holds, and checked
 * before plan where they can be read:
 *     "page < pages"
 *         0 <= page < pages, a symbol or any other dim of known size
 *     "slot < slots|pages*pagesize or -1"
 *         below the first of these dims whose size is known, or -1
 *     "page < pages up to page_indptr"
 *         the same for the first values, as many as the last one of that input
 *     "page < pages for batch_indices"
 *         the same, unless that input has no values: nothing leads to a page
 *     "starts to n"
 *         where runs start: first 0, none less than that before it, last n
 *     "starts within indices"
 *         the same, the last at most indices
 *     "numbers above 0"
 *         finite ones
 *     "position"
 *         plan checks them, together with other inputs
 *
 * The first word is what messages call a value.
 */
struct roped_port {
    const char *name;
    const char *type; /* name of a type variable */
    const char *shape;
    unsigned flags;
    const char *requires_; /* outputs: made only if this input is given, or if
                              this bool parameter is true */
    const char *in_place;  /* outputs: input whose memory it may share */
    const char *holds;     /* index inputs: what their values are, or NULL */
    const char *doc;
};

enum roped_param_kind {
    ROPED_PARAM_FLOAT,  /* double */
    ROPED_PARAM_INT,    /* int64_t */
    ROPED_PARAM_BOOL,   /* int32_t 0 or 1 */
    ROPED_PARAM_CHOICE, /* int32_t index into choices */
    ROPED_PARAM_DTYPE,  /* int32_t enum roped_dtype; binds type variable type */
    ROPED_PARAM_INTS    /* struct roped_ints */
};

enum {
    ROPED_NO_DEFAULT =
        1,              /* unset unless given: NaN, ROPED_UNSET_INT, count 0 */
    ROPED_ABOVE_MIN = 2 /* min itself is excluded */
};

struct roped_param {
    const char *name;
    enum roped_param_kind kind;
    size_t offset; /* in the operator's parameter struct */
    unsigned flags;
    double init;
    double min, max;       /* both 0: no bound */
    const char *choices;   /* "neox|gptj"; DTYPE: "e4m3|e5m2" */
    const char *type;      /* DTYPE only: the type variable it binds */
    const char *shape;     /* INTS: the pack of dims that it binds, beside or
                              instead of an input; may be empty (rank 0). INT:
                              the dim whose size it is, unless it is 0 */
    const char *otherwise; /* INT with a shape: the dim whose size that one has
                              where it is 0, or NULL: it says nothing then */
    const char *doc;
};

/* A form chooses one alternative in every shape of the operator. */
struct roped_form {
    const char *name;
    const char *param; /* choice parameter that must have this value, or NULL */
    int32_t value;
    const char *doc;
};

/*
 * A statement about which inputs and parameters a call has. The sets are of
 * inputs: ROPED_INPUT(ROPE_COS) | ROPED_INPUT(ROPE_SIN).
 *     {.together = cos | sin}            all of them, or none
 *     {.one_of = positions | indptr}     at most one of them
 *     {.with = k_weight, .all = k}       k_weight needs k
 *     {.without = slots, .all = pages}   slots, or all of the pages
 *     {.with = slots, .none = pages}     and not both
 *     {.when = "form=mla", .none = v}    no v in the form mla
 *     {.with_param = "offset", .none = positions}
 *     {.with_param = "scale_ub", .needs = "dynamic=true"}
 * The first four members say where the statement holds, together; when and
 * needs are conditions as stand before an alternative of a shape. A parameter
 * and an input of one name are never both given: that needs no statement.
 */
struct roped_given {
    const char *when;
    const char *with_param; /* where this parameter is given */
    uint32_t with, without; /* where all, none of these are given */
    uint32_t all, none, together, one_of;
    const char *needs;
};
#define ROPED_INPUT(index) (1u << (unsigned)(index))

struct roped_call;

struct roped_op {
    const char *name;
    const char *since;
    const char *summary;
    struct roped_type type[ROPED_MAX_TYPES];
    struct roped_form form[ROPED_MAX_FORMS]; /* [0].name NULL: one form */
    struct roped_given given[ROPED_MAX_GIVEN];
    struct roped_port in[ROPED_MAX_INPUTS];
    struct roped_port out[ROPED_MAX_OUTPUTS];
    size_t params_bytes;
    size_t angles_offset; /* of struct roped_angle_params; ROPED_NO_ANGLES */
    struct roped_param param[ROPED_MAX_PARAMS];

    /*
     * (optional) The dim symbol along which a call may be cut: what an output
     * has at an index follows from what the inputs have there, from inputs
     * without that dim, and from parameters. See roped_call_slice.
     */
    const char *rows;

    /* (optional) The dim symbols that number tokens, at the front of every
     * ROPED_STRIDED port: "n bs s". */
    const char *tokens;

    /* (optional) The dim symbols that may not be 0, as hidden sizes and widths
     * of heads: "d r". */
    const char *widths;

    /*
     * (optional) What nothing above can say; runs at the end of resolve.
     * rule_doc is its sentence for people, required with rule.
     */
    enum roped_status (*rule)(struct roped_call *call, struct roped_error *err);
    const char *rule_doc;

    /* (optional) Bytes of call->aux that plan writes; 0 without. */
    size_t (*aux_bytes)(const struct roped_call *call);

    /* Fills call->plan (and aux, table) from the host values. */
    enum roped_status (*plan)(struct roped_call *call, struct roped_error *err);
    size_t plan_bytes;
};

#define ROPED_NO_ANGLES SIZE_MAX

/* Every operator, in the order of ops.def. */
enum roped_op_id {
#define ROPED_OP(id) ROPED_OP_ID_##id,
#include <roped/ops.def>
#undef ROPED_OP
    ROPED_OP_COUNT
};

/* Number of operators, and the index-th; static memory. */
ROPED_API int roped_op_count(void);
ROPED_API const struct roped_op *roped_op_at(int index);

/* The operator of this name, or NULL. */
ROPED_API const struct roped_op *roped_op_find(const char *name);

/* Position of op in the table, 0 .. roped_op_count() - 1. */
ROPED_API int roped_op_index(const struct roped_op *op);

/*
 * The table's self-check, for start-up and tests: names unique, every output
 * dim and type bound by an input or parameter, defaults inside their ranges,
 * parameters inside their struct, every doc present. ROPED_INTERNAL if not.
 */
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_op_check_table(struct roped_error *err);
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_op_check(const struct roped_op *op, struct roped_error *err);

/* Counts of the used entries of a descriptor's arrays. */
ROPED_API int roped_op_inputs(const struct roped_op *op);
ROPED_API int roped_op_outputs(const struct roped_op *op);
ROPED_API int roped_op_params(const struct roped_op *op);

/* ROPED_INPUT bits of what the plainest call has: the inputs that are not
 * optional; the first one where all are, and others may be in its place. */
ROPED_API uint32_t roped_op_needed(const struct roped_op *op);
ROPED_API int roped_op_forms(const struct roped_op *op); /* at least 1 */
ROPED_API int roped_op_givens(const struct roped_op *op);

/* Index of an input / output / parameter by name, or -1. */
ROPED_API int roped_op_input(const struct roped_op *op, const char *name);
ROPED_API int roped_op_output(const struct roped_op *op, const char *name);
ROPED_API int roped_op_param(const struct roped_op *op, const char *name);

/* Input whose memory this output may share, or -1. */
ROPED_API int roped_op_shared(const struct roped_op *op, int output);

/* Output that is this ROPED_UPDATED input after the call, or -1. */
ROPED_API int roped_op_updates(const struct roped_op *op, int input);

/* The set of types that this port may have. */
ROPED_API uint32_t roped_op_types(const struct roped_op *op,
                                  const struct roped_port *port);

/*
 * Does a statement hold in a call with these parameters and form, of whose
 * inputs this set is given? Then it asks for 'all' and so on.
 */
ROPED_API bool roped_given_holds(const struct roped_call *call,
                                 const struct roped_given *given,
                                 uint32_t inputs);

/*
 * Writes for people what a call of op must keep to beyond shapes: the
 * statements and type relations of the descriptor, and its rule_doc; "" where
 * there is nothing. Returns text, which ends in "..." where it did not fit.
 */
ROPED_API const char *roped_op_rule_text(const struct roped_op *op, char *text,
                                         size_t text_bytes);
enum { ROPED_RULE_BYTES = 4096 }; /* enough for every operator */

/* One alternative of a shape, parsed. */
struct roped_dim_step {
    char sign;      /* '*', '+', '/' or '^' */
    bool is_kept;   /* '//': 1 where the divisor is 0, instead of no dim */
    char name[24];  /* symbol or int parameter; "" for a number */
    int64_t number; /* where name is "" */
};
struct roped_dim_pattern {
    char name[16]; /* symbol, without dots; "" for a fixed size */
    bool is_pack;  /* '...name' */
    int64_t size;  /* fixed size where name is "" */
    int n_steps;
    struct roped_dim_step step[ROPED_MAX_STEPS];
};
struct roped_shape_pattern {
    int count;
    struct roped_dim_pattern dim[ROPED_MAX_RANK];
};

/*
 * Parses an alternative of a port's shape: that of a form, or, where they have
 * conditions, the one with this index. ROPED_INTERNAL on a bad pattern.
 */
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_port_pattern(const struct roped_port *port, int form,
                   struct roped_shape_pattern *out, struct roped_error *err);

/* How many alternatives a shape has. */
ROPED_API int roped_port_alternatives(const struct roped_port *port);

/* Have the alternatives of its shape conditions? Else they are those of forms.
 */
ROPED_API bool roped_port_is_guarded(const struct roped_port *port);

/*
 * What must hold for an alternative, "" without conditions; and one item of it:
 * reads it, moves *text behind it, false: there is none.
 */
struct roped_condition {
    char name[ROPED_NAME_BYTES]; /* parameter, "form", or an input */
    const char *values; /* "mxfp4,nvfp4" and what follows; NULL: input */
};
ROPED_API const char *roped_port_condition(const struct roped_port *port,
                                           int alternative);
ROPED_API bool roped_condition_next(const char **text,
                                    struct roped_condition *out);

/* Copies the first of these values and moves *values behind it; false: there is
 * none. */
ROPED_API bool roped_condition_value(const char **values, char *value,
                                     size_t value_bytes);

/* Writes a dim as a descriptor has it, "...rows" or "h/16^4", into text and
 * returns text. */
ROPED_API const char *roped_dim_text(const struct roped_dim_pattern *dim,
                                     char *text, size_t text_bytes);

/* What an input holds, parsed. */
enum roped_holding {
    ROPED_HOLDS_ANYTHING, /* that is checked before plan */
    ROPED_HOLDS_INDEXES,  /* 0 <= value < below, or -1 */
    ROPED_HOLDS_STARTS,   /* 0 to below */
    ROPED_HOLDS_NUMBERS
};
struct roped_holds {
    enum roped_holding kind;
    char noun[16];    /* "slot" */
    bool may_be_none; /* -1 */
    bool is_within;   /* starts: the last is at most below */
    char up_to[24];   /* input that says how many values count; "": all */
    char reader[24];  /* input whose values lead to these; "": none */
    int n_below;
    struct roped_dim_pattern below[2]; /* the first of known size */
};

/* ROPED_INTERNAL on a bad text; ANYTHING where the port says nothing. */
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_port_holds(const struct roped_port *port, struct roped_holds *out,
                 struct roped_error *err);

/* The size of a symbol or int parameter; false: it is not known. */
typedef bool roped_size_fn(const void *context, const char *name,
                           int64_t *size);

enum roped_dim_state {
    ROPED_DIM_SIZED,
    ROPED_DIM_NONE,   /* '/' by 0: there is no such dim */
    ROPED_DIM_UNKNOWN /* a name whose size is not known, or is 0 in a division
                       */
    ,
    ROPED_DIM_UNEVEN,    /* size is no multiple of what it is divided by */
    ROPED_DIM_TOO_LARGE, /* beyond 2^63 - 1, or below 0 */
    ROPED_DIM_ONE_WAY    /* roped_dim_solve: there is no way back from it */
};
struct roped_dim_size {
    enum roped_dim_state state;
    int64_t size;   /* UNEVEN: before the step */
    int64_t number; /* UNEVEN: what it is divided by */
    int step;       /* that went wrong; -1: the symbol itself */
};

/* The size of a dim that is no pack, and the size of its symbol where the
 * dim's is known. */
ROPED_API struct roped_dim_size
roped_dim_evaluate(const struct roped_dim_pattern *dim, roped_size_fn *size_of,
                   const void *context);
ROPED_API struct roped_dim_size
roped_dim_solve(const struct roped_dim_pattern *dim, int64_t size,
                roped_size_fn *size_of, const void *context);

/* Most integers of an INTS parameter: a shape's rank, or a short list. */
ROPED_API int roped_param_ints(const struct roped_param *param);

/* Count and text of the choices of a CHOICE or DTYPE parameter. */
ROPED_API int roped_param_choices(const struct roped_param *param);
ROPED_API const char *roped_param_choice(const struct roped_param *param,
                                         int index, char *text,
                                         size_t text_bytes);

/* ------------------------------------------------------------------ call */

/* What a call asks of, and gets from, the cache of resident tables. */
struct roped_table_use {
    bool wanted;   /* set by plan: angles may come from a table */
    bool required; /* the client said angles=table: no other source will do */
    int64_t rows;  /* set by plan: rows needed, largest position + 1 */
    struct roped_angles angles; /* set by plan: the key (host memory in aux) */
    const float *data;          /* set by the executor: device memory, [>= rows,
                                   2 * n_pairs], or NULL: compute on the fly */
};

enum { ROPED_TABLE_ROWS = 1 << 24 }; /* at most, of a table */

/*
 * A named set of angle parameters (a server table), and which elements of its
 * model's heads pair; outlives the call.
 */
struct roped_angle_set {
    const char *name;
    struct roped_angle_params params;
    struct roped_longrope_factors factors;
    int64_t rotary_dim; /* 0: not stated */
    int64_t head_dim;   /* 0: not stated */
    int64_t rows;       /* positions must be below; 0: no bound */
    int32_t style;      /* parameter 'style' of calls that do not give one */
};

struct roped_call {
    const struct roped_op *op;
    int n_in, n_out, n_params; /* of op */

    /* as bound by the client; outputs' shapes by resolve. data: host memory
     * until a backend's caller replaces it by what the device can reach */
    struct roped_tensor in[ROPED_MAX_INPUTS];
    struct roped_tensor out[ROPED_MAX_OUTPUTS]; /* absent: not made */

    /* by resolve */
    int form;
    int n_dims;
    struct {
        char name[16];
        int64_t size;          /* a pack: product of its dims; -1: not known */
        const char *setter;    /* input or parameter that bound it */
        const char *otherwise; /* dim whose size it has if nothing binds it */
        bool is_pack;
        int rank; /* a pack: how many dims, and which */
        int64_t dims[ROPED_MAX_RANK];
    } dim[ROPED_MAX_DIMS];
    enum roped_dtype type[ROPED_MAX_TYPES];

    /* by plan, of inputs that hold indexes, where it could read them */
    struct {
        int64_t largest; /* -1 of none */
        bool has_none;   /* a value is -1 */
    } held[ROPED_MAX_INPUTS];

    uint64_t given; /* bit i: parameter i was given by the client */
    const struct roped_angle_set *angle_set; /* table=<name>, or NULL */

    /* False: index tensors are in device memory, so plan checks no values,
     * believes largest_position, and assumes that no position is -1. Only
     * programs that use the library in process may say so. */
    bool host_values;
    int64_t largest_position; /* that may be, where host_values is false; of a
                                 slice: in the whole call; -1: not known */

    /* host memory of op->aux_bytes() for plan, 16-byte aligned, set by the
     * caller before plan; device-reachable at launch */
    void *aux;
    struct roped_table_use table;

    union {
        unsigned char params[ROPED_PARAMS_BYTES];
        int64_t params_align;
        double params_align_double;
    };
    union {
        unsigned char plan[ROPED_PLAN_BYTES];
        int64_t plan_align;
        void *plan_align_pointer;
    };
};

/* A parameter value as a wire format has it. */
enum roped_value_kind {
    ROPED_VALUE_TEXT, /* query string or command line: parsed by the kind */
    ROPED_VALUE_INT,
    ROPED_VALUE_FLOAT,
    ROPED_VALUE_BOOL
};
struct roped_value {
    enum roped_value_kind kind;
    const char *text; /* NUL-terminated */
    int64_t integer;  /* INT and BOOL */
    double number;    /* FLOAT */
};

/* Starts a call of op: defaults in place, nothing bound, host_values true. */
ROPED_API void roped_call_init(struct roped_call *call,
                               const struct roped_op *op);

/*
 * Sets one parameter; ROPED_UNKNOWN_NAME where op has none of that name,
 * ROPED_BAD_PARAMETER for a second value, a wrong type, or a value out of
 * range, with the range.
 */
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_call_set_param(struct roped_call *call, const char *name,
                     const struct roped_value *value, struct roped_error *err);

/* The same from text. */
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_call_set_text(struct roped_call *call, const char *name, const char *text,
                    struct roped_error *err);

/* Uses a named table's angles; refused where op takes no angles. */
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_call_use_angles(struct roped_call *call,
                      const struct roped_angle_set *set,
                      struct roped_error *err);

/*
 * Binds one input by name (name need not outlive the call). Checks name
 * (ROPED_UNKNOWN_NAME), duplicates (ROPED_INVALID), type set (ROPED_BAD_TYPE)
 * and rank limits (ROPED_BAD_SHAPE); shapes wait for resolve. data may be set
 * later, in call->in[].data.
 */
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_call_bind(struct roped_call *call, const char *name,
                const struct roped_tensor *tensor, struct roped_error *err);

ROPED_API ROPED_MUST_CHECK enum roped_status
roped_call_resolve(struct roped_call *call, struct roped_error *err);

/*
 * Gives an output of a resolved call a stride; 0: packed. ROPED_BAD_SHAPE names
 * a tensor that may not have one, or says what the stride must be. An output in
 * the memory of an input has the input's stride.
 */
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_call_set_stride(struct roped_call *call, int output, int64_t stride,
                      struct roped_error *err);

/* Bytes of call->aux for a resolved call; 0 where plan needs none. */
ROPED_API size_t roped_call_aux_bytes(const struct roped_call *call);

ROPED_API ROPED_MUST_CHECK enum roped_status
roped_call_plan(struct roped_call *call, struct roped_error *err);

/*
 * The number of rows into which a resolved call may be cut; 0: it cannot be
 * cut. roped_call_slice makes a call of the rows [begin, end) of a planned
 * call; it is resolved, has to be planned, and its data pointers lead to these
 * rows.
 */
ROPED_API int64_t roped_call_rows(const struct roped_call *call);
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_call_slice(const struct roped_call *call, int64_t begin, int64_t end,
                 struct roped_call *out, struct roped_error *err);

/*
 * The alternative of a port's shape that holds in a call with these parameters,
 * inputs and form; rank is the tensor's, or -1 for any. Resolve finds the form:
 * before it, set call->form.
 */
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_call_pattern(const struct roped_call *call, const struct roped_port *port,
                   int rank, struct roped_shape_pattern *out,
                   struct roped_error *err);

/* Do all items of a condition hold in a call with these parameters, inputs and
 * form? */
ROPED_API bool roped_condition_holds(const struct roped_call *call,
                                     const char *text);

/* What the values of an input of a resolved call are below, or end with; *which
 * is the dim that says so, -1: nothing does. */
ROPED_API int64_t roped_call_below(const struct roped_call *call,
                                   const struct roped_holds *holds, int *which);

/* Size of a dim symbol bound by resolve, or -1. */
ROPED_API int64_t roped_call_dim(const struct roped_call *call,
                                 const char *symbol);

/* Was this parameter given by the client? */
ROPED_API bool roped_call_gave(const struct roped_call *call,
                               const char *param);

/* The call's own angle parameters, or those of its angle_set. */
ROPED_API const struct roped_angle_params *
roped_call_angles(const struct roped_call *call);

/* Bytes that one pass over all given inputs and all outputs moves; what is
 * between tokens does not move. */
ROPED_API int64_t roped_call_bytes(const struct roped_call *call);

#ifdef __cplusplus
}
#endif

#endif
