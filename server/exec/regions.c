/*
 * regions.c - named memory and who holds it. One mutex guards the list, the
 * counts and the budget; it is never held while the device works, so memory
 * is allocated and freed outside it.
 */
#include "exec/region_internal.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_REGIONS = 4096 };

/* What the regions know of a device. */
struct holder {
    struct device_memory *memory;
    uint64_t bytes; /* of resident regions; guarded by lock */
};

struct regions {
    const struct roped_backend_api *api;
    uint64_t budget_bytes; /* of each device */

    pthread_mutex_t lock;  /* guards the following, and references */
    struct region *listed; /* in name order */
    uint64_t generation;   /* rises when a name gets or loses a region */
    int n[REGION_KINDS];
    uint64_t bytes[REGION_KINDS];
    struct lost lost; /* of those that are not listed */

    int n_devices;
    struct holder device[]; /* n_devices of them */
};

const char *region_kind_name(enum region_kind kind)
{
    static const char *const names[REGION_KINDS] = {"resident", "system",
                                                    "cuda"};
    return names[kind];
}

enum roped_status regions_open(struct device_memory *const *memory,
                               int n_devices, uint64_t budget_bytes,
                               struct regions **out, struct roped_error *err)
{
    assert(n_devices <= TENANT_DEVICES);
    struct regions *regions =
        calloc(1, sizeof *regions + (size_t)n_devices * sizeof(struct holder));
    if (!regions)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for the regions");
    regions->api = memory[0]->api;
    regions->n_devices = n_devices;
    for (int i = 0; i < n_devices; i++)
        regions->device[i].memory = memory[i];
    regions->budget_bytes = budget_bytes;
    regions->generation = 1;
    pthread_mutex_init(&regions->lock, NULL);
    lost_init(&regions->lost, "region", ROPED_REGION_LOST);
    *out = regions;
    return ROPED_OK;
}

/* Of a resident one: host memory in front of what it holds. */
static size_t front_bytes(const struct region *region)
{
    return region->is_device ? 0 : REGION_HEAD_BYTES;
}

/* Any device page-locks host memory for all of them. */
static struct device_memory *memory_of(const struct regions *regions,
                                       const struct region_info *info)
{
    int device = info->device == REGION_ANY_DEVICE ? 0 : info->device;
    return regions->device[device].memory;
}

/* Under lock: a region has claimed its memory. */
static void count(struct regions *regions, const struct region_info *info)
{
    regions->bytes[info->kind] += info->bytes;
    if (info->device != REGION_ANY_DEVICE)
        info->tenant->device_bytes[info->device] += info->bytes;
    if (info->kind == REGION_RESIDENT)
        regions->device[info->device].bytes += info->bytes;
}

/* Under lock: it has gone. */
static void count_off(struct regions *regions, const struct region_info *info)
{
    regions->bytes[info->kind] -= info->bytes;
    if (info->device != REGION_ANY_DEVICE)
        info->tenant->device_bytes[info->device] -= info->bytes;
    if (info->kind == REGION_RESIDENT)
        regions->device[info->device].bytes -= info->bytes;
}

/* What a resident one takes of its device. */
static uint64_t taken_bytes(const struct region *region)
{
    return front_bytes(region) + region->info.bytes;
}

/* Nobody holds it any more. */
static void destroy(struct regions *regions, struct region *region)
{
    struct device_memory *memory = region->memory;
    switch (region->info.kind) {
    case REGION_RESIDENT:
        if (region->data)
            device_memory_give(memory, FOR_REGIONS, taken_bytes(region),
                               region->data - front_bytes(region));
        break;
    case REGION_SYSTEM:
        client_memory_close(regions->api, memory->backend, &region->client);
        break;
    case REGION_CUDA:
        regions->api->foreign_close(memory->backend, region->data);
        break;
    case REGION_KINDS:
        break;
    }
    pthread_mutex_lock(&regions->lock);
    count_off(regions, &region->info);
    pthread_mutex_unlock(&regions->lock);
    if (region->info.kind == REGION_RESIDENT)
        tenant_give_bytes(region->info.tenant, region->info.bytes);
    free(region);
}

/* Those that hang on the first. */
static void destroy_all(struct regions *regions, struct region *first)
{
    while (first) {
        struct region *next = first->next;
        destroy(regions, first);
        first = next;
    }
}

void regions_close(struct regions *regions)
{
    if (!regions)
        return;
    while (regions->listed) {
        struct region *region = regions->listed;
        regions->listed = region->next;
        destroy(regions, region);
    }
    lost_free(&regions->lost);
    pthread_mutex_destroy(&regions->lock);
    free(regions);
}

/* ----------------------------------------------------------------- lookup */

static int compare(const struct region *region, const struct tenant *tenant,
                   const char *name)
{
    return tenant_compare(region->info.tenant, region->info.name, tenant, name);
}

/* Under lock: the link that points at the first region not before this one. */
static struct region **find_link(struct regions *regions,
                                 const struct tenant *tenant, const char *name)
{
    struct region **link = &regions->listed;
    while (*link && compare(*link, tenant, name) < 0)
        link = &(*link)->next;
    return link;
}

/* Under lock: the tenant's listed region of this name, or NULL. */
static struct region *find(struct regions *regions, const struct tenant *tenant,
                           const char *name)
{
    struct region *region = *find_link(regions, tenant, name);
    return region && compare(region, tenant, name) == 0 ? region : NULL;
}

/* ----------------------------------------------------------------- create */

/* Under lock: the device with the most room for regions. */
static int emptiest(const struct regions *regions)
{
    int best = 0;
    for (int i = 1; i < regions->n_devices; i++)
        if (regions->device[i].bytes < regions->device[best].bytes)
            best = i;
    return best;
}

/* Under lock. */
static bool has_room(const struct regions *regions, int device, uint64_t bytes)
{
    return bytes <= regions->budget_bytes - regions->device[device].bytes;
}

/*
 * Under lock: the device of a region whose maker names none. It is where the
 * one was that it replaces, or else, of those with room, where most of its
 * owner's are: a call writes regions of one device only, and what it reads of
 * others has to be copied.
 */
static int choose(struct regions *regions, const struct region_info *info)
{
    const uint64_t *owned = info->tenant->device_bytes;
    const struct region *old = find(regions, info->tenant, info->name);
    uint64_t most = 0;
    int best = emptiest(regions);
    if (info->device == REGION_SPREAD)
        return best;
    if (old && old->info.kind == REGION_RESIDENT &&
        has_room(regions, old->info.device, info->bytes))
        return old->info.device;
    for (int i = 0; i < regions->n_devices; i++)
        if (owned[i] > most && has_room(regions, i, info->bytes)) {
            best = i;
            most = owned[i];
        }
    return best;
}

static enum roped_status check_claim(const struct regions *regions,
                                     const struct region_info *info,
                                     struct roped_error *err)
{
    if (info->device < REGION_SPREAD || info->device >= regions->n_devices)
        return roped_fail(err, ROPED_INVALID,
                          "region '%s': device %d, expected 0 <= device < %d",
                          info->name, info->device, regions->n_devices);
    if (info->bytes <= regions->budget_bytes)
        return ROPED_OK;
    return roped_fail(err, ROPED_TOO_LARGE,
                      "region '%s': %llu bytes, expected at most %llu "
                      "(region_memory)",
                      info->name, (unsigned long long)info->bytes,
                      (unsigned long long)regions->budget_bytes);
}

/* Chooses the device, where that is left open, and claims of its budget. */
static enum roped_status claim_memory(struct regions *regions,
                                      struct region_info *info,
                                      struct roped_error *err)
{
    pthread_mutex_lock(&regions->lock);
    if (info->device < 0)
        info->device = choose(regions, info);
    uint64_t left = regions->budget_bytes - regions->device[info->device].bytes;
    bool fits = has_room(regions, info->device, info->bytes);
    if (fits)
        count(regions, info);
    pthread_mutex_unlock(&regions->lock);
    if (fits)
        return ROPED_OK;
    return roped_fail(err, ROPED_BUSY,
                      "region '%s': %llu bytes, expected at most the %llu that "
                      "other regions leave of %llu on device %d "
                      "(region_memory); DELETE one",
                      info->name, (unsigned long long)info->bytes,
                      (unsigned long long)left,
                      (unsigned long long)regions->budget_bytes, info->device);
}

/* Of the device's budget, and of the tenant's quota. */
static enum roped_status claim(struct regions *regions,
                               struct region_info *info,
                               struct roped_error *err)
{
    enum roped_status status = check_claim(regions, info, err);
    if (!status)
        status = tenant_take_bytes(info->tenant, info->bytes, info->name, err);
    if (status)
        return status;
    status = claim_memory(regions, info, err);
    if (status)
        tenant_give_bytes(info->tenant, info->bytes);
    return status;
}

/* Of the device that it has claimed. */
static enum roped_status allocate(struct region *region,
                                  struct roped_error *err)
{
    void *start;
    struct roped_error why;
    enum roped_status status = device_memory_take(
        region->memory, FOR_REGIONS, taken_bytes(region), &start, &why);
    if (status)
        return roped_fail(err, status, "region '%s': %s", region->info.name,
                          why.text);
    region->data = (unsigned char *)start + front_bytes(region);
    return ROPED_OK;
}

enum roped_status regions_create(struct regions *regions,
                                 const struct region_info *info,
                                 struct region **out, struct roped_error *err)
{
    struct region *region = calloc(1, sizeof *region);
    if (!region)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for region '%s'",
                          info->name);
    region->info = *info;
    region->info.kind = REGION_RESIDENT;
    enum roped_status status = claim(regions, &region->info, err);
    if (status) {
        free(region);
        return status;
    }
    region->is_device = !regions->api->is_host;
    region->references = 1;
    region->memory = memory_of(regions, &region->info);
    status = allocate(region, err);
    if (status)
        destroy(regions, region);
    *out = status ? NULL : region;
    return status;
}

static struct region *new_client_region(const struct regions *regions,
                                        const struct region_info *info,
                                        enum region_kind kind,
                                        struct roped_error *err)
{
    struct region *region = calloc(1, sizeof *region);
    if (!region) {
        roped_fail(err, ROPED_NO_MEMORY, "no memory for region '%s'",
                   info->name);
        return NULL;
    }
    region->info = *info;
    region->info.kind = kind;
    if (kind == REGION_SYSTEM)
        region->info.device = REGION_ANY_DEVICE;
    region->memory = memory_of(regions, &region->info);
    region->references = 1;
    return region;
}

/* Its memory is there: counts it, or lets go of it. */
static enum roped_status finish(struct regions *regions, struct region *region,
                                enum roped_status status, struct region **out)
{
    if (status) {
        free(region);
        return status;
    }
    pthread_mutex_lock(&regions->lock);
    count(regions, &region->info);
    pthread_mutex_unlock(&regions->lock);
    *out = region;
    return ROPED_OK;
}

enum roped_status regions_map(struct regions *regions,
                              const struct region_info *info,
                              struct region **out, struct roped_error *err)
{
    struct region *region =
        new_client_region(regions, info, REGION_SYSTEM, err);
    *out = NULL;
    if (!region)
        return ROPED_NO_MEMORY;
    const struct client_range range = {info->name, info->key, info->offset,
                                       info->bytes};
    enum roped_status status = client_memory_open(
        regions->api, region->memory->backend, &range, &region->client, err);
    region->data = region->client.data;
    return finish(regions, region, status, out);
}

enum roped_status regions_import(struct regions *regions,
                                 const struct region_info *info,
                                 struct region **out, struct roped_error *err)
{
    void *data = NULL;
    struct region *region = new_client_region(regions, info, REGION_CUDA, err);
    *out = NULL;
    if (!region)
        return ROPED_NO_MEMORY;
    enum roped_status status =
        client_handle_open(regions->api, region->memory->backend, info->name,
                           info->handle, info->bytes, &data, err);
    region->data = data;
    region->is_device = !regions->api->is_host;
    return finish(regions, region, status, out);
}

/* ------------------------------------------------------------------- list */

/* Under lock: drops a reference; the region, where it was the last one, to be
 * destroyed without the lock. */
static struct region *drop(struct region *region)
{
    return region && --region->references == 0 ? region : NULL;
}

/* Under lock: takes a region out of the list. */
static struct region *unlist(struct regions *regions, struct region *region)
{
    *find_link(regions, region->info.tenant, region->info.name) = region->next;
    region->next = NULL;
    regions->generation++;
    regions->n[region->info.kind]--;
    return drop(region);
}

/* The same, and its name is not taken by another. */
static struct region *forget(struct regions *regions, struct region *region)
{
    tenant_give_name(region->info.tenant);
    return unlist(regions, region);
}

static int count_listed(const struct regions *regions)
{
    int n = 0;
    for (int kind = 0; kind < REGION_KINDS; kind++)
        n += regions->n[kind];
    return n;
}

/* Under lock: only a resident region makes room for another of its name. */
static enum roped_status check_publish(const struct regions *regions,
                                       const struct region *region,
                                       const struct region *old,
                                       struct roped_error *err)
{
    const char *name = region->info.name;
    if (region->info.kind == REGION_RESIDENT && !region->is_written)
        return roped_fail(err, ROPED_INTERNAL,
                          "region '%s' holds what was in its memory before",
                          name);
    if (old && (old->info.kind != REGION_RESIDENT ||
                region->info.kind != REGION_RESIDENT))
        return roped_fail(err, ROPED_INVALID,
                          "shared memory region '%s' already in manager: it is "
                          "a %s region",
                          name, region_kind_name(old->info.kind));
    if (old || count_listed(regions) < MAX_REGIONS)
        return ROPED_OK;
    return roped_fail(err, ROPED_BUSY,
                      "region '%s': %d regions exist, the most there may be; "
                      "DELETE one",
                      name, MAX_REGIONS);
}

enum roped_status regions_publish(struct regions *regions,
                                  struct region *region, bool *replaced,
                                  struct roped_error *err)
{
    struct region *freed = NULL;
    struct tenant *tenant = region->info.tenant;
    const char *name = region->info.name;
    pthread_mutex_lock(&regions->lock);
    struct region *old = find(regions, tenant, name);
    bool is_replacing = old != NULL;
    enum roped_status status = check_publish(regions, region, old, err);
    if (!status && !old)
        status = tenant_take_name(tenant, "region", name, err);
    if (!status) {
        freed = old ? unlist(regions, old) : NULL;
        struct region **link = find_link(regions, tenant, name);
        region->next = *link;
        region->references++;
        *link = region;
        regions->generation++;
        regions->n[region->info.kind]++;
        (void)lost_forget(&regions->lost, tenant, name);
    }
    pthread_mutex_unlock(&regions->lock);
    if (freed)
        destroy(regions, freed);
    if (replaced)
        *replaced = is_replacing;
    return status;
}

/* Under lock: why there is none. */
static enum roped_status unknown(struct regions *regions,
                                 const struct tenant *tenant, const char *name,
                                 struct roped_error *err)
{
    enum roped_status status = lost_check(&regions->lost, tenant, name, err);
    if (status)
        return status;
    return roped_fail(err, ROPED_NO_REGION,
                      "no region named '%.64s'; GET /v1/regions lists them",
                      name);
}

enum roped_status regions_remove(struct regions *regions,
                                 const struct tenant *tenant, const char *name,
                                 struct roped_error *err)
{
    struct region *freed = NULL;
    enum roped_status status = ROPED_OK;
    pthread_mutex_lock(&regions->lock);
    struct region *region = find(regions, tenant, name);
    if (!region && !lost_forget(&regions->lost, tenant, name))
        status = unknown(regions, tenant, name, err);
    else if (!region)
        status = ROPED_OK;
    else if (region->info.kind != REGION_RESIDENT)
        status = roped_fail(err, ROPED_INVALID,
                            "region '%s' is memory of a client: unregister it "
                            "through /v2",
                            name);
    else
        freed = forget(regions, region);
    pthread_mutex_unlock(&regions->lock);
    if (freed)
        destroy(regions, freed);
    return status;
}

void regions_unregister(struct regions *regions, const struct tenant *tenant,
                        enum region_kind kind, const char *name)
{
    struct region *freed = NULL;
    pthread_mutex_lock(&regions->lock);
    struct region *region =
        name ? find(regions, tenant, name) : regions->listed;
    if (name)
        (void)lost_forget(&regions->lost, tenant, name);
    else
        lost_forget_kind(&regions->lost, tenant, (int)kind);
    while (region) {
        struct region *next = name ? NULL : region->next;
        bool is_meant =
            region->info.kind == kind && region->info.tenant == tenant;
        struct region *gone = is_meant ? forget(regions, region) : NULL;
        if (gone) {
            gone->next = freed;
            freed = gone;
        }
        region = next;
    }
    pthread_mutex_unlock(&regions->lock);
    destroy_all(regions, freed);
}

/* -------------------------------------------------------------- references */

enum roped_status regions_take(struct regions *regions,
                               const struct tenant *tenant, const char *name,
                               struct region **out, struct roped_error *err)
{
    pthread_mutex_lock(&regions->lock);
    struct region *region = find(regions, tenant, name);
    if (region)
        region->references++;
    enum roped_status status =
        region ? ROPED_OK : unknown(regions, tenant, name, err);
    pthread_mutex_unlock(&regions->lock);
    *out = region;
    return status;
}

struct region *regions_share(struct regions *regions, struct region *region)
{
    pthread_mutex_lock(&regions->lock);
    region->references++;
    pthread_mutex_unlock(&regions->lock);
    return region;
}

uint64_t regions_generation(struct regions *regions)
{
    pthread_mutex_lock(&regions->lock);
    uint64_t generation = regions->generation;
    pthread_mutex_unlock(&regions->lock);
    return generation;
}

/* Those are listed still: the list's references keep them. */
bool regions_take_again(struct regions *regions, struct region *const *known,
                        int n, uint64_t generation)
{
    pthread_mutex_lock(&regions->lock);
    bool is_current = regions->generation == generation;
    for (int i = 0; i < n && is_current; i++)
        known[i]->references++;
    pthread_mutex_unlock(&regions->lock);
    return is_current;
}

void regions_give_all(struct regions *regions, struct region **region, int n)
{
    struct region *freed = NULL;
    pthread_mutex_lock(&regions->lock);
    for (int i = 0; i < n; i++) {
        struct region *gone = region[i] ? drop(region[i]) : NULL;
        region[i] = NULL;
        if (!gone)
            continue;
        gone->next = freed;
        freed = gone;
    }
    pthread_mutex_unlock(&regions->lock);
    destroy_all(regions, freed);
}

void regions_give(struct regions *regions, struct region *region)
{
    if (!region)
        return;
    pthread_mutex_lock(&regions->lock);
    struct region *freed = drop(region);
    pthread_mutex_unlock(&regions->lock);
    if (freed)
        destroy(regions, freed);
}

/* ----------------------------------------------------------------- reading */

void regions_each(struct regions *regions, const struct tenant *tenant,
                  void (*visit)(void *context, const struct region_info *info),
                  void *context)
{
    pthread_mutex_lock(&regions->lock);
    for (struct region *region = regions->listed; region; region = region->next)
        if (tenant_sees(tenant, region->info.tenant))
            visit(context, &region->info);
    pthread_mutex_unlock(&regions->lock);
}

struct lost *regions_lost(struct regions *regions)
{
    return &regions->lost;
}

void regions_usage(struct regions *regions, struct regions_usage *out)
{
    pthread_mutex_lock(&regions->lock);
    for (int kind = 0; kind < REGION_KINDS; kind++) {
        out->n[kind] = regions->n[kind];
        out->bytes[kind] = regions->bytes[kind];
    }
    out->budget_bytes = regions->budget_bytes * (uint64_t)regions->n_devices;
    pthread_mutex_unlock(&regions->lock);
}

uint64_t regions_device_bytes(struct regions *regions, int device)
{
    pthread_mutex_lock(&regions->lock);
    uint64_t bytes = regions->device[device].bytes;
    pthread_mutex_unlock(&regions->lock);
    return bytes;
}
