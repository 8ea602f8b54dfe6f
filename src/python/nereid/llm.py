# SPDX-License-Identifier: Apache-2.0
"""Offline generation: prompts in, texts out. All prompts of a call run together."""
from __future__ import annotations

import json
import operator
import os
import random
import weakref
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, NoReturn, Optional, Sequence, Tuple, Union

from nereid import _arrays, _media, _nereid
from nereid._inbox import Inbox
from nereid._response import RequestPerfMetrics, _perf
from nereid.tokenizer import Tokenizer

# A text, token ids, or {"prompt": text or "prompt_token_ids": ids, "multi_modal_data": {"image": …, "video": …},
# "prompt_embedding_table": rows of numbers for the ids past the vocabulary}
Prompt = Union[str, Sequence[int], Dict[str, Any]]
_FINISH = {1: "stop", 2: "stop", 3: "length", 4: "cancelled", 5: "error"}


@dataclass
class SamplingParams:
    """How an answer is made. None: as the model's own files say, and where they say nothing as `nereid run`.
    temperature 0: always the most probable token."""
    max_tokens: int = 128
    temperature: Optional[float] = None
    top_k: Optional[int] = None
    top_p: Optional[float] = None
    min_p: Optional[float] = None
    repetition_penalty: Optional[float] = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    n: int = 1                                 # answers to each prompt
    beam_width: int = 1
    length_penalty: float = 0.0
    early_stopping: Optional[int] = None       # of beams; 1: the search ends with beam_width finished ones
    beam_search_diversity_rate: float = 0.0
    seed: Optional[int] = None                 # None: another one for each prompt
    stop: Union[None, str, Sequence[str]] = None  # texts that end the answer and are not in it
    stop_token_ids: Sequence[int] = ()
    bad_words: Sequence[str] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    no_repeat_ngram_size: int = 0              # no run of so many tokens comes twice; 0: it may
    logprobs: Optional[int] = None             # 0: of the chosen tokens; k: of the best k too, at most 20
    prompt_logprobs: Optional[int] = None      # 0: of the prompt's tokens; k: of the best k in the place of each too, at most 20
    return_context_logits: bool = False        # an engine built with gather_context_logits
    return_generation_logits: bool = False     # … with gather_generation_logits
    logit_bias: Dict[int, float] = field(default_factory=dict)
    guide: Optional[Tuple[str, str]] = None    # ("json_schema" | "regex" | "ebnf_grammar" | "json" | "structural_tag", text)
    skip_special_tokens: bool = True
    lora_id: int = 0                           # of LLM.load_lora; 0: none
    priority: float = 0.5                      # 0 to 1; larger goes first


@dataclass
class CompletionOutput:
    """One answer."""
    index: int
    text: str = ""
    token_ids: List[int] = field(default_factory=list)
    finish_reason: Optional[str] = None        # "stop", "length", "cancelled"
    stop_reason: Optional[str] = None          # the text of SamplingParams.stop that ended it
    cumulative_logprob: Optional[float] = None
    logprobs: Optional[List[float]] = None     # one for each of token_ids
    top_logprobs: Optional[List[List[Tuple[int, float]]]] = None
    generation_logits: Any = None              # [token_ids, vocabulary] float32, with the last piece: of torch where that is in use, else of NumPy


@dataclass
class RequestOutput:
    """All answers to one prompt. Times are of a steady clock in nanoseconds."""
    prompt: Optional[str]
    prompt_token_ids: List[int]
    outputs: List[CompletionOutput]
    arrival_ns: int = 0
    first_token_ns: int = 0
    last_token_ns: int = 0
    prompt_logprobs: Optional[List[Optional[float]]] = None  # one for each of prompt_token_ids, None for the first
    prompt_ranks: Optional[List[Optional[int]]] = None       # how many tokens were likelier than each, and 1
    prompt_top_logprobs: Optional[List[List[Tuple[int, float]]]] = None
    context_logits: Any = None                 # [prompt_token_ids, vocabulary] float32, with the last answer
    metrics: Optional[RequestPerfMetrics] = None  # with its last answer: times, blocks of the KV cache, drafts

    @property
    def text(self) -> str:
        """Of the first answer."""
        return self.outputs[0].text


@dataclass
class Piece:
    """What is new in an answer. `prompt`: which of the call's prompts; `finish_reason`: with its last piece; `output`: all
    answers to the prompt so far, which grow with the next pieces."""
    prompt: int
    index: int
    text: str
    token_ids: List[int]
    finish_reason: Optional[str] = None
    output: Optional[RequestOutput] = field(default=None, repr=False)


class _Answer:
    """One sequence while it grows: ids become text, and a stop text ends it."""

    def __init__(self, tokenizer: Optional[Tokenizer], index: int, params: SamplingParams, stops: List[str]) -> None:
        self.out = CompletionOutput(index)
        self.stops = stops
        self.held = ""      # may be the beginning of a stop text
        self.ended = False
        self.logits = bytearray()  # of the tokens so far
        self._detok = tokenizer and _nereid.Detokenizer(tokenizer._raw, params.skip_special_tokens)

    def push(self, ids: List[int], last: bool) -> str:
        self.out.token_ids.extend(ids)
        if self._detok is None:
            return ""
        text = self.held + self._detok.push(ids, last)
        self.held = ""
        found = [(at, s) for at, s in ((text.find(s), s) for s in self.stops) if at >= 0]
        if found:
            at, self.out.stop_reason = min(found)
            text = text[:at]
            self.ended = True
            self.out.finish_reason = "stop"
        elif not last and self.stops:
            n = _beginning(text, self.stops)
            text, self.held = text[:len(text) - n], text[len(text) - n:]
        self.out.text += text
        return text


def _beginning(text: str, stops: List[str]) -> int:
    """How many characters at the end of a text begin a stop text."""
    longest = 0
    for stop in stops:
        for n in range(min(len(stop) - 1, len(text)), longest, -1):
            if text.endswith(stop[:n]):
                longest = n
                break
    return longest


class _Job:
    """One prompt of a call."""

    def __init__(self, number: int, prompt: Optional[str], ids: List[int], params: SamplingParams,
                 images: List[bytes], videos: List[_media.Video], table: Any) -> None:
        self.number, self.params = number, params
        self.images, self.videos, self.table = images, videos, table
        self.output = RequestOutput(prompt, ids, [])
        self.answers: Dict[int, _Answer] = {}
        self.stops = [params.stop] if isinstance(params.stop, str) else list(params.stop or ())

    def over(self) -> bool:
        """Every answer met a stop text."""
        return len(self.answers) == self.params.n and all(a.ended for a in self.answers.values())

    def feed(self, tokenizer: Optional[Tokenizer], r: Tuple[Any, ...]) -> Iterator[Piece]:
        (_, _, is_final, sequence_final, sequence, error, beams, n_input, context, generation, n_generation, vocab, perf, _, prompt) = r
        if error:
            raise _nereid.error(*error)
        if perf:
            self.output.arrival_ns, _, self.output.first_token_ns, self.output.last_token_ns = perf[:4]
            self.output.metrics = _perf(perf)
        if prompt:
            log_probs, ranks, top = prompt
            self.output.prompt_logprobs, self.output.prompt_ranks = [None, *log_probs[1:]], [None, *ranks[1:]]
            self.output.prompt_top_logprobs = [[], *top[1:]]
        if context:
            self.output.context_logits = _arrays.logits(context, (n_input, vocab))
        last = is_final or sequence_final
        for i, (ids, cumulative, logprobs, finish, top) in enumerate(beams):
            key = i if self.params.beam_width > 1 else sequence
            if key not in self.answers:
                self.answers[key] = _Answer(tokenizer, key, self.params, self.stops)
                self.output.outputs = [self.answers[k].out for k in sorted(self.answers)]
            answer = self.answers[key]
            if answer.ended:
                continue
            text = answer.push(ids, last)
            out = answer.out
            if self.params.logprobs is not None:
                out.cumulative_logprob = cumulative
                out.logprobs = (out.logprobs or []) + (logprobs or [])
                if top:
                    out.top_logprobs = (out.top_logprobs or []) + top
            if generation:
                answer.logits += memoryview(generation)[4 * vocab * n_generation * i:][:4 * vocab * len(ids)]
            if self.params.return_generation_logits and (last or answer.ended):
                out.generation_logits = _arrays.logits(answer.logits, (len(out.token_ids), vocab))
            out.finish_reason = out.finish_reason or (_FINISH.get(finish) if last else None)
            if text or ids or out.finish_reason:
                yield Piece(self.number, key, text, ids, out.finish_reason, self.output)


def _is_one(prompts: Any) -> bool:
    """A text, or the ids of one prompt, as opposed to several prompts."""
    if isinstance(prompts, _BYTES) or not hasattr(prompts, "__len__"):
        raise _no_prompt(prompts)
    return isinstance(prompts, (str, dict)) or (
        len(prompts) > 0 and hasattr(prompts[0], "__index__") and not hasattr(prompts[0], "__len__"))  # as NumPy's arrays have both


_BYTES = (bytes, bytearray, memoryview)  # whose elements are numbers, but no token ids


def _no_prompt(got: Any) -> TypeError:
    return TypeError(f"expected a text or a list of token ids, got {type(got).__name__}")


def _ids_of(prompt: Any) -> List[int]:
    if isinstance(prompt, _BYTES):
        raise _no_prompt(prompt)
    try:
        return [operator.index(x) for x in prompt]
    except TypeError:
        bad = next((x for x in prompt if not hasattr(x, "__index__")), prompt) if hasattr(prompt, "__iter__") else prompt
        raise (_no_prompt(prompt) if bad is prompt else TypeError(f"expected token ids, got {type(bad).__name__}")) from None


class LLM:
    """A model that answers prompts.

    model: an engine folder, a GGUF file, a Hugging Face or a checkpoint folder. What is no engine yet is built
    once, into $NEREID_CACHE/engines where it is large. `tokenizer`: where `model` has none; without any, prompts
    must be token ids. guided_decoding: SamplingParams.guide may be used. More options are those of the executor's
    configuration (nereid/executor.h) by name: n_threads, kv_cache_free_mem_fraction, max_batch_size, ….

    Use it as a context manager, or close() it. Any number of threads may call it at once; their requests run in
    the same batches.
    """

    def __init__(self, model: Union[str, "os.PathLike[str]"], *,
                 tokenizer: Union[None, str, "os.PathLike[str]"] = None, device: str = "auto",
                 tensor_parallel_size: int = 0, pipeline_parallel_size: int = 0, moe_expert_parallel_size: int = 0,
                 guided_decoding: bool = False, **options: Any) -> None:
        # One that was named is opened before an engine is built.
        self.tokenizer: Optional[Tokenizer] = None if tokenizer is None else Tokenizer(os.fspath(tokenizer))
        path = _nereid.ModelPath(os.fspath(model), device, tensor_parallel_size, pipeline_parallel_size,
                                 moe_expert_parallel_size)
        where = path.tokenizer if tokenizer is None else os.fspath(tokenizer)
        if tokenizer is None:
            try:
                self.tokenizer = Tokenizer(where)
            except _nereid.NotFoundError:
                pass
        config = {"enable_kv_cache_reuse": True, "enable_chunked_context": True, "max_beam_width": 1, "device": device}
        if guided_decoding:
            config.update(guided_decoding_backend="xgrammar", tokenizer_dir=where)
        config.update(options)
        for name in ("max_attention_window", "device_ids"):
            if config.get(name) is not None:
                config[name] = _arrays.int32(config[name])
        self._videos: Dict[str, Any] = json.loads(_nereid.describe(path.engine)).get("videos", {})
        raw = _nereid.Executor(path.engine, config)
        self._inbox = Inbox(raw)
        self._info: Dict[str, Any] = raw.info()
        # At the end of the program too, before the interpreter takes the module apart.
        self._close = weakref.finalize(self, _close, self._inbox, path)

    # ---- generation ----

    def generate(self, prompts: Union[Prompt, Sequence[Prompt]],
                 sampling_params: Union[None, SamplingParams, Sequence[SamplingParams]] = None
                 ) -> Union[RequestOutput, List[RequestOutput]]:
        """Answers prompts, all at once: a list for a list, one output for one text or one list of ids.
        sampling_params: for all of them, or one for each. An error of one ends the call."""
        one = _is_one(prompts)
        jobs = self._jobs([prompts] if one else prompts, sampling_params)
        for _ in self._run(jobs, False):
            pass
        results = [job.output for job in jobs]
        return results[0] if one else results

    def stream(self, prompts: Union[Prompt, Sequence[Prompt]],
               sampling_params: Union[None, SamplingParams, Sequence[SamplingParams]] = None) -> Iterator[Piece]:
        """Pieces of the answers as they are made, those of several prompts in the order in which they come. Who
        stops reading (break, close()) ends the requests."""
        jobs = self._jobs([prompts] if _is_one(prompts) else prompts, sampling_params)
        return self._run(jobs, True)

    def chat(self, messages: Sequence[Any], sampling_params: Optional[SamplingParams] = None
             ) -> Union[RequestOutput, List[RequestOutput]]:
        """Answers a conversation, [{"role": "user", "content": "…"}], or several of them. Parts of a content that are
        pictures or videos have them under their type: {"type": "image", "image": "a.png"}, as multi_modal_data takes them,
        or as OpenAI's API has them."""
        one = bool(messages) and isinstance(messages[0], dict)
        if isinstance(messages, str) or not all(isinstance(m, dict) for c in ([messages] if one else messages) for m in c):
            raise TypeError('expected messages like [{"role": "user", "content": "…"}], or several such lists')
        texts, prompts = [], []
        for conversation in [messages] if one else messages:
            plain, images, videos = _media.of_messages(conversation)
            text = self._tokens().apply_chat_template(plain)
            if videos and self._videos.get("apart"):
                text = _nereid.put_times(text, [(len(frames), fps) for fps, frames in videos], self._videos["frames"])
            texts.append(text)
            prompts.append({"prompt_token_ids": self._tokens().encode(text, add_special_tokens=False),
                            "multi_modal_data": {"image": images, "video": [{"frames": f, "fps": fps} for fps, f in videos]}})
        outputs = self.generate(prompts, sampling_params)
        for output, text in zip(outputs, texts):
            output.prompt = text
        return outputs[0] if one else outputs

    # ---- adapters, state, end ----

    def load_lora(self, lora_id: int, path: Union[str, "os.PathLike[str]"]) -> None:
        """Reads an adapter's folder (PEFT, or what hf_lora_convert wrote). The LLM needs enable_lora=True."""
        self._inbox.raw.lora_load(lora_id, os.fspath(path))

    def unload_lora(self, lora_id: int) -> None:
        self._inbox.raw.lora_unload(lora_id)

    @property
    def info(self) -> Dict[str, Any]:
        """The model's sizes and limits."""
        return dict(self._info)

    def close(self) -> None:
        """Ends running requests and gives the memory back; a second time it does nothing."""
        self._close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()

    # ---- inside ----

    def _tokens(self) -> Tokenizer:
        if self.tokenizer is None:
            raise ValueError("the model has no tokenizer: name one with LLM(…, tokenizer=…), or give token ids")
        return self.tokenizer

    def _jobs(self, prompts: Sequence[Prompt], params: Any) -> List[_Job]:
        if params is None or isinstance(params, SamplingParams):
            params = [params or SamplingParams()] * len(prompts)
        if len(params) != len(prompts):
            raise ValueError(f"{len(prompts)} prompts and {len(params)} sampling_params")
        jobs = []
        for i, (prompt, p) in enumerate(zip(prompts, params)):
            table = prompt.get("prompt_embedding_table") if isinstance(prompt, dict) else None
            images, videos, prompt = self._media_of(prompt)
            text = prompt if isinstance(prompt, str) else None
            ids = self._tokens().encode(prompt) if text is not None else _ids_of(prompt)
            if not ids and self._info["bos_id"] >= 0:
                ids = [self._info["bos_id"]]
            if (p.stop or p.bad_words) and self.tokenizer is None:
                self._tokens()
            jobs.append(_Job(i, text, ids, p, images, videos, table))
        return jobs

    @staticmethod
    def _media_of(prompt: Prompt) -> Tuple[List[bytes], List[_media.Video], Union[str, Sequence[int]]]:
        if not isinstance(prompt, dict):
            return [], [], prompt
        unknown = sorted(set(prompt) - {"prompt", "prompt_token_ids", "multi_modal_data", "prompt_embedding_table"})
        if unknown or ("prompt" in prompt) == ("prompt_token_ids" in prompt):
            raise TypeError("a prompt as a dictionary has prompt or prompt_token_ids, multi_modal_data and prompt_embedding_table" +
                            (f", not {unknown[0]}" if unknown else ""))
        images, videos = _media.of_prompt(prompt.get("multi_modal_data") or {})
        return images, videos, prompt["prompt"] if "prompt" in prompt else prompt["prompt_token_ids"]

    def _run(self, jobs: List[_Job], streaming: bool) -> Iterator[Piece]:
        live: Dict[int, _Job] = {}
        try:
            for job in jobs:  # in one go, so that the engine batches them
                live[self._inbox.enqueue(self._fields(job, streaming))] = job
            while live:
                fresh = self._inbox.take(live, None)
                if self._inbox.closed or not fresh:  # the engine ends cut answers as if they were whole
                    self._cut()
                for r in fresh:
                    job = live.get(r[0])
                    if job is None:  # it met a stop text before
                        continue
                    yield from job.feed(self.tokenizer, r)
                    if r[2]:
                        del live[r[0]]
                    elif job.over():
                        del live[r[0]]
                        self._inbox.drop([r[0]])
        except _nereid.UnavailableError:
            if self._inbox.closed:
                self._cut()
            raise
        finally:
            self._inbox.drop(live)

    def _cut(self) -> NoReturn:
        raise ValueError("the LLM was closed while it answered")

    def _fields(self, job: _Job, streaming: bool) -> Dict[str, Any]:
        """The request as nereid/executor.h has it."""
        p = job.params
        own = self.tokenizer.sampling if self.tokenizer and p.beam_width <= 1 else {"temperature": 1.0, "top_k": 0,
                                                                                   "top_p": 1.0}
        stops = [[i] for i in p.stop_token_ids]
        end = self._info["eos_id"]
        if self.tokenizer:
            end = self.tokenizer.eos_token_id if self.tokenizer.eos_token_id >= 0 else end
            stops += [] if p.ignore_eos else [[i] for i in self.tokenizer.stop_token_ids if i != end]
        fields = {
            "input_ids": _arrays.int32(job.output.prompt_token_ids), "max_new_tokens": p.max_tokens,
            "streaming": (streaming or bool(job.stops)) and p.beam_width <= 1, "exclude_input_in_output": True,
            "end_id": -1 if p.ignore_eos else end, "stop_words": _arrays.phrases(stops),
            "beam_width": p.beam_width, "num_return_sequences": p.n, "min_length": p.min_tokens,
            "presence_penalty": p.presence_penalty, "frequency_penalty": p.frequency_penalty,
            "length_penalty": p.length_penalty, "beam_search_diversity_rate": p.beam_search_diversity_rate,
            "no_repeat_ngram_size": p.no_repeat_ngram_size, "lora_task_id": p.lora_id, "priority": p.priority,
            "random_seed": random.getrandbits(63) if p.seed is None else p.seed,
            "return_context_logits": p.return_context_logits, "return_generation_logits": p.return_generation_logits,
        }
        if p.early_stopping is not None:
            fields["early_stopping"] = p.early_stopping
        if job.table is not None:
            fields.update(_table(job.table, self._info["hidden"]))
        if job.images:
            fields["images"] = job.images
        if job.videos:
            fields["videos"] = job.videos
        for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty"):
            asked = getattr(p, name)
            fields[name] = own.get(name) if asked is None else asked
        if p.bad_words:
            fields["bad_words"] = _arrays.phrases(
                [self._tokens().encode(w, add_special_tokens=False) for w in p.bad_words])
        if p.logprobs is not None:
            fields.update(return_log_probs=True, n_top_logprobs=p.logprobs)
        if p.prompt_logprobs is not None:
            fields.update(return_prompt_log_probs=True, n_top_prompt_logprobs=p.prompt_logprobs)
        if p.logit_bias:
            ids, values = list(p.logit_bias), memoryview(_arrays._from_list(list(p.logit_bias.values()), "float32"))
            fields.update(bias_ids=_arrays.int32(ids), bias_values=values.tobytes())
        if p.guide:
            fields.update(guide_type=p.guide[0], guide=p.guide[1])
        return fields


def _table(table: Any, hidden: int) -> Dict[str, Any]:
    data, kind, shape = _arrays.tensor("prompt_embedding_table", table, ("float32", "float16", "bfloat16"))
    if len(shape) != 2 or shape[1] != hidden:
        raise ValueError(f"prompt_embedding_table has the shape {list(shape)}, expected rows of {hidden} numbers")
    return {"prompt_embedding_table": data, "prompt_table_dtype": kind}


def _close(inbox: Inbox, path: _nereid.ModelPath) -> None:
    inbox.close()
    path.close()
