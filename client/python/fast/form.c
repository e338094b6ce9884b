/*
 * form.c - a call that is prepared for tensors of these types, shapes and
 * strides: whose address goes where, what makes the outputs, what is returned.
 *
 * MEMORY: a form owns a reference to the Python object of its work, which is
 * not freed before. Nothing that a form refers to refers to it, so forms need
 * no garbage collection.
 */
#include "fast.h"

enum { MAX_SLOTS = ROPED_MAX_INPUTS + ROPED_MAX_OUTPUTS };

struct output {
    int slot;
    PyObject *make, *arguments; /* owned */
};

struct form {
    PyObject_HEAD PyObject *work; /* whose handle it is */
    PyObject *acquire, *release;  /* of the session's lock */
    PyObject *result; /* a type of tuple; None: the only output itself */
    struct roped_work *handle;
    int n_values, n_given, n_made, n_returned;
    struct {
        int slot, value;
    } given[MAX_SLOTS];
    struct output made[ROPED_MAX_OUTPUTS];
    int returned[ROPED_MAX_OUTPUTS]; /* a value, or what is made; -1: None */
};

/* ------------------------------------------------------------ from Python */

static bool is_slot(int slot)
{
    return slot >= 0 && slot < MAX_SLOTS;
}

static int refuse(const char *what)
{
    PyErr_Format(PyExc_ValueError, "Form: %s out of range", what);
    return -1;
}

/* [(slot, value), ...] */
static int take_given(struct form *form, PyObject *given)
{
    Py_ssize_t n = PyList_Size(given);
    if (n > MAX_SLOTS)
        return refuse("given");
    for (; form->n_given < n; form->n_given++) {
        int slot, value;
        PyObject *pair = PyList_GetItem(given, form->n_given);
        if (!pair || !PyArg_ParseTuple(pair, "ii", &slot, &value))
            return -1;
        if (!is_slot(slot) || value < 0 || value >= form->n_values)
            return refuse("given");
        form->given[form->n_given].slot = slot;
        form->given[form->n_given].value = value;
    }
    return 0;
}

/* [(slot, function, its arguments), ...] */
static int take_made(struct form *form, PyObject *made)
{
    Py_ssize_t n = PyList_Size(made);
    if (n > ROPED_MAX_OUTPUTS)
        return refuse("made");
    while (form->n_made < n) {
        struct output output;
        PyObject *row = PyList_GetItem(made, form->n_made);
        if (!row || !PyArg_ParseTuple(row, "iOO!", &output.slot, &output.make,
                                      &PyTuple_Type, &output.arguments))
            return -1;
        if (!is_slot(output.slot))
            return refuse("made");
        Py_INCREF(output.make);
        Py_INCREF(output.arguments);
        form->made[form->n_made++] = output;
    }
    return 0;
}

/* [index, ...] */
static int take_returned(struct form *form, PyObject *returned)
{
    Py_ssize_t n = PyList_Size(returned);
    if (n > ROPED_MAX_OUTPUTS || (form->result == Py_None && n != 1))
        return refuse("returned");
    for (; form->n_returned < n; form->n_returned++) {
        PyObject *item = PyList_GetItem(returned, form->n_returned);
        long index = item ? PyLong_AsLong(item) : -1;
        if (PyErr_Occurred())
            return -1;
        if (index < -1 || index >= form->n_values + form->n_made)
            return refuse("returned");
        form->returned[form->n_returned] = (int)index;
    }
    return 0;
}

static int take_work(struct form *form, PyObject *work)
{
    form->work = Py_NewRef(work);
    PyObject *address = PyObject_GetAttrString(work, "address");
    if (!address)
        return -1;
    form->handle = PyLong_AsVoidPtr(address);
    Py_DECREF(address);
    PyObject *lock = PyObject_GetAttrString(work, "lock");
    if (!lock)
        return -1;
    form->acquire = PyObject_GetAttrString(lock, "acquire");
    form->release = PyObject_GetAttrString(lock, "release");
    Py_DECREF(lock);
    return form->handle && form->acquire && form->release ? 0 : -1;
}

/* Form(work, n_values, given, made, returned, result) */
static PyObject *form_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *work, *given, *made, *returned, *result;
    int n_values;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "OiO!O!O!O", &work, &n_values, &PyList_Type,
                          &given, &PyList_Type, &made, &PyList_Type, &returned,
                          &result))
        return NULL;
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    struct form *form = (struct form *)alloc(type, 0); /* zeroed */
    if (!form)
        return NULL;
    form->n_values = n_values;
    form->result = Py_NewRef(result);
    if (take_work(form, work) || take_given(form, given) ||
        take_made(form, made) || take_returned(form, returned)) {
        Py_DECREF(form);
        return NULL;
    }
    return (PyObject *)form;
}

static void form_dealloc(PyObject *self)
{
    struct form *form = (struct form *)self;
    PyTypeObject *type = Py_TYPE(self);
    for (int i = 0; i < form->n_made; i++) {
        Py_DECREF(form->made[i].make);
        Py_DECREF(form->made[i].arguments);
    }
    Py_XDECREF(form->result);
    Py_XDECREF(form->release);
    Py_XDECREF(form->acquire);
    Py_XDECREF(form->work);
    freefunc free_object = (freefunc)PyType_GetSlot(type, Py_tp_free);
    free_object(self);
    Py_DECREF(type); /* its instances own their type */
}

PyType_Spec fast_form_spec = {
    .name = "roped._fast.Form",
    .basicsize = sizeof(struct form),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = (PyType_Slot[]){{Py_tp_new, form_new},
                             {Py_tp_dealloc, form_dealloc},
                             {0, NULL}},
};

/* -------------------------------------------------------------- a launch */

/* What a launch made so far, and where everything is. */
struct launch {
    PyObject *made[ROPED_MAX_OUTPUTS]; /* owned */
    int n_made;
    void *data[MAX_SLOTS];
};

static void place_given(const struct form *form, const struct fast_call *call,
                        struct launch *launch)
{
    for (int i = 0; i < form->n_given; i++)
        launch->data[form->given[i].slot] =
            call->addresses[form->given[i].value];
}

static int make_outputs(const struct form *form, const struct fast_state *state,
                        struct launch *launch)
{
    for (int i = 0; i < form->n_made; i++) {
        const struct output *output = &form->made[i];
        struct dlpack_tensor view;
        PyObject *tensor = PyObject_Call(output->make, output->arguments, NULL);
        if (!tensor)
            return -1;
        launch->made[launch->n_made++] = tensor;
        if (state->torch->view(tensor, &view) != 0)
            return -1;
        if (view.data)
            launch->data[output->slot] = (char *)view.data + view.byte_offset;
    }
    return 0;
}

/* A call without arguments, whose result is of no interest. */
static int call_only(PyObject *function)
{
    PyObject *result = PyObject_CallNoArgs(function);
    Py_XDECREF(result);
    return result ? 0 : -1;
}

/* Raises what the package's own function makes of a refusal. */
static void raise_refusal(const struct fast_state *state,
                          enum roped_status status, const char *text)
{
    PyObject *error =
        PyObject_CallFunction(state->error, "is", (int)status, text);
    if (error)
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_XDECREF(error);
}

/* Nothing of Python runs while the session is locked. */
static int enqueue(const struct form *form, const struct fast_state *state,
                   void *const *data)
{
    struct roped_error err;
    enum roped_status status;
    if (call_only(form->acquire))
        return -1;
    Py_BEGIN_ALLOW_THREADS;
    status = state->launch_on(form->handle, data, &err);
    Py_END_ALLOW_THREADS;
    if (call_only(form->release))
        return -1;
    if (status == ROPED_OK)
        return 0;
    raise_refusal(state, status, err.text);
    return -1;
}

/* A new reference. */
static PyObject *returned(const struct form *form, const struct fast_call *call,
                          const struct launch *launch, int i)
{
    int at = form->returned[i];
    if (at < 0)
        return Py_NewRef(Py_None);
    return Py_NewRef(at < form->n_values ? call->values[at]
                                         : launch->made[at - form->n_values]);
}

/* A named tuple is made as tuple.__new__(type, values) makes it. */
static PyObject *named_tuple(PyObject *type, PyObject *values)
{
    newfunc make = (newfunc)PyType_GetSlot(&PyTuple_Type, Py_tp_new);
    PyObject *arguments = PyTuple_Pack(1, values);
    PyObject *tuple =
        arguments ? make((PyTypeObject *)type, arguments, NULL) : NULL;
    Py_XDECREF(arguments);
    return tuple;
}

static PyObject *result(const struct form *form, const struct fast_call *call,
                        const struct launch *launch)
{
    if (form->result == Py_None)
        return returned(form, call, launch, 0);
    PyObject *values = PyTuple_New(form->n_returned);
    if (!values)
        return NULL;
    for (int i = 0; i < form->n_returned; i++)
        PyTuple_SetItem(values, i, returned(form, call, launch, i));
    PyObject *tuple = named_tuple(form->result, values);
    Py_DECREF(values);
    return tuple;
}

PyObject *fast_form_launch(PyObject *self, const struct fast_state *state,
                           const struct fast_call *call)
{
    const struct form *form = (const struct form *)self;
    struct launch launch = {.n_made = 0};
    PyObject *found = NULL;
    if (call->n_values != form->n_values) {
        PyErr_SetString(PyExc_ValueError, "Form: of another call");
        return NULL;
    }
    place_given(form, call, &launch);
    if (make_outputs(form, state, &launch) == 0 &&
        enqueue(form, state, launch.data) == 0)
        found = result(form, call, &launch);
    for (int i = 0; i < launch.n_made; i++)
        Py_DECREF(launch.made[i]);
    return found;
}
