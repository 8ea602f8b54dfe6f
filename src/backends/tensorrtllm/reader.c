/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/tensorrtllm/reader.h"

#include "base/mem.h"

#include <pthread.h>
#include <unistd.h>

struct nrd_llm_reader {
    nrd_llm_job_fn run;
    void *user;
    int32_t n_threads, max_waiting;
    pthread_t threads[NRD_LLM_MAX_READERS];
    int32_t n_started; /* of the thread that pushes */
    pthread_mutex_t mu;
    pthread_cond_t cv;
    nrd_llm_job *first, *last; /* guarded by mu, as the rest */
    int32_t n_waiting, n_idle;
    bool is_over;
};

static void *reader_main(void *arg)
{
    nrd_llm_reader *r = arg;
    nrd_llm_job *job;

    pthread_setname_np(pthread_self(), "pictures");
    pthread_mutex_lock(&r->mu);
    for (;;) {
        r->n_idle++;
        while (!r->first && !r->is_over) {
            pthread_cond_wait(&r->cv, &r->mu);
        }
        r->n_idle--;
        job = r->first;
        if (!job) {
            break;
        }
        r->first = job->next;
        r->last = r->first ? r->last : NULL;
        r->n_waiting--;
        const bool is_over = r->is_over;
        pthread_mutex_unlock(&r->mu);
        r->run(r->user, job, is_over);
        pthread_mutex_lock(&r->mu);
    }
    pthread_mutex_unlock(&r->mu);
    return NULL;
}

nrd_error *nrd_llm_reader_new(nrd_llm_reader **out, int32_t n_threads, int32_t max_waiting, nrd_llm_job_fn run, void *user)
{
    nrd_error *err = NULL;
    nrd_llm_reader *r = NULL;

    NRD_NEW_GOTO(r, 1, err, fail);
    pthread_mutex_init(&r->mu, NULL);
    pthread_cond_init(&r->cv, NULL);
    if (n_threads <= 0) {
        const long half = sysconf(_SC_NPROCESSORS_ONLN) / 2;
        n_threads = half < 2 ? 2 : half > NRD_LLM_MAX_READERS ? NRD_LLM_MAX_READERS : (int32_t)half;
    }
    r->n_threads = n_threads < NRD_LLM_MAX_READERS ? n_threads : NRD_LLM_MAX_READERS;
    r->run = run;
    r->user = user;
    r->max_waiting = max_waiting;
fail:
    *out = r;
    return err;
}

void nrd_llm_reader_free(nrd_llm_reader *r)
{
    if (!r) {
        return;
    }
    pthread_mutex_lock(&r->mu);
    r->is_over = true;
    pthread_cond_broadcast(&r->cv);
    pthread_mutex_unlock(&r->mu);
    for (int32_t i = 0; i < r->n_started; i++) {
        pthread_join(r->threads[i], NULL);
    }
    pthread_cond_destroy(&r->cv);
    pthread_mutex_destroy(&r->mu);
    free(r);
}

bool nrd_llm_reader_has_room(nrd_llm_reader *r)
{
    pthread_mutex_lock(&r->mu);
    const bool has_room = r->n_waiting < r->max_waiting;
    pthread_mutex_unlock(&r->mu);
    return has_room;
}

/* Where every thread has something to do, one more. That there is no other is an error only of the first. */
static nrd_error *start_thread(nrd_llm_reader *r)
{
    pthread_mutex_lock(&r->mu);
    const bool is_busy = r->n_idle <= r->n_waiting;
    pthread_mutex_unlock(&r->mu);
    if (!is_busy || r->n_started == r->n_threads) {
        return NULL;
    }
    if (pthread_create(&r->threads[r->n_started], NULL, reader_main, r) == 0) {
        r->n_started++;
    }
    return r->n_started > 0 ? NULL : nrd_errorf(NRD_ERR_INTERNAL, "cannot start the thread that reads pictures");
}

nrd_error *nrd_llm_reader_push(nrd_llm_reader *r, nrd_llm_job *job)
{
    NRD_TRY(start_thread(r));
    job->next = NULL;
    pthread_mutex_lock(&r->mu);
    *(r->last ? &r->last->next : &r->first) = job;
    r->last = job;
    r->n_waiting++;
    pthread_cond_signal(&r->cv);
    pthread_mutex_unlock(&r->mu);
    return NULL;
}
