/* SPDX-License-Identifier: Apache-2.0
 * Keys are kept as hashes with the process's random key: 128 bits each. Comparing hashes takes the same
 * time wherever the texts differ, and who does not know the random key learns nothing from it.
 *
 * A key has a place for as long as the process lives, since what others keep of it has its number: of a file that changes, new
 * keys come behind, and those that are not in it any more are marked. So readers need no lock. */
#include "frontends/common/keys.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/siphash.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

enum { MAX_NEW_KEYS = 4096 };

static const uint64_t LOOK_AGAIN_NS = 1000000000;

typedef struct digest {
    uint64_t v[2];
} digest;

typedef struct entry {
    digest hash;
    digest plain; /* with no secret: for names that outlive the process */
    atomic_bool is_gone;
    bool is_there; /* in the file that is being read; guarded by mu */
    atomic_int_fast64_t limits[NRD_KEY_N_LIMITS]; /* -1: those of all keys */
} entry;

/* What tells a file from what was in its place before. */
typedef struct file_id {
    int64_t seconds, nanoseconds;
    uint64_t inode, size;
} file_id;

struct nrd_keys {
    entry *v; /* [n_places] */
    size_t n_places, n_fixed; /* n_fixed: of options, the first ones */
    int64_t limits[NRD_KEY_N_LIMITS]; /* of all keys */
    atomic_size_t n;
    char *path; /* of the file; NULL: none */
    atomic_uint_fast64_t looked_ns;
    pthread_mutex_t mu; /* one reads the file */
    file_id id;         /* guarded by mu */
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

static void set_limits(entry *e, const nrd_key_line *line)
{
    e->is_there = true;
    for (int i = 0; i < NRD_KEY_N_LIMITS; i++) {
        atomic_store(&e->limits[i], line->limits[i]);
    }
}

static void put(nrd_keys *k, const nrd_key_line *line)
{
    const size_t at = atomic_load(&k->n);

    k->v[at].hash = digest_of(line->key, line->n);
    k->v[at].plain = digest_with((const uint64_t[2]){0, 0}, line->key, line->n);
    set_limits(&k->v[at], line);
    atomic_store(&k->n, at + 1); /* readers find it whole */
}

/* A key of the file. False: there is no place for it. */
static bool put_of_file(nrd_keys *k, const nrd_key_line *line)
{
    const digest hash = digest_of(line->key, line->n);
    const size_t n_keys = atomic_load(&k->n);

    for (size_t i = 0; i < n_keys; i++) {
        if (same(&k->v[i].hash, &hash)) {
            set_limits(&k->v[i], line);
            return true;
        }
    }
    if (n_keys < k->n_places) {
        put(k, line);
        return true;
    }
    return false;
}

static size_t put_file(nrd_keys *k, const nrd_key_file *f)
{
    size_t n_taken = 0;

    for (size_t i = 0; i < f->n_lines; i++) {
        n_taken += put_of_file(k, &f->lines[i]);
    }
    return n_taken;
}

static file_id id_of(const struct stat *s)
{
    return (file_id){s->st_mtim.tv_sec, s->st_mtim.tv_nsec, (uint64_t)s->st_ino, (uint64_t)s->st_size};
}

static bool is_same_file(const file_id *a, const file_id *b)
{
    return a->seconds == b->seconds && a->nanoseconds == b->nanoseconds && a->inode == b->inode && a->size == b->size;
}

/* The file's keys are those that hold; with mu held. An empty or unreadable file opens nothing: the keys before it hold on. */
static void read_again(nrd_keys *k)
{
    size_t n_gone = 0;
    nrd_key_file f;
    nrd_error *err = nrd_key_file_read(&f, k->path);

    if (err) {
        NRD_LOG_WARN("the API keys are those from before: %s", nrd_error_message(err));
        nrd_error_free(err);
        return;
    }
    const size_t before = atomic_load(&k->n);
    for (size_t i = k->n_fixed; i < before; i++) {
        k->v[i].is_there = false;
    }
    const size_t taken = put_file(k, &f);
    for (size_t i = k->n_fixed; i < atomic_load(&k->n); i++) {
        n_gone += !k->v[i].is_there;
        atomic_store(&k->v[i].is_gone, !k->v[i].is_there);
    }
    NRD_LOG_INFO("--api-key-file '%s' was read again: %zu keys, %zu of them new, %zu of earlier ones do not hold any more", k->path,
                 taken, atomic_load(&k->n) - before, n_gone);
    if (taken < f.n_lines) {
        NRD_LOG_WARN("%zu keys of '%s' have no place: a server takes %d new ones until it is started again", f.n_lines - taken, k->path,
                     (int)MAX_NEW_KEYS);
    }
    nrd_key_file_fini(&f);
}

/* At most once a second, by whoever asks for a key then. */
static void look_again(nrd_keys *k)
{
    uint64_t before = atomic_load(&k->looked_ns);
    const uint64_t now = nrd_now_ns();
    struct stat s;

    if (!k->path || now - before < LOOK_AGAIN_NS || !atomic_compare_exchange_strong(&k->looked_ns, &before, now) ||
        stat(k->path, &s) != 0 || pthread_mutex_trylock(&k->mu) != 0) {
        return;
    }
    const file_id id = id_of(&s);
    if (!is_same_file(&id, &k->id)) {
        k->id = id;
        read_again(k);
    }
    pthread_mutex_unlock(&k->mu);
}

nrd_error *nrd_keys_new(nrd_keys **out, const nrd_options *o)
{
    nrd_error *err = NULL;
    nrd_keys *k = NULL;
    nrd_key_file f = {0};
    struct stat s;

    *out = NULL;
    NRD_NEW_GOTO(k, 1, err, fail);
    pthread_mutex_init(&k->mu, NULL);
    k->limits[NRD_KEY_RATE] = o->key_rate_limit;
    k->limits[NRD_KEY_TOKENS] = o->key_token_limit;
    k->limits[NRD_KEY_AT_ONCE] = o->key_max_concurrent;
    if (o->api_key_file[0]) {
        NRD_TRY_GOTO(nrd_key_file_read(&f, o->api_key_file), err, fail);
        k->path = strdup(o->api_key_file);
        err = k->path ? NULL : nrd_error_no_memory();
        if (err) {
            goto fail;
        }
        k->id = stat(k->path, &s) == 0 ? id_of(&s) : (file_id){0};
        k->looked_ns = nrd_now_ns();
        k->n_places = f.n_lines + MAX_NEW_KEYS;
    }
    k->n_places += o->api_keys.n;
    NRD_NEW_GOTO(k->v, k->n_places, err, fail);
    for (size_t i = 0; i < o->api_keys.n; i++) {
        const char *key = o->api_keys.items[i].name;
        if (key[0]) {
            put(k, &(nrd_key_line){.key = key, .n = strlen(key), .limits = {-1, -1, -1}});
        }
    }
    k->n_fixed = k->n;
    (void)put_file(k, &f); /* there are places for all */
    *out = k;
    k = NULL;

fail:
    nrd_key_file_fini(&f);
    nrd_keys_free(k);
    return err;
}

void nrd_keys_free(nrd_keys *k)
{
    if (k) {
        pthread_mutex_destroy(&k->mu);
        free(k->v);
        free(k->path);
        free(k);
    }
}

size_t nrd_keys_count(const nrd_keys *k)
{
    return k->n;
}

size_t nrd_keys_places(const nrd_keys *k)
{
    return k->n_places;
}

bool nrd_keys_holds(const nrd_keys *k, int i)
{
    return !k->v[i].is_gone;
}

bool nrd_keys_have_limits(const nrd_keys *k)
{
    bool any = k->path != NULL; /* which may name some, now or later */

    for (int i = 0; i < NRD_KEY_N_LIMITS; i++) {
        any = any || k->limits[i] > 0;
    }
    return any;
}

int64_t nrd_keys_limit(const nrd_keys *k, int i, nrd_key_limit which)
{
    const int64_t own = i < 0 ? -1 : atomic_load(&k->v[i].limits[which]);
    return own < 0 ? k->limits[which] : own;
}

int nrd_keys_find_bare(nrd_keys *k, const char *key, size_t n)
{
    const digest given = digest_of(key, n);
    int found = -1;

    look_again(k);
    const size_t n_keys = atomic_load(&k->n);
    for (size_t i = 0; i < n_keys; i++) { /* all of them, whichever fits */
        found = same(&k->v[i].hash, &given) && !k->v[i].is_gone ? (int)i : found;
    }
    return found;
}

int nrd_keys_find(nrd_keys *k, const char *field, size_t n)
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
    const digest d = digest_of(&k->v[i].hash, sizeof k->v[i].hash); /* of the digest: the table stays secret */
    snprintf(out, 33, "%016llx%016llx", (unsigned long long)d.v[0], (unsigned long long)d.v[1]);
}

void nrd_keys_name(const nrd_keys *k, int i, const uint64_t secret[2], char out[33])
{
    const digest d = digest_with(secret, &k->v[i].plain, sizeof k->v[i].plain);
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
