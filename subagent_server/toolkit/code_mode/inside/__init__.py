"""The modules of this package that run inside a program's own interpreter, around its code.

Any Python since 3.9 runs it, with the standard library alone. These modules are given to the interpreter as
text (`code_mode/interpreter.py`) and are never imported here. They import little, because every program waits
for them.
"""
