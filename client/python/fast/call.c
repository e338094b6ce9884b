/*
 * call.c - what was given to an operator, and its key: the bytes of everything
 * that a prepared call depends on. That is the way in which arguments are
 * written, values of parameters, types and shapes of tensors, strides of those
 * that are not packed, their device and the stream. Each item begins with its
 * tag and tells its length, so that different calls have different keys.
 */
#include "fast.h"

#include <string.h>

/* --------------------------------------------------------------- the key */

static bool put(struct fast_call *call, const void *data, size_t n_bytes)
{
    if (n_bytes > MAX_KEY_BYTES - call->key_bytes)
        return false;
    memcpy(call->key + call->key_bytes, data, n_bytes);
    call->key_bytes += n_bytes;
    return true;
}

static bool put_item(struct fast_call *call, char tag, const void *data,
                     size_t n_bytes)
{
    return put(call, &tag, 1) && put(call, data, n_bytes);
}

static bool put_size(struct fast_call *call, char tag, Py_ssize_t size)
{
    return put_item(call, tag, &size, sizeof size);
}

static bool put_text(struct fast_call *call, PyObject *text)
{
    Py_ssize_t n_bytes;
    const char *utf8 = PyUnicode_AsUTF8AndSize(text, &n_bytes);
    return utf8 && put_size(call, 's', n_bytes) &&
           put(call, utf8, (size_t)n_bytes);
}

static bool put_int(struct fast_call *call, PyObject *value)
{
    int overflow;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    return !overflow && put_item(call, 'i', &number, sizeof number);
}

static bool put_float(struct fast_call *call, PyObject *value)
{
    double number = PyFloat_AsDouble(value);
    return put_item(call, 'f', &number, sizeof number);
}

/* A list or a tuple, which mean the same. */
static bool put_ints(struct fast_call *call, PyObject *value)
{
    bool is_list = PyList_CheckExact(value);
    Py_ssize_t n = is_list ? PyList_Size(value) : PyTuple_Size(value);
    bool is_put = put_size(call, 'l', n);
    for (Py_ssize_t i = 0; i < n && is_put; i++) {
        PyObject *item =
            is_list ? PyList_GetItem(value, i) : PyTuple_GetItem(value, i);
        is_put = item && PyLong_CheckExact(item) && put_int(call, item);
    }
    return is_put;
}

static bool put_parameter(struct fast_call *call, PyObject *value)
{
    if (value == Py_None)
        return put(call, "n", 1);
    if (PyFloat_CheckExact(value))
        return put_float(call, value);
    if (PyBool_Check(value))
        return put(call, value == Py_True ? "t" : "u", 1);
    if (PyLong_CheckExact(value))
        return put_int(call, value);
    if (PyUnicode_CheckExact(value))
        return put_text(call, value);
    if (PyTuple_CheckExact(value) || PyList_CheckExact(value))
        return put_ints(call, value);
    return false;
}

/* --------------------------------------------------------------- tensors */

static bool is_packed(const struct dlpack_tensor *tensor)
{
    int64_t step = 1;
    bool is_row_major = true;
    for (int i = tensor->rank - 1; i >= 0; i--) {
        if (tensor->dims[i] == 0)
            return true;
        if (tensor->dims[i] != 1 && tensor->strides[i] != step)
            is_row_major = false;
        step *= tensor->dims[i];
    }
    return is_row_major;
}

/* All tensors of a call are on the device of the first. */
static bool is_on_device(struct fast_call *call, struct dlpack_device device)
{
    if (call->device.type == 0)
        call->device = device;
    return call->device.type == device.type &&
           call->device.index == device.index;
}

static bool put_tensor(struct fast_call *call, const struct fast_state *state,
                       PyObject *value, void **address)
{
    struct dlpack_tensor tensor;
    if (state->torch->view(value, &tensor) != 0 ||
        !is_on_device(call, tensor.device))
        return false;
    if (tensor.data)
        *address = (char *)tensor.data + tensor.byte_offset;
    bool has_strides = !is_packed(&tensor);
    size_t n_bytes = (size_t)tensor.rank * sizeof(int64_t);
    return put_size(call, has_strides ? 'S' : 'T', tensor.rank) &&
           put(call, &tensor.dtype, sizeof tensor.dtype) &&
           (tensor.rank == 0 || put(call, tensor.dims, n_bytes)) &&
           (!has_strides || put(call, tensor.strides, n_bytes));
}

bool fast_is_tensor(const struct fast_state *state, PyObject *value)
{
    PyObject *type = (PyObject *)Py_TYPE(value);
    Py_ssize_t n = PyTuple_Size(state->tensor_types);
    for (Py_ssize_t i = 0; i < n; i++)
        if (type == PyTuple_GetItem(state->tensor_types, i))
            return true;
    return false;
}

/* An exception counts as yes. */
static bool has_gradient(const struct fast_state *state, PyObject *tensor)
{
    PyObject *flag = PyObject_GetAttr(tensor, state->requires_grad);
    bool is_set = flag != Py_False;
    Py_XDECREF(flag);
    return is_set;
}

/* ------------------------------------------------------------ arguments */

/* The place of a value that the call holds from now on; -1: there is none. */
static int hold(struct fast_call *call, PyObject *value)
{
    if (call->n_values == MAX_VALUES)
        return -1;
    call->values[call->n_values] = Py_NewRef(value);
    call->addresses[call->n_values] = NULL;
    return call->n_values++;
}

static bool put_place(struct fast_call *call, const struct fast_state *state,
                      PyObject *value)
{
    int at = hold(call, value);
    return at >= 0 && fast_is_tensor(state, value) &&
           !(call->is_recording && has_gradient(state, value)) &&
           put_tensor(call, state, value, &call->addresses[at]);
}

static bool put_value(struct fast_call *call, const struct fast_state *state,
                      PyObject *value)
{
    if (fast_is_tensor(state, value))
        return put_place(call, state, value);
    return hold(call, value) >= 0 && put_parameter(call, value);
}

static bool put_arguments(struct fast_call *call,
                          const struct fast_state *state, PyObject *arguments)
{
    Py_ssize_t n = PyTuple_Size(arguments);
    bool is_put = put_size(call, 'a', n);
    for (Py_ssize_t i = 0; i < n && is_put; i++)
        is_put = put_value(call, state, PyTuple_GetItem(arguments, i));
    return is_put;
}

static bool put_named(struct fast_call *call, const struct fast_state *state,
                      PyObject *named)
{
    PyObject *name, *value;
    Py_ssize_t at = 0;
    bool is_put = put_size(call, 'd', PyDict_Size(named));
    while (is_put && PyDict_Next(named, &at, &name, &value))
        is_put = put_text(call, name) && put_value(call, state, value);
    return is_put;
}

static bool put_out(struct fast_call *call, const struct fast_state *state,
                    PyObject *out)
{
    PyObject *name, *value;
    Py_ssize_t at = 0;
    if (out == Py_None)
        return true;
    if (!PyDict_CheckExact(out))
        return put(call, "o", 1) && put_place(call, state, out);
    bool is_put = put_size(call, 'p', PyDict_Size(out));
    while (is_put && PyDict_Next(out, &at, &name, &value))
        is_put = put_text(call, name) && put_place(call, state, value);
    return is_put;
}

static bool put_stream(struct fast_call *call, const struct fast_state *state)
{
    struct dlpack_device device = call->device;
    void *stream = NULL;
    if (device.type != DLPACK_CPU &&
        (device.type != DLPACK_CUDA ||
         state->torch->current_stream(device.type, device.index, &stream) != 0))
        return false;
    return put_item(call, 'D', &device, sizeof device) &&
           put(call, &stream, sizeof stream);
}

void fast_call_start(struct fast_call *call, bool is_recording)
{
    call->device.type = 0;
    call->is_recording = is_recording;
    call->n_values = 0;
    call->key_bytes = 0;
}

bool fast_call_read(struct fast_call *call, const struct fast_state *state,
                    PyObject *arguments, PyObject *out, PyObject *named)
{
    return put_arguments(call, state, arguments) &&
           put_named(call, state, named) && put_out(call, state, out) &&
           put_stream(call, state);
}

void fast_call_clear(struct fast_call *call)
{
    for (int i = 0; i < call->n_values; i++)
        Py_DECREF(call->values[i]);
    call->n_values = 0;
}
