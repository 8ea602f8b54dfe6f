# SPDX-License-Identifier: Apache-2.0
"""Every public method of the four clients of tritonclient, each with an answer that is checked."""
import asyncio
import base64
import importlib
import inspect
import json
import mmap
import os
import queue

import numpy as np
import pytest

from triton_server import Server, write_model

DECOUPLED = ("model_transaction_policy { decoupled: true }\n"
             'parameters { key: "responses" value: { string_value: "3" } }\n')


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("methods")
    write_model(folder / "models", "ident")
    write_model(folder / "models", "later")
    write_model(folder / "models", "three", extra=DECOUPLED)
    s = Server(folder, folder / "models", "--model-control-mode=explicit", "--load-model=ident",
               "--load-model=three", "--grpc-address=127.0.0.1",
               f"--trace-config=triton,file={folder / 'trace'}")
    try:
        s.wait_ready()
        if "without the gRPC library" in s.log():
            pytest.skip("the server was built without gRPC")
        yield s
    finally:
        assert s.stop() == 0, s.log()


class Plugin:
    def __call__(self, request):
        request.headers["x-plugin"] = "yes"


class Driver:
    """Calls methods by name and waits for those that are coroutines; remembers which."""

    def __init__(self, module, port, is_http):
        self.module = module
        self.client = module.InferenceServerClient(f"127.0.0.1:{port}")
        self.is_http = is_http
        self.called = set()

    async def do(self, name, *args, **kwargs):
        self.called.add(name)
        result = getattr(self.client, name)(*args, **kwargs)
        return await result if inspect.isawaitable(result) else result

    def get(self, answer, *path):
        """A member of an answer: JSON over HTTP, a message over gRPC."""
        for p in path:
            answer = answer[p] if self.is_http or isinstance(p, int) else getattr(answer, p)
        return answer

    def input(self, values):
        x = self.module.InferInput("INPUT0", [len(values)], "INT32")
        data = np.array(values, np.int32)
        x.set_data_from_numpy(data)
        return x

    async def metadata(self):
        assert await self.do("is_server_live") and await self.do("is_server_ready")
        assert await self.do("is_model_ready", "ident")
        assert not await self.do("is_model_ready", "later")
        assert self.get(await self.do("get_server_metadata"), "name") == "triton"
        assert self.get(await self.do("get_model_metadata", "ident"), "inputs", 0, "name") == "INPUT0"
        config = await self.do("get_model_config", "ident")
        assert self.get(config, *(() if self.is_http else ("config",)), "backend") == "identity"

    async def infer(self):
        outputs = [self.module.InferRequestedOutput("OUTPUT0")]
        r = await self.do("infer", "ident", [self.input([1, 2])], outputs=outputs, request_id="a",
                          priority=1, timeout=10_000_000, parameters={"extra": 3},
                          headers={"x-test": "1"})
        assert list(r.as_numpy("OUTPUT0")) == [1, 2]
        compress = ({"request_compression_algorithm": "gzip",
                     "response_compression_algorithm": "deflate"} if self.is_http
                    else {"compression_algorithm": "gzip"})
        r = await self.do("infer", "ident", [self.input([3])], **compress)
        assert list(r.as_numpy("OUTPUT0")) == [3]
        r = await self.do("infer", "ident", [self.input([5, 9, 7])], outputs=[
            self.module.InferRequestedOutput("OUTPUT0", class_count=2)])
        assert list(r.as_numpy("OUTPUT0")) == [b"9:1", b"7:2"]
        stats = await self.do("get_inference_statistics", "ident")
        assert int(self.get(stats, "model_stats", 0, "inference_count")) >= 3
        if hasattr(self.client, "generate_request_body"):
            body, n = await self.do("generate_request_body", [self.input([1])])
            assert body and (n is None or n < len(body))
            text = b'{"outputs":[{"name":"OUTPUT0","datatype":"INT32","shape":[1],"data":[4]}]}'
            assert list((await self.do("parse_response_body", text)).as_numpy("OUTPUT0")) == [4]

    async def asynchronous(self):
        if self.is_http and hasattr(self.client, "async_infer"):
            waiting = await self.do("async_infer", "ident", [self.input([8])])
            assert list(waiting.get_result().as_numpy("OUTPUT0")) == [8]
        elif hasattr(self.client, "async_infer"):
            answers = queue.Queue()
            await self.do("async_infer", "ident", [self.input([8])],
                          lambda result, error: answers.put((result, error)))
            result, error = answers.get(timeout=20)
            assert error is None and list(result.as_numpy("OUTPUT0")) == [8]
            await self.do("start_stream", lambda result, error: answers.put((result, error)))
            await self.do("async_stream_infer", "three", [self.input([6])], request_id="s")
            for _ in range(3):
                result, error = answers.get(timeout=20)
                assert error is None and list(result.as_numpy("OUTPUT0")) == [6]
                assert result.get_response().id == "s"
            await self.do("stop_stream")
        elif hasattr(self.client, "stream_infer"):
            async def requests():
                yield {"model_name": "three", "inputs": [self.input([6])], "request_id": "s"}
            self.called.add("stream_infer")
            got = []
            async for result, error in self.client.stream_infer(requests()):
                assert error is None
                got.append(list(result.as_numpy("OUTPUT0")))
            assert got == [[6]] * 3

    async def repository(self):
        index = await self.do("get_model_repository_index")
        models = index if self.is_http else index.models
        assert {self.get(m, "name") for m in models} >= {"ident", "later", "three"}
        await self.do("load_model", "later")
        assert await self.do("is_model_ready", "later")
        config = (await self.do("get_model_config", "later", **({} if self.is_http
                                                               else {"as_json": True})))
        config = config if self.is_http else config["config"]
        config["max_batch_size"] = 0
        await self.do("load_model", "later", config=json.dumps(config))
        await self.do("unload_model", "later", unload_dependents=True)
        for _ in range(200):
            if not await self.do("is_model_ready", "later"):
                break
            await asyncio.sleep(0.01)
        assert not await self.do("is_model_ready", "later")

    async def shared_memory(self):
        name = f"/nereid-methods-{os.getpid()}"
        fd = os.open(f"/dev/shm{name}", os.O_CREAT | os.O_RDWR)
        try:
            os.ftruncate(fd, 4096)
            memory = mmap.mmap(fd, 4096)
            memory[0:8] = np.array([11, 12], np.int32).tobytes()
            await self.do("register_system_shared_memory", "r", name, 4096)
            status = await self.do("get_system_shared_memory_status")
            assert "r" in ([x["name"] for x in status] if self.is_http else status.regions)
            x = self.module.InferInput("INPUT0", [2], "INT32")
            x.set_shared_memory("r", 8)
            y = self.module.InferRequestedOutput("OUTPUT0")
            y.set_shared_memory("r", 8, 64)
            await self.do("infer", "ident", [x], outputs=[y])
            assert list(np.frombuffer(memory[64:72], np.int32)) == [11, 12]
            await self.do("unregister_system_shared_memory", "r")
            memory.close()
        finally:
            os.close(fd)
            os.unlink(f"/dev/shm{name}")
        with pytest.raises(Exception, match="GPUs not supported|CUDA"):
            await self.do("register_cuda_shared_memory", "c", base64.b64encode(bytes(64)), 0, 64)
        status = await self.do("get_cuda_shared_memory_status")
        assert not (status if self.is_http else status.regions)
        await self.do("unregister_cuda_shared_memory")

    async def settings(self):
        log = await self.do("get_log_settings", **({} if self.is_http else {"as_json": True}))
        log = log if self.is_http else {k: list(v.values())[0] for k, v in log["settings"].items()}
        assert int(log["log_verbose_level"]) == 0
        await self.do("update_log_settings", {"log_verbose_level": 1})
        await self.do("update_log_settings", {"log_verbose_level": 0})
        trace = await self.do("get_trace_settings", "ident",
                              **({} if self.is_http else {"as_json": True}))
        assert "trace_rate" in (trace if self.is_http else trace["settings"])
        await self.do("update_trace_settings", "ident", {"trace_rate": "7"})
        trace = await self.do("update_trace_settings", "ident", {"trace_rate": None})
        assert trace

    async def plugins(self):
        await self.do("register_plugin", Plugin())
        assert await self.do("plugin")
        assert await self.do("is_server_live")
        await self.do("unregister_plugin")

    async def run(self):
        try:
            await self.metadata()
            await self.infer()
            await self.asynchronous()
            await self.repository()
            await self.shared_memory()
            await self.settings()
            await self.plugins()
        finally:
            await self.do("close")
        public = {n for n, _ in inspect.getmembers(self.module.InferenceServerClient, callable)
                  if not n.startswith("_")}
        assert public - self.called == set()


@pytest.mark.parametrize("name", ["http", "grpc", "http.aio", "grpc.aio"])
def test_every_method_of_the_client(server, name):
    module = pytest.importorskip(f"tritonclient.{name}")
    is_http = name.startswith("http")

    async def run():
        await Driver(module, server.http if is_http else server.grpc, is_http).run()

    asyncio.run(run())
