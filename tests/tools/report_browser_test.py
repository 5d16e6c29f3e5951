"""`outrider report` in a browser: light and dark, wide and narrow, of a real rollout. No console message; every chart's marks have
an area inside the chart and a colour that is not the page's; no word is cut off or over another; nothing sticks out of the page.

Runs where there is a Chromium, and is skipped elsewhere.
"""

import json
import re
import shutil
import subprocess
import unittest

from harness import MODEL, TINYMATH, ProgramTest, problems, to_lines

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)

# Looks at the page as it is laid out and leaves what is wrong in its last element.
LOOK = """<script>
window.addEventListener("load", () => {
  const faults = [], paper = getComputedStyle(document.body).backgroundColor;
  const over = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1;
  const inside = (a, b) => a.left >= b.left - 1 && a.right <= b.right + 1 && a.top >= b.top - 1 && a.bottom <= b.bottom + 1;
  for (const chart of document.querySelectorAll("svg")) {
    const of = what => chart.dataset.chart + ": " + what, box = chart.getBoundingClientRect();
    const marks = [...chart.querySelectorAll("path, rect")], texts = [...chart.querySelectorAll("text")].map(t => [t, t.getBoundingClientRect()]);
    if (box.width < 200 || box.height < 10) faults.push(of("is " + box.width + " x " + box.height));
    if (!marks.length) faults.push(of("has no mark"));
    for (const mark of marks) {
      const size = mark.getBBox(), style = getComputedStyle(mark), colour = style.fill == "none" ? style.stroke : style.fill;
      if (!(size.width > 0) || (style.fill != "none" && !(size.height > 0))) faults.push(of("a mark without an area"));
      if (colour == "none" || colour == paper) faults.push(of("a mark in " + colour));
      if (!inside(mark.getBoundingClientRect(), box)) faults.push(of("a mark sticks out"));
    }
    for (const [text, at] of texts) {
      if (!inside(at, box)) faults.push(of("'" + text.textContent + "' is cut off"));
      if (getComputedStyle(text).fill == paper) faults.push(of("'" + text.textContent + "' is not to be seen"));
    }
    texts.forEach(([a, at], i) => texts.slice(i + 1).forEach(([b, bt]) => {
      if (over(at, bt)) faults.push(of("'" + a.textContent + "' and '" + b.textContent + "' overlap"));
    }));
  }
  if (document.documentElement.scrollWidth > innerWidth) faults.push("the page is wider than its window");
  const seen = document.createElement("pre");
  seen.id = "seen";
  seen.textContent = JSON.stringify({faults, paper, width: innerWidth, charts: [...document.querySelectorAll("svg")].map(c => c.dataset.chart)});
  document.body.append(seen);
});
</script>"""


@unittest.skipUnless(BROWSER, "no Chromium here: the report is not looked at")
class ReportInABrowser(ProgramTest):
    def look(self, page, dark=False, width=1080):
        """What the page looks like: its charts, its colour, its faults; and the console's messages."""
        copy = self.folder / "look.html"
        copy.write_text(page.replace("</body>", LOOK + "</body>"), encoding="utf-8")
        done = subprocess.run(
            [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr", f"--user-data-dir={self.folder / 'profile'}",
             f"--blink-settings=preferredColorScheme={0 if dark else 1}", f"--window-size={width},2000", "--virtual-time-budget=2000", "--dump-dom",
             copy.as_uri()], capture_output=True, timeout=120, check=True)
        seen = json.loads(re.search(r'<pre id="seen">(.*?)</pre>', done.stdout.decode(), re.S)[1].replace("&gt;", ">").replace("&lt;", "<").replace("&amp;", "&"))
        return seen | {"console": re.findall(r".*CONSOLE.*", done.stderr.decode())}

    def page(self):
        """Of the same prompts without a draft, with one drafter and with many."""
        prompts, files = to_lines(problems(24)), []
        for name, policy in (("plain", "off"), ("small", "fixed:small:5"), ("a-run-whose-file-has-quite-a-long-name-of-its-own", "auto")):
            trace, stats = self.folder / f"{name}.trace.json", self.folder / f"{name}.stats.json"
            self.run_ok("rollout", "--model", MODEL, "--prompts", "-", "--out", self.folder / "out.jsonl", "--max-new-tokens", 256, "--policy", policy,
                        "--drafter", f"small=model:{TINYMATH / 'drafter'}", "--trace", trace, "--stats", stats, stdin=prompts)
            files += [stats, trace]
        self.run_ok("report", *files, "-o", self.folder / "report.html")
        return (self.folder / "report.html").read_text(encoding="utf-8")

    def test_real_rollouts(self):
        page = self.page()
        papers = set()
        for dark, width in ((False, 1080), (True, 1080), (False, 500)):
            seen = self.look(page, dark, width)
            self.assertEqual((seen["faults"], seen["console"]), ([], []), (dark, width))
            self.assertEqual(len(seen["charts"]), page.count("<svg"))
            self.assertEqual(seen["charts"][-5:], ["batch", "acceptance", "speed", "lengths", "predictions"])
            papers.add(seen["paper"])
        self.assertEqual(papers, {"rgb(255, 255, 255)", "rgb(20, 23, 28)"})

        # What is broken is seen, each by its own fault.
        faults = []
        for chart, element, damage, fault in (
                ("runs", "<rect", ('class="bar"', 'fill="none"'), "runs: a mark in none"),
                ("runs", "<text", ('end">plain', 'end">' + "plain " * 20), "is cut off"),
                ("batch", "data-chart", ('="batch"', '="batch" style="--quiet: var(--paper)"'), "is not to be seen"),
                ("speed", "<path", (' d="M', ' d="" e="M'), "speed: a mark without an area"),
                ("", "", (".scroll { overflow-x: auto; }", "table { min-width: 2000px; }"), "the page is wider"),
                ("", "", ("</body>", "<script>console.error('heard')</script></body>"), "")):
            at = page.index(element, page.index(f'data-chart="{chart}"')) if chart else 0
            broken = page[:at] + page[at:].replace(*damage, 1)
            self.assertNotEqual(broken, page, fault)
            page, faults = broken, faults + [fault]
        seen = self.look(page)
        for fault in faults:
            self.assertTrue(any(fault in f for f in seen["faults"]), (fault, seen["faults"]))
        self.assertTrue(any("heard" in message for message in seen["console"]))


if __name__ == "__main__":
    unittest.main()
