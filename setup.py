"""The part of the package that is built; all else is in pyproject.toml."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "subagent_server.host._pristine",
            sources=["subagent_server/host/_pristine.c"],
            extra_compile_args=["-std=c11", "-O2", "-Wall", "-Wextra"],
            optional=True,  # without a C compiler, runs that wait take more memory, and that is all
        )
    ]
)
