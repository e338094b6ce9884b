/*
 * reference.h - each operator's definition in float64, written from its
 * formula and from the tensors as the client sent them: it shares neither the
 * plans nor the kernels that it judges. Only the frequencies come from
 * roped_angles_resolve, which has golden tests of its own.
 */
#ifndef ROPED_TESTS_REFERENCE_H
#define ROPED_TESTS_REFERENCE_H

#include <roped/op.h>

/* The value of element i of a float tensor of any type, FP8 included. */
double reference_value(const struct roped_tensor *tensor, int64_t i);

/* How far a result may be from the exact value. */
struct reference_judge {
    int64_t n_wrong; /* elements outside the tolerance */
    int64_t n_checked;
    double worst;    /* largest error / tolerance */
    char first[256]; /* the first wrong element, in words */
};

/*
 * reference_<operator>, of every operator in ops.def: judges the outputs of a
 * finished call whose tensors are all in host memory. The call is resolved and
 * planned.
 */
#define ROPED_OP(id)                                                           \
    void reference_##id(const struct roped_call *call,                         \
                        struct reference_judge *judge);
#include <roped/ops.def>
#undef ROPED_OP

/*
 * What the tolerance of a sum is measured by: per element of an output of
 * binary_backward the sum of its terms' magnitudes. Free it. The call is
 * resolved, its inputs have data.
 */
double *reference_binary_magnitudes(const struct roped_call *call, int output);

/* The one of these for the call's operator. */
void reference_judge(const struct roped_call *call,
                     struct reference_judge *judge);

#endif
