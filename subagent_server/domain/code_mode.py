"""Names of code mode that several rooms share: its tool, and the files of a program in `code/NNN/`."""

CODE_TOOL_NAME = "execute_python_code"
PROGRAM_FILE, CALLS_FILE, OUTPUT_FILE, END_FILE = "program.py", "calls.jsonl", "output.txt", "result.json"
