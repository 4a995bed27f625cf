"""A plugin for pytest where Triton interprets. At each call of a function that a kernel calls, the interpreter looks
through the whole of `triton.language` for what it has to replace; with this plugin once a launch for the functions of a
module. That takes half of the time of kernels that call many."""

from triton.runtime import interpreter

_launch, _patch, _patched = interpreter.GridExecutor.__call__, interpreter._patch_lang, set()


def _launched(self, *arguments, **options):
    _patched.clear()  # a launch restores at its end what it has replaced
    return _launch(self, *arguments, **options)


def _patch_once(function):
    module = function.__globals__["__name__"]
    if module in _patched:
        return interpreter._LangPatchScope()
    _patched.add(module)
    return _patch(function)


interpreter.GridExecutor.__call__, interpreter._patch_lang = _launched, _patch_once
