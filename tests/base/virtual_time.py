"""An event loop whose clock stands still while a task or a thread of its runs and else jumps to the next timer: hours
of timeouts in milliseconds, and the same result each time."""

import asyncio
import functools


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self):
        super().__init__()
        self.now, self._threads = 0.0, 0
        wait = self._selector.select

        def select(timeout):
            ready = wait(0)
            if not ready and timeout != 0 and self._threads:
                return wait(None)
            if not ready and timeout:
                self.now += timeout
            return ready

        self._selector.select = select

    def time(self):
        return self.now

    def run_in_executor(self, executor, func, *arguments):
        def ended(_):
            self._threads -= 1

        future = super().run_in_executor(executor, func, *arguments)
        self._threads += 1
        future.add_done_callback(ended)
        return future


def run(coroutine):
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(coroutine)


def in_virtual_time(test):
    """Makes an asynchronous test one that such a loop runs. Its asynchronous fixtures would have another loop."""

    @functools.wraps(test)
    def runs(*arguments, **named):
        return run(test(*arguments, **named))

    return runs
