/*
 * test_ropectl_files.c - what ropectl writes for numpy and reads from it, and
 * what it finds wrong with a file before it calls.
 */
#include "check.h"
#include "http/command.h"
#include "http/service.h"

/* What numpy.save writes: 4 floats of a value, as 'shape' says. */
static void write_npy(const char *name, const char *shape, float value)
{
    char file[128 + 4 * sizeof(float)];
    float x[4] = {value, value, value, value};
    memset(file, ' ', 128);
    memcpy(file, "\x93NUMPY\1\0\x76\0", 10);
    int n = snprintf(file + 10, 118,
                     "{'descr': '<f4', 'fortran_order': False, "
                     "'shape': %s, }",
                     shape);
    file[10 + n] = ' ';
    file[127] = '\n';
    memcpy(file + 128, x, sizeof x);
    command_file(name, file, sizeof file);
}

TEST(npy_goes_in_and_comes_out)
{
    write_npy("x.npy", "(1, 4)", 3);
    write_npy("weight.npy", "(4,)", 5);
    write_npy("odd.npy", "(1, 4)", 2);
    command_expect("cat x.npy", 0, "\nx     F32    [1,4]  [3,3,3,3]");
    command_expect("run rmsnorm x.npy weight.npy --eps 0 -o y.npy", 0,
                   " [5,5,5,5]");
    command_expect("cat y.npy", 0, "\ny     F32    [1,4]  [5,5,5,5]");
    command_expect("cat - < y.npy", 0, " [5,5,5,5]");
    command_expect(
        "run rmsnorm x=odd.npy weight.npy --eps=0 -o y=out.npy -o out", 0,
        " [5,5,5,5]");
    command_expect("cat out.npy", 0, "[1,4]  [5,5,5,5]");
    command_expect("cat out", 0, "\ny     F32    [1,4]");
    command_expect("run rmsnorm odd.npy", 1,
                   "NAME=FILE.npy says which input it is");
    command_expect("run rmsnorm x.npy x=odd.npy", 1, "'x'");
    command_expect("run rmsnorm x.npy weight=x.npy", 1, "tensor 'weight'");
    command_expect(
        "run add_rmsnorm x.npy residual=odd.npy -o out.npy", 1,
        "2 outputs, and .npy has one: say which with -o NAME=out.npy");
    command_expect("regions put w weight.npy", 0, "\nshape   [4]\n");
    command_expect("regions get w out.npy", 0, "file   out.npy\n");
    command_expect("cat out.npy", 0, "\nout   F32    [4]");
    command_expect("regions zeros raw --bytes 40", 0, "\nbytes   40\n");
    command_expect("regions get raw out.npy", 1, "the region is plain bytes");
    command_expect("regions zeros narrow --dtype BF16 --shape 4", 0, "BF16");
    command_expect("regions get narrow out.npy", 1,
                   "tensor 'narrow' is BF16, and numpy has no such type");
    command_expect("regions get narrow out.npz", 1,
                   "cannot write 'out.npz': tensor 'narrow' is BF16");
    command_expect("regions delete w", 0, "");
    command_expect("regions delete raw", 0, "");
    command_expect("regions delete narrow", 0, "");
}

TEST(npz_goes_in_and_comes_out)
{
    write_npy("x.npy", "(1, 4)", 3);
    write_npy("weight.npy", "(4,)", 5);
    command_expect(
        "run add_rmsnorm x.npy residual=x.npy weight.npy --eps 0 -o out.npz", 0,
        " [5,5,5,5]");
    command_expect("cat out.npz", 0, "\nresidual  F32    [1,4]  [6,6,6,6]\n");
    command_expect("run rmsnorm out.npz", 1,
                   "'out.npz': unknown tensor 'y': rmsnorm takes x");
    command_expect("run add_rmsnorm x.npy residual=x.npy -o residual=x.npz", 0,
                   "[6,");
    command_expect("run rmsnorm x=x.npz --eps 0", 0, " [1,1,1,1]");
    command_expect("run rmsnorm x=out.npz", 1, "2 tensors, expected one, 'x'");
    command_expect("regions put w x.npz", 0, "\nshape   [1,4]\n");
    command_expect("regions put w out.npz", 1,
                   "'out.npz': 2 tensors, expected one");
    command_expect("regions get w x.npz", 0, "file   x.npz");
    command_expect("cat x.npz", 0, "\nw     F32    [1,4]  [6,6,6,6]\n");
    command_expect("regions delete w", 0, "");
    command_file("x.npz", "x.npy", 5);
    command_expect(
        "cat x.npz", 1,
        "'x.npz': begins with '78 2e 6e 70 79', expected '50 4b 03 04'");
    command_file("x.npy", "\x80PNG", 4);
    command_expect("cat x.npy", 1,
                   "'x.npy': begins with '80 50 4e 47', expected '93");
}

TEST(bits_are_written_where_they_are_asked_for)
{
    int64_t dims[2] = {1, 4};
    uint16_t x[4] = {0x3f80, 0x3f80, 0x3f80, 0x3f80};
    size_t bytes;
    struct tensor_file file = {0};
    file_add(&file, "x", ROPED_BF16, 2, dims, x);
    unsigned char *body = file_write(&file, &bytes);
    command_file("x.safetensors", body, bytes);
    free(body);
    command_expect("run rmsnorm x.safetensors --eps 0 -o out.npy", 1,
                   "tensor 'y' is BF16, and numpy has no such type: write a "
                   "safetensors file, or its bits with --bf16 u16");
    command_expect("run rmsnorm x.safetensors --eps 0 --bf16 u16 -o out.npy", 0,
                   "\n  y     U16    [1,4]  [16256,16256,16256,16256]");
    command_expect("cat out.npy", 0, "\nout   U16    [1,4]  [16256,");
    command_expect("run rmsnorm x=out.npy --eps 0", 1,
                   "tensor 'x': U16, expected F32");
    command_expect("run rmsnorm x=out.npy --eps 0 --dtype.x BF16", 0,
                   "\n  y     BF16   [1,4]  [1,1,1,1]");
    command_expect("verify rmsnorm x=out.npy --dtype.x=BF16", 0, "within  yes");
    command_expect("run rmsnorm x=out.npy --dtype.x F8_E4M3", 1,
                   "tensor 'x' is U16, expected U8, the bits of F8_E4M3");
    command_expect("run rmsnorm x=out.npy --dtype.x F32", 1,
                   "--dtype.x is F32, expected BF16, F8_E4M3 or F8_E5M2");
    command_expect("run rmsnorm x=out.npy --dtype.x", 2,
                   "parameter 'dtype.x' has no value");
    command_expect("regions zeros raw --bytes 8", 0, "8");
    command_expect("run rmsnorm --from.x raw --dtype.x BF16 --shape.x 1,4", 0,
                   "\n  y     BF16   [1,4]  [0,0,0,0]"); /* the region's */
    command_expect("regions delete raw", 0, "");
    command_expect("run rmsnorm x.safetensors --bf16 u8", 2,
                   "'u8', expected u16");
}

/* Nobody listens there: a call that was sent would end with 4. */
#define NOBODY "--server http://127.0.0.1:1 "

TEST(outputs_are_checked_before_the_call)
{
    static const char endings[] =
        "expected .safetensors (or no ending), .npz or .npy";
    write_npy("x.npy", "(1, 4)", 3);
    write_npy("weight.npy", "(4,)", 5);
    command_expect(NOBODY "run rmsnorm x.npy -o y.pt", 1,
                   "cannot write 'y.pt': no format is called '.pt'");
    command_expect(NOBODY "run rmsnorm x.npy -o y.pt", 1, endings);
    command_expect(NOBODY "run rmsnorm x.npy -o y=y.NPY", 1, endings);
    command_expect(NOBODY "verify rmsnorm x.npy -o y.bin", 1, endings);
    command_expect(NOBODY "run rmsnorm --from.x r -o y.pt", 1, endings);
    command_expect(NOBODY "program run p x.npy -o y.pt", 1, endings);
    command_expect("sample rmsnorm h=4 -o x.pt", 1, endings);
    command_expect(NOBODY "run rmsnorm x.npy -o none/y.npy", 1,
                   "cannot write 'none/y.npy': No such file or directory");
    command_expect(NOBODY "run rmsnorm x.npy -o /", 1, "Is a directory");
    command_expect(
        NOBODY "run add_rmsnorm x.npy residual=x.npy -o out.npy", 1,
        "2 outputs, and .npy has one: say which with -o NAME=out.npy");
    command_expect("sample rope n=4 -o qk.npz", 0, "first_values");
    command_expect(NOBODY "run rope qk.npz --table t -o out.npy", 1,
                   "2 outputs, and .npy has one");
    command_expect(NOBODY "run rmsnorm x.npy --into.y r -o y=y.npy", 1,
                   "cannot write 'y.npy': no 'y' comes back");
    command_expect(NOBODY "run rmsnorm_quantize x.npy --dynamic true -o y.npy",
                   1, "outputs, and .npy has one");
    command_expect(NOBODY "run rmsnorm_quantize x.npy -o y=y.npy", 1,
                   "is F8_E4M3, and numpy has no such type");
    command_expect(NOBODY "run rmsnorm_quantize x.npy -o y=y.npy --fp8 u8", 4,
                   "could not connect");
    /* what is right is sent */
    command_expect(NOBODY "run rmsnorm x.npy -o y.npy", 4, "could not connect");
    command_expect(NOBODY "run rmsnorm x.npy -o ./y", 4, "could not connect");
    command_expect(NOBODY "run rmsnorm x.npy -o /dev/null", 4,
                   "could not connect");
    command_expect(NOBODY "program run p x.npy -o y.safetensors", 4,
                   "could not connect");
    command_expect("run rmsnorm x.npy -o", 2, "'-o' has no file");
    command_expect("sample rmsnorm -o", 2, "'-o' has no file");
    command_expect("program run p -o", 2, "'-o' has no file");
}

int main(void)
{
    command_start();
    check_run();
    command_end();
    return check_done();
}
