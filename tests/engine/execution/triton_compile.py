"""Compiles Triton kernels for GPUs that are not here, to machine code."""

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

ARCHITECTURES = (80, 90)


def compile_kernel(kernel, architecture, signature, constants, **options):
    """Compile a kernel for `sm_<architecture>`.

    Args:
        signature: type of each argument that is not constexpr: "*bf16", "i32", "fp32".
        constants: value of each constexpr.
        options: num_warps, num_stages.
    """
    assert set(signature) | set(constants) == set(kernel.arg_names), "every argument is named"
    types = {name: signature.get(name, "constexpr") for name in kernel.arg_names}
    source = ASTSource(fn=kernel, signature=types, constexprs=constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)
    assert len(compiled.asm["cubin"]) > 0
    return compiled
