"""Extract one row from each text file of a directory, by a schema, and write them as a table."""

import csv
from pathlib import Path
from typing import TypedDict

from subagent import agents, gather, log

AGENTS = ["extractor"]
LIMITS = {"budgetUsd": "2.00", "timeoutSeconds": 3600}


class Table(TypedDict):
    file: str
    rows: int
    failed: list[str]


def run(directory: str = "invoices", table: str = "invoices.csv", limit: int = 16) -> Table:
    files = sorted(Path(directory).glob("*.txt"))
    calls = [agents.extractor.call(prompt=file.read_text(), label=file.name) for file in files]
    results = gather(*calls, limit=limit, return_exceptions=True)
    failed: list[str] = []
    with Path(table).open("w", newline="") as opened:
        writer = csv.writer(opened)
        writer.writerow(["file", "vendor", "total", "currency"])
        for file, row in zip(files, results, strict=True):
            if isinstance(row, Exception):
                failed.append(file.name)
            else:
                writer.writerow([file.name, row["vendor"], row["total"], row["currency"]])
    log(f"{len(files) - len(failed)} rows, {len(failed)} failed")
    return {"file": table, "rows": len(files) - len(failed), "failed": failed}
