/* SPDX-License-Identifier: Apache-2.0
 * Walks the headers of a tar archive. Called by formats/nemo.c. */
#include "formats/tar.h"

#include "base/file.h"
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 512, MAX_MEMBERS = 1 << 18, MAX_NAME = 4096 };

struct nrd_tar {
    nrd_map map;
    const char *path;
    const uint8_t *data;
    size_t size;
    nrd_tar_member *members;
    size_t n, cap;
    nrd_arena names;
};

/* What stands in front of a member's own header and overrides it. */
typedef struct {
    char name[MAX_NAME + 1]; /* "": nothing does */
    bool has_size;
    uint64_t size;
} override;

static nrd_error *wrong(const nrd_tar *t, size_t at, const char *what)
{
    return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: %s (offset %zu); the archive is truncated or damaged", t->path, what, at);
}

/* Octal digits between blanks, or with the first bit set a number of 8 bits a byte. */
static bool read_number(const uint8_t *p, size_t n, uint64_t *out)
{
    uint64_t v = 0;
    size_t i = 0;

    if (p[0] & 0x80) {
        for (v = p[0] & 0x7f, i = 1; i < n; i++) {
            if (v >> 55) {
                return false;
            }
            v = v << 8 | p[i];
        }
        *out = v;
        return true;
    }
    while (i < n && p[i] == ' ') {
        i++;
    }
    for (; i < n && p[i] >= '0' && p[i] <= '7'; i++) {
        if (v >> 60) {
            return false;
        }
        v = v << 3 | (uint64_t)(p[i] - '0');
    }
    *out = v;
    return i == n || p[i] == ' ' || p[i] == '\0';
}

static bool sum_is_right(const uint8_t *h)
{
    enum { AT = 148, N = 8 };
    uint64_t sum = N * ' ', told;

    for (size_t i = 0; i < BLOCK; i++) {
        sum += i < AT || i >= AT + N ? h[i] : 0;
    }
    return read_number(h + AT, N, &told) && told == sum;
}

/* The records of a pax header, "LENGTH KEY=VALUE\n": path and size. */
static nrd_error *read_pax(const nrd_tar *t, override *o, const uint8_t *p, size_t n)
{
    for (size_t at = 0; at < n && p[at];) {
        size_t len = 0, i = at;
        while (i < n && p[i] >= '0' && p[i] <= '9' && len <= n) {
            len = len * 10 + (size_t)(p[i++] - '0');
        }
        if (i == n || p[i] != ' ' || len < i - at + 3 || len > n - at || p[at + len - 1] != '\n') {
            return wrong(t, (size_t)(p - t->data) + at, "a record of a pax header does not fit");
        }
        const char *key = (const char *)p + i + 1;
        const size_t left = at + len - 1 - (i + 1);
        if (left > 5 && !memcmp(key, "path=", 5) && left - 5 <= MAX_NAME) {
            snprintf(o->name, sizeof o->name, "%.*s", (int)(left - 5), key + 5);
        } else if (left > 5 && !memcmp(key, "size=", 5)) {
            o->size = 0;
            for (size_t k = 5; k < left && key[k] >= '0' && key[k] <= '9' && o->size <= t->size; k++) {
                o->size = o->size * 10 + (uint64_t)(key[k] - '0');
            }
            o->has_size = true;
        }
        at += len;
    }
    return NULL;
}

static nrd_error *add(nrd_tar *t, const char *name, const uint8_t *data, size_t bytes)
{
    if (t->n == MAX_MEMBERS) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: more than %d files", t->path, (int)MAX_MEMBERS);
    }
    if (t->n == t->cap) {
        const size_t cap = t->cap ? 2 * t->cap : 64;
        nrd_tar_member *grown = realloc(t->members, cap * sizeof *grown);
        if (!grown) {
            return nrd_error_no_memory();
        }
        t->members = grown;
        t->cap = cap;
    }
    name += !strncmp(name, "./", 2) ? 2 : 0;
    const char *kept = nrd_arena_strndup(&t->names, name, strlen(name));
    if (!kept) {
        return nrd_error_no_memory();
    }
    t->members[t->n++] = (nrd_tar_member){.name = kept, .data = data, .bytes = bytes};
    return NULL;
}

/* The name that a header has: up to 155 bytes, '/', up to 100. */
static void name_of(const uint8_t *h, char *out, size_t n)
{
    const char *name = (const char *)h, *prefix = (const char *)h + 345;
    const bool has_prefix = !memcmp(h + 257, "ustar\0", 6) && *prefix;

    snprintf(out, n, "%.*s%s%.*s", has_prefix ? 155 : 0, prefix, has_prefix ? "/" : "", 100, name);
}

/* One header and what it is of. *io_at goes behind it. */
static nrd_error *read_member(nrd_tar *t, override *o, size_t *io_at)
{
    const size_t at = *io_at;
    const uint8_t *h = t->data + at, *data = h + BLOCK;
    const char type = (char)h[156];
    uint64_t bytes;
    char name[MAX_NAME + 1];

    if (!sum_is_right(h) || !read_number(h + 124, 12, &bytes)) {
        return wrong(t, at, "no header of a file where one is expected");
    }
    const bool is_header = type == 'x' || type == 'g' || type == 'L' || type == 'K';
    bytes = !is_header && o->has_size ? o->size : bytes;
    if (bytes > t->size - at - BLOCK) {
        return wrong(t, at, "a file ends behind the archive");
    }
    if (type == 'x') {
        NRD_TRY(read_pax(t, o, data, (size_t)bytes));
    } else if (type == 'L') {
        if (bytes > MAX_NAME) {
            return wrong(t, at, "a name is too long");
        }
        snprintf(o->name, sizeof o->name, "%.*s", (int)bytes, (const char *)data);
    } else if (!is_header) {
        name_of(h, name, sizeof name);
        if (type == '0' || type == '\0') {
            NRD_TRY(add(t, *o->name ? o->name : name, data, (size_t)bytes));
        }
        *o = (override){0};
    }
    const size_t whole = ((size_t)bytes + BLOCK - 1) / BLOCK * BLOCK;
    *io_at = whole > t->size - at - BLOCK ? t->size : at + BLOCK + whole;
    return NULL;
}

static nrd_error *walk(nrd_tar *t)
{
    static const uint8_t gzip[] = {0x1f, 0x8b};
    static const uint8_t zeros[BLOCK];
    nrd_error *err = NULL;
    override *o = NULL;

    if (t->size >= sizeof gzip && !memcmp(t->data, gzip, sizeof gzip)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s is compressed; unpack it first: gzip -dc %s > NAME.nemo", t->path, t->path);
    }
    if (t->size < BLOCK) {
        return wrong(t, 0, "too small for a tar archive");
    }
    NRD_NEW_GOTO(o, 1, err, done);
    for (size_t at = 0; at + BLOCK <= t->size && memcmp(t->data + at, zeros, BLOCK) != 0;) {
        NRD_TRY_GOTO(read_member(t, o, &at), err, done);
    }
done:
    free(o);
    return err;
}

static nrd_error *open_any(nrd_tar **out, const char *path, const void *data, size_t n)
{
    nrd_error *err = NULL;
    nrd_tar *t = NULL;

    *out = NULL;
    NRD_NEW_GOTO(t, 1, err, fail);
    nrd_arena_init(&t->names);
    t->data = data;
    t->size = n;
    if (path) {
        NRD_TRY_GOTO(nrd_map_open(&t->map, path), err, fail);
        t->data = t->map.data;
        t->size = t->map.size_bytes;
    }
    t->path = path ? path : "<memory>";
    err = walk(t);
    t->path = NULL;
    if (err) {
        goto fail;
    }
    *out = t;
    return NULL;

fail:
    nrd_tar_close(t);
    return err;
}

nrd_error *nrd_tar_open(nrd_tar **out, const char *path)
{
    return open_any(out, path, NULL, 0);
}

nrd_error *nrd_tar_open_memory(nrd_tar **out, const void *data, size_t n)
{
    return open_any(out, NULL, data, n);
}

void nrd_tar_close(nrd_tar *t)
{
    if (!t) {
        return;
    }
    nrd_map_close(&t->map);
    free(t->members);
    nrd_arena_fini(&t->names);
    free(t);
}

bool nrd_tar_is_lost(const nrd_tar *t)
{
    return nrd_map_is_lost(&t->map);
}

size_t nrd_tar_n(const nrd_tar *t)
{
    return t->n;
}

const nrd_tar_member *nrd_tar_at(const nrd_tar *t, size_t i)
{
    return i < t->n ? &t->members[i] : NULL;
}

const nrd_tar_member *nrd_tar_find(const nrd_tar *t, const char *name)
{
    for (size_t i = t->n; i-- > 0;) {
        if (!strcmp(t->members[i].name, name)) {
            return &t->members[i];
        }
    }
    return NULL;
}
