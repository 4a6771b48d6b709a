"""The name by which everybody knows the tool that runs programs."""

CODE_TOOL_NAME = "execute_python_code"
