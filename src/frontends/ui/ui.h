/* SPDX-License-Identifier: Apache-2.0
 * frontends/ui/ui.h - the page at / of the HTTP port: chat, and a live view of the server.
 *
 * Purpose   Serves the files of page/ (they are inside the program) and GET /ui/stats, one JSON
 *           document with what the live view and `nereid top` draw. The page does the rest through
 *           the endpoints that everybody uses: /v1, generate_stream, /v2/repository.
 * Owner     Handlers run on the loop threads of the HTTP service.
 * Units     As the names of the JSON members say; tokens and blocks are counts.
 * Errors    /ui/stats fails as the endpoints of /v2 do. It belongs to the restricted group
 *           "statistics"; the files are never restricted.
 * Lifetime  new between nrd_http_api_new and nrd_http_api_listen; free after the service is freed.
 * Sources   RFC 9110 (conditional requests), CSP level 3.
 */
#ifndef NRD_FRONTENDS_UI_UI_H
#define NRD_FRONTENDS_UI_UI_H

#include "frontends/http/api.h"

typedef struct nrd_ui nrd_ui;

nrd_error *nrd_ui_new(nrd_ui **out, nrd_http_api *api) NRD_MUST_USE;
void nrd_ui_free(nrd_ui *ui); /* NULL is fine */

#endif
