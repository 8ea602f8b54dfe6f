/* SPDX-License-Identifier: Apache-2.0 */
#include "base/unfinished.h"

#include "base/file.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_NOTED = 24 };

/* The thread that takes a path out of its slot owns it, and a signal frees nothing: so what a slot
 * holds may be read under the lock, which a signal does not take. */
static _Atomic(char *) noted[MAX_NOTED];
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;

void nrd_unfinished_note(const char *path)
{
    char *copy = strdup(path);
    bool done = !copy; /* without memory it is a leftover of a program that is ended, as beyond MAX_NOTED */

    pthread_mutex_lock(&mu);
    for (int i = 0; i < MAX_NOTED && !done; i++) {
        char *none = NULL;
        done = atomic_compare_exchange_strong(&noted[i], &none, copy);
    }
    pthread_mutex_unlock(&mu);
    if (!done) {
        free(copy);
    }
}

void nrd_unfinished_forget(const char *path)
{
    pthread_mutex_lock(&mu);
    for (int i = 0; i < MAX_NOTED; i++) {
        char *p = atomic_load(&noted[i]);
        if (p && !strcmp(p, path)) {
            if (atomic_compare_exchange_strong(&noted[i], &p, NULL)) {
                free(p);
            }
            break;
        }
    }
    pthread_mutex_unlock(&mu);
}

static void on_signal(int sig)
{
    for (int i = MAX_NOTED - 1; i >= 0; i--) {
        const char *p = atomic_exchange(&noted[i], NULL);
        if (p && unlink(p) != 0) {
            nrd_dir_remove(p); /* system calls alone */
        }
    }
    raise(sig); /* SA_RESETHAND: now it ends the program */
}

void nrd_unfinished_remove_on_signals(void)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction act = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};

    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        struct sigaction old;
        if (sigaction(signals[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN) {
            sigaction(signals[i], &act, NULL);
        }
    }
}
