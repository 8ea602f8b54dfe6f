/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/quantize/folder.h"

#include "base/file.h"
#include "base/json.h"
#include "base/leftovers.h"
#include "base/mem.h"
#include "formats/safetensors.h"
#include "tools/quantize/mix.h"
#include "tools/quantize/pack.h"
#include "tools/quantize/pack_gptq.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PROGRESS "quantize.progress"
enum { MAX_COPY_BYTES = 256 << 20, MAX_PROGRESS_BYTES = 256 << 20 };

struct nrd_qfolder {
    char *dir;
    const nrd_source *src;
    const nrd_qmodules *modules;
    char **notes; /* [n_layers + 1] of the files that are there, owned; [0]: of no layer */
    FILE *progress;
};

static int32_t n_files(const nrd_qfolder *f)
{
    return f->modules->n_layers + 1;
}

/* File number `layer` + 1 of those that make the model. */
static char *file_name(const nrd_qfolder *f, int32_t layer)
{
    return nrd_xasprintf("model-%05d-of-%05d.safetensors", layer + 2, n_files(f));
}

static char *path_of(const nrd_qfolder *f, int32_t layer)
{
    char *name = file_name(f, layer), *path = nrd_path_join(f->dir, name);
    free(name);
    return path;
}

static bool is_weights(const char *name)
{
    static const char *const ends[] = {".safetensors", ".bin",  ".pt",   ".pth",      ".gguf", ".index.json",
                                       ".h5",          ".onnx", ".msgpack", ".progress", ".ot"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        if (nrd_str_has_suffix(name, ends[i])) {
            return true;
        }
    }
    return false;
}

/* ---- begin, or go on ---- */

static void remove_in(const char *dir, const char *name)
{
    char *path = nrd_path_join(dir, name);
    unlink(path);
    free(path);
}

/* Takes the notes of files that are there. False: the folder is of other settings. */
static bool take_notes(nrd_qfolder *f, char *text, const char *settings)
{
    char *line = text, *end = strchr(line, '\n');
    if (!end || (size_t)(end - line) != strlen(settings) || strncmp(line, settings, strlen(settings)) != 0) {
        return false;
    }
    for (line = end + 1; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        *end = '\0';
        char *rest = NULL;
        const long layer = strtol(line, &rest, 10);
        if (layer < -1 || layer >= f->modules->n_layers || *rest != ' ' || f->notes[layer + 1]) {
            continue;
        }
        char *path = path_of(f, (int32_t)layer);
        if (nrd_path_exists(path)) {
            f->notes[layer + 1] = nrd_xstrdup(rest + 1);
        }
        free(path);
    }
    return true;
}

static nrd_error *remove_old(const char *dir)
{
    char **names = NULL;
    size_t n = 0;
    NRD_TRY(nrd_dir_list(&names, &n, dir));
    for (size_t i = 0; i < n; i++) {
        if (nrd_str_has_prefix(names[i], "model") && (nrd_str_has_suffix(names[i], ".safetensors") ||
                                                      nrd_str_has_suffix(names[i], ".safetensors.index.json"))) {
            remove_in(dir, names[i]);
        }
    }
    nrd_names_free(names, n);
    return NULL;
}

static nrd_error *begin(nrd_qfolder *f, const char *settings)
{
    nrd_error *err = NULL;
    char *text = NULL, *path = nrd_path_join(f->dir, PROGRESS), *config = nrd_path_join(f->dir, "config.json");
    char *report = nrd_path_join(f->dir, NRD_QFOLDER_REPORT);
    size_t len = 0;
    bool goes_on = false;

    if (nrd_path_exists(path) && !nrd_path_exists(config)) {
        NRD_TRY_GOTO(nrd_file_read(&text, &len, path, MAX_PROGRESS_BYTES), err, done);
        goes_on = take_notes(f, text, settings);
    }
    if (!goes_on && nrd_path_exists(config) && !nrd_path_exists(report)) {
        err = nrd_errorf(NRD_ERR_ALREADY_EXISTS, "'%s' holds a model that was not made here; give another --output_dir",
                         f->dir);
        goto done;
    }
    if (!goes_on) {
        remove_in(f->dir, "config.json"); /* first: what is being written over is no model */
        NRD_TRY_GOTO(remove_old(f->dir), err, done);
    }
    f->progress = fopen(path, goes_on ? "a" : "w");
    if (!f->progress || (!goes_on && (fprintf(f->progress, "%s\n", settings) < 0 || fflush(f->progress)))) {
        err = nrd_file_error("write", path);
    }
done:
    free(text);
    free(path);
    free(config);
    free(report);
    return err;
}

/* A file that is there, whether it stays or its room becomes free, needs no more. */
static nrd_error *check_room(const nrd_qfolder *f, int bits)
{
    uint64_t bytes = 0;

    for (int32_t layer = -1; layer < f->modules->n_layers; layer++) {
        char *path = path_of(f, layer);
        const bool is_there = nrd_path_exists(path);
        free(path);
        for (size_t i = 0; !is_there && i < nrd_source_n_tensors(f->src, 0); i++) {
            const nrd_src_tensor *t = nrd_source_tensor_at(f->src, 0, i);
            if (f->modules->source_layers[i] == layer) {
                bytes += nrd_qmodules_find(f->modules, t) ? (uint64_t)t->dims[0] * (uint64_t)t->dims[1] * (uint64_t)bits / 8
                                                          : t->data_bytes;
            }
        }
    }
    return nrd_file_check_room(f->dir, bytes);
}

nrd_error *nrd_qfolder_open(nrd_qfolder **out, const char *dir, const nrd_source *src, const nrd_qmodules *q,
                            const char *settings, int bits)
{
    nrd_error *err = NULL;
    nrd_qfolder *f = NULL;

    *out = NULL;
    NRD_NEW_GOTO(f, 1, err, fail);
    f->src = src;
    f->modules = q;
    NRD_DUP_GOTO(f->dir, dir, err, fail);
    NRD_NEW_GOTO(f->notes, n_files(f), err, fail);
    NRD_TRY_GOTO(check_room(f, bits), err, fail);
    NRD_TRY_GOTO(nrd_mkdirs(dir), err, fail);
    nrd_leftovers_sweep(dir);
    NRD_TRY_GOTO(begin(f, settings), err, fail);
    *out = f;
    return NULL;

fail:
    nrd_qfolder_close(f);
    return err;
}

void nrd_qfolder_close(nrd_qfolder *f)
{
    if (!f) {
        return;
    }
    for (int32_t i = 0; f->notes && i < n_files(f); i++) {
        free(f->notes[i]);
    }
    if (f->progress) {
        fclose(f->progress);
    }
    free(f->notes);
    free(f->dir);
    free(f);
}

bool nrd_qfolder_has(const nrd_qfolder *f, int32_t layer, const char **out_note)
{
    *out_note = f->notes[layer + 1];
    return *out_note != NULL;
}

/* ---- a layer's file ---- */

typedef struct shard {
    nrd_qtensor *tensors; /* data NULL: those of `from` */
    const void **from;
    int n, cap;
} shard;

static nrd_qtensor *room(shard *s, int more)
{
    if (s->n + more > s->cap) {
        s->cap = 2 * s->cap + more;
        s->tensors = nrd_xrealloc(s->tensors, (size_t)s->cap * sizeof *s->tensors);
        s->from = nrd_xrealloc(s->from, (size_t)s->cap * sizeof *s->from);
    }
    memset(s->tensors + s->n, 0, (size_t)more * sizeof *s->tensors);
    memset(s->from + s->n, 0, (size_t)more * sizeof *s->from);
    return s->tensors + s->n;
}

/* What took a scale, as the source has it. */
static nrd_error *pack_scaled(nrd_qmath *m, const nrd_qresult_tensor *r, void **out)
{
    nrd_error *err = NULL;
    const size_t n = (size_t)nrd_src_tensor_numbers(r->src);
    float *back = NULL;

    if (r->turned) {
        NRD_NEW_GOTO(back, n, err, done);
        nrd_qmath_turn(m, r->data, r->src->dims[1], r->src->dims[0], back);
    }
    err = nrd_qpack_floats(back ? back : r->data, n, r->src->dtype, out);
done:
    free(back);
    return err;
}

static nrd_error *add_tensor(shard *s, nrd_qmath *m, const nrd_src_tensor *t, const nrd_qscheme *scheme, const nrd_qresult *r)
{
    nrd_qtensor *one = room(s, NRD_QTENSORS);
    int n = 0;

    for (size_t i = 0; r && i < r->n; i++) {
        if (r->modules[i].module->src == t) {
            nrd_error *err = nrd_qpack(m, &r->modules[i], scheme->format, one, &n);
            s->n += n;
            return err;
        }
    }
    *one = (nrd_qtensor){.name = nrd_xstrdup(t->name), .dtype = t->dtype, .n_dims = t->n_dims, .bytes = t->data_bytes};
    memcpy(one->dims, t->dims, sizeof one->dims);
    s->from[s->n++] = t->data;
    for (size_t i = 0; r && i < r->n_tensors; i++) {
        if (r->tensors[i].src == t) {
            return pack_scaled(m, &r->tensors[i], &one->data);
        }
    }
    return t->data ? NULL : nrd_errorf(NRD_ERR_UNSUPPORTED, "tensor '%s' is quantized already", t->name);
}

/* Scales of the layer's cache, by the names that vLLM reads. */
static nrd_error *add_cache_scales(shard *s, const char *attention, const nrd_qresult *r)
{
    nrd_error *err = NULL;
    nrd_str name = {0};

    for (int i = 0; i < 2 && !err; i++) {
        nrd_qtensor *one = room(s, 1);
        *one = (nrd_qtensor){.dtype = NRD_DTYPE_F32, .n_dims = 3, .dims = {r->n_cache_heads, 1, 1},
                             .bytes = (size_t)r->n_cache_heads * sizeof(float)};
        s->n++;
        nrd_str_clear(&name);
        nrd_str_printf(&name, "%s.%s", attention, i ? "v_scale" : "k_scale");
        NRD_TRY_GOTO(nrd_str_error(&name), err, done);
        NRD_DUP_GOTO(one->name, nrd_str_cstr(&name), err, done);
        err = nrd_qpack_floats(r->cache_scales + i * r->n_cache_heads, (size_t)r->n_cache_heads, NRD_DTYPE_F32, &one->data);
    }
done:
    nrd_str_fini(&name);
    return err;
}

static nrd_error *write_shard(const shard *s, const char *path)
{
    nrd_error *err = NULL;
    nrd_safetensors_writer *w = NULL;

    NRD_TRY(nrd_safetensors_writer_open(&w, path));
    for (int i = 0; i < s->n; i++) {
        NRD_TRY_GOTO(nrd_safetensors_writer_add(w, s->tensors[i].name, s->tensors[i].dtype, s->tensors[i].dims,
                                                s->tensors[i].n_dims), err, fail);
    }
    NRD_TRY_GOTO(nrd_safetensors_writer_begin(w), err, fail);
    for (int i = 0; i < s->n; i++) {
        const void *data = s->tensors[i].data ? s->tensors[i].data : s->from[i];
        NRD_TRY_GOTO(nrd_safetensors_writer_write(w, data, s->tensors[i].bytes), err, fail);
    }
    return nrd_safetensors_writer_commit(w);

fail:
    nrd_safetensors_writer_abort(w);
    return err;
}

nrd_error *nrd_qfolder_put(nrd_qfolder *f, nrd_qmath *m, int32_t layer, const nrd_qscheme *scheme, const nrd_qresult *r,
                           const char *note)
{
    nrd_error *err = NULL;
    shard s = {0};
    char *path = path_of(f, layer);

    for (size_t i = 0; i < nrd_source_n_tensors(f->src, 0); i++) {
        if (f->modules->source_layers[i] == layer) {
            NRD_TRY_GOTO(add_tensor(&s, m, nrd_source_tensor_at(f->src, 0, i), scheme, r), err, done);
        }
    }
    if (r->cache_scales) {
        NRD_TRY_GOTO(add_cache_scales(&s, f->modules->layers[layer].attention, r), err, done);
    }
    NRD_TRY_GOTO(write_shard(&s, path), err, done);
    NRD_TRY_GOTO(nrd_source_check(f->src), err, done);
    if (fprintf(f->progress, "%d %s\n", layer, note) < 0 || fflush(f->progress)) {
        err = nrd_file_error("write " PROGRESS " in", f->dir);
        goto done;
    }
    free(f->notes[layer + 1]);
    f->notes[layer + 1] = nrd_xstrdup(note);
done:
    nrd_qtensors_fini(s.tensors, s.n);
    free(s.tensors);
    free(s.from);
    free(path);
    return err;
}

/* ---- the rest ---- */

nrd_error *nrd_qfolder_index(const nrd_qfolder *f, uint64_t *out_bytes)
{
    nrd_error *err = NULL;
    nrd_str map = {0}, text = {0};
    bool any = false;

    *out_bytes = 0;
    for (int32_t layer = -1; layer < f->modules->n_layers && !err; layer++) {
        nrd_safetensors *s = NULL;
        char *name = file_name(f, layer), *path = nrd_path_join(f->dir, name);
        err = nrd_safetensors_open(&s, path);
        for (size_t i = 0; !err && i < nrd_safetensors_n(s); i++) {
            const nrd_safetensor *t = nrd_safetensors_at(s, i);
            nrd_str_puts(&map, any ? ",\n    " : "\n    ");
            nrd_json_put_cstr(&map, t->name);
            nrd_str_printf(&map, ": \"%s\"", name);
            *out_bytes += t->data_bytes;
            any = true;
        }
        nrd_safetensors_close(s);
        free(name);
        free(path);
    }
    if (!err) {
        nrd_str_printf(&text, "{\n  \"metadata\": {\"total_size\": %llu},\n  \"weight_map\": {%s\n  }\n}\n",
                       (unsigned long long)*out_bytes, nrd_str_cstr(&map));
        char *path = nrd_path_join(f->dir, "model.safetensors.index.json");
        err = nrd_file_write(path, nrd_str_cstr(&text), text.len);
        free(path);
    }
    nrd_str_fini(&map);
    nrd_str_fini(&text);
    return err;
}

/* Tokenizer, templates, licence: all files of the model but weights and config.json. */
static nrd_error *copy_others(const nrd_qfolder *f)
{
    nrd_error *err = NULL;
    const char *from = nrd_source_path(f->src);
    char **names = NULL;
    size_t n = 0;

    NRD_TRY(nrd_dir_list(&names, &n, from));
    for (size_t i = 0; i < n && !err; i++) {
        char *path = nrd_path_join(from, names[i]), *to = nrd_path_join(f->dir, names[i]), *data = NULL;
        size_t len = 0;
        if (!is_weights(names[i]) && strcmp(names[i], "config.json") != 0 && names[i][0] != '.' && !nrd_path_is_dir(path)) {
            err = nrd_file_read(&data, &len, path, MAX_COPY_BYTES);
            err = err ? err : nrd_file_write(to, data, len);
        }
        free(path);
        free(to);
        free(data);
    }
    nrd_names_free(names, n);
    return err;
}

enum { LEFT = 16 }; /* bits of modules that no note has */

/* Modules whose notes say that they have `bits`, and inputs that keep 16 where others' have 8; *out is allocated, names are borrowed from the plan. */
static nrd_error *modules_of(const nrd_qfolder *f, int bits, bool keeps_inputs, const char ***out, size_t *out_n)
{
    nrd_error *err = NULL;
    size_t at = 0; /* notes have the modules in their order, those of no layer first */
    const nrd_qmodule *modules = f->modules->modules;

    *out_n = 0;
    NRD_NEW_GOTO(*out, f->modules->n, err, done);
    for (int32_t i = 1; i <= n_files(f) && !err; i++) {
        nrd_json_doc *doc = NULL;
        const char *note = f->notes[i % n_files(f)];
        err = nrd_json_parse(&doc, note, strlen(note), NULL);
        const nrd_json *list = err ? NULL : nrd_json_get(nrd_json_root(doc), "modules");
        for (size_t k = 0; k < nrd_json_len(list) && at < f->modules->n; at++) {
            const nrd_json *one = nrd_json_at(list, k);
            const bool is_there = !strcmp(nrd_json_get_str(one, "name", ""), modules[at].name);
            const bool keeps = is_there && nrd_json_get_int(one, "input_bits", 0) == 16;
            if ((is_there ? nrd_json_get_int(one, "bits", 0) : LEFT) == bits && keeps == keeps_inputs) {
                (*out)[(*out_n)++] = modules[at].name;
            }
            k += is_there;
        }
        nrd_json_doc_free(doc);
    }
    for (; !err && bits == LEFT && at < f->modules->n; at++) {
        (*out)[(*out_n)++] = modules[at].name;
    }
done:
    return err;
}

nrd_error *nrd_qfolder_kept(const nrd_qfolder *f, const char *why_left, nrd_qkept **out, size_t *out_n)
{
    nrd_error *err = NULL;
    const nrd_qmodules *q = f->modules;
    const char **left = NULL;
    size_t n_left = 0, n = q->n_kept;

    *out = NULL;
    NRD_TRY_GOTO(modules_of(f, LEFT, false, &left, &n_left), err, done);
    NRD_NEW_GOTO(*out, n + n_left + 1, err, done);
    for (size_t i = 0; i < n; i++) {
        (*out)[i] = q->kept[i];
    }
    for (size_t i = 0, k = 0; i < q->n && k < n_left; i++) {
        if (q->modules[i].name == left[k]) { /* both have one order */
            (*out)[n + k++] = (nrd_qkept){q->modules[i].name, nrd_qmodules_bits(q->modules[i].src), why_left, true};
        }
    }
    *out_n = n + n_left;
done:
    free(left);
    return err;
}

/* The names of linear modules that stay, of the plan and of the budget. */
static nrd_error *ignored_names(const nrd_qfolder *f, const char ***out, size_t *out_n)
{
    nrd_error *err = NULL;
    nrd_qkept *kept = NULL;
    size_t n = 0;

    *out = NULL;
    *out_n = 0;
    NRD_TRY_GOTO(nrd_qfolder_kept(f, "", &kept, &n), err, done);
    NRD_NEW_GOTO(*out, n + 1, err, done);
    for (size_t i = 0; i < n; i++) {
        if (kept[i].is_linear) {
            (*out)[(*out_n)++] = kept[i].name;
        }
    }
done:
    free(kept);
    return err;
}

/* What files hold decides, since a run that goes on may choose otherwise for the rest. */
static nrd_error *put_groups(const nrd_qfolder *f, const nrd_qscheme *s, const nrd_qgrid *wide, nrd_dtype cache, nrd_str *text)
{
    nrd_error *err = NULL;
    const bool with_head = f->modules->modules[f->modules->n - 1].layer < 0; /* it is quantized */
    const bool keeps = s->inputs != NRD_QROUND_NOT && !wide->is_float; /* of wide ones, by their notes */
    nrd_qpack_group groups[2] = {{.grid = s->grid, .inputs = s->inputs, .static_inputs = s->static_inputs},
                                 {.grid = *wide, .inputs = wide->is_float ? NRD_QROUND_E4M3 : NRD_QROUND_NOT, .static_inputs = s->static_inputs}};
    size_t n = 1, n_ignored = 0;
    const char **ignored = NULL;

    NRD_TRY_GOTO(ignored_names(f, &ignored, &n_ignored), err, done);
    if (!strcmp(s->format, NRD_QPACK_GPTQ)) {
        nrd_qpack_gptq_config(text, &s->grid, ignored, n_ignored, with_head);
        goto done;
    }
    if (s->grid.bits != wide->bits || keeps) {
        NRD_TRY_GOTO(modules_of(f, wide->bits, keeps, &groups[1].targets, &groups[1].n_targets), err, done);
    }
    if (groups[1].n_targets > 0) {
        NRD_TRY_GOTO(modules_of(f, s->grid.bits, false, &groups[0].targets, &groups[0].n_targets), err, done);
        n = 2;
    }
    const bool mixes = n == 2 && (strcmp(s->format, NRD_QPACK_WORDS) != 0 || wide->is_float);
    if (mixes) {
        groups[0].format = s->format;
        groups[1].format = wide->is_float ? NRD_QPACK_FLOATS : NRD_QPACK_WORDS;
    } else if (s->inputs == NRD_QROUND_E4M3 && !s->grid.is_float) {
        groups[0].format = s->format; /* the library takes such a group for unpacked otherwise */
    }
    nrd_qpack_config(text, mixes ? "mixed-precision" : s->format, groups, n, ignored, n_ignored, with_head, cache);
done:
    free(ignored);
    free(groups[0].targets);
    free(groups[1].targets);
    return err;
}

static nrd_error *write_config(const nrd_qfolder *f, const nrd_qscheme *s, const nrd_qgrid *wide, nrd_dtype cache)
{
    nrd_error *err = NULL;
    nrd_json_doc *doc = NULL;
    nrd_str text = {0};
    char *from = nrd_path_join(nrd_source_path(f->src), "config.json"), *to = nrd_path_join(f->dir, "config.json");

    NRD_TRY_GOTO(nrd_json_parse_file(&doc, from, NULL), err, done);
    const nrd_json *root = nrd_json_root(doc);
    nrd_str_putc(&text, '{');
    for (size_t i = 0; i < nrd_json_len(root); i++) {
        nrd_str_puts(&text, i ? ",\n  " : "\n  ");
        nrd_json_put_string(&text, root->child[i].key, root->child[i].key_len);
        nrd_str_puts(&text, ": ");
        nrd_json_put(&text, &root->child[i], -1);
    }
    if (s || cache != NRD_DTYPE_NONE) {
        nrd_str_puts(&text, ",\n  \"quantization_config\": ");
    }
    if (s) {
        NRD_TRY_GOTO(put_groups(f, s, wide, cache, &text), err, done);
    } else if (cache != NRD_DTYPE_NONE) {
        nrd_qpack_config(&text, "dense", NULL, 0, NULL, 0, true, cache);
    }
    nrd_str_puts(&text, "\n}\n");
    NRD_TRY_GOTO(nrd_str_error(&text), err, done);
    err = nrd_file_write(to, nrd_str_cstr(&text), text.len);
done:
    nrd_json_doc_free(doc);
    nrd_str_fini(&text);
    free(from);
    free(to);
    return err;
}

nrd_error *nrd_qfolder_finish(nrd_qfolder *f, const nrd_qscheme *s, const nrd_qgrid *wide, nrd_dtype cache)
{
    NRD_TRY(copy_others(f));
    NRD_TRY(write_config(f, s, wide, cache));
    remove_in(f->dir, PROGRESS);
    return NULL;
}
