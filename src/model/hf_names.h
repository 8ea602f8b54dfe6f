/* SPDX-License-Identifier: Apache-2.0
 * model/hf_names.h - errors of a specification in the words of the config.json that it was read from.
 *
 * Purpose   The checks are of the specification, whose fields have names of their own (recurrent.n_groups, norm_epsilon);
 *           who wrote a config.json knows its keys.
 * Owner     A pure function, any thread.
 */
#ifndef NRD_MODEL_HF_NAMES_H
#define NRD_MODEL_HF_NAMES_H

#include "base/error.h"
#include "base/json.h"

/* Takes err always; NULL stays NULL. Fields whose keys `config` does not have keep their names: they came from elsewhere. */
nrd_error *nrd_hf_name_fields(nrd_error *err, const nrd_json *config) NRD_MUST_USE;

#endif
