/*
 * main.c - ropectl, the command line of roped: finds the command and runs it.
 */
#include "ropectl.h"

#include "io.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const struct command commands[] = {
    {"ops", command_ops, "", "the operators",
     "Lists the operators that ropectl was built with.\n"},
    {"describe", command_describe, "OP",
     "tensors, parameters and rules of one operator",
     "Prints what an operator takes and returns: tensors with their types and\n"
     "symbolic shapes (one per form), parameters with default, range and\n"
     "meaning, and the rule that shapes cannot say.\n"},
    {"model", command_model, "CONFIG.JSON",
     "which operators and parameters a model needs",
     "Reads a Hugging Face config.json and prints the rotary tables that are\n"
     "made from it, the operators and parameters for each part of a layer, "
     "and\n"
     "calls to copy. No server is asked. Of a model that is not known it says\n"
     "so: its angles exit with 1, its norms stand there as not known.\n"},
    {"sample", command_sample,
     "OP [SYMBOL=SIZE ...] -o FILE [--dtype f32] [--without NAME,NAME] "
     "[--NAME VALUE ...]",
     "a file of inputs that it takes, to try it with",
     "Makes the operator's tensors: random floats, and index tensors that "
     "count,\n"
     "so that they are positions, slots and pages. No server is asked.\n"
     "\n"
     "  SYMBOL=SIZE         a dimension, as in 'ropectl describe OP': n=512;\n"
     "                      several for '...rows': rows=8,128. An optional\n"
     "                      input is made where all its dimensions have a "
     "size\n"
     "  -o FILE             safetensors, .npz, or .npy, where it is one "
     "tensor;\n"
     "                      '-': standard output\n"
     "  --dtype f32|f16|bf16\n"
     "                      default f32\n"
     "  --without NAME,NAME\n"
     "                      not these: they will be in regions\n"
     "  --NAME VALUE        a parameter that the call will have: some say "
     "which\n"
     "                      tensors there are\n"},
    {"run", command_run,
     "OP [[NAME=]FILE ...] [-o [NAME=]FILE ...] [--NAME VALUE ...]",
     "call it, from files to files",
     "Sends the tensors of files and prints those that come back, and where\n"
     "the time went. The tensors are checked before they are sent.\n"
     "\n"
     "  FILE                inputs: a safetensors or .npz file, whose tensors\n"
     "                      have names, or a .npy file, called like its input\n"
     "                      (x.npy); '-': standard input. Left out where all\n"
     "                      inputs are in regions\n"
     "  NAME=FILE           the only tensor of a file is this input\n"
     "  [NAME=]@REGION[:OFFSET]\n"
     "                      in the place of a FILE, here and behind -o: this\n"
     "                      tensor stays in a region of the server, as with\n"
     "                      --from and --into; without NAME it is called like\n"
     "                      the region\n"
     "  -o FILE             where the outputs go: .safetensors, or no ending;\n"
     "                      .npz; or .npy, where one comes back; '-': "
     "standard\n"
     "                      output, and the report goes to standard error\n"
     "  -o NAME=FILE        this output alone; may stand more than once\n"
     "  --NAME VALUE, --NAME=VALUE\n"
     "                      a parameter of the operator (ropectl describe OP)\n"
     "  --table NAME        a rotary table of the server\n"
     "  --from.INPUT NAME[:OFFSET], --into.OUTPUT NAME[:OFFSET]\n"
     "                      this tensor stays in a region of the server, "
     "OFFSET\n"
     "                      bytes from its start\n"
     "  --dtype.INPUT TYPE, --shape.INPUT DIM,DIM\n"
     "                      what the region does not say of it\n"
     "  --stride.INPUT N, --into_stride.OUTPUT N\n"
     "                      elements from one token to the next there, where\n"
     "                      it is a slice of wider rows\n"
     "  --dtype.INPUT BF16  the bits of this .npy or .npz array (U16 of BF16,\n"
     "                      U8 of F8_E4M3 and F8_E5M2) are of that type\n"
     "  --fp8 u8, --bf16 u16\n"
     "                      name FP8 outputs U8, BF16 outputs U16: the same\n"
     "                      bits, for readers without these types\n"
     "\n"
     ".npy and .npz files are little-endian and in C order. numpy has no BF16\n"
     "and no FP8: those go through safetensors files, or as bits.\n"},
    {"verify", command_verify,
     "OP [[NAME=]FILE ...] [-o [NAME=]FILE ...] [--NAME VALUE ...]",
     "call it, and compare with the CPU of this machine",
     "Takes what 'run' takes, computes the same here on the CPU, and prints "
     "for\n"
     "each output how many elements differ, and of the element that is "
     "farthest\n"
     "off by its tolerance: difference, tolerance, index, value got from the\n"
     "server and value expected. FP8 is counted in codes. Exit status 7 where "
     "a\n"
     "difference is over the tolerance.\n"
     "\n"
     "Each side may be off by what the operators promise, so two results may "
     "be\n"
     "twice that apart:\n"
     "  F32                 1e-6 of the row's largest magnitude; of a sum's\n"
     "                      terms\n"
     "  F16, BF16           one unit in the last place, and that\n"
     "  FP8                 the next code, for one code in 1,000, and one "
     "more\n"
     "\n"
     "  -o FILE, --NAME VALUE, --table NAME, --fp8 u8, --bf16 u16\n"
     "                      as of 'run'\n"
     "  --from.INPUT NAME   a whole region, which is fetched; the call "
     "updates\n"
     "                      caches there\n"},
    {"bench", command_bench,
     "OP [SYMBOL=SIZE ...] [--dtype bf16] [--seconds 3] [--connections 1] "
     "[--NAME VALUE ...]",
     "call it again and again with made-up tensors",
     "Makes the operator's tensors, calls without pause and prints latency,\n"
     "rate and the phases inside the server.\n"
     "\n"
     "  SYMBOL=SIZE         a dimension, as in 'ropectl describe OP': n=512;\n"
     "                      several for '...rows': rows=8,128. An optional\n"
     "                      input is sent where all its dimensions have a "
     "size\n"
     "  --dtype f32|f16|bf16\n"
     "                      default bf16\n"
     "  --seconds 3         for how many seconds\n"
     "  --connections 1     connections, with one call at a time each: 1 to "
     "256\n"
     "  --NAME VALUE        a parameter of the operator\n"},
    {"tables", command_tables,
     "[list | put NAME FILE [--style STYLE] | get NAME | delete NAME]",
     "rotary tables of the server",
     "A table is a set of rope parameters under a name, for --table NAME.\n"
     "\n"
     "  list                all of them (what no verb means)\n"
     "  put NAME FILE       makes or replaces one: rope parameters as JSON, "
     "or\n"
     "                      a Hugging Face config.json as it is; '-': "
     "standard\n"
     "                      input. --style neox or gptj says which elements\n"
     "                      of a head pair, where the model is not known or\n"
     "                      something else is wanted\n"
     "  get NAME            its parameters\n"
     "  delete NAME         forgets it\n"},
    {"program", command_program,
     "[list | put NAME FILE | run NAME [FILE ...] [-o FILE] [--NAME VALUE ...] "
     "| bench NAME [FILE ...] [--NAME VALUE ...] | describe NAME | get NAME | "
     "delete NAME]",
     "chains of operators that run in one request",
     "A program is a JSON document on the server that says which operators "
     "run\n"
     "one after another, and on what (client/PROGRAMS.md).\n"
     "\n"
     "  list                all of them (what no verb means)\n"
     "  put NAME FILE       makes or replaces one; '-': standard input\n"
     "  run NAME FILE ...   its inputs from files, as of 'ropectl run':\n"
     "                      safetensors, .npz, or NAME=FILE.npy;\n"
     "                      NAME=@REGION[:OFFSET] is one that the server "
     "keeps\n"
     "      -o FILE         its outputs: safetensors, .npz or .npy\n"
     "      --into.OUTPUT REGION[:OFFSET]\n"
     "                      this output stays there\n"
     "      --NAME VALUE    a parameter of the program\n"
     "      --timing steps  the time of each step, in microseconds; the steps\n"
     "                      run one by one\n"
     "  bench NAME FILE ... runs it again and again, with inputs as of 'run',\n"
     "                      and prints latency, rate and the phases inside "
     "the\n"
     "                      server\n"
     "      --seconds 3     for how many seconds\n"
     "      --connections 1 connections, with one run at a time each: 1 to "
     "256\n"
     "  describe NAME       its inputs, outputs, parameters and regions\n"
     "  get NAME            its document\n"
     "  delete NAME         forgets it\n"},
    {"regions", command_regions,
     "[list | put NAME FILE | zeros NAME SIZE | get NAME FILE | delete NAME]",
     "memory that stays on the server",
     "A region is memory of the device under a name: weights, caches, "
     "results.\n"
     "'ropectl run' uses it with --from.INPUT NAME and --into.OUTPUT NAME.\n"
     "\n"
     "  list                all of them (what no verb means)\n"
     "  put NAME FILE       makes or replaces one: a safetensors file of one\n"
     "                      tensor, .npz of one, or .npy; '-': standard input\n"
     "      --device N      on this device, numbered from 0; spread: on the "
     "one\n"
     "                      with the most region memory left\n"
     "  zeros NAME --bytes N\n"
     "  zeros NAME --dtype BF16 --shape 4096,8,128\n"
     "                      makes or replaces one, and sends nothing\n"
     "  get NAME FILE       writes it: a safetensors file where it is a "
     "tensor,\n"
     "                      .npy or .npz where FILE ends so, else its bytes;\n"
     "                      '-': standard output\n"
     "  delete NAME         forgets it\n"},
    {"status", command_status, "", "is it ready, on what, what has it done",
     "Prints health, device, lanes, memory and the calls of every operator.\n"
     "Exit status 1 where the server says that it is not ready.\n"},
    {"top", command_top, "[--interval 1] [--count N]",
     "what it does now, again and again",
     "Shows calls a second, latency by operator, lanes, memory and regions "
     "since\n"
     "the last look, from the server's metrics. On a terminal each look "
     "replaces\n"
     "the one before, until Ctrl-C; elsewhere, and with --output json, each "
     "is\n"
     "printed. A server that was started again, or cannot be reached, is said\n"
     "so, and asked again.\n"
     "\n"
     "  --interval 1        seconds between looks\n"
     "  --count N           ends after N looks\n"
     "\n"
     "On a terminal q ends it, the arrows choose the column that operators "
     "are\n"
     "sorted by, and so do c (calls), e (errors), n (name), 5, 9 and p (p50, "
     "p90,\n"
     "p99) and k (kernel).\n"
     "\n"
     "p50, p90 and p99 come from a histogram: they are as exact as its "
     "buckets.\n"},
    {"cat", command_cat, "FILE | @REGION",
     "tensors of a file or region: names, shapes, first values",
     "Prints name, type, shape and first values of each tensor of a\n"
     "safetensors, .npz or .npy file, or of what a region of the server has.\n"
     "'-' is standard input.\n"},
    {"token", command_token,
     "new NAME [--scopes call,regions] [--quota bytes=1g,names=100]",
     "a bearer token for somebody, and the daemon's line for it",
     "Prints a random token, for its owner's --token-file, and a line for the\n"
     "daemon's bearer_token_file, which holds the token's SHA-256 and not the\n"
     "token. The daemon reads the file again on SIGHUP.\n"
     "\n"
     "  NAME                whose it is: what the log says, and whose regions\n"
     "                      and tables are made with it\n"
     "  --scopes call       what it may do: call, regions, tables,\n"
     "                      programs, shm, metrics, admin (all of it); ',' "
     "between several\n"
     "  --quota bytes=1g,names=100\n"
     "                      most that its regions take, and most regions,\n"
     "                      tables and programs; without it there is no "
     "limit\n"},
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static const char options_help[] =
    "options, anywhere on the line:\n"
    "  --server URL       default $ROPED_URL, or http://127.0.0.1:8000;\n"
    "                     unix:/path for a socket of this host; --url is "
    "the same.\n"
    "                     Several with commas between them: one that answers\n"
    "  --client NAME      sent with what uses regions and tables; of several\n"
    "                     servers it chooses the one that keeps them\n"
    "  --token-file FILE  holds the bearer token, where the server wants one\n"
    "  --ca-file FILE     PEM of the CAs that an https:// server may come "
    "from\n"
    "  --cert FILE, --key FILE\n"
    "                     PEM of our own, where the server asks for it\n"
    "  --timeout SECONDS  of one request, to the last byte of its answer,\n"
    "                     default 300\n"
    "  --max-answer BYTES of one answer: 64m, 2g; default 1g\n"
    "  --output table|json\n"
    "                     for people, or one JSON document; the same names\n"
    "\n"
    "exit status:\n"
#define X(id, code, meaning) "  " #code "  " meaning "\n"
    ROPECTL_EXITS(X)
#undef X
    ;

/* The command of this name, or NULL. */
static const struct command *find_command(const char *name)
{
    for (int i = 0; i < N_COMMANDS; i++)
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    return NULL;
}

static void write_menu(FILE *out)
{
    fputs("usage: ropectl [options] COMMAND ...\n\n", out);
    for (int i = 0; i < N_COMMANDS; i++)
        fprintf(out, "  %-9s  %s\n", commands[i].name, commands[i].help);
    fputs("  help       a command: ropectl help COMMAND, or COMMAND --help\n\n",
          out);
    fputs(options_help, out);
}

static int unknown_command(const char *name)
{
    char text[128];
    struct roped_nearest nearest = {.word = name};
    roped_nearest_offer(&nearest, "help");
    for (int i = 0; i < N_COMMANDS; i++)
        roped_nearest_offer(&nearest, commands[i].name);
    fail_text("no command '%s'%s ('ropectl help' lists all)", name,
              roped_nearest_text(&nearest, text, sizeof text));
    return EXIT_USAGE;
}

static int write_page(const char *name)
{
    const struct command *command = find_command(name);
    if (!command)
        return unknown_command(name);
    printf("usage: ropectl %s %s\n\n%s\n%s", command->name, command->arguments,
           command->page, options_help);
    return EXIT_SUCCESS;
}

static bool is_help(const char *argument)
{
    return strcmp(argument, "--help") == 0 || strcmp(argument, "-h") == 0;
}

static int run(int argc, char **argv)
{
    struct ropectl ctl = {.options = {.max_answer_bytes = 1 << 30}};
    json_start();
    if (take_common(&ctl, &argc, argv))
        return EXIT_USAGE;
    if (argc < 2) {
        write_menu(stderr);
        return EXIT_USAGE;
    }
    if (strcmp(argv[1], "--version") == 0) {
        puts("ropectl " ROPED_VERSION);
        return EXIT_SUCCESS;
    }
    if (is_help(argv[1]) || strcmp(argv[1], "help") == 0) {
        if (argc > 2)
            return write_page(argv[2]);
        write_menu(stdout);
        return EXIT_SUCCESS;
    }
    const struct command *command = find_command(argv[1]);
    if (!command)
        return unknown_command(argv[1]);
    for (int i = 2; i < argc; i++)
        if (is_help(argv[i]))
            return write_page(argv[1]);
    command_is(command);
    return command->run(&ctl, argc - 1, argv + 1);
}

/* An answer that nobody got is a failure. */
int main(int argc, char **argv)
{
    if (!io_open_standard())
        return fail_text("cannot open /dev/null: %s", strerror(errno));
    int code = run(argc, argv);
    if (code == EXIT_SUCCESS && !io_flush_output())
        code = fail_text("cannot write standard output: %s", strerror(errno));
    return code;
}
