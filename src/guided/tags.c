/* SPDX-License-Identifier: Apache-2.0
 * Structural tags: text that is free in places, and within given beginnings and ends fits a schema, a grammar
 * or another format. {"type": "structural_tag", "format": {...}}, or in the older form "structures" (begin,
 * schema, end) and "triggers".
 * Source    The notation of XGrammar's structural tags, as TensorRT-LLM and vLLM pass them on. */
#include "guided/internal.h"

#include <stdio.h>
#include <string.h>

typedef struct reader {
    builder *b;
    char path[160]; /* of the field that is read, for errors; cut when it is longer */
    size_t n_path;
    bool old; /* a tag has a schema, not a content */
} reader;

/* Goes into a field, or an element of one; gives where the path ended, for leave(). */
static size_t enter(reader *r, const char *field, const size_t *element)
{
    const size_t was = r->n_path, room = sizeof r->path - was;
    const char *dot = was ? "." : "";
    const int n = element ? snprintf(r->path + was, room, "%s%s[%zu]", dot, field, *element)
                          : snprintf(r->path + was, room, "%s%s", dot, field);
    r->n_path = n < 0 ? was : (size_t)n < room ? was + (size_t)n : sizeof r->path - 1;
    return was;
}

static void leave(reader *r, size_t was)
{
    r->n_path = was;
    r->path[was] = '\0';
}

static void wrong(reader *r, const char *field, const char *why)
{
    nrd_guided_fail(r->b, NRD_ERR_INVALID_ARG, "structural tag: %s%s%s %s", r->path, r->n_path && *field ? "." : "", field,
                    why);
}

/* What another reader said gets the place of its text. */
static expr *within(reader *r, const char *field, expr *e)
{
    if (r->b->err) {
        r->b->err = nrd_error_wrap(r->b->err, "structural tag: %s.%s", r->path, field);
    }
    return e;
}

static const nrd_json *member(reader *r, const nrd_json *o, const char *key, nrd_json_type type)
{
    const nrd_json *v = nrd_json_get(o, key);
    if (!nrd_json_is(v, type)) {
        wrong(r, key, type == NRD_JSON_STRING ? "must be a string" : "must be a list");
        return NULL;
    }
    return v;
}

static bool flag(reader *r, const nrd_json *o, const char *key, bool fallback)
{
    const nrd_json *v = nrd_json_get(o, key);
    if (v && !nrd_json_is(v, NRD_JSON_BOOL)) {
        wrong(r, key, "must be true or false");
    }
    return nrd_json_bool(v, fallback);
}

/* A string or a list of them, as a list. */
static size_t strings_of(const nrd_json *v, const nrd_json **out)
{
    *out = nrd_json_is(v, NRD_JSON_ARRAY) ? v->child : v;
    return nrd_json_is(v, NRD_JSON_ARRAY) ? v->n : v != NULL;
}

/* Strings of a list, each with a character at least unless `blank`. */
static void check_strings(reader *r, const char *key, const nrd_json *v, bool blank)
{
    const nrd_json *list;
    const size_t n = strings_of(v, &list);
    for (size_t i = 0; i < n && !r->b->err; i++) {
        if (!nrd_json_is(&list[i], NRD_JSON_STRING) || (list[i].n == 0 && !blank)) {
            wrong(r, key, blank ? "must be a string or a list of strings" : "must be a list of strings that are not empty");
        }
    }
}

static expr *read_format(reader *r, const nrd_json *f, const nrd_json *ends);

static expr *read_inner(reader *r, const nrd_json *o, const char *key, const nrd_json *ends)
{
    const size_t was = enter(r, key, NULL);
    expr *e = read_format(r, nrd_json_get(o, key), ends);
    leave(r, was);
    return e;
}

/* ---- text that others read ---- */

static expr *read_schema(reader *r, const nrd_json *o, const char *key)
{
    const nrd_json_limits limits = {.max_depth = 128};
    const nrd_json *v = nrd_json_get(o, key);
    const char *style = nrd_json_get_str(o, "style", "json");
    nrd_json_doc *doc = NULL;
    expr *e = NULL;

    if (!v) {
        wrong(r, key, "is missing");
    } else if (strcmp(style, "json") != 0) {
        nrd_guided_fail(r->b, NRD_ERR_UNSUPPORTED, "structural tag: %s.style '%.40s' is not supported, only json", r->path,
                        style);
    }
    if (r->b->err) {
        return NULL;
    }
    if (nrd_json_is(v, NRD_JSON_STRING)) {
        r->b->err = nrd_json_parse(&doc, v->str, v->n, &limits);
        v = nrd_json_root(doc);
    }
    if (!r->b->err) {
        e = nrd_guided_schema(r->b, v);
    }
    nrd_json_doc_free(doc);
    return within(r, key, e);
}

static expr *read_text(reader *r, const nrd_json *f, const char *key,
                       expr *(*read)(builder *b, const char *s, size_t n))
{
    const nrd_json *v = member(r, f, key, NRD_JSON_STRING);
    return v ? within(r, key, read(r->b, v->str, v->n)) : NULL;
}

static expr *whole_regex(builder *b, const char *s, size_t n)
{
    return nrd_guided_regex(b, s, n, false);
}

/* ---- tags ---- */

/* A tag from byte `skip` of its beginning on. */
static expr *read_tag(reader *r, const nrd_json *tag, size_t skip)
{
    builder *b = r->b;
    const nrd_json *begin = member(r, tag, "begin", NRD_JSON_STRING), *end = nrd_json_get(tag, "end"), *list;
    const size_t n = strings_of(end, &list);
    expr *seq = nrd_guided_seq(b), *alt = nrd_guided_alt(b);

    if (n == 0) {
        wrong(r, "end", "must be a string or a list of strings");
    }
    check_strings(r, "end", end, true);
    if (b->err) {
        return NULL;
    }
    nrd_guided_add(b, seq, nrd_guided_text(b, begin->str + skip, begin->n - skip));
    nrd_guided_add(b, seq, r->old ? read_schema(r, tag, "schema") : read_inner(r, tag, "content", end));
    for (size_t i = 0; i < n; i++) {
        nrd_guided_add(b, alt, nrd_guided_text(b, list[i].str, list[i].n));
    }
    nrd_guided_add(b, seq, alt);
    return seq;
}

/* The marks of free text: `n` that lead on, which the caller fills in, then those that must not come. */
static text_mark *new_marks(reader *r, const nrd_json *f, size_t n, const nrd_json *ends, size_t *out_n)
{
    const nrd_json *excludes = nrd_json_get(f, "excludes"), *list;
    text_mark *m;

    if (excludes && !nrd_json_is(excludes, NRD_JSON_ARRAY)) {
        wrong(r, "excludes", "must be a list of strings");
    }
    check_strings(r, "excludes", excludes, false);
    const size_t n_ends = strings_of(ends, &list);
    m = r->b->err ? NULL : nrd_arena_alloc(&r->b->arena, (n + n_ends + nrd_json_len(excludes) + 1) * sizeof *m);
    if (!m) {
        nrd_guided_no_memory(r->b);
        return NULL;
    }
    for (size_t i = 0; i < nrd_json_len(excludes); i++) {
        m[n++] = (text_mark){.s = excludes->child[i].str, .n = excludes->child[i].n, .banned = true};
    }
    for (size_t i = 0; i < n_ends; i++) {
        if (list[i].n > 0) {
            m[n++] = (text_mark){.s = list[i].str, .n = list[i].n, .banned = true};
        }
    }
    *out_n = n;
    return m;
}

static void define_free_text(reader *r, uint32_t start, const char *key, const text_mark *m, size_t n)
{
    const size_t bad = r->b->err ? n : nrd_guided_free_text(r->b, start, m, n);
    if (bad < n) {
        const size_t was = enter(r, key, &bad);
        wrong(r, "", "cannot come: another trigger or an excluded text ends before it does");
        leave(r, was);
    }
}

/* The one trigger that a tag begins with. */
static size_t trigger_of(reader *r, const nrd_json *tag, const nrd_json *triggers)
{
    const nrd_json *begin = member(r, tag, "begin", NRD_JSON_STRING);
    size_t found = triggers->n;
    for (size_t i = 0; i < triggers->n && !r->b->err; i++) {
        const nrd_json *t = &triggers->child[i];
        if (begin->n < t->n || memcmp(begin->str, t->str, t->n) != 0) {
            continue;
        }
        if (found < triggers->n) {
            wrong(r, "begin", "begins with more than one of the triggers");
        }
        found = i;
    }
    if (found == triggers->n) {
        wrong(r, "begin", "begins with none of the triggers");
    }
    return found;
}

/* What comes behind each trigger, as a rule: one of its tags without the trigger, then free text again if
 * there is a `start` of it. */
static void define_triggers(reader *r, const char *key, const nrd_json *tags, const nrd_json *triggers, text_mark *m,
                            const uint32_t *start)
{
    builder *b = r->b;
    expr **alts = nrd_arena_alloc(&b->arena, triggers->n * sizeof *alts);

    if (!alts) {
        nrd_guided_no_memory(b);
        return;
    }
    for (size_t i = 0; i < triggers->n; i++) {
        alts[i] = nrd_guided_alt(b);
    }
    for (size_t k = 0; k < tags->n && !b->err; k++) {
        const size_t was = enter(r, key, &k), i = trigger_of(r, &tags->child[k], triggers);
        if (!b->err) {
            nrd_guided_add(b, alts[i], read_tag(r, &tags->child[k], triggers->child[i].n));
        }
        leave(r, was);
    }
    for (size_t i = 0; i < triggers->n && !b->err; i++) {
        expr *seq = nrd_guided_seq(b);
        const size_t was = enter(r, "triggers", &i);
        if (!alts[i]->a) {
            wrong(r, "", "is what no tag begins with");
        }
        leave(r, was);
        m[i] = (text_mark){.s = triggers->child[i].str, .n = triggers->child[i].n, .follow = nrd_guided_new_rule(b)};
        nrd_guided_add(b, seq, alts[i]);
        if (start) {
            nrd_guided_add(b, seq, nrd_guided_rule_ref(b, *start));
        }
        nrd_guided_define(b, m[i].follow, seq);
    }
}

static expr *read_triggered(reader *r, const nrd_json *f, const char *key, const nrd_json *ends)
{
    builder *b = r->b;
    const nrd_json *triggers = member(r, f, "triggers", NRD_JSON_ARRAY), *tags = member(r, f, key, NRD_JSON_ARRAY);
    const bool first = flag(r, f, "at_least_one", false), once = flag(r, f, "stop_after_first", false);
    size_t n = 0;

    if (!b->err && (triggers->n == 0 || tags->n == 0)) {
        wrong(r, triggers->n ? key : "triggers", "must not be empty");
    } else if (!b->err && triggers->n > NRD_LIMIT_GUIDE_MARKS) {
        wrong(r, "triggers", "are more than 4096 (GUIDE_MARKS)");
    }
    _Static_assert(NRD_LIMIT_GUIDE_MARKS == 4096, "the text above says so");
    check_strings(r, "triggers", triggers, false);
    text_mark *m = b->err ? NULL : new_marks(r, f, triggers->n, ends, &n);
    const uint32_t start = nrd_guided_new_rule(b);
    if (!m || b->err) {
        return NULL;
    }
    define_triggers(r, key, tags, triggers, m, once ? NULL : &start);
    define_free_text(r, start, "triggers", m, n);
    if (!first || b->err) {
        return nrd_guided_rule_ref(b, start);
    }
    expr *alt = nrd_guided_alt(b);
    for (size_t i = 0; i < triggers->n; i++) {
        expr *seq = nrd_guided_text(b, m[i].s, m[i].n);
        nrd_guided_add(b, seq, nrd_guided_rule_ref(b, m[i].follow));
        nrd_guided_add(b, alt, seq);
    }
    return alt;
}

/* Pairs of a text and what must come behind it. */
static expr *read_dispatch(reader *r, const nrd_json *f, const nrd_json *ends)
{
    builder *b = r->b;
    const nrd_json *rules = member(r, f, "rules", NRD_JSON_ARRAY);
    const bool loop = flag(r, f, "loop", true);
    size_t n = 0;
    text_mark *m = rules ? new_marks(r, f, rules->n, ends, &n) : NULL;
    const uint32_t start = nrd_guided_new_rule(b);

    for (size_t i = 0; m && i < rules->n && !b->err; i++) {
        const nrd_json *pair = &rules->child[i], *text = nrd_json_at(pair, 0);
        const size_t was = enter(r, "rules", &i);
        if (nrd_json_len(pair) != 2 || !nrd_json_is(text, NRD_JSON_STRING) || text->n == 0) {
            wrong(r, "", "must be a list of a text and a format");
        } else {
            expr *seq = nrd_guided_seq(b);
            m[i] = (text_mark){.s = text->str, .n = text->n, .follow = nrd_guided_new_rule(b)};
            nrd_guided_add(b, seq, read_format(r, nrd_json_at(pair, 1), ends));
            if (loop) {
                nrd_guided_add(b, seq, nrd_guided_rule_ref(b, start));
            }
            nrd_guided_define(b, m[i].follow, seq);
        }
        leave(r, was);
    }
    if (m && !b->err) {
        define_free_text(r, start, "rules", m, n);
    }
    return nrd_guided_rule_ref(b, start);
}

static expr *read_any_text(reader *r, const nrd_json *f, const nrd_json *ends)
{
    static const char *const limits[] = {"max_tokens", "max_chars"};
    size_t n = 0;
    for (size_t i = 0; i < 2; i++) {
        const nrd_json *v = nrd_json_get(f, limits[i]);
        if (v && v->type != NRD_JSON_NULL) {
            nrd_guided_fail(r->b, NRD_ERR_UNSUPPORTED, "structural tag: %s.%s is not supported", r->path, limits[i]);
        }
    }
    const text_mark *m = new_marks(r, f, 0, ends, &n);
    const uint32_t start = nrd_guided_new_rule(r->b);
    if (m) {
        define_free_text(r, start, "excludes", m, n);
    }
    return nrd_guided_rule_ref(r->b, start);
}

static expr *read_separated(reader *r, const nrd_json *f)
{
    builder *b = r->b;
    const nrd_json *tags = member(r, f, "tags", NRD_JSON_ARRAY), *between = member(r, f, "separator", NRD_JSON_STRING);
    const bool some = flag(r, f, "at_least_one", false), once = flag(r, f, "stop_after_first", false);
    const uint32_t tag = nrd_guided_new_rule(b);
    expr *alt = nrd_guided_alt(b), *seq = nrd_guided_seq(b);

    if (!b->err && tags->n == 0) {
        wrong(r, "tags", "must not be empty");
    }
    for (size_t i = 0; !b->err && i < tags->n; i++) {
        const size_t was = enter(r, "tags", &i);
        nrd_guided_add(b, alt, read_tag(r, &tags->child[i], 0));
        leave(r, was);
    }
    nrd_guided_define(b, tag, alt);
    nrd_guided_add(b, seq, nrd_guided_rule_ref(b, tag));
    if (!once && !b->err) {
        expr *more = nrd_guided_text(b, between->str, between->n);
        nrd_guided_add(b, more, nrd_guided_rule_ref(b, tag));
        nrd_guided_add(b, seq, nrd_guided_repeat(b, more, 0, -1));
    }
    return some ? seq : nrd_guided_repeat(b, seq, 0, 1);
}

/* ---- formats of formats ---- */

static expr *read_elements(reader *r, const nrd_json *f, const nrd_json *ends, bool in_turn)
{
    builder *b = r->b;
    const nrd_json *list = member(r, f, "elements", NRD_JSON_ARRAY);
    expr *out = in_turn ? nrd_guided_seq(b) : nrd_guided_alt(b);

    if (list && list->n == 0) {
        wrong(r, "elements", "must not be empty");
    }
    for (size_t i = 0; list && i < list->n && !b->err; i++) {
        const size_t was = enter(r, "elements", &i);
        nrd_guided_add(b, out, read_format(r, &list->child[i], ends));
        leave(r, was);
    }
    return out;
}

static expr *read_repeat(reader *r, const nrd_json *f, const nrd_json *ends)
{
    const int64_t min = nrd_json_int(nrd_json_get(f, "min"), -2), max = nrd_json_int(nrd_json_get(f, "max"), -2);
    if (min < 0 || min > G_MAX_REPEAT) {
        wrong(r, "min", "must be a number from 0 to 100000");
    } else if (max != -1 && (max < min || max > G_MAX_REPEAT)) {
        wrong(r, "max", "must be -1 or a number from min to 100000");
    }
    expr *e = read_inner(r, f, "content", ends);
    return r->b->err ? NULL : nrd_guided_repeat(r->b, e, (int32_t)min, (int32_t)max);
}

static expr *read_format(reader *r, const nrd_json *f, const nrd_json *ends)
{
    builder *b = r->b;
    const char *type = nrd_json_get_str(f, "type", "");
    const struct {
        const char *name;
        int32_t min, max;
    } repeats[] = {{"optional", 0, 1}, {"plus", 1, -1}, {"star", 0, -1}};

    if (b->err) {
        return NULL;
    }
    if (!nrd_json_is(f, NRD_JSON_OBJECT)) {
        wrong(r, "", "must be a format: an object with a type");
        return NULL;
    }
    if (!strcmp(type, "const_string")) {
        return read_text(r, f, "value", nrd_guided_text);
    }
    if (!strcmp(type, "json_schema")) {
        return read_schema(r, f, "json_schema");
    }
    if (!strcmp(type, "regex")) {
        return read_text(r, f, "pattern", whole_regex);
    }
    if (!strcmp(type, "grammar")) {
        return read_text(r, f, "grammar", nrd_guided_ebnf);
    }
    if (!strcmp(type, "any_text")) {
        return read_any_text(r, f, ends);
    }
    if (!strcmp(type, "sequence") || !strcmp(type, "or")) {
        return read_elements(r, f, ends, *type == 's');
    }
    if (!strcmp(type, "repeat")) {
        return read_repeat(r, f, ends);
    }
    for (size_t i = 0; i < sizeof repeats / sizeof *repeats; i++) {
        if (!strcmp(type, repeats[i].name)) {
            return nrd_guided_repeat(b, read_inner(r, f, "content", ends), repeats[i].min, repeats[i].max);
        }
    }
    if (!strcmp(type, "tag")) {
        return read_tag(r, f, 0);
    }
    if (!strcmp(type, "triggered_tags")) {
        return read_triggered(r, f, "tags", ends);
    }
    if (!strcmp(type, "tags_with_separator")) {
        return read_separated(r, f);
    }
    if (!strcmp(type, "dispatch")) {
        return read_dispatch(r, f, ends);
    }
    nrd_guided_fail(b, NRD_ERR_UNSUPPORTED,
                    "structural tag: %s.type '%.40s' is not supported; there are const_string, json_schema, regex, grammar, "
                    "any_text, sequence, or, optional, plus, star, repeat, tag, triggered_tags, tags_with_separator, dispatch",
                    r->path, type);
    return NULL;
}

expr *nrd_guided_tags(builder *b, const nrd_json *root)
{
    reader r = {.b = b};
    const char *type = nrd_json_get_str(root, "type", "structural_tag");

    if (strcmp(type, "structural_tag") != 0) {
        wrong(&r, "type", "must be structural_tag");
        return NULL;
    }
    if (nrd_json_get(root, "format")) {
        return read_inner(&r, root, "format", NULL);
    }
    if (!nrd_json_get(root, "structures")) {
        wrong(&r, "format", "is missing");
        return NULL;
    }
    r.old = true;
    return read_triggered(&r, root, "structures", NULL);
}
