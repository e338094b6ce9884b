/*
 * npz.c - zip archives, read from the directory at their end, which alone has
 * the sizes of what was written to a pipe. Sizes are believed where the bytes
 * that they speak of are in the file, or could come out of those.
 */
#include "npz.h"

#include "npy.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum {
    LOCAL_BYTES = 30,
    ENTRY_BYTES = 46,
    END_BYTES = 22,
    LOCATOR_BYTES = 20, /* of zip64, before the end */
    END64_BYTES = 56,
    LONGEST_COMMENT = 65535,
    ENCRYPTED = 1, /* a flag */
    STORED = 0,
    DEFLATED = 8,
    MOST_INFLATED = 1032, /* bytes out of one byte of deflate */
    VERSION = 20,
    JANUARY_1_1980 = 0x21 /* the first date that zip has */
};
static const uint32_t local_magic = 0x04034b50, entry_magic = 0x02014b50,
                      end_magic = 0x06054b50, locator_magic = 0x07064b50,
                      end64_magic = 0x06064b50, in_extra = UINT32_MAX;

static uint64_t get(const unsigned char *at, int bytes)
{
    uint64_t value = 0;
    while (bytes-- > 0)
        value = value << 8 | at[bytes];
    return value;
}

bool npz_is(const void *file, size_t bytes)
{
    return bytes >= 4 &&
           (get(file, 4) == local_magic || get(file, 4) == end_magic);
}

/* ------------------------------------------------------------ the directory */

struct archive {
    const unsigned char *file;
    size_t bytes;
    uint64_t n_entries, begin, end; /* of the directory, offsets in file */
};

struct entry {
    const unsigned char *name;
    int name_bytes;
    unsigned flags, method;
    uint32_t crc;
    uint64_t packed, size, offset;
};

static enum roped_status broken(struct roped_error *err, const char *what)
{
    return roped_fail(err, ROPED_INVALID, ".npz: %s", what);
}

/* The end of the directory is the end of the file, but for a comment. */
static const unsigned char *find_end(const struct archive *archive)
{
    for (size_t behind = END_BYTES;
         behind <= archive->bytes && behind <= END_BYTES + LONGEST_COMMENT;
         behind++) {
        const unsigned char *at = archive->file + archive->bytes - behind;
        if (get(at, 4) == end_magic && get(at + 20, 2) == behind - END_BYTES)
            return at;
    }
    return NULL;
}

/* What has no room in the end is in zip64's end, which a locator finds. */
static const unsigned char *find_end64(const struct archive *archive,
                                       const unsigned char *end)
{
    if (end - archive->file < LOCATOR_BYTES ||
        get(end - LOCATOR_BYTES, 4) != locator_magic)
        return NULL;
    uint64_t offset = get(end - LOCATOR_BYTES + 8, 8);
    if (archive->bytes < END64_BYTES || offset > archive->bytes - END64_BYTES ||
        get(archive->file + offset, 4) != end64_magic)
        return NULL;
    return archive->file + offset;
}

static enum roped_status open_archive(struct archive *archive,
                                      struct roped_error *err)
{
    const unsigned char *end = find_end(archive);
    if (!end)
        return broken(err, "no directory at the end: the file is cut off, or "
                           "no zip archive");
    const unsigned char *end64 = find_end64(archive, end);
    uint64_t bytes = end64 ? get(end64 + 40, 8) : get(end + 12, 4);
    archive->n_entries = end64 ? get(end64 + 32, 8) : get(end + 10, 2);
    archive->begin = end64 ? get(end64 + 48, 8) : get(end + 16, 4);
    if (archive->begin > archive->bytes ||
        bytes > archive->bytes - archive->begin ||
        archive->n_entries > bytes / ENTRY_BYTES)
        return roped_fail(err, ROPED_INVALID,
                          ".npz: directory of %" PRIu64 " entries in %" PRIu64
                          " bytes at %" PRIu64 ", in a file of %zu bytes",
                          archive->n_entries, bytes, archive->begin,
                          archive->bytes);
    archive->end = archive->begin + bytes;
    return ROPED_OK;
}

/* Takes 8 bytes of zip64's extra field for each value that it has. */
static bool read_extra(struct entry *entry, const unsigned char *at,
                       uint64_t bytes)
{
    uint64_t *const values[] = {&entry->size, &entry->packed, &entry->offset};
    int wanted = 0;
    for (int i = 0; i < 3; i++)
        wanted += *values[i] == in_extra;
    while (wanted && bytes >= 4) {
        uint64_t id = get(at, 2), n = get(at + 2, 2);
        if (n > bytes - 4)
            return false;
        for (int i = 0; id == 1 && i < 3; i++) {
            if (*values[i] != in_extra || n < 8)
                continue;
            *values[i] = get(at + 4, 8);
            at += 8;
            bytes -= 8;
            n -= 8;
            wanted--;
        }
        at += 4 + n;
        bytes -= 4 + n;
    }
    return wanted == 0;
}

/* The entry at *offset, which moves to the next one. */
static enum roped_status read_entry(const struct archive *archive,
                                    uint64_t *offset, struct entry *entry,
                                    struct roped_error *err)
{
    const unsigned char *at = archive->file + *offset;
    uint64_t left = archive->end - *offset;
    if (left < ENTRY_BYTES || get(at, 4) != entry_magic)
        return broken(err, "the directory has fewer entries than it says");
    uint64_t extra = get(at + 30, 2), comment = get(at + 32, 2);
    *entry = (struct entry){.name = at + ENTRY_BYTES,
                            .name_bytes = (int)get(at + 28, 2),
                            .flags = (unsigned)get(at + 8, 2),
                            .method = (unsigned)get(at + 10, 2),
                            .crc = (uint32_t)get(at + 16, 4),
                            .packed = get(at + 20, 4),
                            .size = get(at + 24, 4),
                            .offset = get(at + 42, 4)};
    uint64_t bytes =
        ENTRY_BYTES + (uint64_t)entry->name_bytes + extra + comment;
    if (bytes > left)
        return broken(err, "an entry of the directory is longer than it");
    if (!read_extra(entry, entry->name + entry->name_bytes, extra))
        return broken(err, "an entry has no sizes");
    *offset += bytes;
    return ROPED_OK;
}

/* -------------------------------------------------------------- the entries */

/* "x" of "x.npy" */
static enum roped_status name_array(struct npz_array *array,
                                    const struct entry *entry,
                                    struct roped_error *err)
{
    int bytes = entry->name_bytes - 4;
    if (bytes < 1 || bytes >= ROPED_NAME_BYTES ||
        memcmp(entry->name + bytes, ".npy", 4) != 0 ||
        memchr(entry->name, '\0', (size_t)bytes))
        return roped_fail(err, ROPED_INVALID,
                          ".npz: entry '%.*s', expected a name of 1 to %d "
                          "letters and .npy",
                          entry->name_bytes < 80 ? entry->name_bytes : 80,
                          entry->name, ROPED_NAME_BYTES - 1);
    memcpy(array->name, entry->name, (size_t)bytes);
    array->name[bytes] = '\0';
    return ROPED_OK;
}

/* Where the bytes of an entry are, behind a header of their own. */
static enum roped_status find_data(const struct archive *archive,
                                   const struct entry *entry,
                                   const unsigned char **data,
                                   struct roped_error *err)
{
    const unsigned char *at = archive->file + entry->offset;
    if (archive->bytes < LOCAL_BYTES ||
        entry->offset > archive->bytes - LOCAL_BYTES ||
        get(at, 4) != local_magic)
        return roped_fail(err, ROPED_INVALID,
                          "no entry at byte %" PRIu64 " of %zu", entry->offset,
                          archive->bytes);
    uint64_t header = LOCAL_BYTES + get(at + 26, 2) + get(at + 28, 2),
             left = archive->bytes - entry->offset;
    if (header > left || entry->packed > left - header)
        return roped_fail(err, ROPED_INVALID,
                          "%" PRIu64 " bytes, and the file ends before",
                          entry->packed);
    *data = at + header;
    return ROPED_OK;
}

/* Raw deflate of entry->packed bytes into entry->size bytes. */
static enum roped_status inflate_data(const struct entry *entry,
                                      const unsigned char *data, void *out,
                                      struct roped_error *err)
{
    z_stream stream = {.next_in = (Bytef *)data, .next_out = out};
    uint64_t in = entry->packed, room = entry->size;
    int code = inflateInit2(&stream, -MAX_WBITS);
    if (code != Z_OK)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory to inflate it");
    while (code == Z_OK) {
        stream.avail_in = in < UINT32_MAX ? (uInt)in : UINT32_MAX;
        stream.avail_out = room < UINT32_MAX ? (uInt)room : UINT32_MAX;
        uInt given = stream.avail_in, free_before = stream.avail_out;
        code = inflate(&stream, Z_NO_FLUSH);
        in -= given - stream.avail_in;
        room -= free_before - stream.avail_out;
    }
    inflateEnd(&stream);
    if (code == Z_STREAM_END && room == 0)
        return ROPED_OK;
    return roped_fail(
        err, ROPED_INVALID,
        "%" PRIu64 " bytes inflate to %" PRIu64 " and %s, expected %" PRIu64,
        entry->packed, entry->size - room,
        code == Z_STREAM_END ? "no more" : "then break off", entry->size);
}

static enum roped_status check_entry(const struct entry *entry,
                                     struct roped_error *err)
{
    if (entry->flags & ENCRYPTED)
        return roped_fail(err, ROPED_UNSUPPORTED, "is encrypted");
    if (entry->method != STORED && entry->method != DEFLATED)
        return roped_fail(err, ROPED_UNSUPPORTED,
                          "compressed by method %u, expected 0 (stored) or 8 "
                          "(deflated)",
                          entry->method);
    uint64_t most = entry->method == STORED
                        ? entry->packed
                        : (entry->packed + 1) * MOST_INFLATED;
    if (entry->size > most || (entry->method == STORED && entry->size < most))
        return roped_fail(err, ROPED_INVALID,
                          "size is %" PRIu64 ", and %" PRIu64
                          " bytes are there",
                          entry->size, entry->packed);
    return ROPED_OK;
}

/* A copy of what the entry holds, checked against its CRC. */
static enum roped_status unpack(const struct archive *archive,
                                const struct entry *entry, unsigned char **out,
                                struct roped_error *err)
{
    const unsigned char *data = NULL;
    enum roped_status status = check_entry(entry, err);
    if (!status)
        status = find_data(archive, entry, &data, err);
    if (status)
        return status;
    *out = malloc(entry->size ? entry->size : 1);
    if (!*out)
        return roped_fail(err, ROPED_NO_MEMORY,
                          "no memory for %" PRIu64 " bytes", entry->size);
    if (entry->method == DEFLATED)
        status = inflate_data(entry, data, *out, err);
    else
        memcpy(*out, data, entry->size);
    uint32_t crc =
        status ? 0 : (uint32_t)crc32_z(0, *out, (z_size_t)entry->size);
    if (!status && crc != entry->crc)
        status = roped_fail(err, ROPED_INVALID, "CRC is %08x, expected %08x",
                            crc, entry->crc);
    return status;
}

static enum roped_status read_array(const struct archive *archive,
                                    const struct entry *entry,
                                    struct npz_array *array,
                                    struct roped_error *err)
{
    struct roped_error why;
    enum roped_status status = name_array(array, entry, err);
    if (status)
        return status;
    status = unpack(archive, entry, &array->npy, &why);
    if (!status)
        status = npy_read(array->npy, entry->size, &array->tensor, &why);
    if (!status)
        return ROPED_OK;
    return roped_fail(err, status, ".npz: entry '%s.npy': %s", array->name,
                      why.text);
}

enum roped_status npz_read(const void *file, size_t bytes, struct npz *npz,
                           struct roped_error *err)
{
    struct archive archive = {.file = file, .bytes = bytes};
    struct entry entry;
    *npz = (struct npz){.n = 0};
    enum roped_status status = open_archive(&archive, err);
    if (status)
        return status;
    npz->array = calloc(archive.n_entries + 1, sizeof *npz->array);
    if (!npz->array)
        return roped_fail(err, ROPED_NO_MEMORY,
                          ".npz: no memory for %" PRIu64 " names",
                          archive.n_entries);
    uint64_t offset = archive.begin;
    for (uint64_t i = 0; i < archive.n_entries && !status; i++) {
        status = read_entry(&archive, &offset, &entry, err);
        if (!status)
            status = read_array(&archive, &entry, &npz->array[npz->n++], err);
    }
    return status;
}

void npz_free(struct npz *npz)
{
    for (int i = 0; i < npz->n; i++)
        free(npz->array[i].npy);
    free(npz->array);
    *npz = (struct npz){.n = 0};
}

/* ------------------------------------------------------------------ writing */

static unsigned char *put(unsigned char *at, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++, value >>= 8)
        *at++ = (unsigned char)value;
    return at;
}

/* An array on its way into an archive. */
struct outgoing {
    char name[ROPED_NAME_BYTES + 4];
    char header[NPY_HEADER_BYTES];
    size_t header_bytes, data_bytes, offset;
    const void *data;
    uint32_t crc;
};

/* From the version to the length of the extra field: what the header of an
 * entry and the directory have in common. */
static unsigned char *put_common(unsigned char *at, const struct outgoing *out)
{
    size_t size = out->header_bytes + out->data_bytes;
    at = put(at, VERSION, 2);
    at = put(at, 0, 2); /* flags */
    at = put(at, STORED, 2);
    at = put(at, (uint64_t)JANUARY_1_1980 << 16, 4);
    at = put(at, out->crc, 4);
    at = put(at, size, 4);
    at = put(at, size, 4);
    at = put(at, strlen(out->name), 2);
    return put(at, 0, 2);
}

static unsigned char *put_array(unsigned char *at, const struct outgoing *out)
{
    at = put_common(put(at, local_magic, 4), out);
    at = mempcpy(at, out->name, strlen(out->name));
    at = mempcpy(at, out->header, out->header_bytes);
    return out->data_bytes ? mempcpy(at, out->data, out->data_bytes) : at;
}

static unsigned char *put_entry(unsigned char *at, const struct outgoing *out)
{
    at = put(put(at, entry_magic, 4), VERSION, 2);
    at = put_common(at, out);
    at = put(at, 0, 10); /* comment, disk, attributes */
    at = put(at, out->offset, 4);
    return mempcpy(at, out->name, strlen(out->name));
}

static unsigned char *put_end(unsigned char *at, int n, size_t begin,
                              size_t bytes)
{
    at = put(put(at, end_magic, 4), 0, 4);
    at = put(put(at, (uint64_t)n, 2), (uint64_t)n, 2);
    at = put(put(at, bytes, 4), begin, 4);
    return put(at, 0, 2);
}

/* Lays the arrays out; *bytes is where the directory begins. */
/* Whoever unpacks an archive gets files of these names: in the folder where he
 * is, and nowhere else. */
static bool leaves_folder(const char *name)
{
    for (const char *part = name;; part++) {
        size_t bytes = strcspn(part, "/\\");
        if (bytes == 2 && memcmp(part, "..", 2) == 0)
            return true;
        part += bytes;
        if (!*part)
            return name[0] == '/' || name[0] == '\\';
    }
}

static enum roped_status lay_out(const struct roped_client_tensor *tensors,
                                 int n, struct outgoing *outs, size_t *bytes,
                                 struct roped_error *err)
{
    for (int i = 0; i < n; i++) {
        struct outgoing *out = &outs[i];
        const struct roped_tensor *tensor = &tensors[i].tensor;
        if (leaves_folder(tensors[i].name))
            return roped_fail(err, ROPED_INVALID,
                              "tensor '%s': its name leads out of the folder "
                              "of a .npz file: write a safetensors file",
                              tensors[i].name);
        enum roped_status status = npy_write_header(
            tensors[i].name, tensor, out->header, &out->header_bytes, err);
        if (status)
            return status;
        snprintf(out->name, sizeof out->name, "%s.npy", tensors[i].name);
        out->data = tensor->data;
        out->data_bytes = (size_t)roped_tensor_bytes(tensor);
        out->crc = (uint32_t)crc32_z(0, (const Bytef *)out->header,
                                     (z_size_t)out->header_bytes);
        if (out->data_bytes)
            out->crc = (uint32_t)crc32_z(out->crc, out->data,
                                         (z_size_t)out->data_bytes);
        out->offset = *bytes;
        *bytes += LOCAL_BYTES + strlen(out->name) + out->header_bytes +
                  out->data_bytes;
        if (*bytes >= UINT32_MAX)
            return roped_fail(err, ROPED_UNSUPPORTED,
                              "tensor '%s' ends at byte %zu, expected less "
                              "than 4 GiB in a .npz file: write a safetensors "
                              "file",
                              tensors[i].name, *bytes);
    }
    return ROPED_OK;
}

enum roped_status npz_write(const struct roped_client_tensor *tensors,
                            int n_tensors, void **file, size_t *file_bytes,
                            struct roped_error *err)
{
    size_t begin = 0;
    struct outgoing *outs = calloc((size_t)n_tensors + 1, sizeof *outs);
    if (!outs)
        return roped_fail(err, ROPED_NO_MEMORY, "no memory for %d headers",
                          n_tensors);
    enum roped_status status = lay_out(tensors, n_tensors, outs, &begin, err);
    size_t most = begin + END_BYTES +
                  (size_t)n_tensors * (ENTRY_BYTES + sizeof outs->name);
    unsigned char *all = status ? NULL : malloc(most), *at = all;
    if (!status && !all)
        status =
            roped_fail(err, ROPED_NO_MEMORY, "no memory for %zu bytes", most);
    for (int i = 0; i < n_tensors && !status; i++)
        at = put_array(at, &outs[i]);
    for (int i = 0; i < n_tensors && !status; i++)
        at = put_entry(at, &outs[i]);
    if (!status) {
        at = put_end(at, n_tensors, begin, (size_t)(at - all) - begin);
        *file = all;
        *file_bytes = (size_t)(at - all);
    }
    free(outs);
    return status;
}
