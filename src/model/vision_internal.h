/* SPDX-License-Identifier: Apache-2.0
 * model/vision_internal.h - towers from the inside, for the files that make up model/vision.h.
 *
 *   vision.c         weights out of a folder, into the file beside an engine, and out of that
 *   vision_tensors.c which weights there are
 *   vision_spec.c    configurations: whose tower it is, and towers for squares of one size
 *   vision_common.c  what all share
 *   vision_tiles.c   what the former need where pictures are cut into tiles
 *   vision_pixtral.c Pixtral's, of any size
 *   vision_intern.c  InternVL's, of tiles that keep no shape
 *   vision_blip2.c   BLIP-2's, whose states are read by queries
 *   vision_qwen1.c   Qwen-VL's, whose states queries read once
 *   vision_cogvlm.c  that of CogVLM and CogVLM2
 *   vision_paligemma.c that of PaliGemma and PaliGemma 2
 *   vision_kosmos2.c that of Kosmos-2
 *   vision_idefics3.c those of Idefics3 and SmolVLM
 *   vision_gemma4.c  that of Gemma 4
 *   vision_phi3.c    that of Phi-3-vision
 *   vision_vila.c    those of VILA
 *   vision_mllama.c  that of Llama 3.2 Vision
 *   vision_fuyu.c    Fuyu, which has none
 *   vision_pix2struct.c  Pix2Struct, whose encoder is one of the engine's
 *   vision_swin.c    Donut's and Nougat's, of pages
 *   vision_words.c   tokens that stand around a picture's rows
 *   vision_grid.c    the same of towers for pictures of any size
 *   vision_folder.c  a tower in a folder of its own
 */
#ifndef NRD_MODEL_VISION_INTERNAL_H
#define NRD_MODEL_VISION_INTERNAL_H

#include "model/vision.h"

#define NRD_VISION_PROJECTOR "projector."
#define NRD_VISION_LATENT "image_to_text_projection."
#define NRD_VISION_NEWLINE "image_newline"
#define NRD_VISION_LINE_END "sub_GN"   /* the names of Phi-3-vision */
#define NRD_VISION_SEPARATOR "glb_GN"
#define NRD_VISION_IMAGE_TOKEN "image_token" /* the decoder's embedding of the picture's token, which is behind its vocabulary */

enum { NRD_VISION_MAX_NAME = 128 };

/* Called for each tensor; cols 0: a vector. */
typedef nrd_error *(*nrd_vision_visitor)(void *user, const char *name, int64_t rows, int64_t cols);
nrd_error *nrd_vision_visit(const nrd_vision_spec *s, int32_t out_hidden, nrd_vision_visitor visit, void *user) NRD_MUST_USE;

/* A tensor's name as folders of other families spell it, for i from 0 on; false: there are no more. */
bool nrd_vision_respell(const char *name, int i, char *out, size_t n);

/* ---- vision_common.c ---- */

/* A weight and its bias. */
nrd_error *nrd_vision_visit_pair(nrd_vision_visitor visit, void *user, const char *stem, int64_t rows, int64_t cols, bool has_bias) NRD_MUST_USE;

nrd_error *nrd_vision_in_range(const char *key, int64_t v, int64_t least, int64_t most) NRD_MUST_USE;
nrd_error *nrd_vision_get_int(const nrd_json *c, const char *keys, int64_t fallback, int64_t least, int64_t most,
                              int32_t *out) NRD_MUST_USE;
nrd_error *nrd_vision_get_act(const nrd_json *c, const char *key, const char *fallback, nrd_act_kind *out) NRD_MUST_USE;
/* What a tower has where its configuration does not say. */
typedef struct nrd_vision_usual {
    int32_t image_size, patch_size, hidden, inter, n_heads, n_layers;
} nrd_vision_usual;
extern const nrd_vision_usual nrd_vision_usual_clip; /* ViT-L/14 for 336 pixels */
extern const nrd_vision_usual nrd_vision_usual_siglip;
/* Sizes of a tower for squares of one size, from its vision_config; *out_layers: of which not all need to be run. */
nrd_error *nrd_vision_read_sizes(nrd_vision_spec *s, const nrd_json *v, const nrd_vision_usual *usual, int32_t *out_layers) NRD_MUST_USE;
/* INVALID_ARG: the heads of `of` are no equal parts. */
nrd_error *nrd_vision_check_heads(const char *of, int32_t hidden, int32_t n_heads) NRD_MUST_USE;
/* Scale, mean and deviation, and the filter. */
nrd_error *nrd_vision_read_numbers(nrd_vision_spec *s, const nrd_json *processor) NRD_MUST_USE;

/* The same of frames of videos: of their own processor, and what it does not say as of pictures, which are read already. */
nrd_error *nrd_vision_read_video_numbers(nrd_vision_spec *s, const nrd_json *processor) NRD_MUST_USE;

/* The layer whose states are taken, by a key of config.json; there are n. */
nrd_error *nrd_vision_read_layers(nrd_vision_spec *s, const nrd_json *config, const char *key, int32_t n, int64_t fallback) NRD_MUST_USE;
/* The whole processor, of pictures that become squares of the tower's size. */
nrd_error *nrd_vision_read_input(nrd_vision_spec *s, const nrd_json *processor) NRD_MUST_USE;

/* ---- vision_pixtral.c ---- */

bool nrd_vision_is_pixtral(const nrd_json *config); /* before Pixtral's decoder, or Mistral 3's */
nrd_error *nrd_vision_read_pixtral(nrd_vision_spec *s, const nrd_json *config, const nrd_json *processor) NRD_MUST_USE;
nrd_error *nrd_vision_fit_longest(const nrd_vision_spec *s, int32_t width, int32_t height, nrd_vision_grid *out) NRD_MUST_USE;
/* The ids of what ends lines and pictures, or stands around these (framed), by a folder's tokenizer.json, as keys to add to config.json;
 * those of the published models where it has none. */
nrd_error *nrd_vision_put_breaks(const nrd_vision_spec *s, const char *dir, nrd_str *out) NRD_MUST_USE;

/* ---- vision_fuyu.c ---- */

bool nrd_vision_is_fuyu(const nrd_json *config);
nrd_error *nrd_vision_read_fuyu(nrd_vision_spec *s, const nrd_json *config, const nrd_json *processor) NRD_MUST_USE;
nrd_error *nrd_vision_fit_fuyu(const nrd_vision_spec *s, int32_t width, int32_t height, nrd_vision_grid *out) NRD_MUST_USE;

/* ---- vision_pix2struct.c ---- */

bool nrd_vision_is_pix2struct(const nrd_json *config);
nrd_error *nrd_vision_read_pix2struct(nrd_vision_spec *s, const nrd_json *config, const nrd_json *processor) NRD_MUST_USE;
nrd_error *nrd_vision_fit_pix2struct(const nrd_vision_spec *s, int32_t width, int32_t height, nrd_vision_grid *out) NRD_MUST_USE;

/* ---- vision_swin.c ---- */

bool nrd_vision_is_swin(const nrd_json *config);
nrd_error *nrd_vision_read_swin(nrd_vision_spec *s, const nrd_json *config, const nrd_json *processor) NRD_MUST_USE;
nrd_error *nrd_vision_visit_swin(const nrd_vision_spec *s, nrd_vision_visitor visit, void *user) NRD_MUST_USE;

/* ---- vision_intern.c ---- */

bool nrd_vision_is_intern(const nrd_json *config);
nrd_error *nrd_vision_read_intern(nrd_vision_spec *s, const nrd_json *config, const nrd_json *processor) NRD_MUST_USE;
/* The tiles whose shape is nearest to the picture's. */
void nrd_vision_tile_intern(const nrd_vision_spec *s, int32_t width, int32_t height, nrd_vision_grid *out);

/* ---- vision_blip2.c ---- */

bool nrd_vision_is_blip2(const nrd_json *config);
nrd_error *nrd_vision_read_blip2(nrd_vision_spec *s, const nrd_json *config) NRD_MUST_USE;
/* What is behind the layers. */
nrd_error *nrd_vision_visit_queries(const nrd_vision_spec *s, int32_t out_hidden, nrd_vision_visitor visit, void *user) NRD_MUST_USE;

/* ---- vision_qwen1.c ---- */

bool nrd_vision_is_qwen1(const nrd_json *config); /* Qwen-VL, before Qwen 1 */
nrd_error *nrd_vision_read_qwen1(nrd_vision_spec *s, const nrd_json *config) NRD_MUST_USE;
/* What is behind the layers. */
nrd_error *nrd_vision_visit_resampler(const nrd_vision_spec *s, int32_t out_hidden, nrd_vision_visitor visit, void *user) NRD_MUST_USE;

/* ---- vision_cogvlm.c ---- */

bool nrd_vision_is_cogvlm(const nrd_json *config);
nrd_error *nrd_vision_read_cogvlm(nrd_vision_spec *s, const nrd_json *config) NRD_MUST_USE;
nrd_error *nrd_vision_visit_cogvlm(const nrd_vision_spec *s, int32_t out_hidden, nrd_vision_visitor visit, void *user) NRD_MUST_USE;

/* ---- vision_paligemma.c ---- */

bool nrd_vision_is_paligemma(const nrd_json *config);
nrd_error *nrd_vision_read_paligemma(nrd_vision_spec *s, const nrd_json *config, const nrd_json *processor) NRD_MUST_USE;

/* ---- vision_kosmos2.c ---- */

bool nrd_vision_is_kosmos2(const nrd_json *config);
nrd_error *nrd_vision_read_kosmos2(nrd_vision_spec *s, const nrd_json *config, const nrd_json *processor) NRD_MUST_USE;
nrd_error *nrd_vision_visit_latent(const nrd_vision_spec *s, int32_t out_hidden, nrd_vision_visitor visit, void *user) NRD_MUST_USE;

/* ---- vision_mllama.c ---- */

bool nrd_vision_is_mllama(const nrd_json *config);
nrd_error *nrd_vision_read_mllama(nrd_vision_spec *s, const nrd_json *config, const nrd_json *processor) NRD_MUST_USE;

/* ---- vision_idefics3.c ---- */

bool nrd_vision_is_idefics3(const nrd_json *config); /* SmolVLM too */
nrd_error *nrd_vision_read_idefics3(nrd_vision_spec *s, const nrd_json *config, const nrd_json *processor) NRD_MUST_USE;
void nrd_vision_tile_idefics3(const nrd_vision_spec *s, int32_t width, int32_t height, nrd_vision_grid *out);

/* ---- vision_phi3.c ---- */

bool nrd_vision_is_phi3(const nrd_json *config);
nrd_error *nrd_vision_read_phi3(nrd_vision_spec *s, const nrd_json *config, const nrd_json *processor) NRD_MUST_USE;
/* INVALID_ARG: its sides differ too much. */
nrd_error *nrd_vision_tile_phi3(const nrd_vision_spec *s, int32_t width, int32_t height, nrd_vision_grid *out) NRD_MUST_USE;
int32_t nrd_vision_phi3_rows(const nrd_vision_spec *s, int32_t high, int32_t wide); /* of so many tiles, and the whole */

/* ---- vision_gemma4.c ---- */

bool nrd_vision_is_gemma4(const nrd_json *config);
nrd_error *nrd_vision_read_gemma4(nrd_vision_spec *s, const nrd_json *config, const nrd_json *processor) NRD_MUST_USE;
/* The largest size of a picture's shape that there are patches for. */
nrd_error *nrd_vision_fit_gemma4(const nrd_vision_spec *s, int32_t width, int32_t height, nrd_vision_grid *out) NRD_MUST_USE;
nrd_error *nrd_vision_visit_gemma4(const nrd_vision_spec *s, int32_t out_hidden, nrd_vision_visitor visit, void *user) NRD_MUST_USE;

/* ---- vision_vila.c ---- */

bool nrd_vision_is_vila(const nrd_json *config);
nrd_error *nrd_vision_read_vila(nrd_vision_spec *s, const nrd_json *config, const nrd_json *processor) NRD_MUST_USE;
/* The id of a picture's word, which the tokenizer of a folder gives it, as a key to add to config.json. */
nrd_error *nrd_vision_put_vila(const char *path, nrd_str *out) NRD_MUST_USE;

/* ---- vision_words.c ---- */

int32_t nrd_vision_words_around(const nrd_vision_spec *s, nrd_vision_grid grid); /* tokens of a picture that are no rows */
/* The words by the tokenizer of a folder or a GGUF file, as a key to add to config.json. */
nrd_error *nrd_vision_put_words(const nrd_vision_spec *s, const char *path, nrd_str *out) NRD_MUST_USE;
nrd_error *nrd_vision_read_words(nrd_vision_words *out, const nrd_json *config) NRD_MUST_USE; /* side 0: it has none */

/* ---- vision_tiles.c ---- */

bool nrd_vision_is_tiled(const nrd_json *config); /* LLaVA-NeXT, LLaVA-OneVision */
nrd_error *nrd_vision_read_tiles(nrd_vision_spec *s, const nrd_json *config) NRD_MUST_USE; /* behind all else of the tower */
int32_t nrd_vision_most_tiled_rows(const nrd_vision_spec *s);

/* ---- vision_grid.c ---- */

bool nrd_vision_is_grid(const nrd_json *config); /* Qwen2-VL, Qwen2.5-VL */
nrd_error *nrd_vision_read_grid(nrd_vision_spec *s, const nrd_json *config, const nrd_json *processor) NRD_MUST_USE;

#endif
