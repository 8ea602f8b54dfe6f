/* SPDX-License-Identifier: Apache-2.0 */
#include "frontends/common/puller.h"

#include "base/limits.h"
#include "base/mem.h"
#include "base/str.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { MAX_LINE = 64 << 10, MAX_NAME = 200, MORE_WORDS = 3 };

/* A model that came by a pull. */
typedef struct pulled {
    struct pulled *next;
    char *name;
    nrd_json_doc *made;
} pulled;

typedef struct nrd_pull_job {
    struct nrd_pull_job *next;
    nrd_puller *p;
    char *name;
    pulled *removes; /* NULL: it is a pull. Taken out of the list; owned until it is gone */
    /* guarded by the puller's lock */
    nrd_pull_watcher *watchers;
    nrd_str last; /* line, for who comes later */
    pid_t pid;    /* 0: no process runs */
    bool cancelled;
    /* of its thread alone */
    nrd_json_doc *made;
    nrd_error *err; /* that the process told */
} job;

struct nrd_puller {
    nrd_puller_ops ops;
    char **command; /* n_words, and room for more */
    size_t n_words;
    pthread_mutex_t mu;
    pthread_cond_t idle;
    /* guarded by mu */
    job *jobs;
    size_t n_jobs;
    pulled *pulled;
    bool stopping;
};

bool nrd_puller_is_name(const char *name)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._/:@";
    const size_t n = strlen(name);
    return n > 0 && n <= MAX_NAME && strspn(name, allowed) == n && strchr(name, '/') && !strchr("-./:@", name[0]) &&
           !strstr(name, "//") && !strstr(name, "..");
}

/* ---- the process ---- */

/* Starts it with a pipe for what it says; the caller closes *out_fd. */
static nrd_error *spawn(char *const *argv, pid_t *out_pid, int *out_fd)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    sigset_t none, defaults;
    int ends[2];

    if (pipe2(ends, O_CLOEXEC) != 0) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "cannot open a pipe: %s", strerror(errno));
    }
    sigemptyset(&none);
    sigfillset(&defaults);
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setsigdefault(&attr, &defaults); /* without a reader it ends at its next line */
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    const int failed = posix_spawn(out_pid, argv[0], &files, &attr, argv, environ);
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&files);
    close(ends[1]);
    if (failed) {
        close(ends[0]);
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "cannot start '%s': %s", argv[0], strerror(failed));
    }
    *out_fd = ends[0];
    return NULL;
}

static void tell_all(job *j, const char *line, size_t n)
{
    pthread_mutex_lock(&j->p->mu);
    nrd_str_clear(&j->last);
    nrd_str_append(&j->last, line, n);
    for (nrd_pull_watcher *w = j->watchers; w; w = w->next) {
        w->tell(w, line, n);
    }
    pthread_mutex_unlock(&j->p->mu);
}

static void take_line(job *j, const char *line, size_t n)
{
    const nrd_json_limits limits = {.max_depth = 8, .max_nodes = 1000};
    nrd_json_doc *doc = NULL;

    nrd_error_free(nrd_json_parse(&doc, line, n, &limits)); /* what is no JSON is not for us */
    const nrd_json *root = nrd_json_root(doc);
    const char *error = nrd_json_get_str(root, "error", NULL);
    if (nrd_json_get(root, "model")) {
        nrd_json_doc_free(j->made);
        j->made = doc;
        return;
    }
    if (error && !j->err) {
        const int64_t code = nrd_json_get_int(root, "code", NRD_ERR_INTERNAL);
        const bool is_known = code == NRD_ERR_INVALID_ARG || code == NRD_ERR_NOT_FOUND || code == NRD_ERR_UNAVAILABLE ||
                              code == NRD_ERR_UNSUPPORTED;
        j->err = nrd_errorf(is_known ? (nrd_error_code)code : NRD_ERR_INTERNAL, "%s", error);
    } else if (nrd_json_get_str(root, "status", NULL)) {
        tell_all(j, line, n);
    }
    nrd_json_doc_free(doc);
}

/* Until the process closes its end. A line that is too long is left out. */
static void read_lines(job *j, int fd)
{
    char *buf = malloc(MAX_LINE);
    size_t n = 0;
    bool skips = false;
    ssize_t got = 0;

    while (buf && ((got = read(fd, buf + n, MAX_LINE - n)) > 0 || (got < 0 && errno == EINTR))) {
        n += got > 0 ? (size_t)got : 0;
        char *start = buf, *end;
        while ((end = memchr(start, '\n', n - (size_t)(start - buf))) != NULL) {
            if (!skips) {
                take_line(j, start, (size_t)(end - start));
            }
            skips = false;
            start = end + 1;
        }
        n -= (size_t)(start - buf);
        memmove(buf, start, n);
        if (n == MAX_LINE) {
            skips = true;
            n = 0;
        }
    }
    if (!buf) {
        j->err = nrd_error_no_memory();
    }
    free(buf);
}

/* Runs argv to its end. What it said is in j. */
static nrd_error *run(job *j, char *const *argv)
{
    nrd_error *err = NULL;
    int fd = -1, status = 0;
    pid_t pid = 0;

    pthread_mutex_lock(&j->p->mu);
    if (j->cancelled) {
        err = nrd_errorf(NRD_ERR_CANCELLED, "nobody waits for it");
    } else {
        err = spawn(argv, &j->pid, &fd);
        pid = j->pid;
    }
    pthread_mutex_unlock(&j->p->mu);
    NRD_TRY(err);
    read_lines(j, fd);
    pthread_mutex_lock(&j->p->mu);
    j->pid = 0; /* from here on its number may be another's */
    const bool cancelled = j->cancelled;
    pthread_mutex_unlock(&j->p->mu);
    close(fd);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    err = j->err;
    j->err = NULL;
    if (!err && (!WIFEXITED(status) || WEXITSTATUS(status) != 0)) {
        err = cancelled ? nrd_errorf(NRD_ERR_CANCELLED, "the pull was ended")
                        : nrd_errorf(NRD_ERR_INTERNAL, "'%s' ended with status %d; its reason is in the server's log", argv[0],
                                     WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    }
    return err;
}

/* ---- jobs ---- */

static void free_pulled(pulled *m)
{
    if (m) {
        free(m->name);
        nrd_json_doc_free(m->made);
        free(m);
    }
}

static void free_job(job *j)
{
    free(j->name);
    free_pulled(j->removes);
    nrd_str_fini(&j->last);
    nrd_json_doc_free(j->made);
    nrd_error_free(j->err);
    free(j);
}

/* The words of a process and some more; borrows them. */
static char **words_of(const nrd_puller *p, size_t n, char *const *more, size_t n_more)
{
    char **argv = calloc(n + n_more + 1, sizeof *argv);
    for (size_t i = 0; argv && i < n + n_more; i++) {
        argv[i] = i < n ? p->command[i] : more[i - n];
    }
    return argv;
}

/* Lock held. Where the model of this name is, or the NULL at the end. */
static pulled **find_locked(nrd_puller *p, const char *name)
{
    pulled **at = &p->pulled;
    while (*at && strcmp((*at)->name, name) != 0) {
        at = &(*at)->next;
    }
    return at;
}

static const char *repository_of(const nrd_json_doc *made)
{
    return nrd_json_get_str(nrd_json_root(made), "repository", "");
}

/* Takes made on success. */
static nrd_error *list_made(nrd_puller *p, const char *name, nrd_json_doc *made)
{
    nrd_error *err = NULL;
    pulled *m = NULL;

    NRD_NEW_GOTO(m, 1, err, fail);
    NRD_DUP_GOTO(m->name, name, err, fail);
    m->made = made;
    pthread_mutex_lock(&p->mu);
    m->next = p->pulled;
    p->pulled = m;
    pthread_mutex_unlock(&p->mu);
    return NULL;
fail:
    free(m);
    return err;
}

/* What the process made takes the place of what was there: another revision. Nobody else touches old while the job runs. */
static nrd_error *replace(job *j, pulled *old)
{
    nrd_puller *p = j->p;

    if (!strcmp(repository_of(old->made), repository_of(j->made))) {
        return NULL;
    }
    NRD_TRY(p->ops.remove(p->ops.user, nrd_json_root(old->made)));
    nrd_error *err = p->ops.add(p->ops.user, nrd_json_root(j->made));
    if (err) {
        nrd_error_free(p->ops.add(p->ops.user, nrd_json_root(old->made))); /* as before, where that is possible */
        return err;
    }
    pthread_mutex_lock(&p->mu);
    nrd_json_doc *was = old->made;
    old->made = j->made;
    j->made = was;
    pthread_mutex_unlock(&p->mu);
    return NULL;
}

static nrd_error *pull(job *j)
{
    nrd_puller *p = j->p;
    nrd_str word = {0};
    nrd_error *err = NULL;
    char **argv = NULL;

    nrd_str_printf(&word, "%s=hf:%s", j->name, j->name);
    NRD_TRY_GOTO(nrd_str_error(&word), err, done);
    argv = words_of(p, p->n_words, &word.data, 1);
    err = argv ? run(j, argv) : nrd_error_no_memory();
    if (!err && !j->made) {
        err = nrd_errorf(NRD_ERR_INTERNAL, "'%s' told no model", argv[0]);
    }
    pthread_mutex_lock(&p->mu);
    pulled *old = *find_locked(p, j->name);
    pthread_mutex_unlock(&p->mu);
    if (err || old) {
        err = err ? err : replace(j, old);
        goto done;
    }
    NRD_TRY_GOTO(p->ops.add(p->ops.user, nrd_json_root(j->made)), err, done);
    NRD_TRY_GOTO(list_made(p, j->name, j->made), err, done);
    j->made = NULL;
done:
    free(argv);
    nrd_str_fini(&word);
    return err;
}

/* What others in this process still serve stays where it is: the files go last. */
static nrd_error *remove_model(job *j)
{
    nrd_puller *p = j->p;
    const nrd_json *made = nrd_json_root(j->removes->made);
    nrd_str id = {0};
    char yes[] = "--yes", verb[] = "rm";

    nrd_error *err = p->ops.remove(p->ops.user, made);
    if (err) {
        pthread_mutex_lock(&p->mu); /* it stays */
        j->removes->next = p->pulled;
        p->pulled = j->removes;
        j->removes = NULL;
        pthread_mutex_unlock(&p->mu);
        return err;
    }
    if (nrd_json_get_str(made, "record", NULL)) {
        (void)unlink(nrd_json_get_str(made, "record", ""));
    }
    if (nrd_json_get_bool(made, "fetched", false)) {
        nrd_str_printf(&id, "hf:%s", j->name);
        char *more[MORE_WORDS] = {verb, yes, id.data};
        char **argv = id.no_memory ? NULL : words_of(p, 1, more, MORE_WORDS);
        err = argv ? run(j, argv) : nrd_error_no_memory();
        free(argv);
    }
    nrd_str_fini(&id);
    return err;
}

static nrd_error *copy_of(const nrd_error *err)
{
    return err ? nrd_errorf(nrd_error_get_code(err), "%s", nrd_error_message(err)) : NULL;
}

static void *job_main(void *arg)
{
    job *j = arg;
    nrd_puller *p = j->p;
    nrd_error *err = j->removes ? remove_model(j) : pull(j);

    pthread_mutex_lock(&p->mu);
    job **at = &p->jobs;
    while (*at != j) {
        at = &(*at)->next;
    }
    *at = j->next;
    while (j->watchers) {
        nrd_pull_watcher *w = j->watchers;
        j->watchers = w->next;
        w->job = NULL;
        w->end(w, copy_of(err)); /* w is its owner's from here on */
    }
    free_job(j);
    nrd_error_free(err);
    p->n_jobs--;
    pthread_cond_broadcast(&p->idle);
    pthread_mutex_unlock(&p->mu);
    return NULL;
}

static void watch_locked(job *j, nrd_pull_watcher *w)
{
    w->job = j;
    w->next = j->watchers;
    j->watchers = w;
    if (j->last.len > 0) {
        w->tell(w, j->last.data, j->last.len);
    }
}

/* Takes removes where it succeeds. */
static nrd_error *begin_locked(nrd_puller *p, const char *name, pulled *removes, nrd_pull_watcher *w)
{
    pthread_attr_t attr;
    pthread_t thread;
    nrd_error *err = NULL;
    job *j = NULL;

    if (p->stopping) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "the server is shutting down");
    }
    if (p->n_jobs >= NRD_LIMIT_PULLS) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "%d models are being pulled or removed already; ask later", (int)NRD_LIMIT_PULLS);
    }
    NRD_NEW_GOTO(j, 1, err, fail);
    j->p = p;
    NRD_DUP_GOTO(j->name, name, err, fail);
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    j->removes = removes;
    const bool failed = pthread_create(&thread, &attr, job_main, j) != 0; /* it waits for the lock */
    pthread_attr_destroy(&attr);
    if (failed) {
        j->removes = NULL;
        err = nrd_errorf(NRD_ERR_UNAVAILABLE, "cannot start a thread");
        goto fail;
    }
    j->next = p->jobs;
    p->jobs = j;
    p->n_jobs++;
    watch_locked(j, w);
    return NULL;

fail:
    if (j) {
        free_job(j);
    }
    return err;
}

static job *job_of_locked(const nrd_puller *p, const char *name)
{
    job *j = p->jobs;
    while (j && strcmp(j->name, name) != 0) {
        j = j->next;
    }
    return j;
}

nrd_error *nrd_puller_pull(nrd_puller *p, const char *name, nrd_pull_watcher *w)
{
    nrd_error *err = NULL;

    pthread_mutex_lock(&p->mu);
    job *j = job_of_locked(p, name);
    if (j && (j->removes || j->cancelled)) {
        err = nrd_errorf(NRD_ERR_UNAVAILABLE, "`%s` is being %s; ask again", name, j->removes ? "removed" : "cancelled");
    } else if (j) {
        watch_locked(j, w);
    } else {
        err = begin_locked(p, name, NULL, w);
    }
    pthread_mutex_unlock(&p->mu);
    return err;
}

nrd_error *nrd_puller_remove(nrd_puller *p, const char *name, nrd_pull_watcher *w)
{
    nrd_error *err = NULL;

    pthread_mutex_lock(&p->mu);
    pulled **at = find_locked(p, name), *m = *at;
    if (job_of_locked(p, name)) {
        err = nrd_errorf(NRD_ERR_UNAVAILABLE, "`%s` is being pulled or removed; ask again", name);
    } else if (!m) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "The model `%s` was not pulled by a client of this server: who starts the server "
                         "chooses it, and nereid rm removes files", name);
    } else {
        *at = m->next;
        m->next = NULL;
        err = begin_locked(p, name, m, w);
        if (err) {
            m->next = p->pulled;
            p->pulled = m;
        }
    }
    pthread_mutex_unlock(&p->mu);
    return err;
}

bool nrd_puller_has(nrd_puller *p, const char *name)
{
    pthread_mutex_lock(&p->mu);
    const bool found = *find_locked(p, name) != NULL;
    pthread_mutex_unlock(&p->mu);
    return found;
}

nrd_error *nrd_puller_know(nrd_puller *p, const nrd_json *made)
{
    nrd_json_doc *copy = NULL;
    nrd_str text = {0};

    nrd_json_put(&text, made, 0);
    nrd_error *err = nrd_str_error(&text);
    err = err ? err : nrd_json_parse(&copy, nrd_str_cstr(&text), text.len, NULL);
    err = err ? err : list_made(p, nrd_json_get_str(nrd_json_get(made, "model"), "name", ""), copy);
    if (err) {
        nrd_json_doc_free(copy);
    }
    nrd_str_fini(&text);
    return err;
}

static void cancel_locked(job *j)
{
    j->cancelled = true;
    if (j->pid > 0) {
        kill(j->pid, SIGTERM);
    }
}

bool nrd_puller_leave(nrd_puller *p, nrd_pull_watcher *w)
{
    pthread_mutex_lock(&p->mu);
    job *j = w->job;
    if (j) {
        nrd_pull_watcher **at = &j->watchers;
        while (*at != w) {
            at = &(*at)->next;
        }
        *at = w->next;
        w->job = NULL;
        if (!j->watchers && !j->removes) {
            cancel_locked(j);
        }
    }
    pthread_mutex_unlock(&p->mu);
    return j != NULL;
}

/* ---- life ---- */

nrd_error *nrd_puller_new(nrd_puller **out, const nrd_puller_ops *ops, const nrd_json *command)
{
    nrd_error *err = NULL;
    nrd_puller *p = NULL;

    *out = NULL;
    NRD_NEW_GOTO(p, 1, err, fail);
    p->ops = *ops;
    pthread_mutex_init(&p->mu, NULL);
    pthread_cond_init(&p->idle, NULL);
    NRD_NEW_GOTO(p->command, command->n + 1, err, fail);
    for (size_t i = 0; i < command->n; i++) {
        NRD_DUP_GOTO(p->command[i], nrd_json_str(&command->child[i], ""), err, fail);
        p->n_words++;
    }
    *out = p;
    return NULL;
fail:
    nrd_puller_free(p);
    return err;
}

void nrd_puller_stop(nrd_puller *p)
{
    pthread_mutex_lock(&p->mu);
    p->stopping = true;
    for (job *j = p->jobs; j; j = j->next) {
        cancel_locked(j);
    }
    pthread_mutex_unlock(&p->mu);
}

void nrd_puller_free(nrd_puller *p)
{
    if (!p) {
        return;
    }
    nrd_puller_stop(p);
    pthread_mutex_lock(&p->mu);
    while (p->n_jobs > 0) {
        pthread_cond_wait(&p->idle, &p->mu);
    }
    pthread_mutex_unlock(&p->mu);
    while (p->pulled) {
        pulled *m = p->pulled;
        p->pulled = m->next;
        free_pulled(m);
    }
    for (size_t i = 0; p->command && i < p->n_words; i++) {
        free(p->command[i]);
    }
    free(p->command);
    pthread_mutex_destroy(&p->mu);
    pthread_cond_destroy(&p->idle);
    free(p);
}
