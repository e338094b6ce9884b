/*
 * fuzz_program.c - any bytes as the document of a program, which is then
 * resolved for tensors that the document declares, or for some. Promises: what
 * is accepted is written as strict JSON; every piece of memory holds what steps
 * use of it, and two that live at one time do not overlap.
 */
#include "fuzz.h"

#include "wire/json.h"
#include "wire/program_json.h"

#include <string.h>

enum { PLACE_BYTES = 1 << 16 };

static void check_text(const struct roped_program *program)
{
    struct buffer buffer;
    const struct cJSON *tree;
    struct roped_error err;
    buffer_init(&buffer);
    buffer_text(&buffer, "{");
    program_json_write(&buffer, program);
    buffer_text(&buffer, "}");
    FUZZ_PROMISE(!buffer.has_failed);
    FUZZ_PROMISE(!json_parse(buffer.text, buffer.bytes, &tree, &err));
    json_free(tree);
    buffer_fini(&buffer);
}

static void check_pieces(struct roped_chain *chain)
{
    uint64_t arena = roped_chain_arena_bytes(chain);
    for (int i = 0; i < roped_chain_pieces(chain); i++) {
        const struct roped_piece *a = roped_chain_piece(chain, i);
        FUZZ_PROMISE(a->first <= a->last);
        FUZZ_PROMISE(a->kind != ROPED_PIECE_PLACE || a->bytes <= PLACE_BYTES);
        if (a->kind != ROPED_PIECE_ARENA || a->bytes == 0)
            continue;
        FUZZ_PROMISE(a->bytes <= arena && a->area.offset <= arena - a->bytes);
        for (int j = 0; j < i; j++) {
            const struct roped_piece *b = roped_chain_piece(chain, j);
            bool is_at_once = a->first <= b->last && b->first <= a->last;
            FUZZ_PROMISE(b->kind != ROPED_PIECE_ARENA || !is_at_once ||
                         a->area.offset + a->bytes <= b->area.offset ||
                         b->area.offset + b->bytes <= a->area.offset);
        }
    }
}

static enum roped_status bind_inputs(struct roped_chain *chain,
                                     const struct roped_program *program,
                                     struct roped_error *err)
{
    enum roped_status status = ROPED_OK;
    for (int i = 0; i < roped_program_inputs(program) && !status; i++) {
        const struct roped_declared *declared =
            roped_program_declared(program, i);
        struct roped_tensor tensor = {.dtype = declared->dtype ? declared->dtype
                                                               : ROPED_F32,
                                      .rank = 2,
                                      .dims = {4, 64}};
        if (declared->has_shape) {
            tensor.rank = declared->rank;
            for (int j = 0; j < tensor.rank; j++)
                tensor.dims[j] = declared->symbol[j][0] ? 4 : declared->dims[j];
        }
        status = roped_chain_input(chain, roped_program_input_name(program, i),
                                   &tensor, NULL, err);
    }
    return status;
}

static void resolve(const struct roped_program *program)
{
    static const struct roped_angle_set set = {.name = "t"};
    struct roped_error err;
    const struct roped_tensor tensor = {
        .dtype = ROPED_F32, .rank = 2, .dims = {4, 64}};
    const struct roped_area area = {&tensor, 0, PLACE_BYTES};
    void *memory = malloc(roped_chain_bytes(program));
    if (!memory)
        return;
    struct roped_chain *chain = roped_chain_init(memory, program);
    enum roped_status status = bind_inputs(chain, program, &err);
    for (int i = 0; i < roped_program_places(program); i++)
        roped_chain_place(chain, i, &tensor, &area);
    struct roped_angle_set angles = set;
    roped_angle_params_init(&angles.params);
    for (int i = 0; i < roped_program_tables(program); i++)
        roped_chain_table(chain, i, &angles);
    if (!status)
        status = roped_chain_resolve(chain, &err);
    FUZZ_PROMISE(!status || is_refusal(status));
    if (!status)
        check_pieces(chain);
    free(memory);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t bytes)
{
    struct roped_program *program = NULL;
    struct roped_error err;
    enum roped_status status =
        program_json_read((const char *)input, bytes, &program, &err);
    FUZZ_PROMISE(!status || is_refusal(status) || status == ROPED_NO_OPERATOR ||
                 status == ROPED_TOO_LARGE);
    if (status)
        return 0;
    check_text(program);
    resolve(program);
    roped_program_free(program);
    return 0;
}
