/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/line.h"

#include "base/env.h"
#include "base/mem.h"
#include "base/utf8.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

enum { MAX_HISTORY = 500, MAX_LINE_BYTES = 1 << 20, ESCAPE_WAIT_MS = 50 };
enum { KEY_END = -1, KEY_INTERRUPTED = -2, KEY_UP = 1000, KEY_DOWN, KEY_LEFT, KEY_RIGHT, KEY_HOME, KEY_LINE_END, KEY_DELETE,
       KEY_WORD_LEFT, KEY_WORD_RIGHT, KEY_PASTE, KEY_PASTED, KEY_NONE };

struct nrd_line {
    bool is_terminal, is_colored;
    char *read; /* getline's */
    size_t cap;
    char *history[MAX_HISTORY];
    int n_history;
    struct termios before;
};

nrd_line *nrd_line_new(void)
{
    nrd_line *l = nrd_xcalloc(1, sizeof *l);
    const char *term = nrd_env("TERM", "dumb");
    l->is_terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) && strcmp(term, "dumb") != 0;
    l->is_colored = !nrd_env("NO_COLOR", NULL);
    return l;
}

void nrd_line_free(nrd_line *l)
{
    for (int i = 0; i < l->n_history; i++) {
        free(l->history[i]);
    }
    free(l->read);
    free(l);
}

bool nrd_line_is_terminal(const nrd_line *l)
{
    return l->is_terminal;
}

/* ---- keys ---- */

static bool enter_raw(nrd_line *l)
{
    if (tcgetattr(STDIN_FILENO, &l->before) != 0) {
        return false;
    }
    struct termios raw = l->before;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO | ISIG | IEXTEN);
    raw.c_iflag &= ~(tcflag_t)(ICRNL | INLCR | IXON);
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    return tcsetattr(STDIN_FILENO, TCSADRAIN, &raw) == 0;
}

static void leave_raw(const nrd_line *l)
{
    tcsetattr(STDIN_FILENO, TCSADRAIN, &l->before);
}

static int next_byte(void)
{
    unsigned char c;
    ssize_t n = read(STDIN_FILENO, &c, 1);
    return n == 1 ? c : n < 0 && errno == EINTR ? KEY_INTERRUPTED : KEY_END;
}

/* Behind an escape: KEY_NONE where nothing follows soon. */
static int soon(void)
{
    struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
    return poll(&p, 1, ESCAPE_WAIT_MS) == 1 ? next_byte() : KEY_NONE;
}

static int named(int letter, bool by_words)
{
    switch (letter) {
    case 'A': return KEY_UP;
    case 'B': return KEY_DOWN;
    case 'C': return by_words ? KEY_WORD_RIGHT : KEY_RIGHT;
    case 'D': return by_words ? KEY_WORD_LEFT : KEY_LEFT;
    case 'H': return KEY_HOME;
    case 'F': return KEY_LINE_END;
    default: return KEY_NONE;
    }
}

static int numbered(int number)
{
    switch (number) {
    case 1: case 7: return KEY_HOME;
    case 4: case 8: return KEY_LINE_END;
    case 3: return KEY_DELETE;
    case 200: return KEY_PASTE;
    case 201: return KEY_PASTED;
    default: return KEY_NONE;
    }
}

/* "[A", "[1;5C", "[200~", "OH", "b", "f": what comes behind an escape. */
static int escape(void)
{
    int c = soon(), number = 0;
    bool second = false;

    if (c == 'b' || c == 'f') {
        return c == 'b' ? KEY_WORD_LEFT : KEY_WORD_RIGHT;
    }
    if (c != '[' && c != 'O') {
        return c < 0 ? c : KEY_NONE;
    }
    for (c = soon(); (c >= '0' && c <= '9') || c == ';'; c = soon()) {
        second = second || c == ';';
        number = c != ';' && !second && number < 1000 ? number * 10 + c - '0' : number;
    }
    return c < 0 ? c : c == '~' ? numbered(number) : named(c, second);
}

static int next_key(void)
{
    int c = next_byte();
    return c == 27 ? escape() : c;
}

/* ---- the line on the screen ---- */

typedef struct {
    nrd_line *line;
    const char *prompt;
    nrd_str text;
    size_t at;      /* byte of the cursor */
    int of_history; /* which is shown; n_history: the one that is typed */
    char *typed;    /* kept while another is shown */
    bool pasting;
} edit;

static size_t before(const edit *e, size_t at)
{
    do {
        at -= at > 0;
    } while (at > 0 && ((unsigned char)e->text.data[at] & 0xc0) == 0x80);
    return at;
}

static size_t after(const edit *e, size_t at)
{
    do {
        at += at < e->text.len;
    } while (at < e->text.len && ((unsigned char)e->text.data[at] & 0xc0) == 0x80);
    return at;
}

/* Columns of a character: Unicode's East Asian Width, in large pieces, and marks that stand above others. */
static int columns_of(uint32_t c)
{
    static const struct {
        uint32_t first, last;
    } wide[] = {{0x1100, 0x115f}, {0x2e80, 0xa4cf}, {0xac00, 0xd7a3}, {0xf900, 0xfaff}, {0xfe30, 0xfe6f},
                {0xff00, 0xff60}, {0xffe0, 0xffe6}, {0x1f300, 0x1faff}, {0x20000, 0x3fffd}};
    if ((c >= 0x300 && c <= 0x36f) || (c >= 0x200b && c <= 0x200f) || (c >= 0xfe00 && c <= 0xfe0f)) {
        return 0;
    }
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++) {
        if (c >= wide[i].first && c <= wide[i].last) {
            return 2;
        }
    }
    return 1;
}

/* The bytes [from, to) as they are shown: a line's end as a sign, other controls as spaces. Gives their columns. */
static int show(nrd_str *out, const edit *e, size_t from, size_t to)
{
    int columns = 0;
    while (from < to) {
        uint32_t c = 0;
        size_t n = nrd_utf8_next(e->text.data + from, to - from, &c);
        n = n > 0 ? n : 1;
        if (out && c == '\n') {
            nrd_str_puts(out, "\xe2\x86\xb5");
        } else if (out && (c < 32 || c == 127)) {
            nrd_str_putc(out, ' ');
        } else if (out) {
            nrd_str_append(out, e->text.data + from, n);
        }
        columns += columns_of(c);
        from += n;
    }
    return columns;
}

static void put(const nrd_str *s)
{
    fwrite(s->data, 1, s->len, stdout);
    fflush(stdout);
}

/* As far from `at` as whole characters fit into `room` columns. Only these are looked at: long texts are pasted. */
static size_t reach(const edit *e, size_t at, int room, size_t (*step)(const edit *, size_t))
{
    for (;;) {
        const size_t next = step(e, at);
        room -= next < at ? show(NULL, e, next, at) : show(NULL, e, at, next);
        if (next == at || room < 0) {
            return at;
        }
        at = next;
    }
}

/* One row; a text that is longer is shown around the cursor. */
static void draw(const edit *e)
{
    struct winsize size = {0};
    int width = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
    const int room = width - (int)strlen(e->prompt) - 1;
    const size_t from = reach(e, e->at, room, before), to = reach(e, e->at, room - show(NULL, e, from, e->at), after);
    nrd_str out = {0};

    nrd_str_printf(&out, e->line->is_colored ? "\r\033[1;32m%s\033[0m" : "\r%s", e->prompt);
    show(&out, e, from, to);
    nrd_str_printf(&out, "\033[K\r\033[%dC", (int)strlen(e->prompt) + show(NULL, e, from, e->at));
    put(&out);
    nrd_str_fini(&out);
}

/* ---- editing ---- */

static void replace(edit *e, size_t from, size_t to, const char *with, size_t n)
{
    if (e->text.len - (to - from) + n > MAX_LINE_BYTES) {
        return;
    }
    const size_t n_before = e->text.len;
    nrd_str_append(&e->text, with, n); /* room for it; a program of the terminal ends without memory */
    memmove(e->text.data + from + n, e->text.data + to, n_before - to);
    memcpy(e->text.data + from, with, n);
    e->text.len = n_before - (to - from) + n;
    e->text.data[e->text.len] = '\0';
    e->at = from + n;
}

static size_t word_before(const edit *e)
{
    size_t at = e->at;
    while (at > 0 && e->text.data[at - 1] == ' ') {
        at--;
    }
    while (at > 0 && e->text.data[at - 1] != ' ') {
        at--;
    }
    return at;
}

static size_t word_after(const edit *e)
{
    size_t at = e->at;
    while (at < e->text.len && e->text.data[at] == ' ') {
        at++;
    }
    while (at < e->text.len && e->text.data[at] != ' ') {
        at++;
    }
    return at;
}

static void recall(edit *e, int step)
{
    nrd_line *l = e->line;
    const int to = e->of_history + step;
    if (to < 0 || to > l->n_history) {
        return;
    }
    if (e->of_history == l->n_history) {
        free(e->typed);
        e->typed = nrd_xstrdup(nrd_str_cstr(&e->text));
    }
    e->of_history = to;
    const char *text = to == l->n_history ? e->typed : l->history[to];
    replace(e, 0, e->text.len, text, strlen(text));
}

static void stop_for_a_while(edit *e)
{
    leave_raw(e->line);
    raise(SIGTSTP);
    enter_raw(e->line);
}

static void on_key(edit *e, int key)
{
    const char byte = (char)key;
    switch (key) {
    case KEY_UP: case 'P' - 64: recall(e, -1); break;
    case KEY_DOWN: case 'N' - 64: recall(e, 1); break;
    case KEY_LEFT: case 'B' - 64: e->at = before(e, e->at); break;
    case KEY_RIGHT: case 'F' - 64: e->at = after(e, e->at); break;
    case KEY_HOME: case 'A' - 64: e->at = 0; break;
    case KEY_LINE_END: case 'E' - 64: e->at = e->text.len; break;
    case KEY_WORD_LEFT: e->at = word_before(e); break;
    case KEY_WORD_RIGHT: e->at = word_after(e); break;
    case KEY_DELETE: case 'D' - 64: replace(e, e->at, after(e, e->at), "", 0); break;
    case 127: case 'H' - 64: replace(e, before(e, e->at), e->at, "", 0); break;
    case 'W' - 64: replace(e, word_before(e), e->at, "", 0); break;
    case 'U' - 64: replace(e, 0, e->at, "", 0); break;
    case 'K' - 64: replace(e, e->at, e->text.len, "", 0); break;
    case 'L' - 64: fputs("\033[H\033[2J", stdout); break;
    case 'Z' - 64: stop_for_a_while(e); break;
    case KEY_PASTE: e->pasting = true; break;
    case KEY_PASTED: e->pasting = false; break;
    default:
        if ((key >= 32 && key < 256) || key == '\t') {
            replace(e, e->at, e->at, &byte, 1);
        }
    }
}

/* Until a line is whole. Deleting moves the cursor to where the text was. */
static nrd_line_result edit_line(edit *e)
{
    for (;;) {
        struct pollfd more = {.fd = STDIN_FILENO, .events = POLLIN};
        if (!e->pasting && poll(&more, 1, 0) != 1) {
            draw(e); /* once for all that was typed ahead, and for a whole character */
        }
        const int key = next_key();
        if (key == KEY_END || (key == 'D' - 64 && e->text.len == 0)) {
            return NRD_LINE_END;
        }
        if (key == KEY_INTERRUPTED || key == 'C' - 64) {
            return NRD_LINE_INTERRUPTED;
        }
        if ((key == '\r' || key == '\n') && !e->pasting) {
            return NRD_LINE_TEXT;
        }
        if (key == '\r' || key == '\n') {
            replace(e, e->at, e->at, "\n", 1);
        } else {
            on_key(e, key);
        }
    }
}

static void remember(nrd_line *l, const char *text)
{
    if (!text[0] || (l->n_history > 0 && !strcmp(l->history[l->n_history - 1], text))) {
        return;
    }
    if (l->n_history == MAX_HISTORY) {
        free(l->history[0]);
        memmove(l->history, l->history + 1, (MAX_HISTORY - 1) * sizeof *l->history);
        l->n_history--;
    }
    l->history[l->n_history++] = nrd_xstrdup(text);
}

static nrd_line_result read_terminal(nrd_line *l, const char *prompt, nrd_str *out)
{
    edit e = {.line = l, .prompt = prompt, .of_history = l->n_history};

    fputs("\033[?2004h", stdout); /* pasted text comes with marks around it */
    nrd_line_result r = edit_line(&e);
    e.at = e.text.len;
    draw(&e);
    fputs("\033[?2004l\n", stdout);
    fflush(stdout);
    leave_raw(l);
    nrd_str_append(out, nrd_str_cstr(&e.text), e.text.len);
    if (r == NRD_LINE_TEXT) {
        remember(l, nrd_str_cstr(&e.text));
    }
    nrd_str_fini(&e.text);
    free(e.typed);
    return r;
}

nrd_line_result nrd_line_read(nrd_line *l, const char *prompt, nrd_str *out)
{
    nrd_str_clear(out);
    if (l->is_terminal && enter_raw(l)) {
        return read_terminal(l, prompt, out);
    }
    errno = 0;
    ssize_t n = getline(&l->read, &l->cap, stdin);
    if (n < 0) {
        const bool interrupted = errno == EINTR;
        clearerr(stdin);
        return interrupted ? NRD_LINE_INTERRUPTED : NRD_LINE_END;
    }
    while (n > 0 && (l->read[n - 1] == '\n' || l->read[n - 1] == '\r')) {
        n--;
    }
    nrd_str_append(out, l->read, (size_t)n);
    return NRD_LINE_TEXT;
}
