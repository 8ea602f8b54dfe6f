/* SPDX-License-Identifier: Apache-2.0
 * model/vision.h - the part of a model that sees: what it is, and its weights.
 *
 * Purpose   Reads the vision tower and the projector of a Hugging Face folder or of a GGUF model (model/mmproj.h), writes them beside an engine
 *           (vision.safetensors, and the folder's config.json and preprocessor_config.json under names of their own), and
 *           opens them there. The decoder is an engine as any other.
 * Owner     Immutable after open; any thread may read.
 * Errors    UNSUPPORTED: a tower or a setting that is not computed; INVALID_ARG: file, field or tensor, expected and got.
 * Lifetime  Weights borrow from the object until close.
 * Sources   CLIP (Radford et al., 2021), SigLIP (Zhai et al., 2023), LLaVA 1.5 (Liu et al., 2023), LLaVA-NeXT (Liu et al., 2024),
 *           LLaVA-OneVision (Li et al., 2024), BLIP-2 (Li et al., 2023), Qwen-VL (Bai et al., 2023), Kosmos-2 (Peng et al., 2023), CogVLM (Wang et al., 2023), CogVLM2 (Hong et al., 2024), Gemma 3 (2025), Gemma 4 (2026), Qwen2-VL
 *           (Wang et al., 2024), Qwen2.5-VL (Bai et al., 2025), Qwen3-VL (Bai et al., 2025), DeepStack (Meng et al., 2024),
 *           Llama 3.2 Vision (Llama team, 2024), Phi-3-vision (Abdin et al., 2024), VILA (Lin et al., 2024), InternVL (Chen et al., 2024), Idefics3 (Laurençon et al., 2024), SmolVLM (Marafioti et al., 2025), Pixtral (Agrawal et al., 2024), Mistral 3, Fuyu (Bavishi et al., 2023), Pix2Struct (Lee et al., 2023), as transformers computes them.
 */
#ifndef NRD_MODEL_VISION_H
#define NRD_MODEL_VISION_H

#include "base/json.h"
#include "model/source.h"
#include "nereid/device.h"

enum {
    NRD_VISION_MAX_SIDE = 4096,     /* pixels of a tower's picture */
    NRD_VISION_MAX_PATCHES = 16384,
    NRD_VISION_MAX_DEEP = 8,
    NRD_VISION_MAX_TILES = 64,   /* of a picture */
    NRD_VISION_MAX_LAYOUTS = 64, /* of such tiles */
    NRD_VISION_MAX_STAGES = 8,
    NRD_VISION_MAX_WORD = 24,    /* tokens */
    NRD_VISION_N_BOUNDS = 4,
    NRD_VISION_MAX_ASPECT = 200, /* the longer side of a picture to the shorter one, with any_size */
};

#define NRD_VISION_VIDEO_PROCESSOR "video_processor" /* a member of the processor, as transformers 5 saves it: of videos */

/* How a picture becomes the tower's input: the steps of an image processor, in this order. */
typedef struct nrd_vision_input {
    bool resize, to_square; /* to_square: both sides become `size`; else the shorter one */
    int32_t size, filter;   /* filter: Pillow's number */
    bool crop;
    int32_t crop_width, crop_height;
    bool rescale, normalize;
    double factor;
    float mean[3], deviation[3];
} nrd_vision_input;

/* What of videos is not as of pictures. A video is as many pictures of the tower as it has groups of `frames` frames. With tiled a frame is the
 * whole of a picture, whose states are shrunk to half as many a side, and one that is learned follows the last frame (LLaVA-OneVision). */
typedef struct nrd_vision_video {
    int32_t token;           /* stands for a video in the prompt */
    nrd_vision_input input;  /* scale, mean and deviation, and the filter */
    int64_t min_pixels, max_pixels; /* with any_size: frames are brought between them; with apart all frames of a video together */
    bool apart;              /* groups stand in places of their own in the prompt, with their times as text in front (Qwen3-VL) */
    double tokens_per_second; /* of the axis of time; 0: a group is one place, however long it lasts (Qwen2-VL) */
} nrd_vision_video;

/* Tiles of a picture, all of the tower's size, beside the whole of it. In rows of states: tiles show more than the picture,
 * which is kept_high x kept_wide from (top, left) on, and becomes rows_high x rows_wide. */
typedef struct nrd_vision_tiles {
    int32_t high, wide; /* 0: none, only the whole */
    int32_t top, left, kept_high, kept_wide, rows_high, rows_wide;
} nrd_vision_tiles;

/* Patches of a picture. */
typedef struct nrd_vision_grid {
    int32_t height, width;
    nrd_vision_tiles tiles;
    int32_t frames; /* of a video, that a patch has, each with pixels of its own; 0: a picture, which is all of them */
    bool ends;      /* with tiled: a video's last frame */
} nrd_vision_grid;

typedef struct nrd_vision_layout {
    int16_t high, wide; /* tiles */
} nrd_vision_layout;

/* Tokens of the prompt that stand around a picture's rows. */
typedef struct nrd_vision_word {
    int32_t n;
    int32_t ids[NRD_VISION_MAX_WORD];
} nrd_vision_word;

/* A picture's tiles by rows, each behind a word of its own, with another one behind each row and behind the last; then the whole behind
 * one, and one that ends it. */
typedef struct nrd_vision_words {
    int32_t side;                                /* tiles on a side that there are words for */
    nrd_vision_word tiles[NRD_VISION_MAX_TILES]; /* [side, side] */
    nrd_vision_word line, last_line, whole, end;
} nrd_vision_words;

/* Learned rows that read a tower's states, in layers of their own (BLIP-2). */
typedef struct nrd_vision_queries {
    int32_t n; /* 0: there are none */
    int32_t hidden, inter, n_heads, n_layers;
    int32_t every; /* of so many layers, from the first on, the first one reads the states */
    float norm_eps;
    nrd_act_kind act;
} nrd_vision_queries;

/* A transformer over the patches of a picture, a square of one size or not (any_size), and what makes rows of the decoder's
 * embeddings of its states: two products, or, with `pool`, a norm, the mean of squares of patches, another norm and one
 * product (Gemma 3), or, with any_size, a norm and two products of squares of patches side by side (Qwen2-VL). */
/* Stages of layers, between which squares of four patches become one of twice the width (Swin). Pages have one size. */
typedef struct nrd_vision_swin {
    int32_t n_stages; /* 0: there are none */
    int32_t depths[NRD_VISION_MAX_STAGES], heads[NRD_VISION_MAX_STAGES];
    int32_t hidden, mlp_ratio; /* of the first stage */
    int32_t window;            /* patches on a side of what they see */
    int32_t height, width;     /* of a page, in patches */
    bool crops, turns;         /* pages lose their margin first; lie as the tower's do */
} nrd_vision_swin;

typedef struct nrd_vision_spec {
    int32_t image_size; /* 0 with any_size */
    int32_t patch_size, hidden, inter, n_heads;
    int32_t n_layers;  /* that are run: layers behind the one whose states are taken are not */
    float norm_eps;
    int32_t projector_inter; /* with post_normed: the width of the gated MLP */
    nrd_act_kind act, projector_act;
    bool has_class;    /* a class token before the patches, a norm before the layers, no bias of patches (CLIP) */
    bool bare_class;   /* with has_class: no norm before the layers, patches have a bias, and what layers add is multiplied by weights of
                        * its numbers, lambda_1 and lambda_2 (InternVL); with queries not */
    nrd_vision_queries queries; /* they are the decoder's rows; q, k and v of the tower's layers are one tensor */
    bool latent;       /* … of an attention of their own, to the tower's states and themselves; states are normed and divided by their length first. A
                        * picture's rows stand between two tokens, the first of which is its place (Kosmos-2) */
    bool resampled;    /* … whose rows lie head by head; queries have no layers, but one attention to the states. Learned positions are a square of
                        * positions_side, spread over the patches, and that of the queries likewise; a norm is before the layers (Qwen-VL) */
    bool skips_first;  /* the first state, CLIP's class token, is not the decoder's */
    bool projector_bias;
    int32_t pool;      /* patches on a side of such a square; 0: two products */
    int32_t shuffle;   /* > 0: so many patches on a side of a square that becomes a row: a norm of their states side by side, two products.
                        * Squares at the right and below may lack patches, whose states are zero then (VILA) */
    bool padded;       /* pictures are put into the middle of a square of the mean colour first */
    bool both_ways;    /* in the decoder, tokens of a picture see all of it */
    bool sees_prompt;  /* … and all tokens of its prompt each other; there is none without a picture (PaliGemma) */
    bool any_size;       /* pictures keep their shape, and come with a grid of their own */
    int32_t merge;       /* with any_size: patches on a side of a square that becomes a row */
    int32_t frames;      /* of a video, that a patch has; a picture is all of them */
    bool takes_videos;   /* with any_size and frames, or with tiled; then frames is 1 */
    nrd_vision_video video;
    int32_t window;      /* squares on a side of what patches see in layers that are not full; 0: all layers are full */
    uint8_t layer_is_full[NRD_SPEC_MAX_LAYERS];
    bool rms_norm, gated;
    bool patch_bias;        /* of any_size */
    bool no_biases;         /* … of its layers and the first product */
    bool apart;             /* … q, k and v of a layer are three tensors */
    bool post_normed;       /* of a fixed size: norms are behind attention and MLP, and not before; q, k and v are one tensor, patches have a bias. A
                             * norm, an activation and a gated MLP follow, or with shuffle first a product of squares of patches; rows stand between
                             * two that are learned, and all but these at one place (CogVLM, CogVLM2) */
    bool pre_norm;          /* … a norm behind the first product; also with resampled */
    bool plain;             /* … squares go through no norm and two products more, or, with merge > 1, a norm of their own, a product
                             * that makes one state of a square, and two more (Pixtral, Mistral 3) */
    bool turns_by_turns;    /* … pairs of columns turn by the frequencies between those of rows */
    bool bare;              /* of any_size: no layers, one product of patches is the decoder's rows; larger pictures are brought into a box of
                             * box_width x box_height pixels, and what is missing of the last patches has the value `padding` (Fuyu) */
    bool seated;            /* with bare: rows and columns of patches have learned states, from 1 on, which are added; a picture becomes as large as
                             * most_patches allow, and its numbers are normed by its own mean and deviation (Pix2Struct) */
    bool alone;             /* rows are read by an encoder that reads nothing else, one picture at a time */
    nrd_vision_swin swin;
    int32_t box_width, box_height;
    uint8_t padding;
    double rope_base;
    float merge_eps;        /* … of the norm before squares are merged, with plain; of that with shuffle */
    bool breaks;            /* each line of a picture's rows ends with a token, break_token, the last one with end_token */
    int32_t break_token, end_token;
    bool one_product;       /* with shuffle: a norm of each state, and one product of squares side by side; it has a bias with
                             * projector_bias, and then states are single (PaliGemma) */
    bool in_steps;          /* with tiles_first: a picture's longer side becomes `longest`, then its sides multiples of the tower's, and the whole
                             * is made of that; each time it is rounded to bytes (Idefics3, SmolVLM) */
    bool splits;            /* … false: there is only the whole */
    bool named;             /* rows stand between `words` */
    nrd_vision_words words; /* side 0: they are not known yet, as in a folder of Hugging Face */
    bool framed;            /* a picture's rows stand between start_token and end_token */
    int32_t start_token;
    int32_t longest;        /* pixels of a side; with any_size, > 0: pictures are brought below it, and filled up to whole squares */
    int32_t positions_side; /* with any_size or resampled: learned positions are a square of so many a side, spread over a picture; 0: none */
    int32_t n_deep;         /* layers of the decoder, from the first on, behind which a row adds something of its own (DeepStack) */
    int32_t deep_layers[NRD_VISION_MAX_DEEP]; /* of the tower, rising, whose states that is made of */
    bool sandwiched;        /* of any_size: heads of q, k and v are normed, and so is what attention and MLP add; there are two tables of
                             * n_positions each, for columns and rows of patches; means of squares of patches are normed and become rows by one
                             * product; pictures become as large as most_patches allow (Gemma 4) */
    int32_t n_positions;
    bool clipped;           /* … numbers that go into products of layers and come out of them have bounds */
    bool standardized;      /* … a bias is taken off the means, and they are scaled */
    bool axes;                      /* tokens of a picture are at places of their own on the axes of M-RoPE, or, with post_normed, of the one axis */
    bool tiled;                     /* the whole of a picture, then its tiles, each row of whose states ends with one that is learned */
    bool tiles_first;               /* with tiled: the rows of one tile after the other, then the whole's; a picture of one tile is its whole */
    bool separated;                 /* with tiled: lines of the tiles' rows, one that is learned, then lines of the whole's; what is learned goes through
                                     * the projector as squares of patches do, which have no norm (Phi-3-vision) */
    bool squares_of_several;        /* … but of several pictures of a prompt only the whole, in the middle of a square */
    int32_t most_tiles;             /* > 0: states of more tiles are shrunk to so many; with separated: there are no more */
    int32_t n_layouts;
    nrd_vision_layout layouts[NRD_VISION_MAX_LAYOUTS];
    bool read_by_layers;    /* rows are no embeddings: the first one is that of the picture's token, and the others are states that layers
                             * of the decoder read (Llama 3.2 Vision). All tiles, most_tiles of them, are seen at once */
    int32_t n_global;       /* with read_by_layers: layers behind the others, with a norm and numbers for each tile in front */
    int32_t n_taken, taken_layers[NRD_VISION_MAX_DEEP]; /* … whose input, beside the last layer's output, is what a state is made of; rising */
    int64_t min_pixels, max_pixels; /* pictures are brought between them */
    int32_t most_patches;           /* of a picture that was */
    int32_t image_token; /* stands for a picture in the prompt */
    nrd_vision_input input;
} nrd_vision_spec;

/* With clipped: the names of a product's bounds, behind its own and a dot. */
extern const char *const nrd_vision_bounds[NRD_VISION_N_BOUNDS];

typedef struct nrd_vision nrd_vision;

/* The tower of config.json; `processor` is preprocessor_config.json or NULL. *out_any false: it is text alone. */
nrd_error *nrd_vision_spec_read(nrd_vision_spec *out, bool *out_any, const nrd_json *config,
                                const nrd_json *processor) NRD_MUST_USE;
int32_t nrd_vision_n_patches(const nrd_vision_spec *s);
int32_t nrd_vision_n_states(const nrd_vision_spec *s); /* of the tower: patches, and a class token */
int32_t nrd_vision_tokens_of(const nrd_vision_spec *s, nrd_vision_grid grid); /* of the prompt: its rows, and breaks */
bool nrd_vision_varies(const nrd_vision_spec *s); /* pictures become as many rows as their sizes give */
int32_t nrd_vision_n_rows(const nrd_vision_spec *s); /* of the decoder's embeddings, that a picture becomes; at most, where it varies */
int32_t nrd_vision_most_tokens(const nrd_vision_spec *s); /* the same with the words around */
int32_t nrd_vision_n_base_rows(const nrd_vision_spec *s); /* … that one run of the tower makes; not with any_size */
int32_t nrd_vision_most_tiles(const nrd_vision_spec *s);
int32_t nrd_vision_rows_of(const nrd_vision_spec *s, nrd_vision_grid grid); /* that one of this grid becomes */
int32_t nrd_vision_frame_side(const nrd_vision_spec *s); /* with takes_videos and tiled: rows on a side of a frame */
int32_t nrd_vision_row_parts(const nrd_vision_spec *s); /* embeddings that a row is: its own, and those behind layers */
/* With any_size: the grid of a picture of so many pixels, once it is brought to the nearest size that the tower takes.
 * INVALID_ARG: its sides differ too much. */
nrd_error *nrd_vision_fit(const nrd_vision_spec *s, int32_t width, int32_t height, nrd_vision_grid *out) NRD_MUST_USE;
/* With takes_videos: the same of one of n_frames. */
nrd_error *nrd_vision_fit_frame(const nrd_vision_spec *s, int32_t n_frames, int32_t width, int32_t height, nrd_vision_grid *out) NRD_MUST_USE;
/* With tiled: the tiles of a picture of so many pixels; alone: the prompt has no other one. */
nrd_error *nrd_vision_tile(const nrd_vision_spec *s, int32_t width, int32_t height, bool alone, nrd_vision_grid *out) NRD_MUST_USE;

/* With read_by_layers. States of a tile with what fills them up to a multiple of 8; the tiles of a picture of so many pixels, and its size
 * in them: what is behind is black. */
int32_t nrd_vision_n_padded(const nrd_vision_spec *s);
void nrd_vision_tile_mllama(const nrd_vision_spec *s, int32_t width, int32_t height, nrd_vision_grid *out);
void nrd_vision_fit_canvas(const nrd_vision_spec *s, const nrd_vision_tiles *t, int32_t width, int32_t height, int32_t *out_width,
                           int32_t *out_height);

/* With separated: the sides that a picture of so many pixels is brought to; it lies on its longer one. */
void nrd_vision_long_size(const nrd_vision_spec *s, int32_t width, int32_t height, int32_t *out_long, int32_t *out_short);
/* With bare: the size that a picture of so many pixels is brought to. */
void nrd_vision_fit_box(const nrd_vision_spec *s, int32_t width, int32_t height, int32_t *out_width, int32_t *out_height);
/* With in_steps: the size that a picture of so many pixels is brought to first. */
void nrd_vision_first_size(const nrd_vision_spec *s, int32_t width, int32_t height, int32_t *out_width, int32_t *out_height);

const char *nrd_vision_file(int i); /* the names of its files, from 0 on; NULL: there are no more */
/* A tensor of a Hugging Face folder with this name is the tower's of such a decoder. */
bool nrd_vision_has(const nrd_model_spec *decoder, const char *name);
/* Writes the tower of a Hugging Face folder, of a checkpoint, or of a GGUF model's other file (mmproj: as nrd_mmproj_find takes it) into a
 * checkpoint's folder or an engine's; removes one that was there where the source has none. */
nrd_error *nrd_vision_write(const nrd_source *src, const char *mmproj, const char *dir) NRD_MUST_USE;
/* *out NULL: the engine's model is text alone. hidden: of the decoder. */
nrd_error *nrd_vision_open(nrd_vision **out, const char *dir, int32_t hidden) NRD_MUST_USE;
bool nrd_vision_is_in(const char *dir); /* something that open would read */
void nrd_vision_close(nrd_vision *v); /* NULL is fine */
const nrd_vision_spec *nrd_vision_get_spec(const nrd_vision *v);
/* By its name in transformers, behind "vision_model." or, as "projector.…", behind "multi_modal_projector."; rows in
 * host memory, a vector is one row. NULL: the tower has no such weight. */
const nrd_weight *nrd_vision_weight(const nrd_vision *v, const char *name);

#endif
