/* SPDX-License-Identifier: Apache-2.0
 * Which type a weight of a plan gets. Called by plan.c. */
#include "base/dtype.h"
#include "model/needs.h"
#include "model/plan_internal.h"

#include <string.h>

bool nrd_plan_is_float(nrd_dtype t)
{
    return t == NRD_DTYPE_F32 || t == NRD_DTYPE_F16 || t == NRD_DTYPE_BF16;
}

nrd_dtype nrd_plan_plain_dtype(const nrd_plan *p, nrd_dtype src)
{
    src = nrd_dtype_is_packed(src) && !p->opt.keep_packed ? p->spec.dtype : nrd_dtype_computed(src);
    if (nrd_dtype_is_quant(src) || nrd_dtype_is_packed(src) || nrd_plan_has_row_scales(src)) { /* "--quantize float32" means all of the model */
        return nrd_plan_is_float(p->opt.quantize) ? p->opt.quantize : src;
    }
    if (p->opt.dtype != NRD_DTYPE_NONE) {
        return p->opt.dtype;
    }
    return src == NRD_DTYPE_F64 ? NRD_DTYPE_F32 : src;
}

nrd_dtype nrd_plan_linear_dtype(nrd_plan *p, const char *name, nrd_dtype src, int64_t cols)
{
    nrd_dtype want = p->opt.quantize;
    bool head = !strcmp(name, "lm_head.weight") || !strcmp(name, "transformer.vocab_embedding.weight");

    if (nrd_dtype_is_packed(src) && cols % nrd_dtype_block(src)) {
        src = p->spec.dtype;
    }
    if (want == NRD_DTYPE_NONE || nrd_str_has_prefix(name, NRD_CLASSIFIER) || nrd_str_has_prefix(name, NRD_PROJECTION) ||
        strstr(name, "router.") || /* a wrong expert costs more than a router's bytes */
        nrd_str_has_prefix(name, "transformer.conv")) { /* all that follows reads what these make */
        return nrd_plan_plain_dtype(p, src);
    }
    if (head && !p->opt.quantize_lm_head && !nrd_plan_is_float(want)) {
        if (!nrd_dtype_is_quant(want)) {
            return nrd_plan_plain_dtype(p, src);
        }
        want = NRD_DTYPE_Q8_0;
    }
    nrd_dtype got = want;
    if (cols % nrd_dtype_block(got)) {
        got = NRD_DTYPE_Q8_0;
    }
    if (cols % nrd_dtype_block(got)) {
        got = NRD_DTYPE_F16;
    }
    if (got != want && !strstr(nrd_str_cstr(&p->notes), nrd_dtype_name(got))) {
        nrd_str_printf(&p->notes, "%srows of %lld are no multiple of a %s block: %s and alike become "
                       "%s", p->notes.len ? "; " : "", (long long)cols, nrd_dtype_name(want), name,
                       nrd_dtype_name(got));
    }
    return got;
}

void nrd_plan_note_unpacked(nrd_plan *p)
{
    nrd_dtype from = NRD_DTYPE_NONE, to = NRD_DTYPE_NONE;
    double bytes = 0, packed = 0, fp8 = 0;
    size_t n = 0, n_fp8 = 0;

    for (size_t i = 0; i < p->n && p->opt.quantize == NRD_DTYPE_NONE; i++) {
        const nrd_plan_tensor *t = &p->tensors[i];
        const nrd_src_tensor *s = t->parts[0].stack ? t->parts[0].stack[0] : t->parts[0].src;
        if (s && t->dtype == NRD_DTYPE_F8_E4M3 && !p->opt.keep_packed) {
            fp8 += (double)t->data_bytes;
            n_fp8++;
        }
        if (s && nrd_dtype_is_packed(s->dtype) && nrd_plan_is_float(t->dtype)) {
            from = s->dtype;
            to = t->dtype;
            n++;
            bytes += (double)t->data_bytes;
            packed += (double)(t->rows * t->cols) / nrd_dtype_block(from) * (double)nrd_dtype_block_bytes(from);
        }
    }
    if (n > 0) {
        nrd_str_printf(&p->notes, "%s%zu matrices of %s are unpacked to %s, because %s: %.1f MB instead of %.1f MB; --quantize "
                       "q8_0 takes about half", p->notes.len ? "; " : "", n, nrd_dtype_name(from), nrd_dtype_name(to),
                       p->opt.keep_packed ? "their rows are no multiples of a block"
                                          : "only GPUs multiply them as they are", bytes / 1e6, packed / 1e6);
    }
    if (n_fp8 > 0) {
        nrd_str_printf(&p->notes, "%sa CPU unpacks %zu matrices of fp8 to bfloat16 when it loads them: %.1f MB instead of %.1f MB; --quantize "
                       "q8_0 takes about half", p->notes.len ? "; " : "", n_fp8, 2 * fp8 / 1e6, fp8 / 1e6);
    }
}

bool nrd_plan_is_always_f32(const char *name)
{
    const char *state = strstr(name, "." NRD_RECURRENT);
    if (state && strcmp(state, "." NRD_RECURRENT "in.bias") && strcmp(state, "." NRD_RECURRENT "gate.bias") &&
        strcmp(state, "." NRD_RECURRENT "out.bias")) {
        return true;
    }
    return nrd_str_has_suffix(name, NRD_KV_SCALE) || nrd_str_has_suffix(name, NRD_KV_RANGE) ||
           nrd_str_has_suffix(name, NRD_SCORE_BIAS) || nrd_str_has_suffix(name, NRD_ORDER) || nrd_str_has_suffix(name, NRD_COLUMNS) ||
           nrd_str_has_suffix(name, NRD_INT8_INPUT) ||
           nrd_str_has_suffix(name, "." NRD_SINKS) ||
           nrd_str_has_suffix(name, "." NRD_XIELU_P) || nrd_str_has_suffix(name, "." NRD_XIELU_N);
}

nrd_dtype nrd_plan_map_dtype(const nrd_plan *p, nrd_dtype src)
{
    const nrd_dtype t = nrd_plan_plain_dtype(p, src);
    return nrd_plan_is_float(t) ? t : nrd_source_get_kind(p->src) == NRD_SOURCE_GGUF ? NRD_DTYPE_F16 : p->spec.dtype;
}

bool nrd_plan_is_map(const char *name)
{
    return nrd_str_has_suffix(name, ".k_b.weight") || nrd_str_has_suffix(name, ".v_b.weight");
}
