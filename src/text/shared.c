/* SPDX-License-Identifier: Apache-2.0
 * The registry of opened tokenizers.
 *
 * Life of an entry: the first who asks for a key puts it into the list as OPENING and reads the files
 * without the lock; others who ask for the key meanwhile hold a reference and wait. Then it is READY
 * until the last reference goes, or FAILED: it leaves the list at once (the next one tries again), and
 * the last of those who waited frees it. */
#include "text/shared.h"

#include "base/file.h"
#include "base/mem.h"

#include <pthread.h>
#include <string.h>
#include <sys/stat.h>

/* Every file that opening a folder may read. */
static const char *const side_files[] = {
    "tokenizer.json",       "tokenizer.model",         "vocab.json",
    "merges.txt",           "added_tokens.json",       "special_tokens_map.json",
    "tokenizer_config.json", "generation_config.json", "config.json",
    "chat_template.json",   "chat_template.jinja",     "spiece.model",
    "source.spm",           "sentencepiece.bpe.model", "qwen.tiktoken",
    "tiktoken.model",
};
enum { N_SIDE = sizeof side_files / sizeof side_files[0] };

typedef struct file_id { /* all zero: no such file */
    uint64_t dev, ino, size;
    int64_t mtime_s, mtime_ns;
} file_id;

typedef struct text_key {
    char *path;              /* owned: the real folder, and the file's name where one was named */
    file_id files[N_SIDE + 1]; /* the last: the path itself, where it is a file */
} text_key;

struct nrd_text {
    nrd_text *next; /* guarded by mu, as refs and state */
    int refs;
    enum { OPENING, READY, FAILED } state;
    text_key key;
    nrd_tokenizer *tokenizer; /* immutable once READY */
    nrd_error_code code;      /* of FAILED */
    char *message;            /* owned */
    pthread_mutex_t chat_mu;
    bool chat_tried; /* guarded by chat_mu, as below until it is set */
    nrd_chat *chat;
    nrd_error_code chat_code;
    char *chat_message; /* owned */
};

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t opened = PTHREAD_COND_INITIALIZER; /* an entry is no longer OPENING */
static nrd_text *texts;                                  /* guarded by mu */

/* ---- keys ---- */

static file_id identify(const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0) {
        return (file_id){0};
    }
    return (file_id){(uint64_t)st.st_dev, (uint64_t)st.st_ino, (uint64_t)st.st_size,
                     (int64_t)st.st_mtim.tv_sec, (int64_t)st.st_mtim.tv_nsec};
}

static nrd_error *identify_folder(text_key *k, const char *dir)
{
    for (int i = 0; i < N_SIDE; i++) {
        char *path = NULL;
        NRD_TRY(nrd_path_make(&path, dir, side_files[i]));
        k->files[i] = identify(path);
        free(path);
    }
    return NULL;
}

static nrd_error *real_path(char **out, const char *path)
{
    *out = realpath(path, NULL);
    *out = *out ? *out : strdup(path);
    return *out ? NULL : nrd_error_no_memory();
}

/* A GGUF file or a .nemo archive holds everything itself; other files have the rest beside them. The caller frees k->path,
 * after an error too. */
static nrd_error *key_init(text_key *k, const char *path)
{
    const char *name = nrd_path_base(path);
    char *dir = NULL, *real = NULL;
    nrd_error *err = NULL;

    *k = (text_key){0};
    if (nrd_path_is_dir(path)) {
        NRD_TRY(real_path(&k->path, path));
        return identify_folder(k, path);
    }
    dir = name == path ? strdup(".") : strndup(path, (size_t)(name - path));
    if (!dir) {
        err = nrd_error_no_memory();
        goto done;
    }
    NRD_TRY_GOTO(real_path(&real, dir), err, done);
    NRD_TRY_GOTO(nrd_path_make(&k->path, real, name), err, done);
    k->files[N_SIDE] = identify(path);
    if (!nrd_str_has_suffix(path, ".gguf") && !nrd_str_has_suffix(path, ".nemo")) {
        err = identify_folder(k, dir);
    }
done:
    free(real);
    free(dir);
    return err;
}

static bool key_equal(const text_key *a, const text_key *b)
{
    return !strcmp(a->path, b->path) && !memcmp(a->files, b->files, sizeof a->files);
}

/* ---- entries ---- */

static nrd_text *text_new(const text_key *k) /* takes the key's path; NULL: no memory */
{
    nrd_text *t = calloc(1, sizeof *t);
    if (!t) {
        return NULL;
    }
    t->key = *k;
    pthread_mutex_init(&t->chat_mu, NULL);
    return t;
}

static void text_free(nrd_text *t)
{
    nrd_chat_free(t->chat);
    nrd_tokenizer_close(t->tokenizer);
    pthread_mutex_destroy(&t->chat_mu);
    free(t->chat_message);
    free(t->message);
    free(t->key.path);
    free(t);
}

static void unlink_locked(nrd_text *t)
{
    for (nrd_text **p = &texts; *p; p = &(*p)->next) {
        if (*p == t) {
            *p = t->next;
            return;
        }
    }
}

/* Said again from what is kept; without a text memory was missing. */
static nrd_error *say_again(nrd_error_code code, const char *message)
{
    return message ? nrd_errorf(code, "%s", message) : nrd_error_no_memory();
}

static void keep_error(nrd_error *err, nrd_error_code *code, char **message)
{
    *code = nrd_error_get_code(err);
    *message = strdup(nrd_error_message(err));
    nrd_error_free(err);
}

/* The first one's share of an opening; with mu held, but not while the files are read. */
static void open_locked(nrd_text *t, const char *path)
{
    nrd_tokenizer *tokenizer = NULL;

    t->next = texts;
    texts = t;
    pthread_mutex_unlock(&mu);
    nrd_error *err = nrd_tokenizer_open(&tokenizer, path);
    pthread_mutex_lock(&mu);
    t->tokenizer = tokenizer;
    t->state = err ? FAILED : READY;
    if (err) {
        keep_error(err, &t->code, &t->message);
        unlink_locked(t);
    }
    pthread_cond_broadcast(&opened);
}

nrd_error *nrd_text_open(nrd_text **out, const char *path)
{
    nrd_error *err = NULL;
    text_key key;

    *out = NULL;
    NRD_TRY_GOTO(key_init(&key, path), err, fail);
    pthread_mutex_lock(&mu);
    nrd_text *t = texts;
    while (t && !key_equal(&t->key, &key)) {
        t = t->next;
    }
    if (t) {
        free(key.path);
        t->refs++;
        while (t->state == OPENING) {
            pthread_cond_wait(&opened, &mu);
        }
    } else {
        t = text_new(&key);
        if (!t) {
            pthread_mutex_unlock(&mu);
            err = nrd_error_no_memory();
            goto fail;
        }
        t->refs = 1;
        open_locked(t, path);
    }
    if (t->state == FAILED) {
        err = say_again(t->code, t->message);
    }
    bool is_last = err && --t->refs == 0;
    pthread_mutex_unlock(&mu);
    if (is_last) {
        text_free(t);
    }
    *out = err ? NULL : t;
    return err;

fail:
    free(key.path);
    return err;
}

void nrd_text_close(nrd_text *t)
{
    if (!t) {
        return;
    }
    pthread_mutex_lock(&mu);
    bool is_last = --t->refs == 0;
    if (is_last) {
        unlink_locked(t);
    }
    pthread_mutex_unlock(&mu);
    if (is_last) {
        text_free(t);
    }
}

const nrd_tokenizer *nrd_text_tokenizer(const nrd_text *t)
{
    return t->tokenizer;
}

nrd_error *nrd_text_chat(nrd_text *t, const nrd_chat **out)
{
    pthread_mutex_lock(&t->chat_mu);
    if (!t->chat_tried) {
        nrd_error *e = nrd_chat_open(&t->chat, t->tokenizer, NULL);
        t->chat_tried = !e || nrd_error_get_code(e) != NRD_ERR_NO_MEMORY; /* the next one tries again */
        if (e) {
            free(t->chat_message);
            keep_error(e, &t->chat_code, &t->chat_message);
        }
    }
    *out = t->chat;
    nrd_error *err = *out ? NULL : say_again(t->chat_code, t->chat_message);
    pthread_mutex_unlock(&t->chat_mu);
    return err;
}
