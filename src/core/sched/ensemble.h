/* core/sched/ensemble.h - a graph of models. */
#ifndef NRD_CORE_SCHED_ENSEMBLE_H
#define NRD_CORE_SCHED_ENSEMBLE_H

#include "base/error.h"
#include "core/objects.h"

nrd_error *nrd_ensemble_new(nrd_ensemble **out, nrd_model *m) NRD_MUST_USE;
nrd_error *nrd_ensemble_enqueue(nrd_ensemble *e, nrd_request *r) NRD_MUST_USE; /* as above */
void nrd_ensemble_free(nrd_ensemble *e);
/* Checks types and shapes along the graph against the models it uses, now loaded; marks the
 * ensemble as decoupled when one of them is. */
nrd_error *nrd_ensemble_check(nrd_server *s, nrd_config *cfg) NRD_MUST_USE;

#endif
