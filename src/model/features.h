/* SPDX-License-Identifier: Apache-2.0
 * model/features.h - what a network asks of a device beyond the operations that every device has.
 *
 * Purpose   One table: the runner refuses a device that lacks a mode by its name, `nereid inspect
 *           --families` shows which families need one.
 * Owner     Constant data and pure functions, any thread.
 */
#ifndef NRD_MODEL_FEATURES_H
#define NRD_MODEL_FEATURES_H

#include "model/spec.h"
#include "nereid/device.h"

typedef struct nrd_feature_row {
    nrd_feature feature;
    const char *name; /* for the user: "… models need <name>" */
    bool (*asks)(const nrd_model_spec *spec);
} nrd_feature_row;

const nrd_feature_row *nrd_feature_at(int i); /* NULL behind the last */

#endif
