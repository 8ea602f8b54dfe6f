/* SPDX-License-Identifier: Apache-2.0
 * Reads pytorch_model.bin: first the directory of the zip, then the pickle by a small stack machine
 * that only builds numbers, texts, containers and descriptions of tensors, then the spans of those
 * tensors in the file. Any other instruction or name is refused or kept as an opaque value. Called
 * by model/source.c. */
#include "formats/torch_bin.h"

#include "base/dtype.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_PICKLE_BYTES = 64 << 20,
    MAX_MEMBERS = 1 << 20,
    MAX_STACK = 1 << 20,
    MAX_MEMO = 1 << 22,
    MAX_NAME = 4096,
    MAX_INTS = 64,
};
#define MAX_ELEMENTS ((int64_t)1 << 48)

typedef struct { /* a stored (uncompressed) member of the zip */
    const char *name;
    size_t name_bytes;
    const uint8_t *data;
    size_t bytes;
} member;

typedef struct {
    const char *name; /* "dictionary/key" */
    int64_t value;
} named_int;

struct nrd_torch_bin {
    nrd_map map;
    char *path;
    const uint8_t *data;
    size_t size;
    member *members; /* sorted by name */
    size_t n_members;
    nrd_torch_tensor *tensors;
    size_t n, cap;
    named_int ints[MAX_INTS];
    size_t n_ints;
    nrd_arena arena; /* names of tensors; values of the pickle while it is read */
};

/* ---- the zip ---- */

static uint16_t u16(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, 2);
    return v;
}

static uint32_t u32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

static uint64_t u64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, 8);
    return v;
}

static nrd_error *zip_error(const nrd_torch_bin *t, const char *what, uint64_t at)
{
    return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: %s (offset %llu); the file is truncated or damaged",
                      t->path, what, (unsigned long long)at);
}

static bool fits(const nrd_torch_bin *t, uint64_t at, uint64_t n)
{
    return at <= t->size && n <= t->size - at;
}

typedef struct {
    uint64_t offset, n, bytes;
} directory;

static nrd_error *find_directory(const nrd_torch_bin *t, directory *d)
{
    enum { END = 22, LOCATOR = 20, END64 = 56, MAX_COMMENT = 65535 };
    if (t->size < END) {
        return zip_error(t, "too small for a zip archive", 0);
    }
    size_t at = t->size - END, last = at > MAX_COMMENT ? at - MAX_COMMENT : 0;
    while (u32(t->data + at) != 0x06054b50u) {
        if (at == last) {
            if (t->size > 2 && t->data[0] == 0x80) {
                return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: a file in PyTorch's format before 1.6; "
                                  "save it again with a newer PyTorch, or as safetensors", t->path);
            }
            return zip_error(t, "no end of a zip directory", at);
        }
        at--;
    }
    d->n = u16(t->data + at + 10);
    d->bytes = u32(t->data + at + 12);
    d->offset = u32(t->data + at + 16);
    bool big = d->n == 0xffff || d->bytes == 0xffffffffu || d->offset == 0xffffffffu;
    if (big && at >= LOCATOR && u32(t->data + at - LOCATOR) == 0x07064b50u) {
        uint64_t end64 = u64(t->data + at - LOCATOR + 8);
        if (!fits(t, end64, END64) || u32(t->data + end64) != 0x06064b50u) {
            return zip_error(t, "no zip64 directory where the locator says", end64);
        }
        d->n = u64(t->data + end64 + 32);
        d->bytes = u64(t->data + end64 + 40);
        d->offset = u64(t->data + end64 + 48);
    }
    if (!fits(t, d->offset, d->bytes) || d->n > MAX_MEMBERS || d->n > d->bytes / 46) {
        return zip_error(t, "the zip directory does not fit", d->offset);
    }
    return NULL;
}

/* The 64-bit values of a member stand in an extra field, in the order of those that overflowed. */
static bool zip64_extra(const uint8_t *p, size_t n, uint64_t *usize, uint64_t *csize,
                        uint64_t *offset)
{
    while (n >= 4) {
        size_t len = u16(p + 2);
        if (len > n - 4) {
            return false;
        }
        if (u16(p) == 1) {
            const uint8_t *v = p + 4;
            size_t left = len;
            uint64_t *const fields[] = {usize, csize, offset};
            for (int i = 0; i < 3; i++) {
                if (*fields[i] == 0xffffffffu) {
                    if (left < 8) {
                        return false;
                    }
                    *fields[i] = u64(v);
                    v += 8;
                    left -= 8;
                }
            }
            return true;
        }
        p += 4 + len;
        n -= 4 + len;
    }
    return *usize != 0xffffffffu && *csize != 0xffffffffu && *offset != 0xffffffffu;
}

static nrd_error *read_member(nrd_torch_bin *t, uint64_t *at, uint64_t end)
{
    const uint8_t *p = t->data + *at;
    member *m = &t->members[t->n_members];

    if (end - *at < 46 || u32(p) != 0x02014b50u) {
        return zip_error(t, "expected an entry of the zip directory", *at);
    }
    uint16_t method = u16(p + 10), name_bytes = u16(p + 28), extra = u16(p + 30);
    uint64_t csize = u32(p + 20), usize = u32(p + 24), local = u32(p + 42);
    uint64_t whole = 46u + (uint64_t)name_bytes + extra + u16(p + 32);
    if (whole > end - *at) {
        return zip_error(t, "an entry of the zip directory does not fit", *at);
    }
    if (!zip64_extra(p + 46 + name_bytes, extra, &usize, &csize, &local)) {
        return zip_error(t, "a zip64 field does not fit", *at);
    }
    m->name = (const char *)p + 46;
    m->name_bytes = name_bytes;
    if (method != 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: member '%.*s' is compressed (method %u); "
                          "expected stored members as PyTorch writes them", t->path,
                          (int)name_bytes, m->name, method);
    }
    if (!fits(t, local, 30) || u32(t->data + local) != 0x04034b50u) {
        return zip_error(t, "no member where the zip directory says", local);
    }
    uint64_t start = local + 30 + u16(t->data + local + 26) + u16(t->data + local + 28);
    if (usize != csize || !fits(t, start, usize)) {
        return zip_error(t, "a member lies outside of the file", local);
    }
    m->data = t->data + start;
    m->bytes = (size_t)usize;
    t->n_members++;
    *at += whole;
    return NULL;
}

static int by_member(const void *a, const void *b)
{
    const member *x = a, *y = b;
    size_t n = x->name_bytes < y->name_bytes ? x->name_bytes : y->name_bytes;
    int c = memcmp(x->name, y->name, n);
    return c ? c : (x->name_bytes > y->name_bytes) - (x->name_bytes < y->name_bytes);
}

static nrd_error *read_zip(nrd_torch_bin *t)
{
    nrd_error *err = NULL;
    directory d = {0};

    NRD_TRY(find_directory(t, &d));
    NRD_NEW_GOTO(t->members, d.n, err, fail);
    uint64_t at = d.offset;
    for (uint64_t i = 0; i < d.n; i++) {
        NRD_TRY(read_member(t, &at, d.offset + d.bytes));
    }
    qsort(t->members, t->n_members, sizeof *t->members, by_member);
fail:
    return err;
}

static const member *find_member(const nrd_torch_bin *t, const char *name, size_t n)
{
    member key = {.name = name, .name_bytes = n};
    return t->n_members ? bsearch(&key, t->members, t->n_members, sizeof key, by_member) : NULL;
}

/* ---- values of the pickle ---- */

typedef enum {
    V_MARK,
    V_OPAQUE, /* None, floats, objects: whatever no tensor needs */
    V_BOOL,
    V_INT,
    V_STR,
    V_TUPLE,
    V_LIST,
    V_DICT, /* items: key, value, key, value, … */
    V_GLOBAL,
    V_STORAGE,
    V_TENSOR,
} value_kind;

typedef struct value {
    value_kind kind;
    nrd_dtype dtype;      /* storage, tensor */
    const char *str;      /* string; "module name" of a global; key of a storage */
    size_t n;             /* bytes of str, or number of items */
    int64_t i;            /* int, bool; elements of a storage; offset of a tensor */
    struct value **items; /* tuple, list, dict */
    size_t cap;
    struct value *storage; /* tensor */
    struct value *sizes, *strides;
} value;

typedef struct {
    nrd_torch_bin *t;
    const uint8_t *p;
    size_t n, pos;
    value **stack;
    size_t depth, stack_cap;
    value **memo;
    size_t memo_n, memo_next; /* memo_next: the number that MEMOIZE gives */
} machine;

static nrd_error *bad(const machine *m, const char *what)
{
    return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: data.pkl at offset %zu: %s", m->t->path, m->pos,
                      what);
}

static value *new_value(machine *m, value_kind kind)
{
    value *v = nrd_arena_alloc(&m->t->arena, sizeof *v);
    if (v) {
        memset(v, 0, sizeof *v);
        v->kind = kind;
    }
    return v;
}

static nrd_error *push(machine *m, value *v)
{
    if (!v) {
        return nrd_error_no_memory();
    }
    if (m->depth == MAX_STACK) {
        return bad(m, "the stack is deeper than any state dictionary needs");
    }
    if (m->depth == m->stack_cap) {
        const size_t cap = m->stack_cap ? 2 * m->stack_cap : 256;
        value **stack = realloc((void *)m->stack, cap * sizeof *stack);
        if (!stack) {
            return nrd_error_no_memory();
        }
        m->stack = stack;
        m->stack_cap = cap;
    }
    m->stack[m->depth++] = v;
    return NULL;
}

static value *pop(machine *m) /* NULL: empty or a mark */
{
    if (!m->depth || m->stack[m->depth - 1]->kind == V_MARK) {
        return NULL;
    }
    return m->stack[--m->depth];
}

static value *top(const machine *m)
{
    return m->depth ? m->stack[m->depth - 1] : NULL;
}

static nrd_error *append(machine *m, value *list, value *item)
{
    if (list->n == list->cap) {
        size_t cap = list->cap ? list->cap * 2 : 8;
        value **items = nrd_arena_alloc(&m->t->arena, cap * sizeof *items);
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
        if (m->stack[i - 1]->kind == V_MARK) {
            return i;
        }
    }
    return SIZE_MAX;
}

static nrd_error *make_tuple(machine *m, size_t n)
{
    value *v = new_value(m, V_TUPLE);
    if (m->depth < n) {
        return bad(m, "a tuple of more than the stack holds");
    }
    if (!v) {
        return nrd_error_no_memory();
    }
    for (size_t i = m->depth - n; i < m->depth; i++) {
        if (m->stack[i]->kind == V_MARK) {
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
static nrd_error *extend(machine *m, value_kind kind)
{
    size_t from = above_mark(m);
    if (from == SIZE_MAX || from < 2) {
        return bad(m, "items without a mark or an object");
    }
    value *into = m->stack[from - 2];
    if (kind == V_DICT && (m->depth - from) % 2) {
        return bad(m, "a key without a value");
    }
    for (size_t i = from; into->kind == kind && i < m->depth; i++) {
        NRD_TRY(append(m, into, m->stack[i]));
    }
    m->depth = from - 1;
    return into->kind == kind || into->kind == V_OPAQUE ? NULL : bad(m, "items for no container");
}

static bool is_global(const value *v, const char *name)
{
    return v && v->kind == V_GLOBAL && v->n == strlen(name) && !memcmp(v->str, name, v->n);
}

static nrd_dtype storage_dtype(const value *g)
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

/* ('storage', torch.FloatStorage, '0', 'cpu', 1024) */
static nrd_error *load_persistent(machine *m)
{
    value *id = pop(m), *v = new_value(m, V_STORAGE);
    if (!id || id->kind != V_TUPLE || id->n < 5 || id->items[1]->kind != V_GLOBAL ||
        id->items[2]->kind != V_STR || id->items[4]->kind != V_INT || id->items[4]->i < 0) {
        return bad(m, "a storage is not described as PyTorch does");
    }
    if (!v) {
        return nrd_error_no_memory();
    }
    v->dtype = storage_dtype(id->items[1]);
    if (v->dtype == NRD_DTYPE_NONE) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: storages of type '%.*s' are not supported",
                          m->t->path, (int)id->items[1]->n, id->items[1]->str);
    }
    v->str = id->items[2]->str;
    v->n = id->items[2]->n;
    v->i = id->items[4]->i;
    return push(m, v);
}

static nrd_error *reduce(machine *m)
{
    value *args = pop(m), *f = args ? pop(m) : NULL, *v;

    if (!f || args->kind != V_TUPLE) {
        return bad(m, "a call without a function and a tuple");
    }
    if (is_global(f, "collections OrderedDict")) {
        return push(m, new_value(m, V_DICT));
    }
    if (is_global(f, "torch._utils _rebuild_parameter") && args->n >= 1) {
        return push(m, args->items[0]);
    }
    if (!is_global(f, "torch._utils _rebuild_tensor_v2")) {
        return push(m, new_value(m, V_OPAQUE)); /* never called */
    }
    if (args->n < 4 || args->items[0]->kind != V_STORAGE || args->items[1]->kind != V_INT ||
        args->items[2]->kind != V_TUPLE || args->items[3]->kind != V_TUPLE) {
        return bad(m, "a tensor is not described as PyTorch does");
    }
    v = new_value(m, V_TENSOR);
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

static nrd_error *push_int(machine *m, value_kind kind, int64_t i)
{
    value *v = new_value(m, kind);
    if (v) {
        v->i = i;
    }
    return push(m, v);
}

static nrd_error *push_str(machine *m, value_kind kind, uint64_t n)
{
    const uint8_t *p = NULL;
    if (n > SIZE_MAX) {
        return bad(m, "a string is too long");
    }
    NRD_TRY(take(m, (size_t)n, &p));
    value *v = new_value(m, kind);
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
    return push_int(m, V_INT, s);
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
    value *v = new_value(m, V_GLOBAL);
    char *s = nrd_arena_strndup(&m->t->arena, p, (size_t)(b - p));
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
    value *name = pop(m), *module = name ? pop(m) : NULL, *v = new_value(m, V_GLOBAL);
    if (!module || name->kind != V_STR || module->kind != V_STR || name->n > MAX_NAME ||
        module->n > MAX_NAME) {
        return bad(m, "a name that is no string");
    }
    char *s = nrd_arena_alloc(&m->t->arena, module->n + name->n + 2);
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
    value *v = top(m);
    if (!v || v->kind == V_MARK || i >= MAX_MEMO) {
        return bad(m, "nothing to remember, or too much");
    }
    if (i >= m->memo_n) {
        size_t n = m->memo_n ? m->memo_n : 256;
        while (n <= i) {
            n *= 2;
        }
        value **memo = realloc((void *)m->memo, n * sizeof *memo);
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
    value *v = pop(m), *k = v ? pop(m) : NULL, *d = top(m);
    if (!k || !d || (d->kind != V_DICT && d->kind != V_OPAQUE)) {
        return bad(m, "an item for no dictionary");
    }
    if (d->kind == V_OPAQUE) {
        return NULL;
    }
    NRD_TRY(append(m, d, k));
    return append(m, d, v);
}

static nrd_error *append_item(machine *m)
{
    value *v = pop(m), *l = top(m);
    if (!v || !l || (l->kind != V_LIST && l->kind != V_OPAQUE)) {
        return bad(m, "an item for no list");
    }
    return l->kind == V_LIST ? append(m, l, v) : NULL;
}

/* Two values become the object below: state of an object (BUILD), or a new object of a class. */
static nrd_error *drop_to(machine *m, bool opaque)
{
    value *a = pop(m), *b = a ? top(m) : NULL;
    if (!b || b->kind == V_MARK) {
        return bad(m, "an object without a state");
    }
    if (opaque) {
        m->depth--;
        return push(m, new_value(m, V_OPAQUE));
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
        return push(m, new_value(m, V_MARK));
    case 'K':
    case 'M':
        return push_int(m, V_INT, (int64_t)v);
    case 'J':
        return push_int(m, V_INT, (int32_t)(uint32_t)v);
    case 0x8a:
    case 0x8b:
        return push_long(m, (size_t)v);
    case 0x88:
    case 0x89:
        return push_int(m, V_BOOL, op == 0x88);
    case 'N':
    case 'G':
    case 0x8f: /* EMPTY_SET */
        return push(m, new_value(m, V_OPAQUE));
    case 'X':
    case 0x8c:
    case 0x8d:
    case 'U':
    case 'T':
        return push_str(m, V_STR, v);
    case 'B':
    case 'C':
        return push_str(m, V_OPAQUE, v);
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
        return drop_to(m, false);
    case 0x81: /* NEWOBJ */
        return drop_to(m, true);
    case '}':
        return push(m, new_value(m, V_DICT));
    case ']':
        return push(m, new_value(m, V_LIST));
    case ')':
        return push(m, new_value(m, V_TUPLE));
    case 't':
        return tuple_to_mark(m);
    case 0x85:
    case 0x86:
    case 0x87:
        return make_tuple(m, (size_t)(op - 0x84));
    case 's':
        return set_item(m);
    case 'u':
        return extend(m, V_DICT);
    case 'a':
        return append_item(m);
    case 'e':
        return extend(m, V_LIST);
    case '0': /* POP */
        return pop(m) ? NULL : bad(m, "nothing to pop");
    default:
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: data.pkl at offset %zu: opcode 0x%02x is not "
                          "used by state dictionaries", m->t->path, m->pos - 1, op);
    }
}

/* ---- tensors ---- */

static nrd_error *describe(nrd_torch_bin *t, const char *prefix, size_t prefix_bytes,
                           const value *key, const value *v)
{
    nrd_torch_tensor out = {.dtype = v->dtype, .n_dims = (int)v->sizes->n, .dims = {1, 1, 1, 1, 1}};
    char member_name[MAX_NAME];
    int64_t n = 1;
    size_t each = nrd_dtype_block_bytes(v->dtype);

    if (v->sizes->n > NRD_TORCH_MAX_DIMS || v->strides->n != v->sizes->n || memchr(key->str, '\0', key->n)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: tensor '%.*s' has %zu dimensions, expected at "
                          "most %d", t->path, (int)key->n, key->str, v->sizes->n, (int)NRD_TORCH_MAX_DIMS);
    }
    for (size_t d = v->sizes->n; d > 0; d--) {
        const value *size = v->sizes->items[d - 1], *stride = v->strides->items[d - 1];
        if (size->kind != V_INT || stride->kind != V_INT || size->i < 0 ||
            (size->i && n > MAX_ELEMENTS / size->i)) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: tensor '%.*s' has a bad shape", t->path,
                              (int)key->n, key->str);
        }
        if (size->i > 1 && stride->i != n) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: tensor '%.*s' is not contiguous; save it "
                              "again after .contiguous()", t->path, (int)key->n, key->str);
        }
        out.dims[d - 1] = size->i;
        n *= size->i;
    }
    int len = snprintf(member_name, sizeof member_name, "%.*sdata/%.*s", (int)prefix_bytes, prefix,
                       (int)v->storage->n, v->storage->str);
    const member *data = len > 0 && len < MAX_NAME ? find_member(t, member_name, (size_t)len) : NULL;
    if (!data) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: tensor '%.*s' refers to the storage '%.*s', "
                          "which is not in the file", t->path, (int)key->n, key->str,
                          (int)v->storage->n, v->storage->str);
    }
    uint64_t have = data->bytes / each;
    if (v->i < 0 || (uint64_t)v->i > have || (uint64_t)n > have - (uint64_t)v->i) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: tensor '%.*s' needs elements %lld to %lld of a "
                          "storage of %llu", t->path, (int)key->n, key->str, (long long)v->i,
                          (long long)v->i + (long long)n, (unsigned long long)have);
    }
    out.name = nrd_arena_strndup(&t->arena, key->str, key->n);
    if (!out.name) {
        return nrd_error_no_memory();
    }
    out.data = data->data + (size_t)v->i * each;
    out.data_bytes = (size_t)n * each;
    if (t->n == t->cap) {
        const size_t cap = t->cap ? 2 * t->cap : 256;
        nrd_torch_tensor *tensors = realloc(t->tensors, cap * sizeof *tensors);
        if (!tensors) {
            return nrd_error_no_memory();
        }
        t->tensors = tensors;
        t->cap = cap;
    }
    t->tensors[t->n++] = out;
    return NULL;
}

/* Training scripts wrap the state dictionary into one with other things. */
static const value *state_dict(const value *root)
{
    static const char *const wraps[] = {"state_dict", "model", "module", "model_state_dict"};
    for (size_t i = 0; i + 1 < root->n; i += 2) {
        const value *k = root->items[i], *v = root->items[i + 1];
        for (size_t w = 0; w < sizeof wraps / sizeof *wraps && k->kind == V_STR && v->kind == V_DICT; w++) {
            if (k->n == strlen(wraps[w]) && !memcmp(k->str, wraps[w], k->n)) {
                return v;
            }
        }
    }
    return root;
}

/* Whole numbers of one of the root's dictionaries; those beyond the limit are left out. */
static nrd_error *collect_ints(nrd_torch_bin *t, const value *key, const value *dict)
{
    for (size_t i = 0; i + 1 < dict->n && t->n_ints < MAX_INTS; i += 2) {
        const value *k = dict->items[i], *v = dict->items[i + 1];
        if (k->kind != V_STR || v->kind != V_INT || key->n > MAX_NAME || k->n > MAX_NAME) {
            continue;
        }
        char *name = nrd_arena_alloc(&t->arena, key->n + k->n + 2);
        if (!name) {
            return nrd_error_no_memory();
        }
        memcpy(name, key->str, key->n);
        name[key->n] = '/';
        memcpy(name + key->n + 1, k->str, k->n);
        name[key->n + k->n + 1] = '\0';
        t->ints[t->n_ints++] = (named_int){.name = name, .value = v->i};
    }
    return NULL;
}

static nrd_error *collect(nrd_torch_bin *t, const member *pickle, const value *root)
{
    if (!root || root->kind != V_DICT) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: expected a dictionary of tensors", t->path);
    }
    for (size_t i = 0; i + 1 < root->n; i += 2) {
        if (root->items[i]->kind == V_STR && root->items[i + 1]->kind == V_DICT) {
            NRD_TRY(collect_ints(t, root->items[i], root->items[i + 1]));
        }
    }
    root = state_dict(root);
    for (size_t i = 0; i + 1 < root->n; i += 2) {
        const value *k = root->items[i], *v = root->items[i + 1];
        if (k->kind == V_STR && v->kind == V_TENSOR) {
            NRD_TRY(describe(t, pickle->name, pickle->name_bytes - strlen("data.pkl"), k, v));
        }
    }
    return NULL;
}

static nrd_error *run_pickle(nrd_torch_bin *t, const member *pickle)
{
    machine m = {.t = t, .p = pickle->data, .n = pickle->bytes};
    nrd_error *err = NULL;
    bool stop = false;

    while (!stop && !err) {
        err = step(&m, &stop);
    }
    if (!err) {
        err = collect(t, pickle, pop(&m));
    }
    free(m.stack);
    free(m.memo);
    return err;
}

static nrd_error *parse(nrd_torch_bin *t)
{
    const char *tail = "data.pkl";
    NRD_TRY(read_zip(t));
    for (size_t i = 0; i < t->n_members; i++) {
        const member *m = &t->members[i];
        size_t n = strlen(tail);
        /* "archive/data.pkl": one folder, named after the file by some versions */
        if (m->name_bytes < n + 1 || memcmp(m->name + m->name_bytes - n, tail, n) ||
            m->name[m->name_bytes - n - 1] != '/') {
            continue;
        }
        if (m->bytes > MAX_PICKLE_BYTES) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: data.pkl has %zu bytes, the limit is %d",
                              t->path, m->bytes, (int)MAX_PICKLE_BYTES);
        }
        return run_pickle(t, m);
    }
    return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: a zip archive without data.pkl; not made by PyTorch",
                      t->path);
}

static nrd_error *open_any(nrd_torch_bin **out, const char *path, const void *data, size_t n)
{
    nrd_error *err = NULL;
    nrd_torch_bin *t = NULL;

    *out = NULL;
    NRD_NEW_GOTO(t, 1, err, fail);
    NRD_DUP_GOTO(t->path, path ? path : "<memory>", err, fail);
    if (path) {
        NRD_TRY_GOTO(nrd_map_open(&t->map, path), err, fail);
        data = t->map.data;
        n = t->map.size_bytes;
    }
    t->data = data;
    t->size = n;
    NRD_TRY_GOTO(parse(t), err, fail);
    *out = t;
    return NULL;

fail:
    nrd_torch_bin_close(t);
    return err;
}

nrd_error *nrd_torch_bin_open(nrd_torch_bin **out, const char *path)
{
    return open_any(out, path, NULL, 0);
}

nrd_error *nrd_torch_bin_open_memory(nrd_torch_bin **out, const void *data, size_t n)
{
    return open_any(out, NULL, data, n);
}

bool nrd_torch_bin_is_lost(const nrd_torch_bin *t)
{
    return nrd_map_is_lost(&t->map);
}

void nrd_torch_bin_close(nrd_torch_bin *t)
{
    if (!t) {
        return;
    }
    free(t->members);
    free(t->tensors);
    nrd_arena_fini(&t->arena);
    nrd_map_close(&t->map);
    free(t->path);
    free(t);
}

bool nrd_torch_bin_int(const nrd_torch_bin *t, const char *name, int64_t *out)
{
    for (size_t i = 0; i < t->n_ints; i++) {
        if (!strcmp(t->ints[i].name, name)) {
            *out = t->ints[i].value;
            return true;
        }
    }
    return false;
}

size_t nrd_torch_bin_n(const nrd_torch_bin *t)
{
    return t->n;
}

const nrd_torch_tensor *nrd_torch_bin_at(const nrd_torch_bin *t, size_t i)
{
    return i < t->n ? &t->tensors[i] : NULL;
}
