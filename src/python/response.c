/* SPDX-License-Identifier: Apache-2.0
 * What the executor answers, as tuples; src/python/nereid gives their members names. */
#include "python/module.h"

static PyObject *int_list(const int32_t *v, int32_t n)
{
    PyObject *list = PyList_New(n);
    for (int32_t i = 0; list && i < n; i++) {
        PyObject *item = PyLong_FromLong(v[i]);
        if (!item || PyList_SetItem(list, i, item) != 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

static PyObject *float_list(const float *v, int32_t n)
{
    PyObject *list = PyList_New(n);
    for (int32_t i = 0; list && i < n; i++) {
        PyObject *item = PyFloat_FromDouble((double)v[i]);
        if (!item || PyList_SetItem(list, i, item) != 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

static PyObject *none(void)
{
    Py_RETURN_NONE;
}

static PyObject *floats_as_bytes(const float *v, size_t n)
{
    return v ? PyBytes_FromStringAndSize((const char *)v, (Py_ssize_t)(n * sizeof *v)) : none();
}

/* [[(id, log probability)]], one list for each of n tokens */
static PyObject *top_of(const int32_t *ids, const float *log_probs, int32_t n, int32_t n_top)
{
    PyObject *all = PyList_New(n);
    for (int32_t i = 0; all && i < n; i++) {
        PyObject *one = PyList_New(n_top);
        for (int32_t k = 0; one && k < n_top; k++) {
            const size_t at = (size_t)i * (size_t)n_top + (size_t)k;
            PyObject *pair = Py_BuildValue("(id)", ids[at], (double)log_probs[at]);
            if (!pair || PyList_SetItem(one, k, pair) != 0) {
                Py_CLEAR(one);
            }
        }
        if (!one || PyList_SetItem(all, i, one) != 0) {
            Py_CLEAR(all);
        }
    }
    return all;
}

/* (ids, cumulative log probability, log probabilities, finish reason, the best at each token) */
static PyObject *beam(const nrd_beam_output *b, int32_t n_top)
{
    return Py_BuildValue("(NdNiN)", int_list(b->ids, b->n_ids), (double)b->cum_log_prob,
                         b->log_probs ? float_list(b->log_probs, b->n_log_probs) : none(),
                         (int)b->finish_reason,
                         b->top_ids ? top_of(b->top_ids, b->top_log_probs, b->n_log_probs, n_top) : none());
}

static PyObject *beams(const nrd_exec_response *r)
{
    PyObject *list = PyList_New(r->n_beams);
    for (int32_t i = 0; list && i < r->n_beams; i++) {
        PyObject *item = beam(&r->beams[i], r->n_top);
        if (!item || PyList_SetItem(list, i, item) != 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

static PyObject *perf(const nrd_perf_metrics *p)
{
    return Py_BuildValue("(LLLLiiiiii)", (long long)p->arrival_ns, (long long)p->first_scheduled_ns,
                         (long long)p->first_token_ns, (long long)p->last_token_ns,
                         p->kv_new_blocks, p->kv_reused_blocks, p->kv_total_blocks,
                         p->n_draft_tokens, p->n_accepted_draft_tokens, p->n_paused);
}

/* (log probabilities, ranks, the best in the place of each) of the prompt's tokens, or None */
static PyObject *prompt_probs(const nrd_exec_response *r)
{
    return !r->prompt_log_probs ? none()
                                : Py_BuildValue("(NNN)", float_list(r->prompt_log_probs, r->n_input_ids), int_list(r->prompt_ranks, r->n_input_ids),
                                                top_of(r->prompt_top_ids, r->prompt_top_log_probs, r->n_input_ids, r->n_prompt_top));
}

PyObject *nrd_py_response(const nrd_exec_response *r)
{
    const size_t vocab = (size_t)r->vocab;
    return Py_BuildValue(
        "(KKNNiNNiNNiiNNN)", (unsigned long long)r->id, (unsigned long long)r->client_id,
        PyBool_FromLong(r->is_final), PyBool_FromLong(r->is_sequence_final), r->sequence_index,
        nrd_py_error_tuple(r->error), beams(r), r->n_input_ids,
        floats_as_bytes(r->context_logits, (size_t)r->n_input_ids * vocab),
        floats_as_bytes(r->generation_logits,
                        (size_t)r->n_beams * (size_t)r->n_generation_logits * vocab),
        r->n_generation_logits, r->vocab, r->is_final ? perf(&r->perf) : none(),
        floats_as_bytes(r->embedding, (size_t)r->n_embedding), prompt_probs(r));
}

PyObject *nrd_py_iter_stats(const nrd_iter_stats *s)
{
    return Py_BuildValue(
        "{s:K,s:K,s:d,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:L,s:L,s:K,"
        "s:K,s:K,s:i,s:i,s:i,s:L,s:i,s:i}",
        "iteration", (unsigned long long)s->iteration, "timestamp_us",
        (unsigned long long)s->timestamp_us, "iteration_ms", s->iteration_ms, "n_active",
        s->n_active, "max_active", s->max_active, "n_scheduled", s->n_scheduled, "n_context",
        s->n_context, "n_generation", s->n_generation, "n_waiting", s->n_waiting, "n_paused",
        s->n_paused, "n_terminated", s->n_terminated, "n_context_tokens", s->n_context_tokens,
        "micro_batch_id", s->micro_batch_id, "n_generated_tokens", s->n_generated_tokens,
        "n_empty_generation_slots", s->n_empty_generation_slots, "kv_max_blocks", s->kv_max_blocks,
        "kv_free_blocks", s->kv_free_blocks, "kv_used_blocks", s->kv_used_blocks,
        "kv_tokens_per_block", s->kv_tokens_per_block, "kv_reused_blocks",
        (long long)s->kv_reused_blocks, "kv_missed_blocks", (long long)s->kv_missed_blocks,
        "mem_cpu_bytes", (unsigned long long)s->mem_cpu_bytes, "mem_gpu_bytes",
        (unsigned long long)s->mem_gpu_bytes, "mem_pinned_bytes",
        (unsigned long long)s->mem_pinned_bytes, "n_drafts", s->n_drafts, "n_draft_tokens",
        s->n_draft_tokens, "n_accepted_draft_tokens", s->n_accepted_draft_tokens, "kv_unusable_blocks",
        (long long)s->kv_unusable_blocks, "kept_states", s->kept_states, "max_states", s->max_states);
}

PyObject *nrd_py_info(const nrd_exec_info *i)
{
    return Py_BuildValue("{s:s,s:s,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:K,s:K,s:i,s:i,s:i,s:N,s:N}",
                         "architecture", i->architecture, "device", i->device, "vocab", i->vocab,
                         "n_layers", i->n_layers, "hidden", i->hidden, "max_batch_size",
                         i->max_batch_size, "max_input_len", i->max_input_len, "max_seq_len",
                         i->max_seq_len, "max_num_tokens", i->max_num_tokens, "max_beam_width",
                         i->max_beam_width, "tokens_per_block", i->tokens_per_block, "n_kv_blocks",
                         i->n_kv_blocks, "weight_bytes", (unsigned long long)i->weight_bytes,
                         "kv_cache_bytes", (unsigned long long)i->kv_cache_bytes, "bos_id",
                         i->bos_id, "eos_id", i->eos_id, "pad_id", i->pad_id, "gather_context_logits",
                         PyBool_FromLong(i->gather_context_logits), "gather_generation_logits",
                         PyBool_FromLong(i->gather_generation_logits));
}
