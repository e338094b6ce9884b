/*
 * client_memory.h - POSIX shared memory of a client on this host, mapped into
 * the server and, on a GPU, page-locked.
 *
 * The client keeps the file and may truncate it at any time. Its size is asked
 * for before every use, and what happens in between is met by guard.h: a call
 * that loses its memory fails, the server goes on.
 */
#ifndef ROPED_EXEC_CLIENT_MEMORY_H
#define ROPED_EXEC_CLIENT_MEMORY_H

#include <roped/backend.h>

#include <stdbool.h>
#include <stdint.h>

/* "/" and the longest name that Linux takes, with NUL. */
enum { CLIENT_KEY_BYTES = 256 };

struct client_memory {
    unsigned char *data; /* the region's first byte */
    bool is_pinned;      /* page-locked: the device may use it in place */

    int fd, guard;
    unsigned char *map; /* whole pages, data among them */
    size_t map_bytes;
    uint64_t file_bytes; /* at least what the file must have */
};

/*
 * Copies key as shm_open wants it, "/name": clients write it with one slash,
 * with several, or with none. False where that is no name.
 */
bool client_memory_key(const char *key, char out[CLIENT_KEY_BYTES]);

/* Bytes at offset of the object of a key, which must exist and be that large.
 */
struct client_range {
    const char *name; /* the region's, for messages */
    const char *key;
    uint64_t offset, bytes;
};

/* Where page-locking fails the memory is used all the same, with a copy more.
 */
ROPED_MUST_CHECK enum roped_status
client_memory_open(const struct roped_backend_api *api,
                   struct roped_backend *backend,
                   const struct client_range *range, struct client_memory *out,
                   struct roped_error *err);
void client_memory_close(const struct roped_backend_api *api,
                         struct roped_backend *backend,
                         struct client_memory *memory);

/* ROPED_INVALID where the client has taken any of it away. */
ROPED_MUST_CHECK enum roped_status
client_memory_check(const struct client_memory *memory, const char *name,
                    struct roped_error *err);

/*
 * Opens bytes of another process's device memory, which a handle of
 * ROPED_FOREIGN_HANDLE_BYTES names; name is its region's. foreign_close ends
 * that. ROPED_UNSUPPORTED where the backend has no such thing.
 */
ROPED_MUST_CHECK enum roped_status
client_handle_open(const struct roped_backend_api *api,
                   struct roped_backend *backend, const char *name,
                   const void *handle, uint64_t bytes, void **out,
                   struct roped_error *err);

#endif
