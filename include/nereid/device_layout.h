/* nereid/device_layout.h - the sizes of all structures that cross door 4, as one number.
 *
 * Purpose   A plug-in that was compiled with another nereid/device.h than the program would read the
 *           wrong fields. It exports nrd_device_plugin_layout (returning nrd_device_layout() as it was
 *           compiled), and is not opened unless the program's number is the same.
 */
#ifndef NEREID_DEVICE_LAYOUT_H
#define NEREID_DEVICE_LAYOUT_H

#include "nereid/device.h"

#ifdef __cplusplus
extern "C" {
#endif

static inline uint64_t nrd_device_layout(void)
{
    const size_t sizes[] = {
        sizeof(nrd_device_info),   sizeof(nrd_device_limits),    sizeof(nrd_mem_report),
        sizeof(nrd_weight),        sizeof(nrd_embed_args),       sizeof(nrd_norm_args),
        sizeof(nrd_linear_args),   sizeof(nrd_kv_layer),         sizeof(nrd_batch_view),
        sizeof(nrd_rope_kv_args),  sizeof(nrd_attention_args),   sizeof(nrd_act_args),
        sizeof(nrd_sample_row),    sizeof(nrd_sample_args),      sizeof(nrd_counts_args),
        sizeof(nrd_copy_blocks_args), sizeof(nrd_device_ops),    sizeof(nrd_device_config),
    };
    uint64_t h = 14695981039346656037u; /* FNV-1a, by whole sizes */
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        h = (h ^ sizes[i]) * 1099511628211u;
    }
    return h;
}

#define NRD_DEVICE_LAYOUT_SYMBOL "nrd_device_plugin_layout"
typedef uint64_t (*nrd_device_layout_fn)(void);
__attribute__((visibility("default"))) uint64_t nrd_device_plugin_layout(void);

#ifdef __cplusplus
}
#endif
#endif
