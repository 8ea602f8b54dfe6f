/* SPDX-License-Identifier: Apache-2.0
 * The bytes of page/, put here by the assembler (build.mk names the folder). A file that is added there
 * gets its two lines here and is read by the page as ui/NAME. */
#include "frontends/ui/internal.h"

#include <stddef.h>

#define FILE_BYTES(symbol, name)                                                                   \
    __asm__(".section .rodata\n"                                                                   \
            ".global nrd_ui_" #symbol "\n.hidden nrd_ui_" #symbol "\n"                             \
            "nrd_ui_" #symbol ":\n.incbin \"" NRD_UI_PAGE "/" name "\"\n"                          \
            ".global nrd_ui_" #symbol "_end\n.hidden nrd_ui_" #symbol "_end\n"                     \
            "nrd_ui_" #symbol "_end:\n.byte 0\n.previous\n");                                      \
    extern const char nrd_ui_##symbol[], nrd_ui_##symbol##_end[]

FILE_BYTES(html, "index.html");
FILE_BYTES(css, "app.css");
FILE_BYTES(icon, "icon.svg");
FILE_BYTES(early, "early.js");
FILE_BYTES(api, "api.js");
FILE_BYTES(attach, "attach.js");
FILE_BYTES(chat, "chat.js");
FILE_BYTES(dom, "dom.js");
FILE_BYTES(glyphs, "glyphs.js");
FILE_BYTES(highlight, "highlight.js");
FILE_BYTES(live, "live.js");
FILE_BYTES(markdown, "markdown.js");
FILE_BYTES(math, "math.js");
FILE_BYTES(pdf, "pdf.js");
FILE_BYTES(pull, "pull.js");
FILE_BYTES(settings, "settings.js");
FILE_BYTES(sidebar, "sidebar.js");
FILE_BYTES(store, "store.js");
FILE_BYTES(talk, "talk.js");
FILE_BYTES(words, "words.js");

#define SCRIPT(symbol) {#symbol ".js", "text/javascript; charset=utf-8", nrd_ui_##symbol, nrd_ui_##symbol##_end}
const nrd_ui_file nrd_ui_files[] = {
    {"", "text/html; charset=utf-8", nrd_ui_html, nrd_ui_html_end},
    {"app.css", "text/css; charset=utf-8", nrd_ui_css, nrd_ui_css_end},
    {"icon.svg", "image/svg+xml", nrd_ui_icon, nrd_ui_icon_end},
    SCRIPT(early),
    SCRIPT(api),
    SCRIPT(attach),
    SCRIPT(chat),
    SCRIPT(dom),
    SCRIPT(glyphs),
    SCRIPT(highlight),
    SCRIPT(live),
    SCRIPT(markdown),
    SCRIPT(math),
    SCRIPT(pdf),
    SCRIPT(pull),
    SCRIPT(settings),
    SCRIPT(sidebar),
    SCRIPT(store),
    SCRIPT(talk),
    SCRIPT(words),
};
_Static_assert(sizeof nrd_ui_files / sizeof *nrd_ui_files == NRD_UI_N_FILES, "internal.h has the count");
