/* SPDX-License-Identifier: Apache-2.0 */
#include "frontends/openai/batch_file.h"

#include "base/clock.h"
#include "frontends/openai/file_store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define TICK_NS 200000000u
#define QUIET_NS (30ull * 1000000000u) /* between lines of progress where nobody looks at a terminal */

enum { MAX_TOLD = 5 };

typedef struct work {
    const nrd_batch_file *f;
    nrd_batch_run run;
    int in, out;
    int64_t total, before; /* lines, and those that had an answer */
    nrd_batch_ids asked;   /* the custom_ids of the lines, and each behind the line's own id: "ID CUSTOM_ID" */
    uint64_t begun_ns, told_ns;
    bool terminal;
} work;

static nrd_error *failed(const char *what, const char *path)
{
    return nrd_errorf(errno == ENOENT ? NRD_ERR_NOT_FOUND : NRD_ERR_INTERNAL, "cannot %s '%s': %s", what, path, strerror(errno));
}

/* ---- the files ---- */

static nrd_error *open_files(work *w)
{
    struct stat in, out;
    uint64_t whole = 0;

    w->in = open(w->f->input, O_RDONLY | O_CLOEXEC);
    if (w->in < 0 || fstat(w->in, &in) != 0) {
        return failed("open", w->f->input);
    }
    if (!S_ISREG(in.st_mode)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' is not a file", w->f->input);
    }
    w->out = open(w->f->output, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (w->out < 0 || fstat(w->out, &out) != 0) {
        return failed("open", w->f->output);
    }
    if (!S_ISREG(out.st_mode)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' is not a file: answers are kept there, so that another run goes on", w->f->output);
    }
    if (in.st_dev == out.st_dev && in.st_ino == out.st_ino) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' has the requests, and cannot take the answers too", w->f->output);
    }
    if (flock(w->out, LOCK_EX | LOCK_NB) != 0) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "'%s' is being written by another program", w->f->output);
    }
    NRD_TRY(nrd_file_whole_lines(w->out, &whole));
    return ftruncate(w->out, (off_t)whole) == 0 ? NULL : failed("cut", w->f->output);
}

static nrd_error *add_asked(work *w, const nrd_batch_text *text, const char *custom_id, bool *out_fresh)
{
    char id[NRD_BATCH_ID];
    nrd_str both = {0};
    bool other;

    nrd_batch_id_of(id, text);
    nrd_str_printf(&both, "%s %s", id, custom_id);
    nrd_error *err = nrd_batch_ids_add(&w->asked, custom_id, out_fresh);
    err = err ? err : nrd_str_error(&both);
    err = err ? err : nrd_batch_ids_add(&w->asked, nrd_str_cstr(&both), &other);
    nrd_str_fini(&both);
    return err;
}

/* An answer that was there: only one to a line of this file may stand for its answer. */
static nrd_error *check_answer(void *arg, const char *id, const char *custom_id)
{
    static const char help[] = "name another output, or remove this one";
    const work *w = arg;
    nrd_str both = {0};

    if (!nrd_batch_ids_have(&w->asked, custom_id)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' has an answer to '%.64s', which is not in '%s': %s", w->f->output, custom_id,
                          w->f->input, help);
    }
    nrd_str_printf(&both, "%s %s", id, custom_id);
    nrd_error *err = nrd_str_error(&both);
    if (!err && nrd_batch_id_is_of_a_line(id) && !nrd_batch_ids_have(&w->asked, nrd_str_cstr(&both))) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' has the answer to another request with the custom_id '%.64s' than '%s' has: %s",
                         w->f->output, custom_id, w->f->input, help);
    }
    nrd_str_fini(&both);
    return err;
}

/* Counts the lines. The same custom_id twice would make it unknown which line an answer belongs to. */
static nrd_error *look_through(work *w)
{
    nrd_batch_reader r = {.fd = w->in};
    nrd_str twice = {0};
    nrd_error *err = NULL;
    uint64_t n_line = 0;
    int n_twice = 0;
    bool more = true;

    while (!err) {
        nrd_batch_text text;
        nrd_batch_line line;
        bool fresh = true;
        err = nrd_batch_next(&r, &text, &n_line, &more);
        if (err || !more) {
            break;
        }
        w->total++;
        nrd_error_free(nrd_batch_line_read(&line, &text, -1)); /* its answer tells */
        if (line.custom_id) {
            err = add_asked(w, &text, line.custom_id, &fresh);
        }
        if (!fresh && n_twice++ < MAX_TOLD) {
            nrd_str_printf(&twice, "%s%llu ('%.64s')", n_twice > 1 ? ", " : "", (unsigned long long)n_line, line.custom_id);
        }
        nrd_batch_line_fini(&line);
    }
    if (!err && n_twice > 0) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' has lines with a custom_id that another line has: %s%s", w->f->input,
                         nrd_str_cstr(&twice), n_twice > MAX_TOLD ? ", …" : "");
    }
    nrd_str_fini(&twice);
    nrd_batch_reader_fini(&r);
    return err;
}

static nrd_error *write_line(void *arg, bool is_failed, const nrd_str *line)
{
    const work *w = arg;
    const char *p = line->data;

    (void)is_failed;
    for (size_t n = line->len; n > 0;) {
        const ssize_t k = write(w->out, p, n);
        if (k < 0 && errno != EINTR) {
            return failed("write", w->f->output);
        }
        p += k > 0 ? k : 0;
        n -= k > 0 ? (size_t)k : 0;
    }
    return NULL;
}

/* ---- progress ---- */

static double seconds(uint64_t from_ns)
{
    const double s = (double)(nrd_now_ns() - from_ns) / 1e9;
    return s > 1e-3 ? s : 1e-3;
}

static void tell(work *w, bool is_end)
{
    const nrd_batch_run *r = &w->run;
    const int64_t done = r->n_completed + r->n_failed, now = done - w->before;
    const double s = seconds(w->begun_ns);
    char left[48] = "";

    if (!is_end && nrd_now_ns() - w->told_ns < (w->terminal ? TICK_NS : QUIET_NS)) {
        return;
    }
    w->told_ns = nrd_now_ns();
    if (!is_end && now > 0) {
        const long long secs = (long long)((double)(w->total - done) * s / (double)now);
        snprintf(left, sizeof left, ", %lld:%02lld:%02lld left", secs / 3600, secs / 60 % 60, secs % 60);
    }
    fprintf(stderr, "%s%lld of %lld lines, %lld failed, %.1f tokens/s%s%s", w->terminal ? "\r\033[K" : "", (long long)done,
            (long long)w->total, (long long)r->n_failed, (double)r->usage.output / s, left, w->terminal && !is_end ? "" : "\n");
    fflush(stderr);
}

static void print_json(const work *w, bool interrupted)
{
    const nrd_batch_run *r = &w->run;
    nrd_str out = {0};

    nrd_str_puts(&out, "{\"output_file\": ");
    nrd_json_put_cstr(&out, w->f->output);
    nrd_str_printf(&out, ", \"status\": \"%s\", \"lines\": %lld, \"completed\": %lld, \"failed\": %lld, \"left_out\": %lld, "
                   "\"input_tokens\": %lld, \"output_tokens\": %lld, \"seconds\": ", interrupted ? "interrupted" : "completed",
                   (long long)w->total, (long long)r->n_completed, (long long)r->n_failed, (long long)w->before,
                   (long long)r->usage.input, (long long)r->usage.output);
    nrd_json_put_double(&out, seconds(w->begun_ns));
    if (!out.no_memory) {
        printf("%s}\n", out.data);
        fflush(stdout);
    }
    nrd_str_fini(&out);
}

/* ---- the work ---- */

static nrd_error *drive(work *w, nrd_batch_pool *p, bool *out_interrupted)
{
    nrd_batch_run *r = &w->run;

    w->begun_ns = w->told_ns = nrd_now_ns();
    nrd_batch_run_begin(r);
    for (;;) {
        *out_interrupted = *out_interrupted || w->f->interrupted(w->f->arg);
        if (*out_interrupted || r->err) {
            nrd_batch_run_cancel(p, r);
        }
        while (nrd_batch_run_start_one(p, r)) {
        }
        if (r->n_flying == 0 && (r->err || *out_interrupted || nrd_batch_run_is_through(r))) {
            break;
        }
        nrd_batch_pool_wait(p, TICK_NS);
        nrd_batch_pool_take(p);
        tell(w, false);
    }
    nrd_error *err = r->err;
    r->err = NULL;
    return err;
}

nrd_error *nrd_batch_file_run(const nrd_batch_file *f, const nrd_batch_asks *asks, nrd_batch_file_end *out)
{
    work w = {.f = f, .in = -1, .out = -1, .terminal = isatty(STDERR_FILENO) == 1};
    nrd_batch_counts had = {0};
    nrd_batch_pool *p = NULL;
    nrd_error *err = NULL;
    bool interrupted = false;

    *out = NRD_BATCH_FILE_INTERRUPTED;
    w.run = (nrd_batch_run){.endpoint = -1, .key = -1, .model_of = f->model_of, .write = write_line, .arg = &w, .model_arg = f->arg,
                            .ids_of_lines = true};
    NRD_TRY_GOTO(open_files(&w), err, done);
    NRD_TRY_GOTO(look_through(&w), err, done);
    NRD_TRY_GOTO(nrd_batch_ids_read(&w.run.done, w.out, &had, check_answer, &w), err, done);
    NRD_TRY_GOTO(nrd_batch_pool_new(&p, asks, f->max_flying), err, done);
    w.run.fd = w.in;
    w.run.n_completed = had.ok;
    w.run.n_failed = had.failed;
    w.run.n_nameless = had.nameless;
    w.before = had.ok + had.failed;
    if (w.before > 0) {
        fprintf(stderr, "%lld of %lld lines have an answer in '%s' and are left out\n", (long long)w.before, (long long)w.total, f->output);
    }
    err = drive(&w, p, &interrupted);
    tell(&w, true);
    if (f->json && !err) {
        print_json(&w, interrupted);
    }
    if (!err && fsync(w.out) != 0) {
        err = failed("write", f->output);
    }
    if (!err && !interrupted) {
        *out = w.run.n_failed > 0 ? NRD_BATCH_FILE_SOME_FAILED : NRD_BATCH_FILE_ALL_ANSWERED;
    }
done:
    nrd_batch_run_fini(&w.run);
    nrd_batch_ids_fini(&w.asked);
    nrd_batch_pool_free(p);
    if (w.in >= 0) {
        close(w.in);
    }
    if (w.out >= 0) {
        close(w.out);
    }
    return err;
}
