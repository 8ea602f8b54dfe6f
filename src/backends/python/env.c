/* SPDX-License-Identifier: Apache-2.0
 * Execution environments: a folder, or an archive (conda-pack) that is unpacked once. */
#include "backends/python/backend.h"

#include "base/file.h"
#include "base/log.h"

#include <errno.h>
#include <ftw.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *where)
{
    (void)st, (void)type, (void)where;
    return remove(path);
}

static void remove_tree(const char *folder)
{
    if (nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS) != 0) {
        NRD_LOG_WARN("cannot remove '%s': %s", folder, strerror(errno));
    }
}

static void env_free(nrd_py_env *e)
{
    if (e && e->unpacked) {
        remove_tree(e->folder);
    }
    if (e) {
        free(e->source);
        free(e->folder);
    }
    free(e);
}

/* tar knows every compression that such archives come in, and refuses paths that lead out. */
static TRITONSERVER_Error *unpack(const char *archive, const char *folder)
{
    const char *argv[] = {"tar", "-x", "-f", archive, "-C", folder, NULL};
    pid_t pid = 0;
    int status = posix_spawnp(&pid, "tar", NULL, NULL, (char *const *)(uintptr_t)argv, environ);
    if (status != 0) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL,
                             "Failed to extract the execution environment '%s': cannot run tar: %s",
                             archive, strerror(status));
    }
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL,
                             "Failed to extract the execution environment '%s': tar ended with "
                             "status %d",
                             archive, WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    }
    return NULL;
}

static nrd_py_env *find(nrd_py_backend *b, const char *path, const struct stat *st)
{
    for (nrd_py_env *e = b->envs; e; e = e->next) {
        if (!strcmp(e->source, path) && e->mtime == (int64_t)st->st_mtime &&
            e->size == (int64_t)st->st_size) {
            return e;
        }
    }
    return NULL;
}

static TRITONSERVER_Error *open_env(nrd_py_env **out, const char *path, const struct stat *st)
{
    const bool is_dir = S_ISDIR(st->st_mode);
    nrd_py_env *e = calloc(1, sizeof *e);
    TRITONSERVER_Error *err = NULL;

    if (e) {
        e->source = strdup(path);
        e->folder = strdup(is_dir ? path : "/tmp/python_env_XXXXXX");
        e->mtime = (int64_t)st->st_mtime;
        e->size = (int64_t)st->st_size;
    }
    if (!e || !e->source || !e->folder) {
        err = nrd_tb_error(nrd_error_no_memory());
    } else if (!is_dir) {
        if (!mkdtemp(e->folder)) {
            err = nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL,
                                "Failed to create a folder for the execution environment: %s",
                                strerror(errno));
        } else {
            e->unpacked = true;
            NRD_LOG_INFO("Extracting Python execution env %s", path);
            err = unpack(path, e->folder);
        }
    }
    const char *needed[] = {"bin/activate", "bin/python3"};
    for (int i = 0; i < 2 && !err; i++) {
        char *file = NULL;
        err = nrd_tb_error(nrd_path_make(&file, e->folder, needed[i]));
        if (!err && !nrd_path_exists(file)) {
            err = nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL,
                                "Path %s does not exist. The Python environment should contain "
                                "%s.",
                                file, i == 0 ? "an 'activate' script" : "a 'python3' program");
        }
        free(file);
    }
    if (err) {
        env_free(e);
        return err;
    }
    *out = e;
    return NULL;
}

TRITONSERVER_Error *nrd_py_env_get(nrd_py_backend *b, const char *path, const char **out_folder)
{
    struct stat st;
    TRITONSERVER_Error *err = NULL;

    if (stat(path, &st) != 0) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL,
                             "Failed to get the canonical path for %s: %s", path, strerror(errno));
    }
    pthread_mutex_lock(&b->mu); /* two models of one archive unpack it once */
    nrd_py_env *e = find(b, path, &st);
    if (!e) {
        err = open_env(&e, path, &st);
        if (!err) {
            e->next = b->envs;
            b->envs = e;
        }
    }
    if (!err) {
        *out_folder = e->folder;
    }
    pthread_mutex_unlock(&b->mu);
    return err;
}

void nrd_py_env_free_all(nrd_py_backend *b)
{
    while (b->envs) {
        nrd_py_env *e = b->envs;
        b->envs = e->next;
        env_free(e);
    }
}
