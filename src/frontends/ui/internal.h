/* SPDX-License-Identifier: Apache-2.0
 * frontends/ui/internal.h - what the files of this folder share.
 *
 * Purpose   files.c holds the bytes of the page, ui.c serves them, stats.c makes /ui/stats.
 * Owner     The files are constant; the statistics' text is guarded by its lock.
 */
#ifndef NRD_FRONTENDS_UI_INTERNAL_H
#define NRD_FRONTENDS_UI_INTERNAL_H

#include "frontends/http/api.h"

#include <pthread.h>

enum { NRD_UI_N_FILES = 20, NRD_UI_ETAG_BYTES = 24 };

typedef struct nrd_ui_file {
    const char *name;        /* behind /ui/; empty: the page itself, at / */
    const char *type;        /* media type */
    const char *begin, *end; /* the bytes, as they are in the tree */
} nrd_ui_file;

extern const nrd_ui_file nrd_ui_files[NRD_UI_N_FILES];

/* Appends the document of GET /ui/stats. since_ns: steady clock at the server's start. */
nrd_error *nrd_ui_put_stats(nrd_str *out, const nrd_http_api *api, uint64_t since_ns) NRD_MUST_USE;

#endif
