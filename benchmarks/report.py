"""Tables and plots of a run of the benchmarks: ``python benchmarks/report.py RESULTS.json [DOCS]``.

RESULTS is what ``pytest benchmarks --benchmark-json=RESULTS.json`` wrote. Without DOCS, a folder for ``benchmarks.md``
and its pictures, the tables go to standard output.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

NOTES = Path(__file__).with_name("notes.md")


def time_of(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size or unit == "µs":
            return f"{seconds / size:.3g} {unit}"
    raise AssertionError


def table(rows: list[dict[str, Any]]) -> list[str]:
    """A Markdown table of rows that have the same peers or some of them."""
    if "mebibytes" in rows[0]:
        names = list(rows[0]["mebibytes"])
        lines = [f"| | {' | '.join(names)} | reach |", "|---" * (len(names) + 2) + "|"]
        for row in rows:
            cells = [f"{max(row['mebibytes'][name], 0):.1f} MiB" for name in names]  # the system counts in pages
            reached = " ✓" if row["reach"] and row["mebibytes"][names[0]] <= row["reach"] else ""
            reach = f"≤ {row['reach']:g} MiB{reached}" if row["reach"] else ""
            lines.append(f"| {row['work']} | {' | '.join(cells)} | {reach} |")
        return lines
    if "costs" in rows[0]:
        reach = rows[0]["reach"]
        lines = [f"| | functions | median | at most {reach:g} µs | the dearest | reach |", "|---" * 6 + "|"]
        every = {name: cost for row in rows for name, cost in row["costs"].items()}
        for work, costs in [*((row["work"], row["costs"]) for row in rows), ("all", every)]:
            median = statistics.median(costs.values())
            few = sum(cost <= reach for cost in costs.values())
            dearest = ", ".join(f"{name} {costs[name]:.0f}" for name in sorted(costs, key=costs.__getitem__)[:-4:-1])
            wanted = f"≤ {reach:g} µs{' ✓' if median <= reach else ''}"
            lines.append(f"| {work} | {len(costs)} | **{median:.2f} µs** | {few} | {dearest} | {wanted} |")
        return lines
    names = list(dict.fromkeys(name for row in rows for name in row["medians"]))
    lines = [
        f"| | {' | '.join(names)} | ratio to {names[1]} (quartiles) | reach |",
        "|---" * (len(names) + 3) + "|",
    ]
    for row in rows:
        cells = [time_of(row["medians"][n] / row["per"]) if n in row["medians"] else "" for n in names]
        low, high = row["spread"]
        reach = "" if row["reach"] is None else f"≤ {row['reach']:g}{' ✓' if row['ratio'] <= row['reach'] else ''}"
        ratio = f"**{row['ratio']:.2f}** ({low:.2f}–{high:.2f})"
        lines.append(f"| {row['work']} | {' | '.join(cells)} | {ratio} | {reach} |")
    return lines


def plot(rows: list[dict[str, Any]], key: str, label: str, path: Path) -> None:
    """A figure per length for each implementation, both axes logarithmic."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    lengths = [int(row["work"].removeprefix("T = ")) for row in rows]
    least = 0.05 if key == "mebibytes" else 0.0  # what the table calls 0.0 MiB has no place on a logarithmic axis
    for name in rows[0][key]:
        points = [(length, row[key][name]) for length, row in zip(lengths, rows, strict=True)]
        axes.plot(*zip(*[point for point in points if point[1] > least], strict=True), marker="o", label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(lengths, map(str, lengths))
    axes.set_xlabel("length T")
    axes.set_ylabel(label)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("docs", type=Path, nargs="?", help="a folder for benchmarks.md and the pictures")
    options = parser.parse_args()
    results = json.loads(options.results.read_text())
    tables: dict[str, list[dict[str, Any]]] = {}
    for one in results["benchmarks"]:
        tables.setdefault(one["extra_info"]["table"], []).append(one["extra_info"])

    lines = ["# Benchmarks", ""]
    lines += [
        "Written by `make bench`. Each row compares the results first and then measures ours and its peers in turn, in",
        "one process, in float32; the times are medians, the ratio is that of the medians, and in brackets stand the",
        "quartiles of the ratios of the single rounds. *reach* is what was aimed at, with ✓ where it was reached.",
        "",
    ]
    lines += [f"- {name}: {value}" for name, value in results["machine_info"]["described"].items()]
    lines += [f"- date: {results['datetime'][:10]}", ""]
    pictures = {
        "Time": ("time.png", "medians", "seconds"),
        "Memory": ("memory.png", "mebibytes", "MiB above inputs, output and gradients"),
    }
    for title, rows in tables.items():
        lines += [f"## {title}", "", *table(rows), ""]
        picture = pictures.get(title.partition(" ")[0])
        if picture and options.docs and len(rows) > 1:
            name, key, label = picture
            plot(rows, key, label, options.docs / name)
            lines += [f"![{title}: {', '.join(rows[0][key])}, both axes logarithmic]({name})", ""]
    lines.append(NOTES.read_text().strip())
    text = "\n".join(lines) + "\n"
    if options.docs:
        (options.docs / "benchmarks.md").write_text(text)
        print(options.docs / "benchmarks.md")
    else:
        print(text)


if __name__ == "__main__":
    main()
