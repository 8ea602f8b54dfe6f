/* SPDX-License-Identifier: Apache-2.0
 * cuda.cu - the plug-in: opens a GPU, or says in one line why it cannot. */
#include "device/cuda/cuda_dev.cuh"
#include "device/cuda/kv_layout.cuh"
#include "device/plugin/plugin.h"

extern "C" {
#include "base/env.h"
}

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <new>

static void dev_close(nrd_device *d)
{
    cuda_device *dev = (cuda_device *)d;

    (void)cudaSetDevice(dev->id);
    (void)cudaDeviceSynchronize();
    nrd_cuda_lt_close(dev->lt);
    while (!dev->pools.empty()) {
        pool_entry e = dev->pools.back();
        nrd_cuda_pool_free(d, e.kind, e.p);
    }
    delete dev;
}

/* A layer of 25 MB (gpt2-medium's shape) takes less time, one of 30 more (docs/performance/gpu-kernels.md, "Small layers of one token"). */
static const uint64_t JOINED_LAYER_BYTES = (uint64_t)26 << 20;

static void dev_info(nrd_device *d, nrd_device_info *info)
{
    cuda_device *dev = (cuda_device *)d;
    size_t left = 0, total = 0;
    nrd_device_info full = {};

    (void)cudaSetDevice(dev->id);
    (void)cudaMemGetInfo(&left, &total);
    snprintf(full.name, sizeof full.name, "%.40s%s", dev->name, dev->lt ? "" : ", no cuBLASLt: slow");
    full.host_is_device = false;
    full.act_dtype = NRD_DTYPE_BF16;
    full.kv_dtype = NRD_DTYPE_BF16;
    full.mem_total_bytes = total;
    full.mem_free_bytes = left;
    full.n_threads = dev->n_sm;
    full.joined_layer_bytes = dev->hopper ? JOINED_LAYER_BYTES : 0;
    *info = full;
}

static size_t kv_block_bytes(nrd_device *d, nrd_dtype dtype, int32_t block_tokens,
                             int32_t n_kv_heads, int32_t head_dim)
{
    (void)d;
    size_t bytes = (n_kv_heads == 0 ? 1 : 2 * (size_t)n_kv_heads) * (size_t)block_tokens * (size_t)head_dim *
                   (size_t)kv_elem_bytes(dtype);
    return (bytes + 255) & ~(size_t)255; /* every block starts where 16-byte loads may */
}

static nrd_error *open_checked(const nrd_device_config *config, cuda_device *dev)
{
    int n = 0, v = 0;

    NRD_TRY(nrd_cuda_usable());
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e == cudaErrorInsufficientDriver || e == cudaErrorStubLibrary) {
        int have = 0, need = 0;
        (void)cudaGetLastError();
        (void)cudaDriverGetVersion(&have);
        (void)cudaRuntimeGetVersion(&need);
        if (have == 0) {
            return nrd_errorf(NRD_ERR_NOT_FOUND, "cuda: no NVIDIA driver (libcuda.so.1) on this "
                                                   "machine; use device \"cpu\"");
        }
        return nrd_errorf(NRD_ERR_UNSUPPORTED,
                          "cuda: the NVIDIA driver supports CUDA %d.%d, this plug-in needs %d.%d; install a "
                          "newer driver or use device \"cpu\"",
                          have / 1000, have % 1000 / 10, need / 1000, need % 1000 / 10);
    }
    if (e != cudaSuccess || n == 0) {
        (void)cudaGetLastError();
        return nrd_errorf(NRD_ERR_UNSUPPORTED,
                          "cuda: no usable GPU: %s (CUDA_VISIBLE_DEVICES may hide it); use device \"cpu\"",
                          e != cudaSuccess ? cudaGetErrorString(e) : "the driver lists none");
    }
    if (config->device_id < 0 || config->device_id >= n) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "cuda: GPU %d asked for, this process may use 0..%d (gpu_device_ids, --device_id)%s",
                          config->device_id, n - 1,
                          strstr(nrd_env("CUDA_VISIBLE_DEVICES", ""), "MIG-")
                              ? "; of the MIG slices in CUDA_VISIBLE_DEVICES CUDA gives a process one"
                              : "");
    }
    dev->id = config->device_id;
    cudaDeviceProp prop;
    CUDA_TRY(cudaGetDeviceProperties(&prop, dev->id));
    dev->cc = prop.major * 10 + prop.minor;
    if (dev->cc < 80) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED,
                          "cuda: %s has compute capability %d.%d; 8.0 (Ampere) or newer is needed: use "
                          "device \"cpu\"",
                          prop.name, prop.major, prop.minor);
    }
    dev->hopper = dev->cc == 90; /* sm_90a code runs on 9.0 only */
    int khz = 0, bits = 0;
    (void)cudaDeviceGetAttribute(&khz, cudaDevAttrMemoryClockRate, dev->id);
    (void)cudaDeviceGetAttribute(&bits, cudaDevAttrGlobalMemoryBusWidth, dev->id);
    (void)cudaGetLastError();
    /* two transfers a clock; 86 % reach a kernel (H200: 4.2 of 4.9 TB/s) */
    dev->mem_rate = khz > 0 && bits > 0 ? 0.86 * 2e3 * khz * bits / 8 : 2.8e12;
    dev->n_sm = prop.multiProcessorCount;
    dev->smem_max = prop.sharedMemPerBlockOptin;
    dev->mem_total = prop.totalGlobalMem;
    snprintf(dev->name, sizeof dev->name, "cuda: %.56s", prop.name);
    CUDA_TRY(cudaSetDevice(dev->id));
    CUDA_TRY(cudaFree(NULL)); /* makes the context here, so that its failure is open's failure */
    CUDA_TRY(cudaDeviceGetAttribute(&v, cudaDevAttrUnifiedAddressing, dev->id));
    if (!nrd_cuda_has_code()) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED,
                          "cuda: this plug-in has no code for %s (compute capability %d.%d); build it with "
                          "CUDA_ARCHS for this GPU or use device \"cpu\"",
                          prop.name, prop.major, prop.minor);
    }
    if (dev->hopper) {
        void *fn = NULL;
        cudaDriverEntryPointQueryResult found;
        CUDA_TRY(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &fn, 12000,
                                                  cudaEnableDefault, &found));
        dev->encode = found == cudaDriverEntryPointSuccess ? (tensor_map_encode_fn)fn : NULL;
    }
    dev->lt = nrd_cuda_lt_open(config->timing_cache, dev->name, &dev->lt_why);
    return NULL;
}

static bool has_feature(nrd_device *, nrd_feature feature)
{
    return feature == NRD_FEATURE_WIDE_QK_NORM || feature == NRD_FEATURE_ALIBI || feature == NRD_FEATURE_EXPERTS ||
           feature == NRD_FEATURE_ENCODER || feature == NRD_FEATURE_SINK_LOGITS || feature == NRD_FEATURE_QUERY_FORMS ||
           feature == NRD_FEATURE_CHUNKS || feature == NRD_FEATURE_XIELU || feature == NRD_FEATURE_INPUT_SCALE ||
           feature == NRD_FEATURE_LATENT || feature == NRD_FEATURE_REL_BIAS ||
           feature == NRD_FEATURE_RECURRENT || feature == NRD_FEATURE_ROPE_AXES || feature == NRD_FEATURE_ALTUP ||
           feature == NRD_FEATURE_SHARED_KV || feature == NRD_FEATURE_EMBED_COLUMNS;
}

static void fill_ops(nrd_device_ops *ops)
{
    ops->close = dev_close;
    ops->get_info = dev_info;
    ops->alloc = nrd_cuda_pool_alloc;
    ops->free = nrd_cuda_pool_free;
    ops->mem_report = nrd_cuda_pool_report;
    ops->kv_block_bytes = kv_block_bytes;
    ops->embed = nrd_cuda_embed;
    ops->add_rows = nrd_cuda_add_rows;
    ops->sum_spans = nrd_cuda_sum_spans;
    ops->clamp = nrd_cuda_clamp;
    ops->matmul = nrd_cuda_matmul;
    ops->norm = nrd_cuda_norm;
    ops->linear = nrd_cuda_linear;
    ops->linear_gated = nrd_cuda_linear_gated;
    ops->linear_joined = nrd_cuda_linear_joined;
    ops->rope_attention = nrd_cuda_rope_attention;
    ops->linear_tune = nrd_cuda_linear_tune;
    ops->rope_kv = nrd_cuda_rope_kv;
    ops->attention = nrd_cuda_attention;
    ops->act = nrd_cuda_act;
    ops->sample = nrd_cuda_sample;
    ops->linear_sample = nrd_cuda_linear_sample;
    ops->counts = nrd_cuda_counts;
    ops->copy_blocks = nrd_cuda_copy_blocks;
    ops->move_tokens = nrd_cuda_move_tokens;
    ops->lora = nrd_cuda_lora;
    ops->moe_route = nrd_cuda_moe_route;
    ops->moe_linear = nrd_cuda_moe_linear;
    ops->moe_linear_gated = nrd_cuda_moe_linear_gated;
    ops->moe_sum = nrd_cuda_moe_sum;
    ops->latent_kv = nrd_cuda_latent_kv;
    ops->latent_attention = nrd_cuda_latent_attention;
    ops->short_conv = nrd_cuda_short_conv;
    ops->ssm = nrd_cuda_ssm;
    ops->delta_rule = nrd_cuda_delta_rule;
    ops->gated_norm = nrd_cuda_gated_norm;
    ops->rg_lru = nrd_cuda_rg_lru;
    ops->head_squares = nrd_cuda_head_squares;
    ops->kv_rows = nrd_cuda_kv_rows;
    ops->altup_predict = nrd_cuda_altup_predict;
    ops->altup_correct = nrd_cuda_altup_correct;
    ops->altup_match = nrd_cuda_altup_match;
    ops->has_feature = has_feature;
    ops->limits = nrd_cuda_limits;
    nrd_cuda_stream_fill_ops(ops);
    nrd_cuda_comm_fill_ops(ops);
    nrd_cuda_weight_fill_ops(ops);
}

nrd_error *nrd_device_plugin(const nrd_device_host *host, const nrd_device_config *config,
                             nrd_device **out)
{
    *out = NULL;
    nrd_plugin_host(host);
    cuda_device *dev = new (std::nothrow) cuda_device();
    if (!dev) {
        return nrd_error_no_memory();
    }
    nrd_error *err = open_checked(config, dev);
    if (err) {
        delete dev;
        return err;
    }
    fill_ops(&dev->ops);
    dev->base.ops = &dev->ops;
    *out = &dev->base;
    return NULL;
}
