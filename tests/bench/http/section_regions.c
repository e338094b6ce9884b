/*
 * section_regions.c - rope whose q and k do not travel: in regions that stay
 * on the server, and in this program's own shared memory.
 */
#include "bench/http/bench.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const char *const flags[] = {"--allow-client-shm", "true", NULL};

/* Shared memory of this program. */
struct shared {
    char key[64];
    size_t bytes;
    void *data;
};

static bool share(struct shared *shared, size_t bytes)
{
    snprintf(shared->key, sizeof shared->key, "/roped_bench_%d", (int)getpid());
    shared->bytes = bytes;
    shm_unlink(shared->key);
    int fd = shm_open(shared->key, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0) {
        perror("bench_http: shared memory");
        return false;
    }
    shared->data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (shared->data == MAP_FAILED)
        return false;
    memset(shared->data, 0, bytes);
    return true;
}

static void unshare(const struct shared *shared)
{
    munmap(shared->data, shared->bytes);
    shm_unlink(shared->key);
}

/* Regions q, k, and their outputs, for so many tokens. */
static void make_resident(const struct server *roped, int64_t n)
{
    static const struct {
        const char *name;
        int heads;
    } region[] = {{"q", 32}, {"k", 8}, {"yq", 32}, {"yk", 8}};
    char path[128];
    for (size_t i = 0; i < sizeof region / sizeof *region; i++) {
        snprintf(path, sizeof path,
                 "/v1/regions/%s?dtype=BF16&shape=%lld,%d,128", region[i].name,
                 (long long)n, region[i].heads);
        bench_must(roped, "PUT", path, "", NULL, 0);
    }
}

static void register_shared(const struct server *roped,
                            const struct shared *shared)
{
    char body[256];
    snprintf(body, sizeof body,
             "{\"key\":\"%s\",\"offset\":0,\"byte_size\":%zu}", shared->key,
             shared->bytes);
    bench_must(roped, "POST", "/v2/systemsharedmemory/region/shm/register",
               body, NULL, 0);
}

/* q, k and their outputs, one behind the other. */
static void name_shared(char *query, size_t room, int64_t n)
{
    long long q = (long long)n * 32 * 128 * 2, k = (long long)n * 8 * 128 * 2;
    snprintf(query, room,
             "from.q=shm:0&dtype.q=BF16&shape.q=%lld,32,128&from.k=shm:%lld&"
             "dtype.k=BF16&shape.k=%lld,8,128&into.q=shm:%lld&into.k=shm:%lld",
             (long long)n, q, (long long)n, q + k, q + k + q);
}

enum side { NOTHING, BODY, RESIDENT, IMPLICIT, SYSTEM, N_SIDES };

/* What is asked for at a size of which an empty request is a small part: not
 * more than the device's own time and an empty request, or than the bus's. */
static void judge(struct row *row, struct contender *side)
{
    double empty = duel_median_us(&side[NOTHING]);
    struct phases resident = duel_phases(&side[IMPLICIT]);
    struct phases system = duel_phases(&side[SYSTEM]);
    double device = resident.us[PHASE_KERNEL] + 1.2 * empty;
    double bus = system.us[PHASE_H2D] + system.us[PHASE_D2H];
    row[IMPLICIT].unit = "of the sum";
    row[IMPLICIT].value = duel_median_us(&side[IMPLICIT]) / device;
    row[IMPLICIT].must = 1;
    row[IMPLICIT].is_ceiling = true;
    snprintf(row[IMPLICIT].note, sizeof row->note,
             "kernel and 1.2 empty requests: %.0f us", device);
    if (bus <= 0)
        return;
    row[SYSTEM].unit = "of the sum";
    row[SYSTEM].value = duel_median_us(&side[SYSTEM]) / bus;
    row[SYSTEM].must = 1.15;
    row[SYSTEM].is_ceiling = true;
    snprintf(row[SYSTEM].note, sizeof row->note, "h2d and d2h: %.0f us", bus);
}

static void report(struct bench *bench, struct contender *side,
                   const char *size, size_t bytes)
{
    static const char *const names[N_SIDES] = {
        NULL, "in the body", "resident regions",
        "resident regions, no positions", "system shared memory"};
    struct row row[N_SIDES] = {
        {.name = "empty request (GET /v2/health/live), c=1"}};
    for (int i = BODY; i < N_SIDES; i++) {
        snprintf(row[i].name, ROW_TEXT, "rope %s, %s", size, names[i]);
        row[i].value =
            duel_median_us(&side[i]) - duel_median_us(&side[NOTHING]);
        row[i].unit = "us more";
        snprintf(row[i].note, sizeof row->note, "than an empty request");
    }
    if (bytes >= MIB)
        judge(row, side);
    for (int i = 0; i < N_SIDES; i++)
        bench_report(bench, &row[i], &side[i]);
}

static void compare(struct bench *bench, const struct server *roped, int64_t n,
                    const char *size)
{
    static const char resident[] = "from.q=q&from.k=k&into.q=yq&into.k=yk";
    struct shared shared;
    char query[384];
    size_t tokens = (size_t)n, bytes = tokens * CALL_ROPE_TOKEN_BYTES;
    if (!bench_has_room(bench, bytes, 8) || !share(&shared, 2 * bytes))
        return;
    make_resident(roped, n);
    register_shared(roped, &shared);
    name_shared(query, sizeof query, n);
    struct contender side[N_SIDES] = {
        [NOTHING] = {.server = roped, .request = call_live(0)},
        [BODY] = {.server = roped, .request = call_rope(tokens)},
        [RESIDENT] = {.server = roped,
                      .request = call_rope_in(tokens, resident)},
        [IMPLICIT] = {.server = roped, .request = call_rope_at(resident)},
        [SYSTEM] = {.server = roped, .request = call_rope_in(tokens, query)}};
    duel_latency(side, N_SIDES, &bench->plan);
    report(bench, side, size, bytes);
    bench_must(roped, "POST", "/v2/systemsharedmemory/unregister", "", NULL, 0);
    unshare(&shared);
    duel_free(side, N_SIDES);
}

void section_regions(struct bench *bench)
{
    struct server roped;
    server_roped(&roped, bench->binary, bench->backend, flags, ANY_CPU);
    report_title(&bench->report, "Tensors that do not travel");
    compare(bench, &roped, 4, "4 tokens");
    compare(bench, &roped, 64 * (int64_t)MIB / CALL_ROPE_TOKEN_BYTES, "64 MiB");
    server_stop(&roped);
}
