"""`outrider report`: a page that needs nothing else, whose charts have marks, and clear refusals of what is no trace."""

import html.parser
import json
import re
import unittest

from harness import MODEL, TINYMATH, ProgramTest, outrider, problems, to_lines

CHARTS = ["batch", "acceptance", "speed", "lengths", "predictions"]
VOID = {"meta", "link", "br"}


class Page(html.parser.HTMLParser):
    """Checks that tags balance; keeps table cells, headings, notes and, by chart, the marks and words in it."""

    def __init__(self, text):
        super().__init__()
        self.open, self.charts, self.rows, self.words, self.urls = [], [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.urls += [v for k, v in attributes.items() if k in ("src", "href")]
        assert tag != "script" and not any(k.startswith("on") for k in attributes), tag
        if tag == "svg":
            self.charts.append({"name": attributes["data-chart"], "marks": [], "words": []})
        if tag in ("path", "rect"):
            self.charts[-1]["marks"].append((attributes.get("class"), attributes.get("d", "")))
        if tag == "tr":
            self.rows.append([])
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, tag

    def handle_data(self, data):
        if not self.open or not data.strip():
            return
        if self.open[-1] == "td":
            self.rows[-1].append(data)
        elif "svg" in self.open:
            self.charts[-1]["words"].append(data)
        else:
            self.words.append(data)


def tick(number, ms=2.0, **changes):
    args = {"tick": number, "batch": 4, "rows": 12, "offered": 4, "drafters": ["d"], "depth": 2, "top_k": 1, "verify_tokens": 2, "expected_ms": 2.5,
            "expected_tokens": 9.5, "verified": 4, "drafted": 8, "accepted": 6, "tokens": 10, "prefill_tokens": 0}
    for key, value in changes.items():
        if value is None:
            del args[key]
        else:
            args[key] = value
    return {"name": "tick", "ph": "X", "pid": 1, "tid": 1, "ts": 100 + 3000 * number, "dur": 1000 * ms, "args": args}


WHO = {"name": "outrider", "ph": "M", "pid": 1, "args": {"version": "1", "isa": "cpu-x", "num_threads": 2, "max_batch": 4, "policy": "p", "drafters": ["d"]}}
SAMPLE = {"name": "sample", "ph": "i", "s": "t", "pid": 1, "tid": 1, "ts": 9, "args": {"group": 1, "sample": 0, "tokens": 33, "finish_reason": "stop"}}


class Report(ProgramTest):
    def write(self, name, text):
        (self.folder / name).write_text(text, encoding="utf-8")
        return self.folder / name

    def trace(self, events, name="t.trace.json", end="\n]\n"):
        return self.write(name, "[\n" + ",\n".join(map(json.dumps, events)) + end)

    def report(self, *files):
        self.assertEqual(self.run_ok("report", *files, "-o", self.folder / "report.html"), "")
        text = (self.folder / "report.html").read_text(encoding="utf-8")
        page = Page(text)
        self.assertEqual(page.urls, ["data:,"])  # nothing from elsewhere
        self.assertNotIn("nan", re.sub(r"<style>.*?</style>", "", text, flags=re.S).lower())
        for chart in page.charts:
            marks = [(kind, d) for kind, d in chart["marks"] if kind == "bar" or d]
            self.assertTrue(marks and chart["words"], chart["name"])
        return page

    def test_workers(self):
        """Each worker that ran has a section; times are the run's."""
        early = tick(0) | {"tid": 3, "ts": 50}
        page = self.report(self.trace([WHO, tick(0), tick(1), early, SAMPLE | {"tid": 3}]))
        self.assertEqual([word for word in page.words if "worker" in word], ["t, worker 0", "t, worker 2"])
        self.assertEqual(page.words.count("No response was finished."), 1)

    def test_rollouts(self):
        prompts = to_lines(problems(24))
        for name, policy in (("plain", "off"), ("drafted", "tlt")):
            self.run_ok("rollout", "--model", MODEL, "--prompts", "-", "--out", self.folder / f"{name}.jsonl", "--n", 2, "--max-new-tokens", 64,
                        "--policy", policy, "--drafter", f"small=model:{TINYMATH / 'drafter'}", "--trace", self.folder / f"{name}.trace.json",
                        "--stats", self.folder / f"{name}.stats.json", "--max-batch", 20, stdin=prompts)
        # A run's two files are one run, in whatever order; one alone is a run too.
        both = [self.folder / f"{run}.{kind}.json" for run in ("plain", "drafted") for kind in ("stats", "trace")]
        page = self.report(*both)
        self.assertEqual([chart["name"] for chart in page.charts], ["runs", "batch", "speed", "lengths", "batch", "acceptance", "speed", "lengths"])
        self.assertEqual(page.words.count("Nothing was drafted."), 1)
        self.assertEqual(page.words.count("This policy foretells no times."), 2)
        for row, (name, policy) in zip(page.rows[1:], (("plain", "off"), ("drafted", "tlt"))):
            stats = self.stats(self.folder / f"{name}.stats.json")
            tokens = f"{stats['tokens']:,}"
            self.assertEqual(row[:4], [name, policy, f"{stats['wall_seconds']:.2f}", tokens])
            self.assertEqual((row[6], row[8], row[9]), ("48", "20", f"{stats['ticks']:,}"))
        page = self.report(both[3])
        self.assertEqual([chart["name"] for chart in page.charts], ["runs", "batch", "acceptance", "speed", "lengths"])
        self.assertEqual(page.rows[1][3], tokens)
        self.assertEqual([chart["name"] for chart in self.report(both[0]).charts], ["runs"])

    def test_every_chart_of_a_written_trace(self):
        ticks = [tick(0, prefill_tokens=3, drafters=[], drafted=0, accepted=0, depth=None), tick(1), tick(2, depth=5), tick(3, ms=1.0)]
        page = self.report(self.trace([WHO, *ticks, SAMPLE]))
        self.assertEqual([chart["name"] for chart in page.charts], ["runs", *CHARTS])
        charts = {chart["name"]: chart for chart in page.charts}
        self.assertEqual([kind for kind, _ in charts["batch"]["marks"]], ["area"] * 3)
        self.assertEqual([w for w in charts["batch"]["words"] if "d" in w], ["nothing verified", "d, depth 2", "d, depth 5", "seconds"])
        self.assertEqual(charts["predictions"]["marks"][-1][1].count("M"), 3)  # not the one that ran a prompt
        # Errors 25 %, 25 % and 150 %; 30 tokens of 28.5. 10 s have passed in 0.010: 10,000 tokens a second.
        note = " ".join(page.words)
        self.assertIn("Median error 25.0", note)
        self.assertIn("Tokens: 105.3", note)
        self.assertEqual(page.rows[1], ["t", "p", "0.01", "40", "4,000", "1.00×", "1", "33", "4", "4", "2.50", "75.0\u2009%"])

    def test_a_drafter_that_found_nothing(self):
        """Its ticks are drawn and counted as those without a draft: colour shows what was drafted, not who was asked."""
        page = self.report(self.trace([WHO, tick(0), *[tick(i, drafted=0, accepted=0, tokens=4) for i in (1, 2, 3)], SAMPLE]))
        legend = [page.words[i : i + 2] for i, word in enumerate(page.words) if word in ("nothing verified ", "d, depth 2 ")]
        self.assertEqual(legend, [["nothing verified ", "75.0\u2009%"], ["d, depth 2 ", "25.0\u2009%"]])

    def test_long_names(self):
        name = "rollouts-of-a-model-with-a-very-long-name-under-fixed-pølicy-5"
        chart = self.report(self.trace([WHO, tick(0)], name=f"{name}.trace.json")).charts[0]
        self.assertEqual(chart["words"][:2], ["rollouts-of-a-m…fixed-pølicy-5", name])  # the whole one is its title

    def test_what_a_killed_run_leaves(self):
        events = [WHO, *[tick(i) for i in range(4)]]
        whole = self.trace(events, end="\n").read_text(encoding="utf-8")
        lines = whole.splitlines(keepends=True)
        for cut in range(sum(map(len, lines[:3])), len(whole) + 1, 13):
            page = self.report(self.write("cut.json", whole[:cut]))
            self.assertEqual(page.rows[1][9], str(min(4, whole[:cut].count('"prefill_tokens": 0}}'))), cut)

    def test_names_are_text(self):
        who = WHO | {"args": WHO["args"] | {"policy": "<script>alert(1)</script>"}}
        page = self.report(self.trace([who, tick(0, drafters=["<b>&\"'"])], name="<i>.json"))
        self.assertEqual(page.rows[1][0], "<i>")
        self.assertIn("<script>alert(1)</script>", page.rows[1])

    def test_what_is_refused(self):
        stats = {"policy": "off", "isa": "x", "num_threads": 1, "ticks": 1, "samples": 1, "tokens": 1, "batch_peak": 1, "wall_seconds": 1, "settings": {},
                 "speculation": {"draft_tokens": 1, "accepted_tokens": 1, "decode_steps": 1, "decode_tokens": 1}}
        self.report(self.write("stats.json", json.dumps(stats)))
        no_dur = tick(0)
        del no_dur["dur"]
        cases = [
            ("", "is empty"),
            ("hello", "neither a trace nor"),
            ("{", "neither a trace nor"),
            ("{}", "'speculation' is missing"),
            (json.dumps(stats | {"tokens": -1}), "'tokens' is no count"),
            (json.dumps(stats | {"tokens": "1"}), "'tokens' is no count"),
            (json.dumps(stats | {"wall_seconds": 1e300}), "'wall_seconds' is no number"),
            (json.dumps(stats | {"policy": 3}), "'policy' is no text"),
            (json.dumps(stats | {"settings": []}), "settings: expected an object"),
            (json.dumps([WHO, tick(0)]), ":1: not a trace of outrider: its first line"),
            ("[\n]\n", "does not say who ran"),
            ([tick(0)], "does not say who ran"),
            ([WHO], "has no tick"),
            ([WHO, tick(0, ms=0)], "take no time"),
            ([WHO, no_dur], ":3: 'dur' is missing"),
            ([WHO, tick(0, ms=-1)], ":3: 'dur' is no number"),
            ([WHO, tick(0) | {"ts": "1"}], "'ts' is no number"),
            ([WHO, tick(0) | {"args": 1}], ":3: args: expected an object"),
            ([WHO, tick(0) | {"name": 1}], "'name' is no text"),
            ([WHO, tick(1), tick(0)], ":4: the tick begins before"),
            ([WHO, tick(0, ms=3.5), tick(1)], ":4: the tick begins before"),
            ([WHO, tick(0, accepted=9)], "more is accepted"),
            ([WHO, tick(0, batch=2**40)], "'batch' is no count"),
            ([WHO, tick(0, batch=1.5)], "'batch' is no count"),
            ([WHO, tick(0, drafters="d")], "'drafters' is no list"),
            ([WHO, tick(0, drafters=[1])], "a drafter's name"),
            ([WHO, tick(0, depth=None)], "'depth' is missing"),
            ([WHO, tick(0, expected_ms=-1)], "'expected_ms' is no number"),
            ([WHO, tick(0), SAMPLE | {"args": {}}], ":4: args: 'tokens' is missing"),
            ([WHO, 3], ":3: expected an object"),
            ("[\n" + json.dumps(WHO) + ",\n{\"name\":\n" + json.dumps(tick(0)) + "\n]\n", ":3: no JSON object a line"),
            ("[\n" + json.dumps(WHO) + "\n]\n" + json.dumps(tick(0)) + "\n", ":4: something follows"),
            ("[\n" + "[" * 100000 + "\n", ":2: no JSON object a line"),
        ]
        for i, (content, reason) in enumerate(cases):
            bad = self.write(f"bad{i}.json", content) if isinstance(content, str) else self.trace(content, name=f"bad{i}.json")
            code, out, err = outrider("report", bad, "-o", self.folder / "none.html")
            self.assertEqual((code, out), (3, ""), (i, reason, err))
            self.assertIn(str(bad), err)
            self.assertIn(reason, err)
            self.assertFalse((self.folder / "none.html").exists())
        for args, code, reason in (((self.folder / "absent", "-o", "x"), 3, "No such file"), ((self.folder, "-o", "x"), 3, "is a folder"),
                                   (("-o", "x"), 2, "a FILE is required"), ((self.folder / "stats.json",), 2, "-o is required"),
                                   ((self.folder / "stats.json", "-o", "/nowhere/x"), 4, "/nowhere/x")):
            got, _, err = outrider("report", *args)
            self.assertEqual(got, code, err)
            self.assertIn(reason, err)


if __name__ == "__main__":
    unittest.main()
