/* SPDX-License-Identifier: Apache-2.0
 * tools/line.h - lines that a person types: with editing and a history on a terminal, as they come from elsewhere.
 *
 * Owner     One thread. The terminal is as it was before and after each call.
 * Keys      Arrows, Home, End, Ctrl-A/E/B/F/P/N; Alt or Ctrl with arrows by words; Backspace, Delete, Ctrl-W/U/K; Ctrl-L, Ctrl-Z.
 *           Text that is pasted in several lines stays one text.
 */
#ifndef NRD_TOOLS_LINE_H
#define NRD_TOOLS_LINE_H

#include "base/str.h"

typedef enum { NRD_LINE_TEXT, NRD_LINE_INTERRUPTED, NRD_LINE_END } nrd_line_result;

typedef struct nrd_line nrd_line;

nrd_line *nrd_line_new(void); /* ends the program where memory is out */
void nrd_line_free(nrd_line *l);
bool nrd_line_is_terminal(const nrd_line *l);
/* Without its end, which may be that of Windows. INTERRUPTED: Ctrl-C; *out is then what had been typed. The prompt is shown on
 * terminals alone. */
nrd_line_result nrd_line_read(nrd_line *l, const char *prompt, nrd_str *out);

#endif
