/*
 * chain_resolve.c - the tensors of every step, and where each of them lies.
 *
 * Intermediates that live at different times share the arena: first fit over
 * the steps, from the one that makes a piece to the last that uses it. What a
 * step makes may lie where the step before read: launches of one queue are
 * ordered.
 */
#include "core/call_internal.h"
#include "core/chain_internal.h"

#include <string.h>

enum { ARENA_ALIGNMENT = 256, AUX_ALIGNMENT = 64 };

/* ------------------------------------------------------------------ pieces */

static int add_piece(struct roped_chain *chain, enum roped_piece_kind kind,
                     int index, int step)
{
    struct roped_piece *piece = &chain->piece[chain->n_pieces];
    memset(piece, 0, sizeof *piece);
    piece->kind = kind;
    piece->index = index;
    piece->alignment = 1;
    piece->first = piece->last = step;
    piece->writer = -1;
    return chain->n_pieces++;
}

/* A resolved tensor of the step reaches so far in its piece. */
static void use_piece(struct roped_chain *chain, int ref,
                      const struct roped_tensor *tensor, int step)
{
    struct roped_piece *piece = &chain->piece[chain->use[ref].piece];
    uint64_t end = chain->use[ref].offset + (uint64_t)roped_tensor_span(tensor);
    uint64_t alignment = roped_dtype_bytes(tensor->dtype);
    piece->last = step;
    if (piece->bytes < end)
        piece->bytes = end;
    if (piece->alignment < alignment)
        piece->alignment = alignment;
}

/* ------------------------------------------------------------ a step's input
 */

/* A tensor in a place, as the step says it, or else the place itself. */
static enum roped_status
describe(const struct chain_name *place, const char *name, uint64_t offset,
         const struct roped_view *view, const struct roped_port *port,
         struct roped_tensor *tensor, struct roped_error *err)
{
    *tensor = place->tensor;
    tensor->stride = view ? view->stride : 0;
    if (view && view->dtype)
        tensor->dtype = view->dtype;
    if (view && view->has_shape) {
        tensor->rank = view->rank;
        memcpy(tensor->dims, view->dims, sizeof tensor->dims);
    }
    if (!tensor->dtype)
        return roped_fail(err, ROPED_INVALID,
                          "tensor '%s': '@%s' is plain bytes, expected 'dtype' "
                          "and 'shape' to say what they are",
                          port->name, name);
    if ((view && view->has_shape) || (place->tensor.dtype && offset == 0))
        return ROPED_OK;
    return roped_fail(err, ROPED_INVALID,
                      "tensor '%s': offset %llu in '@%s', expected 'shape' to "
                      "say how much of it is meant",
                      port->name, (unsigned long long)offset, name);
}

static enum roped_status check_range(const struct chain_name *place,
                                     const char *name, uint64_t offset,
                                     const struct roped_port *port,
                                     const struct roped_tensor *tensor,
                                     struct roped_error *err)
{
    uint64_t span = (uint64_t)roped_tensor_span(tensor);
    size_t size = roped_dtype_bytes(tensor->dtype);
    if (!place->area.id)
        return ROPED_OK;
    if (offset > place->area.bytes || span > place->area.bytes - offset)
        return roped_fail(err, ROPED_INVALID,
                          "tensor '%s': %llu bytes at offset %llu of '@%s', "
                          "which has %llu",
                          port->name, (unsigned long long)span,
                          (unsigned long long)offset, name,
                          (unsigned long long)place->area.bytes);
    if (offset % size == 0)
        return ROPED_OK;
    return roped_fail(err, ROPED_INVALID,
                      "tensor '%s': offset %llu of '@%s', expected a multiple "
                      "of %zu, the size of %s",
                      port->name, (unsigned long long)offset, name, size,
                      roped_dtype_name(tensor->dtype));
}

/* The piece of a place, or of a copy of index values in it. */
static int place_piece(struct roped_chain *chain, const struct program_ref *ref,
                       bool is_index, int step, uint64_t *offset)
{
    struct chain_name *place = &chain->name[ref->name];
    int index = chain->program->names.at[ref->name].index;
    *offset = is_index ? 0 : ref->offset;
    if (!is_index && place->piece >= 0)
        return place->piece;
    int at = add_piece(chain, is_index ? ROPED_PIECE_VALUES : ROPED_PIECE_PLACE,
                       index, step);
    chain->piece[at].area = place->area;
    chain->piece[at].is_read = true;
    chain->piece[at].has_values = is_index;
    if (is_index)
        chain->piece[at].area.offset = ref->offset;
    else
        place->piece = at;
    return at;
}

static int input_piece(struct roped_chain *chain, int index, int step)
{
    struct chain_input *input = &chain->input[index];
    if (input->piece >= 0)
        return input->piece;
    input->piece = add_piece(chain, ROPED_PIECE_INPUT, index, step);
    chain->piece[input->piece].area = input->area;
    chain->piece[input->piece].is_read = true;
    return input->piece;
}

/* Values are read before the first step: none may have written there before
 * this one. */
static enum roped_status check_unwritten(const struct roped_chain *chain,
                                         const struct roped_piece *values,
                                         const struct roped_port *port,
                                         int step, struct roped_error *err)
{
    for (int i = 0; i < chain->n_pieces && values->area.id; i++) {
        const struct roped_piece *piece = &chain->piece[i];
        if (piece->area.id != values->area.id || piece->writer < 0 ||
            piece->writer >= step)
            continue;
        return roped_fail(
            err, ROPED_INVALID,
            "tensor '%s': step %d (%s) writes to the region that it is in, "
            "expected memory that no step before writes to: its values are "
            "read before any step runs",
            port->name, piece->writer + 1,
            chain->program->steps.at[piece->writer].op->name);
    }
    return ROPED_OK;
}

static enum roped_status bind(struct roped_chain *chain, int step, int at,
                              struct roped_error *err)
{
    const struct roped_program *program = chain->program;
    const struct program_ref *ref = &program->refs.at[at];
    const struct program_name *name = &program->names.at[ref->name];
    struct roped_call *call = &chain->call[step];
    const struct roped_port *port = &call->op->in[ref->port];
    bool is_index = port->flags & ROPED_INDEX;
    struct roped_tensor tensor = chain->name[ref->name].tensor;
    uint64_t offset = chain->name[ref->name].offset;
    int piece = chain->name[ref->name].piece;
    enum roped_status status = ROPED_OK;
    if (name->kind == NAME_PLACE) {
        status = describe(&chain->name[ref->name], name->text, ref->offset,
                          ref->view, port, &tensor, err);
        if (!status)
            piece = place_piece(chain, ref, is_index, step, &offset);
    } else if (name->kind == NAME_INPUT) {
        tensor = chain->input[name->index].tensor;
        piece = input_piece(chain, name->index, step);
        chain->piece[piece].has_values |= is_index;
        offset = 0;
    }
    tensor.data = NULL;
    tensor.stride_dims = 0;
    chain->use[at] = (struct chain_use){piece, offset};
    return status ? status : roped_call_bind(call, port->name, &tensor, err);
}

/* Resolve has found its shape right: how far does it reach? */
static enum roped_status reach(struct roped_chain *chain, int step, int at,
                               struct roped_error *err)
{
    const struct roped_program *program = chain->program;
    const struct program_ref *ref = &program->refs.at[at];
    const struct program_name *name = &program->names.at[ref->name];
    const struct roped_call *call = &chain->call[step];
    const struct roped_port *port = &call->op->in[ref->port];
    const struct roped_tensor *tensor = &call->in[ref->port];
    enum roped_status status =
        name->kind == NAME_PLACE
            ? check_range(&chain->name[ref->name], name->text, ref->offset,
                          port, tensor, err)
            : ROPED_OK;
    if (status)
        return status;
    use_piece(chain, at, tensor, step);
    if (name->kind == NAME_INPUT)
        chain->input[name->index].tensor.stride_dims = tensor->stride_dims;
    return port->flags & ROPED_INDEX
               ? check_unwritten(chain, &chain->piece[chain->use[at].piece],
                                 port, step, err)
               : ROPED_OK;
}

/* ----------------------------------------------------------- a step's output
 */

static const struct chain_use *use_of(const struct roped_chain *chain, int step,
                                      bool is_output, int port)
{
    const struct roped_program *program = chain->program;
    const struct program_step *of = &program->steps.at[step];
    for (int i = of->first_ref; i < of->first_ref + of->n_refs; i++)
        if (program->refs.at[i].is_output == is_output &&
            program->refs.at[i].port == port)
            return &chain->use[i];
    return NULL;
}

static uint64_t start_of(const struct roped_chain *chain,
                         const struct chain_use *use)
{
    return chain->piece[use->piece].area.offset + use->offset;
}

static bool is_same(const struct roped_chain *chain, const struct chain_use *a,
                    const struct chain_use *b)
{
    const void *id = chain->piece[a->piece].area.id;
    if (a->piece == b->piece)
        return a->offset == b->offset;
    return id && id == chain->piece[b->piece].area.id &&
           start_of(chain, a) == start_of(chain, b);
}

/* Are the tokens of one tensor in the gaps between those of the other? */
static bool are_interleaved(const struct roped_tensor *a, uint64_t a_start,
                            const struct roped_tensor *b, uint64_t b_start)
{
    uint64_t size = roped_dtype_bytes(a->dtype);
    uint64_t stride = (uint64_t)a->stride * size;
    if (stride == 0 ||
        stride != (uint64_t)b->stride * roped_dtype_bytes(b->dtype))
        return false;
    uint64_t between = (b_start % stride + stride - a_start % stride) % stride;
    return between >= (uint64_t)roped_tensor_token(a) * size &&
           between + (uint64_t)roped_tensor_token(b) *
                         roped_dtype_bytes(b->dtype) <=
               stride;
}

static bool overlap(const struct roped_chain *chain, const struct chain_use *a,
                    const struct roped_tensor *a_tensor,
                    const struct chain_use *b,
                    const struct roped_tensor *b_tensor)
{
    const void *id = chain->piece[a->piece].area.id;
    uint64_t a_span = (uint64_t)roped_tensor_span(a_tensor);
    uint64_t b_span = (uint64_t)roped_tensor_span(b_tensor);
    bool is_one =
        a->piece == b->piece || (id && id == chain->piece[b->piece].area.id);
    uint64_t a_start = start_of(chain, a), b_start = start_of(chain, b);
    return is_one && a_span && b_span && a_start < b_start + b_span &&
           b_start < a_start + a_span &&
           !are_interleaved(a_tensor, a_start, b_tensor, b_start);
}

/* What the step writes here is nothing else that it reads or writes. Outputs
 * are bound in turn: those behind this one are not looked at. */
static enum roped_status check_overlap(const struct roped_chain *chain,
                                       int step, int at,
                                       struct roped_error *err)
{
    const struct roped_program *program = chain->program;
    const struct program_step *of = &program->steps.at[step];
    const struct program_ref *ref = &program->refs.at[at];
    const struct roped_call *call = &chain->call[step];
    const struct chain_use *use = &chain->use[at];
    const struct roped_tensor *tensor = &call->out[ref->port];
    int shared = roped_op_shared(call->op, ref->port);
    for (int i = of->first_ref; i < at; i++) {
        const struct program_ref *other = &program->refs.at[i];
        const struct roped_tensor *its =
            other->is_output ? &call->out[other->port] : &call->in[other->port];
        if (!roped_tensor_given(its) ||
            !overlap(chain, use, tensor, &chain->use[i], its) ||
            (!other->is_output && other->port == shared &&
             is_same(chain, use, &chain->use[i])))
            continue;
        return roped_fail(
            err, ROPED_INVALID,
            "output '%s': bytes %llu to %llu of its region overlap %s '%s' at "
            "%llu to %llu, expected a place of its own",
            call->op->out[ref->port].name,
            (unsigned long long)start_of(chain, use),
            (unsigned long long)start_of(chain, use) +
                (unsigned long long)roped_tensor_span(tensor),
            other->is_output ? "output" : "input",
            other->is_output ? call->op->out[other->port].name
                             : call->op->in[other->port].name,
            (unsigned long long)start_of(chain, &chain->use[i]),
            (unsigned long long)start_of(chain, &chain->use[i]) +
                (unsigned long long)roped_tensor_span(its));
    }
    return ROPED_OK;
}

/* The piece of an output that has memory of its own. */
static int made_piece(struct roped_chain *chain, const struct program_ref *ref,
                      int step, uint64_t *offset)
{
    int output =
        ref->name < 0 ? -1 : chain->program->names.at[ref->name].output;
    *offset = 0;
    if (ref->name >= 0 &&
        chain->program->names.at[ref->name].kind == NAME_PLACE)
        return place_piece(chain, ref, false, step, offset);
    int at =
        add_piece(chain, output < 0 ? ROPED_PIECE_ARENA : ROPED_PIECE_OUTPUT,
                  output, step);
    if (output >= 0)
        chain->piece[at].area = chain->into[output].area;
    return at;
}

/* The stride of an output: that of the input whose place it has, or its own. */
static enum roped_status settle_stride(struct roped_chain *chain, int step,
                                       int at, struct roped_error *err)
{
    const struct program_ref *ref = &chain->program->refs.at[at];
    struct roped_call *call = &chain->call[step];
    int output =
        ref->name < 0 ? -1 : chain->program->names.at[ref->name].output;
    int shared = roped_op_shared(call->op, ref->port);
    const struct chain_use *in =
        shared < 0 ? NULL : use_of(chain, step, false, shared);
    int64_t said = ref->view     ? ref->view->stride
                   : output >= 0 ? chain->into[output].stride
                                 : 0;
    bool is_shared = in && is_same(chain, &chain->use[at], in);
    int64_t stride = is_shared ? call->in[shared].stride : said;
    if (said && said != stride)
        return roped_fail(err, ROPED_BAD_SHAPE,
                          "output '%s': stride %lld in the place of its input, "
                          "expected that one's stride, %lld",
                          call->op->out[ref->port].name, (long long)said,
                          (long long)stride);
    return roped_call_set_stride(call, ref->port, stride, err);
}

static enum roped_status make(struct roped_chain *chain, int step, int at,
                              struct roped_error *err)
{
    const struct roped_program *program = chain->program;
    const struct program_ref *ref = &program->refs.at[at];
    struct roped_call *call = &chain->call[step];
    const struct roped_port *port = &call->op->out[ref->port];
    struct roped_tensor *tensor = &call->out[ref->port];
    int updated = program_updated(call->op, ref->port);
    const struct chain_use *in =
        updated < 0 ? NULL : use_of(chain, step, false, updated);
    uint64_t offset = in ? in->offset : 0;
    chain->use[at].piece = -1;
    if (!roped_tensor_given(tensor))
        return ref->name < 0 ? ROPED_OK
                             : roped_fail(err, ROPED_INVALID,
                                          "output '%s': this call of %s does "
                                          "not make it",
                                          port->name, call->op->name);
    int piece = in ? in->piece : made_piece(chain, ref, step, &offset);
    chain->use[at] = (struct chain_use){piece, offset};
    enum roped_status status = settle_stride(chain, step, at, err);
    if (!status && chain->piece[piece].kind == ROPED_PIECE_PLACE)
        status = check_range(&chain->name[ref->name],
                             program->names.at[ref->name].text, ref->offset,
                             port, tensor, err);
    if (status)
        return status;
    use_piece(chain, at, tensor, step);
    if (chain->piece[piece].writer < 0)
        chain->piece[piece].writer = step;
    chain->piece[piece].is_written = true;
    if (ref->name >= 0 && program->names.at[ref->name].kind == NAME_MADE) {
        struct chain_name *made = &chain->name[ref->name];
        made->tensor = *tensor;
        made->piece = piece;
        made->offset = offset;
    }
    return check_overlap(chain, step, at, err);
}

/* An updated input whose output has no name is written too. */
static void mark_updated(struct roped_chain *chain, int step)
{
    const struct program_step *of = &chain->program->steps.at[step];
    for (int i = of->first_ref; i < of->first_ref + of->n_refs; i++) {
        const struct program_ref *ref = &chain->program->refs.at[i];
        struct roped_piece *piece;
        if (ref->is_output || !(of->op->in[ref->port].flags & ROPED_UPDATED))
            continue;
        piece = &chain->piece[chain->use[i].piece];
        piece->is_written = true;
        if (piece->writer < 0)
            piece->writer = step;
    }
}

/* ----------------------------------------------------------------- resolve */

static enum roped_status set_params(struct roped_chain *chain, int step,
                                    struct roped_error *err)
{
    const struct roped_program *program = chain->program;
    const struct program_step *of = &program->steps.at[step];
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < of->n_settings && !status; i++) {
        const struct program_setting *setting =
            &program->settings.at[of->first_setting + i];
        const char *text = setting->text
                               ? setting->text
                               : chain_value(chain, setting->param, err);
        status = text ? roped_call_set_text(&chain->call[step], setting->name,
                                            text, err)
                      : ROPED_BAD_PARAMETER;
    }
    if (!status && of->table >= 0)
        status = roped_call_use_angles(&chain->call[step],
                                       chain->set[of->table], err);
    return status;
}

/* What a step moves; what it updates counts nothing, because nobody knows how
 * much of that it touches. */
static uint64_t moved_bytes(const struct roped_call *call)
{
    uint64_t bytes = (uint64_t)roped_call_bytes(call);
    for (int i = 0; i < call->n_in; i++)
        if (call->op->in[i].flags & ROPED_UPDATED)
            bytes -= 2 * (uint64_t)(roped_tensor_given(&call->in[i])
                                        ? roped_tensor_bytes(&call->in[i])
                                        : 0);
    return bytes;
}

static enum roped_status resolve_step(struct roped_chain *chain, int step,
                                      struct roped_error *err)
{
    const struct program_step *of = &chain->program->steps.at[step];
    const struct program_ref *refs = chain->program->refs.at;
    struct roped_call *call = &chain->call[step];
    int first = of->first_ref, end = first + of->n_refs;
    roped_call_init(call, of->op);
    enum roped_status status = set_params(chain, step, err);
    for (int i = first; i < end && !status; i++)
        if (!refs[i].is_output)
            status = bind(chain, step, i, err);
    if (!status)
        status = roped_call_resolve(call, err);
    if (status)
        return status;
    call->host_values = !chain->is_trusting || call_needs_values(call);
    for (int i = first; i < end && !status; i++)
        status = refs[i].is_output ? make(chain, step, i, err)
                                   : reach(chain, step, i, err);
    if (status)
        return status;
    mark_updated(chain, step);
    chain->aux_at[step] = chain->aux_bytes;
    chain->aux_bytes += (roped_call_aux_bytes(call) + AUX_ALIGNMENT - 1) /
                        AUX_ALIGNMENT * AUX_ALIGNMENT;
    uint64_t bytes = moved_bytes(call);
    chain->moved_bytes = bytes > UINT64_MAX - chain->moved_bytes
                             ? UINT64_MAX
                             : chain->moved_bytes + bytes;
    return ROPED_OK;
}

/* Those that ended before a step make room. */
static void retire(struct roped_chain *chain, int step)
{
    int n = 0;
    for (int i = 0; i < chain->n_active; i++)
        if (chain->piece[chain->active[i]].last >= step)
            chain->active[n++] = chain->active[i];
    chain->n_active = n;
}

/* The first gap that is large enough. */
static void place_in_arena(struct roped_chain *chain, int at)
{
    struct roped_piece *piece = &chain->piece[at];
    uint64_t bytes = (piece->bytes + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT *
                     ARENA_ALIGNMENT;
    uint64_t start = 0;
    int i = 0;
    retire(chain, piece->first);
    for (; i < chain->n_active; i++) {
        const struct roped_piece *other = &chain->piece[chain->active[i]];
        if (start + bytes <= other->area.offset)
            break;
        uint64_t end = other->area.offset + other->bytes;
        end = (end + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT;
        start = end > start ? end : start;
    }
    piece->area.offset = start;
    memmove(chain->active + i + 1, chain->active + i,
            (size_t)(chain->n_active - i) * sizeof *chain->active);
    chain->active[i] = at;
    chain->n_active++;
    if (chain->arena_bytes < start + bytes)
        chain->arena_bytes = start + bytes;
}

/* Names of an arena's piece that are outputs make it one of the caller's. */
static void find_outputs(struct roped_chain *chain)
{
    const struct roped_program *program = chain->program;
    for (int i = 0; i < program->n_outputs; i++) {
        struct roped_piece *piece =
            &chain->piece[chain->name[program->output[i]].piece];
        if (piece->kind != ROPED_PIECE_ARENA)
            continue;
        piece->kind = ROPED_PIECE_OUTPUT;
        piece->index = i;
        piece->area = chain->into[i].area;
    }
}

/* What was updated is where it was: it goes nowhere else. */
static enum roped_status check_into(const struct roped_chain *chain,
                                    struct roped_error *err)
{
    const struct roped_program *program = chain->program;
    for (int i = 0; i < program->n_outputs; i++) {
        const struct chain_name *made = &chain->name[program->output[i]];
        const struct roped_piece *piece = &chain->piece[made->piece];
        const struct roped_area *into = &chain->into[i].area;
        if (!into->id || piece->kind == ROPED_PIECE_OUTPUT ||
            (into->id == piece->area.id &&
             into->offset == piece->area.offset + made->offset))
            continue;
        return roped_fail(err, ROPED_INVALID,
                          "output '%s': updated in the memory of %s, expected "
                          "no region of its own",
                          roped_program_output_name(program, i),
                          piece->kind == ROPED_PIECE_INPUT
                              ? roped_program_input_name(program, piece->index)
                              : "a place");
    }
    return ROPED_OK;
}

enum roped_status roped_chain_resolve(struct roped_chain *chain,
                                      struct roped_error *err)
{
    const struct roped_program *program = chain->program;
    enum roped_status status;
    if (chain_is_as_before(chain))
        return ROPED_OK;
    chain->before->is_resolved = false;
    status = chain_check_inputs(chain, err);
    chain->n_pieces = chain->n_active = 0;
    chain->arena_bytes = chain->moved_bytes = 0;
    chain->aux_bytes = 0;
    for (int i = 0; i < program->names.n; i++)
        chain->name[i].piece = -1;
    for (int i = 0; i < program->n_inputs; i++)
        chain->input[i].piece = -1;
    for (int i = 0; i < program->steps.n && !status; i++)
        status =
            roped_program_blame(program, i, resolve_step(chain, i, err), err);
    if (status)
        return status;
    find_outputs(chain);
    for (int i = 0; i < chain->n_pieces; i++)
        if (chain->piece[i].kind == ROPED_PIECE_ARENA &&
            chain->piece[i].bytes > 0)
            place_in_arena(chain, i);
    status = check_into(chain, err);
    if (!status)
        chain_note(chain);
    return status;
}
