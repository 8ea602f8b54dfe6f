# SPDX-License-Identifier: Apache-2.0
"""The commands of the published guides, typed one after the other, and the shape of what they print.

Stand-ins: small random models, so the words of an answer say nothing; ports are free ones; two ranks where a guide
has four. What a guide does with containers and downloads falls away."""
import json

QUESTION = {"text_input": "What is machine learning?", "max_tokens": 20, "bad_words": "", "stop_words": ""}
KEYS = {"model_name", "model_version", "sequence_end", "sequence_id", "sequence_start", "text_output"}


def check(answer, model="ensemble"):
    """As the guides show it; later releases leave the three keys of sequences out where there is none."""
    assert set(answer) <= KEYS | {"cum_log_probs", "output_log_probs", "context_logits", "generation_logits", "batch_index",
                                  "sequence_index"}, answer
    assert answer["model_name"] == model and answer["model_version"] == "1"
    assert isinstance(answer["text_output"], str) and answer["text_output"]


def test_readme_of_v0_9_to_v0_16(guide, models):
    """gpt2: convert_checkpoint.py, trtllm-build, the five models, launch_triton_server.py, generate."""
    said, _ = guide.type(f"""
        cd tensorrt_llm/examples/gpt
        python3 convert_checkpoint.py --model_dir {models['gpt2']} --dtype float16 --tp_size 2 --output_dir $OUT/c-model/gpt2/fp16/2-gpu
        trtllm-build --checkpoint_dir $OUT/c-model/gpt2/fp16/2-gpu --gpt_attention_plugin float16 --remove_input_padding enable \\
            --paged_kv_cache enable --gemm_plugin float16 --output_dir $OUT/engines/fp16/2-gpu
    """, OUT=str(guide.folder))
    assert "Total time of converting checkpoints: 00:00:" in said
    assert "Total time of building all engines: 00:00:" in said
    assert sorted(p.name for p in (guide.folder / "engines/fp16/2-gpu").iterdir()) == [
        "config.json", "rank0.engine", "rank1.engine"]
    guide.type(f"""
        mkdir triton_model_repo
        cp -r all_models/inflight_batcher_llm/* triton_model_repo/
        cp engines/fp16/2-gpu/* triton_model_repo/tensorrt_llm/1
        for m in preprocessing postprocessing; do
            python3 tools/fill_template.py -i triton_model_repo/$m/config.pbtxt tokenizer_dir:{models['gpt2']},triton_max_batch_size:4,preprocessing_instance_count:1,postprocessing_instance_count:1,add_special_tokens:False,skip_special_tokens:True,max_queue_delay_microseconds:0
        done
        python3 tools/fill_template.py -i triton_model_repo/ensemble/config.pbtxt triton_max_batch_size:4,logits_datatype:TYPE_FP32
        python3 tools/fill_template.py -i triton_model_repo/tensorrt_llm_bls/config.pbtxt triton_max_batch_size:4,decoupled_mode:False,bls_instance_count:1,accumulate_tokens:False,logits_datatype:TYPE_FP32
        python3 tools/fill_template.py -i triton_model_repo/tensorrt_llm/config.pbtxt triton_backend:tensorrtllm,triton_max_batch_size:4,decoupled_mode:False,max_beam_width:1,engine_dir:$PWD/triton_model_repo/tensorrt_llm/1,kv_cache_free_gpu_mem_fraction:0.01,batching_strategy:inflight_fused_batching,max_queue_delay_microseconds:0,encoder_input_features_data_type:TYPE_FP16,logits_datatype:TYPE_FP32
    """)
    guide.launch("python3 scripts/launch_triton_server.py --world_size=2 --model_repo=triton_model_repo")
    for model in ("ensemble", "tensorrt_llm_bls"):
        check(guide.generate(QUESTION, model), model)


def test_folders_of_the_examples_in_later_releases(guide, models):
    said, _ = guide.type(f"""
        cd tensorrt_llm/examples/models/core/gpt
        python3 convert_checkpoint.py --model_dir {models['gpt2']} --output_dir $OUT/ckpt
        trtllm-build --checkpoint_dir $OUT/ckpt --output_dir $OUT/engine
        python3 ../../../run.py --engine_dir $OUT/engine --tokenizer_dir {models['gpt2']} --max_output_len 8
        cd ../../contrib/chatglm-6b
        python3 convert_checkpoint.py --model_dir {models['llama']} --output_dir $OUT/other
        python3 ../../../dbrx/convert_checkpoint.py --model_dir {models['llama']} --output_dir $OUT/third
    """, OUT=str(guide.folder))
    assert said.count("Total time of converting checkpoints: 00:00:") == 3 and 'Output [Text 0 Beam 0]: "' in said


def test_llama_guide_of_v0_9(guide, models):
    """docs/llama.md: one rank, blank-separated options, words that stop, and twenty requests at once."""
    guide.type(f"""
        export HF_LLAMA_MODEL={models['llama']} UNIFIED_CKPT_PATH=ckpt/llama/7b/ ENGINE_PATH=$PWD/engines/llama/7b/
        python examples/llama/convert_checkpoint.py --model_dir $HF_LLAMA_MODEL --output_dir $UNIFIED_CKPT_PATH --dtype float16
        trtllm-build --checkpoint_dir $UNIFIED_CKPT_PATH --remove_input_padding enable --gpt_attention_plugin float16 \\
            --context_fmha enable --gemm_plugin float16 --output_dir $ENGINE_PATH --paged_kv_cache enable --max_batch_size 64
        cp all_models/inflight_batcher_llm/ llama_ifb -r
        python3 tools/fill_template.py -i llama_ifb/preprocessing/config.pbtxt tokenizer_dir:$HF_LLAMA_MODEL,triton_max_batch_size:64,preprocessing_instance_count:1
        python3 tools/fill_template.py -i llama_ifb/postprocessing/config.pbtxt tokenizer_dir:$HF_LLAMA_MODEL,triton_max_batch_size:64,postprocessing_instance_count:1
        python3 tools/fill_template.py -i llama_ifb/tensorrt_llm_bls/config.pbtxt triton_max_batch_size:64,decoupled_mode:False,bls_instance_count:1,accumulate_tokens:False
        python3 tools/fill_template.py -i llama_ifb/ensemble/config.pbtxt triton_max_batch_size:64
        python3 tools/fill_template.py -i llama_ifb/tensorrt_llm/config.pbtxt triton_max_batch_size:64,decoupled_mode:False,max_beam_width:1,engine_dir:$ENGINE_PATH,max_tokens_in_paged_kv_cache:2560,max_attention_window_size:2560,kv_cache_free_gpu_mem_fraction:0.5,exclude_input_in_output:True,enable_kv_cache_reuse:False,batching_strategy:inflight_fused_batching,max_queue_delay_microseconds:0
    """.replace("python examples", "python3 examples"))
    guide.launch("python3 scripts/launch_triton_server.py --world_size 1 --model_repo=llama_ifb/")
    ends = {**QUESTION, "pad_id": 2, "end_id": 2}
    check(guide.generate(ends))
    check(guide.generate({**ends, "bad_words": ["intelligence", "model"], "stop_words": ["focuses", "learn"]}))
    guide.type(f"""echo '{json.dumps(ends)}' > tmp.txt
        printf '%s\\n' {{1..20}} | xargs -I % -P 20 curl -s -X POST localhost:{guide.http}/v2/models/ensemble/generate -d @tmp.txt -o answer.%
    """)
    answers = [json.loads((guide.folder / f"answer.{i}").read_text()) for i in range(1, 21)]
    for answer in answers:
        check(answer)
    assert len({a["text_output"] for a in answers}) == 1
