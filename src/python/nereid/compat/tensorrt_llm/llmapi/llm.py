# SPDX-License-Identifier: Apache-2.0
"""The LLM API of TensorRT-LLM over nereid.LLM: models by path or by their name in the hub, generate() and generate_async()."""
import asyncio
import concurrent.futures
import os
import queue
import sys
import threading
from dataclasses import dataclass
from typing import Any, AsyncIterator, Dict, Iterator, List, Optional, Sequence, Union

import nereid
from nereid.executor import KvCacheConfig
from nereid.llm import Prompt
from nereid.programs import fetch

from tensorrt_llm.executor.request import LoRARequest
from tensorrt_llm.llmapi.drafts import text_of

# What the original is told and this engine finds out.
NO_EFFECT = ("backend", "dtype", "trust_remote_code", "max_input_len", "max_seq_len", "gpus_per_node", "cuda_graph_config",
             "attn_backend", "disable_overlap_scheduler", "tokenizer_mode", "enable_build_cache")


@dataclass
class BuildConfig:
    """Limits of a step. Lengths have no effect: they are the model's own. Engines for logits are built with `nereid build`."""
    max_batch_size: Optional[int] = None
    max_num_tokens: Optional[int] = None
    max_beam_width: Optional[int] = None
    max_input_len: Optional[int] = None
    max_seq_len: Optional[int] = None


@dataclass
class GuidedDecodingParams:
    """One of them: what an answer must be like."""
    json: Optional[str] = None
    regex: Optional[str] = None
    grammar: Optional[str] = None
    json_object: bool = False
    structural_tag: Optional[str] = None

    def guide(self) -> Any:
        """Of nereid.SamplingParams."""
        given = [(kind, text) for kind, text in (("json_schema", self.json), ("regex", self.regex), ("ebnf_grammar", self.grammar),
                                                 ("json", "" if self.json_object else None), ("structural_tag", self.structural_tag))
                 if text is not None]
        if len(given) > 1:
            raise ValueError("guided_decoding: expected one of json, regex, grammar, json_object and structural_tag")
        return given[0] if given else None


@dataclass
class SamplingParams:
    """With neither temperature nor top_k nor top_p: always the most probable token."""
    end_id: Optional[int] = None
    pad_id: Optional[int] = None               # nothing is padded
    max_tokens: int = 32
    bad: Union[None, str, Sequence[str]] = None
    stop: Union[None, str, Sequence[str]] = None
    stop_token_ids: Sequence[int] = ()
    n: int = 1
    best_of: Optional[int] = None
    use_beam_search: bool = False
    top_k: Optional[int] = None
    top_p: Optional[float] = None
    min_p: Optional[float] = None
    seed: Optional[int] = None
    temperature: Optional[float] = None
    min_tokens: int = 0
    beam_search_diversity_rate: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    length_penalty: float = 0.0
    early_stopping: Optional[int] = None
    no_repeat_ngram_size: int = 0
    ignore_eos: bool = False
    logprobs: Optional[int] = None
    prompt_logprobs: Optional[int] = None
    return_context_logits: bool = False
    return_generation_logits: bool = False
    skip_special_tokens: bool = True
    guided_decoding: Optional[GuidedDecodingParams] = None

    def ours(self, lora_id: int = 0) -> nereid.SamplingParams:
        most = self.best_of or self.n
        if most < self.n:
            raise ValueError(f"best_of is {most}, expected at least n ({self.n})")
        greedy = self.temperature is None and self.top_k is None and self.top_p is None and not self.use_beam_search
        draws = 1 if self.use_beam_search else most
        bad = [self.bad] if isinstance(self.bad, str) else list(self.bad or ())
        return nereid.SamplingParams(
            max_tokens=self.max_tokens, temperature=0.0 if greedy else 1.0 if self.temperature is None else self.temperature,
            top_k=self.top_k or 0, top_p=self.top_p or 1.0, min_p=self.min_p or 0.0, repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty, frequency_penalty=self.frequency_penalty, n=draws,
            beam_width=most if self.use_beam_search else 1, length_penalty=self.length_penalty, early_stopping=self.early_stopping,
            beam_search_diversity_rate=self.beam_search_diversity_rate, no_repeat_ngram_size=self.no_repeat_ngram_size,
            lora_id=lora_id, seed=self.seed, stop=self.stop, bad_words=bad, min_tokens=self.min_tokens,
            stop_token_ids=[*self.stop_token_ids, *([] if self.end_id is None else [self.end_id])],
            ignore_eos=self.ignore_eos or self.end_id is not None, prompt_logprobs=self.prompt_logprobs,
            return_context_logits=self.return_context_logits, return_generation_logits=self.return_generation_logits,
            logprobs=0 if self.logprobs is None and draws > self.n else self.logprobs,
            skip_special_tokens=self.skip_special_tokens, guide=self.guided_decoding and self.guided_decoding.guide())

    def best(self, output: nereid.RequestOutput) -> nereid.RequestOutput:
        """The n answers that were asked for, of best_of."""
        if len(output.outputs) > self.n:
            if not self.use_beam_search:
                output.outputs.sort(key=lambda answer: -(answer.cumulative_logprob or 0.0))
            del output.outputs[self.n:]
        return output


class RequestResult:
    """A request under way: result(), `await`, or an output for each piece by `for` or `async for`."""

    def __init__(self, llm: nereid.LLM, prompt: Prompt, params: SamplingParams, lora_id: int) -> None:
        self._pieces: "queue.SimpleQueue[Optional[nereid.RequestOutput]]" = queue.SimpleQueue()
        self._done: "concurrent.futures.Future[Any]" = concurrent.futures.Future()
        threading.Thread(target=self._run, args=(llm, prompt, params, lora_id), daemon=True).start()

    def _run(self, llm: nereid.LLM, prompt: Prompt, params: SamplingParams, lora_id: int) -> None:
        output = None
        try:
            for piece in llm.stream(prompt, params.ours(lora_id)):
                output = piece.output
                self._pieces.put(output)
            self._done.set_result(output and params.best(output))
        except Exception as e:  # who waits gets it
            self._done.set_exception(e)
        self._pieces.put(None)

    def result(self, timeout: Optional[float] = None) -> nereid.RequestOutput:
        return self._done.result(timeout)

    def __await__(self) -> Any:
        return asyncio.wrap_future(self._done).__await__()

    def __iter__(self) -> Iterator[nereid.RequestOutput]:
        while True:
            output = self._pieces.get()
            if output is None:
                self._done.result()  # its error
                return
            yield output

    async def __aiter__(self) -> AsyncIterator[nereid.RequestOutput]:
        while True:
            output = await asyncio.get_running_loop().run_in_executor(None, self._pieces.get)
            if output is None:
                self._done.result()
                return
            yield output


class LLM:
    """A model that answers prompts. Arguments that nereid.LLM does not know are errors; those without an effect are said."""

    def __init__(self, model: Union[str, "os.PathLike[str]"], tokenizer: Union[None, str, "os.PathLike[str]"] = None, *,
                 kv_cache_config: Optional[KvCacheConfig] = None, guided_decoding_backend: Optional[str] = None,
                 enable_chunked_prefill: bool = True, speculative_config: Any = None, build_config: Optional[BuildConfig] = None,
                 **options: Any) -> None:
        for name in NO_EFFECT:
            if options.pop(name, None) is not None:
                print(f"tensorrt_llm.LLM: {name} has no effect", file=sys.stderr)
        for name in ("max_batch_size", "max_num_tokens", "max_beam_width") if build_config else ():
            if options.get(name) is None:
                options[name] = getattr(build_config, name)
        if speculative_config is not None:
            options["speculative_config"] = text_of(speculative_config)
        kv = kv_cache_config or KvCacheConfig(enable_block_reuse=True)
        options.update(enable_kv_cache_reuse=kv.enable_block_reuse, max_tokens_in_paged_kv_cache=kv.max_tokens,
                       kv_cache_free_mem_fraction=kv.free_gpu_memory_fraction, sink_token_length=kv.sink_token_length,
                       kv_cache_host_memory_bytes=kv.host_cache_size, max_attention_window=kv.max_attention_window,
                       enable_chunked_context=enable_chunked_prefill)
        self._llm = nereid.LLM(fetch(os.fspath(model)), tokenizer=tokenizer, guided_decoding=guided_decoding_backend is not None,
                               **{name: value for name, value in options.items() if value is not None})

        self._adapters: Dict[int, str] = {}  # folders by their numbers
        self._lock = threading.Lock()

    def _adapter(self, request: Optional[LoRARequest]) -> int:
        """The number of an adapter, which is loaded now unless it was."""
        if request is None:
            return 0
        path = os.path.realpath(request.path)
        with self._lock:
            if request.adapter_id not in self._adapters:
                self._llm.load_lora(request.adapter_id, path)
                self._adapters[request.adapter_id] = path
        if self._adapters[request.adapter_id] != path:
            raise ValueError(f"lora_int_id {request.adapter_id} is that of '{self._adapters[request.adapter_id]}'")
        return request.adapter_id

    @property
    def tokenizer(self) -> Any:
        return self._llm.tokenizer

    def generate(self, inputs: Any, sampling_params: Union[None, SamplingParams, Sequence[SamplingParams]] = None,
                 use_tqdm: bool = True, lora_request: Union[None, LoRARequest, Sequence[Optional[LoRARequest]]] = None
                 ) -> Union[nereid.RequestOutput, List[nereid.RequestOutput]]:
        """A list for a list. There is no bar of progress, whatever use_tqdm is. lora_request: an adapter for all prompts, or one or None for each."""
        params = sampling_params or SamplingParams()
        several = lora_request is not None and not isinstance(lora_request, LoRARequest)
        if several and isinstance(params, SamplingParams):
            params = [params] * len(lora_request)
        if isinstance(params, SamplingParams):
            got = self._llm.generate(inputs, params.ours(self._adapter(lora_request)))
            return [params.best(o) for o in got] if isinstance(got, list) else params.best(got)
        adapters = lora_request if several else [lora_request] * len(params)
        if len(adapters) != len(params):
            raise ValueError(f"{len(params)} sampling_params and {len(adapters)} of lora_request")
        got = self._llm.generate(inputs, [p.ours(self._adapter(a)) for p, a in zip(params, adapters)])
        return [p.best(o) for p, o in zip(params, got)]

    def generate_async(self, inputs: Prompt, sampling_params: Optional[SamplingParams] = None, streaming: bool = False,
                       lora_request: Optional[LoRARequest] = None) -> RequestResult:
        """One prompt. Its pieces come either way; streaming says only that they will be read."""
        return RequestResult(self._llm, inputs, sampling_params or SamplingParams(), self._adapter(lora_request))

    def shutdown(self) -> None:
        self._llm.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *error: Any) -> None:
        self.shutdown()
