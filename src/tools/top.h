/* SPDX-License-Identifier: Apache-2.0
 * tools/top.h - how `nereid top` draws what GET /ui/stats says.
 *
 * Purpose   top.c asks and handles the terminal; top_draw.c turns two answers into lines.
 * Owner     The main thread.
 * Units     Columns are characters of one column each; what a server sends is cut to such.
 */
#ifndef NRD_TOOLS_TOP_H
#define NRD_TOOLS_TOP_H

#include "base/json.h"
#include "base/str.h"

enum { NRD_TOP_MAX_ENGINES = 8, NRD_TOP_HISTORY = 64 };

/* Generated tokens a second of the last answers, newest last; by position of the engine. */
typedef struct nrd_top_history {
    double rate[NRD_TOP_MAX_ENGINES][NRD_TOP_HISTORY];
    int n;
} nrd_top_history;

typedef struct nrd_top_style {
    int width, height; /* of the terminal; height 0: all lines */
    bool color;        /* escape sequences for bold and colors */
    bool unicode;      /* blocks for bars and curves, else ASCII */
} nrd_top_style;

/* Adds the rates between two answers; `before` may be NULL. */
void nrd_top_remember(nrd_top_history *h, const nrd_json *before, const nrd_json *now);
/* Appends lines, each ended by "\n". `before` may be NULL: then no rates are known. */
void nrd_top_draw(nrd_str *out, const nrd_top_style *style, const nrd_top_history *h, const char *url,
                  const nrd_json *before, const nrd_json *now);

#endif
