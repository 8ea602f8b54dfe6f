/* SPDX-License-Identifier: Apache-2.0
 * tools/quantize/calibrate.h - what goes into each product while the model reads texts.
 *
 * Purpose   Runs the float model in the executor, which tells of the inputs (nrd_exec_config.on_product_input). Statistics
 *           of all layers at once may be larger than the model, so a pass over the texts keeps those of a few layers.
 * Owner     One thread calls.
 * Errors    What the executor says.
 */
#ifndef NRD_TOOLS_QUANTIZE_CALIBRATE_H
#define NRD_TOOLS_QUANTIZE_CALIBRATE_H

#include "base/error.h"
#include "tools/quantize/cache.h"
#include "tools/quantize/input.h"
#include "tools/quantize/math.h"
#include "tools/quantize/measure.h"
#include "tools/quantize/modules.h"
#include "tools/quantize/probe.h"
#include "tools/quantize/texts.h"

#include <stdint.h>

typedef struct nrd_qcalibration nrd_qcalibration;

/* What is kept: statistics of products' inputs, some of the inputs themselves (not of experts'), statistics of the cache. */
enum { NRD_QCALIBRATE_INPUTS = 1, NRD_QCALIBRATE_CACHE = 2, NRD_QCALIBRATE_ROWS = 4 };

/* `engine`: the float model's engine folder. Borrows all until close. */
nrd_error *nrd_qcalibration_open(nrd_qcalibration **out, const char *engine, const nrd_qmodules *modules,
                                 const nrd_qtexts *texts, nrd_qmath *math, int what, const char *device, int32_t n_threads) NRD_MUST_USE;
void nrd_qcalibration_close(nrd_qcalibration *c);

/* The inputs [n_inputs] of a layer (NULL where they are not kept) and what its cache held (likewise); runs a pass for it and those behind it, as many as fit, where they are not there, and
 * gives up those of the pass before. The caller may change them. */
nrd_error *nrd_qcalibration_layer(nrd_qcalibration *c, int32_t layer, nrd_qinput **out, nrd_qcache **out_cache) NRD_MUST_USE;
/* Columns of the widest input. */
int64_t nrd_qcalibration_widest(const nrd_qcalibration *c);
#define NRD_QCALIBRATION_BYTES (2.0 * (1 << 30)) /* of a pass's statistics, where nobody says more; but at least one layer's */
/* From now on they may take so many; passes are for multiples of at_a_time layers, where more have room. */
void nrd_qcalibration_make_room(nrd_qcalibration *c, double bytes, int32_t at_a_time);
/* What those of the largest layer take. */
double nrd_qcalibration_layer_bytes(const nrd_qcalibration *c);
/* A layer's inputs are not asked for again before the next pass. */
void nrd_qcalibration_done(nrd_qcalibration *c, int32_t layer);
/* The layer behind those of the last pass. */
int32_t nrd_qcalibration_end(const nrd_qcalibration *c);
/* Gives up all inputs, and what the caller has changed with them: the next call runs a pass. */
void nrd_qcalibration_forget(nrd_qcalibration *c);

/* The first of the texts. */
nrd_qtexts nrd_qcalibration_few(const nrd_qcalibration *c);
/* What the model says of such texts, m's: as it is (p NULL), or with inputs of one product rounded. Not of experts' own inputs. */
nrd_error *nrd_qcalibration_probe(nrd_qcalibration *c, const nrd_qprobe *p, nrd_qmeasure *m) NRD_MUST_USE;

#endif
