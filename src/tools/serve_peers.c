/* SPDX-License-Identifier: Apache-2.0
 * Options of vLLM's, llama.cpp's and TensorRT-LLM's servers that need nothing here, or have another way: people bring their command
 * lines along. Not in --help.
 *
 * Source: the references of `vllm serve`, llama-server and `trtllm-serve`. */
#include "tools/serve_internal.h"
#include "tools/tools.h"

/* With a value, and alone. A row that takes none must say so: the word behind it may be PATH. */
#define VALUE(name_, alias_, help_) NRD_OPT_WITHOUT_EFFECT(name_, alias_, help_)
#define ALONE(name_, alias_, help_)                                                                \
    {.name = name_, .form = NRD_OPT_FLAG, .help = help_, .alias = alias_, .state = NRD_OPT_NO_EFFECT}

const nrd_opt nrd_serve_peer_rows[] = {
    /* llama.cpp */
    ALONE("jinja", NULL, "chat templates are always run"),
    VALUE("n_gpu_layers", "-ngl --gpu_layers", "all layers are on the GPU where there is one; for a part of the weights: --set gpu_weights_percent:0.5"),
    VALUE("flash_attn", "-fa", "it is always used"),
    ALONE("cont_batching", "-cb", "requests always share steps"),
    ALONE("mlock", NULL, "weights are read once"),
    ALONE("no_mmap", NULL, "an engine is made of the file"),
    ALONE("metrics", NULL, "/metrics is always there"),
    ALONE("slots", NULL, "/slots is always there"),
    ALONE("props", NULL, "/props is always there"),
    ALONE("embeddings", "--embedding", "/v1/embeddings is always there"),
    ALONE("reranking", "--rerank", "/v1/rerank is always there"),
    VALUE("ubatch_size", "-ub", "a step has up to --max-num-tokens"),
    VALUE("reasoning_format", NULL, "reasoning is told apart as the model's template does"),
    ALONE("no_warmup", NULL, "no request runs before the first one; a model_warmup of a repository does"),
    ALONE("no_context_shift", NULL, "an answer ends where the context is full"),
    REFUSED("verbose", "--log_verbosity -lv", "use --log-verbose=1"),
    REFUSED("log_disable", NULL, "use --log-info=false"),
    REFUSED("main_gpu", "-mg", "set CUDA_VISIBLE_DEVICES, or use --set gpu_device_ids:0"),
    REFUSED("tensor_split", "-ts --split_mode -sm", "use --tp-size"),
    REFUSED("no_webui", "--no_ui", "use --ui=false"),
    REFUSED("cache_type_k", "-ctk --cache_type_v -ctv", "use --kv-cache-dtype fp8 or int8, for both"),
    REFUSED("model_draft", "-md --hf_repo_draft -hfd", "use --speculative-config '{\"method\": \"draft_model\", \"model\": \"PATH\"}'"),
    REFUSED("n_predict", "-n --predict", "requests say max_tokens"),
    REFUSED("temp", "--temperature", "requests say temperature; for all of them edit generation_config.json"),
    REFUSED("models_dir", NULL, "name the models: nereid serve A B"),
    REFUSED("n_cpu_moe", "-ncmoe -cmoe --cpu_moe", "use --set gpu_weights_percent:0.5"),
    /* vLLM */
    ALONE("trust_remote_code", NULL, "no code of a model is run"),
    ALONE("enforce_eager", NULL, "use --set cuda_graph_mode:false, where steps must not be recorded"),
    ALONE("enable_auto_tool_choice", NULL, "models with a template for tools may call them"),
    VALUE("tool_call_parser", "--tool_parser", "the template tells the form of calls"),
    VALUE("reasoning_parser", NULL, "the template tells the form of reasoning"),
    ALONE("enable_reasoning", NULL, "reasoning is told apart as the model's template does"),
    VALUE("chat_template_content_format", NULL, "the template tells it"),
    ALONE("enable_prefix_caching", NULL, "it is on"),
    ALONE("enable_chunked_prefill", NULL, "it is on"),
    ALONE("enable_lora", NULL, "--lora NAME=FOLDER, or /v1/load_lora_adapter"),
    VALUE("max_loras", NULL, "adapters come and go within lora_cache_gpu_memory_fraction"),
    VALUE("max_lora_rank", NULL, "the engine tells it"),
    ALONE("disable_log_requests", "--no_enable_log_requests --disable_log_stats", "requests are logged with --log-verbose only"),
    VALUE("uvicorn_log_level", NULL, "use --log-verbose"),
    VALUE("load_format", NULL, "the files tell it"),
    VALUE("tokenizer_mode", "--config_format", "the files tell it"),
    VALUE("limit_mm_per_prompt", NULL, "pictures are limited by the length of the prompt"),
    VALUE("block_size", NULL, "use --build --tokens_per_block=N"),
    VALUE("swap_space", NULL, "use --set kv_cache_host_memory_bytes:N for a cache in host memory"),
    VALUE("seed", NULL, "requests say theirs"),
    VALUE("root_path", NULL, "the page and the APIs work below any path"),
    ALONE("enable_sleep_mode", NULL, "/sleep and /wake_up are there where models have names: NAME=PATH"),
    ALONE("async_scheduling", NULL, "the next step is planned while one runs, where the device can"),
    VALUE("distributed_executor_backend", NULL, "ranks are processes of this host, or of several under mpirun and srun"),
    VALUE("structured_outputs_config", "--guided_decoding_backend", "guides are always there"),
    VALUE("compilation_config", NULL, "kernels are compiled already"),
    REFUSED("enable_expert_parallel", "-ep", "use --moe-ep-size"),
    REFUSED("enable_log_requests", NULL, "use --log-verbose=1"),
    REFUSED("override_generation_config", NULL, "edit generation_config.json, or let requests say the values"),
    REFUSED("no_enable_prefix_caching", NULL, "use --set enable_kv_cache_reuse:False"),
    REFUSED("cpu_offload_gb", NULL, "use --set gpu_weights_percent:0.5, the share of the weights that is on the GPU"),
    REFUSED("data_parallel_size", "-dp", "start a server for each GPU behind a balancer (docs/scaling.md)"),
    REFUSED("revision", NULL, "say it with the name: ORG/NAME@REVISION"),
    REFUSED("download_dir", NULL, "set HF_HUB_CACHE or HF_HOME"),
    REFUSED("hf_token", "-hft", "set HF_TOKEN: command lines are seen by others"),
    REFUSED("allowed_origins", NULL, "use --cors-origin"),
    REFUSED("task", "--runner", "the model's files tell what it can do"),
    REFUSED("hf_overrides", "--rope_scaling", "edit config.json"),
    /* TensorRT-LLM */
    VALUE("backend", NULL, "there is one engine"),
    VALUE("gpus_per_node", "--cluster_size --moe_cluster_parallel_size", "ranks are processes of this host, or of several under mpirun and srun"),
    VALUE("num_postprocess_workers", NULL, "text is made of tokens beside the steps, by threads of the server"),
    VALUE("log_level", NULL, "use --log-verbose=1 for more, --log-info=false for less"),
    REFUSED("fail_fast_on_attention_window_too_large", NULL, "use -c N, the length that must fit"),
    REFUSED("custom_tokenizer", NULL, "no code of a model is run; --tokenizer DIR takes its files"),
    REFUSED("metadata_server_config_file", "--server_role --disagg_cluster_uri", "see docs/disaggregated.md"),
    REFUSED("otlp_traces_endpoint", NULL, "use --trace-config=mode=opentelemetry --trace-config=opentelemetry,url=URL"),
};
const size_t nrd_serve_n_peer_rows = sizeof nrd_serve_peer_rows / sizeof *nrd_serve_peer_rows;
