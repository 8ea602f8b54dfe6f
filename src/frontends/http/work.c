/* SPDX-License-Identifier: Apache-2.0 */
#include "frontends/http/work.h"

#include "base/siphash.h"
#include "frontends/http/conn.h"

#include <stdlib.h>
#include <string.h>

typedef struct work {
    nrd_job job;
    nrd_http_task task;
    nrd_workers *workers;
    nrd_http_request *req; /* shares */
    void (*work)(void *arg);
    void (*done)(void *arg, bool ran);
    void *arg;
    bool ran;
} work;

#define WORK_OF(p, member) ((work *)(void *)((char *)(void *)(p)-offsetof(work, member)))

/* Clients are told apart by their address; 0: it is unknown. */
static uint64_t client_of(const nrd_http_request *req)
{
    static const nrd_address unknown;
    const nrd_address a = nrd_http_client(req);
    return memcmp(&a, &unknown, sizeof a) == 0 ? 0 : nrd_siphash_bytes(&a, sizeof a);
}

static void end(work *w)
{
    nrd_http_request *req = w->req;
    req->on_gone = NULL;
    w->done(w->arg, w->ran);
    free(w);
    nrd_http_request_unref(req);
}

static void on_gone(nrd_http_request *req, void *arg)
{
    work *w = arg;
    (void)req;
    if (nrd_workers_cancel(w->workers, &w->job)) {
        end(w);
    }
}

static void run_end(nrd_http_task *task)
{
    end(WORK_OF(task, task));
}

/* Bytes. What is longer is read and tokenized by the threads for long jobs. */
enum { LONG_BODY = 256 << 10 };

static void job_run(nrd_job *job)
{
    work *w = WORK_OF(job, job);
    w->work(w->arg);
}

static void job_done(nrd_job *job, bool ran)
{
    work *w = WORK_OF(job, job);
    w->ran = ran;
    w->task.run = run_end;
    nrd_http_post(w->req->loop, &w->task);
}

nrd_error *nrd_http_work(nrd_workers *workers, nrd_http_request *req, void (*fn)(void *arg),
                         void (*done)(void *arg, bool ran), void *arg)
{
    work *w = calloc(1, sizeof *w);
    if (!w) {
        return nrd_error_no_memory();
    }
    *w = (work){.job = {.run = job_run, .done = job_done, .is_long = req->body_n > LONG_BODY},
                .workers = workers,
                .req = req,
                .work = fn,
                .done = done,
                .arg = arg};
    nrd_http_request_ref(req);
    nrd_error *err = nrd_workers_submit(workers, &w->job, client_of(req));
    if (err) {
        free(w);
        nrd_http_request_unref(req);
        return err;
    }
    /* Still on the loop thread: run_end has not run yet. */
    req->on_gone = on_gone;
    req->gone_arg = w;
    return NULL;
}

void nrd_http_work_if(bool is_long, nrd_workers *workers, nrd_http_request *req, void (*fn)(void *arg),
                      void (*done)(void *arg, bool ran), void *arg)
{
    if (is_long) {
        nrd_error *err = nrd_http_work(workers, req, fn, done, arg);
        if (!err) {
            return;
        }
        nrd_error_free(err); /* no worker has time */
    }
    fn(arg);
    done(arg, true);
}
