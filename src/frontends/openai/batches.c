/* SPDX-License-Identifier: Apache-2.0
 * The list of batches, the thread that works through them, and what a restart finds.
 *
 * A job is a batch and what its work needs. The thread alone changes jobs; others read records, set `cancel`, add
 * new jobs and remove settled ones, under the lock. Files and requests are touched without it. */
#include "frontends/openai/batches.h"

#include "base/clock.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "frontends/openai/batch_record.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TICK_NS 1000000000u /* expiry is looked at so often */

typedef struct job {
    struct job *next; /* the newest first; guarded by the lock */
    nrd_batch_record record; /* written by the thread under the lock */
    int64_t cancel;          /* when it was asked for; guarded by the lock */
    bool settled;            /* it has ended, and the thread does not know it any more; guarded by the lock */
    /* the thread's */
    nrd_batches *b;
    nrd_batch_run run;
    bool running;      /* run is begun */
    const char *ends;  /* why it gives up: a code; NULL: it does not */
    int fd;
    nrd_file_draft *output, *errors;
} job;

struct nrd_batches {
    nrd_file_store *files; /* borrows */
    const nrd_keys *keys;  /* borrows */
    int max_flying;
    nrd_batch_pool *pool; /* owns; NULL before start */
    pthread_t thread;
    bool started;
    pthread_mutex_t mu; /* guards all below */
    job *jobs;
    bool open; /* the thread runs, and takes new jobs */
    bool draining, stopping;
};

void nrd_batches_owner(const nrd_file_store *files, const nrd_keys *keys, int key, char out[NRD_FILE_OWNER])
{
    if (key < 0) {
        snprintf(out, NRD_FILE_OWNER, "-");
    } else {
        nrd_keys_name(keys, key, nrd_file_store_secret(files), out);
    }
}

static int64_t now_secs(void)
{
    return (int64_t)(nrd_wall_ns() / 1000000000u);
}

/* ---- records ---- */

static void record_name(const nrd_batch_record *r, char out[NRD_FILE_ID + 16])
{
    snprintf(out, NRD_FILE_ID + 16, "%s.record", r->id);
}

/* Without the lock, by the thread or before others know the job. */
static nrd_error *save(nrd_batches *b, const nrd_batch_record *record)
{
    char name[NRD_FILE_ID + 16];
    nrd_str text = {0};

    record_name(record, name);
    nrd_batch_put(&text, record, true);
    nrd_error *err = nrd_file_store_write(b->files, name, &text);
    nrd_str_fini(&text);
    return err;
}

static void save_or_warn(nrd_batches *b, const nrd_batch_record *record)
{
    nrd_error *err = save(b, record);
    if (err) {
        NRD_LOG_ERROR("batch %s: its state is not written: %s", record->id, nrd_error_message(err));
        nrd_error_free(err);
    }
}

static void reach(job *j, nrd_batch_state s)
{
    pthread_mutex_lock(&j->b->mu);
    nrd_batch_reach(&j->record, s);
    pthread_mutex_unlock(&j->b->mu);
    save_or_warn(j->b, &j->record);
}

static void fault(job *j, const char *code, const char *message, const char *field, uint64_t line)
{
    pthread_mutex_lock(&j->b->mu);
    nrd_batch_add_fault(&j->record, code, message, field, line);
    pthread_mutex_unlock(&j->b->mu);
}

static void fault_of(job *j, nrd_error *err, const char *otherwise, uint64_t line)
{
    fault(j, nrd_error_reason(err) ? nrd_error_reason(err) : otherwise, nrd_error_message(err), nrd_error_field(err), line);
    nrd_error_free(err);
}

static void show_counts(job *j)
{
    pthread_mutex_lock(&j->b->mu);
    j->record.completed = j->run.n_completed;
    j->record.failed = j->run.n_failed;
    j->record.usage = j->run.usage;
    pthread_mutex_unlock(&j->b->mu);
}

static void job_free(job *j)
{
    if (j) {
        nrd_batch_record_fini(&j->record);
        nrd_batch_run_fini(&j->run);
        nrd_file_draft_leave(j->output);
        nrd_file_draft_leave(j->errors);
        if (j->fd >= 0) {
            close(j->fd);
        }
        free(j);
    }
}

/* ---- the work of one batch ---- */

static nrd_error *write_line(void *arg, bool failed, const nrd_str *line)
{
    job *j = arg;
    return nrd_file_draft_write(failed ? j->errors : j->output, line->data, line->len);
}

/* The place of the key that it works for. */
static nrd_error *find_key(job *j, int *out)
{
    const size_t n = nrd_keys_count(j->b->keys);
    char owner[NRD_FILE_OWNER];

    *out = -1;
    for (size_t i = 0; i < n && *out < 0; i++) {
        nrd_batches_owner(j->b->files, j->b->keys, (int)i, owner);
        *out = !strcmp(owner, j->record.owner) && nrd_keys_holds(j->b->keys, (int)i) ? (int)i : -1;
    }
    return *out >= 0 || (n == 0 && !strcmp(j->record.owner, "-"))
               ? NULL
               : nrd_error_because(nrd_errorf(NRD_ERR_INVALID_ARG, "the API key of this batch is not one of the server's any more"),
                                   "invalid_api_key");
}

/* Every line, before the first is asked. Faults are told; *out_n: lines. */
static nrd_error *look_through(job *j, int64_t *out_n)
{
    nrd_batch_reader r = {.fd = j->fd};
    nrd_batch_ids ids = {.n = 0};
    nrd_error *err = NULL;
    uint64_t n_line = 0;
    bool more = true;

    *out_n = 0;
    while (!err) {
        nrd_batch_text text;
        nrd_batch_line line;
        bool fresh = true;
        err = nrd_batch_next(&r, &text, &n_line, &more);
        if (err || !more) {
            break;
        }
        if (++*out_n > NRD_LIMIT_BATCH_LINES) {
            fault_of(j, nrd_errorf(NRD_ERR_INVALID_ARG, "A batch has at most %d requests", NRD_LIMIT_BATCH_LINES),
                     "too_many_requests", n_line);
            break;
        }
        nrd_error *bad = nrd_batch_line_read(&line, &text, j->record.endpoint);
        if (line.custom_id) {
            err = nrd_batch_ids_add(&ids, line.custom_id, &fresh);
        }
        if (bad) {
            fault_of(j, bad, "invalid_request", n_line);
        } else if (!fresh) {
            fault(j, "duplicate_custom_id", "custom_id: another line of this file has the same", "custom_id", n_line);
        }
        nrd_batch_line_fini(&line);
    }
    nrd_batch_reader_fini(&r);
    nrd_batch_ids_fini(&ids);
    return err;
}

static nrd_error *open_draft(job *j, nrd_file_draft **out, char id[NRD_FILE_ID])
{
    nrd_error *err = NULL;
    if (!*out) { /* else an earlier server's, which was taken up at the start */
        err = nrd_file_draft_new(out, j->b->files, false);
    }
    if (!err) {
        pthread_mutex_lock(&j->b->mu);
        snprintf(id, NRD_FILE_ID, "%s", nrd_file_draft_id(*out));
        pthread_mutex_unlock(&j->b->mu);
    }
    return err;
}

/* The files of answers, with what an earlier server wrote. */
static nrd_error *open_drafts(job *j)
{
    nrd_batch_counts counts = {0};

    NRD_TRY(open_draft(j, &j->output, j->record.output_draft));
    NRD_TRY(open_draft(j, &j->errors, j->record.error_draft));
    NRD_TRY(nrd_batch_ids_read(&j->run.done, nrd_file_draft_fd(j->output), &counts, NULL, NULL));
    NRD_TRY(nrd_batch_ids_read(&j->run.done, nrd_file_draft_fd(j->errors), &counts, NULL, NULL));
    j->run.n_completed = counts.ok;
    j->run.n_failed = counts.failed;
    j->run.usage = counts.usage;
    show_counts(j);
    return NULL;
}

/* What clients get of a draft; "": nothing was written. */
static void name_file(const nrd_file_draft *d, char id[NRD_FILE_ID])
{
    snprintf(id, NRD_FILE_ID, "%s", d && nrd_file_draft_bytes(d) > 0 ? nrd_file_draft_id(d) : "");
}

/* id: as name_file gave it; "" where it is lost. */
static void commit(job *j, nrd_file_draft **draft, const char *name, char id[NRD_FILE_ID])
{
    nrd_file_draft *d = *draft;
    nrd_file_info info;
    char file[NRD_FILE_ID + 32];

    *draft = NULL;
    if (!id[0]) {
        nrd_file_draft_abort(d);
        return;
    }
    snprintf(file, sizeof file, "%s_%s.jsonl", j->record.id, name);
    nrd_error *err = nrd_file_draft_commit(d, j->record.owner, file, "batch_output", j->record.output_secs, &info);
    if (err) {
        NRD_LOG_ERROR("batch %s: its %s file is lost: %s", j->record.id, name, nrd_error_message(err));
        fault_of(j, err, "internal_error", 0);
        id[0] = '\0';
    }
}

/* The end is written down first: a server that starts between that and the files' records finds what it must still do
 * (recover). Clients see the end when the files are there. */
static void end(job *j, nrd_batch_state s)
{
    char output[NRD_FILE_ID], errors[NRD_FILE_ID];

    if (j->running) {
        show_counts(j);
    }
    name_file(j->output, output);
    name_file(j->errors, errors);
    nrd_batch_record ended = j->record; /* borrows its strings */
    memcpy(ended.output, output, sizeof output);
    memcpy(ended.errors_file, errors, sizeof errors);
    nrd_batch_reach(&ended, s);
    save_or_warn(j->b, &ended);
    commit(j, &j->output, "output", output);
    commit(j, &j->errors, "errors", errors);
    j->running = false;
    nrd_batch_run_fini(&j->run);
    if (j->fd >= 0) {
        close(j->fd);
    }
    j->fd = -1;
    pthread_mutex_lock(&j->b->mu);
    memcpy(j->record.output, output, sizeof output);
    memcpy(j->record.errors_file, errors, sizeof errors);
    nrd_batch_reach(&j->record, s);
    pthread_mutex_unlock(&j->b->mu);
    save_or_warn(j->b, &j->record);
    NRD_LOG_INFO("batch %s: %s, %lld of %lld requests succeeded, %lld failed", j->record.id,
                 s == NRD_BATCH_COMPLETED   ? "completed"
                 : s == NRD_BATCH_FAILED    ? "failed"
                 : s == NRD_BATCH_CANCELLED ? "cancelled"
                                            : "expired",
                 (long long)j->record.completed, (long long)j->record.total, (long long)j->record.failed);
}

/* A server ended between the end of a batch and the records of its files. */
static void recover(job *j, const char *name, char id[NRD_FILE_ID])
{
    nrd_file_draft *d = NULL;
    if (id[0]) {
        nrd_error_free(nrd_file_draft_resume(&d, j->b->files, id)); /* NOT_FOUND: it is a file already, or was removed */
        if (d) {
            commit(j, &d, name, id);
        }
    }
}

/* Looks through its file and begins, or ends it. */
static void begin(job *j)
{
    const bool resumed = j->record.state != NRD_BATCH_VALIDATING;
    nrd_file_info input;
    int key = -1;

    nrd_error *err = nrd_file_store_open(j->b->files, j->record.owner, j->record.input, &j->fd, &input);
    err = err ? err : find_key(j, &key);
    if (!err && !resumed) {
        int64_t total = 0;
        err = look_through(j, &total);
        pthread_mutex_lock(&j->b->mu);
        j->record.total = total;
        pthread_mutex_unlock(&j->b->mu);
        if (!err && total == 0) {
            fault(j, "empty_file", "The file of a batch must have at least one request", NULL, 0);
        }
    }
    if (!err && j->record.n_faults == 0) {
        j->run = (nrd_batch_run){.fd = j->fd, .endpoint = j->record.endpoint, .key = key, .write = write_line, .arg = j};
        j->running = true;
        err = open_drafts(j);
    }
    if (err) {
        fault_of(j, err, "internal_error", 0);
    }
    if (err || j->record.n_faults > 0) {
        end(j, NRD_BATCH_FAILED);
        return;
    }
    nrd_batch_run_begin(&j->run);
    if (resumed) {
        save_or_warn(j->b, &j->record);
    } else {
        reach(j, NRD_BATCH_IN_PROGRESS);
    }
}

/* What a batch that is under way comes to. */
static void look_at(job *j, bool cancel)
{
    nrd_batches *b = j->b;
    nrd_batch_run *r = &j->run;

    if (!j->running && (cancel || j->record.expires <= now_secs()) && j->record.state == NRD_BATCH_VALIDATING) {
        end(j, cancel ? NRD_BATCH_CANCELLED : NRD_BATCH_EXPIRED);
        return;
    }
    if (!j->running) {
        begin(j);
    }
    if (!j->running) {
        return;
    }
    if (!j->ends && (r->err || cancel || j->record.expires <= now_secs())) {
        j->ends = r->err ? "failed" : cancel ? "batch_cancelled" : "batch_expired";
        if (cancel && j->record.state != NRD_BATCH_CANCELLING) {
            reach(j, NRD_BATCH_CANCELLING);
        }
        nrd_batch_run_cancel(b->pool, r);
    }
    if (j->ends && r->n_flying == 0) {
        if (!r->err) {
            nrd_batch_run_give_up(r, j->ends,
                                  cancel ? "This request was not executed: its batch was cancelled."
                                         : "This request could not be executed before the completion window expired.");
        }
        if (r->err) {
            nrd_error *err = r->err;
            r->err = NULL;
            fault_of(j, err, "internal_error", 0);
            end(j, NRD_BATCH_FAILED);
        } else {
            end(j, cancel ? NRD_BATCH_CANCELLED : NRD_BATCH_EXPIRED);
        }
    } else if (!j->ends && nrd_batch_run_is_through(r)) {
        reach(j, NRD_BATCH_FINALIZING);
        end(j, NRD_BATCH_COMPLETED);
    } else {
        show_counts(j);
    }
}

/* ---- the thread ---- */

/* The next job that has not ended, behind j; NULL: from the first. Only the thread removes jobs that have not ended,
 * and only ended ones are removed by others: so what it gives stays. */
static job *next_active(nrd_batches *b, job *j)
{
    pthread_mutex_lock(&b->mu);
    j = j ? j->next : b->jobs;
    while (j && nrd_batch_has_ended(&j->record)) {
        j = j->next;
    }
    pthread_mutex_unlock(&b->mu);
    return j;
}

static void start_requests(nrd_batches *b)
{
    bool any = true;

    while (any) { /* a line of each in turn */
        any = false;
        for (job *j = next_active(b, NULL); j; j = next_active(b, j)) {
            if (j->running && !j->ends) {
                any = nrd_batch_run_start_one(b->pool, &j->run) || any;
            }
        }
    }
}

static void *work(void *arg)
{
    nrd_batches *b = arg;

    for (;;) {
        pthread_mutex_lock(&b->mu);
        const bool draining = b->draining, stopping = b->stopping;
        pthread_mutex_unlock(&b->mu);
        nrd_batch_pool_take(b->pool);
        if (stopping) {
            break;
        }
        bool active = false;
        for (job *j = next_active(b, NULL), *next; j; j = next) {
            next = next_active(b, j);
            pthread_mutex_lock(&b->mu);
            const bool cancel = j->cancel != 0;
            pthread_mutex_unlock(&b->mu);
            if (!draining || j->running) {
                look_at(j, cancel);
            }
            pthread_mutex_lock(&b->mu);
            j->settled = nrd_batch_has_ended(&j->record);
            active = active || !j->settled;
            pthread_mutex_unlock(&b->mu);
        }
        if (!draining) {
            start_requests(b);
        }
        /* A run whose last line was read, or that has an error, is looked at at once. */
        bool again = false;
        for (job *j = next_active(b, NULL); j; j = next_active(b, j)) {
            again = again || (j->running && !j->ends && (nrd_batch_run_is_through(&j->run) || j->run.err));
        }
        if (!again) {
            nrd_batch_pool_wait(b->pool, active ? TICK_NS : 60ull * TICK_NS);
        }
    }
    for (job *j = next_active(b, NULL); j; j = next_active(b, j)) {
        nrd_batch_run_cancel(b->pool, &j->run);
    }
    while (nrd_batch_pool_flying(b->pool) > 0) {
        nrd_batch_pool_wait(b->pool, TICK_NS);
        nrd_batch_pool_take(b->pool);
    }
    return NULL;
}

/* ---- life ---- */

/* Records of the folder are read before the thread runs. */
static void take_record(void *arg, const nrd_json *record)
{
    nrd_batches *b = arg;
    job *j = calloc(1, sizeof *j);

    if (!j || !nrd_batch_take(&j->record, record)) {
        NRD_LOG_WARN("a record of a batch cannot be read and is left alone");
        free(j);
        return;
    }
    j->b = b;
    j->fd = -1;
    j->cancel = j->record.at[NRD_BATCH_CANCELLING];
    j->settled = nrd_batch_has_ended(&j->record);
    pthread_mutex_lock(&b->mu);
    job **at = &b->jobs;
    while (*at && (*at)->record.created > j->record.created) {
        at = &(*at)->next;
    }
    j->next = *at;
    *at = j;
    pthread_mutex_unlock(&b->mu);
}

nrd_error *nrd_batches_new(nrd_batches **out, nrd_file_store *files, const nrd_keys *keys, int max_flying)
{
    nrd_batches *b = calloc(1, sizeof *b);
    *out = b;
    if (!b) {
        return nrd_error_no_memory();
    }
    b->files = files;
    b->keys = keys;
    b->max_flying = max_flying;
    pthread_mutex_init(&b->mu, NULL);
    return NULL;
}

/* So that what is not taken up can be removed. What cannot be opened now is told when the batch begins. */
static void resume_drafts(nrd_batches *b)
{
    for (job *j = b->jobs; j; j = j->next) {
        if (nrd_batch_has_ended(&j->record)) {
            recover(j, "output", j->record.output);
            recover(j, "errors", j->record.errors_file);
        } else if (j->record.state != NRD_BATCH_VALIDATING) {
            nrd_error_free(nrd_file_draft_resume(&j->output, b->files, j->record.output_draft));
            nrd_error_free(nrd_file_draft_resume(&j->errors, b->files, j->record.error_draft));
            NRD_LOG_INFO("batch %s goes on", j->record.id);
        }
    }
    nrd_file_store_remove_strays(b->files);
}

nrd_error *nrd_batches_start(nrd_batches *b, const nrd_batch_asks *asks)
{
    NRD_TRY(nrd_file_store_records(b->files, take_record, b));
    resume_drafts(b);
    NRD_TRY(nrd_batch_pool_new(&b->pool, asks, b->max_flying));
    if (pthread_create(&b->thread, NULL, work, b) != 0) {
        return nrd_errorf(NRD_ERR_INTERNAL, "cannot start a thread");
    }
    pthread_setname_np(b->thread, "batches");
    b->started = true;
    pthread_mutex_lock(&b->mu);
    b->open = true;
    pthread_mutex_unlock(&b->mu);
    return NULL;
}

static void tell(nrd_batches *b, bool *flag)
{
    if (b && b->started) {
        pthread_mutex_lock(&b->mu);
        *flag = true;
        pthread_mutex_unlock(&b->mu);
        nrd_batch_pool_wake(b->pool);
    }
}

void nrd_batches_drain(nrd_batches *b)
{
    tell(b, b ? &b->draining : NULL);
}

int nrd_batches_flying(nrd_batches *b)
{
    return b && b->started ? nrd_batch_pool_flying(b->pool) : 0;
}

/* What a client of it should know, who will not be told otherwise. */
static void tell_unfinished(nrd_batches *b)
{
    const bool stays = nrd_file_store_stays(b->files);
    for (job *j = b->jobs; j; j = j->next) {
        if (!nrd_batch_has_ended(&j->record)) {
            if (j->running) {
                show_counts(j);
                save_or_warn(b, &j->record);
            }
            NRD_LOG_WARN("batch %s is not finished: %lld of %lld requests have an answer; %s", j->record.id,
                         (long long)(j->record.completed + j->record.failed), (long long)j->record.total,
                         stays ? "it goes on when a server starts with this --openai-files-dir"
                               : "it is lost with the temporary folder (--openai-files-dir keeps one)");
        }
    }
}

void nrd_batches_stop(nrd_batches *b)
{
    if (b && b->started) {
        pthread_mutex_lock(&b->mu);
        b->open = false;
        pthread_mutex_unlock(&b->mu);
        tell(b, &b->stopping);
        pthread_join(b->thread, NULL);
        b->started = false;
        tell_unfinished(b);
    }
}

void nrd_batches_free(nrd_batches *b)
{
    if (!b) {
        return;
    }
    nrd_batches_stop(b);
    while (b->jobs) {
        job *next = b->jobs->next;
        job_free(b->jobs);
        b->jobs = next;
    }
    nrd_batch_pool_free(b->pool);
    pthread_mutex_destroy(&b->mu);
    free(b);
}

/* ---- what clients ask ---- */

/* Lock held. NULL: none. */
static job *find(nrd_batches *b, const char *owner, const char *id)
{
    job *j = b->jobs;
    while (j && (strcmp(j->record.id, id) != 0 || strcmp(j->record.owner, owner) != 0)) {
        j = j->next;
    }
    return j;
}

/* Lock held. That it is to be cancelled is told before the thread comes to it. */
static void put_job(nrd_str *out, const job *j)
{
    nrd_batch_record shown = j->record; /* borrows its strings */
    if (j->cancel && !nrd_batch_has_ended(&shown)) {
        shown.state = NRD_BATCH_CANCELLING;
        shown.at[NRD_BATCH_CANCELLING] = j->cancel;
    }
    nrd_batch_put(out, &shown, false);
}

static nrd_error *no_batch(const char *id)
{
    return nrd_error_because(nrd_errorf(NRD_ERR_NOT_FOUND, "No such Batch object: %.64s", id), "batch_not_found");
}

/* Lock held. Room for one more: the longest ended one goes. *out_gone: to be freed without the lock. */
static nrd_error *make_room(nrd_batches *b, job **out_gone)
{
    size_t n = 0;
    job **ended = NULL;

    for (job **at = &b->jobs; *at; at = &(*at)->next) {
        n++;
        ended = (*at)->settled ? at : ended; /* the last is the oldest */
    }
    if (n < NRD_LIMIT_BATCHES) {
        return NULL;
    }
    if (!ended) {
        return nrd_error_because(nrd_errorf(NRD_ERR_INVALID_ARG, "%d batches are under way, which is the limit", NRD_LIMIT_BATCHES),
                                 "too_many_batches");
    }
    *out_gone = *ended;
    *ended = (*ended)->next;
    return NULL;
}

nrd_error *nrd_batches_create(nrd_batches *b, const char *owner, const nrd_json *body, nrd_str *out)
{
    char name[NRD_FILE_ID + 16];
    nrd_file_info input;
    nrd_error *err = NULL;
    job *j = NULL, *gone = NULL;

    NRD_NEW_GOTO(j, 1, err, fail);
    j->b = b;
    j->fd = -1;
    NRD_TRY_GOTO(nrd_batch_read(&j->record, body), err, fail);
    snprintf(j->record.owner, sizeof j->record.owner, "%s", owner);
    NRD_TRY_GOTO(nrd_file_new_id(j->record.id, "batch_"), err, fail);
    err = nrd_file_store_find(b->files, owner, j->record.input, &input);
    if (err) {
        const char *asked = nrd_json_get_str(body, "input_file_id", "");
        nrd_error_free(err);
        err = nrd_error_at(nrd_errorf(NRD_ERR_INVALID_ARG, "input_file_id: there is no file '%.64s'", asked), "input_file_id");
        goto fail;
    }
    if (strcmp(input.purpose, "batch") != 0) {
        err = nrd_error_at(nrd_errorf(NRD_ERR_INVALID_ARG, "input_file_id: the purpose of this file is '%s', not 'batch'",
                                      input.purpose), "input_file_id");
        goto fail;
    }
    NRD_TRY_GOTO(save(b, &j->record), err, fail);
    nrd_batch_put(out, &j->record, false);
    pthread_mutex_lock(&b->mu);
    err = b->open && !b->draining ? make_room(b, &gone) : nrd_errorf(NRD_ERR_UNAVAILABLE, "the server is starting or shutting down");
    if (!err) {
        j->next = b->jobs;
        b->jobs = j;
    }
    pthread_mutex_unlock(&b->mu);
    if (err) {
        record_name(&j->record, name);
        nrd_file_store_erase(b->files, name);
        goto fail;
    }
    if (gone) {
        record_name(&gone->record, name);
        nrd_file_store_erase(b->files, name);
        job_free(gone);
    }
    nrd_batch_pool_wake(b->pool);
    return NULL;

fail:
    job_free(j);
    return err;
}

nrd_error *nrd_batches_show(nrd_batches *b, const char *owner, const char *id, nrd_str *out)
{
    pthread_mutex_lock(&b->mu);
    const job *j = find(b, owner, id);
    if (j) {
        put_job(out, j);
    }
    pthread_mutex_unlock(&b->mu);
    return j ? NULL : no_batch(id);
}

nrd_error *nrd_batches_cancel(nrd_batches *b, const char *owner, const char *id, nrd_str *out)
{
    nrd_error *err = NULL;
    bool wake = false;

    pthread_mutex_lock(&b->mu);
    job *j = find(b, owner, id);
    if (!j) {
        err = no_batch(id);
    } else if (nrd_batch_has_ended(&j->record)) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "This batch has ended and cannot be cancelled any more");
    } else {
        j->cancel = j->cancel ? j->cancel : now_secs();
        put_job(out, j);
        wake = b->open;
    }
    pthread_mutex_unlock(&b->mu);
    if (wake) {
        nrd_batch_pool_wake(b->pool);
    }
    return err;
}

nrd_error *nrd_batches_list(nrd_batches *b, const char *owner, const char *after, size_t max, nrd_str *out)
{
    const char *first = NULL, *last = NULL;
    bool more = false;
    size_t n = 0;

    pthread_mutex_lock(&b->mu);
    const job *j = b->jobs;
    if (after[0]) {
        j = find(b, owner, after);
        if (!j) {
            pthread_mutex_unlock(&b->mu);
            return nrd_error_at(nrd_errorf(NRD_ERR_INVALID_ARG, "after: there is no batch '%.64s'", after), "after");
        }
        j = j->next;
    }
    nrd_str_puts(out, "{\"object\":\"list\",\"data\":[");
    for (; j && !more; j = j->next) {
        if (strcmp(j->record.owner, owner) != 0) {
            continue;
        }
        if (n == max) {
            more = true;
            break;
        }
        nrd_str_puts(out, n++ ? "," : "");
        put_job(out, j);
        last = j->record.id;
        first = first ? first : last;
    }
    nrd_str_printf(out, first ? "],\"first_id\":\"%s\",\"last_id\":\"%s\"" : "],\"first_id\":null,\"last_id\":null", first, last);
    nrd_str_printf(out, ",\"has_more\":%s}", more ? "true" : "false");
    pthread_mutex_unlock(&b->mu);
    return NULL;
}
