"""The optional C library; everything else is in pyproject.toml.

`.ci/wheel.py` puts libraries for every platform into the tree beforehand; then nothing is compiled here.
"""

from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

PREBUILT = list(Path(__file__).parent.glob("agilerl/native/_population.*.dll"))
UNIX = ["-std=c11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden",
        "-g0"]  # fmt: skip


class BuildOptional(build_ext):
    """Builds a plain shared library, without Python's interface, where there is a C11 compiler other than MSVC."""

    def build_extension(self, ext: Extension) -> None:
        """Refuse MSVC, which knows none of the kernels' vector types; the package then runs in torch."""
        if self.compiler.compiler_type == "msvc":
            raise CompileError("MSVC cannot compile the kernels")
        super().build_extension(ext)

    def get_export_symbols(self, ext: Extension) -> list[str]:
        """Return none: the library is no Python module."""
        return []


setup(
    ext_modules=[] if PREBUILT else [
        Extension(
            "agilerl.native._population",
            ["agilerl/native/kernels/population.c"],
            depends=[f"agilerl/native/kernels/{name}.h" for name in (
                "activations", "actor_critic", "convolution", "dense", "elementary", "forward", "policy_gradient",
                "pool", "population", "real", "simd", "soft_actor_critic", "team_actor_critic", "temporal_difference",
            )],
            extra_compile_args=UNIX,
            extra_link_args=["-pthread"],
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildOptional},
)  # fmt: skip
