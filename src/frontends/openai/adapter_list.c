/* SPDX-License-Identifier: Apache-2.0
 * The adapters that were loaded while the server runs, by name. */
#include "frontends/openai/internal.h"

#include "base/mem.h"

#include <string.h>

void nrd_oai_adapter_free(nrd_oai_adapter *a)
{
    if (a) {
        free(a->name);
        free(a->dir);
        free(a->llm);
        free(a);
    }
}

void nrd_oai_free_adapters(nrd_openai *o)
{
    while (o->adapters) {
        nrd_oai_adapter *a = o->adapters;
        o->adapters = a->next;
        nrd_oai_adapter_free(a);
    }
}

/* Lock held. */
static nrd_oai_adapter **place_of(nrd_openai *o, const char *name)
{
    nrd_oai_adapter **at = &o->adapters;
    while (*at && strcmp((*at)->name, name) != 0) {
        at = &(*at)->next;
    }
    return at;
}

bool nrd_oai_adapter_get(nrd_openai *o, const char *name, nrd_oai_model *m, char **out_llm)
{
    pthread_mutex_lock(&o->mu);
    const nrd_oai_adapter *a = *place_of(o, name);
    if (a) {
        free(m->adapter_dir);
        m->adapter_dir = strdup(a->dir);
        m->adapter = a->number;
        m->adapter_loads = true;
        *out_llm = strdup(a->llm);
    }
    pthread_mutex_unlock(&o->mu);
    return a != NULL;
}

char *nrd_oai_adapter_name(nrd_openai *o, const char *llm, size_t n)
{
    char *name = NULL;
    pthread_mutex_lock(&o->mu);
    for (const nrd_oai_adapter *a = o->adapters; a && !name; a = a->next) {
        if (!strcmp(a->llm, llm) && n-- == 0) {
            name = strdup(a->name);
        }
    }
    pthread_mutex_unlock(&o->mu);
    return name;
}

bool nrd_oai_adapter_add(nrd_openai *o, nrd_oai_adapter *a)
{
    pthread_mutex_lock(&o->mu);
    bool is_free = !*place_of(o, a->name);
    if (is_free) {
        a->next = o->adapters;
        o->adapters = a;
    }
    pthread_mutex_unlock(&o->mu);
    return is_free;
}

bool nrd_oai_adapter_remove(nrd_openai *o, const char *name)
{
    pthread_mutex_lock(&o->mu);
    nrd_oai_adapter **at = place_of(o, name), *a = *at;
    if (a) {
        *at = a->next;
    }
    pthread_mutex_unlock(&o->mu);
    nrd_oai_adapter_free(a);
    return a != NULL;
}

uint64_t nrd_oai_adapter_turn(nrd_openai *o, size_t *out_n)
{
    *out_n = 0;
    pthread_mutex_lock(&o->mu);
    uint64_t turn = ++o->n_adapters;
    for (const nrd_oai_adapter *a = o->adapters; a; a = a->next) {
        ++*out_n;
    }
    pthread_mutex_unlock(&o->mu);
    return turn;
}
