/*
 * library.c - libroped_kernels.so is the archives of operators and backends
 * linked whole into it; this says which ones it has.
 */
#include <roped/library.h>

#include <string.h>

static const struct roped_backend_api *const backends[] = {
#define BACKEND(name, title) &roped_backend_##name,
#include <roped/backends.def>
};

const char *roped_kernels_version(void)
{
    return ROPED_KERNELS_VERSION;
}

const struct roped_backend_api *roped_kernels_backend(const char *name)
{
    for (size_t i = 0; i < sizeof backends / sizeof *backends; i++)
        if (strcmp(backends[i]->name, name) == 0)
            return backends[i];
    return NULL;
}
