/*
 * client_memory.c - shm_open, mmap, and what a client can do to them.
 */
#include "exec/client_memory.h"

#include "exec/guard.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

bool client_memory_key(const char *key, char out[CLIENT_KEY_BYTES])
{
    key += strspn(key, "/");
    size_t length = strlen(key);
    if (length == 0 || length > CLIENT_KEY_BYTES - 2 || strchr(key, '/') ||
        strcmp(key, ".") == 0 || strcmp(key, "..") == 0)
        return false;
    out[0] = '/';
    memcpy(out + 1, key, length + 1);
    return true;
}

/* The phrases that v2 clients know. */
static enum roped_status invalid_arguments(const char *name, const char *why,
                                           struct roped_error *err)
{
    return roped_fail(err, ROPED_INVALID,
                      "failed to register shared memory region '%s': invalid "
                      "args: %s",
                      name, why);
}

static enum roped_status open_key(const char *name, const char *key, int *fd,
                                  struct roped_error *err)
{
    *fd = shm_open(key, O_RDWR, 0);
    if (*fd >= 0)
        return ROPED_OK;
    return roped_fail(err, ROPED_INVALID,
                      "Unable to open shared memory region: '%s': key of "
                      "region '%s': %s",
                      key, name, strerror(errno));
}

static enum roped_status check_size(const struct client_memory *memory,
                                    const char *name, struct roped_error *err)
{
    struct stat found;
    if (fstat(memory->fd, &found) != 0 || !S_ISREG(found.st_mode))
        return invalid_arguments(name, "the key does not name shared memory",
                                 err);
    if ((uint64_t)found.st_size >= memory->file_bytes)
        return ROPED_OK;
    return roped_fail(err, ROPED_INVALID,
                      "failed to register shared memory region '%s': invalid "
                      "args: offset + byte_size is %llu, expected at most "
                      "%llu, the size of the shared memory",
                      name, (unsigned long long)memory->file_bytes,
                      (unsigned long long)found.st_size);
}

static enum roped_status map(struct client_memory *memory,
                             const struct client_range *range,
                             struct roped_error *err)
{
    const char *name = range->name;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t skip = range->offset % page;
    size_t map_bytes = (size_t)((skip + range->bytes + page - 1) / page * page);
    void *start = mmap(NULL, map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                       memory->fd, (off_t)(range->offset - skip));
    if (start == MAP_FAILED)
        return roped_fail(err, ROPED_NO_MEMORY,
                          "failed to register shared memory region '%s': "
                          "cannot map %zu bytes: %s",
                          name, map_bytes, strerror(errno));
    memory->map = start;
    memory->map_bytes = map_bytes;
    memory->data = memory->map + skip;
    memory->guard = guard_add(start, map_bytes);
    if (memory->guard >= 0)
        return ROPED_OK;
    return roped_fail(err, ROPED_BUSY,
                      "failed to register shared memory region '%s': %d are "
                      "registered, the most there may be; unregister one",
                      name, GUARD_MAX);
}

enum roped_status client_memory_open(const struct roped_backend_api *api,
                                     struct roped_backend *backend,
                                     const struct client_range *range,
                                     struct client_memory *out,
                                     struct roped_error *err)
{
    const char *name = range->name;
    *out = (struct client_memory){.fd = -1, .guard = -1};
    if (range->bytes == 0)
        return invalid_arguments(name, "byte_size is 0", err);
    if (range->offset > INT64_MAX || range->bytes > INT64_MAX - range->offset)
        return invalid_arguments(name, "offset + byte_size overflows", err);
    out->file_bytes = range->offset + range->bytes;
    enum roped_status status = open_key(name, range->key, &out->fd, err);
    if (!status)
        status = check_size(out, name, err);
    if (!status)
        status = map(out, range, err);
    if (status) {
        client_memory_close(api, backend, out);
        return status;
    }
    out->is_pinned =
        api->host_lock &&
        api->host_lock(backend, out->map, out->map_bytes, NULL) == ROPED_OK;
    return ROPED_OK;
}

void client_memory_close(const struct roped_backend_api *api,
                         struct roped_backend *backend,
                         struct client_memory *memory)
{
    if (memory->is_pinned)
        api->host_unlock(backend, memory->map);
    if (memory->guard >= 0)
        guard_remove(memory->guard);
    if (memory->map)
        munmap(memory->map, memory->map_bytes);
    if (memory->fd >= 0)
        close(memory->fd);
    *memory = (struct client_memory){.fd = -1, .guard = -1};
}

enum roped_status client_memory_check(const struct client_memory *memory,
                                      const char *name, struct roped_error *err)
{
    struct stat found;
    if (!guard_is_broken(memory->guard) && fstat(memory->fd, &found) == 0 &&
        (uint64_t)found.st_size >= memory->file_bytes)
        return ROPED_OK;
    return roped_fail(err, ROPED_INVALID,
                      "shared memory region '%s': its client has truncated it "
                      "below the %llu bytes that were registered, expected it "
                      "to be registered again",
                      name, (unsigned long long)memory->file_bytes);
}

/* What the driver says about a handle, in the phrase that v2 clients know. */
enum roped_status client_handle_open(const struct roped_backend_api *api,
                                     struct roped_backend *backend,
                                     const char *name, const void *handle,
                                     uint64_t bytes, void **out,
                                     struct roped_error *err)
{
    struct roped_error why;
    uint64_t n;
    if (!api->foreign_open)
        return roped_fail(err, ROPED_UNSUPPORTED,
                          "failed to register CUDA shared memory region '%s': "
                          "GPUs not supported by the %s backend",
                          name, api->name);
    enum roped_status status =
        api->foreign_open(backend, handle, out, &n, &why);
    if (status)
        return roped_fail(
            err, status == ROPED_NO_MEMORY ? status : ROPED_INVALID,
            "failed to register shared memory region '%s': invalid args: %s",
            name, why.text);
    if (bytes <= n && bytes > 0)
        return ROPED_OK;
    api->foreign_close(backend, *out);
    return roped_fail(err, ROPED_INVALID,
                      "failed to register shared memory region '%s': invalid "
                      "args: byte_size is %llu, expected 1 to %llu",
                      name, (unsigned long long)bytes, (unsigned long long)n);
}
