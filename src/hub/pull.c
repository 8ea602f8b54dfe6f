/* SPDX-License-Identifier: Apache-2.0 */
#include "hub/pull.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/progress.h"
#include "base/str.h"
#include "hub/cache.h"
#include "hub/choose.h"
#include "hub/listing.h"
#include "hub/open.h"
#include "hub/record.h"
#include "hub/refusal.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { MAX_PAGE = 32 << 20, MAX_PAGES = 200, MAX_DESCRIPTION = 16 << 20, N_POINTER = 200 };
#define SPACE_LEFT ((uint64_t)64 << 20) /* for what others write meanwhile */

typedef struct pulling {
    const nrd_hub_settings *s;
    const nrd_hub_id *id;
    const nrd_hub_ops *ops;
    nrd_hub_access access;
    char commit[NRD_HUB_COMMIT + 1];
    char *repo_dir;
    nrd_hub_listing listing;
    bool *wanted;      /* of the listing's files */
    const char *model; /* which of them is opened; NULL: the folder */
    nrd_progress *bar;
    const char **fetched; /* paths of the files that this call fetched; borrows from the listing */
    size_t n_fetched;
    const nrd_hub_watch *watch; /* NULL: nobody */
    const nrd_hub_file *file;   /* being fetched, with so many bytes there */
    uint64_t done;
} pulling;

/* ---- questions ---- */

static void put_escaped(nrd_str *out, const char *path, bool keeps_slash)
{
    for (const char *p = path; *p; p++) {
        const unsigned char c = (unsigned char)*p;
        const bool is_plain = isalnum(c) || strchr("-._~", c) || (c == '/' && keeps_slash);
        nrd_str_printf(out, is_plain ? "%c" : "%%%02X", c);
    }
}

static void take_text(void *user, const char *data, size_t n)
{
    nrd_str_append(user, data, n);
}

static nrd_error *get(pulling *p, const char *url, size_t max_bytes, nrd_str *out, nrd_hub_reply *reply)
{
    nrd_hub_fault fault = {.code = 0};
    p->ops->get(&p->access, url, max_bytes, take_text, out, reply, &fault);
    NRD_TRY(nrd_hub_refusal(p->s, p->id, NULL, reply, &fault));
    return nrd_str_error(out);
}

static nrd_error *find_commit(pulling *p)
{
    nrd_str url = {0}, text = {0};
    nrd_hub_reply reply;

    nrd_str_printf(&url, "%s/api/models/%s/revision/", p->s->endpoint, p->id->repo);
    put_escaped(&url, p->id->rev, false);
    nrd_error *err = get(p, nrd_str_cstr(&url), MAX_DESCRIPTION, &text, &reply);
    err = err ? err : nrd_hub_read_commit(p->commit, nrd_str_cstr(&text), text.len);
    nrd_str_fini(&url);
    nrd_str_fini(&text);
    return err;
}

static nrd_error *list(pulling *p)
{
    nrd_str url = {0}, text = {0};
    nrd_hub_reply reply = {.status = 0};
    const size_t n = strlen(p->s->endpoint);
    nrd_error *err = NULL;

    nrd_str_printf(&url, "%s/api/models/%s/tree/%s?recursive=true", p->s->endpoint, p->id->repo, p->commit);
    for (int page = 0; !err && url.len > 0; page++) {
        nrd_str_clear(&text);
        err = page < MAX_PAGES ? get(p, nrd_str_cstr(&url), MAX_PAGE, &text, &reply)
                               : nrd_errorf(NRD_ERR_INVALID_ARG, "the hub's list of files has more than %d pages", MAX_PAGES);
        err = err ? err : nrd_hub_listing_add(&p->listing, nrd_str_cstr(&text), text.len);
        if (!err && reply.next[0] && (strncmp(reply.next, p->s->endpoint, n) != 0 || reply.next[n] != '/')) {
            err = nrd_errorf(NRD_ERR_INVALID_ARG, "the hub's list of files goes on at another host: not followed");
        }
        nrd_str_clear(&url);
        nrd_str_puts(&url, err ? "" : reply.next);
    }
    nrd_str_fini(&url);
    nrd_str_fini(&text);
    return err;
}

static nrd_error *choose(pulling *p)
{
    const size_t n = p->listing.n;
    const char **names = nrd_xcalloc(n + 1, sizeof *names);

    p->wanted = nrd_xcalloc(n + 1, sizeof *p->wanted);
    for (size_t i = 0; i < n; i++) {
        names[i] = p->listing.files[i].path;
    }
    nrd_error *err = nrd_hub_choose(p->id, names, n, p->wanted, &p->model);
    free(names);
    return err;
}

/* ---- the disk ---- */

static uint64_t size_of(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0;
}

static char *blob_of(const pulling *p, const nrd_hub_file *f)
{
    return nrd_xasprintf("%s/blobs/%s", p->repo_dir, f->hash);
}

static bool has_blob(const char *blob, uint64_t size)
{
    struct stat st;
    return stat(blob, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size == size;
}

static nrd_error *check_space(const char *dir, const char *name, uint64_t need, const char *variable)
{
    struct statvfs v;
    if (statvfs(dir, &v) != 0) {
        return nrd_errorf(NRD_ERR_INTERNAL, "'%s': %s", dir, strerror(errno));
    }
    const uint64_t is_free = (uint64_t)v.f_bavail * v.f_frsize;
    if (need > 0 && (is_free < SPACE_LEFT || need > is_free - SPACE_LEFT)) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "%s needs %.2f GB more, and '%s' has %.2f GB: remove models (nereid rm), or "
                          "set %s to a folder on another disk", name, (double)need / 1e9, dir, (double)is_free / 1e9,
                          variable);
    }
    return NULL;
}

/* ---- files ---- */

/* A file whose content was wrong is fetched anew: it has no more bytes than it has. */
static void tell(pulling *p, uint64_t n)
{
    if (p->watch && p->file) {
        p->done = n < p->file->size - p->done ? p->done + n : p->file->size;
        p->watch->file(p->watch->user, p->file, p->done);
    }
}

static void on_progress(void *user, uint64_t n, bool is_old)
{
    pulling *p = user;
    tell(p, n);
    if (is_old) {
        nrd_progress_skip(p->bar, n);
    } else {
        nrd_progress_add(p->bar, n);
    }
}

/* What stands for a large file where the hub, or who copied it, has no Git LFS. */
static nrd_error *check_pointer(const nrd_hub_file *f, const char *path)
{
    static const char start[] = "version https://git-lfs.github.com/spec/";
    char *text = NULL;
    size_t n = 0;
    nrd_error *err = NULL;

    if (!f->is_lfs && f->size < N_POINTER) {
        nrd_error_free(nrd_file_read(&text, &n, path, N_POINTER));
        if (text && nrd_str_has_prefix(text, start)) {
            err = nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' is a Git LFS pointer and not the file: this hub does not have it; "
                             "take another HF_ENDPOINT", f->path);
        }
    }
    free(text);
    return err;
}

static nrd_error *fetch_blob(pulling *p, const nrd_hub_file *f, const char *blob)
{
    nrd_str url = {0};
    nrd_hub_reply reply = {.status = 0};
    nrd_hub_fault fault = {.code = 0};
    char *path = nrd_xasprintf("%s.incomplete", blob);

    nrd_str_printf(&url, "%s/%s/resolve/%s/", p->s->endpoint, p->id->repo, p->commit);
    put_escaped(&url, f->path, true);
    const nrd_hub_part part = {.url = nrd_str_cstr(&url), .path = path, .size = f->size, .hash = f->hash, .etag = "",
                               .kind = f->is_lfs ? NRD_HUB_HASH_SHA256 : NRD_HUB_HASH_GIT};
    p->ops->fetch(&p->access, &part, on_progress, p, &reply, &fault);
    nrd_error *err = nrd_hub_refusal(p->s, p->id, f->path, &reply, &fault);
    err = err ? err : check_pointer(f, path);
    if (!err && rename(path, blob) != 0) {
        err = nrd_errorf(NRD_ERR_INTERNAL, "cannot rename '%s': %s", path, strerror(errno));
    }
    nrd_str_fini(&url);
    free(path);
    return err;
}

/* huggingface_hub takes the same lock for a file. */
static nrd_error *fetch_file(pulling *p, const nrd_hub_file *f)
{
    char *blob = blob_of(p, f);
    int lock = -1;
    nrd_error *err = NULL;

    p->file = f;
    p->done = 0;
    tell(p, 0);
    if (!has_blob(blob, f->size)) {
        err = nrd_hub_lock(&lock, p->s, p->repo_dir, f->hash, f->path);
        if (!err && has_blob(blob, f->size)) {
            nrd_progress_skip(p->bar, f->size);
        } else if (!err) {
            err = fetch_blob(p, f, blob);
            p->fetched[p->n_fetched++] = f->path;
        }
        if (lock >= 0) {
            close(lock);
        }
    }
    err = err ? err : nrd_hub_link(p->repo_dir, p->commit, f);
    if (!err) {
        tell(p, f->size);
    }
    p->file = NULL;
    free(blob);
    return err;
}

static int by_size(const void *a, const void *b)
{
    const nrd_hub_file *x = a, *y = b;
    return (x->size > y->size) - (x->size < y->size);
}

/* Small files first: weights come last, so what has its weights has all. */
static nrd_error *fetch_files(pulling *p, bool is_quiet)
{
    nrd_hub_file *files = nrd_xcalloc(p->listing.n + 1, sizeof *files);
    char *blobs = nrd_path_join(p->repo_dir, "blobs"), *snapshot = nrd_xasprintf("%s/snapshots/%s", p->repo_dir, p->commit);
    const bool is_new = !nrd_path_exists(snapshot);
    uint64_t bytes = 0, need = 0;
    size_t n = 0;
    nrd_error *err = nrd_mkdirs(blobs);

    p->fetched = nrd_xcalloc(p->listing.n + 1, sizeof *p->fetched);
    for (size_t i = 0; i < p->listing.n; i++) {
        if (p->wanted[i]) {
            const nrd_hub_file *f = &p->listing.files[i];
            char *blob = blob_of(p, f), *part = nrd_xasprintf("%s.incomplete", blob);
            const uint64_t has = size_of(part);
            if (!has_blob(blob, f->size)) {
                bytes += f->size;
                need += f->size > has ? f->size - has : 0;
            }
            free(part);
            free(blob);
            files[n++] = *f;
        }
    }
    qsort(files, n, sizeof *files, by_size);
    err = err ? err : check_space(blobs, p->id->repo, need, "HF_HOME");
    p->bar = bytes > 0 && !is_quiet && !err ? nrd_progress_new(p->id->repo, bytes) : NULL;
    for (size_t i = 0; i < n && !err; i++) {
        err = fetch_file(p, &files[i]);
    }
    nrd_progress_done(p->bar);
    p->bar = NULL;
    for (size_t i = 0; i < n && is_new; i++) { /* also what was here for another revision */
        p->fetched[i] = files[i].path;
    }
    nrd_hub_record_add(p->s, p->repo_dir, p->commit, p->fetched, is_new ? n : p->n_fetched);
    free(p->fetched);
    free(files);
    free(blobs);
    free(snapshot);
    return err;
}

static nrd_error *pull_repo(pulling *p, bool is_quiet, char **out_path)
{
    int lock = -1;
    nrd_error *err = NULL;

    p->repo_dir = nrd_hub_repo_dir(p->s, p->id->repo);
    NRD_TRY_GOTO(nrd_hub_lock(&lock, p->s, p->repo_dir, "nereid", p->id->repo), err, done);
    NRD_TRY_GOTO(find_commit(p), err, done);
    NRD_TRY_GOTO(list(p), err, done);
    NRD_TRY_GOTO(choose(p), err, done);
    NRD_TRY_GOTO(fetch_files(p, is_quiet), err, done);
    NRD_TRY_GOTO(nrd_hub_set_ref(p->repo_dir, p->id->rev, p->commit), err, done);
    *out_path = nrd_xasprintf("%s/snapshots/%s%s%s", p->repo_dir, p->commit, p->model ? "/" : "", p->model ? p->model : "");
done:
    if (lock >= 0) {
        close(lock);
    }
    nrd_hub_listing_fini(&p->listing);
    free(p->wanted);
    free(p->repo_dir);
    return err;
}

/* ---- files of other addresses ---- */

/* A beginning is of use only where the file is still the same. */
static nrd_error *keep_or_drop(const char *part, const char *etag_file, const char *etag)
{
    char *old = NULL;
    size_t n = 0;

    nrd_error_free(nrd_file_read(&old, &n, etag_file, 256));
    const bool is_same = old && etag[0] && !strcmp(old, etag);
    free(old);
    if (!is_same) {
        (void)unlink(part);
    }
    return is_same ? NULL : nrd_file_write(etag_file, etag, strlen(etag));
}

static nrd_error *check_gguf(const char *path, const char *url)
{
    char magic[4] = "";
    FILE *f = fopen(path, "rb");
    const bool is_gguf = f && fread(magic, 1, sizeof magic, f) == sizeof magic && !memcmp(magic, "GGUF", 4);
    if (f) {
        fclose(f);
    }
    if (!is_gguf) {
        (void)unlink(path);
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' is no GGUF file, maybe a page about one: what came was removed", url);
    }
    return NULL;
}

static nrd_error *fetch_url(pulling *p, const char *file, const char *part, const char *etag_file, bool is_quiet)
{
    nrd_hub_reply reply = {.status = 0};
    nrd_hub_fault fault = {.code = 0};
    nrd_hub_part what = {.url = p->id->url, .path = part, .hash = "", .kind = NRD_HUB_HASH_NONE};
    char etag[256] = "", *dir = nrd_path_dir(file);
    nrd_error *err = nrd_mkdirs(dir);

    if (!err) {
        p->ops->measure(&p->access, p->id->url, &what.size, etag, &reply, &fault);
        err = nrd_hub_refusal(p->s, p->id, NULL, &reply, &fault);
    }
    if (!err && what.size > NRD_HUB_MAX_FILE_BYTES) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' has more than %llu bytes", p->id->url,
                         (unsigned long long)NRD_HUB_MAX_FILE_BYTES);
    }
    what.etag = etag;
    err = err ? err : keep_or_drop(part, etag_file, etag);
    err = err ? err : check_space(dir, nrd_path_base(file), what.size - (size_of(part) < what.size ? size_of(part) : 0),
                                  "NEREID_CACHE");
    if (!err) {
        p->bar = is_quiet ? NULL : nrd_progress_new(nrd_path_base(file), what.size);
        p->ops->fetch(&p->access, &what, on_progress, p, &reply, &fault);
        nrd_progress_done(p->bar);
        err = nrd_hub_refusal(p->s, p->id, NULL, &reply, &fault);
    }
    err = err ? err : check_gguf(part, p->id->url);
    if (!err && rename(part, file) != 0) {
        err = nrd_errorf(NRD_ERR_INTERNAL, "cannot rename '%s': %s", part, strerror(errno));
    }
    if (!err) {
        (void)unlink(etag_file);
    }
    free(dir);
    return err;
}

static nrd_error *pull_url(pulling *p, bool is_quiet, char **out_path)
{
    char *file = nrd_hub_url_file(p->s, p->id->url);
    int lock = -1;

    if (!file) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' is no address of a file", p->id->url);
    }
    char *part = nrd_xasprintf("%s.incomplete", file), *etag_file = nrd_xasprintf("%s.etag", file);
    nrd_error *err = nrd_hub_lock(&lock, p->s, "files", "nereid", p->id->url);
    p->access.origin = p->id->url;
    p->access.token = ""; /* it is the hub's */
    if (!err && !nrd_path_exists(file)) {
        err = fetch_url(p, file, part, etag_file, is_quiet);
    }
    if (lock >= 0) {
        close(lock);
    }
    if (!err) {
        *out_path = file;
        file = NULL;
    }
    free(file);
    free(part);
    free(etag_file);
    return err;
}

nrd_error *nrd_hub_pull(const nrd_hub_settings *s, const nrd_hub_id *id, bool is_quiet, const nrd_hub_watch *watch,
                        char **out_path)
{
    pulling p = {.s = s, .id = id, .watch = watch, .access = {.origin = s->endpoint, .token = s->token, .ca_file = s->ca_file,
                                              .stall_secs = s->stall_secs}};
    *out_path = NULL;
    if (s->is_offline) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "'%s' is not in the cache ('%s'), and HF_HUB_OFFLINE is set: unset it and pull "
                          "it", id->url[0] ? id->url : id->repo, id->url[0] ? s->own : s->cache);
    }
    NRD_TRY(nrd_hub_open(&p.ops));
    return id->url[0] ? pull_url(&p, is_quiet, out_path) : pull_repo(&p, is_quiet, out_path);
}

/* ---- what a user names ---- */

static void tell_both(const nrd_hub_settings *s, const char *text)
{
    nrd_hub_id id;
    nrd_error *err = nrd_hub_id_is(text) ? nrd_hub_id_parse(&id, text, s->endpoint) : NULL;
    char *cached = !err && nrd_hub_id_is(text) ? nrd_hub_cached(s, &id) : NULL;
    if (cached) {
        fprintf(stderr, "'%s' is taken from this folder; the hub's model of that name is hf:%s\n", text, text);
    }
    nrd_error_free(err);
    free(cached);
}

static void note_use(const nrd_hub_settings *s, const nrd_hub_id *id)
{
    char *repo_dir = nrd_hub_repo_dir(s, id->repo), commit[NRD_HUB_COMMIT + 1];
    if (!id->url[0] && nrd_hub_cached_commit(repo_dir, id->rev, commit)) {
        nrd_hub_record_use(s, repo_dir, commit);
    }
    free(repo_dir);
}

static nrd_error *resolve_id(const nrd_hub_settings *s, const char *text, char **out_path)
{
    nrd_hub_id id;
    NRD_TRY(nrd_hub_id_parse(&id, text, s->endpoint));
    *out_path = nrd_hub_cached(s, &id);
    if (*out_path) {
        note_use(s, &id);
        return NULL;
    }
    nrd_error *err = nrd_hub_pull(s, &id, false, NULL, out_path);
    const bool is_bare = !nrd_str_has_prefix(text, "hf:") && !id.url[0];
    return is_bare ? nrd_error_wrap(err, "no file or folder '%s' is here", text) : err;
}

nrd_error *nrd_hub_resolve(const char *text, char **out_path)
{
    nrd_hub_settings s = {0};
    const bool is_local = nrd_path_exists(text);
    const bool is_hidden = !is_local && errno != ENOENT && errno != ENOTDIR; /* a path, not a name of the hub */
    nrd_error *err = NULL;

    *out_path = NULL;
    if (!is_local && (is_hidden || !nrd_hub_id_is(text))) {
        return nrd_path_missing(text);
    }
    err = nrd_hub_settings_read(&s);
    if (is_local) {
        if (!err) {
            tell_both(&s, text);
        }
        nrd_error_free(err); /* the hub is not asked */
        err = NULL;
        *out_path = nrd_xstrdup(text);
    } else if (!err) {
        err = resolve_id(&s, text, out_path);
    }
    nrd_hub_settings_fini(&s);
    return err;
}
