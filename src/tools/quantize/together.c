/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/quantize/together.h"

#include "base/mem.h"

#include <pthread.h>
#include <stdatomic.h>

enum { LEAST_THREADS = 2 }; /* of each */

double nrd_qtogether_bytes(int64_t cols)
{
    /* the factor, the raised matrix, the one that errors are measured with, and others of the size of weights; libraries' own */
    return 5.0 * (double)cols * (double)cols * sizeof(float) + (double)(1 << 27);
}

int nrd_qtogether_room(const nrd_qmath *m, double each, double bytes)
{
    int n = 1;

    while (nrd_qmath_is_far(m) && n < NRD_QTOGETHER_MAX && bytes > each * (n + 1) &&
           nrd_qmath_threads(m) / (n + 1) >= LEAST_THREADS) {
        n++;
    }
    return n;
}

nrd_error *nrd_qtogether_open(nrd_qtogether *t, const char *device, int32_t n_threads, int n)
{
    *t = (nrd_qtogether){0};
    for (; t->n < n; t->n++) {
        nrd_error *err = nrd_qmath_open(&t->maths[t->n], device, n_threads, t->n, n);
        if (err) {
            nrd_qtogether_close(t);
            return err;
        }
    }
    return NULL;
}

void nrd_qtogether_close(nrd_qtogether *t)
{
    for (int i = 0; i < t->n; i++) {
        nrd_qmath_close(t->maths[i]);
    }
    *t = (nrd_qtogether){0};
}

typedef struct shared {
    nrd_error *(*fn)(void *user, nrd_qmath *m, int32_t i);
    void *user;
    int32_t from, to;
    nrd_error **errors; /* [to - from] */
    _Atomic int32_t next;
    _Atomic bool failed;
} shared;

typedef struct one_of_them {
    shared *s;
    nrd_qmath *math;
    pthread_t thread;
} one_of_them;

static void *work(void *arg)
{
    const one_of_them *w = arg;
    shared *s = w->s;

    for (int32_t i; !s->failed && (i = atomic_fetch_add(&s->next, 1)) < s->to;) {
        s->errors[i - s->from] = s->fn(s->user, w->math, i);
        s->failed = s->failed || s->errors[i - s->from];
    }
    return NULL;
}

nrd_error *nrd_qtogether_each(nrd_qtogether *t, int32_t from, int32_t to, nrd_error *(*fn)(void *user, nrd_qmath *m, int32_t i),
                              void *user)
{
    nrd_error *err = NULL;
    one_of_them them[NRD_QTOGETHER_MAX];
    int n = 0;
    shared s = {.fn = fn, .user = user, .from = from, .to = to, .next = from};

    NRD_NEW_GOTO(s.errors, to - from, err, done);
    for (; n < t->n && n < to - from; n++) {
        them[n] = (one_of_them){.s = &s, .math = t->maths[n]};
        if (pthread_create(&them[n].thread, NULL, work, &them[n]) != 0) {
            break;
        }
    }
    if (n == 0) {
        err = nrd_errorf(NRD_ERR_UNAVAILABLE, "no thread for a layer");
    }
    for (int i = 0; i < n; i++) {
        (void)pthread_join(them[i].thread, NULL);
    }
    for (int32_t i = 0; i < to - from; i++) {
        if (err) {
            nrd_error_free(s.errors[i]);
        } else {
            err = s.errors[i];
        }
    }
done:
    free(s.errors);
    return err;
}
