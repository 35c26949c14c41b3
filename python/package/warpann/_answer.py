"""The future of a request."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import Future
from typing import Any

from warpann._results import Neighbors


class Answer(Future[Neighbors]):
    """The future of a request to a :class:`Batcher`: for threads (``result()``) and for tasks (``await answer``)."""

    _request: Any

    def cancel(self) -> bool:
        """Takes the request back, unless it is answered. Returns whether it was taken back."""
        cancelled = super().cancel()
        if cancelled:
            self._request.cancel()
        return cancelled

    def __await__(self) -> Generator[Any, None, Neighbors]:
        import asyncio

        return asyncio.wrap_future(self).__await__()

    def _finish(self, found: Neighbors | None, error: BaseException | None) -> None:
        if not self.set_running_or_notify_cancel():
            return
        if found is None:
            self.set_exception(error)
        else:
            self.set_result(found)
