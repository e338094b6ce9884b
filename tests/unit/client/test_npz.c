/*
 * test_npz.c - archives of .npy files: what is written is read again, deflated
 * entries and zip64's sizes too, and what is cut off, changed or lies is
 * refused by name.
 */
#include "npy.h"
#include "npz.h"

#include "check.h"

#include <zlib.h>

enum { MOST = 4096 };

static float x[2][3] = {{1, 2, 3}, {4, 5, 6}};
static int32_t positions[4] = {7, 8, 9, 10};

/* An archive of x and positions. */
static size_t make(unsigned char *out)
{
    const struct roped_client_tensor tensors[] = {
        {"x", {ROPED_F32, 2, {2, 3}, x}},
        {"positions", {ROPED_I32, 1, {4}, positions}}};
    struct roped_error err;
    void *file;
    size_t bytes = 0;
    CHECK_OK(npz_write(tensors, 2, &file, &bytes, &err), &err);
    CHECK(bytes <= MOST);
    memcpy(out, file, bytes);
    free(file);
    return bytes;
}

/* Reads a copy that ends where it ends, so that a byte more is found out. */
static enum roped_status read_copy(const unsigned char *file, size_t bytes,
                                   struct npz *npz, struct roped_error *err)
{
    unsigned char *copy = malloc(bytes ? bytes : 1);
    memcpy(copy, file, bytes);
    enum roped_status status = npz_read(copy, bytes, npz, err);
    free(copy);
    return status;
}

static void expect_x(const unsigned char *file, size_t bytes)
{
    struct npz npz;
    struct roped_error err;
    CHECK_OK(read_copy(file, bytes, &npz, &err), &err);
    CHECK(npz.n >= 1);
    CHECK(strcmp(npz.array[0].name, "x") == 0);
    CHECK_INT(npz.array[0].tensor.dtype, ROPED_F32);
    CHECK_INT(npz.array[0].tensor.dims[1], 3);
    CHECK(memcmp(npz.array[0].tensor.data, x, sizeof x) == 0);
    npz_free(&npz);
}

static void expect_refused(const unsigned char *file, size_t bytes,
                           const char *part)
{
    struct npz npz;
    struct roped_error err = {.text = ""};
    enum roped_status status = read_copy(file, bytes, &npz, &err);
    npz_free(&npz);
    if (!status || !strstr(err.text, part))
        CHECK_FAIL("'%s', expected '%s'", err.text, part);
}

TEST(what_is_written_is_read)
{
    unsigned char file[MOST];
    struct npz npz;
    struct roped_error err;
    size_t bytes = make(file);
    CHECK(npz_is(file, bytes));
    expect_x(file, bytes);
    CHECK_OK(npz_read(file, bytes, &npz, &err), &err);
    CHECK_INT(npz.n, 2);
    CHECK(strcmp(npz.array[1].name, "positions") == 0);
    CHECK_INT(npz.array[1].tensor.dtype, ROPED_I32);
    CHECK(memcmp(npz.array[1].tensor.data, positions, sizeof positions) == 0);
    npz_free(&npz);
}

static void put(unsigned char *at, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++, value >>= 8)
        at[i] = (unsigned char)value;
}

/* What an entry says of itself, in the directory. */
struct claim {
    int flags, method;
    uint64_t packed, size;
    int extra; /* bytes of a zip64 field that has the sizes, or 0 */
};

/* One entry of these bytes, named x.npy, with these claims. */
static size_t make_entry(unsigned char *out, const void *data, size_t bytes,
                         uint32_t crc, const struct claim *claim)
{
    memset(out, 0, MOST);
    put(out, 0x04034b50, 4);
    put(out + 26, 5, 2);
    memcpy(out + 30, "x.npy", 5);
    memcpy(out + 35, data, bytes);
    unsigned char *entry = out + 35 + bytes;
    size_t entry_bytes = 51 + (size_t)claim->extra;
    put(entry, 0x02014b50, 4);
    put(entry + 8, (uint64_t)claim->flags, 2);
    put(entry + 10, (uint64_t)claim->method, 2);
    put(entry + 16, crc, 4);
    put(entry + 20, claim->extra ? UINT32_MAX : claim->packed, 4);
    put(entry + 24, claim->extra ? UINT32_MAX : claim->size, 4);
    put(entry + 28, 5, 2);
    put(entry + 30, (uint64_t)claim->extra, 2);
    memcpy(entry + 46, "x.npy", 5);
    if (claim->extra) {
        put(entry + 51, 1, 2);
        put(entry + 53, (uint64_t)claim->extra - 4, 2);
        put(entry + 55, claim->size, 8);
        if (claim->extra >= 20)
            put(entry + 63, claim->packed, 8);
    }
    unsigned char *end = entry + entry_bytes;
    put(end, 0x06054b50, 4);
    put(end + 8, 1, 2);
    put(end + 10, 1, 2);
    put(end + 12, entry_bytes, 4);
    put(end + 16, (uint64_t)(entry - out), 4);
    return (size_t)(end + 22 - out);
}

/* The .npy file of x, and its CRC. */
static size_t make_npy(unsigned char *npy, uint32_t *crc)
{
    struct roped_tensor tensor = {ROPED_F32, 2, {2, 3}, x};
    struct roped_error err;
    size_t bytes = 0;
    CHECK_OK(npy_write_header("x", &tensor, (char *)npy, &bytes, &err), &err);
    memcpy(npy + bytes, x, sizeof x);
    bytes += sizeof x;
    *crc = (uint32_t)crc32(0, npy, (uInt)bytes);
    return bytes;
}

/* Raw deflate, as zip has it. */
static size_t pack(const unsigned char *data, size_t bytes, unsigned char *out)
{
    z_stream stream = {.next_in = (Bytef *)data,
                       .avail_in = (uInt)bytes,
                       .next_out = out,
                       .avail_out = MOST};
    CHECK(deflateInit2(&stream, 9, Z_DEFLATED, -MAX_WBITS, 8,
                       Z_DEFAULT_STRATEGY) == Z_OK);
    CHECK(deflate(&stream, Z_FINISH) == Z_STREAM_END);
    deflateEnd(&stream);
    return stream.total_out;
}

TEST(deflated_entries_are_read)
{
    unsigned char npy[1024], packed[MOST], file[MOST];
    uint32_t crc;
    size_t bytes = make_npy(npy, &crc), n = pack(npy, bytes, packed);
    struct claim claim = {.method = 8, .packed = n, .size = bytes};
    CHECK(n < bytes);
    expect_x(file, make_entry(file, packed, n, crc, &claim));
    claim.extra = 20; /* both sizes in zip64's field */
    expect_x(file, make_entry(file, packed, n, crc, &claim));
    claim.extra = 12; /* one of them */
    expect_refused(file, make_entry(file, packed, n, crc, &claim),
                   "an entry has no sizes");
}

TEST(what_lies_is_refused)
{
    unsigned char npy[1024], packed[MOST], file[MOST];
    uint32_t crc;
    size_t bytes = make_npy(npy, &crc), n = pack(npy, bytes, packed);
    struct claim claim = {.method = 8, .packed = n, .size = bytes + 1};
    expect_refused(file, make_entry(file, packed, n, crc, &claim),
                   "entry 'x.npy': ");
    claim.size = bytes - 1;
    expect_refused(file, make_entry(file, packed, n, crc, &claim),
                   "then break off, expected");
    claim.size = bytes;
    claim.packed = n - 1;
    expect_refused(file, make_entry(file, packed, n, crc, &claim),
                   "then break off, expected");
    claim.packed = MOST;
    expect_refused(file, make_entry(file, packed, n, crc, &claim),
                   "4096 bytes, and the file ends before");
    claim.packed = n;
    claim.size = UINT32_MAX - 1; /* a bomb, or a lie */
    expect_refused(file, make_entry(file, packed, n, crc, &claim),
                   "size is 4294967294, and ");
    claim.size = bytes;
    expect_refused(file, make_entry(file, packed, n, crc + 1, &claim),
                   "CRC is ");
    claim.flags = 1;
    expect_refused(file, make_entry(file, packed, n, crc, &claim),
                   "entry 'x.npy': is encrypted");
    claim = (struct claim){.method = 12, .packed = n, .size = bytes};
    expect_refused(file, make_entry(file, packed, n, crc, &claim),
                   "by method 12, expected 0 (stored) or 8 (deflated)");
    claim = (struct claim){.packed = bytes, .size = bytes + 9};
    expect_refused(file, make_entry(file, npy, bytes, crc, &claim), "size is ");
    memcpy(npy, "NUMPY!", 6);
    claim.size = bytes;
    crc = (uint32_t)crc32(0, npy, (uInt)bytes);
    expect_refused(file, make_entry(file, npy, bytes, crc, &claim),
                   "entry 'x.npy': .npy: does not begin with '93 4e");
}

TEST(names_are_those_of_arrays)
{
    unsigned char file[MOST];
    size_t bytes = make(file);
    for (size_t i = bytes - 200; i < bytes; i++)
        if (memcmp(file + i, "positions.npy", 13) == 0)
            memcpy(file + i, "positions.txt", 13);
    expect_refused(file, bytes, "entry 'positions.txt', expected a name of");
}

TEST(what_is_cut_off_is_refused)
{
    unsigned char file[MOST];
    size_t bytes = make(file);
    for (size_t n = 0; n < bytes; n++)
        expect_refused(file, n, "no directory at the end");
    expect_refused(file + 1, bytes - 1, ".npz: ");
}

/* Any byte may be any other: an error, or arrays that are whole. */
TEST(what_is_changed_is_refused_or_harmless)
{
    unsigned char npy[1024], packed[MOST], file[MOST];
    uint32_t crc;
    size_t n = pack(npy, make_npy(npy, &crc), packed);
    struct claim claim = {.method = 8, .packed = n, .size = 152, .extra = 20};
    size_t bytes = make_entry(file, packed, n, crc, &claim);
    expect_x(file, bytes);
    int n_refused = 0;
    for (size_t i = 0; i < bytes; i++)
        for (int flip = 1; flip < 256; flip++) {
            struct npz npz;
            struct roped_error err;
            file[i] = (unsigned char)(file[i] ^ flip);
            if (read_copy(file, bytes, &npz, &err))
                n_refused++;
            else if (npz.n)
                CHECK(memcmp(npz.array[0].tensor.data, x, sizeof x) == 0);
            npz_free(&npz);
            file[i] = (unsigned char)(file[i] ^ flip);
        }
    CHECK(n_refused > (int)bytes * 100);
}

TEST(types_that_numpy_lacks_are_not_written)
{
    struct roped_client_tensor tensor = {"k", {ROPED_BF16, 1, {2}, x}};
    struct roped_error err = {.text = ""};
    void *file;
    size_t bytes;
    CHECK_INT(npz_write(&tensor, 1, &file, &bytes, &err), ROPED_UNSUPPORTED);
    CHECK_CONTAINS(err.text, "tensor 'k' is BF16, and numpy has no such type");
    tensor.tensor.dtype = ROPED_F8_E4M3;
    CHECK_INT(npz_write(&tensor, 1, &file, &bytes, &err), ROPED_UNSUPPORTED);
    CHECK_CONTAINS(err.text, "or its bits with --fp8 u8");
}

TEST(names_stay_in_the_folder)
{
    static const char *const outside[] = {"../x", "..",    "a/../../x", "a/..",
                                          "/x",   "..\\x", "a\\..\\x",  "\\x"};
    static const char *const inside[] = {"x",   "a/x",    "..x",
                                         "x..", "a..b/x", "..."};
    struct roped_client_tensor tensor = {
        NULL, {.dtype = ROPED_F32, .rank = 1, .dims = {1}, .data = x}};
    struct roped_error err;
    size_t bytes;
    void *file;
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++) {
        tensor.name = outside[i];
        CHECK_INT(npz_write(&tensor, 1, &file, &bytes, &err), ROPED_INVALID);
        CHECK_CONTAINS(err.text, "leads out of the folder");
    }
    for (size_t i = 0; i < sizeof inside / sizeof *inside; i++) {
        tensor.name = inside[i];
        CHECK_OK(npz_write(&tensor, 1, &file, &bytes, &err), &err);
        free(file);
    }
}
