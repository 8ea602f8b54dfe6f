/* SPDX-License-Identifier: Apache-2.0
 * tools/report.h - what `nereid serve --prepare-only` says: one JSON object a line on stdout, for the server that
 * started it (frontends/common/puller.h reads them).
 *   {"status": TEXT}                                    what is being done
 *   {"status": TEXT, "digest": "sha256:…", "total": BYTES, "completed": BYTES}   of one large file, a few times a second
 *   {"model": {…}, "repository": FOLDER, "fetched": BOOL, "record": FILE}   of each model; as in --models-file
 *   {"error": TEXT, "code": N}                          the last line; the code is an nrd_error_code
 * Owner: one thread. */
#ifndef NRD_TOOLS_REPORT_H
#define NRD_TOOLS_REPORT_H

#include "tools/several.h"

void nrd_report_status(const char *text);
void nrd_report_model(const nrd_several_model *m);
/* Takes err and gives the exit status. */
int nrd_report_end(nrd_error *err);

/* As nrd_hub_resolve, but the hub is asked for the newest of a model, and the bytes of its files are told.
 * *out_fetched: something was not there. */
nrd_error *nrd_report_resolve(const char *text, char **out_path, bool *out_fetched) NRD_MUST_USE;

#endif
