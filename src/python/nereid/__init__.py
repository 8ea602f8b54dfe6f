# SPDX-License-Identifier: Apache-2.0
"""Nereid's engine in Python.

    import nereid
    with nereid.LLM("model.gguf") as llm:
        for answer in llm.generate(["One", "Two"], nereid.SamplingParams(max_tokens=16)):
            print(answer.text)

`nereid.executor` has the engine below that, tokens in and tokens out, with the names of TensorRT-LLM's
`tensorrt_llm.bindings.executor`.

Threads   Everything may be used from any number of threads. Whatever waits lets other threads run and can be
          ended with Ctrl-C, but for opening a model and building its engine, which end first.
Fork      What was opened before os.fork() works in the parent alone; in the child each call raises
          RuntimeError. Open in the child, or start processes with multiprocessing's "spawn".
"""
from nereid._nereid import (Error, InvalidArgumentError, NotFoundError, UnavailableError, UnsupportedError, features,
                            version)
from nereid.llm import LLM, CompletionOutput, Piece, RequestOutput, SamplingParams
from nereid.tokenizer import Tokenizer

__version__ = version().split()[0]
__all__ = ["LLM", "CompletionOutput", "Error", "InvalidArgumentError", "NotFoundError", "Piece", "RequestOutput",
           "SamplingParams", "Tokenizer", "UnavailableError", "UnsupportedError", "features", "version"]
