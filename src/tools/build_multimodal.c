/* SPDX-License-Identifier: Apache-2.0
 * nereid build_multimodal_engine: the vision tower of a Hugging Face folder into a folder of its own. */
#include "tools/tools.h"

#include "base/str.h"
#include "hub/pull.h"
#include "model/vision_folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *model_type, *model_path, *output_dir;
    int32_t max_batch_size, max_hw_dims;
} options;

static const char usage[] =
    "Usage: nereid build_multimodal_engine --model_path DIR [--model_type TYPE] [--output_dir DIR]\n\n"
    "Takes the vision tower out of a Hugging Face folder and writes it, with a config.json, into a folder that the model\n"
    "multimodal_encoders of all_models/multimodal serves (docs/vision.md). Without --output_dir that is\n"
    "tmp/trt_engines/NAME/multimodal_encoder.\n";

#define OPT(...) NRD_OPT_ROW(options, __VA_ARGS__)
static const nrd_opt rows[] = {
    OPT(STR, "model_type", NULL, model_type, "TYPE", NULL, "what the folder is taken for: llava, llava_next, llava_onevision, qwen2_vl, "
                                                         "pixtral, gemma3, ...; another one than it has is refused"),
    OPT(STR, "model_path", NULL, model_path, "DIR", NULL, "Hugging Face folder, or a model's name"),
    OPT(STR, "output_dir", NULL, output_dir, "DIR", NULL, "folder to write"),
    OPT(INT, "max_batch_size", NULL, max_batch_size, "N", "4", "kept in config.json; pictures are computed one by one"),
    OPT(INT, "max_hw_dims", NULL, max_hw_dims, "N", "5184", "patches of a picture at most, where pictures keep their shape: memory is "
                                                          "taken for so many"),
    NO_EFFECT("min_hw_dims", NULL, "small pictures are enlarged as the model's processor does"),
    NO_EFFECT("vila_path", NULL, "VILA is read without its own code"),
    REFUSED("num_mul_bins", NULL, "encoders of sound are examples/whisper's"),
    REFUSED("max_mel_seq_len", NULL, "encoders of sound are examples/whisper's"),
};
const nrd_tool_table nrd_build_multimodal_engine_table = NRD_TOOL_TABLE("build_multimodal_engine", usage, rows, 0);

/* tmp/trt_engines/NAME/multimodal_encoder, where the published program writes. */
static nrd_error *default_dir(const char *model_path, char **out)
{
    size_t n = strlen(model_path);
    nrd_str dir = {0};

    while (n > 1 && model_path[n - 1] == '/') {
        n--;
    }
    size_t from = n;
    while (from > 0 && model_path[from - 1] != '/') {
        from--;
    }
    nrd_str_printf(&dir, "tmp/trt_engines/%.*s/multimodal_encoder", (int)(n - from), model_path + from);
    nrd_error *err = nrd_str_error(&dir);
    *out = err ? NULL : nrd_str_steal(&dir);
    nrd_str_fini(&dir);
    return err;
}

static nrd_error *build(const options *o, const char *dir)
{
    nrd_vision_folder made = {.max_batch_size = o->max_batch_size, .max_patches = o->max_hw_dims};
    nrd_source *src = NULL;
    nrd_error *err = NULL;
    char *path = NULL;

    NRD_TRY(nrd_hub_resolve(o->model_path, &path));
    NRD_TRY_GOTO(nrd_source_open(&src, path), err, done);
    NRD_TRY_GOTO(nrd_vision_folder_write(src, dir, o->model_type, &made), err, done);
    NRD_TRY_GOTO(nrd_source_check(src), err, done);
    printf("%s: the vision tower of %s, for a decoder of %d\n", dir, made.model_type, made.hidden);
done:
    nrd_source_close(src);
    free(path);
    return err;
}

int nrd_tool_build_multimodal_engine(int argc, char **argv)
{
    options o = {.max_batch_size = 4, .max_hw_dims = 5184};
    char *dir = NULL;
    size_t n = 0;
    int status = nrd_tool_parse(&nrd_build_multimodal_engine_table, argc, argv, &o, NULL, &n);

    if (status >= 0) {
        return status;
    }
    if (!o.model_path) {
        fputs("nereid build_multimodal_engine: --model_path DIR is needed (see --help)\n", stderr);
        return 2;
    }
    if (o.max_batch_size < 1 || o.max_hw_dims < 1 || o.max_hw_dims > NRD_VISION_MAX_PATCHES) {
        fprintf(stderr, "nereid build_multimodal_engine: --max_batch_size must be at least 1, --max_hw_dims 1 to %d\n",
                NRD_VISION_MAX_PATCHES);
        return 2;
    }
    nrd_error *err = o.output_dir ? NULL : default_dir(o.model_path, &dir);
    err = err ? err : build(&o, o.output_dir ? o.output_dir : dir);
    free(dir);
    return nrd_tool_finish("build_multimodal_engine", err);
}
