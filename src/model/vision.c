/* SPDX-License-Identifier: Apache-2.0
 * The tower's tensors: out of a folder of Hugging Face, into the file beside an engine, and out of that. */
#include "model/vision.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/safetensors.h"
#include "model/finite.h"
#include "model/mmproj.h"
#include "model/vision_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WEIGHTS_FILE "vision.safetensors"
#define CONFIG_FILE "vision_config.json"
#define PROCESSOR_FILE "vision_preprocessor.json"

enum { MAX_NAME = NRD_VISION_MAX_NAME, MAX_CONFIG = 4 << 20 };

struct nrd_vision {
    nrd_vision_spec spec;
    nrd_safetensors *file;
    size_t n;
    char (*names)[MAX_NAME]; /* [n] */
    nrd_weight *weights;     /* [n] */
};

/* ---- writing ---- */

typedef struct taken {
    const nrd_source *src;
    const nrd_vision *from; /* of a checkpoint's folder; NULL: the source's own tensors */
    const nrd_mmproj *mmproj; /* of a GGUF file; likewise */
    const nrd_vision_spec *spec;
    nrd_safetensors_writer *writer;
    bool data; /* the second round */
} taken;

/* The tensor under one of the names that versions of transformers save it by; NULL: none. */
static const nrd_src_tensor *find(const nrd_source *src, const char *name)
{
    static const char *const towers[] = {"vision_tower.vision_model.", "model.vision_tower.vision_model.", "model.vision_tower.",
                                         "vision_tower.", "visual.", "model.visual.", "transformer.visual.", "vision_model.model.", "model.vision.", "model.vision_model.", "vision_model.", "", "model.",
                                         "model.vision_embed_tokens.img_processor.vision_model.", "model.vision_embed_tokens.", "encoder."};
    static const char *const projectors[] = {"multi_modal_projector.", "model.multi_modal_projector.", "model.connector.",
                                             "connector.", "model.vision_embed_tokens.img_projection.", "model.embed_vision.", "embed_vision."};
    const size_t n_own = strlen(NRD_VISION_PROJECTOR);
    const bool own = !strncmp(name, NRD_VISION_PROJECTOR, n_own);
    const size_t n = own ? sizeof projectors / sizeof projectors[0] : sizeof towers / sizeof towers[0];
    const nrd_src_tensor *t = NULL;
    char as[2 * MAX_NAME];

    for (int k = 0; !t && nrd_vision_respell(name, k, as, sizeof as); k++) {
        for (size_t i = 0; i < n && !t; i++) {
            char full[3 * MAX_NAME];
            snprintf(full, sizeof full, "%s%s", own ? projectors[i] : towers[i], own ? as + n_own : as);
            t = nrd_source_find(src, 0, full);
        }
    }
    return t;
}

static nrd_error *put_mmproj(taken *k, const char *name, int64_t rows, int64_t cols)
{
    const int64_t dims[2] = {rows, cols};
    nrd_mmproj_tensor t;
    nrd_error *err = nrd_mmproj_make(k->mmproj, k->spec, name, rows, cols, &t);

    if (!err) {
        err = k->data ? nrd_safetensors_writer_write(k->writer, t.data, t.data_bytes)
                      : nrd_safetensors_writer_add(k->writer, name, t.dtype, dims, cols ? 2 : 1);
    }
    free(t.own);
    return err;
}

/* The decoder's embedding of the picture's token. */
static nrd_error *put_image_token(taken *k, int64_t hidden)
{
    static const char *const names[] = {"language_model.model.embed_tokens.weight", "model.language_model.embed_tokens.weight"};
    const nrd_src_tensor *t = nrd_source_find(k->src, 0, names[0]);
    const int64_t dims[2] = {1, hidden};

    t = t ? t : nrd_source_find(k->src, 0, names[1]);
    if (!t || !t->data || t->n_dims != 2 || t->dims[0] <= k->spec->image_token || t->dims[1] != hidden ||
        (t->dtype != NRD_DTYPE_F32 && t->dtype != NRD_DTYPE_F16 && t->dtype != NRD_DTYPE_BF16)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: the embedding of token %d ('image_token_index') is missing, expected a row of %lld in "
                          "F32, F16 or BF16 in '%s'", nrd_source_path(k->src), k->spec->image_token, (long long)hidden, names[1]);
    }
    const size_t bytes = t->data_bytes / (size_t)t->dims[0];
    NRD_TRY(k->data ? nrd_src_tensor_check_finite(t, k->spec->image_token, 1) : NULL);
    return k->data ? nrd_safetensors_writer_write(k->writer, (const uint8_t *)t->data + (size_t)k->spec->image_token * bytes, bytes)
                   : nrd_safetensors_writer_add(k->writer, NRD_VISION_IMAGE_TOKEN, t->dtype, dims, 2);
}

static nrd_error *put(void *user, const char *name, int64_t rows, int64_t cols)
{
    taken *k = user;
    if (!k->mmproj && !k->from && !strcmp(name, NRD_VISION_IMAGE_TOKEN)) {
        return put_image_token(k, cols);
    }
    if (k->mmproj) {
        return put_mmproj(k, name, rows, cols);
    }
    const nrd_src_tensor *t = k->from ? NULL : find(k->src, name);
    const nrd_weight *w = k->from ? nrd_vision_weight(k->from, name) : NULL;
    const int64_t dims[2] = {rows, cols};
    int first = 0;

    if (w) {
        return k->data ? nrd_safetensors_writer_write(k->writer, w->data, w->data_bytes)
                       : nrd_safetensors_writer_add(k->writer, name, w->dtype, dims, cols ? 2 : 1);
    }
    if (!t) {
        return nrd_errorf(NRD_ERR_NOT_FOUND, "%s: the vision tower's tensor '%s' is missing", nrd_source_path(k->src), name);
    }
    const int64_t count = (int64_t)nrd_src_tensor_numbers(t);
    for (; first + 1 < t->n_dims && t->dims[first] == 1 && rows != 1; first++) { /* InternVL's are of a batch of one */
    }
    const bool is_number = t->n_dims == 0 && rows == 1 && cols == 0;
    if (!is_number && (t->n_dims < 1 || t->dims[first] != rows || count != rows * (cols ? cols : 1))) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: '%s' has %lld numbers, the first dimension of %lld; expected %lld and %lld",
                          nrd_source_path(k->src), t->name, (long long)count, (long long)(t->n_dims > 0 ? t->dims[first] : 0),
                          (long long)(rows * (cols ? cols : 1)), (long long)rows);
    }
    if (!t->data || (t->dtype != NRD_DTYPE_F32 && t->dtype != NRD_DTYPE_F16 && t->dtype != NRD_DTYPE_BF16)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: '%s' of the vision tower has the type %s, expected F32, F16 or BF16",
                          nrd_source_path(k->src), t->name, t->type_name);
    }
    NRD_TRY(k->data ? nrd_src_tensor_check_finite(t, 0, t->n_dims > 0 ? t->dims[0] : 1) : NULL);
    return k->data ? nrd_safetensors_writer_write(k->writer, t->data, t->data_bytes)
                   : nrd_safetensors_writer_add(k->writer, name, t->dtype, dims, cols ? 2 : 1);
}

static nrd_error *write_weights(taken k, const nrd_vision_spec *s, const char *path)
{
    const int32_t hidden = nrd_source_spec(k.src)->hidden;
    nrd_error *err = NULL;

    k.spec = s;
    NRD_TRY(nrd_safetensors_writer_open(&k.writer, path));
    NRD_TRY_GOTO(nrd_vision_visit(s, hidden, put, &k), err, fail);
    NRD_TRY_GOTO(nrd_safetensors_writer_begin(k.writer), err, fail);
    k.data = true;
    NRD_TRY_GOTO(nrd_vision_visit(s, hidden, put, &k), err, fail);
    return nrd_safetensors_writer_commit(k.writer);

fail:
    nrd_safetensors_writer_abort(k.writer);
    return err;
}

/* A file of a folder as JSON; *out NULL: it is not there. */
static nrd_error *parse(nrd_json_doc **out, const char *dir, const char *name)
{
    const nrd_json_limits limits = {.max_bytes = MAX_CONFIG, .max_depth = 64, .special = true};

    return nrd_json_parse_in(out, dir, name, &limits);
}

/* more: of an object, what is put behind its members. */
static nrd_error *write_json(const char *dir, const char *name, const nrd_json *value, const char *more)
{
    nrd_str text = {0};
    char *path = NULL;
    nrd_error *err = nrd_path_make(&path, dir, name);

    if (!err) {
        nrd_json_put(&text, value, -1);
        if (*more && text.len > 0) {
            text.len--; /* its brace */
            nrd_str_printf(&text, "%s}", more);
        }
        err = nrd_str_error(&text);
    }
    if (!err) {
        err = nrd_file_write(path, text.data, text.len);
    }
    nrd_str_fini(&text);
    free(path);
    return err;
}

/* Folders of Gemma 3 and 4, Mistral 3, Qwen3.5 and Llama 3.2 Vision whose tower was taken out, or of the former packed into a few bits, are text
 * alone. */
static bool is_text_alone(const nrd_source *src, const nrd_json *config)
{
    const char *type = nrd_json_get_str(config, "model_type", "");
    const bool mistral = !strcmp(type, "mistral3"), qwen = !strcmp(type, "qwen3_5") || !strcmp(type, "qwen3_5_moe");
    if (nrd_vision_is_mllama(config)) {
        return !find(src, "patch_embedding.weight");
    }
    const bool gemma = !strcmp(type, "gemma3") || !strcmp(type, "gemma4");
    const nrd_src_tensor *t = find(src, !strcmp(type, "gemma4") ? "encoder.layers.0.mlp.gate_proj.linear.weight" : mistral ? "blocks.0.attn.q.weight" : qwen ? "blocks.0.mlp.fc1.weight" : "encoder.layers.0.mlp.fc1.weight");
    return (mistral || qwen || gemma) &&
           (!t || (t->dtype != NRD_DTYPE_F32 && t->dtype != NRD_DTYPE_F16 && t->dtype != NRD_DTYPE_BF16));
}

static nrd_error *copy_to(taken k, const nrd_json *config, const nrd_json *processor, const char *dir)
{
    const bool is_folder = !k.from && !k.mmproj;
    nrd_vision_spec s;
    nrd_str more = {0};
    bool any = false;
    char *path = NULL;

    if (is_folder && is_text_alone(k.src, config)) {
        return NULL;
    }
    NRD_TRY(nrd_vision_spec_read(&s, &any, config, processor));
    if (!any) {
        return NULL;
    }
    nrd_error *err = nrd_path_make(&path, dir, WEIGHTS_FILE);
    err = err ? err : write_weights(k, &s, path);
    free(path);
    NRD_TRY(err);
    NRD_TRY(processor ? write_json(dir, PROCESSOR_FILE, processor, "") : NULL);
    if (is_folder && nrd_vision_is_vila(config)) {
        err = nrd_vision_put_vila(nrd_source_path(k.src), &more);
    } else if (!k.from && s.named) {
        err = nrd_vision_put_words(&s, nrd_source_path(k.src), &more);
    } else if (is_folder && (s.breaks || s.framed)) {
        err = nrd_vision_put_breaks(&s, nrd_source_path(k.src), &more);
    }
    err = err ? err : write_json(dir, CONFIG_FILE, config, nrd_str_cstr(&more)); /* last: with it the tower is whole */
    nrd_str_fini(&more);
    return err;
}

const char *nrd_vision_file(int i)
{
    static const char *const files[] = {CONFIG_FILE, PROCESSOR_FILE, WEIGHTS_FILE, NULL};
    return files[i];
}

static nrd_error *remove_files(const char *dir)
{
    for (int i = 0; nrd_vision_file(i); i++) {
        char *path = NULL;
        NRD_TRY(nrd_path_make(&path, dir, nrd_vision_file(i)));
        (void)remove(path);
        free(path);
    }
    return NULL;
}

/* The processor of pictures with that of videos as a member; *out NULL: there is none of videos. */
static nrd_error *join(nrd_json_doc **out, const nrd_json *pictures, const nrd_json *videos)
{
    nrd_str text = {0};

    if (!nrd_json_is(videos, NRD_JSON_OBJECT)) {
        return NULL;
    }
    nrd_str_puts(&text, "{");
    for (size_t i = 0; nrd_json_is(pictures, NRD_JSON_OBJECT) && i < pictures->n; i++) {
        const nrd_json *m = &pictures->child[i];
        nrd_json_put_string(&text, m->key, m->key_len);
        nrd_str_puts(&text, ":");
        nrd_json_put(&text, m, -1);
        nrd_str_puts(&text, ",");
    }
    nrd_str_puts(&text, "\"" NRD_VISION_VIDEO_PROCESSOR "\":");
    nrd_json_put(&text, videos, -1);
    nrd_str_puts(&text, "}");
    nrd_error *err = nrd_str_error(&text);
    err = err ? err : nrd_json_parse(out, text.data, text.len, &(nrd_json_limits){.max_bytes = 2 * MAX_CONFIG, .max_depth = 64, .special = true});
    nrd_str_fini(&text);
    return err;
}

/* Of a folder, or of a checkpoint. */
static nrd_error *write_folder(const nrd_source *src, const char *dir)
{
    const bool is_checkpoint = nrd_source_get_kind(src) == NRD_SOURCE_CHECKPOINT;
    const char *from = nrd_source_path(src);
    nrd_json_doc *config = NULL, *processor = NULL, *video = NULL, *joined = NULL;
    nrd_error *err = NULL;
    nrd_vision *v = NULL;

    if (is_checkpoint) {
        NRD_TRY_GOTO(nrd_vision_open(&v, from, nrd_source_spec(src)->hidden), err, done);
    }
    NRD_TRY_GOTO(parse(&config, from, is_checkpoint ? CONFIG_FILE : "config.json"), err, done);
    const bool is_vila = config && nrd_vision_is_vila(nrd_json_root(config));
    NRD_TRY_GOTO(parse(&processor, from, is_checkpoint ? PROCESSOR_FILE : is_vila ? "vision_tower/preprocessor_config.json" : "preprocessor_config.json"),
                 err, done);
    const nrd_json *p = processor ? nrd_json_root(processor) : NULL;
    if (!is_checkpoint) {
        NRD_TRY_GOTO(parse(&video, from, "video_preprocessor_config.json"), err, done);
        const nrd_json *of_videos = video ? nrd_json_root(video) : NULL;
        if (!p) { /* as transformers 5 saves it: with what is not of pictures */
            NRD_TRY_GOTO(parse(&processor, from, "processor_config.json"), err, done);
            p = processor ? nrd_json_get(nrd_json_root(processor), "image_processor") : NULL;
            of_videos = processor ? nrd_json_get(nrd_json_root(processor), NRD_VISION_VIDEO_PROCESSOR) : NULL;
        }
        NRD_TRY_GOTO(join(&joined, p, of_videos), err, done);
        p = joined ? nrd_json_root(joined) : p;
    }
    err = config ? copy_to((taken){.src = src, .from = v}, nrd_json_root(config), p, dir) : NULL;
done:
    nrd_vision_close(v);
    nrd_json_doc_free(config);
    nrd_json_doc_free(processor);
    nrd_json_doc_free(video);
    nrd_json_doc_free(joined);
    return err;
}

/* Of the file of a GGUF model's tower. */
static nrd_error *write_mmproj(const nrd_source *src, const char *path, const char *dir)
{
    nrd_json_doc *config = NULL, *processor = NULL;
    nrd_str texts[2] = {{0}, {0}};
    nrd_gguf *words = NULL;
    nrd_error *err = NULL;
    nrd_mmproj *m = NULL;

    NRD_TRY_GOTO(nrd_mmproj_open(&m, path), err, done);
    NRD_TRY_GOTO(nrd_gguf_open(&words, nrd_source_path(src)), err, done);
    NRD_TRY_GOTO(nrd_mmproj_describe(m, nrd_source_spec(src), words, &texts[0], &texts[1]), err, done);
    NRD_TRY_GOTO(nrd_json_parse(&config, texts[0].data, texts[0].len, NULL), err, done);
    NRD_TRY_GOTO(nrd_json_parse(&processor, texts[1].data, texts[1].len, NULL), err, done);
    err = copy_to((taken){.src = src, .mmproj = m}, nrd_json_root(config), nrd_json_root(processor), dir);
done:
    nrd_json_doc_free(config);
    nrd_json_doc_free(processor);
    nrd_str_fini(&texts[0]);
    nrd_str_fini(&texts[1]);
    nrd_gguf_close(words);
    nrd_mmproj_close(m);
    return nrd_error_wrap(err, "%s", path);
}

/* A file that was only found beside the model may belong to another one: then it is text alone. */
static nrd_error *write_found(const nrd_source *src, const char *mmproj, const char *dir)
{
    char *path = NULL;

    NRD_TRY(nrd_mmproj_find(&path, mmproj, nrd_source_path(src)));
    nrd_error *err = path ? write_mmproj(src, path, dir) : NULL;
    free(path);
    if (err && !mmproj && nrd_error_get_code(err) != NRD_ERR_NO_MEMORY) {
        NRD_LOG_WARN("%s: without its vision tower: %s", nrd_source_path(src), nrd_error_message(err));
        nrd_error_free(err);
        return remove_files(dir);
    }
    return err;
}

nrd_error *nrd_vision_write(const nrd_source *src, const char *mmproj, const char *dir)
{
    const nrd_source_kind kind = nrd_source_get_kind(src);

    NRD_TRY(remove_files(dir));
    if (nrd_source_spec(src)->for_decoder) { /* its decoder's engine has the tower */
        return NULL;
    }
    if (kind == NRD_SOURCE_GGUF) {
        return write_found(src, mmproj, dir);
    }
    if (mmproj && strcmp(mmproj, "none") != 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--mmproj is for GGUF files, and '%s' is none; a folder has its tower in its weights",
                          nrd_source_path(src));
    }
    return kind == NRD_SOURCE_HF || kind == NRD_SOURCE_CHECKPOINT ? write_folder(src, dir) : NULL;
}

bool nrd_vision_has(const nrd_model_spec *decoder, const char *name)
{
    return strstr(name, "vision_tower.") || strstr(name, "multi_modal_projector.") || strstr(name, NRD_VISION_NEWLINE) ||
           strstr(name, "vision_model.") || strstr(name, "vision_embed_tokens.") || strstr(name, "embed_vision.") || strstr(name, "qformer.") || strstr(name, "query_tokens") || strstr(name, "language_projection.") || strstr(name, "encoder.embeddings.") || strstr(name, "encoder.encoder.layers.") || strstr(name, "connector.modality_projection.") || strstr(name, "transformer.visual.") || strstr(name, "model.vision.") || strstr(name, NRD_VISION_LATENT) ||
           (nrd_rope_has_axes(&decoder->rope) && strstr(name, "visual."));
}

/* ---- opening ---- */

static nrd_error *count(void *user, const char *name, int64_t rows, int64_t cols)
{
    (void)name;
    (void)rows;
    (void)cols;
    ++*(size_t *)user;
    return NULL;
}

static nrd_error *take(void *user, const char *name, int64_t rows, int64_t cols)
{
    nrd_vision *v = user;
    const nrd_safetensor *t = nrd_safetensors_find(v->file, name);

    if (!t) {
        return nrd_errorf(NRD_ERR_NOT_FOUND, WEIGHTS_FILE ": the tensor '%s' is missing; build the engine again", name);
    }
    if (t->n_dims != (cols ? 2 : 1) || t->dims[0] != rows || (cols && t->dims[1] != cols)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, WEIGHTS_FILE ": '%s' has another shape than " CONFIG_FILE " says; build the engine "
                          "again", name);
    }
    if (t->dtype != NRD_DTYPE_F32 && t->dtype != NRD_DTYPE_F16 && t->dtype != NRD_DTYPE_BF16) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, WEIGHTS_FILE ": '%s' has the type %s, expected F32, F16 or BF16", name, t->type_name);
    }
    snprintf(v->names[v->n], MAX_NAME, "%s", name);
    v->weights[v->n++] = (nrd_weight){.dtype = t->dtype,
                                      .layout = NRD_LAYOUT_ROWS,
                                      .rows = cols ? rows : 1,
                                      .cols = cols ? cols : rows,
                                      .data = t->data,
                                      .scale = 1,
                                      .data_bytes = t->data_bytes};
    return NULL;
}

static nrd_error *open_weights(nrd_vision *v, const char *dir, int32_t hidden)
{
    nrd_error *err = NULL;
    size_t n = 0;
    char *path = NULL;

    NRD_TRY(nrd_path_make(&path, dir, WEIGHTS_FILE));
    NRD_TRY_GOTO(nrd_safetensors_open(&v->file, path), err, done);
    NRD_TRY_GOTO(nrd_vision_visit(&v->spec, hidden, count, &n), err, done);
    NRD_NEW_GOTO(v->names, n, err, done);
    NRD_NEW_GOTO(v->weights, n, err, done);
    err = nrd_vision_visit(&v->spec, hidden, take, v);
done:
    free(path);
    return err;
}

bool nrd_vision_is_in(const char *dir)
{
    char *path = NULL;
    nrd_error *err = nrd_path_make(&path, dir, CONFIG_FILE); /* without memory nothing else will go well either */
    const bool is_there = !err && nrd_path_exists(path);
    nrd_error_free(err);
    free(path);
    return is_there;
}

nrd_error *nrd_vision_open(nrd_vision **out, const char *dir, int32_t hidden)
{
    nrd_json_doc *config = NULL, *processor = NULL;
    nrd_error *err = NULL;
    nrd_vision *v = NULL;
    bool any = false;

    *out = NULL;
    NRD_TRY_GOTO(parse(&config, dir, CONFIG_FILE), err, done);
    if (!config) {
        goto done;
    }
    NRD_TRY_GOTO(parse(&processor, dir, PROCESSOR_FILE), err, done);
    NRD_NEW_GOTO(v, 1, err, done);
    NRD_TRY_GOTO(nrd_error_wrap(nrd_vision_spec_read(&v->spec, &any, nrd_json_root(config),
                                                     processor ? nrd_json_root(processor) : NULL), "%s", dir), err, done);
    if (any) {
        NRD_TRY_GOTO(open_weights(v, dir, hidden), err, done);
        *out = v;
        v = NULL;
    }
done:
    nrd_vision_close(v);
    nrd_json_doc_free(config);
    nrd_json_doc_free(processor);
    return err;
}

void nrd_vision_close(nrd_vision *v)
{
    if (v) {
        nrd_safetensors_close(v->file);
        free(v->names);
        free(v->weights);
        free(v);
    }
}

const nrd_vision_spec *nrd_vision_get_spec(const nrd_vision *v)
{
    return &v->spec;
}

const nrd_weight *nrd_vision_weight(const nrd_vision *v, const char *name)
{
    for (size_t i = 0; i < v->n; i++) {
        if (!strcmp(v->names[i], name)) {
            return &v->weights[i];
        }
    }
    return NULL;
}
