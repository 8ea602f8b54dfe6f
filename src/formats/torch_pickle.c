/* SPDX-License-Identifier: Apache-2.0
 * The stack machine of PyTorch's pickles. Called by formats/torch_bin.c. */
#include "formats/torch_pickle.h"

#include "base/dtype.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_STACK = 1 << 20, MAX_MEMO = 1 << 22, MAX_NAME = 4096 };

typedef struct {
    nrd_arena *arena;
    const char *path;
    nrd_pickle_storages *storages;
    const uint8_t *p;
    size_t n, pos;
    nrd_pickle_value **stack;
    size_t depth, stack_cap;
    nrd_pickle_value **memo;
    size_t memo_n, memo_next; /* memo_next: the number that MEMOIZE gives */
} machine;

static nrd_error *bad(const machine *m, const char *what)
{
    return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: data.pkl at offset %zu: %s", m->path, m->pos,
                      what);
}

static nrd_pickle_value *new_value(machine *m, nrd_pickle_kind kind)
{
    nrd_pickle_value *v = nrd_arena_alloc(m->arena, sizeof *v);
    if (v) {
        memset(v, 0, sizeof *v);
        v->kind = kind;
    }
    return v;
}

static nrd_error *push(machine *m, nrd_pickle_value *v)
{
    if (!v) {
        return nrd_error_no_memory();
    }
    if (m->depth == MAX_STACK) {
        return bad(m, "the stack is deeper than any state dictionary needs");
    }
    if (m->depth == m->stack_cap) {
        const size_t cap = m->stack_cap ? 2 * m->stack_cap : 256;
        nrd_pickle_value **stack = realloc((void *)m->stack, cap * sizeof *stack);
        if (!stack) {
            return nrd_error_no_memory();
        }
        m->stack = stack;
        m->stack_cap = cap;
    }
    m->stack[m->depth++] = v;
    return NULL;
}

static nrd_pickle_value *pop(machine *m) /* NULL: empty or a mark */
{
    if (!m->depth || m->stack[m->depth - 1]->kind == NRD_PICKLE_MARK) {
        return NULL;
    }
    return m->stack[--m->depth];
}

static nrd_pickle_value *top(const machine *m)
{
    return m->depth ? m->stack[m->depth - 1] : NULL;
}

static nrd_error *append(machine *m, nrd_pickle_value *list, nrd_pickle_value *item)
{
    if (list->n == list->cap) {
        size_t cap = list->cap ? list->cap * 2 : 8;
        nrd_pickle_value **items = nrd_arena_alloc(m->arena, cap * sizeof *items);
        if (!items) {
            return nrd_error_no_memory();
        }
        if (list->n) {
            memcpy(items, list->items, list->n * sizeof *items);
        }
        list->items = items; /* the old array stays in the arena: at most as much again */
        list->cap = cap;
    }
    list->items[list->n++] = item;
    return NULL;
}

/* Position just above the topmost mark; SIZE_MAX without one. */
static size_t above_mark(const machine *m)
{
    for (size_t i = m->depth; i > 0; i--) {
        if (m->stack[i - 1]->kind == NRD_PICKLE_MARK) {
            return i;
        }
    }
    return SIZE_MAX;
}

static nrd_error *make_tuple(machine *m, size_t n)
{
    nrd_pickle_value *v = new_value(m, NRD_PICKLE_TUPLE);
    if (m->depth < n) {
        return bad(m, "a tuple of more than the stack holds");
    }
    if (!v) {
        return nrd_error_no_memory();
    }
    for (size_t i = m->depth - n; i < m->depth; i++) {
        if (m->stack[i]->kind == NRD_PICKLE_MARK) {
            return bad(m, "a tuple reaches over a mark");
        }
        NRD_TRY(append(m, v, m->stack[i]));
    }
    m->depth -= n;
    return push(m, v);
}

static nrd_error *tuple_to_mark(machine *m)
{
    size_t from = above_mark(m);
    if (from == SIZE_MAX) {
        return bad(m, "a tuple without a mark");
    }
    NRD_TRY(make_tuple(m, m->depth - from));
    m->stack[from - 1] = m->stack[from]; /* over the mark */
    m->depth = from;
    return NULL;
}

/* APPENDS and SETITEMS: what lies above the mark goes into the object below it. */
static nrd_error *extend(machine *m, nrd_pickle_kind kind)
{
    size_t from = above_mark(m);
    if (from == SIZE_MAX || from < 2) {
        return bad(m, "items without a mark or an object");
    }
    nrd_pickle_value *into = m->stack[from - 2];
    if (kind == NRD_PICKLE_DICT && (m->depth - from) % 2) {
        return bad(m, "a key without a value");
    }
    for (size_t i = from; into->kind == kind && i < m->depth; i++) {
        NRD_TRY(append(m, into, m->stack[i]));
    }
    m->depth = from - 1;
    return into->kind == kind || into->kind == NRD_PICKLE_OPAQUE ? NULL : bad(m, "items for no container");
}

static bool is_global(const nrd_pickle_value *v, const char *name)
{
    return v && v->kind == NRD_PICKLE_GLOBAL && v->n == strlen(name) && !memcmp(v->str, name, v->n);
}

static nrd_dtype storage_dtype(const nrd_pickle_value *g)
{
    static const struct {
        const char *name;
        nrd_dtype dtype;
    } table[] = {
        {"torch FloatStorage", NRD_DTYPE_F32},   {"torch HalfStorage", NRD_DTYPE_F16},
        {"torch BFloat16Storage", NRD_DTYPE_BF16}, {"torch DoubleStorage", NRD_DTYPE_F64},
        {"torch LongStorage", NRD_DTYPE_I64},    {"torch IntStorage", NRD_DTYPE_I32},
        {"torch ShortStorage", NRD_DTYPE_I16},   {"torch CharStorage", NRD_DTYPE_I8},
        {"torch ByteStorage", NRD_DTYPE_U8},     {"torch BoolStorage", NRD_DTYPE_BOOL},
        {"torch Float8_e4m3fnStorage", NRD_DTYPE_F8_E4M3},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (is_global(g, table[i].name)) {
            return table[i].dtype;
        }
    }
    return NRD_DTYPE_NONE;
}

static nrd_error *keep_storage(machine *m, const nrd_pickle_value *v)
{
    nrd_pickle_storages *s = m->storages;

    if (s && s->n == s->cap) {
        const size_t cap = s->cap ? 2 * s->cap : 256;
        const nrd_pickle_value **grown = realloc((void *)s->items, cap * sizeof *grown);
        if (!grown) {
            return nrd_error_no_memory();
        }
        s->items = grown;
        s->cap = cap;
    }
    if (s) {
        s->items[s->n++] = v;
    }
    return NULL;
}

/* ('storage', torch.FloatStorage, '0', 'cpu', 1024), before PyTorch 1.6 with None behind it, or what of another storage it is. */
static nrd_error *load_persistent(machine *m)
{
    nrd_pickle_value *id = pop(m), *v = new_value(m, NRD_PICKLE_STORAGE);
    if (!id || id->kind != NRD_PICKLE_TUPLE || id->n < 5 || id->items[1]->kind != NRD_PICKLE_GLOBAL ||
        id->items[2]->kind != NRD_PICKLE_STR || id->items[4]->kind != NRD_PICKLE_INT || id->items[4]->i < 0) {
        return bad(m, "a storage is not described as PyTorch does");
    }
    if (id->n > 5 && id->items[5]->kind == NRD_PICKLE_TUPLE) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: a storage that is a part of another one is not supported; save it again with a newer "
                          "PyTorch", m->path);
    }
    if (!v) {
        return nrd_error_no_memory();
    }
    v->dtype = storage_dtype(id->items[1]);
    if (v->dtype == NRD_DTYPE_NONE) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: storages of type '%.*s' are not supported",
                          m->path, (int)id->items[1]->n, id->items[1]->str);
    }
    v->str = id->items[2]->str;
    v->n = id->items[2]->n;
    v->i = id->items[4]->i;
    NRD_TRY(keep_storage(m, v));
    return push(m, v);
}

static nrd_error *reduce(machine *m)
{
    nrd_pickle_value *args = pop(m), *f = args ? pop(m) : NULL, *v;

    if (!f || args->kind != NRD_PICKLE_TUPLE) {
        return bad(m, "a call without a function and a tuple");
    }
    if (is_global(f, "collections OrderedDict")) {
        return push(m, new_value(m, NRD_PICKLE_DICT));
    }
    if (is_global(f, "torch._utils _rebuild_parameter") && args->n >= 1) {
        return push(m, args->items[0]);
    }
    if (!is_global(f, "torch._utils _rebuild_tensor_v2") && !is_global(f, "torch._utils _rebuild_tensor")) {
        return push(m, new_value(m, NRD_PICKLE_OPAQUE)); /* never called */
    }
    if (args->n < 4 || args->items[0]->kind != NRD_PICKLE_STORAGE || args->items[1]->kind != NRD_PICKLE_INT ||
        args->items[2]->kind != NRD_PICKLE_TUPLE || args->items[3]->kind != NRD_PICKLE_TUPLE) {
        return bad(m, "a tensor is not described as PyTorch does");
    }
    v = new_value(m, NRD_PICKLE_TENSOR);
    if (!v) {
        return nrd_error_no_memory();
    }
    v->storage = args->items[0];
    v->dtype = v->storage->dtype;
    v->i = args->items[1]->i;
    v->sizes = args->items[2];
    v->strides = args->items[3];
    return push(m, v);
}

/* ---- the pickle's opcodes ---- */

static nrd_error *take(machine *m, size_t n, const uint8_t **out)
{
    if (n > m->n - m->pos) {
        return bad(m, "the pickle is truncated");
    }
    *out = m->p + m->pos;
    m->pos += n;
    return NULL;
}

static nrd_error *push_int(machine *m, nrd_pickle_kind kind, int64_t i)
{
    nrd_pickle_value *v = new_value(m, kind);
    if (v) {
        v->i = i;
    }
    return push(m, v);
}

static nrd_error *push_str(machine *m, nrd_pickle_kind kind, uint64_t n)
{
    const uint8_t *p = NULL;
    if (n > SIZE_MAX) {
        return bad(m, "a string is too long");
    }
    NRD_TRY(take(m, (size_t)n, &p));
    nrd_pickle_value *v = new_value(m, kind);
    if (v) {
        v->str = (const char *)p;
        v->n = (size_t)n;
    }
    return push(m, v);
}

static nrd_error *push_long(machine *m, size_t n)
{
    const uint8_t *p = NULL;
    uint64_t v = 0;
    if (n > 8) {
        return bad(m, "an integer of more than 64 bits");
    }
    NRD_TRY(take(m, n, &p));
    for (size_t i = 0; i < n; i++) {
        v |= (uint64_t)p[i] << (8 * i);
    }
    if (n && n < 8 && (p[n - 1] & 0x80)) {
        v |= ~(uint64_t)0 << (8 * n);
    }
    int64_t s;
    memcpy(&s, &v, 8);
    return push_int(m, NRD_PICKLE_INT, s);
}

/* "module\nname\n" becomes "module name". */
static nrd_error *push_global(machine *m)
{
    const char *p = (const char *)m->p + m->pos;
    size_t left = m->n - m->pos;
    const char *a = memchr(p, '\n', left);
    const char *b = a ? memchr(a + 1, '\n', left - (size_t)(a + 1 - p)) : NULL;
    if (!b || b - p > MAX_NAME) {
        return bad(m, "a name without an end");
    }
    nrd_pickle_value *v = new_value(m, NRD_PICKLE_GLOBAL);
    char *s = nrd_arena_strndup(m->arena, p, (size_t)(b - p));
    if (!v || !s) {
        return nrd_error_no_memory();
    }
    s[a - p] = ' ';
    v->str = s;
    v->n = (size_t)(b - p);
    m->pos += (size_t)(b - p) + 1;
    return push(m, v);
}

static nrd_error *stack_global(machine *m)
{
    nrd_pickle_value *name = pop(m), *module = name ? pop(m) : NULL, *v = new_value(m, NRD_PICKLE_GLOBAL);
    if (!module || name->kind != NRD_PICKLE_STR || module->kind != NRD_PICKLE_STR || name->n > MAX_NAME ||
        module->n > MAX_NAME) {
        return bad(m, "a name that is no string");
    }
    char *s = nrd_arena_alloc(m->arena, module->n + name->n + 2);
    if (!v || !s) {
        return nrd_error_no_memory();
    }
    memcpy(s, module->str, module->n);
    s[module->n] = ' ';
    memcpy(s + module->n + 1, name->str, name->n);
    v->str = s;
    v->n = module->n + name->n + 1;
    return push(m, v);
}

static nrd_error *memo_put(machine *m, uint64_t i)
{
    nrd_pickle_value *v = top(m);
    if (!v || v->kind == NRD_PICKLE_MARK || i >= MAX_MEMO) {
        return bad(m, "nothing to remember, or too much");
    }
    if (i >= m->memo_n) {
        size_t n = m->memo_n ? m->memo_n : 256;
        while (n <= i) {
            n *= 2;
        }
        nrd_pickle_value **memo = realloc((void *)m->memo, n * sizeof *memo);
        if (!memo) {
            return nrd_error_no_memory();
        }
        m->memo = memo;
        memset(m->memo + m->memo_n, 0, (n - m->memo_n) * sizeof *m->memo);
        m->memo_n = n;
    }
    m->memo[i] = v;
    m->memo_next++;
    return NULL;
}

static nrd_error *memo_get(machine *m, uint64_t i)
{
    if (i >= m->memo_n || !m->memo[i]) {
        return bad(m, "a value that was not remembered");
    }
    return push(m, m->memo[i]);
}

static nrd_error *set_item(machine *m)
{
    nrd_pickle_value *v = pop(m), *k = v ? pop(m) : NULL, *d = top(m);
    if (!k || !d || (d->kind != NRD_PICKLE_DICT && d->kind != NRD_PICKLE_OPAQUE)) {
        return bad(m, "an item for no dictionary");
    }
    if (d->kind == NRD_PICKLE_OPAQUE) {
        return NULL;
    }
    NRD_TRY(append(m, d, k));
    return append(m, d, v);
}

static nrd_error *append_item(machine *m)
{
    nrd_pickle_value *v = pop(m), *l = top(m);
    if (!v || !l || (l->kind != NRD_PICKLE_LIST && l->kind != NRD_PICKLE_OPAQUE)) {
        return bad(m, "an item for no list");
    }
    return l->kind == NRD_PICKLE_LIST ? append(m, l, v) : NULL;
}

/* NEWOBJ: class and arguments become an object of which nothing is known. */
static nrd_error *new_object(machine *m)
{
    if (!pop(m) || !pop(m)) {
        return bad(m, "an object without a class");
    }
    return push(m, new_value(m, NRD_PICKLE_OPAQUE));
}

/* BUILD: the state of the object below, which is a dictionary from then on where the state is one. */
static nrd_error *build(machine *m)
{
    const nrd_pickle_value *state = pop(m);
    nrd_pickle_value *object = state ? top(m) : NULL;

    if (!object || object->kind == NRD_PICKLE_MARK) {
        return bad(m, "an object without a state");
    }
    if (object->kind == NRD_PICKLE_OPAQUE && state->kind == NRD_PICKLE_DICT) {
        *object = *state;
        object->cap = object->n; /* the items are the state's: more go into memory of the object's own */
    }
    return NULL;
}

static uint64_t little(const uint8_t *p, size_t n)
{
    uint64_t v = 0;
    for (size_t i = 0; i < n; i++) {
        v |= (uint64_t)p[i] << (8 * i);
    }
    return v;
}

/* One opcode; true in *out_stop at the end of the pickle. */
static nrd_error *step(machine *m, bool *out_stop)
{
    const uint8_t *p = NULL;
    static const struct {
        uint8_t op, bytes; /* of the number behind the opcode */
    } widths[] = {{0x80, 1}, {'K', 1}, {'M', 2}, {'J', 4}, {'X', 4}, {0x8c, 1}, {0x8d, 8},
                  {'U', 1},  {'T', 4}, {'q', 1}, {'r', 4}, {'h', 1}, {'j', 4},  {0x8a, 1},
                  {0x8b, 4}, {'G', 8}, {0x95, 8}, {'B', 4}, {'C', 1}};
    NRD_TRY(take(m, 1, &p));
    uint8_t op = *p;
    uint64_t v = 0;
    for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++) {
        if (widths[i].op == op) {
            NRD_TRY(take(m, widths[i].bytes, &p));
            v = little(p, widths[i].bytes);
        }
    }
    switch (op) {
    case 0x80: /* PROTO */
        return v <= 5 ? NULL : bad(m, "a pickle protocol above 5");
    case 0x95: /* FRAME */
        return NULL;
    case '.':
        *out_stop = true;
        return NULL;
    case '(':
        return push(m, new_value(m, NRD_PICKLE_MARK));
    case 'K':
    case 'M':
        return push_int(m, NRD_PICKLE_INT, (int64_t)v);
    case 'J':
        return push_int(m, NRD_PICKLE_INT, (int32_t)(uint32_t)v);
    case 0x8a:
    case 0x8b:
        return push_long(m, (size_t)v);
    case 0x88:
    case 0x89:
        return push_int(m, NRD_PICKLE_BOOL, op == 0x88);
    case 'N':
    case 'G':
    case 0x8f: /* EMPTY_SET */
        return push(m, new_value(m, NRD_PICKLE_OPAQUE));
    case 'X':
    case 0x8c:
    case 0x8d:
    case 'U':
    case 'T':
        return push_str(m, NRD_PICKLE_STR, v);
    case 'B':
    case 'C':
        return push_str(m, NRD_PICKLE_OPAQUE, v);
    case 'q':
    case 'r':
        return memo_put(m, v);
    case 0x94: /* MEMOIZE */
        return memo_put(m, m->memo_next);
    case 'h':
    case 'j':
        return memo_get(m, v);
    case 'c':
        return push_global(m);
    case 0x93:
        return stack_global(m);
    case 'Q':
        return load_persistent(m);
    case 'R':
        return reduce(m);
    case 'b': /* BUILD */
        return build(m);
    case 0x81: /* NEWOBJ */
        return new_object(m);
    case '}':
        return push(m, new_value(m, NRD_PICKLE_DICT));
    case ']':
        return push(m, new_value(m, NRD_PICKLE_LIST));
    case ')':
        return push(m, new_value(m, NRD_PICKLE_TUPLE));
    case 't':
        return tuple_to_mark(m);
    case 0x85:
    case 0x86:
    case 0x87:
        return make_tuple(m, (size_t)(op - 0x84));
    case 's':
        return set_item(m);
    case 'u':
        return extend(m, NRD_PICKLE_DICT);
    case 'a':
        return append_item(m);
    case 'e':
        return extend(m, NRD_PICKLE_LIST);
    case '0': /* POP */
        return pop(m) ? NULL : bad(m, "nothing to pop");
    default:
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: data.pkl at offset %zu: opcode 0x%02x is not "
                          "used by state dictionaries", m->path, m->pos - 1, op);
    }
}

nrd_error *nrd_pickle_read(nrd_arena *arena, const char *path, const uint8_t *data, size_t n, size_t *io_at,
                           const nrd_pickle_value **out, nrd_pickle_storages *storages)
{
    machine m = {.arena = arena, .path = path, .storages = storages, .p = data, .n = n, .pos = *io_at};
    nrd_error *err = NULL;
    bool stop = false;

    while (!stop && !err) {
        err = step(&m, &stop);
    }
    *out = err ? NULL : pop(&m);
    *io_at = m.pos;
    free((void *)m.stack);
    free((void *)m.memo);
    return err;
}
