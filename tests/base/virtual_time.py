"""An event loop whose clock stands still while a task runs and else jumps to the next timer: hours of timeouts in
milliseconds, and the same result each time."""

import asyncio
import functools


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self):
        super().__init__()
        self.now = 0.0
        wait = self._selector.select

        def select(timeout):
            ready = wait(0)
            if not ready and timeout:
                self.now += timeout
            return ready

        self._selector.select = select

    def time(self):
        return self.now


def run(coroutine):
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(coroutine)


def in_virtual_time(test):
    """Makes an asynchronous test one that such a loop runs. Its asynchronous fixtures would have another loop."""

    @functools.wraps(test)
    def runs(*arguments, **named):
        return run(test(*arguments, **named))

    return runs
