/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/deploy_make.h"

#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "executor/model_path.h"
#include "hub/pull.h"
#include "tools/repo.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_READY = 1 << 20, MAX_ARGS = 2 * NRD_DEPLOY_MAX + 32, LOG_TAIL = 4096 };

/* What became of a step that several rows share. */
typedef struct shared_step {
    char *path, *failure; /* one of them once it was tried */
} shared_step;

struct nrd_deploy_maker {
    const nrd_deploy_matrix *m;
    const char *layouts; /* of the engines' weights */
    int lock_fd;
    shared_step models[NRD_DEPLOY_MAX], checkpoints[NRD_DEPLOY_MAX][NRD_DEPLOY_MAX];
};

/* One folder, and what it is made of. */
typedef struct item {
    char *dir, *part,
        *ready;     /* its place, where it is made, the file that says what it was made of */
    nrd_str recipe; /* JSON */
} item;

typedef struct row_items {
    item checkpoint, engine, repository;
    char *log;
} row_items;

/* ---- names and recipes ---- */

static char *checkpoint_name(const nrd_deploy_maker *k, const nrd_deploy_row *row)
{
    const nrd_deploy_model *d = &k->m->models[row->model];
    return nrd_xasprintf("%s_%s_tp%d_pp%d", d->name, k->m->precisions[row->precision].name,
                         d->tp_size, d->pp_size);
}

char *nrd_deploy_row_name(const nrd_deploy_maker *k, const nrd_deploy_row *row)
{
    char *checkpoint = checkpoint_name(k, row);
    char *name = nrd_xasprintf("%s_isl%d_osl%d_bs%d", checkpoint, row->lengths.input,
                               row->lengths.output, row->batch_size);
    free(checkpoint);
    return name;
}

static void put_member(nrd_str *out, const char *key, const char *value)
{
    nrd_str_printf(out, "%s\"%s\": ", out->len > 0 ? ", " : "{", key);
    nrd_json_put_cstr(out, value);
}

static void put_list(nrd_str *out, const char *key, const char *const *words, size_t n)
{
    nrd_str_printf(out, ", \"%s\": [", key);
    for (size_t i = 0; i < n; i++) {
        nrd_str_puts(out, i > 0 ? ", " : "");
        nrd_json_put_cstr(out, words[i]);
    }
    nrd_str_putc(out, ']');
}

/* A model that was replaced is another one: the date of its file, or of its folder's config.json. Models of the hub
 * have their name only, which is also theirs when they are not here. */
static void put_model(nrd_str *out, const char *path)
{
    struct stat st;
    char *real = realpath(path, NULL);
    char *config = nrd_path_join(real ? real : path, "config.json");

    put_member(out, "model", real ? real : path);
    if (real && (stat(config, &st) == 0 || stat(real, &st) == 0)) {
        nrd_str_printf(out, ", \"modified\": %lld.%09ld", (long long)st.st_mtim.tv_sec,
                       st.st_mtim.tv_nsec);
    }
    free(config);
    free(real);
}

static void put_checkpoint(nrd_str *out, const nrd_deploy_maker *k, const nrd_deploy_row *row)
{
    const nrd_deploy_model *d = &k->m->models[row->model];
    const nrd_deploy_precision *p = &k->m->precisions[row->precision];

    put_member(out, "nereid", NRD_VERSION);
    put_model(out, d->path);
    nrd_str_printf(out, ", \"tp_size\": %d, \"pp_size\": %d", d->tp_size, d->pp_size);
    put_list(out, "convert", p->convert, p->n_convert);
}

static void put_engine(nrd_str *out, const nrd_deploy_maker *k, const nrd_deploy_row *row)
{
    put_checkpoint(out, k, row);
    nrd_str_printf(out, ", \"batch_size\": %d, \"lengths\": [%d, %d]", row->batch_size,
                   row->lengths.input, row->lengths.output);
    put_member(out, "layouts", k->layouts);
    put_list(out, "build", k->m->builds, k->m->n_builds);
}

static void item_init(item *to, const nrd_deploy_maker *k, const char *kind, const char *name)
{
    to->dir = nrd_xasprintf("%s/%s/%s", k->m->output_dir, kind, name);
    to->part = nrd_xasprintf("%s.part", to->dir);
    to->ready = nrd_xasprintf("%s/.ready/%s/%s.json", k->m->output_dir, kind, name);
}

static void row_items_init(row_items *to, const nrd_deploy_maker *k, const nrd_deploy_row *row)
{
    const char *tokenizer = k->m->models[row->model].tokenizer;
    char *shared = checkpoint_name(k, row), *name = nrd_deploy_row_name(k, row);

    memset(to, 0, sizeof *to);
    item_init(&to->checkpoint, k, "checkpoints", shared);
    item_init(&to->engine, k, "engines", name);
    item_init(&to->repository, k, "ensemble_models", name);
    to->log = nrd_xasprintf("%s/logs/%s.log", k->m->output_dir, name);
    put_checkpoint(&to->checkpoint.recipe, k, row);
    put_engine(&to->engine.recipe, k, row);
    put_engine(&to->repository.recipe, k, row);
    put_list(&to->repository.recipe, "set", k->m->sets, k->m->n_sets);
    put_member(&to->repository.recipe, "tokenizer", tokenizer ? tokenizer : "");
    nrd_str_puts(&to->checkpoint.recipe, "}\n");
    nrd_str_puts(&to->engine.recipe, "}\n");
    nrd_str_puts(&to->repository.recipe, "}\n");
    free(shared);
    free(name);
}

static void item_fini(item *i)
{
    free(i->dir);
    free(i->part);
    free(i->ready);
    nrd_str_fini(&i->recipe);
}

static void row_items_fini(row_items *r)
{
    item_fini(&r->checkpoint);
    item_fini(&r->engine);
    item_fini(&r->repository);
    free(r->log);
}

static bool is_ready(const item *i)
{
    char *text = NULL;
    size_t n = 0;
    nrd_error *err = nrd_file_read(&text, &n, i->ready, MAX_READY);
    const bool same = !err && n == i->recipe.len && memcmp(text, nrd_str_cstr(&i->recipe), n) == 0;
    nrd_error_free(err);
    free(text);
    return same && nrd_path_is_dir(i->dir);
}

/* ---- folders and processes ---- */

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st;
    (void)type;
    (void)at;
    return remove(path);
}

static nrd_error *remove_tree(const char *path)
{
    if (nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS) != 0 && errno != ENOENT) {
        return nrd_errorf(NRD_ERR_INTERNAL, "'%s': %s", path, strerror(errno));
    }
    return NULL;
}

/* The last line of the log, which is what the step failed with. */
static nrd_error *failure(const char *log, const char *step, int status)
{
    FILE *f = fopen(log, "re");
    char tail[LOG_TAIL + 1] = "", *line = tail;
    nrd_error *err;

    if (f) {
        (void)(fseek(f, -LOG_TAIL, SEEK_END) && fseek(f, 0, SEEK_SET));
        tail[fread(tail, 1, LOG_TAIL, f)] = '\0';
        fclose(f);
    }
    for (size_t n = strlen(tail); n > 0 && tail[n - 1] == '\n'; n--) {
        tail[n - 1] = '\0';
    }
    if (strrchr(tail, '\n')) {
        line = strrchr(tail, '\n') + 1;
    }
    if (WIFSIGNALED(status)) {
        err = nrd_errorf(NRD_ERR_INTERNAL, "%s ended by signal %d; see %s", step, WTERMSIG(status),
                         log);
    } else {
        err = nrd_errorf(NRD_ERR_INTERNAL, "%s", line[0] ? line : step);
    }
    return err;
}

/* In the new process: ends with us. Only calls that are safe after fork. */
_Noreturn static void become(char **argv, int log_fd)
{
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (dup2(log_fd, STDOUT_FILENO) >= 0 && dup2(log_fd, STDERR_FILENO) >= 0) {
        execv("/proc/self/exe", argv);
    }
    _exit(127);
}

/* nereid with these words (ended by NULL), its output at the end of `log`. */
static nrd_error *run(char **argv, const char *log)
{
    int status = 0;
    const int fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0) {
        return nrd_errorf(NRD_ERR_INTERNAL, "'%s': %s", log, strerror(errno));
    }
    for (char **word = argv; *word; word++) {
        dprintf(fd, "%s%s", *word, word[1] ? " " : "\n");
    }
    const pid_t pid = fork();
    if (pid == 0) {
        become(argv, fd);
    }
    close(fd);
    if (pid < 0) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "cannot start a process: %s", strerror(errno));
    }
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return status == 0 ? NULL : failure(log, argv[1], status);
}

/* ---- steps ---- */

typedef struct words {
    char *v[MAX_ARGS]; /* borrows */
    size_t n;
} words;

static void add(words *w, const char *word)
{
    w->v[w->n++] = (char *)(uintptr_t)word; /* only read */
}

static void add_all(words *w, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        add(w, list[i]);
    }
}

static nrd_error *convert(const nrd_deploy_maker *k, const nrd_deploy_row *row, const row_items *r,
                          const char *model)
{
    const nrd_deploy_model *d = &k->m->models[row->model];
    const nrd_deploy_precision *p = &k->m->precisions[row->precision];
    char tp[16], pp[16];
    words w = {0};

    snprintf(tp, sizeof tp, "%d", d->tp_size);
    snprintf(pp, sizeof pp, "%d", d->pp_size);
    add_all(&w,
            (const char *[]){"nereid", "convert", "--model_dir", model, "--output_dir",
                             r->checkpoint.part, "--tp_size", tp, "--pp_size", pp},
            10);
    add_all(&w, p->convert, p->n_convert);
    return run(w.v, r->log);
}

static nrd_error *build(const nrd_deploy_maker *k, const nrd_deploy_row *row, const row_items *r)
{
    char batch[16], input[16], total[16];
    words w = {0};

    snprintf(batch, sizeof batch, "%d", row->batch_size);
    snprintf(input, sizeof input, "%d", row->lengths.input);
    snprintf(total, sizeof total, "%d", row->lengths.input + row->lengths.output);
    add_all(&w,
            (const char *[]){"nereid", "build", "--checkpoint_dir", r->checkpoint.dir,
                             "--output_dir", r->engine.part, "--device", k->layouts,
                             "--max_batch_size", batch, "--max_input_len", input, "--max_seq_len",
                             total},
            14);
    add_all(&w, k->m->builds, k->m->n_builds);
    return run(w.v, r->log);
}

/* The tokenizer of a model that is one file is written beside the checkpoints. */
static nrd_error *write_repository(const nrd_deploy_maker *k, const nrd_deploy_row *row,
                                   const row_items *r, const char *model)
{
    const nrd_deploy_model *d = &k->m->models[row->model];
    char *own = nrd_xasprintf("%s/tokenizers/%s", k->m->output_dir, d->name), *tokenizer = NULL;
    char *size = nrd_xasprintf("triton_max_batch_size:%d", row->batch_size);
    const char *lists[NRD_DEPLOY_MAX + 1] = {size};

    memcpy(lists + 1, k->m->sets, k->m->n_sets * sizeof *lists);
    nrd_error *err = nrd_repo_tokenizer(model, d->tokenizer, NULL, own, &tokenizer);
    err =
        err ? err
            : nrd_repo_write(r->repository.part, &(nrd_repo_options){.engine_dir = r->engine.dir,
                                                                     .tokenizer_dir = tokenizer,
                                                                     .served_names = d->name,
                                                                     .lists = lists,
                                                                     .n_lists = k->m->n_sets + 1});
    free(size);
    free(own);
    free(tokenizer);
    return err;
}

static nrd_error *clear_place(const item *i)
{
    if (remove(i->ready) != 0 && errno != ENOENT) {
        return nrd_errorf(NRD_ERR_INTERNAL, "'%s': %s", i->ready, strerror(errno));
    }
    NRD_TRY(remove_tree(i->part));
    return remove_tree(i->dir);
}

static nrd_error *finish(const item *i)
{
    if (rename(i->part, i->dir) != 0) {
        return nrd_errorf(NRD_ERR_INTERNAL, "'%s': %s", i->dir, strerror(errno));
    }
    return nrd_file_write(i->ready, nrd_str_cstr(&i->recipe), i->recipe.len);
}

/* What was tried before for another row says the same. */
static nrd_error *of_shared(const shared_step *s)
{
    return s->failure ? nrd_errorf(NRD_ERR_INTERNAL, "%s", s->failure) : NULL;
}

static nrd_error *remember(shared_step *s, nrd_error *err)
{
    if (err) {
        s->failure = nrd_xstrdup(nrd_error_message(err));
    }
    return err;
}

static nrd_error *find_model(nrd_deploy_maker *k, const nrd_deploy_row *row, const char **out)
{
    shared_step *s = &k->models[row->model];
    nrd_error *err = of_shared(s);
    if (!err && !s->path) {
        err = remember(s, nrd_hub_resolve(k->m->models[row->model].path, &s->path));
    }
    *out = s->path;
    return err;
}

static nrd_error *make_checkpoint(nrd_deploy_maker *k, const nrd_deploy_row *row,
                                  const row_items *r, const char *model)
{
    shared_step *s = &k->checkpoints[row->model][row->precision];
    nrd_error *err = of_shared(s);

    if (err || is_ready(&r->checkpoint)) {
        return err;
    }
    err = clear_place(&r->checkpoint);
    err = err ? err : convert(k, row, r, model);
    return remember(s, err ? err : finish(&r->checkpoint));
}

static nrd_error *make_row(nrd_deploy_maker *k, const nrd_deploy_row *row, const row_items *r)
{
    const char *model;
    nrd_error *err = NULL;

    if (is_ready(&r->repository) && is_ready(&r->engine)) {
        return NULL;
    }
    NRD_TRY(find_model(k, row, &model));
    if (remove(r->log) != 0 && errno != ENOENT) {
        return nrd_errorf(NRD_ERR_INTERNAL, "'%s': %s", r->log, strerror(errno));
    }
    if (!is_ready(&r->engine)) {
        NRD_TRY(make_checkpoint(k, row, r, model));
        NRD_TRY(clear_place(&r->engine));
        NRD_TRY(build(k, row, r));
        NRD_TRY(finish(&r->engine));
    }
    err = clear_place(&r->repository);
    err = err ? err : write_repository(k, row, r, model);
    return err ? err : finish(&r->repository);
}

nrd_error *nrd_deploy_make(nrd_deploy_maker *k, const nrd_deploy_row *row)
{
    row_items r;
    row_items_init(&r, k, row);
    nrd_error *err = make_row(k, row, &r);
    row_items_fini(&r);
    return err;
}

const char *nrd_deploy_missing(const nrd_deploy_maker *k, const nrd_deploy_row *row)
{
    row_items r;
    row_items_init(&r, k, row);
    const char *missing =
        !is_ready(&r.engine)
            ? is_ready(&r.checkpoint) ? "build, repository" : "convert, build, repository"
        : !is_ready(&r.repository) ? "repository"
                                   : NULL;
    row_items_fini(&r);
    return missing;
}

uint64_t nrd_deploy_engine_bytes(const nrd_deploy_maker *k, const nrd_deploy_row *row)
{
    char **names = NULL;
    size_t n = 0;
    uint64_t sum = 0;
    row_items r;

    row_items_init(&r, k, row);
    nrd_error_free(nrd_dir_list(&names, &n, r.engine.dir));
    for (size_t i = 0; i < n; i++) {
        struct stat st;
        char *file = nrd_path_join(r.engine.dir, names[i]);
        sum += stat(file, &st) == 0 ? (uint64_t)st.st_size : 0;
        free(file);
    }
    nrd_names_free(names, n);
    row_items_fini(&r);
    return sum;
}

/* ---- the maker ---- */

static nrd_error *make_folders(const char *output_dir)
{
    static const char *const names[] = {
        "checkpoints",        "engines",        "ensemble_models",       "logs",
        ".ready/checkpoints", ".ready/engines", ".ready/ensemble_models"};
    nrd_error *err = NULL;
    for (size_t i = 0; !err && i < sizeof names / sizeof *names; i++) {
        char *dir = nrd_path_join(output_dir, names[i]);
        err = nrd_mkdirs(dir);
        free(dir);
    }
    return err;
}

/* Held until the maker, or the program, ends. */
static nrd_error *lock(nrd_deploy_maker *k)
{
    char *path = nrd_path_join(k->m->output_dir, ".ready/lock");
    nrd_error *err = NULL;

    k->lock_fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (k->lock_fd < 0) {
        err = nrd_errorf(NRD_ERR_INTERNAL, "'%s': %s", path, strerror(errno));
    } else if (flock(k->lock_fd, LOCK_EX | LOCK_NB) != 0) {
        err = nrd_errorf(NRD_ERR_UNAVAILABLE, "another nereid deploy works in '%s'",
                         k->m->output_dir);
    }
    free(path);
    return err;
}

nrd_error *nrd_deploy_maker_new(nrd_deploy_maker **out, const nrd_deploy_matrix *m, bool is_dry)
{
    nrd_deploy_maker *k = nrd_xcalloc(1, sizeof *k);
    nrd_error *err = nrd_model_path_check_device(m->device);

    k->m = m;
    k->lock_fd = -1;
    k->layouts = nrd_build_layouts(m->device);
    err = err || is_dry ? err : make_folders(m->output_dir);
    err = err || is_dry ? err : lock(k);
    if (err) {
        nrd_deploy_maker_free(k);
        k = NULL;
    }
    *out = k;
    return err;
}

void nrd_deploy_maker_free(nrd_deploy_maker *k)
{
    if (!k) {
        return;
    }
    for (size_t i = 0; i < NRD_DEPLOY_MAX; i++) {
        free(k->models[i].path);
        free(k->models[i].failure);
        for (size_t j = 0; j < NRD_DEPLOY_MAX; j++) {
            free(k->checkpoints[i][j].failure);
        }
    }
    if (k->lock_fd >= 0) {
        close(k->lock_fd);
    }
    free(k);
}
