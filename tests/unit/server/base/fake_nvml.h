/*
 * fake_nvml.h - a libnvidia-ml.so.1 that has the GPUs of a test, and can be
 * without an answer.
 */
#ifndef ROPED_TESTS_FAKE_NVML_H
#define ROPED_TESTS_FAKE_NVML_H

#include <stdatomic.h>

extern atomic_int fake_nvml_starts; /* of nvmlInit, less those that ended */
extern atomic_int fake_nvml_watts;  /* of GPU-fake-0; below 0: no answer */
extern atomic_int fake_nvml_temperature; /* of both */
extern atomic_int fake_nvml_is_stuck;    /* a reading waits until it is 0 */

#endif
