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
    ROPED_MAX_FORMS = 4,
    ROPED_MAX_DIMS = 16, /* distinct dim symbols of one operator */
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
    ROPED_STRIDED = 8   /* input or output that may have a step (tensor.h) */
};

/* A type variable: inputs that name it must agree; set is what it may be. One
 * type alone needs nobody to bind it. */
struct roped_type {
    const char *name;
    uint32_t set; /* ROPED_SET() bits */
};

/*
 * A tensor of an operator. shape is one alternative per form, separated by
 * '|' (a single alternative serves every form); dims are separated by
 * spaces, each a symbol, an integer, or '...name' for any number of dims. An
 * output may also have 'name/param': dim name divided by an int parameter,
 * which must divide it; no dim at all where the parameter is 0, or, written
 * 'name//param', a dim of 1. And 'name^4': dim name rounded up to a multiple.
 */
struct roped_port {
    const char *name;
    const char *type; /* name of a type variable */
    const char *shape;
    unsigned flags;
    const char *requires_; /* outputs: made only where this input is given, or
                              this bool parameter true */
    const char *in_place;  /* outputs: input whose memory it may share */
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
    double min, max;     /* both 0: no bound */
    const char *choices; /* "neox|gptj"; DTYPE: "e4m3|e5m2" */
    const char *type;    /* DTYPE only: the type variable it binds */
    const char *shape;   /* INTS only: the pack of dims that it binds, beside
                            or instead of an input; may be empty (rank 0) */
    const char *doc;
};

/* A form: which alternative of every shape holds. */
struct roped_form {
    const char *name;
    const char *param; /* choice parameter that must have this value, or NULL */
    int32_t value;
    const char *doc;
};

struct roped_call;

struct roped_op {
    const char *name;
    const char *since;
    const char *summary;
    struct roped_type type[ROPED_MAX_TYPES];
    struct roped_form form[ROPED_MAX_FORMS]; /* [0].name NULL: one form */
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

    /*
     * (optional) What shapes and types alone cannot say; runs at the end of
     * resolve. rule_doc is its sentence for people, required with rule.
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
ROPED_API int roped_op_forms(const struct roped_op *op); /* at least 1 */

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

/* One alternative of a shape, parsed. */
struct roped_dim_pattern {
    char name[16]; /* symbol, without dots; "" for a fixed size */
    char by[24];   /* int parameter that divides it, or "" */
    bool is_kept;  /* 'name//param': 1 where the parameter is 0 */
    bool is_pack;  /* '...name' */
    int64_t size;  /* fixed size where name is "" */
    int64_t unit;  /* it is rounded up to a multiple of this; 0: it is not */
};
struct roped_shape_pattern {
    int count;
    struct roped_dim_pattern dim[ROPED_MAX_RANK];
};

/* Parses the shape of a port in a form; ROPED_INTERNAL on a bad pattern. */
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_port_pattern(const struct roped_port *port, int form,
                   struct roped_shape_pattern *out, struct roped_error *err);

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
    bool required; /* angles=table was asked for in so many words */
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
        int64_t size;       /* a pack: product of its dims */
        const char *setter; /* input or parameter that bound it */
        bool is_pack;
        int rank; /* a pack: how many dims, and which */
        int64_t dims[ROPED_MAX_RANK];
    } dim[ROPED_MAX_DIMS];
    enum roped_dtype type[ROPED_MAX_TYPES];

    uint64_t given; /* bit i: parameter i was given by the client */
    const struct roped_angle_set *angle_set; /* table=<name>, or NULL */

    /* False: index tensors are in device memory; plan then checks no values
     * and takes largest_position as given, and no position may be -1. For
     * in-process callers only. */
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
 * Says that an output of a resolved call has a step, 0: that it is packed. As
 * with inputs, ROPED_BAD_SHAPE names the tensor that may have none, or what the
 * step must be. An output that is the memory of an input has that one's step.
 */
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_call_set_step(struct roped_call *call, int output, int64_t step,
                    struct roped_error *err);

/* Bytes of call->aux for a resolved call; 0 where plan needs none. */
ROPED_API size_t roped_call_aux_bytes(const struct roped_call *call);

ROPED_API ROPED_MUST_CHECK enum roped_status
roped_call_plan(struct roped_call *call, struct roped_error *err);

/*
 * Into how many rows a resolved call may be cut; 0: it is one piece. And the
 * part of a planned call from row begin to before row end: a call of its own,
 * resolved, to be planned. Its data begins where that of those rows does.
 */
ROPED_API int64_t roped_call_rows(const struct roped_call *call);
ROPED_API ROPED_MUST_CHECK enum roped_status
roped_call_slice(const struct roped_call *call, int64_t begin, int64_t end,
                 struct roped_call *out, struct roped_error *err);

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
