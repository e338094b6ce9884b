/*
 * backend.h - the whole boundary between those who schedule calls and the
 * device that computes them. The rows of backends.def implement it. No type of
 * a device's own is visible here.
 *
 * THREADS: open, close and the allocators may be called from any thread. A
 * queue belongs to one thread at a time; different queues run concurrently.
 * upload, download, fetch, clear, launch, replay and build_table are ordered on
 * their queue and may return before the device has finished; wait ends that.
 */
#ifndef ROPED_BACKEND_H
#define ROPED_BACKEND_H

#include <roped/op.h>
#include <roped/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct roped_backend;   /* one open device */
struct roped_queue;     /* a CUDA stream, or nothing */
struct roped_recording; /* launches to be repeated */

enum { ROPED_MAX_MARKS = 8 };
enum { ROPED_FOREIGN_HANDLE_BYTES = 64 };

struct roped_backend_options {
    int device;    /* index among the backend's devices */
    int n_threads; /* CPU backend: worker threads, 0: one per usable core */
};

struct roped_device_info {
    char name[96];   /* "NVIDIA H200", "AMD EPYC" */
    char detail[96]; /* "sm_90, driver 13.0", "AVX-512, 2 threads" */
    char uuid[48];   /* "GPU-...", empty for the CPU */
    uint64_t memory_bytes;
    int n_units; /* multiprocessors or threads */

    /* An integrated GPU, whose memory is the host's: what host_alloc gives is
     * as fast for it as its own, and copies between them gain nothing. */
    bool is_integrated;
};

struct roped_byte_rows {
    size_t n, row_bytes, stride_bytes;
};

struct roped_backend_api {
    const char *name; /* "cpu", "cuda": metric label, v2 platform suffix */

    /* Data pointers of calls are host memory: nothing to upload. */
    bool is_host;

    /*
     * Number of usable devices. 0 with a sentence in *err (which may be
     * NULL) where there is none: no driver, stub driver, no device.
     */
    int (*device_count)(struct roped_error *err);

    enum roped_status (*open)(const struct roped_backend_options *options,
                              struct roped_backend **out,
                              struct roped_error *err);
    void (*close)(struct roped_backend *backend);
    void (*info)(struct roped_backend *backend, struct roped_device_info *out);

    /*
     * False after an error that only a new process can clear: *why (which may
     * be NULL) is its sentence. Once one device has failed, others of the
     * process may fail too. Only the first gives a sentence; *why is empty for
     * the others. Closing may hang then.
     */
    bool (*is_healthy)(struct roped_backend *backend, struct roped_error *why);

    /*
     * Host memory that the device reaches at full speed (page-locked for
     * CUDA; kernels may read and write it in place), 64-byte aligned.
     */
    enum roped_status (*host_alloc)(struct roped_backend *backend, size_t bytes,
                                    void **out, struct roped_error *err);
    void (*host_free)(struct roped_backend *backend, void *memory);

    /*
     * (optional, both or none) Page-locks whole pages that host_alloc did not
     * make, such as a mapping shared with another process, so that the device
     * may use them like host_alloc's. host_unlock ends that.
     */
    enum roped_status (*host_lock)(struct roped_backend *backend, void *memory,
                                   size_t bytes, struct roped_error *err);
    void (*host_unlock)(struct roped_backend *backend, void *memory);

    /* Device memory, 256-byte aligned; host memory where is_host. */
    enum roped_status (*device_alloc)(struct roped_backend *backend,
                                      size_t bytes, void **out,
                                      struct roped_error *err);
    void (*device_free)(struct roped_backend *backend, void *memory);

    /*
     * (optional, both or none) Device memory of another process, which handle
     * (ROPED_FOREIGN_HANDLE_BYTES of it) names: for CUDA the bytes of a
     * cudaIpcMemHandle_t. *bytes is how much there is. Opening one handle
     * twice gives the same memory, to be closed twice.
     */
    enum roped_status (*foreign_open)(struct roped_backend *backend,
                                      const void *handle, void **out,
                                      uint64_t *bytes, struct roped_error *err);
    void (*foreign_close)(struct roped_backend *backend, void *memory);

    enum roped_status (*queue_open)(struct roped_backend *backend,
                                    struct roped_queue **out,
                                    struct roped_error *err);
    void (*queue_close)(struct roped_queue *queue);

    /*
     * (optional) A queue over a stream of the caller's, for programs that use
     * libroped_kernels in their own process: for CUDA a cudaStream_t of the
     * backend's device, NULL the legacy default stream. It must outlive the
     * queue; queue_close leaves it alone. launch enqueues and returns, also
     * while the stream is being captured into a graph; the launches of a queue
     * share its memory for partial results, so a graph must be replayed before
     * the queue is closed and not beside other launches of it.
     */
    enum roped_status (*queue_wrap)(struct roped_backend *backend, void *stream,
                                    struct roped_queue **out,
                                    struct roped_error *err);

    /* Copies; host may be any memory, page-locked memory is faster. */
    enum roped_status (*upload)(struct roped_queue *queue, void *device,
                                const void *host, size_t bytes,
                                struct roped_error *err);
    enum roped_status (*download)(struct roped_queue *queue, void *host,
                                  const void *device, size_t bytes,
                                  struct roped_error *err);

    /* Downloads n rows of row_bytes each, stride_bytes apart on both sides.
     * Bytes between rows are not written. */
    enum roped_status (*download_rows)(struct roped_queue *queue, void *host,
                                       const void *device,
                                       const struct roped_byte_rows *rows,
                                       struct roped_error *err);

    /*
     * (optional where is_host: the devices of such a backend share one memory)
     * Copies from memory of another device of this backend, device_alloc's or
     * foreign_open's, which may be its own too. Directly where the hardware and
     * its driver can, else by way of the host. The copy is ordered on
     * this queue alone, so the caller must have waited for whatever wrote to
     * from.
     */
    enum roped_status (*fetch)(struct roped_queue *queue, void *device,
                               const struct roped_backend *other,
                               const void *from, size_t bytes,
                               struct roped_error *err);

    /* Zeros. */
    enum roped_status (*clear)(struct roped_queue *queue, void *device,
                               size_t bytes, struct roped_error *err);

    /*
     * Starts a planned call. Every data pointer, aux and table.data must be
     * reachable by the device and aligned to its element size; 16 bytes is
     * faster. An output may be the very memory of its in_place input, and is
     * that of a ROPED_UPDATED one; any other overlap is undefined. Empty
     * tensors may have NULL data. A queue keeps memory for partial results, up
     * to 8 MiB, from the first launch that needs it until queue_close.
     */
    enum roped_status (*launch)(struct roped_queue *queue,
                                const struct roped_call *call,
                                struct roped_error *err);

    /*
     * Fills device memory [rows, 2 * n_pairs] with
     * [cos_0 .. cos_{n-1}, sin_0 .. sin_{n-1}] * attention_factor of rows
     * first_row, first_row + 1, ... angles->frequency is host memory that
     * the call reads before it returns.
     */
    enum roped_status (*build_table)(struct roped_queue *queue,
                                     const struct roped_angles *angles,
                                     int64_t first_row, int64_t rows,
                                     float *device, struct roped_error *err);

    /* Blocks until everything on the queue is done; its errors end here. */
    enum roped_status (*wait)(struct roped_queue *queue,
                              struct roped_error *err);

    /*
     * (optional, both or none) Marks a point on the queue, 0 <= mark <
     * ROPED_MAX_MARKS; after wait, the seconds between two marks.
     */
    enum roped_status (*mark)(struct roped_queue *queue, int mark,
                              struct roped_error *err);
    double (*seconds_between)(struct roped_queue *queue, int first, int last);

    /*
     * (optional, all four or none) Launches that are repeated cost less than
     * launches. After record those of the queue are not done, but recorded:
     * each call as it is then, addresses and plan included. record_end ends
     * that, in any case; with out NULL it drops them. Nothing else is asked of
     * the queue in between. replay does them all in their order, on the queue
     * that they were recorded on, with what is in their memory then; that may
     * be anything that launch would take, and must be there. A kernel that was
     * never launched before may not be recorded: record_end then fails, and all
     * is as before record. recording_free is called when no replay is on the
     * queue.
     */
    enum roped_status (*record)(struct roped_queue *queue,
                                struct roped_error *err);
    enum roped_status (*record_end)(struct roped_queue *queue,
                                    struct roped_recording **out,
                                    struct roped_error *err);
    enum roped_status (*replay)(struct roped_queue *queue,
                                struct roped_recording *recording,
                                struct roped_error *err);
    void (*recording_free)(struct roped_queue *queue,
                           struct roped_recording *recording);
};

typedef enum roped_status roped_launch_fn(const struct roped_call *call,
                                          struct roped_queue *queue,
                                          struct roped_error *err);

/* roped_backend_cpu and so on, for who links what libroped_kernels.so is made
 * of; that has roped_kernels_backend. */
#define BACKEND(name, title)                                                   \
    extern const struct roped_backend_api roped_backend_##name;
#define NO_BACKEND(name, title) BACKEND(name, title)
#include <roped/backends.def>

#ifdef __cplusplus
}
#endif

#endif
