#!/usr/bin/env python3
"""The status page in a headless Chromium: what a person sees, and that what others wrote stays text.

Skips if there is no Chromium (Debian: chromium-headless-shell, or chromium).
"""

import os
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, HERE)
import browser  # noqa: E402

PROGRAM = os.path.join(os.environ.get("TEST_SRCDIR", ""), os.environ.get("TEST_WORKSPACE", ""), "services/coordinator/status_page/made_up_cluster")

SCROLLS_SIDEWAYS = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
TEXT = "document.querySelector('main').innerText"
LIVE = "document.querySelector('#connection').textContent == 'live'"
PLOTS = "document.querySelectorAll('.plot canvas').length >= 4"
# Names the elements beyond the right edge of the screen, for the message of a failure.
WIDE = """[...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1)
          .map(e => e.tagName + '.' + e.className).slice(0, 5).join(' ')"""
# Returns the lowest contrast of a visible text with its background (WCAG 2, relative luminance),
# and the text.
FAINTEST = """(() => {
  const canvas = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true});
  const rgba = (color) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1); return canvas.getImageData(0, 0, 1, 1).data; };
  const light = (c) => [0.2126, 0.7152, 0.0722].reduce((sum, w, i) => { const v = c[i] / 255; return sum + w * (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); }, 0);
  let worst = [99, ''];
  for (const e of document.querySelectorAll('body *')) {
    if (!e.checkVisibility() || ![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())) continue;
    if (e.closest('.unseen, .skip, option')) continue;
    let behind = e;
    while (behind && rgba(getComputedStyle(behind).backgroundColor)[3] < 255) behind = behind.parentElement;
    const a = light(rgba(getComputedStyle(e).color)), b = light(rgba(getComputedStyle(behind || document.documentElement).backgroundColor));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < worst[0]) worst = [ratio, e.tagName + '.' + e.className + ' ' + e.textContent.slice(0, 40)];
  }
  return worst;
})()"""
NAMELESS = """[...document.querySelectorAll('button, a[href], input, select, [role=img], progress')].filter(e => e.checkVisibility() &&
  !(e.innerText || e.getAttribute('aria-label') || (e.labels && e.labels.length) || e.querySelector('title'))).map(e => e.outerHTML.slice(0, 90)).join(' ')"""


class Scene:
    """A made-up cluster and its page."""

    def __init__(self, name):
        self._process = subprocess.Popen([PROGRAM, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.url = self._process.stdout.readline().strip()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(timeout=20)


class PageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tab = browser.Browser()

    @classmethod
    def tearDownClass(cls):
        cls.tab.close()

    def setUp(self):
        self.tab.leave()
        self.tab.look()

    def shown(self, scene, where="#/", until=LIVE):
        self.tab.open(scene.url + "/" + where)
        self.tab.wait(until)
        return self.tab.value(TEXT)

    def assert_fits_and_is_legible(self):
        self.assertFalse(self.tab.value(SCROLLS_SIDEWAYS), self.tab.value(WIDE))
        ratio, what = self.tab.value(FAINTEST)
        self.assertGreater(ratio, 4.5, what)
        self.assertEqual(self.tab.value(NAMELESS), "")

    def test_no_job(self):
        with Scene("none") as scene:
            text = self.shown(scene, until="document.querySelector('#no-jobs').checkVisibility()")
            self.assertIn("No job yet", text)
            self.shown(scene, "#/queue", until=f"{TEXT}.includes('No job waits')")
            self.shown(scene, "#/members", until=f"{TEXT}.includes('No member is attached')")
            self.assertEqual(self.tab.messages, [])

    def test_a_run(self):
        with Scene("running") as scene:
            text = self.shown(scene, until="document.querySelectorAll('#jobs .spark').length == 2")
            for words in ("char-gpt-1", "running", "20,000 of 40,000 (50 %)", "28 min 20 s left", "bert-3", "needs 4 workers and 1 is free of the 2 that are attached", "0.823", "1,912"):
                self.assertIn(words, text)
            self.assert_fits_and_is_legible()
            text = self.shown(scene, "#/queue", until=f"{TEXT}.includes('bert-3')")
            self.assertIn("needs 4 workers and 1 is free of the 2 that are attached", text)
            text = self.shown(scene, "#/members", until=f"{TEXT}.includes('worker-0')")
            for words in ("ps-0", "char-gpt-1", "cpu:0", "node-a", "tcp"):
                self.assertIn(words, text)
            text = self.shown(scene, "#/members/worker-0", until=f"{TEXT}.includes('is attached')")
            self.assertIn("worker-0 is attached\nnode-a", self.tab.value("document.querySelector('#log').textContent"))
            self.assert_fits_and_is_legible()
            text = self.shown(scene, "#/jobs/char-gpt-1", until=f"{PLOTS} && {TEXT}.includes('node-a')")
            self.assertIn("worker-0 worker on node-a, cpu:0, tcp", text.replace("\n", " "))
            links = self.tab.value("document.querySelector('#links').innerText").replace("\t", " ").replace("\n", " ")
            for words in ("worker-0 ps-0/0 shm host 21.0 GiB 21.0 GiB", "ps-0/1 tcp (tls, eth0) fell back: one host, but another network namespace"):
                self.assertIn(words, " ".join(links.split()))
            self.assertIn("72 more are not shown.", text)
            self.assertIn("compute-bound: worker-0 computes 84 % of a step (1.0 data + 28.0 compute + 4.5 wait = 33.5 ms a step)", text)
            for words in ("step 20,000 of 40,000", "0.91", "79.0 % right", "33.5 ms, 13 % waiting", "SUBMITTED", "on worker-0 and ps-0", "step 10,000", "117.7 MiB", "model.safetensors"):
                self.assertIn(words, text)
            self.assert_fits_and_is_legible()
            link = self.tab.value("document.querySelector('#checkpoints a').href")
            self.assertEqual(self.tab.value(f"fetch('{link}').then(a => a.text())"), "the model")
            self.assertEqual(self.tab.messages, [])

    def test_comparison_smoothing_and_zoom(self):
        with Scene("running") as scene:
            text = self.shown(scene, "#/jobs/char-gpt-1,char-gpt-0", until=f"{PLOTS} && document.querySelectorAll('#legend li').length == 2")
            self.assertIn("char-gpt-0", text)
            before = self.tab.value("document.querySelector('.plot canvas').toDataURL()")
            self.tab.value("(() => { const s = document.querySelector('#smoothing'); s.value = 0; s.dispatchEvent(new Event('input')); })()")
            self.tab.wait(f"document.querySelector('.plot canvas').toDataURL() != {before!r}")
            self.assertEqual(self.tab.messages, [])

    def test_a_comparison_begins_and_ends_in_the_list(self):
        with Scene("running") as scene:
            options = "[...document.querySelector('#compare-with').options].map(o => o.textContent).join()"
            choose = "(value => { const s = document.querySelector('#compare-with'); s.value = value; s.dispatchEvent(new Event('change')); })"
            self.shown(scene, "#/jobs/char-gpt-1", until=f"{PLOTS} && {options}.includes('char-gpt-0')")
            self.assertEqual(self.tab.value(options).split(",")[0], "none")
            self.tab.value(f"{choose}('jobs/char-gpt-0')")
            self.tab.wait(f"document.querySelectorAll('#legend li').length == 2 && {options}.startsWith('another job,none')")
            self.tab.value(f"{choose}('none')")
            self.tab.wait(f"location.hash == '#/jobs/char-gpt-1' && document.querySelectorAll('#legend li').length == 0 && {options}.startsWith('none')")
            self.assertEqual(self.tab.messages, [])

    def test_a_failed_job(self):
        with Scene("failed") as scene:
            text = self.shown(scene, "#/jobs/resnet-2", until=PLOTS)
            self.assertIn("NON_FINITE_LOSS: the loss of step 17 is not finite; try a smaller learning rate", text)
            self.assertIn("failed", text)
            self.shown(scene, "#/jobs/nobody", until=f"{TEXT}.includes(\"there is no job 'nobody'\")")

    def test_a_coordinator_that_is_gone_is_reported_once(self):
        with Scene("running") as scene:
            self.shown(scene, "#/jobs/char-gpt-1", until=PLOTS)
            scene.stop()
            self.tab.wait("document.querySelector('#connection').textContent == 'not connected'")
            self.tab.value("(() => { location.hash = '#/queue'; })()")  # asks the coordinator
            self.tab.wait("document.querySelector('#queue-view').checkVisibility()")
            self.assertFalse(self.tab.value("fetch('/api/v1/jobs').then(() => true, () => false)"))
            self.assertFalse(self.tab.value("document.querySelector('#fault').checkVisibility()"))

    def test_what_others_wrote_stays_text(self):
        with Scene("hostile") as scene:
            for where, until in (("#/", "document.querySelectorAll('#jobs tbody tr').length == 3 && document.querySelectorAll('#jobs .spark').length == 2"),
                                 ("#/queue", "document.querySelectorAll('#queue li').length == 1"),
                                 ("#/members", "document.querySelectorAll('#members tbody tr').length == 3")):
                self.shown(scene, where, until)
                self.assert_untouched()
            self.shown(scene, "#/members/worker-0", "document.querySelector('#log').textContent.includes('<img')")
            self.assert_untouched()
            self.shown(scene, "#/", "document.querySelectorAll('#jobs tbody tr').length == 3")
            self.tab.value("[...document.querySelectorAll('#jobs a.name')].find(a => a.innerText.includes('<img') && !a.innerText.includes('queued')).click()")
            self.tab.wait(f"{PLOTS} && document.querySelectorAll('#events li').length == 4")
            self.tab.wait("document.querySelectorAll('#checkpoints a').length > 0")
            self.assertEqual(self.tab.value("[...document.querySelectorAll('#links td')].filter(e => e.innerText.includes('<img')).length"), 4)
            self.assert_untouched()
            self.assertIn("<img src=x onerror=", self.tab.value(TEXT))

    def assert_untouched(self):
        self.assertIsNone(self.tab.value("window.struck"))
        self.assertEqual(self.tab.value("document.querySelectorAll('main img, main script, main [onerror]').length"), 0)
        self.assertFalse(self.tab.value(SCROLLS_SIDEWAYS), self.tab.value(WIDE))
        # A text with a direction override must stay in an element of its own.
        self.assertEqual(self.tab.value("""[...document.querySelectorAll('main *')].filter(e => e.tagName != 'BDI' && e.tagName != 'OPTION' &&
          e.tagName != 'title' && [...e.childNodes].some(n => n.nodeType == 3 && n.textContent.includes('\\u202e'))).length"""), 0)
        self.assertEqual([m for m in self.tab.messages if "ontent Security Policy" in m], [])

    def test_a_script_of_others_would_not_run(self):
        with Scene("none") as scene:
            self.shown(scene)
            self.tab.value("(() => { const s = document.createElement('script'); s.textContent = 'window.struck = 1'; document.body.append(s); })()")
            self.assertIsNone(self.tab.value("window.struck"))

    def test_signing_in_and_out(self):
        with Scene("tokens") as scene:
            text = self.shown(scene, until="document.querySelector('#login').checkVisibility()")
            self.assertIn("Sign in", text)
            self.assertNotIn("char-gpt", text)
            self.assert_fits_and_is_legible()
            enter = "(token => { document.querySelector('#token').value = token; document.querySelector('#login-form').requestSubmit(); })"
            self.tab.value(f"{enter}('wrong')")
            self.tab.wait(f"{TEXT}.includes('does not know this token')")
            self.tab.value(f"{enter}('muster.t-1.good')")
            self.tab.wait(f"{TEXT}.includes('char-gpt-1')")
            self.assertEqual(self.tab.value("document.cookie"), "")  # no script can read it
            self.tab.value("document.querySelector('#sign-out').click()")
            self.tab.wait("document.querySelector('#login').checkVisibility()")
            self.assertEqual(self.tab.value("fetch('/api/v1/jobs').then(a => a.status)"), 401)

    def test_dark(self):
        with Scene("running") as scene:
            self.tab.look(dark=True)
            for where, until in (("#/", "document.querySelectorAll('#jobs .spark').length == 2"), ("#/jobs/char-gpt-1", PLOTS)):
                self.shown(scene, where, until)
                self.assert_fits_and_is_legible()
                self.assertLess(self.tab.value("Math.max(...getComputedStyle(document.documentElement).backgroundColor.match(/\\d+/g).map(Number))"), 60)

    def test_phone(self):
        with Scene("running") as scene:
            self.tab.look(width=360, height=740, phone=True)
            for where, until in (("#/", "document.querySelectorAll('#jobs .spark').length == 2"), ("#/queue", f"{TEXT}.includes('bert-3')"),
                                 ("#/members", f"{TEXT}.includes('worker-0')"), ("#/jobs/char-gpt-1,char-gpt-0", PLOTS)):
                self.shown(scene, where, until)
                self.assert_fits_and_is_legible()


if __name__ == "__main__":
    if browser.program() is None:
        print("services/coordinator/status_page/browser_test.py:1: Skipped\nthere is no chromium; apt-get install chromium-headless-shell")
        sys.exit(0)
    unittest.main()
