/* SPDX-License-Identifier: Apache-2.0
 * engine/lora_gain.h - the gains of DoRA adapters, which come from the base model's weights.
 *
 * Purpose   A DoRA adapter says how long each row of W + scale B A is to be. What operations read is a gain for each output, the
 *           length asked for over the length that the row has, and what the product's bias lacks then, since it has no gain.
 * Owner     Any thread; the engine is only read.
 * Errors    INVALID_ARG names the module whose row has no length. What cannot be read of an engine's other ranks, as
 *           nrd_engine_open says it.
 * Cost      One pass over the weights of the adapter's modules, which are dequantized row by row: rank multiplications a number.
 * Sources   DoRA (Liu et al., ICML 2024), equation 5, as Hugging Face PEFT computes it: weights as the model has them,
 *           quantized ones too, and a bias as it is.
 */
#ifndef NRD_ENGINE_LORA_GAIN_H
#define NRD_ENGINE_LORA_GAIN_H

#include "model/engine.h"
#include "model/lora.h"

/* Before l is given to a cache. Nothing for adapters without gains. engine: of rank 0; spec: of all ranks, whose files lie in
 * the same folder. */
nrd_error *nrd_lora_gains(nrd_lora *l, const nrd_engine *engine, const nrd_model_spec *spec) NRD_MUST_USE;

#endif
