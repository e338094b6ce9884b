/*
 * count_plugin.c - counts the instructions that QEMU executes, and prints the
 * sum to standard error at the end. The declarations are those of
 * qemu-plugin.h, which Debian does not package.
 */
#include <inttypes.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
struct qemu_info;
enum qemu_plugin_op { QEMU_PLUGIN_INLINE_ADD_U64 };

void qemu_plugin_register_vcpu_tb_trans_cb(
    qemu_plugin_id_t id,
    void (*callback)(qemu_plugin_id_t, struct qemu_plugin_tb *));
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *block);
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *block,
                                              enum qemu_plugin_op op,
                                              void *counter, uint64_t n);
void qemu_plugin_register_atexit_cb(qemu_plugin_id_t id,
                                    void (*callback)(qemu_plugin_id_t, void *),
                                    void *data);

int qemu_plugin_version = 1;
int qemu_plugin_install(qemu_plugin_id_t id, const struct qemu_info *info,
                        int argc, char **argv);

static uint64_t n_executed;

static void count_block(qemu_plugin_id_t id, struct qemu_plugin_tb *block)
{
    (void)id;
    qemu_plugin_register_vcpu_tb_exec_inline(block, QEMU_PLUGIN_INLINE_ADD_U64,
                                             &n_executed,
                                             qemu_plugin_tb_n_insns(block));
}

static void print_count(qemu_plugin_id_t id, void *data)
{
    (void)id;
    (void)data;
    fprintf(stderr, "%" PRIu64 "\n", n_executed);
}

int qemu_plugin_install(qemu_plugin_id_t id, const struct qemu_info *info,
                        int argc, char **argv)
{
    (void)info;
    (void)argc;
    (void)argv;
    qemu_plugin_register_vcpu_tb_trans_cb(id, count_block);
    qemu_plugin_register_atexit_cb(id, print_count, NULL);
    return 0;
}
