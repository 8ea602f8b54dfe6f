/* SPDX-License-Identifier: Apache-2.0
 * What an open source is asked: its kind, sizes and tensors. */
#include "model/source_internal.h"

#include "model/source_mtp.h"

nrd_source_kind nrd_source_get_kind(const nrd_source *s)
{
    return s->kind;
}

const char *nrd_source_kind_name(const nrd_source *s)
{
    switch (s->kind) {
    case NRD_SOURCE_HF: /* and what is read as if it were one */
        return s->nemo      ? "NeMo archive"
               : s->fairseq ? "fairseq model"
               : s->whisper ? "OpenAI's Whisper model"
               : s->ft      ? "FasterTransformer folder"
                            : "Hugging Face model";
    case NRD_SOURCE_GGUF:
        return "GGUF file";
    case NRD_SOURCE_CHECKPOINT:
        return "checkpoint";
    case NRD_SOURCE_DUMMY:
        return "random weights";
    }
    return "unknown";
}

const char *nrd_source_path(const nrd_source *s)
{
    return s->path;
}

uint64_t nrd_source_seed(const nrd_source *s)
{
    return s->seed;
}

const nrd_model_spec *nrd_source_spec(const nrd_source *s)
{
    return &s->spec;
}

const nrd_source *nrd_source_encoder(const nrd_source *s)
{
    return s->encoder;
}

const nrd_source *nrd_source_mtp(const nrd_source *s)
{
    return s->mtp;
}

int32_t nrd_source_first_layer(const nrd_source *s)
{
    return s->first_layer;
}

bool nrd_source_is_mtp(const nrd_source *s, const char *name)
{
    return s->spec.mtp || !s->mtp ? s->spec.mtp : nrd_mtp_has(s, name); /* an MTP layer's source has the model's tensors, too */
}

const nrd_arch *nrd_source_arch(const nrd_source *s)
{
    return s->arch;
}

const char *nrd_source_notes(const nrd_source *s)
{
    return nrd_quant_notes(s->quant);
}

float nrd_source_kv_top(const nrd_source *s)
{
    return nrd_quant_kv_top(s->quant);
}

bool nrd_source_is_foreign(const nrd_source *s)
{
    return s->rank_quants != NULL;
}

bool nrd_source_int8_inputs(const nrd_source *s)
{
    return nrd_quant_int8_inputs(s->quant);
}

int32_t nrd_source_n_ranks(const nrd_source *s)
{
    return s->n_ranks;
}

size_t nrd_source_n_tensors(const nrd_source *s, int32_t rank)
{
    return rank >= 0 && rank < s->n_ranks ? s->ranks[rank].n : 0;
}

const nrd_src_tensor *nrd_source_tensor_at(const nrd_source *s, int32_t rank, size_t i)
{
    return i < nrd_source_n_tensors(s, rank) ? &s->ranks[rank].tensors[i] : NULL;
}

const nrd_src_tensor *nrd_source_find(const nrd_source *s, int32_t rank, const char *name)
{
    char room[NRD_MTP_MAX_NAME];
    const char *own = s->is_mtp_apart ? nrd_mtp_name_apart(name, room) : NULL;
    return nrd_source_n_tensors(s, rank) > 0 ? nrd_table_find(&s->ranks[rank], own ? own : name) : NULL;
}
