/*
 * quantize.c - values as codes on the CPU: strips of tiles over threads. A
 * strip is read for its scales and, unless it is kept as float32, again for its
 * codes; a block at a time.
 */
#include "ops/quantize.h"
#include "cpu/codes.h"

#include <stdatomic.h>
#include <string.h>

/* Tiles beside each other that are worked on at once: all that rows of a strip
 * have, as a rule, which are read from memory in their order then. */
enum { MOST_BLOCKS = 64 };

struct quantize_loop {
    const struct cpu_rows *rows;
    const struct quantize_plan *plan;
    const struct code_source *source;
    const struct roped_tensor *y;
    void *scales;
    struct cpu_codes codes;
    float divisor; /* of every element, where has_divisor */
    bool has_divisor;
    bool has_steps;   /* codes by encode_type */
    bool has_groups;  /* by encode_powers and encode_nvfp4 */
    int64_t n_beside; /* rows that are worked on as one, of so many columns */
    int64_t pitch;    /* with zeros behind them: see place_beside */
    _Atomic int32_t largest; /* of the tensor */
};

/* Columns [first, first + n) of rows [row, row + n_rows), n at most limit, and
 * in how many columns each divisor serves. Rows beside each other count as
 * one. */
struct part {
    int64_t row, n_rows, n_beside, first, n, limit, tile;
    float *x;     /* room for n columns, at most CPU_BLOCK */
    bool is_kept; /* x has what the source gives for them */
};

/* Do rows lie one behind the other? */
static bool are_packed(const struct quantize_loop *loop)
{
    const int64_t width = loop->plan->tiles.width;
    const int64_t bytes = code_bytes(loop->codes.element, width);
    const struct roped_tensor *x = loop->source->x;
    return (!x || cpu_stride(x, width) == width) &&
           cpu_stride(loop->y, bytes) == bytes;
}

/* n columns of a row of a part, at most CPU_BLOCK, from column at of it on. */
static void load(const struct quantize_loop *loop, const struct part *part,
                 int64_t row, int64_t at, int64_t n)
{
    const struct code_source *source = loop->source;
    const int64_t width = loop->plan->tiles.width, pitch = loop->pitch;
    float *const x = part->x;
    if (part->is_kept)
        return;
    if (pitch == width &&
        (part->n_beside == 1 || (source->x && are_packed(loop))))
        source->load(source->of, row, part->first + at, n, x);
    else
        for (int64_t i = 0; i < part->n_beside; i++) {
            source->load(source->of, row + i, 0, width, x + i * pitch);
            for (int64_t j = width; j < pitch; j++)
                x[i * pitch + j] = 0;
        }
    cpu_pad(x, n);
}

static void find_largest(const struct quantize_loop *loop,
                         const struct part *part, int32_t *most)
{
    const bool counts_nan = code_counts_nan(&loop->plan->rule);
    for (int64_t row = part->row; row < part->row + part->n_rows; row++)
        for (int64_t at = 0; at < part->n; at += CPU_BLOCK) {
            const int64_t n = cpu_smaller(part->n - at, CPU_BLOCK);
            load(loop, part, row, at, n);
            loop->rows->quantize->largest(part->x, n, part->tile, counts_nan,
                                          most + at / part->tile);
        }
}

/* Codes of rows beside each other without what is between them. A step of a
 * row may write what the next row replaces. */
static void put_beside(uint8_t *to, const uint8_t *from, int64_t n_rows,
                       int64_t bytes, int64_t pitch)
{
    enum { STEP = 16 };
    for (; bytes >= STEP && n_rows > 1; n_rows--, to += bytes, from += pitch)
        for (int64_t i = 0; i < bytes; i += STEP)
            memcpy(to + i, from + i, STEP);
    for (; n_rows > 0; n_rows--, to += bytes, from += pitch)
        memcpy(to, from, (size_t)bytes);
}

static void write_codes(const struct quantize_loop *loop,
                        const struct part *part, const float *divisor)
{
    const struct roped_tensor *y = loop->y;
    const enum code_element element = loop->codes.element;
    const int64_t width = code_bytes(element, loop->plan->tiles.width);
    const bool is_cut = loop->pitch > loop->plan->tiles.width;
    uint8_t code[CPU_BLOCK];
    for (int64_t row = part->row; row < part->row + part->n_rows; row++)
        for (int64_t at = 0; at < part->n; at += CPU_BLOCK) {
            const int64_t n = cpu_smaller(part->n - at, CPU_BLOCK);
            const int64_t first = code_bytes(element, part->first + at);
            uint8_t *const to =
                cpu_at(y->data, row * cpu_stride(y, width) + first, 1);
            load(loop, part, row, at, n);
            loop->rows->quantize->encode(&loop->codes, is_cut ? code : to,
                                         part->x, n, part->tile,
                                         divisor + at / part->tile);
            if (is_cut)
                put_beside(to, code, part->n_beside, width,
                           code_bytes(element, loop->pitch));
        }
}

static void store_scales(const struct quantize_loop *loop, const int32_t *most,
                         int64_t n, int64_t strip, int64_t tile, float *divisor)
{
    const struct code_scales to = {&loop->plan->tiles, loop->scales, strip,
                                   tile};
    uint8_t code[CPU_MOST_TILES];
    code_scales_store(loop->rows, &loop->plan->rule, most, n, &to, divisor,
                      code);
}

/* The next columns, as many as there are. */
static bool next_part(const struct quantize_loop *loop, struct part *part)
{
    part->first += part->n;
    part->n =
        cpu_smaller(loop->pitch * part->n_beside - part->first, part->limit);
    return part->n > 0;
}

/* Tiles beside each other that are narrower than a block, or as wide as rows
 * are. */
static void quantize_tiles(const struct quantize_loop *loop, int64_t strip,
                           struct part part)
{
    const struct code_tiles *tiles = &loop->plan->tiles;
    int64_t tile = 0;
    part.tile =
        loop->n_beside > 1 ? loop->pitch / tiles->n_tiles : tiles->tile_width;
    while (next_part(loop, &part)) {
        int32_t most[CPU_MOST_TILES] = {0};
        float divisor[CPU_MOST_TILES];
        const int64_t n = cpu_ceil_div(part.n, part.tile);
        find_largest(loop, &part, most);
        store_scales(loop, most, n, strip, tile, divisor);
        tile += n;
        part.is_kept = part.n_rows == 1;
        write_codes(loop, &part, divisor);
        part.is_kept = false;
    }
}

/* A tile of all columns: of one row that is not too wide kept as float32. */
static void quantize_whole(const struct quantize_loop *loop, int64_t strip,
                           struct part part)
{
    enum { KEPT = 8 * CPU_BLOCK };
    const struct quantize_plan *plan = loop->plan;
    const bool keeps = part.n_rows == 1 && plan->tiles.width <= KEPT;
    _Alignas(64) float x[KEPT];
    struct part begin = part;
    int32_t most = 0;
    float divisor;
    for (part.x = x; next_part(loop, &part); part.x += keeps ? part.n : 0)
        find_largest(loop, &part, &most);
    store_scales(loop, &most, 1, strip, 0, &divisor);
    begin.is_kept = keeps;
    for (begin.x = x; next_part(loop, &begin); begin.x += keeps ? begin.n : 0)
        write_codes(loop, &begin, &divisor);
}

/* Does a source have the words that codes are made of? NVFP4 is made of those
 * of float16, too. */
static bool has_words(const struct quantize_loop *loop)
{
    const struct roped_tensor *x = loop->source->x;
    return x && (x->dtype == ROPED_BF16 ||
                 (x->dtype == ROPED_F16 &&
                  loop->plan->rule.scale == CODE_SCALE_E4M3));
}

/* Of a source that is a tensor. */
static const void *element_of(const struct quantize_loop *loop, int64_t row,
                              int64_t i)
{
    const struct roped_tensor *x = loop->source->x;
    const int64_t stride = cpu_stride(x, loop->plan->tiles.width);
    return cpu_at(x->data, (row - loop->source->first) * stride + i,
                  roped_dtype_bytes(x->dtype));
}

static void largest_of_part(const struct quantize_loop *loop,
                            const struct part *part, int32_t *most)
{
    const struct roped_tensor *x = loop->source->x;
    loop->rows->quantize->largest_of(x->dtype,
                                     element_of(loop, part->row, part->first),
                                     cpu_stride(x, loop->plan->tiles.width),
                                     part->n_rows, part->n, part->tile, most);
}

/* Tiles whose values have steps each, or together. */
static void quantize_by_steps(const struct quantize_loop *loop, int64_t strip,
                              struct part part, struct cpu_fp8_steps *steps)
{
    const struct roped_tensor *y = loop->y;
    const int64_t width = loop->plan->tiles.width;
    const int64_t stride = cpu_stride(y, width);
    while (next_part(loop, &part)) {
        int32_t most[MOST_BLOCKS];
        float divisor[MOST_BLOCKS];
        divisor[0] = loop->divisor;
        if (!loop->has_divisor) {
            largest_of_part(loop, &part, most);
            store_scales(loop, most, cpu_ceil_div(part.n, part.tile),
                         strip + part.first / width,
                         part.first % width / part.tile, divisor);
        }
        for (int64_t row = part.row; row < part.row + part.n_rows; row++)
            loop->rows->quantize->encode_type(
                &loop->codes, loop->source->x->dtype,
                cpu_at(y->data, row * stride + part.first, 1),
                element_of(loop, row, part.first), part.n, part.tile, divisor,
                steps);
    }
}

static int64_t limit_of(const struct code_tiles *tiles, int64_t n_rows)
{
    return n_rows > 1 ? MOST_BLOCKS * tiles->tile_width : CPU_BLOCK;
}

/* Rows that have one divisor each, or all together, are one part, and narrow
 * ones one with those behind them. */
static void quantize_strips_by_steps(const struct quantize_loop *loop,
                                     int64_t begin, int64_t end)
{
    const struct code_tiles *tiles = &loop->plan->tiles;
    const bool is_one = tiles->tile_rows == 1 && are_packed(loop);
    const int64_t n_beside = is_one ? end - begin : 1;
    const int64_t fit = is_one ? CPU_BLOCK / tiles->width : 1;
    struct cpu_fp8_steps steps[MOST_BLOCKS];
    for (int i = 0; i < MOST_BLOCKS; i++)
        steps[i].divisor = 0;
    for (int64_t strip = begin; strip < end; strip += n_beside) {
        const int64_t row = strip * tiles->tile_rows;
        struct part part = {
            .row = row,
            .n_rows = cpu_smaller(tiles->n_rows - row, tiles->tile_rows),
            .n_beside = n_beside,
            .tile = tiles->tile_width};
        part.limit = limit_of(tiles, part.n_rows);
        if (loop->has_divisor)
            part.limit = part.tile = tiles->width * n_beside;
        else if (tiles->n_tiles == 1) {
            part.tile = tiles->width;
            part.limit = tiles->width * (fit > 1 ? fit : 1);
        }
        quantize_by_steps(loop, strip, part, steps);
    }
}

/* Columns of rows that lie one behind the other; as words, where to has those.
 */
static void load_from_rows(const struct quantize_loop *loop, int64_t row,
                           int64_t first, int64_t n, float *x, uint16_t *word)
{
    const struct code_source *source = loop->source;
    const int64_t width = loop->plan->tiles.width;
    for (int64_t done = 0, here; done < n; done += here, first += here) {
        const int64_t at = first % width;
        here = cpu_smaller(width - at, n - done);
        if (word)
            source->load_words(source->of, row + first / width, at, here,
                               word + done);
        else
            source->load(source->of, row + first / width, at, here, x + done);
    }
}

static void load_groups(const struct quantize_loop *loop, int64_t row,
                        int64_t first, int64_t n, float *x)
{
    load_from_rows(loop, row, first, n, x, NULL);
}

/* The same as words: where they are, or in the place of floats. */
static const uint16_t *words_of(const struct quantize_loop *loop, int64_t row,
                                int64_t first, int64_t n, uint16_t *word)
{
    const struct cpu_quantize_rows *rows = loop->rows->quantize;
    const struct roped_tensor *x = loop->source->x;
    /* a load may write more */
    _Alignas(64) float value[CPU_BLOCK + CPU_LANES];
    if (has_words(loop))
        return element_of(loop, row, first);
    if (loop->source->load_words) {
        load_from_rows(loop, row, first, n, NULL, word);
    } else if (x) {
        rows->odd_words(x->dtype, loop->codes.is_streamed, word,
                        element_of(loop, row, first), n);
    } else {
        load_groups(loop, row, first, n, value);
        rows->odd_words(ROPED_F32, false, word, value, n);
    }
    return word;
}

/* Codes of the floats themselves. */
static void encode_floats(const struct quantize_loop *loop, int64_t row,
                          int64_t first, int64_t n, void *y,
                          const float *divisor)
{
    _Alignas(64) float value[CPU_BLOCK + CPU_LANES];
    load_groups(loop, row, first, n, value);
    loop->rows->quantize->encode(&loop->codes, y, value, n,
                                 loop->plan->tiles.tile_width, divisor);
}

/* Words cannot tell values of these but 0. */
static bool has_least_scales(const int32_t *most, const uint8_t *scale,
                             int64_t n)
{
    enum { LEAST = 16 }; /* 2^-111 */
    uint8_t found = 0;
    for (int64_t i = 0; i < n; i++)
        found |= scale[i] < LEAST;
    for (int64_t i = 0; found && i < n; i++)
        if (scale[i] < LEAST && most[i] > 0)
            return true;
    return false;
}

/* Where codes of n columns of a row from column first on go. */
static void *codes_at(const struct quantize_loop *loop, int64_t row,
                      int64_t first)
{
    const enum code_element element = loop->codes.element;
    const int64_t width = code_bytes(element, loop->plan->tiles.width);
    return cpu_at(loop->y->data,
                  row * cpu_stride(loop->y, width) + code_bytes(element, first),
                  1);
}

static struct code_scales scales_at(const struct quantize_loop *loop,
                                    int64_t row, int64_t first)
{
    const struct code_tiles *tiles = &loop->plan->tiles;
    return (struct code_scales){tiles, loop->scales, row + first / tiles->width,
                                first % tiles->width / tiles->tile_width};
}

/* Of NVFP4, by floats: where they are, or widened. */
static void quantize_floats(const struct quantize_loop *loop, int64_t row,
                            int64_t first, int64_t n,
                            struct cpu_nibble_floats *table)
{
    const struct cpu_quantize_rows *rows = loop->rows->quantize;
    const struct roped_tensor *from = loop->source->x;
    const struct code_scales to = scales_at(loop, row, first);
    const bool are_there = from && from->dtype == ROPED_F32;
    struct cpu_codes codes = loop->codes;
    const int64_t n_tiles = n / to.tiles->tile_width;
    void *y = codes_at(loop, row, first);
    int32_t most[CPU_MOST_TILES] = {0};
    float divisor[CPU_MOST_TILES];
    uint8_t scale[CPU_MOST_TILES];
    _Alignas(64) float value[CPU_BLOCK + CPU_LANES];
    const float *x = are_there ? element_of(loop, row, first) : value;
    if (are_there) {
        rows->largest(x, n, to.tiles->tile_width, false, most);
    } else {
        codes.ahead = 0;
        load_groups(loop, row, first, n, value);
        rows->largest_results(x, n, most);
    }
    code_scales_store(loop->rows, &loop->plan->rule, most, n_tiles, &to, NULL,
                      scale);
    if (rows->encode_nvfp4_floats(&codes, y, x, n, scale, table))
        return;
    code_divisors(loop->rows, scale, n_tiles, divisor);
    encode_floats(loop, row, first, n, y, divisor);
}

/* n columns of a row from column first on, and of those that lie behind it. */
static void quantize_groups(const struct quantize_loop *loop, int64_t row,
                            int64_t first, int64_t n,
                            struct cpu_nibble_words *table)
{
    const struct code_tiles *tiles = &loop->plan->tiles;
    const struct cpu_quantize_rows *rows = loop->rows->quantize;
    const struct code_rule *rule = &loop->plan->rule;
    const struct code_scales to = scales_at(loop, row, first);
    void *y = codes_at(loop, row, first);
    int32_t most[CPU_MOST_TILES];
    float divisor[CPU_MOST_TILES];
    uint8_t scale[CPU_MOST_TILES];
    _Alignas(64) uint16_t word[CPU_BLOCK];
    const uint16_t *x = words_of(loop, row, first, n, word);
    const enum roped_dtype dtype =
        x == word ? ROPED_BF16 : loop->source->x->dtype;
    rows->largest_groups(dtype, x, n, tiles->tile_width, code_counts_nan(rule),
                         most);
    code_scales_store(loop->rows, rule, most, n / tiles->tile_width, &to,
                      rule->scale == CODE_SCALE_E8M0 ? divisor : NULL, scale);
    if (x == word && has_least_scales(most, scale, n / tiles->tile_width))
        encode_floats(loop, row, first, n, y, divisor);
    else if (rule->scale == CODE_SCALE_E8M0)
        rows->encode_powers(&loop->codes, y, x, n, divisor);
    else
        rows->encode_nvfp4(&loop->codes, dtype, y, x, n, scale, table);
}

/* Rows that lie one behind the other are one. */
static void quantize_rows_of_groups(const struct quantize_loop *loop,
                                    int64_t begin, int64_t end,
                                    struct cpu_nibble_tables *tables)
{
    const int64_t n_rows = are_packed(loop) ? end - begin : 1;
    const int64_t n = loop->plan->tiles.width * n_rows;
    const bool by_floats =
        loop->plan->rule.scale == CODE_SCALE_E4M3 && !has_words(loop);
    for (int64_t row = begin; row < end; row += n_rows)
        for (int64_t i = 0; i < n; i += CPU_BLOCK)
            if (by_floats)
                quantize_floats(loop, row, i, cpu_smaller(n - i, CPU_BLOCK),
                                &tables->floats);
            else
                quantize_groups(loop, row, i, cpu_smaller(n - i, CPU_BLOCK),
                                &tables->words);
}

void code_forget_scales(struct cpu_nibble_tables *tables)
{
    memset(tables->words.is_known, 0, sizeof tables->words.is_known);
    memset(tables->floats.is_known, 0, sizeof tables->floats.is_known);
}

static void quantize_some(const struct quantize_loop *loop, int64_t begin,
                          int64_t end, struct cpu_nibble_tables *tables)
{
    const struct code_tiles *tiles = &loop->plan->tiles;
    _Alignas(64) float x[CPU_BLOCK];
    if (loop->has_groups)
        quantize_rows_of_groups(loop, begin, end, tables);
    if (loop->has_steps)
        quantize_strips_by_steps(loop, begin, end);
    if (loop->has_groups || loop->has_steps)
        return;
    for (int64_t strip = begin; strip < end; strip += loop->n_beside) {
        const int64_t row = strip * tiles->tile_rows;
        const int64_t n_rows =
            cpu_smaller(tiles->n_rows - row, tiles->tile_rows);
        struct part part = {.row = row,
                            .n_rows = n_rows,
                            .n_beside =
                                cpu_smaller(end - strip, loop->n_beside),
                            .limit = limit_of(tiles, n_rows),
                            .tile = CPU_BLOCK,
                            .x = x};
        if (loop->has_divisor)
            while (next_part(loop, &part))
                write_codes(loop, &part, &loop->divisor);
        else if (tiles->n_tiles > 1 || loop->n_beside > 1)
            quantize_tiles(loop, strip, part);
        else
            quantize_whole(loop, strip, part);
    }
}

static void quantize_strips(void *context, int64_t begin, int64_t end)
{
    struct cpu_nibble_tables tables;
    code_forget_scales(&tables);
    quantize_some(context, begin, end, &tables);
}

static void find_in_rows(void *context, int64_t begin, int64_t end)
{
    struct quantize_loop *loop = context;
    _Alignas(64) float x[CPU_BLOCK];
    const int64_t n_beside = loop->n_beside;
    const int64_t n_rows = n_beside > 1 ? 1 : end - begin;
    int32_t most = 0, known = atomic_load(&loop->largest);
    if (loop->has_steps) {
        const struct part all = {.row = begin,
                                 .n_rows = end - begin,
                                 .n = loop->plan->tiles.width,
                                 .tile = loop->plan->tiles.width};
        largest_of_part(loop, &all, &most);
        begin = end;
    }
    for (int64_t row = begin; row < end; row += n_rows * n_beside) {
        struct part part = {.row = row,
                            .n_rows = n_rows,
                            .n_beside = cpu_smaller(end - row, n_beside),
                            .limit = CPU_BLOCK,
                            .tile = CPU_BLOCK,
                            .x = x};
        while (next_part(loop, &part))
            find_largest(loop, &part, &most);
    }
    while (known < most &&
           !atomic_compare_exchange_weak(&loop->largest, &known, most))
        continue;
}

/*
 * How many rows whose codes lie one behind the other fit a block, where they
 * are worked on as one row of their tiles: the calls of a narrow row take more
 * than its elements do. Fewer than four share no last steps of their largest
 * values, and only wait longer for memory. A tile that is a row of no whole
 * vectors has zeros behind it, which no scale depends on.
 */
static void place_beside(struct quantize_loop *loop)
{
    enum { FEWEST = 4 };
    const struct code_tiles *tiles = &loop->plan->tiles;
    const int64_t width = tiles->width;
    const int64_t bytes = code_bytes(loop->codes.element, width);
    const int64_t room = cpu_ceil_div(width, CPU_LANES) * CPU_LANES;
    const bool has_tiles = !loop->has_divisor && !loop->plan->is_tensor;
    loop->n_beside = 1;
    loop->pitch = width;
    if (width > CPU_BLOCK / FEWEST || tiles->n_rows < FEWEST ||
        tiles->tile_rows > 1 || cpu_stride(loop->y, bytes) != bytes)
        return;
    if (has_tiles && tiles->n_tiles == 1)
        loop->pitch = room;
    if (loop->pitch > width)
        loop->codes.is_streamed = false;
    loop->n_beside = loop->pitch > width ? CPU_BLOCK / loop->pitch
                                         : 1 + (CPU_BLOCK - room) / width;
}

/* Steps take as long as some dozens of codes. */
static bool has_steps(const struct quantize_loop *loop)
{
    enum { NARROWEST = 64, WIDE = 1024 };
    const struct quantize_plan *plan = loop->plan;
    const struct code_tiles *tiles = &plan->tiles;
    const enum code_element element = loop->codes.element;
    const bool is_wide = plan->dynamic
                             ? plan->is_tensor || tiles->n_tiles == 1 ||
                                   tiles->tile_width >= NARROWEST
                             : loop->divisor >= 0x1p-60f;
    return loop->source->x && loop->rows->quantize->encode_type &&
           element != CODE_E2M1 && plan->rule.scale == CODE_SCALE_F32 &&
           is_wide && (tiles->width >= WIDE || tiles->width % NARROWEST == 0);
}

/* Words of a scale take as long as a dozen of its groups, and floats more. */
static bool has_groups(const struct quantize_loop *loop)
{
    enum { FEWEST = 3072, FEWEST_FLOATS = 8192 };
    const struct code_tiles *tiles = &loop->plan->tiles;
    const int32_t scale = loop->plan->rule.scale;
    return loop->rows->quantize->largest_groups &&
           (scale == CODE_SCALE_E8M0 ||
            (scale == CODE_SCALE_E4M3 &&
             tiles->n_rows * tiles->width >=
                 (has_words(loop) ? FEWEST : FEWEST_FLOATS)));
}

/* The codes of a part are made of what its largest values have brought into the
 * cache, so what comes then can be read meanwhile: of the part behind the next
 * one, as that is on its way, or of the next strip, where there is room. */
static int64_t bytes_ahead(const struct quantize_loop *loop)
{
    enum { MOST = 256 << 10 };
    const struct code_tiles *tiles = &loop->plan->tiles;
    const struct roped_tensor *x = loop->source->x;
    if (!x || loop->has_divisor || loop->plan->is_tensor)
        return 0;
    const int64_t bytes = (int64_t)roped_dtype_bytes(x->dtype);
    const int64_t row = bytes * cpu_stride(x, tiles->width);
    if (tiles->tile_rows > 1)
        return tiles->tile_rows * row <= 3 * MOST / 2 ? tiles->tile_rows * row
                                                      : 0;
    const int64_t block = bytes * CPU_BLOCK;
    return cpu_smaller(2 * (tiles->n_tiles == 1 && row > block ? row : block),
                       MOST);
}

static struct quantize_loop loop_of(const struct cpu_rows *rows,
                                    const struct code_target *to,
                                    const struct code_source *source)
{
    const struct code_rule *rule = &to->plan->rule;
    struct quantize_loop loop = {
        .rows = rows,
        .plan = to->plan,
        .source = source,
        .y = to->y,
        .scales = to->scales->data,
        .codes = {(enum code_element)rule->element,
                  rule->scale == CODE_SCALE_E4M3 ? rule->global_scale : 1,
                  rule->least_code, to->is_streamed},
        .divisor = to->plan->dequant_scale,
        .has_divisor = !to->plan->dynamic};
    place_beside(&loop);
    loop.has_steps = has_steps(&loop);
    loop.has_groups = has_groups(&loop);
    loop.codes.ahead = bytes_ahead(&loop);
    return loop;
}

void code_quantize_rows(const struct cpu_rows *rows,
                        const struct code_target *to,
                        const struct code_source *source, int64_t begin,
                        int64_t end, struct cpu_nibble_tables *tables)
{
    const struct quantize_loop loop = loop_of(rows, to, source);
    quantize_some(&loop, begin, end, tables);
}

void code_quantize(const struct quantize_plan *plan,
                   const struct code_source *source,
                   const struct roped_call *call, struct roped_queue *queue)
{
    const struct code_tiles *tiles = &plan->tiles;
    const struct roped_tensor *scales = &call->out[QUANTIZE_SCALES];
    const int64_t bytes = roped_call_bytes(call);
    const struct code_target to = {plan, &call->out[QUANTIZE_Y], scales,
                                   cpu_is_large(queue, bytes)};
    struct quantize_loop loop = loop_of(queue->backend->rows, &to, source);
    if (plan->is_tensor) {
        cpu_for(queue, bytes, tiles->n_rows, find_in_rows, &loop);
        const int32_t largest = loop.largest;
        store_scales(&loop, &largest, 1, 0, 0, &loop.divisor);
        loop.has_divisor = true;
    }
    if (plan->dynamic)
        code_clear_padding(tiles, scales);
    cpu_for(queue, bytes, cpu_ceil_div(tiles->n_rows, tiles->tile_rows),
            quantize_strips, &loop);
}

/* ------------------------------------------------------------------ sources */

struct quantize_rows {
    const struct cpu_rows *rows;
    const struct roped_tensor *x;
    int64_t stride;
};

static void load_rows(const void *of, int64_t row, int64_t first, int64_t n,
                      float *to)
{
    const struct quantize_rows *from = of;
    const enum roped_dtype dtype = from->x->dtype;
    from->rows->widen(dtype, to,
                      cpu_at(from->x->data, row * from->stride + first,
                             roped_dtype_bytes(dtype)),
                      n);
}

enum roped_status roped_cpu_quantize(const struct roped_call *call,
                                     struct roped_queue *queue,
                                     struct roped_error *err)
{
    const struct quantize_plan *plan = (const void *)call->plan;
    const struct roped_tensor *x = &call->in[QUANTIZE_X];
    const struct quantize_rows rows = {queue->backend->rows, x,
                                       cpu_stride(x, plan->tiles.width)};
    const struct code_source source = {load_rows, &rows, x, 0};
    (void)err;
    code_quantize(plan, &source, call, queue);
    return ROPED_OK;
}
