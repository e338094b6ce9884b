/*
 * library.c - libroped_kernels.so is made of the archives linked whole into
 * it; a shared library needs one source of its own, and this is it.
 */
#include <roped/backend.h>

const char *roped_kernels_version(void);

/* The version of the library, "0.1.0"; static memory. */
ROPED_API const char *roped_kernels_version(void)
{
    return ROPED_KERNELS_VERSION;
}
