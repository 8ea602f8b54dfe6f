/* SPDX-License-Identifier: Apache-2.0
 * The memory file of a prompt's cache: a page that says what each rank has done, and far behind it a part for each rank.
 * The parts lie so far apart that nobody need know how long another one is: what is not written takes no memory. */
#include "engine/run/parcel_place.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

/* From one rank's part to the next: above what a host has, and 64 of them are below the 2^63 bytes of a file. */
#define PART_BYTES ((int64_t)1 << 44)

enum { HEAD_BYTES = 4096, TEXT_BYTES = 56 };

typedef struct said {
    int32_t is_there, code; /* an error, unless it is there */
    char text[TEXT_BYTES];
} said;

typedef struct head {
    uint8_t id[NRD_PARCEL_ID_BYTES];
    said ranks[NRD_PARCEL_RANKS - 1]; /* of rank 1 on */
} head;
_Static_assert(sizeof(head) <= HEAD_BYTES, "it is the file's first page");

static off_t where_said(int32_t rank)
{
    return (off_t)(offsetof(head, ranks) + (size_t)(rank - 1) * sizeof(said));
}

/* ---- rank 0 ---- */

nrd_error *nrd_parcel_place_new(nrd_parcel_place *out)
{
    const int fd = (int)syscall(SYS_memfd_create, "nereid-prompt", 1u /* MFD_CLOEXEC */);

    *out = (nrd_parcel_place){0};
    if (fd < 0) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "no shared memory for a prompt's cache: %s",
                          strerror(errno));
    }
    *out = (nrd_parcel_place){.process = (int32_t)getpid(), .file = fd};
    if (getrandom(out->id, sizeof out->id, 0) != (ssize_t)sizeof out->id ||
        ftruncate(fd, NRD_PARCEL_RANKS * PART_BYTES) != 0 ||
        pwrite(fd, out->id, sizeof out->id, 0) != (ssize_t)sizeof out->id) {
        nrd_error *err = nrd_errorf(NRD_ERR_UNAVAILABLE,
                                    "no shared memory for a prompt's cache: %s", strerror(errno));
        nrd_parcel_place_free(out);
        return err;
    }
    return NULL;
}

void nrd_parcel_place_free(nrd_parcel_place *p)
{
    if (p->process > 0) {
        close(p->file);
    }
    *p = (nrd_parcel_place){0};
}

nrd_error *nrd_parcel_place_check(const nrd_parcel_place *p, int32_t rank)
{
    said s = {0};

    if (pread(p->file, &s, sizeof s, where_said(rank)) == (ssize_t)sizeof s && s.is_there) {
        return NULL;
    }
    s.text[sizeof s.text - 1] = '\0';
    return s.code != 0
               ? nrd_errorf((nrd_error_code)s.code, "rank %d: %s", rank, s.text)
               : nrd_errorf(NRD_ERR_UNAVAILABLE,
                            "rank %d cannot reach the memory of the server's process", rank);
}

/* ---- the others ---- */

static nrd_error *open_file(const nrd_parcel_place *p, int *out)
{
    char path[64];
    uint8_t id[NRD_PARCEL_ID_BYTES];

    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)p->process, (int)p->file);
    *out = open(path, O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (*out < 0) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "cannot open the memory of a prompt's cache, %s: %s",
                          path, strerror(errno));
    }
    if (pread(*out, id, sizeof id, 0) != (ssize_t)sizeof id || memcmp(id, p->id, sizeof id) != 0) {
        close(*out);
        return nrd_errorf(
            NRD_ERR_UNAVAILABLE,
            "%s is not the memory of a prompt's cache: do all ranks see the same processes?", path);
    }
    return NULL;
}

nrd_error *nrd_parcel_place_map(const nrd_parcel_place *p, int32_t rank, size_t bytes, bool is_new,
                                uint8_t **out)
{
    const off_t at = (off_t)((int64_t)rank * PART_BYTES);
    nrd_error *err = NULL;
    int fd;

    *out = NULL;
    NRD_TRY(open_file(p, &fd));
    if (bytes > (size_t)PART_BYTES || (is_new && posix_fallocate(fd, at, (off_t)bytes) != 0)) {
        err = nrd_errorf(NRD_ERR_NO_MEMORY, "no memory for %zu bytes of cache", bytes);
    } else {
        void *mem = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, at);
        err = mem == MAP_FAILED
                  ? nrd_errorf(NRD_ERR_NO_MEMORY, "no memory for %zu bytes of cache", bytes)
                  : NULL;
        *out = err ? NULL : mem;
    }
    close(fd);
    return err;
}

void nrd_parcel_place_tell(const nrd_parcel_place *p, int32_t rank, nrd_error *err)
{
    said s = {.is_there = !err, .code = err ? (int32_t)nrd_error_get_code(err) : 0};
    int fd;

    if (err) {
        snprintf(s.text, sizeof s.text, "%s", nrd_error_message(err));
    }
    nrd_error_free(err);
    err = open_file(p, &fd);
    if (!err) {
        (void)!pwrite(
            fd, &s, sizeof s,
            where_said(rank)); /* else nothing is said, and rank 0 takes it for an error */
        close(fd);
    }
    nrd_error_free(err);
}
