/* SPDX-License-Identifier: Apache-2.0
 * Keys are kept as hashes with the process's random key: 128 bits each. Comparing hashes takes the same
 * time wherever the texts differ, and who does not know the random key learns nothing from it. */
#include "frontends/common/keys.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/siphash.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAX_KEY_FILE = 1 << 20 };

typedef struct digest {
    uint64_t v[2];
} digest;

struct nrd_keys {
    digest *v;
    digest *plain; /* [n], with no secret: for names that outlive the process */
    size_t n;
};

static digest digest_with(const uint64_t secret[2], const void *text, size_t n)
{
    nrd_siphash h;
    digest d;

    nrd_siphash_init(&h, secret);
    nrd_siphash_add(&h, text, n);
    nrd_siphash_end(&h, d.v);
    return d;
}

static digest digest_of(const void *text, size_t n)
{
    return digest_with(nrd_siphash_process_key(), text, n);
}

static bool same(const digest *a, const digest *b)
{
    return ((a->v[0] ^ b->v[0]) | (a->v[1] ^ b->v[1])) == 0;
}

bool nrd_same_secret(const void *a, size_t n_a, const void *b, size_t n_b)
{
    const digest x = digest_of(a, n_a), y = digest_of(b, n_b);
    return same(&x, &y);
}

static nrd_error *add(nrd_keys *k, const char *text, size_t n)
{
    if (n > 0) {
        digest *v = realloc(k->v, (k->n + 1) * sizeof *v);
        if (!v) {
            return nrd_error_no_memory();
        }
        k->v = v;
        digest *plain = realloc(k->plain, (k->n + 1) * sizeof *plain);
        if (!plain) {
            return nrd_error_no_memory();
        }
        k->plain = plain;
        k->plain[k->n] = digest_with((const uint64_t[2]){0, 0}, text, n);
        k->v[k->n++] = digest_of(text, n);
    }
    return NULL;
}

/* One a line; # begins a remark. */
static nrd_error *read_file(nrd_keys *k, const char *path)
{
    char *text = NULL;
    size_t n = 0;

    NRD_TRY(nrd_error_wrap(nrd_file_read(&text, &n, path, MAX_KEY_FILE), "--api-key-file"));
    nrd_error *err = NULL;
    for (char *line = text; line < text + n && !err;) {
        const size_t len = strcspn(line, "\r\n");
        if (line[0] != '#') {
            err = add(k, line, len);
        }
        line += len + 1;
    }
    free(text);
    return err;
}

nrd_error *nrd_keys_new(nrd_keys **out, const nrd_options *o)
{
    nrd_error *err = NULL;
    nrd_keys *k = NULL;

    *out = NULL;
    NRD_NEW_GOTO(k, 1, err, fail);
    for (size_t i = 0; i < o->api_keys.n; i++) {
        NRD_TRY_GOTO(add(k, o->api_keys.items[i].name, strlen(o->api_keys.items[i].name)), err, fail);
    }
    if (o->api_key_file[0]) {
        NRD_TRY_GOTO(read_file(k, o->api_key_file), err, fail);
        if (k->n == 0) {
            err = nrd_errorf(NRD_ERR_INVALID_ARG, "--api-key-file '%s' holds no key",
                             o->api_key_file);
            goto fail;
        }
    }
    *out = k;
    return NULL;

fail:
    nrd_keys_free(k);
    return err;
}

void nrd_keys_free(nrd_keys *k)
{
    if (k) {
        free(k->v);
        free(k->plain);
        free(k);
    }
}

size_t nrd_keys_count(const nrd_keys *k)
{
    return k->n;
}

int nrd_keys_find_bare(const nrd_keys *k, const char *key, size_t n)
{
    const digest given = digest_of(key, n);
    int found = -1;

    for (size_t i = 0; i < k->n; i++) { /* all of them, whichever fits */
        found = same(&k->v[i], &given) ? (int)i : found;
    }
    return found;
}

int nrd_keys_find(const nrd_keys *k, const char *field, size_t n)
{
    static const char scheme[] = "Bearer ";
    const size_t n_scheme = sizeof scheme - 1;

    if (!field || n < n_scheme || strncasecmp(field, scheme, n_scheme) != 0) {
        return -1;
    }
    return nrd_keys_find_bare(k, field + n_scheme, n - n_scheme);
}

void nrd_keys_salt(const nrd_keys *k, int i, char out[33])
{
    const digest d = digest_of(&k->v[i], sizeof k->v[i]); /* of the digest: the table stays secret */
    snprintf(out, 33, "%016llx%016llx", (unsigned long long)d.v[0], (unsigned long long)d.v[1]);
}

void nrd_keys_name(const nrd_keys *k, int i, const uint64_t secret[2], char out[33])
{
    const digest d = digest_with(secret, &k->plain[i], sizeof k->plain[i]);
    snprintf(out, 33, "%016llx%016llx", (unsigned long long)d.v[0], (unsigned long long)d.v[1]);
}

bool nrd_keys_guard(const char *group)
{
    static const char *const groups[] = {"inference", "model-repository", "shared-memory", "trace",
                                         "logging"};
    for (size_t i = 0; group && i < sizeof groups / sizeof *groups; i++) {
        if (strcmp(group, groups[i]) == 0) {
            return true;
        }
    }
    return false;
}
