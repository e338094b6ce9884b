/*
 * module.c - roped._fast, as Python sees it:
 *
 *     know_torch(...)     what to ask of torch; calls are NotImplemented before
 *     key(arguments, out, named)
 *                         the bytes of a call's form; None where it is odd
 *     Form(work, n_values, given, made, returned, result)
 *     launch(forms, arguments, out, named)
 *                         what the call returns, if its form is in this dict
 *
 * forms is a dict of Form by key. Python fills and bounds it.
 */
#include "fast.h"

static struct fast_state *state_of(PyObject *module)
{
    return PyModule_GetState(module);
}

static PyObject *not_implemented(void)
{
    return Py_NewRef(Py_NotImplemented);
}

/* ----------------------------------------------------------- what is asked */

/* Of functions without arguments: 1 where one returns something true, 0, or -1
 * with an exception. */
static int is_true(PyObject *function)
{
    PyObject *answer = PyObject_CallNoArgs(function);
    int truth = answer ? PyObject_IsTrue(answer) : -1;
    Py_XDECREF(answer);
    return truth;
}

static int is_watched(const struct fast_state *state)
{
    Py_ssize_t n = PyTuple_Size(state->watchers);
    int found = 0;
    for (Py_ssize_t i = 0; i < n && found == 0; i++)
        found = is_true(PyTuple_GetItem(state->watchers, i));
    return found;
}

/* A launch is for the current device; 1, 0, or -1 with an exception. */
static int is_current(const struct fast_state *state,
                      struct dlpack_device device)
{
    if (device.type != DLPACK_CUDA)
        return 1;
    PyObject *index = PyObject_CallNoArgs(state->current_device);
    long current = index ? PyLong_AsLong(index) : -1;
    Py_XDECREF(index);
    if (PyErr_Occurred())
        return -1;
    return current == device.index;
}

/* -------------------------------------------------------------- functions */

static bool are_calls(PyObject *arguments, PyObject *named)
{
    if (PyTuple_CheckExact(arguments) && PyDict_CheckExact(named))
        return true;
    PyErr_SetString(PyExc_TypeError, "expected a tuple, out, and a dict");
    return false;
}

/* A short way out for a call of numpy's arrays. */
static bool may_be_torch(const struct fast_state *state, PyObject *arguments)
{
    return state->torch &&
           (PyTuple_Size(arguments) == 0 ||
            fast_is_tensor(state, PyTuple_GetItem(arguments, 0)));
}

static PyObject *key_of(const struct fast_call *call)
{
    return PyBytes_FromStringAndSize((const char *)call->key,
                                     (Py_ssize_t)call->key_bytes);
}

static PyObject *key(PyObject *module, PyObject *args)
{
    const struct fast_state *state = state_of(module);
    struct fast_call call;
    PyObject *arguments, *out, *named, *found;
    if (!PyArg_ParseTuple(args, "OOO", &arguments, &out, &named) ||
        !are_calls(arguments, named))
        return NULL;
    if (!state->torch)
        Py_RETURN_NONE;
    fast_call_start(&call, false);
    if (fast_call_read(&call, state, arguments, out, named)) {
        found = key_of(&call);
    } else {
        PyErr_Clear();
        found = Py_NewRef(Py_None);
    }
    fast_call_clear(&call);
    return found;
}

/* A new reference; NULL without an exception where it is not there. */
static PyObject *form_of(const struct fast_state *state, PyObject *forms,
                         const struct fast_call *call)
{
    PyObject *bytes = key_of(call);
    if (!bytes)
        return NULL;
    PyObject *form = PyDict_GetItemWithError(forms, bytes);
    Py_DECREF(bytes);
    return form && Py_IS_TYPE(form, state->form_type) ? Py_NewRef(form) : NULL;
}

static PyObject *launch_read(const struct fast_state *state, PyObject *forms,
                             const struct fast_call *call)
{
    int is_here = is_current(state, call->device);
    if (is_here <= 0)
        return is_here < 0 ? NULL : not_implemented();
    PyObject *form = form_of(state, forms, call);
    if (!form)
        return PyErr_Occurred() ? NULL : not_implemented();
    PyObject *result = fast_form_launch(form, state, call);
    Py_DECREF(form);
    return result;
}

static PyObject *launch(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
    const struct fast_state *state = state_of(module);
    struct fast_call call;
    PyObject *result;
    if (n != 4 || !PyDict_CheckExact(args[0]))
        return PyErr_Format(PyExc_TypeError, "expected a dict, and a call");
    if (!are_calls(args[1], args[3]))
        return NULL;
    if (!may_be_torch(state, args[1]))
        return not_implemented();
    int watched = is_watched(state);
    int is_recording = watched == 0 ? is_true(state->is_recording) : 0;
    if (watched != 0 || is_recording < 0)
        return watched > 0 ? not_implemented() : NULL;
    fast_call_start(&call, is_recording);
    if (fast_call_read(&call, state, args[1], args[2], args[3])) {
        result = launch_read(state, args[0], &call);
    } else {
        PyErr_Clear(); /* Python finds it again, and says what is wrong */
        result = not_implemented();
    }
    fast_call_clear(&call);
    return result;
}

/* ------------------------------------------------------------------ torch */

/* The table of the version that dlpack.h has; NULL with an exception. */
static const struct dlpack_exchange *table_of(PyObject *capsule)
{
    const struct dlpack_exchange *table =
        PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    if (!table)
        return NULL;
    while (table && table->major != DLPACK_MAJOR)
        table = table->older;
    if (!table || !table->view || !table->current_stream) {
        PyErr_SetString(PyExc_ValueError, "no table of DLPack 1");
        return NULL;
    }
    return table;
}

static void replace(PyObject **place, PyObject *value)
{
    PyObject *old = *place;
    *place = Py_NewRef(value);
    Py_XDECREF(old);
}

static PyObject *know_torch(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"launch_on",      "error",    "table",
                            "tensor_types",   "watchers", "is_recording",
                            "current_device", NULL};
    struct fast_state *state = state_of(module);
    PyObject *address, *error, *capsule, *types, *watchers, *recording, *device;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOO!O!OO", names, &address,
                                     &error, &capsule, &PyTuple_Type, &types,
                                     &PyTuple_Type, &watchers, &recording,
                                     &device))
        return NULL;
    const struct dlpack_exchange *table = table_of(capsule);
    void *launch_on = table ? PyLong_AsVoidPtr(address) : NULL;
    if (!launch_on)
        return PyErr_Occurred() ? NULL
                                : PyErr_Format(PyExc_ValueError, "launch_on");
    replace(&state->error, error);
    replace(&state->tensor_types, types);
    replace(&state->watchers, watchers);
    replace(&state->is_recording, recording);
    replace(&state->current_device, device);
    state->launch_on = (launch_function *)launch_on;
    state->torch = table;
    Py_RETURN_NONE;
}

/* ----------------------------------------------------------------- module */

static int module_exec(PyObject *module)
{
    struct fast_state *state = state_of(module);
    PyObject *type = PyType_FromModuleAndSpec(module, &fast_form_spec, NULL);
    state->form_type = (PyTypeObject *)type;
    state->requires_grad = PyUnicode_InternFromString("requires_grad");
    if (!type || !state->requires_grad)
        return -1;
    return PyModule_AddObjectRef(module, "Form", type);
}

static int module_traverse(PyObject *module, visitproc visit, void *arg)
{
    struct fast_state *state = state_of(module);
    Py_VISIT(state->form_type);
    Py_VISIT(state->error);
    Py_VISIT(state->tensor_types);
    Py_VISIT(state->watchers);
    Py_VISIT(state->is_recording);
    Py_VISIT(state->current_device);
    return 0;
}

static int module_clear(PyObject *module)
{
    struct fast_state *state = state_of(module);
    state->torch = NULL; /* launch() says NotImplemented from now on */
    Py_CLEAR(state->form_type);
    Py_CLEAR(state->requires_grad);
    Py_CLEAR(state->error);
    Py_CLEAR(state->tensor_types);
    Py_CLEAR(state->watchers);
    Py_CLEAR(state->is_recording);
    Py_CLEAR(state->current_device);
    return 0;
}

static void module_free(void *module)
{
    module_clear(module);
}

static PyMethodDef methods[] = {
    {"know_torch", (PyCFunction)(void (*)(void))know_torch,
     METH_VARARGS | METH_KEYWORDS, NULL},
    {"key", key, METH_VARARGS, NULL},
    {"launch", (PyCFunction)(void (*)(void))launch, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{Py_mod_exec, module_exec}, {0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "roped._fast",
    .m_size = sizeof(struct fast_state),
    .m_methods = methods,
    .m_slots = slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

/* NOLINTNEXTLINE(readability-identifier-naming): Python's name for it */
PyMODINIT_FUNC PyInit__fast(void);

PyMODINIT_FUNC PyInit__fast(void)
{
    return PyModuleDef_Init(&module);
}
