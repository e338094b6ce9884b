/*
 * append.c - the index tensors of a KV cache: every cell inside the cache, no
 * cell given to two tokens. All of it is known before a launch writes.
 */
#include "ops/append.h"

#include "core/call_internal.h"
#include "ops/rope.h"

/* A hash table of tokens by their cell. */
struct seen {
    uint32_t *token; /* token + 1; 0: empty */
    int bits;        /* log2 of its size, at least twice the tokens */
};

static int table_bits(int64_t n_tokens)
{
    int bits = 2;
    while ((int64_t)1 << bits < 2 * n_tokens)
        bits++;
    return bits;
}

size_t append_aux_bytes(int64_t n_tokens)
{
    if (n_tokens == 0)
        return 0;
    size_t cells = ((size_t)n_tokens * sizeof(int64_t) + 15) / 16 * 16;
    return cells + ((size_t)1 << table_bits(n_tokens)) * sizeof(uint32_t);
}

/* The token that has this cell already, or -1 after taking it for token. */
static int64_t take_cell(struct seen *seen, const int64_t *cells, int64_t token)
{
    uint64_t hash = (uint64_t)cells[token] * 0x9E3779B97F4A7C15u;
    uint64_t mask = ((uint64_t)1 << seen->bits) - 1;
    uint64_t at = hash >> (64 - seen->bits);
    for (; seen->token[at]; at = (at + 1) & mask)
        if (cells[seen->token[at] - 1] == cells[token])
            return (int64_t)seen->token[at] - 1;
    seen->token[at] = (uint32_t)(token + 1);
    return -1;
}

/* ------------------------------------------------------------------ ranges */

/* Every token of a request has an entry of the request's pages. */
static enum roped_status check_entries(const struct roped_call *call,
                                       const struct append_plan *plan,
                                       struct roped_error *err)
{
    int64_t page_size = plan->map.page_size;
    const struct roped_tensor *pages = &call->in[plan->first_port];
    const struct roped_tensor *indptr = &pages[APPEND_PAGE_INDPTR];
    for (int64_t token = 0; token < plan->n_tokens; token++) {
        int64_t j = call_index_at(&pages[APPEND_BATCH_INDICES], token);
        int64_t at = call_index_at(&pages[APPEND_KV_POSITIONS], token);
        if (j < 0)
            continue;
        int64_t n_pages =
            call_index_at(indptr, j + 1) - call_index_at(indptr, j);
        if (at < 0 || page_size == 0 || at / page_size >= n_pages)
            return roped_fail(err, ROPED_BAD_VALUE,
                              "tensor 'kv_positions': position %lld at index "
                              "%lld, expected 0 <= position < %lld, the "
                              "entries of the %lld pages of request %lld",
                              (long long)at, (long long)token,
                              (long long)(n_pages * page_size),
                              (long long)n_pages, (long long)j);
    }
    return ROPED_OK;
}

/* -------------------------------------------------------------------- plan */

static enum roped_status refuse_twin(const struct roped_call *call,
                                     const struct append_plan *plan,
                                     int64_t token, int64_t twin,
                                     struct roped_error *err)
{
    const struct roped_tensor *index = &call->in[plan->first_port];
    if (plan->map.kind == APPEND_SLOTS)
        return roped_fail(err, ROPED_BAD_VALUE,
                          "tensor '%s': slot %lld at index %lld is that of "
                          "index %lld too, expected a slot of its own",
                          call->op->in[plan->first_port].name,
                          (long long)call_index_at(index, token),
                          (long long)token, (long long)twin);
    return roped_fail(
        err, ROPED_BAD_VALUE,
        "tensor 'kv_positions': position %lld at index %lld is the entry of "
        "index %lld too, expected an entry of its own",
        (long long)call_index_at(&index[APPEND_KV_POSITIONS], token),
        (long long)token, (long long)twin);
}

/* The map with the index tensors of the call. */
static struct append_map indexed(const struct roped_call *call,
                                 const struct append_plan *plan)
{
    struct append_map map = plan->map;
    int n_ports = map.kind == APPEND_PAGES ? 4 : 1;
    for (int i = 0; i < n_ports; i++)
        map.index[i] = call->in[plan->first_port + i].data;
    return map;
}

/* Are the planned index tensors of the map's type, all of them? */
static enum roped_status plan_type(const struct roped_call *call,
                                   struct append_plan *plan,
                                   struct roped_error *err)
{
    int32_t dtype;
    int n_ports = plan->map.kind == APPEND_PAGES ? APPEND_KV_POSITIONS + 1 : 1;
    enum roped_status status = call_type_of(
        call, plan->first_port, plan->first_port + n_ports - 1, &dtype, err);
    plan->map.is_wide = dtype == ROPED_I64;
    return status;
}

/* Writes the cell of every token; at position -1 it has none. */
static enum roped_status find_cells(const struct roped_call *call,
                                    const struct append_plan *plan,
                                    struct roped_error *err)
{
    struct append_map map = indexed(call, plan);
    const struct roped_tensor *positions = &call->in[rope_angle_port(call)];
    int64_t n = plan->n_tokens;
    int64_t *cells = (void *)((char *)call->aux + plan->cells_offset);
    struct seen seen = {(void *)(cells + (n + 1) / 2 * 2), table_bits(n)};
    memset(seen.token, 0, ((size_t)1 << seen.bits) * sizeof *seen.token);
    for (int64_t token = 0; token < n; token++) {
        bool is_padding = roped_tensor_given(positions) &&
                          call_index_at(positions, token) < 0;
        cells[token] = is_padding ? -1 : append_cell(&map, token);
        int64_t twin = cells[token] < 0 ? -1 : take_cell(&seen, cells, token);
        if (twin >= 0)
            return refuse_twin(call, plan, token, twin, err);
    }
    return ROPED_OK;
}

enum roped_status append_plan(const struct roped_call *call,
                              struct append_plan *plan, struct roped_error *err)
{
    enum roped_status status = plan_type(call, plan, err);
    if (status || !call->host_values || plan->n_tokens == 0)
        return status;
    if (plan->n_tokens >= UINT32_MAX)
        return roped_fail(err, ROPED_TOO_LARGE,
                          "call: %lld tokens, expected less than %u",
                          (long long)plan->n_tokens, UINT32_MAX);
    if (plan->map.kind == APPEND_PAGES)
        status = check_entries(call, plan, err);
    return status ? status : find_cells(call, plan, err);
}

struct append_map append_map_of(const struct roped_call *call,
                                const struct append_plan *plan)
{
    struct append_map map = indexed(call, plan);
    if (call->aux && call->host_values) {
        map.kind = APPEND_CELLS;
        map.index[0] = (const char *)call->aux + plan->cells_offset;
    }
    return map;
}
