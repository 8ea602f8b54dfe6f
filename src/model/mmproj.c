/* SPDX-License-Identifier: Apache-2.0
 * The file of a GGUF model's tower: which one it is, and its tensors as transformers has them. */
#include "model/mmproj.h"

#include "base/dtype.h"
#include "base/file.h"
#include "base/mem.h"
#include "model/finite.h"
#include "model/mmproj_internal.h"
#include "model/vision_internal.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAX_NAME = 2 * NRD_VISION_MAX_NAME, MAX_PARTS = 3 };

/* ---- which file ---- */

static bool is_name(const char *name)
{
    const size_t n = strlen(name);
    return n > 5 && !strcasecmp(name + n - 5, ".gguf") && strcasestr(name, "mmproj");
}

/* Letters and digits of a name that two files of one model share: behind the word itself. */
static int shared(const char *name, const char *model)
{
    static const char word[] = "mmproj";
    int n = 0;

    if (!strncasecmp(name, word, sizeof word - 1)) {
        name += sizeof word - 1;
        name += strspn(name, "-_.");
    }
    while (*name && tolower((unsigned char)*name) == tolower((unsigned char)model[n])) {
        n++;
        name++;
    }
    return n;
}

/* Of files that differ in their types: 16 bits lose nothing, and 32 only take more. */
static int rank_of_type(const char *name)
{
    static const char *const types[] = {"bf16", "f16", "f32"};
    for (int i = 0; i < 3; i++) {
        if (strcasestr(name, types[i])) {
            return i == 0 ? 2 : i == 1 ? 3 : 1;
        }
    }
    return 0;
}

static nrd_error *find_beside(char **out, const char *model)
{
    const char *base = nrd_path_base(model), *best = NULL;
    int most = 0;
    char **names = NULL, *dir = NULL;
    size_t n = 0;
    nrd_error *err = NULL;

    NRD_TRY_GOTO(nrd_path_make_dir(&dir, model), err, done);
    NRD_TRY_GOTO(nrd_dir_list(&names, &n, dir), err, done);
    for (size_t i = 0; i < n; i++) {
        const int score = 1 + 4 * shared(names[i], base) + rank_of_type(names[i]);
        if (is_name(names[i]) && strcmp(names[i], base) != 0 && score > most) {
            most = score;
            best = names[i];
        }
    }
    err = best ? nrd_path_make(out, dir, best) : NULL;
done:
    nrd_names_free(names, n);
    free(dir);
    return err;
}

nrd_error *nrd_mmproj_find(char **out, const char *asked, const char *model)
{
    const bool is_gguf = nrd_str_has_suffix(model, ".gguf") && !nrd_path_is_dir(model);
    nrd_error *err = NULL;

    *out = NULL;
    if (asked && !strcmp(asked, "none")) {
        return NULL;
    }
    if (!asked) {
        return is_gguf ? find_beside(out, model) : NULL;
    }
    if (!is_gguf) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--mmproj is for GGUF files, and '%s' is none; a folder has its tower in its weights", model);
    }
    if (!nrd_path_exists(asked) || nrd_path_is_dir(asked)) {
        return nrd_errorf(NRD_ERR_NOT_FOUND, "--mmproj: '%s' is no file", asked);
    }
    NRD_DUP_GOTO(*out, asked, err, done);
done:
    return err;
}

/* ---- the file ---- */

static nrd_error *kind_of(const nrd_gguf *g, nrd_mmproj_kind *out)
{
    static const struct {
        const char *name;
        nrd_mmproj_kind kind;
    } known[] = {
        {"mlp", NRD_MMPROJ_MLP}, {"gemma3", NRD_MMPROJ_GEMMA3}, {"pixtral", NRD_MMPROJ_PIXTRAL}, {"idefics3", NRD_MMPROJ_IDEFICS3},
        {"qwen2vl_merger", NRD_MMPROJ_QWEN2}, {"qwen2.5vl_merger", NRD_MMPROJ_QWEN2_5}, {"qwen3vl_merger", NRD_MMPROJ_QWEN3},
    };
    nrd_gguf_span type = {"mlp", 3};

    if (!nrd_gguf_str(g, "clip.projector_type", &type)) {
        nrd_gguf_str(g, "clip.vision.projector_type", &type);
    }
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (type.n == strlen(known[i].name) && !memcmp(type.data, known[i].name, type.n)) {
            *out = known[i].kind;
            return NULL;
        }
    }
    return nrd_errorf(NRD_ERR_UNSUPPORTED, "clip.projector_type '%.*s' is not supported; known: mlp (LLaVA), gemma3, pixtral (Mistral 3), "
                      "idefics3 (SmolVLM), qwen2vl_merger, qwen2.5vl_merger, qwen3vl_merger", (int)(type.n < 40 ? type.n : 40), type.data);
}

nrd_error *nrd_mmproj_tensor_of(const nrd_mmproj *m, const char *name, const nrd_gguf_tensor **out)
{
    *out = nrd_gguf_find_tensor(m->file, name);
    return *out ? NULL : nrd_errorf(NRD_ERR_NOT_FOUND, "the vision tower's tensor '%s' is missing", name);
}

static int64_t outermost(const nrd_gguf_tensor *t)
{
    return t->n_dims > 0 ? t->dims[t->n_dims - 1] : 0;
}

/* Metadata of older files say another width of the MLP than its weights have, so these are asked. */
static nrd_error *read_sizes(nrd_mmproj *m)
{
    const nrd_gguf_tensor *up, *down;
    const int64_t heads = nrd_gguf_int(m->file, "clip.vision.attention.head_count", 0);

    NRD_TRY(nrd_mmproj_tensor_of(m, "v.blk.0.ffn_up.weight", &up));
    NRD_TRY(nrd_mmproj_tensor_of(m, "v.blk.0.ffn_down.weight", &down));
    m->hidden = nrd_gguf_int(m->file, "clip.vision.embedding_length", 0);
    if (heads < 1 || m->hidden < 1 || m->hidden > 1 << 16 || m->hidden % heads) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "clip.vision.embedding_length (%lld) must be a multiple of "
                          "clip.vision.attention.head_count (%lld), both above 0", (long long)m->hidden, (long long)heads);
    }
    m->heads = (int32_t)heads;
    m->is_swapped = up->n_dims == 2 && outermost(up) == m->hidden && up->dims[0] != m->hidden;
    m->inter = outermost(m->is_swapped ? down : up);
    return NULL;
}

nrd_error *nrd_mmproj_new(nrd_mmproj **out, nrd_gguf *file)
{
    nrd_gguf_span arch = {"", 0};
    nrd_error *err = NULL;
    nrd_mmproj *m = NULL;

    *out = NULL;
    nrd_gguf_str(file, "general.architecture", &arch);
    if (arch.n != 4 || memcmp(arch.data, "clip", 4) != 0 || !nrd_gguf_bool(file, "clip.has_vision_encoder", false)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "this is no vision tower: expected general.architecture 'clip' with "
                          "clip.has_vision_encoder, got '%.*s'", (int)(arch.n < 40 ? arch.n : 40), arch.data);
    }
    NRD_NEW_GOTO(m, 1, err, fail);
    NRD_TRY_GOTO(kind_of(file, &m->kind), err, fail);
    m->file = file;
    NRD_TRY_GOTO(read_sizes(m), err, fail);
    *out = m;
    return NULL;

fail:
    free(m);
    return err;
}

nrd_error *nrd_mmproj_open(nrd_mmproj **out, const char *path)
{
    nrd_gguf *file = NULL;

    *out = NULL;
    NRD_TRY(nrd_gguf_open(&file, path));
    nrd_error *err = nrd_error_wrap(nrd_mmproj_new(out, file), "%s", path);
    if (err) {
        nrd_gguf_close(file);
    }
    return err;
}

void nrd_mmproj_close(nrd_mmproj *m)
{
    if (m) {
        nrd_gguf_close(m->file);
        free(m);
    }
}

/* ---- names ---- */

/* The first `from` in name, of which there is one at most. */
static void replace(char *name, size_t n, const char *from, const char *to)
{
    char rest[MAX_NAME];
    char *at = strstr(name, from);
    if (at) {
        snprintf(rest, sizeof rest, "%s", at + strlen(from));
        snprintf(at, n - (size_t)(at - name), "%s%s", to, rest);
    }
}

/* Where layer i of those with rows of their own has its merger: by the tower's layer. */
static void rename_deep(const nrd_vision_spec *s, const char *name, char *out, size_t n)
{
    char start[32];

    snprintf(out, n, "%s", name);
    for (int32_t i = 0; i < s->n_deep; i++) {
        const int length = snprintf(start, sizeof start, "deepstack.%d.", i);
        if (!strncmp(name, start, (size_t)length)) {
            snprintf(out, n, "v.deepstack.%d.%s", s->deep_layers[i], name + length);
        }
    }
    replace(out, n, ".ln_q", ".norm");
    replace(out, n, ".mlp.0", ".fc1");
    replace(out, n, ".mlp.2", ".fc2");
}

static void rename_tensor(const nrd_mmproj *m, const nrd_vision_spec *s, const char *name, char *out, size_t n)
{
    static const char *const names[][2] = {
        {"embeddings.patch_embedding", "v.patch_embd"}, {"embeddings.position_embedding", "v.position_embd"},
        {"embeddings.class_embedding", "v.class_embd"}, {"pre_layrnorm", "v.pre_ln"}, {"post_layernorm", "v.post_ln"},
        {"patch_embed.proj", "v.patch_embd"}, {"pos_embed", "v.position_embd"}, {"pre_norm", "v.pre_ln"},
        {"encoder.layers.", "v.blk."}, {"blocks.", "v.blk."}, {"layer_norm", "ln"}, {".norm1", ".ln1"}, {".norm2", ".ln2"},
        {"self_attn.out_proj", "attn_out"}, {"self_attn.q_proj", "attn_q"}, {"self_attn.k_proj", "attn_k"},
        {"self_attn.v_proj", "attn_v"}, {"attn.proj", "attn_out"}, {"attn.qkv", "attn_qkv"}, {"attn.q.", "attn_q."},
        {"attn.k.", "attn_k."}, {"attn.v.", "attn_v."}, {"mlp.gate_proj", "ffn_gate"}, {"mlp.up_proj", "ffn_up"},
        {"mlp.down_proj", "ffn_down"}, {"merger.ln_q", "v.post_ln"}, {"merger.mlp.", "mm."},
        {NRD_VISION_PROJECTOR "norm", "mm.input_norm"}, {NRD_VISION_PROJECTOR "patch_merger.merging_layer", "mm.patch_merger"},
        {NRD_VISION_PROJECTOR "mm_soft_emb_norm", "mm.soft_emb_norm"},
        {NRD_VISION_PROJECTOR "mm_input_projection_weight", "mm.input_projection.weight"},
        {NRD_VISION_PROJECTOR "modality_projection.proj", "mm.model.fc"},
        {NRD_VISION_PROJECTOR "linear_2", "mm.2"}, {NRD_VISION_NEWLINE, "model.image_newline"},
    };

    if (nrd_str_has_prefix(name, "deepstack.")) {
        rename_deep(s, name, out, n);
        return;
    }
    snprintf(out, n, "%s", name);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        replace(out, n, names[i][0], names[i][1]);
    }
    replace(out, n, "mlp.fc1", m->is_swapped ? "ffn_down" : "ffn_up");
    replace(out, n, "mlp.fc2", m->is_swapped ? "ffn_up" : "ffn_down");
    replace(out, n, NRD_VISION_PROJECTOR "linear_1", m->kind == NRD_MMPROJ_PIXTRAL ? "mm.1" : "mm.0");
}

/* ---- tensors ---- */

/* Tensors whose rows, one below the other, are those of one that is asked for; of frames, which lie side by side in it. */
typedef struct parts {
    const nrd_gguf_tensor *t[MAX_PARTS];
    int n;
    bool are_frames;
} parts;

static nrd_error *find_qkv(const nrd_mmproj *m, char *name, parts *p)
{
    static const char letters[] = "qkv";
    char *at = strstr(name, "attn_qkv.");
    char one[MAX_NAME];

    p->t[0] = nrd_gguf_find_tensor(m->file, name);
    p->n = 1;
    if (p->t[0] || !at) {
        return NULL;
    }
    for (p->n = 0; p->n < 3; p->n++) {
        snprintf(one, sizeof one, "%.*sattn_%c.%s", (int)(at - name), name, letters[p->n], at + strlen("attn_qkv."));
        NRD_TRY(nrd_mmproj_tensor_of(m, one, &p->t[p->n]));
    }
    return NULL;
}

static nrd_error *find_parts(const nrd_mmproj *m, const nrd_vision_spec *s, const char *name, parts *p)
{
    char as[MAX_NAME];

    *p = (parts){0};
    rename_tensor(m, s, name, as, sizeof as);
    if (!strcmp(name, NRD_VISION_NEWLINE) && !nrd_gguf_find_tensor(m->file, as)) {
        snprintf(as, sizeof as, "v.image_newline"); /* as newer files call it */
    }
    NRD_TRY(find_qkv(m, as, p));
    if (!p->t[0]) {
        return nrd_mmproj_tensor_of(m, as, &p->t[0]);
    }
    if (s->frames > 1 && !strcmp(as, "v.patch_embd.weight")) {
        p->are_frames = true;
        p->n = s->frames;
        if (s->frames != 2) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "patches of %d frames; expected 2", s->frames);
        }
        return nrd_mmproj_tensor_of(m, "v.patch_embd.weight.1", &p->t[1]);
    }
    return NULL;
}

static nrd_error *check_parts(const parts *p, int64_t rows, int64_t cols)
{
    int64_t sum = 0, sum_rows = 0;

    for (int i = 0; i < p->n; i++) {
        const nrd_gguf_tensor *t = p->t[i];
        int64_t n = 1;
        for (int d = 0; d < t->n_dims; d++) {
            n *= t->dims[d]; /* the file is longer than its numbers: no overflow */
        }
        sum += n;
        sum_rows = p->are_frames ? outermost(t) : sum_rows + outermost(t);
        if (t->dtype == NRD_DTYPE_NONE || !nrd_dtype_block(t->dtype) || (t->dtype != NRD_DTYPE_F32 && t->dtype != NRD_DTYPE_F16 &&
            t->dtype != NRD_DTYPE_BF16 && !nrd_dtype_is_quant(t->dtype))) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "'%s' of the vision tower has the type %s", t->name, nrd_gguf_tensor_type_name(t->type));
        }
        NRD_TRY(nrd_check_finite(t->name, t->dtype, t->data, 0, (uint64_t)n));
        if (t->dtype != p->t[0]->dtype || (p->are_frames && n != sum / (i + 1))) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' and '%s' have other types or sizes", p->t[0]->name, t->name);
        }
    }
    if (sum != rows * (cols ? cols : 1) || sum_rows != rows) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' has %lld numbers in %lld rows; expected %lld and %lld", p->t[0]->name, (long long)sum,
                          (long long)sum_rows, (long long)(rows * (cols ? cols : 1)), (long long)rows);
    }
    return NULL;
}

/* Numbers of frame i of n: they lie channel by channel, and in a channel frame by frame. */
static void put_frame(const float *from, float *to, int64_t rows, int64_t cols, int i, int n)
{
    const int64_t area = cols / n / 3;
    for (int64_t k = 0; k < rows * 3; k++) {
        memcpy(to + (k * n + i) * area, from + k * area, (size_t)area * sizeof *to);
    }
}

/* Neighbours that turn together, as rows of a head, become its two halves again. */
static void put_halves(const float *from, float *to, int64_t rows, int64_t cols, int64_t head)
{
    for (int64_t r = 0; r < rows; r++) {
        const int64_t in = r % head, at = r - in + (in % 2 ? head / 2 : 0) + in / 2;
        memcpy(to + at * cols, from + r * cols, (size_t)cols * sizeof *to);
    }
}

static bool turns(const nrd_mmproj *m, const char *name)
{
    return m->kind == NRD_MMPROJ_PIXTRAL && (strstr(name, "attn.q.") || strstr(name, "attn.k."));
}

/* All numbers in their order, in float32. `room`: as many, for what is put elsewhere. */
static nrd_error *read_numbers(const nrd_mmproj *m, const parts *p, const char *name, int64_t rows, int64_t cols, float *room, float *to)
{
    const int64_t all = rows * cols;
    int64_t at = 0;

    for (int i = 0; i < p->n; i++) {
        const int64_t n = p->are_frames || p->n == 1 ? all / p->n : outermost(p->t[i]) * cols;
        float *into = p->are_frames || turns(m, name) ? room : to + at;
        if (!nrd_dequantize_row(p->t[i]->dtype, p->t[i]->data, into, n)) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "'%s' of the vision tower has the type %s", p->t[i]->name,
                              nrd_gguf_tensor_type_name(p->t[i]->type));
        }
        if (p->are_frames) {
            put_frame(room, to, rows, cols, i, p->n);
        }
        at += n;
    }
    if (turns(m, name)) {
        put_halves(room, to, rows, cols, m->hidden / m->heads);
    }
    return NULL;
}

nrd_error *nrd_mmproj_make(const nrd_mmproj *m, const nrd_vision_spec *s, const char *name, int64_t rows, int64_t cols,
                           nrd_mmproj_tensor *out)
{
    const bool less_one = !strcmp(name, NRD_VISION_PROJECTOR "mm_soft_emb_norm.weight"); /* files have 1 + w */
    const size_t n = (size_t)(rows * (cols ? cols : 1));
    nrd_error *err = NULL;
    float *numbers = NULL, *room = NULL;
    parts p;

    *out = (nrd_mmproj_tensor){0};
    NRD_TRY(find_parts(m, s, name, &p));
    NRD_TRY(check_parts(&p, rows, cols));
    const nrd_dtype from = p.t[0]->dtype;
    out->dtype = less_one ? NRD_DTYPE_F32 : nrd_dtype_is_quant(from) ? NRD_DTYPE_F16 : from;
    if (p.n == 1 && out->dtype == from && !less_one && !turns(m, name)) {
        out->data = p.t[0]->data;
        out->data_bytes = p.t[0]->data_bytes;
        return NULL;
    }
    NRD_NEW_GOTO(numbers, n, err, done);
    if (p.are_frames || turns(m, name)) {
        NRD_NEW_GOTO(room, n, err, done);
    }
    NRD_TRY_GOTO(read_numbers(m, &p, name, rows, cols ? cols : 1, room, numbers), err, done);
    for (size_t i = 0; i < n && less_one; i++) {
        numbers[i] -= 1;
    }
    if (out->dtype == NRD_DTYPE_F32) {
        out->own = numbers;
        numbers = NULL;
        out->data_bytes = n * sizeof *numbers;
    } else {
        uint16_t *halves = NULL;
        NRD_NEW_GOTO(halves, n, err, done);
        nrd_quantize_row(out->dtype, numbers, halves, (int64_t)n);
        out->own = halves;
        out->data_bytes = n * sizeof *halves;
    }
    out->data = out->own;
done:
    free(numbers);
    free(room);
    return err;
}
