/* SPDX-License-Identifier: Apache-2.0
 * stream.cu - streams, events, graphs, copies, and the scratch memory of a stream. */
#include "device/cuda/gemm_cublaslt.cuh"

#include <new>

static nrd_error *stream_new(nrd_device *d, nrd_stream **out)
{
    cuda_device *dev = (cuda_device *)d;
    cudaStream_t cs = NULL;

    *out = NULL;
    CUDA_TRY(cudaSetDevice(dev->id));
    CUDA_TRY(cudaStreamCreateWithFlags(&cs, cudaStreamNonBlocking));
    nrd_stream *s = new (std::nothrow) nrd_stream();
    if (!s) {
        (void)cudaStreamDestroy(cs);
        return nrd_error_no_memory();
    }
    s->dev = dev;
    s->s = cs;
    *out = s;
    return NULL;
}

static void stream_free(nrd_stream *s)
{
    if (!s) {
        return;
    }
    nrd_device *d = &s->dev->base;
    (void)cudaSetDevice(s->dev->id);
    (void)cudaStreamSynchronize(s->s);
    stream_free(s->side);
    if (s->forked) {
        (void)cudaEventDestroy(s->forked);
    }
    if (s->side_done) {
        (void)cudaEventDestroy(s->side_done);
    }
    nrd_cuda_lt_forget(s->dev->lt, s);
    nrd_cuda_pool_free(d, NRD_MEM_DEVICE, s->split_ws);
    nrd_cuda_pool_free(d, NRD_MEM_DEVICE, s->counters);
    nrd_cuda_pool_free(d, NRD_MEM_DEVICE, s->lt_ws);
    nrd_cuda_pool_free(d, NRD_MEM_DEVICE, s->tmp);
    (void)cudaStreamDestroy(s->s);
    delete s;
}

nrd_error *nrd_cuda_stream_scratch(nrd_stream *s)
{
    nrd_device *d = &s->dev->base;
    void *p;

    if (s->lt_ws) {
        return NULL;
    }
    if (s->capturing) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "cuda: call reserve() on this stream before capturing a graph");
    }
    if (!s->split_ws) {
        NRD_TRY(nrd_cuda_pool_alloc(d, &p, NRD_MEM_DEVICE, SPLIT_WS_BYTES, "workspace"));
        s->split_ws = (char *)p;
    }
    if (!s->counters) {
        NRD_TRY(nrd_cuda_pool_alloc(d, &p, NRD_MEM_DEVICE, N_COUNTERS * sizeof(int), "workspace"));
        s->counters = (int *)p;
    }
    NRD_TRY(nrd_cuda_pool_alloc(d, &p, NRD_MEM_DEVICE, LT_WS_BYTES, "workspace"));
    s->lt_ws = p;
    return NULL;
}

nrd_error *nrd_cuda_stream_tmp(nrd_stream *s, size_t bytes, void **out)
{
    if (bytes > s->tmp_bytes) {
        void *p;
        if (s->capturing) {
            return nrd_errorf(NRD_ERR_INVALID_ARG,
                              "cuda: %zu bytes of scratch needed in a graph, %zu reserved", bytes,
                              s->tmp_bytes);
        }
        CUDA_TRY(cudaStreamSynchronize(s->s));
        nrd_cuda_pool_free(&s->dev->base, NRD_MEM_DEVICE, s->tmp);
        s->tmp = NULL;
        s->tmp_bytes = 0;
        NRD_TRY(nrd_cuda_pool_alloc(&s->dev->base, &p, NRD_MEM_DEVICE, bytes, "workspace"));
        s->tmp = (char *)p;
        s->tmp_bytes = bytes;
    }
    *out = s->tmp;
    return NULL;
}

static nrd_error *side_scratch(nrd_stream *s)
{
    nrd_device *d = &s->dev->base;
    void *p;

    if (s->side_done) {
        return NULL;
    }
    if (s->capturing) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "cuda: call reserve() on this stream before capturing a graph");
    }
    if (!s->side) {
        NRD_TRY(stream_new(d, &s->side));
    }
    if (!s->side->split_ws) {
        NRD_TRY(nrd_cuda_pool_alloc(d, &p, NRD_MEM_DEVICE, SIDE_WS_BYTES, "workspace"));
        s->side->split_ws = (char *)p;
    }
    if (!s->side->counters) {
        NRD_TRY(nrd_cuda_pool_alloc(d, &p, NRD_MEM_DEVICE, N_COUNTERS * sizeof(int), "workspace"));
        s->side->counters = (int *)p;
    }
    if (!s->forked) {
        CUDA_TRY(cudaEventCreateWithFlags(&s->forked, cudaEventDisableTiming));
    }
    CUDA_TRY(cudaEventCreateWithFlags(&s->side_done, cudaEventDisableTiming));
    return NULL;
}

nrd_error *nrd_cuda_stream_fork(nrd_stream *s, nrd_stream **side)
{
    NRD_TRY(side_scratch(s));
    CUDA_TRY(cudaEventRecord(s->forked, s->s));
    CUDA_TRY(cudaStreamWaitEvent(s->side->s, s->forked, 0));
    s->side->joined = s->joined = true; /* both follow the fork wholly: edges of one kind in a graph */
    *side = s->side;
    return NULL;
}

nrd_error *nrd_cuda_stream_join(nrd_stream *s)
{
    CUDA_TRY(cudaEventRecord(s->side_done, s->side->s));
    CUDA_TRY(cudaStreamWaitEvent(s->s, s->side_done, 0));
    s->joined = true;
    return NULL;
}

static nrd_error *reserve(nrd_stream *s, int32_t max_tokens, int32_t max_seqs, int32_t max_hidden,
                          int32_t max_ctx_len, int32_t vocab)
{
    void *p;

    (void)max_seqs;
    (void)max_ctx_len;
    (void)vocab;
    CUDA_TRY(cudaSetDevice(s->dev->id));
    NRD_TRY(nrd_cuda_stream_scratch(s));
    if (s->dev->hopper) {
        NRD_TRY(side_scratch(s));
    }
    /* attention writes its rows here when it must hand on F8, linear() rows that it must pad */
    const size_t bytes = (size_t)(max_tokens > 0 ? max_tokens : 1) * (size_t)(max_hidden > 0 ? max_hidden : 1) * 4;
    return nrd_cuda_stream_tmp(s, bytes, &p);
}

static nrd_error *stream_sync(nrd_stream *s)
{
    CUDA_TRY(cudaStreamSynchronize(s->s));
    return nrd_cuda_comm_health(s->dev);
}

static nrd_error *event_new(nrd_device *d, nrd_event **out)
{
    cuda_device *dev = (cuda_device *)d;
    cudaEvent_t ce = NULL;

    *out = NULL;
    CUDA_TRY(cudaSetDevice(dev->id));
    CUDA_TRY(cudaEventCreate(&ce));
    nrd_event *e = new (std::nothrow) nrd_event();
    if (!e) {
        (void)cudaEventDestroy(ce);
        return nrd_error_no_memory();
    }
    e->dev = dev;
    e->e = ce;
    *out = e;
    return NULL;
}

static void event_free(nrd_event *e)
{
    if (e) {
        (void)cudaEventDestroy(e->e);
        delete e;
    }
}

static nrd_error *event_record(nrd_stream *s, nrd_event *e)
{
    CUDA_TRY(cudaEventRecord(e->e, s->s));
    return NULL;
}

static nrd_error *event_wait(nrd_event *e)
{
    CUDA_TRY(cudaEventSynchronize(e->e));
    return nrd_cuda_comm_health(e->dev);
}

static nrd_error *event_elapsed(nrd_event *from, nrd_event *to, double *out_seconds)
{
    float ms = 0.0f;
    CUDA_TRY(cudaEventElapsedTime(&ms, from->e, to->e));
    *out_seconds = (double)ms / 1e3;
    return NULL;
}

static nrd_error *stream_wait(nrd_stream *s, nrd_event *e)
{
    CUDA_TRY(cudaStreamWaitEvent(s->s, e->e, 0));
    s->joined = true;
    return NULL;
}

static nrd_error *graph_begin(nrd_stream *s)
{
    CUDA_TRY(cudaSetDevice(s->dev->id));
    NRD_TRY(nrd_cuda_stream_scratch(s));
    CUDA_TRY(cudaStreamBeginCapture(s->s, cudaStreamCaptureModeThreadLocal));
    s->capturing = true;
    return NULL;
}

static nrd_error *graph_end(nrd_stream *s, nrd_graph **out)
{
    cudaGraph_t g = NULL;
    cudaGraphExec_t x = NULL;

    *out = NULL;
    s->capturing = false;
    CUDA_TRY(cudaStreamEndCapture(s->s, &g));
    cudaError_t e = cudaGraphInstantiate(&x, g, 0);
    if (e != cudaSuccess) {
        (void)cudaGraphDestroy(g);
        return nrd_cuda_fail(e, "cudaGraphInstantiate");
    }
    nrd_graph *graph = new (std::nothrow) nrd_graph();
    if (!graph) {
        (void)cudaGraphExecDestroy(x);
        (void)cudaGraphDestroy(g);
        return nrd_error_no_memory();
    }
    graph->dev = s->dev;
    graph->g = g;
    graph->x = x;
    *out = graph;
    return NULL;
}

static nrd_error *graph_launch(nrd_stream *s, nrd_graph *g)
{
    CUDA_TRY(cudaGraphLaunch(g->x, s->s));
    return NULL;
}

static void graph_free(nrd_graph *g)
{
    if (g) {
        (void)cudaGraphExecDestroy(g->x);
        (void)cudaGraphDestroy(g->g);
        delete g;
    }
}

static nrd_error *copy(nrd_stream *s, void *dst, const void *src, size_t bytes)
{
    if (bytes > 0) {
        CUDA_TRY(cudaSetDevice(s->dev->id)); /* of this thread: what is launched next needs it */
        CUDA_TRY(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, s->s));
    }
    return NULL;
}

static nrd_error *fill(nrd_stream *s, void *dst, int byte, size_t bytes)
{
    if (bytes > 0) {
        CUDA_TRY(cudaMemsetAsync(dst, byte, bytes, s->s));
    }
    return NULL;
}

void nrd_cuda_stream_fill_ops(nrd_device_ops *ops)
{
    ops->stream_new = stream_new;
    ops->stream_free = stream_free;
    ops->stream_sync = stream_sync;
    ops->event_new = event_new;
    ops->event_free = event_free;
    ops->event_record = event_record;
    ops->event_wait = event_wait;
    ops->event_elapsed = event_elapsed;
    ops->stream_wait = stream_wait;
    ops->graph_begin = graph_begin;
    ops->graph_end = graph_end;
    ops->graph_launch = graph_launch;
    ops->graph_free = graph_free;
    ops->copy = copy;
    ops->fill = fill;
    ops->reserve = reserve;
}
