// Opens the page in headless Chromium, waits until every panel has its answer, and saves a picture.
// node shot.mjs CHROMIUM URL PICTURE WIDTH; prints the page's report as JSON.
import { writeFileSync } from 'node:fs';
import puppeteer from 'puppeteer-core';

const [executablePath, url, picture, width] = process.argv.slice(2);
const WAIT_MS = 60_000;
/** Fonts, icons and the last redraw come after the data: the page is still when two looks are the same. */
const LOOK_MS = 700;
const LOOKS = 30;

const args = ['--disable-gpu', '--force-color-profile=srgb'];
if (process.getuid() === 0) args.push('--no-sandbox'); // Chromium refuses its sandbox to root
const browser = await puppeteer.launch({ executablePath, args });
try {
  const page = await browser.newPage();
  // Tall from the beginning: a panel that is not in view would not be drawn.
  await page.setViewport({ width: Number(width), height: 4000 });
  const errors = [];
  page.on('pageerror', (error) => errors.push(error.message.slice(0, 600)));
  await page.goto(url, { waitUntil: 'load' });
  const done = () => {
    const { panels, pending, expected, fatal } = window.__report;
    return fatal || (expected && !pending && expected.every((id) => ['Done', 'Error'].includes(panels[id]?.state)));
  };
  let timedOut = false;
  await page.waitForFunction(done, { timeout: WAIT_MS }).catch(() => (timedOut = true));
  const drawn = () => {
    const contents = [...document.querySelectorAll('[data-testid="data-testid panel content"]')];
    const filled = contents.filter((one) => one.innerText.trim() || one.querySelector('canvas'));
    return filled.length >= (window.__report.expected ?? []).length;
  };
  await page.waitForFunction(drawn, { timeout: WAIT_MS }).catch(() => (timedOut = true));
  const bottom = () => Math.max(0, ...[...document.querySelectorAll('.react-grid-item')].map((one) => one.getBoundingClientRect().bottom));
  let previous = '';
  for (let look = 0; look < LOOKS; look++) {
    await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
    const height = Math.ceil(await page.evaluate(bottom)) + 16;
    const clip = { x: 0, y: 0, width: Number(width), height };
    // Beyond the viewport would lay the page out again, and catch panels that are just being made.
    const image = Buffer.from(await page.screenshot({ clip, captureBeyondViewport: false }));
    const seen = image.toString('base64');
    writeFileSync(picture, image);
    if (seen === previous) break;
    previous = seen;
  }
  console.log(JSON.stringify({ ...(await page.evaluate('window.__report')), errors: [...new Set(errors)], timedOut }));
} finally {
  await browser.close();
}
