/* SPDX-License-Identifier: Apache-2.0 */
#include "hub/record.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/str.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_RECORD = 16 << 20 };

/* Two caches may have the same model: the hash tells them apart. */
static char *path_of(const nrd_hub_settings *s, const char *repo_dir, const char *commit)
{
    const unsigned long long h = nrd_hash_bytes(1, repo_dir, strlen(repo_dir)) & 0xffffffffffffu;
    return nrd_xasprintf("%s/pulled/%s-%s-%012llx", s->own, nrd_path_base(repo_dir), commit, h);
}

/* Owned; NULL: there is no record. */
static char *read_record(const char *path)
{
    char *text = NULL;
    size_t n = 0;
    nrd_error_free(nrd_file_read(&text, &n, path, MAX_RECORD));
    return text;
}

static bool has_line(const char *text, const char *line)
{
    const size_t n = strlen(line);
    for (const char *p = text; p && *p; p += strcspn(p, "\n") + (p[strcspn(p, "\n")] == '\n')) {
        if (!strncmp(p, line, n) && (p[n] == '\n' || p[n] == '\0')) {
            return true;
        }
    }
    return false;
}

void nrd_hub_record_add(const nrd_hub_settings *s, const char *repo_dir, const char *commit, const char *const *files,
                        size_t n)
{
    char *path = path_of(s, repo_dir, commit), *dir = nrd_path_dir(path), *old = read_record(path);
    nrd_str text = {0};
    nrd_error *err = nrd_mkdirs(dir);

    nrd_str_puts(&text, old ? old : "");
    for (size_t i = 0; i < n; i++) {
        if (!has_line(old ? old : "", files[i])) {
            nrd_str_printf(&text, "%s\n", files[i]);
        }
    }
    nrd_error_free(err ? err : nrd_file_write(path, nrd_str_cstr(&text), text.len));
    nrd_str_fini(&text);
    free(old);
    free(dir);
    free(path);
}

bool nrd_hub_record_has(const nrd_hub_settings *s, const char *repo_dir, const char *commit, const char *file,
                        time_t *out_used)
{
    char *path = path_of(s, repo_dir, commit), *text = read_record(path);
    struct stat st;
    const bool is_there = text && has_line(text, file);

    *out_used = is_there && stat(path, &st) == 0 ? st.st_mtime : 0;
    free(text);
    free(path);
    return is_there;
}

void nrd_hub_record_use(const nrd_hub_settings *s, const char *repo_dir, const char *commit)
{
    char *path = path_of(s, repo_dir, commit);
    (void)utimensat(AT_FDCWD, path, NULL, 0);
    free(path);
}

void nrd_hub_record_drop(const nrd_hub_settings *s, const char *repo_dir, const char *commit)
{
    char *path = path_of(s, repo_dir, commit);
    (void)unlink(path);
    free(path);
}
