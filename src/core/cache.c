/* SPDX-License-Identifier: Apache-2.0
 * The response cache: a library that keeps bytes under keys, and what this core puts into it.
 *
 * A key is the hash of a request's question (core/question.h) under a secret, so that no client can make a
 * request with the key of another one. The bytes of a response are its outputs in the layout that
 * published servers use:
 * count (u32), then per output its size (u64) and name, type and shape (u32 length, bytes each) and
 * content (u64 length, bytes).
 * Behind them come the question and its length (u64): a response is the answer to a request only if both
 * have the same question.
 *
 * A cache outside the process may be shared. Its questions have the model's configuration and a salt as
 * well, and the last 16 bytes are a seal: the hash of the key and the bytes
 * under another secret, so that who can write into the cache cannot make up answers, nor put one under
 * the key of another. Both secrets come from one that the operator gives to all servers that share;
 * without one they are this process's own. */
#include "core/cache.h"

#include "core/api.h"
#include "core/context.h"
#include "core/memory.h"
#include "core/model_internal.h"
#include "core/question.h"
#include "core/request.h"
#include "core/request_internal.h"
#include "core/response.h"
#include "core/response_internal.h"
#include "core/sched/scheduler.h"
#include "core/statistics.h"
#include "core/trace.h"
#include "core/types.h"

#include "base/clock.h"
#include "base/env.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/siphash.h"
#include "triton/core/tritoncache.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef TRITONSERVER_Error *(*init_fn)(TRITONCACHE_Cache **, const char *);
typedef TRITONSERVER_Error *(*fini_fn)(TRITONCACHE_Cache *);
typedef TRITONSERVER_Error *(*access_fn)(TRITONCACHE_Cache *, const char *,
                                         TRITONCACHE_CacheEntry *, TRITONCACHE_Allocator *);

struct nrd_cache {
    void *dl;
    TRITONCACHE_Cache *impl;
    fini_fn finalize;
    access_fn insert, lookup;
    bool is_outside;      /* of this process: keys and values as the first comment says */
    uint64_t key_key[2];  /* for keys */
    uint64_t seal_key[2]; /* for seals */
    uint64_t salt[2];
};

enum { SEAL_BYTES = 16, MIN_SECRET = 16, MAX_SECRET_FILE = 65536 };

typedef struct buffer {
    void *base;
    size_t size;
} buffer;

typedef struct entry { /* TRITONCACHE_CacheEntry: lives for one call */
    buffer *items;
    size_t n;
} entry;

typedef struct allocator { /* TRITONCACHE_Allocator */
    bool is_insert;
    nrd_response *response; /* read on insert, filled on lookup */
    const nrd_cache *cache;
    const char *key;
    const nrd_buf *question;
} allocator;

/* ---- secrets ---- */

/* Keys for several purposes from one secret. */
static void derive(uint64_t out[2], const char *purpose, const char *secret)
{
    static const uint64_t none[2];
    nrd_siphash h;
    nrd_siphash_init(&h, none);
    nrd_siphash_add(&h, purpose, strlen(purpose) + 1);
    nrd_siphash_add(&h, secret, strlen(secret));
    nrd_siphash_end(&h, out);
}

/* The secret that servers share, owned; NULL in *out: none is given. */
static nrd_error *read_secret(char **out, const nrd_json *config)
{
    const char *path = nrd_json_get_str(config, "secret_file", NULL);
    const char *text = nrd_json_get_str(config, "secret", nrd_env("NEREID_CACHE_SECRET", NULL));
    size_t n = 0;

    *out = NULL;
    if (path) {
        NRD_TRY(nrd_error_wrap(nrd_file_read(out, &n, path, MAX_SECRET_FILE), "response cache, 'secret_file'"));
        (*out)[strcspn(*out, "\r\n")] = '\0'; /* its first line */
    } else if (text) {
        *out = strdup(text);
        if (!*out) {
            return nrd_error_no_memory();
        }
    }
    if (*out && strlen(*out) < MIN_SECRET) {
        free(*out);
        *out = NULL;
        return nrd_errorf(NRD_ERR_INVALID_ARG, "response cache: the secret must have at least %d characters",
                          (int)MIN_SECRET);
    }
    return NULL;
}

static nrd_error *read_sharing(nrd_cache *c, const char *name, const nrd_json *config)
{
    char *secret = NULL;

    c->is_outside = strcmp(name, "local") != 0;
    memcpy(c->key_key, nrd_siphash_process_key(), sizeof c->key_key);
    memcpy(c->seal_key, nrd_siphash_process_key(), sizeof c->seal_key);
    c->seal_key[0] = ~c->seal_key[0];
    if (!c->is_outside) {
        return NULL;
    }
    NRD_TRY(read_secret(&secret, config));
    derive(c->salt, "salt", nrd_json_get_str(config, "salt", ""));
    if (secret) {
        derive(c->key_key, "keys", secret);
        derive(c->seal_key, "seals", secret);
    } else {
        NRD_LOG_INFO("response cache '%s': no secret is configured, so no other server, nor this one after a new "
                     "start, finds what it keeps (secret_file)",
                     name);
    }
    free(secret);
    return NULL;
}

/* The configuration for the log. Owned; NULL: no memory. */
static char *without_secrets(const nrd_json *config)
{
    static const char *const hidden[] = {"password", "secret"};
    nrd_str text = {0};

    nrd_str_putc(&text, '{');
    for (size_t i = 0; i < nrd_json_len(config); i++) {
        const nrd_json *v = &config->child[i];
        bool hide = false;
        for (size_t k = 0; k < sizeof hidden / sizeof *hidden; k++) {
            hide = hide || strcmp(v->key, hidden[k]) == 0;
        }
        nrd_str_puts(&text, i ? "," : "");
        nrd_json_put_string(&text, v->key, v->key_len);
        nrd_str_putc(&text, ':');
        if (hide) {
            nrd_str_puts(&text, "\"***\"");
        } else {
            nrd_json_put(&text, v, -1);
        }
    }
    nrd_str_putc(&text, '}');
    return nrd_str_steal(&text);
}

/* ---- the library ---- */

static nrd_error *entry_point(nrd_cache *c, const char *name, const char *path, void *out_fn)
{
    void *p = dlsym(c->dl, name);
    if (!p) {
        return nrd_errorf(NRD_ERR_NOT_FOUND,
                          "unable to find required entrypoint '%s' in shared library '%s'", name,
                          path);
    }
    memcpy(out_fn, &p, sizeof p); /* POSIX: an object pointer that is a function pointer */
    return NULL;
}

nrd_error *nrd_cache_open(nrd_cache **out, const char *name, const char *cache_dir,
                          const char *config)
{
    nrd_cache *c = NULL;
    init_fn initialize = NULL;
    nrd_json_doc *doc = NULL;
    char *path, *shown = NULL;
    nrd_error *err = NULL;

    *out = NULL;
    if (strchr(name, '/')) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "invalid cache name '%s'", name);
    }
    path = nrd_xasprintf("%s/%s/libtritoncache_%s.so", cache_dir, name, name);
    if (!nrd_path_exists(path)) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG,
                         "unable to find 'libtritoncache_%s.so' for cache. Searched: %s", name,
                         cache_dir);
        goto done;
    }
    NRD_TRY_GOTO(nrd_json_parse(&doc, config, strlen(config), NULL), err, done);
    shown = without_secrets(nrd_json_root(doc));
    NRD_LOG_INFO("Creating TritonCache with name: '%s', libpath: '%s', cache_config: '%s'", name,
                 path, shown ? shown : "");
    c = nrd_xcalloc(1, sizeof *c);
    NRD_TRY_GOTO(read_sharing(c, name, nrd_json_root(doc)), err, done);
    c->dl = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!c->dl) {
        err = nrd_errorf(NRD_ERR_NOT_FOUND, "unable to load shared library: %s", dlerror());
        goto done;
    }
    NRD_TRY_GOTO(entry_point(c, "TRITONCACHE_CacheInitialize", path, &initialize), err, done);
    NRD_TRY_GOTO(entry_point(c, "TRITONCACHE_CacheFinalize", path, &c->finalize), err, done);
    NRD_TRY_GOTO(entry_point(c, "TRITONCACHE_CacheLookup", path, &c->lookup), err, done);
    NRD_TRY_GOTO(entry_point(c, "TRITONCACHE_CacheInsert", path, &c->insert), err, done);
    NRD_TRY_GOTO(from_api(initialize(&c->impl, config)), err, done);
    if (!c->impl) {
        err = nrd_errorf(NRD_ERR_INTERNAL, "Failed to initialize cache implementation");
    }
done:
    nrd_json_doc_free(doc);
    free(shown);
    free(path);
    if (err) {
        nrd_cache_close(c);
        return err;
    }
    *out = c;
    return NULL;
}

void nrd_cache_close(nrd_cache *c)
{
    if (!c) {
        return;
    }
    if (c->impl) {
        nrd_error *err = from_api(c->finalize(c->impl));
        if (err) {
            NRD_LOG_ERROR("failed finalizing cache: %s", nrd_error_message(err));
            nrd_error_free(err);
        }
    }
    if (c->dl) {
        dlclose(c->dl);
    }
    free(c);
}

/* ---- keys ---- */

static void take_text(nrd_siphash *h, const char *s)
{
    nrd_siphash_add(h, s, strlen(s) + 1);
}

nrd_error *nrd_cache_hash_config(nrd_model *m)
{
    static const uint64_t none[2];
    const size_t n = inference__model_config__get_packed_size(m->config);
    uint8_t *packed = malloc(n + 1);
    nrd_siphash h;

    if (!packed) {
        return nrd_error_no_memory();
    }
    inference__model_config__pack(m->config, packed);
    nrd_siphash_init(&h, none);
    nrd_siphash_add(&h, packed, n);
    nrd_siphash_end(&h, m->config_hash);
    free(packed);
    return NULL;
}

/* NULL: the request has data that is not readable from here, or there is no memory. */
static nrd_buf *make_question(const nrd_request *r)
{
    const nrd_cache *c = r->model->ctx->cache;
    uint64_t head[4];

    memcpy(head, c->salt, sizeof c->salt);
    memcpy(head + 2, r->model->config_hash, sizeof r->model->config_hash);
    return nrd_question_new(r, head, c->is_outside ? sizeof head : 0);
}

/* NULL: no memory. */
static char *make_key(const nrd_cache *c, const nrd_buf *question)
{
    nrd_siphash h;
    uint64_t key[2];
    char *text = NULL;

    nrd_siphash_init(&h, c->key_key);
    nrd_siphash_add(&h, question->data, question->size_bytes);
    nrd_siphash_end(&h, key);
    if (asprintf(&text, "%" PRIu64 "-%" PRIu64, key[0], key[1]) < 0) {
        text = NULL;
    }
    return text;
}

/* ---- responses as bytes ---- */

static nrd_error *check_place(const nrd_output *o)
{
    return o->attr.memory_type == TRITONSERVER_MEMORY_GPU
               ? nrd_errorf(NRD_ERR_INVALID_ARG,
                            "Only input buffers in CPU memory are allowed in cache currently")
               : NULL;
}

static size_t output_size(const nrd_output *o)
{
    return 3 * sizeof(uint32_t) + strlen(o->name) + strlen(nrd_datatype_name(o->dtype)) +
           o->n_dims * sizeof o->dims[0] + sizeof(uint64_t) + o->attr.byte_size;
}

static size_t packed_size(const nrd_response *r)
{
    size_t n = sizeof(uint32_t);
    for (uint32_t i = 0; i < r->n_outputs; i++) {
        n += sizeof(uint64_t) + output_size(r->outputs[i]);
    }
    return n;
}

static char *put(char *to, const void *data, size_t n)
{
    if (n) {
        memcpy(to, data, n);
    }
    return to + n;
}

static char *put_part(char *to, const void *data, size_t n)
{
    const uint32_t len = (uint32_t)n;
    return put(put(to, &len, sizeof len), data, n);
}

/* Bytes that a cache keeps of a response. */
static size_t kept_size(const allocator *a)
{
    return packed_size(a->response) + a->question->size_bytes + sizeof(uint64_t) +
           (a->cache->is_outside ? SEAL_BYTES : 0);
}

static void make_seal(uint64_t out[2], const allocator *a, const void *bytes, size_t n)
{
    nrd_siphash h;
    nrd_siphash_init(&h, a->cache->seal_key);
    take_text(&h, a->key);
    nrd_siphash_add(&h, bytes, n);
    nrd_siphash_end(&h, out);
}

static nrd_error *pack(const allocator *a, const buffer *b)
{
    const nrd_response *r = a->response;
    const uint64_t n_question = a->question->size_bytes;
    char *to = b->base;
    uint64_t seal[2];

    if (!to || b->size != kept_size(a)) {
        return nrd_errorf(NRD_ERR_INTERNAL,
                          "Serialized buffer size does not match. Expected: %zu, received: %zu",
                          kept_size(a), b->size);
    }
    to = put(to, &r->n_outputs, sizeof r->n_outputs);
    for (uint32_t i = 0; i < r->n_outputs; i++) {
        const nrd_output *o = r->outputs[i];
        const uint64_t size = output_size(o), bytes = o->attr.byte_size;
        const char *type = nrd_datatype_name(o->dtype);
        to = put(to, &size, sizeof size);
        to = put_part(to, o->name, strlen(o->name));
        to = put_part(to, type, strlen(type));
        to = put_part(to, o->dims, o->n_dims * sizeof o->dims[0]);
        to = put(to, &bytes, sizeof bytes);
        to = put(to, o->base, bytes);
    }
    to = put(to, a->question->data, n_question);
    to = put(to, &n_question, sizeof n_question);
    if (a->cache->is_outside) {
        make_seal(seal, a, b->base, (size_t)(to - (char *)b->base));
        put(to, seal, sizeof seal);
    }
    return NULL;
}

typedef struct reader {
    const char *at;
    size_t left;
    bool bad;
} reader;

static const char *get(reader *r, size_t n)
{
    const char *p = r->at;
    if (r->bad || n > r->left) {
        r->bad = true;
        return NULL;
    }
    r->at += n;
    r->left -= n;
    return p;
}

static uint64_t get_number(reader *r, size_t width)
{
    uint64_t v = 0;
    const char *p = get(r, width);
    if (p) {
        memcpy(&v, p, width); /* little end first */
    }
    return v;
}

static nrd_error *bad_bytes(void)
{
    return nrd_errorf(NRD_ERR_INTERNAL, "Unexpected number of bytes received from the cache");
}

static nrd_error *unpack_output(nrd_response *r, reader *in)
{
    char name[1024] = "", type[16] = "";
    int64_t dims[NRD_MAX_RANK];
    TRITONSERVER_MemoryType place = TRITONSERVER_MEMORY_CPU;
    int64_t place_id = 0;
    nrd_output *o = NULL;
    size_t n = (size_t)get_number(in, sizeof(uint32_t));
    const char *p = n < sizeof name ? get(in, n) : NULL;

    if (p) {
        memcpy(name, p, n);
    }
    n = (size_t)get_number(in, sizeof(uint32_t));
    p = p && n < sizeof type ? get(in, n) : NULL;
    if (p) {
        memcpy(type, p, n);
    }
    n = (size_t)get_number(in, sizeof(uint32_t));
    p = p && n <= sizeof dims && n % sizeof dims[0] == 0 ? get(in, n) : NULL;
    if (p) {
        memcpy(dims, p, n);
    }
    size_t bytes = (size_t)get_number(in, sizeof(uint64_t));
    const char *data = p ? get(in, bytes) : NULL;
    if (!data || in->left > 0) {
        return bad_bytes();
    }
    NRD_TRY(nrd_response_add_output(&o, r, name, TRITONSERVER_StringToDataType(type), dims,
                                    (uint32_t)(n / sizeof dims[0])));
    memcpy(o->dims, dims, n); /* as it was sent: the reshape of the configuration is undone */
    o->n_dims = (uint32_t)(n / sizeof dims[0]);
    NRD_TRY(nrd_output_alloc(o, bytes, &place, &place_id));
    NRD_TRY(check_place(o));
    if (bytes) {
        memcpy(o->base, data, bytes);
    }
    return NULL;
}

/* Takes the seal off; false: it is not ours, or not for this key. */
static bool is_sealed(const allocator *a, reader *all)
{
    uint64_t seal[2];

    if (all->left < SEAL_BYTES) {
        return false;
    }
    all->left -= SEAL_BYTES;
    make_seal(seal, a, all->at, all->left);
    return memcmp(seal, all->at + all->left, SEAL_BYTES) == 0;
}

/* Takes the question off; false: it is not the one that is asked now. */
static bool is_asked(const allocator *a, reader *all)
{
    const uint64_t n = a->question->size_bytes;

    if (all->left < sizeof n || n > all->left - sizeof n) {
        return false;
    }
    all->left -= sizeof n + n;
    return memcmp(all->at + all->left + n, &n, sizeof n) == 0 && memcmp(all->at + all->left, a->question->data, n) == 0;
}

static nrd_error *unpack(const allocator *a, const buffer *b)
{
    nrd_response *r = a->response;
    reader all = {.at = b->base, .left = b->size};
    const bool is_ours = !a->cache->is_outside || is_sealed(a, &all);

    if (!is_ours || !is_asked(a, &all)) {
        NRD_LOG_VERBOSE(1, "what the response cache has under key [%s] is not %s", a->key,
                        is_ours ? "the answer to this request" : "from a server with this secret");
        return nrd_errorf(NRD_ERR_NOT_FOUND, "key [%s] does not exist", a->key);
    }
    uint64_t n = get_number(&all, sizeof(uint32_t));

    for (uint64_t i = 0; i < n; i++) {
        size_t size = (size_t)get_number(&all, sizeof(uint64_t));
        reader one = {.at = get(&all, size), .left = size};
        if (all.bad) {
            return bad_bytes();
        }
        NRD_TRY(unpack_output(r, &one));
    }
    return all.bad || all.left > 0 ? bad_bytes() : NULL;
}

/* ---- looking up and keeping ---- */

static void keep(nrd_factory *f, nrd_response *r)
{
    nrd_cache *c = f->model->ctx->cache;
    allocator a = {.is_insert = true, .response = r, .cache = c, .key = f->cache_key, .question = f->cache_question};
    buffer b = {.size = kept_size(&a)};
    entry e = {.items = &b, .n = 1};
    nrd_error *err = NULL;
    const uint64_t start = nrd_now_ns();

    if (r->error) {
        return;
    }
    for (uint32_t i = 0; i < r->n_outputs && !err; i++) {
        err = check_place(r->outputs[i]);
    }
    if (!err) {
        err = from_api(c->insert(c->impl, f->cache_key, (TRITONCACHE_CacheEntry *)(void *)&e,
                                 (TRITONCACHE_Allocator *)(void *)&a));
    }
    if (!err || nrd_error_get_code(err) != NRD_ERR_ALREADY_EXISTS) {
        nrd_stats_cache_miss(f->model, f->cache_ns + nrd_now_ns() - start);
    }
    if (err && nrd_error_get_code(err) != NRD_ERR_ALREADY_EXISTS) {
        NRD_LOG_ERROR("Failed to insert key [%s] into response cache: %s", f->cache_key,
                      nrd_error_message(err));
    }
    nrd_error_free(err);
}

bool nrd_cache_answer(nrd_request *r)
{
    nrd_cache *c = r->model->ctx->cache;
    nrd_factory *f = r->factory;
    allocator a = {.cache = c};
    entry e = {0};

    f->cache_question = make_question(r);
    f->cache_key = f->cache_question ? make_key(c, f->cache_question) : NULL;
    f->keep_fn = keep;
    if (!f->cache_key) {
        return false;
    }
    a.key = f->cache_key;
    a.question = f->cache_question;
    a.response = nrd_response_new(f);
    if (!a.response || nrd_factory_join_order(f, r->model->scheduler->order)) {
        nrd_response_free(a.response);
        return false; /* the model answers, if it has memory */
    }
    const uint64_t start = nrd_now_ns();
    nrd_error *err = from_api(c->lookup(c->impl, f->cache_key, (TRITONCACHE_CacheEntry *)(void *)&e,
                                        (TRITONCACHE_Allocator *)(void *)&a));
    const uint64_t end = nrd_now_ns();
    free(e.items);
    f->cache_ns = end - start;
    if (err) {
        if (nrd_error_get_code(err) != NRD_ERR_NOT_FOUND) {
            NRD_LOG_ERROR("Failed to look up key [%s] in the response cache: %s", f->cache_key,
                          nrd_error_message(err));
        }
        nrd_error_free(err);
        nrd_response_free(a.response);
        return false;
    }
    free(f->cache_key); /* what came from the cache need not go there */
    f->cache_key = NULL;
    r->queue_ns = start;
    nrd_trace_report(r->trace, TRITONSERVER_TRACE_QUEUE_START, start);
    nrd_stats_cache_hit(r, f->cache_ns);
    nrd_response_send(a.response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, NULL);
    nrd_request_release(r, TRITONSERVER_REQUEST_RELEASE_ALL);
    return true;
}

/* ---- what the library calls ---- */

static nrd_error *null_argument(const char *what)
{
    return nrd_errorf(NRD_ERR_INVALID_ARG, "%s was nullptr", what);
}

static nrd_error *check_type(const nrd_attr *a)
{
    return a->memory_type == TRITONSERVER_MEMORY_GPU
               ? nrd_errorf(NRD_ERR_INVALID_ARG,
                            "Only buffers in CPU memory are allowed in cache currently")
               : NULL;
}

TRITONSERVER_Error *TRITONCACHE_CacheEntryBufferCount(TRITONCACHE_CacheEntry *opaque, size_t *count)
{
    if (!opaque) {
        return as_api(null_argument("entry"));
    }
    *count = ((entry *)(void *)opaque)->n;
    return NULL;
}

TRITONSERVER_Error *
TRITONCACHE_CacheEntryAddBuffer(TRITONCACHE_CacheEntry *opaque, void *base,
                                TRITONSERVER_BufferAttributes *buffer_attributes)
{
    entry *e = (entry *)(void *)opaque;
    const nrd_attr *attr = (const nrd_attr *)(void *)buffer_attributes;

    if (!e || !base || !attr) {
        return as_api(null_argument("entry, base, or attrs"));
    }
    if (attr->byte_size == 0) {
        return as_api(nrd_errorf(NRD_ERR_INVALID_ARG, "Buffer byte size was zero"));
    }
    NRD_API_TRY(check_type(attr));
    buffer *items = realloc(e->items, (e->n + 1) * sizeof *items);
    if (!items) {
        return as_api(nrd_error_no_memory());
    }
    e->items = items;
    e->items[e->n++] = (buffer){.base = base, .size = attr->byte_size};
    return NULL;
}

static nrd_error *buffer_at(entry *e, size_t index, buffer **out)
{
    if (index >= e->n) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "index was greater than count");
    }
    *out = &e->items[index];
    return NULL;
}

TRITONSERVER_Error *
TRITONCACHE_CacheEntryGetBuffer(TRITONCACHE_CacheEntry *opaque, size_t index, void **base,
                                TRITONSERVER_BufferAttributes *buffer_attributes)
{
    buffer *b = NULL;

    if (!opaque || !base || !buffer_attributes) {
        return as_api(null_argument("entry, base, or attrs"));
    }
    NRD_API_TRY(buffer_at((entry *)(void *)opaque, index, &b));
    *base = b->base;
    *(nrd_attr *)(void *)buffer_attributes = (nrd_attr){.byte_size = b->size};
    return NULL;
}

TRITONSERVER_Error *
TRITONCACHE_CacheEntrySetBuffer(TRITONCACHE_CacheEntry *opaque, size_t index, void *new_base,
                                TRITONSERVER_BufferAttributes *buffer_attributes)
{
    const nrd_attr *attr = (const nrd_attr *)(void *)buffer_attributes;
    buffer *b = NULL;

    if (!opaque) {
        return as_api(null_argument("entry"));
    }
    NRD_API_TRY(buffer_at((entry *)(void *)opaque, index, &b));
    if (attr) {
        NRD_API_TRY(check_type(attr));
        b->size = attr->byte_size;
    }
    b->base = new_base;
    return NULL;
}

TRITONSERVER_Error *TRITONCACHE_Copy(TRITONCACHE_Allocator *opaque, TRITONCACHE_CacheEntry *entry_)
{
    const allocator *a = (const allocator *)(void *)opaque;
    const entry *e = (const entry *)(void *)entry_;

    if (!a || !e) {
        return as_api(null_argument("allocator or entry"));
    }
    if (e->n != 1) {
        return as_api(nrd_errorf(NRD_ERR_INTERNAL,
                                 "Expected number of responses in cache does not match. Expected: "
                                 "1, received: %zu",
                                 e->n));
    }
    return as_api(a->is_insert ? pack(a, &e->items[0]) : unpack(a, &e->items[0]));
}
