/* SPDX-License-Identifier: Apache-2.0
 * The bytes of page/, put here by the assembler (build.mk names the folder). */
#include "frontends/ui/internal.h"

#define FILE_BYTES(symbol, name)                                                                   \
    __asm__(".section .rodata\n"                                                                   \
            ".global nrd_ui_" #symbol "\n.hidden nrd_ui_" #symbol "\n"                             \
            "nrd_ui_" #symbol ":\n.incbin \"" NRD_UI_PAGE "/" name "\"\n"                          \
            ".global nrd_ui_" #symbol "_end\n.hidden nrd_ui_" #symbol "_end\n"                     \
            "nrd_ui_" #symbol "_end:\n.byte 0\n.previous\n");                                      \
    extern const char nrd_ui_##symbol[], nrd_ui_##symbol##_end[]

FILE_BYTES(html, "index.html");
FILE_BYTES(css, "app.css");
FILE_BYTES(chat, "chat.js");
FILE_BYTES(live, "live.js");
FILE_BYTES(icon, "icon.svg");

const nrd_ui_file nrd_ui_files[NRD_UI_N_FILES] = {
    {"text/html; charset=utf-8", nrd_ui_html, nrd_ui_html_end},
    {"text/css; charset=utf-8", nrd_ui_css, nrd_ui_css_end},
    {"text/javascript; charset=utf-8", nrd_ui_chat, nrd_ui_chat_end},
    {"text/javascript; charset=utf-8", nrd_ui_live, nrd_ui_live_end},
    {"image/svg+xml", nrd_ui_icon, nrd_ui_icon_end},
};
