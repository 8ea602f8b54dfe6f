/* SPDX-License-Identifier: Apache-2.0
 * tools/quantize/folder.h - the folder that is written: a Hugging Face model of compressed-tensors.
 *
 * Purpose   A file for what belongs to no layer and one for each layer (model-00001-of-…), then the index, what else the
 *           model's folder has, and config.json last. Files appear whole. quantize.progress says, as long as config.json
 *           is missing, what was asked for and which files are there with what errors: the same command goes on from there.
 * Owner     One thread.
 * Errors    ALREADY_EXISTS: the folder holds something else. Else as base/file.h.
 */
#ifndef NRD_TOOLS_QUANTIZE_FOLDER_H
#define NRD_TOOLS_QUANTIZE_FOLDER_H

#include "base/error.h"
#include "model/source.h"
#include "tools/quantize/layer.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct nrd_qfolder nrd_qfolder;

#define NRD_QFOLDER_REPORT "report.json" /* a folder with a model and without it was not made here: it is not touched */

/* settings: one line that is the same where the same is asked for. What another one left is removed. bits: of a module's weight,
 * at least. UNAVAILABLE, with the folder as it was: no room for what is still to be written. */
nrd_error *nrd_qfolder_open(nrd_qfolder **out, const char *dir, const nrd_source *src, const nrd_qmodules *q,
                            const char *settings, int bits) NRD_MUST_USE;
void nrd_qfolder_close(nrd_qfolder *f);

/* Whether a layer's file (-1: that of no layer) is there from before, and the line that was noted with it (borrows). */
bool nrd_qfolder_has(const nrd_qfolder *f, int32_t layer, const char **out_note);
/* Writes it, packed by the threads of m. note: a line of JSON, kept by nrd_qfolder_has. */
nrd_error *nrd_qfolder_put(nrd_qfolder *f, nrd_qmath *m, int32_t layer, const nrd_qscheme *s, const nrd_qresult *r,
                           const char *note) NRD_MUST_USE;
/* The index, once all files are there. out_bytes: of all tensors. */
nrd_error *nrd_qfolder_index(const nrd_qfolder *f, uint64_t *out_bytes) NRD_MUST_USE;
/* All matrices that stay as they are, those among them that no note of the files has with `why_left`. *out [*out_n] is allocated,
 * names are the modules'. */
nrd_error *nrd_qfolder_kept(const nrd_qfolder *f, const char *why_left, nrd_qkept **out, size_t *out_n) NRD_MUST_USE;
/* Other files and config.json. s NULL: no weight is quantized. wide: the grid of modules that get 8 bits beside others. cache: the type
 * that the cache's scales are for; NONE: there are none. */
nrd_error *nrd_qfolder_finish(nrd_qfolder *f, const nrd_qscheme *s, const nrd_qgrid *wide, nrd_dtype cache) NRD_MUST_USE;

#endif
