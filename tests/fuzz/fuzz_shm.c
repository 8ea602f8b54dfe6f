/* SPDX-License-Identifier: Apache-2.0
 * Names, keys, offsets and sizes of shared-memory regions, as clients send them. Input: lines of one
 * order each. What a region gives lies within its object; the list of regions is JSON; after all are
 * unregistered none is left. Objects of others are not written. */
#include "base/json.h"
#include "frontends/common/shm.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { OBJECT_BYTES = 10000, MAX_HELD = 16 };

static char key[64];

static void drop_object(void)
{
    shm_unlink(key);
}

/* The object that the key "@" stands for. */
static void make_object(void)
{
    snprintf(key, sizeof key, "/nereid-fuzz-%d", (int)getpid());
    int fd = shm_open(key, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (fd < 0 || ftruncate(fd, OBJECT_BYTES) != 0) {
        perror(key);
        abort();
    }
    close(fd);
    atexit(drop_object);
}

static void check_list(nrd_shm *s, const char *name)
{
    nrd_str text = {0};
    nrd_json_doc *doc = NULL;
    nrd_error *err = nrd_shm_status(s, false, name, &text);
    if (!err && nrd_json_parse(&doc, text.data, text.len, NULL)) {
        abort();
    }
    nrd_error_free(err);
    nrd_json_doc_free(doc);
    nrd_str_fini(&text);
}

/* One order: its letter, and fields with tabs between them. */
static void obey(nrd_shm *s, char *line, nrd_shm_region **held, size_t *n_held)
{
    char *save = NULL;
    const char *name = strtok_r(line + 1, "\t", &save), *second = strtok_r(NULL, "\t", &save);
    const char *third = strtok_r(NULL, "\t", &save), *fourth = strtok_r(NULL, "\t", &save);
    nrd_error *err = NULL;
    void *base = NULL;

    name = name ? name : "";
    second = second ? second : "";
    const uint64_t a = strtoull(third ? third : "0", NULL, 0), b = strtoull(fourth ? fourth : "0", NULL, 0);
    switch (line[0]) {
    case 'r':
        err = nrd_shm_register(s, name, strcmp(second, "@") ? second : key, a, b);
        break;
    case 'g':
        if (*n_held < MAX_HELD && !(err = nrd_shm_get(s, name, a, b, &held[*n_held], &base))) {
            volatile unsigned sum = 0;
            for (uint64_t i = 0; i < b && i < OBJECT_BYTES; i++) {
                sum += ((const volatile uint8_t *)base)[i];
            }
            (void)sum;
            err = nrd_shm_check(held[*n_held]);
            ++*n_held;
        }
        break;
    case 'p':
        if (*n_held) {
            nrd_shm_put(s, held[--*n_held]);
        }
        break;
    case 'u':
        err = nrd_shm_unregister(s, a & 1, name[0] ? name : NULL);
        break;
    default:
        check_list(s, name[0] ? name : NULL);
        break;
    }
    nrd_error_free(err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nrd_shm_region *held[MAX_HELD];
    size_t n_held = 0;
    nrd_str left = {0};
    nrd_shm *s = NULL;
    char *save = NULL;

    if (!key[0]) {
        make_object();
    }
    if (size > 4096 || nrd_shm_new(&s, true)) {
        return 0;
    }
    char *text = strndup((const char *)data, size);
    for (char *line = text ? strtok_r(text, "\n", &save) : NULL; line; line = strtok_r(NULL, "\n", &save)) {
        obey(s, line, held, &n_held);
        check_list(s, NULL);
    }
    while (n_held) {
        nrd_shm_put(s, held[--n_held]);
    }
    nrd_error_free(nrd_shm_unregister(s, false, NULL));
    if (nrd_shm_status(s, false, NULL, &left) || strcmp(nrd_str_cstr(&left), "[]") != 0) {
        abort();
    }
    nrd_str_fini(&left);
    nrd_shm_free(s);
    free(text);
    return 0;
}
