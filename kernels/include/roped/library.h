/*
 * library.h - what libroped_kernels.so knows of itself.
 */
#ifndef ROPED_LIBRARY_H
#define ROPED_LIBRARY_H

#include <roped/backend.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the library, "1.2.3"; static memory. */
ROPED_API const char *roped_kernels_version(void);

/*
 * The backend of this name, "cpu" or "cuda", or NULL where this build has none
 * of that name. Whether it finds a device is device_count's to say.
 */
ROPED_API const struct roped_backend_api *
roped_kernels_backend(const char *name);

#ifdef __cplusplus
}
#endif

#endif
