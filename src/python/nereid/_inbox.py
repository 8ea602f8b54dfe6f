# SPDX-License-Identifier: Apache-2.0
"""Responses for those who wait for them. The engine hands a response to whoever asks; here any number of
threads may each wait for some requests: one of them reads for all, and another goes on when it has its own. So
there is no thread of ours, and nothing that a fork or the end of the program could surprise."""
from __future__ import annotations

import collections
import threading
import time
from typing import Any, Callable, Deque, Dict, Iterable, List, Optional, Set, Tuple

from nereid import _nereid

Raw = Tuple[Any, ...]  # of _nereid.Executor.await_responses
ID, IS_FINAL = 0, 2
_AT_ONCE = 256


class Inbox:
    def __init__(self, raw: _nereid.Executor) -> None:
        self.raw = raw
        self._cond = threading.Condition()
        self._queues: Dict[int, Deque[Raw]] = {}  # of requests whose final response was not taken
        self._ready: Dict[int, None] = {}         # those with something in their queue, oldest first
        self._running = 0                         # requests without a final response, and calls of enqueue
        self._early: Dict[int, List[Raw]] = {}    # responses of requests that have no queue yet
        self._dropped: Set[int] = set()           # requests whose responses are thrown away, until the final one
        self._reading = False
        self.closed = False

    def enqueue(self, fields: Dict[str, Any], note: Optional[Callable[[int], None]] = None) -> int:
        """`note`: called with the id before anybody can have a response of it."""
        with self._cond:
            self._running += 1
        request = None
        try:
            request = self.raw.enqueue(fields)  # outside the lock: it reads the request's pictures
            return request
        finally:
            with self._cond:
                if request is None:
                    self._running -= 1
                    self._cond.notify_all()
                else:
                    if note:
                        note(request)
                    self._queues[request] = collections.deque(self._early.pop(request, ()))
                    if self._queues[request]:
                        self._ready[request] = None
                        self._cond.notify_all()

    def take(self, ids: Optional[Iterable[int]], timeout: Optional[float]) -> List[Raw]:
        """What there is for these requests (None: for all), once there is something; empty on time-out, after
        close, and where none of them is under way. `timeout` in seconds; None: as long as it takes."""
        got: List[Raw] = []
        wanted = None if ids is None else list(ids)

        def ready() -> bool:
            for request in list(self._ready) if wanted is None else wanted:
                got.extend(self._pop(request))
            return bool(got) or self.closed or (wanted is not None and not any(i in self._queues for i in wanted))

        self._wait(ready, timeout)
        return got

    def drop(self, ids: Iterable[int]) -> None:
        """Cancels requests whose responses nobody will take."""
        for request in ids:
            with self._cond:
                queue = self._queues.pop(request, None)
                if queue is None:
                    continue
                if not (queue and queue[-1][IS_FINAL]):
                    self._dropped.add(request)
                self._ready.pop(request, None)
            if not self.closed:
                self.raw.cancel(request)

    def count(self, request: Optional[int]) -> int:
        """Responses that can be taken without waiting."""
        self._wait(lambda: False, 0)
        with self._cond:
            if request is None:
                return sum(len(q) for q in self._queues.values())
            return len(self._queues.get(request, ()))

    def drain(self) -> None:
        """Waits until all requests are over; their responses stay to be taken."""
        self._wait(lambda: self._running == 0 or self.closed, None)

    def close(self) -> None:
        self.closed = True
        self.raw.close()
        with self._cond:
            self._cond.notify_all()

    def _pop(self, request: int) -> List[Raw]:
        queue = self._queues.get(request)
        if not queue:
            return []
        got = list(queue)
        queue.clear()
        self._ready.pop(request, None)
        if got[-1][IS_FINAL]:
            del self._queues[request]
        return got

    def _put(self, fresh: Iterable[Raw]) -> None:
        for response in fresh:
            self._running -= bool(response[IS_FINAL])
            queue = self._queues.get(response[ID])
            if queue is not None:
                queue.append(response)
                self._ready[response[ID]] = None
            elif response[ID] not in self._dropped:
                self._early.setdefault(response[ID], []).append(response)
            elif response[IS_FINAL]:
                self._dropped.discard(response[ID])

    def _wait(self, ready: Callable[[], bool], timeout: Optional[float]) -> None:
        """Until `ready`, which is called under the lock, or time-out; looks for responses at least once."""
        until = None if timeout is None else time.monotonic() + timeout
        looked = False
        while True:
            with self._cond:
                left = None if until is None else max(until - time.monotonic(), 0.0)
                if ready() or self.closed or (looked and left == 0.0):
                    return
                if self._reading:
                    looked = True
                    self._cond.wait(left)
                    continue
                self._reading = True
            fresh: List[Raw] = []
            try:
                fresh = self.raw.await_responses(_AT_ONCE, -1 if left is None else int(left * 1e6))
            finally:
                looked = True
                with self._cond:
                    self._reading = False
                    self._put(fresh)
                    self._cond.notify_all()
