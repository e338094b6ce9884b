/*
 * fast.h - roped._fast: a call of an operator that was made before, without
 * Python between its arguments and its launch. _in_process.py makes first
 * calls, and every call that is odd; what this module says is NotImplemented
 * then.
 *
 *     call.c    the arguments of a call, and its key: all that its form is
 *     form.c    a call that is prepared: what goes where, and its launch
 *     module.c  what Python sees
 *
 * It has nothing of torch: torch's tensors are read through DLPack's table of
 * functions, and outputs are made by what Python says makes them.
 *
 * THREADS: the GIL is held, but for the launch itself, which holds the lock of
 * the session. Other threads may run whenever Python objects are made, so that
 * every object in use is held by a reference.
 */
#ifndef ROPED_FAST_H
#define ROPED_FAST_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000 /* 3.10, as pyproject.toml says */
#include <Python.h>

#include "dlpack.h"

#include <roped/op.h>
#include <roped/session.h>

#include <stdbool.h>

enum {
    MAX_VALUES = 64,     /* of a call: tensors, parameters and places */
    MAX_KEY_BYTES = 2048 /* 13 tensors of 4 dims by name take 700 */
};

typedef enum roped_status launch_function(struct roped_work *work,
                                          void *const *data,
                                          struct roped_error *err);

/* What know_torch() was told. References are owned by the module. */
struct fast_state {
    PyTypeObject *form_type;
    PyObject *requires_grad;  /* the name of that attribute */
    PyObject *tensor_types;   /* a tuple; no subclass is one of them */
    PyObject *watchers;       /* a tuple of functions */
    PyObject *is_recording;   /* is a gradient recorded? */
    PyObject *current_device; /* the index of CUDA's */
    PyObject *error;          /* what is raised where a launch fails */
    const struct dlpack_exchange *torch; /* NULL: not known yet */
    launch_function *launch_on;
};

struct fast_call {
    struct dlpack_device device; /* of all tensors; type 0: none yet */
    bool is_recording;
    int n_values;                 /* arguments, then named, then places */
    PyObject *values[MAX_VALUES]; /* owned */
    void *addresses[MAX_VALUES];  /* NULL for what is no tensor */
    size_t key_bytes;
    unsigned char key[MAX_KEY_BYTES];
};

/* -------------------------------------------------------------- call.c */

/* Is it a tensor of torch, of no subclass? */
bool fast_is_tensor(const struct fast_state *state, PyObject *value);

/* Before anything else; is_recording: are gradients recorded? */
void fast_call_start(struct fast_call *call, bool is_recording);

/*
 * Reads a call: a tuple, out= (None, a tensor, or a dict of them) and a dict.
 * False, with or without an exception, where it is odd: tensors of another
 * type, on several devices or with a gradient to record, or parameters that
 * are not plain. The caller clears it in either case.
 */
bool fast_call_read(struct fast_call *call, const struct fast_state *state,
                    PyObject *arguments, PyObject *out, PyObject *named);

void fast_call_clear(struct fast_call *call);

/* -------------------------------------------------------------- form.c */

extern PyType_Spec fast_form_spec;

/* What the call returns, a new reference; NULL with an exception. */
PyObject *fast_form_launch(PyObject *form, const struct fast_state *state,
                           const struct fast_call *call);

#endif
