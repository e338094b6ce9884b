/*
 * test_npy.c - .npy files: those that numpy writes are read, what is written is
 * what numpy would write, and everything else is refused by name.
 */
#include "npy.h"

#include "check.h"

/* A file of this version, header text and bytes of data; its size. */
static size_t make(unsigned char *file, int version, const char *header,
                   size_t data_bytes)
{
    size_t length = strlen(header), at = version == 1 ? 10 : 12;
    memcpy(file, "\x93NUMPY", 6);
    file[6] = (unsigned char)version;
    memset(file + 7, 0, 5);
    file[8] = (unsigned char)(length & 255);
    file[9] = (unsigned char)(length >> 8);
    memcpy(file + at, header, length);
    memset(file + at + length, 1, data_bytes);
    return at + length + data_bytes;
}

static struct roped_tensor expect_read(int version, const char *header,
                                       size_t data_bytes)
{
    static unsigned char file[1024];
    struct roped_tensor tensor = {.rank = -1};
    struct roped_error err;
    size_t bytes = make(file, version, header, data_bytes);
    CHECK(npy_is(file, bytes));
    CHECK_OK(npy_read(file, bytes, &tensor, &err), &err);
    CHECK(tensor.data == file + bytes - data_bytes);
    return tensor;
}

static void expect_refused(int version, const char *header, size_t data_bytes,
                           const char *part)
{
    static unsigned char file[1024];
    struct roped_tensor tensor;
    struct roped_error err = {.text = ""};
    size_t bytes = make(file, version, header, data_bytes);
    if (npy_read(file, bytes, &tensor, &err) == ROPED_OK ||
        !strstr(err.text, part))
        CHECK_FAIL("%s: '%s', expected '%s'", header, err.text, part);
}

TEST(what_numpy_writes_is_read)
{
    struct roped_tensor t = expect_read(
        1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }  \n",
        24);
    CHECK_INT(t.dtype, ROPED_F32);
    CHECK_INT(t.rank, 2);
    CHECK_INT(t.dims[0], 2);
    CHECK_INT(t.dims[1], 3);
    t = expect_read(
        2, "{'descr': '|b1', 'fortran_order': True, 'shape': (3,), }\n", 3);
    CHECK_INT(t.dtype, ROPED_BOOL);
    CHECK_INT(t.dims[0], 3);
    t = expect_read(1, "{'shape': (), 'descr': '<i8', 'fortran_order': False}",
                    8);
    CHECK_INT(t.dtype, ROPED_I64);
    CHECK_INT(t.rank, 0);
    t = expect_read(
        1, "{'descr': '<f2', 'fortran_order': False, 'shape': (4, 0), }", 0);
    CHECK_INT(t.dtype, ROPED_F16);
    CHECK_INT(t.dims[1], 0);
}

#define SHAPE(type, shape)                                                     \
    "{'descr': '" type "', 'fortran_order': False, 'shape': " shape ", }"

TEST(what_cannot_be_a_tensor_is_refused)
{
    expect_refused(1, SHAPE(">f4", "(2,)"), 8, "'>f4' is big-endian");
    expect_refused(1, SHAPE("|V2", "(2,)"), 4,
                   "'|V2', as BF16 and FP8 of ml_dtypes are saved");
    expect_refused(1, SHAPE("|O", "(2,)"), 16,
                   "'|O' (Python objects), expected a number");
    expect_refused(1, "{'descr': [('a', '<f4')], 'shape': (2,), }", 8,
                   "header is \"{'descr': [('a', '<f4')]");
    expect_refused(1, SHAPE("<c8", "(2,)"), 16, "'<c8', expected a number");
    expect_refused(1, SHAPE("<f4", "(2,)"), 7, "7 bytes of data, expected 8");
    expect_refused(1, SHAPE("<f4", "(2,)"), 9, "9 bytes of data, expected 8");
    expect_refused(1, SHAPE("<f4", "(1,1,1,1,1,1,1,1,1)"), 4, "over 8 dims");
    expect_refused(1, SHAPE("<f4", "(1,1,1,1,1,1,1,1,1,1,1)"), 4,
                   "expected a dictionary of");
    expect_refused(1, SHAPE("<f4", "(9223372036854775807,9)"), 4,
                   "expected a dictionary of");
    expect_refused(1, SHAPE("<f4", "(4294967296,4294967296)"), 4, ".npy");
    expect_refused(1, SHAPE("<f4", "(-1,)"), 4, "expected a dictionary of");
    expect_refused(1, SHAPE("<f4", "2"), 8, "expected a dictionary of");
    expect_refused(1, SHAPE("<f4", "(2,)") "x", 8, "expected a dictionary of");
    expect_refused(1, "{'descr': '<f4', 'shape': (2,), }", 8,
                   "expected a dictionary of");
    expect_refused(1,
                   "{'descr': '<f4', 'fortran_order': True, 'shape': (2, 1), }",
                   8, "Fortran order");
    expect_refused(3, SHAPE("<f4", "(2,)"), 8, "version 3.0");
}

TEST(what_is_cut_off_is_refused)
{
    static unsigned char file[1024];
    struct roped_tensor tensor;
    struct roped_error err;
    size_t whole = make(file, 1, SHAPE("<f4", "(2, 3)"), 24);
    CHECK_OK(npy_read(file, whole, &tensor, &err), &err);
    for (size_t bytes = 0; bytes < whole; bytes++) {
        unsigned char *part =
            malloc(bytes ? bytes : 1); /* ends where it ends */
        memcpy(part, file, bytes);
        CHECK(npy_read(part, bytes, &tensor, &err) != ROPED_OK);
        free(part);
    }
}

/* Any byte may be any other: an error, or a tensor that is in the file. */
TEST(what_is_changed_is_refused_or_harmless)
{
    static unsigned char file[1024];
    struct roped_tensor tensor;
    struct roped_error err;
    size_t whole = make(file, 1, SHAPE("<f4", "(2, 3)"), 24);
    int n_refused = 0, n_read = 0;
    for (size_t i = 0; i < whole - 24; i++)
        for (int flip = 1; flip < 256; flip++) {
            file[i] = (unsigned char)(file[i] ^ flip);
            if (npy_read(file, whole, &tensor, &err)) {
                n_refused++;
                CHECK(strncmp(err.text, ".npy: ", 6) == 0);
            } else {
                n_read++;
                CHECK(roped_tensor_bytes(&tensor) == 24 &&
                      tensor.data == file + whole - 24);
            }
            file[i] = (unsigned char)(file[i] ^ flip);
        }
    CHECK(n_refused > 100 * n_read && n_read > 0);
}

TEST(what_is_written_is_numpys)
{
    static const char expected[] =
        "\x93NUMPY\1\0\x76\0{'descr': '<f4', 'fortran_order': False, "
        "'shape': (2, 3), }";
    struct roped_tensor tensor = {ROPED_F32, 2, {2, 3}, NULL}, back;
    struct roped_error err;
    char header[NPY_HEADER_BYTES + 24] = "";
    size_t bytes;
    CHECK_OK(npy_write_header("y", &tensor, header, &bytes, &err), &err);
    CHECK_INT(bytes, 128);
    CHECK(memcmp(header, expected, sizeof expected - 1) == 0);
    CHECK_INT(header[127], '\n');
    CHECK_OK(npy_read(header, bytes + 24, &back, &err), &err);
    CHECK_INT(back.dims[1], 3);
    tensor = (struct roped_tensor){ROPED_U8, 8, {1, 1, 1, 1, 1, 1, 1, 1}, NULL};
    for (int i = 1; i < 8; i++)
        tensor.dims[i] = INT64_MAX; /* the longest header there can be */
    CHECK_OK(npy_write_header("y", &tensor, header, &bytes, &err), &err);
    CHECK_INT(bytes % 64, 0);
}

TEST(bf16_and_fp8_are_not_written)
{
    static const enum roped_dtype types[] = {ROPED_BF16, ROPED_F8_E4M3,
                                             ROPED_F8_E5M2};
    char header[NPY_HEADER_BYTES], part[64];
    size_t bytes;
    for (int i = 0; i < 3; i++) {
        struct roped_tensor tensor = {types[i], 1, {2}, NULL};
        struct roped_error err = {.text = ""};
        CHECK_INT(npy_write_header("y", &tensor, header, &bytes, &err),
                  ROPED_UNSUPPORTED);
        snprintf(part, sizeof part, "'y' is %s, and numpy has no such type",
                 roped_dtype_name(types[i]));
        CHECK_CONTAINS(err.text, part);
    }
}
