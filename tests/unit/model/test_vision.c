/* SPDX-License-Identifier: Apache-2.0
 * A tower as configurations describe it: what is taken, and what is refused by its name. */
#include "model/vision.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define TOWER "\"vision_config\":{\"model_type\":\"clip_vision_model\",\"image_size\":32,\"patch_size\":6,\"hidden_size\":72," \
              "\"intermediate_size\":90,\"num_attention_heads\":3,\"num_hidden_layers\":4"
#define LLAVA "{\"model_type\":\"llava\",\"image_token_index\":7," TOWER "}"
#define NEXT(more) "{\"model_type\":\"llava_next\",\"vision_config\":{}" more "}"
#define ONEVISION(more) "{\"model_type\":\"llava_onevision\",\"vision_config\":{\"image_size\":384,\"patch_size\":14}" more "}"
#define MISTRAL3(more) "{\"model_type\":\"mistral3\",\"vision_config\":{\"model_type\":\"pixtral\"" more "}}"
#define FUYU(more) "{\"model_type\":\"fuyu\"" more "}"
#define PIX2STRUCT(more) "{\"model_type\":\"pix2struct\",\"text_config\":{},\"vision_config\":{\"hidden_size\":768" more "}}"
#define NOUGAT(more, of_decoder) "{\"model_type\":\"vision-encoder-decoder\",\"decoder\":{\"model_type\":\"mbart\",\"d_model\":1024" of_decoder "}," \
    "\"encoder\":{\"model_type\":\"donut-swin\",\"image_size\":[896,672],\"embed_dim\":128,\"depths\":[2,2,14,2],\"num_heads\":[4,8,16,32]" more "}}"
#define QWEN3(more) "{\"model_type\":\"qwen3_vl\",\"vision_config\":{\"model_type\":\"qwen3_vl\"" more "}}"
#define QWEN(more) "{\"model_type\":\"qwen2_5_vl\",\"vision_config\":{\"hidden_size\":1280" more "}}"
#define PHI3_EMBD(more) "\"embd_layer\":{\"hd_transform_order\":\"sub_glb\",\"projection_cls\":\"mlp\",\"with_learnable_separator\":true" more "}"
#define PHI3(more) "{\"model_type\":\"phi3_v\"," PHI3_EMBD(",\"use_hd_transform\":true") more "}"
#define PROCESSOR "{\"size\":{\"shortest_edge\":32},\"crop_size\":{\"height\":32,\"width\":32}"

static nrd_error *read(const char *config, const char *processor, nrd_vision_spec *out, bool *out_any)
{
    nrd_json_doc *c = NULL, *p = NULL;
    assert_null(nrd_json_parse(&c, config, strlen(config), NULL));
    if (processor) {
        assert_null(nrd_json_parse(&p, processor, strlen(processor), NULL));
    }
    nrd_error *err = nrd_vision_spec_read(out, out_any, nrd_json_root(c), p ? nrd_json_root(p) : NULL);
    nrd_json_doc_free(c);
    nrd_json_doc_free(p);
    return err;
}

static void a_tower_is_read_with_its_defaults(void **state)
{
    nrd_vision_spec s;
    bool any = false;
    (void)state;
    assert_null(read(LLAVA "}", PROCESSOR "}", &s, &any));
    assert_true(any);
    assert_int_equal(s.n_layers, 3); /* the state before the last layer */
    assert_int_equal(nrd_vision_n_patches(&s), 25);
    assert_int_equal(nrd_vision_n_rows(&s), 25);
    assert_int_equal(s.act, NRD_ACT_QUICK_GELU);
    assert_int_equal(s.projector_act, NRD_ACT_GELU_ERF);
    assert_int_equal(s.image_token, 7);
    assert_int_equal(s.input.size, 32);
    assert_int_equal(s.input.filter, 3);
    assert_false(s.input.to_square);
    assert_true(s.input.crop && s.input.normalize && s.input.rescale && s.projector_bias);
    for (int32_t filter = 1; filter <= 3; filter++) {
        char processor[256];
        snprintf(processor, sizeof processor, "%s,\"resample\":%d}", PROCESSOR, filter);
        assert_null(read(LLAVA "}", processor, &s, &any));
        assert_int_equal(s.input.filter, filter);
    }
    assert_null(read(LLAVA ",\"vision_feature_layer\":2,\"vision_feature_select_strategy\":\"full\"}", NULL, &s, &any));
    assert_int_equal(s.n_layers, 2);
    assert_int_equal(nrd_vision_n_rows(&s), 26);
    assert_null(read("{\"model_type\":\"llava\",\"vision_config\":{}}", NULL, &s, &any)); /* LLaVA 1.5 */
    assert_int_equal(s.image_size, 336);
    assert_int_equal(nrd_vision_n_rows(&s), 576);
    assert_int_equal(s.n_layers, 23);
}

static void siglip_has_no_class_token(void **state)
{
    nrd_vision_spec s;
    bool any = false;
    (void)state;
    assert_null(read("{\"model_type\":\"llava\",\"vision_feature_layer\":-1,\"vision_feature_select_strategy\":\"full\",\"vision_config\":{"
                     "\"model_type\":\"siglip_vision_model\"}}", NULL, &s, &any));
    assert_true(any && !s.has_class && !s.both_ways);
    assert_int_equal(s.n_layers, 12);
    assert_int_equal(nrd_vision_n_rows(&s), 196);
    assert_int_equal(s.act, NRD_ACT_GELU_TANH);
    assert_true(s.input.to_square && !s.input.crop && s.input.filter == 3);
    assert_null(read("{\"model_type\":\"llava\",\"vision_config\":{\"model_type\":\"siglip_vision_model\"}}", NULL, &s, &any));
    assert_int_equal(nrd_vision_n_rows(&s), 195); /* the first is left out as if it were one */
}

static void gemma3_pools_squares_of_patches(void **state)
{
    nrd_vision_spec s;
    bool any = false;
    (void)state;
    assert_null(read("{\"model_type\":\"gemma3\",\"vision_config\":{\"image_size\":896,\"patch_size\":14,\"hidden_size\":1152,"
                     "\"num_attention_heads\":16,\"num_hidden_layers\":27,\"intermediate_size\":4304}}",
                     "{\"size\":{\"height\":896,\"width\":896},\"do_pan_and_scan\":null}", &s, &any));
    assert_true(any && s.both_ways && !s.has_class);
    assert_int_equal(s.pool, 4);
    assert_int_equal(s.n_layers, 27);
    assert_int_equal(nrd_vision_n_states(&s), 4096);
    assert_int_equal(nrd_vision_n_rows(&s), 256);
    assert_int_equal(s.image_token, 262144);
    assert_true(s.input.to_square && !s.input.crop && s.input.filter == 2);
    any = true;
    assert_null(read("{\"model_type\":\"gemma3\"}", NULL, &s, &any));
    assert_false(any);
}

#define PALIGEMMA(v, text) "{\"model_type\":\"paligemma\",\"image_token_index\":257152,\"vision_config\":{\"hidden_size\":1152,\"intermediate_size\":4304," \
    "\"num_attention_heads\":16,\"num_hidden_layers\":27,\"patch_size\":14" v "},\"text_config\":{\"model_type\":\"gemma\"" text "}}"

static void prompts_of_paligemma_see_themselves(void **state)
{
    nrd_vision_spec s;
    bool any = false;
    (void)state;
    assert_null(read(PALIGEMMA("", ""), "{\"size\":{\"height\":224,\"width\":224},\"resample\":3}", &s, &any));
    assert_true(any && s.both_ways && s.sees_prompt && s.one_product && s.projector_bias && !s.has_class);
    assert_int_equal(s.n_layers, 27);
    assert_int_equal(nrd_vision_n_rows(&s), 256);
    assert_int_equal(s.image_token, 257152);
    assert_int_equal(s.act, NRD_ACT_GELU_TANH);
    assert_true(s.input.to_square && !s.input.crop && s.input.filter == 3);
}

static void qwen_keeps_the_shape_of_pictures(void **state)
{
    nrd_vision_spec s;
    bool any = false;
    (void)state;
    assert_null(read("{\"model_type\":\"qwen2_vl\",\"vision_config\":{\"hidden_size\":1536,\"in_chans\":3,\"model_type\":\"qwen2_vl\"}}",
                     "{\"min_pixels\":3136,\"max_pixels\":12845056,\"merge_size\":2,\"patch_size\":14}", &s, &any));
    assert_true(any && s.any_size && !s.both_ways && !s.rms_norm && !s.gated);
    assert_int_equal(s.n_layers, 32);
    assert_int_equal(s.hidden, 1280);
    assert_int_equal(s.inter, 5120);
    assert_int_equal(s.window, 0);
    assert_int_equal(s.frames, 2);
    assert_int_equal(s.act, NRD_ACT_QUICK_GELU);
    assert_int_equal(s.image_token, 151655);
    assert_int_equal(s.min_pixels, 3136);
    assert_int_equal(s.max_pixels, NRD_VISION_MAX_PATCHES * 14 * 14); /* the file's is more than there is memory for */
    assert_int_equal(nrd_vision_n_patches(&s), NRD_VISION_MAX_PATCHES);
    assert_int_equal(nrd_vision_n_rows(&s), NRD_VISION_MAX_PATCHES / 4);
    assert_null(read(QWEN(""), "{\"size\":{\"shortest_edge\":784,\"longest_edge\":78400}}", &s, &any));
    assert_true(any && s.any_size && s.rms_norm && s.gated);
    assert_int_equal(s.window, 4);
    assert_int_equal(s.act, NRD_ACT_SILU);
    assert_int_equal(s.inter, 3420);
    for (int32_t i = 0; i < 32; i++) {
        assert_int_equal(s.layer_is_full[i], i % 8 == 7);
    }
    assert_int_equal(s.max_pixels, 78400);
}

static void pixtral_fills_up_to_whole_squares(void **state)
{
    nrd_vision_spec s;
    nrd_vision_grid g;
    bool any = false;
    (void)state;
    assert_null(read(MISTRAL3(""), "{\"size\":{\"longest_edge\":1540},\"patch_size\":{\"height\":14,\"width\":14}}", &s, &any));
    assert_true(any && s.any_size && s.breaks && !s.axes && !s.projector_bias);
    assert_int_equal(s.merge, 2);
    assert_int_equal(s.image_token, 10);
    assert_int_equal(s.break_token, 12);
    assert_int_equal(s.end_token, 13);
    assert_int_equal(s.most_patches, 110 * 110);
    assert_null(nrd_vision_fit(&s, 1000, 29, &g)); /* 36 x 2 squares */
    assert_true(g.width == 72 && g.height == 4);
    assert_int_equal(nrd_vision_rows_of(&s, g), 72);
    assert_int_equal(nrd_vision_tokens_of(&s, g), 74);
    assert_null(nrd_vision_fit(&s, 3080, 1001, &g)); /* 1540 x 500 */
    assert_true(g.width == 110 && g.height == 36);
    assert_null(read("{\"model_type\":\"llava\",\"vision_config\":{\"model_type\":\"pixtral\"}}", NULL, &s, &any));
    assert_true(any && s.merge == 1 && s.patch_size == 16 && s.longest == 1024);
}

static void fuyu_brings_pictures_into_a_box(void **state)
{
    nrd_vision_spec s;
    nrd_vision_grid g;
    bool any = false;
    (void)state;
    assert_null(read(FUYU(""), "{\"image_mean\":0.4,\"image_std\":0.5,\"padding_value\":1.0,\"patch_size\":{\"height\":30,\"width\":30}}", &s, &any));
    assert_true(any && s.any_size && s.bare && s.breaks && s.n_layers == 0 && s.padding == 1);
    assert_true(s.input.mean[2] > 0.39f && s.input.mean[2] < 0.41f && s.input.filter == 2);
    assert_int_equal(s.image_token, 71011);
    assert_true(s.break_token == 71019 && s.end_token == 71019);
    assert_int_equal(nrd_vision_n_rows(&s), 64 * 36);
    assert_null(nrd_vision_fit(&s, 640, 480, &g)); /* never larger */
    assert_true(g.width == 22 && g.height == 16);
    assert_int_equal(nrd_vision_tokens_of(&s, g), 23 * 16);
    assert_null(nrd_vision_fit(&s, 4000, 3000, &g)); /* 1440 x 1080 */
    assert_true(g.width == 48 && g.height == 36);
}

static void pix2struct_makes_pictures_as_large_as_may_be(void **state)
{
    nrd_vision_spec s;
    nrd_vision_grid g;
    bool any = false;
    (void)state;
    assert_null(read(PIX2STRUCT(""), "{\"max_patches\":2048,\"patch_size\":{\"height\":16,\"width\":16}}", &s, &any));
    assert_true(any && s.bare && s.seated && !s.breaks && s.patch_size == 16 && s.image_token == 0);
    assert_int_equal(nrd_vision_n_rows(&s), 2048);
    assert_null(nrd_vision_fit(&s, 640, 480, &g));
    assert_true(g.width == 52 && g.height == 39);
    assert_null(nrd_vision_fit(&s, 9000, 1, &g)); /* one row */
    assert_true(g.width == 2048 && g.height == 1);
}

static void pages_of_swin_have_one_size(void **state)
{
    nrd_vision_spec s;
    nrd_vision_grid g;
    bool any = false;
    (void)state;
    assert_null(read(NOUGAT("", ""), "{\"image_processor_type\":\"NougatImageProcessor\",\"size\":{\"height\":896,\"width\":672}}", &s, &any));
    assert_true(any && s.any_size && s.alone && s.swin.n_stages == 4 && s.swin.crops && !s.swin.turns && s.image_token == 1);
    assert_true(s.hidden == 1024 && s.merge == 8 && s.input.filter == 2);
    assert_int_equal(nrd_vision_n_rows(&s), 588);
    assert_null(nrd_vision_fit(&s, 1, 9000, &g));
    assert_true(g.height == 224 && g.width == 168);
    assert_null(read(NOUGAT("", ""), "{\"image_processor_type\":\"DonutImageProcessor\",\"size\":[672,896],\"do_align_long_axis\":true}", &s, &any));
    assert_true(!s.swin.crops && s.swin.turns);
}

/* Rows as transformers' processors count them. */
static void pictures_are_cut_into_tiles(void **state)
{
    static const struct {
        const char *config;
        int32_t width, height, high, wide, rows;
    } rows[] = {
        {NEXT(""), 640, 480, 2, 2, 2340}, {NEXT(""), 1000, 300, 1, 3, 2182}, {NEXT(""), 300, 1000, 3, 1, 2232},
        {NEXT(""), 64, 64, 1, 2, 1176}, {ONEVISION(""), 384, 384, 1, 1, 1485}, {ONEVISION(""), 1920, 1080, 3, 5, 7269},
    };
    nrd_vision_spec s;
    nrd_vision_grid g;
    bool any = false;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_null(read(rows[i].config, NULL, &s, &any));
        assert_true(any && s.tiled && nrd_vision_varies(&s));
        assert_null(nrd_vision_tile(&s, rows[i].width, rows[i].height, true, &g));
        if (g.tiles.high != rows[i].high || g.tiles.wide != rows[i].wide || nrd_vision_rows_of(&s, g) != rows[i].rows) {
            fail_msg("%zu: %d x %d tiles, %d rows", i, g.tiles.high, g.tiles.wide, nrd_vision_rows_of(&s, g));
        }
    }
    assert_null(nrd_vision_tile(&s, 1920, 1080, false, &g));
    assert_int_equal(g.tiles.high, 0);
    assert_int_equal(nrd_vision_rows_of(&s, g), 730);
    assert_int_equal(s.image_token, 151646);
}

/* Their own processor's, or the pictures', which may be smaller than videos usually are. */
static void frames_of_videos_have_bounds(void **state)
{
    nrd_vision_spec s;
    bool any = false;
    (void)state;
    assert_null(read(QWEN(""), "{\"max_pixels\":50176}", &s, &any));
    assert_true(s.takes_videos && !s.video.apart);
    assert_int_equal(s.video.min_pixels, 50176);
    assert_int_equal(s.video.max_pixels, 50176);
    assert_null(read(QWEN(""), "{\"max_pixels\":50176,\"video_processor\":{\"size\":{\"shortest_edge\":784,\"longest_edge\":78400}}}", &s, &any));
    assert_int_equal(s.max_pixels, 50176);
    assert_int_equal(s.video.min_pixels, 784);
    assert_int_equal(s.video.max_pixels, 78400);
    assert_null(read(QWEN3(""), NULL, &s, &any));
    assert_true(s.takes_videos && s.video.apart);
    assert_int_equal(s.video.token, 151656);
    nrd_error *err = read(QWEN(""), "{\"video_processor\":{\"min_pixels\":9000,\"max_pixels\":8000}}", &s, &any);
    assert_non_null(err);
    assert_non_null(strstr(nrd_error_message(err), "video_preprocessor_config: 'min_pixels' is 9000"));
    nrd_error_free(err);
}

#define QWEN3_5(more) "{\"model_type\":\"qwen3_5\",\"vision_config\":{\"model_type\":\"qwen3_5_vision\"" more "}}"

static void qwen3_5_has_the_tower_without_rows_for_layers(void **state)
{
    nrd_vision_spec s;
    bool any = false;
    (void)state;
    assert_null(read(QWEN3_5(""), NULL, &s, &any));
    assert_true(any && s.any_size && s.axes && s.patch_bias);
    assert_int_equal(s.n_deep, 0);
    assert_int_equal(nrd_vision_row_parts(&s), 1);
    assert_int_equal(s.hidden, 1152);
    assert_int_equal(s.n_layers, 27);
    assert_int_equal(s.positions_side, 48);
    assert_int_equal(s.image_token, 248056);
}

#define BLIP2(more) "{\"model_type\":\"blip-2\",\"image_token_index\":50265,\"vision_config\":{},\"qformer_config\":{}" more "}"

/* Where configurations say nothing, as those of the published models do. */
static void queries_read_what_the_tower_of_blip2_sees(void **state)
{
    nrd_vision_spec s;
    bool any = false;
    (void)state;
    assert_null(read(BLIP2(""), NULL, &s, &any));
    assert_true(any && s.bare_class && s.input.to_square && !s.input.crop && !nrd_vision_varies(&s));
    assert_int_equal(s.hidden, 1408);
    assert_int_equal(s.n_layers, 39);
    assert_int_equal(nrd_vision_n_states(&s), 257);
    assert_int_equal(nrd_vision_n_rows(&s), 32);
    assert_int_equal(s.queries.hidden, 768);
    assert_int_equal(s.queries.every, 2);
    assert_int_equal(s.image_token, 50265);
}

#define QWEN_VL(more) "{\"model_type\":\"qwen\",\"visual\":{\"width\":1664" more "}}"

/* As the published model has it. */
static void queries_read_what_the_tower_of_qwen_vl_sees(void **state)
{
    nrd_vision_spec s;
    bool any = false;
    (void)state;
    assert_null(read(QWEN_VL(",\"mlp_ratio\":4.9231"), NULL, &s, &any));
    assert_true(any && s.resampled && s.pre_norm && s.input.to_square && !s.input.crop && !nrd_vision_varies(&s));
    assert_int_equal(s.inter, 8192);
    assert_int_equal(nrd_vision_n_states(&s), 1024);
    assert_int_equal(nrd_vision_n_rows(&s), 256);
    assert_int_equal(s.queries.n_heads, 32);
    assert_int_equal(s.image_token, 151859);
    assert_int_equal((int)(s.input.mean[0] * 1000), 481);
    assert_null(read("{\"model_type\":\"qwen\"}", NULL, &s, &any));
    assert_false(any);
}

#define COGVLM(more, vision) "{\"architectures\":[\"CogVLMForCausalLM\"]," more "\"vision_config\":{" vision "}}"

/* As the published models have them: rows of patches, or of 2 x 2, between two that are learned. */
static void rows_of_cogvlm_stand_between_two(void **state)
{
    nrd_vision_spec s;
    bool any = false;
    (void)state;
    assert_null(read(COGVLM("\"pad_token_id\":0,", "\"num_heads\":16"), NULL, &s, &any));
    assert_true(any && s.post_normed && s.axes && s.input.to_square && !nrd_vision_varies(&s));
    assert_int_equal(s.hidden, 1792);
    assert_int_equal(s.n_layers, 63);
    assert_int_equal(nrd_vision_n_rows(&s), 1227);
    assert_int_equal(s.image_token, 0);
    assert_null(read(COGVLM("\"num_multi_query_heads\":8,\"pad_token_id\":128002,", "\"image_size\":1344"), NULL, &s, &any));
    assert_int_equal(s.shuffle, 2);
    assert_int_equal(nrd_vision_n_rows(&s), 2306);
    assert_int_equal(s.image_token, 128002);
}

#define KOSMOS2(more) "{\"model_type\":\"kosmos-2\"" more "}"

/* As the published model has it: a picture's first token is its place. */
static void queries_of_kosmos2_stand_between_two_tokens(void **state)
{
    nrd_vision_spec s;
    bool any = false;
    (void)state;
    assert_null(read(KOSMOS2(",\"vision_config\":{},\"text_config\":{}"), NULL, &s, &any));
    assert_true(any && s.latent && s.framed && s.input.crop && !s.input.to_square && !nrd_vision_varies(&s));
    assert_int_equal(nrd_vision_n_states(&s), 257);
    assert_int_equal(nrd_vision_n_rows(&s), 64);
    assert_int_equal(nrd_vision_tokens_of(&s, (nrd_vision_grid){0}), 66);
    assert_int_equal(s.queries.n_heads, 32);
    assert_int_equal(s.image_token, 64003);
    assert_null(read(KOSMOS2(",\"image_start_token_id\":7,\"image_end_token_id\":9"), NULL, &s, &any));
    assert_int_equal(s.image_token, 7);
    assert_int_equal(s.end_token, 9);
}

#define SMOLVLM(more) "{\"model_type\":\"smolvlm\",\"scale_factor\":3,\"vision_config\":{\"image_size\":384,\"patch_size\":14}" more "}"
#define SMOLVLM_PROCESSOR(more) "{\"size\":{\"longest_edge\":1536},\"max_image_size\":{\"longest_edge\":384}" more "}"
#define TILES16 "[1],[2],[3],[4],[5],[6],[7],[8],[9],[10],[11],[12],[13],[14],[15],[16,17]"
#define WORDS(tiles, end) ",\"image_words\":{\"tiles\":[" tiles "],\"line\":[1],\"last_line\":[1,1],\"whole\":[9,8],\"end\":" end "}"

/* Sizes and tiles as the processor of transformers has them. */
static void phi3_lays_pictures_on_their_longer_side(void **state)
{
    static const struct {
        int32_t width, height, to_long, to_short, high, wide, tokens;
    } rows[] = {
        {640, 480, 4 * 336, 1008, 3, 4, 13 * 144 + 1 + 4 * 12},   {480, 640, 4 * 336, 1008, 4, 3, 13 * 144 + 1 + 5 * 12},
        {1344, 1344, 4 * 336, 1344, 4, 4, 17 * 144 + 1 + 5 * 12}, {9, 7, 4 * 336, 1045, 4, 4, 17 * 144 + 1 + 5 * 12},
        {1000, 40, 16 * 336, 215, 1, 16, 17 * 144 + 1 + 2 * 12},  {40, 1000, 16 * 336, 215, 16, 1, 17 * 144 + 1 + 17 * 12},
    };
    nrd_vision_spec s;
    nrd_vision_grid g;
    bool any = false;
    (void)state;
    assert_null(read(PHI3(""), "{\"num_crops\":16}", &s, &any));
    assert_true(any && s.separated && s.has_class && s.skips_first);
    assert_int_equal(s.hidden, 1024);
    assert_int_equal(s.n_layers, 23);
    assert_int_equal(s.input.filter, 2);
    assert_int_equal(s.image_token, 32044);
    assert_int_equal(nrd_vision_n_base_rows(&s), 144);
    assert_int_equal(nrd_vision_n_rows(&s), 17 * 144 + 1 + 17 * 12);
    assert_int_equal(nrd_vision_most_tiles(&s), 16);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int32_t to_long, to_short;
        nrd_vision_long_size(&s, rows[i].width, rows[i].height, &to_long, &to_short);
        assert_null(nrd_vision_tile(&s, rows[i].width, rows[i].height, true, &g));
        if (to_long != rows[i].to_long || to_short != rows[i].to_short || g.tiles.high != rows[i].high || g.tiles.wide != rows[i].wide ||
            nrd_vision_tokens_of(&s, g) != rows[i].tokens) {
            fail_msg("%zu: %d and %d pixels, %d x %d tiles, %d tokens", i, to_long, to_short, g.tiles.high, g.tiles.wide,
                     nrd_vision_tokens_of(&s, g));
        }
    }
    nrd_error *err = nrd_vision_tile(&s, 6000, 1, true, &g);
    assert_non_null(err);
    assert_non_null(strstr(nrd_error_message(err), "6000 x 1 pixels is nothing once its longer side is 5376"));
    nrd_error_free(err);
}

static void smolvlm_brings_pictures_to_tiles_in_steps(void **state)
{
    static const struct {
        int32_t width, height, first_width, first_height, high, wide, tokens;
    } rows[] = {
        {640, 480, 1536, 1152, 3, 4, 13 * 81 + 12 + 2 + 2 + 3},   {480, 640, 1152, 1536, 4, 3, 13 * 81 + 12 + 3 + 2 + 3},
        {1536, 1536, 1536, 1536, 4, 4, 17 * 81 + 17 + 3 + 2 + 3}, {16384, 1, 1536, 1, 1, 4, 5 * 81 + 4 + 2 + 3},
        {1000, 333, 1536, 512, 2, 4, 9 * 81 + 8 + 1 + 2 + 3},     {9, 13, 1064, 1536, 4, 3, 13 * 81 + 12 + 3 + 2 + 3},
    };
    nrd_vision_spec s;
    nrd_vision_grid g;
    bool any = false;
    (void)state;
    assert_null(read(SMOLVLM(WORDS(TILES16, "[9]")), SMOLVLM_PROCESSOR(""), &s, &any));
    assert_true(any && s.one_product && s.named && !s.has_class);
    assert_int_equal(s.hidden, 1152);
    assert_int_equal(s.n_layers, 12);
    assert_int_equal(s.input.filter, 1);
    assert_int_equal(s.image_token, 128257);
    assert_int_equal(nrd_vision_n_base_rows(&s), 81);
    assert_int_equal(nrd_vision_n_rows(&s), 17 * 81);
    assert_int_equal(nrd_vision_most_tokens(&s), 17 * 81 + 17 + 3 + 2 + 3);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int32_t width, height;
        nrd_vision_first_size(&s, rows[i].width, rows[i].height, &width, &height);
        assert_null(nrd_vision_tile(&s, rows[i].width, rows[i].height, true, &g));
        if (width != rows[i].first_width || height != rows[i].first_height || g.tiles.high != rows[i].high ||
            g.tiles.wide != rows[i].wide || nrd_vision_tokens_of(&s, g) != rows[i].tokens) {
            fail_msg("%zu: %d x %d pixels, %d x %d tiles, %d tokens", i, width, height, g.tiles.high, g.tiles.wide,
                     nrd_vision_tokens_of(&s, g));
        }
    }
    assert_null(read(SMOLVLM(""), SMOLVLM_PROCESSOR(",\"do_image_splitting\":false"), &s, &any));
    assert_null(nrd_vision_tile(&s, 640, 480, true, &g));
    assert_int_equal(nrd_vision_rows_of(&s, g), 81);
    assert_int_equal(nrd_vision_n_rows(&s), 81);
}

static void qwen3_has_positions_and_rows_for_layers(void **state)
{
    static const int32_t deep[] = {8, 16, 24};
    nrd_vision_spec s;
    bool any = false;
    (void)state;
    assert_null(read(QWEN3(""), "{\"size\":{\"shortest_edge\":65536,\"longest_edge\":16777216},\"patch_size\":16}", &s, &any));
    assert_true(any && s.any_size && s.patch_bias && !s.rms_norm && !s.gated);
    assert_int_equal(s.hidden, 1152);
    assert_int_equal(s.n_layers, 27);
    assert_int_equal(s.inter, 4304);
    assert_int_equal(s.positions_side, 48);
    assert_int_equal(s.act, NRD_ACT_GELU_TANH);
    assert_int_equal(s.min_pixels, 65536);
    assert_int_equal(nrd_vision_row_parts(&s), 4);
    assert_memory_equal(s.deep_layers, deep, sizeof deep);
    assert_null(read(QWEN3(",\"depth\":6,\"deepstack_visual_indexes\":[]"), NULL, &s, &any));
    assert_int_equal(nrd_vision_row_parts(&s), 1);
}

/* Sizes as transformers' smart_resize gives them. */
static void pictures_are_fitted_as_the_processor_does(void **state)
{
    static const struct {
        int32_t width, height, grid_width, grid_height;
    } rows[] = {
        {45, 37, 4, 2},     {41, 64, 2, 4},   {800, 600, 22, 16}, {280, 280, 20, 20}, {281, 280, 20, 20}, {42, 70, 4, 4},
        {126, 98, 8, 8},    {1, 1, 2, 2},     {10, 28, 2, 4},     {5600, 28, 282, 2}, {20, 4000, 2, 282},
    };
    nrd_vision_spec s;
    nrd_vision_grid grid;
    bool any = false;
    (void)state;
    assert_null(read(QWEN(""), "{\"min_pixels\":784,\"max_pixels\":78400}", &s, &any));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_null(nrd_vision_fit(&s, rows[i].width, rows[i].height, &grid));
        if (grid.width != rows[i].grid_width || grid.height != rows[i].grid_height) {
            fail_msg("%d x %d: %d x %d patches, expected %d x %d", rows[i].width, rows[i].height, grid.width, grid.height,
                     rows[i].grid_width, rows[i].grid_height);
        }
    }
    nrd_error *err = nrd_vision_fit(&s, 201, 1, &grid);
    assert_non_null(strstr(nrd_error_message(err), "201 x 1 pixels; one side may be 200 times the other"));
    nrd_error_free(err);
    assert_null(nrd_vision_fit(&s, 200, 1, &grid));
}

static void text_alone_has_no_tower(void **state)
{
    nrd_vision_spec s;
    bool any = true;
    (void)state;
    assert_null(read("{\"model_type\":\"llama\"}", NULL, &s, &any));
    assert_false(any);
    any = true;
    assert_null(read("{\"model_type\":\"llava\"}", NULL, &s, &any));
    assert_false(any);
}

#define INTERN(more) "{\"model_type\":\"internvl\",\"vision_config\":{\"attention_bias\":true" more "}}"
#define MLLAMA(more) "{\"model_type\":\"mllama\",\"vision_config\":{\"image_size\":560" more "}}"
#define MLLAMA_PROCESSOR(more) "{\"size\":{\"height\":560,\"width\":560}" more "}"
/* The tiles of a picture and its size in them, as MllamaImageProcessor of transformers has them. */
static void a_canvas_is_chosen_by_its_scale(void **state)
{
    static const int32_t rows[][6] = { /* picture, tiles (high, wide), picture in them */
        {400, 300, 1, 1, 560, 420}, {560, 560, 1, 1, 560, 560}, {561, 560, 1, 2, 561, 560}, {1000, 900, 2, 2, 1000, 900}, {3000, 500, 1, 4, 2240, 373},
        {500, 3000, 4, 1, 373, 2240}, {4000, 3000, 2, 2, 1120, 840}, {10, 2000, 4, 1, 10, 2000}, {1, 9, 1, 1, 62, 560}, {1700, 100, 1, 4, 1700, 100}};
    nrd_vision_spec s;
    bool any = false;

    (void)state;
    assert_null(read(MLLAMA(""), MLLAMA_PROCESSOR(""), &s, &any));
    assert_true(any);
    assert_int_equal(nrd_vision_n_rows(&s), 1 + 4 * 1601);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        nrd_vision_grid g;
        int32_t width, height;
        nrd_vision_tile_mllama(&s, rows[i][0], rows[i][1], &g);
        nrd_vision_fit_canvas(&s, &g.tiles, rows[i][0], rows[i][1], &width, &height);
        assert_int_equal(g.tiles.high, rows[i][2]);
        assert_int_equal(g.tiles.wide, rows[i][3]);
        assert_int_equal(width, rows[i][4]);
        assert_int_equal(height, rows[i][5]);
        assert_int_equal(nrd_vision_rows_of(&s, g), 1 + rows[i][2] * rows[i][3] * 1601);
        assert_int_equal(nrd_vision_tokens_of(&s, g), 1);
    }
}

#define VILA(more) \
    "{\"model_type\":\"llava_llama\",\"llm_cfg\":{\"model_type\":\"llama\"},\"mm_vision_select_feature\":\"cls_patch\",\"vision_tower_cfg\":" \
    "{\"model_type\":\"siglip_vision_model\",\"image_size\":384,\"patch_size\":14,\"num_hidden_layers\":27}" more "}"
#define SQUARES384 "{\"size\":{\"height\":384,\"width\":384}}"

/* 27 patches on a side are 14 squares of 2, some of which lack patches. */
static void squares_of_vila_may_lack_patches(void **state)
{
    nrd_vision_spec s;
    bool any = false;
    (void)state;
    assert_null(read(VILA(",\"image_aspect_ratio\":\"resize\",\"image_token_index\":32000"), SQUARES384, &s, &any));
    assert_true(any && !s.has_class && !s.skips_first && !s.padded && s.input.to_square && !nrd_vision_varies(&s));
    assert_int_equal(s.n_layers, 26);
    assert_int_equal(nrd_vision_n_states(&s), 729);
    assert_int_equal(nrd_vision_n_rows(&s), 196);
    assert_int_equal(s.image_token, 32000);
    assert_null(read(VILA(",\"image_aspect_ratio\":\"pad\""), SQUARES384, &s, &any));
    assert_true(s.padded);
}

#define GEMMA4(more) "{\"model_type\":\"gemma4\",\"text_config\":{\"use_bidirectional_attention\":\"vision\"},\"vision_config\":{" more "}}"

/* Sizes as the processor of transformers has them. */
static void pictures_of_gemma4_are_as_large_as_their_tokens_allow(void **state)
{
    static const int32_t rows[][5] = { /* picture, patches (high, wide), tokens with what stands around them */
        {640, 480, 42, 57, 268}, {480, 640, 57, 42, 268},    {1000, 40, 9, 249, 251},  {40, 1000, 249, 9, 251}, {9, 7, 42, 54, 254},
        {4000, 3000, 42, 57, 268}, {3000, 20, 3, 612, 206}, {7000, 3, 3, 840, 282}, {1, 600, 840, 3, 282}};
    nrd_vision_spec s;
    nrd_vision_grid g;
    bool any = false;
    (void)state;
    assert_null(read(GEMMA4(""), NULL, &s, &any));
    assert_true(any && s.any_size && s.sandwiched && s.both_ways && s.framed && !s.standardized);
    assert_int_equal(nrd_vision_n_rows(&s), 280);
    assert_int_equal(s.image_token, 258880);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_null(nrd_vision_fit(&s, rows[i][0], rows[i][1], &g));
        if (g.height != rows[i][2] || g.width != rows[i][3] || nrd_vision_tokens_of(&s, g) != rows[i][4]) {
            fail_msg("%zu: %d x %d patches, %d tokens", i, g.height, g.width, nrd_vision_tokens_of(&s, g));
        }
    }
    assert_null(read(GEMMA4(""), "{\"max_soft_tokens\":1}", &s, &any));
    assert_null(nrd_vision_fit(&s, 640, 480, &g));
    assert_true(g.height == 3 && g.width == 3);
}

/* A configuration, with its image processor or NULL, and a part of the message that refuses it. */
typedef struct refusal {
    const char *config, *processor, *part;
} refusal;

static void check_refused(const refusal *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        nrd_vision_spec s;
        bool any = false;
        nrd_error *err = read(rows[i].config, rows[i].processor, &s, &any);
        if (!err || !strstr(nrd_error_message(err), rows[i].part)) {
            fail_msg("row %zu: '%s', expected '%s'", i, err ? nrd_error_message(err) : "no error", rows[i].part);
        }
        nrd_error_free(err);
    }
}

static void towers_of_squares_are_refused_by_the_wrong_field(void **state)
{
    static const refusal rows[] = {
        {PALIGEMMA(",\"model_type\":\"clip_vision_model\"", ""), NULL, "model_type 'clip_vision_model'"},
        {PALIGEMMA(",\"image_size\":-1", ""), NULL, "'image_size' must be between"},
        {PALIGEMMA("", ",\"use_bidirectional_attention\":false"), NULL, "'use_bidirectional_attention' false"},
        {PALIGEMMA("", ""), "{\"size\":{\"height\":448,\"width\":448}}", "not the tower's 224 x 224"},
        {COGVLM("\"num_multi_query_heads\":8,", ""), NULL, "35 patches on a side, expected an even number"},
        {COGVLM("\"pad_token_id\":-1,", ""), NULL, "'pad_token_id' must be between 0"},
        {COGVLM("\"intermediate_size\":0,", ""), NULL, "'intermediate_size' must be between 1"},
        {COGVLM("", "\"num_heads\":15"), NULL, "must be a multiple of"},
        {KOSMOS2(",\"latent_query_num\":300"), NULL, "'latent_query_num' must be between 1 and 257"},
        {KOSMOS2(",\"text_config\":{\"attention_heads\":3}"), NULL, "text_config: 'hidden_size' (2048) must be a multiple"},
        {QWEN_VL(",\"mlp_ratio\":0"), NULL, "'mlp_ratio' is 0, expected an MLP of 1 to"},
        {QWEN_VL(",\"heads\":3"), NULL, "visual: 'hidden_size' (1664) must be a multiple"},
        {QWEN_VL(",\"n_queries\":50"), NULL, "'n_queries' is 50, expected a square"},
        {QWEN_VL(",\"n_queries\":1025"), NULL, "'n_queries' must be between 1 and 1024"},
        {QWEN_VL(",\"output_dim\":100"), NULL, "'output_dim' must be between 128"},
        {LLAVA ",\"vision_feature_layer\":[-2,-5]}", NULL, "vision_feature_layer"},
        {LLAVA ",\"vision_feature_layer\":0}", NULL, "vision_feature_layer"},
        {LLAVA ",\"vision_feature_layer\":5}", NULL, "vision_feature_layer"},
        {LLAVA ",\"vision_feature_select_strategy\":\"some\"}", NULL, "vision_feature_select_strategy"},
        {LLAVA ",\"projector_hidden_act\":\"swiglu\"}", NULL, "projector_hidden_act"},
        {"{\"model_type\":\"llava\",\"vision_config\":{\"model_type\":\"vit\"}}", NULL, "'vit' is not supported"},
        {"{\"model_type\":\"llava\",\"image_token_index\":-1,\"vision_config\":{}}", NULL, "image_token_index"},
        {"{\"model_type\":\"llava\",\"vision_config\":{\"image_size\":5000}}", NULL, "image_size"},
        {"{\"model_type\":\"llava\",\"vision_config\":{\"patch_size\":0}}", NULL, "patch_size"},
        {"{\"model_type\":\"llava\",\"vision_config\":{\"patch_size\":1}}", NULL, "image_size, in patches"},
        {"{\"model_type\":\"llava\",\"vision_config\":{\"num_attention_heads\":7}}", NULL, "num_attention_heads"},
        {"{\"model_type\":\"llava\",\"vision_config\":{\"num_channels\":1}}", NULL, "num_channels"},
        {"{\"model_type\":\"gemma3\",\"vision_config\":{\"model_type\":\"clip_vision_model\"}}", NULL, "clip_vision_model"},
        {"{\"model_type\":\"gemma3\",\"vision_config\":{\"image_size\":896,\"patch_size\":14},\"mm_tokens_per_image\":255}", NULL,
         "mm_tokens_per_image"},
        {"{\"model_type\":\"gemma3\",\"vision_config\":{\"image_size\":896,\"patch_size\":14},\"mm_tokens_per_image\":9}", NULL,
         "mm_tokens_per_image"},
        {"{\"model_type\":\"gemma3\",\"vision_config\":{\"image_size\":896,\"patch_size\":14}}", "{\"do_pan_and_scan\":true}",
         "do_pan_and_scan"},
        {"{\"model_type\":\"llava\",\"vision_config\":{\"model_type\":\"siglip_vision_model\",\"patch_size\":224}}", NULL,
         "vision_feature_select_strategy"},
        {"{\"model_type\":\"blip-2\",\"vision_config\":{}}", NULL, "no 'image_token_index'"},
        {BLIP2(",\"num_query_tokens\":258"), NULL, "'num_query_tokens' must be between 1 and 257"},
        {BLIP2(""), "{\"size\":{\"height\":384,\"width\":384}}", "not the tower's 224 x 224 pixels"},
        {"{\"model_type\":\"blip-2\",\"vision_config\":{\"qkv_bias\":false}}", NULL, "'qkv_bias' must be true"},
        {"{\"model_type\":\"blip-2\",\"vision_config\":{},\"qformer_config\":{\"use_qformer_text_input\":true}}", NULL, "queries that read the text"},
        {"{\"model_type\":\"blip-2\",\"vision_config\":{},\"qformer_config\":{\"num_attention_heads\":7}}", NULL, "qformer_config: 'hidden_size' (768)"},
        {VILA(",\"image_aspect_ratio\":\"dynamic\""), SQUARES384, "'image_aspect_ratio' must be resize, pad or square, got 'dynamic'"},
        {VILA(",\"s2\":true"), SQUARES384, "'s2', pictures that are seen in several sizes"},
        {VILA(",\"image_encoder\":{}"), SQUARES384, "'image_encoder' (NVILA) is not supported"},
        {VILA(",\"vision_resolution\":448"), SQUARES384, "'vision_resolution' is 448, and the tower's pictures have 384"},
        {VILA(",\"mm_vision_select_layer\":0"), SQUARES384, "'mm_vision_select_layer' is 0"},
        {VILA(""), "{\"size\":{\"height\":224,\"width\":224}}", "not the tower's 384 x 384 pixels"},
        {"{\"model_type\":\"llava_llama\",\"llm_cfg\":{},\"vision_tower_cfg\":{\"model_type\":\"intern_vit_6b\"}}", NULL,
         "vision_tower_cfg: model_type 'intern_vit_6b' is not supported; known: clip_vision_model, "},
        {"{\"model_type\":\"llava_llama\",\"llm_cfg\":{},\"vision_tower_cfg\":{\"model_type\":\"clip_vision_model\"},"
         "\"mm_vision_select_feature\":\"cls_patch\"}", NULL, "'mm_vision_select_feature' must be patch"},
        {LLAVA "}", PROCESSOR ",\"resample\":0}", "resample"},
        {LLAVA "}", PROCESSOR ",\"resample\":4}", "resample"},
        {LLAVA "}", PROCESSOR ",\"do_pad\":true}", "do_pad"},
        {LLAVA "}", PROCESSOR ",\"image_mean\":[1,2]}", "image_mean"},
        {LLAVA "}", PROCESSOR ",\"image_std\":[1,0,1]}", "image_std"},
        {LLAVA "}", "{\"size\":{\"height\":32,\"width\":16}}", "size"},
        {LLAVA "}", "{\"size\":{\"shortest_edge\":0}}", "size"},
        {LLAVA "}", "{\"size\":32,\"crop_size\":64}", "32 x 32 pixels"},
        {LLAVA "}", "{\"size\":32,\"do_center_crop\":false}", "32 x 32 pixels"},
    };
    (void)state;
    check_refused(rows, sizeof rows / sizeof rows[0]);
}

static void towers_of_tiles_are_refused_by_the_wrong_field(void **state)
{
    static const refusal rows[] = {
        {SMOLVLM(""), "{\"max_image_size\":{\"longest_edge\":364}}", "'max_image_size' is 364, and the tower's pictures have 384"},
        {SMOLVLM(""), "{\"size\":{\"longest_edge\":3456},\"max_image_size\":{\"longest_edge\":384}}", "9 tiles on a side; at most 8"},
        {SMOLVLM(""), "{\"size\":{\"height\":384,\"width\":384}}", "'size' must have longest_edge"},
        {SMOLVLM(""), SMOLVLM_PROCESSOR(",\"do_resize\":false"), "do_resize"},
        {SMOLVLM(""), SMOLVLM_PROCESSOR(",\"resample\":4"), "'resample' 4"},
        {SMOLVLM(WORDS("[1],[2]", "[9]")), SMOLVLM_PROCESSOR(""), "'image_words' has 2 tiles, expected a square"},
        {SMOLVLM(WORDS("[1],[2],[3],[4]", "[9]")), SMOLVLM_PROCESSOR(""), "words for 2 x 2 tiles, and pictures have 4 x 4"},
        {SMOLVLM(WORDS(TILES16, "[]")), SMOLVLM_PROCESSOR(""), "lists of 1 to 24 tokens"},
        {SMOLVLM(WORDS(TILES16, "[-1]")), SMOLVLM_PROCESSOR(""), "what is no token"},
        {"{\"model_type\":\"idefics3\",\"vision_config\":{\"image_size\":364,\"patch_size\":14,\"model_type\":\"siglip_vision_model\"}}", NULL,
         "known: idefics3_vision, smolvlm_vision"},
        {"{\"model_type\":\"idefics3\",\"vision_config\":{\"image_size\":400,\"patch_size\":16}}", NULL, "'scale_factor' is 2, expected a divisor of 25"},
        {"{\"model_type\":\"idefics3\",\"scale_factor\":5,\"vision_config\":{\"image_size\":400,\"patch_size\":16}}", NULL,
         "'patch_size' is 25: with so many patches on a side the places"},
        {MLLAMA(",\"attention_heads\":7"), MLLAMA_PROCESSOR(""), "attention_heads"},
        {MLLAMA(",\"max_num_tiles\":9"), MLLAMA_PROCESSOR(""), "'max_num_tiles' must be between 1 and 8"},
        {MLLAMA(",\"num_global_layers\":-1"), MLLAMA_PROCESSOR(""), "num_global_layers"},
        {MLLAMA(",\"patch_size\":8"), MLLAMA_PROCESSOR(""), "image_size, in patches of all tiles"},
        {MLLAMA(",\"intermediate_layers_indices\":[3,3]"), MLLAMA_PROCESSOR(""), "must rise from 0 to 31"},
        {MLLAMA(",\"intermediate_layers_indices\":[0,1,2,3,4,5,6,7,8]"), MLLAMA_PROCESSOR(""), "9 layers, at most 8"},
        {MLLAMA(",\"vision_output_dim\":7681"), MLLAMA_PROCESSOR(""), "'vision_output_dim' is 7681, expected 7680"},
        {MLLAMA(",\"supported_aspect_ratios\":[[1,1],[2,1]]"), MLLAMA_PROCESSOR(""), "supported_aspect_ratios"},
        {MLLAMA(""), MLLAMA_PROCESSOR(",\"max_image_tiles\":2"), "'max_image_tiles' and 'size' must be the tower's"},
        {MLLAMA(""), "{}", "'max_image_tiles' and 'size' must be the tower's"},
        {MLLAMA(""), MLLAMA_PROCESSOR(",\"do_pad\":false"), "'do_pad' false"},
        {PHI3(""), "{\"num_crops\":65}", "'num_crops' is 65; 1 to 64"},
        {PHI3(",\"img_processor\":{\"name\":\"siglip\"}"), NULL, "img_processor: 'name' must be clip_vision_model, got 'siglip'"},
        {PHI3(",\"img_processor\":{\"image_dim_out\":1152}"), NULL, "'image_dim_out' is 1152, and the tower's states have 1024"},
        {PHI3(",\"img_processor\":{\"layer_idx\":25}"), NULL, "'layer_idx' is 25, expected -24 to 24"},
        {PHI3(",\"vision_config\":{\"image_size\":350}"), NULL, "'patch_size' is 25, expected an even number"},
        {"{\"model_type\":\"phi3_v\"," PHI3_EMBD("") "}", NULL, "embd_layer: 'use_hd_transform' must be true"},
        {"{\"model_type\":\"phi3_v\"}", NULL, "'hd_transform_order' must be sub_glb, got 'glb_sub'"},
        {INTERN(",\"use_qk_norm\":true"), NULL, "'use_qk_norm' must be false"},
        {INTERN(",\"image_size\":[448,224]"), NULL, "'image_size' must be a square"},
        {INTERN(",\"patch_size\":[64,64]"), NULL, "a divisor n of 7 patches"},
        {INTERN(",\"norm_type\":\"rms_norm\""), NULL, "norm_type"},
        {INTERN(""), "{\"max_patches\":65}", "'max_patches' (65) from that to 64"},
        {INTERN(""), "{\"max_patches\":40}", "at most 64 shapes"},
        {NEXT(",\"image_grid_pinpoints\":[[336,500]]"), NULL, "336 x 500 pixels, expected multiples of the tower's 336"},
        {NEXT(",\"image_grid_pinpoints\":[[33600,336]]"), NULL, "100 x 1 tiles of a picture; at most 64"},
        {NEXT(",\"image_grid_pinpoints\":[]"), NULL, "1 to 64 sizes"},
        {NEXT(",\"vision_feature_select_strategy\":\"full\""), NULL, "577 of a tile's 576 patches"},
        {ONEVISION(",\"vision_aspect_ratio\":\"anyres_max_0\""), NULL, "vision_aspect_ratio"},
    };
    (void)state;
    check_refused(rows, sizeof rows / sizeof rows[0]);
}

static void towers_of_any_size_are_refused_by_the_wrong_field(void **state)
{
    static const refusal rows[] = {
        {GEMMA4("\"head_dim\":60"), NULL, "12 heads of 'head_dim' 60, 12 of keys and values; expected"},
        {GEMMA4("\"num_key_value_heads\":4"), NULL, "12 heads of 'head_dim' 64, 4 of keys and values; expected"},
        {GEMMA4("\"rope_parameters\":{\"rope_type\":\"yarn\"}"), NULL, "'rope_type' must be axial, got 'yarn'"},
        {GEMMA4("\"pooling_kernel_size\":9"), NULL, "'pooling_kernel_size' must be between 1 and 8"},
        {GEMMA4(""), "{\"pooling_kernel_size\":2}", "'pooling_kernel_size' 2, the tower's are 16 and 3"},
        {GEMMA4(""), "{\"max_soft_tokens\":2000}", "'max_soft_tokens' is 2000; 1 to 1820 are computed"},
        {GEMMA4("\"position_embedding_size\":600"), NULL, "'max_soft_tokens' is 280; 1 to 200 are computed"},
        {GEMMA4(""), "{\"do_normalize\":true}", "do_normalize"},
        {GEMMA4(""), "{\"do_resize\":false}", "'do_resize' must be true"},
        {MISTRAL3(",\"num_attention_heads\":7"), NULL, "7 heads of a 'hidden_size' of 1024"},
        {MISTRAL3(",\"rope_theta\":0"), NULL, "rope_theta"},
        {MISTRAL3(""), "{\"size\":{\"longest_edge\":20}}", "longest_edge, 28 to 4096 pixels, got 20"},
        {MISTRAL3(""), "{\"size\":{\"height\":90,\"width\":80}}", "longest_edge"},
        {MISTRAL3(""), "{\"patch_size\":{\"height\":16,\"width\":16}}", "'patch_size' is 16, and the tower's is 14"},
        {MISTRAL3(""), "{\"do_center_crop\":true}", "do_center_crop"},
        {"{\"model_type\":\"llava\",\"vision_feature_select_strategy\":\"default\",\"vision_config\":{\"model_type\":\"pixtral\"}}", NULL,
         "vision_feature_select_strategy"},
        {FUYU(",\"patch_size\":0"), NULL, "'patch_size' must be between 1 and 4096"},
        {FUYU(",\"num_channels\":1"), NULL, "num_channels"},
        {FUYU(""), "{\"size\":{\"height\":1080}}", "multiples of the patches' 30 pixels, at most 4096; got 1080 and -1"},
        {FUYU(""), "{\"size\":{\"height\":1000,\"width\":1920}}", "got 1000 and 1920"},
        {FUYU(",\"patch_size\":10"), "{\"size\":{\"height\":2000,\"width\":2000}}", "'size, in patches,' must be between 1 and 16384"},
        {FUYU(""), "{\"patch_size\":{\"height\":30,\"width\":28}}", "'patch_size' must have height and width of 30"},
        {FUYU(""), "{\"do_pad\":false}", "'do_resize' and 'do_pad' must be true"},
        {FUYU(""), "{\"padding_mode\":\"reflect\"}", "'padding_mode' constant"},
        {FUYU(""), "{\"padding_value\":0.5}", "whole number from 0 to 255, got 0.5"},
        {FUYU(""), "{\"image_mean\":\"half\"}", "'image_mean' must be a number or a list of 3"},
        {PIX2STRUCT(",\"patch_embed_hidden_size\":769"), NULL, "three times the square of a patch's side"},
        {PIX2STRUCT(",\"seq_len\":1"), NULL, "'seq_len' must be between 2 and 16384"},
        {PIX2STRUCT(",\"seq_len\":1000"), NULL, "'max_patches' must be between 1 and 999, got 2048"},
        {PIX2STRUCT(""), "{\"max_patches\":0}", "'max_patches' must be between 1 and 4095"},
        {PIX2STRUCT(""), "{\"do_normalize\":false}", "'do_normalize' must be true"},
        {PIX2STRUCT(""), "{\"patch_size\":{\"height\":14,\"width\":14}}", "'patch_size' must have height and width of 16"},
        {"{\"model_type\":\"pix2struct\",\"text_config\":{\"hidden_size\":512},\"vision_config\":{}}", NULL, "'hidden_size' is 768, and the decoder's is 512"},
        {NOUGAT(",\"model_type\":\"swin\"", ""), NULL, "encoder.model_type 'swin' is not supported; known: donut-swin"},
        {NOUGAT("", ",\"d_model\":512"), NULL, "its states have 1024 numbers, and decoder.d_model is another"},
        {NOUGAT(",\"window_size\":10", ""), NULL, "stage 0 has 224 x 168 patches, expected multiples of 'window_size' (10) and of 2"},
        {NOUGAT(",\"depths\":[2]", ""), NULL, "lists of as many stages, 1 to 8"},
        {NOUGAT(",\"num_heads\":[4,8,16,33]", ""), NULL, "'hidden_size' (1024) must be a multiple"},
        {NOUGAT(",\"num_heads\":[4,8,16,0]", ""), NULL, "num_heads"},
        {NOUGAT(",\"mlp_ratio\":2.5", ""), NULL, "'mlp_ratio' must be a whole number"},
        {NOUGAT(",\"use_absolute_embeddings\":true", ""), NULL, "'use_absolute_embeddings' false"},
        {NOUGAT(",\"image_size\":[896,671]", ""), NULL, "must be whole patches of 4"},
        {NOUGAT("", ""), "{\"size\":{\"height\":800,\"width\":672}}", "'size' is 800 x 672, and the tower's pages have 896 x 672"},
        {NOUGAT("", ""), "{\"do_thumbnail\":false}", "'do_thumbnail' and 'do_pad' must be true"},
        {QWEN(",\"num_heads\":7"), NULL, "num_heads"},
        {QWEN(",\"num_heads\":128"), NULL, "heads of 10 numbers"},
        {QWEN(",\"depth\":0"), NULL, "'depth'"},
        {QWEN(",\"spatial_merge_size\":9"), NULL, "spatial_merge_size"},
        {QWEN(",\"temporal_patch_size\":0"), NULL, "temporal_patch_size"},
        {QWEN(",\"window_size\":27"), NULL, "window_size"},
        {QWEN(",\"fullatt_block_indexes\":[32]"), NULL, "fullatt_block_indexes"},
        {QWEN(",\"fullatt_block_indexes\":7"), NULL, "fullatt_block_indexes"},
        {QWEN(",\"in_chans\":1"), NULL, "in_channels"},
        {QWEN3(",\"num_position_embeddings\":2300"), NULL, "num_position_embeddings"},
        {QWEN3(",\"depth\":24"), NULL, "has 24, expected layers from 0 to 23"},
        {QWEN3(",\"deepstack_visual_indexes\":[3,3]"), NULL, "deepstack_visual_indexes"},
        {QWEN3(",\"deepstack_visual_indexes\":[0,1,2,3,4,5,6,7,8]"), NULL, "at most 8"},
        {QWEN3(",\"deepstack_visual_indexes\":5"), NULL, "deepstack_visual_indexes"},
        {QWEN(""), "{\"patch_size\":16}", "'patch_size' is 16, and the tower's is 14"},
        {QWEN(""), "{\"merge_size\":1}", "merge_size"},
        {QWEN(""), "{\"do_resize\":false}", "do_resize"},
        {QWEN(""), "{\"min_pixels\":0}", "min_pixels"},
        {QWEN(""), "{\"max_pixels\":-5}", "max_pixels"},
        {QWEN(""), "{\"max_pixels\":\"many\"}", "max_pixels"},
        {QWEN(""), "{\"min_pixels\":9000,\"max_pixels\":8000}", "'min_pixels' is 9000 and 'max_pixels' 8000"},
        {QWEN(""), "{\"min_pixels\":100,\"max_pixels\":783}", "a square of 28 pixels"},
        {QWEN(""), "{\"min_pixels\":99999999999,\"max_pixels\":99999999999}", "at most 3211264 here"},
        {"{\"model_type\":\"qwen2_vl\",\"vision_config\":{\"mlp_ratio\":1e9}}", NULL, "mlp_ratio"},
    };
    (void)state;
    check_refused(rows, sizeof rows / sizeof rows[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tower_is_read_with_its_defaults),
        cmocka_unit_test(siglip_has_no_class_token),
        cmocka_unit_test(gemma3_pools_squares_of_patches),
        cmocka_unit_test(prompts_of_paligemma_see_themselves),
        cmocka_unit_test(qwen_keeps_the_shape_of_pictures),
        cmocka_unit_test(pixtral_fills_up_to_whole_squares),
        cmocka_unit_test(fuyu_brings_pictures_into_a_box),
        cmocka_unit_test(pix2struct_makes_pictures_as_large_as_may_be),
        cmocka_unit_test(pages_of_swin_have_one_size),
        cmocka_unit_test(pictures_are_cut_into_tiles),
        cmocka_unit_test(phi3_lays_pictures_on_their_longer_side),
        cmocka_unit_test(squares_of_vila_may_lack_patches),
        cmocka_unit_test(pictures_of_gemma4_are_as_large_as_their_tokens_allow),
        cmocka_unit_test(smolvlm_brings_pictures_to_tiles_in_steps),
        cmocka_unit_test(qwen3_5_has_the_tower_without_rows_for_layers),
        cmocka_unit_test(frames_of_videos_have_bounds),
        cmocka_unit_test(queries_read_what_the_tower_of_blip2_sees),
        cmocka_unit_test(queries_read_what_the_tower_of_qwen_vl_sees),
        cmocka_unit_test(rows_of_cogvlm_stand_between_two),
        cmocka_unit_test(queries_of_kosmos2_stand_between_two_tokens),
        cmocka_unit_test(qwen3_has_positions_and_rows_for_layers),
        cmocka_unit_test(pictures_are_fitted_as_the_processor_does),
        cmocka_unit_test(text_alone_has_no_tower),
        cmocka_unit_test(a_canvas_is_chosen_by_its_scale),
        cmocka_unit_test(towers_of_squares_are_refused_by_the_wrong_field),
        cmocka_unit_test(towers_of_tiles_are_refused_by_the_wrong_field),
        cmocka_unit_test(towers_of_any_size_are_refused_by_the_wrong_field),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
