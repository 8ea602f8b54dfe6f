/* SPDX-License-Identifier: Apache-2.0
 * nereid hf_lora_convert: a PEFT folder becomes the two NumPy files that requests to tensorrt_llm carry. */
#include "tools/tools.h"

#include "base/dtype.h"
#include "model/lora.h"

#include <stdio.h>

typedef struct {
    const char *in_file, *out_dir, *storage_type;
    bool verbose;
} options;

static const char usage[] =
    "Usage: nereid hf_lora_convert -i DIR -o DIR [--storage-type float16|bfloat16|float32]\n\n"
    "Reads a LoRA adapter as PEFT writes it (adapter_config.json, adapter_model.safetensors or .bin) and writes\n"
    "model.lora_weights.npy and model.lora_config.npy (docs/lora.md).\n";

#define OPT(...) NRD_OPT_ROW(options, __VA_ARGS__)
static const nrd_opt rows[] = {
    OPT(STR, "in_file", "-i", in_file, "DIR", NULL, "PEFT folder"),
    OPT(STR, "out_dir", "-o", out_dir, "DIR", NULL, "folder for the two files"),
    OPT(STR, "storage_type", NULL, storage_type, "TYPE", "float16", "float16, bfloat16 or float32"),
    OPT(FLAG, "verbose", NULL, verbose, NULL, NULL, "say what was written"),
};
const nrd_tool_table nrd_hf_lora_convert_table = NRD_TOOL_TABLE("hf_lora_convert", usage, rows, 0);

static nrd_error *convert(const options *o)
{
    nrd_dtype t = NRD_DTYPE_NONE;
    if (!nrd_dtype_parse(o->storage_type, &t) ||
        (t != NRD_DTYPE_F32 && t != NRD_DTYPE_F16 && t != NRD_DTYPE_BF16)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--storage-type: '%s', expected float16, bfloat16 or float32",
                          o->storage_type);
    }
    NRD_TRY(nrd_lora_convert(o->in_file, o->out_dir, t));
    if (o->verbose) {
        printf("%s: model.lora_weights.npy (%s) and model.lora_config.npy\n", o->out_dir, nrd_dtype_name(t));
    }
    return NULL;
}

int nrd_tool_hf_lora_convert(int argc, char **argv)
{
    options o = {.storage_type = "float16"};
    size_t n = 0;
    int status = nrd_tool_parse(&nrd_hf_lora_convert_table, argc, argv, &o, NULL, &n);
    if (status >= 0) {
        return status;
    }
    if (!o.in_file || !o.out_dir) {
        fputs("nereid hf_lora_convert: -i DIR and -o DIR are needed (see --help)\n", stderr);
        return 2;
    }
    return nrd_tool_finish("hf_lora_convert", convert(&o));
}
