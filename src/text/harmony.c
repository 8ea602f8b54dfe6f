/* SPDX-License-Identifier: Apache-2.0
 * The messages of an answer, told apart while its tokens come. */
#include "text/harmony.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CALLS = 64, MAX_HEADER = 4096 };

typedef enum {
    IN_HEADER,
    IN_REASONING,
    IN_CONTENT,
    IN_CALL,
    IN_NOTHING, /* between messages, or of a call too many */
} place;

typedef struct call {
    nrd_str name, arguments;
} call;

struct nrd_harmony {
    nrd_harmony_ids ids;
    nrd_detok *detok;
    const nrd_json *tools;
    place at;
    bool is_first;    /* header: the prompt began it, no mark has come yet */
    bool is_silent;   /* these tokens are the prompt's */
    bool wants_gap;   /* the next text is another message's */
    bool no_memory;
    int32_t n_reasoning_tokens;
    nrd_str header;   /* marks in it are line ends */
    nrd_str piece;
    nrd_str reasoning;
    call calls[MAX_CALLS];
    size_t n_calls;
};

static int32_t id_of(const nrd_tokenizer *t, const char *token)
{
    const int32_t id = nrd_tokenizer_token_id(t, token, strlen(token));
    return id >= 0 && nrd_tokenizer_is_special(t, id) ? id : -1;
}

bool nrd_harmony_find(const nrd_tokenizer *t, nrd_harmony_ids *out)
{
    *out = (nrd_harmony_ids){.start = id_of(t, "<|start|>"),
                             .channel = id_of(t, "<|channel|>"),
                             .message = id_of(t, "<|message|>"),
                             .constrain = id_of(t, "<|constrain|>"),
                             .end = id_of(t, "<|end|>"),
                             .end_of_call = id_of(t, "<|call|>"),
                             .end_of_answer = id_of(t, "<|return|>")};
    return out->start >= 0 && out->channel >= 0 && out->message >= 0 && out->end >= 0 && out->end_of_call >= 0 &&
           out->end_of_answer >= 0;
}

void nrd_harmony_free(nrd_harmony *h)
{
    if (!h) {
        return;
    }
    for (size_t i = 0; i < h->n_calls; i++) {
        nrd_str_fini(&h->calls[i].name);
        nrd_str_fini(&h->calls[i].arguments);
    }
    nrd_detok_free(h->detok);
    nrd_str_fini(&h->header);
    nrd_str_fini(&h->piece);
    nrd_str_fini(&h->reasoning);
    free(h);
}

/* ---- headers ---- */

static size_t word_at(const char *s)
{
    return strcspn(s, " \t\r\n");
}

static const char *skip_blank(const char *s)
{
    while (isspace((unsigned char)*s)) {
        s++;
    }
    return s;
}

/* Behind "to=", where that begins a word; its length, 0: there is none. */
static size_t find_recipient(const char *header, const char **out)
{
    for (const char *s = skip_blank(header); *s; s = skip_blank(s + word_at(s))) {
        if (!strncmp(s, "to=", 3)) {
            *out = s + 3;
            return word_at(s + 3);
        }
    }
    return 0;
}

/* Whether the request has a function of the recipient's name, "functions.NAME" or NAME alone. */
static bool is_function(const nrd_harmony *h, const char **name, size_t *n)
{
    static const char space[] = "functions.";
    if (*n > sizeof space - 1 && !strncmp(*name, space, sizeof space - 1)) {
        *name += sizeof space - 1;
        *n -= sizeof space - 1;
    }
    for (size_t i = 0; i < nrd_json_len(h->tools); i++) {
        const nrd_json *known = nrd_json_get(nrd_json_get(&h->tools->child[i], "function"), "name");
        if (nrd_json_is(known, NRD_JSON_STRING) && known->n == *n && !memcmp(known->str, *name, *n)) {
            return true;
        }
    }
    return false;
}

static bool is_channel(const char *header, const char *name)
{
    const char *s = strchr(header, '\n'); /* the mark <|channel|> */
    s = skip_blank(s ? s : "");
    return word_at(s) == strlen(name) && !strncmp(s, name, strlen(name));
}

/* The header is complete: what does its message say? */
static void begin_message(nrd_harmony *h)
{
    const char *header = nrd_str_cstr(&h->header), *name = NULL;
    size_t n = find_recipient(header, &name);

    h->wants_gap = !h->is_silent;
    h->is_first = false;
    if (n > 0 && is_function(h, &name, &n)) {
        if (h->n_calls == MAX_CALLS) {
            h->at = IN_NOTHING;
            return;
        }
        h->at = IN_CALL;
        nrd_str_append(&h->calls[h->n_calls++].name, name, n);
        return;
    }
    h->at = is_channel(header, "analysis") ? IN_REASONING : IN_CONTENT;
}

/* Text before any mark: "assistant" is the prompt's, and a recipient may follow it. */
static bool is_header_so_far(const char *s)
{
    static const char role[] = "assistant", to[] = "to=";
    const size_t n = strlen(s);

    if (n < sizeof role - 1) {
        return !strncmp(s, role, n);
    }
    s = skip_blank(s + (strncmp(s, role, sizeof role - 1) ? 0 : sizeof role - 1));
    return !strncmp(s, to, strlen(s) < 3 ? strlen(s) : 3);
}

/* ---- text ---- */

static nrd_str *sink(nrd_harmony *h, nrd_str *content)
{
    return h->at == IN_REASONING ? &h->reasoning
           : h->at == IN_CONTENT ? content
           : h->at == IN_CALL    ? &h->calls[h->n_calls - 1].arguments
                                 : NULL;
}

static void put_text(nrd_harmony *h, const char *s, size_t n, nrd_str *content)
{
    nrd_str *to = h->is_silent ? NULL : sink(h, content);
    if (!to || n == 0) {
        return;
    }
    if (h->wants_gap && to->len > 0) {
        nrd_str_puts(to, "\n\n");
    }
    h->wants_gap = false;
    nrd_str_append(to, s, n);
}

/* What the detokenizer gave, to where it belongs. */
static void take_piece(nrd_harmony *h, nrd_str *content)
{
    h->no_memory = h->no_memory || h->piece.no_memory;
    if (h->piece.len == 0) {
        return;
    }
    if (h->at != IN_HEADER) {
        put_text(h, nrd_str_cstr(&h->piece), h->piece.len, content);
    } else if (h->header.len < MAX_HEADER) {
        nrd_str_put(&h->header, &h->piece);
        if (h->is_first && !is_header_so_far(nrd_str_cstr(&h->header))) {
            static const char role[] = "assistant";
            const char *s = nrd_str_cstr(&h->header);
            const size_t skip = strncmp(s, role, sizeof role - 1) ? 0 : sizeof role - 1;
            h->at = IN_CONTENT;
            put_text(h, s + skip, h->header.len - skip, content);
        }
    }
    nrd_str_clear(&h->piece);
}

static void flush(nrd_harmony *h, nrd_str *content)
{
    nrd_detok_flush(h->detok, &h->piece);
    take_piece(h, content);
    nrd_detok_reset(h->detok);
}

void nrd_harmony_push(nrd_harmony *h, int32_t id, nrd_str *content)
{
    const nrd_harmony_ids *m = &h->ids;

    h->n_reasoning_tokens += h->at == IN_REASONING && !h->is_silent;
    if (id == m->start) {
        flush(h, content);
        h->at = IN_HEADER;
        h->is_first = false;
        nrd_str_clear(&h->header);
    } else if (id == m->channel || (id == m->constrain && id >= 0)) {
        flush(h, content);
        if (h->at != IN_HEADER) { /* no <|start|>: a header all the same */
            h->at = IN_HEADER;
            nrd_str_clear(&h->header);
        }
        h->is_first = false;
        nrd_str_putc(&h->header, '\n');
    } else if (id == m->message) {
        flush(h, content);
        if (h->at == IN_HEADER) {
            begin_message(h);
        }
    } else if (id == m->end || id == m->end_of_call || id == m->end_of_answer) {
        flush(h, content);
        h->at = IN_NOTHING;
    } else {
        nrd_detok_push(h->detok, id, &h->piece);
        take_piece(h, content);
    }
}

void nrd_harmony_end(nrd_harmony *h, nrd_str *content)
{
    flush(h, content);
    if (h->at == IN_HEADER && h->is_first) { /* it was no header: "to" or "to=" */
        static const char role[] = "assistant";
        const char *s = nrd_str_cstr(&h->header);
        const size_t skip = strncmp(s, role, sizeof role - 1) ? 0 : sizeof role - 1;
        h->at = IN_CONTENT;
        put_text(h, s + skip, h->header.len - skip, content);
    }
    h->at = IN_NOTHING;
}

/* ---- begin ---- */

nrd_harmony *nrd_harmony_new(const nrd_harmony_ids *ids, const nrd_tokenizer *t, const nrd_json *tools,
                             const nrd_ids *prompt)
{
    nrd_harmony *h = calloc(1, sizeof *h);
    size_t from = prompt->n;

    if (!h) {
        return NULL;
    }
    h->ids = *ids;
    h->tools = tools;
    h->detok = nrd_detok_new(t, NRD_DECODE_SKIP_SPECIAL);
    h->at = IN_HEADER;
    if (!h->detok) {
        nrd_harmony_free(h);
        return NULL;
    }
    while (from > 0 && prompt->ids[from - 1] != ids->start) {
        from--;
    }
    h->is_silent = true;
    h->is_first = true;
    for (size_t i = from; from > 0 && i < prompt->n; i++) {
        nrd_harmony_push(h, prompt->ids[i], &h->piece);
    }
    flush(h, &h->piece);
    h->is_silent = false;
    return h;
}

bool nrd_harmony_no_memory(const nrd_harmony *h)
{
    bool no = h->no_memory || h->header.no_memory || h->piece.no_memory || h->reasoning.no_memory;
    for (size_t i = 0; i < h->n_calls; i++) {
        no = no || h->calls[i].name.no_memory || h->calls[i].arguments.no_memory;
    }
    return no;
}

const nrd_str *nrd_harmony_reasoning(const nrd_harmony *h)
{
    return &h->reasoning;
}

int32_t nrd_harmony_reasoning_tokens(const nrd_harmony *h)
{
    return h->n_reasoning_tokens;
}

size_t nrd_harmony_n_calls(const nrd_harmony *h)
{
    return h->n_calls;
}

void nrd_harmony_call(const nrd_harmony *h, size_t i, const nrd_str **name, const nrd_str **arguments)
{
    *name = &h->calls[i].name;
    *arguments = &h->calls[i].arguments;
}
