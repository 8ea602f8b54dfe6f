/* SPDX-License-Identifier: Apache-2.0
 * hub/id.h - models by name: what an id says.
 *
 * Purpose   ORG/NAME[:QUANT][@REV], the same after "hf:", ORG/NAME/FILE.gguf for one file of it, addresses of
 *           the hub's pages (https://HUB/ORG/NAME, …/resolve/REV/FILE.gguf), and https://HOST/PATH.gguf for a
 *           file anywhere.
 * Owner     Stateless; any thread.
 * Errors    INVALID_ARG: what is wrong with the id, and how one looks.
 * Source    Names as the hub allows them: letters, digits, '.', '_' and '-', at most 96 characters, no "--"
 *           and "..", neither '.' nor '-' at an end.
 */
#ifndef NRD_HUB_ID_H
#define NRD_HUB_ID_H

#include "base/error.h"

#include <stdbool.h>

enum { NRD_HUB_MAX_NAME = 96, NRD_HUB_MAX_PATH = 1024, NRD_HUB_MAX_URL = 2048 };

typedef struct nrd_hub_id {
    char repo[2 * NRD_HUB_MAX_NAME + 2]; /* "ORG/NAME", or "NAME" after "hf:"; "" where url is given */
    char rev[256];                       /* "main" unless it is said */
    char quant[65];                      /* of a GGUF file, "" for the usual choice */
    char file[NRD_HUB_MAX_PATH + 1];     /* one file of the repository; "": what the model needs */
    char url[NRD_HUB_MAX_URL + 1];       /* a file anywhere; "": of the hub */
} nrd_hub_id;

/* endpoint: of the hub, without a slash at its end: its addresses are ids of its repositories. */
nrd_error *nrd_hub_id_parse(nrd_hub_id *out, const char *text, const char *endpoint) NRD_MUST_USE;
/* Could it be an id, and not just a path that does not exist? */
bool nrd_hub_id_is(const char *text);

#endif
