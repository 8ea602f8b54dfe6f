/* SPDX-License-Identifier: Apache-2.0
 * tests/fuzz/parts.h - inputs of several files, and a folder for parsers that want paths.
 *
 * Purpose   Parts of an input are separated by a line of five '='. The folder lies in memory where the
 *           machine has /dev/shm, and goes with the process.
 * Owner     The one thread that runs the target. */
#ifndef NRD_TESTS_FUZZ_PARTS_H
#define NRD_TESTS_FUZZ_PARTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FUZZ_BORDER "\n=====\n"

typedef struct fuzz_part {
    const uint8_t *p;
    size_t n;
} fuzz_part;

/* How many there are, at most max; the last one takes what follows. */
static inline size_t fuzz_split(const uint8_t *data, size_t size, fuzz_part *out, size_t max)
{
    const size_t border = sizeof FUZZ_BORDER - 1;
    size_t n = 0;
    while (n + 1 < max) {
        const uint8_t *at = size ? memmem(data, size, FUZZ_BORDER, border) : NULL;
        if (!at) {
            break;
        }
        out[n++] = (fuzz_part){data, (size_t)(at - data)};
        size -= (size_t)(at - data) + border;
        data = at + border;
    }
    out[n++] = (fuzz_part){data, size};
    return n;
}

static char fuzz_dir[64];

static inline void fuzz_remove_folder(void)
{
    char cmd[128];
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", fuzz_dir);
    if (system(cmd) != 0) {
        fprintf(stderr, "%s is left\n", fuzz_dir);
    }
}

/* An empty folder, the same one each time: the caller writes over what was there. */
static inline const char *fuzz_folder(void)
{
    if (!fuzz_dir[0]) {
        snprintf(fuzz_dir, sizeof fuzz_dir, "%s/nereid-fuzz-XXXXXX",
                 access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
        if (!mkdtemp(fuzz_dir)) {
            perror(fuzz_dir);
            abort();
        }
        atexit(fuzz_remove_folder);
    }
    return fuzz_dir;
}

/* part NULL: the file goes. A new file each time: what is mapped is not cut. */
static inline void fuzz_write(const char *name, const fuzz_part *part)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", fuzz_folder(), name);
    unlink(path);
    if (part) {
        FILE *f = fopen(path, "w");
        if (!f || (part->n && fwrite(part->p, 1, part->n, f) != part->n) || fclose(f) != 0) {
            perror(path);
            abort();
        }
    }
}

/* Reads every byte, so that the sanitizer looks at each. */
static inline unsigned fuzz_sum(const void *data, size_t n)
{
    const volatile uint8_t *p = data;
    unsigned sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += p[i];
    }
    return sum;
}

#endif
