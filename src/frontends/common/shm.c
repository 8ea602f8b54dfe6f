/* SPDX-License-Identifier: Apache-2.0
 * The table of registered shared-memory regions. Life: register (opened and mapped outside the
 * lock) -> used by requests, counted -> unregister -> unmapped with the last user. Called by the
 * shared-memory endpoints of HTTP and gRPC and for each input or output that names a region. */
#include "frontends/common/shm.h"

#include "base/foreign.h"
#include "base/json.h"
#include "base/mem.h"
#include "frontends/common/cuda_ipc.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct nrd_shm_region {
    nrd_shm_region *next;
    char *name, *key;
    uint64_t offset, size;
    char *map; /* page-aligned */
    nrd_foreign *watch; /* of map: its maker may cut it short */
    size_t map_size;
    char *base;
    bool cuda;
    int device;
    uint64_t address; /* of a region of CUDA, to be closed; base is the same */
    int users;
};

struct nrd_shm {
    bool allowed;
    pthread_mutex_t mu;
    nrd_shm_region *regions; /* guarded by mu; sorted by name */
};

static void region_free(nrd_shm_region *r)
{
    if (r) {
        nrd_foreign_remove(r->watch);
        if (r->map) {
            munmap(r->map, r->map_size);
        }
        if (r->address) {
            nrd_cuda_ipc_close(r->device, r->address);
        }
        free(r->name);
        free(r->key);
        free(r);
    }
}

nrd_error *nrd_shm_new(nrd_shm **out, bool allowed)
{
    *out = calloc(1, sizeof **out);
    if (!*out) {
        return nrd_error_no_memory();
    }
    (*out)->allowed = allowed;
    pthread_mutex_init(&(*out)->mu, NULL);
    return NULL;
}

static nrd_error *check_allowed(const nrd_shm *s)
{
    return s->allowed ? NULL
                      : nrd_errorf(NRD_ERR_UNSUPPORTED,
                                   "Client shared memory is disabled. Start the "
                                   "server with '--allow-client-shm=true' to enable.");
}

void nrd_shm_free(nrd_shm *s)
{
    if (!s) {
        return;
    }
    while (s->regions) {
        nrd_shm_region *r = s->regions;
        s->regions = r->next;
        region_free(r);
    }
    pthread_mutex_destroy(&s->mu);
    free(s);
}

/* The link that points to the region, or to where it belongs. Lock held. */
static nrd_shm_region **find(nrd_shm *s, const char *name)
{
    nrd_shm_region **at = &s->regions;
    while (*at && strcmp((*at)->name, name) < 0) {
        at = &(*at)->next;
    }
    return at;
}

static nrd_shm_region *lookup(nrd_shm *s, const char *name)
{
    nrd_shm_region *r = *find(s, name);
    return r && strcmp(r->name, name) == 0 ? r : NULL;
}

static nrd_error *open_cuda(nrd_shm_region *r, const void *handle)
{
    uint64_t size = 0;
    nrd_error *err = nrd_cuda_ipc_open(r->device, handle, &r->address, &size);
    if (err) {
        r->address = 0;
        return nrd_error_wrap(err, "failed to register CUDA shared memory region '%s'", r->name);
    }
    if (r->size == 0 || r->size > size) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "failed to register shared memory region '%s': invalid args", r->name);
    }
    r->base = (char *)(uintptr_t)r->address;
    return NULL;
}

static nrd_error *map_region(nrd_shm_region *r)
{
    struct stat st;
    nrd_error *err = NULL;
    uint64_t end;
    int fd = shm_open(r->key, O_RDWR | O_CLOEXEC, 0);
    if (fd < 0) {
        return nrd_errorf(NRD_ERR_INTERNAL, "Unable to open shared memory region: '%s'", r->key);
    }
    if (fstat(fd, &st) != 0 || st.st_size < 0) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "Invalid shared memory region: '%s'", r->key);
    } else if (r->size == 0 || __builtin_add_overflow(r->offset, r->size, &end) ||
               end > (uint64_t)st.st_size) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG,
                         "failed to register shared memory region '%s': invalid args", r->name);
    } else {
        uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), from = r->offset / page * page;
        r->map_size = (size_t)(end - from);
        void *p = mmap(NULL, r->map_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)from);
        if (p == MAP_FAILED) {
            err = nrd_errorf(NRD_ERR_INTERNAL, "shared memory region '%s': %s", r->name,
                             strerror(errno));
        } else {
            r->map = p;
            r->base = r->map + (r->offset - from);
            err = nrd_foreign_add(&r->watch, p, r->map_size);
        }
    }
    close(fd);
    return err;
}

static bool has(nrd_shm *s, const char *name)
{
    pthread_mutex_lock(&s->mu);
    const bool known = lookup(s, name) != NULL;
    pthread_mutex_unlock(&s->mu);
    return known;
}

/* false: the name was taken meanwhile. */
static bool put_in_table(nrd_shm *s, nrd_shm_region *r)
{
    pthread_mutex_lock(&s->mu);
    const bool known = lookup(s, r->name) != NULL;
    if (!known) {
        nrd_shm_region **at = find(s, r->name);
        r->next = *at;
        *at = r;
    }
    pthread_mutex_unlock(&s->mu);
    return !known;
}

/* Opens the region, which may take a while and so is done without the lock, and adds it to the
 * table. Takes ownership of r, also on error. handle NULL: of the system. */
static nrd_error *add(nrd_shm *s, nrd_shm_region *r, const void *handle)
{
    nrd_error *err = NULL;
    bool known = has(s, r->name);
    if (!known) {
        err = handle ? open_cuda(r, handle) : map_region(r);
        known = !err && !put_in_table(s, r);
    }
    if (known) {
        err = nrd_errorf(NRD_ERR_ALREADY_EXISTS, "shared memory region '%s' already in manager",
                         r->name);
    }
    if (err) {
        region_free(r);
    }
    return err;
}

nrd_error *nrd_shm_register(nrd_shm *s, const char *name, const char *key, uint64_t offset,
                            uint64_t size)
{
    NRD_TRY(check_allowed(s));
    nrd_shm_region *r = calloc(1, sizeof *r);
    if (!r || !(r->name = strdup(name)) || !(r->key = strdup(key))) {
        region_free(r);
        return nrd_error_no_memory();
    }
    r->offset = offset;
    r->size = size;
    return add(s, r, NULL);
}

nrd_error *nrd_shm_register_cuda(nrd_shm *s, const char *name, const void *handle, int64_t device,
                                 uint64_t size)
{
    NRD_TRY(check_allowed(s));
    if (!nrd_cuda_ipc_available()) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "failed to register CUDA shared memory region: '%s', GPUs not supported",
                          name);
    }
    nrd_shm_region *r = calloc(1, sizeof *r);
    if (!r || !(r->name = strdup(name))) {
        region_free(r);
        return nrd_error_no_memory();
    }
    r->cuda = true;
    r->device = device < 0 || device > INT32_MAX ? -1 : (int)device;
    r->size = size;
    return add(s, r, handle);
}

static bool is_named(const nrd_shm_region *r, bool cuda, const char *name)
{
    return r->cuda == cuda && (!name || strcmp(r->name, name) == 0);
}

nrd_error *nrd_shm_unregister(nrd_shm *s, bool cuda, const char *name)
{
    nrd_error *err = NULL;
    nrd_shm_region *gone = NULL;

    NRD_TRY(check_allowed(s));
    pthread_mutex_lock(&s->mu);
    for (nrd_shm_region **at = &s->regions; *at;) {
        nrd_shm_region *r = *at;
        if (!is_named(r, cuda, name)) {
            at = &r->next;
        } else if (r->users > 0) {
            if (!err) {
                err = nrd_errorf(NRD_ERR_INTERNAL,
                                 "Cannot unregister shared memory region '%s', it is currently in "
                                 "use.",
                                 r->name);
            }
            at = &r->next;
        } else {
            *at = r->next;
            r->next = gone;
            gone = r;
        }
    }
    pthread_mutex_unlock(&s->mu);
    while (gone) {
        nrd_shm_region *next = gone->next;
        region_free(gone);
        gone = next;
    }
    return err;
}

static void put_region(nrd_str *out, const nrd_shm_region *r)
{
    nrd_str_puts(out, "{\"name\":");
    nrd_json_put_cstr(out, r->name);
    if (r->cuda) {
        nrd_str_printf(out, ",\"device_id\":%d,\"byte_size\":%llu}", r->device,
                       (unsigned long long)r->size);
        return;
    }
    nrd_str_puts(out, ",\"key\":");
    nrd_json_put_cstr(out, r->key);
    nrd_str_printf(out, ",\"offset\":%llu,\"byte_size\":%llu}", (unsigned long long)r->offset,
                   (unsigned long long)r->size);
}

nrd_error *nrd_shm_status(nrd_shm *s, bool cuda, const char *name, nrd_str *out)
{
    nrd_error *err = NULL;
    bool first = true;
    pthread_mutex_lock(&s->mu);
    const nrd_shm_region *named = name ? lookup(s, name) : NULL;
    if (name && !named) {
        err = nrd_errorf(NRD_ERR_NOT_FOUND, "Unable to find %s shared memory region: '%s'",
                         cuda ? "cuda" : "system", name);
    } else if (named && named->cuda != cuda) {
        err = nrd_errorf(NRD_ERR_NOT_FOUND,
                         "The region named '%s' is registered as %s shared memory, not %s shared "
                         "memory",
                         name, named->cuda ? "CUDA" : "system", cuda ? "CUDA" : "system");
    } else {
        nrd_str_putc(out, '[');
        for (nrd_shm_region *r = s->regions; r; r = r->next) {
            if (r->cuda == cuda && (!name || r == named)) {
                nrd_str_puts(out, first ? "" : ",");
                put_region(out, r);
                first = false;
            }
        }
        nrd_str_putc(out, ']');
    }
    pthread_mutex_unlock(&s->mu);
    return err;
}

static nrd_error *lost(const nrd_shm_region *r)
{
    return nrd_errorf(NRD_ERR_INVALID_ARG,
                      "shared memory region '%s' became shorter than the %llu bytes that were registered; "
                      "unregister it",
                      r->name, (unsigned long long)r->size);
}

nrd_error *nrd_shm_check(const nrd_shm_region *region)
{
    return region && nrd_foreign_is_lost(region->watch) ? lost(region) : NULL;
}

nrd_error *nrd_shm_get(nrd_shm *s, const char *name, uint64_t offset, uint64_t size,
                       nrd_shm_region **out_region, void **out_base)
{
    nrd_error *err = NULL;
    *out_region = NULL;
    *out_base = NULL;
    NRD_TRY(check_allowed(s));
    pthread_mutex_lock(&s->mu);
    nrd_shm_region *r = lookup(s, name);
    if (!r) {
        err = nrd_errorf(NRD_ERR_NOT_FOUND, "Unable to find shared memory region: '%s'", name);
    } else if (offset > r->size) {
        err =
            nrd_errorf(NRD_ERR_INVALID_ARG, "Invalid offset for shared memory region: '%s'", name);
    } else if (nrd_foreign_is_lost(r->watch)) {
        err = lost(r);
    } else if (size > r->size - offset) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG,
                         "Invalid offset + byte size for shared memory region: '%s'", name);
    } else {
        r->users++;
        *out_region = r;
        *out_base = r->base + offset;
    }
    pthread_mutex_unlock(&s->mu);
    return err;
}

void nrd_shm_put(nrd_shm *s, nrd_shm_region *region)
{
    if (region) {
        pthread_mutex_lock(&s->mu);
        region->users--;
        pthread_mutex_unlock(&s->mu);
    }
}

bool nrd_shm_is_cuda(const nrd_shm_region *region)
{
    return region && region->cuda;
}

nrd_error *nrd_shm_read(const nrd_shm_region *region, const void *base, void *to, size_t n)
{
    if (region->cuda) {
        return nrd_cuda_ipc_read(region->device, (uint64_t)(uintptr_t)base, to, n);
    }
    if (n) {
        memcpy(to, base, n);
    }
    return nrd_shm_check(region);
}

nrd_error *nrd_shm_write(const nrd_shm_region *region, void *base, const void *from, size_t n)
{
    if (region->cuda) {
        return nrd_cuda_ipc_write(region->device, (uint64_t)(uintptr_t)base, from, n);
    }
    if (n) {
        memcpy(base, from, n);
    }
    return nrd_shm_check(region);
}
