/*
 * regions.h - memory that outlives a call, by name: weights, KV caches,
 * intermediate results. Calls read and write it where it is.
 *
 * A region is bytes; it may say what tensor they are. One that is removed or
 * replaced while calls use it is forgotten at once: its name is free, and its
 * memory goes, budget and all, with the last of them.
 *
 * A region is found by its tenant alone, and only once all of its memory has
 * been written: what was in that memory before is another's, and never read.
 *
 * Nothing orders calls that use one region at the same time: who needs an
 * order sends the second call after the answer to the first. Values that the
 * host checks are read out of a region once, and the kernel gets what was
 * checked (lane.c), so that a concurrent writer can spoil results and nothing
 * else.
 */
#ifndef ROPED_EXEC_REGIONS_H
#define ROPED_EXEC_REGIONS_H

#include "exec/client_memory.h"
#include "exec/device_memory.h"
#include "exec/lost.h"
#include "exec/tenants.h"

#include <roped/backend.h>

#include <stdbool.h>
#include <stdint.h>

struct regions;
struct region; /* reference-counted */

enum { REGION_ANY_DEVICE = -1, REGION_SPREAD = -2 };

enum region_kind {
    REGION_RESIDENT, /* device memory of the server */
    REGION_SYSTEM,   /* POSIX shared memory of a client */
    REGION_CUDA,     /* device memory of a client, through CUDA IPC */
    REGION_KINDS
};

/* What does not change as long as the region lives. */
struct region_info {
    struct tenant *tenant; /* whose it is */
    char name[ROPED_NAME_BYTES];
    enum region_kind kind;
    uint64_t bytes;
    struct roped_tensor tensor; /* data NULL; absent: plain bytes */
    char tensor_name[ROPED_NAME_BYTES];
    char key[CLIENT_KEY_BYTES]; /* REGION_SYSTEM: of shm_open */
    uint64_t offset;            /* REGION_SYSTEM: of the region in it */
    int device_id;              /* REGION_CUDA: what its client calls it */
    int device; /* number of the one that has the memory; REGION_ANY_DEVICE:
                   of the host, or, as REGION_SPREAD, before a resident one is
                   created */
    unsigned char handle[ROPED_FOREIGN_HANDLE_BYTES]; /* REGION_CUDA */
};

struct regions_usage {
    int n[REGION_KINDS];          /* listed */
    uint64_t bytes[REGION_KINDS]; /* held, forgotten ones in use included */
    uint64_t budget_bytes;        /* of REGION_RESIDENT, all devices */
};

/* "resident": the kind in JSON and metric labels; static memory. */
const char *region_kind_name(enum region_kind kind);

/* budget_bytes bounds the sum of resident regions on each of the devices, at
 * most TENANT_DEVICES, whose number is the place of their memory (pointers are
 * copied, and it outlives the regions). */
ROPED_MUST_CHECK enum roped_status
regions_open(struct device_memory *const *memory, int n_devices,
             uint64_t budget_bytes, struct regions **out,
             struct roped_error *err);
void regions_close(struct regions *regions);

/*
 * Allocates memory of info->device for a new region, whose contents are
 * undefined. REGION_ANY_DEVICE is where the region of this name is that it will
 * replace; or where most of what the tenant has in the memory of devices is,
 * among the devices with room for it; if there is none, and for REGION_SPREAD,
 * the device with the most left of its budget. The
 * caller holds its only reference and nobody finds it before it is published.
 * ROPED_INVALID: no such device; ROPED_TOO_LARGE: more than the budget
 * or the tenant's quota; ROPED_BUSY: than what is left of them;
 * ROPED_NO_MEMORY: than the device has.
 */
ROPED_MUST_CHECK enum roped_status
regions_create(struct regions *regions, const struct region_info *info,
               struct region **out, struct roped_error *err);

/*
 * Maps the shared memory that info names by key, offset and bytes; the rest is
 * as of regions_create. Takes as long as page-locking it does.
 */
ROPED_MUST_CHECK enum roped_status regions_map(struct regions *regions,
                                               const struct region_info *info,
                                               struct region **out,
                                               struct roped_error *err);

/*
 * The same for the memory of info->device that info->handle names. The client
 * keeps it: it must not free it before the region is forgotten and unused.
 * ROPED_UNSUPPORTED where the backend has no such thing.
 */
ROPED_MUST_CHECK enum roped_status
regions_import(struct regions *regions, const struct region_info *info,
               struct region **out, struct roped_error *err);

/* All of its memory has been written: now it may be published. */
void region_set_written(struct region *region);

/*
 * What is sent in front of the contents of a resident region: copied, at most
 * REGION_HEAD_BYTES, before it is published. Where the contents are in host
 * memory region_whole gives head and contents in one piece, *bytes of it, to be
 * sent as they are then; NULL where they are in a device's.
 */
enum { REGION_HEAD_BYTES = 4096 };
void region_set_head(struct region *region, const void *head, size_t bytes);
const unsigned char *region_whole(const struct region *region, size_t *bytes);

/*
 * Lists a region under its name, in place of one of that name of its tenant if
 * both are resident; ROPED_INVALID if they are not. ROPED_INTERNAL: it is
 * resident, and was not written. The caller keeps its reference. *replaced may
 * be NULL.
 */
ROPED_MUST_CHECK enum roped_status regions_publish(struct regions *regions,
                                                   struct region *region,
                                                   bool *replaced,
                                                   struct roped_error *err);

/* Forgets a resident region, or one that was lost; ROPED_NO_REGION for an
 * unknown name. */
ROPED_MUST_CHECK enum roped_status regions_remove(struct regions *regions,
                                                  const struct tenant *tenant,
                                                  const char *name,
                                                  struct roped_error *err);

/* Forgets the tenant's region of this kind and name (NULL: all of the kind), if
 * there is one, or was one that is lost. */
void regions_unregister(struct regions *regions, const struct tenant *tenant,
                        enum region_kind kind, const char *name);

/* A reference by name, or ROPED_NO_REGION, or ROPED_REGION_LOST where it was
 * lost; a second one to a region that is held; giving one back (NULL is
 * ignored). */
ROPED_MUST_CHECK enum roped_status
regions_take(struct regions *regions, const struct tenant *tenant,
             const char *name, struct region **out, struct roped_error *err);
struct region *regions_share(struct regions *regions, struct region *region);
void regions_give(struct regions *regions, struct region *region);

/*
 * The same for several that are taken together again and again, without a look
 * at their names: regions_take_again takes those that regions_take gave when,
 * or after, the generation was this; false: a name has another region since, or
 * none. regions_give_all ignores NULLs, and leaves them.
 */
uint64_t regions_generation(struct regions *regions);
ROPED_MUST_CHECK bool regions_take_again(struct regions *regions,
                                         struct region *const *known, int n,
                                         uint64_t generation);
void regions_give_all(struct regions *regions, struct region **region, int n);

const struct region_info *region_info(const struct region *region);

/* Start of its memory; true where that is the device's and not the host's;
 * true where it is the host's and the device may use it in place. */
unsigned char *region_data(const struct region *region);
bool region_is_device(const struct region *region);
bool region_is_pinned(const struct region *region);

/* Is it in the memory of a device, and not of this one? And of which. */
bool region_is_elsewhere(const struct region *region, int device);
const struct roped_backend *region_backend(const struct region *region);

/* ROPED_INVALID where a client has taken its memory away. Asked before a use,
 * and after it: only then is what was read known to have been there. */
ROPED_MUST_CHECK enum roped_status region_check(const struct region *region,
                                                struct roped_error *err);

/* ROPED_INVALID unless bytes at offset are in the region; name is whose they
 * are, for the message. */
ROPED_MUST_CHECK enum roped_status
region_check_range(const struct region *region, const char *name,
                   uint64_t offset, uint64_t bytes, struct roped_error *err);

/* Calls visit for every listed region that the tenant sees, in name order,
 * under the lock. */
void regions_each(struct regions *regions, const struct tenant *tenant,
                  void (*visit)(void *context, const struct region_info *info),
                  void *context);

/* Names of regions that went with a device, whose kind is an enum region_kind,
 * until they are published or removed. */
struct lost *regions_lost(struct regions *regions);

void regions_usage(struct regions *regions, struct regions_usage *out);

/* Memory of resident regions on one device, forgotten ones in use included. */
uint64_t regions_device_bytes(struct regions *regions, int device);

#endif
