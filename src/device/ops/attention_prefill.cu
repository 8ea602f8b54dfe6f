#include "device/ops/attention.cuh"
nrd_error *attention_prefill(nrd_stream *s, const nrd_attention_args *a, void *out,
                             nrd_dtype o_dtype, bool *done)
{
    (void)s, (void)a, (void)out, (void)o_dtype;
    *done = false;
    return NULL;
}
